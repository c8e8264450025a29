/* qwen3_next.c - Qwen 3-Next and Qwen 3.5, dense and with experts: three layers of linear attention (a short
 * convolution and a gated delta rule over a state) to one of gated attention; norms of 1 + w; a shared expert beside
 * the chosen. GGUF files of Qwen 3.5 hold the value heads in tiled order. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "models/block.h"
#include "models/config.h"
#include "ops/ops.h"

typedef struct {
    gm_array *mixer_norm, *mlp_norm;
    attention_weights attention;
    gm_linear qkv, z, b, a, out; /* linear attention */
    gm_array *conv, *dt_bias, *decay, *norm;
    mlp_weights mlp, shared;
    gm_linear shared_gate;
    expert_weights experts;
} layer;
typedef struct {
    int64_t n_key_heads, n_value_heads, key_dim, value_dim; /* of linear attention */
    bool tiled_values; /* value head h reads key head h % n_key_heads, not h / (ratio) */
} delta_config;

#define AT(member) offsetof(layer, member)
/* clang-format off */
#define ATTENTION                                                                                                      \
    NORM_FIELD(layer, mixer_norm, "input_layernorm", "attn_norm.weight", FIELD_ONE_PLUS_WEIGHT),                       \
    {FIELD_LINEAR, AT(attention.q), "self_attn.q_proj", "attn_q", DIM_GATED_QUERIES, DIM_HIDDEN, HAS_ATTENTION, 0},    \
    {FIELD_LINEAR, AT(attention.k), "self_attn.k_proj", "attn_k", DIM_KEYS, DIM_HIDDEN, HAS_KV, 0},                    \
    {FIELD_LINEAR, AT(attention.v), "self_attn.v_proj", "attn_v", DIM_KEYS, DIM_HIDDEN, HAS_V, 0},                     \
    {FIELD_LINEAR, AT(attention.o), "self_attn.o_proj", "attn_output", DIM_HIDDEN, DIM_QUERIES, HAS_ATTENTION, 0},     \
    HEAD_NORM_FIELDS(layer, attention, FIELD_ONE_PLUS_WEIGHT)
#define LINEAR_ATTENTION(qkv_names, z_names, b_names, a_names, b_gguf, a_gguf)                                         \
    {FIELD_LINEAR, AT(qkv), qkv_names, "attn_qkv|ssm_in", DIM_CHANNELS, DIM_HIDDEN, HAS_LINEAR, FIELD_PICKED},         \
    {FIELD_LINEAR, AT(z), z_names, "attn_gate|ssm_in", DIM_VALUES, DIM_HIDDEN, HAS_LINEAR, FIELD_PICKED},              \
    {FIELD_LINEAR, AT(b), b_names, b_gguf, DIM_VALUE_HEADS, DIM_HIDDEN, HAS_LINEAR, FIELD_PICKED},                     \
    {FIELD_LINEAR, AT(a), a_names, a_gguf, DIM_VALUE_HEADS, DIM_HIDDEN, HAS_LINEAR, FIELD_PICKED},                     \
    {FIELD_MATRIX, AT(conv), "linear_attn.conv1d.weight", "ssm_conv1d.weight", DIM_CHANNELS, DIM_KERNEL, HAS_LINEAR,   \
     0},                                                                                                               \
    {FIELD_VECTOR, AT(dt_bias), "linear_attn.dt_bias", "ssm_dt.bias", DIM_VALUE_HEADS, DIM_ONE, HAS_LINEAR, 0},        \
    {FIELD_VECTOR, AT(decay), "linear_attn.A_log", "ssm_a", DIM_VALUE_HEADS, DIM_ONE, HAS_LINEAR,                      \
     FIELD_NEGATIVE_EXP},                                                                                              \
    {FIELD_VECTOR, AT(norm), "linear_attn.norm.weight", "ssm_norm.weight", DIM_VALUE_HEAD, DIM_ONE, HAS_LINEAR, 0},    \
    {FIELD_LINEAR, AT(out), "linear_attn.out_proj", "ssm_out", DIM_HIDDEN, DIM_VALUES, HAS_LINEAR, 0}
