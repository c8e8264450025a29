/* recurrent.c - layers with a state that is kept from pass to pass: short convolutions and the gated delta rule, over rows
 * of sequences. States are read and written in place, at addresses that a table holds when the pass runs. A sequence's
 * rows go in order, a state's rows and sequences side by side: the same bits however a prompt is cut into passes.
 * Inputs: rows (sequence and position of each row), tables, first rows of the spans, then the layer's own. */
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

enum { IN_ROWS, IN_TABLES, IN_FIRST, IN_X };
typedef struct { int32_t slot, n_sequences, n_key_heads, n_value_heads, tiled; } recurrent_param;
static const gm_field recurrent_fields[] = {
    {FIELD_INT, offsetof(recurrent_param, slot), "slot", 1},
    {FIELD_INT, offsetof(recurrent_param, n_sequences), "n_sequences", 1},
    {FIELD_INT, offsetof(recurrent_param, n_key_heads), "n_key_heads", 1},
    {FIELD_INT, offsetof(recurrent_param, n_value_heads), "n_value_heads", 1},
    {FIELD_INT, offsetof(recurrent_param, tiled), "tiled", 1}, {0}};

static bool is_matrix(const gm_array *a, int64_t rows, int64_t columns) {
    return a->dtype == GM_FLOAT32 && a->ndim == 2 && a->shape[0] == rows && a->shape[1] == columns;
}

static gm_status check_rows(const char *op, gm_array *const *in, const recurrent_param *p) {
    const gm_array *x = in[IN_X], *rows = in[IN_ROWS], *tables = in[IN_TABLES];
    char text[3][128];
    if (x->dtype == GM_FLOAT32 && x->ndim == 2 && rows->dtype == GM_INT32 && rows->ndim == 1 &&
        rows->size >= 2 * x->shape[0] && tables->dtype == GM_INT64 && tables->ndim == 3 &&
        within(p->slot, tables->shape[0]) && tables->shape[1] == 2 && tables->shape[2] == p->n_sequences)
        return GM_OK;
    for (int i = 0; i < 3; i++)
        array_text(in[i == 0 ? IN_X : i == 1 ? IN_ROWS : IN_TABLES], text[i]);
    return gm_fail(GM_ESHAPE, "%s: got x %s, rows %s, tables %s, slot %d of %d sequences; expected float32 [n, k], int32 "
                   "[2 n + 1], int64 [slots, 2, sequences]", op, text[0], text[1], text[2], p->slot, p->n_sequences);
}

/* The operands that are not floats: addresses of the states, sequence and position of each row, first rows. */
typedef struct { const int64_t *states; const int32_t *sequence, *position, *first; } places;
static gm_status places_of(gm_queue *q, const gm_array *out, int which, places *at) {
    const recurrent_param *p = out->param;
    const void *rows, *tables;
    GM_TRY(dense_operand(q, out->in[IN_ROWS], &rows));
    GM_TRY(dense_operand(q, out->in[IN_TABLES], &tables));
    *at = (places){.states = (const int64_t *)tables + ((int64_t)p->slot * 2 + which) * p->n_sequences,
                   .sequence = rows, .position = (const int32_t *)rows + out->shape[0],
                   .first = array_ptr(out->in[IN_FIRST])};
    return GM_OK;
}

/* The node of an op over x and what follows it. */
static gm_array *recurrent_node(gm_scope *s, const gm_op *op, gm_array *const *x, int n_x, gm_array *rows,
                                gm_array *tables, const int32_t *spans, const recurrent_param *p) {
    gm_array *in[IN_X + 5] = {rows, tables, NULL};
    int64_t total = 0;
    if (!rows || !tables)
        return NULL;
    for (int i = 0; i < n_x; i++)
        if (!(in[IN_X + i] = x[i]))
            return NULL;
    int32_t *first = p->n_sequences > 0 ? memory_array((size_t)p->n_sequences + 1, sizeof *first) : NULL;
    for (int i = 0; first && i <= p->n_sequences; i++) {
        first[i] = (int32_t)total;
        total += i < p->n_sequences && spans[i] > 0 ? spans[i] : 0;
    }
    if (first && (x[0]->ndim != 2 || total != x[0]->shape[0]))
        gm_fail(GM_EVALUE, "%s: spans of %d sequences add up to %lld rows, x has %lld", op->name, p->n_sequences,
                (long long)total, (long long)(x[0]->ndim ? x[0]->shape[0] : 0));
    else if (first)
        in[IN_FIRST] = gm_array_from(s, GM_INT32, 1, (int64_t[]){p->n_sequences + 1}, first);
    else if (p->n_sequences <= 0)
        gm_fail(GM_EVALUE, "%s: %d sequences, expected 1 or more", op->name, p->n_sequences);
    memory_free(first);
    return in[IN_FIRST] ? array_node(s, op, in, IN_X + n_x, p) : NULL;
}

