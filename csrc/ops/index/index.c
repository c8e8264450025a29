/* index.c - reading by index arrays. */
#include <string.h>
#include "ops/index/index.h"

/* ---- shared with scatter.c ---- */
gm_status index_shape(const char *op, gm_array *const *index, int n, gm_spec *out) {
    out->ndim = 0;
    for (int k = 0; k < n; k++) {
        if (!dtype_is_integer((gm_dtype)index[k]->dtype))
            return gm_fail(GM_EVALUE, "%s: an index is %s, expected integers", op,
                           gm_dtype_name((gm_dtype)index[k]->dtype));
        gm_spec so_far = *out;
        gm_array shape = {.ndim = (int16_t)so_far.ndim, .shape = so_far.shape};
        GM_TRY(broadcast_shape(op, index[k], &shape, out));
    }
    return GM_OK;
}

bool index_is_kept(const index_param *p, int axis) {
    for (int k = 0; k < p->n_axes; k++)
        if (p->axes[k] == axis)
            return false;
    return true;
}

bool index_read_axes(const index_param *p, const gm_array *x, int *axes) {
    uint64_t seen = 0;
    for (int k = 0; k < p->n_axes; k++) {
        if (k == x->ndim || !within(p->axes[k], x->ndim) || seen >> p->axes[k] & 1)
            return false;
        seen |= (uint64_t)1 << p->axes[k];
        axes[k] = p->axes[k];
    }
    return true;
}

gm_status index_dense_shape(const char *op, const index_param *p, int ndim, const int64_t *kept, const gm_spec *shape,
                            gm_spec *out) {
    out->ndim = ndim - p->n_axes + shape->ndim;
    if (out->ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "%s: %d dimensions: at most %d are supported", op, out->ndim, GM_MAX_NDIM);
    for (int i = 0, n = 0, done = 0; i <= ndim; i++) {
        if (done == p->kept_before) {
            memcpy(out->shape + n, shape->shape, (size_t)shape->ndim * sizeof *kept);
            n += shape->ndim;
            done++;
        }
        if (i < ndim && index_is_kept(p, i)) {
            out->shape[n++] = kept[i];
            done++;
        }
    }
    return GM_OK;
}

/* A contiguous copy of an index array in the node's scratch. */
static gm_status compact(gm_queue *q, const gm_array *index, const void **out) {
    int64_t strides[GM_MAX_NDIM];
    shape_strides(index->ndim, index->shape, strides);
    void *copy = queue_scratch(q, (size_t)index->size * array_item(index));
    if (!copy)
        return error_code();
    GM_TRY(
        launch_copy(q, (copy_to){copy, (gm_dtype)index->dtype, strides}, from_array(index), index->ndim, index->shape));
    queue_fence(q);
    *out = copy;
    return GM_OK;
}

gm_status index_list(gm_queue *q, const char *op, const gm_array *index, int ndim, const int64_t *shape, int64_t size,
                     const int64_t **out) {
    int64_t count = 1, *strides = queue_arena(q, (size_t)(2 * ndim + 1) * sizeof *strides);
    gm_positions_index *one = queue_arena(q, sizeof *one);
    gm_index_fault *fault = queue_index_flag(q, op, size);
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    int64_t *list = queue_scratch(q, (size_t)count * sizeof *list);
    if (!strides || !one || !fault || !list)
        return error_code();
    broadcast_strides(index, ndim, strides);
    memcpy(strides + ndim, shape, (size_t)ndim * sizeof *shape);
    *one = (gm_positions_index){array_ptr(index), index->dtype, size, 1, strides, fault};
    GM_TRY(DISPATCH(q, positions, count, .out = list, .n_indices = 1, .ndim = ndim, .indices = one,
                    .shape = strides + ndim));
    queue_fence(q);
    *out = list;
    return GM_OK;
}

