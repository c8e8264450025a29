/* tiled.cu - products by matrices in tiles (tiles.cuh), on the tensor cores. A block has a run of sixteen rows after
 * sixteen rows, and each of its warps a part of k, which depends on the length of k alone. A warp's own ring of copies
 * runs ahead of it; x is in the block's memory, as float16 with a power of two for each part of k: two of them, of
 * which the second is what the first leaves out, so that the product is one of float32; bfloat16 rows are one.
 * A token has columns of mma of its own, which do not see others, and the parts of k are added in one order: it has
 * the bits that it has alone. */
#include "made_rows.cuh"
#include "tiles.cuh"
#include "units.cuh"
#include "wide.cuh"

#define TILED_WARPS (TILED_THREADS / WARP)
#define AT_ONCE 4          /* eights of x that a lane holds */
#define REST_SCALE 0x1p11f /* of what the first float16 leaves out */

struct tiled_room { /* in a block's memory */
    four_words *x;  /* [k / 32][columns][4 lanes] */
    float *totals;  /* [k / 32][TOTALS][columns] */
    float *scales;  /* [warps][columns]: what a sum is multiplied by */
    float *sums;    /* [products that wait][warps][columns][16 rows] */
    made_room made;
    char *ring;
};
struct tiled_share {
    int columns;    /* of x: of tokens, or twice as many */
    int first, end; /* of this warp's tiles along k */
    int64_t begin;  /* the first sixteen rows */
    int count;      /* products of sixteen rows: of gates and ups in turn */
    int matrices;
};

