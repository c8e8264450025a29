/* step.c - see step.h. */
#include "run/step.h"
#include <string.h>
#include "base/memory.h"
#include "core/device.h"
#include "ops/ops.h"

struct gm_step {
    gm_model *model;
    gm_batch_state *batch;
    gm_batch_state *first; /* the same rows for layers on the processor, before those on a device; else NULL */
    adapter_mix **mixes;   /* of each sequence; NULL: none has adapters */
    step_output output;
    bool prompt;                    /* its rows are of prompts, and the model is on a device */
    gm_array *logits, *sums, *best; /* of a device no sums: the batch's state has all that rows come to */
    const device *device;
    float *here;               /* of a device, where its logits are read: pinned, or the copies would be slow */
    bool *reads;               /* [sequences]: the host reads the logits of its rows */
    bool copies;               /* the current run has copies of some */
    int64_t followed;          /* runs that were begun behind others, since the state of the batch was sent */
    bool takes, leads;         /* the next run is the one that was begun so; another may be begun behind the next one */
    gm_taps *taps;             /* or NULL */
    gm_phase_profile *profile; /* of the current run, or NULL */
    gm_plan *plan;
    bool running, packing; /* a run is under way; the model's matrices are being packed before it */
    bool asked;            /* of the run, on a device: the copies of its results are under way */
    bool in_rows;          /* the plan reads the matrices as they were before packing */
    int64_t packing_ns;    /* that this took */
};

/* Rows of neighbours with the same mix are one run. `runs` has capacity for all sequences. */
static size_t find_runs(const gm_step *st, adapter_run *runs) {
    size_t n = 0;
    int64_t row = 0;
    for (int i = 0; i < st->batch->shape.sequences; i++) {
        const int64_t rows = batch_state_count(st->batch, i);
        adapter_mix *mix = st->mixes[i];
        if (mix && n && runs[n - 1].first + runs[n - 1].rows == row && adapter_mix_same(runs[n - 1].mix, mix))
            runs[n - 1].rows += rows;
        else if (mix)
            runs[n++] = (adapter_run){mix, row, rows};
        row += rows;
    }
    return n;
}

/* The forward pass with the adapters of its rows. */
static gm_array *forward(gm_scope *s, gm_step *st, const gm_batch *batch, bool hidden) {
    const gm_architecture *arch = st->model->arch;
    adapted_model adapted;
    gm_array *x = NULL;
    if (!st->mixes)
        return arch->forward(s, st->model, batch, hidden);
    adapter_run *runs = memory_array((size_t)st->batch->shape.sequences, sizeof *runs);
    if (runs && adapted_open(st->model, runs, find_runs(st, runs), &adapted) == GM_OK) {
        x = arch->forward(s, adapted.model, batch, hidden);
        adapted_close(&adapted);
    }
    memory_free(runs);
    return x;
}

/* The rows as those layers find them whose caches this state lists; there: as the later ones do, elsewhere. */
static gm_batch rows_of(const gm_step *st, const gm_batch_state *state, const gm_batch *there) {
    const bool some = st->output == STEP_LAST && !batch_state_has_single_rows(state);
    return (gm_batch){.state = state,
                      .tokens = state->tokens,
                      .positions = state->positions,
                      .logit_rows = some ? state->last : NULL,
                      .taps = st->taps,
                      .there = there};
}

static gm_status build(gm_step *st) {
    gm_scope *s = gm_scope_open();
    if (!s)
        return GM_ENOMEM;
    scope_set_prompt(s, st->prompt && st->model->rounds);
    gm_array *roots[3] = {NULL};
    size_t n_roots = 1;
    const gm_model *m = st->model;
    const gm_batch batch = rows_of(st, st->batch, NULL);
    const gm_batch first = st->first ? rows_of(st, st->first, &batch) : batch;
    const bool logits = st->output == STEP_LAST || st->output == STEP_ALL;
    roots[0] = forward(s, st, &first, !logits);
    if (st->output == STEP_HIDDEN)
        roots[0] = gm_rms_norm(s, roots[0], m->norm, (float)m->config.eps);
    gm_retain(roots[0]);
    if (logits && m->device) {
        const bool moves = st->output == STEP_LAST && batch_state_has_single_rows(st->batch);
        roots[n_roots++] = gm_retain(gm_best_rows(s, roots[0], st->batch, moves));
    } else if (logits) {
        roots[n_roots++] = gm_retain(gm_argmax(s, roots[0], -1, false, false));
        roots[n_roots++] = gm_retain(gm_logsumexp(s, roots[0], 1, (int[]){-1}, false));
    }
    for (size_t i = 1; i < n_roots; i++)
        if (roots[i])
            roots[i]->work = GM_WORK_SAMPLING;
    gm_scope_close(s); /* each temporary now dies at its last reader */
    gm_status status = GM_OK;
    for (size_t i = 0; i < n_roots; i++)
        if (!roots[i])
            status = error_code();
    st->logits = roots[0];
    st->best = roots[1];
    st->sums = roots[2];
    return status;
}

