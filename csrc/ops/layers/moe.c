/* moe.c - mixtures of experts: which experts a token goes to, and the sum of what they make of it. */
#include "ops/layers/moe.h"
#include <string.h>

/* ---- routing. Source: Shazeer et al., Outrageously Large Neural Networks, 2017. ---- */
typedef struct { int32_t k, normalise; } route_param;
static const gm_field route_fields[] = {
    {FIELD_INT, offsetof(route_param, k), "k", 1}, {FIELD_INT, offsetof(route_param, normalise), "normalise", 1}, {0}};

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
    return DISPATCH(q, route, rows, .ids = array_ptr(out), .weights = array_ptr(weights), .logits = logits,
                    .scale = scale_data, .experts = experts, .k = p->k, .normalise = p->normalise != 0);
}

static gm_array *row_sum(gm_scope *s, gm_array *x) { return gm_sum(s, x, 1, (int[]){-1}, true); }

/* With p the softmax that weights are of and g = cotangent * scale: d logit = p * (g - sum(p g)), where g is 0 of an
 * expert that is not chosen. */
static void route_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    const route_param *p = out->param;
    gm_array *ids = array_pick(s, out, 0), *g = cots[1];
    if (!g)
        return;
    if (!array_is_none(in[1]))
        g = gm_multiply(s, g, gm_take(s, in[1], ids, 0));
    gm_array *none = gm_zeros_like(s, in[0], GM_FLOAT32);
    if (p->normalise) {
        gm_array *share = gm_softmax(s, gm_take_along_axis(s, in[0], ids, 1), 1, (int[]){-1});
        gm_array *own = gm_subtract(s, g, row_sum(s, gm_multiply(s, share, g)));
        grad[0] = gm_put_along_axis(s, none, ids, gm_multiply(s, share, own), 1);
        return;
    }
    gm_array *all = gm_softmax(s, in[0], 1, (int[]){-1});
    gm_array *given = gm_multiply(s, gm_take_along_axis(s, all, ids, 1), g);
    grad[0] = gm_subtract(s, gm_put_along_axis(s, none, ids, given, 1), gm_multiply(s, all, row_sum(s, given)));
}

const gm_op route_op = {.name = "route",
                        .n_in = 2,
                        .n_out = 2,
                        .nondiff = 2,
                        .param_size = sizeof(route_param),
                        .fields = route_fields,
                        .infer = route_infer,
                        .eval = route_eval,
                        .vjp = route_vjp,
                        .optional = 2,
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

/* ---- packed experts. Source: Shazeer et al. 2017. ---- */
enum { IN_ROWS, IN_IDS, IN_WEIGHTS, IN_MATRICES, IN_BIASES = IN_MATRICES + 3, INPUTS = IN_BIASES + 3 };
enum { GATE, UP, DOWN };
typedef struct {
    int32_t act; /* gm_glu_kind */
    float alpha, limit;
    int32_t int8[3], bf16[3];
} experts_param;
static const gm_field experts_fields[] = {{FIELD_INT, offsetof(experts_param, act), "act", 1},
                                          {FIELD_FLOAT, offsetof(experts_param, alpha), "alpha", 1},
                                          {FIELD_FLOAT, offsetof(experts_param, limit), "limit", 1},
                                          {FIELD_INT, offsetof(experts_param, int8), "int8", 3},
                                          {FIELD_INT, offsetof(experts_param, bf16), "bf16", 3},
                                          {0}};

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
    if (!array_is_none(bias) &&
        (bias->dtype != GM_FLOAT32 || bias->ndim != 2 || bias->shape[0] != experts || bias->shape[1] != w->shape[1])) {
        array_text(bias, b);
        return gm_fail(GM_ESHAPE, "moe: the bias of %s is %s for %s", names[i], b, a);
    }
    return GM_OK;
}

static bool is_pairs(const gm_array *ids, int64_t rows) {
    return ids->dtype == GM_INT32 && ids->ndim == 2 && (rows < 0 || ids->shape[0] == rows) && ids->shape[1] > 0 &&
           ids->size <= INT32_MAX / 2;
}

