/* best.h - what rows of logits come to: all that most sequences need of a pass, and a few bytes where its logits are
 * hundreds of kilobytes. */
#ifndef GOMLX_BEST_H
#define GOMLX_BEST_H
#include <stdint.h>

/* What a row of logits comes to: the first of the greatest, and the logarithm of the sum of all their exponentials. */
typedef struct {
    int32_t id; /* -1: none is more than -inf */
    float logit, logsumexp;
} gm_row_best;

/* What rows of logits come to; n: rows. NaN is never the greatest, and makes the log-sum NaN. Of sequences of one row
 * the tokens and positions become those of the next pass, in which each has the id that was found. */
typedef struct {
    gm_row_best *best; /* memory of the host: row r to [positions[r] % 2][r] of [2][n]; positions NULL: to [r] */
    uint32_t *ids;     /* [n]: 0 where there is none */
    const float *logits;
    int64_t vocab;
    int32_t *tokens, *positions; /* of the rows, or NULL */
} gm_best_rows_args;
#endif
