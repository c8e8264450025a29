/* order.h - keys put in order, for what else than sorts needs it. */
#ifndef GOMLX_CUDA_ORDER_H
#define GOMLX_CUDA_ORDER_H
#include "cuda/launch.h"

typedef struct {
    void *keys, *other_keys;
    uint32_t *indices, *other_indices, *counts, *totals;
} order_room;
/* key_bytes: 4 or 8. */
bool order_rooms(gm_recorder *r, int64_t rows, int64_t length, int key_bytes, order_room *room);
void order_in(cuda_sort_args *p, const order_room *room);
/* Rows of p->keys, of key_bytes each, of which so many of the lowest bytes count, are put in order, with the number of
 * each in its row in p->indices; where they are then is what p says. */
void order_keys(cuda_sort_args *p, int key_bytes, int bytes);
#endif
