/* loops.c - shapes, strides and checks that the op families share. */
#include <math.h>
#include <string.h>
#include "core/device.h"
#include "ops/ops.h"
#include "strides.h"

gm_status loop_make(gm_queue *q, int ndim, const int64_t *shape, int n_operands, const int64_t *const *strides,
                    loop *out) {
    int64_t *memory = queue_arena(q, (size_t)ndim * (size_t)(1 + n_operands) * sizeof *memory + 1),
            *steps[MAX_OPERANDS];
    if (!memory)
        return error_code();
    for (int k = 0; k < n_operands; k++)
        out->strides[k] = steps[k] = memory + (ptrdiff_t)(k + 1) * ndim;
    out->ndim = merge_dimensions(ndim, shape, n_operands, strides, memory, steps);
    out->shape = memory;
    return GM_OK;
}

void broadcast_strides(const gm_array *a, int ndim, int64_t *strides) {
    for (int i = 0; i < ndim; i++) {
        int j = i - (ndim - a->ndim);
        strides[i] = j < 0 || a->shape[j] == 1 ? 0 : a->strides[j];
    }
}

gm_status broadcast_shape(const char *op, const gm_array *a, const gm_array *b, gm_spec *out) {
    int n = a->ndim > b->ndim ? a->ndim : b->ndim;
    out->ndim = n;
    for (int i = 0; i < n; i++) {
        int ia = i - (n - a->ndim), ib = i - (n - b->ndim);
        int64_t da = ia < 0 ? 1 : a->shape[ia], db = ib < 0 ? 1 : b->shape[ib];
        if (da != db && da != 1 && db != 1) {
            char ta[128], tb[128];
            shape_text(a->ndim, a->shape, ta);
            shape_text(b->ndim, b->shape, tb);
            return gm_fail(GM_ESHAPE, "%s: shapes %s and %s cannot be broadcast together", op, ta, tb);
        }
        out->shape[i] = da == 1 ? db : da;
    }
    return GM_OK;
}

gm_status broadcast_check(const char *op, const gm_array *a, const gm_array *b) {
    gm_spec both;
    return broadcast_shape(op, a, b, &both);
}

void spec_like(gm_spec *out, const gm_array *a, gm_dtype type) {
    out->dtype = type;
    out->ndim = a->ndim;
    memcpy(out->shape, a->shape, (size_t)a->ndim * sizeof(int64_t));
}

gm_status check_rows(const char *op, const gm_array *a, const char *name, int64_t n, int64_t width) {
    if (a->dtype == GM_FLOAT32 && a->ndim == 2 && a->shape[0] == n && a->shape[1] == width)
        return GM_OK;
    char text[128];
    array_text(a, text);
    return gm_fail(GM_ESHAPE, "%s: %s is %s, expected float32(%lld,%lld)", op, name, text, (long long)n,
                   (long long)width);
}

gm_status check_starts(const char *op, const gm_array *starts) {
    char text[128];
    if (starts->dtype == GM_INT32 && starts->ndim == 1 && starts->shape[0] >= 1)
        return GM_OK;
    array_text(starts, text);
    return gm_fail(GM_ESHAPE, "%s: starts are %s, expected int32(sequences + 1)", op, text);
}

gm_status check_axis(const char *op, int axis, int ndim, int *out) {
    if (axis < -ndim || axis >= ndim)
        return gm_fail(GM_EAXIS, "%s: axis %d is out of range for %d dimensions", op, axis, ndim);
    *out = axis < 0 ? axis + ndim : axis;
    return GM_OK;
}

bool dtype_is_float(gm_dtype t) { return t == GM_FLOAT16 || t == GM_BFLOAT16 || t == GM_FLOAT32 || t == GM_FLOAT64; }
bool dtype_is_inexact(gm_dtype t) { return dtype_is_float(t) || t == GM_COMPLEX64; }
bool dtype_is_integer(gm_dtype t) { return t > GM_BOOL && t < GM_FLOAT16; }
gm_dtype dtype_inexact(gm_dtype t) { return dtype_is_inexact(t) ? t : GM_FLOAT32; }

