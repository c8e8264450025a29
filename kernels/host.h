/* host.h - loops that the host calls at once, over memory of its own, whatever device the model is on: the draw of a
 * token, in which each pass depends on what the one before it found (csrc/run/candidates.c). They are the processor's,
 * and serial over a range as all of its loops are; cpu/kernels.def says of what. */
#ifndef GOMLX_KERNELS_HOST_H
#define GOMLX_KERNELS_HOST_H
#include "kernels.h"

/* Candidates are stored in blocks: the first counts[b] of the GM_DRAW_BLOCK elements of block b, in the order of their
 * ids. A logit is (logits[i] - shift) / divisor, and -inf where that is not a number; -inf is a candidate that is never
 * drawn. Its weight is exp(logit - best), 0 below exp(-42): over any vocabulary less than 1e-12 of the mass. Infinite
 * logits that are the best weigh 1. */
#define GM_DRAW_BLOCK 4096
#define GM_DRAW_RUN 256 /* elements whose weights have a sum of their own */
#define GM_DRAW_RUNS (GM_DRAW_BLOCK / GM_DRAW_RUN)
typedef struct {
    const float *logits;
    const int32_t *ids, *counts; /* ids NULL: indices are ids */
    float shift, divisor;
} gm_candidates;
/* BEST: the greatest logit. MOMENT: how many are more than -inf, and the sum of those. SQUARES: the sum of (logit -
 * centre)^2 of those. WEIGHTS: runs [blocks][GM_DRAW_RUNS], the sums of weights, and the sum of weight * (logit -
 * best). */
typedef enum { GM_DRAW_BEST, GM_DRAW_MOMENT, GM_DRAW_SQUARES, GM_DRAW_WEIGHTS } gm_draw_measurement;
typedef struct {
    double sum;
    int32_t count;
    float best;
} gm_draw_measured;
typedef struct {
    gm_candidates in;
    gm_draw_measurement what;
    float best, centre;
    gm_draw_measured *out; /* [blocks] */
    float *runs;
} gm_draw_measure_args;
/* The key of a candidate is its logit; or, typical, -|logit - best - centre - centre_rest|. Those with keys in [low,
 * high] are chosen; of those with the key low only the ids up to last_id. mass: of the chosen ones, and of those with
 * keys above high; counted: each weighs 1. */
typedef struct { double mass, above; } gm_draw_chosen;
typedef struct {
    gm_candidates in;
    bool typical, counted;
    float best, centre, centre_rest, low, high;
    int32_t last_id;
    float *logits;
    int32_t *ids, *counts; /* as in's, and may be the same */
    gm_draw_chosen *out;   /* [blocks]; NULL: no masses are requested */
} gm_draw_choose_args;
typedef struct {
    gm_candidates in;
    float best;
    float *out;
} gm_draw_weigh_args; /* without counts and ids */

/* Those of an instruction set. */
typedef struct { gm_kernel draw_measure, draw_choose, draw_weigh; } gm_host_loops;
gm_host_loops kernels_host_loops(const gm_kernels *table);
#endif
