/* wide.cu - products of many tokens by matrices in tiles (tiles.cuh): one pass over the weights serves all of their
 * columns of mma. A block has a run of sixteen rows after sixteen rows, so many of them at a time (`SLOTS`), each of as
 * many warps as there are, which share the columns; a warp goes along all of k. Weights and x come by stages along k,
 * which copies fill ahead. A part of k is what it is in tiled.cu, summed and added in the same order: a token has the
 * bits that it has there. */
#include "units.cuh"
#include "wide.cuh"

#define WIDE_WARPS (TILED_THREADS / WARP)

struct wide_share {
    int64_t token; /* the first */
    int64_t begin; /* the first sixteen rows */
    int count;     /* products of sixteen rows: of gates and ups in turn */
    int matrices, pieces, tiles;
};
struct wide_place { int product, piece, slot; }; /* a stage: which products begin it, where along k, and its memory */

template <class FORM, int SLOTS, int COLUMNS> struct wide_stages {
    static constexpr int TILE_BYTES = TILED_ROWS * FORM::CHUNK, BYTES = 256 / FORM::K * TILE_BYTES;
    static constexpr int PIECE = WIDE_PIECE(BYTES, FORM::K, SLOTS), EACH = PIECE / FORM::K, WEIGHTS = EACH * TILE_BYTES;
    static constexpr int STAGE = WIDE_STAGE(BYTES, FORM::K, SLOTS, COLUMNS);
    static constexpr int STAGES = WIDE_STAGES(BYTES, FORM::K, SLOTS, COLUMNS),
                         WARPS = WIDE_WARPS / SLOTS; /* of a slot */
    static constexpr int X = SLOTS * WEIGHTS, TOTALS = X + COLUMNS * PIECE * 2, RUNS = FORM::K / 32;
    char *memory;
    const cuda_packed_args &a;
    const wide_share &s;
    METHOD int tiles_at(const wide_place &p) const {
        const int left = s.tiles - p.piece * EACH;
        return left < EACH ? left : EACH;
    }
    METHOD void next(wide_place &p) const {
        p.slot = p.slot + 1 == STAGES ? 0 : p.slot + 1;
        if (++p.piece < s.pieces) return;
        p.piece = 0;
        p.product += SLOTS;
    }
    /* Each warp's share of its slot's sixteen rows. */
    METHOD void ask_weights(const wide_place &p) const {
        const int warp = thread_index() / WARP, lane = thread_index() % WARP, own = warp % WARPS;
        const int product = p.product + warp / WARPS, tiles = tiles_at(p);
        if (product >= s.count) return;
        const int64_t rows = s.begin + (product >> (s.matrices - 1)), row_bytes = a.k / FORM::K * FORM::CHUNK;
        const char *data = (const char *)(product & (s.matrices - 1) ? a.up.data : a.weight.data);
        const char *from = data + rows * TILED_ROWS * row_bytes;
        char *to = memory + p.slot * STAGE + warp / WARPS * WEIGHTS;
        if (FORM::FROM_ROWS) {
            const int pieces = tiles * (FORM::CHUNK / 16); /* of a row */
            for (int i = own * WARP + lane; i < EACH * (FORM::CHUNK / 16) * TILED_ROWS; i += WARPS * WARP) {
                const int row = i / (EACH * (FORM::CHUNK / 16)), at = i % (EACH * (FORM::CHUNK / 16));
                const int tile = at / (FORM::CHUNK / 16), part = at % (FORM::CHUNK / 16) * 16;
                if (at < pieces)
                    copy_16_of_row(to + tile * TILE_BYTES + FORM::place(row, part),
                                   from + row * row_bytes + (p.piece * EACH + tile) * FORM::CHUNK + part);
            }
            return;
        }
        from += (int64_t)p.piece * WEIGHTS;
        for (int i = (own * WARP + lane) * 16; i < tiles * TILE_BYTES; i += WARPS * WARP * 16)
            copy_16(to + i, from + i, 16);
    }
    METHOD void ask_x(const wide_place &p) const {
        const int runs = tiles_at(p) * RUNS, first = p.piece * (PIECE / 32);
        four_words *to = (four_words *)(memory + p.slot * STAGE + X);
        if (FORM::BF16) {
            for (int i = thread_index(); i < runs * COLUMNS * 4; i += TILED_THREADS) {
                const int64_t token = s.token + i / 4 % COLUMNS, there = token < a.tokens ? token : s.token;
                const uint16_t *x = (const uint16_t *)a.x + there * a.k;
                copy_16(to + i, x + (first + i / (COLUMNS * 4)) * 32 + i % 4 * 8, token < a.tokens ? 16 : 0);
            }
            return;
        }
        const wide_rows made = wide_rows_of(a, block_index_y());
        const four_words *values = made.values + (int64_t)first * COLUMNS * 4;
        for (int i = thread_index(); i < runs * COLUMNS * 4; i += TILED_THREADS) copy_16(to + i, values + i, 16);
        float *totals = (float *)(memory + p.slot * STAGE + TOTALS);
        const float *of_x = made.totals + (int64_t)first * FORM::TOTALS * COLUMNS;
        for (int i = thread_index() * 4; i < runs * FORM::TOTALS * COLUMNS; i += TILED_THREADS * 4)
            copy_16(totals + i, of_x + i, 16);
    }
    /* Weights and x of a stage, if there is one; a group of copies in any case. */
    METHOD void ask(wide_place &p) const {
        if (p.product < s.count) {
            ask_weights(p);
            ask_x(p);
            next(p);
        }
        commit_copies();
    }
    /* The first stages: their weights, which no kernel writes, before x. */
    METHOD wide_place begin() const {
        wide_place p = {0, 0, 0}, again = p;
        for (int i = 0; i < STAGES - 1 && p.product < s.count; i++, next(p)) ask_weights(p);
        wait_for_others(); /* for x: what packed the weights has ended before (launch_pack) */
        for (int i = 0; i < STAGES - 1; i++) {
            if (again.product < s.count) {
                ask_x(again);
                next(again);
            }
            commit_copies();
        }
        return p;
    }
};

