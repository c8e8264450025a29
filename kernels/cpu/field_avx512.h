/* field_avx512.h - the vocabulary of MLX's packed rows on AVX-512. Every field_ header defines the same names.
 *   windows   one window a lane: the next whole values of a row's bit stream, the first in the lowest bits. Those of 3
 *             and 6 bits take 24 bits, those of 5 bits 20, all others 32; the bits above are arbitrary.
 *   _part     of the first n windows; no byte after them is read, the other lanes are zero.
 *   field_halves, field_halves_dot   where FIELD_HALF_4 is not 0. */
#ifndef GOMLX_KERNELS_CPU_FIELD_H
#define GOMLX_KERNELS_CPU_FIELD_H
#include <immintrin.h>
#include "cpu/simd_avx512.h"

ALWAYS_INLINE vi field_three_bytes(__m512i v) {
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12);
    const __m128i bytes = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, v), _mm512_broadcast_i32x4(bytes));
}
ALWAYS_INLINE vi field_twenty_bits(__m512i v) {
    const __m512i order = _mm512_set_epi16(22, 21, 20, 19, 18, 17, 16, 15, 17, 16, 15, 14, 13, 12, 11, 10, 12, 11, 10,
                                           9, 8, 7, 6, 5, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m128i bytes = _mm_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 5, 6, 7, 8, 7, 8, 9, -1);
    const __m512i dwords = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(order, v), _mm512_broadcast_i32x4(bytes));
    return _mm512_srlv_epi32(dwords, _mm512_set1_epi64(4ll << 32));
}
ALWAYS_INLINE vi windows_of(__m512i v, int bits) {
    return bits == 3 || bits == 6 ? field_three_bytes(v) : bits == 5 ? field_twenty_bits(v) : v;
}
ALWAYS_INLINE vi windows_load(const uint8_t *p, int bits) {
    if (bits == 3 || bits == 6) return windows_of(_mm512_maskz_loadu_epi32(0xfff, p), bits);
    if (bits == 5) return windows_of(_mm512_maskz_loadu_epi32(0x3ff, p), bits);
    return _mm512_loadu_si512(p);
}
ALWAYS_INLINE vi windows_load_part(const uint8_t *p, int bits, int64_t n) {
    const int64_t bytes = bits == 3 || bits == 6 ? 3 * n : bits == 5 ? 5 * n / 2 : 4 * n;
    return windows_of(_mm512_maskz_loadu_epi8(bytes < 64 ? ((uint64_t)1 << bytes) - 1 : ~(uint64_t)0, p), bits);
}

ALWAYS_INLINE vi vi_lanes(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
ALWAYS_INLINE vi vi_load_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
/* Unsigned; by a constant, and by a number. */
ALWAYS_INLINE vi field_shift(vi v, int n) { return _mm512_srli_epi32(v, (unsigned)n); }
ALWAYS_INLINE vi vi_shift_by(vi v, int n) { return _mm512_srlv_epi32(v, _mm512_set1_epi32(n)); }
/* The E2M1 number in the low four bits of each lane. */
ALWAYS_INLINE vf fp4_values(vi v) {
    return vf_permute(_mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6), v);
}
/* Fields f and f + 4 of windows of four bits as a pair of bfloat16 a lane, and the sum of products with another pair.
 */
#ifndef __AVX512BF16__
#define FIELD_HALF_4 0
ALWAYS_INLINE vi field_halves(vi windows, int f) {
    (void)f;
    return windows;
}
ALWAYS_INLINE vf field_halves_dot(vf sum, vi fields, vi x) {
    (void)fields;
    (void)x;
    return sum;
}
#else
#define FIELD_HALF_4 1
ALWAYS_INLINE vi field_halves(vi windows, int f) {
    /* 0 to 15, and again: the index has five bits, the fifth of which is a neighbour's. */
    const __m256i numbers = _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110,
                                              0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
    return _mm512_permutexvar_epi16(_mm512_srl_epi16(windows, _mm_cvtsi32_si128(4 * f)),
                                    _mm512_broadcast_i64x4(numbers));
}
ALWAYS_INLINE vf field_halves_dot(vf sum, vi fields, vi x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)fields, (__m512bh)x);
}
#endif
#endif
