/* loops.h - the processor's loops: a table of functions on pointers for each instruction set, and those of their
 * arguments that no contract has. The others are in kernels.h and host.h.
 *  (1) A loop sees no array, allocates nothing and never fails: its callers have checked everything.
 *  (2) It is serial over [begin, end) of its range (kernels.def says of what); the launcher cuts ranges.
 *  (3) Neither the range nor what these arguments say of blocks, panels and workspaces changes a bit of the result. */
#ifndef GOMLX_KERNELS_CPU_LOOPS_H
#define GOMLX_KERNELS_CPU_LOOPS_H
#include <stdatomic.h>
#include "best.h"
#include "host.h"
#include "kernels.h"

struct gm_kernels {
    const char *isa, *family;  /* as kernels_isa and kernels_family say */
    int panel_rows;            /* rows of a panel of the block formats: 4, 8 or 16 */
    bool act_pairs;            /* int8 activations of two tokens are interleaved, eight values of each (quants.h) */
    int lanes;                 /* floats in a vector */
    int gemm_rows, gemm_lanes; /* rows of a block of dense products, float32 lanes of a panel */
    bool gemm_pairs;           /* bfloat16 is multiplied in pairs along k, not as float32 */
#define KERNEL(part, name, range, doc) gm_kernel name;
#include "cpu/kernels.def"
};

/* Memory that a thread takes while it works. */
typedef struct {
    _Atomic int32_t *taken; /* [count], all 0 before and after a run */
    char *memory;
    int64_t count, bytes;
} gm_workspaces;

/* ---- what rows come to ---- */
/* Once ids has the first extreme of each of n rows, of which one that is no number is the first, and sums the log-sums.
 */
typedef struct {
    gm_best_rows_args rows;
    const float *sums;
    int64_t n;
} gm_put_best_args;

/* ---- orders and running sums ---- */
/* scan (inner 1) goes over rows, or, with carry, over blocks of GM_SCAN_BLOCK elements of rows: then scan_totals and
 * scan_carries went before it. The bits are the same. */
#define GM_SCAN_BLOCK 2048
typedef gm_scan_args gm_scan_totals_args;
typedef gm_scan_args gm_scan_carries_args;
typedef gm_scan_args gm_scan_columns_args;

/* One long row of a type of at most 32 bits. Items: keys (width 4), or keys above indices (width 8). radix_keys makes
 * items of elements; for each digit, from the last one, radix_count counts it in each chunk, radix_offsets makes
 * positions of the counts, radix_place moves the items; radix_values makes elements, or indices, of items. */
typedef struct {
    void *to;
    const void *from;
    uint32_t *counts; /* [chunks][1 << bits] */
    int type, width, shift, bits;
    int64_t length, chunk;
} gm_radix_args;
typedef gm_radix_args gm_radix_keys_args;
typedef gm_radix_args gm_radix_count_args;
typedef gm_radix_args gm_radix_offsets_args;
typedef gm_radix_args gm_radix_place_args;
typedef gm_radix_args gm_radix_values_args;

/* ---- Fourier transforms ---- */
typedef struct {
    double *roots;
    int64_t n;
} gm_fft_roots_args;
typedef struct {                     /* for other lengths n: plan is of a length m of at least 2 n - 1 */
    double *chirp, *spectrum, *work; /* [2 n], [2 m], [2 m] */
    int64_t n;
    gm_fft_plan plan;
} gm_fft_chirp_args;
#define GM_FFT_STACK 1024
#define GM_FFT_WORK(n, plan_n) ((n) == (plan_n) ? 4 * (n) : 2 * (n) + 4 * (plan_n))

/* ---- dense products ---- */
/* out[row][lane] = sum over k of x[row][k] * w[k][lane] for every matrix of a batch; with add alpha * that + beta *
 * add. One piece of the range is block_rows rows by block_panels panels of one matrix; the bits do not depend on
 * either. block_rows is at most the table's gemm_rows (half of it for f64 and c64), but any number with workspaces,
 * or where tiles read x and write out where they are: kernels_gemm_in_place. */
