/* tiled.cu - products by matrices in tiles (tiles.cuh), on the tensor cores. A block has a run of sixteen rows after
 * sixteen rows, and each of its warps a part of k, which depends on the length of k alone. A warp's own ring of copies
 * runs ahead of it; x is in the block's memory, as float16 with a power of two for each part of k: two of them, of
 * which the second is what the first leaves out, so that the product is one of float32; bfloat16 rows are one.
 * A token has columns of mma of its own, which do not see others, and the parts of k are added in one order: it has
 * the bits that it has alone. */
#include "made_rows.cuh"
#include "units.cuh"
#include "several.cuh"

struct tiled_room { /* in a block's memory */
    four_words *x;  /* [k / 32][columns][4 lanes] */
    float *totals;  /* [k / 32][TOTALS][columns] */
    float *scales;  /* [parts][columns]: what a sum is multiplied by */
    float *sums;    /* [products that wait][parts][16 rows] */
    made_room made;
};
struct tiled_share {
    int columns; /* of x: one, or two */
    int tiles;   /* along k */
    int begin;   /* the first sixteen rows */
    int count;   /* products of sixteen rows: of gates and ups in turn */
    int matrices;
    METHOD int part(int number) const { return part_of_tiles(tiles, number); }
};
DEVICE tiled_share share_of_block(const cuda_packed_args &a, int columns, int block) {
    const int matrices = a.ends[0] < 0 ? 2 : 1;
    return {columns, a.tiles, a.units * block + (block < a.longer ? block : a.longer),
            (a.units + (block < a.longer)) * matrices, matrices};
}
template <class FORM> DEVICE tiled_room room_of_block(const cuda_packed_args &a, int columns) {
    tiled_room room;
    room.x = (four_words *)(block_memory() + TILED_ARRIVALS +
                            TILED_PARTS * a.stages * a.stage * (TILED_ROWS * FORM::CHUNK));
    const int runs = (int)((uint32_t)a.k / 32);
    room.sums = (float *)(room.x + runs * columns * 4);
    room.scales = room.sums + a.kept * TILED_PARTS * TILED_ROWS;
    room.totals = room.scales + TILED_PARTS * columns;
    room.made.normed = a.norm != nullptr;
    room.made.squares = room.totals + runs * FORM::TOTALS * columns;
    room.made.norm = room.made.squares + TILED_PARTS * TILED_COLUMNS;
    return room;
}

/* ---- x ---- */
DEVICE float first_half(uint32_t two) { return float_of_half((uint16_t)two); }
DEVICE float second_half(uint32_t two) { return float_of_half((uint16_t)(two >> 16)); }
/* The power of two that takes a number, the largest, to [2^13, 2^14). */
DEVICE float scale_of_most(uint32_t most) {
    const int exponent = (int)(most >> 23);
    return float_of_bits((uint32_t)(267 - (exponent < 20 ? 20 : exponent > 240 ? 240 : exponent)) << 23);
}
/* Eight values of a row, times `scale`, and totals of a run, whose eights four lanes side by side have: what rounding
 * leaves out is in the second column, whose totals are with the first's. */
template <class FORM>
DEVICE void put_eight(const float *values, float scale, const tiled_room &room, int columns, int column, int unit,
                      bool there) {
    four_words near, rest;
    float totals[2] = {0, 0};
    UNROLL for (int i = 0; i < 4; i++) {
        float low = values[2 * i] * scale, high = values[2 * i + 1] * scale;
        totals[i / 2] += low + high;
        if (FORM::SIXTEENTHS && i % 2) low *= 0.0625f, high *= 0.0625f;
        near.at[i] = two_halves(low, high);
        rest.at[i] = two_halves(low - first_half(near.at[i]), high - second_half(near.at[i]));
    }
    const int run = (uint32_t)unit / 4, lane = (uint32_t)unit % 4;
    if (there) {
        four_words *to = room.x + (run * columns + column) * 4 + lane;
        to[0] = near;
        to[4] = rest;
    }
    if (FORM::TOTALS == 1) totals[0] += totals[1];
    UNROLL for (int i = 0; i < FORM::TOTALS; i++) {
        for (int step = 1; step < 4; step *= 2) totals[i] += lane_xor(totals[i], step);
        if (!there || lane > 0) continue;
        float *to = room.totals + (run * FORM::TOTALS + i) * columns + column;
        to[0] = totals[i] * (FORM::OFFSET * 0x1p-24f);
        to[1] = 0;
    }
}
/* Part `number` of a row, of which the first eights were read, to two columns. Its norm's weights count, its scale does
 * not: it is of what comes out. */
