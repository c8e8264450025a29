/* scatter.c - writing by index arrays: a copy of x (x's own memory when the node is its last reader) in which what the
 * indices choose is replaced, or added to, multiplied, ... Where several indices choose one element, its updates come
 * one after another in the order of the indices, however many threads there are. Half floats are summed in float32
 * unless the updates are few compared with x. */
#include <string.h>
#include "core/graph.h"
#include "ops/index/index.h"

#define FEW 16 /* updates are few when x has more than FEW times their elements */

static bool is_half(gm_dtype t) { return t == GM_FLOAT16 || t == GM_BFLOAT16; }

/* out's memory with x in it; or, for half floats that are summed, float32 scratch with x in it. */
static gm_status target(gm_array *out, gm_queue *q, int mode, int64_t updates, gm_index_args *a) {
    const gm_array *x = out->in[0];
    gm_dtype type = (gm_dtype)out->dtype;
    GM_TRY(array_alloc_like(out, q, 0));
    a->out = array_ptr(out);
    a->type = a->in_type = out->dtype;
    a->mode = mode;
    bool wide = is_half(type) && (mode == GM_S_ADD || mode == GM_S_MULTIPLY) && updates >= out->size / FEW;
    if (wide) {
        a->type = GM_T_F32;
        a->out = queue_scratch(q, (size_t)out->size * sizeof(float));
        if (!a->out)
            return error_code();
    } else if (out->buf == x->buf) {
        return GM_OK;
    }
    GM_TRY(launch_copy(q, (copy_to){a->out, (gm_dtype)a->type, out->strides},
                       (copy_from){array_ptr(x), type, x->strides}, x->ndim, x->shape));
    queue_fence(q);
    return GM_OK;
}

/* The launch, `offset` elements into the target, and the way back from scratch. */
static gm_status launch(gm_array *out, gm_queue *q, gm_index_args *a, int64_t offset) {
    void *from = a->out;
    const int64_t columns = a->in ? index_lead_count(a) * a->run : 0; /* nothing to write: none */
    a->out = (char *)from + offset * (int64_t)gm_dtype_size((gm_dtype)a->type);
    GM_TRY(DISPATCH_ARGS(q, scatter, columns, a));
    if (from == array_ptr(out))
        return GM_OK;
    queue_fence(q);
    return launch_copy(q, to_array(out), (copy_from){from, (gm_dtype)a->type, out->strides}, out->ndim, out->shape);
}

/* The updates in memory: their own, or contiguous scratch when the n dimensions from `first` on cannot be walked with
 * one stride, `step`. */
static gm_status walkable(gm_queue *q, const gm_array *updates, int first, int n, const void **data, int64_t *strides,
                          int64_t *step) {
    loop l;
    *data = array_ptr(updates);
    memcpy(strides, updates->strides, (size_t)updates->ndim * sizeof *strides);
    GM_TRY(loop_make(q, n, updates->shape + first, 1, (const int64_t *const[]){strides + first}, &l));
    *step = l.ndim ? l.strides[0][l.ndim - 1] : 1;
    if (l.ndim <= 1)
        return GM_OK;
    shape_strides(updates->ndim, updates->shape, strides);
    *step = strides[first + n - 1];
    void *copy = queue_scratch(q, (size_t)updates->size * array_item(updates));
    if (!copy)
        return error_code();
    GM_TRY(launch_copy(q, (copy_to){copy, (gm_dtype)updates->dtype, strides}, from_array(updates), updates->ndim,
                       updates->shape));
    queue_fence(q);
    *data = copy;
    return GM_OK;
}

/* ---- scatter ---- */
static const gm_field scatter_fields[] = {
    {FIELD_INT, offsetof(index_param, n_axes), "number of axes", 1},
    {FIELD_INT, offsetof(index_param, kept_before), "kept_before", 1},
    {FIELD_INT, offsetof(index_param, mode), "mode", 1},
    {FIELD_INT8, offsetof(index_param, axes), "axes", GM_MAX_NDIM},
    {FIELD_INT64, offsetof(index_param, region), "start, stop, step of each axis", 3 * GM_MAX_NDIM},
    {0}};

static gm_status scatter_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const index_param *p = param;
    const gm_array *x = in[0], *updates = in[n_in - 1];
    gm_spec region, shape;
    GM_TRY(slice_shape(x, p->region, &region));
    GM_TRY(index_shape("scatter", in + 1, p->n_axes, &shape));
    GM_TRY(index_dense_shape("scatter", p, x->ndim, region.shape, &shape, out));
    if (updates->dtype != x->dtype || updates->ndim != out->ndim ||
        memcmp(updates->shape, out->shape, (size_t)out->ndim * sizeof *out->shape) != 0) {
        char got[128], expected[128];
        array_text(updates, got);
        shape_text(out->ndim, out->shape, expected);
        return gm_fail(GM_ESHAPE, "scatter: updates are %s, expected %s%s", got, gm_dtype_name((gm_dtype)x->dtype),
                       expected);
    }
    spec_like(out, x, (gm_dtype)x->dtype);
    return GM_OK;
}

