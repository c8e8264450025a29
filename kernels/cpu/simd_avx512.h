/* simd_avx512.h - the vector vocabulary on AVX-512 (F, BW, DQ, VL; BF16 where the flags have it).
 * simd_avx2.h, simd_neon.h and simd_generic.h have the same words with the same meaning; kernels (.inc) use only them.
 *   vf, vi   V_N floats, V_N int32; vm: one truth value per lane. V_ACC: accumulators of a tile that fit the registers.
 *   V_MASKS  says that _part costs little more than the whole.
 *   _part    the first n lanes (0 <= n <= V_N) of memory; a load fills the others with zeros.
 *   vf_fma   a * b + c, with one rounding where the machine has it; vf_fnma is c - a * b.
 *   vf_max, vf_min           give b when a or b is NaN.
 *   vf_slide(v, fill, n)     lanes moved up by n, the first n from fill, of which all lanes are equal.
 *   vf_last                  the last lane in all.
 *   vf_permute(v, order)     lane i gets lane order[i] % V_N.
 *   vi_xor_lanes(v, m)       lane i gets lane i ^ m.
 *   vi_sort_lanes(a, b, bit) the lesser one where the lane's bit is clear, else the greater one.
 *   vm_count                 how many lanes are true.
 *   vf_store_chosen(p, v, m) the lanes where m is true, side by side from p on, and arbitrary values after them up to
 *                            p + V_N; vi_store_chosen the same.
 *   vf_transpose             V_N vectors as the rows of a matrix become its columns; vd_transpose: V_N / 2 vectors of
 *                            doubles; vf_load_transposed(r, p, stride): of rows in memory, stride bytes apart.
 *   vf_join_bf16(low, high)  lanes of two halves: low and high rounded to bfloat16, denormals as zeros or not.
 *   vf_reduce_*              fold halves: lane i with i + V_N/2, then i + V_N/4, ...: one fixed tree. */
#ifndef GOMLX_SIMD_H
#define GOMLX_SIMD_H
#undef _GNU_SOURCE /* kernels are C11 alone; POSIX's select has the name of one */
#include <immintrin.h>
#include <stdint.h>
#include "cpu/compiler.h"
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#define V_N 16
#define V_ACC 24
#define V_MASKS 1
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

ALWAYS_INLINE __mmask16 vm_first(int64_t n) { return (__mmask16)((1u << n) - 1); }

ALWAYS_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
ALWAYS_INLINE vf vf_load_part(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
ALWAYS_INLINE void vf_store_part(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), v); }

ALWAYS_INLINE vf vf_from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
ALWAYS_INLINE vf vf_from_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
ALWAYS_INLINE __m256i vf_to_f16(vf v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* BF16's instruction takes a denormal for zero: rare, and rounded by hand. */
ALWAYS_INLINE __m256i vf_to_bf16(vf v) {
#ifdef __AVX512BF16__
    if (__builtin_expect(!_mm512_fpclass_ps_mask(v, 0x20), 1)) return (__m256i)_mm512_cvtneps_pbh(v);
#endif
    __m512i x = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    __m512i even = _mm512_srli_epi32(_mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(even, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet));
}
ALWAYS_INLINE vi vf_join_bf16(vf low, vf high) {
#ifdef __AVX512BF16__
    const __m512i order = _mm512_or_si512(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_slli_epi32(_mm512_setr_epi32(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31), 16));
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
    return _mm512_or_si512(_mm512_cvtepu16_epi32(vf_to_bf16(low)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(vf_to_bf16(high)), 16));
#endif
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) { return vf_from_f16(_mm256_loadu_si256((const __m256i *)p)); }
ALWAYS_INLINE vf vf_load_bf16(const uint16_t *p) { return vf_from_bf16(_mm256_loadu_si256((const __m256i *)p)); }
ALWAYS_INLINE vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int64_t n) {
    return vf_from_f16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
ALWAYS_INLINE vf vf_load_bf16_part(const uint16_t *p, int64_t n) {
    return vf_from_bf16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, vf_to_f16(v)); }
