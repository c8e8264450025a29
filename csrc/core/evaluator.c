/* evaluator.c - asynchronous evaluation: one thread that evaluates what it is handed, in order.
 *  (1) A job holds references to its arrays until it is done.
 *  (2) Jobs that wait are one evaluation, so that a device need not stand still between them, unless their arrays are
 *      large: they are all held until it ends. Where it fails they go one by one: those that did not fail get their
 *      values. (On a device a call that fails takes with it what was recorded after, of later jobs too.)
 *  (3) A job that fails leaves its arrays without values: a caller that needs one gets the error, and so does the next
 *      that synchronizes, for the first job that failed.
 *  (4) The thread sleeps between jobs and is never joined. A forked child has none, and starts its own. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "core/array.h"

/* A caller that hands in more waits: memory stays bounded when nothing is ever awaited. */
#define MOST_JOBS 8
#define MOST_SMALL_JOBS 24 /* whose arrays fit the room */
#define MOST_MERGED 8      /* others who wait for the run lock get it between evaluations */
#define ROOM ((size_t)16 << 20)
#define ROOM_PARTS 32 /* of a device's memory, one is the room */

typedef struct job {
    struct job *next;
    size_t bytes; /* of its arrays */
    size_t room;  /* for such arrays, in jobs that are evaluated together */
    size_t count;
    gm_array *arrays[];
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t handed_in, done;
    job *first, *last;
    int pending;      /* handed in and not done */
    size_t bytes;     /* of their arrays */
    gm_error failure; /* of the first job that failed since the last synchronize */
    bool started;
    pthread_once_t once;
} evaluator = {.mutex = PTHREAD_MUTEX_INITIALIZER,
               .handed_in = PTHREAD_COND_INITIALIZER,
               .done = PTHREAD_COND_INITIALIZER,
               .once = PTHREAD_ONCE_INIT};

static void free_jobs(job *first) {
    for (job *j = first, *next; j; j = next) {
        next = j->next;
        for (size_t i = 0; i < j->count; i++)
            gm_release(j->arrays[i]);
        memory_free(j);
    }
}

/* ---- evaluation ---- */
static gm_status evaluate_together(const job *first) {
    size_t count = 0, n = 0;
    for (const job *j = first; j; j = j->next)
        count += j->count;
    gm_array **arrays = memory_array(count, sizeof *arrays);
    if (!arrays)
        return error_code();
    for (const job *j = first; j; j = j->next)
        for (size_t i = 0; i < j->count; i++)
            arrays[n++] = j->arrays[i];
    const gm_status status = gm_eval(arrays, count);
    memory_free(arrays);
    return status;
}

/* After all together have failed. What failed then says so with other words before its cause. */
static void evaluate_each(const job *first, gm_error *failure) {
    const gm_error together = *failure;
    gm_error own;
    failure->code = GM_OK;
    for (const job *j = first; j; j = j->next)
        if (gm_eval(j->arrays, j->count) != GM_OK && gm_take_error(&own) != GM_OK && failure->code == GM_OK)
            *failure = strstr(own.text, together.text) ? together : own;
}

/* failure: of the first job that failed. */
static void evaluate_jobs(const job *first, gm_error *failure) {
    failure->code = GM_OK;
    if ((first->next ? evaluate_together(first) : gm_eval(first->arrays, first->count)) == GM_OK)
        return;
    gm_take_error(failure);
    if (first->next)
        evaluate_each(first, failure);
}

/* The jobs for one evaluation, taken from the front; with the mutex held. */
static job *take_jobs(int *count, size_t *bytes) {
    job *first = evaluator.first, *last = first;
    *count = 1;
    *bytes = first->bytes;
    while (last->next && *count < MOST_MERGED && *bytes + last->next->bytes <= first->room &&
           last->next->room == first->room) {
        last = last->next;
        *bytes += last->bytes;
        ++*count;
    }
    evaluator.first = last->next;
    last->next = NULL;
    return first;
}

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&evaluator.mutex);
    for (;;) {
        gm_error failure;
        size_t bytes;
        int count;
        while (!evaluator.first)
            pthread_cond_wait(&evaluator.handed_in, &evaluator.mutex);
        job *first = take_jobs(&count, &bytes);
        pthread_mutex_unlock(&evaluator.mutex);
        evaluate_jobs(first, &failure);
        free_jobs(first);
        pthread_mutex_lock(&evaluator.mutex);
        if (evaluator.failure.code == GM_OK && failure.code != GM_OK)
            evaluator.failure = failure;
        evaluator.pending -= count;
        evaluator.bytes -= bytes;
        pthread_cond_broadcast(&evaluator.done);
    }
    return NULL;
}

