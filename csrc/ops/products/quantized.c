/* quantized.c - MLX's quantised matrices: values to fields, scales and biases, and back; 8-bit floats.
 * Sources: the documentation of mlx.core.quantize; OCP Microscaling Formats (MX) Specification 1.0, 2023, for the float
 * modes. */
#include <string.h>
#include "ops/products/quantized.h"

const gm_field quantized_fields[] = {{FIELD_INT, offsetof(quantized_param, mode), "mode", 1},
                                     {FIELD_INT, offsetof(quantized_param, bits), "bits", 1},
                                     {FIELD_INT, offsetof(quantized_param, group), "group_size", 1},
                                     {FIELD_INT, offsetof(quantized_param, transpose), "transpose", 1},
                                     {0}};

static const struct {
    const char *name;
    int group, bits;
} modes[] = {
    [GM_AFFINE] = {"affine", 64, 4},
    [GM_MXFP4] = {"mxfp4", 32, 4},
    [GM_MXFP8] = {"mxfp8", 32, 8},
    [GM_NVFP4] = {"nvfp4", 16, 4},
};
#define N_MODES ((int)(sizeof modes / sizeof modes[0]))

const char *quantized_mode_name(int mode) { return modes[mode].name; }

gm_status quantized_coding(const char *op, const char *mode, int group, int bits, quantized_param *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_MODES; i++)
        if (strcmp(mode, modes[i].name) == 0) {
            out->mode = i;
            out->group = group == QUANTIZED_DEFAULT ? modes[i].group : group;
            out->bits = bits == QUANTIZED_DEFAULT ? modes[i].bits : bits;
            return GM_OK;
        }
    return gm_fail(GM_EVALUE, "%s: got mode '%.40s', expected affine, mxfp4, mxfp8 or nvfp4", op, mode);
}

gm_status quantized_check(const char *op, const quantized_param *p) {
    if (p->mode != GM_AFFINE) {
        if (p->group != modes[p->mode].group || p->bits != modes[p->mode].bits)
            return gm_fail(GM_EVALUE, "%s: mode %s has group size %d and %d bits, got %d and %d", op,
                           modes[p->mode].name, modes[p->mode].group, modes[p->mode].bits, p->group, p->bits);
        return GM_OK;
    }
    if (p->group != 32 && p->group != 64 && p->group != 128)
        return gm_fail(GM_EVALUE, "%s: got group size %d, expected 32, 64 or 128", op, p->group);
    if (p->bits < 1 || p->bits > 8 || p->bits == 7)
        return gm_fail(GM_EVALUE, "%s: got %d bits, expected 1, 2, 3, 4, 5, 6 or 8", op, p->bits);
    return GM_OK;
}

/* ---- operands ---- */
static bool same_but_last(const gm_array *a, const gm_array *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)(a->ndim - 1) * sizeof *a->shape) == 0;
}

static bool is_real_float(uint32_t dtype) { return dtype_is_float((gm_dtype)dtype); }

gm_status quantized_operands(gm_scope *s, const char *op, const quantized_param *p, gm_array *w, gm_array **scales,
                             gm_array **biases) {
    char tw[128], ts[128];
    bool affine = p->mode == GM_AFFINE, biased = !array_is_none(*biases);
    if (affine != biased)
        return gm_fail(GM_EVALUE, "%s: mode %s %s", op, modes[p->mode].name,
                       affine ? "needs biases" : "has no biases, but some were given");
    if (w->dtype != GM_UINT32)
        return gm_fail(GM_EVALUE, "%s: the quantised matrix is %s, expected uint32", op,
                       gm_dtype_name((gm_dtype)w->dtype));
    if (w->ndim < 2)
        return gm_fail(GM_EVALUE, "%s: the quantised matrix has %d dimensions, expected 2 or more", op, w->ndim);
    shape_text(w->ndim, w->shape, tw);
    shape_text((*scales)->ndim, (*scales)->shape, ts);
    int64_t words = w->shape[w->ndim - 1] * 32;
    if (!same_but_last(w, *scales) || p->bits < 1 || words % p->bits ||
        (*scales)->shape[w->ndim - 1] * p->group != words / p->bits)
        return gm_fail(GM_ESHAPE, "%s: a matrix %s and scales %s do not belong together with group size %d and %d bits",
                       op, tw, ts, p->group, p->bits);
    if (biased &&
        (!same_but_last(*biases, *scales) || (*biases)->shape[w->ndim - 1] != (*scales)->shape[w->ndim - 1])) {
        shape_text((*biases)->ndim, (*biases)->shape, tw);
        return gm_fail(GM_ESHAPE, "%s: scales %s and biases %s have different shapes", op, ts, tw);
    }
    if (!affine && (*scales)->dtype != GM_UINT8)
        return gm_fail(GM_EVALUE, "%s: scales of mode %s are uint8, got %s", op, modes[p->mode].name,
                       gm_dtype_name((gm_dtype)(*scales)->dtype));
    if (affine && (!is_real_float((*scales)->dtype) || !is_real_float((*biases)->dtype)))
        return gm_fail(GM_EVALUE, "%s: scales are %s and biases %s, expected floating point", op,
                       gm_dtype_name((gm_dtype)(*scales)->dtype), gm_dtype_name((gm_dtype)(*biases)->dtype));
    GM_TRY(quantized_check(op, p));
    if (affine) {
        gm_dtype type = gm_promote((gm_dtype)(*scales)->dtype, (gm_dtype)(*biases)->dtype);
        *scales = gm_astype(s, *scales, type);
        *biases = gm_astype(s, *biases, type);
    }
    return *scales && *biases ? GM_OK : error_code();
}

