/* inspect.c - activations of a prompt: one forward pass over the whole prompt, with taps. */
#include <string.h>
#include "base/memory.h"
#include "run/step.h"

struct gm_inspection {
    gm_model *model;
    int32_t *ids;
    int64_t n;
    gm_cache *cache;
    gm_taps *taps;
    adapter_mix *mix;
    gm_step *step;
};

/* One pass holds all results at once: an error is better than swapping. */
static gm_status check_size(const gm_model *m, int64_t n, const int64_t *wanted, size_t n_wanted, bool *logits) {
    const double limit = (double)gm_memory_limit();
    double bytes = 0;
    gm_activation_info info;
    *logits = false;
    for (size_t i = 0; i < n_wanted; i++) {
        if (!gm_model_activation(m, wanted[i], n, &info))
            continue; /* taps_new refuses it */
        const gm_tap_point point = tap_point(wanted[i]);
        *logits |= point == TAP_LOGITS || point == TAP_FINAL_NORM;
        double floats = (double)info.shape[0] * (double)info.shape[1];
        bytes += floats * (double)(info.ndim == 3 ? info.shape[2] : 1) * sizeof(float);
    }
    if (*logits)
        bytes += (double)n * (double)m->config.vocab * sizeof(float);
    if (bytes + (double)gm_active_memory() > limit)
        return gm_fail(GM_ENOMEM,
                       "inspect: the activations of %lld tokens take %.1f GB in one pass, with what is in "
                       "use more than the memory limit of %.1f GB; ask for fewer of them, or for a shorter prompt",
                       (long long)n, bytes * 1e-9, limit * 1e-9);
    return GM_OK;
}

static gm_status begin(gm_inspection *in, const gm_inspect_request *r) {
    const gm_model *m = in->model;
    const int32_t count = (int32_t)in->n;
    bool logits;
    GM_TRY(check_size(m, in->n, r->activations, r->n_activations, &logits));
    GM_TRY(taps_new(m, r->activations, r->n_activations, r->edits, r->n_edits, &in->taps));
    if (!(in->ids = memory_array((size_t)in->n, sizeof *in->ids)))
        return error_code();
    memcpy(in->ids, r->ids, (size_t)in->n * sizeof *in->ids);
    GM_TRY(cache_new(&m->layout, &in->cache));
    const step_request request = {&count, &in->mix, 1, logits ? STEP_ALL : STEP_NONE, in->taps, true};
    GM_TRY(adapter_mix_new(in->model, r->adapters, r->n_adapters, &in->mix));
    GM_TRY(step_new(in->model, &request, &in->step));
    return step_fill(in->step, 0, in->cache, in->ids, 0, false);
}

gm_status gm_inspect_begin(gm_model *m, const gm_inspect_request *r, gm_inspection **out) {
    *out = NULL;
    const int64_t context = m->config.context;
    const size_t n = r->n_ids;
    if (n < 1)
        return gm_fail(GM_EVALUE, "inspect: the prompt has 0 tokens, expected 1 to the context of %lld",
                       (long long)context);
    if (n > (size_t)context)
        return gm_fail_context((int64_t)n, context,
                               "inspect: the prompt has %zu tokens, expected 1 to the context of %lld", n,
                               (long long)context);
    gm_inspection *in = memory_zeroed(sizeof *in);
    if (!in)
        return GM_ENOMEM;
    in->n = (int64_t)n;
    in->model = r->exact ? model_exact(m) : gm_model_retain(m);
    gm_status status = !in->model ? error_code() : begin(in, r);
    if (status != GM_OK) {
        gm_inspect_free(in);
        return status;
    }
    *out = in;
    return GM_OK;
}

gm_status gm_inspect_step(gm_inspection *in, int slice_ms) { return step_run(in->step, slice_ms); }

gm_array *gm_inspect_result(gm_scope *s, const gm_inspection *in, size_t i) {
    const gm_model *m = in->model;
    gm_activation_info info;
    if (i >= (size_t)in->taps->n_reads || !gm_model_activation(m, in->taps->reads[i], in->n, &info))
        return gm_fail(GM_EINDEX, "inspect: result %zu does not exist", i), NULL;
    if (tap_point(in->taps->reads[i]) == TAP_STATE) {
        gm_array *state = array_new(s, info.dtype, info.ndim, info.shape);
        const int slot = m->config.layers[tap_layer(in->taps->reads[i])].slot;
        return state && cache_read_state(in->cache, slot, array_ptr(state)) == GM_OK ? state : NULL;
    }
    const gm_array *read = in->taps->read[i];
    if (!read)
        return gm_fail(GM_ESTATE, "inspect: %s was not computed", info.name), NULL;
    return taps_value(s, read, &info);
}

void gm_inspect_free(gm_inspection *in) {
    if (!in)
        return;
    step_free(in->step);
    adapter_mix_release(in->mix);
    taps_free(in->taps);
    cache_free(in->cache);
    memory_free(in->ids);
    gm_model_release(in->model);
    memory_free(in);
}
