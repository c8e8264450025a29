/* grids.c - the grids of IQ1, IQ2 and IQ3 as kernels look them up. */
#include "grids.h"

#define LEVEL_2(p, i) ((uint32_t)(p) >> 2 * (i) & 3)
#define HALVES(p, e) ((LEVEL_2(p, e) | LEVEL_2(p, 4 + (e)) << 4) << 8 * (e))
#define EIGHT(p) (HALVES(p, 0) | HALVES(p, 1) | HALVES(p, 2) | HALVES(p, 3))
#define LEVEL_3(p, e) (((uint32_t)(p) >> 3 * (e) & 7) << 8 * (e))
#define FOUR(p) (LEVEL_3(p, 0) | LEVEL_3(p, 1) | LEVEL_3(p, 2) | LEVEL_3(p, 3))

const uint32_t grid_iq2_xxs[256] = {IQ2_XXS_GRID(EIGHT)};
const uint32_t grid_iq2_xs[512] = {IQ2_XS_GRID(EIGHT)};
const uint32_t grid_iq2_s[1024] = {IQ2_S_GRID(EIGHT)};
const uint32_t grid_iq1_s[2048] = {IQ1_S_GRID(EIGHT)};
const uint32_t grid_iq3_xxs[256] = {IQ3_XXS_GRID(FOUR)};
const uint32_t grid_iq3_s[512] = {IQ3_S_GRID(FOUR)};

#define BYTE_0(p) (p) & 255
#define BYTE_1(p) (p) >> 8
#define SIX_0(p) (p) & 63
#define SIX_1(p) (p) >> 6

const uint8_t bytes_iq2_xxs[2][256] = {{IQ2_XXS_GRID(BYTE_0)}, {IQ2_XXS_GRID(BYTE_1)}};
const uint8_t bytes_iq2_xs[2][512] = {{IQ2_XS_GRID(BYTE_0)}, {IQ2_XS_GRID(BYTE_1)}};
const uint8_t bytes_iq2_s[2][1024] = {{IQ2_S_GRID(BYTE_0)}, {IQ2_S_GRID(BYTE_1)}};
const uint8_t bytes_iq1_s[2][2048] = {{IQ1_S_GRID(BYTE_0)}, {IQ1_S_GRID(BYTE_1)}};
const uint8_t bytes_iq3_xxs[2][256] = {{IQ3_XXS_GRID(SIX_0)}, {IQ3_XXS_GRID(SIX_1)}};
const uint8_t bytes_iq3_s[2][512] = {{IQ3_S_GRID(SIX_0)}, {IQ3_S_GRID(SIX_1)}};
