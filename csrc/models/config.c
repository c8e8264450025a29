/* config.c - see config.h: the two containers as one source of values, which architecture they are of, and the checks.
 * The pull reader checks config.json and says what is wrong with it, cJSON makes it a tree; every number is checked
 * before it is used as a size. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/grow.h"
#include "base/json.h"
#include "base/memory.h"
#include "models/source.h"

#define MAX_SIZE (1 << 26) /* no dimension of a real model comes near */
#define MAX_STATE 4096     /* nor one of a recurrent state */

static const gm_architecture *const architectures[] = {
#define MODEL(name) &name##_architecture,
#include "models.def"
#undef MODEL
};
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

static bool listed(const char *const *names, const char *name) {
    for (; name && names && *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

const gm_architecture *architecture_find(const char *model_type, const char *gguf_name) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        if (listed(architectures[i]->gguf, gguf_name) || listed(architectures[i]->types, model_type))
            return architectures[i];
    return NULL;
}

void architecture_names(char *out, size_t size, bool gguf_names) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        for (const char *const *n = gguf_names ? architectures[i]->gguf : architectures[i]->types; n && *n; n++)
            if (used < size)
                used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", *n);
}

/* ---- values ---- */
bool config_is_gguf(const config_source *s) { return s->g != NULL; }
const char *config_name(const config_source *s) { return s->name; }

const cJSON *source_item(const config_source *s, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(s->root, key);
    if (!v && s->top)
        v = cJSON_GetObjectItemCaseSensitive(s->top, key);
    return cJSON_IsNull(v) ? NULL : v;
}

gm_status source_object(const config_source *s, const cJSON *object, const char *key, const cJSON **out) {
    const cJSON *v = object ? cJSON_GetObjectItemCaseSensitive(object, key) : source_item(s, key);
    *out = cJSON_IsNull(v) ? NULL : v;
    return !*out || cJSON_IsObject(*out) ? GM_OK : gm_fail(GM_EBADFILE, "%s: %s is not an object", s->name, key);
}

const gguf_entry *source_entry(const config_source *s, const char *key) {
    char full[160];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    return gguf_find(s->g, full);
}

bool config_has(const config_source *s, const char *key, const char *gguf_key) {
    return s->g ? gguf_key && source_entry(s, gguf_key) : key && source_item(s, key);
}

bool config_has_null(const config_source *s, const char *key) {
    return !s->g && cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(s->root, key));
}

static gm_status read_real(const config_source *s, const char *key, const cJSON *v, double *out) {
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        return gm_fail(GM_EBADFILE, "%s: %s is not a number", s->name, key);
    *out = v->valuedouble;
    return GM_OK;
}

gm_status source_number(const config_source *s, const cJSON *object, const char *key, double *out) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    return v && !cJSON_IsNull(v) ? read_real(s, key, v, out) : GM_OK;
}

gm_status source_integer(const config_source *s, const char *key, const cJSON *v, int64_t *out) {
    double value = 0;
    GM_TRY(read_real(s, key, v, &value));
    if (value != floor(value) || fabs(value) > 9e15)
        return gm_fail(GM_EBADFILE, "%s: %s is %g, expected an integer", s->name, key, value);
    *out = (int64_t)value;
    return GM_OK;
}

/* The value under its name in config.json; NULL where there is none, and in GGUF. */
static const cJSON *json_value(const config_source *s, const char *key) {
    return s->g || !key ? NULL : source_item(s, key);
}

/* Its whole name in GGUF, in `full`; NULL where it has none, and in config.json. */
static const char *gguf_name(const config_source *s, const char *key, char full[160]) {
    if (!s->g || !key)
        return NULL;
    snprintf(full, 160, "%s.%s", s->arch, key);
    return full;
}

bool config_listens(const config_source *s) { return s->listener != NULL; }

gm_status source_hear(const config_source *s, config_value_kind kind, const char *key, const char *gguf_key,
                      double usual) {
    config_listener *l = s->listener;
    if (!l || !key)
        return GM_OK;
    GM_TRY(grow_array(&l->values, l->n, &l->capacity, 1, sizeof *l->values));
    l->values[l->n++] = (config_value){kind, key, gguf_key, usual};
    return GM_OK;
}

