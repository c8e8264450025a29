/* tiles.cuh - formats whose packed matrices lie in tiles: 16 rows times K values of k are TILE bytes, tiles along k are
 * side by side, and sixteen rows follow sixteen rows. A tile has the bytes of the file's blocks in the order in which
 * the lanes of a warp read them for mma.m16n8k16: lane 4 g + t has of rows g and g + 8 eight values of each 32 along k,
 * and after all of them come the scales. Nothing is added, so a matrix takes as many bytes as in its file, and
 *  (1) place(row, i) is where byte i of a row's CHUNK bytes of the file is in the tile;
 *  (2) value j of lane t is ORDER's, and x is put into the same order (tiled.cu);
 *  (3) multiply<N>() adds a tile times x to a lane's sums, of N times eight columns: those of integers times SCALE. An
 *      integer in the low bits of a float16 is itself times 2^-24, exactly; of SIXTEENTHS each second pair is sixteen
 *      times as much, and its x a sixteenth. A sum begins anew with each scale, and OFFSET times a total of x is added,
 *      which has TOTALS of them in each 32 along k, of every second column: the one beside it is what rounding left out
 *      (tiled.cu). It is added in float32; what N is changes no bit of it.
 *  (4) REGISTERS are those of a thread of a product of one token: 104 leave a place for a block of attention, where
 *      that costs the product nothing. */
#ifndef GOMLX_CUDA_TILES_CUH
#define GOMLX_CUDA_TILES_CUH
#include "functions.cuh"

typedef pack<uint32_t, 4> four_words;
typedef pack<uint32_t, 2> two_words;
typedef enum { IN_ORDER, BY_HALVES, BY_FIELDS, BY_BYTES, BY_SIXTEENS } tile_order;

/* The first tile of a part of k. */
DEVICE int part_of_tiles(int tiles, int number) { return (int)((uint32_t)(tiles * number) / TILED_PARTS); }
/* Where value j of lane t is in 32 along k. */
DEVICE int tile_value(tile_order order, int t, int j) {
    const int pair = j / 2, far = j % 2;
    switch (order) {
    case BY_HALVES: return pair % 2 * 16 + 4 * t + pair / 2 + 2 * far;
    case BY_FIELDS: return 8 * t + pair + 4 * far;
    case BY_BYTES: return 8 * t + pair / 2 * 4 + pair % 2 + 2 * far;
    case BY_SIXTEENS: return pair / 2 * 16 + 4 * t + pair % 2 + 2 * far;
    default: return 8 * t + j;
    }
}
/* Byte q of the four or eight that lane t has of a row, in pieces of 16 bytes a lane. */
DEVICE int tile_piece(int row, int t, int half_bytes, int at) {
    return (row % 8 * 4 + t) * 16 + row / 8 * half_bytes + at;
}
DEVICE four_words tile_words(const char *tile, int lane) { return *(const four_words *)(tile + lane * 16); }
DEVICE float half_of_tile(const char *p) { return float_of_half(*(const uint16_t *)p); }
/* The scales of a row's two blocks side by side, and one of them. */
DEVICE uint32_t two_scales(const char *scales, int lane) { return *(const uint32_t *)(scales + lane / 4 * 4); }
DEVICE float half_of_two(uint32_t two, int j) { return float_of_half((uint16_t)(two >> 16 * j)); }