/* ---- x ---- */
DEVICE uint32_t two_halves(float low, float high) { return half_of_float(low) | (uint32_t)half_of_float(high) << 16; }
DEVICE uint32_t two_bfloats(float low, float high) {
    return bfloat_of_float(low) | (uint32_t)bfloat_of_float(high) << 16;
}
DEVICE float first_half(uint32_t two) { return float_of_half((uint16_t)two); }
DEVICE float second_half(uint32_t two) { return float_of_half((uint16_t)(two >> 16)); }
/* A warp's part of a token's row, by eights of its lanes' orders: as many as it holds at once. */
template <class TILES> struct part_reader {
    static constexpr int ROUND = AT_ONCE * WARP; /* eights */
    float values[AT_ONCE][8];
    /* Eights [begin, begin + ROUND) of `count`; zeros after those. */
    METHOD void read(const made_row &x, int begin, int count) {
        UNROLL for (int r = 0; r < AT_ONCE; r++) {
            const int u = begin + r * WARP + thread_index() % WARP;
            UNROLL for (int j = 0; j < 8; j++)
                values[r][j] = u < count ? x[u / 4 * 32 + tile_value(TILES::ORDER, u % 4, j)] : 0;
        }
    }
    METHOD float most() const {
        float found = 0;
        UNROLL for (int r = 0; r < AT_ONCE; r++) UNROLL
            for (int j = 0; j < 8; j++) found = fmaxf(found, fabsf(values[r][j]));
        return found;
    }
};
/* The power of two that takes a number, the largest, to [2^13, 2^14). */
DEVICE float scale_of_most(float most) {
    const int exponent = (int)(bits_of_float(most) >> 23);
    return float_of_bits((uint32_t)(267 - (exponent < 20 ? 20 : exponent > 240 ? 240 : exponent)) << 23);
}
DEVICE float four_in_all(const four_words &eight, int first) { /* two words' */
    return (first_half(eight.at[first]) + second_half(eight.at[first])) +
           (first_half(eight.at[first + 1]) + second_half(eight.at[first + 1]));
}
/* Of a run, whose eights four lanes side by side have. */
template <int TOTALS> DEVICE void put_totals(const four_words &eight, float *totals, int columns, bool there) {
    float part[2] = {four_in_all(eight, 0), four_in_all(eight, 2)};
    if (TOTALS == 1) part[0] += part[1];
    UNROLL for (int i = 0; i < TOTALS; i++) {
        for (int step = 1; step < 4; step *= 2) part[i] += lane_xor(part[i], step);
        if (there) totals[i * columns] = part[i] * 0x1p-24f;
    }
}
template <class TILES>
DEVICE void put_eight(const float *values, float scale, const tiled_room &room, int columns, int column, int unit,
                      bool there) {
    four_words near, rest;
    UNROLL for (int i = 0; i < 4; i++) {
        const float low = values[2 * i] * scale, high = values[2 * i + 1] * scale;
        near.at[i] = two_halves(low, high);
        rest.at[i] = two_halves((low - first_half(near.at[i])) * REST_SCALE,
                                (high - second_half(near.at[i])) * REST_SCALE);
    }
    const int run = unit / 4, lane = unit % 4;
    if (there) {
        four_words *to = room.x + (run * columns + column) * 4 + lane;
        to[0] = near;
        to[4] = rest;
    }
    if (TILES::TOTALS) {
        float *totals = room.totals + run * TILES
        ::TOTALS *columns + column;
        put_totals < TILES
        ::TOTALS > (near, totals, columns, there && lane == 0);
        put_totals < TILES
        ::TOTALS > (rest, totals + 1, columns, there && lane == 0);
    }
}
/* This warp's eights [begin, end) of a token's row, to two columns. */
template <class TILES>
DEVICE void read_token(const made_row &x, const tiled_room &room, int columns, int column, int begin, int end) {
    typedef part_reader < TILES
    > reader;
    const int lane = thread_index() % WARP, count = end - begin;
    const made_row from = x.from((int64_t)begin * 8);
    reader part;
    float most = 0;
    for (int at = 0; at < count; at += reader::ROUND) {
        part.read(from, at, count);
        most = fmaxf(most, part.most());
    }
    for (int step = WARP / 2; step > 0; step /= 2) most = fmaxf(most, lane_xor(most, step));
    const float scale = scale_of_most(most), back = 1 / scale * TILES
    ::SCALE;
    for (int at = 0; at < count; at += reader::ROUND) {
        if (count > reader::ROUND) part.read(from, at, count);
        UNROLL for (int r = 0; r < AT_ONCE; r++)
            if (at + r * WARP < count) {
                const int unit = at + r * WARP + lane;
                put_eight < TILES
                > (part.values[r], scale, room, columns, column, begin + unit, unit < count);
            }
    }
    if (lane == 0) {
        float *scales = room.scales + thread_index() / WARP * columns + column;
        scales[0] = back;
        scales[1] = back * (1 / REST_SCALE);
    }
}
/* This warp's part of the rows of x from `token` on. */
template <class TILES>
DEVICE void read_part(const cuda_packed_args &a, const tiled_room &room, const tiled_share &s, int64_t token) {
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    const int begin = s.first * TILES
    ::K, end = s.end * TILES
    ::K, units = (end - begin) / 8;
    if (a.norm) add_squares(a, room.made, token, s.columns / (TILES::BF16 ? 1 : 2), begin, end);
    for (int column = 0; column < s.columns; column += TILES::BF16 ? 1 : 2) {
        if (TILES::BF16) {
            const auto put = [&](auto two) {
                UNROLL for (int u = lane; u < units; u += WARP) {
                    four_words eight;
                    UNROLL for (int i = 0; i < 4; i++)
                        eight.at[i] = two(u * 8 + 2 * i);
                    room.x[((begin / 32 + u / 4) * s.columns + column) * 4 + u % 4] = eight;
                }
            };
            if (a.rounds) {
                const made_row x = made_row_of(a, room.made, token + column, column).from(begin);
                put([=](int i) { return two_bfloats(x[i], x[i + 1]); });
            } else {
                const uint16_t *x = (const uint16_t *)a.x + (token + column) * a.k + begin;
                put([=](int i) { return x[i] | (uint32_t)x[i + 1] << 16; });
            }
            if (lane == 0) room.scales[warp * s.columns + column] = 1;
            continue;
        }
        read_token < TILES
        > (made_row_of(a, room.made, token + column / 2, column / 2), room, s.columns, column, begin / 8, end / 8);
    }
    warp_barrier();
}

