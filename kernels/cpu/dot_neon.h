/* dot_neon.h - the vocabulary of the quantised kernels (see dot_avx512.h) with panels of eight rows: two registers of
 * four rows each. Needs the dot product instructions of Armv8.2. */
#ifndef GOMLX_KERNELS_CPU_DOT_NEON_H
#define GOMLX_KERNELS_CPU_DOT_NEON_H
#include <arm_neon.h>
#include <stdint.h>
#include "cpu/compiler.h"

#define PANEL_ROWS 8
#define TILE_TOKENS 4
#define Q8_BIAS 0           /* sdot multiplies signed bytes; the weights of the other formats stay below 64 */

typedef struct { uint8x16_t a, b; } words;      /* rows 0 to 3, rows 4 to 7 */
typedef struct { int32x4_t a, b; } ints;
typedef struct { float32x4_t a, b; } floats;

ALWAYS_INLINE int32_t load_int(const uint8_t *p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE words words_load(const uint8_t *p) { return (words){ vld1q_u8(p), vld1q_u8(p + 16) }; }
ALWAYS_INLINE void words_store(uint8_t *p, words v) { vst1q_u8(p, v.a), vst1q_u8(p + 16, v.b); }
ALWAYS_INLINE words words_and(words v, uint8_t bits) {
    return (words){ vandq_u8(v.a, vdupq_n_u8(bits)), vandq_u8(v.b, vdupq_n_u8(bits)) };
}
ALWAYS_INLINE words words_low(words v) { return words_and(v, 15); }
ALWAYS_INLINE words words_high(words v) { return (words){ vshrq_n_u8(v.a, 4), vshrq_n_u8(v.b, 4) }; }
ALWAYS_INLINE words words_or(words v, words w) { return (words){ vorrq_u8(v.a, w.a), vorrq_u8(v.b, w.b) }; }
ALWAYS_INLINE words words_six_bits(words v) { return words_and(v, 0x3f); }
ALWAYS_INLINE words words_flip(words v) {
    return (words){ veorq_u8(v.a, vdupq_n_u8(0x80)), veorq_u8(v.b, vdupq_n_u8(0x80)) };
}
ALWAYS_INLINE words words_field(words v, int pair) { return words_and(v, (uint8_t)(3 << 2 * pair)); }
ALWAYS_INLINE words words_pair(words v, int pair) {
    const int8x16_t right = vdupq_n_s8((int8_t)(-2 * pair));
    return words_and((words){ vshlq_u8(v.a, right), vshlq_u8(v.b, right) }, 3);
}
ALWAYS_INLINE words words_top(words v, int pair) {
    const int8x16_t left = vdupq_n_s8((int8_t)(4 - 2 * pair));      /* to the right where negative */
    return words_and((words){ vshlq_u8(v.a, left), vshlq_u8(v.b, left) }, 0x30);
}
ALWAYS_INLINE words words_plane(words v, const uint8_t *plane, int what) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const uint8x16_t value = vdupq_n_u8((uint8_t)what);
    const uint8x16_t bits = vreinterpretq_u8_s32(vdupq_n_s32(load_int(plane)));
    const uint8x16_t low = vqtbl1q_u8(bits, vcombine_u8(vdup_n_u8(0), vdup_n_u8(1)));
    const uint8x16_t high = vqtbl1q_u8(bits, vcombine_u8(vdup_n_u8(2), vdup_n_u8(3)));
    return words_or(v, (words){ vandq_u8(vtstq_u8(low, bit), value), vandq_u8(vtstq_u8(high, bit), value) });
}
ALWAYS_INLINE words words_lookup(words v, const uint8_t *table) {
    const uint8x16_t t = vld1q_u8(table);
    return (words){ vqtbl1q_u8(t, v.a), vqtbl1q_u8(t, v.b) };
}
ALWAYS_INLINE words pairs_load(const uint8_t *p) {
    const uint8x16_t v = vld1q_u8(p);
    return (words){ vreinterpretq_u8_u16(vmovl_u8(vget_low_u8(v))), vreinterpretq_u8_u16(vmovl_high_u8(v)) };
}
/* In 16-bit halves of lanes. */
#define HALVES(f, v, w) vreinterpretq_u8_u16(f(vreinterpretq_u16_u8(v), vreinterpretq_u16_u8(w)))
ALWAYS_INLINE words words_multiply(words v, words w) {
    return (words){ HALVES(vmulq_u16, v.a, w.a), HALVES(vmulq_u16, v.b, w.b) };
}
ALWAYS_INLINE words words_add(words v, words w) {
    return (words){ HALVES(vaddq_u16, v.a, w.a), HALVES(vaddq_u16, v.b, w.b) };
}
ALWAYS_INLINE words words_subtract(words v, words w) {
    return (words){ HALVES(vsubq_u16, v.a, w.a), HALVES(vsubq_u16, v.b, w.b) };
}
ALWAYS_INLINE words words_splat(int half) {
    const uint8x16_t v = vreinterpretq_u8_u16(vdupq_n_u16((uint16_t)half));
    return (words){ v, v };
}
ALWAYS_INLINE words pairs_repeat(words v, int h) {
    return h ? (words){ HALVES(vtrn2q_u16, v.a, v.a), HALVES(vtrn2q_u16, v.b, v.b) }
             : (words){ HALVES(vtrn1q_u16, v.a, v.a), HALVES(vtrn1q_u16, v.b, v.b) };
}
#undef HALVES
ALWAYS_INLINE words pairs_broadcast(const int16_t *pair) {
    const uint8x16_t v = vreinterpretq_u8_s32(vdupq_n_s32(load_int((const uint8_t *)pair)));
    return (words){ v, v };
}
ALWAYS_INLINE uint8x16_t pairs_of_four(int32x4_t low, int32x4_t high, int32x4_t right) {
    const int16x8_t l = vreinterpretq_s16_s32(vshlq_s32(low, right)), h = vreinterpretq_s16_s32(vshlq_s32(high, right));
    return vreinterpretq_u8_s16(vtrn1q_s16(l, h));
}
ALWAYS_INLINE words pairs_of(ints low, ints high, int shift) {
    const int32x4_t right = vdupq_n_s32(-shift);
    return (words){ pairs_of_four(low.a, high.a, right), pairs_of_four(low.b, high.b, right) };
}
ALWAYS_INLINE int32x4_t pairs_dot_four(int32x4_t sum, uint8x16_t v, uint8x16_t w) {
    const int16x8_t a = vreinterpretq_s16_u8(v), b = vreinterpretq_s16_u8(w);
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
ALWAYS_INLINE ints pairs_dot(ints sum, words v, words w) {
    return (ints){ pairs_dot_four(sum.a, v.a, w.a), pairs_dot_four(sum.b, v.b, w.b) };
}

ALWAYS_INLINE ints ints_splat(int v) { return (ints){ vdupq_n_s32(v), vdupq_n_s32(v) }; }
ALWAYS_INLINE ints ints_broadcast(const uint8_t *p) { return ints_splat(load_int(p)); }
ALWAYS_INLINE ints ints_shift(ints v, int by) {
    return (ints){ vshlq_s32(v.a, vdupq_n_s32(by)), vshlq_s32(v.b, vdupq_n_s32(by)) };
}
ALWAYS_INLINE ints ints_subtract(ints v, ints w) { return (ints){ vsubq_s32(v.a, w.a), vsubq_s32(v.b, w.b) }; }
ALWAYS_INLINE ints ints_bits(const uint8_t *p, int shift, int bits) {
    const uint8x8_t moved = vshl_u8(vld1_u8(p), vdup_n_s8((int8_t)-shift)), mask = vdup_n_u8((uint8_t)((1 << bits) - 1));
    const uint16x8_t v = vmovl_u8(vand_u8(moved, mask));
    return (ints){ vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(v))), vreinterpretq_s32_u32(vmovl_high_u16(v)) };
}
ALWAYS_INLINE ints ints_byte(words v, int e) {
    const uint32x4_t a = vreinterpretq_u32_u8(v.a), b = vreinterpretq_u32_u8(v.b), mask = vdupq_n_u32(255);
    const int32x4_t right = vdupq_n_s32(-8 * e);
    return (ints){ vreinterpretq_s32_u32(vandq_u32(vshlq_u32(a, right), mask)),
                   vreinterpretq_s32_u32(vandq_u32(vshlq_u32(b, right), mask)) };
}

