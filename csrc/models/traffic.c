/* traffic.c - see traffic.h. A pass reads each matrix once, however many rows it has; of the embedding it reads the
 * rows of its tokens, of the experts those that are chosen. */
#include "models/traffic.h"
#include <stdio.h>
#include <string.h>
#include "models/load.h"

/* By what it maps from and to: names differ between families, dimensions do not. */
static gm_work work_of(const gm_weight_field *f) {
    const int dims[2] = {f->rows, f->columns};
    if (f->kind == FIELD_EXPERTS)
        return GM_WORK_EXPERTS;
    if (f->flags & FIELD_EMBEDDING)
        return GM_WORK_EMBEDDING;
    for (int i = 0; i < 2; i++)
        switch (dims[i]) {
        case DIM_QUERIES:
        case DIM_GATED_QUERIES:
        case DIM_KEYS: return GM_WORK_ATTENTION_PROJECTION;
        case DIM_EXPERTS: return GM_WORK_ROUTER;
        case DIM_MLP:
        case DIM_SHARED_MLP: return GM_WORK_MLP;
        case DIM_CHANNELS:
        case DIM_VALUES:
        case DIM_VALUE_HEADS: return GM_WORK_RECURRENT;
        default: break;
        }
    return f->when & HAS_SHARED_EXPERT ? GM_WORK_MLP : GM_WORK_OTHER;
}

void traffic_mark(gm_model *m) {
    for (field_cursor at = {0}; fields_next(m, &at);)
        if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS) {
            const gm_linear *linear = at.where;
            if (linear->weight)
                linear->weight->work = (uint8_t)work_of(at.field);
        }
    m->embedding.weight->work = GM_WORK_EMBEDDING;
    m->head.weight->work = GM_WORK_HEAD; /* the same array where they are tied */
}

void traffic_type(const gm_named_weight *w, char out[24]) {
    const gm_linear *l = w->linear;
    snprintf(out, 24, "%.16s", l ? gm_quants[l->weight->format].name : "F32");
}

static int64_t bytes_of(const gm_array *a) {
    if (!a)
        return 0;
    int64_t matrices = a->dtype == GM_PACKED && a->ndim == 3 ? a->shape[0] : 1;
    return a->dtype == GM_PACKED ? matrices * array_packed_bytes(a->device, GM_PACKED, a->format, a->shape[a->ndim - 2],
                                                                 a->shape[a->ndim - 1])
                                 : a->size * (int64_t)array_item(a);
}

/* The share that is read of what has `all` parts of which at most `most` are chosen. */
static int64_t share(int64_t bytes, int64_t most, int64_t all) {
    return most < all ? (int64_t)((double)bytes / (double)all * (double)most) : bytes;
}

static int64_t bytes_read(const gm_model *m, const gm_named_weight *w, int64_t rows, bool logits) {
    const gm_config *c = &m->config;
    const gm_linear *l = w->linear;
    if (!l)
        return bytes_of(*w->array);
    int64_t bytes = bytes_of(l->weight);
    if (l == &m->head)
        return logits ? bytes : 0;
    if (l == &m->embedding)
        return share(bytes, rows, c->vocab);
    switch (l->weight->work) {
    case GM_WORK_EMBEDDING: return share(bytes, rows, l->weight->shape[0]);
    case GM_WORK_EXPERTS: return share(bytes, rows * c->n_experts_used, c->n_experts);
    default: return bytes;
    }
}

static void add_bytes(gm_phase_profile *pass, const char type[24], gm_work work, int64_t bytes) {
    int at = 0;
    while (at < GM_MAX_WEIGHT_TYPES - 1 && pass->weights[at].type[0] && strcmp(pass->weights[at].type, type) != 0)
        at++;
    if (!pass->weights[at].type[0]) /* the last entry takes what has none of its own */
        memcpy(pass->weights[at].type, type, sizeof pass->weights[at].type);
    pass->weights[at].bytes += bytes;
    pass->work_bytes[work] += bytes;
}

void traffic_of_pass(const gm_model *m, int64_t rows, bool logits, gm_phase_profile *pass) {
    for (int64_t i = 0; i < m->n_weights; i++) {
        const gm_named_weight *w = &m->weights[i];
        const bool embeds = w->linear == &m->embedding;
        char type[24];
        traffic_type(w, type);
        add_bytes(pass, type,
                  embeds      ? GM_WORK_EMBEDDING
                  : w->linear ? (gm_work)w->linear->weight->work
                              : GM_WORK_NORM,
                  bytes_read(m, w, rows, logits));
        if (embeds && m->config.tied && logits)
            add_bytes(pass, type, GM_WORK_HEAD, bytes_of(w->linear->weight));
    }
}
