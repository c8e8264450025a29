/* elementwise.c - unary and binary functions, where, astype. One block for each class; the row says which function.
 * Gradients of complex functions: the cotangent times the conjugate of the derivative. */
#include "ops/ops.h"

/* cot * conj(derivative) */
static gm_array *chain(gm_scope *s, gm_array *cot, gm_array *derivative) {
    if (derivative && derivative->dtype == GM_COMPLEX64)
        derivative = gm_conjugate(s, derivative);
    return gm_multiply(s, cot, derivative);
}

static gm_array *constant(gm_scope *s, double value, const gm_array *like) {
    return like ? scalar_array(s, value, (gm_dtype)like->dtype) : NULL;
}

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
    return DISPATCH(q, unary, out->size, .out = array_ptr(out), .in = array_ptr(x),
                    .op = (gm_unary_op)p->function, .type = x->dtype, .ndim = l.ndim, .shape = l.shape,
                    .strides = l.strides[0]);
}

/* c + sign * x**2 */
static gm_array *plus_square(gm_scope *s, double c, double sign, gm_array *x) {
    gm_array *square = gm_square(s, x), *one = constant(s, c, x);
    return sign < 0 ? gm_subtract(s, one, square) : gm_add(s, one, square);
}

static gm_array *imaginary_unit(gm_scope *s) {
    return gm_array_from(s, GM_COMPLEX64, 0, NULL, (float[2]){0, 1});
}

/* d function(x) / dx; y is the function's value. NULL: zero everywhere. */
static gm_array *unary_derivative(gm_scope *s, gm_unary_op function, gm_array *x, gm_array *y) {
    switch (function) {
    case GM_U_SQUARE: return gm_add(s, x, x);
    case GM_U_SQRT: return gm_divide(s, constant(s, 0.5, x), y);
    case GM_U_RSQRT: return gm_divide(s, gm_multiply(s, constant(s, -0.5, x), y), x);
    case GM_U_RECIPROCAL: return gm_negative(s, gm_square(s, y));
    case GM_U_EXP: return y;
    case GM_U_EXPM1: return gm_add(s, y, constant(s, 1, x));
    case GM_U_LOG: return gm_reciprocal(s, x);
    case GM_U_LOG2: return gm_divide(s, constant(s, 1.44269504088896340736, x), x);       /* 1 / ln 2 */
    case GM_U_LOG10: return gm_divide(s, constant(s, 0.434294481903251827651, x), x);     /* 1 / ln 10 */
    case GM_U_LOG1P: return gm_reciprocal(s, gm_add(s, x, constant(s, 1, x)));
    case GM_U_SIN: return gm_cos(s, x);
    case GM_U_COS: return gm_negative(s, gm_sin(s, x));
    case GM_U_TAN: return plus_square(s, 1, 1, y);
    case GM_U_ARCSIN: return gm_rsqrt(s, plus_square(s, 1, -1, x));
    case GM_U_ARCCOS: return gm_negative(s, gm_rsqrt(s, plus_square(s, 1, -1, x)));
    case GM_U_ARCTAN: return gm_reciprocal(s, plus_square(s, 1, 1, x));
    case GM_U_SINH: return gm_cosh(s, x);
    case GM_U_COSH: return gm_sinh(s, x);
    case GM_U_TANH: return plus_square(s, 1, -1, y);
    case GM_U_ARCSINH: return gm_rsqrt(s, plus_square(s, 1, 1, x));
    case GM_U_ARCCOSH: {               /* one root for each factor of x**2 - 1: their product is on the right branch */
        gm_array *one = constant(s, 1, x);
        return gm_multiply(s, gm_rsqrt(s, gm_subtract(s, x, one)), gm_rsqrt(s, gm_add(s, x, one)));
    }
    case GM_U_ARCTANH: return gm_reciprocal(s, plus_square(s, 1, -1, x));
    case GM_U_ERF:                                                                        /* 2 / sqrt(pi) e**-x**2 */
        return gm_multiply(s, constant(s, 1.12837916709551257390, x), gm_exp(s, gm_negative(s, gm_square(s, x))));
    case GM_U_ERFINV:                                                                     /* sqrt(pi) / 2 e**y**2 */
        return gm_multiply(s, constant(s, 0.886226925452758013649, x), gm_exp(s, gm_square(s, y)));
    case GM_U_SIGMOID: return gm_multiply(s, y, gm_subtract(s, constant(s, 1, x), y));
    case GM_U_GELU: {                                            /* the normal distribution, and x times its density */
        gm_array *error = gm_erf(s, gm_multiply(s, x, constant(s, 0.70710678118654752440, x)));
        gm_array *below = gm_add(s, error, constant(s, 1, x));
        gm_array *bell = gm_exp(s, gm_multiply(s, constant(s, -0.5, x), gm_square(s, x)));
        return gm_add(s, gm_multiply(s, constant(s, 0.5, x), below),
                      gm_multiply(s, gm_multiply(s, constant(s, 0.398942280401432677939946, x), x), bell));
    }
    default: return NULL;
    }
}

