/* queue.c - recording launches and working through them. Invariants in queue.h. */
#include "core/queue.h"
#include <string.h>
#include <time.h>
#include "base/memory.h"
#include "base/team.h"
#include "core/graph.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define ARENA_BLOCK ((size_t)64 << 10)
#define MOST_PIECES ((int64_t)1 << 28)     /* of a launch */
#define MOST_CLOSING 8                     /* launches that close a stage: a deadline waits for them */
#define CLOSING (1u << 31)                 /* in a gate: what closes the stage is not done */

typedef struct {
    gm_kernel fn;
    const void *args;
    int64_t n, grain;
    const int32_t *factor;      /* range is n * *factor */
    int64_t range;              /* of this run */
    uint32_t pieces;            /* of `grain` indices each, in this run */
    _Atomic uint32_t next;      /* the first piece that nobody has taken */
    uint32_t stage;             /* of this run: begins when all pieces of the stage before are done */
    bool barrier;               /* what was launched before must be done before this one begins */
    bool closing;               /* of this run: whoever does the last piece of the stage does this too */
    bool solo;                  /* runs on one thread alone: thread 0 unless it is closing */
    bool ftz;
    uint8_t work;               /* a gm_work */
} launch;

typedef struct { gm_buffer *buf; bool solo; } access;

typedef struct flag {
    struct flag *next;
    const char *message;        /* of an index: the op's name */
    int64_t size;               /* of the axis that an index is out of; -1: no index */
    uint64_t bit;               /* of the node that may raise it */
    gm_index_fault fault;
} flag;

typedef struct arena {
    struct arena *next;
    size_t used, size;
    _Alignas(64) char data[];
} arena;

/* stage: the last one whose gate was awaited. A thread may come to a stage at any of its launches. */
typedef struct { int64_t launch, at, end; uint32_t taken, stage; bool inside; } cursor;

struct gm_queue {
    launch *launches;
    int64_t count, capacity;
    arena *arenas, *spare;
    flag *flags;                /* in the arenas */
    uint64_t next_bit;          /* of the node at hand; the last one is that of all nodes from the 64th on */
    bool flagged;               /* the node at hand has a flag */
    /* recording: what the node at hand reads and writes, and what launches since the last barrier did */
    access *reads, *writes, *past_reads, *past_writes;
    size_t n_reads, n_writes, n_past_reads, n_past_writes;
    size_t cap_reads, cap_writes, cap_past_reads, cap_past_writes;
    size_t noted_reads, noted_writes;    /* of the node's last launch, which is among the past ones */
    bool noted;                 /* there is one since the last barrier, and it was solo */
    bool parts;                 /* the node's last launch was a part */
    bool fence, multi_since, any_multi;
    uint8_t work;               /* of the node at hand */
    /* memory in stream order */
    gm_buffer **free_, **held, **scratch;
    size_t n_free, n_held, n_scratch, cap_free, cap_held, cap_scratch, room;
    uint64_t epoch;
    /* running */
    team_gate *gates;           /* one for each stage: open when all its pieces are done */
    int64_t gates_capacity;
    uint32_t last_stage;
    cursor main;
    int n_threads;
    bool joined;
    gm_phase_profile *profile;  /* NULL: nobody asks. Thread 0 alone writes it, */
    _Atomic int64_t others_ns[GM_WORK_CLASSES], others_wait_ns;  /* ... the other threads these, once each a run */
    _Atomic bool cancelled;
};

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

gm_queue *queue_new(void) {
    static _Atomic uint64_t epochs = 1;
    gm_queue *q = memory_aligned(sizeof *q, 64);
    if (!q)
        return NULL;
    memset(q, 0, sizeof *q);
    q->epoch = atomic_fetch_add(&epochs, 1);
    q->next_bit = 1;
    return q;
}

static void free_arenas(arena *a) {
    while (a) {
        arena *next = a->next;
        memory_free(a);
        a = next;
    }
}

/* Marks are written under the run lock only; a queue that dies outside it leaves them stale, which its unique epoch
 * makes harmless. */
