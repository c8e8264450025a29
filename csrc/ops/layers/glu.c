/* glu.c - gated linear units, act(gate) * up, and soft caps: what decoders put between products.
 * Source: Shazeer, GLU Variants Improve Transformer, 2020. */
#include <string.h>
#include "ops/ops.h"

typedef struct {
    int32_t kind; /* gm_glu_kind */
    float alpha, limit;
} glu_param;
static const gm_field glu_fields[] = {{FIELD_INT, offsetof(glu_param, kind), "kind", 1},
                                      {FIELD_FLOAT, offsetof(glu_param, alpha), "alpha", 1},
                                      {FIELD_FLOAT, offsetof(glu_param, limit), "limit", 1},
                                      {0}};

static const char *title(const void *param) {
    static const char *const names[] = {
        [GM_GLU_SILU] = "swiglu", [GM_GLU_GELU] = "geglu", [GM_GLU_CLAMPED] = "clamped_swiglu"};
    return names[((const glu_param *)param)->kind];
}

static gm_status glu_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *gate = in[0], *up = in[1];
    if (gate->dtype != GM_FLOAT32 || up->dtype != GM_FLOAT32 || gate->ndim != 2 || up->ndim != 2 ||
        gate->shape[0] != up->shape[0] || gate->shape[1] != up->shape[1]) {
        char a[128], b[128];
        array_text(gate, a);
        array_text(up, b);
        return gm_fail(GM_ESHAPE, "%s: got %s and %s, expected two float32 [n, k]", title(param), a, b);
    }
    spec_like(out, gate, GM_FLOAT32);
    return GM_OK;
}

static gm_status glu_eval(gm_array *out, gm_queue *q) {
    const glu_param *p = out->param;
    int64_t dim = out->shape[1];
    const float *gate, *up;
    GM_TRY(float_operand(q, out->in[0], &gate));
    GM_TRY(float_operand(q, out->in[1], &up));
    GM_TRY(array_alloc_like(out, q, 0));
    return DISPATCH(q, glu, out->shape[0], .out = array_ptr(out), .gate = gate, .up = up, .dim = dim,
                    .gate_stride = dim, .up_stride = dim, .kind = (gm_glu_kind)p->kind, .alpha = p->alpha,
                    .limit = p->limit);
}

static gm_array *times(gm_scope *s, gm_array *x, double factor) {
    return gm_multiply(s, x, scalar_array(s, factor, GM_FLOAT32));
}

static gm_array *glu_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    const glu_param *p = param;
    gm_array *gate = in[0], *up = in[1], *inner = gate;
    if (p->kind == GM_GLU_GELU) { /* x / 2 * (1 + tanh(u)) = x * sigmoid(2 u) */
        gm_array *cube = gm_multiply(s, gm_square(s, gate), gate);
        inner = times(s, gm_add(s, gate, times(s, cube, 0.044715)), 1.5957691216057308); /* 2 sqrt(2 / pi) */
    } else if (p->kind == GM_GLU_CLAMPED) {
        gm_array *limit = scalar_array(s, p->limit, GM_FLOAT32);
        gate = gm_minimum(s, gate, limit);
        up = gm_clip(s, up, gm_negative(s, limit), limit);
        up = gm_add(s, up, scalar_array(s, 1, GM_FLOAT32));
        inner = times(s, gate, p->alpha);
    }
    return gm_multiply(s, gm_multiply(s, gate, gm_sigmoid(s, inner)), up);
}

/* ---- the gradient: what the gate gets and what the other operand gets, in the memory of inputs where it is free ----
 */
enum { GRAD_GATE, GRAD_UP, GRAD_COTANGENT, GRAD_INPUTS };

static gm_status grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(glu_infer(in, n_in, param, &out[0]));
    return glu_infer((gm_array *[]){in[GRAD_GATE], in[GRAD_COTANGENT]}, 2, param, &out[1]);
}

static gm_status grad_eval(gm_array *out, gm_queue *q) {
    const glu_param *p = out->param;
    gm_array *dup = array_output(out, 1);
    const float *in[GRAD_INPUTS];
    for (int i = 0; i < GRAD_INPUTS; i++)
        GM_TRY(float_operand(q, out->in[i], &in[i]));
    GM_TRY(array_alloc_like(out, q, GRAD_GATE));
    GM_TRY(array_alloc_from(dup, q, out->in[GRAD_COTANGENT]));
    return DISPATCH(q, glu_grad, out->size, .dgate = array_ptr(out), .dup = array_ptr(dup), .gate = in[GRAD_GATE],
                    .up = in[GRAD_UP], .grad = in[GRAD_COTANGENT], .kind = (gm_glu_kind)p->kind, .alpha = p->alpha,
                    .limit = p->limit);
}

