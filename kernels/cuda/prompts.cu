/* prompts.cu - attention of prompts' rows by the tensor cores of sm_90a, over caches of float16, bfloat16 or int8 (as
 * float16): scores and sums are float32, queries and weights are rounded to the 16-bit type. Other heads, soft caps and
 * cards are attention.cu's.
 *  (1) A warp has a tile of sixteen rows of one head; a block those of one kv head side by side, tile after tile.
 *  (2) Keys come in tiles of CUDA_PROMPT_KEYS, cut at places of the cache alone, and finite keys and values that a row
 * does not see change no bit; those of other sequences never do. While the scores of a tile are made, the values of the
 * one before are added. */
#include "cached_keys.cuh"

#if HAS_WGMMA
#define PANEL 64 /* items of 16 bits of a line of 128 bytes */
#define KEYS(dim) CUDA_PROMPT_KEYS(dim)

/* Where item `at`, a multiple of eight, of a line is, of so many: in panels of 64 items, of which pieces of 16 bytes
 * are exchanged by the line's number (vocabulary.cuh: block_matrix). */
DEVICE char *in_panels(char *to, int lines, int line, int at) {
    return to + (at / PANEL * lines + line) * 128 + ((at % PANEL / 8 ^ line % 8) << 4);
}
/* A block's memory: queries of its warps, four of them together, keys and values of two tiles each. Lines are
 * [row][dim], [dim][key] and [key][dim]. */
template <int DIM> struct prompt_room {
    static constexpr int EACH = KEYS(DIM) * DIM * 2, QUERIES = 4 * 16 * DIM * 2;
    char *memory;
    METHOD prompt_room() : memory(block_memory() + (1024 - (uintptr_t)block_memory() % 1024) % 1024) {}
    METHOD char *keys(int tile) const { return memory + tile % 2 * EACH; }
    METHOD char *values(int tile) const { return memory + (2 + tile % 2) * EACH; }
    METHOD char *queries(int warp) const { return memory + 4 * EACH + warp / 4 * QUERIES; }
};

/* Tiles of heads are units, those of a tile side by side; a warp has one, or none. */
DEVICE int64_t unit_of(int warp) { return block_index_y() * (CUDA_THREADS / WARP) + warp; }
DEVICE int64_t tile_of_warp(const cuda_prompt_attention_args &p, int warp) {
    const int64_t tile = unit_of(warp) / (p.rows.n_heads / p.rows.n_kv_heads);
    return tile < p.tiles ? tile : p.tiles - 1;
}
struct prompt_share {
    gm_query_tile tile;
    int64_t head;
    bool some;
    METHOD prompt_share(const cuda_prompt_attention_args &p, int warp) : tile(p.rows.tiles[tile_of_warp(p, warp)]) {
        const int64_t group = p.rows.n_heads / p.rows.n_kv_heads;
        some = unit_of(warp) < p.tiles * group;
        head = block_index() * group + unit_of(warp) % group;
    }
};
template <int TYPE, int DIM> DEVICE void put_queries(char *to, const gm_attention_args &a, const prompt_share &s) {
    const int line = thread_index() / WARP % 4 * 16;
    for (int i = thread_index() % WARP; i < 16 * DIM / 8; i += WARP) {
        const int row = i / (DIM / 8), at = i % (DIM / 8) * 8;
        const bool inside = s.some && row < s.tile.rows && at < a.head_dim;
        const float *q = a.q + ((s.tile.first + row) * a.n_heads + s.head) * a.head_dim + at;
        pack<uint32_t, 4> out = {};
        UNROLL for (int j = 0; j < 4; j++)
            if (inside) out.at[j] = two_halves<TYPE>(q[2 * j] * a.scale, q[2 * j + 1] * a.scale);
        *(pack<uint32_t, 4> *)in_panels(to, 64, line + row, at) = out;
    }
}
/* A tile of keys of a block of the cache from `first` on, and of values, of which those from `last` on are zeros. What
 * a thread copies lies equally far apart, so that its places take few instructions. */
