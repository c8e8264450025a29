/* launch_products.c - how dense products are cut: which operand becomes lanes, what is packed first, how large a piece
 * is. None of it changes a bit of the result. */
#include "cpu/launch.h"

bool cpu_multiplies_bf16(const gm_kernels *kernels) { return kernels->gemm_pairs; }

#define PIECE_FLOPS 200000.0    /* some microseconds: not worth another thread below it */
#define TASK_FLOPS 5e7          /* at most, so that threads end together */
#define FEW_BYTES (16 << 10)    /* of a matrix for few rows, from which on it is not treated as small */
#define WHOLE_BYTES (256 << 10) /* of x, which then stays near while panel after panel goes over all its rows */
#define NEAR_BYTES (1 << 20)    /* of x: the nearer caches have it */
#define TURNED_ROWS 64          /* times a vector, from which on rows side by side are read as they lie */
#define ROOM_ROWS                                                                                                      \
    256 /* about the least in a block that packs w for itself, if there are so many: twice                             \
           as many where it packs ROOM_LANES */
#define ROOM_LANES                                                                                                     \
    256                          /* at most in it: rows of x are copied once for so many. Half of it where rows are    \
                                    fewer: then more of w is fetched while they go over what is packed */
#define SUM_ROWS 512             /* at most in a block that adds up elsewhere than in the result */
#define LEAST_PANELS 2           /* in a block of rows that are copied for its panels */
#define LEAST_ROWS 192           /* of a block that packs panels as it goes */
#define DIRECT_BYTES (256 << 10) /* lanes side by side are read in place while the matrix fits the nearer caches */

gm_gemm_args gemm_of(const gm_product_args *p) {
    return (gm_gemm_args){.out = p->out,
                          .x = p->x,
                          .w = p->w,
                          .add = p->add,
                          .type = p->type,
                          .rows = p->rows,
                          .lanes = p->columns,
                          .k = p->k,
                          .out_row = p->out_row,
                          .out_lane = p->out_column,
                          .x_row = p->x_row,
                          .x_k = p->x_k,
                          .w_lane = p->w_column,
                          .w_k = p->w_k,
                          .add_row = p->add_row,
                          .add_lane = p->add_column,
                          .ndim = p->ndim,
                          .shape = p->shape,
                          .out_strides = p->out_strides,
                          .x_strides = p->x_strides,
                          .w_strides = p->w_strides,
                          .add_strides = p->add_strides,
                          .alpha = p->alpha,
                          .beta = p->beta};
}

/* ---- the operands' roles, and their batch in as few dimensions as can be ---- */
/* out' = w' x': rows become lanes. */
static void swap_sides(gm_gemm_args *a) {
    gm_gemm_args b = *a;
    b.rows = a->lanes;
    b.lanes = a->rows;
    b.x = a->w;
    b.w = a->x;
    b.out_row = a->out_lane;
    b.out_lane = a->out_row;
    b.x_row = a->w_lane;
    b.x_k = a->w_k;
    b.w_lane = a->x_row;
    b.w_k = a->x_k;
    b.add_row = a->add_lane;
    b.add_lane = a->add_row;
    b.x_strides = a->w_strides;
    b.w_strides = a->x_strides;
    *a = b;
}

/* Matrices that share w are more rows of one, where they lie one behind the other. */
static void fold_batch_into_rows(gm_gemm_args *a) {
    while (a->ndim > 0) {
        const int d = a->ndim - 1;
        const int64_t n = a->shape[d], rows = a->rows;
        if (a->w_strides[d] != 0) return;
        if (rows != 1 && (a->x_strides[d] != rows * a->x_row || a->out_strides[d] != rows * a->out_row ||
                          (a->add && a->add_strides[d] != rows * a->add_row)))
            return;
        if (rows == 1) {
            a->x_row = a->x_strides[d];
            a->out_row = a->out_strides[d];
            a->add_row = a->add ? a->add_strides[d] : 0;
        }
        a->rows = n * rows;
        a->ndim--;
    }
}

/* column: it is a matrix times a vector, with an order of its own of adding up: launch_column. */
static void arrange(const gm_recorder *r, gm_gemm_args *a, bool column) {
    fold_batch_into_rows(a);
    if (column) return;
    swap_sides(a);
    fold_batch_into_rows(a);
    swap_sides(a);
    const int64_t width = kernels_gemm_lanes(r->kernels, a->type);
    /* Not complex numbers: the two terms of an imaginary part would be added the other way round. */
    if (a->lanes * 4 <= width && a->rows > width && a->type != GM_T_C64) swap_sides(a);
}

