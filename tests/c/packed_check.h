/* packed_check.h - what tests of the packed formats share: buffers between pages that may not be touched, blocks of
 * random and extreme bytes (blocks_fill.h), a scalar reading of every format's bytes, int8 activations, and a main that
 * takes [quick] [ISA...]: only these tables; quick, for emulators: fewer sizes of every format. */
#ifndef GOMLX_TESTS_PACKED_CHECK_H
#define GOMLX_TESTS_PACKED_CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocks_fill.h"
#include "cpu/loops.h"
#include "grids.h"

static int passed, failed;
static bool quick;

static inline void check(bool ok, const char *what, const char *isa, int format, int64_t rows, int64_t k,
                         int64_t tokens) {
    if (ok) {
        passed++;
        return;
    }
    if (failed++ < 40)
        printf("FAILED %s: %s %s rows %d k %d tokens %d\n", what, isa, gm_quants[format].name, (int)rows, (int)k,
               (int)tokens);
}

/* ---- memory between forbidden pages ---- */
typedef struct {
    void *map;
    size_t map_bytes;
} guarded;

static bool at_end = true; /* data ends at the forbidden page, or begins after one */

static inline void *guarded_new(guarded *g, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    g->map_bytes = whole + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED || mprotect(g->map, page, PROT_NONE) ||
        mprotect((char *)g->map + page + whole, page, PROT_NONE)) {
        perror("mmap");
        exit(2);
    }
    return (char *)g->map + page + (at_end ? whole - bytes : 0);
}

static inline void guarded_free(guarded *g) { munmap(g->map, g->map_bytes); }

