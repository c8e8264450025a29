/* part_gemm.c - dense matrix products and convolutions. See part.h. */
#include "cpu/part.h"
#include "cpu/gemm.inc"
#include "cpu/conv.inc"
#include "cpu/gather_gemm.inc"

EXPORT(gemm_pack)
EXPORT(gemm_align)
EXPORT(gemm)
EXPORT(gather_gemm)
EXPORT(conv)
EXPORT(conv_groups)
