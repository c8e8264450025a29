/* test_packed_products.c - matrix products with packed weights, of int8 and of float32 activations, in every table of
 * kernels that this machine can run, against a scalar reading of the file's bytes. */
#include "packed_check.h"

typedef struct {
    const gm_kernels *t;
    int format;
    int64_t rows, k, tokens;
    guarded gw, gx, ga, go;
    uint8_t *file, *packed, *act;
    float *x, *out, *alone, *bias, *residual;
    int64_t out_stride;
} product;

static product product_new(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, int fill,
                           int act_fill) {
    product p = {.t = t, .format = format, .rows = rows, .k = k, .tokens = tokens, .out_stride = rows + 3};
    p.file = malloc((size_t)(rows * (k / gm_quants[format].values) * gm_quants[format].bytes));
    fill_weights(format, p.file, rows, k, fill);
    p.packed = guarded_new(&p.gw, (size_t)kernels_packed_bytes(t, format, rows, k));
    t->pack(&(gm_pack_args){.out = p.packed, .in = p.file, .format = format, .rows = rows, .k = k}, 0,
            kernels_panels(t, format, rows));
    p.x = guarded_new(&p.gx, (size_t)(tokens * k) * 4);
    fill_activations(p.x, tokens * k, act_fill);
    if (act_fill == ACT_RANDOM)
        memset(p.x, 0, 32 * 4);
    p.act = guarded_new(&p.ga, act_bytes(tokens, k));
    t->quantize_act(&(gm_quantize_act_args){.out = p.act, .x = p.x, .x_stride = k, .tokens = tokens, .k = k}, 0,
                    (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE);
    p.out = guarded_new(&p.go, (size_t)((tokens - 1) * p.out_stride + rows) * 4);
    p.alone = malloc((size_t)(tokens * p.out_stride) * 4);
    p.bias = malloc((size_t)rows * 4);
    p.residual = malloc((size_t)(tokens * p.out_stride) * 4);
    for (int64_t i = 0; i < rows; i++)
        p.bias[i] = random_float();
    for (int64_t i = 0; i < tokens * p.out_stride; i++)
        p.residual[i] = random_float();
    return p;
}

static void product_free(product *p) {
    guarded_free(&p->gw), guarded_free(&p->gx), guarded_free(&p->ga), guarded_free(&p->go);
    free(p->file), free(p->alone), free(p->bias), free(p->residual);
}

static const float untouched = -12345.5f;

static void fill_out(product *p) {
    for (int64_t i = 0; i < (p->tokens - 1) * p->out_stride + p->rows; i++)
        p->out[i] = untouched;
}

/* What lies between the rows of out was not written, and the rows hold the bits of `alone`. */
static bool same_bits(const product *p) {
    bool same = true;
    for (int64_t n = 0; n < p->tokens; n++) {
        same &= !memcmp(p->out + n * p->out_stride, p->alone + n * p->out_stride, (size_t)p->rows * 4);
        for (int64_t i = p->rows; n < p->tokens - 1 && i < p->out_stride; i++)
            same &= p->out[n * p->out_stride + i] == untouched;
    }
    return same;
}

static gm_matmul_args product_args(const product *p, bool int8) {
    return (gm_matmul_args){.out = p->out,
                            .out_stride = p->out_stride,
                            .x = int8 ? (const void *)p->act : p->x,
                            .x_stride = p->k,
                            .weight = p->packed,
                            .format = p->format,
                            .rows = p->rows,
                            .k = p->k,
                            .tokens = p->tokens};
}

/* Tokens one by one give the bits of all together; so do single panels, last to first; bias and residual come after. */
static void check_bits(product *p, bool int8) {
    const gm_kernel kernel = int8 ? p->t->matmul_int8 : p->t->matmul_float;
    const char *what = int8 ? "matmul_int8: alone = together" : "matmul_float: alone = together";
    const int64_t panels = kernels_panels(p->t, p->format, p->rows);
    gm_matmul_args a = product_args(p, int8);
    uint8_t *one = malloc(act_bytes(1, p->k));
    for (int64_t n = 0; n < p->tokens; n++) {
        gm_matmul_args single = a;
        p->t->quantize_act(
            &(gm_quantize_act_args){.out = one, .x = p->x + n * p->k, .x_stride = p->k, .tokens = 1, .k = p->k}, 0, 1);
        single.tokens = 1;
        single.x = int8 ? (const void *)one : p->x + n * p->k;
        single.out = p->alone + n * p->out_stride;
        kernel(&single, 0, panels);
    }
    check(same_bits(p), what, p->t->isa, p->format, p->rows, p->k, p->tokens);
    free(one);

    fill_out(p);
    for (int64_t i = panels; i-- > 0;)
        kernel(&a, i, i + 1);
    check(same_bits(p), "any range of panels", p->t->isa, p->format, p->rows, p->k, p->tokens);

    for (int64_t n = 0; n < p->tokens; n++)
        for (int64_t r = 0; r < p->rows; r++) {
            const int64_t at = n * p->out_stride + r;
            const float with_bias = p->alone[at] + p->bias[r];
            p->alone[at] = with_bias + p->residual[at];
            p->out[at] = p->residual[at];
        }
    a.bias = p->bias;
    a.residual = p->out;
    kernel(&a, 0, panels);
    check(same_bits(p), "bias and residual", p->t->isa, p->format, p->rows, p->k, p->tokens);
}

/* Both products against sums in double; the int8 one is exact within a block, so its tolerance counts blocks. */
static void check_values(product *p, bool int8) {
    const gm_quant_info *f = &gm_quants[p->format];
    const int64_t panels = kernels_panels(p->t, p->format, p->rows), per_row = p->k / f->values;
    const gm_matmul_args a = product_args(p, int8);
    double *scale = malloc((size_t)p->k * 8), *min = malloc((size_t)p->k * 8);
    int *q = malloc((size_t)p->k * sizeof *q);
    act *acts = malloc((size_t)(p->tokens * (p->k / 32)) * sizeof *acts); /* [tokens][blocks] */
    bool good = true;
    for (int64_t i = 0; i < p->tokens * (p->k / 32); i++)
        acts[i] = act_read(p->t, p->act, p->tokens, p->k, i / (p->k / 32), i % (p->k / 32));
    fill_out(p);
    (int8 ? p->t->matmul_int8 : p->t->matmul_float)(&a, 0, panels);
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t i = 0; i < p->k; i++)
            block_value(p->format, p->file + (r * per_row + i / f->values) * f->bytes, (int)(i % f->values), scale + i,
                        q + i, min + i);
        for (int64_t n = 0; n < p->tokens; n++) {
            double want = 0, size = 0;
            for (int64_t b = 0; b < p->k / 16; b++) {
                const act *v = &acts[n * (p->k / 32) + b / 2];
                const int8_t *values = v->q + b % 2 * 16;
                int64_t product_sum = 0, sum = 0;
                if (int8) {
                    for (int i = 0; i < 16; i++)
                        product_sum += (int64_t)q[16 * b + i] * values[i], sum += values[i];
                    const double main = scale[16 * b] * v->scale * (double)product_sum;
                    const double rest = min[16 * b] * v->scale * (double)sum;
                    want += main + rest;
                    size += fabs(main) + fabs(rest);
                } else {
                    for (int64_t i = 16 * b; i < 16 * b + 16; i++) {
                        const double y = (scale[i] * q[i] + min[i]) * p->x[n * p->k + i];
                        want += y;
                        size += fabs(y);
                    }
                }
            }
            const double blocks = int8 ? (double)(p->k / 32) : (double)(p->k < 64 ? p->k : 64);
            good &= fabs(want - p->out[n * p->out_stride + r]) <= (2 + sqrt(blocks)) * 0x1p-23 * size + 1e-37;
        }
    }
    check(good, int8 ? "matmul_int8 values" : "matmul_float values", p->t->isa, p->format, p->rows, p->k, p->tokens);
    free(scale), free(min), free(q), free(acts);
}

