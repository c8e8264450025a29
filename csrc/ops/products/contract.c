/* contract.c - products of tensors, all of them matrix products of rearranged operands. */
#include <string.h>
#include "ops/ops.h"

static bool needs_floats(const char *op, gm_dtype type) {
    if (dtype_is_inexact(type))
        return false;
    gm_fail(GM_EVALUE, "%s: got %s, expected floating point", op, gm_dtype_name(type));
    return true;
}

gm_array *gm_tensordot(gm_scope *s, gm_array *a, gm_array *b, int n, const int *a_axes, const int *b_axes) {
    int order_a[GM_MAX_NDIM], order_b[GM_MAX_NDIM], free_a = 0, free_b = 0, out = 0;
    int64_t shape[2 * GM_MAX_NDIM], contracted = 1, rows = 1, columns = 1;
    bool used_a[GM_MAX_NDIM] = {false}, used_b[GM_MAX_NDIM] = {false};
    if (!a || !b)
        return NULL;
    gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (needs_floats("tensordot", type))
        return NULL;
    if (a->ndim + b->ndim - 2 * n > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "tensordot: the result has more than %d dimensions", GM_MAX_NDIM), NULL;
    for (int i = 0; i < n; i++) {
        int x, y;
        if (check_axis("tensordot", a_axes[i], a->ndim, &x) != GM_OK ||
            check_axis("tensordot", b_axes[i], b->ndim, &y) != GM_OK)
            return NULL;
        if (a->shape[x] != b->shape[y])
            return gm_fail(GM_ESHAPE, "tensordot: axis %d of a has %lld items, axis %d of b has %lld", x,
                           (long long)a->shape[x], y, (long long)b->shape[y]),
                   NULL;
        if (used_a[x] || used_b[y])
            return gm_fail(GM_EVALUE, "tensordot: an axis is given twice"), NULL;
        used_a[x] = used_b[y] = true;
        contracted *= a->shape[x];
        order_a[a->ndim - n + i] = x;
        order_b[i] = y;
    }
    for (int i = 0; i < a->ndim; i++) {
        if (!used_a[i]) {
            order_a[free_a++] = i;
            rows *= shape[out++] = a->shape[i];
        }
    }
    for (int i = 0; i < b->ndim; i++) {
        if (!used_b[i]) {
            order_b[n + free_b++] = i;
            columns *= shape[out++] = b->shape[i];
        }
    }
    gm_array *left = gm_reshape(s, gm_transpose(s, gm_astype(s, a, type), a->ndim, order_a), 2,
                                (int64_t[]){rows, contracted});
    gm_array *right = gm_reshape(s, gm_transpose(s, gm_astype(s, b, type), b->ndim, order_b), 2,
                                 (int64_t[]){contracted, columns});
    return gm_reshape(s, gm_matmul(s, left, right), out, shape);
}

gm_array *gm_inner(gm_scope *s, gm_array *a, gm_array *b) {
    if (!a || !b)
        return NULL;
    if (a->ndim == 0 || b->ndim == 0)
        return gm_multiply(s, a, b);
    return gm_tensordot(s, a, b, 1, (int[]){-1}, (int[]){-1});
}

gm_array *gm_outer(gm_scope *s, gm_array *a, gm_array *b) {
    if (!a || !b)
        return NULL;
    return gm_multiply(s, gm_reshape(s, a, 2, (int64_t[]){a->size, 1}), gm_reshape(s, b, 1, &b->size));
}

gm_array *gm_vecdot(gm_scope *s, gm_array *a, gm_array *b, int axis) {
    int at;
    if (!a || !b)
        return NULL;
    if (a->ndim == 0 || b->ndim == 0)
        return gm_fail(GM_EVALUE, "vecdot: operands of %d and %d dimensions, expected at least 1", a->ndim, b->ndim),
               NULL;
    if (check_axis("vecdot", axis, a->ndim, &at) != GM_OK || broadcast_check("vecdot", a, b) != GM_OK)
        return NULL;
    if (a->ndim != b->ndim || a->shape[at] != b->shape[at]) {
        char ta[128], tb[128];
        shape_text(a->ndim, a->shape, ta);
        shape_text(b->ndim, b->shape, tb);
        return gm_fail(GM_ESHAPE,
                       "vecdot: shapes %s and %s, expected as many dimensions and as many items along axis %d", ta, tb,
                       axis),
               NULL;
    }
    return gm_sum(s, gm_multiply(s, a->dtype == GM_COMPLEX64 ? gm_conjugate(s, a) : a, b), 1, &axis, false);
}

