/* vmap.c - a traced graph run again over inputs with a batch axis. A node whose inputs have none is run as it is; one
 * with a batched input goes by its op's .vmap, by its composition, or member by member. The batch axis is in front
 * of every intermediate. */
#include <string.h>
#include "base/memory.h"
#include "core/device.h"
#include "transform/walk.h"

typedef struct {
    gm_array *value;
    bool batched;
} lane;

static gm_array *member(gm_scope *s, gm_array *x, int64_t i) {
    int64_t start[GM_MAX_NDIM] = {i}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    for (int d = 0; d < x->ndim; d++) {
        stop[d] = d ? x->shape[d] : i + 1;
        step[d] = 1;
    }
    return gm_reshape(s, gm_slice(s, x, start, stop, step), x->ndim - 1, x->shape + 1);
}

static gm_status rebuild(gm_scope *s, const gm_array *node, gm_array *const *in, gm_array **outs) {
    return array_nodes(s, node->op, in, node->n_in, node->param, node->param_size, array_n_out(node), outs);
}

static gm_array *expanded(gm_scope *s, gm_array *x) {
    int64_t shape[GM_MAX_NDIM + 1] = {1};
    if (!x || x->ndim + 1 > GM_MAX_NDIM)
        return x ? (gm_fail(GM_EVALUE, "vmap: more than %d dimensions", GM_MAX_NDIM), NULL) : NULL;
    memcpy(shape + 1, x->shape, (size_t)x->ndim * sizeof *shape);
    return gm_reshape(s, x, x->ndim + 1, shape);
}

/* One node for each member of the batch, joined. */
static gm_status one_by_one(gm_scope *s, gm_array *node, gm_array *const *in, const bool *batched, gm_array **outs) {
    int n_out = array_n_out(node);
    int64_t batch = batch_size(in, node->n_in, batched);
    gm_array **one = memory_array((size_t)node->n_in + (size_t)n_out, sizeof *one);
    gm_array **rows = memory_array((size_t)batch * (size_t)n_out + 1, sizeof *rows);
    gm_status status = !one || !rows ? GM_ENOMEM
                       : batch > INT32_MAX
                           ? gm_fail(GM_EVALUE, "vmap of %s: a batch of %lld", node->op->name, (long long)batch)
                           : GM_OK;
    for (int64_t b = 0; b < batch && status == GM_OK; b++) {
        for (int i = 0; i < node->n_in; i++)
            one[i] = batched[i] ? member(s, in[i], b) : in[i];
        status = rebuild(s, node, one, one + node->n_in);
        for (int k = 0; k < n_out && status == GM_OK; k++)
            rows[(int64_t)k * batch + b] = expanded(s, one[node->n_in + k]);
    }
    for (int k = 0; k < n_out && status == GM_OK; k++) {
        outs[k] = gm_concatenate(s, rows + (int64_t)k * batch, (int)batch, 0);
        if (!outs[k])
            status = error_code();
    }
    memory_free(one);
    memory_free(rows);
    return status;
}

static gm_status compose_vmap(gm_scope *s, gm_array *node, gm_array *const *in, const bool *batched, gm_array **outs) {
    gm_array **traced = memory_array((size_t)node->n_in, sizeof *traced);
    gm_array **given = memory_array((size_t)node->n_in * 2, sizeof *given);
    bool *flags = memory_zeroed((size_t)node->n_in + 1), out_batched = false;
    gm_status status = traced && given && flags ? GM_OK : GM_ENOMEM;
    if (status == GM_OK) {
        int n = 0;
        gm_trace_enter();
        for (int i = 0; i < node->n_in; i++) {
            gm_array *old = node->in[i];
            traced[i] = old == GM_NONE ? GM_NONE : gm_placeholder(s, (gm_dtype)old->dtype, old->ndim, old->shape);
            if (old != GM_NONE) {
                given[n] = traced[i];
                given[node->n_in + n] = in[i];
                flags[n++] = batched[i];
            }
        }
        gm_array *out = node->op->compose(s, traced, node->n_in, node->param);
        gm_trace_leave();
        status = !out ? error_code()
                      : gm_vmap(s, (gm_arrays){&out, 1}, (gm_arrays){given, n}, given + node->n_in, flags, outs,
                                &out_batched);
        if (status == GM_OK && !out_batched)
            outs[0] = batched_input(s, outs[0], false, batch_size(in, node->n_in, batched));
    }
    memory_free(traced);
    memory_free(given);
    memory_free(flags);
    return status;
}

