/* kernels.h - the loops of the processor, a table of functions on pointers, and their arguments, which contracts share.
 *  (1) kernels see no array, allocate nothing and never fail: their callers have checked everything.
 *  (2) A kernel is serial over [begin, end) of its range (kernels.def says of what); the launcher cuts ranges.
 *  (3) Each output element is a fixed tree of operations given by its shape alone, never by the range, the tile,
 *      the batch or the number of threads: the same bits always.
 *  (4) Sums are float32 (or exact integers; float64 for float64), also over float16 and bfloat16.
 * Strides and sizes are in elements. Pointers may be unaligned unless said otherwise. */
#ifndef GOMLX_KERNELS_H
#define GOMLX_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include "batch.h"
#include "quants.h"

/* The element types; gomlx.h publishes the same numbers as gm_dtype. */
enum {
    GM_T_BOOL, GM_T_U8, GM_T_U16, GM_T_U32, GM_T_U64, GM_T_I8, GM_T_I16, GM_T_I32, GM_T_I64,
    GM_T_F16, GM_T_BF16, GM_T_F32, GM_T_F64, GM_T_C64, GM_T_COUNT
};

typedef enum {
    GM_U_ABS, GM_U_NEGATIVE, GM_U_SIGN, GM_U_SQUARE, GM_U_SQRT, GM_U_RSQRT, GM_U_RECIPROCAL, GM_U_EXP, GM_U_EXPM1,
    GM_U_LOG, GM_U_LOG2, GM_U_LOG10, GM_U_LOG1P, GM_U_SIN, GM_U_COS, GM_U_TAN, GM_U_ARCSIN, GM_U_ARCCOS, GM_U_ARCTAN,
    GM_U_SINH, GM_U_COSH, GM_U_TANH, GM_U_ARCSINH, GM_U_ARCCOSH, GM_U_ARCTANH, GM_U_ERF, GM_U_ERFINV, GM_U_SIGMOID,
    GM_U_GELU,
    GM_U_FLOOR, GM_U_CEIL, GM_U_TRUNC, GM_U_ROUND, GM_U_LOGICAL_NOT, GM_U_BITWISE_INVERT, GM_U_ISNAN, GM_U_ISINF,
    GM_U_ISFINITE, GM_U_ISPOSINF, GM_U_ISNEGINF, GM_U_REAL, GM_U_IMAG, GM_U_CONJ, GM_U_COUNT
} gm_unary_op;

typedef enum {
    GM_B_ADD, GM_B_SUBTRACT, GM_B_MULTIPLY, GM_B_DIVIDE, GM_B_FLOOR_DIVIDE, GM_B_REMAINDER, GM_B_POWER, GM_B_MAXIMUM,
    GM_B_MINIMUM, GM_B_LOGADDEXP, GM_B_ARCTAN2, GM_B_EQUAL, GM_B_NOT_EQUAL, GM_B_LESS, GM_B_LESS_EQUAL, GM_B_GREATER,
    GM_B_GREATER_EQUAL, GM_B_LOGICAL_AND, GM_B_LOGICAL_OR, GM_B_LOGICAL_XOR, GM_B_BITWISE_AND, GM_B_BITWISE_OR,
    GM_B_BITWISE_XOR, GM_B_LEFT_SHIFT, GM_B_RIGHT_SHIFT, GM_B_COUNT
} gm_binary_op;

typedef enum { GM_R_SUM, GM_R_PROD, GM_R_MAX, GM_R_MIN, GM_R_ALL, GM_R_ANY, GM_R_LOGSUMEXP, GM_R_COUNT } gm_reduce_op;

/* Elementwise kernels walk out's elements in row-major order of `shape`. Operand strides may be 0 (broadcast) or negative;
 * the pointer is that of index (0, 0, ...). ndim 0 is one element; callers merge dimensions that are contiguous together,
 * so the common case is ndim 1 with strides of 1 or 0. */
typedef struct {
    void *out; const void *in;
    int out_type, in_type, ndim;
    const int64_t *shape, *out_strides, *in_strides;
} gm_copy_args;
/* Copies to places that do not overlap, one after another: part k has the elements starts[k] up to starts[k + 1]. */
typedef struct {
    const gm_copy_args *parts;
    const int64_t *starts;
} gm_copy_parts_args;
/* A copy from or to a region that begins where an array says: in steps[k] elements for each of start[k], which is moved into
 * [0, limits[k]]. */
typedef struct {
    gm_copy_args copy;
    bool on_out;                 /* the region is that of out, else of in */
    int n_starts, start_type;
    const void *start; int64_t start_step;
    const int64_t *steps, *limits;
} gm_copy_at_args;

typedef struct {                 /* out contiguous */
    void *out; const void *in;
    gm_unary_op op; int type;    /* of in; the result's type follows from the op: bool for is*, float32 for real/imag of complex64 */
    int ndim;
    const int64_t *shape, *strides;
} gm_unary_args;

typedef struct {                 /* out contiguous; comparisons and logical ops give bool */
    void *out; const void *a, *b;
    gm_binary_op op; int type;   /* of a and b */
    int ndim;
    const int64_t *shape, *a_strides, *b_strides;
} gm_binary_args;

typedef struct {                 /* out contiguous */
    void *out; const uint8_t *cond; const void *a, *b;
    int item_bytes, ndim;
    const int64_t *shape, *cond_strides, *a_strides, *b_strides;
} gm_select_args;

/* A chain of elementwise steps over tiles that stay in the nearest cache. Operand i of a step is input i, or register
 * i - n_inputs; the last step writes out. */
