/* exact.c - a loaded model once more, to compute exactly with: nothing that its linear layers read is rounded, and its cache
 * is float32. What a validation compares with; the weights are those of the model. */
#include <string.h>
#include "base/memory.h"
#include "models/load.h"

static void use_float32(gm_linear *l) { l->int8 = l->bf16 = false; }

/* A copy of `size` bytes; NULL stays NULL, and *ok tells when there was no memory. */
static char *copied(const char *from, size_t size, bool *ok) {
    char *to = from ? memory_array(size, 1) : NULL;
    if (to)
        memcpy(to, from, size);
    *ok &= !from || to;
    return to;
}

void model_exact_free(gm_model *exact) {
    gm_model *base = exact->base;
    memory_free(exact->layers);
    memory_free(exact->globals);
    memory_free((void *)(uintptr_t)exact->layout.slots);
    memory_free(exact);
    gm_model_release(base);
}

gm_model *model_exact(gm_model *m) {
    gm_model *exact = memory_array(1, sizeof *exact);
    if (!exact)
        return NULL;
    bool ok = true;
    memcpy(exact, m, sizeof *exact);
    atomic_init(&exact->refs, 1);
    exact->base = gm_model_retain(m);
    exact->layers = copied(m->layers, (size_t)m->config.n_layers * m->arch->layer_size, &ok);
    exact->globals = copied(m->globals, m->arch->globals_size, &ok);
    exact->layout.slots = NULL;
    if (!ok || model_lay_out(exact, GM_FLOAT32) != GM_OK) {
        model_exact_free(exact);
        return NULL;
    }
    exact->int8 = exact->bf16 = false;
    use_float32(&exact->embedding);
    use_float32(&exact->head);
    for (field_cursor at = {0}; fields_next(exact, &at);)
        if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS)
            use_float32(at.where);
    return exact;
}
