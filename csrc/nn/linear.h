/* linear.h - a linear layer over a packed matrix, dense or quantised. */
#ifndef GOMLX_NN_LINEAR_H
#define GOMLX_NN_LINEAR_H
#include "ops/layers/low_rank.h"

/* scale * (x @ a.T) @ b.T, added to what the matrix gives: a [rank, k], b [rows, rank], of one floating-point dtype. */
typedef struct {
    gm_array *a, *b;
    float scale;
    gm_array *magnitude; /* float32 [rows, 1]: the length that each row of the sum of matrix and term is brought to; */
    gm_array *squares;   /* float32 [rows]: the squared length of each row of the matrix; or both are NULL */
    gm_array *starts;    /* of the rows' sequences; */
    gm_array *groups;    /* of these as they belong together, by which the gradients are summed in order, */
    gm_array *sum_a, *sum_b, *sum_magnitude; /* from these on, of float32; or NULL */
    gm_array *keys; /* of the sequences: a share of x, drawn by them and the salt, is left out; or NULL */
    float dropout;
    int salt;
} gm_low_rank;

/* A matrix [rows, k] and its bias [rows, 1] or NULL, float32, that are trained themselves. */
typedef struct {
    gm_array *weight, *bias;
    gm_array *groups;                /* of the rows' sequences, by which the gradients are summed in order, */
    gm_array *sum_weight, *sum_bias; /* from these on; or NULL */
} gm_whole;

typedef struct {
    gm_array *weight;         /* packed [rows, k]; experts: [E, rows, k] */
    gm_array *bias;           /* float32 [rows], or NULL */
    bool int8, bf16;          /* multiplies int8 activations, float32 ones rounded to bfloat16 */
    bool rounded;             /* multiplies by itself rounded to bfloat16, whatever its format, and what it reads */
    const gm_low_rank *terms; /* n_terms of an adapter: another's memory */
    int n_terms;
    low_rank_term *row_terms; /* n_row_terms of the adapters that rows of a pass use, without gradients: another's */
    int n_row_terms;
    const gm_whole *whole; /* in place of weight and bias, or NULL: another's memory */
} gm_linear;

/* An input of several linear layers: float32, and quantised or rounded once, when the first of them needs it. x NULL:
 * it exists only in the form of the one layer that reads it, or it is what `made` becomes by an RMSNorm (norm GM_NONE:
 * what made is), which the layers that read it may do themselves. */
typedef struct {
    gm_array *x, *int8, *bf16;
    gm_array *made, *norm;
    float eps;
} gm_activation;
gm_array *activation_rows(gm_scope *s, gm_activation *x); /* float32 */

/* x @ weight.T + bias + residual; residual may be GM_NONE. */
gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual);
/* y[i] = x @ layers[i]->weight.T + bias, of at most LINEAR_MOST layers. */
#define LINEAR_MOST 3
void linear_apply_all(gm_scope *s, const gm_linear *const *layers, int n, gm_activation *x, gm_array **y);
/* swiglu, or geglu, of both layers, in the form that `next` reads. */
gm_activation linear_glu(gm_scope *s, const gm_linear *gate, const gm_linear *up, gm_activation *x, bool gelu,
                         const gm_linear *next);
/* Rows of the matrix, by token, times scale: float32 [n, k]. */
gm_array *linear_embed(gm_scope *s, const gm_linear *l, gm_array *tokens, float scale);
int64_t linear_rows(const gm_linear *l);
/* 1 over the length of each row of W + scale * b a, float32 [rows], from the squared lengths of W's rows; lazy. */
gm_array *linear_inverse_lengths(gm_scope *s, gm_array *weight, const gm_low_rank *term);
void linear_clear(gm_linear *l);
#endif
