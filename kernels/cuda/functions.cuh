/* functions.cuh - the functions of unary.def and binary.def on the device. Where a row has a form over vectors, it is
 * the processor's, one lane wide, and gives its bits; what goes through libm there goes through CUDA's library here. */
#ifndef GOMLX_CUDA_FUNCTIONS_CUH
#define GOMLX_CUDA_FUNCTIONS_CUH
#include "complex.cuh"
#include "elements.cuh"
#include "results.h"

/* ---- of which elements a row has a function: operations refuse others, or make them floating point first ---- */
#define VECTOR(value) true
#define LIBM(value) true
#define SINES(cosine) true
#define NO_FLOATS false
#define INTEGERS(value) true
#define NO_BOOL(value) true
#define ONLY_INTEGERS(value) true
#define SHIFTS(value) true
#define AS_FLOATS false
DEVICE constexpr bool unary_has(int op, bool of_floats) {
    switch (op) {
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, ...)                                           \
    case GM_U_##name: return of_floats ? floats : integers;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: return true;
#include "unary.def"
    }
    return false;
}
DEVICE constexpr bool binary_has(int op, bool of_floats) {
    switch (op) {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, ...)                                                  \
    case GM_B_##name: return of_floats ? floats : integers;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: return true;
#include "binary.def"
    }
    return false;
}
#undef VECTOR
#undef LIBM
#undef SINES
#undef INTEGERS
#undef NO_BOOL
#undef ONLY_INTEGERS
#undef SHIFTS
#undef AS_FLOATS
#undef NO_FLOATS

/* The columns of rows, as expressions (scalars.inc of the processor). */
#define INTEGERS(value) value
#define NO_BOOL(value) value
#define ONLY_INTEGERS(value) value
#define SHIFTS(value) value
#define AS_BOOL(value) value
#define COMPLEX(value) value

/* ---- unary ---- */
/* For results of 16 bits the library's, of which all are the same: vf_exp takes three times as many instructions,
 * longer than the memory. */
DEVICE vf exp_of(vf x, int type) { return type == GM_T_F32 ? vf_exp(x) : expf(x); }
DEVICE vf erf_of(vf x, int type) { return type == GM_T_F32 ? vf_erf(x) : vf_erf_16(x); }
DEVICE vf gelu_of(vf x, int type) {
    const vf half = vf_mul(x, vf_set1(0.5f));
    return vf_fma(half, erf_of(vf_mul(x, vf_set1(0.70710678f)), type), half);
}
DEVICE float sine_of(float x, bool cosine) {
    if (!(fabsf(x) <= V_SINCOS_LIMIT)) return cosine ? cosf(x) : sinf(x);
    vf s, c;
    vf_sincos(x, &s, &c);
    return cosine ? c : s;
}
DEVICE float unary_float(const float x, int op, int type) {
    const vf one = 1.0f, zero = 0.0f;
    switch (op) {
#define VECTOR(value) return value;
#define LIBM(value) return value;
#define SINES(cosine) return sine_of(x, cosine);
#define NO_FLOATS break;
#define UNARY_VALUE(name, doc, result, work, floats, ...)                                                              \
    case GM_U_##name: floats
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: break;
#include "unary.def"
#undef VECTOR
#undef LIBM
#undef SINES
    }
    (void)one, (void)zero, (void)type;
    return x;
}
DEVICE bool unary_test(const float x, int op) {
    const vf zero = 0.0f, inf = INFINITY;
    switch (op) {
#define UNARY_VALUE(name, ...)                                                                                         \
    case GM_U_##name: break;
#define UNARY_TEST(name, doc, tangent, floats, ...)                                                                    \
    case GM_U_##name: return floats;
#include "unary.def"
    }
    (void)zero, (void)inf;
    return false;
}
#define AS_FLOATS x
DEVICE int64_t unary_int(int64_t x, int op, int type) {
    const bool negative = is_signed_type(type) && x < 0;
    switch (op) {
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, ...)                                           \
    case GM_U_##name: return integers;
#define UNARY_TEST(name, doc, tangent, floats, doubles, integers, ...)                                                 \
    case GM_U_##name: return integers;
#include "unary.def"
    }
    (void)negative;
    return x;
}
#undef AS_FLOATS
#define REAL_ONLY z
DEVICE c64 unary_complex(c64 z, int op) {
    const c64 one = 1;
    switch (op) {
#define UNARY_VALUE(name, doc, result, work, floats, doubles, integers, complexes, ...)                                \
    case GM_U_##name: return complexes;
#define UNARY_TEST(name, ...)                                                                                          \
    case GM_U_##name: break;
#include "unary.def"
    }
    return z;
}
#undef REAL_ONLY
DEVICE bool test_complex(c64 z, int op) {
    const bool re = unary_test(z.re, op), im = unary_test(z.im, op);
    switch (op) {
#define UNARY_VALUE(name, ...)                                                                                         \
    case GM_U_##name: break;
#define UNARY_TEST(name, doc, tangent, floats, doubles, integers, complexes)                                           \
    case GM_U_##name: return complexes;
#include "unary.def"
    }
    return false;
}

