/* tiled.cu - products by matrices in tiles (tiles.cuh), on the tensor cores. A block has a run of sixteen rows after
 * sixteen rows, and each of its warps a part of k, which depends on the length of k alone. A warp's own ring of copies
 * runs ahead of it; x is in the block's memory, as float16 with a power of two for each part of k: two of them, of
 * which the second is what the first leaves out, so that the product is one of float32; bfloat16 rows are one.
 * A token has columns of mma of its own, which do not see others, and the parts of k are added in one order: it has
 * the bits that it has alone. */
#include "made_rows.cuh"
#include "units.cuh"
#include "several.cuh"

#define REST_SCALE 0x1p11f /* of what the first float16 leaves out */

struct tiled_room { /* in a block's memory */
    four_words *x;  /* [k / 32][columns][4 lanes] */
    float *totals;  /* [k / 32][TOTALS][columns] */
    float *scales;  /* [parts][columns]: what a sum is multiplied by */
    float *sums;    /* [products that wait][parts][tokens][16 rows] */
    made_room made;
};
struct tiled_share {
    int columns;   /* of x: of tokens, or twice as many */
    int tiles;     /* along k */
    int64_t begin; /* the first sixteen rows */
    int count;     /* products of sixteen rows: of gates and ups in turn */
    int matrices;
    METHOD int part(int number) const { return part_of_tiles(tiles, number); }
};

