/* launch_experts.c - mixtures of experts: pairs of token and expert sorted by expert, products over each one's rows.
 * How many rows an expert has is known only when a launch runs: its range is for the most that is possible, and kernels
 * divide the actual rows over it. Source: Shazeer et al. 2017; sorted as in Gale et al., MegaBlocks, 2022. */
#include <string.h>
#include "cpu/launch.h"

typedef struct {
    gm_expert_groups groups;
    int64_t pairs, top_k, most;
} sorting; /* most: groups */

static bool sort_pairs(gm_recorder *r, const gm_experts_args *a, int64_t tokens, sorting *out) {
    const int64_t pairs = tokens * a->top_k, most = a->experts < pairs ? a->experts : pairs;
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
    *out = (sorting){.groups = g, .pairs = pairs, .top_k = a->top_k, .most = most};
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
            .groups = sorted->groups, .out = to, .x = a->x, .top_k = sorted->top_k, .dim = a->dim, .int8 = int8 != 0};
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

/* What the pairs of each token have, added. */
static bool add_up(gm_recorder *r, const sorting *sorted, const gm_expert_sum_args *sum, int64_t tokens) {
    const int64_t blocks = (sum->dim + GM_EXPERT_COLUMNS - 1) / GM_EXPERT_COLUMNS;
    gm_expert_sum_args args = *sum;
    args.sorted = sorted->groups.sorted;
    args.top_k = sorted->top_k;
    return LAUNCH(r, expert_sum, &args, tokens * blocks, 1 + 16 * 512 / (sorted->top_k * GM_EXPERT_COLUMNS), 0);
}

static float *row_workspace(gm_recorder *r, int64_t rows, int64_t dim) {
    return r->workspace(r, (size_t)(rows * dim) * sizeof(float) + 1);
}

/* Gate and up of all pairs, sorted. */
static bool open_units(gm_recorder *r, const gm_experts_args *a, int64_t tokens, sorting *sorted, float *units[2]) {
    const void *forms[2] = {NULL, NULL};
    r->fence(r); /* ids may have been copied */
    if (!sort_pairs(r, a, tokens, sorted)) return false;
    r->fence(r);
    if (!gather_rows(r, a, sorted, forms)) return false;
    for (int i = 0; i < 2; i++)
        if (!(units[i] = row_workspace(r, sorted->pairs, a->inner))) return false;
    const gm_expert_stack in[2] = {
        stack_of(r, &a->gate, a->inner, a->dim, forms[a->gate.form == GM_FORM_INT8], units[0]),
        stack_of(r, &a->up, a->inner, a->dim, forms[a->up.form == GM_FORM_INT8], units[1])};
    const bool alike = product_flags(&in[0]) == product_flags(&in[1]);
    r->fence(r);
    if (!multiply(r, sorted, in, alike ? 2 : 1) || (!alike && !multiply(r, sorted, &in[1], 1))) return false;
    r->fence(r);
    return true;
}

bool cpu_experts(gm_recorder *r, const gm_experts_args *a, int64_t n) {
    const bool int8 = a->down.form == GM_FORM_INT8;
    sorting sorted;
    float *units[2];
    if (!open_units(r, a, n, &sorted, units)) return false;
    float *y = row_workspace(r, sorted.pairs, a->out_dim);
    void *activations = y && int8 ? r->workspace(r, act_bytes(sorted.pairs, a->inner) + 1) : NULL;
    if (!y || (int8 && !activations)) return false;
    const gm_expert_stack down = stack_of(r, &a->down, a->out_dim, a->inner, int8 ? activations : units[0], y);
    if (!join(r, a, &sorted, units[0], units[1], activations)) return false;
    r->fence(r);
    if (!multiply(r, &sorted, &down, 1)) return false;
    r->fence(r);
    return add_up(r, &sorted, &(gm_expert_sum_args){.out = a->out, .y = y, .weights = a->weights, .dim = a->out_dim},
                  n);
}

