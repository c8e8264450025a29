/* sdpa.c - softmax(scale q k^T + mask) v over plain arrays.
 * Source of the block-wise form: Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022. */
#include <float.h>
#include <string.h>
#include "core/device.h"
#include "ops/ops.h"

typedef struct {
    float scale;
    int32_t causal;
} sdpa_param;
static const gm_field sdpa_fields[] = {{FIELD_FLOAT, offsetof(sdpa_param, scale), "scale", 1},
                                       {FIELD_INT, offsetof(sdpa_param, causal), "causal", 1},
                                       {0}};
enum { IN_Q, IN_K, IN_V, IN_MASK, IN_SINKS, INPUTS };
static const char NAME[] = "scaled_dot_product_attention";

static gm_status check_shapes(const gm_array *q, const gm_array *k, const gm_array *v) {
    if (q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && q->shape[0] == k->shape[0] && k->shape[0] == v->shape[0] &&
        q->shape[3] == k->shape[3] && k->shape[1] == v->shape[1] && k->shape[2] == v->shape[2] && k->shape[1] != 0 &&
        q->shape[1] % k->shape[1] == 0)
        return GM_OK;
    char tq[128], tk[128], tv[128];
    array_text(q, tq);
    array_text(k, tk);
    array_text(v, tv);
    return gm_fail(GM_ESHAPE,
                   "%s: q %s, k %s, v %s; expected [B, Hq, T, D], [B, Hkv, S, D], [B, Hkv, S, Dv] with Hq a "
                   "multiple of Hkv",
                   NAME, tq, tk, tv);
}

/* All that the kernels count on: shapes may be others than those that gm_scaled_dot_product_attention saw, when a
 * traced function runs again or comes from a file. */
static gm_status sdpa_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *q = in[IN_Q], *k = in[IN_K], *v = in[IN_V], *mask = in[IN_MASK], *sinks = in[IN_SINKS];
    (void)n_in;
    (void)param;
    GM_TRY(check_shapes(q, k, v));
    bool fits = q->dtype == k->dtype && q->dtype == v->dtype && dtype_is_float((gm_dtype)q->dtype) &&
                q->dtype != GM_FLOAT64 && q->shape[3] <= GM_SDPA_DIM && v->shape[3] <= GM_SDPA_DIM;
    if (!array_is_none(mask))
        fits = fits && (mask->dtype == GM_BOOL || mask->dtype == q->dtype) && mask->ndim == 4 &&
               memcmp(mask->shape, q->shape, 3 * sizeof *q->shape) == 0 && mask->shape[3] == k->shape[2];
    if (!array_is_none(sinks))
        fits = fits && sinks->ndim == 1 && sinks->shape[0] == q->shape[1] && sinks->dtype < GM_DTYPE_COUNT;
    if (!fits)
        return gm_fail(GM_ESHAPE, "%s: mask, sinks or dtypes do not fit the shapes of q and k", NAME);
    spec_like(out, in[IN_Q], (gm_dtype)in[IN_Q]->dtype);
    out->shape[3] = in[IN_V]->shape[3];
    return GM_OK;
}

/* Strides of batch, head and row; a copy where rows are not contiguous. */
static gm_status rows_operand(gm_queue *q, const gm_array *a, const void **data, int64_t strides[3]) {
    memcpy(strides, a->strides, 3 * sizeof *strides);
    *data = array_ptr(a);
    if (a->strides[3] == 1 || a->shape[3] == 1)
        return GM_OK;
    strides[2] = a->shape[3];
    strides[1] = strides[2] * a->shape[2];
    strides[0] = strides[1] * a->shape[1];
    return dense_operand(q, a, data);
}

static gm_status mask_operand(gm_queue *q, const gm_array *mask, gm_sdpa_args *args) {
    args->mask_type = mask->dtype;
    args->mask = array_ptr(mask);
    memcpy(args->mask_strides, mask->strides, 4 * sizeof *mask->strides);
    if (mask->strides[3] == 1 || mask->strides[3] == 0)
        return GM_OK;
    shape_strides(4, mask->shape, args->mask_strides);
    return dense_operand(q, mask, &args->mask);
}

