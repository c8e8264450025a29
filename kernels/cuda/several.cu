/* several.cu - products of several tokens by matrices in tiles (tiles.cuh): one pass over the weights serves up to
 * thirty-two columns of x. As in tiled.cu a block has a run of sixteen rows after sixteen rows, each of its warps a
 * part of k, and sums of parts are added in one order: a token has the bits that it has alone. One or two sixteens of
 * rows go along k at once, and x, which is in memory as it is multiplied (several.cuh) or rows of bfloat16, comes
 * beside them by the warp's own ring: it may be longer than a block's memory, and does not keep the weights waiting. */
#include "units.cuh"
#include "several.cuh"

/* Half a tile of halves, a run of 32 along k, with which stages are short enough; parts are those of whole tiles. */
template <bool BF16_> struct runs_of_halves : tiles_of_halves<BF16_> {
    static constexpr int K = 32, CHUNK = 64;
    template <int N> DEVICE void multiply(const char *tile, const tile_x &x, int lane, float (*sums)[4]) {
        const four_words near = tile_words(tile, lane), far = tile_words(tile + 512, lane);
        UNROLL for (int n = 0; n < N; n++) {
            float sum[4] = {0, 0, 0, 0};
            multiply_32<BF16_>(sum, near.at, far.at, x.run(0, n).at);
            UNROLL for (int i = 0; i < 4; i++)
                sums[n][i] += sum[i];
        }
    }
};
template <class FORM, int N> struct several_form {
    static constexpr int HALVES = FORM::BF16 ? 1 : 2, COLUMNS = 8 * N, TOKENS = COLUMNS / HALVES;
    static constexpr int RUNS = FORM::K / 32, BESIDE = FORM::K > SEVERAL_LONG ? 1 : 2; /* sixteens of rows */
    static constexpr int PART_TILES = FORM::FROM_ROWS ? 2 : 1; /* a part has whole ones of so many */
    static constexpr int ROW = FORM::CHUNK, TILE_BYTES = TILED_ROWS * ROW, STEP = FORM::FROM_ROWS ? ROW : TILE_BYTES;
    static constexpr int TOTALS = FORM::TOTALS, WEIGHTS = BESIDE * TILE_BYTES, X_BYTES = RUNS * COLUMNS * 64;
    static constexpr int BYTES = WEIGHTS + X_BYTES + RUNS * TOTALS * COLUMNS * 4; /* of a tile along k, with x */
    static constexpr bool BY_LANES = FORM::FROM_ROWS || !HAS_LONG_COPIES;         /* weights */
};
struct several_share {
    int begin;                       /* the first sixteen rows */
    int count;                       /* products of sixteen rows: of gates and ups in turn */
    int matrices, tiles, first, own; /* tiles along k; of the warp's part */
};
/* Where columns of x are: of a lane, in fours of words. */
template <class FORM, int N> struct several_x : several_form<FORM, N> {
    using form = several_form<FORM, N>;
    const four_words *values;
    const float *totals, *scales; /* of quantised matrices */
    int step, places[N];          /* from a run to the next; of eight columns */
    bool by_lanes;                /* it comes so; else as it lies */

    METHOD several_x(const cuda_packed_args &a, int64_t pass)
        : totals(nullptr), scales(nullptr), by_lanes(!HAS_LONG_COPIES || (FORM::BF16 && a.x_type == GM_T_BF16)) {
        const int lane = thread_index() % WARP;
        if (FORM::BF16 && a.x_type == GM_T_BF16) {
            const int64_t token = pass * form::TOKENS;
            const int left = (int)(a.tokens - token) - 1;
            values = (const four_words *)((const uint16_t *)a.x + token * a.k);
            step = 4;
            UNROLL for (int n = 0; n < N; n++) {
                const int column = 8 * n + lane / 4;
                places[n] = (column < left ? column : left) * (int)(a.k / 8) + lane % 4;
            }
            return;
        }
        const several_rows made = several_rows_of(a, pass);
        values = made.values;
        totals = made.totals;
        scales = made.scales;
        step = form::COLUMNS * 4;
        UNROLL for (int n = 0; n < N; n++)
            places[n] = 32 * n + lane;
    }
    /* Long ones of a stage. */
    METHOD int copies() const { return by_lanes ? 0 : form::TOTALS ? 2 : 1; }
    /* Of `count` runs from `run` on. */
    METHOD void copy(four_words *to, float *to_totals, int run, int count, uint64_t *arrival) const {
        const int lane = thread_index() % WARP, each = form::TOTALS * form::COLUMNS;
        const four_words *from = values + (int64_t)run * step;
        if (!by_lanes) {
            if (!is_chosen_lane()) return;
            copy_long<false>(to, from, count * (form::COLUMNS * 64), arrival);
            if (form::TOTALS) copy_long<false>(to_totals, totals + (int64_t)run * each, count * each * 4, arrival);
            return;
        }
        _Pragma("unroll 1") for (int i = 0; i < count; i++) UNROLL for (int n = 0; n < N; n++)
            copy_16(to + (i * N + n) * 32 + lane, from + i * step + places[n], 16);
        for (int i = lane * 4; i < count * each; i += WARP * 4)
            copy_16(to_totals + i, totals + (int64_t)run * each + i, 16);
    }
};

