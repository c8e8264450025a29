/* config.h - what a model is, read from config.json or from GGUF metadata into one gm_config, and checked. */
#ifndef GOMLX_MODELS_CONFIG_H
#define GOMLX_MODELS_CONFIG_H
#include "models/model.h"

/* text: the whole config.json; name is used in messages. Old and new spelling (rope_theta and rope_scaling;
 * rope_parameters). */
gm_status config_from_json(const char *text, size_t length, const char *name, const gm_architecture **arch,
                           gm_config *out);
gm_status config_from_gguf(const gguf *g, const gm_architecture **arch, gm_config *out);
#endif
