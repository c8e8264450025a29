/* emulate.h - vocabulary.cuh's words for the host's C++ compiler: a grid runs block after block, the threads of a block
 * are fibers (fibers.cpp) that give way where they wait for others. What a real card does with a wrong program (an
 * unaligned wide access, a barrier that not all threads meet, memory of nobody) is an error here. */
#ifndef GOMLX_TESTS_EMULATE_H
#define GOMLX_TESTS_EMULATE_H
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
using std::isfinite;
using std::isinf;
using std::isnan;

/* What the driver knows of a kernel (fake_driver.c). */
struct emulated_facts { int threads, bytes; };

#define DEVICE static inline __attribute__((always_inline, unused))
#define DEVICE_CALL static __attribute__((noinline, unused))
#define METHOD inline __attribute__((always_inline))
#define KERNEL(name, ARGS, threads)                                                                                    \
    static void name##_thread(const ARGS &a);                                                                          \
    extern "C" __attribute__((visibility("default"))) const emulated_facts name##_facts = {(threads), sizeof(ARGS)};   \
    extern "C" __attribute__((visibility("default"))) void name(const void *args) {                                    \
        name##_thread(*static_cast<const ARGS *>(args));                                                               \
    }                                                                                                                  \
    static void name##_thread(const ARGS &a)
#define KERNEL_OF_TWO KERNEL
#define KERNEL_AHEAD KERNEL
#define SHARED static /* blocks come one after another */
#define UNROLL
#define CONSTANT_TABLE static const
#define DEVICE_TABLE static const
#define DEVICE_COUNTS static

/* Of the thread that runs now. */
struct emulated_thread {
    int thread, threads, cluster; /* cluster: blocks of one */
    int64_t block[3], blocks[3];
    char *memory; /* of the block */
};
extern thread_local emulated_thread emulated;
void emulated_barrier();
void emulated_warp_barrier();
struct emulated_lane { uint64_t words[4]; };
emulated_lane *emulated_lanes(); /* [32] of the warp, for exchanges */

DEVICE int thread_index() { return emulated.thread; }
DEVICE int thread_count() { return emulated.threads; }
DEVICE int64_t block_index() { return emulated.block[0]; }
DEVICE int64_t block_count() { return emulated.blocks[0]; }
DEVICE int64_t block_index_y() { return emulated.block[1]; }
DEVICE int64_t block_index_z() { return emulated.block[2]; }
DEVICE void barrier() { emulated_barrier(); }
DEVICE void wait_for_others() {} /* the kernel before has ended */
void emulated_cluster_barrier();
char *emulated_memory(int rank);
DEVICE int cluster_rank() { return (int)(emulated.block[0] % emulated.cluster); }
DEVICE int cluster_size() { return emulated.cluster; }
DEVICE void cluster_barrier() { emulated_cluster_barrier(); }
DEVICE float cluster_read(const float *own, int rank) {
    float x;
    memcpy(&x, emulated_memory(rank) + ((const char *)own - emulated.memory), sizeof x);
    return x;
}
DEVICE void warp_barrier() { emulated_warp_barrier(); }
DEVICE char *block_memory() { return emulated.memory; }
template <class T> static T emulated_exchange(T value, int from) {
    emulated_lane *lanes = emulated_lanes();
    const int lane = thread_index() % 32;
    T got;
    static_assert(sizeof value <= sizeof *lanes && sizeof value % 4 == 0, "whole words");
    memcpy(&lanes[lane], &value, sizeof value);
    emulated_warp_barrier();
    memcpy(&got, &lanes[from >= 0 && from < 32 ? from : lane], sizeof got);
    emulated_warp_barrier();
    return got;
}
template <class T> DEVICE T lane_xor(T value, int mask) {
    return emulated_exchange(value, (thread_index() % 32) ^ mask);
}
template <class T> DEVICE T lane_up(T value, int by) { return emulated_exchange(value, thread_index() % 32 - by); }
template <class T> DEVICE T lane_of(T value, int lane) { return emulated_exchange(value, lane & 31); }
static inline uint32_t lanes_where(bool yes) {
    emulated_lane *lanes = emulated_lanes();
    uint32_t mask = 0;
    lanes[thread_index() % 32].words[0] = yes;
    emulated_warp_barrier();
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)lanes[i].words[0] << i;
    emulated_warp_barrier();
    return mask;
}
static inline uint32_t lanes_equal(uint32_t value) {
    emulated_lane *lanes = emulated_lanes();
    uint32_t mask = 0;
    lanes[thread_index() % 32].words[0] = value;
    emulated_warp_barrier();
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(lanes[i].words[0] == value) << i;
    emulated_warp_barrier();
    return mask;
}
DEVICE void count_up(uint32_t *count) { ++*count; }
DEVICE uint32_t take_number(uint32_t *count) { return (*count)++; }
DEVICE float read_written(const float *p) { return *p; }
DEVICE int count_bits(uint32_t bits) { return __builtin_popcount(bits); }

