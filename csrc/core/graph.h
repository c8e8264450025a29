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

/* A plan: the launches of a graph with their memory, recorded once, run many times, on the device of the first root,
 * and before that on the processor, where the graph begins there (plan.h). Inputs are evaluated arrays, whose contents
 * may change between runs where they are on the device that reads them; of others a copy is made once. The roots'
 * memory holds the results after each run. */
typedef struct gm_plan gm_plan;
/* With the run lock held. After a failure the roots are of no use. */
gm_status plan_capture(gm_array *const *roots, size_t count, gm_plan **out);
void plan_free(gm_plan *p);
/* On the device of the roots. */
gm_queue *plan_queue(gm_plan *p);
/* A run, with the run lock held: begin, go on until it is not GM_AGAIN (at the deadline; 0: none), then end; or give up
 * at any time, which skips the rest. A plan that has run can begin again. profile: where its work is added, or NULL. */
void plan_begin(gm_plan *p, int n_threads, gm_phase_profile *profile);
gm_status plan_go_on(gm_plan *p, int64_t deadline_ns);
/* Of roots on a device: begins all that it has to do, so that what is asked of it next comes after the run. */
gm_status plan_issue(gm_plan *p, int64_t deadline_ns);
void plan_end(gm_plan *p, bool failed);
void plan_give_up(gm_plan *p);
int engine_threads(void);
const gm_kernels *engine_kernels(void); /* NULL before gm_init */
gm_host_loops engine_host_loops(void);
#endif
