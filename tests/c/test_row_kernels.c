/* test_row_kernels.c - the kernels of rows: take, softmax, norms, gated units, routing, rope, dense products,
 * convolutions, attention, in every table that this machine runs, against their definitions in double, and bit for bit
 * against themselves however ranges, batches and blocks are cut. */
#include "kernel_check.h"

/* ---- take, softmax, norm, rope ---- */
static void test_rows(void) {
    int32_t table[12] = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32}, got[15];
    int64_t index[5] = {2, -1, 4, 0, -5};
    gm_index_fault fault = {0, 0};
    kernels->take(&(gm_take_args){.out = got,
                                  .in = table,
                                  .index = index,
                                  .type = GM_T_I32,
                                  .index_type = GM_T_I64,
                                  .size = 4,
                                  .step = 3,
                                  .count = 5,
                                  .dense_step = 3,
                                  .index_step = 1,
                                  .run = 3,
                                  .sparse_run = 1,
                                  .dense_run = 1,
                                  .fault = &fault},
                  0, 5);
    CHECK(got[0] == 20 && got[3] == 30 && got[6] == 0 && got[11] == 2 && got[14] == 0, "take");
    CHECK(fault.raised && (fault.index == 4 || fault.index == -5), "take: an index out of range is told");

    static const int types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64};
    for (int t = 0; t < 4; t++)
        for (int s = 1; s < N_SIZES; s++) {
            int64_t n = sizes[s], rows = 6, item = item_of(types[t]);
            char *in = buffer((size_t)(rows * n * item)), *out = buffer((size_t)(rows * n * item));
            for (int64_t i = 0; i < rows * n; i++)
                put(in, types[t], i, uniform() * 10);
            put(in, types[t], n, -(double)INFINITY);
            for (int64_t i = 0; i < n; i++)
                put(in, types[t], 3 * n + i, -(double)INFINITY);
            put(in, types[t], 4 * n, (double)INFINITY);
            put(in, types[t], 5 * n + n / 2, (double)NAN);
            gm_softmax_args a = {out, in, types[t], n, n};
            kernels->softmax(&a, 0, rows);
            for (int64_t r = 0; r < rows; r++) {
                double top = -(double)INFINITY, sum = 0;
                for (int64_t i = 0; i < n; i++)
                    top = fmax(top, get(in, types[t], r * n + i));
                for (int64_t i = 0; i < n; i++)
                    sum += exp(get(in, types[t], r * n + i) - top);
                for (int64_t i = 0; i < n; i++) {
                    double want = exp(get(in, types[t], r * n + i) - top) / sum, value = get(out, types[t], r * n + i);
                    double room = (3e-6 + 2 * epsilon_of(types[t])) * want + tiny_of(types[t]);
                    CHECK(want != want ? value != value : fabs(value - want) <= room,
                          "softmax type %d n %d row %d: %g, want %g", types[t], (int)n, (int)r, value, want);
                }
            }
            free_buffers();
        }
    for (int s = 1; s < N_SIZES; s++)
        for (int weighted = 0; weighted < 2; weighted++) {
            int64_t n = sizes[s], rows = 5;
            float *x = floats(rows * n, 3), *w = floats(n, 2), *out = buffer((size_t)(rows * n) * 4),
                  *one = buffer((size_t)n * 4);
            gm_rms_norm_args a = {out, x, weighted ? w : NULL, GM_T_F32, n, n, 1e-6f};
            kernels->rms_norm(&a, 0, rows);
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t i = 0; i < n; i++)
                    sum += (double)x[r * n + i] * (double)x[r * n + i];
                for (int64_t i = 0; i < n; i++) {
                    double want = (double)x[r * n + i] / sqrt(sum / (double)n + 1e-6) * (weighted ? (double)w[i] : 1);
                    CHECK(near_to((double)out[r * n + i], want, GM_T_F32, 4), "rms_norm n %d", (int)n);
                }
                kernels->rms_norm(&(gm_rms_norm_args){one, x + r * n, weighted ? w : NULL, GM_T_F32, n, n, 1e-6f}, 0,
                                  1);
                CHECK(same(one, out + r * n, (size_t)n * 4), "rms_norm alone, n %d", (int)n);
            }
            free_buffers();
        }
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        int64_t rows = 4, heads = 3, dim = 22, half = 9; /* rows are batches of one step */
        int32_t positions[4] = {0, 1, 77, 100000};
        float *frequency = floats(half, 1), *angles = buffer((size_t)(rows * 2 * half) * 4);
        float *x = floats(rows * heads * dim, 1), *out = buffer((size_t)(rows * heads * dim) * 4);
        kernels->rope_angles(&(gm_rope_angles_args){angles, positions, frequency, half, 1.5f}, 0, rows);
        kernels->rope(&(gm_rope_args){.out = out,
                                      .x = x,
                                      .angles = angles,
                                      .type = GM_T_F32,
                                      .heads = heads,
                                      .steps = 1,
                                      .dim = dim,
                                      .half = half,
                                      .batch_stride = heads * dim,
                                      .head_stride = dim,
                                      .angle_stride = 2 * half,
                                      .interleaved = interleaved != 0},
                      0, rows * heads);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t h = 0; h < heads; h++) {
                const float *in = x + (r * heads + h) * dim, *to = out + (r * heads + h) * dim;
                for (int64_t i = 0; i < half; i++) {
                    double angle = (double)((float)positions[r] * frequency[i]), c = cos(angle) * 1.5,
                           s = sin(angle) * 1.5;
                    int64_t p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + half;
                    CHECK(fabs((double)to[p] - ((double)in[p] * c - (double)in[q] * s)) < 6e-7, "rope low %g", angle);
                    CHECK(fabs((double)to[q] - ((double)in[q] * c + (double)in[p] * s)) < 6e-7, "rope high %g", angle);
                }
                for (int64_t i = 2 * half; i < dim; i++)
                    CHECK(to[i] == in[i], "rope passes the rest on");
            }
        int32_t offset[2] = {5, 100000};
        float *made = buffer((size_t)(2 * 3 * 2 * half) * 4);
        kernels->rope_table(&(gm_rope_table_args){.out = made,
                                                  .offset = offset,
                                                  .steps = 3,
                                                  .half = half,
                                                  .freqs = interleaved ? frequency : NULL,
                                                  .base = 100,
                                                  .scale = 0.5f,
                                                  .inverse = true},
                            0, 6);
        for (int64_t r = 0; r < 6; r++)
            for (int64_t i = 0; i < half; i++) {
                float each = interleaved ? 0.5f / frequency[i] : (float)(0.5 * pow(100, -(double)i / (double)half));
                double angle = (double)((float)(offset[r / 3] + r % 3) * each), room = 3e-7;
                CHECK(fabs((double)made[r * 2 * half + i] - cos(angle)) < room, "rope_table cos %g", angle);
                CHECK(fabs((double)made[(r * 2 + 1) * half + i] + sin(angle)) < room, "rope_table sin %g", angle);
            }
        free_buffers();
    }
}

