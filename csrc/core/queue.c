/* queue.c - recording launches. Invariants in queue.h. */
#include "core/queue_state.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "core/graph.h"

#define ARENA_BLOCK ((size_t)64 << 10)

/* ---- what contracts are given ---- */
static int recorded_threads(const gm_recorder *r) {
    (void)r;
    return engine_threads();
}
static bool record_launch(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain,
                          int flags) {
    return queue_launch((gm_queue *)r, fn, args, size, n, grain, flags) == GM_OK;
}
static void record_scale(gm_recorder *r, const int32_t *factor) { queue_scale((gm_queue *)r, factor); }
static void record_fence(gm_recorder *r) { queue_fence((gm_queue *)r); }
static void *record_workspace(gm_recorder *r, size_t bytes) { return queue_scratch((gm_queue *)r, bytes); }
static void *record_arguments(gm_recorder *r, size_t bytes) { return queue_arena((gm_queue *)r, bytes); }
static const void *record_constant(gm_recorder *r, const void *data, size_t bytes) {
    return queue_constant((gm_queue *)r, data, bytes);
}
static bool record_lack(gm_recorder *r, const char *what) { return queue_lack((gm_queue *)r, what) == GM_OK; }

gm_queue *queue_new(int number) {
    static _Atomic uint64_t epochs = 1;
    const device *d = device_get(number);
    gm_queue *q = d ? memory_aligned(sizeof *q, 64) : NULL;
    if (!q)
        return NULL;
    memset(q, 0, sizeof *q);
    q->device = d;
    q->epoch = atomic_fetch_add(&epochs, 1);
    q->next_bit = 1;
    q->recorder = (gm_recorder){.contracts = d->contracts,
                                .kernels = engine_kernels(),
                                .threads = recorded_threads,
                                .launch = record_launch,
                                .scale = record_scale,
                                .fence = record_fence,
                                .workspace = record_workspace,
                                .arguments = record_arguments,
                                .constant = record_constant,
                                .lack = record_lack};
    return q;
}

/* Those of a device are pinned: its kernels write faults there. */
static void free_arenas(const gm_queue *q, arena *a) {
    while (a) {
        arena *next = a->next;
        if (q->device->calls)
            device_unpin(q->device, a);
        else
            memory_free(a);
        a = next;
    }
}

static arena *new_arena(const gm_queue *q, size_t bytes) {
    return q->device->calls ? device_pinned(q->device, sizeof(arena) + bytes)
                            : memory_aligned(sizeof(arena) + bytes, 64);
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
    q->lacks = q->lends = false;
    q->issued = q->done = 0;
    q->marks[0] = q->marks[1] = 0;
    device_forget_graph(q);
    queue_release(q, true);
    staging_reset(q);
}

