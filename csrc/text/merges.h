/* merges.h - merges of a file, given as strings, on their way to a bpe: a batch at a time is looked up in the
 * vocabulary, so that waiting for memory overlaps, and the bpe gets them all at the end, when their number is known. */
#ifndef GOMLX_TEXT_MERGES_H
#define GOMLX_TEXT_MERGES_H
#include "text/bpe.h"

#define MERGES_BATCH (VOCAB_BATCH / 3)

typedef struct {
    const vocab *vocab;
    bpe *bpe;
    size_t n;                      /* in the batch */
    byte_buffer blob;
    vocab_token texts[VOCAB_BATCH];    /* of merge i: 3 i left, 3 i + 1 right, 3 i + 2 what they make */
    id_buffer rows;                /* left, right and what they make, for each merge before the batch */
} merge_reader;

/* The vocabulary is indexed and does not change; bpe's prefix is set. Free with merges_close in every case. */
void merges_open(merge_reader *m, const vocab *v, bpe *b);
/* The next rank's merge. Both parts must be tokens, and so must what they make: the two in a row, but for the prefix of
 * the right one (continuing_subword_prefix). */
gm_status merges_add(merge_reader *m, const char *left, size_t n_left, const char *right, size_t n_right);
gm_status merges_finish(merge_reader *m);    /* gives the bpe its merges */
void merges_close(merge_reader *m);
#endif
