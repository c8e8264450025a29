/* team.c - the persistent team of worker threads.
 *  (1) Each worker has its own mailbox: `posted` counts the runs given to it, `claim` is set until the run is entered
 *      or given up. Worker and join race to clear `claim`. If the worker wins, it takes part; if the join wins, it does
 *      not wait for a worker that is slow to wake. Only threads that take part read the run's description.
 *  (2) Sleeper: set `asleep`, recheck `posted`. Poster: store `posted`, check `asleep`. Both are sequentially
 *      consistent, so no wake-up is lost.
 *  (3) Spinning is bounded by SPIN_NS, and by CROWDED_SPIN_NS when there are more threads than CPUs. */
#include "base/team.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 200000 /* a piece of a long launch, or the time between two passes of a decoder */
#define CROWDED_SPIN_NS 1000
#define WORKER_STACK ((size_t)2 << 20)
#define MAX_CPUS 8192 /* the largest configuration of Linux */
#define SYSFS_CPU "/sys/devices/system/cpu"

typedef struct {
    _Alignas(64) _Atomic uint32_t posted;
    _Atomic uint32_t asleep;
    _Atomic uint32_t claim;
} mailbox;

static struct {
    mailbox boxes[TEAM_MAX_THREADS];    /* [0] belongs to the caller and stays unused */
    _Alignas(64) _Atomic uint32_t busy; /* workers that have not finished the run */
    _Atomic uint32_t joiner_asleep;
    _Alignas(64) team_fn fn; /* the run */
    void *context;
    int n_threads;
    _Atomic long spin_ns;
    _Atomic bool active, lost;
    int n_workers; /* threads made so far in this process */
    int cpus;      /* that this process may run on, when threads were last made */
} team;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* ---- waiting ---- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Spins until *word is not value; false if the time is up first. */
static bool changes_soon(_Atomic uint32_t *word, uint32_t value) {
    int64_t limit = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return true;
            relax();
        }
        int64_t now = now_ns();
        if (limit == 0)
            limit = now + atomic_load_explicit(&team.spin_ns, memory_order_relaxed);
        else if (now >= limit)
            return false;
    }
}

void team_gate_wait(team_gate *gate) {
    uint32_t left;
    while ((left = atomic_load_explicit(&gate->left, memory_order_acquire)) != 0) {
        if (!atomic_load_explicit(&team.active, memory_order_relaxed))
            return;
        if (changes_soon(&gate->left, left))
            continue;
        atomic_fetch_add(&gate->sleepers, 1);
        while ((left = atomic_load(&gate->left)) != 0)
            futex_wait(&gate->left, left);
        atomic_fetch_sub(&gate->sleepers, 1);
    }
}

uint32_t team_gate_done(team_gate *gate, uint32_t pieces) {
    const uint32_t left = atomic_fetch_sub(&gate->left, pieces) - pieces;
    if (left == 0 && atomic_load(&gate->sleepers))
        futex_wake(&gate->left, INT_MAX);
    return left;
}

/* ---- workers and runs ---- */

static void *run_worker(void *argument) {
    int thread = (int)(intptr_t)argument;
    mailbox *box = &team.boxes[thread];
    for (uint32_t seen = 0;; seen++) {
        if (!changes_soon(&box->posted, seen)) {
            atomic_store(&box->asleep, 1);
            while (atomic_load(&box->posted) == seen)
                futex_wait(&box->posted, seen);
            atomic_store(&box->asleep, 0);
        }
        if (!atomic_exchange(&box->claim, 0))
            continue;
        team.fn(team.context, thread, team.n_threads);
        if (atomic_fetch_sub(&team.busy, 1) == 1 && atomic_load(&team.joiner_asleep))
            futex_wake(&team.busy, 1);
    }
    return NULL;
}