/* ---- gated units, soft caps, routing ---- */
static double glu_of(gm_glu_kind kind, double g, double u, double alpha, double limit) {
    if (kind == GM_GLU_SILU)
        return g * sigmoid(g) * u;
    if (kind == GM_GLU_GELU)
        return g * sigmoid(2 * sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)) * u;
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return g * sigmoid(alpha * g) * (u + 1);
}
static void test_gated_units(void) {
    static const gm_glu_kind kinds[] = {GM_GLU_SILU, GM_GLU_GELU, GM_GLU_CLAMPED};
    for (int s = 1; s < N_SIZES; s++)
        for (int k = 0; k < 3; k++) {
            int64_t n = sizes[s], rows = 3;
            float *gate = floats(rows * n, 9), *up = floats(rows * n, 9), *out = buffer((size_t)(rows * n) * 4);
            gm_glu_args a = {.out = out,
                             .gate = gate,
                             .up = up,
                             .dim = n,
                             .gate_stride = n,
                             .up_stride = n,
                             .kind = kinds[k],
                             .alpha = 1.702f,
                             .limit = 7};
            gate[0] = NAN, up[rows * n - 1] = NAN;
            kernels->glu(&a, 0, 1);
            kernels->glu(&a, 1, rows);
            for (int64_t i = 0; i < rows * n; i++) {
                double want = glu_of(kinds[k], (double)gate[i], (double)up[i], (double)1.702f, 7);
                /* What rounding does to the argument of e**x is as large as that is. */
                CHECK(near_to((double)out[i], want, GM_T_F32, gate[i] < 0 ? 250 : 8) ||
                          (k == 2 && fabs((double)out[i] - want) < 1e-6),
                      "glu %d: %g of %g, want %g", (int)kinds[k], (double)out[i], (double)gate[i], want);
            }
            float *capped = buffer((size_t)n * 4);
            kernels->softcap(&(gm_softcap_args){capped, up, 3.5f}, 0, n / 2);
            kernels->softcap(&(gm_softcap_args){capped, up, 3.5f}, n / 2, n);
            for (int64_t i = 0; i < n; i++)
                CHECK(near_to((double)capped[i], 3.5 * tanh((double)up[i] / 3.5), GM_T_F32, 6), "softcap");
            free_buffers();
        }
}
static void test_route(void) {
    static const int64_t experts[] = {1, 2, 7, 16, 17, 64, 127, 1024};
    for (size_t c = 0; c < sizeof experts / sizeof *experts; c++)
        for (int mode = 0; mode < 4; mode++) {
            const int64_t n = experts[c], rows = 9, k = n < 3 ? n : c % 2 ? (n < 64 ? n : 64) : 3;
            float *logits = floats(rows * n, 4), *scale = floats(n, 2), *weights = buffer((size_t)(rows * k) * 4);
            int32_t *ids = buffer((size_t)(rows * k) * 4);
            for (int64_t i = n; i < 2 * n; i++)
                logits[i] = (float)(i % 3); /* ties */
            for (int64_t i = 2 * n; i < 3 * n; i++)
                logits[i] = NAN;
            for (int64_t i = 3 * n; i < 4 * n; i += 2)
                logits[i] = NAN;
            for (int64_t i = 4 * n; i < 5 * n; i++)
                logits[i] = -INFINITY;
            logits[5 * n] = INFINITY;
            gm_route_args a = {.ids = ids,
                               .weights = weights,
                               .logits = logits,
                               .scale = mode & 2 ? scale : NULL,
                               .experts = n,
                               .k = k,
                               .normalise = mode & 1};
            kernels->route(&a, 0, 4);
            kernels->route(&a, 4, rows);
            for (int64_t r = 0; r < rows; r++) {
                const float *x = logits + r * n;
                bool taken[1024] = {false};
                double top = -(double)INFINITY, all = 0, some = 0;
                for (int64_t i = 0; i < k; i++) {
                    const int32_t id = ids[r * k + i];
                    int64_t want = -1;
                    for (int64_t e = 0; e < n; e++) { /* the greatest not taken, the first of equals */
                        const float left = want < 0 || x[want] != x[want] ? -INFINITY : x[want];
                        if (!taken[e] && (want < 0 || (x[e] == x[e] ? x[e] : -INFINITY) > left))
                            want = e;
                    }
                    CHECK(id == want, "route %d experts, row %d: id %d is %d, want %d", (int)n, (int)r, (int)i, id,
                          (int)want);
                    if (id < 0 || id >= n)
                        return;
                    taken[id] = true;
                    some += exp((double)x[id] - (double)x[ids[r * k]]);
                }
                top = (double)x[ids[r * k]];
                for (int64_t e = 0; e < n; e++)
                    all += exp((double)x[e] - top);
                for (int64_t i = 0; i < k && r != 2 && r != 3 && r != 4 && r != 5; i++) {
                    double want = exp((double)x[ids[r * k + i]] - top) / (mode & 1 ? some : all);
                    if (mode & 2)
                        want *= (double)scale[ids[r * k + i]];
                    CHECK(near_to((double)weights[r * k + i], want, GM_T_F32, 12), "route weight %g, want %g",
                          (double)weights[r * k + i], want);
                }
            }
            free_buffers();
        }
}

/* ---- dense matmul ---- */
/* Which item of the panels is value i of row r: those of bfloat16 are pairs along k, but for an odd last one. */
static int64_t dense_item(int type, int64_t k, int64_t i, int64_t r) {
    const int64_t panel = r / 32 * k * 32, row = r % 32;
    return type == GM_T_BF16 && i < k / 2 * 2 ? panel + (i / 2 * 32 + row) * 2 + i % 2 : panel + i * 32 + row;
}

