/* test_moe.c - mixtures of experts: every format of weights, every form of activations, sizes that straddle panels,
 * tokens from one to many, all of them at one expert and experts without any: against the definition in double, and bit
 * for bit against the products of each row alone, on any number of threads; one captured plan for every routing. */
#include <math.h>
#include <stdlib.h>
#include "base/memory.h"
#include "blocks_fill.h"
#include "check.h"
#include "core/graph.h"
#include "cpu/loops.h"
#include "nn/moe.h"
#include "ops/layers/moe.h"

/* For all instruction sets but one. What the engine does is the same with each; of what a set's kernels do, which have
 * tests of their own, there remain each format with one routing, one token, a few, and more than a tile (shapes), on
 * one thread and three. Of MLX's affine formats those with groups of 64: groups of other sizes are the same kernels
 * with another number. */
static bool quick;

static uint32_t below(uint32_t n) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}
static float noise(void) { return (float)below(1 << 20) / (1 << 19) - 1; }

/* A stack of matrices in a format, and what its values are as float32. */
typedef struct {
    int format;
    int64_t experts, rows, k;
    float *values, *bias;   /* [experts][rows][k], [experts][rows] or NULL */
    float inputs;           /* of this size give sums of about one */
    gm_linear packed, *one; /* the stack, and each expert as a layer by itself */
} stack;

/* Blocks have random bytes, with scales of a sane size, but for the first `rounded` values, which the engine rounds to
 * formats that are not only read (kernels/quants.def): that takes long, and no product knows the difference. */
static void to_format(int format, const float *in, int64_t n, int64_t rounded, void *out) {
    static const int types[] = {GM_FLOAT32, GM_FLOAT16, GM_BFLOAT16};
    const gm_kernels *k = engine_kernels();
    const int64_t one = 1;
    if (format <= GM_QUANT_bf16)
        k->copy(&(gm_copy_args){.out = out,
                                .in = in,
                                .out_type = types[format],
                                .in_type = GM_FLOAT32,
                                .ndim = 1,
                                .shape = &n,
                                .out_strides = &one,
                                .in_strides = &one},
                0, n);
    else
        fill_weights(format, out, 1, n, FILL_RANDOM);
    if (format >= GM_QUANT_q4_0 && rounded > 0)
        k->block_quantize(&(gm_block_quantize_args){.out = out, .in = in, .format = format}, 0,
                          rounded / gm_quants[format].values);
}

static gm_array *packed_array(const stack *t, int ndim, const int64_t *shape, int64_t bytes) {
    gm_spec spec = {.dtype = GM_PACKED, .format = t->format, .ndim = ndim};
    memcpy(spec.shape, shape, (size_t)ndim * sizeof *shape);
    gm_buffer *buf = buffer_new((size_t)bytes);
    gm_array *a = array_data(NULL, &spec, buf, 0);
    buffer_release(buf);
    return a;
}

static gm_array *floats_array(int ndim, const int64_t *shape, const float *data) {
    gm_scope *s = gm_scope_open();
    gm_array *a = gm_retain(gm_array_from(s, GM_FLOAT32, ndim, shape, data));
    gm_scope_close(s);
    return a;
}

/* Rows in one of MLX's modes with scales in float32, packed from its arrays. */
static void pack_groups(int format, const float *values, int64_t rows, int64_t k, void *out) {
    const gm_kernels *kernels = engine_kernels();
    const gm_quant_info *f = &gm_quants[format];
    const int bits = f->bits ? f->bits : format == GM_QUANT_mxfp8 ? 8 : 4;
    const int group = format == GM_QUANT_nvfp4 ? 16 : f->values;
    const size_t groups = (size_t)(rows * k / group);
    char *fields = malloc((size_t)(rows * k * bits / 8)), *scales = malloc(groups * 4), *biases = malloc(groups * 4);
    kernels->group_quantize(&(gm_group_quantize_args){.weight = fields,
                                                      .scales = scales,
                                                      .biases = biases,
                                                      .in = values,
                                                      .bits = bits,
                                                      .group = group,
                                                      .in_type = GM_T_F32,
                                                      .mode = f->bits                    ? GM_AFFINE
                                                              : format == GM_QUANT_nvfp4 ? GM_NVFP4
                                                                                         : GM_MXFP8},
                            0, (int64_t)groups);
    kernels->pack(&(gm_pack_args){.out = out,
                                  .in = fields,
                                  .format = format,
                                  .rows = rows,
                                  .k = k,
                                  .scales = scales,
                                  .biases = f->bits ? biases : NULL},
                  0, kernels_panels(kernels, format, rows));
    free(fields);
    free(scales);
    free(biases);
}