/* Several indices become int64 positions. */
static gm_status combine(gm_queue *q, const char *op, gm_array *const *index, int n, const int64_t *sizes,
                         const int64_t *steps, gm_index_args *a) {
    gm_spec shape;
    GM_TRY(index_shape("index", index, n, &shape));
    size_t row = (size_t)shape.ndim * sizeof(int64_t);
    gm_positions_index *list = queue_arena(q, (size_t)n * sizeof *list);
    int64_t *memory = queue_arena(q, row * (size_t)(n + 1) + 1);
    int64_t *out = queue_scratch(q, (size_t)a->count * sizeof *out);
    if (!list || !memory || !out)
        return error_code();
    memcpy(memory, shape.shape, row);
    for (int k = 0; k < n; k++) {
        int64_t *strides = memory + (k + 1) * shape.ndim;
        broadcast_strides(index[k], shape.ndim, strides);
        list[k] = (gm_positions_index){
            array_ptr(index[k]), index[k]->dtype, sizes[k], steps[k], strides, queue_index_flag(q, op, sizes[k])};
        if (!list[k].fault)
            return error_code();
    }
    GM_TRY(DISPATCH(q, positions, a->count, .out = out, .n_indices = n, .ndim = shape.ndim, .indices = list,
                    .shape = memory));
    queue_fence(q);
    a->index = out;
    a->index_type = GM_T_I64;
    a->size = -1;
    a->step = 1;
    return GM_OK;
}

gm_status index_locate(gm_queue *q, const char *op, gm_array *const *index, int n, const int64_t *sizes,
                       const int64_t *steps, gm_index_args *a) {
    a->index_step = 1;
    if (n != 1)
        return combine(q, op, index, n, sizes, steps, a);
    if (!(a->fault = queue_index_flag(q, op, sizes[0])))
        return error_code();
    a->index = array_ptr(index[0]);
    a->index_type = index[0]->dtype;
    a->size = sizes[0];
    a->step = steps[0];
    return array_is_contiguous(index[0]) ? GM_OK : compact(q, index[0], &a->index);
}

gm_status index_lay_out(gm_queue *q, int ndim, const int64_t *shape, const int64_t *const strides[3], bool rows,
                        gm_index_args *a) {
    loop l;
    GM_TRY(loop_make(q, ndim, shape, 3, strides, &l));
    a->ndim = l.ndim;
    a->shape = l.shape;
    a->sparse_strides = l.strides[0];
    a->dense_strides = l.strides[1];
    a->index_strides = l.strides[2];
    a->run = a->sparse_run = a->dense_run = 1;
    a->index_run = 0;
    if (rows && l.ndim) {
        int last = --a->ndim;
        a->run = l.shape[last];
        a->sparse_run = l.strides[0][last];
        a->dense_run = l.strides[1][last];
        a->index_run = l.strides[2][last];
    }
    return GM_OK;
}

int64_t index_lead_count(const gm_index_args *a) {
    int64_t n = 1;
    for (int i = 0; i < a->ndim; i++)
        n *= a->shape[i];
    return n;
}

gm_array *index_move_axis(gm_scope *s, gm_array *a, int from, int to) {
    int axes[GM_MAX_NDIM + 1];
    if (!a || from == to)
        return a;
    for (int i = 0, k = 0; i < a->ndim; i++) {
        if (k == from)
            k++;
        axes[i] = i == to ? from : k++;
    }
    return gm_transpose(s, a, a->ndim, axes);
}

/* The rank of the indices of a node together, without batch. */
static int index_rank(const gm_array *node) {
    int rank = 0;
    for (int k = 0; k < ((const index_param *)node->param)->n_axes; k++)
        rank = node->in[1 + k]->ndim > rank ? node->in[1 + k]->ndim : rank;
    return rank;
}

