/* layer_checks.h - checks of parts of networks: 8-bit floats, MLX's quantised matrices, rotary positions, recurrences,
 * convolutions, attention over plain arrays. */
#ifndef GOMLX_TESTS_LAYER_CHECKS_H
#define GOMLX_TESTS_LAYER_CHECKS_H
#include "device_check.h"

static operand random_operand(int64_t n, int type, values kind) {
    const operand o = operand_of((size_t)(n * bytes_of(type)) + 8);
    fill_random(o.host, n, type, kind);
    upload(o);
    return o;
}
static float *floats_of(char *p) { return (float *)(void *)p; }
static int32_t *ints_of(char *p) { return (int32_t *)(void *)p; }
/* The greatest magnitude: what errors of sums are measured by. */
static double largest_of(operand o, int64_t n, int type) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)float_at(o.host, i, type)));
    return most;
}

/* ---- 8-bit floats ---- */
static void check_fp8_encode(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int type = random_float_type();
        const int64_t n = c % 7 ? 1 + below(1500) : 0;
        const operand in = random_operand(n, type, c % 2 ? SPECIAL : SMALL), out = operand_of((size_t)n + 1);
        gm_fp8_encode_args h = {out.host, in.host, type}, d = {out.device, in.device, type};
        RUN_BOTH(fp8_encode, h, d, n, out, (size_t)n);
        compare_out(type_names[type], out, n, GM_T_U8, 0, 0);
    }
}
static void check_fp8_decode(void) {
    for (int type = GM_T_F16; type <= GM_T_F32; type++, free_memory()) {
        const operand in = operand_of(256), out = operand_of(256 * 4);
        for (int i = 0; i < 256; i++)
            in.host[i] = (char)i;
        upload(in);
        gm_fp8_decode_args h = {out.host, in.host, type}, d = {out.device, in.device, type};
        RUN_BOTH(fp8_decode, h, d, 256, out, (size_t)(256 * bytes_of(type)));
        compare_out(type_names[type], out, 256, type, 0, 0);
    }
}

/* ---- MLX's quantised matrices ---- */
typedef struct { gm_grouped host, device; } grouped_pair;
static const int affine_bits[] = {1, 2, 3, 4, 5, 6, 8}, affine_groups[] = {32, 64, 128};

