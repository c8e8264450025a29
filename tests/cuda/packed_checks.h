/* packed_checks.h - checks of packed matrices: every format of quants.def, rows into them and out of them bit for bit,
 * products and mixtures of experts, each row of which has the bits that it has alone. */
#ifndef GOMLX_TESTS_PACKED_CHECKS_H
#define GOMLX_TESTS_PACKED_CHECKS_H
#include "cuda/launch.h"
#include "layer_checks.h"

/* A matrix as its file has it and packed by both sides. */
typedef struct {
    int format;
    int64_t rows, k;
    operand file, packed; /* packed.host: the processor's panels */
} packed_pair;

/* Rows and k that some formats have tiles of (tiles.cuh); k: of several parts. */
static int64_t whole_rows(void) { return 16 * (1 + below(cases < 20 ? 2 : 5)); }
static int64_t whole_k(int format) {
    const int64_t values = gm_quants[format].values, tile = values < 64 ? 64 : values;
    return tile * (1 + below(values == 256 ? 10 : 20));
}
static int64_t random_k(int format) {
    static const int64_t dense[] = {1, 7, 8, 33, 255, 256, 257, 300, 520};
    const int64_t values = gm_quants[format].values;
    return values == 1 ? dense[below(9)] : values * (1 + below(values == 256 ? 3 : 11));
}
static bool is_moderate(int format, const uint8_t *block) {
    float values[256];
    const gm_dequantize_args a = {values, block, format, gm_quants[format].values};
    contracts_cpu.dequantize(&host_recorder, &a, 1);
    for (int i = 0; i < gm_quants[format].values; i++)
        if (!(fabsf(values[i]) < 8))
            return false;
    return true;
}
/* A block of random bits, all of them where `any`, else with values that products can be of. */
static void random_block(int format, uint8_t *block, bool any) {
    const gm_quant_info *f = &gm_quants[format];
    do {
        for (int i = 0; i < f->bytes; i++)
            block[i] = (uint8_t)next_random();
        if (f->bits && !any) {
            const int type = f->scale == GM_QUANT_f16 ? GM_T_F16 : f->scale == GM_QUANT_bf16 ? GM_T_BF16 : GM_T_F32;
            uint8_t pair[8];
            put_float(pair, 0, (float)(unit() - 0.5) / (float)(1 << (f->bits - 1)), type);
            put_float(pair, 1, (float)(unit() - 0.5), type);
            memcpy(block, pair, (size_t)(2 * bytes_of(type)));
        }
    } while (!any && !is_moderate(format, block));
}
static packed_pair random_packed(int format, int64_t rows, int64_t k, bool any) {
    const gm_quant_info *f = &gm_quants[format];
    const int64_t blocks = rows * (k / f->values);
    packed_pair w = {format, rows, k, operand_of((size_t)(blocks * f->bytes)), {0}};
    for (int64_t b = 0; b < blocks; b++)
        random_block(format, (uint8_t *)w.file.host + b * f->bytes, any);
    upload(w.file);
    w.packed = operand_of((size_t)contracts_cpu.packed_bytes(host_recorder.kernels, format, rows, k));
    gm_pack_args h = {.out = w.packed.host, .in = w.file.host, .format = format, .rows = rows, .k = k}, d = h;
    d.out = w.packed.device;
    d.in = w.file.device;
    contracts_cpu.pack(&host_recorder, &h, rows);
    if (!device_cuda.contracts->pack(&device_recorder, &d, rows))
        failed++;
    return w;
}
/* Chosen rows of both sides' packed matrices, which must have the same bits. */
static void compare_rows(const packed_pair *w, float scale) {
    const int64_t n = 1 + below(9);
    const operand tokens = random_positions(n, w->rows), out = operand_of((size_t)(n * w->k) * 4);
    gm_embed_args h = {.out = floats_of(out.host),
                       .weight = w->packed.host,
                       .tokens = ints_of(tokens.host),
                       .format = w->format,
                       .rows = w->rows,
                       .k = w->k,
                       .scale = scale},
                  d = h;
    d.out = floats_of(out.device), d.weight = w->packed.device, d.tokens = ints_of(tokens.device);
    RUN_BOTH(embed, h, d, n, out, (size_t)(n * w->k) * 4);
    compare_out(gm_quants[w->format].doc, out, n * w->k, GM_T_F32, 0, 0);
}
static void check_embed(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory()) {
            const packed_pair w = random_packed(format, 1 + below(70), random_k(format), c % 2);
            compare_rows(&w, c % 3 ? 1 : 0.7f);
            const packed_pair whole = random_packed(format, whole_rows(), whole_k(format), true);
            compare_rows(&whole, 1);
        }
}
static void check_dequantize(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++, free_memory()) {
        const int64_t rows = 1 + below(9), k = random_k(format);
        const packed_pair w = random_packed(format, rows, k, true);
        const operand out = operand_of((size_t)(rows * k) * 4);
        gm_dequantize_args h = {floats_of(out.host), w.file.host, format, k}, d = h;
        d.out = floats_of(out.device), d.in = w.file.device;
        RUN_BOTH(dequantize, h, d, rows, out, (size_t)(rows * k) * 4);
        compare_out(gm_quants[format].doc, out, rows * k, GM_T_F32, 0, 0);
    }
}

