/* dot_generic.h - the vocabulary of the quantised kernels (see dot_avx512.h) in C, with panels of eight rows. */
#ifndef GOMLX_KERNELS_CPU_DOT_GENERIC_H
#define GOMLX_KERNELS_CPU_DOT_GENERIC_H
#include <stdint.h>
#include <string.h>
#include "cpu/compiler.h"
#include "cpu/half.h"

#define PANEL_ROWS 8
#define TILE_TOKENS 4
#define Q8_BIAS 0

typedef struct { uint8_t b[4 * PANEL_ROWS]; } words;
typedef struct { int32_t v[PANEL_ROWS]; } ints;
typedef struct { float v[PANEL_ROWS]; } floats;

#define EACH_BYTE for (int i = 0; i < 4 * PANEL_ROWS; i++)
#define EACH_ROW for (int r = 0; r < PANEL_ROWS; r++)

ALWAYS_INLINE words words_load(const uint8_t *p) {
    words w;
    memcpy(w.b, p, sizeof w.b);
    return w;
}
ALWAYS_INLINE void words_store(uint8_t *p, words v) { memcpy(p, v.b, sizeof v.b); }
ALWAYS_INLINE words words_low(words v) {
    EACH_BYTE v.b[i] &= 15;
    return v;
}
ALWAYS_INLINE words words_high(words v) {
    EACH_BYTE v.b[i] >>= 4;
    return v;
}
ALWAYS_INLINE words words_or(words a, words b) {
    EACH_BYTE a.b[i] |= b.b[i];
    return a;
}
ALWAYS_INLINE words words_six_bits(words v) {
    EACH_BYTE v.b[i] &= 0x3f;
    return v;
}
ALWAYS_INLINE words words_flip(words v) {
    EACH_BYTE v.b[i] ^= 0x80;
    return v;
}
ALWAYS_INLINE words words_field(words v, int pair) {
    EACH_BYTE v.b[i] &= (uint8_t)(3 << 2 * pair);
    return v;
}
ALWAYS_INLINE words words_pair(words v, int pair) {
    EACH_BYTE v.b[i] = v.b[i] >> 2 * pair & 3;
    return v;
}
ALWAYS_INLINE words words_top(words v, int pair) {
    EACH_BYTE v.b[i] = (uint8_t)((v.b[i] >> 2 * pair & 3) << 4);
    return v;
}
ALWAYS_INLINE words words_plane(words v, const uint8_t *plane, int what) {
    EACH_BYTE v.b[i] = (uint8_t)(v.b[i] + (plane[i / 8] >> i % 8 & 1) * what);
    return v;
}
ALWAYS_INLINE words words_lookup(words v, const uint8_t *table) {
    EACH_BYTE v.b[i] = table[v.b[i]];
    return v;
}
/* In 16-bit halves of lanes, whatever order the machine has bytes in. */
#define EACH_HALF for (int i = 0; i < 4 * PANEL_ROWS; i += 2)
ALWAYS_INLINE uint32_t words_half(words v, int i) { return (uint32_t)(v.b[i] | v.b[i + 1] << 8); }
ALWAYS_INLINE words words_set_half(words v, int i, uint32_t half) {
    v.b[i] = (uint8_t)half;
    v.b[i + 1] = (uint8_t)(half >> 8);
    return v;
}
ALWAYS_INLINE words words_multiply(words v, words factor) {
    EACH_HALF v = words_set_half(v, i, words_half(v, i) * words_half(factor, i));
    return v;
}
ALWAYS_INLINE words words_add(words a, words b) {
    EACH_HALF a = words_set_half(a, i, words_half(a, i) + words_half(b, i));
    return a;
}
ALWAYS_INLINE words words_subtract(words a, words b) {
    EACH_HALF a = words_set_half(a, i, words_half(a, i) - words_half(b, i));
    return a;
}
ALWAYS_INLINE words pairs_load(const uint8_t *p) {
    words w;
    EACH_HALF w = words_set_half(w, i, p[i / 2]);
    return w;
}
ALWAYS_INLINE words pairs_repeat(words v, int h) {
    EACH_HALF v = words_set_half(v, i, words_half(v, i / 4 * 4 + 2 * h));
    return v;
}
ALWAYS_INLINE words pairs_broadcast(const int16_t *pair) {
    words w;
    EACH_HALF w = words_set_half(w, i, (uint32_t)pair[i / 2 % 2]);
    return w;
}
ALWAYS_INLINE words pairs_of(ints low, ints high, int shift) {
    words w;
    EACH_HALF w = words_set_half(w, i, (uint32_t)((i % 4 ? high : low).v[i / 4] >> shift));
    return w;
}
ALWAYS_INLINE ints pairs_dot(ints sum, words a, words b) {
    EACH_HALF sum.v[i / 4] += (int16_t)words_half(a, i) * (int16_t)words_half(b, i);
    return sum;
}
ALWAYS_INLINE words words_splat(int half) {
    words w;
    EACH_HALF w = words_set_half(w, i, (uint32_t)half);
    return w;
}

