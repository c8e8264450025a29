/* walk.h - the subgraph between traced inputs and outputs, in an order fit for transforms. */
#ifndef GOMLX_TRANSFORM_WALK_H
#define GOMLX_TRANSFORM_WALK_H
#include "ops/ops.h"

typedef struct {
    gm_array **nodes; /* the traced inputs, then the others, inputs before readers; borrowed */
    int64_t n_inputs; /* the first of nodes are the traced inputs, each once */
    bool *reached;    /* depends on one of the inputs, or (WALK_ALL) is not evaluated */
    int64_t count;
    size_t capacity; /* of nodes */
    int64_t *table;  /* open addressing: node to index + 1 */
    int64_t table_size;
} walk;

typedef enum {
    WALK_VALUES,    /* what the outputs are made from and whose trace is not older than the inputs' */
    WALK_GRADIENTS, /* the same without edges that are constant to derivatives (gm_op.constant) */
    WALK_ALL,       /* all nodes that are not evaluated; with the run lock held, so that none will be */
} walk_kind;
gm_status walk_make(gm_array *const *outputs, int n_outputs, gm_array *const *inputs, int n_inputs, walk_kind kind,
                    walk *out);
void walk_free(walk *w);
int64_t walk_find(const walk *w, const gm_array *node); /* -1: not among them */
/* Where the outputs of each node begin when those of all nodes are one row of *n; memory_free. NULL with GM_ENOMEM. */
int64_t *walk_slots(const walk *w, int64_t *n);
#endif
