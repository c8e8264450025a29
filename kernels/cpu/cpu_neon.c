/* cpu_neon.c - the kernels for AArch64 with NEON and the dot products of Armv8.2, compiled with flags for these.
 * Everything here is static but the table, so that no code of this instruction set is shared with another object. */
#define KERNELS_TABLE kernels_neon
#define KERNELS_ISA "neon"
#include "cpu/simd_neon.h"
#include "cpu/dot_neon.h"
#include "cpu/table.inc"
