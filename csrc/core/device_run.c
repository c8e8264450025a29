/* device_run.c - a recorded queue on a device: launches are begun in runs, so that the host can go on recording, and
 * that what is cancelled ends soon: never more than two runs are on their way. */
#include "core/queue_state.h"

#define RUN_LAUNCHES 64

void device_start(gm_queue *q) {
    for (flag *f = q->flags; f; f = f->next)
        f->fault.raised = 0;
    atomic_store(&q->cancelled, false);
}

/* Until at most `left` runs are on their way. */
static gm_status await_runs(gm_queue *q, int left, int64_t deadline_ns) {
    for (int i = 1; i >= left; i--) {
        if (!q->marks[i])
            continue;
        GM_TRY(device_wait(q->device, q->marks[i], deadline_ns));
        q->marks[i] = 0;
        q->done = q->marked[i];
    }
    return GM_OK;
}

static gm_status issue_run(gm_queue *q) {
    GM_TRY(staging_send(q));
    for (int i = 0; i < RUN_LAUNCHES && q->issued < q->count; i++) {
        const launch *l = &q->launches[q->issued];
        GM_TRY(device_launch(q->device, l->fn, l->args, l->n));
        q->issued++;
    }
    q->marks[1] = q->marks[0];
    q->marked[1] = q->marked[0];
    q->marked[0] = q->issued;
    return device_mark(q->device, &q->marks[0]);
}

gm_status device_issue(gm_queue *q, int64_t deadline_ns) {
    while (q->issued < q->count || staging_waits(q)) {
        GM_TRY(await_runs(q, 1, deadline_ns));
        GM_TRY(issue_run(q));
    }
    return GM_OK;
}

gm_status device_step(gm_queue *q, int64_t deadline_ns) {
    GM_TRY(device_issue(q, deadline_ns));
    GM_TRY(await_runs(q, 0, deadline_ns));
    return queue_check(q);
}

int64_t device_ran(const gm_queue *q) { return q->done; }

void device_finish(gm_queue *q, bool failed) {
    if (device_drain(q->device) && !failed)
        q->done = q->issued;
}
