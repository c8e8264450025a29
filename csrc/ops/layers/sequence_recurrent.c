/* sequence_recurrent.c - recurrent layers over the rows of sequences, which have gradients: what training does where
 * decoders keep states. A row has the bits that it has there. Memory is proportional to the rows: backwards, states are
 * computed again. */
#include <string.h>
#include "ops/ops.h"

/* ---- convolution. Source: Gu and Dao, Mamba, 2023. ---- */
enum { CONV_X, CONV_WEIGHT, CONV_STARTS, CONV_INPUTS };

static gm_status conv_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *x = in[CONV_X], *weight = in[CONV_WEIGHT];
    (void)n_in;
    (void)param;
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || weight->dtype != GM_FLOAT32 || weight->ndim != 2 ||
        weight->shape[0] != x->shape[1] || weight->shape[1] < 1 || weight->shape[1] > GM_CACHED_TAPS) {
        char a[128], b[128];
        array_text(x, a);
        array_text(weight, b);
        return gm_fail(GM_ESHAPE,
                       "sequence_conv: x is %s and weight %s, expected float32 [n, channels] and [channels, taps], "
                       "at most %d taps",
                       a, b, GM_CACHED_TAPS);
    }
    spec_like(out, x, GM_FLOAT32);
    return check_starts("sequence_conv", in[CONV_STARTS]);
}

static gm_status conv_args(gm_queue *q, gm_array *const *in, gm_sequence_conv_args *a) {
    const void *starts;
    *a = (gm_sequence_conv_args){.sequences = in[CONV_STARTS]->shape[0] - 1,
                                 .channels = in[CONV_X]->shape[1],
                                 .taps = in[CONV_WEIGHT]->shape[1]};
    GM_TRY(float_operand(q, in[CONV_X], &a->x));
    GM_TRY(float_operand(q, in[CONV_WEIGHT], &a->weight));
    GM_TRY(dense_operand(q, in[CONV_STARTS], &starts));
    a->starts = starts;
    return GM_OK;
}

static gm_status conv_eval(gm_array *out, gm_queue *q) {
    gm_sequence_conv_args a;
    GM_TRY(conv_args(q, out->in, &a));
    GM_TRY(array_alloc(out, q));
    a.out = array_ptr(out);
    return DISPATCH_ARGS(q, sequence_conv, out->shape[0], &a);
}

static gm_status conv_grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(conv_infer(in, n_in, param, out));
    return check_rows("sequence_conv", in[CONV_INPUTS], "the cotangent", out->shape[0], out->shape[1]);
}

static gm_status conv_grad_eval(gm_array *out, gm_queue *q) {
    gm_sequence_conv_grad_args g;
    GM_TRY(conv_args(q, out->in, &g.forward));
    GM_TRY(float_operand(q, out->in[CONV_INPUTS], &g.grad));
    GM_TRY(array_alloc(out, q));
    g.dx = array_ptr(out);
    return DISPATCH_ARGS(q, sequence_conv_grad, out->shape[0], &g);
}

const gm_op sequence_conv_grad_op = {.name = "sequence_conv_grad",
                                     .n_in = CONV_INPUTS + 1,
                                     .n_out = 1,
                                     .infer = conv_grad_infer,
                                     .eval = conv_grad_eval,
                                     .work = GM_WORK_RECURRENT};

static void conv_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[CONV_INPUTS + 1] = {in[CONV_X], in[CONV_WEIGHT], in[CONV_STARTS], cots[0]};
    (void)out;
    grad[CONV_X] = array_node(s, &sequence_conv_grad_op, all, CONV_INPUTS + 1, NULL);
}

const gm_op sequence_conv_op = {.name = "sequence_conv",
                                .n_in = CONV_INPUTS,
                                .n_out = 1,
                                .nondiff = 1u << CONV_WEIGHT | 1u << CONV_STARTS,
                                .infer = conv_infer,
                                .eval = conv_eval,
                                .vjp = conv_vjp,
                                .work = GM_WORK_RECURRENT};

gm_array *gm_sequence_conv(gm_scope *s, gm_array *x, gm_array *weight, gm_array *starts) {
    gm_array *in[CONV_INPUTS] = {x, weight, starts};
    return array_node(s, &sequence_conv_op, in, CONV_INPUTS, NULL);
}

/* ---- gated delta rule. Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks, 2024. ---- */
enum { IN_Q, IN_K, IN_V, IN_DECAY, IN_BETA, IN_STARTS, INPUTS };
typedef struct { int32_t n_key_heads, n_value_heads, tiled; } delta_param;
static const gm_field fields[] = {{FIELD_INT, offsetof(delta_param, n_key_heads), "n_key_heads", 1},
                                  {FIELD_INT, offsetof(delta_param, n_value_heads), "n_value_heads", 1},
                                  {FIELD_INT, offsetof(delta_param, tiled), "tiled", 1},
                                  {0}};