/* ---- packing: rows of a file in another order, and MLX's arrays ---- */
static void packed_in_order(int format, int64_t rows, int64_t k) {
    packed_pair w = random_packed(format, rows, k, true);
    int32_t *map = host_memory((size_t)w.rows * sizeof *map);
    for (int64_t r = 0; r < w.rows; r++)
        map[r] = (int32_t)below(w.rows);
    gm_pack_args h = {.out = w.packed.host,
                      .in = w.file.host,
                      .row_map = map,
                      .format = format,
                      .rows = w.rows,
                      .k = w.k},
                 d = h;
    d.out = w.packed.device, d.in = w.file.device;
    contracts_cpu.pack(&host_recorder, &h, w.rows);
    if (!device_cuda.contracts->pack(&device_recorder, &d, w.rows))
        failed++;
    compare_rows(&w, 1);
}
static operand random_bytes(int64_t n) {
    const operand o = operand_of((size_t)n + 8);
    for (int64_t i = 0; i < n; i++)
        o.host[i] = (char)next_random();
    upload(o);
    return o;
}
static void packed_of_arrays(int format, int64_t rows, int64_t k) {
    const gm_quant_info *f = &gm_quants[format];
    packed_pair w = random_packed(format, rows, k, true);
    const int64_t blocks = w.rows * (w.k / f->values);
    const operand fields = random_bytes(blocks * f->bytes), scales = random_bytes(4 * blocks);
    const operand biases = random_bytes(4 * blocks);
    gm_pack_args h = {.out = w.packed.host,
                      .in = fields.host,
                      .format = format,
                      .rows = w.rows,
                      .k = w.k,
                      .scales = scales.host,
                      .biases = f->bits ? biases.host : NULL},
                 d = h;
    d.out = w.packed.device, d.in = fields.device, d.scales = scales.device;
    d.biases = f->bits ? biases.device : NULL;
    contracts_cpu.pack(&host_recorder, &h, w.rows);
    if (!device_cuda.contracts->pack(&device_recorder, &d, w.rows))
        failed++;
    compare_rows(&w, 1);
}
static void check_pack(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++) {
        packed_in_order(format, 1 + below(70), random_k(format));
        packed_in_order(format, whole_rows(), whole_k(format));
        free_memory();
        if (gm_quants[format].bits || format == GM_QUANT_mxfp4 || format == GM_QUANT_mxfp8 ||
            format == GM_QUANT_nvfp4) {
            packed_of_arrays(format, 1 + below(70), random_k(format));
            packed_of_arrays(format, whole_rows(), whole_k(format));
        }
        free_memory();
    }
}

/* ---- products ---- */
static const int64_t token_counts[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 512};
/* In few cases, of kernels that the host's compiler made, as few as fill the columns of mma, and one more. */
static int64_t random_tokens(int64_t rows) { return token_counts[below(cases < 20 ? 6 : rows > 20 ? 8 : 12)]; }
static const float sum_ulps = 256, prompt_ulps = 1 << 18; /* prompt: of the largest; what is rounded has eight bits */

