/* sequence_attention.c - attention of the rows of sequences over their own rows, which has a gradient: what training
 * does where decoders attend to caches. Memory is proportional to the rows: backwards the weights are computed again
 * from the logarithm of each row's sum, the second output. */
#include <string.h>
#include "ops/ops.h"

typedef struct {
    int32_t n_heads, n_kv_heads, head_dim, window, rounded;
    float scale, softcap;
} attention_param;
#define PARAM_FIELD(kind, name) {kind, offsetof(attention_param, name), #name, 1}
static const gm_field fields[] = {PARAM_FIELD(FIELD_INT, n_heads),   PARAM_FIELD(FIELD_INT, n_kv_heads),
                                  PARAM_FIELD(FIELD_INT, head_dim),  PARAM_FIELD(FIELD_INT, window),
                                  PARAM_FIELD(FIELD_INT, rounded),   PARAM_FIELD(FIELD_FLOAT, scale),
                                  PARAM_FIELD(FIELD_FLOAT, softcap), {0}};
enum { IN_Q, IN_K, IN_V, IN_STARTS, IN_SINKS, INPUTS };
enum { IN_OUT = INPUTS, IN_LSE, IN_GRAD, GRAD_INPUTS };

static gm_status check_inputs(gm_array *const *in, const attention_param *p) {
    const int64_t n = in[IN_Q]->ndim == 2 ? in[IN_Q]->shape[0] : -1, width = (int64_t)p->n_heads * p->head_dim;
    const gm_array *sinks = in[IN_SINKS];
    char text[128];
    GM_TRY(check_rows("sequence_attention", in[IN_Q], "q", n, width));
    GM_TRY(check_rows("sequence_attention", in[IN_K], "k", n, (int64_t)p->n_kv_heads * p->head_dim));
    GM_TRY(check_rows("sequence_attention", in[IN_V], "v", n, (int64_t)p->n_kv_heads * p->head_dim));
    GM_TRY(check_starts("sequence_attention", in[IN_STARTS]));
    array_text(sinks, text);
    if (!array_is_none(sinks) && (sinks->dtype != GM_FLOAT32 || sinks->ndim != 1 || sinks->shape[0] != p->n_heads))
        return gm_fail(GM_ESHAPE, "sequence_attention: sinks are %s, expected float32(%d)", text, p->n_heads);
    return GM_OK;
}

static gm_status attention_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const attention_param *p = param;
    (void)n_in;
    GM_TRY(check_inputs(in, p));
    spec_like(&out[0], in[IN_Q], GM_FLOAT32);
    spec_like(&out[1], in[IN_Q], GM_FLOAT32);
    out[1].shape[1] = p->n_heads;
    return GM_OK;
}

static gm_status fill_args(gm_queue *q, gm_array *const *in, const attention_param *p, gm_sequence_attention_args *a) {
    const void *starts;
    *a = (gm_sequence_attention_args){.n = in[IN_Q]->shape[0],
                                      .sequences = in[IN_STARTS]->shape[0] - 1,
                                      .n_heads = p->n_heads,
                                      .n_kv_heads = p->n_kv_heads,
                                      .dim = p->head_dim,
                                      .window = p->window,
                                      .scale = p->scale,
                                      .softcap = p->softcap,
                                      .rounded = p->rounded != 0};
    GM_TRY(float_operand(q, in[IN_Q], &a->q));
    GM_TRY(float_operand(q, in[IN_K], &a->k));
    GM_TRY(float_operand(q, in[IN_V], &a->v));
    GM_TRY(dense_operand(q, in[IN_STARTS], &starts));
    a->starts = starts;
    return array_is_none(in[IN_SINKS]) ? GM_OK : float_operand(q, in[IN_SINKS], &a->sinks);
}

static gm_status attention_eval(gm_array *out, gm_queue *q) {
    gm_sequence_attention_args a;
    GM_TRY(fill_args(q, out->in, out->param, &a));
    GM_TRY(array_alloc(out, q));
    GM_TRY(array_alloc(array_output(out, 1), q));
    a.out = array_ptr(out);
    a.lse = array_ptr(array_output(out, 1));
    return DISPATCH_ARGS(q, sequence_attention, a.n, &a);
}

/* ---- the gradient ---- */
static gm_status grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const attention_param *p = param;
    (void)n_in;
    GM_TRY(check_inputs(in, p));
    const int64_t n = in[IN_Q]->shape[0], width = in[IN_Q]->shape[1];
    GM_TRY(check_rows("sequence_attention", in[IN_OUT], "out", n, width));
    GM_TRY(check_rows("sequence_attention", in[IN_LSE], "lse", n, p->n_heads));
    GM_TRY(check_rows("sequence_attention", in[IN_GRAD], "the cotangent", n, width));
    for (int i = 0; i < 3; i++)
        spec_like(&out[i], in[i], GM_FLOAT32);
    return GM_OK;
}