template <class FORM, int ROUNDS>
DEVICE void make_row(lane_eights<FORM::ORDER, ROUNDS> &first, const float *x, const tiled_room &room,
                     const part_norm<FORM::ORDER, ROUNDS> &norm, const row_part &part, int columns, int column,
                     int number, int t) {
    first_look<FORM::ORDER, ROUNDS> look(norm), again(norm);
    each_eight(first, x, part, false, [&](int u, four_floats *fours, bool there) { look.add(u, fours, there); });
    const float scale = scale_of_most(most_of_lanes(bits_of_float(look.most)));
    const bool reads = ROUNDS == ANY_ROUNDS && part.is_long();
    each_eight(first, x, part, reads, [&](int u, four_floats *fours, bool there) {
        float values[8];
        if (reads) again.add(u, fours, there);
        UNROLL for (int j = 0; j < 8; j++)
            values[j] = eights<FORM::ORDER>::value(fours, j);
        put_eight<FORM>(values, scale, room, columns, column, u, there);
    });
    if (room.made.normed) look.put_squares(room.made, number, t);
    if (thread_index() % WARP > 0) return;
    float *back = room.scales + number * columns + column;
    back[0] = back[1] = float_of_bits((254u << 23) - bits_of_float(scale)) * FORM::SCALE; /* of a power of two */
}
/* The same of bfloat16, whose scale counts before it is rounded: the squares, and then what to(u) is. */
template <int ROUNDS>
DEVICE void look_at_rounded(lane_eights<IN_ORDER, ROUNDS> &first, const float *x, const made_room &room,
                            const part_norm<IN_ORDER, ROUNDS> &norm, const row_part &part, int number, int t) {
    first_look<IN_ORDER, ROUNDS> look(norm);
    each_eight(first, x, part, false, [&](int u, four_floats *fours, bool there) { look.add(u, fours, there); });
    look.put_squares(room, number, t);
}
/* Where a part is not long the first eights are those that were looked at. */
template <int ROUNDS, class F>
DEVICE void put_rounded(lane_eights<IN_ORDER, ROUNDS> &first, const float *x, const part_norm<IN_ORDER, ROUNDS> &norm,
                        float scale, const row_part &part, F to) {
    const bool kept = ROUNDS != ANY_ROUNDS || !part.is_long();
    first_look<IN_ORDER, ROUNDS> look(norm); /* for what it makes of an eight alone */
    each_eight(first, x, part, !kept, [&](int u, four_floats *fours, bool there) {
        four_words eight;
        if (norm.normed && !kept) look.add(u, fours, there);
        UNROLL for (int i = 0; i < 4; i++) {
            const float *two = fours[i / 2].at + i % 2 * 2;
            eight.at[i] = two_bfloats(two[0] * scale, two[1] * scale);
        }
        if (there) *to(u) = eight;
    });
}
/* Rows of bfloat16, of which a column is a token's. */
DEVICE void copy_columns(const cuda_packed_args &a, const tiled_room &room, int columns, int64_t token,
                         const row_part &part) {
    for (int column = 0; column < columns; column++) {
        const four_words *x = (const four_words *)((const uint16_t *)a.x + (token + column) * a.k);
        _Pragma("unroll 4") for (int u = part.first(); u < part.end; u += WARP)
            room.x[(u / 4 * columns + column) * 4 + u % 4] = read_written(x + u);
    }
}
/* A warp's part of a token's row of x; behind the first of it, more weights. */
template <class FORM, int ROUNDS, class RING>
DEVICE void read_row(const cuda_packed_args &a, const tiled_room &room, const row_part &part, int columns,
                     int64_t token, int number, RING &ring) {
    const float *x = (const float *)a.x + token * a.k;
    lane_eights<FORM::ORDER, ROUNDS> first;
    const part_norm<FORM::ORDER, ROUNDS> norm(a, room.made, part);
    wait_for_before();
    first.read((const float *)a.x, part, part.begin, (uint32_t)token * (uint32_t)a.k);
    ring.fill(a.early, a.stages);
    norm.wait();
    if constexpr (!FORM::BF16) {
        make_row<FORM>(first, x, room, norm, part, columns, 0, number, 0);
    } else {
        if (norm.normed) look_at_rounded(first, x, room.made, norm, part, number, 0);
        if (norm.normed) barrier();
        put_rounded(first, x, norm, norm.normed ? scale_of_row(a, room.made, 0) : 1, part,
                    [&](int u) { return room.x + u / 4 * columns * 4 + u % 4; });
    }
}
/* A part of any length, of rows of float32, or of bfloat16 as they are. It waits for what makes x; what packed the
 * weights, which were asked for, has ended before (launch_pack). */