ALWAYS_INLINE ints ints_splat(int v) {
    ints x;
    EACH_ROW x.v[r] = v;
    return x;
}
ALWAYS_INLINE ints ints_broadcast(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return ints_splat(v);
}
ALWAYS_INLINE ints ints_shift(ints v, int by) {
    EACH_ROW v.v[r] = (int32_t)((uint32_t)v.v[r] << by);
    return v;
}
ALWAYS_INLINE ints ints_subtract(ints a, ints b) {
    EACH_ROW a.v[r] -= b.v[r];
    return a;
}
ALWAYS_INLINE ints ints_add(ints a, ints b) {
    EACH_ROW a.v[r] += b.v[r];
    return a;
}
ALWAYS_INLINE ints ints_and(ints a, ints b) {
    EACH_ROW a.v[r] &= b.v[r];
    return a;
}
ALWAYS_INLINE ints ints_or(ints a, ints b) {
    EACH_ROW a.v[r] |= b.v[r];
    return a;
}
ALWAYS_INLINE ints ints_xor(ints a, ints b) {
    EACH_ROW a.v[r] ^= b.v[r];
    return a;
}
ALWAYS_INLINE ints ints_right(ints v, int by) {
    EACH_ROW v.v[r] = (int32_t)((uint32_t)v.v[r] >> by);
    return v;
}
ALWAYS_INLINE words words_of(ints v) {
    words w;
    EACH_BYTE w.b[i] = (uint8_t)((uint32_t)v.v[i / 4] >> i % 4 * 8);
    return w;
}
ALWAYS_INLINE ints ints_of(words v) {
    ints x;
    EACH_ROW x.v[r] = (int32_t)((uint32_t)(v.b[4 * r] | v.b[4 * r + 1] << 8 | v.b[4 * r + 2] << 16) |
                                (uint32_t)v.b[4 * r + 3] << 24);
    return x;
}
ALWAYS_INLINE words words_marked(words v, ints bits, int j, int what) {
    EACH_BYTE v.b[i] = (uint8_t)(v.b[i] + ((uint32_t)bits.v[i / 4] >> (4 * j + i % 4) & 1) * (uint32_t)what);
    return v;
}
ALWAYS_INLINE words words_gather(const uint32_t *table, ints number) {
    ints found;
    EACH_ROW found.v[r] = (int32_t)table[number.v[r]];
    return words_of(found);
}
ALWAYS_INLINE words words_triple(words v) {
    EACH_BYTE v.b[i] = (uint8_t)(3 * v.b[i]);
    return v;
}
ALWAYS_INLINE words words_third(words v) {
    EACH_BYTE v.b[i] = (uint8_t)(3 * v.b[i] >> 8);
    return v;
}
ALWAYS_INLINE ints ints_bits(const uint8_t *p, int shift, int bits) {
    ints x;
    EACH_ROW x.v[r] = p[r] >> shift & ((1 << bits) - 1);
    return x;
}
ALWAYS_INLINE ints ints_byte(words v, int e) {
    ints x;
    EACH_ROW x.v[r] = v.b[4 * r + e];
    return x;
}

