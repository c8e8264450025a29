/* rows.cu - softmax, norms and gated units: work on rows, in float32.
 * Element i of a row belongs to group i / 4, group g to thread g % T of the T that work on the row: 32 where the row is
 * short, else CUDA_THREADS. A row that fits is read once, into the block's memory. */
#include "functions.cuh"

#define ROW_GROUP 4

/* One row and those who work on it. */
template <int TYPE> struct row {
    typedef typename float_item<TYPE>::raw raw;
    const cuda_rows_args &a;
    const raw *in;
    float *kept;
    float *shared; /* one for each warp */
    int thread, team;
    METHOD void load(int64_t g, float *x) const {
        const int64_t first = g * ROW_GROUP;
        if (a.lines && first + ROW_GROUP <= a.dim) {
            const pack<raw, ROW_GROUP> items = ((const pack<raw, ROW_GROUP> *)in)[g];
            UNROLL for (int j = 0; j < ROW_GROUP; j++) x[j] = widen<TYPE>(items.at[j]);
        } else {
            UNROLL for (int j = 0; j < ROW_GROUP; j++) x[j] = first + j < a.dim ? widen<TYPE>(in[first + j]) : 0.0f;
        }
    }
    /* f(index, value) of this thread's elements in order; a group that is kept was read by the same thread. */
    template <class F> METHOD void each(bool first_time, F f) const {
        for (int64_t g = thread; g * ROW_GROUP < a.dim; g += team) {
            float x[ROW_GROUP];
            if (a.kept && !first_time) {
                UNROLL for (int j = 0; j < ROW_GROUP; j++) x[j] = kept[g * ROW_GROUP + j];
            } else {
                load(g, x);
                if (a.kept) {
                    UNROLL for (int j = 0; j < ROW_GROUP; j++) kept[g * ROW_GROUP + j] = x[j];
                }
            }
            UNROLL for (int j = 0; j < ROW_GROUP; j++)
                if (g * ROW_GROUP + j < a.dim) f(g * ROW_GROUP + j, x[j]);
        }
    }
    /* out = f(index, value), by groups. */
    template <class F> METHOD void write(raw *out, F f) const {
        for (int64_t g = thread; g * ROW_GROUP < a.dim; g += team) {
            float x[ROW_GROUP];
            pack<raw, ROW_GROUP> y;
            if (a.kept) {
                UNROLL for (int j = 0; j < ROW_GROUP; j++) x[j] = kept[g * ROW_GROUP + j];
            } else {
                load(g, x);
            }
            const bool whole = (g + 1) * ROW_GROUP <= a.dim;
            UNROLL for (int j = 0; j < ROW_GROUP; j++)
                if (whole || g * ROW_GROUP + j < a.dim) y.at[j] = narrow<TYPE>(f(g * ROW_GROUP + j, x[j]));
            if (a.lines && whole) {
                ((pack<raw, ROW_GROUP> *)out)[g] = y;
            } else {
                UNROLL for (int j = 0; j < ROW_GROUP; j++)
                    if (g * ROW_GROUP + j < a.dim) out[g * ROW_GROUP + j] = y.at[j];
            }
        }
    }
    template <class F> METHOD float join(float x, F f) const {
        return team == WARP ? join_warp(x, f) : join_block(x, shared, f);
    }
};
DEVICE float add_floats(float x, float y) { return x + y; }
DEVICE float greater_float(float x, float y) { return y > x ? y : x; }

DEVICE int64_t row_index(const cuda_rows_args &a) {
    return a.by_warps ? block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP : block_index();
}
template <int TYPE> DEVICE row<TYPE> row_of(const cuda_rows_args &a, int64_t index, float *shared) {
    float *kept = (float *)block_memory();
    if (a.by_warps) kept += thread_index() / WARP * ((a.dim + ROW_GROUP - 1) / ROW_GROUP * ROW_GROUP);
    return {a,
            (const typename float_item<TYPE>::raw *)a.x + index * a.stride,
            kept,
            shared,
            a.by_warps ? thread_index() % WARP : thread_index(),
            a.by_warps ? WARP : CUDA_THREADS};
}

