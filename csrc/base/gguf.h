/* gguf.h - a GGUF file (v2, v3, little-endian) opened and checked: its metadata, and its tensors in the mapping.
 * Every length is checked against the file before it is used. Each part of a split model is a gguf; io/checkpoint joins
 * them. */
#ifndef GOMLX_BASE_GGUF_H
#define GOMLX_BASE_GGUF_H
#include <stdbool.h>
#include "file.h"

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
} gguf_type;

typedef struct {
    const char *text;
    size_t length;
} gguf_string; /* borrowed from the mapping, no NUL */

typedef struct {
    gguf_string key;
    gguf_type type, item_type; /* item_type for arrays */
    uint64_t count;            /* items of an array; 1 otherwise */
    const uint8_t *data;       /* the value, or the array's first item, in the mapping */
    size_t bytes;
} gguf_entry;

typedef struct {
    gguf_string name;
    int n_dims;
    int64_t shape[4];    /* row-major order: the contiguous dimension LAST (ne reversed) */
    int64_t type;        /* GGUF type id, known or not */
    const uint8_t *data; /* NULL when the type is unknown: its size cannot be checked */
    size_t bytes;
} gguf_tensor;

typedef struct gguf gguf;
gm_status gguf_open(const char *path, gguf **out);
void gguf_close(gguf *g);
const gm_file *gguf_file(const gguf *g);
int64_t gguf_n_entries(const gguf *g);
const gguf_entry *gguf_entry_at(const gguf *g, int64_t i);
const gguf_entry *gguf_find(const gguf *g, const char *key); /* NULL when absent */
int64_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, int64_t i);

/* Typed reads. When the key is absent, *out stays unchanged (GM_OK, *found false). A value of another type is
 * GM_EBADFILE, whose text names the key, its type and the expected one. found may be NULL. Integers of any width
 * convert when they fit. */
gm_status gguf_get_int(const gguf *g, const char *key, int64_t *out, bool *found);
gm_status gguf_get_float(const gguf *g, const char *key, double *out, bool *found);
gm_status gguf_get_bool(const gguf *g, const char *key, bool *out, bool *found);
gm_status gguf_get_string(const gguf *g, const char *key, gguf_string *out, bool *found);
/* Item i of a numeric array as integer or float; an array's strings one after another (the cursor begins at
 * entry->data). */
gm_status gguf_item_int(const gguf_entry *e, uint64_t i, int64_t *out);
gm_status gguf_item_float(const gguf_entry *e, uint64_t i, double *out);
gguf_string gguf_next_string(const uint8_t **cursor);
#endif
