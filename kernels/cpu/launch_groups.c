/* launch_groups.c - formats of files, MLX's quantised matrices, 8-bit floats. */
#include "cpu/launch.h"

/* ---- products ---- */
#define SMALL_PRODUCT 60000  /* multiply-adds below which sharing with another core costs more than it saves */
#define PIECE_PRODUCT 131072 /* of a piece, when one unit of the range has fewer */

/* Pieces of a range of n units with `work` multiply-adds each: enough to end together, long enough to be worth it. */
static int64_t piece(int64_t n, int64_t work) {
    const int64_t most = PIECE_PRODUCT / (work + 1), grain = n / 16 < most ? n / 16 : most;
    return n * work < SMALL_PRODUCT ? n : grain > 1 ? grain : 1;
}

static gm_group_matmul_args product_of(const gm_quantized_matmul_args *a, const float *x, int64_t items) {
    return (gm_group_matmul_args){.w = a->w,
                                  .x = x,
                                  .x_type = a->x_type,
                                  .x_count = a->x_count,
                                  .items = items,
                                  .tokens = a->tokens,
                                  .x_index = a->x_index,
                                  .matrix_index = a->matrix_index,
                                  .out = a->out,
                                  .out_type = a->out_type};
}

bool cpu_quantized_matmul(gm_recorder *r, const gm_quantized_matmul_args *a, int64_t n) {
    const gm_grouped *w = &a->w;
    const int64_t rows = a->x_count * a->tokens, blocks = (w->rows + GM_GROUP_ROWS - 1) / GM_GROUP_ROWS;
    const int64_t line = group_arranged(r->kernels->lanes, w->mode, w->bits, w->group, w->k);
    float *arranged = r->workspace(r, (size_t)(rows * line) * sizeof *arranged + 1);
    const gm_group_arrange_args arrange = {.out = arranged,
                                           .in = a->x,
                                           .in_type = a->x_type,
                                           .k = w->k,
                                           .mode = w->mode,
                                           .bits = w->bits,
                                           .group = w->group};
    if (!arranged || !LAUNCH(r, group_arrange, &arrange, rows, 1 + GRAIN / (w->k + 1), 0)) return false;
    r->fence(r);
    const gm_group_matmul_args product = product_of(a, arranged, n);
    return LAUNCH(r, group_matmul, &product, blocks, piece(blocks, GM_GROUP_ROWS * w->k * n * a->tokens), 0);
}

bool cpu_quantized_matmul_columns(gm_recorder *r, const gm_quantized_matmul_columns_args *a, int64_t n) {
    const int64_t k = a->w.k, tokens = n * a->tokens;
    const int64_t units = group_column_units(r->kernels->lanes, a->w.bits, k, tokens);
    const gm_group_matmul_columns_args product = product_of(a, a->x, n);
    return LAUNCH(r, group_matmul_columns, &product, units, piece(units, a->w.rows * (k * tokens / units + 1)), 0);
}
