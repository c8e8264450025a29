/* mirror.c - copies between devices. What is large is copied once: its buffer keeps the copy as its mirror, as long as
 * nobody may write either. */
#include "core/mirror.h"
#include <string.h>
#include "core/device.h"
#include "core/graph.h"

#define SMALL_BYTES ((size_t)64 << 10) /* they go with others of the same batch, in one copy */

/* What is to be copied of an array's buffer: all of it, unless the array spans less than half, or the buffer belongs to
 * others, who may write it. */
typedef struct {
    int64_t begin;
    size_t bytes;
    bool whole;
} extent;

static extent extent_of(const gm_array *a) {
    extent e = {.whole = false};
    array_span(a, &e.begin, &e.bytes);
    if (a->buf->kind == BUFFER_OWNED && 2 * e.bytes >= a->buf->bytes)
        e = (extent){.begin = 0, .bytes = a->buf->bytes, .whole = true};
    return e;
}

static gm_status copied_over(const gm_array *a, gm_buffer *to, extent e, gm_array **out) {
    if (e.whole && atomic_load(&a->buf->pins) == 0)
        buffer_keep_mirror(a->buf, to);
    *out = array_moved(a, to, a->offset - e.begin);
    return *out ? GM_OK : error_code();
}

static gm_status upload(int number, gm_array *a, gm_array **out) {
    const extent e = extent_of(a);
    gm_buffer *to = buffer_new_on(number, e.bytes);
    gm_status status = to ? device_copy(number, to->data, (const char *)a->buf->data + e.begin, e.bytes) : error_code();
    if (status == GM_OK)
        status = copied_over(a, to, e, out);
    buffer_release(to);
    return status;
}

static gm_status download(gm_array *a, gm_array **out) {
    const extent e = extent_of(a);
    const device *d = device_get(a->buf->device);
    gm_buffer *to = d ? buffer_new(e.bytes) : NULL;
    gm_status status = to ? device_copy(d->number, to->data, (const char *)a->buf->data + e.begin, e.bytes)
                          : error_code();
    if (status == GM_OK)
        status = device_await(d->number);
    if (status == GM_OK)
        status = copied_over(a, to, e, out);
    buffer_release(to);
    return status;
}

static gm_status moved_to(gm_array *a, gm_buffer *mirror, gm_array **out) {
    *out = array_moved(a, mirror, a->offset);
    buffer_release(mirror);
    return *out ? GM_OK : error_code();
}

static gm_status to_host(gm_array *a, gm_array **out) {
    gm_buffer *mirror = buffer_mirror(a->buf, 0);
    return mirror ? moved_to(a, mirror, out) : download(a, out);
}

/* A few bytes, with others. */
static gm_status stage(gm_queue *q, gm_array *a, gm_array **out) {
    int64_t begin;
    size_t bytes;
    array_span(a, &begin, &bytes);
    gm_buffer *to = queue_staged(q, (const char *)a->buf->data + begin, bytes);
    *out = to ? array_moved(a, to, a->offset - begin) : NULL;
    buffer_release(to);
    return *out ? GM_OK : error_code();
}

static gm_status to_device(gm_queue *q, gm_array *a, bool lasting, gm_array **out) {
    const int number = queue_device(q);
    gm_buffer *mirror = buffer_mirror(a->buf, number);
    int64_t begin;
    size_t bytes;
    if (mirror)
        return moved_to(a, mirror, out);
    array_span(a, &begin, &bytes);
    return bytes <= SMALL_BYTES && !lasting ? stage(q, a, out) : upload(number, a, out);
}

gm_status mirror_make(gm_queue *q, gm_array *a, bool lasting, gm_array **out) {
    gm_array *host;
    *out = NULL;
    if (a->dtype == GM_PACKED)
        return gm_fail(GM_EDEVICE, "packed %s weights cannot be read on another device than they are on",
                       gm_array_format(a));
    if (!queue_device(q))
        return to_host(a, out);
    if (!a->buf->device)
        return to_device(q, a, lasting, out);
    GM_TRY(to_host(a, &host));
    const gm_status status = to_device(q, host, lasting, out);
    if (status == GM_OK)
        queue_hold(q, host->buf);
    gm_release(host);
    return status;
}

gm_status array_place(int number, gm_array **a) {
    gm_array *placed = NULL;
    if (!number || !*a || (*a)->buf->device == number)
        return GM_OK;
    GM_TRY(upload(number, *a, &placed));
    const gm_status status = device_await(number);
    if (status != GM_OK) {
        gm_release(placed);
        return status;
    }
    placed->work = (*a)->work;
    gm_release(*a);
    *a = placed;
    return GM_OK;
}

gm_status array_read(const gm_array *a, void *out) {
    const size_t bytes = (size_t)a->size * array_item(a);
    const int number = a->buf->device;
    if (!bytes)
        return GM_OK;
    if (!number) {
        memcpy(out, array_ptr(a), bytes);
        return GM_OK;
    }
    GM_TRY(device_copy(number, out, array_ptr(a), bytes));
    return device_await(number);
}

gm_array *gm_array_copy(gm_scope *s, gm_array *a) {
    const int number = gm_array_device(a);
    const size_t bytes = (size_t)a->size * array_item(a);
    gm_buffer *buf = buffer_new_on(number, bytes);
    gm_status status = buf ? GM_OK : error_code();
    if (buf && !number && bytes)
        memcpy(buf->data, array_ptr(a), bytes);
    if (buf && number)
        status = device_copy(number, buf->data, array_ptr(a), bytes);
    if (buf && number && status == GM_OK)
        status = gm_device_settle(number);
    gm_array *copy = status == GM_OK ? array_moved(a, buf, 0) : NULL;
    buffer_release(buf);
    return copy ? array_own(s, copy) : NULL;
}

gm_array *gm_array_host(gm_scope *s, gm_array *a) {
    gm_array *host = NULL;
    if (!gm_array_is_evaluated(a))
        return gm_fail(GM_ESTATE, "array: it has no value yet"), NULL;
    if (!a->buf || !a->buf->device)
        return s ? gm_scope_keep(s, a) : gm_retain(a);
    if (to_host(a, &host) != GM_OK)
        return NULL;
    return s ? array_own(s, host) : host;
}
