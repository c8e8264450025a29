/* launch_matrices.c - products with packed matrices: parts of tokens, pieces of panels, rows that are packed on the
 * way. */
#include <assert.h>
#include "cpu/launch.h"
#include "made_rows.h"

/* Dense panels keep denormals: in float16 they are numbers of some size. */
static int format_flags(int format) { return format > GM_QUANT_bf16 ? LAUNCH_FTZ : 0; }

int64_t cpu_packed_bytes(const gm_kernels *kernels, int format, int64_t rows, int64_t k) {
    return kernels_packed_bytes(kernels, format, rows, k);
}

bool cpu_pack(gm_recorder *r, const gm_pack_args *a, int64_t n) {
    return LAUNCH(r, pack, a, kernels_panels(r->kernels, a->format, n), 4, 0);
}
bool cpu_embed(gm_recorder *r, const gm_embed_args *a, int64_t n) {
    return LAUNCH(r, embed, a, n, 8, format_flags(a->format));
}
bool cpu_quantize_act(gm_recorder *r, const gm_quantize_act_args *a, int64_t n) {
    return LAUNCH(r, quantize_act, a, (n + GM_ACT_TILE - 1) / GM_ACT_TILE, 1, LAUNCH_FTZ);
}

/* ---- parts of tokens ---- */
/* They run side by side: pieces are then some tens of microseconds, so that threads end together, and activations stay
 * in the second-level cache. The parts of a matrix of few rows are half as large. All are whole tiles. */
#define PART_TOKENS 128
#define FEW_ROWS 1280

static int64_t part_tokens(const gm_matrix *w) {
    return (w->format <= GM_QUANT_bf16 ? GM_DENSE_TOKENS : PART_TOKENS) / (w->rows < FEW_ROWS ? 2 : 1);
}

static int part_flags(int format, int64_t tokens, int64_t share) {
    return (tokens > share ? LAUNCH_PART : 0) | format_flags(format);
}

static const void *rows_from(const void *x, gm_row_form form, int64_t k, int64_t first) {
    return (const char *)x +
           (form == GM_FORM_INT8 ? (int64_t)act_bytes(first, k) : first * k * (form == GM_FORM_BF16 ? 2 : 4));
}

/* ---- slabs ---- */
/* A matrix that is not packed yet is packed some rows at a time, which are multiplied while they are in the cache:
 * whole blocks of activations, whatever the panels. */
#define SLAB_BYTES ((int64_t)512 << 10)
#define SLAB_UNIT 64
static_assert(SLAB_UNIT % GM_DENSE_PANEL == 0 && SLAB_UNIT % 32 == 0, "whole panels, whole blocks of activations");

static int64_t row_bytes(const gm_matrix *w) { return w->k / gm_quants[w->format].values * gm_quants[w->format].bytes; }
/* Rows that are multiplied at a time, of w and another one of as many rows. */
static int64_t slab_rows(const gm_matrix *w, const gm_matrix *other) {
    const int64_t all = row_bytes(w) + row_bytes(other) + 1, most = SLAB_BYTES / all / SLAB_UNIT * SLAB_UNIT,
                  n = most > SLAB_UNIT ? most : SLAB_UNIT;
    return n > w->rows || (!w->in_rows && !other->in_rows) ? w->rows : n;
}
/* Where so many rows of w are packed, or NULL where it is packed. */
static bool slab_workspace(gm_recorder *r, const gm_matrix *w, int64_t rows, void **memory) {
    *memory = w->in_rows ? r->workspace(r, (size_t)kernels_packed_bytes(r->kernels, w->format, rows, w->k)) : NULL;
    return *memory || !w->in_rows;
}
static void slab_fence(gm_recorder *r, const gm_matrix *w) {
    if (w->in_rows) r->fence(r);
}
/* n rows of w from `first` on, packed: where they are, or, between fences, in the workspace. */
static bool slab_pack(gm_recorder *r, const gm_matrix *w, int64_t first, int64_t n, void *memory, const void **packed) {
    if (!w->in_rows) {
        *packed = (const char *)w->data + first * row_bytes(w);
        return true;
    }
    *packed = memory;
    const gm_pack_args a = {.out = memory,
                            .in = (const char *)w->data + (w->row_map ? 0 : first * row_bytes(w)),
                            .row_map = w->row_map ? w->row_map + first : NULL,
                            .format = w->format,
                            .rows = n,
                            .k = w->k};
    return LAUNCH(r, pack, &a, kernels_panels(r->kernels, w->format, n), 1, LAUNCH_PART);
}

