/* dot_neon.h - the vocabulary of the quantised kernels (see dot_avx512.h) with panels of four rows. Needs the dot
 * product instructions of Armv8.2; those of int8 matrices where they are there (i8mm) multiply tokens by twos. */
#ifndef GOMLX_KERNELS_CPU_DOT_NEON_H
#define GOMLX_KERNELS_CPU_DOT_NEON_H
#include <arm_neon.h>
#include <stdint.h>
#include "cpu/compiler.h"

#define PANEL_ROWS 4
#define TILE_TOKENS 8
#define Q8_BIAS 0       /* sdot multiplies signed bytes; the weights of the other formats stay below 64 */
#define SIGNED_TOKENS 4 /* from here on offsets are taken off the weights, not off each token's sum */
#ifdef __ARM_FEATURE_MATMUL_INT8
#define ACT_PAIRS 1
#endif

typedef uint8x16_t words;
typedef int32x4_t ints;
typedef float32x4_t floats;

ALWAYS_INLINE int32_t load_int(const uint8_t *p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE words words_load(const uint8_t *p) { return vld1q_u8(p); }
ALWAYS_INLINE void words_store(uint8_t *p, words v) { vst1q_u8(p, v); }
ALWAYS_INLINE words words_and(words v, uint8_t bits) { return vandq_u8(v, vdupq_n_u8(bits)); }
ALWAYS_INLINE words words_low(words v) { return words_and(v, 15); }
ALWAYS_INLINE words words_high(words v) { return vshrq_n_u8(v, 4); }
ALWAYS_INLINE words words_or(words v, words w) { return vorrq_u8(v, w); }
ALWAYS_INLINE words words_six_bits(words v) { return words_and(v, 0x3f); }
ALWAYS_INLINE words words_flip(words v) { return veorq_u8(v, vdupq_n_u8(0x80)); }
ALWAYS_INLINE words words_less(words v, int offset) { return vsubq_u8(v, vdupq_n_u8((uint8_t)offset)); }
ALWAYS_INLINE words words_field(words v, int pair) { return words_and(v, (uint8_t)(3 << 2 * pair)); }
ALWAYS_INLINE words words_pair(words v, int pair) {
    if (pair == 3) return vshrq_n_u8(v, 6);
    return words_and(pair == 0 ? v : pair == 1 ? vshrq_n_u8(v, 2) : vshrq_n_u8(v, 4), 3);
}
ALWAYS_INLINE words words_top(words v, int pair) {
    const words moved = pair == 0 ? vshlq_n_u8(v, 4) : pair == 1 ? vshlq_n_u8(v, 2) : pair == 3 ? vshrq_n_u8(v, 2) : v;
    return words_and(moved, 0x30);
}
ALWAYS_INLINE words words_plane(words v, const uint8_t *plane, int what) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const uint8x16_t bits = vcombine_u8(vld1_dup_u8(plane), vld1_dup_u8(plane + 1));
    return vorrq_u8(v, vandq_u8(vtstq_u8(bits, bit), vdupq_n_u8((uint8_t)what)));
}
ALWAYS_INLINE words words_lookup(words v, const uint8_t *table) { return vqtbl1q_u8(vld1q_u8(table), v); }
ALWAYS_INLINE words words_of(ints v) { return vreinterpretq_u8_s32(v); }
ALWAYS_INLINE ints ints_of(words v) { return vreinterpretq_s32_u8(v); }
ALWAYS_INLINE words words_marked(words v, ints bits, int j, int what) {
    static const uint8_t bases[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    const uint8x16_t mine = vqtbl1q_u8(words_of(bits), vaddq_u8(vld1q_u8(bases), vdupq_n_u8((uint8_t)(j / 2))));
    const uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(j % 2 ? 0x80402010u : 0x08040201u));
    return vorrq_u8(v, vandq_u8(vtstq_u8(mine, bit), vdupq_n_u8((uint8_t)what)));
}
ALWAYS_INLINE words words_gather(const uint32_t *table, ints number) {
    const uint32_t found[4] = {table[vgetq_lane_s32(number, 0)], table[vgetq_lane_s32(number, 1)],
                               table[vgetq_lane_s32(number, 2)], table[vgetq_lane_s32(number, 3)]};
    return vreinterpretq_u8_u32(vld1q_u32(found));
}
ALWAYS_INLINE words words_triple(words v) { return vaddq_u8(v, vaddq_u8(v, v)); }
ALWAYS_INLINE words words_third(words v) {
    const uint8x16_t more = vcgtq_u8(v, vdupq_n_u8(85)), most = vcgtq_u8(v, vdupq_n_u8(170));
    return vsubq_u8(vdupq_n_u8(0), vaddq_u8(more, most));
}
ALWAYS_INLINE words pairs_load(const uint8_t *p) { return vreinterpretq_u8_u16(vmovl_u8(vld1_u8(p))); }
/* In 16-bit halves of lanes. */
#define HALVES(f, v, w) vreinterpretq_u8_u16(f(vreinterpretq_u16_u8(v), vreinterpretq_u16_u8(w)))
ALWAYS_INLINE words words_multiply(words v, words w) { return HALVES(vmulq_u16, v, w); }
ALWAYS_INLINE words words_add(words v, words w) { return HALVES(vaddq_u16, v, w); }
ALWAYS_INLINE words words_subtract(words v, words w) { return HALVES(vsubq_u16, v, w); }
ALWAYS_INLINE words words_splat(int half) { return vreinterpretq_u8_u16(vdupq_n_u16((uint16_t)half)); }
ALWAYS_INLINE words pairs_repeat(words v, int h) { return h ? HALVES(vtrn2q_u16, v, v) : HALVES(vtrn1q_u16, v, v); }
#undef HALVES
ALWAYS_INLINE words pairs_broadcast(const int16_t *pair) {
    return vreinterpretq_u8_s32(vdupq_n_s32(load_int((const uint8_t *)pair)));
}
ALWAYS_INLINE words pairs_of(ints low, ints high, int shift) {
    const int32x4_t right = vdupq_n_s32(-shift);
    const int16x8_t l = vreinterpretq_s16_s32(vshlq_s32(low, right)), h = vreinterpretq_s16_s32(vshlq_s32(high, right));
    return vreinterpretq_u8_s16(vtrn1q_s16(l, h));
}
ALWAYS_INLINE ints pairs_dot(ints sum, words v, words w) {
    const int16x8_t a = vreinterpretq_s16_u8(v), b = vreinterpretq_s16_u8(w);
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}

