/* part_matrices.c - dense and quantised matrix products over packed panels. See part.h. */
#include "cpu/part.h"
#include "cpu/matmul.inc"
#include "cpu/dequant.inc"
#include "cpu/pack.inc"
#include "cpu/act.inc"
#include "cpu/qmatmul.inc"
#include "cpu/glu.inc"
#include "cpu/matmul_glu.inc"
#include "cpu/experts.inc"

EXPORT(pack)
EXPORT(unpack)
EXPORT(dequantize)
EXPORT(embed)
EXPORT(quantize_act)
EXPORT(matmul_float)
EXPORT(matmul_bf16)
EXPORT(matmul_int8)
EXPORT(matmul_glu)
EXPORT(expert_sort)
EXPORT(expert_gather)
EXPORT(expert_matmul)
EXPORT(expert_glu)
EXPORT(expert_sum)
