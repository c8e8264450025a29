/* cache.h - the KV cache of one sequence: K and V of every layer, in blocks of GM_KV_BLOCK positions.
 * Address space for the whole context is reserved once; memory comes block by block, in place, so pointers stay
 * good. */
#ifndef GOMLX_NN_CACHE_H
#define GOMLX_NN_CACHE_H
#include "core/array.h"

typedef struct {
    int n_layers;
    int64_t capacity;            /* positions reserved: whole blocks */
    int64_t committed;           /* positions with memory behind them: whole blocks */
    int64_t block_bytes;         /* of one layer's K, or V, for one block */
    gm_array **arrays;           /* K0, V0, K1, V1, ...: [blocks, n_kv_heads, GM_KV_BLOCK, head_dim] */
} gm_cache;

gm_status cache_new(int n_layers, int64_t n_kv_heads, int64_t head_dim, gm_dtype type, int64_t context, gm_cache **out);
void cache_free(gm_cache *c);    /* NULL is fine */
gm_status cache_reach(gm_cache *c, int64_t length);   /* memory for positions [0, length) */
#endif
