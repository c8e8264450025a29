/* moe.c - mixtures of experts: which experts a token goes to, and the sum of what they make of it.
 * Which expert has how many rows is found when a plan runs: launches cover the most that there can be, and kernels share
 * out what there is. */
#include "ops/moe.h"
#include <string.h>

/* ---- routing. Source: Shazeer et al., Outrageously Large Neural Networks, 2017. ---- */
typedef struct { int32_t k, normalise; } route_param;
static const gm_field route_fields[] = {{FIELD_INT, offsetof(route_param, k), "k", 1},
                                        {FIELD_INT, offsetof(route_param, normalise), "normalise", 1}, {0}};

static gm_status route_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const route_param *p = param;
    const gm_array *logits = in[0], *scale = in[1];
    char a[128], b[128];
    array_text(logits, a);
    if (logits->dtype != GM_FLOAT32 || logits->ndim != 2)
        return gm_fail(GM_ESHAPE, "route: logits are %s, expected float32 [n, experts]", a);
    if (p->k < 1 || p->k > GM_ROUTE_MOST || p->k > logits->shape[1])
        return gm_fail(GM_EVALUE, "route: %d experts of logits %s, expected 1 up to all, at most %d", p->k, a,
                       GM_ROUTE_MOST);
    if (logits->shape[1] > INT32_MAX)
        return gm_fail(GM_EVALUE, "route: logits are %s, too many experts", a);
    if (!array_is_none(scale) &&
        (scale->dtype != GM_FLOAT32 || scale->ndim != 1 || scale->shape[0] != logits->shape[1])) {
        array_text(scale, b);
        return gm_fail(GM_ESHAPE, "route: scale is %s for logits %s", b, a);
    }
    for (int i = 0; i < 2; i++) {
        out[i].dtype = i ? GM_FLOAT32 : GM_INT32;
        out[i].ndim = 2;
        out[i].shape[0] = logits->shape[0];
        out[i].shape[1] = p->k;
    }
    return GM_OK;
}

static gm_status route_eval(gm_array *out, gm_queue *q) {
    const route_param *p = out->param;
    const gm_array *scale = out->in[1];
    gm_array *weights = array_output(out, 1);
    const int64_t rows = out->in[0]->shape[0], experts = out->in[0]->shape[1];
    const float *logits, *scale_data = NULL;
    GM_TRY(float_operand(q, out->in[0], &logits));
    if (!array_is_none(scale))
        GM_TRY(float_operand(q, scale, &scale_data));
    GM_TRY(array_alloc(out, q));
    GM_TRY(array_alloc(weights, q));
    return LAUNCH(q, route, rows, 1 + 8192 / (experts + 1), 0, .ids = array_ptr(out), .weights = array_ptr(weights),
                  .logits = logits, .scale = scale_data, .experts = experts, .k = p->k, .normalise = p->normalise != 0);
}

const gm_op route_op = {.name = "route", .n_in = 2, .n_out = 2, .nondiff = 3, .param_size = sizeof(route_param),
                        .fields = route_fields, .infer = route_infer, .eval = route_eval, .optional = 2,
                        .work = GM_WORK_ROUTER};

gm_array *gm_route(gm_scope *s, gm_array *logits, int k, bool normalise, gm_array *scale, gm_array **ids,
                   gm_array **weights) {
    gm_array *in[2] = {logits, scale}, *outs[2] = {NULL, NULL};
    route_param p = {k, normalise};
    if (!logits || !scale || array_nodes(s, &route_op, in, 2, &p, sizeof p, 2, outs) != GM_OK)
        outs[0] = outs[1] = NULL;
    *ids = outs[0];
    *weights = outs[1];
    return outs[0];
}

/* ---- pairs by expert ---- */
typedef struct { gm_expert_groups groups; int64_t pairs, slots, experts, most; } sorting;      /* most: groups */