/* sum += 32 of k: what a lane has of rows g and g + 8, times x. */
template <bool BF16> DEVICE void multiply_32(float *sum, const uint32_t *near, const uint32_t *far, const uint32_t *x) {
    const uint32_t first[4] = {near[0], far[0], near[1], far[1]}, second[4] = {near[2], far[2], near[3], far[3]};
    if (BF16) {
        mma_bf16(sum, first, x);
        mma_bf16(sum, second, x + 2);
    } else {
        mma_f16(sum, first, x);
        mma_f16(sum, second, x + 2);
    }
}
/* What a lane reads of x, from where a tile begins along k. */
struct tile_x {
    const four_words *values; /* of its column of eight */
    const float *totals;      /* times 2^-24, of the two columns whose sums it has */
    int columns;
    METHOD const four_words &run(int i, int n) const { return values[(i * columns + 8 * n) * 4]; }
    METHOD tile_x after(int runs, int each) const {
        return {values + runs * columns * 4, totals + runs * each * columns, columns};
    }
    METHOD float total(int at, int n) const { return totals[at * columns + 8 * n]; } /* times OFFSET */
};
/* The same of one token, where a lane keeps all that it multiplies, of at most so many runs, and totals of each. */
template <int RUNS, int TOTALS> struct kept_x {
    four_words values[RUNS];
    float totals[RUNS * TOTALS + !TOTALS]; /* of no size there is no array */
    METHOD kept_x(const tile_x &x, int runs) {
        UNROLL for (int i = 0; i < RUNS; i++) {
            if (i >= runs) continue;
            values[i] = x.run(i, 0);
            UNROLL for (int j = 0; j < TOTALS; j++)
                totals[i * TOTALS + j] = x.total(i * TOTALS + j, 0);
        }
    }
    struct tile { /* from a run on */
        const kept_x &kept;
        int first;
        METHOD const four_words &run(int i, int) const { return kept.values[first + i]; }
        METHOD float total(int at, int) const { return kept.totals[first * TOTALS + at]; }
    };
};
/* sums += scales * (sum + total), of rows g and g + 8. */
DEVICE void add_scaled(float *sums, const float *scales, const float *sum, float total) {
    UNROLL for (int i = 0; i < 4; i++)
        sums[i] = fmaf(scales[i / 2], i % 2 ? sum[i] : sum[i] + total, sums[i]);
}
/* Of a word's nibbles the second and the fourth two times sixteen (SIXTEENTHS). */
DEVICE void nibbles_of(uint32_t w, uint32_t *out) {
    out[0] = w & 0x000f000f;
    out[1] = w & 0x00f000f0;
    out[2] = w >> 8 & 0x000f000f;
    out[3] = w >> 8 & 0x00f000f0;
}
/* Four bytes side by side as float16 integers. */
DEVICE void bytes_of(uint32_t w, uint32_t *out) {
    out[0] = (w & 0xff) | (w & 0xff00) << 8;
    out[1] = (w >> 16 & 0xff) | (w >> 24) << 16;
}

/* Only the block's memory has these: matrices of halves lie in rows, of which prompts' products read them too. */
template <bool BF16_> struct tiles_of_halves {
    static constexpr int K = 64, CHUNK = 128;
    static constexpr bool BF16 = BF16_, FROM_ROWS = true;
    static constexpr int REGISTERS = 128;
    static constexpr float SCALE = 1;
    static constexpr int TOTALS = 0;
    static constexpr float OFFSET = 1;
    static constexpr bool SIXTEENTHS = false;
    static constexpr tile_order ORDER = IN_ORDER;
    DEVICE int place(int row, int i) { return i / 64 * 1024 + row / 8 * 512 + row % 8 * 64 + i % 64; }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        UNROLL for (int j = 0; j < 2; j++) {
            const four_words near = tile_words(tile + 1024 * j, lane), far = tile_words(tile + 1024 * j + 512, lane);
            UNROLL for (int n = 0; n < N; n++) {
                float sum[4] = {0, 0, 0, 0};
                multiply_32<BF16>(sum, near.at, far.at, x.run(j, n).at);
                UNROLL for (int i = 0; i < 4; i++)
                    sums[n][i] += sum[i];
            }
        }
    }
};

