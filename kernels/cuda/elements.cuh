/* elements.cuh - elements of every type: float32 from f32, f16 and bf16; int64 from integers; complex numbers; walks
 * over strided operands; accesses of 16 bytes. */
#ifndef GOMLX_CUDA_ELEMENTS_CUH
#define GOMLX_CUDA_ELEMENTS_CUH
#include "args.h"
#include "vocabulary.cuh"

/* ---- the processor's vector vocabulary with one lane, so that simd_math.h is the device's too ---- */
#define GOMLX_KERNELS_CPU_COMPILER_H /* its words are those of vocabulary.cuh here */
#define ALWAYS_INLINE DEVICE
DEVICE vi vf_bits(vf a) { return (vi)bits_of_float(a); }
DEVICE vf vf_of_bits(vi a) { return float_of_bits((uint32_t)a); }
DEVICE vf vf_set1(float x) { return x; }
DEVICE vf vf_zero() { return 0.0f; }
DEVICE vf vf_load(const float *p) { return *p; }
DEVICE vf vf_add(vf a, vf b) { return a + b; }
DEVICE vf vf_sub(vf a, vf b) { return a - b; }
DEVICE vf vf_mul(vf a, vf b) { return a * b; }
DEVICE vf vf_div(vf a, vf b) { return a / b; }
DEVICE vf vf_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
DEVICE vf vf_fnma(vf a, vf b, vf c) { return fmaf(-a, b, c); }
DEVICE vf vf_select(vm m, vf a, vf b) { return m ? a : b; }
DEVICE vf vf_max(vf a, vf b) { return a > b ? a : b; }
DEVICE vf vf_min(vf a, vf b) { return a < b ? a : b; }
DEVICE vf vf_sqrt(vf a) { return sqrtf(a); }
DEVICE vf vf_and(vf a, vf b) { return vf_of_bits(vf_bits(a) & vf_bits(b)); }
DEVICE vf vf_or(vf a, vf b) { return vf_of_bits(vf_bits(a) | vf_bits(b)); }
DEVICE vf vf_xor(vf a, vf b) { return vf_of_bits(vf_bits(a) ^ vf_bits(b)); }
DEVICE vf vf_floor(vf a) { return floorf(a); }
DEVICE vf vf_ceil(vf a) { return ceilf(a); }
DEVICE vf vf_trunc(vf a) { return truncf(a); }
DEVICE vf vf_rint(vf a) { return rintf(a); }
DEVICE vm vf_lt(vf a, vf b) { return a < b; }
DEVICE vm vf_le(vf a, vf b) { return a <= b; }
DEVICE vm vf_eq(vf a, vf b) { return a == b; }
DEVICE vm vf_ne(vf a, vf b) { return a != b; }
DEVICE vm vm_and(vm a, vm b) { return a && b; }
DEVICE vm vm_or(vm a, vm b) { return a || b; }
DEVICE vi vi_set1(int32_t x) { return x; }
DEVICE vi vi_add(vi a, vi b) { return (vi)((uint32_t)a + (uint32_t)b); }
DEVICE vi vi_sub(vi a, vi b) { return (vi)((uint32_t)a - (uint32_t)b); }
DEVICE vi vi_and(vi a, vi b) { return a & b; }
DEVICE vm vi_eq(vi a, vi b) { return a == b; }
DEVICE vi vi_shl(vi a, int n) { return (vi)((uint32_t)a << n); }
DEVICE vi vi_shr(vi a, int n) { return a >> n; }
DEVICE vi vf_to_vi(vf a) { return vi_sub(vf_bits(a + 0x1.8p23f), vf_bits(0x1.8p23f)); }
DEVICE vf vf_from_vi(vi a) { return (float)a; }
/* p * 2^n in two steps, so that n may leave the range of exponents. */
DEVICE vf vf_scale2(vf p, vf n) {
    const vi whole = vf_to_vi(n), half = whole >> 1;
    const vf first = vf_of_bits(vi_shl(vi_add(half, 127), 23));
    return p * first * vf_of_bits(vi_shl(vi_add(vi_sub(whole, half), 127), 23));
}
#include "cpu/simd_math.h"

/* ---- types ---- */
DEVICE int item_size(int type) {
    return type == GM_T_BOOL || type == GM_T_U8 || type == GM_T_I8                         ? 1
           : type == GM_T_U16 || type == GM_T_I16 || type == GM_T_F16 || type == GM_T_BF16 ? 2
           : type == GM_T_U32 || type == GM_T_I32 || type == GM_T_F32                      ? 4
                                                                                           : 8;
}
DEVICE bool is_float_type(int type) { return type == GM_T_F32 || type == GM_T_F16 || type == GM_T_BF16; }
DEVICE bool is_int_type(int type) { return type <= GM_T_I64; }
DEVICE bool is_signed_type(int type) { return type >= GM_T_I8 && type <= GM_T_I64; }

