/* view.c - ops that read the same memory with another shape: reshape and similar ones, broadcast_to; and contiguous,
 * which copies where it must. */
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

/* ---- reshape ---- */
typedef struct {
    int32_t ndim;
    int32_t unused;
    int64_t shape[GM_MAX_NDIM];
} reshape_param;
static const gm_field reshape_fields[] = {{FIELD_INT, offsetof(reshape_param, ndim), "ndim", 1},
                                          {FIELD_INT64, offsetof(reshape_param, shape), "shape", GM_MAX_NDIM},
                                          {0}};

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

/* Strides with which x's memory has the shape; false where that needs a copy. Both have the same number of elements, at
 * least one. Runs of x's dimensions that are contiguous with each other are matched with runs of the new shape. */
static bool reshape_strides(const gm_array *x, int ndim, const int64_t *shape, int64_t *strides) {
    int d = x->ndim - 1, i = ndim - 1;
    while (i >= 0 || d >= 0) {
        while (d >= 0 && x->shape[d] == 1)
            d--;
        if (d < 0) {
            for (; i >= 0; i--)
                strides[i] = 1;
            return true;
        }
        int64_t run = x->shape[d], step = x->strides[d], taken = 1;
        for (; d > 0 && (x->shape[d - 1] == 1 || x->strides[d - 1] == run * step); d--)
            run *= x->shape[d - 1];
        d--;
        for (; i >= 0 && taken < run; i--) {
            strides[i] = taken * step;
            taken *= shape[i];
        }
        if (taken != run)
            return false;
        for (; i >= 0 && shape[i] == 1; i--)
            strides[i] = step;
    }
    return true;
}

static gm_status reshape_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t strides[GM_MAX_NDIM];
    shape_strides(out->ndim, out->shape, strides);
    if (out->size == 0 || reshape_strides(x, out->ndim, out->shape, strides)) {
        array_share(out, x, strides, 0);
        return GM_OK;
    }
    shape_strides(x->ndim, x->shape, strides);
    GM_TRY(array_alloc(out, q));
    return launch_copy(q, (copy_to){array_ptr(out), (gm_dtype)out->dtype, strides}, from_array(x), x->ndim, x->shape);
}

static void reshape_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)out;
    grad[0] = gm_reshape(s, cotangents[0], in[0]->ndim, in[0]->shape);
}

/* The shape after a batch axis. */
static int batched_shape(const gm_array *out, int64_t batch, int64_t *shape) {
    shape[0] = batch;
    memcpy(shape + 1, out->shape, (size_t)out->ndim * sizeof *shape);
    return out->ndim + 1;
}

static gm_status reshape_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    int64_t shape[GM_MAX_NDIM + 1];
    (void)batched;
    outs[0] = gm_reshape(s, in[0], batched_shape(out, in[0]->shape[0], shape), shape);
    return outs[0] ? GM_OK : error_code();
}

static gm_status reshape_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const reshape_param *p = param;
    return within(p->ndim, GM_MAX_NDIM + 1) ? rebuilt(gm_reshape(s, in[0], p->ndim, p->shape), outs)
                                            : rebuild_refuse("reshape");
}

const gm_op reshape_op = {.name = "reshape",
                          .place = PLACE_INPUT,
                          .n_in = 1,
                          .n_out = 1,
                          .param_size = sizeof(reshape_param),
                          .fields = reshape_fields,
                          .infer = reshape_infer,
                          .eval = reshape_eval,
                          .vjp = reshape_vjp,
                          .again = AGAIN_WITH_INPUT,
                          .vmap = reshape_vmap,
                          .rebuild = reshape_rebuild};

bool reshape_is_free(const gm_array *node) {
    const reshape_param *p = node->param;
    for (int i = 0; i < p->ndim; i++)
        if (p->shape[i] == -1)
            return true;
    return false;
}

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

/* ---- flatten, unflatten, expand_dims, squeeze ----
 * Reshapes that say what becomes of each dimension, so that they hold for other sizes too (of a shapeless compile). */
typedef struct { int32_t start, end; } flatten_param;
static const gm_field flatten_fields[] = {{FIELD_INT, offsetof(flatten_param, start), "start_axis", 1},
                                          {FIELD_INT, offsetof(flatten_param, end), "end_axis", 1},
                                          {0}};

static gm_status flatten_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const flatten_param *p = param;
    const gm_array *x = in[0];
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (i > p->start && i <= p->end)
            out->shape[out->ndim - 1] *= x->shape[i];
        else
            out->shape[out->ndim++] = x->shape[i];
    }
    if (x->ndim == 0)
        out->shape[out->ndim++] = 1;
    return GM_OK;
}

