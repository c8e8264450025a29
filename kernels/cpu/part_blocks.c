/* part_blocks.c - float32 rows to GGUF's block formats. See part.h. */
#include "cpu/part.h"
#include "cpu/block_quantize.inc"

#define EXPORTS_blocks EXPORTED
#include "cpu/exports.h"
