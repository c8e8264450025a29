/* solve.c - linear systems: inverses, solutions, determinants, the pseudo-inverse. */
#include "ops/linalg/linalg.h"
#include <string.h>

/* By part of the matrix that is inverted. */
static const char *const singular[] = {
    [GM_PART_ALL] = "linalg: LU factorization failed: a matrix is singular, it has no inverse",
    [GM_PART_LOWER] = "linalg: triangular inversion failed: a matrix is singular, it has no inverse",
    [GM_PART_UPPER] = "linalg: triangular inversion failed: a matrix is singular, it has no inverse"};

/* ---- inverse ---- */
typedef struct {
    int32_t part;
    int32_t checked;
} inverse_param; /* gm_matrix_part; whether singular is an error */
static const gm_field inverse_fields[] = {{FIELD_INT, offsetof(inverse_param, part), "part", 1},
                                          {FIELD_INT, offsetof(inverse_param, checked), "checked", 1},
                                          {0}};

/* Solves with a and b as doubles, b being the identity or given, over b. */
typedef struct {
    double *a, *b;
    int64_t cols;
    bool identity, checked;
} linear_system;

static gm_status launch_solve(gm_queue *q, matrices m, gm_matrix_part part, linear_system l) {
    int32_t *failed = l.checked ? queue_flag(q, singular[part]) : NULL;
    uint32_t *pivots = queue_scratch(q, (size_t)(m.count * m.rows) * sizeof *pivots + 1);
    if (!pivots || (l.checked && !failed))
        return error_code();
    return DISPATCH(q, linear_solve, m.count, .a = l.a, .b = l.b, .pivots = pivots, .n = m.rows, .cols = l.cols,
                    .part = part, .identity = l.identity, .failed = failed);
}

static gm_status inverse_eval(gm_array *out, gm_queue *q) {
    const inverse_param *p = out->param;
    matrices m = matrices_of(out->in[0]);
    double *a, *b = matrices_scratch(q, m.count, m.rows * m.rows);
    if (!b)
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(launch_solve(q, m, (gm_matrix_part)p->part,
                        (linear_system){a, b, m.rows, .identity = true, .checked = p->checked}));
    return matrices_store(q, out, b, false);
}

/* x with what is outside of the part as zeros */
static gm_array *part_of(gm_scope *s, gm_array *x, int32_t part) {
    return part == GM_PART_ALL ? x : triangle(s, x, part == GM_PART_UPPER, 0);
}

/* b = a^-1: da = -b' db b' */
static void inverse_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    gm_array *b = transposed(s, out);
    (void)in;
    grad[0] = part_of(s, gm_negative(s, gm_matmul(s, gm_matmul(s, b, cotangents[0]), b)),
                      ((const inverse_param *)out->param)->part);
}

static gm_status inverse_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    if (!within(((const inverse_param *)param)->part, GM_PART_UPPER + 1))
        return rebuild_refuse("inverse");
    GM_TRY(matrices_check(inverse_op.name, in[0], true, false));
    return matrices_rebuild(s, &inverse_op, in, param, n_out, outs);
}

const gm_op inverse_op = {.name = "inverse",
                          .place = PLACE_REFUSED,
                          .n_in = 1,
                          .n_out = 1,
                          .param_size = sizeof(inverse_param),
                          .fields = inverse_fields,
                          .infer = matrices_infer_same,
                          .eval = inverse_eval,
                          .vjp = inverse_vjp,
                          .vmap = vmap_matrices,
                          .rebuild = inverse_rebuild};

static gm_array *inverse(gm_scope *s, const char *name, gm_array *x, gm_matrix_part part, bool checked) {
    if (!x || matrices_check(name, x, true, false) != GM_OK)
        return NULL;
    return array_node(s, &inverse_op, &x, 1, &(inverse_param){(int32_t)part, checked});
}

gm_array *gm_inv(gm_scope *s, gm_array *x) { return inverse(s, "inv", x, GM_PART_ALL, true); }

gm_array *gm_tri_inv(gm_scope *s, gm_array *x, bool upper) {
    return inverse(s, "tri_inv", x, upper ? GM_PART_UPPER : GM_PART_LOWER, true);
}

