/* elementwise.c - unary and binary functions, where, astype. One block for each class; what functions of a class differ
 * in is in the rows of kernels/unary.def and binary.def, of which this file expands the types and the gradients.
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
typedef enum { RESULT_SAME, RESULT_BOOL, RESULT_REAL, RESULT_MODULUS } result_rule;
/* How integers and bool are treated: kept as they are, or converted first. */
typedef enum { TAKES_ALL, TAKES_FLOATS, TAKES_BOOL, TAKES_NUMBERS, TAKES_INTEGERS, TAKES_SHIFTS } type_rule;

#define INTEGERS(value) TAKES_ALL
#define AS_FLOATS TAKES_FLOATS
#define AS_BOOL(value) TAKES_BOOL
#define NO_BOOL(value) TAKES_NUMBERS
#define ONLY_INTEGERS(value) TAKES_INTEGERS
#define SHIFTS(value) TAKES_SHIFTS
#define COMPLEX(value) true
#define REAL_ONLY false
#define SAME RESULT_SAME
#define REAL_PART RESULT_REAL
#define MODULUS RESULT_MODULUS
#define ZEROS true
#define NONE false
typedef struct {
    const char *name;
    result_rule result;
    type_rule takes;
    bool complex, still;
} unary_row;
static const unary_row unary_rows[GM_U_COUNT] = {
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, complexes, gradient)                           \
    [GM_U_##name] = {#name, result, integers, complexes, false},
#define UNARY_TEST(name, doc, tangent, floats, doubles, integers, complexes)                                           \
    [GM_U_##name] = {#name, RESULT_BOOL, integers, true, tangent},
#include "unary.def"
};
#undef SAME
#undef REAL_PART
#undef MODULUS
#undef ZEROS
#undef NONE

typedef struct {
    int32_t function;
    int32_t result;
} unary_param;
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
    return DISPATCH(q, unary, out->size, .out = array_ptr(out), .in = array_ptr(x), .op = (gm_unary_op)p->function,
                    .type = x->dtype, .ndim = l.ndim, .shape = l.shape, .strides = l.strides[0]);
}

/* c + sign * x**2 */
static gm_array *plus_square(gm_scope *s, double c, double sign, gm_array *x) {
    gm_array *square = gm_square(s, x), *one = constant(s, c, x);
    return sign < 0 ? gm_subtract(s, one, square) : gm_add(s, one, square);
}

static gm_array *imaginary_unit(gm_scope *s) { return gm_array_from(s, GM_COMPLEX64, 0, NULL, (float[2]){0, 1}); }

/* One root for each factor of x**2 - 1: their product is on the right branch. */
static gm_array *arccosh_slope(gm_scope *s, gm_array *x) {
    gm_array *one = constant(s, 1, x);
    return gm_multiply(s, gm_rsqrt(s, gm_subtract(s, x, one)), gm_rsqrt(s, gm_add(s, x, one)));
}

/* The normal distribution, and x times its density. */
static gm_array *gelu_slope(gm_scope *s, gm_array *x) {
    gm_array *error = gm_erf(s, gm_multiply(s, x, constant(s, 0.70710678118654752440, x)));
    gm_array *below = gm_add(s, error, constant(s, 1, x));
    gm_array *bell = gm_exp(s, gm_multiply(s, constant(s, -0.5, x), gm_square(s, x)));
    return gm_add(s, gm_multiply(s, constant(s, 0.5, x), below),
                  gm_multiply(s, gm_multiply(s, constant(s, 0.398942280401432677939946, x), x), bell));
}

/* (cos(pi x) - y) / x, and near 0, where that cancels, its series: -pi**2 x / 3 times a polynomial in (pi x)**2. */
static gm_array *sinc_slope(gm_scope *s, gm_array *x, gm_array *y) {
    static const double series[] = {1, -1.0 / 10, 1.0 / 280, -1.0 / 15120, 1.0 / 1330560, -1.0 / 172972800};
    gm_array *angle = gm_multiply(s, x, constant(s, 3.14159265358979323846, x)), *square = gm_square(s, angle);
    gm_array *sum = constant(s, series[5], x);
    for (int i = 4; i >= 0; i--)
        sum = gm_add(s, gm_multiply(s, sum, square), constant(s, series[i], x));
    gm_array *near = gm_multiply(s, gm_multiply(s, x, constant(s, -3.28986813369645287294, x)), sum);
    gm_array *size = gm_abs(s, x), *is_near = gm_less(s, size, constant(s, 0.25, size));
    gm_array *divisor = gm_where(s, is_near, constant(s, 1, x), x);
    return gm_where(s, is_near, near, gm_divide(s, gm_subtract(s, gm_cos(s, angle), y), divisor));
}

