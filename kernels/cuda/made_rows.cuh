/* made_rows.cuh - rows of x as a product of tiles reads them: as they are, or normed. The squares of a row are added by
 * the warps that have its parts, and these in order: k and the format alone say how, so a row has the scale that it has
 * alone. */
#ifndef GOMLX_CUDA_MADE_ROWS_CUH
#define GOMLX_CUDA_MADE_ROWS_CUH
#include "functions.cuh"

struct made_room {  /* in a block's memory, where there is a norm */
    float *squares; /* [warps][TILED_COLUMNS] */
    float *norm;    /* [k] */
};
struct made_row {
    const float *x, *norm; /* norm NULL: as it is */
    float scale;
    METHOD float operator[](int64_t i) const { return norm ? x[i] * scale * norm[i] : x[i]; }
    METHOD made_row from(int64_t i) const { return {x + i, norm ? norm + i : nullptr, scale}; }
};

/* The norm's weights, which no kernel before this one writes. */
DEVICE void copy_norm(const cuda_packed_args &a, const made_room &room) {
    for (int64_t i = thread_index(); i < a.k; i += TILED_THREADS) room.norm[i] = a.norm[i];
}
/* Of this warp's values [begin, end) of some rows of x; then all of them, and the weights, are there. */
DEVICE void add_squares(const cuda_packed_args &a, const made_room &room, int64_t token, int tokens, int begin,
                        int end) {
    const int lane = thread_index() % WARP;
    for (int t = 0; t < tokens; t++) {
        const float *x = (const float *)a.x + (token + t) * a.k;
        float sum = 0;
        _Pragma("unroll 8") for (int i = begin + lane; i < end; i += WARP) sum = fmaf(x[i], x[i], sum);
        for (int step = WARP / 2; step > 0; step /= 2) sum += lane_xor(sum, step);
        if (lane == 0) room.squares[thread_index() / WARP * TILED_COLUMNS + t] = sum;
    }
    barrier();
}
/* Row `token` of x, the t-th of those whose squares were added. */
DEVICE made_row made_row_of(const cuda_packed_args &a, const made_room &room, int64_t token, int t) {
    const float *x = (const float *)a.x + token * a.k;
    if (!a.norm) return {x, nullptr, 1};
    float sum = 0;
    UNROLL for (int warp = 0; warp < TILED_THREADS / WARP; warp++)
        sum += room.squares[warp * TILED_COLUMNS + t];
    return {x, room.norm, 1.0f / sqrtf(sum / (float)a.k + a.eps)};
}
#endif
