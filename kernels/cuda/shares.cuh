/* shares.cuh - attention of rows that decode: a block of threads has a share of the keys of a row, CUDA_SHARE_KEYS of
 * them, and up to sixteen heads of a group. A warp scores sixteen of the keys, then sums a part of the values'
 * dimensions over all of them; shares are merged in order. Where there are many shares a block has several, one after
 * the other, and copies the next one while it computes. */
#ifndef GOMLX_CUDA_SHARES_CUH
#define GOMLX_CUDA_SHARES_CUH
#include "cached_keys.cuh"

#define DECODE_WARPS (CUDA_SHARE_KEYS / 16)
#define MERGE_PARTS 8 /* of a sum over shares: each of every so many of them */
#define FEW_SHARES 12 /* that lanes read at once */
typedef pack<float, 4> four_floats;
typedef pack<float, 2> two_floats;

struct decoded_share {
    int64_t row, kv_head, head, begin, end, start; /* keys [begin, end) are seen, those here begin with `start` */
    int heads, index, count, first, own;           /* shares; keys here, where the first is in its block of the cache,
                                                    * and which is the row's own, if it is to be turned: else -1 */
};
DEVICE int share_count(const gm_attention_args &a, int64_t end) { /* that a row sees */
    return (int)((end + CUDA_SHARE_KEYS - 1) / CUDA_SHARE_KEYS - begin_of(a, end) / CUDA_SHARE_KEYS);
}
/* The row of queries that the block is for, and its share of that row, which is at a position. */
DEVICE int row_of_block(const cuda_decode_args &given) {
    return (int)block_index() / ((int)given.row.attention.n_kv_heads * given.cuts);
}
DEVICE void place_share(const cuda_decode_args &given, decoded_share *s, int index) {
    s->index = index;
    s->start = (s->begin / CUDA_SHARE_KEYS + index) * CUDA_SHARE_KEYS;
    s->first = (int)(s->start % GM_KV_BLOCK);
    s->count = s->end - s->start < CUDA_SHARE_KEYS ? (int)(s->end - s->start) : CUDA_SHARE_KEYS;
    s->own = given.turns && given.row.turn.k && s->start + s->count == s->end ? s->count - 1 : -1;
}
DEVICE decoded_share share_of(const cuda_decode_args &given, int row, int position) {
    const gm_attention_args &a = given.row.attention;
    const int in_row = (int)block_index() - row * (int)a.n_kv_heads * given.cuts;
    decoded_share s;
    s.row = row;
    s.kv_head = given.cuts == 1 ? in_row : in_row / given.cuts;
    const int in_group = (in_row - (int)s.kv_head * given.cuts) * 16;
    s.head = s.kv_head * given.group + in_group;
    s.heads = given.group - in_group < 16 ? given.group - in_group : 16;
    s.end = (int64_t)position + 1;
    s.begin = begin_of(a, s.end);
    place_share(given, &s, (int)block_index_y());
    return s;
}
/* A block's memory: CUDA_DECODE_MEMORY(DIM) bytes. */
template <int DIM> struct decoded_room {
    char *keys, *values, *queries, *weights; /* of 16 bits: [16 heads][DIM], [16 heads][keys], as value_piece has it */
    float *tops, *sums, *turned; /* of scores and weights, [warps][16 heads]; of int8, rows of a key and a value */
    METHOD decoded_room() {
        keys = block_memory();
        values = keys + CUDA_SHARE_KEYS * DIM * 2;
        queries = values + CUDA_SHARE_KEYS * DIM * 2;
        weights = queries + 16 * DIM * 2;
        tops = (float *)(weights + 16 * CUDA_SHARE_KEYS * 2);
        sums = tops + DECODE_WARPS * 16;
        turned = sums + DECODE_WARPS * 16;
    }
    /* The next share's keys and values have room behind all of it, where a block has several shares. */
    METHOD void take_other() {
        keys = keys == block_memory() ? keys + CUDA_DECODE_MEMORY(DIM) : block_memory();
        values = keys + CUDA_SHARE_KEYS * DIM * 2;
    }
    METHOD char *query(int head, int d) const { return value_piece(queries, DIM, head, d / 8) + d % 8 * 2; }
};
template <int TYPE> DEVICE void put_half(char *to, float x) {
    *(uint16_t *)to = TYPE == GM_T_BF16 ? bfloat_of_float(x) : half_of_float(x);
}

