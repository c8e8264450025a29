/* field_generic.h - the vocabulary of MLX's packed rows (see field_avx512.h) in C. */
#ifndef GOMLX_KERNELS_CPU_FIELD_H
#define GOMLX_KERNELS_CPU_FIELD_H
#include "cpu/simd_generic.h"

ALWAYS_INLINE vi windows_load_part(const uint8_t *p, int bits, int64_t n) {
    uint8_t bytes[4 * V_N] = {0};
    vi v = {0};
    memcpy(bytes, p, (size_t)(bits == 3 || bits == 6 ? 3 * n : bits == 5 ? 5 * n / 2 : 4 * n));
    for (int l = 0; l < V_N; l++) {
        const uint8_t *at = bytes + (bits == 3 || bits == 6 ? 3 * l : bits == 5 ? 5 * l / 2 : 4 * l);
        const uint32_t window = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        v[l] = (int32_t)(bits == 5 && l % 2 ? window >> 4 : window);
    }
    return v;
}
ALWAYS_INLINE vi windows_load(const uint8_t *p, int bits) { return windows_load_part(p, bits, V_N); }

ALWAYS_INLINE vi vi_lanes(void) { return (vi){0, 1, 2, 3}; }
ALWAYS_INLINE vi vi_load_bytes(const uint8_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
ALWAYS_INLINE vi field_shift(vi v, int n) { return (vi)((vu)v >> n); }
ALWAYS_INLINE vi vi_shift_by(vi v, int n) { return (vi)((vu)v >> n); }
ALWAYS_INLINE vf fp4_values(vi v) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return (vf){values[v[0] & 15], values[v[1] & 15], values[v[2] & 15], values[v[3] & 15]};
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