enum { GM_FUSED_UNARY, GM_FUSED_BINARY, GM_FUSED_SELECT, GM_FUSED_CONVERT };
#define GM_FUSED_INPUTS 16
#define GM_FUSED_REGISTERS 16
#define GM_FUSED_STEPS 64
typedef struct {
    int16_t kind, function;      /* function: gm_unary_op or gm_binary_op */
    int16_t type, out_type;      /* of the operands (of the chosen values for select) and of the result */
    int16_t in[3], out;          /* out: a register */
} gm_fused_step;
typedef struct {                 /* out contiguous */
    void *out;
    int n_inputs, n_steps, out_type, ndim;
    const void *inputs[GM_FUSED_INPUTS];
    int16_t input_types[GM_FUSED_INPUTS];
    const int64_t *shape, *strides[GM_FUSED_INPUTS];
    const gm_fused_step *steps;
} gm_fused_args;

typedef struct { void *out; int type; double start, step; } gm_arange_args;

/* out is contiguous over the kept axes. Sums are made in a fixed tree; sum/prod of bool and small integers give int32
 * (out_type says), max/min keep the type and pass NaN on, all/any give bool. */
typedef struct {
    void *out; const void *in;
    gm_reduce_op op; int in_type, out_type;
    int n_kept; const int64_t *kept_shape, *kept_strides;
    int n_reduced; const int64_t *reduced_shape, *reduced_strides;
} gm_reduce_args;

typedef struct {                 /* out: uint32, contiguous over the kept axes; first extreme wins, NaN counts as the extreme */
    uint32_t *out; const void *in;
    bool max; int type;
    int n_kept; const int64_t *kept_shape, *kept_strides;
    int64_t length, stride;      /* of the axis */
} gm_arg_reduce_args;

/* in and out contiguous, [rows, length, inner], the scan along length; out may be in. op: sum, prod, max, min, logsumexp.
 * scan (inner 1) goes over rows, or, with carry, over blocks of GM_SCAN_BLOCK elements of rows: then scan_totals and
 * scan_carries went before it. The bits are the same. */
#define GM_SCAN_BLOCK 2048
typedef struct {
    void *out; const void *in;
    int op, type;                /* gm_reduce_op; logsumexp of floats and complex64 only */
    bool reverse, exclusive;
    int64_t length, inner;
    double *carry;               /* NULL, or [rows][blocks]: float16, bfloat16 and float32 only */
} gm_scan_args;
typedef gm_scan_args gm_scan_totals_args;
typedef gm_scan_args gm_scan_carries_args;
typedef gm_scan_args gm_scan_columns_args;

/* Rows of `length` contiguous elements, in ascending order; NaN last, stable. */
typedef struct {
    void *out; const void *in;   /* out: the elements, or with places uint32 */
    void *scratch;               /* bytes for each element: 8, or 16 for types of 64 bits and with places */
    int type;
    bool places;
    int64_t length;
} gm_sort_args;
/* One long row of a type of at most 32 bits. Items: keys (width 4), or keys above places (width 8). radix_keys makes items of
 * elements; for each digit, from the last one, radix_count counts it in each chunk, radix_offsets makes places of the counts,
 * radix_place moves the items; radix_values makes elements, or places, of items. */
typedef struct {
    void *to; const void *from;
    uint32_t *counts;            /* [chunks][1 << bits] */
    int type, width, shift, bits;
    int64_t length, chunk;
} gm_radix_args;
typedef gm_radix_args gm_radix_keys_args;
typedef gm_radix_args gm_radix_count_args;
typedef gm_radix_args gm_radix_offsets_args;
typedef gm_radix_args gm_radix_place_args;
typedef gm_radix_args gm_radix_values_args;

/* Rows of `length` contiguous elements of a type of at most 32 bits: those below the k-th in order (from 0), those equal to
 * it, those above; out as in gm_sort_args. */
typedef struct { void *out; const void *in; int type; bool places; int64_t length, k; } gm_partition_args;
/* The last k elements of partition at length - k; floats of at most 32 bits, k at most GM_TOPK_MOST. */
#define GM_TOPK_MOST 1024
typedef struct { void *out; const void *in; int type; int64_t length, k; } gm_topk_args;
/* Where values belong in a sorted row: before the first element that is not less (or, right, that is greater). */
typedef struct { uint32_t *out; const void *sorted, *values; int type; bool right; int64_t length; } gm_search_args;

typedef struct {                 /* out contiguous, of `shape`; in, of in_shape, begins at `low` of it; ndim at least 1 */
    void *out; const void *in, *value;
    int item_bytes, ndim;
    const int64_t *shape, *in_shape, *low, *in_strides;
} gm_pad_args;

/* Where an index that is out of range is told: one of them, when there are several. */
typedef struct { int64_t index; int32_t raised; } gm_index_fault;

/* Where the elements that several index arrays choose together lie: out[i] is the sum of index * step, or INT64_MIN when one
 * is out of range. Strides are those of the index arrays over their common shape. */
typedef struct {
    const void *data; int type; int64_t size, step; const int64_t *strides; gm_index_fault *fault;
} gm_positions_index;
typedef struct {
    int64_t *out;
    int n_indices, ndim;
    const gm_positions_index *indices;
    const int64_t *shape;
} gm_positions_args;

/* A dense side of shape [lead dimensions][count][run] and a sparse side of which one axis is addressed by an index: element
 * (lead, i, r) lies there at lead . sparse_strides + index(lead, i, r) * step + r * sparse_run. Indices count from the end
 * when negative; size < 0: they are int64 positions already (step 1), INT64_MIN for none. One out of range is told to fault,
 * and then reads zeros (take: out is dense, in is sparse) or is left out (scatter: out is sparse, in is dense); where
 * several meet they come in the order of i. The sparse side is of `type`; in of scatter may be a half float while type is
 * float32. */