static void choose_coding(int c, gm_grouped *w) {
    static const int groups[] = {0, 32, 32, 16}, bits[] = {0, 4, 8, 4};
    w->mode = c % 4;
    w->bits = w->mode == GM_AFFINE ? affine_bits[c / 4 % 7] : bits[w->mode];
    w->group = w->mode == GM_AFFINE ? affine_groups[below(3)] : groups[w->mode];
    w->scale_type = w->mode == GM_AFFINE ? random_float_type() : GM_T_U8;
}
/* Random fields, of which none is a NaN, and scales about 1. */
static grouped_pair random_matrices(gm_grouped w) {
    const int64_t values = w.matrices * w.rows * w.k, groups = values / w.group;
    const operand weight = operand_of((size_t)(values * w.bits / 8)), scales = operand_of((size_t)groups * 4);
    const operand biases = random_operand(groups, w.mode == GM_AFFINE ? w.scale_type : GM_T_F32, SMALL);
    for (size_t i = 0; i < weight.bytes; i++) {
        weight.host[i] = (char)next_random();
        if (w.mode == GM_MXFP8 && (weight.host[i] & 127) == 127)
            weight.host[i] = 8;
    }
    for (int64_t g = 0; g < groups; g++) {
        if (w.mode == GM_AFFINE)
            put_float(scales.host, g, (float)(unit() + 0.5) / (float)(1 << w.bits), w.scale_type);
        else
            scales.host[g] = (char)(w.mode == GM_NVFP4 ? 0x28 + below(32) : 120 + below(12));
    }
    if (w.mode == GM_MXFP4)
        scales.host[0] = 0; /* the one that is not the exponent of a float */
    upload(weight);
    upload(scales);
    grouped_pair p = {w, w};
    p.host.weight = weight.host, p.host.scales = scales.host, p.host.biases = biases.host;
    p.device.weight = weight.device, p.device.scales = scales.device, p.device.biases = biases.device;
    return p;
}
static const char *coding_of(const gm_grouped *w) {
    static char text[96];
    static const char *const modes[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};
    snprintf(text, sizeof text, "%s of %d bits, groups of %d", modes[w->mode], w->bits, w->group);
    return text;
}
static void check_group_dequantize(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        gm_grouped w = {.matrices = 1, .rows = 1 + below(20)};
        choose_coding(c, &w);
        w.k = w.group * (1 + below(5));
        const grouped_pair p = random_matrices(w);
        const int64_t n = w.rows * w.k;
        const int type = w.mode == GM_AFFINE ? w.scale_type : GM_T_F32;
        const operand out = operand_of((size_t)n * 4), global = random_operand(1, GM_T_F32, POSITIVE);
        const bool has_global = w.mode == GM_NVFP4 && below(2);
        gm_group_dequantize_args h = {p.host, out.host, has_global ? floats_of(global.host) : NULL};
        gm_group_dequantize_args d = {p.device, out.device, has_global ? floats_of(global.device) : NULL};
        RUN_BOTH(group_dequantize, h, d, n / w.group, out, (size_t)(n * bytes_of(type)));
        compare_out(coding_of(&w), out, n, type, 0, 0);
    }
}
/* Groups of random values; some of zeros, some all of one sign, some far smaller. */
static void check_group_quantize(void) {
    for (int c = 0; c < 3 * cases; c++, free_memory()) {
        gm_grouped w = {.rows = 1};
        choose_coding(c, &w);
        const int type = w.mode == GM_AFFINE ? w.scale_type : random_float_type();
        const int64_t groups = 1 + below(30), n = groups * w.group;
        const size_t bytes = (size_t)(n * w.bits / 8), scale_bytes = (size_t)groups * 4;
        const operand in = operand_of((size_t)n * 4), global = random_operand(1, GM_T_F32, POSITIVE);
        fill_random(in.host, n, type, PLAIN);
        for (int64_t g = 0; g < groups; g++) {
            const int kind = (int)below(8);
            for (int64_t i = g * w.group; i < (g + 1) * w.group && kind < 3; i++) {
                const float x = float_at(in.host, i, type);
                put_float(in.host, i, kind == 0 ? 0.0f : kind == 1 ? fabsf(x) + 1 : x * 0x1p-12f, type);
            }
        }
        upload(in);
        const operand weight = operand_of(bytes), scales = operand_of(scale_bytes), biases = operand_of(scale_bytes);
        const bool has_global = w.mode == GM_NVFP4 && below(2);
        gm_group_quantize_args h = {weight.host, scales.host, biases.host,
                                    in.host,     w.mode,      w.bits,
                                    w.group,     type,        has_global ? floats_of(global.host) : NULL},
                               d = h;
        d.weight = weight.device;
        d.scales = scales.device;
        d.biases = biases.device;
        d.in = in.device;
        d.global = has_global ? floats_of(global.device) : NULL;
        RUN_BOTH(group_quantize, h, d, groups, weight, bytes);
        compare_out(coding_of(&w), weight, (int64_t)bytes, GM_T_U8, 0, 0);
        compare_out(coding_of(&w), scales, groups, w.mode == GM_AFFINE ? type : GM_T_U8, 0, 0);
        if (w.mode == GM_AFFINE)
            compare_out(coding_of(&w), biases, groups, type, 0.25, 0);
    }
}
static operand random_choice(int64_t items, int64_t count) {
    const operand o = operand_of((size_t)items * 8);
    for (int64_t i = 0; i < items; i++)
        ((int64_t *)(void *)o.host)[i] = below(2 * count) - count;
    upload(o);
    return o;
}
/* k: at least so much; 0: some. halves: of so many bits, where x and the scales are of one type of 16; 0: any. */
static void quantized_case(int c, bool columns, int64_t rows, int64_t k, int halves) {
    gm_grouped w = {.matrices = 1 + below(3), .rows = rows ? rows : 1 + below(c % 5 ? 30 : 200)};
    choose_coding(c, &w);
    const int half = below(2) ? GM_T_F16 : GM_T_BF16;
    if (halves)
        w.bits = halves;
    if (halves && w.mode == GM_AFFINE)
        w.scale_type = half;
    w.k = w.group * (k ? (k + w.group - 1) / w.group : 1 + below(columns ? 3 : c % 3 ? 8 : 40));
    const bool gather = below(2);
    if (!gather)
        w.matrices = 1;
    const grouped_pair p = random_matrices(w);
    const int64_t tokens = 1 + below(4), items = gather ? 1 + below(5) : 1, x_count = gather ? 2 : 1;
    const int64_t taken = columns ? w.rows : w.k, given = columns ? w.k : w.rows, n = items * tokens * given;
    const int x_type = columns ? GM_T_F32 : halves ? half : random_float_type(), out_type = random_float_type();
    const operand x = random_operand(x_count * tokens * taken, x_type, SMALL), out = operand_of((size_t)n * 4);
    const operand x_index = random_choice(items, x_count), matrix_index = random_choice(items, w.matrices);
    gm_quantized_matmul_args h = {p.host, x.host, x_type, x_count, tokens, NULL, NULL, out.host, out_type}, d = h;
    d.w = p.device;
    d.x = x.device;
    d.out = out.device;
    if (gather) {
        h.x_index = (int64_t *)(void *)x_index.host, h.matrix_index = (int64_t *)(void *)matrix_index.host;
        d.x_index = (int64_t *)(void *)x_index.device, d.matrix_index = (int64_t *)(void *)matrix_index.device;
    }
    if (columns)
        RUN_BOTH(quantized_matmul_columns, h, d, items, out, (size_t)(n * bytes_of(out_type)));
    else
        RUN_BOTH(quantized_matmul, h, d, items, out, (size_t)(n * bytes_of(out_type)));
    const double ulps = out_type != GM_T_F32 ? 1 : w.k < 50000 ? 64 : 256; /* two orders of so many terms */
    compare_out(coding_of(&w), out, n, out_type, ulps, largest_of(out, n, out_type));
}
/* Of so many multiplications that the matrix is unpacked, in the type of x. */
static void unpacked_case(int c, bool columns) {
    gm_grouped w = {.matrices = 1, .rows = 136};
    choose_coding(5 * c, &w); /* so few cases have them all */
    w.k = 1024;
    const int type = columns ? GM_T_F32 : w.mode == GM_AFFINE ? random_float_type() : GM_T_BF16;
    const grouped_pair p = random_matrices(w);
    const int64_t tokens = 31 + below(3), taken = columns ? w.rows : w.k, n = tokens * (columns ? w.k : w.rows);
    const int out_type = columns ? random_float_type() : type;
    const operand x = random_operand(tokens * taken, type, SMALL), out = operand_of((size_t)n * 4);
    gm_quantized_matmul_args h = {p.host, x.host, type, 1, tokens, NULL, NULL, out.host, out_type}, d = h;
    d.w = p.device;
    d.x = x.device;
    d.out = out.device;
    if (columns)
        RUN_BOTH(quantized_matmul_columns, h, d, 1, out, (size_t)(n * bytes_of(out_type)));
    else
        RUN_BOTH(quantized_matmul, h, d, 1, out, (size_t)(n * bytes_of(out_type)));
    compare_out(coding_of(&w), out, n, out_type, out_type == GM_T_F32 ? 64 : 1, largest_of(out, n, out_type));
}
static void check_quantized_matmul(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory())
        quantized_case(c, false, 0, 0, 0);
    for (int c = 0; c < 2 * cases; c++, free_memory())
        unpacked_case(c, false);
    static const struct {
        int64_t rows, k; /* k that fits the memory of a block, or not, by all of its warps, or few */
    } shapes[] = {{1, 32},     {3, 640},    {17, 1000}, {260, 128}, {130, 2200}, {33, 5000},
                  {100, 6272}, {200, 4224}, {2, 20000}, {3, 51200}, {4, 102400}};
    static const struct {
        int c, halves; /* which coding; of how many bits where a kernel of its own has it */
    } codings[] = {{12, 0}, {12, 4}, {12, 8}, {13, 4}};
    for (size_t i = 0; i < 4 * (sizeof shapes / sizeof *shapes); i++, free_memory())
        quantized_case(codings[i % 4].c, false, shapes[i / 4].rows, shapes[i / 4].k, codings[i % 4].halves);
}
static void check_quantized_matmul_columns(void) {
    for (int c = 0; c < cases; c++, free_memory())
        unpacked_case(c, true);
    for (int c = 0; c < 2 * cases; c++, free_memory())
        quantized_case(c, true, 0, 0, 0);
}

