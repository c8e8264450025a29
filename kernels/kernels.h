/* kernels.h - what operations and backends share: element types, functions by number, the arguments of most contracts
 * (the others are in contracts.h), and the choice of the processor's instruction set.
 * Each output element is a fixed tree of operations given by its shape alone, never by the range, the tile, the batch
 * or the number of threads: the same bits always. Sums are float32 (or exact integers; float64 for float64), also over
 * float16 and bfloat16. Strides and sizes are in elements. Pointers may be unaligned unless said otherwise. */
#ifndef GOMLX_KERNELS_H
#define GOMLX_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "batch.h"
#include "quants.h"

/* The element types; gomlx.h publishes the same numbers as gm_dtype. */
enum {
    GM_T_BOOL,
    GM_T_U8,
    GM_T_U16,
    GM_T_U32,
    GM_T_U64,
    GM_T_I8,
    GM_T_I16,
    GM_T_I32,
    GM_T_I64,
    GM_T_F16,
    GM_T_BF16,
    GM_T_F32,
    GM_T_F64,
    GM_T_C64,
    GM_T_COUNT
};

typedef enum {
#define UNARY_VALUE(name, ...) GM_U_##name,
#define UNARY_TEST UNARY_VALUE
#include "unary.def"
} gm_unary_op;

typedef enum {
#define BINARY_VALUE(name, ...) GM_B_##name,
#define BINARY_TEST BINARY_VALUE
#include "binary.def"
} gm_binary_op;

/* How many there are; not members of the enums, so that compilers warn of a switch that lacks one. */
enum {
    GM_U_COUNT = 0
#define UNARY_VALUE(name, ...) +1
#define UNARY_TEST UNARY_VALUE
#include "unary.def"
    ,
    GM_B_COUNT = 0
#define BINARY_VALUE(name, ...) +1
#define BINARY_TEST BINARY_VALUE
#include "binary.def"
};

typedef enum { GM_R_SUM, GM_R_PROD, GM_R_MAX, GM_R_MIN, GM_R_ALL, GM_R_ANY, GM_R_LOGSUMEXP, GM_R_COUNT } gm_reduce_op;

/* Elementwise kernels walk out's elements in row-major order of `shape`. Operand strides may be 0 (broadcast) or
 * negative; the pointer is that of index (0, 0, ...). ndim 0 is one element; callers merge dimensions that are
 * contiguous together, so the common case is ndim 1 with strides of 1 or 0. */
typedef struct {
    void *out;
    const void *in;
    int out_type, in_type, ndim;
    const int64_t *shape, *out_strides, *in_strides;
} gm_copy_args;
/* Copies to regions that do not overlap, one after another: part k has the elements starts[k] up to starts[k + 1]. */
typedef struct {
    const gm_copy_args *parts;
    const int64_t *starts;
} gm_copy_parts_args;
/* A copy from or to a region that begins where an array says: in steps[k] elements for each of start[k], which is moved
 * into [0, limits[k]]. */
typedef struct {
    gm_copy_args copy;
    bool on_out; /* the region is that of out, else of in */
    int n_starts, start_type;
    const void *start;
    int64_t start_step;
    const int64_t *steps, *limits;
} gm_copy_at_args;

typedef struct { /* out contiguous */
    void *out;
    const void *in;
    gm_unary_op op;
    int type; /* of in; the result's type follows from the op: bool for is*, float32 for real/imag of complex64 */
    int ndim;
    const int64_t *shape, *strides;
} gm_unary_args;

typedef struct { /* out contiguous; comparisons and logical ops give bool */
    void *out;
    const void *a, *b;
    gm_binary_op op;
    int type; /* of a and b */
    int ndim;
    const int64_t *shape, *a_strides, *b_strides;
} gm_binary_args;

typedef struct { /* out contiguous */
    void *out;
    const uint8_t *cond;
    const void *a, *b;
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
    int16_t kind, function; /* function: gm_unary_op or gm_binary_op */
    int16_t type, out_type; /* of the operands (of the chosen values for select) and of the result */
    int16_t in[3], out;     /* out: a register */
} gm_fused_step;
typedef struct { /* out contiguous */
    void *out;
    int n_inputs, n_steps, out_type, ndim;
    const void *inputs[GM_FUSED_INPUTS];
    int16_t input_types[GM_FUSED_INPUTS];
    const int64_t *shape, *strides[GM_FUSED_INPUTS];
    const gm_fused_step *steps;
} gm_fused_args;

