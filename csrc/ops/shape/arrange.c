/* arrange.c - elements at other positions: flip, roll, tile, repeat, pad, diagonals, differences, Kronecker products.
 */
#include <limits.h>
#include <string.h>
#include "ops/ops.h"

typedef struct { int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM]; } bounds;

static bounds whole(const gm_array *x) {
    bounds b;
    for (int d = 0; d < x->ndim; d++) {
        b.start[d] = 0;
        b.stop[d] = x->shape[d];
        b.step[d] = 1;
    }
    return b;
}

static gm_array *cut(gm_scope *s, gm_array *x, const bounds *b) { return gm_slice(s, x, b->start, b->stop, b->step); }

/* Items [from, to) of one axis. */
static gm_array *part_of(gm_scope *s, gm_array *x, int axis, int64_t from, int64_t to) {
    bounds b = whole(x);
    b.start[axis] = from;
    b.stop[axis] = to;
    return cut(s, x, &b);
}

/* ---- flip and roll ---- */
static gm_array *flip_axis(gm_scope *s, gm_array *x, int axis) {
    bounds b = whole(x);
    b.start[axis] = x->shape[axis] - 1;
    b.stop[axis] = -1;
    b.step[axis] = -1;
    return cut(s, x, &b);
}

gm_array *gm_flip(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    if (!x)
        return NULL;
    int count = n_axes < 0 ? x->ndim : n_axes;
    uint64_t seen = 0;
    gm_array *out = x;
    for (int i = 0; i < count && out; i++) {
        int axis = i;
        if (n_axes >= 0 && check_axis("flip", axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        if (!(seen >> axis & 1))
            out = flip_axis(s, out, axis);
        seen |= (uint64_t)1 << axis;
    }
    return out;
}

static gm_array *roll_axis(gm_scope *s, gm_array *x, int64_t shift, int axis) {
    int64_t n = x->shape[axis];
    int64_t by = n ? (shift % n + n) % n : 0;
    if (by == 0)
        return x;
    gm_array *two[2] = {part_of(s, x, axis, n - by, n), part_of(s, x, axis, 0, n - by)};
    return gm_concatenate(s, two, 2, axis);
}

gm_array *gm_roll(gm_scope *s, gm_array *x, int n_shifts, const int64_t *shifts, int n_axes, const int *axes) {
    if (!x)
        return NULL;
    if (n_axes < 0) { /* the flattened array, by all shifts together */
        int64_t total = 0;
        for (int i = 0; i < n_shifts; i++)
            total += shifts[i];
        gm_array *flat = gm_reshape(s, x, 1, &x->size);
        flat = flat ? roll_axis(s, flat, total, 0) : NULL;
        return flat ? gm_reshape(s, flat, x->ndim, x->shape) : NULL;
    }
    if (n_shifts < n_axes)
        return gm_fail(GM_EVALUE, "roll: %d shifts for %d axes; expected one for each axis", n_shifts, n_axes), NULL;
    for (int i = 0; i < n_axes && x; i++) {
        int axis;
        if (check_axis("roll", axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        x = roll_axis(s, x, shifts[i], axis);
    }
    return x;
}

/* ---- tile and repeat: axes of size 1 are inserted, broadcast, and merged ---- */
gm_array *gm_tile(gm_scope *s, gm_array *x, int n_reps, const int64_t *reps) {
    if (!x)
        return NULL;
    int ndim = n_reps > x->ndim ? n_reps : x->ndim, n = 0;
    int64_t between[2 * GM_MAX_NDIM], wide[2 * GM_MAX_NDIM], shape[GM_MAX_NDIM];
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "tile: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    for (int i = 0; i < ndim; i++) {
        int from = i - (ndim - x->ndim), rep = i - (ndim - n_reps);
        int64_t size = from < 0 ? 1 : x->shape[from], times = rep < 0 ? 1 : reps[rep];
        if (times < 0)
            return gm_fail(GM_EVALUE, "tile: %lld repetitions of axis %d, expected 0 or more", (long long)times, i),
                   NULL;
        shape[i] = size * times;
        if (times != 1) {
            between[n] = 1;
            wide[n++] = times;
        }
        between[n] = wide[n] = size;
        n++;
    }
    x = gm_broadcast_to(s, gm_reshape(s, x, n, between), n, wide);
    return x ? gm_reshape(s, x, ndim, shape) : NULL;
}

gm_array *gm_repeat(gm_scope *s, gm_array *x, int64_t repeats, int axis, bool all) {
    int at = 0;
    if (!x)
        return NULL;
    if (all)
        x = gm_reshape(s, x, 1, &x->size);
    if (!x || (!all && check_axis("repeat", axis, x->ndim, &at) != GM_OK))
        return NULL;
    if (repeats < 0)
        return gm_fail(GM_EVALUE, "repeat: %lld repeats; expected 0 or more", (long long)repeats), NULL;
    int after = at + 1;
    int64_t wide[GM_MAX_NDIM + 1], shape[GM_MAX_NDIM];
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    memcpy(wide, x->shape, (size_t)after * sizeof *wide);
    wide[after] = repeats;
    memcpy(wide + after + 1, x->shape + after, (size_t)(x->ndim - after) * sizeof *wide);
    shape[at] *= repeats;
    gm_array *out = gm_broadcast_to(s, gm_expand_dims(s, x, 1, &after), x->ndim + 1, wide);
    return out ? gm_reshape(s, out, x->ndim, shape) : NULL;
}

/* ---- pad ---- */
typedef struct { int64_t low, high; } pad_width; /* one for each dimension */
static const gm_field pad_fields[] = {{FIELD_INT64, 0, "low and high of each axis", 2 * GM_MAX_NDIM}, {0}};

static gm_status pad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const pad_width *width = param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    for (int d = 0; d < out->ndim; d++)
        out->shape[d] += width[d].low + width[d].high;
    return GM_OK;
}

/* Trailing dimensions without borders, contiguous in memory, are merged with the one before them. */
static gm_status pad_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *value = out->in[1];
    const pad_width *width = out->param;
    GM_TRY(array_alloc(out, q));
    int64_t *dims = queue_arena(q, 4 * (size_t)out->ndim * sizeof *dims);
    if (!dims)
        return error_code();
    int64_t *shape = dims, *inner = dims + out->ndim, *low = inner + out->ndim, *strides = low + out->ndim;
    int n = 0;
    for (int d = 0; d < out->ndim; d++) {
        bool joins = n > 0 && width[d].low == 0 && width[d].high == 0 && strides[n - 1] == x->strides[d] * x->shape[d];
        n -= joins;
        shape[n] = out->shape[d] * (joins ? shape[n] : 1);
        inner[n] = x->shape[d] * (joins ? inner[n] : 1);
        low[n] = joins ? low[n] * x->shape[d] : width[d].low;
        strides[n++] = x->strides[d];
    }
    int64_t row = shape[n - 1];
    return DISPATCH(q, pad, row ? out->size / row : 0, .out = array_ptr(out), .in = array_ptr(x),
                    .value = array_ptr(value), .item_bytes = (int)array_item(out), .ndim = n, .shape = shape,
                    .in_shape = inner, .low = low, .in_strides = strides);
}

static gm_array *pad_by(gm_scope *s, gm_array *x, gm_array *value, const pad_width *width) {
    gm_array *in[2] = {x, value};
    return x ? array_node_sized(s, &pad_op, in, 2, width, (size_t)x->ndim * sizeof *width) : NULL;
}

/* The region between the borders. */
static gm_array *unpadded(gm_scope *s, gm_array *x, const pad_width *width) {
    bounds b = whole(x);
    for (int d = 0; d < x->ndim; d++) {
        b.start[d] += width[d].low;
        b.stop[d] -= width[d].high;
    }
    return cut(s, x, &b);
}

static void pad_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)in;
    grad[0] = unpadded(s, cotangents[0], out->param);
    grad[1] = gm_subtract(s, gm_sum(s, cotangents[0], -1, NULL, false), gm_sum(s, grad[0], -1, NULL, false));
    grad[1] = grad[1] ? gm_astype(s, grad[1], (gm_dtype)in[1]->dtype) : NULL;
}

