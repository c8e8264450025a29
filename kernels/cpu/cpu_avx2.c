/* cpu_avx2.c - the kernels for x86-64 with AVX2, FMA, F16C and BMI2, compiled with flags for these.
 * Everything here is static but the table, so that no code of this instruction set is shared with another object. */
#define KERNELS_TABLE kernels_avx2
#define KERNELS_ISA "avx2"
#include "cpu/simd_avx2.h"
#include "cpu/dot_avx2.h"
#include "cpu/table.inc"
