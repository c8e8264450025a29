/* grow.h - the growth of arrays, by half, so that n appends cost O(n). */
#ifndef GOMLX_BASE_GROW_H
#define GOMLX_BASE_GROW_H
#include <stddef.h>
#include "gomlx.h"

/* grow_array's slow case. */
gm_status grow_array_now(void *array, size_t size, size_t *capacity, size_t more, size_t item_bytes);
/* Ensures capacity for `more` items after the first `size` of an array from memory.h. array: the address of the pointer
 * to the items, NULL at first; *capacity: how many items fit. On failure (GM_ENOMEM) both stay as they are. */
static inline gm_status grow_array(void *array, size_t size, size_t *capacity, size_t more, size_t item_bytes) {
    return *capacity - size >= more ? GM_OK : grow_array_now(array, size, capacity, more, item_bytes);
}
#endif
