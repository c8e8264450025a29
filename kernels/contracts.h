/* contracts.h - arguments of contracts (contracts.def) that are not those of one kernel in kernels.h. Where a contract
 * has a kernel's arguments, what that kernel is given as workspace is left 0: the backend fills it in. */
#ifndef GOMLX_CONTRACTS_H
#define GOMLX_CONTRACTS_H
#include "kernels.h"

/* out[row][column] = the sum over k of x[row][k] * w[k][column], for every matrix of a batch; with add alpha * that +
 * beta * add. An element has the same bits whatever the batch, the other rows and the layouts are; one column alone may
 * be summed in another order than one among others, and on a GPU long sums of few elements. Strides in elements; one of
 * 0 repeats. n: matrices. */
typedef struct {
    void *out;
    const void *x, *w, *add; /* add NULL: none */
    int type;                /* of all: f16, bf16, f32, f64, c64 (without add) */
    int64_t rows, columns, k;
    int64_t out_row, out_column, x_row, x_k, w_k, w_column, add_row, add_column;
    int ndim;
    const int64_t *shape, *out_strides, *x_strides, *w_strides, *add_strides; /* of the batch */
    float alpha, beta;
} gm_product_args;

/* out[item] = x[x_index[item]] @ w[w_index[item]]. `product` says what one item is, without a batch or a term; out's
 * rows are of all items. n: items. */
typedef struct {
    gm_product_args product;
    const int32_t *x_index, *w_index;                   /* beyond the matrices: the first or the last */
    int64_t x_matrices, w_matrices, x_matrix, w_matrix; /* how many; elements from one to the next */
} gm_gather_product_args;

/* out[position][filter] = the sum over taps and channels of x[position * stride + tap * dilation - low] * w, for images
 * of three spatial axes, whose items are `spread` apart with zeros between, and for groups of channels. n: images. */
typedef struct {
    void *out;
    const void *x, *w; /* out [n, positions, groups, filters], w [groups, filters, taps, channels] */
    int type;          /* f16, bf16, f32, f64 */
    int64_t in[3], positions[3], taps[3], stride[3], low[3], dilation[3], spread[3];
    int64_t groups, channels, filters; /* channels and filters: of a group */
    int64_t image, steps[3];           /* of x: elements from one image, item to the next; channels side by side */
} gm_convolution_args;

/* A matrix of a weight format: packed into the backend's panels, or rows of a file, which are packed on the way. */
typedef struct {
    const void *data;
    int format;
    int64_t rows, k;
    bool in_rows;
    const int32_t *row_map; /* as pack reads it */
} gm_matrix;
typedef struct { /* out [tokens, rows] = x @ weight.T + bias + residual; n: tokens */
    float *out;
    const void *x;
    gm_row_form form; /* of x; int8 for block formats but mxfp8, bfloat16 for bfloat16 weights, and of a prompt for
                       * quantised ones where the device rounds them (rounds_prompts) */
    gm_matrix weight;
    const float *bias, *residual; /* [rows], [tokens, rows], which may be out itself; or NULL */
    bool prompt; /* x and the weight may be rounded to 16 bits, on a GPU: of many rows, whose bits are those of few */
} gm_packed_matmul_args;
typedef struct { /* out [tokens, k] = x [tokens, rows] @ weight; n: tokens */
    float *out;
    const float *x;
    gm_matrix weight;
} gm_packed_matmul_columns_args;
/* out = x @ weight.T, of [tokens, k], where turned, else x @ weight, of [tokens, rows]; + bias + residual. All of x and
 * of the weight is rounded to bfloat16, and sums are float32. An element's bits depend on its own row and column of
 * them alone; n: tokens. */
typedef struct {
    float *out;
    const float *x;
    gm_matrix weight;
    bool turned;
    const float *bias, *residual; /* of a row, and of all of out, which it may be; or NULL */
    /* rank 0, or a term: low [tokens, rank] = scale * x @ down.T, and out has low @ up.T added, of factors rounded too.
     * down [rank, k] and up [rows, rank] where turned, else down [rows, rank] and up [rank, k], with low = scale * x @
     * down. out NULL, where turned: low alone, without up. */
    int64_t rank;
    const float *down, *up;
    float scale;
    float *low;
} gm_rounded_matmul_args;
/* loss [n] = log(sum(exp(logits))) - logits[target] for logits x @ weight.T + bias, of factors rounded as above, after
 * the cap where there is one; grad [n, k], or NULL: what a loss of 1 gives back to x, where what is between the two
 * products is rounded too. The logits exist for few rows of the weight at a time. An element's bits depend on its own
 * row of x alone. Targets are below the weight's rows; lines [n, k], which may be grad: the weight's rows of these, or
 * NULL without grad. */