/* Each of some tokens alone on the device gives the bits that it has among the others, which out holds. */
#define CHECK_ALONE(name, d, x_bytes, tokens, out, out_bytes)                                                          \
    do {                                                                                                               \
        const size_t each = (size_t)(out_bytes);                                                                       \
        const operand alone = operand_of(each);                                                                        \
        char *all = host_memory(each * (size_t)(tokens));                                                              \
        copy_bytes(all, (out).device, each * (size_t)(tokens));                                                        \
        for (int64_t t = 0; t < (tokens); t += 1 + (tokens) / (cases < 20 ? 2 : 5)) {                                  \
            (d).x = (void *)(x.device + t * (x_bytes));                                                                \
            (d).out = (void *)alone.device;                                                                            \
            if (!device_cuda.contracts->name(&device_recorder, &(d), 1))                                               \
                failed++;                                                                                              \
            copy_bytes(alone.host, alone.device, each);                                                                \
            compare("alone", all + (size_t)t * each, alone.host, (int64_t)each, GM_T_U8, 0, 0);                        \
        }                                                                                                              \
    } while (0)

static void packed_product_case(int format, int c, bool whole) {
    const int64_t rows = whole ? whole_rows() : c % 2 ? 1 + below(20) : 21 + below(60), tokens = random_tokens(rows);
    const int64_t k = whole ? whole_k(format) : random_k(format);
    const packed_pair w = random_packed(format, rows, k, false);
    const bool rounded = format == GM_QUANT_bf16 && (c + whole) % 2;
    const int type = rounded ? GM_T_BF16 : GM_T_F32;
    const operand x = random_operand(tokens * k, type, SMALL), bias = random_operand(rows, GM_T_F32, SMALL);
    const operand residual = random_operand(tokens * rows, GM_T_F32, SMALL);
    const operand out = operand_of((size_t)(tokens * rows) * 4);
    gm_packed_matmul_args h = {.out = floats_of(out.host),
                               .x = x.host,
                               .form = rounded ? GM_FORM_BF16 : GM_FORM_F32,
                               .weight = {.data = w.packed.host, .format = format, .rows = rows, .k = k},
                               .bias = c % 3 ? floats_of(bias.host) : NULL},
                          d = h;
    d.out = floats_of(out.device), d.x = x.device, d.weight.data = w.packed.device;
    if (h.bias)
        d.bias = floats_of(bias.device);
    RUN_BOTH(packed_matmul, h, d, tokens, out, (size_t)(tokens * rows) * 4);
    const bool tiles = rows % 16 == 0;
    const float ulps = tiles ? 4 * sum_ulps : sum_ulps; /* tensor cores cut what they add */
    const double size = tiles ? fmax(largest_of(out, tokens * rows, GM_T_F32), 1) : 1;
    compare_out(gm_quants[format].doc, out, tokens * rows, GM_T_F32, ulps, size);
    CHECK_ALONE(packed_matmul, d, k * bytes_of(type), tokens, out, rows * 4);
    d.prompt = true, d.x = x.device, d.out = floats_of(out.device);
    RUN_BOTH(packed_matmul, h, d, tokens, out, (size_t)(tokens * rows) * 4);
    compare_out("of a prompt", out, tokens * rows, GM_T_F32, prompt_ulps,
                fmax(largest_of(out, tokens * rows, GM_T_F32), 1));
    CHECK_ALONE(packed_matmul, d, k * bytes_of(type), tokens, out, rows * 4);
    d.prompt = c % 2;
    h.residual = floats_of(residual.host), d.residual = floats_of(residual.device);
    d.x = x.device, d.out = floats_of(out.device);
    RUN_BOTH(packed_matmul, h, d, tokens, out, (size_t)(tokens * rows) * 4);
    const bool rounds = d.prompt;
    const double of_all = rounds ? fmax(largest_of(out, tokens * rows, GM_T_F32), 1) : size;
    compare_out("with a residual", out, tokens * rows, GM_T_F32, rounds ? prompt_ulps : ulps, of_all);
    RUN_IN_PLACE(packed_matmul, d, residual, tokens, out, residual, tokens * rows * 4);
    compare_out("over the residual", out, tokens * rows, GM_T_F32, rounds ? prompt_ulps : ulps, of_all);
}
static void check_packed_matmul(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory())
            packed_product_case(format, c, false), packed_product_case(format, c, true);
}
/* ---- units of prompts: of sums that cancel, which act and the other factor make larger, those of numbers that are not
 * rounded say little. What is expected is of rows and matrices that are, as the device's. ---- */
