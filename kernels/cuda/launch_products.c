/* launch_products.c - products of matrices. */
#include <string.h>
#include "cuda/launch.h"

#define TILE 128
#define HALVES_SHARED (2 * 3 * TILE * (32 + 8) * 2)                    /* product.cu: two operands, three stages */
#define WGMMA_SHARED(columns) (4 * (TILE + (columns)) * 64 * 2 + 1024) /* four stages, and what aligns them */
#define MANY_TILES 264 /* of 256 columns, two for each processor of a large card */
#define LEAST_K 128    /* of a part of a product that is cut along k; a multiple of a kernel's step */

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
    if (!cuda_has_wgmma()) {
        cuda_start(half ? CUDA_product_f16 : CUDA_product_bf16, tiles, CUDA_THREADS, HALVES_SHARED, p);
    } else if (wide_tiles >= MANY_TILES) {
        const cuda_kernel first = half ? CUDA_product_f16_256_kk : CUDA_product_bf16_256_kk;
        cuda_start((cuda_kernel)(first + 2 * x + w), wide_tiles, CUDA_THREADS, WGMMA_SHARED(2 * TILE), p);
    } else {
        const cuda_kernel first = half ? CUDA_product_f16_128_kk : CUDA_product_bf16_128_kk;
        cuda_start((cuda_kernel)(first + 2 * x + w), tiles, CUDA_THREADS, WGMMA_SHARED(TILE), p);
    }
}
void cuda_start_product(const cuda_product_args *p) {
    const bool halves = p->type == GM_T_F16 || p->type == GM_T_BF16;
    const int64_t tiles = blocks_of(p->rows, TILE) * blocks_of(p->columns, TILE) * p->batch.count;
    int x, w;
    if (halves && lies(p, 8, &x, &w) && (!x || cuda_has_wgmma())) {
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

/* ---- long sums of few elements, as gradients of weights are: a tile or two would be all the work of a large card.
 * They are cut along k, by their sizes alone, and the sums of the parts are added in order. ---- */
typedef struct {
    gm_product_args a;
    void *workspace; /* of cuBLASLt; NULL: own kernels make it */
    float *partial;  /* NULL: uncut */
    int64_t part;    /* of k */
} product_job;

/* k of a part; 0: uncut. */
static int64_t part_of(const cuda_product_args *p) {
    const int64_t tiles = blocks_of(p->rows, TILE) * blocks_of(p->columns, TILE);
    const bool plain = p->batch.count == 1 && !p->add && p->out_column == 1 && p->out_row == p->columns;
    if (p->type != GM_T_F32 || !plain || tiles == 0 || 2 * tiles > MANY_TILES || p->k < 4 * LEAST_K) return 0;
    const int64_t each = blocks_of(p->k, MANY_TILES / tiles);
    return blocks_of(each, LEAST_K) * LEAST_K;
}
static void start_parts(const product_job *job, cuda_product_args p) {
    const int64_t whole = p.k / job->part, rest = p.k % job->part, items = p.rows * p.columns;
    cuda_reduce_args sum = {.out = p.out, .in = job->partial, .op = GM_R_SUM, .in_type = GM_T_F32, .parts = 1};
    p.out = job->partial;
    p.batch = (cuda_shape){.count = whole, .ndim = 1, .shape = {whole}};
    p.out_steps.at[0] = items;
    p.x_steps.at[0] = job->part * p.x_k;
    p.w_steps.at[0] = job->part * p.w_k;
    p.k = job->part;
    cuda_start_product(&p);
    p.out = job->partial + whole * items;
    p.x = (const float *)p.x + whole * p.x_steps.at[0];
    p.w = (const float *)p.w + whole * p.w_steps.at[0];
    p.batch.count = p.batch.shape[0] = 1;
    p.k = rest;
    if (rest) cuda_start_product(&p);
    sum.out_type = GM_T_F32;
    sum.kept = (cuda_shape){.count = items, .ndim = 1, .shape = {items}};
    sum.kept_steps.at[0] = 1;
    sum.reduced.ndim = 1;
    sum.reduced.count = sum.reduced.shape[0] = sum.part = whole + (rest > 0);
    sum.reduced_steps.at[0] = items;
    const bool wide = items % 4 == 0;
    cuda_start(wide ? CUDA_reduce_wide_sum_f32 : CUDA_reduce_columns_sum_f32, blocks_of(items, wide ? 128 : 32),
               CUDA_THREADS, 0, &sum);
}

/* Matrices times one and the same are one matrix of all their rows, where these are as far from one another. */
static bool follows(int64_t rows, int64_t row_step, int64_t matrix_step) {
    return rows == 1 || matrix_step == rows * row_step;
}
static void merge_rows(cuda_product_args *p) {
    int only = 0;
    for (int d = 0; d < p->batch.ndim; d++)
        if (p->batch.shape[d] == p->batch.count) only = d;
    const int64_t out = p->out_steps.at[only], x = p->x_steps.at[only], add = p->add_steps.at[only];
    if (p->batch.count == 1 || p->batch.shape[only] != p->batch.count || p->w_steps.at[only] != 0 ||
        !follows(p->rows, p->out_row, out) || !follows(p->rows, p->x_row, x) ||
        (p->add && !follows(p->rows, p->add_row, add)))
        return;
    if (p->rows == 1) {
        p->out_row = out;
        p->x_row = x;
        p->add_row = add;
    }
    p->rows *= p->batch.count;
    p->batch = (cuda_shape){.count = 1, .ndim = 1, .shape = {1}};
    p->out_steps = p->x_steps = p->w_steps = p->add_steps = (cuda_strides){{0}};
}
/* False where there are too many dimensions. */
static bool batch_of(const gm_product_args *a, int64_t matrices, cuda_product_args *p) {
    if (a->ndim > CUDA_DIMS) return false;
    p->batch.ndim = a->ndim ? a->ndim : 1;
    p->batch.shape[0] = 1;
    p->batch.count = matrices;
    for (int d = 0; d < a->ndim; d++) {
        p->batch.shape[d] = a->shape[d];
        p->out_steps.at[d] = a->out_strides[d];
        p->x_steps.at[d] = a->x_strides[d];
        p->w_steps.at[d] = a->w_strides[d];
        if (a->add) p->add_steps.at[d] = a->add_strides[d];
    }
    merge_rows(p);
    return true;
}
static void launch_product(const void *args, int64_t begin, int64_t end) {
    const product_job *job = args;
    const gm_product_args *a = &job->a;
    cuda_product_args p = product_of(a);
    (void)begin;
    if (a->type == GM_T_F64) {
        cuda_refuse("a product of float64");
        return;
    }
    if (!batch_of(a, end, &p) || end == 0 || a->rows == 0 || a->columns == 0) return;
    if (job->partial) start_parts(job, p);
    else if (!blaslt_product(&p, 1, job->workspace)) cuda_start_product(&p);
}
bool cuda_product(gm_recorder *r, const gm_product_args *a, int64_t n) {
    product_job job = {.a = *a};
    cuda_product_args p = product_of(a);
    if (!batch_of(a, n, &p)) return r->lack(r, MANY_DIMENSIONS);
    const size_t bytes = blaslt_workspace(&p);
    job.part = bytes ? 0 : part_of(&p);
    const int64_t parts = job.part ? blocks_of(p.k, job.part) : 0;
    if (bytes && !(job.workspace = r->workspace(r, bytes))) return false;
    if (parts && !(job.partial = r->workspace(r, (size_t)(parts * p.rows * p.columns) * sizeof(float)))) return false;
    return r->launch(r, launch_product, &job, sizeof job, n, 0, 0);
}

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
    if (end > 0 && p.rows > 0 && p.columns > 0) cuda_start_product(&p);
}
CUDA_CONTRACT(gather_product)
