/* test_devices.c - the engine on a device that is not the processor: the fake one (tests/cuda/fake_device.c), whose
 * calls are made to fail in turn, as are the engine's allocations. Whatever fails says so, leaves nothing behind, and
 * the next evaluation is as if nothing had happened. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/memory.h"
#include "check.h"
#include "core/device.h"
#include "core/graph.h"
#include "core/mirror.h"
#include "ops/ops.h"

enum { N = 528, FEW = 40 }; /* a large array is an allocation of its own and has a mirror; small ones share both */

/* ---- the fake device's own functions ---- */
static struct {
    void (*fail)(const char *what, long nth);
    long (*count)(const char *what);
} fake;

static bool find_fake(void) {
    const char *path = getenv("GOMLX_DEVICE_LIBRARY");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (!library)
        return false;
    *(void **)&fake.fail = dlsym(library, "fake_fail");
    *(void **)&fake.count = dlsym(library, "fake_count");
    return fake.fail && fake.count;
}

/* ---- graphs ---- */
static gm_array *noise_array(int rows, unsigned seed) {
    gm_scope *s = gm_scope_open();
    gm_array *a = s ? gm_retain(array_new(s, GM_FLOAT32, 2, (int64_t[]){rows, rows})) : NULL;
    gm_scope_close(s);
    for (int64_t i = 0; a && i < a->size; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)array_ptr(a))[i] = (float)(seed >> 8) / (1 << 24) - 0.5f;
    }
    return a;
}

/* Large and small inputs, donated memory, scratch, views, a part of the graph on the processor. NULL after a failure.
 */
static gm_array *build(int number, gm_array *large, gm_array *small) {
    gm_scope *s = gm_scope_open();
    if (!s)
        return NULL;
    const int before = device_enter(number);
    gm_array *whole = gm_multiply(s, large, gm_add(s, large, large));
    gm_array *corner = gm_slice(s, whole, (int64_t[]){0, 8}, (int64_t[]){2 * FEW, 2 * FEW + 8}, (int64_t[]){1, 1});
    gm_array *x = gm_tanh(s, gm_matmul(s, corner, gm_transpose(s, corner, 2, (int[]){1, 0})));
    gm_array *some = gm_slice(s, x, (int64_t[]){0, 0}, (int64_t[]){FEW, 2 * FEW}, (int64_t[]){1, 2});
    gm_array *y = gm_softmax(s, gm_multiply(s, some, small), 1, (int[]){-1});
    device_enter(0);
    gm_array *there = gm_sort(s, y, 1, false);
    device_enter(number);
    gm_array *z = gm_add(s, gm_cumsum(s, there, 0, false, false, true, GM_FLOAT32),
                         gm_take(s, y, gm_argmax(s, y, 1, false, false), 0));
    gm_array *root = gm_retain(gm_sum(s, z, 1, (int[]){0}, false));
    device_enter(before);
    gm_scope_close(s);
    return root;
}

/* The values in memory of the host; false: not evaluated, or not read. */
static bool read_values(gm_array *a, float out[FEW]) {
    gm_array *host = gm_array_host(NULL, a);
    if (host)
        memcpy(out, array_ptr(host), FEW * sizeof *out);
    gm_release(host);
    return host != NULL;
}

static gm_status compute(int number, gm_array *large, gm_array *small, float out[FEW]) {
    gm_array *root = build(number, large, small);
    gm_status status = root ? gm_eval(&root, 1) : error_code();
    if (status == GM_OK && !read_values(root, out))
        status = error_code();
    gm_release(root);
    return status;
}

/* ---- what is computed ---- */
static void a_device_computes_what_the_processor_does(void) {
    gm_array *large = noise_array(N, 1), *small = noise_array(FEW, 2);
    float want[FEW], got[FEW];
    const long before = fake.count("launch");
    CHECK(compute(0, large, small, want) == GM_OK && fake.count("launch") == before);
    for (int number = 1; number <= 2; number++)
        for (int round = 0; round < 3; round++)
            CHECK(compute(number, large, small, got) == GM_OK && memcmp(got, want, sizeof want) == 0);
    CHECK(fake.count("launch") - before > 30);
    gm_release(large);
    gm_release(small);
}

