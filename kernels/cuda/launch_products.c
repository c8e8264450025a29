/* launch_products.c - products of matrices. */
#include <string.h>
#include "cuda/launch.h"

#define TILE 128
#define HALVES_SHARED (2 * 3 * TILE * (32 + 8) * 2)                    /* product.cu: two operands, three stages */
#define GROUP_SHARED(columns) (4 * (TILE + (columns)) * 64 * 2 + 1024) /* four stages, and what aligns them */
#define MANY_TILES 264 /* of 256 columns, two for each processor of a large card */

/* Whether lines of an operand may be read 16 bytes at a time. */
static bool is_wide(const void *p, int64_t step, int64_t matrix, const cuda_strides *batch, int ndim, int64_t each) {
    bool wide = is_aligned(p, 16) && step % each == 0 && matrix % each == 0;
    for (int d = 0; d < ndim; d++) wide = wide && batch->at[d] % each == 0;
    return wide;
}
/* What is side by side in both operands: 0 along k, 1 along lines; false where neither is, or not for 16 bytes. */
static bool lies(const cuda_product_args *p, int64_t each, int *x, int *w) {
    const int n = p->batch.ndim;
    *x = p->x_k != 1;
    *w = p->w_k != 1;
    return (p->x_k == 1 || p->x_row == 1) && (p->w_k == 1 || p->w_column == 1) &&
           is_wide(p->x, *x ? p->x_k : p->x_row, p->x_matrix, &p->x_steps, n, each) &&
           is_wide(p->w, *w ? p->w_k : p->w_column, p->w_matrix, &p->w_steps, n, each);
}

static void start_halves(const cuda_product_args *p, int x, int w) {
    const bool half = p->type == GM_T_F16;
    const int64_t down = blocks_of(p->rows, TILE) * p->batch.count, tiles = down * blocks_of(p->columns, TILE);
    const int64_t wide_tiles = down * blocks_of(p->columns, 2 * TILE);
    if (!cuda_has_group_mma()) {
        cuda_start(half ? CUDA_product_f16 : CUDA_product_bf16, tiles, CUDA_THREADS, HALVES_SHARED, p);
    } else if (wide_tiles >= MANY_TILES) {
        const cuda_kernel first = half ? CUDA_product_f16_256_kk : CUDA_product_bf16_256_kk;
        cuda_start((cuda_kernel)(first + 2 * x + w), wide_tiles, CUDA_THREADS, GROUP_SHARED(2 * TILE), p);
    } else {
        const cuda_kernel first = half ? CUDA_product_f16_128_kk : CUDA_product_bf16_128_kk;
        cuda_start((cuda_kernel)(first + 2 * x + w), tiles, CUDA_THREADS, GROUP_SHARED(TILE), p);
    }
}
static void start_product(const cuda_product_args *p) {
    const bool halves = p->type == GM_T_F16 || p->type == GM_T_BF16;
    const int64_t tiles = blocks_of(p->rows, TILE) * blocks_of(p->columns, TILE) * p->batch.count;
    int x, w;
    if (halves && lies(p, 8, &x, &w) && (!x || cuda_has_group_mma())) {
        start_halves(p, x, w);
    } else if (p->type == GM_T_F32) {
        const bool wide = lies(p, 4, &x, &w) && (x ? p->rows : p->k) % 4 == 0 && (w ? p->columns : p->k) % 4 == 0;
        cuda_start(wide ? (cuda_kernel)(CUDA_product_f32_kk + 2 * x + w) : CUDA_product_f32, tiles, CUDA_THREADS, 0, p);
    } else {
        cuda_start(CUDA_product_any, blocks_of(p->rows * p->columns * p->batch.count, CUDA_THREADS), CUDA_THREADS, 0,
                   p);
    }
}

static cuda_product_args product_of(const gm_product_args *a) {
    return (cuda_product_args){.out = a->out,
                               .x = a->x,
                               .w = a->w,
                               .add = a->add,
                               .type = a->type,
                               .rows = a->rows,
                               .columns = a->columns,
                               .k = a->k,
                               .out_row = a->out_row,
                               .out_column = a->out_column,
                               .x_row = a->x_row,
                               .x_k = a->x_k,
                               .w_k = a->w_k,
                               .w_column = a->w_column,
                               .add_row = a->add_row,
                               .add_column = a->add_column,
                               .alpha = a->alpha,
                               .beta = a->beta};
}

static void launch_product(const void *args, int64_t begin, int64_t end) {
    const gm_product_args *a = args;
    cuda_product_args p = product_of(a);
    (void)begin;
    if (a->type == GM_T_F64) {
        cuda_refuse("a product of float64");
        return;
    }
    if (a->ndim > CUDA_DIMS) {
        cuda_refuse("a product of more than 10 dimensions");
        return;
    }
    p.batch.ndim = a->ndim ? a->ndim : 1;
    p.batch.shape[0] = 1;
    p.batch.count = end;
    for (int d = 0; d < a->ndim; d++) {
        p.batch.shape[d] = a->shape[d];
        p.out_steps.at[d] = a->out_strides[d];
        p.x_steps.at[d] = a->x_strides[d];
        p.w_steps.at[d] = a->w_strides[d];
        if (a->add) p.add_steps.at[d] = a->add_strides[d];
    }
    if (end > 0 && a->rows > 0 && a->columns > 0) start_product(&p);
}
CUDA_CONTRACT(product)

static void launch_gather_product(const void *args, int64_t begin, int64_t end) {
    const gm_gather_product_args *a = args;
    cuda_product_args p = product_of(&a->product);
    (void)begin;
    p.batch.ndim = 1;
    p.batch.shape[0] = p.batch.count = end;
    p.out_steps.at[0] = a->product.rows * a->product.out_row; /* rows of out are of all items */
    p.x_index = a->x_index;
    p.w_index = a->w_index;
    p.x_matrices = a->x_matrices;
    p.w_matrices = a->w_matrices;
    p.x_matrix = a->x_matrix;
    p.w_matrix = a->w_matrix;
    if (end > 0 && p.rows > 0 && p.columns > 0) start_product(&p);
}
CUDA_CONTRACT(gather_product)
