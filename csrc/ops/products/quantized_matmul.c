/* quantized_matmul.c - products with MLX's quantised matrices, one for all rows of x or one chosen for each.
 * Activations are floats and sums float32, whatever the dtypes. One node serves quantized_matmul and gather_qmm: its
 * inputs are x, fields, scales, biases, and the indices of x and of matrices (both GM_NONE: batch dimensions
 * broadcast). */
#include <string.h>
#include "ops/index/index.h"
#include "ops/products/quantized.h"

static int64_t product(const int64_t *shape, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p *= shape[i];
    return p;
}
/* Rows of x that go through one matrix together, and columns of the result. */
static int64_t rows_of(const gm_array *x) { return x->shape[x->ndim - 2]; }
static int64_t result_columns(const quantized_param *p, const gm_array *w) {
    return p->transpose ? w->shape[w->ndim - 2] : quantized_columns(p, w);
}

static gm_status check_columns(const char *op, const quantized_param *p, const gm_array *x, const gm_array *w) {
    int64_t want = p->transpose ? quantized_columns(p, w) : w->shape[w->ndim - 2];
    if (x->shape[x->ndim - 1] == want)
        return GM_OK;
    char tx[128], tw[128];
    shape_text(x->ndim, x->shape, tx);
    shape_text(w->ndim, w->shape, tw);
    return gm_fail(GM_ESHAPE,
                   "%s: the last dimension of x %s is not the %lld that a matrix %s of %d bits takes with "
                   "transpose=%s",
                   op, tx, (long long)want, tw, p->bits, p->transpose ? "True" : "False");
}

static gm_status product_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const quantized_param *p = param;
    const gm_array *x = in[0], *w = in[1];
    GM_TRY(check_columns("quantized_matmul", p, x, w));
    out->dtype = p->mode == GM_AFFINE ? gm_promote((gm_dtype)x->dtype, (gm_dtype)in[2]->dtype) : (gm_dtype)x->dtype;
    if (!array_is_none(in[4])) {
        out->ndim = in[4]->ndim;
        memcpy(out->shape, in[4]->shape, (size_t)out->ndim * sizeof *out->shape);
    } else if (w->ndim == 2) {
        out->ndim = x->ndim - 2;
        memcpy(out->shape, x->shape, (size_t)out->ndim * sizeof *out->shape);
    } else {
        gm_array lx = {.ndim = (int16_t)(x->ndim - 2), .shape = x->shape};
        gm_array lw = {.ndim = (int16_t)(w->ndim - 2), .shape = w->shape};
        GM_TRY(broadcast_shape("quantized_matmul", &lx, &lw, out));
    }
    if (out->ndim + 2 > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "quantized_matmul: %d dimensions, at most %d are possible", out->ndim + 2,
                       GM_MAX_NDIM);
    out->shape[out->ndim++] = rows_of(x);
    out->shape[out->ndim++] = result_columns(p, w);
    return GM_OK;
}

/* Which matrix of a's batch each item of out's batch takes, a's batch dimensions broadcast to out's. */
static gm_status batch_index(gm_queue *q, const gm_array *out, const gm_array *a, int64_t items,
                             const int64_t **index) {
    int64_t *at = queue_arena(q, (size_t)(items + 1) * sizeof *at);
    if (!at)
        return error_code();
    for (int64_t i = 0; i < items; i++) {
        int64_t rest = i, stride = 1;
        at[i] = 0;
        for (int d = out->ndim - 3, e = a->ndim - 3; e >= 0; d--, e--) {
            at[i] += a->shape[e] == 1 ? 0 : rest % out->shape[d] * stride;
            rest /= out->shape[d];
            stride *= a->shape[e];
        }
    }
    *index = at;
    return GM_OK;
}

