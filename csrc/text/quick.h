/* quick.h - from text to ids without the general pipeline's steps: for a pre-tokenizer that is one known pattern, which
 * is what nearly every byte-level model has. Gives the ids that the steps give. */
#ifndef GOMLX_TEXT_QUICK_H
#define GOMLX_TEXT_QUICK_H
#include "text/model.h"
#include "text/pieces.h"

typedef struct {
    scanner scanner;             /* SCANNER_NONE: there is no quick way */
    const piece_kernels *kernels;
    const model *model;
    const vocab *vocab;
} quick_way;

/* One caller's; what it has learned serves the next text. piece_cache_new its cache; quick_work_free. */
typedef struct {
    piece_cache cache;
    piece_run run;
    merge_lane lanes[MERGE_LANES];
    byte_buffer alphabet;
} quick_work;

/* Appends the ids of a text that lies between added tokens and is normalized. */
gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids);
void quick_work_free(quick_work *work);
#endif
