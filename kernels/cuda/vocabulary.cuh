/* vocabulary.cuh - the words in which kernels are written, and what is under them: CUDA's, or, where the host compiles
 * the same files (GOMLX_EMULATED), tests/cuda/emulate.h, which runs the threads of a block as fibers.
 *  (1) A kernel takes one struct of args.h, by value. Blocks have one dimension, grids up to three.
 *  (2) `barrier` is met by all threads of a block, what is of a warp by all 32 of its lanes.
 *  (3) No float atomics: whatever is summed is summed in one fixed tree, or in integers, whose order does not matter.
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
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif
/* On sm_90a a kernel's blocks may be there before the kernel before it has ended (device_state.h: early): each waits
 * for that, and what it wrote, before it touches memory. */
DEVICE void wait_for_before() {
#if HAS_WGMMA
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* After that: the next kernel's may come, as soon as no block of this one is still to begin. */
DEVICE void let_next_begin() {
#if HAS_WGMMA
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void wait_for_others() {
    wait_for_before();
    let_next_begin();
}
#define KERNEL_WITH(name, ARGS, ...)                                                                                   \
    DEVICE void name##_block(const ARGS &a);                                                                           \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ ARGS a) {                   \
        wait_for_others();                                                                                             \
        name##_block(a);                                                                                               \
    }                                                                                                                  \
    DEVICE void name##_block(const ARGS &a)
#define KERNEL(name, ARGS, threads) KERNEL_WITH(name, ARGS, threads)
/* One of which two blocks are to be on a processor at once. */
#define KERNEL_OF_TWO(name, ARGS, threads) KERNEL_WITH(name, ARGS, threads, 2)
/* One of which three are: each waits for its memory while others compute. */
#define KERNEL_OF_THREE(name, ARGS, threads) KERNEL_WITH(name, ARGS, threads, 3)
/* One of which six are: its blocks wait for one another. */
#define KERNEL_OF_SIX(name, ARGS, threads) KERNEL_WITH(name, ARGS, threads, 6)
/* One that begins ahead: it calls wait_for_others itself, and before that reads only what no kernel writes that
 * may be the one before it. */
#define KERNEL_AHEAD_WITH(name, ARGS, ...)                                                                             \
    DEVICE void name##_block(const ARGS &a);                                                                           \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ ARGS a) {                   \
        name##_block(a);                                                                                               \
    }                                                                                                                  \
    DEVICE void name##_block(const ARGS &a)