const gm_op glu_grad_op = {.name = "glu_grad",
                           .n_in = GRAD_INPUTS,
                           .n_out = 2,
                           .param_size = sizeof(glu_param),
                           .fields = glu_fields,
                           .infer = grad_infer,
                           .eval = grad_eval};

static void glu_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[GRAD_INPUTS] = {in[0], in[1], cots[0]}, *both[2];
    if (array_nodes(s, &glu_grad_op, all, GRAD_INPUTS, out->param, sizeof(glu_param), 2, both) == GM_OK)
        memcpy(grad, both, sizeof both);
}

static gm_array *glu(gm_scope *s, gm_array *gate, gm_array *up, gm_glu_kind kind, float alpha, float limit) {
    gm_array *in[2] = {gate, up};
    return array_node(s, &glu_op, in, 2, &(glu_param){(int32_t)kind, alpha, limit});
}

static gm_status glu_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    const glu_param *p = param;
    (void)n_in;
    (void)n_out;
    if (!within(p->kind, GM_GLU_CLAMPED + 1))
        return rebuild_refuse("glu");
    return rebuilt(glu(s, in[0], in[1], (gm_glu_kind)p->kind, p->alpha, p->limit), outs);
}

const gm_op glu_op = {.name = "glu",
                      .n_in = 2,
                      .n_out = 1,
                      .param_size = sizeof(glu_param),
                      .fields = glu_fields,
                      .infer = glu_infer,
                      .eval = glu_eval,
                      .vjp = glu_vjp,
                      .again = AGAIN_ALWAYS,
                      .compose = glu_compose,
                      .rebuild = glu_rebuild,
                      .title = title};

gm_array *gm_swiglu(gm_scope *s, gm_array *gate, gm_array *up) { return glu(s, gate, up, GM_GLU_SILU, 0, 0); }
gm_array *gm_geglu(gm_scope *s, gm_array *gate, gm_array *up) { return glu(s, gate, up, GM_GLU_GELU, 0, 0); }
gm_array *gm_clamped_swiglu(gm_scope *s, gm_array *gate, gm_array *up, float alpha, float limit) {
    if (!(limit >= 0))
        return gm_fail(GM_EVALUE, "clamped_swiglu: limit is %g, expected 0 or more", (double)limit), NULL;
    return glu(s, gate, up, GM_GLU_CLAMPED, alpha, limit);
}

/* ---- soft cap. Source: Bello et al., Neural Combinatorial Optimization, 2016. ---- */
typedef struct { float cap; } softcap_param;
static const gm_field softcap_fields[] = {{FIELD_FLOAT, offsetof(softcap_param, cap), "cap", 1}, {0}};

static gm_status softcap_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    if (in[0]->dtype != GM_FLOAT32) {
        char text[128];
        array_text(in[0], text);
        return gm_fail(GM_EVALUE, "softcap: got %s, expected float32", text);
    }
    spec_like(out, in[0], GM_FLOAT32);
    return GM_OK;
}

static gm_status softcap_eval(gm_array *out, gm_queue *q) {
    const float *x;
    GM_TRY(float_operand(q, out->in[0], &x));
    GM_TRY(array_alloc_like(out, q, 0));
    return DISPATCH(q, softcap, out->size, .out = array_ptr(out), .x = x,
                    .cap = ((const softcap_param *)out->param)->cap);
}

static gm_array *softcap_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    gm_array *cap = scalar_array(s, ((const softcap_param *)param)->cap, GM_FLOAT32);
    return gm_multiply(s, gm_tanh(s, gm_divide(s, in[0], cap)), cap);
}

static gm_status softcap_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(gm_softcap(s, in[0], ((const softcap_param *)param)->cap), outs);
}

const gm_op softcap_op = {.name = "softcap",
                          .n_in = 1,
                          .n_out = 1,
                          .param_size = sizeof(softcap_param),
                          .fields = softcap_fields,
                          .infer = softcap_infer,
                          .eval = softcap_eval,
                          .compose = softcap_compose,
                          .rebuild = softcap_rebuild};

gm_array *gm_softcap(gm_scope *s, gm_array *x, float cap) {
    if (!(cap > 0))
        return gm_fail(GM_EVALUE, "softcap: cap is %g, expected more than 0", (double)cap), NULL;
    return array_node(s, &softcap_op, &x, 1, &(softcap_param){cap});
}
