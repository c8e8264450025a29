/* test_float_kernels.c - the kernels that are not about block formats, in every table that this machine runs, against
 * their definitions in double, and bit for bit against themselves however ranges, batches and blocks are cut.
 * Every buffer ends at a page that may not be touched. Prints "N passed, M failed".
 * test_float_kernels [quick]: for emulators, without the longest reduction and every second scene of attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kernels.h"

static const gm_kernels *kernels;
static long passed, failed;
static bool quick;

#define CHECK(condition, ...) do { \
    if (condition) { passed++; } \
    else { \
        failed++; \
        if (failed < 40) { \
            printf("%s:%d: %s: %s: ", __FILE__, __LINE__, kernels->isa, #condition); \
            printf(__VA_ARGS__); \
            printf("\n"); \
        } \
    } \
} while (0)

/* ---- memory with guard pages; all of it goes back at once ---- */
#define MAX_BUFFERS 256
static struct { void *base; size_t bytes; } buffers[MAX_BUFFERS];
static int n_buffers;

static void *buffer(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page + 2 * page;
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || n_buffers == MAX_BUFFERS) {
        printf("no memory for a test\n");
        exit(2);
    }
    mprotect(base, page, PROT_NONE);
    mprotect(base + size - page, page, PROT_NONE);
    buffers[n_buffers].base = base;
    buffers[n_buffers++].bytes = size;
    return base + size - page - bytes;
}
static void free_buffers(void)
{
    while (n_buffers > 0) {
        n_buffers--;
        munmap(buffers[n_buffers].base, buffers[n_buffers].bytes);
    }
}

/* ---- values ---- */
static uint64_t state = 88172645463325252u;
static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53 * 2 - 1;
}
static float *floats(int64_t n, double scale)
{
    float *x = buffer((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(uniform() * scale);
    return x;
}
static int item_of(int type)
{
    static const int size[GM_T_COUNT] = { 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8 };
    return size[type];
}
static double half_to_double(uint16_t h)
{
    double sign = h & 0x8000 ? -1 : 1;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    return exponent ? sign * ldexp(1024 + fraction, exponent - 25) : sign * ldexp(fraction, -24);
}
static double get(const void *p, int type, int64_t i)
{
    uint32_t bits;
    float f;
    switch (type) {
    case GM_T_BOOL: case GM_T_U8: return ((const uint8_t *)p)[i];
    case GM_T_U16: return ((const uint16_t *)p)[i];
    case GM_T_U32: return ((const uint32_t *)p)[i];
    case GM_T_U64: return (double)((const uint64_t *)p)[i];
    case GM_T_I8: return ((const int8_t *)p)[i];
    case GM_T_I16: return ((const int16_t *)p)[i];
    case GM_T_I32: return ((const int32_t *)p)[i];
    case GM_T_I64: return (double)((const int64_t *)p)[i];
    case GM_T_F16: return half_to_double(((const uint16_t *)p)[i]);
    case GM_T_BF16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case GM_T_F32: return (double)((const float *)p)[i];
    case GM_T_C64: return (double)((const float *)p)[2 * i];
    default: return ((const double *)p)[i];
    }
}
/* Through the double's own bits: to nearest even. */
static uint16_t half_of(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x) return 0x7e00;
    if (x >= 65520) return sign | 0x7c00;
    if (x < 0x1p-14) return (uint16_t)(sign | (int)nearbyint(x * 0x1p24));
    int exponent;
    double m = frexp(x, &exponent);                      /* [0.5, 1) */
    int fraction = (int)nearbyint(ldexp(m, 11));         /* [1024, 2048] */
    return (uint16_t)(sign | ((exponent + 13) * 1024 + fraction));
}
static uint16_t bfloat_of(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static void put(void *p, int type, int64_t i, double x)
{
    switch (type) {
    case GM_T_BOOL: ((uint8_t *)p)[i] = x != 0; break;
    case GM_T_U8: ((uint8_t *)p)[i] = (uint8_t)(int64_t)x; break;
    case GM_T_U16: ((uint16_t *)p)[i] = (uint16_t)(int64_t)x; break;
    case GM_T_U32: ((uint32_t *)p)[i] = (uint32_t)(int64_t)x; break;
    case GM_T_U64: ((uint64_t *)p)[i] = (uint64_t)(int64_t)x; break;
    case GM_T_I8: ((int8_t *)p)[i] = (int8_t)x; break;
    case GM_T_I16: ((int16_t *)p)[i] = (int16_t)x; break;
    case GM_T_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case GM_T_I64: ((int64_t *)p)[i] = (int64_t)x; break;
    case GM_T_F16: ((uint16_t *)p)[i] = half_of(x); break;
    case GM_T_BF16: ((uint16_t *)p)[i] = bfloat_of(x); break;
    case GM_T_F32: ((float *)p)[i] = (float)x; break;
    case GM_T_C64: ((float *)p)[2 * i] = (float)x; ((float *)p)[2 * i + 1] = (float)(x / 2); break;
    default: ((double *)p)[i] = x;
    }
}
static bool is_float(int type) { return type >= GM_T_F16 && type <= GM_T_F64; }
static double epsilon_of(int type)
{
    return type == GM_T_F16 ? 0x1p-11 : type == GM_T_BF16 ? 0x1p-8 : type == GM_T_F32 ? 0x1p-24 : 0x1p-53;
}
static double tiny_of(int type) { return type == GM_T_F16 ? 0x1p-24 : type == GM_T_F64 ? 0x1p-1074 : 0x1p-126; }
static double huge_of(int type) { return type == GM_T_F16 ? 65504 : type == GM_T_F64 ? 1.7e308 : 3.38e38; }
/* Within ulps units in the last place of the type; an overflow may be the type's infinity. */
static bool near_to(double got, double want, int type, double ulps)
{
    if (want != want) return got != got;
    if (got == want) return true;
    if (fabs(want) >= huge_of(type))
        return got == copysign((double)INFINITY, want) || fabs(got) >= 0.99 * huge_of(type);
    return fabs(got - want) <= ulps * 2 * epsilon_of(type) * fabs(want) + tiny_of(type);
}
static bool same(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }
/* One NaN is as good as another: which operand's bits it gets is the compiler's choice. */
static bool same_values(const void *a, const void *b, int type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = get(a, type, i), y = get(b, type, i);
        if (x == x ? x != y || signbit(x) != signbit(y) : y == y) return false;
    }
    return true;
}

static const int64_t sizes[] = { 0, 1, 7, 8, 15, 16, 17, 33, 1000 };
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))
static const int64_t one_stride = 1;

/* ---- unary ---- */
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double unary_want(double x, gm_unary_op op)
{
    switch (op) {
    case GM_U_ABS: return fabs(x);
    case GM_U_NEGATIVE: return -x;
    case GM_U_SIGN: return (x > 0) - (x < 0);
    case GM_U_SQUARE: return x * x;
    case GM_U_SQRT: return sqrt(x);
    case GM_U_RSQRT: return 1 / sqrt(x);
    case GM_U_RECIPROCAL: return 1 / x;
    case GM_U_EXP: return exp(x);
    case GM_U_EXPM1: return expm1(x);
    case GM_U_LOG: return log(x);
    case GM_U_LOG2: return log2(x);
    case GM_U_LOG10: return log10(x);
    case GM_U_LOG1P: return log1p(x);
    case GM_U_SIN: return sin(x);
    case GM_U_COS: return cos(x);
    case GM_U_TAN: return tan(x);
    case GM_U_ARCSIN: return asin(x);
    case GM_U_ARCCOS: return acos(x);
    case GM_U_ARCTAN: return atan(x);
    case GM_U_SINH: return sinh(x);
    case GM_U_COSH: return cosh(x);
    case GM_U_TANH: return tanh(x);
    case GM_U_ARCSINH: return asinh(x);
    case GM_U_ARCCOSH: return acosh(x);
    case GM_U_ARCTANH: return atanh(x);
    case GM_U_ERF: return erf(x);
    case GM_U_SIGMOID: return sigmoid(x);
    case GM_U_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case GM_U_FLOOR: return floor(x);
    case GM_U_CEIL: return ceil(x);
    case GM_U_TRUNC: return trunc(x);
    case GM_U_ROUND: return nearbyint(x);
    case GM_U_LOGICAL_NOT: return x == 0;
    case GM_U_ISNAN: return x != x;
    case GM_U_ISINF: return isinf(x) != 0;
    case GM_U_ISFINITE: return isfinite(x);
    case GM_U_ISPOSINF: return x == (double)INFINITY;
    case GM_U_ISNEGINF: return x == -(double)INFINITY;
    case GM_U_IMAG: return 0;
    default: return x;
    }
}
static bool unary_is_test(gm_unary_op op)
{
    return op == GM_U_LOGICAL_NOT || (op >= GM_U_ISNAN && op <= GM_U_ISNEGINF);
}

