/* linear.h - a linear layer over a packed matrix, dense or quantised. */
#ifndef GOMLX_NN_LINEAR_H
#define GOMLX_NN_LINEAR_H
#include "core/array.h"

typedef struct {
    gm_array *weight;            /* packed [rows, k]; experts: [E, rows, k] */
    gm_array *bias;              /* float32 [rows], or NULL */
    bool int8, bf16;             /* multiplies int8 activations, float32 ones rounded to bfloat16 */
} gm_linear;

/* An input of several linear layers: quantised once, when the first of them wants it. */
typedef struct { gm_array *x, *int8; } gm_activation;

/* x @ weight.T + bias + residual; residual may be GM_NONE. */
gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual);
/* Rows of the matrix, by token, times scale: float32 [n, k]. */
gm_array *linear_embed(gm_scope *s, const gm_linear *l, gm_array *tokens, float scale);
int64_t linear_rows(const gm_linear *l);
void linear_clear(gm_linear *l);
#endif
