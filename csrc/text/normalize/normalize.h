/* normalize.h - the normalizer: a list of steps over a text. */
#ifndef GOMLX_TEXT_NORMALIZE_H
#define GOMLX_TEXT_NORMALIZE_H
#include "text/normalize/charsmap.h"
#include "text/split/regex.h"
#include "text/text_view.h"

typedef enum {
    NORMALIZE_FORM, /* NFC, NFD, NFKC, NFKD */
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
    NORMALIZE_CHARSMAP,
    NORMALIZE_LONGEST, /* a charsmap with the longest matches, as in SentencePiece */
    NORMALIZE_STRIP,   /* white space, on the left and on the right if set */
    /* Each character by itself: */
    NORMALIZE_LOWERCASE,
    NORMALIZE_STRIP_ACCENTS, /* drops marks */
    NORMALIZE_NMT,
    NORMALIZE_BYTE_LEVEL, /* the bytes in GPT-2's alphabet */
    NORMALIZE_CLEAN,      /* BERT: drops control characters, and white space becomes spaces */
    NORMALIZE_IDEOGRAPHS, /* BERT: puts spaces around Chinese characters */
    NORMALIZE_NONSPACING, /* BERT: drops nonspacing marks */
} normalize_kind;

typedef struct {
    normalize_kind kind;
    normal_form form;
    char *from, *to; /* REPLACE: non-empty text and its replacement; PREPEND: `to` only */
    size_t from_length, to_length;
    regex *regex; /* REPLACE; NULL: `from` is the text itself */
    charsmap *charsmap;
    bool left, right;
} normalize_step;

typedef struct {
    normalize_step *steps;
    size_t n_steps, capacity;
} normalizer;
/* Zero-initialise; normalize_work_free. Belongs to one normalizer. */
typedef struct {
    text_buffer buffers[2];
    regex_work **regexes;
    size_t n_regexes;
} normalize_work;

/* Takes ownership of the step's memory, also on failure. */
gm_status normalizer_add(normalizer *n, normalize_step step);
void normalize_step_free(normalize_step *step);
void normalizer_free(normalizer *n);

/* Normalizes *view. If anything changes, its bytes are then in work, until the next call. */
gm_status normalize(const normalizer *n, normalize_work *work, text_view *view);
void normalize_work_free(normalize_work *work);
#endif
