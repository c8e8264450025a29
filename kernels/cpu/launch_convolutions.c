/* launch_convolutions.c - convolutions as products, whose rows the loop fetches from the image; those of one tap as
 * products of matrices; and those of groups of a few channels. None of it changes a bit of the result. */
#include <string.h>
#include "cpu/launch.h"

static int64_t taps_of(const gm_convolution_args *c) { return c->taps[0] * c->taps[1] * c->taps[2]; }
static int64_t positions_of(const gm_convolution_args *c) {
    return c->positions[0] * c->positions[1] * c->positions[2];
}

static gm_conv_args image_of(const gm_convolution_args *c) {
    gm_conv_args a = {.product = {.out = c->out, .x = c->x, .w = c->w, .type = c->type},
                      .channels = c->channels,
                      .filters = c->filters,
                      .image = c->image};
    memcpy(a.in, c->in, sizeof a.in);
    memcpy(a.out, c->positions, sizeof a.out);
    memcpy(a.taps, c->taps, sizeof a.taps);
    memcpy(a.stride, c->stride, sizeof a.stride);
    memcpy(a.low, c->low, sizeof a.low);
    memcpy(a.dilation, c->dilation, sizeof a.dilation);
    memcpy(a.spread, c->spread, sizeof a.spread);
    memcpy(a.steps, c->steps, sizeof a.steps);
    return a;
}

/* ---- groups of a few channels ---- */
/* Whether they are so small that filters of several groups are lanes. */
static bool are_small(const gm_kernels *kernels, const gm_convolution_args *c) {
    const int64_t taps = taps_of(c), filters = c->filters;
    return c->groups > 1 && c->type != GM_T_F64 && taps > 0 && taps <= GM_CONV_TAPS && filters <= kernels->lanes / 2 &&
           kernels->lanes % filters == 0 && c->channels > 0 && c->channels <= filters;
}

#define GROUP_RUN 64 /* positions side by side for which weights are near */

/* Weights as [taps][channels][filters] in float32. */
static bool launch_groups(gm_recorder *r, const gm_convolution_args *c, int64_t images) {
    const int64_t lanes = c->groups * c->filters, k = taps_of(c) * c->channels;
    const int64_t shape[2] = {lanes, k}, given[2] = {k, 1}, transposed[2] = {1, lanes};
    float *weights = r->workspace(r, (size_t)(lanes * k) * sizeof *weights);
    if (!weights || !launch_merged_copy(r, &(gm_copy_args){.out = weights,
                                                           .in = c->w,
                                                           .out_type = GM_T_F32,
                                                           .in_type = c->type,
                                                           .ndim = 2,
                                                           .shape = shape,
                                                           .out_strides = transposed,
                                                           .in_strides = given}))
        return false;
    r->fence(r);
    gm_conv_args a = image_of(c);
    a.product.w = weights;
    a.product.w_k = a.product.lanes = a.product.out_row = lanes;
    a.product.k = k;
    const int64_t positions = 1 + 4 * GRAIN / (lanes * k), line = a.out[2]; /* whole lines, or long runs of them */
    const int64_t grain = line <= GROUP_RUN       ? (positions + line - 1) / line * line
                          : positions < GROUP_RUN ? GROUP_RUN
                                                  : positions;
    return LAUNCH(r, conv_groups, &a, images * positions_of(c), grain, 0);
}

/* ---- products ---- */
/* Whether each position of out meets the same position of x alone. */
static bool is_pointwise(const gm_convolution_args *c) {
    for (int d = 0; d < 3; d++)
        if (c->taps[d] != 1 || c->stride[d] != 1 || c->spread[d] != 1 || c->low[d] != 0 || c->positions[d] != c->in[d])
            return false;
    return true;
}

/* Whether x's positions are rows side by side. */
static bool is_dense(const gm_convolution_args *c, int64_t images) {
    int64_t expected = c->groups * c->channels;
    for (int d = 2; d >= 0; expected *= c->in[d--])
        if (c->in[d] != 1 && c->steps[d] != expected) return false;
    return images == 1 || c->image == expected;
}

/* x's positions side by side, as a copy. NULL: no memory. */
static const void *dense_positions(gm_recorder *r, const gm_convolution_args *c, int64_t images) {
    const int64_t shape[5] = {images, c->in[0], c->in[1], c->in[2], c->groups * c->channels};
    const int64_t given[5] = {c->image, c->steps[0], c->steps[1], c->steps[2], 1};
    int64_t dense[5], size = 1;
    for (int d = 4; d >= 0; size *= shape[d--]) dense[d] = size;
    void *copy = r->workspace(r, (size_t)(size * type_bytes(c->type)));
    if (!copy || !launch_merged_copy(r, &(gm_copy_args){.out = copy,
                                                        .in = c->x,
                                                        .out_type = c->type,
                                                        .in_type = c->type,
                                                        .ndim = 5,
                                                        .shape = shape,
                                                        .out_strides = dense,
                                                        .in_strides = given}))
        return NULL;
    r->fence(r);
    return copy;
}

bool cpu_convolution(gm_recorder *r, const gm_convolution_args *c, int64_t n) {
    const int64_t k = taps_of(c) * c->channels, filters = c->filters, rows = n * positions_of(c);
    if (rows * c->groups * filters == 0) return true;
    if (are_small(r->kernels, c)) return launch_groups(r, c, n);
    int64_t *steps = r->arguments(r, 4 * sizeof *steps); /* from group to group */
    if (!steps) return false;
    memcpy(steps, (int64_t[]){c->groups, filters, c->channels, filters * k}, 4 * sizeof *steps);
    gm_product_args p = {.out = c->out,
                         .x = c->x,
                         .w = c->w,
                         .type = c->type,
                         .rows = rows,
                         .columns = filters,
                         .k = k,
                         .out_row = c->groups * filters,
                         .out_column = 1,
                         .x_row = c->groups * c->channels,
                         .x_k = 1,
                         .w_k = 1,
                         .w_column = k,
                         .ndim = c->groups > 1,
                         .shape = steps,
                         .out_strides = steps + 1,
                         .x_strides = steps + 2,
                         .w_strides = steps + 3};
    /* One filter is a matrix times a vector, which has an order of its own: the shapes' choice, not that of x's layout.
     */
    const bool pointwise = is_pointwise(c), column = pointwise && filters == 1, dense = is_dense(c, n);
    if (column && !dense && !(p.x = dense_positions(r, c, n))) return false;
    if (k == 0 || column || (pointwise && dense)) return cpu_product(r, &p, c->groups);
    gm_conv_args a = image_of(c);
    a.product = gemm_of(&p);
    return launch_image_product(r, &a);
}
