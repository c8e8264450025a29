/* args.h - the parameters of kernels, as host and device see them. Sizes and strides are in elements. */
#ifndef GOMLX_CUDA_ARGS_H
#define GOMLX_CUDA_ARGS_H
#include "contracts.h"

#define CUDA_DIMS 8 /* of a walk, after merging; the launcher walks over more */
typedef struct {
    int64_t count; /* of all elements */
    int32_t ndim;  /* at least 1 */
    int64_t shape[CUDA_DIMS];
} cuda_shape;
typedef struct { int64_t at[CUDA_DIMS]; } cuda_strides;

/* Threads of a block, and elements that one thread of an elementwise kernel has in flight. */
#define CUDA_THREADS 256
#define CUDA_EACH 4
#define CUDA_FLOAT_EACH(item) (16 / (int)(item))
#define CUDA_INT_EACH(item) ((int)(item) == 8 ? 2 : CUDA_EACH)
/* direct: all that is not one value is side by side and aligned for accesses of 16 bytes. lines: the last dimension is
 * of groups of as many elements as a thread takes, which an operand has side by side and aligned, or, where its last
 * step is 0, in one value. */

typedef struct {
    void *out;
    const void *in;
    int32_t out_type, in_type;
    bool direct;
    cuda_shape shape;
    cuda_strides out_steps, in_steps;
} cuda_copy_args;

/* A matrix turned: out[b][r][c] = in[b][c][r], in side by side along r. Batches by up to three strides. */
typedef struct {
    void *out;
    const void *in;
    int64_t rows, columns, out_row, in_column;
    int32_t ndim;
    int64_t shape[CUDA_DIMS];
    cuda_strides out_steps, in_steps;
} cuda_turn_args;

typedef struct {
    cuda_copy_args copy;
    bool on_out;
    int32_t n_starts, start_type;
    const void *start;
    int64_t start_step;
    int64_t steps[CUDA_DIMS], limits[CUDA_DIMS];
} cuda_copy_at_args;

typedef struct {
    void *out;
    const void *in;
    int32_t op, type;
    bool lines, direct;
    cuda_shape shape;
    cuda_strides steps;
} cuda_unary_args;

typedef struct {
    void *out;
    const void *a, *b;
    int32_t op, type;
    bool lines, direct, a_one, b_one; /* with direct: the operand is one value */
    cuda_shape shape;
    cuda_strides a_steps, b_steps;
} cuda_binary_args;

typedef struct {
    void *out;
    const uint8_t *cond;
    const void *a, *b;
    int32_t item_bytes;
    bool direct;
    cuda_shape shape;
    cuda_strides cond_steps, a_steps, b_steps;
} cuda_select_args;

/* Half the registers' number of inputs and steps of gm_fused_args fit 4 KB of parameters; the steps are 16 bytes. */
typedef struct {
    void *out;
    int32_t n_inputs, n_steps, out_type;
    const void *inputs[GM_FUSED_INPUTS];
    int16_t input_types[GM_FUSED_INPUTS];
    bool lines, input_direct[GM_FUSED_INPUTS], input_one[GM_FUSED_INPUTS];
    cuda_shape shape;
    cuda_strides steps[GM_FUSED_INPUTS];
    gm_fused_step program[GM_FUSED_STEPS];
} cuda_fused_args;
#define CUDA_FUSED_THREADS 128

/* A launch over few elements, whose operands are side by side or (bit k of `one`) one value: several are one kernel, of
 * one block, which makes one after another. kind, function and types are those of a gm_fused_step. */
#define CUDA_STEPS 64
#define CUDA_STEP_ELEMENTS (4 * CUDA_THREADS)
#define CUDA_STEP_PARAMS 384 /* of the kernel that makes the same alone */
typedef struct {
    void *out;
    const void *in[3];
    int16_t kind, function, type, out_type;
    int32_t count, one;
} cuda_step;
typedef struct {
    int32_t n_steps;
    cuda_step steps[CUDA_STEPS];
} cuda_steps_args;

