/* decoder.c - the one decode loop: streams of one model, one forward pass after another.
 *  (1) A pass takes one row of each member that decodes and, up to PASS_ROWS, chunks of the other members' prompts, in
 *      the order in which they joined. A row's values depend on its own sequence alone (kernels), so a member's tokens
 *      have the same bits whatever else is decoded.
 *  (2) The next pass begins when no member has unread logits: they live in the step until then.
 *  (3) A pass that does not finish is rolled back for every member with rows in it; they request those rows again.
 *  (4) A member with taps has passes of its own, in turn with those that the others share.
 *  (5) Steps of one row per member are cached by the number of members, so that a plan is recorded once for each. */
#include "run/decoder.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "models/traffic.h"
#include "run/profile.h"

#define KEPT_STEPS 4
#define POLL_MS 20 /* how often a pass is interrupted to check for cancelled and timed-out members */
#define LOGITS_FLOATS (INT64_C(1) << 24) /* of one pass with prompts; a decoding pass has as many as it needs */

struct gm_decoder {
    gm_model *model;
    gm_stream **members, **in_pass; /* in_pass: those with rows in the current pass, in the order of its rows */
    int32_t *row_counts;            /* rows of each of these */
    int n, n_in_pass;
    size_t capacity; /* of these four, which grow alike */
    bool running;
    int64_t started;       /* when the pass began */
    gm_profile *profile;   /* the caller's, or NULL */
    bool profiled;         /* a member of the current pass has a profile */
    gm_phase_profile pass; /* the current pass; its traffic of weights is kept from pass to pass, for: */
    int64_t weights_rows;
    bool weights_logits;
    gm_step *step;             /* of the current pass, or of the last one */
    gm_step *kept[KEPT_STEPS]; /* one row per member; most recently used first */
    int kept_rows[KEPT_STEPS];
    gm_step *prefill;            /* the last step with more rows than members, until decoding begins, */
    int32_t *prefill_row_counts; /* ... and what it was made for */
    int n_prefill_sequences;
    step_output prefill_output;
    int turn; /* index of the next member that may have a pass of its own */
};

gm_status gm_decoder_new(gm_model *m, gm_decoder **out) {
    *out = memory_zeroed(sizeof **out);
    if (!*out)
        return GM_ENOMEM;
    (*out)->model = gm_model_retain(m);
    return GM_OK;
}

/* Rolls back what the current pass did. */
static void abort_pass(gm_decoder *d) {
    if (!d->running)
        return;
    step_abandon(d->step);
    for (int i = 0; i < d->n_in_pass; i++)
        stream_rollback(d->in_pass[i]);
    d->running = false;
}

void gm_decoder_pause(gm_decoder *d) { abort_pass(d); }
void gm_decoder_set_profile(gm_decoder *d, gm_profile *profile) { d->profile = profile; }

void gm_decoder_free(gm_decoder *d) {
    if (!d)
        return;
    abort_pass(d);
    for (int i = 0; i < d->n; i++)
        d->members[i]->decoder = NULL;
    for (int i = 0; i < KEPT_STEPS; i++)
        step_free(d->kept[i]);
    step_free(d->prefill);
    memory_free(d->members);
    memory_free(d->in_pass);
    memory_free(d->row_counts);
    memory_free(d->prefill_row_counts);
    gm_model_release(d->model);
    memory_free(d);
}

/* Capacity for one member more. */
static gm_status reserve_member(gm_decoder *d) {
    const size_t n = (size_t)d->n;
    size_t members = d->capacity, in_pass = members, row_counts = members;
    GM_TRY(grow_array(&d->members, n, &members, 1, sizeof *d->members));
    GM_TRY(grow_array(&d->in_pass, n, &in_pass, 1, sizeof *d->in_pass));
    GM_TRY(grow_array(&d->row_counts, n, &row_counts, 1, sizeof *d->row_counts));
    return grow_array(&d->prefill_row_counts, n, &d->capacity, 1, sizeof *d->prefill_row_counts);
}

