/* compile.h - a traced graph that runs again over other inputs. */
#ifndef GOMLX_TRANSFORM_COMPILE_H
#define GOMLX_TRANSFORM_COMPILE_H
#include "transform/walk.h"

/* Where an operand comes from: value `slot` of the run, or constant number -1 - slot. */
typedef int32_t operand;

typedef struct {
    gm_array *node; /* op, parameters and traced shapes; retained. NULL: a fused chain */
    operand *in;
    int n_in, n_out;
    int first_out;        /* slots [first_out, first_out + n_out) */
    gm_fused_step *steps; /* of a fused chain */
    int n_steps;
    int device; /* of a fused chain */
} instruction;

struct gm_graph {
    instruction *code;
    int64_t n_code;
    gm_array **constants; /* what does not depend on the inputs; retained */
    int64_t n_constants;
    int64_t n_slots;
    int n_inputs, n_outputs;
    gm_array **inputs; /* the traced ones: dtypes and shapes; retained */
    operand *outputs;
    bool shapeless;
};

/* gm_graph_new; with WALK_ALL what does not depend on the inputs is in the code too, but for evaluated arrays. */
gm_status compile_graph(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs, walk_kind kind,
                        bool shapeless, gm_graph **out);
/* The node again, over inputs that may have other shapes than the traced ones. */
gm_status compile_reshaped(gm_scope *s, gm_array *node, gm_array *const *in, gm_array **outs);
#endif
