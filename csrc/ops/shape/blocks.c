/* blocks.c - rows to GGUF's block formats as bytes, and back: what files are written and read with. */
#include <stdio.h>
#include <string.h>
#include "ops/ops.h"

typedef struct { int format; } blocks_param;
static const gm_field blocks_fields[] = {{FIELD_INT, offsetof(blocks_param, format), "format", 1}, {0}};

#define FIRST_BLOCK (GM_QUANT_bf16 + 1) /* formats before it are plain elements, */
#define FIRST_WRITTEN GM_QUANT_q4_0     /* those before this one are only read, */
#define END_BLOCK (GM_QUANT_mxfp4 + 1)  /* those from here on MLX's */

static gm_status find_format(const char *op, const char *name, int first, blocks_param *out) {
    for (int i = first; i < END_BLOCK; i++)
        if (strcmp(name, gm_quants[i].name) == 0) {
            out->format = i;
            return GM_OK;
        }
    char known[256] = "";
    for (int i = first; i < END_BLOCK; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i == first ? "" : ", ",
                 gm_quants[i].name);
    return gm_fail(GM_EVALUE, "%s: got format '%.40s', expected one of %s", op, name, known);
}

/* x has rows of whole units. */
static gm_status check_units(const char *op, const gm_array *x, int unit, const char *what) {
    if (x->ndim > 0 && x->shape[x->ndim - 1] % unit == 0)
        return GM_OK;
    char text[128];
    array_text(x, text);
    return gm_fail(GM_ESHAPE, "%s: got %s, expected rows of a multiple of %d %s", op, text, unit, what);
}

static bool is_known(const blocks_param *p) { return p->format >= FIRST_BLOCK && p->format < END_BLOCK; }
static bool is_written(const blocks_param *p) { return p->format >= FIRST_WRITTEN && p->format < END_BLOCK; }

/* ---- to blocks ---- */
static gm_status quantize_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_quant_info *f = &gm_quants[((const blocks_param *)param)->format];
    spec_like(out, in[0], GM_UINT8);
    out->shape[out->ndim - 1] = in[0]->shape[out->ndim - 1] / f->values * f->bytes;
    return GM_OK;
}

static gm_status quantize_eval(gm_array *out, gm_queue *q) {
    int format = ((const blocks_param *)out->param)->format;
    const float *x;
    GM_TRY(float_operand(q, out->in[0], &x));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, block_quantize, out->in[0]->size / gm_quants[format].values, .out = array_ptr(out), .in = x,
                    .format = format);
}

static gm_status quantize_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                  gm_array **outs) {
    const blocks_param *p = param;
    (void)n_in;
    (void)n_out;
    return is_written(p) ? rebuilt(gm_quantize_blocks(s, in[0], gm_quants[p->format].name), outs)
                         : rebuild_refuse("quantize_blocks");
}

const gm_op quantize_blocks_op = {.name = "quantize_blocks",
                                  .place = PLACE_FALLBACK,
                                  .n_in = 1,
                                  .n_out = 1,
                                  .nondiff = 1,
                                  .param_size = sizeof(blocks_param),
                                  .fields = blocks_fields,
                                  .infer = quantize_infer,
                                  .eval = quantize_eval,
                                  .vmap = vmap_leading,
                                  .rebuild = quantize_rebuild};

gm_array *gm_quantize_blocks(gm_scope *s, gm_array *w, const char *format) {
    blocks_param p;
    if (!w || find_format("quantize_blocks", format, FIRST_WRITTEN, &p) != GM_OK)
        return NULL;
    if (!dtype_is_float((gm_dtype)w->dtype))
        return gm_fail(GM_EVALUE, "quantize_blocks: got %s, expected floating point",
                       gm_dtype_name((gm_dtype)w->dtype)),
               NULL;
    if (check_units("quantize_blocks", w, gm_quants[p.format].values, "values") != GM_OK)
        return NULL;
    w = gm_astype(s, w, GM_FLOAT32);
    return array_node(s, &quantize_blocks_op, &w, 1, &p);
}

/* ---- and back ---- */
static gm_status dequantize_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_quant_info *f = &gm_quants[((const blocks_param *)param)->format];
    spec_like(out, in[0], GM_FLOAT32);
    out->shape[out->ndim - 1] = in[0]->shape[out->ndim - 1] / f->bytes * f->values;
    return GM_OK;
}

static gm_status dequantize_eval(gm_array *out, gm_queue *q) {
    int format = ((const blocks_param *)out->param)->format;
    const void *blocks;
    GM_TRY(dense_operand(q, out->in[0], &blocks));
    GM_TRY(array_alloc(out, q));
    const int values = gm_quants[format].values; /* a block is a row of its own */
    return DISPATCH(q, dequantize, out->size / values, .out = array_ptr(out), .in = blocks, .format = format,
                    .k = values);
}

static gm_status dequantize_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                    gm_array **outs) {
    const blocks_param *p = param;
    (void)n_in;
    (void)n_out;
    return is_known(p) ? rebuilt(gm_dequantize_blocks(s, in[0], gm_quants[p->format].name), outs)
                       : rebuild_refuse("dequantize_blocks");
}

const gm_op dequantize_blocks_op = {.name = "dequantize_blocks",
                                    .n_in = 1,
                                    .n_out = 1,
                                    .nondiff = 1,
                                    .param_size = sizeof(blocks_param),
                                    .fields = blocks_fields,
                                    .infer = dequantize_infer,
                                    .eval = dequantize_eval,
                                    .vmap = vmap_leading,
                                    .rebuild = dequantize_rebuild};

gm_array *gm_dequantize_blocks(gm_scope *s, gm_array *blocks, const char *format) {
    blocks_param p;
    if (!blocks || find_format("dequantize_blocks", format, FIRST_BLOCK, &p) != GM_OK)
        return NULL;
    if (blocks->dtype != GM_UINT8)
        return gm_fail(GM_EVALUE, "dequantize_blocks: got %s, expected uint8", gm_dtype_name((gm_dtype)blocks->dtype)),
               NULL;
    if (check_units("dequantize_blocks", blocks, gm_quants[p.format].bytes, "bytes") != GM_OK)
        return NULL;
    return array_node(s, &dequantize_blocks_op, &blocks, 1, &p);
}
