/* join.c - arrays put side by side, and taken apart: concatenate, stack, split, unstack; broadcast_arrays. */
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
    copy_part *parts = queue_arena(q, (size_t)out->n_in * sizeof *parts);
    if (!parts)
        return error_code();
    GM_TRY(array_alloc(out, q));
    char *to = array_ptr(out);
    for (int i = 0; i < out->n_in; i++) {
        const gm_array *x = out->in[i];
        parts[i] = (copy_part){to,      array_ptr(x), (gm_dtype)out->dtype, (gm_dtype)x->dtype,
                               x->ndim, x->shape,     out->strides,         x->strides};
        to += x->shape[axis] * out->strides[axis] * (int64_t)array_item(out);
    }
    return launch_copies(q, parts, out->n_in);
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

static gm_status concatenate_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                     gm_array **outs) {
    (void)n_out;
    return rebuilt(gm_concatenate(s, in, n_in, ((const concatenate_param *)param)->axis), outs);
}

const gm_op concatenate_op = {.name = "concatenate",
                              .n_in = -1,
                              .n_out = 1,
                              .param_size = sizeof(concatenate_param),
                              .fields = concatenate_fields,
                              .infer = concatenate_infer,
                              .eval = concatenate_eval,
                              .vjp = concatenate_vjp,
                              .vmap = concatenate_vmap,
                              .rebuild = concatenate_rebuild};

/* A node has at most UINT16_MAX inputs: more arrays are joined in several steps, which overwrite `arrays`. */
static gm_array *join(gm_scope *s, gm_array **arrays, int count, int axis) {
    while (count > UINT16_MAX) {
        int parts = 0;
        for (int at = 0; at < count; at += UINT16_MAX) {
            int n = count - at < UINT16_MAX ? count - at : UINT16_MAX;
            if (!(arrays[parts++] = array_node(s, &concatenate_op, arrays + at, n, &(concatenate_param){axis})))
                return NULL;
        }
        count = parts;
    }
    return array_node(s, &concatenate_op, arrays, count, &(concatenate_param){axis});
}

gm_array *gm_concatenate(gm_scope *s, gm_array *const *arrays, int count, int axis) {
    int at;
    if (count < 1)
        return gm_fail(GM_EVALUE, "concatenate: got no arrays, expected at least one"), NULL;
    for (int i = 0; i < count; i++)
        if (!arrays[i])
            return NULL;
    if (count == 1)
        return arrays[0];
    if (check_axis("concatenate", axis, arrays[0]->ndim, &at) != GM_OK)
        return NULL;
    gm_dtype type = (gm_dtype)arrays[0]->dtype;
    for (int i = 1; i < count; i++)
        type = gm_promote(type, (gm_dtype)arrays[i]->dtype);
    gm_array **in = memory_array((size_t)count, sizeof *in);
    if (!in)
        return NULL;
    for (int i = 0; i < count; i++)
        in[i] = gm_astype(s, arrays[i], type);
    gm_array *out = join(s, in, count, at);
    memory_free(in);
    return out;
}

gm_array *gm_stack(gm_scope *s, gm_array *const *arrays, int count, int axis) {
    if (count < 1)
        return gm_fail(GM_EVALUE, "stack: got no arrays, expected at least one"), NULL;
    gm_array **in = memory_array((size_t)count, sizeof *in), *out = NULL;
    bool ok = in != NULL;
    for (int i = 0; i < count && ok; i++) {
        ok = arrays[i] && arrays[0];
        if (ok && (arrays[i]->ndim != arrays[0]->ndim ||
                   memcmp(arrays[i]->shape, arrays[0]->shape, (size_t)arrays[0]->ndim * sizeof(int64_t)) != 0)) {
            char a[128], b[128];
            shape_text(arrays[0]->ndim, arrays[0]->shape, a);
            shape_text(arrays[i]->ndim, arrays[i]->shape, b);
            ok = gm_fail(GM_ESHAPE, "stack: array 0 has shape %s, array %d has %s; expected one", a, i, b) == GM_OK;
        }
        ok = ok && (in[i] = gm_expand_dims(s, arrays[i], 1, &axis)) != NULL;
    }
    if (ok)
        out = gm_concatenate(s, in, count, axis);
    memory_free(in);
    return out;
}

