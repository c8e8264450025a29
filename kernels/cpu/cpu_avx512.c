/* cpu_avx512.c - the kernels for x86-64 with AVX-512 F, BW, DQ, VL, VNNI and BF16, compiled with flags for these.
 * Everything here is static but the table, so that no code of this instruction set is shared with another object. */
#define KERNELS_TABLE kernels_avx512
#define KERNELS_ISA "avx512"
#include "cpu/simd_avx512.h"
#include "cpu/dot_avx512.h"
#include "cpu/table.inc"
