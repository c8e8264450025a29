/* product.c - how a dense product is cut: which operand becomes lanes, what is packed first, how large a piece is.
 * None of it changes a bit of the result. */
#include "ops/product.h"
#include <string.h>
#include "core/graph.h"

#define PIECE_FLOPS 200000.0          /* some microseconds: not worth another thread below it */
#define TASK_FLOPS 5e7                /* at most, so that threads end together */
#define FEW_BYTES (16 << 10)          /* of a matrix for few rows, from which on it is not treated as small */
#define WHOLE_BYTES (256 << 10)       /* of x, which then stays near while panel after panel goes over all its rows */
#define NEAR_BYTES (1 << 20)          /* of x: the nearer caches have it */
#define TURNED_ROWS 64                /* times a vector, from which on rows side by side are read as they lie */
#define ROOM_ROWS 256                 /* about the least in a block that packs w for itself, if there are so many: twice
                                         as many where it packs ROOM_LANES */
#define ROOM_LANES 256                /* at most in it: rows of x are copied once for so many. Half of it where rows are
                                         fewer: then more of w is fetched while they go over what is packed */
#define SUM_ROWS 512                  /* at most in a block that adds up elsewhere than in the result */
#define LEAST_PANELS 2                /* in a block of rows that are copied for its panels */
#define LEAST_ROWS 192                /* of a block that packs panels as it goes */
#define DIRECT_BYTES (256 << 10)      /* lanes side by side are read in place while the matrix fits the nearer caches */

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
        if (a->w_strides[d] != 0)
            return;
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

/* The matrices of an operand, each once however often the batch repeats it: their shape and strides to *distinct, their
 * number returned; places gets the number of the matrix for each axis of the batch. 0: no memory. */