/* ---- operands in other layouts, in workspaces ---- */
/* The matrices of an operand, each once however often the batch repeats it: their shape and strides to *distinct, their
 * number returned; places gets the number of the matrix for each axis of the batch. 0: no memory. */
static int64_t distinct_matrices(gm_recorder *r, const gm_gemm_args *a, const int64_t *strides, gm_gemm_args *distinct,
                                 int64_t **places) {
    int64_t *shape = r->arguments(r, (size_t)(a->ndim + 1) * 3 * sizeof *shape), matrices = 1;
    if (!shape) return 0;
    int64_t *steps = shape + a->ndim;
    *places = steps + a->ndim;
    *distinct = *a;
    distinct->ndim = 0;
    for (int d = 0; d < a->ndim; d++)
        if (strides[d] != 0) {
            shape[distinct->ndim] = a->shape[d];
            steps[distinct->ndim++] = strides[d];
        }
    for (int d = a->ndim - 1; d >= 0; d--) {
        (*places)[d] = strides[d] != 0 ? matrices : 0;
        matrices *= strides[d] != 0 ? a->shape[d] : 1;
    }
    distinct->shape = shape;
    distinct->x_strides = distinct->w_strides = steps;
    return matrices;
}

/* w's lanes as panels; looked: each is looked over for what is not finite. */
static bool pack_lanes(gm_recorder *r, gm_gemm_args *a, bool looked) {
    const gm_kernels *kernels = r->kernels;
    gm_gemm_args pack;
    int64_t *places, matrices = distinct_matrices(r, a, a->w_strides, &pack, &places);
    if (!matrices) return false;
    pack.out = r->workspace(r, (size_t)(matrices * kernels_gemm_pack_bytes(kernels, a->type, a->lanes, a->k)));
    if (!pack.out) return false;
    const int64_t panels = matrices * kernels_gemm_panels(kernels, a->type, a->lanes);
    if (looked && !(pack.finite = r->workspace(r, (size_t)panels * sizeof *pack.finite))) return false;
    int64_t grain = 1 + GRAIN / (a->k * kernels->gemm_lanes);
    grain = panels >= 64 && grain < 8 ? 8 : grain;
    if (!LAUNCH(r, gemm_pack, &pack, panels, grain, 0)) return false;
    r->fence(r);
    a->w = pack.out;
    a->finite = pack.finite;
    a->packed = true;
    a->w_strides = places;
    return true;
}

/* x's rows as items. */
static bool align_rows(gm_recorder *r, gm_gemm_args *a) {
    gm_gemm_args align;
    int64_t *places, matrices = distinct_matrices(r, a, a->x_strides, &align, &places);
    if (!matrices) return false;
    align.out = r->workspace(r, (size_t)(matrices * kernels_gemm_align_bytes(a->type, a->rows, a->k)));
    if (!align.out || !LAUNCH(r, gemm_align, &align, matrices * a->rows, 64 + GRAIN / (a->k + 1), 0)) return false;
    r->fence(r);
    a->x = align.out;
    a->aligned = true;
    a->x_strides = places;
    return true;
}

/* Lines of k elements side by side: in memory, or as a copy. *batch gets the strides then. */
static bool dense_lines(gm_recorder *r, const gm_gemm_args *a, const void **p, int64_t lines, int64_t *line,
                        int64_t along, const int64_t **batch) {
    const int ndim = a->ndim + 2;
    int64_t size = lines * a->k;
    if (along == 1 || a->k <= 1) return true;
    int64_t *steps = r->arguments(r, (size_t)(a->ndim + 3 * ndim) * sizeof *steps);
    if (!steps) return false;
    int64_t *shape = steps + a->ndim, *given = shape + ndim, *dense = given + ndim;
    for (int d = a->ndim - 1; d >= 0; d--) { /* what the batch repeats is copied once */
        shape[d] = (*batch)[d] ? a->shape[d] : 1;
        given[d] = (*batch)[d];
        dense[d] = size;
        steps[d] = (*batch)[d] ? size : 0;
        size *= shape[d];
    }
    shape[ndim - 2] = lines;
    given[ndim - 2] = *line;
    dense[ndim - 2] = a->k;
    shape[ndim - 1] = a->k;
    given[ndim - 1] = along;
    dense[ndim - 1] = 1;
    void *copy = r->workspace(r, (size_t)(size * type_bytes(a->type)));
    if (!copy || !launch_merged_copy(r, &(gm_copy_args){.out = copy,
                                                        .in = *p,
                                                        .out_type = a->type,
                                                        .in_type = a->type,
                                                        .ndim = ndim,
                                                        .shape = shape,
                                                        .out_strides = dense,
                                                        .in_strides = given}))
        return false;
    r->fence(r);
    *p = copy;
    *line = a->k;
    *batch = steps;
    return true;
}