/* ---- heads that are turned by a warp: pair j of [0, dim / 2) is j with the one that is turned with it, or, from
 * `half` on, two side by side behind those that are turned ---- */
template <int DIM> struct lane_head {
    static constexpr int PAIRS = DIM / 2 / WARP;
    float low[PAIRS], high[PAIRS];
    int half = 0, dim = 0;
    METHOD int pair(int i) const { return thread_index() % WARP + i * WARP; }
    METHOD int low_place(int j) const { return j < half ? j : 2 * j; }
    METHOD int high_place(int j) const { return j < half ? half + j : 2 * j + 1; }
    METHOD void read(const float *x, int64_t turned_pairs, int64_t values) {
        half = (int)turned_pairs, dim = (int)values;
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const int j = pair(i);
            low[i] = 2 * j < dim ? read_written(x + low_place(j)) : 0;
            high[i] = 2 * j < dim ? read_written(x + high_place(j)) : 0;
        }
    }
    METHOD void norm(const lane_head &weights, float eps) {
        float squares = 0;
        UNROLL for (int i = 0; i < PAIRS; i++)
            squares = fmaf(high[i], high[i], fmaf(low[i], low[i], squares));
        squares = join_warp(squares, [](float y, float z) { return y + z; });
        const float scale = 1.0f / sqrtf(squares / (float)dim + eps);
        UNROLL for (int i = 0; i < PAIRS; i++) {
            low[i] = low[i] * scale * weights.low[i];
            high[i] = high[i] * scale * weights.high[i];
        }
    }
    /* put(d, value) for what it comes to; angles: cosines, and sines. */
    template <class F> METHOD void turn(const lane_head &angles, F put) const {
        UNROLL for (int i = 0; i < PAIRS; i++) {
            const int j = pair(i);
            const float c = angles.low[i], s = angles.high[i], x = low[i], y = high[i];
            if (2 * j >= dim) continue;
            put(low_place(j), j < half ? fmaf(-y, s, x * c) : x);
            put(high_place(j), j < half ? fmaf(x, s, y * c) : y);
        }
    }
};
/* Weights of norms of heads, which no kernel writes: they are there before what they norm. */
template <int DIM> struct head_norms {
    lane_head<DIM> q, k;
    METHOD explicit head_norms(const cuda_decode_args &given) {
        const gm_rope_cache_args &t = given.row.turn;
        if (given.turns && given.row.q_norm) q.read(given.row.q_norm, t.half, t.head_dim);
        if (given.turns && given.row.k_norm) k.read(given.row.k_norm, t.half, t.head_dim);
    }
};
/* Turns this warp's queries, to the block's memory. */
template <int TYPE, int DIM>
DEVICE void turn_queries(const cuda_decode_args &given, const decoded_share &s, const decoded_room<DIM> &room,
                         const lane_head<DIM> &angles, const lane_head<DIM> &weights) {
    const gm_rope_cache_args &t = given.row.turn;
    lane_head<DIM> x;
    for (int h = thread_index() / WARP; h < s.heads; h += DECODE_WARPS) {
        x.read(t.q + s.row * t.q_stride + (s.head + h) * t.head_dim, t.half, t.head_dim);
        if (given.row.q_norm) x.norm(weights, given.row.eps);
        x.turn(angles,
               [&](int d, float value) { put_half<TYPE>(room.query(h, d), value * given.row.attention.scale); });
    }
}
/* A row's own key, turned, or its value, by a warp whose copies into its memory have ended: to the cache and to the
 * block's memory. */
