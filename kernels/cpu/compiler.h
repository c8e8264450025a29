/* compiler.h - what kernels ask of the compiler beyond C11: inlining that constants pass through, and none; full
 * unrolling, without which arrays of vectors would live in memory; READ_ANEW; SHUFFLE_2, lanes of two vectors (of the
 * extension's types) by number. */
#ifndef GOMLX_KERNELS_CPU_COMPILER_H
#define GOMLX_KERNELS_CPU_COMPILER_H

#if defined(__SANITIZE_ADDRESS__)
#define ALWAYS_INLINE static inline /* the same checks, in a quarter of the time to compile and none more to run */
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif
#define NEVER_INLINE static __attribute__((noinline))
#if defined(KERNELS_generic)
#define UNROLL /* plain C gains little by it, and its files would take minutes to compile */
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
/* What p points to is loaded again after this, not kept in registers. */
#define READ_ANEW(p) __asm__("" : "+r"(p))
#if defined(__clang__)
#define SHUFFLE_2(T, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_2(T, a, b, ...) __builtin_shuffle(a, b, (T){__VA_ARGS__})
#endif
/* Where registers are many, GCC moves loads far up before it has shared registers out: tiles would live in memory. */
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) && !defined(KERNELS_generic)
#pragma GCC optimize("no-schedule-insns")
#endif
#endif
