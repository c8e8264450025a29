/* view.c - ops that show the same memory otherwise, and those that lay it out anew. */
#include <string.h>
#include "ops/ops.h"

/* ---- reshape ---- */
typedef struct { int32_t ndim; int32_t unused; int64_t shape[GM_MAX_NDIM]; } reshape_param;
static const gm_field reshape_fields[] = {{FIELD_INT, offsetof(reshape_param, ndim), "ndim", 1},
                                          {FIELD_INT64, offsetof(reshape_param, shape), "shape", GM_MAX_NDIM}, {0}};

static gm_status reshape_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const reshape_param *p = param;
    const gm_array *x = in[0];
    int64_t known = 1;
    int free_axis = -1;
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = p->ndim;
    for (int i = 0; i < p->ndim; i++) {
        out->shape[i] = p->shape[i];
        if (p->shape[i] == -1 && free_axis < 0)
            free_axis = i;
        else if (p->shape[i] < 0 || __builtin_mul_overflow(known, p->shape[i], &known))
            known = -1;
        if (known < 0)
            break;
    }
    if (known > 0 && free_axis >= 0 && x->size % known == 0) {
        out->shape[free_axis] = x->size / known;
        known = x->size;
    }
    if (known != x->size || (free_axis >= 0 && out->shape[free_axis] < 0)) {
        char from[128], to[128];
        shape_text(x->ndim, x->shape, from);
        shape_text(p->ndim, p->shape, to);
        return gm_fail(GM_ESHAPE, "reshape: an array of shape %s and size %lld cannot become %s", from,
                       (long long)x->size, to);
    }
    return GM_OK;
}

static gm_status reshape_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t strides[GM_MAX_NDIM];
    if (array_is_contiguous(x)) {
        shape_strides(out->ndim, out->shape, strides);
        array_share(out, x, strides, 0);
        return GM_OK;
    }
    shape_strides(x->ndim, x->shape, strides);
    GM_TRY(array_alloc(out, q));
    return launch_copy(q, array_ptr(out), (gm_dtype)out->dtype, strides, array_ptr(x), (gm_dtype)x->dtype, x->strides,
                       x->ndim, x->shape);
}

const gm_op reshape_op = {.name = "reshape", .n_in = 1, .n_out = 1, .param_size = sizeof(reshape_param),
                                 .fields = reshape_fields, .infer = reshape_infer, .eval = reshape_eval};

gm_array *gm_reshape(gm_scope *s, gm_array *x, int ndim, const int64_t *shape) {
    reshape_param p;
    if (!x)
        return NULL;
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "reshape: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    if (ndim == x->ndim && memcmp(shape, x->shape, (size_t)ndim * sizeof *shape) == 0)
        return x;
    p = (reshape_param){.ndim = ndim};
    memcpy(p.shape, shape, (size_t)ndim * sizeof *shape);
    return array_node_sized(s, &reshape_op, &x, 1, &p, offsetof(reshape_param, shape) + (size_t)ndim * sizeof *shape);
}

/* ---- transpose ---- */
typedef struct { int8_t axes[GM_MAX_NDIM]; } transpose_param;
static const gm_field transpose_fields[] = {{FIELD_INT8, offsetof(transpose_param, axes), "axes", GM_MAX_NDIM}, {0}};

static gm_status transpose_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const transpose_param *p = param;
    out->dtype = (gm_dtype)in[0]->dtype;
    out->ndim = in[0]->ndim;
    for (int i = 0; i < out->ndim; i++)
        out->shape[i] = in[0]->shape[p->axes[i]];
    return GM_OK;
}

static gm_status transpose_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const transpose_param *p = out->param;
    int64_t strides[GM_MAX_NDIM];
    for (int i = 0; i < out->ndim; i++)
        strides[i] = out->in[0]->strides[p->axes[i]];
    array_share(out, out->in[0], strides, 0);
    return GM_OK;
}

const gm_op transpose_op = {.name = "transpose", .n_in = 1, .n_out = 1, .param_size = sizeof(transpose_param),
                                   .fields = transpose_fields, .infer = transpose_infer, .eval = transpose_eval};

