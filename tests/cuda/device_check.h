/* device_check.h - what the tests of a device share: operands that are on both sides, one contract run on both, and
 * comparisons. A case that fails prints a line; each contract prints one of its own at its end. */
#ifndef GOMLX_TESTS_DEVICE_CHECK_H
#define GOMLX_TESTS_DEVICE_CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cpu/loops.h"
#include "device.h"

static gm_device_state *device;
static long passed, failed;
/* Of each contract; runs of each on the device, which must agree in every bit; elements of its operands. */
__attribute__((unused)) static int cases = 60, repeats = 2;
__attribute__((unused)) static const int64_t most_elements = 3000;

/* ---- numbers that are the same on every machine ---- */
static uint64_t seed = 0x9e3779b97f4a7c15ull;
static inline uint64_t next_random(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}
static inline int64_t below(int64_t n) { return n > 0 ? (int64_t)(next_random() >> 11) % n : 0; }
static inline double unit(void) { return (double)(next_random() >> 11) * 0x1p-53; }

/* ---- values ---- */
static inline int64_t bytes_of(int type) {
    static const int8_t bytes[GM_T_COUNT] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8};
    return bytes[type];
}
static const char *const type_names[GM_T_COUNT] = {"bool", "u8",  "u16", "u32",  "u64", "i8",  "i16",
                                                   "i32",  "i64", "f16", "bf16", "f32", "f64", "c64"};
static inline bool is_float(int type) { return type == GM_T_F16 || type == GM_T_BF16 || type == GM_T_F32; }
static inline float half_value(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits = sign |
                    (magnitude >= 0x7c00 ? 0x7f800000 | (magnitude & 0x3ff) << 13 : (magnitude << 13) + 0x38000000);
    float x;
    if (magnitude < 0x400)
        return (sign ? -1.0f : 1.0f) * (float)magnitude * 0x1p-24f;
    memcpy(&x, &bits, 4);
    return x;
}
static inline float float_at(const void *p, int64_t i, int type) {
    uint32_t bits;
    float x;
    if (type == GM_T_F32)
        return ((const float *)p)[i];
    if (type == GM_T_F16)
        return half_value(((const uint16_t *)p)[i]);
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, 4);
    return x;
}
static inline void put_float(void *p, int64_t i, float x, int type) {
    if (type == GM_T_F32) {
        ((float *)p)[i] = x;
    } else if (type == GM_T_BF16) {
        uint32_t bits;
        memcpy(&bits, &x, 4);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    } else { /* towards zero */
        uint32_t bits;
        memcpy(&bits, &x, 4);
        const int e = (int)(bits >> 23 & 255) - 112;
        const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
        ((uint16_t *)p)[i] = (uint16_t)(x != x    ? 0x7e00
                                        : e >= 31 ? sign | 0x7c00
                                        : e <= 0  ? sign | (uint16_t)(fabsf(x) * 0x1p24f)
                                                  : sign | e << 10 | (bits >> 13 & 0x3ff));
    }
}
typedef enum { PLAIN, SPECIAL, POSITIVE, SMALL } values; /* SPECIAL: NaN, infinities, zeros of both signs, all sizes */
static inline float random_float(values kind) {
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 0x1p-140f, 3e38f, -3e38f, 0.5f};
    if (kind == SPECIAL && below(8) == 0)
        return special[below(11)];
    if (kind == SPECIAL && below(4) == 0)
        return (float)ldexp(unit() - 0.5, (int)below(200) - 100);
    const float x = (float)(unit() * 8 - 4);
    return kind == POSITIVE ? fabsf(x) + 0.01f : kind == SMALL ? x / 8 : x;
}
static inline void fill_random(void *p, int64_t n, int type, values kind) {
    for (int64_t i = 0; i < n; i++) {
        if (is_float(type))
            put_float(p, i, random_float(kind), type);
        else if (type == GM_T_C64)
            ((float *)p)[2 * i] = random_float(kind), ((float *)p)[2 * i + 1] = random_float(kind);
        else if (type == GM_T_BOOL)
            ((uint8_t *)p)[i] = (uint8_t)below(2);
        else {
            uint64_t x = below(2) ? (uint64_t)below(9) - 4 : next_random();
            memcpy((char *)p + i * bytes_of(type), &x, (size_t)bytes_of(type));
        }
    }
}

/* ---- memory on both sides, until the case ends ---- */
#define MOST_BLOCKS 512
static void *host_blocks[MOST_BLOCKS], *device_blocks[MOST_BLOCKS];
static int n_host, n_device;