#define MLPS(fused)                                                                                                    \
    NORM_FIELD(layer, mlp_norm, "post_attention_layernorm", "post_attention_norm.weight", FIELD_ONE_PLUS_WEIGHT),      \
    MLP_FIELDS(layer, mlp),                                                                                            \
    {FIELD_LINEAR, AT(experts.router), "mlp.gate", "ffn_gate_inp", DIM_EXPERTS, DIM_HIDDEN, HAS_EXPERTS, 0},           \
    EXPERT_FIELDS(layer, experts, "mlp.experts", fused),                                                               \
    {FIELD_LINEAR, AT(shared.gate), "mlp.shared_expert.gate_proj", "ffn_gate_shexp", DIM_SHARED_MLP, DIM_HIDDEN,       \
     HAS_SHARED_EXPERT, 0},                                                                                            \
    {FIELD_LINEAR, AT(shared.up), "mlp.shared_expert.up_proj", "ffn_up_shexp", DIM_SHARED_MLP, DIM_HIDDEN,             \
     HAS_SHARED_EXPERT, 0},                                                                                            \
    {FIELD_LINEAR, AT(shared.down), "mlp.shared_expert.down_proj", "ffn_down_shexp", DIM_HIDDEN, DIM_SHARED_MLP,       \
     HAS_SHARED_EXPERT, 0},                                                                                            \
    {FIELD_LINEAR, AT(shared_gate), "mlp.shared_expert_gate", "ffn_gate_inp_shexp", DIM_ONE, DIM_HIDDEN,               \
     HAS_SHARED_EXPERT, 0}
/* clang-format on */

static const gm_weight_field next_fields[] = {ATTENTION,
                                              LINEAR_ATTENTION("linear_attn.in_proj_qkvz|linear_attn.in_proj_qkv",
                                                               "linear_attn.in_proj_qkvz|linear_attn.in_proj_z",
                                                               "linear_attn.in_proj_ba", "linear_attn.in_proj_ba",
                                                               "ssm_ba", "ssm_ba"),
                                              MLPS(0),
                                              {0}};
static const gm_weight_field qwen3_5_fields[] = {ATTENTION,
                                                 LINEAR_ATTENTION("linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                                                  "linear_attn.in_proj_b", "linear_attn.in_proj_a",
                                                                  "ssm_beta", "ssm_alpha"),
                                                 MLPS(FIELD_FUSED),
                                                 {0}};

/* ---- config ---- */
static gm_status configure_linear(const config_source *s, gm_config *c, bool tiled) {
    delta_config *own = c->own;
    int64_t kernel = 4, inner = 0;
    *own = (delta_config){
        .n_key_heads = 16, .n_value_heads = 32, .key_dim = 128, .value_dim = 128, .tiled_values = tiled};
    GM_TRY(config_int(s, "linear_conv_kernel_dim", "ssm.conv_kernel", &kernel));
    GM_TRY(config_int(s, "linear_num_key_heads", "ssm.group_count", &own->n_key_heads));
    GM_TRY(config_int(s, "linear_num_value_heads", "ssm.time_step_rank", &own->n_value_heads));
    GM_TRY(config_int(s, "linear_key_head_dim", "ssm.state_size", &own->key_dim));
    GM_TRY(config_int(s, "linear_value_head_dim", NULL, &own->value_dim));
    GM_TRY(config_int(s, NULL, "ssm.inner_size", &inner));
    if (config_is_gguf(s) && own->n_value_heads > 0 && inner > 0)
        own->value_dim = inner / own->n_value_heads;
    for (int64_t i = 0; i < c->n_layers; i++) {
        gm_layer_config *l = &c->layers[i];
        if (!(l->has & HAS_LINEAR))
            continue;
        if (own->n_key_heads < 1 || own->n_value_heads < 1 || own->n_value_heads % own->n_key_heads ||
            own->key_dim < 1 || own->value_dim < 1 || kernel < 2 || kernel > 64 || own->n_value_heads > 4096 ||
            own->key_dim > 4096 || own->value_dim > 4096)
            return gm_fail(GM_EBADFILE,
                           "%s: a recurrent layer of %lld key heads of %lld and %lld value heads of %lld "
                           "with a kernel of %lld; expected a multiple of value heads and a kernel of 2 to 64",
                           config_name(s), (long long)own->n_key_heads, (long long)own->key_dim,
                           (long long)own->n_value_heads, (long long)own->value_dim, (long long)kernel);
        l->state_heads = own->n_value_heads;
        l->state_key = own->key_dim;
        l->state_value = own->value_dim;
        l->conv_channels = 2 * own->n_key_heads * own->key_dim + own->n_value_heads * own->value_dim;
        l->conv_kernel = kernel;
    }
    return GM_OK;
}

