/* fft.c - discrete Fourier transforms along one axis after another. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

/* Along the last axis; lines are truncated or padded with zeros to n items (of a half spectrum, n / 2 + 1). */
typedef struct {
    int32_t kind;
    int32_t inverse;
    int64_t n;
    double scale;
} fft_param;
static const gm_field fft_fields[] = {{FIELD_INT, offsetof(fft_param, kind), "kind", 1},
                                      {FIELD_INT, offsetof(fft_param, inverse), "inverse", 1},
                                      {FIELD_INT64, offsetof(fft_param, n), "n", 1},
                                      {FIELD_DOUBLE, offsetof(fft_param, scale), "scale", 1},
                                      {0}};

static gm_status fft_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const fft_param *p = param;
    spec_like(out, in[0], p->kind == GM_FFT_TO_REAL ? GM_FLOAT32 : GM_COMPLEX64);
    out->shape[out->ndim - 1] = p->kind == GM_FFT_FROM_REAL ? p->n / 2 + 1 : p->n;
    return GM_OK;
}

static gm_status fft_eval(gm_array *out, gm_queue *q) {
    const fft_param *p = out->param;
    const gm_array *x = out->in[0];
    const float *in = array_ptr(x);
    const int64_t items = x->shape[x->ndim - 1], lines = out->size / out->shape[out->ndim - 1];
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    if (!array_is_contiguous(x)) {
        int64_t strides[GM_MAX_NDIM];
        void *ordered = queue_scratch(q, (size_t)x->size * array_item(x) + 1);
        if (!ordered)
            return error_code();
        shape_strides(x->ndim, x->shape, strides);
        GM_TRY(launch_copy(q, (copy_to){ordered, (gm_dtype)x->dtype, strides},
                           (copy_from){in, (gm_dtype)x->dtype, x->strides}, x->ndim, x->shape));
        queue_fence(q);
        in = ordered;
    }
    return DISPATCH(q, fft, lines, .out = array_ptr(out), .in = in, .kind = (gm_fft_kind)p->kind, .inverse = p->inverse,
                    .n = p->n, .in_items = items, .scale = p->scale);
}

static gm_array *transform(gm_scope *s, gm_array *x, gm_fft_kind kind, bool inverse, int64_t n, double scale) {
    return array_node(s, &fft_op, &x, 1, &(fft_param){(int32_t)kind, inverse, n, scale});
}

/* The last axis truncated or padded with zeros to n items. */
static gm_array *fitted(gm_scope *s, gm_array *x, int64_t n) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    if (!x || x->shape[x->ndim - 1] == n)
        return x;
    for (int i = 0; i < x->ndim; i++) {
        stop[i] = x->shape[i];
        step[i] = 1;
    }
    int64_t have = stop[x->ndim - 1];
    stop[x->ndim - 1] = n;
    if (have > n)
        return gm_slice(s, x, start, stop, step);
    stop[x->ndim - 1] = n - have;
    gm_array *zeros = gm_broadcast_to(s, scalar_array(s, 0, (gm_dtype)x->dtype), x->ndim, stop);
    return gm_concatenate(s, (gm_array *[]){x, zeros}, 2, -1);
}

/* The adjoint: the transform the other way with the same factor. An item of half a spectrum represents two of the whole
 * one, except the first, and the last where n is even. */
static void fft_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const fft_param *p = out->param;
    int64_t items = in[0]->shape[in[0]->ndim - 1];
    gm_array *x;
    if (p->kind == GM_FFT_TO_REAL) {
        x = transform(s, cotangents[0], GM_FFT_FROM_REAL, !p->inverse, p->n, p->scale);
        gm_array *index = gm_arange(s, 0, (double)(p->n / 2 + 1), 1, GM_INT32), *two = scalar_array(s, 2, GM_FLOAT32);
        gm_array *one = scalar_array(s, 1, GM_FLOAT32), *zero = scalar_array(s, 0, GM_INT32);
        gm_array *weights = gm_where(s, gm_equal(s, index, zero), one, two);
        if (p->n % 2 == 0)
            weights = gm_where(s, gm_equal(s, index, scalar_array(s, (double)(p->n / 2), GM_INT32)), one, weights);
        x = gm_multiply(s, x, weights);
    } else {
        x = transform(s, cotangents[0], GM_FFT_COMPLEX, !p->inverse, p->n, p->scale);
        if (p->kind == GM_FFT_FROM_REAL)
            x = gm_real(s, x);
    }
    grad[0] = fitted(s, x, items);
}

