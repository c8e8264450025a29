/* test_training_kernels.c - the kernels of training in every table that this machine runs: attention and recurrent
 * layers of sequences over their own rows and their gradients, gradients of work on rows, and sums over sequences,
 * against their definitions in double, and bit for bit against themselves however their work is cut. */
#include "kernel_check.h"

/* ---- attention ---- */
typedef struct {
    int n_heads, n_kv_heads, dim;
    int64_t window;
    double softcap;
    bool sinks, rounded;
    float far; /* all scores are about -far * far / sqrt(dim), where it is not 0 */
} scene;

enum { SEQUENCES = 6 };
static const int32_t starts[SEQUENCES + 1] = {0, 1, 64, 128, 193, 490, 492}; /* one has several blocks */
enum { ROWS = 492 };

typedef struct { double *out, *lse, *dq, *dk, *dv; } wanted;

/* Row i of a sequence, one head: its output, then what its cotangent gives. */
static void attend_row(const scene *s, const gm_sequence_attention_args *a, const float *grad, wanted *w, int64_t first,
                       int64_t i, int head) {
    const int64_t row = first + i, kv = head / (s->n_heads / s->n_kv_heads), dim = s->dim;
    const int64_t low = s->window > 0 && i + 1 > s->window ? i + 1 - s->window : 0;
    const float *q = a->q + (row * s->n_heads + head) * dim, *cot = grad + (row * s->n_heads + head) * dim;
    double p[ROWS], bent[ROWS], top = a->sinks ? (double)a->sinks[head] : -(double)INFINITY, sum = 0, delta = 0;
    for (int64_t j = low; j <= i; j++) {
        const float *k = a->k + ((first + j) * s->n_kv_heads + kv) * dim;
        double score = 0;
        for (int64_t d = 0; d < dim; d++)
            score += (double)q[d] * (double)k[d];
        score *= (double)a->scale;
        bent[j] = s->softcap > 0 ? tanh(score / s->softcap) : 0;
        p[j] = s->softcap > 0 ? s->softcap * bent[j] : score;
        top = fmax(top, p[j]);
    }
    for (int64_t j = low; j <= i; j++)
        sum += exp(p[j] - top);
    if (a->sinks)
        sum += exp((double)a->sinks[head] - top);
    w->lse[row * s->n_heads + head] = top + log(sum);
    double *out = w->out + (row * s->n_heads + head) * dim;
    for (int64_t j = low; j <= i; j++) {
        p[j] = exp(p[j] - top) / sum;
        for (int64_t d = 0; d < dim; d++)
            out[d] += p[j] * (double)a->v[((first + j) * s->n_kv_heads + kv) * dim + d];
    }
    for (int64_t d = 0; d < dim; d++)
        delta += (double)cot[d] * out[d];
    for (int64_t j = low; j <= i; j++) {
        const int64_t at = ((first + j) * s->n_kv_heads + kv) * dim;
        double given = 0;
        for (int64_t d = 0; d < dim; d++)
            given += (double)cot[d] * (double)a->v[at + d];
        const double slope = s->softcap > 0 ? 1 - bent[j] * bent[j] : 1;
        const double ds = p[j] * (given - delta) * slope * (double)a->scale;
        for (int64_t d = 0; d < dim; d++) {
            w->dq[(row * s->n_heads + head) * dim + d] += ds * (double)a->k[at + d];
            w->dk[at + d] += ds * (double)q[d];
            w->dv[at + d] += p[j] * (double)cot[d];
        }
    }
}

static double *zeros(int64_t n) {
    double *x = buffer((size_t)n * sizeof *x);
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

static void compare(const char *what, const scene *s, const float *got, const double *want, int64_t n) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - want[i]);
        error = fmax(error, isnan(off) ? INFINITY : off);
        size = fmax(size, fabs(want[i]));
    }
    CHECK(error <= (s->far != 0  ? 5e-2
                    : s->rounded ? 2e-2
                                 : 2e-5) *
                       size,
          "%s: heads %d of %d, dim %d, window %d, softcap %g, sinks %d, rounded %d: error %g of %g", what, s->n_heads,
          s->n_kv_heads, s->dim, (int)s->window, s->softcap, s->sinks, s->rounded, error, size);
}

/* Keys and values as products read them that are rounded, tasks from the last to the first. */
static uint16_t *round_keys(const gm_sequence_attention_args *a, int forms) {
    const int64_t tasks = (ROWS / GM_SEQUENCE_KEYS + SEQUENCES) * a->n_kv_heads;
    const gm_rounded_attention_keys_args keys = {
        *a, buffer((size_t)(tasks * forms * kernels_sequence_items(a->dim)) * sizeof *keys.keys), forms};
    for (int64_t task = tasks; task-- > 0;)
        kernels->rounded_attention_keys(&keys, task, task + 1);
    return keys.keys;
}

