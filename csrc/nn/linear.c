/* linear.c - see linear.h. */
#include "nn/linear.h"
#include "ops/ops.h"

/* x as a packed layer reads it. */
static gm_array *rows_for(gm_scope *s, const gm_linear *l, gm_activation *x) {
    if (l->int8)
        return x->int8 ? x->int8 : (x->int8 = gm_quantize_activations(s, x->x));
    if (l->bf16)
        return x->bf16 ? x->bf16 : (x->bf16 = gm_astype(s, x->x, GM_BFLOAT16));
    return x->x;
}

/* y and the low-rank terms of the layer over the same x, in float32. */
static gm_array *with_terms(gm_scope *s, const gm_linear *l, gm_array *x, gm_array *y) {
    for (int i = 0; i < l->n_terms && y; i++) {
        const gm_low_rank *t = &l->terms[i];
        gm_array *low = gm_matmul(s, x, gm_transpose(s, gm_astype(s, t->a, GM_FLOAT32), 2, (int[]){1, 0}));
        low = gm_multiply(s, low, scalar_array(s, (double)t->scale, GM_FLOAT32));
        y = gm_add(s, y, gm_matmul(s, low, gm_transpose(s, gm_astype(s, t->b, GM_FLOAT32), 2, (int[]){1, 0})));
    }
    return y;
}

gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    gm_array *bias = l->bias ? l->bias : GM_NONE;
    return with_terms(s, l, x->x, gm_packed_matmul(s, rows_for(s, l, x), l->weight, bias, residual));
}

gm_activation linear_glu(gm_scope *s, const gm_linear *gate, const gm_linear *up, gm_activation *x, bool gelu,
                         const gm_linear *next) {
    const bool dense = !gate->int8 && (gate->weight->format <= GM_QUANT_bf16 || up->weight->format <= GM_QUANT_bf16);
    const bool alike = gate->int8 == up->int8 && gate->bf16 == up->bf16 &&
                       (!dense || gate->weight->format == up->weight->format);
    if (gate->bias || up->bias || gate->n_terms || up->n_terms || !alike) {
        gm_array *y = linear_apply(s, gate, x, GM_NONE), *z = linear_apply(s, up, x, GM_NONE);
        return (gm_activation){.x = (gelu ? gm_geglu : gm_swiglu)(s, y, z)};
    }
    const gm_dtype type = next->n_terms          ? GM_FLOAT32
                          : next->int8 && !dense ? GM_PACKED
                          : next->bf16           ? GM_BFLOAT16
                                                 : GM_FLOAT32;
    gm_array *y = gm_packed_glu(s, rows_for(s, gate, x), gate->weight, up->weight, gelu, type);
    return type == GM_PACKED     ? (gm_activation){.int8 = y}
           : type == GM_BFLOAT16 ? (gm_activation){.bf16 = y}
                                 : (gm_activation){.x = y};
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
