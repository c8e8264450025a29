/* graph.c - ordering nodes and evaluating them.
 *  (1) A node is evaluated at most once; its inputs are dropped right after it was recorded; nothing recurses.
 *  (2) buf, in[] and strides of nodes change only under the run lock, which is held by one thread at a time.
 *  (3) Nothing here calls Python; a thread that waits for the run lock has released the GIL.
 *  (4) A node is visible as evaluated when its batch has run: tickets are numbers of recorded nodes, published batch by
 *      batch. A node that dies before its batch has ended is freed then: the thread that ends a batch may look at all
 * of it. (5) Nodes are recorded in batches, so that memory and the time to the first launch stay small. (6) A batch
 * that fails or is cancelled takes no value that it did compute. Of the others, nodes without inputs are as if they had
 * never been recorded; the rest has lost its inputs, and keeps the cause in place of a value. (7) fork waits until
 * nobody records. In the child, what another thread was evaluating counts as interrupted. */
#include "core/graph.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/grow.h"
#include "base/memory.h"
#include "base/team.h"
#include "core/device.h"
#include "core/mirror.h"
#include "core/plan.h"
#include "core/trace.h"

#define BATCH_LAUNCHES 256
#define DEVICE_LAUNCHES 4096 /* of a batch on a device, which is recorded while its beginning runs */

typedef struct {
    gm_array *node;
    int next;
} frame;
/* What a node's value waits for: flags that must not be raised, of itself and of all that it is computed from, and the
 * launches up to its own. */
typedef struct {
    uint64_t flags;
    int64_t launches;
} needs;

struct gm_run {
    gm_array **roots; /* kept from run to run */
    size_t n_roots, roots_capacity, n_order, at;
    size_t begin;            /* of the batch at hand, in the order: its nodes are those before `at` */
    bool executing, tracing; /* tracing: begun by a thread that traces; tracers keep their inputs */
    gm_queue *queue;         /* of the batch */
    int device;              /* its number */
    bool sources;            /* the batch has nodes without inputs that hold something */
    gm_status failure;       /* of recording: reported after what was recorded has run */
    gm_error error;
};

static struct {
    const gm_kernels *kernels;
    _Atomic int threads;
    /* the run lock */
    pthread_mutex_t mutex;
    pthread_cond_t released;
    bool held, reserved; /* reserved: free, but for one of the waiting threads */
    int waiting;
    pthread_t owner;
    pthread_mutex_t recording; /* fork takes it too: nodes and queues are never copied half changed */
    /* under the run lock */
    gm_run run;
    gm_queue *queues[DEVICE_NUMBERS]; /* made when they are needed */
    gm_array **kept;                  /* inputs of the node at hand, for which it has mirrors; else NULL */
    gm_plan *plan;                    /* that is being recorded, or NULL */
    size_t kept_capacity;
    uint64_t epoch;
    _Atomic uint64_t completed; /* nodes up to this one have run */
    uint64_t ticket;            /* of the next node to be recorded */
    needs *needs;               /* of the batch's nodes, in their order */
    size_t needs_capacity;
    _Atomic(gm_array *) dead; /* nodes that died before their batch had ended */
    frame *stack;
    size_t stack_capacity;
    gm_array **order;
    size_t order_capacity;
    uint64_t *keys; /* of roots, to sort them by */
    size_t keys_capacity;
    gm_buffer *spare; /* for a gm_error, made before a run, so that cancelling cannot fail */
    bool abandoned;   /* in a forked child: the run of a thread that is not there */
} engine = {.mutex = PTHREAD_MUTEX_INITIALIZER, .recording = PTHREAD_MUTEX_INITIALIZER, .completed = 1, .ticket = 2};

static const gm_error cancelled = {.code = GM_OK};

/* ---- the end of a batch ---- */
bool graph_frees(gm_array *a) {
    const uint64_t ticket = atomic_load(&a->ticket);
    if (ticket <= 1 || ticket == TICKET_FAILED || ticket <= atomic_load(&engine.completed))
        return false;
    a->next = atomic_load(&engine.dead);
    while (!atomic_compare_exchange_weak(&engine.dead, &a->next, a)) {
    }
    return true;
}

