/* turned.h - attention of rows that decode by contracts of its parts: norms of heads, rotation and the append to
 * caches, attention. */
#ifndef GOMLX_TURNED_H
#define GOMLX_TURNED_H
#include "recorder.h"

/* Heads of n rows, side by side, normed; NULL: the recorder failed. */
static inline const float *record_head_norms(gm_recorder *r, const float *x, const float *weight, int64_t heads,
                                             int64_t dim, float eps) {
    float *out = r->workspace(r, (size_t)(heads * dim) * sizeof(float) + 1);
    const gm_rms_norm_args norm = {
        .out = out, .x = x, .weight = weight, .type = GM_T_F32, .x_stride = dim, .dim = dim, .eps = eps};
    return out && r->contracts->rms_norm(r, &norm, heads) ? out : NULL;
}
static inline bool record_turned_apart(gm_recorder *r, const gm_turned_attention_args *a, int64_t n) {
    gm_rope_cache_args turn = a->turn;
    const int64_t dim = turn.head_dim;
    if (a->q_norm && !(turn.q = record_head_norms(r, turn.q, a->q_norm, n * turn.n_heads, dim, a->eps))) return false;
    if (a->k_norm && turn.k && !(turn.k = record_head_norms(r, turn.k, a->k_norm, n * turn.n_kv_heads, dim, a->eps)))
        return false;
    if (a->q_norm || a->k_norm) r->fence(r);
    if (!r->contracts->rope_cache(r, &turn, n)) return false;
    r->fence(r);
    return r->contracts->attention_rows(r, &a->attention, n);
}
#endif
