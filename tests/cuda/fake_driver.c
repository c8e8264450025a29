/* fake_driver.c - a driver without a card, which GOMLX_CUDA_DRIVER names (tests/support/fake_driver.py builds it):
 * kernels are those that the host's compiler made (emulate.h), in the same library. Memory of the device is one region
 * that faults when the host touches it; it opens while a launch or a copy runs. What lies between two blocks of it, or
 * was freed, is poisoned for AddressSanitizer. No address is given out twice.
 *
 * Launches and copies run at once, or, with GOMLX_FAKE_LATE=1, on a thread of their own and as late as may be: when
 * somebody asks for an event after them, or gives memory back. A wait that is missing shows.
 *
 * fake_fail("alloc", 3) makes the third allocation from now on fail, fake_fail("alloc", 0) none; "pinned", "copy",
 * "launch", "load" (a module or a function), "mark" and "graph" (its launch) likewise, and "lose": the call of any kind
 * at which the card falls off the bus. fake_count gives the calls so far, of "early" the launches that may begin before
 * the one before ends, fake_used the bytes in use, fake_retained how often a card's context was retained.
 * GOMLX_FAKE_VERSION, GOMLX_FAKE_COUNT and GOMLX_FAKE_MAJOR are what the driver says of itself and its cards, whose
 * blocks have as much memory as the least of that major version; GOMLX_FAKE_INIT is what cuInit returns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define POISON(at, bytes) (void)(at)
#define UNPOISON(at, bytes) (void)(at)
#endif

#define EXPORT __attribute__((visibility("default")))
#define HEAP ((size_t)64 << 30)  /* addresses */
#define MEMORY ((size_t)4 << 30) /* bytes of them at a time */
#define GAP ((size_t)256)
#define PAGE ((size_t)2 << 20) /* a huge one */
#define CARDS 8
#define PROCESSORS 2 /* so that few blocks are many */
enum {
    SUCCESS,
    INVALID = 1,
    OUT_OF_MEMORY = 2,
    NO_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL = 700,
    CAPTURING = 900
};

typedef enum { ALLOC, PINNED, COPY, LAUNCH, LOAD, MARK, LOSE, EARLY, GRAPH, KINDS } call_kind;
static const char *const kinds[KINDS] = {"alloc", "pinned", "copy", "launch", "load", "mark", "lose", "early", "graph"};
typedef struct block {
    struct block *next;
    char *at;
    size_t bytes;
} block;

typedef struct { int threads, bytes; } kernel_facts; /* emulate.h: threads of a block at most, bytes of parameters */
typedef struct function {
    struct function *next;
    void (*fn)(const void *);
    const kernel_facts *facts;
    int shared; /* bytes of a block's memory that were asked for */
} function;
/* A launch, or a copy where fn is NULL. */
typedef struct work {
    struct work *next;
    uint64_t number;
    void (*fn)(const void *);
    unsigned grid[3], threads, cluster;
    size_t shared, bytes, size; /* size: of this, with its arguments */
    void *to;
    const void *from;
    _Alignas(16) char args[];
} work;
typedef struct { uint64_t after; } event; /* the number of what was asked for before it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *heap;
static block *blocks;
static size_t top, used; /* bytes of addresses that were given out, and bytes in use */
static long fail_at[KINDS], calls[KINDS];
static bool is_lost;
static function *functions; /* all, for leak checkers */
static struct { int retained; } contexts[CARDS];
static _Thread_local void *current[16];
static _Thread_local int depth;
/* What this thread captures: launches, in their order. */
typedef struct {
    work *first, *last;
    bool broken;
} graph;
static _Thread_local graph *capturing;

void emulated_launch(void (*fn)(const void *), const void *args, const unsigned *grid, unsigned threads, size_t memory,
                     unsigned cluster) __attribute__((weak));

