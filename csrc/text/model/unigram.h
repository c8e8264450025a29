/* unigram.h - the Unigram model: the split of a piece into tokens with the best sum of scores, as Hugging Face's
 * library finds it (sums in double precision from the left; of equal ones the first is kept). */
#ifndef GOMLX_TEXT_UNIGRAM_H
#define GOMLX_TEXT_UNIGRAM_H
#include <stdbool.h>
#include "text/text_view.h"
#include "text/model/trie.h"

typedef struct {
    trie trie;
    double *scores; /* by id; NaN: the token has no text */
    size_t n_scores, score_capacity;
    double unknown_score; /* of a character that is not a token */
    int32_t unknown;      /* -1: such a character is an error */
    bool byte_fallback;   /* text without a token becomes its bytes' <0xNN> tokens, if all of them exist */
    int32_t bytes[256];   /* the <0xNN> tokens */
} unigram;

typedef struct {
    double score;
    uint32_t start;
    int32_t id;
} unigram_cell; /* the best token that ends here */

typedef struct {
    unigram_cell *cells; /* by byte of the piece: where tokens end */
    size_t capacity;
    span_buffer path; /* the parts of the best path, from the last to the first */
} unigram_work;

gm_status unigram_add_score(unigram *u, double score); /* adds the score of the next id */
gm_status unigram_prepare(unigram *u, const vocab *v);
gm_status unigram_encode(const unigram *u, const vocab *v, unigram_work *work, const uint8_t *piece, size_t length,
                         id_buffer *out, span_buffer *spans);
void unigram_free(unigram *u);
void unigram_work_free(unigram_work *work);
#endif
