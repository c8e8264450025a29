/* gemma.c - Gemma 2 and 3: norms of 1 + w before and after each part, embeddings times sqrt(hidden), GELU gates,
 * windows on most layers. Gemma 2 caps scores and logits; Gemma 3 norms queries and keys and rotates sliding layers by
 * a smaller base; transformers does not read its attn_logit_softcapping. */
#include <math.h>
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"
#include "ops/ops.h"

typedef struct {
    gm_array *attention_norm, *attention_end_norm, *mlp_norm, *mlp_end_norm;
    attention_weights attention;
    mlp_weights mlp;
} layer;

#define SHARED_FIELDS                                                                                                  \
    NORM_FIELD(layer, attention_norm, "input_layernorm", "attn_norm.weight", FIELD_ONE_PLUS_WEIGHT),                   \
        ATTENTION_FIELDS(layer, attention, 0, 0, 0),                                                                   \
        NORM_FIELD(layer, attention_end_norm, "post_attention_layernorm", "post_attention_norm.weight",                \
                   FIELD_ONE_PLUS_WEIGHT),                                                                             \
        NORM_FIELD(layer, mlp_norm, "pre_feedforward_layernorm", "ffn_norm.weight", FIELD_ONE_PLUS_WEIGHT),            \
        MLP_FIELDS(layer, mlp),                                                                                        \
        NORM_FIELD(layer, mlp_end_norm, "post_feedforward_layernorm", "post_ffw_norm.weight", FIELD_ONE_PLUS_WEIGHT)

static const gm_weight_field gemma2_fields[] = {SHARED_FIELDS, {0}};
static const gm_weight_field gemma3_fields[] = {
    SHARED_FIELDS, HEAD_NORM_FIELDS(layer, attention, FIELD_ONE_PLUS_WEIGHT), {0}};

/* heads_scaled: GGUF does not say the scale; it is 1/sqrt(hidden / n_heads) for the largest model, which has this many
 * layers. */
static gm_status configure(const config_source *s, gm_config *c, int64_t period, int64_t heads_scaled) {
    double scalar = 256;
    c->head_dim = 256;
    c->tied = 1;
    c->one_plus_weight = true;
    c->window = 4096;
    GM_TRY(config_activation(s, "gelu_pytorch_tanh"));
    GM_TRY(config_causal(s));
    GM_TRY(config_int(s, "sliding_window", "attention.sliding_window", &c->window));
    GM_TRY(config_common(s, c));
    GM_TRY(config_int(s, "sliding_window_pattern", NULL, &period));
    GM_TRY(config_int(s, "_sliding_window_pattern", NULL, &period));
    GM_TRY(config_layer_types(s, c, period, LAYER_SLIDING));
    c->embedding_scale = sqrt((double)c->hidden);
    if (config_is_gguf(s))
        scalar = c->n_layers == heads_scaled ? (double)(c->hidden / c->n_heads) : (double)c->head_dim;
    GM_TRY(config_number(s, "query_pre_attn_scalar", NULL, &scalar));
    GM_TRY(config_pair(s, "layers_of_the_largest", NULL, (double)heads_scaled));
    c->attention_scale = 1 / sqrt(scalar);
    return config_optional(s, "final_logit_softcapping", "final_logit_softcapping", &c->final_softcap);
}

static gm_status configure_gemma2(const config_source *s, gm_config *c) {
    c->attention_softcap = 50;
    c->final_softcap = 30;
    c->hidden = 2304;
    c->n_layers = 26;
    c->n_heads = 8;
    c->n_kv_heads = 4;
    c->mlp = 9216;
    c->context = 8192;
    GM_TRY(configure(s, c, 2, 46));
    GM_TRY(config_optional(s, "attn_logit_softcapping", "attn_logit_softcapping", &c->attention_softcap));
    c->rope[ROPE_FULL] = rope_defaults(10000);
    GM_TRY(config_rope(s, c, NULL, &c->rope[ROPE_FULL]));
    c->rope[ROPE_SLIDING] = c->rope[ROPE_FULL];
    return GM_OK;
}

static gm_status configure_gemma3(const config_source *s, gm_config *c) {
    c->vocab = 262208;
    c->hidden = 2304;
    c->n_layers = 26;
    c->n_heads = 8;
    c->n_kv_heads = 4;
    c->mlp = 9216;
    c->context = 131072;
    GM_TRY(configure(s, c, 6, 62));
    double unused = 0; /* conversions carry it; transformers does not apply it in Gemma 3 */
    GM_TRY(config_optional(s, "attn_logit_softcapping", "attn_logit_softcapping", &unused));
    rope_config *full = &c->rope[ROPE_FULL], *sliding = &c->rope[ROPE_SLIDING];
    *full = rope_defaults(1e6);
    *sliding = rope_defaults(1e4);
    GM_TRY(config_rope(s, c, "full_attention", full));
    GM_TRY(config_number(s, "rope_local_base_freq", "rope.freq_base_swa", &sliding->theta));
    return config_rope_nested(s, c, "sliding_attention", sliding);
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    float eps = (float)m->config.eps;
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = pass_made(s, &pass, x, l->attention_norm);
        gm_array *mixed = attention_apply(s, &pass, i, &l->attention, &in, GM_NONE);
        mixed = gm_rms_norm(s, mixed, l->attention_end_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_ATTENTION_OUTPUT, mixed));
        gm_activation inner = pass_made(s, &pass, x, l->mlp_norm);
        gm_array *fed = mlp_apply(s, &l->mlp, &inner, true, GM_NONE);
        fed = gm_rms_norm(s, fed, l->mlp_end_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_MLP, fed));
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}

static const char *const gemma2_types[] = {"gemma2", NULL}, *const gemma3_types[] = {"gemma3_text", "gemma3", NULL},
                         *const gemma3_gguf[] = {"gemma3", NULL};
const gm_architecture gemma2_architecture = {.name = "gemma2",
                                             .class_name = "Gemma2ForCausalLM",
                                             .gguf = gemma2_types,
                                             .types = gemma2_types,
                                             .layer_size = sizeof(layer),
                                             .fields = gemma2_fields,
                                             .configure = configure_gemma2,
                                             .forward = forward};
const gm_architecture gemma3_architecture = {.name = "gemma3",
                                             .class_name = "Gemma3ForCausalLM",
                                             .gguf = gemma3_gguf,
                                             .types = gemma3_types,
                                             .layer_size = sizeof(layer),
                                             .fields = gemma3_fields,
                                             .configure = configure_gemma3,
                                             .forward = forward};
