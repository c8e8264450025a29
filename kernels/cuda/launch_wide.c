/* launch_wide.c - products of many tokens by matrices in tiles (wide.cu). */
#include <string.h>
#include "cuda/launch.h"

static int columns_of_token(const cuda_packed_args *p) { return p->x_type == GM_T_BF16 || p->rounds ? 1 : 2; }
bool cuda_wide_memory(gm_recorder *r, cuda_packed_args *p) {
    const int64_t columns = p->tokens * 2, most = columns > WIDE_EACH ? 2 * WIDE_EACH : WIDE_EACH;
    if (p->x_type == GM_T_BF16 || p->tokens <= 1 || !cuda_tile_values(p->weight.format.format)) return true;
    p->made = r->workspace(
        r, (size_t)(p->rounds ? p->tokens * p->k * 2 : blocks_of(columns, most) * CUDA_WIDE_ROWS(p->k, most)));
    return p->made != NULL;
}
static cuda_kernel rows_kernel(int format) {
    switch (format) {
    case GM_QUANT_f16: return CUDA_tiled_rows_f16;
    case GM_QUANT_q4_0: return CUDA_tiled_rows_q4_0;
    case GM_QUANT_q8_0: return CUDA_tiled_rows_q8_0;
    case GM_QUANT_q4_k: return CUDA_tiled_rows_q4_k;
    case GM_QUANT_q6_k: return CUDA_tiled_rows_q6_k;
    case GM_QUANT_mxfp4: return CUDA_tiled_rows_mxfp4;
    default: return CUDA_tiled_rows_affine4;
    }
}
/* The kernels of a shape come in the order of those of tiled.cu. */
typedef struct {
    int64_t slots, columns;
    cuda_kernel first;
} wide_shape;
static size_t wide_memory(const cuda_packed_args *p, const wide_shape *s) {
    const cuda_format *f = &p->weight.format;
    const int64_t bytes = TILED_ROWS * (256 / f->values) * f->bytes, tile = cuda_tile_values(f->format);
    return (size_t)(WIDE_STAGES(bytes, tile, s->slots, s->columns) * WIDE_STAGE(bytes, tile, s->slots, s->columns) +
                    WIDE_RESULTS(s->slots, s->columns));
}
/* Of one matrix, or a gate and an up; NULL: there is not the memory for it. */
static const wide_shape *shape_of(const cuda_packed_args *p) {
    static const wide_shape shapes[2][2] = {
        {{WIDE_FEW, 32, CUDA_wide_few_32_f16}, {WIDE_FEW, 64, CUDA_wide_few_64_f16}},
        {{WIDE_MANY(32), 32, CUDA_wide_many_32_f16}, {WIDE_MANY(64), 64, CUDA_wide_many_64_f16}}};
    const int64_t units = p->rows / TILED_ROWS * (p->glu == CUDA_NO_GLU ? 1 : 2);
    const wide_shape *shape = shapes[units > WIDE_FEW * TILED_FILL];
    const size_t most = cuda_block_memory();
    if (p->tokens * columns_of_token(p) > WIDE_EACH && wide_memory(p, &shape[1]) <= most) shape++;
    return wide_memory(p, shape) <= most ? shape : NULL;
}
/* Number i of its matrices alone; false: there is none. */
static bool part_of(const cuda_packed_args *p, int i, cuda_packed_args *part) {
    *part = *p;
    memset(part->more, 0, sizeof part->more);
    if (i == 0) return true;
    if (i > CUDA_MORE || !p->more[i - 1].rows) return false;
    part->out = p->more[i - 1].out;
    part->weight = p->more[i - 1].weight;
    part->rows = p->more[i - 1].rows;
    return true;
}
bool cuda_start_wide(const cuda_packed_args *all, int number) {
    const int64_t each = columns_of_token(all);
    const bool rounds = all->rounds;
    cuda_packed_args p;
    int32_t columns = 0; /* that x was made for */
    if (all->x_type == GM_T_BF16 ? !is_aligned(all->x, 16) : !all->made) return false;
    for (int i = 0; part_of(all, i, &p); i++)
        if (!shape_of(&p)) return false;
    if (rounds) cuda_start(CUDA_tiled_rows_bf16, all->tokens, TILED_THREADS, cuda_norm_memory(all), all);
    for (int i = 0; part_of(all, i, &p); i++) {
        const wide_shape *shape = shape_of(&p);
        const int64_t units = p.rows / TILED_ROWS;
        p.columns = (int32_t)shape->columns;
        p.pass = (int32_t)(shape->columns / each);
        if (rounds) p.x = p.made;
        else if (each == 2 && p.columns != columns)
            cuda_start(rows_kernel(p.weight.format.format), p.tokens, TILED_THREADS, cuda_norm_memory(&p), &p);
        columns = p.columns;
        const int64_t blocks[3] = {units < TILED_FILL ? units : TILED_FILL, blocks_of(p.tokens, p.pass), 1};
        cuda_start_grid((cuda_kernel)(shape->first + number), blocks, TILED_THREADS, wide_memory(&p, shape), &p);
    }
    return true;
}
