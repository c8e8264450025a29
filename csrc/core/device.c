/* device.c - opening devices, and calling them one at a time. Invariants in device.h. */
#include "core/device.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/graph.h"

#define MOST_FALLBACKS 16 /* operations that are counted */

typedef struct {
    device d;
    pthread_mutex_t line;
    _Atomic bool lost;
    char why[DEVICE_WHY]; /* it is lost; written before that is said */
} opened;

static struct {
    pthread_mutex_t lock; /* of looking and opening */
    bool looked;
    const gm_device_calls *calls; /* of all but the processor; NULL: there are none */
    int count;
    char why[DEVICE_WHY]; /* there are none */
    opened devices[DEVICE_NUMBERS];
    _Atomic(opened *) ready[DEVICE_NUMBERS];
    _Atomic int fallback; /* what threads make nodes on that entered no device; -1: not known yet */
    _Atomic bool forked;
    struct {
        const char *op;
        int64_t count;
    } fell_back[MOST_FALLBACKS];
} devices = {.lock = PTHREAD_MUTEX_INITIALIZER, .fallback = -1};

static _Thread_local int entered = -1;
static _Thread_local bool
    looks; /* this thread looks for devices or opens one: drivers fork helpers of their own then */
_Atomic device_use devices_in_use = DEVICES_UNKNOWN;

/* ---- looking ---- */
/* The calls of the library that stands in CUDA's place; NULL with the reason. */
static const gm_device_calls *from_library(const char *path, char why[DEVICE_WHY]) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const gm_device_calls *calls = library ? dlsym(library, DEVICE_LIBRARY_SYMBOL) : NULL;
    if (!calls)
        snprintf(why, DEVICE_WHY, "GOMLX_DEVICE_LIBRARY: %.400s", dlerror());
    return calls;
}

static void look(void) {
    const char *path = getenv("GOMLX_DEVICE_LIBRARY");
    devices.looked = true;
    devices.calls = path && *path ? from_library(path, devices.why) : &device_cuda;
    devices.count = devices.calls ? devices.calls->count(devices.why) : 0;
    if (devices.count > DEVICE_NUMBERS - 1)
        devices.count = DEVICE_NUMBERS - 1;
}

/* How many there are beside the processor. */
static int count(void) {
    pthread_mutex_lock(&devices.lock);
    looks = true;
    if (!devices.looked)
        look();
    const int n = devices.count;
    looks = false;
    pthread_mutex_unlock(&devices.lock);
    return n;
}

/* ---- forks ---- */
/* fork waits while somebody looks for devices or opens one: what has begun there could not end in the child. */
static void fork_prepare(void) {
    if (!looks)
        pthread_mutex_lock(&devices.lock);
}
static void fork_parent(void) {
    if (!looks)
        pthread_mutex_unlock(&devices.lock);
}

/* No call goes to a device that the parent opened: its driver's threads are not there, and a line may be taken. */
static void fork_child(void) {
    pthread_mutex_init(&devices.lock, NULL);
    for (int i = 0; i < DEVICE_NUMBERS; i++)
        if (atomic_load(&devices.ready[i]))
            atomic_store(&devices.forked, true);
}

