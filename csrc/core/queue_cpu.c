/* queue_cpu.c - a recorded queue on the processor's threads: pieces, stages and the gates between them. */
#include "core/queue_state.h"
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define MOST_PIECES ((int64_t)1 << 28) /* of a launch */
#define MOST_CLOSING 8                 /* launches that close a stage: a deadline waits for them */
#define CLOSING (1u << 31)             /* in a gate: what closes the stage is not done */

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool is_cancelled(const gm_queue *q) { return atomic_load_explicit(&q->cancelled, memory_order_relaxed); }

#if defined(__x86_64__)
#define FTZ_BITS 0x8040u
static unsigned float_state(void) { return _mm_getcsr(); }
static void set_float_state(unsigned v) { _mm_setcsr(v); }
#elif defined(__aarch64__)
#define FTZ_BITS 0x1000000u
static unsigned float_state(void) {
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return (unsigned)v;
}
static void set_float_state(unsigned v) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)v)); }
#else
#define FTZ_BITS 0u
static unsigned float_state(void) { return 0; }
static void set_float_state(unsigned v) { (void)v; }
#endif

/* Read between pieces of a microsecond. */
int64_t coarse_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Pieces for one thread: much while there is much left, at last one by one, so that all end together. */
static bool take(launch *l, int n_threads, cursor *c) {
    uint32_t next = atomic_load_explicit(&l->next, memory_order_relaxed), want;
    do {
        if (next >= l->pieces)
            return false;
        want = n_threads == 1 || l->solo ? l->pieces - next : (l->pieces - next) / (2 * (uint32_t)n_threads);
        want = want ? want : 1;
    } while (!atomic_compare_exchange_weak_explicit(&l->next, &next, next + want, memory_order_relaxed,
                                                    memory_order_relaxed));
    c->taken = want;
    c->at = (int64_t)next * l->grain;
    c->end = next + want == l->pieces ? l->range : (int64_t)(next + want) * l->grain;
    return true;
}

static bool is_exhausted(const launch *l) { return atomic_load_explicit(&l->next, memory_order_relaxed) >= l->pieces; }

/* One thread's time in a run, while it is profiled. */
typedef struct {
    bool on;
    int64_t mark, wait, work[GM_WORK_CLASSES];
} stopwatch;

/* The time since the last lap goes to *ns. */
static void lap(stopwatch *watch, int64_t *ns) {
    if (!watch->on)
        return;
    int64_t now = clock_ns();
    *ns += now - watch->mark;
    watch->mark = now;
}

static void add_laps(gm_queue *q, int thread, const stopwatch *watch) {
    if (!watch->on)
        return;
    if (thread != 0) {
        atomic_fetch_add_explicit(&q->others_wait_ns, watch->wait, memory_order_relaxed);
        for (int i = 0; i < GM_WORK_CLASSES; i++)
            atomic_fetch_add_explicit(&q->others_ns[i], watch->work[i], memory_order_relaxed);
        return;
    }
    q->profile->wait_ns += watch->wait;
    q->profile->thread_wait_ns += watch->wait;
    for (int i = 0; i < GM_WORK_CLASSES; i++) {
        q->profile->work[i].ns += watch->work[i];
        q->profile->work[i].thread_ns += watch->work[i];
    }
}

/* After the last thread has left the run. */
static void add_others_laps(gm_queue *q) {
    q->profile->thread_wait_ns += atomic_exchange(&q->others_wait_ns, 0);
    for (int i = 0; i < GM_WORK_CLASSES; i++)
        q->profile->work[i].thread_ns += atomic_exchange(&q->others_ns[i], 0);
}

static void set_flush(const launch *l, unsigned saved) {
    const unsigned want = l->ftz ? saved | FTZ_BITS : saved;
    if (float_state() != want)
        set_float_state(want);
}

/* Does what closes the stage of launch i, and opens its gate. */
static void close_stage(gm_queue *q, int64_t i, unsigned saved, stopwatch *watch) {
    const uint32_t stage = q->launches[i].stage;
    for (i++; i < q->count; i++) {
        const launch *l = &q->launches[i];
        if (l->pieces == 0)
            continue;
        if (l->stage != stage)
            break;
        if (!l->closing)
            continue;
        set_flush(l, saved);
        if (!is_cancelled(q))
            l->fn(l->args, 0, l->range);
        lap(watch, &watch->work[l->work]);
    }
    team_gate_done(&q->gates[stage], CLOSING);
}

/* Works on until the queue's end or the deadline (thread 0 only). Cancelled work counts as done. */
static bool work(gm_queue *q, int thread, int n_threads, cursor *c, int64_t deadline) {
    unsigned saved = float_state();
    bool done = true, worked = false;
    stopwatch watch = {.on = q->profile != NULL};
    watch.mark = watch.on ? clock_ns() : 0;
    for (; c->launch < q->count; c->launch++) {
        launch *l = &q->launches[c->launch];
        if (!c->inside && ((l->solo && thread != 0) || (l->closing && n_threads > 1) || is_exhausted(l)))
            continue;
        if (l->stage > c->stage && n_threads > 1) {
            team_gate_wait(&q->gates[l->stage - 1]);
            c->stage = l->stage;
            lap(&watch, &watch.wait);
        }
        set_flush(l, saved);
        while (c->inside || take(l, n_threads, c)) {
            c->inside = true;
            while (c->at < c->end && !is_cancelled(q)) {
                if (worked && deadline && coarse_clock_ns() >= deadline) {
                    done = false;
                    lap(&watch, &watch.work[l->work]);
                    goto out;
                }
                int64_t stop = c->at + l->grain < c->end ? c->at + l->grain : c->end;
                l->fn(l->args, c->at, stop);
                c->at = stop;
                worked = true;
            }
            c->inside = false;
            if (n_threads > 1 && team_gate_done(&q->gates[l->stage], c->taken) == CLOSING) {
                lap(&watch, &watch.work[l->work]);
                close_stage(q, c->launch, saved, &watch);
            }
        }
        lap(&watch, &watch.work[l->work]);
    }
    if (thread == 0 && n_threads > 1) {
        team_gate_wait(&q->gates[q->last_stage]);
        lap(&watch, &watch.wait);
    }
out:
    add_laps(q, thread, &watch);
    set_float_state(saved);
    return done;
}

