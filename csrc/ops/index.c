/* index.c - reading by index arrays. */
#include "ops/ops.h"

/* Rows: x [n, k] contiguous in k, indices any integer array of m items; out [m, k]. */
static gm_status rows_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *x = in[0], *index = in[1];
    if (x->ndim != 2 || index->ndim != 1 || !dtype_is_integer((gm_dtype)index->dtype)) {
        char a[128], b[128];
        array_text(x, a);
        array_text(index, b);
        return gm_fail(GM_ESHAPE, "take_rows: got %s and indices %s, expected [n, k] and integers [m]", a, b);
    }
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = 2;
    out->shape[0] = index->shape[0];
    out->shape[1] = x->shape[1];
    return GM_OK;
}

static gm_status rows_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *index = out->in[1];
    int64_t item = (int64_t)array_item(x), row = x->shape[1] * item, step = x->strides[0] * item;
    const char *data = array_ptr(x);
    const void *ids = array_ptr(index);
    GM_TRY(array_alloc(out, q));
    if (x->shape[1] > 1 && x->strides[1] != 1) {
        char *copy = queue_scratch(q, (size_t)(x->size * item));
        if (!copy)
            return error_code();
        GM_TRY(launch_copy(q, copy, (gm_dtype)x->dtype, (int64_t[]){x->shape[1], 1}, data, (gm_dtype)x->dtype,
                           x->strides, 2, x->shape));
        queue_fence(q);
        data = copy;
        step = row;
    }
    if (index->shape[0] > 1 && index->strides[0] != 1) {
        char *copy = queue_scratch(q, (size_t)index->size * array_item(index));
        if (!copy)
            return error_code();
        GM_TRY(launch_copy(q, copy, (gm_dtype)index->dtype, (int64_t[]){1}, ids, (gm_dtype)index->dtype, index->strides,
                           1, index->shape));
        queue_fence(q);
        ids = copy;
    }
    return LAUNCH(q, take, out->shape[0], row ? 65536 / (row < 65536 ? row : 65536) : GRAIN, 0, .out = array_ptr(out),
                  .in = data, .index = ids, .index_type = index->dtype, .n_rows = x->shape[0], .row_bytes = row,
                  .row_stride_bytes = step);
}

const gm_op take_rows_op = {.name = "take_rows", .n_in = 2, .n_out = 1, .nondiff = 2, .infer = rows_infer,
                              .eval = rows_eval};

gm_array *gm_take_rows(gm_scope *s, gm_array *x, gm_array *indices) {
    gm_array *in[2] = {x, indices};
    return array_node(s, &take_rows_op, in, 2, NULL);
}

/* Along any axis: the axis is brought to the front, rows are taken, and it goes back. */
gm_array *gm_take(gm_scope *s, gm_array *x, gm_array *indices, int axis) {
    int at, order[GM_MAX_NDIM];
    int64_t shape[GM_MAX_NDIM];
    if (!x || !indices || check_axis("take", axis, x->ndim, &at) != GM_OK)
        return NULL;
    if (!dtype_is_integer((gm_dtype)indices->dtype))
        return gm_fail(GM_EVALUE, "take: indices are %s, expected integers",
                       gm_dtype_name((gm_dtype)indices->dtype)), NULL;
    if (x->shape[at] == 0 && indices->size > 0)
        return gm_fail(GM_EVALUE, "take: cannot take from an empty axis"), NULL;
    int ndim = x->ndim, n_index = indices->ndim, out_ndim = ndim - 1 + n_index;
    if (out_ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "take: %d dimensions: at most %d are supported", out_ndim, GM_MAX_NDIM), NULL;
    order[0] = at;
    for (int i = 0, n = 1; i < ndim; i++)
        if (i != at)
            order[n++] = i;
    gm_array *front = at ? gm_transpose(s, x, ndim, order) : x;
    int64_t row = 1;
    for (int i = 1; i < ndim; i++)
        row *= x->shape[order[i]];
    gm_array *flat = gm_reshape(s, front, 2, (int64_t[]){x->shape[at], row});
    gm_array *taken = gm_take_rows(s, flat, gm_reshape(s, indices, 1, (int64_t[]){indices->size}));
    for (int i = 0; i < n_index; i++)
        shape[i] = indices->shape[i];
    for (int i = 1; i < ndim; i++)
        shape[n_index + i - 1] = x->shape[order[i]];
    gm_array *out = gm_reshape(s, taken, out_ndim, shape);
    if (at == 0)
        return out;
    int back[GM_MAX_NDIM], n = 0;
    for (int i = 0; i < at; i++)
        back[n++] = n_index + i;
    for (int i = 0; i < n_index; i++)
        back[n++] = i;
    for (int i = at; i < ndim - 1; i++)
        back[n++] = n_index + i;
    return gm_transpose(s, out, out_ndim, back);
}
