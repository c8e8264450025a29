/* gguf.c - reads a GGUF file's metadata and tensor list.
 *  (1) The reader's position only moves by lengths that were checked against the end of the file.
 *  (2) Counts are checked against the least bytes that their items take, before memory is allocated.
 *  (3) Numbers are read with memcpy: nothing in the file is aligned. Little-endian machines only. */
#include "base/gguf.h"
#include <inttypes.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/names.h"
#include "quants.h"

#define MAX_KEY 65535
#define MAX_NAME 63
#define ENTRY_MIN_BYTES (8 + 1 + 4 + 1)      /* a key of one byte, the type, one byte of value */
#define TENSOR_MIN_BYTES (8 + 1 + 4 + 4 + 8) /* a name of one byte, no dimensions, the type, the offset */
#define MAX_ALIGNMENT ((int64_t)1 << 31)

struct gguf {
    gm_file file;
    gguf_entry *entries;
    gguf_tensor *tensors;
    uint64_t *offsets; /* of the tensors in the data section; freed once that is found */
    int64_t n_entries, n_tensors;
    name_table keys, names;
};

/* ---- reading ---- */

typedef struct {
    const gm_file *file;
    size_t at;
} reader;

static size_t left(const reader *r) { return r->file->size - r->at; }

static gm_status ends_early(const reader *r, const char *what) {
    return gm_fail(GM_EBADFILE, "%s: the file of %zu bytes ends at byte %zu in the middle of %s", r->file->path,
                   r->file->size, r->at, what);
}

static gm_status read_bytes(reader *r, void *out, size_t bytes, const char *what) {
    if (bytes > left(r))
        return ends_early(r, what);
    memcpy(out, r->file->data + r->at, bytes);
    r->at += bytes;
    return GM_OK;
}

static gm_status read_u32(reader *r, uint32_t *out, const char *what) { return read_bytes(r, out, 4, what); }
static gm_status read_u64(reader *r, uint64_t *out, const char *what) { return read_bytes(r, out, 8, what); }

static gm_status read_string(reader *r, gguf_string *out, const char *what) {
    uint64_t length = 0;
    GM_TRY(read_u64(r, &length, what));
    if (length > left(r))
        return ends_early(r, what);
    *out = (gguf_string){.text = (const char *)r->file->data + r->at, .length = (size_t)length};
    r->at += (size_t)length;
    return GM_OK;
}

/* A key or a tensor's name: 1 to max bytes, none of them NUL. */
static gm_status read_name(reader *r, gguf_string *out, size_t max, const char *what) {
    size_t at = r->at;
    GM_TRY(read_string(r, out, what));
    if (out->length == 0 || out->length > max)
        return gm_fail(GM_EBADFILE, "%s: %s at byte %zu has %zu bytes, expected 1 to %zu", r->file->path, what, at,
                       out->length, max);
    if (memchr(out->text, 0, out->length))
        return gm_fail(GM_EBADFILE, "%s: %s at byte %zu holds a NUL byte", r->file->path, what, at);
    return GM_OK;
}

/* ---- metadata ---- */

