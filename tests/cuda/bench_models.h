/* bench_models.h - how fast the parts of models run on a card (bench_kernels.c): attention over caches, products of
 * prompts' rows in the shapes of a decoder of eight billion weights. */
#ifndef GOMLX_TESTS_BENCH_MODELS_H
#define GOMLX_TESTS_BENCH_MODELS_H

/* A cache of one sequence: eight heads of 128 dimensions. */
#define BENCH_KV_HEADS 8
#define BENCH_HEADS 32
#define BENCH_DIM 128
static gm_cache_address *cache_of(int64_t blocks) {
    const int64_t each = BENCH_KV_HEADS * GM_KV_BLOCK * BENCH_DIM * 2;
    char *memory = filled(blocks * each, GM_T_F16), *table = device_memory((size_t)blocks * sizeof(void *));
    char *address = device_memory(sizeof(void *)), **of = host_memory((size_t)blocks * sizeof(void *));
    for (int64_t b = 0; b < blocks; b++)
        of[b] = memory + b * each;
    copy_bytes(table, of, (size_t)blocks * sizeof(void *));
    copy_bytes(address, &table, sizeof table);
    return (gm_cache_address *)(void *)address;
}
static void bench_attention_of(int64_t context, int64_t rows, double predicted) {
    const int64_t blocks = (context + GM_KV_BLOCK - 1) / GM_KV_BLOCK, q_dim = BENCH_HEADS * BENCH_DIM;
    int32_t *positions = host_memory((size_t)rows * 4);
    gm_query_tile *tiles = host_memory((size_t)rows * sizeof *tiles);
    char *sequence = filled(rows * 4, GM_T_F32), *places = device_memory((size_t)rows * 4);
    char *tile = device_memory((size_t)rows * sizeof *tiles), name[64];
    take_workspace((size_t)192 << 20);
    memset(positions, 0, (size_t)rows * 4);
    copy_bytes(sequence, positions, (size_t)rows * 4);
    for (int64_t i = 0; i < rows; i++)
        positions[i] = (int32_t)(context - rows + i);
    copy_bytes(places, positions, (size_t)rows * 4);
    const int64_t n_tiles = batch_put_tiles(tiles, 0, (int32_t)rows) - tiles;
    copy_bytes(tile, tiles, (size_t)n_tiles * sizeof *tiles);
    const gm_attention_args a = {.out = (float *)(void *)device_memory((size_t)(rows * q_dim) * 4),
                                 .q = (float *)(void *)filled(rows * q_dim * 4, GM_T_F32),
                                 .keys = cache_of(blocks),
                                 .values = cache_of(blocks),
                                 .sequence = (int32_t *)(void *)sequence,
                                 .positions = (int32_t *)(void *)places,
                                 .kv_type = GM_T_F16,
                                 .n_heads = BENCH_HEADS,
                                 .n_kv_heads = BENCH_KV_HEADS,
                                 .head_dim = BENCH_DIM,
                                 .scale = 0.088f,
                                 .tiles = (gm_query_tile *)(void *)tile,
                                 .max_blocks = blocks};
    const double bytes = 4.0 * (double)(context * BENCH_KV_HEADS * BENCH_DIM), pairs = (double)rows * (double)context;
    snprintf(name, sizeof name, "attention, %lld of %lld keys", (long long)rows, (long long)context);
    if (rows == 1)
        report(name, seconds_of(run_attention_rows, &a, 1), bytes, 0, predicted);
    else
        report(name, seconds_of(run_attention, &a, n_tiles), 0,
               4 * (double)q_dim * (pairs - (double)rows * (double)rows / 2), predicted);
    free_memory();
}
/* beside: what the library's GEMM of bfloat16 has of the same shape. */
static void bench_prompt_of(const char *what, int64_t tokens, int64_t rows, int64_t k, int format, double predicted) {
    const gm_quant_info *f = &gm_quants[format];
    const int64_t bytes = rows * (k / f->values) * f->bytes;
    char name[64];
    take_workspace((size_t)192 << 20);
    const gm_packed_matmul_args a = {.out = (float *)(void *)device_memory((size_t)(tokens * rows) * 4),
                                     .x = filled(tokens * k * 2, GM_T_BF16),
                                     .form = GM_FORM_BF16,
                                     .weight = {.data = filled(bytes, GM_T_U8), .format = format, .rows = rows, .k = k},
                                     .prompt = true};
    const gm_product_args library = {.out = device_memory((size_t)(tokens * rows) * 2),
                                     .x = a.x,
                                     .w = filled(rows * k * 2, GM_T_BF16),
                                     .type = GM_T_BF16,
                                     .rows = tokens,
                                     .columns = rows,
                                     .k = k,
                                     .out_row = rows,
                                     .out_column = 1,
                                     .x_row = k,
                                     .x_k = 1,
                                     .w_k = 1,
                                     .w_column = k,
                                     .alpha = 1};
    const double flops = 2.0 * (double)tokens * (double)rows * (double)k;
    const double ours = seconds_of(run_packed_matmul, &a, tokens), theirs = seconds_of(run_product, &library, 1);
    snprintf(name, sizeof name, "prompt %lld, %s %s", (long long)tokens, what, f->name);
    report(name, ours, 0, flops, predicted);
    printf("%-34s %9.1f us  %7.1f TFLOP/s  %5.1f %%\n", "... a product of bfloat16", theirs * 1e6,
           flops / theirs * 1e-12, 100 * theirs / ours);
    free_memory();
}
static void bench_models(void) {
    static const int formats[] = {GM_QUANT_bf16, GM_QUANT_q4_0, GM_QUANT_q4_k, GM_QUANT_q8_0};
    static const int64_t tokens[] = {512, 2048};
    const int64_t k = 4096 / divisor / 256 * 256 + (divisor > 16 ? 256 : 0);
    bench_attention_of(512, 1, 25);
    for (int i = 0; i < 2; i++)
        bench_attention_of((i ? 32768 : 8192) / divisor + 1, 1, i ? 85 : 75);
    bench_attention_of(4096 / divisor, 4096 / divisor, 150);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 4; i++) {
            bench_prompt_of("qkv", tokens[t] / divisor, 6144 / divisor, k, formats[i], i ? 380 : 480);
            bench_prompt_of("gate", tokens[t] / divisor, 14336 / divisor, k, formats[i], i ? 400 : 520);
            bench_prompt_of("down", tokens[t] / divisor, 4096 / divisor, 3 * k + k / 2 / 256 * 256, formats[i],
                            i ? 380 : 480);
        }
}
#endif
