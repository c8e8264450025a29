/* rounded.cu - rows of quantised matrices in tiles (tiles.cuh) as bfloat16, for products of prompts' rows: the values
 * of formats.cuh, read as the products of tiles read them. A warp has a tile; a lane of two rows eight values of each
 * run of 32 along k, in the tile's order. */
#include "formats.cuh"
#include "made_rows.cuh"

typedef float two_eights[2][8]; /* of row lane / 4, and of the eighth after it */

/* An integer below 2^23, less another: in the low bits of 2^23, which takes no unit that is as rare as what converts.
 */
DEVICE float small_number(uint32_t n, float less) { return float_of_bits(0x4b000000 | n) - (0x1p23f + less); }
DEVICE float nibble_at(uint32_t w, int j, float less) { return small_number(w >> (j / 2 * 4 + j % 2 * 16) & 15, less); }
/* Run `run` of a tile. */
DEVICE void read_run(tiles_of_q4_0, const cuda_format &, const char *tile, int lane, int run, two_eights &out) {
    const four_words w = tile_words(tile, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const float d = half_of_two(two_scales(tile + 512 + 32 * r, lane), run);
        UNROLL for (int j = 0; j < 8; j++)
            out[r][j] = d * nibble_at(w.at[2 * run + r], j, 8);
    }
}
DEVICE void read_run(tiles_of_q8_0, const cuda_format &, const char *tile, int lane, int run, two_eights &out) {
    const four_words w = tile_words(tile + 512 * run, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const float d = half_of_two(two_scales(tile + 1024 + 32 * r, lane), run);
        UNROLL for (int j = 0; j < 8; j++)
            out[r][j] = d * small_number((w.at[2 * r + j / 4] ^ 0x80808080) >> j % 4 * 8 & 255, 128);
    }
}
DEVICE void read_run(tiles_of_mxfp4, const cuda_format &, const char *tile, int lane, int run, two_eights &out) {
    const four_words w = tile_words(tile, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const float scale = half_power(((const uint8_t *)tile)[512 + (lane / 4 + 8 * r) * 2 + run]);
        uint32_t pairs[4];
        tiles_of_mxfp4::floats_of(w.at[2 * run + r], pairs);
        UNROLL for (int j = 0; j < 8; j++)
            /* A scale may be as large as can be, and there is no zero with a sign. */
            out[r][j] = scale * (half_of_two(pairs[j / 2], j % 2) * 0x1p15f) + 0.0f;
    }
}
template <int GROUP, int TYPE>
DEVICE void read_run(tiles_of_affine4<GROUP, TYPE>, const cuda_format &f, const char *tile, int lane, int run,
                     two_eights &out) {
    typedef tiles_of_affine4<GROUP, TYPE> tiles;
    const four_words w = tile_words(tile + run / 2 * 512, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const char *head = tile + tiles::K * 8 + ((lane / 4 + 8 * r) * tiles::BLOCKS + run * 32 / GROUP) * tiles::HEAD;
        const float scale = load_float(head, 0, f.scale_type), bias = load_float(head, 1, f.scale_type);
        UNROLL for (int j = 0; j < 8; j++)
            out[r][j] = scale * nibble_at(w.at[run % 2 * 2 + r], j, 0) + bias;
    }
}
DEVICE void read_run(tiles_of_q4_k, const cuda_format &, const char *tile, int lane, int run, two_eights &out) {
    const four_words w = tile_words(tile + run / 2 * 512, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const tile_header head(tile + 2048 + (lane / 4 + 8 * r) * 16);
        const int shift = run % 4 * 8;
        const float scale = head.d * (float)(head.scales[run / 4] >> shift & 255);
        const float least = head.dmin * (float)(head.minimums[run / 4] >> shift & 255);
        UNROLL for (int j = 0; j < 8; j++) {
            const uint32_t pair = w.at[2 * r + j / 4] >> (j / 2 % 2 * 8 + run % 2 * 4);
            out[r][j] = scale * small_number(pair >> j % 2 * 16 & 15, 0) - least;
        }
    }
}
DEVICE void read_run(tiles_of_q6_k, const cuda_format &, const char *tile, int lane, int run, two_eights &out) {
    const char *part = tile + run / 4 * 1536;
    const four_words low = tile_words(part + run % 2 * 512, lane), high = tile_words(part + 1024, lane);
    UNROLL for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + 8 * r;
        const int8_t *scales = (const int8_t *)tile + 3072 + row * 16 + 2 * run;
        const float d = half_of_tile(tile + 3328 + row * 2);
        UNROLL for (int j = 0; j < 8; j++) {
            const int word = 2 * r + j / 4, shift = j / 2 % 2 * 8 + j % 2 * 16;
            const uint32_t near = low.at[word] >> (shift + run % 4 / 2 * 4) & 15;
            const uint32_t far = high.at[word] >> (shift + run % 4 * 2) & 3;
            out[r][j] = d * (float)scales[j / 4] * small_number(near | far << 4, 32);
        }
    }
}
/* The eight of a run of 32 of a row that a lane has, rounded: side by side, or two fours. */
template <tile_order ORDER> struct rounded_eight {
    static constexpr int FAR = eights<ORDER>::FAR, PARTS = FAR == 4 ? 1 : 2, WORDS = 4 / PARTS;
    pack<uint32_t, WORDS> parts[PARTS];
    METHOD void make(const float (&values)[8]) {
        float in_order[8];
        UNROLL for (int j = 0; j < 8; j++) {
            const int at = tile_value(ORDER, 0, j);
            in_order[at < FAR ? at : at - FAR + 4] = values[j];
        }
        UNROLL for (int i = 0; i < 4; i++)
            parts[i / WORDS].at[i % WORDS] = two_bfloats(in_order[2 * i], in_order[2 * i + 1]);
    }
    METHOD void put(uint16_t *to, int t) const {
        UNROLL for (int i = 0; i < PARTS; i++)
            *(pack<uint32_t, WORDS> *)(to + eights<ORDER>::place(t) + i * FAR) = parts[i];
    }
};
/* A block has sixteen rows, a warp of it 256 along k, whose bytes it asks for in RUNS at once: a processor that has few
 * of them under way waits for memory most of the time. */
