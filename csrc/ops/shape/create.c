/* create.c - arrays from numbers: arange, full and similar ones, eye, triangles, linspace, meshgrid, windows. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

typedef struct {
    double start, step;
    int64_t count;
    int32_t type;
    int32_t unused;
} arange_param;
static const gm_field arange_fields[] = {{FIELD_DOUBLE, offsetof(arange_param, start), "start", 1},
                                         {FIELD_DOUBLE, offsetof(arange_param, step), "step", 1},
                                         {FIELD_INT64, offsetof(arange_param, count), "count", 1},
                                         {FIELD_INT, offsetof(arange_param, type), "dtype", 1},
                                         {0}};

static gm_status arange_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)in;
    (void)n_in;
    const arange_param *p = param;
    out->dtype = (gm_dtype)p->type;
    out->ndim = 1;
    out->shape[0] = p->count;
    return GM_OK;
}

static gm_status arange_eval(gm_array *out, gm_queue *q) {
    const arange_param *p = out->param;
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, arange, out->size, .out = array_ptr(out), .type = out->dtype, .start = p->start,
                    .step = p->step);
}

static gm_status arange_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)in;
    const arange_param *p = param;
    if (!within(p->type, GM_DTYPE_COUNT) || p->type == GM_BOOL)
        return rebuild_refuse("arange");
    return rebuilt(array_node(s, &arange_op, NULL, 0, p), outs);
}

const gm_op arange_op = {.name = "arange",
                         .n_in = 0,
                         .n_out = 1,
                         .param_size = sizeof(arange_param),
                         .fields = arange_fields,
                         .infer = arange_infer,
                         .eval = arange_eval,
                         .rebuild = arange_rebuild};

/* Integers begin at int(start) and advance by int(start + step) - int(start), as in MLX. */
gm_array *gm_arange(gm_scope *s, double start, double stop, double step, gm_dtype type) {
    arange_param p;
    if (type == GM_BOOL || type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "arange: dtype %s has no range", gm_dtype_name(type)), NULL;
    if (step == 0 || isnan(start) || isnan(stop) || isnan(step) || isinf(start) || isinf(stop))
        return gm_fail(GM_EVALUE, "arange: start %g, stop %g, step %g do not make a range", start, stop, step), NULL;
    double count = isinf(step) ? (step > 0) == (stop > start) && stop != start : ceil((stop - start) / step);
    if (count > 4.6e18)
        return gm_fail(GM_EVALUE, "arange: %g values are more than an array can hold", count), NULL;
    memset(&p, 0, sizeof p);
    p.start = start;
    p.step = isinf(step) ? 0 : dtype_is_integer(type) ? trunc(start + step) - trunc(start) : step;
    p.count = count > 0 ? (int64_t)count : 0;
    p.type = (int32_t)type;
    return array_node(s, &arange_op, NULL, 0, &p);
}

/* ---- full: a value repeated, in memory of its own, for it is written to and exported ---- */
typedef struct {
    int32_t ndim;
    int32_t unused;
    int64_t shape[GM_MAX_NDIM];
} full_param;
static const gm_field full_fields[] = {{FIELD_INT, offsetof(full_param, ndim), "ndim", 1},
                                       {FIELD_INT64, offsetof(full_param, shape), "shape", GM_MAX_NDIM},
                                       {0}};

static gm_status full_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const full_param *p = param;
    gm_array target = {.ndim = (int16_t)p->ndim, .shape = (int64_t *)(uintptr_t)p->shape};
    const gm_array *like = n_in > 1 ? in[1] : &target;
    out->dtype = (gm_dtype)in[0]->dtype;
    GM_TRY(broadcast_shape("full", in[0], like, out));
    if (out->ndim != like->ndim || memcmp(out->shape, like->shape, (size_t)like->ndim * sizeof(int64_t)) != 0) {
        char from[128], to[128];
        shape_text(in[0]->ndim, in[0]->shape, from);
        shape_text(like->ndim, like->shape, to);
        return gm_fail(GM_ESHAPE, "full: values of shape %s do not fit shape %s", from, to);
    }
    return GM_OK;
}

