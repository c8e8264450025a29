/* test_sample.c - the sampler under sanitizers: any options over any logits give an id that is not forbidden, or the
 * error that none is left; each allocation of its life may fail; samplers of two sequences are apart. */
#include <math.h>
#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"
#include "check.h"
#include "core/graph.h"
#include "run/sample.h"

enum { VOCAB = 300, STEPS = 12 };

static uint64_t state = 88172645463325252u;
static uint32_t next_number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}
static int below(int n) { return (int)(next_number() % (uint32_t)n); }
static float share(void) { return (float)below(1000) / 1000; }
static bool sometimes(void) { return below(3) == 0; }

/* ---- options ---- */
static const int32_t words[] = {4, 5, 6, 5, 4, 4, 200}, breakers[] = {1, 2, 3, 9}, suppressed[] = {7, 299},
                     bias_ids[] = {8, 4, 9, 10};
static const size_t word_lengths[] = {2, 1, 3, 1}, breaker_lengths[] = {1, 2, 1};
static const float biases[] = {0.5f, INFINITY, -INFINITY, -3e38f};

static void any_options(gm_sampling *o, gm_sampler_kind *order) {
    gm_sampling_defaults(o);
    o->temperature = sometimes() ? 0 : sometimes() ? 1e-40f : 3 * share();
    o->top_k = sometimes() ? below(VOCAB + 50) : 0;
    o->top_p = sometimes() ? share() + 0.001f : 1;
    o->min_p = sometimes() ? share() : 0;
    o->typical_p = sometimes() ? share() + 0.001f : 1;
    o->top_n_sigma = sometimes() ? 3 * share() : 0;
    o->xtc_probability = sometimes() ? share() : 0;
    o->dry_multiplier = sometimes() ? 1e38f * share() : 0;
    o->dry_base = 1 + 1e10f * share();
    o->dry_last_n = below(20) - 1;
    o->dry_allowed_length = 1 + below(3);
    o->dry_breakers = (gm_sequences){breakers, breaker_lengths, (size_t)below(4)};
    o->mirostat_tau = sometimes() ? 5 * share() : 0;
    o->mirostat_eta = 1e3f * share();
    o->repetition_penalty = sometimes() ? 1e-40f + 3 * share() : 1;
    o->frequency_penalty = sometimes() ? 3e38f * (share() - 0.5f) : 0;
    o->presence_penalty = sometimes() ? share() : 0;
    o->penalty_last_n = below(10) - 1;
    o->counts_of_prompt = sometimes();
    o->repetition_of_prompt = sometimes();
    o->bad_words = (gm_sequences){words, word_lengths, (size_t)below(5)};
    o->suppressed = suppressed;
    o->n_suppressed = (size_t)below(3);
    o->bias_ids = bias_ids;
    o->biases = biases;
    o->n_biases = (size_t)below(5);
    for (int i = 0; i < GM_SAMPLER_KINDS; i++)
        order[i] = (gm_sampler_kind)i;
    for (int i = GM_SAMPLER_KINDS - 2; i > 0; i--) { /* mirostat stays the last one */
        int other = below(i + 1);
        gm_sampler_kind kind = order[i];
        order[i] = order[other];
        order[other] = kind;
    }
    o->order = sometimes() ? NULL : order;
    o->n_order = GM_SAMPLER_KINDS;
}

static void any_logits(float *z) {
    int kind = below(6);
    for (int i = 0; i < VOCAB; i++) {
        z[i] = kind == 0 ? 0 : kind == 1 ? -INFINITY : 20 * (share() - 0.5f) * (kind == 2 ? 1e37f : 1);
        if (kind == 3 && sometimes())
            z[i] = (const float[]){NAN, INFINITY, -INFINITY}[below(3)];
    }
    if (kind == 1 && sometimes())
        z[below(VOCAB)] = 1;
}

static bool is_forbidden(const gm_sampling *o, int32_t id) {
    for (size_t i = 0; i < o->n_suppressed; i++)
        if (o->suppressed[i] == id)
            return true;
    return (o->bad_words.n > 1 && id == 6) || id == 17;
}

