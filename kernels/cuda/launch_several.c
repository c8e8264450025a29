/* launch_several.c - products of several tokens by matrices in tiles (several.cu). */
#include "cuda/launch.h"

#define LONG_STAGE 131072 /* bytes of a stage of more than one tile, of all warps, at most */
#define EARLY 65536       /* of stages that are asked for before x is there, which comes behind them */

static int columns_of_token(const cuda_packed_args *p) { return p->x_type == GM_T_BF16 || p->rounds ? 1 : 2; }
bool cuda_several_memory(gm_recorder *r, cuda_packed_args *p) {
    const int64_t columns = blocks_of(p->tokens * columns_of_token(p), SEVERAL_MOST) * SEVERAL_MOST;
    if (p->x_type == GM_T_BF16 || !cuda_tile_values(p->weight.format.format)) return true;
    p->made = r->workspace(r, (size_t)CUDA_SEVERAL_ROWS(p->k, p->tokens * 2 <= 8 ? 8 : columns));
    return p->made != NULL;
}
static cuda_kernel rows_kernel(int format) {
    switch (format) {
    case GM_QUANT_f16: return CUDA_tiled_rows_f16;
    case GM_QUANT_bf16: return CUDA_tiled_rows_bf16;
    case GM_QUANT_q4_0: return CUDA_tiled_rows_q4_0;
    case GM_QUANT_q8_0: return CUDA_tiled_rows_q8_0;
    case GM_QUANT_q4_k: return CUDA_tiled_rows_q4_k;
    case GM_QUANT_q6_k: return CUDA_tiled_rows_q6_k;
    case GM_QUANT_mxfp4: return CUDA_tiled_rows_mxfp4;
    default: return CUDA_tiled_rows_affine4;
    }
}
/* Of each 32 along k, as several.cu has them. */
static int64_t totals_of(int format) {
    if (format == GM_QUANT_q6_k) return 2;
    return format == GM_QUANT_f16 || format == GM_QUANT_bf16 || format == GM_QUANT_mxfp4 ? 0 : 1;
}
static bool has_long_tiles(int format) { return cuda_tile_values(format) > SEVERAL_LONG; }
/* Cuts the memory of a block for so many columns of x. Bytes that it takes; 0: there are too few. */
static size_t cut_memory(cuda_packed_args *p, int64_t columns) {
    const cuda_format *f = &p->weight.format;
    const int64_t values = f->format <= GM_QUANT_bf16 ? 32 : cuda_tile_values(f->format),
                  at_once = values > SEVERAL_LONG ? 1 : 2;
    const int64_t tile = at_once * TILED_ROWS * (values / f->values) * f->bytes,
                  x = columns * (values * 2 + values / 32 * totals_of(f->format) * 4), each = TILED_PARTS * (tile + x);
    p->columns = (int32_t)columns;
    p->pass = (int32_t)(columns / columns_of_token(p));
    const int64_t fixed = TILED_ARRIVALS + at_once * TILED_PARTS * p->pass * TILED_ROWS * 4,
                  room = (int64_t)cuda_whole_memory() - fixed, most = room / 2 < LONG_STAGE ? room / 2 : LONG_STAGE;
    const int64_t part = blocks_of(p->k / values, TILED_PARTS), longest = each < most ? most / each : 1;
    p->stage = (int32_t)blocks_of(part, blocks_of(part, longest));
    const int64_t stage = p->stage * each, stages = room / stage < TILED_STAGES ? room / stage : TILED_STAGES;
    p->stages = (int32_t)stages;
    p->early = (int32_t)(EARLY < stage ? 1 : EARLY / stage < stages ? EARLY / stage : stages);
    return stages > 0 ? (size_t)(fixed + stages * stage) : 0;
}
/* Of a format, by its number in the kernels' orders; of most columns there are none of long tiles. */
static cuda_kernel several_kernel(int number, int64_t columns) {
    const int shorter = number - (number > CUDA_tiled_one_q6_k - CUDA_tiled_one_f16 ? 2 : 0);
    return (cuda_kernel)(columns == 8                  ? CUDA_several_8_f16 + number
                         : columns == SEVERAL_MOST / 2 ? CUDA_several_16_f16 + number
                                                       : CUDA_several_32_f16 + shorter);
}
bool cuda_start_several(const cuda_packed_args *given, int number) {
    cuda_packed_args p = *given;
    const int format = p.weight.format.format;
    const int64_t all = p.tokens * columns_of_token(&p),
                  units = (p.rows + p.more[0].rows + p.more[1].rows) / TILED_ROWS;
    int64_t columns = has_long_tiles(format) ? SEVERAL_MOST / 2 : SEVERAL_MOST;
    size_t memory = 0;
    if (p.x_type != GM_T_BF16 && !p.made) return false;
    while (columns > 8 && columns / 2 >= all) columns /= 2;
    while (!(memory = cut_memory(&p, columns)) && columns > 8) columns /= 2;
    if (!memory || (p.x_type != GM_T_BF16 && cuda_norm_memory(&p) > cuda_block_memory())) return false;
    if (p.x_type != GM_T_BF16) cuda_start(rows_kernel(format), p.tokens, TILED_THREADS, cuda_norm_memory(&p), &p);
    const int64_t blocks[3] = {units < TILED_FILL ? units : TILED_FILL, blocks_of(p.tokens, p.pass), 1};
    cuda_start_grid(several_kernel(number, columns), blocks, TILED_THREADS, memory, &p);
    return true;
}