typedef struct {
    void *out;
    int32_t type;
    int64_t count;
    double start, step;
} cuda_arange_args;

typedef struct {
    void *out;
    const void *in, *value;
    int32_t item_bytes;
    cuda_shape shape;
    int64_t in_shape[CUDA_DIMS], low[CUDA_DIMS];
    cuda_strides in_steps;
} cuda_pad_args;

/* ---- reductions ---- */
/* Outputs are over kept, each of `reduced` elements, of which a part is `part` (part 0 up to parts - 1); with more than
 * one part, partial results [outputs][parts] of 16 bytes go to `partial`, and reduce_parts joins them. */
#define CUDA_MANY_PARTS 64 /* that a block joins, and no warp */
typedef struct {
    void *out;
    const void *in;
    void *partial;
    int32_t op, in_type, out_type;
    cuda_shape kept, reduced;
    cuda_strides kept_steps, reduced_steps;
    int64_t parts, part;
    bool contiguous; /* reduced is one line side by side */
} cuda_reduce_args;

typedef struct {
    uint32_t *out;
    const void *in;
    void *partial; /* [outputs][parts] */
    bool max;
    int32_t type;
    cuda_shape kept;
    cuda_strides kept_steps;
    int64_t length, stride, parts, part;
} cuda_arg_reduce_args;

/* Rows of softmax and norms. Elements that a thread keeps in registers: where a warp has a row, where a block has, and
 * where a block has a long one, of which groups below kept_groups that are in no register are in the block's memory.
 * lines: all is aligned for accesses of 16 bytes, and rows are made of them. */
#define CUDA_ROW_THREADS 512
#define CUDA_ROW_SHORT 32
#define CUDA_ROW_EACH(item) (64 / (int)(item)) /* four accesses of 16 bytes in flight */
#define CUDA_ROW_LONG 64
/* In a cluster of blocks, of which two are on a processor; CUDA_ROW_JOINED: float32 at the beginning of their memory.
 */
#define CUDA_ROW_CLUSTER 32
#define CUDA_ROW_BLOCKS 8
#define CUDA_ROW_JOINED 32
#define CUDA_CLUSTER_MEMORY 26624
typedef struct {
    void *out;
    const void *x, *weight, *bias;
    int64_t rows, dim, stride, kept_groups;
    float eps;
    bool lines, rounds; /* rounds: out is bfloat16 in place of float32 */
} cuda_rows_args;

/* ---- orders and running sums ---- */
/* [rows, length, inner] along length, by chunks; a row of `inner` 1 has chunks of CUDA_SCAN_CHUNK, others fewer.
 * carries: of 16 bytes, [rows * inner][chunks]: what comes before each chunk. Rows of floats, forwards, which are gone
 * through once, have chunks of CUDA_LINE_CHUNK, or, where one of CUDA_SCAN_CHUNK is enough, that; `group` of them to a
 * group; and in carries zeros, which become published values of CUDA_LINE_WORDS words of 64 bits at most: of each row
 * the totals of chunks, then of groups. */
#define CUDA_SCAN_EACH 16
#define CUDA_SCAN_CHUNK (CUDA_THREADS * CUDA_SCAN_EACH)
#define CUDA_LINE_EACH 32
#define CUDA_LINE_CHUNK (CUDA_THREADS * CUDA_LINE_EACH)
#define CUDA_LINE_WORDS 4
#define CUDA_SCAN_GAP(item) ((item) < 4 ? 4 : (item)) /* bytes after a thread's elements in the block's memory */
typedef struct {
    void *out;
    const void *in;
    void *carries;
    int32_t op, type;
    bool reverse, exclusive, totals; /* totals: only those of chunks, to carries */
    int64_t rows, length, inner, chunk, chunks, group;
} cuda_scan_args;

