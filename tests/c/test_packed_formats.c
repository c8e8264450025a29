/* test_packed_formats.c - the packed formats in every table of kernels that this machine can run: dequantising against
 * golden sums, packing and unpacking in any ranges, rows of embeddings, int8 activations; and which table is chosen. */
#include "packed_check.h"

/* ---- golden sums of each format (sums of y and of (i + 1) y for a fixed block) ---- */
static void test_golden(const gm_kernels *t) {
    static const struct {
        int format;
        double sum, weighted;
    } golden[] = {
        {GM_QUANT_q4_0, -2.62756348, -64.8132324},   {GM_QUANT_q4_1, 33.854126, 551.148315},
        {GM_QUANT_q5_0, 1.87683105, 14.0136719},     {GM_QUANT_q5_1, 66.3858643, 1041.37659},
        {GM_QUANT_q8_0, -22.0214844, -1010.98633},   {GM_QUANT_q4_k, 6495.56738, 911932.317},
        {GM_QUANT_q5_k, 14225.1084, 1969790.37},     {GM_QUANT_q6_k, 577.062988, 98148.2544},
        {GM_QUANT_q2_k, 194.769897, 21764.3992},     {GM_QUANT_q3_k, 119.866943, 22164.7491},
        {GM_QUANT_iq4_nl, -32.1563721, -865.719604}, {GM_QUANT_iq4_xs, -1376.96838, -261647.015},
        {GM_QUANT_mxfp4, 0.1953125, 4.984375},
    };
    for (size_t n = 0; n < sizeof golden / sizeof *golden; n++) {
        const int format = golden[n].format;
        uint8_t block[256];
        float y[256];
        for (int i = 0; i < 256; i++)
            block[i] = (uint8_t)(i * 37 + 11);
        if (format == GM_QUANT_mxfp4)
            block[0] = 121;
        else
            memcpy(block + scale_offset(format), "\x01\x30", 2);
        if (has_min(format))
            memcpy(block + scale_offset(format) + 2, "\x66\x2e", 2);
        const int64_t k = gm_quants[format].values;
        t->dequantize(&(gm_dequantize_args){.out = y, .in = block, .format = format, .k = k}, 0, 1);
        double sum = 0, weighted = 0;
        for (int i = 0; i < k; i++)
            sum += y[i], weighted += (i + 1) * (double)y[i];
        check(fabs(sum - golden[n].sum) <= 1e-5 * fabs(golden[n].sum) &&
                  fabs(weighted - golden[n].weighted) <= 1e-5 * fabs(golden[n].weighted),
              "golden sums", t->isa, format, 1, k, 0);
    }
}

/* ---- packing ---- */
static void test_pack(const gm_kernels *t, int format, int64_t rows, int64_t k) {
    guarded gw, gp, gu, ge;
    const size_t row_bytes = (size_t)(k / gm_quants[format].values * gm_quants[format].bytes);
    const int64_t panels = kernels_panels(t, format, rows);
    const size_t packed_bytes = (size_t)kernels_packed_bytes(t, format, rows, k);
    uint8_t *w = guarded_new(&gw, (size_t)rows * row_bytes), *packed = guarded_new(&gp, packed_bytes);
    uint8_t *back = guarded_new(&gu, (size_t)rows * row_bytes);
    float *out = guarded_new(&ge, (size_t)k * 4), *want = malloc((size_t)(rows * k) * 4);
    uint8_t *whole = malloc(packed_bytes);
    int32_t map[64], token;
    for (int64_t r = 0; r < rows; r++)
        map[r] = (int32_t)((r * 5 + 3) % rows);
    if (rows % 5 == 0)
        for (int64_t r = 0; r < rows; r++)
            map[r] = (int32_t)(rows - 1 - r);

    if (format <= GM_QUANT_bf16) /* no infinities or NaN: they compare unequal below */
        for (size_t i = 0; i < (size_t)rows * row_bytes; i++)
            w[i] = (uint8_t)(random_bits() >> 7 & 0xbb);
    else
        fill_weights(format, w, rows, k, FILL_RANDOM);
    t->dequantize(&(gm_dequantize_args){.out = want, .in = w, .format = format, .k = k}, 0, rows);
    for (int mapped = 0; mapped < 2; mapped++) {
        const int32_t *row_map = mapped ? map : NULL;
        const gm_pack_args pack = {.out = packed, .in = w, .row_map = row_map, .format = format, .rows = rows, .k = k};
        const gm_unpack_args unpack = {
            .out = back, .in = packed, .row_map = row_map, .format = format, .rows = rows, .k = k};
        memset(packed, 0x5a, packed_bytes);
        memset(back, 0xa5, (size_t)rows * row_bytes);
        t->pack(&pack, 0, panels);
        memcpy(whole, packed, packed_bytes);
        for (int64_t p = panels; p-- > 0;)
            t->pack(&pack, p, p + 1);
        check(!memcmp(whole, packed, packed_bytes), "pack in any ranges", t->isa, format, rows, k, 0);
        t->unpack(&unpack, 0, panels);
        check(!memcmp(w, back, (size_t)rows * row_bytes), "unpack", t->isa, format, rows, k, 0);
        for (int64_t r = 0; r < rows; r++) {
            const float scale = r % 2 ? 1.0f : 2.5f;
            token = (int32_t)r;
            t->embed(&(gm_embed_args){.out = out,
                                      .weight = packed,
                                      .tokens = &token,
                                      .format = format,
                                      .rows = rows,
                                      .k = k,
                                      .scale = scale},
                     0, 1);
            const float *row = want + (mapped ? map[r] : r) * k;
            bool same = true;
            for (int64_t i = 0; i < k; i++)
                same &= out[i] == row[i] * scale;
            check(same, "embed", t->isa, format, rows, k, r);
        }
    }
    guarded_free(&gw), guarded_free(&gp), guarded_free(&gu), guarded_free(&ge);
    free(want), free(whole);
}

