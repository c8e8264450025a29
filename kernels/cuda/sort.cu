/* sort.cu - sort, argsort, partition, top k, search: all by keys of 64 bits that are in the order of the elements, and
 * indices, so that equals stay in order. Short rows are sorted in a block's memory; others digit by digit, from the
 * last one, each pass in three kernels: counts of digits by chunks, where they begin, and the move, which puts a chunk
 * in order first. Keys of at most 32 bits that give their elements back need no indices. Also random words. */
#include "functions.cuh"
#include "order.cuh"

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
/* The bits of element `index` of a row, or that number. */
DEVICE uint64_t sorted_bits(const cuda_sort_args &a, int64_t row, uint32_t index) {
    const int64_t from = row * a.length + index; /* of a.values */
    if (a.take_indices) return index;
    switch (item_size(a.type)) {
    case 1: return ((const uint8_t *)a.values)[from];
    case 2: return ((const uint16_t *)a.values)[from];
    case 4: return ((const uint32_t *)a.values)[from];
    default: return ((const uint64_t *)a.values)[from];
    }
}
/* Such bits to place `at` of what is kept of the row. */
DEVICE void put_sorted(const cuda_sort_args &a, int64_t row, int64_t at, uint64_t bits) {
    const int64_t to = row * a.kept + at - (a.length - a.kept);
    if (at < a.length - a.kept) return;
    switch (a.take_indices ? 4 : item_size(a.type)) {
    case 1: ((uint8_t *)a.out)[to] = (uint8_t)bits; break;
    case 2: ((uint16_t *)a.out)[to] = (uint16_t)bits; break;
    case 4: ((uint32_t *)a.out)[to] = (uint32_t)bits; break;
    default: ((uint64_t *)a.out)[to] = bits;
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
template <class K> DEVICE void sort_short(const cuda_sort_args &a) {
    K *const given = (K *)a.keys;
    const int size = padded_size(a.length);
    uint64_t *keys = (uint64_t *)block_memory();
    uint32_t *indices = (uint32_t *)(keys + size);
    const int64_t row = block_index(), n = a.length;
    for (int i = thread_index(); i < size; i += CUDA_THREADS) {
        keys[i] = i >= n ? UINT64_MAX : given ? given[row * n + i] : key_of(a.in, row * n + i, a.type, a.one_zero);
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
    if (given) {
        for (int i = thread_index(); i < n; i += CUDA_THREADS) {
            given[row * n + i] = (K)keys[i];
            a.indices[row * n + i] = indices[i];
        }
        return;
    }
    uint64_t bits[CUDA_SORT_SHORT / CUDA_THREADS]; /* all are read first: out may be where they are */
    UNROLL for (int e = 0; e < CUDA_SORT_SHORT / CUDA_THREADS; e++) {
        const int i = e * CUDA_THREADS + thread_index();
        if (i < n) bits[e] = sorted_bits(a, row, indices[i]);
    }
    barrier();
    UNROLL for (int e = 0; e < CUDA_SORT_SHORT / CUDA_THREADS; e++) {
        const int i = e * CUDA_THREADS + thread_index();
        if (i < n) put_sorted(a, row, i, bits[e]);
    }
}
KERNEL(gm_sort_short_4, cuda_sort_args, CUDA_THREADS) { sort_short<uint32_t>(a); }
KERNEL(gm_sort_short_8, cuda_sort_args, CUDA_THREADS) { sort_short<uint64_t>(a); }

/* ---- long rows, digit by digit ---- */
/* The element of a key that keeps both zeros, of at most 32 bits. */
DEVICE void put_key(const cuda_sort_args &a, int64_t to, uint32_t key) {
    const uint32_t sign = is_signed_type(a.type) ? 1u << (8 * item_size(a.type) - 1) : 0;
    switch (item_size(a.type)) {
    case 1: ((uint8_t *)a.out)[to] = (uint8_t)(key ^ sign); break;
    case 2:
        if (is_float_type(a.type)) ((uint16_t *)a.out)[to] = (uint16_t)(key ^ (key >> 15 ? 0x8000 : 0xffff));
        else ((uint16_t *)a.out)[to] = (uint16_t)(key ^ sign);
        break;
    default:
        if (is_float_type(a.type)) ((uint32_t *)a.out)[to] = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
        else ((uint32_t *)a.out)[to] = key ^ sign;
    }
}
/* The key of element `at` of a row. */
template <class K> DEVICE K sort_key(const cuda_sort_args &a, int64_t row, int64_t at) {
    const int64_t i = row * a.length + at;
    const K key = (K)key_of(a.in, i, a.type, a.one_zero);
    return a.kth ? (K)class_of(key, ((const K *)a.kth)[row * a.length + a.k]) : key;
}
/* Those of a thread's elements of a chunk; what is beyond the end comes last. Where they lie as words, all are on their
 * way before the first is looked at. */
template <class K>
DEVICE void sort_keys(const cuda_sort_args &a, int64_t row, int64_t chunk, K (&key)[CUDA_SORT_EACH]) {
    const int64_t first = sort_place(chunk, 0);
    const int left = (int)(a.length - first < CUDA_SORT_CHUNK ? a.length - first : CUDA_SORT_CHUNK);
    const bool floats = sizeof(K) == 4 && a.in && !a.kth && a.type == GM_T_F32;
    if (!a.in || floats) {
        const K *from = (const K *)(floats ? a.in : a.keys) + row * a.length + first;
        UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++)
            key[e] = e * WARP < left ? from[e * WARP] : (K) ~(K)0;
        UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++)
            if (floats && e * WARP < left) key[e] = (K)key_of_float((uint32_t)key[e], a.one_zero);
        return;
    }
    UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++)
        key[e] = e * WARP < left ? sort_key<K>(a, row, first + e * WARP) : (K) ~(K)0;
}
DEVICE uint32_t digit_of(uint64_t key, int shift) { return (uint32_t)(key >> shift) & (CUDA_SORT_DIGITS - 1); }
#define COUNTERS 4 /* of each digit, so that fewer threads wait for one */
template <class K> DEVICE void sort_count(const cuda_sort_args &a) {
    SHARED uint32_t counts[COUNTERS * CUDA_SORT_DIGITS];
    const int64_t row = block_index() / a.chunks, chunk = block_index() % a.chunks;
    K key[CUDA_SORT_EACH];
    sort_keys(a, row, chunk, key);
    for (int i = thread_index(); i < COUNTERS * CUDA_SORT_DIGITS; i += CUDA_SORT_THREADS) counts[i] = 0;
    barrier();
    UNROLL for (int e = 0; e < CUDA_SORT_EACH; e++)
        if (sort_place(chunk, e) < a.length)
            count_up(&counts[thread_index() / WARP % COUNTERS * CUDA_SORT_DIGITS + digit_of(key[e], a.shift)]);
    barrier();
    if (thread_index() >= CUDA_SORT_DIGITS) return;
    uint32_t sum = 0;
    for (int c = 0; c < COUNTERS; c++) sum += counts[c * CUDA_SORT_DIGITS + thread_index()];
    a.counts[(row * CUDA_SORT_DIGITS + thread_index()) * a.chunks + chunk] = sum;
}
KERNEL(gm_sort_count_4, cuda_sort_args, CUDA_SORT_THREADS) { sort_count<uint32_t>(a); }
KERNEL(gm_sort_count_8, cuda_sort_args, CUDA_SORT_THREADS) { sort_count<uint64_t>(a); }