static gm_status fft_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                             gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const fft_param *p = param;
    bool known = p->kind == GM_FFT_COMPLEX || p->kind == GM_FFT_FROM_REAL || p->kind == GM_FFT_TO_REAL;
    gm_dtype type = p->kind == GM_FFT_FROM_REAL ? GM_FLOAT32 : GM_COMPLEX64;
    if (!known || in[0]->dtype != type || in[0]->ndim < 1 || p->n < 1 || p->n > INT32_MAX)
        return rebuild_refuse("fft");
    return rebuilt(transform(s, in[0], (gm_fft_kind)p->kind, p->inverse != 0, p->n, p->scale), outs);
}

const gm_op fft_op = {.name = "fft",
                      .place = PLACE_FALLBACK,
                      .n_in = 1,
                      .n_out = 1,
                      .param_size = sizeof(fft_param),
                      .fields = fft_fields,
                      .fixed = 1,
                      .infer = fft_infer,
                      .eval = fft_eval,
                      .vjp = fft_vjp,
                      .vmap = vmap_leading,
                      .rebuild = fft_rebuild};

/* ---- along any axes ---- */
static gm_array *swapped(gm_scope *s, gm_array *x, int axis) {
    int axes[GM_MAX_NDIM];
    if (!x || axis == x->ndim - 1)
        return x;
    for (int i = 0; i < x->ndim; i++)
        axes[i] = i;
    axes[axis] = x->ndim - 1;
    axes[x->ndim - 1] = axis;
    return gm_transpose(s, x, x->ndim, axes);
}

static gm_status read_norm(const char *norm, bool inverse, int64_t n, double *scale) {
    if (strcmp(norm, "ortho") == 0)
        *scale = 1 / sqrt((double)n);
    else if (strcmp(norm, "backward") == 0)
        *scale = inverse ? 1 / (double)n : 1;
    else if (strcmp(norm, "forward") == 0)
        *scale = inverse ? 1 : 1 / (double)n;
    else
        return gm_fail(GM_EVALUE, "fft: norm '%s', expected 'backward', 'ortho' or 'forward'", norm);
    return GM_OK;
}

static gm_array *along(gm_scope *s, gm_array *x, gm_fft_kind kind, bool inverse, int64_t n, int axis,
                       const char *norm) {
    double scale = 1;
    if (read_norm(norm, inverse, n, &scale) != GM_OK)
        return NULL;
    x = swapped(s, gm_astype(s, x, kind == GM_FFT_FROM_REAL ? GM_FLOAT32 : GM_COMPLEX64), axis);
    return swapped(s, transform(s, x, kind, inverse, n, scale), axis);
}

/* n_sizes < 0: the sizes that x has; n_axes < 0: all axes. Of real transforms the last axis is the real one. */
typedef struct {
    bool real, inverse;
    const char *norm;
} fft_mode;

static gm_array *fftn(gm_scope *s, gm_array *x, fft_mode mode, int n_sizes, const int64_t *sizes, int n_axes,
                      const int *axes) {
    const bool real = mode.real, inverse = mode.inverse;
    int64_t n[GM_MAX_NDIM];
    int at[GM_MAX_NDIM];
    if (!x)
        return NULL;
    if (n_axes < 0 && n_sizes >= 0)
        return gm_fail(GM_EVALUE, "fft: sizes are given without axes, expected both"), NULL;
    if (n_axes < 0 && x->ndim == 0)
        return gm_fail(GM_EVALUE, "fft: got no dimensions, expected at least one"), NULL;
    if (n_sizes >= 0 && n_sizes != n_axes)
        return gm_fail(GM_EVALUE, "fft: %d sizes for %d axes", n_sizes, n_axes), NULL;
    int count = n_axes < 0 ? x->ndim : n_axes;
    for (int i = 0; i < count; i++) {
        if (check_axis("fft", n_axes < 0 ? i : axes[i], x->ndim, &at[i]) != GM_OK)
            return NULL;
        for (int j = 0; j < i; j++)
            if (at[j] == at[i])
                return gm_fail(GM_EVALUE, "fft: axis %d is given twice", at[i]), NULL;
        n[i] = n_sizes >= 0                        ? sizes[i]
               : real && inverse && i == count - 1 ? 2 * (x->shape[at[i]] - 1)
                                                   : x->shape[at[i]];
        if (n[i] < 1)
            return gm_fail(GM_EVALUE, "fft: a length of %lld, expected at least 1", (long long)n[i]), NULL;
    }
    if (real && !inverse && count)
        x = along(s, x, GM_FFT_FROM_REAL, false, n[count - 1], at[count - 1], mode.norm);
    for (int i = real ? count - 2 : count - 1; i >= 0; i--)
        x = along(s, x, GM_FFT_COMPLEX, inverse, n[i], at[i], mode.norm);
    if (real && inverse && count)
        x = along(s, x, GM_FFT_TO_REAL, true, n[count - 1], at[count - 1], mode.norm);
    return x;
}

