/* attention.cu - attention over caches of float16, bfloat16 or int8 (as float16), by the tensor cores: scores and sums
 * are float32, queries and weights are rounded to the 16-bit type. Other caches and heads are decoder.cu's.
 *  (1) Sixteen queries are a warp's: the heads of a group of one row that decodes, sixteen rows of a prompt of one
 * head. What a query gets does not depend on those beside it. (2) A row that decodes sums each block of GM_KV_BLOCK
 * keys by itself, a warp a part of it, and blocks are merged by another kernel; a row of a prompt goes through tiles of
 * keys, from the first that it sees. Both are cut at places of the cache alone, and keys that a row does not see change
 * no bit. */
#include "kv.cuh"

#define KEYS_EACH (GM_KV_BLOCK / (CUDA_THREADS / WARP)) /* of a block, of a warp of rows that decode */
#define TILE_KEYS(dim) ((dim) > 128 ? 32 : 64)          /* of a tile of rows of prompts */
#define LOG2_E 1.4426950408889634f
typedef pack<uint16_t, 8> piece;

/* ---- keys and values to the block's memory: keys as [16 keys][dim][16], values as [key][dim], in pieces of 16 bytes
 * whose places are exchanged so that the rows of a matrix are in different banks ---- */
struct kv_place {
    const char *keys, *values; /* of a kv head in a block of the cache */
    int dim;
};
template <int TYPE> DEVICE kv_place kv_at(const gm_attention_args &a, int64_t row, int64_t kv_head, int64_t block) {
    const int64_t values = GM_KV_BLOCK * a.head_dim, sequence = a.sequence[row];
    const int64_t offset = kv_head * (TYPE == GM_T_KV_Q8_0 ? values / 32 * 34 : 2 * values);
    return {(const char *)a.keys[sequence].blocks[block] + offset,
            (const char *)a.values[sequence].blocks[block] + offset, (int)a.head_dim};
}
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
/* Keys [first, first + count) of a block, by `threads` of which this is one; both counts multiples of 16. */
template <int TYPE, int DIM>
DEVICE void load_keys(char *to, const kv_place &from, int first, int count, int thread, int threads) {
    for (int i = thread; i < count / 16 * DIM * 2; i += threads) {
        const int group = i / (2 * DIM), d = i / 2 % DIM, half = i % 2, at = first / 16 + group;
        char *out = key_piece(to, DIM, group, d, half);
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
}
/* The same of values; those from `last` on are zeros: nobody wrote them. */
template <int TYPE, int DIM>
DEVICE void load_values(char *to, const kv_place &from, int first, int count, int last, int thread, int threads) {
    for (int i = thread; i < count * (DIM / 8); i += threads) {
        const int key = i / (DIM / 8), part = i % (DIM / 8), at = first + key;
        char *out = value_piece(to, DIM, key, part);
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
}

/* ---- what a warp has of sixteen queries: lane l those of rows l / 4 and l / 4 + 8 ---- */
template <int TYPE> DEVICE uint32_t two_halves(float low, float high) {
    return TYPE == GM_T_BF16 ? bfloat_of_float(low) | (uint32_t)bfloat_of_float(high) << 16
                             : half_of_float(low) | (uint32_t)half_of_float(high) << 16;
}
template <int TYPE> DEVICE void multiply_halves(float *d, const uint32_t *a, const uint32_t *b) {
    if (TYPE == GM_T_BF16) mma_bf16(d, a, b);
    else mma_f16(d, a, b);
}
template <int DIM> struct queries { uint32_t parts[DIM / 16][4]; };
/* Rows of q by number, NULL: zeros. */
template <int TYPE, int DIM>
DEVICE void load_queries(queries<DIM> *q, const float *low, const float *high, const gm_attention_args &a) {
    const int pair = thread_index() % 4 * 2;
    UNROLL for (int k = 0; k < DIM / 16; k++) UNROLL
        for (int i = 0; i < 4; i++) {
            const float *row = i % 2 ? high : low;
            const int d = k * 16 + i / 2 * 8 + pair;
            const bool inside = row && d < a.head_dim;
            q->parts[k][i] = two_halves<TYPE>(inside ? row[d] * a.scale : 0.0f, inside ? row[d + 1] * a.scale : 0.0f);
        }
}
/* Queries of two rows of sixteen that this lane has: keys that they see. */
struct two_rows { int64_t begin[2], end[2]; };
template <int DIM> struct attended {
    float m[2], l[2], o[DIM / 8][4]; /* m: of scores times LOG2_E; l: of the lane's own keys */
};
template <int DIM> DEVICE void begin_attended(attended<DIM> *s) {
    UNROLL for (int i = 0; i < 2; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    UNROLL for (int n = 0; n < DIM / 8; n++) UNROLL
        for (int i = 0; i < 4; i++) s->o[n][i] = 0;
}
DEVICE int within_keys(int64_t key, int keys) { return key < 0 ? 0 : key > keys ? keys : (int)key; }
/* Scores of KEYS keys, the first of which is `first` of the sequence: by powers of two, -INFINITY of those unseen. */
template <int TYPE, int DIM, int KEYS>
DEVICE void scores_of(float (&score)[KEYS / 8][4], const queries<DIM> &q, char *keys, const gm_attention_args &a,
                      const two_rows &rows, int64_t first) {
    const int lane = thread_index() % WARP;
    UNROLL for (int n = 0; n < KEYS / 8; n++) UNROLL
        for (int i = 0; i < 4; i++) score[n][i] = 0;
    UNROLL for (int k = 0; k < DIM / 16; k++) UNROLL
        for (int group = 0; group < KEYS / 16; group++) {
            uint32_t part[4];
            load_matrices_turned(part, key_piece(keys, DIM, group, k * 16 + lane % 16, lane / 16));
            multiply_halves<TYPE>(score[2 * group], q.parts[k], part);
            multiply_halves<TYPE>(score[2 * group + 1], q.parts[k], part + 2);
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
/* What comes before is brought to a maximum over the scores as well; scores become weights. */
template <int DIM, int KEYS> DEVICE void weigh(attended<DIM> *s, float (&score)[KEYS / 8][4]) {
    UNROLL for (int i = 0; i < 2; i++) {
        float top = s->m[i];
        UNROLL for (int n = 0; n < KEYS / 8; n++) {
            top = score[n][2 * i] > top ? score[n][2 * i] : top;
            top = score[n][2 * i + 1] > top ? score[n][2 * i + 1] : top;
        }
        UNROLL for (int step = 1; step < 4; step *= 2) {
            const float other = lane_xor(top, step);
            top = other > top ? other : top;
        }
        const float from = top == -INFINITY ? 0.0f : top, keep = power_of_two(s->m[i] - from);
        s->m[i] = top;
        s->l[i] *= keep;
        UNROLL for (int n = 0; n < KEYS / 8; n++) UNROLL
            for (int j = 2 * i; j < 2 * i + 2; j++) {
                score[n][j] = power_of_two(score[n][j] - from);
                s->l[i] += score[n][j];
            }
        UNROLL for (int n = 0; n < DIM / 8; n++) {
            s->o[n][2 * i] *= keep;
            s->o[n][2 * i + 1] *= keep;
        }
    }
}
/* Weights of sixteen keys times their values. */
template <int TYPE, int DIM> DEVICE void add_values(attended<DIM> *s, const float (*weight)[4], char *values, int key) {
    const int lane = thread_index() % WARP;
    const uint32_t rows[4] = {
        two_halves<TYPE>(weight[0][0], weight[0][1]), two_halves<TYPE>(weight[0][2], weight[0][3]),
        two_halves<TYPE>(weight[1][0], weight[1][1]), two_halves<TYPE>(weight[1][2], weight[1][3])};
    UNROLL for (int n = 0; n < DIM / 8; n += 2) {
        uint32_t part[4];
        load_matrices_turned(part, value_piece(values, DIM, key + lane % 16, n + lane / 16));
        multiply_halves<TYPE>(s->o[n], rows, part);
        multiply_halves<TYPE>(s->o[n + 1], rows, part + 2);
    }
}
DEVICE float sum_of_four(float x) {
    x += lane_xor(x, 1);
    return x + lane_xor(x, 2);
}
DEVICE int64_t begin_of(const gm_attention_args &a, int64_t end) {
    return a.window > 0 && end > a.window ? end - a.window : 0;
}

/* ---- rows that decode: a block has a block of keys of a row and up to sixteen heads of a group ---- */
struct decoded_share { float m[CUDA_THREADS / WARP][16], l[CUDA_THREADS / WARP][16]; };
DEVICE float *share_place(const gm_attention_args &a, int64_t row, int64_t head, int64_t index) {
    return a.partial + ((row * a.n_heads + head) * a.max_blocks + index) * (a.head_dim + 2);
}
/* The warps' parts of a share, in order. */
template <int DIM>
DEVICE void join_shares(const gm_attention_args &a, const decoded_share &parts, const float *o, int64_t row,
                        int64_t head, int heads, int64_t index) {
    const int warps = CUDA_THREADS / WARP;
    for (int i = thread_index(); i < heads * a.head_dim; i += CUDA_THREADS) {
        const int h = i / (int)a.head_dim, d = i % (int)a.head_dim;
        float top = -INFINITY, sum = 0, l = 0;
        UNROLL for (int w = 0; w < warps; w++)
            top = parts.m[w][h] > top ? parts.m[w][h] : top;
        const float from = top == -INFINITY ? 0.0f : top;
        UNROLL for (int w = 0; w < warps; w++) {
            const float keep = power_of_two(parts.m[w][h] - from);
            sum = fmaf(o[(w * 16 + h) * DIM + d], keep, sum);
            l = fmaf(parts.l[w][h], keep, l);
        }
        float *to = share_place(a, row, head + h, index);
        to[d] = sum;
        if (d == 0) {
            to[a.head_dim] = top;
            to[a.head_dim + 1] = l;
        }
    }
}
/* Before values come, a warp's memory for them has rows of float32: of a head of queries each, then two besides. */
template <int DIM> DEVICE float *turned_row(int warp, int i) {
    return (float *)(block_memory() + warp * (KEYS_EACH * 3 / 2) * DIM * 2 + KEYS_EACH * DIM * 2) + i * DIM;
}
template <int DIM> DEVICE float *turned_query(int head) {
    return turned_row<DIM>(head % (CUDA_THREADS / WARP), head / (CUDA_THREADS / WARP));
}
/* A head by a warp: normed, if there is a weight, to `out`. */
DEVICE void norm_head(const cuda_decode_args &a, const float *x, const float *norm, float *out) {
    const int lane = thread_index() % WARP, dim = (int)a.row.turn.head_dim;
    float scale = 1;
    if (norm) {
        float squares = 0;
        for (int d = lane; d < dim; d += WARP) squares = fmaf(x[d], x[d], squares);
        squares = join_warp(squares, [](float y, float z) { return y + z; });
        scale = 1.0f / sqrtf(squares / (float)dim + a.row.eps);
    }
    for (int d = lane; d < dim; d += WARP) out[d] = norm ? x[d] * scale * norm[d] : x[d];
    warp_barrier();
}
/* This warp's part of what is turned: queries from head `head` on, and, where `fresh`, the row's own key and value,
 * which go to their place in the cache. */
template <int TYPE, int DIM>
DEVICE void turn_row(const cuda_decode_args &a, int64_t row, int64_t head, int heads, int64_t kv_head, bool fresh,
                     const kv_place &to) {
    const gm_rope_cache_args &t = a.row.turn;
    const int warps = CUDA_THREADS / WARP, warp = thread_index() / WARP, lane = thread_index() % WARP;
    const float *angles = t.angles + row * 2 * t.half;
    float *normed = turned_row<DIM>(warp, 2);
    for (int h = warp; h < heads; h += warps) {
        float *out = turned_query<DIM>(h);
        norm_head(a, t.q + row * t.q_stride + (head + h) * t.head_dim, a.row.q_norm, normed);
        for (int d = lane; d < t.head_dim; d += WARP) out[d] = rotated_value(normed, angles, t.half, d);
        warp_barrier();
    }
    if (fresh && warp >= warps - 2) { /* the last warps, which have the fewest queries */
        const bool is_key = warp == warps - 1;
        const float *x = is_key ? t.k + row * t.k_stride : t.v + row * t.v_stride;
        norm_head(a, x + kv_head * t.head_dim, is_key ? a.row.k_norm : nullptr, normed);
        store_kv((char *)(is_key ? to.keys : to.values), t.kv_type, t.positions[row], t.head_dim, is_key, lane, WARP,
                 [&](int64_t d) { return rotated_value(normed, angles, is_key ? t.half : 0, d); });
    }
    barrier();
}
template <int DIM> DEVICE void merge_group(const gm_attention_args &a, int64_t row, int64_t head, int heads, int count);
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
/* A warp's keys from `first` of a block on, which begins with key `start` of the sequence: they are on their way. */
template <int TYPE, int DIM>
DEVICE void attend_keys(attended<DIM> *s, const queries<DIM> &q, char *keys, const kv_place &from,
                        const gm_attention_args &a, const two_rows &rows, int64_t start, int first, int last) {
    const int lane = thread_index() % WARP;
    char *values = keys + KEYS_EACH * DIM * 2;
    load_values<TYPE, DIM>(values, from, first, KEYS_EACH / 2, last, lane, WARP);
    commit_copies();
    float score[KEYS_EACH / 8][4];
    wait_copies<1>();
    warp_barrier();
    scores_of<TYPE, DIM, KEYS_EACH>(score, q, keys, a, rows, start + first);
    warp_barrier();
    load_values<TYPE, DIM>(keys, from, first + KEYS_EACH / 2, KEYS_EACH / 2, last, lane, WARP);
    commit_copies();
    weigh<DIM, KEYS_EACH>(s, score);
    wait_copies<1>();
    warp_barrier();
    UNROLL for (int k = 0; k < KEYS_EACH / 32; k++)
        add_values<TYPE>(s, score + 2 * k, values, 16 * k);
    wait_copies<0>();
    warp_barrier();
    UNROLL for (int k = 0; k < KEYS_EACH / 32; k++)
        add_values<TYPE>(s, score + KEYS_EACH / 16 + 2 * k, keys, 16 * k);
}
/* What a warp has of a share, to where the block joins it. */
template <int DIM> DEVICE void keep_parts(const attended<DIM> &s, decoded_share *parts, int heads) {
    const int warp = thread_index() / WARP, lane = thread_index() % WARP, low = lane / 4;
    float *o = (float *)block_memory() + warp * 16 * DIM;
    UNROLL for (int i = 0; i < 2; i++) {
        const float l = sum_of_four(s.l[i]);
        if (lane % 4 == 0) {
            parts->m[warp][low + 8 * i] = s.m[i];
            parts->l[warp][low + 8 * i] = l;
        }
        UNROLL for (int n = 0; n < DIM / 8; n++) UNROLL
            for (int j = 0; j < 2; j++)
                if (low + 8 * i < heads) o[(low + 8 * i) * DIM + n * 8 + lane % 4 * 2 + j] = s.o[n][2 * i + j];
    }
}
template <int TYPE, int DIM> DEVICE void attend_block(const cuda_decode_args &given) {
    const gm_attention_args &a = given.row.attention;
    SHARED decoded_share parts;
    const int64_t group = a.n_heads / a.n_kv_heads, cuts = (group + 15) / 16;
    const int64_t row = block_index() / (a.n_kv_heads * cuts), kv_head = block_index() / cuts % a.n_kv_heads;
    const int64_t in_group = block_index() % cuts * 16, head = kv_head * group + in_group, index = block_index_y();
    const int heads = (int)(group - in_group < 16 ? group - in_group : 16);
    const int64_t end = (int64_t)a.positions[row] + 1, begin = begin_of(a, end);
    const int64_t block = begin / GM_KV_BLOCK + index, start = block * GM_KV_BLOCK;
    if (start >= end) return;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP, first = warp * KEYS_EACH, low = lane / 4;
    const int last = end - start < GM_KV_BLOCK ? (int)(end - start) : GM_KV_BLOCK;
    const kv_place from = kv_at<TYPE>(a, row, kv_head, block);
    const bool fresh = given.turns && given.row.turn.k && start + last == end;
    const bool fresh_warp = fresh && (last - 1) / KEYS_EACH == warp;
    /* Of a warp: its keys, and values of a half of them; the other half comes where the keys were. */
    char *keys = block_memory() + warp * (KEYS_EACH * 3 / 2) * DIM * 2;
    attended<DIM> s;
    begin_attended(&s);
    if (first < last && !fresh_warp) load_keys<TYPE, DIM>(keys, from, first, KEYS_EACH, lane, WARP);
    queries<DIM> q;
    if (given.turns) {
        turn_row<TYPE, DIM>(given, row, head, heads, kv_head, fresh, from);
        load_queries<TYPE>(&q, low < heads ? turned_query<DIM>(low) : nullptr,
                           low + 8 < heads ? turned_query<DIM>(low + 8) : nullptr, a);
        barrier();
    } else {
        const float *rows = a.q + (row * a.n_heads + head) * a.head_dim;
        load_queries<TYPE>(&q, low < heads ? rows + low * a.head_dim : nullptr,
                           low + 8 < heads ? rows + (low + 8) * a.head_dim : nullptr, a);
    }
    if (first < last) {
        if (fresh_warp) load_keys<TYPE, DIM>(keys, from, first, KEYS_EACH, lane, WARP);
        commit_copies();
        attend_keys<TYPE, DIM>(&s, q, keys, from, a, {{begin, begin}, {end, end}}, start, first, last);
    }
    barrier(); /* nobody needs keys and values any more */
    keep_parts<DIM>(s, &parts, heads);
    barrier();
    join_shares<DIM>(a, parts, (const float *)block_memory(), row, head, heads, index);
    const int count = (int)((end + GM_KV_BLOCK - 1) / GM_KV_BLOCK - begin / GM_KV_BLOCK);
    if (given.merges && is_last_block(count)) merge_group<DIM>(a, row, head, heads, count);
}
/* Shares of a row and head, in the order of blocks: threads that are DIM apart have every so many of them. */
template <int DIM> DEVICE void merge_blocks(const gm_attention_args &a) {
    SHARED float join[CUDA_THREADS / WARP], sums[CUDA_THREADS];
    const int64_t row = block_index() / a.n_heads, head = block_index() % a.n_heads;
    const int64_t end = (int64_t)a.positions[row] + 1, first = begin_of(a, end) / GM_KV_BLOCK;
    const int count = (int)((end + GM_KV_BLOCK - 1) / GM_KV_BLOCK - first), each = (int)a.head_dim + 2;
    const float *from = share_place(a, row, head, 0);
    float top = a.sinks && thread_index() == 0 ? a.sinks[head] * LOG2_E : -INFINITY, l = 0, sum = 0;
    for (int i = thread_index(); i < count; i += CUDA_THREADS) {
        const float m = from[(int64_t)i * each + a.head_dim];
        top = m > top ? m : top;
    }
    top = join_block(top, join, [](float x, float y) { return y > x ? y : x; });
    top = top == -INFINITY ? 0.0f : top;
    if (a.sinks && thread_index() == 0) l = power_of_two(a.sinks[head] * LOG2_E - top);
    for (int i = thread_index(); i < count; i += CUDA_THREADS) {
        const float *share = from + (int64_t)i * each + a.head_dim;
        l = fmaf(share[1], power_of_two(share[0] - top), l);
    }
    l = join_block(l, join, [](float x, float y) { return x + y; });
    const int d = thread_index() % DIM, part = thread_index() / DIM, parts = CUDA_THREADS / DIM;
    if (d < a.head_dim) {
        _Pragma("unroll 8") for (int i = part; i < count; i += parts) {
            const float *share = from + (int64_t)i * each;
            sum = fmaf(share[d], power_of_two(share[a.head_dim] - top), sum);
        }
    }
    sums[thread_index()] = sum;
    barrier();
    if (thread_index() >= a.head_dim) return;
    for (int i = 1; i < parts; i++) sum += sums[thread_index() + i * DIM];
    a.out[(row * a.n_heads + head) * a.head_dim + thread_index()] = sum / l;
}

/* The same of heads side by side, of at most CUDA_MERGED shares, which a warp's lanes have: the bits are those of
 * merge_blocks, whose other warps have no shares then. */
template <int DIM>
DEVICE void merge_group(const gm_attention_args &a, int64_t row, int64_t head, int heads, int count) {
    static_assert(CUDA_MERGED == WARP, "a lane has a share");
    constexpr int PARTS = CUDA_THREADS / DIM;
    const int lane = thread_index() % WARP, each = (int)a.head_dim + 2;
    float *keep = (float *)block_memory(), *sums = keep + 16 * CUDA_MERGED; /* of heads */
    for (int h = thread_index() / WARP; h < heads; h += CUDA_THREADS / WARP) {
        const float *share = share_place(a, row, head + h, lane) + a.head_dim;
        const bool sink = a.sinks && lane == 0;
        const float m = lane < count ? read_written(share) : -INFINITY,
                    own = lane < count ? read_written(share + 1) : 0;
        float top = sink ? a.sinks[head + h] * LOG2_E : -INFINITY;
        top = join_warp(m > top ? m : top, [](float x, float y) { return y > x ? y : x; });
        top = top == -INFINITY ? 0.0f : top;
        float l = sink ? power_of_two(a.sinks[head + h] * LOG2_E - top) : 0;
        const float factor = power_of_two(m - top);
        if (lane < count) l = fmaf(own, factor, l);
        l = join_warp(l, [](float x, float y) { return x + y; });
        keep[h * CUDA_MERGED + lane] = factor;
        if (lane == 0) sums[h] = l;
    }
    barrier();
    for (int i = thread_index(); i < heads * a.head_dim; i += CUDA_THREADS) {
        const int h = i / (int)a.head_dim, d = i % (int)a.head_dim;
        const float *share = share_place(a, row, head + h, 0) + d;
        float sum[PARTS] = {0};
        for (int first = 0; first < count; first += PARTS) UNROLL
            for (int p = 0; p < PARTS; p++)
                if (first + p < count)
                    sum[p] = fmaf(read_written(share + (first + p) * each), keep[h * CUDA_MERGED + first + p], sum[p]);
        float total = sum[0];
        UNROLL for (int p = 1; p < PARTS; p++)
            total += sum[p];
        a.out[(row * a.n_heads + head + h) * a.head_dim + d] = total / sums[h];
    }
}

/* ---- rows of prompts: a block has a tile of them, a warp of it a head ---- */
template <int TYPE, int DIM> DEVICE void attend_tile(const gm_attention_args &a) {
    constexpr int KEYS = TILE_KEYS(DIM), HALF = KEYS * DIM * 2;
    const gm_query_tile tile = a.tiles[block_index()];
    const int64_t group = a.n_heads / a.n_kv_heads, warps = thread_count() / WARP, cuts = (group + warps - 1) / warps;
    const int64_t kv_head = block_index_y() / cuts, in_group = block_index_y() % cuts * warps + thread_index() / WARP;
    const int64_t head = kv_head * group + in_group, lane = thread_index() % WARP;
    const int64_t end = (int64_t)a.positions[tile.first + tile.rows - 1] + 1; /* of all of them */
    const int64_t begin = begin_of(a, (int64_t)a.positions[tile.first] + 1) / KEYS * KEYS;
    two_rows rows;
    const float *of[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const int64_t at = lane / 4 + 8 * i, row = tile.first + at;
        const bool there = at < tile.rows && in_group < group;
        rows.end[i] = there ? (int64_t)a.positions[row] + 1 : 0;
        rows.begin[i] = begin_of(a, rows.end[i]);
        of[i] = there ? a.q + (row * a.n_heads + head) * a.head_dim : nullptr;
    }
    const auto load = [&](int64_t first) {
        char *to = block_memory() + first / KEYS % 2 * 2 * HALF;
        if (first < end) {
            const kv_place from = kv_at<TYPE>(a, tile.first, kv_head, first / GM_KV_BLOCK);
            const int at = (int)(first % GM_KV_BLOCK), left = (int)(end - first < KEYS ? end - first : KEYS);
            load_keys<TYPE, DIM>(to, from, at, KEYS, thread_index(), thread_count());
            load_values<TYPE, DIM>(to + HALF, from, at, KEYS, at + left, thread_index(), thread_count());
        }
        commit_copies();
    };
    queries<DIM> q;
    attended<DIM> s;
    load(begin);
    load_queries<TYPE>(&q, of[0], of[1], a);
    begin_attended(&s);
    for (int64_t first = begin; first < end; first += KEYS) {
        wait_copies<0>();
        barrier(); /* the tile is there for all, and nobody needs the one before */
        load(first + KEYS);
        char *keys = block_memory() + first / KEYS % 2 * 2 * HALF;
        float score[KEYS / 8][4];
        scores_of<TYPE, DIM, KEYS>(score, q, keys, a, rows, first);
        weigh<DIM, KEYS>(&s, score);
        UNROLL for (int k = 0; k < KEYS / 16; k++)
            add_values<TYPE>(&s, score + 2 * k, keys + HALF, 16 * k);
    }
    wait_copies<0>();
    UNROLL for (int i = 0; i < 2; i++) {
        float l = sum_of_four(s.l[i]), keep = 1;
        if (!of[i]) continue;
        if (a.sinks) {
            const float sink = a.sinks[head] * LOG2_E, top = sink > s.m[i] ? sink : s.m[i];
            keep = power_of_two(s.m[i] - top);
            l = fmaf(l, keep, power_of_two(sink - top));
        }
        float *out = a.out + (of[i] - a.q);
        UNROLL for (int n = 0; n < DIM / 8; n++) UNROLL
            for (int j = 0; j < 2; j++) {
                const int d = n * 8 + (int)lane % 4 * 2 + j;
                if (d < a.head_dim) out[d] = s.o[n][2 * i + j] * keep / l;
            }
    }
}

#define ATTENTION(type, TYPE, DIM)                                                                                     \
    KERNEL(gm_attention_tile_##type##_##DIM, cuda_attention_args, CUDA_THREADS) { attend_tile<TYPE, DIM>(a); }         \
    KERNEL(gm_attention_block_##type##_##DIM, cuda_decode_args, CUDA_THREADS) { attend_block<TYPE, DIM>(a); }
#define ATTENTIONS(DIM)                                                                                                \
    ATTENTION(f16, GM_T_F16, DIM)                                                                                      \
    ATTENTION(bf16, GM_T_BF16, DIM)                                                                                    \
    ATTENTION(q8, GM_T_KV_Q8_0, DIM)                                                                                   \
    KERNEL(gm_attention_blocks_##DIM, cuda_attention_args, CUDA_THREADS) { merge_blocks<DIM>(a); }
ATTENTIONS(64)
ATTENTIONS(128)
ATTENTIONS(256)