static stack make_stack(int format, bool fast, bool biased, int64_t experts, int64_t rows, int64_t k) {
    const bool bf16 = fast && format == GM_QUANT_bf16, int8 = fast && quant_takes_int8(format);
    stack t = {.format = format, .experts = experts, .rows = rows, .k = k};
    const gm_kernels *kernels = engine_kernels();
    const int64_t bytes = kernels_packed_bytes(kernels, format, rows, k),
                  panels = kernels_panels(kernels, format, rows);
    char *file = malloc((size_t)(rows * k * 4)); /* more than any format takes */
    t.values = malloc((size_t)(experts * rows * k) * sizeof *t.values);
    t.one = calloc((size_t)experts, sizeof *t.one);
    t.packed = (gm_linear){
        .weight = packed_array(&t, 3, (int64_t[]){experts, rows, k}, experts * bytes), .int8 = int8, .bf16 = bf16};
    for (int64_t e = 0; e < experts; e++) {
        float *values = t.values + e * rows * k;
        for (int64_t i = 0; i < rows * k; i++)
            values[i] = noise() / sqrtf((float)k) * 2;
        t.one[e] = (gm_linear){.weight = packed_array(&t, 2, (int64_t[]){rows, k}, bytes), .int8 = int8, .bf16 = bf16};
        void *packed = array_ptr(t.one[e].weight);
        if (format > GM_QUANT_mxfp4) {
            pack_groups(format, values, rows, k, packed);
        } else {
            to_format(format, values, rows * k, e == 0 ? 16 * k : 0, file); /* no stack has fewer rows */
            kernels->pack(&(gm_pack_args){.out = packed, .in = file, .format = format, .rows = rows, .k = k}, 0,
                          panels);
        }
        kernels->unpack(&(gm_unpack_args){.out = file, .in = packed, .format = format, .rows = rows, .k = k}, 0,
                        panels);
        kernels->dequantize(&(gm_dequantize_args){.out = values, .in = file, .format = format, .k = k}, 0, rows);
        memcpy((char *)array_ptr(t.packed.weight) + e * bytes, array_ptr(t.one[e].weight), (size_t)bytes);
    }
    free(file);
    double squares = 0;
    for (int64_t i = 0; i < experts * rows * k; i++)
        squares += (double)(t.values[i] * t.values[i]);
    t.inputs = (float)sqrt((double)(experts * rows) / (squares + 1e-30));
    if (!biased)
        return t;
    t.bias = malloc((size_t)(experts * rows) * sizeof *t.bias);
    for (int64_t i = 0; i < experts * rows; i++)
        t.bias[i] = noise();
    t.packed.bias = floats_array(2, (int64_t[]){experts, rows}, t.bias);
    for (int64_t e = 0; e < experts; e++)
        t.one[e].bias = floats_array(1, &rows, t.bias + e * rows);
    return t;
}

static void free_stack(stack *t) {
    linear_clear(&t->packed);
    for (int64_t e = 0; t->one && e < t->experts; e++)
        linear_clear(&t->one[e]);
    free(t->one);
    free(t->values);
    free(t->bias);
}

/* ---- the definition ---- */
typedef struct {
    stack gate, up, down;
    moe_activation act;
    float alpha, limit;
} mixture;

static double activation_of(const mixture *m, double g, double u) {
    switch (m->act) {
    case MOE_SWIGLU: return g / (1 + exp(-g)) * u;
    case MOE_GEGLU: return g / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) * u;
    default:
        g = fmin(g, (double)m->limit);
        u = fmax(-(double)m->limit, fmin((double)m->limit, u));
        return g / (1 + exp(-(double)m->alpha * g)) * (u + 1);
    }
}

static void multiply_exactly(const stack *t, int64_t expert, const double *x, double *y) {
    for (int64_t r = 0; r < t->rows; r++) {
        const float *values = t->values + (expert * t->rows + r) * t->k;
        double sum = t->bias ? (double)t->bias[expert * t->rows + r] : 0;
        for (int64_t i = 0; i < t->k; i++)
            sum += x[i] * (double)values[i];
        y[r] = sum;
    }
}