ALWAYS_INLINE ints ints_splat(int v) { return vdupq_n_s32(v); }
ALWAYS_INLINE ints ints_broadcast(const uint8_t *p) { return ints_splat(load_int(p)); }
ALWAYS_INLINE ints ints_shift(ints v, int by) { return vshlq_s32(v, vdupq_n_s32(by)); }
ALWAYS_INLINE ints ints_subtract(ints v, ints w) { return vsubq_s32(v, w); }
ALWAYS_INLINE ints ints_add(ints v, ints w) { return vaddq_s32(v, w); }
ALWAYS_INLINE ints ints_and(ints v, ints w) { return vandq_s32(v, w); }
ALWAYS_INLINE ints ints_or(ints v, ints w) { return vorrq_s32(v, w); }
ALWAYS_INLINE ints ints_xor(ints v, ints w) { return veorq_s32(v, w); }
ALWAYS_INLINE ints ints_right(ints v, int by) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-by)));
}
/* A byte of each row. */
ALWAYS_INLINE uint16x8_t four_bytes(const uint8_t *p) { return vmovl_u8(vreinterpret_u8_s32(vdup_n_s32(load_int(p)))); }
ALWAYS_INLINE ints ints_bits(const uint8_t *p, int shift, int bits) {
    const uint32x4_t v = vshlq_u32(vmovl_u16(vget_low_u16(four_bytes(p))), vdupq_n_s32(-shift));
    return vreinterpretq_s32_u32(vandq_u32(v, vdupq_n_u32((1u << bits) - 1)));
}
ALWAYS_INLINE ints ints_byte(words v, int e) {
    const uint32x4_t moved = vshlq_u32(vreinterpretq_u32_u8(v), vdupq_n_s32(-8 * e));
    return vreinterpretq_s32_u32(vandq_u32(moved, vdupq_n_u32(255)));
}

