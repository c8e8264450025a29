/* jvp.c - forward mode. An op's derivative along tangents comes from its vjp: g(u) = vjp(u) is linear in the cotangent
 * u, and the transpose of that map, which is gm_vjp of g, is the jvp. So no op needs a rule of its own. */
#include <string.h>
#include "base/memory.h"
#include "core/device.h"
#include "transform/walk.h"

/* The gradients of a node that has no .vjp, through its composition of traced inputs. */
static gm_status compose_grads(gm_scope *s, gm_array *node, gm_array **traced, gm_array *const *duals,
                               gm_array **grads) {
    gm_array **inner = memory_array((size_t)node->n_in, sizeof *inner);
    gm_array **found = memory_array((size_t)node->n_in, sizeof *found);
    gm_status status = inner && found ? GM_OK : GM_ENOMEM;
    int n = 0;
    for (int i = 0; i < node->n_in && status == GM_OK; i++) {
        const bool moves = node->in[i] != GM_NONE && !op_is_nondiff(node->op, i);
        traced[i] = moves ? gm_tracer(s, node->in[i]) : node->in[i];
        if (moves)
            inner[n++] = traced[i];
    }
    gm_array *out = status == GM_OK ? node->op->compose(s, traced, node->n_in, node->param) : NULL;
    if (status == GM_OK)
        status = out ? gm_vjp(s, &out, duals, 1, inner, n, found) : error_code();
    for (int i = 0, k = 0; i < node->n_in && status == GM_OK; i++)
        grads[i] = node->in[i] == GM_NONE || op_is_nondiff(node->op, i) ? NULL : found[k++];
    memory_free(inner);
    memory_free(found);
    return status;
}

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
            status = compose_grads(s, node, traced, duals, grads);
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

typedef struct {
    walk w;
    int64_t *first;   /* slot of each node's output 0 */
    gm_array **slots; /* tangents; NULL: none */
    uint8_t *still;   /* of nodes without a tangent, the dtype of zeros that they have for one; UNSAID */
} forward;

enum { UNSAID = UINT8_MAX };

/* What a node that does not move passes on: truths of what moves, and truths of those, have zeros in the dtype of what
 * moves. */
static uint8_t still_type(const forward *f, const gm_array *node) {
    bool says = node->op->still && node->op->still(node->param);
    uint8_t type = UNSAID;
    for (int i = 0; i < node->n_in; i++) {
        int64_t from = node->in[i] == GM_NONE ? -1 : walk_find(&f->w, node->in[i]);
        const gm_array *tangent = from >= 0 && says ? f->slots[f->first[from]] : NULL;
        uint8_t one = tangent                                         ? tangent->dtype
                      : from >= 0 && (says || node->dtype == GM_BOOL) ? f->still[from]
                                                                      : UNSAID;
        if (one != UNSAID)
            type = type == UNSAID ? one : (uint8_t)gm_promote((gm_dtype)type, (gm_dtype)one);
    }
    return type;
}

static gm_status move_node(gm_scope *s, const forward *f, int64_t at) {
    gm_array *node = f->w.nodes[at];
    if (node->op == &pick_op) {
        int64_t from = walk_find(&f->w, node->in[0]);
        f->slots[f->first[at]] = from < 0 ? NULL : f->slots[f->first[from] + pick_index(node)];
        return GM_OK;
    }
    gm_array **tangents = memory_zeroed((size_t)(node->n_in + 1) * sizeof *tangents);
    gm_status status = tangents ? GM_OK : GM_ENOMEM;
    bool any = false;
    for (int i = 0; i < node->n_in && status == GM_OK; i++) {
        int64_t from = node->in[i] == GM_NONE ? -1 : walk_find(&f->w, node->in[i]);
        if (from < 0 || !f->w.reached[from])
            continue;
        if (node->op->refuse)
            status = node->op->refuse(node, i, true);
        tangents[i] = op_is_nondiff(node->op, i) ? NULL : f->slots[f->first[from]];
        any |= tangents[i] != NULL;
    }
    if (status == GM_OK && any)
        status = node->op->jvp ? node->op->jvp(s, node, node->in, tangents, f->slots + f->first[at])
                               : transposed(s, node, tangents, f->slots + f->first[at]);
    if (status == GM_OK && !f->slots[f->first[at]])
        f->still[at] = still_type(f, node);
    memory_free(tangents);
    return status;
}

/* What is made for a node is made where it is. */
static gm_status move(gm_scope *s, const forward *f, int64_t at) {
    const int before = array_enter(f->w.nodes[at]);
    const gm_status status = move_node(s, f, at);
    device_enter(before);
    return status;
}

/* The tangent of an output; NULL: zeros of its own dtype. */
static gm_array *tangent_of(gm_scope *s, const forward *f, const gm_array *output) {
    int64_t at = walk_find(&f->w, output);
    if (at < 0 || f->slots[f->first[at]] || f->still[at] == UNSAID)
        return at < 0 ? NULL : f->slots[f->first[at]];
    return gm_full(s, output->ndim, output->shape, scalar_array(s, 0, GM_FLOAT32), (gm_dtype)f->still[at]);
}

gm_status gm_jvp(gm_scope *s, gm_array *const *outputs, int n_outputs, gm_array *const *primals,
                 gm_array *const *tangents, int n_primals, gm_array **out_tangents) {
    forward f = {.first = NULL};
    int64_t n;
    GM_TRY(walk_make(outputs, n_outputs, primals, n_primals, WALK_GRADIENTS, &f.w));
    f.first = walk_slots(&f.w, &n);
    f.slots = f.first ? memory_zeroed((size_t)(n + 1) * sizeof *f.slots) : NULL;
    f.still = f.slots ? memory_array((size_t)f.w.count + 1, sizeof *f.still) : NULL;
    gm_status status = f.still ? GM_OK : GM_ENOMEM;
    if (status == GM_OK)
        memset(f.still, UNSAID, (size_t)f.w.count + 1);
    for (int p = 0; p < n_primals && status == GM_OK; p++)
        f.slots[f.first[walk_find(&f.w, primals[p])]] = gm_astype(s, tangents[p], (gm_dtype)primals[p]->dtype);
    for (int64_t i = f.w.n_inputs; i < f.w.count && status == GM_OK; i++)
        if (f.w.reached[i])
            status = move(s, &f, i);
    for (int k = 0; k < n_outputs && status == GM_OK; k++)
        out_tangents[k] = tangent_of(s, &f, outputs[k]);
    memory_free(f.first);
    memory_free(f.slots);
    memory_free(f.still);
    walk_free(&f.w);
    return status;
}
