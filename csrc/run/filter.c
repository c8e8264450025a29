/* filter.c - samplers that look at the distribution alone: each keeps the candidates that its definition keeps. */
#include <math.h>
#include "run/sample.h"

/* Logits divided by T: probabilities to the power of 1/T, normalised. */
void filter_temperature(gm_sampler *s) { candidates_divide(&s->candidates, s->options.temperature); }

/* The k greatest (Fan et al., 2018). */
void filter_top_k(gm_sampler *s) { candidates_keep_count(&s->candidates, s->options.top_k); }

/* The smallest set of the likeliest with at least p of the probability (nucleus sampling: Holtzman et al., 2019). */
void filter_top_p(gm_sampler *s) {
    const double total = candidates_weigh(&s->candidates, NULL);
    if (total > 0)
        candidates_keep_mass(&s->candidates, total, (double)s->options.top_p * total);
}

/* Those at least min_p times as likely as the best (Nguyen et al., 2024). */
void filter_min_p(gm_sampler *s) {
    const double best = (double)candidates_best(&s->candidates);
    candidates_keep_from(&s->candidates, best + log((double)s->options.min_p));
}

/* The smallest set with at least p of the probability of those whose surprise -ln(p) is closest to the expected one,
 * the entropy (locally typical sampling: Meister et al., 2022). */
void filter_typical_p(gm_sampler *s) {
    double below;
    const double total = candidates_weigh(&s->candidates, &below);
    if (total > 0 &&
        !isinf(candidates_best(&s->candidates))) /* surprise - entropy is sum(weight * below) / total - below */
        candidates_keep_typical(&s->candidates, below / total, total, (double)s->options.typical_p * total);
}

/* Those at most n standard deviations of all the logits below the best (Tang et al., 2024). */
void filter_top_n_sigma(gm_sampler *s) {
    const double best = (double)candidates_best(&s->candidates), sigma = candidates_deviation(&s->candidates);
    if (isfinite(sigma))
        candidates_keep_from(&s->candidates, best - (double)s->options.top_n_sigma * sigma);
}

/* "Exclude top choices" (p-e-w, 2024, as in llama.cpp): with the chance xtc_probability, of the candidates that have at
 * least the threshold of the probability, only the least likely one stays. uniform: a random number in [0, 1). */
void filter_xtc(gm_sampler *s, double uniform) {
    if (uniform >= (double)s->options.xtc_probability)
        return;
    const double total = candidates_weigh(&s->candidates, NULL);
    if (total > 0)
        candidates_drop_from(&s->candidates,
                             (double)candidates_best(&s->candidates) + log(total * (double)s->options.xtc_threshold));
}

/* Mirostat 2 (Basu et al., 2021, as in llama.cpp): those whose surprise -log2(p) is within a limit, which each draw
 * moves towards the wanted surprise. */
void filter_mirostat(gm_sampler *s) {
    const double total = candidates_weigh(&s->candidates, NULL), best = (double)candidates_best(&s->candidates);
    if (total > 0 && !isinf(best))
        candidates_keep_from(&s->candidates, fmin(0, log(total) - (double)s->surprise_limit * log(2)) + best);
}