void index_align(gm_scope *s, const gm_array *node, gm_array *const *in, const bool *batched, gm_array **index) {
    int rank = index_rank(node);
    for (int k = 0; k < ((const index_param *)node->param)->n_axes; k++) {
        gm_array *x = index[k] = in[1 + k];
        int64_t shape[GM_MAX_NDIM + 1];
        if (!batched[1 + k] || x->ndim == rank + 1)
            continue;
        shape[0] = x->shape[0];
        for (int i = 1; i <= rank; i++)
            shape[i] = i <= rank + 1 - x->ndim ? 1 : x->shape[i - (rank + 1 - x->ndim)];
        index[k] = gm_reshape(s, x, rank + 1, shape);
    }
}

gm_array *index_batch(gm_scope *s, const gm_array *node, int64_t batch) {
    int64_t shape[GM_MAX_NDIM + 1];
    int rank = index_rank(node);
    shape[0] = batch;
    for (int i = 1; i <= rank; i++)
        shape[i] = 1;
    return gm_reshape(s, gm_arange(s, 0, (double)batch, 1, GM_INT64), rank + 1, shape);
}

/* ---- gather ---- */
static const gm_field gather_fields[] = {{FIELD_INT, offsetof(index_param, n_axes), "number of axes", 1},
                                         {FIELD_INT, offsetof(index_param, kept_before), "kept_before", 1},
                                         {FIELD_INT8, offsetof(index_param, axes), "axes", GM_MAX_NDIM},
                                         {0}};

static gm_status gather_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const index_param *p = param;
    const gm_array *x = in[0];
    gm_spec shape;
    int64_t choices = 1, chosen = 1;
    GM_TRY(index_shape("gather", in + 1, n_in - 1, &shape));
    for (int k = 0; k < p->n_axes; k++)
        choices = x->shape[p->axes[k]] ? choices : 0;
    for (int i = 0; i < shape.ndim; i++)
        chosen *= shape.shape[i];
    if (choices == 0 && chosen > 0)
        return gm_fail(GM_EVALUE, "gather: nothing can be chosen from an axis without elements");
    out->dtype = (gm_dtype)x->dtype;
    return index_dense_shape("gather", p, x->ndim, x->shape, &shape, out);
}

static gm_status launch_take(gm_queue *q, const gm_index_args *a) {
    return DISPATCH_ARGS(q, take, index_lead_count(a) * a->count, a);
}

static gm_status gather_eval(gm_array *out, gm_queue *q) {
    const index_param *p = out->param;
    const gm_array *x = out->in[0];
    int64_t shape[GM_MAX_NDIM], sparse[GM_MAX_NDIM], dense[GM_MAX_NDIM], none[GM_MAX_NDIM] = {0};
    int64_t sizes[GM_MAX_NDIM], steps[GM_MAX_NDIM];
    int n = 0, n_index = out->ndim - (x->ndim - p->n_axes);
    bool rows = false;
    gm_index_args a = {.in = array_ptr(x), .type = x->dtype, .dense_step = 1, .count = 1};
    GM_TRY(array_alloc(out, q));
    if (!out->size)
        return GM_OK;
    a.out = array_ptr(out);
    for (int i = 0; i < x->ndim; i++) {
        if (!index_is_kept(p, i))
            continue;
        shape[n] = x->shape[i];
        sparse[n] = x->strides[i];
        dense[n] = out->strides[n < p->kept_before ? n : n + n_index];
        rows |= n >= p->kept_before && shape[n] > 1;
        n++;
    }
    for (int i = p->kept_before; i < n; i++)
        a.dense_step *= shape[i];
    for (int i = 0; i < n_index; i++)
        a.count *= out->shape[p->kept_before + i];
    for (int k = 0; k < p->n_axes; k++) {
        sizes[k] = x->shape[p->axes[k]];
        steps[k] = x->strides[p->axes[k]];
    }
    GM_TRY(index_locate(q, "array", out->in + 1, p->n_axes, sizes, steps, &a));
    GM_TRY(index_lay_out(q, n, shape, (const int64_t *const[]){sparse, dense, none}, rows, &a));
    return launch_take(q, &a);
}

