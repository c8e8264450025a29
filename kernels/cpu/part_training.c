/* part_training.c - attention and recurrent layers as training needs them, gradients of work on rows, and steps of
 * optimisers. See part.h. */
#include "cpu/part.h"
#include "cpu/sequence_attention.inc"
#include "cpu/sequence_recurrent.inc"
#include "cpu/training_rows.inc"
#include "cpu/training_steps.inc"

#define EXPORTS_training EXPORTED
#include "cpu/exports.h"