/* ---- products ---- */
/* Panels of a piece of `matrices` that have `panels` each, work: multiply-adds for one of them. At most some
 * microseconds of work, and of memory traffic when there is one token. Within that a matrix is 16 pieces, for its
 * threads to end together; a small one is not worth handing its parts from core to core. Panels of a piece share what
 * is made of many tokens. */
static int64_t piece_panels(int64_t panels, int64_t work, int64_t tokens, bool rounded, int matrices) {
    int64_t most = 262144 / work, grain = panels / 16;
    if (tokens > 1 && most < 4) most = 4;
    if (grain > most) grain = most;
    if (grain > 4) grain = grain / 4 * 4;
    if (rounded && tokens >= 16) return 6 / matrices;
    if (panels * work < 140000) return panels;
    return grain < 1 ? 1 : grain;
}

/* Rows row .. row + n of the matrix, which are at `weight`, times all tokens. */
static bool multiply_slab(gm_recorder *r, const gm_packed_matmul_args *a, int64_t tokens, int64_t row, int64_t n,
                          const void *weight) {
    const gm_matrix *w = &a->weight;
    const gm_kernels *kernels = r->kernels;
    const bool rounded = a->form == GM_FORM_BF16;
    const int64_t panels = kernels_panels(kernels, w->format, n), share = part_tokens(w);
    const int64_t work = kernels_panel(kernels, w->format) * w->k * tokens + 1;
    const int64_t grain = piece_panels(panels, work, tokens, rounded, 1);
    const gm_kernel kernel = rounded                   ? kernels->matmul_bf16
                             : a->form == GM_FORM_INT8 ? kernels->matmul_int8
                                                       : kernels->matmul_float;
    for (int64_t first = 0; first < tokens; first += share) {
        const int64_t at = first * w->rows + row;
        const gm_matmul_args part = {.out = a->out + at,
                                     .out_stride = w->rows,
                                     .x = rows_from(a->x, a->form, w->k, first),
                                     .x_stride = w->k,
                                     .x_bf16 = rounded,
                                     .weight = weight,
                                     .format = w->format,
                                     .bias = a->bias ? a->bias + row : NULL,
                                     .residual = a->residual ? a->residual + at : NULL,
                                     .rows = n,
                                     .k = w->k,
                                     .tokens = tokens - first < share ? tokens - first : share};
        if (!r->launch(r, kernel, &part, sizeof part, panels, grain, part_flags(w->format, tokens, share)))
            return false;
    }
    return true;
}

bool cpu_packed_matmul(gm_recorder *r, const gm_packed_matmul_args *a, int64_t n) {
    const gm_matrix *w = &a->weight;
    const int64_t slab = slab_rows(w, w);
    void *memory;
    if (!slab_workspace(r, w, slab, &memory)) return false;
    for (int64_t row = 0; row < w->rows; row += slab) {
        const int64_t rows = w->rows - row < slab ? w->rows - row : slab;
        const void *weight;
        slab_fence(r, w);
        if (!slab_pack(r, w, row, rows, memory, &weight)) return false;
        slab_fence(r, w);
        if (!multiply_slab(r, a, n, row, rows, weight)) return false;
    }
    return true;
}

/* ---- products with the matrix as it stands ---- */
#define COLUMN_SHARE 128  /* rows of x, about, that share what is unpacked, at least */
#define COLUMN_PIECES 4   /* for each thread, where rows of x are enough */
#define COLUMN_SLAB 16384 /* rows of the matrix in a launch: pieces of a large one do not take too long */
static_assert(COLUMN_SLAB % GM_GEMM_STEPS == 0, "whole chains");

/* Rows of x in a piece: whole tiles of them. */
static int64_t column_share(const gm_recorder *r, int64_t k, int64_t tokens) {
    const int64_t blocks = (k + GM_COLUMN_BLOCK - 1) / GM_COLUMN_BLOCK, tile = r->kernels->gemm_rows / 4;
    const int64_t wanted = (COLUMN_PIECES * r->threads(r) + blocks - 1) / blocks, most = tokens / COLUMN_SHARE;
    const int64_t shares = wanted < most ? wanted : most;
    return shares > 1 ? ((tokens + shares - 1) / shares + tile - 1) / tile * tile : tokens;
}

