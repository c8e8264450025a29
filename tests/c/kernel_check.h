/* kernel_check.h - what tests of kernels share: buffers that end at a page that may not be touched, values of every
 * type, comparisons within units in the last place, and a main that runs them with every table that this machine can
 * run. "N passed, M failed" is printed; a program's argument "quick" leaves out the longest cases, for emulators, and
 * names of instruction sets after it all others. */
#ifndef GOMLX_TESTS_KERNEL_CHECK_H
#define GOMLX_TESTS_KERNEL_CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "cpu/loops.h"

static const gm_kernels *kernels;
static long passed, failed;
static bool quick; /* for emulators: not the longest cases */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            passed++;                                                                                                  \
        } else {                                                                                                       \
            failed++;                                                                                                  \
            if (failed < 40) {                                                                                         \
                printf("%s:%d: %s: %s: ", __FILE__, __LINE__, kernels->isa, #condition);                               \
                printf(__VA_ARGS__);                                                                                   \
                printf("\n");                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* ---- memory with guard pages; all of it goes back at once ---- */
#define MAX_BUFFERS 256
static struct {
    void *base;
    size_t bytes;
} buffers[MAX_BUFFERS];
static int n_buffers;

static inline void *buffer(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page + 2 * page;
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || n_buffers == MAX_BUFFERS) {
        printf("no memory for a test\n");
        exit(2);
    }
    mprotect(base, page, PROT_NONE);
    mprotect(base + size - page, page, PROT_NONE);
    buffers[n_buffers].base = base;
    buffers[n_buffers++].bytes = size;
    return base + size - page - bytes;
}
static inline void free_buffers(void) {
    while (n_buffers > 0) {
        n_buffers--;
        munmap(buffers[n_buffers].base, buffers[n_buffers].bytes);
    }
}

/* ---- values ---- */
static uint64_t state = 88172645463325252u;
static inline double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53 * 2 - 1;
}
static inline float *floats(int64_t n, double scale) {
    float *x = buffer((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(uniform() * scale);
    return x;
}
static inline int item_of(int type) {
    static const int size[GM_T_COUNT] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8};
    return size[type];
}
static inline double half_to_double(uint16_t h) {
    double sign = h & 0x8000 ? -1 : 1;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return exponent ? sign * ldexp(1024 + fraction, exponent - 25) : sign * ldexp(fraction, -24);
}
static inline double get(const void *p, int type, int64_t i) {
    uint32_t bits;
    float f;
    switch (type) {
    case GM_T_BOOL:
    case GM_T_U8: return ((const uint8_t *)p)[i];
    case GM_T_U16: return ((const uint16_t *)p)[i];
    case GM_T_U32: return ((const uint32_t *)p)[i];
    case GM_T_U64: return (double)((const uint64_t *)p)[i];
    case GM_T_I8: return ((const int8_t *)p)[i];
    case GM_T_I16: return ((const int16_t *)p)[i];
    case GM_T_I32: return ((const int32_t *)p)[i];
    case GM_T_I64: return (double)((const int64_t *)p)[i];
    case GM_T_F16: return half_to_double(((const uint16_t *)p)[i]);
    case GM_T_BF16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case GM_T_F32: return (double)((const float *)p)[i];
    case GM_T_C64: return (double)((const float *)p)[2 * i];
    default: return ((const double *)p)[i];
    }
}
/* Through the double's own bits: to nearest even. */
static inline uint16_t half_of(double x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (x != x)
        return 0x7e00;
    if (x >= 65520)
        return sign | 0x7c00;
    if (x < 0x1p-14)
        return (uint16_t)(sign | (int)nearbyint(x * 0x1p24));
    int exponent;
    double m = frexp(x, &exponent);              /* [0.5, 1) */
    int fraction = (int)nearbyint(ldexp(m, 11)); /* [1024, 2048] */
    return (uint16_t)(sign | ((exponent + 13) * 1024 + fraction));
}
static inline uint16_t bfloat_of(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (x != x)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline void put(void *p, int type, int64_t i, double x) {
    switch (type) {
    case GM_T_BOOL: ((uint8_t *)p)[i] = x != 0; break;
    case GM_T_U8: ((uint8_t *)p)[i] = (uint8_t)(int64_t)x; break;
    case GM_T_U16: ((uint16_t *)p)[i] = (uint16_t)(int64_t)x; break;
    case GM_T_U32: ((uint32_t *)p)[i] = (uint32_t)(int64_t)x; break;
    case GM_T_U64: ((uint64_t *)p)[i] = (uint64_t)(int64_t)x; break;
    case GM_T_I8: ((int8_t *)p)[i] = (int8_t)x; break;
    case GM_T_I16: ((int16_t *)p)[i] = (int16_t)x; break;
    case GM_T_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case GM_T_I64: ((int64_t *)p)[i] = (int64_t)x; break;
    case GM_T_F16: ((uint16_t *)p)[i] = half_of(x); break;
    case GM_T_BF16: ((uint16_t *)p)[i] = bfloat_of(x); break;
    case GM_T_F32: ((float *)p)[i] = (float)x; break;
    case GM_T_C64:
        ((float *)p)[2 * i] = (float)x;
        ((float *)p)[2 * i + 1] = (float)(x / 2);
        break;
    default: ((double *)p)[i] = x;
    }
}
static inline bool is_float(int type) { return type >= GM_T_F16 && type <= GM_T_F64; }
static inline double epsilon_of(int type) {
    return type == GM_T_F16 ? 0x1p-11 : type == GM_T_BF16 ? 0x1p-8 : type == GM_T_F32 ? 0x1p-24 : 0x1p-53;
}
static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double tiny_of(int type) { return type == GM_T_F16 ? 0x1p-24 : type == GM_T_F64 ? 0x1p-1074 : 0x1p-126; }
static inline double huge_of(int type) { return type == GM_T_F16 ? 65504 : type == GM_T_F64 ? 1.7e308 : 3.38e38; }
/* Within ulps units in the last place of the type; an overflow may be the type's infinity. */
static inline bool near_to(double got, double want, int type, double ulps) {
    if (want != want)
        return got != got;
    if (got == want)
        return true;
    if (fabs(want) >= huge_of(type))
        return got == copysign((double)INFINITY, want) || fabs(got) >= 0.99 * huge_of(type);
    return fabs(got - want) <= ulps * 2 * epsilon_of(type) * fabs(want) + tiny_of(type);
}
static inline bool same(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }
/* One NaN is as good as another: which operand's bits it gets is the compiler's choice. */
static inline bool same_values(const void *a, const void *b, int type, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = get(a, type, i), y = get(b, type, i);
        if (x == x ? x != y || signbit(x) != signbit(y) : y == y)
            return false;
    }
    return true;
}

static const int64_t sizes[] = {0, 1, 7, 8, 15, 16, 17, 33, 1000};
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))