struct tiles_of_q8_0 {
    static constexpr int K = 64, CHUNK = 68;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p24f;
    static constexpr int TOTALS = 1;
    static constexpr float OFFSET = -128;
    static constexpr bool SIXTEENTHS = false;
    static constexpr tile_order ORDER = IN_ORDER;
    DEVICE int place(int row, int i) {
        const int block = i / 34, at = i % 34 - 2;
        if (at < 0) return 1024 + row * 4 + block * 2 + at + 2;
        return block * 512 + tile_piece(row, at / 8, 8, at % 8);
    }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        const uint32_t near_scales = two_scales(tile + 1024, lane), far_scales = two_scales(tile + 1056, lane);
        UNROLL for (int j = 0; j < 2; j++) {
            const four_words w = tile_words(tile + 512 * j, lane);
            const float scales[2] = {half_of_two(near_scales, j), half_of_two(far_scales, j)};
            uint32_t near[4], far[4];
            bytes_of(w.at[0] ^ 0x80808080, near);
            bytes_of(w.at[1] ^ 0x80808080, near + 2);
            bytes_of(w.at[2] ^ 0x80808080, far);
            bytes_of(w.at[3] ^ 0x80808080, far + 2);
            UNROLL for (int n = 0; n < N; n++) {
                float sum[4] = {0, 0, 0, 0};
                multiply_32<false>(sum, near, far, x.run(j, n).at);
                add_scaled(sums[n], scales, sum, x.total(j, n));
            }
        }
    }
};

struct tiles_of_q4_0 {
    static constexpr int K = 64, CHUNK = 36;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p24f;
    static constexpr int TOTALS = 1;
    static constexpr float OFFSET = -8;
    static constexpr bool SIXTEENTHS = true;
    static constexpr tile_order ORDER = BY_HALVES;
    DEVICE int place(int row, int i) {
        const int block = i / 18, at = i % 18 - 2;
        if (at < 0) return 512 + row * 4 + block * 2 + at + 2;
        return tile_piece(row, at / 4, 4, block * 8 + at % 4);
    }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        const four_words w = tile_words(tile, lane);
        const uint32_t near_scales = two_scales(tile + 512, lane), far_scales = two_scales(tile + 544, lane);
        UNROLL for (int j = 0; j < 2; j++) {
            const float scales[2] = {half_of_two(near_scales, j), half_of_two(far_scales, j)};
            uint32_t near[4], far[4];
            nibbles_of(w.at[2 * j], near);
            nibbles_of(w.at[2 * j + 1], far);
            UNROLL for (int n = 0; n < N; n++) {
                float sum[4] = {0, 0, 0, 0};
                multiply_32<false>(sum, near, far, x.run(j, n).at);
                add_scaled(sums[n], scales, sum, x.total(j, n));
            }
        }
    }
};

/* A nibble is a float of 1 + 2 + 1 bits: at bits 15, 11, 10 and 9 of a float16 it is itself times 2^-14. */
struct tiles_of_mxfp4 {
    static constexpr int K = 64, CHUNK = 34;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p15f; /* of half of the block's scale */
    static constexpr int TOTALS = 0;
    static constexpr float OFFSET = 1;
    static constexpr bool SIXTEENTHS = false;
    static constexpr tile_order ORDER = BY_HALVES;
    DEVICE int place(int row, int i) {
        const int block = i / 17, at = i % 17 - 1;
        if (at < 0) return 512 + row * 2 + block;
        return tile_piece(row, at / 4, 4, block * 8 + at % 4);
    }
    DEVICE void floats_of(uint32_t w, uint32_t *out) {
        out[0] = (w << 12 & 0x80008000) | (w << 9 & 0x0e000e00);
        out[1] = (w << 8 & 0x80008000) | (w << 5 & 0x0e000e00);
        out[2] = (w << 4 & 0x80008000) | (w << 1 & 0x0e000e00);
        out[3] = (w & 0x80008000) | (w >> 3 & 0x0e000e00);
    }
    DEVICE float scale_of(uint32_t e) { return float_of_bits(e < 2 ? 0x200000u << e : (e - 1) << 23); }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        const four_words w = tile_words(tile, lane);
        UNROLL for (int j = 0; j < 2; j++) {
            const uint8_t *scale = (const uint8_t *)tile + 512 + lane / 4 * 2 + j;
            const float scales[2] = {scale_of(scale[0]), scale_of(scale[16])};
            uint32_t near[4], far[4];
            floats_of(w.at[2 * j], near);
            floats_of(w.at[2 * j + 1], far);
            UNROLL for (int n = 0; n < N; n++) {
                float sum[4] = {0, 0, 0, 0};
                multiply_32<false>(sum, near, far, x.run(j, n).at);
                UNROLL for (int i = 0; i < 4; i++)
                    sums[n][i] = fmaf(scales[i / 2], sum[i], sums[n][i]);
            }
        }
    }
};

