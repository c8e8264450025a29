/* normalize.c - see normalize.h. */
#include "text/normalize.h"

gm_status normalizer_add(normalizer *n, normalize_step step) {
    if (n->n_steps == n->capacity) {
        void *steps = n->steps;
        if (buffer_grow(&steps, n->n_steps, &n->capacity, 1, sizeof(normalize_step)) != GM_OK) {
            memory_free(step.from);
            memory_free(step.to);
            return GM_ENOMEM;
        }
        n->steps = steps;
    }
    n->steps[n->n_steps++] = step;
    return GM_OK;
}

void normalizer_free(normalizer *n) {
    for (size_t i = 0; i < n->n_steps; i++) {
        memory_free(n->steps[i].from);
        memory_free(n->steps[i].to);
    }
    memory_free(n->steps);
    *n = (normalizer){ 0 };
}

void normalize_work_free(normalize_work *work) {
    memory_free(work->buffers[0].data);
    memory_free(work->buffers[1].data);
}

gm_status replace_all(const void *from, size_t from_length, const void *to, size_t to_length,
                      const uint8_t *text, size_t length, byte_buffer *out) {
    const uint8_t *at = text, *end = text + length;
    while (at < end) {
        const uint8_t *found = memmem(at, (size_t)(end - at), from, from_length);
        if (found == NULL)
            break;
        GM_TRY(bytes_append(out, at, (size_t)(found - at)));
        GM_TRY(bytes_append(out, to, to_length));
        at = found + from_length;
    }
    return bytes_append(out, at, (size_t)(end - at));
}

gm_status normalize(const normalizer *n, normalize_work *work, const uint8_t *text, size_t length,
                    const uint8_t **out, size_t *out_length) {
    int next = 0;
    for (size_t i = 0; i < n->n_steps; i++) {
        const normalize_step *step = &n->steps[i];
        byte_buffer *buffer = &work->buffers[next];
        buffer->size = 0;
        switch (step->kind) {
        case NORMALIZE_NFC:
            if (unicode_is_nfc(text, length))
                continue;
            GM_TRY(unicode_nfc(text, length, buffer));
            break;
        case NORMALIZE_PREPEND:
            if (length == 0)
                continue;
            GM_TRY(bytes_append(buffer, step->to, step->to_length));
            GM_TRY(bytes_append(buffer, text, length));
            break;
        case NORMALIZE_REPLACE:
            if (memmem(text, length, step->from, step->from_length) == NULL)
                continue;
            GM_TRY(replace_all(step->from, step->from_length, step->to, step->to_length, text, length, buffer));
            break;
        }
        text = buffer->data;
        length = buffer->size;
        next = 1 - next;
    }
    *out = text;
    *out_length = length;
    return GM_OK;
}