typedef struct {
    void *out;
    int type;
    double start, step;
} gm_arange_args;

/* out is contiguous over the kept axes. Sums are made in a fixed tree; sum/prod of bool and small integers give int32
 * (out_type says), max/min keep the type and pass NaN on, all/any give bool. */
typedef struct {
    void *out;
    const void *in;
    gm_reduce_op op;
    int in_type, out_type;
    int n_kept;
    const int64_t *kept_shape, *kept_strides;
    int n_reduced;
    const int64_t *reduced_shape, *reduced_strides;
} gm_reduce_args;

typedef struct { /* out: uint32, contiguous over the kept axes; first extreme wins, NaN counts as the extreme */
    uint32_t *out;
    const void *in;
    bool max;
    int type;
    int n_kept;
    const int64_t *kept_shape, *kept_strides;
    int64_t length, stride; /* of the axis */
} gm_arg_reduce_args;

/* in and out contiguous, [rows, length, inner], the scan along length; out may be in. op: sum, prod, max, min,
 * logsumexp. */
typedef struct {
    void *out;
    const void *in;
    int op, type; /* gm_reduce_op; logsumexp of floats and complex64 only */
    bool reverse, exclusive;
    int64_t length, inner;
    double *carry; /* NULL, or [rows][blocks]: float16, bfloat16 and float32 only */
} gm_scan_args;

/* Rows of `length` contiguous elements, in ascending order; NaN last, stable. */
typedef struct {
    void *out;
    const void *in; /* out: the elements, or with indices uint32 */
    void *scratch;  /* bytes for each element: 8, or 16 for types of 64 bits and with indices */
    int type;
    bool indices;
    int64_t length;
} gm_sort_args;

/* Rows of `length` contiguous elements of a type of at most 32 bits: those below the k-th in order (from 0), those
 * equal to it, those above; out as in gm_sort_args. */
typedef struct {
    void *out;
    const void *in;
    int type;
    bool indices;
    int64_t length, k;
} gm_partition_args;
/* The last k elements of partition at length - k; floats of at most 32 bits, k at most GM_TOPK_MOST. */
#define GM_TOPK_MOST 1024
typedef struct {
    void *out;
    const void *in;
    int type;
    int64_t length, k;
} gm_topk_args;
/* Where values belong in a sorted row: before the first element that is not less (or, right, that is greater). */
typedef struct {
    uint32_t *out;
    const void *sorted, *values;
    int type;
    bool right;
    int64_t length;
} gm_search_args;

typedef struct { /* out contiguous, of `shape`; in, of in_shape, begins at `low` of it; ndim at least 1 */
    void *out;
    const void *in, *value;
    int item_bytes, ndim;
    const int64_t *shape, *in_shape, *low, *in_strides;
} gm_pad_args;

/* Where an index that is out of range is reported: one of them, when there are several. */
typedef struct {
    int64_t index;
    int32_t raised;
} gm_index_fault;

/* Positions of the elements that several index arrays choose together: out[i] is the sum of index * step, or INT64_MIN
 * when one is out of range. Strides are those of the index arrays over their common shape. */
typedef struct {
    const void *data;
    int type;
    int64_t size, step;
    const int64_t *strides;
    gm_index_fault *fault;
} gm_positions_index;
typedef struct {
    int64_t *out;
    int n_indices, ndim;
    const gm_positions_index *indices;
    const int64_t *shape;
} gm_positions_args;

/* A dense side of shape [lead dimensions][count][run] and a sparse side of which one axis is addressed by an index:
 * element (lead, i, r) of it is at lead . sparse_strides + index(lead, i, r) * step + r * sparse_run. Indices count
 * from the end when negative; size < 0: they are int64 positions already (step 1), INT64_MIN for none. One out of range
 * is reported in fault, and then reads zeros (take: out is dense, in is sparse) or is left out (scatter: out is sparse,
 * in is dense); where several meet they come in the order of i. The sparse side is of `type`; in of scatter may be a
 * half float while type is float32. */