/* Keys of elements, in whose order they sort, of 32 bits or 64, and the elements' indices. */
typedef struct {
    void *out;
    const void *in;  /* elements, whose keys the first pass makes; NULL: keys holds them */
    const void *kth; /* keys in order: those of `in` become classes around the k-th of their row */
    void *keys, *other_keys;
    uint32_t *indices, *other_indices;
    uint32_t *counts, *totals; /* [rows][256][chunks], [rows][256] */
    int32_t type, shift;
    bool take_indices, one_zero;
    bool with_indices, first, last;        /* first: element i has index i; last: out gets what it is to have */
    int64_t rows, length, chunks, k, kept; /* kept: of the end of a row, what goes to out */
    const void *values;                    /* elements, by index */
} cuda_sort_args;
#define CUDA_SORT_SHORT 2048 /* elements of a row that one block sorts in its memory */
#define CUDA_SORT_THREADS 512
#define CUDA_SORT_EACH 16
#define CUDA_SORT_CHUNK (CUDA_SORT_THREADS * CUDA_SORT_EACH)
#define CUDA_SORT_DIGITS 256
#define CUDA_SORT_FEW_CHUNKS 32 /* of a row, whose counts one thread goes through for each digit */

typedef struct {
    uint32_t *out;
    const void *sorted, *values;
    int32_t type;
    bool right;
    int64_t length, count;
} cuda_search_args;

typedef struct {
    void *out;
    const uint32_t *keys;
    int32_t kind, type;
    int64_t words, count;
    float factor, shift;
} cuda_threefry_args;

/* ---- indices ---- */
typedef struct {
    int64_t *out;
    const void *index;
    int32_t type;
    bool first;
    int64_t size, step;
    gm_index_fault *fault;
    cuda_shape shape;
    cuda_strides steps;
} cuda_positions_args;

typedef struct {
    void *out;
    const void *in, *index;
    int32_t type, in_type, index_type, mode;
    int64_t size, step;
    gm_index_fault *fault;
    cuda_shape lead;
    cuda_strides sparse_steps, dense_steps, index_steps;
    int64_t count, dense_step, index_step, run, sparse_run, dense_run, index_run;
    /* scatter: indices along the axis, or positions, [lists][count], `limit` for none, of 32 bits or, where
     * `wide`, 64; in order, with which element each is; starts: where those of each are, NULL or [lists][limit]. */
    void *keys;
    const uint32_t *order;
    uint32_t *starts;
    uint64_t limit;
    bool wide;
    /* sums to few places: a block sums `segment` elements to one of `parts` of the places, `places` of them, of `units`
     * units (1, or CUDA_SUMS_UNITS of `lines`: side by side, indices of i32, u32 or i64), `copies` times, in room for
     * `width`, an even number; sums: [segments][size]; cells: [CUDA_SUM_CELLS][size] of exact.cuh, zeros, and the
     * exponent of the unit of sums. */
    bool lines;
    int32_t width, parts, places, units, copies;
    int64_t segment, segments;
    int64_t *sums, *cells;
} cuda_index_args;
#define CUDA_SUMS_THREADS 1024
#define CUDA_SUMS_BATCH 4096 /* elements that a block reads at once */
#define CUDA_SUMS_UNITS 5
#define CUDA_SUM_CELLS 18