static const double special[] = { 0.0, -0.0, 1, -1, 0.5, 2.5, -2.5, 3.5, (double)INFINITY, -(double)INFINITY,
    (double)NAN,
                                  88.7, 89.5, -87.5, -103, -150, 1e-30, -1e-30, 1e30, 3e38, 1e-40, 40000, -1e6, 0.92,
                                  -0.625, 7.999e-5, 0.9999 };
#define N_SPECIAL ((int64_t)(sizeof special / sizeof *special))

static void test_unary(void)
{
    for (int type = 0; type < GM_T_C64; type++) {
        for (int op = 0; op < GM_U_COUNT; op++) {
            bool meant_for_ints = op <= GM_U_SQUARE || op >= GM_U_FLOOR;
            if (!is_float(type) && (!meant_for_ints || op == GM_U_BITWISE_INVERT)) continue;
            if (is_float(type) && (op == GM_U_BITWISE_INVERT || op == GM_U_ERFINV)) continue;
            if (type == GM_T_BOOL && (op == GM_U_NEGATIVE || op == GM_U_SQUARE)) continue;
            int out_type = unary_is_test((gm_unary_op)op) ? GM_T_BOOL : type;
            for (int s = 0; s < N_SIZES; s++) {
                int64_t n = sizes[s];
                void *in = buffer((size_t)(n * item_of(type))), *out = buffer((size_t)(n * item_of(out_type)));
                for (int64_t i = 0; i < n; i++) {
                    double range = i % 3 == 0 ? 1 : i % 3 == 1 ? 20 : 11;
                    double x = is_float(type) && i < N_SPECIAL && n > 100 ? special[i] : uniform() * range;
                    put(in, type, i, is_float(type) || type >= GM_T_I8 ? x : fabs(x));
                }
                gm_unary_args a = { .out = out, .in = in, .op = (gm_unary_op)op, .type = type, .ndim = 1, .shape = &n,
                                    .strides = &one_stride };
                kernels->unary(&a, 0, n);
                for (int64_t i = 0; i < n; i++) {
                    double x = get(in, type, i), want = unary_want(x, (gm_unary_op)op), got = get(out, out_type, i);
                    if (!is_float(out_type)) {
                        double wrapped = want;
                        if (type <= GM_T_I64) put(&wrapped, type, 0, want), wrapped = get(&wrapped, type, 0);
                        CHECK(got == wrapped, "op %d type %d x %g: %g, want %g", op, type, x, got, wrapped);
                    } else {
                        /* Gelu's two halves cancel below zero. */
                        bool cancels = op == GM_U_GELU && fabs(got - want) <= 2 * epsilon_of(type) * fabs(x);
                        CHECK(cancels || near_to(got, want, type, type == GM_T_F32 ? 2.5 : 2),
                              "op %d type %d x %.9g: %.9g, want %.9g",
                              op, type, x, got, want);
                    }
                }
                void *cut = buffer((size_t)(n * item_of(out_type)));
                a.out = cut;
                for (int64_t i = 0; i < n; i += 5) kernels->unary(&a, i, i + 5 < n ? i + 5 : n);
                CHECK(same_values(cut, out, out_type, n), "op %d type %d n %d: cut", op, type, (int)n);
                free_buffers();
            }
        }
    }
    float y[5] = { 0.5f, -0.999f, 1, 1e-6f, 0.0f }, x[5];
    gm_unary_args a = { .out = x, .in = y, .op = GM_U_ERFINV, .type = GM_T_F32, .ndim = 1, .shape = (int64_t[]){ 5 },
                        .strides = &one_stride };
    kernels->unary(&a, 0, 5);
    for (int i = 0; i < 5; i++) CHECK(near_to(erf((double)x[i]), (double)y[i], GM_T_F32, 4), "erfinv %g: %g",
        (double)y[i], (double)x[i]);
    float z[4] = { 3, -4, 0.5f, 2 }, part[2];
    gm_unary_args c = { .out = part, .in = z, .op = GM_U_IMAG, .type = GM_T_C64, .ndim = 1, .shape = (int64_t[]){ 2 },
                        .strides = &one_stride };
    kernels->unary(&c, 0, 2);
    CHECK(part[0] == -4 && part[1] == 2, "imag");
    c.op = GM_U_ABS;
    float magnitude[4];
    c.out = magnitude;
    kernels->unary(&c, 0, 2);
    CHECK(magnitude[0] == 5 && magnitude[1] == 0, "complex abs");
}

/* ---- binary ---- */
static double binary_want(double a, double b, gm_binary_op op)
{
    double r;
    switch (op) {
    case GM_B_ADD: return a + b;
    case GM_B_SUBTRACT: return a - b;
    case GM_B_MULTIPLY: return a * b;
    case GM_B_DIVIDE: return a / b;
    case GM_B_FLOOR_DIVIDE: return floor(a / b);
    case GM_B_REMAINDER:
        r = fmod(a, b);
        return r == 0 ? copysign(0, b) : (r < 0) != (b < 0) ? r + b : r;
    case GM_B_POWER: return pow(a, b);
    case GM_B_MAXIMUM: return a != a || b != b ? (double)NAN : fmax(a, b);
    case GM_B_MINIMUM: return a != a || b != b ? (double)NAN : fmin(a, b);
    case GM_B_LOGADDEXP: return a == b ? a + log(2) : fmax(a, b) + log1p(exp(-fabs(a - b)));
    case GM_B_ARCTAN2: return atan2(a, b);
    case GM_B_EQUAL: return a == b;
    case GM_B_NOT_EQUAL: return a != b;
    case GM_B_LESS: return a < b;
    case GM_B_LESS_EQUAL: return a <= b;
    case GM_B_GREATER: return a > b;
    case GM_B_GREATER_EQUAL: return a >= b;
    case GM_B_LOGICAL_AND: return a != 0 && b != 0;
    case GM_B_LOGICAL_OR: return a != 0 || b != 0;
    case GM_B_LOGICAL_XOR: return (a != 0) != (b != 0);
    case GM_B_BITWISE_AND: return (double)((int64_t)a & (int64_t)b);
    case GM_B_BITWISE_OR: return (double)((int64_t)a | (int64_t)b);
    case GM_B_BITWISE_XOR: return (double)((int64_t)a ^ (int64_t)b);
    case GM_B_LEFT_SHIFT: return a * exp2(b);
    default: return floor(a / exp2(b));
    }
}
static bool binary_is_test(gm_binary_op op) { return op >= GM_B_EQUAL && op <= GM_B_LOGICAL_XOR; }