/* ---- rotary positions ---- */
static operand random_positions(int64_t n, int64_t most) {
    const operand o = operand_of((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        ints_of(o.host)[i] = (int32_t)below(most);
    upload(o);
    return o;
}
static operand falling_frequencies(int64_t half) {
    const operand o = operand_of((size_t)half * 4);
    for (int64_t i = 0; i < half; i++)
        floats_of(o.host)[i] = (float)pow(10000, -(double)i / (double)half);
    upload(o);
    return o;
}
static void check_rope_table(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t batches = 1 + below(3), steps = 1 + below(9), half = 1 + below(150),
                      n = batches * steps * 2 * half;
        const operand offset = random_positions(batches, c % 4 ? 3000 : 200000), freqs = operand_of((size_t)half * 4);
        const operand out = operand_of((size_t)n * 4);
        for (int64_t i = 0; i < half; i++)
            floats_of(freqs.host)[i] = (float)pow(10000, (double)i / (double)half);
        upload(freqs);
        gm_rope_table_args h = {floats_of(out.host),
                                ints_of(offset.host),
                                steps,
                                half,
                                below(2) ? floats_of(freqs.host) : NULL,
                                10000,
                                below(2) ? 1.0f : 0.25f,
                                below(2)},
                           d = h;
        d.out = floats_of(out.device);
        d.offset = ints_of(offset.device);
        if (h.freqs)
            d.freqs = floats_of(freqs.device);
        RUN_BOTH(rope_table, h, d, batches * steps, out, (size_t)n * 4);
        compare_out(h.freqs ? "of frequencies" : "of a base", out, n, GM_T_F32, 4, 0.01);
    }
}
static void check_rope(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int type = random_float_type();
        const int64_t batches = 1 + below(3), heads = 1 + below(4), steps = 1 + below(5), half = 1 + below(70);
        const int64_t dim = 2 * half + (below(2) ? below(9) : 0), rows = batches * heads * steps, n = rows * dim;
        const operand x = random_operand(n, type, PLAIN),
                      angles = random_operand(batches * steps * 2 * half, GM_T_F32, SMALL);
        const operand out = operand_of((size_t)n * 4);
        const bool steps_first = below(2); /* x as [batches, steps, heads, dim] */
        gm_rope_args h = {.out = out.host,
                          .x = x.host,
                          .angles = floats_of(angles.host),
                          .type = type,
                          .heads = heads,
                          .steps = steps,
                          .dim = dim,
                          .half = half,
                          .batch_stride = heads * steps * dim,
                          .head_stride = steps_first ? dim : steps * dim,
                          .step_stride = steps_first ? heads * dim : dim,
                          .angle_stride = below(2) ? steps * 2 * half : 0,
                          .interleaved = c % 2},
                     d = h;
        d.out = out.device;
        d.x = x.device;
        d.angles = floats_of(angles.device);
        RUN_BOTH(rope, h, d, rows, out, (size_t)(n * bytes_of(type)));
        compare_out(c % 2 ? "pairs" : "halves", out, n, type, 0.25, 0);
        if (!steps_first) {
            RUN_IN_PLACE(rope, d, x, rows, out, x, n * bytes_of(type));
            compare_out("in place", out, n, type, 0.25, 0);
        }
    }
}

