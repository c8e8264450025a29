/* exact.c - a loaded model once more, to compute exactly with: nothing that its linear layers read is rounded, and its
 * cache is float32. What a validation compares with; the weights are those of the model. */
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

void model_copy_free(gm_model *copy) {
    gm_model *base = copy->base;
    memory_free(copy->layers);
    memory_free(copy->globals);
    memory_free(copy);
    gm_model_release(base);
}

gm_model *model_copy(gm_model *m) {
    gm_model *copy = memory_array(1, sizeof *copy);
    if (!copy)
        return NULL;
    bool ok = true;
    memcpy(copy, m, sizeof *copy);
    atomic_init(&copy->refs, 1);
    copy->base = gm_model_retain(m);
    copy->layers = copied(m->layers, (size_t)m->config.n_layers * m->arch->layer_size, &ok);
    copy->globals = copied(m->globals, m->arch->globals_size, &ok);
    if (ok)
        return copy;
    model_copy_free(copy);
    return NULL;
}

void *model_copy_member(gm_model *copy, const void *member) {
    const gm_model *m = copy;
    const char *at = member;
    while (m->base)
        m = m->base;
    const size_t layers = (size_t)m->config.n_layers * m->arch->layer_size;
    if (at >= m->layers && at < m->layers + layers)
        return copy->layers + (at - m->layers);
    if (m->globals && at >= m->globals && at < m->globals + m->arch->globals_size)
        return copy->globals + (at - m->globals);
    return (char *)copy + (at - (const char *)m);
}

void model_use_float32(gm_model *copy) {
    copy->int8 = copy->bf16 = copy->rounds = false;
    use_float32(&copy->embedding);
    use_float32(&copy->head);
    for (field_cursor at = {0}; fields_next(copy, &at);)
        if (at.field->kind == FIELD_LINEAR || at.field->kind == FIELD_EXPERTS)
            use_float32(at.where);
}

void model_use_rounded(gm_model *copy) {
    model_use_float32(copy);
    for (field_cursor at = {0}; fields_next(copy, &at);)
        if (at.field->kind == FIELD_LINEAR)
            ((gm_linear *)at.where)->rounded = true;
}

void model_exact_free(gm_model *exact) {
    memory_free((void *)(uintptr_t)exact->layout.slots);
    model_copy_free(exact);
}

gm_model *model_exact(gm_model *m) {
    gm_model *exact = model_copy(m);
    if (!exact)
        return NULL;
    exact->layout.slots = NULL;
    if (model_lay_out(exact, GM_FLOAT32) != GM_OK) {
        model_exact_free(exact);
        return NULL;
    }
    model_use_float32(exact);
    return exact;
}