gm_status contiguous_operand(gm_queue *q, const gm_array *a, gm_dtype type, const void **out) {
    int64_t strides[GM_MAX_NDIM];
    if (a->dtype == type && array_is_contiguous(a)) {
        *out = array_ptr(a);
        return GM_OK;
    }
    shape_strides(a->ndim, a->shape, strides);
    void *copy = queue_scratch(q, (size_t)a->size * gm_dtype_size(type) + 1);
    if (!copy)
        return error_code();
    GM_TRY(launch_copy(q, (copy_to){copy, type, strides}, from_array(a), a->ndim, a->shape));
    queue_fence(q);
    *out = copy;
    return GM_OK;
}

gm_status quantized_matrix(gm_queue *q, const quantized_param *p, const gm_array *w, const gm_array *scales,
                           const gm_array *biases, gm_grouped *out) {
    *out = (gm_grouped){.mode = p->mode,
                        .bits = p->bits,
                        .group = p->group,
                        .scale_type = scales->dtype,
                        .matrices = 1,
                        .rows = w->shape[w->ndim - 2],
                        .k = quantized_columns(p, w)};
    for (int i = 0; i < w->ndim - 2; i++)
        out->matrices *= w->shape[i];
    GM_TRY(contiguous_operand(q, w, GM_UINT32, &out->weight));
    GM_TRY(contiguous_operand(q, scales, (gm_dtype)scales->dtype, &out->scales));
    return array_is_none(biases) ? GM_OK : contiguous_operand(q, biases, (gm_dtype)biases->dtype, &out->biases);
}

gm_status quantized_global(const char *op, const quantized_param *p, const gm_array *scale) {
    if (array_is_none(scale))
        return GM_OK;
    if (p->mode != GM_NVFP4)
        return gm_fail(GM_EVALUE, "%s: only mode nvfp4 has a global scale, the mode is %s", op, modes[p->mode].name);
    if (scale->dtype != GM_FLOAT32)
        return gm_fail(GM_EVALUE, "%s: the global scale is %s, expected float32", op,
                       gm_dtype_name((gm_dtype)scale->dtype));
    if (scale->size == 1)
        return GM_OK;
    char text[128];
    shape_text(scale->ndim, scale->shape, text);
    return gm_fail(GM_ESHAPE, "%s: the global scale has shape %s, expected one number", op, text);
}

/* ---- parameters of a file ---- */
bool quantized_is_known(const quantized_param *p) { return within(p->mode, N_MODES) && within(p->transpose, 2); }

/* ---- quantize: w, global scale; out: fields, scales and, of GM_AFFINE, biases ---- */
static gm_status quantize_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const quantized_param *p = param;
    const gm_array *w = in[0];
    int last = w->ndim - 1;
    for (int k = 0; k < (p->mode == GM_AFFINE ? 3 : 2); k++) {
        spec_like(&out[k], w, k == 0 ? GM_UINT32 : p->mode == GM_AFFINE ? (gm_dtype)w->dtype : GM_UINT8);
        out[k].shape[last] = k == 0 ? w->shape[last] * p->bits / 32 : w->shape[last] / p->group;
    }
    return GM_OK;
}

