/* stream.c - one sequence being generated: prompt, sampler, text, stops.
 *  (1) The last sampled token is not in the session's cache yet: the next pass puts it there.
 *  (2) stream_event draws a token from the logits, or hands them out first: a caller that changes logits answers
 *      GM_LOGITS with gm_stream_sample. There are no callbacks. */
#include "run/stream.h"
#include <math.h>
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "run/profile.h"

/* ---- text ---- */
static gm_status bytes_add(stream_bytes *b, const char *text, size_t n) {
    GM_TRY(grow_array(&b->text, b->length, &b->capacity, n + 1, 1));
    memcpy(b->text + b->length, text, n);
    b->length += n;
    return GM_OK;
}

/* The stop text within held text that ends first, the longest of those: wherever tokens end, it is the same one. True,
 * and held text ends before it. Else *keep is the length of the longest end that may still become one. The first `old`
 * bytes were searched before. */
static bool find_stop(gm_stream *st, size_t old, size_t *keep) {
    const stream_bytes *held = &st->held;
    for (size_t end = old + 1; end <= held->length; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < st->n_stop_texts; i++) {
            const stream_bytes *stop = &st->stop_texts[i];
            if (stop->length > longest && stop->length <= end &&
                memcmp(held->text + end - stop->length, stop->text, stop->length) == 0) {
                longest = stop->length;
                st->stats.stop_text = (int32_t)i;
            }
        }
        if (longest) {
            st->held.length = end - longest;
            return true;
        }
    }
    *keep = 0;
    for (size_t i = 0; i < st->n_stop_texts; i++) {
        const stream_bytes *stop = &st->stop_texts[i];
        size_t n = stop->length - 1 < held->length ? stop->length - 1 : held->length;
        for (; n > *keep; n--)
            if (memcmp(held->text + held->length - n, stop->text, n) == 0)
                *keep = n;
    }
    return false;
}

/* Text of the token just sampled (or of the end) goes through the stop texts to the end of out. */
static gm_status release_text(gm_stream *st, bool end, bool *stopped) {
    const char *text = NULL;
    size_t n = 0, keep = 0, old = st->held.length;
    *stopped = false;
    if (!st->tokenizer)
        return GM_OK;
    GM_TRY(end ? gm_detokenizer_finish(st->detokenizer, &text, &n)
               : gm_detokenizer_push(st->detokenizer, st->token, &text, &n));
    GM_TRY(bytes_add(&st->held, text, n));
    *stopped = find_stop(st, old, &keep);
    size_t ready = *stopped || end ? st->held.length : st->held.length - keep;
    GM_TRY(bytes_add(&st->out, st->held.text, ready));
    memmove(st->held.text, st->held.text + ready, st->held.length - ready);
    st->held.length -= ready;
    return GM_OK;
}

/* ---- streams ---- */
void gm_generate_defaults(gm_generate_options *o) {
    *o = (gm_generate_options){.max_tokens = -1, .prompt_logprobs = -1};
    gm_sampling_defaults(&o->sampling);
}

static gm_status check_options(const gm_generate_options *o, int64_t vocab) {
    for (size_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] < 0 || o->stop_ids[i] >= vocab)
            return gm_fail(GM_EVALUE, "generate: stop id %d is outside the vocabulary of %lld", o->stop_ids[i],
                           (long long)vocab);
    if (o->min_tokens < 0 || (o->max_tokens >= 0 && o->min_tokens > o->max_tokens))
        return gm_fail(GM_EVALUE, "generate: min_tokens is %lld, expected 0 to max_tokens (%lld)",
                       (long long)o->min_tokens, (long long)o->max_tokens);
    if (!(o->timeout_seconds >= 0))
        return gm_fail(GM_EVALUE, "generate: the timeout is %g s, expected 0 (none) or more", o->timeout_seconds);
    if (o->top_logprobs < 0 || o->top_logprobs > GM_MAX_LOGPROBS)
        return gm_fail(GM_EVALUE, "generate: top_logprobs is %d, expected 0 to %d", o->top_logprobs, GM_MAX_LOGPROBS);
    if (o->prompt_logprobs < -1 || o->prompt_logprobs > GM_MAX_LOGPROBS)
        return gm_fail(GM_EVALUE, "generate: prompt_logprobs is %d, expected -1 (none) to %d", o->prompt_logprobs,
                       GM_MAX_LOGPROBS);
    if (o->prompt_logprobs >= 0 && (o->n_edits || o->n_activations))
        return gm_fail(GM_EVALUE, "generate: prompt_logprobs together with edits or activations: expected one of them");
    return GM_OK;
}