static void unary_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_unary_op function = (gm_unary_op)((const unary_param *)out->param)->function;
    gm_array *x = in[0], *cot = cots[0], *derivative;
    bool is_complex = x->dtype == GM_COMPLEX64;
    switch (function) {
    case GM_U_ABS: grad[0] = gm_multiply(s, cot, gm_sign(s, x)); break;     /* x / |x|, not its conjugate */
    case GM_U_NEGATIVE: grad[0] = gm_negative(s, cot); break;
    case GM_U_CONJ: grad[0] = gm_conjugate(s, cot); break;
    case GM_U_REAL: grad[0] = gm_astype(s, cot, (gm_dtype)x->dtype); break;
    case GM_U_IMAG: grad[0] = is_complex ? gm_multiply(s, cot, imaginary_unit(s)) : NULL; break;
    default:
        derivative = unary_derivative(s, function, x, out);
        grad[0] = derivative ? chain(s, cot, derivative) : NULL;
    }
}

/* The name of a function that MLX refuses for complex numbers, else NULL. */
static const char *not_for_complex(gm_unary_op function) {
    switch (function) {
    case GM_U_EXPM1: return "expm1";
    case GM_U_ERF: return "erf";
    case GM_U_ERFINV: return "erfinv";
    case GM_U_SIGMOID: return "sigmoid";
    case GM_U_GELU: return "gelu";
    case GM_U_FLOOR: return "floor";
    case GM_U_CEIL: return "ceil";
    case GM_U_TRUNC: return "trunc";
    default: return NULL;
    }
}