/* Worst difference of out [n, down.rows] from the definition, of the size of the largest. */
static double error_of(const mixture *m, int64_t n, int64_t k, const float *x, const int32_t *ids, const float *weights,
                       const float *out) {
    const int64_t h = m->gate.k, inner = m->gate.rows, rows = m->down.rows;
    double *row = malloc((size_t)(h + 2 * inner + 2 * rows) * sizeof *row), worst = 0, most = 1e-3;
    double *g = row + h, *u = g + inner, *y = u + inner, *sum = y + rows;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < h; i++)
            row[i] = (double)x[t * h + i];
        memset(sum, 0, (size_t)rows * sizeof *sum);
        for (int64_t j = 0; j < k; j++) {
            const int64_t e = ids[t * k + j];
            multiply_exactly(&m->gate, e, row, g);
            multiply_exactly(&m->up, e, row, u);
            for (int64_t i = 0; i < inner; i++)
                g[i] = activation_of(m, g[i], u[i]);
            multiply_exactly(&m->down, e, g, y);
            for (int64_t i = 0; i < rows; i++)
                sum[i] += (double)weights[t * k + j] * y[i];
        }
        for (int64_t i = 0; i < rows; i++) {
            worst = fmax(worst, fabs(sum[i] - (double)out[t * rows + i]));
            most = fmax(most, fabs(sum[i]));
        }
    }
    free(row);
    return worst / most;
}

/* ---- the same row by row: dense layers, each for one row ---- */
static gm_array *one_row(gm_scope *s, const mixture *m, int64_t k, const float *x, const int32_t *ids,
                         const float *weights) {
    gm_array *parts[64];
    float *rows = malloc((size_t)(k * m->down.rows) * sizeof *rows), *sum = calloc((size_t)m->down.rows, sizeof *sum);
    for (int64_t j = 0; j < k; j++) {
        gm_activation in = {.x = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){1, m->gate.k}, x)}, hidden = {0};
        gm_array *g = linear_apply(s, &m->gate.one[ids[j]], &in, GM_NONE);
        gm_array *u = linear_apply(s, &m->up.one[ids[j]], &in, GM_NONE);
        hidden.x = m->act == MOE_SWIGLU  ? gm_swiglu(s, g, u)
                   : m->act == MOE_GEGLU ? gm_geglu(s, g, u)
                                         : gm_clamped_swiglu(s, g, u, m->alpha, m->limit);
        parts[j] = linear_apply(s, &m->down.one[ids[j]], &hidden, GM_NONE);
        CHECK(parts[j] && gm_eval(&parts[j], 1) == GM_OK);
        memcpy(rows + j * m->down.rows, gm_array_data(parts[j]), (size_t)m->down.rows * sizeof *rows);
    }
    const int64_t columns = m->down.rows, units = (columns + GM_EXPERT_COLUMNS - 1) / GM_EXPERT_COLUMNS;
    engine_kernels()->expert_sum(
        &(gm_expert_sum_args){.out = sum, .y = rows, .weights = weights, .top_k = k, .dim = columns}, 0, units);
    gm_array *out = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){1, columns}, sum);
    free(rows);
    free(sum);
    return out;
}

typedef enum { SPREAD, ONE_EXPERT, LAST_FIRST, ROUTINGS } routing;

static void route_rows(routing kind, int64_t n, int64_t k, int64_t experts, int32_t *ids) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t j = 0; j < k; j++) {
            bool again = true;
            while (again) {
                ids[t * k + j] = (int32_t)(kind == SPREAD       ? below((uint32_t)experts)
                                           : kind == ONE_EXPERT ? experts / 2
                                                                : experts - 1 - j % experts);
                again = false;
                for (int64_t i = 0; i < j && kind == SPREAD && k < experts; i++)
                    again |= ids[t * k + i] == ids[t * k + j];
            }
        }
}

static gm_array *apply(gm_scope *s, const mixture *m, int64_t n, int64_t k, const float *x, const int32_t *ids,
                       const float *weights) {
    return moe_apply(s, gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){n, m->gate.k}, x),
                     gm_array_from(s, GM_INT32, 2, (int64_t[]){n, k}, ids),
                     gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){n, k}, weights),
                     (moe_stacks){&m->gate.packed, &m->up.packed, &m->down.packed},
                     (expert_activation){m->act, m->alpha, m->limit});
}

