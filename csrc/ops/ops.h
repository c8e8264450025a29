/* ops.h - what the op families share: loops over strided operands, checks, and calls that C files make of each
 * other. */
#ifndef GOMLX_OPS_OPS_H
#define GOMLX_OPS_OPS_H
#include "core/queue.h"
#include "core/trace.h"

/* The operations themselves, by the names of ops.def. */
#define RECORD(name) extern const gm_op name##_op;
#include "ops/ops.def"
extern const gm_op *const op_records[];
extern const int op_record_count;
const gm_op *op_record(const char *name); /* NULL when there is none */

#define MAX_OPERANDS 4

/* Dimensions merged where all operands allow it; memory from the queue's arena. */
typedef struct {
    int ndim;
    const int64_t *shape;
    const int64_t *strides[MAX_OPERANDS];
} loop;
gm_status loop_make(gm_queue *q, int ndim, const int64_t *shape, int n_operands, const int64_t *const *strides,
                    loop *out);

/* What a slice takes of one axis. */
typedef struct { int64_t start, stop, step; } slice_range;
/* The shape of x[range], of one range for each axis; GM_EVALUE when it reaches outside. */
gm_status slice_shape(const gm_array *x, const slice_range *range, gm_spec *out);
bool slice_is_sane(const slice_range *range, const gm_array *x); /* of a file: within x, or nothing of it */

/* Strides of `a` seen by broadcasting as ndim dimensions; strides has capacity for ndim. */
void broadcast_strides(const gm_array *a, int ndim, int64_t *strides);
/* The common shape of two, as NumPy has it; GM_ESHAPE names op and both. */
gm_status broadcast_shape(const char *op, const gm_array *a, const gm_array *b, gm_spec *out);
/* Only checks that there is one, for ops that are composed of others, so that the error names the op that was called.
 */
gm_status broadcast_check(const char *op, const gm_array *a, const gm_array *b);
void spec_like(gm_spec *out, const gm_array *a, gm_dtype type);
/* 0 <= axis < ndim, negative ones counted from the end; else GM_EAXIS. */
gm_status check_axis(const char *op, int axis, int ndim, int *out);

bool dtype_is_float(gm_dtype t);   /* float16, bfloat16, float32, float64 */
bool dtype_is_inexact(gm_dtype t); /* those and complex64 */
bool dtype_is_integer(gm_dtype t); /* not bool */
/* GM_ESHAPE unless `a`, the op's input of that name, is float32 [n, width]. */
gm_status check_rows(const char *op, const gm_array *a, const char *name, int64_t n, int64_t width);
/* GM_ESHAPE unless they are int32 [sequences + 1]: the first row of each sequence, then how many rows there are. */
gm_status check_starts(const char *op, const gm_array *starts);
/* The dtype that a floating-point function computes in: its own, or float32 for integers and bool. */
gm_dtype dtype_inexact(gm_dtype t);

/* Records out = (dtype of out) in over whole arrays or parts: pointers to element (0, ...), strides in elements. */
typedef struct {
    void *out;
    const void *in;
    gm_dtype out_type, in_type;
    int ndim;
    const int64_t *shape, *out_strides, *in_strides;
} copy_part;
/* Copies to regions that do not overlap, as one launch. */
gm_status launch_copies(gm_queue *q, const copy_part *parts, int count);
/* One copy from element to element of a shape. */
typedef struct {
    void *data;
    gm_dtype type;
    const int64_t *strides;
} copy_to;
typedef struct {
    const void *data;
    gm_dtype type;
    const int64_t *strides;
} copy_from;
static inline copy_to to_array(const gm_array *a) { return (copy_to){array_ptr(a), (gm_dtype)a->dtype, a->strides}; }
static inline copy_from from_array(const gm_array *a) {
    return (copy_from){array_ptr(a), (gm_dtype)a->dtype, a->strides};
}
gm_status launch_copy(gm_queue *q, copy_to out, copy_from in, int ndim, const int64_t *shape);
/* A float32, contiguous, evaluated-in-stream-order pointer to a's elements: a itself or a copy in the node's
 * scratch. */
gm_status float_operand(gm_queue *q, const gm_array *a, const float **out);

/* A pointer to a's elements side by side in its own dtype: a itself or a copy in the node's scratch. */
gm_status dense_operand(gm_queue *q, const gm_array *a, const void **out);
/* The same for rows along the last axis, *stride elements apart. */
gm_status row_operand(gm_queue *q, const gm_array *a, const void **out, int64_t *stride);

/* The step that the node is, without its operands; false when it is not elementwise. */
bool elementwise_step(const gm_array *node, gm_fused_step *out);
/* The name of the op that a step was. */
const char *elementwise_title(const gm_fused_step *step);
/* The node that a step was. */
gm_array *elementwise_node(gm_scope *s, const gm_fused_step *step, gm_array *const *in);
/* A chain of steps over inputs that broadcast against each other. */
gm_array *fused_chain(gm_scope *s, const gm_fused_step *steps, int n_steps, gm_array *const *inputs, int n_inputs);

/* The steps of such a node, each after those that it reads, with broadcast_to for smaller inputs. The capacity needed
 * is GM_GRAPH_TITLES. */
int fused_titles(const gm_array *node, const char **titles);

/* x broadcast to the shape of another array, whatever shape that has when a shapeless function runs again. */
gm_array *broadcast_like(gm_scope *s, gm_array *x, gm_array *like);
/* x broadcast to the shape that the others have together. */
gm_array *broadcast_with(gm_scope *s, gm_array *x, gm_array *const *others, int n);
/* How many elements of x there are along the axes (n < 0: all): a float scalar, counted anew when a shapeless function
 * runs again. */
gm_array *element_count(gm_scope *s, gm_array *x, int n, const int *axes, gm_dtype type);
/* Whether a reshape node has a dimension of -1, which follows its input's size. */
bool reshape_is_free(const gm_array *node);

gm_array *round_even(gm_scope *s, gm_array *x); /* to the nearest integer, halves to even; keeps the dtype */
enum { RECOMPUTE_ALL, RECOMPUTE_CHEAP, RECOMPUTE_NOTHING };
int recompute_what(const gm_array *node); /* a node of recompute_op */
/* 0-d array of a value */
gm_array *scalar_array(gm_scope *s, double value, gm_dtype type);

/* ---- .rebuild: parameters that come from a file ---- */
static inline bool within(int64_t value, int64_t count) { return value >= 0 && value < count; }
/* The end of a .rebuild: its one output. */
gm_status rebuilt(gm_array *made, gm_array **outs);
gm_status rebuild_refuse(const char *op); /* parameters that no function of the op makes */

/* ---- rules that .vjp and .vmap of many ops share (rules.c) ---- */
/* A cotangent of a broadcast result brought back to the shape of the operand: summed over the axes that were
 * repeated. */
gm_array *unbroadcast(gm_scope *s, gm_array *cotangent, const gm_array *operand);
/* in[i] with the batch axis in front, whether it has one or not (then it is broadcast to the batch). */
gm_array *batched_input(gm_scope *s, gm_array *in, bool batched, int64_t batch);
/* The size of the batch, from the first input that has one. */
int64_t batch_size(gm_array *const *in, int n_in, const bool *batched);
/* For .refuse: an index that a derivative depends on, in MLX's words. */
gm_status refuse_index(const char *op, bool forward);
/* .vmap of ops whose inputs broadcast against each other (elementwise): ranks are aligned after the batch axis. */
gm_status vmap_broadcasting(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs);
/* .vmap of ops that treat all leading axes alike, as rows: every input gets the batch axis and the op runs again. */
gm_status vmap_leading(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs);
#endif
