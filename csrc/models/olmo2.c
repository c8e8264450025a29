/* olmo2.c - OLMo 2: Llama with its norms after attention and MLP, before what they give joins the residual stream, and
 * norms of queries and keys over all heads at once. */
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"
#include "ops/ops.h"

/* The norms of a dense_layer, but after its parts. */
static const gm_weight_field fields[] = {
    ATTENTION_FIELDS(dense_layer, attention, 0, 0, 0),
    {FIELD_VECTOR, offsetof(dense_layer, attention.q_norm), "self_attn.q_norm.weight", "attn_q_norm.weight",
     DIM_QUERIES, DIM_ONE, 0, 0},
    {FIELD_VECTOR, offsetof(dense_layer, attention.k_norm), "self_attn.k_norm.weight", "attn_k_norm.weight", DIM_KEYS,
     DIM_ONE, 0, 0},
    NORM_FIELD(dense_layer, attention_norm, "post_attention_layernorm", "post_attention_norm.weight", 0),
    MLP_FIELDS(dense_layer, mlp),
    NORM_FIELD(dense_layer, mlp_norm, "post_feedforward_layernorm", "post_ffw_norm.weight", 0),
    {0},
};

static gm_status configure(const config_source *s, gm_config *c) {
    c->eps = 1e-5;
    GM_TRY(config_activation(s, "silu"));
    GM_TRY(config_common(s, c));
    c->rope[ROPE_FULL] = rope_defaults(10000);
    return config_rope(s, c, NULL, &c->rope[ROPE_FULL]);
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    const float eps = (float)m->config.eps;
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const dense_layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = pass_made(s, &pass, x, GM_NONE);
        gm_array *mixed = attention_apply(s, &pass, i, &l->attention, &in, GM_NONE);
        mixed = gm_rms_norm(s, mixed, l->attention_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_ATTENTION_OUTPUT, mixed));
        in = pass_made(s, &pass, x, GM_NONE);
        gm_array *fed = gm_rms_norm(s, mlp_apply(s, &l->mlp, &in, false, GM_NONE), l->mlp_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_MLP, fed));
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}

static const char *const types[] = {"olmo2", NULL};
const gm_architecture olmo2_architecture = {.name = "olmo2",
                                            .class_name = "Olmo2ForCausalLM",
                                            .gguf = types,
                                            .types = types,
                                            .layer_size = sizeof(dense_layer),
                                            .fields = fields,
                                            .configure = configure,
                                            .forward = forward};
