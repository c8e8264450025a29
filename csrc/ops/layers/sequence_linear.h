/* sequence_linear.h - what rows of sequences give to small trained matrices: sums in order (sequence_linear.c). */
#ifndef GOMLX_OPS_SEQUENCE_LINEAR_H
#define GOMLX_OPS_SEQUENCE_LINEAR_H
#include "ops/ops.h"

/* so_far + the sum over rows of left [n, m] times right [n, k]: float32 [m, k]. starts: of sequence_attention; so_far
 * may be GM_NONE; rounded: both sides to bfloat16, where k is whole tiles. */
gm_array *sequence_outer(gm_scope *s, gm_array *left, gm_array *right, gm_array *starts, gm_array *so_far,
                         bool rounded);
/* so_far + what rows x [n, k] give to w [m, k] where x @ w.T has this cotangent, [n, m]. */
gm_array *sequence_matrix_gradient(gm_scope *s, gm_array *cotangent, gm_array *x, gm_array *starts, gm_array *so_far,
                                   bool rounded);
#endif