static gm_status grad_eval(gm_array *out, gm_queue *q) {
    gm_sequence_attention_grad_args g;
    const float *given[3];
    GM_TRY(fill_args(q, out->in, out->param, &g.forward));
    for (int i = 0; i < 3; i++) {
        GM_TRY(float_operand(q, out->in[IN_OUT + i], &given[i]));
        GM_TRY(array_alloc(array_output(out, i), q));
    }
    g.forward.out = (float *)given[0];
    g.forward.lse = (float *)given[1];
    g.grad = given[2];
    g.dq = array_ptr(out);
    g.dk = array_ptr(array_output(out, 1));
    g.dv = array_ptr(array_output(out, 2));
    return DISPATCH_ARGS(q, sequence_attention_grad, g.forward.n, &g);
}

const gm_op sequence_attention_grad_op = {.name = "sequence_attention_grad",
                                          .n_in = GRAD_INPUTS,
                                          .n_out = 3,
                                          .optional = 1u << IN_SINKS,
                                          .param_size = sizeof(attention_param),
                                          .fields = fields,
                                          .infer = grad_infer,
                                          .eval = grad_eval,
                                          .work = GM_WORK_ATTENTION};

/* A sink takes its share exp(sink - lse) of each row, and gives nothing: d sink = -sum(share * (cotangent . out)). */
static gm_array *sink_cotangent(gm_scope *s, gm_array *sinks, gm_array *out, gm_array *lse, gm_array *cotangent,
                                const attention_param *p) {
    const int64_t shape[3] = {out->shape[0], p->n_heads, p->head_dim};
    gm_array *dot = gm_sum(s, gm_reshape(s, gm_multiply(s, out, cotangent), 3, shape), 1, (int[]){-1}, false);
    gm_array *share = gm_exp(s, gm_subtract(s, sinks, lse));
    return gm_negative(s, gm_sum(s, gm_multiply(s, share, dot), 1, (int[]){0}, false));
}

static void attention_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[GRAD_INPUTS], *found[3];
    if (!cots[0])
        return;
    memcpy(all, in, INPUTS * sizeof *all);
    all[IN_OUT] = out;
    all[IN_LSE] = array_pick(s, out, 1);
    all[IN_GRAD] = cots[0];
    if (array_nodes(s, &sequence_attention_grad_op, all, GRAD_INPUTS, out->param, sizeof(attention_param), 3, found) !=
        GM_OK)
        return;
    memcpy(grad, found, sizeof found);
    if (!array_is_none(in[IN_SINKS]))
        grad[IN_SINKS] = sink_cotangent(s, in[IN_SINKS], all[IN_OUT], all[IN_LSE], cots[0], out->param);
}

const gm_op sequence_attention_op = {.name = "sequence_attention",
                                     .n_in = INPUTS,
                                     .n_out = 2,
                                     .nondiff = 1u << IN_STARTS,
                                     .optional = 1u << IN_SINKS,
                                     .param_size = sizeof(attention_param),
                                     .fields = fields,
                                     .infer = attention_infer,
                                     .eval = attention_eval,
                                     .vjp = attention_vjp,
                                     .work = GM_WORK_ATTENTION};

gm_array *gm_sequence_attention(gm_scope *s, const gm_attention_inputs *given, gm_array *starts,
                                const gm_attention_spec *spec) {
    gm_array *in[INPUTS] = {given->q, given->k, given->v, starts, given->sinks}, *outs[2];
    if (spec->n_kv_heads < 1 || spec->n_heads < 1 || spec->n_heads % spec->n_kv_heads || spec->head_dim < 1 ||
        spec->head_dim > GM_SEQUENCE_DIM)
        return gm_fail(GM_EVALUE,
                       "sequence_attention: %d heads of %d over %d key/value heads, expected a multiple of "
                       "those, of at most %d",
                       spec->n_heads, spec->head_dim, spec->n_kv_heads, GM_SEQUENCE_DIM),
               NULL;
    const attention_param p = {.n_heads = spec->n_heads,
                               .n_kv_heads = spec->n_kv_heads,
                               .head_dim = spec->head_dim,
                               .window = spec->window,
                               .scale = spec->scale,
                               .softcap = spec->softcap,
                               .rounded = spec->rounded};
    return array_nodes(s, &sequence_attention_op, in, INPUTS, &p, sizeof p, 2, outs) == GM_OK ? outs[0] : NULL;
}