template <int TYPE, int DIM> DEVICE void load_prompt_keys(char *to, const kv_place &from, int first) {
    constexpr int EACH = CUDA_THREADS / (2 * DIM); /* groups of sixteen keys at a time */
    const int thread = thread_index(), d = thread / 2 % DIM, half = thread % 2, group = thread / (2 * DIM);
    const bool inside = d < from.dim;
    const char *next = from.keys + (inside ? ((first / 16 + group) * from.dim + d) * 32 + half * 16 : 0);
    char *const own = in_panels(to, DIM, d, group * 16 + half * 8);
    UNROLL for (int n = 0; n < KEYS(DIM) / 16; n += EACH) { /* pieces of a line are exchanged */
        char *const place = (char *)((uintptr_t)own ^ (uintptr_t)(n % 4 * 32)) + n / 4 * (DIM * 128);
        if (TYPE == GM_T_KV_Q8_0) load_key<TYPE>(place, from, first / 16 + group + n, d, half);
        else copy_16(place, next, inside ? 16 : 0);
        next += inside ? EACH * from.dim * 32 : 0;
    }
}
template <int TYPE, int DIM> DEVICE void load_prompt_values(char *to, const kv_place &from, int first, int last) {
    constexpr int EACH = CUDA_THREADS / (DIM / 8); /* keys at a time, a multiple of eight */
    const int thread = thread_index(), key = thread / (DIM / 8), part = thread % (DIM / 8);
    const bool inside = part * 8 < from.dim;
    const char *next = from.values + (inside ? ((first + key) * from.dim + part * 8) * 2 : 0);
    char *const own = in_panels(to, KEYS(DIM), key, part * 8);
    UNROLL for (int n = 0; n < KEYS(DIM); n += EACH) {
        if (TYPE == GM_T_KV_Q8_0) load_eight<TYPE>(own + n * 128, from, first + key + n, part, last);
        else copy_16(own + n * 128, next, inside && first + key + n < last ? 16 : 0);
        next += EACH * from.dim * 2;
    }
}