/* ---- a matrix times a vector ---- */
/* Rows of a block of those that are read as they lie: a few where the nearer cache has them; of more, as much of each
 * line of x as there is, for pages are gone over in order. */
static int64_t turned_block(const gm_recorder *r, const gm_gemm_args *a) {
    if (a->k * a->x_k * type_bytes(a->type) <= NEAR_BYTES) return 2 * TURNED_ROWS;
    const int64_t threads = r->threads(r) > 2 ? r->threads(r) : 2;
    const int64_t share = (a->rows / threads + TURNED_ROWS - 1) / TURNED_ROWS * TURNED_ROWS;
    return share < 4 * TURNED_ROWS ? 4 * TURNED_ROWS : share < 16 * TURNED_ROWS ? share : 16 * TURNED_ROWS;
}

/* k as lanes. The bits are not those of a column among others, but those of a row among others, and of a batch. */
static bool launch_column(gm_recorder *r, gm_gemm_args *a, int64_t batches) {
    const int64_t rows = 1 + (int64_t)(PIECE_FLOPS / 10) / (2 * a->k + 1);
    const bool turned = a->x_row == 1 && a->rows >= TURNED_ROWS; /* read as it lies, in long runs of rows */
    if (!turned) {
        if (!dense_lines(r, a, &a->x, a->rows, &a->x_row, a->x_k, &a->x_strides)) return false;
        a->x_k = 1;
    }
    if (!dense_lines(r, a, &a->w, 1, &a->w_lane, a->w_k, &a->w_strides)) return false;
    a->w_k = 1;
    a->few = true;
    a->block_panels = 1;
    a->block_rows = turned ? turned_block(r, a) : (rows + 3) / 4 * 4;
    a->block_rows = a->block_rows < a->rows ? a->block_rows : a->rows;
    const int64_t blocks = (a->rows + a->block_rows - 1) / a->block_rows * batches;
    const int64_t flops = 2 * a->k * a->block_rows + 1;
    return LAUNCH(r, gemm, a, blocks, 1 + (int64_t)(PIECE_FLOPS / 10) / flops, 0);
}

/* ---- blocks ---- */
/* What decides how large they are. */
typedef struct {
    double flops, total, task; /* of one element of out, of all, of a block */
    int64_t batches, panels, w_bytes;
    int64_t block_rows; /* at most where sums are added up elsewhere than in the result */
    bool far, packs;    /* w is not in the nearer caches; is not read as it lies */
} measures;

static measures measure(const gm_recorder *r, const gm_gemm_args *a) {
    const gm_kernels *kernels = r->kernels;
    const bool complex = a->type == GM_T_C64, wide = complex || a->type == GM_T_F64;
    const bool items = a->type == GM_T_F32 || a->type == GM_T_F64; /* elements are what tiles multiply */
    measures m = {.flops = (complex ? 8 : 2) * (double)a->k,
                  .batches = 1,
                  .panels = kernels_gemm_panels(kernels, a->type, a->lanes),
                  .w_bytes = a->k * a->lanes * type_bytes(a->type),
                  .block_rows = wide ? kernels->gemm_rows / 2 : kernels->gemm_rows};
    for (int d = 0; d < a->ndim; d++) m.batches *= a->shape[d];
    m.total = m.flops * (double)a->rows * (double)a->lanes * (double)m.batches;
    /* A block is a thirty-second of the work, but neither too little to be worth it nor too much to end together. */
    const double task = m.total / 32;
    m.task = task < PIECE_FLOPS ? PIECE_FLOPS : task > TASK_FLOPS ? TASK_FLOPS : task;
    m.far = m.w_bytes > DIRECT_BYTES;
    m.packs = a->k > 0 && (m.far || !(items && a->w_lane == 1));
    return m;
}