template <int TYPE, int DIM>
DEVICE void put_own(const decoded_share &s, const decoded_room<DIM> &room, const kv_place &to, bool is_key,
                    const lane_head<DIM> &own, const lane_head<DIM> &angles) {
    const int lane = thread_index() % WARP, dim = to.dim, at = s.first + s.own;
    if constexpr (TYPE == GM_T_KV_Q8_0) {
        float *values = room.turned + (is_key ? 0 : DIM);
        own.turn(angles, [&](int d, float value) { values[d] = value; });
        warp_barrier();
        store_kv((char *)(is_key ? to.keys : to.values), TYPE, at, dim, is_key, lane, WARP,
                 [&](int64_t d) { return values[d]; });
        warp_barrier(); /* what all lanes stored is read */
        if (is_key) load_keys<TYPE, DIM>(room.keys + s.own / 16 * 32 * DIM, to, at / 16 * 16, 16, lane, WARP);
        for (int part = lane; part < DIM / 8 && !is_key; part += WARP)
            load_value<TYPE, DIM>(room.values, to, s.first, s.own, part, at + 1);
    } else {
        warp_barrier();
        if (is_key) {
            char *cache = (char *)to.keys + (at / GM_KV_LANES * GM_KV_LANES * dim + at % GM_KV_LANES) * 2;
            char *block = room.keys + s.own / 16 * 32 * DIM + s.own % 8 * 2;
            own.turn(angles, [&](int d, float value) {
                put_half<TYPE>(cache + d * GM_KV_LANES * 2, value);
                put_half<TYPE>(key_piece(block, DIM, 0, d, s.own / 8 % 2), value);
            });
        } else {
            char *cache = (char *)to.values + at * dim * 2;
            own.turn(angles, [&](int d, float value) {
                put_half<TYPE>(cache + d * 2, value);
                put_half<TYPE>(value_piece(room.values, DIM, s.own, d / 8) + d % 8 * 2, value);
            });
        }
    }
}
/* Queries, unless that was done, and the row's own key and value, which two of the warps turn: the key that which has
 * the keys beside it. */
template <int TYPE, int DIM>
DEVICE void turn_row(const cuda_decode_args &given, const decoded_share &s, const decoded_room<DIM> &room,
                     const kv_place &to, const head_norms<DIM> &norms, bool queries) {
    const gm_rope_cache_args &t = given.row.turn;
    const int warp = thread_index() / WARP;
    const bool is_key = s.own >= 0 && warp == s.own / 16;
    const bool is_value = s.own >= 0 && warp == (s.own / 16 + 1) % DECODE_WARPS;
    lane_head<DIM> angles, own;
    angles.read(t.angles + s.row * 2 * t.half, t.half, 2 * t.half);
    if (is_key) own.read(t.k + s.row * t.k_stride + s.kv_head * t.head_dim, t.half, t.head_dim);
    if (is_value) own.read(t.v + s.row * t.v_stride + s.kv_head * t.head_dim, 0, t.head_dim);
    if (queries) turn_queries<TYPE>(given, s, room, angles, norms.q);
    if (!is_key && !is_value) return;
    if (is_key && given.row.k_norm) own.norm(norms.k, given.row.eps);
    wait_copies<0>(); /* of the keys beside it */
    put_own<TYPE>(s, room, to, is_key, own, angles);
}
template <int TYPE, int DIM>
DEVICE void read_queries(const gm_attention_args &a, const decoded_share &s, const decoded_room<DIM> &room) {
    for (int h = thread_index() / WARP; h < s.heads; h += DECODE_WARPS) {
        const float *q = a.q + (s.row * a.n_heads + s.head + h) * a.head_dim;
        for (int d = thread_index() % WARP; d < a.head_dim; d += WARP) put_half<TYPE>(room.query(h, d), q[d] * a.scale);
    }
}