/* ---- weights ---- */
/* Of sixteen rows of all matrices, those that follow one another in one. */
struct tiled_unit {
    const void *data;
    product_rows to;
    int64_t row; /* of the matrix */
};
DEVICE tiled_unit unit_of(const cuda_packed_args &a, int64_t unit) {
    int64_t row = unit * TILED_ROWS;
    if (row < a.rows) return {a.weight.data, {a.out, a.weight.bias, a.rows}, row};
    row -= a.rows;
    const cuda_more &first = a.more[0], &second = a.more[1];
    if (row < first.rows) return {first.weight.data, {first.out, first.weight.bias, first.rows}, row};
    return {second.weight.data, {second.out, second.weight.bias, second.rows}, row - first.rows};
}
/* A warp's ring: tiles of its part of k, of one sixteen rows after another. */
template <class TILES> struct tile_ring {
    static constexpr int TILE
    = TILED_ROWS * TILES
    ::CHUNK, EACH = TILED_STAGE_TILES(TILE), STAGE = EACH * TILE;
    static constexpr int STAGES = TILED_STAGES(TILE);
    char *memory;
    const cuda_packed_args &a;
    const tiled_share &s;
    int product, at, slot; /* the next to be asked for */
    METHOD tile_ring(char *ring, const cuda_packed_args &args, const tiled_share &share)
        : memory(ring + thread_index() / WARP * (STAGES * STAGE)), a(args), s(share), product(0), at(share.first),
          slot(0) {}
    /* What lane and lane + 32 ... copy of `tiles` tiles from `at` on of sixteen rows, 16 bytes each. */
    METHOD void copy(const char *rows, int tiles) {
        char *to = memory + slot * STAGE;
        const int64_t row_bytes = a.k / TILES
        ::K *TILES
        ::CHUNK;
        for (int i = thread_index() % WARP * 16; i < tiles * TILE; i += WARP * 16) {
            if (TILES::FROM_ROWS) {
                const int tile = i / TILE
                , row = i % TILE
                / TILES
                ::CHUNK, part = i % TILES
                ::CHUNK;
                copy_16(to + tile * TILE + TILES::place(row, part),
                        rows + row * row_bytes + (at + tile) * TILES::CHUNK + part, 16);
            } else {
                copy_16(to + i, rows + (int64_t)at * TILE + i, 16);
            }
        }
    }
    METHOD void ask() {
        if (product < s.count && at < s.end) {
            const tiled_unit unit = unit_of(a, s.begin + (product >> (s.matrices - 1))); /* one matrix, or two */
            const char *data = (const char *)(product & (s.matrices - 1) ? a.up.data : unit.data);
            copy(data + unit.row / TILED_ROWS * (a.k / TILES::K) * TILE, s.end - at < EACH ? s.end - at : EACH);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            at += EACH;
            if (at >= s.end) {
                at = s.first;
                product++;
            }
        }
        commit_copies();
    }
};

/* ---- what is made of sums ---- */
DEVICE float sum_of_parts(const tiled_room &room, const tiled_share &s, int waiting, int column, int halves, int row) {
    float total = 0;
    UNROLL for (int warp = 0; warp < TILED_WARPS; warp++)
        for (int h = 0; h < halves; h++)
            total += room.sums[((waiting * TILED_WARPS + warp) * s.columns + column + h) * TILED_ROWS + row];
    return total;
}
/* Of `waiting` products, which end before number `end`. */
DEVICE void finish_products(const cuda_packed_args &a, const tiled_room &room, const tiled_share &s, int64_t token,
                            int end, int waiting, int halves) {
    const int tokens = s.columns / halves, each = tokens * TILED_ROWS;
    barrier();
    for (int i = thread_index(); i < waiting / s.matrices * each; i += TILED_THREADS) {
        const int unit = i / each, t = i % each / TILED_ROWS, row = i % TILED_ROWS;
        const tiled_unit of = unit_of(a, s.begin + (end - waiting) / s.matrices + unit);
        const float sum = sum_of_parts(room, s, unit * s.matrices, t * halves, halves, row);
        const float up = s.matrices == 2 ? sum_of_parts(room, s, unit * 2 + 1, t * halves, halves, row) : 0;
        store_product(a, of.to, token + t, of.row + row, sum, up);
    }
    barrier();
}

