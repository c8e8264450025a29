/* rope.c - rotary position embedding. Source: Su et al., RoFormer, 2021; fast.rope has MLX's arguments. */
#include <math.h>
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
        GM_TRY(launch_copy(q, copy, GM_INT32, (int64_t[]){1}, at, GM_INT32, positions->strides, 1, positions->shape));
        queue_fence(q);
        at = copy;
    }
    GM_TRY(array_alloc(out, q));
    return LAUNCH(q, rope_angles, out->shape[0], 1 + 2048 / (out->shape[2] + 1), 0, .out = array_ptr(out),
                  .positions = at, .inv_freq = inv_freq, .half = out->shape[2],
                  .factor = ((const angles_param *)out->param)->factor);
}

const gm_op rope_angles_op = {.name = "rope_angles", .n_in = 2, .n_out = 1, .nondiff = 3,
                                .param_size = sizeof(angles_param), .fields = angles_fields, .infer = angles_infer,
                                .eval = angles_eval};

gm_array *gm_rope_angles(gm_scope *s, gm_array *positions, gm_array *inv_freq, float factor) {
    gm_array *in[2] = {positions, inv_freq};
    return array_node(s, &rope_angles_op, in, 2, &(angles_param){factor});
}

/* ---- rotation by angles: x [..., T, D] as rows, angles [rows, 2, half] ---- */
typedef struct { int32_t interleaved; } rotate_param;
static const gm_field rotate_fields[] = {{FIELD_INT, offsetof(rotate_param, interleaved), "traditional", 1}, {0}};

static gm_status rotate_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], (gm_dtype)in[0]->dtype);
    return GM_OK;
}

static gm_status rotate_eval(gm_array *out, gm_queue *q) {
    const gm_array *x = out->in[0], *angles = out->in[1];
    int64_t dim = x->shape[x->ndim - 1], rows = dim ? x->size / dim : 0;
    const float *data, *turn;
    GM_TRY(float_operand(q, x, &data));
    GM_TRY(float_operand(q, angles, &turn));
    GM_TRY(array_alloc(out, q));
    float *to = out->dtype == GM_FLOAT32 ? array_ptr(out) : queue_scratch(q, (size_t)out->size * sizeof(float) + 1);
    if (!to)
        return error_code();
    GM_TRY(LAUNCH(q, rope, rows, 1 + 8192 / (dim + 1), 0, .out = to, .x = data, .angles = turn, .heads = 1, .dim = dim,
                  .half = angles->shape[angles->ndim - 1],
                  .interleaved = ((const rotate_param *)out->param)->interleaved != 0));
    if (out->dtype == GM_FLOAT32)
        return GM_OK;
    queue_fence(q);
    return launch_copy(q, array_ptr(out), (gm_dtype)out->dtype, (int64_t[]){1}, to, GM_FLOAT32, (int64_t[]){1}, 1,
                       (int64_t[]){out->size});
}

const gm_op rope_op = {.name = "rope", .n_in = 2, .n_out = 1, .nondiff = 2, .param_size = sizeof(rotate_param),
                                .fields = rotate_fields, .infer = rotate_infer, .eval = rotate_eval};

gm_array *gm_rope(gm_scope *s, gm_array *x, int dims, bool traditional, gm_array *offset, gm_array *freqs, float base,
                  float scale) {
    if (!x || !offset || !freqs)
        return NULL;
    int n = x->ndim;
    if (n < 2 || !dtype_is_float((gm_dtype)x->dtype))
        return gm_fail(GM_EVALUE, "rope: x has %d dimensions of %s, expected floating point [..., T, D]", n,
                       gm_dtype_name((gm_dtype)x->dtype)), NULL;
    if (dims < 2 || dims % 2 || dims > x->shape[n - 1])
        return gm_fail(GM_EVALUE, "rope: dims %d, expected an even number up to the last axis of %lld", dims,
                       (long long)x->shape[n - 1]), NULL;
    int64_t half = dims / 2, steps = x->shape[n - 2], batches = n > 2 ? x->shape[0] : 1, per_batch = 1;
    if (!dtype_is_integer((gm_dtype)offset->dtype) || offset->ndim > 1 ||
        (offset->size != 1 && offset->size != batches)) {
        char text[128];
        array_text(offset, text);
        return gm_fail(GM_EVALUE, "rope: offset is %s, expected one integer, or one for each of the %lld batches", text,
                       (long long)batches), NULL;
    }
    if (!array_is_none(freqs) && (freqs->ndim != 1 || freqs->shape[0] != dims / 2))
        return gm_fail(GM_EVALUE, "rope: freqs must have dims / 2 = %d items", dims / 2), NULL;
    for (int i = 1; i < n - 2; i++)
        per_batch *= x->shape[i];
    gm_array *inv_freq;
    if (array_is_none(freqs)) {
        inv_freq = array_new(s, GM_FLOAT32, 1, &half);
        if (!inv_freq)
            return NULL;
        for (int64_t i = 0; i < half; i++)
            ((float *)array_ptr(inv_freq))[i] = (float)(pow((double)base, -2.0 * (double)i / dims) * (double)scale);
    } else {
        inv_freq = gm_divide(s, scalar_array(s, (double)scale, GM_FLOAT32), gm_astype(s, freqs, GM_FLOAT32));
    }
    /* positions [batches, 1, steps], one row of angles for each row of x */
    gm_array *start = gm_reshape(s, gm_astype(s, offset, GM_INT32), 2, (int64_t[]){-1, 1});
    gm_array *positions = gm_add(s, start, gm_arange(s, 0, (double)steps, 1, GM_INT32));
    positions = gm_reshape(s, positions, 1, (int64_t[]){-1});
    gm_array *angles = gm_rope_angles(s, positions, inv_freq, 1);
    int64_t wanted[5] = {batches, per_batch, steps, 2, half};
    angles = gm_reshape(s, angles, 5, (int64_t[]){offset->size == 1 ? 1 : batches, 1, steps, 2, half});
    angles = gm_reshape(s, gm_contiguous(s, gm_broadcast_to(s, angles, 5, wanted)), 3, (int64_t[]){-1, 2, half});
    gm_array *in[2] = {x, angles};
    return array_node(s, &rope_op, in, 2, &(rotate_param){traditional});
}
