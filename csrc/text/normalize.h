/* normalize.h - the normalizer: a list of steps over a text. */
#ifndef GOMLX_TEXT_NORMALIZE_H
#define GOMLX_TEXT_NORMALIZE_H
#include "text/text_view.h"

typedef enum { NORMALIZE_NFC, NORMALIZE_PREPEND, NORMALIZE_REPLACE } normalize_kind;

typedef struct {
    normalize_kind kind;
    char *from, *to;             /* REPLACE: not empty, and what stands for it; PREPEND: only `to` */
    size_t from_length, to_length;
} normalize_step;

typedef struct { normalize_step *steps; size_t n_steps, capacity; } normalizer;
typedef struct { text_buffer buffers[2]; } normalize_work;    /* zero-initialise; normalize_work_free */

/* Takes from and to (memory.h) in every case. */
gm_status normalizer_add(normalizer *n, normalize_step step);
void normalizer_free(normalizer *n);

/* *view becomes what the normalizer makes of it: it stays as it is where nothing changes, else it lies in work until the
 * next call. */
gm_status normalize(const normalizer *n, normalize_work *work, text_view *view);
void normalize_work_free(normalize_work *work);
#endif