static void forward(const gm_sequence_attention_args *a) {
    const int64_t bytes = a->rounded ? kernels_rounded_forward_bytes(a->dim) : GM_SEQUENCE_FORWARD_BYTES;
    _Atomic int32_t taken = 0;
    const gm_workspaces workspaces = {&taken, buffer((size_t)bytes), 1, bytes};
    if (a->rounded) {
        const gm_rounded_attention_forward_args args = {*a, round_keys(a, GM_KEYS_FORWARD), workspaces};
        kernels->rounded_attention_forward(&args, 0, (ROWS / GM_SEQUENCE_KEYS + SEQUENCES) * a->n_heads);
    } else {
        const gm_sequence_attention_forward_args args = {*a, workspaces};
        kernels->sequence_attention_forward(&args, 0, (ROWS / GM_SEQUENCE_ROWS + SEQUENCES) * a->n_heads);
    }
    CHECK(taken == 0, "the workspace is returned");
}

/* dq, dk and dv, with so much of each sequence at a time, tasks from the last to the first. */
static void exact_back(const gm_sequence_attention_grad_args *g, const float *delta, int64_t keys) {
    const gm_sequence_attention_args *a = &g->forward;
    const int64_t width = (int64_t)a->n_heads * a->dim, bytes = kernels_sequence_workspace_bytes(a->dim);
    _Atomic int32_t taken = 0;
    gm_sequence_attention_back_args args = {*g, 0, keys, {&taken, buffer((size_t)bytes), 1, bytes}, delta};
    args.grad.dk = buffer((size_t)(ROWS * width) * sizeof(float));
    args.grad.dv = buffer((size_t)(ROWS * width) * sizeof(float));
    for (; args.first_key < ROWS; args.first_key += keys)
        for (int64_t task = (int64_t)a->n_heads * SEQUENCES; task-- > 0;)
            kernels->sequence_attention_back(&args, task, task + 1);
    CHECK(taken == 0, "the workspace is returned");
    for (int i = 0; i < 2; i++)
        kernels->sequence_head_sum(&(gm_sequence_head_sum_args){.out = i ? g->dv : g->dk,
                                                                .heads = i ? args.grad.dv : args.grad.dk,
                                                                .n = ROWS,
                                                                .n_heads = a->n_heads,
                                                                .n_kv_heads = a->n_kv_heads,
                                                                .dim = a->dim},
                                   0, ROWS);
}
static void rounded_back(const gm_sequence_attention_grad_args *g, const float *delta, int64_t rows) {
    const gm_sequence_attention_args *a = &g->forward;
    const int64_t blocks = (ROWS / GM_SEQUENCE_KEYS + SEQUENCES) * a->n_kv_heads,
                  parts = kernels_back_parts(a->n_kv_heads), bytes = kernels_rounded_back_bytes(a->dim),
                  sums = blocks * parts * 2 * kernels_sequence_items(a->dim) * (int64_t)sizeof(float);
    _Atomic int32_t taken = 0;
    gm_rounded_attention_back_args args = {
        .grad = *g,
        .keys = round_keys(a, GM_KEYS_BACK),
        .delta = delta,
        .sums = memset(buffer((size_t)sums), 0x7e, (size_t)sums), /* what nothing was written to is 8e37 */
        .rows = rows,
        .workspaces = {&taken, buffer((size_t)bytes), 1, bytes}};
    for (; args.first_row < ROWS; args.first_row += rows)
        for (int64_t task = SEQUENCES * a->n_kv_heads * parts; task-- > 0;)
            kernels->rounded_attention_back(&args, task, task + 1);
    CHECK(taken == 0, "the workspace is returned");
    for (int64_t task = blocks; task-- > 0;)
        kernels->rounded_attention_sum(&args, task, task + 1);
}
static void back(const gm_sequence_attention_args *a, const float *grad, int64_t some, float *dq, float *dk,
                 float *dv) {
    float *delta = buffer((size_t)(ROWS * a->n_heads) * sizeof(float));
    const gm_sequence_attention_grad_args g = {*a, grad, dq, dk, dv};
    kernels->sequence_attention_delta(&(gm_sequence_attention_delta_args){g, delta}, 0, ROWS);
    if (a->rounded)
        rounded_back(&g, delta, some);
    else
        exact_back(&g, delta, some);
}