static void join_in(void *context, int thread, int n_threads) {
    cursor c = {0};
    work(context, thread, n_threads, &c, 0);
}

/* Cuts the launches into pieces and stages. Each stage has pieces, so that its gate opens only after those before
 * it. */
static void cut(gm_queue *q) {
    uint32_t stage = 0;
    bool barrier = false, any = false;
    for (int64_t i = 0; i < q->count; i++) {
        launch *l = &q->launches[i];
        l->range = l->factor ? l->n * *l->factor : l->n;
        if (l->range / l->grain >= MOST_PIECES)
            l->grain = l->range / MOST_PIECES + 1;
        l->pieces = l->solo ? 1 : (uint32_t)((l->range + l->grain - 1) / l->grain);
        atomic_store_explicit(&l->next, 0, memory_order_relaxed);
        barrier |= l->barrier;
        if (l->pieces > 0) {
            stage += barrier && any;
            any = true;
            barrier = false;
        }
        l->stage = stage;
        l->closing = false;
    }
    q->last_stage = stage;
}

/* A few solo launches that are a stage by themselves are done by the thread that ends the stage before them, which the
 * others wait for anyway: one gate less to wait at. */
static void join_stages(gm_queue *q) {
    uint32_t joined = 0;
    for (int64_t i = 0, end; i < q->count; i = end) {
        const uint32_t stage = q->launches[i].stage;
        int64_t n = 0;
        bool solo = true;
        for (end = i; end < q->count && q->launches[end].stage == stage; end++) {
            n += q->launches[end].pieces != 0;
            solo &= q->launches[end].solo || q->launches[end].pieces == 0;
        }
        const bool closing = solo && n <= MOST_CLOSING && stage > 0;
        joined += closing;
        for (; i < end; i++) {
            q->launches[i].stage = stage - joined;
            q->launches[i].closing = closing;
        }
    }
    q->last_stage -= joined;
}

/* Each gate's count of pieces. queue_launch has made the capacity. */
static void close_gates(gm_queue *q) {
    memset(q->gates, 0, ((size_t)q->last_stage + 1) * sizeof *q->gates);
    for (int64_t i = 0; i < q->count; i++) {
        const launch *l = &q->launches[i];
        _Atomic uint32_t *left = &q->gates[l->stage].left;
        if (l->closing)
            atomic_fetch_or_explicit(left, CLOSING, memory_order_relaxed);
        else if (l->pieces)
            atomic_fetch_add_explicit(left, l->pieces, memory_order_relaxed);
    }
}

void queue_profile(gm_queue *q, gm_phase_profile *profile) { q->profile = profile; }

static void count_launches(const gm_queue *q) {
    uint32_t stage = 0;
    for (int64_t i = 0; i < q->count; i++) {
        const launch *l = &q->launches[i];
        gm_work_counts *counts = &q->profile->work[l->work];
        if (l->pieces == 0)
            continue;
        counts->launches++;
        counts->pieces += l->pieces;
        counts->barriers += l->stage > stage;
        stage = l->stage;
    }
}

void queue_start(gm_queue *q, int n_threads) {
    cut(q);
    join_stages(q);
    if (q->profile)
        count_launches(q);
    q->main = (cursor){0};
    for (flag *f = q->flags; f; f = f->next)
        f->fault.raised = 0;
    atomic_store(&q->cancelled, false);
    q->joined = q->any_multi && n_threads > 1;
    if (q->joined)
        close_gates(q);
    q->n_threads = q->joined ? team_start(n_threads, join_in, q) : 1;
}

gm_status queue_step(gm_queue *q, int64_t deadline_ns) {
    if (q->joined && team_lost())
        return gm_fail(GM_ESTATE, "the process was forked in the middle of this evaluation, which only the parent can "
                                  "finish");
    if (!work(q, 0, q->n_threads, &q->main, deadline_ns))
        return GM_AGAIN;
    return is_cancelled(q) ? GM_OK : queue_check(q);
}

int64_t queue_ran(const gm_queue *q) {
    int64_t ran = q->main.launch;
    while (q->n_threads > 1 && q->main.launch < q->count && ran > 0 && q->launches[ran - 1].stage >= q->main.stage)
        ran--;
    return ran;
}

void queue_cancel(gm_queue *q) { atomic_store(&q->cancelled, true); }

void queue_finish(gm_queue *q) {
    if (q->joined)
        team_join();
    if (q->joined && q->profile)
        add_others_laps(q);
    q->joined = false;
}