gm_array *gm_transpose(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    transpose_param p;
    uint64_t seen = 0;
    if (!x)
        return NULL;
    memset(&p, 0, sizeof p);
    if (n_axes >= 0 && n_axes != x->ndim)
        return gm_fail(GM_EVALUE, "transpose: %d axes for an array of %d dimensions", n_axes, x->ndim), NULL;
    for (int i = 0; i < x->ndim; i++) {
        int axis = x->ndim - 1 - i;
        if (n_axes >= 0 && check_axis("transpose", axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        if (seen >> axis & 1)
            return gm_fail(GM_EVALUE, "transpose: axis %d is given twice", axis), NULL;
        seen |= (uint64_t)1 << axis;
        p.axes[i] = (int8_t)axis;
    }
    return array_node(s, &transpose_op, &x, 1, &p);
}

/* ---- broadcast_to ---- */
static gm_status broadcast_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const reshape_param *p = param;
    gm_array target = {.ndim = (int16_t)p->ndim, .shape = (int64_t *)(uintptr_t)p->shape};
    out->dtype = (gm_dtype)in[0]->dtype;
    GM_TRY(broadcast_shape("broadcast_to", in[0], &target, out));
    if (out->ndim != p->ndim || memcmp(out->shape, p->shape, (size_t)p->ndim * sizeof(int64_t)) != 0) {
        char from[128], to[128];
        shape_text(in[0]->ndim, in[0]->shape, from);
        shape_text(p->ndim, p->shape, to);
        return gm_fail(GM_ESHAPE, "broadcast_to: shape %s cannot become %s", from, to);
    }
    return GM_OK;
}

static gm_status broadcast_eval(gm_array *out, gm_queue *q) {
    (void)q;
    int64_t strides[GM_MAX_NDIM];
    broadcast_strides(out->in[0], out->ndim, strides);
    array_share(out, out->in[0], strides, 0);
    return GM_OK;
}

const gm_op broadcast_to_op = {.name = "broadcast_to", .n_in = 1, .n_out = 1, .param_size = sizeof(reshape_param),
                                   .fields = reshape_fields, .infer = broadcast_infer, .eval = broadcast_eval};

gm_array *gm_broadcast_to(gm_scope *s, gm_array *x, int ndim, const int64_t *shape) {
    reshape_param p;
    if (!x)
        return NULL;
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "broadcast_to: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    if (ndim == x->ndim && memcmp(shape, x->shape, (size_t)ndim * sizeof *shape) == 0)
        return x;
    p = (reshape_param){.ndim = ndim};
    memcpy(p.shape, shape, (size_t)ndim * sizeof *shape);
    return array_node_sized(s, &broadcast_to_op, &x, 1, &p, offsetof(reshape_param, shape) + (size_t)ndim * sizeof *shape);
}

/* ---- slice ---- */
typedef struct { int64_t start, stop, step; } slice_range;   /* one for each dimension */
static const gm_field slice_fields[] = {{FIELD_INT64, 0, "start, stop, step of each axis", 3 * GM_MAX_NDIM}, {0}};

static gm_status slice_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const slice_range *range = param;
    out->dtype = (gm_dtype)in[0]->dtype;
    out->ndim = in[0]->ndim;
    for (int i = 0; i < out->ndim; i++) {
        int64_t n = in[0]->shape[i], start = range[i].start, stop = range[i].stop, step = range[i].step, count = 0;
        if (step == 0)
            return gm_fail(GM_EVALUE, "slice: a step of 0");
        if (step > 0 && start < stop)
            count = 1 + (stop - 1 - start) / step;
        if (step < 0 && start > stop)
            count = 1 + (start - 1 - stop) / -step;
        if (count > 0 && (start < 0 || start >= n || start + (count - 1) * step < 0 || start + (count - 1) * step >= n))
            return gm_fail(GM_EVALUE, "slice: %lld:%lld:%lld is outside dimension %d of size %lld", (long long)start,
                           (long long)stop, (long long)step, i, (long long)n);
        out->shape[i] = count;
    }
    return GM_OK;
}

static gm_status slice_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const slice_range *range = out->param;
    const gm_array *x = out->in[0];
    int64_t strides[GM_MAX_NDIM], offset = 0;
    for (int i = 0; i < out->ndim; i++) {
        strides[i] = x->strides[i] * range[i].step;
        offset += x->strides[i] * range[i].start;
    }
    array_share(out, x, strides, out->size ? offset * (int64_t)array_item(x) : 0);
    return GM_OK;
}

