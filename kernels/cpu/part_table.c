/* part_table.c - the table of an instruction set: the kernels of all its parts. Those of a part X come from the set
 * FROM_X, which is this one or one that it builds on (setup.py). */
#include "cpu/part.h"
#include "cpu/gemm_sizes.h"

#define IN_TABLE(name) KERNELS_JOIN(name, KERNELS_JOIN(FROM, PART))
#define KERNEL(name, range, doc) extern void IN_TABLE(name)(const void *, int64_t, int64_t);
#include "cpu/kernels.def"
#undef KERNEL

const gm_kernels KERNEL_NAME(kernels) = {
    .isa = KERNELS_TEXT(KERNELS_SET),
    .family = KERNELS_TEXT(KERNELS_FAMILY),
    .panel_rows = PANEL_ROWS,
#ifdef ACT_PAIRS
    .act_pairs = true,
#endif
    .lanes = V_N,
    .gemm_rows = GEMM_BLOCK_ROWS,
    .gemm_lanes = GEMM_LANES,
    .gemm_pairs = GEMM_IN_PAIRS,
#define KERNEL(name, range, doc) .name = IN_TABLE(name),
#include "cpu/kernels.def"
#undef KERNEL
};