static inline double half_value(const uint8_t *p) {
    const int h = p[0] | p[1] << 8, e = h >> 10 & 31, m = h & 1023;
    const double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static inline double fp8_number(int code) /* E4M3; the code that is no number as 480 */
{
    const int e = code >> 3 & 15, m = code & 7;
    return (code & 128 ? -1 : 1) * (e ? ldexp(8 + m, e - 10) : ldexp(m, -9));
}
static inline int fp4_twice(int code) {
    const int e = code >> 1 & 3, m = code & 1; /* sign, exponent, mantissa */
    return (code & 8 ? -1 : 1) * (e ? (2 + m) << (e - 1) : m);
}
static inline double scale_value(int type, const uint8_t *p) {
    const uint32_t bits = type == GM_QUANT_bf16 ? (uint32_t)(p[0] | p[1] << 8) << 16
                                                : p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
    float f;
    if (type == GM_QUANT_f16)
        return half_value(p);
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}
/* MLX's modes; value i of affine are bits bits * i and on of the fields. */
static inline void group_value(int format, const uint8_t *b, int i, double *scale, int *q, double *min) {
    const gm_quant_info *f = &gm_quants[format];
    if (format == GM_QUANT_mxfp8) {
        const int code = b[1 + i], e = code >> 3 & 15, m = code & 7;
        *scale = ldexp(1, b[0] - 127 - 9);
        *q = (code & 128 ? -1 : 1) * (e ? (8 + m) << (e - 1) : m);
    } else if (format == GM_QUANT_nvfp4) {
        *scale = fp8_number(b[i / 16]) / 2;
        *q = fp4_twice(b[2 + i / 2] >> 4 * (i % 2) & 15);
    } else {
        const int bytes = gm_quants[f->scale].bytes;
        *scale = scale_value(f->scale, b);
        *min = scale_value(f->scale, b + bytes);
        *q = 0;
        for (int n = 0; n < f->bits; n++) {
            const int bit = f->bits * i + n;
            *q |= (b[2 * bytes + bit / 8] >> bit % 8 & 1) << n;
        }
    }
}

static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static inline int short_value(const uint8_t *p) { return p[0] | p[1] << 8; }
static inline int eight_level(const uint32_t *grid, int point, int i) {
    return (int)(grid[point] >> (8 * (i % 4) + 4 * (i / 4)) & 15);
}
/* Value i of eight is negative: bit i of seven, the last when an odd number of the others is. */
static inline bool seven_sign(uint32_t bits, int i) {
    return i < 7 ? (bits >> i & 1) != 0 : __builtin_popcount(bits & 127) % 2 != 0;
}

/* Value i of a block of IQ1, IQ2 or IQ3: points of eight values, or of four. */
static inline void point_value(int format, const uint8_t *b, int i, double *scale, int *q) {
    static const int iq2[3] = {8, 25, 43}, iq3[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    const int g = i / 32, of8 = i / 8, of4 = i / 4, j = i / 8 % 4;
    const bool packed_signs = format == GM_QUANT_iq2_xxs || format == GM_QUANT_iq3_xxs;
    const uint8_t *group = b + (format == GM_QUANT_iq2_xxs   ? 2 + 8 * g + 4
                                : format == GM_QUANT_iq3_xxs ? 66 + 4 * g
                                                             : 0);
    const uint32_t last = packed_signs ? (uint32_t)short_value(group) | (uint32_t)short_value(group + 2) << 16 : 0;
    bool negative = false;
    int s = 0, level = 0;
    double d = half_value(b);
    switch (format) {
    case GM_QUANT_iq2_xxs:
        level = iq2[eight_level(grid_iq2_xxs, b[2 + 8 * g + j], i % 8)];
        negative = seven_sign(last >> 7 * j & 127, i % 8), s = (int)(last >> 28), d /= 8;
        break;
    case GM_QUANT_iq2_xs: {
        const int number = short_value(b + 2 + 2 * of8);
        level = iq2[eight_level(grid_iq2_xs, number & 511, i % 8)];
        negative = seven_sign((uint32_t)number >> 9, i % 8), s = b[66 + g] >> 4 * (i / 16 % 2) & 15, d /= 8;
        break;
    }
    case GM_QUANT_iq2_s:
        level = iq2[eight_level(grid_iq2_s, b[2 + of8] | (b[66 + g] >> 2 * j & 3) << 8, i % 8)];
        negative = b[34 + of8] >> i % 8 & 1, s = b[74 + g] >> 4 * (i / 16 % 2) & 15, d /= 8;
        break;
    case GM_QUANT_iq3_xxs:
        level = iq3[grid_iq3_xxs[b[2 + of4]] >> 8 * (i % 4) & 255];
        negative = seven_sign(last >> 7 * j & 127, i % 8), s = (int)(last >> 28), d /= 4;
        break;
    case GM_QUANT_iq3_s:
        level = 2 * (int)(grid_iq3_s[b[2 + of4] | (b[66 + g] >> of4 % 8 & 1) << 8] >> 8 * (i % 4) & 255) + 1;
        negative = b[74 + of8] >> i % 8 & 1, s = b[106 + g / 2] >> 4 * (g % 2) & 15;
        break;
    case GM_QUANT_iq1_s: {
        const int high = short_value(b + 34 + 2 * g), point = b[2 + of8] | (high >> 3 * j & 7) << 8;
        level = 8 * (eight_level(grid_iq1_s, point, i % 8) - 1) + (high >> 15 ? -1 : 1), s = high >> 12 & 7, d /= 8;
        break;
    }
    default: {
        const int high = b[32 + of8 / 2] >> 4 * (of8 % 2) & 15;
        const uint8_t top[2] = {(uint8_t)(b[49] >> 4 | (b[51] & 0xf0)), (uint8_t)(b[53] >> 4 | (b[55] & 0xf0))};
        level = 8 * (eight_level(grid_iq1_s, b[of8] | (high & 7) << 8, i % 8) - 1) + (high & 8 ? -1 : 1);
        s = short_value(b + 48 + i / 64 * 2) >> 3 * (i / 16 % 4) & 7, d = half_value(top) / 8;
    }
    }
    *scale = d * (2 * s + 1);
    *q = negative ? -level : level;
}

/* Value i of a block as scale * q + min with q an integer, straight from the definition of each format. */
static inline void block_value(int format, const uint8_t *b, int i, double *scale, int *q, double *min) {
    const int nib16 = i % 16, high = i / 16 % 2, g = i / 32, l = i % 32;
    *min = 0;
    if (format >= GM_QUANT_mxfp8) {
        group_value(format, b, i, scale, q, min);
        return;
    }
    if (format >= GM_QUANT_iq1_s && format <= GM_QUANT_iq3_s) {
        point_value(format, b, i, scale, q);
        return;
    }
    switch (format) {
    case GM_QUANT_tq1_0: {
        int byte = i < 160 ? b[i % 32] : i < 240 ? b[32 + i % 16] : b[48 + i % 4];
        for (int n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4; n > 0; n--)
            byte = byte * 3 % 256;
        *scale = half_value(b + 52);
        *q = byte * 3 / 256 - 1;
        return;
    }
    case GM_QUANT_tq2_0:
        *scale = half_value(b + 64);
        *q = (b[i / 128 * 32 + l] >> 2 * (g % 4) & 3) - 1;
        return;
    case GM_QUANT_q8_k:
        *scale = scale_value(GM_QUANT_f32, b);
        *q = (int8_t)b[4 + i];
        return;
    case GM_QUANT_q4_0:
        *scale = half_value(b);
        *q = (b[2 + nib16] >> 4 * high & 15) - 8;
        return;
    case GM_QUANT_q4_1:
        *scale = half_value(b);
        *min = half_value(b + 2);
        *q = b[4 + nib16] >> 4 * high & 15;
        return;
    case GM_QUANT_q5_0:
        *scale = half_value(b);
        *q = (b[6 + nib16] >> 4 * high & 15) + 16 * (b[2 + i / 8] >> i % 8 & 1) - 16;
        return;
    case GM_QUANT_q5_1:
        *scale = half_value(b);
        *min = half_value(b + 2);
        *q = (b[8 + nib16] >> 4 * high & 15) + 16 * (b[4 + i / 8] >> i % 8 & 1);
        return;
    case GM_QUANT_q8_0:
        *scale = half_value(b);
        *q = (int8_t)b[2 + i];
        return;
    case GM_QUANT_q4_k:
    case GM_QUANT_q5_k: {
        const uint8_t *s = b + 4, *qs = b + (format == GM_QUANT_q4_k ? 16 : 48);
        const int sc = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        const int mn = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
        *scale = half_value(b) * sc;
        *min = -half_value(b + 2) * mn;
        *q = qs[32 * (g / 2) + l] >> 4 * (g % 2) & 15;
        if (format == GM_QUANT_q5_k)
            *q += 16 * (b[16 + l] >> g & 1);
        return;
    }
    case GM_QUANT_q2_k:
        *scale = half_value(b + 80) * (b[i / 16] & 15);
        *min = -half_value(b + 82) * (b[i / 16] >> 4);
        *q = b[16 + i / 128 * 32 + l] >> 2 * (g % 4) & 3;
        return;
    case GM_QUANT_q3_k: {
        const uint8_t *s = b + 96;
        const int k = i / 16, low = k < 8 ? s[k] & 15 : s[k - 8] >> 4, top = s[8 + k % 4] >> 2 * (k / 4) & 3;
        *scale = half_value(b + 108) * ((low | top << 4) - 32);
        *q = (b[32 + i / 128 * 32 + l] >> 2 * (g % 4) & 3) - (b[l] >> g & 1 ? 0 : 4);
        return;
    }
    case GM_QUANT_iq4_nl:
        *scale = half_value(b);
        *q = iq4[b[2 + nib16] >> 4 * high & 15];
        return;
    case GM_QUANT_iq4_xs: {
        const int low = b[4 + g / 2] >> 4 * (g % 2) & 15, top = (b[2] | b[3] << 8) >> 2 * g & 3;
        *scale = half_value(b) * ((low | top << 4) - 32);
        *q = iq4[b[8 + 16 * g + nib16] >> 4 * high & 15];
        return;
    }
    case GM_QUANT_mxfp4: {
        *scale = ldexp(1, b[0] - 128);
        *q = fp4_twice(b[1 + nib16] >> 4 * high & 15);
        return;
    }
    default: {
        const int n = i / 128, j = i % 128 / 32;
        *scale = half_value(b + 208) * (int8_t)b[192 + 8 * n + 2 * j + l / 16];
        *q = ((b[64 * n + 32 * (j % 2) + l] >> 4 * (j / 2) & 15) | (b[128 + 32 * n + l] >> 2 * j & 3) << 4) - 32;
    }
    }
}

/* ---- activations ---- */
enum { ACT_RANDOM, ACT_EXTREME, ACT_CONSTANT, ACT_COUNT };

static inline void fill_activations(float *x, int64_t n, int fill) {
    for (int64_t i = 0; i < n; i++)
        x[i] = fill == ACT_CONSTANT  ? -3.0f
               : fill == ACT_EXTREME ? (random_bits() & 64 ? 3.0f : -3.0f)
                                     : random_float() * (float)(1 << (i / 32 % 7)) * 0.1f;
}

/* One token's block of packed activations. */
typedef struct {
    int8_t q[32];
    float scale, scaled_sum;
    int32_t neg_sum, neg_low;
} act;

static inline act act_read(const gm_kernels *t, const uint8_t *packed, int64_t tokens, int64_t k, int64_t token,
                           int64_t block) {
    const int64_t first = token / GM_ACT_TILE * GM_ACT_TILE, i = token - first;
    const int64_t width = tokens - first < GM_ACT_TILE ? tokens - first : GM_ACT_TILE;
    const uint8_t *p = packed + act_bytes(first, k) + block * width * GM_ACT_BYTES, *after = p + 32 * width + 4 * i;
    const bool paired = t->act_pairs && (i ^ 1) < width;
    act a;
    for (int j = 0; j < 4; j++)
        memcpy(a.q + 8 * j, paired ? p + 32 * (i - i % 2) + 16 * j + 8 * (i % 2) : p + 32 * i + 8 * j, 8);
    memcpy(&a.scale, after, 4);
    memcpy(&a.scaled_sum, after + 4 * width, 4);
    memcpy(&a.neg_sum, after + 8 * width, 4);
    memcpy(&a.neg_low, after + 12 * width, 4);
    return a;
}

/* Of MLX's affine formats those with groups of 64 and scales of bfloat16 are tested like the others, unless `quick`. */
static inline bool has_few_sizes(int format) {
    const gm_quant_info *f = &gm_quants[format];
    return f->bits && (quick || f->values != 64 || f->scale != GM_QUANT_bf16);
}

static inline bool asked_for(const char *isa, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], isa))
            return true;
    return argc == 1;
}

/* Runs a test with each table that was asked for and that this machine can run. */
static inline int run_tables(int argc, char **argv, void (*test)(const gm_kernels *)) {
    if (argc > 1 && !strcmp(argv[1], "quick"))
        quick = true, argc--, argv++;
    for (const char *const *name = kernels_names(); *name; name++) {
        if (!asked_for(*name, argc, argv))
            continue;
        const gm_kernels *t = kernels_get(*name);
        const int before = passed;
        if (t)
            test(t);
        if (t)
            printf("%s: %d passed\n", *name, passed - before);
        else
            printf("%s: skipped, this CPU cannot run it\n", *name);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
#endif