static void check_mixture(const mixture *m, int64_t n, int64_t k, routing kind, double tolerance) {
    const int64_t h = m->gate.k, rows = m->down.rows;
    float *x = malloc((size_t)(n * h) * sizeof *x), *weights = malloc((size_t)(n * k) * sizeof *x);
    float *first = malloc((size_t)(n * rows) * sizeof *first);
    int32_t *ids = malloc((size_t)(n * k) * sizeof *ids);
    for (int64_t i = 0; i < n * h; i++)
        x[i] = noise() * m->gate.inputs;
    for (int64_t i = 0; i < n * k; i++)
        weights[i] = noise();
    route_rows(kind, n, k, m->gate.experts, ids);
    for (int threads = 1; threads <= 3; threads += quick ? 2 : 1) {
        gm_scope *s = gm_scope_open();
        CHECK(gm_set_threads(threads) == GM_OK);
        gm_array *out = apply(s, m, n, k, x, ids, weights);
        CHECK(out && gm_eval(&out, 1) == GM_OK);
        const float *got = out ? gm_array_data(out) : NULL;
        if (got && threads == 1) {
            const double worst = error_of(m, n, k, x, ids, weights, got);
            CHECK(worst <= tolerance);
            if (worst > tolerance)
                printf("%s fast %d n %d k %d routing %d: %g\n", gm_quants[m->gate.format].name,
                       m->gate.packed.int8 || m->gate.packed.bf16, (int)n, (int)k, (int)kind, worst);
            memcpy(first, got, (size_t)(n * rows) * sizeof *got);
        }
        CHECK(got && memcmp(got, first, (size_t)(n * rows) * sizeof *got) == 0);
        /* Each row alone on one thread; on more, where all together are the same, the last one. */
        for (int64_t t = threads == 1 ? 0 : n - 1; got && t < n; t++) {
            gm_array *alone = one_row(s, m, k, x + t * h, ids + t * k, weights + t * k);
            CHECK(alone && gm_eval(&alone, 1) == GM_OK &&
                  memcmp(gm_array_data(alone), got + t * rows, (size_t)rows * sizeof *got) == 0);
        }
        gm_scope_close(s);
    }
    free(x);
    free(weights);
    free(first);
    free(ids);
}

/* ---- the gradient ---- */
/* The layer's own product: where it rounds x, the derivative is that at the point where the pass was. */
static void multiply(const stack *t, int64_t expert, const float *x, double *y) {
    gm_scope *s = gm_scope_open();
    const gm_activation in = {.x = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){1, t->k}, x)};
    gm_array *product = linear_apply(s, &t->one[expert], &in, GM_NONE);
    CHECK(product && gm_eval(&product, 1) == GM_OK);
    for (int64_t r = 0; r < t->rows; r++)
        y[r] = (double)((const float *)gm_array_data(product))[r];
    gm_scope_close(s);
}

/* What the cotangents of out give to x and to the weights. */
static void differentiate_exactly(const mixture *m, int64_t n, int64_t k, const float *const in[3], const int32_t *ids,
                                  double *dx, double *dweights) {
    const float *x = in[0], *weights = in[1], *cotangent = in[2];
    const int64_t h = m->gate.k, inner = m->gate.rows, rows = m->down.rows;
    double *g = malloc((size_t)(3 * inner) * sizeof *g), *u = g + inner, *given = u + inner;
    memset(dx, 0, (size_t)(n * h) * sizeof *dx);
    for (int64_t pair = 0; pair < n * k; pair++) {
        const int64_t t = pair / k, e = ids[pair];
        const float *cot = cotangent + t * rows;
        multiply(&m->gate, e, x + t * h, g);
        multiply(&m->up, e, x + t * h, u);
        dweights[pair] = 0;
        for (int64_t r = 0; r < rows && m->down.bias; r++)
            dweights[pair] += (double)cot[r] * (double)m->down.bias[e * rows + r];
        for (int64_t i = 0; i < inner; i++) {
            const double step = 1e-6;
            given[i] = 0;
            for (int64_t r = 0; r < rows; r++)
                given[i] += (double)cot[r] * (double)m->down.values[(e * rows + r) * inner + i];
            dweights[pair] += given[i] * activation_of(m, g[i], u[i]);
            given[i] *= (double)weights[pair] / (2 * step);
            const double dg = given[i] * (activation_of(m, g[i] + step, u[i]) - activation_of(m, g[i] - step, u[i]));
            const double du = given[i] * (activation_of(m, g[i], u[i] + step) - activation_of(m, g[i], u[i] - step));
            for (int64_t j = 0; j < h; j++)
                dx[t * h + j] += dg * (double)m->gate.values[(e * inner + i) * h + j] +
                                 du * (double)m->up.values[(e * inner + i) * h + j];
        }
    }
    free(g);
}

