/* scan.c - cumulative sums, products, extremes and log-sums along an axis. */
#include <math.h>
#include <string.h>
#include "core/graph.h"
#include "ops/ops.h"

typedef struct { int32_t function, axis, reverse, exclusive; } scan_param; /* function: a gm_reduce_op */
static const gm_field scan_fields[] = {{FIELD_INT, offsetof(scan_param, function), "function", 1},
                                       {FIELD_INT, offsetof(scan_param, axis), "axis", 1},
                                       {FIELD_INT, offsetof(scan_param, reverse), "reverse", 1},
                                       {FIELD_INT, offsetof(scan_param, exclusive), "exclusive", 1},
                                       {0}};

static gm_status scan_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status scan_eval(gm_array *out, gm_queue *q) {
    const scan_param *p = out->param;
    const gm_array *x = out->in[0];
    gm_dtype type = (gm_dtype)out->dtype;
    const void *data = array_ptr(x);
    GM_TRY(array_alloc_like(out, q, 0));
    if (out->size == 0)
        return GM_OK;
    if (!array_is_contiguous(x)) {
        GM_TRY(launch_copy(q, (copy_to){array_ptr(out), type, out->strides}, (copy_from){data, type, x->strides},
                           x->ndim, x->shape));
        queue_fence(q);
        data = array_ptr(out);
    }
    const int64_t length = out->shape[p->axis], inner = out->strides[p->axis];
    return DISPATCH(q, scan, out->size / length / inner, .out = array_ptr(out), .in = data, .op = p->function,
                    .type = out->dtype, .reverse = p->reverse != 0, .exclusive = p->exclusive != 0, .length = length,
                    .inner = inner);
}

static gm_array *scan_by(gm_scope *s, gm_array *x, gm_reduce_op function, int axis, bool reverse, bool exclusive) {
    return array_node(s, &scan_op, &x, 1, &(scan_param){(int32_t)function, axis, reverse, exclusive});
}

/* ---- gradients ---- */
static gm_array *constant(gm_scope *s, double value, const gm_array *like) {
    return scalar_array(s, value, (gm_dtype)like->dtype);
}

/* Each output goes back to the last element that was the extreme then. */
static gm_array *extreme_vjp(gm_scope *s, gm_array *x, gm_array *cotangent, const scan_param *p) {
    int64_t n = x->shape[p->axis], shape[GM_MAX_NDIM];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == p->axis ? n : 1;
    gm_array *indices = gm_reshape(s, gm_arange(s, 0, (double)n, 1, GM_INT32), x->ndim, shape);
    gm_array *top = scan_by(s, x, (gm_reduce_op)p->function, p->axis, p->reverse, false);
    /* In the scan's direction indices rise (or, reversed, fall): the last one is the greatest (or least) so far. */
    gm_array *none = scalar_array(s, p->reverse ? (double)n : -1, GM_INT32);
    gm_array *is_record = gm_logical_or(s, gm_equal(s, x, top), gm_isnan(s, x)); /* which stays */
    gm_array *record = gm_where(s, is_record, indices, none);
    gm_array *source = scan_by(s, record, p->reverse ? GM_R_MIN : GM_R_MAX, p->axis, p->reverse, p->exclusive);
    gm_array *zero = constant(s, 0, x);
    if (p->exclusive) { /* the first output comes from no element */
        gm_array *inside = gm_logical_and(s, gm_greater_equal(s, source, scalar_array(s, 0, GM_INT32)),
                                          gm_less(s, source, scalar_array(s, (double)n, GM_INT32)));
        cotangent = gm_where(s, inside, cotangent, zero);
        source = gm_where(s, inside, source, scalar_array(s, 0, GM_INT32));
    }
    return gm_scatter_along(s, gm_zeros(s, x->ndim, x->shape, (gm_dtype)x->dtype), gm_stop_gradient(s, source),
                            cotangent, p->axis, GM_S_ADD);
}

/* d y_i / d x_j = y_i / x_j where x_j is not zero. From the first zero on all y are zero, but that zero's own share is
 * the product of the others: y1, the scan with a one at its index. After it everything is constant. */
