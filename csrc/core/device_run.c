/* device_run.c - a recorded queue on a device: launches are begun in runs, so that the host can go on recording, and
 * that what is cancelled ends soon: never more than two runs are on their way, and a run has as many launches as took
 * RUN_NS. What a run takes shows when it is over: the first two have few launches, and so what is cancelled ends within
 * 2 * RUN_NS, or the time of 2 * FIRST_LAUNCHES launches, unless much longer launches follow short ones.
 *
 * A queue that repeats becomes a graph once it has run: by then what its kernels need is loaded, and the same launchers
 * choose the same kernels again. */
#include "base/memory.h"
#include "core/queue_state.h"

#define FIRST_LAUNCHES 4
#define MOST_LAUNCHES 64
#define RUN_NS 20000000

void device_start(gm_queue *q) {
    for (flag *f = q->flags; f; f = f->next)
        f->fault.raised = 0;
    atomic_store(&q->cancelled, false);
    q->run_launches = FIRST_LAUNCHES;
    q->run_begun = clock_ns();
    q->issued = q->done = 0;
    q->marks[0] = q->marks[1] = q->following = 0;
    for (int64_t i = 0; q->profile && i < q->count; i++)
        q->profile->work[q->launches[i].work].launches++;
}

/* A run of so many launches is over: how many the next one has. It began when the one before it was over. */
static void adapt_run(gm_queue *q, int64_t launches) {
    const int64_t now = clock_ns(), took = now > q->run_begun ? now - q->run_begun : 1;
    int64_t next = launches < RUN_NS / took ? MOST_LAUNCHES : launches * RUN_NS / took;
    if (next > 2 * q->run_launches)
        next = 2 * q->run_launches;
    q->run_launches = next < 1 ? 1 : next > MOST_LAUNCHES ? MOST_LAUNCHES : next;
    q->run_begun = now;
}

/* Until at most `left` runs are on their way. */
static gm_status await_runs(gm_queue *q, int left, int64_t deadline_ns) {
    for (int i = 1; i >= left; i--) {
        if (!q->marks[i])
            continue;
        GM_TRY(device_wait(q->device, q->marks[i], deadline_ns));
        q->marks[i] = 0;
        if (q->marked[i] > q->done)
            adapt_run(q, q->marked[i] - q->done);
        q->done = q->marked[i];
    }
    return GM_OK;
}

static gm_device_launch launch_of(const launch *l) { return (gm_device_launch){l->fn, l->args, l->n}; }

/* The next launches, with one call: up to a guest, which goes alone. */
static gm_status issue_some(gm_queue *q, int64_t end) {
    gm_device_launch launches[MOST_LAUNCHES];
    const launch *next = &q->launches[q->issued];
    int64_t n = 0;
    while (q->issued + n < end && !next[n].guest) {
        launches[n] = launch_of(&next[n]);
        n++;
    }
    GM_TRY(n ? device_launch(q->device, launches, n) : device_lend(q->device, next->guest, next->args));
    q->issued += n ? n : 1;
    return GM_OK;
}
static gm_status issue_run(gm_queue *q) {
    GM_TRY(staging_send(q));
    if (!q->marks[0])
        q->run_begun = clock_ns();
    const int64_t left = q->count - q->issued, end = q->issued + (left < q->run_launches ? left : q->run_launches);
    while (q->issued < end)
        GM_TRY(issue_some(q, end));
    q->marks[1] = q->marks[0];
    q->marked[1] = q->marked[0];
    q->marked[0] = q->issued;
    return device_mark(q->device, &q->marks[0]);
}

void queue_repeats(gm_queue *q) { q->repeats = true; }

void device_forget_graph(gm_queue *q) {
    if (q->graph)
        device_drop(q->device, q->graph);
    q->graph = NULL;
    q->has_run = false;
}

static gm_status capture(gm_queue *q) {
    gm_device_launch *launches = memory_array((size_t)q->count, sizeof *launches);
    if (!launches)
        return error_code();
    for (int64_t i = 0; i < q->count; i++)
        launches[i] = launch_of(&q->launches[i]);
    const gm_status status = device_capture(q->device, launches, q->count, &q->graph);
    memory_free(launches);
    if (status == GM_OK)
        q->repeats = q->graph != NULL;
    return status;
}

/* All launches, with one call; or none, where that cannot be. */
static gm_status issue_graph(gm_queue *q) {
    if (!q->repeats || q->lends || !q->has_run || q->profile || q->issued > 0 || q->count == 0)
        return GM_OK;
    if (!q->graph)
        GM_TRY(capture(q));
    if (!q->graph)
        return GM_OK;
    GM_TRY(device_replay(q->device, q->graph));
    q->marked[0] = q->issued = q->count;
    return device_mark(q->device, &q->marks[0]);
}

gm_status device_issue(gm_queue *q, int64_t deadline_ns) {
    GM_TRY(issue_graph(q));
    while (q->issued < q->count || staging_waits(q)) {
        GM_TRY(await_runs(q, 1, deadline_ns));
        GM_TRY(issue_run(q));
    }
    return GM_OK;
}

gm_status device_step(gm_queue *q, int64_t deadline_ns) {
    GM_TRY(device_issue(q, deadline_ns));
    GM_TRY(await_runs(q, 0, deadline_ns));
    q->has_run = true;
    return queue_check(q);
}

gm_status queue_include(gm_queue *q) { return device_mark(q->device, &q->marks[0]); }

/* ---- runs behind others ---- */
gm_status queue_follow(gm_queue *q) {
    if (!q->graph || q->issued < q->count || q->profile || q->following)
        return GM_OK;
    GM_TRY(device_replay(q->device, q->graph));
    return device_mark(q->device, &q->following);
}
bool queue_is_followed(const gm_queue *q) { return q->following != 0; }

/* Flags are down: the run before it has ended well. */
void queue_take_following(gm_queue *q) {
    q->marks[0] = q->following;
    q->following = 0;
    q->marked[0] = q->issued = q->count;
    q->done = 0;
    q->run_begun = clock_ns();
}

int64_t device_ran(const gm_queue *q) { return q->done; }

void device_finish(gm_queue *q, bool failed) {
    if (device_drain(q->device) && !failed)
        q->done = q->issued;
    q->following = 0;
}

/* ---- on whatever device it is of ---- */
void queue_begin(gm_queue *q, int n_threads) {
    if (queue_device(q))
        device_start(q);
    else
        queue_start(q, n_threads);
}

gm_status queue_go_on(gm_queue *q, int64_t deadline_ns) {
    return queue_device(q) ? device_step(q, deadline_ns) : queue_step(q, deadline_ns);
}

void queue_end(gm_queue *q, bool failed) {
    gm_error cause;
    if (!queue_device(q)) {
        queue_finish(q);
    } else if (failed) {
        gm_take_error(&cause);
        device_finish(q, true);
        error_restore(cause.code, cause.os_errno, cause.text);
    }
}

void queue_give_up(gm_queue *q) {
    if (queue_device(q)) {
        device_finish(q, false);
        return;
    }
    queue_cancel(q);
    queue_step(q, 0);
    queue_finish(q);
}
