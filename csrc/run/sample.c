/* sample.c - see sample.h. Definitions and order as in transformers: penalty, temperature, top-k, top-p, min-p. */
#include "run/sample.h"
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

gm_status sampler_init(gm_sampler *s, const gm_generate_options *o, int64_t vocab) {
    memset(s, 0, sizeof *s);
    if (!(o->temperature >= 0 && isfinite(o->temperature)))
        return gm_fail(GM_EVALUE, "temperature is %g, expected 0 or more", (double)o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return gm_fail(GM_EVALUE, "top_p is %g, expected more than 0 and up to 1", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return gm_fail(GM_EVALUE, "min_p is %g, expected 0 to 1", (double)o->min_p);
    if (o->top_k < 0)
        return gm_fail(GM_EVALUE, "top_k is %d, expected 0 (off) or more", o->top_k);
    if (!(o->repetition_penalty > 0 && isfinite(o->repetition_penalty)))
        return gm_fail(GM_EVALUE, "repetition_penalty is %g, expected more than 0", (double)o->repetition_penalty);
    s->temperature = o->temperature;
    s->top_p = o->top_p;
    s->min_p = o->min_p;
    s->top_k = o->top_k;
    s->repetition_penalty = o->repetition_penalty;
    s->seed = o->seed;
    s->vocab = vocab;
    if (sampler_is_greedy(s))
        return GM_OK;
    s->adjusted = memory_array((size_t)vocab, sizeof *s->adjusted);
    s->candidates = memory_array((size_t)vocab, sizeof *s->candidates);
    s->seen = memory_zeroed((size_t)vocab);
    if (s->adjusted && s->candidates && s->seen)
        return GM_OK;
    sampler_clear(s);
    return GM_ENOMEM;
}

void sampler_clear(gm_sampler *s) {
    memory_free(s->adjusted);
    memory_free(s->candidates);
    memory_free(s->seen);
    s->adjusted = NULL;
    s->candidates = NULL;
    s->seen = NULL;
}

void sampler_saw(gm_sampler *s, int32_t id) {
    if (s->seen)
        s->seen[id] = 1;
}

bool sampler_is_greedy(const gm_sampler *s) { return s->temperature == 0 && s->repetition_penalty == 1; }

/* Uniform in [0, 1) from (seed, step): two rounds of the splitmix64 finaliser (Steele, Lea and Flood, 2014). */
static double uniform(uint64_t seed, uint64_t step) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + step;
    for (int round = 0; round < 2; round++) {
        x += 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static bool before(sample_candidate a, sample_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift(sample_candidate *heap, int64_t n, int64_t at) {
    sample_candidate item = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], item))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
}

/* The likeliest of the n candidates that are left, removed to the array's end. */
static sample_candidate pop(sample_candidate *heap, int64_t n) {
    sample_candidate top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    sift(heap, n - 1, 0);
    return top;
}

static void penalise(gm_sampler *s, const float *logits) {
    memcpy(s->adjusted, logits, (size_t)s->vocab * sizeof *logits);
    if (s->repetition_penalty == 1)
        return;
    for (int64_t i = 0; i < s->vocab; i++)
        if (s->seen[i])
            s->adjusted[i] = s->adjusted[i] > 0 ? s->adjusted[i] / s->repetition_penalty
                                                : s->adjusted[i] * s->repetition_penalty;
}

/* How likely a candidate is, relative to the best. */
static double weight(const gm_sampler *s, double top, sample_candidate c) {
    return exp(((double)c.logit - top) / (double)s->temperature);
}

static int32_t argmax(const float *z, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (z[i] > z[best] || (isnan(z[best]) && !isnan(z[i])))
            best = i;
    return (int32_t)best;
}

int32_t sampler_draw(gm_sampler *s, const float *logits, uint64_t step) {
    penalise(s, logits);
    const float *z = s->adjusted;
    int32_t best = argmax(z, s->vocab);
    if (s->temperature == 0)
        return best;
    /* What is e^-42 as likely as the best is less than 1e-12 of the mass over any vocabulary: left out. */
    double top = (double)z[best], total = 0, reach = 0;
    float least = (float)(top - 42 * (double)s->temperature);
    sample_candidate *heap = s->candidates;
    int64_t n = 0, popped = 0, kept = 0;
    for (int64_t i = 0; i < s->vocab; i++)
        if (z[i] >= least)
            heap[n++] = (sample_candidate){z[i], (int32_t)i};
    for (int64_t i = n / 2; i-- > 0;)
        sift(heap, n, i);
    /* Popped candidates gather at the array's end, the likeliest last: number i is heap[n - 1 - i]. */
    int64_t limit = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    if (limit < n)
        while (popped < limit)
            total += weight(s, top, pop(heap, n - popped++));
    else
        for (int64_t i = 0; i < n; i++)
            total += weight(s, top, heap[i]);
    for (bool ordered = s->top_p < 1 || s->min_p > 0; kept < limit; kept++) {
        if (ordered && kept == popped)
            pop(heap, n - popped++);
        double p = weight(s, top, heap[n - 1 - kept]);
        if (ordered && kept > 0 && (reach >= (double)s->top_p * total || p < (double)s->min_p))
            break;
        reach += p;
    }
    double at = uniform(s->seed, step) * reach;
    for (int64_t i = 0; i < kept; i++) {
        at -= weight(s, top, heap[n - 1 - i]);
        if (at < 0)
            return heap[n - 1 - i].id;
    }
    return best;
}