/* What a lane has of two rows: the greatest score, its own keys' share of the sum of the weights, values. */
template <int DIM> struct prompt_sums { float m[2], l[2], o[DIM / 2]; };
template <int TYPE, int DIM> DEVICE void ask_scores(float (&score)[KEYS(DIM) / 2], const char *q, const char *keys) {
    const block_matrix rows = matrix_at(q, 64 * 128), columns = matrix_at(keys, DIM * 128);
    UNROLL for (int k = 0; k < DIM / 16; k++) {
        const block_matrix a = rows.after(k / 4 * (64 * 128) + k % 4 * 32), b = columns.after(k * (16 * 128));
        if (TYPE == GM_T_BF16) {
            if (k) wgmma_bf16<true, false>(score, a, b);
            else wgmma_bf16<true, false, false>(score, a, b);
        } else {
            if (k) wgmma_f16<true, false>(score, a, b);
            else wgmma_f16<true, false, false>(score, a, b);
        }
    }
    wgmma_commit();
}
template <int TYPE, int DIM> DEVICE void ask_values(float (&o)[DIM / 2], const uint32_t *weights, const char *values) {
    const block_matrix columns = matrix_at(values, KEYS(DIM) * 128);
    UNROLL for (int k = 0; k < KEYS(DIM) / 16; k++) {
        if (TYPE == GM_T_BF16) wgmma_bf16_of_rows(o, weights + 4 * k, columns.after(k * (16 * 128)));
        else wgmma_f16_of_rows(o, weights + 4 * k, columns.after(k * (16 * 128)));
    }
    wgmma_commit();
}
/* Scores of keys that a row does not see become -INFINITY. */
template <int DIM> DEVICE void hide_keys(float (&score)[KEYS(DIM) / 2], const two_rows &rows, int first) {
    int from[2], to[2]; /* of the keys from the lane's first on */
    bool some = false;
    UNROLL for (int i = 0; i < 2; i++) {
        from[i] = within_keys(rows.begin[i] - first, KEYS(DIM)) - thread_index() % 4 * 2;
        to[i] = within_keys(rows.end[i] - first, KEYS(DIM)) - thread_index() % 4 * 2;
        some = some || rows.begin[i] > first || rows.end[i] < first + KEYS(DIM);
    }
    if (!lanes_where(some)) return;
    UNROLL for (int i = 0; i < KEYS(DIM) / 2; i++) {
        const int key = i / 4 * 8 + i % 2;
        if (key < from[i / 2 % 2] || key >= to[i / 2 % 2]) score[i] = -INFINITY;
    }
}
/* Scores become weights, of the greatest score so far; keep: what multiplies all that comes before. */
template <int DIM> DEVICE void weigh_scores(prompt_sums<DIM> *s, float (&score)[KEYS(DIM) / 2], float (&keep)[2]) {
    UNROLL for (int r = 0; r < 2; r++) {
        float top = s->m[r], sums[2] = {0, 0};
        UNROLL for (int i = 2 * r; i < KEYS(DIM) / 2; i += 4)
            top = fmaxf(top, fmaxf(score[i], score[i + 1]));
        top = most_of_four(top);
        const float from = top == -INFINITY ? 0.0f : top * LOG2_E;
        keep[r] = power_of_two(s->m[r] * LOG2_E - from); /* one, exactly, where the greatest stays */
        UNROLL for (int i = 2 * r; i < KEYS(DIM) / 2; i += 4) UNROLL
            for (int j = 0; j < 2; j++) {
                score[i + j] = power_of_two(fmaf(score[i + j], LOG2_E, -from));
                sums[j] += score[i + j];
            }
        s->m[r] = top;
        s->l[r] = fmaf(s->l[r], keep[r], sums[0] + sums[1]);
    }
}
template <int TYPE, int DIM>
DEVICE void round_weights(uint32_t (&weights)[KEYS(DIM) / 4], const float (&score)[KEYS(DIM) / 2]) {
    UNROLL for (int i = 0; i < KEYS(DIM) / 4; i++)
        weights[i] = two_halves<TYPE>(score[2 * i], score[2 * i + 1]);
}
/* Keys [begin, end) of one sequence, of which `row` is one. */
template <int TYPE, int DIM>
DEVICE void attend_sequence(prompt_sums<DIM> *s, const gm_attention_args &a, const two_rows &rows, int64_t row,
                            int64_t begin, int64_t end) {
    constexpr int IN_BLOCK = GM_KV_BLOCK / KEYS(DIM); /* tiles, of the cache's */
    const prompt_room<DIM> room;
    const kv_caches<TYPE> caches(a, tables_of(a, read_written(a.sequence + row)), block_index());
    /* Tables are read through the processor's own cache: no kernel writes them meanwhile. */
    const auto block_of = [&](int tile) {
        const char *const keys = (const char *)caches.tables.keys.blocks[tile / IN_BLOCK];
        const char *const values = (const char *)caches.tables.values.blocks[tile / IN_BLOCK];
        return kv_place{keys + caches.offset, values + caches.offset, (int)caches.dim};
    };
    const char *const queries = room.queries(thread_index() / WARP);
    const int first = (int)(begin / KEYS(DIM)), last = (int)((end - 1) / KEYS(DIM));
    float score[KEYS(DIM) / 2], keep[2];
    uint32_t weights[KEYS(DIM) / 4];
    const auto load_keys_of = [&](int tile) {
        if (tile <= last) load_prompt_keys<TYPE, DIM>(room.keys(tile), block_of(tile), tile % IN_BLOCK * KEYS(DIM));
    };
    const auto load_values_of = [&](int tile) {
        const int at = tile % IN_BLOCK * KEYS(DIM), left = (int)end - tile * KEYS(DIM);
        load_prompt_values<TYPE, DIM>(room.values(tile), block_of(tile), at, at + left);
    };
    const auto meet = [&] {
        wait_copies<0>();
        show_copies();
        barrier();
        wgmma_begin();
    };
    barrier(); /* nobody reads the tiles of the sequence before */
    load_keys_of(first);
    commit_copies();
    meet();
    ask_scores<TYPE, DIM>(score, queries, room.keys(first));
    load_keys_of(first + 1);
    load_values_of(first);
    commit_copies();
    wgmma_wait<0>();
    wgmma_result(score);
    hide_keys<DIM>(score, rows, first * KEYS(DIM));
    weigh_scores<DIM>(s, score, keep);
    UNROLL for (int i = 0; i < DIM / 2; i++)
        s->o[i] *= keep[i / 2 % 2];
    round_weights<TYPE, DIM>(weights, score);
    for (int tile = first; tile < last; tile++) {
        meet(); /* these values and the next keys are there, and nobody needs what lies where the next come */
        ask_scores<TYPE, DIM>(score, queries, room.keys(tile + 1));
        ask_values<TYPE, DIM>(s->o, weights, room.values(tile));
        load_keys_of(tile + 2);
        load_values_of(tile + 1);
        commit_copies();
        wgmma_wait<1>();
        wgmma_result(score);
        hide_keys<DIM>(score, rows, (tile + 1) * KEYS(DIM));
        weigh_scores<DIM>(s, score, keep);
        wgmma_wait<0>();
        wgmma_result(s->o);
        UNROLL for (int i = 0; i < DIM / 2; i++)
            s->o[i] *= keep[i / 2 % 2];
        round_weights<TYPE, DIM>(weights, score);
    }
    meet();
    ask_values<TYPE, DIM>(s->o, weights, room.values(last));
    wgmma_wait<0>();
    wgmma_result(s->o);
}
template <int DIM>
DEVICE void put_attended(const gm_attention_args &a, const prompt_share &share, prompt_sums<DIM> *s) {
    const int lane = thread_index() % WARP;
    UNROLL for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + 8 * r;
        float l = sum_of_four(s->l[r]), keep = 1;
        if (row >= share.tile.rows) continue;
        if (a.sinks) {
            const float sink = a.sinks[share.head], top = fmaxf(sink, s->m[r]);
            keep = power_of_two((s->m[r] - top) * LOG2_E);
            l = fmaf(l, keep, power_of_two((sink - top) * LOG2_E));
        }
        float *out = a.out + ((share.tile.first + row) * a.n_heads + share.head) * a.head_dim;
        UNROLL for (int i = 2 * r; i < DIM / 2; i += 4) {
            const int d = i / 4 * 8 + lane % 4 * 2;
            if (d >= a.head_dim) continue;
            *(pack<float, 2> *)(out + d) = {{s->o[i] * keep / l, s->o[i + 1] * keep / l}};
        }
    }
}
template <int TYPE, int DIM> DEVICE void attend_prompt(const cuda_prompt_attention_args &p) {
    const gm_attention_args &a = p.rows;
    const int warp = thread_index() / WARP, lane = thread_index() % WARP;
    const prompt_share share(p, warp);
    put_queries<TYPE, DIM>(prompt_room<DIM>().queries(warp), a, share);
    const int64_t first = tile_of_warp(p, 0), last = tile_of_warp(p, CUDA_THREADS / WARP - 1);
    for (int64_t t = first, next; t <= last; t = next) { /* tiles of a sequence lie together, the last rows first */
        const int64_t row = a.tiles[t].first, sequence = a.sequence[row];
        for (next = t + 1; next <= last && a.sequence[a.tiles[next].first] == sequence;) next++;
        const bool own = share.some && a.sequence[share.tile.first] == sequence;
        prompt_sums<DIM> s; /* of no keys, where a warp's tile is of another sequence */
        UNROLL for (int r = 0; r < 2; r++)
            s.m[r] = -INFINITY, s.l[r] = 0;
        UNROLL for (int i = 0; i < DIM / 2; i++)
            s.o[i] = 0;
        two_rows rows;
        UNROLL for (int r = 0; r < 2; r++) {
            const int at = lane / 4 + 8 * r;
            rows.end[r] = own && at < share.tile.rows ? (int64_t)a.positions[share.tile.first + at] + 1 : 0;
            rows.begin[r] = begin_of(a, rows.end[r]);
        }
        attend_sequence<TYPE, DIM>(&s, a, rows, row, begin_of(a, (int64_t)a.positions[a.tiles[next - 1].first] + 1),
                                   (int64_t)a.positions[row + a.tiles[t].rows - 1] + 1);
        if (own) put_attended<DIM>(a, share, &s);
    }
}
#define ATTEND_PROMPT(TYPE, DIM) attend_prompt<TYPE, DIM>(a)
#else
#define ATTEND_PROMPT(TYPE, DIM) (void)a
#endif
#define PROMPT_ATTENTION(KERNEL_OF, DIM)                                                                               \
    KERNEL_OF(gm_prompt_attention_f16_##DIM, cuda_prompt_attention_args, CUDA_THREADS) {                               \
        ATTEND_PROMPT(GM_T_F16, DIM);                                                                                  \
    }                                                                                                                  \
    KERNEL_OF(gm_prompt_attention_bf16_##DIM, cuda_prompt_attention_args, CUDA_THREADS) {                              \
        ATTEND_PROMPT(GM_T_BF16, DIM);                                                                                 \
    }                                                                                                                  \
    KERNEL_OF(gm_prompt_attention_q8_##DIM, cuda_prompt_attention_args, CUDA_THREADS) {                                \
        ATTEND_PROMPT(GM_T_KV_Q8_0, DIM);                                                                              \
    }
PROMPT_ATTENTION(KERNEL_OF_TWO, 64)
PROMPT_ATTENTION(KERNEL, 128)