/* The cotangent of x from cot, that of y = function(x). NULL: there is none. */
#define SLOPE(derivative) chain(s, cot, derivative)
#define COTANGENT(value) value
#define CONSTANT NULL
static gm_array *unary_cotangent(gm_scope *s, gm_unary_op function, gm_array *x, gm_array *y, gm_array *cot) {
    switch (function) {
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, complexes, gradient)                           \
    case GM_U_##name: return gradient;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return NULL;
#include "unary.def"
    }
    return NULL;
}

static void unary_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    grad[0] = unary_cotangent(s, (gm_unary_op)((const unary_param *)out->param)->function, in[0], out, cots[0]);
}

/* x as the row takes it; NULL with an error. */
static gm_array *unary_input(gm_scope *s, gm_array *x, const unary_row *row) {
    const gm_dtype t = (gm_dtype)x->dtype;
    if (t == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    if (t == GM_COMPLEX64 && !row->complex && row->takes != TAKES_INTEGERS)
        return gm_fail(GM_EVALUE, "%s: not defined for complex64", row->name), NULL;
    switch (row->takes) {
    case TAKES_ALL:
    case TAKES_SHIFTS: return x;
    case TAKES_FLOATS: return gm_astype(s, x, dtype_inexact(t));
    case TAKES_BOOL: return gm_astype(s, x, GM_BOOL);
    case TAKES_NUMBERS:
        return t != GM_BOOL ? x : (gm_fail(GM_EVALUE, "%s: not defined for bool; use logical_not", row->name), NULL);
    case TAKES_INTEGERS:
        return !dtype_is_inexact(t)
                   ? x
                   : (gm_fail(GM_EVALUE, "%s: got %s, expected integers or bool", row->name, gm_dtype_name(t)), NULL);
    }
    return x;
}

static gm_array *unary_node(gm_scope *s, gm_array *x, gm_unary_op function) {
    const unary_row *row = &unary_rows[function];
    x = x ? unary_input(s, x, row) : NULL;
    return x ? array_node(s, &unary_op, &x, 1, &(unary_param){(int32_t)function, (int32_t)row->result}) : NULL;
}

/* The kernel keeps the type: the modulus of complex64 comes with a zero imaginary part. */
static gm_array *unary(gm_scope *s, gm_array *x, gm_unary_op function) {
    gm_array *y = unary_node(s, x, function);
    return y && unary_rows[function].result == RESULT_MODULUS && x->dtype == GM_COMPLEX64 ? gm_real(s, y) : y;
}

#define UNARY_VALUE(name, ...)                                                                                         \
    gm_array *gm_##name(gm_scope *s, gm_array *x) { return unary(s, x, GM_U_##name); }
#define UNARY_TEST UNARY_VALUE
#define UNARY_INNER(...)
#include "unary.def"
gm_array *gm_gelu(gm_scope *s, gm_array *x) { return unary(s, x, GM_U_gelu); }
gm_array *round_even(gm_scope *s, gm_array *x) { return unary(s, x, GM_U_round); }

static const char *unary_title(const void *param) { return unary_rows[((const unary_param *)param)->function].name; }

static gm_status unary_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    const unary_param *p = param;
    (void)n_in;
    (void)n_out;
    if (!within(p->function, GM_U_COUNT))
        return rebuild_refuse("unary");
    return rebuilt(unary_node(s, in[0], (gm_unary_op)p->function), outs);
}

static bool unary_still(const void *param) { return unary_rows[((const unary_param *)param)->function].still; }

const gm_op unary_op = {.name = "unary",
                        .n_in = 1,
                        .n_out = 1,
                        .param_size = sizeof(unary_param),
                        .fields = unary_fields,
                        .infer = unary_infer,
                        .eval = unary_eval,
                        .vjp = unary_vjp,
                        .still = unary_still,
                        .vmap = vmap_leading,
                        .rebuild = unary_rebuild,
                        .title = unary_title};

/* ---- binary ---- */
typedef struct {
    int32_t function;
    int32_t truth;
} binary_param;
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

/* a**b ln a; 0**b stays 0. The derivative is selected, not the product: 0 ln 0 would come back in the jvp. */
static gm_array *power_slope(gm_scope *s, gm_array *a, gm_array *out) {
    return gm_where(s, gm_equal(s, out, constant(s, 0, out)), constant(s, 0, out),
                    gm_astype(s, gm_multiply(s, out, gm_log(s, a)), (gm_dtype)out->dtype));
}

/* x / (a**2 + b**2) */
static gm_array *over_squares(gm_scope *s, gm_array *x, gm_array *a, gm_array *b) {
    return gm_divide(s, x, gm_add(s, gm_square(s, a), gm_square(s, b)));
}

