/* fake_device.c - a device without a GPU, for tests: its kernels are the processor's, one after the other, over memory
 * that faults when the host touches it. GOMLX_DEVICE_LIBRARY names it (tests/support/fake_device.py builds it).
 *
 * What is asked for runs when somebody waits for it, as late as possible, so that a wait that is missing shows. With
 * GOMLX_FAKE_DEVICE=now it runs at once, with =slow it takes its time to be found, with =none there is none, with
 * =broken none can be opened, with "broken 0" the first cannot. GOMLX_FAKE_LACKS names a contract that it has not.
 *
 * fake_fail("alloc", 3) makes the third allocation from now on fail, -3 that and all after it; "copy", "launch",
 * "graph" (its launch), "wait", "pinned" and "lose", the call of any kind after which the device is lost, likewise.
 * fake_count gives the calls so far, fake_most_waiting the most launches that were on their way at a time since it was
 * called last. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "cpu/launch.h"
#include "device.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define DEVICES 2
#define SPACE ((size_t)64 << 30)    /* addresses of a device */
#define MEMORY ((size_t)4 << 30)    /* bytes of them at a time */
#define ALIGNMENT ((size_t)2 << 20) /* whole pages, huge ones: they are quickly opened and closed */
#define POISON 0xA5

typedef enum { ALLOC, COPY, LAUNCH, REPLAY, WAIT, PINNED, LOSE, KINDS } call_kind;
static const char *const kinds[KINDS] = {"alloc", "copy", "launch", "graph", "wait", "pinned", "lose"};

/* Something that was asked for and has not run. */
typedef struct work {
    struct work *next;
    gm_kernel fn; /* NULL: a copy */
    const void *args;
    int64_t n;
    void *to;
    const void *from;
    size_t bytes;
    uint64_t mark; /* not 0: a mark alone */
} work;

typedef struct block {
    struct block *next;
    size_t begin, bytes;
} block;

struct gm_device_state {
    char *space;
    block *blocks; /* in the order of their addresses */
    size_t used;
    work *first, **last;
    uint64_t marks, done;
    bool lost;
};

static struct gm_device_state states[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long fail_at[KINDS], calls[KINDS];
static long waiting, most_waiting; /* launches */
static bool at_once;
static int key = -1; /* a protection key: the memory is open to one thread at a time. -1: to all of them, by mprotect */

/* ---- failures ---- */
EXPORT void fake_fail(const char *what, long nth) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            fail_at[i] = nth > 0 ? calls[i] + nth : nth < 0 ? nth - calls[i] : 0;
}

EXPORT long fake_count(const char *what) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            return calls[i];
    return -1;
}

EXPORT long fake_most_waiting(void) {
    const long most = most_waiting;
    most_waiting = 0;
    return most;
}

EXPORT size_t fake_used(void) { return states[0].used; }

static bool fails(call_kind kind) {
    calls[kind]++;
    return fail_at[kind] < 0 ? calls[kind] >= -fail_at[kind] : calls[kind] == fail_at[kind];
}

static _Thread_local const char *reason = ""; /* of what failed last in this thread */
static gm_device_result say(gm_device_result result, const char *why) {
    reason = why;
    return result;
}

/* With the lock held, at the beginning of each call. */
static bool is_lost(gm_device_state *d) {
    d->lost |= fails(LOSE);
    if (d->lost)
        say(DEVICE_LOST, "the fake device was made to fall off the bus");
    return d->lost;
}

/* ---- memory that the host cannot touch ---- */
static void open_memory(gm_device_state *d) {
    if (key >= 0)
        pkey_set(key, 0);
    else
        mprotect(d->space, SPACE, PROT_READ | PROT_WRITE);
}

static void close_memory(gm_device_state *d) {
    if (key >= 0)
        pkey_set(key, PKEY_DISABLE_ACCESS);
    else
        mprotect(d->space, SPACE, PROT_NONE);
}