template <class FORM, class RING>
DEVICE void read_rows(const cuda_packed_args &a, const tiled_room &room, const row_part &part, int columns,
                      int64_t token, int number, RING &ring) {
    if (FORM::BF16 && !a.rounds) {
        wait_for_before();
        copy_columns(a, room, columns, token, part);
        ring.fill(a.early, a.stages);
    } else if (a.k <= TILED_PARTS * WARP * 8) {
        read_row<FORM, 1>(a, room, part, columns, token, number, ring);
    } else if (a.k <= TILED_PARTS * WARP * 8 * 2) {
        read_row<FORM, 2>(a, room, part, columns, token, number, ring);
    } else if (a.k <= TILED_PARTS * WARP * 8 * 4) {
        read_row<FORM, 4>(a, room, part, columns, token, number, ring);
    } else {
        read_row<FORM, ANY_ROUNDS>(a, room, part, columns, token, number, ring);
    }
    warp_barrier();
}

/* ---- weights ---- */
/* A warp's ring: stages of tiles of its part of k, of one sixteen rows after another. Lane l knows where the part is in
 * the l-th of WARP products. */
template <class FORM> struct tile_ring {
    static constexpr int TILE
    = TILED_ROWS * FORM::CHUNK, STEP = FORM::FROM_ROWS ? FORM::CHUNK : TILE; /* along k */
    static constexpr bool BY_LANES = FORM::FROM_ROWS || !HAS_LONG_COPIES;
    const cuda_packed_args &a;
    const tiled_share &s;
    char *memory;
    uint64_t *arrivals;
    const char *part;
    int tiles, skipped, product, at, slot, phase; /* tiles: of the part, behind bytes of others; product and at: what is
                                                   * asked for next */

    METHOD tile_ring(const cuda_packed_args &args, const tiled_share &share)
        : a(args), s(share), product(0), at(0), slot(0), phase(0) {
        const int warp = warp_number();
        arrivals = (uint64_t *)block_memory() + warp * TILED_STAGES;
        memory = block_memory() + TILED_ARRIVALS + warp * a.stages * a.stage * TILE;
        tiles = s.part(warp + 1) - s.part(warp);
        skipped = s.part(warp) * STEP;
        if (is_chosen_lane()) {
            begin_arrival(arrivals, BY_LANES ? WARP : 1);
            show_arrivals();
        }
        warp_barrier();
        if (tiles == 0) product = s.count;
        find_parts();
        ask<false>(0); /* before there are arrivals for more: x waits behind what comes first */
        if (is_chosen_lane()) {
            UNROLL for (int i = 1; i < TILED_STAGES; i++)
                begin_arrival(arrivals + i, BY_LANES ? WARP : 1);
            show_arrivals();
        }
        warp_barrier();
    }
    METHOD void fill(int first, int end) { _Pragma("unroll 1") for (int i = first; i < end; i++) ask<false>(i); }
    METHOD void find_parts() { /* a gate and an up alternate, others follow one another */
        const int own = product + thread_index() % WARP, pairs = s.matrices - 1;
        const int unit = s.begin + ((own < s.count ? own : 0) >> pairs);
        const bool is_second = pairs ? own % 2 : unit >= a.ends[0], is_third = !pairs && unit >= a.ends[1];
        const char *data = is_third ? a.third : is_second ? a.data[1] : a.data[0];
        part = data + (uint64_t)(uint32_t)unit * (uint32_t)(s.tiles * TILE) + skipped;
    }
    /* Rows in place of tiles: eight lanes have 128 bytes of one, in an order in which eight side by side meet all banks
     * of the block's memory. */
    METHOD void copy_rows(char *to, const char *from, int count) {
        const int lane = thread_index() % WARP, row = lane / 4 % 2 + lane / 16 * 2,
                  byte = (lane % 4 + lane / 8 % 2 * 4) * 16;
        const int64_t row_bytes = (int64_t)s.tiles * FORM::CHUNK;
        const char *of_lane = from + row * row_bytes + byte;
        to += FORM::place(row, byte);
        _Pragma("unroll 1") for (int i = 0; i < count; i++) UNROLL for (int j = 0; j < TILED_ROWS / 4; j++)
            copy_16_of_row(to + i * TILE + FORM::place(4 * j, 0), of_lane + i * FORM::CHUNK + 4 * j * row_bytes);
    }
    /* For what comes next, to a stage. WHOLE: it has all of a part. */
    template <bool WHOLE> METHOD void ask(int stage) {
        if (product == s.count) return;
        const int left = tiles - at, count = WHOLE ? tiles : left < a.stage ? left : a.stage;
        const char *from = lane_of(part, (int)((uint32_t)product % WARP)) + (WHOLE ? 0 : at * STEP);
        char *to = memory + stage * a.stage * TILE;
        if constexpr (FORM::FROM_ROWS) copy_rows(to, from, count);
        else if (BY_LANES)
            for (int i = thread_index() % WARP * 16; i < count * TILE; i += WARP * 16) copy_16(to + i, from + i, 16);
        else if (is_chosen_lane()) copy_long(to, from, count * TILE, arrivals + stage);
        if (BY_LANES) arrive_with_copies(arrivals + stage);
        if (!WHOLE && (at += count) < tiles) return;
        at = 0;
        if ((uint32_t)++product % WARP == 0) find_parts();
    }
    /* use(stage) with the next stage; then what comes next is asked for, to the same place. */
    template <bool WHOLE, class F> METHOD void take(F use) {
        wait_arrival(arrivals + slot, phase);
        use(memory + slot * a.stage * TILE);
        warp_barrier(); /* nobody reads this stage any more */
        ask<WHOLE>(slot);
        if (++slot == a.stages) slot = 0, phase ^= 1;
    }
    /* use(tile, i) for each of `count` tiles of the next stage. */
    template <class F> METHOD void take_tiles(int count, F use) {
        take<false>([&](const char *stage) {
            int i = 0;
            for (; i + 2 <= count; i += 2) { /* with nothing between two that keeps them in turn */
                use(stage + i * TILE, i);
                use(stage + (i + 1) * TILE, i + 1);
            }
            if (i < count) use(stage + i * TILE, i);
        });
    }
};

