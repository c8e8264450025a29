/* test_draw_kernels.c - the passes over the candidates of a draw, in every table that this machine runs, against their
 * definitions in double, and bit for bit against themselves however the blocks are shared out. */
#include "kernel_check.h"

enum { BLOCKS = 5 };
static const int32_t counts[BLOCKS] = {GM_DRAW_BLOCK, 1, 0, 700, 257}; /* the last block ends at a page */
#define PLACES ((BLOCKS - 1) * GM_DRAW_BLOCK + 257)

/* kind 0: as they come; 1: with what is no number and infinities; 2: a few values, many times each. */
static gm_candidates candidates(int kind, bool named, bool scaled) {
    float *logits = floats(PLACES, kind == 2 ? 3 : 12);
    int32_t *ids = named ? buffer(PLACES * sizeof *ids) : NULL;
    for (int64_t i = 0; i < PLACES; i++) {
        if (kind == 1 && i % 7 == 3)
            logits[i] = i % 2 ? NAN : -INFINITY;
        if (kind == 1 && i == 77)
            logits[i] = INFINITY;
        if (kind == 2)
            logits[i] = rintf(logits[i]);
        if (ids)
            ids[i] = (int32_t)(3 * i + 5);
    }
    return (gm_candidates){logits, ids, counts, scaled ? 1.25f : 0, scaled ? 0.7f : 1};
}
static float logit(const gm_candidates *c, int64_t i) {
    return ((c->logits[i] == c->logits[i] ? c->logits[i] : -INFINITY) - c->shift) / c->divisor;
}
static double weight(double z, double best) { return z == best ? 1 : z - best >= -42 ? exp(z - best) : 0; }
static bool is_near(double got, double want, double size) {
    return got == want || fabs(got - want) <= 2e-6 * size + 1e-30;
}

static void test_measures(const gm_candidates *in, float best) {
    gm_draw_measured out[BLOCKS], one;
    float runs[BLOCKS * GM_DRAW_RUNS];
    for (int what = GM_DRAW_BEST; what <= GM_DRAW_WEIGHTS; what++) {
        gm_draw_measure_args a = {*in, (gm_draw_measurement)what, best, 0.5f, out, runs};
        kernels->draw_measure(&a, 0, BLOCKS);
        for (int64_t b = 0; b < BLOCKS; b++) {
            double sum = 0, size = 0, top = -(double)INFINITY;
            int count = 0;
            for (int64_t i = b * GM_DRAW_BLOCK; i < b * GM_DRAW_BLOCK + counts[b]; i++) {
                const double z = (double)logit(in, i), below = z - (double)best, w = weight(z, (double)best);
                const bool is_counted = what == GM_DRAW_WEIGHTS ? w > 0 : z > -(double)INFINITY;
                const double part = what == GM_DRAW_MOMENT    ? z
                                    : what == GM_DRAW_SQUARES ? (z - 0.5) * (z - 0.5)
                                                              : w * below;
                top = fmax(top, z);
                count += is_counted;
                sum += is_counted ? part : 0;
                size += is_counted ? fabs(part) : 0;
            }
            if (what == GM_DRAW_BEST)
                CHECK((double)out[b].best == top, "block %d", (int)b);
            else if (sum == sum)
                CHECK(is_near(out[b].sum, sum, size), "%d block %d: %g, want %g", what, (int)b, out[b].sum, sum);
            if (what == GM_DRAW_MOMENT)
                CHECK(out[b].count == count, "block %d: %d, want %d", (int)b, out[b].count, count);
            for (int64_t r = 0; what == GM_DRAW_WEIGHTS && r < GM_DRAW_RUNS; r++) {
                double total = 0;
                for (int64_t i = r * GM_DRAW_RUN; i < (r + 1) * GM_DRAW_RUN && i < counts[b]; i++)
                    total += weight((double)logit(in, b * GM_DRAW_BLOCK + i), (double)best);
                const double got = (double)runs[b * GM_DRAW_RUNS + r];
                CHECK(is_near(got, total, total), "block %d run %d: %g, want %g", (int)b, (int)r, got, total);
            }
            one = out[b];
            kernels->draw_measure(&a, b, b + 1);
            CHECK(same(&one, &out[b], sizeof one), "%d block %d alone", what, (int)b);
        }
    }
}

