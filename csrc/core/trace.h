/* trace.h - whether the calling thread is inside a transform that traces a function.
 *  (1) A node made while the thread traces, from an input that is a tracer, is a tracer itself.
 *  (2) A tracer evaluated while its thread traces keeps its inputs, so that the walk back to the traced inputs finds
 *      them. */
#ifndef GOMLX_CORE_TRACE_H
#define GOMLX_CORE_TRACE_H
#include "core/array.h"

int trace_depth(void);
/* x as an input of the function being traced: the same value, evaluable. */
extern const gm_op trace_op;
/* An input of x's shape and dtype without a value: what depends on it cannot be evaluated. */
extern const gm_op placeholder_op;
gm_array *trace_placeholder(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape);
#endif