/* *items: of the result; a->tokens rows in each. */
static gm_status prepare_items(gm_array *out, gm_queue *q, gm_quantized_matmul_args *a, int64_t *items) {
    const gm_array *x = out->in[0], *w = out->in[1];
    a->tokens = rows_of(x);
    a->x_count = product(x->shape, x->ndim - 2);
    *items = product(out->shape, out->ndim - 2);
    if (!array_is_none(out->in[4])) {
        GM_TRY(index_list(q, "gather_qmm", out->in[4], out->ndim - 2, out->shape, a->x_count, &a->x_index));
        return index_list(q, "gather_qmm", out->in[5], out->ndim - 2, out->shape, a->w.matrices, &a->matrix_index);
    }
    if (w->ndim > 2) {
        GM_TRY(batch_index(q, out, x, *items, &a->x_index));
        return batch_index(q, out, w, *items, &a->matrix_index);
    }
    a->tokens *= *items; /* one matrix for all: all rows are one batch */
    a->x_count = *items = 1;
    return GM_OK;
}

static gm_status product_eval(gm_array *out, gm_queue *q) {
    const quantized_param *p = out->param;
    const gm_array *x = out->in[0];
    const gm_dtype type = p->transpose ? (gm_dtype)x->dtype : GM_FLOAT32;
    gm_quantized_matmul_args a = {.x_type = (int)type, .out_type = out->dtype};
    int64_t items;
    if (out->size == 0)
        return array_alloc(out, q);
    GM_TRY(quantized_matrix(q, p, out->in[1], out->in[2], out->in[3], &a.w));
    GM_TRY(prepare_items(out, q, &a, &items));
    GM_TRY(contiguous_operand(q, x, type, &a.x));
    GM_TRY(array_alloc(out, q));
    a.out = array_ptr(out);
    if (p->transpose)
        return DISPATCH_ARGS(q, quantized_matmul, items, &a);
    return DISPATCH_ARGS(q, quantized_matmul_columns, items, &a);
}

/* ---- gradients ---- */
static gm_array *swapped(gm_scope *s, gm_array *x) {
    int axes[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        axes[i] = i < x->ndim - 2 ? i : 2 * x->ndim - 3 - i;
    return gm_transpose(s, x, x->ndim, axes);
}

static gm_array *as_matrix(gm_scope *s, gm_array *x) {
    return x ? gm_reshape(
                   s, x, 2,
                   (int64_t[]){x->shape[x->ndim - 1] ? x->size / x->shape[x->ndim - 1] : 0, x->shape[x->ndim - 1]})
             : NULL;
}

/* One item for each index: [items, rows, columns]. */
static gm_array *as_items(gm_scope *s, gm_array *x) {
    return x ? gm_reshape(s, x, 3,
                          (int64_t[]){product(x->shape, x->ndim - 2), x->shape[x->ndim - 2], x->shape[x->ndim - 1]})
             : NULL;
}

/* zeros(count, ...) with each item added where its index says. */
static gm_array *add_items(gm_scope *s, gm_array *items, gm_array *index, int64_t count) {
    if (!items || !index)
        return NULL;
    int64_t shape[3] = {count, items->shape[1], items->shape[2]};
    gm_array *flat = gm_reshape(s, index, 1, (int64_t[]){index->size});
    gm_array *zero = gm_full(s, 3, shape, scalar_array(s, 0, (gm_dtype)items->dtype), (gm_dtype)items->dtype);
    return gm_scatter(s, zero, (gm_indices){&flat, 1, (int[]){0}, 0}, items, GM_S_ADD, NULL);
}

/* The gradient of the matrix itself, of the shape of its values. */
static gm_array *matrix_gradient(gm_scope *s, const quantized_param *p, gm_array *const *in, gm_array *cotangent) {
    gm_array *x = in[0], *w = in[1];
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, w->shape, (size_t)w->ndim * sizeof *shape);
    shape[w->ndim - 1] = quantized_columns(p, w);
    if (!array_is_none(in[4])) {
        gm_array *index = gm_reshape(s, in[4], 1, (int64_t[]){in[4]->size});
        gm_array *rows = gm_take(s, as_items(s, x), index, 0), *c = as_items(s, cotangent);
        gm_array *each = p->transpose ? gm_matmul(s, swapped(s, c), rows) : gm_matmul(s, swapped(s, rows), c);
        return gm_reshape(s, add_items(s, each, in[5], product(w->shape, w->ndim - 2)), w->ndim, shape);
    }
    if (w->ndim == 2) {
        x = as_matrix(s, x);
        cotangent = as_matrix(s, cotangent);
    }
    gm_array like = {.ndim = w->ndim, .shape = shape, .dtype = cotangent ? cotangent->dtype : GM_FLOAT32};
    gm_array *g = p->transpose ? gm_matmul(s, swapped(s, cotangent), x) : gm_matmul(s, swapped(s, x), cotangent);
    return unbroadcast(s, g, &like);
}

