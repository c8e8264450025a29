/* launch_training.c - what training asks for beyond what decoders do. */
#include "cpu/launch.h"

bool cpu_sequence_attention(gm_recorder *r, const gm_sequence_attention_args *a, int64_t n) {
    const int64_t tiles = n / GM_SEQUENCE_ROWS + a->sequences; /* at most: where sequences end is data */
    gm_sequence_attention_forward_args forward = {.forward = *a};
    return launch_workspaces(r, GM_SEQUENCE_FORWARD_BYTES, &forward.workspaces) &&
           LAUNCH(r, sequence_attention_forward, &forward, tiles * a->n_heads, 1, 0);
}

static bool head_sum(gm_recorder *r, const gm_sequence_attention_args *a, float *out, const float *heads, int flags) {
    const gm_sequence_head_sum_args sum = {
        .out = out, .heads = heads, .n = a->n, .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads, .dim = a->dim};
    return LAUNCH(r, sequence_head_sum, &sum, a->n, 1 + GRAIN_LIGHT / ((int64_t)a->n_heads * a->dim), flags);
}

#define BACK_WORK ((int64_t)1 << 28) /* keys x rows x dim of a head in a launch, at most: some tens of milliseconds */

/* Heads that share keys and values go side by side, each with its own cotangents of them, which are added then. */
bool cpu_sequence_attention_grad(gm_recorder *r, const gm_sequence_attention_grad_args *a, int64_t n) {
    const gm_sequence_attention_args *forward = &a->forward;
    const size_t bytes = (size_t)(n * forward->n_heads * forward->dim) * sizeof(float) + 1;
    const int64_t some = BACK_WORK / (n * forward->dim + 1) / GM_SEQUENCE_KEYS * GM_SEQUENCE_KEYS;
    gm_sequence_attention_back_args back = {.grad = *a, .keys = some ? some : GM_SEQUENCE_KEYS};
    back.grad.dk = r->workspace(r, bytes);
    back.grad.dv = back.grad.dk ? r->workspace(r, bytes) : NULL;
    if (!back.grad.dv ||
        !launch_workspaces(r, kernels_sequence_workspace_bytes(r->kernels, forward->dim), &back.workspaces))
        return false;
    for (; back.first_key < n; back.first_key += back.keys) {
        if (!LAUNCH(r, sequence_attention_back, &back, forward->sequences * forward->n_heads, 1, 0)) return false;
        r->fence(r);
    }
    return head_sum(r, forward, a->dk, back.grad.dk, LAUNCH_PART) &&
           head_sum(r, forward, a->dv, back.grad.dv, LAUNCH_PART);
}

bool cpu_sequence_outer(gm_recorder *r, const gm_sequence_outer_args *a, int64_t n) {
    return LAUNCH(r, sequence_outer, a, (n + GM_OUTER_BLOCK - 1) / GM_OUTER_BLOCK, 1, 0);
}