/* The tokens of a pass from `token` on, by `blocks` blocks, of which this is one. */
template <class TILES>
DEVICE void tiled_product(const cuda_packed_args &a, int64_t token, int64_t block, int64_t blocks) {
    typedef tile_ring < TILES
    > ring_type;
    constexpr int HALVES = TILES
    ::BF16 ? 1 : 2;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    const int64_t left = a.tokens - token, units = (a.rows + a.more[0].rows + a.more[1].rows) / TILED_ROWS;
    const int tiles = (int)(a.k / TILES::K);
    tiled_share s;
    s.columns = (int)(left < a.pass ? left : a.pass) * HALVES;
    s.first = tiles * warp / TILED_WARPS;
    s.end = tiles * (warp + 1) / TILED_WARPS;
    s.matrices = a.glu == CUDA_NO_GLU ? 1 : 2;
    s.begin = units * block / blocks;
    s.count = (int)(units * (block + 1) / blocks - s.begin) * s.matrices;
    tiled_room room;
    room.ring = block_memory();
    room.x = (four_words *)(room.ring + TILED_WARPS * ring_type::STAGES * ring_type::STAGE);
    room.sums = (float *)(room.x + a.k / 32 * s.columns * 4);
    const int most = TILED_SUMS / s.columns / s.matrices * s.matrices;
    room.scales = room.sums + TILED_SUMS * TILED_WARPS * TILED_ROWS;
    room.totals = room.scales + TILED_WARPS * s.columns;
    room.made.squares = room.totals + a.k / 32 * TILES
    ::TOTALS *s.columns;
    room.made.norm = room.made.squares + TILED_WARPS * TILED_COLUMNS;
    ring_type ring(room.ring, a, s);
    for (int i = 0; i < ring_type::STAGES - 1; i++) ring.ask();
    if (a.norm) copy_norm(a, room.made);
    wait_for_others(); /* for x: what packed the weights has ended before (launch_pack) */
    read_part < TILES
    > (a, room, s, token);
    const int own = lane / 4 < s.columns ? lane / 4 : s.columns - 1, left_column = lane % 4 * 2;
    const tile_x all_x = {room.x + own * 4 + lane % 4, room.totals + (left_column < s.columns ? left_column : 0),
                          s.columns};
    const auto x_from = [&](int tile) { return all_x.after(tile * (TILES::K / 32), TILES::TOTALS); };
    int slot = 0, waiting = 0;
    for (int product = 0; product < s.count; product++) {
        float sums[1][4] = {};
        for (int at = s.first; at < s.end; at += ring_type::EACH) {
            ring.ask();
            wait_copies<ring_type::STAGES - 1>();
            warp_barrier(); /* the copies of all lanes are there */
            const char *stage = ring.memory + slot * ring_type::STAGE;
            if (at + ring_type::EACH <= s.end) { /* with nothing between tiles that keeps them in turn */
                UNROLL for (int i = 0; i < ring_type::EACH; i++)
                    TILES
                ::template multiply<1>(stage + i * ring_type::TILE, x_from(at + i), lane, sums);
            } else {
                for (int i = 0; at + i < s.end; i++) TILES
                ::template multiply<1>(stage + i * ring_type::TILE, x_from(at + i), lane, sums);
            }
            warp_barrier(); /* nobody reads this stage any more */
            slot = slot + 1 == ring_type::STAGES ? 0 : slot + 1;
        }
        UNROLL for (int i = 0; i < 4; i++) {
            const int column = left_column + i % 2;
            if (column < s.columns)
                room.sums[((waiting * TILED_WARPS + warp) * s.columns + column) * TILED_ROWS + lane / 4 + i / 2 * 8] =
                    sums[0][i] * room.scales[warp * s.columns + column];
        }
        if (++waiting == most || product + 1 == s.count) {
            finish_products(a, room, s, token, product + 1, waiting, HALVES);
            waiting = 0;
        }
    }
    wait_copies<0>();
}
/* ---- x of wide products (wide.cu), as a block's memory has it here: a warp for a part of a token's row ---- */
/* The row that this block makes, and the part of it, [begin, end), that this warp has. */
template <class TILES> DEVICE made_row row_to_make(const cuda_packed_args &a, int &begin, int &end) {
    const int warp = thread_index() / WARP, values = a.weight.format.tile ? a.weight.format.tile : TILES
    ::K;
    const int64_t tiles = a.k / values;
    const made_room room = {(float *)block_memory(), (float *)block_memory() + TILED_WARPS * TILED_COLUMNS};
    begin = (int)(tiles * warp / TILED_WARPS * values);
    end = (int)(tiles * (warp + 1) / TILED_WARPS * values);
    if (a.norm) {
        copy_norm(a, room);
        add_squares(a, room, block_index(), 1, begin, end);
    }
    return made_row_of(a, room, block_index(), 0);
}
template <class TILES> DEVICE void tiled_rows(const cuda_packed_args &a) {
    const int64_t token = block_index();
    const wide_rows made = wide_rows_of(a, token / a.pass);
    int begin, end;
    const made_row x = row_to_make < TILES
    > (a, begin, end);
    tiled_room room;
    room.x = made.values;
    room.totals = made.totals;
    room.scales = made.scales;
    read_token < TILES
    > (x, room, a.columns, (int)(token % a.pass) * 2, begin / 8, end / 8);
}
KERNEL(gm_tiled_rows_bf16, cuda_packed_args, TILED_THREADS) {
    int begin, end;
    const made_row x = row_to_make<tiles_of_halves<true>>(a, begin, end);
    uint16_t *row = (uint16_t *)a.made + block_index() * a.k;
    for (int i = begin + thread_index() % WARP; i < end; i += WARP) row[i] = bfloat_of_float(x[i]);
}
#define TILED_X(name, ...)                                                                                             \
    KERNEL(gm_tiled_rows_##name, cuda_packed_args, TILED_THREADS) { tiled_rows<__VA_ARGS__>(a); }
TILED_X(f16, tiles_of_halves<false>)
TILED_X(q4_0, tiles_of_q4_0)
TILED_X(q8_0, tiles_of_q8_0)
TILED_X(q4_k, tiles_of_q4_k)
TILED_X(q6_k, tiles_of_q6_k)
TILED_X(mxfp4, tiles_of_mxfp4)
TILED_X(affine4, tiles_of_affine4<64, GM_T_F16>)

#define TILED(name, ...)                                                                                               \
    KERNEL_AHEAD(gm_tiled_##name, cuda_packed_args, TILED_THREADS) {                                                   \
        tiled_product<__VA_ARGS__>(a, block_index_y() * a.pass, block_index(), block_count());                         \
    }
ALL_TILES(TILED)

/* ---- mixtures of experts: a pair of token and expert has a row of its own, as many blocks each ---- */
DEVICE cuda_matrix expert_matrix(const cuda_matrix &stack, int64_t expert, int64_t rows, int64_t k) {
    const int64_t bytes = rows * (k / stack.format.values * stack.format.bytes);
    return {(const char *)stack.data + expert * bytes, stack.bias ? stack.bias + expert * rows : stack.bias,
            stack.format};
}
template <class TILES> DEVICE void tiled_expert(const cuda_packed_args &a) {
    const int64_t blocks = block_count() / a.tokens, pair = block_index() / blocks;
    cuda_packed_args own = a;
    wait_for_others(); /* for ids */
    const int64_t named = a.ids[pair], expert = named < 0 ? 0 : named < a.experts ? named : a.experts - 1;
    own.weight = expert_matrix(a.weight, expert, a.rows, a.k);
    if (a.glu != CUDA_NO_GLU) own.up = expert_matrix(a.up, expert, a.rows, a.k);
    own.x = (const float *)a.x + pair / a.top_k * a.k;
    own.out = (float *)a.out + pair * a.rows;
    own.tokens = 1;
    tiled_product < TILES
    > (own, 0, block_index() % blocks, blocks);
}
#define EXPERT(name, ...)                                                                                              \
    KERNEL_AHEAD(gm_expert_tiled_##name, cuda_packed_args, TILED_THREADS) { tiled_expert<__VA_ARGS__>(a); }
QUANTISED_TILES(EXPERT)