static float of_16_bits(float x, bool half) {
    int e;
    frexpf(x, &e);
    const float step = ldexpf(1, half ? e < -13 ? -24 : e - 11 : e - 8);
    return rintf(x / step) * step;
}
static float *rounded_matrix(const packed_pair *w, bool half) {
    int32_t *all = host_memory((size_t)w->rows * sizeof *all);
    float *out = host_memory((size_t)(w->rows * w->k) * sizeof *out);
    for (int64_t r = 0; r < w->rows; r++)
        all[r] = (int32_t)r;
    contracts_cpu.embed(&host_recorder,
                        &(gm_embed_args){.out = out,
                                         .weight = w->packed.host,
                                         .tokens = all,
                                         .format = w->format,
                                         .rows = w->rows,
                                         .k = w->k,
                                         .scale = 1},
                        w->rows);
    for (int64_t i = 0; i < w->rows * w->k; i++)
        out[i] = of_16_bits(out[i], half);
    return out;
}
static void expect_prompt_units(const gm_packed_glu_args *h, const packed_pair *gate, const packed_pair *up,
                                int64_t tokens) {
    const int64_t rows = gate->rows, k = gate->k;
    const bool half = gate->format == GM_QUANT_f16 && up->format == GM_QUANT_f16;
    const float *const w[2] = {rounded_matrix(gate, half), rounded_matrix(up, half)};
    float *sums[2], *x = host_memory((size_t)(tokens * k) * sizeof *x);
    for (int64_t i = 0; i < tokens * k; i++)
        x[i] = of_16_bits(((const float *)h->x)[i], half);
    for (int m = 0; m < 2; m++) {
        sums[m] = host_memory((size_t)(tokens * rows) * sizeof *sums[m]);
        for (int64_t at = 0; at < tokens * rows; at++) {
            double sum = 0;
            for (int64_t i = 0; i < k; i++)
                sum += (double)x[at / rows * k + i] * w[m][at % rows * k + i];
            sums[m][at] = (float)sum;
        }
    }
    const gm_glu_args units = {.out = h->out,
                               .gate = sums[0],
                               .up = sums[1],
                               .dim = rows,
                               .gate_stride = rows,
                               .up_stride = rows,
                               .kind = h->kind};
    contracts_cpu.glu(&host_recorder, &units, tokens);
}
static void packed_glu_case(int format, int c, bool whole) {
    const int64_t rows = whole ? whole_rows() : 1 + below(40), tokens = random_tokens(rows);
    const int64_t k = whole ? whole_k(format) : random_k(format);
    const bool rounded = format == GM_QUANT_bf16 && (c + whole) % 2;
    const int other = !whole && format > GM_QUANT_bf16 && gm_quants[format].values == 256 ? GM_QUANT_q6_k : format;
    const packed_pair gate = random_packed(format, rows, k, false), up = random_packed(other, rows, k, false);
    const int type = rounded ? GM_T_BF16 : GM_T_F32;
    const operand x = random_operand(tokens * k, type, SMALL), out = operand_of((size_t)(tokens * rows) * 4);
    gm_packed_glu_args h = {.out = out.host,
                            .out_form = rounded ? GM_FORM_BF16 : GM_FORM_F32,
                            .x = x.host,
                            .form = rounded ? GM_FORM_BF16 : GM_FORM_F32,
                            .gate = {.data = gate.packed.host, .format = format, .rows = rows, .k = k},
                            .up = {.data = up.packed.host, .format = other, .rows = rows, .k = k},
                            .kind = c % 2 ? GM_GLU_GELU : GM_GLU_SILU},
                       d = h;
    d.out = out.device, d.x = x.device, d.gate.data = gate.packed.device, d.up.data = up.packed.device;
    RUN_BOTH(packed_glu, h, d, tokens, out, (size_t)(tokens * rows * bytes_of(type)));
    compare_out(gm_quants[format].doc, out, tokens * rows, type, rounded ? 1 : 4 * sum_ulps,
                fmax(largest_of(out, tokens * rows, type), 1));
    CHECK_ALONE(packed_glu, d, k * bytes_of(type), tokens, out, rows * bytes_of(type));
    d.prompt = true, d.x = x.device, d.out = out.device;
    RUN_BOTH(packed_glu, h, d, tokens, out, (size_t)(tokens * rows * bytes_of(type)));
    if (!rounded && format != GM_QUANT_f32 && k % 8 == 0)
        expect_prompt_units(&h, &gate, &up, tokens);
    compare_out("of a prompt", out, tokens * rows, type, rounded ? 4 : 16 * sum_ulps,
                fmax(largest_of(out, tokens * rows, type), 1));
    CHECK_ALONE(packed_glu, d, k * bytes_of(type), tokens, out, rows * bytes_of(type));
}
static void check_packed_glu(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory())
            packed_glu_case(format, c, false), packed_glu_case(format, c, true);
}

