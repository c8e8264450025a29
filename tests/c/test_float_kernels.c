/* test_float_kernels.c - the kernels of elements: unary, binary, select, copies over strides, casts, reductions, in
 * every table that this machine runs, against their definitions in double, and bit for bit against themselves however
 * ranges are cut. */
#include "kernel_check.h"

static const int64_t one_stride = 1;

/* ---- unary ---- */
/* Without a definition here: the kernel's own of doubles, which tests/core/test_ops.py compares with NumPy. */
static double unary_in_double(double x, gm_unary_op op) {
    double y;
    gm_unary_args a = {
        .out = &y, .in = &x, .op = op, .type = GM_T_F64, .ndim = 1, .shape = &one_stride, .strides = &one_stride};
    kernels->unary(&a, 0, 1);
    return y;
}
static double unary_want(double x, gm_unary_op op) {
    switch (op) {
    case GM_U_abs: return fabs(x);
    case GM_U_negative: return -x;
    case GM_U_sign: return (x > 0) - (x < 0);
    case GM_U_square: return x * x;
    case GM_U_sqrt: return sqrt(x);
    case GM_U_rsqrt: return 1 / sqrt(x);
    case GM_U_reciprocal: return 1 / x;
    case GM_U_exp: return exp(x);
    case GM_U_expm1: return expm1(x);
    case GM_U_log: return log(x);
    case GM_U_log2: return log2(x);
    case GM_U_log10: return log10(x);
    case GM_U_log1p: return log1p(x);
    case GM_U_sin: return sin(x);
    case GM_U_cos: return cos(x);
    case GM_U_tan: return tan(x);
    case GM_U_arcsin: return asin(x);
    case GM_U_arccos: return acos(x);
    case GM_U_arctan: return atan(x);
    case GM_U_sinh: return sinh(x);
    case GM_U_cosh: return cosh(x);
    case GM_U_tanh: return tanh(x);
    case GM_U_arcsinh: return asinh(x);
    case GM_U_arccosh: return acosh(x);
    case GM_U_arctanh: return atanh(x);
    case GM_U_erf: return erf(x);
    case GM_U_sigmoid: return sigmoid(x);
    case GM_U_gelu: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case GM_U_floor: return floor(x);
    case GM_U_ceil: return ceil(x);
    case GM_U_trunc: return trunc(x);
    case GM_U_round: return nearbyint(x);
    case GM_U_logical_not: return x == 0;
    case GM_U_isnan: return x != x;
    case GM_U_isinf: return isinf(x) != 0;
    case GM_U_isfinite: return isfinite(x);
    case GM_U_isposinf: return x == (double)INFINITY;
    case GM_U_isneginf: return x == -(double)INFINITY;
    case GM_U_imag: return 0;
    case GM_U_bitwise_invert:
    case GM_U_real:
    case GM_U_conjugate: return x;
    default: return unary_in_double(x, op);
    }
}
static bool unary_is_test(gm_unary_op op) {
    switch (op) {
#define UNARY_VALUE(name, ...)                                                                                         \
    case GM_U_##name: break;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return true;
#include "unary.def"
    }
    return false;
}
static bool unary_is_of_integers(gm_unary_op op) {
    switch (op) {
#define AS_FLOATS false
#define INTEGERS(value) true
#define NO_BOOL(value) true
#define ONLY_INTEGERS(value) true
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, ...)                                           \
    case GM_U_##name: return integers;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return true;
#include "unary.def"
    }
    return false;
}

static const double special[] = {0.0,
                                 -0.0,
                                 1,
                                 -1,
                                 0.5,
                                 2.5,
                                 -2.5,
                                 3.5,
                                 (double)INFINITY,
                                 -(double)INFINITY,
                                 (double)NAN,
                                 88.7,
                                 89.5,
                                 -87.5,
                                 -103,
                                 -150,
                                 1e-30,
                                 -1e-30,
                                 1e30,
                                 3e38,
                                 1e-40,
                                 40000,
                                 -1e6,
                                 0.92,
                                 -0.625,
                                 7.999e-5,
                                 0.9999};
#define N_SPECIAL ((int64_t)(sizeof special / sizeof *special))

