/* config.c - see config.h. The pull reader checks config.json and says what is wrong with it, cJSON makes it a tree;
 * every number is checked before it is used as a size. */
#include "models/config.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/memory.h"

#define MAX_SIZE (1 << 26)       /* no dimension of a real model comes near */

static const gm_architecture *const architectures[] = {
#define MODEL(name) &name##_architecture,
#include "models.def"
#undef MODEL
};
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

const gm_architecture *architecture_find(const char *model_type, const char *gguf_name) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        if (gguf_name && architectures[i]->gguf && strcmp(architectures[i]->gguf, gguf_name) == 0)
            return architectures[i];
        for (const char *const *type = architectures[i]->types; model_type && *type; type++)
            if (strcmp(*type, model_type) == 0)
                return architectures[i];
    }
    return NULL;
}

void architecture_names(char *out, size_t size, bool gguf_names) {
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const char *name = gguf_names ? architectures[i]->gguf : architectures[i]->name;
        if (name && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", name);
    }
}

/* What both containers have to satisfy, whatever their spelling. */
static gm_status check(const char *name, const gm_config *c, bool gguf_keys) {
    const struct { const char *key, *gguf; int64_t value; } sizes[] = {
        {"vocab_size", "vocab_size", c->vocab}, {"hidden_size", "embedding_length", c->hidden},
        {"num_hidden_layers", "block_count", c->n_layers}, {"num_attention_heads", "attention.head_count", c->n_heads},
        {"num_key_value_heads", "attention.head_count_kv", c->n_kv_heads},
        {"head_dim", "attention.key_length", c->head_dim},
        {"intermediate_size", "feed_forward_length", c->mlp}, {"max_position_embeddings", "context_length", c->context},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > MAX_SIZE)
            return gm_fail(GM_EBADFILE, "%s: %s is %lld, expected 1 to %d", name,
                           gguf_keys ? sizes[i].gguf : sizes[i].key, (long long)sizes[i].value, MAX_SIZE);
    if (c->n_heads % c->n_kv_heads)
        return gm_fail(GM_EBADFILE, "%s: %lld attention heads are not a multiple of %lld key/value heads", name,
                       (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->head_dim % 2 || c->head_dim > 1024)
        return gm_fail(GM_EBADFILE, "%s: head_dim is %lld, expected an even number up to 1024", name,
                       (long long)c->head_dim);
    if (c->n_layers > 4096 || c->n_heads * c->head_dim > MAX_SIZE)
        return gm_fail(GM_EBADFILE, "%s: %lld layers of %lld heads are more than any model has", name,
                       (long long)c->n_layers, (long long)c->n_heads);
    if (c->window < 0)
        return gm_fail(GM_EBADFILE, "%s: sliding_window is %lld, expected 0 or more", name, (long long)c->window);
    if (!(c->eps >= 0 && c->eps < 1))
        return gm_fail(GM_EBADFILE, "%s: the epsilon of RMSNorm is %g, expected 0 to 1", name, c->eps);
    const rope_config *r = &c->rope;
    if (!(r->theta > 1 && isfinite(r->theta)) || r->dims < 2 || r->dims > c->head_dim || r->dims % 2)
        return gm_fail(GM_EBADFILE, "%s: rope theta %g over %d of %lld dimensions, expected more than 1 over an even "
                       "number of them", name, r->theta, r->dims, (long long)c->head_dim);
    if (r->kind != ROPE_DEFAULT && !(r->factor > 0 && isfinite(r->factor)))
        return gm_fail(GM_EBADFILE, "%s: rope scaling factor is %g, expected more than 0", name, r->factor);
    if (r->kind == ROPE_LLAMA3 && !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor &&
                                    r->original_context > 0))
        return gm_fail(GM_EBADFILE, "%s: rope type llama3 with low_freq_factor %g, high_freq_factor %g, original "
                       "context %g, expected 0 < low < high", name, r->low_freq_factor, r->high_freq_factor,
                       r->original_context);
    if (r->kind == ROPE_YARN && !(r->original_context > 0 && r->beta_fast > 0 && r->beta_slow > 0))
        return gm_fail(GM_EBADFILE, "%s: rope type yarn with original context %g, beta_fast %g, beta_slow %g, "
                       "expected more than 0", name, r->original_context, r->beta_fast, r->beta_slow);
    return GM_OK;
}

