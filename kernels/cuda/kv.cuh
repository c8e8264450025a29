/* kv.cuh - how keys and values lie in caches (quants.h), and how a position's go there: rotated first, where they are
 * keys. */
#ifndef GOMLX_CUDA_KV_CUH
#define GOMLX_CUDA_KV_CUH
#include "functions.cuh"

/* Value d of x, of which the first 2 * half are rotated. */
DEVICE float rotated_value(const float *x, const float *angles, int64_t half, int64_t d) {
    if (d >= 2 * half) return x[d];
    const int64_t pair = d < half ? d : d - half;
    const float c = angles[pair], s = angles[half + pair], low = x[pair], high = x[half + pair];
    return d < half ? fmaf(-high, s, low * c) : fmaf(low, s, high * c);
}
#define KV_UNIT (GM_KV_LANES * 34) /* bytes of a unit of int8 */
DEVICE int64_t kv_bytes(int type, int64_t n) { return type == GM_T_KV_Q8_0 ? n / 32 * 34 : n * item_size(type); }
DEVICE int64_t unit_offset(int64_t in_block, int64_t d, int64_t dim) {
    return (in_block / GM_KV_LANES * (dim / 32) + d / 32) * KV_UNIT;
}
/* Of a head's keys of a block, where value d of a key is. */
DEVICE int64_t key_place(int64_t in_block, int64_t d, int64_t dim) {
    return in_block / GM_KV_LANES * GM_KV_LANES * dim + d * GM_KV_LANES + in_block % GM_KV_LANES;
}
/* 32 values of a position, value(i), as int8. */
template <class F> DEVICE void store_unit(char *unit, int lane, int first, int step, F value) {
    uint32_t top = 0;
    for (int i = 0; i < 32; i++) {
        const uint32_t bits = bits_of_float(value(i)) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    const bool finite = top < 0x7f800000;
    const uint16_t rounded = half_of_float(float_of_bits(top) / 127);
    const uint16_t half = finite ? rounded < 0x7bff ? rounded : (uint16_t)0x7bff : (uint16_t)0x7e00;
    const float d = float_of_half(half), inverse = finite && d > 0 ? 1 / d : 0;
    ((uint16_t *)unit)[lane] = half;
    for (int i = 0; i < 32; i++) {
        const float v = finite ? value(i) * inverse : 0.0f;
        unit[2 * GM_KV_LANES + first + step * i] = (char)(int)rintf(v > -127 ? v < 127 ? v : 127.0f : -127.0f);
    }
}
/* Value d of a head's keys or values of a position, of a type of floats, to where those of its block begin. */
DEVICE void store_kv_value(char *to, int type, int64_t position, int64_t dim, bool is_key, int64_t d, float value) {
    const int64_t at = position % GM_KV_BLOCK;
    store_float(to, is_key ? key_place(at, d, dim) : at * dim + d, value, type);
}
/* A head's keys or values of a position, value(d), to where those of its block begin; by `threads`. */
template <class F>
DEVICE void store_kv(char *to, int type, int64_t position, int64_t dim, bool is_key, int thread, int threads, F value) {
    const int64_t at = position % GM_KV_BLOCK;
    const int lane = (int)(position % GM_KV_LANES);
    if (type == GM_T_KV_Q8_0) {
        for (int64_t d = (int64_t)thread * 32; d < dim; d += (int64_t)threads * 32)
            store_unit(to + unit_offset(at, d, dim), lane, is_key ? lane : 32 * lane, is_key ? GM_KV_LANES : 1,
                       [&](int i) { return value(d + i); });
        return;
    }
    for (int64_t d = thread; d < dim; d += threads) store_kv_value(to, type, position, dim, is_key, d, value(d));
}
#endif