/* ---- products of parts ---- */
gm_array *gm_segmented_mm(gm_scope *s, gm_array *a, gm_array *b, gm_array *segments) {
    if (!a || !b || !segments)
        return NULL;
    if (a->ndim != 2 || b->ndim != 2 || segments->ndim < 1 || segments->shape[segments->ndim - 1] != 2 ||
        a->shape[1] != b->shape[0] || !dtype_is_integer((gm_dtype)segments->dtype)) {
        char ta[128], tb[128], ts[128];
        array_text(a, ta);
        array_text(b, tb);
        array_text(segments, ts);
        return gm_fail(GM_ESHAPE,
                       "segmented_mm: got %s, %s and segments %s, expected [m, k], [k, n] and integers "
                       "[..., 2]",
                       ta, tb, ts),
               NULL;
    }
    if (needs_floats("segmented_mm", gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype)))
        return NULL;
    /* A mask for each segment: the columns of a that are in it. */
    int n = segments->ndim;
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM], shape[GM_MAX_NDIM + 1];
    for (int i = 0; i < n; i++) {
        stop[i] = segments->shape[i];
        shape[i] = i < n - 1 ? segments->shape[i] : 1;
        step[i] = 1;
    }
    shape[n] = 1;
    gm_array *bounds[2];
    for (int i = 0; i < 2; i++) {
        start[n - 1] = i;
        stop[n - 1] = i + 1;
        bounds[i] = gm_astype(s, gm_reshape(s, gm_slice(s, segments, start, stop, step), n + 1, shape), GM_INT64);
    }
    gm_array *k = gm_arange(s, 0, (double)a->shape[1], 1, GM_INT64);
    gm_array *mask = gm_logical_and(s, gm_greater_equal(s, k, bounds[0]), gm_less(s, k, bounds[1]));
    return gm_matmul(s, gm_where(s, mask, a, scalar_array(s, 0, (gm_dtype)a->dtype)), b);
}

/* A mask with an entry for each block, repeated to the matrix it is for; bool chooses, numbers scale. */
static gm_array *masked(gm_scope *s, gm_array *x, gm_array *mask, int block) {
    if (!x || !mask || array_is_none(mask))
        return x;
    int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1];
    if (mask->ndim < 2 || mask->shape[mask->ndim - 2] != (rows + block - 1) / block ||
        mask->shape[mask->ndim - 1] != (columns + block - 1) / block) {
        char tx[128], tm[128];
        shape_text(x->ndim, x->shape, tx);
        shape_text(mask->ndim, mask->shape, tm);
        return gm_fail(GM_ESHAPE, "block_masked_mm: a mask %s for a matrix %s in blocks of %d", tm, tx, block), NULL;
    }
    mask = gm_repeat(s, gm_repeat(s, mask, block, -1, false), block, -2, false);
    if (!mask)
        return NULL;
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    for (int i = 0; i < mask->ndim; i++) {
        stop[i] = i == mask->ndim - 2 ? rows : i == mask->ndim - 1 ? columns : mask->shape[i];
        step[i] = 1;
    }
    mask = gm_slice(s, mask, start, stop, step);
    if (mask && mask->dtype == GM_BOOL)
        return gm_where(s, mask, x, scalar_array(s, 0, (gm_dtype)x->dtype));
    return gm_astype(s, gm_multiply(s, x, mask), (gm_dtype)x->dtype);
}