void queue_free(gm_queue *q) {
    if (!q)
        return;
    device_forget_graph(q);
    queue_release(q, false);
    staging_free(q);
    free_arenas(q, q->arenas);
    free_arenas(q, q->spare);
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

bool queue_lacks(const gm_queue *q) { return q->lacks; }

gm_status queue_lack(gm_queue *q, const char *what) {
    q->lacks = true;
    return gm_fail(GM_EUNSUPPORTED, "%s: gpu %d has no kernel for it", what, q->device->number - 1);
}

int queue_device(const gm_queue *q) { return q->device->number; }

int64_t queue_length(const gm_queue *q) { return q->count; }

void *queue_arena(gm_queue *q, size_t bytes) {
    bytes = (bytes + 63) & ~(size_t)63;
    if (!q->arenas || q->arenas->size - q->arenas->used < bytes) {
        arena *a = q->spare;
        if (a && a->size >= bytes) {
            q->spare = a->next;
        } else {
            size_t size = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
            a = new_arena(q, size);
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

const void *queue_constant(gm_queue *q, const void *data, size_t bytes) {
    if (q->device->calls) {
        gm_buffer *b = queue_staged(q, data, bytes);
        if (!b || queue_reserve(q, q->reserved + 1) != GM_OK)
            return buffer_release(b), NULL;
        queue_drop(q, b);
        return b->data;
    }
    void *copy = queue_arena(q, bytes);
    return copy ? memcpy(copy, data, bytes) : NULL;
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

gm_status queue_check_flags(const gm_queue *q, uint64_t bits) {
    const flag *first = NULL;
    for (const flag *f = q->flags; f; f = f->next)
        first = f->fault.raised && (f->bit & bits) ? f : first;
    return first ? flag_failure(first) : GM_OK;
}

gm_status queue_check(const gm_queue *q) { return queue_check_flags(q, UINT64_MAX); }

uint64_t queue_raised(const gm_queue *q) {
    uint64_t raised = 0;
    for (const flag *f = q->flags; f; f = f->next)
        raised |= f->fault.raised ? f->bit : 0;
    return raised;
}

/* ---- hazards ---- */
static gm_status note(access **list, size_t *count, size_t *capacity, gm_buffer *b, bool solo) {
    for (size_t i = *count; i-- > 0;)
        if ((*list)[i].buf == b) {
            (*list)[i].solo &= solo;
            return GM_OK;
        }
    GM_TRY(grow_array(list, *count, capacity, 1, sizeof **list));
    (*list)[(*count)++] = (access){b, solo};
    return GM_OK;
}

gm_status queue_reads(gm_queue *q, gm_buffer *b) {
    return b ? note(&q->reads, &q->n_reads, &q->cap_reads, b, true) : GM_OK;
}

gm_status queue_writes(gm_queue *q, gm_buffer *b) {
    return b ? note(&q->writes, &q->n_writes, &q->cap_writes, b, true) : GM_OK;
}

/* Of accesses from `first` on. Two solo launches need no barrier between them whatever they touch: those of a stage are
 * all done by one thread. */
static bool conflicts(const access *now, size_t first, size_t n_now, const access *past, size_t n_past, bool solo) {
    for (size_t i = first; i < n_now; i++)
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

/* Barriers and pieces are the processor's alone. */
static void add_on_device(gm_queue *q, gm_kernel fn, const void *args, int64_t n) {
    q->launches[q->count++] = (launch){.fn = fn, .args = args, .n = n, .work = q->work};
}

gm_status queue_launch(gm_queue *q, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain, int flags) {
    if (n <= 0)
        return GM_OK;
    GM_TRY(grow_array(&q->launches, (size_t)q->count, (size_t *)&q->capacity, 1, sizeof *q->launches));
    void *copy = queue_arena(q, size);
    if (!copy)
        return error_code();
    memcpy(copy, args, size);
    if (q->device->calls)
        return add_on_device(q, fn, copy, n), GM_OK;
    GM_TRY(place_gates(q));
    const bool part = (flags & LAUNCH_PART) != 0, solo = n <= grain && !part;
    /* A part waits for what the part before it waits for, and for who has memory that the node took since. */
    const bool beside = part && q->parts;
    const size_t reads = beside ? q->noted_reads : 0, writes = beside ? q->noted_writes : 0;
    /* A node of many launches (thousands of arrays joined) compares and notes what it touches once. */
    bool again = solo && q->noted && q->noted_reads == q->n_reads && q->noted_writes == q->n_writes;
    bool barrier = (q->fence && (q->multi_since || !solo)) ||
                   (!again && (conflicts(q->reads, reads, q->n_reads, q->past_writes, q->n_past_writes, solo) ||
                               conflicts(q->writes, writes, q->n_writes, q->past_writes, q->n_past_writes, solo) ||
                               conflicts(q->writes, writes, q->n_writes, q->past_reads, q->n_past_reads, solo)));
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
    q->launches[q->count++] = (launch){.fn = fn,
                                       .args = copy,
                                       .n = n,
                                       .grain = grain > 0 ? grain : 1,
                                       .barrier = barrier,
                                       .solo = solo,
                                       .ftz = (flags & LAUNCH_FTZ) != 0,
                                       .work = q->work};
    return GM_OK;
}

gm_status queue_lend(gm_queue *q, device_guest fn, const void *args, size_t size) {
    GM_TRY(queue_launch(q, NULL, args, size, 1, 1, 0));
    q->launches[q->count - 1].guest = fn;
    q->lends = true;
    return GM_OK;
}

void queue_scale(gm_queue *q, const int32_t *factor) {
    launch *l = &q->launches[q->count - 1];
    l->factor = factor;
    l->barrier |= l->solo; /* none was found needed for a launch of thread 0 alone */
    l->solo = false;       /* how much it will be is not known now */
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
