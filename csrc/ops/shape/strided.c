/* strided.c - other readings of an array's memory: as_strided with given strides, view as another dtype; depends, which
 * only orders evaluation. */
#include <string.h>
#include "ops/ops.h"

/* ---- as_strided: x as one row of elements, read at offset + sum of index * stride ---- */
typedef struct { int64_t size, stride; } strided_axis;
typedef struct {
    int64_t offset;
    int32_t ndim;
    int32_t unused;
    strided_axis axes[GM_MAX_NDIM];
} strided_param;
static const gm_field strided_fields[] = {
    {FIELD_INT64, offsetof(strided_param, offset), "offset", 1},
    {FIELD_INT, offsetof(strided_param, ndim), "ndim", 1},
    {FIELD_INT64, offsetof(strided_param, axes), "size and stride of each axis", 2 * GM_MAX_NDIM},
    {0}};

static gm_status strided_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const strided_param *p = param;
    int64_t low = p->offset, high = p->offset;
    bool empty = false, far = false;
    out->dtype = (gm_dtype)in[0]->dtype;
    out->ndim = p->ndim;
    for (int i = 0; i < p->ndim; i++) {
        int64_t reach;
        out->shape[i] = p->axes[i].size;
        empty |= out->shape[i] <= 0;
        far |= __builtin_mul_overflow(out->shape[i] - 1, p->axes[i].stride, &reach);
        far |= reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high);
    }
    if (!empty && (far || low < 0 || high >= in[0]->size))
        return gm_fail(GM_EVALUE, "as_strided: elements %lld to %lld of an array with %lld", (long long)low,
                       (long long)high, (long long)in[0]->size);
    return GM_OK;
}

static gm_status strided_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const strided_param *p = out->param;
    int64_t strides[GM_MAX_NDIM];
    for (int i = 0; i < out->ndim; i++)
        strides[i] = p->axes[i].stride;
    array_share(out, out->in[0], strides, out->size ? p->offset * (int64_t)array_item(out) : 0);
    return GM_OK;
}

static gm_array *strided(gm_scope *s, gm_array *x, const strided_param *p) {
    x = gm_contiguous(s, x);
    return array_node_sized(s, &as_strided_op, &x, 1, p,
                            offsetof(strided_param, axes) + (size_t)p->ndim * sizeof *p->axes);
}

/* Each element gets the sum over its readings: the same strides read which element it was. */
static void strided_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    gm_array *x = in[0], *index = gm_arange(s, 0, (double)x->size, 1, x->size > INT32_MAX ? GM_INT64 : GM_INT32);
    if (!index || !(index = strided(s, index, out->param)))
        return;
    gm_array *flat = gm_zeros(s, 1, &x->size, (gm_dtype)x->dtype);
    flat = gm_scatter(s, flat, (gm_indices){&index, 1, (const int[]){0}, 0}, cotangents[0], GM_S_ADD, NULL);
    grad[0] = gm_reshape(s, flat, x->ndim, x->shape);
}

/* The batch is one more axis, whose stride is the size of x. */
static gm_status strided_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const strided_param *p = out->param;
    strided_param all = {.offset = p->offset, .ndim = p->ndim + 1};
    (void)batched;
    if (all.ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "as_strided: %d dimensions: at most %d are supported", all.ndim, GM_MAX_NDIM);
    all.axes[0].size = in[0]->shape[0];
    all.axes[0].stride = in[0]->shape[0] ? in[0]->size / in[0]->shape[0] : 0;
    memcpy(all.axes + 1, p->axes, (size_t)p->ndim * sizeof *p->axes);
    outs[0] = strided(s, in[0], &all);
    return outs[0] ? GM_OK : error_code();
}

static gm_status strided_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const strided_param *p = param;
    bool fits = within(p->ndim, GM_MAX_NDIM + 1);
    for (int i = 0; fits && i < p->ndim; i++)
        fits = p->axes[i].size >= 0;
    return fits ? rebuilt(strided(s, in[0], p), outs) : rebuild_refuse("as_strided");
}

const gm_op as_strided_op = {.name = "as_strided",
                             .place = PLACE_INPUT,
                             .n_in = 1,
                             .n_out = 1,
                             .fixed = FIXED_ALL,
                             .param_size = sizeof(strided_param),
                             .fields = strided_fields,
                             .infer = strided_infer,
                             .eval = strided_eval,
                             .vjp = strided_vjp,
                             .vmap = strided_vmap,
                             .rebuild = strided_rebuild};

gm_array *gm_as_strided(gm_scope *s, gm_array *x, int ndim, const int64_t *shape, const int64_t *strides,
                        int64_t offset) {
    strided_param p = {.offset = offset, .ndim = ndim};
    if (!x)
        return NULL;
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "as_strided: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    int64_t rows[GM_MAX_NDIM];
    shape_strides(ndim, shape, rows);
    for (int i = 0; i < ndim; i++) {
        p.axes[i].size = shape[i];
        p.axes[i].stride = strides ? strides[i] : rows[i];
    }
    return strided(s, x, &p);
}

/* ---- view: the bytes as another dtype ---- */
typedef struct { int32_t type; } view_param;
static const gm_field view_fields[] = {{FIELD_INT, offsetof(view_param, type), "dtype", 1}, {0}};

