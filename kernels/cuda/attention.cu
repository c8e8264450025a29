/* attention.cu - attention over caches of float16, bfloat16 or int8 (as float16), by the tensor cores: scores and sums
 * are float32, queries and weights are rounded to the 16-bit type. Other caches and heads are decoder.cu's.
 *  (1) Sixteen queries go together: the heads of a group of one row that decodes (shares.cuh), sixteen rows of a prompt
 * of one head. What a query gets does not depend on those beside it. (2) A row that decodes sums each share of
 * CUDA_SHARE_KEYS keys by itself, and shares are merged in order; a row of a prompt goes through tiles of keys, from
 * the first that it sees. Both are cut at places of the cache alone, and keys that a row does not see change no bit. */
#include "shares.cuh"

/* ---- rows of prompts: a block has a tile of them, a warp of it a head ---- */
#define TILE_KEYS(dim) ((dim) > 128 ? 32 : 64)
template <int DIM> struct queries {
    uint32_t parts[DIM / 16][4];
    METHOD const uint32_t *part(int k, uint32_t *) const { return parts[k]; }
};
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
            const cache_tables tables = tables_of(a, read_written(a.sequence + tile.first));
            const kv_place from = kv_caches<TYPE>(a, tables, kv_head).at(first / GM_KV_BLOCK);
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
    KERNEL_AHEAD_OF_FIVE(gm_attention_block_##type##_##DIM, cuda_decode_args, CUDA_DECODE_THREADS) {                   \
        attend_shares<TYPE, DIM>(a);                                                                                   \
    }
#define ATTENTIONS(DIM)                                                                                                \
    ATTENTION(f16, GM_T_F16, DIM)                                                                                      \
    ATTENTION(bf16, GM_T_BF16, DIM)                                                                                    \
    ATTENTION(q8, GM_T_KV_Q8_0, DIM)
ATTENTIONS(64)
ATTENTIONS(128)
ATTENTIONS(256)
KERNEL(gm_attention_shares, cuda_attention_args, CUDA_THREADS) { merge_shares(a); }
