/* moe.h - a mixture of experts, dense or quantised: a pass computes only the chosen experts and reads each of them
 * once. A row's values do not depend on what else is in the pass. */
#ifndef GOMLX_NN_MOE_H
#define GOMLX_NN_MOE_H
#include "nn/linear.h"

/* An expert's activation function; the values of gm_glu_kind. */
typedef enum {
    MOE_SWIGLU = GM_GLU_SILU,
    MOE_GEGLU = GM_GLU_GELU,             /* in the tanh form */
    MOE_CLAMPED_SWIGLU = GM_GLU_CLAMPED, /* gpt-oss: alpha, limit */
} moe_activation;

typedef struct {
    moe_activation kind;
    float alpha, limit;
} expert_activation;

/* Stacks of E matrices, gate and up [I, h], down [h, I]: weight packed [E, rows, k], bias float32 [E, rows] or NULL. */
typedef struct { const gm_linear *gate, *up, *down; } moe_stacks;

/* The sum over the k chosen experts of weight * down(act(gate x, up x)): float32 [n, h]. x float32 [n, h]; ids int32
 * and weights float32 [n, k] as of gm_route. alpha and limit are of MOE_CLAMPED_SWIGLU alone. */
gm_array *moe_apply(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, moe_stacks w, expert_activation act);
#endif