#define KERNEL_AHEAD(name, ARGS, threads) KERNEL_AHEAD_WITH(name, ARGS, threads, 1)
#define KERNEL_AHEAD_OF_FIVE(name, ARGS, threads) KERNEL_AHEAD_WITH(name, ARGS, threads, 5)
/* One that begins ahead, whose threads have so many registers at most. */
#define KERNEL_OF_REGISTERS(name, ARGS, threads, registers)                                                            \
    DEVICE void name##_block(const ARGS &a);                                                                           \
    extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ ARGS a) { name##_block(a); }        \
    DEVICE void name##_block(const ARGS &a)
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define CONSTANT_TABLE static __constant__ const
#define DEVICE_TABLE static __device__ const /* of which lanes read different places */
#define DEVICE_COUNTS static __device__      /* zeros, until a kernel writes to them; it leaves zeros */

DEVICE int thread_index() { return (int)threadIdx.x; }
DEVICE int thread_count() { return (int)blockDim.x; }
DEVICE int64_t block_index() { return blockIdx.x; }
DEVICE int64_t block_count() { return gridDim.x; }
DEVICE int64_t block_index_y() { return blockIdx.y; }
DEVICE int64_t block_index_z() { return blockIdx.z; }
DEVICE void barrier() { __syncthreads(); }
/* Blocks side by side that the launch makes a cluster of (sm_90a): which one this is, how many, all threads of all of
 * them, and a float32 in the memory of one, at the same place as `own`. */
DEVICE int cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
DEVICE int cluster_size() {
    uint32_t size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return (int)size;
}
DEVICE void cluster_barrier() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }
DEVICE float cluster_read(const float *own, int rank) {
    float x;
    asm volatile("{\n.reg .u32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.f32 %0, [at];\n}"
                 : "=f"(x)
                 : "r"((uint32_t)__cvta_generic_to_shared(own)), "r"(rank)
                 : "memory");
    return x;
}
DEVICE void warp_barrier() { __syncwarp(); }
/* What another lane has of a value, of any type of whole words. */
template <class T, class F> DEVICE T exchange_words(T value, F exchange) {
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof value);
    UNROLL for (unsigned i = 0; i < sizeof(T) / 4; i++)
        words[i] = exchange(words[i]);
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
/* Of this warp, which the compiler then knows to be the same in all of its lanes. */
DEVICE int warp_number() { return __shfl_sync(0xffffffffu, (int)(threadIdx.x / WARP), 0); }
DEVICE uint32_t lanes_where(bool yes) { return __ballot_sync(0xffffffffu, yes); }
/* The largest that a lane has. */
DEVICE uint32_t most_of_lanes(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }
DEVICE uint32_t lanes_equal(uint32_t value) { return __match_any_sync(0xffffffffu, value); }
/* Adds to a count in the block's memory, of which other threads may do the same. */
DEVICE void count_up(uint32_t *count) { atomicAdd(count, 1u); }
DEVICE void raise_to(uint32_t *word, uint32_t value) { atomicMax(word, value); } /* the same of the largest */
/* Words in the block's memory to which many threads add at once, each of which holds where they are: left to itself,
 * the compiler finds that out for each element. add_to gives what the word was. */
struct block_words { uint32_t at; };
DEVICE block_words words_at(uint32_t *words) {
    block_words w = {(uint32_t)__cvta_generic_to_shared(words)};
    asm volatile("" : "+r"(w.at));
    return w;
}
DEVICE uint32_t add_to(block_words words, int i, uint32_t value) {
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(words.at + 4 * (uint32_t)i), "r"(value)
                 : "memory");
    return before;
}
/* Adds to a number in the device's memory, of which other blocks may do the same. */
DEVICE void add_number(int64_t *number, int64_t value) {
    atomicAdd((unsigned long long *)number, (unsigned long long)value);
}
DEVICE void set_bits(uint32_t *word, uint32_t bits) { atomicOr(word, bits); } /* the same of bits */
/* One of the numbers 0, 1, ... that blocks get of a count in the device's memory, in no order of theirs: by one thread,
 * when all of its block have written, after a barrier. What those with lower numbers had written then, read_written
 * reads once the number is known to the block. */
DEVICE uint32_t take_number(uint32_t *count) {
    uint32_t number;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(number) : "l"(count) : "memory");
    return number;
}
/* Two words for other blocks, each beside a mark that it is there: so a block that sees a mark sees its word. `at`,
 * aligned to 16 bytes, had zeros before. */
