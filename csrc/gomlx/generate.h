/* generate.h - from logits to tokens: sampling, sessions, streams, decoders, scoring: a chapter of gomlx.h. */
#ifndef GOMLX_GENERATE_H
#define GOMLX_GENERATE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/model.h"

/* ---- sampling (csrc/run/sample.c): logits become one id ----
 * First what is allowed, then the biases, what is forbidden, the samplers in their order, then the draw. */
/* In the default order, which is that of transformers; what it does not have stands where llama.cpp has it. */
typedef enum {
    GM_SAMPLER_PENALTIES, /* repetition, frequency and presence */
    GM_SAMPLER_DRY,
    GM_SAMPLER_TOP_N_SIGMA,
    GM_SAMPLER_TEMPERATURE,
    GM_SAMPLER_TOP_K,
    GM_SAMPLER_TOP_P,
    GM_SAMPLER_MIN_P,
    GM_SAMPLER_TYPICAL_P,
    GM_SAMPLER_XTC,
    GM_SAMPLER_MIROSTAT, /* only as the last one */
    GM_SAMPLER_KINDS,
} gm_sampler_kind;
const char *gm_sampler_name(gm_sampler_kind kind); /* "top_k" */
typedef struct {
    const int32_t *ids;
    const size_t *lengths;
    size_t n;
} gm_sequences; /* ids one after another */
typedef struct {
    const gm_sampler_kind *order;
    size_t n_order;     /* NULL: all in the default order; what is set must be in it */
    float temperature;  /* 0: greedy, ties to the lowest id, after penalties; the other samplers do nothing */
    int32_t top_k;      /* 0: off */
    float top_p, min_p; /* 1 and 0: off */
    float typical_p;    /* 1: off */
    float top_n_sigma;  /* 0: off */
    float xtc_probability, xtc_threshold;   /* 0: off */
    float dry_multiplier, dry_base;         /* 0: off */
    int32_t dry_allowed_length, dry_last_n; /* last ids looked at; 0: off, -1: all */
    gm_sequences dry_breakers;
    float mirostat_tau, mirostat_eta;          /* 0: off */
    float repetition_penalty;                  /* 1: off */
    float frequency_penalty, presence_penalty; /* 0: off */
    int32_t penalty_last_n;                    /* the last ids that the penalties look at; 0: off, -1: all */
    bool repetition_of_prompt;                 /* the repetition penalty looks at the prompt too */
    bool counts_of_prompt;                     /* the other two as well */
    const int32_t *bias_ids;
    const float *biases;
    size_t n_biases;        /* added to the logits */
    gm_sequences bad_words; /* a sequence's last id is forbidden after the others */
    const int32_t *suppressed;
    size_t n_suppressed; /* forbidden ids */
    uint64_t seed;
} gm_sampling;
void gm_sampling_defaults(gm_sampling *o); /* greedy, nothing on */
/* What draw number `step` of a sequence is made from: logits, float32 [vocab], and the ids so far, the first n_prompt
 * of which are the prompt's. */
typedef struct {
    const float *logits;
    int64_t vocab;
    const int32_t *ids;
    size_t n_ids, n_prompt;
    uint64_t step;
    const uint32_t *allowed; /* NULL: all; as in gm_stream_sample */
} gm_draw;
/* n draws from d->step on, each from these logits. The ids are not appended; mirostat learns from draw to draw.
 * GM_EVALUE when no token is left. */
gm_status gm_sample(const gm_sampling *o, const gm_draw *d, int32_t *out, size_t n);
/* The distribution that the draw is made from: out float32 [vocab]. With temperature 0, 1 for one id. */
gm_status gm_sample_probabilities(const gm_sampling *o, const gm_draw *d, float *out);

/* ---- sessions and streams (csrc/run): the one decode loop ---- */
/* A session is one sequence: its ids, and a cache that holds the first of them. Used by one stream at a time (else
 * GM_ESTATE). */