static void release_memory(gm_queue *q, bool clear_marks) {
    for (size_t i = 0; i < q->n_scratch; i++)
        buffer_release(q->scratch[i]);
    for (size_t i = 0; i < q->n_free; i++)
        buffer_release(q->free_[i]);
    for (size_t i = 0; i < q->n_held; i++) {
        if (clear_marks)
            q->held[i]->mark = 0;
        buffer_release(q->held[i]);
    }
    q->n_scratch = q->n_free = q->n_held = 0;
}

void queue_reset(gm_queue *q) {
    q->count = 0;
    q->flags = NULL;
    q->next_bit = 1;
    q->flagged = false;
    q->n_reads = q->n_writes = q->n_past_reads = q->n_past_writes = 0;
    q->fence = q->multi_since = q->any_multi = q->noted = q->parts = false;
    q->work = GM_WORK_OTHER;
    while (q->arenas) {
        arena *a = q->arenas;
        q->arenas = a->next;
        a->used = 0;
        a->next = q->spare;
        q->spare = a;
    }
    release_memory(q, true);
}

void queue_free(gm_queue *q) {
    if (!q)
        return;
    release_memory(q, false);
    free_arenas(q->arenas);
    free_arenas(q->spare);
    memory_free(q->launches);
    memory_free(q->gates);
    memory_free(q->reads);
    memory_free(q->writes);
    memory_free(q->past_reads);
    memory_free(q->past_writes);
    memory_free(q->free_);
    memory_free(q->held);
    memory_free(q->scratch);
    memory_free(q);
}

const gm_kernels *queue_kernels(const gm_queue *q) {
    (void)q;
    return engine_kernels();
}

int64_t queue_length(const gm_queue *q) { return q->count; }

void *queue_arena(gm_queue *q, size_t bytes) {
    bytes = (bytes + 63) & ~(size_t)63;
    if (!q->arenas || q->arenas->size - q->arenas->used < bytes) {
        arena *a = q->spare;
        if (a && a->size >= bytes) {
            q->spare = a->next;
        } else {
            size_t size = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
            a = memory_aligned(sizeof *a + size, 64);
            if (!a)
                return NULL;
            a->size = size;
            a->used = 0;
        }
        a->next = q->arenas;
        q->arenas = a;
    }
    void *p = q->arenas->data + q->arenas->used;
    q->arenas->used += bytes;
    return p;
}

static gm_index_fault *add_flag(gm_queue *q, const char *message, int64_t size) {
    flag *f = queue_arena(q, sizeof *f);
    if (!f)
        return NULL;
    *f = (flag){q->flags, message, size, q->next_bit, {0, 0}};
    q->flagged = true;
    q->flags = f;
    return &f->fault;
}

int32_t *queue_flag(gm_queue *q, const char *message) {
    gm_index_fault *fault = add_flag(q, message, -1);
    return fault ? &fault->raised : NULL;
}

gm_index_fault *queue_index_flag(gm_queue *q, const char *op, int64_t size) { return add_flag(q, op, size); }

static gm_status flag_failure(const flag *f) {
    if (f->size < 0)
        return gm_fail(GM_ESTATE, "%s", f->message);
    return gm_fail(GM_EINDEX, "%s: index %lld is out of range for an axis with %lld items", f->message,
                   (long long)f->fault.index, (long long)f->size);
}

/* ---- hazards ---- */
static gm_status grow(void **items, size_t *capacity, size_t count, size_t item) {
    if (count < *capacity)
        return GM_OK;
    size_t n = *capacity ? *capacity * 2 : 32;
    while (n <= count)
        n *= 2;
    void *p = memory_resize(*items, n * item);
    if (!p)
        return error_code();
    *items = p;
    *capacity = n;
    return GM_OK;
}

static gm_status note(access **list, size_t *count, size_t *capacity, gm_buffer *b, bool solo) {
    for (size_t i = *count; i-- > 0;)
        if ((*list)[i].buf == b) {
            (*list)[i].solo &= solo;
            return GM_OK;
        }
    GM_TRY(grow((void **)list, capacity, *count, sizeof **list));
    (*list)[(*count)++] = (access){b, solo};
    return GM_OK;
}

gm_status queue_reads(gm_queue *q, gm_buffer *b) {
    return b ? note(&q->reads, &q->n_reads, &q->cap_reads, b, true) : GM_OK;
}

