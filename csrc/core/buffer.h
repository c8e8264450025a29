/* buffer.h - memory of arrays: reference-counted blocks from caching allocators with limits, one for each device.
 *  (1) A block's data starts on a 64-byte boundary. refs and pins are atomic; the free lists have their own locks,
 *      after which only a device's lock is taken.
 *  (2) Active bytes are those of living blocks, cached bytes those on the free lists; active above the limit is
 *      GM_ENOMEM. Cached ones are at most the cache's limit, or gm_keep_memory's.
 *  (3) A block of a device that is free may be handed out at once: whoever writes it next is behind its last reader in
 *      the device's line of work.
 *  (4) A mirror has the same bytes on another device. Whoever is about to write a block forgets its mirror before. */
#ifndef GOMLX_CORE_BUFFER_H
#define GOMLX_CORE_BUFFER_H
#include <stdatomic.h>
#include <stddef.h>
#include "gomlx.h"

typedef enum { BUFFER_OWNED, BUFFER_FOREIGN } buffer_kind;

typedef struct gm_buffer {
    _Atomic int32_t refs;
    _Atomic int32_t pins; /* exports: a pinned block is never written by the engine again */
    buffer_kind kind;
    uint8_t device;
    size_t bytes;                   /* usable */
    void *data;                     /* an address of its device */
    void (*release)(void *payload); /* BUFFER_FOREIGN */
    void *payload;
    _Atomic(struct gm_buffer *) mirror; /* NULL: none */
    struct gm_buffer *next, *previous;  /* on a free list; of those that have mirrors */
    uint64_t mark;                      /* the batch that holds it already; run lock */
} gm_buffer;

gm_buffer *buffer_new(size_t bytes); /* of the processor */
gm_buffer *buffer_new_on(int device, size_t bytes);
gm_buffer *buffer_foreign(void *data, size_t bytes, void (*release)(void *), void *payload);
/* Bytes [offset, offset + bytes) of another buffer, which lives as long as any part of it. */
gm_buffer *buffer_part(gm_buffer *whole, size_t offset, size_t bytes);
gm_buffer *buffer_retain(gm_buffer *b);
void buffer_release(gm_buffer *b);

/* The mirror on a device, with a reference for the caller; NULL: there is none. */
gm_buffer *buffer_mirror(gm_buffer *b, int device);
void buffer_keep_mirror(gm_buffer *b, gm_buffer *mirror); /* retains it; in place of one before */
void buffer_forget_mirror(gm_buffer *b);

/* The most memory of the whole process that is active at any time between begin and end. It stays where it is till
 * then. */
typedef struct buffer_watch {
    size_t peak;
    struct buffer_watch *previous, *next;
    bool watches;
} buffer_watch;
void buffer_watch_begin(buffer_watch *w);
void buffer_watch_end(buffer_watch *w); /* of one that never began is fine; peak stays */
size_t buffer_watch_peak(const buffer_watch *w);
#endif