static void test_scene(const scene *s) {
    const int64_t width = (int64_t)s->n_heads * s->dim, kv_width = (int64_t)s->n_kv_heads * s->dim;
    const int64_t q_floats = ROWS * width, kv_floats = ROWS * kv_width;
    float *out = floats(q_floats, 0), *grad = floats(q_floats, 1), *q = floats(q_floats, 2), *k = floats(kv_floats, 2);
    for (int64_t i = 0; s->far != 0 && i < q_floats; i += s->dim)
        q[i] = s->far;
    for (int64_t i = 0; s->far != 0 && i < kv_floats; i += s->dim)
        k[i] = -s->far;
    gm_sequence_attention_args a = {.out = out,
                                    .lse = floats(ROWS * s->n_heads, 0),
                                    .q = q,
                                    .k = k,
                                    .v = floats(kv_floats, 1),
                                    .starts = starts,
                                    .n = ROWS,
                                    .sequences = SEQUENCES,
                                    .n_heads = s->n_heads,
                                    .n_kv_heads = s->n_kv_heads,
                                    .dim = s->dim,
                                    .window = s->window,
                                    .scale = (float)(1 / sqrt(s->dim)),
                                    .softcap = (float)s->softcap,
                                    .rounded = s->rounded,
                                    .sinks = s->sinks ? floats(s->n_heads, 1) : NULL};
    wanted w = {zeros(q_floats), zeros(ROWS * s->n_heads), zeros(q_floats), zeros(kv_floats), zeros(kv_floats)};
    for (int i = 0; i < SEQUENCES; i++)
        for (int64_t row = 0; row < starts[i + 1] - starts[i]; row++)
            for (int head = 0; head < s->n_heads; head++)
                attend_row(s, &a, grad, &w, starts[i], row, head);
    forward(&a);
    compare("out", s, out, w.out, q_floats);
    compare("lse", s, a.lse, w.lse, ROWS * s->n_heads);
    float *dq = floats(q_floats, 0), *dk = floats(kv_floats, 0), *dv = floats(kv_floats, 0);
    float *again[3] = {floats(q_floats, 0), floats(kv_floats, 0), floats(kv_floats, 0)};
    back(&a, grad, 1024, dq, dk, dv);
    compare("dq", s, dq, w.dq, q_floats);
    compare("dk", s, dk, w.dk, kv_floats);
    compare("dv", s, dv, w.dv, kv_floats);
    back(&a, grad, s->rounded ? kernels_back_span(s->dim) : GM_SEQUENCE_KEYS, again[0], again[1], again[2]);
    CHECK(same(dq, again[0], (size_t)q_floats * 4) && same(dk, again[1], (size_t)kv_floats * 4) &&
              same(dv, again[2], (size_t)kv_floats * 4),
          "the gradient is the same with little at a time");
    free_buffers();
}
static void test_attention(void) {
    static const scene scenes[] = {{4, 2, 64, 0, 0, false, false, 0},  {2, 1, 20, 70, 0, true, false, 0},
                                   {3, 3, 64, 0, 30, false, false, 0}, {2, 2, 512, 0, 0, false, false, 0},
                                   {6, 2, 7, 1, 20, true, false, 0},   {1, 1, 64, 63, 0, true, false, 0}};
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i += quick ? 2 : 1)
        test_scene(&scenes[i]);
}
static void test_rounded_attention(void) {
    static const scene scenes[] = {{2, 1, 512, 70, 0, false, true, 0}, /* spans of a block, several in a part */
                                   {2, 1, 64, 0, 30, true, true, 0},   /* ... below: without parts, and two of them */
                                   {8, 8, 16, 300, 0, true, true, 0},  {4, 2, 7, 70, 0, false, true, 0},
                                   {4, 4, 32, 0, 0, false, true, 24},  {2, 1, 48, 2, 0, false, true, 0}};
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i += quick ? 2 : 1)
        test_scene(&scenes[i]);
}

/* ---- recurrent layers ---- */
/* A layer's inputs in double, and what its loss is the sum of: cotangents times outputs. */
typedef struct {
    int channels, taps;                 /* of a convolution */
    int heads, key_heads, keys, values; /* of a gated delta rule */
    bool tiled;
    double *in[5];
    int64_t n[5];
    const float *weight;
    double *out, *cotangent;
    int64_t out_width;
} recurrence;

static double conv_loss(const recurrence *c) {
    double loss = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = starts[s]; t < starts[s + 1]; t++)
            for (int ch = 0; ch < c->channels; ch++) {
                double sum = 0;
                for (int j = 0; j < c->taps; j++)
                    if (t - c->taps + 1 + j >= starts[s])
                        sum += (double)c->weight[ch * c->taps + j] * c->in[0][(t - c->taps + 1 + j) * c->channels + ch];
                c->out[t * c->channels + ch] = sum * sigmoid(sum);
                loss += c->out[t * c->channels + ch] * c->cotangent[t * c->channels + ch];
            }
    return loss;
}
static double delta_loss(const recurrence *c) {
    double loss = 0, state[160];
    for (int s = 0; s < SEQUENCES; s++)
        for (int row = 0; row < c->heads * c->values; row++) {
            const int head = row / c->values, kv = c->tiled ? head % c->key_heads : head / (c->heads / c->key_heads);
            memset(state, 0, sizeof state);
            for (int64_t t = starts[s]; t < starts[s + 1]; t++) {
                const double *q = c->in[0] + (t * c->key_heads + kv) * c->keys;
                const double *k = c->in[1] + (t * c->key_heads + kv) * c->keys;
                const int64_t at = t * c->heads * c->values + row;
                double memory = 0, out = 0;
                for (int i = 0; i < c->keys; i++)
                    memory += (state[i] *= c->in[3][t * c->heads + head]) * k[i];
                const double change = (c->in[2][at] - memory) * c->in[4][t * c->heads + head];
                for (int i = 0; i < c->keys; i++)
                    out += (state[i] += change * k[i]) * q[i];
                c->out[at] = out;
                loss += out * c->cotangent[at];
            }
        }
    return loss;
}
static double recurrence_loss(const recurrence *c) { return c->taps ? conv_loss(c) : delta_loss(c); }

