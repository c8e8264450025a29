/* part_draw.c - what the draw of a token asks of all logits. See part.h. */
#include "cpu/part.h"
#include "cpu/draw.inc"

EXPORT(draw_measure)
EXPORT(draw_choose)
EXPORT(draw_weigh)