void device_watch_forks(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

/* ---- opening ---- */
static gm_status refuse_number(int number) {
    if (devices.count == 0)
        return gm_fail(GM_EVALUE, "there is no gpu backend: %s", devices.why);
    return gm_fail(GM_EVALUE, "there is no gpu %d: there are %d, counted from 0", number - 1, devices.count);
}

/* Under the lock. */
static gm_status open_device(int number) {
    char why[DEVICE_WHY] = "";
    opened *o = &devices.devices[number];
    if (atomic_load(&devices.ready[number]))
        return GM_OK;
    if (!devices.looked)
        look();
    if (number > devices.count)
        return refuse_number(number);
    o->d = (device){.number = number, .contracts = devices.calls->contracts, .calls = devices.calls};
    if (devices.calls->open(number - 1, &o->d.state, why) != DEVICE_OK)
        return gm_fail(GM_EDEVICE, "gpu %d cannot be used: %s", number - 1, why);
    pthread_mutex_init(&o->line, NULL);
    atomic_store(&devices.ready[number], o);
    return GM_OK;
}

static gm_status refuse_lost(const device *d) {
    if (atomic_load(&devices.forked))
        return gm_fail(GM_ESTATE, "a process that was forked has no gpu: start processes with the method \"spawn\"");
    return gm_fail(GM_EDEVICE, "gpu %d is lost to this process: %s", d->number - 1, devices.devices[d->number].why);
}

static bool is_lost(const device *d) {
    return atomic_load(&devices.forked) || atomic_load(&devices.devices[d->number].lost);
}

const device *device_get(int number) {
    static const device processor = {.contracts = &contracts_cpu};
    if (number == 0)
        return &processor;
    if (number < 0 || number >= DEVICE_NUMBERS)
        return gm_fail(GM_EVALUE, "there is no gpu %d", number - 1), NULL;
    opened *o = atomic_load_explicit(&devices.ready[number], memory_order_acquire);
    if (!o) {
        pthread_mutex_lock(&devices.lock);
        looks = true;
        const gm_status status = open_device(number);
        looks = false;
        pthread_mutex_unlock(&devices.lock);
        if (status != GM_OK)
            return NULL;
        o = &devices.devices[number];
    }
    return is_lost(&o->d) ? (refuse_lost(&o->d), NULL) : &o->d;
}

const gm_contracts *device_contracts(int number) {
    return number ? devices.devices[number].d.contracts : &contracts_cpu;
}

bool device_multiplies_bf16(int number) { return device_contracts(number)->multiplies_bf16(engine_kernels()); }

/* ---- the device of new nodes ---- */
/* "cpu", "cuda" or "gpu", "cuda:1": its number; -1: none of these. */
static int number_of(const char *name) {
    if (strcmp(name, "cpu") == 0)
        return 0;
    if (strncmp(name, "cuda", 4) != 0 && strncmp(name, "gpu", 3) != 0)
        return -1;
    name += *name == 'c' ? 4 : 3;
    if (!*name)
        return 1;
    char *end;
    const long index = *name == ':' && name[1] >= '0' && name[1] <= '9' ? strtol(name + 1, &end, 10) : -1;
    return index >= 0 && index < DEVICE_NUMBERS - 1 && !*end ? (int)index + 1 : -1;
}

gm_status device_check_default(void) {
    const char *name = getenv("GOMLX_DEVICE");
    if (!name || !*name || number_of(name) >= 0)
        return GM_OK;
    return gm_fail(GM_EVALUE, "GOMLX_DEVICE=%.100s: expected cpu, cuda or cuda:N", name);
}

static int find_default(void) {
    const char *name = getenv("GOMLX_DEVICE");
    const int asked = name && *name ? number_of(name) : -1;
    const int found = asked >= 0 ? asked : count() > 0;
    device_use unknown = DEVICES_UNKNOWN; /* a thread may have entered one meanwhile */
    atomic_store_explicit(&devices.fallback, found, memory_order_relaxed);
    atomic_compare_exchange_strong(&devices_in_use, &unknown, found ? DEVICES_USED : DEVICES_UNUSED);
    return found;
}

int device_current(void) {
    if (entered >= 0)
        return entered;
    const int known = atomic_load_explicit(&devices.fallback, memory_order_relaxed);
    return known >= 0 ? known : find_default();
}

int device_enter(int number) {
    const int before = entered;
    entered = number;
    if (number > 0 && atomic_load_explicit(&devices_in_use, memory_order_relaxed) != DEVICES_USED)
        atomic_store(&devices_in_use, DEVICES_USED);
    return before;
}

/* ---- calls ---- */
static opened *of(const device *d) { return &devices.devices[d->number]; }

static gm_status failed(const device *d, gm_device_result result, const char *what) {
    if (result == DEVICE_LOST) {
        opened *o = of(d);
        pthread_mutex_lock(&o->line);
        if (!atomic_load(&o->lost))
            snprintf(o->why, sizeof o->why, "%s", d->calls->why(d->state));
        atomic_store(&o->lost, true);
        pthread_mutex_unlock(&o->line);
        return refuse_lost(d);
    }
    return gm_fail(result == DEVICE_MEMORY ? GM_ENOMEM : GM_EDEVICE, "gpu %d: %s: %s", d->number - 1, what,
                   d->calls->why(d->state));
}

/* One call under the device's lock. */
#define CALL(d, result, call)                                                                                          \
    do {                                                                                                               \
        if (is_lost(d))                                                                                                \
            return refuse_lost(d);                                                                                     \
        pthread_mutex_lock(&of(d)->line);                                                                              \
        (result) = (d)->calls->call;                                                                                   \
        pthread_mutex_unlock(&of(d)->line);                                                                            \
    } while (0)

gm_status device_alloc(int number, size_t bytes, void **out) {
    const device *d = device_get(number);
    gm_device_result result;
    if (!d)
        return error_code();
    CALL(d, result, alloc(d->state, bytes, out));
    return result == DEVICE_OK ? GM_OK : failed(d, result, "memory");
}

void device_free(int number, void *memory) {
    opened *o = &devices.devices[number];
    if (is_lost(&o->d))
        return;
    pthread_mutex_lock(&o->line);
    o->d.calls->free(o->d.state, memory);
    pthread_mutex_unlock(&o->line);
}

gm_status device_copy(int number, void *to, const void *from, size_t bytes) {
    const device *d = device_get(number);
    gm_device_result result;
    if (!d)
        return error_code();
    CALL(d, result, copy(d->state, to, from, bytes));
    return result == DEVICE_OK ? GM_OK : failed(d, result, "a copy");
}

void *device_pinned(const device *d, size_t bytes) {
    void *memory = is_lost(d) ? NULL : d->calls->pinned(bytes);
    if (!memory)
        is_lost(d) ? refuse_lost(d) : gm_fail(GM_ENOMEM, "%zu bytes of pinned memory: there is not so much", bytes);
    return memory;
}

/* In a child of fork it stays: it is the parent's driver that knows it. */
void device_unpin(const device *d, void *memory) {
    if (!atomic_load(&devices.forked))
        d->calls->unpin(memory);
}

gm_status device_launch(const device *d, const gm_device_launch *launches, int64_t n) {
    gm_device_result result;
    CALL(d, result, launch(d->state, launches, n));
    return result == DEVICE_OK ? GM_OK : failed(d, result, "a launch");
}

bool device_can_lend(const device *d) { return d->calls && d->calls->lend; }

gm_status device_lend(const device *d, device_guest fn, const void *args) {
    void *line;
    if (is_lost(d))
        return refuse_lost(d);
    const gm_device_result result = d->calls->lend(d->state, &line);
    if (result != DEVICE_OK)
        return failed(d, result, "a launch");
    fn(args, line);
    d->calls->take_back(d->state);
    return GM_OK;
}

gm_status device_capture(const device *d, const gm_device_launch *launches, int64_t n, gm_device_graph **out) {
    gm_device_result result;
    *out = NULL;
    if (!d->calls->capture)
        return GM_OK;
    CALL(d, result, capture(d->state, launches, n, out));
    return result == DEVICE_OK ? GM_OK : failed(d, result, "a graph");
}

gm_status device_replay(const device *d, gm_device_graph *graph) {
    gm_device_result result;
    CALL(d, result, replay(d->state, graph));
    return result == DEVICE_OK ? GM_OK : failed(d, result, "a graph");
}

void device_drop(const device *d, gm_device_graph *graph) {
    if (is_lost(d))
        return;
    pthread_mutex_lock(&of(d)->line);
    d->calls->drop(d->state, graph);
    pthread_mutex_unlock(&of(d)->line);
}

gm_status device_mark(const device *d, uint64_t *mark) {
    CALL(d, *mark, mark(d->state));
    return *mark ? GM_OK : failed(d, DEVICE_LOST, "a mark");
}

gm_status device_wait(const device *d, uint64_t mark, int64_t deadline_ns) {
    if (is_lost(d))
        return refuse_lost(d);
    const gm_device_result result = d->calls->wait(d->state, mark, deadline_ns ? deadline_ns : INT64_MAX);
    if (result == DEVICE_AGAIN)
        return GM_AGAIN;
    return result == DEVICE_OK ? GM_OK : failed(d, result, "work");
}

static gm_status await(const device *d) {
    uint64_t mark;
    GM_TRY(device_mark(d, &mark));
    return device_wait(d, mark, 0);
}

gm_status device_await(int number) {
    const device *d = device_get(number);
    return d ? await(d) : error_code();
}

bool device_drain(const device *d) {
    gm_error ignored;
    const gm_status status = await(d);
    if (status != GM_OK)
        gm_take_error(&ignored);
    return status == GM_OK;
}

size_t device_total_memory(const device *d) {
    gm_device_facts facts;
    d->calls->facts(d->state, &facts);
    return facts.memory;
}

/* ---- what falls back ---- */
void device_fell_back(const char *op) {
    pthread_mutex_lock(&devices.lock);
    int i = 0;
    while (i < MOST_FALLBACKS && devices.fell_back[i].op && strcmp(devices.fell_back[i].op, op) != 0)
        i++;
    if (i < MOST_FALLBACKS) {
        devices.fell_back[i].op = op;
        devices.fell_back[i].count++;
    }
    pthread_mutex_unlock(&devices.lock);
}

/* ---- the public view ---- */
int gm_device_count(const char **why) {
    const int n = count();
    if (why)
        *why = devices.why;
    return n;
}

gm_status gm_device_open(int number) { return device_get(number) ? GM_OK : error_code(); }
int gm_device_current(void) { return device_current(); }
int gm_device_enter(int number) { return device_enter(number); }

gm_status gm_device_describe(int number, gm_device_info *out) {
    const device *d = device_get(number);
    memset(out, 0, sizeof *out);
    if (!d || !d->calls)
        return d ? GM_OK : error_code();
    gm_device_facts facts;
    d->calls->facts(d->state, &facts);
    snprintf(out->name, sizeof out->name, "%s", facts.name);
    snprintf(out->architecture, sizeof out->architecture, "%s", facts.architecture);
    snprintf(out->driver, sizeof out->driver, "%s", facts.driver);
    snprintf(out->kernels, sizeof out->kernels, "%s", facts.kernels);
    d->calls->libraries(out->libraries, sizeof out->libraries);
    out->memory = facts.memory;
    out->free = facts.free;
    return GM_OK;
}

int gm_device_ordinal(int number) { return number >= 1 && number <= count() ? devices.calls->ordinal(number - 1) : -1; }

gm_status gm_device_settle(int number) {
    const device *d = device_get(number);
    if (!d || !d->calls)
        return d ? GM_OK : error_code();
    const gm_device_result result = d->calls->settle(d->state);
    return result == DEVICE_OK ? GM_OK : failed(d, result, "work");
}

gm_status gm_device_idle(int number) {
    const device *d = device_get(number);
    if (!d || !device_can_lend(d))
        return d ? GM_OK : error_code();
    const gm_device_result result = d->calls->idle(d->state);
    if (result == DEVICE_AGAIN)
        return GM_AGAIN;
    return result == DEVICE_OK ? GM_OK : failed(d, result, "work");
}

const char *gm_device_fallback(int i, int64_t *count_out) {
    pthread_mutex_lock(&devices.lock);
    const char *op = i < MOST_FALLBACKS ? devices.fell_back[i].op : NULL;
    *count_out = op ? devices.fell_back[i].count : 0;
    pthread_mutex_unlock(&devices.lock);
    return op;
}