typedef enum { GM_S_UPDATE, GM_S_ADD, GM_S_MULTIPLY, GM_S_MAX, GM_S_MIN, GM_S_COUNT } gm_scatter_mode;
typedef struct {
    void *out;
    const void *in;
    const void *index;
    int type, in_type, index_type, mode; /* mode of scatter: gm_scatter_mode */
    int64_t size, step;
    gm_index_fault *fault; /* size < 0: NULL, as positions were checked before */
    int ndim;              /* of the lead */
    const int64_t *shape, *sparse_strides, *dense_strides, *index_strides;
    int64_t count, dense_step, index_step;
    int64_t run, sparse_run, dense_run, index_run; /* index_run 0: one index for a whole run */
    /* scatter only. Its range is parts * columns; columns are those of lead and run; part p takes the positions in
     * [span * p / parts, span * (p + 1) / parts). */
    int64_t columns, parts, span;
} gm_index_args;
typedef gm_index_args gm_take_args;
typedef gm_index_args gm_scatter_args;

typedef struct {
    void *out;
    const void *in;
    int type;
    int64_t dim, in_stride;
} gm_softmax_args; /* rows of dim contiguous values, in_stride apart */

/* ---- random numbers (cpu/random.inc) ---- */
typedef enum { GM_RANDOM_BITS, GM_RANDOM_UNIFORM, GM_RANDOM_NORMAL, GM_RANDOM_GUMBEL, GM_RANDOM_COUNT } gm_random_kind;
/* out [n_keys, words]; the range is n_keys * ceil(words / 2). bits: uint32. Else float32, float16 or bfloat16 values
 * u * factor + shift, rounded to the type at each step: u in [0, 1), erfinv of u in (-1, 1), or -log(-log(u)). */
typedef struct {
    void *out;
    const uint32_t *keys; /* [n_keys, 2] */
    gm_random_kind kind;
    int type;
    int64_t words; /* of each key */
    float factor, shift;
} gm_threefry_args;

typedef struct {
    uint32_t *out;
    const uint32_t *in;
    uint32_t *work;
    int64_t n;
} gm_word_order_args; /* lines of n */

/* ---- Fourier transforms (cpu/fft.inc) ---- */
typedef struct { /* of a length without prime factors above 13 */
    int64_t n;
    const double *roots; /* exp(-2 pi i k / n) for k < n, pairs */
    int n_factors;
    int32_t factors[64];
} gm_fft_plan;
typedef enum { GM_FFT_COMPLEX, GM_FFT_FROM_REAL, GM_FFT_TO_REAL } gm_fft_kind;
typedef struct { /* lines of in_items: cut or filled up with zeros; n / 2 + 1 items make or come of n real ones */
    float *out;
    const float *in; /* complex64 as pairs */
    gm_fft_kind kind;
    bool inverse;
    int64_t n, in_items;
    double scale;
    gm_fft_plan plan;
    const double *chirp, *spectrum; /* NULL: plan.n is n */
    double *work;                   /* GM_FFT_WORK for each line; NULL: n is at most GM_FFT_STACK and plan.n is n */
} gm_fft_args;

/* ---- linear algebra: contiguous row-major float64 matrices, one after another; a is overwritten ----
 * width 2: complex numbers, pairs of doubles. *failed becomes 1 when a matrix has no answer; work is scratch. */