typedef enum { GM_S_UPDATE, GM_S_ADD, GM_S_MULTIPLY, GM_S_MAX, GM_S_MIN, GM_S_COUNT } gm_scatter_mode;
typedef struct {
    void *out; const void *in; const void *index;
    int type, in_type, index_type, mode;                 /* mode of scatter: gm_scatter_mode */
    int64_t size, step;
    gm_index_fault *fault;                               /* size < 0: NULL, for positions were told of already */
    int ndim;                                            /* of the lead */
    const int64_t *shape, *sparse_strides, *dense_strides, *index_strides;
    int64_t count, dense_step, index_step;
    int64_t run, sparse_run, dense_run, index_run;       /* index_run 0: one index for a whole run */
    /* scatter only. Its range is parts * columns; columns are those of lead and run; part p takes the positions in
     * [span * p / parts, span * (p + 1) / parts). */
    int64_t columns, parts, span;
} gm_index_args;
typedef gm_index_args gm_take_args;
typedef gm_index_args gm_scatter_args;

typedef struct { void *out; const void *in; int type; int64_t dim, in_stride; } gm_softmax_args; /* rows of dim contiguous values, in_stride apart */

/* ---- the draw of a token (cpu/draw.inc) ----
 * Candidates lie in blocks: the first counts[b] of the GM_DRAW_BLOCK elements of block b, in the order of their ids. A logit is
 * (logits[i] - shift) / divisor, and -inf where that is not a number; -inf is a candidate that is never drawn. Its weight is
 * exp(logit - best), 0 below exp(-42): over any vocabulary less than 1e-12 of the mass. Infinite logits that are the best
 * weigh 1. */
#define GM_DRAW_BLOCK 4096
#define GM_DRAW_RUN 256          /* elements whose weights have a sum of their own */
#define GM_DRAW_RUNS (GM_DRAW_BLOCK / GM_DRAW_RUN)
typedef struct {
    const float *logits; const int32_t *ids, *counts;    /* ids NULL: places are ids */
    float shift, divisor;
} gm_candidates;
/* BEST: the greatest logit. MOMENT: how many are more than -inf, and the sum of those. SQUARES: the sum of (logit - centre)^2
 * of those. WEIGHTS: runs [blocks][GM_DRAW_RUNS], the sums of weights, and the sum of weight * (logit - best). */
typedef enum { GM_DRAW_BEST, GM_DRAW_MOMENT, GM_DRAW_SQUARES, GM_DRAW_WEIGHTS } gm_draw_measurement;
typedef struct { double sum; int32_t count; float best; } gm_draw_measured;
typedef struct {
    gm_candidates in;
    gm_draw_measurement what;
    float best, centre;
    gm_draw_measured *out;       /* [blocks] */
    float *runs;
} gm_draw_measure_args;
/* The key of a candidate is its logit; or, typical, -|logit - best - centre - centre_rest|. Those with keys in [low, high] are
 * chosen; of those with the key low only the ids up to last_id. mass: of the chosen ones, and of those with keys above high;
 * counted: each weighs 1. */
typedef struct { double mass, above; } gm_draw_chosen;
typedef struct {
    gm_candidates in;
    bool typical, counted;
    float best, centre, centre_rest, low, high;
    int32_t last_id;
    float *logits; int32_t *ids, *counts;                /* as in's, and may be the same */
    gm_draw_chosen *out;         /* [blocks]; NULL: no masses are asked for */
} gm_draw_choose_args;
typedef struct { gm_candidates in; float best; float *out; } gm_draw_weigh_args;    /* counts and ids are not looked at */

/* ---- random numbers (cpu/random.inc) ---- */
typedef enum { GM_RANDOM_BITS, GM_RANDOM_UNIFORM, GM_RANDOM_NORMAL, GM_RANDOM_GUMBEL, GM_RANDOM_COUNT } gm_random_kind;
/* out [n_keys, words]; the range is n_keys * ceil(words / 2). bits: uint32. Else float32, float16 or bfloat16 values
 * u * factor + shift, rounded to the type at each step: u in [0, 1), erfinv of u in (-1, 1), or -log(-log(u)). */
typedef struct {
    void *out; const uint32_t *keys;      /* [n_keys, 2] */
    gm_random_kind kind; int type;
    int64_t words;                        /* of each key */
    float factor, shift;
} gm_threefry_args;

typedef struct { uint32_t *out; const uint32_t *in; uint32_t *work; int64_t n; } gm_word_order_args;  /* lines of n */

/* ---- Fourier transforms (cpu/fft.inc) ---- */
typedef struct {                     /* of a length without prime factors above 13 */
    int64_t n; const double *roots;  /* exp(-2 pi i k / n) for k < n, pairs */
    int n_factors; int32_t factors[64];
} gm_fft_plan;
typedef struct { double *roots; int64_t n; } gm_fft_roots_args;
typedef struct {                     /* for other lengths n: plan is of a length m of at least 2 n - 1 */
    double *chirp, *spectrum, *work; /* [2 n], [2 m], [2 m] */
    int64_t n; gm_fft_plan plan;
} gm_fft_chirp_args;
typedef enum { GM_FFT_COMPLEX, GM_FFT_FROM_REAL, GM_FFT_TO_REAL } gm_fft_kind;
typedef struct {                     /* lines of in_items: cut or filled up with zeros; n / 2 + 1 items make or come of n real ones */
    float *out; const float *in;     /* complex64 as pairs */
    gm_fft_kind kind; bool inverse;
    int64_t n, in_items; double scale;
    gm_fft_plan plan;
    const double *chirp, *spectrum;  /* NULL: plan.n is n */
    double *work;                    /* GM_FFT_WORK for each line; NULL: n is at most GM_FFT_STACK and plan.n is n */
} gm_fft_args;
#define GM_FFT_STACK 1024
#define GM_FFT_WORK(n, plan_n) ((n) == (plan_n) ? 4 * (n) : 2 * (n) + 4 * (plan_n))