static gm_array *unary(gm_scope *s, gm_array *x, gm_unary_op function, result_rule rule) {
    if (!x)
        return NULL;
    if (x->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    if (x->dtype == GM_COMPLEX64 && not_for_complex(function))
        return gm_fail(GM_EVALUE, "%s: not defined for complex64", not_for_complex(function)), NULL;
    if (rule == RESULT_FLOAT)
        x = gm_astype(s, x, dtype_inexact((gm_dtype)x->dtype));
    return array_node(s, &unary_op, &x, 1, &(unary_param){(int32_t)function, (int32_t)rule});
}

#define UNARY_ROWS(X) \
    X(sign, GM_U_SIGN, RESULT_SAME) X(square, GM_U_SQUARE, RESULT_SAME) \
    X(sqrt, GM_U_SQRT, RESULT_FLOAT) X(rsqrt, GM_U_RSQRT, RESULT_FLOAT) \
    X(reciprocal, GM_U_RECIPROCAL, RESULT_FLOAT) X(exp, GM_U_EXP, RESULT_FLOAT) \
    X(expm1, GM_U_EXPM1, RESULT_FLOAT) X(log, GM_U_LOG, RESULT_FLOAT) \
    X(log2, GM_U_LOG2, RESULT_FLOAT) X(log10, GM_U_LOG10, RESULT_FLOAT) \
    X(log1p, GM_U_LOG1P, RESULT_FLOAT) X(sin, GM_U_SIN, RESULT_FLOAT) \
    X(cos, GM_U_COS, RESULT_FLOAT) X(tan, GM_U_TAN, RESULT_FLOAT) \
    X(arcsin, GM_U_ARCSIN, RESULT_FLOAT) X(arccos, GM_U_ARCCOS, RESULT_FLOAT) \
    X(arctan, GM_U_ARCTAN, RESULT_FLOAT) X(sinh, GM_U_SINH, RESULT_FLOAT) \
    X(cosh, GM_U_COSH, RESULT_FLOAT) X(tanh, GM_U_TANH, RESULT_FLOAT) \
    X(arcsinh, GM_U_ARCSINH, RESULT_FLOAT) X(arccosh, GM_U_ARCCOSH, RESULT_FLOAT) \
    X(arctanh, GM_U_ARCTANH, RESULT_FLOAT) X(erf, GM_U_ERF, RESULT_FLOAT) \
    X(erfinv, GM_U_ERFINV, RESULT_FLOAT) X(sigmoid, GM_U_SIGMOID, RESULT_FLOAT) \
    X(gelu, GM_U_GELU, RESULT_FLOAT) \
    X(floor, GM_U_FLOOR, RESULT_SAME) X(ceil, GM_U_CEIL, RESULT_SAME) \
    X(trunc, GM_U_TRUNC, RESULT_SAME) X(isnan, GM_U_ISNAN, RESULT_BOOL) \
    X(isinf, GM_U_ISINF, RESULT_BOOL) X(isfinite, GM_U_ISFINITE, RESULT_BOOL) \
    X(isposinf, GM_U_ISPOSINF, RESULT_BOOL) X(isneginf, GM_U_ISNEGINF, RESULT_BOOL) \
    X(real, GM_U_REAL, RESULT_REAL) X(imag, GM_U_IMAG, RESULT_REAL) \
    X(conjugate, GM_U_CONJ, RESULT_SAME)
#define X(name, id, rule) gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, id, rule); }
UNARY_ROWS(X)
#undef X

gm_array *round_even(gm_scope *s, gm_array *x) { return unary(s, x, GM_U_ROUND, RESULT_SAME); }

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

#define X(name, id, rule) [id] = {#name, rule},
static const struct { const char *name; result_rule rule; } unary_rows[GM_U_COUNT] = {
    UNARY_ROWS(X) [GM_U_ABS] = {"abs", RESULT_SAME}, [GM_U_NEGATIVE] = {"negative", RESULT_SAME},
    [GM_U_ROUND] = {"round", RESULT_SAME}, [GM_U_LOGICAL_NOT] = {"logical_not", RESULT_BOOL},
    [GM_U_BITWISE_INVERT] = {"bitwise_invert", RESULT_SAME}};
#undef X

static const char *unary_title(const void *param) { return unary_rows[((const unary_param *)param)->function].name; }

static gm_status unary_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    const unary_param *p = param;
    (void)n_in;
    (void)n_out;
    if (!within(p->function, GM_U_COUNT) || !unary_rows[p->function].name)
        return rebuild_refuse("unary");
    return rebuilt(unary(s, in[0], (gm_unary_op)p->function, unary_rows[p->function].rule), outs);
}

static bool unary_still(const void *param) {
    const int32_t f = ((const unary_param *)param)->function;
    return f == GM_U_ISNAN || f == GM_U_ISPOSINF || f == GM_U_ISNEGINF;
}

const gm_op unary_op = {.name = "unary", .n_in = 1, .n_out = 1, .param_size = sizeof(unary_param),
                        .fields = unary_fields, .infer = unary_infer, .eval = unary_eval, .vjp = unary_vjp,
                        .still = unary_still, .vmap = vmap_leading, .rebuild = unary_rebuild, .title = unary_title};

/* ---- binary ---- */
typedef struct { int32_t function; int32_t truth; } binary_param;
static const char *binary_title(const void *param);
static const gm_field binary_fields[] = {{FIELD_INT, offsetof(binary_param, function), "function", 1}, {0}};

static gm_status binary_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const binary_param *p = param;
    out->dtype = p->truth ? GM_BOOL : (gm_dtype)in[0]->dtype;
    return broadcast_shape(binary_title(p), in[0], in[1], out);
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
    return DISPATCH(q, binary, out->size, .out = array_ptr(out), .a = pa, .b = pb, .op = (gm_binary_op)p->function,
                    .type = a->dtype, .ndim = l.ndim, .shape = l.shape, .a_strides = l.strides[0],
                    .b_strides = l.strides[1]);
}

