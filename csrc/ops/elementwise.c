/* elementwise.c - unary and binary functions, where, astype. One block for each class; the row says which function. */
#include "ops/ops.h"

/* ---- unary ---- */
typedef enum { RESULT_SAME, RESULT_FLOAT, RESULT_BOOL, RESULT_REAL } result_rule;

typedef struct { int32_t function; int32_t result; } unary_param;
static const gm_field unary_fields[] = {{FIELD_INT, offsetof(unary_param, function), "function", 1}, {0}};

static gm_status unary_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const unary_param *p = param;
    gm_dtype t = (gm_dtype)in[0]->dtype;
    if (p->result == RESULT_BOOL)
        t = GM_BOOL;
    else if (p->result == RESULT_REAL && t == GM_COMPLEX64)
        t = GM_FLOAT32;
    spec_like(out, in[0], t);
    return GM_OK;
}

static gm_status unary_eval(gm_array *out, gm_queue *q) {
    const unary_param *p = out->param;
    const gm_array *x = out->in[0];
    loop l;
    GM_TRY(out->dtype == x->dtype ? array_alloc_like(out, q, 0) : array_alloc(out, q));
    GM_TRY(loop_make(q, x->ndim, x->shape, 1, (const int64_t *const[]){x->strides}, &l));
    return LAUNCH(q, unary, out->size, GRAIN, 0, .out = array_ptr(out), .in = array_ptr(x),
                  .op = (gm_unary_op)p->function, .type = x->dtype, .ndim = l.ndim, .shape = l.shape,
                  .strides = l.strides[0]);
}

const gm_op unary_op = {.name = "unary", .n_in = 1, .n_out = 1, .param_size = sizeof(unary_param),
                               .fields = unary_fields, .infer = unary_infer, .eval = unary_eval};

static gm_array *unary(gm_scope *s, gm_array *x, gm_unary_op function, result_rule rule) {
    if (!x)
        return NULL;
    if (x->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    if (rule == RESULT_FLOAT)
        x = gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype));
    return array_node(s, &unary_op, &x, 1, &(unary_param){(int32_t)function, (int32_t)rule});
}

#define SAME(name, id)     gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, id, RESULT_SAME); }
#define FLOATING(name, id) gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, id, RESULT_FLOAT); }
#define TRUTH(name, id)    gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, id, RESULT_BOOL); }
#define REAL(name, id)     gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, id, RESULT_REAL); }
SAME(sign, GM_U_SIGN)
SAME(square, GM_U_SQUARE)
FLOATING(sqrt, GM_U_SQRT)
FLOATING(rsqrt, GM_U_RSQRT)
FLOATING(reciprocal, GM_U_RECIPROCAL)
FLOATING(exp, GM_U_EXP)
FLOATING(expm1, GM_U_EXPM1)
FLOATING(log, GM_U_LOG)
FLOATING(log2, GM_U_LOG2)
FLOATING(log10, GM_U_LOG10)
FLOATING(log1p, GM_U_LOG1P)
FLOATING(sin, GM_U_SIN)
FLOATING(cos, GM_U_COS)
FLOATING(tan, GM_U_TAN)
FLOATING(arcsin, GM_U_ARCSIN)
FLOATING(arccos, GM_U_ARCCOS)
FLOATING(arctan, GM_U_ARCTAN)
FLOATING(sinh, GM_U_SINH)
FLOATING(cosh, GM_U_COSH)
FLOATING(tanh, GM_U_TANH)
FLOATING(arcsinh, GM_U_ARCSINH)
FLOATING(arccosh, GM_U_ARCCOSH)
FLOATING(arctanh, GM_U_ARCTANH)
FLOATING(erf, GM_U_ERF)
FLOATING(erfinv, GM_U_ERFINV)
FLOATING(sigmoid, GM_U_SIGMOID)
SAME(floor, GM_U_FLOOR)
SAME(ceil, GM_U_CEIL)
SAME(trunc, GM_U_TRUNC)
TRUTH(isnan, GM_U_ISNAN)
TRUTH(isinf, GM_U_ISINF)
TRUTH(isfinite, GM_U_ISFINITE)
TRUTH(isposinf, GM_U_ISPOSINF)
TRUTH(isneginf, GM_U_ISNEGINF)
REAL(real, GM_U_REAL)
REAL(imag, GM_U_IMAG)
SAME(conjugate, GM_U_CONJ)

/* The kernel keeps the type: the modulus of complex64 comes with a zero imaginary part. */
gm_array *gm_abs(gm_scope *s, gm_array *x) {
    gm_array *y = unary(s, x, GM_U_ABS, RESULT_SAME);
    return x && x->dtype == GM_COMPLEX64 ? gm_real(s, y) : y;
}

