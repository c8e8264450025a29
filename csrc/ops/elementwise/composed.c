/* composed.c - elementwise functions that are made of others, and comparisons of whole arrays. */
#include <float.h>
#include <math.h>
#include "core/trace.h"
#include "ops/ops.h"

static gm_array *constant(gm_scope *s, double value, const gm_array *like) {
    return like ? scalar_array(s, value, (gm_dtype)like->dtype) : NULL;
}

static gm_array *scaled(gm_scope *s, gm_array *x, double factor) {
    x = x ? gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype)) : NULL;
    return x ? gm_multiply(s, x, constant(s, factor, x)) : NULL;
}

gm_array *gm_positive(gm_scope *s, gm_array *x) {
    (void)s;
    return x;
}
gm_array *gm_conj(gm_scope *s, gm_array *x) { return gm_conjugate(s, x); }
gm_array *gm_degrees(gm_scope *s, gm_array *x) { return scaled(s, x, 57.2957795130823208768); }   /* 180 / pi */
gm_array *gm_radians(gm_scope *s, gm_array *x) { return scaled(s, x, 0.0174532925199432957692); } /* pi / 180 */

/* Integers have no digits after the point; digits before it are rounded in float32. */
gm_array *gm_round(gm_scope *s, gm_array *x, int decimals) {
    if (!x)
        return NULL;
    gm_dtype type = (gm_dtype)x->dtype;
    if (!dtype_is_inexact(type) && decimals >= 0)
        return x;
    if (decimals == 0)
        return round_even(s, x);
    double scale = pow(10, decimals);
    return gm_astype(s, scaled(s, round_even(s, scaled(s, x, scale)), 1 / scale), type);
}

static double greatest(gm_dtype t) {
    return t == GM_FLOAT16 ? 65504 : t == GM_BFLOAT16 ? 0x1.fep127 : t == GM_FLOAT64 ? DBL_MAX : (double)FLT_MAX;
}

gm_array *gm_nan_to_num(gm_scope *s, gm_array *x, double nan, const double *posinf, const double *neginf) {
    if (!x)
        return NULL;
    gm_dtype type = (gm_dtype)x->dtype;
    if (type == GM_COMPLEX64)
        return gm_fail(GM_EVALUE, "nan_to_num: not defined for complex64"), NULL;
    if (!dtype_is_inexact(type))
        return x;
    gm_array *y = gm_where(s, gm_isnan(s, x), constant(s, nan, x), x);
    y = gm_where(s, gm_isposinf(s, x), constant(s, posinf ? *posinf : greatest(type), x), y);
    return gm_where(s, gm_isneginf(s, x), constant(s, neginf ? *neginf : -greatest(type), x), y);
}

gm_array *gm_clip(gm_scope *s, gm_array *x, gm_array *low, gm_array *high) {
    if (!x || !low || !high)
        return NULL;
    if (array_is_none(low) && array_is_none(high))
        return gm_fail(GM_EVALUE, "clip: a_min and a_max are both None; at least one bound is needed"), NULL;
    for (int i = 0; i < 2; i++)
        if (!array_is_none(i ? high : low) && broadcast_check("clip", x, i ? high : low) != GM_OK)
            return NULL;
    if (!array_is_none(low))
        x = gm_maximum(s, x, low);
    return array_is_none(high) ? x : gm_minimum(s, x, high);
}

gm_array *gm_divmod(gm_scope *s, gm_array *a, gm_array *b, gm_array **remainder) {
    *remainder = NULL;
    if (!a || !b)
        return NULL;
    if (gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype) == GM_COMPLEX64)
        return gm_fail(GM_EVALUE, "divmod: not defined for complex64"), NULL;
    if (broadcast_check("divmod", a, b) != GM_OK)
        return NULL;
    *remainder = gm_remainder(s, a, b);
    return gm_floor_divide(s, a, b);
}

/* ---- comparisons ---- */
static gm_array *both_nan(gm_scope *s, gm_array *a, gm_array *b) {
    return gm_logical_and(s, gm_isnan(s, a), gm_isnan(s, b));
}

