/* rounded_linear.c - a frozen packed matrix with a trained low-rank term beside it, all factors rounded to bfloat16 and
 * sums float32: x @ W.T + low @ B.T, low = scale * x @ A.T. The term is one more tile of each sum, so that nothing of
 * the size of the product is read or written for it; low is the second output, which the gradient of B reads. */
#include "ops/layers/sequence_linear.h"
#include "ops/products/packed.h"

typedef struct { float scale; } term_param;
static const gm_field fields[] = {{FIELD_FLOAT, offsetof(term_param, scale), "scale", 1}, {0}};
enum { IN_X, IN_W, IN_A, IN_B, TERM_INPUTS, IN_BIAS = TERM_INPUTS, IN_RESIDUAL, IN_STARTS, IN_SUM_A, IN_SUM_B, INPUTS };
enum { IN_SO_FAR = TERM_INPUTS, BACK_INPUTS };

static bool is_floats(const gm_array *a, int64_t rows, int64_t columns) {
    return a->dtype == GM_FLOAT32 && a->ndim == 2 && a->shape[0] == rows && a->shape[1] == columns;
}

/* turned: x has the columns of W, else its rows. */
static gm_status term_infer(gm_array *const *in, bool turned, gm_spec *out) {
    const gm_array *x = in[IN_X], *w = in[IN_W], *a = in[IN_A], *b = in[IN_B];
    GM_TRY(check_packed("rounded_linear", w));
    const int64_t rank = a->ndim == 2 ? a->shape[0] : 0;
    if (w->ndim != 2 || x->ndim != 2 || !is_floats(x, x->shape[0], w->shape[turned ? 1 : 0]) ||
        !is_floats(a, rank, w->shape[1]) || !is_floats(b, w->shape[0], rank) || rank < 1 || rank > GM_ROUNDED_RANK) {
        char texts[TERM_INPUTS][128];
        for (int i = 0; i < TERM_INPUTS; i++)
            array_text(in[i], texts[i]);
        return gm_fail(GM_ESHAPE,
                       "rounded_linear: x is %s, the weight %s, a %s and b %s, expected float32 [n, k], packed [rows, "
                       "k], float32 [rank, k] and [rows, rank] of rank 1 to %d",
                       texts[IN_X], texts[IN_W], texts[IN_A], texts[IN_B], GM_ROUNDED_RANK);
    }
    spec_like(&out[0], x, GM_FLOAT32);
    out[0].shape[1] = w->shape[turned ? 0 : 1];
    spec_like(&out[1], x, GM_FLOAT32);
    out[1].shape[1] = rank;
    return GM_OK;
}

/* residual: the input that is added. */
static gm_status term_eval(gm_array *out, gm_queue *q, bool turned, const float *bias, int residual) {
    gm_array *const *in = out->in, *low = array_output(out, 1);
    const float *x, *a, *b, *added = NULL;
    GM_TRY(float_operand(q, in[IN_X], &x));
    GM_TRY(float_operand(q, in[IN_A], &a));
    GM_TRY(float_operand(q, in[IN_B], &b));
    if (!array_is_none(in[residual]))
        GM_TRY(float_operand(q, in[residual], &added));
    GM_TRY(array_alloc(low, q));
    GM_TRY(added ? array_alloc_like(out, q, residual) : array_alloc(out, q));
    return DISPATCH(q, rounded_matmul, out->shape[0], .out = array_ptr(out), .x = x, .weight = matrix_of(in[IN_W]),
                    .turned = turned, .bias = bias, .residual = added, .rank = low->shape[1], .down = turned ? a : b,
                    .up = turned ? b : a, .scale = ((const term_param *)out->param)->scale, .low = array_ptr(low));
}

/* ---- backwards: what x has got so far + cot @ W + low @ A, low = scale * cot @ B ---- */
static gm_status back_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    GM_TRY(term_infer(in, false, out));
    if (array_is_none(in[IN_SO_FAR]))
        return GM_OK;
    return check_rows("rounded_linear", in[IN_SO_FAR], "the cotangent so far", out->shape[0], out->shape[1]);
}
static gm_status back_eval(gm_array *out, gm_queue *q) { return term_eval(out, q, false, NULL, IN_SO_FAR); }

const gm_op rounded_linear_back_op = {.name = "rounded_linear_back",
                                      .n_in = BACK_INPUTS,
                                      .n_out = 2,
                                      .optional = 1u << IN_SO_FAR,
                                      .param_size = sizeof(term_param),
                                      .fields = fields,
                                      .infer = back_infer,
                                      .eval = back_eval};