static gm_status scatter_eval(gm_array *out, gm_queue *q) {
    const index_param *p = out->param;
    const gm_array *updates = out->in[out->n_in - 1];
    int64_t shape[GM_MAX_NDIM], sparse[GM_MAX_NDIM], dense[GM_MAX_NDIM], walk[GM_MAX_NDIM], none[GM_MAX_NDIM] = {0};
    int64_t sizes[GM_MAX_NDIM], steps[GM_MAX_NDIM], offset = 0;
    int n = 0, n_index = updates->ndim - (out->ndim - p->n_axes);
    bool rows = false;
    gm_index_args a = {.count = 1};
    GM_TRY(target(out, q, p->mode, updates->size, &a));
    if (!updates->size)
        return launch(out, q, &a, 0);
    GM_TRY(walkable(q, updates, p->kept_before, n_index, &a.in, walk, &a.dense_step));
    for (int i = 0; i < out->ndim; i++) {
        offset += p->region[i].start * out->strides[i];
        if (!index_is_kept(p, i))
            continue;
        dense[n] = walk[n < p->kept_before ? n : n + n_index];
        shape[n] = updates->shape[n < p->kept_before ? n : n + n_index];
        sparse[n] = out->strides[i] * p->region[i].step;
        rows |= n >= p->kept_before && shape[n] > 1;
        n++;
    }
    for (int i = 0; i < n_index; i++)
        a.count *= updates->shape[p->kept_before + i];
    for (int k = 0; k < p->n_axes; k++) {
        sizes[k] = out->shape[p->axes[k]];
        steps[k] = out->strides[p->axes[k]];
    }
    a.span = p->n_axes == 1 ? sizes[0] * steps[0] : out->size;
    GM_TRY(index_locate(q, "array", out->in + 1, p->n_axes, sizes, steps, &a));
    GM_TRY(index_lay_out(q, n, shape, (const int64_t *const[]){sparse, dense, none}, rows, &a));
    return launch(out, q, &a, offset);
}

/* The part of x that p writes to. */
static gm_array *region_of(gm_scope *s, gm_array *x, const index_param *p) {
    int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    for (int i = 0; x && i < x->ndim; i++) {
        start[i] = p->region[i].start;
        stop[i] = p->region[i].stop;
        step[i] = p->region[i].step;
    }
    return gm_slice(s, x, start, stop, step);
}

/* The same indices reading x, and writing updates to it. */
static gm_array *read_by(gm_scope *s, gm_array *x, gm_array *const *index, const index_param *p) {
    int axes[GM_MAX_NDIM];
    for (int k = 0; k < p->n_axes; k++)
        axes[k] = p->axes[k];
    return gm_gather(s, region_of(s, x, p), index, p->n_axes, axes, p->kept_before);
}

static gm_array *write_by(gm_scope *s, const gm_array *node, gm_array *x, gm_array *const *in, gm_array *updates,
                          int mode) {
    gm_array *all[GM_MAX_NDIM + 2] = {x};
    index_param p = *(const index_param *)node->param;
    p.mode = mode;
    memcpy(all + 1, in + 1, (size_t)p.n_axes * sizeof *all);
    all[p.n_axes + 1] = updates;
    return array_node_sized(s, &scatter_op, all, p.n_axes + 2, &p, node->param_size);
}

static gm_array *zero(gm_scope *s, const gm_array *like) { return scalar_array(s, 0, (gm_dtype)like->dtype); }

static gm_array *zeros(gm_scope *s, const gm_array *like) {
    return gm_broadcast_to(s, zero(s, like), like->ndim, like->shape);
}

/* Of a product, an update's share is all the others: out / update, or x alone where the update is zero. Of a maximum,
 * the elements that are equal to it get the cotangent. */
