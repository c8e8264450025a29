/* part.h - what each part_*.c begins with. A part is compiled once for each instruction set that has its own of it,
 * with that set's flags, KERNELS_SET defined as its name and KERNELS_<family>. Sets of a family share a vocabulary,
 * whose words use what the flags allow. Everything in a part is static, so that no code of one instruction set is
 * shared with another; exports.h, at the end of the part, publishes its kernels. */
#ifndef GOMLX_KERNELS_CPU_PART_H
#define GOMLX_KERNELS_CPU_PART_H
/* A part need not use all of what the shared files hold. */
#pragma GCC diagnostic ignored "-Wunused-function"
#if defined(KERNELS_generic)
#include "cpu/simd_generic.h"
#include "cpu/dot_generic.h"
#elif defined(KERNELS_avx2)
#include "cpu/simd_avx2.h"
#include "cpu/dot_avx2.h"
#elif defined(KERNELS_avx512)
#include "cpu/simd_avx512.h"
#include "cpu/dot_avx512.h"
#elif defined(KERNELS_neon)
#include "cpu/simd_neon.h"
#include "cpu/dot_neon.h"
#endif
#include "cpu/tables.h"
#endif
