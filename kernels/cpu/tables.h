/* tables.h - the tables of kernels that this build holds: one per instruction set; and the names of kernels in them. */
#ifndef GOMLX_KERNELS_CPU_TABLES_H
#define GOMLX_KERNELS_CPU_TABLES_H
#include "kernels.h"

extern const gm_kernels kernels_generic, kernels_avx2, kernels_avx512, kernels_neon;

#if defined(KERNELS_generic)
#define KERNEL_NAME(name) name##_generic
#define KERNELS_ISA "generic"
#elif defined(KERNELS_avx2)
#define KERNEL_NAME(name) name##_avx2
#define KERNELS_ISA "avx2"
#elif defined(KERNELS_avx512)
#define KERNEL_NAME(name) name##_avx512
#define KERNELS_ISA "avx512"
#elif defined(KERNELS_neon)
#define KERNEL_NAME(name) name##_neon
#define KERNELS_ISA "neon"
#endif
#endif
