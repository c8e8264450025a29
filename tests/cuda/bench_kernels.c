/* bench_kernels.c - how fast contracts run on a card: one line each, as a share of the rate at which the same card
 * copies memory in the same run, beside what was predicted before the first run. bench_kernels [divisor [packed]]: a
 * divisor makes sizes smaller, so that the program itself can be tried without a card; with a second argument only
 * copies and packed matrices are measured. */
#include <time.h>
#include "cuda/device_state.h"
#include "device_check.h"

#define REPEATS 20
static int64_t divisor = 1;
static double copy_rate; /* bytes a second, read and written */

typedef bool (*work)(const void *args, int64_t n);

/* Seconds of one run of a contract: the median of five groups of REPEATS, between two events. */
static double seconds_of(work run, const void *args, int64_t n) {
    const cuda_driver *driver = device->driver;
    driver_event *from = NULL, *to = NULL;
    double times[5];
    if (cuda_enter(device, "an event") != DEVICE_OK || driver->event_create(&from, 0) || driver->event_create(&to, 0))
        die("an event");
    for (int i = 0; i < 3; i++)
        if (!run(args, n))
            return NAN;
    wait_for_device();
    const int repeats = divisor > 1 ? 1 : REPEATS;
    for (int k = 0; k < 5; k++) {
        float ms = 0;
        driver->event_record(from, device->stream);
        for (int i = 0; i < repeats; i++)
            run(args, n);
        driver->event_record(to, device->stream);
        wait_for_device();
        driver->event_elapsed(&ms, from, to);
        times[k] = (double)ms * 1e-3 / repeats;
    }
    cuda_leave(device);
    for (int i = 1; i < 5; i++)
        for (int k = i; k > 0 && times[k] < times[k - 1]; k--) {
            const double kept = times[k];
            times[k] = times[k - 1];
            times[k - 1] = kept;
        }
    return times[2];
}
/* Seconds that the host takes to begin one, of so few that none waits for the card. */
static double host_seconds_of(work run, const void *args, int64_t n) {
    struct timespec from, to;
    wait_for_device();
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 200; i++)
        run(args, n);
    clock_gettime(CLOCK_MONOTONIC, &to);
    wait_for_device();
    return ((double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9) / 200;
}
/* predicted: percent of the copy's rate, or TFLOP/s where flops are given. */
static void report(const char *name, double seconds, double bytes, double flops, double predicted) {
    if (flops > 0)
        printf("%-34s %9.1f us  %7.1f TFLOP/s        predicted %g\n", name, seconds * 1e6, flops / seconds * 1e-12,
               predicted);
    else
        printf("%-34s %9.1f us  %7.2f TB/s  %5.1f %%   predicted %g\n", name, seconds * 1e6, bytes / seconds * 1e-12,
               100 * bytes / seconds / copy_rate, predicted);
    fflush(stdout);
}

static void reset_workspace(void);
#define WORK(name)                                                                                                     \
    static bool run_##name(const void *args, int64_t n) {                                                              \
        reset_workspace();                                                                                             \
        return device_cuda.contracts->name(&device_recorder, args, n);                                                 \
    }
WORK(copy)
WORK(unary)
WORK(binary)
WORK(select)
WORK(fused)
WORK(reduce)
WORK(arg_reduce)
WORK(softmax)
WORK(rms_norm)
WORK(product)
WORK(scan)
WORK(sort)
WORK(take)
WORK(scatter)
WORK(quantized_matmul)
WORK(packed_matmul)
WORK(packed_glu)
WORK(attention)
WORK(attention_rows)
static bool run_memcpy(const void *args, int64_t n) {
    const gm_copy_args *a = args;
    return device_cuda.copy(device, a->out, a->in, (size_t)n) == DEVICE_OK;
}