template <int TYPE> DEVICE void softmax_row(const cuda_rows_args &a) {
    SHARED float shared[CUDA_THREADS / WARP];
    const int64_t index = row_index(a);
    if (index >= a.rows) return; /* a whole warp, or nobody */
    const row<TYPE> r = row_of<TYPE>(a, index, shared);
    float top = -INFINITY, sum = 0;
    r.each(true, [&](int64_t, float x) { top = greater_float(top, x); });
    top = r.join(top, greater_float);
    r.each(false, [&](int64_t, float x) { sum += vf_exp(x - top); });
    sum = r.join(sum, add_floats);
    const float scale = 1.0f / sum;
    r.write((typename float_item<TYPE>::raw *)a.out + index * a.dim,
            [=](int64_t, float x) { return vf_exp(x - top) * scale; });
}
KERNEL(gm_softmax_f16, cuda_rows_args, CUDA_THREADS) { softmax_row<GM_T_F16>(a); }
KERNEL(gm_softmax_bf16, cuda_rows_args, CUDA_THREADS) { softmax_row<GM_T_BF16>(a); }
KERNEL(gm_softmax_f32, cuda_rows_args, CUDA_THREADS) { softmax_row<GM_T_F32>(a); }

template <int TYPE, bool CENTERED> DEVICE void norm_row(const cuda_rows_args &a) {
    typedef typename float_item<TYPE>::raw raw;
    SHARED float shared[CUDA_THREADS / WARP];
    const int64_t index = row_index(a);
    if (index >= a.rows) return;
    const row<TYPE> r = row_of<TYPE>(a, index, shared);
    float mean = 0, squares = 0;
    if (CENTERED) {
        r.each(true, [&](int64_t, float x) { mean += x; });
        mean = r.join(mean, add_floats) / (float)a.dim;
    }
    r.each(!CENTERED, [&](int64_t, float x) { squares = fmaf(x - mean, x - mean, squares); });
    squares = r.join(squares, add_floats);
    const float scale = 1.0f / sqrtf(squares / (float)a.dim + a.eps);
    const raw *weight = (const raw *)a.weight, *bias = (const raw *)a.bias;
    r.write((raw *)a.out + index * a.dim, [=](int64_t i, float x) {
        const float y = (x - mean) * scale, b = bias ? widen<TYPE>(bias[i]) : 0.0f;
        if (weight) return bias ? fmaf(y, widen<TYPE>(weight[i]), b) : y * widen<TYPE>(weight[i]);
        return bias ? y + b : y;
    });
}
KERNEL(gm_rms_norm_f16, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_F16, false>(a); }
KERNEL(gm_rms_norm_bf16, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_BF16, false>(a); }
KERNEL(gm_rms_norm_f32, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_F32, false>(a); }
KERNEL(gm_layer_norm_f16, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_F16, true>(a); }
KERNEL(gm_layer_norm_bf16, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_BF16, true>(a); }
KERNEL(gm_layer_norm_f32, cuda_rows_args, CUDA_THREADS) { norm_row<GM_T_F32, true>(a); }

/* As glu.inc of the processor has it. */
DEVICE float gelu_tanh(float x) {
    const float cube = x * x * x, u = 1.5957691216057308f * fmaf(0.044715f, cube, x); /* 2 sqrt(2 / pi) */
    return x * vf_sigmoid(u);
}
DEVICE float glu_value(const cuda_glu_args &a, float gate, float up) {
    if (a.kind == GM_GLU_SILU) return gate * vf_sigmoid(gate) * up;
    if (a.kind == GM_GLU_GELU) return gelu_tanh(gate) * up;
    const float g = vf_min(a.limit, gate), u = vf_max(-a.limit, vf_min(a.limit, up)); /* NaN stays */
    return g * vf_sigmoid(a.alpha * g) * (u + 1.0f);
}
KERNEL(gm_glu, cuda_glu_args, CUDA_THREADS) {
    const int64_t first = block_index() * CUDA_THREADS * CUDA_EACH + thread_index(), n = a.rows * a.dim;
    UNROLL for (int e = 0; e < CUDA_EACH; e++) {
        const int64_t i = first + e * CUDA_THREADS;
        if (i >= n) continue;
        const int64_t r = i / a.dim, column = i - r * a.dim;
        a.out[i] = glu_value(a, a.gate[r * a.gate_stride + column], a.up[r * a.up_stride + column]);
    }
}
