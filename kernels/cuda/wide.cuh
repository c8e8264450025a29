/* wide.cuh - x of wide products (wide.cu) in memory, pass after pass of tokens: float16 columns in the order of tiles,
 * their totals, and what each part of k multiplies its sums by (tiled.cu makes them). */
#ifndef GOMLX_CUDA_WIDE_CUH
#define GOMLX_CUDA_WIDE_CUH
#include "tiles.cuh"

struct wide_rows {
    four_words *values; /* [k / 32][columns][4 lanes] */
    float *totals;      /* [k / 32][TOTALS][columns] */
    float *scales;      /* [parts of k][columns] */
};
DEVICE wide_rows wide_rows_of(const cuda_packed_args &a, int64_t pass) {
    const int64_t values = a.k * a.columns * 2, totals = a.k / 16 * a.columns * 4;
    char *at = (char *)a.made + pass * CUDA_WIDE_ROWS(a.k, a.columns);
    return {(four_words *)at, (float *)(at + values), (float *)(at + values + totals)};
}
#endif
