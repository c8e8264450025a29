/* recurrent.c - layers with a state that is kept from pass to pass: short convolutions and the gated delta rule, over
 * rows of sequences. States are read and written in place, at addresses that the batch's state has when the pass runs.
 * Rows of a sequence are computed in order, rows of a state and sequences in parallel: the same bits however a prompt
 * is cut into passes. Inputs: the block of the batch's state, then the layer's own. */
#include "ops/layers/batch_state.h"
#include "ops/ops.h"

enum { IN_BATCH, IN_X };
typedef struct {
    gm_batch_shape shape;
    int32_t slot, n_key_heads, n_value_heads, tiled;
} recurrent_param;
static const gm_field recurrent_fields[] = {{FIELD_INT, offsetof(recurrent_param, shape), "shape", 4},
                                            {FIELD_INT, offsetof(recurrent_param, slot), "slot", 1},
                                            {FIELD_INT, offsetof(recurrent_param, n_key_heads), "n_key_heads", 1},
                                            {FIELD_INT, offsetof(recurrent_param, n_value_heads), "n_value_heads", 1},
                                            {FIELD_INT, offsetof(recurrent_param, tiled), "tiled", 1},
                                            {0}};

static bool is_matrix(const gm_array *a, int64_t rows, int64_t columns) {
    return a->dtype == GM_FLOAT32 && a->ndim == 2 && a->shape[0] == rows && a->shape[1] == columns;
}

static gm_status check_layer(const char *op, gm_array *const *in, const recurrent_param *p) {
    const gm_array *x = in[IN_X];
    if (x->dtype == GM_FLOAT32 && x->ndim == 2)
        return batch_state_check(op, in[IN_BATCH], &p->shape, x->shape[0], p->slot);
    char text[128];
    array_text(x, text);
    return gm_fail(GM_ESHAPE, "%s: x is %s, expected float32(%d,k)", op, text, p->shape.rows);
}

/* ---- convolution. Source: Gu and Dao, Mamba, 2023. ---- */
static gm_status conv_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[IN_X], *weight = in[IN_X + 1];
    GM_TRY(check_layer("cached_conv", in, param));
    if (weight->dtype != GM_FLOAT32 || weight->ndim != 2 || weight->shape[0] != x->shape[1] || weight->shape[1] < 1 ||
        weight->shape[1] > GM_CACHED_TAPS) {
        char text[128];
        array_text(weight, text);
        return gm_fail(GM_ESHAPE, "cached_conv: weight is %s, expected float32 [%lld, taps], at most %d taps", text,
                       (long long)x->shape[1], GM_CACHED_TAPS);
    }
    spec_like(out, x, GM_FLOAT32);
    return GM_OK;
}

static gm_status conv_eval(gm_array *out, gm_queue *q) {
    const recurrent_param *p = out->param;
    const float *x, *weight;
    const gm_batch_view batch = batch_view(array_ptr(out->in[IN_BATCH]), &p->shape);
    GM_TRY(float_operand(q, out->in[IN_X], &x));
    GM_TRY(float_operand(q, out->in[IN_X + 1], &weight));
    GM_TRY(array_alloc(out, q));
    queue_fence(q);
    return DISPATCH(q, recurrent_conv, p->shape.rows, .sequences = p->shape.sequences,
                    .layer = {.out = array_ptr(out),
                              .x = x,
                              .weight = weight,
                              .states = batch_caches(&batch, &p->shape, p->slot, 0),
                              .positions = batch.positions,
                              .first = batch.first,
                              .channels = out->shape[1],
                              .taps = out->in[IN_X + 1]->shape[1]});
}

const gm_op cached_conv_op = {.name = "cached_conv",
                              .n_in = IN_X + 2,
                              .n_out = 1,
                              .nondiff = UINT32_MAX,
                              .param_size = sizeof(recurrent_param),
                              .fields = recurrent_fields,
                              .infer = conv_infer,
                              .eval = conv_eval,
                              .work = GM_WORK_RECURRENT};