/* ---- training ---- */
static const int64_t training_sizes[] = {1, 3, 31, 32, 33, 255, 256, 257, 1000, 2049, 1024, 1028};
#define TRAINING_SIZES (int)(sizeof training_sizes / sizeof *training_sizes)
static void check_norm_grad(bool centred) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t dim = training_sizes[below(TRAINING_SIZES)], rows = below(20), n = rows * dim;
        const operand x = random_operand(n, GM_T_F32, PLAIN), grad = random_operand(n, GM_T_F32, PLAIN);
        const operand weight = random_operand(dim, GM_T_F32, PLAIN), out = operand_of((size_t)n * 4 + 4);
        const bool has_weight = below(2);
        gm_rms_norm_grad_args h = {floats_of(out.host),
                                   floats_of(x.host),
                                   has_weight ? floats_of(weight.host) : NULL,
                                   floats_of(grad.host),
                                   dim,
                                   1e-5f},
                              d = h;
        d.dx = floats_of(out.device), d.x = floats_of(x.device), d.grad = floats_of(grad.device);
        if (has_weight)
            d.weight = floats_of(weight.device);
        if (centred)
            RUN_BOTH(layer_norm_grad, h, d, rows, out, (size_t)n * 4);
        else
            RUN_BOTH(rms_norm_grad, h, d, rows, out, (size_t)n * 4);
        const double floor = largest_of(out, n, GM_T_F32);
        compare_out("dx", out, n, GM_T_F32, 256, floor);
        if (centred)
            RUN_IN_PLACE(layer_norm_grad, d, grad, rows, out, grad, n * 4);
        else
            RUN_IN_PLACE(rms_norm_grad, d, grad, rows, out, grad, n * 4);
        compare_out("in place", out, n, GM_T_F32, 256, floor);
    }
}
static void check_rms_norm_grad(void) { check_norm_grad(false); }
static void check_layer_norm_grad(void) { check_norm_grad(true); }