static gm_status configure(const config_source *s, gm_config *c, bool experts, bool tiled) {
    int64_t period = 4;
    const bool is_gguf = config_is_gguf(s);
    c->head_dim = 256;
    c->one_plus_weight = true;
    GM_TRY(config_activation(s, "silu"));
    GM_TRY(config_common(s, c));
    GM_TRY(config_int(s, "full_attention_interval", "full_attention_interval", &period));
    GM_TRY(config_layer_types(s, c, period, LAYER_LINEAR));
    GM_TRY(configure_linear(s, c, tiled && is_gguf));
    if (tiled)
        GM_TRY(config_pair(s, "mrope_section", "rope.dimension_sections", 0));
    if (experts) {
        GM_TRY(config_experts(s, c));
        GM_TRY(config_int(s, "shared_expert_intermediate_size", "expert_shared_feed_forward_length", &c->shared_mlp));
        for (int64_t i = 0; i < c->n_layers; i++)
            if (c->shared_mlp && (c->layers[i].has & HAS_EXPERTS))
                c->layers[i].has |= HAS_SHARED_EXPERT;
    }
    c->rope[ROPE_FULL] = rope_defaults(10000);
    c->rope[ROPE_FULL].partial = 0.25;
    return config_rope(s, c, NULL, &c->rope[ROPE_FULL]);
}

static gm_status configure_next(const config_source *s, gm_config *c) {
    c->mlp = 5632;
    c->n_experts = config_is_gguf(s) ? 0 : 512;
    c->n_experts_used = 10;
    c->expert_mlp = 512;
    c->shared_mlp = config_is_gguf(s) ? 0 : 512;
    c->normalise_experts = true;
    return configure(s, c, true, false);
}

static gm_status configure_qwen3_5(const config_source *s, gm_config *c) { return configure(s, c, false, true); }

static gm_status configure_qwen3_5_moe(const config_source *s, gm_config *c) {
    c->mlp = 1; /* no layer has an MLP of its own */
    c->n_experts = config_is_gguf(s) ? 0 : 256;
    c->n_experts_used = 8;
    c->expert_mlp = 512;
    c->shared_mlp = config_is_gguf(s) ? 0 : 512;
    c->normalise_experts = true;
    return configure(s, c, true, true);
}

/* Files of Qwen 3-Next have queries, keys, values and gates in one, all four of a key head together; betas and decays
 * too. */
static int pick_rows(const gm_config *c, const gm_weight_field *f, const char *name, int64_t rows, int64_t *all,
                     row_pick picks[MAX_PICKS]) {
    const delta_config *own = c->own;
    const int64_t heads = own->n_key_heads, ratio = own->n_value_heads / heads;
    const int64_t keys = heads * own->key_dim, wide = ratio * own->value_dim, period = 2 * own->key_dim + 2 * wide;
    if (strstr(name, "in_proj_ba") || strstr(name, "ssm_ba")) {
        *all = 2 * rows;
        picks[0] = (row_pick){rows, ratio, 2 * ratio, f->offset == AT(a) ? ratio : 0};
        return 1;
    }
    if (!strstr(name, "in_proj_qkvz") && !strstr(name, "ssm_in"))
        return 0;
    *all = heads * period;
    if (f->offset == AT(z)) {
        picks[0] = (row_pick){rows, wide, period, 2 * own->key_dim + wide};
        return 1;
    }
    picks[0] = (row_pick){keys, own->key_dim, period, 0};
    picks[1] = (row_pick){keys, own->key_dim, period, own->key_dim};
    picks[2] = (row_pick){heads * wide, wide, period, 2 * own->key_dim};
    return 3;
}

/* ---- forward ---- */
static gm_array *scaled(gm_scope *s, gm_array *x, double factor) {
    return gm_multiply(s, x, scalar_array(s, factor, GM_FLOAT32));
}

