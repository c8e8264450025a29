/* training.cu - the gradient of RMS norm over rows of float32, by the processor's formula (cpu/training_rows.inc); a
 * row is a block's. */
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
