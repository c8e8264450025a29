/* formats.cuh - weights of every format of quants.def as float32, the same values as the processor's (cpu/dequant.inc),
 * which says why each is what it is.
 *  (1) A packed matrix is rows as the file has them, one behind the other, or has the same bytes in tiles: a block is
 *      at any address, and is read by bytes.
 *  (2) value_of(block, i) is value i of a block. Eight that are side by side share their scale, and i is the number of
 *      an eight and one of its own, so that the compiler sees what they share. */
#ifndef GOMLX_CUDA_FORMATS_CUH
#define GOMLX_CUDA_FORMATS_CUH
#include "blocks.h"
#include "grids.def"
#include "tiles.cuh"

#define SAME(v) v
DEVICE_TABLE uint16_t points_iq2_xxs[256] = {IQ2_XXS_GRID(SAME)}, points_iq2_xs[512] = {IQ2_XS_GRID(SAME)},
                      points_iq2_s[1024] = {IQ2_S_GRID(SAME)}, points_iq1_s[2048] = {IQ1_S_GRID(SAME)},
                      points_iq3_xxs[256] = {IQ3_XXS_GRID(SAME)}, points_iq3_s[512] = {IQ3_S_GRID(SAME)};
DEVICE_TABLE int8_t iq4_levels[16] = {IQ4_LEVELS(SAME)}, fp4_levels[16] = {FP4_LEVELS(SAME)},
                    iq2_levels[] = {IQ2_S_LEVELS(SAME)}, iq3_xxs_levels[] = {IQ3_XXS_LEVELS(SAME)},
                    iq3_s_levels[] = {IQ3_S_LEVELS(SAME)};
#undef SAME

