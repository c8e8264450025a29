/* stream.c - sessions, and the one decode loop: prefill in chunks, then one token a step.
 *  (1) session.tokens are the ids whose positions are in the cache; a run that is cut short leaves them as they were,
 *      and the next trim takes what it did out of the cache.
 *  (2) A session is used by one stream at a time; the stream says so with an atomic flag.
 *  (3) The last sampled token is not in the cache yet: the next step puts it there.
 *  (4) Logits become a token in gm_stream_sample, which gm_stream_next calls itself unless they are handed out first:
 *      whoever wants to change them answers GM_LOGITS, and nothing is ever called back. */
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "run/sample.h"
#include "run/step.h"

#define PREFILL_ROWS 512

struct gm_session {
    gm_model *model;
    gm_cache *cache;
    int32_t *tokens;
    _Atomic int64_t length;          /* other threads may ask while a stream runs */
    int64_t capacity;
    gm_step *decode;                 /* the plan of one row, made at the first decode step */
    _Atomic bool busy;
};

typedef struct { char *text; size_t length, capacity; } bytes;

struct gm_stream {
    gm_session *session;
    gm_tokenizer *tokenizer;
    gm_detokenizer *detokenizer;
    gm_sampler sampler;
    int32_t *prompt;
    int64_t n_prompt, max_tokens, min_tokens, next;   /* next: prompt tokens that are in the cache */
    int32_t *stop_ids;
    size_t n_stop_ids;
    bytes *stop_texts;
    size_t n_stop_texts;
    bytes held;                      /* text that may be the beginning of a stop text */
    bytes out;                       /* the text of the event being returned */
    gm_step *prefill;
    int32_t prefill_rows;
    bool prefill_last;
    int32_t token;                   /* sampled last */
    gm_logprob *top;
    int32_t n_top;
    bool have_logits;                /* the prompt's: from then on it decodes */
    bool hand_out, waiting;          /* logits are given out first; they wait for gm_stream_sample */
    gm_stream_stats stats;
    int64_t started;                 /* when the event under way was first asked for; 0: none is */
    bool done;
    _Atomic bool cancelled;
};

/* ---- sessions ---- */
gm_status gm_session_new(gm_model *m, gm_session **out) {
    *out = NULL;
    gm_session *s = memory_zeroed(sizeof *s);
    if (!s)
        return GM_ENOMEM;
    gm_status status = cache_new(&m->layout, &s->cache);
    if (status != GM_OK) {
        memory_free(s);
        return status;
    }
    s->model = gm_model_retain(m);
    *out = s;
    return GM_OK;
}

void gm_session_free(gm_session *s) {
    if (!s)
        return;
    step_free(s->decode);
    cache_free(s->cache);
    memory_free(s->tokens);
    gm_model_release(s->model);
    memory_free(s);
}

int64_t gm_session_length(const gm_session *s) { return s->length; }

gm_status gm_session_truncate(gm_session *s, int64_t length) {
    if (atomic_load(&s->busy))
        return gm_fail(GM_ESTATE, "session: a stream is using it");
    if (length < 0 || length > s->length)
        return gm_fail(GM_EVALUE, "session: cannot truncate %lld tokens to %lld", (long long)s->length,
                       (long long)length);
    s->length = cache_trim(s->cache, length);
    return GM_OK;
}

static gm_status session_append(gm_session *s, const int32_t *tokens, int64_t n) {
    if (s->length + n > s->capacity) {
        int64_t capacity = s->length + n + 256;
        int32_t *grown = memory_resize(s->tokens, (size_t)capacity * sizeof *grown);
        if (!grown)
            return error_code();
        s->tokens = grown;
        s->capacity = capacity;
    }
    memcpy(s->tokens + s->length, tokens, (size_t)n * sizeof *tokens);
    s->length += n;
    return GM_OK;
}

/* ---- text ---- */
static gm_status bytes_add(bytes *b, const char *text, size_t n) {
    if (b->length + n + 1 > b->capacity) {
        size_t capacity = 2 * (b->length + n) + 64;
        char *grown = memory_resize(b->text, capacity);
        if (!grown)
            return error_code();
        b->text = grown;
        b->capacity = capacity;
    }
    memcpy(b->text + b->length, text, n);
    b->length += n;
    return GM_OK;
}

/* The stop text within held text that ends first, the longest of those: wherever tokens end, it is the same one. True,
 * and held text ends before it. Else *keep is the length of the longest end that may still become one. The first `old`
 * bytes were searched before. */