/* A forked child has only the thread that forked. */
static void forget_workers(void) {
    for (int i = 0; i < TEAM_MAX_THREADS; i++) {
        atomic_store_explicit(&team.boxes[i].posted, 0, memory_order_relaxed);
        atomic_store_explicit(&team.boxes[i].asleep, 0, memory_order_relaxed);
        atomic_store_explicit(&team.boxes[i].claim, 0, memory_order_relaxed);
    }
    atomic_store(&team.busy, 0);
    atomic_store(&team.joiner_asleep, 0);
    atomic_store(&team.lost, atomic_load(&team.active));
    atomic_store(&team.active, false);
    team.n_workers = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

static int allowed_cpus(unsigned long *mask, size_t mask_bytes) {
    memset(mask, 0, mask_bytes);
    if (sched_getaffinity(0, mask_bytes, (cpu_set_t *)mask) == 0)
        return CPU_COUNT_S(mask_bytes, (cpu_set_t *)mask);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = online < 1 ? 1 : online > MAX_CPUS ? MAX_CPUS : (int)online;
    for (int i = 0; i < n; i++)
        CPU_SET_S((size_t)i, mask_bytes, (cpu_set_t *)mask);
    return n;
}

/* Makes workers until there are `wanted` or no more can be made. They block all signals, which are for the program's
 * own threads. */
static void make_workers(int wanted) {
    unsigned long mask[MAX_CPUS / (8 * sizeof(unsigned long))];
    pthread_attr_t attributes;
    sigset_t all, before;
    team.cpus = allowed_cpus(mask, sizeof mask);
    if (pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team.n_workers < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, run_worker, (void *)(intptr_t)(team.n_workers + 1)) != 0)
            break;
        team.n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

int team_start(int n_threads, team_fn fn, void *context) {
    atomic_store_explicit(&team.lost, false, memory_order_relaxed);
    if (n_threads > TEAM_MAX_THREADS)
        n_threads = TEAM_MAX_THREADS;
    if (n_threads <= 1)
        return 1;
    pthread_once(&fork_once, watch_forks);
    if (team.n_workers < n_threads - 1)
        make_workers(n_threads - 1);
    if (team.n_workers < n_threads - 1)
        n_threads = team.n_workers + 1;
    if (n_threads == 1)
        return 1;
    team.fn = fn;
    team.context = context;
    team.n_threads = n_threads;
    atomic_store_explicit(&team.spin_ns, n_threads > team.cpus ? CROWDED_SPIN_NS : SPIN_NS, memory_order_relaxed);
    atomic_store_explicit(&team.active, true, memory_order_relaxed);
    atomic_store(&team.busy, (uint32_t)(n_threads - 1));
    for (int i = 1; i < n_threads; i++) {
        mailbox *box = &team.boxes[i];
        atomic_store(&box->claim, 1);
        atomic_fetch_add(&box->posted, 1);
        if (atomic_load(&box->asleep))
            futex_wake(&box->posted, 1);
    }
    return n_threads;
}

void team_join(void) {
    uint32_t busy;
    for (int i = 1; i < team.n_threads; i++)
        if (atomic_exchange(&team.boxes[i].claim, 0))
            atomic_fetch_sub(&team.busy, 1);
    while ((busy = atomic_load_explicit(&team.busy, memory_order_acquire)) != 0) {
        if (changes_soon(&team.busy, busy))
            continue;
        atomic_store(&team.joiner_asleep, 1);
        while ((busy = atomic_load(&team.busy)) != 0)
            futex_wait(&team.busy, busy);
        atomic_store(&team.joiner_asleep, 0);
    }
    atomic_store_explicit(&team.active, false, memory_order_relaxed);
}

bool team_lost(void) { return atomic_load_explicit(&team.lost, memory_order_relaxed); }

/* ---- how many threads ---- */

/* Reads the first line of a small system file; false if it cannot be read. */
static bool read_line(const char *path, char *line, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, line, size - 1);
    close(fd);
    if (n <= 0)
        return false;
    line[n] = 0;
    line[strcspn(line, "\n")] = 0;
    return true;
}

/* Marks the CPUs of a list such as "0-3,8". */
static void mark_list(const char *list, unsigned long *mask, size_t mask_bytes) {
    while (*list) {
        char *end;
        long low = strtol(list, &end, 10), high = low;
        if (end == list)
            return;
        if (*end == '-')
            high = strtol(end + 1, &end, 10);
        for (long cpu = low < 0 ? 0 : low; cpu <= high && cpu < MAX_CPUS; cpu++)
            CPU_SET_S((size_t)cpu, mask_bytes, (cpu_set_t *)mask);
        list = *end == ',' ? end + 1 : end;
        if (*end && *end != ',')
            return;
    }
}