static void values_go_from_device_to_device(void) {
    gm_array *a = noise_array(N, 3), *sums[3], *at = gm_retain(a);
    gm_scope *s = gm_scope_open();
    for (int i = 0; i < 30; i++) {
        const int before = device_enter(i % 3);
        gm_array *next = gm_retain(gm_add(s, at, a));
        device_enter(before);
        gm_release(at);
        at = next;
    }
    for (int number = 0; number < 3; number++) {
        const int before = device_enter(number);
        sums[number] = gm_sum(s, at, -1, NULL, false);
        device_enter(before);
    }
    CHECK(gm_eval(sums, 3) == GM_OK);
    gm_array *host = gm_array_host(s, at);
    const float last = ((float *)array_ptr(a))[N], want = last * 31;
    CHECK(host && !host->buf->device && at->buf->device == 29 % 3);
    CHECK(host && ((float *)array_ptr(host))[N] - want < 1e-4f && want - ((float *)array_ptr(host))[N] < 1e-4f);
    CHECK(gm_array_data(sums[2]) == NULL); /* it is not in memory of the host */
    gm_scope_close(s);
    gm_release(at);
    gm_release(a);
}

/* More bytes than go in one piece, and more small inputs than one piece has room for. */
static void constants_of_all_sizes(void) {
    gm_scope *s = gm_scope_open();
    const int before = device_enter(1);
    gm_array *sum = noise_array(FEW * 3, 5), *one = sum;
    for (int i = 0; i < 60; i++) {
        gm_array *more = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){FEW * 3, FEW * 3}, array_ptr(one));
        sum = gm_add(s, sum, more);
    }
    gm_array *many[300], *parts = sum;
    for (int i = 0; i < 300; i++)
        many[i] = gm_reshape(s, gm_multiply(s, one, one), 1, (int64_t[]){-1});
    parts = gm_sum(s, gm_concatenate(s, many, 300, 0), -1, NULL, false);
    device_enter(before);
    CHECK(gm_eval((gm_array *[]){sum, parts}, 2) == GM_OK);
    gm_array *host = gm_array_host(s, sum);
    CHECK(host && ((float *)array_ptr(host))[7] != 0 && gm_array_host(s, parts));
    for (int64_t i = 0; host && i < 20; i++) {
        const float got = ((float *)array_ptr(host))[i], want = 61 * ((float *)array_ptr(one))[i];
        CHECK(got - want < 1e-3f && want - got < 1e-3f);
    }
    gm_scope_close(s);
    gm_release(one);
}

/* ---- what fails ---- */
typedef struct {
    gm_array *large, *small;
    float want[FEW];
    size_t host, device; /* active bytes, with nothing but the two */
} work;

static work work_new(unsigned seed) {
    work w = {.large = noise_array(N, seed), .small = noise_array(FEW, seed + 1)};
    CHECK(compute(0, w.large, w.small, w.want) == GM_OK);
    for (int round = 0; round < 2; round++) {
        float got[FEW];
        CHECK(compute(1, w.large, w.small, got) == GM_OK && memcmp(got, w.want, sizeof got) == 0);
    }
    w.host = gm_active_memory();
    w.device = gm_device_memory(1).active;
    return w;
}

static void work_free(work *w) {
    gm_release(w->large);
    gm_release(w->small);
}

/* After something failed: the same again is right, and takes no more memory than before. */
static bool goes_on(const work *w) {
    float got[FEW];
    return compute(1, w->large, w->small, got) == GM_OK && memcmp(got, w->want, sizeof got) == 0 &&
           gm_active_memory() == w->host && gm_device_memory(1).active == w->device;
}

typedef struct {
    const char *what;
    gm_status code;
    int least; /* failures of one evaluation */
    bool all;  /* from the n-th on: one that fails alone is made good */
} failing;

static void fail_each(const failing *f) {
    work w = work_new(11);
    int failures = 0, passed = 0;
    for (long nth = 1; nth < 200 && passed < 3; nth++) {
        float got[FEW];
        gm_error e;
        gm_device_clear_cache(1);
        fake.fail(f->what, f->all ? -nth : nth);
        const gm_status status = compute(1, w.large, w.small, got);
        fake.fail(f->what, 0);
        gm_take_error(&e);
        CHECK(status == GM_OK ? memcmp(got, w.want, sizeof got) == 0 : e.code == f->code);
        failures += status != GM_OK;
        passed += status == GM_OK;
        CHECK(goes_on(&w));
    }
    printf("%s: %d failures\n", f->what, failures);
    CHECK(failures >= f->least && passed == 3);
    work_free(&w);
}