/* ---- a share ---- */
/* A warp's sixteen keys of 16 bits; and values of so many keys, by the block. */
template <int DIM> DEVICE void copy_share_keys(char *to, const kv_place &from, int first) {
    const int d = thread_index() % WARP / 2, half = thread_index() % 2;
    char *out = key_piece(to, DIM, 0, d, half); /* which piece is exchanged is the same sixteen dimensions on */
    const char *at = from.keys + first * from.dim * 2 + d * 32 + half * 16;
    UNROLL for (int i = 0; i < DIM / 16; i++) {
        const bool inside = d + 16 * i < from.dim;
        copy_16(out + 512 * i, inside ? at + 512 * i : from.keys, inside ? 16 : 0);
    }
}
template <int DIM> DEVICE void copy_share_values(char *to, const kv_place &from, int first, int count) {
    constexpr int PIECES = DIM / 8, STEP = CUDA_DECODE_THREADS / PIECES;
    const int key = thread_index() / PIECES, part = thread_index() % PIECES;
    const char *at = from.values + ((first + key) * from.dim + part * 8) * 2;
    UNROLL for (int i = 0; i < CUDA_SHARE_KEYS / STEP; i++) {
        const bool inside = part * 8 < from.dim;
        if (key + i * STEP < count)
            copy_16(value_piece(to, DIM, key + i * STEP, part), inside ? at + i * STEP * from.dim * 2 : from.values,
                    inside ? 16 : 0);
    }
}
/* Keys, of which a warp has sixteen, and values are on their way. int8 has no keys beside the row's own yet. */
template <int TYPE, int DIM>
DEVICE void load_share(const decoded_share &s, const decoded_room<DIM> &room, const kv_place &from) {
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    const int there = s.own < 0 ? s.count : s.own, none = (s.count + 15) / 16 * 16 - s.count;
    char *keys = room.keys + warp * 32 * DIM;
    if constexpr (TYPE == GM_T_KV_Q8_0) {
        if (16 * warp < s.count && (s.own < 0 || warp != s.own / 16))
            load_keys<TYPE, DIM>(keys, from, s.first + 16 * warp, 16, lane, WARP);
        load_values<TYPE, DIM>(room.values, from, s.first, there, s.first + there, thread_index(), CUDA_DECODE_THREADS);
    } else {
        if (16 * warp < s.count) copy_share_keys<DIM>(keys, from, s.first + 16 * warp);
        copy_share_values<DIM>(room.values, from, s.first, there);
    }
    commit_copies();
    for (int i = thread_index(); i < none * (DIM / 8); i += CUDA_DECODE_THREADS)
        *(piece *)value_piece(room.values, DIM, s.count + i / (DIM / 8), i % (DIM / 8)) = piece{};
}
/* Those that a warp is to put, and those that there are not. */
template <int DIM> DEVICE void clear_queries(const decoded_room<DIM> &room) {
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    for (int h = warp; h < 16; h += DECODE_WARPS)
        for (int part = lane; part < DIM / 8; part += WARP) *(piece *)value_piece(room.queries, DIM, h, part) = piece{};
    warp_barrier();
}
/* Queries by number from the block's memory. */
template <int DIM> struct kept_queries {
    char *memory;
    METHOD const uint32_t *part(int k, uint32_t *room) const {
        const int lane = thread_index() % WARP;
        load_matrices(room, value_piece(memory, DIM, lane % 16, 2 * k + lane / 16));
        return room;
    }
};
/* Weights of a warp's keys, to the block's memory, and what they are relative to: of a lane's two heads. */
template <int TYPE, int DIM>
DEVICE void weigh_share(const gm_attention_args &a, const decoded_share &s, const decoded_room<DIM> &room, float *top) {
    const int warp = thread_index() / WARP, lane = thread_index() % WARP, low = lane / 4;
    float score[2][4];
    scores_of<TYPE, DIM, 16>(score, kept_queries<DIM>{room.queries}, room.keys + warp * 32 * DIM, a,
                             {{s.begin, s.begin}, {s.end, s.end}}, s.start + 16 * warp);
    UNROLL for (int i = 0; i < 2; i++) {
        const float most = most_of_four(
            fmaxf(fmaxf(score[0][2 * i], score[0][2 * i + 1]), fmaxf(score[1][2 * i], score[1][2 * i + 1])));
        if (lane % 4 == 0) room.tops[warp * 16 + low + 8 * i] = most;
    }
    barrier();
    UNROLL for (int i = 0; i < 2; i++) {
        const int head = low + 8 * i;
        float sum = 0;
        top[i] = room.tops[head];
        UNROLL for (int w = 1; w < DECODE_WARPS; w++)
            top[i] = fmaxf(top[i], room.tops[w * 16 + head]);
        const float from = top[i] == -INFINITY ? 0.0f : top[i];
        UNROLL for (int n = 0; n < 2; n++) {
            const float x = power_of_two(score[n][2 * i] - from), y = power_of_two(score[n][2 * i + 1] - from);
            sum += x + y;
            *(uint32_t *)(value_piece(room.weights, CUDA_SHARE_KEYS, head, 2 * warp + n) +
                          lane % 4 * 4) = two_halves<TYPE>(x, y);
        }
        sum = sum_of_four(sum);
        if (lane % 4 == 0) room.sums[warp * 16 + head] = sum;
    }
    barrier();
}
DEVICE int64_t share_floats(const gm_attention_args &a) { return a.head_dim + CUDA_SHARE_EXTRA; }
DEVICE float *share_place(const gm_attention_args &a, int64_t row, int64_t head, int64_t index) {
    return a.partial + ((row * a.n_heads + head) * a.max_blocks * CUDA_SHARES + index) * share_floats(a);
}
/* Values by weights, of the warp's part of the dimensions, to the share's place. */
template <int TYPE, int DIM>
DEVICE void sum_share(const gm_attention_args &a, const decoded_share &s, const decoded_room<DIM> &room,
                      const float *top) {
    constexpr int EIGHTS = DIM / 8 / DECODE_WARPS;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    float o[EIGHTS][4] = {};
    UNROLL for (int k = 0; k < CUDA_SHARE_KEYS / 16; k++) {
        uint32_t rows[4];
        if (16 * k >= s.count) break;
        load_matrices(rows, value_piece(room.weights, CUDA_SHARE_KEYS, lane % 16, 2 * k + lane / 16));
        UNROLL for (int n = 0; n < EIGHTS; n += 2) {
            uint32_t part[4];
            load_matrices_turned(part,
                                 value_piece(room.values, DIM, 16 * k + lane % 16, warp * EIGHTS + n + lane / 16));
            multiply_halves<TYPE>(o[n], rows, part);
            multiply_halves<TYPE>(o[n + 1], rows, part + 2);
        }
    }
    UNROLL for (int i = 0; i < 2; i++) {
        const int head = lane / 4 + 8 * i;
        float *to = share_place(a, s.row, s.head + head, s.index);
        if (head >= s.heads) continue;
        UNROLL for (int n = 0; n < EIGHTS; n++) {
            const int d = (warp * EIGHTS + n) * 8 + lane % 4 * 2;
            if (d < a.head_dim) *(two_floats *)(to + d) = {o[n][2 * i], o[n][2 * i + 1]};
        }
        if (warp > 0 || lane % 4 > 0) continue;
        float sum = room.sums[head];
        UNROLL for (int w = 1; w < DECODE_WARPS; w++)
            sum += room.sums[w * 16 + head];
        *(two_floats *)(to + a.head_dim) = {top[i], sum};
    }
}

