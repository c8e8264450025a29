/* test_recurrent.c - layers with a state kept from pass to pass: against their definitions in double, and bit for bit
 * the same however prompts are cut into passes, alone or together with others, on any number of threads. */
#include <math.h>
#include <stdlib.h>
#include "base/memory.h"
#include "check.h"
#include "core/graph.h"
#include "cpu/loops.h"
#include "ops/layers/batch_state.h"

enum { SEQUENCES = 3, LONGEST = 21 };
static const int lengths[SEQUENCES] = {LONGEST, 1, 9};

static float noise(void) {
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 23) - 1;
}
static float *noises(int64_t n, float scale, float shift) {
    float *x = malloc(sizeof *x * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++)
        x[i] = noise() * scale + shift;
    return x;
}

typedef struct {
    int channels, taps;                 /* of a convolution */
    int key_heads, heads, keys, values; /* of a delta rule */
    bool tiled;
    float *in[5]; /* [sequence][LONGEST][width] */
    int64_t width[5], out_width, state_floats;
    int n_in;
    float *weight, *states[SEQUENCES], *out; /* out: [sequence][LONGEST][out_width] */
} layer;

static void start_layer(layer *l) {
    if (l->taps) {
        l->n_in = 1;
        l->width[0] = l->out_width = l->channels;
        l->state_floats = (l->taps - 1) * l->channels;
        l->weight = noises(l->channels * l->taps, 1, 0);
    } else {
        const int64_t widths[5] = {l->key_heads * l->keys, l->key_heads * l->keys, l->heads * l->values, l->heads,
                                   l->heads};
        l->n_in = 5;
        memcpy(l->width, widths, sizeof widths);
        l->out_width = l->heads * l->values;
        l->state_floats = l->heads * l->values * l->keys;
    }
    for (int i = 0; i < l->n_in; i++)
        l->in[i] = i < 3 ? noises(SEQUENCES * LONGEST * l->width[i], i == 2 ? 2 : 0.3f, 0)
                         : noises(SEQUENCES * LONGEST * l->width[i], 0.4f, 0.5f);
    l->out = noises(SEQUENCES * LONGEST * l->out_width, 1, 0);
    for (int s = 0; s < SEQUENCES; s++)
        l->states[s] = noises(l->state_floats, 1, 0); /* whatever was there: a sequence begins with zeros */
}
static void end_layer(layer *l) {
    for (int i = 0; i < l->n_in; i++)
        free(l->in[i]);
    for (int s = 0; s < SEQUENCES; s++)
        free(l->states[s]);
    free(l->weight);
    free(l->out);
}

/* A pass over counts[i] tokens of sequence[i] from done[i] on, in slot 1 of 2. */
static gm_status run_pass(layer *l, const int *sequence, int n, const int *done, const int32_t *counts) {
    const int32_t tokens[LONGEST + 1] = {0};
    gm_array *in[5] = {NULL}, *out = NULL;
    gm_batch_state *batch;
    gm_status status = batch_state_new(counts, n, false, 2, GM_FLOAT32, &batch);
    if (status != GM_OK)
        return status;
    for (int i = 0; i < n; i++) {
        gm_cache_address arrays[2] = {{.state = NULL}, {.state = NULL}};
        arrays[!l->taps].state = l->states[sequence[i]];
        batch_state_set_rows(batch, i, tokens, done[i]);
        batch_state_set_cache(batch, i, 1, arrays);
    }
    gm_scope *s = gm_scope_open();
    if (!s) {
        batch_state_free(batch);
        return GM_ENOMEM;
    }
    const int64_t total = batch->shape.rows;
    for (int j = 0; j < l->n_in; j++) {
        float *x = malloc(sizeof *x * (size_t)(total * l->width[j] + 1)), *to = x;
        for (int i = 0; i < n; i++, to += counts[i - 1] * l->width[j])
            memcpy(to, l->in[j] + (sequence[i] * LONGEST + done[i]) * l->width[j],
                   (size_t)(counts[i] * l->width[j]) * sizeof *x);
        in[j] = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){total, l->width[j]}, x);
        free(x);
    }
    if (l->taps) {
        gm_array *weight = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){l->channels, l->taps}, l->weight);
        out = gm_cached_conv(s, in[0], weight, batch, 1);
    } else {
        const gm_delta_spec spec = {
            .slot = 1, .n_key_heads = l->key_heads, .n_value_heads = l->heads, .tiled = l->tiled};
        out = gm_cached_gated_delta(s, &(gm_delta_inputs){in[0], in[1], in[2], in[3], in[4]}, batch, &spec);
    }
    status = out ? gm_eval(&out, 1) : GM_ENOMEM;
    for (int i = 0; i < n && status == GM_OK; i++)
        memcpy(l->out + (sequence[i] * LONGEST + done[i]) * l->out_width,
               (float *)gm_array_data(out) + batch->view.first[i] * l->out_width,
               (size_t)(counts[i] * l->out_width) * sizeof(float));
    gm_scope_close(s);
    batch_state_free(batch);
    return status;
}