/* Arrays as MLX's files have them are packed to the bytes of their blocks. */
static void test_gather(const gm_kernels *t, int format, int64_t rows, int64_t k) {
    const gm_quant_info *f = &gm_quants[format];
    const int bits = f->bits ? f->bits : format == GM_QUANT_mxfp8 ? 8 : 4;
    const int64_t all = rows * (k / f->values), fields = f->values * bits / 8;
    const int64_t scale = (f->bytes - fields) / (f->bits ? 2 : 1);
    const int64_t packed_bytes = kernels_packed_bytes(t, format, rows, k);
    guarded gi, gs, gb;
    uint8_t *in = guarded_new(&gi, (size_t)(all * fields)), *scales = guarded_new(&gs, (size_t)(all * scale));
    uint8_t *biases = guarded_new(&gb, (size_t)(all * scale)), *file = malloc((size_t)(all * f->bytes));
    uint8_t *want = malloc((size_t)packed_bytes), *got = malloc((size_t)packed_bytes);
    int32_t map[64];
    for (int64_t r = 0; r < rows; r++)
        map[r] = (int32_t)(rows - 1 - r);
    fill_weights(format, file, rows, k, FILL_RANDOM);
    for (int64_t b = 0; b < all; b++) {
        const uint8_t *block = file + b * f->bytes, *qs = block + f->bytes - fields;
        memcpy(scales + b * scale, block, (size_t)scale);
        if (f->bits)
            memcpy(biases + b * scale, block + scale, (size_t)scale);
        for (int64_t i = 0; i < fields; i++)
            in[b * fields + i] = format != GM_QUANT_mxfp4 ? qs[i]
                                                          : (uint8_t)((qs[2 * i % 16] >> i / 8 * 4 & 15) |
                                                                      (qs[(2 * i + 1) % 16] >> i / 8 * 4 & 15) << 4);
    }
    for (int mapped = 0; mapped < 2; mapped++) {
        gm_pack_args a = {
            .out = want, .in = file, .row_map = mapped ? map : NULL, .format = format, .rows = rows, .k = k};
        t->pack(&a, 0, kernels_panels(t, format, rows));
        a.out = got, a.in = in, a.scales = scales, a.biases = f->bits ? biases : NULL;
        memset(got, 0x5a, (size_t)packed_bytes);
        t->pack(&a, 0, kernels_panels(t, format, rows));
        check(!memcmp(want, got, (size_t)packed_bytes), "pack of arrays", t->isa, format, rows, k, 0);
    }
    guarded_free(&gi), guarded_free(&gs), guarded_free(&gb);
    free(file), free(want), free(got);
}