ALWAYS_INLINE void vf_store_bf16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, vf_to_bf16(v)); }
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int64_t n) {
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_to_f16(v));
}
ALWAYS_INLINE void vf_store_bf16_part(uint16_t *p, vf v, int64_t n) {
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_to_bf16(v));
}

ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
ALWAYS_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
ALWAYS_INLINE vf vf_and(vf a, vf b) { return _mm512_and_ps(a, b); }
ALWAYS_INLINE vf vf_or(vf a, vf b) { return _mm512_or_ps(a, b); }
ALWAYS_INLINE vf vf_xor(vf a, vf b) { return _mm512_xor_ps(a, b); }
ALWAYS_INLINE vf vf_floor(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_ceil(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_trunc(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
ALWAYS_INLINE vf vf_rint(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

ALWAYS_INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
ALWAYS_INLINE vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
ALWAYS_INLINE vm vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
ALWAYS_INLINE vm vf_ne(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
ALWAYS_INLINE vm vm_and(vm a, vm b) { return a & b; }
ALWAYS_INLINE vm vm_or(vm a, vm b) { return a | b; }
ALWAYS_INLINE int vm_any(vm a) { return a != 0; }
ALWAYS_INLINE int vm_count(vm a) { return __builtin_popcount(a); }
ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
/* One byte per lane: 1 where the lane is true. */
ALWAYS_INLINE void vm_store(uint8_t *p, vm m) {
    _mm_storeu_si128((__m128i *)p, _mm_and_si128(_mm_movm_epi8(m), _mm_set1_epi8(1)));
}

ALWAYS_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
ALWAYS_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void vi_store(int32_t *p, vi v) { _mm512_storeu_si512(p, v); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
ALWAYS_INLINE vm vi_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srai_epi32(a, n)
ALWAYS_INLINE vi vf_to_vi(vf a) { return _mm512_cvtps_epi32(a); } /* to nearest */
ALWAYS_INLINE vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
ALWAYS_INLINE vi vf_bits(vf a) { return _mm512_castps_si512(a); }
ALWAYS_INLINE vf vf_of_bits(vi a) { return _mm512_castsi512_ps(a); }

ALWAYS_INLINE void vf_store_chosen(float *p, vf v, vm m) { vf_store(p, _mm512_maskz_compress_ps(m, v)); }
ALWAYS_INLINE void vi_store_chosen(int32_t *p, vi v, vm m) { vi_store(p, _mm512_maskz_compress_epi32(m, v)); }

ALWAYS_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
ALWAYS_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
ALWAYS_INLINE vi vi_xor_lanes(vi v, int m) {
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    switch (m) {
    case 1: return _mm512_shuffle_epi32(v, 0xb1);
    case 2: return _mm512_shuffle_epi32(v, 0x4e);
    case 3: return _mm512_shuffle_epi32(v, 0x1b);
    case 4: return _mm512_shuffle_i32x4(v, v, 0xb1);
    case 8: return _mm512_shuffle_i32x4(v, v, 0x4e);
    default: return _mm512_permutexvar_epi32(_mm512_xor_si512(lane, _mm512_set1_epi32(m)), v);
    }
}
ALWAYS_INLINE vi vi_sort_lanes(vi a, vi b, int bit) {
    const __mmask16 low = bit == 1 ? 0x5555 : bit == 2 ? 0x3333 : bit == 4 ? 0x0f0f : 0x00ff;
    return _mm512_mask_min_epi32(_mm512_max_epi32(a, b), low, a, b);
}
#define vf_slide(v, fill, n)                                                                                           \
    _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(v), _mm512_castps_si512(fill), 16 - (n)))
ALWAYS_INLINE vf vf_permute(vf v, vi order) { return _mm512_permutexvar_ps(order, v); }
ALWAYS_INLINE vf vf_last(vf v) { return _mm512_permutexvar_ps(_mm512_set1_epi32(15), v); }

/* p * 2^n for an integral n in [-160, 160]. */
ALWAYS_INLINE vf vf_scale2(vf p, vf n) { return _mm512_scalef_ps(p, n); }

/* r[i] lane j becomes r[j] lane i: within 2 x 2, 4 x 4, then quarters by quarters. */
ALWAYS_INLINE void vf_transpose(vf *r) {
    vf t[V_N];
    UNROLL for (int i = 0; i < V_N; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < V_N; i += 4) {
        UNROLL for (int h = 0; h < 2; h++) {
            __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + h + 2]);
            r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    UNROLL for (int i = 0; i < 4; i++) {
        vf a = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88), b = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        vf c = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88), d = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    UNROLL for (int i = 0; i < V_N; i++)
        r[i] = t[i];
}

/* By halves of rows i and 4 + i, so that quarters need not be exchanged but once. Both halves of a row are read
 * together: rows a power of two apart push each other out of the cache. */
ALWAYS_INLINE void vf_load_transposed(vf *r, const char *p, int64_t stride) {
    const int64_t far = 4 * stride;
    vf c[2][2][4];
    UNROLL for (int g = 0; g < 2; g++) {
        const char *at[2] = {p, p + far};
        vf v[2][4];
        READ_ANEW(at[0]);
        READ_ANEW(at[1]);
        p += 2 * far;
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int h = 0; h < 2; h++) {
                const float *low = (const float *)(const void *)(at[0] + i * stride + 32 * h);
                const float *high = (const float *)(const void *)(at[1] + i * stride + 32 * h);
                v[h][i] = _mm512_castps256_ps512(_mm256_loadu_ps(low));
                v[h][i] = _mm512_mask_broadcast_f32x8(v[h][i], 0xff00, _mm256_loadu_ps(high));
            }
        }
        UNROLL for (int h = 0; h < 2; h++) {
            UNROLL for (int k = 0; k < 2; k++) {
                const vf *in = v[h];
                __m512d a = _mm512_castps_pd(k ? _mm512_unpackhi_ps(in[0], in[1]) : _mm512_unpacklo_ps(in[0], in[1]));
                __m512d b = _mm512_castps_pd(k ? _mm512_unpackhi_ps(in[2], in[3]) : _mm512_unpacklo_ps(in[2], in[3]));
                c[h][g][2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                c[h][g][2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
    }
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int i = 0; i < 4; i++) {
            r[8 * h + i] = _mm512_shuffle_f32x4(c[h][0][i], c[h][1][i], 0x88);
            r[8 * h + 4 + i] = _mm512_shuffle_f32x4(c[h][0][i], c[h][1][i], 0xdd);
        }
    }
}

/* float64: vectors of V_N / 2. */
typedef __m512d vd;
ALWAYS_INLINE vd vd_zero(void) { return _mm512_setzero_pd(); }
ALWAYS_INLINE vd vd_set1(double x) { return _mm512_set1_pd(x); }
ALWAYS_INLINE vd vd_load(const double *p) { return _mm512_loadu_pd(p); }
ALWAYS_INLINE void vd_store(double *p, vd v) { _mm512_storeu_pd(p, v); }
ALWAYS_INLINE vd vd_add(vd a, vd b) { return _mm512_add_pd(a, b); }
ALWAYS_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
ALWAYS_INLINE void vd_transpose(vd *r) {
    vd t[V_N / 2];
    UNROLL for (int i = 0; i < V_N / 2; i += 2) {
        t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        vd a = _mm512_shuffle_f64x2(t[i], t[2 + i], 0x88), b = _mm512_shuffle_f64x2(t[i], t[2 + i], 0xdd);
        vd c = _mm512_shuffle_f64x2(t[4 + i], t[6 + i], 0x88), d = _mm512_shuffle_f64x2(t[4 + i], t[6 + i], 0xdd);
        r[i] = _mm512_shuffle_f64x2(a, c, 0x88);
        r[2 + i] = _mm512_shuffle_f64x2(b, d, 0x88);
        r[4 + i] = _mm512_shuffle_f64x2(a, c, 0xdd);
        r[6 + i] = _mm512_shuffle_f64x2(b, d, 0xdd);
    }
}

#ifdef __AVX512BF16__
/* Pairs of bfloat16 in the lanes of a vf: c + a.high * b.high + a.low * b.low, each sum rounded; denormal numbers are
 * zeros. V_PAIRS says that the instruction set has this. */
#define V_PAIRS 1
ALWAYS_INLINE vf vf_pairs(vf a, vf b, vf c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
/* As bfloat16, denormal numbers as zeros. */
ALWAYS_INLINE void vf_store_pairs_bf16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}
ALWAYS_INLINE void vf_store_pairs_bf16_part(uint16_t *p, vf v, int64_t n) {
    _mm256_mask_storeu_epi16(p, vm_first(n), (__m256i)_mm512_cvtneps_pbh(v));
}
/* Both so. */
ALWAYS_INLINE void vf_store_two_bf16(uint16_t *p, uint16_t *q, vf v, vf w) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(w, v);
    _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(both));
    _mm256_storeu_si256((__m256i *)q, _mm512_extracti64x4_epi64(both, 1));
}
/* out: 2 * V_N pairs of the first n items (n <= 2 * V_N) of two rows; those of an odd row that is NULL are zeros. */
ALWAYS_INLINE void vf_pair_rows(const uint16_t *even, const uint16_t *odd, int64_t n, vf *out) {
    const __mmask32 m = n >= 32 ? 0xffffffffu : (1u << n) - 1;
    const __m512i a = _mm512_maskz_loadu_epi16(m, even);
    const __m512i b = odd ? _mm512_maskz_loadu_epi16(m, odd) : _mm512_setzero_si512();
    const __m512i step = _mm512_set1_epi32(0x00010001);
    __m512i index = _mm512_or_si512(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_slli_epi32(_mm512_setr_epi32(32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47), 16));
    out[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, index, b));
    index = _mm512_add_epi16(index, _mm512_slli_epi16(step, 4));
    out[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, index, b));
}
#endif

ALWAYS_INLINE __m256 v_high(vf v) { return _mm512_extractf32x8_ps(v, 1); }
ALWAYS_INLINE float v_low_add(__m256 y) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
ALWAYS_INLINE float vf_reduce_add(vf v) { return v_low_add(_mm256_add_ps(_mm512_castps512_ps256(v), v_high(v))); }
ALWAYS_INLINE float vf_reduce_max(vf v) {
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(v), v_high(v));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
#include "cpu/simd_math.h"
#endif
