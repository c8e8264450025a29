/* grad.c - reverse mode: cotangents carried from outputs to traced inputs, each step as ops.
 * Nodes of recompute_op cut what is differentiated into segments. What lies in a segment is not kept from forwards to
 * backwards: when a cotangent arrives there, the segment is made once more from the value at its beginning. Of a
 * segment that is RECOMPUTE_CHEAP only what ops say is: rules read these in place of the nodes, which are kept
 * otherwise. */
#include "base/memory.h"
#include "core/device.h"
#include "transform/walk.h"

/* The gradient of an op that has no .vjp: that of its composition. */
static gm_status compose_vjp(gm_scope *s, gm_array *node, gm_array *const *in, gm_array *cotangent, gm_array **grads) {
    gm_array **traced = memory_array((size_t)node->n_in, sizeof *traced);
    gm_array **inner = memory_array((size_t)node->n_in, sizeof *inner);
    gm_status status = traced && inner ? GM_OK : GM_ENOMEM;
    gm_array *out = NULL;
    if (status == GM_OK) {
        int n = 0;
        gm_trace_enter();
        for (int i = 0; i < node->n_in; i++) {
            bool moves = in[i] != GM_NONE && !op_is_nondiff(node->op, i);
            traced[i] = moves ? gm_tracer(s, in[i]) : in[i];
            if (moves)
                inner[n++] = traced[i];
        }
        out = node->op->compose(s, traced, node->n_in, node->param);
        gm_trace_leave();
        gm_array **found = memory_array((size_t)n + 1, sizeof *found);
        status = !out ? error_code() : !found ? GM_ENOMEM : gm_vjp(s, &out, &cotangent, 1, inner, n, found);
        for (int i = 0, k = 0; i < node->n_in && status == GM_OK; i++)
            grads[i] = in[i] == GM_NONE || op_is_nondiff(node->op, i) ? NULL : found[k++];
        memory_free(found);
    }
    memory_free(traced);
    memory_free(inner);
    return status;
}

typedef struct {
    walk w;
    int64_t *first;   /* slot of each node's output 0 */
    gm_array **slots; /* cotangents; NULL: none so far */
    /* Of each node, NULL: there is but one; 0: what is in none; those that are RECOMPUTE_CHEAP have odd numbers. */
    int32_t *segment;
    gm_array **again; /* nodes of segments that were made once more */
    bool *begun;      /* of segments: that they were looked through for such nodes */
} reverse;

static gm_status accumulate(gm_scope *s, gm_array **slot, gm_array *cotangent) {
    *slot = *slot ? gm_add(s, *slot, cotangent) : cotangent;
    return *slot ? GM_OK : error_code();
}

/* The index in the walk of an input that the gradient depends on, or -1. */
static int64_t reached_input(const reverse *r, const gm_array *node, int i) {
    int64_t from = node->in[i] == GM_NONE ? -1 : walk_find(&r->w, node->in[i]);
    return from >= 0 && r->w.reached[from] ? from : -1;
}

/* ---- segments ---- */
/* A node is in the latest segment that one of its inputs is in; each node of recompute_op begins one, or ends all. */
static gm_status find_segments(reverse *r) {
    int32_t n = 0;
    for (int64_t i = 0; i < r->w.count; i++)
        n += r->w.nodes[i]->op == &recompute_op;
    if (!n)
        return GM_OK;
    r->begun = memory_zeroed((size_t)n * 2 + 2);
    r->segment = memory_zeroed((size_t)r->w.count * sizeof *r->segment);
    r->again = memory_zeroed((size_t)r->w.count * sizeof *r->again);
    if (!r->segment || !r->again || !r->begun)
        return GM_ENOMEM;
    n = 0;
    for (int64_t i = r->w.n_inputs; i < r->w.count; i++) {
        const gm_array *node = r->w.nodes[i];
        for (int k = 0; k < node->n_in; k++) {
            const int64_t from = node->in[k] == GM_NONE ? -1 : walk_find(&r->w, node->in[k]);
            if (from >= 0 && r->segment[from] > r->segment[i])
                r->segment[i] = r->segment[from];
        }
        if (node->op != &recompute_op)
            continue;
        const int what = recompute_what(node);
        r->segment[i] = what == RECOMPUTE_NOTHING ? 0 : ++n * 2 + (what == RECOMPUTE_CHEAP);
    }
    return GM_OK;
}

static bool is_cheap(int32_t segment) { return segment & 1; }

/* Input k of a node, made once more where that is in the node's segment and was; else NULL. */
static gm_array *again_of(const reverse *r, int32_t segment, const gm_array *node, int k) {
    const int64_t from = node->in[k] == GM_NONE ? -1 : walk_find(&r->w, node->in[k]);
    return from >= 0 && r->segment[from] == segment ? r->again[from] : NULL;
}

