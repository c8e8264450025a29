/* contracts.h - arguments of contracts (contracts.def) that are not those of one kernel in kernels.h. Where a contract
 * has a kernel's arguments, what that kernel is given as workspace is left 0: the backend fills it in. */
#ifndef GOMLX_CONTRACTS_H
#define GOMLX_CONTRACTS_H
#include "kernels.h"

/* A matrix of a weight format: packed into the backend's panels, or rows of a file, which are packed on the way. */
typedef struct {
    const void *data;
    int format;
    int64_t rows, k;
    bool in_rows; const int32_t *row_map;    /* as pack reads it */
} gm_matrix;
typedef struct {                             /* out [tokens, rows] = x @ weight.T + bias + residual; n: tokens */
    float *out; const void *x;
    gm_row_form form;                        /* of x; int8 for block formats but mxfp8, bfloat16 for bfloat16 weights */
    gm_matrix weight;
    const float *bias, *residual;            /* [rows], [tokens, rows], which may be out itself; or NULL */
} gm_packed_matmul_args;
typedef struct {                             /* out [tokens, rows] = act(x @ gate.T) * (x @ up.T); n: tokens */
    void *out; gm_row_form out_form;         /* int8: rows is a multiple of 32, and both formats are of blocks */
    const void *x; gm_row_form form;
    gm_matrix gate, up;                      /* of one size; of one format where one is dense */
    gm_glu_kind kind;
} gm_packed_glu_args;

/* out [tokens, out_dim] = the sum over a token's `slots` experts of weight * down(act(gate x) * up x); n: tokens. A
 * stack holds the panels of expert 0, then 1, ...; which product an expert's rows are for is data. */
typedef struct {
    const void *data; int format;
    const float *bias;                       /* [experts, rows] or NULL */
    gm_row_form form;                        /* what float32 rows become first: rounded for bfloat16 weights */
} gm_matrix_stack;
typedef struct {
    float *out; const float *x, *weights; const int32_t *ids;    /* ids, weights [tokens, slots] */
    int64_t slots, experts, dim, inner, out_dim;      /* gate, up [inner, dim], down [out_dim, inner] */
    gm_matrix_stack gate, up, down;
    gm_glu_kind act; float alpha, limit;
} gm_experts_args;

/* One row of each sequence, with max_blocks, the blocks that a cache may have, and n_blocks, those that one has now; n:
 * rows. */
typedef gm_attention_args gm_attention_rows_args;
/* Layers with a state, over rows of `sequences`; n: rows. */
typedef struct { gm_cached_conv_args layer; int64_t sequences; } gm_recurrent_conv_args;
typedef struct { gm_cached_gated_delta_args layer; int64_t sequences; } gm_recurrent_delta_args;

/* x [items, tokens, k] @ matrix.T of MLX's quantised matrices, chosen as in gm_group_matmul_args; n: items. */
typedef struct {
    gm_grouped w;
    const void *x; int x_type;               /* contiguous */
    int64_t x_count, tokens;
    const int64_t *x_index, *matrix_index;
    void *out; int out_type;
} gm_quantized_matmul_args;
/* The same @ matrix, for rows of float32; n: items. */
typedef gm_quantized_matmul_args gm_quantized_matmul_columns_args;
#endif
