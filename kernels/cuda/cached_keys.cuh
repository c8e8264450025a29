/* cached_keys.cuh - keys and values of caches of float16, bfloat16 or int8 (as float16) in a block's memory, and scores
 * of sixteen queries with sixteen keys after sixteen keys, by the tensor cores. */
#ifndef GOMLX_CUDA_CACHED_KEYS_CUH
#define GOMLX_CUDA_CACHED_KEYS_CUH
#include "kv.cuh"

#define LOG2_E 1.4426950408889634f
typedef pack<uint16_t, 8> piece;

/* ---- keys and values to the block's memory: keys as [16 keys][dim][16], values as [key][dim], in pieces of 16 bytes
 * whose places are exchanged so that the rows of a matrix are in different banks ---- */
struct kv_place {
    const char *keys, *values; /* of a kv head in a block of the cache */
    int dim;
};
struct cache_tables { gm_cache_address keys, values; }; /* of a sequence */
DEVICE cache_tables tables_of(const gm_attention_args &a, int64_t sequence) {
    return {read_written(a.keys + sequence), read_written(a.values + sequence)};
}
/* Those of a head of keys and values. */
template <int TYPE> struct kv_caches {
    cache_tables tables;
    int64_t offset, dim;
    METHOD kv_caches(const gm_attention_args &a, const cache_tables &of, int64_t kv_head)
        : tables(of), dim(a.head_dim) {
        const int64_t count = GM_KV_BLOCK * a.head_dim;
        offset = kv_head * (TYPE == GM_T_KV_Q8_0 ? count / 32 * 34 : 2 * count);
    }
    METHOD kv_place at(int64_t block) const {
        return {(const char *)read_written(tables.keys.blocks + block) + offset,
                (const char *)read_written(tables.values.blocks + block) + offset, (int)dim};
    }
};
/* Eight of int8 as float16: with a scale each, or all one. */
DEVICE piece wide_piece(const char *bytes, const uint16_t *scales, bool one) {
    const pack<int8_t, 8> numbers = *(const pack<int8_t, 8> *)bytes;
    piece out;
    UNROLL for (int i = 0; i < 8; i++)
        out.at[i] = half_of_float((float)numbers.at[i] * float_of_half(scales[one ? 0 : i]));
    return out;
}
DEVICE char *key_piece(char *to, int dims, int group, int d, int half) {
    return to + (group * dims + d) * 32 + (half ^ (d >> 2 & 1)) * 16;
}
DEVICE char *value_piece(char *to, int dims, int key, int part) {
    return to + key * dims * 2 + (part ^ (key & 7)) * 16;
}
/* Eight of the keys of group `at` of a block, of dimension d; beyond the head's: zeros. */
template <int TYPE> DEVICE void load_key(char *out, const kv_place &from, int at, int d, int half) {
    const bool inside = d < from.dim;
    if (TYPE != GM_T_KV_Q8_0) {
        copy_16(out, from.keys + (inside ? ((int64_t)at * from.dim + d) * 32 + half * 16 : 0), inside ? 16 : 0);
    } else if (inside) {
        const char *unit = from.keys + ((int64_t)at * (from.dim / 32) + d / 32) * (GM_KV_LANES * 34);
        *(piece *)out = wide_piece(unit + 32 + d % 32 * 16 + half * 8, (const uint16_t *)unit + half * 8, false);
    } else {
        *(piece *)out = piece{};
    }
}
/* Keys [first, first + count) of a block, by `threads` of which this is one; both counts multiples of 16. */
template <int TYPE, int DIM>
DEVICE void load_keys(char *to, const kv_place &from, int first, int count, int thread, int threads) {
    for (int i = thread; i < count / 16 * DIM * 2; i += threads) {
        const int group = i / (2 * DIM), d = i / 2 % DIM, half = i % 2;
        load_key<TYPE>(key_piece(to, DIM, group, d, half), from, first / 16 + group, d, half);
    }
}
/* Eight of the values of key `at` of a block; those from `last` on are zeros: nobody wrote them. */
template <int TYPE> DEVICE void load_eight(char *out, const kv_place &from, int at, int part, int last) {
    const bool inside = part * 8 < from.dim && at < last;
    if (TYPE != GM_T_KV_Q8_0) {
        copy_16(out, from.values + (inside ? ((int64_t)at * from.dim + part * 8) * 2 : 0), inside ? 16 : 0);
    } else if (inside) {
        const char *unit = from.values + ((int64_t)(at / 16) * (from.dim / 32) + part / 4) * (GM_KV_LANES * 34);
        *(piece *)out = wide_piece(unit + 32 + at % 16 * 32 + part % 4 * 8, (const uint16_t *)unit + at % 16, true);
    } else {
        *(piece *)out = piece{};
    }
}
/* The same of key `key` from `first` of a block on, to its place. */
template <int TYPE, int DIM>
DEVICE void load_value(char *to, const kv_place &from, int first, int key, int part, int last) {
    load_eight<TYPE>(value_piece(to, DIM, key, part), from, first + key, part, last);
}
template <int TYPE, int DIM>
DEVICE void load_values(char *to, const kv_place &from, int first, int count, int last, int thread, int threads) {
    for (int i = thread; i < count * (DIM / 8); i += threads)
        load_value<TYPE, DIM>(to, from, first, i / (DIM / 8), i % (DIM / 8), last);
}

