/* text_view.h - a text on its way to the model, and the origin of each of its bytes in the input.
 *  (1) A view is valid UTF-8. If it is aligned, spans has one span of the original text, in bytes, for each byte, the
 *      same for all bytes of a character. With spans NULL the view is the part of the original that begins at `origin`,
 *      and a byte's span is its character.
 *  (2) origin is the offset in the original at which the view begins; text inserted at its start has this offset.
 *  (3) If it is not aligned, spans is NULL and origin has no meaning, so that encoding to ids alone costs nothing more.
 *  (4) A text is changed by reading one view from left to right and writing another (text_writer). */
#ifndef GOMLX_TEXT_TEXT_VIEW_H
#define GOMLX_TEXT_TEXT_VIEW_H
#include "text/unicode/unicode.h"

typedef struct { uint32_t start, end; } text_span;
typedef struct {
    text_span *data;
    size_t size, capacity;
} span_buffer;

static inline gm_status spans_append(span_buffer *b, text_span span) {
    GM_TRY(grow_array(&b->data, b->size, &b->capacity, 1, sizeof *b->data));
    b->data[b->size++] = span;
    return GM_OK;
}

/* Appends one id of a piece, and its bytes in the piece unless spans is NULL. */
static inline gm_status token_append(id_buffer *out, span_buffer *spans, int32_t id, size_t start, size_t end) {
    if (spans)
        GM_TRY(spans_append(spans, (text_span){(uint32_t)start, (uint32_t)end}));
    return ids_append(out, id);
}

typedef struct {
    const uint8_t *bytes;
    size_t length;
    const text_span *spans;
    uint32_t origin;
    bool aligned;
} text_view;

/* The bytes [start, end) of a view, as a view. */
text_view text_slice(const text_view *view, size_t start, size_t end);
/* The origin of the bytes [start, end). start < length; the view is aligned. */
text_span text_origin(const text_view *view, size_t start, size_t end);

typedef struct {
    byte_buffer bytes;
    span_buffer spans;
} text_buffer; /* zero-initialise; text_buffer_free */
void text_buffer_free(text_buffer *buffer);

/* Every call does what the reference's NormalizedString does: inserted text has the origin of the byte before it. */
typedef struct text_writer {
    text_view in;
    size_t at; /* in.bytes before it are consumed */
    text_buffer *out;
} text_writer;

/* Begins to write. out is emptied; it must not hold `in`. */
void text_write(text_writer *w, const text_view *in, text_buffer *out);
gm_status text_keep(text_writer *w, size_t end); /* bytes [at, end) as they are */
static inline void text_drop(text_writer *w, size_t end) { w->at = end; }
/* Writes bytes with the origin of the input's byte `like`. */
gm_status text_put(text_writer *w, const void *bytes, size_t n, size_t like);
gm_status text_insert(text_writer *w, const void *bytes, size_t n); /* like the byte before `at` */
/* Writes one character. change: 0 replaces the next character of the input, 1 inserts, -n replaces the next one and
 * drops n after it. */
gm_status text_change(text_writer *w, uint32_t c, int change);
/* The result. A text of more than INT32_MAX bytes is an error: positions have 32 bits. */
gm_status text_written(const text_writer *w, text_view *out);

/* Writes the rest of the input with every occurrence of `from` (not empty), from the left, replaced. */
gm_status text_replace(text_writer *w, const void *from, size_t from_length, const void *to, size_t to_length);
#endif
