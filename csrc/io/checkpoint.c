/* checkpoint.c - finds the files of a checkpoint and lists their tensors.
 *  (1) All files have one format, and a tensor's name appears in one of them only.
 *  (2) Every part that an index or a split file lists must exist; the error names the one that is missing. */
#include "io/checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/grow.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/names.h"
#include "io/safetensors.h"
#include "quants.h"

#define INDEX_NAME "model.safetensors.index.json"

typedef struct {
    gguf *g;
    safetensors *s;
} part; /* the other one is NULL */

struct gm_checkpoint {
    part *parts;
    int n_parts;
    gm_tensor *tensors;
    int64_t count;
    name_table names;
    char *text; /* GGUF: NUL-terminated names and types */
};

/* ---- lists of texts ---- */

typedef struct {
    char **items;
    size_t count, capacity;
} text_list;

static void list_free(text_list *l) {
    for (size_t i = 0; i < l->count; i++)
        memory_free(l->items[i]);
    memory_free(l->items);
    *l = (text_list){0};
}

/* Takes ownership of `text`, also on failure; NULL means that allocating it failed. */
static gm_status list_take(text_list *l, char *text) {
    if (!text)
        return GM_ENOMEM;
    if (grow_array(&l->items, l->count, &l->capacity, 1, sizeof *l->items) != GM_OK) {
        memory_free(text);
        return GM_ENOMEM;
    }
    l->items[l->count++] = text;
    return GM_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static char *join_path(const char *folder, const char *name) {
    size_t folder_length = strlen(folder), length = strlen(name);
    char *path = memory_new(folder_length + length + 2);
    if (!path)
        return NULL;
    memcpy(path, folder, folder_length);
    path[folder_length] = '/';
    memcpy(path + folder_length + 1, name, length + 1);
    return path;
}

static bool starts_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

/* ---- split files: "x-00001-of-00005.gguf" ---- */

#define SPLIT_LENGTH 15 /* "-00001-of-00005" */

/* part is 1 to count; count is 0 for a file that is not split. */
typedef struct {
    size_t prefix;
    int part, count;
} split_name;

static int five_digits(const char *at) {
    int value = 0;
    for (int i = 0; i < 5; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -1;
        value = value * 10 + (at[i] - '0');
    }
    return value;
}

static split_name split_of(const char *path, const char *extension) {
    size_t length = strlen(path), tail = SPLIT_LENGTH + strlen(extension);
    if (length < tail || !ends_with(path, extension))
        return (split_name){0};
    const char *at = path + length - tail;
    int first = at[0] == '-' ? five_digits(at + 1) : -1;
    if (first < 1 || memcmp(at + 6, "-of-", 4) != 0)
        return (split_name){0};
    int count = five_digits(at + 10);
    if (count < first)
        return (split_name){0};
    return (split_name){.prefix = length - tail, .part = first, .count = count};
}

static char *split_path(const char *path, split_name split, int number, const char *extension) {
    char tail[SPLIT_LENGTH + 32];
    int n = snprintf(tail, sizeof tail, "-%05d-of-%05d%s", number, split.count, extension);
    char *made = memory_new(split.prefix + (size_t)n + 1);
    if (!made)
        return NULL;
    memcpy(made, path, split.prefix);
    memcpy(made + split.prefix, tail, (size_t)n + 1);
    return made;
}

/* ---- the list of tensors ---- */

static const gm_file *part_file(const gm_checkpoint *c, int file) {
    const part *p = &c->parts[file];
    return p->g ? gguf_file(p->g) : safetensors_file(p->s);
}

static gm_status list_tensor(gm_checkpoint *c, int file, const gm_tensor *t) {
    int64_t earlier;
    GM_TRY(names_add(&c->names, t->name, strlen(t->name), c->count, &earlier));
    if (earlier >= 0)
        return gm_fail(GM_EBADFILE, "tensor %s is in two files, %s and %s", t->name,
                       part_file(c, c->tensors[earlier].file)->path, part_file(c, file)->path);
    c->tensors[c->count] = *t;
    c->tensors[c->count++].file = file;
    return GM_OK;
}

static gm_status list_safetensors(gm_checkpoint *c) {
    size_t count = 0;
    for (int f = 0; f < c->n_parts; f++)
        count += (size_t)safetensors_count(c->parts[f].s);
    c->tensors = memory_array(count, sizeof *c->tensors);
    if (!c->tensors)
        return GM_ENOMEM;
    for (int f = 0; f < c->n_parts; f++)
        for (int64_t i = 0; i < safetensors_count(c->parts[f].s); i++)
            GM_TRY(list_tensor(c, f, safetensors_at(c->parts[f].s, i)));
    return GM_OK;
}

/* Bytes of a GGUF tensor's name and of a type id without a name. */
#define GGUF_TEXT_BYTES(t) ((t)->name.length + 1 + sizeof "type 4294967295")

static gm_tensor describe_gguf(const gguf_tensor *from, char **text) {
    int format = quant_from_gguf(from->type);
    gm_tensor t = {.name = *text,
                   .type = quant_gguf_name(from->type),
                   .format = format,
                   .ndim = from->n_dims,
                   .data = from->data,
                   .bytes = from->bytes};
    memcpy(*text, from->name.text, from->name.length);
    *text += from->name.length;
    *(*text)++ = 0;
    if (!t.type) {
        t.type = *text;
        *text += 1 + sprintf(*text, "type %" PRId64, from->type);
    }
    for (int d = 0; d < from->n_dims; d++)
        t.shape[d] = from->shape[d];
    return t;
}

static gm_status list_gguf(gm_checkpoint *c) {
    size_t count = 0, text_bytes = 0;
    for (int f = 0; f < c->n_parts; f++)
        for (int64_t i = 0; i < gguf_n_tensors(c->parts[f].g); i++, count++)
            text_bytes += GGUF_TEXT_BYTES(gguf_tensor_at(c->parts[f].g, i));
    c->tensors = memory_array(count, sizeof *c->tensors);
    c->text = memory_new(text_bytes);
    if (!c->tensors || !c->text)
        return GM_ENOMEM;
    char *text = c->text;
    for (int f = 0; f < c->n_parts; f++)
        for (int64_t i = 0; i < gguf_n_tensors(c->parts[f].g); i++) {
            gm_tensor t = describe_gguf(gguf_tensor_at(c->parts[f].g, i), &text);
            GM_TRY(list_tensor(c, f, &t));
        }
    return GM_OK;
}

/* ---- GGUF ---- */

static gm_status read_split(const gguf *g, int64_t *number, int64_t *count, int64_t *tensors) {
    *number = 0;
    *count = 1;
    *tensors = -1;
    GM_TRY(gguf_get_int(g, "split.no", number, NULL));
    GM_TRY(gguf_get_int(g, "split.count", count, NULL));
    return gguf_get_int(g, "split.tensors.count", tensors, NULL);
}

static gm_status open_part(gm_checkpoint *c, const char *path, const split_name *split, int i) {
    char *name = split_path(path, *split, i + 1, ".gguf");
    if (!name)
        return GM_ENOMEM;
    gm_status status;
    if (access(name, F_OK) != 0)
        status = gm_fail_errno("part %d of %d of the split model is missing: %s", i + 1, split->count, name);
    else
        status = gguf_open(name, &c->parts[i].g);
    int64_t number, count, tensors;
    if (status == GM_OK)
        status = error_in_file(name, read_split(c->parts[i].g, &number, &count, &tensors));
    if (status == GM_OK && (number != i || count != split->count))
        status = gm_fail(GM_EBADFILE,
                         "%s: the file says that it is part %" PRId64 " of %" PRId64 ", expected part %d of %d", name,
                         number + 1, count, i + 1, split->count);
    memory_free(name);
    return status;
}

static gm_status open_gguf(gm_checkpoint *c, const char *path) {
    int64_t number, count, promised;
    gguf *given;
    GM_TRY(gguf_open(path, &given));
    gm_status status = error_in_file(path, read_split(given, &number, &count, &promised));
    if (status == GM_OK && (count < 1 || count > 99999))
        status = gm_fail(GM_EBADFILE, "%s: split.count is %" PRId64 ", expected 1 to 99999", path, count);
    split_name split = split_of(path, ".gguf");
    if (status == GM_OK && count > 1 && split.count != count)
        status = gm_fail(GM_EBADFILE,
                         "%s: it is one of %" PRId64 " parts, expected a file name such as x-00001-of-%05" PRId64
                         ".gguf, by which the others are found",
                         path, count, count);
    c->n_parts = status == GM_OK ? (int)count : 1;
    c->parts = memory_zeroed((size_t)c->n_parts * sizeof *c->parts);
    if (status != GM_OK || !c->parts) {
        gguf_close(given);
        return status == GM_OK ? GM_ENOMEM : status;
    }
    if (count == 1) {
        c->parts[0].g = given;
        return list_gguf(c);
    }
    gguf_close(given); /* it is opened again as one of the parts */
    for (int i = 0; i < c->n_parts; i++)
        GM_TRY(open_part(c, path, &split, i));
    GM_TRY(list_gguf(c));
    if (promised >= 0 && promised != c->count)
        return gm_fail(GM_EBADFILE, "%s: split.tensors.count is %" PRId64 ", but the parts hold %" PRId64 " tensors",
                       path, promised, c->count);
    return GM_OK;
}

/* ---- safetensors ---- */

static gm_status open_safetensors(gm_checkpoint *c, char *const *paths, size_t count) {
    c->parts = memory_zeroed(count * sizeof *c->parts);
    if (!c->parts)
        return GM_ENOMEM;
    c->n_parts = (int)count;
    for (size_t i = 0; i < count; i++)
        GM_TRY(safetensors_open(paths[i], &c->parts[i].s));
    return list_safetensors(c);
}

/* The weight_map of an index: each tensor's name and the index of its file. */
typedef struct {
    text_list tensors, files;
    int *file_of;
    size_t capacity;
    name_table names;
} weight_map;

static void map_free(weight_map *m) {
    names_free(&m->names);
    list_free(&m->tensors);
    list_free(&m->files);
    memory_free(m->file_of);
}

/* A shard is in the folder of its index. */
static gm_status read_shard_name(json_reader *r, char **out) {
    size_t length;
    GM_TRY(json_expect(r, JSON_STRING));
    *out = json_string_new(r, &length);
    if (!*out)
        return GM_ENOMEM;
    if (length > 0 && strlen(*out) == length && !strchr(*out, '/') && !strstr(*out, ".."))
        return GM_OK;
    memory_free(*out);
    return json_fail(r, "a shard named %.*s, expected the name of a file in the same folder",
                     (int)(length < 200 ? length : 200), r->token);
}

static gm_status map_add(weight_map *m, json_reader *r) {
    char *file = NULL;
    int64_t earlier;
    GM_TRY(list_take(&m->tensors, json_string_new(r, NULL)));
    GM_TRY(read_shard_name(r, &file));
    int64_t number = names_find(&m->names, file, strlen(file));
    if (number >= 0) {
        memory_free(file);
    } else {
        number = (int64_t)m->files.count;
        GM_TRY(list_take(&m->files, file));
        GM_TRY(names_add(&m->names, file, strlen(file), number, &earlier));
    }
    const size_t i = m->tensors.count - 1;
    GM_TRY(grow_array(&m->file_of, i, &m->capacity, 1, sizeof *m->file_of));
    m->file_of[i] = (int)number;
    return GM_OK;
}

static gm_status read_index(weight_map *m, const gm_file *index) {
    json_reader r;
    bool found = false;
    json_open(&r, (const char *)index->data, index->size, index->path);
    GM_TRY(json_expect(&r, JSON_OBJECT));
    while (json_next(&r) == JSON_KEY) {
        if (!json_is(&r, "weight_map")) {
            GM_TRY(json_skip(&r));
            continue;
        }
        if (found)
            return json_fail(&r, "weight_map appears twice");
        found = true;
        GM_TRY(json_expect(&r, JSON_OBJECT));
        while (json_next(&r) == JSON_KEY)
            GM_TRY(map_add(m, &r));
        if (r.failed)
            return GM_EBADFILE;
    }
    GM_TRY(json_expect(&r, JSON_END));
    if (m->files.count == 0)
        return gm_fail(GM_EBADFILE, "%s: weight_map is missing or empty", index->path);
    return GM_OK;
}

static gm_status open_shards(gm_checkpoint *c, const weight_map *m, const char *folder, const char *index) {
    text_list paths = {0};
    gm_status status = GM_OK;
    for (size_t i = 0; i < m->files.count && status == GM_OK; i++) {
        status = list_take(&paths, join_path(folder, m->files.items[i]));
        if (status == GM_OK && access(paths.items[i], F_OK) != 0)
            status = gm_fail_errno("%s names the shard %s, which is missing", index, m->files.items[i]);
    }
    if (status == GM_OK)
        status = open_safetensors(c, paths.items, paths.count);
    list_free(&paths);
    for (size_t i = 0; i < m->tensors.count && status == GM_OK; i++) {
        const gm_tensor *t = checkpoint_find(c, m->tensors.items[i]);
        if (!t || t->file != m->file_of[i])
            status = gm_fail(GM_EBADFILE, "%s: tensor %s is not in its shard %s", index, m->tensors.items[i],
                             m->files.items[m->file_of[i]]);
    }
    return status;
}

static gm_status open_index(gm_checkpoint *c, const char *folder, const char *path) {
    gm_file index;
    weight_map map = {0};
    GM_TRY(file_map(path, &index));
    gm_status status = read_index(&map, &index);
    if (status == GM_OK)
        status = open_shards(c, &map, folder, path);
    map_free(&map);
    file_unmap(&index);
    return status;
}

/* ---- a folder ---- */

/* Lists the names in the folder that end in `extension`, sorted and without hidden files. */
static gm_status list_folder(const char *folder, const char *extension, text_list *out) {
    DIR *dir = opendir(folder);
    if (!dir)
        return gm_fail_errno("cannot read the folder %s", folder);
    gm_status status = GM_OK;
    struct dirent *entry;
    while (status == GM_OK && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && ends_with(entry->d_name, extension))
            status = list_take(out, memory_copy_text(entry->d_name, strlen(entry->d_name)));
    closedir(dir);
    if (status == GM_OK && out->count)
        qsort(out->items, out->count, sizeof *out->items, by_text);
    return status;
}

/* Keeps model*.safetensors if there are any, else all but adapters and the vendor's consolidated files. */
static void keep_models(text_list *names) {
    bool named = false;
    for (size_t i = 0; i < names->count; i++)
        named |= starts_with(names->items[i], "model");
    size_t kept = 0;
    for (size_t i = 0; i < names->count; i++) {
        char *name = names->items[i];
        bool other = starts_with(name, "adapter") || starts_with(name, "consolidated");
        if (named ? starts_with(name, "model") : !other)
            names->items[kept++] = name;
        else
            memory_free(name);
    }
    names->count = kept;
}

/* Shards without an index must be complete. */
static gm_status check_shards(const char *folder, const text_list *names) {
    for (size_t i = 0; i < names->count; i++) {
        split_name split = split_of(names->items[i], ".safetensors");
        if (split.count == 0)
            continue;
        int next = split.part % split.count + 1; /* each checks that the next exists, the last the first */
        char *wanted = split_path(names->items[i], split, next, ".safetensors");
        if (!wanted)
            return GM_ENOMEM;
        bool there = bsearch(&wanted, names->items, names->count, sizeof *names->items, by_text) != NULL;
        gm_status status = GM_OK;
        if (!there) {
            errno = ENOENT;
            status = gm_fail_errno("%s: %s is present, but %s is missing", folder, names->items[i], wanted);
        }
        memory_free(wanted);
        GM_TRY(status);
    }
    return GM_OK;
}

/* Chooses the file to open: the folder must hold one model, in one file or in parts. */
static gm_status choose_gguf(const char *folder, const text_list *names, const char **out) {
    split_name first = split_of(names->items[0], ".gguf");
    bool one = true;
    for (size_t i = 1; i < names->count; i++) {
        split_name split = split_of(names->items[i], ".gguf");
        one &= split.count != 0 && split.count == first.count && split.prefix == first.prefix &&
               memcmp(names->items[i], names->items[0], split.prefix) == 0;
    }
    *out = names->items[0];
    if (one)
        return GM_OK;
    char text[600];
    size_t used = 0;
    for (size_t i = 0; i < names->count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", names->items[i]);
    return gm_fail(GM_EVALUE, "%s holds %zu .gguf files, expected one model; give the path of one: %s", folder,
                   names->count, text);
}

static gm_status open_names(gm_checkpoint *c, const char *folder, const text_list *names) {
    text_list paths = {0};
    gm_status status = check_shards(folder, names);
    for (size_t i = 0; i < names->count && status == GM_OK; i++)
        status = list_take(&paths, join_path(folder, names->items[i]));
    if (status == GM_OK)
        status = open_safetensors(c, paths.items, paths.count);
    list_free(&paths);
    return status;
}

static gm_status open_only_gguf(gm_checkpoint *c, const char *folder, const text_list *names) {
    const char *name;
    if (names->count == 0) {
        errno = ENOENT;
        return gm_fail_errno("%s: this folder has no .safetensors and no .gguf file", folder);
    }
    GM_TRY(choose_gguf(folder, names, &name));
    char *path = join_path(folder, name);
    gm_status status = path ? open_gguf(c, path) : GM_ENOMEM;
    memory_free(path);
    return status;
}

static gm_status open_folder(gm_checkpoint *c, const char *folder) {
    char *index = join_path(folder, INDEX_NAME);
    if (!index)
        return GM_ENOMEM;
    if (access(index, F_OK) == 0) {
        gm_status status = open_index(c, folder, index);
        memory_free(index);
        return status;
    }
    memory_free(index);
    text_list names = {0};
    gm_status status = list_folder(folder, ".safetensors", &names);
    if (status == GM_OK)
        keep_models(&names);
    if (status == GM_OK && names.count > 0) {
        status = open_names(c, folder, &names);
    } else if (status == GM_OK) {
        status = list_folder(folder, ".gguf", &names);
        if (status == GM_OK)
            status = open_only_gguf(c, folder, &names);
    }
    list_free(&names);
    return status;
}

static gm_status open_path(gm_checkpoint *c, const char *path) {
    struct stat st;
    if (stat(path, &st) != 0)
        return gm_fail_errno("cannot open %s", path);
    if (S_ISDIR(st.st_mode))
        return open_folder(c, path);
    if (ends_with(path, ".gguf"))
        return open_gguf(c, path);
    if (!ends_with(path, ".safetensors"))
        return gm_fail(GM_EVALUE, "%s: expected a .gguf file, a .safetensors file or a folder", path);
    char *copy = memory_copy_text(path, strlen(path));
    gm_status status = copy ? open_safetensors(c, &copy, 1) : GM_ENOMEM;
    memory_free(copy);
    return status;
}

gm_status checkpoint_open(const char *path, gm_checkpoint **out) {
    *out = NULL;
    gm_checkpoint *c = memory_zeroed(sizeof *c);
    if (!c)
        return GM_ENOMEM;
    gm_status status = open_path(c, path);
    if (status != GM_OK) {
        checkpoint_close(c);
        return status;
    }
    *out = c;
    return GM_OK;
}

void checkpoint_close(gm_checkpoint *c) {
    if (!c)
        return;
    for (int i = 0; c->parts && i < c->n_parts; i++) {
        gguf_close(c->parts[i].g);
        safetensors_close(c->parts[i].s);
    }
    names_free(&c->names);
    memory_free(c->parts);
    memory_free(c->tensors);
    memory_free(c->text);
    memory_free(c);
}

int64_t checkpoint_count(const gm_checkpoint *c) { return c->count; }
const gm_tensor *checkpoint_at(const gm_checkpoint *c, int64_t i) { return &c->tensors[i]; }
const gguf *checkpoint_gguf(const gm_checkpoint *c) { return c->parts[0].g; }

const gm_tensor *checkpoint_find(const gm_checkpoint *c, const char *name) {
    int64_t i = names_find(&c->names, name, strlen(name));
    return i < 0 ? NULL : &c->tensors[i];
}

void checkpoint_will_need(const gm_checkpoint *c, const gm_tensor *t) {
    const gm_file *file = part_file(c, t->file);
    if (t->bytes)
        file_will_need(file, (size_t)(t->data - file->data), t->bytes);
}

void checkpoint_done_with(const gm_checkpoint *c, const gm_tensor *t) {
    const gm_file *file = part_file(c, t->file);
    if (t->bytes)
        file_done_with(file, (size_t)(t->data - file->data), t->bytes);
}

gm_status checkpoint_check_unchanged(const gm_checkpoint *c) {
    for (int i = 0; i < c->n_parts; i++)
        GM_TRY(file_check_unchanged(part_file(c, i)));
    return GM_OK;
}
