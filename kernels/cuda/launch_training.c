/* launch_training.c - gradients of norms and softmax; steps of Adam. */
#include "cuda/launch.h"

/* Kernels for short rows, by warps, then for long ones. */
static void start_row_grad(cuda_kernel kernel, cuda_row_grad_args p) {
    const bool by_warps = p.dim <= 32 * CUDA_ROW_SHORT;
    p.lines = p.dim % 4 == 0 && is_aligned(p.dx, 16) && is_aligned(p.x, 16) && is_aligned(p.grad, 16) &&
              is_aligned(p.weight, 16);
    if (by_warps) cuda_start(kernel, blocks_of(p.rows, CUDA_THREADS / 32), CUDA_THREADS, 0, &p);
    else cuda_start((cuda_kernel)(kernel + 1), p.rows, CUDA_THREADS, 0, &p);
}
static cuda_row_grad_args norm_grad_of(const gm_rms_norm_grad_args *a, int64_t rows) {
    return (cuda_row_grad_args){a->dx, a->x, a->weight, a->grad, rows, a->dim, a->eps, false};
}
static void launch_rms_norm_grad(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    start_row_grad(CUDA_rms_norm_grad_short, norm_grad_of(args, end));
}
CUDA_CONTRACT(rms_norm_grad)
static void launch_layer_norm_grad(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    start_row_grad(CUDA_layer_norm_grad_short, norm_grad_of(args, end));
}
CUDA_CONTRACT(layer_norm_grad)
static void launch_softmax_grad(const void *args, int64_t begin, int64_t end) {
    const gm_softmax_grad_args *a = args;
    (void)begin;
    start_row_grad(CUDA_softmax_grad_short, (cuda_row_grad_args){a->dx, a->y, NULL, a->grad, end, a->dim, 0, false});
}
CUDA_CONTRACT(softmax_grad)

/* end: blocks */
static void launch_adam(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start(CUDA_adam, end, CUDA_THREADS, 0, args);
}
bool cuda_adam(gm_recorder *r, const gm_adam_args *a, int64_t n) {
    cuda_adam_args args = {.step = *a};
    cuda_adam_part *parts = r->arguments(r, (size_t)a->count * sizeof *parts);
    int64_t blocks = 0, count = 0;
    (void)n;
    if (!parts) return false;
    for (int64_t k = 0; k < a->count; k++) {
        const int64_t size = a->starts[k + 1] - a->starts[k];
        if (size == 0) continue;
        parts[count++] = (cuda_adam_part){a->parts[k], size, blocks};
        blocks += blocks_of(size, CUDA_ADAM_EACH);
    }
    if (blocks == 0) return true;
    args.step.count = count;
    if (!(args.parts = r->constant(r, parts, (size_t)count * sizeof *parts))) return false;
    return r->launch(r, launch_adam, &args, sizeof args, blocks, 0, 0);
}