/* ---- products of rows that are normed first: as the processor makes them one after another ---- */
typedef struct {
    operand x, norm;
    gm_made_rows host, device;
    int64_t tokens, k;
} made_pair;
static made_pair random_made_rows(int64_t tokens, int64_t k, bool normed, gm_row_form form) {
    const made_pair m = {
        random_operand(tokens * k, GM_T_F32, SMALL), random_operand(k, GM_T_F32, SMALL), {0}, {0}, tokens, k};
    made_pair made = m;
    made.host = (gm_made_rows){floats_of(m.x.host), normed ? floats_of(m.norm.host) : NULL, 1e-5f, form};
    made.device = (gm_made_rows){floats_of(m.x.device), normed ? floats_of(m.norm.device) : NULL, 1e-5f, form};
    return made;
}
/* Rows that bfloat16 rounds the other way have other bits than those before it by an ulp. */
static float made_ulps(gm_row_form form) { return form == GM_FORM_BF16 ? 1 << 16 : 4 * sum_ulps; }
/* Each of some tokens alone gives the bits that it has among the others, which outs hold. */
static void products_alone(gm_packed_products_args d, const made_pair *m, const operand *outs, operand residual) {
    char *all[GM_PRODUCTS];
    size_t each[GM_PRODUCTS];
    for (int i = 0; i < d.count; i++) {
        each[i] = (size_t)d.parts[i].weight.rows * 4;
        all[i] = host_memory(each[i] * (size_t)m->tokens);
        copy_bytes(all[i], outs[i].device, each[i] * (size_t)m->tokens);
        d.parts[i].out = device_memory(each[i]);
    }
    for (int64_t t = 0; t < m->tokens; t += 1 + m->tokens / 2) {
        d.rows.x = floats_of(m->x.device) + t * m->k;
        if (d.residual)
            d.residual = floats_of(residual.device) + t * d.parts->weight.rows;
        if (!device_cuda.contracts->packed_products(&device_recorder, &d, 1))
            failed++;
        for (int i = 0; i < d.count; i++) {
            char *alone = host_memory(each[i]);
            copy_bytes(alone, d.parts[i].out, each[i]);
            compare("alone", all[i] + (size_t)t * each[i], alone, (int64_t)each[i], GM_T_U8, 0, 0);
        }
    }
}
/* Product i of a format, to out. */
static void add_product(gm_packed_products_args *h, gm_packed_products_args *d, operand *out, int i, int format,
                        int64_t rows, int64_t k, int64_t tokens) {
    const packed_pair w = random_packed(format, rows, k, false);
    const operand bias = random_operand(rows, GM_T_F32, SMALL);
    *out = operand_of((size_t)(tokens * rows) * 4);
    h->parts[i] = (gm_product_part){floats_of(out->host),
                                    {.data = w.packed.host, .format = w.format, .rows = rows, .k = k},
                                    i == 1 ? floats_of(bias.host) : NULL};
    d->parts[i] = h->parts[i];
    d->parts[i].out = floats_of(out->device), d->parts[i].weight.data = w.packed.device;
    d->parts[i].bias = i == 1 ? floats_of(bias.device) : NULL;
}
static void packed_products_case(int format, int c, bool whole, int64_t k) {
    const int count = 1 + (c + format) % GM_PRODUCTS;
    const int64_t tokens = random_tokens(21);
    const gm_row_form form = format == GM_QUANT_bf16 && (c + whole) % 2 ? GM_FORM_BF16 : GM_FORM_F32;
    const made_pair made = random_made_rows(tokens, k, c % 3 != 1, form);
    const int blocks = format == GM_QUANT_q8_0 ? GM_QUANT_q4_0 : GM_QUANT_q8_0;
    const int other = format == GM_QUANT_q4_k                 ? GM_QUANT_q6_k /* of the last */
                      : format == GM_QUANT_q6_k               ? GM_QUANT_q4_k
                      : format > GM_QUANT_bf16 && k % 32 == 0 ? blocks
                                                              : format;
    gm_packed_products_args h = {.rows = made.host, .count = count}, d = {.rows = made.device, .count = count};
    operand outs[GM_PRODUCTS];
    for (int i = 0; i < count; i++) {
        const int64_t rows = whole ? whole_rows() : 1 + below(30);
        add_product(&h, &d, &outs[i], i, i == 2 ? other : format, rows, k, tokens);
    }
    const int64_t rows = h.parts->weight.rows;
    const operand residual = random_operand(tokens * rows, GM_T_F32, SMALL);
    if (count == 1)
        h.residual = floats_of(residual.host), d.residual = floats_of(residual.device);
    RUN_BOTH(packed_products, h, d, tokens, *outs, (size_t)(tokens * rows) * 4);
    for (int i = 0; i < count; i++) {
        const int64_t all = tokens * h.parts[i].weight.rows;
        compare_out(gm_quants[format].doc, outs[i], all, GM_T_F32, made_ulps(form),
                    fmax(largest_of(outs[i], all, GM_T_F32), 1));
    }
    products_alone(d, &made, outs, residual);
}
/* Of a token, whose matrices of two formats are one launch, where both are in tiles. */
static void two_formats_case(int first, int64_t rows, int second, int64_t others, int64_t k) {
    const made_pair made = random_made_rows(1, k, true, GM_FORM_F32);
    const int64_t each[2] = {rows, others};
    gm_packed_products_args h = {.rows = made.host, .count = 2}, d = {.rows = made.device, .count = 2};
    operand outs[2];
    add_product(&h, &d, &outs[0], 0, first, rows, k, 1);
    add_product(&h, &d, &outs[1], 1, second, others, k, 1);
    RUN_BOTH(packed_products, h, d, 1, *outs, (size_t)rows * 4);
    for (int i = 0; i < 2; i++)
        compare_out("of two formats", outs[i], each[i], GM_T_F32, made_ulps(GM_FORM_F32),
                    fmax(largest_of(outs[i], each[i], GM_T_F32), 1));
    free_memory();
}
static void made_glu_case(int format, int c, bool whole) {
    const int64_t rows = whole ? whole_rows() : 1 + below(30), tokens = random_tokens(rows);
    const int64_t k = whole ? whole_k(format) : random_k(format);
    const bool rounded = format == GM_QUANT_bf16 && (c + whole) % 2;
    const gm_row_form form = rounded ? GM_FORM_BF16 : GM_FORM_F32;
    const int type = rounded ? GM_T_BF16 : GM_T_F32;
    const packed_pair gate = random_packed(format, rows, k, false), up = random_packed(format, rows, k, false);
    const made_pair made = random_made_rows(tokens, k, c % 3 != 2, form);
    const operand x = made.x, out = operand_of((size_t)(tokens * rows) * 4);
    gm_made_glu_args h = {made.host,
                          {.out = out.host,
                           .out_form = form,
                           .gate = {.data = gate.packed.host, .format = format, .rows = rows, .k = k},
                           .up = {.data = up.packed.host, .format = format, .rows = rows, .k = k},
                           .kind = c % 2 ? GM_GLU_GELU : GM_GLU_SILU}},
                     d = h;
    d.rows = made.device;
    d.glu.out = out.device, d.glu.gate.data = gate.packed.device, d.glu.up.data = up.packed.device;
    RUN_BOTH(made_glu, h, d, tokens, out, (size_t)(tokens * rows * bytes_of(type)));
    compare_out(gm_quants[format].doc, out, tokens * rows, type, rounded ? 2 : made_ulps(form),
                fmax(largest_of(out, tokens * rows, type), 1));
    const size_t each = (size_t)(rows * bytes_of(type));
    char *all = host_memory(each * (size_t)tokens), *alone = host_memory(each);
    copy_bytes(all, out.device, each * (size_t)tokens);
    const int64_t t = tokens / 2;
    d.rows.x = floats_of(x.device) + t * k;
    d.glu.out = device_memory(each);
    if (!device_cuda.contracts->made_glu(&device_recorder, &d, 1))
        failed++;
    copy_bytes(alone, d.glu.out, each);
    compare("alone", all + (size_t)t * each, alone, (int64_t)each, GM_T_U8, 0, 0);
}
static void check_made_glu(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory())
            made_glu_case(format, c, false), made_glu_case(format, c, true);
}
static void check_packed_products(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory())
            packed_products_case(format, c, false, random_k(format)),
                packed_products_case(format, c, true, whole_k(format));
    for (int format = 0; format < GM_QUANT_COUNT; format++) { /* parts of whole tiles, of which a lane keeps x */
        const int64_t tile = cuda_tile_values(format), most = tile ? CUDA_KEPT_X / tile : 0;
        for (int64_t tiles = 1; tiles <= (format == GM_QUANT_q4_0 ? most : most > 0); tiles++, free_memory())
            packed_products_case(format, 1 + (int)tiles, true,
                                 16 * tile * (format == GM_QUANT_q4_0 ? tiles : 1 + below(most)));
    }
    static const int long_rows[] = {GM_QUANT_bf16, GM_QUANT_q4_0, GM_QUANT_q6_k};
    static const int64_t lengths[] = {256 * 17, 256 * 49, 256 * 69}; /* of two eights a lane, of four, of any number */
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++, free_memory())
            packed_products_case(long_rows[i], 3 * i + j, true, lengths[(i + j) % 3]);
    two_formats_case(GM_QUANT_q6_k, 16 * 134, GM_QUANT_q4_k, 48, 256);
    two_formats_case(GM_QUANT_q4_k, 48, GM_QUANT_q6_k, 16, 256 * 3);
    two_formats_case(GM_QUANT_q4_k, 16, GM_QUANT_q6_k, 8, 256);
}