static void test_unary(void) {
    for (int type = 0; type < GM_T_C64; type++) {
        for (int op = 0; op < GM_U_COUNT; op++) {
            bool meant_for_ints = unary_is_of_integers((gm_unary_op)op);
            if (!is_float(type) && (!meant_for_ints || op == GM_U_bitwise_invert))
                continue;
            if (is_float(type) && (op == GM_U_bitwise_invert || op == GM_U_erfinv))
                continue;
            if (type == GM_T_BOOL && (op == GM_U_negative || op == GM_U_square))
                continue;
            int out_type = unary_is_test((gm_unary_op)op) ? GM_T_BOOL : type;
            for (int s = 0; s < N_SIZES; s++) {
                int64_t n = sizes[s];
                void *in = buffer((size_t)(n * item_of(type))), *out = buffer((size_t)(n * item_of(out_type)));
                for (int64_t i = 0; i < n; i++) {
                    double range = i % 3 == 0 ? 1 : i % 3 == 1 ? 20 : 11;
                    double x = is_float(type) && i < N_SPECIAL && n > 100 ? special[i] : uniform() * range;
                    put(in, type, i, is_float(type) || type >= GM_T_I8 ? x : fabs(x));
                }
                gm_unary_args a = {.out = out,
                                   .in = in,
                                   .op = (gm_unary_op)op,
                                   .type = type,
                                   .ndim = 1,
                                   .shape = &n,
                                   .strides = &one_stride};
                kernels->unary(&a, 0, n);
                for (int64_t i = 0; i < n; i++) {
                    double x = get(in, type, i), want = unary_want(x, (gm_unary_op)op), got = get(out, out_type, i);
                    if (!is_float(out_type)) {
                        double wrapped = want;
                        if (type <= GM_T_I64)
                            put(&wrapped, type, 0, want), wrapped = get(&wrapped, type, 0);
                        CHECK(got == wrapped, "op %d type %d x %g: %g, want %g", op, type, x, got, wrapped);
                    } else {
                        /* Gelu's two halves cancel below zero. */
                        bool cancels = op == GM_U_gelu && fabs(got - want) <= 2 * epsilon_of(type) * fabs(x);
                        CHECK(cancels || near_to(got, want, type, type == GM_T_F32 ? 2.5 : 2),
                              "op %d type %d x %.9g: %.9g, want %.9g", op, type, x, got, want);
                    }
                }
                void *cut = buffer((size_t)(n * item_of(out_type)));
                a.out = cut;
                for (int64_t i = 0; i < n; i += 5)
                    kernels->unary(&a, i, i + 5 < n ? i + 5 : n);
                CHECK(same_values(cut, out, out_type, n), "op %d type %d n %d: cut", op, type, (int)n);
                free_buffers();
            }
        }
    }
    float y[5] = {0.5f, -0.999f, 1, 1e-6f, 0.0f}, x[5];
    gm_unary_args a = {.out = x,
                       .in = y,
                       .op = GM_U_erfinv,
                       .type = GM_T_F32,
                       .ndim = 1,
                       .shape = (int64_t[]){5},
                       .strides = &one_stride};
    kernels->unary(&a, 0, 5);
    for (int i = 0; i < 5; i++)
        CHECK(near_to(erf((double)x[i]), (double)y[i], GM_T_F32, 4), "erfinv %g: %g", (double)y[i], (double)x[i]);
    float z[4] = {3, -4, 0.5f, 2}, part[2];
    gm_unary_args c = {.out = part,
                       .in = z,
                       .op = GM_U_imag,
                       .type = GM_T_C64,
                       .ndim = 1,
                       .shape = (int64_t[]){2},
                       .strides = &one_stride};
    kernels->unary(&c, 0, 2);
    CHECK(part[0] == -4 && part[1] == 2, "imag");
    c.op = GM_U_abs;
    float magnitude[4];
    c.out = magnitude;
    kernels->unary(&c, 0, 2);
    CHECK(magnitude[0] == 5 && magnitude[1] == 0, "complex abs");
}