/* A gated linear unit over two products has the bits of one after another. up: the gate's panels, last to first. */
static void check_matmul_glu(gm_matmul_args gate, bool rounded) {
    const int64_t size = gate.tokens * gate.rows, panels = (gate.rows + 31) / 32, one = 1;
    const size_t panel_bytes = (size_t)(32 * gate.k) * (gate.format == GM_QUANT_f32 ? 4 : 2);
    const gm_kernel kernel = rounded ? kernels->matmul_bf16 : kernels->matmul_float;
    char *turned = buffer((size_t)panels * panel_bytes), *want = buffer(2 * (size_t)size * 4);
    for (int64_t p = 0; p < panels; p++)
        memcpy(turned + (size_t)p * panel_bytes, (const char *)gate.weight + (size_t)(panels - 1 - p) * panel_bytes,
               panel_bytes);
    gate.bias = gate.residual = NULL;
    gm_matmul_args up = gate;
    up.weight = turned;
    gate.out = buffer((size_t)size * 4), up.out = buffer((size_t)size * 4);
    kernel(&gate, 0, panels);
    kernel(&up, 0, panels);
    const gm_glu_args act = {.out = gate.out,
                             .gate = gate.out,
                             .up = up.out,
                             .dim = gate.rows,
                             .gate_stride = gate.rows,
                             .up_stride = gate.rows,
                             .kind = GM_GLU_GELU};
    kernels->glu(&act, 0, gate.tokens);
    for (int form = GM_FORM_F32; form <= (gate.rows % 32 ? GM_FORM_BF16 : GM_FORM_INT8); form++) {
        const size_t bytes = form == GM_FORM_INT8 ? act_bytes(gate.tokens, gate.rows)
                                                  : (size_t)size * (form == GM_FORM_BF16 ? 2 : 4);
        if (form == GM_FORM_INT8)
            kernels->quantize_act(
                &(gm_quantize_act_args){
                    .out = want, .x = gate.out, .x_stride = gate.rows, .tokens = gate.tokens, .k = gate.rows},
                0, (gate.tokens + 15) / 16);
        else
            kernels->copy(&(gm_copy_args){.out = want,
                                          .in = gate.out,
                                          .in_type = GM_T_F32,
                                          .ndim = 1,
                                          .shape = &size,
                                          .out_type = form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32,
                                          .out_strides = &one,
                                          .in_strides = &one},
                          0, size);
        gm_matmul_glu_args a = {.out = buffer(bytes),
                                .form = (gm_row_form)form,
                                .bf16 = rounded,
                                .gate = gate,
                                .up = up,
                                .glu = act,
                                .out_rows = gate.rows};
        for (int64_t p = 0; p < panels; p += 2)
            kernels->matmul_glu(&a, p, p + 2 < panels ? p + 2 : panels);
        CHECK(same(a.out, want, bytes), "matmul_glu format %d rounded %d k %d form %d", gate.format, rounded,
              (int)gate.k, form);
    }
}

static void check_matmul(int format, int64_t rows, int64_t k, int64_t tokens, bool rounded) {
    const int type = format == GM_QUANT_f32 ? GM_T_F32 : format == GM_QUANT_f16 ? GM_T_F16 : GM_T_BF16;
    const int64_t panels = (rows + 31) / 32;
    const gm_kernel kernel = rounded ? kernels->matmul_bf16 : kernels->matmul_float;
    void *w = buffer((size_t)(panels * 32 * k * item_of(type)));
    for (int64_t i = 0; i < panels * 32 * k; i++)
        put(w, type, i, uniform());
    float *x = floats(tokens * k, 1), *bias = floats(rows, 1), *residual = floats(tokens * rows, 1);
    float *out = floats(tokens * rows, 1), *one = buffer((size_t)rows * 4);
    uint16_t *narrow = buffer((size_t)(tokens * k) * 2);
    for (int64_t i = 0; i < tokens * k; i++)
        put(narrow, GM_T_BF16, i, (double)x[i]);
    gm_matmul_args a = {.out = out,
                        .out_stride = rows,
                        .x = x,
                        .x_stride = k,
                        .weight = w,
                        .format = format,
                        .bias = bias,
                        .residual = residual,
                        .rows = rows,
                        .k = k,
                        .tokens = tokens};
    kernel(&a, 0, panels);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t r = 0; r < rows; r++) {
            double sum = (double)bias[r] + (double)residual[t * rows + r];
            double size = fabs((double)bias[r]) + fabs((double)residual[t * rows + r]);
            for (int64_t i = 0; i < k; i++) {
                const double value = rounded ? get(narrow, GM_T_BF16, t * k + i) : (double)x[t * k + i];
                const double term = get(w, type, dense_item(type, k, i, r)) * value;
                sum += term, size += fabs(term);
            }
            CHECK(fabs((double)out[t * rows + r] - sum) <= 1e-6 * size, "matmul format %d rounded %d k %d", format,
                  rounded, (int)k);
        }
        gm_matmul_args alone = a;
        alone.out = one, alone.x = x + t * k, alone.tokens = 1, alone.residual = residual + t * rows;
        kernel(&alone, 0, panels);
        CHECK(same(one, out + t * rows, (size_t)rows * 4), "matmul format %d rounded %d k %d: token %d alone", format,
              rounded, (int)k, (int)t);
    }
    float *cut = buffer((size_t)(tokens * rows) * 4);
    memcpy(cut, residual, (size_t)(tokens * rows) * 4);
    a.out = cut, a.residual = cut; /* in place, panel by panel */
    for (int64_t p = 0; p < panels; p++)
        kernel(&a, p, p + 1);
    CHECK(same(cut, out, (size_t)(tokens * rows) * 4), "matmul format %d rounded %d k %d: cut", format, rounded,
          (int)k);
    if (rounded) {
        a.x = narrow, a.x_bf16 = true, a.out = cut, a.residual = residual;
        kernel(&a, 0, panels);
        CHECK(same(cut, out, (size_t)(tokens * rows) * 4), "matmul k %d: rows that are rounded before", (int)k);
    }
    check_matmul_glu(a, rounded);
    free_buffers();
}

static void test_matmul(void) {
    static const int64_t shapes[][3] = {{1, 1, 1},     {33, 7, 5},    {32, 64, 13}, {100, 513, 3}, {70, 1300, 50},
                                        {40, 576, 97}, {225, 30, 26}, {33, 2, 12},  {20, 1027, 1}, {96, 600, 35}};
    for (int format = GM_QUANT_f32; format <= GM_QUANT_bf16; format++)
        for (int s = 0; s < 10; s++)
            for (int rounded = 0; rounded < 1 + (format == GM_QUANT_bf16); rounded++)
                check_matmul(format, shapes[s][0], shapes[s][1], shapes[s][2], rounded);
}

