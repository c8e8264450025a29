/* config_parts.c - the parts of configs that architectures share: sizes, kinds of layers, rotary embeddings, experts.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "models/source.h"

/* ---- sizes ---- */
/* A number for every layer, or one for all. */
static gm_status read_each(const config_source *s, gm_config *c, const char *key, const char *gguf_key, size_t offset) {
    const cJSON *list = s->g ? NULL : source_item(s, key);
    const gguf_entry *e = s->g ? source_entry(s, gguf_key) : NULL;
    bool is_list = e ? e->type == GGUF_ARRAY : cJSON_IsArray(list);
    int64_t count = e && is_list ? (int64_t)e->count : is_list ? cJSON_GetArraySize(list) : 0;
    if (!is_list)
        return GM_OK;
    if (count < c->n_layers)
        return gm_fail(GM_EBADFILE, "%s: %s has %lld numbers for %lld layers", s->name, s->g ? gguf_key : key,
                       (long long)count, (long long)c->n_layers);
    const cJSON *item = list ? list->child : NULL;
    for (int64_t i = 0; i < c->n_layers; i++, item = item ? item->next : NULL) {
        int64_t *to = (int64_t *)(void *)((char *)&c->layers[i] + offset);
        GM_TRY(e ? gguf_item_int(e, (uint64_t)i, to) : source_integer(s, key, item, to));
    }
    return GM_OK;
}

/* The number, or of a list the greatest. */
static gm_status read_greatest(const config_source *s, const char *key, const char *gguf_key, int64_t *out) {
    const cJSON *list = s->g ? NULL : source_item(s, key);
    const gguf_entry *e = s->g ? source_entry(s, gguf_key) : NULL;
    bool is_list = e ? e->type == GGUF_ARRAY : cJSON_IsArray(list);
    if (!is_list)
        return config_int(s, key, gguf_key, out);
    int64_t count = e ? (int64_t)e->count : cJSON_GetArraySize(list), most = 0;
    const cJSON *item = list ? list->child : NULL;
    for (int64_t i = 0; i < count; i++, item = item ? item->next : NULL) {
        int64_t value = 0;
        GM_TRY(e ? gguf_item_int(e, (uint64_t)i, &value) : source_integer(s, key, item, &value));
        most = value > most ? value : most;
    }
    *out = most;
    return GM_OK;
}

static gm_status read_vocab(const config_source *s, gm_config *c) {
    if (!s->g)
        return c->vocab ? config_int(s, "vocab_size", "vocab_size", &c->vocab)
                        : config_need(s, "vocab_size", "vocab_size", &c->vocab);
    const gguf_entry *tokens = gguf_find(s->g, "tokenizer.ggml.tokens");
    c->vocab = tokens ? (int64_t)tokens->count : 0;
    return config_int(s, NULL, "vocab_size", &c->vocab);
}

static gm_status required(const config_source *s, const char *key, const char *gguf_key, int64_t *out) {
    if (*out && !config_has(s, key, gguf_key) && !s->g && !s->listener)
        return GM_OK; /* the class has a default */
    if (!config_has(s, key, gguf_key))
        return config_need(s, key, gguf_key, out);
    return read_greatest(s, key, gguf_key, out);
}

const char *config_prefix(const gm_checkpoint *c) {
    static const char *const prefixes[] = {"model", "model.language_model", "language_model.model", "language_model",
                                           ""};
    char name[64];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(name, sizeof name, "%s%sembed_tokens.weight", prefixes[i], *prefixes[i] ? "." : "");
        if (checkpoint_find(c, name))
            return prefixes[i];
    }
    return "model";
}

/* The rows of the first layer's keys tell, as packed bits do not change their number. */
static void infer_head_dim(const config_source *s, int64_t n_kv_heads, int64_t *out) {
    char name[128];
    if (!s->checkpoint || n_kv_heads < 1)
        return;
    const char *prefix = config_prefix(s->checkpoint);
    snprintf(name, sizeof name, "%s%slayers.0.self_attn.k_proj.weight", prefix, *prefix ? "." : "");
    const gm_tensor *t = checkpoint_find(s->checkpoint, name);
    if (t && t->ndim == 2 && t->shape[0] >= n_kv_heads && t->shape[0] % n_kv_heads == 0)
        *out = t->shape[0] / n_kv_heads;
}