static gm_status full_eval(gm_array *out, gm_queue *q) {
    const gm_array *value = out->in[0];
    int64_t strides[GM_MAX_NDIM];
    GM_TRY(array_alloc(out, q));
    broadcast_strides(value, out->ndim, strides);
    return launch_copy(q, to_array(out), (copy_from){array_ptr(value), (gm_dtype)value->dtype, strides}, out->ndim,
                       out->shape);
}

static void full_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)out;
    grad[0] = unbroadcast(s, cotangents[0], in[0]);
}

/* The batch of a value is a batch of broadcasts. */
static gm_status full_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    int64_t batch = batch_size(in, out->n_in, batched), shape[GM_MAX_NDIM + 1], aligned[GM_MAX_NDIM + 1];
    gm_array *value = batched_input(s, in[0], batched[0], batch);
    if (!value)
        return error_code();
    int own = value->ndim - 1, pad = out->ndim - own;
    shape[0] = aligned[0] = batch;
    for (int d = 0; d < out->ndim; d++) {
        shape[d + 1] = out->shape[d];
        aligned[d + 1] = d < pad ? 1 : value->shape[d - pad + 1];
    }
    value = gm_reshape(s, value, out->ndim + 1, aligned);
    outs[0] = value ? gm_full(s, out->ndim + 1, shape, value, (gm_dtype)value->dtype) : NULL;
    return outs[0] ? GM_OK : error_code();
}

/* in[0] the value; in[1] an array of the shape, when a traced function takes the shape from its argument */
static gm_status full_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_out;
    const full_param *p = param;
    if (n_in == 2)
        return rebuilt(array_node_sized(s, &full_op, in, 2, &(full_param){0}, offsetof(full_param, shape)), outs);
    return n_in == 1 && within(p->ndim, GM_MAX_NDIM + 1)
               ? rebuilt(gm_full(s, p->ndim, p->shape, in[0], (gm_dtype)in[0]->dtype), outs)
               : rebuild_refuse("full");
}

const gm_op full_op = {.name = "full",
                       .n_in = -1,
                       .n_out = 1,
                       .nondiff = 2,
                       .constant = true,
                       .param_size = sizeof(full_param),
                       .fields = full_fields,
                       .infer = full_infer,
                       .eval = full_eval,
                       .vjp = full_vjp,
                       .vmap = full_vmap,
                       .rebuild = full_rebuild};

gm_array *gm_full(gm_scope *s, int ndim, const int64_t *shape, gm_array *value, gm_dtype type) {
    full_param p = {.ndim = ndim};
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "full: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return gm_fail(GM_EVALUE, "full: dimension %d is %lld; expected 0 or more", i, (long long)shape[i]), NULL;
        p.shape[i] = shape[i];
    }
    value = gm_astype(s, value, type);
    return array_node_sized(s, &full_op, &value, 1, &p, offsetof(full_param, shape) + (size_t)ndim * sizeof *shape);
}

gm_array *gm_full_like(gm_scope *s, gm_array *x, gm_array *value, gm_dtype type) {
    if (!x || !trace_shapeless(x))
        return x ? gm_full(s, x->ndim, x->shape, value, type) : NULL;
    gm_array *in[2] = {gm_astype(s, value, type), x};
    return array_node_sized(s, &full_op, in, 2, &(full_param){0}, offsetof(full_param, shape));
}