gm_array *gm_cholesky_inv(gm_scope *s, gm_array *x, bool upper) {
    gm_array *b = inverse(s, "cholesky_inv", x, upper ? GM_PART_UPPER : GM_PART_LOWER, true), *t = transposed(s, b);
    return upper ? gm_matmul(s, b, t) : gm_matmul(s, t, b);
}

/* ---- solve ---- */
typedef struct {
    int32_t part;
    int32_t unused;
} solve_param;
static const gm_field solve_fields[] = {{FIELD_INT, offsetof(solve_param, part), "part", 1}, {0}};

static gm_status solve_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *a = in[0], *b = in[1];
    (void)n_in;
    (void)param;
    GM_TRY(matrices_check("solve", a, true, false));
    if (b->dtype != a->dtype || b->ndim != a->ndim ||
        memcmp(a->shape, b->shape, (size_t)(a->ndim - 1) * sizeof *a->shape) != 0) {
        char ta[128], tb[128];
        array_text(a, ta);
        array_text(b, tb);
        return gm_fail(GM_ESHAPE, "solve: the matrices %s and the right hand sides %s do not fit", ta, tb);
    }
    spec_like(out, in[1], (gm_dtype)in[1]->dtype);
    return GM_OK;
}

static gm_status solve_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    double *a, *b;
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(matrices_load(q, out->in[1], false, &b));
    GM_TRY(launch_solve(q, m, (gm_matrix_part)((const solve_param *)out->param)->part,
                        (linear_system){a, b, out->shape[out->ndim - 1], .checked = true}));
    return matrices_store(q, out, b, false);
}

static gm_array *solve_node(gm_scope *s, gm_array *a, gm_array *b, int32_t part) {
    gm_array *in[2] = {a, b};
    return array_node(s, &solve_op, in, 2, &(solve_param){part, 0});
}

/* a x = b: db = a'^-1 dx, da = -db x' */
static void solve_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    int32_t part = ((const solve_param *)out->param)->part;
    int32_t other = part == GM_PART_LOWER ? GM_PART_UPPER : part == GM_PART_UPPER ? GM_PART_LOWER : GM_PART_ALL;
    grad[1] = solve_node(s, transposed(s, in[0]), cotangents[0], other);
    grad[0] = part_of(s, gm_negative(s, gm_matmul(s, grad[1], transposed(s, out))), part);
}

static gm_status solve_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    const int32_t part = ((const solve_param *)param)->part;
    (void)n_in;
    (void)n_out;
    return within(part, GM_PART_UPPER + 1) ? rebuilt(solve_node(s, in[0], in[1], part), outs) : rebuild_refuse("solve");
}

const gm_op solve_op = {.name = "solve",
                        .place = PLACE_REFUSED,
                        .n_in = 2,
                        .n_out = 1,
                        .param_size = sizeof(solve_param),
                        .fields = solve_fields,
                        .infer = solve_infer,
                        .eval = solve_eval,
                        .vjp = solve_vjp,
                        .vmap = vmap_leading,
                        .rebuild = solve_rebuild};