/* A node of op in the place of node i, over inputs of which those in its segment were made once more. */
static gm_array *make_again(gm_scope *s, reverse *r, int64_t i, const gm_op *op, gm_array *cotangent) {
    gm_array *node = r->w.nodes[i], *after, *made = NULL;
    if (node->op == &recompute_op) /* not before its cotangent is there */
        return gm_depends(s, (gm_array *[]){node, cotangent}, 2, 1, &after);
    const int n_out = op == node->op ? array_n_out(node) : op->n_out;
    gm_array **in = memory_array((size_t)(node->n_in + n_out) + 1, sizeof *in), **outs = in + node->n_in;
    for (int k = 0; in && k < node->n_in; k++) {
        gm_array *again = again_of(r, r->segment[i], node, k);
        in[k] = again ? again : node->in[k];
    }
    if (in && is_cheap(r->segment[i]) && !again_of(r, r->segment[i], node, 0))
        in[0] = gm_depends(s, (gm_array *[]){in[0], cotangent}, 2, 1, &after);
    if (in && node->op == &pick_op)
        made = array_pick(s, in[0], pick_index(node));
    else if (in && array_nodes(s, op, in, node->n_in, node->param, node->param_size, n_out, outs) == GM_OK)
        made = outs[0];
    memory_free(in);
    return made;
}

/* The node as it is for its rule: made once more with all of its segment before it where it is in one. Where it was not
 * made before, nothing but its rule reads it. */
static gm_array *recomputed(gm_scope *s, reverse *r, int64_t at, gm_array *cotangent) {
    if (!r->segment || !r->segment[at] || is_cheap(r->segment[at]))
        return r->w.nodes[at];
    for (int64_t i = r->w.n_inputs; i < r->w.count && !r->again[at]; i++) {
        const gm_op *op = r->w.nodes[i]->op, *least = i == at && op->for_vjp ? op->for_vjp : op;
        if (r->segment[i] == r->segment[at] && !(r->again[i] = make_again(s, r, i, least, cotangent)))
            return NULL;
    }
    return r->again[at];
}

/* Whether a node of a segment of this kind is made once more; those before it have been. */
static bool goes_again(const reverse *r, int64_t i) {
    const gm_array *node = r->w.nodes[i];
    if (node->op->again == AGAIN_ALWAYS)
        return true;
    bool any = false;
    for (int k = 0; k < node->n_in && node->op->again == AGAIN_WITH_INPUT; k++)
        any |= again_of(r, r->segment[i], node, k) != NULL;
    return any;
}

/* Puts what was made once more in the place of inputs of the node, in a segment that is RECOMPUTE_CHEAP: the first time
 * it is all made, of which only what rules read will be evaluated. */
static gm_status put_again(gm_scope *s, reverse *r, int64_t at, gm_array *cotangent, gm_array **in) {
    const gm_array *node = r->w.nodes[at];
    const int32_t segment = r->segment ? r->segment[at] : 0;
    if (!is_cheap(segment) || node->op == &recompute_op)
        return GM_OK;
    for (int64_t i = r->w.n_inputs; i < r->w.count && !r->begun[segment]; i++)
        if (r->segment[i] == segment && goes_again(r, i) &&
            !(r->again[i] = make_again(s, r, i, r->w.nodes[i]->op, cotangent)))
            return error_code();
    r->begun[segment] = true;
    for (int k = 0; k < node->n_in; k++) {
        gm_array *again = again_of(r, segment, node, k);
        in[k] = again ? again : in[k];
    }
    return GM_OK;
}

/* Whether a gradient goes back through the node at all; an error where it would go to what has none. */
static gm_status check_inputs(const reverse *r, const gm_array *node, bool *any) {
    *any = false;
    for (int i = 0; i < node->n_in; i++) {
        if (reached_input(r, node, i) < 0)
            continue;
        if (node->op->refuse)
            GM_TRY(node->op->refuse(node, i, false));
        *any |= !op_is_nondiff(node->op, i);
    }
    return GM_OK;
}

/* The rule of an op for a node of it, or of its for_vjp. */
static gm_status apply_rule(gm_scope *s, const gm_op *op, gm_array *node, gm_array *const *in,
                            gm_array *const *cotangents, gm_array **grads) {
    if (op->vjp)
        op->vjp(s, node, in, cotangents, grads);
    else if (op->compose)
        return compose_vjp(s, node, in, cotangents[0], grads);
    else
        return gm_fail(GM_EVALUE, "%s has no gradient", op->name);
    return GM_OK;
}

