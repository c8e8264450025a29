/* spectral.c - singular values and eigenvalues. */
#include "ops/linalg/linalg.h"
#include <string.h>

static const char no_convergence[] = "linalg: the iteration did not converge: a matrix is not finite, or nearly so";

/* ---- svd ---- */
typedef struct {
    int32_t vectors;
    int32_t unused;
} svd_param;
static const gm_field svd_fields[] = {{FIELD_INT, offsetof(svd_param, vectors), "vectors", 1}, {0}};

static gm_dtype real_of(gm_dtype type) { return type == GM_COMPLEX64 ? GM_FLOAT32 : type; }

/* outputs: u, s, vh; or s alone */
static gm_status svd_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    matrices m = matrices_of(in[0]);
    gm_dtype type = (gm_dtype)in[0]->dtype;
    bool vectors = ((const svd_param *)param)->vectors;
    matrices_spec(&out[vectors], in[0], real_of(type), 1, m.rows < m.cols ? &m.rows : &m.cols);
    if (vectors) {
        matrices_spec(&out[0], in[0], type, 2, (int64_t[]){m.rows, m.rows});
        matrices_spec(&out[2], in[0], type, 2, (int64_t[]){m.cols, m.cols});
    }
    return GM_OK;
}

/* The kernel takes at least as many rows as columns: else it gets the transpose, whose factors are the same in reverse
 * order, each transposed. */
static gm_status svd_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    bool vectors = ((const svd_param *)out->param)->vectors, wide = m.rows < m.cols;
    int64_t rows = wide ? m.cols : m.rows, cols = wide ? m.rows : m.cols, w = m.width;
    double *a, *ut = NULL, *vh = NULL, *values = matrices_scratch(q, m.count, cols);
    double *work = matrices_scratch(q, m.count, GM_SVD_WORK(rows, cols, w));
    int32_t *failed = queue_flag(q, no_convergence);
    if (vectors) {
        ut = matrices_scratch(q, m.count, rows * rows * w);
        vh = matrices_scratch(q, m.count, cols * cols * w);
    }
    if (!values || !work || !failed || (vectors && (!ut || !vh)))
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], wide, &a));
    GM_TRY(DISPATCH(q, svd, m.count, .a = a, .s = values, .ut = ut, .vh = vh, .work = work, .rows = rows, .cols = cols,
                    .width = (int)w, .failed = failed));
    if (vectors) {
        GM_TRY(matrices_store(q, out, wide ? vh : ut, true));
        GM_TRY(matrices_store(q, array_output(out, 2), wide ? ut : vh, false));
    }
    return matrices_store(q, array_output(out, vectors), values, false);
}

/* ds = the diagonal of u' da v; the vectors have no derivative here. */
static void svd_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    bool vectors = ((const svd_param *)out->param)->vectors;
    gm_array *x = in[0], *outs[3], *ds = cotangents[vectors];
    if (x->dtype == GM_COMPLEX64 || (vectors && (cotangents[0] || cotangents[2]))) {
        gm_fail(GM_EVALUE, "svd: only the singular values of real matrices have a gradient");
        return;
    }
    matrices m = matrices_of(x);
    int64_t k = m.rows < m.cols ? m.rows : m.cols, shape[GM_MAX_NDIM];
    if (!gm_svd(s, x, true, outs))
        return;
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim - 2] = 1;
    shape[x->ndim - 1] = k;
    gm_array *u = matrices_corner(s, outs[0], m.rows, k), *vh = matrices_corner(s, outs[2], k, m.cols);
    grad[0] = gm_matmul(s, gm_multiply(s, u, gm_reshape(s, ds, x->ndim, shape)), vh);
}

static gm_status svd_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    (void)n_in;
    if (n_out != (((const svd_param *)param)->vectors ? 3 : 1) || !within(((const svd_param *)param)->vectors, 2))
        return rebuild_refuse("svd");
    GM_TRY(matrices_check(svd_op.name, in[0], false, true));
    return matrices_rebuild(s, &svd_op, in, param, n_out, outs);
}

const gm_op svd_op = {.name = "svd",
                      .place = PLACE_REFUSED,
                      .n_in = 1,
                      .n_out = -1,
                      .param_size = sizeof(svd_param),
                      .fields = svd_fields,
                      .infer = svd_infer,
                      .eval = svd_eval,
                      .vjp = svd_vjp,
                      .vmap = vmap_matrices,
                      .rebuild = svd_rebuild};