typedef enum { GM_PART_ALL, GM_PART_LOWER, GM_PART_UPPER } gm_matrix_part;
typedef struct {
    double *a;
    uint32_t *pivots; /* [min(rows, cols)]: row i was exchanged with row pivots[i] */
    uint32_t *order;  /* [rows]: row i of a is row order[i] of L U */
    int64_t rows, cols;
} gm_lu_args;
typedef struct {
    double *a;
    uint32_t *pivots;
    double *sign, *log_abs, *value;
    int64_t n;
} gm_determinant_args;
typedef struct {
    double *a, *b;
    uint32_t *pivots; /* a [n, n], b [n, cols] */
    int64_t n, cols;
    gm_matrix_part part; /* the triangle of a that counts */
    bool identity;       /* b is filled in as the identity */
    int32_t *failed;     /* singular; NULL: then infinities come out */
} gm_linear_solve_args;
typedef struct {
    double *a;
    int64_t n;
    bool upper;
} gm_cholesky_args;
typedef struct { /* q [rows, k], r [k, cols], k the lesser; work [rows + cols + k] */
    double *a, *q, *r, *work;
    int64_t rows, cols;
} gm_qr_args;
typedef struct { /* rows >= cols; s [cols]; ut [rows, rows], columns of u as rows; vh [cols, cols]; both or none */
    double *a, *s, *ut, *vh, *work;
    int64_t rows, cols;
    int width;
    int32_t *failed;
} gm_svd_args;
#define GM_SVD_WORK(rows, cols, width) ((cols) + 2 * ((rows) + (cols)) * (width))
typedef struct {
    double *a, *out, *work;
    int64_t n;
} gm_cofactor_args; /* out [n, n] */
#define GM_COFACTOR_WORK(n) (GM_SVD_WORK(n, n, 1) + 3 * (n) * (n) + 2 * (n))
typedef struct { /* values [n] in rising order; vectors [n, n] as rows, or NULL; upper: the triangle that counts */
    double *a, *values, *vectors, *work;
    int64_t n;
    int width;
    bool upper;
    int32_t *failed;
} gm_eigh_args;
#define GM_EIGH_WORK(n, width) ((n) + 5 * (n) * (width))
typedef struct { /* values [n] and vectors [n, n] (as rows, or NULL) are complex */
    double *a, *values, *vectors, *work;
    int64_t n;
    int width;
    int32_t *failed;
} gm_eig_args;
#define GM_EIG_WORK(n, width) (2 * (n) + (3 * (n) + (n) * (n)) * (width))
/* ---- packed matrices ---- */
typedef struct {
    void *out;              /* packed panels: packed_bytes() of them */
    const void *in;         /* rows in the file's format, row_bytes = k / values * bytes */
    const int32_t *row_map; /* packed row r holds file row row_map[r]; NULL = r */
    int format;             /* gm_quant of the panels */
    int64_t rows, k;
    const void *scales, *biases; /* not NULL: MLX's arrays, `in` has the fields; biases: mode affine alone */
} gm_pack_args;
typedef struct {
    float *out;
    const void *in;
    int format;
    int64_t k;
} gm_dequantize_args; /* rows in the file's format */
typedef struct {
    void *out;
    const float *in;
    int format;
} gm_block_quantize_args; /* a block format */
typedef struct {
    float *out;
    const void *weight;
    const int32_t *tokens; /* tokens were checked against rows */
    int format;
    int64_t rows, k;
    float scale; /* scale 1 for most models */
    bool in_rows;
    const int32_t *row_map; /* weight is as pack reads it, not packed */
} gm_embed_args;
typedef struct {
    void *out;
    const float *x;
    int64_t x_stride, tokens, k;
} gm_quantize_act_args;

/* ---- MLX's quantised matrices: a row is a stream of fields, lowest bits first, and every group of values in it has a
 * scale (and, for GM_AFFINE, a bias) in arrays beside it; all contiguous, [matrices, rows, ...] ---- */
typedef enum { GM_AFFINE, GM_MXFP4, GM_MXFP8, GM_NVFP4 } gm_group_mode;
typedef struct {
    const void *weight, *scales, *biases; /* biases: GM_AFFINE alone, of the scales' type */
    int mode, bits, group;
    int scale_type;            /* GM_AFFINE: GM_T_F32, GM_T_F16 or GM_T_BF16; else bytes, E8M0 or E4M3 */
    int64_t matrices, rows, k; /* k: values of a row, a multiple of group */
} gm_grouped;

