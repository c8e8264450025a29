/* gemma4.c - Gemma 4: plain norms before and after each part; full layers with larger heads and partial rotary
 * embedding, and keys that may serve as values; values of RMS 1; scores unscaled; the last layers read the keys of
 * earlier ones; an input of its own for each layer; experts beside the MLP; a scalar after each layer. */
#include <math.h>
#include <stddef.h>
#include "models/block.h"
#include "models/config.h"
#include "ops/ops.h"

typedef struct {
    gm_array *attention_norm, *attention_end_norm, *mlp_norm, *mlp_end_norm, *scalar;
    attention_weights attention;
    mlp_weights mlp;
    gm_array *mlp_own_end_norm, *experts_norm, *experts_end_norm, *router_scale, *expert_scale;
    expert_weights experts;
    gm_linear input_gate, input_projection;
    gm_array *input_norm;
} layer;
typedef struct {
    gm_linear embedding, projection; /* inputs of all layers side by side */
    gm_array *norm;
} globals;
typedef struct {
    int64_t per_layer_input, all_inputs, per_layer_vocab; /* sizes of one layer's input, and of all layers' */
} gemma4_config;

#define AT(member) offsetof(layer, member)
static const gm_weight_field fields[] = {
    NORM_FIELD(layer, attention_norm, "input_layernorm", "attn_norm.weight", 0),
    {FIELD_LINEAR, AT(attention.q), "self_attn.q_proj", "attn_q", DIM_QUERIES, DIM_HIDDEN, 0, 0},
    {FIELD_LINEAR, AT(attention.k), "self_attn.k_proj", "attn_k", DIM_KEYS, DIM_HIDDEN, HAS_KV, 0},
    {FIELD_LINEAR, AT(attention.v), "self_attn.v_proj", "attn_v", DIM_KEYS, DIM_HIDDEN, HAS_V, FIELD_GGUF_OPTIONAL},
    {FIELD_LINEAR, AT(attention.o), "self_attn.o_proj", "attn_output", DIM_HIDDEN, DIM_QUERIES, 0, 0},
    HEAD_NORM_FIELDS(layer, attention, 0),
    NORM_FIELD(layer, attention_end_norm, "post_attention_layernorm", "post_attention_norm.weight", 0),
    NORM_FIELD(layer, mlp_norm, "pre_feedforward_layernorm", "ffn_norm.weight", 0),
    MLP_FIELDS(layer, mlp),
    NORM_FIELD(layer, mlp_end_norm, "post_feedforward_layernorm", "post_ffw_norm.weight", 0),
    {FIELD_VECTOR, AT(scalar), "layer_scalar", "layer_output_scale.weight", DIM_ONE, DIM_ONE, 0, 0},
    {FIELD_VECTOR, AT(mlp_own_end_norm), "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", DIM_HIDDEN,
     DIM_ONE, HAS_EXPERTS, 0},
    {FIELD_VECTOR, AT(experts_norm), "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", DIM_HIDDEN, DIM_ONE,
     HAS_EXPERTS, 0},
    {FIELD_VECTOR, AT(experts_end_norm), "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", DIM_HIDDEN,
     DIM_ONE, HAS_EXPERTS, 0},
    {FIELD_LINEAR, AT(experts.router), "router.proj", "ffn_gate_inp", DIM_EXPERTS, DIM_HIDDEN, HAS_EXPERTS, 0},
    {FIELD_VECTOR, AT(router_scale), "router.scale", "ffn_gate_inp.scale", DIM_HIDDEN, DIM_ONE, HAS_EXPERTS, 0},
    {FIELD_VECTOR, AT(expert_scale), "router.per_expert_scale", "ffn_down_exps.scale", DIM_EXPERTS, DIM_ONE,
     HAS_EXPERTS, 0},
    EXPERT_FIELDS(layer, experts, "experts", FIELD_FUSED | FIELD_GGUF_FUSED),
    {FIELD_LINEAR, AT(input_gate), "per_layer_input_gate", "inp_gate", OWN_DIM(gemma4_config, per_layer_input),
     DIM_HIDDEN, HAS_PER_LAYER_INPUT, 0},
    {FIELD_LINEAR, AT(input_projection), "per_layer_projection", "proj", DIM_HIDDEN,
     OWN_DIM(gemma4_config, per_layer_input), HAS_PER_LAYER_INPUT, 0},
    {FIELD_VECTOR, AT(input_norm), "post_per_layer_input_norm.weight", "post_norm.weight", DIM_HIDDEN, DIM_ONE,
     HAS_PER_LAYER_INPUT, 0},
    {0},
};
static const gm_weight_field global_fields[] = {
    {FIELD_LINEAR, offsetof(globals, embedding), "embed_tokens_per_layer", "per_layer_token_embd",
     OWN_DIM(gemma4_config, per_layer_vocab), OWN_DIM(gemma4_config, all_inputs), HAS_PER_LAYER_INPUT, FIELD_EMBEDDING},
    {FIELD_LINEAR, offsetof(globals, projection), "per_layer_model_projection", "per_layer_model_proj",
     OWN_DIM(gemma4_config, all_inputs), DIM_HIDDEN, HAS_PER_LAYER_INPUT, 0},
    {FIELD_VECTOR, offsetof(globals, norm), "per_layer_projection_norm.weight", "per_layer_proj_norm.weight",
     OWN_DIM(gemma4_config, per_layer_input), DIM_ONE, HAS_PER_LAYER_INPUT, 0},
    {0},
};

