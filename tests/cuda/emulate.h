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

/* Nothing has to be inlined: where everything is, compiling takes seven times as long, and what runs is no faster. */
#define DEVICE static inline __attribute__((unused))
#define DEVICE_CALL static __attribute__((noinline, unused))
#define METHOD inline
#define KERNEL(name, ARGS, threads)                                                                                    \
    static void name##_thread(const ARGS &a);                                                                          \
    extern "C" __attribute__((visibility("default"))) const emulated_facts name##_facts = {(threads), sizeof(ARGS)};   \
    extern "C" __attribute__((visibility("default"))) void name(const void *args) {                                    \
        name##_thread(*static_cast<const ARGS *>(args));                                                               \
    }                                                                                                                  \
    static void name##_thread(const ARGS &a)
#define KERNEL_OF_TWO KERNEL
#define KERNEL_OF_THREE KERNEL
#define KERNEL_OF_SIX KERNEL
#define KERNEL_AHEAD KERNEL
#define KERNEL_AHEAD_OF_FIVE KERNEL
#define KERNEL_OF_REGISTERS(name, ARGS, threads, registers) KERNEL(name, ARGS, threads)
#define SHARED static /* blocks come one after another */
#define UNROLL
#define CONSTANT_TABLE static const
#define DEVICE_TABLE static const
#define DEVICE_COUNTS static

/* ---- fibers.cpp ---- */
#pragma GCC visibility push(hidden)
/* Of the thread that runs now; launches come one after another. */
struct emulated_thread {
    int thread, threads, cluster; /* cluster: blocks of one */
    int64_t block[3], blocks[3];
    char *memory; /* of the block */
};
extern emulated_thread emulated;
void emulated_barrier();
void emulated_warp_barrier();
void emulated_cluster_barrier();
char *emulated_memory(int rank);
struct emulated_lane { uint64_t words[4]; };
/* [32] of the warp, for exchanges: after each of its barriers the other one of two, so that a lane that goes on does
 * not overwrite what others are still to read. */
emulated_lane *emulated_lanes();
bool emulated_is_last(); /* of its warp, before the warp's barrier */
/* What the last lane of a warp multiplies for all of them, sixteen rows and so many columns; each reads its part right
 * after the barrier. */
struct emulated_product { float a[16][16], b[16][256], out[16][256]; }; /* b[k][column] */
extern emulated_product emulated_warp;
void emulated_multiply(int columns);
#pragma GCC visibility pop