static void scatter_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const index_param *p = out->param;
    gm_array *x = in[0], *updates = in[p->n_axes + 1], *cot = cotangents[0], **to = &grad[p->n_axes + 1];
    gm_array *chosen = read_by(s, cot, in + 1, p);
    switch (p->mode) {
    case GM_S_UPDATE:
        grad[0] = write_by(s, out, cot, in, zeros(s, updates), GM_S_UPDATE);
        *to = chosen;
        break;
    case GM_S_ADD:
        grad[0] = cot;
        *to = chosen;
        break;
    case GM_S_MULTIPLY: {
        gm_array *others = gm_where(s, gm_equal(s, updates, zero(s, updates)), read_by(s, x, in + 1, p),
                                    gm_divide(s, read_by(s, out, in + 1, p), updates));
        grad[0] = write_by(s, out, cot, in, updates, GM_S_MULTIPLY);
        *to = gm_multiply(s, chosen, others);
        break;
    }
    default:
        grad[0] = gm_where(s, gm_equal(s, out, x), cot, zero(s, cot));
        *to = gm_where(s, gm_equal(s, read_by(s, out, in + 1, p), updates), chosen, zero(s, cot));
    }
}

static gm_status scatter_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const index_param *p = out->param;
    gm_array *index[GM_MAX_NDIM + 1];
    int n = p->n_axes, kept_before = p->kept_before, axes[GM_MAX_NDIM + 1];
    int64_t batch = batch_size(in, n + 2, batched), start[GM_MAX_NDIM + 1], stop[GM_MAX_NDIM + 1];
    int64_t step[GM_MAX_NDIM + 1];
    gm_array *updates = batched_input(s, in[n + 1], batched[n + 1], batch);
    bool any = false;
    for (int k = 0; k < n; k++) {
        any |= batched[1 + k];
        axes[k] = p->axes[k] + 1;
        index[k] = in[1 + k];
    }
    start[0] = 0;
    stop[0] = batch;
    step[0] = 1;
    for (int i = 0; i < out->ndim; i++) {
        start[i + 1] = p->region[i].start;
        stop[i + 1] = p->region[i].stop;
        step[i + 1] = p->region[i].step;
    }
    if (any) {
        index_align(s, out, in, batched, index);
        axes[n] = 0;
        index[n++] = index_batch(s, out, batch);
        updates = index_move_axis(s, updates, 0, kept_before);
    }
    outs[0] = gm_scatter(s, batched_input(s, in[0], batched[0], batch),
                         (gm_indices){index, n, axes, any ? kept_before : kept_before + 1}, updates, p->mode,
                         &(gm_region){start, stop, step});
    return outs[0] ? GM_OK : error_code();
}

static gm_status scatter_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_out;
    const index_param *p = param;
    int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    int axes[GM_MAX_NDIM];
    if (n_in < 3 || p->n_axes != n_in - 2 || !within(p->mode, GM_S_COUNT) || !index_read_axes(p, in[0], axes) ||
        !slice_is_sane(p->region, in[0]))
        return rebuild_refuse("scatter");
    for (int i = 0; i < in[0]->ndim; i++) {
        start[i] = p->region[i].start;
        stop[i] = p->region[i].stop;
        step[i] = p->region[i].step;
    }
    return rebuilt(gm_scatter(s, in[0], (gm_indices){in + 1, n_in - 2, axes, p->kept_before}, in[n_in - 1], p->mode,
                              &(gm_region){start, stop, step}),
                   outs);
}

static gm_status scatter_refuse(const gm_array *node, int i, bool forward) {
    return i > 0 && i < node->n_in - 1 ? refuse_index("scatter", forward) : GM_OK;
}

const gm_op scatter_op = {.name = "scatter",
                          .n_in = -1,
                          .n_out = 1,
                          .fixed = 1,
                          .param_size = sizeof(index_param),
                          .fields = scatter_fields,
                          .refuse = scatter_refuse,
                          .infer = scatter_infer,
                          .eval = scatter_eval,
                          .vjp = scatter_vjp,
                          .vmap = scatter_vmap,
                          .rebuild = scatter_rebuild};

gm_array *gm_scatter(gm_scope *s, gm_array *x, gm_indices at, gm_array *updates, int mode, const gm_region *part) {
    const int n = at.n, kept_before = at.kept_before;
    index_param p;
    gm_array *in[GM_MAX_NDIM + 2] = {x};
    gm_spec region, shape, dense;
    if (!x || !updates)
        return NULL;
    if (n < 1 || n > x->ndim || kept_before < 0 || kept_before > x->ndim - n)
        return gm_fail(GM_EVALUE, "scatter: %d indices for %d dimensions, placed after %d", n, x->ndim, kept_before),
               NULL;
    memset(&p, 0, offsetof(index_param, region));
    p.n_axes = n;
    p.kept_before = kept_before;
    p.mode = mode;
    for (int i = 0; i < x->ndim; i++)
        p.region[i] = part ? (slice_range){part->start[i], part->stop[i], part->step[i]}
                           : (slice_range){0, x->shape[i], 1};
    for (int k = 0; k < n; k++) {
        p.axes[k] = (int8_t)at.axes[k];
        p.region[at.axes[k]] = (slice_range){0, x->shape[at.axes[k]], 1};
        if (!(in[1 + k] = at.arrays[k]))
            return NULL;
    }
    if (slice_shape(x, p.region, &region) != GM_OK || index_shape("scatter", at.arrays, n, &shape) != GM_OK ||
        index_dense_shape("scatter", &p, x->ndim, region.shape, &shape, &dense) != GM_OK)
        return NULL;
    in[n + 1] = gm_broadcast_to(s, gm_astype(s, updates, (gm_dtype)x->dtype), dense.ndim, dense.shape);
    return array_node_sized(s, &scatter_op, in, n + 2, &p,
                            offsetof(index_param, region) + (size_t)x->ndim * sizeof *p.region);
}

