/* part_gemm.c - dense matrix products and convolutions. See part.h. */
#include "cpu/part.h"
#include "cpu/gemm.inc"
#include "cpu/conv.inc"
#include "cpu/gather_gemm.inc"
#include "cpu/columns.inc"
#include "cpu/sequence_outer.inc"

#define EXPORTS_gemm EXPORTED
#include "cpu/exports.h"