static void product_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    quantized_param other = *(const quantized_param *)out->param;
    const quantized_param *p = out->param;
    gm_array *x = in[0], *scales = in[2], *biases = in[3], *cotangent = cotangents[0];
    bool gathered = !array_is_none(in[4]);
    other.transpose = !p->transpose;
    gm_array *own = GM_NONE;
    if (gathered)
        own = gm_reshape(s, gm_arange(s, 0, (double)in[4]->size, 1, GM_INT64), in[4]->ndim, in[4]->shape);
    gm_array *back[6] = {cotangent, in[1], scales, biases, own, in[5]};
    gm_array *left = array_node(s, out->op, back, 6, &other);
    if (gathered && left)
        left = gm_reshape(s, add_items(s, as_items(s, left), in[4], product(x->shape, x->ndim - 2)), x->ndim, x->shape);
    grad[0] = unbroadcast(s, left, x);
    if (p->mode != GM_AFFINE || !(scales->trace || biases->trace))
        return;
    gm_array *matrix = matrix_gradient(s, p, in, cotangent);
    if (!matrix)
        return;
    int64_t shape[GM_MAX_NDIM + 1];
    memcpy(shape, scales->shape, (size_t)scales->ndim * sizeof *shape);
    shape[scales->ndim] = p->group;
    gm_array *groups = gm_reshape(s, matrix, scales->ndim + 1, shape);
    gm_array *integers = gm_reshape(s, quantized_integers(s, p, in[1], scales), scales->ndim + 1, shape);
    grad[2] = unbroadcast(s, gm_sum(s, gm_multiply(s, groups, integers), 1, (int[]){-1}, false), scales);
    grad[3] = unbroadcast(s, gm_sum(s, groups, 1, (int[]){-1}, false), biases);
}

/* ---- batches ---- */
/* [batch, 1, ..., 1, a's dimensions]: a's own dimensions become `ndim`. */
static gm_array *with_batch(gm_scope *s, gm_array *a, bool batched, int ndim) {
    int64_t shape[2 * GM_MAX_NDIM];
    int own = a->ndim - batched, n = 0;
    if (array_is_none(a) || !batched || own >= ndim)
        return a;
    shape[n++] = a->shape[0];
    while (n < 1 + ndim - own)
        shape[n++] = 1;
    memcpy(shape + n, a->shape + 1, (size_t)own * sizeof *shape);
    return gm_reshape(s, a, 1 + ndim, shape);
}

/* Indices into batch after batch of `count`: the batch axis of an array becomes part of its own. */
static gm_array *moved_index(gm_scope *s, gm_array *index, bool index_batched, bool array_batched, int64_t count,
                             int64_t batch) {
    int64_t shape[GM_MAX_NDIM + 1] = {batch};
    gm_array *all = gm_astype(s, batched_input(s, index, index_batched, batch), GM_INT64);
    if (!all || !array_batched)
        return all;
    for (int i = 1; i < all->ndim; i++)
        shape[i] = 1;
    gm_array *first = gm_multiply(s, gm_arange(s, 0, (double)batch, 1, GM_INT64),
                                  scalar_array(s, (double)count, GM_INT64));
    return gm_add(s, all, gm_reshape(s, first, all->ndim, shape));
}