gm_status queue_writes(gm_queue *q, gm_buffer *b) {
    return b ? note(&q->writes, &q->n_writes, &q->cap_writes, b, true) : GM_OK;
}

/* Two solo launches need no barrier between them whatever they touch: those of a stage are all done by one thread. */
static bool conflicts(const access *now, size_t n_now, const access *past, size_t n_past, bool solo) {
    for (size_t i = 0; i < n_now; i++)
        for (size_t j = 0; j < n_past; j++)
            if (now[i].buf == past[j].buf && !(solo && past[j].solo))
                return true;
    return false;
}

/* A gate for each launch at most. What is in them is of no use before a run. */
static gm_status place_gates(gm_queue *q) {
    if (q->gates_capacity >= q->capacity)
        return GM_OK;
    team_gate *gates = memory_aligned((size_t)q->capacity * sizeof *gates, 64);
    if (!gates)
        return error_code();
    memory_free(q->gates);
    q->gates = gates;
    q->gates_capacity = q->capacity;
    return GM_OK;
}

gm_status queue_launch(gm_queue *q, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain, int flags) {
    if (n <= 0)
        return GM_OK;
    GM_TRY(grow((void **)&q->launches, (size_t *)&q->capacity, (size_t)q->count, sizeof *q->launches));
    GM_TRY(place_gates(q));
    void *copy = queue_arena(q, size);
    if (!copy)
        return error_code();
    memcpy(copy, args, size);
    const bool part = (flags & LAUNCH_PART) != 0, solo = n <= grain && !part;
    const bool beside = part && q->parts;        /* waits for what the part before it waits for */
    /* A node of many launches (thousands of arrays joined) compares and notes what it touches once. */
    bool again = solo && q->noted && q->noted_reads == q->n_reads && q->noted_writes == q->n_writes;
    bool barrier = (q->fence && (q->multi_since || !solo)) ||
                   (!again && !beside &&
                    (conflicts(q->reads, q->n_reads, q->past_writes, q->n_past_writes, solo) ||
                     conflicts(q->writes, q->n_writes, q->past_writes, q->n_past_writes, solo) ||
                     conflicts(q->writes, q->n_writes, q->past_reads, q->n_past_reads, solo)));
    if (barrier) {
        q->n_past_reads = q->n_past_writes = 0;
        q->multi_since = false;
        again = false;
    }
    q->fence = false;
    for (size_t i = 0; i < q->n_reads && !again; i++)
        GM_TRY(note(&q->past_reads, &q->n_past_reads, &q->cap_past_reads, q->reads[i].buf, solo));
    for (size_t i = 0; i < q->n_writes && !again; i++)
        GM_TRY(note(&q->past_writes, &q->n_past_writes, &q->cap_past_writes, q->writes[i].buf, solo));
    q->parts = part;
    q->noted = solo;
    q->noted_reads = q->n_reads;
    q->noted_writes = q->n_writes;
    q->multi_since |= !solo;
    q->any_multi |= !solo;
    q->launches[q->count++] = (launch){.fn = fn, .args = copy, .n = n, .grain = grain > 0 ? grain : 1,
                                       .barrier = barrier, .solo = solo, .ftz = (flags & LAUNCH_FTZ) != 0, .work = q->work};
    return GM_OK;
}

void queue_scale(gm_queue *q, const int32_t *factor) {
    launch *l = &q->launches[q->count - 1];
    l->factor = factor;
    l->barrier |= l->solo;         /* none was found needed for a launch of thread 0 alone */
    l->solo = false;               /* how much it will be is not known now */
    q->any_multi = q->multi_since = true;
    q->noted = false;
    /* These cannot fail: what the launch reads and writes is in the lists already. */
    for (size_t i = 0; i < q->n_reads; i++)
        (void)note(&q->past_reads, &q->n_past_reads, &q->cap_past_reads, q->reads[i].buf, false);
    for (size_t i = 0; i < q->n_writes; i++)
        (void)note(&q->past_writes, &q->n_past_writes, &q->cap_past_writes, q->writes[i].buf, false);
}

void queue_fence(gm_queue *q) { q->fence = true; }
void queue_forget(gm_queue *q, int64_t count) { q->count = count; }
void queue_work(gm_queue *q, uint8_t work) { q->work = work; }