static bool find_stop(gm_stream *st, size_t old, size_t *keep) {
    const bytes *held = &st->held;
    for (size_t end = old + 1; end <= held->length; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < st->n_stop_texts; i++) {
            const bytes *stop = &st->stop_texts[i];
            if (stop->length > longest && stop->length <= end
                && memcmp(held->text + end - stop->length, stop->text, stop->length) == 0) {
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
        const bytes *stop = &st->stop_texts[i];
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
    *o = (gm_generate_options){.max_tokens = -1};
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
    if (o->top_logprobs < 0 || o->top_logprobs > GM_MAX_LOGPROBS)
        return gm_fail(GM_EVALUE, "generate: top_logprobs is %d, expected 0 to %d", o->top_logprobs, GM_MAX_LOGPROBS);
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
        return gm_fail(GM_EVALUE, "stop texts need a tokenizer");
    for (size_t i = 0; i < o->n_stop_texts; i++) {
        if (!o->stop_texts[i][0])
            return gm_fail(GM_EVALUE, "a stop text is empty");
        GM_TRY(bytes_add(&st->stop_texts[st->n_stop_texts++], o->stop_texts[i], strlen(o->stop_texts[i])));
    }
    return GM_OK;
}

/* What comes out continues the prompt's text: a SentencePiece space is dropped at the start of a text only. */
static gm_status read_prompt(gm_detokenizer *d, const int32_t *prompt, size_t n) {
    const char *text;
    size_t length;
    for (size_t i = 0; i < n; i++)
        GM_TRY(gm_detokenizer_push(d, prompt[i], &text, &length));
    return GM_OK;
}

gm_status gm_stream_open(gm_session *s, gm_tokenizer *t, const int32_t *prompt, size_t n_prompt,
                         const gm_generate_options *o, gm_stream **out) {
    int64_t context = s->model->config.context, n = (int64_t)n_prompt, shared = 0;
    *out = NULL;
    if (n == 0)
        return gm_fail(GM_EVALUE, "generate: the prompt is empty; a model needs at least one token to go on from");
    if (n >= context)
        return gm_fail(GM_EVALUE, "generate: the prompt has %lld tokens and leaves no room in the context of %lld",
                       (long long)n, (long long)context);
    for (int64_t i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= s->model->config.vocab)
            return gm_fail(GM_EVALUE, "generate: token id %d is outside the vocabulary of %lld", prompt[i],
                           (long long)s->model->config.vocab);
    GM_TRY(check_options(o, s->model->config.vocab));
    if (atomic_exchange(&s->busy, true))
        return gm_fail(GM_ESTATE, "session: another stream is using it");
    gm_stream *st = memory_zeroed(sizeof *st);
    gm_status status = st && (st->prompt = memory_array(n_prompt, sizeof *prompt)) ? GM_OK : GM_ENOMEM;
    if (!st) {
        atomic_store(&s->busy, false);
        return status;
    }
    st->session = s;
    if (t)
        st->tokenizer = gm_tokenizer_retain(t);
    if (status == GM_OK)
        status = sampler_init(&st->sampler, &o->sampling, s->model->config.vocab);
    if (status == GM_OK)
        status = sampler_saw(&st->sampler, prompt, n, true);
    if (status == GM_OK && o->top_logprobs) {
        st->n_top = o->top_logprobs < s->model->config.vocab ? o->top_logprobs : (int32_t)s->model->config.vocab;
        st->top = memory_array((size_t)st->n_top, sizeof *st->top);
        status = st->top ? GM_OK : GM_ENOMEM;
    }
    if (status == GM_OK)
        status = copy_stops(st, o);
    if (status == GM_OK && t)
        status = gm_detokenizer_new(t, true, &st->detokenizer);
    if (status == GM_OK && t)
        status = read_prompt(st->detokenizer, prompt, n_prompt);
    if (status != GM_OK) {
        gm_stream_free(st);
        return status;
    }
    memcpy(st->prompt, prompt, n_prompt * sizeof *prompt);
    st->n_prompt = n;
    st->max_tokens = o->max_tokens;
    st->min_tokens = o->min_tokens;
    st->hand_out = o->hand_out_logits;
    while (shared < s->length && shared < n - 1 &&
           s->tokens[shared] == prompt[shared])   /* the last one runs again: its logits are needed */
        shared++;
    s->length = st->next = shared = cache_trim(s->cache, shared);
    st->stats = (gm_stream_stats){.prompt_tokens = n, .cached_tokens = shared, .stop_id = -1, .stop_text = -1};
    *out = st;
    return GM_OK;
}

void gm_stream_free(gm_stream *st) {
    if (!st)
        return;
    step_free(st->prefill);
    step_abandon(st->session->decode);
    gm_detokenizer_free(st->detokenizer);
    gm_tokenizer_release(st->tokenizer);
    sampler_clear(&st->sampler);
    for (size_t i = 0; i < st->n_stop_texts; i++)
        memory_free(st->stop_texts[i].text);
    memory_free(st->stop_texts);
    memory_free(st->stop_ids);
    memory_free(st->held.text);
    memory_free(st->out.text);
    memory_free(st->prompt);
    memory_free(st->top);
    atomic_store(&st->session->busy, false);
    memory_free(st);
}

void gm_stream_cancel(gm_stream *st) { atomic_store(&st->cancelled, true); }
gm_stream_stats gm_stream_get_stats(const gm_stream *st) { return st->stats; }

static gm_status drop_failed(gm_step **step, gm_status status) {
    if (status != GM_AGAIN) {
        step_free(*step);
        *step = NULL;
    }
    return status;
}

/* One chunk of the prompt at a time; the plan is kept while chunks have the same number of rows. */
static gm_status run_prefill(gm_stream *st, int slice_ms) {
    gm_session *s = st->session;
    while (st->next < st->n_prompt) {
        if (atomic_load(&st->cancelled) && !step_is_running(st->prefill))
            return GM_ECANCELLED;
        int64_t left = st->n_prompt - st->next;
        int32_t rows = left < PREFILL_ROWS ? (int32_t)left : PREFILL_ROWS;
        bool last = rows == left;
        if (!st->prefill || st->prefill_rows != rows || st->prefill_last != last) {
            step_free(st->prefill);
            st->prefill = NULL;
            GM_TRY(step_new(s->model, &rows, 1, last ? STEP_LAST : STEP_NONE, &st->prefill));
            st->prefill_rows = rows;
            st->prefill_last = last;
        }
        if (!step_is_running(st->prefill))
            GM_TRY(step_fill(st->prefill, 0, s->cache, st->prompt + st->next, st->next));
        gm_status status = step_run(st->prefill, slice_ms, &st->cancelled);
        if (status != GM_OK)
            return drop_failed(&st->prefill, status);
        if (atomic_load(&st->cancelled))
            return GM_ECANCELLED;
        GM_TRY(session_append(s, st->prompt + st->next, rows));
        st->next += rows;
    }
    return GM_OK;
}

static gm_status run_decode(gm_stream *st, int slice_ms) {
    gm_session *s = st->session;
    if (!step_is_running(s->decode)) {
        if (atomic_load(&st->cancelled))
            return GM_ECANCELLED;
        if (!s->decode)
            GM_TRY(step_new(s->model, &(int32_t){1}, 1, STEP_ALL, &s->decode));
        GM_TRY(step_fill(s->decode, 0, s->cache, &st->token, s->length));
    }
    gm_status status = step_run(s->decode, slice_ms, &st->cancelled);
    if (status != GM_OK)
        return drop_failed(&s->decode, status);
    if (atomic_load(&st->cancelled))
        return GM_ECANCELLED;
    return session_append(s, &st->token, 1);
}

static void give_text(const gm_stream *st, gm_token *token) {
    token->text = st->out.text ? st->out.text : "";
    token->length = st->out.length;
}

/* The last event, with no token of its own. */
static gm_status end(gm_stream *st, gm_finish finish, gm_token *token) {
    bool stopped;
    st->done = true;
    GM_TRY(release_text(st, true, &stopped));
    st->stats.finish = token->finish = stopped ? GM_FINISH_STOP : finish;
    give_text(st, token);
    return GM_OK;
}

/* The time since the last call that had nothing to do belongs to prefill or decode; until the next call it is the
 * caller's. */
static void account(gm_stream *st) {
    double seconds = (double)(clock_ns() - st->started) * 1e-9;
    *(st->have_logits ? &st->stats.decode_seconds : &st->stats.prefill_seconds) += seconds;
    st->started = 0;
}

static gm_step *step_of(const gm_stream *st) { return st->have_logits ? st->session->decode : st->prefill; }

static void begin_event(gm_stream *st, gm_token *token) {
    *token = (gm_token){.id = -1, .logprob = NAN, .text = ""};
    st->out.length = 0;
    if (!st->started)
        st->started = clock_ns();
}

/* From logits that the stream computed, or others in their place (not NULL). */
static gm_status draw(gm_stream *st, const float *logits) {
    const gm_step *step = step_of(st);
    int64_t drawn = st->stats.generated_tokens;
    size_t n_forbidden = drawn < st->min_tokens ? st->n_stop_ids : 0;
    if (!logits && n_forbidden == 0 && sampler_is_greedy(&st->sampler)) {
        st->token = (int32_t)step_argmax(step)[0];
        if (step_logits(step)[st->token] > -INFINITY)    /* else it is not a number: the sampler tells what to do */
            return GM_OK;
    }
    return sampler_draw(&st->sampler, logits ? logits : step_logits(step), (uint64_t)drawn, st->stop_ids, n_forbidden,
                        &st->token);
}

static gm_status take_token(gm_stream *st, const float *logits, gm_token *token) {
    gm_session *s = st->session;
    bool stopped;
    st->waiting = false;
    GM_TRY(draw(st, logits));
    const gm_step *step = step_of(st);
    float logsumexp = step_logsumexp(step)[0], logprob = step_logits(step)[st->token] - logsumexp;
    if (st->n_top)
        sampler_likeliest(step_logits(step), s->model->config.vocab, logsumexp, st->top, st->n_top);
    account(st);
    if (st->have_logits)
        st->stats.decode_steps++;
    st->have_logits = true;
    step_free(st->prefill);
    st->prefill = NULL;
    GM_TRY(sampler_saw(&st->sampler, &st->token, 1, false));
    for (size_t i = 0; i < st->n_stop_ids; i++)
        if (st->stop_ids[i] == st->token) {
            st->stats.stop_id = st->token;
            return end(st, GM_FINISH_STOP, token);
        }
    st->stats.generated_tokens++;
    token->id = st->token;
    token->logprob = logprob;
    token->top = st->top;
    token->n_top = st->n_top;
    GM_TRY(release_text(st, false, &stopped));
    gm_finish finish = stopped ? GM_FINISH_STOP : st->stats.generated_tokens == st->max_tokens ? GM_FINISH_LENGTH
                       : s->length + 1 >= s->model->config.context                             ? GM_FINISH_CONTEXT
                                                                                               : GM_FINISH_NONE;
    if (finish != GM_FINISH_NONE && !stopped) {      /* what was held back comes with the last token */
        GM_TRY(release_text(st, true, &stopped));
        if (stopped)
            finish = GM_FINISH_STOP;
    }
    st->done = finish != GM_FINISH_NONE;
    st->stats.finish = token->finish = finish;
    give_text(st, token);
    return GM_OK;
}

gm_status gm_stream_next(gm_stream *st, int slice_ms, gm_token *token) {
    begin_event(st, token);
    if (st->done)
        return GM_END;
    if (st->waiting)
        return gm_fail(GM_ESTATE, "stream: its logits wait for gm_stream_sample");
    gm_status status = st->have_logits ? run_decode(st, slice_ms) : run_prefill(st, slice_ms);
    if (status == GM_ECANCELLED)
        return end(st, GM_FINISH_CANCELLED, token);
    if (status != GM_OK)
        return status;
    if (st->max_tokens == 0) {
        account(st);
        return end(st, GM_FINISH_LENGTH, token);
    }
    if (!st->hand_out)
        return take_token(st, NULL, token);
    account(st);
    st->waiting = true;
    return GM_LOGITS;
}

gm_status gm_stream_logits(const gm_stream *st, gm_pending_logits *out) {
    if (!st->waiting)
        return gm_fail(GM_ESTATE, "stream: there are no logits before gm_stream_next gives GM_LOGITS");
    *out = (gm_pending_logits){st->sampler.history, (size_t)st->sampler.n_history, step_logits(step_of(st)),
                               st->session->model->config.vocab};
    return GM_OK;
}

gm_status gm_stream_sample(gm_stream *st, const float *logits, gm_token *token) {
    begin_event(st, token);
    if (!st->waiting)
        return gm_fail(GM_ESTATE, "stream: there are no logits before gm_stream_next gives GM_LOGITS");
    return take_token(st, logits, token);
}
