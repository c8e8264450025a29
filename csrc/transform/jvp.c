/* jvp.c - forward mode. An op's derivative along tangents comes from its vjp: g(u) = vjp(u) is linear in the cotangent
 * u, and the transpose of that map, which is gm_vjp of g, is the jvp. So no op needs a rule of its own. */
#include "base/memory.h"
#include "transform/walk.h"

/* The tangents of a node's outputs, through its vjp, twice. */
static gm_status transposed(gm_scope *s, gm_array *node, gm_array *const *tangents, gm_array **outs) {
    int n_out = array_n_out(node);
    gm_array **duals = memory_array((size_t)n_out, sizeof *duals);
    gm_array **grads = memory_zeroed((size_t)(node->n_in + 1) * sizeof *grads);
    gm_array **outputs = memory_array((size_t)node->n_in, sizeof *outputs);
    gm_array **cotangents = memory_array((size_t)node->n_in, sizeof *cotangents);
    gm_array **traced = memory_array((size_t)node->n_in, sizeof *traced);
    gm_status status = duals && grads && outputs && cotangents && traced ? GM_OK : GM_ENOMEM;
    if (status == GM_OK) {
        gm_trace_enter();
        for (int k = 0; k < n_out; k++) {
            const gm_array *o = array_output(node, k);
            duals[k] = gm_tracer(s, gm_full(s, o->ndim, o->shape, scalar_array(s, 0, GM_FLOAT32), (gm_dtype)o->dtype));
        }
        if (node->op->vjp) {
            node->op->vjp(s, node, node->in, duals, grads);
            status = error_code();
        } else if (node->op->compose) {
            int n = 0;
            gm_array *inner[64], *found[64];
            for (int i = 0; i < node->n_in && i < 64; i++) {
                traced[i] = node->in[i] == GM_NONE ? GM_NONE : gm_tracer(s, node->in[i]);
                if (traced[i] != GM_NONE)
                    inner[n++] = traced[i];
            }
            gm_array *out = node->op->compose(s, traced, node->n_in, node->param);
            status = out ? gm_vjp(s, &out, duals, 1, inner, n, found) : error_code();
            for (int i = 0, k = 0; i < node->n_in && status == GM_OK; i++)
                grads[i] = node->in[i] == GM_NONE ? NULL : found[k++];
        } else {
            status = gm_fail(GM_EVALUE, "%s has no derivative", node->op->name);
        }
        gm_trace_leave();
    }
    int n = 0;
    for (int i = 0; i < node->n_in && status == GM_OK; i++) {
        if (grads[i] && tangents[i]) {
            outputs[n] = grads[i];
            cotangents[n++] = tangents[i];
        }
    }
    if (status == GM_OK)
        status = gm_vjp(s, outputs, cotangents, n, duals, n_out, outs);
    memory_free(duals);
    memory_free(grads);
    memory_free(outputs);
    memory_free(cotangents);
    memory_free(traced);
    return status;
}

static gm_status forward(gm_scope *s, const walk *w, const int64_t *first, gm_array **slots, int64_t at) {
    gm_array *node = w->nodes[at];
    if (node->op == &pick_op) {
        int64_t from = walk_find(w, node->in[0]);
        slots[first[at]] = from < 0 ? NULL : slots[first[from] + pick_index(node)];
        return GM_OK;
    }
    gm_array **tangents = memory_zeroed((size_t)(node->n_in + 1) * sizeof *tangents);
    if (!tangents)
        return GM_ENOMEM;
    bool any = false;
    for (int i = 0; i < node->n_in; i++) {
        int64_t from = node->in[i] == GM_NONE || (i < 32 && node->op->nondiff >> i & 1)
                           ? -1 : walk_find(w, node->in[i]);
        tangents[i] = from >= 0 ? slots[first[from]] : NULL;
        any |= tangents[i] != NULL;
    }
    gm_status status = !any ? GM_OK
                     : node->op->jvp ? node->op->jvp(s, node, node->in, tangents, slots + first[at])
                                     : transposed(s, node, tangents, slots + first[at]);
    memory_free(tangents);
    return status;
}

gm_status gm_jvp(gm_scope *s, gm_array *const *outputs, int n_outputs, gm_array *const *primals,
                 gm_array *const *tangents, int n_primals, gm_array **out_tangents) {
    walk w;
    GM_TRY(walk_make(outputs, n_outputs, primals, n_primals, WALK_GRADIENTS, &w));
    int64_t n, *first = walk_slots(&w, &n);
    gm_status status = first ? GM_OK : GM_ENOMEM;
    gm_array **slots = status == GM_OK ? memory_zeroed((size_t)(n + 1) * sizeof *slots) : NULL;
    if (status == GM_OK && !slots)
        status = GM_ENOMEM;
    for (int p = 0; p < n_primals && status == GM_OK; p++)
        slots[first[walk_find(&w, primals[p])]] = gm_astype(s, tangents[p], (gm_dtype)primals[p]->dtype);
    for (int64_t i = w.n_inputs; i < w.count && status == GM_OK; i++)
        if (w.reached[i])
            status = forward(s, &w, first, slots, i);
    for (int k = 0; k < n_outputs && status == GM_OK; k++) {
        int64_t at = walk_find(&w, outputs[k]);
        out_tangents[k] = at >= 0 ? slots[first[at]] : NULL;
    }
    memory_free(first);
    memory_free(slots);
    walk_free(&w);
    return status;
}