/* ---- convolution. Source: Gu and Dao, Mamba, 2023. ---- */
static gm_status conv_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[IN_X], *weight = in[IN_X + 1];
    GM_TRY(check_rows("cached_conv", in, param));
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
    const int64_t channels = out->shape[1], blocks = (channels + GM_CONV_CHANNELS - 1) / GM_CONV_CHANNELS;
    const float *x, *weight;
    places at;
    GM_TRY(places_of(q, out, 0, &at));
    GM_TRY(float_operand(q, out->in[IN_X], &x));
    GM_TRY(float_operand(q, out->in[IN_X + 1], &weight));
    GM_TRY(array_alloc(out, q));
    queue_fence(q);
    const int64_t rows = out->shape[0] / p->n_sequences + 1, taps = out->in[IN_X + 1]->shape[1];
    return LAUNCH(q, cached_conv, p->n_sequences * blocks, 1 + 32768 / (rows * taps * GM_CONV_CHANNELS), 0,
                  .out = array_ptr(out), .x = x, .weight = weight, .states = at.states, .sequence = at.sequence,
                  .position = at.position, .first = at.first, .channels = channels, .taps = taps);
}

const gm_op cached_conv_op = {.name = "cached_conv", .n_in = IN_X + 2, .n_out = 1, .nondiff = UINT32_MAX,
                              .param_size = sizeof(recurrent_param), .fields = recurrent_fields, .infer = conv_infer,
                              .eval = conv_eval, .work = GM_WORK_RECURRENT};

gm_array *gm_cached_conv(gm_scope *s, gm_array *x, gm_array *weight, gm_array *rows, gm_array *tables, int slot,
                         int n_sequences, const int32_t *spans) {
    gm_array *own[2] = {x, weight};
    return recurrent_node(s, &cached_conv_op, own, 2, rows, tables, spans,
                          &(recurrent_param){.slot = slot, .n_sequences = n_sequences});
}

/* ---- gated delta rule. Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks, 2024. ---- */
enum { IN_Q = IN_X, IN_K, IN_V, IN_DECAY, IN_BETA };

static gm_status delta_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const recurrent_param *p = param;
    GM_TRY(check_rows("cached_gated_delta", in, p));
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
        return gm_fail(GM_ESHAPE, "cached_gated_delta: q %s, k %s, v %s, decay %s and beta %s do not fit %d key heads and "
                       "%d value heads", text[0], text[1], text[2], text[3], text[4], p->n_key_heads, p->n_value_heads);
    }
    spec_like(out, v, GM_FLOAT32);
    return GM_OK;
}

static gm_status delta_eval(gm_array *out, gm_queue *q) {
    const recurrent_param *p = out->param;
    const int64_t heads = p->n_value_heads, values = out->shape[1] / heads;
    const int64_t keys = out->in[IN_Q]->shape[1] / p->n_key_heads;
    const int64_t blocks = (values + GM_DELTA_ROWS - 1) / GM_DELTA_ROWS, rows = out->shape[0] / p->n_sequences + 1;
    const float *in[5];
    places at;
    GM_TRY(places_of(q, out, 1, &at));
    for (int i = 0; i < 5; i++)
        GM_TRY(float_operand(q, out->in[IN_Q + i], &in[i]));
    GM_TRY(array_alloc(out, q));
    queue_fence(q);
    return LAUNCH(q, cached_gated_delta, p->n_sequences * heads * blocks,
                  1 + 65536 / (rows * keys * GM_DELTA_ROWS + 1), 0, .out = array_ptr(out), .q = in[0], .k = in[1],
                  .v = in[2], .decay = in[3], .beta = in[4], .states = at.states, .sequence = at.sequence,
                  .position = at.position, .first = at.first, .n_heads = heads, .n_key_heads = p->n_key_heads,
                  .n_keys = keys, .n_values = values, .tiled = p->tiled != 0);
}

const gm_op cached_gated_delta_op = {.name = "cached_gated_delta", .n_in = IN_X + 5, .n_out = 1, .nondiff = UINT32_MAX,
                                     .param_size = sizeof(recurrent_param), .fields = recurrent_fields,
                                     .infer = delta_infer, .eval = delta_eval, .work = GM_WORK_RECURRENT};

gm_array *gm_cached_gated_delta(gm_scope *s, gm_array *q, gm_array *k, gm_array *v, gm_array *decay, gm_array *beta,
                                gm_array *rows, gm_array *tables, int slot, int n_sequences, const int32_t *spans,
                                int n_key_heads, int n_value_heads, bool tiled) {
    gm_array *own[5] = {q, k, v, decay, beta};
    return recurrent_node(s, &cached_gated_delta_op, own, 5, rows, tables, spans,
                          &(recurrent_param){.slot = slot, .n_sequences = n_sequences, .n_key_heads = n_key_heads,
                                             .n_value_heads = n_value_heads, .tiled = tiled});
}
