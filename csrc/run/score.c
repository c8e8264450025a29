/* score.c - logits of every position of given sequences, several sequences through one forward pass. */
#include <string.h>
#include "base/memory.h"
#include "run/step.h"

#define SCORE_ROWS 512               /* rows of one pass */

struct gm_scoring {
    gm_model *model;
    int32_t **ids;
    int64_t *counts, n, sequence, at;    /* the next row: position `at` of `sequence` */
    gm_cache **caches;
    gm_array *out;
    int64_t done;                    /* rows of out that are filled */
    gm_step *step;
    int32_t step_rows;
    int64_t next_sequence, next_at;  /* where the pass under way ends */
};

gm_status gm_logits_begin(gm_model *m, const int32_t *const *ids, const size_t *counts, size_t n, gm_scoring **out) {
    *out = NULL;
    if (n < 1 || n > GM_MAX_BATCH)
        return gm_fail(GM_EVALUE, "logits: %zu sequences, expected 1 to %d", n, GM_MAX_BATCH);
    gm_scoring *s = memory_zeroed(sizeof *s);
    int64_t shape[2] = {0, m->config.vocab};
    gm_status status = s ? GM_OK : GM_ENOMEM;
    if (!s)
        return status;
    s->model = gm_model_retain(m);
    s->ids = memory_zeroed(n * sizeof *s->ids);
    s->counts = memory_zeroed(n * sizeof *s->counts);
    s->caches = memory_zeroed(n * sizeof *s->caches);
    if (!s->ids || !s->counts || !s->caches)
        status = GM_ENOMEM;
    for (size_t i = 0; i < n && status == GM_OK; i++) {
        int64_t count = (int64_t)counts[i];
        if (count < 1 || (count > m->config.context && m->context_policy != GM_CONTEXT_ROTATE))
            status = gm_fail(GM_EVALUE, "logits: sequence %zu has %lld tokens, expected 1 to the context of %lld", i,
                             (long long)count, (long long)m->config.context);
        else if (!(s->ids[i] = memory_array(counts[i], sizeof(int32_t))))
            status = GM_ENOMEM;
        else {
            memcpy(s->ids[i], ids[i], counts[i] * sizeof(int32_t));
            s->counts[i] = count;
            shape[0] += count;
            s->n = (int64_t)i + 1;
            status = cache_new(&m->layout, &s->caches[i]);
        }
    }
    if (status == GM_OK && !(s->out = array_new(NULL, GM_FLOAT32, 2, shape)))
        status = error_code();
    if (status != GM_OK) {
        s->n = (int64_t)n;
        gm_logits_free(s);
        return status;
    }
    *out = s;
    return GM_OK;
}

/* The next SCORE_ROWS rows, however many sequences they are parts of. */
static gm_status next_pass(gm_scoring *s) {
    int32_t spans[SCORE_ROWS];
    int64_t sequence = s->sequence, at = s->at;
    int32_t rows = 0, n_parts = 0;
    while (sequence < s->n && rows < SCORE_ROWS) {
        int64_t left = s->counts[sequence] - at;
        int32_t take = left < SCORE_ROWS - rows ? (int32_t)left : SCORE_ROWS - rows;
        spans[n_parts++] = take;
        rows += take;
        at += take;
        if (at == s->counts[sequence]) {
            sequence++;
            at = 0;
        }
    }
    step_free(s->step);
    s->step = NULL;
    GM_TRY(step_new(s->model, spans, n_parts, STEP_ALL, &s->step));
    for (int32_t i = 0; i < n_parts; i++) {
        int64_t from = i == 0 ? s->at : 0;
        GM_TRY(step_fill(s->step, i, s->caches[s->sequence + i], s->ids[s->sequence + i] + from, from));
    }
    s->step_rows = rows;
    s->next_sequence = sequence;
    s->next_at = at;
    return GM_OK;
}

gm_status gm_logits_step(gm_scoring *s, int slice_ms) {
    while (s->sequence < s->n) {
        if (!s->step_rows)
            GM_TRY(next_pass(s));
        gm_status status = step_run(s->step, slice_ms);
        if (status != GM_OK && status != GM_AGAIN)
            s->step_rows = 0;        /* the step is of no more use */
        if (status != GM_OK)
            return status;
        int64_t vocab = s->model->config.vocab;
        memcpy((float *)array_ptr(s->out) + s->done * vocab, step_logits(s->step),
               (size_t)(s->step_rows * vocab) * sizeof(float));
        s->done += s->step_rows;
        s->step_rows = 0;
        for (; s->sequence < s->next_sequence; s->sequence++) {      /* its cache is of no more use */
            cache_free(s->caches[s->sequence]);
            s->caches[s->sequence] = NULL;
        }
        s->at = s->next_at;
    }
    return GM_OK;
}

const float *gm_logits_data(const gm_scoring *s) { return array_ptr(s->out); }

void gm_logits_free(gm_scoring *s) {
    if (!s)
        return;
    step_free(s->step);
    for (int64_t i = 0; i < s->n; i++) {
        if (s->ids)
            memory_free(s->ids[i]);
        if (s->caches)
            cache_free(s->caches[i]);
    }
    memory_free(s->ids);
    memory_free(s->counts);
    memory_free(s->caches);
    gm_release(s->out);
    gm_model_release(s->model);
    memory_free(s);
}
