/* reduce.c - reductions over axes, argmax and argmin, softmax. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

/* axes: bit i = axis i */
typedef struct {
    uint64_t axes;
    int32_t function, out_type, keepdims, padding;
} reduce_param;
static const gm_field reduce_fields[] = {{FIELD_INT, offsetof(reduce_param, function), "function", 1},
                                         {FIELD_INT64, offsetof(reduce_param, axes), "axes", 1},
                                         {FIELD_INT, offsetof(reduce_param, out_type), "dtype", 1},
                                         {FIELD_INT, offsetof(reduce_param, keepdims), "keepdims", 1},
                                         {0}};

static gm_status reduce_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const reduce_param *p = param;
    const gm_array *x = in[0];
    out->dtype = (gm_dtype)p->out_type;
    out->ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        bool reduced = p->axes >> i & 1;
        if (reduced && x->shape[i] == 0 && (p->function == GM_R_MAX || p->function == GM_R_MIN))
            return gm_fail(GM_EVALUE, "%s: an empty axis has no extreme", p->function == GM_R_MAX ? "max" : "min");
        if (!reduced || p->keepdims)
            out->shape[out->ndim++] = reduced ? 1 : x->shape[i];
    }
    return GM_OK;
}

/* Kept and reduced dimensions of x, each merged where memory allows. */
static gm_status split_axes(gm_queue *q, const gm_array *x, uint64_t axes, loop *kept, loop *reduced) {
    int64_t shape[2][GM_MAX_NDIM], strides[2][GM_MAX_NDIM];
    int n[2] = {0, 0};
    for (int i = 0; i < x->ndim; i++) {
        int side = (int)(axes >> i & 1);
        shape[side][n[side]] = x->shape[i];
        strides[side][n[side]++] = x->strides[i];
    }
    GM_TRY(loop_make(q, n[0], shape[0], 1, (const int64_t *const[]){strides[0]}, kept));
    return loop_make(q, n[1], shape[1], 1, (const int64_t *const[]){strides[1]}, reduced);
}

static gm_status reduce_eval(gm_array *out, gm_queue *q) {
    const reduce_param *p = out->param;
    const gm_array *x = out->in[0];
    loop kept, reduced;
    GM_TRY(array_alloc(out, q));
    GM_TRY(split_axes(q, x, p->axes, &kept, &reduced));
    return DISPATCH(q, reduce, out->size, .out = array_ptr(out), .in = array_ptr(x), .op = (gm_reduce_op)p->function,
                    .in_type = x->dtype, .out_type = out->dtype, .n_kept = kept.ndim, .kept_shape = kept.shape,
                    .kept_strides = kept.strides[0], .n_reduced = reduced.ndim, .reduced_shape = reduced.shape,
                    .reduced_strides = reduced.strides[0]);
}

/* y, a result of the reduction of x or its cotangent, with the reduced axes kept as 1. */
static gm_array *kept_shape(gm_scope *s, gm_array *y, const gm_array *x, int n_axes, const int *axes) {
    return y && y->ndim != x->ndim ? gm_expand_dims(s, y, n_axes, axes) : y;
}

/* The product of all the others: out / x where nothing is zero; where exactly one is, that one gets the product of the
 * rest and the others nothing. */
static gm_array *prod_others(gm_scope *s, gm_array *x, gm_array *out, int n_axes, const int *axes) {
    if (x->dtype == GM_COMPLEX64 && n_axes == 1) /* no quotient: of two rows each is the other's, to the bit */
        return gm_multiply(s, gm_cumprod(s, x, axes[0], false, false, false, GM_DTYPE_COUNT),
                           gm_cumprod(s, x, axes[0], false, true, false, GM_DTYPE_COUNT));
    gm_array *zero = scalar_array(s, 0, (gm_dtype)x->dtype), *one = scalar_array(s, 1, (gm_dtype)x->dtype);
    gm_array *is_zero = gm_equal(s, x, zero);
    gm_array *zeros = gm_sum(s, is_zero, n_axes, axes, true);
    gm_array *nonzero = gm_where(s, is_zero, one, x);
    gm_array *rest = gm_astype(s, gm_prod(s, nonzero, n_axes, axes, true), (gm_dtype)x->dtype);
    gm_array *single = gm_logical_and(s, is_zero, gm_equal(s, zeros, scalar_array(s, 1, GM_INT32)));
    gm_array *none = gm_equal(s, zeros, scalar_array(s, 0, GM_INT32));
    gm_array *quotient = gm_astype(s, gm_divide(s, out, nonzero), (gm_dtype)x->dtype);
    return gm_where(s, none, quotient, gm_where(s, single, rest, zero));
}

