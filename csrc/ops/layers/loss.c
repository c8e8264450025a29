/* loss.c - losses over logits. */
#include <string.h>
#include "ops/ops.h"

/* x less the largest of its row, so that nothing is lost where the target is taken from the logarithm of a large sum.
 * One that is infinite stays: its row's loss is then infinite or NaN by itself. */
static gm_array *centred(gm_scope *s, gm_array *x) {
    gm_array *top = gm_stop_gradient(s, gm_max(s, x, 1, (int[]){-1}, true));
    top = gm_where(s, gm_isfinite(s, top), top, scalar_array(s, 0, GM_FLOAT32));
    return gm_subtract(s, x, top);
}

/* logsumexp(logits) - logits[target], in float32. */
gm_array *gm_cross_entropy(gm_scope *s, gm_array *logits, gm_array *targets) {
    if (!logits || !targets)
        return NULL;
    bool fits = logits->ndim == targets->ndim + 1;
    for (int d = 0; d < targets->ndim && fits; d++)
        fits = logits->shape[d] == targets->shape[d];
    if (!fits) {
        char a[128], b[128];
        array_text(targets, a);
        array_text(logits, b);
        return gm_fail(GM_ESHAPE, "cross_entropy: targets %s do not have the shape of logits %s without the last axis",
                       a, b),
               NULL;
    }
    if (!dtype_is_integer((gm_dtype)targets->dtype))
        return gm_fail(GM_EVALUE, "cross_entropy: targets are %s, expected class numbers of an integer dtype",
                       gm_dtype_name((gm_dtype)targets->dtype)),
               NULL;
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, targets->shape, (size_t)targets->ndim * sizeof *shape);
    shape[targets->ndim] = 1;
    gm_array *x = centred(s, gm_astype(s, logits, GM_FLOAT32));
    gm_array *index = gm_reshape(s, targets, logits->ndim, shape);
    gm_array *chosen = gm_reshape(s, gm_take_along_axis(s, x, index, logits->ndim - 1), targets->ndim, targets->shape);
    return gm_subtract(s, gm_logsumexp(s, x, 1, (int[]){-1}, false), chosen);
}

/* ---- the loss of rows of logits, and with it what it gives back to them, which takes their memory ---- */
typedef struct { float softcap; } row_loss_param;
static const gm_field row_loss_fields[] = {{FIELD_FLOAT, offsetof(row_loss_param, softcap), "softcap", 1}, {0}};

static gm_status row_loss_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *logits = in[0], *targets = in[1];
    (void)n_in;
    (void)param;
    if (logits->dtype != GM_FLOAT32 || logits->ndim != 2 || targets->dtype != GM_INT32 || targets->ndim != 1 ||
        targets->shape[0] != logits->shape[0]) {
        char a[128], b[128];
        array_text(logits, a);
        array_text(targets, b);
        return gm_fail(GM_ESHAPE, "row_loss: logits are %s and targets %s, expected float32 [n, k] and int32 [n]", a,
                       b);
    }
    spec_like(out, targets, GM_FLOAT32);
    return GM_OK;
}

/* The gradient comes first: it is what takes the memory of the logits. */
static gm_status row_loss_grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(row_loss_infer(in, n_in, param, &out[1]));
    spec_like(&out[0], in[0], GM_FLOAT32);
    return GM_OK;
}

static gm_status row_loss_eval(gm_array *out, gm_queue *q) {
    gm_array *grad = out->n_extra ? out : NULL, *loss = grad ? array_output(out, 1) : out;
    const gm_array *in = out->in[0];
    const float *logits;
    const void *targets;
    GM_TRY(float_operand(q, in, &logits));
    GM_TRY(dense_operand(q, out->in[1], &targets));
    GM_TRY(array_alloc(loss, q));
    if (grad)
        GM_TRY(array_alloc_like(grad, q, 0));
    return DISPATCH(q, row_loss, in->shape[0], .loss = array_ptr(loss), .grad = grad ? array_ptr(grad) : NULL,
                    .logits = logits, .targets = targets, .n = in->shape[1],
                    .softcap = ((const row_loss_param *)out->param)->softcap);
}

#define ROW_LOSS(title, outputs, infers)                                                                               \
    {.name = title,                                                                                                    \
     .n_in = 2,                                                                                                        \
     .n_out = outputs,                                                                                                 \
     .nondiff = 3,                                                                                                     \
     .param_size = sizeof(row_loss_param),                                                                             \
     .fields = row_loss_fields,                                                                                        \
     .infer = infers,                                                                                                  \
     .eval = row_loss_eval}
const gm_op row_loss_op = ROW_LOSS("row_loss", 1, row_loss_infer);
const gm_op row_loss_grad_op = ROW_LOSS("row_loss_grad", 2, row_loss_grad_infer);

gm_array *gm_row_loss(gm_scope *s, gm_array *logits, gm_array *targets, float softcap, gm_array **grad) {
    gm_array *in[2] = {logits, targets}, *outs[2];
    const row_loss_param p = {softcap};
    if (!grad)
        return array_node(s, &row_loss_op, in, 2, &p);
    if (array_nodes(s, &row_loss_grad_op, in, 2, &p, sizeof p, 2, outs) != GM_OK)
        return NULL;
    *grad = outs[0];
    return outs[1];
}

/* ---- a value of each row whose gradient was computed with it ---- */
static gm_status given_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *value = in[0], *x = in[1], *dx = in[2];
    (void)n_in;
    (void)param;
    if (value->ndim != 1 || x->ndim != 2 || x->shape[0] != value->shape[0] || dx->ndim != 2 ||
        dx->shape[0] != x->shape[0] || dx->shape[1] != x->shape[1] || value->dtype != GM_FLOAT32 ||
        x->dtype != GM_FLOAT32 || dx->dtype != GM_FLOAT32) {
        char a[128], b[128], c[128];
        array_text(value, a);
        array_text(x, b);
        array_text(dx, c);
        return gm_fail(GM_ESHAPE,
                       "with_gradient: value is %s, x %s and its gradient %s, expected float32 [n], [n, k], "
                       "[n, k]",
                       a, b, c);
    }
    spec_like(out, value, GM_FLOAT32);
    return GM_OK;
}

static gm_status given_eval(gm_array *out, gm_queue *q) {
    (void)q;
    array_share(out, out->in[0], out->in[0]->strides, 0);
    return GM_OK;
}

static void given_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    grad[1] = gm_multiply(s, gm_reshape(s, cots[0], 2, (int64_t[]){cots[0]->shape[0], 1}), in[2]);
}

const gm_op with_gradient_op = {.name = "with_gradient",
                                .shares = true,
                                .n_in = 3,
                                .n_out = 1,
                                .nondiff = 5,
                                .infer = given_infer,
                                .eval = given_eval,
                                .vjp = given_vjp};

gm_array *gm_with_gradient(gm_scope *s, gm_array *value, gm_array *x, gm_array *dx) {
    gm_array *in[3] = {value, x, dx};
    return array_node(s, &with_gradient_op, in, 3, NULL);
}