static inline void die(const char *what) {
    printf("%s: %s\n", what, device ? device_cuda.why(device) : "");
    exit(2);
}
static inline void *host_memory(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p || n_host == MOST_BLOCKS)
        die("memory");
    return host_blocks[n_host++] = p;
}
static inline void *device_memory(size_t bytes) {
    void *p = NULL;
    if (n_device == MOST_BLOCKS || device_cuda.alloc(device, bytes, &p) != DEVICE_OK)
        die("memory of the device");
    return device_blocks[n_device++] = p;
}
static inline void free_memory(void) {
    while (n_host)
        free(host_blocks[--n_host]);
    while (n_device)
        device_cuda.free(device, device_blocks[--n_device]);
}
static inline void wait_for_device(void) {
    const uint64_t mark = device_cuda.mark(device);
    if (!mark || device_cuda.wait(device, mark, INT64_MAX) != DEVICE_OK)
        die("the device");
}
static inline void copy_bytes(void *to, const void *from, size_t bytes) {
    if (device_cuda.copy(device, to, from, bytes) != DEVICE_OK)
        die("a copy");
    wait_for_device();
}

typedef struct {
    char *host, *device; /* where element 0 is */
    size_t before, bytes;
} operand;
static inline operand operand_of(size_t bytes) {
    operand o = {host_memory(bytes), device_memory(bytes), 0, bytes};
    memset(o.host, 0xcd, bytes);
    return o;
}
static inline void upload(operand o) { copy_bytes(o.device - o.before, o.host - o.before, o.bytes); }

/* ---- recorders that run what they are given at once ---- */
static inline bool run_host(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain,
                            int flags) {
    (void)r, (void)size, (void)grain, (void)flags;
    fn(args, 0, n);
    return true;
}
/* Those that are issued with others, where it holds them. */
#define MOST_HELD 64
static gm_device_launch held[MOST_HELD];
static int n_held;
static bool holds;
static inline bool launch_held(void) {
    const int n = n_held;
    n_held = 0;
    if (device_cuda.launch(device, held, n) == DEVICE_OK)
        return true;
    printf("a launch failed: %s\n", device_cuda.why(device));
    return false;
}
static inline bool run_device(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain,
                              int flags) {
    void *kept = host_memory(size);
    (void)r, (void)grain, (void)flags;
    memcpy(kept, args, size);
    held[n_held++] = (gm_device_launch){fn, kept, n};
    return (holds && n_held < MOST_HELD) || launch_held();
}
static inline int one_thread(const gm_recorder *r) { return r != NULL; }
static inline void no_fence(gm_recorder *r) { (void)r; }
static inline void *host_workspace(gm_recorder *r, size_t bytes) { return (void)r, host_memory(bytes); }
static inline void *device_workspace(gm_recorder *r, size_t bytes) { return (void)r, device_memory(bytes); }
static inline const void *device_constant(gm_recorder *r, const void *data, size_t bytes) {
    void *p = device_memory(bytes);
    (void)r;
    copy_bytes(p, data, bytes);
    return p;
}
static inline const void *host_constant(gm_recorder *r, const void *data, size_t bytes) {
    return (void)r, (void)bytes, data;
}
/* Nothing that is checked has so many dimensions. */
static inline bool no_lack(gm_recorder *r, const char *what) { return (void)r, (void)what, false; }
__attribute__((unused)) static gm_recorder host_recorder = {.contracts = &contracts_cpu,
                                                            .threads = one_thread,
                                                            .launch = run_host,
                                                            .fence = no_fence,
                                                            .workspace = host_workspace,
                                                            .arguments = host_workspace,
                                                            .constant = host_constant,
                                                            .lack = no_lack};
static gm_recorder device_recorder = {.threads = one_thread,
                                      .launch = run_device,
                                      .fence = no_fence,
                                      .workspace = device_workspace,
                                      .arguments = host_workspace,
                                      .constant = device_constant,
                                      .lack = no_lack};

/* ---- comparing ---- */
static double worst; /* error of this contract, in what its check counts */
/* How far apart: units in the last place of the type for floats of at least `floor` (else of that size), else 0 or 1.
 */
