/* rounded_loss.c - the cross entropy of rows whose logits are rounded products with a packed matrix, and with it what
 * it gives back to the rows: logits exist for few rows of the matrix at a time, of vocabularies that are large. */
#include "ops/products/packed.h"

typedef struct { float softcap; } rounded_loss_param;
static const gm_field fields[] = {{FIELD_FLOAT, offsetof(rounded_loss_param, softcap), "softcap", 1}, {0}};
/* lines: of each row its target's row of the matrix, whose memory the gradient takes; GM_NONE: the loss alone. */
enum { IN_X, IN_W, IN_BIAS, IN_TARGETS, IN_LINES, INPUTS };

static gm_status loss_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const op = "rounded_loss";
    const gm_array *x = in[IN_X], *w = in[IN_W], *bias = in[IN_BIAS], *targets = in[IN_TARGETS];
    (void)n_in;
    (void)param;
    GM_TRY(check_packed(op, w));
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || w->ndim != 2 || x->shape[1] != w->shape[1] ||
        targets->dtype != GM_INT32 || targets->ndim != 1 || targets->shape[0] != x->shape[0]) {
        char a[128], b[128], c[128];
        array_text(x, a);
        array_text(w, b);
        array_text(targets, c);
        return gm_fail(GM_ESHAPE,
                       "%s: x is %s, the weight %s and targets %s, expected float32 [n, k], packed [rows, k] and int32 "
                       "[n]",
                       op, a, b, c);
    }
    if (!array_is_none(bias) && (bias->dtype != GM_FLOAT32 || bias->ndim != 1 || bias->shape[0] != w->shape[0])) {
        char text[128];
        array_text(bias, text);
        return gm_fail(GM_ESHAPE, "%s: the bias is %s, expected float32(%lld)", op, text, (long long)w->shape[0]);
    }
    if (!array_is_none(in[IN_LINES]))
        GM_TRY(check_rows(op, in[IN_LINES], "the targets' rows", x->shape[0], x->shape[1]));
    spec_like(&out[0], targets, GM_FLOAT32);
    return GM_OK;
}

/* The gradient comes first: it is what takes the memory of the lines. */
static gm_status loss_grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(loss_infer(in, n_in, param, &out[1]));
    spec_like(&out[0], in[IN_X], GM_FLOAT32);
    return GM_OK;
}

static gm_status loss_eval(gm_array *out, gm_queue *q) {
    gm_array *const *in = out->in, *grad = out->n_extra ? out : NULL, *loss = grad ? array_output(out, 1) : out;
    const float *x, *bias = NULL, *lines = NULL;
    const void *targets;
    GM_TRY(float_operand(q, in[IN_X], &x));
    GM_TRY(dense_operand(q, in[IN_TARGETS], &targets));
    if (!array_is_none(in[IN_BIAS]))
        GM_TRY(float_operand(q, in[IN_BIAS], &bias));
    GM_TRY(array_alloc(loss, q));
    if (grad) {
        GM_TRY(float_operand(q, in[IN_LINES], &lines));
        GM_TRY(array_alloc_like(grad, q, IN_LINES));
    }
    return DISPATCH(q, rounded_loss, loss->shape[0], .loss = array_ptr(loss), .grad = grad ? array_ptr(grad) : NULL,
                    .x = x, .lines = lines, .weight = matrix_of(in[IN_W]), .bias = bias, .targets = targets,
                    .softcap = ((const rounded_loss_param *)out->param)->softcap);
}

#define ROUNDED_LOSS(title, outputs, infers)                                                                           \
    {.name = title,                                                                                                    \
     .n_in = INPUTS,                                                                                                   \
     .n_out = outputs,                                                                                                 \
     .nondiff = (1u << INPUTS) - 1,                                                                                    \
     .optional = 1u << IN_BIAS | 1u << IN_LINES,                                                                       \
     .param_size = sizeof(rounded_loss_param),                                                                         \
     .fields = fields,                                                                                                 \
     .infer = infers,                                                                                                  \
     .eval = loss_eval}
const gm_op rounded_loss_op = ROUNDED_LOSS("rounded_loss", 1, loss_infer);
const gm_op rounded_loss_grad_op = ROUNDED_LOSS("rounded_loss_grad", 2, loss_grad_infer);

gm_array *gm_rounded_loss(gm_scope *s, const gm_rounded_loss_inputs *given, float softcap, bool gradient) {
    gm_array *in[INPUTS] = {given->x, given->weight, given->bias, given->targets, GM_NONE}, *outs[2];
    const rounded_loss_param p = {softcap};
    if (!gradient)
        return array_node(s, &rounded_loss_op, in, INPUTS, &p);
    in[IN_LINES] = gm_packed_embedding(s, given->weight, given->targets, 1);
    if (array_nodes(s, &rounded_loss_grad_op, in, INPUTS, &p, sizeof p, 2, outs) != GM_OK)
        return NULL;
    return gm_with_gradient(s, outs[1], given->x, outs[0]);
}