/* ---- scatter_along: the indices are of x's shape but for the axis, and so are the updates ---- */
typedef struct { int32_t axis, mode; } along_param; /* the axis counted from the end */
static const gm_field along_fields[] = {
    {FIELD_INT, offsetof(along_param, axis), "axis", 1}, {FIELD_INT, offsetof(along_param, mode), "mode", 1}, {0}};

static gm_status along_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status along_eval(gm_array *out, gm_queue *q) {
    const along_param *p = out->param;
    const gm_array *index = out->in[1], *updates = out->in[2];
    int axis = out->ndim + p->axis, n = 0;
    int64_t shape[GM_MAX_NDIM], sparse[GM_MAX_NDIM], dense[GM_MAX_NDIM], strides[GM_MAX_NDIM];
    bool rows = false;
    gm_index_args a = {.count = 1};
    GM_TRY(target(out, q, p->mode, updates->size, &a));
    if (!updates->size)
        return launch(out, q, &a, 0);
    for (int i = 0; i < out->ndim; i++) {
        if (i == axis)
            continue;
        shape[n] = out->shape[i];
        sparse[n] = out->strides[i];
        dense[n] = updates->strides[i];
        strides[n++] = index->strides[i];
        rows |= i > axis && out->shape[i] > 1;
    }
    a.in = array_ptr(updates);
    a.index = array_ptr(index);
    a.index_type = index->dtype;
    a.size = out->shape[axis];
    a.step = out->strides[axis];
    a.span = a.size * a.step;
    a.count = index->shape[axis];
    a.dense_step = updates->strides[axis];
    a.index_step = index->strides[axis];
    if (!(a.fault = queue_index_flag(q, "put_along_axis", a.size)))
        return error_code();
    GM_TRY(index_lay_out(q, n, shape, (const int64_t *const[]){sparse, dense, strides}, rows, &a));
    return launch(out, q, &a, 0);
}

static void along_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const along_param *p = out->param;
    grad[0] = p->mode == GM_S_ADD ? cotangents[0]
                                  : gm_scatter_along(s, cotangents[0], in[1], zero(s, in[2]), p->axis, GM_S_UPDATE);
    grad[2] = gm_take_along_axis(s, cotangents[0], in[1], p->axis);
}

static gm_status along_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const along_param *p = param;
    return within(p->mode, GM_S_COUNT) ? rebuilt(gm_scatter_along(s, in[0], in[1], in[2], p->axis, p->mode), outs)
                                       : rebuild_refuse("scatter_along");
}

static gm_status along_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i == 1 ? refuse_index("scatter_axis", forward) : GM_OK;
}

const gm_op scatter_along_op = {.name = "scatter_along",
                                .n_in = 3,
                                .n_out = 1,
                                .nondiff = 2,
                                .param_size = sizeof(along_param),
                                .fields = along_fields,
                                .refuse = along_refuse,
                                .infer = along_infer,
                                .eval = along_eval,
                                .vjp = along_vjp,
                                .vmap = vmap_leading,
                                .rebuild = along_rebuild};

gm_array *gm_scatter_along(gm_scope *s, gm_array *x, gm_array *indices, gm_array *updates, int axis, int mode) {
    int at;
    if (!x || !indices || !updates || index_along("put_along_axis", x, indices, axis, &at) != GM_OK)
        return NULL;
    indices = indices->size ? indices : gm_astype(s, indices, GM_INT32);
    if (!indices)
        return NULL;
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[at] = indices->shape[at];
    gm_array *in[3] = {x, gm_broadcast_to(s, indices, x->ndim, shape),
                       gm_broadcast_to(s, gm_astype(s, updates, (gm_dtype)x->dtype), x->ndim, shape)};
    return array_node(s, &scatter_along_op, in, 3, &(along_param){at - x->ndim, mode});
}

gm_array *gm_put_along_axis(gm_scope *s, gm_array *x, gm_array *indices, gm_array *values, int axis) {
    return gm_scatter_along(s, x, indices, values, axis, GM_S_UPDATE);
}