/* Bytes of a value; 0 for types whose values have a length of their own (string, array). */
static const struct {
    const char *name;
    size_t bytes;
} kinds[] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},   [GGUF_U16] = {"u16", 2},     [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4}, [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* A name from the file as messages print it: at most 64 bytes. */
#define SHOWN(s) (int)((s).length < 64 ? (s).length : 64), (s).text

static gm_status read_kind(reader *r, const gguf_string *key, gguf_type *out) {
    uint32_t kind = 0;
    GM_TRY(read_u32(r, &kind, "a value's type"));
    if (kind >= N_KINDS)
        return gm_fail(GM_EBADFILE, "%s: key %.*s has value type %" PRIu32 ", expected 0 to %zu", r->file->path,
                       SHOWN(*key), kind, N_KINDS - 1);
    *out = (gguf_type)kind;
    return GM_OK;
}

static gm_status read_value(reader *r, gguf_entry *e) {
    gguf_type item = e->type;
    e->count = 1;
    if (e->type == GGUF_ARRAY) {
        GM_TRY(read_kind(r, &e->key, &item));
        if (item == GGUF_ARRAY)
            return gm_fail(GM_EBADFILE, "%s: key %.*s is an array of arrays, expected an array of values",
                           r->file->path, SHOWN(e->key));
        GM_TRY(read_u64(r, &e->count, "an array's length"));
        e->item_type = item;
    }
    size_t least = item == GGUF_STRING ? 8 : kinds[item].bytes;
    if (e->count > left(r) / least)
        return gm_fail(GM_EBADFILE, "%s: key %.*s has %" PRIu64 " items, but the file has only %zu bytes left",
                       r->file->path, SHOWN(e->key), e->count, left(r));
    size_t start = r->at;
    e->data = r->file->data + start;
    if (item == GGUF_STRING) {
        gguf_string s;
        for (uint64_t i = 0; i < e->count; i++)
            GM_TRY(read_string(r, &s, "a string"));
    } else {
        r->at += (size_t)e->count * least;
    }
    e->bytes = r->at - start;
    return GM_OK;
}

static gm_status read_entries(gguf *g, reader *r) {
    for (int64_t i = 0; i < g->n_entries; i++) {
        gguf_entry *e = &g->entries[i];
        int64_t earlier;
        GM_TRY(read_name(r, &e->key, MAX_KEY, "a key"));
        GM_TRY(read_kind(r, &e->key, &e->type));
        GM_TRY(read_value(r, e));
        GM_TRY(names_add(&g->keys, e->key.text, e->key.length, i, &earlier));
        if (earlier >= 0)
            return gm_fail(GM_EBADFILE, "%s: key %.*s appears twice", g->file.path, SHOWN(e->key));
    }
    return GM_OK;
}

/* ---- tensors ---- */

static gm_status read_tensor(gguf *g, reader *r, int64_t i) {
    gguf_tensor *t = &g->tensors[i];
    uint32_t n_dims = 0, type = 0;
    int64_t earlier, values = 1;
    GM_TRY(read_name(r, &t->name, MAX_NAME, "a tensor's name"));
    GM_TRY(names_add(&g->names, t->name.text, t->name.length, i, &earlier));
    if (earlier >= 0)
        return gm_fail(GM_EBADFILE, "%s: tensor %.*s appears twice", g->file.path, SHOWN(t->name));
    GM_TRY(read_u32(r, &n_dims, "a tensor's dimensions"));
    if (n_dims > 4)
        return gm_fail(GM_EBADFILE, "%s: tensor %.*s has %" PRIu32 " dimensions, expected at most 4", g->file.path,
                       SHOWN(t->name), n_dims);
    t->n_dims = (int)n_dims;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        GM_TRY(read_bytes(r, &t->shape[d], 8, "a tensor's dimensions"));
        int64_t size = t->shape[d] ? t->shape[d] : 1; /* a dimension of 0 does not unbound the others */
        if (size < 0 || __builtin_mul_overflow(values, size, &values))
            return gm_fail(GM_EBADFILE, "%s: tensor %.*s has a dimension of %" PRId64 ", negative or too large",
                           g->file.path, SHOWN(t->name), t->shape[d]);
    }
    GM_TRY(read_u32(r, &type, "a tensor's type"));
    GM_TRY(read_u64(r, &g->offsets[i], "a tensor's offset"));
    t->type = type;
    return GM_OK;
}

