/* sample.c - see sample.h: the options, the chain, the draw. */
#include "run/sample.h"
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/grow.h"
#include "base/memory.h"
#include "core/graph.h"

/* ---- options ---- */
static const char *const names[GM_SAMPLER_KINDS] = {
    [GM_SAMPLER_PENALTIES] = "penalties",
    [GM_SAMPLER_DRY] = "dry",
    [GM_SAMPLER_TOP_N_SIGMA] = "top_n_sigma",
    [GM_SAMPLER_TEMPERATURE] = "temperature",
    [GM_SAMPLER_TOP_K] = "top_k",
    [GM_SAMPLER_TOP_P] = "top_p",
    [GM_SAMPLER_MIN_P] = "min_p",
    [GM_SAMPLER_TYPICAL_P] = "typical_p",
    [GM_SAMPLER_XTC] = "xtc",
    [GM_SAMPLER_MIROSTAT] = "mirostat",
};

const char *gm_sampler_name(gm_sampler_kind kind) { return names[kind]; }

void gm_sampling_defaults(gm_sampling *o) {
    *o = (gm_sampling){
        .top_p = 1,
        .typical_p = 1,
        .xtc_threshold = 0.1f,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_last_n = -1,
        .mirostat_eta = 0.1f,
        .repetition_penalty = 1,
        .penalty_last_n = -1,
        .repetition_of_prompt = true,
    };
}

typedef struct {
    const char *name, *expected;
    float value, low, high;
    bool open;
} range; /* open: low is outside */

static gm_status check_numbers(const gm_sampling *o) {
    const float most = 3e38f;
    const range ranges[] = {
        {"temperature", "0 or more", o->temperature, 0, most, false},
        {"top_p", "more than 0 and up to 1", o->top_p, 0, 1, true},
        {"min_p", "0 to 1", o->min_p, 0, 1, false},
        {"typical_p", "more than 0 and up to 1", o->typical_p, 0, 1, true},
        {"top_n_sigma", "0 (off) or more", o->top_n_sigma, 0, most, false},
        {"xtc_probability", "0 to 1", o->xtc_probability, 0, 1, false},
        {"xtc_threshold", "more than 0 and up to 0.5 (more have no two tokens)", o->xtc_threshold, 0, 0.5f, true},
        {"dry_multiplier", "0 (off) or more", o->dry_multiplier, 0, most, false},
        {"dry_base", "1 or more", o->dry_base, 1, most, false},
        {"mirostat_tau", "0 (off) or more", o->mirostat_tau, 0, most, false},
        {"mirostat_eta", "0 or more", o->mirostat_eta, 0, most, false},
        {"repetition_penalty", "more than 0", o->repetition_penalty, 0, most, true},
        {"frequency_penalty", "a number", o->frequency_penalty, -most, most, false},
        {"presence_penalty", "a number", o->presence_penalty, -most, most, false},
        {"top_k", "0 (off) or more", (float)o->top_k, 0, most, false},
        {"dry_allowed_length", "1 or more", (float)o->dry_allowed_length, 1, most, false},
        {"dry_last_n", "-1 (all), 0 (off) or more", (float)o->dry_last_n, -1, most, false},
        {"penalty_last_n", "-1 (all), 0 (off) or more", (float)o->penalty_last_n, -1, most, false},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const range *r = &ranges[i];
        if (!(r->value >= r->low && r->value <= r->high && (r->value > r->low || !r->open)))
            return gm_fail(GM_EVALUE, "%s is %g, expected %s", r->name, (double)r->value, r->expected);
    }
    return GM_OK;
}

static gm_status check_ids(const char *what, const int32_t *ids, size_t n, int64_t vocab) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return gm_fail(GM_EVALUE, "%s: token id %d is outside the vocabulary of %lld", what, ids[i],
                           (long long)vocab);
    return GM_OK;
}

static size_t ids_of(const gm_sequences *q) {
    size_t total = 0;
    for (size_t i = 0; i < q->n; i++)
        total += q->lengths[i];
    return total;
}

static gm_status check_sequences(const char *what, const gm_sequences *q, int64_t vocab) {
    for (size_t i = 0; i < q->n; i++)
        if (q->lengths[i] == 0)
            return gm_fail(GM_EVALUE, "%s: a sequence without a token", what);
    return check_ids(what, q->ids, ids_of(q), vocab);
}