static void test_binary(void)
{
    for (int type = 0; type < GM_T_C64; type++) {
        for (int op = 0; op < GM_B_COUNT; op++) {
            bool bits = op >= GM_B_BITWISE_AND, test = binary_is_test((gm_binary_op)op);
            if (is_float(type) ? bits : op == GM_B_DIVIDE || op == GM_B_LOGADDEXP || op == GM_B_ARCTAN2) continue;
            if (type == GM_T_BOOL && !test && op != GM_B_BITWISE_AND && op != GM_B_BITWISE_OR) continue;
            int out_type = test ? GM_T_BOOL : type;
            for (int s = 0; s < N_SIZES; s++) {
                int64_t n = sizes[s];
                size_t bytes = (size_t)(n * item_of(type)), out_bytes = (size_t)(n * item_of(out_type));
                void *a = buffer(bytes), *b = buffer(bytes), *out = buffer(out_bytes), *cut = buffer(out_bytes);
                for (int64_t i = 0; i < n; i++) {
                    double x = uniform() * 5, y = uniform() * 5;
                    if (is_float(type) && n > 100 && i < N_SPECIAL) x = special[i], y = special[i * 5 % N_SPECIAL];
                    if (is_float(type) && i % 4 == 3) y = x;
                    if (!is_float(type)) x = trunc(x), y = trunc(y);
                    if (!is_float(type) && (op == GM_B_POWER || op >= GM_B_LEFT_SHIFT || type < GM_T_I8)) y = fabs(y);
                    if (!is_float(type) && type < GM_T_I8) x = fabs(x) + (op == GM_B_SUBTRACT ? 5 : 0);
                    if (op == GM_B_POWER && !is_float(type)) y = fmin(y, 2);
                    put(a, type, i, x);
                    put(b, type, i, y);
                }
                gm_binary_args args = { .out = out, .a = a, .b = b, .op = (gm_binary_op)op, .type = type, .ndim = 1,
                                        .shape = &n, .a_strides = &one_stride, .b_strides = &one_stride };
                kernels->binary(&args, 0, n);
                for (int64_t i = 0; i < n; i++) {
                    double x = get(a, type, i), y = get(b, type, i), want = binary_want(x, y, (gm_binary_op)op);
                    double got = get(out, out_type, i);
                    if (!is_float(type) && y == 0 && op == GM_B_FLOOR_DIVIDE) want = 0;
                    if (!is_float(type) && y == 0 && op == GM_B_REMAINDER) want = x;
                    /* the quotient is rounded before its floor; log1p's argument carries an absolute error */
                    if (op == GM_B_FLOOR_DIVIDE && type == GM_T_F32) want = floor((double)((float)x / (float)y));
                    if (op == GM_B_FLOOR_DIVIDE && type < GM_T_F32 && is_float(type) && fabs(got - want) <= 1) continue;
                    if (op == GM_B_LOGADDEXP && fabs(got - want) < 4e-7) continue;
                    CHECK(near_to(got, want, is_float(out_type) ? out_type : GM_T_F64, type == GM_T_F32 ? 2 : 1),
                          "op %d type %d (%.9g, %.9g): %.9g, want %.9g", op, type, x, y, got, want);
                }
                args.out = cut;
                for (int64_t i = 0; i < n; i += 6) kernels->binary(&args, i, i + 6 < n ? i + 6 : n);
                CHECK(same_values(cut, out, out_type, n), "op %d type %d n %d: cut", op, type, (int)n);
                free_buffers();
            }
        }
    }
    int32_t a[6] = { -7, 7, -7, INT32_MIN, 5, 1 }, b[6] = { 2, -2, -2, -1, 40, -1 }, out[6];
    int64_t n = 6;
    gm_binary_args args = { .out = out, .a = a, .b = b, .op = GM_B_FLOOR_DIVIDE, .type = GM_T_I32, .ndim = 1,
        .shape = &n,
                            .a_strides = &one_stride, .b_strides = &one_stride };
    kernels->binary(&args, 0, n);
    CHECK(out[0] == -4 && out[1] == -4 && out[2] == 3 && out[3] == INT32_MIN, "integer quotients are rounded down");
    args.op = GM_B_REMAINDER;
    kernels->binary(&args, 0, n);
    CHECK(out[0] == 1 && out[1] == -1 && out[2] == -1 && out[3] == 0, "a remainder has the divisor's sign");
    args.op = GM_B_LEFT_SHIFT;
    kernels->binary(&args, 0, n);
    CHECK(out[4] == 0 && out[5] == 0, "shifts by more than the width");
    args.op = GM_B_RIGHT_SHIFT;
    kernels->binary(&args, 0, n);
    CHECK(out[0] == -2 && out[3] == -1 && out[4] == 0, "right shifts keep the sign");
}

