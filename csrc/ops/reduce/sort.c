/* sort.c - sort, argsort, partition, argpartition, topk along the last axis (others are brought there), searchsorted.
 * All of them are stable, so that arg-ops and ops of values agree element by element. */
#include <string.h>
#include "ops/ops.h"

static gm_status same_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status places_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], GM_UINT32);
    return GM_OK;
}

/* The elements of x side by side: its own, or a copy in the node's scratch. */
static const void *side_by_side(gm_queue *q, const gm_array *x) {
    if (array_is_contiguous(x))
        return array_ptr(x);
    int64_t strides[GM_MAX_NDIM];
    void *copy = queue_scratch(q, (size_t)x->size * array_item(x));
    shape_strides(x->ndim, x->shape, strides);
    if (!copy)
        return NULL;
    if (launch_copy(q, (copy_to){copy, (gm_dtype)x->dtype, strides}, from_array(x), x->ndim, x->shape) != GM_OK)
        return NULL;
    queue_fence(q);
    return copy;
}

/* ---- sort and argsort ---- */
static gm_status sort_rows(gm_array *out, gm_queue *q, bool indices) {
    const gm_array *x = out->in[0];
    gm_dtype type = (gm_dtype)x->dtype;
    int64_t length = x->shape[x->ndim - 1];
    if (indices && length > UINT32_MAX)
        return gm_fail(GM_EVALUE, "argsort: rows of %lld items, expected fewer than 2**32 (indices are uint32)",
                       (long long)length);
    GM_TRY(indices ? array_alloc(out, q) : array_alloc_like(out, q, 0));
    if (x->size == 0)
        return GM_OK;
    const void *in = side_by_side(q, x);
    if (!in)
        return error_code();
    return DISPATCH(q, sort, x->size / length, .out = array_ptr(out), .in = in, .type = (int)type, .indices = indices,
                    .length = length);
}

static gm_status sort_eval(gm_array *out, gm_queue *q) { return sort_rows(out, q, false); }
static gm_status argsort_eval(gm_array *out, gm_queue *q) { return sort_rows(out, q, true); }

/* Cotangents of sorted values go back to where the values came from. */
static gm_array *scattered(gm_scope *s, gm_array *x, gm_array *indices, gm_array *cotangent) {
    return gm_scatter_along(s, gm_zeros(s, x->ndim, x->shape, (gm_dtype)x->dtype), gm_stop_gradient(s, indices),
                            cotangent, -1, GM_S_ADD);
}

static void sort_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)out;
    grad[0] = scattered(s, in[0], gm_argsort(s, in[0], -1, false), cotangents[0]);
}

static gm_status sort_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)param;
    (void)n_out;
    return rebuilt(gm_sort(s, in[0], -1, false), outs);
}

static gm_status argsort_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)param;
    (void)n_out;
    return rebuilt(gm_argsort(s, in[0], -1, false), outs);
}

const gm_op sort_op = {.name = "sort",
                       .n_in = 1,
                       .n_out = 1,
                       .infer = same_infer,
                       .eval = sort_eval,
                       .vjp = sort_vjp,
                       .vmap = vmap_leading,
                       .rebuild = sort_rebuild};
const gm_op argsort_op = {.name = "argsort",
                          .n_in = 1,
                          .n_out = 1,
                          .nondiff = 1,
                          .infer = places_infer,
                          .eval = argsort_eval,
                          .vmap = vmap_leading,
                          .rebuild = argsort_rebuild};

/* ---- partition, argpartition, topk ---- */
typedef struct { int64_t k; } choice_param;
static const gm_field choice_fields[] = {{FIELD_INT64, offsetof(choice_param, k), "k", 1}, {0}};

/* A row of 64-bit elements is sorted, which partitions it too. */
static gm_status partition_rows(gm_array *out, gm_queue *q, bool indices) {
    const gm_array *x = out->in[0];
    int64_t length = x->shape[x->ndim - 1];
    if (array_item(x) == 8)
        return sort_rows(out, q, indices);
    if (indices && length > UINT32_MAX)
        return gm_fail(GM_EVALUE, "argpartition: rows of %lld items, expected fewer than 2**32 (indices are uint32)",
                       (long long)length);
    GM_TRY(array_alloc(out, q));
    if (x->size == 0)
        return GM_OK;
    const void *in = side_by_side(q, x);
    if (!in)
        return error_code();
    return DISPATCH(q, partition, x->size / length, .out = array_ptr(out), .in = in, .type = x->dtype,
                    .indices = indices, .length = length, .k = ((const choice_param *)out->param)->k);
}

static gm_status partition_eval(gm_array *out, gm_queue *q) { return partition_rows(out, q, false); }
static gm_status argpartition_eval(gm_array *out, gm_queue *q) { return partition_rows(out, q, true); }

static gm_array *choose(gm_scope *s, const gm_op *op, gm_array *x, int64_t k) {
    return array_node(s, op, &x, 1, &(choice_param){k});
}