/* A test, and the kernel whose part it is about. */
typedef struct {
    size_t kernel;
    void (*test)(void);
} kernel_test;
#define ABOUT(kernel, test) {offsetof(gm_kernels, kernel), test}

/* Whether the table has that kernel from one that it builds on, which comes later and runs the test too. */
static inline bool is_lent(size_t kernel) {
    bool later = false;
    for (const char *const *name = kernels_names(); *name; name++) {
        const gm_kernels *other = kernels_get(*name);
        if (later && other && same((const char *)other + kernel, (const char *)kernels + kernel, sizeof(gm_kernel)))
            return true;
        later |= other == kernels;
    }
    return false;
}

/* Whether the arguments have the name, or none at all. */
static inline bool is_asked_for(const char *isa, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], isa))
            return true;
    return argc == 1;
}

/* Runs each test with each table. */
static inline int run_tests(int argc, char **argv, const kernel_test *tests, int n) {
    if (argc > 1 && !strcmp(argv[1], "quick"))
        quick = true, argc--, argv++;
    for (const char *const *name = kernels_names(); *name; name++) {
        kernels = is_asked_for(*name, argc, argv) ? kernels_get(*name) : NULL;
        for (int i = 0; kernels && i < n; i++)
            if (!is_lent(tests[i].kernel))
                tests[i].test();
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
#define RUN_TESTS(...)                                                                                                 \
    run_tests(argc, argv, (const kernel_test[]){__VA_ARGS__},                                                          \
              (int)(sizeof (kernel_test[]){__VA_ARGS__} / sizeof(kernel_test)))
#endif
