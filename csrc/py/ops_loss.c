/* ops_loss.c - Python functions of losses. */
#include "py/bind.h"

WRAPPED(cross_entropy, wrap_arrays, gm_cross_entropy)