static gm_status copy_stops(gm_stream *st, const gm_generate_options *o) {
    st->stop_ids = memory_array(o->n_stop_ids + 1, sizeof *st->stop_ids);
    st->stop_texts = memory_zeroed((o->n_stop_texts + 1) * sizeof *st->stop_texts);
    if (!st->stop_ids || !st->stop_texts)
        return GM_ENOMEM;
    if (o->n_stop_ids)
        memcpy(st->stop_ids, o->stop_ids, o->n_stop_ids * sizeof *st->stop_ids);
    st->n_stop_ids = o->n_stop_ids;
    if (o->n_stop_texts && !st->tokenizer)
        return gm_fail(GM_EVALUE, "generate: stop texts need a tokenizer; without one, pass stop ids");
    for (size_t i = 0; i < o->n_stop_texts; i++) {
        if (!o->stop_texts[i][0])
            return gm_fail(GM_EVALUE, "generate: a stop text is empty, expected one byte or more");
        GM_TRY(bytes_add(&st->stop_texts[st->n_stop_texts++], o->stop_texts[i], strlen(o->stop_texts[i])));
    }
    return GM_OK;
}

/* The output continues the prompt's text: SentencePiece drops a space only at the start of a text. */
static gm_status read_prompt(gm_detokenizer *d, const int32_t *prompt, size_t n) {
    const char *text;
    size_t length;
    for (size_t i = 0; i < n; i++)
        GM_TRY(gm_detokenizer_push(d, prompt[i], &text, &length));
    return GM_OK;
}

/* Attention weights need all keys, and a state is not a row: gm_inspect_begin gives both. */
static gm_status read_taps(gm_stream *st, const gm_generate_options *o) {
    const gm_model *m = st->session->model;
    if (o->n_edits == 0 && o->n_activations == 0)
        return GM_OK;
    for (size_t i = 0; i < o->n_activations; i++) {
        const gm_tap_point point = tap_point(o->activations[i]);
        if (point == TAP_ATTENTION_WEIGHTS || point == TAP_STATE)
            return gm_fail(GM_EVALUE, "generate: attention weights and recurrent states can be read only with "
                                      "model.inspect(), over a whole prompt");
    }
    return taps_new(m, o->activations, o->n_activations, o->edits, o->n_edits, &st->taps);
}

static bool is_edited(const gm_stream *st) { return st->taps && st->taps->n_edits > 0; }

static gm_status check_prompt(const gm_model *m, const int32_t *prompt, int64_t n, const gm_generate_options *o) {
    const int64_t context = m->config.context;
    if (n == 0)
        return gm_fail(GM_EVALUE, "generate: the prompt is empty; a model needs at least one token to go on from");
    if (n > context - (o->max_tokens != 0) && m->context_policy != GM_CONTEXT_ROTATE)
        return gm_fail_context(n, context,
                               "generate: the prompt has %lld tokens and leaves no position free in the context of "
                               "%lld",
                               (long long)n, (long long)context);
    for (int64_t i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= m->config.vocab)
            return gm_fail(GM_EVALUE, "generate: token id %d is outside the vocabulary of %lld", prompt[i],
                           (long long)m->config.vocab);
    return GM_OK;
}