/* ---- binary ---- */
static double binary_want(double a, double b, gm_binary_op op) {
    double r;
    switch (op) {
    case GM_B_add: return a + b;
    case GM_B_subtract: return a - b;
    case GM_B_multiply: return a * b;
    case GM_B_divide: return a / b;
    case GM_B_floor_divide: return floor(a / b);
    case GM_B_remainder: r = fmod(a, b); return r == 0 ? copysign(0, b) : (r < 0) != (b < 0) ? r + b : r;
    case GM_B_power: return pow(a, b);
    case GM_B_maximum: return a != a || b != b ? (double)NAN : fmax(a, b);
    case GM_B_minimum: return a != a || b != b ? (double)NAN : fmin(a, b);
    case GM_B_logaddexp: return a == b ? a + log(2) : fmax(a, b) + log1p(exp(-fabs(a - b)));
    case GM_B_arctan2: return atan2(a, b);
    case GM_B_equal: return a == b;
    case GM_B_not_equal: return a != b;
    case GM_B_less: return a < b;
    case GM_B_less_equal: return a <= b;
    case GM_B_greater: return a > b;
    case GM_B_greater_equal: return a >= b;
    case GM_B_logical_and: return a != 0 && b != 0;
    case GM_B_logical_or: return a != 0 || b != 0;
    case GM_B_logical_xor: return (a != 0) != (b != 0);
    case GM_B_bitwise_and: return (double)((int64_t)a & (int64_t)b);
    case GM_B_bitwise_or: return (double)((int64_t)a | (int64_t)b);
    case GM_B_bitwise_xor: return (double)((int64_t)a ^ (int64_t)b);
    case GM_B_left_shift: return a * exp2(b);
    default: return floor(a / exp2(b));
    }
}
static bool binary_is_test(gm_binary_op op) {
    switch (op) {
#define BINARY_VALUE(name, ...)                                                                                        \
    case GM_B_##name: break;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return true;
#include "binary.def"
    }
    return false;
}

static void test_binary(void) {
    for (int type = 0; type < GM_T_C64; type++) {
        for (int op = 0; op < GM_B_COUNT; op++) {
            bool bits = op >= GM_B_bitwise_and, test = binary_is_test((gm_binary_op)op);
            if (is_float(type) ? bits : op == GM_B_divide || op == GM_B_logaddexp || op == GM_B_arctan2)
                continue;
            if (type == GM_T_BOOL && !test && op != GM_B_bitwise_and && op != GM_B_bitwise_or)
                continue;
            int out_type = test ? GM_T_BOOL : type;
            for (int s = 0; s < N_SIZES; s++) {
                int64_t n = sizes[s];
                size_t bytes = (size_t)(n * item_of(type)), out_bytes = (size_t)(n * item_of(out_type));
                void *a = buffer(bytes), *b = buffer(bytes), *out = buffer(out_bytes), *cut = buffer(out_bytes);
                for (int64_t i = 0; i < n; i++) {
                    double x = uniform() * 5, y = uniform() * 5;
                    if (is_float(type) && n > 100 && i < N_SPECIAL)
                        x = special[i], y = special[i * 5 % N_SPECIAL];
                    if (is_float(type) && i % 4 == 3)
                        y = x;
                    if (!is_float(type))
                        x = trunc(x), y = trunc(y);
                    if (!is_float(type) && (op == GM_B_power || op >= GM_B_left_shift || type < GM_T_I8))
                        y = fabs(y);
                    if (!is_float(type) && type < GM_T_I8)
                        x = fabs(x) + (op == GM_B_subtract ? 5 : 0);
                    if (op == GM_B_power && !is_float(type))
                        y = fmin(y, 2);
                    put(a, type, i, x);
                    put(b, type, i, y);
                }
                gm_binary_args args = {.out = out,
                                       .a = a,
                                       .b = b,
                                       .op = (gm_binary_op)op,
                                       .type = type,
                                       .ndim = 1,
                                       .shape = &n,
                                       .a_strides = &one_stride,
                                       .b_strides = &one_stride};
                kernels->binary(&args, 0, n);
                for (int64_t i = 0; i < n; i++) {
                    double x = get(a, type, i), y = get(b, type, i), want = binary_want(x, y, (gm_binary_op)op);
                    double got = get(out, out_type, i);
                    if (!is_float(type) && y == 0 && op == GM_B_floor_divide)
                        want = 0;
                    if (!is_float(type) && y == 0 && op == GM_B_remainder)
                        want = x;
                    /* the quotient is rounded before its floor; log1p's argument carries an absolute error */
                    if (op == GM_B_floor_divide && type == GM_T_F32)
                        want = floor((double)((float)x / (float)y));
                    if (op == GM_B_floor_divide && type < GM_T_F32 && is_float(type) && fabs(got - want) <= 1)
                        continue;
                    if (op == GM_B_logaddexp && fabs(got - want) < 4e-7)
                        continue;
                    CHECK(near_to(got, want, is_float(out_type) ? out_type : GM_T_F64, type == GM_T_F32 ? 2 : 1),
                          "op %d type %d (%.9g, %.9g): %.9g, want %.9g", op, type, x, y, got, want);
                }
                args.out = cut;
                for (int64_t i = 0; i < n; i += 6)
                    kernels->binary(&args, i, i + 6 < n ? i + 6 : n);
                CHECK(same_values(cut, out, out_type, n), "op %d type %d n %d: cut", op, type, (int)n);
                free_buffers();
            }
        }
    }
    int32_t a[6] = {-7, 7, -7, INT32_MIN, 5, 1}, b[6] = {2, -2, -2, -1, 40, -1}, out[6];
    int64_t n = 6;
    gm_binary_args args = {.out = out,
                           .a = a,
                           .b = b,
                           .op = GM_B_floor_divide,
                           .type = GM_T_I32,
                           .ndim = 1,
                           .shape = &n,
                           .a_strides = &one_stride,
                           .b_strides = &one_stride};
    kernels->binary(&args, 0, n);
    CHECK(out[0] == -4 && out[1] == -4 && out[2] == 3 && out[3] == INT32_MIN, "integer quotients are rounded down");
    args.op = GM_B_remainder;
    kernels->binary(&args, 0, n);
    CHECK(out[0] == 1 && out[1] == -1 && out[2] == -1 && out[3] == 0, "a remainder has the divisor's sign");
    args.op = GM_B_left_shift;
    kernels->binary(&args, 0, n);
    CHECK(out[4] == 5 << 8 && out[5] == INT32_MIN, "shifts by more than the width go modulo it, as x86's");
    args.op = GM_B_right_shift;
    kernels->binary(&args, 0, n);
    CHECK(out[0] == -2 && out[3] == -1 && out[4] == 0, "right shifts keep the sign");
}

