/* slice.c - a strided region of an array: read as a view, or replaced. */
#include <string.h>
#include "ops/ops.h"

static const gm_field slice_fields[] = {{FIELD_INT64, 0, "start, stop, step of each axis", 3 * GM_MAX_NDIM}, {0}};

gm_status slice_shape(const gm_array *x, const slice_range *range, gm_spec *out) {
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = x->ndim;
    for (int i = 0; i < out->ndim; i++) {
        int64_t n = x->shape[i], start = range[i].start, stop = range[i].stop, step = range[i].step, count = 0;
        if (step == 0)
            return gm_fail(GM_EVALUE, "slice: a step is 0, expected a positive or a negative one");
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

bool slice_is_sane(const slice_range *range, const gm_array *x) {
    for (int i = 0; i < x->ndim; i++)
        if (!within(range[i].start, x->shape[i] + 1) || range[i].stop < -x->shape[i] - 1 ||
            range[i].stop > x->shape[i] || range[i].step < -INT32_MAX || range[i].step > INT32_MAX)
            return false;
    return true;
}

static gm_status slice_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    return slice_shape(in[0], param, out);
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

static gm_array *slice_by(gm_scope *s, gm_array *x, const slice_range *range) {
    return x ? array_node_sized(s, &slice_op, &x, 1, range, (size_t)x->ndim * sizeof *range) : NULL;
}

static gm_array *update_by(gm_scope *s, gm_array *x, gm_array *update, const slice_range *range) {
    gm_array *in[2] = {x, update};
    return x ? array_node_sized(s, &slice_update_op, in, 2, range, (size_t)x->ndim * sizeof *range) : NULL;
}

static void slice_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    grad[0] = update_by(s, gm_zeros(s, in[0]->ndim, in[0]->shape, (gm_dtype)in[0]->dtype), cotangents[0], out->param);
}

/* The ranges after a batch axis that is taken whole. */
static void batched_ranges(int ndim, const slice_range *range, int64_t batch, slice_range *out) {
    out[0] = (slice_range){0, batch, 1};
    memcpy(out + 1, range, (size_t)ndim * sizeof *range);
}

static gm_status slice_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    slice_range range[GM_MAX_NDIM + 1];
    (void)batched;
    batched_ranges(out->ndim, out->param, in[0]->shape[0], range);
    outs[0] = slice_by(s, in[0], range);
    return outs[0] ? GM_OK : error_code();
}

static gm_status slice_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return slice_is_sane(param, in[0]) ? rebuilt(slice_by(s, in[0], param), outs) : rebuild_refuse("slice");
}

const gm_op slice_op = {.name = "slice",
                        .place = PLACE_INPUT,
                        .n_in = 1,
                        .n_out = 1,
                        .param_size = GM_MAX_NDIM * sizeof(slice_range),
                        .fields = slice_fields,
                        .infer = slice_infer,
                        .eval = slice_eval,
                        .vjp = slice_vjp,
                        .vmap = slice_vmap,
                        .rebuild = slice_rebuild};

gm_array *gm_slice(gm_scope *s, gm_array *x, const int64_t *start, const int64_t *stop, const int64_t *step) {
    slice_range range[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        range[i] = (slice_range){start[i], stop[i], step[i]};
    return slice_by(s, x, range);
}

/* ---- slice_update: a copy of x with the region replaced; x's own memory when this is its last reader ---- */
static gm_status update_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(slice_infer(in, n_in, param, out));
    if (out->ndim != in[1]->ndim || memcmp(out->shape, in[1]->shape, (size_t)out->ndim * sizeof *out->shape) != 0 ||
        in[0]->dtype != in[1]->dtype) {
        char region[128], update[128];
        shape_text(out->ndim, out->shape, region);
        array_text(in[1], update);
        return gm_fail(GM_ESHAPE, "slice_update: got %s, expected %s%s as the region", update,
                       gm_dtype_name((gm_dtype)in[0]->dtype), region);
    }
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status update_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *update = out->in[1];
    const slice_range *range = out->param;
    gm_dtype type = (gm_dtype)out->dtype;
    int64_t strides[GM_MAX_NDIM], offset = 0;
    GM_TRY(array_alloc_like(out, q, 0));
    if (out->buf != x->buf && update->size != out->size) {
        GM_TRY(launch_copy(q, to_array(out), from_array(x), x->ndim, x->shape));
        queue_fence(q);
    }
    for (int i = 0; i < out->ndim; i++) {
        strides[i] = out->strides[i] * range[i].step;
        offset += out->strides[i] * range[i].start;
    }
    return launch_copy(q, (copy_to){(char *)array_ptr(out) + offset * (int64_t)array_item(out), type, strides},
                       from_array(update), update->ndim, update->shape);
}

static void update_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    grad[0] = update_by(s, cotangents[0], gm_zeros(s, in[1]->ndim, in[1]->shape, (gm_dtype)in[1]->dtype), out->param);
    grad[1] = slice_by(s, cotangents[0], out->param);
}

static gm_status update_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    slice_range range[GM_MAX_NDIM + 1];
    int64_t batch = batch_size(in, 2, batched);
    batched_ranges(out->ndim, out->param, batch, range);
    gm_array *x = batched_input(s, in[0], batched[0], batch), *update = batched_input(s, in[1], batched[1], batch);
    outs[0] = update_by(s, x, update, range);
    return outs[0] ? GM_OK : error_code();
}

static gm_status update_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return slice_is_sane(param, in[0]) ? rebuilt(update_by(s, in[0], in[1], param), outs)
                                       : rebuild_refuse("slice_update");
}

const gm_op slice_update_op = {.name = "slice_update",
                               .n_in = 2,
                               .n_out = 1,
                               .param_size = GM_MAX_NDIM * sizeof(slice_range),
                               .fields = slice_fields,
                               .infer = update_infer,
                               .eval = update_eval,
                               .vjp = update_vjp,
                               .vmap = update_vmap,
                               .rebuild = update_rebuild};

gm_array *gm_slice_update(gm_scope *s, gm_array *x, gm_array *update, const int64_t *start, const int64_t *stop,
                          const int64_t *step) {
    slice_range range[GM_MAX_NDIM];
    gm_spec region;
    if (!x || !update)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        range[i] = (slice_range){start[i], stop[i], step[i]};
    if (slice_infer(&x, 1, range, &region) != GM_OK)
        return NULL;
    update = gm_broadcast_to(s, gm_astype(s, update, (gm_dtype)x->dtype), region.ndim, region.shape);
    return update_by(s, x, update, range);
}
