/* test_kernels.c - the packed formats of every table of kernels that this machine can run: packing, dequantising, and
 * matrix products with int8 and float32 activations, against a scalar reading of the file's bytes.
 * Every buffer that a kernel touches ends (or begins) at a page that may not be touched.
 * test_kernels [quick] [ISA...]: only these tables; quick, for emulators: fewer sizes of every format. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "grids.h"
#include "cpu/loops.h"

static int passed, failed;
static bool quick;

static void check(bool ok, const char *what, const char *isa, int format, int64_t rows, int64_t k, int64_t tokens) {
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

static void *guarded_new(guarded *g, size_t bytes) {
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

static void guarded_free(guarded *g) { munmap(g->map, g->map_bytes); }

/* ---- numbers ---- */
static uint64_t state = 1;
static uint32_t random_bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static float random_float(void) { return (float)(random_bits() & 0xffff) / 32768.0f - 1.0f; }

static double half_value(const uint8_t *p) {
    const int h = p[0] | p[1] << 8, e = h >> 10 & 31, m = h & 1023;
    const double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static double fp8_number(int code) /* E4M3; the code that is no number as 480 */
{
    const int e = code >> 3 & 15, m = code & 7;
    return (code & 128 ? -1 : 1) * (e ? ldexp(8 + m, e - 10) : ldexp(m, -9));
}
static int fp4_twice(int code) {
    const int e = code >> 1 & 3, m = code & 1; /* sign, exponent, mantissa */
    return (code & 8 ? -1 : 1) * (e ? (2 + m) << (e - 1) : m);
}
static double scale_value(int type, const uint8_t *p) {
    const uint32_t bits = type == GM_QUANT_bf16 ? (uint32_t)(p[0] | p[1] << 8) << 16
                                                : p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
    float f;
    if (type == GM_QUANT_f16)
        return half_value(p);
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}
/* MLX's modes; value i of affine are bits bits * i and on of the fields. */
static void group_value(int format, const uint8_t *b, int i, double *scale, int *q, double *min) {
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

static int short_value(const uint8_t *p) { return p[0] | p[1] << 8; }
static int eight_level(const uint32_t *grid, int point, int i) {
    return (int)(grid[point] >> (8 * (i % 4) + 4 * (i / 4)) & 15);
}
/* Value i of eight is negative: bit i of seven, the last when an odd number of the others is. */
static bool seven_sign(uint32_t bits, int i) {
    return i < 7 ? (bits >> i & 1) != 0 : __builtin_popcount(bits & 127) % 2 != 0;
}

/* Value i of a block of IQ1, IQ2 or IQ3: points of eight values, or of four. */
static void point_value(int format, const uint8_t *b, int i, double *scale, int *q) {
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
static void block_value(int format, const uint8_t *b, int i, double *scale, int *q, double *min) {
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

static int scale_offset(int format) {
    return format == GM_QUANT_q6_k    ? 208
           : format == GM_QUANT_q3_k  ? 108
           : format == GM_QUANT_q2_k  ? 80
           : format == GM_QUANT_tq1_0 ? 52
           : format == GM_QUANT_tq2_0 ? 64
                                      : 0;
}
static bool has_min(int format) {
    return format == GM_QUANT_q4_1 || format == GM_QUANT_q5_1 || format == GM_QUANT_q4_k || format == GM_QUANT_q5_k ||
           format == GM_QUANT_q2_k;
}

enum { FILL_RANDOM, FILL_ONES, FILL_ZEROS, FILL_EMPTY, FILL_TINY, FILL_COUNT };

/* Rows of blocks with random or extreme payloads and scales of a sane size (FILL_TINY: subnormal; FILL_ZEROS: 0). */
static void fill_weights(int format, uint8_t *w, int64_t rows, int64_t k, int fill) {
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

/* ---- golden sums of each format (sums of y and of (i + 1) y for a fixed block) ---- */
static void test_golden(const gm_kernels *t) {
    static const struct {
        int format;
        double sum, weighted;
    } golden[] = {
        {GM_QUANT_q4_0, -2.62756348, -64.8132324},   {GM_QUANT_q4_1, 33.854126, 551.148315},
        {GM_QUANT_q5_0, 1.87683105, 14.0136719},     {GM_QUANT_q5_1, 66.3858643, 1041.37659},
        {GM_QUANT_q8_0, -22.0214844, -1010.98633},   {GM_QUANT_q4_k, 6495.56738, 911932.317},
        {GM_QUANT_q5_k, 14225.1084, 1969790.37},     {GM_QUANT_q6_k, 577.062988, 98148.2544},
        {GM_QUANT_q2_k, 194.769897, 21764.3992},     {GM_QUANT_q3_k, 119.866943, 22164.7491},
        {GM_QUANT_iq4_nl, -32.1563721, -865.719604}, {GM_QUANT_iq4_xs, -1376.96838, -261647.015},
        {GM_QUANT_mxfp4, 0.1953125, 4.984375},
    };
    for (size_t n = 0; n < sizeof golden / sizeof *golden; n++) {
        const int format = golden[n].format;
        uint8_t block[256];
        float y[256];
        for (int i = 0; i < 256; i++)
            block[i] = (uint8_t)(i * 37 + 11);
        if (format == GM_QUANT_mxfp4)
            block[0] = 121;
        else
            memcpy(block + scale_offset(format), "\x01\x30", 2);
        if (has_min(format))
            memcpy(block + scale_offset(format) + 2, "\x66\x2e", 2);
        const int64_t k = gm_quants[format].values;
        t->dequantize(&(gm_dequantize_args){.out = y, .in = block, .format = format, .k = k}, 0, 1);
        double sum = 0, weighted = 0;
        for (int i = 0; i < k; i++)
            sum += y[i], weighted += (i + 1) * (double)y[i];
        check(fabs(sum - golden[n].sum) <= 1e-5 * fabs(golden[n].sum) &&
                  fabs(weighted - golden[n].weighted) <= 1e-5 * fabs(golden[n].weighted),
              "golden sums", t->isa, format, 1, k, 0);
    }
}

/* ---- packing ---- */
static void test_pack(const gm_kernels *t, int format, int64_t rows, int64_t k) {
    guarded gw, gp, gu, ge;
    const size_t row_bytes = (size_t)(k / gm_quants[format].values * gm_quants[format].bytes);
    const int64_t panels = kernels_panels(t, format, rows);
    const size_t packed_bytes = (size_t)kernels_packed_bytes(t, format, rows, k);
    uint8_t *w = guarded_new(&gw, (size_t)rows * row_bytes), *packed = guarded_new(&gp, packed_bytes);
    uint8_t *back = guarded_new(&gu, (size_t)rows * row_bytes);
    float *out = guarded_new(&ge, (size_t)k * 4), *want = malloc((size_t)(rows * k) * 4);
    uint8_t *whole = malloc(packed_bytes);
    int32_t map[64], token;
    for (int64_t r = 0; r < rows; r++)
        map[r] = (int32_t)((r * 5 + 3) % rows);
    if (rows % 5 == 0)
        for (int64_t r = 0; r < rows; r++)
            map[r] = (int32_t)(rows - 1 - r);

    if (format <= GM_QUANT_bf16) /* no infinities or NaN: they compare unequal below */
        for (size_t i = 0; i < (size_t)rows * row_bytes; i++)
            w[i] = (uint8_t)(random_bits() >> 7 & 0xbb);
    else
        fill_weights(format, w, rows, k, FILL_RANDOM);
    t->dequantize(&(gm_dequantize_args){.out = want, .in = w, .format = format, .k = k}, 0, rows);
    for (int mapped = 0; mapped < 2; mapped++) {
        const int32_t *row_map = mapped ? map : NULL;
        const gm_pack_args pack = {.out = packed, .in = w, .row_map = row_map, .format = format, .rows = rows, .k = k};
        const gm_unpack_args unpack = {
            .out = back, .in = packed, .row_map = row_map, .format = format, .rows = rows, .k = k};
        memset(packed, 0x5a, packed_bytes);
        memset(back, 0xa5, (size_t)rows * row_bytes);
        t->pack(&pack, 0, panels);
        memcpy(whole, packed, packed_bytes);
        for (int64_t p = panels; p-- > 0;)
            t->pack(&pack, p, p + 1);
        check(!memcmp(whole, packed, packed_bytes), "pack in any ranges", t->isa, format, rows, k, 0);
        t->unpack(&unpack, 0, panels);
        check(!memcmp(w, back, (size_t)rows * row_bytes), "unpack", t->isa, format, rows, k, 0);
        for (int64_t r = 0; r < rows; r++) {
            const float scale = r % 2 ? 1.0f : 2.5f;
            token = (int32_t)r;
            t->embed(&(gm_embed_args){.out = out,
                                      .weight = packed,
                                      .tokens = &token,
                                      .format = format,
                                      .rows = rows,
                                      .k = k,
                                      .scale = scale},
                     0, 1);
            const float *row = want + (mapped ? map[r] : r) * k;
            bool same = true;
            for (int64_t i = 0; i < k; i++)
                same &= out[i] == row[i] * scale;
            check(same, "embed", t->isa, format, rows, k, r);
        }
    }
    guarded_free(&gw), guarded_free(&gp), guarded_free(&gu), guarded_free(&ge);
    free(want), free(whole);
}

/* Arrays as MLX's files have them are packed to the bytes of their blocks. */
static void test_gather(const gm_kernels *t, int format, int64_t rows, int64_t k) {
    const gm_quant_info *f = &gm_quants[format];
    const int bits = f->bits ? f->bits : format == GM_QUANT_mxfp8 ? 8 : 4;
    const int64_t all = rows * (k / f->values), fields = f->values * bits / 8;
    const int64_t scale = (f->bytes - fields) / (f->bits ? 2 : 1);
    const int64_t packed_bytes = kernels_packed_bytes(t, format, rows, k);
    guarded gi, gs, gb;
    uint8_t *in = guarded_new(&gi, (size_t)(all * fields)), *scales = guarded_new(&gs, (size_t)(all * scale));
    uint8_t *biases = guarded_new(&gb, (size_t)(all * scale)), *file = malloc((size_t)(all * f->bytes));
    uint8_t *want = malloc((size_t)packed_bytes), *got = malloc((size_t)packed_bytes);
    int32_t map[64];
    for (int64_t r = 0; r < rows; r++)
        map[r] = (int32_t)(rows - 1 - r);
    fill_weights(format, file, rows, k, FILL_RANDOM);
    for (int64_t b = 0; b < all; b++) {
        const uint8_t *block = file + b * f->bytes, *qs = block + f->bytes - fields;
        memcpy(scales + b * scale, block, (size_t)scale);
        if (f->bits)
            memcpy(biases + b * scale, block + scale, (size_t)scale);
        for (int64_t i = 0; i < fields; i++)
            in[b * fields + i] = format != GM_QUANT_mxfp4 ? qs[i]
                                                          : (uint8_t)((qs[2 * i % 16] >> i / 8 * 4 & 15) |
                                                                      (qs[(2 * i + 1) % 16] >> i / 8 * 4 & 15) << 4);
    }
    for (int mapped = 0; mapped < 2; mapped++) {
        gm_pack_args a = {
            .out = want, .in = file, .row_map = mapped ? map : NULL, .format = format, .rows = rows, .k = k};
        t->pack(&a, 0, kernels_panels(t, format, rows));
        a.out = got, a.in = in, a.scales = scales, a.biases = f->bits ? biases : NULL;
        memset(got, 0x5a, (size_t)packed_bytes);
        t->pack(&a, 0, kernels_panels(t, format, rows));
        check(!memcmp(want, got, (size_t)packed_bytes), "pack of arrays", t->isa, format, rows, k, 0);
    }
    guarded_free(&gi), guarded_free(&gs), guarded_free(&gb);
    free(file), free(want), free(got);
}

/* ---- activations ---- */
enum { ACT_RANDOM, ACT_EXTREME, ACT_CONSTANT, ACT_COUNT };

static void fill_activations(float *x, int64_t n, int fill) {
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

static act act_read(const gm_kernels *t, const uint8_t *packed, int64_t tokens, int64_t k, int64_t token,
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

static void test_activations(const gm_kernels *t, int64_t tokens, int64_t k) {
    guarded gx, go;
    const int64_t stride = k + 5, tiles = (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE;
    float *x = guarded_new(&gx, (size_t)((tokens - 1) * stride + k) * 4);
    uint8_t *out = guarded_new(&go, act_bytes(tokens, k));
    fill_activations(x, (tokens - 1) * stride + k, ACT_RANDOM);
    memset(x, 0, 32 * 4); /* a block of zeros, then others that have no ordinary scale */
    if (k > 160) {
        for (int i = 32; i < 64; i++)
            x[i] = (float)i * 1e-42f;
        x[70] = INFINITY, x[100] = NAN, x[130] = -INFINITY;
    }
    for (int64_t i = tiles; i-- > 0;)
        t->quantize_act(&(gm_quantize_act_args){.out = out, .x = x, .x_stride = stride, .tokens = tokens, .k = k}, i,
                        i + 1);
    bool good = true;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t b = 0; b < k / 32; b++) {
            const act a = act_read(t, out, tokens, k, n, b);
            const float *v = x + n * stride + 32 * b;
            float amax = 0;
            bool finite = true;
            int32_t sum = 0, low = 0;
            for (int i = 0; i < 32; i++)
                finite &= isfinite(v[i]) != 0, amax = fmaxf(amax, fabsf(v[i]));
            if (amax < 0x1p-118f)
                amax = 0;
            const float factor = amax > 0 && finite ? 127 / amax : 0;
            for (int i = 0; i < 32; i++) {
                const int q = finite ? (int)rintf(v[i] * factor) : 0;
                good &= a.q[i] == q;
                sum += q;
                if (i < 16)
                    low += q;
            }
            if (finite)
                good &= a.scale == amax / 127 && a.scaled_sum == a.scale * (float)sum;
            else
                good &= isnan(a.scale) && isnan(a.scaled_sum);
            good &= a.neg_sum == -sum && a.neg_low == -low;
        }
    check(good, "quantize_act", t->isa, GM_QUANT_f32, 0, k, tokens);
    guarded_free(&gx), guarded_free(&go);
}

/* ---- products ---- */
typedef struct {
    const gm_kernels *t;
    int format;
    int64_t rows, k, tokens;
    guarded gw, gx, ga, go;
    uint8_t *file, *packed, *act;
    float *x, *out, *alone, *bias, *residual;
    int64_t out_stride;
} product;

static product product_new(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, int fill,
                           int act_fill) {
    product p = {.t = t, .format = format, .rows = rows, .k = k, .tokens = tokens, .out_stride = rows + 3};
    p.file = malloc((size_t)(rows * (k / gm_quants[format].values) * gm_quants[format].bytes));
    fill_weights(format, p.file, rows, k, fill);
    p.packed = guarded_new(&p.gw, (size_t)kernels_packed_bytes(t, format, rows, k));
    t->pack(&(gm_pack_args){.out = p.packed, .in = p.file, .format = format, .rows = rows, .k = k}, 0,
            kernels_panels(t, format, rows));
    p.x = guarded_new(&p.gx, (size_t)(tokens * k) * 4);
    fill_activations(p.x, tokens * k, act_fill);
    if (act_fill == ACT_RANDOM)
        memset(p.x, 0, 32 * 4);
    p.act = guarded_new(&p.ga, act_bytes(tokens, k));
    t->quantize_act(&(gm_quantize_act_args){.out = p.act, .x = p.x, .x_stride = k, .tokens = tokens, .k = k}, 0,
                    (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE);
    p.out = guarded_new(&p.go, (size_t)((tokens - 1) * p.out_stride + rows) * 4);
    p.alone = malloc((size_t)(tokens * p.out_stride) * 4);
    p.bias = malloc((size_t)rows * 4);
    p.residual = malloc((size_t)(tokens * p.out_stride) * 4);
    for (int64_t i = 0; i < rows; i++)
        p.bias[i] = random_float();
    for (int64_t i = 0; i < tokens * p.out_stride; i++)
        p.residual[i] = random_float();
    return p;
}

static void product_free(product *p) {
    guarded_free(&p->gw), guarded_free(&p->gx), guarded_free(&p->ga), guarded_free(&p->go);
    free(p->file), free(p->alone), free(p->bias), free(p->residual);
}

static const float untouched = -12345.5f;

static void fill_out(product *p) {
    for (int64_t i = 0; i < (p->tokens - 1) * p->out_stride + p->rows; i++)
        p->out[i] = untouched;
}

/* What lies between the rows of out was not written, and the rows hold the bits of `alone`. */
static bool same_bits(const product *p) {
    bool same = true;
    for (int64_t n = 0; n < p->tokens; n++) {
        same &= !memcmp(p->out + n * p->out_stride, p->alone + n * p->out_stride, (size_t)p->rows * 4);
        for (int64_t i = p->rows; n < p->tokens - 1 && i < p->out_stride; i++)
            same &= p->out[n * p->out_stride + i] == untouched;
    }
    return same;
}

static gm_matmul_args product_args(const product *p, bool int8) {
    return (gm_matmul_args){.out = p->out,
                            .out_stride = p->out_stride,
                            .x = int8 ? (const void *)p->act : p->x,
                            .x_stride = p->k,
                            .weight = p->packed,
                            .format = p->format,
                            .rows = p->rows,
                            .k = p->k,
                            .tokens = p->tokens};
}

/* Tokens one by one give the bits of all together; so do single panels, last to first; bias and residual come after. */
static void check_bits(product *p, bool int8) {
    const gm_kernel kernel = int8 ? p->t->matmul_int8 : p->t->matmul_float;
    const char *what = int8 ? "matmul_int8: alone = together" : "matmul_float: alone = together";
    const int64_t panels = kernels_panels(p->t, p->format, p->rows);
    gm_matmul_args a = product_args(p, int8);
    uint8_t *one = malloc(act_bytes(1, p->k));
    for (int64_t n = 0; n < p->tokens; n++) {
        gm_matmul_args single = a;
        p->t->quantize_act(
            &(gm_quantize_act_args){.out = one, .x = p->x + n * p->k, .x_stride = p->k, .tokens = 1, .k = p->k}, 0, 1);
        single.tokens = 1;
        single.x = int8 ? (const void *)one : p->x + n * p->k;
        single.out = p->alone + n * p->out_stride;
        kernel(&single, 0, panels);
    }
    check(same_bits(p), what, p->t->isa, p->format, p->rows, p->k, p->tokens);
    free(one);

    fill_out(p);
    for (int64_t i = panels; i-- > 0;)
        kernel(&a, i, i + 1);
    check(same_bits(p), "any range of panels", p->t->isa, p->format, p->rows, p->k, p->tokens);

    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t r = 0; r < p->rows; r++) {
            const int64_t at = n * p->out_stride + r;
            const float with_bias = p->alone[at] + p->bias[r];
            p->alone[at] = with_bias + p->residual[at];
            p->out[at] = p->residual[at];
        }
    a.bias = p->bias;
    a.residual = p->out;
    kernel(&a, 0, panels);
    check(same_bits(p), "bias and residual", p->t->isa, p->format, p->rows, p->k, p->tokens);
}

/* Both products against sums in double; the int8 one is exact within a block, so its tolerance counts blocks. */
static void check_values(product *p, bool int8) {
    const gm_quant_info *f = &gm_quants[p->format];
    const int64_t panels = kernels_panels(p->t, p->format, p->rows), per_row = p->k / f->values;
    const gm_matmul_args a = product_args(p, int8);
    double *scale = malloc((size_t)p->k * 8), *min = malloc((size_t)p->k * 8);
    int *q = malloc((size_t)p->k * sizeof *q);
    bool good = true;
    fill_out(p);
    (int8 ? p->t->matmul_int8 : p->t->matmul_float)(&a, 0, panels);
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t i = 0; i < p->k; i++)
            block_value(p->format, p->file + (r * per_row + i / f->values) * f->bytes, (int)(i % f->values), scale + i,
                        q + i, min + i);
        for (int64_t n = 0; n < p->tokens; n++) {
            double want = 0, size = 0;
            for (int64_t b = 0; b < p->k / 16; b++) {
                const act v = act_read(p->t, p->act, p->tokens, p->k, n, b / 2);
                const int8_t *values = v.q + b % 2 * 16;
                int64_t product_sum = 0, sum = 0;
                if (int8) {
                    for (int i = 0; i < 16; i++)
                        product_sum += (int64_t)q[16 * b + i] * values[i], sum += values[i];
                    const double main = scale[16 * b] * v.scale * (double)product_sum;
                    const double rest = min[16 * b] * v.scale * (double)sum;
                    want += main + rest;
                    size += fabs(main) + fabs(rest);
                } else {
                    for (int64_t i = 16 * b; i < 16 * b + 16; i++) {
                        const double y = (scale[i] * q[i] + min[i]) * p->x[n * p->k + i];
                        want += y;
                        size += fabs(y);
                    }
                }
            }
            const double blocks = int8 ? (double)(p->k / 32) : (double)(p->k < 64 ? p->k : 64);
            good &= fabs(want - p->out[n * p->out_stride + r]) <= (2 + sqrt(blocks)) * 0x1p-23 * size + 1e-37;
        }
    }
    check(good, int8 ? "matmul_int8 values" : "matmul_float values", p->t->isa, p->format, p->rows, p->k, p->tokens);
    free(scale), free(min), free(q);
}

static void test_product(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, int fill,
                         int act_fill) {
    at_end = !at_end;
    product p = product_new(t, format, rows, k, tokens, fill, act_fill);
    for (int int8 = 0; int8 < 1 + quant_takes_int8(format); int8++) {
        check_values(&p, int8);
        check_bits(&p, int8);
    }
    product_free(&p);
}

/* A gated linear unit over two products has the bits of the products, the unit and the form one after another. */
static void test_glu(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, bool int8) {
    product g = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    product u = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    const int64_t panels = kernels_panels(t, format, rows), unit = 32 / kernels_panel(t, format);
    const size_t floats = (size_t)(tokens * rows) * 4, most = floats + act_bytes(tokens, (rows + 31) / 32 * 32);
    gm_matmul_args gate = product_args(&g, int8), up = gate;
    up.weight = u.packed;
    up.out = u.out;
    (int8 ? t->matmul_int8 : t->matmul_float)(&gate, 0, panels);
    (int8 ? t->matmul_int8 : t->matmul_float)(&up, 0, panels);
    guarded memory;
    uint8_t *want = malloc(most), *got;
    float *unit_rows = malloc(floats);
    for (int kind = GM_GLU_SILU; kind <= GM_GLU_CLAMPED; kind++)
        for (int form = GM_FORM_F32; form <= (rows % 32 ? GM_FORM_BF16 : GM_FORM_INT8); form++) {
            gm_glu_args glu = {.out = unit_rows,
                               .gate = g.out,
                               .up = u.out,
                               .dim = rows,
                               .gate_stride = g.out_stride,
                               .up_stride = u.out_stride,
                               .kind = (gm_glu_kind)kind,
                               .alpha = 1.702f,
                               .limit = 7};
            const size_t bytes = form == GM_FORM_INT8   ? act_bytes(tokens, rows)
                                 : form == GM_FORM_BF16 ? floats / 2
                                                        : floats;
            const int64_t one = 1, size = tokens * rows;
            t->glu(&glu, 0, tokens);
            memset(want, 0, most);
            if (form == GM_FORM_INT8)
                t->quantize_act(
                    &(gm_quantize_act_args){.out = want, .x = unit_rows, .x_stride = rows, .tokens = tokens, .k = rows},
                    0, (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE);
            else
                t->copy(&(gm_copy_args){.out = want,
                                        .in = unit_rows,
                                        .in_type = GM_T_F32,
                                        .ndim = 1,
                                        .shape = &size,
                                        .out_type = form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32,
                                        .out_strides = &one,
                                        .in_strides = &one},
                        0, size);
            got = guarded_new(&memory, bytes);
            const gm_matmul_glu_args a = {.out = got,
                                          .form = (gm_row_form)form,
                                          .int8 = int8,
                                          .gate = gate,
                                          .up = up,
                                          .glu = glu,
                                          .out_rows = rows};
            t->matmul_glu(&a, 0, panels);
            check(!memcmp(got, want, bytes), "matmul_glu", t->isa, format, rows, k, tokens);
            memset(got, 0, bytes);
            for (int64_t i = (panels - 1) / unit * unit; i >= 0; i -= unit)
                t->matmul_glu(&a, i, i + unit < panels ? i + unit : panels);
            check(!memcmp(got, want, bytes), "matmul_glu in parts", t->isa, format, rows, k, tokens);
            guarded_free(&memory);
        }
    free(want), free(unit_rows);
    product_free(&g), product_free(&u);
}

/* A NaN or infinity among the activations stays visible in that token's row and nowhere else. */
static void test_not_finite(const gm_kernels *t, int format) {
    const int64_t rows = 17, k = 256, tokens = 3;
    product p = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    const gm_matmul_args a = product_args(&p, true);
    p.x[k + 5] = NAN;
    p.x[k + 100] = INFINITY;
    t->quantize_act(&(gm_quantize_act_args){.out = p.act, .x = p.x, .x_stride = k, .tokens = tokens, .k = k}, 0, 1);
    t->matmul_int8(&a, 0, kernels_panels(t, format, rows));
    bool good = true;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t r = 0; r < rows; r++)
            good &= !isnan(p.out[n * p.out_stride + r]) == (n != 1);
    check(good, "NaN stays visible", t->isa, format, rows, k, tokens);
    product_free(&p);
}

/* Groups of other sizes and scales of other types differ little. */
static void test_affine(const gm_kernels *t, int format) {
    static const int64_t row_counts[] = {1, 16, 17}, ks[] = {128, 768, 4352}, token_counts[] = {1, 3, 17};
    for (int r = 0; r < 3; r++) {
        at_end = !at_end;
        test_pack(t, format, row_counts[r], ks[r]);
        test_gather(t, format, row_counts[r], 256);
        test_product(t, format, row_counts[r], ks[(r + 1) % 3], token_counts[r], FILL_RANDOM, ACT_RANDOM);
    }
    test_product(t, format, 17, 256, 5, FILL_ONES, ACT_EXTREME);
    test_product(t, format, 17, 256, 5, FILL_TINY, ACT_CONSTANT);
    test_glu(t, format, 96, 256, 17, true);
    test_not_finite(t, format);
}

static void test_table(const gm_kernels *t) {
    static const int64_t row_counts[] = {1, 15, 16, 17, 33}, token_counts[] = {1, 2, 15, 16, 17, 33};
    static const int64_t small_k[] = {32, 288, 512, 4352}, large_k[] = {256, 768, 512, 4352};
    test_golden(t);
    for (int tokens = 1; tokens <= 33; tokens += 4)
        test_activations(t, tokens, tokens % 8 == 1 ? 32 : 288);
    for (int format = 0; format < GM_QUANT_COUNT; format++) {
        const bool dense = format <= GM_QUANT_bf16;
        const int64_t *ks = gm_quants[format].values > 32 ? large_k : small_k;
        const bool common = gm_quants[format].values == 64 && gm_quants[format].scale == GM_QUANT_bf16;
        if (gm_quants[format].bits && (quick || !common)) {
            test_affine(t, format);
            continue;
        }
        if (format >= GM_QUANT_mxfp4)
            test_gather(t, format, 17, ks[1]);
        for (int r = 0; r < 5; r += quick ? 3 : 1) {
            at_end = !at_end;
            test_pack(t, format, row_counts[r], dense ? 37 : ks[1]);
            if (dense)
                continue;
            for (int n = 0; n < 6; n += quick ? 4 : 1)
                test_product(t, format, row_counts[r], ks[(r + n) % 4], token_counts[n], FILL_RANDOM, ACT_RANDOM);
        }
        for (int n = 0; n < 6 && !dense; n += quick ? 4 : 1)
            for (int int8 = 0; int8 < 1 + quant_takes_int8(format); int8++) {
                test_glu(t, format, 33, ks[1], token_counts[n], int8);
                test_glu(t, format, 96, ks[0], token_counts[n], int8);
            }
        if (dense)
            continue;
        for (int fill = FILL_RANDOM; fill < FILL_COUNT; fill++)
            for (int act_fill = ACT_EXTREME; act_fill < ACT_COUNT; act_fill++)
                test_product(t, format, 17, ks[2], 17, fill, act_fill);
        for (int tokens = 3; tokens < 15; tokens++)
            test_product(t, format, 16, ks[0], tokens, FILL_RANDOM, ACT_RANDOM);
        if (quant_takes_int8(format))
            test_not_finite(t, format);
    }
}

static void test_choice(void) {
    bool good = true;
    for (const char *const *name = kernels_names(); *name; name++) {
        const char *why = NULL;
        setenv("GOMLX_ISA", *name, 1);
        const gm_kernels *t = kernels_select(&why);
        good &= t == kernels_get(*name) && (t ? !strcmp(t->isa, *name) : why && strstr(why, *name));
        good &= strstr(kernels_reason(), *name) != NULL;
    }
    const char *why = NULL;
    setenv("GOMLX_ISA", "sse9", 1);
    good &= !kernels_select(&why) && why && strstr(why, "sse9") && strstr(why, "generic");
    unsetenv("GOMLX_ISA");
    for (const char *const *name = kernels_names(); *name; name++) /* the first that can run is the choice */
        if (kernels_get(*name)) {
            good &= kernels_select(NULL) == kernels_get(*name);
            break;
        }
    good &= kernels_get("generic") && !kernels_get("") && !kernels_get("AVX2");
    check(good, "choice of a table", "all", GM_QUANT_f32, 0, 0, 0);

    good = quant_from_gguf(12) == GM_QUANT_q4_k && quant_from_gguf(9) == -1 && quant_from_gguf(-1) == -1;
    good &= !strcmp(quant_gguf_name(16), "IQ2_XXS") && !quant_gguf_name(-1) && !quant_gguf_name(INT64_MAX);
    for (int i = 0; i < GM_QUANT_COUNT; i++)
        good &= gm_quants[i].gguf_type < 0 || !strcmp(quant_gguf_name(gm_quants[i].gguf_type), gm_quants[i].name);
    good &= quant_affine(4, 64, GM_QUANT_bf16) == GM_QUANT_affine4_64_bf16 && quant_affine(7, 64, GM_QUANT_f16) == -1;
    good &= quant_affine(0, 1, 0) == -1 && quant_affine(8, 16, GM_QUANT_f32) == -1;
    check(good, "names of types", "all", GM_QUANT_f32, 0, 0, 0);
}

static bool asked_for(const char *isa, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], isa))
            return true;
    return argc == 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "quick"))
        quick = true, argc--, argv++;
    test_choice();
    for (const char *const *name = kernels_names(); *name; name++) {
        if (!asked_for(*name, argc, argv))
            continue;
        const gm_kernels *t = kernels_get(*name);
        const int before = passed;
        if (t)
            test_table(t);
        if (t)
            printf("%s: %d passed\n", *name, passed - before);
        else
            printf("%s: skipped, this CPU cannot run it\n", *name);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
