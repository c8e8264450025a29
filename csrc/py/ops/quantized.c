/* quantized.c - Python functions of quantised matrices. */
#include "py/ops/bind.h"
#include <limits.h>

FUNCTION_OF(quantize)
{
    gm_array *w, *global_scale, *out[3];
    int group_size = INT_MIN, bits = INT_MIN; /* None */
    const char *mode = "affine";
    BIND(quantize, "AiitO", &w, &group_size, &bits, &mode, &global_scale);
    out[0] = gm_quantize(c.scope, w, group_size, bits, mode, global_scale, &out[1]);
    return call_finish_many(&c, out[0] && out[1] && out[2] ? GM_OK : GM_EVALUE, out, out[2] == GM_NONE ? 2 : 3, true);
}
