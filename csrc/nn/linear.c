/* linear.c - see linear.h. */
#include "nn/linear.h"
#include "ops/ops.h"

gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    gm_array *bias = l->bias ? l->bias : GM_NONE;
    if (!l->int8)
        return gm_packed_matmul(s, x->x, l->weight, bias, residual, l->bf16);
    if (!x->int8)
        x->int8 = gm_quantize_activations(s, x->x);
    return gm_packed_matmul(s, x->int8, l->weight, bias, residual, false);
}

gm_array *linear_embed(gm_scope *s, const gm_linear *l, gm_array *tokens, float scale) {
    return gm_packed_embedding(s, l->weight, tokens, scale);
}

int64_t linear_rows(const gm_linear *l) { return l->weight->shape[l->weight->ndim - 2]; }

void linear_clear(gm_linear *l) {
    gm_release(l->weight);
    gm_release(l->bias);
    *l = (gm_linear){0};
}
