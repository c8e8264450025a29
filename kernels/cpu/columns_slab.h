/* columns_slab.h - where the slab of matmul_columns has what columns_unpack puts into it. */
#ifndef GOMLX_COLUMNS_SLAB_H
#define GOMLX_COLUMNS_SLAB_H
#include "cpu/gemm_sizes.h"

/* Where the slab, panels [GM_GEMM_STEPS][GEMM_LANES], has a row and column. */
ALWAYS_INLINE float *column_place(float *slab, int64_t row, int64_t column) {
    return slab + (column / GEMM_LANES * GM_GEMM_STEPS + row) * GEMM_LANES + column % GEMM_LANES;
}
#endif
