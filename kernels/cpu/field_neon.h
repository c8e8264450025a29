/* field_neon.h - the vocabulary of MLX's packed rows (see field_avx512.h) on AArch64 Advanced SIMD. */
#ifndef GOMLX_KERNELS_CPU_FIELD_H
#define GOMLX_KERNELS_CPU_FIELD_H
#include "cpu/simd_neon.h"

ALWAYS_INLINE vi field_bytes(uint8x16_t v, int bits) {
    static const uint8_t three[16] = {0, 1, 2, 16, 3, 4, 5, 16, 6, 7, 8, 16, 9, 10, 11, 16};
    static const uint8_t five[16] = {0, 1, 2, 3, 2, 3, 4, 5, 5, 6, 7, 8, 7, 8, 9, 16};
    static const int32_t down[4] = {0, -4, 0, -4};
    if (bits == 3 || bits == 6) return vreinterpretq_s32_u8(vqtbl1q_u8(v, vld1q_u8(three)));
    if (bits != 5) return vreinterpretq_s32_u8(v);
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(v, vld1q_u8(five))), vld1q_s32(down)));
}
ALWAYS_INLINE vi windows_load_part(const uint8_t *p, int bits, int64_t n) {
    uint8_t bytes[16] = {0};
    memcpy(bytes, p, (size_t)(bits == 3 || bits == 6 ? 3 * n : bits == 5 ? 5 * n / 2 : 4 * n));
    return field_bytes(vld1q_u8(bytes), bits);
}
ALWAYS_INLINE vi windows_load(const uint8_t *p, int bits) {
    return bits == 3 || bits == 6 || bits == 5 ? windows_load_part(p, bits, V_N) : field_bytes(vld1q_u8(p), bits);
}

ALWAYS_INLINE vi vi_lanes(void) {
    static const int32_t lanes[4] = {0, 1, 2, 3};
    return vld1q_s32(lanes);
}
ALWAYS_INLINE vi vi_load_bytes(const uint8_t *p) {
    const int32_t lanes[4] = {p[0], p[1], p[2], p[3]};
    return vld1q_s32(lanes);
}
ALWAYS_INLINE vi vi_shift_by(vi v, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-n)));
}
ALWAYS_INLINE vi field_shift(vi v, int n) { return vi_shift_by(v, n); }
ALWAYS_INLINE vf fp4_values(vi v) {
    /* The upper bytes of the floats 0, 0.5, ..., -6: their other two are zero. */
    static const uint8_t high[16] = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                     0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static const uint8_t low[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
    const uint8x16_t lane = vreinterpretq_u8_s32(vandq_s32(v, vdupq_n_s32(15)));
    const uint32x4_t top = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(high), lane));
    const uint32x4_t next = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(low), lane));
    return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(top, 24), vshlq_n_u32(vandq_u32(next, vdupq_n_u32(255)), 16)));
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