static gm_array *zeros_like(gm_scope *s, const gm_array *x) {
    return gm_full(s, x->ndim, x->shape, scalar_array(s, 0, (gm_dtype)x->dtype), (gm_dtype)x->dtype);
}

static void gather_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const index_param *p = out->param;
    int axes[GM_MAX_NDIM];
    for (int k = 0; k < p->n_axes; k++)
        axes[k] = p->axes[k];
    grad[0] = gm_scatter(s, zeros_like(s, in[0]), (gm_indices){in + 1, p->n_axes, axes, p->kept_before}, cotangents[0],
                         GM_S_ADD, NULL);
}

/* Batched indices get the batch as the first of their dimensions, which goes to the front afterwards; with x batched
 * too, the batch is one more axis that is addressed. */
static gm_status gather_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const index_param *p = out->param;
    gm_array *index[GM_MAX_NDIM + 1];
    int axes[GM_MAX_NDIM + 1], n = p->n_axes;
    bool any = false;
    for (int k = 0; k < n; k++) {
        any |= batched[1 + k];
        axes[k] = p->axes[k] + batched[0];
        index[k] = in[1 + k];
    }
    if (!any) {
        outs[0] = gm_gather(s, in[0], index, n, axes, p->kept_before + 1);
        return outs[0] ? GM_OK : error_code();
    }
    index_align(s, out, in, batched, index);
    if (batched[0]) {
        axes[n] = 0;
        index[n++] = index_batch(s, out, in[0]->shape[0]);
    }
    outs[0] = index_move_axis(s, gm_gather(s, in[0], index, n, axes, p->kept_before), p->kept_before, 0);
    return outs[0] ? GM_OK : error_code();
}

static gm_status gather_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_out;
    const index_param *p = param;
    int axes[GM_MAX_NDIM];
    if (n_in < 2 || p->n_axes != n_in - 1 || !index_read_axes(p, in[0], axes))
        return rebuild_refuse("gather");
    return rebuilt(gm_gather(s, in[0], in + 1, n_in - 1, axes, p->kept_before), outs);
}

static gm_status gather_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i > 0 ? refuse_index("gather", forward) : GM_OK;
}

const gm_op gather_op = {.name = "gather",
                         .n_in = -1,
                         .n_out = 1,
                         .nondiff = ~1u,
                         .param_size = offsetof(index_param, region),
                         .fields = gather_fields,
                         .refuse = gather_refuse,
                         .infer = gather_infer,
                         .eval = gather_eval,
                         .vjp = gather_vjp,
                         .vmap = gather_vmap,
                         .rebuild = gather_rebuild};

gm_array *gm_gather(gm_scope *s, gm_array *x, gm_array *const *indices, int n, const int *axes, int kept_before) {
    index_param p;
    gm_array *in[GM_MAX_NDIM + 1] = {x};
    if (!x)
        return NULL;
    if (n < 1 || n > x->ndim || kept_before < 0 || kept_before > x->ndim - n)
        return gm_fail(GM_EVALUE, "gather: %d indices for %d dimensions, placed after %d", n, x->ndim, kept_before),
               NULL;
    memset(&p, 0, sizeof p);
    p.n_axes = n;
    p.kept_before = kept_before;
    for (int k = 0; k < n; k++) {
        p.axes[k] = (int8_t)axes[k];
        in[1 + k] = indices[k];
    }
    return array_node(s, &gather_op, in, n + 1, &p);
}

gm_array *gm_take(gm_scope *s, gm_array *x, gm_array *indices, int axis) {
    int at;
    if (!x || !indices || check_axis("take", axis, x->ndim, &at) != GM_OK)
        return NULL;
    return gm_gather(s, x, &indices, 1, &at, at);
}

/* ---- take_along_axis: x and indices are of one shape but for the axis ---- */
typedef struct { int32_t axis; } along_param; /* counted from the end: a batch in front changes nothing */
static const gm_field along_fields[] = {{FIELD_INT, offsetof(along_param, axis), "axis", 1}, {0}};

