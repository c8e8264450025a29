/* team.h - the persistent team of worker threads.
 *  (1) One team per process; one run at a time (the caller has the engine's run lock).
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

/* The default number of threads of a run: min(affinity, cgroup quota, physical cores). */
int team_default_threads(void);
/* The reason for that number in one line, for `gomlx doctor`; valid until the next call on this thread. */
const char *team_default_reason(void);

/* Wakes n_threads - 1 workers into fn(context, 1..n_threads-1, n_threads); returns the number of threads that take
 * part, fewer when threads cannot be made. The caller then runs fn(context, 0, n) itself, in any number of slices,
 * and calls team_join. */
int team_start(int n_threads, team_fn fn, void *context);
void team_join(void);
/* True in a child that was forked inside a run: the workers are gone, gates no longer wait, and the result is
 * incomplete. The owner of the run must abandon it. Cleared by the next team_start. */
bool team_lost(void);

/* A gate that opens when `left` pieces are done, by any threads: a thread that is not scheduled delays only the piece
 * that it has. Waiting spins, then sleeps on a futex. In a forked child all gates are open. */
typedef struct {
    _Alignas(64) _Atomic uint32_t left;
    _Atomic uint32_t sleepers;
} team_gate;
void team_gate_wait(team_gate *gate);
uint32_t team_gate_done(team_gate *gate, uint32_t pieces); /* returns how many are left */
#endif
