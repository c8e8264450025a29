/* simd_neon.h - the vector vocabulary on AArch64 Advanced SIMD. What the words mean is said in simd_avx512.h. */
#ifndef GOMLX_SIMD_H
#define GOMLX_SIMD_H
#undef _GNU_SOURCE /* kernels are C11 alone; POSIX's select has the name of one */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>
#include "cpu/chosen.h"
#include "cpu/compiler.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#define V_N 4
#define V_ACC 24
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;

ALWAYS_INLINE vi vf_bits(vf a) { return vreinterpretq_s32_f32(a); }
ALWAYS_INLINE vf vf_of_bits(vi a) { return vreinterpretq_f32_s32(a); }

ALWAYS_INLINE vf vf_set1(float x) { return vdupq_n_f32(x); }
ALWAYS_INLINE vf vf_zero(void) { return vdupq_n_f32(0); }
ALWAYS_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { vst1q_f32(p, v); }
ALWAYS_INLINE vf vf_load_part(const float *p, int64_t n) {
    float lanes[V_N] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vld1q_f32(lanes);
}
ALWAYS_INLINE void vf_store_part(float *p, vf v, int64_t n) {
    float lanes[V_N];
    vst1q_f32(lanes, v);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

ALWAYS_INLINE vf v_from_f16(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
ALWAYS_INLINE vf v_from_bf16(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
ALWAYS_INLINE uint16x4_t v_to_f16(vf v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
ALWAYS_INLINE uint16x4_t v_to_bf16(vf v) { return vreinterpret_u16_bf16(vcvt_bf16_f32(v)); }
#else
ALWAYS_INLINE uint16x4_t v_to_bf16(vf v) {
    uint32x4_t bits = vreinterpretq_u32_f32(v), top = vshrq_n_u32(bits, 16);
    uint32x4_t even = vaddq_u32(bits, vaddq_u32(vandq_u32(top, vdupq_n_u32(1)), vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(top, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(v, v), vshrq_n_u32(even, 16), quiet));
}
#endif
ALWAYS_INLINE vi vf_join_bf16(vf low, vf high) {
    return vreinterpretq_s32_u32(vorrq_u32(vmovl_u16(v_to_bf16(low)), vshlq_n_u32(vmovl_u16(v_to_bf16(high)), 16)));
}
ALWAYS_INLINE uint16x4_t v_load_u16_part(const uint16_t *p, int64_t n) {
    uint16_t lanes[V_N] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vld1_u16(lanes);
}
ALWAYS_INLINE void v_store_u16_part(uint16_t *p, uint16x4_t h, int64_t n) {
    uint16_t lanes[V_N];
    vst1_u16(lanes, h);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) { return v_from_f16(vld1_u16(p)); }
ALWAYS_INLINE vf vf_load_bf16(const uint16_t *p) { return v_from_bf16(vld1_u16(p)); }
ALWAYS_INLINE vf vf_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int64_t n) { return v_from_f16(v_load_u16_part(p, n)); }
ALWAYS_INLINE vf vf_load_bf16_part(const uint16_t *p, int64_t n) { return v_from_bf16(v_load_u16_part(p, n)); }
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) { vst1_u16(p, v_to_f16(v)); }
ALWAYS_INLINE void vf_store_bf16(uint16_t *p, vf v) { vst1_u16(p, v_to_bf16(v)); }
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int64_t n) { v_store_u16_part(p, v_to_f16(v), n); }
ALWAYS_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int64_t n) { v_store_u16_part(p, v_to_bf16(v), n); }

ALWAYS_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
ALWAYS_INLINE vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
ALWAYS_INLINE vf vf_and(vf a, vf b) { return vf_of_bits(vandq_s32(vf_bits(a), vf_bits(b))); }
ALWAYS_INLINE vf vf_or(vf a, vf b) { return vf_of_bits(vorrq_s32(vf_bits(a), vf_bits(b))); }
ALWAYS_INLINE vf vf_xor(vf a, vf b) { return vf_of_bits(veorq_s32(vf_bits(a), vf_bits(b))); }
ALWAYS_INLINE vf vf_floor(vf a) { return vrndmq_f32(a); }
ALWAYS_INLINE vf vf_ceil(vf a) { return vrndpq_f32(a); }
ALWAYS_INLINE vf vf_trunc(vf a) { return vrndq_f32(a); }
ALWAYS_INLINE vf vf_rint(vf a) { return vrndnq_f32(a); }

ALWAYS_INLINE vm vf_lt(vf a, vf b) { return vcltq_f32(a, b); }
ALWAYS_INLINE vm vf_le(vf a, vf b) { return vcleq_f32(a, b); }
ALWAYS_INLINE vm vf_eq(vf a, vf b) { return vceqq_f32(a, b); }
ALWAYS_INLINE vm vf_ne(vf a, vf b) { return vmvnq_u32(vceqq_f32(a, b)); }
ALWAYS_INLINE vm vm_and(vm a, vm b) { return vandq_u32(a, b); }
ALWAYS_INLINE vm vm_or(vm a, vm b) { return vorrq_u32(a, b); }
ALWAYS_INLINE int vm_any(vm a) { return vmaxvq_u32(a) != 0; }
ALWAYS_INLINE int vm_count(vm a) { return (int)vaddvq_u32(vshrq_n_u32(a, 31)); }
ALWAYS_INLINE void vm_store(uint8_t *p, vm m) {
    uint32_t lanes[V_N];
    vst1q_u32(lanes, m);
    for (int i = 0; i < V_N; i++) p[i] = (uint8_t)(lanes[i] & 1);
}

ALWAYS_INLINE vi vi_set1(int32_t x) { return vdupq_n_s32(x); }
ALWAYS_INLINE vi vi_load(const int32_t *p) { return vld1q_s32(p); }
ALWAYS_INLINE void vi_store(int32_t *p, vi v) { vst1q_s32(p, v); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
ALWAYS_INLINE vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
ALWAYS_INLINE vm vi_eq(vi a, vi b) { return vceqq_s32(a, b); }
ALWAYS_INLINE vm vi_lt(vi a, vi b) { return vcltq_s32(a, b); }
#define vi_shl(a, n) vshlq_n_s32(a, n)
#define vi_shr(a, n) vshrq_n_s32(a, n)
ALWAYS_INLINE vi vf_to_vi(vf a) { return vcvtnq_s32_f32(a); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }

ALWAYS_INLINE const uint8_t *v_chosen(vm m) {
    static const uint32_t bit[V_N] = {1, 2, 4, 8};
    return chosen_bytes[vaddvq_u32(vandq_u32(m, vld1q_u32(bit)))];
}
ALWAYS_INLINE void vi_store_chosen(int32_t *p, vi v, vm m) {
    vst1q_s32(p, vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(v), vld1q_u8(v_chosen(m)))));
}
ALWAYS_INLINE void vf_store_chosen(float *p, vf v, vm m) {
    vst1q_f32(p, vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vld1q_u8(v_chosen(m)))));
}

