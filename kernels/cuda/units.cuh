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
/* What is added to a product. */
struct product_added { float bias, up_bias, residual; };
DEVICE product_added added_of(const cuda_packed_args &a, const product_rows &to, int64_t row, int64_t at) {
    return {to.bias ? to.bias[row] : 0, a.up.bias ? a.up.bias[row] : 0, a.residual ? read_written(a.residual + at) : 0};
}
DEVICE void store_sum(const cuda_packed_args &a, const product_rows &to, int64_t at, float sum, float up,
                      const product_added &added) {
    if (to.bias) sum += added.bias;
    if (a.up.bias) up += added.up_bias;
    if (a.residual) sum += added.residual;
    if (a.glu != CUDA_NO_GLU) sum = glu_value(a.glu, a.alpha, a.limit, sum, up);
    store_float(to.out, at, sum, a.out_type);
}
DEVICE void store_product(const cuda_packed_args &a, const product_rows &to, int64_t token, int64_t row, float sum,
                          float up) {
    const int64_t at = token * to.rows + row;
    store_sum(a, to, at, sum, up, added_of(a, to, row, at));
}
/* Of sixteen rows of all matrices, those that follow one another in one. */
struct tiled_unit {
    const void *data;
    product_rows to;
    int unit; /* of the matrix */
    METHOD int64_t row() const { return (int64_t)unit * TILED_ROWS; }
};
DEVICE int units_of(int64_t rows) { return (int)((uint64_t)rows / TILED_ROWS); }
DEVICE tiled_unit unit_of(const cuda_packed_args &a, int unit) {
    if (unit < units_of(a.rows)) return {a.weight.data, {a.out, a.weight.bias, a.rows}, unit};
    unit -= units_of(a.rows);
    const cuda_more &first = a.more[0], &second = a.more[1];
    if (unit < units_of(first.rows)) return {first.weight.data, {first.out, first.weight.bias, first.rows}, unit};
    return {second.weight.data, {second.out, second.weight.bias, second.rows}, unit - units_of(first.rows)};
}
#endif