/* All sequences: each by itself (chunk at a time), or together, the long ones going on when the short are done. */
static bool run_all(layer *l, int chunk, bool together) {
    int done[SEQUENCES] = {0};
    bool right = true, more = true;
    for (int s = 0; s < SEQUENCES && !together; s++)
        for (; done[s] < lengths[s]; done[s] += chunk) {
            int32_t count = lengths[s] - done[s] < chunk ? lengths[s] - done[s] : chunk;
            right &= run_pass(l, &s, 1, &done[s], &count) == GM_OK;
        }
    while (together && more) {
        int sequence[SEQUENCES], from[SEQUENCES], n = 0;
        int32_t counts[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++)
            if (done[s] < lengths[s]) {
                const int want = s == 2 ? chunk + 1 : chunk, left = lengths[s] - done[s];
                sequence[n] = s;
                from[n] = done[s];
                counts[n++] = left < want ? left : want;
            }
        more = n > 0;
        if (more)
            right &= run_pass(l, sequence, n, from, counts) == GM_OK;
        for (int i = 0; i < n; i++)
            done[sequence[i]] += counts[i];
    }
    return right;
}

static double conv_error(const layer *l) {
    double worst = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int t = 0; t < lengths[s]; t++)
            for (int c = 0; c < l->channels; c++) {
                double sum = 0;
                for (int j = 0; j < l->taps; j++) {
                    const int from = t - (l->taps - 1) + j;
                    if (from >= 0)
                        sum += (double)l->weight[c * l->taps + j] *
                               (double)l->in[0][(s * LONGEST + from) * l->channels + c];
                }
                const double want = sum / (1 + exp(-sum));
                worst = fmax(worst, fabs(want - (double)l->out[(s * LONGEST + t) * l->channels + c]));
            }
    return worst;
}

static double delta_error(const layer *l) {
    double worst = 0, state[512];
    for (int s = 0; s < SEQUENCES; s++)
        for (int h = 0; h < l->heads; h++)
            for (int v = 0; v < l->values; v++) {
                const int key_head = l->tiled ? h % l->key_heads : h / (l->heads / l->key_heads);
                memset(state, 0, sizeof state);
                for (int t = 0; t < lengths[s]; t++) {
                    const int64_t row = s * LONGEST + t;
                    const float *q = l->in[0] + row * l->width[0] + key_head * l->keys;
                    const float *k = l->in[1] + row * l->width[1] + key_head * l->keys;
                    double memory = 0, want = 0;
                    for (int i = 0; i < l->keys; i++)
                        memory += (state[i] *= (double)l->in[3][row * l->heads + h]) * (double)k[i];
                    const double value = (double)l->in[2][row * l->width[2] + h * l->values + v];
                    const double change = (value - memory) * (double)l->in[4][row * l->heads + h];
                    for (int i = 0; i < l->keys; i++)
                        want += (state[i] += change * (double)k[i]) * (double)q[i];
                    worst = fmax(worst, fabs(want - (double)l->out[row * l->out_width + h * l->values + v]));
                }
                const float *kept = l->states[s] + (h * l->values + v) * l->keys;
                for (int i = 0; i < l->keys; i++)
                    worst = fmax(worst, fabs(state[i] - (double)kept[i]));
            }
    return worst;
}

