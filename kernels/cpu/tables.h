/* tables.h - the tables of kernels, one per instruction set, and the names of kernels in them. A build need not hold
 * all of the tables (GOMLX_ISAS in setup.py): the address of one that it lacks is NULL. */
#ifndef GOMLX_KERNELS_CPU_TABLES_H
#define GOMLX_KERNELS_CPU_TABLES_H
#include "cpu/loops.h"

extern const gm_kernels kernels_generic;
extern const gm_kernels kernels_avx2 __attribute__((weak)), kernels_avxvnni __attribute__((weak)),
    kernels_avx512 __attribute__((weak)), kernels_avx512vnni __attribute__((weak)),
    kernels_avx512bf16 __attribute__((weak)), kernels_neon __attribute__((weak)),
    kernels_neon_i8mm __attribute__((weak));

#define KERNELS_JOIN_(a, b) a##_##b
#define KERNELS_JOIN(a, b) KERNELS_JOIN_(a, b)
#define KERNELS_TEXT_(a) #a
#define KERNELS_TEXT(a) KERNELS_TEXT_(a)
#define KERNEL_NAME(name) KERNELS_JOIN(name, KERNELS_SET)
#endif