typedef struct {
    float *loss, *grad;
    const float *x, *lines;
    gm_matrix weight;
    const float *bias; /* [rows] or NULL */
    const int32_t *targets;
    float softcap; /* 0: none */
} gm_rounded_loss_args;
typedef struct { /* out [tokens, rows] = act(x @ gate.T) * (x @ up.T); n: tokens */
    void *out;
    gm_row_form out_form; /* int8: rows is a multiple of 32, and both formats are of blocks */
    const void *x;
    gm_row_form form;
    gm_matrix gate, up; /* of one size; of one format where one is dense */
    gm_glu_kind kind;
    bool prompt; /* as of gm_packed_matmul_args */
} gm_packed_glu_args;

/* Rows that a product makes of float32 ones as it reads them: x / rms(x) * norm, in a form. */
typedef struct {
    const float *x, *norm; /* norm NULL: x as it is */
    float eps;
    gm_row_form form;
} gm_made_rows;
#define GM_PRODUCTS 3
typedef struct {
    float *out;
    gm_matrix weight;
    const float *bias; /* or NULL */
} gm_product_part;
typedef struct { /* out of each part = rows @ weight.T + bias, of one k; the first + residual; n: tokens */
    gm_made_rows rows;
    gm_product_part parts[GM_PRODUCTS];
    int count;             /* of parts */
    const float *residual; /* as of gm_packed_matmul_args */
    bool prompt;           /* likewise */
} gm_packed_products_args;
typedef struct { /* packed_glu of such rows: its x and form are what is made of them; n: tokens */
    gm_made_rows rows;
    gm_packed_glu_args glu;
} gm_made_glu_args;

/* out [tokens, out_dim] = the sum over a token's `top_k` experts of weight * down(act(gate x) * up x); n: tokens. A
 * stack holds the panels of expert 0, then 1, ...; which product an expert's rows are for is data. */
typedef struct {
    const void *data;
    int format;
    const float *bias; /* [experts, rows] or NULL */
    gm_row_form form;  /* what float32 rows become first: rounded for bfloat16 weights */
} gm_matrix_stack;
typedef struct {
    float *out;
    const float *x, *weights;
    const int32_t *ids;                          /* ids, weights [tokens, top_k] */
    int64_t top_k, experts, dim, inner, out_dim; /* gate, up [inner, dim], down [out_dim, inner] */
    gm_matrix_stack gate, up, down;
    gm_glu_kind act;
    float alpha, limit;
} gm_experts_args;
/* dx [tokens, dim] and dweights [tokens, top_k] for grad, the cotangent of out; gate and up are computed again as
 * forwards, and rounding counts as what was rounded. n: tokens. */
typedef struct {
    gm_experts_args forward; /* without out */
    const float *grad;
    float *dx, *dweights;
} gm_experts_grad_args;

/* One row of each sequence, with max_blocks, the blocks that a cache may have, and n_blocks, those that one has now; n:
 * rows. */
typedef gm_attention_args gm_attention_rows_args;
/* The same of rows whose queries and keys are turned first, and whose keys and values go to their caches; n: rows. What
 * caches, tables and positions have otherwise is older than the launch before, which a device may let run on. */
typedef struct {
    gm_rope_cache_args turn;      /* q_out: where the attention's q is made, if it is made */
    const float *q_norm, *k_norm; /* [head_dim] of an RMSNorm of each head of q and k before that; or NULL */
    float eps;
    gm_attention_rows_args attention;
} gm_turned_attention_args;
/* Layers with a state, over rows of `sequences`; n: rows. */
typedef struct {
    gm_cached_conv_args layer;
    int64_t sequences;
} gm_recurrent_conv_args;
typedef struct {
    gm_cached_gated_delta_args layer;
    int64_t sequences;
} gm_recurrent_delta_args;

/* x [items, tokens, k] @ matrix.T of MLX's quantised matrices, chosen as in gm_group_matmul_args; n: items. */
typedef struct {
    gm_grouped w;
    const void *x;
    int x_type; /* contiguous */
    int64_t x_count, tokens;
    const int64_t *x_index, *matrix_index;
    void *out;
    int out_type;
} gm_quantized_matmul_args;
/* The same @ matrix, for rows of float32; n: items. */
typedef gm_quantized_matmul_args gm_quantized_matmul_columns_args;
#endif
