/* step.h - one forward pass over rows of sequences, recorded as a plan at its first run and replayed after that.
 *  (1) What changes from run to run (tokens, positions, caches) is in the batch's state (ops/layers/batch_state.h),
 * never in the plan: it serves any caches, as long as each sequence has the same number of rows. A plan for too few
 * blocks of keys is recorded again. (2) A run goes in slices and holds the run lock from its first slice to its last,
 * also while the model's matrices are packed before it. */
#ifndef GOMLX_RUN_STEP_H
#define GOMLX_RUN_STEP_H
#include "core/graph.h"
#include "models/adapter.h"

/* Which rows get logits: the last row of each sequence, every row, none. HIDDEN: no logits, but the normed output of
 * the last layer for every row. */
typedef enum { STEP_LAST, STEP_ALL, STEP_NONE, STEP_HIDDEN } step_output;

typedef struct gm_step gm_step;
/* A pass over counts[i] rows of each sequence, with the adapters of its mix (mixes NULL: none have any). taps NULL, or
 * activations that are read and edited: they belong to the caller, outlive the step, and hold what its runs read.
 * prompt: rows have the arithmetic of prompts, which a device has for these; else that of rows that decode. */
typedef struct {
    const int32_t *counts;
    adapter_mix *const *mixes;
    int n_sequences;
    step_output output;
    gm_taps *taps;
    bool prompt;
} step_request;
gm_status step_new(gm_model *m, const step_request *request, gm_step **out);
/* Whether the step is of such a pass, apart from its taps. */
bool step_serves(const gm_step *step, const step_request *request);
int step_sequences(const gm_step *step);
bool step_is_prompt(const gm_step *step);
const adapter_mix *step_mix(const gm_step *step, int sequence); /* NULL: it has none */
void step_free(gm_step *step);                                  /* NULL is fine; abandons a run that is under way */
bool step_is_running(const gm_step *step);
void step_abandon(gm_step *step); /* the rest of a run that is under way is skipped; NULL is fine */
/* The cache of a sequence and the tokens of its rows, from this position on, for which the cache reserves memory. All
 * sequences in turn, from the first, before each run. */
gm_status step_fill(gm_step *step, int sequence, gm_cache *cache, const int32_t *tokens, int64_t position);
/* Where setup_ns, wait_ns and work of the runs from now on are added, or NULL. */
void step_profile(gm_step *step, gm_phase_profile *profile);
/* GM_OK when the run is done, GM_AGAIN when the slice is over. slice_ms <= 0: no slices. After any other status the
 * step is of no more use. */
gm_status step_run(gm_step *step, int slice_ms);
/* What packing the model's matrices took before the last run: 0 but for the model's second pass. */
int64_t step_packing_ns(const gm_step *step);
/* After a run: float32 [rows with logits, vocab] (HIDDEN: [rows, hidden]), and for each row the log of the sum of
 * exponentials and the id of the greatest logit, the first of equals. */
const float *step_logits(const gm_step *step);
const float *step_logsumexp(const gm_step *step);
const uint32_t *step_argmax(const gm_step *step);
#endif