/* Of rows [first, first + n): cotangents of x and weights, evaluated. */
static bool differentiate(gm_scope *s, const mixture *m, int64_t first, int64_t n, int64_t k, const float *const in[3],
                          const int32_t *ids, gm_array **grads) {
    const int64_t widths[3] = {m->gate.k, k, m->down.rows};
    gm_array *given[3], *primals[2];
    for (int i = 0; i < 3; i++)
        given[i] = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){n, widths[i]}, in[i] + first * widths[i]);
    gm_array *chosen = gm_array_from(s, GM_INT32, 2, (int64_t[]){n, k}, ids + first * k);
    gm_trace_enter();
    for (int i = 0; i < 2; i++)
        primals[i] = gm_tracer(s, given[i]);
    gm_array *out = moe_apply(s, primals[0], chosen, primals[1],
                              (moe_stacks){&m->gate.packed, &m->up.packed, &m->down.packed},
                              (expert_activation){m->act, m->alpha, m->limit});
    const bool ok = out && gm_vjp(s, &out, &given[2], 1, primals, 2, grads) == GM_OK;
    gm_trace_leave();
    return ok && gm_eval(grads, 2) == GM_OK;
}

static double distance(const float *found, const double *want, int64_t n) {
    double worst = 0, most = 1e-3;
    for (int64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)found[i] - want[i]));
        most = fmax(most, fabs(want[i]));
    }
    return worst / most;
}

static void check_gradient(const mixture *m, int64_t n, int64_t k, routing kind, double tolerance) {
    const int64_t widths[3] = {m->gate.k, k, m->down.rows};
    float *in[3], *first[2];
    double *want[2];
    int32_t *ids = malloc((size_t)(n * k) * sizeof *ids);
    for (int i = 0; i < 3; i++) {
        in[i] = malloc((size_t)(n * widths[i]) * sizeof *in[i]);
        for (int64_t j = 0; j < n * widths[i]; j++)
            in[i][j] = noise() * (i ? 1 : m->gate.inputs);
    }
    for (int i = 0; i < 2; i++) {
        want[i] = malloc((size_t)(n * widths[i]) * sizeof *want[i]);
        first[i] = malloc((size_t)(n * widths[i]) * sizeof *first[i]);
    }
    route_rows(kind, n, k, m->gate.experts, ids);
    differentiate_exactly(m, n, k, (const float *const *)in, ids, want[0], want[1]);
    for (int threads = 1; threads <= 3; threads += quick ? 2 : 1) {
        gm_scope *s = gm_scope_open();
        gm_array *grads[2], *alone[2];
        CHECK(gm_set_threads(threads) == GM_OK);
        const bool ok = differentiate(s, m, 0, n, k, (const float *const *)in, ids, grads);
        CHECK(ok);
        for (int i = 0; ok && i < 2; i++) {
            const double error = distance(gm_array_data(grads[i]), want[i], n * widths[i]);
            CHECK(error <= tolerance);
            if (error > tolerance)
                printf("%s n %d k %d routing %d: gradient %d: %g\n", gm_quants[m->gate.format].name, (int)n, (int)k,
                       (int)kind, i, error);
            const size_t bytes = (size_t)(n * widths[i]) * sizeof *first[i];
            if (threads == 1)
                memcpy(first[i], gm_array_data(grads[i]), bytes);
            CHECK(memcmp(gm_array_data(grads[i]), first[i], bytes) == 0);
        }
        /* Each row's own bits, whatever is beside it; on more threads, of the last one. */
        for (int64_t t = threads == 1 ? 0 : n - 1; ok && t < n; t++) {
            CHECK(differentiate(s, m, t, 1, k, (const float *const *)in, ids, alone));
            for (int i = 0; i < 2; i++)
                CHECK(memcmp(gm_array_data(alone[i]), (const float *)gm_array_data(grads[i]) + t * widths[i],
                             (size_t)widths[i] * sizeof(float)) == 0);
        }
        gm_scope_close(s);
    }
    for (int i = 0; i < 3; i++)
        free(in[i]);
    for (int i = 0; i < 2; i++) {
        free(want[i]);
        free(first[i]);
    }
    free(ids);
}