static gm_status experts_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[IN_ROWS], *ids = in[IN_IDS], *weights = in[IN_WEIGHTS], *gate = in[IN_MATRICES];
    char text[3][128];
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || !is_pairs(ids, x->shape[0]) || weights->dtype != GM_FLOAT32 ||
        weights->ndim != 2 || weights->shape[0] != ids->shape[0] || weights->shape[1] != ids->shape[1]) {
        for (int i = 0; i < 3; i++)
            array_text(in[i], text[i]);
        return gm_fail(GM_ESHAPE,
                       "moe: got x %s, ids %s and weights %s, expected float32 [n, h], int32 [n, k], float32 "
                       "[n, k]",
                       text[0], text[1], text[2]);
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

static gm_status stack_of(gm_queue *q, const gm_array *node, int i, gm_matrix_stack *to) {
    const gm_array *w = node->in[IN_MATRICES + i], *bias = node->in[IN_BIASES + i];
    const experts_param *p = node->param;
    *to = (gm_matrix_stack){.data = array_ptr(w),
                            .format = w->format,
                            .form = p->int8[i]   ? GM_FORM_INT8
                                    : p->bf16[i] ? GM_FORM_BF16
                                                 : GM_FORM_F32};
    return array_is_none(bias) ? GM_OK : float_operand(q, bias, &to->bias);
}

static gm_status fill_args(gm_queue *q, const gm_array *node, gm_experts_args *a) {
    const experts_param *p = node->param;
    const gm_array *x = node->in[IN_ROWS], *ids = node->in[IN_IDS], *gate = node->in[IN_MATRICES];
    const void *id_data;
    *a = (gm_experts_args){.top_k = ids->shape[1],
                           .experts = gate->shape[0],
                           .dim = x->shape[1],
                           .inner = gate->shape[1],
                           .out_dim = node->in[IN_MATRICES + DOWN]->shape[1],
                           .act = (gm_glu_kind)p->act,
                           .alpha = p->alpha,
                           .limit = p->limit};
    GM_TRY(float_operand(q, x, &a->x));
    GM_TRY(float_operand(q, node->in[IN_WEIGHTS], &a->weights));
    GM_TRY(dense_operand(q, ids, &id_data));
    a->ids = id_data;
    GM_TRY(stack_of(q, node, GATE, &a->gate));
    GM_TRY(stack_of(q, node, UP, &a->up));
    return stack_of(q, node, DOWN, &a->down);
}

static gm_status experts_eval(gm_array *out, gm_queue *q) {
    gm_experts_args a;
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    GM_TRY(fill_args(q, out, &a));
    a.out = array_ptr(out);
    return DISPATCH_ARGS(q, experts, out->shape[0], &a);
}

/* ---- the gradient of rows and weights ---- */
static gm_status grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(experts_infer(in, n_in, param, &out[0]));
    GM_TRY(check_rows("moe_experts_grad", in[INPUTS], "the cotangent", out[0].shape[0], out[0].shape[1]));
    spec_like(&out[0], in[IN_ROWS], GM_FLOAT32);
    spec_like(&out[1], in[IN_WEIGHTS], GM_FLOAT32);
    return GM_OK;
}

static gm_status grad_eval(gm_array *out, gm_queue *q) {
    gm_experts_grad_args a;
    GM_TRY(array_alloc(out, q));
    GM_TRY(array_alloc(array_output(out, 1), q));
    if (out->shape[0] == 0)
        return GM_OK;
    GM_TRY(fill_args(q, out, &a.forward));
    GM_TRY(float_operand(q, out->in[INPUTS], &a.grad));
    a.dx = array_ptr(out);
    a.dweights = array_ptr(array_output(out, 1));
    return DISPATCH_ARGS(q, experts_grad, out->shape[0], &a);
}

const gm_op moe_experts_grad_op = {.name = "moe_experts_grad",
                                   .n_in = INPUTS + 1,
                                   .n_out = 2,
                                   .param_size = sizeof(experts_param),
                                   .fields = experts_fields,
                                   .infer = grad_infer,
                                   .eval = grad_eval,
                                   .optional = 7u << IN_BIASES,
                                   .work = GM_WORK_EXPERTS};

static void experts_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[INPUTS + 1], *found[2];
    memcpy(all, in, INPUTS * sizeof *all);
    all[INPUTS] = cots[0];
    if (array_nodes(s, &moe_experts_grad_op, all, INPUTS + 1, out->param, sizeof(experts_param), 2, found) != GM_OK)
        return;
    grad[IN_ROWS] = found[0];
    grad[IN_WEIGHTS] = found[1];
}

const gm_op moe_experts_op = {.name = "moe_experts",
                              .n_in = INPUTS,
                              .n_out = 1,
                              .nondiff = ~(1u << IN_ROWS | 1u << IN_WEIGHTS),
                              .param_size = sizeof(experts_param),
                              .fields = experts_fields,
                              .infer = experts_infer,
                              .eval = experts_eval,
                              .vjp = experts_vjp,
                              .optional = 7u << IN_BIASES,
                              .work = GM_WORK_EXPERTS};

gm_array *moe_experts(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, const expert_stacks *stacks,
                      gm_glu act) {
    gm_array *in[INPUTS] = {x, ids, weights};
    experts_param p;
    memset(&p, 0, sizeof p);
    p.act = (int32_t)act.kind;
    p.alpha = act.alpha;
    p.limit = act.limit;
    for (int i = 0; i < 3; i++) {
        in[IN_MATRICES + i] = stacks->matrices[i];
        in[IN_BIASES + i] = stacks->biases[i];
        p.int8[i] = stacks->int8[i];
        p.bf16[i] = stacks->bf16[i];
    }
    return array_node(s, &moe_experts_op, in, INPUTS, &p);
}