/* ---- what is made of sums ---- */
/* A lane's sums of a warp's part, of two rows of two columns. */
template <class FORM> DEVICE void put_sums(float *to, int columns, const float *scales, const float *sums) {
    const int column = thread_index() % WARP % 4 * 2;
    if (column >= columns) return;
    UNROLL for (int i = 0; i < 2; i++) {
        const float *two = sums + 2 * i;
        if (FORM::BF16) {
            to[i * 8] = two[0];
        } else {
            to[i * 8] = two[0] * scales[0] + two[1] * scales[1];
        }
    }
}
DEVICE float sum_of_parts(const tiled_room &room, int waiting, int row) {
    float total = 0;
    UNROLL for (int part = 0; part < TILED_PARTS; part++)
        total += room.sums[(waiting * TILED_PARTS + part) * TILED_ROWS + row];
    return total;
}
/* Result i of a block's products: one sixteen rows after another. */
struct tiled_result {
    tiled_unit of;
    int unit;
    int64_t row, at; /* of the matrix, and in what it goes to */
    METHOD tiled_result(const cuda_packed_args &a, const tiled_share &s, int64_t token, int first, int i) {
        unit = i / TILED_ROWS;
        of = unit_of(a, s.begin + first + unit);
        row = of.row() + i % TILED_ROWS;
        at = token * of.to.rows + row;
    }
};
/* Of `waiting` products, which end before number `end`. added: to this thread's first of the block. */
DEVICE void finish_products(const cuda_packed_args &a, const tiled_room &room, const tiled_share &s, int64_t token,
                            int end, int waiting, const product_added &added) {
    const int first = (end - waiting) >> (s.matrices - 1), results = (waiting >> (s.matrices - 1)) * TILED_ROWS;
    barrier();
    for (int i = thread_index(); i < results; i += TILED_THREADS) {
        const tiled_result result(a, s, token, first, i);
        const int row = i % TILED_ROWS, waits = result.unit * s.matrices;
        const float sum = sum_of_parts(room, waits, row);
        const float up = s.matrices == 2 ? sum_of_parts(room, waits + 1, row) : 0;
        const bool known = first == 0 && i < TILED_THREADS;
        store_sum(a, result.of.to, result.at, sum, up,
                  known ? added : added_of(a, result.of.to, result.row, result.at));
    }
}

