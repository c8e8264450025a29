/* devices.c - kernels given as source for a GPU: calling one raises, because there is no backend that could run it. */
#include "ops/ops.h"

static gm_array *no_device(gm_scope *s, const char *op, const char *maker) {
    (void)s;
    return gm_fail(GM_ESTATE, "[%s] No %s back-end.", op, maker), NULL; /* in MLX's words */
}

gm_array *gm_metal_kernel(gm_scope *s) { return no_device(s, "metal_kernel", "Metal"); }
gm_array *gm_cuda_kernel(gm_scope *s) { return no_device(s, "cuda_kernel", "CUDA"); }
gm_array *gm_precompiled_cuda_kernel(gm_scope *s) { return no_device(s, "precompiled_cuda_kernel", "CUDA"); }