static double *widened(const float *x, int64_t n) {
    double *y = zeros(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Forwards, and the derivative of the loss in random directions of each input. */
static void compare_recurrence(const recurrence *c, const float *out, const float *const *grads, int inputs) {
    double error = 0;
    recurrence_loss(c);
    for (int64_t i = 0; i < ROWS * c->out_width; i++)
        error = fmax(error, fabs((double)out[i] - c->out[i]));
    CHECK(error < 2e-5, "%d channels, %d heads of %d keys: error %g", c->channels, c->heads, c->keys, error);
    for (int k = 0; k < inputs; k++)
        for (int round = 0; round < 2; round++) {
            const double step = 1e-4;
            double found = 0, size = 0, *before = c->in[k], *moved[2] = {zeros(c->n[k]), zeros(c->n[k])}, loss[2];
            for (int64_t i = 0; i < c->n[k]; i++) {
                const double direction = uniform();
                found += direction * (double)grads[k][i];
                size += fabs(direction * (double)grads[k][i]);
                moved[0][i] = before[i] + step * direction;
                moved[1][i] = before[i] - step * direction;
            }
            for (int i = 0; i < 2; i++) {
                recurrence one = *c;
                one.in[k] = moved[i];
                loss[i] = recurrence_loss(&one);
            }
            const double want = (loss[0] - loss[1]) / (2 * step);
            CHECK(fabs(found - want) < 2e-5 * size + 1e-6, "input %d of %d channels, %d heads of %d keys: %g, want %g",
                  k, c->channels, c->heads, c->keys, found, want);
        }
}

static void test_sequence_conv(void) {
    static const int channels[] = {1, 33, 128, 300}, taps[] = {2, 4, GM_CACHED_TAPS};
    for (int i = 0; i < 12; i++) {
        const int n = channels[i / 3], k = taps[i % 3];
        const int64_t units = SEQUENCES * ((n + GM_CONV_CHANNELS - 1) / GM_CONV_CHANNELS);
        float *x = floats(ROWS * n, 1), *grad = floats(ROWS * n, 1), *out = floats(ROWS * n, 0);
        float *dx = floats(ROWS * n, 1), *again = floats(ROWS * n, 1);
        gm_sequence_conv_args a = {.out = out,
                                   .x = x,
                                   .weight = floats((int64_t)n * k, 1),
                                   .starts = starts,
                                   .sequences = SEQUENCES,
                                   .channels = n,
                                   .taps = k};
        kernels->sequence_conv(&a, 0, units);
        gm_sequence_conv_grad_args g = {.forward = a, .grad = grad, .dx = dx};
        kernels->sequence_conv_back(&g, 0, units);
        const recurrence c = {.channels = n,
                              .taps = k,
                              .in = {widened(x, ROWS * n)},
                              .n = {ROWS * n},
                              .weight = a.weight,
                              .out = zeros(ROWS * n),
                              .cotangent = widened(grad, ROWS * n),
                              .out_width = n};
        compare_recurrence(&c, out, (const float *[]){dx}, 1);
        g.dx = again;
        for (int64_t unit = units; unit-- > 0;)
            kernels->sequence_conv_back(&g, unit, unit + 1);
        CHECK(same(dx, again, (size_t)(ROWS * n) * 4), "the same from the last unit to the first");
        free_buffers();
    }
}

/* All cotangents of a rule; the tasks of a launch from the last to the first. */
static void delta_back(const gm_sequence_delta_args *a, const float *grad, float *const *to) {
    const int64_t n = a->n * a->n_heads * a->n_keys, bytes = delta_workspace_floats(a->n, a->n_keys) * 4;
    float *heads[2] = {floats(n, 1), floats(n, 1)};
    _Atomic int32_t taken = 0;
    gm_sequence_delta_back_args b = {
        .grad =
            {.forward = *a, .grad = grad, .dq = heads[0], .dk = heads[1], .dv = to[2], .ddecay = to[3], .dbeta = to[4]},
        .workspaces = {&taken, buffer((size_t)bytes), 1, bytes}};
    for (; b.row < a->n_values; b.row += GM_DELTA_ROWS)
        for (int64_t task = a->sequences * a->n_heads; task-- > 0;)
            kernels->sequence_delta_back(&b, task, task + 1);
    CHECK(taken == 0, "the workspace is returned");
    for (int i = 0; i < 2; i++)
        kernels->sequence_head_sum(&(gm_sequence_head_sum_args){.out = to[i],
                                                                .heads = heads[i],
                                                                .n = a->n,
                                                                .n_heads = (int)a->n_heads,
                                                                .n_kv_heads = (int)a->n_key_heads,
                                                                .dim = (int)a->n_keys,
                                                                .tiled = a->tiled},
                                   0, a->n);
}

static void test_rule(recurrence c) {
    const int64_t keys = (int64_t)c.key_heads * c.keys, values = (int64_t)c.heads * c.values;
    const int64_t widths[5] = {keys, keys, values, c.heads, c.heads}, state = GM_DELTA_TILE * c.keys * 4;
    const double size = 1 / sqrt(c.keys);
    float *in[5], *grads[5], *again[5], *out = floats(ROWS * values, 0), *grad = floats(ROWS * values, 1);
    _Atomic int32_t taken = 0;
    for (int i = 0; i < 5; i++) {
        c.n[i] = ROWS * widths[i];
        in[i] = floats(c.n[i], i < 2 ? 1.7 * size : i == 2 ? 1 : 0.2);
        for (int64_t j = 0; i > 2 && j < c.n[i]; j++)
            in[i][j] += i == 3 ? 0.8f : 0.5f;
        c.in[i] = widened(in[i], c.n[i]);
        grads[i] = floats(c.n[i], 1);
        again[i] = floats(c.n[i], 1);
    }
    gm_sequence_delta_forward_args f = {.forward = {.out = out,
                                                    .q = in[0],
                                                    .k = in[1],
                                                    .v = in[2],
                                                    .decay = in[3],
                                                    .beta = in[4],
                                                    .starts = starts,
                                                    .n = ROWS,
                                                    .sequences = SEQUENCES,
                                                    .n_heads = c.heads,
                                                    .n_key_heads = c.key_heads,
                                                    .n_keys = c.keys,
                                                    .n_values = c.values,
                                                    .tiled = c.tiled},
                                        .workspaces = {&taken, buffer((size_t)state), 1, state}};
    kernels->sequence_delta_forward(&f, 0, SEQUENCES * c.heads * ((c.values + GM_DELTA_ROWS - 1) / GM_DELTA_ROWS));
    CHECK(taken == 0, "the workspace is returned");
    c.out = zeros(ROWS * values);
    c.cotangent = widened(grad, ROWS * values);
    c.out_width = values;
    delta_back(&f.forward, grad, grads);
    compare_recurrence(&c, out, (const float *const *)grads, 5);
    /* A sequence alone gives the same bits. */
    gm_sequence_delta_args alone = f.forward;
    const int32_t own[2] = {0, starts[5] - starts[4]};
    const int64_t first = starts[4], n = own[1];
    alone.q += first * keys;
    alone.k += first * keys;
    alone.v += first * values;
    alone.decay += first * c.heads;
    alone.beta += first * c.heads;
    alone.starts = own;
    alone.n = n;
    alone.sequences = 1;
    delta_back(&alone, grad + first * values, again);
    for (int i = 0; i < 5; i++)
        CHECK(same(grads[i] + first * widths[i], again[i], (size_t)(n * widths[i]) * 4), "input %d of one alone", i);
    free_buffers();
}
static void test_sequence_delta(void) {
    static const recurrence rules[] = {
        {.key_heads = 1, .heads = 1, .keys = 1, .values = 1},
        {.key_heads = 2, .heads = 4, .keys = 8, .values = 17},
        {.key_heads = 2, .heads = 6, .keys = 33, .values = 6, .tiled = true},
        {.key_heads = 1, .heads = 2, .keys = 128, .values = 35},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i += quick ? 2 : 1)
        test_rule(rules[i]);
}

/* ---- work on rows ---- */
static double unit_of(const gm_glu_grad_args *a, double gate, double up) {
    const double limit = (double)a->limit, g = a->kind == GM_GLU_CLAMPED ? fmin(gate, limit) : gate;
    if (a->kind == GM_GLU_SILU)
        return gate * sigmoid(gate) * up;
    if (a->kind == GM_GLU_GELU)
        return gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up;
    return g * sigmoid((double)a->alpha * g) * (fmax(-limit, fmin(limit, up)) + 1);
}
static void test_glu_grad(void) {
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N_SIZES; i++) {
            const int64_t n = sizes[i];
            gm_glu_grad_args a = {.dgate = floats(n, 0),
                                  .dup = floats(n, 0),
                                  .gate = floats(n, 6),
                                  .up = floats(n, 6),
                                  .grad = floats(n, 2),
                                  .kind = (gm_glu_kind[]){GM_GLU_SILU, GM_GLU_GELU, GM_GLU_CLAMPED}[kind],
                                  .alpha = 1.7f,
                                  .limit = 3};
            kernels->glu_grad(&a, 0, n);
            for (int64_t j = 0; j < n; j++) {
                const double g = (double)a.gate[j], u = (double)a.up[j], c = (double)a.grad[j], h = 1e-5;
                if (kind == 2 && (fabs(g - 3) < 1e-3 || fabs(fabs(u) - 3) < 1e-3))
                    continue;
                const double dg = c * (unit_of(&a, g + h, u) - unit_of(&a, g - h, u)) / (2 * h);
                const double du = c * (unit_of(&a, g, u + h) - unit_of(&a, g, u - h)) / (2 * h);
                CHECK(fabs((double)a.dgate[j] - dg) < 2e-5 * (1 + fabs(dg)), "kind %d: dgate %g, want %g", kind,
                      (double)a.dgate[j], dg);
                CHECK(fabs((double)a.dup[j] - du) < 2e-5 * (1 + fabs(du)), "kind %d: dup %g, want %g", kind,
                      (double)a.dup[j], du);
            }
            free_buffers();
        }
}
static void check_norm_grad(bool centred) {
    for (int i = 1; i < N_SIZES; i++)
        for (int weighted = 0; weighted < 2; weighted++) {
            const int64_t n = sizes[i], rows = 3;
            gm_rms_norm_grad_args a = {.dx = floats(rows * n, 0),
                                       .x = floats(rows * n, 3),
                                       .weight = weighted ? floats(n, 1) : NULL,
                                       .grad = floats(rows * n, 1),
                                       .dim = n,
                                       .eps = 1e-5f};
            (centred ? kernels->layer_norm_grad : kernels->rms_norm_grad)(&a, 0, rows);
            for (int64_t r = 0; r < rows; r++) {
                const float *x = a.x + r * n, *grad = a.grad + r * n;
                double mean = 0, less = 0, square = 0, dot = 0;
                for (int64_t j = 0; centred && j < n; j++) {
                    mean += (double)x[j] / (double)n;
                    less += (double)grad[j] * (weighted ? (double)a.weight[j] : 1) / (double)n;
                }
                for (int64_t j = 0; j < n; j++) {
                    const double c = (double)x[j] - mean;
                    square += c * c;
                    dot += (double)grad[j] * (weighted ? (double)a.weight[j] : 1) * c;
                }
                const double size = 1 / sqrt(square / (double)n + 1e-5);
                for (int64_t j = 0; j < n; j++) {
                    const double g = (double)grad[j] * (weighted ? (double)a.weight[j] : 1) - less;
                    const double want = size * (g - ((double)x[j] - mean) * size * size * dot / (double)n);
                    CHECK(fabs((double)a.dx[r * n + j] - want) < 3e-6 * (1 + size), "n %d: %g, want %g", (int)n,
                          (double)a.dx[r * n + j], want);
                }
            }
            free_buffers();
        }
}
static void test_rms_norm_grad(void) { check_norm_grad(false); }
static void test_layer_norm_grad(void) { check_norm_grad(true); }
static void test_softmax_grad(void) {
    for (int i = 1; i < N_SIZES; i++) {
        const int64_t n = sizes[i], rows = 3;
        float *grad = floats(rows * n, 1), *dx = floats(rows * n, 0);
        gm_softmax_grad_args a = {.dx = dx, .y = floats(rows * n, 1), .grad = grad, .dim = n};
        kernels->softmax_grad(&a, 0, rows);
        for (int64_t r = 0; r < rows; r++) {
            const float *y = a.y + r * n;
            double dot = 0, most = 1;
            for (int64_t j = 0; j < n; j++) {
                dot += (double)y[j] * (double)grad[r * n + j];
                most += fabs((double)y[j] * (double)grad[r * n + j]);
            }
            for (int64_t j = 0; j < n; j++) {
                const double want = (double)y[j] * ((double)grad[r * n + j] - dot);
                CHECK(fabs((double)dx[r * n + j] - want) < 1e-6 * most, "n %d: %g, want %g", (int)n,
                      (double)dx[r * n + j], want);
            }
        }
        a.dx = grad;
        kernels->softmax_grad(&a, 0, rows);
        CHECK(same(grad, dx, (size_t)(rows * n) * 4), "n %d, in place", (int)n);
        free_buffers();
    }
}
static void test_row_loss(void) {
    for (int i = 1; i < N_SIZES; i++)
        for (int capped = 0; capped < 2; capped++) {
            const int64_t n = sizes[i], rows = 3;
            int32_t targets[3] = {0, (int32_t)(n - 1), (int32_t)(n / 2)};
            float *logits = floats(rows * n, 9), loss[3], again[3], *grad = floats(rows * n, 0);
            gm_row_loss_args a = {
                .loss = loss, .grad = grad, .logits = logits, .targets = targets, .n = n, .softcap = capped ? 10 : 0};
            kernels->row_loss(&a, 0, rows);
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t j = 0; j < n; j++)
                    sum += exp((double)logits[r * n + j]);
                CHECK(fabs((double)loss[r] - (log(sum) - (double)logits[r * n + targets[r]])) < 2e-5, "n %d", (int)n);
                for (int64_t j = 0; j < n; j++) {
                    const double x = (double)logits[r * n + j], slope = capped ? 1 - x * x / 100 : 1;
                    const double want = (exp(x) / sum - (j == targets[r])) * slope;
                    CHECK(fabs((double)grad[r * n + j] - want) < 3e-6, "n %d: %g, want %g", (int)n,
                          (double)grad[r * n + j], want);
                }
            }
            a.loss = again;
            a.grad = NULL;
            kernels->row_loss(&a, 0, rows);
            CHECK(same(loss, again, sizeof loss), "the loss alone has the same bits");
            a.grad = logits;
            kernels->row_loss(&a, 0, rows);
            CHECK(same(logits, grad, (size_t)(rows * n) * 4), "the gradient may take the place of the logits");
            free_buffers();
        }
}