typedef struct {
    void *out;
    const void *x, *w, *add; /* add NULL: none */
    int type;                /* of all: f16, bf16, f32, f64, c64 (without add) */
    bool few;                /* for at most GM_GEMM_FEW rows, or one lane; not c64 */
    bool packed, aligned;    /* w is what gemm_pack makes, x what gemm_align makes; then
                                their strides of the batch count matrices */
    int32_t *finite;         /* of each panel that gemm_pack packs, of f16, bf16 or f32: none
                                of w's items is infinite or NaN; NULL: not needed */
    int64_t rows, lanes, k;
    int64_t out_row, out_lane, x_row, x_k, w_lane, w_k, add_row, add_lane;
    int ndim;
    const int64_t *shape, *out_strides, *x_strides, *w_strides, *add_strides; /* of the batch */
    int64_t block_rows, block_panels;
    gm_workspaces
        workspaces; /* as many as threads, or none; not where packed; of kernels_gemm_workspace_bytes for a block */
    float alpha, beta;
} gm_gemm_args;
#define GM_GEMM_FEW 8
#define GM_GEMM_FEW_PANELS 128           /* rows * panels, at most, in a block of few; */
#define GM_GEMM_PANELS 8                 /* panels in any other */
#define GM_GEMM_STEPS 128                /* of k in a chain: gemm_tile.inc */
#define GM_GEMM_SLAB 512                 /* of k in a workspace: gemm_slab.inc */
typedef gm_gemm_args gm_gemm_pack_args;  /* out: w's lanes as panels, of all matrices of the batch */
typedef gm_gemm_args gm_gemm_align_args; /* out: x's rows as items, side by side */

/* out[item] = x[x_index[item]] @ w[w_index[item]]: product.rows are of one item, out's of all of them; its batch does
 * not count. A piece is block_panels panels of one matrix of w, at most GM_GEMM_FEW_PANELS / GM_GEMM_FEW. */
typedef struct {
    gm_gemm_args product;
    const int32_t *x_index, *w_index;                          /* beyond the matrices: the first or the last */
    int64_t items, x_matrices, w_matrices, x_matrix, w_matrix; /* how many; elements from one to the next */
} gm_gather_gemm_args;

/* out[position][filter] = sum over taps and channels of image[position * stride + tap * dilation - low] * w, for images
 * of three spatial axes, whose items are `spread` apart with zeros between. In `product`, rows are the positions of all
 * images, x is the image, k = taps * channels, and the batch are groups of channels. */
typedef struct {
    gm_gemm_args product;
    int64_t in[3], out[3], taps[3], stride[3], low[3], dilation[3], spread[3];
    int64_t channels, filters, image, steps[3]; /* of a group; elements from one image, item to the next */
} gm_conv_args;
/* product.lanes: filters of all groups; product.w [taps][channels][lanes] float32, w_k apart; f16, bf16, f32. Of a
 * group no more channels than filters, half the table's lanes at most, and a divisor of them. */
typedef gm_conv_args gm_conv_groups_args;
/* Whether some tap may fall outside the image, or between its items. */
static inline bool kernels_conv_has_edges(const gm_conv_args *a) {
    bool edges = false;
    for (int d = 0; d < 3; d++) {
        const int64_t last = (a->out[d] - 1) * a->stride[d] + (a->taps[d] - 1) * a->dilation[d] - a->low[d];
        edges = edges || a->low[d] > 0 || last >= a->in[d] || a->spread[d] != 1;
    }
    return edges;
}
#define GM_CONV_TAPS 512 /* at most for conv_groups */