/* ---- strides: copy, select, unary and binary against a walk by indices ---- */
static int64_t offset_of(int ndim, const int64_t *shape, const int64_t *strides, int64_t index) {
    int64_t offset = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        offset += index % shape[d] * strides[d];
        index /= shape[d];
    }
    return offset;
}
static void test_strides(void) {
    static const int64_t shapes[][3] = {{3, 5, 7}, {2, 33, 40}, {1, 300, 17}, {4, 2, 1000}, {0, 3, 4}, {40, 40, 3}};
    for (int s = 0; s < 6; s++) {
        for (int layout = 0; layout < 6; layout++) {
            const int64_t *shape = shapes[s], n = shape[0] * shape[1] * shape[2];
            int64_t all = n > 0 ? n : 1, a_strides[3], b_strides[3] = {0, shape[2], 1}, a_base = 0, b_base = 0;
            switch (layout) {
            case 0: memcpy(a_strides, (int64_t[]){shape[1] * shape[2], shape[2], 1}, sizeof a_strides); break;
            case 1: memcpy(a_strides, (int64_t[]){shape[1] * shape[2], 1, shape[1]}, sizeof a_strides); break;
            case 2: memcpy(a_strides, (int64_t[]){1, shape[0], shape[0] * shape[1]}, sizeof a_strides); break;
            case 3:
                memcpy(a_strides, (int64_t[]){-shape[1] * shape[2], shape[2], -1}, sizeof a_strides);
                a_base = all - 1 - (shape[1] - 1) * shape[2];
                break;
            case 4: memcpy(a_strides, (int64_t[]){0, 1, 0}, sizeof a_strides); break;
            default: memcpy(a_strides, (int64_t[]){0, 0, 1}, sizeof a_strides);
            }
            if (layout % 2)
                memcpy(b_strides, (int64_t[]){0, 1, 0}, sizeof b_strides);
            if (a_base < 0)
                a_base = 0;
            float *a = (float *)floats(all, 9) + a_base, *b = (float *)floats(all, 9) + b_base;
            float *sum = buffer((size_t)n * 4), *negative = buffer((size_t)n * 4), *chosen = buffer((size_t)n * 4);
            float *copied = buffer((size_t)n * 4), *spread = floats(2 * all, 1);
            uint16_t *half = buffer((size_t)n * 2);
            uint8_t *cond = buffer((size_t)n);
            for (int64_t i = 0; i < n; i++)
                cond[i] = uniform() > 0;
            const int64_t dense[3] = {shape[1] * shape[2], shape[2], 1};
            const int64_t wide[3] = {2 * shape[1] * shape[2], 2 * shape[2], 2};
            for (int64_t begin = 0, end; begin < n; begin = end) {
                end = begin + 1 + (int64_t)(fabs(uniform()) * (double)n);
                if (end > n)
                    end = n;
                kernels->binary(&(gm_binary_args){sum, a, b, GM_B_add, GM_T_F32, 3, shape, a_strides, b_strides}, begin,
                                end);
                kernels->unary(&(gm_unary_args){negative, a, GM_U_negative, GM_T_F32, 3, shape, a_strides}, begin, end);
                kernels->select(&(gm_select_args){chosen, cond, a, b, 4, 3, shape, dense, a_strides, b_strides}, begin,
                                end);
                kernels->copy(&(gm_copy_args){copied, a, GM_T_F32, GM_T_F32, 3, shape, dense, a_strides}, begin, end);
                kernels->copy(&(gm_copy_args){half, a, GM_T_BF16, GM_T_F32, 3, shape, dense, a_strides}, begin, end);
                kernels->copy(&(gm_copy_args){spread, a, GM_T_F32, GM_T_F32, 3, shape, wide, a_strides}, begin, end);
            }
            for (int64_t i = 0; i < n; i++) {
                float x = a[offset_of(3, shape, a_strides, i)], y = b[offset_of(3, shape, b_strides, i)];
                CHECK(sum[i] == x + y, "add layout %d shape %d at %d", layout, s, (int)i);
                CHECK(negative[i] == -x, "negative layout %d shape %d at %d", layout, s, (int)i);
                CHECK(chosen[i] == (cond[i] ? x : y), "select layout %d shape %d at %d", layout, s, (int)i);
                CHECK(copied[i] == x && spread[2 * i] == x, "copy layout %d shape %d at %d", layout, s, (int)i);
                CHECK(half[i] == bfloat_of((double)x), "cast layout %d shape %d at %d", layout, s, (int)i);
            }
            free_buffers();
        }
    }
    float scalar = 3, out = 0;
    kernels->copy(&(gm_copy_args){&out, &scalar, GM_T_F32, GM_T_F32, 0, NULL, NULL, NULL}, 0, 1);
    CHECK(out == 3, "a copy of no dimensions");
}

