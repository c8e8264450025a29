/* quick.h - from text to ids without the general pipeline's steps, for the two kinds of tokenizer that nearly every
 * model has. Gives the ids that the steps give.
 *  SCANNER  the pre-tokenizer is one known pattern, and whatever it cuts out goes to the model as it is.
 *  WORDS    byte pair encoding where the normalizer only puts a marker for each space, and maybe one in front, and where
 *           no merge reaches over the front of a space: a text may be cut there, and its words be known by their bytes. */
#ifndef GOMLX_TEXT_QUICK_H
#define GOMLX_TEXT_QUICK_H
#include "text/model/model.h"
#include "text/fast/pieces.h"
#include "text/split/pretokenize.h"

typedef enum { QUICK_NOTHING, QUICK_SCANNER, QUICK_WORDS } quick_kind;

typedef struct {
    quick_kind kind;
    scanner scanner;
    word_rule words;
    bool prefix;                 /* a marker stands in front of the text */
    int32_t marker;              /* its token */
    const piece_kernels *kernels;
    const model *model;
    const vocab *vocab;
} quick_way;

#define SEEN_GAPS 8192

/* One caller's; what it has learned serves the next text. piece_cache_new its cache; quick_work_free. */
typedef struct {
    piece_cache cache;
    piece_run run;
    piece_gap gaps[MOST_PIECES];
    uint16_t order[MOST_PIECES];     /* of the gaps */
    uint16_t seen[SEEN_GAPS];        /* by hash: a gap of this run that may have the same piece, or an older run's */
    id_buffer missing;               /* the ids of the gaps */
    merge_lane lanes[MERGE_LANES];
    byte_buffer alphabet, spelled, first;
} quick_work;

/* Once the model is prepared. */
void quick_prepare(quick_way *way, const normalizer *n, const pretokenizer *p, const model *m, const vocab *v);
/* Appends the ids of a text between added tokens: normalized for SCANNER, as it came for WORDS. */
gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids);
void quick_work_drop(quick_work *work);    /* all but what it has learned */
void quick_work_free(quick_work *work);
#endif
