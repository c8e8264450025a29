/* evaluator.c - asynchronous evaluation: one thread that evaluates what it is handed, in order.
 *  (1) A job holds references to its arrays until it is done.
 *  (2) A job that fails leaves its arrays without values: a caller that needs one gets the error, and so does the next
 * that synchronizes, for the first job that failed. (3) The thread sleeps between jobs and is never joined. A forked
 * child has none, and starts its own. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "core/array.h"

#define MOST_JOBS 8 /* a caller that hands in more waits: memory stays bounded when nothing is ever awaited */

typedef struct job {
    struct job *next;
    size_t count;
    gm_array *arrays[];
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t handed_in, done;
    job *first, *last;
    int pending;      /* handed in and not done */
    gm_error failure; /* of the first job that failed since the last synchronize */
    bool started;
    pthread_once_t once;
} evaluator = {.mutex = PTHREAD_MUTEX_INITIALIZER,
               .handed_in = PTHREAD_COND_INITIALIZER,
               .done = PTHREAD_COND_INITIALIZER,
               .once = PTHREAD_ONCE_INIT};

static void free_job(job *j) {
    for (size_t i = 0; i < j->count; i++)
        gm_release(j->arrays[i]);
    memory_free(j);
}

static void *work(void *unused) {
    gm_error error;
    (void)unused;
    pthread_mutex_lock(&evaluator.mutex);
    for (;;) {
        while (!evaluator.first)
            pthread_cond_wait(&evaluator.handed_in, &evaluator.mutex);
        job *j = evaluator.first;
        evaluator.first = j->next;
        pthread_mutex_unlock(&evaluator.mutex);
        error.code = GM_OK;
        if (gm_eval(j->arrays, j->count) != GM_OK)
            gm_take_error(&error);
        free_job(j);
        pthread_mutex_lock(&evaluator.mutex);
        if (evaluator.failure.code == GM_OK && error.code != GM_OK)
            evaluator.failure = error;
        evaluator.pending--;
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

gm_status gm_async_eval(gm_array *const *arrays, size_t count) {
    bool needed = false;
    for (size_t i = 0; i < count; i++)
        needed |= !gm_array_is_evaluated(arrays[i]);
    if (!needed)
        return GM_OK;
    pthread_once(&evaluator.once, register_fork);
    job *j = memory_new(sizeof *j + count * sizeof *arrays);
    if (!j)
        return GM_ENOMEM;
    j->next = NULL;
    j->count = count;
    for (size_t i = 0; i < count; i++)
        j->arrays[i] = gm_retain(arrays[i]);
    pthread_mutex_lock(&evaluator.mutex);
    while (evaluator.pending >= MOST_JOBS)
        pthread_cond_wait(&evaluator.done, &evaluator.mutex);
    gm_status status = start();
    if (status == GM_OK) {
        if (evaluator.first)
            evaluator.last->next = j;
        else
            evaluator.first = j;
        evaluator.last = j;
        evaluator.pending++;
        pthread_cond_signal(&evaluator.handed_in);
    }
    pthread_mutex_unlock(&evaluator.mutex);
    if (status != GM_OK)
        free_job(j);
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
