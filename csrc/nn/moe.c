/* moe.c - see moe.h. */
#include "nn/moe.h"
#include "ops/layers/moe.h"

static gm_array *or_none(gm_array *a) { return a ? a : GM_NONE; }

gm_array *moe_apply(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, moe_stacks w, expert_activation act) {
    const gm_linear *const linear[] = {w.gate, w.up, w.down};
    expert_stacks stacks;
    for (int i = 0; i < 3; i++) {
        stacks.matrices[i] = linear[i]->weight;
        stacks.biases[i] = or_none(linear[i]->bias);
        stacks.int8[i] = linear[i]->int8;
        stacks.bf16[i] = linear[i]->bf16;
        if (!linear[i]->weight)
            return NULL;
    }
    if (!x || !ids || !weights)
        return NULL;
    return moe_experts(s, x, ids, weights, &stacks, (gm_glu){(gm_glu_kind)act.kind, act.alpha, act.limit});
}
