/* strides.h - dimensions that several operands are walked over together. */
#ifndef GOMLX_KERNELS_STRIDES_H
#define GOMLX_KERNELS_STRIDES_H
#include <stdbool.h>
#include <stdint.h>

/* Drops dimensions of size 1 and merges neighbours where the strides of all operands allow it: returns how many are
 * left. dims and each of steps have capacity for ndim, and must not alias the shape and the strides. */
static inline int merge_dimensions(int ndim, const int64_t *shape, int operands, const int64_t *const *strides,
                                   int64_t *dims, int64_t *const *steps) {
    int n = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 1) continue;
        bool merge = n > 0;
        for (int k = 0; k < operands && merge; k++) merge = steps[k][n - 1] == strides[k][i] * shape[i];
        if (merge) dims[n - 1] *= shape[i];
        else dims[n++] = shape[i];
        for (int k = 0; k < operands; k++) steps[k][n - 1] = strides[k][i];
    }
    return n;
}
#endif
