/* part_table.c - the table of an instruction set: the kernels of the parts that it has of its own (isa.def), and those
 * of its base, or of the base's, for the others. */
#include "cpu/part.h"
#include "cpu/gemm_sizes.h"

/* The parts, as kernels.def has them. */
enum {
    BIT_elements = 1 << 0,
    BIT_reductions = 1 << 1,
    BIT_sort = 1 << 2,
    BIT_draw = 1 << 3,
    BIT_random = 1 << 4,
    BIT_index = 1 << 5,
    BIT_fft = 1 << 6,
    BIT_linalg = 1 << 7,
    BIT_gemm = 1 << 8,
    BIT_matrices = 1 << 9,
    BIT_blocks = 1 << 10,
    BIT_groups = 1 << 11,
    BIT_decoder = 1 << 12,
    BIT_training = 1 << 13,
    BIT_rounded = 1 << 14,
};
enum {
#define ISA(set, base, own, needs, flags, words) OWN_##set = 0 own,
#define OWN(part) | BIT_##part
#include "cpu/isa.def"
#undef OWN
#undef ISA
};

#define IN_BASE(name) KERNELS_JOIN(name, KERNELS_BASE)
#define IN_FAMILY(name) KERNELS_JOIN(name, KERNELS_FAMILY)
#define OWNS(set, part) (KERNELS_JOIN(OWN, set) & BIT_##part)
#define IN_TABLE(part, name)                                                                                           \
    (OWNS(KERNELS_SET, part) ? KERNEL_NAME(name) : OWNS(KERNELS_BASE, part) ? IN_BASE(name) : IN_FAMILY(name))
#define KERNEL(part, name, range, doc)                                                                                 \
    extern void KERNEL_NAME(name)(const void *, int64_t, int64_t);                                                     \
    extern void IN_BASE(name)(const void *, int64_t, int64_t);                                                         \
    extern void IN_FAMILY(name)(const void *, int64_t, int64_t);
#include "cpu/kernels.def"

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
#define KERNEL(part, name, range, doc) .name = IN_TABLE(part, name),
#include "cpu/kernels.def"
};