/* ---- casts: every pair of types, and every float16 and bfloat16 ---- */
static void test_casts(void) {
    for (int from = 0; from < GM_T_COUNT; from++) {
        for (int to = 0; to < GM_T_COUNT; to++) {
            int64_t n = 37;
            void *in = buffer((size_t)(n * item_of(from))), *out = buffer((size_t)(n * item_of(to)));
            for (int64_t i = 0; i < n; i++)
                put(in, from, i, from < GM_T_I8 ? (double)i : (double)(i - 18) * 1.25);
            kernels->copy(&(gm_copy_args){out, in, to, from, 1, &n, &one_stride, &one_stride}, 0, n);
            for (int64_t i = 0; i < n; i++) {
                double x = get(in, from, i), want = x, room = 0;
                if (!is_float(to) && to != GM_T_C64)
                    put(&room, to, 0, trunc(x)), want = get(&room, to, 0);
                if (to == GM_T_BOOL)
                    want = x != 0;
                CHECK(get(out, to, i) == want, "cast %d to %d of %g: %g, want %g", from, to, x, get(out, to, i), want);
            }
            free_buffers();
        }
    }
    int64_t n = 65536;
    uint16_t *in = buffer((size_t)n * 2), *back = buffer((size_t)n * 2);
    float *wide = buffer((size_t)n * 4), *odd = buffer((size_t)n * 4);
    for (int type = GM_T_F16; type <= GM_T_BF16; type++) {
        for (int64_t i = 0; i < n; i++)
            in[i] = (uint16_t)i;
        kernels->copy(&(gm_copy_args){wide, in, GM_T_F32, type, 1, &n, &one_stride, &one_stride}, 0, n);
        kernels->copy(&(gm_copy_args){back, wide, type, GM_T_F32, 1, &n, &one_stride, &one_stride}, 0, n);
        for (int64_t i = 0; i < n; i++) {
            double x = get(in, type, i);
            CHECK(x != x ? wide[i] != wide[i] : (double)wide[i] == x, "type %d bits %x", type, (int)i);
            CHECK(x != x ? get(back, type, i) != get(back, type, i) : back[i] == in[i], "type %d bits %x back", type,
                  (int)i);
        }
        for (int64_t i = 0; i < n; i++) { /* ties and what lies beside them */
            uint32_t bits = (uint32_t)i << 16 | (i % 3 == 0 ? 0x8000u : i % 3 == 1 ? 0x1000u : 0x3001u);
            memcpy(&odd[i], &bits, 4);
        }
        kernels->copy(&(gm_copy_args){back, odd, type, GM_T_F32, 1, &n, &one_stride, &one_stride}, 0, n);
        for (int64_t i = 0; i < n; i++) {
            uint16_t want = type == GM_T_F16 ? half_of((double)odd[i]) : bfloat_of((double)odd[i]);
            CHECK(odd[i] != odd[i] ? get(back, type, i) != get(back, type, i) : back[i] == want,
                  "type %d round %a: %x, want %x", type, (double)odd[i], back[i], want);
        }
    }
    free_buffers();
    int32_t range[4];
    kernels->arange(&(gm_arange_args){range, GM_T_I32, -3, 2}, 0, 4);
    CHECK(range[0] == -3 && range[3] == 3, "arange");
    double steps[4];
    kernels->arange(&(gm_arange_args){steps, GM_T_F64, 1, 0.5}, 0, 4);
    CHECK(steps[3] == 2.5, "arange of doubles");
}