/* ---- tests ---- */
static void test_any_options(void) {
    static float z[VOCAB];
    const int32_t prompt[] = {1, 2, 3, 1, 2, 4, 5};
    const sample_limits limits = {.forbidden = (int32_t[]){17}, .n_forbidden = 1};
    for (int round = 0; round < 3000; round++) {
        gm_sampler s;
        gm_sampling o;
        gm_sampler_kind order[GM_SAMPLER_KINDS];
        any_options(&o, order);
        CHECK(sampler_init(&s, &o, VOCAB, 1) == GM_OK);
        CHECK(sampler_accept(&s, prompt, below(8), true) == GM_OK);
        for (uint64_t step = 0; step < STEPS; step++) {
            int32_t id = -1;
            any_logits(z);
            gm_status status = sampler_draw(&s, z, step, &limits, &id);
            if (status != GM_OK) {
                CHECK_ERROR(status, GM_EVALUE, "no token is left");
                continue;
            }
            CHECK(id >= 0 && id < VOCAB && !is_forbidden(&o, id) && !isnan(z[id]));
            CHECK(sampler_accept(&s, &id, 1, false) == GM_OK);
        }
        sampler_clear(&s);
    }
}

static gm_status one_life(gm_sampler *s, const gm_sampling *o, const float *z, int32_t *drawn) {
    const int32_t prompt[] = {1, 2, 1, 2, 1};
    const sample_limits limits = {.forbidden = prompt, .n_forbidden = 1};
    gm_status status = sampler_init(s, o, VOCAB, 1);
    if (status == GM_OK)
        status = sampler_accept(s, prompt, 5, true);
    for (uint64_t step = 0; status == GM_OK && step < STEPS; step++) {
        status = sampler_draw(s, z, step, &limits, &drawn[step]);
        if (status == GM_OK)
            status = sampler_accept(s, &drawn[step], 1, false);
    }
    return status;
}

static void test_each_allocation_fails(void) {
    static float z[VOCAB];
    gm_sampling o;
    gm_sampler s;
    int32_t want[STEPS], got[STEPS];
    for (int i = 0; i < VOCAB; i++)
        z[i] = 4 * share();
    gm_sampling_defaults(&o);
    o.temperature = 0.9f;
    o.top_p = 0.95f;
    o.repetition_penalty = 1.2f;
    o.presence_penalty = 0.1f;
    o.dry_multiplier = 0.5f;
    o.dry_allowed_length = 1;
    o.dry_breakers = (gm_sequences){breakers, breaker_lengths, 3};
    o.bad_words = (gm_sequences){words, word_lengths, 4};
    CHECK(one_life(&s, &o, z, want) == GM_OK);
    sampler_clear(&s);
    gm_status status = GM_ENOMEM;
    for (long n = 1; status == GM_ENOMEM && n < 200; n++) {
        memory_fail_at(n);
        status = one_life(&s, &o, z, got);
        memory_fail_at(0);
        sampler_clear(&s);
        if (status != GM_OK) {
            CHECK_ERROR(status, GM_ENOMEM, "");
        }
    }
    CHECK(status == GM_OK && memcmp(got, want, sizeof want) == 0);
}

static void test_samplers_are_apart(void) {
    static float z[2][VOCAB];
    gm_sampler s[2];
    gm_sampling o[2];
    int32_t alone[2][STEPS], together[2][STEPS];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < VOCAB; i++)
            z[k][i] = 4 * share();
        gm_sampling_defaults(&o[k]);
        o[k].temperature = 1;
        o[k].mirostat_tau = k ? 3 : 0;
        o[k].repetition_penalty = 1.5f;
        o[k].seed = (uint64_t)k;
        CHECK(one_life(&s[k], &o[k], z[k], alone[k]) == GM_OK);
        sampler_clear(&s[k]);
        CHECK(sampler_init(&s[k], &o[k], VOCAB, 1) == GM_OK);
        CHECK(sampler_accept(&s[k], (int32_t[]){1, 2, 1, 2, 1}, 5, true) == GM_OK);
    }
    const sample_limits limits = {.forbidden = (int32_t[]){1}, .n_forbidden = 1};
    for (uint64_t step = 0; step < STEPS; step++)
        for (int k = 0; k < 2; k++) {
            CHECK(sampler_draw(&s[k], z[k], step, &limits, &together[k][step]) == GM_OK);
            CHECK(sampler_accept(&s[k], &together[k][step], 1, false) == GM_OK);
        }
    CHECK(memcmp(alone, together, sizeof alone) == 0);
    sampler_clear(&s[0]);
    sampler_clear(&s[1]);
}

