/* part_elements.c - copies and elementwise functions. See part.h. */
#include "cpu/part.h"
#include "cpu/copy.inc"
#include "cpu/pad.inc"
#include "cpu/elementwise.inc"
#include "cpu/fused.inc"

EXPORT(copy)
EXPORT(pad)
EXPORT(copy_at)
EXPORT(copy_parts)
EXPORT(unary)
EXPORT(binary)
EXPORT(select)
EXPORT(fused)
EXPORT(arange)
