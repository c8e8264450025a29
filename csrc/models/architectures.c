/* architectures.c - what is known of the architectures themselves, as JSON: their names, those of their weights and of
 * their hyperparameters in both containers, and the defaults of their classes. What conversions go by. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "models/config.h"

static const gm_architecture *const architectures[] = {
#define MODEL(name) &name##_architecture,
#include "models.def"
#undef MODEL
};
/* The weights of every model besides its tables. */
static const gm_weight_field common[] = {
    {FIELD_LINEAR, 0, "embed_tokens", "token_embd", DIM_VOCAB, DIM_HIDDEN, 0, 0},
    {FIELD_VECTOR, 0, "norm.weight", "output_norm.weight", DIM_HIDDEN, DIM_ONE, 0, FIELD_ONE_PLUS_WEIGHT},
    {0},
};
static const gm_weight_field head[] = {
    {FIELD_LINEAR, 0, "lm_head", "output", DIM_VOCAB, DIM_HIDDEN, 0, 0},
    {0},
};

/* "a|b" as a list, each after the prefix. */
static bool add_names(cJSON *o, const char *key, const char *prefix, const char *names) {
    cJSON *list = cJSON_AddArrayToObject(o, key);
    bool ok = list != NULL;
    for (const char *at = names; at && ok; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char full[128];
        snprintf(full, sizeof full, "%s%.*s", prefix, (int)strcspn(at, "|"), at);
        cJSON *name = cJSON_CreateString(full);
        ok = name && cJSON_AddItemToArray(list, name);
    }
    return ok;
}

static bool add_fields(cJSON *list, const char *prefix, const gm_weight_field *fields, bool one_plus_weight) {
    static const char *const kinds[] = {"linear", "vector", "matrix", "experts"};
    static const struct {
        uint32_t flag;
        const char *name;
    } flags[] = {{FIELD_PERMUTED, "permuted"},
                 {FIELD_ONE_PLUS_WEIGHT, "centred"},
                 {FIELD_INTERLEAVED, "interleaved"},
                 {FIELD_FUSED, "fused"},
                 {FIELD_GGUF_FUSED, "gguf_fused"}};
    bool ok = true;
    for (const gm_weight_field *f = fields; f && f->name && ok; f++) {
        cJSON *o = cJSON_CreateObject();
        ok = o && cJSON_AddItemToArray(list, o) && add_names(o, "names", prefix, f->name) &&
             add_names(o, "gguf", "", f->gguf) && cJSON_AddStringToObject(o, "kind", kinds[f->kind]) &&
             cJSON_AddBoolToObject(o, "recurrent", f->when & HAS_LINEAR);
        for (size_t i = 0; i < sizeof flags / sizeof *flags && ok; i++)
            ok = cJSON_AddBoolToObject(o, flags[i].name,
                                       (f->flags & flags[i].flag) &&
                                           (one_plus_weight || flags[i].flag != FIELD_ONE_PLUS_WEIGHT));
    }
    return ok;
}

static bool add_values(cJSON *o, const config_listener *heard) {
    static const char *const kinds[] = {"integer", "number", "optional", "flag", "pair"};
    cJSON *list = cJSON_AddArrayToObject(o, "values");
    bool ok = list != NULL;
    for (size_t i = 0; i < heard->n && ok; i++) {
        const config_value *v = &heard->values[i];
        cJSON *one = cJSON_CreateObject();
        ok = one && cJSON_AddItemToArray(list, one) && cJSON_AddStringToObject(one, "kind", kinds[v->kind]) &&
             cJSON_AddStringToObject(one, "key", v->key) && cJSON_AddNumberToObject(one, "usual", v->usual) &&
             (!v->gguf || cJSON_AddStringToObject(one, "gguf", v->gguf));
    }
    return ok;
}

static bool add_list(cJSON *o, const char *key, const char *const *names) {
    cJSON *list = cJSON_AddArrayToObject(o, key);
    bool ok = list != NULL;
    for (; names && *names && ok; names++) {
        cJSON *name = cJSON_CreateString(*names);
        ok = name && cJSON_AddItemToArray(list, name);
    }
    return ok;
}

static bool add_architecture(cJSON *all, const gm_architecture *a, const config_listener *heard) {
    cJSON *o = cJSON_CreateObject();
    const struct {
        const char *key, *text;
    } texts[] = {{"name", a->name},
                 {"class", a->class_name},
                 {"gguf", a->written_as ? a->written_as : a->gguf[0]},
                 {"chat", a->chat},
                 {"activation", heard->activation}};
    bool ok = o && cJSON_AddItemToArray(all, o) && add_list(o, "types", a->types) && add_values(o, heard) &&
              cJSON_AddNumberToObject(o, "period", (double)heard->period);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && ok; i++)
        ok = !texts[i].text || cJSON_AddStringToObject(o, texts[i].key, texts[i].text);
    cJSON *own = ok ? cJSON_AddArrayToObject(o, "globals") : NULL;
    cJSON *layer = own ? cJSON_AddArrayToObject(o, "layer") : NULL;
    return layer && add_fields(own, "model.", common, heard->one_plus_weight) && add_fields(own, "", head, false) &&
           add_fields(own, "model.", a->globals, heard->one_plus_weight) &&
           add_fields(layer, "", a->fields, heard->one_plus_weight);
}

gm_status gm_architectures(char **json) {
    cJSON *all = cJSON_CreateArray();
    gm_status status = all ? GM_OK : GM_ENOMEM;
    *json = NULL;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures && status == GM_OK; i++) {
        config_listener heard;
        status = config_listen(architectures[i], &heard);
        if (status == GM_OK && !add_architecture(all, architectures[i], &heard))
            status = GM_ENOMEM;
        memory_free(heard.values);
    }
    char *text = status == GM_OK ? cJSON_PrintUnformatted(all) : NULL;
    *json = text ? memory_copy_text(text, strlen(text)) : NULL;
    cJSON_free(text);
    cJSON_Delete(all);
    return *json ? GM_OK : gm_fail(GM_ENOMEM, "architectures: out of memory");
}
