/* fibers.cpp - the threads of a block as fibers, for emulate.h: each runs until it waits or ends, then the next one. */
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include "emulate.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

thread_local emulated_thread emulated;

namespace {
enum { CLUSTER = 8, THREADS = CLUSTER * 1024, STACK = 256 << 10 };
enum state { FREE, RUNS, AT_BARRIER, AT_WARP_BARRIER, AT_CLUSTER_BARRIER, DONE };
struct fiber {
    void *stack, *at; /* at: its stack pointer while it is not running */
    state is;
    void *sanitizer;
};
fiber fibers[THREADS];
emulated_lane lanes[THREADS / 32][32];
char *memories[CLUSTER]; /* of the cluster's blocks */
int64_t first_block;
int running; /* the fiber, of those of all blocks of the cluster, each a multiple of 32 from the next */
int room_of(int threads) { return (threads + 31) / 32 * 32; }
void *scheduler_at, *scheduler_sanitizer;
const void *scheduler_stack;
size_t scheduler_size;
void (*kernel)(const void *);
const void *kernel_args;

extern "C" __attribute__((naked, noinline)) void fiber_switch(void **, void *) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

void leave(state is) {
    fiber *f = &fibers[running];
    f->is = is;
#if SANITIZED
    __sanitizer_start_switch_fiber(is == DONE ? nullptr : &f->sanitizer, scheduler_stack, scheduler_size);
#endif
    fiber_switch(&f->at, scheduler_at);
#if SANITIZED
    __sanitizer_finish_switch_fiber(f->sanitizer, &scheduler_stack, &scheduler_size);
#endif
}

void begin() {
#if SANITIZED
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    kernel(kernel_args);
    leave(DONE);
    abort();
}

void enter(int which) {
    fiber *f = &fibers[which];
    const int block = which / room_of(emulated.threads);
    running = which;
    emulated.thread = which % room_of(emulated.threads);
    emulated.block[0] = first_block + block;
    emulated.memory = memories[block];
    if (f->is == FREE) {
        if (!f->stack)
            f->stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void **top = reinterpret_cast<void **>(static_cast<char *>(f->stack) + STACK) - 2;
        *--top = nullptr; /* what `begin` would return to */
        *--top = reinterpret_cast<void *>(&begin);
        for (int i = 0; i < 6; i++)
            *--top = nullptr;
        f->at = top;
    }
    f->is = RUNS;
#if SANITIZED
    __sanitizer_start_switch_fiber(&scheduler_sanitizer, f->stack, STACK);
#endif
    fiber_switch(&scheduler_at, f->at);
#if SANITIZED
    __sanitizer_finish_switch_fiber(scheduler_sanitizer, nullptr, nullptr);
#endif
}

/* All threads from `first` on that have not ended are in this state: they go on. */
bool release(int first, int count, state waiting) {
    for (int i = first; i < first + count; i++)
        if (fibers[i].is != waiting && fibers[i].is != DONE)
            return false;
    bool any = false;
    for (int i = first; i < first + count; i++)
        if (fibers[i].is == waiting) {
            fibers[i].is = RUNS;
            any = true;
        }
    return any;
}

/* Each warp of a block as far as it comes. */
bool run_warps(int first, int threads) {
    bool moved = false;
    for (int warp = first; warp < first + threads; warp += 32) {
        const int left = first + threads - warp, count = left < 32 ? left : 32;
        for (int i = warp; i < warp + count; i++)
            if (fibers[i].is == FREE || fibers[i].is == RUNS) {
                enter(i);
                moved = true;
            }
        while (release(warp, count, AT_WARP_BARRIER))
            for (int i = warp; i < warp + count; i++)
                if (fibers[i].is == RUNS)
                    enter(i);
    }
    return moved;
}
void run_cluster(int blocks, int threads) {
    const int all = blocks * room_of(threads);
    for (int i = 0; i < all; i++)
        fibers[i].is = i % room_of(threads) < threads ? FREE : DONE;
    for (;;) {
        bool moved = false, left = false;
        for (int first = 0; first < all; first += room_of(threads)) {
            moved = run_warps(first, threads) || moved;
            moved = release(first, threads, AT_BARRIER) || moved;
        }
        moved = release(0, all, AT_CLUSTER_BARRIER) || moved;
        for (int i = 0; i < all; i++)
            left = left || fibers[i].is != DONE;
        if (!left)
            return;
        if (!moved) {
            fprintf(stderr, "a barrier that not all threads of block %ld meet\n", (long)first_block);
            abort();
        }
    }
}
} // namespace

void emulated_barrier() { leave(AT_BARRIER); }
void emulated_warp_barrier() { leave(AT_WARP_BARRIER); }
void emulated_cluster_barrier() { leave(AT_CLUSTER_BARRIER); }
emulated_lane *emulated_lanes() { return lanes[running / 32]; }
char *emulated_memory(int rank) { return memories[rank]; }

/* One launch, to its end, in clusters of so many blocks. */
extern "C" void emulated_launch(void (*fn)(const void *), const void *args, const unsigned *grid, unsigned threads,
                                size_t memory, unsigned cluster) {
    kernel = fn;
    kernel_args = args;
    emulated.threads = (int)threads;
    emulated.cluster = (int)cluster;
    for (int d = 0; d < 3; d++)
        emulated.blocks[d] = grid[d];
    for (int64_t z = 0; z < grid[2]; z++)
        for (int64_t y = 0; y < grid[1]; y++)
            for (int64_t x = 0; x < grid[0]; x += cluster) {
                for (unsigned b = 0; b < cluster; b++)
                    memories[b] = memory ? static_cast<char *>(aligned_alloc(128, (memory + 127) / 128 * 128))
                                         : nullptr;
                first_block = x;
                emulated.block[1] = y;
                emulated.block[2] = z;
                run_cluster((int)cluster, (int)threads);
                for (unsigned b = 0; b < cluster; b++)
                    free(memories[b]);
            }
}