typedef struct { /* in: contiguous f32, f16 or bf16; the scales of GM_AFFINE have its type */
    void *weight, *scales, *biases;
    const void *in;
    int mode, bits, group, in_type;
    const float *global; /* GM_NVFP4: one scale more, of the whole matrix, or NULL */
} gm_group_quantize_args;
typedef struct { /* out of the scales' type, float32 but for GM_AFFINE */
    gm_grouped from;
    void *out;
    const float *global;
} gm_group_dequantize_args;
typedef struct {
    void *out;
    const void *in;
    int type;
} gm_fp8_encode_args; /* E4M3 bytes of f32, f16, bf16 */
typedef struct {
    void *out;
    const void *in;
    int type;
} gm_fp8_decode_args;

/* ---- rows of f32, f16 or bf16, in float32: out has rows of dim side by side, x x_stride apart ---- */
typedef struct {
    void *out;
    const void *x, *weight; /* weight NULL: none */
    int type;
    int64_t x_stride, dim;
    float eps;
} gm_rms_norm_args;
typedef struct {
    void *out;
    const void *x, *weight, *bias; /* weight, bias NULL: none */
    int type;
    int64_t x_stride, dim;
    float eps;
} gm_layer_norm_args;

/* ---- low-rank terms ---- */
/* scale * (x @ a.T) @ b of the rows [first, first + rows) of a pass: a [rank, k], b [rank, width]. x @ a.T, times
 * scale, is [rows, rank] numbers from low[at] on. */
typedef struct {
    const void *a, *b;
    int type; /* of both: f32, f16 or bf16 */
    float scale;
    int64_t first, rows, rank, at;
} gm_low_rank_term;
typedef struct {
    float *low;
    const float *x; /* [rows of the pass, k] */
    int64_t k;
    const gm_low_rank_term *terms; /* one at least, each with rows */
} gm_low_rank_down_args;
/* n_terms terms of the same rows, from number `term` on, that are added to rows of out [rows of the pass, width]. */
typedef struct {
    float *out;
    int64_t width, first, rows, term, n_terms;
} gm_low_rank_part;
typedef struct {
    const float *low;
    const gm_low_rank_term *terms;
    const gm_low_rank_part *parts; /* one at least, each with rows; none of them touches another's */
} gm_low_rank_up_args;

/* ---- decoder parts: all float32 unless a type says otherwise ---- */
/* act(gate) * up. GM_GLU_CLAMPED: g = min(gate, limit), u = up within limit of 0: g * sigmoid(alpha g) * (u + 1). */
typedef enum { GM_GLU_SILU, GM_GLU_GELU /* the tanh form */, GM_GLU_CLAMPED } gm_glu_kind;
typedef struct {
    float *out;
    const float *gate, *up;
    int64_t dim, gate_stride, up_stride;
    gm_glu_kind kind;
    float alpha, limit;
} gm_glu_args;
typedef enum { GM_FORM_F32, GM_FORM_BF16, GM_FORM_INT8 } gm_row_form; /* float32 rows, bfloat16 rows, activations */
typedef struct {
    float *out;
    const float *x;
    float cap;
} gm_softcap_args; /* cap * tanh(x / cap) */

/* ---- mixtures of experts: a pair is a token and one of its `top_k` chosen experts, number token * top_k + i */
#define GM_ROUTE_MOST 64 /* experts of a token, at most */
typedef struct {         /* ids [rows, k] by descending logit, ties and NaN by rising id */
    int32_t *ids;
    float *weights;
    const float *logits, *scale; /* logits [rows, experts]; scale [experts] or NULL */
    int64_t experts, k;
    bool normalise; /* the softmax is over the chosen alone */
} gm_route_args;
/* ---- positions and attention ---- */
/* angles: [rows][2][half]: cos then sin, both times factor. Position * inv_freq is rounded to float32 as in
 * transformers. */
typedef struct {
    float *out;
    const int32_t *positions;
    const float *inv_freq;
    int64_t half;
    float factor;
} gm_rope_angles_args;
typedef struct { /* out: [batches * steps][2][half]: cos then sin of (offset[batch] + step) * frequency */
    float *out;
    const int32_t *offset;
    int64_t steps, half;
    const float *freqs;
    float base, scale; /* frequency i: scale / freqs[i], or scale * base^(-i / half) where freqs is NULL */
    bool inverse;      /* the sines negated */
} gm_rope_table_args;
typedef struct { /* x [batches, heads, steps, dim], the last axis contiguous; out contiguous */
    void *out;
    const void *x;
    const float *angles; /* angles [steps][2][half], angle_stride apart from batch to batch */
    int type;
    int64_t heads, steps, dim, half, batch_stride, head_stride, step_stride, angle_stride;
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + half); the rest of dim is copied */
} gm_rope_args;