bool cpu_packed_matmul_columns(gm_recorder *r, const gm_packed_matmul_columns_args *a, int64_t n) {
    const gm_matrix *w = &a->weight;
    const int64_t some = slab_rows(w, w) / GM_GEMM_STEPS * GM_GEMM_STEPS;
    const int64_t slab = !w->in_rows ? COLUMN_SLAB : some ? some : GM_GEMM_STEPS;
    gm_matmul_columns_args part = {.out = a->out,
                                   .x_row = w->rows,
                                   .format = w->format,
                                   .k = w->k,
                                   .tokens = n,
                                   .share = column_share(r, w->k, n),
                                   .unpack = r->kernels->columns_unpack};
    const int64_t pieces = (n + part.share - 1) / part.share * ((w->k + GM_COLUMN_BLOCK - 1) / GM_COLUMN_BLOCK);
    void *memory;
    if (n == 0 || w->k == 0) return true;
    if (!slab_workspace(r, w, slab, &memory) || !launch_workspaces(r, GM_COLUMN_WORKSPACE, &part.workspaces))
        return false;
    for (int64_t row = 0; row < w->rows; row += slab) {
        part.rows = w->rows - row < slab ? w->rows - row : slab;
        part.x = a->x + row;
        part.onto = row > 0;
        slab_fence(r, w);
        if (!slab_pack(r, w, row, part.rows, memory, &part.weight)) return false;
        if (row > 0 || w->in_rows) r->fence(r);
        if (!LAUNCH(r, matmul_columns, &part, pieces, 1, format_flags(w->format))) return false;
    }
    return true;
}

/* ---- products of numbers rounded to bfloat16 ---- */
#define ROUNDED_SHARE 256                /* rows of x that share what is unpacked, at least */
#define ROUNDED_BYTES ((int64_t)7 << 17) /* of a thread's cache for what is unpacked */
#define ROUNDED_SLABS 6                  /* of a workspace for it */
#define ROUNDED_PIECES 2 /* for each thread, where rows of x are enough: each unpacks its columns anew */

/* Rows of a piece, where as many pieces as `wanted` go side by side, each time `blocks`, as far as rows are enough. */
static int64_t rounded_share(int64_t wanted, int64_t blocks, int64_t tokens) {
    const int64_t most = tokens / ROUNDED_SHARE, shares = kernels_tiles(wanted, blocks);
    const int64_t lines = 2 * GM_TILE_LINES, some = shares < most ? shares : most;
    return some > 1 ? kernels_tiles(kernels_tiles(tokens, some), lines) * lines : tokens;
}
/* Columns of a piece, so that x is read seldom: as many as leave each thread as much as any other and lie in its cache
 * unpacked; else few, of which threads take one after another. */
static void rounded_cut(const gm_recorder *r, gm_rounded_product_args *part, int64_t width, int64_t depth) {
    const int64_t blocks = kernels_tiles(width, GM_ROUNDED_COLUMNS), threads = r->threads(r);
    const int64_t fit = ROUNDED_BYTES / (2 * GM_ROUNDED_COLUMNS * depth + 1),
                  most = ROUNDED_SLABS / (1 + depth / GM_ROUNDED_K);
    int64_t some = fit < most ? fit : most;
    for (some = some < blocks ? some : blocks; some > 1; some--) {
        part->share = rounded_share(threads, kernels_tiles(blocks, some), part->tokens);
        if (blocks % some == 0 && blocks / some * kernels_tiles(part->tokens, part->share) % threads == 0) break;
    }
    if (some <= 1) part->share = rounded_share(ROUNDED_PIECES * threads, blocks, part->tokens);
    part->columns = (some > 1 ? some : 1) * GM_ROUNDED_COLUMNS;
}

/* x [n, k] as tiles, between fences, and what it is times the term's first matrix from row `row` of its k on. */
static bool rounded_x(gm_recorder *r, const gm_rounded_low *low, const float *x, int64_t x_row, int64_t n, int64_t k,
                      uint16_t *tiles) {
    const gm_rounded_rows_args a = {tiles, x, x_row, n, k, *low};
    return LAUNCH(r, rounded_rows, &a, kernels_tiles(n, GM_TILE_LINES), grain_for(GM_TILE_LINES * k), 0);
}