/* ---- strides: copy, select, unary and binary against a walk by indices ---- */
static int64_t offset_of(int ndim, const int64_t *shape, const int64_t *strides, int64_t index)
{
    int64_t offset = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        offset += index % shape[d] * strides[d];
        index /= shape[d];
    }
    return offset;
}
static void test_strides(void)
{
    static const int64_t shapes[][3] = { { 3, 5, 7 }, { 2, 33, 40 }, { 1, 300, 17 }, { 4, 2, 1000 }, { 0, 3, 4 },
        { 40, 40, 3 } };
    for (int s = 0; s < 6; s++) {
        for (int layout = 0; layout < 6; layout++) {
            const int64_t *shape = shapes[s], n = shape[0] * shape[1] * shape[2];
            int64_t all = n > 0 ? n : 1, a_strides[3], b_strides[3] = { 0, shape[2], 1 }, a_base = 0, b_base = 0;
            switch (layout) {
            case 0: memcpy(a_strides, (int64_t[]){ shape[1] * shape[2], shape[2], 1 }, sizeof a_strides); break;
            case 1: memcpy(a_strides, (int64_t[]){ shape[1] * shape[2], 1, shape[1] }, sizeof a_strides); break;
            case 2: memcpy(a_strides, (int64_t[]){ 1, shape[0], shape[0] * shape[1] }, sizeof a_strides); break;
            case 3: memcpy(a_strides, (int64_t[]){ -shape[1] * shape[2], shape[2], -1 }, sizeof a_strides);
                a_base = all - 1 - (shape[1] - 1) * shape[2]; break;
            case 4: memcpy(a_strides, (int64_t[]){ 0, 1, 0 }, sizeof a_strides); break;
            default: memcpy(a_strides, (int64_t[]){ 0, 0, 1 }, sizeof a_strides);
            }
            if (layout % 2) memcpy(b_strides, (int64_t[]){ 0, 1, 0 }, sizeof b_strides);
            if (a_base < 0) a_base = 0;
            float *a = (float *)floats(all, 9) + a_base, *b = (float *)floats(all, 9) + b_base;
            float *sum = buffer((size_t)n * 4), *negative = buffer((size_t)n * 4), *chosen = buffer((size_t)n * 4);
            float *copied = buffer((size_t)n * 4), *spread = floats(2 * all, 1);
            uint16_t *half = buffer((size_t)n * 2);
            uint8_t *cond = buffer((size_t)n);
            for (int64_t i = 0; i < n; i++) cond[i] = uniform() > 0;
            const int64_t dense[3] = { shape[1] * shape[2], shape[2], 1 };
            const int64_t wide[3] = { 2 * shape[1] * shape[2], 2 * shape[2], 2 };
            for (int64_t begin = 0, end; begin < n; begin = end) {
                end = begin + 1 + (int64_t)(fabs(uniform()) * (double)n);
                if (end > n) end = n;
                kernels->binary(&(gm_binary_args){ sum, a, b, GM_B_ADD, GM_T_F32, 3, shape, a_strides, b_strides },
                    begin, end);
                kernels->unary(&(gm_unary_args){ negative, a, GM_U_NEGATIVE, GM_T_F32, 3, shape, a_strides }, begin,
                    end);
                kernels->select(&(gm_select_args){ chosen, cond, a, b, 4, 3, shape, dense, a_strides, b_strides },
                    begin, end);
                kernels->copy(&(gm_copy_args){ copied, a, GM_T_F32, GM_T_F32, 3, shape, dense, a_strides }, begin, end);
                kernels->copy(&(gm_copy_args){ half, a, GM_T_BF16, GM_T_F32, 3, shape, dense, a_strides }, begin, end);
                kernels->copy(&(gm_copy_args){ spread, a, GM_T_F32, GM_T_F32, 3, shape, wide, a_strides }, begin, end);
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
    kernels->copy(&(gm_copy_args){ &out, &scalar, GM_T_F32, GM_T_F32, 0, NULL, NULL, NULL }, 0, 1);
    CHECK(out == 3, "a copy of no dimensions");
}

/* ---- casts: every pair of types, and every float16 and bfloat16 ---- */
static void test_casts(void)
{
    for (int from = 0; from < GM_T_COUNT; from++) {
        for (int to = 0; to < GM_T_COUNT; to++) {
            int64_t n = 37;
            void *in = buffer((size_t)(n * item_of(from))), *out = buffer((size_t)(n * item_of(to)));
            for (int64_t i = 0; i < n; i++) put(in, from, i, from < GM_T_I8 ? (double)i : (double)(i - 18) * 1.25);
            kernels->copy(&(gm_copy_args){ out, in, to, from, 1, &n, &one_stride, &one_stride }, 0, n);
            for (int64_t i = 0; i < n; i++) {
                double x = get(in, from, i), want = x, room = 0;
                if (!is_float(to) && to != GM_T_C64) put(&room, to, 0, trunc(x)), want = get(&room, to, 0);
                if (to == GM_T_BOOL) want = x != 0;
                CHECK(get(out, to, i) == want, "cast %d to %d of %g: %g, want %g", from, to, x, get(out, to, i), want);
            }
            free_buffers();
        }
    }
    int64_t n = 65536;
    uint16_t *in = buffer((size_t)n * 2), *back = buffer((size_t)n * 2);
    float *wide = buffer((size_t)n * 4), *odd = buffer((size_t)n * 4);
    for (int type = GM_T_F16; type <= GM_T_BF16; type++) {
        for (int64_t i = 0; i < n; i++) in[i] = (uint16_t)i;
        kernels->copy(&(gm_copy_args){ wide, in, GM_T_F32, type, 1, &n, &one_stride, &one_stride }, 0, n);
        kernels->copy(&(gm_copy_args){ back, wide, type, GM_T_F32, 1, &n, &one_stride, &one_stride }, 0, n);
        for (int64_t i = 0; i < n; i++) {
            double x = get(in, type, i);
            CHECK(x != x ? wide[i] != wide[i] : (double)wide[i] == x, "type %d bits %x", type, (int)i);
            CHECK(x != x ? get(back, type, i) != get(back, type, i) : back[i] == in[i], "type %d bits %x back", type,
                  (int)i);
        }
        for (int64_t i = 0; i < n; i++) {                 /* ties and what lies beside them */
            uint32_t bits = (uint32_t)i << 16 | (i % 3 == 0 ? 0x8000u : i % 3 == 1 ? 0x1000u : 0x3001u);
            memcpy(&odd[i], &bits, 4);
        }
        kernels->copy(&(gm_copy_args){ back, odd, type, GM_T_F32, 1, &n, &one_stride, &one_stride }, 0, n);
        for (int64_t i = 0; i < n; i++) {
            uint16_t want = type == GM_T_F16 ? half_of((double)odd[i]) : bfloat_of((double)odd[i]);
            CHECK(odd[i] != odd[i] ? get(back, type, i) != get(back, type, i) : back[i] == want,
                  "type %d round %a: %x, want %x",
                  type, (double)odd[i], back[i], want);
        }
    }
    free_buffers();
    int32_t range[4];
    kernels->arange(&(gm_arange_args){ range, GM_T_I32, -3, 2 }, 0, 4);
    CHECK(range[0] == -3 && range[3] == 3, "arange");
    double steps[4];
    kernels->arange(&(gm_arange_args){ steps, GM_T_F64, 1, 0.5 }, 0, 4);
    CHECK(steps[3] == 2.5, "arange of doubles");
}

/* ---- reductions ---- */
static void test_reduce(void)
{
    static const int64_t shapes[][3] = { { 3, 5, 7 }, { 2, 17, 33 }, { 1, 1, 5000 }, { 3, 3000, 5 }, { 2, 40, 130 } };
    static const int types[] = { GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_I32, GM_T_U8, GM_T_BOOL };
    for (int s = 0; s < 5; s++) for (int kept = 0; kept < 8; kept++) for (int t = 0; t < 7; t++)
    for (int op = 0; op < GM_R_COUNT; op++) {
        int type = types[t], out_type = type, n_kept = 0, n_reduced = 0;
        if (quick && shapes[s][1] == 3000) continue;
        if (!is_float(type) && op == GM_R_LOGSUMEXP) continue;
        if (op <= GM_R_PROD && !is_float(type)) out_type = GM_T_I32;
        if (op == GM_R_ALL || op == GM_R_ANY) out_type = GM_T_BOOL;
        const int64_t *shape = shapes[s], strides[3] = { shape[1] * shape[2], shape[2], 1 }, n = shape[0] * strides[0];
        int64_t kept_shape[3], kept_strides[3], reduced_shape[3], reduced_strides[3], outs = 1, count = 1;
        for (int d = 0; d < 3; d++) {
            if (kept >> d & 1) kept_shape[n_kept] = shape[d], kept_strides[n_kept++] = strides[d], outs *= shape[d];
            else reduced_shape[n_reduced] = shape[d], reduced_strides[n_reduced++] = strides[d], count *= shape[d];
        }
        void *in = buffer((size_t)(n * item_of(type))), *out = buffer((size_t)(outs * item_of(out_type)));
        void *cut = buffer((size_t)(outs * item_of(out_type)));
        for (int64_t i = 0; i < n; i++) {
            double x = op == GM_R_PROD ? 1 + uniform() / 16 : uniform() * 4;
            put(in, type, i, is_float(type) ? x : op == GM_R_PROD ? 1 : fabs(trunc(x)));
        }
        gm_reduce_args a = { out, in, (gm_reduce_op)op, type, out_type, n_kept, kept_shape, kept_strides, n_reduced,
                             reduced_shape, reduced_strides };
        kernels->reduce(&a, 0, outs);
        for (int64_t i = 0; i < outs; i++) {
            int64_t base = offset_of(n_kept, kept_shape, kept_strides, i);
            double sum = 0, sizes_sum = 0, product = 1, high = -(double)INFINITY, low = (double)INFINITY, exps = 0;
            bool all = true, any = false;
            for (int64_t j = 0; j < count; j++) {
                double x = get(in, type, base + offset_of(n_reduced, reduced_shape, reduced_strides, j));
                sum += x, sizes_sum += fabs(x), product *= x, exps += exp(x);
                high = fmax(high, x), low = fmin(low, x), all &= x != 0, any |= x != 0;
            }
            double got = get(out, out_type, i), eps = epsilon_of(is_float(out_type) ? out_type : GM_T_F64);
            double want = op == GM_R_SUM ? sum : op == GM_R_PROD ? product : op == GM_R_MAX ? high
                : op == GM_R_MIN ? low
                : op == GM_R_ALL ? all : op == GM_R_ANY ? any : log(exps);
            double room = op == GM_R_SUM ? 1e-6 * sizes_sum : op == GM_R_PROD ? 3e-7 * (double)count * fabs(product)
                : op == GM_R_LOGSUMEXP ? 1e-6 * fabs(want) + 1e-6 : 0;
            if (!is_float(type) || op == GM_R_MAX || op == GM_R_MIN) room = 0, eps = 0;
            CHECK(fabs(got - want) <= room + 2 * eps * fabs(want) + tiny_of(type),
                  "reduce op %d type %d shape %d kept %d at %d: %g, want %g", op, type, s, kept, (int)i, got, want);
        }
        a.out = cut;
        for (int64_t i = 0; i < outs; i += 3) kernels->reduce(&a, i, i + 3 < outs ? i + 3 : outs);
        CHECK(same(cut, out, (size_t)(outs * item_of(out_type))), "reduce op %d type %d shape %d kept %d: cut", op,
              type, s, kept);
        free_buffers();
    }
    for (int64_t place = 0; place < 40; place++) {          /* a NaN anywhere */
        float x[40], high, low;
        uint32_t index;
        int64_t n = 40, stride = 1;
        for (int i = 0; i < 40; i++) x[i] = (float)i;
        x[place] = NAN;
        kernels->reduce(&(gm_reduce_args){ &high, x, GM_R_MAX, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &n, &stride }, 0,
            1);
        kernels->reduce(&(gm_reduce_args){ &low, x, GM_R_MIN, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &n, &stride }, 0,
            1);
        kernels->arg_reduce(&(gm_arg_reduce_args){ &index, x, true, GM_T_F32, 0, NULL, NULL, n, stride }, 0, 1);
        CHECK(high != high && low != low && index == (uint32_t)place, "NaN at %d", (int)place);
    }
    float empty_sum = 5, none[1];
    int64_t zero = 0;
    kernels->reduce(&(gm_reduce_args){ &empty_sum, none, GM_R_SUM, GM_T_F32, GM_T_F32, 0, NULL, NULL, 1, &zero,
        &one_stride }, 0, 1);
    CHECK(empty_sum == 0, "the sum of nothing: %g", (double)empty_sum);

    static const int arg_types[] = { GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_I32, GM_T_U8, GM_T_U64 };
    for (int t = 0; t < 7; t++) for (int s = 1; s < N_SIZES; s++) for (int max = 0; max < 2; max++)
        for (int across = 0; across < 2; across++) {
        int64_t rows = 3, n = sizes[s] * 3 + 1, stride = across ? rows : 1, row_stride = across ? 1 : n;
        void *in = buffer((size_t)(rows * n * item_of(arg_types[t])));
        uint32_t got[3];
        for (int64_t i = 0; i < rows * n; i++) put(in, arg_types[t], i, fabs(trunc(uniform() * 50)));   /* ties */
        kernels->arg_reduce(&(gm_arg_reduce_args){ got, in, max != 0, arg_types[t], 1, &rows, &row_stride, n, stride },
            0, rows);
        for (int64_t r = 0; r < rows; r++) {
            int64_t want = 0;
            for (int64_t i = 1; i < n; i++) {
                double x = get(in, arg_types[t], r * row_stride + i * stride), best;
                best = get(in, arg_types[t], r * row_stride + want * stride);
                if (max ? x > best : x < best) want = i;
            }
            CHECK(got[r] == want, "arg type %d n %d: %u, want %d", arg_types[t], (int)n, got[r], (int)want);
        }
        free_buffers();
    }
}

/* ---- take, softmax, norm, swiglu, rope ---- */
static void test_rows(void)
{
    int32_t table[12] = { 0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32 }, got[15];
    int64_t index[5] = { 2, -1, 4, 0, -5 };
    kernels->take(&(gm_take_args){ .out = got, .in = table, .index = index, .type = GM_T_I32, .index_type = GM_T_I64, .size = 4,
                                   .step = 3, .count = 5, .dense_step = 3, .index_step = 1, .run = 3, .sparse_run = 1,
                                   .dense_run = 1 }, 0, 5);
    CHECK(got[0] == 20 && got[3] == 30 && got[6] == 0 && got[11] == 2 && got[14] == 0, "take");

    static const int types[] = { GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64 };
    for (int t = 0; t < 4; t++) for (int s = 1; s < N_SIZES; s++) {
        int64_t n = sizes[s], rows = 6, item = item_of(types[t]);
        char *in = buffer((size_t)(rows * n * item)), *out = buffer((size_t)(rows * n * item));
        for (int64_t i = 0; i < rows * n; i++) put(in, types[t], i, uniform() * 10);
        put(in, types[t], n, -(double)INFINITY);
        for (int64_t i = 0; i < n; i++) put(in, types[t], 3 * n + i, -(double)INFINITY);
        put(in, types[t], 4 * n, (double)INFINITY);
        put(in, types[t], 5 * n + n / 2, (double)NAN);
        gm_softmax_args a = { out, in, types[t], n, n };
        kernels->softmax(&a, 0, rows);
        for (int64_t r = 0; r < rows; r++) {
            double top = -(double)INFINITY, sum = 0;
            for (int64_t i = 0; i < n; i++) top = fmax(top, get(in, types[t], r * n + i));
            for (int64_t i = 0; i < n; i++) sum += exp(get(in, types[t], r * n + i) - top);
            for (int64_t i = 0; i < n; i++) {
                double want = exp(get(in, types[t], r * n + i) - top) / sum, value = get(out, types[t], r * n + i);
                double room = (3e-6 + 2 * epsilon_of(types[t])) * want + tiny_of(types[t]);
                CHECK(want != want ? value != value : fabs(value - want) <= room,
                      "softmax type %d n %d row %d: %g, want %g", types[t], (int)n, (int)r, value, want);
            }
        }
        free_buffers();
    }
    for (int s = 1; s < N_SIZES; s++) for (int weighted = 0; weighted < 2; weighted++) {
        int64_t n = sizes[s], rows = 5;
        float *x = floats(rows * n, 3), *w = floats(n, 2), *out = buffer((size_t)(rows * n) * 4),
            *one = buffer((size_t)n * 4);
        gm_rms_norm_args a = { out, x, weighted ? w : NULL, GM_T_F32, n, n, 1e-6f };
        kernels->rms_norm(&a, 0, rows);
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += (double)x[r * n + i] * (double)x[r * n + i];
            for (int64_t i = 0; i < n; i++) {
                double want = (double)x[r * n + i] / sqrt(sum / (double)n + 1e-6) * (weighted ? (double)w[i] : 1);
                CHECK(near_to((double)out[r * n + i], want, GM_T_F32, 4), "rms_norm n %d", (int)n);
            }
            kernels->rms_norm(&(gm_rms_norm_args){ one, x + r * n, weighted ? w : NULL, GM_T_F32, n, n, 1e-6f }, 0, 1);
            CHECK(same(one, out + r * n, (size_t)n * 4), "rms_norm alone, n %d", (int)n);
        }
        float *up = floats(rows * n, 3), *mixed = buffer((size_t)(rows * n) * 4);
        kernels->swiglu(&(gm_swiglu_args){ mixed, x, up, n, n, n }, 0, rows);
        for (int64_t i = 0; i < rows * n; i++)
            CHECK(near_to((double)mixed[i], (double)x[i] * sigmoid((double)x[i]) * (double)up[i], GM_T_F32, 4),
                  "swiglu");
        free_buffers();
    }
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        int64_t rows = 4, heads = 3, dim = 22, half = 9;       /* rows are batches of one step */
        int32_t positions[4] = { 0, 1, 77, 100000 };
        float *frequency = floats(half, 1), *angles = buffer((size_t)(rows * 2 * half) * 4);
        float *x = floats(rows * heads * dim, 1), *out = buffer((size_t)(rows * heads * dim) * 4);
        kernels->rope_angles(&(gm_rope_angles_args){ angles, positions, frequency, half, 1.5f }, 0, rows);
        kernels->rope(&(gm_rope_args){ .out = out, .x = x, .angles = angles, .type = GM_T_F32, .heads = heads, .steps = 1,
            .dim = dim, .half = half, .batch_stride = heads * dim, .head_stride = dim, .angle_stride = 2 * half,
            .interleaved = interleaved != 0 }, 0, rows * heads);
        for (int64_t r = 0; r < rows; r++) for (int64_t h = 0; h < heads; h++) {
            const float *in = x + (r * heads + h) * dim, *to = out + (r * heads + h) * dim;
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)((float)positions[r] * frequency[i]), c = cos(angle) * 1.5, s = sin(angle) * 1.5;
                int64_t p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + half;
                CHECK(fabs((double)to[p] - ((double)in[p] * c - (double)in[q] * s)) < 6e-7, "rope low %g", angle);
                CHECK(fabs((double)to[q] - ((double)in[q] * c + (double)in[p] * s)) < 6e-7, "rope high %g", angle);
            }
            for (int64_t i = 2 * half; i < dim; i++) CHECK(to[i] == in[i], "rope passes the rest on");
        }
        int32_t offset[2] = { 5, 100000 };
        float *made = buffer((size_t)(2 * 3 * 2 * half) * 4);
        kernels->rope_table(&(gm_rope_table_args){ .out = made, .offset = offset, .steps = 3, .half = half,
            .freqs = interleaved ? frequency : NULL, .base = 100, .scale = 0.5f, .inverse = true }, 0, 6);
        for (int64_t r = 0; r < 6; r++) for (int64_t i = 0; i < half; i++) {
            float each = interleaved ? 0.5f / frequency[i] : (float)(0.5 * pow(100, -(double)i / (double)half));
            double angle = (double)((float)(offset[r / 3] + r % 3) * each), room = 3e-7;
            CHECK(fabs((double)made[r * 2 * half + i] - cos(angle)) < room, "rope_table cos %g", angle);
            CHECK(fabs((double)made[(r * 2 + 1) * half + i] + sin(angle)) < room, "rope_table sin %g", angle);
        }
        free_buffers();
    }
}

