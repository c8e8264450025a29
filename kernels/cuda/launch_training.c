/* launch_training.c - gradients of work on rows. */
#include "cuda/launch.h"

static void launch_glu_grad(const void *args, int64_t begin, int64_t end) {
    const cuda_glu_grad_args p = {*(const gm_glu_grad_args *)args, end};
    (void)begin;
    cuda_start(CUDA_glu_grad, blocks_of(end, CUDA_THREADS * CUDA_EACH), CUDA_THREADS, 0, &p);
}
CUDA_CONTRACT(glu_grad)
static void launch_rms_norm_grad(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start(CUDA_rms_norm_grad, end, CUDA_THREADS, 0, args);
}
CUDA_CONTRACT(rms_norm_grad)
static void launch_row_loss(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start(CUDA_row_loss, end, CUDA_THREADS, 0, args);
}
CUDA_CONTRACT(row_loss)
