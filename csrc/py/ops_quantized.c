/* ops_quantized.c - Python functions of quantised matrices. */
#include "py/bind.h"
#include <limits.h>

#define ABSENT INT_MIN         /* a group size or number of bits of None */

FUNCTION_OF(quantize) {
    gm_array *w, *global_scale, *out[3];
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "affine";
    BIND(quantize, "AiitO", &w, &group_size, &bits, &mode, &global_scale);
    out[0] = gm_quantize(c.scope, w, group_size, bits, mode, global_scale, &out[1], &out[2]);
    return call_finish_many(&c, out[0] && out[1] && out[2] ? GM_OK : GM_EVALUE, out, out[2] == GM_NONE ? 2 : 3, true);
}

FUNCTION_OF(dequantize) {
    gm_array *w, *scales, *biases, *global_scale;
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "affine";
    gm_dtype type = GM_DTYPE_COUNT;
    BIND(dequantize, "AAOiitOd", &w, &scales, &biases, &group_size, &bits, &mode, &global_scale, &type);
    return call_finish(&c, gm_dequantize(c.scope, w, scales, biases, group_size, bits, mode, global_scale, type));
}

FUNCTION_OF(quantized_matmul) {
    gm_array *x, *w, *scales, *biases;
    bool transpose = true;
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "affine";
    BIND(quantized_matmul, "AAAObiit", &x, &w, &scales, &biases, &transpose, &group_size, &bits, &mode);
    return call_finish(&c, gm_quantized_matmul(c.scope, x, w, scales, biases, transpose, group_size, bits, mode));
}

FUNCTION_OF(gather_qmm) {
    gm_array *x, *w, *scales, *biases, *lhs, *rhs, *global_scale;
    bool transpose = true, sorted_indices = false;
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "affine";
    BIND(gather_qmm, "AAAOOObiitOb", &x, &w, &scales, &biases, &lhs, &rhs, &transpose, &group_size, &bits, &mode,
         &global_scale, &sorted_indices);
    return call_finish(&c, gm_gather_qmm(c.scope, x, w, scales, biases, lhs, rhs, transpose, group_size, bits, mode,
                                         global_scale));
}

FUNCTION_OF(qqmm) {
    gm_array *x, *w, *scales, *global_x, *global_w;
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "nvfp4";
    BIND(qqmm, "AAOiitOO", &x, &w, &scales, &group_size, &bits, &mode, &global_x, &global_w);
    return call_finish(&c, gm_qqmm(c.scope, x, w, scales, group_size, bits, mode, global_x, global_w));
}

FUNCTION_OF(gather_qqmm) {
    gm_array *x, *w, *scales, *lhs, *rhs, *global_x, *global_w;
    bool sorted_indices = false;
    int group_size = ABSENT, bits = ABSENT;
    const char *mode = "nvfp4";
    BIND(gather_qqmm, "AAOOOiitOOb", &x, &w, &scales, &lhs, &rhs, &group_size, &bits, &mode, &global_x, &global_w,
         &sorted_indices);
    return call_finish(&c, gm_gather_qqmm(c.scope, x, w, scales, lhs, rhs, group_size, bits, mode, global_x, global_w));
}

FUNCTION_OF(quantize_blocks) {
    gm_array *w;
    const char *format = "";
    BIND(quantize_blocks, "At", &w, &format);
    return call_finish(&c, gm_quantize_blocks(c.scope, w, format));
}

FUNCTION_OF(dequantize_blocks) {
    gm_array *blocks;
    const char *format = "";
    BIND(dequantize_blocks, "At", &blocks, &format);
    return call_finish(&c, gm_dequantize_blocks(c.scope, blocks, format));
}

WRAPPED(to_fp8, wrap_array, gm_to_fp8)

FUNCTION_OF(from_fp8) {
    gm_array *x;
    gm_dtype type = GM_BFLOAT16;
    BIND(from_fp8, "Ad", &x, &type);
    return call_finish(&c, gm_from_fp8(c.scope, x, type));
}
