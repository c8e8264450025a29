/* matmul.c - products of dense matrices. The right operand is packed into panels as weights are, so one kernel serves
 * both. */
#include <string.h>
#include "ops/ops.h"

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

static int format_of(gm_dtype t) {
    return t == GM_FLOAT16 ? GM_QUANT_f16 : t == GM_BFLOAT16 ? GM_QUANT_bf16 : GM_QUANT_f32;
}

/* Byte offset of batch index `i` (over the leading dimensions of out) in an operand. */
static int64_t batch_offset(const gm_array *out, const gm_array *x, int64_t i) {
    int64_t offset = 0;
    for (int d = out->ndim - 3, e = x->ndim - 3; d >= 0; d--, e--) {
        int64_t at = i % out->shape[d];
        i /= out->shape[d];
        if (e >= 0 && x->shape[e] != 1)
            offset += at * x->strides[e];
    }
    return offset * (int64_t)array_item(x);
}

static gm_status matmul_eval(gm_array *out, gm_queue *q) {
    const gm_kernels *kernels = queue_kernels(q);
    const gm_array *a = out->in[0], *b = out->in[1];
    int na = a->ndim, nb = b->ndim;
    gm_dtype type = (gm_dtype)out->dtype;
    int64_t m = a->shape[na - 2], k = a->shape[na - 1], n = b->shape[nb - 1], batches = 1;
    int format = format_of(type);
    for (int i = 0; i < out->ndim - 2; i++)
        batches *= out->shape[i];
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    char *rows = queue_scratch(q, (size_t)(n * k) * array_item(b) + 1);
    char *panels = queue_scratch(q, (size_t)kernels_packed_bytes(kernels, format, n, k) + 1);
    float *x = queue_scratch(q, (size_t)(m * k) * sizeof(float) + 1);
    float *y = type == GM_FLOAT32 ? NULL : queue_scratch(q, (size_t)(m * n) * sizeof(float));
    if (!rows || !panels || !x || (type != GM_FLOAT32 && !y))
        return error_code();
    int64_t last_b = -1;
    for (int64_t i = 0; i < batches; i++) {
        const char *pa = (const char *)array_ptr(a) + batch_offset(out, a, i);
        int64_t at_b = batch_offset(out, b, i);
        float *to = y ? y : (float *)array_ptr(out) + i * m * n;
        const float *left = x;
        queue_fence(q);
        if (at_b != last_b) {
            GM_TRY(launch_copy(q, rows, type, (int64_t[]){k, 1}, (const char *)array_ptr(b) + at_b, type,
                               (int64_t[]){b->strides[nb - 1], b->strides[nb - 2]}, 2, (int64_t[]){n, k}));
            queue_fence(q);
            GM_TRY(LAUNCH(q, pack, kernels_panels(kernels, format, n), 4, 0, .out = panels, .in = rows,
                          .format = format, .rows = n, .k = k));
            last_b = at_b;
        }
        int64_t x_stride = k;
        if (type == GM_FLOAT32 && (k == 1 || a->strides[na - 1] == 1) && (m == 1 || a->strides[na - 2] >= k)) {
            left = (const float *)(const void *)pa;
            x_stride = a->strides[na - 2];
        } else {
            GM_TRY(launch_copy(q, x, GM_FLOAT32, (int64_t[]){k, 1}, pa, (gm_dtype)a->dtype, a->strides + na - 2, 2,
                               (int64_t[]){m, k}));
        }
        queue_fence(q);
        GM_TRY(LAUNCH(q, matmul_float, kernels_panels(kernels, format, n), 1 + 65536 / (m * k + 1), 0, .out = to,
                      .out_stride = n, .x = left, .x_stride = x_stride, .weight = panels, .format = format, .rows = n,
                      .k = k, .tokens = m));
        if (y) {
            queue_fence(q);
            GM_TRY(launch_copy(q, (char *)array_ptr(out) + i * m * n * (int64_t)array_item(out), type, (int64_t[]){1},
                               y, GM_FLOAT32, (int64_t[]){1}, 1, (int64_t[]){m * n}));
        }
    }
    return GM_OK;
}

static gm_array *matmul_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    gm_array *a = in[0], *b = in[1];
    int64_t shape[GM_MAX_NDIM];
    int axes[GM_MAX_NDIM], na = a->ndim, nb = b->ndim;
    if (na + 1 > GM_MAX_NDIM || nb + 1 > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "matmul: too many dimensions"), NULL;
    memcpy(shape, a->shape, (size_t)na * sizeof *shape);             /* [..., m, 1, k] */
    shape[na] = shape[na - 1];
    shape[na - 1] = 1;
    a = gm_reshape(s, a, na + 1, shape);
    for (int i = 0; i < nb; i++)
        axes[i] = i < nb - 2 ? i : i == nb - 2 ? nb - 1 : nb - 2;
    b = gm_transpose(s, b, nb, axes);                                /* [..., 1, n, k] */
    if (!b)
        return NULL;
    memcpy(shape, b->shape, (size_t)nb * sizeof *shape);
    shape[nb] = shape[nb - 1];
    shape[nb - 1] = shape[nb - 2];
    shape[nb - 2] = 1;
    b = gm_reshape(s, b, nb + 1, shape);
    return gm_sum(s, gm_multiply(s, a, b), 1, (int[]){-1}, false);
}

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

const gm_op matmul_op = {.name = "matmul", .n_in = 2, .n_out = 1, .infer = matmul_infer, .eval = matmul_eval,
                         .vjp = matmul_vjp, .vmap = vmap_broadcasting, .compose = matmul_compose,
                         .rebuild = matmul_rebuild};

gm_array *gm_matmul(gm_scope *s, gm_array *a, gm_array *b) {
    int64_t shape[GM_MAX_NDIM];
    if (!a || !b)
        return NULL;
    if (a->dtype == GM_PACKED || b->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "matmul: a packed matrix multiplies through packed_matmul"), NULL;
    gm_dtype type = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (!dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "matmul: got %s and %s, expected floating point", gm_dtype_name((gm_dtype)a->dtype),
                       gm_dtype_name((gm_dtype)b->dtype)), NULL;
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
    if (out && (type == GM_FLOAT64 || type == GM_COMPLEX64))
        out = matmul_compose(s, in, 2, NULL);
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