/* Whether tiles read rows of x in place. */
static inline bool kernels_gemm_reads_rows(bool has_pairs, int type, int64_t rows, int64_t k, int64_t x_row,
                                           int64_t x_k) {
    const bool pairs = type == GM_T_BF16 && has_pairs && k % 2 == 0;
    /* They would share few of the cache's sets. */
    const bool crowded = x_row * (pairs ? 2 : type == GM_T_F64 ? 8 : 4) % 2048 == 0 && rows > 4;
    return x_k == 1 && !crowded && (pairs || type == GM_T_F32 || type == GM_T_F64);
}
/* And write what they add up: then a block has any number of rows. */
static inline bool kernels_gemm_in_place(const gm_kernels *t, const gm_gemm_args *a) {
    const int64_t width = t->gemm_lanes / 2;
    return kernels_gemm_reads_rows(t->gemm_pairs, a->type, a->rows, a->k, a->x_row, a->x_k) && a->out_lane == 1 &&
           !a->add &&
           (a->type == GM_T_F32 || (a->type == GM_T_F64 ? a->lanes % width == 0 : a->k <= 2 * GM_GEMM_STEPS));
}
/* Lanes of a panel of gemm_pack; bytes of a packed or aligned matrix, enough for any kind of items. */
static inline int64_t kernels_gemm_lanes(const gm_kernels *k, int type) {
    return type == GM_T_F64 ? k->gemm_lanes / 2 : k->gemm_lanes;
}
static inline int64_t kernels_gemm_panels(const gm_kernels *k, int type, int64_t lanes) {
    const int64_t width = kernels_gemm_lanes(k, type);
    return (lanes + width - 1) / width;
}
static inline int64_t kernels_gemm_pack_bytes(const gm_kernels *k, int type, int64_t lanes, int64_t row_values) {
    return kernels_gemm_panels(k, type, lanes) * k->gemm_lanes * 4 * (type == GM_T_C64 ? 2 : 1) * row_values;
}
/* Panels of a slab, and sums of all rows. */
static inline int64_t kernels_gemm_workspace_bytes(const gm_kernels *k, int type, int64_t block_rows,
                                                   int64_t block_panels) {
    const int64_t lines = block_rows * (type == GM_T_C64 ? 2 : 1), line = block_panels * k->gemm_lanes * 4;
    return (GM_GEMM_SLAB + lines) * line;
}
static inline int64_t kernels_gemm_align_bytes(int type, int64_t rows, int64_t row_values) {
    return rows * (row_values * (type == GM_T_F64 || type == GM_T_C64 ? 8 : 4) + 128) * (type == GM_T_C64 ? 2 : 1);
}

/* ---- packed matrices ---- */
/* Bytes of [rows, k] packed with this table's panels: whole panels. */
static inline int64_t kernels_panel(const gm_kernels *k, int format) {
    return format <= GM_QUANT_bf16 ? GM_DENSE_PANEL : k->panel_rows;
}
static inline int64_t kernels_panels(const gm_kernels *k, int format, int64_t rows) {
    int64_t p = kernels_panel(k, format);
    return (rows + p - 1) / p;
}
static inline int64_t kernels_packed_bytes(const gm_kernels *k, int format, int64_t rows, int64_t row_values) {
    return kernels_panels(k, format, rows) * kernels_panel(k, format) * (row_values / gm_quants[format].values) *
           gm_quants[format].bytes;
}
typedef struct {
    void *out;
    const void *in;
    const int32_t *row_map;
    int format;
    int64_t rows, k;
} gm_unpack_args;
typedef struct {
    float *out;
    int64_t out_stride; /* [tokens, rows] */
    const void *x;
    int64_t x_stride; /* float32 rows; matmul_int8: packed activations, stride unused */
    bool x_bf16;      /* matmul_bf16: x is bfloat16 rows */
    const void *weight;
    int format;
    const float *bias;     /* [rows] or NULL */
    const float *residual; /* [tokens, rows] with out_stride, added last; may be out itself; NULL */
    int64_t rows, k, tokens;
} gm_matmul_args;
/* Rows [row, row + rows) of the columns, up to the end of a panel, become panels [GM_GEMM_STEPS][gemm_lanes]. */
typedef struct {
    float *slab;
    const void *weight;
    int format;
    int64_t k, row, rows, column, columns;
} gm_columns_unpack_args;
/* out [tokens, k] = x [tokens, rows] @ weight, or that more than out has (onto): rows of the matrix that come in
 * several launches are a multiple of GM_GEMM_STEPS in all but the last. A piece of the range is `share` rows of x by
 * GM_COLUMN_BLOCK columns; the bits do not depend on it. A workspace has GM_COLUMN_WORKSPACE bytes. */
typedef struct {
    float *out;
    const float *x;
    int64_t x_row;
    const void *weight;
    int format;
    int64_t rows, k, tokens, share;
    bool onto;
    gm_kernel unpack; /* columns_unpack */
    gm_workspaces workspaces;
} gm_matmul_columns_args;
#define GM_COLUMN_BLOCK 256
#define GM_COLUMN_WORKSPACE (GM_GEMM_STEPS * GM_COLUMN_BLOCK * 4)
/* ---- products of numbers rounded to bfloat16 ---- */
/* Tiles are 16 rows or columns by 32 values of k: of x [16 rows][32], of a matrix [16 pairs of k][16 columns][2]; one
 * is filled up with zeros along k. */
