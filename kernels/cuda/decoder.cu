/* decoder.cu - parts of decoders: gated units, soft caps, routes of mixtures, rotary positions and the append to
 * caches, attention over caches, convolutions with a state. Caches are laid out as quants.h says, whatever the device.
 */
#include "kv.cuh"
#include "units.cuh"

/* ---- gated units, soft caps ---- */
KERNEL(gm_glu, cuda_glu_args, CUDA_THREADS) {
    const gm_glu_args &g = a.glu;
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), row = i / g.dim, at = i % g.dim;
    if (i >= a.rows * g.dim) return;
    g.out[i] = glu_value(g.kind, g.alpha, g.limit, g.gate[row * g.gate_stride + at], g.up[row * g.up_stride + at]);
}
KERNEL(gm_softcap, cuda_softcap_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i < a.count) a.softcap.out[i] = a.softcap.cap * vf_tanh(a.softcap.x[i] / a.softcap.cap);
}

/* ---- routes: a row is a warp's ---- */
struct ranked {
    float x;
    int32_t id;
};
DEVICE bool comes_before(ranked a, ranked b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }
/* The first in order of those that come after `last`. */
DEVICE ranked next_expert(const float *logits, int64_t experts, ranked last) {
    ranked best = {-INFINITY, INT32_MAX};
    for (int64_t e = thread_index() % WARP; e < experts; e += WARP) {
        const ranked one = {logits[e] == logits[e] ? logits[e] : -INFINITY, (int32_t)e};
        if (comes_before(last, one) && comes_before(one, best)) best = one;
    }
    return join_warp(best, [](ranked x, ranked y) { return comes_before(y, x) ? y : x; });
}
KERNEL(gm_route, cuda_route_args, CUDA_THREADS) {
    const gm_route_args &r = a.route;
    const int64_t row = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    if (row >= a.rows) return;
    const float *logits = r.logits + row * r.experts;
    float *weights = r.weights + row * r.k, top = 0, sum = 0;
    ranked last = {INFINITY, -1};
    const bool stores = thread_index() % WARP == 0;
    for (int64_t i = 0; i < r.k; i++) {
        last = next_expert(logits, r.experts, last);
        if (i == 0) top = last.x;
        const float power = vf_exp(logits[last.id] - top);
        sum += power;
        if (!stores) continue;
        r.ids[row * r.k + i] = last.id;
        weights[i] = power;
    }
    if (!r.normalise) {
        sum = 0;
        for (int64_t e = thread_index() % WARP; e < r.experts; e += WARP) sum += vf_exp(logits[e] - top);
        sum = join_warp(sum, [](float x, float y) { return x + y; });
    }
    for (int64_t i = 0; i < r.k && stores; i++) {
        weights[i] /= sum;
        if (r.scale) weights[i] *= r.scale[r.ids[row * r.k + i]];
    }
}

