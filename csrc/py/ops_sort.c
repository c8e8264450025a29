/* ops_sort.c - Python functions of scans and sorts. */
#include "py/bind.h"
#include <string.h>

/* ---- scans ---- */
#define SUMMED(name)                                                                                                   \
    FUNCTION_OF(name) {                                                                                                \
        gm_array *x;                                                                                                   \
        int axis = 0;                                                                                                  \
        bool all = true, reverse = false, inclusive = true;                                                            \
        gm_dtype type = GM_DTYPE_COUNT;                                                                                \
        BIND(name, "Aabbd", &x, &axis, &all, &reverse, &inclusive, &type);                                             \
        return call_finish(&c, gm_##name(c.scope, x, axis, all, reverse, inclusive, type));                            \
    }
SUMMED(cumsum)
SUMMED(cumprod)

#define SCANNED(name)                                                                                                  \
    FUNCTION_OF(name) {                                                                                                \
        gm_array *x;                                                                                                   \
        int axis = 0;                                                                                                  \
        bool all = true, reverse = false, inclusive = true;                                                            \
        BIND(name, "Aabb", &x, &axis, &all, &reverse, &inclusive);                                                     \
        return call_finish(&c, gm_##name(c.scope, x, axis, all, reverse, inclusive));                                  \
    }
SCANNED(cummax)
SCANNED(cummin)
SCANNED(logcumsumexp)

/* ---- sorts ---- */
#define SORTED(name)                                                                                                   \
    FUNCTION_OF(name) {                                                                                                \
        gm_array *x;                                                                                                   \
        int axis = -1;                                                                                                 \
        bool all = false;                                                                                              \
        BIND(name, "Aa", &x, &axis, &all);                                                                             \
        return call_finish(&c, gm_##name(c.scope, x, axis, all));                                                      \
    }
SORTED(sort)
SORTED(argsort)

#define CHOSEN(name)                                                                                                   \
    FUNCTION_OF(name) {                                                                                                \
        gm_array *x;                                                                                                   \
        int k = 0, axis = -1;                                                                                          \
        bool all = false;                                                                                              \
        BIND(name, "Aia", &x, &k, &axis, &all);                                                                        \
        return call_finish(&c, gm_##name(c.scope, x, k, axis, all));                                                   \
    }
CHOSEN(partition)
CHOSEN(argpartition)
CHOSEN(topk)

FUNCTION_OF(searchsorted) {
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