ALWAYS_INLINE floats floats_zero(void) { return vdupq_n_f32(0); }
ALWAYS_INLINE floats floats_load(const float *p) { return vld1q_f32(p); }
ALWAYS_INLINE void floats_store(float *p, floats v) { vst1q_f32(p, v); }
ALWAYS_INLINE floats floats_broadcast(const void *p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return vdupq_n_f32(f);
}
ALWAYS_INLINE floats floats_add(floats v, floats w) { return vaddq_f32(v, w); }
ALWAYS_INLINE floats floats_multiply(floats v, floats w) { return vmulq_f32(v, w); }
ALWAYS_INLINE floats floats_multiply_add(floats v, floats w, floats sum) { return vfmaq_f32(sum, v, w); }
ALWAYS_INLINE floats floats_negate(floats v) { return vnegq_f32(v); }
ALWAYS_INLINE floats floats_from_ints(ints v) { return vcvtq_f32_s32(v); }
ALWAYS_INLINE floats floats_from_halves(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
ALWAYS_INLINE floats floats_from_bfloats(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
ALWAYS_INLINE floats floats_from_fp8(const uint8_t *p) {
    const uint16x4_t v = vget_low_u16(four_bytes(p)), sign = vand_u16(v, vdup_n_u16(0x80));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(vadd_u16(v, sign), 7))), 256);
}
ALWAYS_INLINE floats floats_from_exponents(const uint8_t *p) {
    const uint32x4_t e = vmovl_u16(vget_low_u16(four_bytes(p))), one = vdupq_n_u32(1);
    const uint32x4_t normal = vshlq_n_u32(vqsubq_u32(e, one), 23);
    return vreinterpretq_f32_u32(vmaxq_u32(normal, vshlq_n_u32(vaddq_u32(vminq_u32(e, one), one), 21)));
}
ALWAYS_INLINE floats floats_from_unsigned(const uint8_t *p) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(four_bytes(p))));
}
ALWAYS_INLINE floats floats_from_signed(const uint8_t *p) {
    const int16x8_t v = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load_int(p))));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(v)));
}

#ifdef ACT_PAIRS
/* For two tokens at a time: eight values of two rows times as many of two tokens are one instruction. */
ALWAYS_INLINE void dot_pairs(ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    int32x4_t even[2], odd[2]; /* rows 0 and 2, 1 and 3, of one token and the next */
    UNROLL for (int p = 0; p < n / 2; p++)
        even[p] = odd[p] = vdupq_n_s32(0);
    UNROLL for (int j = 0; j < n_words; j += 2) {
        const int32x4_t w = vreinterpretq_s32_u8(weight[j]), next = vreinterpretq_s32_u8(weight[j + 1]);
        const int8x16_t w_even = vreinterpretq_s8_s32(vtrn1q_s32(w, next));
        const int8x16_t w_odd = vreinterpretq_s8_s32(vtrn2q_s32(w, next));
        UNROLL for (int p = 0; p < n / 2; p++) {
            const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(act + 64 * p + 8 * j));
            even[p] = vmmlaq_s32(even[p], a, w_even);
            odd[p] = vmmlaq_s32(odd[p], a, w_odd);
        }
    }
    UNROLL for (int p = 0; p < n / 2; p++) {
        sum[2 * p] = vaddq_s32(sum[2 * p], vzip1q_s32(even[p], odd[p]));
        sum[2 * p + 1] = vaddq_s32(sum[2 * p + 1], vzip2q_s32(even[p], odd[p]));
    }
}
#endif

/* sum += a word of each row times word `lane` of the activations: a macro, as the instruction holds the lane. */
#define DOT_STEP(sum, word, act, lane) (sum) = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(word), act, lane)

/* n_words is a multiple of four. */
ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    (void)bits;
#ifdef ACT_PAIRS
    if (n > 1) {
        dot_pairs(sum, weight, n_words, act, n);
        return;
    }
#endif
    UNROLL for (int j = 0; j < n_words; j += 4) {
        UNROLL for (int t = 0; t < n; t++) {
            const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(act + 32 * t + 4 * j));
            DOT_STEP(sum[t], weight[j], a, 0);
            DOT_STEP(sum[t], weight[j + 1], a, 1);
            DOT_STEP(sum[t], weight[j + 2], a, 2);
            DOT_STEP(sum[t], weight[j + 3], a, 3);
        }
    }
}
#undef DOT_STEP

ALWAYS_INLINE void prefetch(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }

ALWAYS_INLINE uint32_t magnitude_bits(const float *x) {
    uint32x4_t m = vdupq_n_u32(0);
    UNROLL for (int i = 0; i < 32; i += 4)
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    return vmaxvq_u32(m);
}

ALWAYS_INLINE void round_block(uint8_t *q, const float *x, float factor, int32_t *low, int32_t *high) {
    int16x8_t v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * i), factor));
        const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8 * i + 4), factor));
        v[i] = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
        vst1_u8(q + 8 * i, vreinterpret_u8_s8(vmovn_s16(v[i])));
    }
    *low = vaddlvq_s16(vaddq_s16(v[0], v[1]));
    *high = vaddlvq_s16(vaddq_s16(v[2], v[3]));
}
#endif
