/* conv_node.c - the convolution as a node: input [N, spatial ..., groups * C], weight [groups * F, taps ..., C], result
 * [N, spatial ..., groups * F]. What users call is in conv.c. */
#include <string.h>
#include "ops/products/conv.h"

enum { IN_X, IN_W };
static const gm_field conv_fields[] = {{FIELD_INT64, offsetof(conv_param, groups), "groups", 1},
                                       {FIELD_INT64, offsetof(conv_param, stride), "stride", CONV_AXES},
                                       {FIELD_INT64, offsetof(conv_param, low), "padding before", CONV_AXES},
                                       {FIELD_INT64, offsetof(conv_param, high), "padding after", CONV_AXES},
                                       {FIELD_INT64, offsetof(conv_param, dilation), "dilation", CONV_AXES},
                                       {FIELD_INT64, offsetof(conv_param, spread), "input dilation", CONV_AXES},
                                       {FIELD_INT64, offsetof(conv_param, sized), "sized", 1},
                                       {0}};

/* Items of an axis with the zeros between them and the padding around. */
static int64_t padded_items(const conv_param *p, int axis, int64_t items) {
    const int64_t wide = items > 0 ? (items - 1) * p->spread[axis] + 1 : 0;
    return wide + p->low[axis] + p->high[axis];
}

static gm_status conv_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const conv_param *p = param;
    const gm_array *x = in[IN_X], *w = in[IN_W];
    if (x->shape[x->ndim - 1] != p->groups * w->shape[x->ndim - 1]) /* of a shapeless function: not seen before */
        return gm_fail(GM_ESHAPE, "conv: %lld channels for a weight of %lld in %lld groups",
                       (long long)x->shape[x->ndim - 1], (long long)w->shape[x->ndim - 1], (long long)p->groups);
    out->dtype = (gm_dtype)x->dtype;
    out->ndim = x->ndim;
    out->shape[0] = x->shape[0];
    out->shape[x->ndim - 1] = w->shape[0];
    for (int i = 0; i < x->ndim - 2; i++) {
        const int64_t items = padded_items(p, i, x->shape[i + 1]), reach = p->dilation[i] * (w->shape[i + 1] - 1) + 1;
        if (items < reach)
            return gm_fail(GM_ESHAPE, "conv: %lld items of spatial axis %d after padding; the weight reaches over %lld",
                           (long long)items, i, (long long)reach);
        out->shape[i + 1] = (items - reach) / p->stride[i] + 1;
    }
    return GM_OK;
}

/* Axes that x does not have are of size 1. */
static void set_geometry(gm_convolution_args *c, const gm_array *out, const int64_t *x_strides) {
    const gm_array *x = out->in[IN_X], *w = out->in[IN_W];
    const conv_param *p = out->param;
    const int n = out->ndim - 2;
    c->image = x_strides[0];
    for (int d = 0; d < 3; d++) {
        const int i = d - (3 - n);
        c->in[d] = i < 0 ? 1 : x->shape[i + 1];
        c->positions[d] = i < 0 ? 1 : out->shape[i + 1];
        c->taps[d] = i < 0 ? 1 : w->shape[i + 1];
        c->stride[d] = i < 0 ? 1 : p->stride[i];
        c->low[d] = i < 0 ? 0 : p->low[i];
        c->dilation[d] = i < 0 ? 1 : p->dilation[i];
        c->spread[d] = i < 0 ? 1 : p->spread[i];
        c->steps[d] = i < 0 ? 0 : x_strides[i + 1];
    }
}

static gm_status conv_eval(gm_array *out, gm_queue *q) {
    gm_array *x = out->in[IN_X], *w = out->in[IN_W];
    const int last = out->ndim - 1;
    const conv_param *p = out->param;
    const void *image = array_ptr(x), *weights;
    int64_t strides[GM_MAX_NDIM];
    memcpy(strides, x->strides, (size_t)x->ndim * sizeof *strides);
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    if (x->strides[last] != 1 && x->shape[last] > 1) {
        GM_TRY(dense_operand(q, x, &image));
        shape_strides(x->ndim, x->shape, strides);
    }
    GM_TRY(dense_operand(q, w, &weights));
    gm_convolution_args c = {.out = array_ptr(out),
                             .x = image,
                             .w = weights,
                             .type = out->dtype,
                             .groups = p->groups,
                             .channels = w->shape[last],
                             .filters = w->shape[0] / p->groups};
    set_geometry(&c, out, strides);
    return DISPATCH_ARGS(q, convolution, out->shape[0], &c);
}

static gm_array *conv_node(gm_scope *s, gm_array *x, gm_array *w, const conv_param *p) {
    gm_array *in[2] = {x, w};
    return array_node(s, &conv_op, in, 2, p);
}