/* |a - b| <= atol + rtol * |b|; infinities are close to their equals only. */
static gm_array *close_by(gm_scope *s, const char *op, gm_array *a, gm_array *b, double rtol, double atol,
                          bool equal_nan) {
    if (!a || !b || broadcast_check(op, a, b) != GM_OK)
        return NULL;
    gm_dtype type = dtype_inexact(gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype));
    a = gm_astype(s, a, type);
    b = gm_astype(s, b, type);
    gm_array *distance = gm_abs(s, gm_subtract(s, a, b)), *size = gm_abs(s, b);
    if (!distance || !size)
        return NULL;
    gm_array *allowed = gm_add(s, constant(s, atol, size), gm_multiply(s, constant(s, rtol, size), size));
    gm_array *infinite = gm_logical_or(s, gm_isinf(s, a), gm_isinf(s, b));
    gm_array *close = gm_where(s, infinite, gm_equal(s, a, b), gm_less_equal(s, distance, allowed));
    return equal_nan ? gm_logical_or(s, close, both_nan(s, a, b)) : close;
}

gm_array *gm_isclose(gm_scope *s, gm_array *a, gm_array *b, double rtol, double atol, bool equal_nan) {
    return close_by(s, "isclose", a, b, rtol, atol, equal_nan);
}

gm_array *gm_allclose(gm_scope *s, gm_array *a, gm_array *b, double rtol, double atol, bool equal_nan) {
    return gm_all(s, close_by(s, "allclose", a, b, rtol, atol, equal_nan), -1, NULL, false);
}

gm_array *gm_array_equal(gm_scope *s, gm_array *a, gm_array *b, bool equal_nan) {
    if (!a || !b)
        return NULL;
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i];
    if (!same)
        return scalar_array(s, 0, GM_BOOL);
    gm_array *equal = gm_equal(s, a, b);
    return gm_all(s, equal_nan ? gm_logical_or(s, equal, both_nan(s, a, b)) : equal, -1, NULL, false);
}

/* ---- stop_gradient: the same value, from which no cotangent goes back ---- */
static gm_status stop_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    out->format = in[0]->format;
    return GM_OK;
}

static gm_status stop_eval(gm_array *out, gm_queue *q) {
    (void)q;
    array_share(out, out->in[0], out->in[0]->strides, 0);
    return GM_OK;
}

static gm_status stop_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(gm_stop_gradient(s, in[0]), outs);
}

const gm_op stop_gradient_op = {.name = "stop_gradient",
                                .place = PLACE_INPUT,
                                .n_in = 1,
                                .n_out = 1,
                                .nondiff = 1,
                                .constant = true,
                                .infer = stop_infer,
                                .eval = stop_eval,
                                .vmap = vmap_leading,
                                .rebuild = stop_rebuild};

gm_array *gm_stop_gradient(gm_scope *s, gm_array *x) { return array_node(s, &stop_gradient_op, &x, 1, NULL); }

/* ---- recompute: the same value, after which a gradient computes again what it reads (transform/grad.c), or, where it
 * ends, what is kept once more ---- */
typedef struct { int32_t what; } recompute_param;
static const gm_field recompute_fields[] = {{FIELD_INT, offsetof(recompute_param, what), "what", 1}, {0}};

static void recompute_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)s;
    (void)out;
    (void)in;
    grad[0] = cots[0];
}

const gm_op recompute_op = {.name = "recompute",
                            .place = PLACE_INPUT,
                            .n_in = 1,
                            .n_out = 1,
                            .param_size = sizeof(recompute_param),
                            .fields = recompute_fields,
                            .infer = stop_infer,
                            .eval = stop_eval,
                            .vjp = recompute_vjp,
                            .vmap = vmap_leading};

int recompute_what(const gm_array *node) { return ((const recompute_param *)node->param)->what; }
/* An x that depends on nothing that is differentiated begins a segment too: as a tracer it is found on the way back. */
gm_array *gm_recompute(gm_scope *s, gm_array *x, int what) {
    if (x && trace_depth() > 0 && !x->trace)
        x = gm_tracer(s, x);
    return array_node(s, &recompute_op, &x, 1, &(recompute_param){what});
}
