/* packed.cu - packed matrices of every format: rows into them, single rows out of them, products of float32 and
 * bfloat16 rows in float32, and mixtures of experts. */
#include "formats.cuh"
#include "units.cuh"

/* ---- rows into a matrix ---- */
/* Byte i of a block, of MLX's arrays. */
DEVICE uint8_t gathered_byte(const cuda_pack_args &a, int64_t block, int i) {
    const uint8_t *in = (const uint8_t *)a.pack.in, *scales = (const uint8_t *)a.pack.scales;
    const cuda_format &f = a.format;
    if (f.format == GM_QUANT_mxfp4) { /* values side by side become those that are 16 apart */
        const uint8_t *fields = in + 16 * block;
        if (i == 0) return scales[block];
        const int shift = (i - 1) % 2 * 4, at = (i - 1) / 2;
        return (uint8_t)((fields[at] >> shift & 15) | (fields[8 + at] >> shift & 15) << 4);
    }
    if (f.format == GM_QUANT_mxfp8) return i == 0 ? scales[block] : in[32 * block + i - 1];
    if (f.format == GM_QUANT_nvfp4) return i < 2 ? scales[2 * block + i] : in[16 * block + i - 2];
    const int scale = f.scale_type == GM_T_F32 ? 4 : 2;
    if (i < scale) return scales[block * scale + i];
    if (i < 2 * scale) return ((const uint8_t *)a.pack.biases)[block * scale + i - scale];
    return in[block * (f.bytes - 2 * scale) + i - 2 * scale];
}
/* Byte `at` of row `row` of a file or of MLX's arrays. */
DEVICE uint8_t byte_of_row(const cuda_pack_args &a, int64_t row, int64_t at) {
    const int64_t blocks = a.pack.k / a.format.values;
    if (!a.pack.scales) return ((const uint8_t *)a.pack.in)[row * a.row_bytes + at];
    return gathered_byte(a, row * blocks + at / a.format.bytes, (int)(at % a.format.bytes));
}
KERNEL(gm_pack, cuda_pack_args, CUDA_THREADS) {
    const int64_t items = a.row_bytes / a.item, i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.pack.rows * items) return;
    const int64_t row = i / items, from = a.pack.row_map ? a.pack.row_map[row] : row, at = i % items;
    if (a.format.tile) {
        const int64_t chunk = a.format.tile / a.format.values * a.format.bytes, inside = at % chunk;
        char *out = (char *)a.pack.out + (row / TILED_ROWS * a.row_bytes + at - inside) * TILED_ROWS;
        out[place_in_tile(a.format, (int)(row % TILED_ROWS), (int)inside)] = (char)byte_of_row(a, from, at);
    } else if (a.item == 16)
        ((pack<uint32_t, 4> *)a.pack.out)[i] = ((const pack<uint32_t, 4> *)a.pack.in)[from * items + at];
    else ((uint8_t *)a.pack.out)[i] = byte_of_row(a, from, at);
}

/* What runs between: a kernel that begins ahead has none that packs before it. */
KERNEL(gm_after_pack, cuda_pack_args, WARP) { (void)a; }

/* ---- rows out of a matrix: eight values are a thread's ---- */
KERNEL(gm_rows_out, cuda_rows_out_args, CUDA_THREADS) {
    const int64_t eights = (a.k + 7) / 8, i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.rows * eights) return;
    const int64_t row = i / eights, first = i % eights * 8, from = a.tokens ? a.tokens[row] : a.first + row;
    const int64_t row_bytes = a.k / a.format.values * a.format.bytes;
    const int64_t to = row * a.k + first;
    if (first + 8 > a.k) { /* of dense rows alone, which are in no tiles */
        const uint8_t *p = (const uint8_t *)a.weight + from * row_bytes;
        for (int64_t j = 0; first + j < a.k; j++)
            store_float(a.out, to + j, load_float(p, first + j, a.format.scale_type) * a.scale, a.out_type);
        return;
    }
    const auto give = [&](const auto &values) {
        float eight[8];
        values.eight(first, eight);
        if (a.out_type == GM_T_BF16) {
            pack<uint16_t, 8> halves;
            UNROLL for (int j = 0; j < 8; j++)
                halves.at[j] = bfloat_of_float(eight[j] * a.scale);
            *(pack<uint16_t, 8> *)((uint16_t *)a.out + to) = halves;
            return;
        }
        UNROLL for (int j = 0; j < 8; j++)
            ((float *)a.out)[to + j] = eight[j] * a.scale;
    };
    const int tall = (int)(from % TILED_ROWS);
    if (a.format.tile) with_tile_row(a.format, (const uint8_t *)a.weight + (from - tall) * row_bytes, tall, give);
    else with_row(a.format, a.weight, from, a.k, give);
}