gm_array *gm_zeros(gm_scope *s, int ndim, const int64_t *shape, gm_dtype type) {
    return gm_full(s, ndim, shape, scalar_array(s, 0, type), type);
}
gm_array *gm_ones(gm_scope *s, int ndim, const int64_t *shape, gm_dtype type) {
    return gm_full(s, ndim, shape, scalar_array(s, 1, type), type);
}
gm_array *gm_zeros_like(gm_scope *s, gm_array *x, gm_dtype type) {
    type = x && type == GM_DTYPE_COUNT ? (gm_dtype)x->dtype : type;
    return gm_full_like(s, x, scalar_array(s, 0, type), type);
}
gm_array *gm_ones_like(gm_scope *s, gm_array *x, gm_dtype type) {
    type = x && type == GM_DTYPE_COUNT ? (gm_dtype)x->dtype : type;
    return gm_full_like(s, x, scalar_array(s, 1, type), type);
}

/* ---- matrices: rows compared with columns ---- */
static gm_array *indices(gm_scope *s, int64_t first, int64_t count) {
    return gm_arange(s, (double)first, (double)(first + count), 1, GM_INT32);
}

/* Rows i + k against columns j, by compare. */
static gm_array *compared(gm_scope *s, int64_t n, int64_t m, int64_t k,
                          gm_array *(*compare)(gm_scope *, gm_array *, gm_array *)) {
    return compare(s, gm_expand_dims(s, indices(s, k, n), 1, (const int[]){1}), indices(s, 0, m));
}

gm_array *gm_eye(gm_scope *s, int n, int m, int k, gm_dtype type) {
    if (n < 0 || m < 0)
        return gm_fail(GM_EVALUE, "eye: %d rows and %d columns; expected 0 or more", n, m), NULL;
    gm_array *e = compared(s, n, m, k, gm_equal);
    return e ? gm_astype(s, e, type) : NULL;
}
gm_array *gm_identity(gm_scope *s, int n, gm_dtype type) { return gm_eye(s, n, n, 0, type); }

gm_array *gm_tri(gm_scope *s, int n, int m, int k, gm_dtype type) {
    gm_array *t = compared(s, n, m, k, gm_greater_equal);
    return t ? gm_astype(s, t, type) : NULL;
}

/* The same for matrices of the size that x has when a shapeless function runs again: indices are counted then. */
static gm_array *compared_again(gm_scope *s, gm_array *x, int k,
                                gm_array *(*compare)(gm_scope *, gm_array *, gm_array *)) {
    gm_array *ones = gm_ones_like(s, x, GM_INT32);
    gm_array *row = gm_cumsum(s, ones, -2, false, false, true, GM_INT32);
    gm_array *column = gm_cumsum(s, ones, -1, false, false, true, GM_INT32);
    return compare(s, gm_add(s, row, scalar_array(s, k, GM_INT32)), column);
}

static gm_array *triangle(gm_scope *s, const char *op, gm_array *x, int k, bool lower) {
    if (!x)
        return NULL;
    if (x->ndim < 2)
        return gm_fail(GM_EVALUE, "%s: an array with %d dimensions; expected at least 2", op, x->ndim), NULL;
    gm_array *(*compare)(gm_scope *, gm_array *, gm_array *) = lower ? gm_greater_equal : gm_less_equal;
    gm_array *mask = trace_shapeless(x) ? compared_again(s, x, k, compare)
                                        : compared(s, x->shape[x->ndim - 2], x->shape[x->ndim - 1], k, compare);
    return gm_where(s, mask, x, scalar_array(s, 0, (gm_dtype)x->dtype));
}
gm_array *gm_tril(gm_scope *s, gm_array *x, int k) { return triangle(s, "tril", x, k, true); }
gm_array *gm_triu(gm_scope *s, gm_array *x, int k) { return triangle(s, "triu", x, k, false); }

