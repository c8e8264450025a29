/* launch_experts.c - mixtures of experts: pairs of token and expert sorted by expert, products over each one's rows.
 * How many rows an expert has is known only when a launch runs: its range is for the most that is possible, and kernels
 * divide the actual rows over it. Source: Shazeer et al. 2017; sorted as in Gale et al., MegaBlocks, 2022. */
#include <string.h>
#include "cpu/launch.h"

typedef struct {
    gm_expert_groups groups;
    int64_t pairs, slots, most;
} sorting; /* most: groups */

static bool sort_pairs(gm_recorder *r, const gm_experts_args *a, int64_t tokens, sorting *out) {
    const int64_t pairs = tokens * a->slots, most = a->experts < pairs ? a->experts : pairs;
    const int64_t words = 3 * pairs + a->experts + 2 * most + 2;
    int64_t *cost = r->workspace(r, (size_t)(most + 1) * sizeof *cost + (size_t)words * sizeof(int32_t));
    if (!cost) return false;
    int32_t *at = (int32_t *)(cost + most + 1);
    gm_expert_groups g = {.cost = cost, .owner = at};
    g.expert = at += pairs;
    g.begin = at += most;
    g.count = at += most + 1;
    int32_t *counts = at += 1;
    g.order = at += a->experts;
    g.sorted = at += pairs;
    *out = (sorting){.groups = g, .pairs = pairs, .slots = a->slots, .most = most};
    const gm_expert_sort_args args = {
        .groups = g, .ids = a->ids, .counts = counts, .pairs = pairs, .experts = a->experts};
    return LAUNCH(r, expert_sort, &args, 1, 1, 0);
}

/* ---- products ---- */
#define PIECE_PRODUCT 262144 /* multiply-adds of a piece at one token: some microseconds, and of memory traffic */
#define SMALL_PRODUCT 140000 /* below this, sharing with another core costs more than it saves */

static gm_expert_stack stack_of(gm_recorder *r, const gm_matrix_stack *w, int64_t rows, int64_t k, const void *x,
                                float *out) {
    return (gm_expert_stack){.product = {.out = out,
                                         .out_stride = rows,
                                         .x = x,
                                         .x_stride = k,
                                         .weight = w->data,
                                         .format = w->format,
                                         .bias = w->bias,
                                         .rows = rows,
                                         .k = k},
                             .matrix_bytes = kernels_packed_bytes(r->kernels, w->format, rows, k),
                             .panels = kernels_panels(r->kernels, w->format, rows),
                             .int8 = w->form == GM_FORM_INT8,
                             .bf16 = w->form == GM_FORM_BF16};
}

/* Dense panels keep denormals: in float16 they are numbers of some size. */
static int product_flags(const gm_expert_stack *s) { return s->product.format > GM_QUANT_bf16 ? LAUNCH_FTZ : 0; }

/* Stacks first .. first + stacks of products; their flags are the same. */
static bool multiply(gm_recorder *r, const sorting *sorted, const gm_expert_stack *first, int stacks) {
    gm_expert_matmul_args a;
    int64_t work = 0, units = 1;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < stacks; i++) {
        const gm_matmul_args *m = &first[i].product;
        const int64_t panel = m->rows * m->k / first[i].panels + 1, all = sorted->most * first[i].panels;
        int64_t share = PIECE_PRODUCT / panel;
        if (share > all / 16) share = all / 16;
        if (share < 4 && sorted->pairs > sorted->most) share = 4; /* panels that share a tile of activations */
        if (share < 1) share = 1;
        units = units > all / share ? units : all / share;
        work += sorted->pairs * m->rows * m->k;
        a.stack[i] = first[i];
    }
    a.groups = sorted->groups;
    a.units = units;
    const int64_t grain = work < SMALL_PRODUCT ? stacks * units : 1;
    return LAUNCH(r, expert_matmul, &a, stacks * units, grain, product_flags(first));
}

