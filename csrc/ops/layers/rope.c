/* rope.c - rotary position embedding. Source: Su et al., RoFormer, 2021; fast.rope has MLX's arguments. */
#include <string.h>
#include "ops/ops.h"

/* ---- angles ---- */
typedef struct { float factor; } angles_param;
static const gm_field angles_fields[] = {{FIELD_FLOAT, offsetof(angles_param, factor), "factor", 1}, {0}};

static gm_status angles_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    const gm_array *positions = in[0], *inv_freq = in[1];
    if (positions->dtype != GM_INT32 || positions->ndim != 1 || inv_freq->dtype != GM_FLOAT32 || inv_freq->ndim != 1) {
        char a[128], b[128];
        array_text(positions, a);
        array_text(inv_freq, b);
        return gm_fail(GM_ESHAPE, "rope_angles: positions are %s and inv_freq %s, expected int32 [n], float32 [half]",
                       a, b);
    }
    out->dtype = GM_FLOAT32;
    out->ndim = 3;
    out->shape[0] = positions->shape[0];
    out->shape[1] = 2;
    out->shape[2] = inv_freq->shape[0];
    return GM_OK;
}

static gm_status angles_eval(gm_array *out, gm_queue *q) {
    const gm_array *positions = out->in[0];
    const float *inv_freq;
    const int32_t *at = array_ptr(positions);
    GM_TRY(float_operand(q, out->in[1], &inv_freq));
    if (!array_is_contiguous(positions)) {
        int32_t *copy = queue_scratch(q, (size_t)positions->size * sizeof *copy);
        if (!copy)
            return error_code();
        GM_TRY(launch_copy(q, (copy_to){copy, GM_INT32, (int64_t[]){1}}, (copy_from){at, GM_INT32, positions->strides},
                           1, positions->shape));
        queue_fence(q);
        at = copy;
    }
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, rope_angles, out->shape[0], .out = array_ptr(out), .positions = at, .inv_freq = inv_freq,
                    .half = out->shape[2], .factor = ((const angles_param *)out->param)->factor);
}

static gm_status angles_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    return rebuilt(gm_rope_angles(s, in[0], in[1], ((const angles_param *)param)->factor), outs);
}

const gm_op rope_angles_op = {.name = "rope_angles",
                              .n_in = 2,
                              .n_out = 1,
                              .nondiff = 3,
                              .param_size = sizeof(angles_param),
                              .fields = angles_fields,
                              .infer = angles_infer,
                              .eval = angles_eval,
                              .rebuild = angles_rebuild,
                              .work = GM_WORK_ATTENTION};

gm_array *gm_rope_angles(gm_scope *s, gm_array *positions, gm_array *inv_freq, float factor) {
    gm_array *in[2] = {positions, inv_freq};
    return array_node(s, &rope_angles_op, in, 2, &(angles_param){factor});
}

/* ---- rows [n, heads * head_dim] by angles [n, 2, half]; what lies beyond 2 * half of a head stays ---- */
typedef struct { int32_t head_dim; } rotate_param;
static const gm_field rotate_fields[] = {{FIELD_INT, offsetof(rotate_param, head_dim), "head_dim", 1}, {0}};

static gm_status rotate_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_array *x = in[0], *angles = in[1];
    const int64_t dim = ((const rotate_param *)param)->head_dim;
    (void)n_in;
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || dim < 1 || x->shape[1] % dim || angles->dtype != GM_FLOAT32 ||
        angles->ndim != 3 || angles->shape[0] != x->shape[0] || angles->shape[1] != 2 || 2 * angles->shape[2] > dim) {
        char a[128], b[128];
        array_text(x, a);
        array_text(angles, b);
        return gm_fail(GM_ESHAPE,
                       "rotate_rows: x is %s and angles %s, expected float32 [n, heads * %lld] and float32 "
                       "[n, 2, half]",
                       a, b, (long long)dim);
    }
    spec_like(out, x, GM_FLOAT32);
    return GM_OK;
}

static gm_status rotate_eval(gm_array *out, gm_queue *q) {
    const int64_t dim = ((const rotate_param *)out->param)->head_dim, heads = out->shape[1] / dim;
    const int64_t half = out->in[1]->shape[2];
    const float *x, *angles;
    GM_TRY(float_operand(q, out->in[0], &x));
    GM_TRY(float_operand(q, out->in[1], &angles));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, rope, out->shape[0] * heads, .out = array_ptr(out), .x = x, .angles = angles, .type = GM_T_F32,
                    .heads = heads, .steps = 1, .dim = dim, .half = half, .batch_stride = heads * dim,
                    .head_stride = dim, .step_stride = dim, .angle_stride = 2 * half);
}

