/* gguf_pre.h - what a GGUF file's tokenizer.ggml.pre stands for. */
#ifndef GOMLX_TEXT_GGUF_PRE_H
#define GOMLX_TEXT_GGUF_PRE_H
#include "text/tokenizer.h"

/* Sets the pre-tokenizer, and the normalizer and the model where they hang on it; *add_bos whether texts get the start
 * token where the file does not say. A name that is not known is an error that lists those that are. */
gm_status gguf_pre(gm_tokenizer *t, const char *path, const char *name, size_t length, bool *add_bos);
#endif
