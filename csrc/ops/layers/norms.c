/* norms.c - norms of vectors and matrices, and the cross product: made of other ops. */
#include "ops/linalg/linalg.h"
#include <math.h>
#include <string.h>

/* Root of the sum of squares of absolute values; real. */
static gm_array *root_of_squares(gm_scope *s, gm_array *x, int n_axes, const int *axes, bool keepdims) {
    if (x && x->dtype == GM_COMPLEX64)
        x = gm_abs(s, x);
    return gm_sqrt(s, gm_sum(s, gm_square(s, x), n_axes, axes, keepdims));
}

static gm_array *vector_norm(gm_scope *s, gm_array *x, double p, int axis, bool keepdims) {
    gm_array *size = gm_abs(s, x), *norm;
    if (!size)
        return NULL;
    gm_dtype real = (gm_dtype)size->dtype;
    if (p == 2)
        return root_of_squares(s, x, 1, &axis, keepdims);
    if (p == 0) {
        gm_array *zero = scalar_array(s, 0, real);
        norm = gm_sum(s, gm_astype(s, gm_not_equal(s, size, zero), real), 1, &axis, keepdims);
    } else if (p == 1) {
        norm = gm_sum(s, size, 1, &axis, keepdims);
    } else if (isinf(p)) {
        norm = (p > 0 ? gm_max : gm_min)(s, size, 1, &axis, keepdims);
    } else {
        gm_array *sum = gm_sum(s, gm_power(s, size, scalar_array(s, p, real)), 1, &axis, keepdims);
        norm = gm_power(s, sum, scalar_array(s, 1 / p, real));
    }
    return gm_astype(s, norm, (gm_dtype)x->dtype);
}

/* The singular values of the matrices that two axes make, on a last axis. */
static gm_array *singular_values(gm_scope *s, gm_array *x, const int *axes) {
    int order[GM_MAX_NDIM], n = 0;
    gm_array *values;
    for (int i = 0; i < x->ndim; i++)
        if (i != axes[0] && i != axes[1])
            order[n++] = i;
    order[n++] = axes[0];
    order[n++] = axes[1];
    return gm_svd(s, gm_transpose(s, x, n, order), false, &values) ? values : NULL;
}

typedef enum { NORM_NUMBER, NORM_FROBENIUS, NORM_NUCLEAR } norm_kind;

static gm_array *matrix_norm(gm_scope *s, gm_array *x, norm_kind kind, double p, const int *axes, bool keepdims) {
    gm_array *norm;
    bool spectral = kind == NORM_NUCLEAR || (kind == NORM_NUMBER && fabs(p) == 2);
    if (kind == NORM_FROBENIUS)
        return root_of_squares(s, x, 2, axes, keepdims);
    if (!spectral) {
        if (!isinf(p) && fabs(p) != 1)
            return gm_fail(GM_EVALUE, "norm: ord %g, expected 1, 2, inf, -1, -2 or -inf for matrices", p), NULL;
        int summed = isinf(p) ? axes[1] : axes[0], rest = isinf(p) ? axes[0] : axes[1];
        norm = gm_sum(s, gm_abs(s, x), 1, &summed, true);
        norm = (p > 0 ? gm_max : gm_min)(s, norm, 1, &rest, true);
        int64_t shape[GM_MAX_NDIM];
        int n = 0;
        for (int i = 0; i < x->ndim; i++)
            if (i != axes[0] && i != axes[1])
                shape[n++] = x->shape[i];
        norm = gm_astype(s, norm, (gm_dtype)x->dtype);
        return keepdims ? norm : gm_reshape(s, norm, n, shape);
    }
    gm_array *values = singular_values(s, x, axes);
    norm = (kind == NORM_NUCLEAR ? gm_sum : p > 0 ? gm_max : gm_min)(s, values, 1, (int[]){-1}, false);
    if (keepdims) {
        int64_t shape[GM_MAX_NDIM];
        memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
        shape[axes[0]] = shape[axes[1]] = 1;
        norm = gm_reshape(s, norm, x->ndim, shape);
    }
    return kind == NORM_NUCLEAR ? norm : gm_astype(s, norm, (gm_dtype)x->dtype);
}