/* A digit's counts become how many of it are in the chunks before. A block for each row, or for each row and digit. */
KERNEL(gm_sort_places, cuda_sort_args, CUDA_THREADS) {
    SHARED uint32_t sums[CUDA_THREADS / WARP];
    uint32_t run = 0;
    if (a.chunks <= CUDA_SORT_FEW_CHUNKS) {
        const int64_t digit = block_index() * CUDA_SORT_DIGITS + thread_index();
        uint32_t *line = a.counts + digit * a.chunks;
        for (int64_t c = 0; c < a.chunks; c++) {
            const uint32_t count = line[c];
            line[c] = run;
            run += count;
        }
        a.totals[digit] = run;
        return;
    }
    uint32_t *line = a.counts + block_index() * a.chunks;
    for (int64_t first = 0; first < a.chunks; first += CUDA_THREADS) {
        const int64_t c = first + thread_index();
        uint32_t total;
        const uint32_t before = sum_before(c < a.chunks ? line[c] : 0u, sums, &total);
        if (c < a.chunks) line[c] = run + before;
        run += total;
    }
    if (thread_index() == 0) a.totals[block_index()] = run;
}
/* A chunk is put in order in the block's memory, then what is side by side there goes to where its digit is. */
template <class K, bool INDICES> DEVICE void sort_move(const cuda_sort_args &a) {
    constexpr int EACH = CUDA_SORT_EACH, WARPS = CUDA_SORT_THREADS / WARP, DIGITS = CUDA_SORT_DIGITS;
    SHARED uint64_t sums[WARPS];
    SHARED uint32_t bases[DIGITS]; /* where a digit's elements go, less where they are in the block's memory */
    uint32_t *next = (uint32_t *)block_memory();
    K *room = (K *)(next + WARPS * DIGITS);
    const int64_t row = block_index() / a.chunks, chunk = block_index() % a.chunks, base = row * a.length;
    const int d = thread_index() % DIGITS;
    const bool has_digit = thread_index() < DIGITS;
    const uint32_t total = has_digit ? a.totals[row * DIGITS + d] : 0;
    const uint32_t earlier = has_digit ? a.counts[(row * DIGITS + d) * a.chunks + chunk] : 0;
    K key[EACH];
    chunk_places at; /* in the block's memory */
    sort_keys(a, row, chunk, key);
    const uint64_t before = order_chunk([&](int e) { return digit_of(key[e], a.shift); }, at, next, sums, total);
    if (has_digit) bases[d] = (uint32_t)(before >> 32) + earlier - (uint32_t)before;
    UNROLL for (int e = 0; e < EACH; e++)
        room[at[e]] = key[e];
    barrier();
    const int left = (int)(a.length - chunk * CUDA_SORT_CHUNK < CUDA_SORT_CHUNK ? a.length - chunk * CUDA_SORT_CHUNK
                                                                                : CUDA_SORT_CHUNK);
    uint32_t to[EACH];
    const auto move = [&](auto put) { /* half of the chunk at once: two blocks share a processor's registers */
                                      UNROLL for (int half = 0; half < EACH; half += EACH / 2) {
                                          K moved[EACH / 2];
                                          UNROLL for (int e = 0; e < EACH / 2; e++)
                                              moved[e] = room[(half + e) * CUDA_SORT_THREADS +
                                                              thread_index()]; /* of what is beyond the end, too */
                                          UNROLL for (int e = 0; e < EACH / 2; e++) {
                                              const int i = (half + e) * CUDA_SORT_THREADS + thread_index();
                                              to[half + e] = bases[digit_of(moved[e], a.shift)] + (uint32_t)i;
                                              if (i < left) put(to[half + e], moved[e]);
                                          }
                                          warp_barrier();
                                      }
    };
    if (!a.last) move([&](uint32_t at, K moved) { ((K *)a.other_keys)[base + at] = moved; });
    else
        move([&](uint32_t at, K moved) {
            if (!INDICES) put_key(a, base + at, (uint32_t)moved);
        });
    if (!INDICES) return;
    uint32_t *indices = (uint32_t *)room;
    barrier();
    UNROLL for (int e = 0; e < EACH; e++) {
        const int64_t from = sort_place(chunk, e);
        if (from < a.length) indices[at[e]] = a.first ? (uint32_t)from : a.indices[base + from];
    }
    barrier();
    UNROLL for (int e = 0; e < EACH; e++) {
        const int i = e * CUDA_SORT_THREADS + thread_index();
        if (i >= left) continue;
        if (a.last) put_sorted(a, row, to[e], sorted_bits(a, row, indices[i]));
        else a.other_indices[base + to[e]] = indices[i];
    }
}
KERNEL_OF_TWO(gm_sort_move_4, cuda_sort_args, CUDA_SORT_THREADS) { sort_move<uint32_t, true>(a); }
KERNEL(gm_sort_move_8, cuda_sort_args, CUDA_SORT_THREADS) { sort_move<uint64_t, true>(a); }
KERNEL_OF_TWO(gm_sort_move_keys, cuda_sort_args, CUDA_SORT_THREADS) { sort_move<uint32_t, false>(a); }

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
        UNROLL for (int r = 0; r < 4; r++)
            threefry_round(x, y, distances[group % 2][r]);
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