/* A reference, unless the node is dead. */
static bool retain_living(gm_array *a) {
    int32_t refs = atomic_load(&a->refs);
    while (refs > 0)
        if (atomic_compare_exchange_weak(&a->refs, &refs, refs + 1))
            return true;
    return false;
}

static void drop_values(gm_array *node) {
    for (int k = 0; k < array_n_out(node); k++) {
        buffer_release(array_output(node, k)->buf);
        array_output(node, k)->buf = NULL;
    }
}

/* It has no value: a node without inputs can be evaluated again, any other keeps the cause (taken). */
static void fail_node(gm_array *node, gm_buffer *cause) {
    drop_values(node);
    if (node->op->n_in != 0)
        node->buf = buffer_retain(cause);
    atomic_store_explicit(&node->ticket, node->op->n_in ? TICKET_FAILED : 0, memory_order_release);
}

/* Of several flags, why a node that waits for these has no value; the batch's cause where there is no memory. */
static gm_buffer *own_cause(const gm_run *run, uint64_t flags, gm_buffer *whole) {
    gm_error *own = memory_new(sizeof *own), ignored;
    gm_buffer *b = own ? buffer_foreign(own, sizeof *own, memory_free, own) : NULL;
    if (b && queue_check_flags(run->queue, flags) != GM_OK) {
        gm_take_error(own);
        return b;
    }
    gm_take_error(&ignored);
    b ? buffer_release(b) : memory_free(own);
    return buffer_retain(whole);
}

/* The batch at hand has run (cause NULL), or failed, or never will (code GM_OK): `ran` launches and what they gave
 * stay. Nodes without inputs give back what evaluation needs once they have their values. */
static void close_batch(gm_run *run, const gm_error *cause, int64_t ran) {
    const uint64_t raised = cause ? queue_raised(run->queue) : 0;
    gm_buffer *kept = cause ? engine.spare : NULL;
    if (kept) {
        engine.spare = NULL;
        memcpy(kept->data, cause, sizeof *cause);
    }
    for (size_t i = run->begin; i < run->at && (cause || run->sources); i++) {
        gm_array *node = engine.order[i];
        const needs *n = &engine.needs[i - run->begin];
        if (!retain_living(node))
            continue;
        if (cause && (n->launches > ran || (n->flags & raised))) {
            const bool other = cause->code != GM_OK && n->launches <= ran && (n->flags & raised) != raised;
            gm_buffer *own = other ? own_cause(run, n->flags, kept) : buffer_retain(kept);
            fail_node(node, own);
            buffer_release(own);
        } else if (node->op->n_in == 0 && node->op->drop)
            node->op->drop(node->param);
        gm_release(node);
    }
    buffer_release(kept);
    run->begin = run->at;
    run->sources = false;
    atomic_store(&engine.completed, engine.ticket - 1);
    array_free(atomic_exchange(&engine.dead, NULL));
}

/* ---- the engine ---- */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void make_condition(void) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&engine.released, &attr);
    pthread_condattr_destroy(&attr);
}

static void fork_prepare(void) {
    pthread_mutex_lock(&engine.recording);
    pthread_mutex_lock(&engine.mutex);
}

static void fork_parent(void) {
    pthread_mutex_unlock(&engine.mutex);
    pthread_mutex_unlock(&engine.recording);
}

/* The child has one thread. A run of its own goes on (and fails if it had other threads); that of another thread is
 * over. */
static void fork_child(void) {
    pthread_mutex_init(&engine.mutex, NULL);
    pthread_mutex_init(&engine.recording, NULL);
    pthread_mutex_init(&init_lock, NULL);
    make_condition();
    engine.waiting = 0;
    engine.reserved = false;
    if (!engine.held || pthread_equal(engine.owner, pthread_self()))
        return;
    engine.held = false;
    engine.abandoned = true; /* the next run closes its batch: nothing is released in here */
}

