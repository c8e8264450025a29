/* part_linalg.c - linear algebra in float64. See part.h. */
#include "cpu/part.h"
#include "cpu/factor.inc"
#include "cpu/svd.inc"
#include "cpu/eigen_symmetric.inc"
#include "cpu/eigen.inc"

EXPORT(lu)
EXPORT(determinant)
EXPORT(linear_solve)
EXPORT(cholesky)
EXPORT(qr)
EXPORT(svd)
EXPORT(cofactor)
EXPORT(eigh)
EXPORT(eig)