static gm_status run_node(gm_scope *s, const walk *w, const int64_t *first, lane *lanes, int64_t at) {
    gm_array *node = w->nodes[at];
    if (node->op == &pick_op) {
        int64_t from = walk_find(w, node->in[0]);
        lanes[first[at]] = from < 0 ? (lane){node, false} : lanes[first[from] + pick_index(node)];
        return GM_OK;
    }
    int n_out = array_n_out(node);
    gm_array **in = memory_array((size_t)node->n_in + (size_t)n_out, sizeof *in), **outs = in + node->n_in;
    bool *batched = memory_zeroed((size_t)node->n_in + 1), any = false, changed = false;
    gm_status status = in && batched ? GM_OK : GM_ENOMEM;
    for (int i = 0; i < node->n_in && status == GM_OK; i++) {
        int64_t from = node->in[i] == GM_NONE ? -1 : walk_find(w, node->in[i]);
        in[i] = from < 0 ? node->in[i] : lanes[first[from]].value;
        batched[i] = from >= 0 && lanes[first[from]].batched;
        any |= batched[i];
        changed |= in[i] != node->in[i];
    }
    if (status == GM_OK) {
        if (!changed)
            for (int k = 0; k < n_out; k++)
                outs[k] = array_pick(s, node, k);
        else if (!any)
            status = rebuild(s, node, in, outs);
        else
            status = node->op->vmap      ? node->op->vmap(s, node, in, batched, outs)
                     : node->op->compose ? compose_vmap(s, node, in, batched, outs)
                                         : GM_AGAIN;
        if (status == GM_AGAIN)
            status = one_by_one(s, node, in, batched, outs);
    }
    for (int k = 0; k < n_out && status == GM_OK; k++) {
        if (!outs[k])
            status = error_code();
        lanes[first[at] + k] = (lane){outs[k], any};
    }
    memory_free(in);
    memory_free(batched);
    return status;
}

/* Where the node was. */
static gm_status run_again(gm_scope *s, const walk *w, const int64_t *first, lane *lanes, int64_t at) {
    const int before = array_enter(w->nodes[at]);
    const gm_status status = run_node(s, w, first, lanes, at);
    device_enter(before);
    return status;
}

gm_status gm_vmap(gm_scope *s, gm_arrays outputs, gm_arrays inputs, gm_array *const *values, const bool *batched,
                  gm_array **outs, bool *out_batched) {
    walk w;
    GM_TRY(walk_make(outputs.arrays, outputs.count, inputs.arrays, inputs.count, WALK_VALUES, &w));
    int64_t n, *first = walk_slots(&w, &n);
    gm_status status = first ? GM_OK : GM_ENOMEM;
    lane *lanes = status == GM_OK ? memory_zeroed((size_t)(n + 1) * sizeof *lanes) : NULL;
    if (status == GM_OK && !lanes)
        status = GM_ENOMEM;
    for (int i = 0; i < inputs.count && status == GM_OK; i++)
        lanes[first[walk_find(&w, inputs.arrays[i])]] = (lane){values[i], batched[i]};
    for (int64_t i = w.n_inputs; i < w.count && status == GM_OK; i++)
        status = run_again(s, &w, first, lanes, i);
    for (int k = 0; k < outputs.count && status == GM_OK; k++) {
        int64_t at = walk_find(&w, outputs.arrays[k]);
        outs[k] = at < 0 ? outputs.arrays[k] : lanes[first[at]].value;
        out_batched[k] = at >= 0 && lanes[first[at]].batched;
    }
    memory_free(first);
    memory_free(lanes);
    walk_free(&w);
    return status;
}