/* ---- rotary positions, and what goes to caches ---- */
KERNEL(gm_rope_angles, cuda_rope_angles_args, CUDA_THREADS) {
    const gm_rope_angles_args &r = a.angles;
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), row = i / r.half, at = i % r.half;
    if (i >= a.rows * r.half) return;
    const float angle = (float)r.positions[row] * r.inv_freq[at];
    r.out[row * 2 * r.half + at] = cosf(angle) * r.factor;
    r.out[row * 2 * r.half + r.half + at] = sinf(angle) * r.factor;
}
/* N values of x from d on: all are of one half, or of none. */
template <int N> DEVICE pack<float, N> rotated_values(const float *x, const float *angles, int64_t half, int64_t d) {
    typedef pack<float, N> values;
    const values own = *(const values *)(x + d);
    if (d >= 2 * half) return own;
    const bool first = d < half;
    const int64_t pair = first ? d : d - half;
    const values other = *(const values *)(x + (first ? d + half : pair));
    const values c = *(const values *)(angles + pair), s = *(const values *)(angles + half + pair);
    values out;
    UNROLL for (int j = 0; j < N; j++)
        out.at[j] = first ? fmaf(-other.at[j], s.at[j], own.at[j] * c.at[j])
                          : fmaf(other.at[j], s.at[j], own.at[j] * c.at[j]);
    return out;
}
/* A head of CUDA_TURN_ROWS rows: of q, then of keys, then of values. */
template <int N> DEVICE void turn_queries(const gm_rope_cache_args &a, int64_t head, int64_t first, int rows) {
    typedef pack<float, N> values;
    const int64_t dim = a.head_dim, half = a.half;
    const int each = (int)(dim - half) / N; /* out may be q: both of a pair are a thread's */
    for (int i = thread_index(); i < rows * each; i += CUDA_THREADS) {
        const int64_t row = first + i / each, at = i % each * N, d = at < half ? at : at + half;
        const float *q = a.q + row * a.q_stride + head * dim, *angles = a.angles + row * 2 * half;
        float *out = a.q_out + (row * a.n_heads + head) * dim;
        const values one = rotated_values<N>(q, angles, half, d);
        if (at < half) {
            const values other = rotated_values<N>(q, angles, half, at + half);
            *(values *)(out + at + half) = other;
        }
        *(values *)(out + d) = one;
    }
}
/* Side by side are threads of rows side by side, whose keys lie together, or of one row, whose values do. */
template <int N>
DEVICE void append_rows(const gm_rope_cache_args &a, bool is_key, int64_t head, int64_t first, int rows) {
    constexpr int EACH = CUDA_THREADS / CUDA_TURN_ROWS; /* threads of a row */
    const int64_t dim = a.head_dim, turned = is_key ? a.half : 0;
    const int thread = thread_index(), of_row = is_key ? thread / CUDA_TURN_ROWS : thread % EACH;
    const int at = is_key ? thread % CUDA_TURN_ROWS : thread / EACH;
    if (at >= rows) return;
    const int64_t row = first + at, position = a.positions[row];
    const float *x = (is_key ? a.k + row * a.k_stride : a.v + row * a.v_stride) + head * dim;
    const float *angles = a.angles + row * 2 * a.half;
    char *to = (char *)(is_key ? a.keys : a.values)[a.sequence[row]].blocks[position / GM_KV_BLOCK] +
               head * kv_bytes(a.kv_type, GM_KV_BLOCK * dim);
    if (a.kv_type == GM_T_KV_Q8_0) {
        store_kv(to, a.kv_type, position, dim, is_key, of_row, EACH,
                 [&](int64_t d) { return rotated_value(x, angles, turned, d); });
        return;
    }
    for (int64_t d = of_row * N; d < dim; d += EACH * N) {
        const pack<float, N> values = rotated_values<N>(x, angles, turned, d);
        UNROLL for (int j = 0; j < N; j++)
            store_kv_value(to, a.kv_type, position, dim, is_key, d + j, values.at[j]);
    }
}
template <int N> DEVICE void turn_rows(const cuda_rope_cache_args &a) {
    const gm_rope_cache_args &turn = a.turn;
    const int64_t head = block_index_y() - turn.n_heads, first = block_index() * CUDA_TURN_ROWS;
    const int rows = (int)(first + CUDA_TURN_ROWS < a.rows ? CUDA_TURN_ROWS : a.rows - first);
    if (head < 0) turn_queries<N>(turn, block_index_y(), first, rows);
    else if (head < turn.n_kv_heads) append_rows<N>(turn, true, head, first, rows);
    else append_rows<N>(turn, false, head - turn.n_kv_heads, first, rows);
}
KERNEL(gm_rope_cache, cuda_rope_cache_args, CUDA_THREADS) {
    if (a.fours) turn_rows<4>(a);
    else turn_rows<1>(a);
}

/* ---- attention: a block's threads are the keys of a block of the cache, then the values' dimensions ----
 * What one block of keys gives a query is a share (m, l, o), from zero, by the same steps wherever it is made; shares
 * merge in the order of blocks. */
#define DIMS_EACH (CUDA_ATTENTION_DIM / CUDA_THREADS)
static_assert(CUDA_THREADS == GM_KV_BLOCK, "a thread has a key");
struct attention_memory { float q[CUDA_ATTENTION_DIM], weight[GM_KV_BLOCK], join[CUDA_THREADS / WARP]; };
struct attention_query {
    int64_t row, head, begin, end, kv_offset; /* keys that it sees; bytes to its kv head in a block */
};
struct attention_share { float m, l, o[DIMS_EACH]; };

