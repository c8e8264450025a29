/* tables.h - the tables of kernels that this build holds: one per instruction set; and the names of kernels in them. */
#ifndef GOMLX_KERNELS_CPU_TABLES_H
#define GOMLX_KERNELS_CPU_TABLES_H
#include "kernels.h"

extern const gm_kernels kernels_generic, kernels_avx2, kernels_avxvnni, kernels_avx512, kernels_avx512vnni,
    kernels_avx512bf16, kernels_neon, kernels_neon_i8mm;

#define KERNELS_JOIN_(a, b) a##_##b
#define KERNELS_JOIN(a, b) KERNELS_JOIN_(a, b)
#define KERNELS_TEXT_(a) #a
#define KERNELS_TEXT(a) KERNELS_TEXT_(a)
#define KERNEL_NAME(name) KERNELS_JOIN(name, KERNELS_SET)
#endif
