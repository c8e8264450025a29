/* buffer.c - the caching allocator of buffers. Invariants in buffer.h. */
#include "core/buffer.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "base/error.h"
#include "base/memory.h"

#define ALIGNMENT 64
/* From MAPPED_BYTES on a block is a mapping of its own: freed, it is the system's again; from HUGE_BYTES on transparent
 * huge pages are requested. */
#define MAPPED_BYTES ((size_t)1 << 20)
#define HUGE_BYTES ((size_t)4 << 20)
#define N_BINS 64

static struct {
    pthread_mutex_t lock;
    gm_buffer *bins[N_BINS]; /* free blocks, by rounded-down log2 of their size */
    size_t cached, cache_limit;
    _Atomic size_t active, peak, limit;
    _Atomic int keepers;
    _Atomic size_t kept_peak; /* of what was active since the first of them */
    buffer_watch *watches;    /* under the lock */
    _Atomic int n_watches;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .cache_limit = (size_t)256 << 20, .limit = SIZE_MAX};

/* fork copies the lock in whatever state it is in; nobody may hold it at that moment. */
static void fork_prepare(void) { pthread_mutex_lock(&pool.lock); }
static void fork_done(void) { pthread_mutex_unlock(&pool.lock); }
__attribute__((constructor)) static void watch_fork(void) { pthread_atfork(fork_prepare, fork_done, fork_done); }

static int bin_of(size_t bytes) { return 63 - __builtin_clzll((unsigned long long)bytes | 1); }

