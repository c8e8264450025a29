/* safetensors.c - the length of the header as u64, the header in JSON, the tensors' bytes.
 *  (1) A tensor is listed only if its bytes are inside the file, fit its shape and overlap no other tensor. The size of
 *      a type that is not in the table cannot be checked; such a tensor is listed too.
 *  (2) Names are resolved into one block of the header's size: resolved text is never longer than its quoted form. */
#include "io/safetensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/grow.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/names.h"
#include "quants.h"

#define MAX_HEADER 100000000u
#define MAX_NDIM ((int)(sizeof((gm_tensor *)0)->shape / sizeof((gm_tensor *)0)->shape[0]))

struct safetensors {
    gm_file file;
    const uint8_t *section; /* the first byte after the header */
    size_t section_bytes;
    gm_tensor *tensors;
    int64_t count;
    size_t capacity;
    char *text; /* names and unknown types */
    size_t text_used;
};

static const struct {
    const char *name;
    int bytes, format;
} types[] = {
    {"F64", 8, -1},
    {"F32", 4, GM_QUANT_f32},
    {"F16", 2, GM_QUANT_f16},
    {"BF16", 2, GM_QUANT_bf16},
    {"F8_E4M3", 1, -1},
    {"F8_E5M2", 1, -1},
    {"F8_E8M0", 1, -1},
    {"I64", 8, -1},
    {"I32", 4, -1},
    {"I16", 2, -1},
    {"I8", 1, -1},
    {"U64", 8, -1},
    {"U32", 4, -1},
    {"U16", 2, -1},
    {"U8", 1, -1},
    {"BOOL", 1, -1},
    {"C64", 8, -1},
};
#define N_TYPES ((int)(sizeof types / sizeof types[0]))

/* The current string, resolved and kept until the file is closed. A NUL would make two names look equal. */
static const char *keep_string(safetensors *s, json_reader *r) {
    char *text = s->text + s->text_used;
    size_t length = json_string_length(r);
    json_string_copy(r, text);
    if (memchr(text, 0, length)) {
        json_fail(r, "a name with a NUL character");
        return NULL;
    }
    text[length] = 0;
    s->text_used += length + 1;
    return text;
}

/* Reads the *n <= max numbers of an array. */
static gm_status read_sizes(json_reader *r, int64_t *sizes, int max, int *n) {
    GM_TRY(json_expect(r, JSON_ARRAY));
    for (*n = 0; json_next(r) != JSON_ARRAY_END; (*n)++) {
        if (*n == max)
            return json_fail(r, "an array of more than %d numbers", max);
        GM_TRY(json_int(r, &sizes[*n]));
        if (sizes[*n] < 0)
            return json_fail(r, "a negative size");
    }
    return GM_OK;
}

static gm_status check_extent(const safetensors *s, const gm_tensor *t, const int64_t range[2], int bytes_each) {
    int64_t values = 1, zero = 1, bytes;
    if (range[1] < range[0] || (uint64_t)range[1] > s->section_bytes)
        return gm_fail(GM_EBADFILE,
                       "%s: tensor %s has data_offsets [%" PRId64 ", %" PRId64
                       "], expected a range inside %zu bytes of tensor data",
                       s->file.path, t->name, range[0], range[1], s->section_bytes);
    for (int i = 0; i < t->ndim; i++) {
        int64_t size = t->shape[i] ? t->shape[i] : 1; /* a dimension of 0 does not unbound the others */
        zero &= t->shape[i] != 0;
        if (__builtin_mul_overflow(values, size, &values))
            return gm_fail(GM_EBADFILE, "%s: tensor %s has a shape of more than 2**63 values", s->file.path, t->name);
    }
    if (bytes_each == 0)
        return GM_OK;
    if (__builtin_mul_overflow(values * zero, (int64_t)bytes_each, &bytes) || bytes != range[1] - range[0])
        return gm_fail(GM_EBADFILE, "%s: tensor %s has %" PRId64 " bytes, expected %" PRId64 " values of %s",
                       s->file.path, t->name, range[1] - range[0], values * zero, t->type);
    return GM_OK;
}

static gm_status read_tensor(safetensors *s, json_reader *r, gm_tensor *t) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, n = 0, bytes_each = 0;
    int64_t range[2] = {0, 0};
    *t = (gm_tensor){.format = -1};
    t->name = keep_string(s, r);
    if (!t->name)
        return GM_EBADFILE;
    GM_TRY(json_expect(r, JSON_OBJECT));
    while (json_next(r) == JSON_KEY) {
        int field = json_is(r, "dtype")          ? DTYPE
                    : json_is(r, "shape")        ? SHAPE
                    : json_is(r, "data_offsets") ? OFFSETS
                                                 : 0;
        if (seen & field)
            return json_fail(r, "tensor %s has this field twice", t->name);
        seen |= field;
        if (field == DTYPE) {
            GM_TRY(json_expect(r, JSON_STRING));
            for (int i = 0; i < N_TYPES && !t->type; i++)
                if (json_is(r, types[i].name)) {
                    t->type = types[i].name;
                    t->format = types[i].format;
                    bytes_each = types[i].bytes;
                }
            if (!t->type)
                t->type = keep_string(s, r);
            if (!t->type)
                return GM_EBADFILE;
        } else if (field == SHAPE) {
            GM_TRY(read_sizes(r, t->shape, MAX_NDIM, &t->ndim));
        } else if (field == OFFSETS) {
            GM_TRY(read_sizes(r, range, 2, &n));
            if (n != 2)
                return json_fail(r, "data_offsets has %d numbers, expected 2", n);
        } else {
            GM_TRY(json_skip(r));
        }
    }
    if (r->failed)
        return GM_EBADFILE;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return json_fail(r, "tensor %s has no %s", t->name,
                         !(seen & DTYPE)   ? "dtype"
                         : !(seen & SHAPE) ? "shape"
                                           : "data_offsets");
    GM_TRY(check_extent(s, t, range, bytes_each));
    t->data = s->section + range[0];
    t->bytes = (size_t)(range[1] - range[0]);
    return GM_OK;
}

