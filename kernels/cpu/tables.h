/* tables.h - the tables of kernels that this build holds: one per instruction set, each in its own object. */
#ifndef GOMLX_KERNELS_CPU_TABLES_H
#define GOMLX_KERNELS_CPU_TABLES_H
#include "kernels.h"

extern const gm_kernels kernels_generic, kernels_avx2, kernels_avx512, kernels_neon;
#endif