/* [a * groups, ..., b] as [b * groups, ..., a]: each group's outer axes exchanged. */
static gm_array *exchanged(gm_scope *s, gm_array *x, int64_t groups) {
    int64_t shape[CONV_AXES + 3];
    int axes[CONV_AXES + 3], n = x ? x->ndim : 0;
    if (!x)
        return NULL;
    shape[0] = groups;
    shape[1] = x->shape[0] / groups;
    axes[0] = 0;
    axes[1] = n;
    axes[n] = 1;
    for (int i = 1; i < n; i++) {
        shape[i + 1] = x->shape[i];
        if (i < n - 1)
            axes[i + 1] = i + 1;
    }
    x = gm_transpose(s, gm_reshape(s, x, n + 1, shape), n + 1, axes);
    if (!x)
        return NULL;
    memcpy(shape, x->shape + 1, (size_t)n * sizeof *shape);
    shape[0] *= groups;
    return gm_reshape(s, x, n, shape);
}

/* `spread` - 1 zeros after each item of an axis but the last. */
static gm_array *spread_out(gm_scope *s, gm_array *x, int axis, int64_t spread) {
    int64_t shape[CONV_AXES + 3], low[CONV_AXES + 3] = {0}, high[CONV_AXES + 3] = {0}, step[CONV_AXES + 3];
    if (!x || spread == 1)
        return x;
    const int n = x->ndim;
    for (int i = 0; i <= n; i++)
        shape[i] = i <= axis ? x->shape[i] : i == axis + 1 ? 1 : x->shape[i - 1];
    gm_array *wide = gm_reshape(s, x, n + 1, shape);
    high[axis + 1] = spread - 1;
    wide = gm_pad(s, wide, low, high, GM_PAD_CONSTANT, scalar_array(s, 0, (gm_dtype)x->dtype));
    for (int i = 0; i < n; i++) {
        shape[i] = i == axis ? x->shape[i] * spread : x->shape[i];
        high[i] = i == axis ? (x->shape[i] - 1) * spread + 1 : x->shape[i];
        step[i] = 1;
    }
    return gm_slice(s, gm_reshape(s, wide, n, shape), low, high, step);
}

/* x with its zeros in between and around; negative padding cuts. */
static gm_array *padded(gm_scope *s, gm_array *x, const conv_param *p) {
    int64_t low[CONV_AXES + 2] = {0}, high[CONV_AXES + 2] = {0}, start[CONV_AXES + 2] = {0}, stop[CONV_AXES + 2];
    int64_t step[CONV_AXES + 2];
    const int n = x->ndim - 2;
    for (int i = 0; i < n; i++)
        x = spread_out(s, x, i + 1, p->spread[i]);
    if (!x)
        return NULL;
    for (int i = 0; i < n + 2; i++) {
        const bool spatial = i >= 1 && i <= n;
        const int64_t before = spatial ? p->low[i - 1] : 0, after = spatial ? p->high[i - 1] : 0;
        low[i] = before > 0 ? before : 0;
        high[i] = after > 0 ? after : 0;
        start[i] = before < 0 ? -before : 0;
        stop[i] = x->shape[i] + (after < 0 ? after : 0);
        step[i] = 1;
    }
    x = gm_slice(s, x, start, stop, step);
    return gm_pad(s, x, low, high, GM_PAD_CONSTANT, scalar_array(s, 0, x ? (gm_dtype)x->dtype : GM_FLOAT32));
}

/* The weight's gradient: the cotangents of all output positions times the windows of the padded input, laid out in
 * memory. */
static gm_array *grad_of_dense(gm_scope *s, gm_array *out, gm_array *x, gm_array *w, gm_array *cot) {
    const conv_param *p = out->param;
    const int n = out->ndim - 2;
    const int64_t channels = w->shape[n + 1], filters = w->shape[0] / p->groups;
    int64_t own[CONV_AXES + 2], shape[2 * CONV_AXES + 3], strides[2 * CONV_AXES + 3], positions = out->shape[0];
    x = padded(s, x, p);
    if (!x)
        return NULL;
    shape_strides(n + 2, x->shape, own);
    shape[0] = p->groups;
    strides[0] = channels;
    shape[1] = x->shape[0];
    strides[1] = own[0];
    for (int i = 0; i < n; i++) {
        shape[2 + i] = out->shape[i + 1];
        strides[2 + i] = own[i + 1] * p->stride[i];
        shape[2 + n + i] = w->shape[i + 1];
        strides[2 + n + i] = own[i + 1] * p->dilation[i];
        positions *= out->shape[i + 1];
    }
    shape[2 + 2 * n] = channels;
    strides[2 + 2 * n] = 1;
    gm_array *windows = gm_as_strided(s, x, 3 + 2 * n, shape, strides, 0);
    windows = gm_reshape(s, windows, 3, (int64_t[]){p->groups, positions, w->size / w->shape[0]});
    gm_array *filter = gm_reshape(s, cot, 3, (int64_t[]){positions, p->groups, filters});
    filter = gm_transpose(s, filter, 3, (int[]){1, 2, 0});
    return gm_reshape(s, gm_matmul(s, filter, windows), n + 2, w->shape);
}

