/* linear.c - see linear.h. */
#include "nn/linear.h"
#include "ops/ops.h"

gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    gm_array *bias = l->bias ? l->bias : GM_NONE;
    if (l->bits) {
        gm_array *biases = l->biases ? l->biases : GM_NONE;
        gm_array *y = gm_quantized_matmul(s, x->x, l->weight, l->scales, biases, true, l->group, l->bits, l->mode);
        if (l->bias)
            y = gm_add(s, y, l->bias);
        return array_is_none(residual) ? y : gm_add(s, residual, y);
    }
    if (!l->int8)
        return gm_packed_matmul(s, x->x, l->weight, bias, residual, l->bf16);
    if (!x->int8)
        x->int8 = gm_quantize_activations(s, x->x);
    return gm_packed_matmul(s, x->int8, l->weight, bias, residual, false);
}

static gm_array *rows_of(gm_scope *s, gm_array *weight, gm_array *tokens) {
    gm_array *rows = gm_take(s, weight, tokens, 0);
    if (rows)
        rows->work = GM_WORK_EMBEDDING;      /* the weight may be the head's too */
    return rows;
}

gm_array *linear_embed(gm_scope *s, const gm_linear *l, gm_array *tokens, float scale) {
    if (!l->bits)
        return gm_packed_embedding(s, l->weight, tokens, scale);
    gm_array *biases = l->biases ? rows_of(s, l->biases, tokens) : GM_NONE;
    gm_array *rows = gm_dequantize(s, rows_of(s, l->weight, tokens), rows_of(s, l->scales, tokens), biases,
                                   l->group, l->bits, l->mode, GM_NONE, GM_FLOAT32);
    return scale == 1 ? rows : gm_multiply(s, rows, scalar_array(s, scale, GM_FLOAT32));
}

int64_t linear_rows(const gm_linear *l) { return l->weight->shape[l->weight->ndim - 2]; }

void linear_clear(gm_linear *l) {
    gm_release(l->weight);
    gm_release(l->bias);
    gm_release(l->scales);
    gm_release(l->biases);
    *l = (gm_linear){0};
}