static void partition_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                          gm_array **grad) {
    gm_array *indices = choose(s, &argpartition_op, in[0], ((const choice_param *)out->param)->k);
    grad[0] = scattered(s, in[0], indices, cotangents[0]);
}

static bool is_choice(const gm_array *x, const void *param) {
    return x->ndim > 0 && x->dtype < GM_DTYPE_COUNT && within(((const choice_param *)param)->k, x->shape[x->ndim - 1]);
}

static gm_status partition_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                   gm_array **outs) {
    (void)n_in;
    (void)n_out;
    if (!is_choice(in[0], param))
        return rebuild_refuse("partition");
    return rebuilt(choose(s, &partition_op, in[0], ((const choice_param *)param)->k), outs);
}

static gm_status argpartition_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                      gm_array **outs) {
    (void)n_in;
    (void)n_out;
    if (!is_choice(in[0], param))
        return rebuild_refuse("argpartition");
    return rebuilt(choose(s, &argpartition_op, in[0], ((const choice_param *)param)->k), outs);
}

const gm_op partition_op = {.name = "partition",
                            .n_in = 1,
                            .n_out = 1,
                            .param_size = sizeof(choice_param),
                            .fields = choice_fields,
                            .infer = same_infer,
                            .eval = partition_eval,
                            .vjp = partition_vjp,
                            .vmap = vmap_leading,
                            .rebuild = partition_rebuild};
static bool always_still(const void *param) {
    (void)param;
    return true;
}

const gm_op argpartition_op = {.name = "argpartition",
                               .n_in = 1,
                               .n_out = 1,
                               .nondiff = 1,
                               .still = always_still,
                               .param_size = sizeof(choice_param),
                               .fields = choice_fields,
                               .infer = places_infer,
                               .eval = argpartition_eval,
                               .vmap = vmap_leading,
                               .rebuild = argpartition_rebuild};

/* Items [from, n) of the last axis. */
static gm_array *tail(gm_scope *s, gm_array *x, int64_t from) {
    int64_t start[GM_MAX_NDIM] = {0}, step[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int d = 0; d < x->ndim; d++)
        step[d] = 1;
    start[x->ndim - 1] = from;
    return gm_slice(s, x, start, x->shape, step);
}

static gm_status topk_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(same_infer(in, n_in, param, out));
    out->shape[out->ndim - 1] = ((const choice_param *)param)->k;
    return GM_OK;
}

static gm_status topk_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t length = x->shape[x->ndim - 1];
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    const void *in = side_by_side(q, x);
    if (!in)
        return error_code();
    return DISPATCH(q, topk, x->size / length, .out = array_ptr(out), .in = in, .type = x->dtype, .length = length,
                    .k = out->shape[out->ndim - 1]);
}

static void topk_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    int64_t from = in[0]->shape[in[0]->ndim - 1] - out->shape[out->ndim - 1];
    grad[0] = scattered(s, in[0], tail(s, choose(s, &argpartition_op, in[0], from), from), cotangents[0]);
}

/* What the kernel takes: floats, and few of them. */
static bool is_filtered(const gm_array *x, int64_t k) {
    return dtype_is_float((gm_dtype)x->dtype) && x->dtype != GM_FLOAT64 && k > 0 && k <= GM_TOPK_MOST &&
           k <= x->shape[x->ndim - 1] / 8;
}

static gm_status topk_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)n_out;
    int64_t k = ((const choice_param *)param)->k;
    return in[0]->ndim > 0 && is_filtered(in[0], k) ? rebuilt(choose(s, &topk_op, in[0], k), outs)
                                                    : rebuild_refuse("topk");
}

const gm_op topk_op = {.name = "topk",
                       .n_in = 1,
                       .n_out = 1,
                       .param_size = sizeof(choice_param),
                       .fields = choice_fields,
                       .infer = topk_infer,
                       .eval = topk_eval,
                       .vjp = topk_vjp,
                       .vmap = vmap_leading,
                       .rebuild = topk_rebuild};

/* ---- along any axis ---- */
/* x with the axis last; *at: where it was, or -1 for the flattened array. */
static gm_array *bring(gm_scope *s, const char *op, gm_array *x, int axis, bool all, int *at) {
    *at = -1;
    if (x && x->dtype >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "%s: a packed matrix is read by matrix products only", op), NULL;
    if (all)
        return gm_flatten(s, x, 0, -1);
    if (!x || check_axis(op, axis, x->ndim, at) != GM_OK)
        return NULL;
    return gm_moveaxis(s, x, *at, -1);
}

static gm_array *bring_back(gm_scope *s, gm_array *x, int at) { return x && at >= 0 ? gm_moveaxis(s, x, -1, at) : x; }

gm_array *gm_sort(gm_scope *s, gm_array *x, int axis, bool all) {
    int at;
    x = bring(s, "sort", x, axis, all, &at);
    return bring_back(s, array_node(s, &sort_op, &x, 1, NULL), at);
}