/* Blocks of the cache are laid out as quants.h says; GM_T_KV_Q8_0 is a kv_type only. Blocks that no row sees may be
 * anything, NULL too. Sequences, their rows and their caches are those of batch.h. */
#define GM_T_KV_Q8_0 100
typedef struct { /* half-split pairs; the first 2*half of head_dim are rotated */
    float *q_out;
    const float *q, *k, *v, *angles;       /* q, q_out [rows, n_heads, head_dim]; k, v [rows, n_kv_heads, head_dim] */
    int64_t q_stride, k_stride, v_stride;  /* between rows of q, k, v; q_out is contiguous. k NULL: nothing to append */
    const gm_cache_address *keys, *values; /* of each sequence */
    const int32_t *sequence, *positions;   /* of each row */
    int kv_type;                           /* GM_T_F32, GM_T_F16, GM_T_BF16 or GM_T_KV_Q8_0 */
    int64_t n_heads, n_kv_heads, head_dim, half;
} gm_rope_cache_args;

/* Keys [0, position] of the row's sequence, or the last `window` of them. Head h reads kv head h / (n_heads /
 * n_kv_heads). Partial results are per absolute block of GM_KV_BLOCK keys: scores, their maximum m, weights exp(s - m),
 * their sum l, o = sum of weight * v in key order; blocks merge in block order. `attention` and split + merge give the
 * same bits. */
typedef struct {
    float *out;
    const float *q;                        /* [rows, n_heads, head_dim] */
    const gm_cache_address *keys, *values; /* of each sequence */
    const int32_t *sequence, *positions;   /* of each row */
    int kv_type;
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t window;             /* 0: no window */
    float scale, softcap;       /* softcap 0: none */
    const float *sinks;         /* [n_heads] or NULL */
    const gm_query_tile *tiles; /* attention */
    /* split and merge: [rows][n_heads][max_blocks][head_dim + 2]: o, m, l of the blocks from the first that the row
     * sees */
    float *partial;
    int64_t max_blocks;
    const int32_t
        *n_blocks; /* split: blocks a row may see now, NULL: max_blocks; the range is rows x kv heads x these */
} gm_attention_args;

/* For each token t of a sequence, with S a row of the state [n_keys]: S *= gamma; d = (value - S . k) * beta; S += d *
 * k; out[t] = S . q. A row of out holds the n_tokens outputs and then the last state. Row r is value component r %
 * n_values of head r / n_values % n_heads; head h reads key head h / (n_heads / n_key_heads). All float32, contiguous.
 */
typedef struct {
    float *out;                /* [batch, n_heads, n_values, n_tokens + n_keys] */
    const float *q, *k;        /* [batch, n_tokens, n_key_heads, n_keys] */
    const float *v;            /* [batch, n_tokens, n_heads, n_values] */
    const float *gamma, *beta; /* [batch, n_tokens, n_heads] */
    const float *state;        /* [batch, n_heads, n_values, n_keys]; NULL: zeros */
    const uint8_t *mask;       /* [batch, n_tokens]; 0: the token gives 0 and changes nothing. NULL: none */
    int64_t n_tokens, n_heads, n_key_heads, n_keys, n_values;
} gm_gated_delta_args;

/* Layers with a state, over rows of sequences (batch.h). A state is taken for zeros where a sequence's first row is at
 * position 0. */