/* A warp's ring of stages, each of so many tiles along k of one or two products and of x. */
template <class FORM, int N> struct several_ring {
    using form = several_form<FORM, N>;
    const cuda_packed_args &a;
    const several_share &s;
    const several_x<FORM, N> &x;
    char *memory, *to; /* the ring, and where the next stage goes in it */
    uint64_t *arrivals;
    int product, at, slot, read_slot, phase, bytes; /* the first three of what is asked for next; bytes of a stage */
    int64_t far;                                    /* bytes from a row to the eighth after it, where rows come so */
    const char *from[form::BESIDE];

    METHOD several_ring(const cuda_packed_args &args, const several_share &share, const several_x<FORM, N> &of_x)
        : a(args), s(share), x(of_x), product(0), at(0), slot(0), read_slot(0), phase(0),
          bytes(args.stage * form::BYTES), far(8 * (int64_t)share.tiles * form::ROW) {
        const int warp = warp_number(), lane = thread_index() % WARP;
        arrivals = (uint64_t *)block_memory() + warp * TILED_STAGES;
        to = memory = block_memory() + TILED_ARRIVALS + warp * a.stages * bytes;
        if (lane < a.stages) {
            const int copies = (form::BY_LANES ? 0 : form::BESIDE) + x.copies();
            begin_arrival(arrivals + lane, copies + (waits_for_lanes() ? WARP : 0));
            show_arrivals();
        }
        warp_barrier();
        begin_products();
        if (s.own == 0) product = s.count;
    }
    METHOD bool waits_for_lanes() const { return form::BY_LANES || x.by_lanes; }
    /* The first stages: their weights, which no kernel writes, before x. */
    METHOD void begin() {
        several_ring again = *this;
        for (int i = 0; i < a.early; i++) ask(true, false);
        wait_for_others(); /* for x: what packed the weights has ended before (launch_pack) */
        for (int i = 0; i < a.early; i++) again.ask(false, true);
        for (int i = a.early; i < a.stages; i++) ask(true, true);
    }
    METHOD void begin_products() {
        const int lane = thread_index() % WARP;
        UNROLL for (int u = 0; u < form::BESIDE; u++) {
            const int number = product + u < s.count ? product + u : s.count - 1; /* of what is not there another */
            const tiled_unit unit = unit_of(a, s.begin + (number >> (s.matrices - 1)));
            const void *data = number & (s.matrices - 1) ? a.up.data : unit.data;
            from[u] = (const char *)data + unit.row() * ((int64_t)s.tiles * form::ROW) + s.first * form::STEP;
            if (FORM::FROM_ROWS) from[u] += lane / 4 * ((int64_t)s.tiles * form::ROW) + lane % 4 * 16;
        }
    }
    METHOD void ask_weights(char *tiles, int u, int count) {
        const int lane = thread_index() % WARP;
        if constexpr (FORM::FROM_ROWS) { /* four lanes have 64 bytes of a row */
            _Pragma("unroll 1") for (int i = 0; i < count; i++) {
                copy_16_of_row(tiles + i * form::TILE_BYTES + lane * 16, from[u] + i * form::ROW);
                copy_16_of_row(tiles + i * form::TILE_BYTES + lane * 16 + 512, from[u] + i * form::ROW + far);
            }
        } else if (form::BY_LANES) {
            for (int i = lane * 16; i < count * form::TILE_BYTES; i += WARP * 16) copy_16(tiles + i, from[u] + i, 16);
        } else if (is_chosen_lane()) {
            copy_long(tiles, from[u], count * form::TILE_BYTES, arrivals + slot);
        }
        from[u] += count * form::STEP;
    }
    METHOD void ask(bool weights, bool of_x) {
        if (product >= s.count) return;
        const int count = s.own - at < a.stage ? s.own - at : a.stage;
        UNROLL for (int u = 0; u < form::BESIDE && weights; u++)
            ask_weights(to + u * a.stage * form::TILE_BYTES, u, count);
        if (of_x) {
            char *values = to + a.stage * form::WEIGHTS;
            x.copy((four_words *)values, (float *)(values + a.stage * form::X_BYTES), (s.first + at) * form::RUNS,
                   count * form::RUNS, arrivals + slot);
            if (waits_for_lanes()) arrive_with_copies(arrivals + slot);
        }
        to += bytes;
        if (++slot == a.stages) slot = 0, to = memory;
        at += count;
        if (at < s.own) return;
        at = 0;
        product += form::BESIDE;
        begin_products();
    }
    METHOD const char *wait() {
        wait_arrival(arrivals + read_slot, phase);
        return memory + read_slot * bytes;
    }
    METHOD void release() {
        warp_barrier(); /* nobody reads this stage any more */
        ask(true, true);
        if (++read_slot == a.stages) read_slot = 0, phase ^= 1;
    }
};

