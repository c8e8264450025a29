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
        return gm_packed_matmul(s, x->x, l->weight, bias, residual);
    if (!x->int8)
        x->int8 = gm_quantize_activations(s, x->x);
    return gm_packed_matmul(s, x->int8, l->weight, bias, residual);
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

/* Bytes [from, from + count * step) by step of the last axis. */
static gm_array *bytes_of(gm_scope *s, gm_array *x, int64_t from, int64_t to, int64_t step) {
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], steps[GM_MAX_NDIM];
    if (!x)
        return NULL;
    for (int d = 0; d < x->ndim; d++) {
        stop[d] = x->shape[d];
        steps[d] = 1;
    }
    start[x->ndim - 1] = from;
    stop[x->ndim - 1] = to;
    steps[x->ndim - 1] = step;
    return gm_slice(s, x, start, stop, steps);
}

/* A block is a scale and 16 bytes, byte i holding values i and i + 16; MLX has values 2i and 2i + 1 in byte i. */
gm_status linear_unfold(gm_linear *l) {
    gm_scope *s = l->bits && l->weight && l->weight->dtype == GM_UINT8 ? gm_scope_open() : NULL;
    if (!s)
        return l->bits && l->weight && l->weight->dtype == GM_UINT8 ? error_code() : GM_OK;
    const int64_t *shape = l->weight->shape;
    const int ndim = l->weight->ndim;
    int64_t blocks = shape[ndim - 1] / 17, rows = l->weight->size / shape[ndim - 1], wide[3], narrow[3];
    for (int d = 0; d < ndim; d++)
        wide[d] = narrow[d] = shape[d];
    wide[ndim - 1] = 4 * blocks;
    narrow[ndim - 1] = blocks;
    gm_array *in = gm_reshape(s, l->weight, 3, (int64_t[]){rows, blocks, 17});
    gm_array *four = scalar_array(s, 4, GM_UINT8), *mask = scalar_array(s, 15, GM_UINT8), *halves[2];
    gm_array *values = bytes_of(s, in, 1, 17, 1);
    for (int i = 0; i < 2; i++) {
        gm_array *half = i ? gm_right_shift(s, values, four) : gm_bitwise_and(s, values, mask);
        halves[i] = gm_bitwise_or(s, bytes_of(s, half, 0, 16, 2), gm_left_shift(s, bytes_of(s, half, 1, 16, 2), four));
    }
    gm_array *fields = gm_view(s, gm_reshape(s, gm_concatenate(s, halves, 2, 2), 2, (int64_t[]){rows, 16 * blocks}),
                               GM_UINT32);
    gm_array *made[2] = {gm_retain(gm_reshape(s, fields, ndim, wide)),
                         gm_retain(gm_reshape(s, gm_contiguous(s, bytes_of(s, in, 0, 1, 1)), ndim, narrow))};
    gm_scope_close(s);
    gm_status status = made[0] && made[1] ? gm_eval(made, 2) : error_code();
    if (status != GM_OK) {
        gm_release(made[0]);
        gm_release(made[1]);
        return status;
    }
    gm_release(l->weight);
    l->weight = made[0];
    l->scales = made[1];
    return GM_OK;
}

int64_t linear_rows(const gm_linear *l) { return l->weight->shape[l->weight->ndim - 2]; }

void linear_clear(gm_linear *l) {
    gm_release(l->weight);
    gm_release(l->bias);
    gm_release(l->scales);
    gm_release(l->biases);
    *l = (gm_linear){0};
}