static void free_mixture(mixture *m) {
    free_stack(&m->gate);
    free_stack(&m->up);
    free_stack(&m->down);
}

static void formats(void) {
    enum { EXPERTS = 3 }; /* of two for each token: a tile of one has room, or is full */
    for (int format = 0; format < GM_QUANT_COUNT; format++)
        for (int fast = 0; fast < 1 + (format == GM_QUANT_bf16 || quant_takes_int8(format)); fast++) {
            const int64_t values = gm_quants[format].values, k = values == 1 ? 37 : values == 32 ? 96 : 256;
            if (gm_quants[format].bits && (gm_quants[format].scale != GM_QUANT_f32 || (quick && values != 64)))
                continue; /* scales of other types are read in other ways */
            const int64_t inner = values == 1 ? 45 : k, h = values == 32 ? 160 : k;
            mixture m = {.gate = make_stack(format, fast, format % 2, EXPERTS, inner, h),
                         .up = make_stack(format, fast, format % 2, EXPERTS, inner, h),
                         .down = make_stack(format, fast, format % 2, EXPERTS, 41, inner),
                         .act = (moe_activation)(format % 3),
                         .alpha = 1.702f,
                         .limit = 0.8f};
            const double tolerance = fast ? 5e-2 : 2e-5; /* activations in int8; a row of few levels comes to 4e-2 */
            for (int kind = quick ? format % ROUTINGS : 0; kind < (quick ? format % ROUTINGS + 1 : ROUTINGS); kind++)
                check_mixture(&m, quick ? 3 : kind == SPREAD ? 24 : 19, 2, (routing)kind, tolerance);
            check_mixture(&m, 1, 2, SPREAD, tolerance);
            check_gradient(&m, quick ? 3 : 19, 2, (routing)(format % ROUTINGS), 1e-4);
            free_mixture(&m);
        }
}

/* Formats that differ, and forms of activations. */
static void shapes(void) {
    static const int64_t experts[] = {64, 7, 2, 1}, tokens[] = {17, 1, 2, 3, 16, 33};
    for (size_t e = 0; e < (quick ? 1 : sizeof experts / sizeof *experts); e++) {
        const int64_t n_experts = experts[e];
        mixture m = {.gate = make_stack(GM_QUANT_q4_0, true, true, n_experts, 64, 96),
                     .up = make_stack(GM_QUANT_f16, false, false, n_experts, 64, 96),
                     .down = make_stack(GM_QUANT_q8_0, e % 2, true, n_experts, 100, 64),
                     .act = MOE_GEGLU};
        for (size_t t = 0; t < (quick ? 1 : sizeof tokens / sizeof *tokens); t++)
            for (int kind = 0; kind < ROUTINGS; kind++)
                check_mixture(&m, tokens[t], n_experts < 8 ? (n_experts + 1) / 2 : 8, (routing)kind, 3e-2);
        check_gradient(&m, quick ? 5 : 33, n_experts < 8 ? (n_experts + 1) / 2 : 8, SPREAD, 1e-4);
        free_mixture(&m);
    }
}

