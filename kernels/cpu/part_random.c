/* part_random.c - random numbers. See part.h. */
#include "cpu/part.h"
#include "cpu/random.inc"

EXPORT(threefry)
EXPORT(word_order)
