/* sample.h - logits become one id. The chain: repetition penalty, temperature, top-k, top-p, min-p, draw. */
#ifndef GOMLX_RUN_SAMPLE_H
#define GOMLX_RUN_SAMPLE_H
#include "gomlx.h"

typedef struct { float logit; int32_t id; } sample_candidate;
typedef struct {
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint64_t seed;
    int64_t vocab;
    float *adjusted;                 /* logits after the penalty */
    sample_candidate *candidates;    /* a heap: the likeliest first */
    uint8_t *seen;                   /* ids in prompt and output */
} gm_sampler;

gm_status sampler_init(gm_sampler *s, const gm_generate_options *o, int64_t vocab);
void sampler_clear(gm_sampler *s);
void sampler_saw(gm_sampler *s, int32_t id);                       /* for the repetition penalty */
bool sampler_is_greedy(const gm_sampler *s);                       /* the first greatest logit, nothing else */
/* The id of draw number `step`: the same logits, options, seed and step give the same id. */
int32_t sampler_draw(gm_sampler *s, const float *logits, uint64_t step);
#endif
