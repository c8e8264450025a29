/* made_rows.cuh - parts of rows of x as a product of tiles reads them: as they are, or normed. The squares of a row are
 * added by parts, and these in order: k and the format alone say how, so a row has the scale that it has alone. */
#ifndef GOMLX_CUDA_MADE_ROWS_CUH
#define GOMLX_CUDA_MADE_ROWS_CUH
#include "tiles.cuh"

/* Eights of x that a lane has of a part: so many, which it reads at once, or, of parts that are longer or may be, any
 * number, of which it reads AT_ONCE. */
#define ANY_ROUNDS 0
#define AT_ONCE 4

typedef pack<float, 4> four_floats;
struct made_room {  /* in a block's memory */
    bool normed;    /* only then there are */
    float *squares; /* [parts][TILED_COLUMNS] */
    float *norm;    /* [k] */
};

/* An eight of a run of 32 of x is what a lane of mma has of it: two fours, in an order of tiles. */
template <tile_order ORDER> struct eights {
    static constexpr bool SPREAD = ORDER == BY_HALVES || ORDER == BY_SIXTEENS;
    static constexpr int STEP = SPREAD ? 4 : 8, FAR = SPREAD ? 16 : 4;
    /* Of the first four; the other is FAR behind it. */
    DEVICE int place(int u) { return (int)((uint32_t)u / 4 * 32 + (uint32_t)u % 4 * STEP); }
    DEVICE float value(const four_floats *fours, int j) {
        const int at = tile_value(ORDER, 0, j);
        return at >= FAR ? fours[1].at[at - FAR] : fours[0].at[at];
    }
};
/* A part of k, eights [begin, end), of which a lane has one in each round. */
struct row_part {
    int begin, end;
    METHOD row_part(int tiles, int values, int number)
        : begin(part_of_tiles(tiles, number) * (values / 8)), end(part_of_tiles(tiles, number + 1) * (values / 8)) {}
    METHOD int first() const { return begin + thread_index() % WARP; }
    METHOD bool is_long() const { return end - begin > AT_ONCE * WARP; }
};
/* Eights of a lane, from a warp's eight `base` on. */
template <tile_order ORDER, int ROUNDS> struct lane_eights {
    typedef eights<ORDER> order;
    static constexpr int EACH = ROUNDS == ANY_ROUNDS ? AT_ONCE : ROUNDS;
    four_floats fours[EACH][2];
    /* Of the row that is so many values behind x. */
    METHOD void read(const float *x, const row_part &part, int base, uint32_t behind = 0) {
        const int first = base + thread_index() % WARP;
        const uint32_t own = behind + (uint32_t)order::place(first);
        UNROLL for (int r = 0; r < EACH; r++) {
            const uint32_t at = own + r * WARP * 8;
            const bool there = first + r * WARP < part.end;
            if (ROUNDS != 1 && base + r * WARP >= part.end) continue;
            fours[r][0] = there ? read_written((const four_floats *)(x + at)) : four_floats{};
            fours[r][1] = there ? read_written((const four_floats *)(x + at + order::FAR)) : four_floats{};
        }
    }
    /* use(u, fours, there): as all lanes of the warp do, of which some are past the part's end. */
    template <class F> METHOD void each(const row_part &part, int base, F use) {
        UNROLL for (int r = 0; r < EACH; r++) {
            const int u = base + r * WARP + thread_index() % WARP;
            if (ROUNDS == 1 || base + r * WARP < part.end) use(u, fours[r], u < part.end);
        }
    }
};
/* use(u, fours, there) for each eight of a part of a row of x, of which the first ones were read, and are all where
 * their number is known; again: not all of them stayed where they were read to. */
template <tile_order ORDER, int ROUNDS, class F>
DEVICE void each_eight(lane_eights<ORDER, ROUNDS> &first, const float *x, const row_part &part, bool again, F use) {
    if constexpr (ROUNDS != ANY_ROUNDS) {
        first.each(part, part.begin, use);
    } else {
        for (int base = part.begin; base < part.end; base += AT_ONCE * WARP) {
            if (again || base > part.begin) first.read(x, part, base);
            first.each(part, base, use);
        }
    }
}
/* The norm's weights of a part, which no kernel before this one writes: asked for before x is there. Of one round a
 * lane keeps its own, else they are in the block's memory. */
template <tile_order ORDER, int ROUNDS> struct part_norm {
    bool normed;
    const float *memory;
    lane_eights<ORDER, 1> own;
    METHOD part_norm(const cuda_packed_args &a, const made_room &room, const row_part &part)
        : normed(room.normed), memory(room.norm) {
        if (!normed) return;
        if (ROUNDS == 1) own.read(a.norm, part, part.begin);
        else copy(a.norm, room.norm, part);
    }
    METHOD void copy(const float *from, float *to, const row_part &part) {
        _Pragma("unroll 1") for (int i = part.begin * 8 + thread_index() % WARP * 4; i < part.end * 8; i += WARP * 4)
            copy_16(to + i, from + i, 16);
        commit_copies();
    }
    METHOD void wait() const {
        if (ROUNDS == 1 || !normed) return;
        wait_copies<0>();
        warp_barrier();
    }
    METHOD four_floats of(int u, int half, bool there) const {
        if (ROUNDS == 1) return own.fours[0][half];
        return there ? *(const four_floats *)(memory + eights<ORDER>::place(u) + half * eights<ORDER>::FAR)
                     : four_floats{};
    }
};
/* What becomes of a lane's eights before the scale of the row is known: the sum of squares, and the largest. */
template <tile_order ORDER, int ROUNDS> struct first_look {
    float squares, most;
    const part_norm<ORDER, ROUNDS> &norm;
    METHOD explicit first_look(const part_norm<ORDER, ROUNDS> &of) : squares(0), most(0), norm(of) {}
    /* there: it is one of the row's, else zeros. */
    METHOD void add(int u, four_floats *fours, bool there) {
        UNROLL for (int half = 0; half < 2; half++) {
            four_floats weights = {};
            if (norm.normed) weights = norm.of(u, half, there);
            UNROLL for (int j = 0; j < 4; j++) {
                float &x = fours[half].at[j];
                squares = fmaf(x, x, squares);
                if (norm.normed) x *= weights.at[j];
                most = fmaxf(most, fabsf(x));
            }
        }
    }
    METHOD void put_squares(const made_room &room, int number, int t) const {
        float sum = squares;
        for (int step = WARP / 2; step > 0; step /= 2) sum += lane_xor(sum, step);
        if (thread_index() % WARP == 0) room.squares[number * TILED_COLUMNS + t] = sum;
    }
};

/* Of the t-th of the rows whose squares were put. */
DEVICE float scale_of_row(const cuda_packed_args &a, const made_room &room, int t) {
    float sum = 0;
    UNROLL for (int part = 0; part < TILED_PARTS; part++)
        sum += room.squares[part * TILED_COLUMNS + t];
    return 1.0f / sqrtf(sum / (float)a.k + a.eps);
}
#endif
