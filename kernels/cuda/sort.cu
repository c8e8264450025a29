/* sort.cu - sort, argsort, partition, top k, search: all by keys of 64 bits that are in the order of the elements, and
 * indices, so that equals stay in order. Short rows are sorted in a block's memory; others digit by digit, from the last
 * one, each pass in three kernels: counts of digits by chunks, where they begin, and the move. Also random words. */
#include "functions.cuh"

#define DIGITS 256
#define SORT_WARPS (CUDA_THREADS / WARP)

/* ---- keys, as keys.inc of the processor has them ---- */
DEVICE uint32_t key_of_float(uint32_t x, bool one_zero) {
    if ((x & 0x7fffffff) > 0x7f800000) return 0xffffffff;
    if (one_zero && x == 0x80000000u) x = 0;
    return x & 0x80000000u ? ~x : x | 0x80000000u;
}
DEVICE uint32_t key_of_half(uint32_t x, uint32_t infinity, bool one_zero) {
    if ((x & 0x7fff) > infinity) return 0xffff;
    if (one_zero && x == 0x8000) x = 0;
    return (x ^ (x >> 15 ? 0xffff : 0x8000)) & 0xffff;
}
DEVICE uint64_t key_of(const void *in, int64_t i, int type, bool one_zero) {
    switch (type) {
    case GM_T_F16: return key_of_half(((const uint16_t *)in)[i], 0x7c00, one_zero);
    case GM_T_BF16: return key_of_half(((const uint16_t *)in)[i], 0x7f80, one_zero);
    case GM_T_F32: return key_of_float(((const uint32_t *)in)[i], one_zero);
    case GM_T_C64: {
        const uint64_t re = key_of_float(((const uint32_t *)in)[2 * i], true);
        const uint64_t im = key_of_float(((const uint32_t *)in)[2 * i + 1], one_zero);
        return re == 0xffffffff || im == 0xffffffff ? UINT64_MAX : re << 32 | im;
    }
    case GM_T_U64: return ((const uint64_t *)in)[i];
    default: { /* as many bits as the type has */
        const int bits = 8 * item_size(type);
        const uint64_t x = (uint64_t)load_int(in, i, type), mask = bits == 64 ? UINT64_MAX : (1ull << bits) - 1;
        return is_signed_type(type) ? (x ^ 1ull << (bits - 1)) & mask : x;
    }
    }
}
/* Element `index` of a row, or that number, to place `at` of what is kept of the row. */
DEVICE void put_sorted(const cuda_sort_args &a, int64_t row, int64_t at, uint32_t index) {
    at -= a.length - a.kept;
    if (at < 0) return;
    const int64_t to = row * a.kept + at, from = row * a.length + index;
    if (a.take_indices) {
        ((uint32_t *)a.out)[to] = index;
        return;
    }
    switch (item_size(a.type)) {
    case 1: ((uint8_t *)a.out)[to] = ((const uint8_t *)a.in)[from]; break;
    case 2: ((uint16_t *)a.out)[to] = ((const uint16_t *)a.in)[from]; break;
    case 4: ((uint32_t *)a.out)[to] = ((const uint32_t *)a.in)[from]; break;
    default: ((uint64_t *)a.out)[to] = ((const uint64_t *)a.in)[from];
    }
}
/* Below the k-th, equal to it, above. */
DEVICE uint64_t class_of(uint64_t key, uint64_t kth) { return (uint64_t)(key >= kth) + (key > kth); }

/* ---- short rows: a bitonic network over pairs in the block's memory ---- */
DEVICE void sort_pairs(uint64_t *keys, uint32_t *indices, int size) {
    for (int width = 2; width <= size; width *= 2)
        for (int step = width / 2; step > 0; step /= 2) {
            barrier();
            for (int t = thread_index(); t < size / 2; t += CUDA_THREADS) {
                const int i = t / step * 2 * step + t % step, j = i + step;
                const bool down = (i & width) != 0;
                const bool more = keys[i] > keys[j] || (keys[i] == keys[j] && indices[i] > indices[j]);
                if (more == down) continue;
                const uint64_t key = keys[i];
                const uint32_t index = indices[i];
                keys[i] = keys[j];
                indices[i] = indices[j];
                keys[j] = key;
                indices[j] = index;
            }
        }
    barrier();
}
DEVICE int padded_size(int64_t n) {
    int size = 2;
    while (size < n) size *= 2;
    return size;
}
/* a.k < 0: all in order; else split at the k-th. Keys are those of a.keys where there are any: then out gets none, and
 * they are put in order in their place, with indices. */