/* What memory holds of a float type, and the float. */
template <int TYPE> struct float_item { typedef uint16_t raw; };
template <> struct float_item<GM_T_F32> { typedef float raw; };
template <int TYPE> DEVICE float widen(typename float_item<TYPE>::raw x) {
    if constexpr (TYPE == GM_T_F16) return float_of_half(x);
    else if constexpr (TYPE == GM_T_BF16) return float_of_bits((uint32_t)x << 16);
    else return x;
}
template <int TYPE> DEVICE typename float_item<TYPE>::raw narrow(float x) {
    if constexpr (TYPE == GM_T_F16) return half_of_float(x);
    else if constexpr (TYPE == GM_T_BF16) return bfloat_of_float(x);
    else return x;
}
DEVICE float load_float(const void *p, int64_t i, int type) {
    if (type == GM_T_F32) return ((const float *)p)[i];
    const uint16_t half = ((const uint16_t *)p)[i];
    return type == GM_T_F16 ? widen<GM_T_F16>(half) : widen<GM_T_BF16>(half);
}
DEVICE void store_float(void *p, int64_t i, float x, int type) {
    if (type == GM_T_F32) ((float *)p)[i] = x;
    else ((uint16_t *)p)[i] = type == GM_T_F16 ? narrow<GM_T_F16>(x) : narrow<GM_T_BF16>(x);
}
/* x as its type holds it. */
DEVICE float round_float(float x, int type) {
    if (type == GM_T_F16) return widen<GM_T_F16>(narrow<GM_T_F16>(x));
    if (type == GM_T_BF16) return widen<GM_T_BF16>(narrow<GM_T_BF16>(x));
    return x;
}
/* uint64 keeps its bits in int64. */
DEVICE int64_t load_int(const void *p, int64_t i, int type) {
    switch (type) {
    case GM_T_BOOL: return ((const uint8_t *)p)[i] != 0;
    case GM_T_U8: return ((const uint8_t *)p)[i];
    case GM_T_U16: return ((const uint16_t *)p)[i];
    case GM_T_U32: return ((const uint32_t *)p)[i];
    case GM_T_I8: return ((const int8_t *)p)[i];
    case GM_T_I16: return ((const int16_t *)p)[i];
    case GM_T_I32: return ((const int32_t *)p)[i];
    default: return ((const int64_t *)p)[i];
    }
}
DEVICE void store_int(void *p, int64_t i, int64_t x, int type) {
    switch (item_size(type)) {
    case 1: ((uint8_t *)p)[i] = type == GM_T_BOOL ? x != 0 : (uint8_t)x; break;
    case 2: ((uint16_t *)p)[i] = (uint16_t)x; break;
    case 4: ((uint32_t *)p)[i] = (uint32_t)x; break;
    default: ((int64_t *)p)[i] = x;
    }
}
/* As element.inc of the processor says: towards zero, and what does not fit is what x86 makes of it. */
DEVICE int64_t int64_of_double(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
DEVICE int64_t int32_of_double(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int64_t)x : INT32_MIN; }
DEVICE int64_t uint64_of_double(double x) {
    if (x >= 0x1p63) return x < 0x1p64 ? (int64_t)(uint64_t)x : 0;
    return int64_of_double(x);
}
DEVICE int64_t int_of_double(double x, int type) {
    if (type == GM_T_BOOL) return x != 0;
    if (type == GM_T_I64 || type == GM_T_U32) return int64_of_double(x);
    return type == GM_T_U64 ? uint64_of_double(x) : int32_of_double(x);
}