/* The kernel of the plain op, which takes rows of the state one by one, gives the same bits. */
static bool same_as_plain(const layer *l) {
    const int64_t wide = LONGEST + l->keys, rows = l->heads * l->values;
    float *out = malloc((size_t)(rows * wide) * sizeof *out);
    bool same = true;
    engine_kernels()->gated_delta(&(gm_gated_delta_args){.out = out,
                                                         .q = l->in[0],
                                                         .k = l->in[1],
                                                         .v = l->in[2],
                                                         .gamma = l->in[3],
                                                         .beta = l->in[4],
                                                         .n_tokens = LONGEST,
                                                         .n_heads = l->heads,
                                                         .n_key_heads = l->key_heads,
                                                         .n_keys = l->keys,
                                                         .n_values = l->values},
                                  0, rows);
    for (int64_t r = 0; r < rows; r++) {
        for (int t = 0; t < LONGEST; t++)
            same = same && out[r * wide + t] == l->out[t * l->out_width + r];
        same = same && memcmp(out + r * wide + LONGEST, l->states[0] + r * l->keys, (size_t)l->keys * sizeof *out) == 0;
    }
    free(out);
    return same;
}

/* The ops of training, of all sequences in one pass from their beginnings, give the same bits. */
static bool same_in_training(const layer *l) {
    int32_t starts[SEQUENCES + 1] = {0};
    gm_array *in[5] = {NULL}, *out;
    for (int i = 0; i < SEQUENCES; i++)
        starts[i + 1] = starts[i] + lengths[i];
    const int64_t total = starts[SEQUENCES], count = SEQUENCES + 1;
    gm_scope *s = gm_scope_open();
    gm_array *begins = gm_array_from(s, GM_INT32, 1, &count, starts);
    for (int j = 0; j < l->n_in; j++) {
        float *x = malloc((size_t)(total * l->width[j]) * sizeof *x);
        for (int i = 0; i < SEQUENCES; i++)
            memcpy(x + starts[i] * l->width[j], l->in[j] + i * LONGEST * l->width[j],
                   (size_t)(lengths[i] * l->width[j]) * sizeof *x);
        in[j] = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){total, l->width[j]}, x);
        free(x);
    }
    if (l->taps) {
        gm_array *weight = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){l->channels, l->taps}, l->weight);
        out = gm_sequence_conv(s, in[0], weight, begins);
    } else {
        const gm_delta_spec spec = {.n_key_heads = l->key_heads, .n_value_heads = l->heads, .tiled = l->tiled};
        out = gm_sequence_delta(s, &(gm_delta_inputs){in[0], in[1], in[2], in[3], in[4]}, begins, &spec);
    }
    bool same = out && gm_eval(&out, 1) == GM_OK;
    for (int i = 0; i < SEQUENCES && same; i++)
        same = memcmp((float *)gm_array_data(out) + starts[i] * l->out_width, l->out + i * LONGEST * l->out_width,
                      (size_t)(lengths[i] * l->out_width) * sizeof(float)) == 0;
    gm_scope_close(s);
    return same;
}

static void check_layer(layer l) {
    start_layer(&l);
    const size_t bytes = (size_t)(SEQUENCES * LONGEST * l.out_width) * sizeof *l.out;
    const size_t state_bytes = (size_t)l.state_floats * sizeof *l.out;
    float *want = malloc(bytes + 1), *states[SEQUENCES];
    CHECK(run_all(&l, LONGEST, false));
    CHECK((l.taps ? conv_error(&l) : delta_error(&l)) < 4e-6 * (1 + l.keys / 8));
    if (!l.taps && !l.tiled)
        CHECK(same_as_plain(&l));
    CHECK(same_in_training(&l));
    memcpy(want, l.out, bytes);
    for (int s = 0; s < SEQUENCES; s++) {
        states[s] = malloc(state_bytes + 1);
        memcpy(states[s], l.states[s], state_bytes);
    }
    for (int threads = 1; threads <= 3; threads++)
        for (int chunk = 1; chunk <= 8; chunk += chunk < 3 ? 1 : 5)
            for (int together = 0; together < 2; together++) {
                CHECK(gm_set_threads(threads) == GM_OK);
                memset(l.out, 0, bytes);
                bool same = run_all(&l, chunk, together);
                for (int s = 0; s < SEQUENCES; s++) {
                    const size_t at = (size_t)(s * LONGEST * l.out_width);
                    same = same && memcmp(l.states[s], states[s], state_bytes) == 0 &&
                           memcmp(l.out + at, want + at, (size_t)(lengths[s] * l.out_width) * sizeof *want) == 0;
                }
                CHECK(same);
            }
    for (int s = 0; s < SEQUENCES; s++)
        free(states[s]);
    free(want);
    end_layer(&l);
}

