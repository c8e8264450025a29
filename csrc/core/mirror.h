/* mirror.h - arrays whose bytes are needed on another device than they are on. */
#ifndef GOMLX_CORE_MIRROR_H
#define GOMLX_CORE_MIRROR_H
#include "core/queue.h"

/* Whether launches on a device cannot read the array where it is. */
static inline bool mirror_is_needed(int number, const gm_array *a) { return a->buf && a->buf->device != number; }
/* An evaluated array with the same values where the queue's launches read them. The caller owns it; lasting: it may
 * outlive the launches. The array's own buffer stays as it is until they have run. Two buffers of queue_reserve. */
gm_status mirror_make(gm_queue *q, gm_array *a, bool lasting, gm_array **out);
/* An evaluated array goes to a device, for good: its reference is exchanged. */
gm_status array_place(int number, gm_array **a);
/* The bytes of a contiguous evaluated array, wherever it is. */
gm_status array_read(const gm_array *a, void *out);
#endif
