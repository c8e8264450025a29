/* decoder.h - what single.c needs of decoders beside gomlx.h. */
#ifndef GOMLX_RUN_DECODER_H
#define GOMLX_RUN_DECODER_H
#include "run/stream.h"

void decoder_remove(gm_decoder *d, gm_stream *st); /* abandons a current pass with rows of it */
#endif
