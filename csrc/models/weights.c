/* weights.c - a model's weights by name, as float32: what the kernels multiply by, open to be looked at. */
#include <stdio.h>
#include <string.h>
#include "models/model.h"
#include "ops/ops.h"

/* Walks the weights in order: number i, its name, and the array (NULL: a bias that the model does not have). */
static gm_array *weight_at(const gm_model *m, int64_t i, char name[160]) {
    if (i == 0) {
        snprintf(name, 160, "model.embed_tokens.weight");
        return m->embedding.weight;
    }
    int64_t n_fields = 0, at = i - 1;
    while (m->arch->fields[n_fields].name)
        n_fields++;
    int64_t layer = at / (2 * n_fields), slot = at % (2 * n_fields);
    if (layer < m->config.n_layers) {
        const gm_weight_field *f = &m->arch->fields[slot / 2];
        char *where = m->layers + (size_t)layer * m->arch->layer_size + f->offset;
        bool bias = slot % 2;
        snprintf(name, 160, "model.layers.%lld.%s.%s", (long long)layer, f->name, bias ? "bias" : "weight");
        if (f->kind == FIELD_NORM)
            return bias ? NULL : *(gm_array **)(void *)where;
        const gm_linear *l = (const gm_linear *)(const void *)where;
        return bias ? l->bias : l->weight;
    }
    at -= m->config.n_layers * 2 * n_fields;
    snprintf(name, 160, "%s", at == 0 ? "model.norm.weight" : at == 1 ? "lm_head.weight" : "");
    return at == 0 ? m->norm : at == 1 && !m->config.tied ? m->head.weight : NULL;
}

gm_status gm_model_weight_name(gm_model *m, int64_t i, const char **name) {
    static _Thread_local char text[160];
    int64_t seen = 0;
    for (int64_t at = 0;; at++) {
        const gm_array *w = weight_at(m, at, text);
        if (!text[0])
            return GM_END;
        if (w && seen++ == i) {
            *name = text;
            return GM_OK;
        }
    }
}

gm_array *gm_model_weight(gm_scope *s, gm_model *m, const char *name) {
    char text[160];
    for (int64_t i = 0;; i++) {
        gm_array *w = weight_at(m, i, text);
        if (!text[0])
            return gm_fail(GM_EINDEX, "the model has no weight named %s", name), NULL;
        if (!w || strcmp(text, name) != 0)
            continue;
        if (w->dtype != GM_PACKED)
            return array_own(s, gm_retain(w));
        return gm_packed_embedding(s, w, gm_arange(s, 0, (double)w->shape[0], 1, GM_INT32), 1);
    }
}
