/* simd_avx2.h - the vector vocabulary on AVX2, FMA and F16C. What the words mean is said in simd_avx512.h. */
#ifndef GOMLX_SIMD_H
#define GOMLX_SIMD_H
#undef _GNU_SOURCE /* kernels are C11 alone; POSIX's select has the name of one */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "cpu/chosen.h"
#include "cpu/compiler.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#define V_N 8
#define V_ACC 12
#define V_MASKS 1
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

/* All ones in the first n lanes. */
ALWAYS_INLINE __m256i v_first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_load_part(const float *p, int64_t n) { return _mm256_maskload_ps(p, v_first(n)); }
ALWAYS_INLINE void vf_store_part(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, v_first(n), v); }

ALWAYS_INLINE vf vf_from_f16(__m128i h) { return _mm256_cvtph_ps(h); }
ALWAYS_INLINE vf vf_from_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
ALWAYS_INLINE __m128i vf_to_f16(vf v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE __m128i vf_to_bf16(vf v) {
    __m256i x = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    __m256i even = _mm256_srli_epi32(_mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i h = _mm256_blendv_epi8(even, quiet, nan);
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0xd8);
    return _mm256_castsi256_si128(h);
}
ALWAYS_INLINE vi vf_join_bf16(vf low, vf high) {
    return _mm256_or_si256(_mm256_cvtepu16_epi32(vf_to_bf16(low)),
                           _mm256_slli_epi32(_mm256_cvtepu16_epi32(vf_to_bf16(high)), 16));
}
ALWAYS_INLINE __m128i v_load_u16_part(const uint16_t *p, int64_t n) {
    uint16_t lanes[V_N] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return _mm_loadu_si128((const __m128i *)lanes);
}
ALWAYS_INLINE void v_store_u16_part(uint16_t *p, __m128i h, int64_t n) {
    uint16_t lanes[V_N];
    _mm_storeu_si128((__m128i *)lanes, h);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) { return vf_from_f16(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_from_bf16(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int64_t n) { return vf_from_f16(v_load_u16_part(p, n)); }
ALWAYS_INLINE vf vf_load_bf16_part(const uint16_t *p, int64_t n) { return vf_from_bf16(v_load_u16_part(p, n)); }
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) { _mm_storeu_si128((__m128i *)p, vf_to_f16(v)); }
ALWAYS_INLINE void vf_store_bf16(uint16_t *p, vf v) { _mm_storeu_si128((__m128i *)p, vf_to_bf16(v)); }
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int64_t n) { v_store_u16_part(p, vf_to_f16(v), n); }
ALWAYS_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int64_t n) { v_store_u16_part(p, vf_to_bf16(v), n); }

ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
/* vf_fma in c's own register: left to itself, gcc moves the sums of a tile that fills the registers, and some to
 * memory. */
