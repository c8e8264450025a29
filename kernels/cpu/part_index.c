/* part_index.c - reading by index. See part.h. */
#include "cpu/part.h"
#include "cpu/index.inc"

#define EXPORTS_index EXPORTED
#include "cpu/exports.h"