/* cot exp(x - y), over x once: logits are the largest arrays of a training step. */
static gm_array *logsumexp_grad(gm_scope *s, gm_array *x, gm_array *y, gm_array *cot) {
    const int16_t type = (int16_t)x->dtype;
    const gm_fused_step steps[] = {{GM_FUSED_BINARY, GM_B_subtract, type, type, {0, 1}, 0},
                                   {GM_FUSED_UNARY, GM_U_exp, type, type, {3}, 1},
                                   {GM_FUSED_BINARY, GM_B_multiply, type, type, {2, 4}, 2}};
    return fused_chain(s, steps, 3, (gm_array *[]){x, y, cot}, 3);
}
static void reduce_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    const reduce_param *p = out->param;
    int axes[GM_MAX_NDIM], n = 0;
    for (int i = 0; i < in[0]->ndim; i++)
        if (p->axes >> i & 1)
            axes[n++] = i;
    gm_array *x = in[0], *cot = kept_shape(s, gm_astype(s, cots[0], (gm_dtype)x->dtype), x, n, axes);
    gm_array *y = p->function == GM_R_SUM ? NULL : gm_astype(s, kept_shape(s, out, x, n, axes), (gm_dtype)x->dtype);
    gm_array *derivative = NULL;
    switch (p->function) {
    case GM_R_SUM: grad[0] = broadcast_like(s, cot, x); return;
    case GM_R_PROD: derivative = prod_others(s, x, y, n, axes); break;
    case GM_R_MAX:
    case GM_R_MIN: { /* equals share it */
        gm_array *mask = gm_astype(s, gm_equal(s, x, y), (gm_dtype)x->dtype);
        gm_array *share = gm_divide(s, cot, gm_sum(s, mask, n, axes, true));
        grad[0] = gm_astype(s, gm_multiply(s, mask, share), (gm_dtype)x->dtype);
        return;
    }
    case GM_R_LOGSUMEXP:
        /* Within another transform than the gradient it may be for a file, or compile fuses it. */
        if (x->dtype != GM_COMPLEX64 && trace_depth() <= 1) {
            grad[0] = logsumexp_grad(s, x, y, cot);
            return;
        }
        derivative = gm_exp(s, gm_subtract(s, x, y));
        break;
    default: return; /* all, any */
    }
    if (derivative && x->dtype == GM_COMPLEX64)
        derivative = gm_conjugate(s, derivative);
    grad[0] = gm_multiply(s, cot, derivative);
}

static gm_status reduce_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    reduce_param p = *(const reduce_param *)out->param;
    p.axes <<= 1;
    outs[0] = array_node(s, &reduce_op, in, 1, &p);
    return outs[0] ? GM_OK : error_code();
}

static const char *reduce_title(const void *param) {
    static const char *const names[GM_R_COUNT] = {"sum", "prod", "max", "min", "all", "any", "logsumexp"};
    return names[((const reduce_param *)param)->function];
}

static gm_status reduce_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    static gm_array *(*const functions[GM_R_COUNT])(gm_scope *, gm_array *, int, const int *, bool) = {
        gm_sum, gm_prod, gm_max, gm_min, gm_all, gm_any, gm_logsumexp};
    const reduce_param *p = param;
    int axes[64], n = 0;
    for (int i = 0; i < 64; i++)
        if (p->axes >> i & 1)
            axes[n++] = i;
    if (!within(p->function, GM_R_COUNT))
        return rebuild_refuse("reduce");
    return rebuilt(functions[p->function](s, in[0], n, axes, p->keepdims != 0), outs);
}