static void check_softmax_grad(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t dim = training_sizes[below(TRAINING_SIZES)], rows = below(20), n = rows * dim;
        const operand y = random_operand(n, GM_T_F32, POSITIVE), grad = random_operand(n, GM_T_F32, PLAIN);
        const operand out = operand_of((size_t)n * 4 + 4);
        gm_softmax_grad_args h = {floats_of(out.host), floats_of(y.host), floats_of(grad.host), dim}, d = h;
        d.dx = floats_of(out.device), d.y = floats_of(y.device), d.grad = floats_of(grad.device);
        RUN_BOTH(softmax_grad, h, d, rows, out, (size_t)n * 4);
        const double floor = largest_of(out, n, GM_T_F32);
        compare_out("dx", out, n, GM_T_F32, 64, floor);
        RUN_IN_PLACE(softmax_grad, d, grad, rows, out, grad, n * 4);
        compare_out("in place", out, n, GM_T_F32, 64, floor);
    }
}

/* Parts of many sizes, some empty, some of more than a block's elements, some that begin off a line of 16 bytes;
 * results beside their inputs, or in their places. */
static void check_adam(void) {
    static const int64_t sizes[] = {0, 1, 3, 4, 5, 257, 1024, 4095, 4096, 4097, 9001};
    enum { MOST = 5, INPUTS = 4, OUTPUTS = 3 };
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t count = 1 + below(MOST), in_place = below(2), apart = below(3) == 0;
        const operand numbers = random_operand(3, GM_T_F32, POSITIVE);
        gm_adam_part of_host[MOST], of_device[MOST];
        int64_t starts[MOST + 1] = {0};
        operand in[MOST][INPUTS], out[MOST][OUTPUTS];
        for (int64_t k = 0; k < count; k++) {
            const int64_t n = sizes[below(11)], bytes = (n + apart) * 4;
            starts[k + 1] = starts[k] + n;
            for (int i = 0; i < INPUTS; i++)
                in[k][i] = random_operand(n + apart, GM_T_F32, c % 4 ? PLAIN : SPECIAL);
            for (int i = 0; i < OUTPUTS; i++) {
                out[k][i] = in_place ? in[k][i + 1] : operand_of((size_t)bytes + 4);
                if (!in_place)
                    upload(out[k][i]);
            }
            of_host[k] = (gm_adam_part){floats_of(out[k][0].host) + apart, floats_of(out[k][1].host) + apart,
                                        floats_of(out[k][2].host) + apart, floats_of(in[k][1].host) + apart,
                                        floats_of(in[k][2].host) + apart,  floats_of(in[k][3].host) + apart,
                                        floats_of(in[k][0].host) + apart};
            of_device[k] = (gm_adam_part){floats_of(out[k][0].device) + apart, floats_of(out[k][1].device) + apart,
                                          floats_of(out[k][2].device) + apart, floats_of(in[k][1].device) + apart,
                                          floats_of(in[k][2].device) + apart,  floats_of(in[k][3].device) + apart,
                                          floats_of(in[k][0].device) + apart};
        }
        const bool shrinks = below(2), scales = below(2);
        const float *of = floats_of(numbers.host), *at = floats_of(numbers.device);
        const gm_adam_args h = {of_host, starts, count, of,   shrinks ? of + 1 : NULL, scales ? of + 2 : NULL, 0.9f,
                                0.1f,    0.99f,  0.01f, 1e-8f};
        gm_adam_args d = h;
        d.parts = of_device, d.rate = at, d.shrink = shrinks ? at + 1 : NULL, d.scale = scales ? at + 2 : NULL;
        if (!device_cuda.contracts->adam(&device_recorder, &d, starts[count]))
            failed++;
        contracts_cpu.adam(&host_recorder, &h, starts[count]);
        for (int64_t k = 0; k < count; k++)
            for (int i = 0; i < OUTPUTS; i++)
                compare_out("a step", out[k][i], starts[k + 1] - starts[k] + apart, GM_T_F32, 0, 0);
    }
}

