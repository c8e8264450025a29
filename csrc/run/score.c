/* score.c - logits, log probabilities and hidden states of given sequences, without sampling: several sequences in one
 * forward pass, in fresh caches.
 *  (1) Roots are computed first, in order. With labels, each root's cache is kept and forked for each label, so that a
 *      root is computed once for all its labels.
 *  (2) Rows are independent: how sequences are cut into passes changes no bit. */
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "run/step.h"

#define SCORE_ROWS 512                  /* rows of one pass */
#define SCORE_FLOATS (INT64_C(1) << 24) /* logits of one pass */

typedef struct {
    int32_t *ids;
    int64_t n;
} sequence;
struct gm_scoring {
    gm_model *model;
    gm_score_kind kind;
    sequence *roots, *labels;
    int64_t n_roots, n_labels;
    gm_cache **caches; /* of the roots */
    gm_cache **forks;  /* of the sequences in a pass over labels */
    gm_array *out;
    double *label_logprobs; /* [roots, labels] */
    int64_t done;           /* rows of out that are filled */
    int64_t item, at;       /* the next row: position `at` of item `item`, a root, or root * label */
    bool at_labels;
    adapter_mix *mix, *mixes[SCORE_ROWS]; /* of all sequences: the same */
    gm_step *step;
    int32_t counts[SCORE_ROWS]; /* the current pass: rows of each sequence, and the item that it is */
    int64_t items[SCORE_ROWS];
    int n_sequences;
    int64_t first_at, next, next_at; /* the position where it begins, the item and position where it ends */
    bool running;
};

static gm_status copy_sequences(const gm_model *m, const char *what, const gm_scored *from, size_t n, sequence *to) {
    for (size_t i = 0; i < n; i++) {
        const int64_t tokens = (int64_t)from[i].n, context = m->config.context;
        if (tokens < 1)
            return gm_fail(GM_EVALUE, "%s %zu has 0 tokens, expected 1 to the context of %lld", what, i,
                           (long long)context);
        if (tokens > context && m->context_policy != GM_CONTEXT_ROTATE)
            return gm_fail_context(tokens, context, "%s %zu has %lld tokens, expected 1 to the context of %lld", what,
                                   i, (long long)tokens, (long long)context);
        if (!(to[i].ids = memory_array(from[i].n, sizeof(int32_t))))
            return error_code();
        to[i].n = (int64_t)from[i].n;
        memcpy(to[i].ids, from[i].ids, from[i].n * sizeof(int32_t));
        for (size_t k = 0; k < from[i].n; k++)
            if (from[i].ids[k] < 0 || from[i].ids[k] >= m->config.vocab)
                return gm_fail(GM_EVALUE, "%s %zu: token id %d is outside the vocabulary of %lld", what, i,
                               from[i].ids[k], (long long)m->config.vocab);
    }
    return GM_OK;
}

static gm_status fill(gm_scoring *s, const gm_score_request *r) {
    gm_model *m = s->model;
    const size_t n_roots = r->n_sequences, n_labels = r->n_labels;
    GM_TRY(adapter_mix_new(m, r->adapters, r->n_adapters, &s->mix));
    for (int i = 0; i < SCORE_ROWS; i++)
        s->mixes[i] = s->mix;
    s->roots = memory_zeroed(n_roots * sizeof *s->roots);
    s->labels = memory_zeroed((n_labels + 1) * sizeof *s->labels);
    s->caches = memory_zeroed(n_roots * sizeof *s->caches);
    s->forks = memory_zeroed(SCORE_ROWS * sizeof *s->forks);
    s->label_logprobs = memory_zeroed((n_roots * n_labels + 1) * sizeof *s->label_logprobs);
    if (!s->roots || !s->labels || !s->caches || !s->forks || !s->label_logprobs)
        return GM_ENOMEM;
    s->n_roots = (int64_t)n_roots;
    s->n_labels = (int64_t)n_labels;
    GM_TRY(copy_sequences(m, "sequence", r->sequences, n_roots, s->roots));
    GM_TRY(copy_sequences(m, "label", r->labels, n_labels, s->labels));
    int64_t rows = s->kind == GM_SCORE_LAST ? s->n_roots : 0, longest = 0;
    for (int64_t i = 0; i < s->n_labels; i++)
        longest = s->labels[i].n > longest ? s->labels[i].n : longest;
    for (int64_t i = 0; i < s->n_roots; i++) {
        rows += s->kind == GM_SCORE_LAST ? 0 : s->roots[i].n;
        if (longest && s->roots[i].n + longest - 1 > m->config.context && m->context_policy != GM_CONTEXT_ROTATE)
            return gm_fail_context(
                s->roots[i].n + longest - 1, m->config.context,
                "sequence %lld has %lld tokens and leaves too few positions for a label of %lld in the "
                "context of %lld",
                (long long)i, (long long)s->roots[i].n, (long long)longest, (long long)m->config.context);
        GM_TRY(cache_new(&m->layout, &s->caches[i]));
    }
    int64_t width = s->kind == GM_SCORE_HIDDEN ? m->config.hidden : m->config.vocab;
    s->out = array_new(NULL, GM_FLOAT32, 2, (int64_t[]){rows, s->kind == GM_SCORE_LOGPROBS ? 1 : width});
    return s->out ? GM_OK : error_code();
}

