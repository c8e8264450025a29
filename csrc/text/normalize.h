/* normalize.h - the normalizer: a list of steps over a text. */
#ifndef GOMLX_TEXT_NORMALIZE_H
#define GOMLX_TEXT_NORMALIZE_H
#include "text/unicode.h"

typedef enum { NORMALIZE_NFC, NORMALIZE_PREPEND, NORMALIZE_REPLACE } normalize_kind;

typedef struct {
    normalize_kind kind;
    char *from, *to;             /* REPLACE: not empty, and what stands for it; PREPEND: only `to` */
    size_t from_length, to_length;
} normalize_step;

typedef struct { normalize_step *steps; size_t n_steps, capacity; } normalizer;
typedef struct { byte_buffer buffers[2]; } normalize_work;    /* zero-initialise; normalize_work_free */

/* Takes from and to (memory.h) in every case. */
gm_status normalizer_add(normalizer *n, normalize_step step);
void normalizer_free(normalizer *n);

/* *out is the text itself where nothing changes, else it lies in work until the next call. */
gm_status normalize(const normalizer *n, normalize_work *work, const uint8_t *text, size_t length,
                    const uint8_t **out, size_t *out_length);
void normalize_work_free(normalize_work *work);
/* Appends the text with every occurrence of `from` (not empty), found from the left, replaced. */
gm_status replace_all(const void *from, size_t from_length, const void *to, size_t to_length,
                      const uint8_t *text, size_t length, byte_buffer *out);
#endif
