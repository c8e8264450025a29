/* walk.c - the dimensions of operands, merged as kernels take them. */
#include <string.h>
#include "cuda/launch.h"
#include "strides.h"

bool walk_of(cuda_walk *w, int ndim, const int64_t *shape, int operands, const int64_t *const *strides) {
    int64_t dims[CUDA_WALK_DIMS], merged[CUDA_OPERANDS][CUDA_WALK_DIMS];
    int64_t *steps[CUDA_OPERANDS];
    for (int k = 0; k < operands; k++) steps[k] = merged[k];
    memset(w, 0, sizeof *w);
    for (int d = 0; d < ndim; d++)
        if (shape[d] == 0) return false;
    const int n = merge_dimensions(ndim, shape, operands, strides, dims, steps);
    int inner = n; /* dimensions of the kernel: at most CUDA_DIMS, of no more elements than 32 bits count */
    int64_t count = 1;
    for (int d = n - 1; d >= 0; d--) {
        if (n - d > CUDA_DIMS || (count > UINT32_MAX / dims[d] && d < n - 1)) {
            inner = n - 1 - d;
            break;
        }
        count *= dims[d];
    }
    w->outer_ndim = n - inner;
    w->outer = 1;
    for (int d = 0; d < w->outer_ndim; d++) {
        w->outer *= w->outer_shape[d] = dims[d];
        for (int k = 0; k < operands; k++) w->outer_steps[k][d] = merged[k][d];
    }
    w->shape.ndim = inner ? inner : 1;
    w->shape.shape[0] = w->shape.count = 1;
    for (int d = w->outer_ndim; d < n; d++) {
        w->shape.count *= w->shape.shape[d - w->outer_ndim] = dims[d];
        for (int k = 0; k < operands; k++) w->steps[k].at[d - w->outer_ndim] = merged[k][d];
    }
    return true;
}

void walk_outer(const cuda_walk *w, int operands, int64_t index, int64_t *offsets) {
    for (int k = 0; k < operands; k++) offsets[k] = 0;
    for (int d = w->outer_ndim - 1; d >= 0; d--) {
        const int64_t at = index % w->outer_shape[d];
        index /= w->outer_shape[d];
        for (int k = 0; k < operands; k++) offsets[k] += at * w->outer_steps[k][d];
    }
}

bool walk_fits(int ndim, const int64_t *shape, const int64_t *strides) {
    cuda_walk w;
    return !walk_of(&w, ndim, shape, 1, &strides) || w.outer_ndim == 0;
}
