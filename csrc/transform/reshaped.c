/* reshaped.c - what a traced op becomes when its inputs have other shapes: ops whose parameters hold shapes get new ones where
 * the traced shapes tell which dimension became which; all others only infer again. */
#include <string.h>
#include "transform/compile.h"

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

gm_array *compile_reshaped(gm_scope *s, const gm_array *node, gm_array *const *in) {
    if (!in[0])
        return NULL;
    if (node->op == &reshape_op && !reshape_is_free(node))
        return reshape_again(s, node, in[0]);
    if (node->op == &broadcast_to_op)
        return broadcast_again(s, node, in[0]);
    return array_again(s, node, in);
}
