/* dot_avx2.h - the vocabulary of the quantised kernels (see dot_avx512.h) with panels of eight rows. */
#ifndef GOMLX_KERNELS_CPU_DOT_AVX2_H
#define GOMLX_KERNELS_CPU_DOT_AVX2_H
#include <immintrin.h>
#include <stdint.h>
#include "cpu/compiler.h"

#define PANEL_ROWS 8
#define TILE_TOKENS 4
/* vpdpbusd in the encoding that the flags allow; AVX-512's is how it is tested on machines that lack the other. */
#if defined(__AVXVNNI__)
#define DOT_STEP _mm256_dpbusd_avx_epi32
#elif defined(__AVX512VNNI__)
#define DOT_STEP _mm256_dpbusd_epi32
#endif
#ifdef DOT_STEP
#define Q8_BIAS 0x80 /* Q8_0 is packed as value + 128: vpdpbusd wants unsigned weights */
#else
#define Q8_BIAS 0 /* vpmaddubsw would saturate on unsigned weights of eight bits */
#endif

typedef __m256i words;
typedef __m256i ints;
typedef __m256 floats;
typedef int32_t __attribute__((may_alias, aligned(1))) int32_at;
typedef float __attribute__((may_alias, aligned(1))) float_at;

ALWAYS_INLINE words words_load(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }
ALWAYS_INLINE void words_store(uint8_t *p, words v) { _mm256_storeu_si256((void *)p, v); }
ALWAYS_INLINE words words_low(words v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
ALWAYS_INLINE words words_high(words v) { return words_low(_mm256_srli_epi16(v, 4)); }
ALWAYS_INLINE words words_or(words a, words b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE words words_six_bits(words v) { return _mm256_and_si256(v, _mm256_set1_epi8(0x3f)); }
ALWAYS_INLINE words words_flip(words v) { return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)); }
ALWAYS_INLINE words words_field(words v, int pair) {
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(3 << 2 * pair)));
}
ALWAYS_INLINE words words_pair(words v, int pair) {
    return _mm256_and_si256(pair ? _mm256_srli_epi16(v, 2 * pair) : v, _mm256_set1_epi8(3));
}
ALWAYS_INLINE words words_top(words v, int pair) {
    const words moved = pair == 0   ? _mm256_slli_epi16(v, 4)
                        : pair == 1 ? _mm256_slli_epi16(v, 2)
                        : pair == 3 ? _mm256_srli_epi16(v, 2)
                                    : v;
    return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
ALWAYS_INLINE words words_plane(words v, const uint8_t *plane, int what) {
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3,
                                            3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(*(const int32_at *)plane), spread);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
    return _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8((char)what)));
}
ALWAYS_INLINE words words_lookup(words v, const uint8_t *table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table)), v);
}
ALWAYS_INLINE words words_of(ints v) { return v; }
ALWAYS_INLINE ints ints_of(words v) { return v; }
ALWAYS_INLINE words words_marked(words v, ints bits, int j, int what) {
    const __m256i mine = _mm256_shuffle_epi8(
        bits, _mm256_broadcastsi128_si256(_mm_add_epi8(
                  _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12), _mm_set1_epi8((char)(j / 2)))));
    const __m256i bit = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(mine, bit), bit);
    return _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8((char)what)));
}
ALWAYS_INLINE words words_gather(const uint32_t *table, ints number) {
    return _mm256_i32gather_epi32((const int *)table, number, 4);
}
ALWAYS_INLINE words words_triple(words v) { return _mm256_add_epi8(v, _mm256_add_epi8(v, v)); }
ALWAYS_INLINE words words_third(words v) {
    const __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(86)), v);
    const __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8((char)171)), v);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
}
ALWAYS_INLINE words pairs_load(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p)); }
ALWAYS_INLINE words pairs_repeat(words v, int h) {
    const __m128i order = h ? _mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15)
                            : _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}