/* ---- sums over sequences ---- */
static void test_outer(void) {
    enum { PARTS = 4 };
    static const int32_t begins[PARTS + 1] = {0, 1, 64, 280, ROWS}; /* one is longer than a chain */
    static const int64_t widths[][2] = {{8, 576}, {1, 1}, {3, 100}, {20, 33}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int64_t m = widths[i][0], k = widths[i][1], blocks = (k + GM_OUTER_BLOCK - 1) / GM_OUTER_BLOCK;
        const float *left = floats(ROWS * m, 1), *right = floats(ROWS * k, 1);
        float *out = floats(m * k, 0), *part = floats(m * k, 0), *rest = floats(m * k, 0);
        gm_sequence_outer_args a = {
            .out = out, .left = left, .right = right, .starts = begins, .sequences = PARTS, .m = m, .k = k};
        kernels->sequence_outer(&a, 0, blocks);
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < k; c++) {
                double want = 0;
                for (int64_t t = 0; t < ROWS; t++)
                    want += (double)left[t * m + r] * (double)right[t * k + c];
                CHECK(fabs((double)out[r * k + c] - want) < 1e-4, "%d x %d: %g, want %g", (int)m, (int)k,
                      (double)out[r * k + c], want);
            }
        for (int64_t cut = 1; cut < PARTS; cut += 2) {
            a.out = part;
            a.so_far = NULL;
            a.starts = begins;
            a.sequences = cut;
            kernels->sequence_outer(&a, 0, blocks);
            a.out = rest;
            a.so_far = part;
            a.starts = begins + cut;
            a.sequences = PARTS - cut;
            for (int64_t block = blocks; block-- > 0;)
                kernels->sequence_outer(&a, block, block + 1);
            CHECK(same(out, rest, (size_t)(m * k) * 4), "%d x %d in two passes, cut at %d", (int)m, (int)k, (int)cut);
        }
        for (int32_t s = 0; s < PARTS; s++) { /* each alone, then their sum */
            a.out = s == 0 ? rest : part;
            a.so_far = NULL;
            a.starts = begins + s;
            a.sequences = 1;
            kernels->sequence_outer(&a, 0, blocks);
            for (int64_t j = 0; s > 0 && j < m * k; j++)
                rest[j] += part[j];
        }
        CHECK(same(out, rest, (size_t)(m * k) * 4), "%d x %d of sequences that were summed apart", (int)m, (int)k);
        free_buffers();
    }
}

