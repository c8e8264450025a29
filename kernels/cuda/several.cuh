/* several.cuh - x of products of several tokens (several.cu) in memory, pass after pass of them: columns in the order
 * of tiles, of bfloat16 for matrices of that, else of float16, their totals, and what each part of k multiplies its
 * sums by (tiled.cu makes them). */
#ifndef GOMLX_CUDA_SEVERAL_CUH
#define GOMLX_CUDA_SEVERAL_CUH
#include "tiles.cuh"

struct several_rows {
    four_words *values; /* [k / 32][columns][4 lanes] */
    float *totals;      /* [k / 32][TOTALS][columns] */
    float *scales;      /* [parts of k][columns] */
};
DEVICE several_rows several_rows_of(const cuda_packed_args &a, int64_t pass) {
    const int64_t values = a.k * a.columns * 2, totals = a.k / 16 * a.columns * 4;
    char *at = (char *)a.made + pass * CUDA_SEVERAL_ROWS(a.k, a.columns);
    return {(four_words *)at, (float *)(at + values), (float *)(at + values + totals)};
}
#endif
