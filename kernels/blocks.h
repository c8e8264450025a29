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
#endif