/* Computes the bytes of a tensor of a known format: whole rows of whole blocks. */
static gm_status tensor_bytes(const gguf *g, gguf_tensor *t, const gm_quant_info *format) {
    int64_t row = t->n_dims ? t->shape[t->n_dims - 1] : 1, blocks = row / format->values, bytes;
    if (row % format->values != 0)
        return gm_fail(GM_EBADFILE, "%s: tensor %.*s has rows of %" PRId64 " values, expected a multiple of %d for %s",
                       g->file.path, SHOWN(t->name), row, format->values, format->name);
    for (int d = t->n_dims - 2; d >= 0; d--)
        blocks *= t->shape[d]; /* the product of all dimensions fits */
    if (__builtin_mul_overflow(blocks, (int64_t)format->bytes, &bytes))
        return gm_fail(GM_EBADFILE, "%s: tensor %.*s has %" PRId64 " blocks of %d bytes, more than can be addressed",
                       g->file.path, SHOWN(t->name), blocks, format->bytes);
    t->bytes = (size_t)bytes;
    return GM_OK;
}

/* Finds a tensor's data. Offsets count from the first aligned byte after the tensor list. */
static gm_status locate_tensor(gguf *g, int64_t i, size_t section, uint64_t alignment) {
    gguf_tensor *t = &g->tensors[i];
    uint64_t offset = g->offsets[i];
    size_t section_bytes = g->file.size > section ? g->file.size - section : 0;
    int format = quant_from_gguf(t->type);
    const gm_quant_info *blocks = format >= 0 ? &gm_quants[format] : NULL;
    if (offset % alignment != 0)
        return gm_fail(GM_EBADFILE, "%s: tensor %.*s is at offset %" PRIu64 ", expected a multiple of %" PRIu64,
                       g->file.path, SHOWN(t->name), offset, alignment);
    if (blocks)
        GM_TRY(tensor_bytes(g, t, blocks));
    if (offset > section_bytes || t->bytes > section_bytes - offset)
        return gm_fail(GM_EBADFILE,
                       "%s: tensor %.*s has %zu bytes at offset %" PRIu64
                       ", but there are %zu bytes of tensor data: the file of %zu bytes is cut short",
                       g->file.path, SHOWN(t->name), t->bytes, offset, section_bytes, g->file.size);
    if (blocks)
        t->data = g->file.data + section + (size_t)offset;
    return GM_OK;
}

