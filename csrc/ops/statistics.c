/* statistics.c - mean, variance, standard deviation, counts: composed of reductions. Half types are summed in float32
 * and rounded once, at the end. */
#include "ops/ops.h"

static gm_dtype wide_type(gm_dtype t) { return t == GM_FLOAT16 || t == GM_BFLOAT16 ? GM_FLOAT32 : t; }

/* How many elements each one of the reduced array stands for. */
static double count_of(const gm_array *x, const gm_array *reduced) {
    if (reduced->size)
        return (double)x->size / (double)reduced->size;
    return 1;
}

static gm_array *mean_of(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    gm_array *sum = gm_sum(s, x, n, axes, keep);
    return sum ? gm_divide(s, sum, scalar_array(s, count_of(x, sum), (gm_dtype)sum->dtype)) : NULL;
}

gm_array *gm_mean(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    if (!x)
        return NULL;
    gm_dtype type = dtype_inexact((gm_dtype)x->dtype), wide = wide_type(type);
    gm_array *sum = gm_sum(s, gm_astype(s, x, wide), n, axes, keep);
    return sum ? gm_astype(s, gm_divide(s, sum, scalar_array(s, count_of(x, sum), wide)), type) : NULL;
}

/* The mean of |x - mean|**2, with count - ddof in place of the count. */
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
    double count = count_of(x, sum) - ddof;
    return gm_divide(s, sum, scalar_array(s, count > 0 ? count : 0, (gm_dtype)sum->dtype));
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

gm_array *gm_count_nonzero(gm_scope *s, gm_array *x, int n, const int *axes, bool keep) {
    return gm_sum(s, gm_astype(s, x, GM_BOOL), n, axes, keep);
}
