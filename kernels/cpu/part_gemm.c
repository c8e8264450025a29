/* part_gemm.c - dense matrix products. See part.h. */
#include "cpu/part.h"
#include "cpu/gemm.inc"

EXPORT(gemm_pack)
EXPORT(gemm_align)
EXPORT(gemm)
