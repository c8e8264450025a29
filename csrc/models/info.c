/* info.c - what is known about a loaded model, as JSON. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "models/load.h"
#include "models/traffic.h"

static cJSON *metadata_value(const gguf_entry *e) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    int64_t integer = 0;
    double number = 0;
    if (e->type == GGUF_STRING) {
        const uint8_t *cursor = e->data;
        gguf_string text = gguf_next_string(&cursor);
        char *copy = memory_copy_text(text.text, text.length);
        cJSON *value = copy ? cJSON_CreateString(copy) : NULL;
        memory_free(copy);
        return value;
    }
    if (e->type == GGUF_ARRAY) {
        cJSON *value = cJSON_CreateObject();
        if (value && cJSON_AddStringToObject(value, "type", names[e->item_type]) &&
            cJSON_AddNumberToObject(value, "count", (double)e->count))
            return value;
        cJSON_Delete(value);
        return NULL;
    }
    if (e->type == GGUF_BOOL)
        return cJSON_CreateBool(e->data[0] != 0);
    if (e->type == GGUF_F32 || e->type == GGUF_F64)
        return gguf_item_float(e, 0, &number) == GM_OK && isfinite(number) ? cJSON_CreateNumber(number)
                                                                           : cJSON_CreateNull();
    if (gguf_item_int(e, 0, &integer) == GM_OK)
        return cJSON_CreateNumber((double)integer);
    gm_error beyond_int64;
    gm_take_error(&beyond_int64);
    return cJSON_CreateNull();
}

static bool add_metadata(cJSON *o, const gguf *g) {
    cJSON *metadata = cJSON_AddObjectToObject(o, "metadata");
    bool ok = metadata != NULL;
    for (int64_t i = 0; i < gguf_n_entries(g) && ok; i++) {
        const gguf_entry *e = gguf_entry_at(g, i);
        char *key = memory_copy_text(e->key.text, e->key.length);
        cJSON *value = key ? metadata_value(e) : NULL;
        ok = value && cJSON_AddItemToObject(metadata, key, value);
        if (!ok)
            cJSON_Delete(value);
        memory_free(key);
    }
    return ok;
}

/* Numbers of weights by their type: "Q4_K", "BF16", of MLX's "affine 4", "NVFP4". */
static bool add_types(cJSON *o, const gm_model *m, int64_t *parameters) {
    cJSON *types = cJSON_AddObjectToObject(o, "weight_types");
    bool ok = types != NULL;
    for (int64_t i = 0; i < m->n_weights && ok; i++) {
        const gm_named_weight *w = &m->weights[i];
        char text[24];
        traffic_type(w, text);
        *parameters += w->count;
        cJSON *seen = cJSON_GetObjectItemCaseSensitive(types, text);
        if (seen)
            cJSON_SetNumberValue(seen, seen->valuedouble + (double)w->count);
        else
            ok = cJSON_AddNumberToObject(types, text, (double)w->count) != NULL;
    }
    return ok;
}

static bool add_unused(cJSON *o, const gm_loader *l) {
    cJSON *unused = cJSON_AddArrayToObject(o, "unused_tensors");
    bool ok = unused != NULL;
    for (int64_t i = 0; i < checkpoint_count(l->checkpoint) && ok; i++) {
        cJSON *name = l->used[i] ? NULL : cJSON_CreateString(checkpoint_at(l->checkpoint, i)->name);
        ok = l->used[i] || (name && cJSON_AddItemToArray(unused, name));
    }
    return ok;
}

const char *info_kind(gm_layer_kind kind) {
    static const char *const names[] = {"full", "sliding", "linear"};
    return names[kind];
}

/* The kind of each layer, when they are not all alike. */
static bool add_kinds(cJSON *o, const gm_config *c) {
    bool alike = true, ok = true;
    for (int64_t i = 1; i < c->n_layers; i++)
        alike &= c->layers[i].kind == c->layers[0].kind;
    cJSON *list = alike ? NULL : cJSON_AddArrayToObject(o, "layer_types");
    for (int64_t i = 0; i < c->n_layers && !alike && ok; i++) {
        cJSON *name = cJSON_CreateString(info_kind(c->layers[i].kind));
        ok = list && name && cJSON_AddItemToArray(list, name);
    }
    return ok;
}

typedef struct {
    const char *key;
    double value;
} number;

static bool add_numbers(cJSON *o, const number *numbers, size_t n) {
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        ok = cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value) != NULL;
    return ok;
}

static const rope_config *main_rope(const gm_config *c) {
    return &c->rope[c->rope[ROPE_FULL].dims ? ROPE_FULL : ROPE_SLIDING];
}

bool info_add_config(cJSON *o, const gm_config *c) {
    const number numbers[] = {
        {"vocab_size", (double)c->vocab},
        {"hidden_size", (double)c->hidden},
        {"n_layers", (double)c->n_layers},
        {"n_heads", (double)c->n_heads},
        {"n_kv_heads", (double)c->n_kv_heads},
        {"head_dim", (double)c->head_dim},
        {"mlp_size", (double)c->mlp},
        {"n_experts", (double)c->n_experts},
        {"n_experts_used", (double)c->n_experts_used},
        {"context_length", (double)c->context},
        {"sliding_window", (double)c->window},
        {"rms_norm_eps", c->eps},
        {"rope_theta", main_rope(c)->theta},
    };
    return add_numbers(o, numbers, sizeof numbers / sizeof *numbers);
}

gm_status make_info(gm_loader *l) {
    gm_model *m = l->model;
    const gm_config *c = &m->config;
    const gguf *g = checkpoint_gguf(l->checkpoint);
    static const char *const ropes[] = {"default", "linear", "llama3", "yarn", "dynamic", "proportional"};
    const rope_config *rope = main_rope(c);
    const bool divided = g && rope->kind == ROPE_DEFAULT && checkpoint_find(l->checkpoint, "rope_freqs.weight");
    int64_t parameters = 0;
    cJSON *o = cJSON_CreateObject();
    if (!o)
        return gm_fail(GM_ENOMEM, "load: out of memory");
    const struct {
        const char *key, *value;
    } texts[] = {
        {"path", l->path},
        {"architecture", m->arch->name},
        {"container", g ? "gguf" : "safetensors"},
        {"rope_type", divided ? "llama3" : ropes[rope->kind]},
        {"activations", m->int8   ? m->bf16 ? "int8, bfloat16" : "int8"
                        : m->bf16 ? "bfloat16"
                                  : "float32"},
        {"kv_dtype", cache_type_name(m->layout.kv_type)},
        {"isa", gm_isa()},
    };
    bool ok = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        ok = ok && cJSON_AddStringToObject(o, texts[i].key, texts[i].value);
    ok = ok && add_types(o, m, &parameters);
    const number bytes[] = {{"parameters", (double)parameters}, {"weight_bytes", (double)m->weight_bytes}},
                 made[] = {{"threads", m->threads}, {"kv_bytes_per_token", (double)cache_position_bytes(&m->layout)}};
    ok = ok && add_numbers(o, bytes, 2) && info_add_config(o, c) && add_numbers(o, made, 2);
    ok = ok && cJSON_AddBoolToObject(o, "tied", c->tied) && add_kinds(o, c) && add_unused(o, l) &&
         (!g || add_metadata(o, g));
    char *text = ok ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    if (!text)
        return gm_fail(GM_ENOMEM, "load: out of memory");
    m->info = memory_copy_text(text, strlen(text));
    cJSON_free(text);
    return m->info ? GM_OK : GM_ENOMEM;
}
