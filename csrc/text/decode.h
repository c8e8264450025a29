/* decode.h - ids back to text. One machine serves both ways: batch decoding pushes all tokens and finishes; a stream
 * does so token by token. It holds back at most 3 bytes: a character that is not whole yet. */
#ifndef GOMLX_TEXT_DECODE_H
#define GOMLX_TEXT_DECODE_H
#include "text/text_view.h"

typedef enum {
    DECODE_JOIN,          /* no decoder: the tokens with spaces between them */
    DECODE_BYTES,         /* ByteLevel: tokens are bytes in GPT-2's alphabet */
    DECODE_PIECES,        /* Replace..., ByteFallback, Fuse, Strip */
    DECODE_METASPACE,     /* the first token loses its markers, in the others they are spaces */
} decode_kind;

typedef struct { char *from, *to; size_t from_length, to_length; } decode_replace;

typedef struct {
    decode_kind kind;
    decode_replace *replaces;
    size_t n_replaces, replace_capacity;
    bool byte_fallback;
    uint32_t strip;       /* this character is dropped from the whole text's start, at most strip_count times */
    size_t strip_count;
    uint32_t marker;      /* METASPACE */
    bool drop_first;
} decoder;

typedef struct {
    const decoder *decoder;
    bool hold_runs;       /* a run of byte tokens is judged when it ends, as a whole, as Hugging Face does */
    bool started;         /* a token came */
    size_t to_strip;
    byte_buffer pending;  /* bytes of a character, or of a run, that are not given out yet */
    text_buffer scratch[2];
} decode_state;

/* Takes from and to (memory.h) in every case. */
gm_status decoder_add_replace(decoder *d, decode_replace replace);
void decoder_free(decoder *d);
void decode_open(decode_state *s, const decoder *d, bool hold_runs);    /* of a zeroed struct */
/* Appends what is certain after this token, or at the end. The token is valid UTF-8. */
gm_status decode_push(decode_state *s, const char *token, size_t length, byte_buffer *out);
gm_status decode_finish(decode_state *s, byte_buffer *out);
void decode_free(decode_state *s);
#endif
