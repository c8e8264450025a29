/* qwen.c - Qwen 2, 2.5 and DeepSeek's distillations to them: Llama with biases on queries, keys and values. Qwen 3: no
 * biases, and norms of queries and keys. Both may have sliding windows on their last layers. */
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"
#include "models/qwen.h"

static const gm_weight_field qwen2_fields[] = {
    NORM_FIELD(dense_layer, attention_norm, "input_layernorm", "attn_norm.weight", 0),
    ATTENTION_FIELDS(dense_layer, attention, FIELD_BIASED, FIELD_BIASED, 0),
    NORM_FIELD(dense_layer, mlp_norm, "post_attention_layernorm", "ffn_norm.weight", 0),
    MLP_FIELDS(dense_layer, mlp),
    {0},
};
static const gm_weight_field qwen3_fields[] = {
    NORM_FIELD(dense_layer, attention_norm, "input_layernorm", "attn_norm.weight", 0),
    ATTENTION_FIELDS(dense_layer, attention, 0, 0, 0),
    HEAD_NORM_FIELDS(dense_layer, attention, 0),
    NORM_FIELD(dense_layer, mlp_norm, "post_attention_layernorm", "ffn_norm.weight", 0),
    MLP_FIELDS(dense_layer, mlp),
    {0},
};

gm_status qwen_configure(const config_source *s, gm_config *c, bool all_layers) {
    bool sliding = false;
    int64_t window = config_has_null(s, "sliding_window") ? 0 : 4096, from = all_layers ? 0 : 28;
    GM_TRY(config_activation(s, "silu"));
    GM_TRY(config_flag(s, "use_sliding_window", NULL, &sliding));
    GM_TRY(config_int(s, "sliding_window", NULL, &window));
    if (!all_layers)
        GM_TRY(config_int(s, "max_window_layers", NULL, &from));
    GM_TRY(config_common(s, c));
    c->window = sliding && !config_is_gguf(s) ? window : 0;
    for (int64_t i = from; i < c->n_layers && c->window; i++) {
        c->layers[i].kind = LAYER_SLIDING;
        c->layers[i].window = c->window;
    }
    if (!all_layers && c->window)
        GM_TRY(config_layer_types(s, c, 0, LAYER_SLIDING));
    c->rope[ROPE_FULL] = rope_defaults(10000);
    GM_TRY(config_rope(s, c, NULL, &c->rope[ROPE_FULL]));
    c->rope[ROPE_SLIDING] = c->rope[ROPE_FULL];
    return GM_OK;
}

static gm_status configure_qwen2(const config_source *s, gm_config *c) { return qwen_configure(s, c, false); }

static gm_status configure_qwen3(const config_source *s, gm_config *c) {
    c->head_dim = 128;
    return qwen_configure(s, c, false);
}

static const char *const qwen2_types[] = {"qwen2", NULL}, *const qwen3_types[] = {"qwen3", NULL};
const gm_architecture qwen2_architecture = {.name = "qwen2",
                                            .class_name = "Qwen2ForCausalLM",
                                            .gguf = qwen2_types,
                                            .types = qwen2_types,
                                            .layer_size = sizeof(dense_layer),
                                            .fields = qwen2_fields,
                                            .configure = configure_qwen2,
                                            .forward = dense_forward};
const gm_architecture qwen3_architecture = {.name = "qwen3",
                                            .class_name = "Qwen3ForCausalLM",
                                            .gguf = qwen3_types,
                                            .types = qwen3_types,
                                            .layer_size = sizeof(dense_layer),
                                            .fields = qwen3_fields,
                                            .configure = configure_qwen3,
                                            .forward = dense_forward};