/* ---- what a warp has of sixteen queries: lane l those of rows l / 4 and l / 4 + 8 ---- */
template <int TYPE> DEVICE uint32_t two_halves(float low, float high) {
    return TYPE == GM_T_BF16 ? two_bfloats(low, high) : two_halves(low, high);
}
template <int TYPE> DEVICE void multiply_halves(float *d, const uint32_t *a, const uint32_t *b) {
    if (TYPE == GM_T_BF16) mma_bf16(d, a, b);
    else mma_f16(d, a, b);
}
/* Queries of two rows of sixteen that this lane has: keys that they see. */
struct two_rows { int64_t begin[2], end[2]; };
DEVICE int within_keys(int64_t key, int keys) { return key < 0 ? 0 : key > keys ? keys : (int)key; }
/* Scores of KEYS keys, the first of which is `first` of the sequence: by powers of two, -INFINITY of those unseen. */
template <int TYPE, int DIM, int KEYS, class QUERIES>
DEVICE void scores_of(float (&score)[KEYS / 8][4], const QUERIES &q, char *keys, const gm_attention_args &a,
                      const two_rows &rows, int64_t first) {
    const int lane = thread_index() % WARP;
    UNROLL for (int n = 0; n < KEYS / 8; n++) UNROLL
        for (int i = 0; i < 4; i++) score[n][i] = 0;
    UNROLL for (int k = 0; k < DIM / 16; k++) {
        uint32_t room[4];
        const uint32_t *own = q.part(k, room);
        UNROLL for (int group = 0; group < KEYS / 16; group++) {
            uint32_t part[4];
            load_matrices_turned(part, key_piece(keys, DIM, group, k * 16 + lane % 16, lane / 16));
            multiply_halves<TYPE>(score[2 * group], own, part);
            multiply_halves<TYPE>(score[2 * group + 1], own, part + 2);
        }
    }
    if (a.softcap != 0) {
        UNROLL for (int n = 0; n < KEYS / 8; n++) UNROLL
            for (int i = 0; i < 4; i++) score[n][i] = a.softcap * vf_tanh(score[n][i] / a.softcap);
    }
    int from[2], to[2]; /* of the keys from the lane's first on */
    bool some = false;
    UNROLL for (int i = 0; i < 2; i++) {
        from[i] = within_keys(rows.begin[i] - first, KEYS) - lane % 4 * 2;
        to[i] = within_keys(rows.end[i] - first, KEYS) - lane % 4 * 2;
        some = some || rows.begin[i] > first || rows.end[i] < first + KEYS;
    }
    some = lanes_where(some) != 0;
    UNROLL for (int n = 0; n < KEYS / 8; n++) UNROLL
        for (int i = 0; i < 4; i++) {
            const int key = n * 8 + i % 2;
            score[n][i] *= LOG2_E;
            if (some && (key < from[i / 2] || key >= to[i / 2])) score[n][i] = -INFINITY;
        }
}
DEVICE float sum_of_four(float x) {
    x += lane_xor(x, 1);
    return x + lane_xor(x, 2);
}
DEVICE float most_of_four(float x) {
    x = fmaxf(x, lane_xor(x, 1));
    return fmaxf(x, lane_xor(x, 2));
}
DEVICE int64_t begin_of(const gm_attention_args &a, int64_t end) {
    return a.window > 0 && end > a.window ? end - a.window : 0;
}
#endif