static gm_status rope_type(const char *name, const char *type, rope_kind *out) {
    static const struct { const char *text; rope_kind kind; } kinds[] = {
        {"default", ROPE_DEFAULT}, {"none", ROPE_DEFAULT}, {"mrope", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},
        {"llama3", ROPE_LLAMA3},
        {"yarn", ROPE_YARN}, {"dynamic", ROPE_DYNAMIC},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].text, type) == 0) {
            *out = kinds[i].kind;
            return GM_OK;
        }
    return gm_fail(GM_EUNSUPPORTED, "%s: rope type \"%.60s\" is not supported", name, type);
}

/* ---- config.json ---- */
typedef struct { const char *name; const cJSON *root; } source;

static const cJSON *get(const cJSON *object, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(v) ? NULL : v;
}

static gm_status get_number(const source *s, const cJSON *object, const char *key, double *out) {
    const cJSON *v = get(object, key);
    if (!v)
        return GM_OK;
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        return gm_fail(GM_EBADFILE, "%s: %s is no number", s->name, key);
    *out = v->valuedouble;
    return GM_OK;
}

static gm_status get_int(const source *s, const char *key, int64_t *out) {
    double v = NAN;
    GM_TRY(get_number(s, s->root, key, &v));
    if (isnan(v))
        return GM_OK;
    if (v != floor(v) || fabs(v) > 9e15)
        return gm_fail(GM_EBADFILE, "%s: %s is %g, expected an integer", s->name, key, v);
    *out = (int64_t)v;
    return GM_OK;
}

static gm_status need_int(const source *s, const char *key, int64_t *out) {
    if (!get(s->root, key))
        return gm_fail(GM_EBADFILE, "%s: %s is missing", s->name, key);
    return get_int(s, key, out);
}

static gm_status read_rope(const source *s, gm_config *c) {
    rope_config *r = &c->rope;
    const cJSON *p = get(s->root, "rope_parameters");
    double partial = 1;
    if (!p)
        p = get(s->root, "rope_scaling");
    *r = (rope_config){.theta = 10000, .factor = 1, .low_freq_factor = 1, .high_freq_factor = 4, .beta_fast = 32,
                       .beta_slow = 1, .truncate = true};
    r->original_context = (double)c->context;
    GM_TRY(get_number(s, s->root, "rope_theta", &r->theta));
    GM_TRY(get_number(s, s->root, "partial_rotary_factor", &partial));
    if (p && !cJSON_IsObject(p))
        return gm_fail(GM_EBADFILE, "%s: rope_parameters is no object", s->name);
    if (p) {
        const cJSON *type = get(p, "rope_type");
        if (!type)
            type = get(p, "type");
        if (type && !cJSON_IsString(type))
            return gm_fail(GM_EBADFILE, "%s: rope_type is no text", s->name);
        GM_TRY(rope_type(s->name, type ? type->valuestring : "default", &r->kind));
        const struct { const char *key; double *to; } numbers[] = {
            {"rope_theta", &r->theta}, {"factor", &r->factor}, {"low_freq_factor", &r->low_freq_factor},
            {"high_freq_factor", &r->high_freq_factor}, {"original_max_position_embeddings", &r->original_context},
            {"beta_fast", &r->beta_fast}, {"beta_slow", &r->beta_slow}, {"attention_factor", &r->attention_factor},
            {"mscale", &r->mscale}, {"mscale_all_dim", &r->mscale_all_dim}, {"partial_rotary_factor", &partial},
        };
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            GM_TRY(get_number(s, p, numbers[i].key, numbers[i].to));
        if (r->kind == ROPE_YARN && !get(p, "factor"))
            r->factor = (double)c->context / r->original_context;
        if (cJSON_IsFalse(get(p, "truncate")))
            r->truncate = false;
    }
    if (!(partial > 0 && partial <= 1))
        return gm_fail(GM_EBADFILE, "%s: partial_rotary_factor is %g, expected more than 0 and up to 1", s->name,
                       partial);
    r->dims = (int)((double)c->head_dim * partial);
    return GM_OK;
}