/* ---- dropout ---- */
/* Threefry-2x32 with twenty rounds: the word of a column. */
static uint32_t word_of(const uint32_t *key, uint32_t salt, uint32_t position, uint32_t column) {
    static const int distances[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const uint32_t k[3] = {key[0], key[1] + salt, key[0] ^ (key[1] + salt) ^ 0x1bd11bdau};
    uint32_t a = position + k[0], b = column / 2 + k[1];
    for (uint32_t round = 0; round < 20; round++) {
        a += b;
        b = b << distances[round % 8] | b >> (32 - distances[round % 8]);
        b ^= a;
        if (round % 4 == 3) {
            a += k[(round / 4 + 1) % 3];
            b += k[(round / 4 + 2) % 3] + round / 4 + 1;
        }
    }
    return column % 2 ? b : a;
}
static void test_dropout(void) {
    static const int64_t widths[] = {1, 2, 17, 512, 1031};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int64_t k = widths[i];
        uint32_t *keys = buffer(SEQUENCES * 2 * sizeof *keys);
        float *x = floats(ROWS * k, 1), *out = floats(ROWS * k, 1), *again = floats(ROWS * k, 1);
        for (int j = 0; j < 2 * SEQUENCES; j++)
            keys[j] = (uint32_t)(0x9e3779b9u * (uint32_t)(j + 1));
        gm_sequence_dropout_args a = {.out = out,
                                      .x = x,
                                      .keys = keys,
                                      .starts = starts,
                                      .sequences = SEQUENCES,
                                      .k = k,
                                      .least = 0x40000000,
                                      .salt = 7,
                                      .factor = 1 / 0.75f};
        int64_t kept = 0, wrong = 0;
        kernels->sequence_dropout(&a, 0, ROWS);
        for (int s = 0; s < SEQUENCES; s++)
            for (int64_t row = starts[s]; row < starts[s + 1]; row++)
                for (int64_t c = 0; c < k; c++) {
                    const bool keep = word_of(keys + 2 * s, 7, (uint32_t)(row - starts[s]), (uint32_t)c) >= a.least;
                    wrong += out[row * k + c] != (keep ? x[row * k + c] * a.factor : 0);
                    kept += keep;
                }
        CHECK(wrong == 0, "%d wrong of rows of %d", (int)wrong, (int)k);
        CHECK(fabs((double)kept / (double)(ROWS * k) - 0.75) < 2.2 / sqrt((double)(ROWS * k)), "%d kept of rows of %d",
              (int)kept, (int)k);
        a.out = again;
        for (int64_t row = ROWS; row-- > 0;)
            kernels->sequence_dropout(&a, row, row + 1);
        CHECK(same(out, again, (size_t)(ROWS * k) * 4), "row by row, of %d", (int)k);
        free_buffers();
    }
}