#define GM_TILE_LINES 16
#define GM_TILE_K 32
#define GM_TILE_ITEMS (GM_TILE_LINES * GM_TILE_K)
#define GM_ROUNDED_K 512       /* of a slab: whole blocks of every format */
#define GM_ROUNDED_COLUMNS 256 /* likewise */
#define GM_ROUNDED_TILES (GM_ROUNDED_K / GM_TILE_K)
#define GM_ROUNDED_SLAB_BYTES (2 * GM_ROUNDED_K * GM_ROUNDED_COLUMNS)
#define GM_ROUNDED_SLABS 4 /* one after another along k, which rows go over at once, at most */
#define GM_ROUNDED_SUM_BYTES (4 * 2 * GM_TILE_LINES * GM_ROUNDED_COLUMNS)
static inline int64_t kernels_rounded_workspace_bytes(int64_t depth, int64_t columns) {
    const int64_t slabs = (depth + GM_ROUNDED_K - 1) / GM_ROUNDED_K, blocks = columns / GM_ROUNDED_COLUMNS;
    return GM_ROUNDED_SUM_BYTES +
           blocks * GM_ROUNDED_SLAB_BYTES * (slabs < GM_ROUNDED_SLABS ? slabs : GM_ROUNDED_SLABS);
}
static inline int64_t kernels_tiles(int64_t n, int64_t of) { return (n + of - 1) / of; }
/* Bytes of the tiles of x [rows, k]; rows that are filled up are zeros. */
static inline int64_t kernels_rounded_bytes(int64_t rows, int64_t k) {
    return kernels_tiles(rows, GM_TILE_LINES) * kernels_tiles(k, GM_TILE_K) * GM_TILE_ITEMS * 2;
}
/* What rows of x are times `down`, tiles of its k; rank 0: nothing. They are added up in `sums`, float32
 * [rows][GM_ROUNDED_RANK], from what it has (add) or from zero; out: they are whole, and go, times the scale, to out
 * [rows][rank] and to a tile for each 16 rows. */
typedef struct {
    int64_t rank;
    const uint16_t *down;
    int64_t down_lines; /* items from 16 ranks to the next */
    float *sums, *out;
    uint16_t *tiles;
    float scale;
    bool add;
} gm_rounded_low;
typedef struct { /* out: for each 16 rows of x their tiles along k */
    uint16_t *out;
    const float *x;
    int64_t x_row, rows, k;
    gm_rounded_low low;
} gm_rounded_rows_args;
/* A float32 matrix as tiles as of packed ones. turned: its rows are the lines and its columns k, else the reverse. */
typedef struct {
    uint16_t *out; /* for each 16 lines their tiles along k */
    const float *x;
    int64_t rows, columns;
    bool turned;
} gm_rounded_matrix_args;
/* Rows [row, row + rows) and columns [column, column + columns) of the matrix as a slab of tiles, for each 16 lines of
 * the side that is not k `tiles` of them, which hold all k. turned: k are the columns, else the rows. Both begin with a
 * whole tile, and rows and columns with a block of the format; there are at most GM_ROUNDED_K of k and
 * GM_ROUNDED_COLUMNS of the others, whole blocks of the format or what is left of the matrix. */
typedef struct {
    uint16_t *slab;
    const void *weight;
    int format;
    int64_t k, row, rows, column, columns;
    bool turned;
    int64_t tiles;
} gm_rounded_unpack_args;
/* out [tokens, rows] = x @ weight.T where turned, else out [tokens, k] = x @ weight, or that more than out has (onto).
 * A piece of the range is `share` rows of x, whole tiles, by `columns` of out, a multiple of GM_ROUNDED_COLUMNS; the
 * bits do not depend on these. A workspace has kernels_rounded_workspace_bytes of what is summed along, k or rows, and
 * `columns`. */
typedef struct {
    float *out;
    int64_t out_row;
    const uint16_t *x; /* tiles */
    const void *weight;
    int format;
    int64_t rows, k, tokens, share, columns;
    bool turned, onto;
    const float *bias, *residual; /* as in the contract */
    const uint16_t *low, *up;     /* of the term: a tile for each 16 rows, and for each 16 columns of out; or NULL */
    gm_kernel unpack;             /* rounded_unpack */
    gm_workspaces workspaces;
} gm_rounded_product_args;
/* ---- the loss of rows whose logits are such products ---- */
/* Rows of the matrix go GM_ROUNDED_COLUMNS at a time. A launch has GM_LOSS_PARTS runs of them, each for a part, which
 * goes on from launch to launch: what it has found so far is its own, so that threads share the matrix and the bits are
 * those of its shape. */
