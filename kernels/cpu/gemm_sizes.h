/* gemm_sizes.h - the sizes of dense products that follow from the instruction set. */
#ifndef GOMLX_KERNELS_CPU_GEMM_SIZES_H
#define GOMLX_KERNELS_CPU_GEMM_SIZES_H

#define GEMM_VECTORS (V_N == 4 ? 4 : 2)                   /* of lanes, in a register tile */
#define GEMM_ROWS (V_N == 16 ? 14 : V_ACC / GEMM_VECTORS) /* 14: images are 14, 28, 56, 112 or 224 pixels wide */
#define GEMM_LANES (GEMM_VECTORS * V_N)                   /* of a panel: floats or pairs; half as many doubles */
#define GEMM_BLOCK_ROWS (4 * GEMM_ROWS) /* of floats or pairs; half as many doubles or complex numbers */
#ifdef V_PAIRS
#define GEMM_IN_PAIRS true
#else
#define GEMM_IN_PAIRS false
#endif
#endif