#define TRANSFORM(name, real, inverse)                                                                                 \
    gm_array *gm_##name(gm_scope *s, gm_array *x, int n_sizes, const int64_t *sizes, int n_axes, const int *axes,      \
                        const char *norm) {                                                                            \
        return fftn(s, x, (fft_mode){real, inverse, norm}, n_sizes, sizes, n_axes, axes);                              \
    }
TRANSFORM(fft, false, false)
TRANSFORM(fft2, false, false)
TRANSFORM(fftn, false, false)
TRANSFORM(ifft, false, true)
TRANSFORM(ifft2, false, true)
TRANSFORM(ifftn, false, true)
TRANSFORM(rfft, true, false)
TRANSFORM(rfft2, true, false)
TRANSFORM(rfftn, true, false)
TRANSFORM(irfft, true, true)
TRANSFORM(irfft2, true, true)
TRANSFORM(irfftn, true, true)

/* ---- frequencies and shifts ---- */
/* k / (n d) for whole k from first to last - 1 */
static gm_array *frequencies(gm_scope *s, int64_t first, int64_t last, int n, double d) {
    return gm_multiply(s, gm_arange(s, (double)first, (double)last, 1, GM_FLOAT64),
                       scalar_array(s, 1 / (n * d), GM_FLOAT64));
}

static gm_status check_frequencies(const char *name, int n, double d) {
    if (n < 1)
        return gm_fail(GM_EVALUE, "%s: n is %d, expected at least 1", name, n);
    return d == 0 ? gm_fail(GM_EVALUE, "%s: d is 0, expected another number", name) : GM_OK;
}

gm_array *gm_fftfreq(gm_scope *s, int n, double d) {
    if (check_frequencies("fftfreq", n, d) != GM_OK)
        return NULL;
    gm_array *parts[2] = {frequencies(s, 0, (n + 1) / 2, n, d), frequencies(s, -(n / 2), 0, n, d)};
    return parts[0] && parts[1] ? gm_astype(s, gm_concatenate(s, parts, 2, 0), GM_FLOAT32) : NULL;
}

gm_array *gm_rfftfreq(gm_scope *s, int n, double d) {
    if (check_frequencies("rfftfreq", n, d) != GM_OK)
        return NULL;
    return gm_astype(s, frequencies(s, 0, n / 2 + 1, n, d), GM_FLOAT32);
}

/* Items from `from` on first, then those before. */
static gm_array *rotated(gm_scope *s, gm_array *x, int axis, int64_t from) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    gm_array *parts[2];
    if (!x || x->shape[axis] < 2)
        return x;
    for (int i = 0; i < x->ndim; i++) {
        stop[i] = x->shape[i];
        step[i] = 1;
    }
    start[axis] = from;
    parts[0] = gm_slice(s, x, start, stop, step);
    start[axis] = 0;
    stop[axis] = from;
    parts[1] = gm_slice(s, x, start, stop, step);
    return parts[0] && parts[1] ? gm_concatenate(s, parts, 2, axis) : NULL;
}

static gm_array *shifted(gm_scope *s, const char *name, gm_array *x, int n_axes, const int *axes, bool back) {
    int axis;
    for (int i = 0; x && i < (n_axes < 0 ? x->ndim : n_axes); i++) {
        if (check_axis(name, n_axes < 0 ? i : axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        int64_t n = x->shape[axis];
        x = rotated(s, x, axis, back ? n / 2 : (n + 1) / 2);
    }
    return x;
}

gm_array *gm_fftshift(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    return shifted(s, "fftshift", x, n_axes, axes, false);
}

gm_array *gm_ifftshift(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    return shifted(s, "ifftshift", x, n_axes, axes, true);
}