gm_status config_pair(const config_source *s, const char *key, const char *gguf_key, double usual) {
    return source_hear(s, VALUE_PAIR, key, gguf_key, usual);
}

gm_status config_number(const config_source *s, const char *key, const char *gguf_key, double *out) {
    if (s->listener)
        return source_hear(s, VALUE_NUMBER, key, gguf_key, *out);
    char full[160];
    const char *name = gguf_name(s, gguf_key, full);
    const cJSON *v = json_value(s, key);
    if (name)
        return gguf_get_float(s->g, name, out, NULL);
    return v ? read_real(s, key, v, out) : GM_OK;
}

gm_status config_int(const config_source *s, const char *key, const char *gguf_key, int64_t *out) {
    if (s->listener)
        return source_hear(s, VALUE_INTEGER, key, gguf_key, (double)*out);
    char full[160];
    const char *name = gguf_name(s, gguf_key, full);
    const cJSON *v = json_value(s, key);
    if (name)
        return gguf_get_int(s->g, name, out, NULL);
    return v ? source_integer(s, key, v, out) : GM_OK;
}

gm_status config_flag(const config_source *s, const char *key, const char *gguf_key, bool *out) {
    if (s->listener)
        return source_hear(s, VALUE_FLAG, key, gguf_key, *out);
    char full[160];
    const char *name = gguf_name(s, gguf_key, full);
    const cJSON *v = json_value(s, key);
    if (name)
        return gguf_get_bool(s->g, name, out, NULL);
    if (v && !cJSON_IsBool(v))
        return gm_fail(GM_EBADFILE, "%s: %s is neither true nor false", s->name, key);
    if (v)
        *out = cJSON_IsTrue(v);
    return GM_OK;
}

gm_status config_need(const config_source *s, const char *key, const char *gguf_key, int64_t *out) {
    if (s->listener || config_has(s, key, gguf_key))
        return config_int(s, key, gguf_key, out);
    if (s->g)
        return gm_fail(GM_EBADFILE, "%s: metadata key %s.%s is missing", s->name, s->arch, gguf_key);
    return gm_fail(GM_EBADFILE, "%s: %s is missing", s->name, key);
}

/* ---- checks ---- */
static gm_status check_rope(const char *name, const gm_config *c, const gm_layer_config *l) {
    const rope_config *r = &c->rope[l->kind == LAYER_SLIDING ? ROPE_SLIDING : ROPE_FULL];
    if (l->head_dim % 2 || l->head_dim < 2 || l->head_dim > MAX_HEAD_DIM)
        return gm_fail(GM_EBADFILE, "%s: head_dim is %lld, expected an even number up to %d", name,
                       (long long)l->head_dim, MAX_HEAD_DIM);
    if (!(r->theta > 1 && isfinite(r->theta)) || r->dims < 2 || r->dims > l->head_dim || r->dims % 2)
        return gm_fail(GM_EBADFILE,
                       "%s: rope theta %g over %d of %lld dimensions, expected more than 1 over an even "
                       "number of them",
                       name, r->theta, r->dims, (long long)l->head_dim);
    if (r->kind != ROPE_DEFAULT && !(r->factor > 0 && isfinite(r->factor)))
        return gm_fail(GM_EBADFILE, "%s: rope scaling factor is %g, expected more than 0", name, r->factor);
    if (r->kind == ROPE_LLAMA3 &&
        !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor && r->original_context > 0))
        return gm_fail(GM_EBADFILE,
                       "%s: rope type llama3 with low_freq_factor %g, high_freq_factor %g, original "
                       "context %g, expected 0 < low < high",
                       name, r->low_freq_factor, r->high_freq_factor, r->original_context);
    if (r->kind == ROPE_YARN && !(r->original_context > 0 && r->beta_fast > 0 && r->beta_slow > 0))
        return gm_fail(GM_EBADFILE,
                       "%s: rope type yarn with original context %g, beta_fast %g, beta_slow %g, "
                       "expected more than 0",
                       name, r->original_context, r->beta_fast, r->beta_slow);
    return GM_OK;
}

