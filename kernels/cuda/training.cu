/* training.cu - gradients of work on rows of float32: gated units, RMS norm, and the cross entropy of logits with what it
 * gives back. The formulas are the processor's (cpu/training_rows.inc); a row is a block's. */
#include "functions.cuh"

DEVICE void glu_grad_one(const gm_glu_grad_args &a, int64_t i) {
    const float gate = a.gate[i], up = a.up[i], grad = a.grad[i];
    float g = gate, by = up, u = gate, du = 1.0f;
    if (a.kind == GM_GLU_GELU) { /* u is 2 sqrt(2 / pi) * (x + 0.044715 x**3) */
        const float twice = 1.5957691216057308f, square = gate * gate;
        u = twice * fmaf(0.044715f * square, gate, gate);
        du = twice * fmaf(0.134145f, square, 1.0f);
    } else if (a.kind == GM_GLU_CLAMPED) {
        g = vf_min(a.limit, gate);
        by = vf_max(-a.limit, vf_min(a.limit, up)) + 1.0f;
        du = a.alpha;
        u = du * g;
    }
    const float s = vf_sigmoid(u), value = g * s, slope = fmaf(value * (1.0f - s), du, s);
    const bool clamped = a.kind == GM_GLU_CLAMPED;
    a.dgate[i] = clamped && a.limit < gate ? 0.0f : grad * by * slope;
    a.dup[i] = clamped && a.limit < fabsf(up) ? 0.0f : grad * value;
}
KERNEL(gm_glu_grad, cuda_glu_grad_args, CUDA_THREADS) {
    const int64_t first = block_index() * CUDA_THREADS * CUDA_EACH + thread_index();
    UNROLL for (int e = 0; e < CUDA_EACH; e++)
        if (first + e * CUDA_THREADS < a.count) glu_grad_one(a.to, first + e * CUDA_THREADS);
}

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

/* grad may be the logits, so what is asked of the target is read before anybody writes. */
KERNEL(gm_row_loss, cuda_row_loss_args, CUDA_THREADS) {
    SHARED float shared[CUDA_THREADS / WARP];
    const int64_t row = block_index(), n = a.n, target = a.targets[row];
    const float *x = a.logits + row * n, of_target = x[target];
    const float per_cap = a.softcap > 0 ? 1.0f / a.softcap : 0.0f;
    float top = -INFINITY, sum = 0;
    for (int64_t i = thread_index(); i < n; i += CUDA_THREADS) top = x[i] > top ? x[i] : top;
    top = join_block(top, shared, [](float p, float q) { return q > p ? q : p; });
    for (int64_t i = thread_index(); i < n; i += CUDA_THREADS) sum += vf_exp(x[i] - top);
    sum = join_block(sum, shared, [](float p, float q) { return p + q; });
    const float lse = top + logf(sum);
    if (thread_index() == 0) a.loss[row] = lse - of_target;
    for (int64_t i = thread_index(); a.grad && i < n; i += CUDA_THREADS) {
        const float v = x[i], bent = v * per_cap, y = vf_exp(v - lse) * fmaf(-bent, bent, 1.0f);
        a.grad[row * n + i] = i == target ? y - (1.0f - bent * bent) : y;
    }
}