/* MLX's of mode affine, of four bits. */
template <int GROUP, int TYPE> struct tiles_of_affine4 {
    static constexpr int K = GROUP < 64 ? 64 : GROUP, BLOCKS = K / GROUP, HEAD = TYPE == GM_T_F32 ? 8 : 4;
    static constexpr int BYTES = GROUP / 2 + HEAD, CHUNK = BLOCKS * BYTES;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p24f;
    static constexpr int TOTALS = 1;
    static constexpr float OFFSET = 1;
    static constexpr bool SIXTEENTHS = true;
    static constexpr tile_order ORDER = BY_FIELDS;
    typedef pack<uint32_t, HEAD / 4> head_pair; /* a scale and a bias, read at once */
    DEVICE int place(int row, int i) {
        const int block = i / BYTES, at = i % BYTES - HEAD, k = block * GROUP + 2 * at;
        if (at < 0) return K * 8 + (row * BLOCKS + block) * HEAD + at + HEAD;
        return k / 64 * 512 + tile_piece(row, k % 32 / 8, 4, k / 32 % 2 * 8 + at % 4);
    }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        UNROLL for (int block = 0; block < BLOCKS; block++) {
            const int first = block * GROUP / 32, end = (block + 1) * GROUP / 32;
            float sum[N][4] = {};
            UNROLL for (int run = first; run < end; run++) {
                const four_words w = tile_words(tile + run / 2 * 512, lane);
                uint32_t near[4], far[4];
                nibbles_of(w.at[run % 2 * 2], near);
                nibbles_of(w.at[run % 2 * 2 + 1], far);
                UNROLL for (int n = 0; n < N; n++)
                    multiply_32<false>(sum[n], near, far, x.run(run, n).at);
            }
            UNROLL for (int i = 0; i < 4; i++) {
                const char *head = tile + K * 8 + ((lane / 4 + i / 2 * 8) * BLOCKS + block) * HEAD;
                const head_pair pair = *(const head_pair *)head;
                const float scale = load_float(&pair, 0, TYPE), bias = load_float(&pair, 1, TYPE);
                UNROLL for (int n = 0; n < N; n++) {
                    float total = 0;
                    UNROLL for (int run = first; run < end && i % 2 == 0; run++)
                        total += x.total(run, n);
                    if (i % 2 == 0) sums[n][i] = fmaf(bias, total, sums[n][i]);
                    sums[n][i] = fmaf(scale, sum[n][i], sums[n][i]);
                }
            }
        }
    }
};