gm_array *gm_svd(gm_scope *s, gm_array *x, bool vectors, gm_array **outs) {
    svd_param p = {vectors, 0};
    if (!x || matrices_check("svd", x, false, true) != GM_OK)
        return NULL;
    return array_nodes(s, &svd_op, &x, 1, &p, sizeof p, vectors ? 3 : 1, outs) == GM_OK ? outs[0] : NULL;
}

/* ---- eigh ---- */
typedef struct { int32_t vectors, upper; } eigh_param;
static const gm_field eigh_fields[] = {{FIELD_INT, offsetof(eigh_param, vectors), "vectors", 1},
                                       {FIELD_INT, offsetof(eigh_param, upper), "upper", 1},
                                       {0}};

static gm_status eigh_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    matrices m = matrices_of(in[0]);
    gm_dtype type = (gm_dtype)in[0]->dtype;
    matrices_spec(&out[0], in[0], real_of(type), 1, &m.rows);
    if (((const eigh_param *)param)->vectors)
        matrices_spec(&out[1], in[0], type, 2, (int64_t[]){m.rows, m.rows});
    return GM_OK;
}

static gm_status eigh_eval(gm_array *out, gm_queue *q) {
    const eigh_param *p = out->param;
    matrices m = matrices_of(out->in[0]);
    double *a, *vectors = NULL, *values = matrices_scratch(q, m.count, m.rows);
    double *work = matrices_scratch(q, m.count, GM_EIGH_WORK(m.rows, m.width));
    int32_t *failed = queue_flag(q, no_convergence);
    if (p->vectors)
        vectors = matrices_scratch(q, m.count, m.rows * m.rows * m.width);
    if (!values || !work || !failed || (p->vectors && !vectors))
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, eigh, m.count, .a = a, .values = values, .vectors = vectors, .work = work, .n = m.rows,
                    .width = m.width, .upper = p->upper, .failed = failed));
    if (vectors)
        GM_TRY(matrices_store(q, array_output(out, 1), vectors, true));
    return matrices_store(q, out, values, false);
}

/* d values = the diagonal of v* da v; d v is v times the off-diagonal of that over the differences of the values. For a
 * that are read from one triangle, the derivative is that of a symmetric a, shared by the two triangles. */
static void eigh_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const eigh_param *p = out->param;
    gm_dtype type = (gm_dtype)in[0]->dtype;
    gm_array *v, *middle = NULL, *outs[2];
    if (type == GM_COMPLEX64) {
        gm_fail(GM_EVALUE, "eigh: eigenvalues and eigenvectors of complex matrices have no gradient");
        return;
    }
    outs[0] = out;
    outs[1] = p->vectors ? array_pick(s, out, 1) : NULL;
    if (!p->vectors && !gm_eigh(s, in[0], p->upper, outs))
        return;
    v = outs[1];
    int64_t n = in[0]->shape[in[0]->ndim - 1], shape[GM_MAX_NDIM];
    memcpy(shape, in[0]->shape, (size_t)in[0]->ndim * sizeof *shape);
    shape[in[0]->ndim - 2] = 1;
    gm_array *row = gm_arange(s, 0, (double)n, 1, GM_INT32), *column = gm_reshape(s, row, 2, (int64_t[]){n, 1});
    gm_array *diagonal = gm_equal(s, row, column), *zero = scalar_array(s, 0, type), *one = scalar_array(s, 1, type);
    if (cotangents[0])
        middle = gm_where(s, diagonal, gm_reshape(s, cotangents[0], in[0]->ndim, shape), zero);
    if (p->vectors && cotangents[1]) {
        gm_array *values = gm_reshape(s, outs[0], in[0]->ndim, shape);
        gm_array *apart = gm_where(s, diagonal, one, gm_subtract(s, values, transposed(s, values)));
        gm_array *off = gm_divide(s, gm_matmul(s, transposed(s, v), cotangents[1]), apart);
        off = gm_where(s, diagonal, zero, off);
        middle = middle ? gm_add(s, middle, off) : off;
    }
    if (!middle)
        return;
    gm_array *da = gm_matmul(s, gm_matmul(s, v, middle), transposed(s, v));
    grad[0] = gm_multiply(s, scalar_array(s, 0.5, type), gm_add(s, da, transposed(s, da)));
}