static void test_activations(const gm_kernels *t, int64_t tokens, int64_t k) {
    guarded gx, go;
    const int64_t stride = k + 5, tiles = (tokens + GM_ACT_TILE - 1) / GM_ACT_TILE;
    float *x = guarded_new(&gx, (size_t)((tokens - 1) * stride + k) * 4);
    uint8_t *out = guarded_new(&go, act_bytes(tokens, k));
    fill_activations(x, (tokens - 1) * stride + k, ACT_RANDOM);
    memset(x, 0, 32 * 4); /* a block of zeros, then others that have no ordinary scale */
    if (k > 160) {
        for (int i = 32; i < 64; i++)
            x[i] = (float)i * 1e-42f;
        x[70] = INFINITY, x[100] = NAN, x[130] = -INFINITY;
    }
    for (int64_t i = tiles; i-- > 0;)
        t->quantize_act(&(gm_quantize_act_args){.out = out, .x = x, .x_stride = stride, .tokens = tokens, .k = k}, i,
                        i + 1);
    bool good = true;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t b = 0; b < k / 32; b++) {
            const act a = act_read(t, out, tokens, k, n, b);
            const float *v = x + n * stride + 32 * b;
            float amax = 0;
            bool finite = true;
            int32_t sum = 0, low = 0;
            for (int i = 0; i < 32; i++)
                finite &= isfinite(v[i]) != 0, amax = fmaxf(amax, fabsf(v[i]));
            if (amax < 0x1p-118f)
                amax = 0;
            const float factor = amax > 0 && finite ? 127 / amax : 0;
            for (int i = 0; i < 32; i++) {
                const int q = finite ? (int)rintf(v[i] * factor) : 0;
                good &= a.q[i] == q;
                sum += q;
                if (i < 16)
                    low += q;
            }
            if (finite)
                good &= a.scale == amax / 127 && a.scaled_sum == a.scale * (float)sum;
            else
                good &= isnan(a.scale) && isnan(a.scaled_sum);
            good &= a.neg_sum == -sum && a.neg_low == -low;
        }
    check(good, "quantize_act", t->isa, GM_QUANT_f32, 0, k, tokens);
    guarded_free(&gx), guarded_free(&go);
}

static void test_table(const gm_kernels *t) {
    static const int64_t row_counts[] = {1, 15, 16, 17, 33}, affine_k[] = {128, 768, 4352};
    test_golden(t);
    for (int tokens = 1; tokens <= 33; tokens += 4)
        test_activations(t, tokens, tokens % 8 == 1 ? 32 : 288);
    for (int format = 0; format < GM_QUANT_COUNT; format++) {
        const bool dense = format <= GM_QUANT_bf16;
        const int64_t k = gm_quants[format].values > 32 ? 768 : 288;
        if (has_few_sizes(format)) {
            for (int r = 0; r < 3; r++) {
                at_end = !at_end;
                test_pack(t, format, r == 0 ? 1 : 15 + r, affine_k[r]);
                test_gather(t, format, r == 0 ? 1 : 15 + r, 256);
            }
            continue;
        }
        if (format >= GM_QUANT_mxfp4)
            test_gather(t, format, 17, k);
        for (int r = 0; r < 5; r += quick ? 3 : 1) {
            at_end = !at_end;
            test_pack(t, format, row_counts[r], dense ? 37 : k);
        }
    }
}

static void test_choice(void) {
    bool good = true;
    for (const char *const *name = kernels_names(); *name; name++) {
        const char *why = NULL;
        setenv("GOMLX_ISA", *name, 1);
        const gm_kernels *t = kernels_select(&why);
        good &= t == kernels_get(*name) && (t ? !strcmp(t->isa, *name) : why && strstr(why, *name));
        good &= strstr(kernels_reason(), *name) != NULL;
    }
    const char *why = NULL;
    setenv("GOMLX_ISA", "sse9", 1);
    good &= !kernels_select(&why) && why && strstr(why, "sse9") && strstr(why, "generic");
    unsetenv("GOMLX_ISA");
    for (const char *const *name = kernels_names(); *name; name++) /* the first that can run is the choice */
        if (kernels_get(*name)) {
            good &= kernels_select(NULL) == kernels_get(*name);
            break;
        }
    good &= kernels_get("generic") && !kernels_get("") && !kernels_get("AVX2");
    check(good, "choice of a table", "all", GM_QUANT_f32, 0, 0, 0);

    good = quant_from_gguf(12) == GM_QUANT_q4_k && quant_from_gguf(9) == -1 && quant_from_gguf(-1) == -1;
    good &= !strcmp(quant_gguf_name(16), "IQ2_XXS") && !quant_gguf_name(-1) && !quant_gguf_name(INT64_MAX);
    for (int i = 0; i < GM_QUANT_COUNT; i++)
        good &= gm_quants[i].gguf_type < 0 || !strcmp(quant_gguf_name(gm_quants[i].gguf_type), gm_quants[i].name);
    good &= quant_affine(4, 64, GM_QUANT_bf16) == GM_QUANT_affine4_64_bf16 && quant_affine(7, 64, GM_QUANT_f16) == -1;
    good &= quant_affine(0, 1, 0) == -1 && quant_affine(8, 16, GM_QUANT_f32) == -1;
    check(good, "names of types", "all", GM_QUANT_f32, 0, 0, 0);
}

int main(int argc, char **argv) {
    test_choice();
    return run_tables(argc, argv, test_table);
}