/* What reaches operand i of out = function(a, b), in the shape of out; NULL: nothing. */
static gm_array *binary_cotangent(gm_scope *s, gm_binary_op function, gm_array *out, gm_array *a, gm_array *b,
                                  gm_array *cot, int i) {
    switch (function) {
    case GM_B_ADD: return cot;
    case GM_B_SUBTRACT: return i ? gm_negative(s, cot) : cot;
    case GM_B_MULTIPLY: return chain(s, cot, i ? a : b);
    case GM_B_DIVIDE:                                            /* 1 / b, -a / b**2 */
        return i ? gm_negative(s, chain(s, cot, gm_divide(s, out, b))) : chain(s, cot, gm_reciprocal(s, b));
    case GM_B_REMAINDER:                                         /* a - floor(a / b) b */
        return i ? gm_negative(s, gm_multiply(s, cot, gm_floor_divide(s, a, b))) : cot;
    case GM_B_POWER:                                             /* b a**(b - 1), a**b ln a; 0**b stays 0 */
        if (i == 0)
            return chain(s, cot, gm_multiply(s, b, gm_power(s, a, gm_subtract(s, b, constant(s, 1, b)))));
        /* The slope is chosen, not the product: 0 ln 0 would come back in the transposed map, the jvp. */
        return chain(s, cot, gm_where(s, gm_equal(s, out, constant(s, 0, out)), constant(s, 0, out),
                                      gm_astype(s, gm_multiply(s, out, gm_log(s, a)), (gm_dtype)out->dtype)));
    case GM_B_MAXIMUM:                                           /* of equals the second one gets it */
        return gm_where(s, i ? gm_less_equal(s, a, b) : gm_greater(s, a, b), cot, constant(s, 0, cot));
    case GM_B_MINIMUM:
        return gm_where(s, i ? gm_greater_equal(s, a, b) : gm_less(s, a, b), cot, constant(s, 0, cot));
    case GM_B_LOGADDEXP:                                         /* e**a / (e**a + e**b) */
        return chain(s, cot, gm_sigmoid(s, i ? gm_subtract(s, b, a) : gm_subtract(s, a, b)));
    case GM_B_ARCTAN2: {                                         /* (b, -a) / (a**2 + b**2) */
        gm_array *slope = gm_divide(s, i ? a : b, gm_add(s, gm_square(s, a), gm_square(s, b)));
        return gm_multiply(s, cot, i ? gm_negative(s, slope) : slope);
    }
    default: return NULL;
    }
}

static void binary_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_binary_op function = (gm_binary_op)((const binary_param *)out->param)->function;
    for (int i = 0; i < 2; i++)
        grad[i] = unbroadcast(s, binary_cotangent(s, function, out, in[0], in[1], cots[0], i), in[i]);
}

typedef enum { OPERANDS_ANY, OPERANDS_FLOAT, OPERANDS_BOOL, OPERANDS_INTEGER, OPERANDS_SHIFT } operand_rule;