/* Sorted rows for gate and up, in the forms that they want: float32, int8 activations. */
static bool gather_rows(gm_recorder *r, const gm_experts_args *a, const sorting *sorted, const void **forms) {
    for (int int8 = 0; int8 < 2; int8++) {
        if ((a->gate.form == GM_FORM_INT8) != int8 && (a->up.form == GM_FORM_INT8) != int8) continue;
        void *to = r->workspace(r, int8 ? act_bytes(sorted->pairs, a->dim)
                                        : (size_t)(sorted->pairs * a->dim) * sizeof(float) + 1);
        const gm_expert_gather_args args = {
            .groups = sorted->groups, .out = to, .x = a->x, .slots = sorted->slots, .dim = a->dim, .int8 = int8 != 0};
        if (!to || !LAUNCH(r, expert_gather, &args, sorted->pairs, 1 + 8192 / (a->dim + 1), int8 ? LAUNCH_FTZ : 0))
            return false;
        forms[int8] = to;
    }
    return true;
}

/* act(gate) * up over gate, or as activations. */
static bool join(gm_recorder *r, const gm_experts_args *a, const sorting *sorted, float *gate, float *up,
                 void *activations) {
    const bool int8 = a->down.form == GM_FORM_INT8;
    const gm_expert_glu_args args = {.groups = sorted->groups,
                                     .out = activations,
                                     .int8 = int8,
                                     .glu = {.out = gate,
                                             .gate = gate,
                                             .up = up,
                                             .dim = a->inner,
                                             .gate_stride = a->inner,
                                             .up_stride = a->inner,
                                             .kind = a->act,
                                             .alpha = a->alpha,
                                             .limit = a->limit}};
    return LAUNCH(r, expert_glu, &args, sorted->pairs, 1 + 4096 / (a->inner + 1), int8 ? LAUNCH_FTZ : 0);
}

static bool add_up(gm_recorder *r, const gm_experts_args *a, const sorting *sorted, const float *y, int64_t tokens) {
    const int64_t blocks = (a->out_dim + GM_EXPERT_COLUMNS - 1) / GM_EXPERT_COLUMNS;
    const gm_expert_sum_args args = {.out = a->out,
                                     .y = y,
                                     .weights = a->weights,
                                     .sorted = sorted->groups.sorted,
                                     .slots = a->slots,
                                     .dim = a->out_dim};
    return LAUNCH(r, expert_sum, &args, tokens * blocks, 1 + 16 * 512 / (a->slots * GM_EXPERT_COLUMNS), 0);
}

bool cpu_experts(gm_recorder *r, const gm_experts_args *a, int64_t n) {
    const bool int8 = a->down.form == GM_FORM_INT8;
    const void *forms[2] = {NULL, NULL};
    sorting sorted;
    r->fence(r); /* ids may have been copied */
    if (!sort_pairs(r, a, n, &sorted)) return false;
    r->fence(r);
    if (!gather_rows(r, a, &sorted, forms)) return false;
    const size_t hidden = (size_t)(sorted.pairs * a->inner) * sizeof(float);
    float *gate = r->workspace(r, hidden + 1), *up = gate ? r->workspace(r, hidden + 1) : NULL;
    float *y = up ? r->workspace(r, (size_t)(sorted.pairs * a->out_dim) * sizeof *y + 1) : NULL;
    void *activations = y && int8 ? r->workspace(r, act_bytes(sorted.pairs, a->inner) + 1) : NULL;
    if (!y || (int8 && !activations)) return false;
    const gm_expert_stack in[2] = {stack_of(r, &a->gate, a->inner, a->dim, forms[a->gate.form == GM_FORM_INT8], gate),
                                   stack_of(r, &a->up, a->inner, a->dim, forms[a->up.form == GM_FORM_INT8], up)};
    const gm_expert_stack down = stack_of(r, &a->down, a->out_dim, a->inner, int8 ? activations : gate, y);
    const bool alike = product_flags(&in[0]) == product_flags(&in[1]);
    r->fence(r);
    if (!multiply(r, &sorted, in, alike ? 2 : 1) || (!alike && !multiply(r, &sorted, &in[1], 1))) return false;
    r->fence(r);
    if (!join(r, a, &sorted, gate, up, activations)) return false;
    r->fence(r);
    if (!multiply(r, &sorted, &down, 1)) return false;
    r->fence(r);
    return add_up(r, a, &sorted, y, n);
}