/* p: a pointer, or tile_bytes. */
template <class P> DEVICE uint32_t two_bytes(const P &p) { return p[0] | (uint32_t)p[1] << 8; }
template <class P> DEVICE uint32_t four_bytes(const P &p) { return two_bytes(p) | two_bytes(p + 2) << 16; }
template <class P> DEVICE float half_at(const P &p) { return float_of_half((uint16_t)two_bytes(p)); }
/* Half of a scale of one byte, 2^(e - 128), and an E4M3 whose 0x7f is 480. */
DEVICE float half_power(uint32_t e) { return float_of_bits(e < 2 ? 0x200000u << e : (e - 1) << 23); }
DEVICE float e4m3_value(uint32_t code) {
    return float_of_half((uint16_t)((code & 0x7f) << 7 | (code & 0x80) << 8)) * 256;
}
template <class P> DEVICE int nibble_of(const P &qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
DEVICE int fifth_of(const uint8_t *qh, int i) { return (qh[i / 8] >> i % 8 & 1) << 4; }
/* Value i of 256 that are two bits each. */
DEVICE int pair_of(const uint8_t *qs, int i) { return qs[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3; }

/* Blocks in tiles. */
template <class P> struct tile_q4_0 {
    P d, qs;
    METHOD explicit tile_q4_0(const P &p) : d(p), qs(p + 2) {}
};
template <class P> struct tile_q8_0 {
    P d, qs;
    METHOD explicit tile_q8_0(const P &p) : d(p), qs(p + 2) {}
};
template <class P> struct tile_mxfp4 {
    uint8_t e;
    P qs;
    METHOD explicit tile_mxfp4(const P &p) : e(p[0]), qs(p + 1) {}
};
template <class P> struct tile_q4_k {
    P d, dmin, scales, qs;
    METHOD explicit tile_q4_k(const P &p) : d(p), dmin(p + 2), scales(p + 4), qs(p + 16) {}
};
template <class P> struct tile_q6_k {
    P ql, qh, scales, d;
    METHOD explicit tile_q6_k(const P &p) : ql(p), qh(p + 128), scales(p + 192), d(p + 208) {}
};

/* ---- dense ---- */
DEVICE float value_of(const block_f32 &b, int) { return float_of_bits(four_bytes(b.bits)); }
DEVICE float value_of(const block_f16 &b, int) { return half_at(b.bits); }
DEVICE float value_of(const block_bf16 &b, int) { return float_of_bits(two_bytes(b.bits) << 16); }

/* ---- blocks of 32 ---- */
template <class B> DEVICE float q4_0_value(const B &b, int i) { return half_at(b.d) * (float)(nibble_of(b.qs, i) - 8); }
DEVICE float value_of(const block_q4_0 &b, int i) { return q4_0_value(b, i); }
template <class P> DEVICE float value_of(const tile_q4_0<P> &b, int i) { return q4_0_value(b, i); }
DEVICE float value_of(const block_q4_1 &b, int i) { return half_at(b.d) * (float)nibble_of(b.qs, i) + half_at(b.m); }
DEVICE float value_of(const block_q5_0 &b, int i) {
    return half_at(b.d) * (float)((nibble_of(b.qs, i) | fifth_of(b.qh, i)) - 16);
}
DEVICE float value_of(const block_q5_1 &b, int i) {
    return half_at(b.d) * (float)(nibble_of(b.qs, i) | fifth_of(b.qh, i)) + half_at(b.m);
}
template <class B> DEVICE float q8_0_value(const B &b, int i) { return half_at(b.d) * (float)(int8_t)b.qs[i]; }
DEVICE float value_of(const block_q8_0 &b, int i) { return q8_0_value(b, i); }
template <class P> DEVICE float value_of(const tile_q8_0<P> &b, int i) { return q8_0_value(b, i); }
DEVICE float value_of(const block_iq4_nl &b, int i) { return half_at(b.d) * (float)iq4_levels[nibble_of(b.qs, i)]; }
template <class B> DEVICE float mxfp4_value(const B &b, int i) {
    return half_power(b.e) * (float)fp4_levels[nibble_of(b.qs, i)];
}
DEVICE float value_of(const block_mxfp4 &b, int i) { return mxfp4_value(b, i); }
template <class P> DEVICE float value_of(const tile_mxfp4<P> &b, int i) { return mxfp4_value(b, i); }
DEVICE float value_of(const block_mxfp8 &b, int i) {
    const float half = half_power(b.e);
    return (half + half) * e4m3_value(b.qs[i]);
}
DEVICE float value_of(const block_nvfp4 &b, int i) {
    return e4m3_value(b.scale[i / 16]) * 0.5f * (float)fp4_levels[b.qs[i / 2] >> 4 * (i % 2) & 15];
}

/* ---- blocks of 256 ---- */
template <class P> DEVICE int six_bit_scale(const P &s, int g) {
    return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
}
template <class P> DEVICE int six_bit_minimum(const P &s, int g) {
    return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}
template <class BLOCK> DEVICE float value_of_two_scales(const BLOCK &b, int g, int q) {
    return half_at(b.d) * (float)six_bit_scale(b.scales, g) * (float)q -
           half_at(b.dmin) * (float)six_bit_minimum(b.scales, g);
}
template <class B> DEVICE float q4_k_value(const B &b, int i) {
    const int g = i / 32;
    return value_of_two_scales(b, g, b.qs[g / 2 * 32 + i % 32] >> 4 * (g % 2) & 15);
}
DEVICE float value_of(const block_q4_k &b, int i) { return q4_k_value(b, i); }
template <class P> DEVICE float value_of(const tile_q4_k<P> &b, int i) { return q4_k_value(b, i); }
DEVICE float value_of(const block_q5_k &b, int i) {
    const int g = i / 32, l = i % 32;
    return value_of_two_scales(b, g, (b.qs[g / 2 * 32 + l] >> 4 * (g % 2) & 15) | (b.qh[l] >> g & 1) << 4);
}
template <class B> DEVICE float q6_k_value(const B &b, int i) {
    const int n = i / 128, j = i / 32 % 4, l = i % 32;
    const int low = b.ql[64 * n + 32 * (j % 2) + l] >> 4 * (j / 2) & 15, high = b.qh[32 * n + l] >> 2 * j & 3;
    return half_at(b.d) * (float)(int8_t)b.scales[i / 16] * (float)((low | high << 4) - 32);
}
DEVICE float value_of(const block_q6_k &b, int i) { return q6_k_value(b, i); }
template <class P> DEVICE float value_of(const tile_q6_k<P> &b, int i) { return q6_k_value(b, i); }
DEVICE float value_of(const block_q2_k &b, int i) {
    const int s = b.scales[i / 16];
    return half_at(b.d) * (float)(s & 15) * (float)pair_of(b.qs, i) - half_at(b.dmin) * (float)(s >> 4);
}
DEVICE float value_of(const block_q3_k &b, int i) {
    const int k = i / 16, low = b.scales[k % 8] >> 4 * (k / 8) & 15;
    const int high = b.scales[8 + k % 4] >> 2 * (k / 4) & 3, third = b.hmask[i % 32] >> i / 32 & 1;
    return half_at(b.d) * (float)((low | high << 4) - 32) * (float)((pair_of(b.qs, i) | third << 2) - 4);
}
DEVICE float value_of(const block_iq4_xs &b, int i) {
    const int g = i / 32, low = b.low[g / 2] >> 4 * (g % 2) & 15, high = b.high[g / 4] >> 2 * (g % 4) & 3;
    return half_at(b.d) * (float)((low | high << 4) - 32) * (float)iq4_levels[nibble_of(b.qs + 16 * g, i % 32)];
}
DEVICE float value_of(const block_tq2_0 &b, int i) { return half_at(b.d) * (float)(pair_of(b.qs, i) - 1); }
DEVICE float value_of(const block_q8_k &b, int i) { return float_of_bits(four_bytes(b.d)) * (float)(int8_t)b.qs[i]; }
DEVICE float value_of(const block_tq1_0 &b, int i) {
    const int last = i - 160, n = i < 160 ? i / 32 : i < 240 ? last / 16 : (i - 240) / 4;
    const uint32_t byte = i < 160 ? b.qs[i % 32] : i < 240 ? b.qs[32 + last % 16] : b.qh[(i - 240) % 4];
    const uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return half_at(b.d) * (float)((int)((byte * power & 255) * 3 >> 8) - 1);
}

/* ---- points of grids ---- */
DEVICE float odd_number(uint32_t s) { return (float)(2 * (int)s + 1); }
/* Eight signs of which seven are there: their count is even. */
DEVICE uint32_t even_signs(uint32_t seven) { return seven | (uint32_t)(count_bits(seven) & 1) << 7; }
DEVICE float signed_level(float scale, int level, uint32_t signs, int i) {
    return scale * (float)(signs >> i & 1 ? -level : level);
}
DEVICE int level_of_eight(uint32_t point, int i) { return (int)(point >> 2 * i & 3); }
DEVICE int level_of_four(uint32_t point, int i) { return (int)(point >> 3 * i & 7); }

DEVICE float value_of(const block_iq2_xxs &b, int i) {
    const uint8_t *group = b.qs + i / 32 * 8;
    const uint32_t last = four_bytes(group + 4), signs = even_signs(last >> i / 8 % 4 * 7 & 127);
    const int level = iq2_levels[level_of_eight(points_iq2_xxs[group[i / 8 % 4]], i % 8)];
    return signed_level(half_at(b.d) * 0.125f * odd_number(last >> 28), level, signs, i % 8);
}
DEVICE float value_of(const block_iq2_xs &b, int i) {
    const uint32_t q = two_bytes(b.qs + i / 8 * 2), s = b.scales[i / 32] >> i / 16 % 2 * 4 & 15;
    const int level = iq2_levels[level_of_eight(points_iq2_xs[q & 511], i % 8)];
    return signed_level(half_at(b.d) * 0.125f * odd_number(s), level, even_signs(q >> 9), i % 8);
}
DEVICE float value_of(const block_iq2_s &b, int i) {
    const uint32_t point = b.qs[i / 8] | (uint32_t)(b.qh[i / 32] >> i / 8 % 4 * 2 & 3) << 8;
    const uint32_t s = b.scales[i / 32] >> i / 16 % 2 * 4 & 15;
    const int level = iq2_levels[level_of_eight(points_iq2_s[point], i % 8)];
    return signed_level(half_at(b.d) * 0.125f * odd_number(s), level, b.signs[i / 8], i % 8);
}
DEVICE float value_of(const block_iq3_xxs &b, int i) {
    const uint32_t last = four_bytes(b.signs + i / 32 * 4), signs = even_signs(last >> i / 8 % 4 * 7 & 127);
    const int level = iq3_xxs_levels[level_of_four(points_iq3_xxs[b.qs[i / 4]], i % 4)];
    return signed_level(half_at(b.d) * 0.25f * odd_number(last >> 28), level, signs, i % 8);
}
DEVICE float value_of(const block_iq3_s &b, int i) {
    const uint32_t point = b.qs[i / 4] | (uint32_t)(b.qh[i / 32] >> i / 4 % 8 & 1) << 8;
    const uint32_t s = b.scales[i / 64] >> i / 32 % 2 * 4 & 15;
    const int level = iq3_s_levels[level_of_four(points_iq3_s[point], i % 4)];
    return signed_level(half_at(b.d) * odd_number(s), level, b.signs[i / 8], i % 8);
}
/* Levels from -1 to 1 in eighths, and one eighth more or less. */
DEVICE float level_and_eighth(uint32_t point, int i, bool less) {
    return (float)(8 * (level_of_eight(points_iq1_s[point], i) - 1) + (less ? -1 : 1));
}
DEVICE float value_of(const block_iq1_s &b, int i) {
    const uint32_t high = two_bytes(b.qh + i / 32 * 2), point = b.qs[i / 8] | (high >> i / 8 % 4 * 3 & 7) << 8;
    return half_at(b.d) * 0.125f * odd_number(high >> 12 & 7) * level_and_eighth(point, i % 8, high >> 15);
}
DEVICE float value_of(const block_iq1_m &b, int i) {
    const uint8_t *s = b.scales;
    const uint32_t d = s[1] >> 4 | s[3] >> 4 << 4 | s[5] >> 4 << 8 | s[7] >> 4 << 12;
    const uint32_t high = b.qh[i / 16] >> i / 8 % 2 * 4 & 15, point = b.qs[i / 8] | (high & 7) << 8;
    const uint32_t scale = two_bytes(s + i / 64 * 2) >> i / 16 % 4 * 3 & 7;
    return float_of_half((uint16_t)d) * 0.125f * odd_number(scale) * level_and_eighth(point, i % 8, high & 8);
}

/* ---- a row ---- */
/* Values [i, i + 8) of a row of blocks of VALUES. */
template <class BLOCK, int VALUES> struct block_row {
    const BLOCK *blocks;
    METHOD void eight(int64_t i, float *out) const {
        const BLOCK &b = blocks[i / VALUES];
        const int first = (int)(i % VALUES) / 8 * 8;
        UNROLL for (int j = 0; j < 8; j++)
            out[j] = value_of(b, first + j);
    }
};
template <class BLOCK> struct block_row<BLOCK, 1> {
    const BLOCK *blocks;
    METHOD void eight(int64_t i, float *out) const {
        UNROLL for (int j = 0; j < 8; j++)
            out[j] = value_of(blocks[i + j], 0);
    }
};
/* The same of a row in tiles, whose blocks have BYTES. */
template <class BLOCK, int VALUES, int BYTES, class P> struct tile_row {
    P row;
    METHOD void eight(int64_t i, float *out) const {
        const uint32_t at = (uint32_t)i;
        const BLOCK b(row + at / VALUES * BYTES);
        const int first = (int)(at % VALUES) / 8 * 8;
        UNROLL for (int j = 0; j < 8; j++)
            out[j] = value_of(b, first + j);
    }
};
/* MLX's of mode affine, in float32; P: a pointer, or tile_bytes. */
template <int BITS, class P = const uint8_t *> struct affine_row {
    P row;
    int group, bytes, type;
    METHOD float number(const P &p) const {
        return type == GM_T_F32   ? float_of_bits(four_bytes(p))
               : type == GM_T_F16 ? half_at(p)
                                  : float_of_bits(two_bytes(p) << 16);
    }
    METHOD void eight(int64_t i, float *out) const {
        const P block = row + i / group * bytes, fields = block + (type == GM_T_F32 ? 8 : 4) + i % group / 8 * BITS;
        const float scale = number(block), bias = number(block + (type == GM_T_F32 ? 4 : 2));
        uint64_t eight = 0;
        UNROLL for (int j = 0; j < BITS; j++)
            eight |= (uint64_t)fields[j] << 8 * j;
        UNROLL for (int j = 0; j < 8; j++)
            out[j] = scale * (float)(eight >> BITS * j & ((1u << BITS) - 1)) + bias;
    }
};

/* use(tiles) with the tiles of a format that has them; `none` where it has none. */
template <class F, class NONE> DEVICE auto with_tiles(const cuda_format &f, F use, NONE none) {
    switch (f.format) {
    case GM_QUANT_q4_0: return use(tiles_of_q4_0());
    case GM_QUANT_q8_0: return use(tiles_of_q8_0());
    case GM_QUANT_q4_k: return use(tiles_of_q4_k());
    case GM_QUANT_q6_k: return use(tiles_of_q6_k());
    case GM_QUANT_mxfp4: return use(tiles_of_mxfp4());
    default: break;
    }
    const bool wide = f.scale_type == GM_T_F32; /* whether halves are f16 or bf16 is the same to their places */
    if (f.bits != 4) return none();
    if (f.values == 32) return wide ? use(tiles_of_affine4<32, GM_T_F32>()) : use(tiles_of_affine4<32, GM_T_F16>());
    if (f.values == 64) return wide ? use(tiles_of_affine4<64, GM_T_F32>()) : use(tiles_of_affine4<64, GM_T_F16>());
    return wide ? use(tiles_of_affine4<128, GM_T_F32>()) : use(tiles_of_affine4<128, GM_T_F16>());
}
/* Where byte i of a row's part of a tile is in the tile. */
DEVICE int place_in_tile(const cuda_format &f, int row, int i) {
    return with_tiles(f, [=](const auto &tiles) { return tiles.place(row, i); }, [=] { return i; });
}
/* use(row) with what reads a row that is in tiles, of which the first is at `rows`. */
template <class F> DEVICE void with_tile_row(const cuda_format &f, const uint8_t *rows, int row, F use) {
#define TILE_ROW(name, TILES, values, bytes)                                                                           \
    case GM_QUANT_##name: {                                                                                            \
        typedef tile_bytes < TILES                                                                                     \
        > bytes_type;                                                                                                  \
        return use(tile_row<tile_##name<bytes_type>, values, bytes, bytes_type>{{rows, row, 0}});                      \
    }
    switch (f.format) {
        TILE_ROW(q4_0, tiles_of_q4_0, 32, 18)
        TILE_ROW(q8_0, tiles_of_q8_0, 32, 34)
        TILE_ROW(mxfp4, tiles_of_mxfp4, 32, 17)
        TILE_ROW(q4_k, tiles_of_q4_k, 256, 144)
        TILE_ROW(q6_k, tiles_of_q6_k, 256, 210)
    default: break;
    }
#undef TILE_ROW
#define TILE_GROUP(group, type)                                                                                        \
    {                                                                                                                  \
        typedef tile_bytes<tiles_of_affine4<group, type>> bytes_type;                                                  \
        return use(affine_row<4, bytes_type>{{rows, row, 0}, f.values, f.bytes, f.scale_type});                        \
    }
    const bool wide = f.scale_type == GM_T_F32;
    if (f.values == 32 && wide) TILE_GROUP(32, GM_T_F32)
    if (f.values == 32) TILE_GROUP(32, GM_T_F16)
    if (f.values == 64 && wide) TILE_GROUP(64, GM_T_F32)
    if (f.values == 64) TILE_GROUP(64, GM_T_F16)
    if (wide) TILE_GROUP(128, GM_T_F32)
    TILE_GROUP(128, GM_T_F16)
#undef TILE_GROUP
}

struct eight_floats { float at[8]; };
/* Values [i, i + 8) of such a row, by one function for all who read few of them. */
DEVICE_CALL eight_floats eight_of_tiles(const cuda_format &f, const uint8_t *rows, int row, int64_t i) {
    eight_floats out;
    with_tile_row(f, rows, row, [&](const auto &values) { values.eight(i, out.at); });
    return out;
}
struct any_tile_row {
    const cuda_format &format;
    const uint8_t *rows;
    int row;
    METHOD void eight(int64_t i, float *out) const {
        const eight_floats got = eight_of_tiles(format, rows, row, i);
        UNROLL for (int j = 0; j < 8; j++)
            out[j] = got.at[j];
    }
};

/* use(row) with what reads row `row` of a matrix of rows of k. */
template <class F> DEVICE void with_row(const cuda_format &f, const void *data, int64_t row, int64_t k, F use) {
    const int64_t row_bytes = k / f.values * f.bytes;
    if (f.tile)
        return use(any_tile_row{f, (const uint8_t *)data + row / TILED_ROWS * TILED_ROWS * row_bytes,
                                (int)(row % TILED_ROWS)});
    const uint8_t *p = (const uint8_t *)data + row * row_bytes;
    switch (f.format) {
#define QUANT(name, text, values, bytes, gguf, doc)                                                                    \
    case GM_QUANT_##name: return use(block_row<block_##name, values>{reinterpret_cast<const block_##name *>(p)});
#define AFFINE(...)
#include "quants.def"
#undef QUANT
    default: break;
    }
    switch (f.bits) {
    case 2: return use(affine_row<2>{p, f.values, f.bytes, f.scale_type});
    case 3: return use(affine_row<3>{p, f.values, f.bytes, f.scale_type});
    case 4: return use(affine_row<4>{p, f.values, f.bytes, f.scale_type});
    case 5: return use(affine_row<5>{p, f.values, f.bytes, f.scale_type});
    case 6: return use(affine_row<6>{p, f.values, f.bytes, f.scale_type});
    default: return use(affine_row<8>{p, f.values, f.bytes, f.scale_type});
    }
}
#endif