gm_status gm_score_begin(gm_model *m, const gm_score_request *r, gm_scoring **out) {
    *out = NULL;
    if (r->n_sequences < 1 || r->n_sequences > GM_MAX_BATCH)
        return gm_fail(GM_EVALUE, "score: got %zu sequences, expected 1 to %d", r->n_sequences, GM_MAX_BATCH);
    if (r->n_labels && (r->kind != GM_SCORE_LAST || r->n_labels > 65536))
        return gm_fail(GM_EVALUE, "score: got %zu labels, expected at most 65536, and only with the last logits",
                       r->n_labels);
    gm_scoring *s = memory_zeroed(sizeof *s);
    if (!s)
        return GM_ENOMEM;
    s->model = gm_model_retain(m);
    s->kind = r->kind;
    gm_status status = fill(s, r);
    if (status != GM_OK) {
        gm_score_free(s);
        return status;
    }
    *out = s;
    return GM_OK;
}

/* ---- passes ---- */

static int64_t n_items(const gm_scoring *s) { return s->at_labels ? s->n_roots * s->n_labels : s->n_roots; }
static const sequence *item(const gm_scoring *s, int64_t i) {
    return s->at_labels ? &s->labels[i % s->n_labels] : &s->roots[i];
}
/* A label's last token needs no row: no token follows it. */
static int64_t item_rows(const gm_scoring *s, int64_t i) { return item(s, i)->n - s->at_labels; }

static step_output wanted(const gm_scoring *s) {
    return s->kind == GM_SCORE_HIDDEN ? STEP_HIDDEN : s->kind == GM_SCORE_LAST && !s->at_labels ? STEP_LAST : STEP_ALL;
}

static void drop_forks(gm_scoring *s, int from) {
    for (int i = from; i < SCORE_ROWS; i++) {
        cache_free(s->forks[i]);
        s->forks[i] = NULL;
    }
}

/* Begins the next pass; GM_END when there are no rows left. A label is never cut. */
static gm_status next_pass(gm_scoring *s) {
    const step_output want = wanted(s);
    int64_t most = want == STEP_HIDDEN ? SCORE_ROWS : SCORE_FLOATS / s->model->config.vocab;
    int64_t rows = 0, i = s->item, at = s->at;
    most = most < 1 ? 1 : most > SCORE_ROWS ? SCORE_ROWS : most;
    int64_t most_rows = want == STEP_LAST ? SCORE_ROWS : most, most_sequences = want == STEP_LAST ? most : SCORE_ROWS;
    s->n_sequences = 0;
    s->first_at = at;
    while (i < n_items(s) && rows < most_rows && s->n_sequences < most_sequences) {
        int64_t left = item_rows(s, i) - at, free = most_rows - rows, take = left < free ? left : free;
        if (left == 0) {
            i++;
            continue;
        }
        if (s->at_labels && take < left && s->n_sequences > 0)
            break;
        if (s->at_labels)
            take = left < SCORE_ROWS ? left : SCORE_ROWS;
        s->items[s->n_sequences] = i;
        s->counts[s->n_sequences++] = (int32_t)take;
        rows += take;
        at += take;
        if (at == item_rows(s, i)) {
            i++;
            at = 0;
        }
    }
    s->next = i;
    s->next_at = at;
    if (s->n_sequences == 0)
        return GM_END;
    step_free(s->step);
    s->step = NULL;
    const step_request request = {s->counts, s->mixes, s->n_sequences, want, NULL, true};
    GM_TRY(step_new(s->model, &request, &s->step));
    drop_forks(s, s->at_labels && s->first_at ? 1 : 0);
    for (int p = 0; p < s->n_sequences; p++) {
        int64_t from = p == 0 ? s->first_at : 0, k = s->items[p];
        gm_cache *cache = s->at_labels ? s->forks[p] : s->caches[k];
        int64_t before = s->at_labels ? s->roots[k / s->n_labels].n : 0;
        if (!cache) {
            GM_TRY(cache_fork(s->caches[k / s->n_labels], &s->forks[p]));
            cache = s->forks[p];
        }
        GM_TRY(step_fill(s->step, p, cache, item(s, k)->ids + from, before + from, true));
    }
    return GM_OK;
}