static gm_status check_layer(const char *name, const gm_config *c, int64_t i) {
    const gm_layer_config *l = &c->layers[i];
    if (l->has & HAS_ATTENTION) {
        if (l->n_heads < 1 || l->n_kv_heads < 1 || l->n_heads > MAX_SIZE || l->n_heads % l->n_kv_heads)
            return gm_fail(GM_EBADFILE, "%s: %lld attention heads are not a multiple of %lld key/value heads", name,
                           (long long)l->n_heads, (long long)l->n_kv_heads);
        GM_TRY(check_rope(name, c, l));
        if (l->n_heads * l->head_dim > MAX_SIZE)
            return gm_fail(GM_EBADFILE, "%s: %lld heads of %lld are more than any model has", name,
                           (long long)l->n_heads, (long long)l->head_dim);
        if (l->window < 0 || (l->kind == LAYER_SLIDING && l->window < 1))
            return gm_fail(GM_EBADFILE, "%s: sliding_window is %lld, expected 1 or more", name, (long long)l->window);
        const gm_layer_config *from = &c->layers[l->source];
        if (!(from->has & HAS_KV) || from->n_kv_heads != l->n_kv_heads || from->head_dim != l->head_dim)
            return gm_fail(
                GM_EBADFILE,
                "%s: layer %lld shares the keys of layer %d, whose heads are not of the same number and size", name,
                (long long)i, l->source);
    }
    if ((l->has & HAS_MLP) && (l->mlp < 1 || l->mlp > MAX_SIZE))
        return gm_fail(GM_EBADFILE, "%s: intermediate_size is %lld, expected 1 to %d", name, (long long)l->mlp,
                       MAX_SIZE);
    if ((l->has & HAS_EXPERTS) &&
        (c->n_experts < 1 || c->n_experts > 4096 || c->n_experts_used < 1 || c->n_experts_used > c->n_experts ||
         c->n_experts_used > 64 || c->expert_mlp < 1 || c->expert_mlp > MAX_SIZE))
        return gm_fail(GM_EBADFILE, "%s: %lld of %lld experts of width %lld, expected 1 to 64 of up to 4096", name,
                       (long long)c->n_experts_used, (long long)c->n_experts, (long long)c->expert_mlp);
    if ((l->has & HAS_SHARED_EXPERT) && (c->shared_mlp < 1 || c->shared_mlp > MAX_SIZE))
        return gm_fail(GM_EBADFILE, "%s: shared_expert_intermediate_size is %lld, expected 1 to %d", name,
                       (long long)c->shared_mlp, MAX_SIZE);
    if ((l->has & HAS_LINEAR) &&
        (l->state_heads < 1 || l->state_heads > MAX_STATE || l->state_key < 1 || l->state_key > MAX_STATE ||
         l->state_value < 1 || l->state_value > MAX_STATE || l->conv_kernel < 2 || l->conv_kernel > 64 ||
         l->conv_channels < 1 || l->conv_channels > MAX_SIZE))
        return gm_fail(GM_EBADFILE,
                       "%s: a recurrent state of %lld heads of %lld by %lld after a convolution of %lld "
                       "over %lld channels, expected sizes of 1 to %d and a kernel of 2 to 64",
                       name, (long long)l->state_heads, (long long)l->state_value, (long long)l->state_key,
                       (long long)l->conv_kernel, (long long)l->conv_channels, MAX_STATE);
    return GM_OK;
}

static gm_status check(const config_source *s, const gm_config *c) {
    if (!(c->eps >= 0 && c->eps < 1))
        return gm_fail(GM_EBADFILE, "%s: the epsilon of RMSNorm is %g, expected 0 to 1", s->name, c->eps);
    const struct {
        const char *what;
        double value;
    } positive[] = {{"the embedding's scale", c->embedding_scale}, {"the attention's scale", c->attention_scale}};
    for (size_t i = 0; i < 2; i++)
        if (!(positive[i].value > 0 && isfinite(positive[i].value)))
            return gm_fail(GM_EBADFILE, "%s: %s is %g, expected more than 0", s->name, positive[i].what,
                           positive[i].value);
    if (!(c->attention_softcap >= 0 && c->final_softcap >= 0))
        return gm_fail(GM_EBADFILE, "%s: softcaps are %g and %g, expected 0 or more", s->name, c->attention_softcap,
                       c->final_softcap);
    for (int64_t i = 0; i < c->n_layers; i++)
        GM_TRY(check_layer(s->name, c, i));
    for (int i = 0; i < GM_ROPES; i++) /* of a kind that no layer is, too: its frequencies are made */
        if (c->rope[i].dims < 0 || c->rope[i].dims > MAX_HEAD_DIM)
            return gm_fail(GM_EBADFILE, "%s: rope over %d dimensions, expected up to %d", s->name, c->rope[i].dims,
                           MAX_HEAD_DIM);
    return GM_OK;
}