static inline double difference(const void *want, const void *got, int64_t i, int type, double floor) {
    if (type == GM_T_C64) {
        const float *w = (const float *)want + 2 * i, *g = (const float *)got + 2 * i;
        const double size = fmax(hypot((double)w[0], (double)w[1]), 1e-30);
        if (!isfinite(w[0]) || !isfinite(w[1]))
            return 0; /* libraries differ in what is infinite */
        return hypot((double)w[0] - (double)g[0], (double)w[1] - (double)g[1]) / size * 0x1p23;
    }
    if (!is_float(type))
        return memcmp((const char *)want + i * bytes_of(type), (const char *)got + i * bytes_of(type),
                      (size_t)bytes_of(type)) != 0;
    const float w = float_at(want, i, type), g = float_at(got, i, type);
    if (memcmp((const char *)want + i * bytes_of(type), (const char *)got + i * bytes_of(type),
               (size_t)bytes_of(type)) == 0 ||
        (w != w && g != g))
        return 0;
    if (!isfinite(w) || !isfinite(g)) {
        const float top = type == GM_T_F16 ? 65504.0f : 3.3e38f; /* the last number and infinity are neighbours */
        return fabsf(w) >= top && fabsf(g) >= top && (w < 0) == (g < 0) ? 1 : INFINITY;
    }
    const int digits = type == GM_T_F16 ? 11 : type == GM_T_BF16 ? 8 : 24;
    const double size = fmax(fmax(fabs((double)w), floor), type == GM_T_F16 ? 0x1p-14 : 0x1p-126);
    const double error = fabs((double)w - (double)g) / ldexp(1, ilogb(size) - digits + 1);
    return error > 0 ? error : 0.25; /* zeros of different sign */
}
static int shown;
static inline void compare(const char *what, const void *want, const void *got, int64_t n, int type, double ulps,
                           double floor) {
    double most = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = difference(want, got, i, type, floor);
        if (d > most)
            most = d, at = i;
    }
    worst = fmax(worst, most);
    if (most <= ulps) {
        passed++;
        return;
    }
    failed++;
    if (shown++ >= 12)
        return;
    if (is_float(type))
        printf("  FAILED %s: element %lld of %lld: want %.9g, got %.9g, %.3g ulp (%g allowed)\n", what, (long long)at,
               (long long)n, (double)float_at(want, at, type), (double)float_at(got, at, type), most, ulps);
    else if (type == GM_T_C64)
        printf("  FAILED %s: element %lld of %lld: want %.9g%+.9gi, got %.9g%+.9gi\n", what, (long long)at,
               (long long)n, (double)((const float *)want)[2 * at], (double)((const float *)want)[2 * at + 1],
               (double)((const float *)got)[2 * at], (double)((const float *)got)[2 * at + 1]);
    else {
        int64_t w = 0, g = 0;
        memcpy(&w, (const char *)want + at * bytes_of(type), (size_t)bytes_of(type));
        memcpy(&g, (const char *)got + at * bytes_of(type), (size_t)bytes_of(type));
        printf("  FAILED %s: element %lld of %lld: want %lld, got %lld\n", what, (long long)at, (long long)n,
               (long long)w, (long long)g);
    }
}
/* The result of the device, which is copied here and compared with what the processor made. */
static inline void compare_out(const char *what, operand out, int64_t n, int type, double ulps, double floor) {
    char *got = host_memory((size_t)(n * bytes_of(type)) + 1);
    copy_bytes(got, out.device, (size_t)(n * bytes_of(type)));
    compare(what, out.host, got, n, type, ulps, floor);
}

/* Runs a contract on both sides: H and D are its arguments with addresses of the host and of the device. The device
 * runs it `repeats` times over a poisoned result, and the results are the same bits. */