/* A small matrix as tiles. */
static bool rounded_small(gm_recorder *r, uint16_t *out, const float *x, int64_t lines, int64_t k, bool turned) {
    const gm_rounded_matrix_args a = {out, x, turned ? lines : k, turned ? k : lines, turned};
    return LAUNCH(r, rounded_matrix, &a, kernels_tiles(lines, GM_TILE_LINES), 1, LAUNCH_PART);
}

/* The term's matrices as tiles, where there is a term, and where its rows go. */
static bool rounded_term(gm_recorder *r, const gm_rounded_matmul_args *a, int64_t n, gm_rounded_low *low,
                         const uint16_t **up) {
    const int64_t width = a->turned ? a->weight.rows : a->weight.k, depth = a->turned ? a->weight.k : a->weight.rows;
    const size_t rows = (size_t)(kernels_tiles(n, GM_TILE_LINES) * GM_TILE_LINES);
    uint16_t *first, *second;
    *low = (gm_rounded_low){.rank = a->rank, .scale = a->scale};
    *up = NULL;
    if (a->rank == 0) return true;
    low->down_lines = kernels_tiles(depth, GM_TILE_K) * GM_TILE_ITEMS;
    low->sums = r->workspace(r, rows * GM_ROUNDED_RANK * sizeof(float));
    low->tiles = low->sums ? r->workspace(r, (size_t)kernels_rounded_bytes(n, a->rank)) : NULL;
    first = low->tiles ? r->workspace(r, (size_t)kernels_rounded_bytes(a->rank, depth)) : NULL;
    low->down = first;
    if (!first || !rounded_small(r, first, a->down, a->rank, depth, a->turned)) return false;
    if (a->out) {
        second = r->workspace(r, (size_t)kernels_rounded_bytes(width, a->rank));
        if (!second || !rounded_small(r, second, a->up, width, a->rank, a->turned)) return false;
        *up = second;
    }
    r->fence(r);
    return true;
}

bool cpu_rounded_matmul(gm_recorder *r, const gm_rounded_matmul_args *a, int64_t n) {
    const gm_matrix *w = &a->weight;
    const int64_t some = slab_rows(w, w), slab = !w->in_rows && !a->turned ? COLUMN_SLAB : some;
    const int64_t width = a->turned ? w->rows : w->k, depth = a->turned ? w->k : slab < w->rows ? slab : w->rows;
    gm_rounded_product_args part = {.out_row = width,
                                    .format = w->format,
                                    .k = w->k,
                                    .tokens = n,
                                    .turned = a->turned,
                                    .unpack = r->kernels->rounded_unpack};
    uint16_t *tiles = r->workspace(r, (size_t)kernels_rounded_bytes(n, depth));
    const uint16_t *up;
    gm_rounded_low low;
    void *memory;
    if (w->rows > 0) rounded_cut(r, &part, !a->turned ? width : slab < w->rows ? slab : w->rows, depth);
    if (!rounded_term(r, a, n, &low, &up)) return false;
    if (!tiles || !slab_workspace(r, w, slab, &memory) ||
        !launch_workspaces(r, kernels_rounded_workspace_bytes(depth, part.columns), &part.workspaces))
        return false;
    part.x = tiles;
    if (a->turned) {
        low.out = a->low;
        if (!rounded_x(r, &low, a->x, w->k, n, w->k, tiles)) return false;
        if (!a->out) return true;
    }
    for (int64_t row = 0; row < w->rows; row += slab) {
        const int64_t across = a->turned ? row : 0;
        part.rows = w->rows - row < slab ? w->rows - row : slab;
        part.out = a->out + across;
        part.onto = !a->turned && row > 0;
        part.bias = a->bias ? a->bias + across : NULL;
        part.residual = a->residual ? a->residual + across : NULL;
        part.up = up ? up + across / GM_TILE_LINES * GM_TILE_ITEMS : NULL;
        part.low = low.tiles && (a->turned || row + slab >= w->rows) ? low.tiles : NULL;
        r->fence(r);
        if (!a->turned) {
            gm_rounded_low of = low;
            of.down += up ? row / GM_TILE_K * GM_TILE_ITEMS : 0;
            of.add = row > 0;
            of.out = part.low ? a->low : NULL;
            if (!rounded_x(r, &of, a->x + row, w->rows, n, part.rows, tiles)) return false;
        }
        if (!slab_pack(r, w, row, part.rows, memory, &part.weight)) return false;
        r->fence(r);
        const int64_t blocks = kernels_tiles(a->turned ? part.rows : width, part.columns);
        if (!LAUNCH(r, rounded_product, &part, kernels_tiles(n, part.share) * blocks, 1, format_flags(w->format)))
            return false;
    }
    return true;
}

