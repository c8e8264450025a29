/* norm.c - normalisation: rms_norm. Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019. */
#include "ops/ops.h"

typedef struct { float eps; } rms_norm_param;
static const gm_field rms_norm_fields[] = {{FIELD_FLOAT, offsetof(rms_norm_param, eps), "eps", 1}, {0}};

static gm_status rms_norm_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *x = in[0], *w = in[1];
    if (x->ndim < 1)
        return gm_fail(GM_EVALUE, "rms_norm: x needs at least one dimension");
    if (!array_is_none(w) && (w->ndim != 1 || w->shape[0] != x->shape[x->ndim - 1])) {
        char tx[128], tw[128];
        shape_text(x->ndim, x->shape, tx);
        shape_text(w->ndim, w->shape, tw);
        return gm_fail(GM_ESHAPE, "rms_norm: weight %s does not match the last axis of x %s", tw, tx);
    }
    spec_like(out, x, (gm_dtype)x->dtype);
    return GM_OK;
}

static gm_status rms_norm_eval(gm_array *out, gm_queue *q) {
    const rms_norm_param *p = out->param;
    const gm_array *x = out->in[0], *w = out->in[1];
    const float *data, *weight = NULL;
    int64_t dim = x->shape[x->ndim - 1], rows = dim ? x->size / dim : 0;
    GM_TRY(float_operand(q, x, &data));
    if (!array_is_none(w))
        GM_TRY(float_operand(q, w, &weight));
    GM_TRY(array_alloc_like(out, q, 0));
    float *to = out->dtype == GM_FLOAT32 ? array_ptr(out) : queue_scratch(q, (size_t)out->size * sizeof(float) + 1);
    if (!to)
        return error_code();
    GM_TRY(LAUNCH(q, rms_norm, rows, 1 + 8192 / (dim + 1), 0, .out = to, .x = data, .weight = weight, .x_stride = dim,
                  .out_stride = dim, .dim = dim, .eps = p->eps));
    if (out->dtype == GM_FLOAT32)
        return GM_OK;
    queue_fence(q);
    return launch_copy(q, array_ptr(out), (gm_dtype)out->dtype, (int64_t[]){1}, to, GM_FLOAT32, (int64_t[]){1}, 1,
                       (int64_t[]){out->size});
}

static gm_array *rms_norm_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    gm_array *x = gm_astype(s, in[0], GM_FLOAT32);
    gm_array *mean = gm_mean(s, gm_square(s, x), 1, (int[]){-1}, true);
    gm_array *scale = gm_rsqrt(s, gm_add(s, mean,
                                         scalar_array(s, (double)((const rms_norm_param *)param)->eps, GM_FLOAT32)));
    gm_array *y = gm_multiply(s, x, scale);
    if (!array_is_none(in[1]))
        y = gm_multiply(s, y, gm_astype(s, in[1], GM_FLOAT32));
    return gm_astype(s, y, (gm_dtype)in[0]->dtype);
}

const gm_op rms_norm_op = {.name = "rms_norm", .n_in = 2, .n_out = 1, .param_size = sizeof(rms_norm_param),
                                  .fields = rms_norm_fields, .infer = rms_norm_infer, .eval = rms_norm_eval,
                                  .compose = rms_norm_compose};

gm_array *gm_rms_norm(gm_scope *s, gm_array *x, gm_array *weight, float eps) {
    if (!x || !weight)
        return NULL;
    if (!dtype_is_float((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "rms_norm: x is %s, expected floating point",
                       gm_dtype_name((gm_dtype)x->dtype)), NULL;
    gm_array *in[2] = {x, weight};
    return array_node(s, &rms_norm_op, in, 2, &(rms_norm_param){eps});
}
