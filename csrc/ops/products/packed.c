/* packed.c - matrices packed into panels, block formats and dense ones alike: embedding, activations, products. */
#include "ops/products/packed.h"

gm_status check_packed(const char *op, const gm_array *w) {
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
    const gm_rows *rows = array_rows(w);
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, embed, out->shape[0], .out = array_ptr(out), .weight = rows ? rows->data : array_ptr(w),
                    .tokens = array_ptr(out->in[1]), .format = w->format, .rows = w->shape[0], .k = w->shape[1],
                    .scale = ((const embedding_param *)out->param)->scale, .in_rows = rows != NULL,
                    .row_map = rows ? rows->map : NULL);
}

const gm_op packed_embedding_op = {.name = "packed_embedding",
                                   .n_in = 2,
                                   .n_out = 1,
                                   .nondiff = 3,
                                   .param_size = sizeof(embedding_param),
                                   .fields = embedding_fields,
                                   .infer = embedding_infer,
                                   .eval = embedding_eval,
                                   .work = GM_WORK_EMBEDDING};

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
    const int64_t tokens = x->shape[0], k = x->shape[1];
    const float *data;
    GM_TRY(float_operand(q, x, &data));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, quantize_act, tokens, .out = array_ptr(out), .x = data, .x_stride = k, .tokens = tokens, .k = k);
}

/* Straight through: what is rounded counts as what it was. The cotangent of packed activations is float32. */
static void activations_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)s;
    (void)out;
    (void)in;
    grad[0] = cots[0];
}

const gm_op quantize_activations_op = {.name = "quantize_activations",
                                       .n_in = 1,
                                       .n_out = 1,
                                       .infer = activations_infer,
                                       .eval = activations_eval,
                                       .vjp = activations_vjp};

gm_array *gm_quantize_activations(gm_scope *s, gm_array *x) {
    return array_node(s, &quantize_activations_op, &x, 1, NULL);
}

/* ---- product ---- */
typedef struct { int32_t prompt; } product_param;
static const gm_field product_fields[] = {{FIELD_INT, offsetof(product_param, prompt), "prompt", 1}, {0}};

static bool is_int8(const gm_array *x) { return x->dtype == GM_PACKED && x->format == ARRAY_ACTIVATIONS; }
static bool is_bf16(const gm_array *x) { return x->dtype == GM_BFLOAT16; }

gm_status check_packed_product(const char *op, const gm_array *x, gm_row_form form, const gm_array *w) {
    char a[128], b[128];
    GM_TRY(check_packed(op, w));
    array_text(x, a);
    array_text(w, b);
    if (!(is_int8(x) || is_bf16(x) || x->dtype == GM_FLOAT32) || x->ndim != 2 || w->ndim != 2 ||
        x->shape[1] != w->shape[1])
        return gm_fail(GM_ESHAPE, "%s: x is %s and weight %s; expected float32, bfloat16 or activations of the same k",
                       op, a, b);
    if (form == GM_FORM_INT8 && (x->shape[1] % 32 || !quant_takes_int8(w->format)))
        return gm_fail(GM_EVALUE, "%s: int8 activations multiply block formats only, and not mxfp8; the weight is %s",
                       op, b);
    if (form == GM_FORM_BF16 && w->format != GM_QUANT_bf16)
        return gm_fail(GM_EVALUE, "%s: bfloat16 rows multiply bf16 weights only, the weight is %s", op, b);
    return GM_OK;
}
gm_row_form packed_form(const gm_array *x) {
    return is_int8(x) ? GM_FORM_INT8 : is_bf16(x) ? GM_FORM_BF16 : GM_FORM_F32;
}
gm_status check_packed_terms(const char *op, const gm_array *x, const gm_array *w, const gm_array *bias,
                             const gm_array *residual) {
    char a[128], b[128];
    if (!array_is_none(bias) && (bias->dtype != GM_FLOAT32 || bias->ndim != 1 || bias->shape[0] != w->shape[0])) {
        array_text(bias, a);
        array_text(w, b);
        return gm_fail(GM_ESHAPE, "%s: bias is %s for weight %s", op, a, b);
    }
    if (!array_is_none(residual) && (residual->dtype != GM_FLOAT32 || residual->ndim != 2 ||
                                     residual->shape[0] != x->shape[0] || residual->shape[1] != w->shape[0])) {
        array_text(residual, a);
        return gm_fail(GM_ESHAPE, "%s: residual is %s for a product of %lld by %lld", op, a, (long long)x->shape[0],
                       (long long)w->shape[0]);
    }
    return GM_OK;
}