static gm_status sdpa_eval(gm_array *out, gm_queue *q) {
    const sdpa_param *p = out->param;
    gm_array **in = out->in;
    gm_sdpa_args a = {.type = out->dtype,
                      .batches = out->shape[0],
                      .n_heads = out->shape[1],
                      .n_kv_heads = in[IN_K]->shape[1],
                      .queries = out->shape[2],
                      .keys = in[IN_K]->shape[2],
                      .dim = in[IN_Q]->shape[3],
                      .value_dim = out->shape[3],
                      .scale = p->scale,
                      .causal = p->causal != 0};
    GM_TRY(rows_operand(q, in[IN_Q], &a.q, a.q_strides));
    GM_TRY(rows_operand(q, in[IN_K], &a.k, a.k_strides));
    GM_TRY(rows_operand(q, in[IN_V], &a.v, a.v_strides));
    if (!array_is_none(in[IN_MASK]) && a.keys)
        GM_TRY(mask_operand(q, in[IN_MASK], &a));
    if (!array_is_none(in[IN_SINKS]))
        GM_TRY(float_operand(q, in[IN_SINKS], &a.sinks));
    GM_TRY(array_alloc(out, q));
    a.out = array_ptr(out);
    return DISPATCH_ARGS(q, sdpa, a.batches * a.n_heads * a.queries, &a);
}

/* K and V are not repeated for the heads that share them: [B, kv, group, T, D] against [B, kv, 1, S, D]. */
static gm_array *sdpa_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    const sdpa_param *p = param;
    const gm_array *q = in[IN_Q], *k = in[IN_K], *v = in[IN_V];
    gm_dtype wide = q->dtype == GM_FLOAT64 ? GM_FLOAT64 : GM_FLOAT32;
    int64_t B = q->shape[0], heads = q->shape[1], T = q->shape[2], D = q->shape[3], kv = k->shape[1], S = k->shape[2],
            group = heads / kv;
    gm_array *lowest = scalar_array(s, wide == GM_FLOAT64 ? -DBL_MAX : -(double)FLT_MAX, wide);
    gm_array *rows = gm_multiply(s, gm_astype(s, in[IN_Q], wide), scalar_array(s, (double)p->scale, wide));
    rows = gm_reshape(s, rows, 5, (int64_t[]){B, kv, group, T, D});
    gm_array *keys = gm_reshape(s, gm_astype(s, in[IN_K], wide), 5, (int64_t[]){B, kv, 1, S, D});
    keys = gm_transpose(s, keys, 5, (int[]){0, 1, 2, 4, 3});
    gm_array *mask = array_is_none(in[IN_MASK]) ? NULL : gm_reshape(s, in[IN_MASK], 5, (int64_t[]){B, kv, group, T, S});
    const bool added = mask && mask->dtype != GM_BOOL;
    gm_array *scores = added ? gm_addmm(s, gm_astype(s, mask, wide), rows, keys, 1, 1) : gm_matmul(s, rows, keys);
    if (p->causal) {
        gm_array *row = gm_reshape(s, gm_arange(s, (double)(S - T), (double)S, 1, GM_INT32), 2, (int64_t[]){T, 1});
        gm_array *column = gm_reshape(s, gm_arange(s, 0, (double)S, 1, GM_INT32), 2, (int64_t[]){1, S});
        scores = gm_where(s, gm_less_equal(s, column, row), scores, lowest);
    }
    if (mask && !added)
        scores = gm_where(s, mask, scores, lowest);
    if (!array_is_none(in[IN_SINKS])) {
        gm_array *sinks = gm_reshape(s, gm_astype(s, in[IN_SINKS], wide), 5, (int64_t[]){1, kv, group, 1, 1});
        gm_array *both[2] = {scores, gm_broadcast_to(s, sinks, 5, (int64_t[]){B, kv, group, T, 1})};
        scores = gm_softmax(s, gm_concatenate(s, both, 2, -1), 1, (int[]){-1});
        scores = gm_slice(s, scores, (int64_t[5]){0}, (int64_t[]){B, kv, group, T, S}, (int64_t[]){1, 1, 1, 1, 1});
    } else {
        scores = gm_softmax(s, scores, 1, (int[]){-1});
    }
    gm_array *values = gm_reshape(s, gm_astype(s, in[IN_V], wide), 5, (int64_t[]){B, kv, 1, S, v->shape[3]});
    gm_array *y = gm_reshape(s, gm_matmul(s, scores, values), 4, (int64_t[]){B, heads, T, v->shape[3]});
    return gm_astype(s, y, (gm_dtype)q->dtype);
}

