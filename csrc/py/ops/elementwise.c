/* elementwise.c - Python functions of elementwise ops, comparisons and statistics that are HAND rows. */
#include "py/ops/bind.h"

/* A number that may be None: NULL then. False with an exception. */
static bool read_optional(PyObject *value, const char *what, double *number, const double **out) {
    *out = value && value != Py_None ? number : NULL;
    return !*out || read_float(value, what, number);
}

FUNCTION_OF(nan_to_num)
{
    gm_array *x;
    double nan = 0, above, below;
    const double *posinf, *neginf;
    PyObject *high, *low;
    BIND(nan_to_num, "Vfpp", &x, &nan, &high, &low);
    bool ok = read_optional(high, "posinf", &above, &posinf) && read_optional(low, "neginf", &below, &neginf);
    return call_finish(&c, ok ? gm_nan_to_num(c.scope, x, nan, posinf, neginf) : NULL);
}

/* Bounds that are scalars are weak to the array. */
FUNCTION_OF(clip)
{
    gm_array *x, *bounds[2] = {GM_NONE, GM_NONE};
    PyObject *values[2];
    BIND(clip, "App", &x, &values[0], &values[1]);
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        if (values[i] != Py_None)
            ok = (bounds[i] = node_from_operand(c.state, c.scope, values[i], gm_array_dtype(x))) != NULL;
    return call_finish(&c, ok ? gm_clip(c.scope, x, bounds[0], bounds[1]) : NULL);
}