/* Workspaces and argument blocks live to the end of a case: a bench reuses one of each. */
static char *arguments_block, *workspace_block;
static size_t workspace_size = 1 << 26, workspace_used;
#define ARGUMENTS (1 << 14) /* bytes of one launch's, at most */
static bool run_kept(gm_recorder *r, gm_kernel fn, const void *args, size_t size, int64_t n, int64_t grain, int flags) {
    (void)r, (void)grain, (void)flags;
    char *kept = arguments_block + n_held * ARGUMENTS;
    memcpy(kept, args, size);
    held[n_held++] = (gm_device_launch){fn, kept, n};
    return (holds && n_held < MOST_HELD) || launch_held();
}
static void *kept_workspace(gm_recorder *r, size_t bytes) {
    (void)r;
    bytes = (bytes + 255) / 256 * 256;
    if (bytes > workspace_size - workspace_used)
        return NULL;
    workspace_used += bytes;
    return workspace_block + workspace_used - bytes;
}

static void reset_workspace(void) { workspace_used = 0; }
/* It goes with the memory of the case: a later one that needs a workspace takes its own. */
static void take_workspace(size_t bytes) {
    workspace_block = device_memory(bytes);
    workspace_size = bytes;
}

static char *filled(int64_t bytes, int type) { /* random numbers, a block of them again and again */
    const int64_t block = 1 << 20, items = block / bytes_of(type);
    char *host = host_memory((size_t)block), *out = device_memory((size_t)bytes + (size_t)block);
    fill_random(host, items, type, PLAIN);
    for (int64_t at = 0; at < bytes; at += block)
        copy_bytes(out + at, host, (size_t)block);
    return out;
}

static void bench_elements(void) {
    const int64_t n = ((int64_t)64 << 20) / divisor, one = 1, row[2] = {16384 / divisor, 4096};
    char *a = filled(4 * n, GM_T_F32), *b = filled(4 * n, GM_T_F32), *out = filled(4 * n, GM_T_F32);
    char *halves = filled(4 * n, GM_T_BF16), *more = filled(4 * n, GM_T_BF16), *cond = filled(n, GM_T_BOOL);
    gm_copy_args copy = {out, a, GM_T_F32, GM_T_F32, 1, &n, &one, &one};
    const double memcpy_time = seconds_of(run_memcpy, &copy, 4 * n);
    copy_rate = 8.0 * (double)n / memcpy_time;
    report("the driver's copy", memcpy_time, 8.0 * (double)n, 0, 100);
    report("copy f32", seconds_of(run_copy, &copy, n), 8.0 * (double)n, 0, 98);
    copy.in = halves;
    copy.in_type = GM_T_BF16;
    report("cast bf16 to f32", seconds_of(run_copy, &copy, n), 6.0 * (double)n, 0, 95);
    gm_unary_args unary = {out, a, GM_U_exp, GM_T_F32, 1, &n, &one};
    report("exp f32", seconds_of(run_unary, &unary, n), 8.0 * (double)n, 0, 95);
    unary = (gm_unary_args){out, halves, GM_U_exp, GM_T_BF16, 1, &n, &one};
    report("exp bf16", seconds_of(run_unary, &unary, n), 4.0 * (double)n, 0, 70);
    unary.op = GM_U_negative;
    report("negative bf16", seconds_of(run_unary, &unary, n), 4.0 * (double)n, 0, 95);
    gm_binary_args add = {out, a, b, GM_B_add, GM_T_F32, 1, &n, &one, &one};
    report("add f32", seconds_of(run_binary, &add, n), 12.0 * (double)n, 0, 97);
    add = (gm_binary_args){out, halves, more, GM_B_add, GM_T_BF16, 1, &n, &one, &one};
    report("add bf16", seconds_of(run_binary, &add, n), 6.0 * (double)n, 0, 95);
    add.type = GM_T_I32;
    add.a = a;
    add.b = b;
    report("add int32", seconds_of(run_binary, &add, n), 12.0 * (double)n, 0, 95);
    const int64_t wide[2] = {4096, 1}, narrow[2] = {0, 1};
    gm_binary_args rows = {out, a, b, GM_B_add, GM_T_F32, 2, row, wide, narrow};
    report("add a row to f32", seconds_of(run_binary, &rows, row[0] * row[1]), 8.0 * (double)(row[0] * row[1]), 0, 95);
    const int64_t tall[2] = {1, 0};
    rows.b_strides = tall;
    report("add a column to f32", seconds_of(run_binary, &rows, row[0] * row[1]), 8.0 * (double)(row[0] * row[1]), 0,
           95);
    gm_select_args select = {out, (uint8_t *)cond, a, b, 4, 1, &n, &one, &one, &one};
    report("select f32", seconds_of(run_select, &select, n), 13.0 * (double)n, 0, 95);
    const gm_fused_step steps[] = {{GM_FUSED_BINARY, GM_B_add, GM_T_F32, GM_T_F32, {0, 1, 0}, 0},
                                   {GM_FUSED_UNARY, GM_U_exp, GM_T_F32, GM_T_F32, {2, 0, 0}, 1},
                                   {GM_FUSED_BINARY, GM_B_multiply, GM_T_F32, GM_T_F32, {3, 1, 0}, 0}};
    gm_fused_args fused = {.out = out,
                           .n_inputs = 2,
                           .n_steps = 3,
                           .out_type = GM_T_F32,
                           .ndim = 1,
                           .inputs = {a, b},
                           .input_types = {GM_T_F32, GM_T_F32},
                           .shape = &n,
                           .strides = {&one, &one},
                           .steps = steps};
    report("three fused steps f32", seconds_of(run_fused, &fused, n), 12.0 * (double)n, 0, 80);
    const int64_t few = 4;
    add = (gm_binary_args){out, a, b, GM_B_add, GM_T_F32, 1, &few, &one, &one};
    printf("%-34s %9.2f us                       predicted 2.6\n", "add of 4 elements, back to back",
           seconds_of(run_binary, &add, few) * 1e6);
    printf("%-34s %9.2f us                       predicted 2.3\n", "... what the host takes to begin it",
           host_seconds_of(run_binary, &add, few) * 1e6);
    free_memory();
}

