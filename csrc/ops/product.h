/* product.h - one launch of dense matrix products for every op that needs them. */
#ifndef GOMLX_OPS_PRODUCT_H
#define GOMLX_OPS_PRODUCT_H
#include "ops/ops.h"

/* out[r][l] = sum over k of x[r][k] * w[k][l], for every index of the batch; with add: alpha * that + beta * add.
 * All of one type, floating point or complex64 (that without add). Strides in elements; a stride of 0 repeats. */
typedef struct {
    gm_dtype type;
    void *out;
    const void *x, *w, *add;                   /* add NULL: none */
    int64_t rows, lanes, k;
    int64_t out_row, out_lane, x_row, x_k, w_lane, w_k, add_row, add_lane;
    int ndim;                                  /* of the batch */
    const int64_t *shape, *out_batch, *x_batch, *w_batch, *add_batch;
    float alpha, beta;
    const gm_conv_args *image;                 /* of a convolution, all but .product; x_row and x_k do not count */
} product;
/* Every element has the same bits whatever the batch and the layout of its operands. */
gm_status launch_product(gm_queue *q, const product *p);
#endif
