/* transpose.c - the same memory with its axes in another order: transpose, moveaxis, swapaxes, matrix_transpose. */
#include <string.h>
#include "ops/ops.h"

typedef struct { int8_t axes[GM_MAX_NDIM]; } transpose_param;
static const gm_field transpose_fields[] = {{FIELD_INT8, offsetof(transpose_param, axes), "axes", GM_MAX_NDIM}, {0}};

static gm_status transpose_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const transpose_param *p = param;
    out->dtype = (gm_dtype)in[0]->dtype;
    out->ndim = in[0]->ndim;
    for (int i = 0; i < out->ndim; i++)
        out->shape[i] = in[0]->shape[p->axes[i]];
    return GM_OK;
}

static gm_status transpose_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const transpose_param *p = out->param;
    int64_t strides[GM_MAX_NDIM];
    for (int i = 0; i < out->ndim; i++)
        strides[i] = out->in[0]->strides[p->axes[i]];
    array_share(out, out->in[0], strides, 0);
    return GM_OK;
}

static void transpose_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                          gm_array **grad) {
    const transpose_param *p = out->param;
    int back[GM_MAX_NDIM];
    (void)in;
    for (int i = 0; i < out->ndim; i++)
        back[p->axes[i]] = i;
    grad[0] = gm_transpose(s, cotangents[0], out->ndim, back);
}

static gm_status transpose_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const transpose_param *p = out->param;
    int axes[GM_MAX_NDIM + 1] = {0};
    (void)batched;
    for (int i = 0; i < out->ndim; i++)
        axes[i + 1] = p->axes[i] + 1;
    outs[0] = gm_transpose(s, in[0], out->ndim + 1, axes);
    return outs[0] ? GM_OK : error_code();
}

static gm_status transpose_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                   gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const transpose_param *p = param;
    int axes[GM_MAX_NDIM];
    for (int i = 0; i < in[0]->ndim; i++)
        axes[i] = p->axes[i];
    return rebuilt(gm_transpose(s, in[0], in[0]->ndim, axes), outs);
}

const gm_op transpose_op = {.name = "transpose",
                            .place = PLACE_INPUT,
                            .n_in = 1,
                            .n_out = 1,
                            .param_size = sizeof(transpose_param),
                            .fields = transpose_fields,
                            .infer = transpose_infer,
                            .eval = transpose_eval,
                            .vjp = transpose_vjp,
                            .vmap = transpose_vmap,
                            .rebuild = transpose_rebuild};

gm_array *gm_transpose(gm_scope *s, gm_array *x, int n_axes, const int *axes) {
    transpose_param p;
    uint64_t seen = 0;
    if (!x)
        return NULL;
    memset(&p, 0, sizeof p);
    if (n_axes >= 0 && n_axes != x->ndim)
        return gm_fail(GM_EVALUE, "transpose: %d axes for an array of %d dimensions", n_axes, x->ndim), NULL;
    for (int i = 0; i < x->ndim; i++) {
        int axis = x->ndim - 1 - i;
        if (n_axes >= 0 && check_axis("transpose", axes[i], x->ndim, &axis) != GM_OK)
            return NULL;
        if (seen >> axis & 1)
            return gm_fail(GM_EVALUE, "transpose: axis %d is given twice", axis), NULL;
        seen |= (uint64_t)1 << axis;
        p.axes[i] = (int8_t)axis;
    }
    return array_node(s, &transpose_op, &x, 1, &p);
}

static bool axis_of(const char *op, const gm_array *x, int axis, int *out) {
    return x && check_axis(op, axis, x->ndim, out) == GM_OK;
}

gm_array *gm_moveaxis(gm_scope *s, gm_array *x, int source, int destination) {
    int from, to, axes[GM_MAX_NDIM];
    if (!axis_of("moveaxis", x, source, &from) || !axis_of("moveaxis", x, destination, &to))
        return NULL;
    for (int i = 0, next = 0; i < x->ndim; i++) {
        next += next == from;
        axes[i] = i == to ? from : next++;
    }
    return from == to ? x : gm_transpose(s, x, x->ndim, axes);
}

gm_array *gm_swapaxes(gm_scope *s, gm_array *x, int axis1, int axis2) {
    int one, other, axes[GM_MAX_NDIM];
    if (!axis_of("swapaxes", x, axis1, &one) || !axis_of("swapaxes", x, axis2, &other))
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        axes[i] = i == one ? other : i == other ? one : i;
    return one == other ? x : gm_transpose(s, x, x->ndim, axes);
}

gm_array *gm_matrix_transpose(gm_scope *s, gm_array *x) {
    if (x && x->ndim < 2)
        return gm_fail(GM_EVALUE, "matrix_transpose: an array with %d dimensions; expected at least 2", x->ndim), NULL;
    return gm_swapaxes(s, x, -2, -1);
}