static gm_array *columns(gm_scope *s, gm_array *x, int64_t from, int64_t count) {
    if (!x)
        return NULL;
    return gm_slice(s, x, (int64_t[]){0, from}, (int64_t[]){x->shape[0], from + count}, (int64_t[]){1, 1});
}

static gm_array *gated_attention(gm_scope *s, gm_pass *p, int64_t i, const layer *l, gm_array *x, gm_array *residual) {
    gm_activation in = {.x = x};
    gm_array *gate, *mixed = attention_mix(s, p, i, &l->attention, &in, (attention_form){.gate = &gate});
    gm_activation out = {.x = mixed ? gm_multiply(s, mixed, gm_sigmoid(s, gate)) : NULL};
    return output_apply(s, p, i, TAP_ATTENTION_OUTPUT, &l->attention.o, &out, residual);
}

/* Queries and keys to length 1 (their RMS over Dk and 1/sqrt(Dk)), queries by another 1/sqrt(Dk). */
static gm_array *linear_attention(gm_scope *s, gm_pass *p, int64_t i, const layer *l, gm_array *x, gm_array *residual) {
    const gm_config *c = &p->model->config;
    const delta_config *own = c->own;
    const gm_batch *b = p->batch;
    const int slot = c->layers[i].slot;
    const int64_t keys = own->n_key_heads * own->key_dim, values = own->n_value_heads * own->value_dim;
    const double eps = 1e-6 / (double)own->key_dim, unit = 1 / sqrt((double)own->key_dim);
    gm_activation in = {.x = x};
    gm_array *u = linear_apply(s, &l->qkv, &in, GM_NONE), *z = linear_apply(s, &l->z, &in, GM_NONE);
    gm_array *beta = gm_sigmoid(s, linear_apply(s, &l->b, &in, GM_NONE));
    gm_array *step = gm_add(s, linear_apply(s, &l->a, &in, GM_NONE), l->dt_bias);
    gm_array *zero = scalar_array(s, 0, GM_FLOAT32);
    gm_array *decay = gm_exp(s, gm_multiply(s, gm_logaddexp(s, step, zero), l->decay));
    gm_array *starts = b->training ? b->training->starts : NULL;
    gm_array *mixed = starts ? gm_sequence_conv(s, u, l->conv, starts) : gm_cached_conv(s, u, l->conv, b->state, slot);
    gm_array *q = scaled(s, norm_apply(s, columns(s, mixed, 0, keys), NULL, own->key_dim, eps), unit * unit);
    gm_array *k = scaled(s, norm_apply(s, columns(s, mixed, keys, keys), NULL, own->key_dim, eps), unit);
    gm_array *v = columns(s, mixed, 2 * keys, values);
    const gm_delta_spec spec = {.slot = slot,
                                .n_key_heads = (int)own->n_key_heads,
                                .n_value_heads = (int)own->n_value_heads,
                                .tiled = own->tiled_values};
    const gm_delta_inputs rule = {q, k, v, decay, beta};
    gm_array *o = starts ? gm_sequence_delta(s, &rule, starts, &spec)
                         : gm_cached_gated_delta(s, &rule, b->state, &spec);
    o = pass_tap(s, p, i, TAP_RECURRENT, o);
    gm_activation out = {.x = gm_swiglu(s, z, norm_apply(s, o, l->norm, own->value_dim, c->eps))};
    return output_apply(s, p, i, TAP_ATTENTION_OUTPUT, &l->out, &out, residual);
}

static gm_array *mixture(gm_scope *s, gm_pass *p, int64_t i, const layer *l, gm_activation *in, gm_array *x) {
    const uint32_t has = p->model->config.layers[i].has;
    gm_array *chosen = experts_apply(s, p, i, &l->experts, (expert_inputs){in->x, in, GM_NONE},
                                     (expert_activation){MOE_SWIGLU, 0, 0});
    if (has & HAS_SHARED_EXPERT) {
        gm_array *shared = mlp_apply(s, &l->shared, in, false, GM_NONE);
        gm_array *gate = gm_sigmoid(s, linear_apply(s, &l->shared_gate, in, GM_NONE));
        chosen = gm_add(s, chosen, gm_multiply(s, gate, shared));
    }
    return gm_add(s, x, pass_tap(s, p, i, TAP_MLP, chosen));
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    float eps = (float)m->config.eps;
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const layer *l = model_layer(m, i);
        const uint32_t has = m->config.layers[i].has;
        x = pass_layer(s, &pass, i, x);
        gm_array *in = gm_rms_norm(s, x, l->mixer_norm, eps);
        x = has & HAS_LINEAR ? linear_attention(s, &pass, i, l, in, x) : gated_attention(s, &pass, i, l, in, x);
        gm_activation inner = {.x = gm_rms_norm(s, x, l->mlp_norm, eps)};
        x = has & HAS_EXPERTS ? mixture(s, &pass, i, l, &inner, x) : mlp_output(s, &pass, i, &l->mlp, &inner, false, x);
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}