/* What pairs of ids [n, k] need, in the node's scratch. */
static gm_status sort_pairs(gm_queue *q, const gm_array *ids, int64_t experts, sorting *out) {
    const int64_t pairs = ids->size, most = experts < pairs ? experts : pairs;
    const int64_t words = 3 * pairs + experts + 2 * most + 2;
    const void *data;
    GM_TRY(dense_operand(q, ids, &data));
    int64_t *cost = queue_scratch(q, (size_t)(most + 1) * sizeof *cost + (size_t)words * sizeof(int32_t));
    if (!cost)
        return error_code();
    int32_t *at = (int32_t *)(cost + most + 1);
    gm_expert_groups g = {.cost = cost, .owner = at};
    g.expert = at += pairs;
    g.begin = at += most;
    g.count = at += most + 1;
    int32_t *counts = at += 1;
    g.order = at += experts;
    g.place = at += pairs;
    *out = (sorting){.groups = g, .pairs = pairs, .slots = ids->shape[1], .experts = experts, .most = most};
    queue_fence(q);                     /* ids may have been copied */
    return LAUNCH(q, expert_sort, 1, 1, 0, .groups = g, .ids = data, .counts = counts, .pairs = pairs,
                  .experts = experts);
}

static bool is_pairs(const gm_array *ids, int64_t rows) {
    return ids->dtype == GM_INT32 && ids->ndim == 2 && (rows < 0 || ids->shape[0] == rows) && ids->shape[1] > 0 &&
           ids->size <= INT32_MAX / 2;
}

/* ---- the weighted sum ---- */
static gm_status launch_sum(gm_queue *q, gm_array *out, const float *y, const float *weights, const int32_t *place,
                            int64_t slots) {
    const int64_t dim = out->shape[1], blocks = (dim + GM_EXPERT_COLUMNS - 1) / GM_EXPERT_COLUMNS;
    return LAUNCH(q, expert_sum, out->shape[0] * blocks, 1 + 16 * 512 / (slots * GM_EXPERT_COLUMNS), 0,
                  .out = array_ptr(out), .y = y, .weights = weights, .place = place, .slots = slots, .dim = dim);
}

/* ---- packed experts. Source: Shazeer et al. 2017; sorted as in Gale et al., MegaBlocks, 2022. ---- */
enum { IN_ROWS, IN_IDS, IN_WEIGHTS, IN_MATRICES, IN_BIASES = IN_MATRICES + 3, INPUTS = IN_BIASES + 3 };
enum { GATE, UP, DOWN };
typedef struct {
    int32_t act;                 /* gm_glu_kind */
    float alpha, limit;
    int32_t int8[3], bf16[3];
} experts_param;
static const gm_field experts_fields[] = {{FIELD_INT, offsetof(experts_param, act), "act", 1},
                                          {FIELD_FLOAT, offsetof(experts_param, alpha), "alpha", 1},
                                          {FIELD_FLOAT, offsetof(experts_param, limit), "limit", 1},
                                          {FIELD_INT, offsetof(experts_param, int8), "int8", 3},
                                          {FIELD_INT, offsetof(experts_param, bf16), "bf16", 3}, {0}};

static gm_status check_stack(const experts_param *p, gm_array *const *in, int i, int64_t experts, int64_t k) {
    static const char *const names[] = {"gate", "up", "down"};
    const gm_array *w = in[IN_MATRICES + i], *bias = in[IN_BIASES + i];
    char a[128], b[128];
    array_text(w, a);
    if (w->dtype != GM_PACKED || w->format >= GM_QUANT_COUNT || w->ndim != 3 || w->shape[0] < 1 ||
        w->shape[0] > INT32_MAX / 2 || w->shape[0] != experts || w->shape[2] != k)
        return gm_fail(GM_ESHAPE, "moe: %s is %s, expected packed [%lld, rows, %lld]", names[i], a, (long long)experts,
                       (long long)k);
    if (p->int8[i] && (!quant_takes_int8(w->format) || k % 32))
        return gm_fail(GM_EVALUE, "moe: int8 activations multiply block formats only, and not mxfp8; %s is %s",
                       names[i], a);
    if (p->bf16[i] && w->format != GM_QUANT_bf16)
        return gm_fail(GM_EVALUE, "moe: activations are rounded for bf16 weights only, %s is %s", names[i], a);
    if (!array_is_none(bias) && (bias->dtype != GM_FLOAT32 || bias->ndim != 2 || bias->shape[0] != experts ||
                                 bias->shape[1] != w->shape[1])) {
        array_text(bias, b);
        return gm_fail(GM_ESHAPE, "moe: the bias of %s is %s for %s", names[i], b, a);
    }
    return GM_OK;
}

