/* gated_delta.c - linear attention with the gated delta rule. Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks,
 * 2024. One node computes [B, H, Dv, T + Dk]: for each row of the state its outputs and what it is at the end. */
#include <string.h>
#include "ops/ops.h"

static gm_status check_shapes(gm_array *const *in) {
    const gm_array *q = in[0], *k = in[1], *v = in[2], *state = in[5], *mask = in[6];
    bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && in[3]->ndim == 3 && in[4]->ndim == 3;
    for (int d = 0; d < 4 && fits; d++)
        fits = q->shape[d] == k->shape[d] && (d > 1 || k->shape[d] == v->shape[d]);
    for (int d = 0; d < 3 && fits; d++)
        fits = in[3]->shape[d] == v->shape[d] && in[4]->shape[d] == v->shape[d];
    fits = fits && k->shape[2] > 0 && v->shape[2] % k->shape[2] == 0;
    if (fits && !array_is_none(state))
        fits = state->ndim == 4 && state->shape[0] == v->shape[0] && state->shape[1] == v->shape[2] &&
               state->shape[2] == v->shape[3] && state->shape[3] == k->shape[3];
    if (fits && !array_is_none(mask))
        fits = mask->ndim == 2 && mask->shape[0] == v->shape[0] && mask->shape[1] == v->shape[1];
    if (fits)
        return GM_OK;
    char text[4][128];
    for (int i = 0; i < 4; i++)
        array_text(in[i], text[i]);
    return gm_fail(GM_ESHAPE,
                   "gated_delta_update: got q %s, k %s, v %s, gamma %s; expected [B, T, Hk, Dk] twice, "
                   "[B, T, Hv, Dv], [B, T, Hv] twice, a state [B, Hv, Dv, Dk] and a mask [B, T]",
                   text[0], text[1], text[2], text[3]);
}

static gm_status gated_delta_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    GM_TRY(check_shapes(in));
    const int64_t *k = in[1]->shape, *v = in[2]->shape;
    out->dtype = GM_FLOAT32;
    out->ndim = 4;
    out->shape[0] = v[0];
    out->shape[1] = v[2];
    out->shape[2] = v[3];
    out->shape[3] = v[1] + k[3];
    return GM_OK;
}

static gm_status gated_delta_eval(gm_array *out, gm_queue *q) {
    const float *in[6] = {NULL};
    const uint8_t *mask = NULL;
    const int64_t *k = out->in[1]->shape, *v = out->in[2]->shape;
    for (int i = 0; i < 6; i++)
        if (!array_is_none(out->in[i]))
            GM_TRY(float_operand(q, out->in[i], &in[i]));
    if (!array_is_none(out->in[6])) {
        const gm_array *m = out->in[6];
        uint8_t *copy = queue_scratch(q, (size_t)m->size + 1);
        if (!copy)
            return error_code();
        GM_TRY(launch_copy(q, (copy_to){copy, GM_BOOL, (int64_t[]){m->shape[1], 1}},
                           (copy_from){array_ptr(m), GM_BOOL, m->strides}, 2, m->shape));
        queue_fence(q);
        mask = copy;
    }
    GM_TRY(array_alloc(out, q));
    const int64_t rows = v[0] * v[2] * v[3];
    return DISPATCH(q, gated_delta, rows, .out = array_ptr(out), .q = in[0], .k = in[1], .v = in[2], .gamma = in[3],
                    .beta = in[4], .state = in[5], .mask = mask, .n_tokens = v[1], .n_heads = v[2], .n_key_heads = k[2],
                    .n_keys = k[3], .n_values = v[3]);
}

/* x[:, t] of a [B, T, ...] array. */
static gm_array *token_of(gm_scope *s, gm_array *x, int64_t t) {
    int64_t start[GM_MAX_NDIM] = {0, t}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM], shape[GM_MAX_NDIM];
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        stop[d] = d == 1 ? t + 1 : x->shape[d];
        step[d] = 1;
        if (d != 1)
            shape[n++] = x->shape[d];
    }
    return gm_reshape(s, gm_slice(s, x, start, stop, step), n, shape);
}

static gm_array *dims(gm_scope *s, gm_array *x, int64_t a, int64_t b, int64_t c, int64_t d) {
    return gm_reshape(s, x, 4, (int64_t[]){a, b, c, d});
}

