/* cpu_generic.c - the kernels for any CPU, in C alone: the oracle of the others.
 * Everything here is static but the table, so that no code of this instruction set is shared with another object. */
#define KERNELS_TABLE kernels_generic
#define KERNELS_ISA "generic"
#include "cpu/simd_generic.h"
#include "cpu/dot_generic.h"
#include "cpu/table.inc"
