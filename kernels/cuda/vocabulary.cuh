/* vocabulary.cuh - the words in which kernels are written, and what is under them: CUDA's, or, where the host compiles
 * the same files (GOMLX_EMULATED), tests/cuda/emulate.h, which runs the threads of a block as fibers.
 *  (1) A kernel takes one struct of args.h, by value. Blocks have one dimension, grids up to three.
 *  (2) `barrier` is met by all threads of a block, what is of a warp by all 32 of its lanes.
 *  (3) No float atomics: whatever is summed is summed in one fixed tree.
 * Compiled with -fmad=false: a product and a sum are rounded apart unless fmaf is written. */
#ifndef GOMLX_CUDA_VOCABULARY_CUH
#define GOMLX_CUDA_VOCABULARY_CUH
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include "kernels.h"

#define WARP 32

#ifdef GOMLX_EMULATED
#include "emulate.h"
#else
#define DEVICE static __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__
#define METHOD __device__ __forceinline__
#define KERNEL(name, ARGS, threads)                                                                                    \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ ARGS a)
/* One of which two blocks are to be on a processor at once. */
#define KERNEL_OF_TWO(name, ARGS, threads)                                                                             \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(const __grid_constant__ ARGS a)
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define CONSTANT_TABLE static __constant__ const

DEVICE int thread_index() { return (int)threadIdx.x; }
DEVICE int thread_count() { return (int)blockDim.x; }
DEVICE int64_t block_index() { return blockIdx.x; }
DEVICE int64_t block_count() { return gridDim.x; }
DEVICE int64_t block_index_y() { return blockIdx.y; }
DEVICE int64_t block_index_z() { return blockIdx.z; }
DEVICE void barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
/* What another lane has of a value, of any type of whole words. */
template <class T, class F> DEVICE T exchange_words(T value, F exchange) {
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof value);
    UNROLL for (unsigned i = 0; i < sizeof(T) / 4; i++) words[i] = exchange(words[i]);
    memcpy(&value, words, sizeof value);
    return value;
}
template <class T> DEVICE T lane_xor(T value, int mask) {
    return exchange_words(value, [=](uint32_t word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
}
template <class T> DEVICE T lane_up(T value, int by) {
    return exchange_words(value, [=](uint32_t word) { return __shfl_up_sync(0xffffffffu, word, by); });
}
template <class T> DEVICE T lane_of(T value, int lane) {
    return exchange_words(value, [=](uint32_t word) { return __shfl_sync(0xffffffffu, word, lane); });
}
DEVICE uint32_t lanes_where(bool yes) { return __ballot_sync(0xffffffffu, yes); }
DEVICE uint32_t lanes_equal(uint32_t value) { return __match_any_sync(0xffffffffu, value); }
DEVICE int count_bits(uint32_t bits) { return __popc(bits); }
/* Memory of a block whose size the launch gives, aligned to 16 bytes. */
extern __shared__ uint4 block_memory_[];
DEVICE char *block_memory() { return reinterpret_cast<char *>(block_memory_); }

DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t bits_of_float(float x) { return __float_as_uint(x); }
DEVICE float float_of_half(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
DEVICE uint16_t half_of_float(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE uint16_t bfloat_of_float(float x) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
/* One step of the tensor cores: d[16][8] += a[16][16] * b[16][8], spread over a warp as PTX's mma.m16n8k16 has it. */
DEVICE void mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Four matrices of 8 x 8 items of 16 bits: lane l gives the address of row l % 8 of matrix l / 8. */
DEVICE void load_matrices(uint32_t *out, const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}
DEVICE void load_matrices_turned(uint32_t *out, const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}
/* 16 bytes from memory to a block's, of which the last 16 - bytes become zeros; done when wait_copies says so. */
DEVICE void copy_16(void *to, const void *from, int bytes) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
/* All groups but the last `pending` are done. */
template <int pending> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending)); }
#endif

typedef float vf; /* the vocabulary of cpu/simd_*.h, one element wide: the same formulas give the same bits */
typedef int32_t vi;
typedef bool vm;
#endif
