/* part_decoder.c - fused parts of decoders. See part.h. */
#include "cpu/part.h"
#include "cpu/low_rank.inc"
#include "cpu/rope.inc"
#include "cpu/attention.inc"
#include "cpu/sdpa.inc"
#include "cpu/gated_delta.inc"
#include "cpu/cached_conv.inc"

#define EXPORTS_decoder EXPORTED
#include "cpu/exports.h"