static gm_status product_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    int64_t batch = batch_size(in, 6, batched);
    gm_array *all[6];
    memcpy(all, in, sizeof all);
    bool matrix = batched[1] || batched[2] || batched[3];
    for (int i = 1; i < 4 && matrix; i++)
        all[i] = batched_input(s, in[i], batched[i], batch);
    if (!array_is_none(in[4])) {
        const int64_t *x = in[0]->shape + batched[0], *w = in[1]->shape + batched[1];
        all[4] = moved_index(s, in[4], batched[4], batched[0], product(x, in[0]->ndim - batched[0] - 2), batch);
        all[5] = moved_index(s, in[5], batched[5], matrix, product(w, in[1]->ndim - batched[1] - 2), batch);
    } else {
        int ndim = in[0]->ndim - batched[0], other = in[1]->ndim - batched[1];
        if (other > ndim)
            ndim = other;
        for (int i = 0; i < 4 && all[i]; i++) /* one matrix alone has no batch to line up with */
            if (other > 2 || matrix)
                all[i] = with_batch(s, all[i], i ? matrix : batched[0], ndim);
    }
    outs[0] = array_again(s, out, all);
    return outs[0] ? GM_OK : error_code();
}

/* Indices of items: both or neither, integers of one shape. */
static bool indices_belong(const gm_array *lhs, const gm_array *rhs) {
    if (array_is_none(lhs) || array_is_none(rhs))
        return array_is_none(lhs) && array_is_none(rhs);
    return dtype_is_integer((gm_dtype)lhs->dtype) && dtype_is_integer((gm_dtype)rhs->dtype) && lhs->ndim == rhs->ndim &&
           memcmp(lhs->shape, rhs->shape, (size_t)lhs->ndim * sizeof *lhs->shape) == 0;
}

static gm_status product_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    gm_array *all[6];
    const quantized_param *p = param;
    (void)n_out;
    memcpy(all, in, sizeof all);
    if (!quantized_is_known(p) || in[0]->ndim < 2 || !dtype_is_float((gm_dtype)in[0]->dtype) ||
        in[0]->dtype == GM_FLOAT64 || in[2]->dtype == GM_FLOAT64 || !indices_belong(in[4], in[5]))
        return rebuild_refuse("quantized_matmul");
    GM_TRY(quantized_operands(s, "quantized_matmul", p, in[1], &all[2], &all[3]));
    return rebuilt(array_node(s, &quantized_matmul_op, all, n_in, p), outs);
}

/* In MLX's words. Of affine weights the scales and biases have gradients. */
static gm_status product_refuse(const gm_array *node, int i, bool forward) {
    const quantized_param *p = node->param;
    const char *op = array_is_none(node->in[4]) ? "QuantizedMatmul" : "GatherQMM", *rule = forward ? "jvp" : "vjp";
    if (i == 1)
        return gm_fail(GM_ESTATE, "[%s::%s] no gradient wrt the quantized weights.", op, rule);
    if (i == 2 && p->mode != GM_AFFINE)
        return gm_fail(GM_EVALUE, "[%s::%s] no gradient wrt scales in %s quantization.", op, rule,
                       quantized_mode_name(p->mode));
    return i >= 4 ? gm_fail(GM_ESTATE, "[%s::%s] cannot compute the gradient wrt the indices.", op, rule) : GM_OK;
}

const gm_op quantized_matmul_op = {.name = "quantized_matmul",
                                   .n_in = 6,
                                   .n_out = 1,
                                   .nondiff = 2 | 16 | 32,
                                   .refuse = product_refuse,
                                   .param_size = sizeof(quantized_param),
                                   .fields = quantized_fields,
                                   .infer = product_infer,
                                   .eval = product_eval,
                                   .vjp = product_vjp,
                                   .vmap = product_vmap,
                                   .rebuild = product_rebuild,
                                   .optional = 8 | 16 | 32};

