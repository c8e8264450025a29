/* reshaped.c - what a traced op becomes when its inputs have other shapes. Most ops only infer again. Those whose
 * parameters hold sizes keep them where they fit; else the traced shapes tell which size became which, or there is an
 * error. */
#include <string.h>
#include "base/memory.h"
#include "transform/compile.h"

static bool same_shape(const gm_array *a, const gm_array *b) {
    return a == b || (a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

static int64_t product(const int64_t *shape, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= shape[i];
    return n;
}

/* Groups of dimensions with equal products, from the left: one to one copies the size, many to one joins them, one to
 * many keeps what was split off. */
static gm_array *reshape_again(gm_scope *s, const gm_array *node, gm_array *x) {
    const gm_array *old = node->in[0];
    int64_t shape[GM_MAX_NDIM];
    int i = 0, o = 0;
    if (reshape_is_free(node) || x->size == node->size)
        return array_again(s, node, &x);
    while (i < old->ndim || o < node->ndim) {
        if (o < node->ndim && node->shape[o] == 1 && !(i < old->ndim && old->shape[i] == 1)) {
            shape[o++] = 1;
            continue;
        }
        if (i < old->ndim && old->shape[i] == 1 && !(o < node->ndim && node->shape[o] == 1)) {
            i++;
            continue;
        }
        int i_end = i + 1, o_end = o + 1;
        while (i_end <= old->ndim && o_end <= node->ndim &&
               product(old->shape, i, i_end) != product(node->shape, o, o_end)) {
            if (product(old->shape, i, i_end) < product(node->shape, o, o_end))
                i_end++;
            else
                o_end++;
        }
        if (i_end > old->ndim || o_end > node->ndim)
            return array_again(s, node, &x);
        if (o_end == o + 1) {
            shape[o] = product(x->shape, i, i_end);
        } else {
            memcpy(shape + o, node->shape + o, (size_t)(o_end - o) * sizeof *shape);
            int64_t now = product(x->shape, i, i_end), rest = product(shape, o + 1, o_end);
            if (i_end == i + 1 && product(node->shape, o, o_end) != now && rest > 0 && now % rest == 0)
                shape[o] = now / rest;
        }
        i = i_end;
        o = o_end;
    }
    return gm_reshape(s, x, node->ndim, shape);
}

static gm_array *broadcast_again(gm_scope *s, const gm_array *node, gm_array *x) {
    const gm_array *old = node->in[0];
    int64_t shape[GM_MAX_NDIM];
    memcpy(shape, node->shape, (size_t)node->ndim * sizeof *shape);
    for (int i = 0; i < old->ndim; i++) {
        int at = i + node->ndim - old->ndim;
        if (old->shape[i] == node->shape[at] && x->shape[i] != 1)
            shape[at] = x->shape[i];
    }
    return gm_broadcast_to(s, x, node->ndim, shape);
}

/* Whether the region is known for other sizes too: of each axis all, or one item. */
static bool is_movable(const gm_array *node) {
    const slice_range *range = node->param;
    const gm_array *x = node->in[0];
    for (int i = 0; i < x->ndim; i++) {
        bool whole = range[i].start == 0 && range[i].stop == x->shape[i] && range[i].step == 1;
        if (!whole && (range[i].step != 1 || range[i].stop != range[i].start + 1))
            return false;
    }
    return true;
}

/* The region in x; GM_EVALUE where an item was the last of an axis that has another size now: it is not known whether
 * it was meant as the last. */
static gm_status region_again(const gm_array *node, const gm_array *x, int64_t *start, int64_t *stop, int64_t *step) {
    const slice_range *range = node->param;
    const gm_array *old = node->in[0];
    for (int i = 0; i < x->ndim; i++) {
        bool resized = x->shape[i] != old->shape[i];
        bool whole = range[i].start == 0 && range[i].stop == old->shape[i] && range[i].step == 1;
        if (resized && !whole && range[i].stop == old->shape[i])
            return gm_fail(GM_EVALUE,
                           "%s: the last item of an axis of %lld was traced; for %lld it is not known which "
                           "is meant",
                           node->op->name, (long long)old->shape[i], (long long)x->shape[i]);
        start[i] = range[i].start;
        stop[i] = whole ? x->shape[i] : range[i].stop;
        step[i] = range[i].step;
    }
    return GM_OK;
}

static gm_status slice_again(gm_scope *s, const gm_array *node, gm_array *const *in, gm_array **out) {
    int64_t start[GM_MAX_NDIM], stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    if (!is_movable(node))
        return gm_fail(GM_EVALUE, "%s: its start and stop belong to the traced shape", node->op->name);
    GM_TRY(region_again(node, in[0], start, stop, step));
    *out = node->op == &slice_op ? gm_slice(s, in[0], start, stop, step)
                                 : gm_slice_update(s, in[0], in[1], start, stop, step);
    return GM_OK;
}

/* op->fixed, where it holds for the node. */
static uint32_t fixed_of(const gm_array *node) {
    return node->op->is_fixed && !node->op->is_fixed(node->param) ? 0 : node->op->fixed;
}

static gm_status check_fixed(const gm_array *node, gm_array *const *in) {
    const uint32_t fixed = fixed_of(node);
    for (int i = 0; i < node->n_in; i++) {
        if ((fixed == FIXED_ALL || (i < 32 && fixed >> i & 1)) && !same_shape(in[i], node->in[i])) {
            char got[128], want[128];
            array_text(in[i], got);
            array_text(node->in[i], want);
            return gm_fail(GM_EVALUE, "%s: got %s; in a shapeless function it must have the traced shape, %s",
                           node->op->name, got, want);
        }
    }
    return GM_OK;
}

gm_status compile_reshaped(gm_scope *s, gm_array *node, gm_array *const *in, gm_array **outs) {
    bool same = true;
    for (int i = 0; i < node->n_in; i++) {
        if (!in[i])
            return error_code();
        same = same && same_shape(in[i], node->in[i]);
    }
    if (!same && node->op == &reshape_op)
        outs[0] = reshape_again(s, node, in[0]);
    else if (!same && node->op == &broadcast_to_op && node->n_in == 1)
        outs[0] = broadcast_again(s, node, in[0]);
    else if (!same && (node->op == &slice_op || node->op == &slice_update_op))
        GM_TRY(slice_again(s, node, in, outs));
    else {
        GM_TRY(check_fixed(node, in));
        return array_nodes(s, node->op, in, node->n_in, node->param, node->param_size, array_n_out(node), outs);
    }
    return outs[0] ? GM_OK : error_code();
}

gm_status gm_graph_check_shapeless(const gm_graph *g) {
    for (int64_t i = 0; i < g->n_code; i++) {
        const gm_array *node = g->code[i].node;
        bool slices = node && (node->op == &slice_op || node->op == &slice_update_op);
        if (node && (fixed_of(node) == FIXED_ALL || (slices && !is_movable(node))))
            return gm_fail(GM_EVALUE, "%s: it depends on sizes in a way that no shapeless function can have",
                           node->op->name);
    }
    return GM_OK;
}
