/* packed.h - what operations on packed matrices share. */
#ifndef GOMLX_OPS_PACKED_H
#define GOMLX_OPS_PACKED_H
#include "ops/ops.h"

/* GM_EVALUE where w is no packed matrix. */
gm_status check_packed(const char *op, const gm_array *w);
/* A packed matrix, or one that still waits in its file, as contracts take it. */
gm_matrix matrix_of(const gm_array *w);
#endif