const gm_op slice_op = {.name = "slice", .n_in = 1, .n_out = 1, .param_size = GM_MAX_NDIM * sizeof(slice_range),
                               .fields = slice_fields, .infer = slice_infer, .eval = slice_eval};

gm_array *gm_slice(gm_scope *s, gm_array *x, const int64_t *start, const int64_t *stop, const int64_t *step) {
    slice_range range[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        range[i] = (slice_range){start[i], stop[i], step[i]};
    return array_node_sized(s, &slice_op, &x, 1, range, (size_t)x->ndim * sizeof *range);
}

/* ---- contiguous ---- */
static gm_status same_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status contiguous_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    if (array_is_contiguous(x)) {
        array_share(out, x, x->strides, 0);
        return GM_OK;
    }
    GM_TRY(array_alloc(out, q));
    return launch_copy(q, array_ptr(out), (gm_dtype)out->dtype, out->strides, array_ptr(x), (gm_dtype)x->dtype,
                       x->strides, x->ndim, x->shape);
}

const gm_op contiguous_op = {.name = "contiguous", .n_in = 1, .n_out = 1, .infer = same_infer,
                                    .eval = contiguous_eval};

gm_array *gm_contiguous(gm_scope *s, gm_array *x) { return array_node(s, &contiguous_op, &x, 1, NULL); }

/* ---- concatenate ---- */
typedef struct { int32_t axis; } concatenate_param;
static const gm_field concatenate_fields[] = {{FIELD_INT, offsetof(concatenate_param, axis), "axis", 1}, {0}};

static gm_status concatenate_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    int axis = ((const concatenate_param *)param)->axis;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    for (int i = 1; i < n_in; i++) {
        bool fits = in[i]->ndim == in[0]->ndim;
        for (int d = 0; d < in[0]->ndim && fits; d++)
            fits = d == axis || in[i]->shape[d] == in[0]->shape[d];
        if (!fits) {
            char a[128], b[128];
            shape_text(in[0]->ndim, in[0]->shape, a);
            shape_text(in[i]->ndim, in[i]->shape, b);
            return gm_fail(GM_ESHAPE, "concatenate: shapes %s and %s differ outside axis %d", a, b, axis);
        }
        out->shape[axis] += in[i]->shape[axis];
    }
    return GM_OK;
}

static gm_status concatenate_eval(gm_array *out, gm_queue *q) {
    int axis = ((const concatenate_param *)out->param)->axis;
    char *to;
    GM_TRY(array_alloc(out, q));
    to = array_ptr(out);
    for (int i = 0; i < out->n_in; i++) {
        const gm_array *x = out->in[i];
        GM_TRY(launch_copy(q, to, (gm_dtype)out->dtype, out->strides, array_ptr(x), (gm_dtype)x->dtype, x->strides,
                           x->ndim, x->shape));
        to += x->shape[axis] * out->strides[axis] * (int64_t)array_item(out);
    }
    return GM_OK;
}

const gm_op concatenate_op = {.name = "concatenate", .n_in = -1, .n_out = 1,
                                     .param_size = sizeof(concatenate_param), .fields = concatenate_fields,
                                     .infer = concatenate_infer, .eval = concatenate_eval};

gm_array *gm_concatenate(gm_scope *s, gm_array *const *arrays, int count, int axis) {
    int at;
    if (count < 1 || count > UINT16_MAX)
        return gm_fail(GM_EVALUE, "concatenate: %d arrays; expected 1 to %d", count, UINT16_MAX), NULL;
    for (int i = 0; i < count; i++)
        if (!arrays[i])
            return NULL;
    if (check_axis("concatenate", axis, arrays[0]->ndim, &at) != GM_OK)
        return NULL;
    gm_dtype type = (gm_dtype)arrays[0]->dtype;
    for (int i = 1; i < count; i++)
        type = gm_promote(type, (gm_dtype)arrays[i]->dtype);
    gm_array *in[64];
    if (count <= 64) {
        for (int i = 0; i < count; i++)
            in[i] = gm_astype(s, arrays[i], type);
        return array_node(s, &concatenate_op, in, count, &(concatenate_param){at});
    }
    /* long lists join in two levels, so that the list of promoted arrays fits the stack */
    int half = count / 2;
    gm_array *two[2] = {gm_concatenate(s, arrays, half, at), gm_concatenate(s, arrays + half, count - half, at)};
    return gm_concatenate(s, two, 2, at);
}
