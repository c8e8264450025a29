/* prompt_checks.h - checks of what prompts' rows take: matrices of every format as bfloat16, bit for bit, and products
 * of as many rows as libraries make, each of which has the bits that it has alone. */
#ifndef GOMLX_TESTS_PROMPT_CHECKS_H
#define GOMLX_TESTS_PROMPT_CHECKS_H
#include <dlfcn.h>
#include "packed_checks.h"

/* ---- rows of matrices, rounded ---- */
typedef struct {
    void *out;
    gm_matrix weight;
    int64_t first, rows;
} rounded_job;
static void start_rounded_job(const void *args, int64_t begin, int64_t end) {
    const rounded_job *job = args;
    (void)begin, (void)end;
    cuda_start_rounded_rows(job->out, &job->weight, job->first, job->rows);
}
/* count float32 values as bfloat16, in order; what it points at stays until the next call. */
static gm_copy_args rounded_copy(void *out, const void *in, int64_t count) {
    static const int64_t one = 1;
    static int64_t shape;
    shape = count;
    return (gm_copy_args){.out = out,
                          .in = in,
                          .out_type = GM_T_BF16,
                          .in_type = GM_T_F32,
                          .ndim = 1,
                          .shape = &shape,
                          .out_strides = &one,
                          .in_strides = &one};
}
/* Of any bits, against the processor's values, rounded by its copies. */
static void rounded_rows_case(int format, int64_t rows, int64_t k, int64_t first) {
    const packed_pair w = random_packed(format, rows, k, true);
    const int64_t n = rows - first, count = n * k;
    const operand out = operand_of((size_t)count * 2);
    float *values = host_memory((size_t)count * sizeof *values);
    int32_t *chosen = host_memory((size_t)n * sizeof *chosen);
    for (int64_t i = 0; i < n; i++)
        chosen[i] = (int32_t)(first + i);
    const gm_embed_args embed = {
        .out = values, .weight = w.packed.host, .tokens = chosen, .format = format, .rows = rows, .k = k, .scale = 1};
    const gm_copy_args rounded = rounded_copy(out.host, values, count);
    contracts_cpu.embed(&host_recorder, &embed, n);
    contracts_cpu.copy(&host_recorder, &rounded, count);
    const rounded_job job = {out.device, {.data = w.packed.device, .format = format, .rows = rows, .k = k}, first, n};
    if (!device_recorder.launch(&device_recorder, start_rounded_job, &job, sizeof job, n, 0, 0))
        failed++;
    compare_out(gm_quants[format].doc, out, count, GM_T_BF16, 0, 0);
}
static void check_rounded_rows(void) {
    for (int format = GM_QUANT_bf16 + 1; format < GM_QUANT_COUNT; format++, free_memory()) {
        const int64_t tile = gm_quants[format].values < 64 ? 64 : gm_quants[format].values;
        rounded_rows_case(format, 1 + below(9), random_k(format), 0);
        rounded_rows_case(format, 32, tile * (1 + below(tile < 256 ? 9 : 3)), 16);
    }
}

