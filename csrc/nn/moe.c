/* moe.c - see moe.h. */
#include "nn/moe.h"
#include "ops/moe.h"

static gm_array *or_none(gm_array *a) { return a ? a : GM_NONE; }

/* ---- MLX's layout: pairs sorted by expert go through gather_qmm, which reads a matrix once for neighbours ---- */
/* Row tokens[i] of x (i itself where that is GM_NONE) times the matrix of experts[i]. */
static gm_array *multiply(gm_scope *s, const gm_linear *l, gm_array *x, gm_array *tokens, gm_array *experts) {
    if (!x || !experts)
        return NULL;
    x = gm_reshape(s, x, 3, (int64_t[]){x->shape[0], 1, x->shape[1]});
    gm_array *y = gm_gather_qmm(s, x, l->weight, l->scales, or_none(l->biases), tokens, experts, true, l->group, l->bits,
                                l->mode, GM_NONE);
    y = y ? gm_reshape(s, y, 2, (int64_t[]){experts->size, y->shape[y->ndim - 1]}) : NULL;
    return l->bias ? gm_add(s, y, gm_take(s, l->bias, experts, 0)) : y;
}

static gm_array *activate(gm_scope *s, gm_array *gate, gm_array *up, moe_activation act, float alpha, float limit) {
    switch (act) {
    case MOE_SWIGLU: return gm_swiglu(s, gate, up);
    case MOE_GEGLU: return gm_geglu(s, gate, up);
    case MOE_CLAMPED_SWIGLU: return gm_clamped_swiglu(s, gate, up, alpha, limit);
    }
    return NULL;
}

static gm_array *apply_grouped(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, const gm_linear *gate,
                               const gm_linear *up, const gm_linear *down, moe_activation act, float alpha,
                               float limit) {
    gm_array *place, *order = moe_order(s, ids, gate->weight->shape[0], &place);
    if (!order)
        return NULL;
    gm_array *tokens = gm_floor_divide(s, order, scalar_array(s, (double)ids->shape[1], GM_INT32));
    gm_array *experts = gm_take(s, gm_reshape(s, ids, 1, (int64_t[]){-1}), order, 0);
    gm_array *hidden = activate(s, multiply(s, gate, x, tokens, experts), multiply(s, up, x, tokens, experts), act,
                                alpha, limit);
    return moe_sum(s, multiply(s, down, hidden, GM_NONE, experts), weights, place);
}

gm_array *moe_apply(gm_scope *s, gm_array *x, gm_array *ids, gm_array *weights, const gm_linear *gate,
                    const gm_linear *up, const gm_linear *down, moe_activation act, float alpha, float limit) {
    if (!x || !ids || !weights || !gate->weight || !up->weight || !down->weight)
        return NULL;
    const bool grouped = gate->bits > 0;
    if ((up->bits > 0) != grouped || (down->bits > 0) != grouped)
        return gm_fail(GM_EVALUE, "moe: of gate, up and down some are packed and some in MLX's layout, expected one of "
                       "these"), NULL;
    if (grouped)
        return apply_grouped(s, x, ids, weights, gate, up, down, act, alpha, limit);
    return moe_experts(s, x, ids, weights, (gm_array *[]){gate->weight, up->weight, down->weight},
                       (gm_array *[]){or_none(gate->bias), or_none(up->bias), or_none(down->bias)},
                       (bool[]){gate->int8, up->int8, down->int8}, (bool[]){gate->bf16, up->bf16, down->bf16},
                       (gm_glu_kind)act, alpha, limit);
}
