/* conv.c - convolutions: input [N, spatial ..., C_in], weight [C_out, spatial ..., C_in / groups].
 * The windows of the (dilated, padded) input are a strided view of it; a matrix product does the rest, and gradients
 * follow from both. */
#include <string.h>
#include "ops/ops.h"

#define MOST_AXES 3

static bool repeated(const char *what, int given, int n, gm_conv_sizes *c, int64_t *list) {
    if (given == -1)               /* one number for all */
        for (int i = 1; i < n; i++)
            list[i] = list[0];
    else if (given != n)
        return gm_fail(GM_EVALUE, "conv: %d %s for %d spatial dimensions", given, what, n), false;
    (void)c;
    return true;
}

/* Lists of one number are for all axes; positive where they must be. */
static bool check_sizes(gm_conv_sizes *c, int n) {
    if (!repeated("strides", c->n_stride, n, c, c->stride) || !repeated("paddings", c->n_low, n, c, c->low) ||
        !repeated("paddings", c->n_high, n, c, c->high) || !repeated("dilations", c->n_dilation, n, c, c->dilation) ||
        !repeated("input dilations", c->n_input_dilation, n, c, c->input_dilation))
        return false;
    for (int i = 0; i < n; i++)
        if (c->stride[i] < 1 || c->dilation[i] < 1 || c->input_dilation[i] < 1)
            return gm_fail(GM_EVALUE, "conv: strides and dilations must be positive, got %lld, %lld and %lld",
                           (long long)c->stride[i], (long long)c->dilation[i], (long long)c->input_dilation[i]), false;
    return true;
}

static bool check_operands(const gm_array *x, const gm_array *w, int n, int64_t groups, gm_dtype type) {
    char tx[128], tw[128];
    shape_text(x->ndim, x->shape, tx);
    shape_text(w->ndim, w->shape, tw);
    if (!dtype_is_float(type) || !dtype_is_float((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "conv: got %s, expected floating point", gm_dtype_name((gm_dtype)x->dtype)), false;
    if (n < 1 || n > MOST_AXES || x->ndim != n + 2 || w->ndim != n + 2)
        return gm_fail(GM_EVALUE, "conv: input %s and weight %s for %d spatial dimensions; expected [N, ..., C_in] and "
                       "[C_out, ..., C_in / groups]", tx, tw, n), false;
    if (groups < 1 || x->shape[n + 1] % groups || w->shape[0] % groups)
        return gm_fail(GM_EVALUE, "conv: the channels of input %s and weight %s are not divisible by %lld groups", tx,
                       tw, (long long)groups), false;
    if (x->shape[n + 1] / groups != w->shape[n + 1])
        return gm_fail(GM_ESHAPE, "conv: the channels of input %s and weight %s do not match for %lld groups", tx, tw,
                       (long long)groups), false;
    return true;
}

/* `dilation` - 1 zeros after each item of an axis but the last. */
static gm_array *spread(gm_scope *s, gm_array *x, int axis, int64_t dilation) {
    if (!x || dilation == 1 || x->shape[axis] == 0)
        return x;
    int64_t shape[GM_MAX_NDIM], low[GM_MAX_NDIM] = {0}, high[GM_MAX_NDIM] = {0}, step[GM_MAX_NDIM];
    int n = x->ndim;
    for (int i = 0; i <= n; i++)
        shape[i] = i <= axis ? x->shape[i] : i == axis + 1 ? 1 : x->shape[i - 1];
    gm_array *wide = gm_reshape(s, x, n + 1, shape);
    high[axis + 1] = dilation - 1;
    wide = gm_pad(s, wide, low, high, GM_PAD_CONSTANT, scalar_array(s, 0, (gm_dtype)x->dtype));
    for (int i = 0; i < n; i++) {
        shape[i] = i == axis ? x->shape[i] * dilation : x->shape[i];
        high[i] = i == axis ? (x->shape[i] - 1) * dilation + 1 : x->shape[i];
        step[i] = 1;
    }
    return gm_slice(s, gm_reshape(s, wide, n, shape), low, high, step);
}

/* Padding before and after each spatial axis; negative padding cuts. */
static gm_array *padded(gm_scope *s, gm_array *x, int n, const gm_conv_sizes *c) {
    int64_t low[GM_MAX_NDIM] = {0}, high[GM_MAX_NDIM] = {0}, start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM],
            step[GM_MAX_NDIM];
    bool pads = false, cuts = false;
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++) {
        stop[i] = x->shape[i];
        step[i] = 1;
        if (i < 1 || i > n)
            continue;
        const int64_t before = c->low[i - 1], after = c->high[i - 1];
        low[i] = before > 0 ? before : 0;
        high[i] = after > 0 ? after : 0;
        start[i] = before < 0 ? -before : 0;
        stop[i] = x->shape[i] + (after < 0 ? after : 0);
        stop[i] = stop[i] < start[i] ? start[i] : stop[i];
        pads |= low[i] || high[i];
        cuts |= before < 0 || after < 0;
    }
    if (cuts)
        x = gm_slice(s, x, start, stop, step);
    return pads ? gm_pad(s, x, low, high, GM_PAD_CONSTANT, scalar_array(s, 0, x ? (gm_dtype)x->dtype : GM_FLOAT32)) : x;
}

