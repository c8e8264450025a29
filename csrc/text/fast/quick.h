/* quick.h - the fast path from text to ids for the two kinds of tokenizer that nearly every model has. It gives the ids
 * that the steps of the general path give. SCANNER  The pre-tokenizer is one known pattern, whose pieces the model
 * encodes unchanged. WORDS    Byte pair encoding whose normalizer replaces each space by a marker, and may add one at
 * the start, and whose merges never span the start of a space: the text can be split there, and a word's bytes
 * determine its ids. */
#ifndef GOMLX_TEXT_QUICK_H
#define GOMLX_TEXT_QUICK_H
#include "text/fast/pieces.h"
#include "text/model/model.h"
#include "text/normalize/normalize.h"
#include "text/split/pretokenize.h"

typedef enum { QUICK_NOTHING, QUICK_SCANNER, QUICK_WORDS } quick_kind;

typedef struct {
    quick_kind kind;
    scanner scanner;
    word_rule words;
    bool prefix;    /* a marker precedes the text */
    int32_t marker; /* its token */
    const piece_kernels *kernels;
    const model *model;
    const vocab *vocab;
} quick_way;

#define SEEN_GAPS 8192

/* One caller's workspace, whose cache serves the next text too. Make the cache with piece_cache_new; free with
 * quick_work_free. */
typedef struct {
    piece_cache cache;
    piece_run run;
    piece_gap gaps[MOST_PIECES];
    uint16_t order[MOST_PIECES]; /* the gaps to fill, by length */
    uint16_t seen[SEEN_GAPS];    /* by hash: a gap that may have the same piece, of this run or an older one */
    id_buffer missing;           /* the ids of the gaps */
    merge_task tasks[MERGE_TASKS];
    byte_buffer alphabet, spelled, first;
} quick_work;

/* Call once, when the model is prepared. */
void quick_prepare(quick_way *way, const normalizer *n, const pretokenizer *p, const model *m, const vocab *v);
/* Appends the ids of a text between added tokens, normalized for SCANNER, raw for WORDS. */
gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids);
void quick_work_drop(quick_work *work); /* frees all but the cache */
void quick_work_free(quick_work *work);
#endif
