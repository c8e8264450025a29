/* made_rows.h - products of rows that are normed first, by contracts of their own: for backends whose products do not
 * do that as they read. */
#ifndef GOMLX_MADE_ROWS_H
#define GOMLX_MADE_ROWS_H
#include "recorder.h"

/* Records what makes the rows, of k numbers; NULL: the recorder failed. */
static inline const void *record_made_rows(gm_recorder *r, const gm_made_rows *rows, int64_t n, int64_t k) {
    const float *x = rows->x;
    if (rows->norm) {
        float *normed = r->workspace(r, (size_t)(n * k) * sizeof(float) + 1);
        const gm_rms_norm_args norm = {
            .out = normed, .x = x, .weight = rows->norm, .type = GM_T_F32, .x_stride = k, .dim = k, .eps = rows->eps};
        if (!normed || !r->contracts->rms_norm(r, &norm, n)) return NULL;
        r->fence(r);
        x = normed;
    }
    if (rows->form == GM_FORM_F32) return x;
    const bool int8 = rows->form == GM_FORM_INT8;
    void *out = r->workspace(r, (int8 ? act_bytes(n, k) : (size_t)(n * k) * 2) + 1);
    int64_t *list = r->arguments(r, 2 * sizeof *list); /* a shape and strides of one dimension */
    if (!out || !list) return NULL;
    list[0] = n * k;
    list[1] = 1;
    const gm_quantize_act_args act = {.out = out, .x = x, .x_stride = k, .tokens = n, .k = k};
    const gm_copy_args copy = {.out = out,
                               .in = x,
                               .out_type = GM_T_BF16,
                               .in_type = GM_T_F32,
                               .ndim = 1,
                               .shape = list,
                               .out_strides = list + 1,
                               .in_strides = list + 1};
    if (!(int8 ? r->contracts->quantize_act(r, &act, n) : r->contracts->copy(r, &copy, n * k))) return NULL;
    r->fence(r);
    return out;
}
/* Products of such rows, x. */
static inline bool record_products_of(gm_recorder *r, const gm_packed_products_args *a, const void *x, int64_t n) {
    for (int i = 0; i < a->count && x; i++) {
        const gm_packed_matmul_args product = {.out = a->parts[i].out,
                                               .x = x,
                                               .form = a->rows.form,
                                               .weight = a->parts[i].weight,
                                               .bias = a->parts[i].bias,
                                               .residual = i ? NULL : a->residual,
                                               .prompt = a->prompt};
        if (!r->contracts->packed_matmul(r, &product, n)) return false;
    }
    return x != NULL;
}
static inline bool record_glu_of(gm_recorder *r, const gm_made_glu_args *a, const void *x, int64_t n) {
    gm_packed_glu_args glu = a->glu;
    glu.form = a->rows.form;
    glu.x = x;
    return x && r->contracts->packed_glu(r, &glu, n);
}
static inline bool record_products_apart(gm_recorder *r, const gm_packed_products_args *a, int64_t n) {
    return record_products_of(r, a, record_made_rows(r, &a->rows, n, a->parts->weight.k), n);
}
static inline bool record_glu_apart(gm_recorder *r, const gm_made_glu_args *a, int64_t n) {
    return record_glu_of(r, a, record_made_rows(r, &a->rows, n, a->glu.gate.k), n);
}
#endif