/* Any sizes for a source that answers nothing, where the class has no default. */
static void fill_sizes(gm_config *c) {
    int64_t *const sizes[] = {&c->vocab, &c->hidden, &c->n_layers, &c->n_heads, &c->n_kv_heads, &c->head_dim, &c->mlp};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *sizes[i] = *sizes[i] > 0 ? *sizes[i] : 1;
}

/* The layers, which are alike but for what the source gives for each. */
static gm_status read_layers(const config_source *s, gm_config *c) {
    c->layers = memory_array((size_t)c->n_layers, sizeof *c->layers);
    if (!c->layers)
        return GM_ENOMEM;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->layers[i] = (gm_layer_config){.kind = c->window ? LAYER_SLIDING : LAYER_FULL,
                                         .has = HAS_ATTENTION | HAS_KV | HAS_V | HAS_MLP,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->head_dim,
                                         .mlp = c->mlp,
                                         .window = c->window,
                                         .source = (int)i};
    GM_TRY(read_each(s, c, "num_key_value_heads", "attention.head_count_kv", offsetof(gm_layer_config, n_kv_heads)));
    GM_TRY(read_each(s, c, "num_attention_heads", "attention.head_count", offsetof(gm_layer_config, n_heads)));
    return read_each(s, c, "intermediate_size", "feed_forward_length", offsetof(gm_layer_config, mlp));
}

gm_status config_common(const config_source *s, gm_config *c) {
    int64_t head_dim = c->head_dim, mtp = 0;
    if (c->eps == 0)
        c->eps = s->g ? 1e-5 : 1e-6;
    if (!c->context)
        c->context = 2048;
    GM_TRY(read_vocab(s, c));
    GM_TRY(required(s, "hidden_size", "embedding_length", &c->hidden));
    GM_TRY(c->n_layers && !s->g ? config_int(s, "num_hidden_layers", "block_count", &c->n_layers)
                                : config_need(s, "num_hidden_layers", "block_count", &c->n_layers));
    GM_TRY(config_int(s, NULL, "nextn_predict_layers", &mtp));
    if (mtp > 0 && mtp < c->n_layers) {
        c->n_layers -= mtp;
        c->n_mtp_layers = mtp;
    }
    GM_TRY(required(s, "num_attention_heads", "attention.head_count", &c->n_heads));
    int64_t n_kv_heads = c->n_kv_heads && !s->g ? c->n_kv_heads : c->n_heads;
    GM_TRY(read_greatest(s, "num_key_value_heads", "attention.head_count_kv", &n_kv_heads));
    c->n_kv_heads = n_kv_heads;
    if (!head_dim || s->g)
        head_dim = c->n_heads > 0 ? c->hidden / c->n_heads : 0;
    if (!config_has(s, "head_dim", "attention.key_length"))
        infer_head_dim(s, n_kv_heads, &head_dim);
    GM_TRY(config_int(s, "head_dim", "attention.key_length", &head_dim));
    c->head_dim = head_dim;
    int64_t value_length = head_dim;
    GM_TRY(config_int(s, NULL, "attention.value_length", &value_length));
    if (value_length != head_dim)
        return gm_fail(GM_EUNSUPPORTED, "%s: key_length %lld and value_length %lld differ", s->name,
                       (long long)head_dim, (long long)value_length);
    GM_TRY(config_pair(s, "head_dim", "attention.value_length", 0));
    if (!c->mlp || s->listener || config_has(s, "intermediate_size", "feed_forward_length"))
        GM_TRY(required(s, "intermediate_size", "feed_forward_length", &c->mlp));
    GM_TRY(config_int(s, "max_position_embeddings", "context_length", &c->context));
    GM_TRY(config_number(s, "rms_norm_eps", "attention.layer_norm_rms_epsilon", &c->eps));
    if (!s->g) {
        bool tied = c->tied == 1;
        if (config_has(s, "tie_word_embeddings", NULL)) {
            GM_TRY(config_flag(s, "tie_word_embeddings", NULL, &tied));
            c->tied = tied;
        } else if (c->tied != 1) {
            c->tied = -1;
        }
    } else {
        c->tied = -1;
    }
    if (s->listener)
        fill_sizes(c);
    GM_TRY(source_check_sizes(s, c));
    if (c->embedding_scale == 0)
        c->embedding_scale = 1;
    if (c->attention_scale == 0)
        c->attention_scale = 1 / sqrt((double)c->head_dim);
    return read_layers(s, c);
}