gm_status gm_init(void) {
    const char *why = NULL;
    gm_status status = GM_OK;
    pthread_mutex_lock(&init_lock);
    if (!engine.kernels) {
        const gm_kernels *k = kernels_select(&why);
        if (!k) {
            status = gm_fail(GM_EVALUE, "%s", why ? why : "no instruction set can run here");
        } else if ((status = device_check_default()) == GM_OK) {
            make_condition();
            device_watch_forks();
            pthread_atfork(fork_prepare, fork_parent, fork_child);
            atomic_store(&engine.threads, team_default_threads());
            engine.kernels = k;
        }
    }
    pthread_mutex_unlock(&init_lock);
    return status;
}

const gm_kernels *engine_kernels(void) { return engine.kernels; }
gm_host_loops engine_host_loops(void) { return kernels_host_loops(engine.kernels); }
int engine_threads(void) { return atomic_load(&engine.threads); }
const char *gm_isa(void) { return engine.kernels ? kernels_isa(engine.kernels) : NULL; }
const char *gm_isa_reason(void) { return kernels_reason(); }
bool gm_multiplies_bfloat16(void) { return engine.kernels && contracts_cpu.multiplies_bf16(engine.kernels); }
int gm_default_threads(void) { return team_default_threads(); }
const char *gm_default_threads_reason(void) { return team_default_reason(); }

gm_status gm_set_threads(int n) {
    if (n < 1 || n > TEAM_MAX_THREADS)
        return gm_fail(GM_EVALUE, "set_threads: got %d, expected 1 to %d", n, TEAM_MAX_THREADS);
    atomic_store(&engine.threads, n);
    return GM_OK;
}