gm_status source_check_sizes(const config_source *s, const gm_config *c) {
    const struct {
        const char *key, *gguf;
        int64_t value;
    } sizes[] = {
        {"vocab_size", "vocab_size", c->vocab},
        {"hidden_size", "embedding_length", c->hidden},
        {"num_hidden_layers", "block_count", c->n_layers},
        {"num_attention_heads", "attention.head_count", c->n_heads},
        {"num_key_value_heads", "attention.head_count_kv", c->n_kv_heads},
        {"head_dim", "attention.key_length", c->head_dim},
        {"intermediate_size", "feed_forward_length", c->mlp},
        {"max_position_embeddings", "context_length", c->context},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > MAX_SIZE)
            return gm_fail(GM_EBADFILE, "%s: %s is %lld, expected 1 to %d", s->name,
                           s->g ? sizes[i].gguf : sizes[i].key, (long long)sizes[i].value, MAX_SIZE);
    if (c->n_layers > 4096 || c->n_heads * c->head_dim > MAX_SIZE)
        return gm_fail(GM_EBADFILE, "%s: %lld layers of %lld heads are more than any model has", s->name,
                       (long long)c->n_layers, (long long)c->n_heads);
    return GM_OK;
}

/* Each layer with keys or a state of its own has a slot; the others read their source's. */
static void assign_slots(gm_config *c) {
    for (int64_t i = 0; i < c->n_layers; i++) {
        gm_layer_config *l = &c->layers[i];
        l->slot = l->has & (HAS_KV | HAS_LINEAR) ? c->n_slots++ : c->layers[l->source].slot;
    }
}

static gm_status make_own(const gm_architecture *arch, gm_config *c) {
    if (arch->config_size && !(c->own = memory_zeroed(arch->config_size)))
        return GM_ENOMEM;
    return GM_OK;
}

static gm_status finish(const config_source *s, const gm_architecture *arch, gm_config *c) {
    GM_TRY(make_own(arch, c));
    GM_TRY(arch->configure(s, c));
    GM_TRY(check(s, c));
    assign_slots(c);
    return GM_OK;
}

gm_status config_listen(const gm_architecture *a, config_listener *out) {
    const config_source s = {.name = a->name, .listener = out};
    gm_config c = {0};
    *out = (config_listener){0};
    gm_status status = make_own(a, &c);
    if (status == GM_OK)
        status = a->configure(&s, &c);
    out->one_plus_weight = c.one_plus_weight;
    config_clear(&c);
    return status;
}

void config_clear(gm_config *c) {
    memory_free(c->layers);
    memory_free(c->own);
    c->layers = NULL;
    c->own = NULL;
}

/* ---- config.json ---- */
static gm_status refuse_type(const char *name, const char *type, bool is_gguf) {
    char names[512];
    architecture_names(names, sizeof names, is_gguf);
    return gm_fail(GM_EMODEL, "%s: %s \"%.60s\" is not supported; supported are %s; backend=\"mlx_lm\" runs %s", name,
                   is_gguf ? "architecture" : "model_type", type, names,
                   is_gguf ? "folders of safetensors with other ones" : "others");
}

/* Checkpoints of Qwen and Llama whose config has lost its model_type are recognised by their tensors. */
static const char *guess_type(const gm_checkpoint *checkpoint) {
    bool q_norm = false, q_bias = false, gemma = false;
    for (int64_t i = 0; checkpoint && i < checkpoint_count(checkpoint); i++) {
        const char *name = checkpoint_at(checkpoint, i)->name;
        q_norm |= strstr(name, "layers.0.self_attn.q_norm.weight") != NULL;
        q_bias |= strstr(name, "layers.0.self_attn.q_proj.bias") != NULL;
        gemma |= strstr(name, "layers.0.pre_feedforward_layernorm.weight") != NULL;
    }
    return gemma ? NULL : q_norm ? "qwen3" : q_bias ? "qwen2" : "llama";
}