static int64_t distinct_matrices(gm_queue *q, const gm_gemm_args *a, const int64_t *strides, gm_gemm_args *distinct,
                                 int64_t **places) {
    int64_t *shape = queue_arena(q, (size_t)(a->ndim + 1) * 3 * sizeof *shape), matrices = 1;
    if (!shape)
        return 0;
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

/* w's lanes as panels in scratch memory. */
static gm_status pack_lanes(gm_queue *q, gm_gemm_args *a) {
    const gm_kernels *kernels = queue_kernels(q);
    gm_gemm_args pack;
    int64_t *places, matrices = distinct_matrices(q, a, a->w_strides, &pack, &places);
    if (!matrices)
        return error_code();
    pack.out = queue_scratch(q, (size_t)(matrices * kernels_gemm_pack_bytes(kernels, a->type, a->lanes, a->k)));
    if (!pack.out)
        return error_code();
    const int64_t panels = matrices * kernels_gemm_panels(kernels, a->type, a->lanes);
    int64_t grain = 1 + GRAIN / (a->k * kernels->gemm_lanes);
    grain = panels >= 64 && grain < 8 ? 8 : grain;
    GM_TRY(queue_launch(q, kernels->gemm_pack, &pack, sizeof pack, panels, grain, 0));
    a->w = pack.out;
    a->packed = true;
    a->w_strides = places;
    return GM_OK;
}

/* x's rows as items in scratch memory. */
static gm_status align_rows(gm_queue *q, gm_gemm_args *a) {
    gm_gemm_args align;
    int64_t *places, matrices = distinct_matrices(q, a, a->x_strides, &align, &places);
    if (!matrices)
        return error_code();
    align.out = queue_scratch(q, (size_t)(matrices * kernels_gemm_align_bytes(a->type, a->rows, a->k)));
    if (!align.out)
        return error_code();
    GM_TRY(queue_launch(q, queue_kernels(q)->gemm_align, &align, sizeof align, matrices * a->rows,
                        64 + GRAIN / (a->k + 1), 0));
    a->x = align.out;
    a->aligned = true;
    a->x_strides = places;
    return GM_OK;
}

/* The operands' roles and their batch in as few dimensions as can be. */
static gm_status arrange(gm_queue *q, const product *p, gm_gemm_args *a) {
    const int64_t *add_batch = p->add ? p->add_batch : p->out_batch;
    const int64_t *const batch[4] = {p->out_batch, p->x_batch, p->w_batch, add_batch};
    loop l;
    GM_TRY(loop_make(q, p->ndim, p->shape, 4, batch, &l));
    *a = (gm_gemm_args){
        .out = p->out, .x = p->x, .w = p->w, .add = p->add, .type = (int)p->type, .rows = p->rows, .lanes = p->lanes,
        .k = p->k, .out_row = p->out_row, .out_lane = p->out_lane, .x_row = p->x_row, .x_k = p->x_k,
        .w_lane = p->w_lane, .w_k = p->w_k, .add_row = p->add_row, .add_lane = p->add_lane, .ndim = l.ndim,
        .shape = l.shape, .out_strides = l.strides[0], .x_strides = l.strides[1], .w_strides = l.strides[2],
        .add_strides = l.strides[3], .alpha = p->alpha, .beta = p->beta};
    if (p->image)
        return GM_OK;
    fold_batch_into_rows(a);
    if (p->lanes == 1 && a->type != GM_COMPLEX64)          /* its own order of adding up: see launch_column */
        return GM_OK;
    swap_sides(a);
    fold_batch_into_rows(a);
    swap_sides(a);
    const int64_t width = kernels_gemm_lanes(queue_kernels(q), a->type);
    /* Not complex numbers: the two terms of an imaginary part would be added the other way round. */
    if (a->lanes * 4 <= width && a->rows > width && a->type != GM_COMPLEX64)
        swap_sides(a);
    return GM_OK;
}

/* Lines of k elements side by side: in memory, or as a copy. *batch gets the strides then. */
static gm_status dense_lines(gm_queue *q, const gm_gemm_args *a, const void **p, int64_t lines, int64_t *line,
                             int64_t along, const int64_t **batch) {
    if (along == 1 || a->k <= 1)
        return GM_OK;
    int64_t shape[GM_MAX_NDIM + 2], given[GM_MAX_NDIM + 2], dense[GM_MAX_NDIM + 2], size = lines * a->k;
    int64_t *steps = queue_arena(q, (size_t)(a->ndim + 1) * sizeof *steps);
    if (!steps)
        return error_code();
    for (int d = a->ndim - 1; d >= 0; d--) {               /* what the batch repeats is copied once */
        shape[d] = (*batch)[d] ? a->shape[d] : 1;
        given[d] = (*batch)[d];
        dense[d] = size;
        steps[d] = (*batch)[d] ? size : 0;
        size *= shape[d];
    }
    shape[a->ndim] = lines;
    given[a->ndim] = *line;
    dense[a->ndim] = a->k;
    shape[a->ndim + 1] = a->k;
    given[a->ndim + 1] = along;
    dense[a->ndim + 1] = 1;
    void *copy = queue_scratch(q, (size_t)size * gm_dtype_size((gm_dtype)a->type));
    if (!copy)
        return error_code();
    GM_TRY(launch_copy(q, copy, (gm_dtype)a->type, dense, *p, (gm_dtype)a->type, given, a->ndim + 2, shape));
    queue_fence(q);
    *p = copy;
    *line = a->k;
    *batch = steps;
    return GM_OK;
}

/* Rows of a block of those that are read as they lie: a few where the nearer cache has them; of more, as much of each line
 * of x as there is, for pages are gone over in order. */
static int64_t turned_block(const gm_gemm_args *a) {
    if (a->k * a->x_k * (int64_t)gm_dtype_size((gm_dtype)a->type) <= NEAR_BYTES)
        return 2 * TURNED_ROWS;
    const int64_t threads = engine_threads() > 2 ? engine_threads() : 2;
    const int64_t share = (a->rows / threads + TURNED_ROWS - 1) / TURNED_ROWS * TURNED_ROWS;
    return share < 4 * TURNED_ROWS ? 4 * TURNED_ROWS : share < 16 * TURNED_ROWS ? share : 16 * TURNED_ROWS;
}

/* A matrix times a vector: k as lanes. Its bits are not those of a column among others, but those of a row among
 * others, and of a batch. */
static gm_status launch_column(gm_queue *q, gm_gemm_args *a, double batches) {
    const int64_t rows = 1 + (int64_t)(PIECE_FLOPS / 10) / (2 * a->k + 1);
    const bool turned = a->x_row == 1 && a->rows >= TURNED_ROWS;       /* read as it lies, in long runs of rows */
    if (!turned) {
        GM_TRY(dense_lines(q, a, &a->x, a->rows, &a->x_row, a->x_k, &a->x_strides));
        a->x_k = 1;
    }
    GM_TRY(dense_lines(q, a, &a->w, 1, &a->w_lane, a->w_k, &a->w_strides));
    a->w_k = 1;
    a->few = true;
    a->block_panels = 1;
    a->block_rows = turned ? turned_block(a) : (rows + 3) / 4 * 4;
    a->block_rows = a->block_rows < a->rows ? a->block_rows : a->rows;
    const int64_t blocks = (a->rows + a->block_rows - 1) / a->block_rows * (int64_t)batches;
    const int64_t flops = 2 * a->k * a->block_rows + 1;
    return queue_launch(q, queue_kernels(q)->gemm, a, sizeof *a, blocks, 1 + (int64_t)(PIECE_FLOPS / 10) / flops, 0);
}

/* Blocks so large that w is packed for many rows and x copied for many panels, but enough of them for all threads to
 * end together; and a room for each thread. */
static gm_status make_rooms(gm_queue *q, gm_gemm_args *a, double batches) {
    const gm_kernels *kernels = queue_kernels(q);
    const int64_t threads = engine_threads(), tile = kernels->gemm_rows / 4, wanted = threads > 1 ? 8 * threads : 1;
    const int64_t panels = kernels_gemm_panels(kernels, a->type, a->lanes);
    const bool in_place = a->type == GM_FLOAT32 && a->out_lane == 1 && !a->add;
    const int64_t lanes = a->rows < ROOM_ROWS ? ROOM_LANES / 2 : ROOM_LANES;
    const int64_t most = lanes / kernels->gemm_lanes > 1 ? lanes / kernels->gemm_lanes : 1;
    int64_t groups = 0, blocks = 1;
    for (a->block_panels = panels < most ? panels : most;; a->block_panels /= 2) {
        groups = (int64_t)batches * ((panels + a->block_panels - 1) / a->block_panels);
        blocks = groups >= wanted ? 1 : (wanted + groups - 1) / groups;
        const int64_t least = a->block_panels == most ? 2 * ROOM_ROWS : ROOM_ROWS;
        blocks = blocks * least > a->rows ? (a->rows + least - 1) / least : blocks;
        if (groups * blocks >= wanted || a->block_panels <= LEAST_PANELS)
            break;
    }
    a->block_rows = ((a->rows + blocks - 1) / blocks + tile - 1) / tile * tile;
    if (!in_place && a->block_rows > SUM_ROWS)
        a->block_rows = SUM_ROWS / tile * tile;
    a->block_rows = a->block_rows < a->rows ? a->block_rows : a->rows;
    gm_gemm_rooms *r = &a->rooms;
    r->count = threads;
    r->bytes = kernels_gemm_room_bytes(kernels, a->type, in_place ? 0 : a->block_rows, a->block_panels);
    r->taken = queue_arena(q, (size_t)threads * sizeof *r->taken);
    r->memory = queue_scratch(q, (size_t)(threads * r->bytes));
    if (!r->taken || !r->memory)
        return error_code();
    for (int64_t i = 0; i < threads; i++)
        atomic_init(&r->taken[i], 0);
    return GM_OK;
}

gm_status launch_product(gm_queue *q, const product *p) {
    const gm_kernels *kernels = queue_kernels(q);
    gm_gemm_args a;
    double batches = 1;
    GM_TRY(arrange(q, p, &a));
    for (int d = 0; d < a.ndim; d++)
        batches *= (double)a.shape[d];
    if (a.rows == 0 || a.lanes == 0 || batches == 0)
        return GM_OK;
    if (p->lanes == 1 && !p->image && a.type != GM_COMPLEX64)
        return launch_column(q, &a, batches);
    const bool complex = a.type == GM_COMPLEX64, wide = complex || a.type == GM_FLOAT64;
    const bool items = a.type == GM_FLOAT32 || a.type == GM_FLOAT64;      /* elements are what tiles multiply */
    const bool direct = items && a.w_lane == 1;                           /* and may be read where they are */
    const int64_t item = (int64_t)gm_dtype_size(p->type), bytes = a.k * a.lanes * item;
    const bool far = bytes > DIRECT_BYTES;
    const bool whole = !p->image && kernels_gemm_in_place(kernels, &a) && a.rows * a.k * item <= WHOLE_BYTES;
    const int64_t block = whole ? a.rows : wide ? kernels->gemm_rows / 2 : kernels->gemm_rows;
    const int64_t panels = kernels_gemm_panels(kernels, a.type, a.lanes);
    const double flops = (complex ? 8 : 2) * (double)a.k, total = flops * (double)a.rows * (double)a.lanes * batches;
    /* A block is a thirty-second of the work, but neither too little to be worth it nor too much to end together. */
    double task = total / 32;
    task = task < PIECE_FLOPS ? PIECE_FLOPS : task > TASK_FLOPS ? TASK_FLOPS : task;
    a.block_rows = a.rows < block ? a.rows : block;
    if (whole) {           /* rows enough that packing a panel for them does not count */
        const double rows = task / (flops * (double)kernels_gemm_lanes(kernels, a.type) + 1);
        const int64_t least = LEAST_ROWS > (int64_t)rows ? LEAST_ROWS : (int64_t)rows;
        a.block_rows = a.rows < least ? a.rows : least;
    }
    const double panel = flops * (double)(a.block_rows * kernels_gemm_lanes(kernels, a.type)) + 1;
    a.block_panels = task > GM_GEMM_PANELS * panel ? GM_GEMM_PANELS : task < panel ? 1 : (int64_t)(task / panel);
    a.few = !p->image && !complex && bytes >= FEW_BYTES &&
            ((a.rows <= GM_GEMM_FEW && a.w_lane == 1) || (a.rows <= GM_GEMM_FEW / 2 && a.w_k == 1));
    if (a.few) {           /* memory's speed counts: long runs of lanes side by side */
        const int64_t share = a.w_lane == 1 ? panels / 2 : panels / 8, least = a.w_lane == 1 ? 16 : 1;
        const int64_t most = a.w_lane == 1 ? GM_GEMM_FEW_PANELS / a.rows : 4;
        a.block_panels = share < least ? least : share;
        a.block_panels = a.block_panels < most ? a.block_panels : most;
    }
    if (a.block_panels > panels)
        a.block_panels = panels;
    const int64_t blocks_of_panels = (panels + a.block_panels - 1) / a.block_panels;
    a.block_panels = (panels + blocks_of_panels - 1) / blocks_of_panels;          /* as many in each */
    if (p->image) {
        if (a.rows > block && a.k > 0 && (far || !direct)) {
            GM_TRY(pack_lanes(q, &a));
            queue_fence(q);
        }
    } else if (!a.few && a.k > 0 && a.rows > (far ? GM_GEMM_FEW : block) && (far || !direct)) {
        GM_TRY(make_rooms(q, &a, batches));
        if (a.x_k != 1 && panels > a.block_panels) {
            GM_TRY(align_rows(q, &a));
            queue_fence(q);
        }
    }
    const int64_t row_blocks = (a.rows + a.block_rows - 1) / a.block_rows;
    const int64_t pieces = row_blocks * ((panels + a.block_panels - 1) / a.block_panels) * (int64_t)batches;
    const double grain = (a.few ? PIECE_FLOPS / 10 : PIECE_FLOPS) / (total / (double)pieces + 1);
    if (p->image) {
        gm_conv_args image = *p->image;
        image.product = a;
        return queue_launch(q, kernels->conv, &image, sizeof image, pieces, 1 + (int64_t)grain, 0);
    }
    return queue_launch(q, kernels->gemm, &a, sizeof a, pieces, 1 + (int64_t)grain, 0);
}