static void bench_turns(void) {
    const int64_t side = divisor > 1 ? 128 : 8192, n = side * side, shape[2] = {side, side}, dense[2] = {side, 1};
    const int64_t turned[2] = {1, side};
    char *in = filled(4 * n, GM_T_F32), *out = filled(4 * n, GM_T_F32);
    gm_copy_args copy = {out, in, GM_T_F32, GM_T_F32, 2, shape, dense, turned};
    report("transpose f32", seconds_of(run_copy, &copy, n), 8.0 * (double)n, 0, 80);
    copy.in_type = copy.out_type = GM_T_BF16;
    report("transpose bf16", seconds_of(run_copy, &copy, n), 4.0 * (double)n, 0, 60);
    free_memory();
}

static void bench_reductions(void) {
    const int64_t n = ((int64_t)64 << 20) / divisor, one = 1, none = 0, shape[2] = {n / 4096, 4096};
    const int64_t columns_step = 1, rows_step = 4096;
    char *a = filled(4 * n, GM_T_F32), *out = filled(4 * n, GM_T_F32);
    gm_reduce_args sum = {out, a, GM_R_SUM, GM_T_F32, GM_T_F32, 0, &none, &none, 1, &n, &one};
    report("sum of all f32", seconds_of(run_reduce, &sum, 1), 4.0 * (double)n, 0, 94);
    sum.in_type = sum.out_type = GM_T_BF16;
    report("sum of all bf16", seconds_of(run_reduce, &sum, 1), 2.0 * (double)n, 0, 90);
    gm_reduce_args rows = {out, a, GM_R_SUM, GM_T_F32, GM_T_F32, 1, shape, &rows_step, 1, shape + 1, &one};
    report("sum of rows f32", seconds_of(run_reduce, &rows, shape[0]), 4.0 * (double)n, 0, 100);
    gm_reduce_args columns = {out, a, GM_R_SUM, GM_T_F32, GM_T_F32, 1, shape + 1, &columns_step, 1, shape, &rows_step};
    report("sum of columns f32", seconds_of(run_reduce, &columns, shape[1]), 4.0 * (double)n, 0, 90);
    gm_arg_reduce_args arg = {(uint32_t *)out, a, true, GM_T_F32, 1, shape, &rows_step, 4096, 1};
    report("argmax of rows f32", seconds_of(run_arg_reduce, &arg, shape[0]), 4.0 * (double)n, 0, 95);
    gm_softmax_args softmax = {out, a, GM_T_F32, 4096, 4096};
    report("softmax of rows of 4096 f32", seconds_of(run_softmax, &softmax, shape[0]), 8.0 * (double)n, 0, 92);
    softmax = (gm_softmax_args){out, a, GM_T_F32, 131072, 131072};
    report("softmax of rows of 131072 f32", seconds_of(run_softmax, &softmax, n / 131072), 8.0 * (double)n, 0, 86);
    gm_rms_norm_args norm = {out, a, a, GM_T_BF16, 4096, 4096, 1e-6f};
    report("rms_norm of rows of 4096 bf16", seconds_of(run_rms_norm, &norm, n / 4096), 4.0 * (double)n, 0, 92);
    free_memory();
}