static gm_status eigh_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    const eigh_param *p = param;
    if (!within(p->vectors, 2) || !within(p->upper, 2) || n_out != 1 + p->vectors)
        return rebuild_refuse("eigh");
    GM_TRY(matrices_check(eigh_op.name, in[0], true, true));
    return matrices_rebuild(s, &eigh_op, in, param, n_out, outs);
}

/* outputs: values, vectors; or values alone */
const gm_op eigh_op = {.name = "eigh",
                       .place = PLACE_REFUSED,
                       .n_in = 1,
                       .n_out = -1,
                       .param_size = sizeof(eigh_param),
                       .fields = eigh_fields,
                       .infer = eigh_infer,
                       .eval = eigh_eval,
                       .vjp = eigh_vjp,
                       .vmap = vmap_matrices,
                       .rebuild = eigh_rebuild};

static gm_array *eigh(gm_scope *s, const char *name, gm_array *x, bool upper, bool vectors, gm_array **outs) {
    eigh_param p = {vectors, upper};
    if (!x || matrices_check(name, x, true, true) != GM_OK)
        return NULL;
    return array_nodes(s, &eigh_op, &x, 1, &p, sizeof p, vectors ? 2 : 1, outs) == GM_OK ? outs[0] : NULL;
}

gm_array *gm_eigh(gm_scope *s, gm_array *x, bool upper, gm_array **outs) {
    return eigh(s, "eigh", x, upper, true, outs);
}

gm_array *gm_eigvalsh(gm_scope *s, gm_array *x, bool upper) {
    gm_array *values;
    return eigh(s, "eigvalsh", x, upper, false, &values);
}

/* ---- eig ---- */
typedef struct {
    int32_t vectors;
    int32_t unused;
} eig_param;
static const gm_field eig_fields[] = {{FIELD_INT, offsetof(eig_param, vectors), "vectors", 1}, {0}};

static gm_status eig_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    matrices m = matrices_of(in[0]);
    matrices_spec(&out[0], in[0], GM_COMPLEX64, 1, &m.rows);
    if (((const eig_param *)param)->vectors)
        matrices_spec(&out[1], in[0], GM_COMPLEX64, 2, (int64_t[]){m.rows, m.rows});
    return GM_OK;
}

static gm_status eig_eval(gm_array *out, gm_queue *q) {
    bool wanted = ((const eig_param *)out->param)->vectors;
    matrices m = matrices_of(out->in[0]);
    double *a, *vectors = NULL, *values = matrices_scratch(q, m.count, 2 * m.rows);
    double *work = matrices_scratch(q, m.count, GM_EIG_WORK(m.rows, m.width));
    int32_t *failed = queue_flag(q, no_convergence);
    if (wanted)
        vectors = matrices_scratch(q, m.count, 2 * m.rows * m.rows);
    if (!values || !work || !failed || (wanted && !vectors))
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, eig, m.count, .a = a, .values = values, .vectors = vectors, .work = work, .n = m.rows,
                    .width = m.width, .failed = failed));
    if (wanted)
        GM_TRY(matrices_store(q, array_output(out, 1), vectors, true));
    return matrices_store(q, out, values, false);
}

static gm_status eig_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    (void)n_in;
    const eig_param *p = param;
    if (!within(p->vectors, 2) || n_out != 1 + p->vectors)
        return rebuild_refuse("eig");
    GM_TRY(matrices_check(eig_op.name, in[0], true, true));
    return matrices_rebuild(s, &eig_op, in, param, n_out, outs);
}

/* outputs: values, vectors; or values alone */
const gm_op eig_op = {.name = "eig",
                      .place = PLACE_REFUSED,
                      .n_in = 1,
                      .n_out = -1,
                      .param_size = sizeof(eig_param),
                      .fields = eig_fields,
                      .infer = eig_infer,
                      .eval = eig_eval,
                      .vmap = vmap_matrices,
                      .rebuild = eig_rebuild};

static gm_array *eig(gm_scope *s, const char *name, gm_array *x, bool vectors, gm_array **outs) {
    eig_param p = {vectors, 0};
    if (!x || matrices_check(name, x, true, true) != GM_OK)
        return NULL;
    return array_nodes(s, &eig_op, &x, 1, &p, sizeof p, vectors ? 2 : 1, outs) == GM_OK ? outs[0] : NULL;
}

gm_array *gm_eig(gm_scope *s, gm_array *x, gm_array **outs) { return eig(s, "eig", x, true, outs); }

gm_array *gm_eigvals(gm_scope *s, gm_array *x) {
    gm_array *values;
    return eig(s, "eigvals", x, false, &values);
}