/* ---- products ----
 * An element is a warp's: lane l has a chain over eights l, l + 32, ... of k, and then the lanes are added two by two.
 * Tokens that go together share what is read of the weight; what they have is their own, whatever their number. */
struct token_sums { float of[CUDA_TOKENS]; };

/* Eight of x times eight weights, onto a chain. */
template <int TYPE> DEVICE float chain_eight(const void *x, int64_t at, const float *weight, int n, float sum) {
    const typename float_item<TYPE>::raw *values = (const typename float_item<TYPE>::raw *)x + at;
    UNROLL for (int j = 0; j < 8; j++)
        if (j < n) sum = fmaf(widen<TYPE>(values[j]), weight[j], sum);
    return sum;
}
template <int TYPE, class ROW>
DEVICE void add_row(const cuda_packed_args &a, const ROW &row, int64_t token, int lane, token_sums *sums) {
    for (int64_t i = lane * 8; i + 8 <= a.k; i += WARP * 8) {
        float weight[8];
        row.eight(i, weight);
        UNROLL for (int t = 0; t < CUDA_TOKENS; t++)
            if (token + t < a.tokens)
                sums->of[t] = chain_eight<TYPE>(a.x, (token + t) * a.k + i, weight, 8, sums->of[t]);
    }
}
/* The last values of a dense row whose length is no multiple of eight: the lane's whose turn it is. */
template <int TYPE>
DEVICE void add_rest(const cuda_packed_args &a, const uint8_t *p, int type, int64_t token, int lane, token_sums *sums) {
    const int64_t first = a.k / 8 * 8;
    const int n = (int)(a.k - first);
    float weight[8] = {0};
    if (n == 0 || first / 8 % WARP != lane) return;
    UNROLL for (int j = 0; j < 8; j++)
        if (j < n) weight[j] = load_float(p, first + j, type);
    UNROLL for (int t = 0; t < CUDA_TOKENS; t++)
        if (token + t < a.tokens)
            sums->of[t] = chain_eight<TYPE>(a.x, (token + t) * a.k + first, weight, n, sums->of[t]);
}
/* Row `row` of a matrix times some tokens, in all lanes. */
template <int TYPE>
DEVICE_CALL token_sums multiply_row(const cuda_packed_args &a, const cuda_matrix &w, int64_t row, int64_t token) {
    const uint8_t *p = (const uint8_t *)w.data + row * (a.k / w.format.values * w.format.bytes);
    const int lane = thread_index() % WARP;
    token_sums sums = {};
    with_row(w.format, w.data, row, a.k, [&](const auto &values) { add_row<TYPE>(a, values, token, lane, &sums); });
    add_rest<TYPE>(a, p, w.format.scale_type, token, lane, &sums);
    UNROLL for (int t = 0; t < CUDA_TOKENS; t++) UNROLL
        for (int step = WARP / 2; step > 0; step /= 2) sums.of[t] += lane_xor(sums.of[t], step);
    return sums;
}
DEVICE token_sums multiply_any(const cuda_packed_args &a, const cuda_matrix &w, int64_t row, int64_t token) {
    return a.x_type == GM_T_BF16 ? multiply_row<GM_T_BF16>(a, w, row, token) : multiply_row<GM_T_F32>(a, w, row, token);
}
KERNEL(gm_packed_product, cuda_packed_args, CUDA_THREADS) {
    const int64_t row = block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP;
    const int64_t token = block_index_y() * CUDA_TOKENS;
    if (row >= a.rows) return;
    const token_sums sums = multiply_any(a, a.weight, row, token);
    const token_sums ups = a.glu == CUDA_NO_GLU ? sums : multiply_any(a, a.up, row, token);
    if (thread_index() % WARP != 0) return;
    for (int t = 0; t < CUDA_TOKENS && token + t < a.tokens; t++)
        store_product(a, {a.out, a.weight.bias, a.rows}, token + t, row, sums.of[t], ups.of[t]);
}

