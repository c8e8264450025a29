/* sort.c - Python functions of scans and sorts. */
#include "py/ops/bind.h"
#include <string.h>

FUNCTION_OF(searchsorted)
{
    gm_array *sorted, *values;
    const char *side = "left";
    BIND(searchsorted, "AAt", &sorted, &values, &side);
    bool right = strcmp(side, "right") == 0;
    if (!right && strcmp(side, "left") != 0) {
        PyErr_Format(PyExc_ValueError, "searchsorted: side must be 'left' or 'right', not '%s'", side);
        return call_finish(&c, NULL);
    }
    return call_finish(&c, gm_searchsorted(c.scope, sorted, values, right));
}