static void fork_prepare(void) { pthread_mutex_lock(&evaluator.mutex); }
static void fork_parent(void) { pthread_mutex_unlock(&evaluator.mutex); }

/* The child drops what the parent's thread was to do: its arrays are evaluated when they are awaited. */
static void fork_child(void) {
    pthread_mutex_init(&evaluator.mutex, NULL);
    pthread_cond_init(&evaluator.handed_in, NULL);
    pthread_cond_init(&evaluator.done, NULL);
    evaluator.first = NULL;
    evaluator.pending = 0;
    evaluator.bytes = 0;
    evaluator.failure.code = GM_OK;
    evaluator.started = false;
}

static void register_fork(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

/* With the mutex held. Signals are for the other threads: Python looks at them there. */
static gm_status start(void) {
    pthread_t thread;
    sigset_t all, old;
    if (evaluator.started)
        return GM_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed)
        return gm_fail(GM_ENOMEM, "async_eval: no thread could be started");
    pthread_detach(thread);
    evaluator.started = true;
    return GM_OK;
}

/* For arrays that are evaluated together, where the array is. */
static size_t room_for(const gm_array *a) {
    const size_t limit = a->device ? gm_device_memory(a->device).limit : SIZE_MAX;
    return limit == SIZE_MAX ? ROOM : limit / ROOM_PARTS;
}

static job *new_job(gm_array *const *arrays, size_t count) {
    job *j = memory_new(sizeof *j + count * sizeof *arrays);
    if (!j)
        return NULL;
    *j = (job){.count = count, .room = room_for(arrays[0])};
    for (size_t i = 0; i < count; i++) {
        j->arrays[i] = gm_retain(arrays[i]);
        j->bytes += (size_t)arrays[i]->size * array_item(arrays[i]);
    }
    return j;
}

static bool is_full(const job *next) {
    return evaluator.pending >= (evaluator.bytes + next->bytes > next->room ? MOST_JOBS : MOST_SMALL_JOBS);
}

gm_status gm_async_eval(gm_array *const *arrays, size_t count) {
    bool needed = false;
    for (size_t i = 0; i < count; i++)
        needed |= !gm_array_is_evaluated(arrays[i]);
    if (!needed)
        return GM_OK;
    pthread_once(&evaluator.once, register_fork);
    job *j = new_job(arrays, count);
    if (!j)
        return GM_ENOMEM;
    pthread_mutex_lock(&evaluator.mutex);
    while (is_full(j))
        pthread_cond_wait(&evaluator.done, &evaluator.mutex);
    gm_status status = start();
    if (status == GM_OK) {
        if (evaluator.first)
            evaluator.last->next = j;
        else
            evaluator.first = j;
        evaluator.last = j;
        evaluator.pending++;
        evaluator.bytes += j->bytes;
        pthread_cond_signal(&evaluator.handed_in);
    }
    pthread_mutex_unlock(&evaluator.mutex);
    if (status != GM_OK)
        free_jobs(j);
    return status;
}

gm_status gm_synchronize(void) {
    pthread_mutex_lock(&evaluator.mutex);
    while (evaluator.pending > 0)
        pthread_cond_wait(&evaluator.done, &evaluator.mutex);
    gm_status status = evaluator.failure.code;
    if (status != GM_OK)
        error_restore(status, evaluator.failure.os_errno, evaluator.failure.text);
    evaluator.failure.code = GM_OK;
    pthread_mutex_unlock(&evaluator.mutex);
    return status;
}