/* ---- linear algebra: contiguous row-major float64 matrices, one after another; a is overwritten ----
 * width 2: complex numbers, pairs of doubles. *failed becomes 1 when a matrix has no answer; work is scratch. */
typedef enum { GM_PART_ALL, GM_PART_LOWER, GM_PART_UPPER } gm_matrix_part;
typedef struct {
    double *a; uint32_t *pivots;     /* [min(rows, cols)]: row i was exchanged with row pivots[i] */
    uint32_t *order;                 /* [rows]: row i of a is row order[i] of L U */
    int64_t rows, cols;
} gm_lu_args;
typedef struct { double *a; uint32_t *pivots; double *sign, *log_abs, *value; int64_t n; } gm_determinant_args;
typedef struct {
    double *a, *b; uint32_t *pivots; /* a [n, n], b [n, cols] */
    int64_t n, cols;
    gm_matrix_part part;             /* the triangle of a that counts */
    bool identity;                   /* b is filled in as the identity */
    int32_t *failed;                 /* singular; NULL: then infinities come out */
} gm_linear_solve_args;
typedef struct { double *a; int64_t n; bool upper; } gm_cholesky_args;
typedef struct {                     /* q [rows, k], r [k, cols], k the lesser; work [rows + cols + k] */
    double *a, *q, *r, *work; int64_t rows, cols;
} gm_qr_args;
typedef struct {                     /* rows >= cols; s [cols]; ut [rows, rows], columns of u as rows; vh [cols, cols]; both or none */
    double *a, *s, *ut, *vh, *work; int64_t rows, cols; int width; int32_t *failed;
} gm_svd_args;
#define GM_SVD_WORK(rows, cols, width) ((cols) + 2 * ((rows) + (cols)) * (width))
typedef struct { double *a, *out, *work; int64_t n; } gm_cofactor_args;   /* out [n, n] */
#define GM_COFACTOR_WORK(n) (GM_SVD_WORK(n, n, 1) + 3 * (n) * (n) + 2 * (n))
typedef struct {                     /* values [n] in rising order; vectors [n, n] as rows, or NULL; upper: the triangle that counts */
    double *a, *values, *vectors, *work; int64_t n; int width; bool upper; int32_t *failed;
} gm_eigh_args;
#define GM_EIGH_WORK(n, width) ((n) + 5 * (n) * (width))
typedef struct {                     /* values [n] and vectors [n, n] (as rows, or NULL) are complex */
    double *a, *values, *vectors, *work; int64_t n; int width; int32_t *failed;
} gm_eig_args;
#define GM_EIG_WORK(n, width) (2 * (n) + (3 * (n) + (n) * (n)) * (width))
/* ---- dense products ---- */
/* out[row][lane] = sum over k of x[row][k] * w[k][lane] for every matrix of a batch; with add alpha * that + beta * add.
 * One piece of the range is block_rows rows by block_panels panels of one matrix; the bits do not depend on either.
 * block_rows is at most the table's gemm_rows (half of it for f64 and c64), but any number with rooms, or where tiles
 * read x and write out where they are: kernels_gemm_in_place. */
/* Memory that a thread takes while it works, of kernels_gemm_room_bytes for a block each. */
typedef struct {
    _Atomic int32_t *taken;                              /* [count], all 0 before and after a run */
    char *memory; int64_t count, bytes;
} gm_gemm_rooms;
typedef struct {
    void *out; const void *x, *w, *add;                  /* add NULL: none */
    int type;                                            /* of all: f16, bf16, f32, f64, c64 (without add) */
    bool few;                                            /* for at most GM_GEMM_FEW rows, or one lane; not c64 */
    bool packed, aligned;                                /* w is what gemm_pack makes, x what gemm_align makes; then
                                                            their strides of the batch count matrices */
    int64_t rows, lanes, k;
    int64_t out_row, out_lane, x_row, x_k, w_lane, w_k, add_row, add_lane;
    int ndim; const int64_t *shape, *out_strides, *x_strides, *w_strides, *add_strides;    /* of the batch */
    int64_t block_rows, block_panels;
    gm_gemm_rooms rooms;                                 /* for as many threads as there are, or none; not with packed */
    float alpha, beta;
} gm_gemm_args;
#define GM_GEMM_FEW 8
#define GM_GEMM_FEW_PANELS 128                           /* rows * panels at most in a block of few; else GM_GEMM_PANELS */
#define GM_GEMM_PANELS 8
#define GM_GEMM_STEPS 128                                /* of k in a chain: gemm_tile.inc */
#define GM_GEMM_SLAB 512                                 /* of k in a room: gemm_slab.inc */
typedef gm_gemm_args gm_gemm_pack_args;                  /* out: w's lanes as panels, of all matrices of the batch */
typedef gm_gemm_args gm_gemm_align_args;                 /* out: x's rows as items, side by side */

/* out[item] = x[x_index[item]] @ w[w_index[item]]: product.rows are of one item, out's of all of them; its batch does not
 * count. A piece is block_panels panels of one matrix of w, at most GM_GEMM_FEW_PANELS / GM_GEMM_FEW. */
typedef struct {
    gm_gemm_args product;
    const int32_t *x_index, *w_index;                    /* beyond the matrices: the first or the last */
    int64_t items, x_matrices, w_matrices, x_matrix, w_matrix;      /* how many; elements from one to the next */
} gm_gather_gemm_args;