static gm_status quantize_eval(gm_array *out, gm_queue *q) {
    const quantized_param *p = out->param;
    const gm_array *w = out->in[0], *global = out->in[1];
    const void *values;
    GM_TRY(contiguous_operand(q, w, (gm_dtype)w->dtype, &values));
    for (int k = 0; k < array_n_out(out); k++)
        GM_TRY(array_alloc(array_output(out, k), q));
    return DISPATCH(q, group_quantize, w->size / p->group, .weight = array_ptr(out),
                    .scales = array_ptr(array_output(out, 1)),
                    .biases = p->mode == GM_AFFINE ? array_ptr(array_output(out, 2)) : NULL, .in = values,
                    .mode = p->mode, .bits = p->bits, .group = p->group, .in_type = w->dtype,
                    .global = array_is_none(global) ? NULL : array_ptr(global));
}

/* [..., n] as [..., n / group, group]. */
static gm_array *in_groups(gm_scope *s, gm_array *x, int group) {
    int64_t shape[GM_MAX_NDIM + 1];
    if (!x)
        return NULL;
    memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
    shape[x->ndim - 1] = x->shape[x->ndim - 1] / group;
    shape[x->ndim] = group;
    return gm_reshape(s, x, x->ndim + 1, shape);
}
/* [..., n] as [..., n, 1]. */
static gm_array *each_group(gm_scope *s, gm_array *x) { return in_groups(s, x, 1); }

/* The bias is the group's value of greatest magnitude; the scale is that value over an integer number of steps, which
 * is held fixed; groups whose bias is zero have no such value. */
static void quantize_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                         gm_array **grad) {
    const quantized_param *p = out->param;
    if (p->mode != GM_AFFINE || !(cotangents[1] || cotangents[2]))
        return;
    gm_array *scale = array_pick(s, out, 1), *bias = array_pick(s, out, 2), *of_edge = NULL;
    if (cotangents[1]) {
        gm_array *steps = round_even(s, gm_divide(s, bias, scale));
        of_edge = gm_divide(s, cotangents[1], steps);
    }
    if (cotangents[2])
        of_edge = of_edge ? gm_add(s, of_edge, cotangents[2]) : cotangents[2];
    gm_array *zero = bias ? scalar_array(s, 0, (gm_dtype)bias->dtype) : NULL, *edge = each_group(s, bias);
    gm_array *at_edge = gm_equal(s, in_groups(s, in[0], p->group), edge);
    at_edge = gm_logical_and(s, at_edge, gm_not_equal(s, edge, zero));
    gm_array *share = gm_where(s, at_edge, each_group(s, of_edge), zero);
    grad[0] = gm_reshape(s, share, in[0]->ndim, in[0]->shape);
}

static gm_status quantize_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    if (batched[1])
        return GM_AGAIN;
    return array_nodes(s, out->op, in, 2, out->param, out->param_size, array_n_out(out), outs);
}

static gm_status check_values(const char *op, const quantized_param *p, const gm_array *w, const gm_array *global) {
    GM_TRY(quantized_check(op, p));
    if (!is_real_float(w->dtype))
        return gm_fail(GM_EVALUE, "%s: got %s, expected floating point", op, gm_dtype_name((gm_dtype)w->dtype));
    if (w->ndim < 2)
        return gm_fail(GM_EVALUE, "%s: the matrix has %d dimensions, expected 2 or more", op, w->ndim);
    char text[128];
    shape_text(w->ndim, w->shape, text);
    if (w->shape[w->ndim - 1] % p->group)
        return gm_fail(GM_ESHAPE, "%s: the last dimension of %s is not a multiple of the group size %d", op, text,
                       p->group);
    return quantized_global(op, p, global);
}

static gm_status quantize_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    const quantized_param *p = param;
    if (!quantized_is_known(p) || in[0]->dtype == GM_FLOAT64 || n_out != (p->mode == GM_AFFINE ? 3 : 2))
        return rebuild_refuse("quantize");
    GM_TRY(check_values("quantize", p, in[0], in[1]));
    return array_nodes(s, &quantize_op, in, n_in, p, sizeof *p, n_out, outs);
}

const gm_op quantize_op = {.name = "quantize",
                           .n_in = 2,
                           .n_out = -1,
                           .nondiff = 2,
                           .param_size = sizeof(quantized_param),
                           .fields = quantized_fields,
                           .infer = quantize_infer,
                           .eval = quantize_eval,
                           .vjp = quantize_vjp,
                           .vmap = quantize_vmap,
                           .rebuild = quantize_rebuild,
                           .optional = 2};

