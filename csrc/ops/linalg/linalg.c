/* linalg.c - factorisations of matrices: the last two axes; those before count matrices. The kernels work in float64,
 * whatever the dtype is. */
#include "ops/linalg/linalg.h"
#include <string.h>

/* ---- between arrays and the kernels' matrices ---- */
matrices matrices_of(const gm_array *x) {
    matrices m = {.rows = x->shape[x->ndim - 2],
                  .cols = x->shape[x->ndim - 1],
                  .count = 1,
                  .width = x->dtype == GM_COMPLEX64 ? 2 : 1};
    for (int i = 0; i < x->ndim - 2; i++)
        m.count *= x->shape[i];
    return m;
}

double *matrices_scratch(gm_queue *q, int64_t count, int64_t each) {
    return queue_scratch(q, (size_t)(count * each) * sizeof(double) + 1);
}

/* complex64 as twice as many float32 on its last axis: of contiguous memory. */
static gm_status copy_pairs(gm_queue *q, void *out, gm_dtype out_type, const void *in, gm_dtype in_type, int64_t n) {
    return launch_copy(q, (copy_to){out, out_type, (int64_t[]){1}}, (copy_from){in, in_type, (int64_t[]){1}}, 1,
                       (int64_t[]){2 * n});
}

/* Strides of contiguous matrices of the shape, stored with rows and columns exchanged if transposed. */
static void matrix_strides(int ndim, const int64_t *shape, bool transposed, int64_t *strides) {
    shape_strides(ndim, shape, strides);
    if (transposed) {
        strides[ndim - 1] = shape[ndim - 2];
        strides[ndim - 2] = 1;
    }
}

gm_status matrices_load(gm_queue *q, const gm_array *x, bool transposed, double **out) {
    int64_t strides[GM_MAX_NDIM];
    gm_dtype type = (gm_dtype)x->dtype;
    matrix_strides(x->ndim, x->shape, transposed, strides);
    *out = queue_scratch(q, (size_t)x->size * 2 * sizeof(double) + 1);
    if (!*out)
        return error_code();
    if (type != GM_COMPLEX64) {
        GM_TRY(launch_copy(q, (copy_to){*out, GM_FLOAT64, strides}, from_array(x), x->ndim, x->shape));
    } else {
        void *ordered = queue_scratch(q, (size_t)x->size * array_item(x) + 1);
        if (!ordered)
            return error_code();
        GM_TRY(launch_copy(q, (copy_to){ordered, type, strides}, from_array(x), x->ndim, x->shape));
        queue_fence(q);
        GM_TRY(copy_pairs(q, *out, GM_FLOAT64, ordered, GM_FLOAT32, x->size));
    }
    queue_fence(q);
    return GM_OK;
}

gm_status matrices_store(gm_queue *q, gm_array *out, const double *from, bool transposed) {
    int64_t strides[GM_MAX_NDIM];
    gm_dtype type = (gm_dtype)out->dtype;
    matrix_strides(out->ndim, out->shape, transposed, strides);
    GM_TRY(array_alloc(out, q));
    queue_fence(q);
    if (type != GM_COMPLEX64)
        return launch_copy(q, (copy_to){array_ptr(out), type, out->strides}, (copy_from){from, GM_FLOAT64, strides},
                           out->ndim, out->shape);
    if (!transposed)
        return copy_pairs(q, array_ptr(out), GM_FLOAT32, from, GM_FLOAT64, out->size);
    void *ordered = queue_scratch(q, (size_t)out->size * array_item(out) + 1);
    if (!ordered)
        return error_code();
    GM_TRY(copy_pairs(q, ordered, GM_FLOAT32, from, GM_FLOAT64, out->size));
    queue_fence(q);
    return launch_copy(q, (copy_to){array_ptr(out), type, out->strides}, (copy_from){ordered, type, strides}, out->ndim,
                       out->shape);
}

gm_status matrices_check(const char *name, const gm_array *x, bool square, bool complex) {
    gm_dtype type = (gm_dtype)x->dtype;
    if (type != GM_FLOAT32 && type != GM_FLOAT64 && !(complex && type == GM_COMPLEX64))
        return gm_fail(GM_EVALUE, "%s: got %s, expected float32%s float64%s", name, gm_dtype_name(type),
                       complex ? "," : " or", complex ? " or complex64" : "");
    if (x->ndim < 2)
        return gm_fail(GM_EVALUE, "%s: got %d dimensions, expected at least 2", name, x->ndim);
    if (square && x->shape[x->ndim - 1] != x->shape[x->ndim - 2]) {
        char shape[128];
        shape_text(x->ndim, x->shape, shape);
        return gm_fail(GM_ESHAPE, "%s: got shape %s, expected square matrices", name, shape);
    }
    return GM_OK;
}