/* out[place][filter] = sum over taps and channels of image[place * stride + tap * dilation - low] * w, for images of three
 * spatial axes, whose items lie `spread` apart with zeros between. In `product`, rows are the places of all images, x is
 * the image, k = taps * channels, and the batch are groups of channels. */
typedef struct {
    gm_gemm_args product;
    int64_t in[3], out[3], taps[3], stride[3], low[3], dilation[3], spread[3];
    int64_t channels, filters, image, places[3];         /* of a group; elements from one image, place to the next */
} gm_conv_args;
/* product.lanes: filters of all groups; product.w [taps][channels][lanes] float32, w_k apart; f16, bf16, f32. Of a
 * group no more channels than filters, half the table's lanes at most, of which they are a whole part. */
typedef gm_conv_args gm_conv_groups_args;
#define GM_CONV_TAPS 512                                 /* at most for conv_groups */

/* ---- packed matrices ---- */
typedef struct {
    void *out;                   /* packed panels: packed_bytes() of them */
    const void *in;              /* rows in the file's format, row_bytes = k / values * bytes */
    const int32_t *row_map;      /* packed row r holds file row row_map[r]; NULL = r */
    int format;                  /* gm_quant of the panels */
    int64_t rows, k;
    const void *scales, *biases; /* not NULL: MLX's arrays, `in` has the fields; biases: mode affine alone */
} gm_pack_args;
typedef struct { void *out; const void *in; const int32_t *row_map; int format; int64_t rows, k; } gm_unpack_args;
typedef struct { float *out; const void *in; int format; int64_t k; } gm_dequantize_args;  /* rows in the file's format */
typedef struct { void *out; const float *in; int format; } gm_block_quantize_args;         /* a block format */
typedef struct {
    float *out; const void *weight; const int32_t *tokens;   /* tokens were checked against rows */
    int format; int64_t rows, k; float scale;                /* scale 1 for most models */
    bool in_rows; const int32_t *row_map;                    /* weight is as pack reads it, not packed */
} gm_embed_args;
typedef struct { void *out; const float *x; int64_t x_stride, tokens, k; } gm_quantize_act_args;

typedef struct {
    float *out; int64_t out_stride;      /* [tokens, rows] */
    const void *x; int64_t x_stride;     /* float32 rows; matmul_int8: packed activations, stride unused */
    bool x_bf16;                         /* matmul_bf16: x is bfloat16 rows */
    const void *weight; int format;
    const float *bias;                   /* [rows] or NULL */
    const float *residual;               /* [tokens, rows] with out_stride, added last; may be out itself; NULL */
    int64_t rows, k, tokens;
} gm_matmul_args;
typedef gm_matmul_args gm_matmul_float_args;
typedef gm_matmul_args gm_matmul_bf16_args;
typedef gm_matmul_args gm_matmul_int8_args;

/* ---- MLX's quantised matrices: a row is a stream of fields, lowest bits first, and every group of values in it has a
 * scale (and, for GM_AFFINE, a bias) in arrays beside it; all contiguous, [matrices, rows, ...] ---- */
typedef enum { GM_AFFINE, GM_MXFP4, GM_MXFP8, GM_NVFP4 } gm_group_mode;
typedef struct {
    const void *weight, *scales, *biases;     /* biases: GM_AFFINE alone, of the scales' type */
    int mode, bits, group;
    int scale_type;                           /* GM_AFFINE: GM_T_F32, GM_T_F16 or GM_T_BF16; else bytes, E8M0 or E4M3 */
    int64_t matrices, rows, k;                /* k: values of a row, a multiple of group */
} gm_grouped;

typedef struct {                              /* in: contiguous f32, f16 or bf16; the scales of GM_AFFINE have its type */
    void *weight, *scales, *biases; const void *in;
    int mode, bits, group, in_type;
    const float *global;                      /* GM_NVFP4: one scale more, of the whole matrix, or NULL */
} gm_group_quantize_args;
typedef struct {                              /* out of the scales' type, float32 but for GM_AFFINE */
    gm_grouped from; void *out; const float *global;
} gm_group_dequantize_args;
typedef struct { void *out; const void *in; int type; } gm_fp8_encode_args;   /* E4M3 bytes of f32, f16, bf16 */
typedef struct { void *out; const void *in; int type; } gm_fp8_decode_args;

/* x [items, tokens, n] and matrix [rows, k] give [items, tokens, m]; item i has x number x_index[i] and matrix number
 * matrix_index[i] (both 0 when NULL). One that is not there gives zeros. n and m are k and rows for group_matmul, rows
 * and k for group_matmul_columns. */
typedef struct {
    gm_grouped w;
    const float *x; int x_type;               /* group_matmul: as group_arrange leaves those of x_type; else float32 rows */
    int64_t x_count, items, tokens;
    const int64_t *x_index, *matrix_index;
    void *out; int out_type;                  /* f32, f16 or bf16, contiguous */
} gm_group_matmul_args;
typedef gm_group_matmul_args gm_group_matmul_columns_args;
/* Rows of x in the order in which group_matmul reads them; group_arranged() floats for each. */
typedef struct {
    float *out; const void *in; int in_type; int64_t k; int mode, bits, group;
} gm_group_arrange_args;
#define GM_GROUP_ROWS 16                      /* rows of a matrix that are one unit of group_matmul's range */
#define GM_GROUP_TOKENS 64                    /* tokens of one unit of group_matmul_columns' range */
/* Whole values in a window, the 32 bits or less of a row that one lane takes. */
static inline int64_t group_fields(int bits) {
    return bits == 1 ? 32 : bits == 2 ? 16 : bits == 3 || bits == 4 ? 8 : 4;
}
/* Floats of an arranged row, which need not use all of them: for every `lanes` groups (a span; the last may be
 * shorter) their sums of x, GM_AFFINE alone, then lanes windows after lanes windows: field 0 of each, field 1 of each, ... */