/* NaN and infinities of activations that are rounded stay what they are, in their token alone; a value above all of
 * bfloat16's becomes an infinity. */
static void test_rounding_matmul(void) {
    enum { ROWS = 33, K = 37, TOKENS = 4 };
    static const float odd[TOKENS] = {NAN, INFINITY, 0x1.ffffp127f, 1};
    uint16_t *w = buffer((size_t)(64 * K) * 2);
    float *x = floats(TOKENS * K, 1), *out = floats(TOKENS * ROWS, 1);
    for (int64_t i = 0; i < 64 * K; i++)
        put(w, GM_T_BF16, i, 0.5 + 0.5 * fabs(uniform()));
    for (int at = 0; at < K; at += 18) {
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < K; i++)
                x[t * K + i] = 0.25f;
            x[t * K + at] = odd[t];
        }
        kernels->matmul_bf16(&(gm_matmul_args){.out = out,
                                               .out_stride = ROWS,
                                               .x = x,
                                               .x_stride = K,
                                               .weight = w,
                                               .format = GM_QUANT_bf16,
                                               .rows = ROWS,
                                               .k = K,
                                               .tokens = TOKENS},
                             0, 2);
        for (int r = 0; r < ROWS; r++)
            CHECK(isnan(out[r]) && isinf(out[ROWS + r]) && isinf(out[2 * ROWS + r]) && isfinite(out[3 * ROWS + r]),
                  "rounded activations that are not finite: row %d", r);
    }
    free_buffers();
}

/* Where every step adds what is positive, roundings that lean to one side would show: sums are as near as by chance. */
static void test_sums_of_one_sign(void) {
    enum { ROWS = 32, K = 2048, TOKENS = 3 };
    uint16_t *w = buffer((size_t)(ROWS * K) * 2), *narrow = buffer((size_t)(TOKENS * K) * 2);
    float *x = buffer((size_t)(TOKENS * K) * 4), *out = floats(TOKENS * ROWS, 1);
    double lean = 0;
    for (int64_t i = 0; i < ROWS * K; i++)
        put(w, GM_T_BF16, i, fabs(uniform()));
    for (int64_t i = 0; i < TOKENS * K; i++)
        put(narrow, GM_T_BF16, i, fabs(uniform()));
    for (int64_t i = 0; i < TOKENS * K; i++)
        x[i] = (float)get(narrow, GM_T_BF16, i);
    kernels->matmul_bf16(&(gm_matmul_args){.out = out,
                                           .out_stride = ROWS,
                                           .x = x,
                                           .x_stride = K,
                                           .weight = w,
                                           .format = GM_QUANT_bf16,
                                           .rows = ROWS,
                                           .k = K,
                                           .tokens = TOKENS},
                         0, 1);
    for (int t = 0; t < TOKENS; t++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int64_t i = 0; i < K; i++)
                sum += get(w, GM_T_BF16, dense_item(GM_T_BF16, K, i, r)) * (double)x[t * K + i];
            const double off = ((double)out[t * ROWS + r] - sum) / sum;
            CHECK(fabs(off) <= 2e-6, "sum of one sign: row %d off by %g", r, off);
            lean += off / (TOKENS * ROWS);
        }
    CHECK(fabs(lean) <= 2e-7, "sums of one sign lean by %g", lean);
    free_buffers();
}

/* ---- dense products and convolutions ---- */
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sum of k products and of their sizes; of complex numbers, whose second part is half the first, the real part. */
static double exact_product(const gm_gemm_args *a, int64_t row, int64_t lane, double *size) {
    double sum = *size = 0;
    for (int64_t k = 0; k < a->k; k++) {
        double term = get(a->x, a->type, row * a->x_row + k * a->x_k);
        term *= get(a->w, a->type, k * a->w_k + lane * a->w_lane);
        if (a->type == GM_T_C64)
            term *= 0.75;
        sum += term, *size += fabs(term);
    }
    return sum;
}
/* For a sum of terms of that size in all, stored as the type. */
static double bound_of(int type, double sum, double size) {
    const double rounding = item_of(type) == 2 ? epsilon_of(type) * fabs(sum) * 1.01 + 1e-7 : 0;
    return (type == GM_T_F64 ? 1e-14 : 3e-6) * size + rounding;
}

/* The ways to the same bits: blocks of rows and panels, x and w packed ahead, w slab by slab in a room, few rows
 * straight from memory. */
