/* index.h - what reading (index.c) and writing (scatter.c) by index arrays share.
 *  (1) An op by index has x, then index arrays, which broadcast to one shape. Index k addresses axes[k] of x; the axes
 *      that no index addresses are kept, and `kept_before` of them come before the indices' dimensions in the dense
 * side (the result of gather, the updates of scatter). (2) Negative indices count from the end. One that is out of
 * range is GM_EINDEX when the node is evaluated: no memory outside of the axis is ever read or written. */
#ifndef GOMLX_OPS_INDEX_H
#define GOMLX_OPS_INDEX_H
#include "ops/ops.h"

typedef struct {
    int32_t n_axes, kept_before;
    int32_t mode, unused; /* gm_scatter_mode */
    int8_t axes[GM_MAX_NDIM];
    slice_range region[GM_MAX_NDIM]; /* scatter: what it writes to of each axis of x */
} index_param;

/* The shape of the indices together, and then that of the dense side: kept[] are x's dimensions (of addressed axes
 * unused). */
gm_status index_shape(const char *op, gm_array *const *index, int n, gm_spec *out);
gm_status index_dense_shape(const char *op, const index_param *p, int ndim, const int64_t *kept, const gm_spec *shape,
                            gm_spec *out);
/* The axes of parameters from a file; false where x does not have them, or one appears twice. */
bool index_read_axes(const index_param *p, const gm_array *x, int *axes);
bool index_is_kept(const index_param *p, int axis);

/* Parts of the kernels' arguments: the positions that the indices address; sizes and steps are those of the addressed
 * axes. */
gm_status index_locate(gm_queue *q, const char *op, gm_array *const *index, int n, const int64_t *sizes,
                       const int64_t *steps, gm_index_args *a);
/* An index for each item of a shape that `index` broadcasts to, as int64 in scratch: counted from the front, one that
 * is out of range INT64_MIN. */
gm_status index_list(gm_queue *q, const char *op, const gm_array *index, int ndim, const int64_t *shape, int64_t size,
                     const int64_t **out);
/* The other dimensions, with their strides in the sparse side, the dense side and the indices; with rows the innermost
 * of them is the run. */
gm_status index_lay_out(gm_queue *q, int ndim, const int64_t *shape, const int64_t *const strides[3], bool rows,
                        gm_index_args *a);
/* Checks x, indices and axis of the ops along an axis; *at is the axis, not negative. */
gm_status index_along(const char *op, const gm_array *x, const gm_array *index, int axis, int *at);
int64_t index_lead_count(const gm_index_args *a);

/* Batching: a's axis `from` at `to`. */
gm_array *index_move_axis(gm_scope *s, gm_array *a, int from, int to);
/* The indices of a node whose in[1 + k] may be batched: as all of one rank with the batch in front. */
void index_align(gm_scope *s, const gm_array *node, gm_array *const *in, const bool *batched, gm_array **index);
/* 0 .. batch - 1, of as many dimensions as the aligned indices. */
gm_array *index_batch(gm_scope *s, const gm_array *node, int64_t batch);
#endif