/* ---- the loss of such products ---- */
#define LOSS_SHARE 512      /* rows of x that share what is unpacked, about: what they sum is in a cache */
#define LEAST_LOSS_SHARE 64 /* where threads are many */
#define LOSS_ROWS 1024      /* of x at a time, at most, and at least */
#define LEAST_LOSS_ROWS 128
#define LOSS_BYTES ((int64_t)16 << 20) /* of what is summed, about */
#define LOSS_SLAB (GM_LOSS_PARTS * GM_LOSS_RUN)

/* Rows of x at a time, whose sums are in memory. */
static int64_t loss_rows(int64_t parts, int64_t k, int64_t n) {
    const int64_t lines = 2 * GM_TILE_LINES, bytes = parts * kernels_loss_floats(k) * (int64_t)sizeof(float);
    int64_t rows = LOSS_BYTES / bytes * lines;
    rows = rows < LEAST_LOSS_ROWS ? LEAST_LOSS_ROWS : rows > LOSS_ROWS ? LOSS_ROWS : rows;
    return rows < n ? rows : n;
}
static int64_t loss_share(const gm_recorder *r, int64_t parts, int64_t n) {
    const int64_t lines = 2 * GM_TILE_LINES, wanted = kernels_tiles(ROUNDED_PIECES * r->threads(r), parts),
                  most = kernels_tiles(n, LEAST_LOSS_SHARE), few = kernels_tiles(n, LOSS_SHARE),
                  shares = wanted > most  ? most
                           : wanted > few ? wanted
                                          : few;
    return kernels_tiles(kernels_tiles(n, shares), lines) * lines;
}
static bool loss_memory(gm_recorder *r, gm_loss_found *f, bool grad) {
    const size_t rows = (size_t)(f->parts * f->tokens), groups = (size_t)kernels_tiles(f->tokens, 2 * GM_TILE_LINES);
    f->weights = r->workspace(r, rows * 2 * sizeof(float));
    f->chosen = f->weights ? r->workspace(r, (size_t)f->tokens * sizeof(float)) : NULL;
    if (f->chosen && grad)
        f->sums = r->workspace(r, (size_t)f->parts * groups * (size_t)kernels_loss_floats(f->k) * sizeof(float));
    return f->chosen && (f->sums || !grad);
}

/* Of the rows of x whose tiles are part->x; memory: where a matrix that waits in its file is packed. */
static bool loss_parts(gm_recorder *r, const gm_rounded_loss_args *a, gm_rounded_loss_part_args *part, void *memory) {
    const gm_matrix *w = &a->weight;
    part->share = loss_share(r, part->found.parts, part->found.tokens);
    for (int64_t row = 0; row < w->rows; row += LOSS_SLAB) {
        part->first = row;
        part->rows = w->rows - row < LOSS_SLAB ? w->rows - row : LOSS_SLAB;
        part->bias = a->bias ? a->bias + row : NULL;
        r->fence(r);
        if (!slab_pack(r, w, row, part->rows, memory, &part->weight)) return false;
        slab_fence(r, w);
        const int64_t pieces = kernels_tiles(part->found.tokens, part->share) * kernels_tiles(part->rows, GM_LOSS_RUN);
        if (!LAUNCH(r, rounded_loss_part, part, pieces, 1, format_flags(w->format))) return false;
    }
    r->fence(r);
    return true;
}

