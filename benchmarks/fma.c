/* fma.c - the fastest that float32 multiply-adds can be here: argv[1] threads; prints GFLOP/s of all of them. BYTES is
 * a register's width. Chains enough hide the latency; the best of many short passes is what nothing disturbed. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifndef BYTES
#define BYTES 64
#endif
enum { PASSES = 30, STEPS = 200000, MAX_THREADS = 256 };
typedef float vector __attribute__((vector_size(BYTES)));
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ONE(i) +1
#define START(i) vector sum##i = factor + (float)(i);
#define STEP(i) sum##i = sum##i * factor + factor;
#define ADD(i) +sum##i[0]
enum { CHAINS = EACH(ONE) };

static pthread_barrier_t barrier;
static double seconds[PASSES];
static float sums[MAX_THREADS]; /* keeps the work from being optimised away */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *multiply(void *argument) {
    size_t thread = (size_t)(uintptr_t)argument;
    vector factor;
    for (size_t i = 0; i < BYTES / sizeof(float); i++)
        factor[i] = 1.0f - 1e-6f * (float)i;
    EACH(START)
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        for (int step = 0; step < STEPS; step++) {
            EACH(STEP)
        }
        pthread_barrier_wait(&barrier);
        if (thread == 0)
            seconds[pass] = now() - start;
    }
    sums[thread] = EACH(ADD);
    return NULL;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t threads[MAX_THREADS];
    if (n < 1 || n > MAX_THREADS || pthread_barrier_init(&barrier, NULL, (unsigned)n) != 0)
        return 2;
    for (int i = 1; i < n; i++)
        if (pthread_create(&threads[i], NULL, multiply, (void *)(uintptr_t)i) != 0)
            return 1;
    multiply((void *)0);
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], NULL);
    double best = seconds[0];
    for (int i = 1; i < PASSES; i++)
        best = seconds[i] < best ? seconds[i] : best;
    printf("%.1f\n", 2.0 * STEPS * CHAINS * (BYTES / sizeof(float)) * n / best * 1e-9);
    return sums[0] == 0;
}
