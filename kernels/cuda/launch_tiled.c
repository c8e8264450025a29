/* launch_tiled.c - products of matrices in tiles by one token (tiled.cu): which kernel, and how a block's memory is
 * cut. */
#include <string.h>
#include "cuda/launch.h"

/* Bytes of a stage of more than one tile, and of a block's rings, at most: more keep x waiting, and no product shorter.
 * Rows in place of tiles come by pieces, so that more have to be on their way. */
#define LONG_STAGE 4352
#define AHEAD 65536
#define AHEAD_OF_ROWS 131072
#define EARLY 32768 /* of AHEAD before x is there, which comes behind them */

/* Number of a format in the orders of kernels. */
static int tiled_number(const cuda_format *f) {
    const int group = f->values == 32 ? 0 : f->values == 64 ? 3 : 6;
    switch (f->format) {
    case GM_QUANT_f16: return 0;
    case GM_QUANT_bf16: return CUDA_tiled_one_bf16 - CUDA_tiled_one_f16;
    case GM_QUANT_q4_0: return CUDA_tiled_one_q4_0 - CUDA_tiled_one_f16;
    case GM_QUANT_q8_0: return CUDA_tiled_one_q8_0 - CUDA_tiled_one_f16;
    case GM_QUANT_q4_k: return CUDA_tiled_one_q4_k - CUDA_tiled_one_f16;
    case GM_QUANT_q6_k: return CUDA_tiled_one_q6_k - CUDA_tiled_one_f16;
    case GM_QUANT_mxfp4: return CUDA_tiled_one_mxfp4 - CUDA_tiled_one_f16;
    default: return CUDA_tiled_one_affine4_32_f16 - CUDA_tiled_one_f16 + group + float_index(f->scale_type);
    }
}
bool cuda_makes_tiles(const cuda_matrix *w, int64_t rows, int64_t k) {
    if (w->format.format != GM_QUANT_f16 && w->format.format != GM_QUANT_bf16) return w->format.tile != 0;
    return rows % TILED_ROWS == 0 && k % cuda_tile_values(w->format.format) == 0 && is_aligned(w->data, 16);
}
static int64_t units_of(const cuda_packed_args *p) {
    return (p->rows + p->more[0].rows + p->more[1].rows) / TILED_ROWS;
}
/* Where a matrix would begin, if so many sixteens of rows of its format came first. */
static const char *begin_of(const cuda_matrix *w, int64_t k, int64_t before) {
    const uintptr_t bytes = (uintptr_t)(before * TILED_ROWS * (k / w->format.values * w->format.bytes));
    return (const char *)((uintptr_t)w->data - bytes);
}
static void share_units(cuda_packed_args *p, int64_t units, int64_t blocks) {
    const bool pairs = p->glu != CUDA_NO_GLU;
    const int64_t first = p->rows / TILED_ROWS, second = first + p->more[0].rows / TILED_ROWS;
    p->units = (int32_t)(units / blocks);
    p->longer = (int32_t)(units % blocks);
    p->tiles = (int32_t)(p->k / cuda_tile_values(p->weight.format.format));
    p->ends[0] = pairs ? -1 : (int32_t)first;
    p->ends[1] = pairs ? -1 : (int32_t)second;
    p->data[0] = p->weight.data;
    p->data[1] = pairs ? p->up.data : p->more[0].rows ? begin_of(&p->more[0].weight, p->k, first) : NULL;
    p->third = p->more[1].rows ? begin_of(&p->more[1].weight, p->k, second) : NULL;
}
/* Cuts the memory of a block for a token of so many columns. Bytes that it takes; 0: there are too few. */
static size_t cut_memory(cuda_packed_args *p, int64_t columns) {
    const cuda_format *f = &p->weight.format;
    const int64_t values = cuda_tile_values(f->format), tile = TILED_ROWS * (values / f->values) * f->bytes;
    const int64_t part = blocks_of(p->k / values, TILED_PARTS), matrices = p->glu == CUDA_NO_GLU ? 1 : 2;
    const bool in_rows = f->format <= GM_QUANT_bf16; /* without totals of x */
    const int64_t ahead = in_rows ? AHEAD_OF_ROWS : AHEAD, longest = LONG_STAGE < tile ? 1 : LONG_STAGE / tile;
    const int64_t products = (p->units + (p->longer > 0)) * matrices, kept = TILED_SUMS / matrices * matrices;
    p->stage = (int32_t)blocks_of(part, blocks_of(part, longest));
    p->kept = (int32_t)(products < kept ? products : kept);
    p->whole = p->stage == part && p->k % (values * TILED_PARTS) == 0 && part * values <= CUDA_KEPT_X ? p->stage : 0;
    const int64_t results = p->kept * TILED_PARTS * TILED_ROWS + TILED_PARTS * columns;
    const int64_t x = p->k * columns * 2 + (in_rows ? 0 : p->k / 16 * columns * 4);
    const int64_t fixed = TILED_ARRIVALS + results * 4 + x + (int64_t)cuda_norm_memory(p),
                  ring = TILED_PARTS * p->stage * tile;
    int64_t stages = ((int64_t)cuda_block_memory() - fixed) / ring;
    if (stages > 2 && stages > ahead / ring) stages = ahead / ring < 2 ? 2 : ahead / ring;
    if (stages > TILED_STAGES) stages = TILED_STAGES;
    p->stages = (int32_t)stages;
    p->early = (int32_t)(EARLY < ring ? 1 : EARLY / ring < stages ? EARLY / ring : stages);
    return stages < 2 ? 0 : (size_t)(fixed + stages * ring);
}
/* bfloat16 rows are one column each, float32 rows two. What does not fit goes as several tokens do, and these, where
 * they do not fit, one by one: the bits are the same. */