/* ---- functions ---- */
/* x as floats that the product can take; GM_EVALUE, GM_ESHAPE. */
static gm_array *left_operand(gm_scope *s, const char *op, const quantized_param *p, gm_array *x, const gm_array *w,
                              const gm_array *scales) {
    gm_dtype type = (gm_dtype)x->dtype;
    if (p->mode == GM_AFFINE)
        type = gm_promote(type, (gm_dtype)scales->dtype);
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "%s: x is %s, expected floating point", op, gm_dtype_name((gm_dtype)x->dtype)), NULL;
    if (type == GM_FLOAT64)
        return gm_fail(GM_ESTATE, "%s: x is %s and scales %s, float64 is not supported", op,
                       gm_dtype_name((gm_dtype)x->dtype), gm_dtype_name((gm_dtype)scales->dtype)),
               NULL;
    if (check_columns(op, p, x, w) != GM_OK)
        return NULL;
    return dtype_is_float((gm_dtype)x->dtype) ? x : gm_astype(s, x, type);
}

gm_array *gm_quantized_matmul(gm_scope *s, gm_array *x, gm_array *w, gm_array *scales, gm_array *biases, bool transpose,
                              int group_size, int bits, const char *mode) {
    quantized_param p;
    if (!x || !w || !scales || !biases || quantized_coding("quantized_matmul", mode, group_size, bits, &p) != GM_OK)
        return NULL;
    if (x->ndim == 0)
        return gm_fail(GM_EAXIS, "quantized_matmul: x has no dimensions, expected 1 or more"), NULL;
    p.transpose = transpose;
    if (quantized_operands(s, "quantized_matmul", &p, w, &scales, &biases) != GM_OK)
        return NULL;
    bool row = x->ndim == 1;
    x = left_operand(s, "quantized_matmul", &p, x, w, scales);
    if (x && row)
        x = gm_reshape(s, x, 2, (int64_t[]){1, x->shape[0]});
    gm_array *in[6] = {x, w, scales, biases, GM_NONE, GM_NONE};
    gm_array *out = array_node(s, &quantized_matmul_op, in, 6, &p);
    if (!out || !row)
        return out;
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, out->shape, (size_t)out->ndim * sizeof *shape);
    shape[out->ndim - 2] = shape[out->ndim - 1];
    return gm_reshape(s, out, out->ndim - 1, shape);
}

/* The index that was given, or that of each item of a's batch. */
static gm_array *item_index(gm_scope *s, gm_array *index, const gm_array *a) {
    if (!index || !array_is_none(index))
        return index;
    return gm_reshape(s, gm_arange(s, 0, (double)product(a->shape, a->ndim - 2), 1, GM_INT32), a->ndim - 2, a->shape);
}

/* Both indices with one shape. */
static gm_status item_indices(gm_scope *s, const char *op, const gm_array *x, const gm_array *w, gm_array **lhs,
                              gm_array **rhs) {
    gm_spec both;
    *lhs = item_index(s, *lhs, x);
    *rhs = item_index(s, *rhs, w);
    if (!*lhs || !*rhs)
        return error_code();
    for (int i = 0; i < 2; i++) {
        const gm_array *index = i ? *rhs : *lhs;
        if (!dtype_is_integer((gm_dtype)index->dtype))
            return gm_fail(GM_EVALUE, "%s: indices are %s, expected integers", op,
                           gm_dtype_name((gm_dtype)index->dtype));
    }
    GM_TRY(broadcast_shape(op, *lhs, *rhs, &both));
    *lhs = gm_broadcast_to(s, *lhs, both.ndim, both.shape);
    *rhs = gm_broadcast_to(s, *rhs, both.ndim, both.shape);
    return *lhs && *rhs ? GM_OK : error_code();
}

/* y times the global scale of each item's matrix over what that of nvfp4 is measured in. */
static gm_array *scaled_items(gm_scope *s, gm_array *y, gm_array *scale, gm_array *rhs) {
    int64_t shape[GM_MAX_NDIM];
    if (!y || !scale || array_is_none(scale))
        return y;
    gm_dtype type = (gm_dtype)y->dtype;
    gm_array *each = scale;
    if (scale->size > 1 || scale->ndim == 1)
        each = gm_take(s, gm_reshape(s, scale, 1, &scale->size), rhs, 0);
    if (!each)
        return NULL;
    memcpy(shape, each->shape, (size_t)each->ndim * sizeof *shape);
    shape[each->ndim] = shape[each->ndim + 1] = 1;
    each = gm_reshape(s, each, each->ndim ? each->ndim + 2 : 0, shape);
    y = gm_multiply(s, y, gm_divide(s, each, scalar_array(s, 6 * 448, GM_FLOAT32)));
    return gm_astype(s, y, type);
}

