/* launch_wide.c - products of many tokens by matrices in tiles (wide.cu). */
#include "cuda/launch.h"

static int columns_of_token(const cuda_packed_args *p) { return p->x_type == GM_T_BF16 ? 1 : 2; }
bool cuda_wide_memory(gm_recorder *r, cuda_packed_args *p) {
    const int64_t columns = p->tokens * 2, most = columns > WIDE_EACH ? 2 * WIDE_EACH : WIDE_EACH;
    if (columns_of_token(p) == 1 || p->tokens <= 1 || !cuda_tile_values(p->weight.format.format)) return true;
    p->made = r->workspace(r, (size_t)(blocks_of(columns, most) * CUDA_WIDE_ROWS(p->k, most)));
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
bool cuda_start_wide(cuda_packed_args *p, cuda_kernel tiled) {
    static const wide_shape shapes[2][2] = {
        {{WIDE_FEW, 32, CUDA_wide_few_32_f16}, {WIDE_FEW, 64, CUDA_wide_few_64_f16}},
        {{WIDE_MANY(32), 32, CUDA_wide_many_32_f16}, {WIDE_MANY(64), 64, CUDA_wide_many_64_f16}}};
    const int64_t each = columns_of_token(p), units = p->rows / TILED_ROWS;
    const wide_shape *shape = shapes[units * (p->glu == CUDA_NO_GLU ? 1 : 2) > WIDE_FEW * TILED_FILL];
    const size_t most = cuda_block_memory();
    if (p->tokens * each > WIDE_EACH && wide_memory(p, &shape[1]) <= most) shape++;
    if (wide_memory(p, shape) > most || (each == 1 ? !is_aligned(p->x, 16) : !p->made)) return false;
    p->columns = (int32_t)shape->columns;
    p->pass = (int32_t)(shape->columns / each);
    if (each == 2) cuda_start(rows_kernel(p->weight.format.format), p->tokens, TILED_THREADS, 0, p);
    const int64_t blocks[3] = {units < TILED_FILL ? units : TILED_FILL, blocks_of(p->tokens, p->pass), 1};
    cuda_start_grid((cuda_kernel)(shape->first + (tiled - CUDA_tiled_f16)), blocks, TILED_THREADS,
                    wide_memory(p, shape), p);
    return true;
}
