/* buffer.c - the caching allocator of buffers. Invariants in buffer.h. */
#include "core/buffer.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "base/error.h"
#include "base/memory.h"
#include "core/device.h"

#define ALIGNMENT 64
/* From MAPPED_BYTES on a block is a mapping of its own: freed, it is the system's again; from HUGE_BYTES on transparent
 * huge pages are requested. */
#define MAPPED_BYTES ((size_t)1 << 20)
#define HUGE_BYTES ((size_t)4 << 20)
#define N_BINS 64

/* Blocks of a device up to MAPPED_BYTES are parts of slabs, larger ones come in steps: the device's own allocator is
 * slow. */
#define SLAB_BYTES ((size_t)32 << 20)
#define STEP_BYTES ((size_t)2 << 20)
#define DEVICE_ALIGNMENT 256

typedef struct {
    void *memory;
    int device;
    size_t used; /* under the pool's lock, as all of it */
    int64_t blocks;
} slab;

typedef struct {
    pthread_mutex_t lock;
    gm_buffer *bins[N_BINS]; /* free blocks, by rounded-down log2 of their size */
    size_t cached, cache_limit;
    _Atomic size_t active, peak, limit;
    slab *slab; /* of a device: what blocks are cut from now */
    _Atomic int keepers;
    _Atomic size_t kept_peak; /* of what was active since the first of them, */
    _Atomic size_t kept_from; /* and what was then */
} pool;

static pool pools[DEVICE_NUMBERS];
static struct {
    buffer_watch *first; /* under the lock of the processor's pool */
    _Atomic int count;
} watches;
static pthread_mutex_t mirrors = PTHREAD_MUTEX_INITIALIZER;
static gm_buffer *mirrored; /* buffers that have a mirror; under that lock */

/* fork copies the locks in whatever state they are in; nobody may hold them at that moment. */
static void fork_prepare(void) {
    pthread_mutex_lock(&mirrors);
    for (int i = 0; i < DEVICE_NUMBERS; i++)
        pthread_mutex_lock(&pools[i].lock);
}

static void fork_done(void) {
    for (int i = DEVICE_NUMBERS; i-- > 0;)
        pthread_mutex_unlock(&pools[i].lock);
    pthread_mutex_unlock(&mirrors);
}

__attribute__((constructor)) static void make_pools(void) {
    for (int i = 0; i < DEVICE_NUMBERS; i++) {
        pthread_mutex_init(&pools[i].lock, NULL);
        pools[i].cache_limit = i ? SIZE_MAX : (size_t)256 << 20;
        pools[i].limit = SIZE_MAX;
    }
    pthread_atfork(fork_prepare, fork_done, fork_done);
}

static int bin_of(size_t bytes) { return 63 - __builtin_clzll((unsigned long long)bytes | 1); }