static gm_array *binary(gm_scope *s, gm_array *a, gm_array *b, gm_binary_op function, operand_rule rule, bool truth) {
    const binary_param p = {(int32_t)function, truth};
    if (!a || !b)
        return NULL;
    if (a->dtype == GM_PACKED || b->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    gm_dtype t = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (rule == OPERANDS_FLOAT)
        t = dtype_inexact(t);
    if (rule == OPERANDS_BOOL)
        t = GM_BOOL;
    if (rule >= OPERANDS_INTEGER && dtype_is_inexact(t))
        return gm_fail(GM_ESTATE, "%s: got %s and %s, expected integers or bool", binary_title(&p),
                       gm_dtype_name((gm_dtype)a->dtype), gm_dtype_name((gm_dtype)b->dtype)), NULL;
    if (t == GM_COMPLEX64 && (function == GM_B_REMAINDER || function == GM_B_ARCTAN2))
        return gm_fail(GM_EVALUE, "%s: not defined for complex64", binary_title(&p)), NULL;
    if (t == GM_BOOL && rule == OPERANDS_SHIFT)
        t = GM_UINT8;
    gm_array *in[2] = {gm_astype(s, a, t), gm_astype(s, b, t)};
    return array_node(s, &binary_op, in, 2, &p);
}

#define BINARY_ROWS(X) \
    X(add, GM_B_ADD, OPERANDS_ANY, false) \
    X(subtract, GM_B_SUBTRACT, OPERANDS_ANY, false) \
    X(multiply, GM_B_MULTIPLY, OPERANDS_ANY, false) \
    X(divide, GM_B_DIVIDE, OPERANDS_FLOAT, false) \
    X(floor_divide, GM_B_FLOOR_DIVIDE, OPERANDS_ANY, false) \
    X(remainder, GM_B_REMAINDER, OPERANDS_ANY, false) \
    X(power, GM_B_POWER, OPERANDS_ANY, false) \
    X(maximum, GM_B_MAXIMUM, OPERANDS_ANY, false) \
    X(minimum, GM_B_MINIMUM, OPERANDS_ANY, false) \
    X(logaddexp, GM_B_LOGADDEXP, OPERANDS_FLOAT, false) \
    X(arctan2, GM_B_ARCTAN2, OPERANDS_FLOAT, false) \
    X(equal, GM_B_EQUAL, OPERANDS_ANY, true) \
    X(not_equal, GM_B_NOT_EQUAL, OPERANDS_ANY, true) \
    X(less, GM_B_LESS, OPERANDS_ANY, true) \
    X(less_equal, GM_B_LESS_EQUAL, OPERANDS_ANY, true) \
    X(greater, GM_B_GREATER, OPERANDS_ANY, true) \
    X(greater_equal, GM_B_GREATER_EQUAL, OPERANDS_ANY, true) \
    X(logical_and, GM_B_LOGICAL_AND, OPERANDS_BOOL, true) \
    X(logical_or, GM_B_LOGICAL_OR, OPERANDS_BOOL, true) \
    X(logical_xor, GM_B_LOGICAL_XOR, OPERANDS_BOOL, true) \
    X(bitwise_and, GM_B_BITWISE_AND, OPERANDS_INTEGER, false) \
    X(bitwise_or, GM_B_BITWISE_OR, OPERANDS_INTEGER, false) \
    X(bitwise_xor, GM_B_BITWISE_XOR, OPERANDS_INTEGER, false) \
    X(left_shift, GM_B_LEFT_SHIFT, OPERANDS_SHIFT, false) \
    X(right_shift, GM_B_RIGHT_SHIFT, OPERANDS_SHIFT, false)
#define X(name, id, rule, truth) \
    gm_array *gm_##name(gm_scope *s, gm_array *a, gm_array *b) { return binary(s, a, b, id, rule, truth); }
BINARY_ROWS(X)
#undef X

#define X(name, id, rule, truth) [id] = {#name, rule, truth},
static const struct { const char *name; operand_rule rule; bool truth; } binary_rows[GM_B_COUNT] = {BINARY_ROWS(X)};
#undef X

static const char *binary_title(const void *param) { return binary_rows[((const binary_param *)param)->function].name; }

static gm_status binary_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    const int32_t f = ((const binary_param *)param)->function;
    (void)n_in;
    (void)n_out;
    if (!within(f, GM_B_COUNT) || !binary_rows[f].name)
        return rebuild_refuse("binary");
    return rebuilt(binary(s, in[0], in[1], (gm_binary_op)f, binary_rows[f].rule, binary_rows[f].truth), outs);
}

static bool binary_still(const void *param) {
    const int32_t f = ((const binary_param *)param)->function;
    return f >= GM_B_EQUAL && f <= GM_B_GREATER_EQUAL;
}

const gm_op binary_op = {.name = "binary", .n_in = 2, .n_out = 1, .param_size = sizeof(binary_param),
                         .fields = binary_fields, .infer = binary_infer, .eval = binary_eval, .vjp = binary_vjp,
                         .still = binary_still, .vmap = vmap_broadcasting, .rebuild = binary_rebuild, .title = binary_title};

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
    return DISPATCH(q, select, out->size, .out = array_ptr(out), .cond = array_ptr(out->in[0]),
                    .a = array_ptr(out->in[1]), .b = array_ptr(out->in[2]), .item_bytes = (int)array_item(out),
                    .ndim = l.ndim, .shape = l.shape, .cond_strides = l.strides[0], .a_strides = l.strides[1],
                    .b_strides = l.strides[2]);
}