/* ---- mixtures of experts: an element of a pair of token and expert is a warp's, summed as products are ---- */
DEVICE float as_read(float x, bool rounds) { return rounds ? widen<GM_T_BF16>(narrow<GM_T_BF16>(x)) : x; }
/* Row `row` of a stack times a vector, and its bias; in all lanes. */
DEVICE_CALL float expert_row(const cuda_matrix &w, int64_t row, int64_t k, const float *x, bool rounds) {
    const uint8_t *p = (const uint8_t *)w.data + row * (k / w.format.values * w.format.bytes);
    const int lane = thread_index() % WARP;
    float sum = 0;
    with_row(w.format, w.data, row, k, [&](const auto &values) {
        for (int64_t i = lane * 8; i + 8 <= k; i += WARP * 8) {
            float weight[8];
            values.eight(i, weight);
            UNROLL for (int j = 0; j < 8; j++)
                sum = fmaf(as_read(x[i + j], rounds), weight[j], sum);
        }
    });
    if (k / 8 % WARP == lane)
        for (int64_t i = k / 8 * 8; i < k; i++)
            sum = fmaf(as_read(x[i], rounds), load_float(p, i, w.format.scale_type), sum);
    for (int step = WARP / 2; step > 0; step /= 2) sum += lane_xor(sum, step);
    return w.bias ? sum + w.bias[row] : sum;
}
DEVICE int64_t expert_of(const cuda_experts_args &a, int64_t pair) {
    const int64_t e = a.ids[pair];
    return e < 0 ? 0 : e < a.experts ? e : a.experts - 1;
}
KERNEL(gm_expert_units, cuda_experts_args, CUDA_THREADS) {
    const int64_t warps = CUDA_THREADS / WARP, blocks = (a.inner + warps - 1) / warps, pair = block_index() / blocks;
    const int64_t at = block_index() % blocks * warps + thread_index() / WARP;
    if (at >= a.inner) return;
    const int64_t row = expert_of(a, pair) * a.inner + at;
    const float *x = a.x + pair / a.top_k * a.dim;
    const float gate = expert_row(a.gate, row, a.dim, x, a.round_gate);
    const float up = expert_row(a.up, row, a.dim, x, a.round_up);
    if (thread_index() % WARP == 0) a.units[pair * a.inner + at] = glu_value(a.glu, a.alpha, a.limit, gate, up);
}
/* The pairs of a token in their order. */
KERNEL(gm_expert_sums, cuda_experts_args, CUDA_THREADS) {
    const int64_t warps = CUDA_THREADS / WARP, blocks = (a.out_dim + warps - 1) / warps;
    const int64_t token = block_index() / blocks, at = block_index() % blocks * warps + thread_index() / WARP;
    if (at >= a.out_dim) return;
    float sum = 0;
    for (int64_t pair = token * a.top_k; pair < (token + 1) * a.top_k; pair++) {
        const int64_t row = expert_of(a, pair) * a.out_dim + at;
        const float made = expert_row(a.down, row, a.inner, a.units + pair * a.inner, a.round_down);
        sum = fmaf(a.weights[pair], made, sum);
    }
    if (thread_index() % WARP == 0) a.out[token * a.out_dim + at] = sum;
}
/* What pairs of a token made by tiles (tiled.cu), in the same order. */
KERNEL(gm_expert_join, cuda_experts_args, CUDA_THREADS) {
    const int64_t i = block_index() * CUDA_THREADS + thread_index();
    if (i >= a.tokens * a.out_dim) return;
    const int64_t token = i / a.out_dim, at = i % a.out_dim;
    float sum = 0;
    for (int64_t pair = token * a.top_k; pair < (token + 1) * a.top_k; pair++)
        sum = fmaf(a.weights[pair], a.made[pair * a.out_dim + at], sum);
    a.out[i] = sum;
}