static void each_call_fails_in_turn(void) {
    fail_each(&(failing){"alloc", GM_ENOMEM, 0, false});
    fail_each(&(failing){"alloc", GM_ENOMEM, 1, true});
    fail_each(&(failing){"copy", GM_EDEVICE, 4, false});
    fail_each(&(failing){"launch", GM_EDEVICE, 8, false});
    fail_each(&(failing){"wait", GM_EDEVICE, 3, false});
}

/* What is pinned is kept: the first evaluation of all takes it. */
static void pinned_memory_fails_from_cold(void) {
    gm_array *large = noise_array(N, 1), *small = noise_array(FEW, 2);
    float want[FEW], got[FEW];
    int failures = 0;
    CHECK(compute(0, large, small, want) == GM_OK);
    for (long nth = 1; nth < 5; nth++) {
        gm_error e;
        fake.fail("pinned", nth);
        const gm_status status = compute(1, large, small, got);
        fake.fail("pinned", 0);
        CHECK(status == GM_OK || (gm_take_error(&e) == GM_ENOMEM && strstr(e.text, "pinned memory")));
        failures += status != GM_OK;
    }
    CHECK(failures >= 2 && compute(1, large, small, got) == GM_OK && memcmp(got, want, sizeof got) == 0);
    gm_release(large);
    gm_release(small);
}

static void each_allocation_fails_in_turn(void) {
    work w = work_new(21);
    int failures = 0;
    gm_status status = GM_ENOMEM;
    gm_set_cache_limit(0);
    for (long nth = 1; status != GM_OK && nth < 2000; nth++) {
        float got[FEW];
        gm_error e;
        memory_fail_at(nth);
        status = compute(1, w.large, w.small, got);
        memory_fail_at(0);
        gm_take_error(&e);
        CHECK(status == GM_OK ? memcmp(got, w.want, sizeof got) == 0 : e.code == GM_ENOMEM);
        failures += status != GM_OK;
        CHECK(goes_on(&w));
    }
    printf("allocations: %d failures\n", failures);
    CHECK(failures > 30 && status == GM_OK);
    work_free(&w);
}

static void what_is_cancelled_says_so(void) {
    work w = work_new(31);
    gm_scope *s = gm_scope_open();
    const int before = device_enter(1);
    gm_array *x = w.large;
    for (int i = 0; i < 2000; i++)
        x = gm_tanh(s, gm_add(s, x, w.large));
    device_enter(before);
    gm_run *run;
    const long none = fake.count("launch");
    CHECK(gm_eval_begin(&x, 1, -1, &run) == GM_OK && !gm_eval_is_small(run));
    CHECK(gm_eval_step(run, 1) == GM_AGAIN);
    const long launches = fake.count("launch");
    gm_eval_end(run);
    CHECK(fake.count("launch") == launches && launches - none < 1000);
    CHECK(!gm_array_is_evaluated(x));
    CHECK_ERROR(gm_eval(&x, 1), GM_ESTATE, "interrupted");
    gm_scope_close(s);
    CHECK(goes_on(&w));
    work_free(&w);
}

static void what_a_device_does_not_do(void) {
    gm_scope *s = gm_scope_open();
    gm_array *a = noise_array(4, 41);
    const int before = device_enter(1);
    gm_error e;
    CHECK(gm_astype(s, a, GM_FLOAT64) == NULL && gm_take_error(&e) != GM_OK && strstr(e.text, "float64"));
    gm_array *y = gm_add(s, a, a);
    device_enter(before);
    CHECK(device_get(3) == NULL && gm_take_error(&e) != GM_OK && e.code == GM_EVALUE);
    CHECK(device_get(-2) == NULL && gm_take_error(&e) != GM_OK && e.code == GM_EVALUE);
    CHECK(gm_eval(&y, 1) == GM_OK);
    gm_scope_close(s);
    gm_release(a);
}

/* Recorded on the device of its root; an input on another one is copied once, and lives as long as the plan. */
static void a_plan_of_a_device_runs_again(void) {
    gm_scope *s = gm_scope_open();
    gm_array *a = noise_array(4, 41);
    const int before = device_enter(1);
    gm_array *y = gm_add(s, a, a);
    device_enter(before);
    gm_plan *plan = NULL;
    CHECK(run_lock(-1) == GM_OK && plan_capture(&y, 1, &plan) == GM_OK);
    for (int round = 0; round < 3 && plan; round++) {
        gm_status status = GM_AGAIN;
        queue_begin(plan_queue(plan), 1);
        while (status == GM_AGAIN)
            status = queue_go_on(plan_queue(plan), 0);
        CHECK(status == GM_OK);
        queue_end(plan_queue(plan), status != GM_OK);
    }
    run_unlock();
    gm_array *host = gm_array_host(s, y);
    for (int i = 0; i < 4 && host; i++)
        CHECK(((float *)array_ptr(host))[i] == 2 * ((float *)array_ptr(a))[i]);
    CHECK(host != NULL);
    gm_scope_close(s);
    plan_free(plan);
    gm_release(a);
}

