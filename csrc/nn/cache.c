/* cache.c - see cache.h. */
#include "nn/cache.h"
#include "base/memory.h"

gm_status cache_new(int n_layers, int64_t n_kv_heads, int64_t head_dim, gm_dtype type, int64_t context,
                    gm_cache **out) {
    gm_cache *c = memory_zeroed(sizeof *c);
    int64_t blocks = (context + GM_KV_BLOCK - 1) / GM_KV_BLOCK;
    gm_spec spec = {.dtype = type, .ndim = 4, .shape = {blocks, n_kv_heads, GM_KV_BLOCK, head_dim}};
    *out = NULL;
    if (!c || !(c->arrays = memory_zeroed(2 * (size_t)n_layers * sizeof *c->arrays))) {
        memory_free(c);
        return GM_ENOMEM;
    }
    c->n_layers = n_layers;
    c->capacity = blocks * GM_KV_BLOCK;
    c->block_bytes = n_kv_heads * GM_KV_BLOCK * head_dim * (int64_t)gm_dtype_size(type);
    for (int i = 0; i < 2 * n_layers; i++) {
        gm_buffer *buf = buffer_reserve((size_t)(blocks * c->block_bytes));
        c->arrays[i] = buf ? array_data(NULL, &spec, buf, 0) : NULL;
        buffer_release(buf);
        if (!c->arrays[i]) {
            cache_free(c);
            return error_code();
        }
    }
    *out = c;
    return GM_OK;
}

void cache_free(gm_cache *c) {
    if (!c)
        return;
    for (int i = 0; i < 2 * c->n_layers; i++)
        gm_release(c->arrays[i]);
    memory_free(c->arrays);
    memory_free(c);
}

gm_status cache_reach(gm_cache *c, int64_t length) {
    if (length <= c->committed)
        return GM_OK;
    if (length > c->capacity)
        return gm_fail(GM_EVALUE, "KV cache: %lld positions, the context holds %lld", (long long)length,
                       (long long)c->capacity);
    int64_t blocks = (length + GM_KV_BLOCK - 1) / GM_KV_BLOCK;
    for (int i = 0; i < 2 * c->n_layers; i++)
        GM_TRY(buffer_commit(c->arrays[i]->buf, (size_t)(blocks * c->block_bytes)));
    c->committed = blocks * GM_KV_BLOCK;
    return GM_OK;
}