static void bench_orders(void) {
    const int64_t n = ((int64_t)16 << 20) / divisor, one = 1, none = 0, row = 1024, places = 65536 / divisor;
    char *a = filled(4 * n, GM_T_F32), *out = filled(4 * n, GM_T_F32), *index = device_memory((size_t)n * 4);
    char *rows = device_memory((size_t)(n / row) * 4);
    int32_t *host = host_memory((size_t)n * 4);
    take_workspace((size_t)n * 32 + (4 << 20));
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)below(places);
    copy_bytes(index, host, (size_t)n * 4);
    for (int64_t i = 0; i < n / row; i++)
        host[i] = (int32_t)below(n / row);
    copy_bytes(rows, host, (size_t)(n / row) * 4);
    gm_scan_args scan = {out, a, GM_R_SUM, GM_T_F32, false, false, n, 1, NULL};
    report("cumsum of 16M f32", seconds_of(run_scan, &scan, 1), 8.0 * (double)n, 0, 62);
    gm_sort_args sort = {out, a, NULL, GM_T_F32, false, n};
    report("sort of 16M f32", seconds_of(run_sort, &sort, 1), 8.0 * (double)n, 0, 5.5);
    sort = (gm_sort_args){out, a, NULL, GM_T_F32, true, 1024};
    report("argsort of rows of 1024 f32", seconds_of(run_sort, &sort, n / 1024), 8.0 * (double)n, 0, 10);
    gm_index_args take = {.out = out,
                          .in = a,
                          .index = rows,
                          .type = GM_T_F32,
                          .in_type = GM_T_F32,
                          .index_type = GM_T_I32,
                          .size = n / row,
                          .step = row,
                          .ndim = 0,
                          .shape = &none,
                          .count = n / row,
                          .dense_step = row,
                          .index_step = 1,
                          .run = row,
                          .sparse_run = 1,
                          .dense_run = 1};
    gm_index_fault *fault = device_cuda.pinned(sizeof *fault);
    take.fault = fault;
    report("take of 16K rows of 1024 f32", seconds_of(run_take, &take, n / row), 8.0 * (double)n, 0, 90);
    gm_index_args add = {.out = out,
                         .in = a,
                         .index = index,
                         .type = GM_T_F32,
                         .in_type = GM_T_F32,
                         .index_type = GM_T_I32,
                         .mode = GM_S_ADD,
                         .size = places,
                         .step = 1,
                         .ndim = 0,
                         .shape = &none,
                         .fault = fault,
                         .count = n,
                         .dense_step = 1,
                         .index_step = 1,
                         .run = 1,
                         .sparse_run = 1,
                         .dense_run = 1,
                         .span = places};
    report("add 16M f32 at 64K places", seconds_of(run_scatter, &add, 1), 8.0 * (double)n, 0, 11.5);
    (void)one;
    free_memory();
}