static void convolutions(void) {
    static const int channels[] = {1, 7, 16, 33, 127, 128, 300}, taps[] = {1, 2, 4, 5, GM_CACHED_TAPS};
    for (size_t c = 0; c < sizeof channels / sizeof *channels; c++)
        for (size_t t = 0; t < sizeof taps / sizeof *taps; t++)
            check_layer((layer){.channels = channels[c], .taps = taps[t]});
}

static void delta_rules(void) {
    static const layer layers[] = {
        {.key_heads = 1, .heads = 1, .keys = 1, .values = 1},
        {.key_heads = 2, .heads = 4, .keys = 8, .values = 17},
        {.key_heads = 2, .heads = 6, .keys = 33, .values = 16, .tiled = true},
        {.key_heads = 3, .heads = 3, .keys = 16, .values = 5},
        {.key_heads = 2, .heads = 2, .keys = 129, .values = 35},
        {.key_heads = 1, .heads = 2, .keys = 128, .values = 64, .tiled = true},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_layer(layers[i]);
}

/* What does not fit is refused before anything runs. */
static void refusals(void) {
    gm_scope *s = gm_scope_open();
    gm_batch_state *batch, *small;
    float data[64] = {0};
    CHECK(batch_state_new((int32_t[]){2, 1}, 2, false, 2, GM_FLOAT32, &batch) == GM_OK);
    CHECK(batch_state_new((int32_t[]){1, 1}, 2, false, 2, GM_FLOAT32, &small) == GM_OK);
    gm_array *x = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){3, 8}, data);
    gm_array *weight = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){8, 4}, data);
    gm_array *gates = gm_array_from(s, GM_FLOAT32, 2, (int64_t[]){3, 2}, data);
    gm_array *line = gm_array_from(s, GM_FLOAT32, 1, (int64_t[]){3}, data);
    CHECK(gm_cached_conv(s, x, weight, batch, 1) != NULL);
    CHECK(!gm_cached_conv(s, x, weight, small, 1));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "batch has 2 rows, x has 3");
    CHECK(!gm_cached_conv(s, x, weight, batch, 2));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "slot 2");
    CHECK(!gm_cached_conv(s, line, weight, batch, 0));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "x is float32(3), expected float32(3,k)");
    CHECK(!gm_cached_conv(s, x, gates, batch, 0));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "weight is float32(3,2)");
    CHECK(!gm_cached_conv(s, NULL, weight, batch, 0));
    const gm_delta_spec fits = {.n_key_heads = 1, .n_value_heads = 2}, odd = {.n_key_heads = 3, .n_value_heads = 2};
    CHECK(gm_cached_gated_delta(s, &(gm_delta_inputs){x, x, x, gates, gates}, batch, &fits) != NULL);
    CHECK(!gm_cached_gated_delta(s, &(gm_delta_inputs){x, x, x, gates, gates}, batch, &odd));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "3 key heads and 2 value heads");
    CHECK(!gm_cached_gated_delta(s, &(gm_delta_inputs){x, x, x, gates, x}, batch, &fits));
    CHECK_ERROR(GM_ESHAPE, GM_ESHAPE, "beta float32(3,8)");
    gm_scope_close(s);
    batch_state_free(batch);
    batch_state_free(small);
}

/* Every allocation made to fail in turn: GM_ENOMEM, and nothing is left behind. */
static void failures(void) {
    layer l = {.key_heads = 2, .heads = 4, .keys = 8, .values = 17};
    const int sequence[2] = {2, 0}, done[2] = {0};
    const int32_t counts[2] = {3, 5};
    gm_error e;
    start_layer(&l);
    const size_t before = gm_active_memory();
    gm_status status = GM_ENOMEM;
    long n = 1;
    for (; status != GM_OK && n < 500; n++) {
        memory_fail_at(n);
        status = run_pass(&l, sequence, 2, done, counts);
        memory_fail_at(0);
        gm_take_error(&e);
        CHECK((status == GM_OK || (status == GM_ENOMEM && e.code == GM_ENOMEM)) && gm_active_memory() == before);
    }
    CHECK(n > 8 && n < 500);
    end_layer(&l);
}

int main(void) {
    CHECK(gm_init() == GM_OK);
    gm_set_cache_limit(0);
    convolutions();
    delta_rules();
    refusals();
    failures();
    return check_summary();
}