/* A rotation's transpose is the rotation by the angles' negatives. */
static void rotate_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    static const float signs[2] = {1, -1};
    const gm_spec spec = {.dtype = GM_FLOAT32, .ndim = 3, .shape = {1, 2, 1}};
    gm_array *sign = array_new(s, spec.dtype, spec.ndim, spec.shape);
    if (!sign)
        return;
    memcpy(array_ptr(sign), signs, sizeof signs);
    grad[0] = gm_rotate_rows(s, cots[0], gm_multiply(s, in[1], sign), ((const rotate_param *)out->param)->head_dim);
}

const gm_op rotate_rows_op = {.name = "rotate_rows",
                              .n_in = 2,
                              .n_out = 1,
                              .nondiff = 2,
                              .param_size = sizeof(rotate_param),
                              .fields = rotate_fields,
                              .infer = rotate_infer,
                              .eval = rotate_eval,
                              .vjp = rotate_vjp,
                              .again = AGAIN_WITH_INPUT,
                              .work = GM_WORK_ATTENTION};

gm_array *gm_rotate_rows(gm_scope *s, gm_array *x, gm_array *angles, int head_dim) {
    gm_array *in[2] = {x, angles};
    return array_node(s, &rotate_rows_op, in, 2, &(rotate_param){head_dim});
}

/* ---- rope: x [B, ..., T, D], offset one integer or one for each of B, freqs or none ---- */
typedef struct {
    int32_t dims, traditional, inverse;
    float base, scale;
} rope_param;
static const gm_field rope_fields[] = {{FIELD_INT, offsetof(rope_param, dims), "dims", 1},
                                       {FIELD_INT, offsetof(rope_param, traditional), "traditional", 1},
                                       {FIELD_INT, offsetof(rope_param, inverse), "inverse", 1},
                                       {FIELD_FLOAT, offsetof(rope_param, base), "base", 1},
                                       {FIELD_FLOAT, offsetof(rope_param, scale), "scale", 1},
                                       {0}};
enum { IN_X, IN_OFFSET, IN_FREQS };

static gm_status rope_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const rope_param *p = param;
    const gm_array *x = in[IN_X], *offset = in[IN_OFFSET], *freqs = in[IN_FREQS];
    int n = x->ndim;
    char text[128];
    array_text(offset, text);
    if (n < 3 || !dtype_is_float((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "rope: x has %d dimensions of %s, expected floating point [B, ..., T, D]", n,
                       gm_dtype_name((gm_dtype)x->dtype));
    if (p->dims < 2 || p->dims % 2 || p->dims > x->shape[n - 1])
        return gm_fail(GM_EVALUE, "rope: dims %d, expected an even number up to the last axis of %lld", p->dims,
                       (long long)x->shape[n - 1]);
    if (offset->ndim > 1 || (offset->size != 1 && offset->size != x->shape[0]))
        return gm_fail(GM_EVALUE, "rope: offset is %s, expected one integer, or one for each of the %lld batches", text,
                       (long long)x->shape[0]);
    if (!array_is_none(freqs) && (freqs->ndim != 1 || freqs->shape[0] != p->dims / 2))
        return gm_fail(GM_EVALUE, "rope: freqs must have one dimension of dims / 2 = %d items", p->dims / 2);
    spec_like(out, x, (gm_dtype)x->dtype);
    return GM_OK;
}

/* x as [batches, heads, steps, dim] with the last axis contiguous; a copy where it cannot be seen so. */
static gm_status four_axes(gm_queue *q, const gm_array *x, const void **data, int64_t heads, int64_t strides[3]) {
    int n = x->ndim;
    loop middle;
    GM_TRY(loop_make(q, n - 3, x->shape + 1, 1, (const int64_t *const[]){x->strides + 1}, &middle));
    *data = array_ptr(x);
    strides[0] = x->strides[0];
    strides[1] = middle.ndim ? middle.strides[0][0] : 0;
    strides[2] = x->strides[n - 2];
    if (middle.ndim <= 1 && (x->strides[n - 1] == 1 || x->shape[n - 1] == 1))
        return GM_OK;
    GM_TRY(dense_operand(q, x, data));
    strides[2] = x->shape[n - 1];
    strides[1] = strides[2] * x->shape[n - 2];
    strides[0] = strides[1] * heads;
    return GM_OK;
}

static gm_status rope_eval(gm_array *out, gm_queue *q) {
    const rope_param *p = out->param;
    const gm_array *x = out->in[IN_X], *offset = out->in[IN_OFFSET];
    int n = x->ndim;
    int64_t steps = x->shape[n - 2], heads = 1, half = p->dims / 2, strides[3];
    const void *data, *start;
    const float *freqs = NULL;
    if (out->size == 0)
        return array_alloc(out, q);
    for (int i = 1; i < n - 2; i++)
        heads *= x->shape[i];
    GM_TRY(four_axes(q, x, &data, heads, strides));
    GM_TRY(dense_operand(q, offset, &start));
    if (!array_is_none(out->in[IN_FREQS]))
        GM_TRY(float_operand(q, out->in[IN_FREQS], &freqs));
    GM_TRY(array_alloc_like(out, q, IN_X));
    float *angles = queue_scratch(q, (size_t)(offset->size * steps * p->dims) * sizeof(float));
    if (!angles)
        return error_code();
    GM_TRY(DISPATCH(q, rope_table, offset->size * steps, .out = angles, .offset = start, .steps = steps, .half = half,
                    .freqs = freqs, .base = p->base, .scale = p->scale, .inverse = p->inverse != 0));
    queue_fence(q);
    return DISPATCH(q, rope, x->shape[0] * heads * steps, .out = array_ptr(out), .x = data, .angles = angles,
                    .type = out->dtype, .heads = heads, .steps = steps, .dim = x->shape[n - 1], .half = half,
                    .batch_stride = strides[0], .head_stride = strides[1], .step_stride = strides[2],
                    .angle_stride = offset->size == 1 ? 0 : steps * p->dims, .interleaved = p->traditional != 0);
}

/* A rotation's transpose is its inverse. */
static void rope_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cots, gm_array **grad) {
    rope_param p = *(const rope_param *)out->param;
    p.inverse = !p.inverse;
    grad[IN_X] = array_node(s, &rope_op, (gm_array *[]){cots[0], in[IN_OFFSET], in[IN_FREQS]}, 3, &p);
}