/* Each operation is rounded: plain C without contraction has the same bits. However the range is cut, and in place. */
static void test_adam(void) {
    static const int64_t counts[] = {3, 0, 1, 64, 31, 130};
    enum { PARTS = sizeof counts / sizeof *counts };
    for (int given = 0; given < 4; given++) {
        gm_adam_part parts[PARTS];
        int64_t begins[PARTS + 1] = {0};
        const float number[3] = {0.01f, 0.9f, 1.7f};
        for (int k = 0; k < PARTS; k++) {
            const int64_t n = counts[k];
            parts[k] = (gm_adam_part){floats(n, 0), floats(n, 0), floats(n, 0), floats(n, 3),
                                      floats(n, 1), floats(n, 1), floats(n, 2)};
            begins[k + 1] = begins[k] + n;
        }
        const gm_adam_args a = {
            parts, begins, PARTS, number, given & 1 ? number + 1 : NULL, given & 2 ? number + 2 : NULL, 0.9f,
            0.1f,  0.99f,  0.01f, 1e-8f};
        float *want[PARTS][3];
        for (int k = 0; k < PARTS; k++) {
            const gm_adam_part *p = &parts[k];
            for (int i = 0; i < 3; i++)
                want[k][i] = floats(counts[k], 0);
            for (int64_t i = 0; i < counts[k]; i++) {
                const float g = p->gradient[i], m = 0.9f * p->m[i] + 0.1f * g, v = 0.99f * p->v[i] + 0.01f * (g * g);
                want[k][0][i] = (given & 1 ? p->w[i] * number[1] : p->w[i]) -
                                number[0] * m / ((given & 2 ? sqrtf(v) * number[2] : sqrtf(v)) + 1e-8f);
                want[k][1][i] = m;
                want[k][2][i] = v;
            }
        }
        for (int64_t step = 1; step < 400; step = 7 * step + 40) {
            for (int64_t at = 0; at < begins[PARTS]; at += step)
                kernels->adam(&a, at, at + step < begins[PARTS] ? at + step : begins[PARTS]);
            for (int k = 0; k < PARTS; k++)
                CHECK(same(parts[k].out, want[k][0], (size_t)counts[k] * 4) &&
                          same(parts[k].m_out, want[k][1], (size_t)counts[k] * 4) &&
                          same(parts[k].v_out, want[k][2], (size_t)counts[k] * 4),
                      "%d numbers, part %d, in pieces of %d", given, k, (int)step);
        }
        gm_adam_part own[PARTS];
        for (int k = 0; k < PARTS; k++) {
            own[k] = parts[k];
            own[k].out = (float *)(uintptr_t)own[k].w, own[k].m_out = (float *)(uintptr_t)own[k].m;
            own[k].v_out = (float *)(uintptr_t)own[k].v;
        }
        gm_adam_args in_place = a;
        in_place.parts = own;
        kernels->adam(&in_place, 0, begins[PARTS]);
        for (int k = 0; k < PARTS; k++)
            CHECK(same(own[k].out, want[k][0], (size_t)counts[k] * 4), "%d numbers, part %d, in place", given, k);
        free_buffers();
    }
}

int main(int argc, char **argv) {
    return RUN_TESTS(ABOUT(sequence_attention_forward, test_attention),
                     ABOUT(rounded_attention_forward, test_rounded_attention), ABOUT(glu_grad, test_glu_grad),
                     ABOUT(rms_norm_grad, test_rms_norm_grad), ABOUT(layer_norm_grad, test_layer_norm_grad),
                     ABOUT(softmax_grad, test_softmax_grad), ABOUT(adam, test_adam), ABOUT(row_loss, test_row_loss),
                     ABOUT(sequence_outer, test_outer), ABOUT(sequence_conv, test_sequence_conv),
                     ABOUT(sequence_delta_forward, test_sequence_delta), ABOUT(sequence_dropout, test_dropout));
}