KERNEL(gm_sort_short, cuda_sort_args, CUDA_THREADS) {
    const int size = padded_size(a.length);
    uint64_t *keys = (uint64_t *)block_memory();
    uint32_t *indices = (uint32_t *)(keys + size);
    const int64_t row = block_index(), n = a.length;
    for (int i = thread_index(); i < size; i += CUDA_THREADS) {
        keys[i] = i >= n ? UINT64_MAX : a.keys ? a.keys[row * n + i] : key_of(a.in, row * n + i, a.type, a.one_zero);
        indices[i] = (uint32_t)i; /* what pads comes after all that are equal to it */
    }
    sort_pairs(keys, indices, size);
    if (a.k >= 0) {
        const uint64_t kth = keys[a.k];
        barrier();
        for (int i = thread_index(); i < size; i += CUDA_THREADS)
            keys[i] = i >= n ? UINT64_MAX : class_of(keys[i], kth);
        sort_pairs(keys, indices, size);
    }
    for (int i = thread_index(); i < n; i += CUDA_THREADS) {
        if (a.keys) {
            a.keys[row * n + i] = keys[i];
            a.indices[row * n + i] = indices[i];
        } else {
            put_sorted(a, row, i, indices[i]);
        }
    }
}

/* ---- long rows, digit by digit ---- */
KERNEL(gm_sort_keys, cuda_sort_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.rows * a.length) return;
    if (a.in) a.keys[i] = key_of(a.in, i, a.type, a.one_zero);
    a.indices[i] = (uint32_t)(i % a.length);
}
/* Keys become classes around the k-th of their row; a.other_keys has the keys in order, a.keys as they came. */
KERNEL(gm_sort_classes, cuda_sort_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.rows * a.length) return;
    const int64_t row = i / a.length;
    a.keys[i] = class_of(key_of(a.in, i, a.type, a.one_zero), a.other_keys[row * a.length + a.k]);
    a.indices[i] = (uint32_t)(i - row * a.length);
}
/* Element e of the 32 that one lane of a warp takes of a chunk: warps take stretches, lanes are side by side. */
DEVICE int64_t sort_place(int64_t chunk, int e) {
    const int each = CUDA_SORT_CHUNK / SORT_WARPS;
    return chunk * CUDA_SORT_CHUNK + thread_index() / WARP * each + e * WARP + thread_index() % WARP;
}
#define SORT_ROUNDS (CUDA_SORT_CHUNK / CUDA_THREADS)
/* How often each digit is in the stretch of each warp. */
DEVICE void count_digits(const cuda_sort_args &a, uint32_t (*counts)[DIGITS], int64_t row, int64_t chunk) {
    for (int i = thread_index(); i < SORT_WARPS * DIGITS; i += CUDA_THREADS) counts[0][i] = 0;
    barrier();
    uint32_t *own = counts[thread_index() / WARP];
    for (int e = 0; e < SORT_ROUNDS; e++) {
        const int64_t at = sort_place(chunk, e);
        const bool real = at < a.length;
        const uint32_t digit = real ? (uint32_t)(a.keys[row * a.length + at] >> a.shift) & (DIGITS - 1) : DIGITS;
        const uint32_t same = lanes_equal(digit);
        if (real && (same & ((1u << thread_index() % WARP) - 1)) == 0) own[digit] += (uint32_t)count_bits(same);
        warp_barrier();
    }
    barrier();
}
KERNEL(gm_sort_count, cuda_sort_args, CUDA_THREADS) {
    SHARED uint32_t counts[SORT_WARPS][DIGITS];
    const int64_t row = block_index() / a.chunks, chunk = block_index() % a.chunks;
    count_digits(a, counts, row, chunk);
    uint32_t sum = 0;
    for (int w = 0; w < SORT_WARPS; w++) sum += counts[w][thread_index()];
    a.counts[(row * DIGITS + thread_index()) * a.chunks + chunk] = sum;
}
/* Counts become places: those of a row, in the order of digits, then chunks. A block for each row. */
KERNEL(gm_sort_places, cuda_sort_args, CUDA_THREADS) {
    SHARED uint32_t sums[CUDA_THREADS];
    uint32_t *line = a.counts + block_index() * DIGITS * a.chunks;
    const int64_t n = DIGITS * a.chunks, each = (n + CUDA_THREADS - 1) / CUDA_THREADS;
    const int64_t begin = thread_index() * each, end = begin + each < n ? begin + each : n;
    uint32_t sum = 0, before = 0;
    for (int64_t i = begin; i < end; i++) sum += line[i];
    sums[thread_index()] = sum;
    barrier();
    for (int t = 0; t < thread_index(); t++) before += sums[t];
    for (int64_t i = begin; i < end; i++) {
        const uint32_t count = line[i];
        line[i] = before;
        before += count;
    }
}
KERNEL(gm_sort_move, cuda_sort_args, CUDA_THREADS) {
    SHARED uint32_t next[SORT_WARPS][DIGITS];
    const int64_t row = block_index() / a.chunks, chunk = block_index() % a.chunks, base = row * a.length;
    count_digits(a, next, row, chunk);
    uint32_t at = a.counts[(row * DIGITS + thread_index()) * a.chunks + chunk];
    for (int w = 0; w < SORT_WARPS; w++) { /* where each warp's stretch puts a digit */
        const uint32_t count = next[w][thread_index()];
        next[w][thread_index()] = at;
        at += count;
    }
    barrier();
    uint32_t *own = next[thread_index() / WARP];
    for (int e = 0; e < SORT_ROUNDS; e++) {
        const int64_t from = sort_place(chunk, e);
        const bool real = from < a.length;
        const uint64_t key = real ? a.keys[base + from] : 0;
        const uint32_t digit = real ? (uint32_t)(key >> a.shift) & (DIGITS - 1) : DIGITS;
        const uint32_t same = lanes_equal(digit), earlier = same & ((1u << thread_index() % WARP) - 1);
        uint32_t to = 0;
        if (real) to = own[digit] + (uint32_t)count_bits(earlier);
        warp_barrier();
        if (real && earlier == 0) own[digit] += (uint32_t)count_bits(same);
        warp_barrier();
        if (!real) continue;
        a.other_keys[base + to] = key;
        a.other_indices[base + to] = a.indices[base + from];
    }
}
KERNEL(gm_sort_values, cuda_sort_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.rows * a.length) return;
    const int64_t row = i / a.length;
    put_sorted(a, row, i - row * a.length, a.indices[i]);
}