gm_array *gm_conv_general(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *given, int64_t groups, bool flip) {
    if (!x || !w)
        return NULL;
    const int n = x->ndim - 2;
    gm_conv_sizes c = *given;
    gm_dtype type = gm_promote((gm_dtype)x->dtype, (gm_dtype)w->dtype);
    if (!check_operands(x, w, n, groups, type) || !check_sizes(&c, n))
        return NULL;
    x = gm_astype(s, x, type);
    w = gm_astype(s, w, type);
    for (int i = 0; i < n; i++)
        x = spread(s, x, i + 1, c.input_dilation[i]);
    x = padded(s, x, n, &c);
    if (!x || !w)
        return NULL;
    /* Windows: [groups, N, out ..., kernel ..., C_in / groups] of the row-major memory of x. */
    const int64_t channels = x->shape[n + 1] / groups, filters = w->shape[0] / groups;
    int64_t own[GM_MAX_NDIM], shape[GM_MAX_NDIM], strides[GM_MAX_NDIM], out_shape[GM_MAX_NDIM];
    int64_t places = x->shape[0], width = channels;
    shape_strides(x->ndim, x->shape, own);
    shape[0] = groups;
    strides[0] = channels;
    shape[1] = out_shape[0] = x->shape[0];
    strides[1] = own[0];
    for (int i = 0; i < n; i++) {
        const int64_t reach = c.dilation[i] * (w->shape[i + 1] - 1) + 1;
        if (x->shape[i + 1] < reach)
            return gm_fail(GM_ESHAPE, "conv: %lld items of spatial axis %d after padding; the weight reaches over %lld",
                           (long long)x->shape[i + 1], i, (long long)reach), NULL;
        shape[2 + i] = out_shape[1 + i] = (x->shape[i + 1] - reach) / c.stride[i] + 1;
        strides[2 + i] = own[i + 1] * c.stride[i];
        shape[2 + n + i] = w->shape[i + 1];
        strides[2 + n + i] = own[i + 1] * c.dilation[i];
        places *= shape[2 + i];
        width *= w->shape[i + 1];
    }
    shape[2 + 2 * n] = channels;
    strides[2 + 2 * n] = 1;
    out_shape[n + 1] = w->shape[0];
    if (flip) {
        int axes[MOST_AXES] = {1, 2, 3};
        w = gm_flip(s, w, n, axes);
    }
    gm_array *windows = gm_as_strided(s, x, 3 + 2 * n, shape, strides, 0);
    windows = gm_reshape(s, windows, 3, (int64_t[]){groups, places, width});
    gm_array *filter = gm_transpose(s, gm_reshape(s, w, 3, (int64_t[]){groups, filters, width}), 3, (int[]){0, 2, 1});
    gm_array *out = gm_transpose(s, gm_matmul(s, windows, filter), 3, (int[]){1, 0, 2});
    return gm_reshape(s, out, n + 2, out_shape);
}