bool cpu_rounded_loss(gm_recorder *r, const gm_rounded_loss_args *a, int64_t n) {
    const gm_matrix *w = &a->weight;
    const int64_t runs = kernels_tiles(w->rows, GM_LOSS_RUN), parts = runs < GM_LOSS_PARTS ? runs : GM_LOSS_PARTS,
                  some = loss_rows(parts, w->k, n);
    gm_loss_found found = {.parts = parts, .tokens = some, .k = w->k, .softcap = a->softcap};
    gm_rounded_loss_part_args part = {.format = w->format, .unpack = r->kernels->rounded_unpack};
    const gm_rounded_low none = {0};
    void *memory;
    if (n == 0) return true;
    uint16_t *tiles = r->workspace(r, (size_t)kernels_rounded_bytes(some, w->k));
    if (!tiles || !loss_memory(r, &found, a->grad != NULL) ||
        !slab_workspace(r, w, w->rows < LOSS_SLAB ? w->rows : LOSS_SLAB, &memory) ||
        !launch_workspaces(r, kernels_loss_workspace_bytes(w->k), &part.workspaces))
        return false;
    for (int64_t row = 0; row < n; row += some) {
        const int64_t at = row * w->k;
        found.tokens = n - row < some ? n - row : some;
        part.found = found;
        part.x = tiles;
        part.targets = a->targets + row;
        if (!rounded_x(r, &none, a->x + at, w->k, found.tokens, w->k, tiles) || !loss_parts(r, a, &part, memory))
            return false;
        const gm_rounded_loss_end_args end = {found, a->loss + row, a->grad ? a->grad + at : NULL,
                                              a->grad ? a->lines + at : NULL};
        if (!LAUNCH(r, rounded_loss_end, &end, found.tokens, grain_for(w->k * parts), 0)) return false;
        r->fence(r);
    }
    return true;
}

/* weights: rows row .. row + n of gate and up. */
static bool multiply_glu_slab(gm_recorder *r, const gm_packed_glu_args *a, int64_t tokens, int64_t row, int64_t n,
                              const void *const *weights) {
    const gm_matrix *gate = &a->gate;
    const bool int8 = a->form == GM_FORM_INT8, rounded = a->form == GM_FORM_BF16;
    const int64_t panel = kernels_panel(r->kernels, gate->format), panels = kernels_panels(r->kernels, gate->format, n);
    const int64_t k = gate->k, share = part_tokens(gate), unit = panel < 32 ? 32 / panel : 1;
    int64_t grain = piece_panels(panels, 2 * panel * k * tokens + 1, tokens, rounded, 2);
    grain = grain < unit ? unit : grain / unit * unit; /* whole blocks of activations */
    for (int64_t first = 0; first < tokens; first += share) {
        const gm_matmul_args product = {.x = rows_from(a->x, a->form, k, first),
                                        .x_stride = k,
                                        .x_bf16 = rounded,
                                        .rows = n,
                                        .k = k,
                                        .tokens = tokens - first < share ? tokens - first : share};
        gm_matmul_glu_args part = {.out = (void *)rows_from(a->out, a->out_form, gate->rows, first),
                                   .form = a->out_form,
                                   .int8 = int8,
                                   .bf16 = rounded,
                                   .gate = product,
                                   .up = product,
                                   .glu.kind = a->kind,
                                   .row = row,
                                   .out_rows = gate->rows};
        part.gate.weight = weights[0];
        part.gate.format = gate->format;
        part.up.weight = weights[1];
        part.up.format = a->up.format;
        if (!LAUNCH(r, matmul_glu, &part, panels, grain, part_flags(gate->format, tokens, share))) return false;
    }
    return true;
}

bool cpu_packed_glu(gm_recorder *r, const gm_packed_glu_args *a, int64_t n) {
    const gm_matrix *both[2] = {&a->gate, &a->up};
    const int64_t all = a->gate.rows, slab = slab_rows(both[0], both[1]);
    const void *weights[2];
    void *memory[2];
    for (int i = 0; i < 2; i++)
        if (!slab_workspace(r, both[i], slab, &memory[i])) return false;
    for (int64_t row = 0; row < all; row += slab) {
        const int64_t rows = all - row < slab ? all - row : slab;
        slab_fence(r, both[0]);
        slab_fence(r, both[1]);
        for (int i = 0; i < 2; i++)
            if (!slab_pack(r, both[i], row, rows, memory[i], &weights[i])) return false;
        slab_fence(r, both[0]);
        slab_fence(r, both[1]);
        if (!multiply_glu_slab(r, a, n, row, rows, weights)) return false;
    }
    return true;
}

/* ---- of rows that are normed first ---- */
bool cpu_packed_products(gm_recorder *r, const gm_packed_products_args *a, int64_t n) {
    return record_products_apart(r, a, n);
}
bool cpu_made_glu(gm_recorder *r, const gm_made_glu_args *a, int64_t n) { return record_glu_apart(r, a, n); }