/* ---- shares of a row and head are merged: by one block of their row and kv head, or by another kernel ---- */
/* What a lane has of CUDA_MERGED shares side by side: tops of scores, and sums of weights. */
struct lane_shares {
    static constexpr int EACH = CUDA_MERGED / WARP;
    float top[EACH], sum[EACH];
    METHOD void read(const float *share, int64_t step, int count) { /* of the first share's two */
        UNROLL for (int j = 0; j < EACH; j++) {
            const int i = j * WARP + thread_index() % WARP;
            top[j] = i < count ? read_written(share + i * step) : -INFINITY;
            sum[j] = i < count ? read_written(share + i * step + 1) : 0;
        }
    }
};
struct merged_head { float top, sum; };
/* Of the share that each lane has, of no more. */
DEVICE merged_head merge_lanes(const gm_attention_args &a, int64_t head, float top, float sum) {
    const bool has_sink = a.sinks && thread_index() % WARP == 0;
    const float sink = has_sink ? a.sinks[head] * LOG2_E : -INFINITY;
    float most = join_warp(fmaxf(top, sink), [](float x, float y) { return fmaxf(x, y); });
    most = most == -INFINITY ? 0.0f : most;
    sum = fmaf(sum, power_of_two(top - most), has_sink ? power_of_two(sink - most) : 0.0f);
    return {most, join_warp(sum, [](float x, float y) { return x + y; })};
}
/* By a warp. factors: what each share is multiplied by. */
DEVICE merged_head merge_sums(const gm_attention_args &a, int64_t row, int64_t head, int count, float *factors) {
    const bool has_sink = a.sinks && thread_index() % WARP == 0;
    const float sink = has_sink ? a.sinks[head] * LOG2_E : -INFINITY;
    lane_shares some;
    float top = sink;
    some.read(share_place(a, row, head, 0) + a.head_dim, share_floats(a), count);
    UNROLL for (int j = 0; j < lane_shares::EACH; j++)
        top = fmaxf(top, some.top[j]);
    top = join_warp(top, [](float x, float y) { return fmaxf(x, y); });
    top = top == -INFINITY ? 0.0f : top;
    float sum = has_sink ? power_of_two(sink - top) : 0.0f;
    UNROLL for (int j = 0; j < lane_shares::EACH; j++) {
        const float factor = power_of_two(some.top[j] - top);
        sum = fmaf(some.sum[j], factor, sum);
        factors[j * WARP + thread_index() % WARP] = factor;
    }
    return {top, join_warp(sum, [](float x, float y) { return x + y; })};
}
/* Four dimensions of parts of the sum over shares, of which `share` is the first; factor(i): of share i. */
template <class F>
DEVICE void add_shares(four_floats (&sums)[MERGE_PARTS], const float *share, int64_t step, int count, F factor) {
    UNROLL for (int p = 0; p < MERGE_PARTS; p++)
        sums[p] = {};
    for (int first = 0; first < count; first += MERGE_PARTS) {
        UNROLL for (int p = 0; p < MERGE_PARTS; p++) {
            if (first + p >= count) continue;
            const four_floats four = read_written((const four_floats *)(share + (first + p) * step));
            const float times = factor(first + p);
            UNROLL for (int i = 0; i < 4; i++)
                sums[p].at[i] = fmaf(four.at[i], times, sums[p].at[i]);
        }
    }
}
/* A head by a warp whose lanes read all shares at once, the few that there are: its bits are those of merge_sums and
 * add_shares. */