/* Blocks of about a task, of so many rows. */
static void size_blocks(const gm_recorder *r, gm_gemm_args *a, const measures *m, int64_t rows) {
    a->block_rows = a->rows < rows ? a->rows : rows;
    const double panel = m->flops * (double)(a->block_rows * kernels_gemm_lanes(r->kernels, a->type)) + 1;
    a->block_panels = m->task > GM_GEMM_PANELS * panel ? GM_GEMM_PANELS
                      : m->task < panel                ? 1
                                                       : (int64_t)(m->task / panel);
}

/* Rows enough that packing a panel for them does not count. */
static int64_t whole_rows(const gm_recorder *r, const gm_gemm_args *a, const measures *m) {
    const double rows = m->task / (m->flops * (double)kernels_gemm_lanes(r->kernels, a->type) + 1);
    return LEAST_ROWS > (int64_t)rows ? LEAST_ROWS : (int64_t)rows;
}

/* Of few rows: memory's speed counts, which long runs of lanes side by side have. */
static void size_few(gm_gemm_args *a, const measures *m) {
    const int64_t share = a->w_lane == 1 ? m->panels / 2 : m->panels / 8, least = a->w_lane == 1 ? 16 : 1;
    const int64_t most = a->w_lane == 1 ? GM_GEMM_FEW_PANELS / a->rows : 4;
    a->block_panels = share < least ? least : share;
    a->block_panels = a->block_panels < most ? a->block_panels : most;
}

/* As many panels in each block. */
static void even_blocks(gm_gemm_args *a, int64_t panels) {
    if (a->block_panels > panels) a->block_panels = panels;
    const int64_t blocks = (panels + a->block_panels - 1) / a->block_panels;
    a->block_panels = (panels + blocks - 1) / blocks;
}

bool launch_workspaces(gm_recorder *r, int64_t bytes, gm_workspaces *workspaces) {
    return launch_some_workspaces(r, r->threads(r), bytes, workspaces);
}
bool launch_some_workspaces(gm_recorder *r, int64_t most, int64_t bytes, gm_workspaces *workspaces) {
    const int64_t threads = most < r->threads(r) ? most : r->threads(r);
    *workspaces = (gm_workspaces){.count = threads, .bytes = (bytes + 63) / 64 * 64};
    workspaces->taken = r->arguments(r, (size_t)threads * sizeof *workspaces->taken);
    workspaces->memory = workspaces->taken ? r->workspace(r, (size_t)(threads * workspaces->bytes)) : NULL;
    for (int64_t i = 0; workspaces->memory && i < threads; i++) atomic_init(&workspaces->taken[i], 0);
    return workspaces->memory != NULL;
}

/* Blocks so large that w is packed for many rows and x copied for many panels, but enough of them for all threads to
 * end together; and a workspace for each thread. */
static bool make_workspaces(gm_recorder *r, gm_gemm_args *a, const measures *m) {
    const gm_kernels *kernels = r->kernels;
    const int64_t threads = r->threads(r), tile = kernels->gemm_rows / 4, wanted = threads > 1 ? 8 * threads : 1;
    const bool in_place = a->type == GM_T_F32 && a->out_lane == 1 && !a->add;
    const int64_t lanes = a->rows < ROOM_ROWS ? ROOM_LANES / 2 : ROOM_LANES;
    const int64_t most = lanes / kernels->gemm_lanes > 1 ? lanes / kernels->gemm_lanes : 1;
    int64_t groups = 0, blocks = 1;
    for (a->block_panels = m->panels < most ? m->panels : most;; a->block_panels /= 2) {
        groups = m->batches * ((m->panels + a->block_panels - 1) / a->block_panels);
        blocks = groups >= wanted ? 1 : (wanted + groups - 1) / groups;
        const int64_t least = a->block_panels == most ? 2 * ROOM_ROWS : ROOM_ROWS;
        blocks = blocks * least > a->rows ? (a->rows + least - 1) / least : blocks;
        if (groups * blocks >= wanted || a->block_panels <= LEAST_PANELS) break;
    }
    a->block_rows = ((a->rows + blocks - 1) / blocks + tile - 1) / tile * tile;
    if (!in_place && a->block_rows > SUM_ROWS) a->block_rows = SUM_ROWS / tile * tile;
    a->block_rows = a->block_rows < a->rows ? a->block_rows : a->rows;
    const int64_t rows = in_place ? 0 : a->block_rows;
    return launch_workspaces(r, kernels_gemm_workspace_bytes(kernels, a->type, rows, a->block_panels), &a->workspaces);
}