ALWAYS_INLINE vi vi_min(vi a, vi b) { return vminq_s32(a, b); }
ALWAYS_INLINE vi vi_max(vi a, vi b) { return vmaxq_s32(a, b); }
ALWAYS_INLINE vi vi_xor_lanes(vi v, int m) {
    vi pairs = m & 1 ? vrev64q_s32(v) : v;
    return m & 2 ? vextq_s32(pairs, pairs, 2) : pairs;
}
ALWAYS_INLINE vi vi_sort_lanes(vi a, vi b, int bit) {
    const uint32_t odd[4] = {0, bit & 1 ? ~0u : 0, bit & 2 ? ~0u : 0, ~0u};
    return vbslq_s32(vld1q_u32(odd), vmaxq_s32(a, b), vminq_s32(a, b));
}
#define vf_slide(v, fill, n) vextq_f32(fill, v, 4 - (n))
ALWAYS_INLINE vf vf_permute(vf v, vi order) {
    /* Byte b of lane l is byte 4 * order[l] + b of v. */
    const vi lane = vandq_s32(order, vdupq_n_s32(3));
    const vi bytes = vaddq_s32(vmulq_n_s32(lane, 0x04040404), vdupq_n_s32(0x03020100));
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vreinterpretq_u8_s32(bytes)));
}
ALWAYS_INLINE vf vf_last(vf v) { return vdupq_laneq_f32(v, 3); }

