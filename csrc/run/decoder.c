/* decoder.c - the one decode loop: streams of one model, one forward pass after another.
 *  (1) A pass takes one row of each member that decodes and, up to a bound, chunks of the other members' prompts: first
 *      of the one with the fewest rows left, but whoever has waited is served before long. While members decode, the
 *      bound follows from the gap that they may have and from what a row took so far. A row's values depend on its own
 *      sequence alone (kernels), so a member's tokens have the same bits whatever else is decoded.
 *      On a device a pass has rows of one kind, which have arithmetic of their own: those of members that decode, or
 *      those of prompts, in turn. A row is of one kind however prompts are cut.
 *  (2) The next pass begins when no member has unread logits: they live in the step until then.
 *  (3) A pass that does not finish is rolled back for every member with rows in it; they request those rows again.
 *  (4) A member with taps has passes of its own, in turn with those that the others share; so has one whose prompt is
 *      scored, for these rows, which need logits each.
 *  (5) On a device the next pass begins behind the one under way, before its tokens are known, where all members of
 *      the decoder have a row in both and need no logits. It is taken for the next pass if their tokens went on so;
 *      else nobody looks at what it made.
 *  (6) Steps of one row per member are cached by the members' number and adapters, so that a plan is recorded once for
 *      each. Those with adapters that no member has any more go: they would keep them alive. */
#include "run/decoder.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "models/traffic.h"
#include "run/profile.h"

#define KEPT_STEPS 4
#define POLL_MS 20       /* how often a pass is interrupted to check for cancelled and timed-out members */
#define SHARED_ROWS 2048 /* of prompts in a pass that members who decode wait for, without a gap */
#define LEAST_ROWS 8     /* of prompts in a pass, however small the gap */
#define LOGITS_FLOATS (INT64_C(1) << 24) /* of one pass with prompts; a decoding pass has as many as it needs */

struct gm_decoder {
    gm_model *model;
    gm_stream **members, **in_pass; /* in_pass: those with rows in the current pass, in the order of its rows */
    int32_t *row_counts;            /* rows of each of these, */
    adapter_mix **mixes;            /* ... and its adapters */
    int n, n_in_pass;
    size_t capacity; /* of these four, which grow alike */
    bool running;
    bool leads;             /* a pass is begun behind the last one, whose members are those of the decoder */
    int64_t started, ended; /* when the pass began, and the last one was done */
    gm_profile *profile;    /* the caller's, or NULL */
    bool profiled;          /* a member of the current pass has a profile */
    gm_phase_profile pass;  /* the current pass; its traffic of weights is kept from pass to pass, for: */
    int64_t weights_rows;
    bool weights_logits;
    gm_step *step;             /* of the current pass, or of the last one */
    gm_step *kept[KEPT_STEPS]; /* one row per member; most recently used first */
    gm_step *prefill;          /* the last step with more rows than members, until decoding begins */
    bool left;                 /* a member with adapters did, since the last pass */
    bool prompt;               /* the current pass, or the last one, has rows of prompts alone, on a device */
    bool scores;               /* the current pass has logits of each of its rows, which are one member's */
    int turn;                  /* index of the next member that may have a pass of its own */
    int64_t pass_rows;         /* of a pass, at most, but for members that decode */
    int64_t gap_ns;            /* that prompts may keep members that decode waiting; 0: any */
    double step_ns, row_ns;    /* what passes without prompts took, and each row of a prompt; 0: not known */
};

gm_status gm_decoder_new(gm_model *m, gm_decoder **out) {
    *out = memory_zeroed(sizeof **out);
    if (!*out)
        return GM_ENOMEM;
    (*out)->model = gm_model_retain(m);
    (*out)->pass_rows = pass_rows_of(m);
    return GM_OK;
}

gm_status gm_decoder_limit(gm_decoder *d, int64_t rows, double gap_ms) {
    const int64_t most = pass_rows_of(d->model);
    if (rows < 0 || rows > most)
        return gm_fail(GM_EVALUE, "decoder: %lld rows of a pass, expected 1 to %lld, or 0", (long long)rows,
                       (long long)most);
    if (!(gap_ms >= 0 && gap_ms <= 1e6))
        return gm_fail(GM_EVALUE, "decoder: a gap of %g ms, expected 0 (none) to 1000000", gap_ms);
    d->pass_rows = rows ? rows : most;
    d->gap_ns = (int64_t)(gap_ms * 1e6);
    return GM_OK;
}