/* ---- layers: those of the contract where these hold no pointer to memory of the host ---- */
typedef struct {
    void *out;
    const void *in;
    int32_t type;
    int64_t count;
} cuda_fp8_args;
#define CUDA_GROUP 128 /* values of a group, at most */
typedef struct {
    gm_group_quantize_args to;
    int64_t count; /* groups */
} cuda_group_quantize_args;
typedef struct {
    void *out;
    const void *weight, *scales, *biases, *x;
    const float *global;
    int32_t mode, bits, group, scale_type, x_type, out_type;
    int64_t count; /* groups, for group_dequantize */
    int64_t matrices, rows, k, items, tokens, x_count;
    const int64_t *x_index, *matrix_index;
    int32_t blocks, scale_spans; /* for quantized_halves: of a row of out; spans whose scales a block keeps */
} cuda_group_args;
/* Of quantized_halves: warps of a block, parts of k; and stretches of 16 rows that are in the memory of each. */
#define CUDA_QMM_PARTS 8
#define CUDA_QMM_AHEAD 3
typedef struct {
    float *out;
    const int32_t *positions;
    const float *freqs;
    int64_t rows, steps, half;
    float factor, base;
    bool inverse;
} cuda_rope_table_args;
typedef struct {
    void *out;
    const void *x;
    const float *angles;
    int32_t type;
    int64_t rows, heads, steps, dim, half, batch_stride, head_stride, step_stride, angle_stride;
    bool interleaved;
} cuda_rope_args;
typedef struct {
    gm_gated_delta_args layer;
    int64_t rows;
} cuda_gated_delta_args;
typedef struct {
    gm_convolution_args conv;
    int64_t images;
} cuda_convolution_args;
typedef struct { gm_sdpa_args sdpa; } cuda_sdpa_args;

/* ---- training ---- */
typedef struct { /* rows of float32; x of norms, or what a softmax gave; lines: all in groups of 16 bytes */
    float *dx;
    const float *x, *weight, *grad;
    int64_t rows, dim;
    float eps;
    bool lines;
} cuda_row_grad_args;
#define CUDA_ADAM_EACH 4096 /* elements of a block */
typedef struct {
    gm_adam_part arrays;
    int64_t size, block; /* its first block */
} cuda_adam_part;
typedef struct {
    gm_adam_args step;           /* parts and starts: of the host */
    const cuda_adam_part *parts; /* on the device, in the order of their blocks; of none there are no blocks */
} cuda_adam_args;

/* ---- packed matrices: rows of blocks as files have them, or the same bytes in tiles (tiles.cuh) ---- */
typedef struct {
    int32_t format, values, bytes; /* of a block */
    int32_t bits, scale_type;      /* of MLX's mode affine; of others 0 */
    int32_t tile;                  /* values along k of a tile; 0: rows as in files */
} cuda_format;
/* tiled.cu: parts of k, each a warp's; stages of a warp's ring, at most, and bytes at the beginning of a block's memory
 * that say whether they have come; products of sixteen rows of a token whose sums wait for one another. */
#define TILED_ROWS 16
#define TILED_PARTS 16
#define TILED_THREADS 512
#define TILED_STAGES 8
#define TILED_ARRIVALS (TILED_PARTS * TILED_STAGES * 8)
#define TILED_SUMS 32
#define CUDA_KEPT_X 256 /* values of a part of one token that lanes keep, at most */
#define TILED_COLUMNS 8 /* of mma: of tokens, or twice as many */
/* several.cu: columns of x that go together at most; where a tile is longer than so many values along k, one matrix's
 * sixteen rows go along it at a time, else two; bytes of x of so many columns. */
#define SEVERAL_MOST 32
#define SEVERAL_LONG 128
#define CUDA_SEVERAL_ROWS(k, columns) ((columns) * ((k) * 2 + (k) / 4 + TILED_PARTS * 4))
typedef struct {
    gm_pack_args pack; /* row_map: on the device */
    cuda_format format;
    int64_t row_bytes;
    int32_t item; /* bytes that a thread copies: 16, or 1, as always where there are scales */
} cuda_pack_args;
typedef struct {
    void *out;
    const void *weight;
    const int32_t *tokens; /* NULL: rows as they come, from `first` on */
    cuda_format format;
    int64_t first, rows, k; /* rows: of out */
    int32_t out_type;       /* f32, or bf16 */
    float scale;
} cuda_rows_out_args;
typedef struct {
    const void *data;
    const float *bias; /* or NULL */
    cuda_format format;
} cuda_matrix;
/* out [tokens, rows], by CUDA_TOKENS of them: x @ weight.T + bias + residual, or, `glu` not NONE, act of it times the
 * same with `up`, as bfloat16 where out_bf16. Of matrices in tiles: `more`, of the same k and format, whose rows follow
 * those of weight, each into its own out; and x of float32 that is normed, rounded to bfloat16, or both, as it is read.
 */