enum { SEPARATE_TAPS = 512 }; /* at most, for this way to a gradient */

/* The same where each channel has a filter of its own: tap by tap, sums over all positions, of products that are not
 * rounded to 16 bits. */
static gm_array *grad_of_separate(gm_scope *s, gm_array *out, gm_array *x, gm_array *w, gm_array *cot, int64_t taps) {
    const conv_param *p = out->param;
    const int n = out->ndim - 2;
    gm_array *sums[SEPARATE_TAPS];
    const gm_dtype type = (gm_dtype)x->dtype, wide = type == GM_FLOAT64 ? type : GM_FLOAT32;
    x = gm_astype(s, padded(s, x, p), wide);
    cot = gm_astype(s, cot, wide);
    if (!x)
        return NULL;
    for (int64_t t = 0; t < taps; t++) {
        int64_t start[CONV_AXES + 2] = {0}, stop[CONV_AXES + 2], step[CONV_AXES + 2];
        int axes[CONV_AXES + 1];
        for (int64_t i = n + 1, rest = t; i >= 0; i--) {
            const bool spatial = i >= 1 && i <= n;
            step[i] = spatial ? p->stride[i - 1] : 1;
            start[i] = spatial ? rest % w->shape[i] * p->dilation[i - 1] : 0;
            stop[i] = spatial ? start[i] + (out->shape[i] - 1) * step[i] + 1 : x->shape[i];
            if (spatial)
                rest /= w->shape[i];
            if (i <= n)
                axes[i] = (int)i;
        }
        sums[t] = gm_sum(s, gm_multiply(s, gm_slice(s, x, start, stop, step), cot), n + 1, axes, false);
        if (!sums[t])
            return NULL;
    }
    return gm_astype(s, gm_reshape(s, gm_stack(s, sums, (int)taps, 1), n + 2, w->shape), type);
}

/* With K taps, I items of x and O of the result along an axis, item p of the spread, padded x meets tap t at output
 * position o where p = o * stride + t * dilation. So dx is the cotangents, spread by the stride, under the taps in
 * reverse; every spread-th item is one of x. */
static void conv_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    gm_array *x = in[IN_X], *w = in[IN_W], *cot = cotangents[0];
    const conv_param *p = out->param;
    const int n = x->ndim - 2, axes[CONV_AXES] = {1, 2, 3};
    conv_param to_x = {.groups = p->groups, .sized = 1};
    int64_t taps = 1;
    if (x->size == 0 || w->size == 0 || cot->size == 0) {
        grad[IN_X] = gm_zeros(s, x->ndim, x->shape, (gm_dtype)x->dtype);
        grad[IN_W] = gm_zeros(s, w->ndim, w->shape, (gm_dtype)w->dtype);
        return;
    }
    for (int i = 0; i < CONV_AXES; i++) {
        const bool here = i < n;
        const int64_t reach = here ? p->dilation[i] * (w->shape[i + 1] - 1) : 0;
        const int64_t end = here ? (x->shape[i + 1] - 1) * p->spread[i] : 0;
        const int64_t last = here ? (out->shape[i + 1] - 1) * p->stride[i] : 0;
        to_x.stride[i] = p->spread[i];
        to_x.spread[i] = p->stride[i];
        to_x.dilation[i] = p->dilation[i];
        to_x.low[i] = reach - p->low[i];
        to_x.high[i] = end + p->low[i] - last;
        taps *= here ? w->shape[i + 1] : 1;
    }
    grad[IN_X] = conv_node(s, cot, gm_flip(s, exchanged(s, w, p->groups), n, axes), &to_x);
    const bool separate = w->shape[n + 1] == 1 && w->shape[0] == p->groups && p->groups > 1 && taps <= SEPARATE_TAPS;
    grad[IN_W] = separate ? grad_of_separate(s, out, x, w, cot, taps) : grad_of_dense(s, out, x, w, cot);
}