/* b, if it has one axis only, is one column; the leading axes of a and b broadcast. */
static gm_array *solve(gm_scope *s, const char *name, gm_array *a, gm_array *b, gm_matrix_part part) {
    gm_spec lead;
    char ta[128], tb[128];
    if (!a || !b || matrices_check(name, a, true, false) != GM_OK)
        return NULL;
    gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (type != GM_FLOAT32 && type != GM_FLOAT64)
        return gm_fail(GM_EVALUE, "%s: got %s and %s, expected what promotes to float32 or float64", name,
                       gm_dtype_name((gm_dtype)a->dtype), gm_dtype_name((gm_dtype)b->dtype)),
               NULL;
    int64_t n = a->shape[a->ndim - 1];
    bool column = b->ndim == 1;
    if (b->ndim == 0 || b->shape[column ? 0 : b->ndim - 2] != n) {
        shape_text(a->ndim, a->shape, ta);
        shape_text(b->ndim, b->shape, tb);
        return gm_fail(GM_ESHAPE, "%s: the matrices %s and the right hand sides %s do not fit", name, ta, tb), NULL;
    }
    a = gm_astype(s, a, type);
    b = gm_astype(s, b, type);
    if (column)
        b = gm_reshape(s, b, 2, (int64_t[]){n, 1});
    if (!a || !b)
        return NULL;
    gm_array before_a = {.ndim = (int16_t)(a->ndim - 2), .shape = a->shape};
    gm_array before_b = {.ndim = (int16_t)(b->ndim - 2), .shape = b->shape};
    if (broadcast_shape(name, &before_a, &before_b, &lead) != GM_OK)
        return NULL;
    int64_t cols = b->shape[b->ndim - 1];
    lead.shape[lead.ndim] = n;
    lead.shape[lead.ndim + 1] = n;
    a = gm_broadcast_to(s, a, lead.ndim + 2, lead.shape);
    lead.shape[lead.ndim + 1] = cols;
    b = gm_broadcast_to(s, b, lead.ndim + 2, lead.shape);
    gm_array *x = solve_node(s, a, b, (int32_t)part);
    return column ? gm_reshape(s, x, lead.ndim + 1, lead.shape) : x;
}

gm_array *gm_solve(gm_scope *s, gm_array *a, gm_array *b) { return solve(s, "solve", a, b, GM_PART_ALL); }

gm_array *gm_solve_triangular(gm_scope *s, gm_array *a, gm_array *b, bool upper) {
    return solve(s, "solve_triangular", a, b, upper ? GM_PART_UPPER : GM_PART_LOWER);
}

/* ---- determinant ---- */
static gm_status determinant_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    for (int k = 0; k < 3; k++)
        matrices_spec(&out[k], in[0], (gm_dtype)in[0]->dtype, 0, NULL);
    return GM_OK;
}

static gm_status determinant_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    double *a, *values[3];
    uint32_t *pivots = queue_scratch(q, (size_t)(m.count * m.rows) * sizeof *pivots + 1);
    for (int k = 0; k < 3; k++)
        if (!(values[k] = matrices_scratch(q, m.count, 1)))
            return error_code();
    if (!pivots)
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, determinant, m.count, .a = a, .pivots = pivots, .sign = values[0], .log_abs = values[1],
                    .value = values[2], .n = m.rows));
    for (int k = 0; k < 3; k++)
        GM_TRY(matrices_store(q, array_output(out, k), values[k], false));
    return GM_OK;
}

static gm_status cofactor_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    double *a, *to = matrices_scratch(q, m.count, m.rows * m.rows);
    double *work = matrices_scratch(q, m.count, GM_COFACTOR_WORK(m.rows));
    if (!to || !work)
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, cofactor, m.count, .a = a, .out = to, .work = work, .n = m.rows));
    return matrices_store(q, out, to, false);
}

/* A number for each matrix, to multiply matrices by. */
static gm_array *per_matrix(gm_scope *s, gm_array *x) {
    int64_t shape[GM_MAX_NDIM];
    if (!x)
        return NULL;
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim] = shape[x->ndim + 1] = 1;
    return gm_reshape(s, x, x->ndim + 2, shape);
}

/* Of regular matrices: det(a) a'^-1. */
static gm_array *cofactor_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    return gm_multiply(s, per_matrix(s, gm_det(s, in[0])), transposed(s, gm_inv(s, in[0])));
}

static gm_status cofactor_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    (void)n_in;
    GM_TRY(matrices_check(cofactor_op.name, in[0], true, false));
    return matrices_rebuild(s, &cofactor_op, in, param, n_out, outs);
}

const gm_op cofactor_op = {.name = "cofactor",
                           .place = PLACE_REFUSED,
                           .n_in = 1,
                           .n_out = 1,
                           .infer = matrices_infer_same,
                           .eval = cofactor_eval,
                           .vmap = vmap_matrices,
                           .compose = cofactor_compose,
                           .rebuild = cofactor_rebuild};

