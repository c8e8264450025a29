/* test_row_kernels.c - the kernels of rows: take, softmax, norms, rope, gated units, routing, in every table that this
 * machine runs, against their definitions in double, and bit for bit against themselves however ranges are cut. */
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

int main(int argc, char **argv) {
    return RUN_TESTS(ABOUT(softmax, test_rows), ABOUT(glu, test_gated_units), ABOUT(route, test_route));
}
