/* simd_generic.h - the vector vocabulary in plain C with vectors of four, for every machine and as the oracle of the
 * others. No fused multiply-add: vf_fma rounds twice. What the words mean is said in simd_avx512.h. */
#ifndef GOMLX_SIMD_H
#define GOMLX_SIMD_H
#undef _GNU_SOURCE /* kernels are C11 alone; POSIX's select has the name of one */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "cpu/compiler.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#define V_N 4
#define V_ACC 12
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16))); /* arithmetic that wraps */
typedef vi vm;

ALWAYS_INLINE vi vf_bits(vf a) { return (vi)a; }
ALWAYS_INLINE vf vf_of_bits(vi a) { return (vf)a; }

ALWAYS_INLINE vf vf_set1(float x) { return (vf){x, x, x, x}; }
ALWAYS_INLINE vf vf_zero(void) { return (vf){0, 0, 0, 0}; }
ALWAYS_INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vf vf_load_part(const float *p, int64_t n) {
    float lanes[V_N] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return vf_load(lanes);
}
ALWAYS_INLINE void vf_store_part(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

/* Exact: the magnitude is shifted to float32's bits and 2^112 corrects the exponent, denormals included. */
ALWAYS_INLINE vf v_from_f16(vi h) {
    vi magnitude = (h & 0x7fff) << 13, special = (h & 0x7c00) == 0x7c00;
    vf scaled = vf_of_bits(magnitude) * vf_set1(0x1p112f);
    vi bits = (special & (magnitude | 0x7f800000)) | (~special & vf_bits(scaled));
    return vf_of_bits(bits | (vi)((vu)(h & 0x8000) << 16));
}
/* To nearest even by the float adder itself: adding 2^(e+13) drops the bits below float16's last one. */
ALWAYS_INLINE vi v_to_f16(vf v) {
    vi bits = vf_bits(v), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    vi normal = (vi)(((vu)magnitude + 0xfff + (((vu)magnitude >> 13) & 1)) >> 13);
    vi small = vf_bits(vf_of_bits(magnitude) + vf_set1(0.5f)) - 0x3f000000;
    vi nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    vi h = normal - (112 << 10);
    vi is_small = magnitude < 0x38800000, is_big = magnitude >= 0x477ff000, is_nan = magnitude > 0x7f800000;
    h = (is_small & small) | (~is_small & h);
    h = (is_big & 0x7c00) | (~is_big & h);
    h = (is_nan & nan) | (~is_nan & h);
    return h | sign;
}
ALWAYS_INLINE vi v_to_bf16(vf v) {
    vi bits = vf_bits(v), nan = v != v, top = (bits >> 16) & 0xffff;
    vi rounded = (vi)(((vu)bits + 0x7fff + (vu)(top & 1)) >> 16);
    return (nan & (top | 0x40)) | (~nan & rounded);
}
ALWAYS_INLINE vi vf_join_bf16(vf low, vf high) { return (v_to_bf16(low) & 0xffff) | (vi)((vu)v_to_bf16(high) << 16); }
ALWAYS_INLINE vi v_load_u16(const uint16_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
ALWAYS_INLINE vi v_load_u16_part(const uint16_t *p, int64_t n) {
    uint16_t lanes[V_N] = {0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return v_load_u16(lanes);
}
ALWAYS_INLINE void v_store_u16(uint16_t *p, vi h, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = (uint16_t)h[i];
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) { return v_from_f16(v_load_u16(p)); }
ALWAYS_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_of_bits((vi)((vu)v_load_u16(p) << 16)); }
ALWAYS_INLINE vf vf_load_i8(const int8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int64_t n) { return v_from_f16(v_load_u16_part(p, n)); }
ALWAYS_INLINE vf vf_load_bf16_part(const uint16_t *p, int64_t n) {
    return vf_of_bits((vi)((vu)v_load_u16_part(p, n) << 16));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) { v_store_u16(p, v_to_f16(v), V_N); }
ALWAYS_INLINE void vf_store_bf16(uint16_t *p, vf v) { v_store_u16(p, v_to_bf16(v), V_N); }
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int64_t n) { v_store_u16(p, v_to_f16(v), n); }
ALWAYS_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int64_t n) { v_store_u16(p, v_to_bf16(v), n); }