gm_array *gm_block_masked_mm(gm_scope *s, gm_array *a, gm_array *b, int block, gm_array *mask_out, gm_array *mask_lhs,
                             gm_array *mask_rhs) {
    if (!a || !b || !mask_out || !mask_lhs || !mask_rhs)
        return NULL;
    if (block < 1)
        return gm_fail(GM_EVALUE, "block_masked_mm: block size %d, expected 1 or more", block), NULL;
    if (a->ndim < 2 || b->ndim < 2)
        return gm_fail(GM_EVALUE, "block_masked_mm: operands of %d and %d dimensions, expected at least 2", a->ndim,
                       b->ndim),
               NULL;
    if (needs_floats("block_masked_mm", gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype)))
        return NULL;
    return masked(s, gm_matmul(s, masked(s, a, mask_lhs, block), masked(s, b, mask_rhs, block)), mask_out, block);
}

/* ---- Hadamard ---- */
/* Rows of Hadamard matrices, a bit for each sign, the first column in the highest bit. */
static const uint32_t hadamard12[12] = {3071, 682, 3779, 2198, 4016, 2597, 3308, 2441, 3131, 2402, 3854, 2648};
static const uint32_t hadamard20[20] = {541494, 271243, 135637, 67834,  34413,  508217, 762524, 889166, 952487, 984659,
                                        219663, 109847, 578715, 813149, 406590, 301584, 658696, 345220, 188482, 602145};
static const uint32_t hadamard28[28] = {135817548, 68949158,  34482707,  17241417,  8620772,   4318514,   3199641,
                                        63969746,  31993001,  149173844, 207756074, 237047189, 251700938, 125858597,
                                        95625246,  180981775, 90490951,  179455075, 223937137, 111968632, 189153468,
                                        107704512, 188069920, 227204112, 114642440, 58361604,  162349954, 215392641};

static gm_array *hadamard_matrix(gm_scope *s, int m, gm_dtype type) {
    const uint32_t *rows = m == 12 ? hadamard12 : m == 20 ? hadamard20 : hadamard28;
    float signs[28 * 28];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < m; j++)
            signs[i * m + j] = rows[i] >> (m - 1 - j) & 1 ? 1.0f : -1.0f;
    return gm_astype(s, gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){m, m}, signs), type);
}

/* Sums and differences of pairs `half` apart: one step of the fast transform over the last axis of [rows, n]. */
static gm_array *butterfly(gm_scope *s, gm_array *x, int64_t rows, int64_t n, int64_t half) {
    int64_t shape[4] = {rows, n / (2 * half), 2, half};
    x = gm_reshape(s, x, 4, shape);
    gm_array *parts[2];
    for (int i = 0; i < 2; i++)
        parts[i] = gm_slice(s, x, (int64_t[]){0, 0, i, 0}, (int64_t[]){rows, shape[1], i + 1, half},
                            (int64_t[]){1, 1, 1, 1});
    gm_array *both[2] = {gm_add(s, parts[0], parts[1]), gm_subtract(s, parts[0], parts[1])};
    return gm_concatenate(s, both, 2, 2);
}

gm_array *gm_hadamard_transform(gm_scope *s, gm_array *x, const double *scale) {
    if (!x)
        return NULL;
    gm_dtype type = dtype_inexact((gm_dtype)x->dtype);
    if (x->size == 0 || x->ndim == 0)
        return gm_astype(s, x, type);
    int64_t n = x->shape[x->ndim - 1], rows = x->size / n, rest = n;
    int m = n % 28 == 0 && n / 28 && !(n / 28 & (n / 28 - 1)) ? 28
            : n % 20 == 0 && !(n / 20 & (n / 20 - 1))         ? 20
            : n % 12 == 0 && !(n / 12 & (n / 12 - 1))         ? 12
                                                              : 1;
    rest = n / m;
    if (rest & (rest - 1))
        return gm_fail(GM_EVALUE,
                       "hadamard_transform: a last axis of %lld; only m * 2**k with m of 1, 12, 20, 28 is "
                       "supported",
                       (long long)n),
               NULL;
    gm_array *y = gm_astype(s, x, type);
    for (int64_t half = 1; half < rest; half *= 2)
        y = butterfly(s, y, rows, n, half);
    if (m > 1)
        y = gm_matmul(s, hadamard_matrix(s, m, type), gm_reshape(s, y, 3, (int64_t[]){rows, m, rest}));
    double factor = scale ? *scale : 1 / __builtin_sqrt((double)n);
    return gm_reshape(s, gm_multiply(s, y, scalar_array(s, factor, type)), x->ndim, x->shape);
}
