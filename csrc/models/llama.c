/* llama.c - Llama 2, 3, 3.x, SmolLM2, DeepSeek's distillations to Llama; and Mistral, which is the same with a sliding
 * window. Pre-norm blocks, RMSNorm, half-split rotary embedding on all of head_dim, grouped-query attention, SwiGLU. */
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"

static const gm_weight_field fields[] = {
    NORM_FIELD(dense_layer, attention_norm, "input_layernorm", "attn_norm.weight", 0),
    ATTENTION_FIELDS(dense_layer, attention, FIELD_PERMUTED, 0, 0),
    NORM_FIELD(dense_layer, mlp_norm, "post_attention_layernorm", "ffn_norm.weight", 0),
    MLP_FIELDS(dense_layer, mlp),
    {0},
};

static gm_status configure(const config_source *s, gm_config *c, int64_t window) {
    int64_t experts = 0;
    GM_TRY(config_activation(s, "silu"));
    GM_TRY(config_int(s, NULL, "expert_count", &experts));
    if (experts > 0)
        return gm_fail(GM_EUNSUPPORTED,
                       "%s: mixtures of experts (%lld experts) of architecture llama are not "
                       "supported",
                       config_name(s), (long long)experts);
    c->window = config_is_gguf(s) ? 0 : window;
    if (window || config_is_gguf(s))
        GM_TRY(config_int(s, "sliding_window", "attention.sliding_window", &c->window));
    GM_TRY(config_common(s, c));
    c->rope[ROPE_FULL] = rope_defaults(10000);
    GM_TRY(config_rope(s, c, NULL, &c->rope[ROPE_FULL]));
    c->rope[ROPE_SLIDING] = c->rope[ROPE_FULL];
    return GM_OK;
}

static gm_status configure_llama(const config_source *s, gm_config *c) { return configure(s, c, 0); }

/* A window that is null means none; a missing key means 4096. */
static gm_status configure_mistral(const config_source *s, gm_config *c) {
    return configure(s, c, config_has_null(s, "sliding_window") ? 0 : 4096);
}

static const char *const llama_types[] = {"llama", NULL}, *const mistral_types[] = {"mistral", NULL};
const gm_architecture llama_architecture = {.name = "llama",
                                            .class_name = "LlamaForCausalLM",
                                            .gguf = llama_types,
                                            .types = llama_types,
                                            .layer_size = sizeof(dense_layer),
                                            .fields = fields,
                                            .configure = configure_llama,
                                            .forward = dense_forward};
/* GGUF files of Mistral say "llama". */
const gm_architecture mistral_architecture = {.name = "mistral",
                                              .class_name = "MistralForCausalLM",
                                              .types = mistral_types,
                                              .written_as = "llama",
                                              .chat = "mistral",
                                              .layer_size = sizeof(dense_layer),
                                              .fields = fields,
                                              .configure = configure_mistral,
                                              .forward = dense_forward};