/* d log|det a| = a'^-1, d det a = cofactors of a; the sign has no derivative. */
static void determinant_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                            gm_array **grad) {
    (void)out;
    gm_array *x = in[0], *log_part = NULL, *part = NULL;
    if (cotangents[1])
        log_part = gm_multiply(s, per_matrix(s, cotangents[1]),
                               transposed(s, inverse(s, "slogdet", x, GM_PART_ALL, false)));
    if (cotangents[2])
        part = gm_multiply(s, per_matrix(s, cotangents[2]), array_node(s, &cofactor_op, &x, 1, NULL));
    grad[0] = log_part && part ? gm_add(s, log_part, part) : log_part ? log_part : part;
}

static gm_status determinant_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                     gm_array **outs) {
    (void)n_in;
    GM_TRY(matrices_check(determinant_op.name, in[0], true, false));
    return matrices_rebuild(s, &determinant_op, in, param, n_out, outs);
}

/* outputs: sign, logarithm of the absolute value, value */
const gm_op determinant_op = {.name = "determinant",
                              .place = PLACE_REFUSED,
                              .n_in = 1,
                              .n_out = 3,
                              .infer = determinant_infer,
                              .eval = determinant_eval,
                              .vjp = determinant_vjp,
                              .vmap = vmap_matrices,
                              .rebuild = determinant_rebuild};

static gm_array *determinant(gm_scope *s, const char *name, gm_array *x, gm_array **outs) {
    if (!x)
        return NULL;
    gm_dtype type = (gm_dtype)x->dtype;
    if (type == GM_COMPLEX64)
        return gm_fail(GM_EVALUE, "%s: complex64 is not supported", name), NULL;
    gm_array *wide = gm_astype(s, x, type == GM_FLOAT64 ? GM_FLOAT64 : GM_FLOAT32);
    if (!wide || matrices_check(name, wide, true, false) != GM_OK ||
        array_nodes(s, &determinant_op, &wide, 1, NULL, 0, 3, outs) != GM_OK)
        return NULL;
    for (int k = 0; k < 3; k++)
        if (!(outs[k] = gm_astype(s, outs[k], dtype_inexact(type))))
            return NULL;
    return outs[0];
}

gm_array *gm_slogdet(gm_scope *s, gm_array *x, gm_array **outs) {
    gm_array *all[3];
    if (!determinant(s, "slogdet", x, all))
        return NULL;
    outs[1] = all[1];
    return outs[0] = all[0];
}

gm_array *gm_det(gm_scope *s, gm_array *x) {
    gm_array *all[3];
    return determinant(s, "det", x, all) ? all[2] : NULL;
}

/* ---- pseudo-inverse ---- */
/* v diag(1 / s) u', where singular values that are zero but for rounding count as zero. */
gm_array *gm_pinv(gm_scope *s, gm_array *x) {
    gm_array *outs[3];
    if (!x || matrices_check("pinv", x, false, false) != GM_OK || !gm_svd(s, x, true, outs))
        return NULL;
    matrices m = matrices_of(x);
    gm_dtype type = (gm_dtype)x->dtype;
    int64_t k = m.rows < m.cols ? m.rows : m.cols, longer = m.rows < m.cols ? m.cols : m.rows;
    gm_array *values = outs[1];
    gm_array *u = matrices_corner(s, outs[0], m.rows, k), *vh = matrices_corner(s, outs[2], k, m.cols);
    if (k == 0) /* no greatest value to compare with */
        return gm_matmul(s, transposed(s, vh), transposed(s, u));
    double epsilon = type == GM_FLOAT64 ? 0x1p-52 : 0x1p-23;
    gm_array *limit = gm_multiply(s, gm_max(s, values, 1, (int[]){-1}, true),
                                  scalar_array(s, 10 * (double)longer * epsilon, type));
    gm_array *one = scalar_array(s, 1, type), *zero = scalar_array(s, 0, type);
    gm_array *is_kept = gm_greater(s, values, limit);
    gm_array *factors = gm_where(s, is_kept, gm_divide(s, one, gm_where(s, is_kept, values, one)), zero);
    if (!factors)
        return NULL;
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, factors->shape, (size_t)factors->ndim * sizeof *shape);
    shape[factors->ndim] = 1;
    return gm_matmul(s, transposed(s, gm_multiply(s, gm_reshape(s, factors, factors->ndim + 1, shape), vh)),
                     transposed(s, u));
}
