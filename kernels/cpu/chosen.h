/* chosen.h - for vectors of four lanes: the bytes of the lanes that four bits choose, side by side. */
#ifndef GOMLX_KERNELS_CPU_CHOSEN_H
#define GOMLX_KERNELS_CPU_CHOSEN_H
#include <stdint.h>

#define LANE(i) 4 * (i), 4 * (i) + 1, 4 * (i) + 2, 4 * (i) + 3
static const uint8_t chosen_bytes[16][16] = {
    {LANE(0), LANE(0), LANE(0), LANE(0)}, {LANE(0), LANE(0), LANE(0), LANE(0)}, {LANE(1), LANE(0), LANE(0), LANE(0)},
    {LANE(0), LANE(1), LANE(0), LANE(0)}, {LANE(2), LANE(0), LANE(0), LANE(0)}, {LANE(0), LANE(2), LANE(0), LANE(0)},
    {LANE(1), LANE(2), LANE(0), LANE(0)}, {LANE(0), LANE(1), LANE(2), LANE(0)}, {LANE(3), LANE(0), LANE(0), LANE(0)},
    {LANE(0), LANE(3), LANE(0), LANE(0)}, {LANE(1), LANE(3), LANE(0), LANE(0)}, {LANE(0), LANE(1), LANE(3), LANE(0)},
    {LANE(2), LANE(3), LANE(0), LANE(0)}, {LANE(0), LANE(2), LANE(3), LANE(0)}, {LANE(1), LANE(2), LANE(3), LANE(0)},
    {LANE(0), LANE(1), LANE(2), LANE(3)},
};
#undef LANE
#endif
