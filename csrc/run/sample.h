/* sample.h - logits become one id: biases, what is forbidden, a chain of samplers as data, a draw.
 *  (1) A sampler belongs to one sequence and knows its ids; it has no other state.
 *  (2) After sampler_init the options' arrays are the sampler's own.
 *  (3) Each stage (filter.c, penalty.c) changes logits of the candidates or drops some, never all. */
#ifndef GOMLX_RUN_SAMPLE_H
#define GOMLX_RUN_SAMPLE_H
#include "run/candidates.h"

/* How often each id is in a window of the history that ends at its end. */
typedef struct {
    int32_t *counts;
    int64_t begin;
} sample_tally;

typedef struct {
    gm_sampling options;
    gm_sampler_kind chain[GM_SAMPLER_KINDS]; /* those that do something, in order */
    int n_chain;
    int64_t vocab;
    int32_t *history; /* prompt and output */
    int64_t n_history;
    size_t history_capacity;
    sample_tally repeated, counted; /* for the repetition penalty; for frequency and presence */
    int32_t *seen, n_seen;          /* what a tally has counted, each id once */
    uint8_t *is_seen;               /* [vocab] */
    int32_t *dry_lengths;           /* [vocab], zero between draws */
    uint8_t *dry_breaks;            /* [vocab], 1: the id alone is a breaker */
    int32_t *matches;               /* dry's work: as long as the history */
    size_t matches_capacity;
    gm_candidate_list candidates;
    float surprise_limit; /* mirostat's mu, in bits */
} gm_sampler;

/* ---- sample.c ---- */
gm_status sampler_init(gm_sampler *s, const gm_sampling *o, int64_t vocab, int threads);
void sampler_clear(gm_sampler *s);
gm_status sampler_accept(gm_sampler *s, const int32_t *ids, int64_t n, bool prompt); /* appends to the history */
bool sampler_is_greedy(const gm_sampler *s); /* the first greatest logit, nothing else */
/* What a draw is limited to: ids whose bits are set (NULL: all), without the forbidden ones. */
typedef struct {
    const uint32_t *allowed; /* [(vocab + 31) / 32] */
    const int32_t *forbidden;
    size_t n_forbidden;
} sample_limits;
/* The id of draw number `step`: the same logits, history, options, limits and step give the same id. GM_EVALUE when no
 * id is left. */
gm_status sampler_draw(gm_sampler *s, const float *logits, uint64_t step, const sample_limits *limits, int32_t *id);
gm_status sampler_has_nothing(const gm_sampler *s); /* GM_EVALUE: no logit is more than -inf */
/* The k ids with the greatest logits, ties to the lowest id, best first, and their logarithms of probability. */
void sampler_likeliest(const float *logits, int64_t vocab, float logsumexp, gm_logprob *top, int32_t k);

/* ---- filter.c: which candidates stay ---- */
void filter_temperature(gm_sampler *s);
void filter_top_k(gm_sampler *s);
void filter_top_p(gm_sampler *s);
void filter_min_p(gm_sampler *s);
void filter_typical_p(gm_sampler *s);
void filter_top_n_sigma(gm_sampler *s);
void filter_xtc(gm_sampler *s, double uniform);
void filter_mirostat(gm_sampler *s);

/* ---- penalty.c: what depends on the ids so far ---- */
gm_status penalty_reserve(gm_sampler *s);                       /* memory for the tallies and dry, where they are on */
void penalty_accept(gm_sampler *s, int64_t first, bool prompt); /* history from first on is new */
void penalty_apply(gm_sampler *s);
gm_status penalty_dry(gm_sampler *s);
void penalty_forbid(gm_sampler *s, int32_t id); /* in a draw: its logit is -inf */
void penalty_ban(gm_sampler *s);                /* bad words and suppressed ids: -inf */
#endif
