/* device.c - an NVIDIA GPU as kernels/device.h has it.
 *  (1) One stream, in the primary context, which other libraries of the process share.
 *  (2) A mark is an event of a ring: a mark that has left the ring is done when the one in its place is.
 *  (3) After an error that ends the context the device is lost; `why` keeps the driver's word for it. */
#include "device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cuda/blaslt.h"
#include "cuda/device_state.h"

/* What was found when somebody looked first. */
#define MOST_DEVICES 64
static struct {
    pthread_once_t once;
    cuda_module kernels;
    int count, devices[MOST_DEVICES]; /* those that can be used */
    char why[DEVICE_WHY];
} found = {.once = PTHREAD_ONCE_INIT};
static _Atomic(gm_device_state *) opened[MOST_DEVICES]; /* by index */

static bool is_usable(const cuda_driver *driver, int index) {
    int device = 0, major = 0, minor = 0, error = driver->device_get(&device, index);
    if (!error) error = driver->device_attribute(&major, DRIVER_MAJOR, device);
    if (!error) error = driver->device_attribute(&minor, DRIVER_MINOR, device);
    if (!error && major >= 8) return module_fits(&found.kernels, major, minor, found.why, sizeof found.why);
    if (error) snprintf(found.why, sizeof found.why, "NVIDIA's driver says nothing of GPU %d", index);
    else
        snprintf(found.why, sizeof found.why, "this GPU is of architecture sm_%d%d: sm_80 or newer is needed", major,
                 minor);
    return false;
}

/* What costs least comes first: a driver without kernels is not started. */
static void look(void) {
    int all = 0;
    if (!driver_found(found.why, sizeof found.why) || !module_open(&found.kernels, found.why, sizeof found.why)) return;
    const cuda_driver *driver = driver_open(found.why, sizeof found.why);
    if (!driver) return;
    if (driver->device_count(&all) != DRIVER_SUCCESS || all == 0)
        snprintf(found.why, sizeof found.why, "NVIDIA's driver finds no GPU");
    for (int i = 0; i < all && found.count < MOST_DEVICES; i++)
        if (is_usable(driver, i)) found.devices[found.count++] = i;
}

static int cuda_count(char why[DEVICE_WHY]) {
    pthread_once(&found.once, look);
    if (found.count) return driver_open(why, DEVICE_WHY) ? found.count : 0;
    memcpy(why, found.why, sizeof found.why);
    return 0;
}

static int cuda_ordinal(int index) { return found.devices[index]; }

static void close_context(gm_device_state *d) {
    for (int i = 0; i < MARKS && d->events[i]; i++) d->driver->event_destroy(d->events[i]);
    if (d->stream) d->driver->stream_destroy(d->stream);
    if (d->context) d->driver->context_release(d->device);
}

static int make_line_of_work(gm_device_state *d) {
    int error = d->driver->context_push(d->context);
    if (error) return error;
    error = d->driver->stream_create(&d->stream, DRIVER_STREAM_NON_BLOCKING);
    for (int i = 0; i < MARKS && !error; i++) error = d->driver->event_create(&d->events[i], DRIVER_EVENT_NO_TIMING);
    cuda_leave(d);
    return error;
}
static bool open_context(gm_device_state *d, char why[DEVICE_WHY]) {
    const char *early = getenv("GOMLX_CUDA_PDL"), *graphs = getenv("GOMLX_CUDA_GRAPHS");
    char words[256];
    int error = d->driver->device_get(&d->device, found.devices[d->index]);
    if (!error) error = d->driver->device_attribute(&d->major, DRIVER_MAJOR, d->device);
    if (!error) error = d->driver->device_attribute(&d->minor, DRIVER_MINOR, d->device);
    if (!error) error = d->driver->device_attribute(&d->block_memory, DRIVER_BLOCK_MEMORY, d->device);
    if (!error) error = d->driver->device_attribute(&d->processors, DRIVER_PROCESSORS, d->device);
    d->wgmma = d->major == 9 && d->minor == 0 && strstr(d->module.architectures, "sm_90a");
    d->early = d->wgmma && (!early || strcmp(early, "0") != 0);
    d->graphs = !graphs || strcmp(graphs, "0") != 0;
    if (!error) error = d->driver->context_retain(&d->context, d->device);
    if (!error) error = make_line_of_work(d);
    if (!error) return true;
    driver_says(d->driver, error, words, sizeof words);
    snprintf(why, DEVICE_WHY, "GPU %d cannot be used: %s", d->index, words);
    return false;
}

