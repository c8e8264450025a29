/* step.h - one forward pass over rows of sequences, recorded as a plan at its first run and replayed after that.
 *  (1) What changes from run to run (tokens, positions, caches) is in the batch's state (ops/layers/batch_state.h),
 * never in the plan: it serves any caches, as long as each sequence has the same number of rows. A plan for too few
 * blocks of keys is recorded again. (2) A run goes in slices and holds the run lock from its first slice to its last,
 * also while the model's matrices are packed before it.
 *  (3) On a device the next run may begin behind one that is under way, with the ids that this one finds: of sequences
 * of one row each, whose caches have room. Nobody has to want it: what it writes is beyond the ends of the caches. */
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
/* The cache of a sequence and the tokens of its rows, from this position on, for which the cache reserves memory;
 * reads: step_logits has logits of its rows afterwards. All sequences in turn, from the first, before each run that was
 * not begun already. */
gm_status step_fill(gm_step *step, int sequence, gm_cache *cache, const int32_t *tokens, int64_t position, bool reads);
/* Before a run: whether another one may begin behind it, with the ids that it finds, if the step can do that. */
void step_lead(gm_step *step, bool leads);
bool step_is_ahead(const gm_step *step); /* a run is begun behind the last one; NULL: none is */
/* Whether in that run the sequence, which is the one that it was, has this token at this position, in a cache that is
 * as it was. Then, of all sequences in turn, step_take in place of step_fill: the next run is that one. */
bool step_leads_to(const gm_step *step, int sequence, const gm_cache *cache, int32_t token, int64_t position);
gm_status step_take(gm_step *step, gm_cache *cache, int64_t position);
/* Where setup_ns, wait_ns and work of the runs from now on are added, or NULL. */
void step_profile(gm_step *step, gm_phase_profile *profile);
/* GM_OK when the run is done, GM_AGAIN when the slice is over. slice_ms <= 0: no slices. After any other status the
 * step is of no more use. */
gm_status step_run(gm_step *step, int slice_ms);
/* What packing the model's matrices took before the last run: 0 but for the model's second pass. */
int64_t step_packing_ns(const gm_step *step);
/* After a run: float32 [rows with logits, vocab] (HIDDEN: [rows, hidden]), of which those are there that the host
 * reads, and what a row of logits comes to. Of a row with NaN the processor says that NaN is the greatest, a device the
 * greatest number, or the id -1 where there is none. */
const float *step_logits(const gm_step *step);
bool step_has_logits(const gm_step *step, int64_t row);
gm_row_best step_best(const gm_step *step, int64_t row);
#endif
