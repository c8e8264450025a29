/* bandwidth.c - how fast memory is read: argv[1] threads, argv[2] MiB in all; prints the median of nine passes in GB/s.
 * Each thread reads one contiguous share, as decoding does. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t vector __attribute__((vector_size(64)));

enum { PASSES = 9, MAX_THREADS = 256 };

static vector *memory;
static size_t share; /* vectors of each thread */
static pthread_barrier_t barrier;
static double seconds[PASSES];
static uint64_t sums[MAX_THREADS]; /* keeps the reads from being optimised away */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_share(void *argument) {
    size_t thread = (size_t)(uintptr_t)argument;
    vector a = {0}, b = {0}, c = {0}, d = {0};
    for (int pass = 0; pass < PASSES; pass++) {
        const vector *p = memory + thread * share;
        pthread_barrier_wait(&barrier);
        double start = now();
        for (size_t i = 0; i < share; i += 4) {
            a ^= p[i];
            b ^= p[i + 1];
            c ^= p[i + 2];
            d ^= p[i + 3];
        }
        pthread_barrier_wait(&barrier);
        if (thread == 0)
            seconds[pass] = now() - start;
    }
    a ^= b ^ c ^ d;
    sums[thread] = a[0];
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1, mebibytes = argc > 2 ? atoi(argv[2]) : 512;
    pthread_t threads[MAX_THREADS];
    if (n < 1 || n > MAX_THREADS || mebibytes < 1)
        return 2;
    share = ((size_t)mebibytes << 20) / sizeof *memory / (size_t)n / 4 * 4;
    memory = aligned_alloc(4096, (size_t)mebibytes << 20);
    if (!memory || pthread_barrier_init(&barrier, NULL, (unsigned)n) != 0)
        return 1;
    memset(memory, 1, (size_t)mebibytes << 20);
    for (int i = 1; i < n; i++)
        if (pthread_create(&threads[i], NULL, read_share, (void *)(uintptr_t)i) != 0)
            return 1;
    read_share((void *)0);
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], NULL);
    qsort(seconds, PASSES, sizeof *seconds, ascending);
    printf("%.2f\n", (double)share * (double)n * sizeof *memory / seconds[PASSES / 2] * 1e-9);
    free(memory);
    return sums[0] == 1;
}
