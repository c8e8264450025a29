/* dot_avx512.h - the vocabulary of the quantised kernels: a panel of sixteen rows is one register, a 32-bit lane a row.
 * Every dot_ header defines the same names. words: four payload bytes per row; ints, floats: one number per row. */
#ifndef GOMLX_KERNELS_CPU_DOT_AVX512_H
#define GOMLX_KERNELS_CPU_DOT_AVX512_H
#include <immintrin.h>
#include <stdint.h>
#include "cpu/compiler.h"

#define PANEL_ROWS 16
#define TILE_TOKENS 16 /* tokens whose sums stay in registers; a power of two */
#ifdef __AVX512VNNI__
#define Q8_BIAS 0x80 /* Q8_0 is packed as value + 128: vpdpbusd wants unsigned weights */
#else
#define Q8_BIAS 0 /* vpmaddubsw would saturate on unsigned weights of eight bits */
#endif

typedef __m512i words;
typedef __m512i ints;
typedef __m512 floats;
typedef int32_t __attribute__((may_alias, aligned(1))) int32_at;
typedef float __attribute__((may_alias, aligned(1))) float_at;

ALWAYS_INLINE words words_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void words_store(uint8_t *p, words v) { _mm512_storeu_si512(p, v); }
ALWAYS_INLINE words words_low(words v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
ALWAYS_INLINE words words_high(words v) { return words_low(_mm512_srli_epi16(v, 4)); }
ALWAYS_INLINE words words_or(words a, words b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE words words_six_bits(words v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x3f)); }
ALWAYS_INLINE words words_flip(words v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)); }
/* Two bits of each byte, from bit 2 * pair on: where they are, and as the lowest. */
ALWAYS_INLINE words words_field(words v, int pair) {
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(3 << 2 * pair)));
}
ALWAYS_INLINE words words_pair(words v, int pair) {
    const words moved = pair == 1   ? _mm512_srli_epi16(v, 2)
                        : pair == 2 ? _mm512_srli_epi16(v, 4)
                        : pair == 3 ? _mm512_srli_epi16(v, 6)
                                    : v;
    return _mm512_and_si512(moved, _mm512_set1_epi8(3));
}
/* As bits 4 and 5. */
ALWAYS_INLINE words words_top(words v, int pair) {
    const words moved = pair == 0   ? _mm512_slli_epi16(v, 4)
                        : pair == 1 ? _mm512_slli_epi16(v, 2)
                        : pair == 3 ? _mm512_srli_epi16(v, 2)
                                    : v;
    return _mm512_and_si512(moved, _mm512_set1_epi8(0x30));
}
/* Adds `what` to the bytes of v whose bit in a plane of PANEL_ROWS * 4 bits is set: a bit that no byte of v has. */
ALWAYS_INLINE words words_plane(words v, const uint8_t *plane, int what) {
    uint64_t bits;
    __builtin_memcpy(&bits, plane, sizeof bits);
    return _mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8((char)what));
}
/* Each byte of v, a number below 16, as that byte of the table. */
ALWAYS_INLINE words words_lookup(words v, const uint8_t *table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), v);
}
/* The number of a row's lane as its four bytes, and back. */
ALWAYS_INLINE words words_of(ints v) { return v; }
ALWAYS_INLINE ints ints_of(words v) { return v; }
#ifdef __AVX512VBMI__
#define BYTE_TABLES 1
/* Byte e of each lane: eight bits of it from bit first + e * step on. */
ALWAYS_INLINE words bits_of_lanes(words v, int first, int step) {
    uint64_t offsets = 0;
    UNROLL for (int i = 0; i < 8; i++)
        offsets |= (uint64_t)((first + i % 4 * step + i / 4 * 32) & 63) << 8 * i;
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)offsets), v);
}
/* Each byte as that byte of a table of 256 << bits, its number's high bits in the bytes of `high`. */
ALWAYS_INLINE words words_of_table(const uint8_t *table, int bits, words low, words high) {
    words found[8];
    const __mmask64 upper = _mm512_movepi8_mask(low);
    UNROLL for (int i = 0; i < 1 << bits; i++) {
        const uint8_t *part = table + 256 * i;
        const words first = _mm512_permutex2var_epi8(words_load(part), low, words_load(part + 64));
        found[i] = _mm512_mask_blend_epi8(
            upper, first, _mm512_permutex2var_epi8(words_load(part + 128), low, words_load(part + 192)));
    }
    UNROLL for (int bit = 0; bit < bits; bit++) {
        const __mmask64 set = _mm512_test_epi8_mask(high, _mm512_set1_epi8((char)(1 << bit)));
        UNROLL for (int i = 0; i < 1 << (bits - 1 - bit); i++)
            found[i] = _mm512_mask_blend_epi8(set, found[2 * i], found[2 * i + 1]);
    }
    return found[0];
}
/* Byte j of each lane of both holds two fields of three bits: byte e of word j is field e of the four. */
ALWAYS_INLINE void words_of_fields(words a, words b, words *q) {
    const words ab = _mm512_unpacklo_epi8(a, b), below = _mm512_unpackhi_epi8(a, b); /* 64 bits a row */
    UNROLL for (int j = 0; j < 4; j += 2) {
        uint64_t offsets = 0;
        UNROLL for (int i = 0; i < 8; i++)
            offsets |= (uint64_t)(16 * (j + i / 4) + i % 4 / 2 * 8 + i % 2 * 3) << 8 * i;
        const __m512i at = _mm512_set1_epi64((long long)offsets);
        const __m512 x = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(at, ab));
        const __m512 y = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(at, below));
        const words seven = _mm512_set1_epi8(7);
        q[j] = _mm512_and_si512(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), seven);
        q[j + 1] = _mm512_and_si512(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)), seven);
    }
}
#endif
/* Adds `what`, a bit that no byte of v has, to bytes e of v where bit 4 * j + e of the row's `bits` is set. */
ALWAYS_INLINE words words_marked(words v, ints bits, int j, int what) {
#ifdef __AVX512VBMI__
    const __m512i mine = bits_of_lanes(bits, 4 * j - __builtin_ctz((unsigned)what), 1);
    return _mm512_or_si512(v, _mm512_and_si512(mine, _mm512_set1_epi8((char)what)));
#else
    const __m512i mine = _mm512_shuffle_epi8(
        bits, _mm512_broadcast_i32x4(_mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
                                                  _mm_set1_epi8((char)(j / 2)))));
    const __mmask64 set = _mm512_test_epi8_mask(mine, _mm512_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201));
    return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8((char)what));
