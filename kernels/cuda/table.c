/* table.c - the device's table of contracts. One that has no kernel is NULL: the operation is not the device's. */
#include "cuda/launch.h"

static int64_t cuda_packed_bytes(const gm_kernels *kernels, int format, int64_t rows, int64_t k) {
    (void)kernels;
    return rows * (k / gm_quants[format].values) * gm_quants[format].bytes;
}
static bool cuda_multiplies_bf16(const gm_kernels *kernels) {
    (void)kernels;
    return true;
}

const gm_contracts contracts_cuda = {
#define CUDA_HAS(name) .name = cuda_##name,
#include "cuda/table.def"
#undef CUDA_HAS
    .packed_bytes = cuda_packed_bytes,
    .multiplies_bf16 = cuda_multiplies_bf16,
    .makes_rows = true,
    .rounds_prompts = true,
};