DEVICE void publish(uint64_t *at, const uint32_t *words) {
    const uint64_t mark = (uint64_t)1 << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(mark | words[0]), "l"(mark | words[1])
                 : "memory");
}
DEVICE bool is_published(const uint64_t *at, uint32_t *words) {
    uint64_t first, second;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(at) : "memory");
    words[0] = (uint32_t)first;
    words[1] = (uint32_t)second;
    return (first & second) >> 32 != 0;
}
/* Writes 16 bytes that nobody reads soon: they do not take the place of others in the card's cache. */
template <class T> DEVICE void store_past(T *to, const T &value) {
    uint32_t words[4];
    static_assert(sizeof words == sizeof value, "16 bytes");
    memcpy(words, &value, sizeof words);
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}
/* Of 4, 8 or 16 bytes, aligned to them. */
template <class T> DEVICE T read_written(const T *p) {
    T value;
    if constexpr (sizeof value == 16) {
        const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(p));
        memcpy(&value, &words, sizeof value);
    } else if constexpr (sizeof value == 8) {
        const uint2 words = __ldcg(reinterpret_cast<const uint2 *>(p));
        memcpy(&value, &words, sizeof value);
    } else {
        const unsigned word = __ldcg(reinterpret_cast<const unsigned *>(p));
        static_assert(sizeof value == sizeof word, "one access");
        memcpy(&value, &word, sizeof value);
    }
    return value;
}
DEVICE int count_bits(uint32_t bits) { return __popc(bits); }
DEVICE int leading_zeros(uint64_t bits) { return __clzll((long long)bits); }
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
/* Two as 16-bit ones side by side. */
DEVICE uint32_t two_halves(float low, float high) {
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
DEVICE uint32_t two_bfloats(float low, float high) {
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
/* 2^x, within 2 ulp. */
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* One step of the tensor cores: d[16][8] += a[16][16] * b[16][8], spread over a warp as PTX's mma.m16n8k16 has it. */
DEVICE void mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
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
/* The same of 16, where what lies with them in 256 bytes is asked for soon. */
DEVICE void copy_16_of_row(void *to, const void *from) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(at), "l"(from));
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
/* All groups but the last `pending` are done. */
template <int pending> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending)); }
/* ---- long copies into a block's memory ----
 * A warp waits for them by an arrival, 8 bytes of that memory that one lane makes ready and shows: its phases 0, 1, 0,
 * 1, ... end one after another, each when the copies that it is to bring have come. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define HAS_LONG_COPIES 0
#else
#define HAS_LONG_COPIES 1
#endif
/* lanes: that copy for each phase. */
DEVICE void begin_arrival(uint64_t *arrival, int lanes) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(arrival);
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(lanes) : "memory");
}
DEVICE void show_arrivals() {
#if HAS_LONG_COPIES
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/* What this lane has asked copy_16 for is its part of a phase. */
DEVICE void arrive_with_copies(uint64_t *arrival) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(arrival);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}
/* Whether this is the one lane of a warp that is to copy for all. */
DEVICE bool is_chosen_lane() {
#if HAS_LONG_COPIES
    uint32_t yes;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(yes));
    return yes != 0;
#else
    return thread_index() % WARP == 0;
#endif
}
/* A copy of a phase, by one lane: a multiple of 16 bytes, aligned to them; of memory that is read once, or again soon.
 */
template <bool ONCE = true> DEVICE void copy_long(void *to, const void *from, int bytes, uint64_t *arrival) {
#if HAS_LONG_COPIES
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(to), at = (uint32_t)__cvta_generic_to_shared(arrival);
    uint64_t policy;
    if (ONCE) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(place),
                 "l"(from), "r"(bytes), "r"(at), "l"(policy)
                 : "memory");
#endif
}
DEVICE void wait_arrival(uint64_t *arrival, int phase) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(arrival);
    uint32_t done = 0;
    while (!done) {
#if HAS_LONG_COPIES
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "r"(phase)
                     : "memory");
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "r"(phase)
                     : "memory");
#endif
    }
}
/* ---- the tensor cores of sm_90a, which four warps side by side use together on operands in the block's memory ---- */
/* An operand of 16-bit items in lines of 128 bytes, whose pieces of 16 bytes are exchanged by the line's number modulo
 * 8: eight lines begin at a multiple of 1024 bytes. Along k: lines are rows of the matrix, sixty-four items along k
 * each; else a line is one k of sixty-four rows, and `across` the bytes from those rows to the next sixty-four. */