static gm_status sdpa_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(array_node(s, &scaled_dot_product_attention_op, in, INPUTS, param), outs);
}

const gm_op scaled_dot_product_attention_op = {.name = NAME,
                                               .n_in = INPUTS,
                                               .n_out = 1,
                                               .param_size = sizeof(sdpa_param),
                                               .fields = sdpa_fields,
                                               .infer = sdpa_infer,
                                               .eval = sdpa_eval,
                                               .compose = sdpa_compose,
                                               .rebuild = sdpa_rebuild,
                                               .optional = 1u << IN_MASK | 1u << IN_SINKS};

/* An addition to the scores must not widen the result. */
static gm_status check_promotes(const char *what, const gm_array *a, gm_dtype type) {
    if (array_is_none(a) || gm_promote((gm_dtype)a->dtype, type) == type)
        return GM_OK;
    return gm_fail(GM_EVALUE, "%s: %s of %s do not promote to %s", NAME, what, gm_dtype_name((gm_dtype)a->dtype),
                   gm_dtype_name(type));
}

/* On a device a traced function's scores stay, where they are few: a gradient reads their softmax, which would else be
 * made again. One query at a time has no gradient worth it. */
#define KEPT_SCORES ((int64_t)64 << 20)
#define LEAST_QUERIES 32
static bool keeps_scores(gm_array *const *in) {
    const gm_array *q = in[IN_Q], *k = in[IN_K];
    const bool traced = trace_depth() > 0 && (q->trace || k->trace || in[IN_V]->trace);
    return traced && device_current() > 0 && q->dtype == GM_FLOAT32 && q->shape[2] >= LEAST_QUERIES &&
           k->shape[2] > 0 && q->size > 0 && q->size / q->shape[3] <= KEPT_SCORES / k->shape[2];
}

/* float64 and very wide heads have no kernel. */
gm_array *gm_scaled_dot_product_attention(gm_scope *s, gm_array *q, gm_array *k, gm_array *v, float scale,
                                          gm_array *mask, bool causal, gm_array *sinks) {
    if (!q || !k || !v || !mask || !sinks || check_shapes(q, k, v) != GM_OK)
        return NULL;
    gm_dtype type = gm_promote(gm_promote((gm_dtype)q->dtype, (gm_dtype)k->dtype), (gm_dtype)v->dtype);
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "%s: got %s, expected floating point", NAME, gm_dtype_name(type)), NULL;
    if (check_promotes("masks", mask, type) != GM_OK || check_promotes("sinks", sinks, type) != GM_OK)
        return NULL;
    char text[128];
    if (!array_is_none(mask)) {
        shape_text(mask->ndim, mask->shape, text);
        if (mask->ndim > 4)
            return gm_fail(GM_ESHAPE, "%s: the mask %s has more than 4 dimensions", NAME, text), NULL;
        mask = gm_broadcast_to(s, mask->dtype == GM_BOOL ? mask : gm_astype(s, mask, type), 4,
                               (int64_t[]){q->shape[0], q->shape[1], q->shape[2], k->shape[2]});
    }
    if (!array_is_none(sinks)) {
        shape_text(sinks->ndim, sinks->shape, text);
        if (sinks->ndim != 1 || sinks->shape[0] != q->shape[1])
            return gm_fail(GM_ESHAPE, "%s: sinks %s, expected one for each of the %lld heads", NAME, text,
                           (long long)q->shape[1]),
                   NULL;
    }
    sdpa_param p = {.scale = scale, .causal = causal};
    gm_array *in[INPUTS] = {gm_astype(s, q, type), gm_astype(s, k, type), gm_astype(s, v, type), mask, sinks};
    for (int i = 0; i < INPUTS; i++)
        if (!in[i])
            return NULL;
    if (type == GM_FLOAT64 || q->shape[3] > GM_SDPA_DIM || v->shape[3] > GM_SDPA_DIM || keeps_scores(in))
        return sdpa_compose(s, in, INPUTS, &p);
    return array_node(s, &scaled_dot_product_attention_op, in, INPUTS, &p);
}
