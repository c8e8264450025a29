/* ops_loss.c - Python functions of losses. */
#include "py/bind.h"

FUNCTION_OF(cross_entropy) {
    gm_array *logits, *targets;
    BIND(cross_entropy, "AA", &logits, &targets);
    return call_finish(&c, gm_cross_entropy(c.scope, logits, targets));
}
