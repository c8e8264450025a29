/* launch_decoder.c - fused parts of decoders, and attention over plain arrays. */
#include "cpu/launch.h"

bool cpu_rope_angles(gm_recorder *r, const gm_rope_angles_args *a, int64_t n) {
    return LAUNCH(r, rope_angles, a, n, 1 + 2048 / (a->half + 1), 0);
}
bool cpu_rope_table(gm_recorder *r, const gm_rope_table_args *a, int64_t n) {
    return LAUNCH(r, rope_table, a, n, 1 + 4096 / a->half, 0);
}
bool cpu_rope(gm_recorder *r, const gm_rope_args *a, int64_t n) { return LAUNCH(r, rope, a, n, 1 + 8192 / a->dim, 0); }

bool cpu_gated_delta(gm_recorder *r, const gm_gated_delta_args *a, int64_t n) {
    return LAUNCH(r, gated_delta, a, n, 1 + 65536 / (a->n_tokens * a->n_keys + 1), 0);
}

/* ---- attention over plain arrays: kv heads have `rows` queries each ---- */
/* Few queries: the keys are split into blocks, for all threads. */
static bool sdpa_by_blocks(gm_recorder *r, gm_sdpa_args *a, int64_t heads, int64_t rows) {
    const int64_t blocks = gm_sdpa_blocks(a->keys);
    a->partial = r->workspace(r, (size_t)(heads * rows * blocks * (a->value_dim + 2)) * sizeof(float) + 1);
    if (!a->partial || !LAUNCH(r, sdpa_split, a, heads * blocks, 1 + 64 / (a->dim + 1), 0))
        return false;
    r->fence(r);
    return LAUNCH(r, sdpa_merge, a, heads * rows, 1 + 4096 / (a->value_dim + 1), 0);
}

/* Keys and values are packed once for tiles of queries. */
static bool sdpa_by_tiles(gm_recorder *r, gm_sdpa_args *a, int64_t heads, int64_t rows) {
    const int64_t tiles = gm_sdpa_tiles(a->keys), tile = gm_sdpa_tile(a->value_dim);
    a->packed_k = r->workspace(r, (size_t)(heads * tiles * GM_SDPA_LANES * a->dim) * sizeof(float) + 1);
    if (!a->packed_k)
        return false;
    if (a->type != GM_T_F32) {
        a->packed_v = r->workspace(r, (size_t)(heads * a->keys * a->value_dim) * sizeof(float) + 1);
        if (!a->packed_v)
            return false;
    }
    if (!LAUNCH(r, sdpa_pack, a, heads * tiles, 1 + 512 / (a->dim + 1), 0))
        return false;
    r->fence(r);
    return LAUNCH(r, sdpa, a, heads * ((rows + tile - 1) / tile), 1, 0);
}

bool cpu_sdpa(gm_recorder *r, const gm_sdpa_args *a, int64_t n) {
    gm_sdpa_args args = *a;
    const int64_t heads = a->batches * a->n_kv_heads, rows = heads ? n / heads : 0;
    return (rows <= GM_SDPA_FEW ? sdpa_by_blocks : sdpa_by_tiles)(r, &args, heads, rows);
}
