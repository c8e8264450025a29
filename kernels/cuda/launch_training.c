/* launch_training.c - the gradient of RMS norm. */
#include "cuda/launch.h"

static void launch_rms_norm_grad(const void *args, int64_t begin, int64_t end) {
    (void)begin;
    cuda_start(CUDA_rms_norm_grad, end, CUDA_THREADS, 0, args);
}
CUDA_CONTRACT(rms_norm_grad)