static gm_status check_lists(const gm_sampling *o, int64_t vocab) {
    GM_TRY(check_ids("logit_bias", o->bias_ids, o->n_biases, vocab));
    for (size_t i = 0; i < o->n_biases; i++)
        if (isnan(o->biases[i]))
            return gm_fail(GM_EVALUE, "logit_bias: the bias of token %d is not a number", o->bias_ids[i]);
    GM_TRY(check_ids("suppress_tokens", o->suppressed, o->n_suppressed, vocab));
    GM_TRY(check_sequences("bad_words", &o->bad_words, vocab));
    return check_sequences("dry_breakers", &o->dry_breakers, vocab);
}

/* ---- the chain ---- */
static bool is_on(const gm_sampling *o, gm_sampler_kind kind) {
    switch (kind) {
    case GM_SAMPLER_PENALTIES:
        return o->penalty_last_n != 0 &&
               (o->repetition_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0);
    case GM_SAMPLER_DRY: return o->dry_multiplier > 0 && o->dry_last_n != 0;
    case GM_SAMPLER_TOP_N_SIGMA: return o->top_n_sigma > 0;
    case GM_SAMPLER_TEMPERATURE: return o->temperature != 1;
    case GM_SAMPLER_TOP_K: return o->top_k > 0;
    case GM_SAMPLER_TOP_P: return o->top_p < 1;
    case GM_SAMPLER_MIN_P: return o->min_p > 0;
    case GM_SAMPLER_TYPICAL_P: return o->typical_p < 1;
    case GM_SAMPLER_XTC: return o->xtc_probability > 0;
    case GM_SAMPLER_MIROSTAT: return o->mirostat_tau > 0;
    case GM_SAMPLER_KINDS: break;
    }
    return false;
}

static gm_status make_chain(gm_sampler *s, const gm_sampling *o) {
    bool named[GM_SAMPLER_KINDS] = {false};
    size_t n = o->order ? o->n_order : GM_SAMPLER_KINDS;
    for (size_t i = 0; i < n; i++) {
        gm_sampler_kind kind = o->order ? o->order[i] : (gm_sampler_kind)i;
        if (named[kind])
            return gm_fail(GM_EVALUE, "samplers: %s is listed twice", names[kind]);
        named[kind] = true;
        if (kind == GM_SAMPLER_MIROSTAT && i + 1 < n && is_on(o, kind))
            return gm_fail(GM_EVALUE, "samplers: mirostat must be the last one, as it looks at what is drawn");
        /* Greedy is the likeliest after penalties: the rest would change nothing, or what greedy means. */
        if (is_on(o, kind) && (o->temperature > 0 || kind <= GM_SAMPLER_DRY))
            s->chain[s->n_chain++] = kind;
    }
    for (int kind = 0; kind < GM_SAMPLER_KINDS; kind++)
        if (!named[kind] && is_on(o, (gm_sampler_kind)kind) && !(kind == GM_SAMPLER_TEMPERATURE && o->temperature == 0))
            return gm_fail(GM_EVALUE,
                           "samplers: %s is set, but it is not in the given order; add it there or leave it unset",
                           names[kind]);
    return GM_OK;
}

/* ---- making and freeing ---- */
static bool copy_ids(const int32_t **ids, size_t n) {
    int32_t *copy = memory_array(n + 1, sizeof *copy);
    if (copy && n)
        memcpy(copy, *ids, n * sizeof *copy);
    *ids = copy;
    return copy != NULL;
}

static bool copy_sequences(gm_sequences *q) {
    size_t *lengths = memory_array(q->n + 1, sizeof *lengths);
    bool ok = copy_ids(&q->ids, ids_of(q)) && lengths;
    if (lengths && q->n)
        memcpy(lengths, q->lengths, q->n * sizeof *lengths);
    q->lengths = lengths;
    return ok;
}

/* Each pointer of the options becomes the sampler's own, or NULL. */
static gm_status own_options(gm_sampler *s, const gm_sampling *o) {
    gm_sampling *own = &s->options;
    float *biases = memory_array(o->n_biases + 1, sizeof *biases);
    *own = *o;
    own->order = NULL;
    if (biases && o->n_biases)
        memcpy(biases, o->biases, o->n_biases * sizeof *biases);
    own->biases = biases;
    bool ok = biases != NULL;
    ok = copy_ids(&own->bias_ids, o->n_biases) && ok;
    ok = copy_ids(&own->suppressed, o->n_suppressed) && ok;
    ok = copy_sequences(&own->bad_words) && ok;
    ok = copy_sequences(&own->dry_breakers) && ok;
    return ok ? GM_OK : GM_ENOMEM;
}