#define RUNS 4
KERNEL(gm_rounded_tiles, cuda_rows_out_args, CUDA_THREADS) {
    const int64_t line = block_index() * TILED_ROWS, warps = CUDA_THREADS / WARP;
    const int64_t first = (block_index_y() * warps + thread_index() / WARP) * 256;
    const int lane = thread_index() % WARP;
    if (first >= a.k) return;
    const auto put = [&](const auto &form) {
        typedef typename std::decay<decltype(form)>::type tiles;
        const char *rows = (const char *)a.weight + (a.first + line) * (a.k / tiles::K * tiles::CHUNK);
        uint16_t *to = (uint16_t *)a.out + (line + lane / 4) * a.k + first;
        const auto tile_of = [&](int run) { return run * 32 / tiles::K * tiles::K; };
        UNROLL for (int begin = 0; begin < 8; begin += RUNS) {
            rounded_eight<tiles::ORDER> made[RUNS][2];
            UNROLL for (int i = 0; i < RUNS; i++) {
                const int at = tile_of(begin + i);
                const int64_t k = first + at < a.k ? first + at : first; /* behind the end: any that is there */
                two_eights values;
                read_run(form, a.format, rows + k / tiles::K * (TILED_ROWS * tiles::CHUNK), lane, begin + i - at / 32,
                         values);
                made[i][0].make(values[0]);
                made[i][1].make(values[1]);
            }
            UNROLL for (int i = 0; i < RUNS; i++) {
                if (first + tile_of(begin + i) >= a.k) continue;
                made[i][0].put(to + (begin + i) * 32, lane % 4);
                made[i][1].put(to + (begin + i) * 32 + 8 * a.k, lane % 4);
            }
        }
    };
    with_tiles(a.format, put, [] {});
}