/* Every other byte of a word as float16 integers. */
DEVICE uint32_t even_bytes(uint32_t w) { return w & 0x00ff00ff; }
DEVICE uint32_t odd_bytes(uint32_t w) { return w >> 8 & 0x00ff00ff; }
/* Scales and minimums of eight groups, from the twelve bytes that a block has of them. */
struct tile_header {
    float d, dmin;
    uint32_t scales[2], minimums[2];
    METHOD tile_header(const char *p) {
        const four_words h = *(const four_words *)p;
        d = float_of_half((uint16_t)h.at[0]);
        dmin = float_of_half((uint16_t)(h.at[0] >> 16));
        scales[0] = h.at[1] & 0x3f3f3f3f;
        minimums[0] = h.at[2] & 0x3f3f3f3f;
        scales[1] = (h.at[3] & 0x0f0f0f0f) | (h.at[1] >> 2 & 0x30303030);
        minimums[1] = (h.at[3] >> 4 & 0x0f0f0f0f) | (h.at[2] >> 2 & 0x30303030);
    }
};
struct tiles_of_q4_k {
    static constexpr int K = 256, CHUNK = 144;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p24f;
    static constexpr int TOTALS = 1;
    static constexpr float OFFSET = 1;
    static constexpr bool SIXTEENTHS = false;
    static constexpr tile_order ORDER = BY_BYTES;
    DEVICE int place(int row, int i) {
        const int at = i - 16;
        if (at < 0) return 2048 + row * 16 + i;
        return at / 32 * 512 + tile_piece(row, at % 32 / 8, 8, at % 8);
    }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        const tile_header heads[2] = {tile_header(tile + 2048 + lane / 4 * 16),
                                      tile_header(tile + 2176 + lane / 4 * 16)};
        float total[N][4] = {}, least[N][2] = {};
        UNROLL for (int group = 0; group < 8; group++) {
            const four_words w = tile_words(tile + group / 2 * 512, lane);
            const bool upper = group % 2; /* nibbles are sixteen times as much: and so are the other groups' scales */
            uint32_t rows[2][4];
            float scales[2], minimums[2];
            UNROLL for (int i = 0; i < 8; i++)
                rows[i / 4][i % 4] = w.at[i / 2] >> i % 2 * 8 & (upper ? 0x00f000f0 : 0x000f000f);
            UNROLL for (int i = 0; i < 2; i++) {
                const uint32_t own = heads[i].scales[group / 4], least_own = heads[i].minimums[group / 4];
                scales[i] = half_of_two(upper ? odd_bytes(own) : even_bytes(own) << 4, group / 2 % 2);
                minimums[i] = half_of_two(upper ? odd_bytes(least_own) : even_bytes(least_own), group / 2 % 2);
            }
            UNROLL for (int n = 0; n < N; n++) {
                float sum[4] = {0, 0, 0, 0};
                multiply_32<false>(sum, rows[0], rows[1], x.run(group, n).at);
                UNROLL for (int i = 0; i < 4; i++) {
                    total[n][i] = fmaf(scales[i / 2], sum[i], total[n][i]);
                    if (i % 2 == 0) least[n][i / 2] = fmaf(minimums[i / 2], x.total(group, n), least[n][i / 2]);
                }
            }
        }
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4; i++) {
                const float off = i % 2 ? 0.0f : heads[i / 2].dmin * 0x1p24f * least[n][i / 2];
                sums[n][i] += fmaf(heads[i / 2].d * 0x1p20f, total[n][i], -off);
            }
    }
};