static gm_array *product_vjp(gm_scope *s, gm_array *x, gm_array *y, gm_array *cotangent, const scan_param *p) {
    gm_array *zero = constant(s, 0, x), *one = constant(s, 1, x);
    gm_array *is_zero = gm_equal(s, x, zero);
    gm_array *zeros = is_zero ? scan_by(s, gm_astype(s, is_zero, GM_INT32), GM_R_SUM, p->axis, p->reverse, false)
                              : NULL;
    gm_array *first = gm_logical_and(s, is_zero, gm_equal(s, zeros, scalar_array(s, 1, GM_INT32)));
    gm_array *y1 = scan_by(s, gm_where(s, first, one, x), GM_R_PROD, p->axis, p->reverse, p->exclusive);
    gm_array *all = scan_by(s, gm_multiply(s, cotangent, y), GM_R_SUM, p->axis, !p->reverse, p->exclusive);
    gm_array *others = scan_by(s, gm_multiply(s, cotangent, y1), GM_R_SUM, p->axis, !p->reverse, p->exclusive);
    gm_array *before = gm_divide(s, all, gm_where(s, is_zero, one, x));
    gm_array *none = gm_equal(s, zeros, scalar_array(s, 0, GM_INT32));
    return gm_where(s, none, before, gm_where(s, first, others, zero));
}

/* The items of x from index `from` up to `to` along the axis. */
static gm_array *section(gm_scope *s, gm_array *x, int axis, int64_t from, int64_t to) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int d = 0; d < x->ndim; d++) {
        stop[d] = x->shape[d];
        step[d] = 1;
    }
    start[axis] = from;
    stop[axis] = to;
    return gm_slice(s, x, start, stop, step);
}

/* x and k items after it: zeros, or its last item again. */
static gm_array *continued(gm_scope *s, gm_array *x, int axis, int64_t k, gm_pad_mode fill) {
    int64_t low[GM_MAX_NDIM] = {0}, high[GM_MAX_NDIM] = {0};
    high[axis] = k;
    return x ? gm_pad(s, x, low, high, fill, constant(s, 0, x)) : NULL;
}

/* x shifted by k towards the beginning of the axis; after it zeros, or its last item again. */
static gm_array *moved(gm_scope *s, gm_array *x, int axis, int64_t k, gm_pad_mode fill) {
    return x ? continued(s, section(s, x, axis, k, x->shape[axis]), axis, k, fill) : NULL;
}

/* e**(a - b) for a <= b; 1 where both are one infinity. */
static gm_array *exp_difference(gm_scope *s, gm_array *a, gm_array *b) {
    if (!a || !b)
        return NULL;
    gm_array *same = gm_logical_and(s, gm_equal(s, a, b), gm_isinf(s, a));
    return gm_exp(s, gm_where(s, same, constant(s, 0, a), gm_subtract(s, a, b)));
}

/* d y_i / d x_j = e**(x_j - y_i), so x_j gets e**(x_j - y_j) t_j, where t_j = sum of e**(y_j - y_i) c_i over i >= j:
 * all factors are at most 1. t_j = c_j + e**(y_j - y_j+1) t_j+1 in doubling steps, linear in c, as jvp wants it. */
static gm_array *logarithm_vjp(gm_scope *s, gm_array *x, gm_array *cotangent, const scan_param *p) {
    const gm_dtype type = (gm_dtype)x->dtype, wide = type == GM_FLOAT16 || type == GM_BFLOAT16 ? GM_FLOAT32 : type;
    const int axis = p->axis;
    const int64_t n = x->shape[axis] - p->exclusive;
    if (n <= 0) /* of one item the exclusive result is a constant */
        return gm_zeros(s, x->ndim, x->shape, type);
    x = gm_astype(s, type == GM_COMPLEX64 ? gm_conjugate(s, x) : x, wide);
    gm_array *t = gm_astype(s, cotangent, wide);
    if (p->reverse) {
        x = gm_flip(s, x, 1, &axis);
        t = gm_flip(s, t, 1, &axis);
    }
    if (p->exclusive) { /* output i + 1 is what the inclusive one has at i; the last item is in none */
        t = section(s, t, axis, 1, n + 1);
        x = section(s, x, axis, 0, n);
    }
    gm_array *y = x ? scan_by(s, x, GM_R_LOGSUMEXP, axis, false, false) : NULL;
    gm_array *factor = n > 1 ? exp_difference(s, y, moved(s, y, axis, 1, GM_PAD_EDGE)) : NULL;
    for (int64_t k = 1; k < n; k *= 2) {
        t = gm_add(s, t, gm_multiply(s, factor, moved(s, t, axis, k, GM_PAD_CONSTANT)));
        factor = 2 * k < n ? gm_multiply(s, factor, moved(s, factor, axis, k, GM_PAD_CONSTANT)) : factor;
    }
    gm_array *nothing = y ? gm_equal(s, y, constant(s, -INFINITY, y)) : NULL;
    gm_array *grad = y ? gm_where(s, nothing, constant(s, 0, x), gm_multiply(s, exp_difference(s, x, y), t)) : NULL;
    if (p->exclusive)
        grad = continued(s, grad, axis, 1, GM_PAD_CONSTANT);
    return gm_astype(s, p->reverse ? gm_flip(s, grad, 1, &axis) : grad, type);
}

