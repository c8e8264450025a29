/* rope.c - see rope.h. Sources: the Llama 3.1 model card's scaling rule; Peng et al., YaRN, 2023; checked against
 * transformers. */
#include "nn/rope.h"
#include <math.h>

static const double pi = 3.14159265358979323846;

static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

/* The (fractional) index that is rotated n times over the original context. */
static double yarn_index(const rope_config *c, double n) {
    return c->dims * log(c->original_context / (2 * pi * n)) / (2 * log(c->theta));
}

void rope_frequencies(const rope_config *c, float *inv_freq, float *factor) {
    int half = c->dims / 2;
    double low = 0, high = 0;
    *factor = 1;
    if (c->kind == ROPE_YARN) {
        low = yarn_index(c, c->beta_fast);
        high = yarn_index(c, c->beta_slow);
        if (c->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, c->dims - 1);
        if (low == high)
            high += 0.001;
        if (c->attention_factor > 0)
            *factor = (float)c->attention_factor;
        else if (c->mscale != 0 && c->mscale_all_dim != 0)
            *factor = (float)(yarn_scale(c->factor, c->mscale) / yarn_scale(c->factor, c->mscale_all_dim));
        else
            *factor = (float)yarn_scale(c->factor, 1);
    }
    for (int i = 0; i < half; i++) {
        double inv = pow(c->theta, -2.0 * i / c->dims);
        switch (c->kind) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: /* differs only beyond the original context */ break;
        case ROPE_LINEAR: inv /= c->factor; break;
        case ROPE_LLAMA3: {
            double wavelength = 2 * pi / inv;
            if (wavelength > c->original_context / c->low_freq_factor) {
                inv /= c->factor;
            } else if (wavelength >= c->original_context / c->high_freq_factor) {
                double range = c->high_freq_factor - c->low_freq_factor;
                double m = (c->original_context / wavelength - c->low_freq_factor) / range;
                inv = (1 - m) * inv / c->factor + m * inv;
            }
            break;
        }
        case ROPE_PROPORTIONAL: inv = i < (int)(c->partial * half) ? inv / c->factor : 0; break;
        case ROPE_YARN: {
            double keep = 1 - fmin(fmax((i - low) / (high - low), 0), 1);
            inv = (1 - keep) * inv / c->factor + keep * inv;
            break;
        }
        }
        inv_freq[i] = (float)inv;
    }
}
