/* model.h - the model, which turns a piece of text into ids by byte pair encoding, Unigram, WordPiece or WordLevel.
 *  (1) A model is filled in by a loader, completed by model_prepare and then only read; model_work is one caller's
 *      scratch.
 *  (2) For a given vocabulary, the time is linear in the piece's length, in bpe.h times its logarithm. */
#ifndef GOMLX_TEXT_MODEL_H
#define GOMLX_TEXT_MODEL_H
#include "text/model/bpe.h"
#include "text/model/unigram.h"
#include "text/model/wordpiece.h"

typedef enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL } model_kind;

typedef struct {
    model_kind kind;
    bool byte_level; /* the piece's bytes become characters of GPT-2's alphabet */
    bpe bpe;
    unigram unigram;
    wordpiece wordpiece;
    int32_t unknown; /* WORDLEVEL: -1 when the vocabulary has none */
} model;

typedef struct {
    bpe_work bpe;
    unigram_work unigram;
    byte_buffer alphabet;
} model_work;

/* Call once, when vocabulary and settings are loaded. */
gm_status model_prepare(model *m, const vocab *v);
/* Appends the piece's ids, and to spans, unless it is NULL, the bytes of the piece that each id encodes. */
gm_status model_encode(const model *m, const vocab *v, model_work *work, const uint8_t *piece, size_t length,
                       id_buffer *out, span_buffer *spans);
void model_free(model *m);
void model_work_free(model_work *work);
#endif