/* ---- sequences ---- */
/* (1 - t) * start + t * stop: both ends are exact. */
gm_array *gm_linspace(gm_scope *s, gm_array *start, gm_array *stop, int count, bool endpoint, gm_dtype type) {
    if (count < 0)
        return gm_fail(GM_EVALUE, "linspace: %d samples; expected 0 or more", count), NULL;
    if (type != GM_COMPLEX64 && ((start && start->dtype == GM_COMPLEX64) || (stop && stop->dtype == GM_COMPLEX64)))
        return gm_fail(GM_ETYPE, "linspace: got complex ends for dtype %s, expected real ones", gm_dtype_name(type)),
               NULL;
    gm_dtype wide = type == GM_FLOAT64 || type == GM_COMPLEX64 ? type : GM_FLOAT32;
    double steps = endpoint ? count - 1 : count;
    gm_array *t = gm_divide(s, gm_arange(s, 0, count, 1, wide), scalar_array(s, steps > 0 ? steps : 1, wide));
    gm_array *from = gm_multiply(s, gm_subtract(s, scalar_array(s, 1, wide), t), gm_astype(s, start, wide));
    gm_array *sum = gm_add(s, from, gm_multiply(s, t, gm_astype(s, stop, wide)));
    return sum ? gm_astype(s, sum, type) : NULL;
}

gm_array *gm_meshgrid(gm_scope *s, gm_array *const *arrays, int count, bool sparse, bool rows_first, gm_array **outs) {
    if (count > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "meshgrid: %d arrays; expected at most %d", count, GM_MAX_NDIM), NULL;
    for (int i = 0; i < count; i++) {
        int at = !rows_first && count > 1 && i < 2 ? 1 - i : i; /* xy: the first two are exchanged */
        int64_t shape[GM_MAX_NDIM];
        if (!arrays[i])
            return NULL;
        for (int d = 0; d < count; d++)
            shape[d] = d == at ? arrays[i]->size : 1;
        if (!(outs[i] = gm_reshape(s, arrays[i], count, shape)))
            return NULL;
    }
    if (!sparse && count && !gm_broadcast_arrays(s, outs, count, outs))
        return NULL;
    return count ? outs[0] : GM_NONE;
}

/* ---- windows: functions of t = i / (n - 1) ---- */
static gm_array *constant(gm_scope *s, double value) { return scalar_array(s, value, GM_FLOAT32); }

/* factor * i for the n items of a window; NULL with *few set when it has at most one item. */
static gm_array *ramp(gm_scope *s, int n, double factor, gm_array **few) {
    int64_t count = n > 0 ? n : 0;
    *few = n <= 1 ? gm_ones(s, 1, &count, GM_FLOAT32) : NULL;
    return n > 1 ? gm_multiply(s, gm_arange(s, 0, n, 1, GM_FLOAT32), constant(s, factor / (n - 1))) : NULL;
}

/* a + b h + c h**2 of h = sin(pi t)**2: windows of cosines by the half angle, exact at the ends. */
static gm_array *of_sines(gm_scope *s, int n, double a, double b, double c) {
    gm_array *few, *x = ramp(s, n, 3.14159265358979323846, &few);
    if (!x)
        return few;
    gm_array *h = gm_square(s, gm_sin(s, x));
    gm_array *w = gm_multiply(s, constant(s, b), h);
    if (c > 0)
        w = gm_add(s, w, gm_multiply(s, constant(s, c), gm_square(s, h)));
    return a > 0 ? gm_add(s, constant(s, a), w) : w;
}

gm_array *gm_hanning(gm_scope *s, int n) { return of_sines(s, n, 0, 1, 0); }
gm_array *gm_hamming(gm_scope *s, int n) { return of_sines(s, n, 0.08, 0.92, 0); }
gm_array *gm_blackman(gm_scope *s, int n) { return of_sines(s, n, 0, 0.36, 0.64); }

gm_array *gm_bartlett(gm_scope *s, int n) {
    gm_array *few, *x = ramp(s, n, 2, &few);
    return x ? gm_subtract(s, constant(s, 1), gm_abs(s, gm_subtract(s, x, constant(s, 1)))) : few;
}
