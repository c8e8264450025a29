/* part_elements.c - copies and elementwise functions. See part.h. */
#include "cpu/part.h"
#include "cpu/copy.inc"
#include "cpu/pad.inc"
#include "cpu/elementwise.inc"
#include "cpu/fused.inc"

#define EXPORTS_elements EXPORTED
#include "cpu/exports.h"