/* A plan that was captured with one routing serves the others. */
static void one_plan_for_every_routing(void) {
    enum { TOKENS = 9, SLOTS = 3, EXPERTS = 16 };
    mixture m = {.gate = make_stack(GM_QUANT_q4_k, true, false, EXPERTS, 256, 256),
                 .up = make_stack(GM_QUANT_q4_k, true, false, EXPERTS, 256, 256),
                 .down = make_stack(GM_QUANT_q6_k, true, false, EXPERTS, 256, 256)};
    float x[TOKENS * 256], weights[TOKENS * SLOTS];
    int32_t ids[TOKENS * SLOTS] = {0};
    for (int i = 0; i < TOKENS * 256; i++)
        x[i] = noise();
    for (int i = 0; i < TOKENS * SLOTS; i++)
        weights[i] = noise();
    gm_scope *s = gm_scope_open();
    gm_array *in[3] = {gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){TOKENS, 256}, x),
                       gm_array_from(s, GM_INT32, 2, (int64_t[]){TOKENS, SLOTS}, ids),
                       gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){TOKENS, SLOTS}, weights)};
    gm_array *out = moe_apply(s, in[0], in[1], in[2], (moe_stacks){&m.gate.packed, &m.up.packed, &m.down.packed},
                              (expert_activation){m.act, 0, 0});
    gm_plan *plan = NULL;
    gm_retain(in[1]);
    gm_retain(out);
    gm_scope_close(s);
    CHECK(run_lock(-1) == GM_OK && plan_capture(&out, 1, &plan) == GM_OK);
    run_unlock();
    for (int round = 0; round < 12 && plan; round++) {
        route_rows((routing)(round % ROUTINGS), TOKENS, SLOTS, EXPERTS, array_ptr(in[1]));
        memcpy(ids, array_ptr(in[1]), sizeof ids);
        CHECK(run_lock(-1) == GM_OK);
        queue_start(plan_queue(plan), 1 + round % 3);
        CHECK(queue_step(plan_queue(plan), 0) == GM_OK);
        queue_finish(plan_queue(plan));
        run_unlock();
        s = gm_scope_open();
        for (int t = 0; t < TOKENS; t++) {
            gm_array *alone = one_row(s, &m, SLOTS, x + t * 256, ids + t * SLOTS, weights + t * SLOTS);
            CHECK(alone && gm_eval(&alone, 1) == GM_OK &&
                  memcmp(gm_array_data(alone), (float *)array_ptr(out) + t * 256, 256 * sizeof *x) == 0);
        }
        gm_scope_close(s);
    }
    plan_free(plan);
    gm_release(in[1]);
    gm_release(out);
    free_mixture(&m);
}

/* ---- what does not fit, and what fails ---- */
static void refusals(void) {
    mixture m = {.gate = make_stack(GM_QUANT_q4_0, true, true, 3, 64, 96),
                 .up = make_stack(GM_QUANT_q4_0, true, false, 3, 64, 96),
                 .down = make_stack(GM_QUANT_f32, false, false, 3, 50, 64)};
    mixture bad = {.gate = make_stack(GM_QUANT_q4_0, true, true, 2, 64, 96),
                   .up = make_stack(GM_QUANT_q4_0, true, true, 3, 32, 96)};
    gm_scope *s = gm_scope_open();
    float zeros[4 * 96] = {0}, ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t ids[8] = {-5, 0, 99, 2, 0, 0, 2, 2}, inside[8] = {0, 0, 2, 2, 0, 0, 2, 2};
    gm_array *x = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){4, 96}, zeros);
    gm_array *i = gm_array_from(s, GM_INT32, 2, (int64_t[]){4, 2}, ids);
    gm_array *w = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){4, 2}, ones);
    gm_array *w3 = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){2, 4}, ones);
    gm_linear wrong = m.down.packed;
    CHECK(!moe_apply(s, x, i, w3, (moe_stacks){&m.gate.packed, &m.up.packed, &m.down.packed},
                     (expert_activation){MOE_SWIGLU, 0, 0}));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "weights float32(2,4)");
    CHECK(!moe_apply(s, x, i, w, (moe_stacks){&m.gate.packed, &bad.gate.packed, &m.down.packed},
                     (expert_activation){MOE_SWIGLU, 0, 0}));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "up is Q4_0(2,64,96)");
    CHECK(!moe_apply(s, x, i, w, (moe_stacks){&m.gate.packed, &bad.up.packed, &m.down.packed},
                     (expert_activation){MOE_SWIGLU, 0, 0}));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "gate has 64 rows and up 32");
    wrong.int8 = true;
    CHECK(!moe_apply(s, x, i, w, (moe_stacks){&m.gate.packed, &m.up.packed, &wrong},
                     (expert_activation){MOE_SWIGLU, 0, 0}));
    CHECK_ERROR(GM_EVALUE, GM_EVALUE, "block formats only");
    CHECK(!moe_apply(s, NULL, i, w, (moe_stacks){&m.gate.packed, &m.up.packed, &m.down.packed},
                     (expert_activation){MOE_SWIGLU, 0, 0}));
    /* An id that is none counts as the nearest. */
    gm_array *both[2] = {apply(s, &m, 4, 2, zeros, ids, ones), apply(s, &m, 4, 2, zeros, inside, ones)};
    CHECK(both[0] && both[1] && gm_eval(both, 2) == GM_OK &&
          memcmp(gm_array_data(both[0]), gm_array_data(both[1]), 4 * 50 * sizeof(float)) == 0);
    gm_array *none = apply(s, &m, 0, 2, zeros, ids, ones);
    CHECK(none && gm_eval(&none, 1) == GM_OK && gm_array_size(none) == 0);
    /* Routing. */
    gm_array *out[2];
    CHECK(!gm_route(s, x, 97, true, GM_NONE, &out[0], &out[1]) && !out[0] && !out[1]);
    CHECK_ERROR(GM_EVALUE, GM_EVALUE, "97 experts");
    CHECK(!gm_route(s, x, 2, true, w, &out[0], &out[1]));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "scale is float32(4,2)");
    CHECK(gm_route(s, x, 2, true, GM_NONE, &out[0], &out[1]) && gm_eval(out, 2) == GM_OK);
    CHECK(((int32_t *)gm_array_data(out[0]))[3] == 1 && ((float *)gm_array_data(out[1]))[7] == 0.5f);
    gm_scope_close(s);
    free_mixture(&m);
    free_mixture(&bad);
}