gm_array *gm_negative(gm_scope *s, gm_array *x) {
    if (x && x->dtype == GM_BOOL)
        return gm_fail(GM_EVALUE, "negative: not defined for bool; use logical_not"), NULL;
    return unary(s, x, GM_U_NEGATIVE, RESULT_SAME);
}

gm_array *gm_logical_not(gm_scope *s, gm_array *x) {
    return x ? unary(s, gm_astype(s, x, GM_BOOL), GM_U_LOGICAL_NOT, RESULT_BOOL) : NULL;
}

gm_array *gm_bitwise_invert(gm_scope *s, gm_array *x) {
    if (x && dtype_is_inexact((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "bitwise_invert: got %s, expected integers or bool",
                       gm_dtype_name((gm_dtype)x->dtype)), NULL;
    return unary(s, x, GM_U_BITWISE_INVERT, RESULT_SAME);
}

/* ---- binary ---- */
typedef struct { int32_t function; int32_t truth; } binary_param;
static const gm_field binary_fields[] = {{FIELD_INT, offsetof(binary_param, function), "function", 1}, {0}};

static gm_status binary_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const binary_param *p = param;
    out->dtype = p->truth ? GM_BOOL : (gm_dtype)in[0]->dtype;
    return broadcast_shape("elementwise", in[0], in[1], out);
}

static gm_status binary_eval(gm_array *out, gm_queue *q) {
    const binary_param *p = out->param;
    const gm_array *a = out->in[0], *b = out->in[1];
    int64_t sa[GM_MAX_NDIM], sb[GM_MAX_NDIM];
    loop l;
    broadcast_strides(a, out->ndim, sa);
    broadcast_strides(b, out->ndim, sb);
    const void *pa = array_ptr(a), *pb = array_ptr(b);
    if (out->dtype == a->dtype && a != b)
        GM_TRY(array_alloc_like(out, q, a->size == out->size ? 0 : 1));
    else
        GM_TRY(array_alloc(out, q));
    GM_TRY(loop_make(q, out->ndim, out->shape, 2, (const int64_t *const[]){sa, sb}, &l));
    return LAUNCH(q, binary, out->size, GRAIN, 0, .out = array_ptr(out), .a = pa, .b = pb,
                  .op = (gm_binary_op)p->function, .type = a->dtype, .ndim = l.ndim, .shape = l.shape,
                  .a_strides = l.strides[0], .b_strides = l.strides[1]);
}

const gm_op binary_op = {.name = "binary", .n_in = 2, .n_out = 1, .param_size = sizeof(binary_param),
                                .fields = binary_fields, .infer = binary_infer, .eval = binary_eval};

typedef enum { OPERANDS_ANY, OPERANDS_FLOAT, OPERANDS_INTEGER, OPERANDS_BOOL } operand_rule;

static gm_array *binary(gm_scope *s, gm_array *a, gm_array *b, gm_binary_op function, operand_rule rule, bool truth) {
    if (!a || !b)
        return NULL;
    if (a->dtype == GM_PACKED || b->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    gm_dtype t = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (rule == OPERANDS_FLOAT)
        t = dtype_inexact(t);
    if (rule == OPERANDS_BOOL)
        t = GM_BOOL;
    if (rule == OPERANDS_INTEGER && dtype_is_inexact(t))
        return gm_fail(GM_ESTATE, "bitwise operation on %s and %s: expected integers or bool",
                       gm_dtype_name((gm_dtype)a->dtype), gm_dtype_name((gm_dtype)b->dtype)), NULL;
    gm_array *in[2] = {gm_astype(s, a, t), gm_astype(s, b, t)};
    return array_node(s, &binary_op, in, 2, &(binary_param){(int32_t)function, truth});
}

#define BINARY_OP(name, id, rule, truth) \
    gm_array *gm_##name(gm_scope *s, gm_array *a, gm_array *b) { return binary(s, a, b, id, rule, truth); }
BINARY_OP(add, GM_B_ADD, OPERANDS_ANY, false)
BINARY_OP(subtract, GM_B_SUBTRACT, OPERANDS_ANY, false)
BINARY_OP(multiply, GM_B_MULTIPLY, OPERANDS_ANY, false)
BINARY_OP(divide, GM_B_DIVIDE, OPERANDS_FLOAT, false)
BINARY_OP(floor_divide, GM_B_FLOOR_DIVIDE, OPERANDS_ANY, false)
BINARY_OP(remainder, GM_B_REMAINDER, OPERANDS_ANY, false)
BINARY_OP(power, GM_B_POWER, OPERANDS_ANY, false)
BINARY_OP(maximum, GM_B_MAXIMUM, OPERANDS_ANY, false)
BINARY_OP(minimum, GM_B_MINIMUM, OPERANDS_ANY, false)
BINARY_OP(logaddexp, GM_B_LOGADDEXP, OPERANDS_FLOAT, false)
BINARY_OP(arctan2, GM_B_ARCTAN2, OPERANDS_FLOAT, false)
BINARY_OP(equal, GM_B_EQUAL, OPERANDS_ANY, true)
BINARY_OP(not_equal, GM_B_NOT_EQUAL, OPERANDS_ANY, true)
BINARY_OP(less, GM_B_LESS, OPERANDS_ANY, true)
BINARY_OP(less_equal, GM_B_LESS_EQUAL, OPERANDS_ANY, true)
BINARY_OP(greater, GM_B_GREATER, OPERANDS_ANY, true)
BINARY_OP(greater_equal, GM_B_GREATER_EQUAL, OPERANDS_ANY, true)
BINARY_OP(logical_and, GM_B_LOGICAL_AND, OPERANDS_BOOL, true)
BINARY_OP(logical_or, GM_B_LOGICAL_OR, OPERANDS_BOOL, true)
BINARY_OP(logical_xor, GM_B_LOGICAL_XOR, OPERANDS_BOOL, true)
BINARY_OP(bitwise_and, GM_B_BITWISE_AND, OPERANDS_INTEGER, false)
BINARY_OP(bitwise_or, GM_B_BITWISE_OR, OPERANDS_INTEGER, false)
BINARY_OP(bitwise_xor, GM_B_BITWISE_XOR, OPERANDS_INTEGER, false)
BINARY_OP(left_shift, GM_B_LEFT_SHIFT, OPERANDS_INTEGER, false)
BINARY_OP(right_shift, GM_B_RIGHT_SHIFT, OPERANDS_INTEGER, false)

/* ---- where ---- */
static gm_status where_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    gm_spec xy;
    out->dtype = (gm_dtype)in[1]->dtype;
    GM_TRY(broadcast_shape("where", in[1], in[2], &xy));
    gm_array shape = {.ndim = (int16_t)xy.ndim, .shape = xy.shape};
    return broadcast_shape("where", in[0], &shape, out);
}

static gm_status where_eval(gm_array *out, gm_queue *q) {
    int64_t strides[3][GM_MAX_NDIM];
    loop l;
    GM_TRY(array_alloc(out, q));
    for (int i = 0; i < 3; i++)
        broadcast_strides(out->in[i], out->ndim, strides[i]);
    GM_TRY(loop_make(q, out->ndim, out->shape, 3, (const int64_t *const[]){strides[0], strides[1], strides[2]}, &l));
    return LAUNCH(q, select, out->size, GRAIN, 0, .out = array_ptr(out), .cond = array_ptr(out->in[0]),
                  .a = array_ptr(out->in[1]), .b = array_ptr(out->in[2]), .item_bytes = (int)array_item(out),
                  .ndim = l.ndim, .shape = l.shape, .cond_strides = l.strides[0], .a_strides = l.strides[1],
                  .b_strides = l.strides[2]);
}

const gm_op where_op = {.name = "where", .n_in = 3, .n_out = 1, .nondiff = 1, .infer = where_infer,
                               .eval = where_eval};

gm_array *gm_where(gm_scope *s, gm_array *condition, gm_array *x, gm_array *y) {
    if (!condition || !x || !y)
        return NULL;
    gm_dtype t = gm_promote((gm_dtype)x->dtype, (gm_dtype)y->dtype);
    gm_array *in[3] = {gm_astype(s, condition, GM_BOOL), gm_astype(s, x, t), gm_astype(s, y, t)};
    return array_node(s, &where_op, in, 3, NULL);
}

/* ---- astype ---- */
typedef struct { int32_t type; } astype_param;
static const gm_field astype_fields[] = {{FIELD_INT, offsetof(astype_param, type), "dtype", 1}, {0}};

static gm_status astype_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    spec_like(out, in[0], (gm_dtype)((const astype_param *)param)->type);
    return GM_OK;
}

static gm_status astype_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0];
    GM_TRY(array_alloc(out, q));
    return launch_copy(q, array_ptr(out), (gm_dtype)out->dtype, out->strides, array_ptr(x), (gm_dtype)x->dtype,
                       x->strides, x->ndim, x->shape);
}

const gm_op astype_op = {.name = "astype", .n_in = 1, .n_out = 1, .param_size = sizeof(astype_param),
                                .fields = astype_fields, .infer = astype_infer, .eval = astype_eval};

gm_array *gm_astype(gm_scope *s, gm_array *x, gm_dtype type) {
    if (!x || x->dtype == (uint8_t)type)
        return x;
    if (x->dtype == GM_PACKED || type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "astype: a packed matrix has no element type; dequantize it first"), NULL;
    return array_node(s, &astype_op, &x, 1, &(astype_param){(int32_t)type});
}