/* ---- dense matmul ---- */
static void test_matmul(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 33, 7, 5 }, { 32, 64, 13 }, { 100, 513, 3 }, { 70, 1300, 50 },
        { 40, 576, 97 } };
    for (int format = GM_QUANT_f32; format <= GM_QUANT_bf16; format++) for (int s = 0; s < 6; s++) {
        int type = format == GM_QUANT_f32 ? GM_T_F32 : format == GM_QUANT_f16 ? GM_T_F16 : GM_T_BF16;
        int64_t rows = shapes[s][0], k = shapes[s][1], tokens = shapes[s][2], panels = (rows + 31) / 32;
        void *w = buffer((size_t)(panels * 32 * k * item_of(type)));
        for (int64_t i = 0; i < panels * 32 * k; i++) put(w, type, i, uniform());
        float *x = floats(tokens * k, 1), *bias = floats(rows, 1), *residual = floats(tokens * rows, 1);
        float *out = floats(tokens * rows, 1), *one = buffer((size_t)rows * 4);
        gm_matmul_args a = { .out = out, .out_stride = rows, .x = x, .x_stride = k, .weight = w, .format = format,
            .bias = bias,
                             .residual = residual, .rows = rows, .k = k, .tokens = tokens };
        kernels->matmul_float(&a, 0, panels);
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t r = 0; r < rows; r++) {
                double sum = (double)bias[r] + (double)residual[t * rows + r], size = fabs(sum);
                for (int64_t i = 0; i < k; i++) {
                    double term = get(w, type, (r / 32 * k + i) * 32 + r % 32) * (double)x[t * k + i];
                    sum += term, size += fabs(term);
                }
                CHECK(fabs((double)out[t * rows + r] - sum) <= 1e-6 * size, "matmul format %d shape %d", format, s);
            }
            gm_matmul_args alone = a;
            alone.out = one, alone.x = x + t * k, alone.tokens = 1, alone.residual = residual + t * rows;
            kernels->matmul_float(&alone, 0, panels);
            CHECK(same(one, out + t * rows, (size_t)rows * 4), "matmul format %d shape %d: token %d alone", format, s,
                  (int)t);
        }
        float *cut = buffer((size_t)(tokens * rows) * 4);
        memcpy(cut, residual, (size_t)(tokens * rows) * 4);
        a.out = cut, a.residual = cut;                      /* in place, panel by panel */
        for (int64_t p = 0; p < panels; p++) kernels->matmul_float(&a, p, p + 1);
        CHECK(same(cut, out, (size_t)(tokens * rows) * 4), "matmul format %d shape %d: cut", format, s);
        free_buffers();
    }
}

