/* dynamic_slice.c - a region whose start is an array: read, or replaced. The start is read when the kernel runs; a
 * region that would reach outside is moved inside. Along axes that are not named the region begins at 0. */
#include <string.h>
#include "ops/index/index.h"

typedef struct {
    int32_t n_axes, unused;
    int8_t axes[GM_MAX_NDIM];
    int64_t size[GM_MAX_NDIM]; /* dynamic_slice: of the region; one for each dimension */
} dynamic_param;
static const gm_field dynamic_fields[] = {{FIELD_INT, offsetof(dynamic_param, n_axes), "number of axes", 1},
                                          {FIELD_INT8, offsetof(dynamic_param, axes), "axes", GM_MAX_NDIM},
                                          {FIELD_INT64, offsetof(dynamic_param, size), "size", GM_MAX_NDIM},
                                          {0}};

static bool is_addressed(const dynamic_param *p, int axis) {
    for (int k = 0; k < p->n_axes; k++)
        if (p->axes[k] == axis)
            return true;
    return false;
}

/* Records the copy of `shape` elements between a whole array and the region of another. */
static gm_status launch_region(gm_queue *q, const dynamic_param *p, const gm_array *whole, const gm_array *start,
                               const int64_t *shape, gm_copy_args copy, bool on_out) {
    int64_t *memory = queue_arena(q, 2 * (size_t)p->n_axes * sizeof *memory + 1), size = 1;
    loop l;
    if (!memory)
        return error_code();
    for (int k = 0; k < p->n_axes; k++) {
        memory[k] = whole->strides[p->axes[k]];
        memory[p->n_axes + k] = whole->shape[p->axes[k]] - shape[p->axes[k]];
    }
    for (int i = 0; i < whole->ndim; i++)
        size *= shape[i];
    GM_TRY(loop_make(q, whole->ndim, shape, 2, (const int64_t *const[]){copy.out_strides, copy.in_strides}, &l));
    copy.ndim = l.ndim;
    copy.shape = l.shape;
    copy.out_strides = l.strides[0];
    copy.in_strides = l.strides[1];
    return DISPATCH(q, copy_at, size, .copy = copy, .on_out = on_out, .n_starts = p->n_axes, .start = array_ptr(start),
                    .start_type = start->dtype, .start_step = start->ndim ? start->strides[0] : 0, .steps = memory,
                    .limits = memory + p->n_axes);
}

static gm_status check_start(const char *op, const dynamic_param *p, const gm_array *start) {
    if (!dtype_is_integer((gm_dtype)start->dtype))
        return gm_fail(GM_EVALUE, "%s: start is %s, expected integers", op, gm_dtype_name((gm_dtype)start->dtype));
    if (start->ndim > 1 || start->size != p->n_axes)
        return gm_fail(GM_EVALUE, "%s: start has %lld items in %d dimensions, expected one for each of %d axes", op,
                       (long long)start->size, start->ndim, p->n_axes);
    return GM_OK;
}

/* ---- the batched start: as index arrays ---- */

/* Index k of the region's elements along axes[k]: [batch, 1, .., size of axes[k], .., 1]. */
static gm_array *region_index(gm_scope *s, const dynamic_param *p, const gm_array *x, gm_array *start,
                              const int64_t *shape, int k) {
    int64_t begin[2] = {0, k}, end[2] = {start->shape[0], k + 1}, step[2] = {1, 1}, dims[GM_MAX_NDIM + 1];
    gm_array *limit = scalar_array(s, (double)(x->shape[p->axes[k]] - shape[p->axes[k]]), GM_INT64);
    gm_array *from = gm_astype(s, gm_slice(s, start, begin, end, step), GM_INT64);
    from = gm_maximum(s, gm_minimum(s, from, limit), scalar_array(s, 0, GM_INT64));
    dims[0] = start->shape[0];
    for (int i = 0; i < p->n_axes; i++)
        dims[1 + i] = 1;
    from = gm_reshape(s, from, p->n_axes + 1, dims);
    dims[0] = 1;
    dims[1 + k] = shape[p->axes[k]];
    gm_array *along = gm_arange(s, 0, (double)dims[1 + k], 1, GM_INT64);
    return gm_add(s, from, gm_reshape(s, along, p->n_axes + 1, dims));
}