/* What has come to inputs so far, for a rule that adds to it. */
static void show_sums(const reverse *r, const gm_array *node, gm_array **grads) {
    for (int i = 0; i < node->n_in; i++) {
        const int64_t from = op_adds(node->op, i) ? reached_input(r, node, i) : -1;
        if (from >= 0)
            grads[i] = r->slots[r->first[from]];
    }
}

/* What the rule of a node gave, to its inputs: sums first, in place of what they began with. */
static gm_status take_grads(gm_scope *s, reverse *r, const gm_array *node, gm_array **grads) {
    gm_status status = GM_OK;
    for (int sums = 1; sums >= 0; sums--)
        for (int i = 0; i < node->n_in && status == GM_OK; i++) {
            const bool adds = op_adds(node->op, i);
            const int64_t from = grads[i] && !op_is_nondiff(node->op, i) ? reached_input(r, node, i) : -1;
            if (from < 0 || adds != sums)
                continue;
            if (adds)
                r->slots[r->first[from]] = grads[i];
            else
                status = accumulate(s, r->slots + r->first[from], grads[i]);
        }
    return status;
}

static gm_status go_back(gm_scope *s, reverse *r, int64_t at) {
    gm_array *node = r->w.nodes[at], **cotangents = r->slots + r->first[at];
    int n_out = array_n_out(node);
    bool any = false;
    for (int k = 0; k < n_out; k++)
        any |= cotangents[k] != NULL;
    if (!any)
        return GM_OK;
    if (node->op == &pick_op) {
        int64_t from = walk_find(&r->w, node->in[0]);
        return from < 0 ? GM_OK : accumulate(s, r->slots + r->first[from] + pick_index(node), cotangents[0]);
    }
    GM_TRY(check_inputs(r, node, &any));
    gm_array **grads = any ? memory_zeroed((size_t)(node->n_in + 1) * 2 * sizeof *grads) : NULL;
    if (!grads)
        return any ? GM_ENOMEM : GM_OK;
    gm_array *one = cotangents[0];
    for (int k = 1; k < n_out && !one; k++)
        one = cotangents[k];
    gm_array *known = recomputed(s, r, at, one), **in = grads + node->n_in + 1;
    gm_status status = known ? GM_OK : error_code();
    for (int k = 0; k < node->n_in && status == GM_OK; k++)
        in[k] = known->in[k];
    if (status == GM_OK)
        status = put_again(s, r, at, one, in);
    show_sums(r, node, grads);
    if (status == GM_OK)
        status = apply_rule(s, node->op, known, in, cotangents, grads);
    if (status == GM_OK)
        status = error_code();
    if (status == GM_OK)
        status = take_grads(s, r, node, grads);
    memory_free(grads);
    return status;
}

/* What is made for a node is made where it is. */
static gm_status step(gm_scope *s, reverse *r, int64_t at) {
    const int before = array_enter(r->w.nodes[at]);
    const gm_status status = go_back(s, r, at);
    device_enter(before);
    return status;
}

/* A cotangent in the dtype of its output; that of packed activations is float32. */
static gm_array *for_output(gm_scope *s, gm_array *cotangent, const gm_array *output) {
    return output->dtype == GM_PACKED ? cotangent : gm_astype(s, cotangent, (gm_dtype)output->dtype);
}

gm_status gm_vjp(gm_scope *s, gm_array *const *outputs, gm_array *const *cotangents, int n_outputs,
                 gm_array *const *primals, int n_primals, gm_array **grads) {
    reverse r = {.first = NULL};
    GM_TRY(walk_make(outputs, n_outputs, primals, n_primals, WALK_GRADIENTS, &r.w));
    int64_t n;
    r.first = walk_slots(&r.w, &n);
    gm_status status = r.first ? GM_OK : GM_ENOMEM;
    if (status == GM_OK && !(r.slots = memory_zeroed((size_t)(n + 1) * sizeof *r.slots)))
        status = GM_ENOMEM;
    if (status == GM_OK)
        status = find_segments(&r);
    for (int k = 0; k < n_outputs && status == GM_OK; k++) {
        int64_t at = walk_find(&r.w, outputs[k]);
        if (at >= 0 && r.w.reached[at] && cotangents[k])
            status = accumulate(s, r.slots + r.first[at], for_output(s, cotangents[k], outputs[k]));
    }
    for (int64_t i = r.w.count - 1; i >= r.w.n_inputs && status == GM_OK; i--)
        if (r.w.reached[i])
            status = step(s, &r, i);
    for (int p = 0; p < n_primals && status == GM_OK; p++)
        grads[p] = r.slots[r.first[walk_find(&r.w, primals[p])]];
    memory_free(r.first);
    memory_free(r.slots);
    memory_free(r.segment);
    memory_free(r.again);
    memory_free(r.begun);
    walk_free(&r.w);
    return status;
}
