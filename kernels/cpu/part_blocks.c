/* part_blocks.c - float32 rows to GGUF's block formats. See part.h. */
#include "cpu/part.h"
#include "cpu/block_quantize.inc"

EXPORT(block_quantize)
