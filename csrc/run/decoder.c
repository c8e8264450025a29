/* decoder.c - the one decode loop: streams of one model, one forward pass after another.
 *  (1) A pass takes the row of each member that decodes and, while there is room, pieces of the prompts of the others,
 *      first come, first served. A row's values depend on its own sequence alone (kernels), so that a member's tokens
 *      are the same bits whatever else is decoded.
 *  (2) The next pass begins when no member has logits left: they live in the step until then.
 *  (3) A pass that did not end is taken back from every member that had rows in it; they ask again.
 *  (4) A member with taps has passes for itself, in turn with those that the others share.
 *  (5) Steps of one row a member are kept by their number of members, so that a plan is recorded once for each. */
#include "run/decoder.h"
#include <string.h>
#include "base/memory.h"
#include "models/traffic.h"
#include "run/profile.h"

#define KEPT_STEPS 4
#define LOOK_MS 20                   /* how often a pass is interrupted to see who is cancelled or out of time */
#define LOGITS_FLOATS (INT64_C(1) << 24)     /* of one pass with prompts; decoding takes what it needs */

struct gm_decoder {
    gm_model *model;
    gm_stream **members, **parts;    /* parts: those with rows in the pass under way, in the order of its rows */
    int32_t *spans;
    int n, capacity, n_parts;
    bool running;
    int64_t started;                 /* when the pass began */
    gm_profile *profile;             /* the caller's, or NULL */
    bool profiled;                   /* somebody asks what the pass does: */
    gm_phase_profile pass;           /* its weights are kept from pass to pass, and are for: */
    int64_t weights_rows;
    bool weights_logits;
    gm_step *step;                   /* of the last pass, or of the one under way */
    gm_step *kept[KEPT_STEPS];       /* one row a member; the one used last comes first */
    int kept_rows[KEPT_STEPS];
    gm_step *prompts;                /* the last one of more rows than members, till decoding begins, */
    int32_t *prompt_spans;           /* ... and what it is for */
    int n_prompt_spans;
    step_wanted prompts_wanted;
    int turn;                        /* members from here on may have a pass for themselves first */
};

gm_status gm_decoder_new(gm_model *m, gm_decoder **out) {
    *out = memory_zeroed(sizeof **out);
    if (!*out)
        return GM_ENOMEM;
    (*out)->model = gm_model_retain(m);
    return GM_OK;
}

/* What the pass under way did is taken back. */
static void take_back(gm_decoder *d) {
    if (!d->running)
        return;
    step_abandon(d->step);
    for (int i = 0; i < d->n_parts; i++)
        stream_lost(d->parts[i]);
    d->running = false;
}

void gm_decoder_pause(gm_decoder *d) { take_back(d); }
void gm_decoder_set_profile(gm_decoder *d, gm_profile *profile) { d->profile = profile; }

void gm_decoder_free(gm_decoder *d) {
    if (!d)
        return;
    take_back(d);
    for (int i = 0; i < d->n; i++)
        d->members[i]->decoder = NULL;
    for (int i = 0; i < KEPT_STEPS; i++)
        step_free(d->kept[i]);
    step_free(d->prompts);
    memory_free(d->members);
    memory_free(d->parts);
    memory_free(d->spans);
    memory_free(d->prompt_spans);
    gm_model_release(d->model);
    memory_free(d);
}

static bool grow(void *pointer, size_t bytes) {
    void **memory = pointer, *grown = memory_resize(*memory, bytes);
    if (grown)
        *memory = grown;
    return grown != NULL;
}

gm_status gm_decoder_add(gm_decoder *d, gm_stream *st) {
    if (st->decoder)
        return gm_fail(GM_ESTATE, "decoder: the stream is a member of a decoder already");
    if (st->session->model != d->model)
        return gm_fail(GM_EVALUE, "decoder: the stream is one of another model");
    if (d->n == GM_MAX_BATCH)
        return gm_fail(GM_EVALUE, "decoder: it has %d members and takes no more", GM_MAX_BATCH);
    if (d->n == d->capacity) {
        size_t capacity = 2 * (size_t)d->capacity + 4;
        if (!grow(&d->members, capacity * sizeof *d->members) || !grow(&d->parts, capacity * sizeof *d->parts)
            || !grow(&d->spans, capacity * sizeof *d->spans)
            || !grow(&d->prompt_spans, capacity * sizeof *d->prompt_spans))
            return error_code();
        d->capacity = (int)capacity;
    }
    d->members[d->n++] = st;
    st->decoder = d;
    return GM_OK;
}

