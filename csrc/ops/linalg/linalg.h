/* linalg.h - what the files of linear algebra share: matrices of arrays as the kernels take them. */
#ifndef GOMLX_OPS_LINALG_H
#define GOMLX_OPS_LINALG_H
#include "ops/ops.h"

/* The last two axes of an array, and how many there are in those before; width 2: complex numbers. */
typedef struct {
    int64_t count, rows, cols;
    int width;
} matrices;
matrices matrices_of(const gm_array *x);

/* float32 or float64 (or complex64), at least two dimensions, square if required. */
gm_status matrices_check(const char *name, const gm_array *x, bool square, bool complex);
/* x's leading axes and n others. */
void matrices_spec(gm_spec *out, const gm_array *x, gm_dtype type, int n, const int64_t *last);
gm_status matrices_infer_same(gm_array *const *in, int n_in, const void *param, gm_spec *out);

/* In .eval. Scratch for `each` doubles of each of count matrices; a copy of x as doubles, which the kernel overwrites;
 * a result of doubles as an output, whose memory is taken here. Transposed: rows and columns are exchanged on the way.
 */
double *matrices_scratch(gm_queue *q, int64_t count, int64_t each);
gm_status matrices_load(gm_queue *q, const gm_array *x, bool transposed, double **out);
gm_status matrices_store(gm_queue *q, gm_array *out, const double *from, bool transposed);

/* The end of .rebuild of ops with one input, which matrices_check has accepted, with these parameters or NULL. */
gm_status matrices_rebuild(gm_scope *s, const gm_op *op, gm_array *const *in, const void *param, int n_out,
                           gm_array **outs);
/* .vmap of ops with one input */
gm_status vmap_matrices(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs);

gm_array *transposed(gm_scope *s, gm_array *x);
/* Zeros but for the lower (upper) triangle, from the `beyond`-th diagonal below (above) the main one on. */
gm_array *triangle(gm_scope *s, gm_array *x, bool upper, int beyond);
/* The first `rows` rows and `cols` columns of matrices. */
gm_array *matrices_corner(gm_scope *s, gm_array *x, int64_t rows, int64_t cols);
#endif
