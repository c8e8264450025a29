/* part_rounded.c - products of packed matrices of numbers rounded to bfloat16. See part.h. */
#include "cpu/part.h"
#include "cpu/rounded.inc"
#include "cpu/rounded_loss.inc"
#include "cpu/rounded_attention.inc"

#define EXPORTS_rounded EXPORTED
#include "cpu/exports.h"
