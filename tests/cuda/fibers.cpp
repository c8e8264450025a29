/* fibers.cpp - the threads of a block as fibers, for emulate.h: each runs until it waits or ends, then the next one of
 * its warp. One that ends leaves its stack to the next that begins, so that kernels without barriers have a single one.
 * Nothing here touches what a kernel does: it is compiled without AddressSanitizer, whose fibers these are with
 * -DSANITIZED=1. */
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include "emulate.h"
#if SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

emulated_thread emulated;
emulated_product emulated_warp;

namespace {
/* APART: from a stack to the next: their beginnings do not all fall into the same lines of caches. */
enum { CLUSTER = 8, WARP = 32, THREADS = CLUSTER * 1024, STACK = 256 << 10, APART = STACK + 65 * 64 };
enum state { AT_WARP_BARRIER, AT_BARRIER, AT_CLUSTER_BARRIER, DONE };
struct warp {
    uint32_t ready, begun, waiting[DONE]; /* lanes */
    unsigned rounds;                      /* barriers of the warp that were met */
};
struct fiber {
    const void *stack; /* its lowest byte */
    size_t size;
    void *at; /* its stack pointer while it is not running */
    void *sanitizer;
};
warp warps[THREADS / WARP]; /* of all blocks of the cluster */
fiber fibers[THREADS], scheduler;
emulated_lane lanes[THREADS / WARP][2][WARP];
const void *stacks[THREADS]; /* that nobody has */
int n_stacks, made_stacks;
char *memories[CLUSTER]; /* of the cluster's blocks */
int64_t first_block;
int running, first_thread; /* the fiber, of those of all blocks of the cluster; the first one of its block */
bool scheduler_left;       /* by the last switch */
void (*kernel)(const void *);
const void *kernel_args;

extern "C" __attribute__((naked, noinline)) void fiber_switch(void **, void *) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

const void *take_stack() {
    static char *all;
    if (n_stacks)
        return stacks[--n_stacks];
    if (!all) {
        all = static_cast<char *>(mmap(nullptr, (size_t)THREADS * APART, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (all == MAP_FAILED) {
            perror("stacks");
            abort();
        }
    }
    return all + (size_t)made_stacks++ * APART;
}

void run_as(int which) {
    running = which;
    emulated.thread = which - first_thread;
}
bool has_begun(int which) { return warps[which / WARP].begun >> which % WARP & 1; }
void begin_on(int which, const void *stack) {
    warps[which / WARP].begun |= 1u << which % WARP;
    fibers[which].stack = stack;
    fibers[which].size = STACK;
}
/* The lane of a warp that is next, or -1. */
int take_ready(int first, warp *w) {
    if (!w->ready)
        return -1;
    const int lane = __builtin_ctz(w->ready);
    w->ready &= w->ready - 1;
    return first + lane;
}
/* The running lane waits or ends: the one of its warp that runs now, or -1. All that have not ended wait at the warp's
 * barrier: they go on. */
int next_after(state is) {
    warp *w = &warps[running / WARP];
    if (is != DONE)
        w->waiting[is] |= 1u << running % WARP;
    if (!w->ready && !w->waiting[AT_BARRIER] && !w->waiting[AT_CLUSTER_BARRIER]) {
        w->ready = w->waiting[AT_WARP_BARRIER];
        w->waiting[AT_WARP_BARRIER] = 0;
        w->rounds++;
    }
    return take_ready(running / WARP * WARP, w);
}

/* On the stack that was switched to. */
void arrive(void *sanitizer) {
#if SANITIZED
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(sanitizer, &stack, &size);
    if (scheduler_left)
        scheduler.stack = stack, scheduler.size = size;
#else
    (void)sanitizer;
#endif
}
void begin();
/* From one to a lane, or to the scheduler where that is -1. */
void go(fiber *from, int which, bool ends) {
    fiber *to = which < 0 ? &scheduler : &fibers[which];
    if (which >= 0) {
        run_as(which);
        if (!has_begun(which)) {
            begin_on(which, take_stack());
            void **top = reinterpret_cast<void **>(static_cast<char *>(const_cast<void *>(to->stack)) + STACK) - 2;
            *--top = nullptr; /* what `begin` would return to */
            *--top = reinterpret_cast<void *>(&begin);
            for (int i = 0; i < 6; i++)
                *--top = nullptr;
            to->at = top;
        }
    }
    scheduler_left = from == &scheduler;
#if SANITIZED
    __sanitizer_start_switch_fiber(ends ? nullptr : &from->sanitizer, to->stack, to->size);
#else
    (void)ends;
#endif
    fiber_switch(&from->at, to->at);
    arrive(from->sanitizer);
}
void begin() {
    arrive(nullptr);
    for (;;) {
        kernel(kernel_args);
        fiber *own = &fibers[running];
        const int next = next_after(DONE);
        if (next < 0 || has_begun(next)) {
            stacks[n_stacks++] = own->stack;
            go(own, next, true);
            abort();
        }
        begin_on(next, own->stack);
        run_as(next);
    }
}
void wait(state where) {
    fiber *own = &fibers[running];
    const int next = next_after(where);
    if (next < 0 || own != &fibers[next]) /* else it is the only one of its warp */
        go(own, next, false);
}

/* All threads of some warps that have not ended are at this barrier: they go on. */
bool release(int first, int count, state where) {
    bool any = false;
    for (int i = first; i < first + count; i++) {
        for (int k = 0; k < DONE; k++)
            if (k != where && warps[i].waiting[k])
                return false;
        if (warps[i].ready)
            return false;
        any = any || warps[i].waiting[where];
    }
    for (int i = first; i < first + count; i++) {
        warps[i].ready = warps[i].waiting[where];
        warps[i].waiting[where] = 0;
    }
    return any;
}
/* Each warp of a block as far as it comes. */
bool run_warps(int first, int count) {
    bool moved = false;
    for (int i = first; i < first + count; i++) {
        const int lane = take_ready(i * WARP, &warps[i]);
        if (lane < 0)
            continue;
        go(&scheduler, lane, false);
        moved = true;
    }
    return moved;
}
void run_cluster(int blocks, int threads) {
    const int each = (threads + WARP - 1) / WARP, all = blocks * each; /* warps */
    for (int i = 0; i < all; i++) {
        const int left = threads - i % each * WARP;
        warps[i] = {left < WARP ? (1u << left) - 1 : ~0u, 0, {0, 0, 0}, 0};
    }
    for (;;) {
        bool moved = false, left = false;
        for (int b = 0; b < blocks; b++) {
            first_thread = b * each * WARP;
            emulated.block[0] = first_block + b;
            emulated.memory = memories[b];
            moved = run_warps(b * each, each) || moved;
            moved = release(b * each, each, AT_BARRIER) || moved;
        }
        moved = release(0, all, AT_CLUSTER_BARRIER) || moved;
        for (int i = 0; i < all; i++)
            left = left || warps[i].ready || warps[i].waiting[0] || warps[i].waiting[1] || warps[i].waiting[2];
        if (!left)
            return;
        if (!moved) {
            fprintf(stderr, "a barrier that not all threads of block %ld meet\n", (long)first_block);
            abort();
        }
    }
}
} // namespace

void emulated_barrier() { wait(AT_BARRIER); }
void emulated_warp_barrier() { wait(AT_WARP_BARRIER); }
void emulated_cluster_barrier() { wait(AT_CLUSTER_BARRIER); }
bool emulated_is_last() { return !warps[running / WARP].ready; }
emulated_lane *emulated_lanes() { return lanes[running / WARP][warps[running / WARP].rounds % 2]; }
char *emulated_memory(int rank) { return memories[rank]; }
void emulated_multiply(int columns) {
    for (int row = 0; row < 16; row++) {
        float *__restrict out = emulated_warp.out[row];
        memset(out, 0, (size_t)columns * sizeof *out);
        for (int k = 0; k < 16; k++) {
            const float x = emulated_warp.a[row][k], *__restrict b = emulated_warp.b[k];
            for (int c = 0; c < columns; c++)
                out[c] += x * b[c];
        }
    }
}

/* One launch, to its end, in clusters of so many blocks. The memory of a block has no values yet. */
extern "C" void emulated_launch(void (*fn)(const void *), const void *args, const unsigned *grid, unsigned threads,
                                size_t memory, unsigned cluster) {
    kernel = fn;
    kernel_args = args;
    emulated.threads = (int)threads;
    emulated.cluster = (int)cluster;
    for (int d = 0; d < 3; d++)
        emulated.blocks[d] = grid[d];
    for (unsigned b = 0; b < cluster; b++)
        memories[b] = memory ? static_cast<char *>(aligned_alloc(128, (memory + 127) / 128 * 128)) : nullptr;
    for (int64_t z = 0; z < grid[2]; z++)
        for (int64_t y = 0; y < grid[1]; y++)
            for (int64_t x = 0; x < grid[0]; x += cluster) {
                for (unsigned b = 0; b < cluster && memory; b++)
                    memset(memories[b], 0xbe, memory);
                first_block = x;
                emulated.block[1] = y;
                emulated.block[2] = z;
                run_cluster((int)cluster, (int)threads);
            }
    for (unsigned b = 0; b < cluster; b++)
        free(memories[b]);
}