static gm_device_result cuda_open(int index, gm_device_state **out, char why[DEVICE_WHY]) {
    const int count = cuda_count(why);
    if (count == 0) return DEVICE_FAILED;
    if (index < 0 || index >= count) {
        snprintf(why, DEVICE_WHY, "there is no GPU %d: %d found", index, count);
        return DEVICE_FAILED;
    }
    gm_device_state *d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(why, DEVICE_WHY, "there is no memory");
        return DEVICE_MEMORY;
    }
    d->driver = driver_open(why, DEVICE_WHY);
    d->index = index;
    d->module = found.kernels; /* its parts are loaded in each context */
    if (!open_context(d, why)) {
        close_context(d);
        free(d);
        return DEVICE_FAILED;
    }
    atomic_store(&opened[index], d);
    *out = d;
    return DEVICE_OK;
}

static void cuda_facts(const gm_device_state *d, gm_device_facts *out) {
    int version = 0;
    size_t total = 0;
    memset(out, 0, sizeof *out);
    d->driver->device_name(out->name, sizeof out->name, d->device);
    snprintf(out->architecture, sizeof out->architecture, "sm_%d%d", d->major, d->minor);
    d->driver->device_memory(&out->memory, d->device);
    if (d->driver->context_push(d->context) == DRIVER_SUCCESS) {
        d->driver->memory_info(&out->free, &total);
        cuda_leave(d);
    }
    d->driver->version(&version);
    snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    snprintf(out->kernels, sizeof out->kernels, "%.180s (%s)", d->module.path, d->module.architectures);
}

static gm_device_result cuda_alloc(gm_device_state *d, size_t bytes, void **out) {
    driver_pointer at = 0;
    gm_device_result result = cuda_enter(d, "memory");
    if (result == DEVICE_OK) {
        result = cuda_fails(d, d->driver->alloc(&at, bytes ? bytes : 1), "memory");
        cuda_leave(d);
    }
    *out = (void *)(uintptr_t)at;
    return result;
}

static void cuda_free(gm_device_state *d, void *memory) {
    if (!memory || cuda_enter(d, "freeing memory") != DEVICE_OK) return;
    cuda_fails(d, d->driver->free((driver_pointer)(uintptr_t)memory), "freeing memory");
    cuda_leave(d);
}

/* Memory of the host is taken and given back in a context, of whichever device: one that is lost where no other is
 * open. NULL: there is none. */
static gm_device_state *enter_any(void) {
    for (int i = 0; i < 2 * MOST_DEVICES; i++) {
        gm_device_state *d = atomic_load(&opened[i % MOST_DEVICES]);
        if (!d || driver_is_forked() || atomic_load(&d->lost) != (i >= MOST_DEVICES)) continue;
        if (d->driver->context_push(d->context) == DRIVER_SUCCESS) return d;
    }
    return NULL;
}

static void *cuda_pinned(size_t bytes) {
    gm_device_state *d = enter_any();
    if (!d) return NULL;
    void *memory = pinned_take(d, bytes);
    cuda_leave(d);
    return memory;
}

static void cuda_unpin(void *memory) {
    gm_device_state *d = memory ? enter_any() : NULL;
    int open = 0;
    if (!d) return;
    for (int i = 0; i < MOST_DEVICES; i++) open += atomic_load(&opened[i]) != NULL;
    pinned_give(d, memory, open == 1);
    cuda_leave(d);
}

static gm_device_result cuda_copy_bytes(gm_device_state *d, void *to, const void *from, size_t bytes) {
    gm_device_result result = cuda_enter(d, "a copy");
    if (result != DEVICE_OK) return result;
    if (bytes > 0)
        result = cuda_fails(
            d, d->driver->copy((driver_pointer)(uintptr_t)to, (driver_pointer)(uintptr_t)from, bytes, d->stream),
            "a copy");
    cuda_leave(d);
    return result;
}