/* ---- taken apart ---- */
/* Items [from, to) of one axis. */
static gm_array *part_of(gm_scope *s, gm_array *x, int axis, int64_t from, int64_t to) {
    int64_t start[GM_MAX_NDIM] = {0}, step[GM_MAX_NDIM];
    int64_t stop[GM_MAX_NDIM];
    for (int d = 0; d < x->ndim; d++) {
        stop[d] = x->shape[d];
        step[d] = 1;
    }
    start[axis] = from;
    stop[axis] = to > from ? to : from;
    return gm_slice(s, x, start, stop, step);
}

/* As the bounds of a Python slice. */
static int64_t clip_index(int64_t i, int64_t n) {
    i = i < 0 ? i + n : i;
    return i < 0 ? 0 : i > n ? n : i;
}

gm_array *gm_split(gm_scope *s, gm_array *x, int n_indices, const int64_t *indices, int axis, gm_array **pieces) {
    int at;
    if (!x || check_axis("split", axis, x->ndim, &at) != GM_OK)
        return NULL;
    int64_t n = x->shape[at];
    for (int i = 0; i <= n_indices; i++) {
        int64_t from = i ? clip_index(indices[i - 1], n) : 0, to = i < n_indices ? clip_index(indices[i], n) : n;
        if (!(pieces[i] = part_of(s, x, at, from, to)))
            return NULL;
    }
    return pieces[0];
}

gm_array *gm_split_evenly(gm_scope *s, gm_array *x, int sections, int axis, gm_array **pieces) {
    int at;
    if (!x || check_axis("split", axis, x->ndim, &at) != GM_OK)
        return NULL;
    if (sections < 1 || x->shape[at] % sections != 0) {
        char text[128];
        shape_text(x->ndim, x->shape, text);
        return gm_fail(GM_EVALUE, "split: %d parts of axis %d of shape %s; expected a number that divides it", sections,
                       at, text),
               NULL;
    }
    int64_t part = x->shape[at] / sections;
    for (int i = 0; i < sections; i++)
        if (!(pieces[i] = part_of(s, x, at, i * part, (i + 1) * part)))
            return NULL;
    return pieces[0];
}

gm_array *gm_unstack(gm_scope *s, gm_array *x, int axis, gm_array **pieces) {
    int at;
    if (!x || check_axis("unstack", axis, x->ndim, &at) != GM_OK)
        return NULL;
    for (int64_t i = 0; i < x->shape[at]; i++)
        if (!(pieces[i] = gm_squeeze(s, part_of(s, x, at, i, i + 1), 1, &at)))
            return NULL;
    return x;
}

/* ---- broadcast_arrays, broadcast_shapes ---- */
gm_array *gm_broadcast_arrays(gm_scope *s, gm_array *const *arrays, int count, gm_array **outs) {
    gm_spec all = {.ndim = 0};
    bool shapeless = false;
    for (int i = 0; i < count; i++) {
        gm_array common = {.ndim = (int16_t)all.ndim, .shape = all.shape};
        gm_spec next;
        if (!arrays[i] || broadcast_shape("broadcast_arrays", &common, arrays[i], &next) != GM_OK)
            return NULL;
        all = next;
        shapeless |= trace_shapeless(arrays[i]);
    }
    gm_array **made = memory_array((size_t)count + 1, sizeof *made); /* outs may be arrays */
    bool ok = made != NULL;
    for (int i = 0; i < count && ok; i++) {
        made[i] = shapeless ? broadcast_with(s, arrays[i], arrays, count)
                            : gm_broadcast_to(s, arrays[i], all.ndim, all.shape);
        ok = made[i] != NULL;
    }
    for (int i = 0; i < count && ok; i++)
        outs[i] = made[i];
    memory_free(made);
    if (!ok)
        return NULL;
    return count ? outs[0] : GM_NONE;
}

gm_array *gm_broadcast_shapes(gm_scope *s, int count, const int *ndims, const int64_t *const *shapes) {
    gm_array *value = scalar_array(s, 0, GM_FLOAT32), *all = value;
    if (count < 1)
        return gm_fail(GM_EVALUE, "broadcast_shapes: got no shapes, expected at least one"), NULL;
    for (int i = 0; i < count && all; i++) {
        gm_array *two[2] = {all, gm_broadcast_to(s, value, ndims[i], shapes[i])};
        all = two[1] ? gm_broadcast_arrays(s, two, 2, two) : NULL;
    }
    return all;
}