static bool reserve(gm_device_state *d) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    static bool asked;
    if (!asked)
        key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    asked = true;
    d->space = mmap(NULL, SPACE + ALIGNMENT, key >= 0 ? PROT_READ | PROT_WRITE : PROT_NONE, flags, -1, 0);
    if (d->space == MAP_FAILED)
        return false;
    d->space += ALIGNMENT - (uintptr_t)d->space % ALIGNMENT;
    madvise(d->space, SPACE, MADV_HUGEPAGE);
    d->last = &d->first;
    return key < 0 || pkey_mprotect(d->space, SPACE, PROT_READ | PROT_WRITE, key) == 0;
}

/* ---- the line of work ---- */
static void run_one(gm_device_state *d, work *w) {
    if (w->mark)
        d->done = w->mark;
    else if (w->fn)
        waiting--, w->fn(w->args, 0, w->n);
    else
        memcpy(w->to, w->from, w->bytes);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* False: the deadline came before. Something is done in each call. */
static bool run_until(gm_device_state *d, uint64_t mark, int64_t deadline_ns) {
    bool in_time = true;
    if (d->done >= mark || !d->first)
        return true;
    open_memory(d);
    while (d->first && d->done < mark && in_time) {
        work *w = d->first;
        d->first = w->next;
        if (!d->first)
            d->last = &d->first;
        run_one(d, w);
        free(w);
        in_time = deadline_ns == INT64_MAX || d->done >= mark || now() < deadline_ns;
    }
    close_memory(d);
    return in_time;
}

static void ask(gm_device_state *d, work w) {
    work *kept = malloc(sizeof *kept);
    *kept = w;
    kept->next = NULL;
    *d->last = kept;
    d->last = &kept->next;
    waiting += w.fn != NULL;
    most_waiting = waiting > most_waiting ? waiting : most_waiting;
    if (at_once)
        run_until(d, UINT64_MAX, INT64_MAX);
}

/* ---- the calls ---- */
static void lack(const char *name); /* a contract */

static int count_devices(char why[DEVICE_WHY]) {
    const char *text = getenv("GOMLX_FAKE_DEVICE");
    if (getenv("GOMLX_FAKE_LACKS"))
        lack(getenv("GOMLX_FAKE_LACKS"));
    at_once = text && strcmp(text, "now") == 0;
    if (text && strcmp(text, "slow") == 0)
        nanosleep(&(struct timespec){0, 300000000}, NULL);
    if (text && strcmp(text, "none") == 0)
        return snprintf(why, DEVICE_WHY, "the fake device is switched off; switch it on"), 0;
    return DEVICES;
}

static int ordinal_of(int index) { return index; }

static gm_device_result open_device(int index, gm_device_state **out, char why[DEVICE_WHY]) {
    const char *text = getenv("GOMLX_FAKE_DEVICE");
    if ((text && (strcmp(text, "broken") == 0 || (index == 0 && strcmp(text, "broken 0") == 0))) ||
        !reserve(&states[index])) {
        snprintf(why, DEVICE_WHY, "the fake device is broken");
        return DEVICE_FAILED;
    }
    *out = &states[index];
    return DEVICE_OK;
}

static void libraries(char *out, size_t bytes) { snprintf(out, bytes, "none"); }
static void facts(const gm_device_state *d, gm_device_facts *out) {
    *out = (gm_device_facts){.name = "Fake device",
                             .architecture = "fake_1",
                             .memory = MEMORY,
                             .free = MEMORY - d->used,
                             .driver = "1.0",
                             .kernels = "the processor's"};
}

static gm_device_result allocate(gm_device_state *d, size_t bytes, void **out) {
    pthread_mutex_lock(&lock);
    gm_device_result result = DEVICE_OK;
    const size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block **at = &d->blocks, *b = NULL;
    size_t begin = 0;
    if (is_lost(d))
        result = DEVICE_LOST;
    else if (fails(ALLOC) || d->used + size > MEMORY || !(b = malloc(sizeof *b)))
        result = say(DEVICE_MEMORY, "the fake device has no more memory");
    if (result == DEVICE_OK) {
        while (*at && (*at)->begin - begin < size) {
            begin = (*at)->begin + (*at)->bytes;
            at = &(*at)->next;
        }
        *b = (block){*at, begin, size};
        *at = b;
        d->used += size;
        *out = d->space + begin;
        open_memory(d);
        memset(*out, POISON, size);
        close_memory(d);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void give_back(gm_device_state *d, void *memory) {
    pthread_mutex_lock(&lock);
    run_until(d, UINT64_MAX, INT64_MAX);
    for (block **at = &d->blocks; *at; at = &(*at)->next) {
        block *b = *at;
        if (d->space + b->begin != memory)
            continue;
        *at = b->next;
        d->used -= b->bytes;
        madvise(memory, b->bytes, MADV_DONTNEED);
        free(b);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static void *pinned(size_t bytes) { return fails(PINNED) ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64); }
static void unpin(void *memory) { free(memory); }

static gm_device_result copy(gm_device_state *d, void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&lock);
    gm_device_result result = DEVICE_OK;
    if (is_lost(d))
        result = DEVICE_LOST;
    else if (fails(COPY))
        result = say(DEVICE_FAILED, "the fake device was made to fail at a copy");
    else
        ask(d, (work){.to = to, .from = from, .bytes = bytes});
    pthread_mutex_unlock(&lock);
    return result;
}

static gm_device_result launch(gm_device_state *d, const gm_device_launch *launches, int64_t n) {
    pthread_mutex_lock(&lock);
    gm_device_result result = DEVICE_OK;
    for (int64_t i = 0; i < n && result == DEVICE_OK; i++) {
        if (is_lost(d))
            result = DEVICE_LOST;
        else if (fails(LAUNCH))
            result = say(DEVICE_FAILED, "the fake device was made to fail at a launch");
        else
            ask(d, (work){.fn = launches[i].fn, .args = launches[i].args, .n = launches[i].n});
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- graphs: launches that are asked for together ---- */
struct gm_device_graph {
    int64_t n;
    gm_device_launch launches[];
};
static gm_device_result capture(gm_device_state *d, const gm_device_launch *launches, int64_t n,
                                gm_device_graph **out) {
    (void)d;
    *out = malloc(sizeof **out + (size_t)n * sizeof *launches);
    if (!*out)
        return say(DEVICE_MEMORY, "the host has no more memory");
    (*out)->n = n;
    memcpy((*out)->launches, launches, (size_t)n * sizeof *launches);
    return DEVICE_OK;
}
static gm_device_result replay(gm_device_state *d, gm_device_graph *graph) {
    pthread_mutex_lock(&lock);
    const bool failed = fails(REPLAY);
    pthread_mutex_unlock(&lock);
    return failed ? say(DEVICE_FAILED, "the fake device was made to fail at a graph")
                  : launch(d, graph->launches, graph->n);
}
static void drop(gm_device_state *d, gm_device_graph *graph) {
    (void)d;
    free(graph);
}

static uint64_t mark(gm_device_state *d) {
    pthread_mutex_lock(&lock);
    const uint64_t result = is_lost(d) ? 0 : ++d->marks;
    if (result)
        ask(d, (work){.mark = result});
    pthread_mutex_unlock(&lock);
    return result;
}

static gm_device_result await_mark(gm_device_state *d, uint64_t at, int64_t deadline_ns) {
    pthread_mutex_lock(&lock);
    gm_device_result result = DEVICE_OK;
    if (is_lost(d))
        result = DEVICE_LOST;
    else if (fails(WAIT))
        result = say(DEVICE_FAILED, "the fake device was made to fail at its work");
    else if (!run_until(d, at, deadline_ns))
        result = DEVICE_AGAIN;
    pthread_mutex_unlock(&lock);
    return result;
}

static gm_device_result settle(gm_device_state *d) {
    pthread_mutex_lock(&lock);
    gm_device_result result = is_lost(d) ? DEVICE_LOST : DEVICE_OK;
    if (result == DEVICE_OK)
        run_until(d, UINT64_MAX, INT64_MAX);
    pthread_mutex_unlock(&lock);
    return result;
}

static const char *why(const gm_device_state *d) { return (void)d, reason; }

/* ---- contracts: the processor's, whose launches become one each ---- */
typedef struct {
    gm_kernel fn;
    int64_t grain;
    const int32_t *factor;
    bool ftz;
    _Alignas(64) char args[];
} pieces;

typedef struct {
    gm_recorder recorder; /* the first member */
    gm_recorder *real;
    pieces *last;
} wrapped;

/* In pieces, as the processor would: a loop may count on its grain. */
static void run_pieces(const void *args, int64_t begin, int64_t end) {
    const pieces *p = *(const pieces *const *)args;
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(p->ftz ? saved | 0x8040u : saved);
#endif
    end *= p->factor ? *p->factor : 1;
    for (; begin < end; begin += p->grain)
        p->fn(p->args, begin, end - begin < p->grain ? end : begin + p->grain);
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
}

static bool wrapped_launch(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain,
                           int flags) {
    wrapped *w = (wrapped *)r;
    pieces *p = w->real->arguments(w->real, sizeof *p + size);
    if (!p)
        return false;
    p->fn = fn;
    p->grain = grain > 0 ? grain : 1;
    p->factor = NULL;
    p->ftz = (flags & LAUNCH_FTZ) != 0;
    memcpy(p->args, args, size);
    w->last = p;
    return w->real->launch(w->real, run_pieces, &p, sizeof p, n, 1, 0);
}

static int one_thread(const gm_recorder *r) { return (void)r, 1; }
static void wrapped_scale(gm_recorder *r, const int32_t *factor) { ((wrapped *)r)->last->factor = factor; }
static void wrapped_fence(gm_recorder *r) { (void)r; }
static void *wrapped_workspace(gm_recorder *r, size_t bytes) {
    wrapped *w = (wrapped *)r;
    return w->real->workspace(w->real, bytes);
}
static void *wrapped_arguments(gm_recorder *r, size_t bytes) {
    wrapped *w = (wrapped *)r;
    return w->real->arguments(w->real, bytes);
}
static const void *wrapped_constant(gm_recorder *r, const void *data, size_t bytes) {
    wrapped *w = (wrapped *)r;
    return w->real->constant(w->real, data, bytes);
}

static bool wrapped_lack(gm_recorder *r, const char *what) {
    wrapped *w = (wrapped *)r;
    return w->real->lack(w->real, what);
}

static wrapped wrap(gm_recorder *real) {
    return (wrapped){.recorder = {.contracts = &contracts_cpu,
                                  .kernels = real->kernels,
                                  .threads = one_thread,
                                  .launch = wrapped_launch,
                                  .scale = wrapped_scale,
                                  .fence = wrapped_fence,
                                  .workspace = wrapped_workspace,
                                  .arguments = wrapped_arguments,
                                  .constant = wrapped_constant,
                                  .lack = wrapped_lack},
                     .real = real};
}

#define CONTRACT(name, range, doc)                                                                                     \
    static bool fake_##name(gm_recorder *r, const gm_##name##_args *a, int64_t n) {                                    \
        wrapped w = wrap(r);                                                                                           \
        return contracts_cpu.name(&w.recorder, a, n);                                                                  \
    }
#include "contracts.def"
#undef CONTRACT

static gm_contracts contracts = {
#define CONTRACT(name, range, doc) .name = fake_##name,
#include "contracts.def"
#undef CONTRACT
    .packed_bytes = cpu_packed_bytes,
    .multiplies_bf16 = cpu_multiplies_bf16,
    .makes_rows = true,
};

static void lack(const char *name) {
#define CONTRACT(own, range, doc)                                                                                      \
    if (strcmp(name, #own) == 0)                                                                                       \
        contracts.own = NULL;
#include "contracts.def"
#undef CONTRACT
}

EXPORT const gm_device_calls gomlx_device = {.kind = "fake",
                                             .contracts = &contracts,
                                             .count = count_devices,
                                             .ordinal = ordinal_of,
                                             .open = open_device,
                                             .facts = facts,
                                             .libraries = libraries,
                                             .alloc = allocate,
                                             .free = give_back,
                                             .pinned = pinned,
                                             .unpin = unpin,
                                             .copy = copy,
                                             .launch = launch,
                                             .capture = capture,
                                             .replay = replay,
                                             .drop = drop,
                                             .mark = mark,
                                             .wait = await_mark,
                                             .settle = settle,
                                             .why = why};
