/* linear.c - see linear.h. */
#include "nn/linear.h"

gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    gm_array *bias = l->bias ? l->bias : GM_NONE;
    if (!l->int8)
        return gm_packed_matmul(s, x->x, l->weight, bias, residual);
    if (!x->int8)
        x->int8 = gm_quantize_activations(s, x->x);
    return gm_packed_matmul(s, x->int8, l->weight, bias, residual);
}

void linear_clear(gm_linear *l) {
    gm_release(l->weight);
    gm_release(l->bias);
    gm_release(l->scales);
    gm_release(l->biases);
    *l = (gm_linear){0};
}