/* Counts the cores of the allowed CPUs: hyperthreads of one core count once. 0 if the system does not tell. */
static int physical_cores(const unsigned long *allowed, size_t mask_bytes) {
    unsigned long counted[MAX_CPUS / (8 * sizeof(unsigned long))];
    int cores = 0;
    memset(counted, 0, sizeof counted);
    for (size_t cpu = 0; cpu < MAX_CPUS; cpu++) {
        char path[96], list[1024];
        if (!CPU_ISSET_S(cpu, mask_bytes, (const cpu_set_t *)allowed))
            continue;
        if (CPU_ISSET_S(cpu, sizeof counted, (cpu_set_t *)counted))
            continue;
        snprintf(path, sizeof path, SYSFS_CPU "/cpu%zu/topology/thread_siblings_list", cpu);
        if (!read_line(path, list, sizeof list))
            return 0;
        mark_list(list, counted, sizeof counted);
        CPU_SET_S(cpu, sizeof counted, (cpu_set_t *)counted);
        cores++;
    }
    return cores;
}

/* The quota of one control group, in CPUs; 0 for no limit. Version 2 has both numbers in a line: "150000 100000". */
static double quota_of(const char *folder, int version) {
    char path[PATH_MAX + 32], line[64];
    double quota = 0, period = 0;
    if (version == 2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_line(path, line, sizeof line))
            return 0;
        char *end;
        quota = (double)strtoll(line, &end, 10);
        period = (double)strtoll(end, NULL, 10);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_line(path, line, sizeof line))
            return 0;
        quota = (double)strtoll(line, NULL, 10);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line))
            return 0;
        period = (double)strtoll(line, NULL, 10);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The smallest quota from `group` up to the root of its hierarchy: a limit also applies to the groups below it. */
static double quota_upwards(const char *root, const char *group, int version) {
    char folder[PATH_MAX];
    double least = 0;
    int length = snprintf(folder, sizeof folder, "%s%s", root, group);
    if (length < 0 || (size_t)length >= sizeof folder)
        return 0;
    for (;;) {
        double quota = quota_of(folder, version);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(root) || !slash)
            return least;
        *slash = 0;
    }
}

static bool has_word(const char *list, size_t length, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++) {
        bool starts = i == 0 || list[i - 1] == ',', ends = i + n == length || list[i + n] == ',';
        if (starts && ends && memcmp(list + i, word, n) == 0)
            return true;
    }
    return false;
}

/* The process's CPU quota, 0 for none. Lines of /proc/self/cgroup: "0::/group" (version 2), "1:cpu,cpuacct:/group". */
static double cgroup_quota(void) {
    char text[8192];
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    double least = 0;
    char *state = NULL;
    for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        size_t length = (size_t)(group - ++controllers);
        group++;
        if (strcmp(group, "/") == 0)
            group++;
        double quota = 0;
        if (length == 0) {
            quota = quota_upwards("/sys/fs/cgroup", group, 2);
        } else if (has_word(controllers, length, "cpu")) {
            char root[PATH_MAX];
            snprintf(root, sizeof root, "/sys/fs/cgroup/%.*s", (int)length, controllers);
            quota = quota_upwards(access(root, F_OK) == 0 ? root : "/sys/fs/cgroup/cpu", group, 1);
        }
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    return least;
}

typedef struct {
    int threads, affinity, cores;
    double quota;
} thread_limits;

static thread_limits find_limits(void) {
    unsigned long mask[MAX_CPUS / (8 * sizeof(unsigned long))];
    thread_limits l = {.affinity = allowed_cpus(mask, sizeof mask), .quota = cgroup_quota()};
    l.cores = physical_cores(mask, sizeof mask);
    l.threads = l.affinity;
    if (l.cores > 0 && l.cores < l.threads)
        l.threads = l.cores;
    if (l.quota > 0 && l.quota < l.threads)
        l.threads = (int)l.quota;
    if (l.threads < 1)
        l.threads = 1;
    if (l.threads > TEAM_MAX_THREADS)
        l.threads = TEAM_MAX_THREADS;
    return l;
}

int team_default_threads(void) { return find_limits().threads; }

const char *team_default_reason(void) {
    static _Thread_local char text[160];
    thread_limits l = find_limits();
    char quota[32] = "none", cores[32] = "unknown";
    if (l.quota > 0)
        snprintf(quota, sizeof quota, "%.2f", l.quota);
    if (l.cores > 0)
        snprintf(cores, sizeof cores, "%d", l.cores);
    snprintf(text, sizeof text, "%d = min(affinity %d, cgroup quota %s, physical cores %s)", l.threads, l.affinity,
             quota, cores);
    return text;
}