/* What a warp has of sixteen rows and its columns: of the part of k that it is in, and of all that came before. */
template <class FORM, int N, int COLUMNS> struct wide_sums {
    static constexpr int HALVES = FORM::BF16 ? 1 : 2;
    float part[N][4], all[N][4 / HALVES], scales[N][2];
    int number; /* of the part */
    METHOD void clear(const cuda_packed_args &a, int tiles, int first_column) {
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4; i++) part[n][i] = 0, all[n][i / HALVES] = 0;
        number = 0;
        begin_part(a, tiles, 0, first_column);
    }
    METHOD int end(int tiles) const { return tiles * (number + 1) / TILED_PARTS; }
    /* The part that a tile begins, past those that end there; its scales are read long before they are needed. */
    METHOD void begin_part(const cuda_packed_args &a, int tiles, int tile, int first_column) {
        while (number < TILED_PARTS && end(tiles) <= tile) number++;
        if (FORM::BF16 || number == TILED_PARTS) return;
        const float *of_part = wide_rows_of(a, block_index_y()).scales + number * COLUMNS + first_column;
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 2; i++) scales[n][i] = of_part[8 * n + i];
    }
    /* Of bfloat16 a column is a token, of others the two halves of a token are side by side. */
    METHOD void finish_part() {
        UNROLL for (int n = 0; n < N; n++) {
            UNROLL for (int i = 0; i < 4; i += HALVES)
                all[n][i / HALVES] += FORM::BF16 ? part[n][i]
                                                 : part[n][i] * scales[n][0] + part[n][i + 1] * scales[n][1];
            UNROLL for (int i = 0; i < 4; i++)
                part[n][i] = 0;
        }
    }
    /* To [tokens][16 rows]. */
    METHOD void put(float *results, int first_column) const {
        const int row = thread_index() % WARP / 4;
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4 / HALVES; i++) {
                const int token = (first_column + 8 * n) / HALVES + (HALVES == 1 ? i % 2 : 0);
                results[token * TILED_ROWS + row + (HALVES == 1 ? i / 2 : i) * 8] = all[n][i];
            }
    }
};
/* Of the products from `first` on that have results. */
template <int TOKENS, int SLOTS>
DEVICE void finish_wide(const cuda_packed_args &a, const wide_share &s, const float *results, int first) {
    const int left = s.count - first, units = (left < SLOTS ? left : SLOTS) / s.matrices;
    const int tokens = (int)(a.tokens - s.token < TOKENS ? a.tokens - s.token : TOKENS), each = tokens * TILED_ROWS;
    for (int i = thread_index(); i < units * each; i += TILED_THREADS) {
        const int unit = i / each, at = i % each;
        const float *sums = results + unit * s.matrices * (TOKENS * TILED_ROWS) + at;
        const int64_t out_row = (s.begin + first / s.matrices + unit) * TILED_ROWS + at % TILED_ROWS;
        store_product(a, {a.out, a.weight.bias, a.rows}, s.token + at / TILED_ROWS, out_row, sums[0],
                      s.matrices == 2 ? sums[TOKENS * TILED_ROWS] : 0);
    }
}

