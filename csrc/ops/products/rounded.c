/* rounded.c - products with packed matrices of any format in which both factors are rounded to bfloat16 and sums are
 * float32, forwards and backwards: what training in bfloat16 is made of. Rounding counts as nothing in the gradient. */
#include "ops/products/packed.h"

/* turned: x @ weight.T + bias + residual; else x @ weight, whose bias and residual are none. */
typedef struct { int32_t turned; } rounded_param;
static const gm_field fields[] = {{FIELD_INT, offsetof(rounded_param, turned), "turned", 1}, {0}};
enum { IN_X, IN_W, IN_BIAS, IN_RESIDUAL, INPUTS };

static gm_status check_added(const gm_array *a, const char *name, int ndim, int64_t rows, int64_t columns) {
    char text[128];
    if (array_is_none(a) || (a->dtype == GM_FLOAT32 && a->ndim == ndim && a->shape[ndim - 1] == columns &&
                             (ndim == 1 || a->shape[0] == rows)))
        return GM_OK;
    array_text(a, text);
    return gm_fail(GM_ESHAPE, "rounded_matmul: %s is %s for a product of %lld by %lld", name, text, (long long)rows,
                   (long long)columns);
}

static gm_status rounded_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const bool turned = ((const rounded_param *)param)->turned != 0;
    const gm_array *x = in[IN_X], *w = in[IN_W];
    (void)n_in;
    GM_TRY(check_packed("rounded_matmul", w));
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || w->ndim != 2 || x->shape[1] != w->shape[turned ? 1 : 0]) {
        char a[128], b[128];
        array_text(x, a);
        array_text(w, b);
        return gm_fail(GM_ESHAPE, "rounded_matmul: x is %s and weight %s, expected float32 [n, k] of the weight's %s",
                       a, b, turned ? "columns" : "rows");
    }
    spec_like(out, x, GM_FLOAT32);
    out->shape[1] = w->shape[turned ? 0 : 1];
    GM_TRY(check_added(in[IN_BIAS], "bias", 1, x->shape[0], out->shape[1]));
    return check_added(in[IN_RESIDUAL], "residual", 2, x->shape[0], out->shape[1]);
}

static gm_status rounded_eval(gm_array *out, gm_queue *q) {
    gm_array *const *in = out->in;
    const float *x, *bias = NULL, *residual = NULL;
    GM_TRY(float_operand(q, in[IN_X], &x));
    if (!array_is_none(in[IN_BIAS]))
        GM_TRY(float_operand(q, in[IN_BIAS], &bias));
    if (!array_is_none(in[IN_RESIDUAL]))
        GM_TRY(float_operand(q, in[IN_RESIDUAL], &residual));
    GM_TRY(residual ? array_alloc_like(out, q, IN_RESIDUAL) : array_alloc(out, q));
    return DISPATCH(q, rounded_matmul, out->shape[0], .out = array_ptr(out), .x = x, .weight = matrix_of(in[IN_W]),
                    .turned = ((const rounded_param *)out->param)->turned != 0, .bias = bias, .residual = residual);
}

static gm_array *rounded_node(gm_scope *s, gm_array *const in[INPUTS], bool turned);

static void rounded_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    const bool turned = ((const rounded_param *)out->param)->turned != 0;
    grad[IN_X] = rounded_node(s, (gm_array *[INPUTS]){cots[0], in[IN_W], GM_NONE, GM_NONE}, !turned);
    if (!array_is_none(in[IN_BIAS]))
        grad[IN_BIAS] = gm_sum(s, cots[0], 1, (int[]){0}, false);
    if (!array_is_none(in[IN_RESIDUAL]))
        grad[IN_RESIDUAL] = cots[0];
}

const gm_op rounded_matmul_op = {.name = "rounded_matmul",
                                 .n_in = INPUTS,
                                 .n_out = 1,
                                 .nondiff = 1u << IN_W,
                                 .param_size = sizeof(rounded_param),
                                 .fields = fields,
                                 .infer = rounded_infer,
                                 .eval = rounded_eval,
                                 .vjp = rounded_vjp};

static gm_array *rounded_node(gm_scope *s, gm_array *const in[INPUTS], bool turned) {
    return array_node(s, &rounded_matmul_op, in, INPUTS, &(rounded_param){turned});
}

gm_array *gm_rounded_matmul(gm_scope *s, gm_array *x, gm_array *weight, gm_array *bias, gm_array *residual) {
    return rounded_node(s, (gm_array *[INPUTS]){x, weight, bias, residual}, true);
}

gm_array *gm_rounded_matmul_columns(gm_scope *s, gm_array *x, gm_array *weight) {
    return rounded_node(s, (gm_array *[INPUTS]){x, weight, GM_NONE, GM_NONE}, false);
}