static gm_status pad_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    pad_width width[GM_MAX_NDIM + 1] = {{0, 0}};
    memcpy(width + 1, out->param, (size_t)out->ndim * sizeof *width);
    if (!batched[1]) {
        outs[0] = pad_by(s, in[0], in[1], width);
    } else { /* a value for each: broadcast, and the middle replaced */
        int64_t batch = in[1]->shape[0], shape[GM_MAX_NDIM + 1], ones[GM_MAX_NDIM + 1];
        gm_array *x = batched_input(s, in[0], batched[0], batch);
        shape[0] = ones[0] = batch;
        for (int d = 0; d < out->ndim; d++) {
            shape[d + 1] = out->shape[d];
            ones[d + 1] = 1;
        }
        gm_array *border = gm_broadcast_to(s, gm_reshape(s, in[1], out->ndim + 1, ones), out->ndim + 1, shape);
        if (!border || !x)
            return error_code();
        bounds b = whole(border);
        for (int d = 0; d <= out->ndim; d++) {
            b.start[d] += width[d].low;
            b.stop[d] -= width[d].high;
        }
        outs[0] = gm_slice_update(s, border, x, b.start, b.stop, b.step);
    }
    return outs[0] ? GM_OK : error_code();
}

static gm_status pad_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const pad_width *width = param;
    int64_t low[GM_MAX_NDIM], high[GM_MAX_NDIM];
    for (int d = 0; d < in[0]->ndim; d++) {
        low[d] = width[d].low;
        high[d] = width[d].high;
        if (low[d] > INT64_MAX / 4 || high[d] > INT64_MAX / 4)
            return rebuild_refuse("pad");
    }
    return rebuilt(gm_pad(s, in[0], low, high, GM_PAD_CONSTANT, in[1]), outs);
}