DEVICE float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float float_of_half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00)
        return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    const float x = magnitude < 0x400 ? (float)magnitude * 0x1p-24f : float_of_bits((magnitude << 13) + 0x38000000);
    return sign ? -x : x;
}
DEVICE uint16_t half_of_float(float x) {
    const uint32_t bits = bits_of_float(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000)
        return (uint16_t)(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112 << 10)));
}
DEVICE uint16_t bfloat_of_float(float x) {
    const uint32_t bits = bits_of_float(x);
    return x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
DEVICE float power_of_two(float x) { return exp2f(x); }
typedef float (*emulated_widen)(uint16_t);
static inline float emulated_bfloat(uint16_t h) { return float_of_bits((uint32_t)h << 16); }
static inline float emulated_half(uint16_t h) { return float_of_half(h); }
/* Each lane puts its share of both operands where all see it, and adds up its own four results. */
static inline void emulated_mma(float *d, const uint32_t *a, const uint32_t *b, emulated_widen widen) {
    static uint32_t shares[32][32][6]; /* of each warp */
    const int lane = thread_index() % 32, group = lane / 4, pair = lane % 4;
    uint32_t (*warp)[6] = shares[thread_index() / 32];
    memcpy(warp[lane], a, 16);
    memcpy(warp[lane] + 4, b, 8);
    emulated_warp_barrier();
    for (int i = 0; i < 4; i++) {
        const int row = group + (i >= 2 ? 8 : 0), column = 2 * pair + (i & 1);
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const int word = k % 8 / 2, shift = k % 2 * 16, far = k >= 8;
            const uint32_t x = warp[row % 8 * 4 + word][(row >= 8) + 2 * far], y = warp[column * 4 + word][4 + far];
            sum += widen((uint16_t)(x >> shift)) * widen((uint16_t)(y >> shift));
        }
        d[i] += sum;
    }
    emulated_warp_barrier();
}
static inline void mma_f16(float *d, const uint32_t *a, const uint32_t *b) { emulated_mma(d, a, b, emulated_half); }
static inline void mma_bf16(float *d, const uint32_t *a, const uint32_t *b) { emulated_mma(d, a, b, emulated_bfloat); }
static inline void load_matrices(uint32_t *out, const void *row) {
    static const void *rows[32][32];
    const int lane = thread_index() % 32;
    const void **warp = rows[thread_index() / 32];
    warp[lane] = row;
    emulated_warp_barrier();
    for (int m = 0; m < 4; m++)
        memcpy(&out[m], (const char *)warp[8 * m + lane / 4] + 4 * (lane % 4), 4);
    emulated_warp_barrier();
}
static inline void load_matrices_turned(uint32_t *out, const void *row) {
    static const void *rows[32][32];
    const int lane = thread_index() % 32;
    const void **warp = rows[thread_index() / 32];
    warp[lane] = row;
    emulated_warp_barrier();
    for (int m = 0; m < 4; m++) {
        uint16_t half[2];
        for (int i = 0; i < 2; i++)
            memcpy(&half[i], (const char *)warp[8 * m + 2 * (lane % 4) + i] + 2 * (lane / 4), 2);
        memcpy(&out[m], half, 4);
    }
    emulated_warp_barrier();
}
struct alignas(16) emulated_16 { char bytes[16]; };
DEVICE void copy_16(void *to, const void *from, int bytes) {
    emulated_16 value = {};
    if (bytes == 16)
        value = *static_cast<const emulated_16 *>(from);
    else if (bytes > 0)
        memcpy(value.bytes, from, (size_t)bytes);
    *static_cast<emulated_16 *>(to) = value;
}
DEVICE void commit_copies() {}
template <int pending> DEVICE void wait_copies() {}

/* The tensor cores of sm_90a: each thread makes its own results from the block's memory. */
#define HAS_WGMMA 1
struct block_matrix {
    const char *at;
    int across;
};
DEVICE block_matrix matrix_at(const void *p, int across) { return {static_cast<const char *>(p), across}; }
DEVICE void show_copies() {}
DEVICE void wgmma_begin() {}
DEVICE void wgmma_commit() {}
template <int pending> DEVICE void wgmma_wait() {}
static inline float emulated_item(const block_matrix &m, bool along_k, int line, int k, emulated_widen widen) {
    const int at = along_k ? line / 8 * 1024 + line % 8 * 128 + k * 2
                           : line / 64 * m.across + k / 8 * 1024 + k % 8 * 128 + line % 64 * 2;
    const uintptr_t plain = reinterpret_cast<uintptr_t>(m.at) + static_cast<uintptr_t>(at);
    uint16_t item;
    memcpy(&item, reinterpret_cast<const void *>(plain ^ (plain >> 7 & 7) << 4), 2);
    return widen(item);
}
template <int N>
static inline void emulated_wgmma(float (&d)[N], block_matrix a, block_matrix b, bool a_along_k, bool b_along_k,
                                  emulated_widen widen) {
    const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
    for (int i = 0; i < N; i++) {
        const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += emulated_item(a, a_along_k, row, k, widen) * emulated_item(b, b_along_k, column, k, widen);
        d[i] += sum;
    }
}
template <bool A_ALONG_K, bool B_ALONG_K, int N> DEVICE void wgmma_f16(float (&d)[N], block_matrix a, block_matrix b) {
    emulated_wgmma(d, a, b, A_ALONG_K, B_ALONG_K, emulated_half);
}
template <bool A_ALONG_K, bool B_ALONG_K, int N> DEVICE void wgmma_bf16(float (&d)[N], block_matrix a, block_matrix b) {
    emulated_wgmma(d, a, b, A_ALONG_K, B_ALONG_K, emulated_bfloat);
}
#endif
