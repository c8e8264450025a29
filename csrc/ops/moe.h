/* moe.h - parts of a mixture of experts, for nn/moe.c. A pair is a token and one of its k chosen experts. */
#ifndef GOMLX_OPS_MOE_H
#define GOMLX_OPS_MOE_H
#include "ops/ops.h"

/* sum over a row's k experts of weight * down(act(gate x) * up x): float32 [n, h]. x float32 [n, h], ids int32 [n, k],
 * weights float32 [n, k]; matrices are gate, up [experts, I, h] and down [experts, h, I], packed: the panels of expert 0,
 * then 1, ...; biases float32 [experts, rows] or GM_NONE; int8 and bf16: which of the three
 * multiply int8 activations, or float32 ones rounded to bfloat16. A row's bits depend on nothing but that row; an expert
 * that nobody chose is not read. */
gm_array *moe_experts(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, gm_array *const *matrices,
                      gm_array *const *biases, const bool *int8, const bool *bf16, gm_glu_kind act, float alpha,
                      float limit);
#endif
