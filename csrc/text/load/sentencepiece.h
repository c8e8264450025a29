/* sentencepiece.h - SentencePiece's vocabularies, whatever file they come in (sentencepiece_file.c: a .model file; gguf_file.c:
 * GGUF's 'llama' and 't5'): pieces with scores and types become a BPE or a Unigram model, and the normalizer and the
 * decoder around it. */
#ifndef GOMLX_TEXT_SENTENCEPIECE_H
#define GOMLX_TEXT_SENTENCEPIECE_H
#include "text/tokenizer.h"

/* The numbers are those of both kinds of files. */
typedef enum {
    PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE
} piece_type;

typedef enum { PIECES_UNIGRAM, PIECES_BPE, PIECES_CHARACTERS } pieces_kind;

typedef struct {
    pieces_kind kind;
    float *scores;               /* by id, as many as the tokenizer's vocabulary has ids; numbers, not NaN */
    uint8_t *types;              /* by id */
    size_t n, capacity;
    int64_t unknown;             /* an id; negative: none */
    bool byte_fallback;
    bool add_prefix;             /* a space in front of the text */
    bool single_spaces;          /* none at the ends, and one instead of many */
    const void *charsmap;        /* how characters are replaced first; borrowed, may be empty */
    size_t charsmap_length;
} pieces;

gm_status pieces_add(pieces *p, float score, int64_t type);    /* of the next id; a type of its own is an error */
void pieces_free(pieces *p);
/* Model, normalizer and decoder of a tokenizer whose vocabulary is there, indexed. */
gm_status pieces_build(gm_tokenizer *t, const pieces *p);
/* Control, unknown and user-defined pieces are matched in the text before all else; those that are added tokens already
 * stay what they are. */
gm_status pieces_add_tokens(gm_tokenizer *t, const pieces *p);
#endif
