/* test_device.c - the GPU's calls (kernels/device.h) while the fake driver fails at each of its own in turn: what fails
 * says so, what comes after works, and a device that is lost stays lost. Prints 'N passed, M failed'. */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda/device_state.h"
#include "device_check.h"

#define N 1000

static void (*fake_fail)(const char *what, long nth);
static size_t (*fake_used)(void);

static void check(bool right, const char *what, const char *kind, long nth) {
    if (right)
        passed++;
    else
        failed++, printf("  FAILED %s: %s %ld\n", what, kind, nth);
}

static gm_device_result copy_and_wait(gm_device_state *d, void *to, const void *from, size_t bytes) {
    gm_device_result result = device_cuda.copy(d, to, from, bytes);
    if (result != DEVICE_OK)
        return result;
    const uint64_t mark = device_cuda.mark(d);
    return mark ? device_cuda.wait(d, mark, INT64_MAX) : DEVICE_LOST;
}

static gm_device_state *launching;
static gm_device_result launch_result;
static bool record_launch(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain,
                          int flags) {
    (void)r, (void)size, (void)grain, (void)flags;
    launch_result = device_cuda.launch(launching, &(gm_device_launch){fn, args, n}, 1);
    return launch_result == DEVICE_OK;
}

/* Numbers there, negated there, and back. DEVICE_OK where they are right. */
static gm_device_result negate(gm_device_state *d) {
    static float here[N], back[N];
    const int64_t shape = N, stride = 1;
    void *in = NULL, *out = NULL;
    float *pinned = device_cuda.pinned(N * sizeof *here);
    gm_device_result result = pinned ? device_cuda.alloc(d, sizeof here, &in) : DEVICE_MEMORY;
    if (result == DEVICE_OK)
        result = device_cuda.alloc(d, sizeof here, &out);
    for (int i = 0; i < N && pinned; i++)
        pinned[i] = here[i] = (float)i;
    if (result == DEVICE_OK)
        result = device_cuda.copy(d, in, pinned, sizeof here);
    if (result == DEVICE_OK) {
        gm_recorder recorder = {.contracts = device_cuda.contracts, .launch = record_launch};
        const gm_unary_args a = {out, in, GM_U_negative, GM_T_F32, 1, &shape, &stride};
        launching = d;
        device_cuda.contracts->unary(&recorder, &a, N);
        result = launch_result;
    }
    if (result == DEVICE_OK)
        result = copy_and_wait(d, back, out, sizeof here);
    if (result == DEVICE_OK)
        for (int i = 0; i < N; i++)
            if (back[i] != -here[i])
                result = DEVICE_FAILED;
    device_cuda.free(d, in);
    device_cuda.free(d, out);
    device_cuda.unpin(pinned);
    return result;
}

static gm_device_state *opened; /* devices are never closed */
static gm_device_state *open_device(void) {
    char why[DEVICE_WHY] = "";
    if (device_cuda.open(0, &opened, why) != DEVICE_OK)
        printf("no device: %s\n", why);
    return opened;
}

/* The nth call of a kind fails, of those that one piece of work makes; then the same work is done. */
static void check_failures(gm_device_state *d, const char *kind, gm_device_result expected) {
    const size_t before = fake_used();
    for (long nth = 1; nth <= 3; nth++) {
        fake_fail(kind, nth);
        const gm_device_result result = negate(d);
        check(result == expected || (result == DEVICE_OK && nth > 1), "a failure", kind, nth);
        check(result == DEVICE_OK || expected == DEVICE_MEMORY || strstr(device_cuda.why(d), "CUDA_ERROR"),
              "the driver's word", kind, nth);
        fake_fail(kind, 0);
        check(negate(d) == DEVICE_OK, "what comes after", kind, nth);
        check(fake_used() == before, "memory that is left", kind, nth);
    }
}

/* Memory of the host that was given back is given again to who asks for about as much, once what was asked for before
 * is done; not while it is not. */
static void check_kept(gm_device_state *d) {
    void *there = NULL;
    char *first = device_cuda.pinned(3 * N), *other, *again;
    check(first && device_cuda.alloc(d, N, &there) == DEVICE_OK, "memory", "kept", 0);
    device_cuda.unpin(first);
    check((again = device_cuda.pinned(2 * N)) == first, "the same", "kept", 1);
    check((other = device_cuda.pinned(2 * N)) && other != first, "another", "kept", 2);
    device_cuda.unpin(other);
    check((other = device_cuda.pinned(N * N)) && other != first, "a larger one", "kept", 3);
    device_cuda.unpin(other);
    check(!device_cuda.pinned(SIZE_MAX) && !device_cuda.pinned(SIZE_MAX / 3), "none so large", "kept", 4);
    check(device_cuda.copy(d, there, first, N) == DEVICE_OK, "a copy", "kept", 5);
    device_cuda.unpin(first);
    if (getenv("GOMLX_FAKE_LATE")) { /* the copy has not begun */
        check((again = device_cuda.pinned(2 * N)) != first, "one in use", "kept", 6);
        device_cuda.unpin(again);
    }
    check(negate(d) == DEVICE_OK, "what comes after", "kept", 7);
    device_cuda.free(d, there);
}