/* ---- kinds of layers ---- */
static gm_status kind_of(const config_source *s, const cJSON *item, gm_layer_kind *out) {
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    if (strncmp(text, "sliding", 7) == 0)
        *out = LAYER_SLIDING;
    else if (strncmp(text, "linear", 6) == 0)
        *out = LAYER_LINEAR;
    else if (strncmp(text, "full", 4) == 0 || strcmp(text, "attention") == 0)
        *out = LAYER_FULL;
    else
        return gm_fail(GM_EUNSUPPORTED,
                       "%s: layer_types has \"%.60s\", expected full_attention, sliding_attention or "
                       "linear_attention",
                       s->name, text);
    return GM_OK;
}

static void set_kind(gm_config *c, int64_t i, gm_layer_kind kind) {
    gm_layer_config *l = &c->layers[i];
    l->kind = kind;
    l->window = kind == LAYER_SLIDING ? c->window : 0;
    l->has &= ~(uint32_t)(HAS_ATTENTION | HAS_KV | HAS_V | HAS_LINEAR);
    l->has |= kind == LAYER_LINEAR ? HAS_LINEAR : HAS_ATTENTION | HAS_KV | HAS_V;
}

gm_status config_layer_types(const config_source *s, gm_config *c, int64_t period, gm_layer_kind other) {
    const cJSON *types = s->g ? NULL : source_item(s, "layer_types");
    const gguf_entry *pattern = s->g ? source_entry(s, "attention.sliding_window_pattern") : NULL;
    bool is_list = types || (pattern && pattern->type == GGUF_ARRAY);
    int64_t count = types ? cJSON_GetArraySize(types) : is_list ? (int64_t)pattern->count : c->n_layers;
    if (s->listener && other == LAYER_SLIDING)
        s->listener->period = period;
    if (types && !cJSON_IsArray(types))
        return gm_fail(GM_EBADFILE, "%s: layer_types is not a list", s->name);
    if (count < c->n_layers)
        return gm_fail(GM_EBADFILE, "%s: %s names %lld of %lld layers", s->name,
                       types ? "layer_types" : "attention.sliding_window_pattern", (long long)count,
                       (long long)c->n_layers);
    if (pattern && !is_list)
        GM_TRY(config_int(s, NULL, "attention.sliding_window_pattern", &period));
    const cJSON *item = types ? types->child : NULL;
    for (int64_t i = 0; i < c->n_layers; i++, item = item ? item->next : NULL) {
        gm_layer_kind kind = c->layers[i].kind;
        int64_t sliding = 0;
        if (types) {
            GM_TRY(kind_of(s, item, &kind));
        } else if (is_list) {
            GM_TRY(gguf_item_int(pattern, (uint64_t)i, &sliding));
            kind = sliding ? other : LAYER_FULL;
        } else if (period > 0) {
            kind = (i + 1) % period ? other : LAYER_FULL;
        }
        set_kind(c, i, kind);
    }
    return GM_OK;
}

/* ---- rotary embeddings ---- */
rope_config rope_defaults(double theta) {
    return (rope_config){.theta = theta,
                         .factor = 1,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .partial = 1,
                         .truncate = true};
}