const gm_op pad_op = {.name = "pad",
                      .n_in = 2,
                      .n_out = 1,
                      .param_size = GM_MAX_NDIM * sizeof(pad_width),
                      .fields = pad_fields,
                      .infer = pad_infer,
                      .eval = pad_eval,
                      .vjp = pad_vjp,
                      .vmap = pad_vmap,
                      .rebuild = pad_rebuild};

static gm_array *pad_edge(gm_scope *s, gm_array *x, int axis, int64_t low, int64_t high) {
    if (!x || (!low && !high))
        return x;
    int64_t n = x->shape[axis], shape[GM_MAX_NDIM];
    gm_array *parts[3];
    int count = 0;
    if (n == 0)
        return gm_fail(GM_EVALUE, "pad: axis %d is empty: it has no edge", axis), NULL;
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[axis] = low;
    if (low)
        parts[count++] = gm_broadcast_to(s, part_of(s, x, axis, 0, 1), x->ndim, shape);
    parts[count++] = x;
    shape[axis] = high;
    if (high)
        parts[count++] = gm_broadcast_to(s, part_of(s, x, axis, n - 1, n), x->ndim, shape);
    return gm_concatenate(s, parts, count, axis);
}

/* The axis and its mirror image alternate without end, and are cut where the borders end. skip: 1 when the edge itself
 * is not repeated. */
static gm_array *pad_mirrored(gm_scope *s, gm_array *x, int axis, int64_t low, int64_t high, int skip) {
    gm_array *parts[3];
    int count = 0;
    if (!x || (!low && !high))
        return x;
    const int64_t n = x->shape[axis], most = n - skip;
    if (n == 0)
        return gm_fail(GM_EVALUE, "pad: axis %d is empty: there is nothing to mirror", axis), NULL;
    if (most == 0) /* one item, its own mirror image */
        return pad_edge(s, x, axis, low, high);
    if (low <= most && high <= most) {
        if (low)
            parts[count++] = flip_axis(s, part_of(s, x, axis, skip, skip + low), axis);
        parts[count++] = x;
        if (high)
            parts[count++] = flip_axis(s, part_of(s, x, axis, most - high, most), axis);
        return gm_concatenate(s, parts, count, axis);
    }
    const int64_t period = n + most - skip, first = (period - low % period) % period, total = low + n + high;
    int64_t reps[GM_MAX_NDIM];
    for (int d = 0; d < x->ndim; d++)
        reps[d] = d == axis ? (first + total + period - 1) / period : 1;
    parts[count++] = x;
    if (period > n)
        parts[count++] = flip_axis(s, part_of(s, x, axis, skip, most), axis);
    gm_array *mirrored = gm_tile(s, gm_concatenate(s, parts, count, axis), x->ndim, reps);
    return mirrored ? part_of(s, mirrored, axis, first, first + total) : NULL;
}

gm_array *gm_pad(gm_scope *s, gm_array *x, const int64_t *low, const int64_t *high, gm_pad_mode mode, gm_array *value) {
    pad_width width[GM_MAX_NDIM];
    bool any = false;
    if (!x || !value)
        return NULL;
    for (int d = 0; d < x->ndim; d++) {
        if (low[d] < 0 || high[d] < 0)
            return gm_fail(GM_EVALUE, "pad: widths (%lld,%lld) of axis %d; expected 0 or more", (long long)low[d],
                           (long long)high[d], d),
                   NULL;
        width[d] = (pad_width){low[d], high[d]};
        any |= low[d] || high[d];
    }
    if (!any)
        return x;
    if (mode == GM_PAD_CONSTANT) {
        if (value->size != 1)
            return gm_fail(GM_EVALUE, "pad: constant_values has %lld items; expected 1", (long long)value->size), NULL;
        return pad_by(s, x, gm_reshape(s, gm_astype(s, value, (gm_dtype)x->dtype), 0, NULL), width);
    }
    for (int d = 0; x && d < x->ndim; d++)
        x = mode == GM_PAD_EDGE ? pad_edge(s, x, d, low[d], high[d])
                                : pad_mirrored(s, x, d, low[d], high[d], mode == GM_PAD_REFLECT);
    return x;
}

