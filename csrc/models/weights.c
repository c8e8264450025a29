/* weights.c - a model's weights by name, as float32: what the kernels multiply by, open to be looked at. */
#include <string.h>
#include "base/memory.h"
#include "core/device.h"
#include "core/graph.h"
#include "models/head_order.h"
#include "ops/ops.h"

gm_status gm_model_weight_name(gm_model *m, int64_t i, const char **name) {
    if (i < 0 || i >= m->n_weights)
        return GM_END;
    *name = m->weights[i].name;
    return GM_OK;
}

static gm_array *unpacked(gm_scope *s, gm_array *w) {
    return gm_packed_embedding(s, w, gm_arange(s, 0, (double)w->shape[0], 1, GM_INT32), 1);
}

/* A stack of packed matrices, one after another. */
static gm_array *unpacked_stack(gm_scope *s, gm_array *w) {
    int64_t experts = w->shape[0], rows = w->shape[1], k = w->shape[2];
    gm_spec spec = {.dtype = GM_PACKED, .format = w->format, .ndim = 2, .shape = {rows, k}};
    int64_t bytes = array_packed_bytes(w->device, GM_PACKED, w->format, rows, k);
    gm_array **each = memory_array((size_t)experts, sizeof *each), *joined = NULL;
    for (int64_t e = 0; each && e < experts; e++)
        each[e] = unpacked(s, array_data(s, &spec, w->buf, w->offset + e * bytes));
    if (each)
        joined = gm_reshape(s, gm_concatenate(s, each, (int)experts, 0), 3, (int64_t[]){experts, rows, k});
    memory_free(each);
    return joined;
}

static gm_array *values_of(gm_scope *s, const gm_named_weight *w) {
    if (w->array)
        return array_own(s, gm_retain(*w->array));
    return w->linear->weight->ndim == 3 ? unpacked_stack(s, w->linear->weight) : unpacked(s, w->linear->weight);
}

gm_array *gm_model_weight(gm_scope *s, gm_model *m, const char *name) {
    for (int64_t i = 0; i < m->n_weights; i++) {
        if (strcmp(m->weights[i].name, name) != 0)
            continue;
        const gm_named_weight *w = &m->weights[i];
        const int before = device_enter((w->array ? *w->array : w->linear->weight)->device);
        gm_array *found = values_of(s, w);
        for (int axis = 0; axis < 2; axis++)
            found = heads_as_checkpoint(s, m, name, found, axis);
        device_enter(before);
        return found;
    }
    return gm_fail(GM_EINDEX, "the model has no weight named %s", name), NULL;
}
