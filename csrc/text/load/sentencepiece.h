/* sentencepiece.h - SentencePiece's vocabularies from any file (sentencepiece_file.c: a .model file; gguf_file.c:
 * GGUF's 'llama' and 't5'): pieces with scores and types become a BPE or Unigram model with its normalizer and
 * decoder. */
#ifndef GOMLX_TEXT_SENTENCEPIECE_H
#define GOMLX_TEXT_SENTENCEPIECE_H
#include "text/tokenizer.h"

/* As both kinds of files number them. */
typedef enum {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
} piece_type;

typedef enum { PIECES_UNIGRAM, PIECES_BPE, PIECES_CHARACTERS } pieces_kind;

typedef struct {
    pieces_kind kind;
    float *scores;  /* by id, one for each of the vocabulary; never NaN */
    uint8_t *types; /* by id */
    size_t n, capacity;
    int64_t unknown; /* an id; negative: none */
    bool byte_fallback;
    bool add_prefix;      /* a space before the text */
    bool single_spaces;   /* no spaces at the ends, and one instead of several */
    const void *charsmap; /* replaces characters first; borrowed, may be empty */
    size_t charsmap_length;
} pieces;

gm_status pieces_add(pieces *p, float score, int64_t type); /* adds the next id; an unknown type is an error */
void pieces_free(pieces *p);
/* Makes model, normalizer and decoder of a tokenizer whose vocabulary is indexed. */
gm_status pieces_build(gm_tokenizer *t, const pieces *p);
/* Adds control, unknown and user-defined pieces, which are matched in the text first, unless they are added tokens
 * already. */
gm_status pieces_add_tokens(gm_tokenizer *t, const pieces *p);
#endif