gm_array *gm_gather_qmm(gm_scope *s, gm_array *x, gm_array *w, gm_array *scales, gm_array *biases,
                        gm_array *lhs_indices, gm_array *rhs_indices, bool transpose, int group_size, int bits,
                        const char *mode, gm_array *global_scale) {
    quantized_param p;
    if (!x || !w || !scales || !biases || !lhs_indices || !rhs_indices || !global_scale ||
        quantized_coding("gather_qmm", mode, group_size, bits, &p) != GM_OK)
        return NULL;
    p.transpose = transpose;
    if (quantized_operands(s, "gather_qmm", &p, w, &scales, &biases) != GM_OK)
        return NULL;
    if (x->ndim < 2)
        return gm_fail(GM_EVALUE, "gather_qmm: x has %d dimensions, expected 2 or more", x->ndim), NULL;
    if (!array_is_none(global_scale) &&
        (p.mode != GM_NVFP4 || global_scale->dtype != GM_FLOAT32 || global_scale->ndim != w->ndim - 2 ||
         memcmp(global_scale->shape, w->shape, (size_t)global_scale->ndim * sizeof *w->shape)))
        return gm_fail(GM_ESHAPE, "gather_qmm: a global scale is float32, one for each matrix, of mode nvfp4"), NULL;
    x = left_operand(s, "gather_qmm", &p, x, w, scales);
    if (!x || item_indices(s, "gather_qmm", x, w, &lhs_indices, &rhs_indices) != GM_OK)
        return NULL;
    gm_array *in[6] = {x, w, scales, biases, lhs_indices, rhs_indices};
    gm_array *scale = global_scale;
    if (!array_is_none(scale) && scale->ndim > 1)
        scale = gm_reshape(s, scale, 1, (int64_t[]){scale->size});
    return scaled_items(s, array_node(s, &quantized_matmul_op, in, 6, &p), scale, rhs_indices);
}

/* ---- x quantised too ---- */
/* The checked operands of qqmm and gather_qqmm: x and, unless it is quantised, w rounded to what the mode can hold, as
 * float32. scales not GM_NONE: w is quantised, and stays as it is. */
typedef struct { gm_array *x, *w, *scales, *global_x, *global_w; } rounding;

static gm_status rounded_operands(gm_scope *s, const char *op, const quantized_param *p, rounding *r) {
    gm_array *none = GM_NONE;
    if (!dtype_is_float((gm_dtype)r->x->dtype) || r->x->dtype == GM_FLOAT64)
        return gm_fail(GM_EVALUE, "%s: x is %s, expected float32, float16 or bfloat16", op,
                       gm_dtype_name((gm_dtype)r->x->dtype));
    if (p->mode == GM_AFFINE)
        return gm_fail(GM_EVALUE, "%s: mode affine does not quantise x, expected nvfp4, mxfp8 or mxfp4", op);
    if (array_is_none(r->global_x) != array_is_none(r->global_w))
        return gm_fail(GM_EVALUE, "%s: a global scale came for one of x and w, expected both or neither", op);
    if (array_is_none(r->scales) && r->w->dtype == GM_UINT32)
        return gm_fail(GM_EVALUE, "%s: w is uint32, so quantised, and needs scales", op);
    GM_TRY(quantized_check(op, p));
    if (r->w->dtype == GM_UINT32) {
        GM_TRY(quantized_operands(s, op, p, r->w, &r->scales, &none));
        if (!left_operand(s, op, p, r->x, r->w, r->scales))
            return error_code();
        GM_TRY(quantized_global(op, p, r->global_w));
    } else {
        r->scales = GM_NONE;
        if (r->x->shape[r->x->ndim - 1] != r->w->shape[r->w->ndim - 1]) {
            char tx[128], tw[128];
            shape_text(r->x->ndim, r->x->shape, tx);
            shape_text(r->w->ndim, r->w->shape, tw);
            return gm_fail(GM_ESHAPE, "%s: the last dimensions of x %s and w %s are not the same", op, tx, tw);
        }
        r->w = quantized_round(s, op, p, r->w, r->global_w);
    }
    r->x = quantized_round(s, op, p, r->x, r->global_x);
    return r->x && r->w ? GM_OK : error_code();
}