/* Multimodal models hold the language model's config in text_config; its model_type is tried first. */
static gm_status find_json_architecture(config_source *s, const gm_checkpoint *checkpoint,
                                        const gm_architecture **arch) {
    const cJSON *text, *top_type = cJSON_GetObjectItemCaseSensitive(s->root, "model_type"), *type = top_type;
    GM_TRY(source_object(s, s->root, "text_config", &text));
    if (text) {
        s->top = s->root;
        s->root = text;
        type = cJSON_GetObjectItemCaseSensitive(text, "model_type");
    }
    const cJSON *types[2] = {type, top_type};
    const char *named = NULL;
    for (int i = 0; i < 2; i++) {
        if (!types[i] || cJSON_IsNull(types[i]))
            continue;
        if (!cJSON_IsString(types[i]))
            return gm_fail(GM_EBADFILE, "%s: model_type is not a string", s->name);
        named = types[i]->valuestring;
        if ((*arch = architecture_find(named, NULL)))
            return GM_OK;
    }
    if (!named && !(named = guess_type(checkpoint)))
        return gm_fail(GM_EBADFILE, "%s: model_type is missing", s->name);
    *arch = architecture_find(named, NULL);
    return *arch ? GM_OK : refuse_type(s->name, named, false);
}

/* MLX's formats and MXFP4 tell by their tensors; others are not read. */
static gm_status check_quantization(const config_source *s) {
    const cJSON *q, *mlx;
    GM_TRY(source_object(s, NULL, "quantization", &mlx));
    GM_TRY(source_object(s, NULL, "quantization_config", &q));
    const cJSON *method = q ? cJSON_GetObjectItemCaseSensitive(q, "quant_method") : NULL;
    if (!method || (cJSON_IsString(method) && strcmp(method->valuestring, "mxfp4") == 0))
        return GM_OK;
    return gm_fail(GM_EMODEL,
                   "%s: weights quantised by \"%.60s\" are not supported; use the original, a GGUF file "
                   "or an MLX folder",
                   s->name, cJSON_IsString(method) ? method->valuestring : "?");
}

gm_status config_from_json(const char *text, size_t length, const char *name, const gm_checkpoint *checkpoint,
                           const gm_architecture **arch, gm_config *out) {
    json_reader r;
    *out = (gm_config){0};
    json_open(&r, text, length, name);
    GM_TRY(json_expect(&r, JSON_OBJECT));
    GM_TRY(json_skip(&r));
    GM_TRY(json_expect(&r, JSON_END));
    cJSON *root = cJSON_ParseWithLength(text, length);
    config_source s = {.name = name, .root = root, .checkpoint = checkpoint};
    if (!root)
        return gm_fail(GM_ENOMEM, "%s: out of memory", name);
    gm_status status = find_json_architecture(&s, checkpoint, arch);
    if (status == GM_OK)
        status = check_quantization(&s);
    if (status == GM_OK)
        status = finish(&s, *arch, out);
    cJSON_Delete(root);
    return status;
}

/* ---- GGUF ---- */
gm_status config_from_gguf(const gguf *g, const gm_architecture **arch, gm_config *c) {
    gguf_string text = {0};
    bool found;
    char name[128];
    const char *file = gguf_file(g)->path;
    *c = (gm_config){0};
    GM_TRY(gguf_get_string(g, "general.architecture", &text, &found));
    if (!found)
        return gm_fail(GM_EBADFILE, "%s: metadata key general.architecture is missing", file);
    snprintf(name, sizeof name, "%.*s", (int)(text.length < 100 ? text.length : 100), text.text);
    *arch = architecture_find(NULL, name);
    if (!*arch)
        return refuse_type(file, name, true);
    config_source s = {.name = file, .g = g, .arch = name};
    return finish(&s, *arch, c);
}
