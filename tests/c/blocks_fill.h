/* blocks_fill.h - blocks of every weight format with random or extreme bytes, and the random numbers for it. */
#ifndef GOMLX_TESTS_BLOCKS_FILL_H
#define GOMLX_TESTS_BLOCKS_FILL_H
#include <string.h>
#include "kernels.h"

static uint64_t random_state = 1;
static inline uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static inline float random_float(void) { return (float)(random_bits() & 0xffff) / 32768.0f - 1.0f; }

static inline int scale_offset(int format) {
    return format == GM_QUANT_q6_k    ? 208
           : format == GM_QUANT_q3_k  ? 108
           : format == GM_QUANT_q2_k  ? 80
           : format == GM_QUANT_tq1_0 ? 52
           : format == GM_QUANT_tq2_0 ? 64
                                      : 0;
}
static inline bool has_min(int format) {
    return format == GM_QUANT_q4_1 || format == GM_QUANT_q5_1 || format == GM_QUANT_q4_k || format == GM_QUANT_q5_k ||
           format == GM_QUANT_q2_k;
}

enum { FILL_RANDOM, FILL_ONES, FILL_ZEROS, FILL_EMPTY, FILL_TINY, FILL_COUNT };

/* Rows of blocks with random or extreme payloads and scales of a sane size (FILL_TINY: subnormal; FILL_ZEROS: 0). */
static inline void fill_weights(int format, uint8_t *w, int64_t rows, int64_t k, int fill) {
    const gm_quant_info *f = &gm_quants[format];
    for (int64_t b = 0; b < rows * k / f->values; b++, w += f->bytes) {
        for (int i = 0; i < f->bytes; i++)
            w[i] = (uint8_t)(fill == FILL_ONES                          ? 255
                             : fill == FILL_ZEROS || fill == FILL_EMPTY ? 0
                                                                        : random_bits() >> 7);
        if (fill == FILL_ZEROS)
            continue;
        if (gm_quants[format].bits) {
            const int type = gm_quants[format].scale, bytes = gm_quants[type].bytes;
            for (int i = 0; i < 2; i++) {
                const float v = (random_float() + 1.5f) * (fill == FILL_TINY ? 1e-6f : 0.01f) * (i ? -8 : 1);
                const unsigned h = fill == FILL_TINY ? 1 + random_bits() % 7 : 0x1400 + random_bits() % 0x1000;
                uint32_t bits;
                memcpy(&bits, &v, 4);
                for (int n = 0; n < bytes; n++)
                    w[bytes * i + n] = (uint8_t)((type == GM_QUANT_f16    ? h
                                                  : type == GM_QUANT_bf16 ? bits >> 16
                                                                          : bits) >>
                                                 8 * n);
            }
            continue;
        }
        if (format == GM_QUANT_nvfp4) {
            for (int i = 0; i < 2; i++)
                w[i] = (uint8_t)(fill == FILL_TINY   ? 1 + random_bits() % 7
                                 : fill == FILL_ONES ? 0x7e
                                                     : 16 + random_bits() % 64);
            continue;
        }
        if (format == GM_QUANT_mxfp4 || format == GM_QUANT_mxfp8) {
            w[0] = (uint8_t)(fill == FILL_TINY ? random_bits() % 3 : 110 + random_bits() % 20);
            continue;
        }
        if (format == GM_QUANT_q8_k || format == GM_QUANT_iq1_m) {
            const float d = (random_float() + 1.5f) * (fill == FILL_TINY ? 1e-37f : 0.01f);
            const unsigned h = fill == FILL_TINY ? 1 + random_bits() % 7 : 0x1400 + random_bits() % 0x1000;
            if (format == GM_QUANT_q8_k)
                memcpy(w, &d, sizeof d);
            for (int i = 0; i < 4 && format == GM_QUANT_iq1_m; i++)
                w[49 + 2 * i] = (uint8_t)((w[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
            continue;
        }
        const int n = has_min(format) ? 2 : 1;
        for (int i = 0; i < n; i++) {
            const unsigned h = fill == FILL_TINY ? 1 + random_bits() % 7 : 0x1400 + random_bits() % 0x1000;
            w[scale_offset(format) + 2 * i] = (uint8_t)h;
            w[scale_offset(format) + 2 * i + 1] = (uint8_t)(h >> 8 | (random_bits() & 1) << 7);
        }
    }
}
#endif
