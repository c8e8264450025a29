/* launch_training.c - what training asks for beyond what decoders do. */
#include "cpu/launch.h"

bool cpu_sequence_attention(gm_recorder *r, const gm_sequence_attention_args *a, int64_t n) {
    const int64_t tiles = n / GM_SEQUENCE_ROWS + a->sequences; /* at most: where sequences end is data */
    return LAUNCH(r, sequence_attention, a, tiles * a->n_heads, 1, 0);
}

static bool head_sum(gm_recorder *r, const gm_sequence_attention_args *a, float *out, const float *heads, int flags) {
    const gm_sequence_head_sum_args sum = {
        .out = out, .heads = heads, .n = a->n, .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads, .dim = a->dim};
    return LAUNCH(r, sequence_head_sum, &sum, a->n, 1 + GRAIN_LIGHT / ((int64_t)a->n_heads * a->dim), flags);
}

/* Heads that share keys and values go side by side, each with its own cotangents of them, which are added then. */
bool cpu_sequence_attention_grad(gm_recorder *r, const gm_sequence_attention_grad_args *a, int64_t n) {
    gm_sequence_attention_grad_args heads = *a;
    const size_t bytes = (size_t)(n * a->forward.n_heads * a->forward.dim) * sizeof(float) + 1;
    heads.dk = r->workspace(r, bytes);
    heads.dv = heads.dk ? r->workspace(r, bytes) : NULL;
    if (!heads.dv || !LAUNCH(r, sequence_attention_grad, &heads, a->forward.sequences * a->forward.n_heads, 1, 0))
        return false;
    r->fence(r);
    return head_sum(r, &a->forward, a->dk, heads.dk, LAUNCH_PART) &&
           head_sum(r, &a->forward, a->dv, heads.dv, LAUNCH_PART);
}
