/* join.c - arrays put side by side: concatenate. */
#include <string.h>
#include "base/memory.h"
#include "ops/ops.h"

typedef struct { int32_t axis; } concatenate_param;
static const gm_field concatenate_fields[] = {{FIELD_INT, offsetof(concatenate_param, axis), "axis", 1}, {0}};

static gm_status concatenate_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    int axis = ((const concatenate_param *)param)->axis;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    for (int i = 1; i < n_in; i++) {
        bool fits = in[i]->ndim == in[0]->ndim;
        for (int d = 0; d < in[0]->ndim && fits; d++)
            fits = d == axis || in[i]->shape[d] == in[0]->shape[d];
        if (!fits) {
            char a[128], b[128];
            shape_text(in[0]->ndim, in[0]->shape, a);
            shape_text(in[i]->ndim, in[i]->shape, b);
            return gm_fail(GM_ESHAPE, "concatenate: shapes %s and %s differ outside axis %d", a, b, axis);
        }
        out->shape[axis] += in[i]->shape[axis];
    }
    return GM_OK;
}

static gm_status concatenate_eval(gm_array *out, gm_queue *q) {
    int axis = ((const concatenate_param *)out->param)->axis;
    char *to;
    GM_TRY(array_alloc(out, q));
    to = array_ptr(out);
    for (int i = 0; i < out->n_in; i++) {
        const gm_array *x = out->in[i];
        GM_TRY(launch_copy(q, to, (gm_dtype)out->dtype, out->strides, array_ptr(x), (gm_dtype)x->dtype, x->strides,
                           x->ndim, x->shape));
        to += x->shape[axis] * out->strides[axis] * (int64_t)array_item(out);
    }
    return GM_OK;
}

static void concatenate_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                            gm_array **grad) {
    int axis = ((const concatenate_param *)out->param)->axis;
    int64_t start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM], at = 0;
    for (int d = 0; d < out->ndim; d++) {
        stop[d] = out->shape[d];
        step[d] = 1;
    }
    for (int i = 0; i < out->n_in; i++) {
        start[axis] = at;
        stop[axis] = at += in[i]->shape[axis];
        grad[i] = gm_slice(s, cotangents[0], start, stop, step);
    }
}

static gm_status concatenate_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched,
                                  gm_array **outs) {
    int axis = ((const concatenate_param *)out->param)->axis;
    int64_t batch = batch_size(in, out->n_in, batched);
    gm_array **all = memory_array(out->n_in, sizeof *all);
    if (!all)
        return error_code();
    for (int i = 0; i < out->n_in; i++)
        all[i] = batched_input(s, in[i], batched[i], batch);
    outs[0] = array_node(s, &concatenate_op, all, out->n_in, &(concatenate_param){axis + 1});
    memory_free(all);
    return outs[0] ? GM_OK : error_code();
}

const gm_op concatenate_op = {.name = "concatenate", .n_in = -1, .n_out = 1,
                              .param_size = sizeof(concatenate_param), .fields = concatenate_fields,
                              .infer = concatenate_infer, .eval = concatenate_eval, .vjp = concatenate_vjp,
                              .vmap = concatenate_vmap};

gm_array *gm_concatenate(gm_scope *s, gm_array *const *arrays, int count, int axis) {
    int at;
    if (count < 1 || count > UINT16_MAX)
        return gm_fail(GM_EVALUE, "concatenate: %d arrays; expected 1 to %d", count, UINT16_MAX), NULL;
    for (int i = 0; i < count; i++)
        if (!arrays[i])
            return NULL;
    if (check_axis("concatenate", axis, arrays[0]->ndim, &at) != GM_OK)
        return NULL;
    if (count == 1)
        return arrays[0];
    gm_dtype type = (gm_dtype)arrays[0]->dtype;
    for (int i = 1; i < count; i++)
        type = gm_promote(type, (gm_dtype)arrays[i]->dtype);
    gm_array **in = memory_array((size_t)count, sizeof *in);
    if (!in)
        return NULL;
    for (int i = 0; i < count; i++)
        in[i] = gm_astype(s, arrays[i], type);
    gm_array *out = array_node(s, &concatenate_op, in, count, &(concatenate_param){at});
    memory_free(in);
    return out;
}