/* ---- config ---- */
/* What GGUF calls the sizes and bases of both kinds of layers. */
static gm_status pair_names(const config_source *s) {
    static const struct {
        const char *key, *gguf;
        double usual;
    } sizes[] = {{"global_head_dim", "attention.key_length", 512}, {"global_head_dim", "attention.value_length", 0},
                 {"head_dim", "attention.key_length_swa", 0},      {"head_dim", "attention.value_length_swa", 0},
                 {"global_head_dim", "rope.dimension_count", 0},   {"head_dim", "rope.dimension_count_swa", 0}};
    double full = 1e6, sliding = 1e4;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        GM_TRY(config_pair(s, sizes[i].key, sizes[i].gguf, sizes[i].usual));
    GM_TRY(config_number(s, "rope_theta", "rope.freq_base", &full));
    return config_number(s, "rope_local_base_freq", "rope.freq_base_swa", &sliding);
}

/* Heads of full layers: their own size, and with keys as values their own number. */
static gm_status configure_heads(const config_source *s, gm_config *c) {
    const bool is_gguf = config_is_gguf(s);
    bool keys_are_values = false, overridden = false;
    int64_t full = 512, sliding = c->head_dim, full_kv = 0;
    GM_TRY(config_overrides(s, c, &overridden));
    GM_TRY(config_int(s, "global_head_dim", "attention.key_length", &full));
    GM_TRY(config_int(s, NULL, "attention.key_length_swa", &sliding));
    GM_TRY(config_flag(s, "attention_k_eq_v", NULL, &keys_are_values));
    GM_TRY(config_int(s, "num_global_key_value_heads", NULL, &full_kv));
    for (int64_t i = 0; i < c->n_layers; i++) {
        gm_layer_config *l = &c->layers[i];
        const bool is_full = l->kind == LAYER_FULL;
        if (!overridden || is_gguf)
            l->head_dim = is_full ? full : sliding;
        if (is_full && keys_are_values) {
            l->has &= ~(uint32_t)HAS_V;
            l->n_kv_heads = full_kv && !overridden ? full_kv : l->n_kv_heads;
        }
    }
    return GM_OK;
}

/* The last layers read the keys of the last one of their kind before them. */
static gm_status configure_sharing(const config_source *s, gm_config *c) {
    int64_t shared = 0;
    bool wide = false;
    GM_TRY(config_int(s, "num_kv_shared_layers", "attention.shared_kv_layers", &shared));
    GM_TRY(config_flag(s, "use_double_wide_mlp", NULL, &wide));
    if (shared < 0 || shared >= c->n_layers)
        return gm_fail(GM_EBADFILE, "%s: num_kv_shared_layers is %lld, expected 0 to less than %lld layers",
                       config_name(s), (long long)shared, (long long)c->n_layers);
    for (int64_t i = c->n_layers - shared; i < c->n_layers; i++) {
        gm_layer_config *l = &c->layers[i];
        int64_t from = c->n_layers - shared - 1;
        while (from >= 0 && c->layers[from].kind != l->kind)
            from--;
        if (from < 0)
            return gm_fail(GM_EBADFILE, "%s: layer %lld shares keys, and no layer before %lld is of its kind",
                           config_name(s), (long long)i, (long long)(c->n_layers - shared));
        l->source = (int)from;
        l->has &= ~(uint32_t)(HAS_KV | HAS_V);
        l->n_kv_heads = c->layers[from].n_kv_heads;
        if (wide)
            l->mlp *= 2;
    }
    return GM_OK;
}