/* A wait looks all the time where the end is near, unless the card has more to do: then a late look costs nothing. */
static void check_pauses(void) {
    const int64_t us = 1000, usual = 400 * us;
    check(cuda_pause(0, usual, false) == 0 && cuda_pause(390 * us, usual, false) == 0, "looks", "pause", 0);
    check(cuda_pause(100 * us, usual, false) > 0 && cuda_pause(900 * us, usual, false) > 0, "sleeps", "pause", 0);
    for (int64_t waited = 0; waited < 600 * us; waited += 50 * us)
        check(cuda_pause(waited, usual, true) > 0, "sleeps where more is to be done", "pause", (long)waited);
    check(cuda_pause(30 * us, 100 * us, true) == 0, "looks where steps are short", "pause", 0);
}

/* Steps of one length, each asked for when the one before was seen to end, behind which there is one that runs already:
 * `looks` at a step and the processor's lateness stay small, from whatever was expected at first. */
static void check_steps_are_met(int64_t length, int64_t expected, const char *what) {
    int64_t now = 0, end = 0, usual = expected, late = 0;
    int looks = 0;
    for (int step = 0; step < 300; step++) {
        end += length;
        const int64_t start = now;
        int pauses = 0;
        for (; now < end; pauses++)
            now += cuda_step_pause(now - start, usual) + 3000; /* which it takes to wake */
        usual = cuda_usual_step(now - start, usual, pauses);
        if (step < 100)
            continue;
        looks += pauses;
        if (now - end > late)
            late = now - end;
    }
    check(looks < 200 * 3 / 2, what, "looks", looks);
    check(late < length / 4, what, "late", (long)late);
}
static void check_step_pauses(void) {
    for (int64_t length = 250000; length < 100000000; length *= 3) {
        check_steps_are_met(length, length, "steps");
        check_steps_are_met(length, 3 * length, "steps that became shorter");
        check_steps_are_met(length, length / 3, "steps that became longer");
    }
}

static void check_open(void) {
    char why[DEVICE_WHY] = "";
    gm_device_state *d = NULL;
    check(device_cuda.open(1, &d, why) == DEVICE_FAILED && strstr(why, "no GPU 1"), "a GPU that is not there", "open",
          1);
    check(device_cuda.count(why) == 1, "how many there are", "count", 0);
}

static void check_lost(long nth) {
    gm_device_state *d = open_device();
    gm_device_facts facts;
    void *memory = NULL;
    fake_fail("lose", nth);
    gm_device_result result = DEVICE_OK;
    for (int i = 0; i < 4 && result == DEVICE_OK; i++)
        result = negate(d);
    check(result == DEVICE_LOST || result == DEVICE_MEMORY, "the call at which it is lost", "lose", nth);
    check(negate(d) != DEVICE_OK, "the next one", "lose", nth);
    check(device_cuda.alloc(d, 4, &memory) == DEVICE_LOST && !memory, "memory of what is lost", "lose", nth);
    check(device_cuda.copy(d, NULL, NULL, 4) == DEVICE_LOST, "a copy of what is lost", "lose", nth);
    check(device_cuda.mark(d) == 0 && device_cuda.wait(d, 1, 0) == DEVICE_LOST, "a mark of what is lost", "lose", nth);
    check(strstr(device_cuda.why(d), "CUDA_ERROR_ILLEGAL_ADDRESS"), "why", "lose", nth);
    device_cuda.facts(d, &facts);
}

/* A child has no GPU: it says so, and calls nothing of the driver's. */
static void check_fork(gm_device_state *d) {
    const pid_t child = fork();
    if (child == 0) {
        char why[DEVICE_WHY] = "";
        void *memory = NULL;
        gm_device_state *other = NULL;
        const bool right = device_cuda.alloc(d, 4, &memory) == DEVICE_LOST && strstr(device_cuda.why(d), "forked") &&
                           device_cuda.mark(d) == 0 && !device_cuda.pinned(4) && device_cuda.count(why) == 0 &&
                           strstr(why, "forked") && device_cuda.open(0, &other, why) == DEVICE_FAILED;
        _exit(right ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    check(status == 0, "the child", "fork", 0);
    check(negate(d) == DEVICE_OK, "the parent", "fork", 0);
}

int main(int argc, char **argv) {
    void *driver = dlopen(getenv("GOMLX_CUDA_DRIVER"), RTLD_NOW);
    void *found[2] = {driver ? dlsym(driver, "fake_fail") : NULL, driver ? dlsym(driver, "fake_used") : NULL};
    if (!found[0] || !found[1]) {
        printf("GOMLX_CUDA_DRIVER names no fake driver\n");
        return 2;
    }
    memcpy(&fake_fail, &found[0], sizeof found[0]);
    memcpy(&fake_used, &found[1], sizeof found[1]);
    if (argc > 1) { /* one call of a process: the driver does not come back */
        check_lost(atol(argv[1]));
    } else {
        fake_fail("load", 1); /* the first launch loads its part */
        gm_device_state *d = open_device();
        check(d && negate(d) == DEVICE_FAILED, "a module that does not load", "load", 1);
        check(d && negate(d) == DEVICE_OK, "the same again", "load", 1);
        if (d) {
            check_failures(d, "alloc", DEVICE_MEMORY);
            void *const held = device_cuda.pinned(N * sizeof(float)); /* what was given back before */
            check_failures(d, "pinned", DEVICE_MEMORY);
            device_cuda.unpin(held);
            check_kept(d);
            check_failures(d, "copy", DEVICE_FAILED);
            check_failures(d, "launch", DEVICE_FAILED);
            check_failures(d, "mark", DEVICE_LOST);
            check_open();
            check_pauses();
            check_step_pauses();
            check_fork(d);
        }
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed > 0;
}
