/* training.cu - the gradient of RMS norm over rows of float32, by the processor's formula (cpu/training_rows.inc); a
 * row is a block's. Steps of Adam for many parameters, with the processor's bits (cpu/training_steps.inc). */
#include "functions.cuh"

/* With g = grad * weight and r = 1 / sqrt(mean(x**2) + eps): dx = r * (g - x * r**2 * mean(g * x)). */
KERNEL(gm_rms_norm_grad, cuda_rms_norm_grad_args, CUDA_THREADS) {
    SHARED float shared[CUDA_THREADS / WARP];
    const auto add = [](float x, float y) { return x + y; };
    const int64_t dim = a.dim, at = block_index() * dim;
    float squares = 0, dots = 0;
    for (int64_t i = thread_index(); i < dim; i += CUDA_THREADS) {
        const float x = a.x[at + i], g = a.weight ? a.grad[at + i] * a.weight[i] : a.grad[at + i];
        squares = fmaf(x, x, squares);
        dots = fmaf(g, x, dots);
    }
    squares = join_block(squares, shared, add);
    dots = join_block(dots, shared, add);
    const float r = 1.0f / sqrtf(squares / (float)dim + a.eps), back = r * r * (dots / (float)dim);
    for (int64_t i = thread_index(); i < dim; i += CUDA_THREADS) { /* dx may be grad: each reads before it writes */
        const float g = a.weight ? a.grad[at + i] * a.weight[i] : a.grad[at + i];
        a.dx[at + i] = r * fmaf(-a.x[at + i], back, g);
    }
}

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
