/* part_random.c - random numbers. See part.h. */
#include "cpu/part.h"
#include "cpu/random.inc"

#define EXPORTS_random EXPORTED
#include "cpu/exports.h"