/* ---- products of one token whose parts of k are as many tiles each, so few that lanes keep x ---- */
template <class FORM> struct kept_parts {
    static constexpr int MOST = CUDA_KEPT_X / FORM::K, RUNS = FORM::K / 32;
    typedef kept_x<MOST * RUNS, FORM::TOTALS> kept;
    kept x;
    int tiles, lane;
    METHOD kept_parts(const tile_x &from, int count) : x(from, count * RUNS), tiles(count) {
        lane = thread_index() % WARP;
    }
    template <int TILES
    > METHOD void add_tiles(const char *stage, float (*sums)[4]) const {
        UNROLL for (int i = 0; i < TILES; i++)
            FORM::template multiply<1>(stage + i * tile_ring<FORM>::TILE, typename kept::tile{x, i * RUNS}, lane, sums);
    }
    METHOD void multiply(const char *stage, float (*sums)[4]) const {
        if constexpr (MOST > 1) {
            if (tiles == 2) return add_tiles<2>(stage, sums);
        }
        if constexpr (MOST > 2) {
            if (tiles == 3) return add_tiles<3>(stage, sums);
            if (tiles == 4) return add_tiles<4>(stage, sums);
        }
        add_tiles<1>(stage, sums);
    }
};
/* end(product, sums) with a lane's sums of each product, of x that it keeps, or in the block's memory. */
template <class FORM, class END>
DEVICE void multiply_kept(tile_ring<FORM> &ring, const tile_x &x, int tiles, const END &end) {
    const kept_parts<FORM> parts(x, tiles);
    for (int product = 0; product < ring.s.count; product++) {
        float sums[1][4] = {};
        ring.template take<true>([&](const char *stage) { parts.multiply(stage, sums); });
        end(product, sums[0]);
    }
}
template <class FORM, class END> DEVICE void multiply_parts(tile_ring<FORM> &ring, const tile_x &x, const END &end) {
    constexpr int RUNS = FORM::K / 32;
    const int stage = ring.a.stage, lane = thread_index() % WARP;
    for (int product = 0; product < ring.s.count; product++) {
        float sums[1][4] = {};
        for (int at = 0; at < ring.tiles; at += stage) {
            const tile_x from = x.after(at * RUNS, FORM::TOTALS);
            ring.take_tiles(ring.tiles - at < stage ? ring.tiles - at : stage, [&](const char *tile, int i) {
                FORM::template multiply<1>(tile, from.after(i * RUNS, FORM::TOTALS), lane, sums);
            });
        }
        end(product, sums[0]);
    }
}
/* A token, by blocks of which this is one. */
template <class FORM> DEVICE void tiled_product(const cuda_packed_args &a, int64_t token, int block) {
    constexpr int columns = FORM::BF16 ? 1 : 2;
    const int lane = thread_index() % WARP, warp = warp_number();
    const tiled_share s = share_of_block(a, columns, block);
    const tiled_room room = room_of_block<FORM>(a, columns);
    const row_part part(s.tiles, FORM::K, warp);
    tile_ring<FORM> ring(a, s);
    ring.fill(1, a.early);
    read_rows<FORM>(a, room, part, s.columns, token, warp, ring);
    let_next_begin(); /* which would take from what makes x ready */
    product_added added = {};
    if (thread_index() < (s.count >> (s.matrices - 1)) * TILED_ROWS) {
        const tiled_result first(a, s, token, 0, thread_index());
        added = added_of(a, first.of.to, first.row, first.at);
    }
    const int column = lane / 4 < s.columns ? lane / 4 : s.columns - 1, left_column = lane % 4 * 2;
    const int own = left_column < s.columns ? left_column : 0;
    const tile_x x = {room.x + (part.begin / 4 * s.columns + column) * 4 + lane % 4,
                      room.totals + part.begin / 4 * FORM::TOTALS * s.columns + own, s.columns};
    float scales[2] = {FORM::BF16 ? 1 : room.scales[warp * s.columns + own],
                       FORM::BF16 ? 1 : room.scales[warp * s.columns + own + 1]};
    float *sums_at = room.sums + warp * TILED_ROWS + lane / 4;
    int waiting = 0;
    const auto end_product = [&](int product, const float *sums) {
        if (!FORM::BF16 && room.made.normed && product == 0) {
            barrier(); /* all squares are there: long since, they were made before products */
            const float scale = scale_of_row(a, room.made, 0);
            scales[0] *= scale;
            scales[1] *= scale;
        }
        put_sums<FORM>(sums_at + waiting * (TILED_PARTS * TILED_ROWS), s.columns, scales, sums);
        if (++waiting < a.kept && product + 1 < s.count) return;
        finish_products(a, room, s, token, product + 1, waiting, added);
        if (product + 1 < s.count) barrier(); /* before others' sums come to their places */
        waiting = 0;
    };
    if constexpr (!FORM::BF16) {
        if (a.whole > 0) return multiply_kept<FORM>(ring, x, a.whole, end_product);
    }
    multiply_parts<FORM>(ring, x, end_product);
}
/* ---- x of products of several tokens (several.cu), as a block's memory has it here: a warp for a part of a token's
 * row ---- */
