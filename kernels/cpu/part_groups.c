/* part_groups.c - MLX's quantised matrices and 8-bit floats. */
#include "cpu/part.h"
#if defined(KERNELS_generic)
#include "cpu/field_generic.h"
#elif defined(KERNELS_avx2)
#include "cpu/field_avx2.h"
#elif defined(KERNELS_avx512)
#include "cpu/field_avx512.h"
#elif defined(KERNELS_neon)
#include "cpu/field_neon.h"
#endif
#include "cpu/groups.inc"
#include "cpu/group_matmul.inc"

#define EXPORTS_groups EXPORTED
#include "cpu/exports.h"
