/* packed.h - what operations on packed matrices share. */
#ifndef GOMLX_OPS_PACKED_H
#define GOMLX_OPS_PACKED_H
#include "ops/ops.h"

/* GM_EVALUE where w is no packed matrix. */
gm_status check_packed(const char *op, const gm_array *w);
/* Whether w, packed, multiplies rows of x, float32 or what they became, in a form: bfloat16 where w is. */
gm_status check_packed_product(const char *op, const gm_array *x, gm_row_form form, const gm_array *w);
/* Whether a product of x and w takes these besides; either may be GM_NONE. */
gm_status check_packed_terms(const char *op, const gm_array *x, const gm_array *w, const gm_array *bias,
                             const gm_array *residual);
/* What a gated linear unit over two products gives. */
gm_status packed_glu_spec(const char *op, const gm_array *x, const gm_array *gate, const gm_array *up, gm_dtype type,
                          gm_spec *out);
gm_row_form packed_form(const gm_array *x);
/* A packed matrix, or one that still waits in its file, as contracts take it. */
gm_matrix matrix_of(const gm_array *w);
#endif