static gm_status experts_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[IN_ROWS], *ids = in[IN_IDS], *weights = in[IN_WEIGHTS], *gate = in[IN_MATRICES];
    char text[3][128];
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || !is_pairs(ids, x->shape[0]) || weights->dtype != GM_FLOAT32 ||
        weights->ndim != 2 || weights->shape[0] != ids->shape[0] || weights->shape[1] != ids->shape[1]) {
        for (int i = 0; i < 3; i++)
            array_text(in[i], text[i]);
        return gm_fail(GM_ESHAPE, "moe: got x %s, ids %s and weights %s, expected float32 [n, h], int32 [n, k], float32 "
                       "[n, k]", text[0], text[1], text[2]);
    }
    const int64_t experts = gate->ndim == 3 ? gate->shape[0] : 0;
    GM_TRY(check_stack(param, in, GATE, experts, x->shape[1]));
    GM_TRY(check_stack(param, in, UP, experts, x->shape[1]));
    GM_TRY(check_stack(param, in, DOWN, experts, gate->shape[1]));
    if (in[IN_MATRICES + UP]->shape[1] != gate->shape[1])
        return gm_fail(GM_ESHAPE, "moe: gate has %lld rows and up %lld, expected the same", (long long)gate->shape[1],
                       (long long)in[IN_MATRICES + UP]->shape[1]);
    out->dtype = GM_FLOAT32;
    out->ndim = 2;
    out->shape[0] = x->shape[0];
    out->shape[1] = in[IN_MATRICES + DOWN]->shape[1];
    return GM_OK;
}

/* The products of stack i, from x (sorted rows or activations) to out. */
static gm_status stack_of(gm_queue *q, const gm_array *node, int i, const void *x, float *out, gm_expert_stack *to) {
    const gm_array *w = node->in[IN_MATRICES + i], *bias = node->in[IN_BIASES + i];
    const gm_kernels *kernels = queue_kernels(q);
    const experts_param *p = node->param;
    const int64_t rows = w->shape[1], k = w->shape[2];
    const float *bias_data = NULL;
    if (!array_is_none(bias))
        GM_TRY(float_operand(q, bias, &bias_data));
    *to = (gm_expert_stack){.product = {.out = out, .out_stride = rows, .x = x, .x_stride = k, .weight = array_ptr(w),
                                        .format = w->format, .bias = bias_data, .rows = rows, .k = k},
                            .matrix_bytes = kernels_packed_bytes(kernels, w->format, rows, k),
                            .panels = kernels_panels(kernels, w->format, rows),
                            .int8 = p->int8[i] != 0, .bf16 = p->bf16[i] != 0};
    return GM_OK;
}

#define PIECE_PRODUCT 262144     /* multiply-adds of a piece at one token: some microseconds, and of memory traffic */
#define SMALL_PRODUCT 140000     /* what is not worth handing from core to core */

/* Dense panels keep denormals: in float16 they are numbers of some size. */
static int product_flags(const gm_expert_stack *s) { return s->product.format > GM_QUANT_bf16 ? LAUNCH_FTZ : 0; }

/* Stacks first .. first + stacks of products; their flags are the same. */
static gm_status launch_products(gm_queue *q, const sorting *sorted, const gm_expert_stack *first, int stacks) {
    gm_expert_matmul_args a;
    int64_t work = 0, units = 1;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < stacks; i++) {
        const gm_matmul_args *m = &first[i].product;
        const int64_t panel = m->rows * m->k / first[i].panels + 1, all = sorted->most * first[i].panels;
        int64_t share = PIECE_PRODUCT / panel;
        if (share > all / 16)
            share = all / 16;
        if (share < 4 && sorted->pairs > sorted->most)
            share = 4;                   /* panels that share a tile of activations */
        if (share < 1)
            share = 1;
        units = units > all / share ? units : all / share;
        work += sorted->pairs * m->rows * m->k;
        a.stack[i] = first[i];
    }
    a.groups = sorted->groups;
    a.units = units;
    return queue_launch(q, queue_kernels(q)->expert_matmul, &a, sizeof a, stacks * units,
                        work < SMALL_PRODUCT ? stacks * units : 1, product_flags(first));
}