/* ---- complex numbers, which the rows of unary.def and binary.def write as C does ---- */
struct c64 {
    float re, im;
    c64() = default;
    METHOD c64(float r) : re(r), im(0) {}
    METHOD c64(float r, float i) : re(r), im(i) {}
};
DEVICE float crealf(c64 z) { return z.re; }
DEVICE float cimagf(c64 z) { return z.im; }
DEVICE c64 conjf(c64 z) { return c64(z.re, -z.im); }
DEVICE c64 operator-(c64 z) { return c64(-z.re, -z.im); }
DEVICE c64 operator+(c64 a, c64 b) { return c64(a.re + b.re, a.im + b.im); }
DEVICE c64 operator-(c64 a, c64 b) { return c64(a.re - b.re, a.im - b.im); }
DEVICE bool operator==(c64 a, c64 b) { return a.re == b.re && a.im == b.im; }
DEVICE bool operator!=(c64 a, c64 b) { return !(a == b); }
/* An infinite factor of one sign, as C's Annex G has it. */
DEVICE float boxed(float x) { return copysignf(isinf(x) ? 1.0f : 0.0f, x); }
DEVICE float without_nan(float x) { return x != x ? copysignf(0.0f, x) : x; }
DEVICE_CALL c64 recover_product(c64 a, c64 b, c64 z) {
    const float ac = a.re * b.re, bd = a.im * b.im, ad = a.re * b.im, bc = a.im * b.re;
    bool again = false;
    if (isinf(a.re) || isinf(a.im)) {
        a = c64(boxed(a.re), boxed(a.im));
        b = c64(without_nan(b.re), without_nan(b.im));
        again = true;
    }
    if (isinf(b.re) || isinf(b.im)) {
        b = c64(boxed(b.re), boxed(b.im));
        a = c64(without_nan(a.re), without_nan(a.im));
        again = true;
    }
    if (!again && (isinf(ac) || isinf(bd) || isinf(ad) || isinf(bc))) {
        a = c64(without_nan(a.re), without_nan(a.im));
        b = c64(without_nan(b.re), without_nan(b.im));
        again = true;
    }
    if (!again) return z;
    return c64(INFINITY * (a.re * b.re - a.im * b.im), INFINITY * (a.re * b.im + a.im * b.re));
}
DEVICE c64 operator*(c64 a, c64 b) {
    const c64 z(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
    return z.re != z.re && z.im != z.im ? recover_product(a, b, z) : z;
}
DEVICE c64 operator*(float a, c64 b) { return c64(a * b.re, a * b.im); }
DEVICE c64 operator*(c64 a, float b) { return c64(a.re * b, a.im * b); }
DEVICE c64 operator/(c64 a, float b) { return c64(a.re / b, a.im / b); }
/* In float64, which no square leaves. */
DEVICE c64 operator/(c64 a, c64 b) {
    const double br = b.re, bi = b.im, size = br * br + bi * bi;
    const double re = ((double)a.re * br + (double)a.im * bi) / size,
                 im = ((double)a.im * br - (double)a.re * bi) / size;
    if (re == re || im == im) return c64((float)re, (float)im);
    if (size == 0 && (a.re == a.re || a.im == a.im)) {
        const float far = copysignf(INFINITY, b.re);
        return c64(far * a.re, far * a.im);
    }
    if ((isinf(a.re) || isinf(a.im)) && isfinite(b.re) && isfinite(b.im)) {
        const float ar = boxed(a.re), ai = boxed(a.im);
        return c64(INFINITY * (ar * b.re + ai * b.im), INFINITY * (ai * b.re - ar * b.im));
    }
    if ((isinf(b.re) || isinf(b.im)) && isfinite(a.re) && isfinite(a.im)) {
        const float cr = boxed(b.re), ci = boxed(b.im);
        return c64(0.0f * (a.re * cr + a.im * ci), 0.0f * (a.im * cr - a.re * ci));
    }
    return c64((float)re, (float)im);
}

/* ---- walks ---- */
/* The offset of element i of a shape for each of K operands; launchers see to it that i has 32 bits, whose division
 * takes a third of the time. */
template <int K> struct offsets { int64_t at[K]; };
template <int K> DEVICE offsets<K> offsets_of(const cuda_shape &s, const cuda_strides *const (&steps)[K], int64_t i) {
    offsets<K> o;
    UNROLL for (int k = 0; k < K; k++)
        o.at[k] = 0;
    uint32_t left = (uint32_t)i;
    for (int d = s.ndim - 1; d > 0; d--) {
        const uint32_t size = (uint32_t)s.shape[d], next = left / size, index = left - next * size;
        UNROLL for (int k = 0; k < K; k++)
            o.at[k] += (int64_t)index * steps[k]->at[d];
        left = next;
    }
    UNROLL for (int k = 0; k < K; k++)
        o.at[k] += (int64_t)left * steps[k]->at[0];
    return o;
}
DEVICE int64_t offset_of(const cuda_shape &s, const cuda_strides &steps, int64_t i) {
    const cuda_strides *const one[1] = {&steps};
    return offsets_of<1>(s, one, i).at[0];
}

/* N items that are accessed at once. */
template <class T, int N> struct alignas(sizeof(T) * N) pack { T at[N]; };

/* ---- joining values of a block; all threads get the result, in an order that the number of threads alone gives ----
 */
template <class T, class F> DEVICE T join_warp(T x, F join) {
    UNROLL for (int m = WARP / 2; m > 0; m /= 2) {
        const T other = lane_xor(x, m);
        /* The lower lane's value comes first, so that both lanes compute the same. */
        x = thread_index() & m ? join(other, x) : join(x, other);
    }
    return x;
}
template <class T, class F> DEVICE T join_block(T x, T *shared, F join) { /* shared: one for each warp */
    x = join_warp(x, join);
    const int warps = thread_count() / WARP;
    if (warps == 1) return x;
    barrier(); /* what shared held before has been read */
    if (thread_index() % WARP == 0) shared[thread_index() / WARP] = x;
    barrier();
    T total = shared[0];
    for (int w = 1; w < warps; w++) total = join(total, shared[w]);
    return total;
}
#endif