gm_status gm_decoder_add(gm_decoder *d, gm_stream *st) {
    if (st->decoder)
        return gm_fail(GM_ESTATE, "decoder: the stream is already a member of a decoder");
    if (st->session->model != d->model)
        return gm_fail(GM_EVALUE, "decoder: the stream belongs to another model than the decoder");
    if (d->n == GM_MAX_BATCH)
        return gm_fail(GM_EVALUE, "decoder: batch is full (%d streams)", GM_MAX_BATCH);
    GM_TRY(reserve_member(d));
    d->members[d->n++] = st;
    st->decoder = d;
    return GM_OK;
}

/* Its memory is large, and the next step reuses it. */
static void drop_prefill_step(gm_decoder *d) {
    if (d->step == d->prefill)
        d->step = NULL;
    step_free(d->prefill);
    d->prefill = NULL;
}

static void drop_member(gm_decoder *d, int i) {
    d->members[i]->decoder = NULL;
    memmove(d->members + i, d->members + i + 1, (size_t)(--d->n - i) * sizeof *d->members);
    if (d->n == 0)
        drop_prefill_step(d);
}

void decoder_remove(gm_decoder *d, gm_stream *st) {
    for (int i = 0; d->running && i < d->n_in_pass; i++)
        if (d->in_pass[i] == st)
            abort_pass(d);
    for (int i = 0; i < d->n; i++)
        if (d->members[i] == st) {
            drop_member(d, i);
            return;
        }
}

/* ---- passes ---- */

static bool choose_tapped(gm_decoder *d, int64_t *rows, bool *logits) {
    while (d->turn < d->n) {
        gm_stream *st = d->members[d->turn++];
        int64_t asked = st->taps ? stream_pending_rows(st) : 0;
        if (asked == 0)
            continue;
        *rows = asked < PASS_ROWS ? asked : PASS_ROWS;
        *logits = *rows == asked;
        d->in_pass[0] = st;
        d->row_counts[0] = (int32_t)*rows;
        d->n_in_pass = 1;
        return true;
    }
    d->turn = 0;
    return false;
}

/* Chooses the members of the next pass and their rows; GM_END when no member has rows. */
static gm_status choose(gm_decoder *d, int64_t *rows, bool *logits) {
    if (choose_tapped(d, rows, logits))
        return GM_OK;
    int64_t most = LOGITS_FLOATS / d->model->config.vocab;
    *rows = d->n_in_pass = 0;
    *logits = false;
    for (int prompts = 0; prompts < 2; prompts++)
        for (int i = 0; i < d->n; i++) {
            int64_t asked = stream_pending_rows(d->members[i]);
            if (asked == 0 || (asked > 1) != prompts || d->members[i]->taps)
                continue;
            int64_t free = prompts ? PASS_ROWS - *rows : 1, count = asked < free ? asked : free;
            if (count <= 0 || (prompts && d->n_in_pass > 0 && d->n_in_pass >= most))
                break;
            d->in_pass[d->n_in_pass] = d->members[i];
            d->row_counts[d->n_in_pass++] = (int32_t)count;
            *rows += count;
            *logits |= count == asked;
        }
    return d->n_in_pass || choose_tapped(d, rows, logits) ? GM_OK : GM_END;
}

static gm_status decode_step(gm_decoder *d) {
    int n = d->n_in_pass, at = 0;
    drop_prefill_step(d);
    while (at < KEPT_STEPS - 1 && d->kept[at] && d->kept_rows[at] != n)
        at++;
    gm_step *step = d->kept[at];
    if (step && d->kept_rows[at] != n) {
        step_free(step);
        step = d->kept[at] = NULL;
    }
    if (!step)
        GM_TRY(step_new(d->model, d->row_counts, n, STEP_LAST, &step));
    memmove(d->kept + 1, d->kept, (size_t)at * sizeof *d->kept);
    memmove(d->kept_rows + 1, d->kept_rows, (size_t)at * sizeof *d->kept_rows);
    d->kept[0] = d->step = step;
    d->kept_rows[0] = n;
    return GM_OK;
}