static gm_status start_scores(gm_stream *st, int64_t n, int64_t k) {
    gm_prompt_logprobs *p = &st->prompt;
    if (k < 0)
        return GM_OK;
    p->n_top = (int32_t)(k < st->session->model->config.vocab ? k : st->session->model->config.vocab);
    p->logprobs = memory_array((size_t)n, sizeof *p->logprobs);
    p->top = memory_array((size_t)(n * p->n_top) + 1, sizeof *p->top);
    if (!p->logprobs || !p->top)
        return GM_ENOMEM;
    p->n = n;
    for (int64_t i = 0; i < n; i++)
        p->logprobs[i] = NAN;
    return GM_OK;
}

/* How many ids of the prompt are in the session's cache. The last one is computed again: its logits are needed. */
static int64_t count_shared(const gm_stream *st, const int32_t *prompt, int64_t n) {
    const gm_session *s = st->session;
    int64_t shared = 0;
    while (!is_edited(st) && st->prompt.n == 0 && shared < s->length && shared < n - 1 &&
           s->ids[shared] == prompt[shared])
        shared++;
    return shared;
}

/* Fills a stream that has its session and nothing else. */
static gm_status start(gm_stream *st, gm_tokenizer *t, const int32_t *prompt, int64_t n, const gm_generate_options *o) {
    gm_session *s = st->session;
    const int64_t vocab = s->model->config.vocab;
    GM_TRY(o->session_adapters ? adapter_mix_like(s->model, s->adapters, s->n_adapters, &st->mix)
                               : adapter_mix_new(s->model, o->adapters, o->n_adapters, &st->mix));
    GM_TRY(session_use_mix(s, st->mix));
    if (t)
        st->tokenizer = gm_tokenizer_retain(t);
    GM_TRY(sampler_init(&st->sampler, &o->sampling, vocab, s->model->threads));
    GM_TRY(sampler_accept(&st->sampler, prompt, n, true));
    if (o->top_logprobs) {
        st->n_top = o->top_logprobs < vocab ? o->top_logprobs : (int32_t)vocab;
        if (!(st->top = memory_array((size_t)st->n_top, sizeof *st->top)))
            return GM_ENOMEM;
    }
    GM_TRY(read_taps(st, o));
    GM_TRY(copy_stops(st, o));
    if (t) {
        GM_TRY(gm_detokenizer_new(t, true, false, &st->detokenizer));
        GM_TRY(read_prompt(st->detokenizer, prompt, (size_t)n));
    }
    GM_TRY(start_scores(st, n, o->prompt_logprobs));
    const int64_t shared = count_shared(st, prompt, n);
    GM_TRY(session_put_ids(s, shared, prompt + shared, n - shared));
    st->max_tokens = o->max_tokens;
    st->checkpoint = o->checkpoint;
    st->min_tokens = o->min_tokens;
    st->hand_out = o->hand_out_logits;
    st->profile = o->profile;
    st->prefill = o->prefill;
    if (o->timeout_seconds > 0)
        st->deadline = clock_ns() + (int64_t)(fmin(o->timeout_seconds, 1e9) * 1e9);
    s->length = cache_trim(s->cache, shared);
    st->stats = (gm_stream_stats){.prompt_tokens = n, .cached_tokens = s->length, .stop_id = -1, .stop_text = -1};
    return GM_OK;
}

gm_status gm_stream_open(gm_session *s, gm_tokenizer *t, const int32_t *prompt, size_t n_prompt,
                         const gm_generate_options *o, gm_stream **out) {
    *out = NULL;
    GM_TRY(check_prompt(s->model, prompt, (int64_t)n_prompt, o));
    GM_TRY(check_options(o, s->model->config.vocab));
    if (atomic_exchange(&s->busy, true))
        return gm_fail(GM_ESTATE, "session: another stream is using it");
    gm_stream *st = memory_zeroed(sizeof *st);
    if (!st) {
        atomic_store(&s->busy, false);
        return GM_ENOMEM;
    }
    st->session = s;
    buffer_watch_begin(&st->memory);
    gm_status status = start(st, t, prompt, (int64_t)n_prompt, o);
    if (status != GM_OK) {
        stream_free(st);
        return status;
    }
    *out = st;
    return GM_OK;
}