gm_array *gm_quantize(gm_scope *s, gm_array *w, int group_size, int bits, const char *mode, gm_array *global_scale,
                      gm_array **others) {
    quantized_param p;
    gm_array *outs[3] = {NULL, NULL, GM_NONE};
    others[0] = others[1] = NULL;
    if (!w || !global_scale || quantized_coding("quantize", mode, group_size, bits, &p) != GM_OK ||
        check_values("quantize", &p, w, global_scale) != GM_OK)
        return NULL;
    bool wide = w->dtype == GM_FLOAT64;
    gm_array *in[2] = {wide ? gm_astype(s, w, GM_FLOAT32) : w, global_scale};
    if (array_nodes(s, &quantize_op, in, 2, &p, sizeof p, p.mode == GM_AFFINE ? 3 : 2, outs) != GM_OK)
        return NULL;
    others[0] = wide && p.mode == GM_AFFINE ? gm_astype(s, outs[1], GM_FLOAT64) : outs[1];
    others[1] = wide && p.mode == GM_AFFINE ? gm_astype(s, outs[2], GM_FLOAT64) : outs[2];
    return outs[0];
}

/* ---- dequantize: w, scales, biases, global scale ---- */
static gm_status dequantize_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const quantized_param *p = param;
    spec_like(out, in[0], p->mode == GM_AFFINE ? (gm_dtype)in[1]->dtype : GM_FLOAT32);
    out->shape[out->ndim - 1] = quantized_columns(p, in[0]);
    return GM_OK;
}

static gm_status dequantize_eval(gm_array *out, gm_queue *q) {
    const quantized_param *p = out->param;
    gm_grouped from;
    GM_TRY(quantized_matrix(q, p, out->in[0], out->in[1], out->in[2], &from));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, group_dequantize, out->size / p->group, .from = from, .out = array_ptr(out),
                    .global = array_is_none(out->in[3]) ? NULL : array_ptr(out->in[3]));
}

/* value = scale * field + bias */
static void dequantize_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents,
                           gm_array **grad) {
    const quantized_param *p = out->param;
    if (p->mode != GM_AFFINE)
        return;
    gm_array *cotangent = in_groups(s, cotangents[0], p->group);
    grad[1] = gm_sum(s, gm_multiply(s, cotangent, in_groups(s, quantized_integers(s, p, in[0], in[1]), p->group)), 1,
                     (int[]){-1}, false);
    grad[2] = gm_sum(s, cotangent, 1, (int[]){-1}, false);
}

static gm_status dequantize_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched,
                                 gm_array **outs) {
    if (batched[3])
        return GM_AGAIN;
    gm_array *all[4];
    int64_t batch = batch_size(in, 3, batched);
    for (int i = 0; i < 4; i++)
        all[i] = i < 3 ? batched_input(s, in[i], batched[i], batch) : in[i];
    outs[0] = array_again(s, out, all);
    return outs[0] ? GM_OK : error_code();
}

static gm_status dequantize_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                    gm_array **outs) {
    gm_array *all[4] = {in[0], in[1], in[2], in[3]};
    const quantized_param *p = param;
    (void)n_out;
    if (!quantized_is_known(p) || in[1]->dtype == GM_FLOAT64)
        return rebuild_refuse("dequantize");
    GM_TRY(quantized_operands(s, "dequantize", p, in[0], &all[1], &all[2]));
    GM_TRY(quantized_global("dequantize", p, in[3]));
    return rebuilt(array_node(s, &dequantize_op, all, n_in, p), outs);
}

static gm_status dequantize_refuse(const gm_array *node, int i, bool forward) {
    const quantized_param *p = node->param;
    return i == 1 && p->mode != GM_AFFINE
               ? gm_fail(GM_EVALUE, "[Dequantize::%s] no gradient wrt scales in %s quantization.",
                         forward ? "jvp" : "vjp", quantized_mode_name(p->mode))
               : GM_OK;
}

const gm_op dequantize_op = {.name = "dequantize",
                             .n_in = 4,
                             .n_out = 1,
                             .nondiff = 9,
                             .refuse = dequantize_refuse,
                             .param_size = sizeof(quantized_param),
                             .fields = quantized_fields,
                             .infer = dequantize_infer,
                             .eval = dequantize_eval,
                             .vjp = dequantize_vjp,
                             .vmap = dequantize_vmap,
                             .rebuild = dequantize_rebuild,
                             .optional = 4 | 8};