typedef struct {
    gm_array *x, *index[GM_MAX_NDIM + 1];
    int n, axes[GM_MAX_NDIM + 1];
    int order[GM_MAX_NDIM + 1]; /* for each axis of the batched region, its axis of the dense side */
} region_plan;

/* x [batch, ...] and start [batch, n]. */
static void plan_region(gm_scope *s, const dynamic_param *p, const gm_array *whole, gm_array *x, gm_array *start,
                        const int64_t *shape, region_plan *out) {
    int64_t dims[GM_MAX_NDIM + 1] = {x->shape[0]};
    int lead = p->n_axes + 1;
    out->x = x;
    out->n = p->n_axes + 1;
    if (start->ndim == 1)
        start = gm_reshape(s, start, 2, (int64_t[]){start->shape[0], 1});
    for (int k = 0; k < p->n_axes; k++) {
        dims[1 + k] = 1;
        out->index[1 + k] = start ? region_index(s, p, whole, start, shape, k) : NULL;
        out->axes[1 + k] = p->axes[k] + 1;
        out->order[p->axes[k] + 1] = 1 + k;
    }
    out->axes[0] = out->order[0] = 0;
    out->index[0] = gm_reshape(s, gm_arange(s, 0, (double)dims[0], 1, GM_INT64), p->n_axes + 1, dims);
    for (int i = 0; i < whole->ndim; i++) {
        if (!is_addressed(p, i))
            out->order[i + 1] = lead++;
    }
}

/* ---- dynamic_slice ---- */
static gm_status slice_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const dynamic_param *p = param;
    GM_TRY(check_start("slice", p, in[1]));
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    for (int i = 0; i < out->ndim; i++) {
        if (p->size[i] < 0 || p->size[i] > in[0]->shape[i])
            return gm_fail(GM_EVALUE, "slice: %lld elements along dimension %d, expected at most %lld",
                           (long long)p->size[i], i, (long long)in[0]->shape[i]);
        out->shape[i] = p->size[i];
    }
    return GM_OK;
}

static gm_status slice_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    GM_TRY(array_alloc(out, q));
    return launch_region(q, out->param, x, out->in[1], out->shape,
                         (gm_copy_args){.out = array_ptr(out),
                                        .in = array_ptr(x),
                                        .out_type = out->dtype,
                                        .in_type = x->dtype,
                                        .out_strides = out->strides,
                                        .in_strides = x->strides},
                         false);
}

static void slice_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const dynamic_param *p = out->param;
    int axes[GM_MAX_NDIM];
    for (int k = 0; k < p->n_axes; k++)
        axes[k] = p->axes[k];
    gm_dtype type = (gm_dtype)in[0]->dtype;
    gm_array *zeros = gm_full(s, in[0]->ndim, in[0]->shape, scalar_array(s, 0, type), type);
    grad[0] = gm_dynamic_slice_update(s, zeros, cotangents[0], in[1], p->n_axes, axes);
}

static gm_array *dynamic_node(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, int n_axes, const int *axes,
                              const int64_t *size) {
    dynamic_param p;
    uint64_t seen = 0;
    for (int i = 0; i < n_in; i++)
        if (!in[i])
            return NULL;
    int ndim = in[0]->ndim;
    memset(&p, 0, sizeof p);
    if (n_axes > ndim)
        return gm_fail(GM_EVALUE, "%s: %d axes of an array with %d dimensions", op->name, n_axes, ndim), NULL;
    for (int k = 0; k < n_axes; k++) {
        int at;
        if (check_axis(op->name, axes[k], ndim, &at) != GM_OK)
            return NULL;
        if (seen >> at & 1)
            return gm_fail(GM_EVALUE, "%s: axis %d is given twice", op->name, at), NULL;
        seen |= (uint64_t)1 << at;
        p.axes[k] = (int8_t)at;
    }
    p.n_axes = n_axes;
    for (int i = 0; i < ndim; i++)
        p.size[i] = size[i];
    return array_node(s, op, in, n_in, &p);
}

