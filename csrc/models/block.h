/* block.h - the parts that decoders are wired of. They take what a layer's config says, never a model's name. */
#ifndef GOMLX_MODELS_BLOCK_H
#define GOMLX_MODELS_BLOCK_H
#include "models/model.h"
#include "nn/moe.h"
#include "ops/ops.h"

typedef struct {
    gm_linear q, k, v, o;
    gm_array *q_norm, *k_norm, *sinks; /* NULL: none; norms are of a head, or of all, as wide as they are */
} attention_weights;
typedef struct { gm_linear gate, up, down; } mlp_weights;
typedef struct { gm_linear router, gate, up, down; } expert_weights;
/* A Llama-like layer. */
typedef struct {
    gm_array *attention_norm, *mlp_norm;
    attention_weights attention;
    mlp_weights mlp;
} dense_layer;

/* ---- fields of these, for the table of a layer struct with a member `at` ---- */
/* clang-format off */
#define ATTENTION_FIELDS(layer, at, qk_flags, v_flags, o_flags)                                                        \
    {FIELD_LINEAR, offsetof(layer, at.q), "self_attn.q_proj", "attn_q", DIM_QUERIES, DIM_HIDDEN, HAS_ATTENTION,        \
     qk_flags},                                                                                                        \
    {FIELD_LINEAR, offsetof(layer, at.k), "self_attn.k_proj", "attn_k", DIM_KEYS, DIM_HIDDEN, HAS_ATTENTION | HAS_KV,  \
     qk_flags},                                                                                                        \
    {FIELD_LINEAR, offsetof(layer, at.v), "self_attn.v_proj", "attn_v", DIM_KEYS, DIM_HIDDEN, HAS_ATTENTION | HAS_V,   \
     v_flags},                                                                                                         \
    {FIELD_LINEAR, offsetof(layer, at.o), "self_attn.o_proj", "attn_output", DIM_HIDDEN, DIM_QUERIES, HAS_ATTENTION,   \
     o_flags}
#define HEAD_NORM_FIELDS(layer, at, one_plus_weight)                                                                   \
    {FIELD_VECTOR, offsetof(layer, at.q_norm), "self_attn.q_norm.weight", "attn_q_norm.weight", DIM_HEAD, DIM_ONE,     \
     HAS_ATTENTION, one_plus_weight},                                                                                  \
    {FIELD_VECTOR, offsetof(layer, at.k_norm), "self_attn.k_norm.weight", "attn_k_norm.weight", DIM_HEAD, DIM_ONE,     \
     HAS_KV, one_plus_weight}
#define MLP_FIELDS(layer, at)                                                                                          \
    {FIELD_LINEAR, offsetof(layer, at.gate), "mlp.gate_proj", "ffn_gate", DIM_MLP, DIM_HIDDEN, HAS_MLP, 0},            \
    {FIELD_LINEAR, offsetof(layer, at.up), "mlp.up_proj", "ffn_up", DIM_MLP, DIM_HIDDEN, HAS_MLP, 0},                  \
    {FIELD_LINEAR, offsetof(layer, at.down), "mlp.down_proj", "ffn_down", DIM_HIDDEN, DIM_MLP, HAS_MLP, 0}
#define EXPERT_FIELDS(layer, at, base, flags)                                                                          \
    {FIELD_EXPERTS, offsetof(layer, at.gate), base ".gate_proj", "ffn_gate_exps", DIM_EXPERT_MLP, DIM_HIDDEN,          \
     HAS_EXPERTS, flags},                                                                                              \
    {FIELD_EXPERTS, offsetof(layer, at.up), base ".up_proj", "ffn_up_exps", DIM_EXPERT_MLP, DIM_HIDDEN, HAS_EXPERTS,   \
     flags},                                                                                                           \
    {FIELD_EXPERTS, offsetof(layer, at.down), base ".down_proj", "ffn_down_exps", DIM_HIDDEN, DIM_EXPERT_MLP,          \
     HAS_EXPERTS, flags}
#define NORM_FIELD(layer, at, name, gguf, one_plus_weight)                                                             \
    {FIELD_VECTOR, offsetof(layer, at), name ".weight", gguf, DIM_HIDDEN, DIM_ONE, 0, one_plus_weight}