typedef struct { int64_t count, grain; } pieces;
static pieces pieces_of(const gm_gemm_args *a, const measures *m) {
    const int64_t row_blocks = (a->rows + a->block_rows - 1) / a->block_rows;
    const int64_t count = row_blocks * ((m->panels + a->block_panels - 1) / a->block_panels) * m->batches;
    const double grain = (a->few ? PIECE_FLOPS / 10 : PIECE_FLOPS) / (m->total / (double)count + 1);
    return (pieces){count, 1 + (int64_t)grain};
}

/* ---- what operations ask for ---- */
bool cpu_product(gm_recorder *r, const gm_product_args *p, int64_t n) {
    gm_gemm_args a = gemm_of(p);
    const bool complex = a.type == GM_T_C64, column = p->columns == 1 && !complex;
    arrange(r, &a, column);
    if (a.rows == 0 || a.lanes == 0 || n == 0) return true;
    const measures m = measure(r, &a);
    if (column) return launch_column(r, &a, m.batches);
    const bool whole = kernels_gemm_in_place(r->kernels, &a) && a.rows * a.k * type_bytes(a.type) <= WHOLE_BYTES;
    size_blocks(r, &a, &m, whole ? whole_rows(r, &a, &m) : m.block_rows);
    a.few = !complex && m.w_bytes >= FEW_BYTES &&
            ((a.rows <= GM_GEMM_FEW && a.w_lane == 1) || (a.rows <= GM_GEMM_FEW / 2 && a.w_k == 1));
    if (a.few) size_few(&a, &m);
    even_blocks(&a, m.panels);
    if (!a.few && m.packs && a.rows > (m.far ? GM_GEMM_FEW : whole ? a.rows : m.block_rows)) {
        if (!make_workspaces(r, &a, &m) || (a.x_k != 1 && m.panels > a.block_panels && !align_rows(r, &a)))
            return false;
    }
    const pieces cut = pieces_of(&a, &m);
    return LAUNCH(r, gemm, &a, cut.count, cut.grain, 0);
}

bool launch_image_product(gm_recorder *r, gm_conv_args *a) {
    gm_gemm_args *p = &a->product;
    if (p->rows == 0 || p->lanes == 0) return true;
    const measures m = measure(r, p);
    size_blocks(r, p, &m, m.block_rows);
    even_blocks(p, m.panels);
    const bool looked = kernels_conv_has_edges(a) && p->type != GM_T_F64;
    if (p->rows > m.block_rows && m.packs && !pack_lanes(r, p, looked)) return false;
    const pieces cut = pieces_of(p, &m);
    return LAUNCH(r, conv, a, cut.count, cut.grain, 0);
}

#define PIECE_BYTES (64 << 10) /* of a matrix of w that indices choose */

bool cpu_gather_product(gm_recorder *r, const gm_gather_product_args *a, int64_t n) {
    const gm_kernels *kernels = r->kernels;
    gm_gather_gemm_args g = {.product = gemm_of(&a->product),
                             .x_index = a->x_index,
                             .w_index = a->w_index,
                             .items = n,
                             .x_matrices = a->x_matrices,
                             .w_matrices = a->w_matrices,
                             .x_matrix = a->x_matrix,
                             .w_matrix = a->w_matrix};
    gm_gemm_args *p = &g.product;
    const bool wide = p->type == GM_T_F64 || p->type == GM_T_C64;
    p->block_rows = wide ? kernels->gemm_rows / 2 : kernels->gemm_rows;
    p->few = p->type != GM_T_C64 && (p->w_lane == 1 || p->w_k == 1);
    const int64_t panels = kernels_gemm_panels(kernels, p->type, p->lanes), most = GM_GEMM_FEW_PANELS / GM_GEMM_FEW;
    const int64_t share = PIECE_BYTES / (p->k * kernels_gemm_lanes(kernels, p->type) * type_bytes(p->type) + 1) + 1;
    p->block_panels = share < most ? share : most;
    return LAUNCH(r, gather_gemm, &g, a->w_matrices * ((panels + p->block_panels - 1) / p->block_panels), 1, 0);
}