static gm_status slice_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const dynamic_param *p = out->param;
    if (!batched[1]) {
        int axes[GM_MAX_NDIM];
        int64_t size[GM_MAX_NDIM + 1] = {in[0]->shape[0]};
        for (int k = 0; k < p->n_axes; k++)
            axes[k] = p->axes[k] + 1;
        memcpy(size + 1, p->size, (size_t)out->ndim * sizeof *size);
        outs[0] = dynamic_node(s, out->op, in, 2, p->n_axes, axes, size);
        return outs[0] ? GM_OK : error_code();
    }
    region_plan plan;
    int64_t batch = in[1]->shape[0], begin[GM_MAX_NDIM + 1] = {0}, end[GM_MAX_NDIM + 1] = {batch};
    int64_t step[GM_MAX_NDIM + 1] = {1};
    gm_array *x = batched_input(s, in[0], batched[0], batch);
    if (!x)
        return error_code();
    plan_region(s, p, out->in[0], x, in[1], out->shape, &plan);
    for (int i = 0; i < out->ndim; i++) {
        end[i + 1] = is_addressed(p, i) ? x->shape[i + 1] : out->shape[i];
        step[i + 1] = 1;
    }
    gm_array *taken = gm_gather(s, gm_slice(s, x, begin, end, step), plan.index, plan.n, plan.axes, 0);
    outs[0] = gm_transpose(s, taken, out->ndim + 1, plan.order);
    return outs[0] ? GM_OK : error_code();
}

static bool dynamic_axes(const dynamic_param *p, int *axes) {
    for (int k = 0; k < p->n_axes && k < GM_MAX_NDIM; k++)
        axes[k] = p->axes[k];
    return within(p->n_axes, GM_MAX_NDIM + 1);
}

static gm_status slice_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const dynamic_param *p = param;
    int axes[GM_MAX_NDIM];
    return dynamic_axes(p, axes) ? rebuilt(gm_dynamic_slice(s, in[0], in[1], p->n_axes, axes, p->size), outs)
                                 : rebuild_refuse("dynamic_slice");
}

/* In MLX's words. */
static gm_status slice_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i == 1 ? gm_fail(GM_EVALUE, "[DynamicSlice::%s] Not supported for start indices.", forward ? "jvp" : "vjp")
                  : GM_OK;
}

const gm_op dynamic_slice_op = {.name = "dynamic_slice",
                                .n_in = 2,
                                .n_out = 1,
                                .nondiff = 2,
                                .refuse = slice_refuse,
                                .param_size = sizeof(dynamic_param),
                                .fields = dynamic_fields,
                                .infer = slice_infer,
                                .eval = slice_eval,
                                .vjp = slice_vjp,
                                .vmap = slice_vmap,
                                .rebuild = slice_rebuild};

gm_array *gm_dynamic_slice(gm_scope *s, gm_array *x, gm_array *start, int n_axes, const int *axes,
                           const int64_t *size) {
    return dynamic_node(s, &dynamic_slice_op, (gm_array *[]){x, start}, 2, n_axes, axes, size);
}

/* ---- dynamic_slice_update ---- */
static gm_status update_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    GM_TRY(check_start("slice_update", param, in[2]));
    bool fits = in[1]->ndim == in[0]->ndim && in[1]->dtype == in[0]->dtype;
    for (int i = 0; fits && i < in[0]->ndim; i++)
        fits = in[1]->shape[i] <= in[0]->shape[i];
    if (!fits) {
        char x[128], update[128];
        array_text(in[0], x);
        array_text(in[1], update);
        return gm_fail(GM_ESHAPE, "slice_update: update %s does not fit into %s", update, x);
    }
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status update_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *update = out->in[1];
    GM_TRY(array_alloc_like(out, q, 0));
    if (out->buf != x->buf) {
        GM_TRY(launch_copy(q, to_array(out), from_array(x), x->ndim, x->shape));
        queue_fence(q);
    }
    return launch_region(q, out->param, out, out->in[2], update->shape,
                         (gm_copy_args){.out = array_ptr(out),
                                        .in = array_ptr(update),
                                        .out_type = out->dtype,
                                        .in_type = update->dtype,
                                        .out_strides = out->strides,
                                        .in_strides = update->strides},
                         true);
}

