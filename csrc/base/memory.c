/* memory.c - the engine's host allocations, and the switch that makes one of them fail. */
#include "base/memory.h"
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"

#ifdef GOMLX_FAULT_INJECTION
static _Atomic long allocations, failing; /* counted since memory_fail_at; the one that fails, 0 for none */

static int refused(void) {
    long n = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&failing, memory_order_relaxed);
}

void memory_fail_at(long n) {
    atomic_store(&failing, n);
    atomic_store(&allocations, 0);
}

long memory_allocations(void) { return atomic_load(&allocations); }
#else
static inline int refused(void) { return 0; }

void memory_fail_at(long n) { (void)n; }

long memory_allocations(void) { return 0; }
#endif

static void *no_memory(size_t bytes) {
    gm_fail(GM_ENOMEM, "out of memory: %zu bytes could not be allocated", bytes);
    return NULL;
}

/* A block of zero bytes is not NULL, which means failure and nothing else. */
void *memory_new(size_t bytes) {
    void *block = refused() ? NULL : malloc(bytes ? bytes : 1);
    return block ? block : no_memory(bytes);
}

void *memory_zeroed(size_t bytes) {
    void *block = refused() ? NULL : calloc(bytes ? bytes : 1, 1);
    return block ? block : no_memory(bytes);
}

void *memory_array(size_t count, size_t item_bytes) {
    size_t bytes;
    if (__builtin_mul_overflow(count, item_bytes, &bytes)) {
        gm_fail(GM_ENOMEM, "out of memory: %zu items of %zu bytes are more than can be addressed", count, item_bytes);
        return NULL;
    }
    return memory_new(bytes);
}

void *memory_resize(void *block, size_t bytes) {
    void *moved = refused() ? NULL : realloc(block, bytes ? bytes : 1);
    return moved ? moved : no_memory(bytes);
}

void memory_free(void *block) { free(block); }

char *memory_copy_text(const char *text, size_t length) {
    char *copy = memory_new(length + 1);
    if (!copy)
        return NULL;
    if (length)
        memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

void *memory_aligned(size_t bytes, size_t alignment) {
    void *block = NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (refused() || posix_memalign(&block, alignment, bytes ? bytes : 1) != 0)
        return no_memory(bytes);
    return block;
}

static size_t page_up(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) & ~(page - 1);
}

#define LARGE_PAGE ((size_t)2 << 20)

void *memory_table(size_t bytes) {
    if (bytes < LARGE_PAGE)
        return memory_zeroed(bytes);
    size_t spare = LARGE_PAGE;
    if (refused() || bytes > SIZE_MAX / 2)
        return no_memory(bytes);
    char *base = mmap(NULL, page_up(bytes) + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return no_memory(bytes);
    size_t ahead = (LARGE_PAGE - (uintptr_t)base % LARGE_PAGE) % LARGE_PAGE;
    if (ahead > 0)
        munmap(base, ahead);
    munmap(base + ahead + page_up(bytes), spare - ahead);
#ifdef MADV_HUGEPAGE
    madvise(base + ahead, page_up(bytes), MADV_HUGEPAGE); /* only faster: a refusal is ignored */
#endif
    return base + ahead;
}

void memory_table_free(void *table, size_t bytes) {
    if (bytes < LARGE_PAGE)
        free(table);
    else if (table)
        munmap(table, page_up(bytes));
}

/* Advises about all pages of the block, so that it stays one mapping, which memory_resize can move without a copy. */
void memory_expect(void *block, size_t bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t page = page_up(1), start = (uintptr_t)block & ~(page - 1);
    if (bytes > 2 * LARGE_PAGE)
        madvise((void *)start, page_up((uintptr_t)block + bytes - start), MADV_HUGEPAGE);
#else
    (void)block, (void)bytes;
#endif
}

void *memory_reserve(size_t bytes) {
    void *base = MAP_FAILED;
    if (!refused() && bytes <= SIZE_MAX / 2)
        base = mmap(NULL, page_up(bytes ? bytes : 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? no_memory(bytes) : base;
}

int memory_commit(void *base, size_t committed, size_t bytes) {
    size_t begin = page_up(committed), end = page_up(bytes);
    if (end <= begin)
        return 0;
    if (refused() || mprotect((char *)base + begin, end - begin, PROT_READ | PROT_WRITE) != 0) {
        no_memory(end - begin);
        return -1;
    }
    return 0;
}

void memory_unreserve(void *base, size_t bytes) {
    if (base)
        munmap(base, page_up(bytes ? bytes : 1));
}