static gm_status flatten_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const flatten_param *p = param;
    return p->start >= 0 && p->end >= 0 ? rebuilt(gm_flatten(s, in[0], p->start, p->end), outs)
                                        : rebuild_refuse("flatten");
}

const gm_op flatten_op = {.name = "flatten",
                          .place = PLACE_INPUT,
                          .n_in = 1,
                          .n_out = 1,
                          .param_size = sizeof(flatten_param),
                          .fields = flatten_fields,
                          .infer = flatten_infer,
                          .eval = reshape_eval,
                          .vjp = reshape_vjp,
                          .vmap = reshape_vmap,
                          .rebuild = flatten_rebuild};

/* Axes beyond the dimensions count as the first or the last one, as in MLX. */
gm_array *gm_flatten(gm_scope *s, gm_array *x, int start, int end) {
    if (!x)
        return NULL;
    int last = x->ndim ? x->ndim - 1 : 0;
    int from = start < 0 ? start + x->ndim : start, to = end < 0 ? end + x->ndim : end;
    from = from < 0 ? 0 : from;
    to = to > last ? last : to;
    if (x->ndim && from > to)
        return gm_fail(GM_EVALUE, "flatten: start_axis %d comes after end_axis %d for %d dimensions", start, end,
                       x->ndim),
               NULL;
    if (x->ndim && from == to)
        return x;
    return array_node(s, &flatten_op, &x, 1, &(flatten_param){from, to});
}

typedef struct {
    int32_t axis, ndim;
    int64_t shape[GM_MAX_NDIM];
} unflatten_param;
static const gm_field unflatten_fields[] = {{FIELD_INT, offsetof(unflatten_param, axis), "axis", 1},
                                            {FIELD_INT, offsetof(unflatten_param, ndim), "ndim", 1},
                                            {FIELD_INT64, offsetof(unflatten_param, shape), "shape", GM_MAX_NDIM},
                                            {0}};

static gm_status unflatten_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const unflatten_param *p = param;
    const gm_array *x = in[0];
    gm_array axis = {.ndim = 1, .dtype = x->dtype, .shape = &x->shape[p->axis], .size = x->shape[p->axis]};
    reshape_param part = {.ndim = p->ndim};
    memcpy(part.shape, p->shape, (size_t)p->ndim * sizeof *p->shape);
    gm_array *one = &axis;
    gm_spec split;
    if (x->ndim - 1 + p->ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "unflatten: at most %d dimensions are supported", GM_MAX_NDIM);
    GM_TRY(reshape_infer(&one, 1, &part, &split));
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = x->ndim - 1 + p->ndim;
    memcpy(out->shape, x->shape, (size_t)p->axis * sizeof *x->shape);
    memcpy(out->shape + p->axis, split.shape, (size_t)p->ndim * sizeof *x->shape);
    memcpy(out->shape + p->axis + p->ndim, x->shape + p->axis + 1, (size_t)(x->ndim - 1 - p->axis) * sizeof *x->shape);
    return GM_OK;
}

static gm_status unflatten_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                   gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const unflatten_param *p = param;
    return within(p->ndim, GM_MAX_NDIM + 1) ? rebuilt(gm_unflatten(s, in[0], p->axis, p->ndim, p->shape), outs)
                                            : rebuild_refuse("unflatten");
}

const gm_op unflatten_op = {.name = "unflatten",
                            .place = PLACE_INPUT,
                            .n_in = 1,
                            .n_out = 1,
                            .param_size = sizeof(unflatten_param),
                            .fields = unflatten_fields,
                            .infer = unflatten_infer,
                            .eval = reshape_eval,
                            .vjp = reshape_vjp,
                            .vmap = reshape_vmap,
                            .rebuild = unflatten_rebuild};

gm_array *gm_unflatten(gm_scope *s, gm_array *x, int axis, int ndim, const int64_t *shape) {
    int at;
    if (!x)
        return NULL;
    if (ndim < 1 || ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "unflatten: a shape of %d dimensions; expected 1 to %d", ndim, GM_MAX_NDIM), NULL;
    if (check_axis("unflatten", axis, x->ndim, &at) != GM_OK)
        return NULL;
    unflatten_param p = {.axis = at, .ndim = ndim};
    memcpy(p.shape, shape, (size_t)ndim * sizeof *shape);
    return array_node_sized(s, &unflatten_op, &x, 1, &p,
                            offsetof(unflatten_param, shape) + (size_t)ndim * sizeof *shape);
}

/* axes: bit i = axis i, of the result for expand_dims, of x for squeeze */
typedef struct { uint64_t axes; } axes_param;
static const gm_field axes_fields[] = {{FIELD_INT64, offsetof(axes_param, axes), "axes", 1}, {0}};