static gm_status prefill_step(gm_decoder *d, step_output output) {
    size_t bytes = (size_t)d->n_in_pass * sizeof *d->row_counts;
    bool same = d->prefill && d->n_prefill_sequences == d->n_in_pass && d->prefill_output == output &&
                memcmp(d->prefill_row_counts, d->row_counts, bytes) == 0;
    if (!same) {
        drop_prefill_step(d);
        GM_TRY(step_new(d->model, d->row_counts, d->n_in_pass, output, &d->prefill));
        memcpy(d->prefill_row_counts, d->row_counts, bytes);
        d->n_prefill_sequences = d->n_in_pass;
        d->prefill_output = output;
    }
    d->step = d->prefill;
    return GM_OK;
}

static gm_status tapped_step(gm_decoder *d) {
    gm_stream *st = d->in_pass[0];
    if (st->own && st->own_rows != d->row_counts[0]) {
        step_free(st->own);
        st->own = NULL;
    }
    if (!st->own)
        GM_TRY(step_new_tapped(d->model, d->row_counts, 1, STEP_LAST, st->taps, &st->own));
    st->own_rows = d->row_counts[0];
    d->step = st->own;
    return GM_OK;
}

/* Called once the rows are chosen. */
static void begin_profile(gm_decoder *d) {
    d->profiled = false;
    for (int i = 0; i < d->n_in_pass; i++)
        d->profiled |= d->in_pass[i]->profile != NULL;
    if (d->profiled)
        memset(&d->pass, 0, offsetof(gm_phase_profile, weights));
}

static void count_weights(gm_decoder *d, int64_t rows, bool logits) {
    if (d->weights_rows == rows && d->weights_logits == logits)
        return;
    memset(d->pass.weights, 0, sizeof d->pass - offsetof(gm_phase_profile, weights));
    traffic_of_pass(d->model, rows, logits, &d->pass);
    d->weights_rows = rows;
    d->weights_logits = logits;
}

static void end_profile(gm_decoder *d) {
    int64_t rows = 0, with_logits = 0;
    bool decodes = true;
    for (int i = 0; i < d->n_in_pass; i++) {
        rows += d->row_counts[i];
        with_logits += stream_pending_rows(d->in_pass[i]) == d->row_counts[i];
        decodes &= d->in_pass[i]->decodes;
    }
    d->pass.pass_ns = clock_ns() - d->started;
    count_weights(d, rows, with_logits > 0);
    if (d->profile)
        profile_add_pass(decodes ? &d->profile->decode : &d->profile->prefill, &d->pass, rows);
}

/* On failure *failed is the member that is blamed for it. */
static gm_status begin_pass(gm_decoder *d, gm_stream **failed) {
    int64_t rows;
    bool logits;
    gm_status status = choose(d, &rows, &logits);
    if (status != GM_OK)
        return status;
    d->started = clock_ns();
    begin_profile(d);
    *failed = d->in_pass[d->n_in_pass - 1];
    GM_TRY(d->in_pass[0]->taps              ? tapped_step(d)
           : rows == d->n_in_pass && logits ? decode_step(d)
                                            : prefill_step(d, logits ? STEP_LAST : STEP_NONE));
    for (int i = 0; i < d->n_in_pass; i++) {
        const int32_t *tokens;
        int64_t position;
        status = stream_prepare(d->in_pass[i], d->row_counts[i], &tokens, &position);
        if (status == GM_OK)
            status = step_fill(d->step, i, d->in_pass[i]->session->cache, tokens, position);
        if (status != GM_OK) {
            *failed = d->in_pass[i];
            for (; i >= 0; i--)
                stream_rollback(d->in_pass[i]);
            return status;
        }
    }
    step_profile(d->step, d->profiled ? &d->pass : NULL);
    d->pass.setup_ns = d->profiled ? clock_ns() - d->started : 0;
    d->running = true;
    return GM_OK;
}