/* Their memory is large, and the next one's is made of it. */
static void forget_prompts(gm_decoder *d) {
    if (d->step == d->prompts)
        d->step = NULL;
    step_free(d->prompts);
    d->prompts = NULL;
}

static void drop(gm_decoder *d, int i) {
    d->members[i]->decoder = NULL;
    memmove(d->members + i, d->members + i + 1, (size_t)(--d->n - i) * sizeof *d->members);
    if (d->n == 0)
        forget_prompts(d);
}

void decoder_remove(gm_decoder *d, gm_stream *st) {
    for (int i = 0; d->running && i < d->n_parts; i++)
        if (d->parts[i] == st)
            take_back(d);
    for (int i = 0; i < d->n; i++)
        if (d->members[i] == st) {
            drop(d, i);
            return;
        }
}

/* ---- passes ---- */

static bool choose_tapped(gm_decoder *d, int64_t *rows, bool *logits) {
    while (d->turn < d->n) {
        gm_stream *st = d->members[d->turn++];
        int64_t asked = st->taps ? stream_rows(st) : 0;
        if (asked == 0)
            continue;
        *rows = asked < PASS_ROWS ? asked : PASS_ROWS;
        *logits = *rows == asked;
        d->parts[0] = st;
        d->spans[0] = (int32_t)*rows;
        d->n_parts = 1;
        return true;
    }
    d->turn = 0;
    return false;
}

/* Who has rows in the next pass, and how many: GM_END when nobody has. */
static gm_status choose(gm_decoder *d, int64_t *rows, bool *logits) {
    if (choose_tapped(d, rows, logits))
        return GM_OK;
    int64_t most = LOGITS_FLOATS / d->model->config.vocab;
    *rows = d->n_parts = 0;
    *logits = false;
    for (int prompts = 0; prompts < 2; prompts++)
        for (int i = 0; i < d->n; i++) {
            int64_t asked = stream_rows(d->members[i]);
            if (asked == 0 || (asked > 1) != prompts || d->members[i]->taps)
                continue;
            int64_t room = prompts ? PASS_ROWS - *rows : 1, span = asked < room ? asked : room;
            if (span <= 0 || (prompts && d->n_parts > 0 && d->n_parts >= most))
                break;
            d->parts[d->n_parts] = d->members[i];
            d->spans[d->n_parts++] = (int32_t)span;
            *rows += span;
            *logits |= span == asked;
        }
    return d->n_parts || choose_tapped(d, rows, logits) ? GM_OK : GM_END;
}

static gm_status kept_step(gm_decoder *d) {
    int n = d->n_parts, at = 0;
    forget_prompts(d);
    while (at < KEPT_STEPS - 1 && d->kept[at] && d->kept_rows[at] != n)
        at++;
    gm_step *step = d->kept[at];
    if (step && d->kept_rows[at] != n) {
        step_free(step);
        step = d->kept[at] = NULL;
    }
    if (!step)
        GM_TRY(step_new(d->model, d->spans, n, STEP_LAST, &step));
    memmove(d->kept + 1, d->kept, (size_t)at * sizeof *d->kept);
    memmove(d->kept_rows + 1, d->kept_rows, (size_t)at * sizeof *d->kept_rows);
    d->kept[0] = d->step = step;
    d->kept_rows[0] = n;
    return GM_OK;
}

static gm_status prompts_step(gm_decoder *d, step_wanted wanted) {
    size_t bytes = (size_t)d->n_parts * sizeof *d->spans;
    bool same = d->prompts && d->n_prompt_spans == d->n_parts && d->prompts_wanted == wanted
                && memcmp(d->prompt_spans, d->spans, bytes) == 0;
    if (!same) {
        forget_prompts(d);
        GM_TRY(step_new(d->model, d->spans, d->n_parts, wanted, &d->prompts));
        memcpy(d->prompt_spans, d->spans, bytes);
        d->n_prompt_spans = d->n_parts;
        d->prompts_wanted = wanted;
    }
    d->step = d->prompts;
    return GM_OK;
}

static gm_status tapped_step(gm_decoder *d) {
    gm_stream *st = d->parts[0];
    if (st->own && st->own_rows != d->spans[0]) {
        step_free(st->own);
        st->own = NULL;
    }
    if (!st->own)
        GM_TRY(step_new_tapped(d->model, d->spans, 1, STEP_LAST, st->taps, &st->own));
    st->own_rows = d->spans[0];
    d->step = st->own;
    return GM_OK;
}