/* The cotangent of operand i of out = function(a, b), in the shape of out; NULL: there is none. */
static gm_array *binary_cotangent(gm_scope *s, gm_binary_op function, gm_array *out, gm_array *a, gm_array *b,
                                  gm_array *cot, int i) {
    switch (function) {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, complexes, gradient_a, gradient_b)                    \
    case GM_B_##name: return i == 0 ? gradient_a : gradient_b;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return NULL;
#include "binary.def"
    }
    return NULL;
}

static void binary_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    gm_binary_op function = (gm_binary_op)((const binary_param *)out->param)->function;
    for (int i = 0; i < 2; i++)
        grad[i] = unbroadcast(s, binary_cotangent(s, function, out, in[0], in[1], cots[0], i), in[i]);
}

typedef struct {
    const char *name;
    type_rule takes;
    bool truth, complex;
} binary_row;
static const binary_row binary_rows[GM_B_COUNT] = {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, complexes, gradient_a, gradient_b)                    \
    [GM_B_##name] = {#name, integers, false, complexes},
#define BINARY_TEST(name, doc, floats, doubles, integers, complexes) [GM_B_##name] = {#name, integers, true, true},
#include "binary.def"
};

static const char *binary_title(const void *param) { return binary_rows[((const binary_param *)param)->function].name; }

static gm_array *binary(gm_scope *s, gm_array *a, gm_array *b, gm_binary_op function) {
    const binary_row *row = &binary_rows[function];
    if (!a || !b)
        return NULL;
    if (a->dtype == GM_PACKED || b->dtype == GM_PACKED)
        return gm_fail(GM_EVALUE, "a packed matrix is read by matrix products only; dequantize it first"), NULL;
    gm_dtype t = gm_promote((gm_dtype)a->dtype, (gm_dtype)b->dtype);
    if (row->takes == TAKES_FLOATS)
        t = dtype_inexact(t);
    if (row->takes == TAKES_BOOL)
        t = GM_BOOL;
    if ((row->takes == TAKES_INTEGERS || row->takes == TAKES_SHIFTS) && dtype_is_inexact(t))
        return gm_fail(GM_ESTATE, "%s: got %s and %s, expected integers or bool", row->name,
                       gm_dtype_name((gm_dtype)a->dtype), gm_dtype_name((gm_dtype)b->dtype)),
               NULL;
    if (t == GM_COMPLEX64 && !row->complex)
        return gm_fail(GM_EVALUE, "%s: not defined for complex64", row->name), NULL;
    if (t == GM_BOOL && row->takes == TAKES_SHIFTS)
        t = GM_UINT8;
    gm_array *in[2] = {gm_astype(s, a, t), gm_astype(s, b, t)};
    return array_node(s, &binary_op, in, 2, &(binary_param){(int32_t)function, row->truth});
}

#define BINARY_VALUE(name, ...)                                                                                        \
    gm_array *gm_##name(gm_scope *s, gm_array *a, gm_array *b) { return binary(s, a, b, GM_B_##name); }
#define BINARY_TEST BINARY_VALUE
#include "binary.def"

static gm_status binary_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    const int32_t f = ((const binary_param *)param)->function;
    (void)n_in;
    (void)n_out;
    if (!within(f, GM_B_COUNT))
        return rebuild_refuse("binary");
    return rebuilt(binary(s, in[0], in[1], (gm_binary_op)f), outs);
}

/* Comparisons; logical operations have no tangent in MLX. */
static bool binary_still(const void *param) {
    const binary_row *row = &binary_rows[((const binary_param *)param)->function];
    return row->truth && row->takes != TAKES_BOOL;
}

const gm_op binary_op = {.name = "binary",
                         .n_in = 2,
                         .n_out = 1,
                         .param_size = sizeof(binary_param),
                         .fields = binary_fields,
                         .infer = binary_infer,
                         .eval = binary_eval,
                         .vjp = binary_vjp,
                         .still = binary_still,
                         .vmap = vmap_broadcasting,
                         .rebuild = binary_rebuild,
                         .title = binary_title};

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

const gm_op where_op = {.name = "where",
                        .n_in = 3,
                        .n_out = 1,
                        .nondiff = 1,
                        .infer = where_infer,
                        .eval = where_eval,
                        .vjp = where_vjp,
                        .vmap = vmap_broadcasting,
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
    return launch_copy(q, to_array(out), from_array(x), x->ndim, x->shape);
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

const gm_op astype_op = {.name = "astype",
                         .n_in = 1,
                         .n_out = 1,
                         .param_size = sizeof(astype_param),
                         .fields = astype_fields,
                         .infer = astype_infer,
                         .eval = astype_eval,
                         .vjp = astype_vjp,
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
    case GM_FUSED_SELECT: return array_node(s, &where_op, in, 3, NULL);
    default: return gm_astype(s, in[0], (gm_dtype)step->out_type);
    }
}
