/* decode.h - tokens back to text, through the chain of decoders of a tokenizer.json.
 *  (1) Each step makes a list of tokens from a list of tokens; the last list, joined, is the text. Without steps the
 *      tokens are joined with spaces.
 *  (2) Decoding a list pushes all tokens and finishes; a stream does the same token by token. A step passes on a token
 *      in parts as soon as they are certain, so that a stream of the common chains holds back at most 3 bytes: an
 *      incomplete character. Parts are whole characters. */
#ifndef GOMLX_TEXT_DECODE_H
#define GOMLX_TEXT_DECODE_H
#include "text/split/regex.h"

#define DECODE_MAX_STEPS 24

typedef enum {
    DECODE_BYTE_LEVEL,    /* all tokens, bytes in GPT-2's alphabet, become one token */
    DECODE_REPLACE,       /* `from`, or what the pattern matches, becomes `to` */
    DECODE_BYTE_FALLBACK, /* runs of <0xNN> tokens become characters */
    DECODE_FUSE,          /* all tokens become one */
    DECODE_STRIP,         /* a token loses its first `start` and last `stop` characters that are c */
    DECODE_METASPACE,     /* c becomes a space, in the first token nothing if drop_first */
    DECODE_WORDPIECE,     /* a token after the first loses the prefix `from`, or gets a leading space */
    DECODE_SUFFIX,        /* `from` becomes a space, in the last token nothing */
    DECODE_CTC,           /* repeated tokens count once, `from` is dropped, and with cleanup `to` becomes a space */
} decode_kind;

typedef struct {
    decode_kind kind;
    char *from, *to;
    size_t from_length, to_length;
    regex *regex; /* REPLACE; NULL: `from` is the text itself */
    uint32_t c;
    size_t start, stop;
    bool drop_first, cleanup;
} decode_step;

typedef struct {
    decode_step *steps;
    size_t n_steps, capacity;
    bool given; /* there is a decoder, possibly without steps */
} decoder;

typedef struct {
    byte_buffer parts; /* of a token that the step needs as a whole */
    byte_buffer held;  /* bytes that are not certain yet; CTC: the token before */
    byte_buffer scratch[2];
    regex_work *regex;
    size_t n_tokens;  /* complete tokens so far */
    size_t n_dropped; /* STRIP: at the token's start */
    size_t n_held;    /* STRIP: c's at the end so far */
    bool inside;      /* STRIP: after the token's leading c's; BYTE_FALLBACK: a part of the run was passed on;
                       * SUFFIX: a part of the token is held */
} decode_step_state;

typedef struct {
    const decoder *decoder;
    bool hold_runs; /* a run of byte tokens is decoded at its end, as Hugging Face does */
    bool started;   /* a token was pushed */
    decode_step_state steps[DECODE_MAX_STEPS];
} decode_state;

/* Takes ownership of the step's memory, also on failure. */
gm_status decoder_add(decoder *d, decode_step step);
void decode_step_free(decode_step *step);
void decoder_free(decoder *d);
void decode_open(decode_state *s, const decoder *d, bool hold_runs); /* of a zeroed struct */
/* Appends the text that is certain after this token, or at the end. The token is valid UTF-8. */
gm_status decode_push(decode_state *s, const char *token, size_t length, byte_buffer *out);
gm_status decode_finish(decode_state *s, byte_buffer *out);
void decode_free(decode_state *s);
/* The byte of a token <0xNN>; -1 for any other token. The reference accepts a sign: <0x+A> is 10. */
int decode_byte(const void *token, size_t length);
#endif
