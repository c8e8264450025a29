/* blocks.h - how one block of each format lies in a file. Bytes only, so that a block may stand at any address;
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
#define IQ4_LEVELS(F) F(-127), F(-104), F(-83), F(-65), F(-49), F(-35), F(-22), F(-10), \
                      F(1), F(13), F(25), F(38), F(53), F(69), F(89), F(113)
/* The scale is 2^(e - 127); the levels here are twice those of the format, to be integers. */
typedef struct { uint8_t e, qs[16]; } block_mxfp4;
#define FP4_LEVELS(F) F(0), F(1), F(2), F(3), F(4), F(6), F(8), F(12), \
                      F(0), F(-1), F(-2), F(-3), F(-4), F(-6), F(-8), F(-12)

/* MLX's: value i of a group is the bits from bits * i on of its fields, the lowest first. mxfp4 becomes the above. */
typedef struct { uint8_t e, qs[32]; } block_mxfp8;
typedef struct { uint8_t scale[2], qs[16]; } block_nvfp4;
#endif