#define GM_LOSS_RUN 2048
#define GM_LOSS_PARTS 8
/* Floats of what a part sums for 32 rows of x: tiles. */
static inline int64_t kernels_loss_floats(int64_t k) {
    return kernels_tiles(k, 2 * GM_TILE_LINES) * 4 * GM_TILE_LINES * GM_TILE_LINES;
}
static inline int64_t kernels_loss_workspace_bytes(int64_t k) {
    const int64_t along = kernels_tiles(k, GM_ROUNDED_K) * GM_ROUNDED_K,
                  across = kernels_tiles(k, GM_ROUNDED_COLUMNS) * GM_ROUNDED_COLUMNS;
    return GM_ROUNDED_SUM_BYTES + GM_ROUNDED_COLUMNS * (2 * GM_TILE_LINES + along + across) * 2;
}
/* What parts find: of each of their rows the highest logit so far and the sum of exp(logit - that), both without the
 * target's, [parts][tokens][2]; the target's logit [tokens]; and the sum of exp(logit - the highest) * its row of the
 * matrix, kernels_loss_floats(k) for each 32 rows of a part, or NULL. */
typedef struct {
    float *weights, *chosen, *sums;
    int64_t parts, tokens, k;
    float softcap;
} gm_loss_found;
/* Rows [first, first + rows) of the matrix, which are at `weight`, a multiple of a whole launch. A piece of the range
 * is `share` rows of x, a multiple of 32, and a part; the bits do not depend on it. A workspace has
 * kernels_loss_workspace_bytes(k). */
typedef struct {
    gm_loss_found found;
    const uint16_t *x; /* tiles */
    const void *weight;
    int format;
    const float *bias; /* of these rows, or NULL */
    const int32_t *targets;
    int64_t first, rows, share;
    gm_kernel unpack; /* rounded_unpack */
    gm_workspaces workspaces;
} gm_rounded_loss_part_args;
/* lines, which may be grad: of each row of x its target's row of the matrix. */
typedef struct {
    gm_loss_found found;
    float *loss, *grad; /* grad NULL: the loss alone */
    const float *lines;
} gm_rounded_loss_end_args;
typedef gm_matmul_args gm_matmul_float_args;
typedef gm_matmul_args gm_matmul_bf16_args;
typedef gm_matmul_args gm_matmul_int8_args;
/* glu of the products of x with two matrices of one size, which have neither bias nor residual. GM_FORM_INT8: rows is a
 * multiple of 32, and a range begins with a block of activations. */
typedef struct {
    void *out;
    gm_row_form form;        /* [tokens, out_rows]: what the next product reads */
    bool int8, bf16;         /* which product: matmul_int8, matmul_bf16, or matmul_float */
    gm_matmul_args gate, up; /* their out is not used; dense ones have one format */
    gm_glu_args glu;         /* kind, alpha and limit */
    int64_t row, out_rows;   /* values of a row of out; those of gate and up come from `row` on */
} gm_matmul_glu_args;

/* ---- MLX's quantised matrices ---- */
/* x [items, tokens, n] and matrix [rows, k] give [items, tokens, m]; item i has x number x_index[i] and matrix number
 * matrix_index[i] (both 0 when NULL). One that is out of range gives zeros. n and m are k and rows for group_matmul,
 * rows and k for group_matmul_columns. */
typedef struct {
    gm_grouped w;
    const float *x;
    int x_type; /* group_matmul: as group_arrange leaves those of x_type; else float32 */
    int64_t x_count, items, tokens;
    const int64_t *x_index, *matrix_index;
    void *out;
    int out_type; /* f32, f16 or bf16, contiguous */
} gm_group_matmul_args;
typedef gm_group_matmul_args gm_group_matmul_columns_args;
/* Rows of x in the order in which group_matmul reads them; group_arranged() floats for each. */
typedef struct {
    float *out;
    const void *in;
    int in_type;
    int64_t k;
    int mode, bits, group;
} gm_group_arrange_args;
#define GM_GROUP_ROWS 16   /* rows of a matrix that are one unit of group_matmul's range */
#define GM_GROUP_TOKENS 64 /* tokens of one unit of group_matmul_columns' range */
/* Whole values in a window, the 32 bits or less of a row that one lane takes. */
static inline int64_t group_fields(int bits) {
    return bits == 1 ? 32 : bits == 2 ? 16 : bits == 3 || bits == 4 ? 8 : 4;
}
/* Floats of an arranged row, which need not use all of them: for every `lanes` groups (a span; the last may be shorter)
 * their sums of x, GM_AFFINE alone, then lanes windows after lanes windows: field 0 of each, field 1 of each, ... */
