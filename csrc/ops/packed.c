/* packed.c - matrices packed into panels, block formats and dense ones alike: embedding, activations, products. */
#include "ops/ops.h"

static gm_status check_packed(const char *op, const gm_array *w) {
    if (w->dtype == GM_PACKED && w->format < GM_QUANT_COUNT)
        return GM_OK;
    char text[128];
    array_text(w, text);
    return gm_fail(GM_EVALUE, "%s: weight is %s, expected a packed matrix", op, text);
}

/* ---- embedding ---- */
typedef struct { float scale; } embedding_param;
static const gm_field embedding_fields[] = {{FIELD_FLOAT, offsetof(embedding_param, scale), "scale", 1}, {0}};

static gm_status embedding_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    GM_TRY(check_packed("packed_embedding", in[0]));
    if (in[1]->dtype != GM_INT32 || in[1]->ndim != 1) {
        char text[128];
        array_text(in[1], text);
        return gm_fail(GM_ESHAPE, "packed_embedding: tokens are %s, expected int32 [n]", text);
    }
    out->dtype = GM_FLOAT32;
    out->ndim = 2;
    out->shape[0] = in[1]->shape[0];
    out->shape[1] = in[0]->shape[1];
    return GM_OK;
}

static gm_status embedding_eval(gm_array *out, gm_queue *q) {
    const gm_array *w = out->in[0];
    GM_TRY(array_alloc(out, q));
    return LAUNCH(q, embed, out->shape[0], 8, w->format > GM_QUANT_bf16 ? LAUNCH_FTZ : 0, .out = array_ptr(out),
                  .weight = array_ptr(w), .tokens = array_ptr(out->in[1]), .format = w->format, .rows = w->shape[0], .k = w->shape[1],
                  .scale = ((const embedding_param *)out->param)->scale);
}

const gm_op packed_embedding_op = {.name = "packed_embedding", .n_in = 2, .n_out = 1, .nondiff = 3,
                                   .param_size = sizeof(embedding_param), .fields = embedding_fields,
                                   .infer = embedding_infer, .eval = embedding_eval, .work = GM_WORK_EMBEDDING};

gm_array *gm_packed_embedding(gm_scope *s, gm_array *weight, gm_array *tokens, float scale) {
    gm_array *in[2] = {weight, tokens};
    return array_node(s, &packed_embedding_op, in, 2, &(embedding_param){scale});
}

/* ---- activations ---- */
static gm_status activations_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *x = in[0];
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || x->shape[1] % 32) {
        char text[128];
        array_text(x, text);
        return gm_fail(GM_ESHAPE, "quantize_activations: got %s, expected float32 [n, k], k a multiple of 32", text);
    }
    spec_like(out, x, GM_PACKED);
    out->format = ARRAY_ACTIVATIONS;
    return GM_OK;
}

static gm_status activations_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    int64_t tokens = x->shape[0], k = x->shape[1], tiles = (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE;
    const float *data;
    GM_TRY(float_operand(q, x, &data));
    GM_TRY(array_alloc(out, q));
    return LAUNCH(q, quantize_act, tiles, 1, LAUNCH_FTZ, .out = array_ptr(out), .x = data, .x_stride = k,
                  .tokens = tokens, .k = k);
}

const gm_op quantize_activations_op = {.name = "quantize_activations", .n_in = 1, .n_out = 1, .nondiff = 1,
                                     .infer = activations_infer, .eval = activations_eval};

gm_array *gm_quantize_activations(gm_scope *s, gm_array *x) { return array_node(s, &quantize_activations_op, &x, 1, NULL); }

/* ---- product ---- */
typedef struct { int32_t rounded; } product_param;
static const gm_field product_fields[] = {{FIELD_INT, offsetof(product_param, rounded), "rounded", 1}, {0}};