static void test_product(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, int fill,
                         int act_fill) {
    at_end = !at_end;
    product p = product_new(t, format, rows, k, tokens, fill, act_fill);
    for (int int8 = 0; int8 < 1 + quant_takes_int8(format); int8++) {
        check_values(&p, int8);
        check_bits(&p, int8);
    }
    product_free(&p);
}

/* A gated linear unit over two products has the bits of the products, the unit and the form one after another. What is
 * done with sums knows no format: each form meets one unit in each format, and each unit in one of them. */
static void test_glu(const gm_kernels *t, int format, int64_t rows, int64_t k, int64_t tokens, bool int8) {
    product g = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    product u = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    const int64_t panels = kernels_panels(t, format, rows), unit = 32 / kernels_panel(t, format);
    const size_t floats = (size_t)(tokens * rows) * 4, most = floats + act_bytes(tokens, (rows + 31) / 32 * 32);
    gm_matmul_args gate = product_args(&g, int8), up = gate;
    up.weight = u.packed;
    up.out = u.out;
    (int8 ? t->matmul_int8 : t->matmul_float)(&gate, 0, panels);
    (int8 ? t->matmul_int8 : t->matmul_float)(&up, 0, panels);
    guarded memory;
    uint8_t *want = malloc(most), *got;
    float *unit_rows = malloc(floats);
    for (int kind = GM_GLU_SILU; kind <= GM_GLU_CLAMPED; kind++)
        for (int form = GM_FORM_F32; form <= (rows % 32 ? GM_FORM_BF16 : GM_FORM_INT8); form++) {
            if (format != GM_QUANT_q4_0 && kind - GM_GLU_SILU != (format + form) % (GM_GLU_CLAMPED - GM_GLU_SILU + 1))
                continue;
            gm_glu_args glu = {.out = unit_rows,
                               .gate = g.out,
                               .up = u.out,
                               .dim = rows,
                               .gate_stride = g.out_stride,
                               .up_stride = u.out_stride,
                               .kind = (gm_glu_kind)kind,
                               .alpha = 1.702f,
                               .limit = 7};
            const size_t bytes = form == GM_FORM_INT8   ? act_bytes(tokens, rows)
                                 : form == GM_FORM_BF16 ? floats / 2
                                                        : floats;
            const int64_t one = 1, size = tokens * rows;
            t->glu(&glu, 0, tokens);
            memset(want, 0, most);
            if (form == GM_FORM_INT8)
                t->quantize_act(
                    &(gm_quantize_act_args){.out = want, .x = unit_rows, .x_stride = rows, .tokens = tokens, .k = rows},
                    0, (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE);
            else
                t->copy(&(gm_copy_args){.out = want,
                                        .in = unit_rows,
                                        .in_type = GM_T_F32,
                                        .ndim = 1,
                                        .shape = &size,
                                        .out_type = form == GM_FORM_BF16 ? GM_T_BF16 : GM_T_F32,
                                        .out_strides = &one,
                                        .in_strides = &one},
                        0, size);
            got = guarded_new(&memory, bytes);
            const gm_matmul_glu_args a = {.out = got,
                                          .form = (gm_row_form)form,
                                          .int8 = int8,
                                          .gate = gate,
                                          .up = up,
                                          .glu = glu,
                                          .out_rows = rows};
            t->matmul_glu(&a, 0, panels);
            check(!memcmp(got, want, bytes), "matmul_glu", t->isa, format, rows, k, tokens);
            memset(got, 0, bytes);
            for (int64_t i = (panels - 1) / unit * unit; i >= 0; i -= unit)
                t->matmul_glu(&a, i, i + unit < panels ? i + unit : panels);
            check(!memcmp(got, want, bytes), "matmul_glu in parts", t->isa, format, rows, k, tokens);
            guarded_free(&memory);
        }
    free(want), free(unit_rows);
    product_free(&g), product_free(&u);
}

/* A NaN or infinity among the activations stays visible in that token's row and nowhere else. */
static void test_not_finite(const gm_kernels *t, int format) {
    const int64_t rows = 17, k = 256, tokens = 3;
    product p = product_new(t, format, rows, k, tokens, FILL_RANDOM, ACT_RANDOM);
    const gm_matmul_args a = product_args(&p, true);
    p.x[k + 5] = NAN;
    p.x[k + 100] = INFINITY;
    t->quantize_act(&(gm_quantize_act_args){.out = p.act, .x = p.x, .x_stride = k, .tokens = tokens, .k = k}, 0, 1);
    t->matmul_int8(&a, 0, kernels_panels(t, format, rows));
    bool good = true;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t r = 0; r < rows; r++)
            good &= !isnan(p.out[n * p.out_stride + r]) == (n != 1);
    check(good, "NaN stays visible", t->isa, format, rows, k, tokens);
    product_free(&p);
}