static inline int64_t group_arranged(int lanes, int mode, int bits, int group, int64_t k) {
    const int64_t sums = mode == GM_AFFINE ? lanes : 0, unit = lanes * group_fields(bits);
    const int64_t span = (int64_t)lanes * group, rest = k % span;
    return k / span * (span + sums) + (rest ? (rest + unit - 1) / unit * unit + sums : 0);
}
/* Units of group_matmul_columns' range: columns that one register's windows hold, times GM_GROUP_TOKENS tokens. */
static inline int64_t group_column_units(int lanes, int bits, int64_t k, int64_t tokens) {
    const int64_t unit = lanes * group_fields(bits);
    return (k + unit - 1) / unit * ((tokens + GM_GROUP_TOKENS - 1) / GM_GROUP_TOKENS);
}

/* ---- mixtures of experts ---- */
/* Pairs sorted by expert, what expert_sort finds: sorted pair i is pair order[i], and pair p is sorted pair sorted[p].
 * Group g, of *count, has the pairs of expert[g], sorted pairs begin[g] up to begin[g + 1]; owner[i] is the group of
 * sorted pair i. cost[g] is what the groups before g cost in one panel of a matrix. */
typedef struct {
    int32_t *order, *sorted, *owner; /* [pairs] */
    int32_t *expert, *begin, *count; /* [groups], [groups + 1], [1]; groups: the lesser of experts and pairs */
    int64_t *cost;                   /* [groups + 1] */
} gm_expert_groups;
typedef struct { /* ids beyond the experts count as the first or the last */
    gm_expert_groups groups;
    const int32_t *ids;
    int32_t *counts; /* counts [experts]: scratch */
    int64_t pairs, experts;
} gm_expert_sort_args;
/* Rows of `dim` values, sorted: float32, or int8 activations in tiles of one group each. */
typedef struct {
    gm_expert_groups groups;
    void *out;
    const float *x;
    int64_t top_k, dim;
    bool int8;
} gm_expert_gather_args;
typedef struct {
    gm_expert_groups groups;
    void *out;
    gm_glu_args glu;
    bool int8;
} gm_expert_glu_args;
/* Rows of sorted pairs times their group's matrix, for one or two stacks: product has the first matrix and its bias, x
 * and out of all pairs. Units [0, units) are of stack 0, those from there on of stack 1. */
typedef struct {
    gm_matmul_args product;
    int64_t matrix_bytes, panels;
    bool int8, bf16;
} gm_expert_stack;
typedef struct {
    gm_expert_groups groups;
    gm_expert_stack stack[2];
    int64_t units;
} gm_expert_matmul_args;
typedef struct { /* out[t] = sum over i < top_k, in order, of weights[t][i] * y[sorted]; weights NULL: ones */
    float *out;
    const float *y, *weights;
    const int32_t *sorted; /* sorted [pairs] or NULL: y is not sorted */
    int64_t top_k, dim;
} gm_expert_sum_args;
#define GM_EXPERT_COLUMNS 512 /* columns of one unit of expert_sum */
/* Rows of sorted pairs times their group's matrix as it stands: product has the first matrix, x and out of all pairs.
 * The range is as many times GM_COLUMN_BLOCK columns as there may be groups. */
typedef struct {
    gm_expert_groups groups;
    gm_matmul_columns_args product;
    int64_t matrix_bytes;
} gm_expert_columns_args;
/* Of rows of sorted pairs: what the unit's output gives to the weight of its pair, and, times that weight, to gate and
 * up, in whose place it may be. glu.grad is the cotangent of a unit of weight 1, `grad` that of what its expert gives,
 * whose bias [experts, out_dim] or NULL has a share of the weight too. */
typedef struct {
    gm_expert_groups groups;
    gm_glu_grad_args glu;
    const float *weights, *grad, *bias;
    float *dweights; /* as weights, of pairs */
    int64_t dim, out_dim;
} gm_expert_glu_grad_args;