/* Keeps the mixes of the sequences, where some have one. */
static gm_status keep_mixes(gm_step *st, const step_request *r) {
    bool any = false;
    for (int i = 0; r->mixes && i < r->n_sequences; i++)
        any |= r->mixes[i] != NULL;
    if (!any)
        return GM_OK;
    st->mixes = memory_array((size_t)r->n_sequences, sizeof *st->mixes);
    if (!st->mixes)
        return error_code();
    for (int i = 0; i < r->n_sequences; i++)
        st->mixes[i] = adapter_mix_retain(r->mixes[i]);
    return GM_OK;
}

gm_status step_new(gm_model *m, const step_request *r, gm_step **out) {
    *out = NULL;
    if (r->n_sequences < 1 || r->n_sequences > GM_MAX_BATCH)
        return gm_fail(GM_EVALUE, "a forward pass of %d sequences, expected 1 to %d", r->n_sequences, GM_MAX_BATCH);
    gm_step *st = memory_zeroed(sizeof *st);
    if (!st)
        return GM_ENOMEM;
    st->model = m;
    st->device = device_get(m->device);
    st->output = r->output;
    st->taps = r->taps;
    st->prompt = r->prompt && m->device;
    st->reads = memory_zeroed((size_t)r->n_sequences * sizeof *st->reads);
    gm_status status = st->device && st->reads ? GM_OK : error_code();
    if (status == GM_OK)
        status = batch_state_new(r->counts, r->n_sequences, st->prompt, m->layout.n_slots, m->layout.kv_type,
                                 &st->batch);
    if (status == GM_OK)
        status = batch_state_place(st->batch, m->device);
    if (status == GM_OK && model_is_shared(m))
        status = batch_state_new(r->counts, r->n_sequences, st->prompt, m->layout.n_slots, m->layout.kv_type,
                                 &st->first);
    if (status == GM_OK)
        status = keep_mixes(st, r);
    if (status != GM_OK) {
        step_free(st);
        return status;
    }
    *out = st;
    return GM_OK;
}

int step_sequences(const gm_step *st) { return st->batch->shape.sequences; }
bool step_is_prompt(const gm_step *st) { return st->prompt; }
const adapter_mix *step_mix(const gm_step *st, int sequence) { return st->mixes ? st->mixes[sequence] : NULL; }

bool step_serves(const gm_step *st, const step_request *r) {
    bool same = st->batch->shape.sequences == r->n_sequences && st->output == r->output &&
                st->prompt == (r->prompt && st->model->device);
    for (int i = 0; same && i < r->n_sequences; i++)
        same = batch_state_count(st->batch, i) == r->counts[i] &&
               adapter_mix_same(step_mix(st, i), r->mixes ? r->mixes[i] : NULL);
    return same;
}

static void release_roots(gm_step *st) {
    if (step_is_ahead(st)) /* what it reads, and where it writes, is there until it ends */
        queue_give_up(plan_queue(st->plan));
    gm_release(st->logits);
    gm_release(st->sums);
    gm_release(st->best);
    st->logits = st->sums = st->best = NULL;
    if (st->here)
        device_unpin(st->device, st->here);
    st->here = NULL;
    if (st->taps)
        taps_release(st->taps);
    plan_free(st->plan);
    st->plan = NULL;
}

static gm_status capture(gm_step *st) {
    gm_array *own[3] = {st->logits, st->best, st->sums};
    size_t n = st->sums ? 3 : st->best ? 2 : 1;
    if (!st->taps || st->taps->n_reads == 0)
        return plan_capture(own, n, &st->plan);
    gm_array **roots = memory_array(n + (size_t)st->taps->n_reads, sizeof *roots);
    if (!roots)
        return error_code();
    memcpy(roots, own, n * sizeof *own);
    for (int i = 0; i < st->taps->n_reads; i++)
        if (st->taps->read[i]) /* not a state, nor what comes after a pass that only fills caches */
            roots[n++] = st->taps->read[i];
    gm_status status = plan_capture(roots, n, &st->plan);
    memory_free(roots);
    return status;
}

/* Whether the plan serves the caches and the model as they are now. Only passes of one row for each sequence depend on
 * how many blocks of keys there are. */
static bool plan_fits(const gm_step *st) {
    const gm_batch_state *b = st->batch;
    return st->plan && st->in_rows == model_in_rows(st->model) &&
           (!batch_state_has_single_rows(b) || *b->view.n_blocks <= b->max_blocks);
}

