/* field_avx2.h - the vocabulary of MLX's packed rows (see field_avx512.h) on AVX2. */
#ifndef GOMLX_KERNELS_CPU_FIELD_H
#define GOMLX_KERNELS_CPU_FIELD_H
#include <immintrin.h>
#include "cpu/simd_avx2.h"

ALWAYS_INLINE __m256i field_pair(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)low)),
                                   _mm_loadu_si128((const void *)high), 1);
}
ALWAYS_INLINE vi windows_load(const uint8_t *p, int bits) {
    if (bits == 3 || bits == 6)
        return _mm256_shuffle_epi8(field_pair(p, p + 8),
                                   _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 4, 5, 6, -1,
                                                    7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1));
    if (bits == 5) {
        const __m256i dwords = _mm256_shuffle_epi8(
            field_pair(p, p + 4), _mm256_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 5, 6, 7, 8, 7, 8, 9, -1, 6, 7, 8, 9, 8, 9,
                                                   10, 11, 11, 12, 13, 14, 13, 14, 15, -1));
        return _mm256_srlv_epi32(dwords, _mm256_set1_epi64x(4ll << 32));
    }
    return _mm256_loadu_si256((const void *)p);
}
ALWAYS_INLINE vi windows_load_part(const uint8_t *p, int bits, int64_t n) {
    uint8_t bytes[32] = {0};
    memcpy(bytes, p, (size_t)(bits == 3 || bits == 6 ? 3 * n : bits == 5 ? 5 * n / 2 : 4 * n));
    return windows_load(bytes, bits);
}

ALWAYS_INLINE vi vi_lanes(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
ALWAYS_INLINE vi vi_load_bytes(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
ALWAYS_INLINE vi field_shift(vi v, int n) { return _mm256_srli_epi32(v, n); }
ALWAYS_INLINE vi vi_shift_by(vi v, int n) { return _mm256_srlv_epi32(v, _mm256_set1_epi32(n)); }
ALWAYS_INLINE vf fp4_values(vi v) {
    const vf sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(v, 28)), _mm256_set1_ps(-0.0f));
    return _mm256_xor_ps(vf_permute(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), v), sign);
}
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
#endif
