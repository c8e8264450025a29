/* stream.h - what a decoder sees of sessions and streams: the rows a stream asks for, and what becomes of their logits.
 *  (1) A stream's ids are its prompt and its output; its session holds the first of them. The rows it asks for are the
 *      others: many in prefill, one in decode, more once again when a pass that was cut short took positions with it. */
#ifndef GOMLX_RUN_STREAM_H
#define GOMLX_RUN_STREAM_H
#include "core/buffer.h"
#include "run/sample.h"
#include "run/step.h"

#define PASS_ROWS 512                /* rows of one forward pass */

struct gm_session {
    gm_model *model;
    gm_cache *cache;
    int32_t *ids;
    int64_t n_ids, capacity;
    _Atomic int64_t length;          /* ids that are in the cache; other threads may ask while a stream runs */
    gm_decoder *decoder;             /* of its streams that are nobody else's members; NULL: there was none yet */
    _Atomic bool busy;
};

typedef struct { char *text; size_t length, capacity; } stream_bytes;
/* It asks for rows; its logits are there; they were given out; there is nothing more. */
typedef enum { STREAM_ROWS, STREAM_LOGITS, STREAM_WAITING, STREAM_DONE } stream_state;

struct gm_stream {
    gm_session *session;
    gm_decoder *decoder;             /* the one it is a member of, or NULL */
    gm_tokenizer *tokenizer;
    gm_detokenizer *detokenizer;
    gm_sampler sampler;              /* its history: prompt and output */
    int64_t max_tokens, min_tokens;
    int32_t *stop_ids;
    size_t n_stop_ids;
    stream_bytes *stop_texts;
    size_t n_stop_texts;
    stream_bytes held;               /* text that may be the beginning of a stop text */
    stream_bytes out;                /* the text of the event being returned */
    stream_state state;
    const gm_step *step;             /* STREAM_LOGITS and STREAM_WAITING: this row of its logits */
    int64_t row;
    int32_t token;                   /* sampled last */
    gm_logprob *top;
    int32_t n_top;
    bool decodes;                    /* the prompt is computed */
    bool hand_out;                   /* logits are given out before each token */
    gm_prefill prefill;
    gm_taps *taps;                   /* what is looked at and changed, or NULL */
    gm_step *own;                    /* of a stream with taps: the last one, */
    int32_t own_rows;                /* ... and its rows */
    gm_stream_stats stats;
    buffer_watch memory;
    gm_profile *profile;             /* the caller's, or NULL */
    int64_t deadline;                /* 0: none */
    _Atomic bool cancelled;
};

/* The session's ids from `at` on become these, whatever the cache holds. */
gm_status session_put_ids(gm_session *s, int64_t at, const int32_t *ids, int64_t n);
/* The most rows that it asks of the next pass; 0: none. */
int64_t stream_rows(const gm_stream *st);
/* What so many rows are, and where they begin. */
gm_status stream_prepare(gm_stream *st, int64_t rows, const int32_t **tokens, int64_t *position);
/* The rows are computed; `step` has logits for the last of them in `row`. pass: what was done, where it is asked for. */
void stream_took(gm_stream *st, int64_t rows, double seconds, const gm_phase_profile *pass, const gm_step *step,
                 int64_t row);
/* A pass with rows of it did not end. */
void stream_lost(gm_stream *st);
/* Cancelled, or out of time: nothing more is to be computed. */
bool stream_is_over(const gm_stream *st);
/* The next event of a stream with logits, or of one that is over: as gm_stream_next. */
gm_status stream_event(gm_stream *st, gm_token *token);
#endif