static gm_status expand_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    uint64_t axes = ((const axes_param *)param)->axes;
    const gm_array *x = in[0];
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = x->ndim + __builtin_popcountll(axes);
    for (int i = 0, from = 0; i < out->ndim; i++)
        out->shape[i] = axes >> i & 1 ? 1 : x->shape[from++];
    return GM_OK;
}

static int listed_axes(const axes_param *p, int *axes) {
    int n = 0;
    for (int i = 0; i < 64; i++)
        if (p->axes >> i & 1)
            axes[n++] = i;
    return n;
}

static gm_status expand_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    int axes[64];
    return rebuilt(gm_expand_dims(s, in[0], listed_axes(param, axes), axes), outs);
}

const gm_op expand_dims_op = {.name = "expand_dims",
                              .place = PLACE_INPUT,
                              .n_in = 1,
                              .n_out = 1,
                              .param_size = sizeof(axes_param),
                              .fields = axes_fields,
                              .infer = expand_infer,
                              .eval = reshape_eval,
                              .vjp = reshape_vjp,
                              .vmap = reshape_vmap,
                              .rebuild = expand_rebuild};

static bool distinct_axes(const char *op, int n_axes, const int *axes, int ndim, uint64_t *mask) {
    *mask = 0;
    for (int i = 0; i < n_axes; i++) {
        int axis;
        if (check_axis(op, axes[i], ndim, &axis) != GM_OK)
            return false;
        if (*mask >> axis & 1)
            return gm_fail(GM_EVALUE, "%s: axis %d is given twice", op, axes[i]), false;
        *mask |= (uint64_t)1 << axis;
    }
    return true;
}

gm_array *gm_expand_dims(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    axes_param p;
    if (!x || n_axes <= 0)
        return x;
    if (x->ndim + n_axes > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "expand_dims: %d dimensions: at most %d are supported", x->ndim + n_axes,
                       GM_MAX_NDIM),
               NULL;
    return distinct_axes("expand_dims", n_axes, axes, x->ndim + n_axes, &p.axes)
               ? array_node(s, &expand_dims_op, &x, 1, &p)
               : NULL;
}

static gm_status squeeze_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    uint64_t axes = ((const axes_param *)param)->axes;
    const gm_array *x = in[0];
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (!(axes >> i & 1))
            out->shape[out->ndim++] = x->shape[i];
        else if (x->shape[i] != 1)
            return gm_fail(GM_EVALUE, "squeeze: axis %d has %lld items, only one of 1 can go", i,
                           (long long)x->shape[i]);
    }
    return GM_OK;
}

static gm_status squeeze_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                 gm_array **outs) {
    (void)n_in;
    (void)n_out;
    int axes[64];
    return rebuilt(gm_squeeze(s, in[0], listed_axes(param, axes), axes), outs);
}

const gm_op squeeze_op = {.name = "squeeze",
                          .place = PLACE_INPUT,
                          .n_in = 1,
                          .n_out = 1,
                          .param_size = sizeof(axes_param),
                          .fields = axes_fields,
                          .infer = squeeze_infer,
                          .eval = reshape_eval,
                          .vjp = reshape_vjp,
                          .vmap = reshape_vmap,
                          .rebuild = squeeze_rebuild};

gm_array *gm_squeeze(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    axes_param p = {0};
    if (!x)
        return NULL;
    for (int i = 0; n_axes < 0 && i < x->ndim; i++)
        p.axes |= x->shape[i] == 1 ? (uint64_t)1 << i : 0;
    if (n_axes >= 0 && !distinct_axes("squeeze", n_axes, axes, x->ndim, &p.axes))
        return NULL;
    return p.axes ? array_node(s, &squeeze_op, &x, 1, &p) : x;
}

/* ---- broadcast_to: in[1 ...], where there are any, are arrays that make up the shape (trace_shapeless) ---- */
static gm_status broadcast_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const reshape_param *p = param;
    int64_t shape[GM_MAX_NDIM];
    gm_array target = {.ndim = (int16_t)p->ndim, .shape = shape};
    memcpy(shape, p->shape, (size_t)p->ndim * sizeof *shape);
    for (int i = 1; i < n_in; i++) {
        GM_TRY(broadcast_shape("broadcast_to", &target, in[i], out));
        target.ndim = (int16_t)out->ndim;
        memcpy(shape, out->shape, (size_t)out->ndim * sizeof *shape);
    }
    out->dtype = (gm_dtype)in[0]->dtype;
    GM_TRY(broadcast_shape("broadcast_to", in[0], &target, out));
    if (out->ndim != target.ndim || memcmp(out->shape, shape, (size_t)out->ndim * sizeof *shape) != 0) {
        char from[128], to[128];
        shape_text(in[0]->ndim, in[0]->shape, from);
        shape_text(target.ndim, shape, to);
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

static void broadcast_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                          gm_array **grad) {
    (void)out;
    grad[0] = unbroadcast(s, cotangents[0], in[0]);
}