template <int DIM> DEVICE void merge_few(const gm_attention_args &a, int64_t row, int64_t head, int count) {
    const int step = (int)share_floats(a), lane = thread_index() % WARP;
    const float *share = share_place(a, row, head, 0);
    UNROLL for (int first = 0; first < DIM; first += 4 * WARP) {
        const int d = first + 4 * lane;
        const bool inside = d < a.head_dim;
        four_floats fours[FEW_SHARES], total;
        float times[FEW_SHARES];
        two_floats own = {-INFINITY, 0};
        if (lane < count) own = read_written((const two_floats *)(share + lane * step + a.head_dim));
        UNROLL for (int i = 0; i < FEW_SHARES; i++)
            if (i < count && inside) fours[i] = read_written((const four_floats *)(share + i * step + d));
        const merged_head merged = merge_lanes(a, head, own.at[0], own.at[1]);
        const float factor = power_of_two(own.at[0] - merged.top);
        UNROLL for (int i = 0; i < FEW_SHARES; i++)
            times[i] = lane_of(factor, i);
        if (!inside) continue;
        UNROLL for (int i = 0; i < FEW_SHARES; i++) {
            if (i >= count) continue;
            UNROLL for (int j = 0; j < 4; j++)
                fours[i].at[j] = fmaf(fours[i].at[j], times[i], i < MERGE_PARTS ? 0.0f : fours[i % MERGE_PARTS].at[j]);
            if (i >= MERGE_PARTS) fours[i % MERGE_PARTS] = fours[i];
        }
        total = fours[0];
        UNROLL for (int p = 1; p < MERGE_PARTS; p++) UNROLL
            for (int j = 0; j < 4; j++)
                if (p < count) total.at[j] += fours[p].at[j];
        UNROLL for (int j = 0; j < 4; j++)
            total.at[j] /= merged.sum;
        *(four_floats *)(a.out + (row * a.n_heads + head) * a.head_dim + d) = total;
    }
}
template <int DIM>
DEVICE void merge_group(const gm_attention_args &a, int64_t row, int64_t head, int heads, int count) {
    const int fours = (int)a.head_dim / 4;
    if (count <= FEW_SHARES) {
        for (int h = thread_index() / WARP; h < heads; h += DECODE_WARPS) merge_few<DIM>(a, row, head + h, count);
        return;
    }
    float *factors = (float *)block_memory(), *sums = factors + 16 * CUDA_MERGED; /* of heads */
    for (int h = thread_index() / WARP; h < heads; h += DECODE_WARPS) {
        const merged_head merged = merge_sums(a, row, head + h, count, factors + h * CUDA_MERGED);
        if (thread_index() % WARP == 0) sums[h] = merged.sum;
    }
    barrier();
    for (int i = thread_index(); i < heads * fours; i += CUDA_DECODE_THREADS) {
        const int h = i / fours, d = i % fours * 4;
        four_floats parts[MERGE_PARTS], total;
        add_shares(parts, share_place(a, row, head + h, 0) + d, share_floats(a), count,
                   [&](int share) { return factors[h * CUDA_MERGED + share]; });
        UNROLL for (int j = 0; j < 4; j++) {
            total.at[j] = parts[0].at[j];
            UNROLL for (int p = 1; p < MERGE_PARTS; p++)
                total.at[j] += parts[p].at[j];
            total.at[j] /= sums[h];
        }
        *(four_floats *)(a.out + (row * a.n_heads + head + h) * a.head_dim + d) = total;
    }
}
DEVICE_COUNTS uint32_t blocks_done[CUDA_TICKETS]; /* of a row and kv head */
/* Whether this block is the last of `count` of a row and kv head to end, for all of its threads. */
DEVICE bool is_last_block(int64_t count) {
    SHARED uint32_t number;
    barrier();
    if (thread_index() == 0) {
        uint32_t *done = blocks_done + block_index();
        number = take_number(done);
        if (number + 1 == count) *done = 0;
    }
    barrier();
    return number + 1 == count;
}
template <int TYPE, int DIM> DEVICE void attend_shares(const cuda_decode_args &given) {
    constexpr bool SEVERAL = CUDA_HAS_SEVERAL(DIM);
    const gm_attention_args &a = given.row.attention;
    decoded_room<DIM> room;
    if (!given.turns) wait_for_others(); /* for keys and values, of which the kernel before may have written some */
    const int row = row_of_block(given), position = read_written(a.positions + row);
    const int64_t sequence = read_written(a.sequence + row);
    const cache_tables tables = tables_of(a, sequence); /* on their way with the position */
    decoded_share s = share_of(given, row, position);
    if (s.start >= s.end) {
        if (s.index == 0) wait_for_others(); /* some block of each launch does */
        return;
    }
    const kv_caches<TYPE> caches(a, tables, s.kv_head);
    kv_place from = caches.at(s.start / GM_KV_BLOCK);
    load_share<TYPE>(s, room, from);
    clear_queries(room);
    const head_norms<DIM> norms(given);
    for (;;) {
        const bool first = s.index == (int)block_index_y();
        const bool more = SEVERAL && s.start + given.across * CUDA_SHARE_KEYS < s.end;
        if (more) {
            decoded_share next = s;
            decoded_room<DIM> next_room = room;
            place_share(given, &next, s.index + given.across);
            next_room.take_other();
            load_share<TYPE>(next, next_room, caches.at(next.start / GM_KV_BLOCK));
        }
        if (first && given.turns) wait_for_others(); /* for what is turned: it writes the caches itself */
        if (given.turns && (first || s.own >= 0)) turn_row<TYPE>(given, s, room, from, norms, first);
        if (first && !given.turns) read_queries<TYPE>(a, s, room);
        float top[2];
        if (more) wait_copies<1>();
        else wait_copies<0>();
        barrier();
        weigh_share<TYPE>(a, s, room, top);
        sum_share<TYPE>(a, s, room, top);
        if (!more) break;
        barrier(); /* nobody needs this share's memory, or its weights */
        place_share(given, &s, s.index + given.across);
        from = caches.at(s.start / GM_KV_BLOCK);
        room.take_other();
    }
    const int count = share_count(a, s.end), blocks = count < given.across ? count : given.across;
    if (given.merges && is_last_block(blocks)) merge_group<DIM>(a, s.row, s.head, s.heads, count);
}
/* CUDA_SLICE dimensions of a row and head by a block, a thread for each of them and part: the bits are those of
 * merge_group. */
