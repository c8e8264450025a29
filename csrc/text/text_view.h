/* text_view.h - a text on its way to the model, and where each of its bytes comes from.
 *  (1) A view is valid UTF-8. aligned: it knows its origins; then spans has one span of the original text, in bytes, for
 *      each byte, and all bytes of a character have the same. spans NULL: the view is that part of the original itself,
 *      from `origin` on, and a byte's span is its character.
 *  (2) origin is where in the original the view was cut out: what is inserted in front of everything stands there.
 *  (3) Without aligned, spans is NULL and origin says nothing: whoever wants ids alone pays nothing.
 *  (4) Changing a text is reading one view from the left to the right and writing another (text_writer). */
#ifndef GOMLX_TEXT_TEXT_VIEW_H
#define GOMLX_TEXT_TEXT_VIEW_H
#include "text/unicode/unicode.h"

typedef struct { uint32_t start, end; } text_span;
typedef struct { text_span *data; size_t size, capacity; } span_buffer;

static inline gm_status spans_append(span_buffer *b, text_span span) {
    GM_TRY(grow_array(&b->data, b->size, &b->capacity, 1, sizeof *b->data));
    b->data[b->size++] = span;
    return GM_OK;
}

/* One id of a piece, and unless spans is NULL its bytes in the piece. */
static inline gm_status token_append(id_buffer *out, span_buffer *spans, int32_t id, size_t start, size_t end) {
    if (spans)
        GM_TRY(spans_append(spans, (text_span){ (uint32_t)start, (uint32_t)end }));
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
/* What the bytes [start, end) stand for. start < length; the view is aligned. */
text_span text_origin(const text_view *view, size_t start, size_t end);

typedef struct { byte_buffer bytes; span_buffer spans; } text_buffer;    /* zero-initialise; text_buffer_free */
void text_buffer_free(text_buffer *buffer);

/* Every call is as in the reference's NormalizedString: inserted text stands for what the byte before it stands for. */
typedef struct text_writer {
    text_view in;
    size_t at;                   /* in.bytes before it are done with */
    text_buffer *out;
} text_writer;

/* out is emptied; it must not be where `in` lies. */
void text_write(text_writer *w, const text_view *in, text_buffer *out);
gm_status text_keep(text_writer *w, size_t end);                    /* bytes [at, end) as they are */
static inline void text_drop(text_writer *w, size_t end) { w->at = end; }
/* Bytes that stand for what the input's byte `like` stands for. */
gm_status text_put(text_writer *w, const void *bytes, size_t n, size_t like);
gm_status text_insert(text_writer *w, const void *bytes, size_t n); /* like the byte before `at` */
/* One character, and what it does to the input: 0 replaces the next character, 1 is inserted, -n replaces the next one
 * and drops n behind it. */
gm_status text_change(text_writer *w, uint32_t c, int change);
/* Fails when it is longer than a text may be: positions have 32 bits. */
gm_status text_written(const text_writer *w, text_view *out);

/* Writes the rest of the input with every occurrence of `from` (not empty), found from the left, replaced. */
gm_status text_replace(text_writer *w, const void *from, size_t from_length, const void *to, size_t to_length);
#endif