/* theirs: what is predicted of cuBLASLt, own: of the kernels here. */
static double of_library(double theirs, double own) {
    char said[256];
    device_cuda.libraries(said, sizeof said);
    return strncmp(said, "cuBLASLt", 8) == 0 ? theirs : own;
}
static void bench_products(void) {
    const int64_t side = divisor > 1 ? 128 : 4096, n = side * side;
    const double flops = 2.0 * (double)side * (double)side * (double)side;
    char *x = filled(4 * n, GM_T_BF16), *w = filled(4 * n, GM_T_BF16), *out = filled(4 * n, GM_T_F32);
    gm_product_args p = {.out = out,
                         .x = x,
                         .w = w,
                         .type = GM_T_BF16,
                         .rows = side,
                         .columns = side,
                         .k = side,
                         .out_row = side,
                         .out_column = 1,
                         .x_row = side,
                         .x_k = 1,
                         .w_k = side,
                         .w_column = 1,
                         .alpha = 1};
    report("matmul bf16 4096", seconds_of(run_product, &p, 1), 0, flops, of_library(760, 500));
    p.w_k = 1;
    p.w_column = side;
    report("matmul bf16 4096, w turned", seconds_of(run_product, &p, 1), 0, flops, of_library(770, 550));
    p.x_row = 1;
    p.x_k = side;
    p.w_k = side;
    p.w_column = 1;
    report("matmul bf16 4096, x turned", seconds_of(run_product, &p, 1), 0, flops, of_library(760, 500));
    p.x_row = side;
    p.x_k = 1;
    p.w_k = 1;
    p.w_column = side;
    p.rows = side / 8;
    report("matmul bf16 512 rows, w turned", seconds_of(run_product, &p, 1), 0, flops / 8, of_library(600, 350));
    p.rows = side;
    p.x = filled(4 * n, GM_T_F32);
    p.w = p.x;
    p.type = GM_T_F32;
    report("matmul f32 4096, w turned", seconds_of(run_product, &p, 1), 0, flops, of_library(49, 38));
    p.w_k = side;
    p.w_column = 1;
    report("matmul f32 4096", seconds_of(run_product, &p, 1), 0, flops, of_library(49, 40));
    free_memory();
}

static void bench_quantized(int bits) { /* several matrices in turn, so that none is in the cache */
    const int64_t rows = 4096 / divisor, k = 14336, matrices = 8, weights = rows * k;
    char *weight = filled(matrices * weights / 8 * bits, GM_T_U32),
         *scales = filled(matrices * weights / 32, GM_T_BF16);
    char *biases = filled(matrices * weights / 32, GM_T_BF16), *x = filled(matrices * k * 2, GM_T_BF16);
    char *out = device_memory((size_t)(matrices * rows * 2)), *index = device_memory((size_t)matrices * 8);
    int64_t numbers[8];
    for (int64_t i = 0; i < matrices; i++)
        numbers[i] = i;
    copy_bytes(index, numbers, sizeof numbers);
    gm_quantized_matmul_args a = {.w = {weight, scales, biases, GM_AFFINE, bits, 64, GM_T_BF16, matrices, rows, k},
                                  .out = out,
                                  .x = x,
                                  .x_type = GM_T_BF16,
                                  .out_type = GM_T_BF16,
                                  .tokens = 1,
                                  .x_count = matrices,
                                  .x_index = (int64_t *)index,
                                  .matrix_index = (int64_t *)index};
    const double bytes = (double)(weights / 8 * bits + weights / 16);
    char name[64];
    snprintf(name, sizeof name, "8 x quantized %d-bit, 4096 x 14336", bits);
    report(name, seconds_of(run_quantized_matmul, &a, matrices), bytes * 8, 0, 85);
    a.x_index = a.matrix_index = NULL;
    report(name + 4, seconds_of(run_quantized_matmul, &a, 1), bytes, 0, 70);
    free_memory();
}

/* Products of decoders of eight billion weights, by matrices in turn of more than the cache holds. */
typedef struct {
    const char *name;
    int64_t rows, k;
    bool is_glu;
} packed_shape;
static const packed_shape packed_shapes[] = {{"qkv", 6144, 4096, false},
                                             {"o", 4096, 4096, false},
                                             {"gate/up", 14336, 4096, true},
                                             {"down", 4096, 14336, false},
                                             {"head", 128256, 4096, false}};