static void update_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const dynamic_param *p = out->param;
    int axes[GM_MAX_NDIM];
    for (int k = 0; k < p->n_axes; k++)
        axes[k] = p->axes[k];
    gm_array *zeros = gm_broadcast_to(s, scalar_array(s, 0, (gm_dtype)in[1]->dtype), in[1]->ndim, in[1]->shape);
    grad[0] = gm_dynamic_slice_update(s, cotangents[0], zeros, in[2], p->n_axes, axes);
    grad[1] = gm_dynamic_slice(s, cotangents[0], in[2], p->n_axes, axes, in[1]->shape);
}

static gm_status update_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const dynamic_param *p = out->param;
    int64_t batch = batch_size(in, 3, batched);
    gm_array *x = batched_input(s, in[0], batched[0], batch), *update = batched_input(s, in[1], batched[1], batch);
    if (!x || !update)
        return error_code();
    if (!batched[2]) {
        int axes[GM_MAX_NDIM];
        for (int k = 0; k < p->n_axes; k++)
            axes[k] = p->axes[k] + 1;
        outs[0] = gm_dynamic_slice_update(s, x, update, in[2], p->n_axes, axes);
        return outs[0] ? GM_OK : error_code();
    }
    region_plan plan;
    const int64_t *shape = out->in[1]->shape;
    int64_t begin[GM_MAX_NDIM + 1] = {0}, end[GM_MAX_NDIM + 1] = {batch}, step[GM_MAX_NDIM + 1] = {1};
    int back[GM_MAX_NDIM + 1];
    plan_region(s, p, out, x, in[2], shape, &plan);
    for (int i = 0; i < out->ndim; i++) {
        end[i + 1] = shape[i]; /* not read for an addressed axis */
        step[i + 1] = 1;
    }
    for (int i = 0; i <= out->ndim; i++)
        back[plan.order[i]] = i;
    outs[0] = gm_scatter(s, x, (gm_indices){plan.index, plan.n, plan.axes, 0},
                         gm_transpose(s, update, out->ndim + 1, back), GM_S_UPDATE, &(gm_region){begin, end, step});
    return outs[0] ? GM_OK : error_code();
}

static gm_status update_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const dynamic_param *p = param;
    int axes[GM_MAX_NDIM];
    return dynamic_axes(p, axes) ? rebuilt(gm_dynamic_slice_update(s, in[0], in[1], in[2], p->n_axes, axes), outs)
                                 : rebuild_refuse("dynamic_slice_update");
}

static gm_status update_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i == 2
               ? gm_fail(GM_EVALUE, "[DynamicSliceUpdate::%s] Not supported for start indices", forward ? "jvp" : "vjp")
               : GM_OK;
}

const gm_op dynamic_slice_update_op = {.name = "dynamic_slice_update",
                                       .n_in = 3,
                                       .n_out = 1,
                                       .nondiff = 4,
                                       .refuse = update_refuse,
                                       .param_size = sizeof(dynamic_param),
                                       .fields = dynamic_fields,
                                       .infer = update_infer,
                                       .eval = update_eval,
                                       .vjp = update_vjp,
                                       .vmap = update_vmap,
                                       .rebuild = update_rebuild};

gm_array *gm_dynamic_slice_update(gm_scope *s, gm_array *x, gm_array *update, gm_array *start, int n_axes,
                                  const int *axes) {
    if (!x || !update)
        return NULL;
    update = gm_astype(s, update, (gm_dtype)x->dtype);
    if (update && update->ndim < x->ndim) { /* leading axes: one index where there is a start, else all */
        int64_t shape[GM_MAX_NDIM];
        int lead = x->ndim - update->ndim;
        memcpy(shape, x->shape, (size_t)lead * sizeof *shape);
        memcpy(shape + lead, update->shape, (size_t)update->ndim * sizeof *shape);
        for (int k = 0; k < n_axes; k++) {
            int at = axes[k] < 0 ? axes[k] + x->ndim : axes[k];
            if (at >= 0 && at < lead)
                shape[at] = 1;
        }
        update = gm_broadcast_to(s, update, x->ndim, shape);
    }
    return dynamic_node(s, &dynamic_slice_update_op, (gm_array *[]){x, update, start}, 3, n_axes, axes, x->shape);
}
