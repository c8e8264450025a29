/* units.cuh - gated linear units, by the processor's formulas (cpu/glu.inc). */
#ifndef GOMLX_CUDA_UNITS_CUH
#define GOMLX_CUDA_UNITS_CUH
#include "functions.cuh"

DEVICE float glu_value(int kind, float alpha, float limit, float gate, float up) {
    if (kind == GM_GLU_SILU) return gate * vf_sigmoid(gate) * up;
    if (kind == GM_GLU_GELU) {
        const float cube = gate * gate * gate;
        return gate * vf_sigmoid(1.5957691216057308f * fmaf(0.044715f, cube, gate)) * up; /* 2 sqrt(2 / pi) */
    }
    const float g = vf_min(limit, gate), u = vf_max(-limit, vf_min(limit, up)); /* NaN stays */
    return g * vf_sigmoid(alpha * g) * (u + 1);
}
/* What is stored of a product of a row of x with a row of a matrix, and with one of `up`. */
struct product_rows { /* of one of the matrices */
    void *out;
    const float *bias;
    int64_t rows;
};
DEVICE void store_product(const cuda_packed_args &a, const product_rows &to, int64_t token, int64_t row, float sum,
                          float up) {
    const int64_t at = token * to.rows + row;
    if (to.bias) sum += to.bias[row];
    if (a.up.bias) up += a.up.bias[row];
    if (a.residual) sum += a.residual[at];
    if (a.glu != CUDA_NO_GLU) sum = glu_value(a.glu, a.alpha, a.limit, sum, up);
    store_float(to.out, at, sum, a.out_type);
}
#endif
