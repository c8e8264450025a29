/* part_draw.c - what the draw of a token asks of all logits. See part.h. */
#include "cpu/part.h"
#include "cpu/draw.inc"

#define EXPORTS_draw EXPORTED
#include "cpu/exports.h"
