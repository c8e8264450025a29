/* graph.h - ordering and evaluation of nodes, and plans: recorded queues that run again. */
#ifndef GOMLX_CORE_GRAPH_H
#define GOMLX_CORE_GRAPH_H
#include "core/queue.h"
#include "host.h"

/* The run lock: one evaluation at a time, threads that wait for it before those that come. Waits at most slice_ms (< 0:
 * for ever); GM_AGAIN when another thread has it. Taking it again on the thread that has it is GM_ESTATE. */
gm_status run_lock(int slice_ms);
void run_unlock(void);

/* Of a node that nobody refers to: whether it is freed at the end of its batch, which may have to look at it. */
bool graph_frees(gm_array *a);

/* A plan: the launches of a graph with their memory, recorded once, run many times, on the device of the first root.
 * Inputs are evaluated arrays, whose contents may change between runs where they are on that device; of others a copy
 * is made once. The roots' memory holds the results after each run. */
typedef struct gm_plan gm_plan;
/* With the run lock held. After a failure the roots are of no use. */
gm_status plan_capture(gm_array *const *roots, size_t count, gm_plan **out);
void plan_free(gm_plan *p);
/* For queue_begin, queue_go_on, queue_end and queue_give_up, with the run lock held. */
gm_queue *plan_queue(gm_plan *p);
int engine_threads(void);
const gm_kernels *engine_kernels(void); /* NULL before gm_init */
gm_host_loops engine_host_loops(void);
#endif
