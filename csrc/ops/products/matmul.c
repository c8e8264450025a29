/* matmul.c - products of dense matrices: matmul, and addmm, which adds another in the same pass. */
#include <string.h>
#include "ops/ops.h"

/* Strides of x's leading axes, all but the last two, as n - 2 axes of the result: 0 where it is repeated. */
static void matrix_strides(const gm_array *x, int n, int64_t *strides) {
    for (int i = 0; i < n - 2; i++) {
        const int axis = i - (n - x->ndim);
        strides[i] = axis >= 0 && x->shape[axis] != 1 ? x->strides[axis] : 0;
    }
}

static gm_status matmul_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *a = in[0], *b = in[1];
    int na = a->ndim, nb = b->ndim;
    out->dtype = (gm_dtype)a->dtype;
    if (a->shape[na - 1] != b->shape[nb - 2]) {
        char ta[128], tb[128];
        shape_text(na, a->shape, ta);
        shape_text(nb, b->shape, tb);
        return gm_fail(GM_ESHAPE, "matmul: the last dimension of %s does not match the second last of %s", ta, tb);
    }
    gm_array la = {.ndim = (int16_t)(na - 2), .shape = a->shape}, lb = {.ndim = (int16_t)(nb - 2), .shape = b->shape};
    GM_TRY(broadcast_shape("matmul", &la, &lb, out));
    out->shape[out->ndim++] = a->shape[na - 2];
    out->shape[out->ndim++] = b->shape[nb - 1];
    return GM_OK;
}

/* out = alpha * a b + beta * added, or a b. */
static gm_status launch(gm_array *out, gm_queue *q, const gm_array *a, const gm_array *b, const gm_array *added,
                        float alpha, float beta) {
    const int na = a->ndim, nb = b->ndim, n = out->ndim;
    int64_t a_strides[GM_MAX_NDIM], b_strides[GM_MAX_NDIM], added_strides[GM_MAX_NDIM];
    GM_TRY(array_alloc(out, q));
    matrix_strides(a, n, a_strides);
    matrix_strides(b, n, b_strides);
    if (added)
        broadcast_strides(added, n, added_strides);
    const int64_t *const batch[4] = {out->strides, a_strides, b_strides, added ? added_strides : out->strides};
    int64_t matrices = 1;
    loop l;
    GM_TRY(loop_make(q, n - 2, out->shape, 4, batch, &l));
    for (int i = 0; i < l.ndim; i++)
        matrices *= l.shape[i];
    gm_product_args p = {.out = array_ptr(out),
                         .x = array_ptr(a),
                         .w = array_ptr(b),
                         .type = out->dtype,
                         .rows = a->shape[na - 2],
                         .columns = b->shape[nb - 1],
                         .k = a->shape[na - 1],
                         .out_row = out->strides[n - 2],
                         .out_column = 1,
                         .x_row = a->strides[na - 2],
                         .x_k = a->strides[na - 1],
                         .w_k = b->strides[nb - 2],
                         .w_column = b->strides[nb - 1],
                         .ndim = l.ndim,
                         .shape = l.shape,
                         .out_strides = l.strides[0],
                         .x_strides = l.strides[1],
                         .w_strides = l.strides[2],
                         .add_strides = l.strides[3],
                         .alpha = alpha,
                         .beta = beta};
    if (added) {
        p.add = array_ptr(added);
        p.add_row = added_strides[n - 2];
        p.add_column = added_strides[n - 1];
    }
    return DISPATCH_ARGS(q, product, matrices, &p);
}

static gm_status matmul_eval(gm_array *out, gm_queue *q) { return launch(out, q, out->in[0], out->in[1], NULL, 1, 0); }

/* x with its last two axes exchanged; complex values conjugated, as gradients take them. */
static gm_array *adjoint(gm_scope *s, gm_array *x) {
    int axes[GM_MAX_NDIM], n = x->ndim;
    for (int i = 0; i < n; i++)
        axes[i] = i;
    axes[n - 1] = n - 2;
    axes[n - 2] = n - 1;
    return gm_transpose(s, x->dtype == GM_COMPLEX64 ? gm_conjugate(s, x) : x, n, axes);
}

