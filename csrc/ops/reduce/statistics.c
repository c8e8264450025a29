/* statistics.c - mean, variance, standard deviation, counts: composed of reductions. Half types are summed in float32
 * and rounded once, at the end. */
#include "ops/ops.h"

static gm_dtype wide_type(gm_dtype t) { return t == GM_FLOAT16 || t == GM_BFLOAT16 ? GM_FLOAT32 : t; }

/* ---- the number of elements along axes ---- */
typedef struct { uint64_t axes; } count_param; /* bit i = axis i */
static const gm_field count_fields[] = {{FIELD_INT64, offsetof(count_param, axes), "axes", 1}, {0}};

static double count_along(const gm_array *x, uint64_t axes) {
    double count = 1;
    for (int i = 0; i < x->ndim; i++)
        count *= axes >> i & 1 ? (double)x->shape[i] : 1;
    return count;
}

static gm_status count_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)in;
    (void)n_in;
    (void)param;
    out->dtype = GM_FLOAT32;
    out->ndim = 0;
    return GM_OK;
}

static gm_status count_eval(gm_array *out, gm_queue *q) {
    const count_param *p = out->param;
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, arange, 1, .out = array_ptr(out), .type = out->dtype, .start = count_along(out->in[0], p->axes),
                    .step = 0);
}

static gm_status count_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    count_param p = *(const count_param *)out->param;
    p.axes <<= 1;
    outs[0] = batched_input(s, array_node(s, &element_count_op, in, 1, &p), false, batch_size(in, 1, batched));
    return outs[0] ? GM_OK : error_code();
}

static gm_status count_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(array_node(s, &element_count_op, in, 1, param), outs);
}

const gm_op element_count_op = {.name = "element_count",
                                .n_in = 1,
                                .n_out = 1,
                                .nondiff = 1,
                                .constant = true,
                                .param_size = sizeof(count_param),
                                .fields = count_fields,
                                .infer = count_infer,
                                .eval = count_eval,
                                .vmap = count_vmap,
                                .rebuild = count_rebuild};

gm_array *element_count(gm_scope *s, gm_array *x, int n, const int *axes, gm_dtype type) {
    count_param p = {.axes = n < 0 ? ~(uint64_t)0 : 0};
    if (!x)
        return NULL;
    for (int i = 0; i < n; i++) {
        int axis;
        if (check_axis("mean", axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        p.axes |= (uint64_t)1 << axis;
    }
    if (!trace_shapeless(x))
        return scalar_array(s, count_along(x, p.axes), type);
    return gm_astype(s, array_node(s, &element_count_op, &x, 1, &p), type);
}

/* ---- mean, variance ---- */
static gm_array *mean_of(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    gm_array *sum = gm_sum(s, x, n, axes, keep);
    return sum ? gm_divide(s, sum, element_count(s, x, n, axes, (gm_dtype)sum->dtype)) : NULL;
}

gm_array *gm_mean(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    if (!x)
        return NULL;
    gm_dtype type = dtype_inexact((gm_dtype)x->dtype), wide = wide_type(type);
    gm_array *sum = gm_sum(s, gm_astype(s, x, wide), n, axes, keep);
    return sum ? gm_astype(s, gm_divide(s, sum, element_count(s, x, n, axes, wide)), type) : NULL;
}

/* The mean of |x - mean|**2, with count - ddof instead of the count. */
static gm_array *variance(gm_scope *s, gm_array *x, int n, const int *axes, bool keep, int ddof) {
    if (!x)
        return NULL;
    gm_dtype type = dtype_inexact((gm_dtype)x->dtype);
    x = gm_astype(s, x, wide_type(type));
    gm_array *distance = gm_subtract(s, x, mean_of(s, x, n, axes, true));
    if (!distance)
        return NULL;
    gm_array *square = type == GM_COMPLEX64 ? gm_square(s, gm_abs(s, distance)) : gm_square(s, distance);
    gm_array *sum = gm_sum(s, square, n, axes, keep);
    if (!sum)
        return NULL;
    gm_dtype counted = (gm_dtype)sum->dtype;
    gm_array *count = element_count(s, x, n, axes, counted);
    if (ddof)
        count = gm_maximum(s, gm_subtract(s, count, scalar_array(s, ddof, counted)), scalar_array(s, 0, counted));
    return gm_divide(s, sum, count);
}

static gm_dtype real_type(const gm_array *x) {
    return x->dtype == GM_COMPLEX64 ? GM_FLOAT32 : dtype_inexact((gm_dtype)x->dtype);
}

gm_array *gm_var(gm_scope *s, gm_array *x, int n, const int *axes, bool keep, int ddof) {
    gm_array *v = variance(s, x, n, axes, keep, ddof);
    return v ? gm_astype(s, v, real_type(x)) : NULL;
}

gm_array *gm_std(gm_scope *s, gm_array *x, int n, const int *axes, bool keep, int ddof) {
    gm_array *v = variance(s, x, n, axes, keep, ddof);
    return v ? gm_astype(s, gm_sqrt(s, v), real_type(x)) : NULL;
}

/* Over no axes too the counts are int32: each is 0 or 1. */
gm_array *gm_count_nonzero(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return gm_astype(s, gm_sum(s, gm_astype(s, x, GM_BOOL), n, axes, keep), GM_INT32);
}