/* Rows of a prompt, rounded by who made them, where a product would round float32 ones. */
static bool rounded_before(const gm_array *x, const gm_array *w, const product_param *p) {
    return p->prompt && is_bf16(x) && w->format > GM_QUANT_bf16;
}
static gm_status product_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *x = in[0], *w = in[1];
    const gm_row_form form = rounded_before(x, w, param) ? GM_FORM_F32 : packed_form(x);
    GM_TRY(check_packed_product("packed_matmul", x, form, w));
    out->dtype = GM_FLOAT32;
    out->ndim = 2;
    out->shape[0] = x->shape[0];
    out->shape[1] = w->shape[0];
    return check_packed_terms("packed_matmul", x, w, in[2], in[3]);
}

/* The rows of x as kernels read them, in a form: x's own, or float32. */
static gm_status product_rows(gm_queue *q, const gm_array *x, gm_row_form form, const void **data) {
    const float *floats;
    if (form == GM_FORM_BF16)
        return dense_operand(q, x, data);
    if (form == GM_FORM_INT8) {
        *data = array_ptr(x);
        return GM_OK;
    }
    GM_TRY(float_operand(q, x, &floats));
    *data = floats;
    return GM_OK;
}

gm_matrix matrix_of(const gm_array *w) {
    const gm_rows *rows = array_rows(w);
    return (gm_matrix){.data = rows ? rows->data : array_ptr(w),
                       .format = w->format,
                       .rows = w->shape[0],
                       .k = w->shape[1],
                       .in_rows = rows != NULL,
                       .row_map = rows ? rows->map : NULL};
}

static gm_status product_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *w = out->in[1], *bias = out->in[2], *residual = out->in[3];
    const float *bias_data = NULL, *residual_data = NULL;
    const void *data;
    const bool widened = rounded_before(x, w, out->param) && !queue_recorder(q)->contracts->rounds_prompts;
    const gm_row_form form = widened ? GM_FORM_F32 : packed_form(x);
    if (!array_is_none(bias))
        GM_TRY(float_operand(q, bias, &bias_data));
    if (!array_is_none(residual))
        GM_TRY(float_operand(q, residual, &residual_data));
    GM_TRY(product_rows(q, x, form, &data));
    GM_TRY(array_is_none(residual) ? array_alloc(out, q) : array_alloc_like(out, q, 3));
    return DISPATCH(q, packed_matmul, x->shape[0], .out = array_ptr(out), .x = data, .form = form,
                    .weight = matrix_of(w), .bias = bias_data, .residual = residual_data,
                    .prompt = ((const product_param *)out->param)->prompt);
}

static void product_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    grad[0] = gm_packed_matmul_columns(s, cots[0], in[1]);
    if (in[0]->dtype == GM_BFLOAT16)
        grad[0] = gm_astype(s, grad[0], GM_BFLOAT16);
    if (!array_is_none(in[2]))
        grad[2] = gm_sum(s, cots[0], 1, (int[]){0}, false);
    if (!array_is_none(in[3]))
        grad[3] = cots[0];
}

const gm_op packed_matmul_op = {.name = "packed_matmul",
                                .n_in = 4,
                                .n_out = 1,
                                .nondiff = 2,
                                .param_size = sizeof(product_param),
                                .fields = product_fields,
                                .infer = product_infer,
                                .eval = product_eval,
                                .vjp = product_vjp};

gm_array *gm_packed_matmul(gm_scope *s, gm_array *x, gm_array *weight, gm_array *bias, gm_array *residual) {
    gm_array *in[4] = {x, weight, bias, residual};
    return array_node(s, &packed_matmul_op, in, 4, &(product_param){scope_is_prompt(s)});
}

/* ---- x @ weight ---- */
static gm_status columns_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *x = in[0], *w = in[1];
    (void)n_in;
    (void)param;
    GM_TRY(check_packed("packed_matmul_columns", w));
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || w->ndim != 2 || x->shape[1] != w->shape[0]) {
        char a[128], b[128];
        array_text(x, a);
        array_text(w, b);
        return gm_fail(GM_ESHAPE,
                       "packed_matmul_columns: x is %s and weight %s, expected float32 [n, rows] of the "
                       "weight's rows",
                       a, b);
    }
    spec_like(out, x, GM_FLOAT32);
    out->shape[1] = w->shape[1];
    return GM_OK;
}

static gm_status columns_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    const float *data;
    GM_TRY(float_operand(q, x, &data));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, packed_matmul_columns, x->shape[0], .out = array_ptr(out), .x = data,
                    .weight = matrix_of(out->in[1]));
}