/* The row that this block makes, of tiles of so many values; its norm's weights are there. */
template <tile_order ORDER> struct row_to_make {
    row_part part;
    made_room room;
    part_norm<ORDER, ANY_ROUNDS> norm;
    const float *x;
    int number;
    METHOD row_to_make(const cuda_packed_args &a, int values)
        : part((int)(a.k / values), values, warp_number()),
          room{a.norm != nullptr, (float *)block_memory(), (float *)block_memory() + TILED_PARTS * TILED_COLUMNS},
          norm(a, room, part), x((const float *)a.x + block_index() * a.k), number(warp_number()) {
        wait_for_others(); /* for x */
        norm.wait();
    }
    METHOD float scale(const cuda_packed_args &a) const { /* after its squares were put */
        if (!room.normed) return 1;
        barrier();
        return scale_of_row(a, room, 0);
    }
};
template <class FORM> DEVICE void tiled_rows(const cuda_packed_args &a) {
    const int64_t token = block_index();
    const int column = (int)(token % a.pass) * 2;
    const several_rows made = several_rows_of(a, token / a.pass);
    const row_to_make<FORM::ORDER> row(a, a.weight.format.tile ? a.weight.format.tile : FORM::K);
    tiled_room room;
    lane_eights<FORM::ORDER, ANY_ROUNDS> first;
    room.x = made.values;
    room.totals = made.totals;
    room.scales = made.scales;
    room.made = row.room;
    first.read(row.x, row.part, row.part.begin);
    make_row<FORM>(first, row.x, room, row.norm, row.part, a.columns, column, row.number, 0);
    const float scale = row.scale(a);
    if (thread_index() % WARP > 0) return;
    float *back = room.scales + row.number * a.columns + column;
    back[0] *= scale;
    back[1] *= scale;
}
KERNEL_AHEAD(gm_tiled_rows_bf16, cuda_packed_args, TILED_THREADS) {
    const row_to_make<IN_ORDER> row(a, tiles_of_halves<true>::K);
    const int64_t token = block_index();
    const int column = (int)(token % a.pass) * 4, step = a.columns * 4;
    four_words *to = several_rows_of(a, token / a.pass).values;
    lane_eights<IN_ORDER, ANY_ROUNDS> first;
    first.read(row.x, row.part, row.part.begin);
    if (row.room.normed) look_at_rounded(first, row.x, row.room, row.norm, row.part, row.number, 0);
    put_rounded(first, row.x, row.norm, row.scale(a), row.part,
                [=](int u) { return to + u / 4 * step + column + u % 4; });
}
#define TILED_X(name, ...)                                                                                             \
    KERNEL_AHEAD(gm_tiled_rows_##name, cuda_packed_args, TILED_THREADS) { tiled_rows<__VA_ARGS__>(a); }
TILED_X(f16, tiles_of_halves<false>)
TILED_X(q4_0, tiles_of_q4_0)
TILED_X(q8_0, tiles_of_q8_0)
TILED_X(q4_k, tiles_of_q4_k)
TILED_X(q6_k, tiles_of_q6_k)
TILED_X(mxfp4, tiles_of_mxfp4)
TILED_X(affine4, tiles_of_affine4<64, GM_T_F16>)

#define TILED_ONE(name, ...)                                                                                           \
    using one_##name = __VA_ARGS__;                                                                                    \
    KERNEL_OF_REGISTERS(gm_tiled_one_##name, cuda_packed_args, TILED_THREADS, one_##name::REGISTERS) {                 \
        tiled_product<one_##name>(a, block_index_y(), (int)block_index());                                             \
    }
ALL_TILES(TILED_ONE)

/* Formats that files mix in the matrices of a row: one launch for both. */
KERNEL_OF_REGISTERS(gm_tiled_two_q4_k_q6_k, cuda_two_products_args, TILED_THREADS, one_q4_k::REGISTERS) {
    const int block = (int)block_index();
    if (block < a.blocks) tiled_product<one_q4_k>(a.products[0], 0, block);
    else tiled_product<one_q6_k>(a.products[1], 0, block - a.blocks);
}

/* ---- mixtures of experts: a pair of token and expert has a row of its own, as many blocks each ---- */
DEVICE cuda_matrix expert_matrix(const cuda_matrix &stack, int64_t expert, int64_t rows, int64_t k) {
    const int64_t bytes = rows * (k / stack.format.values * stack.format.bytes);
    return {(const char *)stack.data + expert * bytes, stack.bias ? stack.bias + expert * rows : stack.bias,
            stack.format};
}
template <class FORM> DEVICE void tiled_expert(const cuda_packed_args &a) {
    const int blocks = (int)(block_count() / a.tokens);
    const int64_t pair = block_index() / blocks;
    cuda_packed_args own = a;
    wait_for_others(); /* for ids */
    const int64_t named = a.ids[pair], expert = named < 0 ? 0 : named < a.experts ? named : a.experts - 1;
    own.weight = expert_matrix(a.weight, expert, a.rows, a.k);
    own.data[0] = (const char *)own.weight.data;
    if (a.glu != CUDA_NO_GLU) {
        own.up = expert_matrix(a.up, expert, a.rows, a.k);
        own.data[1] = (const char *)own.up.data;
    }
    own.x = (const float *)a.x + pair / a.top_k * a.k;
    own.out = (float *)a.out + pair * a.rows;
    own.tokens = 1;
    tiled_product<FORM>(own, 0, (int)(block_index() % blocks));
}
#define EXPERT(name, ...)                                                                                              \
    KERNEL_AHEAD(gm_expert_tiled_##name, cuda_packed_args, TILED_THREADS) { tiled_expert<__VA_ARGS__>(a); }
QUANTISED_TILES(EXPERT)
