/* device_state.h - what an open GPU is; device.c and start.c alone change it. */
#ifndef GOMLX_CUDA_DEVICE_STATE_H
#define GOMLX_CUDA_DEVICE_STATE_H
#include <stdatomic.h>
#include "cuda/module.h"

/* Steps of which the kernel is not started yet: it waits for more of them (start.c). */
typedef struct {
    cuda_steps_args steps;
    cuda_kernel kernel; /* of the first one alone, and what that is given */
    _Alignas(16) char params[CUDA_STEP_PARAMS];
} cuda_waiting;

#define MARKS 256
struct gm_device_state {
    const cuda_driver *driver;
    int index, device, major, minor;
    int block_memory; /* bytes of a block, at most */
    int processors;
    bool wgmma;  /* the kernels are of sm_90a's machine code, which has products of whole groups of warps */
    bool graphs; /* launches may be captured, and replayed with one call */
    bool early;  /* kernels begin while the one before ends, and wait for it themselves (vocabulary.cuh) */
    driver_context *context;
    driver_stream *stream;
    driver_event *events[MARKS];
    _Atomic uint64_t marks;   /* the last one */
    _Atomic int64_t usual_ns; /* that the last wait took which was no short one */
    _Atomic int64_t step_ns;  /* that waits for graphs take */
    _Atomic uint64_t step_mark;
    _Atomic int64_t step_since;
    atomic_int step_pauses; /* of the wait for a graph that is under way, or was the last */
    atomic_bool replayed;   /* a graph was asked for since the last mark */
    atomic_bool of_graph[MARKS];
    atomic_bool ending, lost;
    cuda_module module;
    cuda_waiting waiting;
    struct cuda_products *products; /* launch_blaslt.c: NULL until first used */
    char why[DEVICE_WHY];           /* it is lost */
};
/* Of what failed last in this thread. */
const char *cuda_why(const gm_device_state *d);
/* What an error of the driver means; the reason is kept. */
gm_device_result cuda_fails(gm_device_state *d, int error, const char *what);
bool cuda_is_lost(gm_device_state *d);
/* The context becomes this thread's, until cuda_leave; then it has the one that it had before. */
gm_device_result cuda_enter(gm_device_state *d, const char *what);
void cuda_leave(const gm_device_state *d);
/* Nanoseconds that a wait sleeps before it looks again, which has lasted `waited` where the one before took `usual`.
 * followed: more was asked for behind what it waits for. */
int64_t cuda_pause(int64_t waited, int64_t usual, bool followed);
int64_t cuda_step_pause(int64_t waited, int64_t usual); /* of a graph behind which there is another */
/* Nanoseconds that the next such wait is expected to take, after one that paused this often. */
int64_t cuda_usual_step(int64_t waited, int64_t usual, int pauses);
/* pinned.c: memory of the host, or NULL; and where it is given back, whether this device alone is open. */
void *pinned_take(const gm_device_state *d, size_t bytes);
void pinned_give(gm_device_state *d, void *memory, bool alone);
void pinned_captures(int more); /* one more that begins, or ends: -1 */
/* Runs launchers, which start kernels. */
gm_device_result cuda_issue(gm_device_state *d, const gm_device_launch *launches, int64_t n);
/* graphs.c */
gm_device_result cuda_capture(gm_device_state *d, const gm_device_launch *launches, int64_t n, gm_device_graph **out);
gm_device_result cuda_replay(gm_device_state *d, gm_device_graph *graph);
void cuda_drop(gm_device_state *d, gm_device_graph *graph);
/* Whose launcher runs in this thread; NULL where something that it started failed. */
gm_device_state *cuda_issuing(void);
/* What another library, told to work in the device's stream, says of a failure. */
void cuda_library_failed(const char *what, const char *words);
#endif