void stream_free(gm_stream *st) {
    if (is_edited(st)) { /* its cache is of no use to other streams */
        st->session->n_ids = 0;
        st->session->length = cache_trim(st->session->cache, 0);
    }
    buffer_watch_end(&st->memory);
    step_free(st->own);
    adapter_mix_release(st->mix);
    taps_free(st->taps);
    gm_detokenizer_free(st->detokenizer);
    gm_tokenizer_release(st->tokenizer);
    sampler_clear(&st->sampler);
    for (size_t i = 0; i < st->n_stop_texts; i++)
        memory_free(st->stop_texts[i].text);
    memory_free(st->stop_texts);
    memory_free(st->stop_ids);
    memory_free(st->held.text);
    memory_free(st->out.text);
    memory_free(st->top);
    gm_prompt_logprobs_free(&st->prompt);
    atomic_store(&st->session->busy, false);
    memory_free(st);
}

void gm_prompt_logprobs_free(gm_prompt_logprobs *p) {
    memory_free(p->logprobs);
    memory_free(p->top);
    *p = (gm_prompt_logprobs){.logprobs = NULL};
}

const gm_prompt_logprobs *gm_stream_prompt_logprobs(const gm_stream *st) { return &st->prompt; }

gm_prompt_logprobs gm_stream_take_prompt_logprobs(gm_stream *st) {
    const gm_prompt_logprobs taken = st->prompt;
    st->prompt = (gm_prompt_logprobs){.logprobs = NULL};
    return taken;
}

void gm_stream_cancel(gm_stream *st) { atomic_store(&st->cancelled, true); }

gm_status gm_stream_yield(gm_stream *st) {
    if (st->decoder || st->state != STREAM_ROWS)
        return gm_fail(GM_ESTATE, "stream: it can give its cache back between passes, when it is in no decoder");
    st->session->length = cache_trim(st->session->cache, 0);
    st->waited = 0;
    return GM_OK;
}

gm_stream_stats gm_stream_get_stats(const gm_stream *st) {
    gm_stream_stats stats = st->stats;
    stats.peak_memory = buffer_watch_peak(&st->memory);
    return stats;
}

/* ---- rows and logits ---- */
/* Whether the last sampled token fills the context. */
static bool is_full(const gm_stream *st) { return st->sampler.n_history >= st->session->model->config.context; }

int64_t stream_pending_rows(const gm_stream *st) {
    if (st->state != STREAM_ROWS)
        return 0;
    int64_t rows = st->sampler.n_history - st->session->length;
    if (st->prefill == GM_PREFILL_TOKEN)
        return 1;
    if (rows == 1 || !cache_has_states(st->session->cache))
        return rows;
    /* A checkpoint of states is kept after a pass of several rows: where prompts that begin alike go apart, and before
     * the last row, so that the same prompt finds it again. */
    const int64_t before = st->checkpoint - st->session->length;
    return before > 0 && before < rows ? before : rows - 1;
}

gm_status stream_prepare(gm_stream *st, int64_t rows, const int32_t **tokens, int64_t *position) {
    gm_session *s = st->session;
    if (st->decodes && is_full(st) && s->model->context_policy == GM_CONTEXT_ERROR)
        return gm_fail_context(s->length + rows, s->model->config.context,
                               "generate: the context of %lld tokens is full", (long long)s->model->config.context);
    *position = s->length;
    *tokens = st->sampler.history + s->length;
    return GM_OK;
}

bool stream_is_over(const gm_stream *st) {
    return atomic_load(&st->cancelled) || (st->deadline && clock_ns() >= st->deadline);
}

bool stream_scores_prompt(const gm_stream *st) { return st->prompt.n > 0 && !st->decodes; }

void stream_score_prompt(gm_stream *st, int64_t rows, const gm_step *step, int64_t row) {
    const int64_t vocab = st->session->model->config.vocab;
    gm_prompt_logprobs *p = &st->prompt;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t next = st->session->length + r + 1;
        if (next >= p->n)
            return;
        const float *logits = step_logits(step) + (row + r) * vocab, sum = step_best(step, row + r).logsumexp;
        p->logprobs[next] = logits[st->sampler.history[next]] - sum;
        if (p->n_top)
            sampler_likeliest(logits, vocab, sum, p->top + next * p->n_top, p->n_top);
    }
}