/* Two factors, as 2^n alone leaves the range of float32; only the second one can round. */
ALWAYS_INLINE vf vf_scale2(vf p, vf n) {
    vi whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    vf first = vf_of_bits(vshlq_n_s32(vaddq_s32(half, bias), 23));
    return vmulq_f32(vmulq_f32(p, first), vf_of_bits(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23)));
}

ALWAYS_INLINE void vf_transpose(vf *r) {
    float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
ALWAYS_INLINE void vf_load_transposed(vf *r, const char *p, int64_t stride) {
    UNROLL for (int i = 0; i < V_N; i++)
        r[i] = vf_load((const float *)(const void *)(p + i * stride));
    vf_transpose(r);
}

typedef float64x2_t vd;
ALWAYS_INLINE vd vd_zero(void) { return vdupq_n_f64(0); }
ALWAYS_INLINE vd vd_set1(double x) { return vdupq_n_f64(x); }
ALWAYS_INLINE vd vd_load(const double *p) { return vld1q_f64(p); }
ALWAYS_INLINE void vd_store(double *p, vd v) { vst1q_f64(p, v); }
ALWAYS_INLINE vd vd_add(vd a, vd b) { return vaddq_f64(a, b); }
ALWAYS_INLINE vd vd_fma(vd a, vd b, vd c) { return vfmaq_f64(c, a, b); }
ALWAYS_INLINE void vd_transpose(vd *r) {
    vd second = vtrn2q_f64(r[0], r[1]);
    r[0] = vtrn1q_f64(r[0], r[1]);
    r[1] = second;
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
/* c + (a.low * b.low + a.high * b.high): products are exact, both sums rounded to odd (the last bit is set where a sum
 * is not exact), denormal numbers are zeros, and a NaN is the default one. */
#define V_PAIRS 1
ALWAYS_INLINE vf vf_pairs(vf a, vf b, vf c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
ALWAYS_INLINE void vf_store_pairs_bf16(uint16_t *p, vf v) { vf_store_bf16(p, v); }
ALWAYS_INLINE void vf_store_pairs_bf16_part(uint16_t *p, vf v, int64_t n) { vf_store_bf16_part(p, v, n); }
ALWAYS_INLINE void vf_pair_rows(const uint16_t *even, const uint16_t *odd, int64_t n, vf *out) {
    uint16_t part[2][2 * V_N] = {0};
    if (n < 2 * V_N) {
        memcpy(part[0], even, (size_t)n * 2);
        even = part[0];
        if (odd) odd = memcpy(part[1], odd, (size_t)n * 2);
    }
    const uint16x8_t a = vld1q_u16(even), b = odd ? vld1q_u16(odd) : vdupq_n_u16(0);
    out[0] = vreinterpretq_f32_u16(vzip1q_u16(a, b));
    out[1] = vreinterpretq_f32_u16(vzip2q_u16(a, b));
}
/* Squares: two rows of two pairs each. vf_squares adds rows of a times rows of b to the 2 x 2 numbers c, pair after
 * pair as vf_pairs does. */
#define V_SQUARES 1
ALWAYS_INLINE vf vf_squares(vf a, vf b, vf c) {
    return vbfmmlaq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
ALWAYS_INLINE vf vf_square_load(const float *row, const float *next) {
    return vcombine_f32(vld1_f32(row), vld1_f32(next));
}
/* Lanes 0 and 2 (1 and 3) of two vectors as rows; results of such to vectors, one for each row of a. */
ALWAYS_INLINE vf vf_square_even(vf v, vf next) { return vtrn1q_f32(v, next); }
ALWAYS_INLINE vf vf_square_odd(vf v, vf next) { return vtrn2q_f32(v, next); }
ALWAYS_INLINE void vf_unsquare(vf even, vf odd, vf *row, vf *next) {
    *row = vzip1q_f32(even, odd);
    *next = vzip2q_f32(even, odd);
}
#endif

ALWAYS_INLINE float vf_reduce_add(vf v) {
    float32x2_t x = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(x, 0) + vget_lane_f32(x, 1);
}
ALWAYS_INLINE float v_greater(float a, float b) { return a > b ? a : b; }
ALWAYS_INLINE float vf_reduce_max(vf v) {
    float lanes[V_N];
    vst1q_f32(lanes, v);
    return v_greater(v_greater(lanes[0], lanes[2]), v_greater(lanes[1], lanes[3]));
}
#include "cpu/simd_math.h"
#endif