typedef struct gm_session gm_session;
gm_status gm_session_new(gm_model *m, gm_session **out);
void gm_session_free(gm_session *s);            /* NULL is fine */
int64_t gm_session_length(const gm_session *s); /* ids that are in the cache */
/* All ids: the prompts and the output of its streams, without stop ids. The last ones may not be in the cache: a
 * sampled token is computed together with the next one. Borrowed until the session is used. */
const int32_t *gm_session_ids(const gm_session *s, size_t *n);
/* What its keys were computed with; borrowed until the session is used. */
const gm_adapter_use *gm_session_adapters(const gm_session *s, size_t *n);
/* Drops the ids from `length` on. The cache may keep fewer (gm_session_length): recurrent layers fall back to their
 * last checkpoint, sliding windows to a position whose keys are all there. What is missing is computed again. */
gm_status gm_session_truncate(gm_session *s, int64_t length);
/* A copy of the sequence. Nothing is copied until either is extended (copy-on-write). */
gm_status gm_session_fork(gm_session *s, gm_session **out);
gm_status gm_session_bytes(gm_session *s,
                           int64_t *bytes); /* memory that it holds; shared with forks: counted in each */
/* Memory that several hold, of any models; what they share counts once. */
gm_status gm_sessions_bytes(gm_session *const *sessions, size_t n, int64_t *bytes);
/* The session as bytes that a model of the same shape and kv_dtype restores, in another process too, bit for bit
 * (states kept to fall back to are not among them). out NULL: only *size; else *size is what that gave. */
gm_status gm_session_save(gm_session *s, void *out, size_t *size);
/* GM_EBADFILE: what is not a whole saved session of such a model. */
gm_status gm_session_restore(gm_model *m, const void *bytes, size_t size, gm_session **out);

/* How a prompt is computed: in passes of many rows, or of one. */
typedef enum { GM_PREFILL_BATCHED, GM_PREFILL_TOKEN } gm_prefill;
typedef struct {
    gm_sampling sampling;
    int64_t max_tokens; /* -1: until a stop or the end of the context; 0: only the prompt is computed, which
                         * may fill the context */
    int64_t min_tokens; /* stop ids are forbidden until there are this many tokens */
    const int32_t *stop_ids;
    size_t n_stop_ids;
    const char *const *stop_texts;
    size_t n_stop_texts;     /* UTF-8 */
    int32_t top_logprobs;    /* alternatives reported with each token, at most GM_MAX_LOGPROBS */
    int32_t prompt_logprobs; /* -1: none; else gm_stream_prompt_logprobs tells of the prompt, with so many alternatives
                              * for each token; nothing of the session is reused */
    bool hand_out_logits;    /* gm_stream_next returns GM_LOGITS before each token; with max_tokens 0 once, and
                              * gm_stream_sample then ends the stream */
    double timeout_seconds;  /* from gm_stream_open on; 0: none */
    gm_prefill prefill;
    int64_t checkpoint; /* a pass of the prompt ends before this position, so that recurrent layers can go back to it */
    /* Edits of activations, and activations for gm_stream_activation. A stream with either has passes of its own; one
     * with edits reuses nothing of its session and leaves it empty. */
    const gm_edit *edits;
    size_t n_edits;
    const int64_t *activations;
    size_t n_activations;
    gm_profile *profile; /* NULL, or where what its passes did is added; outlives the stream */
    /* A session with ids goes on with the adapters that it was begun with alone (GM_ESTATE); session_adapters: with
     * these, whatever they are called now. */
    const gm_adapter_share *adapters;
    size_t n_adapters;
    bool session_adapters;
} gm_generate_options;
void gm_generate_defaults(gm_generate_options *o); /* greedy, nothing on, max_tokens and prompt_logprobs -1 */