#define SHARES_AT_ONCE 2048
#define MERGED_AHEAD 16
DEVICE void merge_shares(const gm_attention_args &a) {
    SHARED float factors[SHARES_AT_ONCE], sums[SHARES_AT_ONCE], parts[MERGE_PARTS][CUDA_SLICE],
        join[CUDA_THREADS / WARP];
    const int64_t row = block_index() / a.n_heads, head = block_index() % a.n_heads, step = share_floats(a);
    const int count = share_count(a, (int64_t)a.positions[row] + 1), at = thread_index() % CUDA_SLICE;
    const int part = thread_index() / CUDA_SLICE, d = (int)block_index_y() * CUDA_SLICE + at;
    const float *shares = share_place(a, row, head, 0), sink = a.sinks ? a.sinks[head] * LOG2_E : -INFINITY;
    const auto read = [&](int i) { return read_written((const two_floats *)(shares + i * step + a.head_dim)); };
    float top = sink, sum = 0, value = 0;
    for (int i = thread_index(); i < count; i += CUDA_THREADS) {
        const two_floats own = read(i);
        top = fmaxf(top, own.at[0]);
        if (i < SHARES_AT_ONCE) factors[i] = own.at[0], sums[i] = own.at[1];
    }
    top = join_block(top, join, [](float x, float y) { return fmaxf(x, y); });
    top = top == -INFINITY ? 0.0f : top;
    if (a.sinks && thread_index() == 0) sum = power_of_two(sink - top);
    for (int first = 0; first < count; first += SHARES_AT_ONCE) {
        const int n = count - first < SHARES_AT_ONCE ? count - first : SHARES_AT_ONCE;
        for (int i = thread_index(); i < n; i += CUDA_THREADS) { /* each its own: nobody has written others yet */
            const two_floats own = first == 0 ? two_floats{factors[i], sums[i]} : read(first + i);
            factors[i] = power_of_two(own.at[0] - top);
            sums[i] = own.at[1];
        }
        barrier();
        for (int i = thread_index(); i < n && thread_index() < WARP; i += WARP) sum = fmaf(sums[i], factors[i], sum);
        for (int from = part; from < n; from += MERGED_AHEAD * MERGE_PARTS) {
            float own[MERGED_AHEAD];
            UNROLL for (int j = 0; j < MERGED_AHEAD; j++) {
                const int i = from + j * MERGE_PARTS;
                own[j] = i < n && d < a.head_dim ? read_written(shares + (first + i) * step + d) : 0.0f;
            }
            UNROLL for (int j = 0; j < MERGED_AHEAD; j++)
                if (from + j * MERGE_PARTS < n) value = fmaf(own[j], factors[from + j * MERGE_PARTS], value);
        }
        barrier();
    }
    sum = join_warp(sum, [](float x, float y) { return x + y; });
    if (thread_index() == 0) join[0] = sum;
    parts[part][at] = value;
    barrier();
    if (part > 0 || d >= a.head_dim) return;
    for (int p = 1; p < MERGE_PARTS; p++) value += parts[p][at];
    a.out[(row * a.n_heads + head) * a.head_dim + d] = value / join[0];
}
#endif