/* ---- the run lock ---- */
static struct timespec time_in(int ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

/* Until the lock is free, or reserved for a waiting thread; under the mutex. */
static gm_status await_run(int slice_ms) {
    const struct timespec until = time_in(slice_ms < 0 ? 0 : slice_ms);
    gm_status status = GM_OK;
    engine.waiting++;
    do {
        if (slice_ms < 0)
            pthread_cond_wait(&engine.released, &engine.mutex);
        else if (pthread_cond_timedwait(&engine.released, &engine.mutex, &until) == ETIMEDOUT && engine.held)
            status = GM_AGAIN;
    } while (engine.held && status == GM_OK);
    engine.waiting--;
    if (status == GM_OK || !engine.waiting)
        engine.reserved = false;
    return status;
}

gm_status run_lock(int slice_ms) {
    gm_status status = GM_OK;
    pthread_mutex_lock(&engine.mutex);
    if (engine.held && pthread_equal(engine.owner, pthread_self()))
        status = gm_fail(GM_ESTATE, "an evaluation is under way on this thread already: a signal handler or a progress "
                                    "callback cannot start another");
    else if (engine.held || engine.reserved)
        status = slice_ms == 0 ? GM_AGAIN : await_run(slice_ms);
    if (status == GM_OK) {
        engine.held = true;
        engine.owner = pthread_self();
    }
    pthread_mutex_unlock(&engine.mutex);
    return status;
}

void run_unlock(void) {
    pthread_mutex_lock(&engine.mutex);
    engine.held = false;
    engine.reserved = engine.waiting > 0;
    if (engine.reserved)
        pthread_cond_signal(&engine.released);
    pthread_mutex_unlock(&engine.mutex);
}

/* ---- tickets ---- */
/* What is published is read first: a node that failed has been marked before. */
bool gm_array_is_evaluated(const gm_array *a) {
    const uint64_t completed = atomic_load_explicit(&engine.completed, memory_order_acquire);
    const uint64_t ticket = atomic_load_explicit(&a->ticket, memory_order_acquire);
    return ticket && ticket <= completed;
}

static gm_status check_failed(const gm_array *a) {
    if (atomic_load_explicit(&a->ticket, memory_order_acquire) != TICKET_FAILED)
        return GM_OK;
    const gm_error *cause = a->buf->data;
    if (cause->code != GM_OK)
        return gm_fail(cause->code, "array: it has no value, for an evaluation failed: %s", cause->text);
    return gm_fail(GM_ESTATE, "array: its evaluation was interrupted, so it has no value");
}

/* ---- order ---- */
/* Nodes below root that are not evaluated, inputs before readers, appended to engine.order. */
static gm_status order_from(gm_array *root, size_t *n_order) {
    size_t depth = 0;
    if (root->mark == engine.epoch || atomic_load(&root->ticket))
        return check_failed(root);
    GM_TRY(grow_array(&engine.stack, depth, &engine.stack_capacity, 1, sizeof *engine.stack));
    root->mark = engine.epoch;
    engine.stack[depth++] = (frame){root, 0};
    while (depth) {
        frame *top = &engine.stack[depth - 1];
        gm_array *node = top->node;
        if (top->next < node->n_in) {
            gm_array *in = node->in[top->next++];
            if (in == GM_NONE)
                continue;
            if (atomic_load(&in->ticket)) {
                GM_TRY(check_failed(in));
                continue;
            }
            if (in->mark == engine.epoch)
                continue;
            GM_TRY(grow_array(&engine.stack, depth, &engine.stack_capacity, 1, sizeof *engine.stack));
            in->mark = engine.epoch;
            engine.stack[depth++] = (frame){in, 0};
        } else {
            GM_TRY(grow_array(&engine.order, *n_order, &engine.order_capacity, 1, sizeof *engine.order));
            engine.order[(*n_order)++] = node;
            depth--;
        }
    }
    return GM_OK;
}

static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Everything that roots need, in an order in which little is in memory at a time: roots that are ready early come
 * first, as given where they are alike. Of gradients through layers these are the last layer's: when a layer's turn
 * comes, all that the next one has kept for its own is free. */
static gm_status order_roots(gm_array *const *roots, size_t n, size_t *n_order) {
    GM_TRY(grow_array(&engine.keys, 0, &engine.keys_capacity, n, sizeof *engine.keys));
    for (size_t i = 0; i < n; i++)
        engine.keys[i] = (uint64_t)roots[i]->depth << 48 | i;
    qsort(engine.keys, n, sizeof *engine.keys, by_key);
    for (size_t i = 0; i < n; i++)
        GM_TRY(order_from(roots[engine.keys[i] & (((uint64_t)1 << 48) - 1)], n_order));
    return GM_OK;
}

/* A view in memory of the processor of what is there already, or of such views. */
static bool is_early(const gm_array *node) {
    const gm_array *in = node->n_in ? node->in[0] : NULL;
    return in && !node->device && node->op->place == PLACE_INPUT && node->n_in == 1 &&
           (atomic_load(&in->ticket) || in->mark == engine.epoch);
}

/* Where devices have nodes in the order, views on the processor that could come first do: between two nodes of a device
 * they would end its batch. */
static gm_status put_views_first(size_t n_order) {
    bool devices = false;
    size_t views = 0;
    for (size_t i = 0; i < n_order && device_is_possible(); i++)
        devices |= engine.order[i]->device != 0;
    gm_array **rest = devices ? memory_array(n_order, sizeof *rest) : NULL;
    if (!rest)
        return devices ? error_code() : GM_OK;
    engine.epoch++; /* of what comes first */
    for (size_t i = 0; i < n_order; i++) {
        gm_array *node = engine.order[i];
        if (is_early(node)) {
            node->mark = engine.epoch;
            engine.order[views++] = node;
        } else {
            rest[i - views] = node;
        }
    }
    memcpy(engine.order + views, rest, (n_order - views) * sizeof *rest);
    memory_free(rest);
    return GM_OK;
}

/* ---- recording ---- */
/* Whether memory that is about to lose an input is now the node's alone: donated to it, or seen by it as a view. */
static bool node_reuses_buffer(const gm_array *node, const gm_buffer *buf) {
    if (!buf || atomic_load(&buf->refs) != 2)
        return false;
    for (int k = 0; k < 1 + node->n_extra; k++)
        if ((k ? &node->extra[k - 1] : node)->buf == buf)
            return true;
    return false;
}

/* The node's reference to an input ends. What nobody else has may be reused by launches after this one. */
static void drop_input(gm_queue *q, const gm_array *node, gm_array *in) {
    if (in == GM_NONE)
        return;
    bool last = atomic_load(&in->refs) == 1;
    for (int k = 0; k < array_n_out(in); k++) {
        gm_array *o = array_output(in, k);
        if (last) {
            gm_buffer *buf = o->buf;
            o->buf = NULL;
            if (node_reuses_buffer(node, buf))
                buffer_release(buf); /* held by the queue it could not be donated further */
            else
                queue_drop(q, buf);
        } else {
            queue_hold(q, o->buf);
        }
    }
    gm_release(in);
}

/* A reference more for each input: what the node's gradient will read must not be donated to the node. */
static void guard_inputs(gm_array *node) {
    for (int i = 0; i < node->n_in; i++)
        gm_retain(node->in[i]);
}

/* Its own, its op's, its weights', or that of its last input that has one. */
static uint8_t work_of(const gm_array *node) {
    uint8_t last = GM_WORK_OTHER;
    if (node->work)
        return node->work;
    if (node->op->work)
        return node->op->work;
    for (int i = 0; i < node->n_in; i++) {
        const gm_array *in = node->in[i];
        if (in->work && !in->op)
            return in->work;
        last = in->work ? in->work : last;
    }
    return last;
}

/* The flags of this batch that the node's inputs wait for. */
static uint64_t input_flags(const gm_array *node, const gm_run *run) {
    const uint64_t first = engine.ticket - (run->at - run->begin);
    uint64_t flags = 0;
    for (int i = 0; i < node->n_in; i++) {
        const uint64_t ticket = atomic_load_explicit(&node->in[i]->ticket, memory_order_relaxed);
        if (ticket >= first) /* GM_NONE's is 1 */
            flags |= engine.needs[ticket - first].flags;
    }
    return flags;
}

/* ---- inputs that are on another device ---- */
/* The node's own inputs come back; what stood for them is used no more. */
static void put_back(gm_array *node, gm_queue *q) {
    for (int i = 0; i < node->n_in; i++) {
        gm_array *moved = node->in[i];
        if (!engine.kept[i])
            continue;
        node->in[i] = engine.kept[i];
        drop_input(q, node, moved);
    }
}

/* For the time of .eval inputs are where the queue's launches read them: its addresses are those of one device. */
static gm_status exchange(gm_array *node, gm_queue *q, bool *any) {
    const int number = queue_device(q);
    gm_status status = GM_OK;
    bool needed = false;
    *any = false;
    for (int i = 0; i < node->n_in && device_is_possible(); i++)
        needed |= mirror_is_needed(number, node->in[i]);
    if (!needed)
        return GM_OK;
    GM_TRY(grow_array(&engine.kept, 0, &engine.kept_capacity, node->n_in, sizeof *engine.kept));
    memset(engine.kept, 0, node->n_in * sizeof *engine.kept);
    *any = true;
    for (int i = 0; i < node->n_in && status == GM_OK; i++) {
        gm_array *own = node->in[i], *moved;
        if (!mirror_is_needed(number, own))
            continue;
        status = engine.plan ? plan_bring(engine.plan, q, node, own, &moved)
                             : mirror_make(q, own, node->op->shares, &moved);
        if (status == GM_OK) {
            engine.kept[i] = own;
            node->in[i] = moved;
        }
    }
    return status;
}

/* *flags: those that the node itself may raise. */
static gm_status record(gm_array *node, gm_queue *q, uint64_t ticket, bool keep_inputs, uint64_t *flags) {
    int64_t before = queue_length(q);
    size_t buffers = 3 * (size_t)node->n_in + node->n_extra + 2; /* two for a mirror */
    for (int i = 0; i < node->n_in; i++)
        buffers += node->in[i]->n_extra;
    bool exchanged;
    GM_TRY(queue_reserve(q, buffers));
    if (keep_inputs)
        guard_inputs(node);
    node->work = work_of(node);
    queue_work(q, node->work);
    gm_status status = exchange(node, q, &exchanged);
    for (int i = 0; i < node->n_in && status == GM_OK; i++)
        status = queue_reads(q, node->in[i]->buf);
    if (status == GM_OK)
        status = node->op->eval(node, q);
    *flags = queue_end_node(q);
    if (status != GM_OK) {
        queue_forget(q, before);
        for (int k = 0; k < array_n_out(node); k++) {
            queue_drop(q, array_output(node, k)->buf); /* its memory may be used by launches before it */
            array_output(node, k)->buf = NULL;
        }
    }
    if (exchanged)
        put_back(node, q);
    for (int i = 0; i < node->n_in && (status == GM_OK || keep_inputs); i++)
        drop_input(q, node, node->in[i]); /* the guard's reference, or the node's own */
    GM_TRY(status);
    if (!keep_inputs) {
        node->n_in = 0;
        if (node->op->drop && node->op->n_in) /* nothing goes through it any more: a closure may die before it */
            node->op->drop(node->param);
    }
    atomic_store_explicit(&node->ticket, ticket, memory_order_release);
    return GM_OK;
}

/* A node that its device cannot evaluate begins the next batch, of the processor. */
static gm_status fall_back(gm_array *node) {
    gm_error ignored;
    gm_take_error(&ignored);
    device_fell_back(node->op->name);
    for (int k = 0; k < array_n_out(node); k++)
        array_output(node, k)->device = 0;
    return GM_OK;
}

/* The next node of the run, into the batch at hand. */
static gm_status record_next(gm_run *run) {
    gm_array *node = engine.order[run->at];
    const size_t i = run->at - run->begin;
    uint64_t own;
    GM_TRY(grow_array(&engine.needs, i, &engine.needs_capacity, 1, sizeof *engine.needs));
    const uint64_t inputs = input_flags(node, run);
    run->sources |= node->op->n_in == 0 && node->op->drop;
    const gm_status status = record(node, run->queue, engine.ticket, run->tracing && node->trace, &own);
    if (status != GM_OK)
        return queue_lacks(run->queue) ? fall_back(node) : status;
    engine.needs[i] = (needs){inputs | own, queue_length(run->queue)};
    engine.ticket++;
    run->at++;
    return GM_OK;
}

/* ---- evaluation ---- */
static gm_status make_spare(void) {
    gm_error *cause = memory_new(sizeof *cause);
    engine.spare = cause ? buffer_foreign(cause, sizeof *cause, memory_free, cause) : NULL;
    if (engine.spare)
        return GM_OK;
    memory_free(cause);
    return error_code();
}

/* In a forked child, under the run lock: ends the batch that the parent's thread was at. */
static void end_abandoned(void) {
    if (!engine.abandoned)
        return;
    engine.abandoned = false;
    if (engine.spare)
        close_batch(&engine.run, &cancelled, 0);
    for (int i = 0; i < DEVICE_NUMBERS; i++)
        if (engine.queues[i])
            queue_reset(engine.queues[i]);
}

gm_status gm_eval_begin(gm_array *const *arrays, size_t count, int slice_ms, gm_run **out) {
    bool needed = false;
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!arrays[i])
            return gm_fail(GM_EVALUE, "eval: argument %zu is not an array", i);
        GM_TRY(check_failed(arrays[i]));
        needed |= !gm_array_is_evaluated(arrays[i]);
    }
    if (!needed)
        return GM_OK;
    GM_TRY(run_lock(slice_ms));
    gm_run *run = &engine.run;
    gm_status status;
    end_abandoned();
    run->n_roots = run->n_order = run->at = run->begin = 0;
    run->executing = run->sources = false;
    run->failure = GM_OK;
    status = grow_array(&run->roots, 0, &run->roots_capacity, count, sizeof *run->roots);
    if (status == GM_OK && !engine.spare)
        status = make_spare();
    if (status != GM_OK) {
        run_unlock();
        return status;
    }
    run->tracing = trace_depth() > 0;
    engine.epoch++;
    while (run->n_roots < count) {
        run->roots[run->n_roots] = gm_retain(arrays[run->n_roots]);
        run->n_roots++;
    }
    status = order_roots(run->roots, count, &run->n_order);
    if (status == GM_OK)
        status = put_views_first(run->n_order);
    if (status != GM_OK) {
        gm_eval_end(run);
        return status;
    }
    *out = run;
    return GM_OK;
}

