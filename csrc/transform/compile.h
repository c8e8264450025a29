/* compile.h - a traced graph that runs again over other inputs. */
#ifndef GOMLX_TRANSFORM_COMPILE_H
#define GOMLX_TRANSFORM_COMPILE_H
#include "transform/walk.h"

/* Where an operand comes from: value `slot` of the run, or constant number -1 - slot. */
typedef int32_t operand;

typedef struct {
    gm_array *node;                /* op, parameters and traced shapes; retained. NULL: a fused chain */
    operand *in;
    int n_in, n_out;
    int first_out;                 /* slots [first_out, first_out + n_out) */
    gm_fused_step *steps;          /* of a fused chain */
    int n_steps;
} instruction;

struct gm_graph {
    instruction *code;
    int64_t n_code;
    gm_array **constants;          /* what does not depend on the inputs; retained */
    int64_t n_constants;
    int64_t n_slots;
    int n_inputs, n_outputs;
    gm_array **inputs;             /* the traced ones: dtypes and shapes; retained */
    operand *outputs;
    bool shapeless;
};

/* Joins elementwise instructions whose values nobody else reads into chains. */
gm_status compile_fuse(gm_graph *g);
/* The parameters of an instruction for inputs of other shapes than the traced ones. */
gm_array *compile_reshaped(gm_scope *s, const gm_array *node, gm_array *const *in);
#endif