/* Rolls back what the current pass did. */
static void abort_pass(gm_decoder *d) {
    if (!d->running)
        return;
    step_abandon(d->step);
    for (int i = 0; i < d->n_in_pass; i++)
        stream_rollback(d->in_pass[i]);
    d->running = d->leads = false;
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
    memory_free(d->mixes);
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
    return grow_array(&d->mixes, n, &d->capacity, 1, sizeof *d->mixes);
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
    d->leads = false;
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

static bool is_stale(const gm_decoder *d, const gm_step *step) {
    for (int i = 0; i < step_sequences(step); i++) {
        const adapter_mix *mix = step_mix(step, i);
        bool wanted = mix == NULL;
        for (int k = 0; k < d->n && !wanted; k++)
            wanted = adapter_mix_same(d->members[k]->mix, mix);
        if (!wanted)
            return true;
    }
    return false;
}

static void forget_kept(gm_decoder *d, int i) {
    memmove(d->kept + i, d->kept + i + 1, (size_t)(KEPT_STEPS - 1 - i) * sizeof *d->kept);
    d->kept[KEPT_STEPS - 1] = NULL;
}

/* When nobody reads logits of the last pass any more. */
static void drop_stale_steps(gm_decoder *d) {
    for (int i = KEPT_STEPS; d->left && i-- > 0;) {
        gm_step *step = d->kept[i];
        if (!step || !is_stale(d, step))
            continue;
        if (d->step == step)
            d->step = NULL;
        forget_kept(d, i);
        step_free(step);
    }
    if (d->left && d->prefill && is_stale(d, d->prefill))
        drop_prefill_step(d);
    d->left = false;
}

static void drop_member(gm_decoder *d, int i) {
    d->left |= d->members[i]->mix != NULL;
    d->leads = false;
    d->members[i]->decoder = NULL;
    memmove(d->members + i, d->members + i + 1, (size_t)(--d->n - i) * sizeof *d->members);
    if (d->n == 0) {
        drop_prefill_step(d);
        drop_stale_steps(d);
    }
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

/* Whether its next rows have the arithmetic of prompts: on a device, whatever their number. */
static bool is_prompt(const gm_decoder *d, const gm_stream *st) {
    return d->model->device && !st->decodes && st->prefill == GM_PREFILL_BATCHED;
}
/* The rows that a pass may have of it: on a device one, where it decodes, as in passes before. */
static int64_t rows_of(const gm_decoder *d, const gm_stream *st) {
    const int64_t asked = stream_pending_rows(st);
    return d->model->device && asked > 1 && !is_prompt(d, st) ? 1 : asked;
}

static bool has_own_pass(const gm_stream *st) {
    return st->taps || (stream_scores_prompt(st) && stream_pending_rows(st) > 1);
}

/* Members with the same adapters come one after another. */
static void group_members(gm_decoder *d) {
    for (int i = 1; i < d->n_in_pass; i++) {
        gm_stream *st = d->in_pass[i];
        const int32_t count = d->row_counts[i];
        int at = i;
        while (at > 0 && !adapter_mix_same(d->in_pass[at - 1]->mix, st->mix))
            at--;
        if (at == 0 || at == i)
            continue;
        memmove(d->in_pass + at + 1, d->in_pass + at, (size_t)(i - at) * sizeof *d->in_pass);
        memmove(d->row_counts + at + 1, d->row_counts + at, (size_t)(i - at) * sizeof *d->row_counts);
        d->in_pass[at] = st;
        d->row_counts[at] = count;
    }
}

static bool is_in_pass(const gm_decoder *d, const gm_stream *st) {
    for (int i = 0; i < d->n_in_pass; i++)
        if (d->in_pass[i] == st)
            return true;
    return false;
}

/* Whether its rows go with those of prompts: several, or, on a device, those that have their arithmetic. */
static bool is_of_prompts(const gm_decoder *d, const gm_stream *st) {
    return d->model->device ? stream_pending_rows(st) > 0 && is_prompt(d, st) : stream_pending_rows(st) > 1;
}
/* The member whose prompt is next: the fewest rows left, less what it has waited for; NULL: there is none. */
static gm_stream *next_prompt(const gm_decoder *d) {
    gm_stream *best = NULL;
    int64_t least = 0;
    for (int i = 0; i < d->n; i++) {
        gm_stream *st = d->members[i];
        const int64_t asked = stream_pending_rows(st), left = asked - st->waited;
        if (asked > 0 && is_of_prompts(d, st) && !has_own_pass(st) && (!best || left < least) && !is_in_pass(d, st)) {
            best = st;
            least = left;
        }
    }
    return best;
}

/* Rows of prompts that the next pass may have, beside those of members that decode. */
static int64_t prompt_rows(const gm_decoder *d) {
    const int64_t least = LEAST_ROWS < d->pass_rows ? LEAST_ROWS : d->pass_rows, left = d->pass_rows - d->n_in_pass;
    const int64_t most = left > least ? left : least; /* however many decode: prompts get on */
    if (d->n_in_pass == 0)
        return most;
    if (d->gap_ns == 0)
        return most < SHARED_ROWS ? most : SHARED_ROWS;
    const double fit = d->row_ns > 0 ? ((double)d->gap_ns - d->step_ns) / d->row_ns : LEAST_ROWS;
    const int64_t rows = fit > (double)LEAST_ROWS ? (int64_t)fit : LEAST_ROWS;
    return rows < most ? rows : most;
}

static void put_in_pass(gm_decoder *d, gm_stream *st, int64_t count) {
    d->in_pass[d->n_in_pass] = st;
    d->row_counts[d->n_in_pass++] = (int32_t)count;
}

/* The members that decode, a row of each. */
static void choose_decoding(gm_decoder *d, int64_t *rows, bool *logits) {
    d->n_in_pass = 0;
    *logits = false;
    for (int i = 0; i < d->n; i++) {
        gm_stream *st = d->members[i];
        if (has_own_pass(st) || rows_of(d, st) != 1 || is_of_prompts(d, st))
            continue;
        put_in_pass(d, st, 1);
        *logits |= stream_pending_rows(st) == 1;
    }
    *rows = d->n_in_pass;
}

/* Of a pass of its own; where all have logits, as many as have room, and beside members that decode as fit the gap. */
static int64_t own_rows(gm_decoder *d, const gm_stream *st, int64_t asked) {
    int64_t most = d->pass_rows;
    if (stream_scores_prompt(st)) {
        const int64_t room = LOGITS_FLOATS / d->model->config.vocab;
        d->n_in_pass = 0;
        for (int i = 0; i < d->n; i++)
            d->n_in_pass += d->members[i]->decodes;
        most = prompt_rows(d);
        most = room < most ? room : most;
        most = most < 2 ? 2 : most; /* of one row, a pass has no logits but those of the last row of all */
    }
    return asked < most ? asked : most;
}

static bool choose_own(gm_decoder *d, int64_t *rows, bool *logits) {
    while (d->turn < d->n) {
        gm_stream *st = d->members[d->turn++];
        const int64_t asked = has_own_pass(st) ? rows_of(d, st) : 0;
        if (asked == 0)
            continue;
        *rows = own_rows(d, st, asked);
        *logits = *rows == stream_pending_rows(st);
        d->prompt = is_prompt(d, st);
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
    if (choose_own(d, rows, logits))
        return GM_OK;
    const int64_t most = LOGITS_FLOATS / d->model->config.vocab;
    const bool prompts_alone = d->model->device && !d->prompt && next_prompt(d);
    choose_decoding(d, rows, logits);
    int64_t free = d->model->device && d->n_in_pass && !prompts_alone ? 0 : prompt_rows(d);
    if (prompts_alone) { /* in turn with those that decode, who set the bound */
        d->n_in_pass = 0;
        *rows = 0;
        *logits = false;
    }
    d->prompt = d->model->device && d->n_in_pass == 0;
    for (gm_stream *st; free > 0 && (d->n_in_pass == 0 || d->n_in_pass < most) && (st = next_prompt(d));) {
        const int64_t asked = stream_pending_rows(st), count = asked < free ? asked : free;
        put_in_pass(d, st, count);
        *rows += count;
        *logits |= count == asked;
        free -= count;
    }
    for (int i = 0; i < d->n; i++) /* a pass's rows are what it waited for */
        d->members[i]->waited += is_of_prompts(d, d->members[i]) ? d->pass_rows / 4 : 0;
    group_members(d);
    return d->n_in_pass || choose_own(d, rows, logits) ? GM_OK : GM_END;
}

/* The pass that was chosen. */
static step_request request_of(gm_decoder *d, step_output output, gm_taps *taps) {
    for (int i = 0; i < d->n_in_pass; i++)
        d->mixes[i] = d->in_pass[i]->mix;
    return (step_request){d->row_counts, d->mixes, d->n_in_pass, output, taps, d->prompt};
}

static gm_status decode_step(gm_decoder *d) {
    const step_request request = request_of(d, STEP_LAST, NULL);
    int at = 0;
    drop_prefill_step(d);
    while (at < KEPT_STEPS - 1 && d->kept[at] && !step_serves(d->kept[at], &request))
        at++;
    gm_step *step = d->kept[at];
    if (step && !step_serves(step, &request)) {
        step_free(step);
        step = d->kept[at] = NULL;
    }
    if (!step)
        GM_TRY(step_new(d->model, &request, &step));
    memmove(d->kept + 1, d->kept, (size_t)at * sizeof *d->kept);
    d->kept[0] = d->step = step;
    return GM_OK;
}

static gm_status prefill_step(gm_decoder *d, step_output output) {
    const step_request request = request_of(d, output, NULL);
    if (!d->prefill || !step_serves(d->prefill, &request)) {
        drop_prefill_step(d);
        GM_TRY(step_new(d->model, &request, &d->prefill));
    }
    d->step = d->prefill;
    return GM_OK;
}

static gm_status tapped_step(gm_decoder *d) {
    gm_stream *st = d->in_pass[0];
    if (st->own && (st->own_rows != d->row_counts[0] || step_is_prompt(st->own) != d->prompt)) {
        step_free(st->own);
        st->own = NULL;
    }
    const step_request request = request_of(d, STEP_LAST, st->taps);
    if (!st->own)
        GM_TRY(step_new(d->model, &request, &st->own));
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

/* ---- running ahead ---- */
/* Whether the pass that was chosen is the one that was begun behind the last one. */
static bool goes_on(const gm_decoder *d) {
    bool all = d->n_in_pass == d->n && !d->profiled;
    for (int i = 0; i < d->n_in_pass && all; i++) {
        const gm_stream *st = d->in_pass[i];
        const int64_t at = st->session->length;
        all = d->row_counts[i] == 1 && step_leads_to(d->step, i, st->session->cache, st->sampler.history[at], at);
    }
    return all;
}

/* Whether another pass may be begun behind the one that was chosen. */
static bool may_lead(const gm_decoder *d) {
    bool all = d->model->device && d->n_in_pass == d->n && !d->prompt && !d->profiled;
    for (int i = 0; i < d->n_in_pass && all; i++)
        all = d->row_counts[i] == 1 && stream_may_lead(d->in_pass[i]);
    return all;
}

/* The rows of the pass: taken, where it was begun. It then began when the one before was done, but that a caller who
 * was long away had not all of that time computed. */
static gm_status give_rows(gm_decoder *d, bool taken, gm_stream **failed) {
    gm_status status = GM_OK;
    for (int i = 0; i < d->n_in_pass; i++) {
        gm_stream *st = d->in_pass[i];
        const bool reads = stream_reads_logits(st) && d->row_counts[i] == stream_pending_rows(st);
        const int32_t *tokens;
        int64_t position;
        status = stream_prepare(st, d->row_counts[i], &tokens, &position);
        if (status == GM_OK)
            status = taken ? step_take(d->step, st->session->cache, position)
                           : step_fill(d->step, i, st->session->cache, tokens, position, reads || d->scores);
        if (status == GM_OK)
            continue;
        *failed = st;
        for (; i >= 0; i--)
            stream_rollback(d->in_pass[i]);
        return status;
    }
    const int64_t least = d->started - (int64_t)d->step_ns;
    if (taken)
        d->started = d->ended > least ? d->ended : least;
    step_lead(d->step, may_lead(d));
    return GM_OK;
}

/* On failure *failed is the member that is blamed for it. */
static gm_status begin_pass(gm_decoder *d, gm_stream **failed) {
    int64_t rows;
    bool logits;
    const gm_step *before = d->step;
    drop_stale_steps(d);
    gm_status status = choose(d, &rows, &logits);
    if (status != GM_OK)
        return status;
    d->started = clock_ns();
    begin_profile(d);
    *failed = d->in_pass[d->n_in_pass - 1];
    const bool decodes = d->model->device ? !d->prompt : rows == d->n_in_pass && logits;
    d->scores = d->n_in_pass == 1 && rows > 1 && stream_scores_prompt(d->in_pass[0]);
    GM_TRY(d->in_pass[0]->taps ? tapped_step(d)
           : d->scores         ? prefill_step(d, STEP_ALL)
           : decodes           ? decode_step(d)
                               : prefill_step(d, logits ? STEP_LAST : STEP_NONE));
    step_profile(d->step, d->profiled ? &d->pass : NULL);
    GM_TRY(give_rows(d, d->leads && d->step == before && goes_on(d), failed));
    d->leads = false;
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
            forget_kept(d, i);
            break;
        }
    step_free(d->step);
    d->step = NULL;
}

/* Whether to abandon the pass because of members that are over: their rows are most of it, which the others would wait
 * for longer than for their own rows anew. */
static bool should_abandon_pass(const gm_decoder *d) {
    int64_t over = 0, rows = 0;
    for (int i = 0; i < d->n_in_pass; i++) {
        over += stream_is_over(d->in_pass[i]) ? d->row_counts[i] : 0;
        rows += d->row_counts[i];
    }
    return over == rows || over > rows * 3 / 4;
}

/* What the pass says of those to come: an average in which the last quarter counts. */
static void measure(gm_decoder *d, double ns) {
    int64_t rows = 0;
    for (int i = 0; i < d->n_in_pass; i++)
        rows += d->prompt || d->row_counts[i] > 1 ? d->row_counts[i] : 0;
    double *mean = rows ? &d->row_ns : &d->step_ns;
    const double step = d->prompt ? 0 : d->step_ns; /* a pass of prompts alone has no share of those that decode */
    const double found = rows ? (ns > step ? ns - step : ns) / (double)rows : ns;
    *mean = *mean > 0 ? 0.75 * *mean + 0.25 * found : found;
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
        d->leads = step_is_ahead(d->step);
        d->ended = clock_ns();
        double seconds = (double)(d->ended - d->started - step_packing_ns(d->step)) * 1e-9;
        measure(d, seconds * 1e9);
        if (d->profiled)
            end_profile(d);
        for (int i = 0; i < d->n_in_pass; i++) {
            if (stream_scores_prompt(d->in_pass[i]) && (d->scores || d->row_counts[i] == 1))
                stream_score_prompt(d->in_pass[i], d->row_counts[i], d->step, i);
            stream_commit(d->in_pass[i], d->row_counts[i], seconds, &d->pass, d->step,
                          d->scores ? d->row_counts[i] - 1 : i);
        }
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

gm_status gm_decoder_pass(gm_decoder *d, int slice_ms, gm_stream **which) {
    const int64_t deadline = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    gm_stream *failed = d->running ? d->in_pass[d->n_in_pass - 1] : NULL;
    *which = NULL;
    gm_status status = d->running ? GM_OK : begin_pass(d, &failed);
    if (status == GM_OK)
        status = run_pass(d, deadline);
    if (status == GM_OK || status == GM_AGAIN || status == GM_END)
        return status;
    failed->state = STREAM_DONE;
    decoder_remove(d, failed);
    *which = failed;
    return status;
}

bool gm_decoder_is_running(const gm_decoder *d) { return d->running; }

gm_status gm_decoder_event(gm_decoder *d, gm_stream **which, gm_token *token) {
    *which = NULL;
    return d->running ? GM_END : next_event(d, which, token);
}

gm_status gm_decoder_next(gm_decoder *d, int slice_ms, gm_stream **which, gm_token *token) {
    const int64_t end = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    for (;;) {
        gm_status status = gm_decoder_event(d, which, token);
        if (status != GM_END)
            return status;
        const int64_t left = (end - clock_ns() + 999999) / 1000000;
        status = gm_decoder_pass(d, !end ? 0 : left > 1 ? (int)left : 1, which);
        if (status != GM_OK)
            return status;
    }
}

gm_status gm_decoder_remove(gm_decoder *d, gm_stream *st) {
    if (st->decoder != d)
        return gm_fail(GM_ESTATE, "decoder: the stream is not a member");
    decoder_remove(d, st);
    return GM_OK;
}

gm_status gm_decoder_fork(const gm_decoder *d, const gm_stream *st, gm_session **out) {
    *out = NULL;
    if (st->decoder != d || d->running)
        return gm_fail(GM_ESTATE, "decoder: a fork is of a member, and between passes");
    return session_copy(st->session, out);
}

gm_status gm_decoder_cache_bytes(const gm_decoder *d, int64_t *bytes) {
    gm_cache **caches = memory_array((size_t)d->n + 1, sizeof(gm_cache *));
    if (!caches)
        return GM_ENOMEM;
    for (int i = 0; i < d->n; i++)
        caches[i] = d->members[i]->session->cache;
    const gm_status status = caches_bytes(caches, (size_t)d->n, bytes);
    memory_free(caches);
    return status;
}