struct tiles_of_q6_k {
    static constexpr int K = 256, CHUNK = 210;
    static constexpr bool BF16 = false, FROM_ROWS = false;
    static constexpr int REGISTERS = 104;
    static constexpr float SCALE = 0x1p24f;
    static constexpr int TOTALS = 2;
    static constexpr float OFFSET = -32;
    static constexpr bool SIXTEENTHS = false;
    static constexpr tile_order ORDER = BY_SIXTEENS;
    DEVICE int place(int row, int i) {
        const bool low = i < 128;
        const int at = low ? i % 64 : i - 128, l = at % 32;
        if (i >= 208) return 3328 + row * 2 + i - 208;
        if (i >= 192) return 3072 + row * 16 + i - 192;
        const int part = low ? i / 64 * 3 + at / 32 : at / 32 * 3 + 2;
        return part * 512 + tile_piece(row, l % 16 / 4, 8, l / 16 * 4 + l % 4);
    }
    template <int N, class X> DEVICE void multiply(const char *tile, const X &x, int lane, float (*sums)[4]) {
        const int row = lane / 4;
        float total[N][4] = {};
        UNROLL for (int group = 0; group < 8; group++) {
            const int j = group % 4;
            const char *part = tile + group / 4 * 1536;
            const four_words low = tile_words(part + j % 2 * 512, lane), high = tile_words(part + 1024, lane);
            UNROLL for (int half = 0; half < 2; half++) {
                uint32_t rows[4]; /* as mma has them */
                UNROLL for (int i = 0; i < 4; i++) {
                    const uint32_t near = low.at[i % 2 * 2 + half] >> (j / 2 * 4 + i / 2 * 8) & 0x000f000f;
                    const uint32_t far = high.at[i % 2 * 2 + half] >> (j * 2 + i / 2 * 8) & 0x00030003;
                    rows[i] = near | far << 4;
                }
                UNROLL for (int n = 0; n < N; n++) {
                    const int8_t *scale = (const int8_t *)tile + 3072 + row * 16 + group * 2 + half;
                    const float scales[2] = {(float)scale[0], (float)scale[8 * 16]};
                    float sum[4] = {0, 0, 0, 0};
                    mma_f16(sum, rows, x.run(group, n).at + 2 * half);
                    add_scaled(total[n], scales, sum, x.total(2 * group + half, n));
                }
            }
        }
        UNROLL for (int n = 0; n < N; n++) UNROLL
            for (int i = 0; i < 4; i++)
                sums[n][i] = fmaf(half_of_tile(tile + 3328 + (row + i / 2 * 8) * 2), total[n][i], sums[n][i]);
    }
};

/* Byte i of a row of a matrix, from byte `first` on. Numbers of 32 bits: to divide those of 64 takes longer than all
 * else (launch_rows.c makes tiles of no longer rows). */
template <class TILES> struct tile_bytes {
    const uint8_t *rows; /* sixteen */
    int row;
    uint32_t first;
    METHOD uint8_t operator[](int64_t i) const {
        const uint32_t at = first + (uint32_t)i, tile = at / TILES
        ::CHUNK;
        return rows[tile * (TILED_ROWS * TILES::CHUNK) + TILES::place(row, (int)(at - tile * TILES::CHUNK))];
    }
    METHOD tile_bytes operator+(int64_t n) const { return {rows, row, first + (uint32_t)n}; }
};

/* KERNEL_OF(name, form) for each form of tiles: of quantised matrices, and of all. */
#define AFFINE4_TILES(KERNEL_OF, group)                                                                                \
    KERNEL_OF(affine4_##group##_f16, tiles_of_affine4<group, GM_T_F16>)                                                \
    KERNEL_OF(affine4_##group##_bf16, tiles_of_affine4<group, GM_T_BF16>)                                              \
    KERNEL_OF(affine4_##group##_f32, tiles_of_affine4<group, GM_T_F32>)
#define QUANTISED_TILES(KERNEL_OF)                                                                                     \
    KERNEL_OF(q4_0, tiles_of_q4_0)                                                                                     \
    KERNEL_OF(q8_0, tiles_of_q8_0)                                                                                     \
    KERNEL_OF(q4_k, tiles_of_q4_k)                                                                                     \
    KERNEL_OF(q6_k, tiles_of_q6_k)                                                                                     \
    KERNEL_OF(mxfp4, tiles_of_mxfp4)                                                                                   \
    AFFINE4_TILES(KERNEL_OF, 32)                                                                                       \
    AFFINE4_TILES(KERNEL_OF, 64)                                                                                       \
    AFFINE4_TILES(KERNEL_OF, 128)
#define ALL_TILES(KERNEL_OF)                                                                                           \
    KERNEL_OF(f16, tiles_of_halves<false>)                                                                             \
    KERNEL_OF(bf16, tiles_of_halves<true>)                                                                             \
    QUANTISED_TILES(KERNEL_OF)
#endif
