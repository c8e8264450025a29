/* blocks.h - how one block of each format is laid out in a file. Bytes only, so that a block may be at any address;
 * every number of two bytes is little-endian. quants.c checks the sizes. */
#ifndef GOMLX_KERNELS_BLOCKS_H
#define GOMLX_KERNELS_BLOCKS_H
#include <stdint.h>

typedef struct { uint8_t bits[4]; } block_f32;
typedef struct { uint8_t bits[2]; } block_f16;
typedef struct { uint8_t bits[2]; } block_bf16;

/* Blocks of 32: value i < 16 is the low half of qs[i], value 16 + i its high half; bit i of qh is value i's fifth. */
typedef struct { uint8_t d[2], qs[16]; } block_q4_0;
typedef struct { uint8_t d[2], m[2], qs[16]; } block_q4_1;
typedef struct { uint8_t d[2], qh[4], qs[16]; } block_q5_0;
typedef struct { uint8_t d[2], m[2], qh[4], qs[16]; } block_q5_1;
typedef struct { uint8_t d[2], qs[32]; } block_q8_0;

/* Blocks of 256 in groups of 32. Groups 2j and 2j+1 are the low and high halves of qs[32j..32j+31]; bit g of qh[l] is
 * the fifth bit of value l of group g. Scale and minimum g < 4 are the low six bits of scales[g] and scales[g + 4];
 * those of g >= 4 are the halves of scales[g + 4] under the top bits of scales[g - 4] and scales[g]. */
typedef struct { uint8_t d[2], dmin[2], scales[12], qs[128]; } block_q4_k;
typedef struct { uint8_t d[2], dmin[2], scales[12], qh[32], qs[128]; } block_q5_k;
/* Group g = 4n + j: low four bits from half j / 2 of ql[64n + 32(j % 2) + l], high two from bits 2j of qh[32n + l];
 * scales per sixteen values. */
typedef struct { uint8_t ql[128], qh[64], scales[16], d[2]; } block_q6_k;
/* Group g = 4n + j: bits 2j of qs[32n + l]. Scale and minimum of sixteen values are the halves of a byte. */
typedef struct { uint8_t scales[16], qs[64], d[2], dmin[2]; } block_q2_k;
/* The same, with bit g of hmask[l] the third bit of value l of group g. Scale k of sixteen values: low four bits from
 * half k / 8 of scales[k % 8], high two from bits 2 (k / 4) of scales[8 + k % 4]. */
typedef struct { uint8_t hmask[32], qs[64], scales[12], d[2]; } block_q3_k;

/* Levels by number, in the order of Q4_0. Scale g of IQ4_XS: low four bits from half g % 2 of low[g / 2], high two from
 * bits 2 (g % 4) of high[g / 4]; its group is qs[16g..16g + 15]. */
typedef struct { uint8_t d[2], qs[16]; } block_iq4_nl;
typedef struct { uint8_t d[2], high[2], low[4], qs[128]; } block_iq4_xs;
#define IQ4_LEVELS(F)                                                                                                  \
    F(-127), F(-104), F(-83), F(-65), F(-49), F(-35), F(-22), F(-10), F(1), F(13), F(25), F(38), F(53), F(69), F(89),  \
        F(113)
/* The scale is 2^(e - 127); the levels here are twice those of the format, to be integers. */
typedef struct { uint8_t e, qs[16]; } block_mxfp4;
#define FP4_LEVELS(F)                                                                                                  \
    F(0), F(1), F(2), F(3), F(4), F(6), F(8), F(12), F(0), F(-1), F(-2), F(-3), F(-4), F(-6), F(-8), F(-12)

/* Points of a grid (grids.h), of eight values by numbers of 8 to 11 bits, of four by numbers of 8 or 9, and bits that
 * say which values are negative: of eight, seven are in the file, and the last makes their count even. Group g has 32
 * values, a scale is d times an odd number, 2 s + 1.
 * IQ2_XXS: bytes 8g..8g + 3 are points; above them signs from bits 0, 7, 14 and 21 on, and s in the top four bits. */
typedef struct { uint8_t d[2], qs[64]; } block_iq2_xxs;
/* Numbers of two bytes: a point in nine bits, signs above; s of each half of a group in half a byte. */
typedef struct { uint8_t d[2], qs[64], scales[8]; } block_iq2_xs;
/* Bits 2j of qh[g] are the highest of point j. */
typedef struct { uint8_t d[2], qs[32], signs[32], qh[8], scales[8]; } block_iq2_s;
/* Points of four values, eight a group; signs and s of a group as in IQ2_XXS. */
typedef struct { uint8_t d[2], qs[64], signs[32]; } block_iq3_xxs;
/* Bit j of qh[g] is the highest of point j. */
typedef struct { uint8_t d[2], qs[64], qh[8], signs[32], scales[4]; } block_iq3_s;
/* Each value has an eighth added or taken off. Of the two bytes of a group in qh, bits 3j are the highest of point j,
 * bits 12 to 14 s, bit 15 tells to take off. */
typedef struct { uint8_t d[2], qs[32], qh[16]; } block_iq1_s;
/* Half a byte of qh is the highest bits of a point, and whether its eighths are taken off. Each two bytes of scales are
 * s of four halves of groups, in three bits, below four bits of d, the lowest first. */
typedef struct { uint8_t qs[32], qh[16], scales[8]; } block_iq1_m;

/* Values from -1 to 1. Five in a byte: digits to the base of three, the first value's the highest, of 243 that are
 * spread over 256, so that value n is the whole part of three times the byte times 3^n, modulo 256, over 256, less one.
 * Value 32n + l is in qs[l], 160 + 16n + l in qs[32 + l], 240 + 4n + l in qh[l]. */
typedef struct { uint8_t qs[48], qh[4], d[2]; } block_tq1_0;
/* Where Q2_K has them. */
typedef struct { uint8_t qs[64], d[2]; } block_tq2_0;
/* d is a float32; sums of sixteen values each, of two bytes, are not needed to read them. */
typedef struct { uint8_t d[4], qs[256], sums[32]; } block_q8_k;

/* MLX's: value i of a group is the bits from bits * i on of its fields, the lowest first. mxfp4 becomes the above. */
typedef struct { uint8_t e, qs[32]; } block_mxfp8;
typedef struct { uint8_t scale[2], qs[16]; } block_nvfp4;
#endif
