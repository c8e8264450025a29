/* trace.h - whether the calling thread is inside a transform that traces a function.
 *  (1) A node made while the thread traces, from an input that is a tracer, is a tracer itself.
 *  (2) Traced inputs are numbered as they are made; a node's serial is the greatest of those it depends on. So what
 *      depends on a given traced input has at least that input's serial, and a walk back to it need look at no other
 *      node.
 *  (3) A tracer evaluated while its thread traces keeps its inputs, so that the walk back to the traced inputs finds
 *      them. */
#ifndef GOMLX_CORE_TRACE_H
#define GOMLX_CORE_TRACE_H
#include "core/array.h"

int trace_depth(void);
/* Whether x's shape may be another one when what is traced now runs again (gm_shapeless_enter). */
bool trace_shapeless(const gm_array *x);
/* x as an input of the function being traced: the same value, evaluable (gm_tracer). */
extern const gm_op trace_op;
/* An input without a value: what depends on it cannot be evaluated (gm_placeholder). */
extern const gm_op placeholder_op;
#endif
