/* graphs.c - launches that run again and again become a graph of the driver: its launch is one call. What launchers
 * pass by value is kept as it was when they were captured, which a recording does not change. */
#include "cuda/device_state.h"

/* Ends what capture_begin began, which must be ended whatever failed between. */
static int end_capture(gm_device_state *d, bool wanted, driver_prepared **out) {
    driver_graph *graph = NULL;
    int error = d->driver->capture_end(d->stream, &graph);
    if (!error && wanted) error = d->driver->graph_prepare(out, graph, 0);
    if (graph) d->driver->graph_free(graph);
    return error;
}

gm_device_result cuda_capture(gm_device_state *d, const gm_device_launch *launches, int64_t n, gm_device_graph **out) {
    driver_prepared *prepared = NULL;
    *out = NULL;
    if (!d->graphs) return DEVICE_OK;
    gm_device_result result = cuda_enter(d, "a graph");
    if (result != DEVICE_OK) return result;
    pinned_captures(1);
    result = cuda_fails(d, d->driver->capture_begin(d->stream, DRIVER_CAPTURE_THREAD), "a graph");
    if (result == DEVICE_OK) {
        result = cuda_issue(d, launches, n);
        const int error = end_capture(d, result == DEVICE_OK, &prepared);
        if (result == DEVICE_OK) result = cuda_fails(d, error, "a graph");
    }
    pinned_captures(-1);
    cuda_leave(d);
    *out = (gm_device_graph *)prepared;
    return result;
}

gm_device_result cuda_replay(gm_device_state *d, gm_device_graph *graph) {
    gm_device_result result = cuda_enter(d, "a graph");
    if (result != DEVICE_OK) return result;
    result = cuda_fails(d, d->driver->graph_launch((driver_prepared *)graph, d->stream), "a graph");
    if (result == DEVICE_OK) atomic_store(&d->replayed, true);
    cuda_leave(d);
    return result;
}

void cuda_drop(gm_device_state *d, gm_device_graph *graph) {
    if (cuda_enter(d, "a graph") != DEVICE_OK) return;
    cuda_fails(d, d->driver->prepared_free((driver_prepared *)graph), "a graph");
    cuda_leave(d);
}
