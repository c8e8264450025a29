/* part_reductions.c - reductions, softmax, norms, gated linear units, routing. See part.h. */
#include "cpu/part.h"
#include "cpu/copy.inc"
#include "cpu/elementwise.inc"
#include "cpu/reduce.inc"
#include "cpu/softmax.inc"
#include "cpu/norm.inc"
#include "cpu/glu.inc"
#include "cpu/route.inc"
#include "cpu/best.inc"

#define EXPORTS_reductions EXPORTED
#include "cpu/exports.h"