static gm_status along_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[1], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status along_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *index = out->in[1];
    int axis = out->ndim + ((const along_param *)out->param)->axis, n = 0;
    int64_t shape[GM_MAX_NDIM], sparse[GM_MAX_NDIM], dense[GM_MAX_NDIM], strides[GM_MAX_NDIM];
    bool rows = false;
    GM_TRY(array_alloc(out, q));
    if (!out->size)
        return GM_OK;
    for (int i = 0; i < out->ndim; i++) {
        if (i == axis)
            continue;
        shape[n] = out->shape[i];
        sparse[n] = x->strides[i];
        dense[n] = out->strides[i];
        strides[n++] = index->strides[i];
        rows |= i > axis && out->shape[i] > 1;
    }
    gm_index_args a = {.out = array_ptr(out),
                       .in = array_ptr(x),
                       .index = array_ptr(index),
                       .type = x->dtype,
                       .index_type = index->dtype,
                       .size = x->shape[axis],
                       .step = x->strides[axis],
                       .count = out->shape[axis],
                       .dense_step = out->strides[axis],
                       .index_step = index->strides[axis],
                       .fault = queue_index_flag(q, "take_along_axis", x->shape[axis])};
    if (!a.fault)
        return error_code();
    GM_TRY(index_lay_out(q, n, shape, (const int64_t *const[]){sparse, dense, strides}, rows, &a));
    return launch_take(q, &a);
}

static void along_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    grad[0] = gm_scatter_along(s, zeros_like(s, in[0]), in[1], cotangents[0], ((const along_param *)out->param)->axis,
                               GM_S_ADD);
}

static gm_status along_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(gm_take_along_axis(s, in[0], in[1], ((const along_param *)param)->axis), outs);
}

static gm_status along_refuse(const gm_array *node, int i, bool forward) {
    (void)node;
    return i == 1 ? refuse_index("gather_axis", forward) : GM_OK;
}

const gm_op take_along_axis_op = {.name = "take_along_axis",
                                  .n_in = 2,
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

gm_status index_along(const char *op, const gm_array *x, const gm_array *index, int axis, int *at) {
    GM_TRY(check_axis(op, axis, x->ndim, at));
    const bool any = index->size == 0; /* empty indices may have any dtype, as array([]) is float32 */
    if (x->ndim != index->ndim || !(any || dtype_is_integer((gm_dtype)index->dtype))) {
        char tx[128], ti[128];
        array_text(x, tx);
        array_text(index, ti);
        return gm_fail(GM_EVALUE, "%s: got %s and indices %s, expected integers of as many dimensions", op, tx, ti);
    }
    return GM_OK;
}

gm_array *gm_take_along_axis(gm_scope *s, gm_array *x, gm_array *indices, int axis) {
    int at;
    gm_spec common;
    if (!x || !indices || index_along("take_along_axis", x, indices, axis, &at) != GM_OK)
        return NULL;
    indices = indices->size ? indices : gm_astype(s, indices, GM_INT32);
    if (!indices)
        return NULL;
    int64_t from[GM_MAX_NDIM], to[GM_MAX_NDIM];
    memcpy(from, x->shape, (size_t)x->ndim * sizeof *from);
    memcpy(to, indices->shape, (size_t)x->ndim * sizeof *to);
    from[at] = to[at] = 1;
    gm_array a = {.ndim = x->ndim, .shape = from}, b = {.ndim = x->ndim, .shape = to};
    if (broadcast_shape("take_along_axis", &a, &b, &common) != GM_OK)
        return NULL;
    common.shape[at] = x->shape[at];
    x = gm_broadcast_to(s, x, common.ndim, common.shape);
    common.shape[at] = indices->shape[at];
    gm_array *in[2] = {x, gm_broadcast_to(s, indices, common.ndim, common.shape)};
    return array_node(s, &take_along_axis_op, in, 2, &(along_param){at - common.ndim});
}