#define RUN_BOTH(name, h, d, n, out, out_bytes)                                                                        \
    do {                                                                                                               \
        const size_t run_bytes = (size_t)(out_bytes);                                                                  \
        char *first_run = host_memory(run_bytes + 1), *next_run = host_memory(run_bytes + 1);                          \
        contracts_cpu.name(&host_recorder, &(h), n);                                                                   \
        for (int run = 0; run < repeats; run++) {                                                                      \
            memset(next_run, 0xa5, run_bytes);                                                                         \
            copy_bytes((out).device, next_run, run_bytes);                                                             \
            if (!device_cuda.contracts->name(&device_recorder, &(d), n))                                               \
                failed++;                                                                                              \
            copy_bytes(next_run, (out).device, run_bytes);                                                             \
            if (run == 0)                                                                                              \
                memcpy(first_run, next_run, run_bytes);                                                                \
            else if (memcmp(first_run, next_run, run_bytes) != 0) {                                                    \
                failed++;                                                                                              \
                printf("  FAILED " #name ": two runs differ\n");                                                       \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Once more on the device, whose result takes the place of what it is made of, as the engine has it: `to` is the
 * pointer of D to that. Then as compare_out. */
#define RUN_IN_PLACE(name, d, to, n, out, in, in_bytes)                                                                \
    do {                                                                                                               \
        copy_bytes((out).device, (in).host, (size_t)(in_bytes));                                                       \
        (d).to = (void *)(out).device;                                                                                 \
        if (!device_cuda.contracts->name(&device_recorder, &(d), n))                                                   \
            failed++;                                                                                                  \
    } while (0)

/* ---- shapes and strided operands ---- */
#define DIMS 10
typedef struct {
    int ndim;
    int64_t shape[DIMS], count;
} shape_of_case;
static inline shape_of_case random_shape(int64_t most) {
    static const int64_t sizes[] = {1,  2,  3,  5,   7,   8,   16,  17,  31,   32,  33,
                                    63, 64, 65, 127, 129, 255, 256, 257, 1023, 1025};
    shape_of_case s = {.ndim = (int)below(5), .count = 1};
    for (int d = 0; d < s.ndim; d++) {
        s.shape[d] = sizes[below(21)];
        while (s.count * s.shape[d] > most)
            s.shape[d] = (s.shape[d] + 1) / 2 > 1 ? s.shape[d] / 2 : 1;
        if (s.count * s.shape[d] > most)
            s.shape[d] = 1;
        s.count *= s.shape[d];
    }
    if (below(24) == 0 && s.ndim)
        s.count = s.shape[below(s.ndim)] = 0;
    return s;
}
static inline void dense_strides(const shape_of_case *s, int64_t *strides) {
    int64_t step = 1;
    for (int d = s->ndim - 1; d >= 0; d--) {
        strides[d] = step;
        step *= s->shape[d];
    }
}
/* An operand over a shape: dense, or of axes in another order, apart, backwards, or repeated where that may be. */
static inline operand strided(const shape_of_case *s, int type, int64_t *strides, bool may_repeat, values kind) {
    int order[DIMS];
    int64_t step = 1, low = 0, high = 0;
    const bool dense = below(3) == 0;
    for (int d = 0; d < s->ndim; d++)
        order[d] = d;
    if (!dense && below(2))
        for (int d = s->ndim - 1; d > 0; d--) {
            const int other = (int)below(d + 1), kept = order[d];
            order[d] = order[other];
            order[other] = kept;
        }
    for (int k = s->ndim - 1; k >= 0; k--) {
        const int d = order[k];
        const int64_t size = s->shape[d] > 0 ? s->shape[d] : 1;
        const bool repeat = !dense && may_repeat && below(5) == 0;
        strides[d] = repeat ? 0 : !dense && below(8) == 0 ? -step : step;
        if (strides[d] > 0)
            high += (size - 1) * strides[d];
        else
            low += (size - 1) * strides[d];
        if (!repeat)
            step *= size;
        if (!dense && below(6) == 0)
            step += below(3);
    }
    const int64_t odd = below(4) == 0 ? below(4) : 0; /* elements before the first, so that wide accesses do not fit */
    const size_t item = (size_t)bytes_of(type), before = (size_t)(odd - low) * item;
    operand o = operand_of(before + (size_t)(high + 1) * item);
    fill_random(o.host, odd - low + high + 1, type, kind);
    o.before = before;
    o.host += before;
    o.device += before;
    upload(o);
    return o;
}
static inline int random_type(bool complex) {
    static const int types[] = {GM_T_BOOL, GM_T_U8,  GM_T_U16, GM_T_U32, GM_T_U64, GM_T_I8,
                                GM_T_I16,  GM_T_I32, GM_T_I64, GM_T_F16, GM_T_F16, GM_T_BF16,
                                GM_T_BF16, GM_T_F32, GM_T_F32, GM_T_F32, GM_T_C64};
    return types[below(complex ? 17 : 16)];
}
static inline int random_float_type(void) { return GM_T_F16 + (int)below(3); }
static long passed_before, failed_before;
static inline void begin_contract(void) {
    passed_before = passed;
    failed_before = failed;
    worst = 0;
    shown = 0;
}
static inline void end_contract(const char *name, const char *promise) {
    printf("%-16s %5ld passed, %3ld failed; worst %.3g ulp; %s\n", name, passed - passed_before, failed - failed_before,
           worst, promise);
    fflush(stdout);
}
#endif