struct block_matrix {
    uint64_t bits;
    METHOD block_matrix after(int bytes) const { return {bits + (uint64_t)(bytes >> 4)}; }
};
DEVICE block_matrix matrix_at(const void *p, int across) {
    const uint64_t at = (uint64_t)__cvta_generic_to_shared(p);
    return {(at & 0x3ffff) >> 4 | (uint64_t)(across >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62};
}
/* What threads copied into the block's memory becomes visible to the tensor cores; before a barrier. */
DEVICE void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#if HAS_WGMMA
DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/* d[64][N] += a[64][16] * b[16][N], or = of it; A_ALONG_K, B_ALONG_K: how the operands lie. d may not be touched before
 * a wait. */
#define WGMMA_NAMES_64                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_128                                                                                                \
    WGMMA_NAMES_64 ", "                                                                                                \
                   "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
                   "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_256                                                                                                \
    WGMMA_NAMES_128 ", "                                                                                               \
                    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                 \
                    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                 \
                    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
                    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_EIGHT(d, i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define WGMMA_SUMS_64(d) WGMMA_EIGHT(d, 0), WGMMA_EIGHT(d, 8), WGMMA_EIGHT(d, 16), WGMMA_EIGHT(d, 24)
#define WGMMA_SUMS_128(d)                                                                                              \
    WGMMA_SUMS_64(d), WGMMA_EIGHT(d, 32), WGMMA_EIGHT(d, 40), WGMMA_EIGHT(d, 48), WGMMA_EIGHT(d, 56)
#define WGMMA_SUMS_256(d)                                                                                              \
    WGMMA_SUMS_128(d), WGMMA_EIGHT(d, 64), WGMMA_EIGHT(d, 72), WGMMA_EIGHT(d, 80), WGMMA_EIGHT(d, 88),                 \
        WGMMA_EIGHT(d, 96), WGMMA_EIGHT(d, 104), WGMMA_EIGHT(d, 112), WGMMA_EIGHT(d, 120)
#define WGMMA_OF_LINES(name, types, columns, a0, b0, adds, turn_a, turn_b)                                             \
    template <bool A_ALONG_K, bool B_ALONG_K, bool ADDS = true>                                                        \
    DEVICE void name(float (&d)[columns / 2], block_matrix a, block_matrix b) {                                        \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" WGMMA_NAMES_##columns          \
                     "}, " a0 ", " b0 ", " adds ", 1, 1, " turn_a ", " turn_b ";"                                      \
                     : WGMMA_SUMS_##columns(d)                                                                         \
                     : "l"(a.bits), "l"(b.bits), "n"(ADDS ? 1 : 0), "n"(A_ALONG_K ? 0 : 1), "n"(B_ALONG_K ? 0 : 1));   \
    }
#define WGMMA_LINES(name, types)                                                                                       \
    WGMMA_OF_LINES(name, types, 64, "%32", "%33", "%34", "%35", "%36")                                                 \
    WGMMA_OF_LINES(name, types, 128, "%64", "%65", "%66", "%67", "%68")                                                \
    WGMMA_OF_LINES(name, types, 256, "%128", "%129", "%130", "%131", "%132")
/* The same of sixteen columns of k that the warps have, of sixteen rows each, as mma.m16n8k16 has them. */
#define WGMMA_OF_ROWS(name, types, columns, a0, a1, a2, a3, b0)                                                        \
    DEVICE void name(float (&d)[columns / 2], const uint32_t *a, block_matrix b) {                                     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" WGMMA_NAMES_##columns          \
                     "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b0 ", 1, 1, 1, 1;"                                        \
                     : WGMMA_SUMS_##columns(d)                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));                                       \
    }
#define WGMMA_ROWS(name, types)                                                                                        \
    WGMMA_OF_ROWS(name, types, 64, "%32", "%33", "%34", "%35", "%36")                                                  \
    WGMMA_OF_ROWS(name, types, 128, "%64", "%65", "%66", "%67", "%68")
WGMMA_LINES(wgmma_f16, "f16.f16")
WGMMA_LINES(wgmma_bf16, "bf16.bf16")
WGMMA_ROWS(wgmma_f16_of_rows, "f16.f16")
WGMMA_ROWS(wgmma_bf16_of_rows, "bf16.bf16")
/* What was waited for may be read from here on. */
template <int N> DEVICE void wgmma_result(float (&d)[N]) {
    UNROLL for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
#endif
#endif

typedef float vf; /* the vocabulary of cpu/simd_*.h, one element wide: the same formulas give the same bits */
typedef int32_t vi;
typedef bool vm;
#endif
