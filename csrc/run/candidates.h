/* candidates.h - the ids that may still be drawn, and passes over them on all threads.
 *  (1) They are in the order of their ids, in blocks whose counts alone change: what a pass drops is closed up within
 *      its block, and what fits into one block is moved there. Sums are made block by block and added up in order: any
 *      number of threads gives the same bits.
 *  (2) Nothing is written to the logits that were given: candidates become the owner's own when one is changed or
 * dropped. A temperature is only noted till then. (3) A logit of -inf is a candidate that is never drawn. */
#ifndef GOMLX_RUN_CANDIDATES_H
#define GOMLX_RUN_CANDIDATES_H
#include "gomlx.h"
#include "host.h"

typedef struct {
    float *logits;
    int32_t *ids, *counts;
} candidate_columns;

typedef struct {
    int64_t vocab, n, blocks;
    gm_candidates in;            /* those that are left: the logits given, or own */
    candidate_columns own, part; /* part: for the search for a cut */
    gm_draw_measured *measured;  /* [blocks], of the last pass */
    gm_draw_chosen *chosen;
    float *runs;
    void *memory; /* of all of these */
    float best;   /* where is_measured */
    bool is_measured, locked;
    int threads;
} gm_candidate_list;

gm_status candidates_reserve(gm_candidate_list *c, int64_t vocab); /* memory, where there is none yet */
void candidates_free(gm_candidate_list *c);

/* All ids, with these logits. Between the two the team works for this thread, where nobody else has it. */
void candidates_begin(gm_candidate_list *c, const float *logits);
void candidates_end(gm_candidate_list *c);

/* ---- logits ---- */
/* Right after candidates_begin: those whose bits are set are the candidates, the others' logits are not read. How many
 * there are, which may be 0: then there is nothing more to call. */
int64_t candidates_allow(gm_candidate_list *c, const uint32_t *allowed);
void candidates_divide(gm_candidate_list *c, float temperature);
/* To change single logits: afterwards candidates_at gives a candidate's own, or NULL where it was dropped, and
 * candidates_changed says that some were. */
void candidates_take(gm_candidate_list *c);
float *candidates_at(gm_candidate_list *c, int32_t id);
void candidates_changed(gm_candidate_list *c);

/* ---- what they amount to ---- */
float candidates_best(gm_candidate_list *c);         /* -inf: nothing is left to draw */
int32_t candidates_first_best(gm_candidate_list *c); /* its id; -1: nothing is left to draw */
/* The sum of weights, relative to the best; *surprise, where not NULL: of weight * (logit - best). */
double candidates_weigh(gm_candidate_list *c, double *surprise);
double candidates_deviation(gm_candidate_list *c); /* of the logits, from their mean; not finite where they are not */
/* The first one with which the sum of weights is more than `mass`, else the last that has a weight; after
 * candidates_weigh, which is more than 0. */
int32_t candidates_reach(gm_candidate_list *c, double mass, float *weight);
/* out[vocab]: weights divided by total, 0 of what was dropped. */
void candidates_spread(gm_candidate_list *c, double total, float *out);

/* ---- dropping some, never all ---- */
void candidates_keep_from(gm_candidate_list *c, double least); /* logits from `least` on, if there is one */
/* The first `count` by greatest logit, ties to the lower id; or as few as have `mass` of the sum of all weights, total.
 */
void candidates_keep_count(gm_candidate_list *c, int64_t count);
void candidates_keep_mass(gm_candidate_list *c, double total, double mass);
/* The same by the least |logit - best - centre|. */
void candidates_keep_typical(gm_candidate_list *c, double centre, double total, double mass);
/* All with logits from `least` on but the last of them: the one with the least logit, of such the highest id. */
void candidates_drop_from(gm_candidate_list *c, double least);
#endif
