/* conv.h - the node that every convolution becomes. */
#ifndef GOMLX_OPS_CONV_H
#define GOMLX_OPS_CONV_H
#include "ops/ops.h"

#define CONV_AXES 3
/* For each spatial axis; those beyond the input's are ones and zeros. Negative padding cuts. */
typedef struct {
    int64_t groups;
    int64_t stride[CONV_AXES], low[CONV_AXES], high[CONV_AXES], dilation[CONV_AXES], spread[CONV_AXES];
    int64_t sized; /* of gradients: the padding belongs to the sizes of the operands */
} conv_param;
/* Strides, dilations and spreads are positive: what must fit are operands and groups. */
gm_array *conv_checked(gm_scope *s, gm_array *x, gm_array *w, const conv_param *p);
#endif