static gm_status rope_type(const char *name, const char *type, rope_kind *out) {
    static const struct {
        const char *text;
        rope_kind kind;
    } kinds[] = {
        {"default", ROPE_DEFAULT}, {"none", ROPE_DEFAULT},
        {"mrope", ROPE_DEFAULT},   {"linear", ROPE_LINEAR},
        {"llama3", ROPE_LLAMA3},   {"yarn", ROPE_YARN},
        {"dynamic", ROPE_DYNAMIC}, {"proportional", ROPE_PROPORTIONAL},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].text, type) == 0) {
            *out = kinds[i].kind;
            return GM_OK;
        }
    return gm_fail(GM_EMODEL, "%s: rope type \"%.60s\" is not supported", name, type);
}

static gm_status json_rope_object(const config_source *s, const gm_config *c, const cJSON *p, rope_config *r) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(p, "rope_type");
    if (!type)
        type = cJSON_GetObjectItemCaseSensitive(p, "type");
    if (type && !cJSON_IsString(type))
        return gm_fail(GM_EBADFILE, "%s: rope_type is not a string", s->name);
    if (type)
        GM_TRY(rope_type(s->name, type->valuestring, &r->kind));
    const struct {
        const char *key;
        double *to;
    } numbers[] = {
        {"rope_theta", &r->theta},
        {"factor", &r->factor},
        {"low_freq_factor", &r->low_freq_factor},
        {"high_freq_factor", &r->high_freq_factor},
        {"original_max_position_embeddings", &r->original_context},
        {"beta_fast", &r->beta_fast},
        {"beta_slow", &r->beta_slow},
        {"attention_factor", &r->attention_factor},
        {"mscale", &r->mscale},
        {"mscale_all_dim", &r->mscale_all_dim},
        {"partial_rotary_factor", &r->partial},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        GM_TRY(source_number(s, p, numbers[i].key, numbers[i].to));
    const cJSON *factor = cJSON_GetObjectItemCaseSensitive(p, "factor");
    if (r->kind == ROPE_YARN && (!factor || cJSON_IsNull(factor)))
        r->factor = (double)c->context / r->original_context;
    const cJSON *truncate = cJSON_GetObjectItemCaseSensitive(p, "truncate");
    if (truncate && !cJSON_IsBool(truncate) && !cJSON_IsNull(truncate))
        return gm_fail(GM_EBADFILE, "%s: truncate is neither true nor false", s->name);
    if (cJSON_IsBool(truncate))
        r->truncate = cJSON_IsTrue(truncate);
    return GM_OK;
}

static gm_status check_partial(const config_source *s, const rope_config *r) {
    if (r->partial > 0 && r->partial <= 1)
        return GM_OK;
    return gm_fail(GM_EBADFILE, "%s: partial_rotary_factor is %g, expected more than 0 and up to 1", s->name,
                   r->partial);
}

static gm_status json_rope(const config_source *s, const gm_config *c, const char *layers, rope_config *r) {
    const cJSON *p, *scaling, *nested = NULL;
    GM_TRY(source_object(s, NULL, "rope_parameters", &p));
    GM_TRY(source_object(s, NULL, "rope_scaling", &scaling));
    p = p ? p : scaling;
    GM_TRY(config_number(s, "rope_theta", "rope.freq_base", &r->theta));
    GM_TRY(config_number(s, "partial_rotary_factor", NULL, &r->partial));
    GM_TRY(check_partial(s, r));
    if (p && layers)
        GM_TRY(source_object(s, p, layers, &nested));
    p = nested ? nested : p;
    return p ? json_rope_object(s, c, p, r) : GM_OK;
}

static gm_status gguf_rope(const config_source *s, rope_config *r) {
    char key[160], type[64];
    gguf_string text = {0};
    bool found;
    double attention = 0;
    GM_TRY(config_number(s, NULL, "rope.freq_base", &r->theta));
    GM_TRY(config_number(s, NULL, "rope.scaling.factor", &r->factor));
    GM_TRY(config_number(s, NULL, "rope.scaling.original_context_length", &r->original_context));
    GM_TRY(config_number(s, NULL, "rope.scaling.attn_factor", &attention));
    GM_TRY(config_number(s, NULL, "rope.scaling.yarn_beta_fast", &r->beta_fast));
    GM_TRY(config_number(s, NULL, "rope.scaling.yarn_beta_slow", &r->beta_slow));
    snprintf(key, sizeof key, "%s.rope.scaling.type", s->arch);
    GM_TRY(gguf_get_string(s->g, key, &text, &found));
    if (found) {
        snprintf(type, sizeof type, "%.*s", (int)(text.length < 60 ? text.length : 60), text.text);
        GM_TRY(rope_type(s->name, type, &r->kind));
    }
    if (attention > 0 && r->kind == ROPE_YARN) /* llama.cpp multiplies YaRN's own factor by it */
        r->attention_factor = attention * (r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1);
    return GM_OK;
}

