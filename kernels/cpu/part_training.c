/* part_training.c - attention as training needs it. See part.h. */
#include "cpu/part.h"
#include "cpu/sequence_attention.inc"

#define EXPORTS_training EXPORTED
#include "cpu/exports.h"