/* The rule as it is written, a token at a time: for gradients. */
static gm_array *gated_delta_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    (void)n_in;
    (void)param;
    const int64_t b = in[2]->shape[0], tokens = in[2]->shape[1], heads = in[2]->shape[2], values = in[2]->shape[3];
    const int64_t key_heads = in[1]->shape[2], keys = in[1]->shape[3], group = heads / key_heads;
    gm_array *parts[2], *joined = NULL;
    gm_array *zero = scalar_array(s, 0, GM_FLOAT32);
    gm_array *state = array_is_none(in[5]) ? gm_full(s, 4, (int64_t[]){b, heads, values, keys}, zero, GM_FLOAT32)
                                           : gm_astype(s, in[5], GM_FLOAT32);
    for (int64_t t = 0; t < tokens; t++) {
        gm_array *row[2];
        for (int i = 0; i < 2; i++) { /* [B, H, 1, Dk], key heads repeated for their heads */
            gm_array *x = dims(s, token_of(s, in[i], t), b, key_heads, 1, keys);
            x = gm_broadcast_to(s, x, 4, (int64_t[]){b, key_heads, group, keys});
            row[i] = dims(s, x, b, heads, 1, keys);
        }
        gm_array *v = dims(s, token_of(s, in[2], t), b, heads, values, 1);
        gm_array *gamma = dims(s, token_of(s, in[3], t), b, heads, 1, 1);
        gm_array *beta = dims(s, token_of(s, in[4], t), b, heads, 1, 1);
        gm_array *next = gm_multiply(s, state, gamma);
        gm_array *memory = gm_sum(s, gm_multiply(s, next, row[1]), 1, (int[]){-1}, true);
        gm_array *change = gm_multiply(s, gm_subtract(s, v, memory), beta);
        next = gm_add(s, next, gm_multiply(s, change, row[1]));
        gm_array *out = gm_sum(s, gm_multiply(s, next, row[0]), 1, (int[]){-1}, true);
        if (!array_is_none(in[6])) {
            gm_array *mask = dims(s, token_of(s, in[6], t), b, 1, 1, 1);
            next = gm_where(s, mask, next, state);
            out = gm_where(s, mask, out, zero);
        }
        state = next;
        parts[0] = joined;
        parts[1] = out;
        joined = joined ? gm_concatenate(s, parts, 2, 3) : out;
    }
    parts[0] = joined;
    parts[1] = state;
    return joined ? gm_concatenate(s, parts, 2, 3) : state;
}

static gm_status gated_delta_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                     gm_array **outs) {
    bool fits = array_is_none(in[6]) || in[6]->dtype == GM_BOOL;
    (void)param;
    (void)n_out;
    for (int i = 0; i < 6; i++)
        fits = fits && (array_is_none(in[i]) || in[i]->dtype == GM_FLOAT32);
    return fits ? rebuilt(array_node(s, &gated_delta_op, in, n_in, NULL), outs) : rebuild_refuse("gated_delta");
}

const gm_op gated_delta_op = {.name = "gated_delta",
                              .n_in = 7,
                              .n_out = 1,
                              .nondiff = 1u << 6,
                              .infer = gated_delta_infer,
                              .eval = gated_delta_eval,
                              .compose = gated_delta_compose,
                              .rebuild = gated_delta_rebuild,
                              .optional = 1u << 5 | 1u << 6};

gm_array *gm_gated_delta_update(gm_scope *s, gm_array *q, gm_array *k, gm_array *v, gm_array *gamma, gm_array *beta,
                                gm_array *state, gm_array *mask, gm_array **final_state) {
    gm_array *in[7] = {q, k, v, gamma, beta, state, mask};
    for (int i = 0; i < 7; i++)
        if (!in[i])
            return NULL;
    if (check_shapes(in) != GM_OK)
        return NULL;
    const gm_dtype type = (gm_dtype)q->dtype;
    for (int i = 0; i < 6; i++)
        in[i] = array_is_none(in[i]) ? GM_NONE : gm_astype(s, in[i], GM_FLOAT32);
    if (!array_is_none(mask))
        in[6] = gm_astype(s, mask, GM_BOOL);
    const int64_t b = v->shape[0], t = v->shape[1], h = v->shape[2], dv = v->shape[3], dk = k->shape[3];
    gm_array *all = array_node(s, &gated_delta_op, in, 7, NULL);
    const int64_t one[4] = {1, 1, 1, 1};
    gm_array *out = gm_slice(s, all, (int64_t[]){0, 0, 0, 0}, (int64_t[]){b, h, dv, t}, one);
    *final_state = gm_slice(s, all, (int64_t[]){0, 0, 0, t}, (int64_t[]){b, h, dv, t + dk}, one);
    return gm_astype(s, gm_transpose(s, out, 4, (int[]){0, 3, 1, 2}), type);
}
