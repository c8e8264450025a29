/* launch_training.c - the gradient of RMS norm; steps of Adam. */
#include "cuda/launch.h"

static void launch_rms_norm_grad(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start(CUDA_rms_norm_grad, end, CUDA_THREADS, 0, args);
}
CUDA_CONTRACT(rms_norm_grad)

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