/* ---- recurrences ---- */
static void check_gated_delta(void) {
    for (int c = 0; c < cases; c++, free_memory()) {
        const int64_t batch = 1 + below(2), key_heads = 1 + below(2), heads = key_heads * (1 + below(3));
        const int64_t tokens = c % 9 ? 1 + below(6) : 0, keys = 1 + below(70), values = 1 + below(20);
        const int64_t rows = batch * heads * values, n = rows * (tokens + keys), at = batch * tokens;
        const operand q = random_operand(at * key_heads * keys, GM_T_F32, SMALL);
        const operand k = random_operand(at * key_heads * keys, GM_T_F32, SMALL);
        const operand v = random_operand(at * heads * values, GM_T_F32, PLAIN);
        const operand gamma = random_operand(at * heads, GM_T_F32, SMALL),
                      beta = random_operand(at * heads, GM_T_F32, SMALL);
        const operand state = random_operand(rows * keys, GM_T_F32, SMALL), mask = random_operand(at, GM_T_BOOL, PLAIN);
        const operand out = operand_of((size_t)n * 4);
        const bool has_state = below(2), has_mask = below(2);
        gm_gated_delta_args h = {floats_of(out.host),
                                 floats_of(q.host),
                                 floats_of(k.host),
                                 floats_of(v.host),
                                 floats_of(gamma.host),
                                 floats_of(beta.host),
                                 has_state ? floats_of(state.host) : NULL,
                                 has_mask ? (uint8_t *)mask.host : NULL,
                                 tokens,
                                 heads,
                                 key_heads,
                                 keys,
                                 values};
        gm_gated_delta_args d = {floats_of(out.device),
                                 floats_of(q.device),
                                 floats_of(k.device),
                                 floats_of(v.device),
                                 floats_of(gamma.device),
                                 floats_of(beta.device),
                                 has_state ? floats_of(state.device) : NULL,
                                 has_mask ? (uint8_t *)mask.device : NULL,
                                 tokens,
                                 heads,
                                 key_heads,
                                 keys,
                                 values};
        RUN_BOTH(gated_delta, h, d, rows, out, (size_t)n * 4);
        compare_out("outputs and states", out, n, GM_T_F32, 256, largest_of(out, n, GM_T_F32));
    }
}

/* ---- convolutions ---- */
static void check_convolution(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        const int type = random_float_type(), axes = 1 + c % 3;
        gm_convolution_args h = {
            .type = type, .groups = 1 + (c % 4 == 0) * below(4), .channels = 1 + below(9), .filters = 1 + below(9)};
        const int64_t images = 1 + below(2);
        int64_t positions = 1, taps = 1, step = h.groups * h.channels;
        for (int d = 2; d >= 0; d--) {
            h.in[d] = h.positions[d] = h.taps[d] = h.stride[d] = h.dilation[d] = h.spread[d] = 1;
            if (d >= 3 - axes) { /* an output reads some item, or only what is outside */
                h.in[d] = 1 + below(axes == 1 ? 40 : 7);
                h.taps[d] = 1 + below(4);
                h.stride[d] = 1 + below(3);
                h.dilation[d] = 1 + below(2);
                h.spread[d] = below(4) ? 1 : 2;
                h.low[d] = below(4);
                const int64_t reach = (h.taps[d] - 1) * h.dilation[d] + 1, line = (h.in[d] - 1) * h.spread[d] + 1;
                const int64_t free_items = line + h.low[d] + below(3) - reach;
                h.positions[d] = 1 + (free_items > 0 ? free_items / h.stride[d] : 0);
            }
            h.steps[d] = step;
            step *= h.in[d];
            positions *= h.positions[d];
            taps *= h.taps[d];
        }
        h.image = step;
        const int64_t filters = h.groups * h.filters, n = images * positions * filters, k = taps * h.channels;
        const operand x = random_operand(images * step, type, PLAIN), w = random_operand(filters * k, type, PLAIN);
        const operand out = operand_of((size_t)n * 4);
        char what[96];
        gm_convolution_args d = h;
        h.out = out.host, h.x = x.host, h.w = w.host;
        d.out = out.device, d.x = x.device, d.w = w.device;
        RUN_BOTH(convolution, h, d, images, out, (size_t)(n * bytes_of(type)));
        snprintf(what, sizeof what, "%s, %d axes, %lld groups", type_names[type], axes, (long long)h.groups);
        compare_out(what, out, n, type, type == GM_T_F32 ? 32 : 2, 16 * sqrt((double)k));
    }
}