gm_array *quantized_integers(gm_scope *s, const quantized_param *p, gm_array *w, gm_array *scales) {
    if (!w || !scales)
        return NULL;
    gm_dtype type = (gm_dtype)scales->dtype;
    gm_array *in[4] = {w, gm_full(s, scales->ndim, scales->shape, scalar_array(s, 1, type), type),
                       gm_full(s, scales->ndim, scales->shape, scalar_array(s, 0, type), type), GM_NONE};
    quantized_param coding = *p;
    coding.transpose = 0;
    return array_node(s, &dequantize_op, in, 4, &coding);
}

gm_array *gm_dequantize(gm_scope *s, gm_array *w, gm_array *scales, gm_array *biases, int group_size, int bits,
                        const char *mode, gm_array *global_scale, gm_dtype type) {
    quantized_param p;
    if (!w || !scales || !biases || !global_scale ||
        quantized_coding("dequantize", mode, group_size, bits, &p) != GM_OK)
        return NULL;
    if (type != GM_DTYPE_COUNT && !is_real_float(type))
        return gm_fail(GM_EVALUE, "dequantize: got dtype %s, expected floating point", gm_dtype_name(type)), NULL;
    if (quantized_operands(s, "dequantize", &p, w, &scales, &biases) != GM_OK ||
        quantized_global("dequantize", &p, global_scale) != GM_OK)
        return NULL;
    if (type == GM_DTYPE_COUNT)
        type = p.mode == GM_AFFINE ? (gm_dtype)scales->dtype : array_is_none(global_scale) ? GM_BFLOAT16 : GM_FLOAT32;
    if (scales->dtype == GM_FLOAT64) {
        gm_array *integers = gm_astype(s, quantized_integers(s, &p, w, gm_astype(s, scales, GM_FLOAT32)), GM_FLOAT64);
        gm_array *groups = gm_multiply(s, in_groups(s, integers, p.group), each_group(s, scales));
        groups = gm_add(s, groups, each_group(s, biases));
        return integers ? gm_astype(s, gm_reshape(s, groups, integers->ndim, integers->shape), type) : NULL;
    }
    gm_array *in[4] = {w, scales, biases, global_scale};
    return gm_astype(s, array_node(s, &dequantize_op, in, 4, &p), type);
}

/* ---- there and back: x, global scale ---- */
static gm_status round_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], GM_FLOAT32);
    return GM_OK;
}

static gm_status round_eval(gm_array *out, gm_queue *q) {
    const quantized_param *p = out->param;
    const gm_array *x = out->in[0];
    const float *global = array_is_none(out->in[1]) ? NULL : array_ptr(out->in[1]);
    const void *values;
    const int64_t groups = x->size / p->group;
    GM_TRY(contiguous_operand(q, x, (gm_dtype)x->dtype, &values));
    GM_TRY(array_alloc(out, q));
    gm_grouped between = {.mode = p->mode,
                          .bits = p->bits,
                          .group = p->group,
                          .scale_type = x->dtype,
                          .matrices = 1,
                          .rows = groups,
                          .k = p->group};
    void *fields = queue_scratch(q, (size_t)(x->size * p->bits / 8 + 1));
    void *scales = queue_scratch(q, (size_t)groups + 1);
    if (!fields || !scales)
        return error_code();
    between.weight = fields;
    between.scales = scales;
    GM_TRY(DISPATCH(q, group_quantize, groups, .weight = fields, .scales = scales, .in = values, .mode = p->mode,
                    .bits = p->bits, .group = p->group, .in_type = x->dtype, .global = global));
    queue_fence(q);
    return DISPATCH(q, group_dequantize, groups, .from = between, .out = array_ptr(out), .global = global);
}

static void round_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)out;
    grad[0] = gm_astype(s, cotangents[0], (gm_dtype)in[0]->dtype);
}

static gm_status round_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                               gm_array **outs) {
    const quantized_param *p = param;
    (void)n_in;
    (void)n_out;
    if (!quantized_is_known(p) || p->mode == GM_AFFINE || in[0]->dtype == GM_FLOAT64)
        return rebuild_refuse("quantized_round");
    return rebuilt(quantized_round(s, "quantized_round", p, in[0], in[1]), outs);
}

