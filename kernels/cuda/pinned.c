/* pinned.c - memory of the host that GPUs use too. The driver takes longer to find it, and to take it back, than a
 * decoder for a step: what was given back is kept for who asks next, so many bytes of it.
 *  (1) A block is used again when all is done that was asked for before it was given back: it has an event for that.
 *  (2) Blocks are kept while one device alone is open: that event is of its line of work. */
#include <pthread.h>
#include <stdint.h>
#include "cuda/device_state.h"

#define PAGE 4096
#define HEAD 256                     /* bytes before what users have */
#define MOST_KEPT ((size_t)64 << 20) /* bytes */
typedef struct block {
    struct block *next;
    size_t bytes; /* with the head */
    driver_event *done;
} block;

static struct {
    pthread_mutex_t lock;
    block *first;
    size_t bytes;
    int captures; /* that are under way */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void give_back(const gm_device_state *d, block *b) {
    if (b->done) d->driver->event_destroy(b->done);
    d->driver->host_free(b);
}
/* Takes one of [bytes, most) that nobody uses any more out of the list; NULL: there is none. */
static block *take(const gm_device_state *d, size_t bytes, size_t most) {
    block *found = NULL;
    pthread_mutex_lock(&kept.lock);
    for (block **at = &kept.first; *at && !found; at = found ? at : &(*at)->next) {
        if ((*at)->bytes < bytes || (*at)->bytes >= most || d->driver->event_query((*at)->done)) continue;
        found = *at;
        *at = found->next;
        kept.bytes -= found->bytes;
    }
    pthread_mutex_unlock(&kept.lock);
    return found;
}
void *pinned_take(const gm_device_state *d, size_t bytes) {
    if (bytes > SIZE_MAX / 4) return NULL;
    const size_t size = (bytes + HEAD + PAGE - 1) / PAGE * PAGE;
    void *memory = take(d, size, 2 * size);
    if (!memory) {
        for (;;) {
            if (!d->driver->host_alloc(&memory, size, DRIVER_HOST_PORTABLE_MAPPED)) break;
            block *spare = take(d, 0, SIZE_MAX); /* others may be what is lacking */
            if (!spare) return NULL;
            give_back(d, spare);
        }
        *(block *)memory = (block){.bytes = size};
    }
    return (char *)memory + HEAD;
}
/* While launches are captured, an event would become part of the graph. */
void pinned_captures(int more) {
    pthread_mutex_lock(&kept.lock);
    kept.captures += more;
    pthread_mutex_unlock(&kept.lock);
}
void pinned_give(gm_device_state *d, void *memory, bool alone) {
    block *b = (block *)(void *)((char *)memory - HEAD);
    bool keep = alone && !cuda_is_lost(d);
    if (keep && !b->done) keep = d->driver->event_create(&b->done, DRIVER_EVENT_NO_TIMING) == DRIVER_SUCCESS;
    pthread_mutex_lock(&kept.lock);
    keep = keep && !kept.captures && kept.bytes + b->bytes <= MOST_KEPT &&
           cuda_fails(d, d->driver->event_record(b->done, d->stream), "memory of the host") == DEVICE_OK;
    if (keep) {
        b->next = kept.first;
        kept.first = b;
        kept.bytes += b->bytes;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!keep) give_back(d, b);
}
