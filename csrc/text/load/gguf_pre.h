/* gguf_pre.h - the pre-tokenizers that a GGUF file names in tokenizer.ggml.pre. */
#ifndef GOMLX_TEXT_GGUF_PRE_H
#define GOMLX_TEXT_GGUF_PRE_H
#include "text/tokenizer.h"

/* Sets the pre-tokenizer, and what the name implies of normalizer and model. *add_bos: whether texts get the start
 * token if the file does not say. An unknown name is an error that lists the known ones. */
gm_status gguf_pre(gm_tokenizer *t, const char *path, const char *name, size_t length, bool *add_bos);
#endif