DEVICE attention_query query_of(const gm_attention_args &a, int64_t row, int64_t head) {
    const int64_t end = (int64_t)a.positions[row] + 1, begin = a.window > 0 && end > a.window ? end - a.window : 0;
    const int64_t kv_head = head / (a.n_heads / a.n_kv_heads);
    return {row, head, begin, end, kv_head * kv_bytes(a.kv_type, GM_KV_BLOCK * a.head_dim)};
}
DEVICE void load_query(const gm_attention_args &a, const attention_query &q, attention_memory *shared) {
    const float *from = a.q + (q.row * a.n_heads + q.head) * a.head_dim;
    for (int64_t d = thread_index(); d < a.head_dim; d += CUDA_THREADS) shared->q[d] = from[d] * a.scale;
    barrier();
}
DEVICE float score_of(const gm_attention_args &a, const char *keys, const float *q, int key) {
    float sum = 0;
    if (a.kv_type != GM_T_KV_Q8_0) {
        for (int64_t d = 0; d < a.head_dim; d++)
            sum = fmaf(load_float(keys, key_place(key, d, a.head_dim), a.kv_type), q[d], sum);
        return sum;
    }
    for (int64_t d = 0; d < a.head_dim; d += 32) {
        const char *unit = keys + unit_offset(key, d, a.head_dim);
        const int8_t *values = (const int8_t *)unit + 2 * GM_KV_LANES + key % GM_KV_LANES;
        float part = 0;
        for (int i = 0; i < 32; i++) part = fmaf((float)values[GM_KV_LANES * i], q[d + i], part);
        sum = fmaf(part, float_of_half(((const uint16_t *)unit)[key % GM_KV_LANES]), sum);
    }
    return sum;
}
/* Onto one dimension: keys [first, last) in order. */
DEVICE float values_of(const gm_attention_args &a, const char *values, const float *weight, int64_t first, int64_t last,
                       int64_t d) {
    float sum = 0;
    for (int64_t key = first; key < last; key++) {
        if (a.kv_type != GM_T_KV_Q8_0) {
            sum = fmaf(weight[key], load_float(values, key * a.head_dim + d, a.kv_type), sum);
            continue;
        }
        const char *unit = values + unit_offset(key, d, a.head_dim);
        const int64_t lane = key % GM_KV_LANES;
        const float scale = float_of_half(((const uint16_t *)unit)[lane]);
        sum = fmaf(weight[key] * scale, (float)((const int8_t *)unit)[2 * GM_KV_LANES + 32 * lane + d % 32], sum);
    }
    return sum;
}
DEVICE attention_share share_of(const gm_attention_args &a, const attention_query &q, int64_t block,
                                attention_memory *shared) {
    const int64_t start = block * GM_KV_BLOCK, first = q.begin > start ? q.begin - start : 0;
    const int64_t last = q.end - start < GM_KV_BLOCK ? q.end - start : GM_KV_BLOCK, sequence = a.sequence[q.row];
    const char *keys = (const char *)a.keys[sequence].blocks[block] + q.kv_offset;
    const char *values = (const char *)a.values[sequence].blocks[block] + q.kv_offset;
    const int key = thread_index();
    const bool seen = key >= first && key < last;
    float score = seen ? score_of(a, keys, shared->q, key) : -INFINITY;
    if (seen && a.softcap != 0) score = a.softcap * vf_tanh(score / a.softcap);
    attention_share s = {};
    s.m = join_block(score, shared->join, [](float x, float y) { return y > x ? y : x; });
    const float weight = seen && s.m != -INFINITY ? vf_exp(score - s.m) : 0.0f;
    s.l = join_block(weight, shared->join, [](float x, float y) { return x + y; });
    shared->weight[key] = weight;
    barrier();
    UNROLL for (int i = 0; i < DIMS_EACH; i++) {
        const int64_t d = thread_index() + (int64_t)i * CUDA_THREADS;
        if (d < a.head_dim && s.m != -INFINITY) s.o[i] = values_of(a, values, shared->weight, first, last, d);
    }
    barrier();
    return s;
}
/* A share joins those before it. */
DEVICE void merge_share(attention_share *all, const attention_share &s) {
    if (s.m == -INFINITY) return;
    const float top = s.m > all->m ? s.m : all->m, keep = vf_exp(all->m - top), take = vf_exp(s.m - top);
    all->l = all->l * keep + s.l * take;
    all->m = top;
    UNROLL for (int i = 0; i < DIMS_EACH; i++)
        all->o[i] = fmaf(s.o[i], take, all->o[i] * keep);
}
/* A sink is one more weight without a value. */
DEVICE void store_attention(const gm_attention_args &a, int64_t row, int64_t head, attention_share *all) {
    if (a.sinks) {
        attention_share sink = {};
        sink.m = a.sinks[head];
        sink.l = 1;
        merge_share(all, sink);
    }
    UNROLL for (int i = 0; i < DIMS_EACH; i++) {
        const int64_t d = thread_index() + (int64_t)i * CUDA_THREADS;
        if (d < a.head_dim) a.out[(row * a.n_heads + head) * a.head_dim + d] = all->o[i] / all->l;
    }
}
/* A query is a block's. */
KERNEL(gm_attention, cuda_attention_args, CUDA_THREADS) {
    SHARED attention_memory shared;
    const gm_query_tile tile = a.tiles[block_index() / GM_QUERY_TILE];
    const int64_t in_tile = block_index() % GM_QUERY_TILE;
    if (in_tile >= tile.rows) return;
    const attention_query q = query_of(a, tile.first + in_tile, block_index_y());
    attention_share all = {};
    all.m = -INFINITY;
    load_query(a, q, &shared);
    for (int64_t block = q.begin / GM_KV_BLOCK; block * GM_KV_BLOCK < q.end; block++)
        merge_share(&all, share_of(a, q, block, &shared));
    store_attention(a, q.row, q.head, &all);
}
DEVICE float *kept_share(const gm_attention_args &a, int64_t row, int64_t head, int64_t index) {
    return a.partial + ((row * a.n_heads + head) * a.max_blocks + index) * (a.head_dim + 2);
}
/* A share of a row is a block's; of blocks of the cache from the first that the row sees. */
KERNEL(gm_attention_split, cuda_attention_args, CUDA_THREADS) {
    SHARED attention_memory shared;
    const int64_t row = block_index() / a.n_heads, head = block_index() % a.n_heads, index = block_index_y();
    const attention_query q = query_of(a, row, head);
    const int64_t block = q.begin / GM_KV_BLOCK + index;
    if (block * GM_KV_BLOCK >= q.end) return;
    load_query(a, q, &shared);
    const attention_share s = share_of(a, q, block, &shared);
    float *to = kept_share(a, row, head, index);
    UNROLL for (int i = 0; i < DIMS_EACH; i++) {
        const int64_t d = thread_index() + (int64_t)i * CUDA_THREADS;
        if (d < a.head_dim) to[d] = s.o[i];
    }
    if (thread_index() == 0) {
        to[a.head_dim] = s.m;
        to[a.head_dim + 1] = s.l;
    }
}
KERNEL(gm_attention_merge, cuda_attention_args, CUDA_THREADS) {
    const int64_t row = block_index() / a.n_heads, head = block_index() % a.n_heads;
    const attention_query q = query_of(a, row, head);
    const int64_t first = q.begin / GM_KV_BLOCK;
    attention_share all = {};
    all.m = -INFINITY;
    for (int64_t index = 0; (first + index) * GM_KV_BLOCK < q.end; index++) {
        const float *from = kept_share(a, row, head, index);
        attention_share s = {};
        s.m = from[a.head_dim];
        s.l = from[a.head_dim + 1];
        UNROLL for (int i = 0; i < DIMS_EACH; i++) {
            const int64_t d = thread_index() + (int64_t)i * CUDA_THREADS;
            if (d < a.head_dim) s.o[i] = from[d];
        }
        merge_share(&all, s);
    }
    store_attention(a, row, head, &all);
}