/* Sums of a warp's part of the products that are next. */
template <class FORM, int N>
DEVICE void sum_several(const cuda_packed_args &a, const several_share &s, several_ring<FORM, N> &ring,
                        float (&sums)[several_form<FORM, N>::BESIDE][N][4]) {
    typedef several_form<FORM, N> form;
    const int lane = thread_index() % WARP;
    UNROLL for (int u = 0; u < form::BESIDE; u++) UNROLL
        for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4; i++) sums[u][n][i] = 0;
    for (int at = 0; at < s.own; at += a.stage) {
        const char *stage = ring.wait(), *values = stage + a.stage * form::WEIGHTS;
        const tile_x x = {(const four_words *)values + lane,
                          (const float *)(values + a.stage * form::X_BYTES) + lane % 4 * 2, form::COLUMNS};
        const int count = s.own - at < a.stage ? s.own - at : a.stage;
        _Pragma("unroll 1") for (int i = 0; i < count; i++) UNROLL for (int u = 0; u < form::BESIDE; u++)
            FORM::template multiply<N>(stage + (u * a.stage + i) * form::TILE_BYTES,
                                       x.after(i * form::RUNS, form::TOTALS), lane, sums[u]);
        ring.release();
    }
}
/* Where a token's row of sixteen is among sums of a part, with places exchanged so that lanes that put them meet all
 * banks of the block's memory. */
template <class FORM> DEVICE int place_of_sum(int token, int row) {
    return (token * TILED_ROWS + row) ^ (FORM::BF16 ? (token & 2) << 3 | (token & 4) << 1 : (token & 2) << 2);
}
/* To [parts][tokens][16 rows]. */
template <class FORM, int N>
DEVICE void put_several(const several_x<FORM, N> &x, float *to, const float (&sums)[N][4]) {
    typedef several_form<FORM, N> form;
    const int lane = thread_index() % WARP, warp = warp_number(), column = lane % 4 * 2, row = lane / 4;
    to += warp * (form::TOKENS * TILED_ROWS);
    UNROLL for (int n = 0; n < N; n++) {
        const int token = (8 * n + column) / form::HALVES;
        if (FORM::BF16) {
            UNROLL for (int i = 0; i < 4; i++)
                to[place_of_sum<FORM>(token + i % 2, row + i / 2 * 8)] = sums[n][i];
        } else {
            const float *scales = x.scales + warp * form::COLUMNS + 8 * n + column;
            const float near = read_written(scales), rest = read_written(scales + 1);
            UNROLL for (int i = 0; i < 2; i++)
                to[place_of_sum<FORM>(token, row + i * 8)] = sums[n][2 * i] * near + sums[n][2 * i + 1] * rest;
        }
    }
}
/* What is made of the sums of the products from number `first` on: of each element of their sixteen rows a thread.
 * gate: its sum of the product before, where one goes along k at a time. */