typedef struct {
    gm_packed_matmul_args product;
    gm_packed_glu_args glu;
    bool is_glu;
    char *weights;
    int64_t each, matrices, next;
} packed_bench;
static bool run_packed(const void *args, int64_t n) {
    packed_bench *b = (packed_bench *)(uintptr_t)args;
    char *weight = b->weights + b->next * b->each;
    b->next = (b->next + 1) % b->matrices;
    if (!b->is_glu) {
        b->product.weight.data = weight;
        return run_packed_matmul(&b->product, n);
    }
    b->glu.gate.data = weight;
    b->glu.up.data = weight + b->each / 2;
    return run_packed_glu(&b->glu, n);
}
static void bench_packed_shape(const packed_shape *shape, int format, const char *weights, int64_t bytes, char *x,
                               char *out) {
    const int64_t rows = shape->rows / divisor / 16 * 16, k = shape->k / divisor / 256 * 256 + (divisor > 1 ? 256 : 0);
    const int64_t each = (shape->is_glu ? 2 : 1) * rows * (k / gm_quants[format].values) * gm_quants[format].bytes;
    const gm_row_form form = format == GM_QUANT_bf16 ? GM_FORM_BF16 : GM_FORM_F32;
    packed_bench b = {.is_glu = shape->is_glu, .weights = (char *)(uintptr_t)weights, .each = each};
    b.matrices = bytes / each;
    b.product = (gm_packed_matmul_args){
        .out = (float *)out, .x = x, .form = form, .weight = {.format = format, .rows = rows, .k = k}};
    b.glu = (gm_packed_glu_args){.out = out, .out_form = form, .x = x, .form = form, .kind = GM_GLU_SILU};
    b.glu.gate = b.glu.up = (gm_matrix){.format = format, .rows = rows, .k = k};
    for (int64_t tokens = 1; tokens <= 32; tokens = tokens == 1 ? 8 : tokens * 4) {
        char name[96];
        snprintf(name, sizeof name, "%s %s, %d rows", shape->name, gm_quants[format].name, (int)tokens);
        report(name, seconds_of(run_packed, &b, tokens), (double)each, 0, tokens == 1 ? 75 : tokens == 8 ? 40 : 12);
    }
}
/* A token's products from one layer's attention to the next one's, of decoders of eight billion weights, one billion,
 * and 0.6, in a graph of some layers, whose matrices are others: each waits for what the one before it makes. */
#define LAYERS 16
typedef struct {
    const char *name;
    int64_t dim, heads, inner, next;
} layer_shape;
static const layer_shape layer_shapes[] = {
    {"8B", 4096, 4096, 14336, 6144}, {"1B", 2048, 2048, 8192, 3072}, {"0.6B", 1024, 2048, 3072, 4096}};