/* Vocabularies that are worth the team: the same bits without it. Beside another evaluation there is none. */
static void test_any_number_of_threads(void) {
    enum { LARGE = 70001, DRAWS = 8 };
    float *z = memory_array(LARGE, sizeof *z);
    for (int kind = 0; z && kind < 9; kind++) {
        int32_t drawn[4][DRAWS];
        gm_sampling o;
        gm_sampling_defaults(&o);
        o.temperature = kind == 1 ? 3 : 0.9f;
        o.top_p = kind == 2 || kind == 8 ? 0.9f : 1;
        o.top_k = kind == 3 || kind == 8 ? 5000 : 0;
        o.min_p = kind == 4 ? 0.01f : 0;
        o.typical_p = kind == 5 ? 0.7f : 1;
        o.top_n_sigma = kind == 6 ? 1 : 0;
        o.xtc_probability = kind == 7 ? 1 : 0;
        o.xtc_threshold = 1e-4f;
        for (int i = 0; i < LARGE; i++)
            z[i] = kind < 2 ? 0.01f * share() : 8 * share();
        for (int threads = 1; threads <= 4; threads++) {
            gm_sampler s;
            CHECK(sampler_init(&s, &o, LARGE, threads) == GM_OK);
            if (threads == 4)
                CHECK(run_lock(-1) == GM_OK);
            for (uint64_t step = 0; step < DRAWS; step++)
                CHECK(sampler_draw(&s, z, step, &(sample_limits){0}, &drawn[threads - 1][step]) == GM_OK);
            if (threads == 4)
                run_unlock();
            CHECK(error_code() == GM_OK);
            CHECK(memcmp(drawn[0], drawn[threads - 1], sizeof drawn[0]) == 0);
            sampler_clear(&s);
        }
    }
    CHECK(z != NULL);
    memory_free(z);
}

/* What is drawn under a mask is what a vocabulary of the allowed ids alone would give, bit for bit. */
static void test_a_mask_leaves_a_smaller_vocabulary(void) {
    static float z[VOCAB], few[VOCAB], spread[VOCAB], spread_few[VOCAB];
    for (int round = 0; round < 2000; round++) {
        uint32_t allowed[(VOCAB + 31) / 32] = {0};
        int32_t ids[VOCAB], n = 0, drawn[STEPS], drawn_few[STEPS];
        gm_sampling o;
        gm_sampling_defaults(&o);
        o.temperature = sometimes() ? 0 : 0.1f + 2 * share();
        o.top_k = sometimes() ? 1 + below(40) : 0;
        o.top_p = sometimes() ? 0.7f : 1;
        o.min_p = sometimes() ? 0.02f : 0;
        o.typical_p = sometimes() ? 0.7f : 1;
        o.xtc_probability = sometimes() ? 1 : 0;
        o.seed = (uint64_t)round;
        const int one_in = 1 + below(50);
        for (int i = 0; i < VOCAB; i++) {
            z[i] = 6 * share();
            if (below(one_in) && i != round % VOCAB)
                continue;
            allowed[i / 32] |= UINT32_C(1) << (i % 32);
            ids[n] = i;
            few[n++] = z[i];
        }
        allowed[VOCAB / 32] |= ~UINT32_C(0) << (VOCAB % 32); /* ids that there are not */
        const gm_draw d = {.logits = z, .vocab = VOCAB, .allowed = allowed}, d_few = {.logits = few, .vocab = n};
        CHECK(gm_sample(&o, &d, drawn, STEPS) == GM_OK && gm_sample(&o, &d_few, drawn_few, STEPS) == GM_OK);
        CHECK(gm_sample_probabilities(&o, &d, spread) == GM_OK);
        CHECK(gm_sample_probabilities(&o, &d_few, spread_few) == GM_OK);
        for (int i = 0; i < STEPS; i++)
            CHECK(drawn[i] == ids[drawn_few[i]]);
        for (int i = 0, at = 0; i < VOCAB; i++)
            CHECK(at < n && ids[at] == i ? spread[i] == spread_few[at++] : spread[i] == 0);
    }
}

static void test_a_mask_of_nothing(void) {
    static float z[VOCAB];
    const uint32_t allowed[(VOCAB + 31) / 32] = {0};
    int32_t id;
    gm_sampling o;
    gm_sampling_defaults(&o);
    for (int k = 0; k < 2; k++, o.temperature = 1) {
        const gm_draw d = {.logits = z, .vocab = VOCAB, .allowed = allowed};
        CHECK_ERROR(gm_sample(&o, &d, &id, 1), GM_EVALUE, "the mask allows none of 300");
        CHECK_ERROR(gm_sample_probabilities(&o, &d, z), GM_EVALUE, "the mask allows none of 300");
    }
}

int main(void) {
    if (gm_init() != GM_OK)
        return 2;
    test_any_options();
    test_each_allocation_fails();
    test_samplers_are_apart();
    test_any_number_of_threads();
    test_a_mask_leaves_a_smaller_vocabulary();
    test_a_mask_of_nothing();
    return check_summary();
}