/* The inputs of each layer. */
static gm_status configure_inputs(const config_source *s, gm_config *c) {
    gemma4_config *own = c->own;
    const bool is_gguf = config_is_gguf(s);
    own->per_layer_input = is_gguf || config_has_null(s, "hidden_size_per_layer_input") ? 0 : 256;
    own->per_layer_vocab = is_gguf ? c->vocab : 262144;
    GM_TRY(config_int(s, "hidden_size_per_layer_input", "embedding_length_per_layer_input", &own->per_layer_input));
    GM_TRY(config_int(s, "vocab_size_per_layer_input", NULL, &own->per_layer_vocab));
    if (own->per_layer_input < 0 || own->per_layer_input > 65536 || own->per_layer_vocab < 0 ||
        own->per_layer_vocab > 1 << 26)
        return gm_fail(GM_EBADFILE, "%s: hidden_size_per_layer_input is %lld of a vocabulary of %lld", config_name(s),
                       (long long)own->per_layer_input, (long long)own->per_layer_vocab);
    own->all_inputs = c->n_layers * own->per_layer_input;
    return GM_OK;
}

static gm_status configure_ropes(const config_source *s, gm_config *c) {
    rope_config *full = &c->rope[ROPE_FULL], *sliding = &c->rope[ROPE_SLIDING];
    int64_t full_dim = c->head_dim;
    for (int64_t i = 0; i < c->n_layers; i++)
        full_dim = c->layers[i].kind == LAYER_FULL ? c->layers[i].head_dim : full_dim;
    *full = rope_defaults(1e6);
    *sliding = rope_defaults(1e4);
    full->dims = (int)full_dim;
    sliding->dims = (int)c->layers[0].head_dim;
    for (int64_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].kind == LAYER_SLIDING)
            sliding->dims = (int)c->layers[i].head_dim;
    if (config_is_gguf(s)) { /* pairs that are not rotated are in rope_freqs.weight */
        GM_TRY(config_number(s, NULL, "rope.freq_base", &full->theta));
        return config_number(s, NULL, "rope.freq_base_swa", &sliding->theta);
    }
    full->kind = ROPE_PROPORTIONAL;
    full->partial = 0.25;
    GM_TRY(config_rope_nested(s, c, "full_attention", full));
    return config_rope_nested(s, c, "sliding_attention", sliding);
}

static gm_status configure(const config_source *s, gm_config *c) {
    const bool is_gguf = config_is_gguf(s);
    const gemma4_config *own = c->own;
    bool experts = is_gguf && config_has(s, NULL, "expert_count");
    c->vocab = 262144;
    c->hidden = 2304;
    c->n_layers = 30;
    c->n_heads = 8;
    c->n_kv_heads = 4;
    c->head_dim = 256;
    c->mlp = 9216;
    c->window = 512;
    c->context = 131072;
    c->tied = 1;
    GM_TRY(config_activation(s, "gelu_pytorch_tanh"));
    GM_TRY(config_causal(s));
    GM_TRY(config_int(s, "sliding_window", "attention.sliding_window", &c->window));
    GM_TRY(config_common(s, c));
    GM_TRY(config_layer_types(s, c, 6, LAYER_SLIDING));
    gm_layer_config *last = &c->layers[c->n_layers - 1];
    if (last->kind == LAYER_SLIDING && !is_gguf) { /* as transformers has it */
        last->kind = LAYER_FULL;
        last->window = 0;
    }
    if (config_listens(s))
        GM_TRY(pair_names(s));
    GM_TRY(configure_heads(s, c));
    GM_TRY(configure_sharing(s, c));
    c->embedding_scale = sqrt((double)c->hidden);
    c->attention_scale = 1;
    GM_TRY(config_number(s, NULL, "attention.scale", &c->attention_scale));
    c->final_softcap = is_gguf ? 30 : 0;
    GM_TRY(config_optional(s, "final_logit_softcapping", "final_logit_softcapping", &c->final_softcap));
    GM_TRY(configure_inputs(s, c));
    GM_TRY(config_flag(s, "enable_moe_block", NULL, &experts));
    if (experts || config_listens(s)) {
        c->normalise_experts = true;
        GM_TRY(config_int(s, "expert_intermediate_size", NULL, &c->expert_mlp));
        GM_TRY(config_int(s, "top_k_experts", NULL, &c->n_experts_used));
        GM_TRY(config_experts(s, c));
        GM_TRY(config_pair(s, "top_k_experts", "expert_used_count", 0));
    }
    for (int64_t i = 0; i < c->n_layers; i++)
        c->layers[i].has |= HAS_MLP | (own->per_layer_input > 0 ? HAS_PER_LAYER_INPUT : 0);
    return configure_ropes(s, c);
}

/* ---- forward ---- */
static gm_array *scaled(gm_scope *s, gm_array *x, double factor) {
    return gm_multiply(s, x, scalar_array(s, factor, GM_FLOAT32));
}