enum { GEMM_BLOCKS, GEMM_ONE_BY_ONE, GEMM_PACKED, GEMM_ALIGNED, GEMM_ROOMS, GEMM_FEW, GEMM_WAYS };
static void *run_gemm(gm_gemm_args a, int way, bool *possible) {
    const bool halved = a.type == GM_T_F64 || a.type == GM_T_C64;
    const int64_t panels = kernels_gemm_panels(kernels, a.type, a.lanes);
    gm_gemm_args copy = a;
    a.block_rows = way == GEMM_ONE_BY_ONE ? 1 : least(a.rows, halved ? kernels->gemm_rows / 2 : kernels->gemm_rows);
    a.block_panels = way == GEMM_ONE_BY_ONE ? 1
                     : way == GEMM_FEW      ? least(panels, GM_GEMM_FEW_PANELS / GM_GEMM_FEW)
                                            : least(panels, GM_GEMM_PANELS);
    a.out = buffer((size_t)(a.rows * a.lanes * item_of(a.type)));
    if (way == GEMM_PACKED || way == GEMM_ALIGNED) {
        copy.out = buffer((size_t)kernels_gemm_pack_bytes(kernels, a.type, a.lanes, a.k));
        kernels->gemm_pack(&copy, 0, panels);
        a.w = copy.out;
        a.packed = true;
    }
    if (way == GEMM_ALIGNED) {
        copy.out = buffer((size_t)kernels_gemm_align_bytes(a.type, a.rows, a.k));
        kernels->gemm_align(&copy, 0, a.rows);
        a.x = copy.out;
        a.aligned = true;
    }
    _Atomic int32_t taken[2] = {1, 0};
    if (way == GEMM_ROOMS) {
        a.block_rows = a.rows > 60 ? a.rows / 2 + 1 : a.rows; /* the last block is another one than the first */
        a.rooms.bytes = kernels_gemm_room_bytes(kernels, a.type, a.block_rows, a.block_panels);
        a.rooms.memory = buffer((size_t)(2 * a.rooms.bytes));
        a.rooms.taken = taken;
        a.rooms.count = 2;
    }
    a.few = way == GEMM_FEW;
    *possible = !a.few || (a.rows <= GM_GEMM_FEW && a.type != GM_T_C64 && (a.w_lane == 1 || a.w_k == 1));
    if (!*possible)
        return NULL;
    const int64_t row_blocks = (a.rows + a.block_rows - 1) / a.block_rows;
    kernels->gemm(&a, 0, row_blocks * ((panels + a.block_panels - 1) / a.block_panels));
    return a.out;
}
static void test_gemm(void) {
    static const int64_t shapes[][3] = {{1, 1, 1},    {1, 300, 70}, {3, 129, 33}, {5, 17, 100},  {13, 128, 31},
                                        {50, 65, 64}, {8, 257, 17}, {97, 20, 5},  {27, 1100, 40}};
    static const int types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64, GM_T_C64};
    for (int run = 0; run < 5 * 9 * 3; run++) {
        const int type = types[run / 27], s = run / 3 % 9, layout = run % 3;
        const int64_t rows = shapes[s][0], k = shapes[s][1], lanes = shapes[s][2], step = layout == 2 ? 2 : 1;
        void *x = buffer((size_t)(rows * k * step * item_of(type)));
        void *w = buffer((size_t)(lanes * k * step * item_of(type)));
        for (int64_t i = 0; i < rows * k * step; i++)
            put(x, type, i, uniform());
        for (int64_t i = 0; i < lanes * k * step; i++)
            put(w, type, i, uniform());
        gm_gemm_args a = {.x = x,
                          .w = w,
                          .type = type,
                          .rows = rows,
                          .lanes = lanes,
                          .k = k,
                          .out_row = lanes,
                          .out_lane = 1,
                          .x_row = layout == 1 ? 1 : k * step,
                          .x_k = layout == 1 ? rows : step,
                          .w_lane = layout == 1 ? 1 : k * step,
                          .w_k = layout == 1 ? lanes : step};
        bool possible;
        void *out = run_gemm(a, GEMM_BLOCKS, &possible);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t l = 0; l < lanes; l++) {
                double size, sum = exact_product(&a, r, l, &size);
                CHECK(fabs(get(out, type, r * lanes + l) - sum) <= bound_of(type, sum, size),
                      "gemm type %d shape %d layout %d", type, s, layout);
            }
        for (int way = GEMM_ONE_BY_ONE; way < GEMM_WAYS; way++) {
            void *again = run_gemm(a, way, &possible);
            CHECK(!possible || same(again, out, (size_t)(rows * lanes * item_of(type))),
                  "gemm type %d shape %d layout %d way %d", type, s, layout, way);
        }
        if (type != GM_T_C64) {
            a.add = buffer((size_t)(lanes * item_of(type)));
            for (int64_t i = 0; i < lanes; i++)
                put((void *)(uintptr_t)a.add, type, i, uniform());
            a.add_lane = 1, a.alpha = 0.5f, a.beta = 2;
            out = run_gemm(a, GEMM_BLOCKS, &possible);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t l = 0; l < lanes; l++) {
                    double size, sum = 0.5 * exact_product(&a, r, l, &size), added = 2 * get(a.add, type, l);
                    double bound = bound_of(type, sum + added, size + fabs(added));
                    CHECK(fabs(get(out, type, r * lanes + l) - sum - added) <= bound,
                          "gemm with a term: type %d shape %d", type, s);
                }
        }
        free_buffers();
    }
}
/* A convolution with its weights packed, which are looked over for what is not finite: then taps out of the image are
 * passed over, and the bits are those of weights as they lie, which meet zeros. With one that is infinite, too. */
static void check_packed_conv(gm_conv_args a, float *w) {
    const int type = a.product.type;
    const int64_t panels = kernels_gemm_panels(kernels, type, a.product.lanes);
    const int64_t blocks = (a.product.rows + a.product.block_rows - 1) / a.product.block_rows;
    const int64_t pieces = blocks * ((panels + a.product.block_panels - 1) / a.product.block_panels);
    const int64_t size = a.product.rows * a.product.lanes;
    for (int spoiled = 0; spoiled < 2; spoiled++) {
        if (spoiled)
            w[a.product.lanes / 2 * a.product.k] = INFINITY;
        gm_conv_args packed = a;
        gm_gemm_args pack = a.product;
        int32_t *const finite = buffer((size_t)panels * sizeof *finite);
        pack.finite = finite;
        pack.out = buffer((size_t)kernels_gemm_pack_bytes(kernels, type, a.product.lanes, a.product.k));
        kernels->gemm_pack(&pack, 0, panels);
        packed.product.w = pack.out, packed.product.packed = true, packed.product.finite = finite;
        a.product.out = buffer((size_t)size * 4), packed.product.out = buffer((size_t)size * 4);
        kernels->conv(&a, 0, pieces);
        kernels->conv(&packed, 0, pieces);
        CHECK(same(a.product.out, packed.product.out, (size_t)size * 4), "packed conv of %d channels, spoiled %d",
              (int)a.channels, spoiled);
        int64_t found = 0;
        for (int64_t p = 0; p < panels; p++)
            found += !finite[p];
        CHECK(found == spoiled, "%d panels of %d are not finite, spoiled %d", (int)found, (int)panels, spoiled);
    }
}
/* Two axes, `line` taps along the second one; a definition item by item. `few`: so many groups, by their kernel; 0:
 * one, by that of dense filters. */
