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
    text_buffer_free(&work->buffers[0]);
    text_buffer_free(&work->buffers[1]);
}

gm_status normalize(const normalizer *n, normalize_work *work, text_view *view) {
    int next = 0;
    for (size_t i = 0; i < n->n_steps; i++) {
        const normalize_step *step = &n->steps[i];
        text_writer w;
        switch (step->kind) {
        case NORMALIZE_NFC:
            if (unicode_is_nfc(view->bytes, view->length))
                continue;
            text_write(&w, view, &work->buffers[next]);
            GM_TRY(unicode_nfc(&w));
            break;
        case NORMALIZE_PREPEND:
            if (view->length == 0)
                continue;
            text_write(&w, view, &work->buffers[next]);
            GM_TRY(text_put(&w, step->to, step->to_length, 0));
            GM_TRY(text_keep(&w, view->length));
            break;
        case NORMALIZE_REPLACE:
            if (memmem(view->bytes, view->length, step->from, step->from_length) == NULL)
                continue;
            text_write(&w, view, &work->buffers[next]);
            GM_TRY(text_replace(&w, step->from, step->from_length, step->to, step->to_length));
            break;
        }
        *view = text_written(&w);
        next = 1 - next;
    }
    return GM_OK;
}