/* Sorted rows for the stacks first .. last, in the forms that they want: float32, int8 activations. */
static gm_status gather_rows(gm_queue *q, const gm_array *node, const sorting *sorted, const float *x,
                             const void **forms) {
    const experts_param *p = node->param;
    const int64_t dim = node->in[IN_ROWS]->shape[1];
    for (int int8 = 0; int8 < 2; int8++) {
        if ((p->int8[GATE] != 0) != int8 && (p->int8[UP] != 0) != int8)
            continue;
        void *to = queue_scratch(q, int8 ? act_bytes(sorted->pairs, dim)
                                         : (size_t)(sorted->pairs * dim) * sizeof(float) + 1);
        if (!to)
            return error_code();
        GM_TRY(LAUNCH(q, expert_gather, sorted->pairs, 1 + 8192 / (dim + 1), int8 ? LAUNCH_FTZ : 0,
                      .groups = sorted->groups, .out = to, .x = x, .slots = sorted->slots, .dim = dim,
                      .int8 = int8 != 0));
        forms[int8] = to;
    }
    return GM_OK;
}

static gm_status experts_eval(gm_array *out, gm_queue *q) {
    const experts_param *p = out->param;
    const int64_t inner = out->in[IN_MATRICES]->shape[1], dim = out->shape[1];
    const void *forms[2] = {NULL, NULL};
    const float *x, *weights;
    gm_expert_stack stacks[3];
    sorting sorted;
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    GM_TRY(float_operand(q, out->in[IN_ROWS], &x));
    GM_TRY(float_operand(q, out->in[IN_WEIGHTS], &weights));
    GM_TRY(sort_pairs(q, out->in[IN_IDS], out->in[IN_MATRICES]->shape[0], &sorted));
    queue_fence(q);
    GM_TRY(gather_rows(q, out, &sorted, x, forms));
    const size_t hidden = (size_t)(sorted.pairs * inner) * sizeof(float);
    float *gate = queue_scratch(q, hidden + 1), *up = gate ? queue_scratch(q, hidden + 1) : NULL;
    float *y = up ? queue_scratch(q, (size_t)(sorted.pairs * dim) * sizeof *y + 1) : NULL;
    void *activations = y && p->int8[DOWN] ? queue_scratch(q, act_bytes(sorted.pairs, inner) + 1) : NULL;
    if (!y || (p->int8[DOWN] && !activations))
        return error_code();
    GM_TRY(stack_of(q, out, GATE, forms[p->int8[GATE]], gate, &stacks[GATE]));
    GM_TRY(stack_of(q, out, UP, forms[p->int8[UP]], up, &stacks[UP]));
    GM_TRY(stack_of(q, out, DOWN, p->int8[DOWN] ? activations : gate, y, &stacks[DOWN]));
    queue_fence(q);
    const bool alike = product_flags(&stacks[GATE]) == product_flags(&stacks[UP]);
    GM_TRY(launch_products(q, &sorted, &stacks[GATE], alike ? 2 : 1));
    if (!alike)
        GM_TRY(launch_products(q, &sorted, &stacks[UP], 1));
    queue_fence(q);
    const gm_glu_args glu = {.out = gate, .gate = gate, .up = up, .dim = inner, .gate_stride = inner,
                             .up_stride = inner, .kind = (gm_glu_kind)p->act, .alpha = p->alpha, .limit = p->limit};
    GM_TRY(LAUNCH(q, expert_glu, sorted.pairs, 1 + 4096 / (inner + 1), p->int8[DOWN] ? LAUNCH_FTZ : 0,
                  .groups = sorted.groups, .out = activations, .glu = glu, .int8 = p->int8[DOWN] != 0));
    queue_fence(q);
    GM_TRY(launch_products(q, &sorted, &stacks[DOWN], 1));
    queue_fence(q);
    return launch_sum(q, out, y, weights, sorted.groups.place, sorted.slots);
}

const gm_op moe_experts_op = {.name = "moe_experts", .n_in = INPUTS, .n_out = 1, .nondiff = UINT32_MAX,
                              .param_size = sizeof(experts_param), .fields = experts_fields, .infer = experts_infer,
                              .eval = experts_eval, .optional = 7u << IN_BIASES, .work = GM_WORK_EXPERTS};

gm_array *moe_experts(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, gm_array *const *matrices,
                      gm_array *const *biases, const bool *int8, const bool *bf16, gm_glu_kind act, float alpha,
                      float limit) {
    gm_array *in[INPUTS] = {x, ids, weights, matrices[0], matrices[1], matrices[2], biases[0], biases[1], biases[2]};
    experts_param p;
    memset(&p, 0, sizeof p);
    p.act = (int32_t)act;
    p.alpha = alpha;
    p.limit = limit;
    for (int i = 0; i < 3; i++) {
        p.int8[i] = int8[i];
        p.bf16[i] = bf16[i];
    }
    return array_node(s, &moe_experts_op, in, INPUTS, &p);
}