static gm_status rope_dims(const config_source *s, const gm_config *c, rope_config *r) {
    int64_t dims = 0;
    GM_TRY(check_partial(s, r));
    GM_TRY(config_int(s, NULL, "rope.dimension_count", &dims));
    if (!r->dims)
        r->dims = (int)c->head_dim;
    if (config_has(s, NULL, "rope.dimension_count"))
        r->dims = dims > 0 && dims <= 4096 ? (int)dims : 0;
    else if (r->kind != ROPE_PROPORTIONAL)
        r->dims = (int)((double)r->dims * r->partial);
    return GM_OK;
}

gm_status config_rope(const config_source *s, const gm_config *c, const char *type, rope_config *r) {
    if (r->original_context == 0)
        r->original_context = (double)c->context;
    GM_TRY(s->g ? gguf_rope(s, r) : json_rope(s, c, type, r));
    return rope_dims(s, c, r);
}

gm_status config_rope_nested(const config_source *s, const gm_config *c, const char *type, rope_config *r) {
    const cJSON *all = NULL, *nested = NULL;
    if (!s->g)
        GM_TRY(source_object(s, NULL, "rope_parameters", &all));
    if (all)
        GM_TRY(source_object(s, all, type, &nested));
    if (r->original_context == 0)
        r->original_context = (double)c->context;
    if (nested)
        GM_TRY(json_rope_object(s, c, nested, r));
    return rope_dims(s, c, r);
}

gm_status config_optional(const config_source *s, const char *key, const char *gguf_key, double *out) {
    if (s->listener)
        return source_hear(s, VALUE_OPTIONAL, key, gguf_key, *out);
    if (config_has_null(s, key))
        *out = 0;
    return config_number(s, key, gguf_key, out);
}

gm_status config_overrides(const config_source *s, gm_config *c, bool *found) {
    const cJSON *all = NULL;
    if (!s->g)
        GM_TRY(source_object(s, NULL, "per_layer_config", &all));
    *found = all != NULL;
    for (const cJSON *item = all ? all->child : NULL; item; item = item->next) {
        char *end;
        long i = strtol(item->string, &end, 10);
        const cJSON *dim = cJSON_GetObjectItemCaseSensitive(item, "head_dim"),
                    *heads = cJSON_GetObjectItemCaseSensitive(item, "num_key_value_heads");
        if (!cJSON_IsObject(item))
            return gm_fail(GM_EBADFILE, "%s: per_layer_config: layer \"%.60s\" is not an object", s->name,
                           item->string);
        if (*end || end == item->string || i < 0 || i >= c->n_layers)
            return gm_fail(GM_EBADFILE, "%s: per_layer_config has layer \"%.60s\" of %lld", s->name, item->string,
                           (long long)c->n_layers);
        if (dim && !cJSON_IsNull(dim))
            GM_TRY(source_integer(s, "per_layer_config: head_dim", dim, &c->layers[i].head_dim));
        if (heads && !cJSON_IsNull(heads))
            GM_TRY(source_integer(s, "per_layer_config: num_key_value_heads", heads, &c->layers[i].n_kv_heads));
    }
    return GM_OK;
}