/* [batch, ..., c] as [..., batch * c]. */
static gm_array *batch_into_channels(gm_scope *s, gm_array *x) {
    int64_t shape[CONV_AXES + 3];
    x = gm_moveaxis(s, x, 0, x ? x->ndim - 2 : 0);
    if (!x)
        return NULL;
    memcpy(shape, x->shape, (size_t)(x->ndim - 1) * sizeof *shape);
    shape[x->ndim - 2] *= x->shape[x->ndim - 1];
    return gm_reshape(s, x, x->ndim - 1, shape);
}

/* A batch of images is more images; of weights, more groups. */
static gm_status conv_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    conv_param p = *(const conv_param *)out->param;
    const int64_t batch = batch_size(in, 2, batched);
    const int n = out->ndim;
    int64_t shape[CONV_AXES + 3];
    gm_array *x = batched_input(s, in[IN_X], batched[IN_X], batch), *w = in[IN_W];
    if (!x)
        return error_code();
    if (!batched[IN_W]) {
        memcpy(shape, x->shape + 1, (size_t)n * sizeof *shape);
        shape[0] *= batch;
        gm_array *y = conv_node(s, gm_reshape(s, x, n, shape), w, &p);
        shape[0] = batch;
        memcpy(shape + 1, out->shape, (size_t)n * sizeof *shape);
        outs[0] = gm_reshape(s, y, n + 1, shape);
    } else {
        memcpy(shape, w->shape + 1, (size_t)n * sizeof *shape);
        shape[0] *= batch;
        p.groups *= batch;
        gm_array *y = conv_node(s, batch_into_channels(s, x), gm_reshape(s, w, n, shape), &p);
        memcpy(shape, out->shape, (size_t)(n - 1) * sizeof *shape);
        shape[n - 1] = batch;
        shape[n] = out->shape[n - 1];
        outs[0] = gm_moveaxis(s, gm_reshape(s, y, n + 1, shape), n - 1, 0);
    }
    return outs[0] ? GM_OK : error_code();
}

static gm_status conv_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    const conv_param *p = param;
    const int64_t most = INT32_MAX;
    (void)n_in;
    (void)n_out;
    for (int i = 0; i < CONV_AXES; i++)
        if (p->stride[i] < 1 || p->dilation[i] < 1 || p->spread[i] < 1 || p->stride[i] > most ||
            p->dilation[i] > most || p->spread[i] > most || p->low[i] < -most || p->low[i] > most ||
            p->high[i] < -most || p->high[i] > most)
            return rebuild_refuse("conv");
    return within(p->sized, 2) ? rebuilt(conv_checked(s, in[IN_X], in[IN_W], p), outs) : rebuild_refuse("conv");
}

static bool conv_is_fixed(const void *param) { return ((const conv_param *)param)->sized != 0; }

const gm_op conv_op = {.name = "conv",
                       .n_in = 2,
                       .n_out = 1,
                       .fixed = FIXED_ALL,
                       .is_fixed = conv_is_fixed,
                       .param_size = sizeof(conv_param),
                       .fields = conv_fields,
                       .infer = conv_infer,
                       .eval = conv_eval,
                       .vjp = conv_vjp,
                       .vmap = conv_vmap,
                       .rebuild = conv_rebuild};

gm_array *conv_checked(gm_scope *s, gm_array *x, gm_array *w, const conv_param *p) {
    char tx[128], tw[128];
    if (!x || !w)
        return NULL;
    const int n = x->ndim - 2;
    const gm_dtype type = gm_promote((gm_dtype)x->dtype, (gm_dtype)w->dtype);
    shape_text(x->ndim, x->shape, tx);
    shape_text(w->ndim, w->shape, tw);
    if (!dtype_is_float(type) || !dtype_is_float((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "conv: got %s and %s, expected floating point", gm_dtype_name((gm_dtype)x->dtype),
                       gm_dtype_name((gm_dtype)w->dtype)),
               NULL;
    if (n < 1 || n > CONV_AXES || w->ndim != n + 2)
        return gm_fail(GM_EVALUE,
                       "conv: input %s and weight %s; expected [N, ..., C_in] and "
                       "[C_out, ..., C_in / groups]",
                       tx, tw),
               NULL;
    if (p->groups < 1 || x->shape[n + 1] % p->groups || w->shape[0] % p->groups)
        return gm_fail(GM_EVALUE, "conv: the channels of input %s and weight %s are not divisible by %lld groups", tx,
                       tw, (long long)p->groups),
               NULL;
    if (x->shape[n + 1] / p->groups != w->shape[n + 1])
        return gm_fail(GM_ESHAPE, "conv: the channels of input %s and weight %s do not match for %lld groups", tx, tw,
                       (long long)p->groups),
               NULL;
    return conv_node(s, gm_astype(s, x, type), gm_astype(s, w, type), p);
}
