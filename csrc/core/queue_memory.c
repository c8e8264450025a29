/* queue_memory.c - memory in stream order: what dies while a queue is recorded is used again by its later launches. */
#include "core/queue_state.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"

void queue_release(gm_queue *q, bool clear_marks) {
    for (size_t i = 0; i < q->n_scratch; i++)
        buffer_release(q->scratch[i]);
    for (size_t i = 0; i < q->n_free; i++)
        buffer_release(q->free_[i]);
    for (size_t i = 0; i < q->n_held; i++) {
        if (clear_marks)
            q->held[i]->mark = 0;
        buffer_release(q->held[i]);
    }
    q->n_scratch = q->n_free = q->n_held = 0;
}

gm_buffer *queue_take(gm_queue *q, size_t bytes) {
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < q->n_free; i++) {
        size_t have = q->free_[i]->bytes;
        if (have >= bytes && have <= 2 * bytes + 4096 && (best == SIZE_MAX || have < q->free_[best]->bytes))
            best = i;
    }
    if (best == SIZE_MAX)
        return buffer_new_on(q->device->number, bytes);
    gm_buffer *b = q->free_[best];
    q->free_[best] = q->free_[--q->n_free];
    return b;
}

static void forget_held(gm_queue *q, gm_buffer *b) {
    for (size_t i = q->n_held; i-- > 0;)
        if (q->held[i] == b) {
            q->held[i] = q->held[--q->n_held];
            break;
        }
    b->mark = 0;
}

void queue_drop(gm_queue *q, gm_buffer *b) {
    if (!b)
        return;
    if (b->mark == q->epoch) { /* one reference is ours already */
        atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
        if (atomic_load(&b->refs) != 1)
            return;
        forget_held(q, b);
    }
    if (atomic_load(&b->refs) == 1 && b->kind == BUFFER_OWNED && b->device == q->device->number &&
        atomic_load(&b->pins) == 0) {
        buffer_forget_mirror(b);
        q->free_[q->n_free++] = b; /* queue_reserve has made the capacity */
        return;
    }
    queue_hold(q, b);
    atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
}

void queue_hold(gm_queue *q, gm_buffer *b) {
    if (!b || b->mark == q->epoch)
        return;
    b->mark = q->epoch;
    q->held[q->n_held++] = buffer_retain(b);
}

gm_status queue_reserve(gm_queue *q, size_t buffers) {
    q->reserved = buffers;
    GM_TRY(grow_array(&q->free_, q->n_free, &q->cap_free, q->n_scratch + buffers, sizeof *q->free_));
    return grow_array(&q->held, q->n_held, &q->cap_held, q->n_scratch + buffers, sizeof *q->held);
}

void *queue_scratch(gm_queue *q, size_t bytes) {
    if (grow_array(&q->scratch, q->n_scratch, &q->cap_scratch, 1, sizeof *q->scratch) != GM_OK ||
        queue_reserve(q, q->reserved + 1) != GM_OK)
        return NULL;
    gm_buffer *b = queue_take(q, bytes);
    if (!b)
        return NULL;
    q->scratch[q->n_scratch++] = b;
    return queue_writes(q, b) == GM_OK ? b->data : NULL;
}

/* ---- bytes on their way to a device ---- */
#define STAGING_BYTES ((size_t)1 << 20)
#define STAGING_ALIGNMENT 256

static void staging_drop(gm_queue *q, staging *s) {
    buffer_release(s->memory);
    if (s->data)
        device_unpin(q->device, s->data);
    memory_free(s);
}

static staging *staging_new(gm_queue *q, size_t size) {
    staging *s = memory_zeroed(sizeof *s);
    if (!s)
        return NULL;
    s->size = size;
    s->memory = buffer_new_on(q->device->number, size);
    s->data = s->memory ? device_pinned(q->device, size) : NULL;
    if (s->data)
        return s;
    staging_drop(q, s);
    return NULL;
}

gm_buffer *queue_staged(gm_queue *q, const void *data, size_t bytes) {
    staging *s = q->staging;
    const size_t rounded = (bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
    if (!s || s->size - s->used < rounded) {
        s = staging_new(q, rounded > STAGING_BYTES ? rounded : STAGING_BYTES);
        if (!s)
            return NULL;
        s->next = q->staging;
        q->staging = s;
    }
    gm_buffer *b = buffer_part(s->memory, s->used, bytes);
    if (b) {
        memcpy(s->data + s->used, data, bytes);
        s->used += rounded;
    }
    return b;
}

bool staging_waits(const gm_queue *q) {
    bool waits = false;
    for (const staging *s = q->staging; s; s = s->next)
        waits |= s->sent < s->used;
    return waits;
}

gm_status staging_send(gm_queue *q) {
    for (staging *s = q->staging; s; s = s->next) {
        if (s->sent == s->used)
            continue;
        GM_TRY(device_copy(q->device->number, (char *)s->memory->data + s->sent, s->data + s->sent, s->used - s->sent));
        s->sent = s->used;
    }
    return GM_OK;
}

/* One block is kept, unless some array is still in it. */
void staging_reset(gm_queue *q) {
    staging *kept = NULL;
    while (q->staging) {
        staging *s = q->staging;
        q->staging = s->next;
        if (!kept && s->size == STAGING_BYTES && atomic_load(&s->memory->refs) == 1) {
            kept = s;
            kept->used = kept->sent = 0;
        } else {
            staging_drop(q, s);
        }
    }
    if (kept)
        kept->next = NULL;
    q->staging = kept;
}

void staging_free(gm_queue *q) {
    while (q->staging) {
        staging *s = q->staging;
        q->staging = s->next;
        staging_drop(q, s);
    }
}
