/* attention.c - softmax(q k^T) v over the caches of sequences; over plain arrays it is in sdpa.c.
 * Source of the block-wise form: Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022. */
#include <string.h>
#include "ops/layers/batch_state.h"
#include "ops/ops.h"

/* Inputs: q, k, v (k and v GM_NONE: an earlier layer of the pass filled the slot), angles, sinks, weights of norms of
 * each head of q and k (GM_NONE: none), and the block of the batch's state. The caches that it has addresses of are
 * written in place. */
typedef struct {
    gm_batch_shape shape;
    int32_t kv_type;
    int64_t max_blocks;
    float eps; /* of norms of heads */
    gm_attention_spec spec;
} cached_param;
#define SPEC_FIELD(kind, name) {kind, offsetof(cached_param, spec.name), #name, 1}
static const gm_field cached_fields[] = {{FIELD_INT, offsetof(cached_param, shape), "shape", 4},
                                         {FIELD_INT, offsetof(cached_param, kv_type), "kv_type", 1},
                                         {FIELD_INT64, offsetof(cached_param, max_blocks), "max_blocks", 1},
                                         {FIELD_FLOAT, offsetof(cached_param, eps), "eps", 1},
                                         SPEC_FIELD(FIELD_INT, slot),
                                         SPEC_FIELD(FIELD_INT, n_heads),
                                         SPEC_FIELD(FIELD_INT, n_kv_heads),
                                         SPEC_FIELD(FIELD_INT, head_dim),
                                         SPEC_FIELD(FIELD_INT, window),
                                         SPEC_FIELD(FIELD_FLOAT, scale),
                                         SPEC_FIELD(FIELD_FLOAT, softcap),
                                         {0}};
enum { IN_Q, IN_K, IN_V, IN_ANGLES, IN_SINKS, IN_Q_NORM, IN_K_NORM, IN_BATCH, INPUTS };

static gm_status cached_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const cached_param *p = param;
    const gm_attention_spec *spec = &p->spec;
    const gm_array *angles = in[IN_ANGLES], *sinks = in[IN_SINKS];
    int64_t n = in[IN_Q]->ndim == 2 ? in[IN_Q]->shape[0] : -1;
    (void)n_in;
    GM_TRY(check_rows("cached_attention", in[IN_Q], "q", n, (int64_t)spec->n_heads * spec->head_dim));
    if (array_is_none(in[IN_K]) != array_is_none(in[IN_V]))
        return gm_fail(GM_EVALUE, "cached_attention: k and v go together, one of them is none");
    if (!array_is_none(in[IN_K])) {
        GM_TRY(check_rows("cached_attention", in[IN_K], "k", n, (int64_t)spec->n_kv_heads * spec->head_dim));
        GM_TRY(check_rows("cached_attention", in[IN_V], "v", n, (int64_t)spec->n_kv_heads * spec->head_dim));
    }
    GM_TRY(batch_state_check("cached_attention", in[IN_BATCH], &p->shape, n, spec->slot));
    if (angles->ndim != 3 || angles->shape[0] != n || 2 * angles->shape[2] > spec->head_dim) {
        char text[128];
        array_text(angles, text);
        return gm_fail(GM_ESHAPE, "cached_attention: angles are %s, expected float32(%lld,2,half) with half up to %d",
                       text, (long long)n, spec->head_dim / 2);
    }
    if (!array_is_none(sinks) && (sinks->dtype != GM_FLOAT32 || sinks->ndim != 1 || sinks->shape[0] != spec->n_heads)) {
        char text[128];
        array_text(sinks, text);
        return gm_fail(GM_ESHAPE, "cached_attention: sinks are %s, expected float32(%d)", text, spec->n_heads);
    }
    for (int i = IN_Q_NORM; i <= IN_K_NORM; i++)
        if (!array_is_none(in[i]) &&
            (in[i]->dtype != GM_FLOAT32 || in[i]->ndim != 1 || in[i]->shape[0] != spec->head_dim)) {
            char text[128];
            array_text(in[i], text);
            return gm_fail(GM_ESHAPE, "cached_attention: the norm of heads of %s is %s, expected float32(%d)",
                           i == IN_Q_NORM ? "q" : "k", text, spec->head_dim);
        }
    spec_like(out, in[IN_Q], GM_FLOAT32);
    return GM_OK;
}

/* What of the inputs may be none; *out stays then. */
static gm_status given_operand(gm_queue *q, const gm_array *a, const float **out) {
    return array_is_none(a) ? GM_OK : float_operand(q, a, out);
}
/* Heads of rows, normed, where there is a weight. */
static gm_status norm_heads(gm_queue *q, const float **x, const float *weight, int64_t heads, int64_t dim, float eps) {
    const float *from = *x;
    if (!weight || !from)
        return GM_OK;
    float *out = queue_scratch(q, (size_t)(heads * dim) * sizeof(float) + 1);
    *x = out;
    return out ? DISPATCH(q, rms_norm, heads, .out = out, .x = from, .weight = weight, .type = GM_T_F32,
                          .x_stride = dim, .dim = dim, .eps = eps)
               : error_code();
}
/* Tiles of rows of prompts: one contract after another. */
static gm_status tiles_eval(gm_queue *q, gm_turned_attention_args *a, int64_t n, int64_t tiles) {
    const int64_t dim = a->turn.head_dim;
    GM_TRY(norm_heads(q, &a->turn.q, a->q_norm, n * a->turn.n_heads, dim, a->eps));
    GM_TRY(norm_heads(q, &a->turn.k, a->k_norm, n * a->turn.n_kv_heads, dim, a->eps));
    queue_fence(q);
    GM_TRY(DISPATCH_ARGS(q, rope_cache, n, &a->turn));
    queue_fence(q);
    return DISPATCH_ARGS(q, attention, tiles, &a->attention);
}