static uint64_t cuda_mark(gm_device_state *d) {
    if (cuda_enter(d, "a mark") != DEVICE_OK) return 0;
    const uint64_t mark = atomic_load(&d->marks) + 1;
    const int error = d->driver->event_record(d->events[mark % MARKS], d->stream);
    cuda_leave(d);
    if (cuda_fails(d, error, "a mark") != DEVICE_OK) return 0;
    d->of_graph[mark % MARKS] = atomic_exchange(&d->replayed, false);
    atomic_store(&d->marks, mark);
    return mark;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* To sleep beside what is short would cost a third of its time, and what repeats takes as long as it took: so this
 * looks without a pause at the beginning and around the end of what was waited for last. Before that it sleeps, after
 * it for 20 us at a time (which with what it takes to wake are 70), from 1 ms on for 100: what is long need not be met
 * at once. Where more was asked for behind it, the card is busy meanwhile, and nothing is lost by a look that comes
 * late: it sleeps all the time, so that others have the processor. */
#define FIRST_LOOK_NS 60000
#define NEAR_NS 200000
int64_t cuda_pause(int64_t waited, int64_t usual, bool followed) {
    const int64_t left = usual - NEAR_NS - waited;
    if (followed && usual > NEAR_NS) return 20000;
    if (waited < FIRST_LOOK_NS || (left <= 0 && waited < usual + NEAR_NS)) return 0;
    if (left > 0) return left < 100000 ? left : 100000;
    return waited > usual + 1000000 ? 100000 : 20000;
}

/* Steps of decoding are graphs, one behind the other, and of one length for long. To wake and look costs as much of a
 * processor as all else that a step asks of it, so there is one look, about when the step ends. A step that had ended
 * by then is looked at a little earlier the next time, and one that had not at when it did: so the host is never late
 * by more than a part of the step that runs meanwhile. */
int64_t cuda_step_pause(int64_t waited, int64_t usual) { return waited < usual ? usual - waited : usual / 16; }
int64_t cuda_usual_step(int64_t waited, int64_t usual, int pauses) {
    const int64_t least = usual - usual / 4; /* one whose end was missed while the host had something else to do */
    if (waited < least) return least;
    return pauses > 1 ? waited : waited - waited / 32;
}

/* A wait for a step goes on where its deadline cut it: `since` when, after so many pauses. */
static int wait_for_step(gm_device_state *d, uint64_t mark, int64_t deadline_ns) {
    const int64_t usual = atomic_load(&d->step_ns);
    if (atomic_exchange(&d->step_mark, mark) != mark) {
        atomic_store(&d->step_since, now_ns());
        atomic_store(&d->step_pauses, 0);
    }
    for (;;) {
        const int error = d->driver->event_query(d->events[mark % MARKS]);
        const int64_t now = now_ns(), waited = now - atomic_load(&d->step_since);
        if (error != DRIVER_NOT_READY)
            atomic_store(&d->step_ns, cuda_usual_step(waited, usual, atomic_load(&d->step_pauses)));
        if (error != DRIVER_NOT_READY || now >= deadline_ns) return error;
        const int64_t pause = cuda_step_pause(waited, usual), left = deadline_ns - now;
        if (pause < left) atomic_fetch_add(&d->step_pauses, 1);
        nanosleep(&(struct timespec){0, pause < left ? pause : left}, NULL);
    }
}
static int wait_for_event(gm_device_state *d, uint64_t mark, int64_t deadline_ns) {
    const int64_t start = now_ns(), usual = atomic_load(&d->usual_ns);
    const bool step = d->of_graph[mark % MARKS], followed = atomic_load(&d->marks) > mark;
    if (step && followed && atomic_load(&d->step_ns) > NEAR_NS) return wait_for_step(d, mark, deadline_ns);
    for (;;) {
        const int error = d->driver->event_query(d->events[mark % MARKS]);
        const int64_t now = now_ns(), waited = now - start;
        const int64_t pause = cuda_pause(waited, usual, atomic_load(&d->marks) > mark);
        if (error != DRIVER_NOT_READY && waited > NEAR_NS) atomic_store(step ? &d->step_ns : &d->usual_ns, waited);
        if (error != DRIVER_NOT_READY || now >= deadline_ns) return error;
        if (pause) nanosleep(&(struct timespec){0, pause}, NULL);
    }
}

static gm_device_result cuda_wait(gm_device_state *d, uint64_t mark, int64_t deadline_ns) {
    const gm_device_result result = cuda_enter(d, "waiting");
    if (result != DEVICE_OK) return result;
    const int error = wait_for_event(d, mark, deadline_ns);
    cuda_leave(d);
    return error == DRIVER_NOT_READY ? DEVICE_AGAIN : cuda_fails(d, error, "what was running");
}

static gm_device_result cuda_settle(gm_device_state *d) {
    const gm_device_result result = cuda_enter(d, "waiting for the card");
    if (result != DEVICE_OK) return result;
    const int error = d->driver->context_wait();
    cuda_leave(d);
    return cuda_fails(d, error, "what was running");
}

static gm_device_result cuda_lend(gm_device_state *d, void **line) {
    *line = d->stream;
    return cuda_enter(d, "work of another library");
}
static gm_device_result cuda_idle(gm_device_state *d) {
    const gm_device_result result = cuda_enter(d, "waiting");
    if (result != DEVICE_OK) return result;
    const int error = d->driver->stream_query(d->stream);
    cuda_leave(d);
    return error == DRIVER_NOT_READY ? DEVICE_AGAIN : cuda_fails(d, error, "what was running");
}

extern const gm_contracts contracts_cuda;
const gm_device_calls device_cuda = {
    .kind = "cuda",
    .contracts = &contracts_cuda,
    .count = cuda_count,
    .ordinal = cuda_ordinal,
    .open = cuda_open,
    .facts = cuda_facts,
    .libraries = blaslt_says,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pinned = cuda_pinned,
    .unpin = cuda_unpin,
    .copy = cuda_copy_bytes,
    .launch = cuda_issue,
    .capture = cuda_capture,
    .replay = cuda_replay,
    .drop = cuda_drop,
    .mark = cuda_mark,
    .wait = cuda_wait,
    .settle = cuda_settle,
    .lend = cuda_lend,
    .take_back = cuda_leave,
    .idle = cuda_idle,
    .why = cuda_why,
};
