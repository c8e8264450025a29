/* part_index.c - reading by index. See part.h. */
#include "cpu/part.h"
#include "cpu/index.inc"

EXPORT(positions)
EXPORT(take)
EXPORT(scatter)