/* What begins on the processor runs there first, each time; what the device reads of it crosses then, even where it is
 * read twice, and as a view. Nothing goes the other way. */
static void a_plan_crosses_to_a_device(void) {
    gm_scope *s = gm_scope_open();
    gm_array *a = noise_array(3, 43);
    float *values = array_ptr(a);
    gm_array *twice = gm_add(s, a, a), *four = gm_multiply(s, twice, twice);
    const int before = device_enter(1);
    gm_array *view = gm_reshape(s, four, 2, (int64_t[]){9, 1});
    gm_array *y = gm_add(s, gm_add(s, four, twice), gm_add(s, gm_reshape(s, view, 2, (int64_t[]){3, 3}), a));
    device_enter(before);
    gm_retain(y);
    gm_scope_close(s); /* each temporary dies at its last reader */
    gm_plan *plan = NULL;
    CHECK(run_lock(-1) == GM_OK && plan_capture(&y, 1, &plan) == GM_OK && queue_device(plan_queue(plan)) == 1);
    float constant[9]; /* of the last sum, which the device reads */
    memcpy(constant, values, sizeof constant);
    for (int round = 0; round < 3 && plan; round++) {
        gm_status status = GM_AGAIN;
        float got[9];
        for (int i = 0; i < 9; i++)
            values[i] = (float)(round + i);
        plan_begin(plan, 2, NULL);
        while (status == GM_AGAIN)
            status = round == 1 ? plan_issue(plan, 0) : plan_go_on(plan, 0);
        CHECK(status == GM_OK && plan_go_on(plan, 0) == GM_OK);
        plan_end(plan, false);
        CHECK(array_read(y, got) == GM_OK);
        for (int i = 0; i < 9; i++) {
            const float two = 2 * values[i];
            CHECK(got[i] == (two * two + two) + (two * two + constant[i]));
        }
        plan_begin(plan, 2, NULL);
        plan_give_up(plan);
    }
    run_unlock();
    plan_free(plan);
    gm_release(y);
    gm_release(a);
}

static void a_plan_does_not_come_back(void) {
    gm_scope *s = gm_scope_open();
    gm_array *a = noise_array(3, 44);
    int before = device_enter(1);
    gm_array *there = gm_add(s, a, a);
    device_enter(0);
    gm_array *here = gm_multiply(s, there, a);
    device_enter(1);
    gm_array *y = gm_add(s, here, a);
    device_enter(before);
    gm_plan *plan = NULL;
    CHECK(run_lock(-1) == GM_OK);
    CHECK_ERROR(plan_capture(&y, 1, &plan), GM_EUNSUPPORTED, "binary: it is on the processor, and reads what");
    CHECK(plan == NULL);
    run_unlock();
    gm_scope_close(s);
    gm_release(a);
}

static void mirrors_give_way(void) {
    enum { ARRAYS = 6, SIDE = 1024 };
    gm_array *arrays[ARRAYS];
    const size_t old = gm_device_set_limit(1, (size_t)24 << 20);
    for (unsigned i = 0; i < ARRAYS; i++)
        arrays[i] = noise_array(SIDE, 50 + i);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < ARRAYS; i++) {
            gm_scope *s = gm_scope_open();
            const int before = device_enter(1);
            gm_array *most = gm_max(s, gm_multiply(s, arrays[i], arrays[i]), -1, NULL, false);
            device_enter(before);
            float got[FEW];
            CHECK(gm_eval(&most, 1) == GM_OK);
            gm_array *host = gm_array_host(s, most);
            memcpy(got, array_ptr(host), sizeof *got);
            CHECK(got[0] > 0.2f && got[0] <= 0.25f && gm_device_memory(1).active <= (size_t)24 << 20);
            gm_scope_close(s);
        }
    for (int i = 0; i < ARRAYS; i++)
        gm_release(arrays[i]);
    gm_device_set_limit(1, old);
}

/* ---- threads and processes ---- */
typedef struct {
    int number;
    gm_array *large, *small;
    const float *want;
    int wrong;
} worker;

