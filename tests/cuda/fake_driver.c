/* fake_driver.c - a driver without a card, which GOMLX_CUDA_DRIVER names (tests/support/fake_driver.py builds it):
 * kernels are those that the host's compiler made (emulate.h), in the same library. Memory of the device is one region
 * that faults when the host touches it; it opens while a launch or a copy runs. What lies between two blocks of it, or
 * was freed, is poisoned for AddressSanitizer. No address is given out twice.
 *
 * fake_fail("alloc", 3) makes the third allocation from now on fail, fake_fail("alloc", 0) none; "pinned", "copy",
 * "launch", "load" (a module or a function) and "mark" likewise, and "lose": the call of any kind at which the card
 * falls off the bus. fake_count gives the calls so far, fake_used the bytes in use. GOMLX_FAKE_VERSION,
 * GOMLX_FAKE_COUNT and GOMLX_FAKE_MAJOR are what the driver says of itself and its cards; GOMLX_FAKE_INIT is what
 * cuInit returns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
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
enum { SUCCESS, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, ILLEGAL = 700 };

typedef enum { ALLOC, PINNED, COPY, LAUNCH, LOAD, MARK, LOSE, KINDS } call_kind;
static const char *const kinds[KINDS] = {"alloc", "pinned", "copy", "launch", "load", "mark", "lose"};
typedef struct block {
    struct block *next;
    char *at;
    size_t bytes;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *heap;
static block *blocks;
static size_t top, used; /* bytes of addresses that were given out, and bytes in use */
static long fail_at[KINDS], calls[KINDS];
static bool is_lost;

void emulated_launch(void (*fn)(const void *), const void *args, const unsigned *grid, unsigned threads, size_t memory)
    __attribute__((weak));

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

/* What a call returns before it does anything. */
static int fails(call_kind kind, int error) {
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
    const size_t opened = (top + 4095) / 4096 * 4096;
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

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    if (heap)
        return SUCCESS;
    heap = mmap(NULL, HEAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heap == MAP_FAILED)
        return OUT_OF_MEMORY;
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
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? said("GOMLX_FAKE_MAJOR", 9) : 0;
    return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = MEMORY;
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &heap;
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return SUCCESS;
}
EXPORT int cuCtxSynchronize(void) { return 0; }
EXPORT int cuCtxSetCurrent(void *context) {
    (void)context;
    return SUCCESS;
}
EXPORT int cuCtxGetCurrent(void **context) {
    *context = &heap;
    return SUCCESS;
}
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
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
        const size_t room = (bytes + 2 * GAP - 1) / GAP * GAP;
        *b = (block){blocks, heap + top, bytes};
        blocks = b;
        *at = (uint64_t)(uintptr_t)b->at;
        POISON(heap + top + bytes, room - bytes);
        top += room;
        used += bytes;
    }
    pthread_mutex_unlock(&lock);
    return error;
}
EXPORT int cuMemFree_v2(uint64_t at) {
    int error = INVALID;
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
    free(memory);
    return SUCCESS;
}
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    const int error = fails(COPY, INVALID);
    (void)stream;
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    const size_t opened = open_heap();
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    close_heap(opened);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = &used;
    return SUCCESS;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return SUCCESS;
}
EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = calls;
    return SUCCESS;
}
EXPORT int cuEventDestroy_v2(void *event) {
    (void)event;
    return SUCCESS;
}
EXPORT int cuEventRecord(void *event, void *stream) {
    (void)event, (void)stream;
    return fails(MARK, INVALID);
}
EXPORT int cuEventQuery(void *event) {
    (void)event;
    return is_lost ? ILLEGAL : SUCCESS;
}
EXPORT int cuEventElapsedTime(float *ms, void *from, void *to) {
    (void)from, (void)to;
    *ms = 1;
    return SUCCESS;
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
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    const int error = fails(LOAD, INVALID);
    *function = error ? NULL : dlsym(module, name);
    return error ? error : *function ? SUCCESS : NOT_FOUND;
}
EXPORT int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function, (void)attribute;
    return value > 227 << 10 ? INVALID : SUCCESS;
}
EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                          unsigned threads_z, unsigned shared, void *stream, void **params, void **extra) {
    void (*fn)(const void *);
    const unsigned grid[3] = {x, y, z};
    const int error = fails(LAUNCH, INVALID);
    (void)stream, (void)extra;
    if (error)
        return error;
    if (!x || !y || !z || threads > 1024 || threads_y != 1 || threads_z != 1 || shared > 227 << 10)
        return INVALID;
    memcpy(&fn, &function, sizeof fn);
    pthread_mutex_lock(&lock);
    const size_t opened = open_heap();
    emulated_launch(fn, params[0], grid, threads, shared);
    close_heap(opened);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == ILLEGAL     ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                                   : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}
EXPORT int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