#define V_IN_PLACE 1
ALWAYS_INLINE vf vf_fma_in_place(vf a, vf b, vf c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
ALWAYS_INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
ALWAYS_INLINE vf vf_and(vf a, vf b) { return _mm256_and_ps(a, b); }
ALWAYS_INLINE vf vf_or(vf a, vf b) { return _mm256_or_ps(a, b); }
ALWAYS_INLINE vf vf_xor(vf a, vf b) { return _mm256_xor_ps(a, b); }
ALWAYS_INLINE vf vf_floor(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_ceil(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_trunc(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_rint(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

ALWAYS_INLINE vm vf_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
ALWAYS_INLINE vm vf_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
ALWAYS_INLINE vm vf_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
ALWAYS_INLINE vm vf_ne(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
ALWAYS_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
ALWAYS_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
ALWAYS_INLINE int vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }
ALWAYS_INLINE int vm_count(vm a) { return __builtin_popcount((unsigned)_mm256_movemask_ps(a)); }
ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
ALWAYS_INLINE void vm_store(uint8_t *p, vm m) {
    __m256i x = _mm256_srli_epi32(_mm256_castps_si256(m), 31);
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(h, h));
}

ALWAYS_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
ALWAYS_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
ALWAYS_INLINE void vi_store(int32_t *p, vi v) { _mm256_storeu_si256((__m256i *)p, v); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE vm vi_eq(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
ALWAYS_INLINE vm vi_lt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)); }
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srai_epi32(a, n)
ALWAYS_INLINE vi vf_to_vi(vf a) { return _mm256_cvtps_epi32(a); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
ALWAYS_INLINE vi vf_bits(vf a) { return _mm256_castps_si256(a); }
ALWAYS_INLINE vf vf_of_bits(vi a) { return _mm256_castsi256_ps(a); }

/* By halves: lanes do not cross them in a shuffle of bytes. */
ALWAYS_INLINE void vi_store_chosen(int32_t *p, vi v, vm m) {
    const int bits = _mm256_movemask_ps(m), low = bits & 15;
    const __m128i first = _mm_loadu_si128((const __m128i *)chosen_bytes[low]);
    const __m128i second = _mm_loadu_si128((const __m128i *)chosen_bytes[bits >> 4]);
    _mm_storeu_si128((__m128i *)p, _mm_shuffle_epi8(_mm256_castsi256_si128(v), first));
    _mm_storeu_si128((__m128i *)(p + __builtin_popcount((unsigned)low)),
                     _mm_shuffle_epi8(_mm256_extracti128_si256(v, 1), second));
}
ALWAYS_INLINE void vf_store_chosen(float *p, vf v, vm m) { vi_store_chosen((int32_t *)(void *)p, vf_bits(v), m); }

ALWAYS_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
ALWAYS_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
ALWAYS_INLINE vi vi_xor_lanes(vi v, int m) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_permutevar8x32_epi32(v, _mm256_xor_si256(lane, _mm256_set1_epi32(m)));
}
ALWAYS_INLINE vi vi_sort_lanes(vi a, vi b, int bit) {
    const __m256i least = _mm256_min_epi32(a, b), most = _mm256_max_epi32(a, b);
    return bit == 1   ? _mm256_blend_epi32(least, most, 0xaa)
           : bit == 2 ? _mm256_blend_epi32(least, most, 0xcc)
                      : _mm256_blend_epi32(least, most, 0xf0);
}
ALWAYS_INLINE vf vf_slide(vf v, vf fill, int n) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), from = _mm256_sub_epi32(lane, _mm256_set1_epi32(n));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(v, from), fill, _mm256_castsi256_ps(from));
}
ALWAYS_INLINE vf vf_permute(vf v, vi order) { return _mm256_permutevar8x32_ps(v, order); }
ALWAYS_INLINE vf vf_last(vf v) { return _mm256_permutevar8x32_ps(v, _mm256_set1_epi32(7)); }

/* Two factors, as 2^n alone leaves the range of float32; only the second one can round. */
ALWAYS_INLINE vf vf_scale2(vf p, vf n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256i rest = _mm256_sub_epi32(whole, half);
    return _mm256_mul_ps(_mm256_mul_ps(p, first),
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

ALWAYS_INLINE void vf_transpose(vf *r) {
    vf t[V_N];
    UNROLL for (int i = 0; i < V_N; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < V_N; i += 4) {
        UNROLL for (int h = 0; h < 2; h++) {
            __m256d a = _mm256_castps_pd(t[i + h]), b = _mm256_castps_pd(t[i + h + 2]);
            r[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            r[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
        t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
    }
    UNROLL for (int i = 0; i < V_N; i++)
        r[i] = t[i];
}

ALWAYS_INLINE void vf_load_transposed(vf *r, const char *p, int64_t stride) {
    UNROLL for (int q = 0; q < 2; q++) {
        vf v[4];
        UNROLL for (int i = 0; i < 4; i++) { /* rows i and 4 + i: a half of each */
            const float *at = (const float *)(const void *)(p + i * stride + 16 * q);
            const float *far = (const float *)(const void *)(p + (4 + i) * stride + 16 * q);
            v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)), _mm_loadu_ps(far), 1);
        }
        UNROLL for (int h = 0; h < 2; h++) {
            __m256d a = _mm256_castps_pd(h ? _mm256_unpackhi_ps(v[0], v[1]) : _mm256_unpacklo_ps(v[0], v[1]));
            __m256d b = _mm256_castps_pd(h ? _mm256_unpackhi_ps(v[2], v[3]) : _mm256_unpacklo_ps(v[2], v[3]));
            r[4 * q + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            r[4 * q + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
}

typedef __m256d vd;
ALWAYS_INLINE vd vd_zero(void) { return _mm256_setzero_pd(); }
ALWAYS_INLINE vd vd_set1(double x) { return _mm256_set1_pd(x); }
ALWAYS_INLINE vd vd_load(const double *p) { return _mm256_loadu_pd(p); }
ALWAYS_INLINE void vd_store(double *p, vd v) { _mm256_storeu_pd(p, v); }
ALWAYS_INLINE vd vd_add(vd a, vd b) { return _mm256_add_pd(a, b); }
ALWAYS_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
ALWAYS_INLINE void vd_transpose(vd *r) {
    vd a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    vd c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

ALWAYS_INLINE float vf_reduce_add(vf v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
ALWAYS_INLINE float vf_reduce_max(vf v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
#include "cpu/simd_math.h"
#endif