/* Stores the results of the pass. */
static void take(gm_scoring *s) {
    const float *rows = step_logits(s->step);
    const int64_t width = s->kind == GM_SCORE_HIDDEN ? s->model->config.hidden : s->model->config.vocab;
    for (int p = 0, row = 0; p < s->n_sequences; row += wanted(s) == STEP_LAST ? 1 : s->counts[p], p++) {
        int64_t from = p == 0 ? s->first_at : 0, k = s->items[p], n = s->counts[p];
        const sequence *q = item(s, k);
        bool ends = from + n == item_rows(s, k);
        if (s->at_labels || s->kind == GM_SCORE_LOGPROBS) {
            float *out = s->at_labels ? NULL : (float *)array_ptr(s->out) + s->done;
            if (out && from == 0)
                out[0] = NAN; /* no token precedes the first one */
            for (int64_t r = 0; r < n && from + r + 1 < q->n; r++) {
                float logprob = rows[(row + r) * width + q->ids[from + r + 1]] - step_best(s->step, row + r).logsumexp;
                if (out)
                    out[r + 1] = logprob;
                else
                    s->label_logprobs[k] += (double)logprob;
            }
            s->done += s->at_labels ? 0 : n;
        } else if (s->kind != GM_SCORE_LAST) {
            memcpy((float *)array_ptr(s->out) + s->done * width, rows + row * width,
                   (size_t)(n * width) * sizeof *rows);
            s->done += n;
        } else if (ends) {
            memcpy((float *)array_ptr(s->out) + k * width, rows + row * width, (size_t)width * sizeof *rows);
            for (int64_t i = 0; i < s->n_labels; i++)
                s->label_logprobs[k * s->n_labels + i] = (double)(rows[row * width + s->labels[i].ids[0]] -
                                                                  step_best(s->step, row).logsumexp);
        }
        if (ends && !s->at_labels && !s->n_labels) { /* nothing continues it */
            cache_free(s->caches[k]);
            s->caches[k] = NULL;
        }
    }
}

gm_status gm_score_step(gm_scoring *s, int slice_ms) {
    for (;;) {
        gm_status status = s->running ? GM_OK : next_pass(s);
        if (status == GM_END) {
            if (s->at_labels || !s->n_labels)
                return GM_OK;
            s->at_labels = true;
            s->item = s->at = 0;
            continue;
        }
        if (status != GM_OK)
            return status;
        s->running = true;
        status = step_run(s->step, slice_ms);
        if (status == GM_AGAIN)
            return status;
        s->running = false;
        if (status != GM_OK)
            return status;
        take(s);
        s->item = s->next;
        s->at = s->next_at;
    }
}

const float *gm_score_data(const gm_scoring *s) { return array_ptr(s->out); }
const double *gm_score_labels(const gm_scoring *s) { return s->label_logprobs; }

void gm_score_free(gm_scoring *s) {
    if (!s)
        return;
    step_free(s->step);
    for (int64_t i = 0; i < s->n_roots; i++) {
        memory_free(s->roots[i].ids);
        cache_free(s->caches[i]);
    }
    for (int64_t i = 0; i < s->n_labels; i++)
        memory_free(s->labels[i].ids);
    if (s->forks)
        drop_forks(s, 0);
    memory_free(s->roots);
    memory_free(s->labels);
    memory_free(s->caches);
    memory_free(s->forks);
    memory_free(s->label_logprobs);
    gm_release(s->out);
    adapter_mix_release(s->mix);
    gm_model_release(s->model);
    memory_free(s);
}
