/* part_gemm.c - dense matrix products and convolutions. See part.h. */
#include "cpu/part.h"
#include "cpu/conv.inc"

EXPORT(gemm_pack)
EXPORT(gemm_align)
EXPORT(gemm)
EXPORT(conv)
EXPORT(conv_depthwise)
