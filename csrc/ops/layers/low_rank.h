/* low_rank.h - low-rank terms of some rows of a pass, each row's own: how rows with different adapters share it. */
#ifndef GOMLX_OPS_LOW_RANK_H
#define GOMLX_OPS_LOW_RANK_H
#include "core/array.h"

/* scale * (x @ a.T) @ b for the rows [first, first + rows): a [rank, k], b [rank, width], both of float32, float16 or
 * bfloat16. stretch, float32 [width], or NULL: share * stretch times what the matrix alone gives is added too, not by
 * these ops (nn/linear.c). */
typedef struct {
    gm_array *a, *b, *stretch;
    float scale, share;
    int64_t first, rows;
} low_rank_term;

/* What several layers give for the same x: y[i] float32 [n, width], to which terms[i] are added, n_terms[i] of them.
 * Terms of one layer are for the same rows, which follow each other, or for others further on. */
typedef struct {
    const low_rank_term *const *terms;
    const int *n_terms;
    int n;
} low_rank_layers;
/* y becomes y with its terms; x float32 [n, k]. A row has the same bits whatever else is in the pass. On failure y is
 * NULL. */
void low_rank_add(gm_scope *s, gm_array *x, low_rank_layers layers, gm_array **y);
#endif
