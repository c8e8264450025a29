/* ops_recurrent.c - Python functions of fused recurrences. */
#include "py/bind.h"

FUNCTION_OF(gated_delta_update) {
    gm_array *q, *k, *v, *gamma, *beta, *state, *mask, *both[2] = {NULL, NULL};
    BIND(gated_delta_update, "AAAAAOO", &q, &k, &v, &gamma, &beta, &state, &mask);
    both[0] = gm_gated_delta_update(c.scope, q, k, v, gamma, beta, state, mask, &both[1]);
    return call_finish_many(&c, both[0] && both[1] ? GM_OK : GM_ESTATE, both, 2, true);
}