ALWAYS_INLINE words pairs_broadcast(const int16_t *pair) { return _mm256_set1_epi32(*(const int32_at *)pair); }
ALWAYS_INLINE words pairs_of(ints low, ints high, int shift) {
    return _mm256_blend_epi16(_mm256_srai_epi32(low, shift), _mm256_slli_epi32(high, 16 - shift), 0xaa);
}
ALWAYS_INLINE ints pairs_dot(ints sum, words a, words b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
ALWAYS_INLINE words words_multiply(words v, words factor) { return _mm256_mullo_epi16(v, factor); }
ALWAYS_INLINE words words_add(words a, words b) { return _mm256_add_epi16(a, b); }
ALWAYS_INLINE words words_subtract(words a, words b) { return _mm256_sub_epi16(a, b); }
ALWAYS_INLINE words words_splat(int half) { return _mm256_set1_epi16((short)half); }

ALWAYS_INLINE ints ints_splat(int v) { return _mm256_set1_epi32(v); }
ALWAYS_INLINE ints ints_broadcast(const uint8_t *p) { return _mm256_set1_epi32(*(const int32_at *)p); }
ALWAYS_INLINE ints ints_shift(ints v, int by) { return _mm256_slli_epi32(v, by); }
ALWAYS_INLINE ints ints_subtract(ints a, ints b) { return _mm256_sub_epi32(a, b); }
ALWAYS_INLINE ints ints_add(ints a, ints b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE ints ints_and(ints a, ints b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE ints ints_or(ints a, ints b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE ints ints_xor(ints a, ints b) { return _mm256_xor_si256(a, b); }
ALWAYS_INLINE ints ints_right(ints v, int by) { return _mm256_srli_epi32(v, by); }
ALWAYS_INLINE ints ints_bits(const uint8_t *p, int shift, int bits) {
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    return _mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32((1 << bits) - 1));
}
ALWAYS_INLINE ints ints_byte(words v, int e) {
    return _mm256_and_si256(_mm256_srli_epi32(v, 8 * e), _mm256_set1_epi32(255));
}

ALWAYS_INLINE floats floats_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE floats floats_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void floats_store(float *p, floats v) { _mm256_storeu_ps(p, v); }
ALWAYS_INLINE floats floats_broadcast(const void *p) { return _mm256_set1_ps(*(const float_at *)p); }
ALWAYS_INLINE floats floats_add(floats a, floats b) { return _mm256_add_ps(a, b); }
ALWAYS_INLINE floats floats_multiply(floats a, floats b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE floats floats_multiply_add(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE floats floats_negate(floats v) { return _mm256_sub_ps(_mm256_set1_ps(-0.0f), v); }
ALWAYS_INLINE floats floats_from_ints(ints v) { return _mm256_cvtepi32_ps(v); }
ALWAYS_INLINE floats floats_from_halves(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
ALWAYS_INLINE floats floats_from_bfloats(const uint8_t *p) {
    const __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
ALWAYS_INLINE floats floats_from_fp8(const uint8_t *p) {
    const __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p)), sign = _mm_set1_epi16(0x80);
    const __m128i half = _mm_slli_epi16(_mm_add_epi16(v, _mm_and_si128(v, sign)), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}
ALWAYS_INLINE floats floats_from_exponents(const uint8_t *p) {
    const __m128i e = _mm_loadl_epi64((const void *)p), one = _mm_set1_epi8(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_subs_epu8(e, one)), 23);
    const __m256i least = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_add_epi8(_mm_min_epu8(e, one), one)), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, least));
}
ALWAYS_INLINE floats floats_from_unsigned(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)));
}
ALWAYS_INLINE floats floats_from_signed(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

#ifdef DOT_STEP
ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    (void)bits;
    UNROLL for (int j = 0; j < n_words; j++) UNROLL
        for (int t = 0; t < n; t++) sum[t] = DOT_STEP(sum[t], weight[j], ints_broadcast(act + 32 * t + 4 * j));
}
#else
/* Sixteen sums of int16, eight of int32. Not intrinsics: gcc would regroup a long chain of these into a tree that needs
 * more registers than there are. */
ALWAYS_INLINE __m256i add_pairs(__m256i sum, __m256i pairs) {
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(pairs));
    return sum;
}
ALWAYS_INLINE ints add_sums(ints sum, ints more) {
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(more));
    return sum;
}

/* Pairs of products are summed in int16 for as many words as cannot overflow with activations in [-127, 127]:
 * 8 of 4 bits (30480), 4 of 5 bits (31496), 2 of 6 bits (32004). Signed weights lend their sign to the activation. */
ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    const __m256i one = _mm256_set1_epi16(1);
    const int run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    UNROLL for (int first = 0; first < n_words; first += run) {
        const int end = first + run < n_words ? first + run : n_words;
        __m256i pairs[4];
        UNROLL for (int j = first; j < end; j++) {
            UNROLL for (int t = 0; t < n; t++) {
                const __m256i a = ints_broadcast(act + 32 * t + 4 * j), w = weight[j];
                const __m256i p = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                                            : _mm256_maddubs_epi16(w, a);
                pairs[t] = j == first ? p : add_pairs(pairs[t], p);
            }
        }
        UNROLL for (int t = 0; t < n; t++) {
            const ints more = _mm256_madd_epi16(pairs[t], one);
            sum[t] = run > 1 ? _mm256_add_epi32(sum[t], more) : add_sums(sum[t], more);
        }
    }
}
#endif

ALWAYS_INLINE void prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

ALWAYS_INLINE uint32_t magnitude_bits(const float *x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 32; i += 8)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), mask));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

ALWAYS_INLINE int32_t sum_lanes(__m256i v) {
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

ALWAYS_INLINE void round_block(uint8_t *q, const float *x, float factor, int32_t *low, int32_t *high) {
    const __m256 f = _mm256_set1_ps(factor);
    __m256i v[4];
    UNROLL for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), f));
    *low = sum_lanes(_mm256_add_epi32(v[0], v[1]));
    *high = sum_lanes(_mm256_add_epi32(v[2], v[3]));
    /* Packing works within 128-bit halves: the last step puts the groups of four bytes back in order. */
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((void *)q, _mm256_permutevar8x32_epi32(bytes, order));
}
#endif
