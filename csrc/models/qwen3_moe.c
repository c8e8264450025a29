/* qwen3_moe.c - Qwen 3-MoE: Qwen 3 with experts instead of most MLPs, chosen by a softmax over all of them. */
#include <stddef.h>
#include "models/block.h"
#include "models/qwen.h"
#include "ops/ops.h"

typedef struct {
    dense_layer dense; /* its MLP where the layer has no experts */
    expert_weights experts;
} layer;

static const gm_weight_field fields[] = {
    NORM_FIELD(layer, dense.attention_norm, "input_layernorm", "attn_norm.weight", 0),
    ATTENTION_FIELDS(layer, dense.attention, 0, 0, 0),
    HEAD_NORM_FIELDS(layer, dense.attention, 0),
    NORM_FIELD(layer, dense.mlp_norm, "post_attention_layernorm", "ffn_norm.weight", 0),
    MLP_FIELDS(layer, dense.mlp),
    {FIELD_LINEAR, offsetof(layer, experts.router), "mlp.gate", "ffn_gate_inp", DIM_EXPERTS, DIM_HIDDEN, HAS_EXPERTS,
     0},
    EXPERT_FIELDS(layer, experts, "mlp.experts", 0),
    {0},
};

static gm_status configure(const config_source *s, gm_config *c) {
    GM_TRY(qwen_configure(s, c, true));
    c->n_experts = config_is_gguf(s) ? 0 : 128;
    c->n_experts_used = 8;
    c->expert_mlp = 768;
    c->normalise_experts = config_is_gguf(s);
    return config_experts(s, c);
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = pass_made(s, &pass, x, l->dense.attention_norm);
        x = attention_apply(s, &pass, i, &l->dense.attention, &in, x);
        in = pass_made(s, &pass, x, l->dense.mlp_norm);
        if (m->config.layers[i].has & HAS_EXPERTS) {
            activation_rows(s, &in);
            const expert_activation act = {MOE_SWIGLU, 0, 0};
            gm_array *fed = experts_apply(s, &pass, i, &l->experts, (expert_inputs){in.x, &in, GM_NONE}, act);
            x = gm_add(s, x, pass_tap(s, &pass, i, TAP_MLP, fed));
        } else {
            x = mlp_output(s, &pass, i, &l->dense.mlp, &in, false, x);
        }
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}

static const char *const types[] = {"qwen3_moe", NULL}, *const gguf_names[] = {"qwen3moe", NULL};
const gm_architecture qwen3_moe_architecture = {.name = "qwen3_moe",
                                                .class_name = "Qwen3MoeForCausalLM",
                                                .gguf = gguf_names,
                                                .types = types,
                                                .layer_size = sizeof(layer),
                                                .fields = fields,
                                                .configure = configure,
                                                .forward = forward};
