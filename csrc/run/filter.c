/* filter.c - samplers that look at the distribution alone: each keeps the candidates that its definition keeps.
 * Nothing is sorted: who stays is found by selection, in time proportional to the candidates. The order is by greater
 * key, ties to the lower id, so that equal logits are cut as a stable sort would. */
#include <math.h>
#include <string.h>
#include "run/sample.h"

/* What is less likely than e^-42 of the best is less than 1e-12 of the mass over any vocabulary: its weight is 0. */
#define NEGLIGIBLE (-42.0f)

static float best_logit(const gm_sampler *s) {
    float top = -INFINITY;
    for (int64_t i = 0; i < s->n; i++)
        top = s->candidates[i].logit > top ? s->candidates[i].logit : top;
    return top;
}

double filter_weigh(gm_sampler *s, float *best) {
    sample_candidate *c = s->candidates;
    float top = best_logit(s);
    double total = 0;
    for (int64_t i = 0; i < s->n; i++) {
        float below = isinf(top) ? (c[i].logit == top ? 0 : -INFINITY) : c[i].logit - top;
        c[i].weight = top > -INFINITY && below >= NEGLIGIBLE ? expf(below) : 0;
        total += (double)c[i].weight;
    }
    if (best)
        *best = top;
    return total;
}

/* ---- selection ---- */
static bool before(const sample_candidate *a, const sample_candidate *b) {
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

static void insertion_sort(sample_candidate *c, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        sample_candidate item = c[i];
        int64_t at = i;
        for (; at > 0 && before(&item, &c[at - 1]); at--)
            c[at] = c[at - 1];
        c[at] = item;
    }
}

/* A pivot that the wanted place is likely to be just before: from a sample, a little behind where the sample says; or,
 * after one that has misled, its median. */
static sample_candidate pivot_of(const sample_candidate *c, int64_t n, double share, bool median) {
    enum { SAMPLE = 64 };
    sample_candidate picked[SAMPLE];
    int64_t m = n < 4 * SAMPLE ? (n < 3 ? n : 3) : SAMPLE;
    double sum = 0, reach = 0;
    for (int64_t i = 0; i < m; i++) {
        picked[i] = c[(2 * i + 1) * n / (2 * m)];
        sum += (double)picked[i].weight;
    }
    insertion_sort(picked, m);
    if (m < SAMPLE || median)
        return picked[m / 2];
    int64_t at = 0;
    for (; at < m - 1 && reach + (double)picked[at].weight < share * sum; at++)
        reach += (double)picked[at].weight;
    return picked[at + 2 < m ? at + 2 : m - 1];
}

/* The candidates to the front that come first in the order and whose weights add up to mass, as few as do; returns how
 * many (all when the sum of all is less). */
static int64_t select_mass(sample_candidate *c, int64_t n, double total, double mass) {
    int64_t low = 0, high = n;       /* [0, low) stay, and have less than mass together; [high, n) go */
    double have = 0;
    bool misled = false;
    while (high - low > 1) {
        double left = total - have, upper = 0;
        int64_t mid = low, at_pivot = low, span = high - low;
        sample_candidate pivot = pivot_of(c + low, span, left > 0 ? (mass - have) / left : 1, misled);
        for (int64_t i = low; i < high; i++) {
            if (before(&pivot, &c[i]))
                continue;
            sample_candidate item = c[i];
            c[i] = c[mid];
            c[mid] = item;
            if (item.id == pivot.id)
                at_pivot = mid;
            else
                upper += (double)item.weight;
            mid++;
        }
        c[at_pivot] = c[mid - 1];    /* the pivot is the last of those that are not after it */
        c[mid - 1] = pivot;
        if (have + upper >= mass && mid - 1 > low) {
            high = mid - 1;
            total = have + upper;
        } else if (have + upper + (double)pivot.weight >= mass) {
            return mid;
        } else {
            low = mid;
            have += upper + (double)pivot.weight;
        }
        misled = high - low > span / 2;
    }
    return high;
}

/* ---- the samplers ---- */

/* Logits divided by T: probabilities to the power of 1/T, normalised. Of a T so small that the best overflows, only
 * what is below the best is divided: the same distribution. */
void filter_temperature(gm_sampler *s) {
    float t = s->options.temperature, best = best_logit(s), shift = isinf(best / t) && !isinf(best) ? best : 0;
    for (int64_t i = 0; i < s->n; i++)
        s->candidates[i].logit = (s->candidates[i].logit - shift) / t;
}

