/* start.c - what launchers call: kernels are started on the device whose launcher runs in this thread; and what errors
 * of the driver mean for that device. */
#include <stdio.h>
#include <string.h>
#include "cuda/device_state.h"
#include "cuda/launch.h"

static _Thread_local gm_device_state *issuing; /* whose launcher runs in this thread */
static _Thread_local gm_device_result outcome; /* of what it started */
static _Thread_local char reason[DEVICE_WHY];  /* of what failed last in this thread */

const char *cuda_why(const gm_device_state *d) {
    (void)d;
    return reason;
}
/* Once; its reason stays. */
static void lose(gm_device_state *d) {
    if (atomic_exchange(&d->ending, true)) return;
    memcpy(d->why, reason, sizeof reason);
    atomic_store(&d->lost, true);
}

/* Others, such as more registers than the card has, are of one launch. */
static bool ends_context(int error) {
    static const int these[] = {DRIVER_DEINITIALIZED, DRIVER_ECC, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
    for (size_t i = 0; i < sizeof these / sizeof *these; i++)
        if (error == these[i]) return true;
    return false;
}

/* What an error of the driver means; the reason is kept. */
gm_device_result cuda_fails(gm_device_state *d, int error, const char *what) {
    char words[256];
    if (error == DRIVER_SUCCESS) return DEVICE_OK;
    driver_says(d->driver, error, words, sizeof words);
    snprintf(reason, sizeof reason, "%s: %s", what, words);
    if (error == DRIVER_OUT_OF_MEMORY) return DEVICE_MEMORY;
    if (!ends_context(error)) return DEVICE_FAILED;
    lose(d);
    return DEVICE_LOST;
}
bool cuda_is_lost(gm_device_state *d) {
    const bool forked = driver_is_forked(), lost = atomic_load(&d->lost);
    if (forked || lost) snprintf(reason, sizeof reason, "%s", forked ? DRIVER_FORKED : d->why);
    return forked || lost;
}
gm_device_result cuda_enter(gm_device_state *d, const char *what) {
    if (cuda_is_lost(d)) return DEVICE_LOST;
    return cuda_fails(d, d->driver->context_push(d->context), what);
}
void cuda_leave(const gm_device_state *d) {
    driver_context *own;
    d->driver->context_pop(&own); /* it was pushed */
}

/* cluster: blocks that have one another's memory. */
static void start_now(cuda_kernel kernel, const int64_t blocks[3], uint32_t cluster, int threads, size_t shared,
                      const void *params) {
    gm_device_state *d = issuing;
    int error;
    if (outcome != DEVICE_OK || blocks[0] == 0 || blocks[1] == 0 || blocks[2] == 0) return;
    if (blocks[0] > INT32_MAX || blocks[1] > UINT16_MAX || blocks[2] > UINT16_MAX) {
        cuda_refuse("an array of this size");
        return;
    }
    driver_function *function = module_function(d->driver, &d->module, kernel, shared, &error);
    if (function) {
        driver_attribute attributes[2];
        driver_launch how = {.blocks = {(uint32_t)blocks[0], (uint32_t)blocks[1], (uint32_t)blocks[2]},
                             .threads = {(uint32_t)threads, 1, 1},
                             .shared = (uint32_t)shared,
                             .stream = d->stream,
                             .attributes = attributes};
        if (d->early) attributes[how.count++] = (driver_attribute){DRIVER_LAUNCH_EARLY, {.yes = 1}};
        if (cluster > 1)
            attributes[how.count++] = (driver_attribute){DRIVER_LAUNCH_CLUSTER, {.cluster = {cluster, 1, 1}}};
        void *list[1] = {(void *)(uintptr_t)params};
        error = d->driver->launch(&how, function, list, NULL);
    }
    outcome = cuda_fails(d, error, module_kernel_name(kernel));
}

/* ---- steps over few elements: each alone would be a kernel that takes the host longer than the card ---- */
static void start_waiting(void) {
    cuda_waiting *w = &issuing->waiting;
    const int32_t n = w->steps.n_steps;
    w->steps.n_steps = 0;
    if (n == 0) return;
    if (n == 1) {
        start_now(w->kernel, (int64_t[]){1, 1, 1}, 1, CUDA_THREADS, 0, w->params);
        return;
    }
    cuda_steps_args steps = w->steps;
    steps.n_steps = n;
    start_now(CUDA_steps, (int64_t[]){1, 1, 1}, 1, CUDA_THREADS, 0, &steps);
}
void cuda_start_step(const cuda_step *step, cuda_kernel alone, const void *params, size_t bytes) {
    cuda_waiting *w = &issuing->waiting;
    if (w->steps.n_steps == CUDA_STEPS) start_waiting();
    if (w->steps.n_steps == 0) {
        w->kernel = alone;
        memcpy(w->params, params, bytes);
    }
    w->steps.steps[w->steps.n_steps++] = *step;
}
static void start(cuda_kernel kernel, const int64_t blocks[3], uint32_t cluster, int threads, size_t shared,
                  const void *params) {
    start_waiting();
    start_now(kernel, blocks, cluster, threads, shared, params);
}
gm_device_result cuda_issue(gm_device_state *d, const gm_device_launch *launches, int64_t n) {
    outcome = cuda_enter(d, "a launch");
    if (outcome != DEVICE_OK) return outcome;
    issuing = d;
    d->waiting.steps.n_steps = 0;
    for (int64_t i = 0; i < n && outcome == DEVICE_OK; i++) launches[i].fn(launches[i].args, 0, launches[i].n);
    start_waiting();
    issuing = NULL;
    cuda_leave(d);
    return outcome;
}

void cuda_start_grid(cuda_kernel kernel, const int64_t blocks[3], int threads, size_t shared, const void *params) {
    start(kernel, blocks, 1, threads, shared, params);
}
void cuda_start(cuda_kernel kernel, int64_t blocks, int threads, size_t shared, const void *params) {
    start(kernel, (int64_t[]){blocks, 1, 1}, 1, threads, shared, params);
}
void cuda_start_clusters(cuda_kernel kernel, int64_t blocks, int cluster, int threads, size_t shared,
                         const void *params) {
    start(kernel, (int64_t[]){blocks, 1, 1}, (uint32_t)cluster, threads, shared, params);
}

bool cuda_has_wgmma(void) { return issuing->wgmma; }
/* Of what kernels declare of their own, the largest with memory that the launch gives has less. */
#define DECLARED 3072
size_t cuda_block_memory(void) { return (size_t)issuing->block_memory - DECLARED; }
int64_t cuda_processors(void) { return issuing->processors; }
size_t cuda_whole_memory(void) { return (size_t)issuing->block_memory; }

gm_device_state *cuda_issuing(void) {
    start_waiting();
    return outcome == DEVICE_OK ? issuing : NULL;
}

/* What the error was for the context, the driver says at its next call. */
void cuda_library_failed(const char *what, const char *words) {
    snprintf(reason, sizeof reason, "%s: %s", what, words);
    outcome = DEVICE_FAILED;
}

void cuda_refuse(const char *what) {
    snprintf(reason, sizeof reason, "%s is more than the GPU's kernels take: pass stream=mx.cpu", what);
    outcome = DEVICE_FAILED;
}