typedef struct { /* out = silu of a causal convolution of each channel; all float32 */
    float *out;
    const float *x, *weight;          /* [rows, channels]; weight [channels, taps] */
    const gm_cache_address *states;   /* of each sequence [taps - 1, channels]: the rows before, oldest first */
    const int32_t *positions, *first; /* of each row; of each sequence */
    int64_t channels, taps;
} gm_cached_conv_args;
#define GM_CACHED_TAPS 64             /* at most */
typedef struct {                      /* the rule of gated_delta; all float32 */
    float *out;                       /* [rows, n_heads, n_values] */
    const float *q, *k, *v;           /* [rows, n_key_heads, n_keys] twice, [rows, n_heads, n_values] */
    const float *decay, *beta;        /* [rows, n_heads] */
    const gm_cache_address *states;   /* of each sequence [n_heads, n_values, n_keys] */
    const int32_t *positions, *first; /* of each row; of each sequence */
    int64_t n_heads, n_key_heads, n_keys, n_values;
    bool tiled; /* head h reads key head h % n_key_heads, else h / (n_heads / n_key_heads) */
} gm_cached_gated_delta_args;

/* Attention over plain arrays of f32, f16 or bf16: q [batches, n_heads, queries, dim], k, v [batches, n_kv_heads, keys,
 * ...], rows contiguous, strides of batch, head and row; out contiguous. A masked score is the lowest float32, so that
 * a query that sees no key has the mean of the values. */
#define GM_SDPA_DIM 512 /* the most that dim and value_dim may be */
typedef struct {
    void *out;
    const void *q, *k, *v;
    int type;
    int64_t q_strides[3], k_strides[3], v_strides[3];
    const void *mask;
    int mask_type;
    int64_t mask_strides[4]; /* NULL: none; bool, or added; the last stride is 0 or 1 */
    const float *sinks;      /* [n_heads] or NULL */
    int64_t batches, n_heads, n_kv_heads, queries, keys, dim, value_dim;
    float scale;
    bool causal;                /* causal: query t sees keys to t + keys - queries */
    float *packed_k, *packed_v; /* sdpa; packed_v NULL: v is float32 and read in place */
    float *partial;             /* sdpa_split: [query of a kv head][block][value_dim + 2]: o, m, l */
} gm_sdpa_args;

/* ---- training ---- */
/* out [m, k] = so_far (NULL: 0) + the sum over rows of left [m] times right [k]: in order, the sums of sequences, of
 * each chains of rows that begin with it. */
typedef struct {
    float *out;
    const float *left, *right, *so_far;
    const int32_t *starts; /* [sequences + 1] */
    int64_t sequences, m, k;
    bool rounded; /* both factors, to bfloat16: k is a multiple of 16, and a sequence gives a sum from zero */
} gm_sequence_outer_args;
#define GM_OUTER_BLOCK 128
/* out [n, k] = x * factor where a word is `least` or more, else 0. Words of columns 2 c and 2 c + 1 of a sequence's row
 * t come of the counters t and c by the sequence's key, to whose second word the salt is added. */
typedef struct {
    float *out;
    const float *x;
    const uint32_t *keys;  /* [sequences, 2] */
    const int32_t *starts; /* [sequences + 1] */
    int64_t sequences, k;
    uint32_t least, salt;
    float factor;
} gm_sequence_dropout_args;
/* All contiguous; kind, alpha and limit as in gm_glu_args. */
typedef struct {
    float *dgate, *dup;
    const float *gate, *up, *grad;
    gm_glu_kind kind;
    float alpha, limit;
} gm_glu_grad_args;
typedef struct { /* dx may be grad; weight [dim] or NULL */
    float *dx;
    const float *x, *weight, *grad;
    int64_t dim;
    float eps;
} gm_rms_norm_grad_args;
typedef gm_rms_norm_grad_args gm_layer_norm_grad_args;
typedef struct { /* rows of dim, side by side; dx may be grad or y */
    float *dx;
    const float *y, *grad;
    int64_t dim;
} gm_softmax_grad_args;
/* A step of Adam for one parameter: m_out = b1 * m + c1 * g, v_out = b2 * v + c2 * g**2, and out = w * shrink - rate *
 * m_out / (sqrt(v_out) * scale + eps), each operation rounded. An output may have the memory of the input of its place.
 */