/* Lanes and batches become one axis; each gets its own offset unless there is one for all. */
static gm_status rope_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    gm_array *x = in[IN_X], *offset = in[IN_OFFSET];
    int64_t lanes = batch_size(in, 3, batched), shape[GM_MAX_NDIM + 1];
    if (batched[IN_FREQS])
        return GM_AGAIN;
    x = batched_input(s, x, batched[IN_X], lanes);
    if (!x)
        return error_code();
    int64_t batches = x->shape[1];
    if (batched[IN_OFFSET]) {
        offset = gm_reshape(s, offset, 2, (int64_t[]){lanes, -1});
    }
    if (batched[IN_OFFSET] || offset->size != 1) {
        offset = gm_broadcast_to(s, offset, 2, (int64_t[]){lanes, batches});
        offset = gm_reshape(s, offset, 1, (int64_t[]){lanes * batches});
    }
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[1] *= lanes;
    gm_array *rows = gm_reshape(s, x, x->ndim - 1, shape + 1);
    gm_array *y = array_again(s, out, (gm_array *[]){rows, offset, in[IN_FREQS]});
    outs[0] = gm_reshape(s, y, x->ndim, x->shape);
    return outs[0] ? GM_OK : error_code();
}

static gm_status rope_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                              gm_array **outs) {
    (void)n_in;
    (void)n_out;
    if (in[IN_X]->dtype == GM_FLOAT64 || in[IN_OFFSET]->dtype != GM_INT32)
        return rebuild_refuse("rope");
    return rebuilt(array_node(s, &rope_op, in, 3, param), outs);
}

const gm_op rope_op = {.name = "rope",
                       .n_in = 3,
                       .n_out = 1,
                       .nondiff = 6,
                       .param_size = sizeof(rope_param),
                       .fields = rope_fields,
                       .infer = rope_infer,
                       .eval = rope_eval,
                       .vjp = rope_vjp,
                       .vmap = rope_vmap,
                       .rebuild = rope_rebuild,
                       .optional = 1u << IN_FREQS};

/* float64 is rotated in float32. */
gm_array *gm_rope(gm_scope *s, gm_array *x, int dims, bool traditional, gm_array *offset, gm_array *freqs, float base,
                  float scale) {
    if (!x || !offset || !freqs)
        return NULL;
    gm_dtype type = (gm_dtype)x->dtype;
    if (!dtype_is_integer((gm_dtype)offset->dtype))
        return gm_fail(GM_EVALUE, "rope: offset is %s, expected an integer", gm_dtype_name((gm_dtype)offset->dtype)),
               NULL;
    rope_param p = {.dims = dims, .traditional = traditional, .base = base, .scale = scale};
    gm_array *in[3] = {type == GM_FLOAT64 ? gm_astype(s, x, GM_FLOAT32) : x, gm_astype(s, offset, GM_INT32), freqs};
    gm_array *y = array_node(s, &rope_op, in, 3, &p);
    return y ? gm_astype(s, y, type) : NULL;
}