const gm_op reduce_op = {.name = "reduce",
                         .n_in = 1,
                         .n_out = 1,
                         .param_size = sizeof(reduce_param),
                         .fields = reduce_fields,
                         .infer = reduce_infer,
                         .eval = reduce_eval,
                         .vjp = reduce_vjp,
                         .vmap = reduce_vmap,
                         .rebuild = reduce_rebuild,
                         .title = reduce_title};

static gm_status axes_mask(const char *op, const gm_array *x, int n_axes, const int *axes, uint64_t *mask) {
    *mask = n_axes < 0 ? (x->ndim ? ~(uint64_t)0 >> (64 - x->ndim) : 0) : 0;
    for (int i = 0; i < n_axes; i++) {
        int axis;
        GM_TRY(check_axis(op, axes[i], x->ndim, &axis));
        if (*mask >> axis & 1)
            return gm_fail(GM_EVALUE, "%s: axis %d is given twice", op, axes[i]);
        *mask |= (uint64_t)1 << axis;
    }
    return GM_OK;
}

/* ValueError, unlike other reductions. */
static bool has_axes(const char *op, const gm_array *x, int n_axes) {
    if (x->ndim == 0 && n_axes > 0)
        return gm_fail(GM_EVALUE, "%s: %d axes given for an array with 0 dimensions", op, n_axes), false;
    return true;
}

static reduce_param param_of(gm_reduce_op function, gm_dtype out_type, bool keepdims) {
    return (reduce_param){.function = (int32_t)function, .out_type = (int32_t)out_type, .keepdims = keepdims};
}

/* p has all but its axes. */
static gm_array *reduce(gm_scope *s, const char *name, gm_array *x, int n_axes, const int *axes, reduce_param p) {
    if (!x)
        return NULL;
    if (x->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "%s: a packed matrix is read by matrix products only", name), NULL;
    if (axes_mask(name, x, n_axes, axes, &p.axes) != GM_OK)
        return NULL;
    return array_node(s, &reduce_op, &x, 1, &p);
}

/* Integers narrower than 32 bits add up in 32, bool in int32. */
static gm_dtype sum_type(gm_dtype t) {
    switch (t) {
    case GM_UINT8:
    case GM_UINT16: return GM_UINT32;
    case GM_BOOL:
    case GM_INT8:
    case GM_INT16: return GM_INT32;
    default: return t;
    }
}

/* Over no axes, nothing is summed and the dtype stays. */
gm_array *gm_sum(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return n == 0 ? x : x ? reduce(s, "sum", x, n, axes, param_of(GM_R_SUM, sum_type((gm_dtype)x->dtype), keep)) : NULL;
}
gm_array *gm_prod(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return n == 0 ? x
           : x    ? reduce(s, "prod", x, n, axes, param_of(GM_R_PROD, sum_type((gm_dtype)x->dtype), keep))
                  : NULL;
}
gm_array *gm_max(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return x ? reduce(s, "max", x, n, axes, param_of(GM_R_MAX, (gm_dtype)x->dtype, keep)) : NULL;
}
gm_array *gm_min(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return x ? reduce(s, "min", x, n, axes, param_of(GM_R_MIN, (gm_dtype)x->dtype, keep)) : NULL;
}
gm_array *gm_all(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return reduce(s, "all", x, n, axes, param_of(GM_R_ALL, GM_BOOL, keep));
}
gm_array *gm_any(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return reduce(s, "any", x, n, axes, param_of(GM_R_ANY, GM_BOOL, keep));
}
gm_array *gm_logsumexp(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    if (!x || !has_axes("logsumexp", x, n))
        return NULL;
    if (x->size == 0) {
        gm_fail(GM_EVALUE, "logsumexp: an array without elements");
        return NULL;
    }
    x = gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype));
    return x ? reduce(s, "logsumexp", x, n, axes, param_of(GM_R_LOGSUMEXP, (gm_dtype)x->dtype, keep)) : NULL;
}

gm_array *gm_minmax(gm_scope *s, gm_array *x, int n, const int *axes, bool keep, gm_array **max) {
    *max = gm_max(s, x, n, axes, keep);
    return *max ? gm_min(s, x, n, axes, keep) : NULL;
}