typedef struct {
    float *out, *m_out, *v_out;
    const float *w, *m, *v, *gradient;
} gm_adam_part;
typedef struct {
    const gm_adam_part *parts;
    const int64_t *starts; /* [count + 1]: part i has the elements starts[i] up to starts[i + 1] */
    int64_t count;
    const float *rate, *shrink, *scale; /* one number each; shrink and scale NULL: without them */
    float b1, c1, b2, c2, eps;
} gm_adam_args;
/* loss [rows] = log(sum(exp(logits))) - logits[target] for logits [rows, n]; grad, which may be the logits, or NULL:
 * what a loss of 1 gives to them, or, softcap not 0, to what they were before it. Targets are below n. */
typedef struct {
    float *loss, *grad;
    const float *logits;
    const int32_t *targets;
    int64_t n;
    float softcap;
} gm_row_loss_args;
/* Attention of the rows of sequences over their own rows: row i of a sequence sees its rows up to i, and of them the
 * last `window` (0: all). starts [sequences + 1]: the first row of each, then n. dim: at most GM_SEQUENCE_DIM. */
#define GM_SEQUENCE_DIM 512
typedef struct {
    float *out, *lse;       /* as q; [n, n_heads]: the logarithm of what weights are over */
    const float *q, *k, *v; /* [n, n_heads, dim], [n, n_kv_heads, dim] */
    const int32_t *starts;
    int64_t n, sequences;
    int n_heads, n_kv_heads, dim;
    int64_t window;
    float scale, softcap;
    const float *sinks; /* [n_heads] or NULL */
    bool rounded;       /* both factors of products, to bfloat16 */
} gm_sequence_attention_args;
typedef struct {
    gm_sequence_attention_args forward; /* with out and lse as they were computed */
    const float *grad;                  /* the cotangent of out */
    float *dq, *dk, *dv;
} gm_sequence_attention_grad_args;

/* The convolution of cached_conv over the rows of sequences, before which there are zeros. */
typedef struct {
    float *out;
    const float *x, *weight; /* [n, channels]; weight [channels, taps] */
    const int32_t *starts;
    int64_t sequences, channels, taps;
} gm_sequence_conv_args;
typedef struct {
    gm_sequence_conv_args forward; /* without out */
    const float *grad;             /* the cotangent of out */
    float *dx;
} gm_sequence_conv_grad_args;
/* The rule of gated_delta over the rows of sequences, each from a state of zeros on. */
typedef struct {
    float *out;                /* [n, n_heads, n_values] */
    const float *q, *k, *v;    /* [n, n_key_heads, n_keys] twice, [n, n_heads, n_values] */
    const float *decay, *beta; /* [n, n_heads] */
    const int32_t *starts;
    int64_t n, sequences, n_heads, n_key_heads, n_keys, n_values;
    bool tiled; /* head h reads key head h % n_key_heads, else h / (n_heads / n_key_heads) */
} gm_sequence_delta_args;
typedef struct {
    gm_sequence_delta_args forward; /* without out */
    const float *grad;              /* the cotangent of out */
    float *dq, *dk, *dv, *ddecay, *dbeta;
} gm_sequence_delta_grad_args;

/* A loop over [begin, end) of what it works on, and a table of them for an instruction set (cpu/loops.h). */
typedef void (*gm_kernel)(const void *args, int64_t begin, int64_t end);
typedef struct gm_kernels gm_kernels;

/* The table chosen for this machine: the best that CPUID and XCR0 (or the auxiliary vector) allow, or the one that the
 * environment's GOMLX_ISA names. NULL when GOMLX_ISA names one that is unknown or cannot run here; then *why says so.
 */
const gm_kernels *kernels_select(const char **why);
/* All names, in order of preference, NULL-terminated; kernels_get gives a table or NULL when it cannot run here. */
const char *const *kernels_names(void);
const gm_kernels *kernels_get(const char *isa);
/* "generic", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "neon", ...; and the set that it builds on, or
 * itself: what it may be taken for where tables are fewer. */
const char *kernels_isa(const gm_kernels *table);
const char *kernels_family(const gm_kernels *table);
/* One line on what the CPU has and why this table was chosen, for `gomlx doctor`. */
const char *kernels_reason(void);

#define GM_ROUNDED_RANK 32 /* of a term beside a matrix that is rounded, at most: one tile along k */
#endif