#define CUDA_TOKENS 8
#define CUDA_NO_GLU (-1)
#define CUDA_MORE (GM_PRODUCTS - 1)
typedef struct {
    void *out;
    cuda_matrix weight;
    int64_t rows; /* 0: none */
} cuda_more;
typedef struct {
    /* Of tiled.cu, all that a block needs before it asks for weights, and first: it waits for each line of parameters.
     * data: where the first matrix begins, and where the second one would begin if it had the first one's rows before
     * its own; or a gate and an up. `third` is to both what the second is to the first. Sixteens of rows of a block,
     * one more of the first `longer` blocks; tiles along k, and of a stage; stages of a ring, those that are asked for
     * before x; sixteens of rows before the second matrix and before the third, -1: there are a gate and an up. */
    const char *data[2];
    int32_t units, longer, tiles, stage, stages, early, ends[CUDA_MORE];
    const char *third;
    void *out;
    const void *x;
    const float *residual; /* or NULL */
    cuda_matrix weight, up;
    int64_t tokens, rows, k;
    int32_t x_type, glu, out_type;
    int32_t pass; /* tokens that go together, of matrices in tiles */
    /* Of tiled.cu: products whose sums wait; tiles of each part, where all have as many, in one stage, of CUDA_KEPT_X
     * values, or 0. */
    int32_t kept, whole;
    float alpha, limit;
    cuda_more more[CUDA_MORE];
    const float *norm; /* or NULL */
    float eps;
    bool rounds;
    const int32_t *ids; /* of a mixture: of each of `tokens` pairs the expert, whose matrix is in the stacks; or NULL */
    int64_t experts, top_k; /* top_k: pairs with the same row of x */
    void *made;             /* x of passes of so many columns, as several.cu reads it; NULL: rows of bfloat16 */
    int32_t columns;
} cuda_packed_args;
/* Products of a token with matrices of two formats: so many blocks have those of the first one. */
typedef struct {
    int64_t blocks;
    cuda_packed_args products[2];
} cuda_two_products_args;

/* Mixtures: of each pair of token and expert a row of `units`, [tokens, top_k, inner]. What a product reads is rounded
 * to bfloat16 first, or not. */
typedef struct {
    float *out, *units, *made; /* made: of pairs, [tokens, top_k, out_dim], where tiles are multiplied */
    const float *x, *weights;
    const int32_t *ids;
    cuda_matrix gate, up, down; /* stacks, of `experts` */
    int64_t tokens, top_k, experts, dim, inner, out_dim;
    int32_t glu;
    float alpha, limit;
    bool round_gate, round_up, round_down;
} cuda_experts_args;

/* ---- decoders: those of the contract, which hold no pointer to memory of the host ---- */
typedef struct {
    gm_glu_args glu;
    int64_t rows;
} cuda_glu_args;
typedef struct {
    gm_softcap_args softcap;
    int64_t count;
} cuda_softcap_args;
typedef struct {
    gm_route_args route;
    int64_t rows;
} cuda_route_args;
typedef struct {
    gm_rope_angles_args angles;
    int64_t rows;
} cuda_rope_angles_args;
#define CUDA_TURN_ROWS 16 /* of a block */
typedef struct {
    gm_rope_cache_args turn;
    int64_t rows;
    bool fours; /* of a head, aligned, are all of one half, or of none */
} cuda_rope_cache_args;
#define CUDA_ATTENTION_DIM 512 /* of a head, at most */
typedef gm_attention_args cuda_attention_args;
/* Rows of prompts, by prompts.cu: so many tiles. */
#define CUDA_PROMPT_KEYS(dim) ((dim) > 64 ? 128 : 64)
#define CUDA_PROMPT_MEMORY(dim) ((dim) * 2 * (4 * CUDA_PROMPT_KEYS(dim) + CUDA_THREADS / 32 * 16) + 1024)
typedef struct {
    gm_attention_args rows;
    int64_t tiles;
} cuda_prompt_attention_args;
/* Rows that decode, by attention.cu: a block of threads has a share of the keys, in `partial` [rows][n_heads]
 * [max_blocks * CUDA_SHARES][head_dim + CUDA_SHARE_EXTRA]: sums of values, then the top of the scores and the sum of
 * the weights. Where `merges` says so the last block of a row's merges them, of at most CUDA_MERGED; at most
 * CUDA_TICKETS blocks of rows and kv heads. turns: queries and keys are normed and turned as they are read, and the
 * row's own go to the cache; then the launch before may not have written caches, their tables, positions, or weights of
 * norms, which are read while it runs. */