static void test_choices(const gm_candidates *in, float best, bool typical, bool counted, float low, float high) {
    float *logits = buffer(BLOCKS * GM_DRAW_BLOCK * sizeof *logits);
    int32_t *ids = buffer(BLOCKS * GM_DRAW_BLOCK * sizeof *ids), chosen[BLOCKS];
    gm_draw_chosen out[BLOCKS];
    const float centre = -2.5f, rest = 1e-7f;
    const int32_t last = in->ids ? 3 * 500 + 5 : 500;
    gm_draw_choose_args a = {*in, typical, counted, best, centre, rest, low, high, last, logits, ids, chosen, out};
    kernels->draw_choose(&a, 0, BLOCKS);
    for (int64_t b = 0; b < BLOCKS; b++) {
        double mass = 0, above = 0;
        int64_t at = b * GM_DRAW_BLOCK;
        bool right = true;
        for (int64_t i = b * GM_DRAW_BLOCK; i < b * GM_DRAW_BLOCK + counts[b]; i++) {
            const float z = logit(in, i), key = typical ? -fabsf(z - best - centre - rest) : z;
            const double w = counted ? 1 : weight((double)z, (double)best);
            const int32_t id = in->ids ? in->ids[i] : (int32_t)i;
            above += key > high ? w : 0;
            mass += key >= low && key <= high ? w : 0;
            if (key < low || key > high || (key == low && id > last) || key != key)
                continue;
            right &= logits[at] == z && ids[at] == id;
            at++;
        }
        CHECK(right && at - b * GM_DRAW_BLOCK == chosen[b], "block %d: %d, want %d", (int)b, chosen[b],
              (int)(at - b * GM_DRAW_BLOCK));
        CHECK(is_near(out[b].mass, mass, mass) && is_near(out[b].above, above, above), "block %d: %g %g, want %g %g",
              (int)b, out[b].mass, out[b].above, mass, above);
        const gm_draw_chosen before = out[b];
        kernels->draw_choose(&a, b, b + 1);
        CHECK(same(&before, &out[b], sizeof before), "block %d alone", (int)b);
    }
    /* In place, without masses. */
    float *own = buffer(BLOCKS * GM_DRAW_BLOCK * sizeof *own);
    int32_t *own_ids = buffer(BLOCKS * GM_DRAW_BLOCK * sizeof *own_ids), own_counts[BLOCKS];
    for (int64_t i = 0; i < PLACES; i++) {
        own[i] = in->logits[i];
        own_ids[i] = in->ids ? in->ids[i] : (int32_t)i;
    }
    memcpy(own_counts, counts, sizeof counts);
    a.in = (gm_candidates){own, own_ids, own_counts, in->shift, in->divisor};
    a.logits = own;
    a.ids = own_ids;
    a.counts = own_counts;
    a.out = NULL;
    kernels->draw_choose(&a, 0, BLOCKS);
    for (int64_t b = 0; b < BLOCKS; b++)
        CHECK(own_counts[b] == chosen[b] &&
                  same(own + b * GM_DRAW_BLOCK, logits + b * GM_DRAW_BLOCK, (size_t)chosen[b] * 4) &&
                  same(own_ids + b * GM_DRAW_BLOCK, ids + b * GM_DRAW_BLOCK, (size_t)chosen[b] * 4),
              "block %d in place", (int)b);
}

static void test_weights(const gm_candidates *in, float best) {
    float *out = buffer(PLACES * sizeof *out), alone;
    gm_draw_weigh_args a = {*in, best, out};
    kernels->draw_weigh(&a, 0, PLACES);
    for (int64_t i = 0; i < PLACES; i += 1 + i / 300) {
        const double want = weight((double)logit(in, i), (double)best);
        CHECK(is_near((double)out[i], want, want), "weight %d: %g, want %g", (int)i, (double)out[i], want);
        gm_draw_weigh_args one = {*in, best, &alone};
        one.in.logits += i;
        kernels->draw_weigh(&one, 0, 1);
        CHECK(same(&alone, &out[i], sizeof alone), "weight %d alone", (int)i);
    }
}

static void test_draw(void) {
    for (int kind = 0; kind < 3; kind++)
        for (int form = 0; form < 8; form++) {
            const gm_candidates in = candidates(kind, form & 1, form & 2);
            const bool counted = form & 4;
            float best = -INFINITY;
            for (int64_t b = 0; b < BLOCKS; b++)
                for (int64_t i = b * GM_DRAW_BLOCK; i < b * GM_DRAW_BLOCK + counts[b]; i++)
                    best = fmaxf(best, logit(&in, i));
            test_measures(&in, best);
            test_weights(&in, best);
            test_choices(&in, best, false, counted, in.divisor == 1 ? 1 : -1.25f / 0.7f, 2.5f);
            test_choices(&in, best, false, counted, -INFINITY, INFINITY);
            if (kind != 1)
                test_choices(&in, best, true, counted, -3, -0.25f); /* typical: of finite logits */
            free_buffers();
        }
}

int main(int argc, char **argv) { return RUN_TESTS(ABOUT(draw_measure, test_draw)); }