/* ---- the gradient ---- */
/* out [pairs, k] = or += x [pairs, rows] times each one's matrix [rows, k] as it stands. */
static bool multiply_columns(gm_recorder *r, const sorting *sorted, const gm_matrix_stack *w,
                             const gm_matmul_columns_args *product) {
    gm_expert_columns_args a = {.groups = sorted->groups,
                                .product = *product,
                                .matrix_bytes = kernels_packed_bytes(r->kernels, w->format, product->rows, product->k)};
    a.product.weight = w->data;
    a.product.format = w->format;
    a.product.x_row = product->rows;
    a.product.unpack = r->kernels->columns_unpack;
    const int64_t blocks = (product->k + GM_COLUMN_BLOCK - 1) / GM_COLUMN_BLOCK;
    const bool ok = LAUNCH(r, expert_columns, &a, sorted->most * blocks, 1, w->format > GM_QUANT_bf16 ? LAUNCH_FTZ : 0);
    r->fence(r);
    return ok;
}

/* What the units' outputs give to the weights and, over gate and up, to these. */
static bool split_units(gm_recorder *r, const gm_experts_grad_args *a, const sorting *sorted, float *const units[2],
                        const float *given, const float *grad) {
    const gm_experts_args *f = &a->forward;
    const gm_expert_glu_grad_args args = {.groups = sorted->groups,
                                          .glu = {.dgate = units[0],
                                                  .dup = units[1],
                                                  .gate = units[0],
                                                  .up = units[1],
                                                  .grad = given,
                                                  .kind = f->act,
                                                  .alpha = f->alpha,
                                                  .limit = f->limit},
                                          .weights = f->weights,
                                          .grad = grad,
                                          .bias = f->down.bias,
                                          .dweights = a->dweights,
                                          .dim = f->inner,
                                          .out_dim = f->out_dim};
    const bool ok = LAUNCH(r, expert_glu_grad, &args, sorted->pairs, grain_for(8 * f->inner), 0);
    r->fence(r);
    return ok;
}

bool cpu_experts_grad(gm_recorder *r, const gm_experts_grad_args *a, int64_t n) {
    const gm_experts_args *f = &a->forward;
    sorting sorted;
    float *units[2];
    gm_workspaces workspaces;
    if (!open_units(r, f, n, &sorted, units) || !launch_workspaces(r, GM_COLUMN_WORKSPACE, &workspaces)) return false;
    float *grad = row_workspace(r, sorted.pairs, f->out_dim);
    float *given = grad ? row_workspace(r, sorted.pairs, f->inner) : NULL;
    float *dx = given ? row_workspace(r, sorted.pairs, f->dim) : NULL;
    if (!dx) return false;
    const gm_expert_gather_args gather = {
        .groups = sorted.groups, .out = grad, .x = a->grad, .top_k = sorted.top_k, .dim = f->out_dim};
    if (!LAUNCH(r, expert_gather, &gather, sorted.pairs, 1 + 8192 / (f->out_dim + 1), 0)) return false;
    r->fence(r);
    gm_matmul_columns_args product = {
        .out = given, .x = grad, .rows = f->out_dim, .k = f->inner, .workspaces = workspaces};
    if (!multiply_columns(r, &sorted, &f->down, &product)) return false;
    if (!split_units(r, a, &sorted, units, given, grad)) return false;
    const gm_matrix_stack *const stacks[2] = {&f->gate, &f->up};
    for (int i = 0; i < 2; i++) {
        product = (gm_matmul_columns_args){
            .out = dx, .x = units[i], .rows = f->inner, .k = f->dim, .onto = i > 0, .workspaces = workspaces};
        if (!multiply_columns(r, &sorted, stacks[i], &product)) return false;
    }
    return add_up(r, &sorted, &(gm_expert_sum_args){.out = a->dx, .y = dx, .dim = f->dim}, n);
}