gm_status launch_copies(gm_queue *q, const copy_part *parts, int count) {
    gm_copy_args *copies = queue_arena(q, (size_t)count * sizeof *copies);
    int64_t *starts = queue_arena(q, (size_t)(count + 1) * sizeof *starts);
    if (!copies || !starts)
        return error_code();
    starts[0] = 0;
    for (int k = 0; k < count; k++) {
        const copy_part *p = &parts[k];
        loop l;
        int64_t size = 1;
        for (int i = 0; i < p->ndim; i++)
            size *= p->shape[i];
        GM_TRY(loop_make(q, p->ndim, p->shape, 2, (const int64_t *const[]){p->out_strides, p->in_strides}, &l));
        copies[k] = (gm_copy_args){.out = p->out,
                                   .in = p->in,
                                   .out_type = (int)p->out_type,
                                   .in_type = (int)p->in_type,
                                   .ndim = l.ndim,
                                   .shape = l.shape,
                                   .out_strides = l.strides[0],
                                   .in_strides = l.strides[1]};
        starts[k + 1] = starts[k] + size;
        if (count == 1)
            return DISPATCH_ARGS(q, copy, size, copies);
    }
    return DISPATCH(q, copy_parts, starts[count], .parts = copies, .starts = starts);
}

gm_status launch_copy(gm_queue *q, copy_to out, copy_from in, int ndim, const int64_t *shape) {
    return launch_copies(q,
                         &(copy_part){.out = out.data,
                                      .in = in.data,
                                      .out_type = out.type,
                                      .in_type = in.type,
                                      .ndim = ndim,
                                      .shape = shape,
                                      .out_strides = out.strides,
                                      .in_strides = in.strides},
                         1);
}

gm_status float_operand(gm_queue *q, const gm_array *a, const float **out) {
    if (a->dtype == GM_FLOAT32 && array_is_contiguous(a)) {
        *out = array_ptr(a);
        return GM_OK;
    }
    int64_t strides[GM_MAX_NDIM];
    shape_strides(a->ndim, a->shape, strides);
    float *copy = queue_scratch(q, (size_t)a->size * sizeof(float));
    if (!copy)
        return error_code();
    GM_TRY(launch_copy(q, (copy_to){copy, GM_FLOAT32, strides}, from_array(a), a->ndim, a->shape));
    queue_fence(q);
    *out = copy;
    return GM_OK;
}

gm_status dense_operand(gm_queue *q, const gm_array *a, const void **out) {
    *out = array_ptr(a);
    if (array_is_contiguous(a))
        return GM_OK;
    int64_t strides[GM_MAX_NDIM];
    gm_dtype type = (gm_dtype)a->dtype;
    shape_strides(a->ndim, a->shape, strides);
    void *copy = queue_scratch(q, (size_t)a->size * array_item(a) + 1);
    if (!copy)
        return error_code();
    GM_TRY(launch_copy(q, (copy_to){copy, type, strides}, from_array(a), a->ndim, a->shape));
    queue_fence(q);
    *out = copy;
    return GM_OK;
}

gm_status row_operand(gm_queue *q, const gm_array *a, const void **out, int64_t *stride) {
    int last = a->ndim - 1;
    loop l;
    *out = array_ptr(a);
    *stride = a->shape[last];
    if (array_is_contiguous(a))
        return GM_OK;
    GM_TRY(loop_make(q, last, a->shape, 1, (const int64_t *const[]){a->strides}, &l));
    if (l.ndim > 1 || (a->strides[last] != 1 && a->shape[last] > 1))
        return dense_operand(q, a, out);
    *stride = l.ndim ? l.strides[0][0] : 0;
    return GM_OK;
}

/* The common dtypes at once, the others by a cast when evaluated. */
gm_array *scalar_array(gm_scope *s, double value, gm_dtype type) {
    bool whole = value >= -0x1p31 && value < 0x1p31 && trunc(value) == value;
    bool at_once = type == GM_FLOAT32 || type == GM_BOOL || (type == GM_INT32 && whole);
    gm_array *a = array_new(s, at_once ? type : GM_FLOAT64, 0, NULL);
    if (!a)
        return NULL;
    if (!at_once)
        *(double *)array_ptr(a) = value;
    else if (type == GM_FLOAT32)
        *(float *)array_ptr(a) = (float)value;
    else if (type == GM_INT32)
        *(int32_t *)array_ptr(a) = (int32_t)value;
    else
        *(uint8_t *)array_ptr(a) = value != 0;
    if (at_once)
        return a;
    const int before = device_enter(0); /* no other device has float64 */
    a = gm_astype(s, a, type);
    device_enter(before);
    return a;
}