/* The gates of attention; linear attention holds about as much as the halves of an MLP. */
static double inside(const gm_config *c, double mlp, double mixture) {
    (void)mlp;
    return (mixture > 0 ? mixture : 2.0 * (double)c->mlp) + (double)(c->n_heads * c->head_dim);
}

/* Of GGUF, where value heads are tiled: they follow the keys' rows, where a weight has these, to the end. */
static bool tiled_order(const gm_config *c, const char *name, head_order *out) {
    static const struct {
        const char *name;
        bool after_keys;
        int axis;
    } weights[] = {{"in_proj_qkv", true, 0}, {"conv1d", true, 0},   {"in_proj_z", false, 0}, {"in_proj_b", false, 0},
                   {"in_proj_a", false, 0},  {"dt_bias", false, 0}, {"A_log", false, 0},     {"out_proj", false, 1}};
    static const char mixer[] = ".linear_attn.";
    const delta_config *own = c->own;
    const char *part = own->tiled_values ? strstr(name, mixer) : NULL;
    for (size_t i = 0; part && i < sizeof weights / sizeof *weights; i++) {
        if (strncmp(part + strlen(mixer), weights[i].name, strlen(weights[i].name)) != 0)
            continue;
        *out = (head_order){.first = weights[i].after_keys ? 2 * own->n_key_heads * own->key_dim : 0,
                            .groups = own->n_key_heads,
                            .ratio = own->n_value_heads / own->n_key_heads,
                            .axis = weights[i].axis};
        return out->groups > 1 && out->ratio > 1;
    }
    return false;
}

static const char *const next_types[] = {"qwen3_next", NULL}, *const next_gguf[] = {"qwen3next", NULL},
                         *const dense_types[] = {"qwen3_5_text", "qwen3_5", NULL},
                         *const dense_gguf[] = {"qwen35", NULL},
                         *const moe_types[] = {"qwen3_5_moe_text", "qwen3_5_moe", NULL},
                         *const moe_gguf[] = {"qwen35moe", NULL};
const gm_architecture qwen3_next_architecture = {.name = "qwen3_next",
                                                 .class_name = "Qwen3NextForCausalLM",
                                                 .gguf = next_gguf,
                                                 .types = next_types,
                                                 .layer_size = sizeof(layer),
                                                 .config_size = sizeof(delta_config),
                                                 .pick_rows = pick_rows,
                                                 .fields = next_fields,
                                                 .configure = configure_next,
                                                 .forward = forward,
                                                 .inside = inside};
const gm_architecture qwen3_5_architecture = {.name = "qwen3_5",
                                              .class_name = "Qwen3_5ForCausalLM",
                                              .gguf = dense_gguf,
                                              .types = dense_types,
                                              .layer_size = sizeof(layer),
                                              .config_size = sizeof(delta_config),
                                              .pick_rows = pick_rows,
                                              .order = tiled_order,
                                              .fields = qwen3_5_fields,
                                              .configure = configure_qwen3_5,
                                              .forward = forward,
                                              .inside = inside};
const gm_architecture qwen3_5_moe_architecture = {.name = "qwen3_5_moe",
                                                  .class_name = "Qwen3_5MoeForCausalLM",
                                                  .gguf = moe_gguf,
                                                  .types = moe_types,
                                                  .layer_size = sizeof(layer),
                                                  .config_size = sizeof(delta_config),
                                                  .pick_rows = pick_rows,
                                                  .order = tiled_order,
                                                  .fields = qwen3_5_fields,
                                                  .configure = configure_qwen3_5_moe,
                                                  .forward = forward,
                                                  .inside = inside};