/* ---- experts ---- */
gm_status config_experts(const config_source *s, gm_config *c) {
    int64_t step = 1, i;
    GM_TRY(config_int(s, "num_local_experts", NULL, &c->n_experts));
    GM_TRY(config_int(s, "num_experts", "expert_count", &c->n_experts));
    GM_TRY(config_int(s, "num_experts_per_tok", "expert_used_count", &c->n_experts_used));
    GM_TRY(config_int(s, "moe_intermediate_size", "expert_feed_forward_length", &c->expert_mlp));
    GM_TRY(config_flag(s, "norm_topk_prob", "expert_weights_norm", &c->normalise_experts));
    GM_TRY(config_int(s, "decoder_sparse_step", NULL, &step));
    const cJSON *dense = s->g ? NULL : source_item(s, "mlp_only_layers");
    if (step < 1 || (dense && !cJSON_IsArray(dense)))
        return gm_fail(GM_EBADFILE,
                       "%s: decoder_sparse_step is %lld and mlp_only_layers %s, expected 1 or more and a "
                       "list",
                       s->name, (long long)step, dense ? "no list" : "absent");
    for (i = 0; i < c->n_layers; i++)
        if (c->n_experts > 0 && (i + 1) % step == 0)
            c->layers[i].has = (c->layers[i].has & ~(uint32_t)HAS_MLP) | HAS_EXPERTS;
    for (const cJSON *item = dense ? dense->child : NULL; item; item = item->next) {
        GM_TRY(source_integer(s, "mlp_only_layers", item, &i));
        if (i >= 0 && i < c->n_layers)
            c->layers[i].has = (c->layers[i].has & ~(uint32_t)HAS_EXPERTS) | HAS_MLP;
    }
    return GM_OK;
}

gm_status config_activation(const config_source *s, const char *expected) {
    if (s->listener)
        s->listener->activation = expected;
    const cJSON *act = s->g ? NULL : source_item(s, "hidden_activation");
    if (!act && !s->g)
        act = source_item(s, "hidden_act");
    if (act && !(cJSON_IsString(act) && strcmp(act->valuestring, expected) == 0))
        return gm_fail(GM_EUNSUPPORTED, "%s: hidden_act is \"%.60s\", expected %s", s->name,
                       cJSON_IsString(act) ? act->valuestring : "?", expected);
    return GM_OK;
}

gm_status config_causal(const config_source *s) {
    const cJSON *both = s->g ? NULL : source_item(s, "use_bidirectional_attention");
    if (both && !cJSON_IsBool(both) && !cJSON_IsString(both))
        return gm_fail(GM_EBADFILE, "%s: use_bidirectional_attention is neither true, false nor a text", s->name);
    if (both && (cJSON_IsTrue(both) || (cJSON_IsString(both) && strcmp(both->valuestring, "all") == 0)))
        return gm_fail(GM_EUNSUPPORTED,
                       "%s: use_bidirectional_attention is set: an encoder, expected a model that "
                       "writes text",
                       s->name);
    return GM_OK;
}

int64_t config_dim(const gm_config *c, const gm_layer_config *l, int dim) {
    if (dim >= DIM_OWN)
        return *(const int64_t *)(const void *)((const char *)c->own + (dim - DIM_OWN));
    switch ((gm_dim)dim) {
    case DIM_ONE: return 1;
    case DIM_HIDDEN: return c->hidden;
    case DIM_VOCAB: return c->vocab;
    case DIM_QUERIES: return l->n_heads * l->head_dim;
    case DIM_GATED_QUERIES: return 2 * l->n_heads * l->head_dim;
    case DIM_KEYS: return l->n_kv_heads * l->head_dim;
    case DIM_HEAD: return l->head_dim;
    case DIM_HEADS: return l->n_heads;
    case DIM_MLP: return l->mlp;
    case DIM_EXPERTS: return c->n_experts;
    case DIM_EXPERT_MLP: return c->expert_mlp;
    case DIM_SHARED_MLP: return c->shared_mlp;
    case DIM_CHANNELS: return l->conv_channels;
    case DIM_KERNEL: return l->conv_kernel;
    case DIM_VALUES: return l->state_heads * l->state_value;
    case DIM_VALUE_HEADS: return l->state_heads;
    case DIM_VALUE_HEAD: return l->state_value;
    case DIM_OWN: break;
    }
    return 0;
}
