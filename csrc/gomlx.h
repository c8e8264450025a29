/* gomlx.h - the one public C header of the engine; its chapters are in csrc/gomlx.
 *
 * Contracts
 *  - Functions return gm_status, or a pointer that is NULL on failure. The cause is in a slot of the calling thread
 *    until gm_take_error reads it. The library never exits, aborts or prints.
 *  - GM_AGAIN is no failure: the time slice of a long call is over; call again with the same handle. Between two calls
 *    the caller may look at signals. Dropping the handle (close, free) instead cancels what is left.
 *  - Handles are opaque and reference-counted; retain and release are atomic. Arguments are borrowed, nothing is
 *    stolen.
 *  - Ops given NULL return NULL silently, so a chain is checked once, at its end. NULL never means "none": GM_NONE
 *    does.
 *  - Sizes, strides (in elements) and shapes are int64. At most GM_MAX_NDIM dimensions. */
#ifndef GOMLX_H
#define GOMLX_H
#include "gomlx/base.h"
#include "gomlx/arrays.h"
#include "gomlx/graph.h"
#include "gomlx/machine.h"
#include "gomlx/text.h"
#include "gomlx/model.h"
#include "gomlx/generate.h"

#define GM_VERSION "0.1.0"
#endif