/* ---- diagonals ---- */
/* Whether j - i == offset, for i in [0, rows) and j in [0, columns). */
static gm_array *on_diagonal(gm_scope *s, int64_t rows, int64_t columns, int64_t offset) {
    gm_array *i = gm_arange(s, (double)offset, (double)(offset + rows), 1, GM_INT32);
    gm_array *j = gm_arange(s, 0, (double)columns, 1, GM_INT32);
    return gm_equal(s, gm_expand_dims(s, i, 1, (const int[]){1}), j);
}

/* Matrices in the last two axes with the last axis of x on their diagonals. */
static gm_array *from_diagonal(gm_scope *s, gm_array *x, int64_t rows, int64_t columns, int64_t offset) {
    int64_t low[GM_MAX_NDIM] = {0}, high[GM_MAX_NDIM] = {0};
    int last = x->ndim - 1;
    low[last] = offset >= 0 ? 0 : -offset < rows ? -offset : rows; /* below all rows: x is empty */
    high[last] = rows - low[last] - x->shape[last];
    gm_array *zero = scalar_array(s, 0, (gm_dtype)x->dtype);
    gm_array *column = gm_expand_dims(s, gm_pad(s, x, low, high, GM_PAD_CONSTANT, zero), 1, (const int[]){-1});
    return gm_where(s, on_diagonal(s, rows, columns, offset), column, zero);
}

typedef struct {
    int64_t offset;
    int32_t axis1, axis2;
} diagonal_param;
static const gm_field diagonal_fields[] = {{FIELD_INT64, offsetof(diagonal_param, offset), "offset", 1},
                                           {FIELD_INT, offsetof(diagonal_param, axis1), "axis1", 1},
                                           {FIELD_INT, offsetof(diagonal_param, axis2), "axis2", 1},
                                           {0}};

static gm_status diagonal_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const diagonal_param *p = param;
    const gm_array *x = in[0];
    int64_t rows = x->shape[p->axis1] + (p->offset < 0 ? p->offset : 0);
    int64_t columns = x->shape[p->axis2] - (p->offset > 0 ? p->offset : 0), n = rows < columns ? rows : columns;
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != p->axis1 && d != p->axis2)
            out->shape[out->ndim++] = x->shape[d];
    out->shape[out->ndim++] = n > 0 ? n : 0;
    return GM_OK;
}

static gm_status diagonal_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const diagonal_param *p = out->param;
    const gm_array *x = out->in[0];
    int64_t strides[GM_MAX_NDIM], step1 = x->strides[p->axis1], step2 = x->strides[p->axis2];
    int n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != p->axis1 && d != p->axis2)
            strides[n++] = x->strides[d];
    strides[n] = step1 + step2;
    int64_t offset = p->offset < 0 ? -p->offset * step1 : p->offset * step2;
    array_share(out, x, strides, out->size ? offset * (int64_t)array_item(x) : 0);
    return GM_OK;
}

static void diagonal_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                         gm_array **grad) {
    const diagonal_param *p = out->param;
    const gm_array *x = in[0];
    gm_array *m = from_diagonal(s, cotangents[0], x->shape[p->axis1], x->shape[p->axis2], p->offset);
    int axes[GM_MAX_NDIM];
    for (int d = 0, n = 0; d < x->ndim; d++)
        axes[d] = d == p->axis1 ? x->ndim - 2 : d == p->axis2 ? x->ndim - 1 : n++;
    grad[0] = gm_transpose(s, m, x->ndim, axes);
}

static gm_status diagonal_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const diagonal_param *p = out->param;
    (void)batched;
    outs[0] = array_node(s, &diagonal_op, in, 1, &(diagonal_param){p->offset, p->axis1 + 1, p->axis2 + 1});
    return outs[0] ? GM_OK : error_code();
}