/* ---- binary ---- */
DEVICE vf logaddexp_vector(vf a, vf b) {
    vf top = vf_select(vf_ne(a, a), a, vf_max(a, b));
    vf value = vf_add(top, vf_log1p(vf_exp(vf_neg(vf_abs(vf_sub(a, b))))));
    return vf_select(vf_eq(a, b), vf_add(a, vf_set1(0.693147181f)), value);
}
DEVICE float remainder_float(float a, float b) {
    const float r = fmodf(a, b);
    if (r == 0) return copysignf(0.0f, b);
    return (r < 0) != (b < 0) ? r + b : r;
}
DEVICE float binary_float(const float a, const float b, int op) {
    switch (op) {
#define VECTOR(value) return value;
#define LIBM(value) return value;
#define BINARY_VALUE(name, doc, work, floats, ...)                                                                     \
    case GM_B_##name: floats
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: break;
#include "binary.def"
#undef VECTOR
#undef LIBM
#undef NO_FLOATS
    }
    return a;
}
DEVICE bool binary_test(const float a, const float b, int op) {
    const vf zero = 0.0f;
    switch (op) {
#define BINARY_VALUE(name, ...)                                                                                        \
    case GM_B_##name: break;
#define BINARY_TEST(name, doc, floats, ...)                                                                            \
    case GM_B_##name: return floats;
#include "binary.def"
    }
    (void)zero;
    return false;
}
/* As scalars.inc of the processor says: to a negative power, by zero. */
DEVICE int64_t power_int(int64_t base, int64_t exponent, bool is_signed) {
    if (is_signed && exponent < 0) return 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (uint64_t e = (uint64_t)exponent; e; e >>= 1, square *= square)
        if (e & 1) result *= square;
    return (int64_t)result;
}
DEVICE int64_t divide_int(int64_t a, int64_t b, bool is_signed) {
    if (b == 0) return 0;
    if (!is_signed) return (int64_t)((uint64_t)a / (uint64_t)b);
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
DEVICE int64_t remainder_int(int64_t a, int64_t b, bool is_signed) {
    if (b == 0) return a;
    if (is_signed && b == -1) return 0;
    if (!is_signed) return (int64_t)((uint64_t)a % (uint64_t)b);
    const int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
DEVICE int64_t shift_width(int type) { return type == GM_T_I64 || type == GM_T_U64 ? 64 : 32; }
#define AS_FLOATS a
DEVICE int64_t binary_int(int64_t a, int64_t b, int op, int type) {
    const bool is_signed = is_signed_type(type), less = is_signed ? a < b : (uint64_t)a < (uint64_t)b;
    if (op == GM_B_left_shift || op == GM_B_right_shift) b &= shift_width(type) - 1;
    switch (op) {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, ...)                                                  \
    case GM_B_##name: return integers;
#define BINARY_TEST(name, doc, floats, doubles, integers, ...)                                                         \
    case GM_B_##name: return integers;
#include "binary.def"
    }
    (void)less;
    return a;
}
#undef AS_FLOATS
#define REAL_ONLY a
DEVICE c64 binary_complex(c64 a, c64 b, int op) {
    switch (op) {
#define BINARY_VALUE(name, doc, work, floats, doubles, integers, complexes, ...)                                       \
    case GM_B_##name: return complexes;
#define BINARY_TEST(name, ...)                                                                                         \
    case GM_B_##name: break;
#include "binary.def"
    }
    return a;
}
#undef REAL_ONLY
DEVICE bool compare_complex(c64 a, c64 b, int op) {
    switch (op) {
#define BINARY_VALUE(name, ...)                                                                                        \
    case GM_B_##name: break;
#define BINARY_TEST(name, doc, floats, doubles, integers, complexes)                                                   \
    case GM_B_##name: return complexes;
#include "binary.def"
    }
    return false;
}
#undef INTEGERS
#undef NO_BOOL
#undef ONLY_INTEGERS
#undef SHIFTS
#undef AS_BOOL
#undef COMPLEX

/* ---- casts of one element, as copy.inc of the processor says ---- */
DEVICE double load_double(const void *p, int64_t i, int type) {
    if (type == GM_T_C64) return (double)((const float *)p)[2 * i];
    if (is_float_type(type)) return (double)load_float(p, i, type);
    const int64_t x = load_int(p, i, type);
    return type == GM_T_U64 ? (double)(uint64_t)x : (double)x;
}
DEVICE void store_double(void *p, int64_t i, double x, int type) {
    if (type == GM_T_C64) ((c64 *)p)[i] = c64((float)x);
    else if (is_float_type(type)) store_float(p, i, (float)x, type);
    else store_int(p, i, int_of_double(x, type), type);
}
DEVICE void convert_element(void *out, int64_t at, int out_type, const void *in, int64_t from, int in_type) {
    if (is_int_type(in_type) && is_int_type(out_type)) {
        store_int(out, at, load_int(in, from, in_type), out_type);
    } else if (in_type == GM_T_C64 && out_type == GM_T_BOOL) {
        ((uint8_t *)out)[at] = ((const c64 *)in)[from] != c64(0.0f);
    } else if (in_type == GM_T_C64 && out_type == GM_T_C64) {
        ((c64 *)out)[at] = ((const c64 *)in)[from];
    } else {
        store_double(out, at, load_double(in, from, in_type), out_type);
    }
}
#endif