ALWAYS_INLINE vf vf_add(vf a, vf b) { return a + b; }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return a - b; }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return a * b; }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return a / b; }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    vf product = a * b;
    return product + c;
}
ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) {
    vf product = a * b;
    return c - product;
}
ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return vf_of_bits((m & vf_bits(a)) | (~m & vf_bits(b))); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
ALWAYS_INLINE vf vf_sqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
ALWAYS_INLINE vf vf_and(vf a, vf b) { return vf_of_bits(vf_bits(a) & vf_bits(b)); }
ALWAYS_INLINE vf vf_or(vf a, vf b) { return vf_of_bits(vf_bits(a) | vf_bits(b)); }
ALWAYS_INLINE vf vf_xor(vf a, vf b) { return vf_of_bits(vf_bits(a) ^ vf_bits(b)); }
ALWAYS_INLINE vf vf_floor(vf a) { return (vf){floorf(a[0]), floorf(a[1]), floorf(a[2]), floorf(a[3])}; }
ALWAYS_INLINE vf vf_ceil(vf a) { return (vf){ceilf(a[0]), ceilf(a[1]), ceilf(a[2]), ceilf(a[3])}; }
ALWAYS_INLINE vf vf_trunc(vf a) { return (vf){truncf(a[0]), truncf(a[1]), truncf(a[2]), truncf(a[3])}; }
/* Below 2^23, adding and taking away 2^23 leaves the nearest integer. */
ALWAYS_INLINE vf vf_rint(vf a) {
    vf sign = vf_and(a, vf_set1(-0.0f)), magnitude = vf_xor(a, sign), big = vf_set1(0x1p23f);
    vf rounded = (magnitude + big) - big;
    return vf_select(magnitude < big, vf_or(rounded, sign), a);
}

ALWAYS_INLINE vm vf_lt(vf a, vf b) { return a < b; }
ALWAYS_INLINE vm vf_le(vf a, vf b) { return a <= b; }
ALWAYS_INLINE vm vf_eq(vf a, vf b) { return a == b; }
ALWAYS_INLINE vm vf_ne(vf a, vf b) { return a != b; }
ALWAYS_INLINE vm vm_and(vm a, vm b) { return a & b; }
ALWAYS_INLINE vm vm_or(vm a, vm b) { return a | b; }
ALWAYS_INLINE int vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
ALWAYS_INLINE int vm_count(vm a) { return -(a[0] + a[1] + a[2] + a[3]); }
ALWAYS_INLINE void vm_store(uint8_t *p, vm m) {
    for (int i = 0; i < V_N; i++) p[i] = (uint8_t)(m[i] & 1);
}