/* ---- argmax, argmin ---- */
typedef struct { int32_t axis, keepdims, max; } arg_param;
static const gm_field arg_fields[] = {{FIELD_INT, offsetof(arg_param, axis), "axis", 1},
                                      {FIELD_INT, offsetof(arg_param, keepdims), "keepdims", 1},
                                      {FIELD_INT, offsetof(arg_param, max), "max", 1},
                                      {0}};

static gm_status arg_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const arg_param *p = param;
    const gm_array *x = in[0];
    out->dtype = GM_UINT32;
    out->ndim = 0;
    if (x->size == 0)
        return gm_fail(GM_EVALUE, "%s: an empty array has no extreme", p->max ? "argmax" : "argmin");
    for (int i = 0; i < x->ndim; i++)
        if (i != p->axis || p->keepdims)
            out->shape[out->ndim++] = i == p->axis ? 1 : x->shape[i];
    return GM_OK;
}

static gm_status arg_eval(gm_array *out, gm_queue *q) {
    const arg_param *p = out->param;
    const gm_array *x = out->in[0];
    loop kept, reduced;
    GM_TRY(array_alloc(out, q));
    GM_TRY(split_axes(q, x, (uint64_t)1 << p->axis, &kept, &reduced));
    return DISPATCH(q, arg_reduce, out->size, .out = array_ptr(out), .in = array_ptr(x), .max = p->max != 0,
                    .type = x->dtype, .n_kept = kept.ndim, .kept_shape = kept.shape, .kept_strides = kept.strides[0],
                    .length = x->shape[p->axis], .stride = x->strides[p->axis]);
}

static gm_status arg_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    arg_param p = *(const arg_param *)out->param;
    p.axis++;
    outs[0] = array_node(s, &arg_reduce_op, in, 1, &p);
    return outs[0] ? GM_OK : error_code();
}

static gm_status arg_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const arg_param *p = param;
    return rebuilt((p->max ? gm_argmax : gm_argmin)(s, in[0], p->axis, false, p->keepdims != 0), outs);
}

const gm_op arg_reduce_op = {.name = "arg_reduce",
                             .n_in = 1,
                             .n_out = 1,
                             .nondiff = 1,
                             .param_size = sizeof(arg_param),
                             .fields = arg_fields,
                             .infer = arg_infer,
                             .eval = arg_eval,
                             .vmap = arg_vmap,
                             .rebuild = arg_rebuild};

static gm_array *arg_reduce(gm_scope *s, const char *name, gm_array *x, int axis, bool all, bool keepdims, bool max) {
    int at = 0;
    if (!x)
        return NULL;
    int ndim = x->ndim;
    if (all) {
        x = gm_flatten(s, x, 0, -1);
    } else if (check_axis(name, axis, ndim, &at) != GM_OK) {
        return NULL;
    }
    gm_array *out = array_node(s, &arg_reduce_op, &x, 1, &(arg_param){at, keepdims && !all, max});
    if (out && all && keepdims) {
        int64_t ones[GM_MAX_NDIM];
        for (int i = 0; i < ndim; i++)
            ones[i] = 1;
        out = gm_reshape(s, out, ndim, ones);
    }
    return out;
}

gm_array *gm_argmax(gm_scope *s, gm_array *x, int axis, bool all, bool keepdims) {
    return arg_reduce(s, "argmax", x, axis, all, keepdims, true);
}
gm_array *gm_argmin(gm_scope *s, gm_array *x, int axis, bool all, bool keepdims) {
    return arg_reduce(s, "argmin", x, axis, all, keepdims, false);
}

/* ---- softmax: the kernel works along the last axis; other axes are brought there ---- */
static gm_status softmax_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status softmax_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t dim = x->shape[x->ndim - 1];
    const void *data = array_ptr(x);
    GM_TRY(array_alloc_like(out, q, 0));
    if (!array_is_contiguous(x)) {
        GM_TRY(launch_copy(q, to_array(out), (copy_from){data, (gm_dtype)x->dtype, x->strides}, x->ndim, x->shape));
        queue_fence(q);
        data = array_ptr(out);
    }
    return DISPATCH(q, softmax, dim ? out->size / dim : 0, .out = array_ptr(out), .in = data, .type = x->dtype,
                    .dim = dim, .in_stride = dim);
}