static gm_status locate_tensors(gguf *g, size_t position) {
    int64_t alignment = 32;
    GM_TRY(gguf_get_int(g, "general.alignment", &alignment, NULL));
    if (alignment < 1 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return gm_fail(GM_EBADFILE, "%s: general.alignment is %" PRId64 ", expected a power of two", g->file.path,
                       alignment);
    size_t mask = (size_t)alignment - 1;
    if (position > SIZE_MAX - mask)
        return gm_fail(GM_EBADFILE, "%s: the tensor list ends at byte %zu, too far to be addressed", g->file.path,
                       position);
    for (int64_t i = 0; i < g->n_tensors; i++)
        GM_TRY(locate_tensor(g, i, (position + mask) & ~mask, (uint64_t)alignment));
    return GM_OK;
}

/* ---- the file ---- */

static gm_status read_count(reader *r, size_t least, const char *what, int64_t *out) {
    uint64_t count = 0;
    GM_TRY(read_u64(r, &count, "the header"));
    if (count > left(r) / least)
        return gm_fail(GM_EBADFILE, "%s: %" PRIu64 " %s, more than a file of %zu bytes can hold", r->file->path, count,
                       what, r->file->size);
    *out = (int64_t)count;
    return GM_OK;
}

static gm_status read_header(gguf *g, reader *r) {
    uint8_t magic[4];
    uint32_t version = 0;
    GM_TRY(read_bytes(r, magic, 4, "the header"));
    if (memcmp(magic, "GGUF", 4) != 0)
        return gm_fail(GM_EBADFILE, "%s: starts with bytes %02x %02x %02x %02x, expected \"GGUF\"", g->file.path,
                       magic[0], magic[1], magic[2], magic[3]);
    GM_TRY(read_u32(r, &version, "the header"));
    if (version == 1)
        return gm_fail(GM_EUNSUPPORTED, "%s: GGUF version 1, expected 2 or 3; convert the model again", g->file.path);
    if (version == 2u << 24 || version == 3u << 24)
        return gm_fail(GM_EUNSUPPORTED, "%s: a big-endian GGUF file, expected little-endian", g->file.path);
    if (version != 2 && version != 3)
        return gm_fail(GM_EUNSUPPORTED, "%s: GGUF version %" PRIu32 ", expected 2 or 3", g->file.path, version);
    GM_TRY(read_count(r, TENSOR_MIN_BYTES, "tensors", &g->n_tensors));
    return read_count(r, ENTRY_MIN_BYTES, "metadata entries", &g->n_entries);
}

static gm_status read_file(gguf *g) {
    reader r = {.file = &g->file};
    GM_TRY(read_header(g, &r));
    size_t n_entries = (size_t)g->n_entries, n_tensors = (size_t)g->n_tensors;
    g->entries = memory_zeroed(n_entries * sizeof(gguf_entry)); /* the counts are bounded by the file's size */
    g->tensors = memory_zeroed(n_tensors * sizeof(gguf_tensor));
    g->offsets = memory_array(n_tensors, sizeof(uint64_t));
    if (!g->entries || !g->tensors || !g->offsets)
        return GM_ENOMEM;
    GM_TRY(read_entries(g, &r));
    for (int64_t i = 0; i < g->n_tensors; i++)
        GM_TRY(read_tensor(g, &r, i));
    GM_TRY(locate_tensors(g, r.at));
    memory_free(g->offsets);
    g->offsets = NULL;
    return GM_OK;
}

gm_status gguf_open(const char *path, gguf **out) {
    *out = NULL;
    gguf *g = memory_zeroed(sizeof *g);
    if (!g)
        return GM_ENOMEM;
    gm_status status = file_map(path, &g->file);
    if (status == GM_OK)
        status = read_file(g);
    if (status != GM_OK) {
        gguf_close(g);
        return status;
    }
    *out = g;
    return GM_OK;
}

void gguf_close(gguf *g) {
    if (!g)
        return;
    names_free(&g->keys);
    names_free(&g->names);
    memory_free(g->entries);
    memory_free(g->tensors);
    memory_free(g->offsets);
    file_unmap(&g->file);
    memory_free(g);
}

const gm_file *gguf_file(const gguf *g) { return &g->file; }
int64_t gguf_n_entries(const gguf *g) { return g->n_entries; }
const gguf_entry *gguf_entry_at(const gguf *g, int64_t i) { return &g->entries[i]; }
int64_t gguf_n_tensors(const gguf *g) { return g->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf *g, int64_t i) { return &g->tensors[i]; }

const gguf_entry *gguf_find(const gguf *g, const char *key) {
    int64_t i = names_find(&g->keys, key, strlen(key));
    return i < 0 ? NULL : &g->entries[i];
}

/* ---- typed reads ---- */

static gguf_type item_kind(const gguf_entry *e) { return e->type == GGUF_ARRAY ? e->item_type : e->type; }

static gm_status wrong_kind(const gguf_entry *e, const char *expected) {
    bool array = e->type == GGUF_ARRAY;
    return gm_fail(GM_EBADFILE, "GGUF key %.*s is of type %s%s, expected %s", SHOWN(e->key), array ? "array of " : "",
                   kinds[item_kind(e)].name, expected);
}

typedef union {
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    int64_t i64;
    float f32;
    double f64;
} number;

static gm_status read_number(const gguf_entry *e, uint64_t i, number *out) {
    size_t bytes = kinds[item_kind(e)].bytes;
    *out = (number){.u64 = 0};
    if (bytes == 0)
        return wrong_kind(e, "a number");
    if (i >= e->count)
        return gm_fail(GM_EINDEX, "GGUF key %.*s has %" PRIu64 " items, but item %" PRIu64 " was requested",
                       SHOWN(e->key), e->count, i);
    memcpy(out, e->data + i * bytes, bytes);
    return GM_OK;
}

gm_status gguf_item_int(const gguf_entry *e, uint64_t i, int64_t *out) {
    number n;
    GM_TRY(read_number(e, i, &n));
    switch (item_kind(e)) {
    case GGUF_U8: *out = n.u8; return GM_OK;
    case GGUF_I8: *out = n.i8; return GM_OK;
    case GGUF_U16: *out = n.u16; return GM_OK;
    case GGUF_I16: *out = n.i16; return GM_OK;
    case GGUF_U32: *out = n.u32; return GM_OK;
    case GGUF_I32: *out = n.i32; return GM_OK;
    case GGUF_I64: *out = n.i64; return GM_OK;
    case GGUF_BOOL: *out = n.u8 != 0; return GM_OK;
    case GGUF_U64:
        if (n.u64 > INT64_MAX)
            return gm_fail(GM_EBADFILE, "GGUF key %.*s is %" PRIu64 ", expected less than 2**63", SHOWN(e->key), n.u64);
        *out = n.i64;
        return GM_OK;
    default: return wrong_kind(e, "an integer");
    }
}

gm_status gguf_item_float(const gguf_entry *e, uint64_t i, double *out) {
    number n;
    int64_t integer = 0;
    GM_TRY(read_number(e, i, &n));
    switch (item_kind(e)) {
    case GGUF_F32: *out = (double)n.f32; return GM_OK;
    case GGUF_F64: *out = n.f64; return GM_OK;
    case GGUF_BOOL: return wrong_kind(e, "a number");
    default:
        GM_TRY(gguf_item_int(e, i, &integer));
        *out = (double)integer;
        return GM_OK;
    }
}

/* Finds the entry of a key that has one value; *entry is NULL when the key is absent. */
static gm_status find_single(const gguf *g, const char *key, const char *expected, const gguf_entry **entry,
                             bool *found) {
    *entry = gguf_find(g, key);
    if (found)
        *found = *entry != NULL;
    return *entry && (*entry)->type == GGUF_ARRAY ? wrong_kind(*entry, expected) : GM_OK;
}

gm_status gguf_get_int(const gguf *g, const char *key, int64_t *out, bool *found) {
    const gguf_entry *e;
    GM_TRY(find_single(g, key, "an integer", &e, found));
    if (e && e->type == GGUF_BOOL)
        return wrong_kind(e, "an integer");
    return e ? gguf_item_int(e, 0, out) : GM_OK;
}

gm_status gguf_get_float(const gguf *g, const char *key, double *out, bool *found) {
    const gguf_entry *e;
    GM_TRY(find_single(g, key, "a number", &e, found));
    return e ? gguf_item_float(e, 0, out) : GM_OK;
}

gm_status gguf_get_bool(const gguf *g, const char *key, bool *out, bool *found) {
    const gguf_entry *e;
    GM_TRY(find_single(g, key, "bool", &e, found));
    if (!e)
        return GM_OK;
    if (e->type != GGUF_BOOL)
        return wrong_kind(e, "bool");
    *out = *e->data != 0;
    return GM_OK;
}

gm_status gguf_get_string(const gguf *g, const char *key, gguf_string *out, bool *found) {
    const gguf_entry *e;
    GM_TRY(find_single(g, key, "a string", &e, found));
    if (!e)
        return GM_OK;
    if (e->type != GGUF_STRING)
        return wrong_kind(e, "a string");
    const uint8_t *cursor = e->data;
    *out = gguf_next_string(&cursor);
    return GM_OK;
}

gguf_string gguf_next_string(const uint8_t **cursor) {
    uint64_t length;
    memcpy(&length, *cursor, sizeof length);
    gguf_string s = {.text = (const char *)*cursor + 8, .length = (size_t)length};
    *cursor += 8 + (size_t)length;
    return s;
}