/* Where the host reads logits, or hidden rows, where it reads any. */
static gm_status place_logits(gm_step *st) {
    bool some = st->output == STEP_HIDDEN;
    for (int i = 0; i < st->batch->shape.sequences; i++)
        some |= st->reads[i];
    st->copies = some && st->output != STEP_NONE && st->model->device;
    if (!st->copies || st->here)
        return GM_OK;
    st->here = device_pinned(st->device, (size_t)st->logits->size * sizeof *st->here);
    return st->here ? GM_OK : error_code();
}

/* Rows of the logits, to the host. */
static gm_status copy_rows(const gm_step *st, int64_t first, int64_t rows) {
    const int64_t width = st->logits->shape[1];
    return device_copy(st->model->device, st->here + first * width, (float *)array_ptr(st->logits) + first * width,
                       (size_t)(rows * width) * sizeof *st->here);
}

static gm_status copy_logits(const gm_step *st) {
    const int n = st->batch->shape.sequences;
    if (st->output != STEP_LAST)
        return copy_rows(st, 0, st->logits->shape[0]);
    for (int i = 0, rows; i < n; i += rows) {
        for (rows = 1; i + rows < n && st->reads[i + rows] == st->reads[i]; rows++)
            continue;
        if (st->reads[i])
            GM_TRY(copy_rows(st, i, rows));
    }
    return GM_OK;
}

/* On a device the copies of the results follow the run at once, so that nothing waits for the host between them; or the
 * next run does. */
static gm_status ask_results(gm_step *st, int64_t deadline_ns) {
    if (!st->model->device || st->asked)
        return GM_OK;
    GM_TRY(plan_issue(st->plan, deadline_ns));
    if (st->copies) {
        GM_TRY(copy_logits(st));
        GM_TRY(queue_include(plan_queue(st->plan)));
    } else if (st->leads) {
        GM_TRY(queue_follow(plan_queue(st->plan)));
    }
    st->asked = true;
    return GM_OK;
}

static gm_status make_plan(gm_step *st) {
    const int64_t blocks = *st->batch->view.n_blocks;
    release_roots(st);
    if (blocks > st->batch->max_blocks)
        st->batch->max_blocks = blocks + blocks / 2 + 2;
    if (st->first)
        st->first->max_blocks = st->batch->max_blocks;
    const int before = device_enter(st->model->first_device);
    gm_status status = build(st);
    device_enter(before);
    if (status == GM_OK)
        status = capture(st);
    if (status != GM_OK) {
        release_roots(st);
        return status;
    }
    st->in_rows = model_in_rows(st->model);
    if (batch_state_has_single_rows(st->batch))
        queue_repeats(plan_queue(st->plan));
    return GM_OK;
}

static gm_status start_run(gm_step *st) {
    if (!plan_fits(st))
        GM_TRY(make_plan(st));
    GM_TRY(place_logits(st));
    GM_TRY(model_begin_pass(st->model));
    GM_TRY(batch_state_send(st->batch));
    plan_begin(st->plan, st->model->threads, st->profile);
    st->followed = 0;
    st->running = true;
    st->asked = false;
    return GM_OK;
}

/* ---- running ahead ---- */
bool step_is_ahead(const gm_step *st) { return st && st->plan && queue_is_followed(plan_queue(st->plan)); }

/* The position of a sequence's row in the last run, and where what it came to is. */
static int64_t position_now(const gm_step *st, int64_t row) { return st->batch->view.positions[row] + st->followed; }

void step_lead(gm_step *st, bool leads) {
    const gm_batch_state *b = st->batch;
    st->leads = leads && batch_state_has_single_rows(b) && !st->first && !st->profile && !st->taps;
    for (int i = 0; i < b->shape.sequences && st->leads; i++) /* blocks of keys that the state's tables have not */
        st->leads = (position_now(st, i) + st->takes + 1) / GM_KV_BLOCK < *b->view.n_blocks;
}

bool step_leads_to(const gm_step *st, int sequence, const gm_cache *cache, int32_t token, int64_t position) {
    return step_is_ahead(st) && position_now(st, sequence) + 1 == position && step_best(st, sequence).id == token &&
           cache_is_ready(cache, position, position + 1);
}

gm_status step_take(gm_step *st, gm_cache *cache, int64_t position) {
    st->takes = true;
    return cache_reserve(cache, position, position + 1);
}

static void take_run(gm_step *st) {
    queue_take_following(plan_queue(st->plan));
    st->followed++;
    st->takes = false;
    st->running = true;
    st->asked = false;
}

static void end_run(gm_step *st, bool failed) {
    plan_end(st->plan, failed);
    run_unlock();
    st->running = false;
}

bool step_is_running(const gm_step *st) { return st && (st->running || st->packing); }

