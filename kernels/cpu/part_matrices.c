/* part_matrices.c - dense and quantised matrix products over packed panels. See part.h. */
#include "cpu/part.h"
#include "cpu/matmul.inc"
#include "cpu/dequant.inc"
#include "cpu/pack.inc"
#include "cpu/act.inc"
#include "cpu/qmatmul.inc"
#include "cpu/columns_unpack.inc"
#include "cpu/rounded_unpack.inc"
#include "cpu/glu.inc"
#include "cpu/matmul_glu.inc"
#include "cpu/experts.inc"

#define EXPORTS_matrices EXPORTED
#include "cpu/exports.h"