/* After the choice of rows. */
static void begin_profile(gm_decoder *d) {
    d->profiled = false;
    for (int i = 0; i < d->n_parts; i++)
        d->profiled |= d->parts[i]->profile != NULL;
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
    int64_t rows = 0, wanted = 0;
    bool decodes = true;
    for (int i = 0; i < d->n_parts; i++) {
        rows += d->spans[i];
        wanted += stream_rows(d->parts[i]) == d->spans[i];
        decodes &= d->parts[i]->decodes;
    }
    d->pass.pass_ns = clock_ns() - d->started;
    count_weights(d, rows, wanted > 0);
    if (d->profile)
        profile_add_pass(decodes ? &d->profile->decode : &d->profile->prefill, &d->pass, rows);
}

/* On failure *failed is the member that it is charged to. */
static gm_status begin_pass(gm_decoder *d, gm_stream **failed) {
    int64_t rows;
    bool logits;
    gm_status status = choose(d, &rows, &logits);
    if (status != GM_OK)
        return status;
    d->started = clock_ns();
    begin_profile(d);
    *failed = d->parts[d->n_parts - 1];
    GM_TRY(d->parts[0]->taps                ? tapped_step(d)
           : rows == d->n_parts && logits ? kept_step(d) : prompts_step(d, logits ? STEP_LAST : STEP_NONE));
    for (int i = 0; i < d->n_parts; i++) {
        const int32_t *tokens;
        int64_t position;
        status = stream_prepare(d->parts[i], d->spans[i], &tokens, &position);
        if (status == GM_OK)
            status = step_fill(d->step, i, d->parts[i]->session->cache, tokens, position);
        if (status != GM_OK) {
            *failed = d->parts[i];
            for (; i >= 0; i--)
                stream_lost(d->parts[i]);
            return status;
        }
    }
    step_profile(d->step, d->profiled ? &d->pass : NULL);
    d->pass.setup_ns = d->profiled ? clock_ns() - d->started : 0;
    d->running = true;
    return GM_OK;
}

static void forget_step(gm_decoder *d) {
    if (d->step == d->parts[0]->own)
        d->parts[0]->own = NULL;
    if (d->step == d->prompts)
        d->prompts = NULL;
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

/* Whether to give the pass up because of members that are over: when nobody needs it, or it may last for seconds. */
static bool is_pointless(const gm_decoder *d) {
    int over = 0;
    int64_t rows = 0;
    for (int i = 0; i < d->n_parts; i++) {
        over += stream_is_over(d->parts[i]);
        rows += d->spans[i];
    }
    return over == d->n_parts || (over > 0 && rows > d->n_parts);
}

/* GM_OK when the pass is done or was given up, GM_AGAIN at the deadline (0: none). */
static gm_status run_pass(gm_decoder *d, int64_t deadline) {
    for (;;) {
        gm_status status = step_run(d->step, LOOK_MS);
        if (status == GM_AGAIN) {
            if (is_pointless(d)) {
                take_back(d);
                return GM_OK;
            }
            if (deadline && clock_ns() >= deadline)
                return GM_AGAIN;
            continue;
        }
        if (status != GM_OK) {
            take_back(d);
            forget_step(d);
            return status;
        }
        d->running = false;
        double seconds = (double)(clock_ns() - d->started - step_packing_ns(d->step)) * 1e-9;
        if (d->profiled)
            end_profile(d);
        for (int i = 0; i < d->n_parts; i++)
            stream_took(d->parts[i], d->spans[i], seconds, &d->pass, d->step, i);
        return GM_OK;
    }
}

/* ---- events ---- */

/* Of the first member that has one: GM_END when none has. */
static gm_status next_event(gm_decoder *d, gm_stream **which, gm_token *token) {
    for (int i = 0; i < d->n; i++) {
        gm_stream *st = d->members[i];
        if (st->state == STREAM_DONE) {              /* since gm_stream_sample */
            drop(d, i--);
            continue;
        }
        if (st->state == STREAM_WAITING)
            return gm_fail(GM_ESTATE, "stream: its logits wait for gm_stream_sample");
        if (st->state == STREAM_ROWS && !stream_is_over(st))
            continue;
        gm_status status = stream_event(st, token);
        if (status == GM_AGAIN)
            continue;
        *which = st;
        if (status != GM_OK && status != GM_LOGITS)
            st->state = STREAM_DONE;
        if (st->state == STREAM_DONE)
            drop(d, i);
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
        gm_stream *failed = d->running ? d->parts[d->n_parts - 1] : NULL;
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