typedef enum {
    GM_FINISH_NONE,
    GM_FINISH_STOP,
    GM_FINISH_LENGTH,
    GM_FINISH_CONTEXT,
    GM_FINISH_CANCELLED,
    GM_FINISH_TIMEOUT,
} gm_finish;
#define GM_MAX_LOGPROBS 256
typedef struct {
    int32_t id;
    float logprob;
} gm_logprob;
typedef struct {
    int32_t id;            /* -1 on a last event that carries only held-back text */
    float logprob;         /* under the model's own distribution: no sampler, penalty or bias counts */
    const gm_logprob *top; /* the likeliest under it, best first, valid until the next call */
    int32_t n_top;
    const char *text;
    size_t length;    /* what became certain, valid until the next call */
    gm_finish finish; /* != NONE on the last event */
} gm_token;
typedef struct {
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    /* forward passes of one token: the first token comes from prefill, a stop token from a step */
    int64_t decode_steps;
    /* Of the forward passes that had rows of it, whole, and its own sampling. */
    double prefill_seconds, decode_seconds;
    size_t peak_memory; /* bytes that were active at most while it was open, of the whole process */
    gm_finish finish;
    int32_t stop_id;   /* the stop token that ended it, or -1 */
    int32_t stop_text; /* the number of the stop text that ended it, or -1 */
} gm_stream_stats;

typedef struct gm_stream gm_stream;
/* The prompt's ids are copied; a common prefix with the session's tokens is kept, the rest prefilled. tokenizer may be
 * NULL: then texts are empty and stop_texts are refused. The session's ids become the prompt's, and what is drawn is
 * added. A prompt that leaves no room in the context is GM_ECONTEXT. */
gm_status gm_stream_open(gm_session *s, gm_tokenizer *t, const int32_t *prompt, size_t n_prompt,
                         const gm_generate_options *options, gm_stream **out);
/* The next token: GM_OK with *token filled, GM_AGAIN when the slice is over (prefill, or a slow step), GM_END after the
 * last. A token whose text is held back (half a character, a possible stop text) still comes out at once, with less
 * text. */
gm_status gm_stream_next(gm_stream *st, int slice_ms, gm_token *token);
/* After GM_LOGITS: the ids so far (prompt and output) and the model's logits, float32 [vocab]; borrowed until the
 * token is drawn. */
typedef struct {
    const int32_t *ids;
    size_t n_ids;
    const float *logits;
    int64_t vocab;
} gm_pending_logits;
gm_status gm_stream_logits(const gm_stream *st, gm_pending_logits *out);
/* The token drawn from these logits, float32 [vocab], in place of the model's (NULL: from the model's), out of those
 * whose bits are set in allowed, [(vocab + 31) / 32], id i in bit i % 32 of word i / 32 (NULL: of all): as
 * gm_stream_next fills it. GM_EVALUE, and the stream has ended, when none is left. */
gm_status gm_stream_sample(gm_stream *st, const float *logits, const uint32_t *allowed, gm_token *token);
/* options.activations[i] of the rows of the last pass, a copy; after a token, or GM_LOGITS. */
gm_array *gm_stream_activation(gm_scope *scope, const gm_stream *st, size_t i);
/* Of each token of the prompt its log probability after those before it, to the bits of gm_score, NAN for the first and
 * for those that are not computed yet; and the n_top likeliest in its place, best first, where it has one. */
typedef struct {
    float *logprobs;
    gm_logprob *top; /* [n, n_top] */
    int64_t n;       /* 0: they were not asked for */
    int32_t n_top;
} gm_prompt_logprobs;
const gm_prompt_logprobs *gm_stream_prompt_logprobs(const gm_stream *st); /* borrowed */
/* The same as the caller's own, before the stream is freed; gm_prompt_logprobs_free frees what it holds. */
gm_prompt_logprobs gm_stream_take_prompt_logprobs(gm_stream *st);
void gm_prompt_logprobs_free(gm_prompt_logprobs *p);
void gm_stream_cancel(gm_stream *st); /* from any thread; the next event is the last */
/* Gives back the memory of its session's keys, values and states. The stream goes on later, to the same tokens: it
 * computes its ids again. GM_ESTATE while it is a member of a decoder or has logits. */
gm_status gm_stream_yield(gm_stream *st);
gm_stream_stats gm_stream_get_stats(const gm_stream *st);
void gm_stream_free(gm_stream *st); /* the session stays usable */

/* ---- decoders: streams of one model, decoded together ----
 * A stream on its own is a decoder's only member; gm_decoder_add makes it one of several. Members enter and leave
 * between forward passes; each gets the bits that it would get alone. One thread at a time. */