gm_array *gm_cached_conv(gm_scope *s, gm_array *x, gm_array *weight, const gm_batch_state *batch, int slot) {
    gm_array *in[] = {batch->block, x, weight};
    return array_node(s, &cached_conv_op, in, IN_X + 2, &(recurrent_param){.shape = batch->shape, .slot = slot});
}

/* ---- gated delta rule. Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks, 2024. ---- */
enum { IN_Q = IN_X, IN_K, IN_V, IN_DECAY, IN_BETA };

static gm_status delta_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const recurrent_param *p = param;
    GM_TRY(check_layer("cached_gated_delta", in, p));
    const int64_t n = in[IN_Q]->shape[0], keys = in[IN_Q]->shape[1];
    const gm_array *v = in[IN_V];
    bool fits = p->n_key_heads > 0 && p->n_value_heads > 0 && p->n_value_heads % p->n_key_heads == 0 &&
                keys % p->n_key_heads == 0 && is_matrix(in[IN_K], n, keys) && v->dtype == GM_FLOAT32 && v->ndim == 2 &&
                v->shape[0] == n && v->shape[1] % p->n_value_heads == 0 &&
                is_matrix(in[IN_DECAY], n, p->n_value_heads) && is_matrix(in[IN_BETA], n, p->n_value_heads);
    if (!fits) {
        char text[5][128];
        for (int i = 0; i < 5; i++)
            array_text(in[IN_Q + i], text[i]);
        return gm_fail(GM_ESHAPE,
                       "cached_gated_delta: q %s, k %s, v %s, decay %s and beta %s do not fit %d key heads "
                       "and %d value heads",
                       text[0], text[1], text[2], text[3], text[4], p->n_key_heads, p->n_value_heads);
    }
    spec_like(out, v, GM_FLOAT32);
    return GM_OK;
}

static gm_status delta_eval(gm_array *out, gm_queue *q) {
    const recurrent_param *p = out->param;
    const int64_t heads = p->n_value_heads, values = out->shape[1] / heads;
    const int64_t keys = out->in[IN_Q]->shape[1] / p->n_key_heads;
    const float *in[5];
    const gm_batch_view batch = batch_view(array_ptr(out->in[IN_BATCH]), &p->shape);
    for (int i = 0; i < 5; i++)
        GM_TRY(float_operand(q, out->in[IN_Q + i], &in[i]));
    GM_TRY(array_alloc(out, q));
    queue_fence(q);
    return DISPATCH(q, recurrent_delta, p->shape.rows, .sequences = p->shape.sequences,
                    .layer = {.out = array_ptr(out),
                              .q = in[0],
                              .k = in[1],
                              .v = in[2],
                              .decay = in[3],
                              .beta = in[4],
                              .states = batch_caches(&batch, &p->shape, p->slot, 1),
                              .positions = batch.positions,
                              .first = batch.first,
                              .n_heads = heads,
                              .n_key_heads = p->n_key_heads,
                              .n_keys = keys,
                              .n_values = values,
                              .tiled = p->tiled != 0});
}

const gm_op cached_gated_delta_op = {.name = "cached_gated_delta",
                                     .n_in = IN_X + 5,
                                     .n_out = 1,
                                     .nondiff = UINT32_MAX,
                                     .param_size = sizeof(recurrent_param),
                                     .fields = recurrent_fields,
                                     .infer = delta_infer,
                                     .eval = delta_eval,
                                     .work = GM_WORK_RECURRENT};

gm_array *gm_cached_gated_delta(gm_scope *s, const gm_delta_inputs *given, const gm_batch_state *batch,
                                const gm_delta_spec *spec) {
    gm_array *in[] = {batch->block, given->q, given->k, given->v, given->decay, given->beta};
    return array_node(s, &cached_gated_delta_op, in, IN_X + 5,
                      &(recurrent_param){.shape = batch->shape,
                                         .slot = spec->slot,
                                         .n_key_heads = spec->n_key_heads,
                                         .n_value_heads = spec->n_value_heads,
                                         .tiled = spec->tiled});
}