static gm_status view_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[0];
    gm_dtype type = (gm_dtype)((const view_param *)param)->type;
    int64_t from = (int64_t)array_item(x), to = (int64_t)gm_dtype_size(type);
    spec_like(out, x, type);
    if (from == to)
        return GM_OK;
    if (x->ndim == 0)
        return gm_fail(GM_EVALUE, "view: a scalar of %s cannot be viewed as %s: the sizes differ",
                       gm_dtype_name((gm_dtype)x->dtype), gm_dtype_name(type));
    int64_t *last = &out->shape[x->ndim - 1];
    if (*last * from % to != 0)
        return gm_fail(GM_EVALUE, "view: the last axis has %lld bytes, which are not whole items of %s",
                       (long long)(*last * from), gm_dtype_name(type));
    *last = *last * from / to;
    return GM_OK;
}

/* Items of another size need a contiguous last axis, and other strides that are multiples of the new size. */
static gm_status view_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t from = (int64_t)array_item(x), to = (int64_t)array_item(out), strides[GM_MAX_NDIM];
    bool fits = from == to || x->shape[x->ndim - 1] == 1 || x->strides[x->ndim - 1] == 1;
    fits = fits && x->offset % to == 0;
    for (int i = 0; i < out->ndim; i++) {
        fits = fits && (from == to || i == out->ndim - 1 || x->strides[i] * from % to == 0);
        strides[i] = from == to ? x->strides[i] : i == out->ndim - 1 ? 1 : x->strides[i] * from / to;
    }
    if (fits || out->size == 0) {
        array_share(out, x, strides, 0);
        return GM_OK;
    }
    shape_strides(x->ndim, x->shape, strides);
    GM_TRY(array_alloc(out, q));
    return launch_copy(q, (copy_to){array_ptr(out), (gm_dtype)x->dtype, strides}, from_array(x), x->ndim, x->shape);
}

static gm_array *view_as(gm_scope *s, gm_array *x, gm_dtype type) {
    return array_node(s, &view_op, &x, 1, &(view_param){(int32_t)type});
}

/* A scalar of the batch keeps its size: view_infer has seen to that. */
static gm_status view_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    outs[0] = view_as(s, in[0], (gm_dtype)out->dtype);
    return outs[0] ? GM_OK : error_code();
}

static gm_status view_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const int32_t type = ((const view_param *)param)->type;
    return within(type, GM_DTYPE_COUNT) ? rebuilt(gm_view(s, in[0], (gm_dtype)type), outs) : rebuild_refuse("view");
}

const gm_op view_op = {.name = "view",
                       .place = PLACE_INPUT,
                       .n_in = 1,
                       .n_out = 1,
                       .param_size = sizeof(view_param),
                       .fields = view_fields,
                       .infer = view_infer,
                       .eval = view_eval,
                       .vmap = view_vmap,
                       .rebuild = view_rebuild};

gm_array *gm_view(gm_scope *s, gm_array *x, gm_dtype type) {
    if (!x || (gm_dtype)x->dtype == type)
        return x;
    if (type >= GM_DTYPE_COUNT || x->dtype >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "view: %s as %s is not possible", gm_dtype_name((gm_dtype)x->dtype),
                       gm_dtype_name(type)),
               NULL;
    return view_as(s, x, type);
}

/* ---- depends: the first arrays, evaluated after all of them ---- */
typedef struct { int32_t count; } depends_param;
static const gm_field depends_fields[] = {{FIELD_INT, offsetof(depends_param, count), "count", 1}, {0}};

static gm_status depends_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    for (int i = 0; i < ((const depends_param *)param)->count; i++)
        spec_like(&out[i], in[i], (gm_dtype)in[i]->dtype);
    return GM_OK;
}

static gm_status depends_eval(gm_array *out, gm_queue *q) {
    (void)q;
    for (int k = 0; k < array_n_out(out); k++)
        array_share(array_output(out, k), out->in[k], out->in[k]->strides, 0);
    return GM_OK;
}

static void depends_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)s;
    (void)in;
    for (int k = 0; k < array_n_out(out); k++)
        grad[k] = cotangents[k];
}

static gm_status depends_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    int count = array_n_out(out);
    int64_t batch = batch_size(in, out->n_in, batched);
    GM_TRY(array_nodes(s, &depends_op, in, out->n_in, out->param, out->param_size, count, outs));
    for (int k = 0; k < count; k++)
        if (!(outs[k] = batched_input(s, outs[k], batched[k], batch)))
            return error_code();
    return GM_OK;
}

static gm_status depends_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)param;
    if (n_out > n_in)
        return rebuild_refuse("depends");
    return gm_depends(s, in, n_in, n_out, outs) ? GM_OK : error_code();
}

const gm_op depends_op = {.name = "depends",
                          .shares = true,
                          .n_in = -1,
                          .n_out = -1,
                          .param_size = sizeof(depends_param),
                          .fields = depends_fields,
                          .infer = depends_infer,
                          .eval = depends_eval,
                          .vjp = depends_vjp,
                          .vmap = depends_vmap,
                          .rebuild = depends_rebuild};

gm_array *gm_depends(gm_scope *s, gm_array *const *arrays, int count, int n_outputs, gm_array **outs) {
    if (n_outputs == 0)
        return GM_NONE;
    if (count > UINT16_MAX)
        return gm_fail(GM_EVALUE, "depends: %d arrays; expected at most %d", count, UINT16_MAX), NULL;
    gm_status status = array_nodes(s, &depends_op, arrays, count, &(depends_param){n_outputs}, sizeof(depends_param),
                                   n_outputs, outs);
    return status == GM_OK ? outs[0] : NULL;
}
