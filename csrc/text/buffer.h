/* buffer.h - growing arrays of bytes and of ids. Zero-initialise; free `data` with memory_free. */
#ifndef GOMLX_TEXT_BUFFER_H
#define GOMLX_TEXT_BUFFER_H
#include <string.h>
#include "base/error.h"
#include "base/grow.h"
#include "base/memory.h"

typedef struct {
    uint8_t *data;
    size_t size, capacity;
} byte_buffer;
typedef struct {
    int32_t *data;
    size_t size, capacity;
} id_buffer;

static inline gm_status bytes_reserve(byte_buffer *b, size_t more) {
    return grow_array(&b->data, b->size, &b->capacity, more, 1);
}

static inline gm_status bytes_append(byte_buffer *b, const void *bytes, size_t n) {
    GM_TRY(bytes_reserve(b, n));
    if (n > 0)
        memcpy(b->data + b->size, bytes, n);
    b->size += n;
    return GM_OK;
}

static inline gm_status ids_reserve(id_buffer *b, size_t more) {
    return grow_array(&b->data, b->size, &b->capacity, more, sizeof *b->data);
}

static inline gm_status ids_append(id_buffer *b, int32_t id) {
    GM_TRY(ids_reserve(b, 1));
    b->data[b->size++] = id;
    return GM_OK;
}
#endif
