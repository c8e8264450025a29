/* launch_training.c - what training asks for beyond what decoders do. */
#include "cpu/launch.h"

/* How many blocks of keys there are, at most: where sequences end is data. */
static int64_t key_blocks(const gm_sequence_attention_args *a) { return a->n / GM_SEQUENCE_KEYS + a->sequences; }
/* Keys and values as products read them that are rounded, `forms` of each block, before a fence. */
static uint16_t *round_keys(gm_recorder *r, const gm_sequence_attention_args *a, int forms) {
    const int64_t tasks = key_blocks(a) * a->n_kv_heads;
    const int64_t items = tasks * forms * kernels_sequence_items(a->dim);
    const gm_rounded_attention_keys_args keys = {*a, r->workspace(r, (size_t)items * sizeof *keys.keys), forms};
    return keys.keys && LAUNCH(r, rounded_attention_keys, &keys, tasks, 1, LAUNCH_PART) ? keys.keys : NULL;
}
/* How many tiles of so many rows there are, at most: where sequences end is data. */
static int64_t row_tiles(const gm_sequence_attention_args *a, int64_t rows) { return a->n / rows + a->sequences; }

static bool rounded_attention(gm_recorder *r, const gm_sequence_attention_args *a) {
    gm_rounded_attention_forward_args forward = {*a, round_keys(r, a, GM_KEYS_FORWARD), {0}};
    if (!forward.keys || !launch_workspaces(r, kernels_rounded_forward_bytes(a->dim), &forward.workspaces))
        return false;
    r->fence(r);
    return LAUNCH(r, rounded_attention_forward, &forward, row_tiles(a, GM_SEQUENCE_KEYS) * a->n_heads, 1, 0);
}
bool cpu_sequence_attention(gm_recorder *r, const gm_sequence_attention_args *a, int64_t n) {
    gm_sequence_attention_forward_args forward = {.forward = *a};
    (void)n;
    if (a->rounded) return rounded_attention(r, a);
    return launch_workspaces(r, GM_SEQUENCE_FORWARD_BYTES, &forward.workspaces) &&
           LAUNCH(r, sequence_attention_forward, &forward, row_tiles(a, GM_SEQUENCE_ROWS) * a->n_heads, 1, 0);
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
#define ROUNDED_BACK_WORK (4 * BACK_WORK) /* the same of rounded products */

/* How much of a sequence goes in a launch: a multiple of `of`. */
static int64_t back_some(int64_t work, const gm_sequence_attention_args *a, int64_t of) {
    const int64_t some = work / (a->n * a->dim + 1) / of * of;
    return some ? some : of;
}
/* Cotangents of queries, keys and values where heads that share keys go side by side, each with its own cotangents of
 * them, which are added then. The launches go one after another: rows are added to by each. */
static bool exact_back(gm_recorder *r, const gm_sequence_attention_grad_args *a, const float *delta) {
    const gm_sequence_attention_args *f = &a->forward;
    const size_t bytes = (size_t)(f->n * f->n_heads * f->dim) * sizeof(float) + 1;
    gm_sequence_attention_back_args back = {
        .grad = *a, .delta = delta, .keys = back_some(BACK_WORK, f, GM_SEQUENCE_KEYS)};
    back.grad.dk = r->workspace(r, bytes);
    back.grad.dv = back.grad.dk ? r->workspace(r, bytes) : NULL;
    if (!back.grad.dv || !launch_workspaces(r, kernels_sequence_workspace_bytes(f->dim), &back.workspaces))
        return false;
    r->fence(r);
    for (; back.first_key < f->n; back.first_key += back.keys) {
        if (!LAUNCH(r, sequence_attention_back, &back, f->sequences * f->n_heads, 1, 0)) return false;
        r->fence(r);
    }
    const gm_sequence_head_sum_args sum = {
        .n = f->n, .n_heads = f->n_heads, .n_kv_heads = f->n_kv_heads, .dim = f->dim};
    return head_sum(r, &sum, a->dk, back.grad.dk) && head_sum(r, &sum, a->dv, back.grad.dv);
}
/* The same where heads that share keys go one after another, and rows in parts. */
static bool rounded_back(gm_recorder *r, const gm_sequence_attention_grad_args *a, const float *delta) {
    const gm_sequence_attention_args *f = &a->forward;
    const int64_t parts = kernels_back_parts(f->n_kv_heads), tasks = f->sequences * f->n_kv_heads * parts,
                  blocks = key_blocks(f) * f->n_kv_heads, work = ROUNDED_BACK_WORK / (f->n_heads / f->n_kv_heads);
    gm_rounded_attention_back_args back = {.grad = *a,
                                           .delta = delta,
                                           .rows = back_some(work, f, kernels_back_span(f->dim)),
                                           .keys = round_keys(r, f, GM_KEYS_BACK)};
    if (!back.keys || !launch_some_workspaces(r, tasks, kernels_rounded_back_bytes(f->dim), &back.workspaces))
        return false;
    back.sums = r->workspace(r, (size_t)(blocks * parts * 2 * kernels_sequence_items(f->dim)) * sizeof *back.sums);
    if (!back.sums) return false;
    r->fence(r);
    for (; back.first_row < f->n; back.first_row += back.rows) {
        if (!LAUNCH(r, rounded_attention_back, &back, tasks, 1, 0)) return false;
        r->fence(r);
    }
    return LAUNCH(r, rounded_attention_sum, &back, blocks, 1, LAUNCH_PART);
}

bool cpu_sequence_attention_grad(gm_recorder *r, const gm_sequence_attention_grad_args *a, int64_t n) {
    const gm_sequence_attention_args *f = &a->forward;
    const gm_sequence_attention_delta_args delta = {*a, r->workspace(r, (size_t)(n * f->n_heads) * sizeof(float) + 1)};
    return delta.delta &&
           LAUNCH(r, sequence_attention_delta, &delta, n, 1 + GRAIN_LIGHT / ((int64_t)f->n_heads * f->dim),
                  LAUNCH_PART) &&
           (f->rounded ? rounded_back : exact_back)(r, a, delta.delta);
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
