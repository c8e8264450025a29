/* norm.c - normalisation of rows: rms_norm and layer_norm. x, weight, bias and the result have one dtype; the sums are
 * float32. Sources: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Ba et al., Layer Normalization,
 * 2016. */
#include <string.h>
#include "ops/ops.h"

typedef struct { float eps; } norm_param;
static const gm_field norm_fields[] = {{FIELD_FLOAT, offsetof(norm_param, eps), "eps", 1}, {0}};
enum { IN_X, IN_WEIGHT, IN_BIAS };

static gm_status norm_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const names[] = {"x", "weight", "bias"};
    const char *op = n_in == 3 ? "layer_norm" : "rms_norm";
    const gm_array *x = in[IN_X];
    (void)param;
    if (x->ndim < 1)
        return gm_fail(GM_EVALUE, "%s: x needs at least one dimension", op);
    for (int i = IN_WEIGHT; i < n_in; i++)
        if (!array_is_none(in[i]) && (in[i]->ndim != 1 || in[i]->shape[0] != x->shape[x->ndim - 1])) {
            char tx[128], tw[128];
            shape_text(x->ndim, x->shape, tx);
            shape_text(in[i]->ndim, in[i]->shape, tw);
            return gm_fail(GM_ESHAPE, "%s: %s %s does not match the last axis of x %s", op, names[i], tw, tx);
        }
    spec_like(out, x, (gm_dtype)x->dtype);
    return GM_OK;
}

static gm_status norm_eval(gm_array *out, gm_queue *q) {
    const norm_param *p = out->param;
    const gm_array *x = out->in[IN_X];
    const void *data, *parts[2] = {NULL, NULL};
    int64_t dim = x->shape[x->ndim - 1], stride;
    GM_TRY(row_operand(q, x, &data, &stride));
    for (int i = IN_WEIGHT; i < out->n_in; i++)
        if (!array_is_none(out->in[i]))
            GM_TRY(dense_operand(q, out->in[i], &parts[i - 1]));
    GM_TRY(array_alloc_like(out, q, IN_X));
    const int64_t rows = dim ? out->size / dim : 0;
    if (out->n_in == 2)
        return DISPATCH(q, rms_norm, rows, .out = array_ptr(out), .x = data, .weight = parts[0], .type = out->dtype,
                        .x_stride = stride, .dim = dim, .eps = p->eps);
    return DISPATCH(q, layer_norm, rows, .out = array_ptr(out), .x = data, .weight = parts[0], .bias = parts[1],
                    .type = out->dtype, .x_stride = stride, .dim = dim, .eps = p->eps);
}

/* ---- by primitive ops, in float32 or wider ---- */
static gm_array *row_mean(gm_scope *s, gm_array *x) { return gm_mean(s, x, 1, (int[]){-1}, true); }

static gm_array *widened(gm_scope *s, gm_array *x) {
    return gm_astype(s, x, x->dtype == GM_FLOAT64 ? GM_FLOAT64 : GM_FLOAT32);
}

/* 1 / sqrt(mean(x**2) + eps) */
static gm_array *inverse_size(gm_scope *s, gm_array *x, float eps) {
    gm_array *mean = row_mean(s, gm_square(s, x));
    return mean ? gm_rsqrt(s, gm_add(s, mean, scalar_array(s, (double)eps, (gm_dtype)mean->dtype))) : NULL;
}

static gm_array *norm_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    gm_array *x = widened(s, in[IN_X]);
    if (n_in == 3)
        x = gm_subtract(s, x, row_mean(s, x));
    gm_array *y = gm_multiply(s, x, inverse_size(s, x, ((const norm_param *)param)->eps));
    if (!array_is_none(in[IN_WEIGHT]))
        y = gm_multiply(s, y, widened(s, in[IN_WEIGHT]));
    if (n_in == 3 && !array_is_none(in[IN_BIAS]))
        y = gm_add(s, y, widened(s, in[IN_BIAS]));
    return gm_astype(s, y, (gm_dtype)in[IN_X]->dtype);
}

/* ---- the gradients of x, of float32 ---- */
enum { GRAD_X, GRAD_WEIGHT, GRAD_COTANGENT, GRAD_INPUTS };

static gm_status grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    GM_TRY(norm_infer(in, 2, param, out));
    for (int i = 0; i < GRAD_INPUTS; i++)
        if (!array_is_none(in[i]) &&
            (in[i]->dtype != GM_FLOAT32 || (i == GRAD_COTANGENT && in[i]->size != in[0]->size)))
            return gm_fail(GM_ESHAPE, "norm_grad: expected float32 arrays, and a cotangent of the shape of x");
    return GM_OK;
}

