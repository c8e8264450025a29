/* test_dense_kernels.c - dense products and convolutions, in every table that this machine runs,
 * against their definitions in double, and bit for bit against themselves however ranges, batches and blocks are cut.
 */
#include "kernel_check.h"

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

/* The ways to the same bits: blocks of rows and panels, x and w packed ahead, w slab by slab in a workspace, few rows
 * straight from memory. */
enum { GEMM_BLOCKS, GEMM_ONE_BY_ONE, GEMM_PACKED, GEMM_ALIGNED, GEMM_WORKSPACES, GEMM_FEW, GEMM_WAYS };
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
    if (way == GEMM_WORKSPACES) {
        a.block_rows = a.rows > 60 ? a.rows / 2 + 1 : a.rows; /* the last block is another one than the first */
        a.workspaces.bytes = kernels_gemm_workspace_bytes(kernels, a.type, a.block_rows, a.block_panels);
        a.workspaces.memory = buffer((size_t)(2 * a.workspaces.bytes));
        a.workspaces.taken = taken;
        a.workspaces.count = 2;
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
                      .steps = {0, in[1] * channels, channels}};
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

int main(int argc, char **argv) {
    return RUN_TESTS(ABOUT(matmul_float, test_matmul), ABOUT(matmul_bf16, test_rounding_matmul),
                     ABOUT(matmul_bf16, test_sums_of_one_sign), ABOUT(gemm, test_gemm), ABOUT(gemm, test_columns),
                     ABOUT(conv, test_conv));
}
