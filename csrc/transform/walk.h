/* walk.h - the part of a graph that lies between traced inputs and outputs, in an order fit for transforms. */
#ifndef GOMLX_TRANSFORM_WALK_H
#define GOMLX_TRANSFORM_WALK_H
#include "ops/ops.h"

typedef struct {
    gm_array **nodes;              /* inputs before readers; borrowed */
    bool *reached;                 /* depends on one of the inputs */
    int64_t count;
    int64_t *table;                /* open addressing: node to index + 1 */
    int64_t table_size;
} walk;

/* Nodes from which the outputs are made and whose trace is not older than the inputs'. Edges that an op declares
 * nondifferentiable are left out when `gradients` asks for it. */
gm_status walk_make(gm_array *const *outputs, int n_outputs, gm_array *const *inputs, int n_inputs, bool gradients,
                    walk *out);
void walk_free(walk *w);
int64_t walk_find(const walk *w, const gm_array *node);      /* -1: not among them */
#endif
