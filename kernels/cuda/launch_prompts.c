/* launch_prompts.c - products of prompts' rows: both operands are rounded to 16 bits, a quantised weight piece by
 * piece, one of 16 bits is multiplied as it lies. */
#include "cuda/launch.h"

#define TILE 128
#define HALVES_SHARED (2 * 3 * TILE * (32 + 8) * 2)                /* product.cu: two operands, three stages */
#define WGMMA_SHARED(lines) (4 * (TILE + (lines)) * 64 * 2 + 1024) /* four stages, and what aligns them */
#define UNITS 2048                                                 /* of two weights whose products are made apart, */
#define UNIT_ROWS 2048                                             /* of so many rows: they stay in the cache */
#define FEW_ROWS 64                      /* of which the products with UNITS of a weight are too small for a card */
#define MANY_TILES 264                   /* of 256 lines */
#define PIECE_BYTES (INT64_C(128) << 20) /* of a weight, or of two */

typedef struct {
    cuda_prompt_args product; /* of all of the weight */
    gm_matrix weight, up;     /* up.data NULL: none */
    const float *floats;      /* x, which becomes that of the product; or NULL */
    void *x, *pieces[2];      /* pieces NULL: the weight as it lies */
    int64_t piece;            /* rows of one */
    void *workspace;          /* of cuBLASLt, or NULL */
    float *units[2];          /* what it makes of a piece of both weights */
    int32_t type;
} prompt_job;

static bool lies(const gm_matrix *w) { return w->format == GM_QUANT_f16 || w->format == GM_QUANT_bf16; }

