/* part_matrices.c - dense and quantised matrix products over packed panels. See part.h. */
#include "cpu/part.h"
#include "cpu/matmul.inc"
#include "cpu/dequant.inc"
#include "cpu/pack.inc"
#include "cpu/act.inc"
#include "cpu/qmatmul.inc"

EXPORT(pack)
EXPORT(unpack)
EXPORT(dequantize)
EXPORT(embed)
EXPORT(quantize_act)
EXPORT(matmul_float)
EXPORT(matmul_int8)