static gm_status cached_eval(gm_array *out, gm_queue *q) {
    const cached_param *p = out->param;
    const gm_attention_spec *spec = &p->spec;
    const int64_t n = out->shape[0], q_dim = out->shape[1], kv_dim = (int64_t)spec->n_kv_heads * spec->head_dim;
    const gm_batch_view batch = batch_view(array_ptr(out->in[IN_BATCH]), &p->shape);
    gm_turned_attention_args a = {.eps = p->eps};
    const float *sinks = NULL;
    GM_TRY(float_operand(q, out->in[IN_Q], &a.turn.q));
    GM_TRY(given_operand(q, out->in[IN_K], &a.turn.k));
    GM_TRY(given_operand(q, out->in[IN_V], &a.turn.v));
    GM_TRY(float_operand(q, out->in[IN_ANGLES], &a.turn.angles));
    GM_TRY(given_operand(q, out->in[IN_SINKS], &sinks));
    GM_TRY(given_operand(q, out->in[IN_Q_NORM], &a.q_norm));
    GM_TRY(given_operand(q, out->in[IN_K_NORM], &a.k_norm));
    GM_TRY(array_alloc(out, q));
    a.turn.q_out = queue_scratch(q, (size_t)(n * q_dim) * sizeof(float) + 1);
    if (!a.turn.q_out)
        return error_code();
    a.attention = (gm_attention_args){.out = array_ptr(out),
                                      .q = a.turn.q_out,
                                      .keys = batch_caches(&batch, &p->shape, spec->slot, 0),
                                      .values = batch_caches(&batch, &p->shape, spec->slot, 1),
                                      .sequence = batch.sequence,
                                      .positions = batch.positions,
                                      .kv_type = p->kv_type,
                                      .n_heads = spec->n_heads,
                                      .n_kv_heads = spec->n_kv_heads,
                                      .head_dim = spec->head_dim,
                                      .window = spec->window,
                                      .scale = spec->scale,
                                      .softcap = spec->softcap,
                                      .sinks = sinks,
                                      .tiles = batch.tiles};
    a.turn.q_stride = q_dim;
    a.turn.k_stride = a.turn.v_stride = kv_dim;
    a.turn.keys = a.attention.keys;
    a.turn.values = a.attention.values;
    a.turn.sequence = batch.sequence;
    a.turn.positions = batch.positions;
    a.turn.kv_type = p->kv_type;
    a.turn.n_heads = spec->n_heads;
    a.turn.n_kv_heads = spec->n_kv_heads;
    a.turn.head_dim = spec->head_dim;
    a.turn.half = out->in[IN_ANGLES]->shape[2];
    if (p->shape.tiles)
        return tiles_eval(q, &a, n, p->shape.tiles);
    a.attention.max_blocks = p->max_blocks;
    a.attention.n_blocks = batch.n_blocks;
    return DISPATCH_ARGS(q, turned_attention, n, &a);
}

const gm_op cached_attention_op = {.name = "cached_attention",
                                   .n_in = INPUTS,
                                   .n_out = 1,
                                   .nondiff = (1u << INPUTS) - 1,
                                   .optional = 1u << IN_K | 1u << IN_V | 1u << IN_SINKS | 1u << IN_Q_NORM |
                                               1u << IN_K_NORM,
                                   .param_size = sizeof(cached_param),
                                   .fields = cached_fields,
                                   .infer = cached_infer,
                                   .eval = cached_eval,
                                   .work = GM_WORK_ATTENTION};

gm_array *gm_cached_attention(gm_scope *s, const gm_attention_inputs *given, const gm_batch_state *batch,
                              const gm_attention_spec *spec) {
    cached_param p;
    if (spec->n_kv_heads < 1 || spec->head_dim < 1 || spec->n_heads < 1 || spec->n_heads % spec->n_kv_heads)
        return gm_fail(GM_EVALUE, "cached_attention: %d heads of %d are not a multiple of %d key/value heads",
                       spec->n_heads, spec->head_dim, spec->n_kv_heads),
               NULL;
    memset(&p, 0, sizeof p);
    p.shape = batch->shape;
    p.kv_type = batch->kv_type;
    p.max_blocks = batch->max_blocks;
    p.eps = given->eps;
    p.spec = *spec;
    gm_array *in[INPUTS] = {given->q,     given->k,      given->v,      given->angles,
                            given->sinks, given->q_norm, given->k_norm, batch->block};
    return array_node(s, &cached_attention_op, in, INPUTS, &p);
}