static inline int64_t group_arranged(int lanes, int mode, int bits, int group, int64_t k) {
    const int64_t sums = mode == GM_AFFINE ? lanes : 0, unit = lanes * group_fields(bits), span = (int64_t)lanes * group;
    const int64_t rest = k % span;
    return k / span * (span + sums) + (rest ? (rest + unit - 1) / unit * unit + sums : 0);
}
/* Units of group_matmul_columns' range: columns that one register's windows hold, times GM_GROUP_TOKENS tokens. */
static inline int64_t group_column_units(int lanes, int bits, int64_t k, int64_t tokens) {
    const int64_t unit = lanes * group_fields(bits);
    return (k + unit - 1) / unit * ((tokens + GM_GROUP_TOKENS - 1) / GM_GROUP_TOKENS);
}

/* ---- rows of f32, f16 or bf16, in float32: out has rows of dim side by side, x x_stride apart ---- */
typedef struct {
    void *out; const void *x, *weight;    /* weight NULL: none */
    int type; int64_t x_stride, dim; float eps;
} gm_rms_norm_args;
typedef struct {
    void *out; const void *x, *weight, *bias;   /* weight, bias NULL: none */
    int type; int64_t x_stride, dim; float eps;
} gm_layer_norm_args;

/* ---- decoder parts: all float32 unless a type says otherwise ---- */
/* act(gate) * up. GM_GLU_CLAMPED: g = min(gate, limit), u = up within limit of 0: g * sigmoid(alpha g) * (u + 1). */
typedef enum { GM_GLU_SILU, GM_GLU_GELU /* the tanh form */, GM_GLU_CLAMPED } gm_glu_kind;
typedef struct {
    float *out; const float *gate, *up; int64_t dim, gate_stride, up_stride;
    gm_glu_kind kind; float alpha, limit;
} gm_glu_args;
/* glu of the products of x with two matrices of one size, which have neither bias nor residual. GM_FORM_INT8: rows is a
 * multiple of 32, and a range begins with a block of activations. */
typedef enum { GM_FORM_F32, GM_FORM_BF16, GM_FORM_INT8 } gm_row_form;    /* float32 rows, bfloat16 rows, activations */
typedef struct {
    void *out; gm_row_form form;             /* [tokens, out_rows]: what the next product reads */
    bool int8, bf16;                         /* which product: matmul_int8, matmul_bf16, or matmul_float */
    gm_matmul_args gate, up;                 /* their out is not used; dense ones have one format */
    gm_glu_args glu;                         /* kind, alpha and limit */
    int64_t row, out_rows;                   /* a row of out has so many values; those of gate and up come from `row` on */
} gm_matmul_glu_args;
typedef struct { float *out; const float *x; float cap; } gm_softcap_args;       /* cap * tanh(x / cap) */

/* ---- mixtures of experts: a pair is a token and one of its `slots` chosen experts, number token * slots + slot ---- */
#define GM_ROUTE_MOST 64                     /* experts of a token, at most */
typedef struct {                             /* ids [rows, k] by descending logit, ties and NaN by rising id */
    int32_t *ids; float *weights; const float *logits, *scale;   /* logits [rows, experts]; scale [experts] or NULL */
    int64_t experts, k; bool normalise;      /* the softmax is over the chosen alone */
} gm_route_args;
/* Pairs sorted by expert, what expert_sort finds: sorted pair i is pair order[i], and pair p is sorted pair place[p].
 * Group g, of *count, has the pairs of expert[g], sorted pairs begin[g] up to begin[g + 1]; owner[i] is the group of
 * sorted pair i. cost[g] is what the groups before g cost in one panel of a matrix. */
typedef struct {
    int32_t *order, *place, *owner;          /* [pairs] */
    int32_t *expert, *begin, *count;         /* [groups], [groups + 1], [1]; groups: the lesser of experts and pairs */
    int64_t *cost;                           /* [groups + 1] */
} gm_expert_groups;
typedef struct {                             /* ids beyond the experts count as the first or the last */
    gm_expert_groups groups; const int32_t *ids; int32_t *counts;   /* counts [experts]: scratch */
    int64_t pairs, experts;
} gm_expert_sort_args;
/* Rows of `dim` values, sorted: float32, or int8 activations in tiles of one group each. */
typedef struct {
    gm_expert_groups groups; void *out; const float *x; int64_t slots, dim; bool int8;
} gm_expert_gather_args;
typedef struct {
    gm_expert_groups groups; void *out; gm_glu_args glu; bool int8;
} gm_expert_glu_args;
/* Rows of sorted pairs times their group's matrix, for one or two stacks: product has the first matrix and its bias, x and
 * out of all pairs. Units [0, units) are of stack 0, those from there on of stack 1. */
typedef struct { gm_matmul_args product; int64_t matrix_bytes, panels; bool int8, bf16; } gm_expert_stack;
typedef struct { gm_expert_groups groups; gm_expert_stack stack[2]; int64_t units; } gm_expert_matmul_args;
typedef struct {                             /* out[t] = sum over slots, in their order, of weights[t][slot] * y[place] */
    float *out; const float *y, *weights; const int32_t *place;     /* place [pairs] or NULL: y is not sorted */
    int64_t slots, dim;
} gm_expert_sum_args;
#define GM_EXPERT_COLUMNS 512                /* columns of one unit of expert_sum */

