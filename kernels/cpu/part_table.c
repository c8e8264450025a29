/* part_table.c - the table of an instruction set: the kernels of all its parts. */
#include "cpu/part.h"
#include "cpu/gemm_sizes.h"

#define KERNEL(name, range, doc) extern void KERNEL_NAME(name)(const void *, int64_t, int64_t);
#include "kernels.def"
#undef KERNEL

const gm_kernels KERNEL_NAME(kernels) = {
    .isa = KERNELS_ISA,
    .panel_rows = PANEL_ROWS,
    .lanes = V_N,
    .gemm_rows = GEMM_BLOCK_ROWS,
    .gemm_lanes = GEMM_LANES,
    .gemm_pairs = GEMM_IN_PAIRS,
#define KERNEL(name, range, doc) .name = KERNEL_NAME(name),
#include "kernels.def"
#undef KERNEL
};