/* As many tokens as go over the weights together, of every format that has tiles, and one more: into rows of several
 * stages of a block (`rows`) and parts of k without a tile. */
static void many_tokens_case(int format, int64_t tokens, int64_t rows, int64_t k) {
    const bool rounded = format == GM_QUANT_bf16;
    const int type = rounded ? GM_T_BF16 : GM_T_F32;
    const packed_pair w = random_packed(format, rows, k, false), up = random_packed(format, rows, k, false);
    const operand x = random_operand(tokens * k, type, SMALL), out = operand_of((size_t)(tokens * rows) * 4);
    const gm_row_form form = rounded ? GM_FORM_BF16 : GM_FORM_F32;
    gm_packed_matmul_args h = {.out = floats_of(out.host),
                               .x = x.host,
                               .form = form,
                               .weight = {.data = w.packed.host, .format = format, .rows = rows, .k = k}},
                          d = h;
    d.out = floats_of(out.device), d.x = x.device, d.weight.data = w.packed.device;
    RUN_BOTH(packed_matmul, h, d, tokens, out, (size_t)(tokens * rows) * 4);
    compare_out(gm_quants[format].doc, out, tokens * rows, GM_T_F32, 4 * sum_ulps,
                fmax(largest_of(out, tokens * rows, GM_T_F32), 1));
    CHECK_ALONE(packed_matmul, d, k * bytes_of(type), tokens, out, rows * 4);
    gm_packed_glu_args g = {.out = out.host, .x = x.host, .form = form, .gate = h.weight, .up = h.weight}, e;
    g.up.data = up.packed.host;
    e = g;
    e.out = out.device, e.x = x.device, e.gate.data = w.packed.device, e.up.data = up.packed.device;
    RUN_BOTH(packed_glu, g, e, tokens, out, (size_t)(tokens * rows) * 4);
    compare_out("units", out, tokens * rows, GM_T_F32, 4 * sum_ulps, fmax(largest_of(out, tokens * rows, GM_T_F32), 1));
    CHECK_ALONE(packed_glu, e, k * bytes_of(type), tokens, out, rows * 4);
}
static void check_many_tokens(void) {
    static const int64_t counts[] = {9, 16, 17, 32, 33, 64, 65};
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 10; c++, free_memory())
            if (cuda_tile_values(format))
                many_tokens_case(format, counts[below(7)], whole_rows(), whole_k(format));
    static const int64_t several[] = {33, 16, 1}; /* the last by tiled.cu, of more products than sums wait */
    for (int i = 0; i < 3; i++, free_memory())
        many_tokens_case(i == 1 ? GM_QUANT_q4_0 : GM_QUANT_bf16, several[i], 16 * (132 * 4 + 5), 64);
}