/* A scale of one item without its dimensions; GM_NONE stays. */
static gm_array *one_number(gm_scope *s, gm_array *scale) {
    return array_is_none(scale) ? GM_NONE : gm_reshape(s, scale, 0, NULL);
}

gm_array *gm_qqmm(gm_scope *s, gm_array *x, gm_array *w, gm_array *scales, int group_size, int bits, const char *mode,
                  gm_array *global_scale_x, gm_array *global_scale_w) {
    quantized_param p;
    if (!x || !w || !scales || !global_scale_x || !global_scale_w ||
        quantized_coding("qqmm", mode, group_size, bits, &p) != GM_OK)
        return NULL;
    if (x->ndim < 1 || w->ndim != 2)
        return gm_fail(GM_ESHAPE, "qqmm: x has %d dimensions and w %d, expected 1 or more and 2", x->ndim, w->ndim),
               NULL;
    p.transpose = 1;
    bool row = x->ndim == 1;
    gm_dtype type = (gm_dtype)x->dtype;
    if (row)
        x = gm_reshape(s, x, 2, (int64_t[]){1, x->shape[0]});
    rounding r = {x, w, scales, global_scale_x, global_scale_w};
    if (!x || rounded_operands(s, "qqmm", &p, &r) != GM_OK)
        return NULL;
    gm_array *in[6] = {r.x, r.w, r.scales, GM_NONE, GM_NONE, GM_NONE}, *out;
    if (array_is_none(r.scales))
        out = gm_matmul(s, r.x, swapped(s, r.w));
    else
        out = scaled_items(s, array_node(s, &quantized_matmul_op, in, 6, &p), one_number(s, global_scale_w), NULL);
    if (out && row)
        out = gm_reshape(s, out, 1, (int64_t[]){out->shape[out->ndim - 1]});
    return gm_astype(s, out, type);
}

gm_array *gm_gather_qqmm(gm_scope *s, gm_array *x, gm_array *w, gm_array *scales, gm_array *lhs_indices,
                         gm_array *rhs_indices, int group_size, int bits, const char *mode, gm_array *global_scale_x,
                         gm_array *global_scale_w) {
    quantized_param p;
    if (!x || !w || !scales || !lhs_indices || !rhs_indices || !global_scale_x || !global_scale_w ||
        quantized_coding("gather_qqmm", mode, group_size, bits, &p) != GM_OK)
        return NULL;
    if (x->ndim < 2 || w->ndim < 2)
        return gm_fail(GM_ESHAPE, "gather_qqmm: x has %d dimensions and w %d, expected 2 or more", x->ndim, w->ndim),
               NULL;
    p.transpose = 1;
    gm_dtype type = (gm_dtype)x->dtype;
    rounding r = {x, w, scales, global_scale_x, global_scale_w};
    if (item_indices(s, "gather_qqmm", x, w, &lhs_indices, &rhs_indices) != GM_OK ||
        rounded_operands(s, "gather_qqmm", &p, &r) != GM_OK)
        return NULL;
    gm_array *in[6] = {r.x, r.w, r.scales, GM_NONE, lhs_indices, rhs_indices};
    if (!array_is_none(r.scales))
        return gm_astype(
            s,
            scaled_items(s, array_node(s, &quantized_matmul_op, in, 6, &p), one_number(s, global_scale_w), rhs_indices),
            type);
    gm_array *left = gm_take(s, as_items(s, r.x), lhs_indices, 0);
    gm_array *right = gm_take(s, as_items(s, r.w), rhs_indices, 0);
    return gm_astype(s, gm_matmul(s, left, swapped(s, right)), type);
}
