/* launch_training.c - what training asks for beyond what decoders do. */
#include "cpu/launch.h"

/* Keys and values as products read them, `forms` of each block, before a fence. */
static bool round_keys(gm_recorder *r, const gm_sequence_attention_args *a, int forms, gm_sequence_rounding *out) {
    const int64_t tasks = (a->n / GM_SEQUENCE_KEYS + a->sequences) * a->n_kv_heads; /* at most, as below */
    const int64_t items = tasks * forms * kernels_sequence_items(a->dim);
    *out = (gm_sequence_rounding){0};
    if (!a->rounded) return true;
    *out = (gm_sequence_rounding){.multiply = r->kernels->rounded_block, .factor = r->kernels->rounded_factor};
    out->keys = r->workspace(r, (size_t)items * sizeof *out->keys);
    const gm_sequence_attention_keys_args keys = {*a, *out, forms};
    return out->keys && LAUNCH(r, sequence_attention_keys, &keys, tasks, 1, LAUNCH_PART);
}

bool cpu_sequence_attention(gm_recorder *r, const gm_sequence_attention_args *a, int64_t n) {
    const int64_t tiles = n / GM_SEQUENCE_ROWS + a->sequences; /* at most: where sequences end is data */
    gm_sequence_attention_forward_args forward = {.forward = *a};
    if (!launch_workspaces(r, GM_SEQUENCE_FORWARD_BYTES, &forward.workspaces) ||
        !round_keys(r, a, GM_KEYS_FORWARD, &forward.rounding))
        return false;
    r->fence(r);
    return LAUNCH(r, sequence_attention_forward, &forward, tiles * a->n_heads, 1, 0);
}

/* `sum` as it is, to out of heads. */
static bool head_sum(gm_recorder *r, const gm_sequence_head_sum_args *sum, float *out, const float *heads) {
    gm_sequence_head_sum_args args = *sum;
    args.out = out;
    args.heads = heads;
    return LAUNCH(r, sequence_head_sum, &args, sum->n, 1 + GRAIN_LIGHT / ((int64_t)sum->n_heads * sum->dim),
                  LAUNCH_PART);
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
    const gm_sequence_attention_delta_args delta = {
        *a, back.grad.dv ? r->workspace(r, (size_t)(n * forward->n_heads) * sizeof(float) + 1) : NULL};
    back.delta = delta.delta;
    if (!delta.delta || !launch_workspaces(r, kernels_sequence_workspace_bytes(forward->dim), &back.workspaces) ||
        !round_keys(r, forward, GM_KEYS_BACK, &back.rounding) ||
        !LAUNCH(r, sequence_attention_delta, &delta, n, 1 + GRAIN_LIGHT / ((int64_t)forward->n_heads * forward->dim),
                LAUNCH_PART))
        return false;
    r->fence(r);
    for (; back.first_key < n; back.first_key += back.keys) {
        if (!LAUNCH(r, sequence_attention_back, &back, forward->sequences * forward->n_heads, 1, 0)) return false;
        r->fence(r);
    }
    const gm_sequence_head_sum_args sum = {
        .n = n, .n_heads = forward->n_heads, .n_kv_heads = forward->n_kv_heads, .dim = forward->dim};
    return head_sum(r, &sum, a->dk, back.grad.dk) && head_sum(r, &sum, a->dv, back.grad.dv);
}

/* ---- recurrent layers ---- */
static int64_t conv_units(const gm_sequence_conv_args *a) {
    return a->sequences * ((a->channels + GM_CONV_CHANNELS - 1) / GM_CONV_CHANNELS);
}
bool cpu_sequence_conv(gm_recorder *r, const gm_sequence_conv_args *a, int64_t n) {
    (void)n;
    return LAUNCH(r, sequence_conv, a, conv_units(a), 1, 0);
}
bool cpu_sequence_conv_grad(gm_recorder *r, const gm_sequence_conv_grad_args *a, int64_t n) {
    (void)n;
    return LAUNCH(r, sequence_conv_back, a, conv_units(&a->forward), 1, 0);
}

bool cpu_sequence_delta(gm_recorder *r, const gm_sequence_delta_args *a, int64_t n) {
    const int64_t blocks = (a->n_values + GM_DELTA_ROWS - 1) / GM_DELTA_ROWS;
    gm_sequence_delta_forward_args forward = {.forward = *a};
    (void)n;
    return launch_workspaces(r, GM_DELTA_TILE * a->n_keys * (int64_t)sizeof(float), &forward.workspaces) &&
           LAUNCH(r, sequence_delta_forward, &forward, a->sequences * a->n_heads * blocks, 1, 0);
}

/* Rows of a state in launches of their own: a piece takes no longer than a sequence's tokens for a few of them. */
bool cpu_sequence_delta_grad(gm_recorder *r, const gm_sequence_delta_grad_args *a, int64_t n) {
    const gm_sequence_delta_args *f = &a->forward;
    const size_t bytes = (size_t)(n * f->n_heads * f->n_keys) * sizeof(float) + 1;
    gm_sequence_delta_back_args back = {.grad = *a};
    back.grad.dq = r->workspace(r, bytes);
    back.grad.dk = back.grad.dq ? r->workspace(r, bytes) : NULL;
    if (!back.grad.dk ||
        !launch_workspaces(r, delta_workspace_floats(n, f->n_keys) * (int64_t)sizeof(float), &back.workspaces))
        return false;
    for (; back.row < f->n_values; back.row += GM_DELTA_ROWS) {
        if (!LAUNCH(r, sequence_delta_back, &back, f->sequences * f->n_heads, 1, 0)) return false;
        r->fence(r);
    }
    const gm_sequence_head_sum_args sum = {.n = n,
                                           .n_heads = (int)f->n_heads,
                                           .n_kv_heads = (int)f->n_key_heads,
                                           .dim = (int)f->n_keys,
                                           .tiled = f->tiled};
    return head_sum(r, &sum, a->dq, back.grad.dq) && head_sum(r, &sum, a->dk, back.grad.dk);
}

bool cpu_sequence_outer(gm_recorder *r, const gm_sequence_outer_args *a, int64_t n) {
    const int64_t blocks = (n + GM_OUTER_BLOCK - 1) / GM_OUTER_BLOCK;
    return a->rounded ? LAUNCH(r, rounded_outer, a, blocks, 1, 0) : LAUNCH(r, sequence_outer, a, blocks, 1, 0);
}