#define CUDA_SHARE_KEYS 64
#define CUDA_SHARES (GM_KV_BLOCK / CUDA_SHARE_KEYS)
#define CUDA_SHARE_EXTRA 4 /* two, and what aligns the next */
#define CUDA_DECODE_THREADS (CUDA_SHARE_KEYS * 2)
#define CUDA_SHARE_MEMORY(dim) ((dim) * 2 * 2 * CUDA_SHARE_KEYS)
#define CUDA_DECODE_MEMORY(dim)                                                                                        \
    (CUDA_SHARE_MEMORY(dim) + (dim) * (2 * 16 + 2 * 4) + 2 * 16 * CUDA_SHARE_KEYS + 2 * 4 * CUDA_SHARE_KEYS)
#define CUDA_HAS_SEVERAL(dim) ((dim) <= 128) /* shares of a block, one after the other */
#define CUDA_SLICE 32
#define CUDA_MERGED 128
#define CUDA_TICKETS 4096
typedef struct {
    gm_turned_attention_args row;
    bool turns, merges;
    int32_t group, cuts; /* heads of a kv head, and blocks of sixteen of them */
    int32_t across;      /* blocks of a row: each has every so many of its shares */
} cuda_decode_args;
typedef struct {
    gm_cached_conv_args layer;
    int64_t sequences;
} cuda_recurrent_conv_args;
typedef struct {
    gm_cached_gated_delta_args layer;
    int64_t sequences;
} cuda_recurrent_delta_args;

/* ---- products ---- */
typedef struct {
    void *out;
    const void *x, *w, *add;
    int32_t type;
    int64_t rows, columns, k;
    int64_t out_row, out_column, x_row, x_k, w_k, w_column, add_row, add_column;
    cuda_shape batch;
    cuda_strides out_steps, x_steps, w_steps, add_steps;
    const int32_t *x_index, *w_index; /* gather: batch is one dimension of items */
    int64_t x_matrices, w_matrices, x_matrix, w_matrix;
    float alpha, beta;
} cuda_product_args;

/* Products of prompts' rows: out [rows, of out_step] = x @ w.T + bias + residual, of f16 or bf16 [rows, k] and
 * [columns, k]; with `up` act of it times the same with `up`. A row's bits do not depend on the others, nor on where w
 * is cut. */
typedef struct {
    void *out;
    const void *x, *w, *up;
    const float *bias, *residual; /* residual: of out_step too; or NULL */
    int64_t rows, columns, k, out_step;
    int32_t out_type, glu;
} cuda_prompt_args;
typedef struct { /* act of gate times up, of [rows, columns] */
    void *out;
    const float *gate, *up;
    int64_t columns, out_step;
    int32_t out_type, glu;
    bool fours; /* of columns, aligned, are always there */
} cuda_prompt_units_args;
typedef struct {
    void *out;
    const float *x;
    int64_t count; /* a multiple of 8 */
    int32_t out_type;
} cuda_prompt_rows_args;
#endif