EXPORT void fake_fail(const char *what, long nth) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            fail_at[i] = nth ? calls[i] + nth : 0;
}
EXPORT long fake_count(const char *what) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(what, kinds[i]) == 0)
            return calls[i];
    return -1;
}
EXPORT size_t fake_used(void) { return used; }
EXPORT int fake_retained(int card) { return contexts[card].retained; }

static bool in_context(void) {
    for (int i = 0; i < CARDS && depth > 0; i++)
        if (current[depth - 1] == &contexts[i] && contexts[i].retained > 0)
            return true;
    return false;
}
/* What a call returns before it does anything. */
static int fails(call_kind kind, int error) {
    if (!in_context())
        return NO_CONTEXT;
    if (capturing && kind != LAUNCH) { /* as the driver: the graph is nothing then */
        capturing->broken = true;
        return CAPTURING;
    }
    if (++calls[LOSE] == fail_at[LOSE])
        is_lost = true;
    calls[kind]++;
    return is_lost ? ILLEGAL : calls[kind] == fail_at[kind] ? error : SUCCESS;
}
static int said(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* ---- memory that is open while the device works, and to its thread alone where the processor can do that ---- */
static int key = -1;
static size_t open_heap(void) {
    const size_t opened = (top + PAGE - 1) / PAGE * PAGE;
    if (key >= 0)
        pkey_set(key, 0);
    else if (opened)
        mprotect(heap, opened, PROT_READ | PROT_WRITE);
    return opened;
}
static void close_heap(size_t opened) {
    if (key >= 0)
        pkey_set(key, PKEY_DISABLE_ACCESS);
    else if (opened)
        mprotect(heap, opened, PROT_NONE);
}

/* ---- the line of work ---- */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first, *last;
    uint64_t asked, wanted, done; /* numbers: of the last, of the last that somebody waits for, of the last that ran */
    bool has_thread;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void run_work(work *w) {
    pthread_mutex_lock(&lock);
    const size_t opened = open_heap();
    if (w->fn)
        emulated_launch(w->fn, w->args, w->grid, w->threads, w->shared, w->cluster);
    else
        memmove(w->to, w->from, w->bytes);
    close_heap(opened);
    pthread_mutex_unlock(&lock);
    free(w);
}
static void *run_line(void *unused) {
    pthread_mutex_lock(&line.lock);
    for (;;) {
        work *w = line.first;
        if (!w || w->number > line.wanted) {
            pthread_cond_wait(&line.changed, &line.lock);
            continue;
        }
        line.first = w->next;
        const uint64_t number = w->number;
        pthread_mutex_unlock(&line.lock);
        run_work(w);
        pthread_mutex_lock(&line.lock);
        line.done = number;
        pthread_cond_broadcast(&line.changed);
    }
    return unused;
}
static int add_work(work *w) {
    pthread_t thread;
    if (!said("GOMLX_FAKE_LATE", 0)) {
        run_work(w);
        return SUCCESS;
    }
    pthread_mutex_lock(&line.lock);
    if (!line.has_thread && pthread_create(&thread, NULL, run_line, NULL) == 0) {
        pthread_detach(thread);
        line.has_thread = true;
    }
    w->number = ++line.asked;
    w->next = NULL;
    if (line.first)
        line.last->next = w;
    else
        line.first = w;
    line.last = w;
    pthread_mutex_unlock(&line.lock);
    return SUCCESS;
}
/* Whether all up to a number has run; from now on somebody waits for it. */
static bool has_run(uint64_t number, bool wait) {
    pthread_mutex_lock(&line.lock);
    if (number > line.wanted) {
        line.wanted = number;
        pthread_cond_broadcast(&line.changed);
    }
    while (wait && line.done < number)
        pthread_cond_wait(&line.changed, &line.lock);
    const bool done = line.done >= number;
    pthread_mutex_unlock(&line.lock);
    return done;
}
static void finish_line(void) {
    pthread_mutex_lock(&line.lock);
    const uint64_t all = line.asked;
    pthread_mutex_unlock(&line.lock);
    has_run(all, true);
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    if (heap)
        return SUCCESS;
    heap = mmap(NULL, HEAP + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heap == MAP_FAILED)
        return OUT_OF_MEMORY;
    heap += -(uintptr_t)heap % PAGE;
    madvise(heap, HEAP, MADV_HUGEPAGE); /* they are quickly opened and closed */
    key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key >= 0 && pkey_mprotect(heap, HEAP, PROT_READ | PROT_WRITE, key) != 0)
        key = -1;
    return said("GOMLX_FAKE_INIT", SUCCESS);
}
EXPORT int cuDriverGetVersion(int *version) {
    *version = said("GOMLX_FAKE_VERSION", 13000);
    return SUCCESS;
}
EXPORT int cuDeviceGetCount(int *count) {
    *count = said("GOMLX_FAKE_COUNT", 1);
    return SUCCESS;
}
EXPORT int cuDeviceGet(int *device, int index) {
    *device = index;
    return SUCCESS;
}
EXPORT int cuDeviceGetName(char *name, int bytes, int device) {
    (void)device;
    snprintf(name, (size_t)bytes, "a card that is not there");
    return SUCCESS;
}
static int major(void) { return said("GOMLX_FAKE_MAJOR", 9); }
static size_t block_memory(void) { return (size_t)(major() == 9 || major() == 10 ? 227 : 99) << 10; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? major() : attribute == 97 ? (int)block_memory() : attribute == 16 ? PROCESSORS : 0;
    return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = MEMORY;
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &contexts[device];
    contexts[device].retained++;
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    contexts[device].retained--;
    return SUCCESS;
}
EXPORT int cuCtxSynchronize(void) {
    if (!in_context())
        return NO_CONTEXT;
    finish_line();
    return is_lost ? ILLEGAL : SUCCESS;
}
EXPORT int cuCtxPushCurrent_v2(void *context) {
    if (depth == sizeof current / sizeof *current)
        return INVALID;
    current[depth++] = context;
    return SUCCESS;
}
EXPORT int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0)
        return NO_CONTEXT;
    *context = current[--depth];
    return SUCCESS;
}
EXPORT int cuCtxGetCurrent(void **context) {
    *context = depth > 0 ? current[depth - 1] : NULL;
    return SUCCESS;
}
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (!in_context())
        return NO_CONTEXT;
    *total = MEMORY;
    *free_bytes = MEMORY - used;
    return SUCCESS;
}
EXPORT int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    pthread_mutex_lock(&lock);
    int error = fails(ALLOC, OUT_OF_MEMORY);
    block *b = error ? NULL : malloc(sizeof *b);
    if (!error && (!b || used + bytes > MEMORY || top + bytes + 2 * GAP > HEAP))
        error = OUT_OF_MEMORY;
    if (error) {
        free(b);
    } else {
        const size_t room = (bytes + 2 * GAP - 1) / GAP * GAP, end = (top + room + PAGE - 1) / PAGE * PAGE;
        *b = (block){blocks, heap + top, bytes};
        blocks = b;
        *at = (uint64_t)(uintptr_t)b->at;
        UNPOISON(b->at, bytes);
        POISON(b->at + bytes, end - top - bytes); /* all that will be open */
        top += room;
        used += bytes;
    }
    pthread_mutex_unlock(&lock);
    return error;
}
EXPORT int cuMemFree_v2(uint64_t at) {
    int error = INVALID;
    if (!in_context())
        return NO_CONTEXT;
    finish_line();
    pthread_mutex_lock(&lock);
    for (block **b = &blocks; *b; b = &(*b)->next)
        if ((uint64_t)(uintptr_t)(*b)->at == at) {
            block *gone = *b;
            const size_t first = ((size_t)(gone->at - heap) + PAGE - 1) / PAGE * PAGE;
            const size_t last = ((size_t)(gone->at - heap) + gone->bytes) / PAGE * PAGE;
            POISON(gone->at, gone->bytes);
            if (last > first)
                madvise(heap + first, last - first, MADV_DONTNEED);
            used -= gone->bytes;
            *b = gone->next;
            free(gone);
            error = SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return is_lost ? ILLEGAL : error;
}
EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    const int error = fails(PINNED, OUT_OF_MEMORY);
    (void)flags;
    *memory = error ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *memory ? SUCCESS : error ? error : OUT_OF_MEMORY;
}
EXPORT int cuMemFreeHost(void *memory) {
    if (!in_context())
        return NO_CONTEXT;
    finish_line();
    free(memory);
    return SUCCESS;
}
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    const int error = fails(COPY, INVALID);
    (void)stream;
    work *w = error ? NULL : malloc(sizeof *w);
    if (!w)
        return error ? error : OUT_OF_MEMORY;
    *w = (work){.to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
    return add_work(w);
}
EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = &used;
    return in_context() ? SUCCESS : NO_CONTEXT;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return SUCCESS;
}
EXPORT int cuStreamQuery(void *stream) {
    (void)stream;
    if (!in_context())
        return NO_CONTEXT;
    pthread_mutex_lock(&line.lock);
    const uint64_t all = line.asked;
    pthread_mutex_unlock(&line.lock);
    return is_lost ? ILLEGAL : has_run(all, false) ? SUCCESS : NOT_READY;
}
EXPORT int cuEventCreate(event **out, unsigned flags) {
    static event all[4096]; /* never given back */
    static atomic_int count;
    const int at = atomic_fetch_add(&count, 1);
    (void)flags;
    if (!in_context() || at >= 4096)
        return in_context() ? OUT_OF_MEMORY : NO_CONTEXT;
    *out = &all[at];
    return SUCCESS;
}
EXPORT int cuEventDestroy_v2(event *e) {
    (void)e;
    return SUCCESS;
}
EXPORT int cuEventRecord(event *e, void *stream) {
    const int error = fails(MARK, INVALID);
    (void)stream;
    if (error)
        return error;
    pthread_mutex_lock(&line.lock);
    e->after = line.asked;
    pthread_mutex_unlock(&line.lock);
    return SUCCESS;
}
EXPORT int cuEventQuery(event *e) {
    if (capturing)
        return CAPTURING;
    return is_lost ? ILLEGAL : has_run(e->after, false) ? SUCCESS : NOT_READY;
}
EXPORT int cuEventElapsedTime(float *ms, event *from, event *to) {
    (void)from, (void)to;
    *ms = 1;
    return SUCCESS;
}
/* What another library does in the stream (fake_blaslt.c). */
EXPORT void fake_work(void (*work)(void *), void *of) {
    pthread_mutex_lock(&lock);
    const size_t opened = open_heap();
    work(of);
    close_heap(opened);
    pthread_mutex_unlock(&lock);
}
static void *this_library(void) {
    Dl_info info;
    return dladdr((void *)(uintptr_t)&this_library, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
}
EXPORT int cuModuleLoadData(void **module, const void *image) {
    const int error = fails(LOAD, INVALID);
    (void)image;
    *module = error ? NULL : this_library();
    return error ? error : *module ? SUCCESS : NOT_FOUND;
}
EXPORT int cuModuleGetFunction(function **out, void *module, const char *name) {
    const int error = fails(LOAD, INVALID);
    char facts[128];
    snprintf(facts, sizeof facts, "%s_facts", name);
    void *fn = error ? NULL : dlsym(module, name);
    function *f = fn ? malloc(sizeof *f) : NULL;
    *out = f;
    if (!f)
        return error ? error : NOT_FOUND;
    *f = (function){functions, NULL, dlsym(module, facts), 0};
    memcpy(&f->fn, &fn, sizeof fn);
    functions = f;
    return SUCCESS;
}
EXPORT int cuFuncSetAttribute(function *f, int attribute, int value) {
    if (attribute == 9)
        return value >= 0 && value <= 100 ? SUCCESS : INVALID;
    if (attribute != 8 || value < 0 || (size_t)value > block_memory())
        return INVALID;
    f->shared = value;
    return SUCCESS;
}
typedef struct { unsigned id, unused, value[16]; } attribute;
typedef struct {
    unsigned blocks[3], threads[3], shared;
    void *stream;
    attribute *attributes;
    unsigned count;
} launch_config;
EXPORT int cuLaunchKernelEx(const launch_config *how, function *f, void **params, void **extra) {
    const int error = fails(LAUNCH, INVALID);
    unsigned cluster = 1;
    (void)extra;
    if (error)
        return error;
    if (!how->blocks[0] || !how->blocks[1] || !how->blocks[2] || how->threads[0] > (unsigned)f->facts->threads ||
        how->threads[1] != 1 || how->threads[2] != 1 || how->stream != &used ||
        how->shared > (unsigned)(f->shared > 48 << 10 ? f->shared : 48 << 10))
        return INVALID;
    for (unsigned i = 0; i < how->count; i++) {
        const attribute *a = &how->attributes[i];
        if (a->id == 4 && a->value[0] && a->value[0] <= 8 && a->value[1] == 1 && a->value[2] == 1 &&
            how->blocks[0] % a->value[0] == 0)
            cluster = a->value[0];
        else if (a->id == 6 && a->value[0] == 1)
            calls[EARLY]++;
        else
            return INVALID;
    }
    work *w = malloc(sizeof *w + (size_t)f->facts->bytes);
    if (!w)
        return OUT_OF_MEMORY;
    *w = (work){.fn = f->fn,
                .grid = {how->blocks[0], how->blocks[1], how->blocks[2]},
                .threads = how->threads[0],
                .cluster = cluster,
                .shared = how->shared};
    memcpy(w->args, params[0], (size_t)f->facts->bytes);
    w->size = sizeof *w + (size_t)f->facts->bytes;
    if (!capturing)
        return add_work(w);
    w->next = NULL;
    if (capturing->first)
        capturing->last->next = w;
    else
        capturing->first = w;
    capturing->last = w;
    return SUCCESS;
}
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) {
    if (!in_context() || stream != &used || capturing || mode != 1)
        return in_context() ? INVALID : NO_CONTEXT;
    capturing = calloc(1, sizeof *capturing);
    return capturing ? SUCCESS : OUT_OF_MEMORY;
}
EXPORT int cuGraphDestroy(graph *g) {
    for (work *w = g->first, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    free(g);
    return SUCCESS;
}
EXPORT int cuStreamEndCapture(void *stream, graph **out) {
    graph *g = capturing;
    (void)stream;
    *out = NULL;
    if (!g)
        return INVALID;
    capturing = NULL;
    if (g->broken) {
        cuGraphDestroy(g);
        return CAPTURING + 1;
    }
    *out = g;
    return SUCCESS;
}
/* A copy: what is launched outlives the graph. */
EXPORT int cuGraphInstantiateWithFlags(graph **out, const graph *g, unsigned long long flags) {
    graph *made = calloc(1, sizeof *made);
    work **end = made ? &made->first : NULL;
    (void)flags;
    for (const work *w = g->first; made && w; w = w->next) {
        if (!(*end = malloc(w->size)))
            return OUT_OF_MEMORY;
        memcpy(*end, w, w->size);
        (*end)->next = NULL;
        end = &(*end)->next;
    }
    *out = made;
    return made ? SUCCESS : OUT_OF_MEMORY;
}
EXPORT int cuGraphExecDestroy(graph *g) { return cuGraphDestroy(g); }
EXPORT int cuGraphLaunch(const graph *g, void *stream) {
    const int error = fails(GRAPH, INVALID);
    (void)stream;
    for (const work *w = error ? NULL : g->first; w; w = w->next) {
        work *one = malloc(w->size);
        if (!one)
            return OUT_OF_MEMORY;
        memcpy(one, w, w->size);
        add_work(one);
    }
    return error;
}
EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == ILLEGAL     ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                                   : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}
EXPORT int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