static gm_status grad_eval(gm_array *out, gm_queue *q) {
    const int64_t dim = out->shape[out->ndim - 1], rows = dim ? out->size / dim : 0;
    const float *in[GRAD_INPUTS] = {NULL, NULL, NULL};
    for (int i = 0; i < GRAD_INPUTS; i++)
        if (!array_is_none(out->in[i]))
            GM_TRY(float_operand(q, out->in[i], &in[i]));
    GM_TRY(array_alloc_like(out, q, GRAD_COTANGENT));
    const gm_rms_norm_grad_args args = {.dx = array_ptr(out),
                                        .x = in[GRAD_X],
                                        .weight = in[GRAD_WEIGHT],
                                        .grad = in[GRAD_COTANGENT],
                                        .dim = dim,
                                        .eps = ((const norm_param *)out->param)->eps};
    return out->op == &layer_norm_grad_op ? DISPATCH_ARGS(q, layer_norm_grad, rows, &args)
                                          : DISPATCH_ARGS(q, rms_norm_grad, rows, &args);
}

/* With n = x / size (rms_norm) or (x - mean) / deviation (layer_norm) and g = cot * weight: (g - mean(g n) n) / size,
 * for a layer norm less mean(g) / size. */
static gm_array *norm_back(gm_scope *s, gm_array *const *in, float eps, bool centred) {
    gm_array *x = widened(s, in[GRAD_X]), *g = widened(s, in[GRAD_COTANGENT]);
    if (centred)
        x = gm_subtract(s, x, row_mean(s, x));
    if (!array_is_none(in[GRAD_WEIGHT]))
        g = gm_multiply(s, g, widened(s, in[GRAD_WEIGHT]));
    gm_array *inverse = inverse_size(s, x, eps), *n = gm_multiply(s, x, inverse);
    gm_array *dx = gm_subtract(s, g, gm_multiply(s, n, row_mean(s, gm_multiply(s, g, n))));
    if (centred)
        dx = gm_subtract(s, dx, row_mean(s, g));
    return gm_multiply(s, dx, inverse);
}
static gm_array *rms_grad_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    return norm_back(s, in, ((const norm_param *)param)->eps, false);
}
static gm_array *layer_grad_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    return norm_back(s, in, ((const norm_param *)param)->eps, true);
}
static gm_status rms_grad_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(array_node(s, &rms_norm_grad_op, in, GRAD_INPUTS, param), outs);
}
static gm_status layer_grad_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                    gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(array_node(s, &layer_norm_grad_op, in, GRAD_INPUTS, param), outs);
}

#define GRAD_OP(title, kind)                                                                                           \
    {.name = title,                                                                                                    \
     .n_in = GRAD_INPUTS,                                                                                              \
     .n_out = 1,                                                                                                       \
     .optional = 1u << GRAD_WEIGHT,                                                                                    \
     .param_size = sizeof(norm_param),                                                                                 \
     .fields = norm_fields,                                                                                            \
     .infer = grad_infer,                                                                                              \
     .eval = grad_eval,                                                                                                \
     .compose = kind##_grad_compose,                                                                                   \
     .rebuild = kind##_grad_rebuild,                                                                                   \
     .work = GM_WORK_NORM}
const gm_op rms_norm_grad_op = GRAD_OP("rms_norm_grad", rms);
const gm_op layer_norm_grad_op = GRAD_OP("layer_norm_grad", layer);

/* y = n * weight + bias: dweight = sum(cot n) and dbias = sum(cot), over rows. */
static void norm_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    const bool centred = out->n_in == 3, weighted = !array_is_none(in[IN_WEIGHT]);
    const float eps = ((const norm_param *)out->param)->eps;
    gm_array *of[GRAD_INPUTS] = {in[IN_X], in[IN_WEIGHT], cots[0]}, *cot = widened(s, cots[0]);
    if (in[IN_X]->dtype == GM_FLOAT32 && (!weighted || in[IN_WEIGHT]->dtype == GM_FLOAT32))
        grad[IN_X] = array_node(s, centred ? &layer_norm_grad_op : &rms_norm_grad_op, of, GRAD_INPUTS, out->param);
    else
        grad[IN_X] = gm_astype(s, norm_back(s, of, eps, centred), (gm_dtype)in[IN_X]->dtype);
    if (weighted) {
        gm_array *x = widened(s, in[IN_X]);
        gm_array *n = centred ? gm_layer_norm(s, x, GM_NONE, GM_NONE, eps) : gm_rms_norm(s, x, GM_NONE, eps);
        grad[IN_WEIGHT] = gm_sequence_sum(s, gm_multiply(s, cot, n), in[IN_WEIGHT]);
    }
    if (centred && !array_is_none(in[IN_BIAS]))
        grad[IN_BIAS] = unbroadcast(s, cot, in[IN_BIAS]);
}