/* ---- positions and attention ---- */
/* angles: [rows][2][half]: cos then sin, both times factor. Position * inv_freq is rounded to float32 as in transformers. */
typedef struct {
    float *out; const int32_t *positions; const float *inv_freq; int64_t half; float factor;
} gm_rope_angles_args;
typedef struct {                          /* out: [batches * steps][2][half]: cos then sin of (offset[batch] + step) * frequency */
    float *out; const int32_t *offset;
    int64_t steps, half;
    const float *freqs; float base, scale; /* frequency i: scale / freqs[i], or scale * base^(-i / half) where freqs is NULL */
    bool inverse;                         /* the sines negated */
} gm_rope_table_args;
typedef struct {                          /* x [batches, heads, steps, dim], the last axis contiguous; out contiguous */
    void *out; const void *x; const float *angles;   /* angles [steps][2][half], angle_stride apart from batch to batch */
    int type; int64_t heads, steps, dim, half, batch_stride, head_stride, step_stride, angle_stride;
    bool interleaved;                     /* pairs (2i, 2i+1) instead of (i, i + half); the rest of dim is copied */
} gm_rope_args;

/* Blocks of the cache are laid out as quants.h says; GM_T_KV_Q8_0 is a kv_type only. Blocks that no row sees may be anything,
 * NULL too. Sequences, their rows and their caches are those of batch.h. */
#define GM_T_KV_Q8_0 100
typedef struct {                          /* half-split pairs; the first 2*half of head_dim are rotated */
    float *q_out; const float *q, *k, *v, *angles;      /* q, q_out [rows, n_heads, head_dim]; k, v [rows, n_kv_heads, head_dim] */
    int64_t q_stride, k_stride, v_stride;               /* between rows of q, k, v; q_out is contiguous. k NULL: nothing to append */
    const gm_cache_address *keys, *values;              /* of each sequence */
    const int32_t *sequence, *positions;                /* of each row */
    int kv_type;                                        /* GM_T_F32, GM_T_F16, GM_T_BF16 or GM_T_KV_Q8_0 */
    int64_t n_heads, n_kv_heads, head_dim, half;
} gm_rope_cache_args;

/* Keys [0, position] of the row's sequence, or the last `window` of them. Head h reads kv head h / (n_heads / n_kv_heads).
 * Partial results are per absolute block of GM_KV_BLOCK keys: scores, their maximum m, weights exp(s - m), their sum l,
 * o = sum of weight * v in key order; blocks merge in block order. `attention` and split + merge give the same bits. */
typedef struct {
    float *out; const float *q;                         /* [rows, n_heads, head_dim] */
    const gm_cache_address *keys, *values;              /* of each sequence */
    const int32_t *sequence, *positions;                /* of each row */
    int kv_type;
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t window;                                     /* 0: no window */
    float scale, softcap;                               /* softcap 0: none */
    const float *sinks;                                 /* [n_heads] or NULL */
    const gm_query_tile *tiles;                         /* attention */
    /* split and merge: [rows][n_heads][max_blocks][head_dim + 2]: o, m, l of the blocks from the first that the row sees */
    float *partial; int64_t max_blocks;
    const int32_t *n_blocks;                            /* split: blocks a row may see now, NULL: max_blocks; the range is rows x kv heads x these */
} gm_attention_args;
typedef gm_attention_args gm_attention_split_args;
typedef gm_attention_args gm_attention_merge_args;

/* For each token t of a sequence, with S a row of the state [n_keys]: S *= gamma; d = (value - S . k) * beta; S += d * k;
 * out[t] = S . q. A row of out holds the n_tokens outputs and then the last state. Row r is value component r % n_values of
 * head r / n_values % n_heads; head h reads key head h / (n_heads / n_key_heads). All float32, contiguous. */
typedef struct {
    float *out;                           /* [batch, n_heads, n_values, n_tokens + n_keys] */
    const float *q, *k;                   /* [batch, n_tokens, n_key_heads, n_keys] */
    const float *v;                       /* [batch, n_tokens, n_heads, n_values] */
    const float *gamma, *beta;            /* [batch, n_tokens, n_heads] */
    const float *state;                   /* [batch, n_heads, n_values, n_keys]; NULL: zeros */
    const uint8_t *mask;                  /* [batch, n_tokens]; 0: the token gives 0 and changes nothing. NULL: none */
    int64_t n_tokens, n_heads, n_key_heads, n_keys, n_values;
} gm_gated_delta_args;

/* Layers with a state, over rows of sequences (batch.h). A state is taken for zeros where a sequence's first row is at
 * position 0. */
typedef struct {                          /* out = silu of a causal convolution of each channel; all float32 */
    float *out; const float *x, *weight;  /* [rows, channels]; weight [channels, taps] */
    const gm_cache_address *states;       /* of each sequence [taps - 1, channels]: the rows before, oldest first */
    const int32_t *positions, *first;     /* of each row; of each sequence */
    int64_t channels, taps;
} gm_cached_conv_args;
#define GM_CONV_CHANNELS 128              /* of one unit of cached_conv */
#define GM_CACHED_TAPS 64                 /* at most */
typedef struct {                          /* the rule of gated_delta; all float32 */
    float *out;                           /* [rows, n_heads, n_values] */
    const float *q, *k, *v;               /* [rows, n_key_heads, n_keys] twice, [rows, n_heads, n_values] */
    const float *decay, *beta;            /* [rows, n_heads] */
    const gm_cache_address *states;       /* of each sequence [n_heads, n_values, n_keys] */
    const int32_t *positions, *first;     /* of each row; of each sequence */
    int64_t n_heads, n_key_heads, n_keys, n_values;
    bool tiled;                           /* head h reads key head h % n_key_heads, else h / (n_heads / n_key_heads) */
} gm_cached_gated_delta_args;
#define GM_DELTA_ROWS 16                  /* of the state, of one unit of cached_gated_delta */