/* Groups of other sizes and scales of other types differ little. */
static void test_affine(const gm_kernels *t, int format) {
    static const int64_t row_counts[] = {1, 16, 17}, ks[] = {128, 768, 4352}, token_counts[] = {1, 3, 17};
    for (int r = 0; r < 3; r++)
        test_product(t, format, row_counts[r], ks[(r + 1) % 3], token_counts[r], FILL_RANDOM, ACT_RANDOM);
    test_product(t, format, 17, 256, 5, FILL_ONES, ACT_EXTREME);
    test_product(t, format, 17, 256, 5, FILL_TINY, ACT_CONSTANT);
    test_glu(t, format, 96, 256, 17, true);
    test_not_finite(t, format);
}

static void test_table(const gm_kernels *t) {
    static const int64_t row_counts[] = {1, 15, 16, 17, 33}, token_counts[] = {1, 2, 15, 16, 17, 33};
    static const int64_t small_k[] = {32, 288, 512}, large_k[] = {256, 768, 512};
    for (int format = GM_QUANT_bf16 + 1; format < GM_QUANT_COUNT; format++) {
        const int64_t *ks = gm_quants[format].values > 32 ? large_k : small_k;
        if (has_few_sizes(format)) {
            test_affine(t, format);
            continue;
        }
        for (int r = 0; r < 5; r += quick ? 3 : 1)
            for (int n = 0; n < 6; n += quick ? 4 : 1)
                test_product(t, format, row_counts[r], ks[(r + n) % 3], token_counts[n], FILL_RANDOM, ACT_RANDOM);
        /* Long rows differ in nothing but their length. */
        test_product(t, format, 17, 4352, 3, FILL_RANDOM, ACT_RANDOM);
        test_product(t, format, 1, 4352, 17, FILL_RANDOM, ACT_RANDOM);
        for (int n = 0; n < 6; n += quick ? 4 : 1)
            for (int int8 = 0; int8 < 1 + quant_takes_int8(format); int8++) {
                test_glu(t, format, 33, ks[1], token_counts[n], int8);
                test_glu(t, format, 96, ks[0], token_counts[n], int8);
            }
        for (int fill = FILL_RANDOM; fill < FILL_COUNT; fill++)
            for (int act_fill = ACT_EXTREME; act_fill < ACT_COUNT; act_fill++)
                test_product(t, format, 17, ks[2], 17, fill, act_fill);
        for (int tokens = 3; tokens < 15; tokens++)
            test_product(t, format, 16, ks[0], tokens, FILL_RANDOM, ACT_RANDOM);
        if (quant_takes_int8(format))
            test_not_finite(t, format);
    }
}

int main(int argc, char **argv) { return run_tables(argc, argv, test_table); }