/* The transpose of a convolution: the input spread by the stride, the kernel turned round. */
gm_array *gm_conv_transpose(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *given, int64_t groups) {
    if (!x || !w)
        return NULL;
    const int n = x->ndim - 2;
    gm_conv_sizes c = *given;             /* input_dilation holds the output padding */
    if (n < 1 || n > MOST_AXES || w->ndim != x->ndim)
        return check_operands(x, w, n, groups, GM_FLOAT32) ? NULL : NULL;
    for (int i = 0; i < n; i++)
        c.input_dilation[i] += 1;         /* an output padding may be 0 */
    if (!check_sizes(&c, n))
        return NULL;
    for (int i = 0; i < n; i++) {
        const int64_t reach = c.dilation[i] * (w->shape[i + 1] - 1), extra = c.input_dilation[i] - 1;
        c.high[i] = reach - c.low[i] + extra;
        c.low[i] = reach - c.low[i];
        c.input_dilation[i] = c.stride[i];
        c.stride[i] = 1;
    }
    c.n_stride = c.n_low = c.n_high = c.n_dilation = c.n_input_dilation = n;
    return gm_conv_general(s, x, w, &c, groups, true);
}

#define CONV(name)                                                                                                     \
    gm_array *gm_##name(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *sizes, int64_t groups) {            \
        return gm_conv_general(s, x, w, sizes, groups, false);                                                         \
    }
CONV(conv1d)
CONV(conv2d)
CONV(conv3d)
#define TRANSPOSED(name)                                                                                               \
    gm_array *gm_##name(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *sizes, int64_t groups) {            \
        return gm_conv_transpose(s, x, w, sizes, groups);                                                              \
    }
TRANSPOSED(conv_transpose1d)
TRANSPOSED(conv_transpose2d)
TRANSPOSED(conv_transpose3d)

/* NumPy's convolve: v slides over a from its end to its start. */
gm_array *gm_convolve(gm_scope *s, gm_array *a, gm_array *v, const char *mode) {
    if (!a || !v)
        return NULL;
    if (a->ndim != 1 || v->ndim != 1 || a->size == 0 || v->size == 0)
        return gm_fail(GM_EVALUE, "convolve: got arrays of %d and %d dimensions with %lld and %lld items, expected one "
                       "dimension and at least one item", a->ndim, v->ndim, (long long)a->size, (long long)v->size), NULL;
    if (v->size > a->size) {
        gm_array *longer = v;
        v = a;
        a = longer;
    }
    const bool full = strcmp(mode, "full") == 0, same = strcmp(mode, "same") == 0;
    if (!full && !same && strcmp(mode, "valid") != 0)
        return gm_fail(GM_EVALUE, "convolve: mode '%.40s', expected 'full', 'same' or 'valid'", mode), NULL;
    const int64_t reach = v->size - 1;
    const gm_conv_sizes sizes = {1, 1, 1, 1, 1, {1}, {full ? reach : same ? reach - reach / 2 : 0},
                                 {full ? reach : same ? reach / 2 : 0}, {1}, {1}};
    gm_array *x = gm_reshape(s, a, 3, (int64_t[]){1, a->size, 1}), *w = gm_reshape(s, v, 3, (int64_t[]){1, v->size, 1});
    gm_array *out = gm_conv_general(s, x, w, &sizes, 1, true);
    return out ? gm_reshape(s, out, 1, &out->size) : NULL;
}