static void failures(void) {
    mixture m = {.gate = make_stack(GM_QUANT_q4_0, true, true, 3, 64, 96),
                 .up = make_stack(GM_QUANT_f32, false, false, 3, 64, 96),
                 .down = make_stack(GM_QUANT_q4_0, true, false, 3, 50, 64)};
    float x[5 * 96], weights[10];
    int32_t ids[10];
    gm_error e;
    for (int i = 0; i < 5 * 96; i++)
        x[i] = noise();
    for (int i = 0; i < 10; i++)
        weights[i] = noise();
    route_rows(SPREAD, 5, 2, 3, ids);
    const size_t before = gm_active_memory();
    gm_status status = GM_ENOMEM;
    long n = 1;
    for (; status != GM_OK && n < 500; n++) {
        memory_fail_at(n);
        gm_scope *s = gm_scope_open();
        gm_array *out = s ? apply(s, &m, 5, 2, x, ids, weights) : NULL;
        status = out ? gm_eval(&out, 1) : GM_ENOMEM;
        gm_scope_close(s);
        memory_fail_at(0);
        gm_take_error(&e);
        CHECK((status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM)) && gm_active_memory() == before);
    }
    CHECK(n > 12 && n < 500);
    free_mixture(&m);
}

/* Rows of a prompt that were rounded before: a device may multiply them as they are, the processor as float32. */
static void rounded_rows_of_prompts(void) {
    stack t = make_stack(GM_QUANT_q8_0, false, false, 1, 40, 64);
    gm_array *weight = t.one[0].weight, *y[2];
    float x[3 * 64];
    for (int i = 0; i < 3 * 64; i++)
        x[i] = noise();
    gm_scope *s = gm_scope_open();
    gm_array *rounded = gm_astype(s, gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){3, 64}, x), GM_BFLOAT16);
    CHECK(!gm_packed_matmul(s, rounded, weight, GM_NONE, GM_NONE)); /* of other rows there is no such product */
    y[1] = gm_packed_matmul(s, gm_astype(s, rounded, GM_FLOAT32), weight, GM_NONE, GM_NONE);
    scope_set_prompt(s, true);
    y[0] = gm_packed_matmul(s, rounded, weight, GM_NONE, GM_NONE);
    CHECK(y[0] && y[1] && gm_eval(y, 2) == GM_OK &&
          memcmp(gm_array_data(y[0]), gm_array_data(y[1]), sizeof(float) * 3 * 40) == 0);
    gm_scope_close(s);
    free_stack(&t);
}

int main(int argc, char **argv) {
    CHECK(gm_init() == GM_OK);
    quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    formats();
    shapes();
    one_plan_for_every_routing();
    rounded_rows_of_prompts();
    refusals();
    gm_set_cache_limit(0);
    failures();
    return check_summary();
}