DEVICE int thread_index() { return emulated.thread; }
DEVICE int warp_number() { return emulated.thread / 32; }
DEVICE int thread_count() { return emulated.threads; }
DEVICE int64_t block_index() { return emulated.block[0]; }
DEVICE int64_t block_count() { return emulated.blocks[0]; }
DEVICE int64_t block_index_y() { return emulated.block[1]; }
DEVICE int64_t block_index_z() { return emulated.block[2]; }
DEVICE void barrier() { emulated_barrier(); }
DEVICE void wait_for_before() {} /* the kernel before has ended */
DEVICE void let_next_begin() {}
DEVICE void wait_for_others() {}
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
    return mask;
}
static inline uint32_t most_of_lanes(uint32_t value) {
    emulated_lane *lanes = emulated_lanes();
    uint32_t most = 0;
    lanes[thread_index() % 32].words[0] = value;
    emulated_warp_barrier();
    for (int i = 0; i < 32; i++)
        if (lanes[i].words[0] > most)
            most = (uint32_t)lanes[i].words[0];
    return most;
}
static inline uint32_t lanes_equal(uint32_t value) {
    emulated_lane *lanes = emulated_lanes();
    uint32_t mask = 0;
    lanes[thread_index() % 32].words[0] = value;
    emulated_warp_barrier();
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(lanes[i].words[0] == value) << i;
    return mask;
}
DEVICE void count_up(uint32_t *count) { ++*count; }
DEVICE void raise_to(uint32_t *word, uint32_t value) { *word = value > *word ? value : *word; }
struct block_words { uint32_t *at; };
DEVICE block_words words_at(uint32_t *words) { return {words}; }
DEVICE uint32_t add_to(block_words words, int i, uint32_t value) {
    const uint32_t before = words.at[i];
    words.at[i] += value;
    return before;
}
DEVICE void add_number(int64_t *number, int64_t value) { *number = (int64_t)((uint64_t)*number + (uint64_t)value); }
DEVICE void set_bits(uint32_t *word, uint32_t bits) { *word |= bits; }
DEVICE uint32_t take_number(uint32_t *count) { return (*count)++; }
template <class T> DEVICE T read_written(const T *p) { return *p; }
DEVICE void publish(uint64_t *at, const uint32_t *words) {
    for (int i = 0; i < 2; i++)
        at[i] = (uint64_t)1 << 32 | words[i];
}
/* Blocks come one after another: what is waited for must be there. */
DEVICE bool is_published(const uint64_t *at, uint32_t *words) {
    for (int i = 0; i < 2; i++) {
        if (at[i] >> 32 != 1)
            __builtin_trap();
        words[i] = (uint32_t)at[i];
    }
    return true;
}
template <class T> DEVICE void store_past(T *to, const T &value) { *to = value; }
DEVICE int count_bits(uint32_t bits) { return __builtin_popcount(bits); }
DEVICE int leading_zeros(uint64_t bits) { return __builtin_clzll(bits); }

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
DEVICE uint32_t two_halves(float low, float high) { return half_of_float(low) | (uint32_t)half_of_float(high) << 16; }
DEVICE uint32_t two_bfloats(float low, float high) {
    return bfloat_of_float(low) | (uint32_t)bfloat_of_float(high) << 16;
}
DEVICE float power_of_two(float x) { return exp2f(x); }
template <bool BF16> static inline float emulated_widen(uint16_t h) {
    return BF16 ? float_of_bits((uint32_t)h << 16) : float_of_half(h);
}
/* Each lane puts its share of both operands where all see it, and takes its own four results. */
template <bool BF16> static void emulated_mma(float *d, const uint32_t *a, const uint32_t *b) {
    const int lane = thread_index() % 32, group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 2; i++) {
        for (int part = 0; part < 4; part++)
            emulated_warp.a[group + part % 2 * 8][pair + i + part / 2 * 8] = emulated_widen<BF16>(
                (uint16_t)(a[part] >> 16 * i));
        for (int part = 0; part < 2; part++)
            emulated_warp.b[pair + i + part * 8][group] = emulated_widen<BF16>((uint16_t)(b[part] >> 16 * i));
    }
    if (emulated_is_last())
        emulated_multiply(8);
    emulated_warp_barrier();
    for (int i = 0; i < 4; i++)
        d[i] += emulated_warp.out[group + i / 2 * 8][pair + i % 2];
}
static inline void mma_f16(float *d, const uint32_t *a, const uint32_t *b) { emulated_mma<false>(d, a, b); }
static inline void mma_bf16(float *d, const uint32_t *a, const uint32_t *b) { emulated_mma<true>(d, a, b); }
/* All lanes' rows: where matrix m's row r is, at [8 * m + r]. */
static inline emulated_lane *emulated_rows(const void *row) {
    emulated_lane *lanes = emulated_lanes();
    lanes[thread_index() % 32].words[0] = reinterpret_cast<uintptr_t>(row);
    emulated_warp_barrier();
    return lanes;
}
static inline const char *emulated_row(const emulated_lane *rows, int which) {
    return reinterpret_cast<const char *>(static_cast<uintptr_t>(rows[which].words[0]));
}
static inline void load_matrices(uint32_t *out, const void *row) {
    const int lane = thread_index() % 32;
    const emulated_lane *rows = emulated_rows(row);
    for (int m = 0; m < 4; m++)
        memcpy(&out[m], emulated_row(rows, 8 * m + lane / 4) + 4 * (lane % 4), 4);
}
static inline void load_matrices_turned(uint32_t *out, const void *row) {
    const int lane = thread_index() % 32;
    const emulated_lane *rows = emulated_rows(row);
    for (int m = 0; m < 4; m++) {
        uint16_t half[2];
        for (int i = 0; i < 2; i++)
            memcpy(&half[i], emulated_row(rows, 8 * m + 2 * (lane % 4) + i) + 2 * (lane / 4), 2);
        memcpy(&out[m], half, 4);
    }
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
DEVICE void copy_16_of_row(void *to, const void *from) { copy_16(to, from, 16); }
DEVICE void commit_copies() {}
template <int pending> DEVICE void wait_copies() {}

/* An arrival: how many lanes copy for a phase, and how many have. */
#define HAS_LONG_COPIES 1
DEVICE void begin_arrival(uint64_t *arrival, int lanes) { *arrival = (uint64_t)lanes << 32; }
DEVICE void show_arrivals() {}
DEVICE bool is_chosen_lane() { return thread_index() % 32 == 0; }
DEVICE void arrive_with_copies(uint64_t *arrival) { ++*arrival; }
template <bool ONCE = true> DEVICE void copy_long(void *to, const void *from, int bytes, uint64_t *arrival) {
    if (bytes % 16)
        __builtin_trap();
    for (int at = 0; at < bytes; at += 16)
        copy_16(static_cast<char *>(to) + at, static_cast<const char *>(from) + at, 16);
    ++*arrival;
}
/* That phase must be the last that has ended. */
static inline void wait_arrival(const uint64_t *arrival, int phase) {
    emulated_warp_barrier();
    const uint64_t lanes = *arrival >> 32, came = *arrival & 0xffffffff;
    if (lanes == 0 || came == 0 || came % lanes || (came / lanes - 1) % 2 != (uint64_t)phase)
        __builtin_trap();
}

/* The tensor cores of sm_90a: a warp's last lane makes the results of all of them from the block's memory. */
#define HAS_WGMMA 1
struct block_matrix {
    const char *at;
    int across;
    METHOD block_matrix after(int bytes) const { return {at + bytes, across}; }
};
DEVICE block_matrix matrix_at(const void *p, int across) { return {static_cast<const char *>(p), across}; }
DEVICE void show_copies() {}
DEVICE void wgmma_begin() {}
DEVICE void wgmma_commit() {}
template <int pending> DEVICE void wgmma_wait() {}
template <bool BF16, bool ALONG_K> static inline float emulated_item(const block_matrix &m, int line, int k) {
    const int at = ALONG_K ? line / 8 * 1024 + line % 8 * 128 + k * 2
                           : line / 64 * m.across + k / 8 * 1024 + k % 8 * 128 + line % 64 * 2;
    const uintptr_t plain = reinterpret_cast<uintptr_t>(m.at) + static_cast<uintptr_t>(at);
    uint16_t item;
    memcpy(&item, reinterpret_cast<const void *>(plain ^ (plain >> 7 & 7) << 4), 2);
    return emulated_widen<BF16>(item);
}
/* rows: of a, where a warp's lanes have them; else a is one of the block's memory. */
template <bool BF16, bool A_ALONG_K, bool B_ALONG_K, bool ADDS, int N>
static void emulated_wgmma(float (&d)[N], const uint32_t *rows, block_matrix a, block_matrix b) {
    const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
    for (int part = 0; part < 4 && rows; part++)
        for (int i = 0; i < 2; i++)
            emulated_warp.a[lane / 4 + part % 2 * 8][lane % 4 * 2 + i + part / 2 * 8] = emulated_widen<BF16>(
                (uint16_t)(rows[part] >> 16 * i));
    if (emulated_is_last()) {
        for (int k = 0; k < 16; k++) {
            for (int row = 0; row < 16 && !rows; row++)
                emulated_warp.a[row][k] = emulated_item<BF16, A_ALONG_K>(a, warp * 16 + row, k);
            for (int column = 0; column < 2 * N; column++)
                emulated_warp.b[k][column] = emulated_item<BF16, B_ALONG_K>(b, column, k);
        }
        emulated_multiply(2 * N);
    }
    emulated_warp_barrier();
    for (int i = 0; i < N; i++)
        d[i] = (ADDS ? d[i] : 0) + emulated_warp.out[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}
#define EMULATED_WGMMA(name, BF16)                                                                                     \
    template <bool A_ALONG_K, bool B_ALONG_K, bool ADDS = true, int N>                                                 \
    DEVICE void name(float (&d)[N], block_matrix a, block_matrix b) {                                                  \
        emulated_wgmma<BF16, A_ALONG_K, B_ALONG_K, ADDS>(d, nullptr, a, b);                                            \
    }                                                                                                                  \
    template <int N> DEVICE void name##_of_rows(float (&d)[N], const uint32_t *a, block_matrix b) {                    \
        emulated_wgmma<BF16, true, false, true>(d, a, block_matrix{}, b);                                              \
    }
EMULATED_WGMMA(wgmma_f16, false)
EMULATED_WGMMA(wgmma_bf16, true)
template <int N> DEVICE void wgmma_result(float (&)[N]) {}
#endif
