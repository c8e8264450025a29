/* part_training.c - attention as training needs it, and gradients of work on rows. See part.h. */
#include "cpu/part.h"
#include "cpu/sequence_attention.inc"
#include "cpu/training_rows.inc"

#define EXPORTS_training EXPORTED
#include "cpu/exports.h"
