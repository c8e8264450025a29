/* launch_rows.c - packed matrices: what form a matrix has, rows into it and out of it. */
#include "cuda/launch.h"

#define TILED_LONGEST (1 << 26) /* values of a row: sixteen such are less than 2^32 bytes */

static int64_t by_threads(int64_t n) { return blocks_of(n, CUDA_THREADS); }
static int dense_type(int format) {
    return format == GM_QUANT_f16 ? GM_T_F16 : format == GM_QUANT_bf16 ? GM_T_BF16 : GM_T_F32;
}
int cuda_tile_values(int format) {
    const gm_quant_info *f = &gm_quants[format];
    switch (format) {
    case GM_QUANT_f16:
    case GM_QUANT_bf16: return 64; /* in the block's memory alone */
    case GM_QUANT_q4_0:
    case GM_QUANT_q8_0:
    case GM_QUANT_mxfp4: return 64;
    case GM_QUANT_q4_k:
    case GM_QUANT_q6_k: return 256;
    default: return f->bits != 4 ? 0 : f->values < 64 ? 64 : f->values;
    }
}
/* Of rows as files have them. scale_type of dense formats: the type of their values. */
static cuda_format format_in_rows(int format) {
    const gm_quant_info *f = &gm_quants[format];
    const int type = f->bits ? dense_type(f->scale) : format <= GM_QUANT_bf16 ? dense_type(format) : 0;
    return (cuda_format){.format = format, .values = f->values, .bytes = f->bytes, .bits = f->bits, .scale_type = type};
}
cuda_format cuda_format_of(int format, int64_t rows, int64_t k) {
    cuda_format f = format_in_rows(format);
    const int tile = cuda_tile_values(format);
    if (tile && format > GM_QUANT_bf16 && rows % TILED_ROWS == 0 && k % tile == 0 && k <= TILED_LONGEST) f.tile = tile;
    return f;
}

static void launch_pack(const void *args, int64_t begin, int64_t end) {
    const gm_pack_args *a = args;
    cuda_pack_args p = {.pack = *a, .format = cuda_format_of(a->format, a->rows, a->k)};
    (void)begin;
    p.pack.rows = end;
    p.row_bytes = a->k / p.format.values * p.format.bytes;
    p.item = !a->scales && !p.format.tile && p.row_bytes % 16 == 0 && is_aligned(a->in, 16) && is_aligned(a->out, 16)
                 ? 16
                 : 1;
    cuda_start(CUDA_pack, by_threads(end * (p.row_bytes / p.item)), CUDA_THREADS, 0, &p);
    cuda_start(CUDA_after_pack, 1, 32, 0, &p);
}
bool cuda_pack(gm_recorder *r, const gm_pack_args *a, int64_t n) {
    gm_pack_args args = *a;
    if (a->row_map && !(args.row_map = r->constant(r, a->row_map, (size_t)n * sizeof *a->row_map))) return false;
    return r->launch(r, launch_pack, &args, sizeof args, n, 0, 0);
}

static void start_rows_out(const cuda_rows_out_args *p) {
    cuda_start(CUDA_rows_out, by_threads(p->rows * blocks_of(p->k, 8)), CUDA_THREADS, 0, p);
}
static void launch_dequantize(const void *args, int64_t begin, int64_t end) {
    const gm_dequantize_args *a = args;
    (void)begin;
    start_rows_out(&(cuda_rows_out_args){.out = a->out,
                                         .weight = a->in,
                                         .format = format_in_rows(a->format),
                                         .rows = end,
                                         .k = a->k,
                                         .out_type = GM_T_F32,
                                         .scale = 1});
}
CUDA_CONTRACT(dequantize)
void cuda_start_rounded_rows(void *out, const gm_matrix *w, int64_t first, int64_t rows) {
    const cuda_rows_out_args p = {.out = out,
                                  .weight = w->data,
                                  .format = cuda_format_of(w->format, w->rows, w->k),
                                  .first = first,
                                  .rows = rows,
                                  .k = w->k,
                                  .out_type = GM_T_BF16,
                                  .scale = 1};
    if (!p.format.tile || first % TILED_ROWS || rows % TILED_ROWS) {
        start_rows_out(&p);
        return;
    }
    const int64_t blocks[3] = {rows / TILED_ROWS, by_threads(blocks_of(w->k, 256) * 32), 1};
    cuda_start_grid(CUDA_rounded_tiles, blocks, CUDA_THREADS, 0, &p);
}
static void launch_embed(const void *args, int64_t begin, int64_t end) {
    const gm_embed_args *a = args;
    (void)begin;
    start_rows_out(&(cuda_rows_out_args){.out = a->out,
                                         .weight = a->weight,
                                         .tokens = a->tokens,
                                         .format = cuda_format_of(a->format, a->rows, a->k),
                                         .rows = end,
                                         .k = a->k,
                                         .out_type = GM_T_F32,
                                         .scale = a->scale});
}
bool cuda_embed(gm_recorder *r, const gm_embed_args *a, int64_t n) {
    if (a->in_rows) return r->lack(r, IN_ROWS);
    return r->launch(r, launch_embed, a, sizeof *a, n, 0, 0);
}