static gm_status product_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const bool rounded = ((const product_param *)param)->rounded != 0;
    const gm_array *x = in[0], *w = in[1], *bias = in[2], *residual = in[3];
    char a[128], b[128];
    GM_TRY(check_packed("packed_matmul", w));
    bool int8 = x->dtype == GM_PACKED && x->format == ARRAY_ACTIVATIONS;
    array_text(x, a);
    array_text(w, b);
    if (!(int8 || x->dtype == GM_FLOAT32) || x->ndim != 2 || x->shape[1] != w->shape[1])
        return gm_fail(GM_ESHAPE, "packed_matmul: x is %s and weight %s; expected float32 or activations of the same k",
                       a, b);
    if (int8 && !quant_takes_int8(w->format))
        return gm_fail(GM_EVALUE, "packed_matmul: int8 activations multiply block formats only, and not mxfp8; the "
                       "weight is %s", b);
    if (rounded && (int8 || w->format != GM_QUANT_bf16))
        return gm_fail(GM_EVALUE, "packed_matmul: float32 activations are rounded for bf16 weights only, got %s and "
                       "weight %s", a, b);
    out->dtype = GM_FLOAT32;
    out->ndim = 2;
    out->shape[0] = x->shape[0];
    out->shape[1] = w->shape[0];
    if (!array_is_none(bias) && (bias->dtype != GM_FLOAT32 || bias->ndim != 1 || bias->shape[0] != w->shape[0])) {
        array_text(bias, a);
        return gm_fail(GM_ESHAPE, "packed_matmul: bias is %s for weight %s", a, b);
    }
    if (!array_is_none(residual) && (residual->dtype != GM_FLOAT32 || residual->ndim != 2 ||
                                     residual->shape[0] != x->shape[0] || residual->shape[1] != w->shape[0])) {
        array_text(residual, a);
        return gm_fail(GM_ESHAPE, "packed_matmul: residual is %s for a product of %lld by %lld", a,
                       (long long)x->shape[0], (long long)w->shape[0]);
    }
    return GM_OK;
}

/* Tokens go in parts that run side by side: pieces are then some tens of microseconds, so that threads end together, and
 * activations stay in the second-level cache. The parts of a matrix of few rows are half as large. Of block formats: */
#define PART_TOKENS 128
#define FEW_ROWS 1280

static gm_status product_eval(gm_array *out, gm_queue *q) {
    const gm_kernels *kernels = queue_kernels(q);
    const gm_array *x = out->in[0], *w = out->in[1], *bias = out->in[2], *residual = out->in[3];
    int64_t tokens = x->shape[0], k = w->shape[1], rows = w->shape[0],
        panels = kernels_panels(kernels, w->format, rows);
    const float *bias_data = NULL, *residual_data = NULL, *x_data = NULL;
    if (!array_is_none(bias))
        GM_TRY(float_operand(q, bias, &bias_data));
    if (!array_is_none(residual))
        GM_TRY(float_operand(q, residual, &residual_data));
    if (x->dtype == GM_FLOAT32)
        GM_TRY(float_operand(q, x, &x_data));
    GM_TRY(array_is_none(residual) ? array_alloc(out, q) : array_alloc_like(out, q, 3));
    const bool dense = w->format <= GM_QUANT_bf16, rounded = ((const product_param *)out->param)->rounded != 0;
    /* A piece is at most some microseconds of work, and of memory traffic when there is one token. Within that a matrix
     * is 16 pieces, for its threads to end together; a small one is not worth handing its parts from core to core.
     * Panels of a piece share the rounding of many tokens. */
    int64_t work = kernels_panel(kernels, w->format) * k * tokens + 1, most = 262144 / work, grain = panels / 16;
    if (tokens > 1 && most < 4)
        most = 4;
    if (grain > most)
        grain = most;
    if (grain > 4)
        grain = grain / 4 * 4;
    if (rounded && tokens >= 16)
        grain = 6;
    else if (panels * work < 140000)
        grain = panels;
    else if (grain < 1)
        grain = 1;
    gm_matmul_args args = {.out = array_ptr(out), .out_stride = rows, .x = x_data ? (const void *)x_data : array_ptr(x),
                           .x_stride = k, .weight = array_ptr(w), .format = w->format, .bias = bias_data,
                           .residual = residual_data, .rows = rows, .k = k, .tokens = tokens};
    const gm_kernel kernel = rounded ? kernels->matmul_bf16 : x_data ? kernels->matmul_float : kernels->matmul_int8;
    const int64_t share = (dense ? GM_DENSE_TOKENS : PART_TOKENS) / (rows < FEW_ROWS ? 2 : 1);
    for (int64_t first = 0; first < tokens; first += share) {
        gm_matmul_args part = args;
        part.tokens = tokens - first < share ? tokens - first : share;
        part.x = x_data ? (const void *)(x_data + first * k) : (const char *)args.x + act_bytes(first, k);
        part.out += first * rows;
        if (residual_data)
            part.residual += first * rows;
        GM_TRY(queue_launch(q, kernel, &part, sizeof part, panels, grain, dense ? 0 : LAUNCH_FTZ));
    }
    return GM_OK;
}

const gm_op packed_matmul_op = {.name = "packed_matmul", .n_in = 4, .n_out = 1, .nondiff = 2,
                                 .param_size = sizeof(product_param), .fields = product_fields, .infer = product_infer,
                                 .eval = product_eval};

gm_array *gm_packed_matmul(gm_scope *s, gm_array *x, gm_array *weight, gm_array *bias, gm_array *residual, bool rounded) {
    gm_array *in[4] = {x, weight, bias, residual};
    return array_node(s, &packed_matmul_op, in, 4, &(product_param){rounded});
}