/* ---- convolutions with a state: a channel of a sequence is a thread's ---- */
KERNEL(gm_recurrent_conv, cuda_recurrent_conv_args, CUDA_THREADS) {
    const gm_cached_conv_args &c = a.layer;
    const int64_t i = block_index() * CUDA_THREADS + thread_index(), sequence = i / c.channels, at = i % c.channels;
    if (i >= a.sequences * c.channels) return;
    const int64_t first = c.first[sequence], rows = c.first[sequence + 1] - first, before = c.taps - 1;
    float *state = c.states[sequence].state + at;
    const float *x = c.x + first * c.channels + at;
    if (rows == 0) return;
    for (int64_t t = 0; t < before && c.positions[first] == 0; t++) state[t * c.channels] = 0;
    for (int64_t t = 0; t < rows; t++) {
        float sum = 0;
        for (int64_t j = 0; j < c.taps; j++) {
            const int64_t from = t - before + j;
            sum = fmaf(from < 0 ? state[(before + from) * c.channels] : x[from * c.channels], c.weight[at * c.taps + j],
                       sum);
        }
        c.out[(first + t) * c.channels + at] = sum * vf_sigmoid(sum);
    }
    for (int64_t t = 0; t < before; t++) { /* a row comes from further on than where it goes */
        const int64_t from = rows - before + t;
        state[t * c.channels] = from < 0 ? state[(before + from) * c.channels] : x[from * c.channels];
    }
}