/* ---- x ---- */
DEVICE uint32_t two_halves(float low, float high) { return half_of_float(low) | (uint32_t)half_of_float(high) << 16; }
DEVICE uint32_t two_bfloats(float low, float high) {
    return bfloat_of_float(low) | (uint32_t)bfloat_of_float(high) << 16;
}
DEVICE float first_half(uint32_t two) { return float_of_half((uint16_t)two); }
DEVICE float second_half(uint32_t two) { return float_of_half((uint16_t)(two >> 16)); }
/* The power of two that takes a number, the largest, to [2^13, 2^14). */
DEVICE float scale_of_most(uint32_t most) {
    const int exponent = (int)(most >> 23);
    return float_of_bits((uint32_t)(267 - (exponent < 20 ? 20 : exponent > 240 ? 240 : exponent)) << 23);
}
/* Two words' floats, of which the second's may be sixteenths of what they count. */
DEVICE float four_in_all(const four_words &eight, int first, float second) {
    return (first_half(eight.at[first]) + second_half(eight.at[first])) +
           (first_half(eight.at[first + 1]) + second_half(eight.at[first + 1])) * second;
}
/* Of a run, whose eights four lanes side by side have. */
template <class FORM> DEVICE void put_totals(const four_words &eight, float *totals, int columns, bool there) {
    constexpr float SECOND = FORM::SIXTEENTHS ? 16 : 1;
    float part[2] = {four_in_all(eight, 0, SECOND), four_in_all(eight, 2, SECOND)};
    if (FORM::TOTALS == 1) part[0] += part[1];
    UNROLL for (int i = 0; i < FORM::TOTALS; i++) {
        for (int step = 1; step < 4; step *= 2) part[i] += lane_xor(part[i], step);
        if (there) totals[i * columns] = part[i] * (FORM::OFFSET * 0x1p-24f);
    }
}
template <class FORM>
DEVICE void put_eight(const float *values, float scale, const tiled_room &room, int columns, int column, int unit,
                      bool there) {
    four_words near, rest;
    UNROLL for (int i = 0; i < 4; i++) {
        const float each = FORM::SIXTEENTHS && i % 2 ? scale * 0.0625f : scale;
        const float low = values[2 * i] * each, high = values[2 * i + 1] * each;
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
    if (FORM::TOTALS) {
        float *totals = room.totals + run * FORM::TOTALS * columns + column;
        put_totals<FORM>(near, totals, columns, there && lane == 0);
        put_totals<FORM>(rest, totals + 1, columns, there && lane == 0);
    }
}
/* Where an eight of a row waits, as floats, for what becomes of it: the places of both. */
DEVICE four_floats *place_of_eight(const tiled_room &room, int columns, int column, int u) {
    return (four_floats *)(room.x + (u / 4 * columns + column) * 4 + u % 4);
}
/* Part `number` of a row, the t-th, to two columns. Until the scale of the row is known: */
template <class FORM>
DEVICE void look_at_row(const float *x, const tiled_room &room, const row_part &part, const float *norm, int columns,
                        int column, int number, int t) {
    first_look<FORM::ORDER> look(norm);
    each_eight<FORM::ORDER>(x, part, [&](int u, four_floats *fours) {
        four_floats *to = place_of_eight(room, columns, column, u);
        look.add(u, fours);
        to[0] = fours[0];
        to[4] = fours[1];
    });
    if (norm) look.put_squares(room.made, number, t);
    const uint32_t most = most_of_lanes(bits_of_float(look.most));
    if (thread_index() % WARP == 0) room.scales[number * columns + column] = float_of_bits(most);
}
/* ... and then. */
template <class FORM>
DEVICE void put_row(float row_scale, const tiled_room &room, const row_part &part, int columns, int column,
                    int number) {
    float *back = room.scales + number * columns + column;
    const float scale = scale_of_most(bits_of_float(back[0] * row_scale));
    warp_barrier(); /* all lanes have read the largest */
    for (int at = part.begin; at < part.end; at += WARP) {
        const int u = at + thread_index() % WARP;
        const bool there = u < part.end;
        four_floats fours[2] = {};
        float values[8];
        if (there) {
            const four_floats *from = place_of_eight(room, columns, column, u);
            fours[0] = from[0];
            fours[1] = from[4];
        }
        UNROLL for (int j = 0; j < 8; j++)
            values[j] = eights<FORM::ORDER>::value(fours, j) * row_scale;
        put_eight<FORM>(values, scale, room, columns, column, u, there);
    }
    if (thread_index() % WARP > 0) return;
    back[0] = 1 / scale * FORM::SCALE;
    back[1] = back[0] * (1 / REST_SCALE);
}
/* The same to a column of bfloat16: to(u) is where it goes. kept: rows are few enough that norm's places keep it. */
DEVICE void look_at_rounded(const float *x, const made_room &room, const row_part &part, bool kept, int number, int t) {
    first_look<IN_ORDER> look(room.norm);
    each_eight<IN_ORDER>(x, part, [&](int u, four_floats *fours) {
        look.add(u, fours);
        if (!kept) return;
        four_floats *to = (four_floats *)(room.norm + u * 8);
        to[0] = fours[0];
        to[1] = fours[1];
    });
    look.put_squares(room, number, t);
}
DEVICE four_words rounded_eight(const four_floats *fours, float scale) {
    four_words eight;
    UNROLL for (int i = 0; i < 4; i++) {
        const float *two = fours[i / 2].at + i % 2 * 2;
        eight.at[i] = two_bfloats(two[0] * scale, two[1] * scale);
    }
    return eight;
}
template <class F>
DEVICE void put_rounded(const float *x, const float *norm, float scale, const row_part &part, bool kept, F to) {
    if (kept) {
        for (int u = part.first(); u < part.end; u += WARP)
            *to(u) = rounded_eight((const four_floats *)(norm + u * 8), scale);
        return;
    }
    first_look<IN_ORDER> look(norm); /* for what it makes of an eight alone */
    each_eight<IN_ORDER>(x, part, [&](int u, four_floats *fours) {
        if (norm) look.add(u, fours);
        *to(u) = rounded_eight(fours, scale);
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
/* A warp's part of the rows of x from `token` on. */
template <class FORM>
DEVICE void read_rows(const cuda_packed_args &a, const tiled_room &room, const row_part &part, int columns,
                      int64_t token) {
    constexpr int HALVES = FORM::BF16 ? 1 : 2;
    const int number = thread_index() / WARP, tokens = columns / HALVES;
    const float *x = (const float *)a.x + token * a.k, *norm = a.norm ? room.made.norm : nullptr;
    const bool kept = norm && tokens == 1;
    if (norm) {
        wait_copies<0>(); /* for its weights */
        warp_barrier();
    }
    if (FORM::BF16 && !a.rounds) {
        copy_columns(a, room, columns, token, part);
        warp_barrier();
        return;
    }
    for (int t = 0; t < tokens; t++) {
        if constexpr (!FORM::BF16) look_at_row<FORM>(x + t * a.k, room, part, norm, columns, t * HALVES, number, t);
        else if (norm) look_at_rounded(x + t * a.k, room.made, part, kept, number, t);
    }
    if (norm) barrier();
    else warp_barrier();
    for (int t = 0; t < tokens; t++) {
        const float scale = norm ? scale_of_row(a, room.made, t) : 1;
        if constexpr (FORM::BF16)
            put_rounded(x + t * a.k, norm, scale, part, kept,
                        [&](int u) { return room.x + (u / 4 * columns + t) * 4 + u % 4; });
        else put_row<FORM>(scale, room, part, columns, t * HALVES, number);
    }
    warp_barrier();
}

/* ---- weights ---- */
/* A warp's ring: stages of tiles of its part of k, of one sixteen rows after another. */
template <class FORM> struct tile_ring {
    static constexpr int TILE
    = TILED_ROWS * FORM::CHUNK, STEP = FORM::FROM_ROWS ? FORM::CHUNK : TILE; /* along k */
    static constexpr bool BY_LANES = FORM::FROM_ROWS || !HAS_LONG_COPIES;
    const cuda_packed_args &a;
    const tiled_share &s;
    char *memory;
    uint64_t *arrivals;
    const char *begin, *after; /* of the part, in the product that is asked for and in the next one */
    int tiles, product, edge, at, slot, read_slot, phase; /* tiles: of the part; edge: of another matrix */

    METHOD tile_ring(const cuda_packed_args &args, const tiled_share &share)
        : a(args), s(share), product(0), at(0), slot(0), read_slot(0), phase(0) {
        const int warp = thread_index() / WARP, lane = thread_index() % WARP;
        arrivals = (uint64_t *)block_memory() + warp * TILED_STAGES;
        memory = block_memory() + TILED_ARRIVALS + warp * a.stages * a.stage * TILE;
        tiles = s.part(warp + 1) - s.part(warp);
        if (lane < a.stages) {
            begin_arrival(arrivals + lane, BY_LANES ? WARP : 1);
            show_arrivals();
        }
        warp_barrier();
        begin_matrix();
        if (tiles == 0) product = s.count;
        fill(0, a.early);
    }
    METHOD void fill(int first, int end) { _Pragma("unroll 1") for (int i = first; i < end; i++) ask(); }
    METHOD int64_t bytes() const { return (int64_t)s.tiles * TILE; } /* of sixteen rows */
    METHOD void begin_matrix() {
        const int unit = s.matrices == 2 ? 0 : product; /* a gate and an up alternate, others follow one another */
        const tiled_unit first = unit_of(a, s.begin + unit);
        const int64_t offset = first.row / TILED_ROWS * bytes() + s.part(thread_index() / WARP) * STEP;
        begin = (const char *)first.data + offset;
        after = s.matrices == 2 ? (const char *)a.up.data + offset : begin + bytes();
        edge = s.matrices == 2 ? s.count : unit + (int)((first.to.rows - first.row) / TILED_ROWS);
    }
    METHOD void next_product() {
        const char *before = begin;
        at = 0;
        begin = after;
        after = (s.matrices == 2 ? before : after) + bytes();
        if (__builtin_expect(++product == edge, 0) && product < s.count) begin_matrix();
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
    METHOD void ask() {
        if (product == s.count) return;
        const int count = tiles - at < a.stage ? tiles - at : a.stage;
        const char *from = begin + (int64_t)at * STEP;
        char *to = memory + slot * a.stage * TILE;
        if constexpr (FORM::FROM_ROWS) copy_rows(to, from, count);
        else if (BY_LANES)
            for (int i = thread_index() % WARP * 16; i < count * TILE; i += WARP * 16) copy_16(to + i, from + i, 16);
        else if (is_chosen_lane()) copy_long(to, from, count * TILE, arrivals + slot);
        if (BY_LANES) arrive_with_copies(arrivals + slot);
        slot = slot + 1 == a.stages ? 0 : slot + 1;
        at += count;
        if (at == tiles) next_product();
    }
    /* use(tile, i) for each of `count` tiles of the next stage. */
    template <class F> METHOD void take(int count, F use) {
        const char *stage = memory + read_slot * a.stage * TILE;
        int i = 0;
        wait_arrival(arrivals + read_slot, phase);
        for (; i + 2 <= count; i += 2) { /* with nothing between two that keeps them in turn */
            use(stage + i * TILE, i);
            use(stage + (i + 1) * TILE, i + 1);
        }
        if (i < count) use(stage + i * TILE, i);
        warp_barrier(); /* nobody reads this stage any more */
        ask();
        if (++read_slot == a.stages) read_slot = 0, phase ^= 1;
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
            if (column + 1 < columns) to[i * 8 + TILED_ROWS] = two[1];
        } else {
            to[i * 8] = two[0] * scales[0] + two[1] * scales[1];
        }
    }
}
DEVICE float sum_of_parts(const tiled_room &room, int tokens, int waiting, int t, int row) {
    float total = 0;
    UNROLL for (int part = 0; part < TILED_PARTS; part++)
        total += room.sums[((waiting * TILED_PARTS + part) * tokens + t) * TILED_ROWS + row];
    return total;
}
/* Result i of a block's products: sixteen rows of some tokens of one sixteen rows after another. */
struct tiled_result {
    tiled_unit of;
    int unit, t;
    int64_t at; /* in what it goes to */
    METHOD tiled_result(const cuda_packed_args &a, const tiled_share &s, int64_t token, int tokens, int first, int i) {
        unit = i / (tokens * TILED_ROWS);
        t = i / TILED_ROWS % tokens;
        of = unit_of(a, s.begin + first + unit);
        of.row += i % TILED_ROWS;
        at = (token + t) * of.to.rows + of.row;
    }
};
/* Of `waiting` products, which end before number `end`. added: to this thread's first of the block. */
DEVICE void finish_products(const cuda_packed_args &a, const tiled_room &room, const tiled_share &s, int64_t token,
                            int tokens, int end, int waiting, const product_added &added) {
    const int first = (end - waiting) >> (s.matrices - 1),
              results = (waiting >> (s.matrices - 1)) * tokens * TILED_ROWS;
    barrier();
    for (int i = thread_index(); i < results; i += TILED_THREADS) {
        const tiled_result result(a, s, token, tokens, first, i);
        const int row = i % TILED_ROWS, waits = result.unit * s.matrices;
        const float sum = sum_of_parts(room, tokens, waits, result.t, row);
        const float up = s.matrices == 2 ? sum_of_parts(room, tokens, waits + 1, result.t, row) : 0;
        const bool known = first == 0 && i < TILED_THREADS;
        store_sum(a, result.of.to, result.at, sum, up,
                  known ? added : added_of(a, result.of.to, result.of.row, result.at));
    }
}

/* A token, by `blocks` blocks, of which this is one. */
template <class FORM> DEVICE void tiled_product(const cuda_packed_args &a, int64_t token, int block, int blocks) {
    constexpr int HALVES = FORM::BF16 ? 1 : 2, RUNS = FORM::K / 32;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    const int units = (int)((a.rows + a.more[0].rows + a.more[1].rows) / TILED_ROWS), more = units % blocks;
    tiled_share s;
    s.columns = HALVES;
    s.tiles = (int)(a.k / FORM::K);
    s.matrices = a.glu == CUDA_NO_GLU ? 1 : 2;
    s.begin = (int64_t)(units / blocks) * block + (block < more ? block : more);
    s.count = (units / blocks + (block < more)) * s.matrices;
    const int tokens = s.columns / HALVES;
    tiled_room room;
    room.x = (four_words *)(block_memory() + TILED_ARRIVALS +
                            TILED_PARTS * a.stages * a.stage * (TILED_ROWS * FORM::CHUNK));
    room.sums = (float *)(room.x + a.k / 32 * s.columns * 4);
    room.scales = room.sums + a.kept * TILED_PARTS * tokens * TILED_ROWS;
    room.totals = room.scales + TILED_PARTS * s.columns;
    room.made.squares = room.totals + a.k / 32 * FORM::TOTALS * s.columns;
    room.made.norm = room.made.squares + TILED_PARTS * TILED_COLUMNS;
    const row_part part(s.tiles, FORM::K, warp);
    if (a.norm) copy_norm(a, room.made, part);
    commit_copies();
    tile_ring<FORM> ring(a, s);
    wait_for_others(); /* for x: what packed the weights has ended before (launch_pack) */
    product_added added = {};
    if (thread_index() < (s.count >> (s.matrices - 1)) * tokens * TILED_ROWS) {
        const tiled_result first(a, s, token, tokens, 0, thread_index());
        added = added_of(a, first.of.to, first.of.row, first.at);
    }
    read_rows<FORM>(a, room, part, s.columns, token);
    ring.fill(a.early, a.stages);
    const int column = lane / 4 < s.columns ? lane / 4 : s.columns - 1, left_column = lane % 4 * 2;
    const int own = left_column < s.columns ? left_column : 0;
    const tile_x x = {room.x + (part.begin / 4 * s.columns + column) * 4 + lane % 4,
                      room.totals + part.begin / 4 * FORM::TOTALS * s.columns + own, s.columns};
    const float scales[2] = {FORM::BF16 ? 1 : room.scales[warp * s.columns + own],
                             FORM::BF16 ? 1 : room.scales[warp * s.columns + own + 1]};
    float *sums_at = room.sums + (warp * tokens + own / HALVES) * TILED_ROWS + lane / 4;
    int waiting = 0;
    for (int product = 0; product < s.count; product++) {
        float sums[1][4] = {};
        for (int at = 0; at < ring.tiles; at += a.stage) {
            const tile_x from = x.after(at * RUNS, FORM::TOTALS);
            ring.take(ring.tiles - at < a.stage ? ring.tiles - at : a.stage, [&](const char *tile, int i) {
                FORM::template multiply<1>(tile, from.after(i * RUNS, FORM::TOTALS), lane, sums);
            });
        }
        put_sums<FORM>(sums_at + waiting * (TILED_PARTS * TILED_ROWS) * tokens, s.columns, scales, sums[0]);
        if (++waiting < a.kept && product + 1 < s.count) continue;
        finish_products(a, room, s, token, tokens, product + 1, waiting, added);
        if (product + 1 < s.count) barrier(); /* before others' sums come to their places */
        waiting = 0;
    }
}
/* ---- x of products of several tokens (several.cu), as a block's memory has it here: a warp for a part of a token's
 * row ---- */
/* The row that this block makes, of tiles of so many values; its norm's weights are on their way. */
struct row_to_make {
    row_part part;
    made_room room;
    const float *x, *norm;
    int number;
    METHOD row_to_make(const cuda_packed_args &a, int values)
        : part((int)(a.k / values), values, thread_index() / WARP),
          room{(float *)block_memory(), (float *)block_memory() + TILED_PARTS * TILED_COLUMNS},
          x((const float *)a.x + block_index() * a.k), norm(a.norm ? room.norm : nullptr),
          number(thread_index() / WARP) {
        if (norm) copy_norm(a, room, part);
        commit_copies();
        wait_for_others(); /* for x */
        wait_copies<0>();
        warp_barrier();
    }
    METHOD float scale(const cuda_packed_args &a) const { /* after its squares were put */
        if (!norm) return 1;
        barrier();
        return scale_of_row(a, room, 0);
    }
};
template <class FORM> DEVICE void tiled_rows(const cuda_packed_args &a) {
    const int64_t token = block_index();
    const int column = (int)(token % a.pass) * 2;
    const several_rows made = several_rows_of(a, token / a.pass);
    const row_to_make row(a, a.weight.format.tile ? a.weight.format.tile : FORM::K);
    tiled_room room;
    room.x = made.values;
    room.totals = made.totals;
    room.scales = made.scales;
    room.made = row.room;
    look_at_row<FORM>(row.x, room, row.part, row.norm, a.columns, column, row.number, 0);
    warp_barrier();
    put_row<FORM>(row.scale(a), room, row.part, a.columns, column, row.number);
}
KERNEL_AHEAD(gm_tiled_rows_bf16, cuda_packed_args, TILED_THREADS) {
    const row_to_make row(a, tiles_of_halves<true>::K);
    const int64_t token = block_index();
    const int column = (int)(token % a.pass) * 4, step = a.columns * 4;
    four_words *to = several_rows_of(a, token / a.pass).values;
    if (row.norm) look_at_rounded(row.x, row.room, row.part, true, row.number, 0);
    put_rounded(row.x, row.norm, row.scale(a), row.part, row.norm != nullptr,
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
        tiled_product<one_##name>(a, block_index_y(), (int)block_index(), (int)block_count());                         \
    }
ALL_TILES(TILED_ONE)

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
    if (a.glu != CUDA_NO_GLU) own.up = expert_matrix(a.up, expert, a.rows, a.k);
    own.x = (const float *)a.x + pair / a.top_k * a.k;
    own.out = (float *)a.out + pair * a.rows;
    own.tokens = 1;
    tiled_product<FORM>(own, 0, (int)(block_index() % blocks), blocks);
}
#define EXPERT(name, ...)                                                                                              \
    KERNEL_AHEAD(gm_expert_tiled_##name, cuda_packed_args, TILED_THREADS) { tiled_expert<__VA_ARGS__>(a); }
QUANTISED_TILES(EXPERT)