/* New dimensions come between the batch axis and x's own. */
static gm_status broadcast_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    int64_t shape[GM_MAX_NDIM + 1], aligned[GM_MAX_NDIM + 1], batch = batch_size(in, out->n_in, batched);
    gm_array *x = batched_input(s, in[0], batched[0], batch);
    if (!x)
        return error_code();
    int ndim = batched_shape(out, batch, shape), own = x->ndim - 1;
    aligned[0] = shape[0];
    for (int i = 1; i < ndim; i++)
        aligned[i] = i < ndim - own ? 1 : x->shape[i - (ndim - own) + 1];
    outs[0] = gm_broadcast_to(s, gm_reshape(s, x, ndim, aligned), ndim, shape);
    return outs[0] ? GM_OK : error_code();
}

static gm_status broadcast_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                   gm_array **outs) {
    (void)n_out;
    const reshape_param *p = param;
    if (n_in > 1)
        return rebuilt(broadcast_with(s, in[0], in + 1, n_in - 1), outs);
    return n_in == 1 && within(p->ndim, GM_MAX_NDIM + 1) ? rebuilt(gm_broadcast_to(s, in[0], p->ndim, p->shape), outs)
                                                         : rebuild_refuse("broadcast_to");
}

const gm_op broadcast_to_op = {.name = "broadcast_to",
                               .place = PLACE_INPUT,
                               .n_in = -1,
                               .n_out = 1,
                               .nondiff = ~1u,
                               .constant = true,
                               .param_size = sizeof(reshape_param),
                               .fields = reshape_fields,
                               .infer = broadcast_infer,
                               .eval = broadcast_eval,
                               .vjp = broadcast_vjp,
                               .vmap = broadcast_vmap,
                               .rebuild = broadcast_rebuild};

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
    return array_node_sized(s, &broadcast_to_op, &x, 1, &p,
                            offsetof(reshape_param, shape) + (size_t)ndim * sizeof *shape);
}

gm_array *broadcast_like(gm_scope *s, gm_array *x, gm_array *like) {
    if (!x || !like)
        return NULL;
    return trace_shapeless(like) ? broadcast_with(s, x, &like, 1) : gm_broadcast_to(s, x, like->ndim, like->shape);
}

gm_array *broadcast_with(gm_scope *s, gm_array *x, gm_array *const *others, int n) {
    reshape_param p = {.ndim = 0};
    gm_array **in = memory_array((size_t)n + 1, sizeof *in), *out = NULL;
    if (in) {
        in[0] = x;
        memcpy(in + 1, others, (size_t)n * sizeof *in);
        out = array_node_sized(s, &broadcast_to_op, in, n + 1, &p, offsetof(reshape_param, shape));
    }
    memory_free(in);
    return out;
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
    return launch_copy(q, to_array(out), from_array(x), x->ndim, x->shape);
}

static void contiguous_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                           gm_array **grad) {
    (void)s;
    (void)out;
    (void)in;
    grad[0] = cotangents[0];
}

static gm_status contiguous_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                    gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(gm_contiguous(s, in[0]), outs);
}

const gm_op contiguous_op = {.name = "contiguous",
                             .shares = true,
                             .n_in = 1,
                             .n_out = 1,
                             .infer = same_infer,
                             .eval = contiguous_eval,
                             .vjp = contiguous_vjp,
                             .vmap = vmap_leading,
                             .rebuild = contiguous_rebuild};

gm_array *gm_contiguous(gm_scope *s, gm_array *x) { return array_node(s, &contiguous_op, &x, 1, NULL); }

/* ---- atleast_1d, _2d, _3d ---- */
gm_array *gm_atleast_1d(gm_scope *s, gm_array *x) {
    return x && x->ndim == 0 ? gm_expand_dims(s, x, 1, (const int[]){0}) : x;
}
gm_array *gm_atleast_2d(gm_scope *s, gm_array *x) {
    return x && x->ndim < 2 ? gm_expand_dims(s, x, 2 - x->ndim, (const int[]){0, 1}) : x;
}
gm_array *gm_atleast_3d(gm_scope *s, gm_array *x) {
    if (!x || x->ndim > 2)
        return x;
    const int axes[3][3] = {{0, 1, 2}, {0, 2}, {2}};
    return gm_expand_dims(s, x, 3 - x->ndim, axes[x->ndim]);
}