static void columns_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    grad[0] = gm_packed_matmul(s, cots[0], in[1], GM_NONE, GM_NONE);
}

const gm_op packed_matmul_columns_op = {.name = "packed_matmul_columns",
                                        .n_in = 2,
                                        .n_out = 1,
                                        .nondiff = 2,
                                        .infer = columns_infer,
                                        .eval = columns_eval,
                                        .vjp = columns_vjp};

gm_array *gm_packed_matmul_columns(gm_scope *s, gm_array *x, gm_array *weight) {
    gm_array *in[2] = {x, weight};
    return array_node(s, &packed_matmul_columns_op, in, 2, NULL);
}

/* ---- a gated linear unit over two products ---- */
typedef struct { int32_t gelu, type, prompt; } glu_param;
static const gm_field glu_fields[] = {{FIELD_INT, offsetof(glu_param, gelu), "gelu", 1},
                                      {FIELD_INT, offsetof(glu_param, type), "dtype", 1},
                                      {FIELD_INT, offsetof(glu_param, prompt), "prompt", 1},
                                      {0}};

gm_status packed_glu_spec(const char *op, const gm_array *x, const gm_array *gate, const gm_array *up, gm_dtype type,
                          gm_spec *out) {
    const bool dense = gate->format <= GM_QUANT_bf16 || up->format <= GM_QUANT_bf16;
    if (gate->shape[0] != up->shape[0] || (dense && gate->format != up->format)) {
        char a[128], b[128];
        array_text(gate, a);
        array_text(up, b);
        return gm_fail(GM_ESHAPE,
                       "%s: gate is %s and up %s, expected as many rows, and one format where one of them is dense", op,
                       a, b);
    }
    if (type == GM_PACKED && (dense || gate->shape[0] % 32))
        return gm_fail(GM_ESHAPE, "%s: %lld rows%s are not activations, expected a multiple of 32 of block formats", op,
                       (long long)gate->shape[0], dense ? " of a dense matrix" : "");
    spec_like(out, x, type);
    out->shape[1] = gate->shape[0];
    out->format = type == GM_PACKED ? ARRAY_ACTIVATIONS : 0;
    return GM_OK;
}

static gm_status glu_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *x = in[0];
    (void)n_in;
    GM_TRY(check_packed_product("packed_glu", x, packed_form(x), in[1]));
    GM_TRY(check_packed_product("packed_glu", x, packed_form(x), in[2]));
    return packed_glu_spec("packed_glu", x, in[1], in[2], (gm_dtype)((const glu_param *)param)->type, out);
}

static gm_status glu_eval(gm_array *out, gm_queue *q) {
    const glu_param *p = out->param;
    const gm_array *x = out->in[0];
    const void *data;
    GM_TRY(product_rows(q, x, packed_form(x), &data));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, packed_glu, x->shape[0], .out = array_ptr(out), .out_form = packed_form(out), .x = data,
                    .form = packed_form(x), .gate = matrix_of(out->in[1]), .up = matrix_of(out->in[2]),
                    .kind = p->gelu ? GM_GLU_GELU : GM_GLU_SILU, .prompt = p->prompt);
}

static gm_array *glu_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    const glu_param *p = param;
    (void)n_in;
    gm_array *gate = gm_packed_matmul(s, in[0], in[1], GM_NONE, GM_NONE);
    gm_array *up = gm_packed_matmul(s, in[0], in[2], GM_NONE, GM_NONE);
    gm_array *y = (p->gelu ? gm_geglu : gm_swiglu)(s, gate, up);
    return p->type == GM_PACKED ? gm_quantize_activations(s, y) : gm_astype(s, y, (gm_dtype)p->type);
}

const gm_op packed_glu_op = {.name = "packed_glu",
                             .n_in = 3,
                             .n_out = 1,
                             .nondiff = 6,
                             .param_size = sizeof(glu_param),
                             .fields = glu_fields,
                             .infer = glu_infer,
                             .eval = glu_eval,
                             .compose = glu_compose};

gm_array *gm_packed_glu(gm_scope *s, gm_array *x, gm_array *gate, gm_array *up, bool gelu, gm_dtype type) {
    gm_array *in[3] = {x, gate, up};
    if (type != GM_FLOAT32 && type != GM_BFLOAT16 && type != GM_PACKED)
        return gm_fail(GM_EVALUE, "packed_glu: a result in %s, expected float32, bfloat16 or packed activations",
                       gm_dtype_name(type)),
               NULL;
    return array_node(s, &packed_glu_op, in, 3, &(glu_param){gelu, (int32_t)type, scope_is_prompt(s)});
}