typedef struct gm_decoder gm_decoder;
gm_status gm_decoder_new(gm_model *m, gm_decoder **out);
void gm_decoder_free(gm_decoder *d); /* its members remain usable; NULL is fine */
/* The stream, which must live until its last event or gm_stream_free; at most 1024 at a time. */
gm_status gm_decoder_add(gm_decoder *d, gm_stream *st);
/* The next event of any member, as gm_stream_next gives it, and whose it is. A failure with *which set is that member's
 * alone, and its last event; the others go on. GM_END: there are no members. */
gm_status gm_decoder_next(gm_decoder *d, int slice_ms, gm_stream **which, gm_token *token);
/* The two halves of gm_decoder_next. One forward pass, or a slice of it: GM_OK when it is done, GM_AGAIN when the slice
 * is over, GM_END when no member has rows. A failure with *which set is that member's, and its last event. Between
 * calls members may be added, also in the middle of a pass. */
gm_status gm_decoder_pass(gm_decoder *d, int slice_ms, gm_stream **which);
/* The next event that the last pass left; GM_END: there is none, or a pass is under way. */
gm_status gm_decoder_event(gm_decoder *d, gm_stream **which, gm_token *token);
/* Takes a member out without ending it. A pass under way that has rows of it is abandoned. */
gm_status gm_decoder_remove(gm_decoder *d, gm_stream *st);
/* At most `rows` rows of prompts in a pass, and, while members decode, as many as keep it under gap_ms by what passes
 * took so far, but a few in any case; 0: no such bound, or as many as a pass takes. */
gm_status gm_decoder_limit(gm_decoder *d, int64_t rows, double gap_ms);
bool gm_decoder_is_running(const gm_decoder *d); /* a pass is under way: gm_decoder_pass goes on with it */
/* A session with what a member has computed so far. GM_ESTATE while a pass is under way. */
gm_status gm_decoder_fork(const gm_decoder *d, const gm_stream *st, gm_session **out);
/* Memory of all members' keys, values and states; what several share counts once. */
gm_status gm_decoder_cache_bytes(const gm_decoder *d, int64_t *bytes);
/* NULL, or where what all passes do is added that have rows of a stream with a profile; outlives the decoder. A pass
 * that has other rows than those that decode is one of prefill. */
void gm_decoder_set_profile(gm_decoder *d, gm_profile *profile);
void gm_decoder_pause(gm_decoder *d); /* abandons the current pass; the next call computes it again */

/* ---- scoring: what the model says of given sequences, each in a fresh session ---- */
typedef enum {
    GM_SCORE_LOGITS,   /* after each token: float32 [sum of n, vocab] */
    GM_SCORE_LAST,     /* after the last token: float32 [sequences, vocab] */
    GM_SCORE_LOGPROBS, /* of each token after those before it, NaN for the first: float32 [sum of n, 1] */
    GM_SCORE_HIDDEN,   /* what the head would take for each token: float32 [sum of n, hidden] */
} gm_score_kind;
typedef struct {
    const int32_t *ids;
    size_t n;
} gm_scored;
/* With GM_SCORE_LAST, labels go on from each sequence. In slices, as loading. Rows of the sequences come one after
 * another; each has the bits that it has alone. */
typedef struct gm_scoring gm_scoring;
typedef struct {
    gm_score_kind kind;
    const gm_scored *sequences, *labels;
    size_t n_sequences, n_labels;
    const gm_adapter_share *adapters; /* of all of them */
    size_t n_adapters;
} gm_score_request;
gm_status gm_score_begin(gm_model *m, const gm_score_request *request, gm_scoring **out);
gm_status gm_score_step(gm_scoring *s, int slice_ms);
const float *gm_score_data(const gm_scoring *s); /* owned by the scoring until it is freed */
/* [sequences, labels]: the logarithm of the probability of each label's tokens after each sequence. */
const double *gm_score_labels(const gm_scoring *s);
void gm_score_free(gm_scoring *s);
#endif