/* The elements that a run of a few nodes reads and writes. */
#define FEW_NODES 4
#define FEW_ELEMENTS 8192

bool gm_eval_is_small(const gm_run *run) {
    int64_t elements = 0;
    if (!run)
        return true;
    for (size_t i = 0; i < run->n_order && i <= FEW_NODES && elements <= FEW_ELEMENTS; i++) {
        const gm_array *node = engine.order[i];
        if (node->device || node->op->waits)
            return false; /* it is waited for */
        elements += node->size;
        for (int k = 0; k < node->n_in; k++)
            elements += node->in[k] == GM_NONE ? 0 : node->in[k]->size;
    }
    return run->n_order <= FEW_NODES && elements <= FEW_ELEMENTS;
}

/* Of a batch that is executing, or was recorded and failed. The launches that have run. */
static int64_t stop_queue(gm_run *run, const gm_error *cause) {
    gm_queue *q = run->queue;
    if (run->device) {
        if (cause)
            device_finish(q, cause != &cancelled);
        return device_ran(q);
    }
    const int64_t ran = queue_ran(q);
    if (run->executing && cause == &cancelled) {
        queue_cancel(q);
        queue_step(q, 0);
    }
    queue_finish(q);
    return ran;
}

static void finish_batch(gm_run *run, const gm_error *cause) {
    const int64_t ran = stop_queue(run, cause);
    run->executing = false;
    pthread_mutex_lock(&engine.recording);
    close_batch(run, cause, ran);
    queue_reset(run->queue);
    pthread_mutex_unlock(&engine.recording);
}