/* Attention over plain arrays of f32, f16 or bf16: q [batches, n_heads, queries, dim], k, v [batches, n_kv_heads, keys, ...],
 * rows contiguous, strides of batch, head and row; out contiguous. A masked score is the lowest float32, so that a query
 * that sees no key has the mean of the values. */
#define GM_SDPA_DIM 512                                 /* the most that dim and value_dim may be */
#define GM_SDPA_BLOCK 256                               /* keys of a share */
#define GM_SDPA_LANES 16                                /* packed_k: [batches * n_kv_heads][tile][dim][GM_SDPA_LANES] */
#define GM_SDPA_FEW 8                                   /* sdpa_split: queries of one kv head, at most */
typedef struct {
    void *out; const void *q, *k, *v; int type;
    int64_t q_strides[3], k_strides[3], v_strides[3];
    const void *mask; int mask_type; int64_t mask_strides[4];   /* NULL: none; bool, or added; the last stride is 0 or 1 */
    const float *sinks;                                 /* [n_heads] or NULL */
    int64_t batches, n_heads, n_kv_heads, queries, keys, dim, value_dim;
    float scale; bool causal;                           /* causal: query t sees keys to t + keys - queries */
    float *packed_k, *packed_v;                         /* sdpa; packed_v NULL: v is float32 and read in place */
    float *partial;                                     /* sdpa_split: [query of a kv head][block][value_dim + 2]: o, m, l */
} gm_sdpa_args;
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

typedef void (*gm_kernel)(const void *args, int64_t begin, int64_t end);

typedef struct {
    const char *isa;              /* "generic", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "neon", ... */
    const char *family;           /* the set that it builds on, or itself: what it may be taken for where tables are fewer */
    int panel_rows;               /* rows of a panel of the block formats: 4, 8 or 16 */
    bool act_pairs;               /* int8 activations of two tokens lie side by side, eight values of each (quants.h) */
    int lanes;                    /* floats in a vector */
    int gemm_rows, gemm_lanes;    /* rows of a block of dense products, float32 lanes of a panel */
    bool gemm_pairs;              /* bfloat16 is multiplied in pairs along k, not as float32 */
#define KERNEL(name, range, doc) gm_kernel name;
#include "kernels.def"
#undef KERNEL
} gm_kernels;

/* The table chosen for this machine: the best that CPUID and XCR0 (or the auxiliary vector) allow, or the one that the
 * environment's GOMLX_ISA names. NULL when GOMLX_ISA names one that is unknown or cannot run here; then *why says so. */
const gm_kernels *kernels_select(const char **why);
/* All names, in order of preference, NULL-terminated; kernels_get gives a table or NULL when it cannot run here. */
const char *const *kernels_names(void);
const gm_kernels *kernels_get(const char *isa);
/* One line on what the CPU has and why this table was chosen, for `gomlx doctor`. */
const char *kernels_reason(void);

/* Whether tiles read rows of x as they lie. */
static inline bool kernels_gemm_reads_rows(bool has_pairs, int type, int64_t rows, int64_t k, int64_t x_row, int64_t x_k) {
    const bool pairs = type == GM_T_BF16 && has_pairs && k % 2 == 0;
    const bool crowded = x_row * (pairs ? 2 : type == GM_T_F64 ? 8 : 4) % 2048 == 0 && rows > 4;   /* few of the cache's sets */
    return x_k == 1 && !crowded && (pairs || type == GM_T_F32 || type == GM_T_F64);
}
/* And write what they add up: then a block has any number of rows. */
static inline bool kernels_gemm_in_place(const gm_kernels *t, const gm_gemm_args *a) {
    const int64_t width = t->gemm_lanes / 2;
    return kernels_gemm_reads_rows(t->gemm_pairs, a->type, a->rows, a->k, a->x_row, a->x_k) && a->out_lane == 1 && !a->add &&
           (a->type == GM_T_F32 || (a->type == GM_T_F64 ? a->lanes % width == 0 : a->k <= 2 * GM_GEMM_STEPS));
}
/* Lanes of a panel of gemm_pack; bytes of a packed or aligned matrix, with room for any kind of items. */
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
static inline int64_t kernels_gemm_room_bytes(const gm_kernels *k, int type, int64_t block_rows, int64_t block_panels) {
    const int64_t lines = block_rows * (type == GM_T_C64 ? 2 : 1), line = block_panels * k->gemm_lanes * 4;
    return (GM_GEMM_SLAB + lines) * line;
}
static inline int64_t kernels_gemm_align_bytes(int type, int64_t rows, int64_t row_values) {
    return rows * (row_values * (type == GM_T_F64 || type == GM_T_C64 ? 8 : 4) + 128) * (type == GM_T_C64 ? 2 : 1);
}

/* Bytes of [rows, k] packed with this table's panels: whole panels. */
static inline int64_t kernels_panel(const gm_kernels *k, int format) {
    return format <= GM_QUANT_bf16 ? GM_DENSE_PANEL : k->panel_rows;
}
static inline int64_t kernels_panels(const gm_kernels *k, int format, int64_t rows) {
    int64_t p = kernels_panel(k, format);
    return (rows + p - 1) / p;
}
static inline int64_t kernels_packed_bytes(const gm_kernels *k, int format, int64_t rows, int64_t row_values) {
    return kernels_panels(k, format, rows) * kernels_panel(k, format) * (row_values / gm_quants[format].values) * gm_quants[format].bytes;
}
#endif
