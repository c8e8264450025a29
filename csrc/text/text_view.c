/* text_view.c - see text_view.h. */
#include "text/text_view.h"

/* The span of a byte before the view's end. */
static text_span span_at(const text_view *view, size_t at) {
    if (view->spans)
        return view->spans[at];
    while ((view->bytes[at] & 0xC0) == 0x80)
        at--;
    size_t end = at;
    utf8_next(view->bytes, &end);
    return (text_span){view->origin + (uint32_t)at, view->origin + (uint32_t)end};
}

text_view text_slice(const text_view *view, size_t start, size_t end) {
    text_view slice = {view->bytes + start, end - start, NULL, 0, view->aligned};
    if (view->aligned && start < view->length) {
        slice.spans = view->spans ? view->spans + start : NULL;
        slice.origin = span_at(view, start).start;
    }
    return slice;
}

text_span text_origin(const text_view *view, size_t start, size_t end) {
    text_span first = span_at(view, start);
    /* The reference does not align an empty range. */
    if (start == end)
        return (text_span){view->origin + (uint32_t)start, view->origin + (uint32_t)start};
    return (text_span){first.start, span_at(view, end - 1).end};
}

void text_buffer_free(text_buffer *buffer) {
    memory_free(buffer->bytes.data);
    memory_free(buffer->spans.data);
}

void text_write(text_writer *w, const text_view *in, text_buffer *out) {
    *w = (text_writer){.in = *in, .out = out};
    out->bytes.size = out->spans.size = 0;
}

gm_status text_keep(text_writer *w, size_t end) {
    size_t start = w->at;
    w->at = end;
    GM_TRY(bytes_append(&w->out->bytes, w->in.bytes + start, end - start));
    for (size_t i = start; w->in.aligned && i < end; i++)
        GM_TRY(spans_append(&w->out->spans, span_at(&w->in, i)));
    return GM_OK;
}

static gm_status put(text_writer *w, const void *bytes, size_t n, text_span span) {
    GM_TRY(bytes_append(&w->out->bytes, bytes, n));
    for (size_t i = 0; i < n; i++)
        GM_TRY(spans_append(&w->out->spans, span));
    return GM_OK;
}

gm_status text_put(text_writer *w, const void *bytes, size_t n, size_t like) {
    if (!w->in.aligned)
        return bytes_append(&w->out->bytes, bytes, n);
    return put(w, bytes, n, span_at(&w->in, like));
}

gm_status text_insert(text_writer *w, const void *bytes, size_t n) {
    if (!w->in.aligned || w->at > 0)
        return text_put(w, bytes, n, w->at - 1);
    return put(w, bytes, n, (text_span){w->in.origin, w->in.origin});
}

gm_status text_change(text_writer *w, uint32_t c, int change) {
    uint8_t bytes[4];
    size_t n = utf8_put(c, bytes);
    if (change > 0)
        return text_insert(w, bytes, n);
    size_t like = w->at;
    for (int i = 0; i <= -change && w->at < w->in.length; i++)
        utf8_next(w->in.bytes, &w->at);
    return text_put(w, bytes, n, like);
}

gm_status text_written(const text_writer *w, text_view *out) {
    text_view view = w->in;
    if (w->out->bytes.size > INT32_MAX)
        return gm_fail(GM_EOVERFLOW,
                       "encode: normalizing or pre-tokenizing makes the text longer than %d bytes; "
                       "encode it in parts",
                       INT32_MAX);
    view.bytes = w->out->bytes.data;
    view.length = w->out->bytes.size;
    view.spans = view.aligned ? w->out->spans.data : NULL;
    *out = view;
    return GM_OK;
}

gm_status text_replace(text_writer *w, const void *from, size_t from_length, const void *to, size_t to_length) {
    const uint8_t *text = w->in.bytes;
    while (w->at < w->in.length) {
        const uint8_t *found = memmem(text + w->at, w->in.length - w->at, from, from_length);
        if (!found)
            break;
        GM_TRY(text_keep(w, (size_t)(found - text)));
        text_drop(w, (size_t)(found - text) + from_length);
        GM_TRY(text_insert(w, to, to_length));
    }
    return text_keep(w, w->in.length);
}