/* ---- attention and layers with a state ---- */
typedef gm_attention_args gm_attention_split_args;
typedef gm_attention_args gm_attention_merge_args;
#define GM_CONV_CHANNELS 128 /* of one unit of cached_conv */
#define GM_DELTA_ROWS 16     /* of the state, of one unit of cached_gated_delta */
#define GM_SDPA_BLOCK 256    /* keys of a share */
#define GM_SDPA_LANES 16     /* packed_k: [batches * n_kv_heads][tile][dim][GM_SDPA_LANES] */
#define GM_SDPA_FEW 8        /* sdpa_split: queries of one kv head, at most */
typedef gm_sdpa_args gm_sdpa_pack_args;
typedef gm_sdpa_args gm_sdpa_split_args;
typedef gm_sdpa_args gm_sdpa_merge_args;
static inline int64_t gm_sdpa_tiles(int64_t keys) { return (keys + GM_SDPA_LANES - 1) / GM_SDPA_LANES; }
static inline int64_t gm_sdpa_blocks(int64_t keys) { return (keys + GM_SDPA_BLOCK - 1) / GM_SDPA_BLOCK; }
/* Queries of one kv head that sdpa does together. */
static inline int64_t gm_sdpa_tile(int64_t value_dim) {
    int64_t fit = 12 * GM_SDPA_DIM / (value_dim > 0 ? value_dim : 1) / 12 * 12;
    return fit < 12 ? 12 : fit > 48 ? 48 : fit;
}

/* ---- low-rank terms ---- */
/* What a unit of low_rank_down and low_rank_up is: so many ranks, or columns, for so many rows at most. */
#define GM_LOW_RANK_ROWS 48
#define GM_LOW_RANK_RANKS 2
#define GM_LOW_RANK_COLUMNS 64
static inline int64_t low_rank_blocks(int64_t rows) { return (rows + GM_LOW_RANK_ROWS - 1) / GM_LOW_RANK_ROWS; }
static inline int64_t low_rank_strips(int64_t columns) {
    return (columns + GM_LOW_RANK_COLUMNS - 1) / GM_LOW_RANK_COLUMNS;
}
static inline int64_t low_rank_down_units(const gm_low_rank_term *t) {
    return (t->rank + GM_LOW_RANK_RANKS - 1) / GM_LOW_RANK_RANKS * low_rank_blocks(t->rows);
}
static inline int64_t low_rank_up_units(const gm_low_rank_part *p) {
    return low_rank_strips(p->width) * low_rank_blocks(p->rows);
}

/* ---- training ---- */
#define GM_SEQUENCE_ROWS 96 /* of a tile of sequence_attention_forward */
#define GM_SEQUENCE_KEYS 64 /* of a block of sequence_attention_back */
/* Numbers of a block of keys or of rows, where dim is filled up to whole tiles. */
static inline int64_t kernels_sequence_items(int64_t dim) {
    return GM_SEQUENCE_KEYS * kernels_tiles(dim, GM_TILE_K) * GM_TILE_K;
}
/* delta [n, n_heads]: what each row's output times its cotangent is. */
typedef struct {
    gm_sequence_attention_grad_args grad;
    float *delta;
} gm_sequence_attention_delta_args;
/* A workspace has the keys and values of a block, a tile's scores and sums, and two numbers of each of its rows. */
#define GM_SEQUENCE_FORWARD_BYTES                                                                                      \
    (4 * (2 * GM_SEQUENCE_KEYS * GM_SEQUENCE_DIM + GM_SEQUENCE_ROWS * (GM_SEQUENCE_KEYS + GM_SEQUENCE_DIM + 2)))
typedef struct {
    gm_sequence_attention_args forward;
    gm_workspaces workspaces; /* of GM_SEQUENCE_FORWARD_BYTES */
} gm_sequence_attention_forward_args;
/* What keys [first_key, first_key + keys) of each sequence give back, whole blocks: dq is added up over launches, from
 * the first keys on. dk and dv are [n_heads, n, dim]. */
typedef struct {
    gm_sequence_attention_grad_args grad;
    int64_t first_key, keys;
    gm_workspaces workspaces; /* of kernels_sequence_workspace_bytes */
    const float *delta;       /* as above */
} gm_sequence_attention_back_args;
static inline int64_t kernels_sequence_workspace_bytes(int64_t dim) {
    return (8 * kernels_sequence_items(dim) + 2 * GM_SEQUENCE_KEYS * GM_SEQUENCE_KEYS) * 4;
}
/* The same where products are rounded. Blocks are GM_SEQUENCE_KEYS keys, or rows. keys: factors of each block of them,
 * [blocks][n_kv_heads][forms], kernels_sequence_items each. */