template <class FORM, int SLOTS, int COLUMNS> DEVICE void wide_product(const cuda_packed_args &a) {
    constexpr int WARPS = WIDE_WARPS / SLOTS, EIGHTS = COLUMNS / WARPS / 8; /* of columns, of a warp */
    typedef wide_stages<FORM, SLOTS, COLUMNS> stages_type;
    typedef wide_sums<FORM, EIGHTS, COLUMNS> sums_type;
    constexpr int TOKENS = COLUMNS / sums_type::HALVES;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    const int64_t units = a.rows / TILED_ROWS;
    wide_share s;
    s.token = block_index_y() * a.pass;
    s.matrices = a.glu == CUDA_NO_GLU ? 1 : 2;
    s.begin = units * block_index() / block_count();
    s.count = (int)(units * (block_index() + 1) / block_count() - s.begin) * s.matrices;
    s.tiles = (int)(a.k / FORM::K);
    s.pieces = (s.tiles + stages_type::EACH - 1) / stages_type::EACH;
    const stages_type stages = {block_memory(), a, s};
    float *results = (float *)(block_memory() + stages_type::STAGES * stages_type::STAGE);
    const int first_column = warp % WARPS * EIGHTS * 8, slot = warp / WARPS, own = first_column + lane % 4 * 2;
    wide_place asked = stages.begin(), at = {0, 0, 0};
    sums_type sums;
    while (at.product < s.count) {
        const int first = at.product;
        sums.clear(a, s.tiles, own);
        for (int tile = 0; tile < s.tiles;) {
            wait_copies<stages_type::STAGES - 2>();
            barrier(); /* the copies of all are there, and nobody reads the stage before any more */
            const char *stage = block_memory() + at.slot * stages_type::STAGE;
            const tile_x x = {(const four_words *)(stage + stages_type::X) + (first_column + lane / 4) * 4 + lane % 4,
                              (const float *)(stage + stages_type::TOTALS) + own, COLUMNS};
            const int end = tile + stages.tiles_at(at);
            stages.ask(asked);
            for (int i = 0; tile < end; i++) {
                if (first + slot < s.count)
                    FORM::template multiply<EIGHTS>(stage + slot * stages_type::WEIGHTS + i * stages_type::TILE_BYTES,
                                                    x.after(i * stages_type::RUNS, FORM::TOTALS), lane, sums.part);
                if (++tile < sums.end(s.tiles)) continue;
                sums.finish_part();
                sums.begin_part(a, s.tiles, tile, own);
            }
            stages.next(at);
        }
        sums.put(results + slot * TOKENS * TILED_ROWS, own);
        barrier();
        finish_wide<TOKENS, SLOTS>(a, s, results, first);
    }
    wait_copies<0>();
}
#define WIDE_OF(shape, name, slots, columns, ...)                                                                      \
    KERNEL_AHEAD(gm_wide_##shape##_##name, cuda_packed_args, TILED_THREADS) {                                          \
        wide_product<__VA_ARGS__, slots, columns>(a);                                                                  \
    }
#define WIDE(name, ...)                                                                                                \
    WIDE_OF(few_32, name, WIDE_FEW, 32, __VA_ARGS__)                                                                   \
    WIDE_OF(few_64, name, WIDE_FEW, 64, __VA_ARGS__)                                                                   \
    WIDE_OF(many_32, name, WIDE_MANY(32), 32, __VA_ARGS__)                                                             \
    WIDE_OF(many_64, name, WIDE_MANY(64), 64, __VA_ARGS__)
ALL_TILES(WIDE)
