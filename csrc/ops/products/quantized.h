/* quantized.h - MLX's quantised matrices as the ops see them: how one is coded, and what its arrays must look like. */
#ifndef GOMLX_OPS_QUANTIZED_H
#define GOMLX_OPS_QUANTIZED_H
#include <limits.h>
#include "ops/ops.h"

#define QUANTIZED_DEFAULT INT_MIN /* a group size or number of bits that was not given */

typedef struct {
    int32_t mode, bits, group; /* mode: gm_group_mode */
    int32_t transpose;         /* of products */
} quantized_param;
extern const gm_field quantized_fields[];

/* The coding by the mode's name, with its defaults; GM_EVALUE for an unknown mode. */
gm_status quantized_coding(const char *op, const char *mode, int group, int bits, quantized_param *out);
/* Whether there is such a coding; GM_EVALUE says what the mode allows. */
gm_status quantized_check(const char *op, const quantized_param *p);
/* Whether parameters of a file name a mode at all: what else they say is checked as that of arguments. */
bool quantized_is_known(const quantized_param *p);
/* Weight, scales and biases of one or more matrices; GM_ESHAPE, GM_EVALUE. Scales and biases get one dtype. */
gm_status quantized_operands(gm_scope *s, const char *op, const quantized_param *p, gm_array *w, gm_array **scales,
                             gm_array **biases);
const char *quantized_mode_name(int mode);
/* Values of a row. */
static inline int64_t quantized_columns(const quantized_param *p, const gm_array *w) {
    return w->shape[w->ndim - 1] * 32 / p->bits;
}
/* A global scale is one float32 of mode nvfp4, or GM_NONE. */
gm_status quantized_global(const char *op, const quantized_param *p, const gm_array *scale);
/* For kernels: the arrays, contiguous (they or copies in the node's scratch). biases may be GM_NONE. */
gm_status quantized_matrix(gm_queue *q, const quantized_param *p, const gm_array *w, const gm_array *scales,
                           const gm_array *biases, gm_grouped *out);
/* a's elements in row-major order as `type`: its own or a copy in the node's scratch. */
gm_status contiguous_operand(gm_queue *q, const gm_array *a, gm_dtype type, const void **out);
/* The integers in the fields, of the scales' dtype. GM_AFFINE. */
gm_array *quantized_integers(gm_scope *s, const quantized_param *p, gm_array *w, gm_array *scales);
/* x as float32, each value the nearest that the coding has; its gradient passes as if there were all. */
gm_array *quantized_round(gm_scope *s, const char *op, const quantized_param *p, gm_array *x, gm_array *global_scale);
#endif