static gm_status diagonal_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const diagonal_param *p = param;
    if (p->offset < INT_MIN / 2 || p->offset > INT_MAX / 2)
        return rebuild_refuse("diagonal");
    return rebuilt(gm_diagonal(s, in[0], (int)p->offset, p->axis1, p->axis2), outs);
}

const gm_op diagonal_op = {.name = "diagonal",
                           .place = PLACE_INPUT,
                           .n_in = 1,
                           .n_out = 1,
                           .param_size = sizeof(diagonal_param),
                           .fields = diagonal_fields,
                           .infer = diagonal_infer,
                           .eval = diagonal_eval,
                           .vjp = diagonal_vjp,
                           .vmap = diagonal_vmap,
                           .rebuild = diagonal_rebuild};

static gm_array *diagonal(gm_scope *s, const char *op, gm_array *x, int offset, int axis1, int axis2) {
    diagonal_param p = {.offset = offset};
    int one, other;
    if (!x)
        return NULL;
    if (x->ndim < 2)
        return gm_fail(GM_EVALUE, "%s: an array with %d dimensions; expected at least 2", op, x->ndim), NULL;
    if (check_axis(op, axis1, x->ndim, &one) != GM_OK || check_axis(op, axis2, x->ndim, &other) != GM_OK)
        return NULL;
    if (one == other)
        return gm_fail(GM_EVALUE, "%s: axis1 and axis2 are both %d", op, one), NULL;
    p.axis1 = one;
    p.axis2 = other;
    return array_node(s, &diagonal_op, &x, 1, &p);
}

gm_array *gm_diagonal(gm_scope *s, gm_array *x, int offset, int axis1, int axis2) {
    return diagonal(s, "diagonal", x, offset, axis1, axis2);
}

gm_array *gm_diag(gm_scope *s, gm_array *x, int k) {
    if (x && (x->ndim < 1 || x->ndim > 2))
        return gm_fail(GM_EVALUE, "diag: an array with %d dimensions; expected 1 or 2", x->ndim), NULL;
    if (!x || x->ndim == 2)
        return diagonal(s, "diag", x, k, 0, 1);
    int64_t n = x->size + (k < 0 ? -(int64_t)k : k);
    return from_diagonal(s, x, n, n, k);
}

gm_array *gm_trace(gm_scope *s, gm_array *x, int offset, int axis1, int axis2, gm_dtype type) {
    gm_array *d = diagonal(s, "trace", x, offset, axis1, axis2);
    if (d && type < GM_DTYPE_COUNT)
        d = gm_astype(s, d, type);
    return gm_sum(s, d, 1, (const int[]){-1}, false);
}

/* ---- differences and products ---- */
gm_array *gm_diff(gm_scope *s, gm_array *x, int n, int axis) {
    int at;
    if (!x || check_axis("diff", axis, x->ndim, &at) != GM_OK)
        return NULL;
    if (n < 0)
        return gm_fail(GM_EVALUE, "diff: %d times; expected 0 or more", n), NULL;
    for (; n > 0 && x && x->shape[at] > 0; n--) {
        gm_array *next = part_of(s, x, at, 1, x->shape[at]), *before = part_of(s, x, at, 0, x->shape[at] - 1);
        x = (x->dtype == GM_BOOL ? gm_not_equal : gm_subtract)(s, next, before);
    }
    return x;
}

/* Axes of a and b alternate and are multiplied by broadcasting; then each pair is merged. */
gm_array *gm_kron(gm_scope *s, gm_array *a, gm_array *b) {
    int64_t shape_a[GM_MAX_NDIM], shape_b[GM_MAX_NDIM], shape[GM_MAX_NDIM];
    if (!a || !b)
        return NULL;
    if (a->size == 0 || b->size == 0)
        return gm_fail(GM_EVALUE, "kron: an array without elements"), NULL;
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    if (2 * ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "kron: %d dimensions: at most %d are supported", ndim, GM_MAX_NDIM / 2), NULL;
    for (int i = 0; i < ndim; i++) {
        int ia = i - (ndim - a->ndim), ib = i - (ndim - b->ndim);
        shape_a[2 * i] = ia < 0 ? 1 : a->shape[ia];
        shape_b[2 * i + 1] = ib < 0 ? 1 : b->shape[ib];
        shape_a[2 * i + 1] = shape_b[2 * i] = 1;
        shape[i] = shape_a[2 * i] * shape_b[2 * i + 1];
    }
    gm_array *product = gm_multiply(s, gm_reshape(s, a, 2 * ndim, shape_a), gm_reshape(s, b, 2 * ndim, shape_b));
    return product ? gm_reshape(s, product, ndim, shape) : NULL;
}