KERNEL(gm_search, cuda_search_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.count) return;
    const uint64_t key = key_of(a.values, i, a.type, true);
    int64_t low = 0, count = a.length;
    while (count > 0) {
        const int64_t half = count / 2;
        const uint64_t probe = key_of(a.sorted, low + half, a.type, true);
        const bool after = a.right ? probe <= key : probe < key;
        low = after ? low + half + 1 : low;
        count = after ? count - half - 1 : half;
    }
    a.out[i] = (uint32_t)low;
}

/* ---- random numbers, as random.inc of the processor has them ---- */
DEVICE void threefry_round(uint32_t &x, uint32_t &y, int distance) {
    x += y;
    y = y << distance | y >> (32 - distance);
    y ^= x;
}
DEVICE void threefry_words(const uint32_t *key, uint32_t &x, uint32_t &y) {
    const int distances[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t words[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bdau};
    x += words[0];
    y += words[1];
    UNROLL for (int group = 0; group < 5; group++) {
        UNROLL for (int r = 0; r < 4; r++) threefry_round(x, y, distances[group % 2][r]);
        x += words[(group + 1) % 3];
        y += words[(group + 2) % 3] + (uint32_t)group + 1;
    }
}
DEVICE void put_random(const cuda_threefry_args &a, int64_t at, uint32_t word) {
    if (a.kind == GM_RANDOM_BITS) {
        ((uint32_t *)a.out)[at] = word;
        return;
    }
    float x = (float)word * 0x1p-32f;
    x = x < 0x1.fffffep-1f ? x : 0x1.fffffep-1f;
    if (a.kind == GM_RANDOM_UNIFORM) {
        const float below_1 = a.type == GM_T_F16 ? 0x1.ffcp-1f : a.type == GM_T_BF16 ? 0x1.fep-1f : 0x1.fffffep-1f;
        x = round_float(x, a.type);
        x = x < below_1 ? x : below_1;
    } else if (a.kind == GM_RANDOM_NORMAL) {
        x = round_float(vf_erfinv(x * 2.0f + -0x1.fffffep-1f), a.type);
    } else {
        x = round_float(-vf_log(-vf_log(x)), a.type);
    }
    x = round_float(x * a.factor, a.type);
    store_float(a.out, at, x + a.shift, a.type);
}
KERNEL(gm_threefry, cuda_threefry_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), half = (a.words + 1) / 2;
    if (i >= a.count) return;
    const int64_t key = i / half, j = i % half;
    const bool second = half + j < a.words;
    uint32_t x = (uint32_t)j, y = second ? (uint32_t)(half + j) : 0;
    threefry_words(a.keys + 2 * key, x, y);
    put_random(a, key * a.words + j, x);
    if (second) put_random(a, key * a.words + half + j, y);
}