static void where_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    gm_array *zero = constant(s, 0, cots[0]);
    grad[1] = unbroadcast(s, gm_where(s, in[0], cots[0], zero), in[1]);
    grad[2] = unbroadcast(s, gm_where(s, in[0], zero, cots[0]), in[2]);
}

static gm_status where_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    (void)n_in;
    (void)n_out;
    (void)param;
    return rebuilt(gm_where(s, in[0], in[1], in[2]), outs);
}

const gm_op where_op = {.name = "where", .n_in = 3, .n_out = 1, .nondiff = 1, .infer = where_infer, .eval = where_eval,
                        .vjp = where_vjp, .vmap = vmap_broadcasting,
                        .rebuild = where_rebuild};

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

static void astype_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    (void)out;
    grad[0] = gm_astype(s, cots[0], (gm_dtype)in[0]->dtype);
}

static gm_status astype_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const int32_t type = ((const astype_param *)param)->type;
    if (!within(type, GM_DTYPE_COUNT))
        return rebuild_refuse("astype");
    return rebuilt(gm_astype(s, in[0], (gm_dtype)type), outs);
}

const gm_op astype_op = {.name = "astype", .n_in = 1, .n_out = 1, .param_size = sizeof(astype_param),
                         .fields = astype_fields, .infer = astype_infer, .eval = astype_eval, .vjp = astype_vjp,
                         .vmap = vmap_leading,
                         .rebuild = astype_rebuild};

gm_array *gm_astype(gm_scope *s, gm_array *x, gm_dtype type) {
    if (!x || x->dtype == (uint8_t)type)
        return x;
    if (x->dtype == GM_PACKED || type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "astype: a packed matrix has no element type; dequantize it first"), NULL;
    return array_node(s, &astype_op, &x, 1, &(astype_param){(int32_t)type});
}

/* ---- as steps of a fused chain ---- */
bool elementwise_step(const gm_array *node, gm_fused_step *out) {
    const bool one = node->op == &unary_op || node->op == &astype_op;
    if (!one && node->op != &binary_op && node->op != &where_op)
        return false;
    const gm_array *value = node->in[node->op == &where_op ? 1 : 0];
    *out = (gm_fused_step){.type = (int16_t)value->dtype, .out_type = (int16_t)node->dtype};
    if (node->op == &unary_op) {
        out->kind = GM_FUSED_UNARY;
        out->function = (int16_t)((const unary_param *)node->param)->function;
    } else if (node->op == &binary_op) {
        out->kind = GM_FUSED_BINARY;
        out->function = (int16_t)((const binary_param *)node->param)->function;
    } else {
        out->kind = one ? GM_FUSED_CONVERT : GM_FUSED_SELECT;
    }
    return true;
}

const char *elementwise_title(const gm_fused_step *step) {
    switch (step->kind) {
    case GM_FUSED_UNARY: return unary_rows[step->function].name;
    case GM_FUSED_BINARY: return binary_rows[step->function].name;
    case GM_FUSED_SELECT: return where_op.name;
    default: return astype_op.name;
    }
}

gm_array *elementwise_node(gm_scope *s, const gm_fused_step *step, gm_array *const *in) {
    switch (step->kind) {
    case GM_FUSED_UNARY: {
        const bool same = step->out_type == step->type;
        const int32_t rule = step->out_type == GM_BOOL ? RESULT_BOOL : same ? RESULT_SAME : RESULT_REAL;
        return array_node(s, &unary_op, in, 1, &(unary_param){step->function, rule});
    }
    case GM_FUSED_BINARY:
        return array_node(s, &binary_op, in, 2,
                          &(binary_param){step->function, step->out_type == GM_BOOL && step->type != GM_BOOL});
    case GM_FUSED_SELECT:
        return array_node(s, &where_op, in, 3, NULL);
    default:
        return gm_astype(s, in[0], (gm_dtype)step->out_type);
    }
}
