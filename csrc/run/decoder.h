/* decoder.h - what a stream needs of the decoder that it is a member of; the rest is in gomlx.h. */
#ifndef GOMLX_RUN_DECODER_H
#define GOMLX_RUN_DECODER_H
#include "run/stream.h"

void decoder_remove(gm_decoder *d, gm_stream *st);       /* a pass under way that has rows of it is abandoned */
#endif