/* [..., r, c] as [rows, c]: the leading axes are rows. */
static gm_array *flat_rows(gm_scope *s, gm_array *x) {
    int64_t c = x->shape[x->ndim - 1], r = x->shape[x->ndim - 2];
    for (int i = 0; i < x->ndim - 2; i++)
        r *= x->shape[i];
    return gm_reshape(s, x, 2, (int64_t[]){r, c});
}

/* out = a b: da = cot b', db = a' cot, summed over the axes that an operand was repeated along. A matrix b that all of
 * a's batches share needs no sum of products: the batches are rows. */
static void matmul_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    gm_array *a = in[0], *b = in[1], *cot = cotangents[0];
    (void)out;
    grad[0] = unbroadcast(s, gm_matmul(s, cot, adjoint(s, b)), a);
    if (b->ndim == 2 && a->ndim > 2) {
        a = flat_rows(s, a);
        cot = flat_rows(s, cot);
        if (!a)
            return;
    }
    grad[1] = unbroadcast(s, gm_matmul(s, adjoint(s, a), cot), b);
}

static gm_status matmul_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(gm_matmul(s, in[0], in[1]), outs);
}

const gm_op matmul_op = {.name = "matmul",
                         .n_in = 2,
                         .n_out = 1,
                         .infer = matmul_infer,
                         .eval = matmul_eval,
                         .vjp = matmul_vjp,
                         .vmap = vmap_broadcasting,
                         .rebuild = matmul_rebuild};

gm_array *gm_matmul(gm_scope *s, gm_array *a, gm_array *b) {
    int64_t shape[GM_MAX_NDIM];
    if (!a || !b)
        return NULL;
    if (a->dtype == GM_PACKED || b->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "matmul: got packed weights, expected dense arrays; dequantize them first"), NULL;
    gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (!dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "matmul: got %s and %s, expected floating point", gm_dtype_name((gm_dtype)a->dtype),
                       gm_dtype_name((gm_dtype)b->dtype)),
               NULL;
    if (a->ndim == 0 || b->ndim == 0)
        return gm_fail(GM_EVALUE, "matmul: 0-dimensional operands have no product"), NULL;
    bool row = a->ndim == 1, column = b->ndim == 1;
    a = gm_astype(s, a, type);
    b = gm_astype(s, b, type);
    if (row)
        a = gm_reshape(s, a, 2, (int64_t[]){1, a ? a->shape[0] : 0});
    if (column)
        b = gm_reshape(s, b, 2, (int64_t[]){b ? b->shape[0] : 0, 1});
    gm_array *in[2] = {a, b};
    gm_array *out = array_node(s, &matmul_op, in, 2, NULL);
    if (!out || !(row || column))
        return out;
    int n = out->ndim - 2;
    memcpy(shape, out->shape, (size_t)n * sizeof *shape);
    if (!row)
        shape[n++] = out->shape[out->ndim - 2];
    if (!column)
        shape[n++] = out->shape[out->ndim - 1];
    return gm_reshape(s, out, n, shape);
}

/* ---- alpha * a b + beta * added ---- */
typedef struct { float alpha, beta; } addmm_param;
static const gm_field addmm_fields[] = {{FIELD_FLOAT, offsetof(addmm_param, alpha), "alpha", 1},
                                        {FIELD_FLOAT, offsetof(addmm_param, beta), "beta", 1},
                                        {0}};
enum { IN_ADDED, IN_A, IN_B };

/* c broadcasts to the product. */
static gm_status check_added(const gm_array *c, int ndim, const int64_t *shape) {
    const int lead = ndim - c->ndim;
    bool fits = lead >= 0;
    for (int i = 0; fits && i < c->ndim; i++)
        fits = c->shape[i] == 1 || c->shape[i] == shape[lead + i];
    if (fits)
        return GM_OK;
    char tc[128], tp[128];
    shape_text(c->ndim, c->shape, tc);
    shape_text(ndim, shape, tp);
    return gm_fail(GM_ESHAPE, "addmm: c %s does not broadcast to the product's shape %s", tc, tp);
}