gm_array *gm_norm(gm_scope *s, gm_array *x, const char *name, double p, int n_axes, const int *axes, bool keepdims) {
    int all[GM_MAX_NDIM];
    bool plain = !name && isnan(p), chosen = n_axes >= 0;
    norm_kind kind = NORM_NUMBER;
    if (!x)
        return NULL;
    if (!chosen)
        n_axes = x->ndim;
    for (int i = 0; i < n_axes && i < GM_MAX_NDIM; i++)
        if (check_axis("norm", chosen ? axes[i] : i, x->ndim, &all[i]) != GM_OK)
            return NULL;
    if (name && n_axes != 2)
        return gm_fail(GM_EVALUE, "norm: ord '%s' needs matrices (two axes), got %d", name, n_axes), NULL;
    if (name) {
        kind = strcmp(name, "nuc") == 0 ? NORM_NUCLEAR : NORM_FROBENIUS;
        if (kind == NORM_FROBENIUS && strcmp(name, "fro") != 0 && strcmp(name, "f") != 0)
            return gm_fail(GM_EVALUE, "norm: ord '%s', expected 'fro', 'nuc' or a number", name), NULL;
    }
    if (n_axes > 2 ? !plain || chosen : n_axes == 0 && !plain)
        return gm_fail(GM_EVALUE, "norm: %d axes, expected one for vectors or two for matrices", n_axes), NULL;
    if (n_axes == 2 && all[0] == all[1])
        return gm_fail(GM_EVALUE, "norm: axis %d is given twice", all[0]), NULL;
    if (!dtype_is_inexact((gm_dtype)x->dtype) && (kind == NORM_NUCLEAR || (n_axes == 2 && fabs(p) == 2)))
        return gm_fail(GM_EVALUE, "norm: got %s, expected float32, float64 or complex64",
                       gm_dtype_name((gm_dtype)x->dtype)),
               NULL;
    x = gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype));
    if (plain)
        return root_of_squares(s, x, n_axes, all, keepdims);
    return n_axes == 1 ? vector_norm(s, x, p, all[0], keepdims) : matrix_norm(s, x, kind, p, all, keepdims);
}

/* ---- cross product ---- */
/* Component k along an axis, which stays with one item; NULL where there is none. */
static gm_array *component(gm_scope *s, gm_array *x, int axis, int64_t k) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    if (k >= x->shape[axis])
        return NULL;
    for (int i = 0; i < x->ndim; i++) {
        stop[i] = x->shape[i];
        step[i] = 1;
    }
    start[axis] = k;
    stop[axis] = k + 1;
    return gm_slice(s, x, start, stop, step);
}

/* a_i b_j - a_j b_i, where a missing component is zero */
static gm_array *component_of_product(gm_scope *s, gm_array *const *a, gm_array *const *b, int i, int j) {
    gm_array *first = a[i] && b[j] ? gm_multiply(s, a[i], b[j]) : NULL;
    gm_array *second = a[j] && b[i] ? gm_multiply(s, a[j], b[i]) : NULL;
    if (first && second)
        return gm_subtract(s, first, second);
    if (first)
        return first;
    gm_array *zero = scalar_array(s, 0, (gm_dtype)a[0]->dtype);
    return second ? gm_subtract(s, zero, second) : gm_multiply(s, zero, gm_multiply(s, a[0], b[0]));
}

gm_array *gm_cross(gm_scope *s, gm_array *a, gm_array *b, int axis) {
    gm_array *parts_a[3], *parts_b[3], *out[3];
    int axis_a, axis_b;
    if (!a || !b || check_axis("cross", axis, a->ndim, &axis_a) != GM_OK ||
        check_axis("cross", axis, b->ndim, &axis_b) != GM_OK)
        return NULL;
    int64_t na = a->shape[axis_a], nb = b->shape[axis_b];
    if (na < 2 || na > 3 || nb < 2 || nb > 3)
        return gm_fail(GM_ESHAPE, "cross: %lld and %lld components, expected two or three", (long long)na,
                       (long long)nb),
               NULL;
    gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    a = gm_astype(s, a, type);
    b = gm_astype(s, b, type);
    if (!a || !b)
        return NULL;
    for (int k = 0; k < 3; k++) {
        parts_a[k] = component(s, a, axis_a, k);
        parts_b[k] = component(s, b, axis_b, k);
    }
    if (error_code() != GM_OK)
        return NULL;
    for (int k = 0; k < 3; k++)
        if (!(out[k] = component_of_product(s, parts_a, parts_b, (k + 1) % 3, (k + 2) % 3)))
            return NULL;
    int64_t back = (a->ndim > b->ndim ? axis_a - a->ndim : axis_b - b->ndim);
    return gm_concatenate(s, out, 3, (int)back);
}