#endif
}
/* A word of each row, by number. */
ALWAYS_INLINE words words_gather(const uint32_t *table, ints number) {
    return _mm512_i32gather_epi32(number, table, 4);
}
/* Each byte times three, modulo 256; and over 256, as an integer. */
ALWAYS_INLINE words words_triple(words v) { return _mm512_add_epi8(v, _mm512_add_epi8(v, v)); }
ALWAYS_INLINE words words_third(words v) {
    const words more = _mm512_maskz_set1_epi8(_mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8(85)), 1);
    return _mm512_mask_set1_epi8(more, _mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8((char)170)), 2);
}
/* Pairs: two 16-bit numbers a row. Two bytes of each row; half h of each pair as both of a pair; the same pair for
 * every row; two sums that fit 16 bits after a shift to the right. */
ALWAYS_INLINE words pairs_load(const uint8_t *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)p)); }
ALWAYS_INLINE words pairs_repeat(words v, int h) {
    const __m128i order = h ? _mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15)
                            : _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
}
ALWAYS_INLINE words pairs_broadcast(const int16_t *pair) { return _mm512_set1_epi32(*(const int32_at *)pair); }
ALWAYS_INLINE words pairs_of(ints low, ints high, int shift) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srai_epi32(low, (unsigned)shift),
                                   _mm512_slli_epi32(high, 16 - (unsigned)shift));
}
/* sum += the products of both halves. */
#ifdef __AVX512VNNI__
ALWAYS_INLINE ints pairs_dot(ints sum, words a, words b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
ALWAYS_INLINE ints pairs_dot(ints sum, words a, words b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
#endif
/* In 16-bit halves of lanes. */
ALWAYS_INLINE words words_multiply(words v, words factor) { return _mm512_mullo_epi16(v, factor); }
ALWAYS_INLINE words words_add(words a, words b) { return _mm512_add_epi16(a, b); }
ALWAYS_INLINE words words_subtract(words a, words b) { return _mm512_sub_epi16(a, b); }
ALWAYS_INLINE words words_splat(int half) { return _mm512_set1_epi16((short)half); }

ALWAYS_INLINE ints ints_splat(int v) { return _mm512_set1_epi32(v); }
ALWAYS_INLINE ints ints_broadcast(const uint8_t *p) { return _mm512_set1_epi32(*(const int32_at *)p); }
ALWAYS_INLINE ints ints_shift(ints v, int by) { return _mm512_slli_epi32(v, (unsigned)by); }
ALWAYS_INLINE ints ints_subtract(ints a, ints b) { return _mm512_sub_epi32(a, b); }
ALWAYS_INLINE ints ints_add(ints a, ints b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE ints ints_and(ints a, ints b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE ints ints_or(ints a, ints b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE ints ints_xor(ints a, ints b) { return _mm512_xor_si512(a, b); }
/* To the right, unsigned. */
ALWAYS_INLINE ints ints_right(ints v, int by) { return _mm512_srli_epi32(v, (unsigned)by); }
/* Some bits, from bit `shift` on, of a byte of each row. */
ALWAYS_INLINE ints ints_bits(const uint8_t *p, int shift, int bits) {
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)shift), _mm512_set1_epi32((1 << bits) - 1));
}
/* Byte e of each word, unsigned. */
ALWAYS_INLINE ints ints_byte(words v, int e) {
    return _mm512_and_si512(_mm512_srli_epi32(v, 8 * (unsigned)e), _mm512_set1_epi32(255));
}

ALWAYS_INLINE floats floats_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE floats floats_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void floats_store(float *p, floats v) { _mm512_storeu_ps(p, v); }
ALWAYS_INLINE floats floats_broadcast(const void *p) { return _mm512_set1_ps(*(const float_at *)p); }
ALWAYS_INLINE floats floats_add(floats a, floats b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE floats floats_multiply(floats a, floats b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE floats floats_multiply_add(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE floats floats_negate(floats v) { return _mm512_sub_ps(_mm512_set1_ps(-0.0f), v); }
ALWAYS_INLINE floats floats_from_ints(ints v) { return _mm512_cvtepi32_ps(v); }
ALWAYS_INLINE floats floats_from_halves(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
ALWAYS_INLINE floats floats_from_bfloats(const uint8_t *p) {
    const __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}
/* E4M3, a byte of each row; the code of NaN as 480. */
ALWAYS_INLINE floats floats_from_fp8(const uint8_t *p) {
    const __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p)), sign = _mm256_set1_epi16(0x80);
    const __m256i half = _mm256_slli_epi16(_mm256_add_epi16(v, _mm256_and_si256(v, sign)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
}
/* 2^(e - 128) for a byte of each row; subnormal for e < 2. */
ALWAYS_INLINE floats floats_from_exponents(const uint8_t *p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(0x200000), e));
}
ALWAYS_INLINE floats floats_from_unsigned(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
ALWAYS_INLINE floats floats_from_signed(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

#ifdef __AVX512VNNI__
/* One instruction with the activations broadcast from memory: gcc 12 would load and spread them apart. */
ALWAYS_INLINE ints dot_step(ints sum, words weight, const uint8_t *act) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weight), "m"(*(const int32_at *)act));
    return sum;
}

#endif

/* sum[t] += the products of n_words words with as many words of activations, for n tokens 32 bytes apart. `bits` bounds
 * the weights: below 2^bits, or any int8 at 8 bits unless Q8_BIAS makes them unsigned. */
ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
#ifdef __AVX512VNNI__
    (void)bits;
    UNROLL for (int j = 0; j < n_words; j++) UNROLL
        for (int t = 0; t < n; t++) sum[t] = dot_step(sum[t], weight[j], act + 32 * t + 4 * j);
#else
    /* Sums of pairs in int16, as in dot_avx2.h. */
    const __m512i one = _mm512_set1_epi16(1);
    const int run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    UNROLL for (int first = 0; first < n_words; first += run) {
        const int end = first + run < n_words ? first + run : n_words;
        __m512i pairs[4];
        UNROLL for (int j = first; j < end; j++) {
            const words w = bits == 8 ? _mm512_abs_epi8(weight[j]) : weight[j];
            const __mmask64 negative = bits == 8 ? _mm512_movepi8_mask(weight[j]) : 0;
            UNROLL for (int t = 0; t < n; t++) {
                __m512i a = ints_broadcast(act + 32 * t + 4 * j);
                if (bits == 8) a = _mm512_mask_sub_epi8(a, negative, _mm512_setzero_si512(), a);
                const __m512i p = _mm512_maddubs_epi16(w, a);
                pairs[t] = j == first ? p : _mm512_add_epi16(pairs[t], p);
            }
        }
        UNROLL for (int t = 0; t < n; t++)
            sum[t] = _mm512_add_epi32(sum[t], _mm512_madd_epi16(pairs[t], one));
    }
#endif
}

/* Into the second-level cache, whose queue of misses is the longer one: the first level's alone would bound the stream.
 * An address past the end of memory is harmless. */
ALWAYS_INLINE void prefetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* The largest magnitude of 32 values as float bits: ordered as integers, infinities and then NaN above all. */
ALWAYS_INLINE uint32_t magnitude_bits(const float *x) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask);
    const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

/* q = rint(x * factor) for 32 values; *low and *high are the sums of both halves. */
ALWAYS_INLINE void round_block(uint8_t *q, const float *x, float factor, int32_t *low, int32_t *high) {
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), f));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), f));
    _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((void *)(q + 16), _mm512_cvtepi32_epi8(b));
    *low = _mm512_reduce_add_epi32(a);
    *high = _mm512_reduce_add_epi32(b);
}
#endif
