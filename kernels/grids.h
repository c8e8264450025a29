/* grids.h - the points that blocks of IQ1, IQ2 and IQ3 name by number, as numbers of levels.
 * Of eight values byte e of a point has value e in its low half and value 4 + e in its high half; of four, value e. */
#ifndef GOMLX_KERNELS_GRIDS_H
#define GOMLX_KERNELS_GRIDS_H
#include <stdint.h>
#include "grids.def"

extern const uint32_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1_s[2048];
extern const uint32_t grid_iq3_xxs[256], grid_iq3_s[512];

/* The same as tables of bytes: of eight values the first four by two bits and then the others, of four the first two by
 * three bits and then the others. */
extern const uint8_t bytes_iq2_xxs[2][256], bytes_iq2_xs[2][512], bytes_iq2_s[2][1024], bytes_iq1_s[2][2048];
extern const uint8_t bytes_iq3_xxs[2][256], bytes_iq3_s[2][512];
#endif
