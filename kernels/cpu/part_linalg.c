/* part_linalg.c - linear algebra in float64. See part.h. */
#include "cpu/part.h"
#include "cpu/factor.inc"
#include "cpu/svd.inc"
#include "cpu/eigen_symmetric.inc"
#include "cpu/eigen.inc"

#define EXPORTS_linalg EXPORTED
#include "cpu/exports.h"
