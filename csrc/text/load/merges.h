/* merges.h - a file's merges, pairs of strings, become a bpe's pairs of ids. They are looked up in batches, so that
 * cache misses overlap; the bpe gets all of them at the end, when their number is known. */
#ifndef GOMLX_TEXT_MERGES_H
#define GOMLX_TEXT_MERGES_H
#include "text/model/bpe.h"

#define MERGES_BATCH (VOCAB_BATCH / 3)

typedef struct {
    const vocab *vocab;
    bpe *bpe;
    size_t n;                             /* in the batch */
    vocab_string texts[2 * MERGES_BATCH]; /* of merge i: 2 i left, 2 i + 1 right */
    byte_buffer blob;                     /* copies of the batch's temporary texts */
    int32_t last;                         /* the result of the merge before the batch */
    uint64_t *pairs;                      /* of the merges before the batch, with their results */
    size_t pair_capacity;
    id_buffer results;
} merge_reader;

/* The vocabulary must be indexed and the bpe's prefix set. Call merges_close in every case. */
void merges_open(merge_reader *m, const vocab *v, bpe *b);
/* Adds the merge of the next rank. Both parts must be tokens, and so must their result: the two concatenated, without
 * the continuing_subword_prefix of the right one. merges_add keeps pointers to the texts until merges_finish;
 * merges_copy copies them. */
gm_status merges_add(merge_reader *m, vocab_string left, vocab_string right);
gm_status merges_copy(merge_reader *m, vocab_string left, vocab_string right);
gm_status merges_finish(merge_reader *m); /* gives the bpe its merges */
void merges_close(merge_reader *m);
#endif