void step_abandon(gm_step *st) {
    if (!step_is_running(st))
        return;
    if (st->packing) {
        model_cancel_packing(st->model);
        run_unlock();
        st->packing = false;
        return;
    }
    plan_give_up(st->plan);
    run_unlock();
    st->running = false;
}

void step_free(gm_step *st) {
    if (!st)
        return;
    step_abandon(st);
    release_roots(st);
    for (int i = 0; st->mixes && i < st->batch->shape.sequences; i++)
        adapter_mix_release(st->mixes[i]);
    memory_free(st->mixes);
    memory_free(st->reads);
    batch_state_free(st->batch);
    batch_state_free(st->first);
    memory_free(st);
}

gm_status step_fill(gm_step *st, int sequence, gm_cache *cache, const int32_t *tokens, int64_t position, bool reads) {
    const int32_t count = batch_state_count(st->batch, sequence);
    for (int32_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= st->model->config.vocab)
            return gm_fail(GM_EVALUE, "token id %d is outside the vocabulary of %lld", tokens[i],
                           (long long)st->model->config.vocab);
    GM_TRY(cache_reserve(cache, position, position + count));
    st->takes = st->leads = false;
    st->reads[sequence] = reads;
    batch_state_set_rows(st->batch, sequence, tokens, position);
    if (st->first)
        batch_state_set_rows(st->first, sequence, tokens, position);
    for (int i = 0; i < st->model->layout.n_slots; i++) {
        gm_cache_address arrays[2];
        cache_addresses(cache, i, arrays);
        if (st->model->layout.slots[i].device)
            GM_TRY(batch_state_set_blocks(st->batch, sequence, i, arrays, cache_blocks(cache, i)));
        else
            batch_state_set_cache(st->first ? st->first : st->batch, sequence, i, arrays);
    }
    return GM_OK;
}

void step_profile(gm_step *st, gm_phase_profile *profile) { st->profile = profile; }

int64_t step_packing_ns(const gm_step *st) { return st->packing_ns; }

/* A slice of the packing that comes before the run. With any status but GM_AGAIN it is over. */
static gm_status pack(gm_step *st, int slice_ms) {
    const int64_t began = clock_ns();
    gm_status status = model_pack(st->model, slice_ms > 0 ? began + (int64_t)slice_ms * 1000000 : 0, st->packing);
    const int64_t took = clock_ns() - began;
    st->packing = status == GM_AGAIN;
    st->packing_ns += took;
    if (st->profile)
        st->profile->setup_ns += took;
    return status;
}

gm_status step_run(gm_step *st, int slice_ms) {
    gm_status status;
    if (!st->running) {
        if (!st->packing)
            st->packing_ns = 0;
        int64_t asked = st->profile ? clock_ns() : 0;
        status = st->packing ? GM_OK : run_lock(slice_ms > 0 ? slice_ms : -1);
        int64_t started = st->profile ? clock_ns() : 0;
        if (st->profile)
            st->profile->wait_ns += started - asked;
        GM_TRY(status);
        if (st->packing || model_wants_packing(st->model))
            status = pack(st, slice_ms);
        if (status == GM_AGAIN)
            return GM_AGAIN;
        started = st->profile ? clock_ns() : 0;
        if (status == GM_OK && st->takes)
            take_run(st);
        else if (status == GM_OK)
            status = start_run(st);
        if (st->profile)
            st->profile->setup_ns += clock_ns() - started;
        if (status != GM_OK) {
            run_unlock();
            return status;
        }
    }
    const int64_t deadline = slice_ms > 0 ? clock_ns() + (int64_t)slice_ms * 1000000 : 0;
    status = ask_results(st, deadline);
    if (status == GM_OK)
        status = plan_go_on(st->plan, deadline);
    if (status != GM_AGAIN)
        end_run(st, status != GM_OK);
    return status;
}

const float *step_logits(const gm_step *st) { return st->model->device ? st->here : array_ptr(st->logits); }

bool step_has_logits(const gm_step *st, int64_t row) {
    return !st->model->device || (st->copies && (st->output != STEP_LAST || st->reads[row]));
}

gm_row_best step_best(const gm_step *st, int64_t row) {
    const gm_batch_state *b = st->batch;
    if (!st->model->device) {
        const uint32_t id = ((const uint32_t *)array_ptr(st->best))[row];
        const float *logits = (const float *)array_ptr(st->logits) + row * st->logits->shape[1];
        return (gm_row_best){(int32_t)id, logits[id], ((const float *)array_ptr(st->sums))[row]};
    }
    const bool moves = st->output == STEP_LAST && batch_state_has_single_rows(b);
    return b->best[moves ? (position_now(st, row) & 1) * b->shape.rows + row : row];
}