static gm_status skip_metadata(json_reader *r) {
    GM_TRY(json_expect(r, JSON_OBJECT));
    while (json_next(r) == JSON_KEY)
        GM_TRY(json_expect(r, JSON_STRING));
    return r->failed ? GM_EBADFILE : GM_OK;
}

static gm_status read_header(safetensors *s, json_reader *r) {
    GM_TRY(json_expect(r, JSON_OBJECT));
    while (json_next(r) == JSON_KEY) {
        if (json_is(r, "__metadata__")) {
            GM_TRY(skip_metadata(r));
            continue;
        }
        GM_TRY(grow_array(&s->tensors, (size_t)s->count, &s->capacity, 1, sizeof *s->tensors));
        GM_TRY(read_tensor(s, r, &s->tensors[s->count]));
        s->count++;
    }
    return json_expect(r, JSON_END);
}

static int by_address(const void *a, const void *b) {
    const gm_tensor *x = *(const gm_tensor *const *)a, *y = *(const gm_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static gm_status check_overlap(const safetensors *s) {
    const gm_tensor **order = memory_array((size_t)s->count, sizeof *order);
    size_t n = 0;
    if (!order)
        return GM_ENOMEM;
    for (int64_t i = 0; i < s->count; i++)
        if (s->tensors[i].bytes)
            order[n++] = &s->tensors[i];
    qsort(order, n, sizeof *order, by_address);
    gm_status status = GM_OK;
    for (size_t i = 1; i < n && status == GM_OK; i++)
        if (order[i]->data < order[i - 1]->data + order[i - 1]->bytes)
            status = gm_fail(GM_EBADFILE, "%s: tensors %s and %s overlap", s->file.path, order[i - 1]->name,
                             order[i]->name);
    memory_free(order);
    return status;
}

static gm_status check_names(const safetensors *s) {
    name_table names = {0};
    gm_status status = GM_OK;
    for (int64_t i = 0; i < s->count && status == GM_OK; i++) {
        int64_t earlier = -1;
        status = names_add(&names, s->tensors[i].name, strlen(s->tensors[i].name), i, &earlier);
        if (earlier >= 0)
            status = gm_fail(GM_EBADFILE, "%s: tensor %s appears twice", s->file.path, s->tensors[i].name);
    }
    names_free(&names);
    return status;
}

static gm_status read_file(safetensors *s) {
    const gm_file *f = &s->file;
    uint64_t header;
    if (f->size < 8)
        return gm_fail(GM_EBADFILE, "%s: the file has %zu bytes, too few for a safetensors file", f->path, f->size);
    memcpy(&header, f->data, sizeof header);
    if (header >= MAX_HEADER || header > f->size - 8)
        return gm_fail(GM_EBADFILE,
                       "%s: the header has %" PRIu64 " bytes, expected less than %u and at most what the "
                       "file of %zu bytes holds; it is not a safetensors file, or was cut short",
                       f->path, header, MAX_HEADER, f->size);
    s->section = f->data + 8 + header;
    s->section_bytes = f->size - 8 - (size_t)header;
    s->text = memory_new((size_t)header);
    if (!s->text)
        return GM_ENOMEM;
    json_reader r;
    json_open(&r, (const char *)f->data + 8, (size_t)header, f->path);
    GM_TRY(read_header(s, &r));
    GM_TRY(check_names(s));
    return check_overlap(s);
}

gm_status safetensors_open(const char *path, safetensors **out) {
    *out = NULL;
    safetensors *s = memory_zeroed(sizeof *s);
    if (!s)
        return GM_ENOMEM;
    gm_status status = file_map(path, &s->file);
    if (status == GM_OK)
        status = read_file(s);
    if (status != GM_OK) {
        safetensors_close(s);
        return status;
    }
    *out = s;
    return GM_OK;
}

void safetensors_close(safetensors *s) {
    if (!s)
        return;
    memory_free(s->tensors);
    memory_free(s->text);
    file_unmap(&s->file);
    memory_free(s);
}

const gm_file *safetensors_file(const safetensors *s) { return &s->file; }
int64_t safetensors_count(const safetensors *s) { return s->count; }
const gm_tensor *safetensors_at(const safetensors *s, int64_t i) { return &s->tensors[i]; }