ALWAYS_INLINE floats floats_splat(float f) { return (floats){ vdupq_n_f32(f), vdupq_n_f32(f) }; }
ALWAYS_INLINE floats floats_zero(void) { return floats_splat(0); }
ALWAYS_INLINE floats floats_load(const float *p) { return (floats){ vld1q_f32(p), vld1q_f32(p + 4) }; }
ALWAYS_INLINE void floats_store(float *p, floats v) { vst1q_f32(p, v.a), vst1q_f32(p + 4, v.b); }
ALWAYS_INLINE floats floats_broadcast(const void *p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return floats_splat(f);
}
ALWAYS_INLINE floats floats_add(floats v, floats w) { return (floats){ vaddq_f32(v.a, w.a), vaddq_f32(v.b, w.b) }; }
ALWAYS_INLINE floats floats_multiply(floats v, floats w) {
    return (floats){ vmulq_f32(v.a, w.a), vmulq_f32(v.b, w.b) };
}
ALWAYS_INLINE floats floats_multiply_add(floats v, floats w, floats sum) {
    return (floats){ vfmaq_f32(sum.a, v.a, w.a), vfmaq_f32(sum.b, v.b, w.b) };
}
ALWAYS_INLINE floats floats_negate(floats v) { return (floats){ vnegq_f32(v.a), vnegq_f32(v.b) }; }
ALWAYS_INLINE floats floats_from_ints(ints v) { return (floats){ vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b) }; }
ALWAYS_INLINE floats floats_from_halves(const uint8_t *p) {
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return (floats){ vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h) };
}
ALWAYS_INLINE floats floats_from_exponents(const uint8_t *p) {
    const uint8x8_t e = vld1_u8(p), one = vdup_n_u8(1);
    const uint16x8_t normal = vmovl_u8(vqsub_u8(e, one)), least = vmovl_u8(vadd_u8(vmin_u8(e, one), one));
    const uint32x4_t a = vmaxq_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(normal)), 23),
                                   vshlq_n_u32(vmovl_u16(vget_low_u16(least)), 21));
    const uint32x4_t b = vmaxq_u32(vshlq_n_u32(vmovl_high_u16(normal), 23), vshlq_n_u32(vmovl_high_u16(least), 21));
    return (floats){ vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b) };
}
ALWAYS_INLINE floats floats_from_unsigned(const uint8_t *p) {
    const uint16x8_t v = vmovl_u8(vld1_u8(p));
    return (floats){ vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v)) };
}
ALWAYS_INLINE floats floats_from_signed(const uint8_t *p) {
    const int16x8_t v = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return (floats){ vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v)) };
}

/* sum += a word of each row times word `lane` of the activations: a macro, as the instruction holds the lane. */
#define DOT_STEP(sum, word, act, lane) do { \
    (sum).a = vdotq_laneq_s32((sum).a, vreinterpretq_s8_u8((word).a), act, lane); \
    (sum).b = vdotq_laneq_s32((sum).b, vreinterpretq_s8_u8((word).b), act, lane); \
} while (0)

/* n_words is a multiple of four. */
ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    (void)bits;
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
    UNROLL for (int i = 0; i < 32; i += 4) m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
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