void matrices_spec(gm_spec *out, const gm_array *x, gm_dtype type, int n, const int64_t *last) {
    out->dtype = type;
    out->format = 0;
    out->ndim = x->ndim - 2 + n;
    memcpy(out->shape, x->shape, (size_t)(x->ndim - 2) * sizeof *last);
    for (int i = 0; i < n; i++)
        out->shape[x->ndim - 2 + i] = last[i];
}

gm_status vmap_matrices(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    return array_nodes(s, out->op, in, 1, out->param, out->param_size, array_n_out(out), outs);
}

gm_status matrices_rebuild(gm_scope *s, const gm_op *op, gm_array *const *in, const void *param, int n_out,
                           gm_array **outs) {
    return array_nodes(s, op, in, 1, param, (uint32_t)op->param_size, n_out, outs);
}

gm_array *transposed(gm_scope *s, gm_array *x) {
    int axes[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        axes[i] = i;
    axes[x->ndim - 1] = x->ndim - 2;
    axes[x->ndim - 2] = x->ndim - 1;
    return gm_transpose(s, x, x->ndim, axes);
}

gm_array *triangle(gm_scope *s, gm_array *x, bool upper, int beyond) {
    if (!x)
        return NULL;
    matrices m = matrices_of(x);
    gm_array *row = gm_reshape(s, gm_arange(s, 0, (double)m.rows, 1, GM_INT32), 2, (int64_t[]){m.rows, 1});
    gm_array *column = gm_arange(s, 0, (double)m.cols, 1, GM_INT32), *edge = scalar_array(s, beyond, GM_INT32);
    gm_array *inside = upper ? gm_greater_equal(s, column, gm_add(s, row, edge))
                             : gm_greater_equal(s, row, gm_add(s, column, edge));
    return gm_where(s, inside, x, scalar_array(s, 0, (gm_dtype)x->dtype));
}

gm_array *matrices_corner(gm_scope *s, gm_array *x, int64_t rows, int64_t cols) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++) {
        stop[i] = i == x->ndim - 2 ? rows : i == x->ndim - 1 ? cols : x->shape[i];
        step[i] = 1;
    }
    return gm_slice(s, x, start, stop, step);
}

/* ---- lu ---- */
static gm_status lu_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    matrices m = matrices_of(in[0]);
    (void)n_in;
    (void)param;
    matrices_spec(&out[0], in[0], (gm_dtype)in[0]->dtype, 2, (int64_t[]){m.rows, m.cols});
    matrices_spec(&out[1], in[0], GM_UINT32, 1, (int64_t[]){m.rows < m.cols ? m.rows : m.cols});
    matrices_spec(&out[2], in[0], GM_UINT32, 1, &m.rows);
    return GM_OK;
}

static gm_status lu_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    gm_array *pivots = array_output(out, 1), *order = array_output(out, 2);
    double *a;
    GM_TRY(array_alloc(pivots, q));
    GM_TRY(array_alloc(order, q));
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, lu, m.count, .a = a, .pivots = array_ptr(pivots), .order = array_ptr(order), .rows = m.rows,
                    .cols = m.cols));
    return matrices_store(q, out, a, false);
}

static gm_status lu_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out, gm_array **outs) {
    (void)n_in;
    GM_TRY(matrices_check(lu_op.name, in[0], false, false));
    return matrices_rebuild(s, &lu_op, in, param, n_out, outs);
}

/* outputs: L and U in one matrix, row exchanges, row order */
const gm_op lu_op = {.name = "lu",
                     .place = PLACE_REFUSED,
                     .n_in = 1,
                     .n_out = 3,
                     .infer = lu_infer,
                     .eval = lu_eval,
                     .vmap = vmap_matrices,
                     .rebuild = lu_rebuild};

static gm_status lu_node(gm_scope *s, const char *name, gm_array *x, gm_array **outs) {
    if (!x)
        return error_code();
    GM_TRY(matrices_check(name, x, false, false));
    return array_nodes(s, &lu_op, &x, 1, NULL, 0, 3, outs);
}

gm_array *gm_lu(gm_scope *s, gm_array *x, gm_array **outs) {
    gm_array *parts[3];
    if (lu_node(s, "lu", x, parts) != GM_OK)
        return NULL;
    matrices m = matrices_of(x);
    int64_t k = m.rows < m.cols ? m.rows : m.cols;
    gm_array *one = scalar_array(s, 1, (gm_dtype)x->dtype), *zero = scalar_array(s, 0, (gm_dtype)x->dtype);
    gm_array *row = gm_reshape(s, gm_arange(s, 0, (double)m.rows, 1, GM_INT32), 2, (int64_t[]){m.rows, 1});
    gm_array *diagonal = gm_where(s, gm_equal(s, row, gm_arange(s, 0, (double)k, 1, GM_INT32)), one, zero);
    outs[0] = parts[2];
    outs[1] = gm_add(s, triangle(s, matrices_corner(s, parts[0], m.rows, k), false, 1), diagonal);
    outs[2] = triangle(s, matrices_corner(s, parts[0], k, m.cols), true, 0);
    return outs[1] && outs[2] ? outs[0] : NULL;
}