static gm_status read_json(const source *s, const gm_architecture **arch, gm_config *c) {
    const cJSON *type = get(s->root, "model_type"), *act = get(s->root, "hidden_act");
    if (type && !cJSON_IsString(type))
        return gm_fail(GM_EBADFILE, "%s: model_type is no text", s->name);
    const char *model_type = type ? type->valuestring : "llama";
    *arch = architecture_find(model_type, NULL);
    if (!*arch) {
        char names[256];
        architecture_names(names, sizeof names, false);
        return gm_fail(GM_EUNSUPPORTED, "%s: model_type \"%.60s\" is not supported; supported are %s", s->name,
                       model_type, names);
    }
    if (get(s->root, "quantization") || get(s->root, "quantization_config"))
        return gm_fail(GM_EUNSUPPORTED, "%s: quantised safetensors checkpoints are not supported; use the original or "
                       "a GGUF file", s->name);
    if (act && !(cJSON_IsString(act) && strcmp(act->valuestring, "silu") == 0))
        return gm_fail(GM_EUNSUPPORTED, "%s: hidden_act is \"%.60s\", expected silu", s->name,
                       cJSON_IsString(act) ? act->valuestring : "?");
    c->context = 2048;
    c->eps = 1e-6;
    GM_TRY(need_int(s, "vocab_size", &c->vocab));
    GM_TRY(need_int(s, "hidden_size", &c->hidden));
    GM_TRY(need_int(s, "num_hidden_layers", &c->n_layers));
    GM_TRY(need_int(s, "num_attention_heads", &c->n_heads));
    GM_TRY(need_int(s, "intermediate_size", &c->mlp));
    c->n_kv_heads = c->n_heads;
    GM_TRY(get_int(s, "num_key_value_heads", &c->n_kv_heads));
    c->head_dim = c->n_heads > 0 ? c->hidden / c->n_heads : 0;
    GM_TRY(get_int(s, "head_dim", &c->head_dim));
    GM_TRY(get_int(s, "max_position_embeddings", &c->context));
    GM_TRY(get_number(s, s->root, "rms_norm_eps", &c->eps));
    if ((*arch)->window) {           /* null turns it off, a missing key does not */
        c->window = cJSON_HasObjectItem(s->root, "sliding_window") ? 0 : (*arch)->window;
        GM_TRY(get_int(s, "sliding_window", &c->window));
    }
    c->tied = get(s->root, "tie_word_embeddings") ? cJSON_IsTrue(get(s->root, "tie_word_embeddings")) : -1;
    return read_rope(s, c);
}

gm_status config_from_json(const char *text, size_t length, const char *name, const gm_architecture **arch,
                           gm_config *out) {
    json_reader r;
    *out = (gm_config){0};
    json_open(&r, text, length, name);
    GM_TRY(json_expect(&r, JSON_OBJECT));
    GM_TRY(json_skip(&r));
    GM_TRY(json_expect(&r, JSON_END));
    source s = {.name = name, .root = cJSON_ParseWithLength(text, length)};
    if (!s.root)
        return gm_fail(GM_ENOMEM, "%s: out of memory", name);
    gm_status status = read_json(&s, arch, out);
    cJSON_Delete((cJSON *)(uintptr_t)s.root);
    return status == GM_OK ? check(name, out, false) : status;
}

/* ---- GGUF ---- */
typedef struct { const gguf *g; const char *name, *arch; } gguf_source;

static gm_status gguf_int(const gguf_source *s, const char *key, int64_t *out, bool needed) {
    char full[160];
    bool found;
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    GM_TRY(gguf_get_int(s->g, full, out, &found));
    if (needed && !found)
        return gm_fail(GM_EBADFILE, "%s: metadata key %s is missing", s->name, full);
    return GM_OK;
}