const gm_op quantized_round_op = {.name = "quantized_round",
                                  .n_in = 2,
                                  .n_out = 1,
                                  .nondiff = 2,
                                  .param_size = sizeof(quantized_param),
                                  .fields = quantized_fields,
                                  .infer = round_infer,
                                  .eval = round_eval,
                                  .vjp = round_vjp,
                                  .rebuild = round_rebuild,
                                  .optional = 2};

gm_array *quantized_round(gm_scope *s, const char *op, const quantized_param *p, gm_array *x, gm_array *global_scale) {
    if (!x || !global_scale || check_values(op, p, x, global_scale) != GM_OK)
        return NULL;
    gm_array *in[2] = {x, global_scale};
    return array_node(s, &quantized_round_op, in, 2, p);
}

/* ---- 8-bit floats ---- */
static gm_status to_fp8_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], GM_UINT8);
    return GM_OK;
}

static gm_status to_fp8_eval(gm_array *out, gm_queue *q) {
    const void *values;
    GM_TRY(contiguous_operand(q, out->in[0], (gm_dtype)out->in[0]->dtype, &values));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, fp8_encode, out->size, .out = array_ptr(out), .in = values, .type = out->in[0]->dtype);
}

typedef struct { int32_t type; } from_fp8_param;
static const gm_field from_fp8_fields[] = {{FIELD_INT, offsetof(from_fp8_param, type), "dtype", 1}, {0}};

static gm_status from_fp8_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    spec_like(out, in[0], (gm_dtype)((const from_fp8_param *)param)->type);
    return GM_OK;
}

static gm_status from_fp8_eval(gm_array *out, gm_queue *q) {
    const void *codes;
    GM_TRY(contiguous_operand(q, out->in[0], GM_UINT8, &codes));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, fp8_decode, out->size, .out = array_ptr(out), .in = codes, .type = out->dtype);
}

static gm_status fp8_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    outs[0] = array_again(s, out, in);
    return outs[0] ? GM_OK : error_code();
}

static gm_status to_fp8_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)param;
    (void)n_out;
    return rebuilt(gm_to_fp8(s, in[0]), outs);
}

static gm_status from_fp8_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    const int32_t type = ((const from_fp8_param *)param)->type;
    (void)n_in;
    (void)n_out;
    return within(type, GM_DTYPE_COUNT) ? rebuilt(gm_from_fp8(s, in[0], (gm_dtype)type), outs)
                                        : rebuild_refuse("from_fp8");
}

const gm_op to_fp8_op = {.name = "to_fp8",
                         .n_in = 1,
                         .n_out = 1,
                         .infer = to_fp8_infer,
                         .eval = to_fp8_eval,
                         .vmap = fp8_vmap,
                         .rebuild = to_fp8_rebuild};
const gm_op from_fp8_op = {.name = "from_fp8",
                           .n_in = 1,
                           .n_out = 1,
                           .param_size = sizeof(from_fp8_param),
                           .fields = from_fp8_fields,
                           .infer = from_fp8_infer,
                           .eval = from_fp8_eval,
                           .vmap = fp8_vmap,
                           .rebuild = from_fp8_rebuild};

gm_array *gm_to_fp8(gm_scope *s, gm_array *x) {
    if (!x)
        return NULL;
    if (!is_real_float(x->dtype))
        return gm_fail(GM_EVALUE, "to_fp8: got %s, expected floating point", gm_dtype_name((gm_dtype)x->dtype)), NULL;
    if (x->dtype == GM_FLOAT64)
        x = gm_astype(s, x, GM_FLOAT32);
    return array_node(s, &to_fp8_op, &x, 1, NULL);
}

gm_array *gm_from_fp8(gm_scope *s, gm_array *x, gm_dtype type) {
    if (!x)
        return NULL;
    if (x->dtype != GM_UINT8)
        return gm_fail(GM_EVALUE, "from_fp8: got %s, expected uint8", gm_dtype_name((gm_dtype)x->dtype)), NULL;
    if (!is_real_float(type))
        return gm_fail(GM_EVALUE, "from_fp8: got dtype %s, expected floating point", gm_dtype_name(type)), NULL;
    gm_dtype narrow = type == GM_FLOAT64 ? GM_FLOAT32 : type;
    return gm_astype(s, array_node(s, &from_fp8_op, &x, 1, &(from_fp8_param){(int32_t)narrow}), type);
}
