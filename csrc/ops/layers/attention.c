/* attention.c - softmax(q k^T) v over the caches of sequences; over plain arrays it is in sdpa.c.
 * Source of the block-wise form: Milakov and Gimelshein 2018; Dao et al., FlashAttention, 2022. */
#include <string.h>
#include "ops/layers/batch_state.h"
#include "ops/ops.h"

/* Inputs: q, k, v (k and v GM_NONE: an earlier layer of the pass filled the slot), angles, sinks, and the block of the
 * batch's state. The caches that it has addresses of are written in place. */
typedef struct {
    gm_batch_shape shape;
    int32_t kv_type;
    int64_t max_blocks;
    gm_attention_spec spec;
} cached_param;
#define SPEC_FIELD(kind, name) {kind, offsetof(cached_param, spec.name), #name, 1}
static const gm_field cached_fields[] = {{FIELD_INT, offsetof(cached_param, shape), "shape", 4},
                                         {FIELD_INT, offsetof(cached_param, kv_type), "kv_type", 1},
                                         {FIELD_INT64, offsetof(cached_param, max_blocks), "max_blocks", 1},
                                         SPEC_FIELD(FIELD_INT, slot),
                                         SPEC_FIELD(FIELD_INT, n_heads),
                                         SPEC_FIELD(FIELD_INT, n_kv_heads),
                                         SPEC_FIELD(FIELD_INT, head_dim),
                                         SPEC_FIELD(FIELD_INT, window),
                                         SPEC_FIELD(FIELD_FLOAT, scale),
                                         SPEC_FIELD(FIELD_FLOAT, softcap),
                                         {0}};
enum { IN_Q, IN_K, IN_V, IN_ANGLES, IN_SINKS, IN_BATCH, INPUTS };

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
    spec_like(out, in[IN_Q], GM_FLOAT32);
    return GM_OK;
}

static gm_status cached_eval(gm_array *out, gm_queue *q) {
    const cached_param *p = out->param;
    const gm_attention_spec *spec = &p->spec;
    const int64_t n = out->shape[0], q_dim = out->shape[1], kv_dim = (int64_t)spec->n_kv_heads * spec->head_dim;
    const gm_batch_view batch = batch_view(array_ptr(out->in[IN_BATCH]), &p->shape);
    const bool append = !array_is_none(out->in[IN_K]), sinks = !array_is_none(out->in[IN_SINKS]);
    const float *qd, *kd = NULL, *vd = NULL, *angles, *sink = NULL;
    GM_TRY(float_operand(q, out->in[IN_Q], &qd));
    if (append) {
        GM_TRY(float_operand(q, out->in[IN_K], &kd));
        GM_TRY(float_operand(q, out->in[IN_V], &vd));
    }
    GM_TRY(float_operand(q, out->in[IN_ANGLES], &angles));
    if (sinks)
        GM_TRY(float_operand(q, out->in[IN_SINKS], &sink));
    GM_TRY(array_alloc(out, q));
    float *rotated = queue_scratch(q, (size_t)(n * q_dim) * sizeof(float) + 1);
    if (!rotated)
        return error_code();
    gm_attention_args args = {.out = array_ptr(out),
                              .q = rotated,
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
                              .sinks = sink,
                              .tiles = batch.tiles};
    GM_TRY(DISPATCH(q, rope_cache, n, .q_out = rotated, .q = qd, .k = kd, .v = vd, .angles = angles, .q_stride = q_dim,
                    .k_stride = kv_dim, .v_stride = kv_dim, .keys = args.keys, .values = args.values,
                    .sequence = args.sequence, .positions = args.positions, .kv_type = args.kv_type,
                    .n_heads = spec->n_heads, .n_kv_heads = spec->n_kv_heads, .head_dim = spec->head_dim,
                    .half = out->in[IN_ANGLES]->shape[2]));
    queue_fence(q);
    if (p->shape.tiles)
        return DISPATCH_ARGS(q, attention, p->shape.tiles, &args);
    args.max_blocks = p->max_blocks;
    args.n_blocks = batch.n_blocks;
    return DISPATCH_ARGS(q, attention_rows, n, &args);
}

const gm_op cached_attention_op = {.name = "cached_attention",
                                   .n_in = INPUTS,
                                   .n_out = 1,
                                   .nondiff = (1u << INPUTS) - 1,
                                   .optional = 1u << IN_K | 1u << IN_V | 1u << IN_SINKS,
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
    p.spec = *spec;
    gm_array *in[INPUTS] = {given->q, given->k, given->v, given->angles, given->sinks, batch->block};
    return array_node(s, &cached_attention_op, in, INPUTS, &p);
}