static void scan_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const scan_param *p = out->param;
    switch (p->function) {
    case GM_R_SUM: grad[0] = scan_by(s, cotangents[0], GM_R_SUM, p->axis, !p->reverse, p->exclusive); break;
    case GM_R_PROD: grad[0] = product_vjp(s, in[0], out, cotangents[0], p); break;
    case GM_R_LOGSUMEXP: grad[0] = logarithm_vjp(s, in[0], cotangents[0], p); break;
    default: grad[0] = extreme_vjp(s, in[0], cotangents[0], p);
    }
}

static gm_status scan_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const scan_param *p = out->param;
    (void)batched;
    outs[0] = scan_by(s, in[0], (gm_reduce_op)p->function, p->axis + 1, p->reverse, p->exclusive);
    return outs[0] ? GM_OK : error_code();
}

static const char *scan_title(const void *param) {
    switch (((const scan_param *)param)->function) {
    case GM_R_PROD: return "cumprod";
    case GM_R_MAX: return "cummax";
    case GM_R_MIN: return "cummin";
    case GM_R_LOGSUMEXP: return "logcumsumexp";
    default: return "cumsum";
    }
}

static gm_status scan_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    const scan_param *p = param;
    (void)n_in;
    (void)n_out;
    bool is_known = p->function == GM_R_SUM || p->function == GM_R_PROD || p->function == GM_R_MAX ||
                    p->function == GM_R_MIN || p->function == GM_R_LOGSUMEXP;
    bool fits = p->function != GM_R_LOGSUMEXP || dtype_is_inexact((gm_dtype)in[0]->dtype);
    if (!is_known || !fits || !within(p->axis, in[0]->ndim) || in[0]->dtype >= GM_DTYPE_COUNT)
        return rebuild_refuse("scan");
    return rebuilt(scan_by(s, in[0], (gm_reduce_op)p->function, p->axis, p->reverse != 0, p->exclusive != 0), outs);
}

const gm_op scan_op = {.name = "scan",
                       .n_in = 1,
                       .n_out = 1,
                       .param_size = sizeof(scan_param),
                       .fields = scan_fields,
                       .infer = scan_infer,
                       .eval = scan_eval,
                       .vjp = scan_vjp,
                       .vmap = scan_vmap,
                       .rebuild = scan_rebuild,
                       .title = scan_title};

/* ---- the ops ---- */
typedef struct {
    int axis;
    bool all, reverse, inclusive;
} scan_order;

static gm_array *scan(gm_scope *s, const char *op, gm_array *x, gm_reduce_op function, scan_order o) {
    int at = 0;
    if (o.all)
        x = gm_flatten(s, x, 0, -1);
    if (!x || (!o.all && check_axis(op, o.axis, x->ndim, &at) != GM_OK))
        return NULL;
    return scan_by(s, x, function, at, o.reverse, !o.inclusive);
}

static gm_array *cast(gm_scope *s, gm_array *x, gm_dtype type) {
    return x && type < GM_DTYPE_COUNT ? gm_astype(s, x, type) : x;
}

gm_array *gm_cumsum(gm_scope *s, gm_array *x, int axis, bool all, bool reverse, bool inclusive, gm_dtype type) {
    x = cast(s, x, type);
    x = cast(s, x, x && x->dtype == GM_BOOL ? GM_INT32 : GM_DTYPE_COUNT);
    return scan(s, "cumsum", x, GM_R_SUM, (scan_order){axis, all, reverse, inclusive});
}
gm_array *gm_cumprod(gm_scope *s, gm_array *x, int axis, bool all, bool reverse, bool inclusive, gm_dtype type) {
    return scan(s, "cumprod", cast(s, x, type), GM_R_PROD, (scan_order){axis, all, reverse, inclusive});
}
gm_array *gm_cummax(gm_scope *s, gm_array *x, int axis, bool all, bool reverse, bool inclusive) {
    return scan(s, "cummax", x, GM_R_MAX, (scan_order){axis, all, reverse, inclusive});
}
gm_array *gm_cummin(gm_scope *s, gm_array *x, int axis, bool all, bool reverse, bool inclusive) {
    return scan(s, "cummin", x, GM_R_MIN, (scan_order){axis, all, reverse, inclusive});
}
gm_array *gm_logcumsumexp(gm_scope *s, gm_array *x, int axis, bool all, bool reverse, bool inclusive) {
    x = cast(s, x, x ? dtype_inexact((gm_dtype)x->dtype) : GM_DTYPE_COUNT);
    return scan(s, "logcumsumexp", x, GM_R_LOGSUMEXP, (scan_order){axis, all, reverse, inclusive});
}