/* ---- memory in stream order ---- */
gm_buffer *queue_take(gm_queue *q, size_t bytes) {
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < q->n_free; i++) {
        size_t have = q->free_[i]->bytes;
        if (have >= bytes && have <= 2 * bytes + 4096 && (best == SIZE_MAX || have < q->free_[best]->bytes))
            best = i;
    }
    if (best == SIZE_MAX)
        return buffer_new(bytes);
    gm_buffer *b = q->free_[best];
    q->free_[best] = q->free_[--q->n_free];
    return b;
}

static void forget_held(gm_queue *q, gm_buffer *b) {
    for (size_t i = q->n_held; i-- > 0;)
        if (q->held[i] == b) {
            q->held[i] = q->held[--q->n_held];
            break;
        }
    b->mark = 0;
}

void queue_drop(gm_queue *q, gm_buffer *b) {
    if (!b)
        return;
    if (b->mark == q->epoch) {                 /* one reference is ours already */
        atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
        if (atomic_load(&b->refs) != 1)
            return;
        forget_held(q, b);
    }
    if (atomic_load(&b->refs) == 1 && b->kind == BUFFER_OWNED && atomic_load(&b->pins) == 0) {
        q->free_[q->n_free++] = b;             /* queue_room made the place */
        return;
    }
    queue_hold(q, b);
    atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
}

void queue_hold(gm_queue *q, gm_buffer *b) {
    if (!b || b->mark == q->epoch)
        return;
    b->mark = q->epoch;
    q->held[q->n_held++] = buffer_retain(b);
}

gm_status queue_room(gm_queue *q, size_t buffers) {
    q->room = buffers;
    GM_TRY(grow((void **)&q->free_, &q->cap_free, q->n_free + q->n_scratch + buffers, sizeof *q->free_));
    return grow((void **)&q->held, &q->cap_held, q->n_held + q->n_scratch + buffers, sizeof *q->held);
}

void *queue_scratch(gm_queue *q, size_t bytes) {
    if (grow((void **)&q->scratch, &q->cap_scratch, q->n_scratch, sizeof *q->scratch) != GM_OK ||
        queue_room(q, q->room + 1) != GM_OK)
        return NULL;
    gm_buffer *b = queue_take(q, bytes);
    if (!b)
        return NULL;
    q->scratch[q->n_scratch++] = b;
    return queue_writes(q, b) == GM_OK ? b->data : NULL;
}

uint64_t queue_end_node(gm_queue *q) {
    const uint64_t flags = q->flagged ? q->next_bit : 0;
    while (q->n_scratch)
        queue_drop(q, q->scratch[--q->n_scratch]);
    q->n_reads = q->n_writes = 0;
    q->noted = q->parts = q->flagged = false;
    if (flags && q->next_bit << 1)
        q->next_bit <<= 1;
    return flags;
}

/* ---- running ---- */
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

static bool is_exhausted(const launch *l) {
    return atomic_load_explicit(&l->next, memory_order_relaxed) >= l->pieces;
}

/* One thread's time in a run, where somebody asks for it. */
typedef struct { bool on; int64_t mark, wait, work[GM_WORK_CLASSES]; } stopwatch;

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

/* Each gate's count of pieces. queue_launch made the place. */
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
    for (const flag *f = q->flags; f && !is_cancelled(q); f = f->next)
        if (f->fault.raised)
            return flag_failure(f);
    return GM_OK;
}

int64_t queue_ran(const gm_queue *q) {
    int64_t ran = q->main.launch;
    while (q->n_threads > 1 && q->main.launch < q->count && ran > 0 && q->launches[ran - 1].stage >= q->main.stage)
        ran--;
    return ran;
}

uint64_t queue_raised(const gm_queue *q) {
    uint64_t raised = 0;
    for (const flag *f = q->flags; f; f = f->next)
        raised |= f->fault.raised ? f->bit : 0;
    return raised;
}

void queue_cancel(gm_queue *q) { atomic_store(&q->cancelled, true); }

void queue_finish(gm_queue *q) {
    if (q->joined)
        team_join();
    if (q->joined && q->profile)
        add_others_laps(q);
    q->joined = false;
}
