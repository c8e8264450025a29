/* training.cu - gradients of norms and of softmax over rows of float32, by the processor's formulas
 * (cpu/training_rows.inc). Steps of Adam for many parameters, with the processor's bits (cpu/training_steps.inc). */
#include "functions.cuh"

/* A row by a warp, which keeps it in registers, or by a block, which reads it again for each pass. Elements lie in
 * groups of four, group g with thread g % team; those beyond the end are 0. */
template <bool BY_WARP> struct grad_row {
    static constexpr int KEPT = BY_WARP ? CUDA_ROW_SHORT / 4 : 1;
    const cuda_row_grad_args &a;
    int64_t at; /* of the row's first element */
    int thread;
    float *shared;
    float x[KEPT][4], g[KEPT][4];

    METHOD bool has(int64_t i) const { return a.lines || i < a.dim; }
    METHOD void load(float (&to)[4], const float *from, int64_t i) const {
        if (a.lines) {
            const pack<float, 4> four = *(const pack<float, 4> *)(from + i);
            UNROLL for (int j = 0; j < 4; j++)
                to[j] = four.at[j];
        } else {
            UNROLL for (int j = 0; j < 4; j++)
                to[j] = has(i + j) ? from[i + j] : 0.0f;
        }
    }
    METHOD void load_both(int k, int64_t i) {
        load(x[k], a.x + at, i);
        load(g[k], a.grad + at, i);
    }
    METHOD void weigh(int k, int64_t i) {
        float w[4];
        if (!a.weight) return;
        load(w, a.weight, i);
        UNROLL for (int j = 0; j < 4; j++)
            g[k][j] *= w[j];
    }
    METHOD void read() {
        if (!BY_WARP) return;
        UNROLL for (int k = 0; k < KEPT; k++)
            if (4 * (thread + k * WARP) < a.dim) load_both(k, 4 * (thread + k * WARP));
        UNROLL for (int k = 0; k < KEPT; k++)
            if (4 * (thread + k * WARP) < a.dim) weigh(k, 4 * (thread + k * WARP));
    }
    /* f(i, x, g) of this thread's groups; g: the cotangent times the weight. */
    template <class F> METHOD void each(F f) {
        if (BY_WARP) {
            UNROLL for (int k = 0; k < KEPT; k++)
                if (4 * (thread + k * WARP) < a.dim) f(4 * (thread + k * WARP), x[k], g[k]);
        } else {
            for (int64_t i = 4 * thread; i < a.dim; i += 4 * CUDA_THREADS) {
                load_both(0, i);
                weigh(0, i);
                f(i, x[0], g[0]);
            }
        }
    }
    /* f(j, x, g) of one element to dx, which may be where x or grad is: a thread reads a group before it writes it. */
    template <class F> METHOD void write(F f) {
        each([&](int64_t i, const float (&v)[4], const float (&w)[4]) {
            pack<float, 4> y;
            UNROLL for (int j = 0; j < 4; j++)
                y.at[j] = f(v[j], w[j]);
            if (a.lines) {
                *(pack<float, 4> *)(a.dx + at + i) = y;
            } else {
                UNROLL for (int j = 0; j < 4; j++)
                    if (has(i + j)) a.dx[at + i + j] = y.at[j];
            }
        });
    }
    METHOD float join(float y) const {
        const auto add = [](float p, float q) { return p + q; };
        return BY_WARP ? join_warp(y, add) : join_block(y, shared, add);
    }
};
template <bool BY_WARP> DEVICE int64_t grad_row_index() {
    return BY_WARP ? block_index() * (CUDA_THREADS / WARP) + thread_index() / WARP : block_index();
}

/* With c = x, or x - mean(x) of a layer norm, g = grad * weight and r = 1 / sqrt(mean(c**2) + eps):
 * dx = r * (g - c * r**2 * mean(g * c)), of a layer norm with g - mean(g) in g's place. */
template <bool BY_WARP, bool CENTRED> DEVICE void norm_grad(const cuda_row_grad_args &a) {
    SHARED float shared[CUDA_THREADS / WARP];
    const int64_t index = grad_row_index<BY_WARP>();
    if (index >= a.rows) return; /* a whole warp, or nobody */
    grad_row<BY_WARP> row = {a, index * a.dim, BY_WARP ? thread_index() % WARP : thread_index(), shared};
    const float dim = (float)a.dim;
    float mean = 0, squares = 0, dots = 0, sums = 0;
    row.read();
    if (CENTRED) {
        row.each([&](int64_t, const float (&x)[4], const float (&)[4]) {
            UNROLL for (int j = 0; j < 4; j++)
                mean += x[j];
        });
        mean = row.join(mean) / dim;
    }
    row.each([&](int64_t i, const float (&x)[4], const float (&g)[4]) {
        UNROLL for (int j = 0; j < 4; j++) {
            const float c = !CENTRED ? x[j] : row.has(i + j) ? x[j] - mean : 0.0f;
            squares = fmaf(c, c, squares);
            dots = fmaf(g[j], c, dots);
            if (CENTRED) sums += g[j];
        }
    });
    const float less = CENTRED ? row.join(sums) / dim : 0.0f;
    squares = row.join(squares);
    dots = row.join(dots);
    const float r = 1.0f / sqrtf(squares / dim + a.eps), back = r * r * (dots / dim);
    row.write([&](float x, float g) { return CENTRED ? r * fmaf(mean - x, back, g - less) : r * fmaf(-x, back, g); });
}
KERNEL(gm_rms_norm_grad_short, cuda_row_grad_args, CUDA_THREADS) { norm_grad<true, false>(a); }
KERNEL(gm_rms_norm_grad, cuda_row_grad_args, CUDA_THREADS) { norm_grad<false, false>(a); }
KERNEL(gm_layer_norm_grad_short, cuda_row_grad_args, CUDA_THREADS) { norm_grad<true, true>(a); }
KERNEL(gm_layer_norm_grad, cuda_row_grad_args, CUDA_THREADS) { norm_grad<false, true>(a); }