/* ---- attention over plain arrays ---- */
/* Strides of [batches, heads, rows, dim], or of an array that lies as [batches, rows, heads, dim]. */
static void attention_strides(int64_t strides[3], int64_t heads, int64_t rows, int64_t dim) {
    const bool rows_first = below(2);
    strides[0] = heads * rows * dim;
    strides[1] = rows_first ? dim : rows * dim;
    strides[2] = rows_first ? heads * dim : dim;
}
static void check_sdpa(void) {
    for (int c = 0; c < 2 * cases; c++, free_memory()) {
        static const int64_t dims[] = {1, 8, 32, 64, 80, 128, 256, 512}, all_keys[] = {1, 5, 33, 255, 256, 257, 530, 0};
        const bool is_long = c % 3 == 0; /* as many queries as products are worth it for */
        const int type = is_long && c % 2 ? GM_T_F32 : random_float_type();
        gm_sdpa_args h = {.type = type,
                          .batches = 1 + below(2),
                          .n_kv_heads = 1 + below(2),
                          .queries = is_long ? 32 + below(9) : 1 + below(6),
                          .keys = all_keys[below(8)],
                          .dim = dims[below(8)],
                          .value_dim = dims[below(8)]};
        h.n_heads = h.n_kv_heads * (1 + below(3));
        h.scale = 1 / sqrtf((float)h.dim);
        h.causal = below(is_long ? 4 : 2) == 1;
        attention_strides(h.q_strides, h.n_heads, h.queries, h.dim);
        attention_strides(h.k_strides, h.n_kv_heads, h.keys, h.dim);
        attention_strides(h.v_strides, h.n_kv_heads, h.keys, h.value_dim);
        const int64_t rows = h.batches * h.n_heads * h.queries, lines = h.batches * h.n_kv_heads * h.keys;
        const int64_t n = rows * h.value_dim;
        const operand q = random_operand(rows * h.dim, type, SMALL), k = random_operand(lines * h.dim, type, PLAIN);
        const operand v = random_operand(lines * h.value_dim, type, PLAIN), out = operand_of((size_t)n * 4);
        const operand sinks = random_operand(h.n_heads, GM_T_F32, PLAIN);
        const int mask_type = below(2) ? GM_T_BOOL : type;
        const operand mask = random_operand(rows * h.keys, mask_type, PLAIN);
        const bool has_mask = !h.causal && below(2), has_sinks = below(3) == 0;
        char what[96];
        h.mask_type = mask_type;
        h.mask_strides[0] = h.n_heads * h.queries * h.keys;
        h.mask_strides[1] = below(2) ? h.queries * h.keys : 0;
        h.mask_strides[2] = h.keys;
        h.mask_strides[3] = below(4) > 0;
        gm_sdpa_args d = h;
        h.out = out.host, h.q = q.host, h.k = k.host, h.v = v.host;
        d.out = out.device, d.q = q.device, d.k = k.device, d.v = v.device;
        if (has_mask)
            h.mask = mask.host, d.mask = mask.device;
        if (has_sinks)
            h.sinks = floats_of(sinks.host), d.sinks = floats_of(sinks.device);
        RUN_BOTH(sdpa, h, d, rows, out, (size_t)(n * bytes_of(type)));
        snprintf(what, sizeof what, "%s, %lld of %lld keys, dim %lld, %s%s%s", type_names[type], (long long)h.queries,
                 (long long)h.keys, (long long)h.dim, h.causal ? "causal " : "", has_mask ? "mask " : "",
                 has_sinks ? "sinks" : "");
        compare_out(what, out, n, type, type == GM_T_F32 ? 128 : 1, 1);
    }
}
#endif
