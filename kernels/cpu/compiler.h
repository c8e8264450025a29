/* compiler.h - what kernels ask of the compiler beyond C11: inlining that constants pass through, and full unrolling,
 * without which arrays of vectors would live in memory. */
#ifndef GOMLX_KERNELS_CPU_COMPILER_H
#define GOMLX_KERNELS_CPU_COMPILER_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif
