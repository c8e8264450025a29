/* moe.c - see moe.h. */
#include "nn/moe.h"
#include "ops/moe.h"

static gm_array *or_none(gm_array *a) { return a ? a : GM_NONE; }

gm_array *moe_apply(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, const gm_linear *gate,
                    const gm_linear *up, const gm_linear *down, moe_activation act, float alpha, float limit) {
    if (!x || !ids || !weights || !gate->weight || !up->weight || !down->weight)
        return NULL;
    return moe_experts(s, x, ids, weights, (gm_array *[]){gate->weight, up->weight, down->weight},
                       (gm_array *[]){or_none(gate->bias), or_none(up->bias), or_none(down->bias)},
                       (bool[]){gate->int8, up->int8, down->int8}, (bool[]){gate->bf16, up->bf16, down->bf16},
                       (gm_glu_kind)act, alpha, limit);
}