/* Whether stop ids may not be drawn yet. */
static bool is_short(const gm_stream *st) { return st->n_stop_ids > 0 && st->stats.generated_tokens < st->min_tokens; }

bool stream_reads_logits(const gm_stream *st) {
    return st->hand_out || st->n_top || is_short(st) || stream_scores_prompt(st) || !sampler_is_greedy(&st->sampler);
}

bool stream_may_lead(const gm_stream *st) {
    const gm_session *s = st->session;
    const int64_t n = st->sampler.n_history, left = st->max_tokens - st->stats.generated_tokens;
    return st->decodes && s->length + 1 == n && !stream_reads_logits(st) && (st->max_tokens < 0 || left > 1) &&
           n + 1 < s->model->config.context && cache_is_ready(s->cache, n, n + 1) && !stream_is_over(st);
}

static void account(gm_stream *st, double seconds) {
    *(st->decodes ? &st->stats.decode_seconds : &st->stats.prefill_seconds) += seconds;
}

static gm_phase_profile *phase(const gm_stream *st) {
    return st->decodes ? &st->profile->decode : &st->profile->prefill;
}

void stream_commit(gm_stream *st, int64_t rows, double seconds, const gm_phase_profile *pass, const gm_step *step,
                   int64_t row) {
    gm_session *s = st->session;
    s->length += rows;
    account(st, seconds);
    if (st->profile)
        profile_add_pass(phase(st), pass, rows);
    if (s->length < st->sampler.n_history)
        return;
    st->state = STREAM_LOGITS;
    st->step = step;
    st->row = row;
}

void stream_rollback(gm_stream *st) { st->session->length = cache_trim(st->session->cache, st->session->length); }

static const float *logits_of(const gm_stream *st) {
    return step_logits(st->step) + st->row * st->session->model->config.vocab;
}

/* ---- events ---- */
static void give_text(const gm_stream *st, gm_token *token) {
    token->text = st->out.text ? st->out.text : "";
    token->length = st->out.length;
}

/* The last event, without a token. */
static gm_status end(gm_stream *st, gm_finish finish, gm_token *token) {
    bool stopped;
    st->state = STREAM_DONE;
    GM_TRY(release_text(st, true, &stopped));
    st->stats.finish = token->finish = stopped ? GM_FINISH_STOP : finish;
    give_text(st, token);
    return GM_OK;
}

void stream_begin_event(gm_stream *st, gm_token *token) {
    *token = (gm_token){.id = -1, .logprob = NAN, .text = ""};
    st->out.length = 0;
}

static bool is_allowed(const uint32_t *allowed, int32_t id) { return !allowed || allowed[id / 32] >> (id % 32) & 1; }

/* Draws a token that is allowed from `logits`, or from the model's where these are NULL. */
static gm_status draw(gm_stream *st, const float *logits, const uint32_t *allowed) {
    int64_t drawn = st->stats.generated_tokens;
    const sample_limits limits = {allowed, st->stop_ids, is_short(st) ? st->n_stop_ids : 0};
    if (!logits && limits.n_forbidden == 0 && sampler_is_greedy(&st->sampler)) {
        const gm_row_best best = step_best(st->step, st->row);
        st->token = best.id;
        if (best.logit > -INFINITY && is_allowed(allowed, st->token))
            return GM_OK; /* else it is NaN, -inf or not allowed, which the sampler handles */
        if (!step_has_logits(st->step, st->row))
            return sampler_has_nothing(&st->sampler);
    }
    return sampler_draw(&st->sampler, logits ? logits : logits_of(st), (uint64_t)drawn, &limits, &st->token);
}