bool cuda_start_tiled(cuda_packed_args *p) {
    const bool rounded = p->x_type == GM_T_BF16 || p->rounds, is_bf16 = p->weight.format.format == GM_QUANT_bf16;
    const int64_t units = units_of(p), blocks = units < TILED_FILL ? units : TILED_FILL;
    const int number = tiled_number(&p->weight.format);
    if (rounded != is_bf16 || !is_aligned(p->x, 16) || !is_aligned(p->norm, 16) ||
        !cuda_makes_tiles(&p->weight, p->rows, p->k))
        return false;
    if (p->glu != CUDA_NO_GLU && (memcmp(&p->weight.format, &p->up.format, sizeof p->up.format) != 0 ||
                                  !cuda_makes_tiles(&p->up, p->rows, p->k)))
        return false;
    share_units(p, units, blocks);
    const size_t memory = cut_memory(p, rounded ? 1 : 2);
    if ((p->tokens > 1 || !memory) && cuda_start_several(p, number)) return true;
    if (!memory) return false;
    const int64_t grid[3] = {blocks, p->tokens, 1};
    cuda_start_grid((cuda_kernel)(CUDA_tiled_one_f16 + number), grid, TILED_THREADS, memory, p);
    return true;
}

/* ---- two formats: as many blocks for each as make the last of all end soonest, and none without work ---- */
static bool makes_two(const cuda_packed_args *p, int format) {
    return p->weight.format.format == format && p->tokens == 1 && is_aligned(p->x, 16) && is_aligned(p->norm, 16) &&
           p->x_type == GM_T_F32 && !p->rounds && cuda_makes_tiles(&p->weight, p->rows, p->k);
}
/* Blocks of the first, of so many at most of both. */
static int64_t split_of(const cuda_packed_args *p, int64_t most) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t blocks = 1; blocks < most && blocks <= units_of(p); blocks++) {
        const int64_t first = blocks_of(units_of(p), blocks) * p[0].weight.format.bytes,
                      second = blocks_of(units_of(p + 1), most - blocks) * p[1].weight.format.bytes;
        const int64_t longest = first > second ? first : second;
        if (longest < least) best = blocks, least = longest;
    }
    return best;
}
bool cuda_start_two(const cuda_packed_args *first, const cuda_packed_args *second) {
    const bool turned = first->weight.format.format == GM_QUANT_q6_k;
    cuda_two_products_args p = {.products = {turned ? *second : *first, turned ? *first : *second}};
    size_t memory = 0;
    if (!makes_two(p.products, GM_QUANT_q4_k) || !makes_two(p.products + 1, GM_QUANT_q6_k)) return false;
    const int64_t units = units_of(p.products) + units_of(p.products + 1),
                  split = split_of(p.products, units < TILED_FILL ? units : TILED_FILL),
                  left = (units < TILED_FILL ? units : TILED_FILL) - split,
                  others = left < units_of(p.products + 1) ? left : units_of(p.products + 1);
    p.blocks = (int32_t)split;
    for (int i = 0; i < 2; i++) {
        share_units(p.products + i, units_of(p.products + i), i ? others : split);
        const size_t each = cut_memory(p.products + i, 2);
        if (!each) return false;
        memory = each > memory ? each : memory;
    }
    cuda_start(CUDA_tiled_two_q4_k_q6_k, split + others, TILED_THREADS, memory, &p);
    return true;
}

/* ---- mixtures of experts: all blocks of a card for few pairs, one for each of many ---- */
static int64_t expert_blocks(const cuda_packed_args *p) {
    const int64_t units = p->rows / TILED_ROWS, each = TILED_FILL / p->tokens;
    return each < 1 ? 1 : each < units ? each : units;
}
static size_t expert_memory(cuda_packed_args *p) {
    share_units(p, p->rows / TILED_ROWS, expert_blocks(p));
    return cut_memory(p, 2);
}
bool cuda_fits_experts(cuda_packed_args *p) {
    return p->weight.format.tile && is_aligned(p->x, 16) &&
           (p->glu == CUDA_NO_GLU || memcmp(&p->weight.format, &p->up.format, sizeof p->up.format) == 0) &&
           expert_memory(p) > 0;
}
void cuda_start_tiled_experts(const cuda_packed_args *p) {
    cuda_packed_args own = *p;
    const size_t memory = expert_memory(&own);
    const cuda_kernel kernel = (cuda_kernel)(CUDA_expert_tiled_q4_0 + tiled_number(&p->weight.format) -
                                             (CUDA_tiled_one_q4_0 - CUDA_tiled_one_f16));
    cuda_start(kernel, p->tokens * expert_blocks(p), TILED_THREADS, memory, &own);
}
