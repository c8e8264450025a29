/* grains.h - how much of a range is one piece: some microseconds of work, by what an index of the range costs. */
#ifndef GOMLX_KERNELS_CPU_GRAINS_H
#define GOMLX_KERNELS_CPU_GRAINS_H
#include "kernels.h"

#define GRAIN 16384       /* elements of one piece of elementwise work */
#define GRAIN_LIGHT 32768 /* where memory is the limit */

/* work: what one index costs, in elements. */
static inline int64_t grain_for(int64_t work) { return work >= GRAIN ? 1 : GRAIN / (work > 0 ? work : 1); }
static inline int64_t row_grain(int64_t dim) { return 1 + 8192 / (dim + 1); }
/* Outputs of reductions, of which one costs `outputs` of a piece: columns are read in wide strips of rows. */
static inline int64_t strip_grain(int64_t outputs, int n_kept, const int64_t *kept_shape, const int64_t *kept_strides) {
    const bool columns = n_kept > 0 && kept_strides[n_kept - 1] == 1;
    int64_t strip = columns ? kept_shape[n_kept - 1] / 2 : 0;
    strip = strip > 1024 ? 1024 : strip;
    return outputs > strip ? outputs : strip;
}
/* About log2(n) visits of each element. */
static inline int64_t sort_grain(int64_t length) { return length < GRAIN / 16 ? GRAIN / 16 / length : 1; }
/* Small matrices go many at a time. */
static inline int64_t matrices_grain(int64_t rows, int64_t cols) {
    return 1 + 20000 / (1 + rows * cols * (rows + cols));
}

int64_t unary_grain(gm_unary_op op); /* by the `work` of unary.def's row */
int64_t binary_grain(gm_binary_op op);
#endif