/* clang-format on */

/* ---- the parts ---- */
/* cos and sin of the pass's positions by kind of layer, made on first use. */
typedef struct {
    const gm_model *model;
    const gm_batch *batch;
    gm_array *angles[GM_ROPES];
    gm_array *positions; /* of the rows that need logits, once only these are left */
} gm_pass;
/* x, or what the pass's edits make of it: taps.h. layer -1: of the model. In training, where a layer begins is where
 * gradients may compute it again. */
static inline gm_array *pass_tap(gm_scope *s, gm_pass *p, int64_t layer, gm_tap_point point, gm_array *x) {
    gm_taps *taps = p->batch->taps;
    if (p->batch->training && point == TAP_INPUT)
        return gm_recompute(s, x, p->batch->training->checkpoints ? RECOMPUTE_ALL : RECOMPUTE_CHEAP);
    return taps ? taps_apply(s, taps, layer, point, x, p->positions ? p->positions : p->batch->positions) : x;
}
gm_array *pass_angles(gm_scope *s, gm_pass *p, gm_layer_kind kind);
/* The residual stream as layer i begins: nodes from here on are on its device, with the pass's rows as these are there.
 */
gm_array *pass_layer(gm_scope *s, gm_pass *p, int64_t i, gm_array *x);

/* The layer's struct in the model. */
static inline const void *model_layer(const gm_model *m, int64_t i) {
    return m->layers + (size_t)i * m->arch->layer_size;
}
/* RMSNorm over the last `width` numbers: x [n, k] as rows of heads when width < k. weight NULL: none. */
gm_array *norm_apply(gm_scope *s, gm_array *x, gm_array *weight, int64_t width, double eps);
/* x normed over all of it (norm GM_NONE: as it is), for layers: where the device has products that do so as they read
 * rows, not yet. */
gm_activation pass_made(gm_scope *s, gm_pass *p, gm_array *x, gm_array *norm);
/* What some families' attention has besides. normed_values: of RMS 1 without weights; where the layer has no v_proj
 * they are the keys' projection. gate: where gates [n, n_heads * head_dim] go that q_proj gives with the queries. */
typedef struct {
    bool normed_values;
    gm_array **gate;
} attention_form;
/* Queries, keys and values of layer i, norms of heads and rotation included; o_proj and residual (GM_NONE: none) are
 * the caller's: float32 [n, n_heads * head_dim]. x: the normed input. */
gm_array *attention_mix(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_activation *x,
                        attention_form form);
gm_array *attention_apply(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_activation *x,
                          gm_array *residual);
/* What a linear layer gives to the residual stream (GM_NONE: it comes to it later), seen at a point. */
gm_array *output_apply(gm_scope *s, gm_pass *p, int64_t i, gm_tap_point point, const gm_linear *w, gm_activation *x,
                       gm_array *residual);
/* down(act(gate(x)) * up(x)) + residual; gelu: else act is silu */
gm_array *mlp_apply(gm_scope *s, const mlp_weights *w, gm_activation *x, bool gelu, gm_array *residual);
/* The same as what layer i adds to its residual stream. */
gm_array *mlp_output(gm_scope *s, gm_pass *p, int64_t i, const mlp_weights *w, gm_activation *x, bool gelu,
                     gm_array *residual);
/* x: what the experts see; route: what the router sees; scale: of each expert, or GM_NONE. */
typedef struct {
    gm_array *x;
    gm_activation *route;
    gm_array *scale;
} expert_inputs;
/* The experts that the router of layer i chooses for x, weighted. */
gm_array *experts_apply(gm_scope *s, gm_pass *p, int64_t i, const expert_weights *w, expert_inputs in,
                        expert_activation act);
/* The forward pass of models whose layers are dense_layers. */
gm_array *dense_forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden);
/* The embedding of the pass's tokens, times the config's scale. */
gm_array *embed_tokens(gm_scope *s, gm_pass *p);
/* The end of every forward: rows that need logits, final norm, head, softcap; or x itself when only caches are filled.
 */
gm_array *head_apply(gm_scope *s, gm_pass *p, gm_array *x, bool hidden);
#endif