gm_status sampler_init(gm_sampler *s, const gm_sampling *o, int64_t vocab, int threads) {
    memset(s, 0, sizeof *s);
    s->candidates.threads = threads;
    s->vocab = vocab;
    s->surprise_limit = 2 * o->mirostat_tau;
    GM_TRY(check_numbers(o));
    GM_TRY(check_lists(o, vocab));
    GM_TRY(make_chain(s, o));
    gm_status status = own_options(s, o);
    if (status == GM_OK)
        status = penalty_reserve(s);
    if (status != GM_OK)
        sampler_clear(s);
    return status;
}

void sampler_clear(gm_sampler *s) {
    void *const owned[] = {
        (void *)(uintptr_t)s->options.bias_ids,
        (void *)(uintptr_t)s->options.biases,
        (void *)(uintptr_t)s->options.suppressed,
        (void *)(uintptr_t)s->options.bad_words.ids,
        (void *)(uintptr_t)s->options.bad_words.lengths,
        (void *)(uintptr_t)s->options.dry_breakers.ids,
        (void *)(uintptr_t)s->options.dry_breakers.lengths,
        s->history,
        s->repeated.counts,
        s->counted.counts,
        s->dry_lengths,
        s->dry_breaks,
        s->matches,
        s->seen,
        s->is_seen,
    };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        memory_free(owned[i]);
    candidates_free(&s->candidates);
    memset(s, 0, sizeof *s);
}

gm_status sampler_accept(gm_sampler *s, const int32_t *ids, int64_t n, bool prompt) {
    GM_TRY(grow_array(&s->history, (size_t)s->n_history, &s->history_capacity, (size_t)n, sizeof *s->history));
    if (n)
        memcpy(s->history + s->n_history, ids, (size_t)n * sizeof *ids);
    s->n_history += n;
    penalty_accept(s, s->n_history - n, prompt);
    return GM_OK;
}

bool sampler_is_greedy(const gm_sampler *s) {
    return s->options.temperature == 0 && s->n_chain == 0 && s->options.n_biases == 0 && s->options.n_suppressed == 0 &&
           s->options.bad_words.n == 0;
}

/* ---- drawing ---- */
/* Uniform in [0, 1), from (seed, step): two rounds of the splitmix64 finaliser (Steele, Lea and Flood, 2014). */
static double uniform(uint64_t seed, uint64_t step) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + step;
    for (int round = 0; round < 2; round++) {
        x += 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

/* What is allowed, biases, and what is forbidden. */
static gm_status adjust(gm_sampler *s, const sample_limits *limits) {
    const gm_sampling *o = &s->options;
    if (limits->allowed && candidates_allow(&s->candidates, limits->allowed) == 0)
        return gm_fail(GM_EVALUE, "no token is left to draw: the mask allows none of %lld", (long long)s->vocab);
    if (!o->n_biases && !o->n_suppressed && !o->bad_words.n && !limits->n_forbidden)
        return GM_OK;
    candidates_take(&s->candidates);
    for (size_t i = 0; i < o->n_biases; i++) {
        float *logit = candidates_at(&s->candidates, o->bias_ids[i]);
        if (logit)
            *logit += o->biases[i];
    }
    penalty_ban(s);
    for (size_t i = 0; i < limits->n_forbidden; i++)
        penalty_forbid(s, limits->forbidden[i]);
    candidates_changed(&s->candidates);
    return GM_OK;
}

static gm_status run_chain(gm_sampler *s, uint64_t step) {
    for (int i = 0; i < s->n_chain; i++) {
        switch (s->chain[i]) {
        case GM_SAMPLER_PENALTIES: penalty_apply(s); break;
        case GM_SAMPLER_DRY: GM_TRY(penalty_dry(s)); break;
        case GM_SAMPLER_TOP_N_SIGMA: filter_top_n_sigma(s); break;
        case GM_SAMPLER_TEMPERATURE: filter_temperature(s); break;
        case GM_SAMPLER_TOP_K: filter_top_k(s); break;
        case GM_SAMPLER_TOP_P: filter_top_p(s); break;
        case GM_SAMPLER_MIN_P: filter_min_p(s); break;
        case GM_SAMPLER_TYPICAL_P: filter_typical_p(s); break;
        case GM_SAMPLER_XTC: filter_xtc(s, uniform(~s->options.seed, step)); break;
        case GM_SAMPLER_MIROSTAT: filter_mirostat(s); break;
        case GM_SAMPLER_KINDS: break;
        }
    }
    return GM_OK;
}

gm_status sampler_has_nothing(const gm_sampler *s) {
    return gm_fail(GM_EVALUE, "no token is left to draw: all %lld logits are forbidden, -inf or not numbers",
                   (long long)s->vocab);
}

/* One of the candidates that the chain left, by their weights; greedy: the best. */
static gm_status pick(gm_sampler *s, uint64_t step, int32_t *id) {
    if (s->options.temperature == 0) {
        *id = candidates_first_best(&s->candidates);
        return *id < 0 ? sampler_has_nothing(s) : GM_OK;
    }
    const double total = candidates_weigh(&s->candidates, NULL);
    float weight;
    if (!(total > 0))
        return sampler_has_nothing(s);
    *id = candidates_reach(&s->candidates, uniform(s->options.seed, step) * total, &weight);
    if (s->options.mirostat_tau > 0) {
        const double surprise = log2(total / (double)weight);
        s->surprise_limit -= s->options.mirostat_eta * ((float)surprise - s->options.mirostat_tau);
    }
    return GM_OK;
}

gm_status sampler_draw(gm_sampler *s, const float *logits, uint64_t step, const sample_limits *limits, int32_t *id) {
    GM_TRY(candidates_reserve(&s->candidates, s->vocab));
    candidates_begin(&s->candidates, logits);
    gm_status status = adjust(s, limits);
    if (status == GM_OK)
        status = run_chain(s, step);
    if (status == GM_OK)
        status = pick(s, step, id);
    candidates_end(&s->candidates);
    return status;
}

void sampler_likeliest(const float *logits, int64_t vocab, float logsumexp, gm_logprob *top, int32_t k) {
    int32_t n = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || (n == k && !(logits[i] > top[n - 1].logprob)))
            continue;
        int32_t at = n < k ? n++ : k - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (gm_logprob){(int32_t)i, logits[i]};
    }
    for (int32_t i = 0; i < n; i++)
        top[i].logprob -= logsumexp;
    for (int32_t i = n; i < k; i++)
        top[i] = (gm_logprob){-1, NAN};
}