static void start_product(const prompt_job *job, const cuda_prompt_args *p) {
    const int64_t down = blocks_of(p->rows, TILE), lines = p->up ? 2 * p->columns : p->columns;
    const int64_t tiles = down * blocks_of(lines, TILE), wide_tiles = down * blocks_of(lines, 2 * TILE);
    const cuda_kernel first = job->type == GM_T_F16 ? CUDA_prompt_f16 : CUDA_prompt_bf16;
    if (!cuda_has_wgmma()) cuda_start(first, tiles, CUDA_THREADS, HALVES_SHARED, p);
    else if (wide_tiles >= MANY_TILES / 2)
        cuda_start((cuda_kernel)(first + 2), wide_tiles, CUDA_THREADS, WGMMA_SHARED(2 * TILE), p);
    else cuda_start((cuda_kernel)(first + 1), tiles, CUDA_THREADS, WGMMA_SHARED(TILE), p);
}
/* Rows of a weight, in 16 bits; NULL: there is none. */
static const void *piece_of(const prompt_job *job, int which, int64_t first, int64_t rows) {
    const gm_matrix *w = which ? &job->up : &job->weight;
    if (!w->data || !job->pieces[which]) return w->data ? (const char *)w->data + first * w->k * 2 : NULL;
    cuda_start_rounded_rows(job->pieces[which], w, first, rows);
    return job->pieces[which];
}
/* Units of both weights, by the algorithm of the first `some` of them. */
static bool units_by_library(const prompt_job *job, cuda_prompt_args p, int64_t some) {
    const void *const weights[2] = {p.w, p.up};
    const cuda_prompt_units_args units = {.out = p.out,
                                          .gate = job->units[0],
                                          .up = job->units[1],
                                          .columns = p.columns,
                                          .out_step = p.out_step,
                                          .out_type = p.out_type,
                                          .glu = p.glu,
                                          .fours = p.columns % 4 == 0 && p.out_step % 4 == 0 && is_aligned(p.out, 16)};
    const int64_t blocks[3] = {p.rows, blocks_of(p.columns, CUDA_THREADS * 4), 1};
    p.up = NULL;
    p.out_step = p.columns;
    p.out_type = GM_T_F32;
    for (int i = 0; i < 2; i++) {
        p.w = weights[i];
        p.out = job->units[i];
        if (!blaslt_prompt(&p, some, job->type, job->workspace)) return false;
    }
    cuda_start_grid(CUDA_prompt_units, blocks, CUDA_THREADS, 0, &units);
    return true;
}
/* UNITS of UNIT_ROWS rows at a time, or as many of FEW_ROWS as have that algorithm: those alone fill no card. */
static bool units_of_rows(const prompt_job *job, cuda_prompt_args p) {
    const int64_t columns = p.columns, step = type_bytes(p.out_type);
    for (int64_t first = 0; first < columns; first += p.columns) {
        const int64_t left = columns - first, some = left < UNITS ? left : UNITS;
        cuda_prompt_args part = p;
        part.columns = p.columns = p.rows <= FEW_ROWS ? left / some * some : some;
        for (int64_t rows = p.rows; rows > 0; rows -= UNIT_ROWS) {
            part.rows = rows < UNIT_ROWS ? rows : UNIT_ROWS;
            if (!units_by_library(job, part, some)) return false;
            part.x = (const char *)part.x + part.rows * p.k * 2;
            part.out = (char *)part.out + part.rows * p.out_step * step;
        }
        p.w = (const char *)p.w + p.columns * p.k * 2;
        p.up = (const char *)p.up + p.columns * p.k * 2;
        p.out = (char *)p.out + p.columns * step;
    }
    return true;
}
/* A piece of out by cuBLASLt; false: by own kernels. */
static bool by_library(const prompt_job *job, cuda_prompt_args p) {
    if (p.up) return job->workspace && units_of_rows(job, p);
    return blaslt_prompt(&p, p.columns, job->type, job->workspace);
}
static void start_rows(const cuda_prompt_rows_args *rows) {
    cuda_start(CUDA_prompt_rows, blocks_of(rows->count / 8, CUDA_THREADS), CUDA_THREADS, 0, rows);
}
static void launch_prompt(const void *args, int64_t begin, int64_t end) {
    const prompt_job *job = args;
    const int64_t item = type_bytes(job->product.out_type);
    cuda_prompt_args p = job->product;
    (void)begin;
    p.rows = end;
    if (job->floats) {
        const cuda_prompt_rows_args rows = {job->x, job->floats, end * p.k, job->type};
        start_rows(&rows);
    }
    if (job->piece == 0) {
        if (!by_library(job, p)) start_product(job, &p);
        return;
    }
    for (int64_t first = 0; first < job->weight.rows; first += job->piece) {
        const int64_t left = job->weight.rows - first;
        p.columns = left < job->piece ? left : job->piece;
        p.w = piece_of(job, 0, first, p.columns);
        p.up = piece_of(job, 1, first, p.columns);
        p.out = (char *)job->product.out + first * item;
        p.bias = job->product.bias ? job->product.bias + first : NULL;
        p.residual = job->product.residual ? job->product.residual + first : NULL;
        if (!by_library(job, p)) start_product(job, &p);
    }
}
/* What a job needs besides; the weight's pieces are whole tiles. */
static bool record(gm_recorder *r, prompt_job *job, const void *x, gm_row_form form, int64_t n) {
    const int64_t k = job->weight.k, tiles = PIECE_BYTES / ((job->up.data ? 4 : 2) * k * TILE);
    const int64_t most = n < UNIT_ROWS ? n : UNIT_ROWS, few = n < FEW_ROWS ? n : FEW_ROWS, all = job->weight.rows;
    const int64_t some = most * (all < UNITS ? all : UNITS), units = few * all > some ? few * all : some;
    const bool as_it_lies = lies(&job->weight) && (!job->up.data || job->up.format == job->weight.format);
    job->type = as_it_lies && job->weight.format == GM_QUANT_f16 ? GM_T_F16 : GM_T_BF16;
    job->floats = form == GM_FORM_F32 ? x : NULL;
    job->x = form == GM_FORM_F32 ? r->workspace(r, (size_t)(n * k) * 2 + 1) : NULL;
    job->product.x = job->floats ? job->x : x;
    job->product.k = k;
    job->product.columns = job->product.out_step = job->weight.rows;
    job->product.w = job->weight.data;
    job->product.up = job->up.data;
    if (job->floats && !job->x) return false;
    const size_t library = blaslt_prompt_workspace(job->weight.rows, k);
    if (library && !(job->workspace = r->workspace(r, library))) return false;
    if (!as_it_lies) job->piece = (tiles ? tiles : 1) * TILE;
    if (job->up.data && job->piece > UNITS) job->piece = job->piece / UNITS * UNITS;
    if (job->piece > job->weight.rows) job->piece = job->weight.rows;
    for (int i = 0; i < (job->up.data ? 2 : 1); i++) {
        if (!as_it_lies && !(job->pieces[i] = r->workspace(r, (size_t)(job->piece * k) * 2))) return false;
        if (library && job->up.data && !(job->units[i] = r->workspace(r, (size_t)units * 4))) return false;
    }
    return r->launch(r, launch_prompt, job, sizeof *job, n, 0, 0);
}
static void launch_rounded_rows(const void *args, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    start_rows(args);
}
bool cuda_rounded_rows(gm_recorder *r, void *out, const float *x, int64_t n, int64_t k) {
    const cuda_prompt_rows_args rows = {out, x, n * k, GM_T_BF16};
    if (!r->launch(r, launch_rounded_rows, &rows, sizeof rows, n, 0, 0)) return false;
    r->fence(r);
    return true;
}
bool cuda_prompt_matmul(gm_recorder *r, const gm_packed_matmul_args *a, int64_t n) {
    prompt_job job = {.product = {.out = a->out, .bias = a->bias, .residual = a->residual, .out_type = GM_T_F32},
                      .weight = a->weight};
    return record(r, &job, a->x, a->form, n);
}
bool cuda_prompt_glu(gm_recorder *r, const gm_packed_glu_args *a, int64_t n) {
    const int type = a->out_form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32;
    prompt_job job = {
        .product = {.out = a->out, .out_type = type, .glu = (int32_t)a->kind}, .weight = a->gate, .up = a->up};
    return record(r, &job, a->x, a->form, n);
}