static gm_status gguf_number(const gguf_source *s, const char *key, double *out) {
    char full[160];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    return gguf_get_float(s->g, full, out, NULL);
}

gm_status config_from_gguf(const gguf *g, const gm_architecture **arch, gm_config *c) {
    gguf_string text = {0};
    bool found;
    char name[128], key[160];
    const char *file = gguf_file(g)->path;
    *c = (gm_config){0};
    GM_TRY(gguf_get_string(g, "general.architecture", &text, &found));
    if (!found)
        return gm_fail(GM_EBADFILE, "%s: metadata key general.architecture is missing", file);
    snprintf(name, sizeof name, "%.*s", (int)(text.length < 100 ? text.length : 100), text.text);
    *arch = architecture_find(NULL, name);
    if (!*arch) {
        char names[256];
        architecture_names(names, sizeof names, true);
        return gm_fail(GM_EUNSUPPORTED, "%s: architecture \"%s\" is not supported; supported are %s", file, name,
                       names);
    }
    gguf_source s = {g, file, name};
    c->eps = 1e-5;
    c->tied = -1;
    c->context = 2048;
    GM_TRY(gguf_int(&s, "embedding_length", &c->hidden, true));
    GM_TRY(gguf_int(&s, "block_count", &c->n_layers, true));
    GM_TRY(gguf_int(&s, "feed_forward_length", &c->mlp, true));
    GM_TRY(gguf_int(&s, "attention.head_count", &c->n_heads, true));
    c->n_kv_heads = c->n_heads;
    GM_TRY(gguf_int(&s, "attention.head_count_kv", &c->n_kv_heads, false));
    c->head_dim = c->n_heads > 0 ? c->hidden / c->n_heads : 0;
    GM_TRY(gguf_int(&s, "attention.key_length", &c->head_dim, false));
    int64_t value_length = c->head_dim, dims = c->head_dim;
    GM_TRY(gguf_int(&s, "attention.value_length", &value_length, false));
    if (value_length != c->head_dim)
        return gm_fail(GM_EUNSUPPORTED, "%s: key_length %lld and value_length %lld differ", file,
                       (long long)c->head_dim, (long long)value_length);
    GM_TRY(gguf_int(&s, "context_length", &c->context, false));
    GM_TRY(gguf_int(&s, "attention.sliding_window", &c->window, false));
    GM_TRY(gguf_int(&s, "rope.dimension_count", &dims, false));
    int64_t experts = 0;
    GM_TRY(gguf_int(&s, "expert_count", &experts, false));
    if (experts > 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: mixtures of experts (%lld experts) of architecture %s are not supported",
                       file, (long long)experts, name);
    GM_TRY(gguf_number(&s, "attention.layer_norm_rms_epsilon", &c->eps));
    rope_config *r = &c->rope;
    *r = (rope_config){.theta = 10000, .factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true,
                       .original_context = (double)c->context};
    r->dims = dims > 0 && dims <= 4096 ? (int)dims : 0;
    GM_TRY(gguf_number(&s, "rope.freq_base", &r->theta));
    GM_TRY(gguf_number(&s, "rope.scaling.factor", &r->factor));
    GM_TRY(gguf_number(&s, "rope.scaling.original_context_length", &r->original_context));
    GM_TRY(gguf_number(&s, "rope.scaling.attn_factor", &r->attention_factor));
    GM_TRY(gguf_number(&s, "rope.scaling.yarn_beta_fast", &r->beta_fast));
    GM_TRY(gguf_number(&s, "rope.scaling.yarn_beta_slow", &r->beta_slow));
    snprintf(key, sizeof key, "%s.rope.scaling.type", name);
    GM_TRY(gguf_get_string(g, key, &text, &found));
    if (found) {
        char type[64];
        snprintf(type, sizeof type, "%.*s", (int)(text.length < 60 ? text.length : 60), text.text);
        GM_TRY(rope_type(file, type, &r->kind));
    }
    const gguf_entry *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    c->vocab = tokens ? (int64_t)tokens->count : 0;
    GM_TRY(gguf_int(&s, "vocab_size", &c->vocab, false));
    return check(file, c, true);
}