/* The k greatest (Fan et al., 2018). */
void filter_top_k(gm_sampler *s) {
    if (s->n <= s->options.top_k)
        return;
    for (int64_t i = 0; i < s->n; i++) {
        s->candidates[i].key = s->candidates[i].logit;
        s->candidates[i].weight = 1;
    }
    s->n = select_mass(s->candidates, s->n, (double)s->n, (double)s->options.top_k);
}

/* The smallest set of the likeliest with at least p of the probability (nucleus sampling: Holtzman et al., 2019). */
void filter_top_p(gm_sampler *s) {
    double total = filter_weigh(s, NULL);
    for (int64_t i = 0; i < s->n; i++)
        s->candidates[i].key = s->candidates[i].logit;
    s->n = select_mass(s->candidates, s->n, total, (double)s->options.top_p * total);
}

static void keep_from(gm_sampler *s, double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n; i++)
        if ((double)s->candidates[i].logit >= least)
            s->candidates[kept++] = s->candidates[i];
    s->n = kept ? kept : s->n;
}

/* Those at least min_p times as likely as the best (Nguyen et al., 2024). */
void filter_min_p(gm_sampler *s) { keep_from(s, (double)best_logit(s) + log((double)s->options.min_p)); }

/* The smallest set with at least p of the probability of those whose surprise -ln(p) is closest to the expected one,
 * the entropy (locally typical sampling: Meister et al., 2022). */
void filter_typical_p(gm_sampler *s) {
    float best;
    double total = filter_weigh(s, &best), entropy = 0;
    if (!(total > 0) || isinf(best))
        return;
    double log_total = log(total);
    for (int64_t i = 0; i < s->n; i++)
        if (s->candidates[i].weight > 0)
            entropy += (double)s->candidates[i].weight * (log_total - (double)(s->candidates[i].logit - best));
    entropy /= total;
    for (int64_t i = 0; i < s->n; i++)
        s->candidates[i].key = (float)-fabs(log_total - (double)(s->candidates[i].logit - best) - entropy);
    s->n = select_mass(s->candidates, s->n, total, (double)s->options.typical_p * total);
}

/* Those at most n standard deviations of all the logits below the best (Tang et al., 2024). */
void filter_top_n_sigma(gm_sampler *s) {
    double sum = 0, squares = 0, mean;
    for (int64_t i = 0; i < s->n; i++)
        sum += (double)s->candidates[i].logit;
    mean = sum / (double)s->n;
    for (int64_t i = 0; i < s->n; i++)
        squares += ((double)s->candidates[i].logit - mean) * ((double)s->candidates[i].logit - mean);
    double sigma = sqrt(squares / (double)s->n);
    if (isfinite(sigma))
        keep_from(s, (double)best_logit(s) - (double)s->options.top_n_sigma * sigma);
}

/* "Exclude top choices" (p-e-w, 2024, as in llama.cpp): with the chance xtc_probability, of the candidates that have at
 * least the threshold of the probability, only the least likely one stays. */
void filter_xtc(gm_sampler *s, uint64_t step) {
    if (sampler_uniform(~s->options.seed, step) >= (double)s->options.xtc_probability)
        return;
    sample_candidate *c = s->candidates;
    double least = filter_weigh(s, NULL) * (double)s->options.xtc_threshold;
    int64_t last = -1, kept = 0;
    for (int64_t i = 0; i < s->n; i++) {
        c[i].key = c[i].logit;
        if ((double)c[i].weight >= least && (last < 0 || before(&c[last], &c[i])))
            last = i;
    }
    int32_t stays = last < 0 ? -1 : c[last].id;
    for (int64_t i = 0; i < s->n; i++)
        if ((double)c[i].weight < least || c[i].id == stays)
            c[kept++] = c[i];
    s->n = kept;
}

/* Mirostat 2 (Basu et al., 2021, as in llama.cpp): those whose surprise -log2(p) is within a limit, which each draw
 * moves towards the surprise asked for. */
void filter_mirostat(gm_sampler *s) {
    float best;
    double total = filter_weigh(s, &best);
    if (total > 0 && !isinf(best))
        keep_from(s, fmin(0, log(total) - (double)s->surprise_limit * log(2)) + (double)best);
}