enum { GM_KEYS_FORWARD = 2, GM_KEYS_BACK = 3, GM_ROW_FORMS = 4 };
typedef struct {
    gm_sequence_attention_args attention;
    uint16_t *keys;
    int forms;
} gm_rounded_attention_keys_args;
typedef struct {
    gm_sequence_attention_args forward;
    const uint16_t *keys;
    gm_workspaces workspaces; /* of kernels_rounded_forward_bytes */
} gm_rounded_attention_forward_args;
#define GM_SEQUENCE_STRIP (2 * GM_TILE_LINES) /* rows whose scores with a block of keys are in the nearest cache */
/* Scores and weights of a strip, two numbers of each row of a block, what they sum, and the rows as a factor. */
static inline int64_t kernels_rounded_forward_bytes(int64_t dim) {
    return GM_SEQUENCE_KEYS * (GM_SEQUENCE_STRIP * (4 + 2) + 2 * 4) + kernels_sequence_items(dim) * (4 + 2);
}
/* Rows of each sequence and of the heads that share keys go in parts, of about as many products, which sum dk and dv
 * each for itself: at most GM_BACK_PARTS, so that processors have as much to do each where heads are few. */
#define GM_BACK_PARTS 4
static inline int64_t kernels_back_parts(int64_t n_kv_heads) {
    return n_kv_heads >= 8 ? 1 : n_kv_heads >= 4 ? 2 : GM_BACK_PARTS;
}
/* Rows of a part that go over all keys at once, whole blocks: with all that they need they are in a thread's cache. */
static inline int64_t kernels_back_span(int64_t dim) {
    const int64_t blocks = (1 << 15) / GM_SEQUENCE_KEYS / dim;
    return GM_SEQUENCE_KEYS * (blocks < 1 ? 1 : blocks < 8 ? blocks : 8);
}
typedef struct {
    gm_sequence_attention_grad_args grad;
    const uint16_t *keys;
    const float *delta;
    float *sums;              /* [blocks][n_kv_heads][parts][2], kernels_sequence_items each */
    int64_t first_row, rows;  /* of each part, whole spans */
    gm_workspaces workspaces; /* of kernels_rounded_back_bytes */
} gm_rounded_attention_back_args;
/* Likewise, of a strip of rows, with the weights of a span of them, what it sums, and its rows as factors. */
static inline int64_t kernels_rounded_back_bytes(int64_t dim) {
    const int64_t strip = GM_SEQUENCE_KEYS * GM_SEQUENCE_STRIP, span = kernels_back_span(dim);
    return strip * (2 * 4 + 2) + span * (2 * 4 + 2 * 2 * GM_SEQUENCE_KEYS) +
           span / GM_SEQUENCE_KEYS * kernels_sequence_items(dim) * (4 + GM_ROW_FORMS * 2);
}
typedef struct { /* out [n, n_kv_heads, dim], heads [n_heads, n, dim] */
    float *out;
    const float *heads;
    int64_t n;
    int n_heads, n_kv_heads, dim;
    bool tiled; /* the heads of a group are n_kv_heads apart, else side by side */
} gm_sequence_head_sum_args;
typedef gm_sequence_conv_grad_args gm_sequence_conv_back_args;
#define GM_DELTA_TILE 4   /* rows of a state that go through a sequence together */
#define GM_DELTA_STEPS 64 /* tokens from one kept state to the next */
typedef struct {
    gm_sequence_delta_args forward;
    gm_workspaces workspaces; /* of a tile's state */
} gm_sequence_delta_forward_args;
/* What rows [row, row + GM_DELTA_ROWS) of each state give back. dq and dk are [n_heads, n, n_keys]; they, ddecay and
 * dbeta are added up over launches, from row 0 on. */
typedef struct {
    gm_sequence_delta_grad_args grad;
    int64_t row;
    gm_workspaces workspaces; /* of delta_workspace_floats */
} gm_sequence_delta_back_args;
/* Of a tile: its state and that state's cotangent, the kept states of n tokens, and of the tokens from one to the next
 * the states before them and what they change. */
static inline int64_t delta_workspace_floats(int64_t n, int64_t n_keys) {
    return GM_DELTA_TILE * (n_keys * (2 + n / GM_DELTA_STEPS + 1 + GM_DELTA_STEPS) + GM_DELTA_STEPS);
}
#endif
