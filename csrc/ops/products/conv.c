/* conv.c - convolutions as users call them: input [N, spatial ..., C_in], weight [C_out, spatial ..., C_in / groups].
 * All of them are the node of conv_node.c. */
#include <string.h>
#include "ops/products/conv.h"

static bool repeated(const char *what, int given, int n, int64_t *list) {
    if (given == -1) /* one number for all */
        for (int i = 1; i < n; i++)
            list[i] = list[0];
    else if (given != n)
        return gm_fail(GM_EVALUE, "conv: %d %s for %d spatial dimensions", given, what, n), false;
    for (int i = 0; i < n; i++)
        if (list[i] < -INT32_MAX || list[i] > INT32_MAX)
            return gm_fail(GM_EVALUE, "conv: %lld among the %s, expected numbers within int32", (long long)list[i],
                           what),
                   false;
    return true;
}

/* Lists of one number are for all axes; positive where they must be. */
static bool check_sizes(gm_conv_sizes *c, int n) {
    if (!repeated("strides", c->n_stride, n, c->stride) || !repeated("paddings", c->n_low, n, c->low) ||
        !repeated("paddings", c->n_high, n, c->high) || !repeated("dilations", c->n_dilation, n, c->dilation) ||
        !repeated("input dilations", c->n_input_dilation, n, c->input_dilation))
        return false;
    for (int i = 0; i < n; i++)
        if (c->stride[i] < 1 || c->dilation[i] < 1 || c->input_dilation[i] < 1)
            return gm_fail(GM_EVALUE, "conv: strides and dilations must be positive, got %lld, %lld and %lld",
                           (long long)c->stride[i], (long long)c->dilation[i], (long long)c->input_dilation[i]),
                   false;
    return true;
}

gm_array *gm_conv_general(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *given, int64_t groups,
                          bool flip) {
    if (!x || !w)
        return NULL;
    const int n = x->ndim - 2, axes[CONV_AXES] = {1, 2, 3};
    conv_param p = {groups, {1, 1, 1}, {0}, {0}, {1, 1, 1}, {1, 1, 1}, 0};
    gm_conv_sizes c = *given;
    if (n < 1 || n > CONV_AXES || w->ndim != x->ndim)
        return conv_checked(s, x, w, &p); /* says what is wrong */
    if (!check_sizes(&c, n))
        return NULL;
    for (int i = 0; i < n; i++) {
        p.stride[i] = c.stride[i];
        p.low[i] = c.low[i];
        p.high[i] = c.high[i];
        p.dilation[i] = c.dilation[i];
        p.spread[i] = c.input_dilation[i];
    }
    return conv_checked(s, x, flip ? gm_flip(s, w, n, axes) : w, &p);
}

/* The transpose of a convolution: the input spread by the stride, the kernel reversed. */
gm_array *gm_conv_transpose(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *given, int64_t groups) {
    if (!x || !w)
        return NULL;
    const int n = x->ndim - 2;
    gm_conv_sizes c = *given; /* input_dilation holds the output padding */
    if (n < 1 || n > CONV_AXES || w->ndim != x->ndim)
        return gm_conv_general(s, x, w, given, groups, true);
    for (int i = 0; i < n; i++)
        c.input_dilation[i] += 1; /* an output padding may be 0 */
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
    gm_array *gm_##name(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *sizes, int64_t groups) {           \
        return gm_conv_general(s, x, w, sizes, groups, false);                                                         \
    }
CONV(conv1d)
CONV(conv2d)
CONV(conv3d)
#define TRANSPOSED(name)                                                                                               \
    gm_array *gm_##name(gm_scope *s, gm_array *x, gm_array *w, const gm_conv_sizes *sizes, int64_t groups) {           \
        return gm_conv_transpose(s, x, w, sizes, groups);                                                              \
    }
TRANSPOSED(conv_transpose1d)
TRANSPOSED(conv_transpose2d)
TRANSPOSED(conv_transpose3d)

/* A convolution is linear in both: of complex numbers it is four of real ones. */
static gm_array *convolve_complex(gm_scope *s, gm_array *a, gm_array *v, const char *mode) {
    gm_array *part[2][2], *parts_a[2] = {gm_real(s, a), gm_imag(s, a)}, *parts_v[2] = {gm_real(s, v), gm_imag(s, v)};
    for (int i = 0; i < 4; i++)
        part[i / 2][i % 2] = gm_convolve(s, gm_astype(s, parts_a[i / 2], GM_FLOAT32),
                                         gm_astype(s, parts_v[i % 2], GM_FLOAT32), mode);
    gm_array *real = gm_subtract(s, part[0][0], part[1][1]), *imaginary = gm_add(s, part[0][1], part[1][0]);
    gm_array *unit = gm_array_from(s, GM_COMPLEX64, 0, NULL, (float[2]){0, 1});
    return gm_add(s, real, gm_multiply(s, imaginary, unit));
}

/* NumPy's convolve: v slides over a from its end to its start. */
gm_array *gm_convolve(gm_scope *s, gm_array *a, gm_array *v, const char *mode) {
    if (!a || !v)
        return NULL;
    if (a->ndim != 1 || v->ndim != 1 || a->size == 0 || v->size == 0)
        return gm_fail(GM_EVALUE,
                       "convolve: got arrays of %d and %d dimensions with %lld and %lld items, expected one "
                       "dimension and at least one item",
                       a->ndim, v->ndim, (long long)a->size, (long long)v->size),
               NULL;
    if (a->dtype == GM_COMPLEX64 || v->dtype == GM_COMPLEX64)
        return convolve_complex(s, a, v, mode);
    if (v->size > a->size) {
        gm_array *longer = v;
        v = a;
        a = longer;
    }
    const bool full = strcmp(mode, "full") == 0, same = strcmp(mode, "same") == 0;
    if (!full && !same && strcmp(mode, "valid") != 0)
        return gm_fail(GM_EVALUE, "convolve: mode '%.40s', expected 'full', 'same' or 'valid'", mode), NULL;
    const int64_t reach = v->size - 1;
    const gm_conv_sizes sizes = {
        1,   1,  1, 1, 1, {1}, {full ? reach : same ? reach - reach / 2 : 0}, {full ? reach : same ? reach / 2 : 0},
        {1}, {1}};
    gm_array *x = gm_reshape(s, a, 3, (int64_t[]){1, a->size, 1}), *w = gm_reshape(s, v, 3, (int64_t[]){1, v->size, 1});
    gm_array *out = gm_conv_general(s, x, w, &sizes, 1, true);
    return out ? gm_reshape(s, out, 1, &out->size) : NULL;
}
