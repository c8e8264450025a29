/* transpose_8.h - transposes eight rows of eight items each in registers. */
#ifndef GOMLX_KERNELS_CPU_TRANSPOSE_8_H
#define GOMLX_KERNELS_CPU_TRANSPOSE_8_H
#include "cpu/compiler.h"

typedef uint16_t lanes_2 __attribute__((vector_size(16)));
typedef uint32_t lanes_4 __attribute__((vector_size(32)));
typedef uint64_t lanes_8 __attribute__((vector_size(64)));

/* Transposes x[0..8), rows of eight items each: three rounds that interleave row i with row i + 4. */
#define INTERLEAVE(T, a, b) SHUFFLE_2(T, a, b, 0, 8, 1, 9, 2, 10, 3, 11), SHUFFLE_2(T, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define TRANSPOSE_8(T, x)                                                                                              \
    UNROLL for (int round = 0; round < 3; round++) {                                                                   \
        T y[8] = {INTERLEAVE(T, x[0], x[4]), INTERLEAVE(T, x[1], x[5]), INTERLEAVE(T, x[2], x[6]),                     \
                  INTERLEAVE(T, x[3], x[7])};                                                                          \
        UNROLL for (int k = 0; k < 8; k++)                                                                             \
            x[k] = y[k];                                                                                               \
    }
#endif