/* ---- dense products and convolutions ---- */
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sum of k products and of their sizes; of complex numbers, whose second part is half the first, the real part. */
static double exact_product(const gm_gemm_args *a, int64_t row, int64_t lane, double *size)
{
    double sum = *size = 0;
    for (int64_t k = 0; k < a->k; k++) {
        double term = get(a->x, a->type, row * a->x_row + k * a->x_k);
        term *= get(a->w, a->type, k * a->w_k + lane * a->w_lane);
        if (a->type == GM_T_C64) term *= 0.75;
        sum += term, *size += fabs(term);
    }
    return sum;
}
/* For a sum of terms of that size in all, stored as the type. */
static double bound_of(int type, double sum, double size)
{
    const double rounding = item_of(type) == 2 ? epsilon_of(type) * fabs(sum) * 1.01 + 1e-7 : 0;
    return (type == GM_T_F64 ? 1e-14 : 3e-6) * size + rounding;
}

/* The ways to the same bits: blocks of rows and panels, x and w packed ahead, few rows straight from memory. */
enum { GEMM_BLOCKS, GEMM_ONE_BY_ONE, GEMM_PACKED, GEMM_ALIGNED, GEMM_FEW, GEMM_WAYS };
static void *run_gemm(gm_gemm_args a, int way, bool *possible)
{
    const bool halved = a.type == GM_T_F64 || a.type == GM_T_C64;
    const int64_t panels = kernels_gemm_panels(kernels, a.type, a.lanes);
    gm_gemm_args copy = a;
    a.block_rows = way == GEMM_ONE_BY_ONE ? 1 : least(a.rows, halved ? kernels->gemm_rows / 2 : kernels->gemm_rows);
    a.block_panels = way == GEMM_ONE_BY_ONE ? 1 : way == GEMM_FEW ? least(panels, GM_GEMM_FEW_PANELS / GM_GEMM_FEW)
                                                                  : least(panels, GM_GEMM_PANELS);
    a.out = buffer((size_t)(a.rows * a.lanes * item_of(a.type)));
    if (way == GEMM_PACKED || way == GEMM_ALIGNED) {
        copy.out = buffer((size_t)kernels_gemm_pack_bytes(kernels, a.type, a.lanes, a.k));
        kernels->gemm_pack(&copy, 0, panels);
        a.w = copy.out;
        a.packed = true;
    }
    if (way == GEMM_ALIGNED) {
        copy.out = buffer((size_t)kernels_gemm_align_bytes(a.type, a.rows, a.k));
        kernels->gemm_align(&copy, 0, a.rows);
        a.x = copy.out;
        a.aligned = true;
    }
    a.few = way == GEMM_FEW;
    *possible = !a.few || (a.rows <= GM_GEMM_FEW && a.type != GM_T_C64 && (a.w_lane == 1 || a.w_k == 1));
    if (!*possible) return NULL;
    const int64_t row_blocks = (a.rows + a.block_rows - 1) / a.block_rows;
    kernels->gemm(&a, 0, row_blocks * ((panels + a.block_panels - 1) / a.block_panels));
    return a.out;
}
static void test_gemm(void)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 1, 300, 70 }, { 3, 129, 33 }, { 5, 17, 100 }, { 13, 128, 31 },
        { 50, 65, 64 }, { 8, 257, 17 }, { 97, 20, 5 } };
    static const int types[] = { GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_C64 };
    for (int run = 0; run < 5 * 8 * 3; run++) {
        const int type = types[run / 24], s = run / 3 % 8, layout = run % 3;
        const int64_t rows = shapes[s][0], k = shapes[s][1], lanes = shapes[s][2], step = layout == 2 ? 2 : 1;
        void *x = buffer((size_t)(rows * k * step * item_of(type)));
        void *w = buffer((size_t)(lanes * k * step * item_of(type)));
        for (int64_t i = 0; i < rows * k * step; i++) put(x, type, i, uniform());
        for (int64_t i = 0; i < lanes * k * step; i++) put(w, type, i, uniform());
        gm_gemm_args a = { .x = x, .w = w, .type = type, .rows = rows, .lanes = lanes, .k = k, .out_row = lanes,
            .out_lane = 1, .x_row = layout == 1 ? 1 : k * step, .x_k = layout == 1 ? rows : step,
            .w_lane = layout == 1 ? 1 : k * step,
            .w_k = layout == 1 ? lanes : step };
        bool possible;
        void *out = run_gemm(a, GEMM_BLOCKS, &possible);
        for (int64_t r = 0; r < rows; r++) for (int64_t l = 0; l < lanes; l++) {
            double size, sum = exact_product(&a, r, l, &size);
            CHECK(fabs(get(out, type, r * lanes + l) - sum) <= bound_of(type, sum, size),
                  "gemm type %d shape %d layout %d", type, s, layout);
        }
        for (int way = GEMM_ONE_BY_ONE; way < GEMM_WAYS; way++) {
            void *again = run_gemm(a, way, &possible);
            CHECK(!possible || same(again, out, (size_t)(rows * lanes * item_of(type))),
                  "gemm type %d shape %d layout %d way %d", type, s, layout, way);
        }
        if (type != GM_T_C64) {
            a.add = buffer((size_t)(lanes * item_of(type)));
            for (int64_t i = 0; i < lanes; i++) put((void *)(uintptr_t)a.add, type, i, uniform());
            a.add_lane = 1, a.alpha = 0.5f, a.beta = 2;
            out = run_gemm(a, GEMM_BLOCKS, &possible);
            for (int64_t r = 0; r < rows; r++) for (int64_t l = 0; l < lanes; l++) {
                double size, sum = 0.5 * exact_product(&a, r, l, &size), added = 2 * get(a.add, type, l);
                double bound = bound_of(type, sum + added, size + fabs(added));
                CHECK(fabs(get(out, type, r * lanes + l) - sum - added) <= bound,
                      "gemm with a term: type %d shape %d", type, s);
            }
        }
        free_buffers();
    }
}
/* Two axes; a definition item by item. `own`: each channel has its filter. */
static void test_conv_case(int type, int64_t channels, int64_t filters, int64_t stride, int64_t low, int64_t dilation,
                           int64_t spread, bool own)
{
    const int64_t in[2] = { 7, 9 }, taps[2] = { 3, 2 }, groups = own ? channels : 1, per = own ? 1 : channels;
    int64_t out[2], k = taps[0] * taps[1] * per;
    for (int d = 0; d < 2; d++)
        out[d] = ((in[d] - 1) * spread + 1 + 2 * low - dilation * (taps[d] - 1) - 1) / stride + 1;
    const int64_t places = out[0] * out[1], rows = 2 * places;
    void *x = buffer((size_t)(2 * in[0] * in[1] * channels * item_of(type)));
    void *w = buffer((size_t)(filters * k * item_of(type)));
    void *result = buffer((size_t)(rows * filters * item_of(type)));
    for (int64_t i = 0; i < 2 * in[0] * in[1] * channels; i++) put(x, type, i, uniform());
    for (int64_t i = 0; i < filters * k; i++) put(w, type, i, uniform());
    gm_conv_args a = { .product = { .out = result, .x = x, .w = w, .type = type, .rows = rows,
            .lanes = filters / groups, .k = k, .out_row = filters, .out_lane = 1, .w_lane = k, .w_k = 1 },
        .in = { 1, in[0], in[1] }, .out = { 1, out[0], out[1] }, .taps = { 1, taps[0], taps[1] },
        .stride = { 1, stride, stride }, .low = { 0, low, low }, .dilation = { 1, dilation, dilation },
        .spread = { 1, spread, spread },
        .channels = per, .image = in[0] * in[1] * channels, .places = { 0, in[1] * channels, channels } };
    if (own) {
        float *turned = buffer((size_t)(filters * k) * 4);
        for (int64_t i = 0; i < filters * k; i++) turned[i % k * filters + i / k] = (float)get(w, type, i);
        a.product.w = turned, a.product.w_k = a.product.lanes = filters;
        kernels->conv_depthwise(&a, 0, 5);
        kernels->conv_depthwise(&a, 5, rows);
    } else {
        const int64_t panels = kernels_gemm_panels(kernels, type, filters);
        a.product.block_rows = least(rows, type == GM_T_F64 ? kernels->gemm_rows / 2 : kernels->gemm_rows);
        a.product.block_panels = least(panels, GM_GEMM_PANELS);
        const int64_t blocks = (rows + a.product.block_rows - 1) / a.product.block_rows;
        kernels->conv(&a, 0, blocks * ((panels + a.product.block_panels - 1) / a.product.block_panels));
    }
    for (int64_t r = 0; r < rows; r++) for (int64_t f = 0; f < filters; f++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t tap = i / per, c = own ? f : i % per, at[2] = { tap / taps[1], tap % taps[1] };
            const int64_t place[2] = { r % places / out[1], r % places % out[1] };
            int64_t from[2];
            bool inside = true;
            for (int d = 0; d < 2; d++) {
                from[d] = place[d] * stride + at[d] * dilation - low;
                inside = inside && from[d] >= 0 && from[d] % spread == 0 && from[d] / spread < in[d];
                from[d] /= spread;
            }
            if (!inside) continue;
            double term = get(x, type, ((r / places * in[0] + from[0]) * in[1] + from[1]) * channels + c);
            term *= get(w, type, f * k + i);
            sum += term, size += fabs(term);
        }
        CHECK(fabs(get(result, type, r * filters + f) - sum) <= bound_of(type, sum, size),
              "conv type %d channels %d stride %d low %d", type, (int)channels, (int)stride, (int)low);
    }
    free_buffers();
}
static void test_conv(void)
{
    static const int types[] = { GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64 };
    for (int run = 0; run < 4 * 4; run++) {
        static const int64_t widths[] = { 1, 4, 13, 70 };
        const int type = types[run / 4];
        const int64_t channels = widths[run % 4];
        test_conv_case(type, channels, 5, 1, 1, 1, 1, false);
        test_conv_case(type, channels, 35, 2, 0, 2, 1, false);
        test_conv_case(type, channels, 3, 1, 3, 1, 2, false);
        if (type != GM_T_F64) test_conv_case(type, channels, channels, 2, 2, 1, 1, true);
    }
}

