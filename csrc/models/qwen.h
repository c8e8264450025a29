/* qwen.h - what the configs of Qwen's attention models share. */
#ifndef GOMLX_MODELS_QWEN_H
#define GOMLX_MODELS_QWEN_H
#include "models/config.h"

/* all_layers: a window is on every layer, not on those from max_window_layers on. */
gm_status qwen_configure(const config_source *s, gm_config *c, bool all_layers);
#endif
