/* order.cuh - a chunk of elements put in order by a digit of eight bits, equals in the order in which they were.
 * Blocks have CUDA_SORT_THREADS threads. */
#ifndef GOMLX_CUDA_ORDER_CUH
#define GOMLX_CUDA_ORDER_CUH
#include "elements.cuh"

/* Element e of those that a thread takes of a chunk: warps take stretches, lanes are side by side. */
DEVICE int64_t sort_place(int64_t chunk, int e) {
    const int stretch = WARP * CUDA_SORT_EACH;
    return chunk * CUDA_SORT_CHUNK + thread_index() / WARP * stretch + e * WARP + thread_index() % WARP;
}
/* The sum of what the threads before this one of a block have; *total: of all. sums: one for each warp. */
template <class T> DEVICE T sum_before(T own, T *sums, T *total) {
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    T through = own;
    UNROLL for (int by = 1; by < WARP; by *= 2) {
        const T other = lane_up(through, by);
        if (lane >= by) through += other;
    }
    barrier();
    if (lane == WARP - 1) sums[warp] = through;
    barrier();
    T before = through - own, all = 0;
    for (int w = 0; w < thread_count() / WARP; w++) {
        if (w < warp) before += sums[w];
        all += sums[w];
    }
    *total = all;
    return before;
}
#define SORT_WARPS (CUDA_SORT_THREADS / WARP)
/* Where a thread's elements are in a chunk in order, two to a register. */
struct chunk_places {
    uint32_t pair[CUDA_SORT_EACH / 2];
    METHOD uint32_t operator[](int e) const { return pair[e / 2] >> e % 2 * 16 & 0xffff; }
    METHOD void set(int e, uint32_t place) { pair[e / 2] = e % 2 ? pair[e / 2] | place << 16 : place; } /* in order */
    METHOD void move(int e, uint32_t by) { pair[e / 2] += by << e % 2 * 16; }
};
/* digit(e): of this thread's e-th element. at[e]: where that is when the chunk is in order. next: room for counts, and
 * after them for as many masks, which have no use before and after.
 * `above` is of digit d, for thread d of the first CUDA_SORT_DIGITS; that thread gets the sum of `above` of lower
 * digits in the upper half of the result, and where its digit begins in the chunk in the lower. Ends with a barrier. */
template <class F>
DEVICE uint64_t order_chunk(F digit, chunk_places &at, uint32_t *next, uint64_t *sums, uint32_t above) {
    constexpr int EACH = CUDA_SORT_EACH, DIGITS = CUDA_SORT_DIGITS;
    const int warp = thread_index() / WARP, d = thread_index();
    uint32_t *counts = next + warp * DIGITS, *masks = counts + SORT_WARPS * DIGITS;
    const uint32_t lane = 1u << thread_index() % WARP;
    for (int i = thread_index(); i < 2 * SORT_WARPS * DIGITS; i += CUDA_SORT_THREADS) next[i] = 0;
    barrier();
    UNROLL for (int e = 0; e < EACH; e++) { /* the place among the warp's elements of this digit */
        const uint32_t d = digit(e);
        set_bits(&masks[d], lane);
        warp_barrier();
        const uint32_t same = masks[d], earlier = same & (lane - 1), before = counts[d];
        at.set(e, before + (uint32_t)count_bits(earlier));
        warp_barrier();
        if (earlier == 0) {
            counts[d] = before + (uint32_t)count_bits(same);
            masks[d] = 0;
        }
        warp_barrier();
    }
    barrier();
    uint32_t count = 0;
    if (d < DIGITS)
        for (int w = 0; w < SORT_WARPS; w++) {
            const uint32_t of_warp = next[w * DIGITS + d];
            next[w * DIGITS + d] = count;
            count += of_warp;
        }
    uint64_t total;
    const uint64_t before = sum_before(d < DIGITS ? (uint64_t)above << 32 | count : 0, sums, &total);
    if (d < DIGITS)
        for (int w = 0; w < SORT_WARPS; w++) next[w * DIGITS + d] += (uint32_t)before;
    barrier();
    UNROLL for (int e = 0; e < EACH; e++)
        at.move(e, next[warp * DIGITS + digit(e)]);
    return before;
}
#endif