static void test_conv_case(int type, int64_t channels, int64_t filters, int64_t line, int64_t stride, int64_t low,
                           int64_t dilation, int64_t spread, int64_t few) {
    const int64_t in[2] = {7, 19}, taps[2] = {3, line}, groups = few ? few : 1, per = channels / groups;
    int64_t out[2], k = taps[0] * taps[1] * per;
    for (int d = 0; d < 2; d++)
        out[d] = ((in[d] - 1) * spread + 1 + 2 * low - dilation * (taps[d] - 1) - 1) / stride + 1;
    const int64_t places = out[0] * out[1], rows = 2 * places;
    void *x = buffer((size_t)(2 * in[0] * in[1] * channels * item_of(type)));
    void *w = buffer((size_t)(filters * k * item_of(type)));
    void *result = buffer((size_t)(rows * filters * item_of(type)));
    for (int64_t i = 0; i < 2 * in[0] * in[1] * channels; i++)
        put(x, type, i, uniform());
    for (int64_t i = 0; i < filters * k; i++)
        put(w, type, i, uniform());
    gm_conv_args a = {.product = {.out = result,
                                  .x = x,
                                  .w = w,
                                  .type = type,
                                  .rows = rows,
                                  .lanes = filters / groups,
                                  .k = k,
                                  .out_row = filters,
                                  .out_lane = 1,
                                  .w_lane = k,
                                  .w_k = 1},
                      .in = {1, in[0], in[1]},
                      .out = {1, out[0], out[1]},
                      .taps = {1, taps[0], taps[1]},
                      .stride = {1, stride, stride},
                      .low = {0, low, low},
                      .dilation = {1, dilation, dilation},
                      .spread = {1, spread, spread},
                      .channels = per,
                      .filters = filters / groups,
                      .image = in[0] * in[1] * channels,
                      .places = {0, in[1] * channels, channels}};
    if (few) {
        float *turned = buffer((size_t)(filters * k) * 4);
        for (int64_t i = 0; i < filters * k; i++)
            turned[i % k * filters + i / k] = (float)get(w, type, i);
        a.product.w = turned, a.product.w_k = a.product.lanes = filters;
        kernels->conv_groups(&a, 0, 5);
        kernels->conv_groups(&a, 5, rows);
    } else {
        const int64_t panels = kernels_gemm_panels(kernels, type, filters);
        a.product.block_rows = least(rows, type == GM_T_F64 ? kernels->gemm_rows / 2 : kernels->gemm_rows);
        a.product.block_panels = least(panels, GM_GEMM_PANELS);
        const int64_t blocks = (rows + a.product.block_rows - 1) / a.product.block_rows;
        kernels->conv(&a, 0, blocks * ((panels + a.product.block_panels - 1) / a.product.block_panels));
        if (type == GM_T_F32) {
            float *own = buffer((size_t)(filters * k) * 4);
            memcpy(own, w, (size_t)(filters * k) * 4);
            gm_conv_args copy = a;
            copy.product.w = own;
            check_packed_conv(copy, own);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t f = 0; f < filters; f++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k; i++) {
                const int64_t tap = i / per, c = f / (filters / groups) * per + i % per;
                const int64_t at[2] = {tap / taps[1], tap % taps[1]};
                const int64_t place[2] = {r % places / out[1], r % places % out[1]};
                int64_t from[2];
                bool inside = true;
                for (int d = 0; d < 2; d++) {
                    from[d] = place[d] * stride + at[d] * dilation - low;
                    inside = inside && from[d] >= 0 && from[d] % spread == 0 && from[d] / spread < in[d];
                    from[d] /= spread;
                }
                if (!inside)
                    continue;
                double term = get(x, type, ((r / places * in[0] + from[0]) * in[1] + from[1]) * channels + c);
                term *= get(w, type, f * k + i);
                sum += term, size += fabs(term);
            }
            CHECK(fabs(get(result, type, r * filters + f) - sum) <= bound_of(type, sum, size),
                  "conv type %d channels %d stride %d low %d", type, (int)channels, (int)stride, (int)low);
        }
    free_buffers();
}
static void test_conv(void) {
    static const int types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64};
    for (int run = 0; run < 4 * 4; run++) {
        static const int64_t widths[] = {1, 4, 13, 70};
        const int type = types[run / 4];
        const int64_t channels = widths[run % 4];
        test_conv_case(type, channels, 5, 2, 1, 1, 1, 1, 0);
        test_conv_case(type, channels, 35, 2, 2, 0, 2, 1, 0);
        test_conv_case(type, channels, 3, 2, 1, 3, 1, 2, 0);
        test_conv_case(type, channels, 3, 3, 2, 4, 1, 1, 0);
        test_conv_case(type, channels, 70, 3, 1, 1, 1, 1, 0);
        if (type == GM_T_F64)
            continue;
        test_conv_case(type, channels, channels, 2, 2, 2, 1, 1, channels);
        test_conv_case(type, channels, channels, 2, 1, 1, 1, 1, channels);
        test_conv_case(type, channels, channels, 3, 1, 4, 1, 1, channels); /* taps wholly outside */
        test_conv_case(type, channels, channels, 5, 3, 7, 2, 1, channels);
        test_conv_case(type, channels, channels, 3, 1, 3, 1, 2, channels);
        for (int64_t own = 2; own <= kernels->lanes / 2; own *= 2) { /* filters of a group */
            test_conv_case(type, channels * own, channels * own, 2, 1, 1, 1, 1, channels);
            test_conv_case(type, channels * own, channels * own, 3, 1, 1, 1, 1, channels);
            test_conv_case(type, channels * own / 2, channels * own, 2, 1, 0, 2, 1, channels);
            test_conv_case(type, channels * own / 2, channels * own, 3, 1, 2, 1, 1, channels);
        }
    }
    test_conv_case(GM_T_F32, 256, 256, 7, 1, 3, 1, 1, 256); /* weights that are not near all at once */
    test_conv_case(GM_T_F32, 2 * kernels->lanes, 3, 3, 1, 1, 1, 1, 0);
}

/* Rows of x side by side, by strips or lane of k by lane of k, give the bits of rows one behind the other. */
static void test_columns(void) {
    static const int64_t shapes[][2] = {{1, 1}, {64, 1}, {70, 31}, {129, 100}, {257, 513}, {300, 1500}, {1030, 300}};
    static const int types[] = {GM_T_F32, GM_T_F16, GM_T_BF16, GM_T_F64};
    for (int run = 0; run < 4 * 7; run++) {
        const int type = types[run / 7];
        const int64_t rows = shapes[run % 7][0], k = shapes[run % 7][1], item = item_of(type);
        char *x = buffer((size_t)(rows * k * item)), *turned = buffer((size_t)(rows * k * item));
        void *w = buffer((size_t)(k * item)), *out[2];
        for (int64_t i = 0; i < k; i++)
            put(w, type, i, uniform());
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < k; i++) {
                put(x, type, r * k + i, uniform());
                memcpy(turned + (i * rows + r) * item, x + (r * k + i) * item, (size_t)item);
            }
        for (int way = 0; way < 2; way++) {
            gm_gemm_args a = {.out = out[way] = buffer((size_t)(rows * item)),
                              .x = way ? turned : x,
                              .w = w,
                              .type = type,
                              .few = true,
                              .rows = rows,
                              .lanes = 1,
                              .k = k,
                              .out_row = 1,
                              .out_lane = 1,
                              .x_row = way ? 1 : k,
                              .x_k = way ? rows : 1,
                              .w_lane = 1,
                              .w_k = 1,
                              .block_rows = way ? rows : 4,
                              .block_panels = 1};
            kernels->gemm(&a, 0, (rows + a.block_rows - 1) / a.block_rows);
        }
        CHECK(same(out[0], out[1], (size_t)(rows * item)), "columns of type %d, %d rows of %d", type, (int)rows,
              (int)k);
        free_buffers();
    }
}