ALWAYS_INLINE floats floats_zero(void) {
    floats x;
    EACH_ROW x.v[r] = 0;
    return x;
}
ALWAYS_INLINE floats floats_load(const float *p) {
    floats x;
    memcpy(x.v, p, sizeof x.v);
    return x;
}
ALWAYS_INLINE void floats_store(float *p, floats v) { memcpy(p, v.v, sizeof v.v); }
ALWAYS_INLINE floats floats_broadcast(const void *p) {
    float f;
    floats x;
    memcpy(&f, p, sizeof f);
    EACH_ROW x.v[r] = f;
    return x;
}
ALWAYS_INLINE floats floats_add(floats a, floats b) {
    EACH_ROW a.v[r] += b.v[r];
    return a;
}
ALWAYS_INLINE floats floats_multiply(floats a, floats b) {
    EACH_ROW a.v[r] *= b.v[r];
    return a;
}
/* Two roundings: a fused one would be a call into the mathematical library for each value. */
ALWAYS_INLINE floats floats_multiply_add(floats a, floats b, floats c) { return floats_add(floats_multiply(a, b), c); }
ALWAYS_INLINE floats floats_negate(floats v) {
    EACH_ROW v.v[r] = -v.v[r];
    return v;
}
ALWAYS_INLINE floats floats_from_ints(ints v) {
    floats x;
    EACH_ROW x.v[r] = (float)v.v[r];
    return x;
}
ALWAYS_INLINE floats floats_from_halves(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = half_load(p + 2 * r);
    return x;
}
ALWAYS_INLINE floats floats_from_bfloats(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = bfloat_load(p + 2 * r);
    return x;
}
ALWAYS_INLINE floats floats_from_fp8(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = fp8_load(p[r]);
    return x;
}
ALWAYS_INLINE floats floats_from_exponents(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = half_exponent(p[r]);
    return x;
}
ALWAYS_INLINE floats floats_from_unsigned(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = p[r];
    return x;
}
ALWAYS_INLINE floats floats_from_signed(const uint8_t *p) {
    floats x;
    EACH_ROW x.v[r] = (int8_t)p[r];
    return x;
}

ALWAYS_INLINE void dot(int bits, ints *sum, const words *weight, int n_words, const uint8_t *act, int n) {
    for (int t = 0; t < n; t++) {
        int32_t lane[4 * PANEL_ROWS] = {0};
        for (int j = 0; j < n_words; j++) {
            int16_t a[4];
            for (int e = 0; e < 4; e++) a[e] = (int8_t)act[32 * t + 4 * j + e];
            EACH_BYTE lane[i] += a[i % 4] * (bits == 8 ? (int8_t)weight[j].b[i] : (int16_t)weight[j].b[i]);
        }
        EACH_ROW sum[t].v[r] += lane[4 * r] + lane[4 * r + 1] + lane[4 * r + 2] + lane[4 * r + 3];
    }
}

ALWAYS_INLINE void prefetch(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }

ALWAYS_INLINE uint32_t magnitude_bits(const float *x) {
    int32_t bits[32], m = 0;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++) {
        const int32_t b = bits[i] & 0x7fffffff;
        m = b > m ? b : m;
    }
    return (uint32_t)m;
}

/* Adding 1.5 * 2^23 leaves no bits for a fraction: what stays is the nearest integer, ties to even. */
ALWAYS_INLINE void round_block(uint8_t *q, const float *x, float factor, int32_t *low, int32_t *high) {
    int32_t v[32];
    for (int i = 0; i < 32; i++) {
        const float product = x[i] * factor;
        const float f = product + 0x1.8p23f;
        int32_t bits;
        memcpy(&bits, &f, sizeof bits);
        v[i] = bits - 0x4b400000;
        q[i] = (uint8_t)v[i];
    }
    *low = *high = 0;
    for (int i = 0; i < 16; i++) *low += v[i];
    for (int i = 16; i < 32; i++) *high += v[i];
}
#endif
