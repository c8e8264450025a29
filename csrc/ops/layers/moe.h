/* moe.h - parts of a mixture of experts, for nn/moe.c. A pair is a token and one of its k chosen experts. */
#ifndef GOMLX_OPS_MOE_H
#define GOMLX_OPS_MOE_H
#include "ops/ops.h"

typedef struct {
    gm_glu_kind kind;
    float alpha, limit;
} gm_glu; /* alpha and limit are of GM_GLU_CLAMPED alone */
/* The stacks of gate, up and down: packed matrices [experts, I, h], [experts, I, h] and [experts, h, I], the panels of
 * expert 0, then 1, ...; biases float32 [experts, rows] or GM_NONE; int8 and bf16: whether it multiplies int8
 * activations, or float32 ones rounded to bfloat16. */
typedef struct {
    gm_array *matrices[3], *biases[3];
    bool int8[3], bf16[3];
} expert_stacks;
/* The sum over a row's k experts of weight * down(act(gate x) * up x): float32 [n, h]. x float32 [n, h], ids int32 [n,
 * k], weights float32 [n, k]. A row's bits depend on nothing but that row; an expert that no row chose is not read. */
gm_array *moe_experts(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, const expert_stacks *stacks,
                      gm_glu act);
#endif
