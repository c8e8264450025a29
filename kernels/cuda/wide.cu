/* wide.cu - products of many tokens by matrices in tiles (tiles.cuh): one pass over the weights serves all of their
 * columns of mma. A block has a run of sixteen rows after sixteen rows, WIDE_SLOTS of them at a time; four warps share
 * one of them, each with a fourth of the columns, and go along all of k. Weights and x come by stages of WIDE_PIECE
 * along k, which copies fill ahead. A part of k is what it is in tiled.cu, summed and added in the same order: a token
 * has the bits that it has there. */
#include "units.cuh"
#include "wide.cuh"

#define WIDE_WARPS 4 /* of a slot */
#define WIDE_PARTS (TILED_THREADS / WARP)

struct wide_share {
    int64_t token; /* the first */
    int64_t begin; /* the first sixteen rows */
    int count;     /* products of sixteen rows: of gates and ups in turn */
    int matrices, pieces, tiles;
};
struct wide_place { int product, piece, slot; }; /* a stage: which products begin it, where along k, and its memory */

template <class TILES, int N> struct wide_stages {
    static constexpr int COLUMNS = WIDE_COLUMNS(N), TILE
    = TILED_ROWS * TILES
    ::CHUNK, EACH = WIDE_PIECE / TILES
    ::K;
    static constexpr int WEIGHTS = EACH * TILE
    , RUNS = TILES
    ::K / 32, STAGE = WIDE_STAGE(WEIGHTS, COLUMNS);
    static constexpr int STAGES = WIDE_STAGES(WEIGHTS, COLUMNS), X = WIDE_SLOTS * WEIGHTS;
    static constexpr int TOTALS = X + COLUMNS * WIDE_PIECE * 2;
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
        p.product += WIDE_SLOTS;
    }
    /* Each warp's share of its slot's sixteen rows. */
    METHOD void ask_weights(const wide_place &p) const {
        const int warp = thread_index() / WARP, lane = thread_index() % WARP, own = warp % WIDE_WARPS;
        const int product = p.product + warp / WIDE_WARPS, tiles = tiles_at(p);
        if (product >= s.count) return;
        const int64_t rows = s.begin + (product >> (s.matrices - 1)), row_bytes = a.k / TILES
        ::K *TILES
        ::CHUNK;
        const char *data = (const char *)(product & (s.matrices - 1) ? a.up.data : a.weight.data);
        const char *from = data + rows * TILED_ROWS * row_bytes;
        char *to = memory + p.slot * STAGE + warp / WIDE_WARPS * WEIGHTS;
        if (TILES::FROM_ROWS) {
            const int tile = lane / 8, part = lane % 8 * 16;
            for (int row = own; row < TILED_ROWS && tile < tiles; row += WIDE_WARPS)
                copy_16(to + tile * TILE + TILES::place(row, part),
                        from + row * row_bytes + (p.piece * EACH + tile) * TILES::CHUNK + part, 16);
            return;
        }
        from += (int64_t)p.piece * WEIGHTS;
        for (int i = (own * WARP + lane) * 16; i < tiles * TILE; i += WIDE_WARPS * WARP * 16)
            copy_16(to + i, from + i, 16);
    }
    METHOD void ask_x(const wide_place &p) const {
        const int runs = tiles_at(p) * RUNS, first = p.piece * (WIDE_PIECE / 32);
        four_words *to = (four_words *)(memory + p.slot * STAGE + X);
        if (TILES::BF16) {
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
        const float *of_x = made.totals + (int64_t)first * TILES
        ::TOTALS *COLUMNS;
        for (int i = thread_index() * 4; i < runs * TILES::TOTALS * COLUMNS; i += TILED_THREADS * 4)
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
template <class TILES, int N> struct wide_sums {
    static constexpr int HALVES = TILES
    ::BF16 ? 1 : 2, COLUMNS = WIDE_COLUMNS(N);
    float part[N][4], all[N][4 / HALVES];
    int number; /* of the part */
    METHOD void clear(int tiles) {
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4; i++) part[n][i] = 0, all[n][i / HALVES] = 0;
        number = 0;
        skip_parts(tiles, 0);
    }
    METHOD int end(int tiles) const { return tiles * (number + 1) / WIDE_PARTS; }
    /* Those that end at a tile, or are of none. */
    METHOD void skip_parts(int tiles, int tile) {
        while (number < WIDE_PARTS && end(tiles) <= tile) number++;
    }
    /* A part is at its end: of bfloat16 a column is a token, of others the two halves of a token are side by side. */
    METHOD void finish_part(const cuda_packed_args &a, int first_column) {
        UNROLL for (int n = 0; n < N; n++) {
            float scales[2] = {1, 1};
            if (!TILES::BF16) {
                const float *of_part = wide_rows_of(a, block_index_y()).scales + number * COLUMNS;
                scales[0] = of_part[first_column + 8 * n];
                scales[1] = of_part[first_column + 8 * n + 1];
            }
            UNROLL for (int i = 0; i < 4; i++) {
                all[n][i / HALVES] += part[n][i] * scales[i % 2];
                part[n][i] = 0;
            }
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
template <int TOKENS>
DEVICE void finish_wide(const cuda_packed_args &a, const wide_share &s, const float *results, int first) {
    const int left = s.count - first, units = (left < WIDE_SLOTS ? left : WIDE_SLOTS) / s.matrices;
    const int tokens = (int)(a.tokens - s.token < TOKENS ? a.tokens - s.token : TOKENS), each = tokens * TILED_ROWS;
    for (int i = thread_index(); i < units * each; i += TILED_THREADS) {
        const int unit = i / each, at = i % each;
        const float *sums = results + unit * s.matrices * (TOKENS * TILED_ROWS) + at;
        const int64_t out_row = (s.begin + first / s.matrices + unit) * TILED_ROWS + at % TILED_ROWS;
        store_product(a, s.token + at / TILED_ROWS, out_row, sums[0], s.matrices == 2 ? sums[TOKENS * TILED_ROWS] : 0);
    }
}

template <class TILES, int N> DEVICE void wide_product(const cuda_packed_args &a) {
    typedef wide_stages < TILES
    , N > stages_type;
    typedef wide_sums < TILES
    , N > sums_type;
    constexpr int TOKENS = stages_type::COLUMNS / sums_type::HALVES;
    const int lane = thread_index() % WARP, warp = thread_index() / WARP;
    const int64_t units = a.rows / TILED_ROWS;
    wide_share s;
    s.token = block_index_y() * a.pass;
    s.matrices = a.glu == CUDA_NO_GLU ? 1 : 2;
    s.begin = units * block_index() / block_count();
    s.count = (int)(units * (block_index() + 1) / block_count() - s.begin) * s.matrices;
    s.tiles = (int)(a.k / TILES::K);
    s.pieces = (s.tiles + stages_type::EACH - 1) / stages_type::EACH;
    const stages_type stages = {block_memory(), a, s};
    float *results = (float *)(block_memory() + stages_type::STAGES * stages_type::STAGE);
    const int first_eight = warp % WIDE_WARPS * N * 8, slot = warp / WIDE_WARPS, own = first_eight + lane % 4 * 2;
    wide_place asked = stages.begin(), at = {0, 0, 0};
    sums_type sums;
    while (at.product < s.count) {
        const int first = at.product;
        sums.clear(s.tiles);
        for (int tile = 0; tile < s.tiles;) {
            wait_copies<stages_type::STAGES - 2>();
            barrier(); /* the copies of all are there, and nobody reads the stage before any more */
            const char *stage = block_memory() + at.slot * stages_type::STAGE;
            const tile_x x = {(const four_words *)(stage + stages_type::X) + (first_eight + lane / 4) * 4 + lane % 4,
                              (const float *)(stage + stages_type::TOTALS) + own, stages_type::COLUMNS};
            const int end = tile + stages.tiles_at(at);
            stages.ask(asked);
            for (int i = 0; tile < end; i++) {
                if (first + slot < s.count) TILES
                ::template multiply<N>(stage + slot * stages_type::WEIGHTS + i * stages_type::TILE,
                                       x.after(i * stages_type::RUNS, TILES::TOTALS), lane, sums.part);
                if (++tile < sums.end(s.tiles)) continue;
                sums.finish_part(a, own);
                sums.skip_parts(s.tiles, tile);
            }
            stages.next(at);
        }
        sums.put(results + slot * TOKENS * TILED_ROWS, own);
        barrier();
        finish_wide<TOKENS>(a, s, results, first);
    }
    wait_copies<0>();
}
#define WIDE(name, ...)                                                                                                \
    KERNEL_AHEAD(gm_wide_32_##name, cuda_packed_args, TILED_THREADS) { wide_product<__VA_ARGS__, 1>(a); }              \
    KERNEL_AHEAD(gm_wide_64_##name, cuda_packed_args, TILED_THREADS) { wide_product<__VA_ARGS__, 2>(a); }
#define WIDE_GROUP(group)                                                                                              \
    WIDE(affine4_##group##_f16, tiles_of_affine4<group, GM_T_F16>)                                                     \
    WIDE(affine4_##group##_bf16, tiles_of_affine4<group, GM_T_BF16>)                                                   \
    WIDE(affine4_##group##_f32, tiles_of_affine4<group, GM_T_F32>)
WIDE(f16, tiles_of_halves<false>)
WIDE(bf16, tiles_of_halves<true>)
WIDE(q4_0, tiles_of_q4_0)
WIDE(q8_0, tiles_of_q8_0)
WIDE(q4_k, tiles_of_q4_k)
WIDE(q6_k, tiles_of_q6_k)
WIDE(mxfp4, tiles_of_mxfp4)
WIDE_GROUP(32)
WIDE_GROUP(64)
WIDE_GROUP(128)