/* Whether the next node can be recorded into the batch. */
static bool goes_on(const gm_run *run, int64_t launches) {
    return run->at < run->n_order && run->failure == GM_OK && queue_length(run->queue) < launches &&
           engine.order[run->at]->device == run->device;
}

static void record_up_to(gm_run *run, int64_t launches) {
    pthread_mutex_lock(&engine.recording);
    while (goes_on(run, launches)) {
        run->failure = record_next(run);
        if (run->failure != GM_OK)
            gm_take_error(&run->error);
    }
    pthread_mutex_unlock(&engine.recording);
}

static gm_status begin_batch(gm_run *run) {
    const int number = engine.order[run->at]->device;
    if (!engine.queues[number] && !(engine.queues[number] = queue_new(number)))
        return error_code();
    run->queue = engine.queues[number];
    run->device = number;
    record_up_to(run, BATCH_LAUNCHES);
    if (number)
        device_start(run->queue);
    else
        queue_start(run->queue, engine_threads());
    run->executing = true;
    return GM_OK;
}

static bool is_late(int64_t deadline) { return deadline && coarse_clock_ns() >= deadline; }

/* A device works on what was recorded while more is. One that is faster than the host is never waited for. */
static gm_status step_batch(gm_run *run, int64_t deadline) {
    if (!run->device)
        return queue_step(run->queue, deadline);
    while (goes_on(run, DEVICE_LAUNCHES)) {
        GM_TRY(device_issue(run->queue, deadline));
        record_up_to(run, queue_length(run->queue) + BATCH_LAUNCHES);
        if (is_late(deadline))
            return GM_AGAIN;
    }
    return device_step(run->queue, deadline);
}

