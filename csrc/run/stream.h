/* stream.h - what a decoder sees of sessions and streams: the rows that a stream has to compute, and the events that
 * their logits become.
 *  (1) A stream's ids are its prompt and its output; its session's cache holds the first of them. Its pending rows are
 *      the others: many in prefill, one in decode, more again after a pass that was rolled back beyond its start. */
#ifndef GOMLX_RUN_STREAM_H
#define GOMLX_RUN_STREAM_H
#include "core/buffer.h"
#include "run/sample.h"
#include "run/step.h"

struct gm_session {
    gm_model *model;
    gm_cache *cache;
    int32_t *ids;
    int64_t n_ids;
    size_t capacity;
    _Atomic int64_t length; /* ids in the cache; other threads may read it while a stream runs */
    gm_decoder *decoder;    /* of its streams that no other decoder has (single.c), or NULL */
    _Atomic bool busy;
    gm_adapter_use *adapters; /* n_adapters: what its keys were computed with */
    size_t n_adapters;
};

typedef struct {
    char *text;
    size_t length, capacity;
} stream_bytes;
/* It has pending rows; it has logits; the caller has its logits; it has ended. */
typedef enum { STREAM_ROWS, STREAM_LOGITS, STREAM_WAITING, STREAM_DONE } stream_state;

struct gm_stream {
    gm_session *session;
    gm_decoder *decoder; /* the one it is a member of, or NULL */
    gm_tokenizer *tokenizer;
    gm_detokenizer *detokenizer;
    adapter_mix *mix;   /* its adapters, or NULL */
    gm_sampler sampler; /* its history: prompt and output */
    int64_t max_tokens, min_tokens;
    int32_t *stop_ids;
    size_t n_stop_ids;
    stream_bytes *stop_texts;
    size_t n_stop_texts;
    stream_bytes held; /* text that may be the beginning of a stop text */
    stream_bytes out;  /* the text of the current event */
    stream_state state;
    const gm_step *step; /* STREAM_LOGITS and STREAM_WAITING: this row of its logits */
    int64_t row;
    int32_t token; /* sampled last */
    gm_logprob *top;
    int32_t n_top;
    gm_prompt_logprobs prompt; /* n 0: nobody asked */
    bool decodes;              /* the prompt has been computed */
    bool hand_out;             /* logits are given out before each token */
    gm_prefill prefill;
    int64_t checkpoint; /* where a pass of the prompt ends, if layers have states; 0: anywhere */
    gm_taps *taps;      /* activations that it reads and edits, or NULL */
    gm_step *own;       /* of a stream with taps: the step of its last pass, */
    int32_t own_rows;   /* ... and its rows */
    gm_stream_stats stats;
    buffer_watch memory;
    gm_profile *profile; /* the caller's, or NULL */
    int64_t deadline;    /* 0: none */
    int64_t waited;      /* rows' worth of passes that left rows of its prompt for later */
    _Atomic bool cancelled;
};

/* Frees all but its decoder, which must be gone. */
void session_free(gm_session *s);
/* Replaces the session's ids from `at` on, whatever the cache holds. */
gm_status session_put_ids(gm_session *s, int64_t at, const int32_t *ids, int64_t n);
/* A session with the same ids, which shares its memory; no pass may have rows of it. */
gm_status session_copy(const gm_session *s, gm_session **out);
/* Its keys are computed with a mix from now on. GM_ESTATE where it has ids whose keys were computed with another one.
 */
gm_status session_use_mix(gm_session *s, const adapter_mix *mix);
void stream_free(gm_stream *st); /* it must be in no decoder */
/* The rows that the next pass may compute for it, at most; 0: none. */
int64_t stream_pending_rows(const gm_stream *st);
/* The tokens of its next `rows` rows and the position of the first. */
gm_status stream_prepare(gm_stream *st, int64_t rows, const int32_t **tokens, int64_t *position);
/* The rows are computed: row `row` of the logits of `step` belongs to the last of them. pass: the profile of the pass,
 * read only where the stream has a profile. */
void stream_commit(gm_stream *st, int64_t rows, double seconds, const gm_phase_profile *pass, const gm_step *step,
                   int64_t row);
/* A pass with rows of it did not finish. */
void stream_rollback(gm_stream *st);
/* Whether rows of its prompt are to be scored: passes that have several need logits of all of them. */
bool stream_scores_prompt(const gm_stream *st);
/* Rows of the prompt are computed, but not committed yet: row `row` of the step's logits and those after it are theirs.
 */
void stream_score_prompt(gm_stream *st, int64_t rows, const gm_step *step, int64_t row);
/* Whether more of its next logits is of use than what step_best says. */
bool stream_reads_logits(const gm_stream *st);
/* Whether what follows its next row may be begun before the token is known: it is not known that there is nothing, and
 * its cache has room. */
bool stream_may_lead(const gm_stream *st);
/* Cancelled or out of time: nothing more is to be computed. */
bool stream_is_over(const gm_stream *st);
void stream_begin_event(gm_stream *st, gm_token *token); /* an event without a token and without text */
/* The next event of a stream with logits, or of one that is over, as gm_stream_next gives it. */
gm_status stream_event(gm_stream *st, gm_token *token);
#endif
