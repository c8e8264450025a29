/* plan.h - what graph.c needs of plans beside graph.h: they are recorded there, and run in plan.c.
 *  (1) A plan has a part for each device of its graph: that of its roots, and before it the processor's, where the
 *      graph begins there. The processor's part runs to its end. Then what the other one reads of it is copied, once
 *      in each run, and nothing goes the other way.
 *  (2) What a part reads of another device and no part makes stays as it is, for all runs: it is copied when the plan
 *      is recorded. */
#ifndef GOMLX_CORE_PLAN_H
#define GOMLX_CORE_PLAN_H
#include "core/graph.h"

/* Bytes that the processor's part makes, and where the other one reads them. */
typedef struct {
    gm_buffer *from, *to;
    int64_t begin;
    size_t bytes;
} plan_crossing;

struct gm_plan {
    gm_queue *queue;         /* of the device that the roots are on */
    gm_queue *first;         /* the processor's part before it, or NULL */
    gm_array *const *inputs; /* while it is recorded: the arrays that it does not make */
    size_t n_inputs;
    gm_buffer **constants; /* copies of those that are on another device */
    size_t n_constants, constants_capacity;
    plan_crossing *crossings;
    size_t n_crossings, crossings_capacity;
    int threads;  /* of the current run */
    bool crossed; /* its first part has run, or there is none */
};

/* Its queues: on the device `number`, with the processor before it or not. NULL with the cause. */
gm_plan *plan_new(int number, bool begins_here);
/* Where the node is recorded. */
static inline gm_queue *plan_part(const gm_plan *p, const gm_array *node) {
    return p->first && !node->device ? p->first : p->queue;
}
/* While the node is recorded into q: one of its inputs, which is on another device than q, as an evaluated array there.
 * The caller owns it. */
gm_status plan_bring(gm_plan *p, gm_queue *q, const gm_array *node, gm_array *input, gm_array **out);
#endif