/* ---- attention ---- */
typedef struct {
    int type;
    int64_t heads, kv_heads, dim, half, length, window;
    float softcap;
    bool sinks;
} scene;

/* Bytes of n values of the cache, and value d of a position in a block's keys or values of a head. */
static int64_t entry_bytes(int type, int64_t n) { return type == GM_T_KV_Q8_0 ? n / 32 * 34 : n * item_of(type); }
static double entry(const scene *sc, const void *cache, bool is_key, int64_t position, int64_t kv, int64_t d) {
    const int64_t dim = sc->dim, block = position / GM_KV_BLOCK;
    const int64_t tile = position % GM_KV_BLOCK / 16, lane = position % 16;
    const char *head = (const char *)cache + entry_bytes(sc->type, (block * sc->kv_heads + kv) * GM_KV_BLOCK * dim);
    if (sc->type != GM_T_KV_Q8_0)
        return get(head, sc->type, is_key ? (tile * dim + d) * 16 + lane : (tile * 16 + lane) * dim + d);
    const char *unit = head + (tile * (dim / 32) + d / 32) * 16 * 34;
    const int8_t *q = (const int8_t *)unit + 32;
    return get(unit, GM_T_F16, lane) * q[is_key ? d % 32 * 16 + lane : lane * 32 + d % 32];
}

