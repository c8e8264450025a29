/* merges.h - merges of a file, given as strings, on their way to a bpe: a batch at a time is looked up in the
 * vocabulary, so that waiting for memory overlaps, and the bpe gets them all at the end, when their number is known. */
#ifndef GOMLX_TEXT_MERGES_H
#define GOMLX_TEXT_MERGES_H
#include "text/model/bpe.h"

#define MERGES_BATCH (VOCAB_BATCH / 3)

typedef struct {
    const vocab *vocab;
    bpe *bpe;
    size_t n;                      /* in the batch */
    vocab_string texts[2 * MERGES_BATCH];    /* of merge i: 2 i left, 2 i + 1 right */
    byte_buffer blob;              /* those of the batch that would not have stayed */
    int32_t last;                  /* what the merge before the batch makes */
    uint64_t *pairs;               /* of the merges before the batch, and what they make */
    size_t pair_capacity;
    id_buffer results;
} merge_reader;

/* The vocabulary is indexed and does not change; bpe's prefix is set. Free with merges_close in every case. */
void merges_open(merge_reader *m, const vocab *v, bpe *b);
/* The next rank's merge. Both parts must be tokens, and so must what they make: the two in a row, but for the prefix of
 * the right one (continuing_subword_prefix). The texts are looked at until merges_finish; those of merges_copy only in
 * it. */
gm_status merges_add(merge_reader *m, vocab_string left, vocab_string right);
gm_status merges_copy(merge_reader *m, vocab_string left, vocab_string right);
gm_status merges_finish(merge_reader *m);    /* gives the bpe its merges */
void merges_close(merge_reader *m);
#endif