static gm_array *softmax_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    int last[1] = {-1};
    gm_array *e = gm_exp(s, gm_subtract(s, in[0], gm_max(s, in[0], 1, last, true)));
    return gm_divide(s, e, gm_sum(s, e, 1, last, true));
}

/* ---- its gradient, y * (cot - sum(cot * y)), of float32 ---- */
enum { GRAD_Y, GRAD_COTANGENT, GRAD_INPUTS };

static gm_status softmax_grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *y = in[GRAD_Y], *cot = in[GRAD_COTANGENT];
    if (y->ndim < 1 || y->dtype != GM_FLOAT32 || cot->dtype != GM_FLOAT32 || cot->ndim != y->ndim ||
        memcmp(cot->shape, y->shape, (size_t)y->ndim * sizeof *y->shape) != 0)
        return gm_fail(GM_ESHAPE, "softmax_grad: expected two float32 arrays of one shape");
    spec_like(out, y, GM_FLOAT32);
    return GM_OK;
}

static gm_status softmax_grad_eval(gm_array *out, gm_queue *q) {
    const int64_t dim = out->shape[out->ndim - 1];
    const float *y, *cot;
    GM_TRY(float_operand(q, out->in[GRAD_Y], &y));
    GM_TRY(float_operand(q, out->in[GRAD_COTANGENT], &cot));
    GM_TRY(array_alloc_like(out, q, GRAD_COTANGENT));
    return DISPATCH(q, softmax_grad, dim ? out->size / dim : 0, .dx = array_ptr(out), .y = y, .grad = cot, .dim = dim);
}

static gm_array *softmax_grad_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    gm_array *weighted = gm_multiply(s, in[GRAD_COTANGENT], in[GRAD_Y]);
    gm_array *total = gm_sum(s, weighted, 1, (int[]){-1}, true);
    return gm_subtract(s, weighted, gm_multiply(s, in[GRAD_Y], total));
}

static gm_status softmax_grad_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                      gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(array_node(s, &softmax_grad_op, in, GRAD_INPUTS, NULL), outs);
}

const gm_op softmax_grad_op = {.name = "softmax_grad",
                               .n_in = GRAD_INPUTS,
                               .n_out = 1,
                               .infer = softmax_grad_infer,
                               .eval = softmax_grad_eval,
                               .vmap = vmap_leading,
                               .compose = softmax_grad_compose,
                               .rebuild = softmax_grad_rebuild};

static void softmax_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *of[GRAD_INPUTS] = {out, cots[0]};
    (void)in;
    grad[0] = out->dtype == GM_FLOAT32 ? array_node(s, &softmax_grad_op, of, GRAD_INPUTS, NULL)
                                       : softmax_grad_compose(s, of, GRAD_INPUTS, NULL);
}

static gm_status softmax_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(gm_softmax(s, in[0], 1, (int[]){-1}), outs);
}

const gm_op softmax_op = {.name = "softmax",
                          .n_in = 1,
                          .n_out = 1,
                          .infer = softmax_infer,
                          .eval = softmax_eval,
                          .vjp = softmax_vjp,
                          .vmap = vmap_leading,
                          .compose = softmax_compose,
                          .rebuild = softmax_rebuild};

gm_array *gm_softmax(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    uint64_t mask;
    if (!x || !has_axes("softmax", x, n_axes) || axes_mask("softmax", x, n_axes, axes, &mask) != GM_OK)
        return NULL;
    x = gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype));
    if (!x)
        return NULL;
    if (x->size == 0)
        return x;
    if (mask == 0) /* over no axes: e**0 / e**0 */
        return gm_exp(s, gm_subtract(s, x, x));
    if (mask == (uint64_t)1 << (x->ndim - 1) && x->dtype != GM_FLOAT64 && x->dtype != GM_COMPLEX64)
        return array_node(s, &softmax_op, &x, 1, NULL);
    int list[GM_MAX_NDIM] = {0}, n = 0;
    for (int i = 0; i < x->ndim; i++)
        if (mask >> i & 1)
            list[n++] = i;
    gm_array *e = gm_exp(s, gm_subtract(s, x, gm_max(s, x, n, list, true)));
    return gm_divide(s, e, gm_sum(s, e, n, list, true));
}