static gm_status addmm_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(matmul_infer(in + IN_A, n_in - 1, param, out));
    return check_added(in[IN_ADDED], out->ndim, out->shape);
}

static gm_status addmm_eval(gm_array *out, gm_queue *q) {
    const addmm_param *p = out->param;
    return launch(out, q, out->in[IN_A], out->in[IN_B], out->in[IN_ADDED], p->alpha, p->beta);
}

static gm_array *scaled(gm_scope *s, gm_array *x, float factor) {
    return factor == 1 || !x ? x : gm_multiply(s, x, scalar_array(s, (double)factor, (gm_dtype)x->dtype));
}

static void addmm_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const addmm_param *p = out->param;
    gm_array *cot = scaled(s, cotangents[0], p->alpha);
    if (cot)
        matmul_vjp(s, out, in + IN_A, &cot, grad + IN_A);
    grad[IN_ADDED] = unbroadcast(s, scaled(s, cotangents[0], p->beta), in[IN_ADDED]);
}

/* The product has the batch, also where only c has one. */
static gm_status addmm_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    gm_array *all[3] = {in[IN_ADDED], in[IN_A], in[IN_B]};
    bool has[3] = {batched[IN_ADDED], batched[IN_A] || !batched[IN_B], batched[IN_B]};
    all[IN_A] = has[IN_A] ? batched_input(s, in[IN_A], batched[IN_A], batch_size(in, 3, batched)) : in[IN_A];
    return all[IN_A] ? vmap_broadcasting(s, out, all, has, outs) : error_code();
}

static gm_status addmm_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    const addmm_param *p = param;
    (void)n_in;
    (void)n_out;
    return rebuilt(gm_addmm(s, in[IN_ADDED], in[IN_A], in[IN_B], (double)p->alpha, (double)p->beta), outs);
}

const gm_op addmm_op = {.name = "addmm",
                        .n_in = 3,
                        .n_out = 1,
                        .param_size = sizeof(addmm_param),
                        .fields = addmm_fields,
                        .infer = addmm_infer,
                        .eval = addmm_eval,
                        .vjp = addmm_vjp,
                        .vmap = addmm_vmap,
                        .rebuild = addmm_rebuild};

gm_array *gm_addmm(gm_scope *s, gm_array *c, gm_array *a, gm_array *b, double alpha, double beta) {
    if (!c || !a || !b)
        return NULL;
    const gm_dtype type = gm_promote(gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype), (gm_dtype)c->dtype);
    if (!dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "addmm: got %s, expected floating point", gm_dtype_name(type)), NULL;
    gm_array *in[3] = {gm_astype(s, c, type), gm_astype(s, a, type), gm_astype(s, b, type)};
    const bool fused = a->ndim >= 2 && b->ndim >= 2 && type != GM_COMPLEX64;
    /* A factor of 0 takes its operand away, NaN and infinities too, as in BLAS. */
    if (fused && alpha != 0) {
        if (beta == 0)
            in[IN_ADDED] = scalar_array(s, 0, type);
        gm_array *out = array_node(s, &addmm_op, in, 3, &(addmm_param){(float)alpha, (float)beta});
        return out && check_added(c, out->ndim, out->shape) == GM_OK ? out : NULL;
    }
    /* Vectors and complex numbers: two passes. */
    gm_array *ab = gm_matmul(s, in[IN_A], in[IN_B]);
    if (!ab || check_added(c, ab->ndim, ab->shape) != GM_OK)
        return NULL;
    gm_array *unadded = scaled(s, ab, (float)alpha), *added = scaled(s, in[IN_ADDED], (float)beta);
    if (alpha == 0)
        return broadcast_like(s, beta == 0 ? scalar_array(s, 0, type) : added, ab);
    return beta == 0 ? unadded : gm_add(s, unadded, added);
}