/* ---- mixtures of experts ---- */
static void fill_stack(gm_matrix_stack *h, gm_matrix_stack *d, int format, int64_t experts, int64_t rows, int64_t k,
                       bool rounded, bool biased) {
    const size_t each = (size_t)contracts_cpu.packed_bytes(host_recorder.kernels, format, rows, k);
    const size_t there = (size_t)(rows * (k / gm_quants[format].values) * gm_quants[format].bytes);
    const operand all = operand_of((each > there ? each : there) * (size_t)experts);
    const operand bias = random_operand(experts * rows, GM_T_F32, SMALL);
    for (int64_t e = 0; e < experts; e++) {
        const packed_pair w = random_packed(format, rows, k, false);
        memcpy(all.host + (size_t)e * each, w.packed.host, each);
        copy_bytes(all.device + (size_t)e * there, w.packed.device, there); /* as models have them */
    }
    *h = (gm_matrix_stack){.data = all.host,
                           .format = format,
                           .bias = biased ? floats_of(bias.host) : NULL,
                           .form = rounded ? GM_FORM_BF16 : GM_FORM_F32};
    *d = *h;
    d->data = all.device;
    d->bias = biased ? floats_of(bias.device) : NULL;
}
static void experts_case(int format, int c, bool whole) {
    const int64_t experts = 1 + below(3), top_k = 1 + below(experts), tokens = 1 + below(4);
    const bool rounded = format == GM_QUANT_bf16 && c % 2;
    const int64_t values = gm_quants[format].values, few = values == 1 ? 1 + below(40) : values;
    const int64_t tile = cuda_tile_values(format), dim = whole ? tile * (1 + below(3)) : few;
    const int64_t inner = whole ? tile : values == 1 ? 1 + below(40) : values;
    const int64_t out_dim = whole ? 16 * (1 + below(3)) : 1 + below(12);
    const operand x = random_operand(tokens * dim, GM_T_F32, SMALL), ids = random_positions(tokens * top_k, experts);
    const operand weights = random_operand(tokens * top_k, GM_T_F32, SMALL);
    const operand out = operand_of((size_t)(tokens * out_dim) * 4);
    gm_experts_args h = {.out = floats_of(out.host),
                         .x = floats_of(x.host),
                         .weights = floats_of(weights.host),
                         .ids = ints_of(ids.host),
                         .top_k = top_k,
                         .experts = experts,
                         .dim = dim,
                         .inner = inner,
                         .out_dim = out_dim,
                         .act = (gm_glu_kind)(c % 3),
                         .alpha = 1.702f,
                         .limit = 7},
                    d = h;
    fill_stack(&h.gate, &d.gate, format, experts, inner, dim, rounded, c % 2);
    fill_stack(&h.up, &d.up, format, experts, inner, dim, rounded, c % 2);
    fill_stack(&h.down, &d.down, format, experts, out_dim, inner, rounded, c % 2);
    d.out = floats_of(out.device), d.x = floats_of(x.device), d.weights = floats_of(weights.device);
    d.ids = ints_of(ids.device);
    RUN_BOTH(experts, h, d, tokens, out, (size_t)(tokens * out_dim) * 4);
    compare_out(gm_quants[format].doc, out, tokens * out_dim, GM_T_F32, rounded ? 65536 : 1024,
                fmax(largest_of(out, tokens * out_dim, GM_T_F32), 1));
    const int64_t t = below(tokens); /* alone */
    const operand alone = operand_of((size_t)out_dim * 4), all = operand_of((size_t)out_dim * 4);
    copy_bytes(all.host, out.device + t * out_dim * 4, (size_t)out_dim * 4);
    d.out = floats_of(alone.device), d.x += t * dim, d.weights += t * top_k, d.ids += t * top_k;
    if (!device_cuda.contracts->experts(&device_recorder, &d, 1))
        failed++;
    copy_bytes(alone.host, alone.device, (size_t)out_dim * 4);
    compare("alone", all.host, alone.host, out_dim * 4, GM_T_U8, 0, 0);
}
static void check_experts(void) {
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int c = 0; c < 1 + cases / 30; c++, free_memory())
            experts_case(format, c + format, false);
}
static void check_tiled_experts(void) {
    for (int format = GM_QUANT_bf16 + 1; format < GM_QUANT_COUNT; format++, free_memory())
        if (cuda_tile_values(format))
            experts_case(format, format, true);
}
#endif