/* ---- shapes that libraries multiply: a prompt's rows alone, and more of them or fewer ---- */
static void large_product_case(int format, int64_t tokens, int64_t rows, int64_t k) {
    const packed_pair w = random_packed(format, rows, k, false);
    const operand x = random_operand(tokens * k, GM_T_F32, SMALL), out = operand_of((size_t)(tokens * rows) * 4);
    gm_packed_matmul_args d = {.out = floats_of(out.device),
                               .x = x.device,
                               .weight = {.data = w.packed.device, .format = format, .rows = rows, .k = k},
                               .prompt = true};
    if (!device_cuda.contracts->packed_matmul(&device_recorder, &d, tokens))
        failed++;
    CHECK_ALONE(packed_matmul, d, k * 4, tokens, out, rows * 4);
}
/* Rows that were rounded before give what float32 ones give. */
static void rounded_x_case(int format, int64_t tokens, int64_t rows, int64_t k) {
    const packed_pair w = random_packed(format, rows, k, false);
    const operand x = random_operand(tokens * k, GM_T_F32, SMALL), out = operand_of((size_t)(tokens * rows) * 4);
    const operand halves = operand_of((size_t)(tokens * k) * 2);
    const gm_copy_args copy = rounded_copy(halves.device, x.device, tokens * k);
    gm_packed_matmul_args d = {.out = floats_of(out.device),
                               .x = x.device,
                               .weight = {.data = w.packed.device, .format = format, .rows = rows, .k = k},
                               .prompt = true};
    if (!device_cuda.contracts->packed_matmul(&device_recorder, &d, tokens))
        failed++;
    copy_bytes(out.host, out.device, (size_t)(tokens * rows) * 4);
    d.x = halves.device, d.form = GM_FORM_BF16;
    if (!device_cuda.contracts->copy(&device_recorder, &copy, tokens * k) ||
        !device_cuda.contracts->packed_matmul(&device_recorder, &d, tokens))
        failed++;
    compare_out(gm_quants[format].doc, out, tokens * rows, GM_T_F32, 0, 0);
}
/* The first rows and the last ones alone have the bits that they have among all. */
static void large_units_case(int format, int64_t tokens, int64_t rows, int64_t k) {
    const packed_pair w = random_packed(format, rows, k, false);
    const int64_t few = 3, count = few * rows;
    const operand x = random_operand(tokens * k, GM_T_F32, SMALL), out = operand_of((size_t)(tokens * rows) * 4);
    const operand alone = operand_of((size_t)count * 4);
    const gm_matrix weight = {.data = w.packed.device, .format = format, .rows = rows, .k = k};
    gm_packed_glu_args d = {.out = out.device, .x = x.device, .gate = weight, .up = weight, .prompt = true};
    if (!device_cuda.contracts->packed_glu(&device_recorder, &d, tokens))
        failed++;
    d.out = alone.device;
    for (int64_t first = 0; first < tokens; first += tokens - few) {
        d.x = x.device + first * k * 4;
        if (!device_cuda.contracts->packed_glu(&device_recorder, &d, few))
            failed++;
        copy_bytes(alone.host, out.device + first * rows * 4, (size_t)count * 4);
        compare_out("alone", alone, count, GM_T_F32, 0, 0);
    }
}
/* Products by the tests' own library until now (fake_blaslt.c); 0: it is another. */
static long library_products(void) {
    void *const library = dlopen(getenv("GOMLX_CUDA_BLASLT"), RTLD_NOW | RTLD_NOLOAD);
    long (*count)(const char *) = NULL;
    void *const symbol = library ? dlsym(library, "fake_blaslt_count") : NULL;
    memcpy(&count, &symbol, sizeof count);
    return count ? count("multiply") : 0;
}
/* Few rows take products of all units but the last ones, which have an algorithm of their own. */
static void few_rows_case(void) {
    const packed_pair w = random_packed(GM_QUANT_bf16, 4608, 64, false);
    const operand x = random_operand(64 * 64, GM_T_F32, SMALL), out = operand_of((size_t)(64 * 4608) * 4);
    const gm_matrix weight = {.data = w.packed.device, .format = GM_QUANT_bf16, .rows = 4608, .k = 64};
    const gm_packed_glu_args d = {.out = out.device, .x = x.device, .gate = weight, .up = weight, .prompt = true};
    const int32_t before = (int32_t)library_products();
    if (!device_cuda.contracts->packed_glu(&device_recorder, &d, 64))
        failed++;
    const int32_t made = (int32_t)library_products() - before, want = 4;
    if (library_products())
        compare("products of few rows", &want, &made, 1, GM_T_I32, 0, 0);
}
static void check_large_prompts(void) {
    for (int format = GM_QUANT_bf16; format < GM_QUANT_COUNT; format++, free_memory())
        rounded_x_case(format, 5, 1 + below(40), random_k(format) / 8 * 8 + (format == GM_QUANT_bf16 ? 8 : 0));
    const int64_t large = cases < 20 ? 256 : 2048;
    for (int i = 0; i < 2; i++, free_memory()) {
        const int format = i ? GM_QUANT_q4_0 : GM_QUANT_bf16;
        large_product_case(format, large / 8 + 9, large, 256);
        large_units_case(format, large / 8 + 9, large, 256);
    }
    if (!blaslt_prompt_workspace(1024, 64))
        return;
    large_units_case(GM_QUANT_q8_0, 2051, 1024, 64); /* more rows, and then more units, than are made at once */
    large_units_case(GM_QUANT_bf16, 70, 4608, 64);
    few_rows_case();
    free_memory();
}
#endif