static void discard_step(gm_decoder *d) {
    if (d->step == d->in_pass[0]->own)
        d->in_pass[0]->own = NULL;
    if (d->step == d->prefill)
        d->prefill = NULL;
    for (int i = 0; i < KEPT_STEPS; i++)
        if (d->kept[i] == d->step) {
            memmove(d->kept + i, d->kept + i + 1, (size_t)(KEPT_STEPS - 1 - i) * sizeof *d->kept);
            memmove(d->kept_rows + i, d->kept_rows + i + 1, (size_t)(KEPT_STEPS - 1 - i) * sizeof *d->kept_rows);
            d->kept[KEPT_STEPS - 1] = NULL;
            break;
        }
    step_free(d->step);
    d->step = NULL;
}

/* Whether to abandon the pass because of members that are over: no other member needs it, or it may take seconds. */
static bool should_abandon_pass(const gm_decoder *d) {
    int over = 0;
    int64_t rows = 0;
    for (int i = 0; i < d->n_in_pass; i++) {
        over += stream_is_over(d->in_pass[i]);
        rows += d->row_counts[i];
    }
    return over == d->n_in_pass || (over > 0 && rows > d->n_in_pass);
}

/* GM_OK when the pass is done or was abandoned, GM_AGAIN at the deadline (0: none). */
static gm_status run_pass(gm_decoder *d, int64_t deadline) {
    for (;;) {
        gm_status status = step_run(d->step, POLL_MS);
        if (status == GM_AGAIN) {
            if (should_abandon_pass(d)) {
                abort_pass(d);
                return GM_OK;
            }
            if (deadline && clock_ns() >= deadline)
                return GM_AGAIN;
            continue;
        }
        if (status != GM_OK) {
            abort_pass(d);
            discard_step(d);
            return status;
        }
        d->running = false;
        double seconds = (double)(clock_ns() - d->started - step_packing_ns(d->step)) * 1e-9;
        if (d->profiled)
            end_profile(d);
        for (int i = 0; i < d->n_in_pass; i++)
            stream_commit(d->in_pass[i], d->row_counts[i], seconds, &d->pass, d->step, i);
        return GM_OK;
    }
}

/* ---- events ---- */

/* The event of the first member that has one; GM_END when none has. */
static gm_status next_event(gm_decoder *d, gm_stream **which, gm_token *token) {
    for (int i = 0; i < d->n; i++) {
        gm_stream *st = d->members[i];
        if (st->state == STREAM_DONE) { /* ended in gm_stream_sample */
            drop_member(d, i--);
            continue;
        }
        if (st->state == STREAM_WAITING)
            return gm_fail(GM_ESTATE, "stream: gm_stream_sample must answer its logits first");
        if (st->state == STREAM_ROWS && !stream_is_over(st))
            continue;
        gm_status status = stream_event(st, token);
        if (status == GM_AGAIN)
            continue;
        *which = st;
        if (status != GM_OK && status != GM_LOGITS)
            st->state = STREAM_DONE;
        if (st->state == STREAM_DONE)
            drop_member(d, i);
        return status;
    }
    return GM_END;
}

gm_status gm_decoder_next(gm_decoder *d, int slice_ms, gm_stream **which, gm_token *token) {
    int64_t deadline = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    *which = NULL;
    for (;;) {
        gm_status status = d->running ? GM_END : next_event(d, which, token);
        if (status != GM_END)
            return status;
        gm_stream *failed = d->running ? d->in_pass[d->n_in_pass - 1] : NULL;
        status = d->running ? GM_OK : begin_pass(d, &failed);
        if (status == GM_OK)
            status = run_pass(d, deadline);
        if (status == GM_AGAIN || status == GM_END)
            return status;
        if (status != GM_OK) {
            failed->state = STREAM_DONE;
            decoder_remove(d, failed);
            *which = failed;
            return status;
        }
    }
}