static void test_scene(const scene *sc) {
    const int64_t blocks = (sc->length + GM_KV_BLOCK - 1) / GM_KV_BLOCK, n = sc->length,
                  group = sc->heads / sc->kv_heads;
    const size_t cache = (size_t)entry_bytes(sc->type, blocks * GM_KV_BLOCK * sc->kv_heads * sc->dim);
    const float scale = 1 / sqrtf((float)sc->dim);
    float *q = floats(n * sc->heads * sc->dim, 2), *k = floats(n * sc->kv_heads * sc->dim, 2),
          *v = floats(n * sc->kv_heads * sc->dim, 1);
    float *angles = buffer((size_t)(n * 2 * sc->half) * 4), *frequency = floats(sc->half, 1),
          *sinks = floats(sc->heads, 1);
    float *turned = buffer((size_t)(n * sc->heads * sc->dim) * 4),
          *alone = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    float *out = buffer((size_t)(n * sc->heads * sc->dim) * 4),
          *chunked = buffer((size_t)(n * sc->heads * sc->dim) * 4);
    int32_t *position = buffer((size_t)n * 4), *sequence = buffer((size_t)n * 4);
    gm_query_tile *tiles = buffer((size_t)n * sizeof *tiles);
    void *keys[2] = {NULL, buffer(cache)}, *values[2] = {NULL, buffer(cache)};
    /* The blocks stand in the tables side by side, those of the sequence that is not used nowhere. */
    void **blocks_at = buffer((size_t)(2 * blocks) * sizeof *blocks_at);
    for (int64_t b = 0; b < blocks; b++) {
        blocks_at[b] = (char *)keys[1] + b * (int64_t)cache / blocks;
        blocks_at[blocks + b] = (char *)values[1] + b * (int64_t)cache / blocks;
    }
    const gm_cache_address key_blocks[2] = {{.blocks = NULL}, {.blocks = blocks_at}};
    const gm_cache_address value_blocks[2] = {{.blocks = NULL}, {.blocks = blocks_at + blocks}};
    for (int64_t i = 0; i < n; i++)
        position[i] = (int32_t)i, sequence[i] = 1;
    memset(keys[1], 0xff, cache); /* NaN in every type: nothing unwritten may be used */
    memset(values[1], 0xff, cache);
    kernels->rope_angles(&(gm_rope_angles_args){angles, position, frequency, sc->half, 1}, 0, n);
    gm_rope_cache_args append = {.q_out = turned,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .angles = angles,
                                 .q_stride = sc->heads * sc->dim,
                                 .k_stride = sc->kv_heads * sc->dim,
                                 .v_stride = sc->kv_heads * sc->dim,
                                 .keys = key_blocks,
                                 .values = value_blocks,
                                 .sequence = sequence,
                                 .positions = position,
                                 .kv_type = sc->type,
                                 .n_heads = sc->heads,
                                 .n_kv_heads = sc->kv_heads,
                                 .head_dim = sc->dim,
                                 .half = sc->half};
    gm_attention_args a = {.out = alone,
                           .q = turned,
                           .keys = key_blocks,
                           .values = value_blocks,
                           .sequence = sequence,
                           .positions = position,
                           .kv_type = sc->type,
                           .n_heads = sc->heads,
                           .n_kv_heads = sc->kv_heads,
                           .head_dim = sc->dim,
                           .window = sc->window,
                           .scale = scale,
                           .softcap = sc->softcap,
                           .sinks = sc->sinks ? sinks : NULL,
                           .tiles = tiles};
    /* Token by token, the cache beyond still NaN. */
    int64_t n_tiles = 0;
    for (int64_t i = 0; i < n; i++) {
        kernels->rope_cache(&append, i, i + 1);
        tiles[0] = (gm_query_tile){(int32_t)i, 1};
        kernels->attention(&a, 0, sc->kv_heads);
    }
    /* In tiles, kv heads in two ranges. */
    a.out = out;
    for (int64_t i = 0; i < n; i += GM_QUERY_TILE) {
        tiles[n_tiles++] = (gm_query_tile){(int32_t)i, (int32_t)(n - i < GM_QUERY_TILE ? n - i : GM_QUERY_TILE)};
    }
    kernels->attention(&a, 0, 1);
    kernels->attention(&a, 1, n_tiles * sc->kv_heads);
    const size_t bytes = (size_t)(n * sc->heads * sc->dim) * 4;
    CHECK(same(out, alone, bytes), "attention: tiles against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* In tiles of another cut, as a prefill in chunks makes them. */
    a.out = chunked, n_tiles = 0;
    for (int64_t i = 0, w; i < n; i += w) {
        w = 1 + i % 13;
        w = w > n - i ? n - i : w;
        tiles[n_tiles++] = (gm_query_tile){(int32_t)i, (int32_t)w};
    }
    kernels->attention(&a, 0, n_tiles * sc->kv_heads);
    CHECK(same(chunked, alone, bytes), "attention: chunks against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* Split and merged, in two ranges each. */
    int32_t n_blocks = (int32_t)blocks;
    a.max_blocks = blocks + 1, a.n_blocks = &n_blocks;
    a.partial = buffer((size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(a.partial, 0xff, (size_t)(n * sc->heads * a.max_blocks * (sc->dim + 2)) * 4);
    memset(chunked, 0, bytes);
    const int64_t per_row = sc->kv_heads * blocks;
    kernels->attention_split(&a, 0, 3 * per_row + 1);
    kernels->attention_split(&a, 3 * per_row + 1, n * per_row);
    kernels->attention_merge(&a, 0, 5);
    kernels->attention_merge(&a, 5, n * sc->heads);
    CHECK(same(chunked, alone, bytes), "attention: split against one by one, type %d dim %d", sc->type, (int)sc->dim);
    /* The definition, for some rows. */
    double *score = buffer((size_t)n * 8);
    for (int64_t r = 0; r < n; r += n > 60 ? n / 23 : 1)
        for (int64_t h = 0; h < sc->heads; h++) {
            int64_t kv = h / group, first = sc->window > 0 && r + 1 > sc->window ? r + 1 - sc->window : 0;
            double top = sc->sinks ? (double)sinks[h] : -(double)INFINITY, sum = 0, slack = 0;
            for (int64_t j = first; j <= r; j++) {
                double s = 0;
                for (int64_t d = 0; d < sc->dim; d++)
                    s += entry(sc, keys[1], true, j, kv, d) * (double)turned[(r * sc->heads + h) * sc->dim + d];
                s *= (double)scale;
                slack = fmax(slack, fabs(s));
                if (sc->softcap != 0)
                    s = (double)sc->softcap * tanh(s / (double)sc->softcap);
                score[j] = s;
                top = fmax(top, s);
            }
            for (int64_t j = first; j <= r; j++)
                sum += score[j] = exp(score[j] - top);
            if (sc->sinks)
                sum += exp((double)sinks[h] - top);
            for (int64_t d = 0; d < sc->dim; d++) {
                double want = 0;
                for (int64_t j = first; j <= r; j++)
                    want += score[j] * entry(sc, values[1], false, j, kv, d);
                double got = (double)alone[(r * sc->heads + h) * sc->dim + d];
                CHECK(fabs(got - want / sum) <= 2e-6 * (2 + slack), "attention type %d dim %d row %d: %g, want %g",
                      sc->type, (int)sc->dim, (int)r, got, want / sum);
            }
        }
    /* What rope_cache wrote: rotated, rounded, in its place; the rest untouched. */
    for (int64_t r = 0; r < n; r += 17)
        for (int64_t d = 0; d < sc->dim; d++) {
            float rotated[1024];
            int64_t kv = sc->kv_heads - 1;
            kernels->rope(&(gm_rope_args){.out = rotated,
                                          .x = k + (r * sc->kv_heads + kv) * sc->dim,
                                          .angles = angles + r * 2 * sc->half,
                                          .type = GM_T_F32,
                                          .heads = 1,
                                          .steps = 1,
                                          .dim = sc->dim,
                                          .half = sc->half},
                          0, 1);
            const float *value = v + (r * sc->kv_heads + kv) * sc->dim;
            const double put_key = entry(sc, keys[1], true, r, kv, d),
                         put_value = entry(sc, values[1], false, r, kv, d);
            if (sc->type == GM_T_KV_Q8_0) {
                double top[2] = {0, 0};
                for (int64_t i = d / 32 * 32; i < d / 32 * 32 + 32; i++) {
                    top[0] = fmax(top[0], fabs((double)rotated[i]));
                    top[1] = fmax(top[1], fabs((double)value[i]));
                }
                CHECK(fabs(put_key - (double)rotated[d]) <= top[0] / 127 * 0.57 && top[0] > 0,
                      "rope_cache key in int8");
                CHECK(fabs(put_value - (double)value[d]) <= top[1] / 127 * 0.57, "rope_cache value in int8");
                continue;
            }
            double room = 0;
            put(&room, sc->type, 0, (double)rotated[d]);
            CHECK(put_key == get(&room, sc->type, 0), "rope_cache key");
            put(&room, sc->type, 0, (double)value[d]);
            CHECK(put_value == get(&room, sc->type, 0), "rope_cache value");
        }
    free_buffers();
}
static void test_attention(void) {
    static const scene scenes[] = {
        {GM_T_F32, 4, 2, 64, 32, 300, 0, 0, false},     {GM_T_F16, 4, 1, 64, 32, 270, 0, 0, false},
        {GM_T_BF16, 3, 3, 8, 4, 530, 0, 0, true},       {GM_T_F32, 7, 1, 80, 40, 33, 0, 0, false},
        {GM_T_F16, 6, 2, 96, 20, 40, 5, 0, true},       {GM_T_BF16, 2, 1, 128, 64, 290, 100, 0, false},
        {GM_T_F32, 16, 1, 24, 12, 280, 270, 30, false}, {GM_T_F16, 2, 2, 256, 128, 20, 0, 50, false},
        {GM_T_F32, 5, 1, 7, 3, 270, 0, 0, false},       {GM_T_BF16, 2, 1, 600, 64, 270, 0, 0, false},
        {GM_T_KV_Q8_0, 4, 2, 64, 32, 300, 0, 0, false}, {GM_T_KV_Q8_0, 7, 1, 96, 20, 270, 100, 20, true},
        {GM_T_KV_Q8_0, 2, 2, 32, 16, 530, 0, 0, false}, {GM_T_KV_Q8_0, 13, 1, 608, 64, 30, 0, 0, false},
        {GM_T_F16, 30, 1, 13, 6, 50, 20, 0, true},      {GM_T_F32, 1, 1, 512, 256, 35, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i += quick ? 2 : 1)
        test_scene(&scenes[i]);
}

int main(int argc, char **argv) {
    return RUN_TESTS(ABOUT(softmax, test_rows), ABOUT(glu, test_gated_units), ABOUT(route, test_route),
                     ABOUT(matmul_float, test_matmul), ABOUT(matmul_bf16, test_rounding_matmul),
                     ABOUT(matmul_bf16, test_sums_of_one_sign), ABOUT(gemm, test_gemm), ABOUT(gemm, test_columns),
                     ABOUT(conv, test_conv), ABOUT(attention, test_attention));
}
