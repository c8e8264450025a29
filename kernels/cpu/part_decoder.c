/* part_decoder.c - fused parts of decoders. See part.h. */
#include "cpu/part.h"
#include "cpu/rope.inc"
#include "cpu/attention.inc"
#include "cpu/sdpa.inc"
#include "cpu/gated_delta.inc"
#include "cpu/cached_conv.inc"

EXPORT(rope_angles)
EXPORT(rope_table)
EXPORT(rope)
EXPORT(rope_cache)
EXPORT(attention)
EXPORT(attention_split)
EXPORT(attention_merge)
EXPORT(sdpa_pack)
EXPORT(sdpa)
EXPORT(sdpa_split)
EXPORT(sdpa_merge)
EXPORT(gated_delta)
EXPORT(cached_gated_delta)
EXPORT(cached_conv)
