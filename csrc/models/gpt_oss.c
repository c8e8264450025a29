/* gpt_oss.c - gpt-oss: sinks, YaRN over all layers, a window on every other one, experts with biases whose SwiGLU is
 * clamped. GGUF's post_attention_norm comes before the experts. */
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"
#include "ops/ops.h"

typedef struct {
    gm_array *attention_norm, *mlp_norm;
    attention_weights attention;
    expert_weights experts;
} layer;
typedef struct { double alpha, limit; } gpt_oss_config; /* of the clamped SwiGLU */

static const gm_weight_field fields[] = {
    NORM_FIELD(layer, attention_norm, "input_layernorm", "attn_norm.weight", 0),
    ATTENTION_FIELDS(layer, attention, FIELD_BIASED, FIELD_BIASED, FIELD_BIASED),
    {FIELD_VECTOR, offsetof(layer, attention.sinks), "self_attn.sinks", "attn_sinks.weight", DIM_HEADS, DIM_ONE, 0, 0},
    NORM_FIELD(layer, mlp_norm, "post_attention_layernorm", "post_attention_norm.weight|ffn_norm.weight", 0),
    {FIELD_LINEAR, offsetof(layer, experts.router), "mlp.router", "ffn_gate_inp", DIM_EXPERTS, DIM_HIDDEN, 0,
     FIELD_BIASED},
    EXPERT_FIELDS(layer, experts, "mlp.experts", FIELD_INTERLEAVED | FIELD_BIASED),
    {0},
};

static gm_status configure(const config_source *s, gm_config *c) {
    bool biased = true;
    c->head_dim = 64;
    c->n_kv_heads = 8;
    c->window = 128;
    c->mlp = 2880;
    c->eps = 1e-5;
    GM_TRY(config_int(s, "sliding_window", "attention.sliding_window", &c->window));
    GM_TRY(config_common(s, c));
    GM_TRY(config_flag(s, "attention_bias", NULL, &biased));
    c->unbiased = !biased;
    GM_TRY(config_layer_types(s, c, 2, LAYER_SLIDING));
    c->n_experts = config_is_gguf(s) ? 0 : 128;
    c->n_experts_used = 4;
    c->expert_mlp = c->mlp;
    c->normalise_experts = true;
    GM_TRY(config_int(s, "experts_per_token", NULL, &c->n_experts_used));
    GM_TRY(config_experts(s, c));
    GM_TRY(config_pair(s, "num_local_experts", "expert_count", 0));
    GM_TRY(config_pair(s, "intermediate_size", "expert_feed_forward_length", 0));
    gpt_oss_config *own = c->own;
    *own = (gpt_oss_config){.alpha = 1.702, .limit = 7};
    GM_TRY(config_number(s, "swiglu_alpha", NULL, &own->alpha));
    GM_TRY(config_number(s, "swiglu_limit", NULL, &own->limit));
    rope_config *r = &c->rope[ROPE_FULL];
    *r = rope_defaults(150000);
    if (!config_has(s, "rope_parameters", NULL) && !config_has(s, "rope_scaling", NULL)) {
        r->kind = ROPE_YARN;
        r->factor = 32;
        r->original_context = 4096;
        r->truncate = false;
    }
    GM_TRY(config_pair(s, "rope_scaling.truncate", NULL, r->truncate));
    GM_TRY(config_rope(s, c, NULL, r));
    c->rope[ROPE_SLIDING] = *r;
    return GM_OK;
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    const gpt_oss_config *own = m->config.own;
    const expert_activation act = {MOE_CLAMPED_SWIGLU, (float)own->alpha, (float)own->limit};
    float eps = (float)m->config.eps;
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = pass_made(s, &pass, x, l->attention_norm);
        x = attention_apply(s, &pass, i, &l->attention, &in, x);
        in = (gm_activation){.x = gm_rms_norm(s, x, l->mlp_norm, eps)};
        gm_array *fed = experts_apply(s, &pass, i, &l->experts, (expert_inputs){in.x, &in, GM_NONE}, act);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_MLP, fed));
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}

static const char *const types[] = {"gpt_oss", NULL}, *const gguf_names[] = {"gpt-oss", NULL};
const gm_architecture gpt_oss_architecture = {.name = "gpt_oss",
                                              .class_name = "GptOssForCausalLM",
                                              .gguf = gguf_names,
                                              .types = types,
                                              .layer_size = sizeof(layer),
                                              .config_size = sizeof(gpt_oss_config),
                                              .fields = fields,
                                              .configure = configure,
                                              .forward = forward};