gm_array *gm_lu_factor(gm_scope *s, gm_array *x, gm_array **outs) {
    gm_array *parts[3];
    if (lu_node(s, "lu_factor", x, parts) != GM_OK)
        return NULL;
    outs[1] = parts[1];
    return outs[0] = parts[0];
}

/* ---- cholesky ---- */
typedef struct {
    int32_t upper;
    int32_t unused;
} cholesky_param;
static const gm_field cholesky_fields[] = {{FIELD_INT, offsetof(cholesky_param, upper), "upper", 1}, {0}};

gm_status matrices_infer_same(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status cholesky_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    double *a;
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, cholesky, m.count, .a = a, .n = m.rows, .upper = ((const cholesky_param *)out->param)->upper));
    return matrices_store(q, out, a, false);
}

/* a = l l': da = l'^-1 phi(l' dl) l^-1, symmetric, where phi keeps the lower triangle and half the diagonal (I. Murray,
 * Differentiation of the Cholesky decomposition, 2016). */
static void cholesky_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                         gm_array **grad) {
    bool upper = ((const cholesky_param *)out->param)->upper;
    gm_array *l = upper ? transposed(s, out) : out, *dl = upper ? transposed(s, cotangents[0]) : cotangents[0];
    gm_array *product = gm_matmul(s, transposed(s, l), dl), *half = scalar_array(s, 0.5, (gm_dtype)in[0]->dtype);
    gm_array *phi = gm_multiply(s, half, gm_add(s, triangle(s, product, false, 0), triangle(s, product, false, 1)));
    gm_array *inverse = gm_tri_inv(s, l, false);
    gm_array *da = gm_matmul(s, gm_matmul(s, transposed(s, inverse), phi), inverse);
    grad[0] = gm_multiply(s, half, gm_add(s, da, transposed(s, da)));
}

static gm_status cholesky_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    (void)n_in;
    GM_TRY(matrices_check(cholesky_op.name, in[0], true, false));
    return matrices_rebuild(s, &cholesky_op, in, param, n_out, outs);
}

const gm_op cholesky_op = {.name = "cholesky",
                           .place = PLACE_REFUSED,
                           .n_in = 1,
                           .n_out = 1,
                           .param_size = sizeof(cholesky_param),
                           .fields = cholesky_fields,
                           .infer = matrices_infer_same,
                           .eval = cholesky_eval,
                           .vjp = cholesky_vjp,
                           .vmap = vmap_matrices,
                           .rebuild = cholesky_rebuild};

gm_array *gm_cholesky(gm_scope *s, gm_array *x, bool upper) {
    if (!x || matrices_check("cholesky", x, true, false) != GM_OK)
        return NULL;
    return array_node(s, &cholesky_op, &x, 1, &(cholesky_param){upper, 0});
}

/* ---- qr ---- */
static gm_status qr_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    matrices m = matrices_of(in[0]);
    int64_t k = m.rows < m.cols ? m.rows : m.cols;
    (void)n_in;
    (void)param;
    matrices_spec(&out[0], in[0], (gm_dtype)in[0]->dtype, 2, (int64_t[]){m.rows, k});
    matrices_spec(&out[1], in[0], (gm_dtype)in[0]->dtype, 2, (int64_t[]){k, m.cols});
    return GM_OK;
}

static gm_status qr_eval(gm_array *out, gm_queue *q) {
    matrices m = matrices_of(out->in[0]);
    int64_t k = m.rows < m.cols ? m.rows : m.cols;
    double *a, *factor = matrices_scratch(q, m.count, m.rows * k), *r = matrices_scratch(q, m.count, k * m.cols);
    double *work = matrices_scratch(q, m.count, m.rows + m.cols + k);
    if (!factor || !r || !work)
        return error_code();
    GM_TRY(matrices_load(q, out->in[0], false, &a));
    GM_TRY(DISPATCH(q, qr, m.count, .a = a, .q = factor, .r = r, .work = work, .rows = m.rows, .cols = m.cols));
    GM_TRY(matrices_store(q, out, factor, false));
    return matrices_store(q, array_output(out, 1), r, false);
}

static gm_status qr_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out, gm_array **outs) {
    (void)n_in;
    GM_TRY(matrices_check(qr_op.name, in[0], false, false));
    return matrices_rebuild(s, &qr_op, in, param, n_out, outs);
}

const gm_op qr_op = {.name = "qr",
                     .place = PLACE_REFUSED,
                     .n_in = 1,
                     .n_out = 2,
                     .infer = qr_infer,
                     .eval = qr_eval,
                     .vmap = vmap_matrices,
                     .rebuild = qr_rebuild};

gm_array *gm_qr(gm_scope *s, gm_array *x, gm_array **outs) {
    if (!x || matrices_check("qr", x, false, false) != GM_OK)
        return NULL;
    return array_nodes(s, &qr_op, &x, 1, NULL, 0, 2, outs) == GM_OK ? outs[0] : NULL;
}