template <class FORM, int N>
DEVICE void finish_several(const cuda_packed_args &a, const several_share &s, const float *sums, int64_t pass,
                           int first, float &gate) {
    typedef several_form<FORM, N> form;
    constexpr int EACH = form::TOKENS * TILED_ROWS;
    static_assert(EACH <= TILED_THREADS, "an element a thread");
    const int token = thread_index() / TILED_ROWS, row = thread_index() % TILED_ROWS;
    if (token >= form::TOKENS || pass * form::TOKENS + token >= a.tokens) return;
    UNROLL for (int u = 0; u < form::BESIDE; u++) {
        const int product = first + u;
        const float *from = sums + u * TILED_PARTS * EACH + place_of_sum<FORM>(token, row);
        float sum = 0;
        UNROLL for (int part = 0; part < TILED_PARTS; part++)
            sum += from[part * EACH];
        if (product < s.count && (s.matrices == 1 || product % 2 == 1)) {
            const tiled_unit of = unit_of(a, s.begin + (product >> (s.matrices - 1)));
            store_product(a, of.to, pass * form::TOKENS + token, of.row() + row, s.matrices == 2 ? gate : sum, sum);
        }
        gate = sum;
    }
}
template <class FORM, int N> DEVICE void several_product(const cuda_packed_args &a) {
    typedef several_form<FORM, N> form;
    const int block = (int)block_index(), warp = warp_number();
    several_share s;
    s.tiles = (int)(a.k / FORM::K);
    s.matrices = a.glu == CUDA_NO_GLU ? 1 : 2;
    s.begin = a.units * block + (block < a.longer ? block : a.longer);
    s.count = (a.units + (block < a.longer)) * s.matrices;
    s.first = part_of_tiles(s.tiles / form::PART_TILES, warp) * form::PART_TILES;
    s.own = part_of_tiles(s.tiles / form::PART_TILES, warp + 1) * form::PART_TILES - s.first;
    float *sums_at = (float *)(block_memory() + TILED_ARRIVALS + TILED_PARTS * a.stages * a.stage * form::BYTES);
    const several_x<FORM, N> x(a, block_index_y());
    several_ring<FORM, N> ring(a, s, x);
    ring.begin();
    float gate = 0;
    for (int first = 0; first < s.count; first += form::BESIDE) {
        float sums[form::BESIDE][N][4];
        sum_several<FORM, N>(a, s, ring, sums);
        if (first > 0) barrier(); /* all have read the sums of those before */
        UNROLL for (int u = 0; u < form::BESIDE; u++)
            put_several<FORM, N>(x, sums_at + u * TILED_PARTS * form::TOKENS * TILED_ROWS, sums[u]);
        barrier();
        finish_several<FORM, N>(a, s, sums_at, block_index_y(), first, gate);
    }
}
#define SEVERAL_OF(columns, name, n, ...)                                                                              \
    KERNEL_AHEAD(gm_several_##columns##_##name, cuda_packed_args, TILED_THREADS) { several_product<__VA_ARGS__, n>(a); }
#define SEVERAL(name, ...)                                                                                             \
    SEVERAL_OF(8, name, 1, __VA_ARGS__)                                                                                \
    SEVERAL_OF(16, name, 2, __VA_ARGS__)
#define SEVERAL_WIDE(name, ...)                                                                                        \
    SEVERAL(name, __VA_ARGS__)                                                                                         \
    SEVERAL_OF(32, name, 4, __VA_ARGS__)
SEVERAL_WIDE(f16, runs_of_halves<false>)
SEVERAL_WIDE(bf16, runs_of_halves<true>)
SEVERAL_WIDE(q4_0, tiles_of_q4_0)
SEVERAL_WIDE(q8_0, tiles_of_q8_0)
SEVERAL(q4_k, tiles_of_q4_k)
SEVERAL(q6_k, tiles_of_q6_k)
SEVERAL_WIDE(mxfp4, tiles_of_mxfp4)
#define SEVERAL_AFFINE(name, ...) SEVERAL_WIDE(name, __VA_ARGS__)
AFFINE4_TILES(SEVERAL_AFFINE, 32)
AFFINE4_TILES(SEVERAL_AFFINE, 64)
AFFINE4_TILES(SEVERAL_AFFINE, 128)