gm_status gm_eval_step(gm_run *run, int slice_ms) {
    if (!run)
        return GM_OK;
    int64_t deadline = slice_ms > 0 ? coarse_clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    for (;;) {
        if (!run->executing) {
            if (run->failure != GM_OK) {
                error_restore(run->error.code, run->error.os_errno, run->error.text);
                return run->failure;
            }
            if (run->at == run->n_order)
                return GM_OK;
            GM_TRY(begin_batch(run));
        }
        gm_status status = step_batch(run, deadline);
        if (status == GM_AGAIN)
            return GM_AGAIN;
        if (status == GM_OK) {
            finish_batch(run, NULL);
            if (run->at < run->n_order && is_late(deadline))
                return GM_AGAIN;
            continue;
        }
        gm_error cause;
        gm_take_error(&cause);
        finish_batch(run, &cause);
        error_restore(cause.code, cause.os_errno, cause.text);
        return status;
    }
}

void gm_eval_end(gm_run *run) {
    if (!run)
        return;
    if (run->executing)
        finish_batch(run, &cancelled);
    for (size_t i = 0; i < run->n_roots; i++)
        gm_release(run->roots[i]);
    run_unlock();
}

gm_status gm_eval(gm_array *const *arrays, size_t count) {
    gm_run *run;
    GM_TRY(gm_eval_begin(arrays, count, -1, &run));
    gm_status status = gm_eval_step(run, 0);
    gm_eval_end(run);
    return status;
}