/* With y in x's place: y * (grad - sum(y * grad)). */
template <bool BY_WARP> DEVICE void softmax_grad(const cuda_row_grad_args &a) {
    SHARED float shared[CUDA_THREADS / WARP];
    const int64_t index = grad_row_index<BY_WARP>();
    if (index >= a.rows) return;
    grad_row<BY_WARP> row = {a, index * a.dim, BY_WARP ? thread_index() % WARP : thread_index(), shared};
    float dot = 0;
    row.read();
    row.each([&](int64_t, const float (&y)[4], const float (&g)[4]) {
        UNROLL for (int j = 0; j < 4; j++)
            dot = fmaf(y[j], g[j], dot);
    });
    dot = row.join(dot);
    row.write([&](float y, float g) { return y * (g - dot); });
}
KERNEL(gm_softmax_grad_short, cuda_row_grad_args, CUDA_THREADS) { softmax_grad<true>(a); }
KERNEL(gm_softmax_grad, cuda_row_grad_args, CUDA_THREADS) { softmax_grad<false>(a); }

/* ---- Adam ---- */
typedef pack<float, 4> four;
DEVICE void adam_four(const cuda_adam_args &a, const four (&in)[4], const float (&number)[3], four (&out)[3]) {
    UNROLL for (int e = 0; e < 4; e++) {
        const float g = in[0].at[e];
        const float m = a.step.b1 * in[2].at[e] + a.step.c1 * g, v = a.step.b2 * in[3].at[e] + a.step.c2 * (g * g);
        out[0].at[e] = in[1].at[e] * number[1] - number[0] * m / (sqrtf(v) * number[2] + a.step.eps);
        out[1].at[e] = m;
        out[2].at[e] = v;
    }
}
DEVICE bool has_lines(const gm_adam_part &p) {
    return (((uintptr_t)p.out | (uintptr_t)p.m_out | (uintptr_t)p.v_out | (uintptr_t)p.gradient | (uintptr_t)p.w |
             (uintptr_t)p.m | (uintptr_t)p.v) &
            15) == 0;
}
/* A thread has two groups of four on their way at once. An output may be where its input is: a thread reads a group
 * before it writes it. */
KERNEL(gm_adam, cuda_adam_args, CUDA_THREADS) {
    const float number[3] = {*a.step.rate, a.step.shrink ? *a.step.shrink : 1.0f, a.step.scale ? *a.step.scale : 1.0f};
    int64_t low = 0, high = a.step.count; /* the last part whose first block is not beyond this one */
    while (low + 1 < high) {
        const int64_t middle = (low + high) / 2;
        if (a.parts[middle].block <= block_index()) low = middle;
        else high = middle;
    }
    const gm_adam_part p = a.parts[low].arrays;
    const int64_t begin = (block_index() - a.parts[low].block) * CUDA_ADAM_EACH, size = a.parts[low].size;
    const int64_t end = begin + CUDA_ADAM_EACH < size ? begin + CUDA_ADAM_EACH : size;
    const float *const from[4] = {p.gradient, p.w, p.m, p.v};
    float *const to[3] = {p.out, p.m_out, p.v_out};
    const bool lines = has_lines(p);
    for (int64_t first = begin + 4 * thread_index(); first < end; first += 2 * 4 * CUDA_THREADS) {
        four in[2][4], out[3];
        UNROLL for (int j = 0; j < 2; j++) {
            const int64_t at = first + j * 4 * CUDA_THREADS;
            UNROLL for (int k = 0; k < 4; k++) {
                if (lines && at + 4 <= end) {
                    in[j][k] = *(const four *)(from[k] + at);
                } else {
                    UNROLL for (int e = 0; e < 4; e++)
                        in[j][k].at[e] = at + e < end ? from[k][at + e] : 0.0f;
                }
            }
        }
        UNROLL for (int j = 0; j < 2; j++) {
            const int64_t at = first + j * 4 * CUDA_THREADS;
            adam_four(a, in[j], number, out);
            UNROLL for (int k = 0; k < 3; k++) {
                if (lines && at + 4 <= end) {
                    *(four *)(to[k] + at) = out[k];
                } else {
                    UNROLL for (int e = 0; e < 4; e++)
                        if (at + e < end) to[k][at + e] = out[k].at[e];
                }
            }
        }
    }
}