/* ---- attention ---- */
typedef struct {
    int type;
    int64_t heads, kv_heads, dim, half, length, window;
    float softcap;
    bool sinks;
} scene;

static void test_scene(const scene *sc)
{
    const int64_t blocks = (sc->length + GM_KV_BLOCK - 1) / GM_KV_BLOCK, n = sc->length,
        group = sc->heads / sc->kv_heads;
    const size_t cache = (size_t)(blocks * GM_KV_BLOCK * sc->kv_heads * sc->dim * item_of(sc->type));
    const float scale = 1 / sqrtf((float)sc->dim);
    float *q = floats(n * sc->heads * sc->dim, 2), *k = floats(n * sc->kv_heads * sc->dim, 2),
        *v = floats(n * sc->kv_heads * sc->dim, 1);
    float *angles = buffer((size_t)(n * 2 * sc->half) * 4), *frequency = floats(sc->half, 1),
        *sinks = floats(sc->heads, 1);
    float *turned = buffer((size_t)(n * sc->heads * sc->dim) * 4),
        *alone = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    float *out = buffer((size_t)(n * sc->heads * sc->dim) * 4),
        *chunked = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    int32_t *position = buffer((size_t)n * 4), *sequence = buffer((size_t)n * 4), *tiles = buffer((size_t)n * 8);
    void *keys[2] = { NULL, buffer(cache) }, *values[2] = { NULL, buffer(cache) };
    for (int64_t i = 0; i < n; i++) position[i] = (int32_t)i, sequence[i] = 1;
    memset(keys[1], 0xff, cache);                           /* NaN in every type: nothing unwritten may be used */
    memset(values[1], 0xff, cache);
    kernels->rope_angles(&(gm_rope_angles_args){ angles, position, frequency, sc->half, 1 }, 0, n);
    gm_rope_cache_args append = { .q_out = turned, .q = q, .k = k, .v = v, .angles = angles,
        .q_stride = sc->heads * sc->dim,
                                  .k_stride = sc->kv_heads * sc->dim, .v_stride = sc->kv_heads * sc->dim,
                                      .k_cache = keys,
                                  .v_cache = values, .sequence = sequence, .position = position, .kv_type = sc->type,
                                  .n_heads = sc->heads, .n_kv_heads = sc->kv_heads, .head_dim = sc->dim,
                                      .half = sc->half };
    gm_attention_args a = { .out = alone, .q = turned, .k_cache = keys, .v_cache = values, .sequence = sequence,
        .position = position,
                            .kv_type = sc->type, .n_heads = sc->heads, .n_kv_heads = sc->kv_heads, .head_dim = sc->dim,
                            .window = sc->window, .scale = scale, .softcap = sc->softcap,
                                .sinks = sc->sinks ? sinks : NULL,
                            .tiles = tiles };
    /* Token by token, the cache beyond still NaN. */
    for (int64_t i = 0; i < n; i++) {
        kernels->rope_cache(&append, i, i + 1);
        tiles[0] = (int32_t)i, tiles[1] = 1, a.n_tiles = 1;
        kernels->attention(&a, 0, sc->kv_heads);
    }
    /* In tiles, kv heads in two ranges. */
    a.out = out, a.n_tiles = 0;
    for (int64_t i = 0; i < n; i += GM_QUERY_TILE) {
        tiles[2 * a.n_tiles] = (int32_t)i;
        tiles[2 * a.n_tiles + 1] = (int32_t)(n - i < GM_QUERY_TILE ? n - i : GM_QUERY_TILE);
        a.n_tiles++;
    }
    kernels->attention(&a, 0, 1);
    kernels->attention(&a, 1, a.n_tiles * sc->kv_heads);
    const size_t bytes = (size_t)(n * sc->heads * sc->dim) * 4;
    CHECK(same(out, alone, bytes), "attention: tiles against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* In tiles of another cut, as a prefill in chunks makes them. */
    a.out = chunked, a.n_tiles = 0;
    for (int64_t i = 0, w; i < n; i += w) {
        w = 1 + i % 13;
        w = w > n - i ? n - i : w;
        tiles[2 * a.n_tiles] = (int32_t)i, tiles[2 * a.n_tiles + 1] = (int32_t)w;
        a.n_tiles++;
    }
    kernels->attention(&a, 0, a.n_tiles * sc->kv_heads);
    CHECK(same(chunked, alone, bytes), "attention: chunks against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* Split and merged, in two ranges each. */
    int32_t n_blocks = (int32_t)blocks;
    a.max_blocks = blocks + 1, a.n_blocks = &n_blocks;
    a.partial = buffer((size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(a.partial, 0xff, (size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(chunked, 0, bytes);
    const int64_t per_row = sc->kv_heads * blocks;
    kernels->attention_split(&a, 0, 3 * per_row + 1);
    kernels->attention_split(&a, 3 * per_row + 1, n * per_row);
    kernels->attention_merge(&a, 0, 5);
    kernels->attention_merge(&a, 5, n * sc->heads);
    CHECK(same(chunked, alone, bytes), "attention: split against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* The definition, for some rows. */
    double *score = buffer((size_t)n * 8);
    for (int64_t r = 0; r < n; r += n > 60 ? n / 23 : 1) for (int64_t h = 0; h < sc->heads; h++) {
        int64_t kv = h / group, first = sc->window > 0 && r + 1 > sc->window ? r + 1 - sc->window : 0;
        double top = sc->sinks ? (double)sinks[h] : -(double)INFINITY, sum = 0, slack = 0;
        for (int64_t j = first; j <= r; j++) {
            double s = 0;
            for (int64_t d = 0; d < sc->dim; d++) {
                int64_t block = (j / 256 * sc->kv_heads + kv) * 256 * sc->dim;
                int64_t at = block + j % 256 / 16 * 16 * sc->dim + d * 16 + j % 16;
                s += get(keys[1], sc->type, at) * (double)turned[(r * sc->heads + h) * sc->dim + d];
            }
            s *= (double)scale;
            slack = fmax(slack, fabs(s));
            if (sc->softcap != 0) s = (double)sc->softcap * tanh(s / (double)sc->softcap);
            score[j] = s;
            top = fmax(top, s);
        }
        for (int64_t j = first; j <= r; j++) sum += score[j] = exp(score[j] - top);
        if (sc->sinks) sum += exp((double)sinks[h] - top);
        for (int64_t d = 0; d < sc->dim; d++) {
            double want = 0;
            for (int64_t j = first; j <= r; j++)
                want += score[j] * get(values[1], sc->type,
                    ((j / 256 * sc->kv_heads + kv) * 256 + j % 256) * sc->dim + d);
            double got = (double)alone[(r * sc->heads + h) * sc->dim + d];
            CHECK(fabs(got - want / sum) <= 2e-6 * (2 + slack), "attention type %d dim %d row %d: %g, want %g",
                  sc->type, (int)sc->dim,
                  (int)r, got, want / sum);
        }
    }
    /* What rope_cache wrote: rotated, rounded, in its place; the rest untouched. */
    for (int64_t r = 0; r < n; r += 17) for (int64_t d = 0; d < sc->dim; d++) {
        float rotated[1024];
        int64_t kv = sc->kv_heads - 1;
        kernels->rope(&(gm_rope_args){ .out = rotated, .x = k + (r * sc->kv_heads + kv) * sc->dim,
            .angles = angles + r * 2 * sc->half, .type = GM_T_F32, .heads = 1, .steps = 1, .dim = sc->dim,
            .half = sc->half }, 0, 1);
        double room = 0;
        put(&room, sc->type, 0, (double)rotated[d]);
        int64_t at = (r / 256 * sc->kv_heads + kv) * 256 * sc->dim + r % 256 / 16 * 16 * sc->dim + d * 16 + r % 16;
        CHECK(get(keys[1], sc->type, at) == get(&room, sc->type, 0), "rope_cache key");
        put(&room, sc->type, 0, (double)v[(r * sc->kv_heads + kv) * sc->dim + d]);
        CHECK(get(values[1], sc->type, ((r / 256 * sc->kv_heads + kv) * 256 + r % 256) * sc->dim + d) == get(&room,
              sc->type, 0), "rope_cache value");
    }
    free_buffers();
}
static void test_attention(void)
{
    static const scene scenes[] = {
        { GM_T_F32, 4, 2, 64, 32, 300, 0, 0, false },  { GM_T_F16, 4, 1, 64, 32, 270, 0, 0, false },
        { GM_T_BF16, 3, 3, 8, 4, 530, 0, 0, true },    { GM_T_F32, 7, 1, 80, 40, 33, 0, 0, false },
        { GM_T_F16, 6, 2, 96, 20, 40, 5, 0, true },    { GM_T_BF16, 2, 1, 128, 64, 290, 100, 0, false },
        { GM_T_F32, 16, 1, 24, 12, 280, 270, 30, false }, { GM_T_F16, 2, 2, 256, 128, 20, 0, 50, false },
        { GM_T_F32, 5, 1, 7, 3, 270, 0, 0, false },    { GM_T_BF16, 2, 1, 600, 64, 270, 0, 0, false },
        { GM_T_F16, 30, 1, 13, 6, 50, 20, 0, true },   { GM_T_F32, 1, 1, 512, 256, 35, 1, 0, false },
    };
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i += quick ? 2 : 1) test_scene(&scenes[i]);
}

int main(int argc, char **argv)
{
    quick = argc > 1 && !strcmp(argv[1], "quick");
    for (const char *const *name = kernels_names(); *name; name++) {
        kernels = kernels_get(*name);
        if (!kernels) continue;
        test_unary();
        test_binary();
        test_strides();
        test_casts();
        test_reduce();
        test_rows();
        test_matmul();
        test_gemm();
        test_conv();
        test_attention();
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
