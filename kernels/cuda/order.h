/* order.h - keys of 64 bits put in order, for what else than sorts needs it. */
#ifndef GOMLX_CUDA_ORDER_H
#define GOMLX_CUDA_ORDER_H
#include "cuda/launch.h"

typedef struct {
    uint64_t *keys, *other_keys;
    uint32_t *indices, *other_indices, *counts;
} order_room;
bool order_rooms(gm_recorder *r, int64_t rows, int64_t length, order_room *room);
/* Rows of p->keys, of which so many of the lowest bytes count, are put in order with p->indices, where the number of each
 * in its row is; where they are then is what p says. */
void order_keys(cuda_sort_args *p, int bytes);
#endif