/* ---- reductions ---- */
static void test_reduce(void) {
    static const int64_t shapes[][3] = {{3, 5, 7}, {2, 17, 33}, {1, 1, 5000}, {3, 3000, 5}, {2, 40, 130}};
    static const int types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_I32, GM_T_U8, GM_T_BOOL};
    for (int s = 0; s < 5; s++)
        for (int kept = 0; kept < 8; kept++)
            for (int t = 0; t < 7; t++)
                for (int op = 0; op < GM_R_COUNT; op++) {
                    int type = types[t], out_type = type, n_kept = 0, n_reduced = 0;
                    if (quick && shapes[s][1] == 3000)
                        continue;
                    if (!is_float(type) && op == GM_R_LOGSUMEXP)
                        continue;
                    if (op <= GM_R_PROD && !is_float(type))
                        out_type = GM_T_I32;
                    if (op == GM_R_ALL || op == GM_R_ANY)
                        out_type = GM_T_BOOL;
                    const int64_t *shape = shapes[s], strides[3] = {shape[1] * shape[2], shape[2], 1},
                                  n = shape[0] * strides[0];
                    int64_t kept_shape[3], kept_strides[3], reduced_shape[3], reduced_strides[3], outs = 1, count = 1;
                    for (int d = 0; d < 3; d++) {
                        if (kept >> d & 1)
                            kept_shape[n_kept] = shape[d], kept_strides[n_kept++] = strides[d], outs *= shape[d];
                        else
                            reduced_shape[n_reduced] = shape[d], reduced_strides[n_reduced++] = strides[d],
                            count *= shape[d];
                    }
                    void *in = buffer((size_t)(n * item_of(type))), *out = buffer((size_t)(outs * item_of(out_type)));
                    void *cut = buffer((size_t)(outs * item_of(out_type)));
                    for (int64_t i = 0; i < n; i++) {
                        double x = op == GM_R_PROD ? 1 + uniform() / 16 : uniform() * 4;
                        put(in, type, i, is_float(type) ? x : op == GM_R_PROD ? 1 : fabs(trunc(x)));
                    }
                    gm_reduce_args a = {
                        out,        in,           (gm_reduce_op)op, type,          out_type,       n_kept,
                        kept_shape, kept_strides, n_reduced,        reduced_shape, reduced_strides};
                    kernels->reduce(&a, 0, outs);
                    for (int64_t i = 0; i < outs; i++) {
                        int64_t base = offset_of(n_kept, kept_shape, kept_strides, i);
                        double sum = 0, sizes_sum = 0, product = 1, high = -(double)INFINITY, low = (double)INFINITY,
                               exps = 0;
                        bool all = true, any = false;
                        for (int64_t j = 0; j < count; j++) {
                            double x = get(in, type, base + offset_of(n_reduced, reduced_shape, reduced_strides, j));
                            sum += x, sizes_sum += fabs(x), product *= x, exps += op == GM_R_LOGSUMEXP ? exp(x) : 0;
                            high = fmax(high, x), low = fmin(low, x), all &= x != 0, any |= x != 0;
                        }
                        double got = get(out, out_type, i), eps = epsilon_of(is_float(out_type) ? out_type : GM_T_F64);
                        double want = op == GM_R_SUM    ? sum
                                      : op == GM_R_PROD ? product
                                      : op == GM_R_MAX  ? high
                                      : op == GM_R_MIN  ? low
                                      : op == GM_R_ALL  ? all
                                      : op == GM_R_ANY  ? any
                                                        : log(exps);
                        double room = op == GM_R_SUM         ? 1e-6 * sizes_sum
                                      : op == GM_R_PROD      ? 3e-7 * (double)count * fabs(product)
                                      : op == GM_R_LOGSUMEXP ? 1e-6 * fabs(want) + 1e-6
                                                             : 0;
                        if (!is_float(type) || op == GM_R_MAX || op == GM_R_MIN)
                            room = 0, eps = 0;
                        CHECK(fabs(got - want) <= room + 2 * eps * fabs(want) + tiny_of(type),
                              "reduce op %d type %d shape %d kept %d at %d: %g, want %g", op, type, s, kept, (int)i,
                              got, want);
                    }
                    a.out = cut;
                    for (int64_t i = 0; i < outs; i += 3)
                        kernels->reduce(&a, i, i + 3 < outs ? i + 3 : outs);
                    CHECK(same(cut, out, (size_t)(outs * item_of(out_type))),
                          "reduce op %d type %d shape %d kept %d: cut", op, type, s, kept);
                    free_buffers();
                }
    for (int64_t place = 0; place < 40; place++) { /* a NaN anywhere */
        float x[40], high, low;
        uint32_t index;
        int64_t n = 40, stride = 1;
        for (int i = 0; i < 40; i++)
            x[i] = (float)i;
        x[place] = NAN;
        kernels->reduce(&(gm_reduce_args){&high, x, GM_R_MAX, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &n, &stride}, 0, 1);
        kernels->reduce(&(gm_reduce_args){&low, x, GM_R_MIN, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &n, &stride}, 0, 1);
        kernels->arg_reduce(&(gm_arg_reduce_args){&index, x, true, GM_T_F32, 0, NULL, NULL, n, stride}, 0, 1);
        CHECK(high != high && low != low && index == (uint32_t)place, "NaN at %d", (int)place);
    }
    float empty_sum = 5, none[1];
    int64_t zero = 0;
    kernels->reduce(
        &(gm_reduce_args){&empty_sum, none, GM_R_SUM, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &zero, &one_stride}, 0, 1);
    CHECK(empty_sum == 0, "the sum of nothing: %g", (double)empty_sum);

    static const int arg_types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_I32, GM_T_U8, GM_T_U64};
    for (int t = 0; t < 7; t++)
        for (int s = 1; s < N_SIZES; s++)
            for (int max = 0; max < 2; max++)
                for (int across = 0; across < 2; across++) {
                    int64_t rows = 3, n = sizes[s] * 3 + 1, stride = across ? rows : 1, row_stride = across ? 1 : n;
                    void *in = buffer((size_t)(rows * n * item_of(arg_types[t])));
                    uint32_t got[3];
                    for (int64_t i = 0; i < rows * n; i++)
                        put(in, arg_types[t], i, fabs(trunc(uniform() * 50))); /* ties */
                    kernels->arg_reduce(
                        &(gm_arg_reduce_args){got, in, max != 0, arg_types[t], 1, &rows, &row_stride, n, stride}, 0,
                        rows);
                    for (int64_t r = 0; r < rows; r++) {
                        int64_t want = 0;
                        for (int64_t i = 1; i < n; i++) {
                            double x = get(in, arg_types[t], r * row_stride + i * stride), best;
                            best = get(in, arg_types[t], r * row_stride + want * stride);
                            if (max ? x > best : x < best)
                                want = i;
                        }
                        CHECK(got[r] == want, "arg type %d n %d: %u, want %d", arg_types[t], (int)n, got[r], (int)want);
                    }
                    free_buffers();
                }
}

int main(int argc, char **argv) {
    return RUN_TESTS(ABOUT(unary, test_unary), ABOUT(binary, test_binary), ABOUT(copy, test_strides),
                     ABOUT(copy, test_casts), ABOUT(reduce, test_reduce));
}
