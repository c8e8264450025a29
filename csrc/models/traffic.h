/* traffic.h - which work a model's weights belong to, and what of them a forward pass reads. */
#ifndef GOMLX_MODELS_TRAFFIC_H
#define GOMLX_MODELS_TRAFFIC_H
#include "models/model.h"

/* Each weight's gm_work; once all are loaded. */
void traffic_mark(gm_model *m);
/* "Q4_K", "BF16", of MLX's "affine 4", "NVFP4". */
void traffic_type(const gm_named_weight *w, char out[24]);
/* pass->weights, added to, for a pass of n rows, with logits or without. */
void traffic_of_pass(const gm_model *m, int64_t rows, bool logits, gm_phase_profile *pass);
#endif