/* ---- forwards ---- */
static gm_status linear_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "rounded_linear";
    const gm_array *bias = in[IN_BIAS];
    (void)n_in;
    (void)param;
    GM_TRY(term_infer(in, true, out));
    const int64_t n = out->shape[0], width = out->shape[1];
    if (!array_is_none(bias) && (bias->dtype != GM_FLOAT32 || bias->ndim != 1 || bias->shape[0] != width)) {
        char text[128];
        array_text(bias, text);
        return gm_fail(GM_ESHAPE, "%s: the bias is %s, expected float32(%lld)", op, text, (long long)width);
    }
    if (!array_is_none(in[IN_RESIDUAL]))
        GM_TRY(check_rows(op, in[IN_RESIDUAL], "the residual", n, width));
    for (int i = 0; i < 2; i++)
        if (!array_is_none(in[IN_SUM_A + i]))
            GM_TRY(check_rows(op, in[IN_SUM_A + i], "the gradient so far", in[IN_A + i]->shape[0],
                              in[IN_A + i]->shape[1]));
    return check_starts(op, in[IN_STARTS]);
}

static gm_status linear_eval(gm_array *out, gm_queue *q) {
    const float *bias = NULL;
    if (!array_is_none(out->in[IN_BIAS]))
        GM_TRY(float_operand(q, out->in[IN_BIAS], &bias));
    return term_eval(out, q, true, bias, IN_RESIDUAL);
}

/* ---- low alone: what the gradient reads ---- */
static gm_status low_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    gm_spec both[2];
    GM_TRY(linear_infer(in, n_in, param, both));
    *out = both[1];
    return GM_OK;
}

static gm_status low_eval(gm_array *out, gm_queue *q) {
    gm_array *const *in = out->in;
    const float *x, *a;
    GM_TRY(float_operand(q, in[IN_X], &x));
    GM_TRY(float_operand(q, in[IN_A], &a));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, rounded_matmul, out->shape[0], .x = x, .weight = matrix_of(in[IN_W]), .turned = true,
                    .rank = out->shape[1], .down = a, .scale = ((const term_param *)out->param)->scale,
                    .low = array_ptr(out));
}

const gm_op rounded_linear_low_op = {.name = "rounded_linear_low",
                                     .n_in = INPUTS,
                                     .n_out = 1,
                                     .optional = 1u << IN_BIAS | 1u << IN_RESIDUAL | 1u << IN_SUM_A | 1u << IN_SUM_B,
                                     .param_size = sizeof(term_param),
                                     .fields = fields,
                                     .infer = low_infer,
                                     .eval = low_eval};

static void linear_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *so_far = grad[IN_X] ? grad[IN_X] : GM_NONE, *found[2];
    gm_array *back[BACK_INPUTS] = {cots[0], in[IN_W], in[IN_A], in[IN_B], so_far};
    if (!cots[0] ||
        array_nodes(s, &rounded_linear_back_op, back, BACK_INPUTS, out->param, sizeof(term_param), 2, found) != GM_OK)
        return;
    gm_array *low = out->op == &rounded_linear_low_op ? out : array_pick(s, out, 1);
    grad[IN_X] = found[0];
    grad[IN_A] = sequence_matrix_gradient(s, found[1], in[IN_X], in[IN_STARTS], in[IN_SUM_A], true);
    grad[IN_B] = sequence_matrix_gradient(s, cots[0], low, in[IN_STARTS], in[IN_SUM_B], true);
    if (!array_is_none(in[IN_BIAS]))
        grad[IN_BIAS] = gm_sum(s, cots[0], 1, (int[]){0}, false);
    if (!array_is_none(in[IN_RESIDUAL]))
        grad[IN_RESIDUAL] = cots[0];
}

const gm_op rounded_linear_op = {.name = "rounded_linear",
                                 .n_in = INPUTS,
                                 .n_out = 2,
                                 .nondiff = 1u << IN_W | 1u << IN_STARTS | 1u << IN_SUM_A | 1u << IN_SUM_B,
                                 .constant = true,
                                 .optional = 1u << IN_BIAS | 1u << IN_RESIDUAL | 1u << IN_SUM_A | 1u << IN_SUM_B,
                                 .param_size = sizeof(term_param),
                                 .fields = fields,
                                 .infer = linear_infer,
                                 .eval = linear_eval,
                                 .vjp = linear_vjp,
                                 .adds = 1u << IN_X,
                                 .for_vjp = &rounded_linear_low_op};

gm_array *gm_rounded_linear(gm_scope *s, const gm_rounded_inputs *given, float scale) {
    gm_array *in[INPUTS] = {given->x,        given->weight, given->a,     given->b,    given->bias,
                            given->residual, given->starts, given->sum_a, given->sum_b},
             *outs[2];
    const term_param p = {scale};
    return array_nodes(s, &rounded_linear_op, in, INPUTS, &p, sizeof p, 2, outs) == GM_OK ? outs[0] : NULL;
}
