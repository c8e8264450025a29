/* head_order.c - heads [groups][ratio] of checkpoints lie [ratio][groups] in the model. */
#include "models/head_order.h"
#include "ops/ops.h"

/* What lies from `first` on, heads [groups][ratio], as [ratio][groups]. */
static gm_array *transposed_heads(gm_scope *s, gm_array *x, int axis, int64_t first, int64_t groups, int64_t ratio) {
    int64_t from[GM_MAX_NDIM] = {0}, to[GM_MAX_NDIM], step[GM_MAX_NDIM], outer = 1;
    for (int i = 0; i < x->ndim; i++) {
        to[i] = x->shape[i];
        step[i] = 1;
        outer *= i < axis ? x->shape[i] : 1;
    }
    from[axis] = first;
    gm_array *heads = first ? gm_slice(s, x, from, to, step) : x;
    if (!heads)
        return NULL;
    const int64_t inner = heads->size / (outer * groups * ratio);
    gm_array *turned = gm_reshape(s, heads, 4, (int64_t[]){outer, groups, ratio, inner});
    turned = gm_reshape(s, gm_transpose(s, turned, 4, (int[]){0, 2, 1, 3}), heads->ndim, heads->shape);
    if (!first || !turned)
        return turned;
    from[axis] = 0;
    to[axis] = first;
    return gm_concatenate(s, (gm_array *[]){gm_slice(s, x, from, to, step), turned}, 2, axis);
}

static bool order_of(const gm_model *m, const char *weight, const gm_array *x, int axis, head_order *o) {
    return x && m->arch->order && m->arch->order(&m->config, weight, o) && o->axis == axis;
}

gm_array *heads_as_model(gm_scope *s, const gm_model *m, const char *weight, gm_array *x, int axis) {
    head_order o;
    return order_of(m, weight, x, axis, &o) ? transposed_heads(s, x, axis, o.first, o.groups, o.ratio) : x;
}

gm_array *heads_as_checkpoint(gm_scope *s, const gm_model *m, const char *weight, gm_array *x, int axis) {
    head_order o;
    return order_of(m, weight, x, axis, &o) ? transposed_heads(s, x, axis, o.first, o.ratio, o.groups) : x;
}