/* Inputs of all layers [n, L * P]: half of what the tokens say, half of what the embedding does. */
static gm_array *layer_inputs(gm_scope *s, gm_pass *p, gm_array *x) {
    const gm_config *c = &p->model->config;
    const globals *g = (const globals *)(const void *)p->model->globals;
    const int64_t width = ((const gemma4_config *)c->own)->per_layer_input;
    gm_array *said = linear_embed(s, &g->embedding, p->batch->tokens, sqrtf((float)width));
    gm_activation in = {.x = scaled(s, x, 1 / sqrt((double)c->hidden))};
    gm_array *made = norm_apply(s, linear_apply(s, &g->projection, &in, GM_NONE), g->norm, width, c->eps);
    return scaled(s, gm_add(s, made, said), sqrt(0.5));
}

static gm_array *layer_input(gm_scope *s, gm_array *all, int64_t i, int64_t width) {
    if (!all)
        return NULL;
    return gm_slice(s, all, (int64_t[]){0, i * width}, (int64_t[]){all->shape[0], (i + 1) * width}, (int64_t[]){1, 1});
}

/* The MLP, and the experts beside it; the router sees x as it is, of RMS 1. */
static gm_array *feed(gm_scope *s, gm_pass *p, int64_t i, const layer *l, uint32_t has, gm_array *x) {
    const gm_config *c = &p->model->config;
    float eps = (float)c->eps;
    gm_activation in = {.x = gm_rms_norm(s, x, l->mlp_norm, eps)};
    gm_array *fed = mlp_apply(s, &l->mlp, &in, true, GM_NONE);
    if (!(has & HAS_EXPERTS))
        return fed;
    gm_activation route = {.x = scaled(s, gm_rms_norm(s, x, l->router_scale, eps), 1 / sqrt((double)c->hidden))};
    const expert_inputs to_experts = {gm_rms_norm(s, x, l->experts_norm, eps), &route, l->expert_scale};
    gm_array *chosen = experts_apply(s, p, i, &l->experts, to_experts, (expert_activation){MOE_GEGLU, 0, 0});
    return gm_add(s, gm_rms_norm(s, fed, l->mlp_own_end_norm, eps), gm_rms_norm(s, chosen, l->experts_end_norm, eps));
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    const gm_config *c = &m->config;
    const int64_t width = ((const gemma4_config *)c->own)->per_layer_input;
    float eps = (float)c->eps;
    gm_array *x = embed_tokens(s, &pass), *inputs = width ? layer_inputs(s, &pass, x) : NULL;
    for (int64_t i = 0; i < c->n_layers; i++) {
        const layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = {.x = gm_rms_norm(s, x, l->attention_norm, eps)};
        gm_activation mixed = {
            .x = attention_mix(s, &pass, i, &l->attention, &in, (attention_form){.normed_values = true})};
        gm_array *out = linear_apply(s, &l->attention.o, &mixed, GM_NONE);
        out = gm_rms_norm(s, out, l->attention_end_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_ATTENTION_OUTPUT, out));
        gm_array *fed = gm_rms_norm(s, feed(s, &pass, i, l, c->layers[i].has, x), l->mlp_end_norm, eps);
        x = gm_add(s, x, pass_tap(s, &pass, i, TAP_MLP, fed));
        if (inputs) {
            gm_activation gate = {.x = x};
            gm_activation said = {
                .x = gm_geglu(s, linear_apply(s, &l->input_gate, &gate, GM_NONE), layer_input(s, inputs, i, width))};
            x = gm_add(s, x, gm_rms_norm(s, linear_apply(s, &l->input_projection, &said, GM_NONE), l->input_norm, eps));
        }
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, gm_multiply(s, x, l->scalar));
    }
    return head_apply(s, &pass, x, hidden);
}

/* Norms after both parts and the inputs of each layer; MLP and experts are side by side. */
static double inside(const gm_config *c, double mlp, double mixture) {
    (void)mlp;
    double widest = 2.0 * (double)c->mlp;
    widest = mixture > widest ? mixture : widest;
    return widest + (double)(c->hidden + ((const gemma4_config *)c->own)->all_inputs);
}

static const char *const types[] = {"gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified", NULL},
                         *const gguf_names[] = {"gemma4", NULL};
const gm_architecture gemma4_architecture = {.name = "gemma4",
                                             .class_name = "Gemma4ForCausalLM",
                                             .gguf = gguf_names,
                                             .types = types,
                                             .layer_size = sizeof(layer),
                                             .globals_size = sizeof(globals),
                                             .config_size = sizeof(gemma4_config),
                                             .fields = fields,
                                             .globals = global_fields,
                                             .configure = configure,
                                             .forward = forward,
                                             .inside = inside};
