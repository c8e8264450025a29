/* head_order.h - weights whose heads lie in another order in the model than in its checkpoints for transformers, whose
 * order names, terms of adapters and weights that are trained whole have. */
#ifndef GOMLX_MODELS_HEAD_ORDER_H
#define GOMLX_MODELS_HEAD_ORDER_H
#include "models/model.h"

/* x, whose `axis` is that axis of the weight (its rows 0, its columns 1), from the checkpoints' order to the model's,
 * and back. x itself where they are the same; NULL stays NULL. Gradients go through. */
gm_array *heads_as_model(gm_scope *s, const gm_model *m, const char *weight, gm_array *x, int axis);
gm_array *heads_as_checkpoint(gm_scope *s, const gm_model *m, const char *weight, gm_array *x, int axis);
#endif