/* ---- without a model ---- */
static gm_status open_for(gm_sampler *s, const gm_sampling *o, const gm_draw *d) {
    if (d->vocab < 1 || d->vocab > INT32_MAX)
        return gm_fail(GM_EVALUE, "sample: got %lld logits, expected 1 to 2^31 - 1", (long long)d->vocab);
    if (d->n_prompt > d->n_ids)
        return gm_fail(GM_EVALUE, "sample: n_prompt is %zu, expected at most the number of ids, %zu", d->n_prompt,
                       d->n_ids);
    GM_TRY(check_ids("sample", d->ids, d->n_ids, d->vocab));
    GM_TRY(sampler_init(s, o, d->vocab, engine_threads()));
    gm_status status = sampler_accept(s, d->ids, (int64_t)d->n_prompt, true);
    if (status == GM_OK)
        status = sampler_accept(s, d->ids + d->n_prompt, (int64_t)(d->n_ids - d->n_prompt), false);
    if (status != GM_OK)
        sampler_clear(s);
    return status;
}

gm_status gm_sample(const gm_sampling *o, const gm_draw *d, int32_t *out, size_t n) {
    gm_sampler s;
    const sample_limits limits = {.allowed = d->allowed};
    GM_TRY(open_for(&s, o, d));
    gm_status status = GM_OK;
    for (size_t i = 0; i < n && status == GM_OK; i++)
        status = sampler_draw(&s, d->logits, d->step + i, &limits, &out[i]);
    sampler_clear(&s);
    return status;
}

static gm_status spread(gm_sampler *s, const gm_draw *d, float *out) {
    GM_TRY(candidates_reserve(&s->candidates, s->vocab));
    candidates_begin(&s->candidates, d->logits);
    gm_status status = adjust(s, &(sample_limits){.allowed = d->allowed});
    if (status == GM_OK)
        status = run_chain(s, d->step);
    const double total = status == GM_OK ? candidates_weigh(&s->candidates, NULL) : 0;
    if (status == GM_OK && !(total > 0))
        status = sampler_has_nothing(s);
    if (status == GM_OK && s->options.temperature == 0) {
        memset(out, 0, (size_t)s->vocab * sizeof *out);
        out[candidates_first_best(&s->candidates)] = 1;
    } else if (status == GM_OK) {
        candidates_spread(&s->candidates, total, out);
    }
    candidates_end(&s->candidates);
    return status;
}

gm_status gm_sample_probabilities(const gm_sampling *o, const gm_draw *d, float *out) {
    gm_sampler s;
    GM_TRY(open_for(&s, o, d));
    gm_status status = spread(&s, d, out);
    sampler_clear(&s);
    return status;
}
