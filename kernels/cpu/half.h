/* half.h - float16, bfloat16 and E4M3 bits to float32 in plain C, exact for every value. */
#ifndef GOMLX_KERNELS_CPU_HALF_H
#define GOMLX_KERNELS_CPU_HALF_H
#include <stdint.h>
#include <string.h>
#include "cpu/compiler.h"

ALWAYS_INLINE float float_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

ALWAYS_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* A subnormal is an integer times 2^-24; all else has its exponent rebased by 127 - 15. */
    if (magnitude < 0x400) {
        const float f = (float)magnitude * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_from_bits(sign | ((magnitude << 13) + 0x38000000));
}

ALWAYS_INLINE float half_load(const uint8_t *p) { return half_to_float((uint16_t)(p[0] | p[1] << 8)); }

/* 2^(e - 128), half of what a scale of one byte says, subnormal for e < 2. */
ALWAYS_INLINE float half_exponent(uint8_t e) {
    return float_from_bits(e < 2 ? (uint32_t)0x200000 << e : (uint32_t)(e - 1) << 23);
}

/* Four bits of exponent (bias 7), three of mantissa; 0x7f, which is not a number, is taken for 480. */
ALWAYS_INLINE float fp8_load(uint8_t code) {
    return half_to_float((uint16_t)((code & 0x7f) << 7 | (code & 0x80) << 8)) * 256;
}

ALWAYS_INLINE float bfloat_load(const uint8_t *p) {
    return float_from_bits((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
}
#endif