/* ---- plans ---- */

/* What the ordered nodes read and do not make. A reference more each while they are recorded: what would die at its
 * last reader is then neither donated nor reused but held, for the plan's next run reads it again. */
static gm_status retain_inputs(size_t n_order, gm_array ***out, size_t *n_out) {
    size_t n = 0, most = 0;
    for (size_t i = 0; i < n_order; i++)
        most += engine.order[i]->n_in;
    gm_array **inputs = memory_array(most, sizeof *inputs);
    if (!inputs)
        return error_code();
    for (size_t i = 0; i < n_order; i++)
        for (int k = 0; k < engine.order[i]->n_in; k++)
            if (engine.order[i]->in[k] != GM_NONE && atomic_load(&engine.order[i]->in[k]->ticket))
                inputs[n++] = gm_retain(engine.order[i]->in[k]);
    *out = inputs;
    *n_out = n;
    return GM_OK;
}

/* A view of a constant is of any device. */
static gm_status check_planned(const gm_plan *p, const gm_array *node) {
    if (node->device == queue_device(plan_part(p, node)) || node->op->place == PLACE_INPUT)
        return GM_OK;
    return gm_fail(GM_EUNSUPPORTED, "%s: it is not on the device that its model is on", node->op->name);
}

static gm_status record_plan(gm_plan *p, size_t n_order) {
    gm_status status = GM_OK;
    uint64_t flags;
    for (size_t i = 0; i < n_order && status == GM_OK; i++)
        status = check_planned(p, engine.order[i]);
    engine.plan = p;
    for (size_t i = 0; i < n_order && status == GM_OK; i++)
        status = record(engine.order[i], plan_part(p, engine.order[i]), 1, false, &flags);
    engine.plan = NULL;
    return status;
}

/* Whether a plan of another device begins on the processor. */
static bool begins_here(size_t n_order) {
    for (size_t i = 0; i < n_order; i++)
        if (!engine.order[i]->device && engine.order[i]->op->place != PLACE_INPUT)
            return true;
    return false;
}

/* The roots' memory stays theirs between runs. */
static gm_status hold_roots(gm_plan *p, gm_array *const *roots, size_t count) {
    GM_TRY(queue_reserve(p->queue, count));
    if (p->first)
        GM_TRY(queue_reserve(p->first, count));
    for (size_t i = 0; i < count; i++)
        queue_hold(plan_part(p, roots[i]), roots[i]->buf);
    return GM_OK;
}

static gm_status record_roots(gm_array *const *roots, size_t count, gm_plan **out) {
    gm_array **inputs = NULL;
    size_t n_order = 0, n_inputs = 0;
    engine.epoch++;
    for (size_t i = 0; i < count; i++)
        GM_TRY(order_from(roots[i], &n_order));
    gm_plan *p = *out = plan_new(roots[0]->device, roots[0]->device && begins_here(n_order));
    if (!p)
        return error_code();
    gm_status status = retain_inputs(n_order, &inputs, &n_inputs);
    p->inputs = inputs;
    p->n_inputs = n_inputs;
    if (status == GM_OK)
        status = record_plan(p, n_order);
    if (status == GM_OK)
        status = hold_roots(p, roots, count);
    for (size_t i = 0; i < n_inputs; i++)
        gm_release(inputs[i]);
    memory_free(inputs);
    p->inputs = NULL;
    p->n_inputs = 0;
    return status;
}

gm_status plan_capture(gm_array *const *roots, size_t count, gm_plan **out) {
    *out = NULL;
    end_abandoned();
    for (size_t i = 0; i < count; i++)
        if (!roots[i])
            return error_code();
    pthread_mutex_lock(&engine.recording);
    const gm_status status = record_roots(roots, count, out);
    pthread_mutex_unlock(&engine.recording);
    if (status != GM_OK) {
        plan_free(*out);
        *out = NULL;
    }
    return status;
}