static gm_status take_token(gm_stream *st, const float *logits, const uint32_t *allowed, gm_token *token) {
    gm_session *s = st->session;
    int64_t started = clock_ns();
    bool stopped;
    GM_TRY(draw(st, logits, allowed));
    const gm_row_best best = step_best(st->step, st->row);
    const float logprob = (st->token == best.id ? best.logit : logits_of(st)[st->token]) - best.logsumexp;
    if (st->n_top)
        sampler_likeliest(logits_of(st), s->model->config.vocab, best.logsumexp, st->top, st->n_top);
    const int64_t ns = clock_ns() - started;
    account(st, (double)ns * 1e-9);
    if (st->profile) {
        phase(st)->sample_calls++;
        phase(st)->sample_ns += ns;
    }
    if (st->decodes)
        st->stats.decode_steps++;
    st->decodes = true;
    st->state = STREAM_ROWS;
    GM_TRY(sampler_accept(&st->sampler, &st->token, 1, false));
    for (size_t i = 0; i < st->n_stop_ids; i++)
        if (st->stop_ids[i] == st->token) {
            st->stats.stop_id = st->token;
            return end(st, GM_FINISH_STOP, token);
        }
    GM_TRY(session_put_ids(s, st->sampler.n_history - 1, &st->token, 1));
    st->stats.generated_tokens++;
    token->id = st->token;
    token->logprob = logprob;
    token->top = st->top;
    token->n_top = st->n_top;
    GM_TRY(release_text(st, false, &stopped));
    gm_finish finish = stopped                                                      ? GM_FINISH_STOP
                       : st->stats.generated_tokens == st->max_tokens               ? GM_FINISH_LENGTH
                       : is_full(st) && s->model->context_policy == GM_CONTEXT_STOP ? GM_FINISH_CONTEXT
                                                                                    : GM_FINISH_NONE;
    if (finish != GM_FINISH_NONE && !stopped) { /* text that was held back comes with the last token */
        GM_TRY(release_text(st, true, &stopped));
        if (stopped)
            finish = GM_FINISH_STOP;
    }
    if (finish != GM_FINISH_NONE)
        st->state = STREAM_DONE;
    st->stats.finish = token->finish = finish;
    give_text(st, token);
    return GM_OK;
}

gm_status stream_event(gm_stream *st, gm_token *token) {
    stream_begin_event(st, token);
    if (stream_is_over(st))
        return end(st, atomic_load(&st->cancelled) ? GM_FINISH_CANCELLED : GM_FINISH_TIMEOUT, token);
    if (st->hand_out) {
        st->state = STREAM_WAITING;
        return GM_LOGITS;
    }
    return st->max_tokens == 0 ? end(st, GM_FINISH_LENGTH, token) : take_token(st, NULL, NULL, token);
}

gm_status gm_stream_logits(const gm_stream *st, gm_pending_logits *out) {
    if (st->state != STREAM_WAITING)
        return gm_fail(GM_ESTATE, "stream: there are no logits before gm_stream_next gives GM_LOGITS");
    *out = (gm_pending_logits){st->sampler.history, (size_t)st->sampler.n_history, logits_of(st),
                               st->session->model->config.vocab};
    return GM_OK;
}

gm_array *gm_stream_activation(gm_scope *s, const gm_stream *st, size_t i) {
    gm_activation_info info;
    if (!st->taps || i >= (size_t)st->taps->n_reads)
        return gm_fail(GM_EINDEX, "stream: activation %zu was not requested", i), NULL;
    const gm_array *read = st->taps->read[i];
    if (!read || !st->step || st->state == STREAM_LOGITS)
        return gm_fail(GM_ESTATE, "stream: there are no activations before the first token"), NULL;
    if (!gm_model_activation(st->session->model, st->taps->reads[i], read->shape[0], &info))
        return NULL;
    return taps_value(s, read, &info);
}

gm_status gm_stream_sample(gm_stream *st, const float *logits, const uint32_t *allowed, gm_token *token) {
    stream_begin_event(st, token);
    if (st->state != STREAM_WAITING)
        return gm_fail(GM_ESTATE, "stream: there are no logits before gm_stream_next gives GM_LOGITS");
    gm_status status = st->max_tokens == 0 ? end(st, GM_FINISH_LENGTH, token) : take_token(st, logits, allowed, token);
    if (status != GM_OK)
        st->state = STREAM_DONE;
    return status;
}