static gm_status delta_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    static const char *const names[] = {"q", "k", "v", "decay", "beta"}, *const op = "sequence_delta";
    const delta_param *p = param;
    const int64_t n = in[IN_V]->ndim == 2 ? in[IN_V]->shape[0] : -1, width = n < 0 ? 0 : in[IN_V]->shape[1];
    const int64_t keys = in[IN_Q]->ndim == 2 ? in[IN_Q]->shape[1] : 0, heads = p->n_value_heads;
    const int64_t widths[] = {keys, keys, width, heads, heads};
    (void)n_in;
    for (int i = 0; i < IN_STARTS; i++)
        GM_TRY(check_rows(op, in[i], names[i], n, widths[i]));
    if (p->n_key_heads < 1 || heads < 1 || heads % p->n_key_heads || keys % p->n_key_heads || width % heads)
        return gm_fail(GM_ESHAPE, "%s: keys of %lld and values of %lld do not fit %d key heads and %d value heads", op,
                       (long long)keys, (long long)width, p->n_key_heads, p->n_value_heads);
    spec_like(out, in[IN_V], GM_FLOAT32);
    return check_starts(op, in[IN_STARTS]);
}

static gm_status delta_args(gm_queue *q, gm_array *const *in, const delta_param *p, gm_sequence_delta_args *a) {
    const float **const to[] = {&a->q, &a->k, &a->v, &a->decay, &a->beta};
    const void *starts;
    *a = (gm_sequence_delta_args){.n = in[IN_V]->shape[0],
                                  .sequences = in[IN_STARTS]->shape[0] - 1,
                                  .n_heads = p->n_value_heads,
                                  .n_key_heads = p->n_key_heads,
                                  .n_keys = in[IN_Q]->shape[1] / p->n_key_heads,
                                  .n_values = in[IN_V]->shape[1] / p->n_value_heads,
                                  .tiled = p->tiled != 0};
    for (int i = 0; i < IN_STARTS; i++)
        GM_TRY(float_operand(q, in[i], to[i]));
    GM_TRY(dense_operand(q, in[IN_STARTS], &starts));
    a->starts = starts;
    return GM_OK;
}

static gm_status delta_eval(gm_array *out, gm_queue *q) {
    gm_sequence_delta_args a;
    GM_TRY(delta_args(q, out->in, out->param, &a));
    GM_TRY(array_alloc(out, q));
    a.out = array_ptr(out);
    return DISPATCH_ARGS(q, sequence_delta, a.n, &a);
}

static gm_status delta_grad_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    GM_TRY(delta_infer(in, n_in, param, out));
    GM_TRY(check_rows("sequence_delta", in[INPUTS], "the cotangent", in[IN_V]->shape[0], in[IN_V]->shape[1]));
    for (int i = 0; i < IN_STARTS; i++)
        spec_like(&out[i], in[i], GM_FLOAT32);
    return GM_OK;
}

static gm_status delta_grad_eval(gm_array *out, gm_queue *q) {
    gm_sequence_delta_grad_args g;
    float **const to[] = {&g.dq, &g.dk, &g.dv, &g.ddecay, &g.dbeta};
    GM_TRY(delta_args(q, out->in, out->param, &g.forward));
    GM_TRY(float_operand(q, out->in[INPUTS], &g.grad));
    for (int i = 0; i < IN_STARTS; i++) {
        GM_TRY(array_alloc(array_output(out, i), q));
        *to[i] = array_ptr(array_output(out, i));
    }
    return DISPATCH_ARGS(q, sequence_delta_grad, g.forward.n, &g);
}

const gm_op sequence_delta_grad_op = {.name = "sequence_delta_grad",
                                      .n_in = INPUTS + 1,
                                      .n_out = IN_STARTS,
                                      .param_size = sizeof(delta_param),
                                      .fields = fields,
                                      .infer = delta_grad_infer,
                                      .eval = delta_grad_eval,
                                      .work = GM_WORK_RECURRENT};

static void delta_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_array *all[INPUTS + 1], *found[IN_STARTS];
    memcpy(all, in, INPUTS * sizeof *all);
    all[INPUTS] = cots[0];
    if (array_nodes(s, &sequence_delta_grad_op, all, INPUTS + 1, out->param, sizeof(delta_param), IN_STARTS, found) ==
        GM_OK)
        memcpy(grad, found, sizeof found);
}

const gm_op sequence_delta_op = {.name = "sequence_delta",
                                 .n_in = INPUTS,
                                 .n_out = 1,
                                 .nondiff = 1u << IN_STARTS,
                                 .param_size = sizeof(delta_param),
                                 .fields = fields,
                                 .infer = delta_infer,
                                 .eval = delta_eval,
                                 .vjp = delta_vjp,
                                 .work = GM_WORK_RECURRENT};

gm_array *gm_sequence_delta(gm_scope *s, const gm_delta_inputs *given, gm_array *starts, const gm_delta_spec *spec) {
    gm_array *in[INPUTS] = {given->q, given->k, given->v, given->decay, given->beta, starts};
    return array_node(s, &sequence_delta_op, in, INPUTS,
                      &(delta_param){spec->n_key_heads, spec->n_value_heads, spec->tiled});
}