gm_array *gm_argsort(gm_scope *s, gm_array *x, int axis, bool all) {
    int at;
    x = bring(s, "argsort", x, axis, all, &at);
    return bring_back(s, array_node(s, &argsort_op, &x, 1, NULL), at);
}

static gm_array *partitioned(gm_scope *s, const gm_op *op, gm_array *x, int kth, int axis, bool all) {
    int at;
    x = bring(s, op->name, x, axis, all, &at);
    if (!x)
        return NULL;
    int64_t n = x->shape[x->ndim - 1], k = kth < 0 ? kth + n : kth;
    if (k < 0 || k >= n)
        return gm_fail(GM_EVALUE, "%s: kth is %d, expected an index into %lld items", op->name, kth, (long long)n),
               NULL;
    return bring_back(s, choose(s, op, x, k), at);
}

gm_array *gm_partition(gm_scope *s, gm_array *x, int kth, int axis, bool all) {
    return partitioned(s, &partition_op, x, kth, axis, all);
}
gm_array *gm_argpartition(gm_scope *s, gm_array *x, int kth, int axis, bool all) {
    return partitioned(s, &argpartition_op, x, kth, axis, all);
}

gm_array *gm_topk(gm_scope *s, gm_array *x, int k, int axis, bool all) {
    int at;
    x = bring(s, "topk", x, axis, all, &at);
    if (!x)
        return NULL;
    int64_t n = x->shape[x->ndim - 1];
    if (k < 0 || k > n)
        return gm_fail(GM_EVALUE, "topk: k is %d, expected 0 to %lld", k, (long long)n), NULL;
    gm_array *top = k == n              ? x
                    : k == 0            ? tail(s, x, n)
                    : is_filtered(x, k) ? choose(s, &topk_op, x, k)
                                        : tail(s, choose(s, &partition_op, x, n - k), n - k);
    return bring_back(s, top, at);
}

/* ---- searchsorted ---- */
typedef struct { int32_t right; } search_param;
static const gm_field search_fields[] = {{FIELD_INT, offsetof(search_param, right), "right", 1}, {0}};

static gm_status search_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    if (in[0]->ndim != 1)
        return gm_fail(GM_EVALUE, "searchsorted: a sorted sequence with %d dimensions; expected 1", in[0]->ndim);
    spec_like(out, in[1], GM_UINT32);
    return GM_OK;
}

static gm_status search_eval(gm_array *out, gm_queue *q) {
    GM_TRY(array_alloc(out, q));
    const void *sorted = side_by_side(q, out->in[0]), *values = sorted ? side_by_side(q, out->in[1]) : NULL;
    if (!values)
        return error_code();
    return DISPATCH(q, search, out->size, .out = array_ptr(out), .sorted = sorted, .values = values,
                    .type = out->in[0]->dtype, .right = ((const search_param *)out->param)->right != 0,
                    .length = out->in[0]->size);
}

/* A sequence for each of the batch: how many of its elements come before the value. */
static gm_status search_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    if (!batched[0]) {
        outs[0] = array_again(s, out, in);
    } else {
        int64_t batch = in[0]->shape[0], shape[GM_MAX_NDIM + 1];
        gm_array *values = gm_expand_dims(s, batched_input(s, in[1], batched[1], batch), 1, (const int[]){-1});
        if (!values)
            return error_code();
        for (int d = 0; d < values->ndim; d++)
            shape[d] = d == 0 ? batch : d == values->ndim - 1 ? in[0]->shape[1] : 1;
        gm_array *sequence = gm_reshape(s, in[0], values->ndim, shape);
        gm_array *before = (((const search_param *)out->param)->right ? gm_less_equal : gm_less)(s, sequence, values);
        gm_array *count = gm_sum(s, before, 1, (const int[]){-1}, false);
        outs[0] = count ? gm_astype(s, count, GM_UINT32) : NULL;
    }
    return outs[0] ? GM_OK : error_code();
}

static gm_status search_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(gm_searchsorted(s, in[0], in[1], ((const search_param *)param)->right != 0), outs);
}

const gm_op searchsorted_op = {.name = "searchsorted",
                               .n_in = 2,
                               .n_out = 1,
                               .nondiff = 3,
                               .param_size = sizeof(search_param),
                               .fields = search_fields,
                               .infer = search_infer,
                               .eval = search_eval,
                               .vmap = search_vmap,
                               .rebuild = search_rebuild};

gm_array *gm_searchsorted(gm_scope *s, gm_array *sorted, gm_array *values, bool right) {
    if (!sorted || !values)
        return NULL;
    gm_dtype type = gm_promote((gm_dtype)sorted->dtype, (gm_dtype)values->dtype);
    if (type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "searchsorted: a packed matrix is read by matrix products only"), NULL;
    gm_array *in[2] = {gm_astype(s, sorted, type), gm_astype(s, values, type)};
    return array_node(s, &searchsorted_op, in, 2, &(search_param){right});
}