/* Blocks come in steps of at most an eighth of their size and 256 KiB, so that a freed one fits a near neighbour. */
static size_t round_size(size_t bytes) {
    size_t step = ALIGNMENT;
    while (step * 16 < bytes && step < 256 << 10)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static void raise_to(_Atomic size_t *peak, size_t now) {
    size_t old = atomic_load(peak);
    while (now > old && !atomic_compare_exchange_weak(peak, &old, now)) {
    }
}

static void raise_peak(size_t now) {
    raise_to(&pool.peak, now);
    if (atomic_load(&pool.keepers))
        raise_to(&pool.kept_peak, now);
    if (atomic_load(&pool.n_watches) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    for (buffer_watch *w = pool.watches; w; w = w->next)
        w->peak = now > w->peak ? now : w->peak;
    pthread_mutex_unlock(&pool.lock);
}

static gm_status account(size_t bytes) {
    size_t now = atomic_fetch_add(&pool.active, bytes) + bytes;
    size_t limit = atomic_load(&pool.limit);
    if (now > limit) {
        atomic_fetch_sub(&pool.active, bytes);
        return gm_fail(GM_ENOMEM, "memory limit: %zu bytes more would make %zu, above the limit of %zu", bytes, now,
                       limit);
    }
    raise_peak(now);
    return GM_OK;
}

/* The smallest that is large enough and not much larger: what is allocated again in the same order finds its own. */
static gm_buffer *take_cached(size_t bytes) {
    gm_buffer **best = NULL, *found = NULL;
    pthread_mutex_lock(&pool.lock);
    for (int bin = bin_of(bytes); bin < N_BINS && bin <= bin_of(bytes) + 1 && !best; bin++)
        for (gm_buffer **at = &pool.bins[bin]; *at && !(best && (*best)->bytes == bytes); at = &(*at)->next)
            if ((*at)->bytes >= bytes && (*at)->bytes <= bytes + bytes / 4 + 4096 &&
                (!best || (*at)->bytes < (*best)->bytes))
                best = at;
    if (best) {
        found = *best;
        *best = found->next;
        pool.cached -= found->bytes;
    }
    pthread_mutex_unlock(&pool.lock);
    return found;
}

static void block_free(void *data, size_t size) {
    if (size < MAPPED_BYTES)
        memory_free(data);
    else
        memory_unreserve(data, size);
}

static void *block_new(size_t size) {
    if (size < MAPPED_BYTES)
        return memory_aligned(size, ALIGNMENT);
    void *data = memory_reserve(size);
    if (data && memory_commit(data, 0, size) != 0) {
        memory_unreserve(data, size);
        return NULL;
    }
    return data;
}

static void destroy(gm_buffer *b) {
    if (b->kind == BUFFER_OWNED)
        block_free(b->data, b->bytes);
    else if (b->release)
        b->release(b->payload);
    memory_free(b);
}

/* Frees cached blocks, the largest bins first, until at most `keep` bytes are left. */
static void trim(size_t keep) {
    gm_buffer *dead = NULL;
    pthread_mutex_lock(&pool.lock);
    for (int bin = N_BINS - 1; bin >= 0 && pool.cached > keep; bin--) {
        while (pool.bins[bin] && pool.cached > keep) {
            gm_buffer *b = pool.bins[bin];
            pool.bins[bin] = b->next;
            pool.cached -= b->bytes;
            b->next = dead;
            dead = b;
        }
    }
    pthread_mutex_unlock(&pool.lock);
    while (dead) {
        gm_buffer *next = dead->next;
        destroy(dead);
        dead = next;
    }
}

/* How much may be cached now: for those who keep memory, what was active once beside what is, and an eighth of it more:
 * blocks that are taken again are not all of the size that is asked for. */
static size_t cache_room(void) {
    const size_t active = atomic_load(&pool.active),
                 most = atomic_load(&pool.keepers) ? atomic_load(&pool.kept_peak) : 0;
    const size_t whole = most + most / 8, kept = whole > active ? whole - active : 0;
    return kept > pool.cache_limit ? kept : pool.cache_limit;
}

/* What is cached goes where it is more than that. */
static void trim_to_room(void) {
    pthread_mutex_lock(&pool.lock);
    const size_t room = cache_room();
    const bool over = pool.cached > room;
    pthread_mutex_unlock(&pool.lock);
    if (over)
        trim(room);
}

void gm_keep_memory(bool keep) {
    if (keep && atomic_fetch_add(&pool.keepers, 1) == 0)
        atomic_store(&pool.kept_peak, atomic_load(&pool.active));
    else if (!keep && atomic_fetch_sub(&pool.keepers, 1) == 1)
        trim_to_room();
}

static gm_buffer *make(buffer_kind kind, void *data, size_t bytes) {
    gm_buffer *b = memory_zeroed(sizeof *b);
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    b->kind = kind;
    b->data = data;
    b->bytes = bytes;
    return b;
}

gm_buffer *buffer_new(size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return gm_fail(GM_ENOMEM, "an array of %zu bytes does not fit the address space", bytes), NULL;
    size_t size = round_size(bytes ? bytes : 1);
    if (account(size) != GM_OK)
        return NULL;
    gm_buffer *b = take_cached(size);
    if (b) {
        size_t more = b->bytes - size; /* what the block has above what was requested */
        raise_peak(atomic_fetch_add(&pool.active, more) + more);
        atomic_store(&b->refs, 1);
        b->mark = 0;
        return b;
    }
    if (atomic_load(&pool.keepers))
        trim_to_room();
    void *data = block_new(size);
    if (!data && gm_cache_memory()) { /* what is cached may be what is missing */
        gm_error ignored;
        gm_take_error(&ignored);
        trim(0);
        data = block_new(size);
    }
    if (data && size >= HUGE_BYTES) {
        uintptr_t start = ((uintptr_t)data + 4095) & ~(uintptr_t)4095;
        madvise((void *)start, (uintptr_t)data + size - start, MADV_HUGEPAGE);
    }
    b = data ? make(BUFFER_OWNED, data, size) : NULL;
    if (!b) {
        block_free(data, size);
        atomic_fetch_sub(&pool.active, size);
    }
    return b;
}

gm_buffer *buffer_foreign(void *data, size_t bytes, void (*release)(void *), void *payload) {
    gm_buffer *b = make(BUFFER_FOREIGN, data, bytes);
    if (b) {
        b->release = release;
        b->payload = payload;
    }
    return b;
}

static void release_whole(void *whole) { buffer_release(whole); }

gm_buffer *buffer_part(gm_buffer *whole, size_t offset, size_t bytes) {
    gm_buffer *b = buffer_foreign((char *)whole->data + offset, bytes, release_whole, whole);
    if (b)
        buffer_retain(whole);
    return b;
}

gm_buffer *buffer_retain(gm_buffer *b) {
    if (b)
        atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void buffer_release(gm_buffer *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (b->kind == BUFFER_FOREIGN) {
        destroy(b);
        return;
    }
    atomic_fetch_sub(&pool.active, b->bytes);
    pthread_mutex_lock(&pool.lock);
    const size_t limit = cache_room();
    const bool keep = b->bytes <= limit;
    if (keep) {
        b->next = pool.bins[bin_of(b->bytes)];
        pool.bins[bin_of(b->bytes)] = b;
        pool.cached += b->bytes;
    }
    const bool over = pool.cached > limit;
    pthread_mutex_unlock(&pool.lock);
    if (!keep)
        destroy(b);
    else if (over)
        trim(limit);
}

void buffer_watch_begin(buffer_watch *w) {
    pthread_mutex_lock(&pool.lock);
    *w = (buffer_watch){.peak = atomic_load(&pool.active), .next = pool.watches, .watches = true};
    if (w->next)
        w->next->previous = w;
    pool.watches = w;
    atomic_fetch_add(&pool.n_watches, 1);
    pthread_mutex_unlock(&pool.lock);
}

void buffer_watch_end(buffer_watch *w) {
    if (!w->watches)
        return;
    pthread_mutex_lock(&pool.lock);
    *(w->previous ? &w->previous->next : &pool.watches) = w->next;
    if (w->next)
        w->next->previous = w->previous;
    w->watches = false;
    atomic_fetch_sub(&pool.n_watches, 1);
    pthread_mutex_unlock(&pool.lock);
}

size_t buffer_watch_peak(const buffer_watch *w) {
    pthread_mutex_lock(&pool.lock);
    const size_t peak = w->peak;
    pthread_mutex_unlock(&pool.lock);
    return peak;
}

size_t gm_active_memory(void) { return atomic_load(&pool.active); }
size_t gm_peak_memory(void) { return atomic_load(&pool.peak); }
void gm_reset_peak_memory(void) { atomic_store(&pool.peak, 0); }
size_t gm_memory_limit(void) { return atomic_load(&pool.limit); }
size_t gm_set_memory_limit(size_t bytes) { return atomic_exchange(&pool.limit, bytes); }
void gm_clear_cache(void) { trim(0); }

size_t gm_cache_memory(void) {
    pthread_mutex_lock(&pool.lock);
    size_t bytes = pool.cached;
    pthread_mutex_unlock(&pool.lock);
    return bytes;
}

size_t gm_set_cache_limit(size_t bytes) {
    pthread_mutex_lock(&pool.lock);
    size_t old = pool.cache_limit;
    pool.cache_limit = bytes;
    pthread_mutex_unlock(&pool.lock);
    trim(bytes);
    return old;
}