typedef struct {
    gm_packed_matmul_args o, down;
    gm_made_glu_args units;
    gm_packed_products_args next;
} layer_products;
static bool record_layer(layer_products *l, const char **weights) {
    const gm_contracts *contracts = device_cuda.contracts;
    gm_matrix *const matrices[] = {&l->o.weight, &l->units.glu.gate, &l->units.glu.up, &l->down.weight,
                                   &l->next.parts[0].weight};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        const gm_quant_info *f = &gm_quants[matrices[i]->format];
        matrices[i]->data = *weights;
        *weights += matrices[i]->rows * (matrices[i]->k / f->values) * f->bytes;
    }
    return contracts->packed_matmul(&device_recorder, &l->o, 1) &&
           contracts->made_glu(&device_recorder, &l->units, 1) &&
           contracts->packed_matmul(&device_recorder, &l->down, 1) &&
           contracts->packed_products(&device_recorder, &l->next, 1);
}
static bool run_graph(const void *args, int64_t n) {
    (void)n;
    return device_cuda.replay(device, (gm_device_graph *)(uintptr_t)args) == DEVICE_OK;
}
static void bench_layer(const layer_shape *s, int format, const char *weights, int64_t bytes, char *x, char *out) {
    const gm_row_form form = format == GM_QUANT_bf16 ? GM_FORM_BF16 : GM_FORM_F32;
    float *row = (float *)(void *)out, *norm = (float *)(void *)filled(s->dim * 4, GM_T_F32);
    char *units = out + (1 << 20), name[64];
    const gm_made_rows made = {row, norm, 1e-5f, form};
    const int64_t values = s->dim * (s->heads + 3 * s->inner + s->next),
                  each = values / gm_quants[format].values * gm_quants[format].bytes;
    layer_products l = {.units.rows = made, .next = {.rows = made, .count = 1}};
    l.o = (gm_packed_matmul_args){.out = row, .x = x, .form = form, .residual = (float *)(void *)x};
    l.o.weight = (gm_matrix){.format = format, .rows = s->dim, .k = s->heads};
    l.units.glu = (gm_packed_glu_args){.out = units, .out_form = form, .kind = GM_GLU_SILU};
    l.units.glu.gate = l.units.glu.up = (gm_matrix){.format = format, .rows = s->inner, .k = s->dim};
    l.down = (gm_packed_matmul_args){.out = row, .x = units, .form = form, .residual = (float *)(void *)x};
    l.down.weight = (gm_matrix){.format = format, .rows = s->dim, .k = s->inner};
    l.next.parts[0] = (gm_product_part){
        (float *)(void *)(out + (2 << 20)), {.format = format, .rows = s->next, .k = s->dim}, NULL};
    const char *at = weights;
    gm_device_graph *graph = NULL;
    reset_workspace();
    holds = true;
    for (int i = 0; i < LAYERS; i++) {
        if (at + each > weights + bytes)
            at = weights;
        if (!record_layer(&l, &at))
            die("a layer");
    }
    holds = false;
    if (device_cuda.capture(device, held, n_held, &graph) != DEVICE_OK)
        die("a graph");
    n_held = 0;
    snprintf(name, sizeof name, "layer of %s, %s", s->name, gm_quants[format].name);
    report(name, seconds_of(run_graph, graph, 1) / LAYERS, (double)each, 0, 80);
    device_cuda.drop(device, graph);
}
static void bench_packed(void) {
    static const int formats[] = {GM_QUANT_bf16, GM_QUANT_q8_0, GM_QUANT_q4_0, GM_QUANT_affine4_64_f16,
                                  GM_QUANT_q4_k, GM_QUANT_q6_k, GM_QUANT_mxfp4};
    const int64_t bytes = ((int64_t)2 << 30) / divisor;
    char *weights = filled(bytes, GM_T_U32), *x = filled(32 * 14336 * 4, GM_T_F32);
    char *out = device_memory((size_t)32 * 128256 * 4);
    take_workspace((size_t)64 << 20);
    for (size_t s = 0; s < sizeof layer_shapes / sizeof *layer_shapes && divisor == 1; s++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            bench_layer(&layer_shapes[s], formats[f], weights, bytes, x, out);
    for (size_t s = 0; s < sizeof packed_shapes / sizeof *packed_shapes; s++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            bench_packed_shape(&packed_shapes[s], formats[f], weights, bytes, x, out);
    free_memory();
}

#include "bench_models.h"

int main(int argc, char **argv) {
    char why[DEVICE_WHY] = "";
    if (argc > 1)
        divisor = atoi(argv[1]);
    if (device_cuda.open(0, &device, why) != DEVICE_OK) {
        printf("no device: %s\n", why);
        return 2;
    }
    device_cuda.libraries(why, sizeof why);
    printf("%s\n", why);
    void *memory = NULL;
    if (device_cuda.alloc(device, workspace_size, &memory) != DEVICE_OK)
        die("memory");
    workspace_block = memory;
    arguments_block = malloc(MOST_HELD * ARGUMENTS);
    device_recorder.launch = run_kept;
    device_recorder.workspace = kept_workspace;
    device_recorder.contracts = device_cuda.contracts;
    bench_elements();
    if (argc <= 2) {
        bench_turns();
        bench_reductions();
        bench_products();
        bench_orders();
        bench_quantized(4);
        bench_quantized(8);
    }
    bench_models();
    bench_packed();
    return 0;
}