static void *work_on(void *argument) {
    worker *w = argument;
    for (int i = 0; i < 20; i++) {
        float got[FEW];
        w->wrong += compute(w->number, w->large, w->small, got) != GM_OK || memcmp(got, w->want, sizeof got) != 0;
        if (i % 7 == 0)
            gm_device_clear_cache(w->number);
    }
    return NULL;
}

static void threads_on_all_devices(void) {
    work w = work_new(61);
    worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){i % 3, w.large, w.small, w.want, 0};
        CHECK(pthread_create(&threads[i], NULL, work_on, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].wrong == 0);
    }
    work_free(&w);
}

/* The child has the processor alone; what it frees of the device's memory does no harm. */
static int child(gm_array *there, const work *w) {
    float got[FEW];
    gm_error e;
    if (compute(1, w->large, w->small, got) != GM_ESTATE || gm_take_error(&e) == GM_OK || !strstr(e.text, "forked"))
        return 1;
    if (gm_array_host(NULL, there) || gm_take_error(&e) == GM_OK || e.code != GM_ESTATE)
        return 2;
    gm_release(there);
    gm_device_clear_cache(1);
    return compute(0, w->large, w->small, got) != GM_OK || memcmp(got, w->want, sizeof got) != 0 ? 3 : 0;
}

static void a_child_has_no_devices(void) {
    work w = work_new(71);
    gm_array *there = build(1, w.large, w.small);
    float got[FEW];
    int status = -1;
    CHECK(gm_eval(&there, 1) == GM_OK);
    const pid_t pid = fork();
    if (pid == 0)
        _exit(child(there, &w));
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(read_values(there, got) && memcmp(got, w.want, sizeof got) == 0);
    gm_release(there);
    CHECK(goes_on(&w));
    work_free(&w);
}

static void *look_for_devices(void *count) {
    *(int *)count = gm_device_count(NULL);
    return NULL;
}

/* The first test: nobody has looked. The child looks too, and does not wait for ever for what its parent had begun. */
static void a_fork_while_somebody_looks_for_devices(void) {
    const char *mode = getenv("GOMLX_FAKE_DEVICE");
    pthread_t thread;
    int status = -1, count = 0;
    setenv("GOMLX_FAKE_DEVICE", "slow", 1);
    CHECK(pthread_create(&thread, NULL, look_for_devices, &count) == 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(gm_device_count(NULL) == 2 && device_get(1) ? 0 : 1);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_join(thread, NULL);
    CHECK(count == 2);
    mode ? setenv("GOMLX_FAKE_DEVICE", mode, 1) : unsetenv("GOMLX_FAKE_DEVICE");
}

/* At each call; the fake device's second one is well all the while. The last test: the first is lost then. */
static void a_lost_device_stays_lost(void) {
    work w = work_new(81);
    gm_array *there = build(1, w.large, w.small);
    float got[FEW];
    CHECK(gm_eval(&there, 1) == GM_OK);
    fake.fail("lose", 9);
    for (int i = 0; i < 3; i++)
        CHECK_ERROR(compute(1, w.large, w.small, got), GM_EDEVICE, "lost to this process");
    CHECK(!read_values(there, got));
    CHECK_ERROR(error_code(), GM_EDEVICE, "lost to this process");
    CHECK(compute(0, w.large, w.small, got) == GM_OK && memcmp(got, w.want, sizeof got) == 0);
    CHECK(compute(2, w.large, w.small, got) == GM_OK && memcmp(got, w.want, sizeof got) == 0);
    gm_release(there);
    gm_device_clear_cache(1);
    work_free(&w);
}

int main(void) {
    CHECK(gm_init() == GM_OK && find_fake());
    a_fork_while_somebody_looks_for_devices();
    CHECK(device_get(1) && device_get(2));
    if (check_failed)
        return check_summary();
    pinned_memory_fails_from_cold();
    a_device_computes_what_the_processor_does();
    values_go_from_device_to_device();
    constants_of_all_sizes();
    each_call_fails_in_turn();
    each_allocation_fails_in_turn();
    what_is_cancelled_says_so();
    what_a_device_does_not_do();
    a_plan_of_a_device_runs_again();
    a_plan_crosses_to_a_device();
    a_plan_does_not_come_back();
    mirrors_give_way();
    threads_on_all_devices();
    a_child_has_no_devices();
    a_lost_device_stays_lost();
    return check_summary();
}