ALWAYS_INLINE vi vi_set1(int32_t x) { return (vi){x, x, x, x}; }
ALWAYS_INLINE vi vi_load(const int32_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void vi_store(int32_t *p, vi v) { memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return (vi)((vu)a + (vu)b); }
ALWAYS_INLINE vi vi_sub(vi a, vi b) { return (vi)((vu)a - (vu)b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return a & b; }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return a | b; }
ALWAYS_INLINE vm vi_eq(vi a, vi b) { return a == b; }
ALWAYS_INLINE vm vi_lt(vi a, vi b) { return a < b; }
ALWAYS_INLINE vi vi_shl(vi a, int n) { return (vi)((vu)a << n); }
ALWAYS_INLINE vi vi_shr(vi a, int n) { return a >> n; }
/* To nearest, for |a| < 2^22: the integer is in the low bits of a + 1.5 * 2^23. */
ALWAYS_INLINE vi vf_to_vi(vf a) { return vi_sub(vf_bits(a + vf_set1(0x1.8p23f)), vf_bits(vf_set1(0x1.8p23f))); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return (vf){(float)a[0], (float)a[1], (float)a[2], (float)a[3]}; }

ALWAYS_INLINE vf vf_scale2(vf p, vf n) {
    vi whole = vf_to_vi(n), half = whole >> 1;
    vf first = vf_of_bits(vi_shl(vi_add(half, vi_set1(127)), 23));
    return p * first * vf_of_bits(vi_shl(vi_add(vi_sub(whole, half), vi_set1(127)), 23));
}

ALWAYS_INLINE void vf_store_chosen(float *p, vf v, vm m) {
    for (int i = 0; i < V_N; i++) {
        *p = v[i];
        if (m[i]) p++;
    }
}
ALWAYS_INLINE void vi_store_chosen(int32_t *p, vi v, vm m) {
    for (int i = 0; i < V_N; i++) {
        *p = v[i];
        if (m[i]) p++;
    }
}

ALWAYS_INLINE vi vi_min(vi a, vi b) {
    vi less = a < b;
    return (less & a) | (~less & b);
}
ALWAYS_INLINE vi vi_max(vi a, vi b) {
    vi less = a < b;
    return (less & b) | (~less & a);
}
ALWAYS_INLINE vi vi_xor_lanes(vi v, int m) { return (vi){v[0 ^ m], v[1 ^ m], v[2 ^ m], v[3 ^ m]}; }
ALWAYS_INLINE vi vi_sort_lanes(vi a, vi b, int bit) {
    vi least = vi_min(a, b), most = vi_max(a, b);
    return bit == 1 ? (vi){least[0], most[1], least[2], most[3]} : (vi){least[0], least[1], most[2], most[3]};
}
ALWAYS_INLINE vf vf_slide(vf v, vf fill, int n) {
    vf slid = fill;
    for (int i = n; i < V_N; i++) slid[i] = v[i - n];
    return slid;
}
ALWAYS_INLINE vf vf_permute(vf v, vi order) {
    return (vf){v[order[0] & 3], v[order[1] & 3], v[order[2] & 3], v[order[3] & 3]};
}
ALWAYS_INLINE vf vf_last(vf v) { return vf_set1(v[V_N - 1]); }
ALWAYS_INLINE void vf_transpose(vf *r) {
    vf t[V_N];
    for (int i = 0; i < V_N; i++) t[i] = (vf){r[0][i], r[1][i], r[2][i], r[3][i]};
    for (int i = 0; i < V_N; i++) r[i] = t[i];
}
ALWAYS_INLINE void vf_load_transposed(vf *r, const char *p, int64_t stride) {
    UNROLL for (int i = 0; i < V_N; i++)
        r[i] = vf_load((const float *)(const void *)(p + i * stride));
    vf_transpose(r);
}

typedef double vd __attribute__((vector_size(16)));
ALWAYS_INLINE vd vd_zero(void) { return (vd){0, 0}; }
ALWAYS_INLINE vd vd_set1(double x) { return (vd){x, x}; }
ALWAYS_INLINE vd vd_load(const double *p) {
    vd v;
    memcpy(&v, p, sizeof v);
    return v;
}
ALWAYS_INLINE void vd_store(double *p, vd v) { memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vd vd_add(vd a, vd b) { return a + b; }
ALWAYS_INLINE vd vd_fma(vd a, vd b, vd c) {
    vd product = a * b;
    return product + c;
}
ALWAYS_INLINE void vd_transpose(vd *r) {
    vd second = {r[0][1], r[1][1]};
    r[0] = (vd){r[0][0], r[1][0]};
    r[1] = second;
}

ALWAYS_INLINE float vf_reduce_add(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
ALWAYS_INLINE float v_greater(float a, float b) { return a > b ? a : b; }
ALWAYS_INLINE float vf_reduce_max(vf v) { return v_greater(v_greater(v[0], v[2]), v_greater(v[1], v[3])); }
#include "cpu/simd_math.h"
#endif