/* Weights of each lane: they are applied to the rows that the op has normalised without them. */
static gm_array *per_lane(gm_scope *s, gm_array *w, const gm_array *y, bool batched) {
    int64_t shape[GM_MAX_NDIM];
    if (!batched)
        return w;
    for (int i = 0; i < y->ndim; i++)
        shape[i] = i == 0 ? w->shape[0] : i == y->ndim - 1 ? w->shape[1] : 1;
    return gm_reshape(s, w, y->ndim, shape);
}

static gm_status norm_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    bool lanes = batched[IN_WEIGHT] || (out->n_in == 3 && batched[IN_BIAS]);
    gm_array *bare[3] = {batched_input(s, in[IN_X], batched[IN_X], batch_size(in, out->n_in, batched)), GM_NONE,
                         GM_NONE};
    for (int i = IN_WEIGHT; i < out->n_in && !lanes; i++)
        bare[i] = in[i];
    gm_array *y = array_again(s, out, bare);
    for (int i = IN_WEIGHT; y && i < out->n_in && lanes; i++)
        if (!array_is_none(in[i]))
            y = (i == IN_WEIGHT ? gm_multiply : gm_add)(s, y, per_lane(s, in[i], y, batched[i]));
    outs[0] = y;
    return y ? GM_OK : error_code();
}

static gm_status norm_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    const float eps = ((const norm_param *)param)->eps;
    (void)n_out;
    return rebuilt(n_in == 3 ? gm_layer_norm(s, in[IN_X], in[IN_WEIGHT], in[IN_BIAS], eps)
                             : gm_rms_norm(s, in[IN_X], in[IN_WEIGHT], eps),
                   outs);
}

#define NORM_OP(title, inputs)                                                                                         \
    {.name = title,                                                                                                    \
     .n_in = inputs,                                                                                                   \
     .n_out = 1,                                                                                                       \
     .param_size = sizeof(norm_param),                                                                                 \
     .fields = norm_fields,                                                                                            \
     .infer = norm_infer,                                                                                              \
     .eval = norm_eval,                                                                                                \
     .vjp = norm_vjp,                                                                                                  \
     .vmap = norm_vmap,                                                                                                \
     .compose = norm_compose,                                                                                          \
     .rebuild = norm_rebuild,                                                                                          \
     .optional = 1u << IN_WEIGHT | 1u << IN_BIAS,                                                                      \
     .again = AGAIN_ALWAYS,                                                                                            \
     .work = GM_WORK_NORM}
const gm_op rms_norm_op = NORM_OP("rms_norm", 2);
const gm_op layer_norm_op = NORM_OP("layer_norm", 3);

/* float64 has no kernel. */
static gm_array *norm_node(gm_scope *s, const gm_op *op, gm_array **in, float eps) {
    gm_dtype type = (gm_dtype)in[IN_X]->dtype;
    bool weighted = !array_is_none(in[IN_WEIGHT]);
    for (int i = IN_WEIGHT; i < op->n_in && weighted; i++) /* a bias alone does not widen */
        if (!array_is_none(in[i]))
            type = gm_promote(type, (gm_dtype)in[i]->dtype);
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "%s: got %s, expected floating point", op->name, gm_dtype_name(type)), NULL;
    for (int i = 0; i < op->n_in; i++)
        if (!array_is_none(in[i]))
            in[i] = gm_astype(s, in[i], type);
    norm_param p = {eps};
    gm_spec unused;
    if (type != GM_FLOAT64)
        return array_node(s, op, in, op->n_in, &p);
    for (int i = 0; i < op->n_in; i++)
        if (!in[i])
            return NULL;
    return norm_infer(in, op->n_in, &p, &unused) == GM_OK ? norm_compose(s, in, op->n_in, &p) : NULL;
}

gm_array *gm_rms_norm(gm_scope *s, gm_array *x, gm_array *weight, float eps) {
    gm_array *in[2] = {x, weight};
    return x && weight ? norm_node(s, &rms_norm_op, in, eps) : NULL;
}

gm_array *gm_layer_norm(gm_scope *s, gm_array *x, gm_array *weight, gm_array *bias, float eps) {
    gm_array *in[3] = {x, weight, bias};
    return x && weight && bias ? norm_node(s, &layer_norm_op, in, eps) : NULL;
}
