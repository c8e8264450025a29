/* team.h - the persistent team of worker threads.
 *  (1) One team per process; one run at a time (the caller holds the engine's run lock).
 *  (2) Thread 0 of a run is the caller; workers spin briefly for the next run, then sleep on a futex.
 *  (3) After fork the child has no workers; the next run starts new ones.
 *  (4) Nothing here allocates after the team has its threads. */
#ifndef GOMLX_BASE_TEAM_H
#define GOMLX_BASE_TEAM_H
#include <stdatomic.h>
#include <stdint.h>
#include "gomlx.h"

#define TEAM_MAX_THREADS 256

typedef void (*team_fn)(void *context, int thread, int n_threads);

/* How many threads a run gets unless told otherwise, and why: min(affinity, cgroup quota, physical cores). */
int team_default_threads(void);
/* One line of reasons for the number above, for `gomlx doctor`; valid until the next call on this thread. */
const char *team_default_reason(void);

/* Wakes n_threads - 1 workers into fn(context, 1..n_threads-1, n_threads); returns how many threads take part
 * (fewer when threads cannot be made). The caller then runs fn(context, 0, n) itself, in as many slices as it
 * likes, and calls team_join. */
int  team_start(int n_threads, team_fn fn, void *context);
void team_join(void);
/* In a child forked inside a run: the run's workers are gone, its barriers no longer wait, and what it computes is
 * not complete. The owner of the run gives it up. Cleared by the next team_start. */
bool team_lost(void);

/* A gate that opens when `left` pieces of work are done, by whichever threads: a thread that is not running holds up
 * nobody but the piece it has. Waiting spins, then sleeps on a futex. In a forked child all gates are open. */
typedef struct {
    _Alignas(64) _Atomic uint32_t left;
    _Atomic uint32_t sleepers;
} team_gate;
void team_gate_wait(team_gate *gate);
uint32_t team_gate_done(team_gate *gate, uint32_t pieces);       /* returns what is left */
#endif