/* Blocks come in steps of at most an eighth of their size and 256 KiB, so that a freed one fits a near neighbour. */
static size_t round_size(int number, size_t bytes) {
    if (number && bytes > MAPPED_BYTES)
        return (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    size_t step = number ? DEVICE_ALIGNMENT : ALIGNMENT;
    while (step * 16 < bytes && step < 256 << 10)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static void raise_to(_Atomic size_t *peak, size_t now) {
    size_t old = atomic_load(peak);
    while (now > old && !atomic_compare_exchange_weak(peak, &old, now)) {
    }
}

static void raise_peak(pool *p, size_t now) {
    raise_to(&p->peak, now);
    if (atomic_load(&p->keepers))
        raise_to(&p->kept_peak, now);
    if (p != pools || atomic_load(&watches.count) == 0)
        return;
    pthread_mutex_lock(&p->lock);
    for (buffer_watch *w = watches.first; w; w = w->next)
        w->peak = now > w->peak ? now : w->peak;
    pthread_mutex_unlock(&p->lock);
}

static gm_status account(pool *p, size_t bytes) {
    size_t now = atomic_fetch_add(&p->active, bytes) + bytes;
    size_t limit = atomic_load(&p->limit);
    if (now > limit) {
        atomic_fetch_sub(&p->active, bytes);
        return gm_fail(GM_ENOMEM, "memory limit: %zu bytes more would make %zu, above the limit of %zu", bytes, now,
                       limit);
    }
    raise_peak(p, now);
    return GM_OK;
}

/* The smallest that is large enough and not much larger: what is allocated again in the same order finds its own. */
static gm_buffer *take_cached(pool *p, size_t bytes) {
    gm_buffer **best = NULL, *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (int bin = bin_of(bytes); bin < N_BINS && bin <= bin_of(bytes) + 1 && !best; bin++)
        for (gm_buffer **at = &p->bins[bin]; *at && !(best && (*best)->bytes == bytes); at = &(*at)->next)
            if ((*at)->bytes >= bytes && (*at)->bytes <= bytes + bytes / 4 + 4096 &&
                (!best || (*at)->bytes < (*best)->bytes))
                best = at;
    if (best) {
        found = *best;
        *best = found->next;
        p->cached -= found->bytes;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* ---- blocks of the processor ---- */
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
    if (data && size >= HUGE_BYTES) {
        uintptr_t start = ((uintptr_t)data + 4095) & ~(uintptr_t)4095;
        madvise((void *)start, (uintptr_t)data + size - start, MADV_HUGEPAGE);
    }
    return data;
}

/* ---- blocks of devices ---- */
static slab *slab_new(int number) {
    slab *s = memory_zeroed(sizeof *s);
    if (!s)
        return NULL;
    s->device = number;
    s->blocks = 1; /* the pool's own hold */
    if (device_alloc(number, SLAB_BYTES, &s->memory) == GM_OK)
        return s;
    memory_free(s);
    return NULL;
}

/* Under the pool's lock. */
static void slab_release(slab *s) {
    if (--s->blocks)
        return;
    device_free(s->device, s->memory);
    memory_free(s);
}

/* A part of a slab, which is *from, or memory of its own. NULL with the cause. */
static void *device_block(int number, size_t size, slab **from) {
    pool *p = &pools[number];
    void *data = NULL;
    *from = NULL;
    if (size > MAPPED_BYTES)
        return device_alloc(number, size, &data) == GM_OK ? data : NULL;
    pthread_mutex_lock(&p->lock);
    if (!p->slab || p->slab->used + size > SLAB_BYTES) {
        slab *s = slab_new(number);
        if (s && p->slab)
            slab_release(p->slab);
        p->slab = s ? s : p->slab;
    }
    if (p->slab && p->slab->used + size <= SLAB_BYTES) {
        *from = p->slab;
        data = (char *)p->slab->memory + p->slab->used;
        p->slab->used += size;
        p->slab->blocks++;
    }
    pthread_mutex_unlock(&p->lock);
    return data;
}

static void device_block_free(int number, void *data, slab *from) {
    if (!data)
        return;
    if (!from) {
        device_free(number, data);
        return;
    }
    pthread_mutex_lock(&pools[number].lock);
    slab_release(from);
    pthread_mutex_unlock(&pools[number].lock);
}

/* ---- buffers ---- */
static void destroy(gm_buffer *b) {
    if (b->kind == BUFFER_FOREIGN) {
        if (b->release)
            b->release(b->payload);
    } else if (b->device) {
        device_block_free(b->device, b->data, b->payload);
    } else {
        block_free(b->data, b->bytes);
    }
    memory_free(b);
}

/* Frees cached blocks, the largest bins first, until at most `keep` bytes are left. */
static void trim(pool *p, size_t keep) {
    gm_buffer *dead = NULL;
    pthread_mutex_lock(&p->lock);
    for (int bin = N_BINS - 1; bin >= 0 && p->cached > keep; bin--) {
        while (p->bins[bin] && p->cached > keep) {
            gm_buffer *b = p->bins[bin];
            p->bins[bin] = b->next;
            p->cached -= b->bytes;
            b->next = dead;
            dead = b;
        }
    }
    pthread_mutex_unlock(&p->lock);
    while (dead) {
        gm_buffer *next = dead->next;
        destroy(dead);
        dead = next;
    }
}

/* How much may be cached now: for those who keep memory, what was active once beside what is, and a little more of what
 * they took: blocks that are taken again are not all of the size that is asked for. */
static size_t cache_room(const pool *p) {
    if (!atomic_load(&p->keepers))
        return p->cache_limit;
    const size_t from = atomic_load(&p->kept_from), most = atomic_load(&p->kept_peak);
    const size_t whole = most + (most > from ? most - from : 0) / 32, active = atomic_load(&p->active);
    return whole > active ? whole - active : 0;
}

/* What is cached goes where it is more than that. */
static void trim_to_room(pool *p) {
    pthread_mutex_lock(&p->lock);
    const size_t room = cache_room(p);
    const bool over = p->cached > room;
    pthread_mutex_unlock(&p->lock);
    if (over)
        trim(p, room);
}

void gm_keep_memory(bool keep) {
    if (keep && atomic_fetch_add(&pools->keepers, 1) == 0) {
        const size_t active = atomic_load(&pools->active);
        atomic_store(&pools->kept_from, active);
        atomic_store(&pools->kept_peak, active);
    } else if (!keep && atomic_fetch_sub(&pools->keepers, 1) == 1) {
        trim_to_room(pools);
    }
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

/* ---- mirrors ---- */
gm_buffer *buffer_mirror(gm_buffer *b, int number) {
    if (!atomic_load_explicit(&b->mirror, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&mirrors);
    gm_buffer *mirror = atomic_load(&b->mirror);
    mirror = mirror && mirror->device == number ? buffer_retain(mirror) : NULL;
    pthread_mutex_unlock(&mirrors);
    return mirror;
}

/* Under the lock. The mirror that it had is the caller's. */
static gm_buffer *take_mirror(gm_buffer *b) {
    gm_buffer *mirror = atomic_exchange(&b->mirror, NULL);
    if (!mirror)
        return NULL;
    *(b->previous ? &b->previous->next : &mirrored) = b->next;
    if (b->next)
        b->next->previous = b->previous;
    b->next = b->previous = NULL;
    return mirror;
}

void buffer_forget_mirror(gm_buffer *b) {
    if (!atomic_load(&b->mirror))
        return;
    pthread_mutex_lock(&mirrors);
    gm_buffer *mirror = take_mirror(b);
    pthread_mutex_unlock(&mirrors);
    buffer_release(mirror);
}

/* Whoever pins a block counts first and forgets then. */
void buffer_keep_mirror(gm_buffer *b, gm_buffer *mirror) {
    pthread_mutex_lock(&mirrors);
    gm_buffer *before = take_mirror(b);
    b->next = mirrored;
    if (mirrored)
        mirrored->previous = b;
    mirrored = b;
    atomic_store(&b->mirror, buffer_retain(mirror));
    pthread_mutex_unlock(&mirrors);
    buffer_release(before);
    if (atomic_load(&b->pins))
        buffer_forget_mirror(b);
}

/* Those on a device that nobody else has. Whether there were any. */
static bool drop_mirrors(int number) {
    gm_buffer *dead = NULL;
    pthread_mutex_lock(&mirrors);
    for (gm_buffer *b = mirrored, *next; b; b = next) {
        gm_buffer *mirror = atomic_load(&b->mirror);
        next = b->next;
        if (mirror->device == number && atomic_load(&mirror->refs) == 1 && !atomic_load(&mirror->mirror)) {
            take_mirror(b);
            mirror->next = dead;
            dead = mirror;
        }
    }
    pthread_mutex_unlock(&mirrors);
    const bool any = dead != NULL;
    while (dead) {
        gm_buffer *next = dead->next;
        buffer_release(dead);
        dead = next;
    }
    return any;
}

static size_t cached_bytes(pool *p) {
    pthread_mutex_lock(&p->lock);
    const size_t bytes = p->cached;
    pthread_mutex_unlock(&p->lock);
    return bytes;
}

/* What is missing may be what is cached, or a mirror that nobody else has. Whether anything was given back. */
static bool make_room(int number) {
    const bool dropped = drop_mirrors(number);
    gm_error ignored;
    if (!dropped && !cached_bytes(&pools[number]))
        return false;
    gm_take_error(&ignored);
    trim(&pools[number], 0);
    return true;
}

static gm_buffer *block_on(int number, size_t size) {
    slab *from = NULL;
    void *data = number ? device_block(number, size, &from) : block_new(size);
    if (!data && make_room(number))
        data = number ? device_block(number, size, &from) : block_new(size);
    gm_buffer *b = data ? make(BUFFER_OWNED, data, size) : NULL;
    if (b) {
        b->device = (uint8_t)number;
        b->payload = from;
    } else if (number) {
        device_block_free(number, data, from);
    } else {
        block_free(data, size);
    }
    return b;
}

/* Unless one was set, the limit leaves something of the card to others. */
static gm_status limit_device(int number) {
    if (atomic_load(&pools[number].limit) != SIZE_MAX)
        return GM_OK;
    const device *d = device_get(number);
    if (!d)
        return error_code();
    atomic_store(&pools[number].limit, device_total_memory(d) / 20 * 19);
    return GM_OK;
}

gm_buffer *buffer_new_on(int number, size_t bytes) {
    pool *p = &pools[number];
    if (bytes > SIZE_MAX / 2)
        return gm_fail(GM_ENOMEM, "an array of %zu bytes does not fit the address space", bytes), NULL;
    if (number && limit_device(number) != GM_OK)
        return NULL;
    size_t size = round_size(number, bytes ? bytes : 1);
    gm_error ignored;
    if (account(p, size) != GM_OK &&
        (!drop_mirrors(number) || gm_take_error(&ignored) == GM_OK || account(p, size) != GM_OK))
        return NULL;
    gm_buffer *b = take_cached(p, size);
    if (b) {
        size_t more = b->bytes - size; /* what the block has above what was requested */
        raise_peak(p, atomic_fetch_add(&p->active, more) + more);
        atomic_store(&b->refs, 1);
        b->mark = 0;
        return b;
    }
    if (atomic_load(&p->keepers))
        trim_to_room(p);
    b = block_on(number, size);
    if (!b)
        atomic_fetch_sub(&p->active, size);
    return b;
}

gm_buffer *buffer_new(size_t bytes) { return buffer_new_on(0, bytes); }

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
    if (b) {
        b->device = whole->device;
        buffer_retain(whole);
    }
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
    buffer_forget_mirror(b);
    if (b->kind == BUFFER_FOREIGN) {
        destroy(b);
        return;
    }
    pool *p = &pools[b->device];
    atomic_fetch_sub(&p->active, b->bytes);
    pthread_mutex_lock(&p->lock);
    const size_t limit = cache_room(p);
    const bool keep = b->bytes <= limit;
    if (keep) {
        b->next = p->bins[bin_of(b->bytes)];
        p->bins[bin_of(b->bytes)] = b;
        p->cached += b->bytes;
    }
    const bool over = p->cached > limit;
    pthread_mutex_unlock(&p->lock);
    if (!keep)
        destroy(b);
    else if (over)
        trim(p, limit);
}

void buffer_watch_begin(buffer_watch *w) {
    pthread_mutex_lock(&pools->lock);
    *w = (buffer_watch){.peak = atomic_load(&pools->active), .next = watches.first, .watches = true};
    if (w->next)
        w->next->previous = w;
    watches.first = w;
    atomic_fetch_add(&watches.count, 1);
    pthread_mutex_unlock(&pools->lock);
}

void buffer_watch_end(buffer_watch *w) {
    if (!w->watches)
        return;
    pthread_mutex_lock(&pools->lock);
    *(w->previous ? &w->previous->next : &watches.first) = w->next;
    if (w->next)
        w->next->previous = w->previous;
    w->watches = false;
    atomic_fetch_sub(&watches.count, 1);
    pthread_mutex_unlock(&pools->lock);
}

size_t buffer_watch_peak(const buffer_watch *w) {
    pthread_mutex_lock(&pools->lock);
    const size_t peak = w->peak;
    pthread_mutex_unlock(&pools->lock);
    return peak;
}

/* ---- the public view ---- */
gm_memory gm_device_memory(int number) {
    pool *p = &pools[number];
    pthread_mutex_lock(&p->lock);
    gm_memory m = {.active = atomic_load(&p->active),
                   .peak = atomic_load(&p->peak),
                   .cache = p->cached,
                   .limit = atomic_load(&p->limit),
                   .cache_limit = p->cache_limit};
    pthread_mutex_unlock(&p->lock);
    return m;
}

void gm_device_reset_peak(int number) { atomic_store(&pools[number].peak, 0); }
void gm_device_clear_cache(int number) { trim(&pools[number], 0); }
size_t gm_device_set_limit(int number, size_t bytes) { return atomic_exchange(&pools[number].limit, bytes); }

size_t gm_device_set_cache_limit(int number, size_t bytes) {
    pool *p = &pools[number];
    pthread_mutex_lock(&p->lock);
    size_t old = p->cache_limit;
    p->cache_limit = bytes;
    pthread_mutex_unlock(&p->lock);
    trim(p, bytes);
    return old;
}

size_t gm_active_memory(void) { return atomic_load(&pools->active); }
size_t gm_peak_memory(void) { return atomic_load(&pools->peak); }
size_t gm_cache_memory(void) { return gm_device_memory(0).cache; }
void gm_reset_peak_memory(void) { gm_device_reset_peak(0); }
size_t gm_memory_limit(void) { return atomic_load(&pools->limit); }
size_t gm_set_memory_limit(size_t bytes) { return gm_device_set_limit(0, bytes); }
size_t gm_set_cache_limit(size_t bytes) { return gm_device_set_cache_limit(0, bytes); }
void gm_clear_cache(void) { gm_device_clear_cache(0); }
