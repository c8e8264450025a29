/* random.c - the Python functions of gomlx.core.random. Without a key they draw from the thread's state. */
#include "py/ops/bind.h"

FUNCTION_OF(random_key)
{
    PyObject *value;
    BIND(random_key, "p", &value);
    uint64_t seed;
    return call_finish(&c, read_random_seed(value, "key", &seed) ? gm_random_key(c.scope, seed) : NULL);
}

FUNCTION_OF(random_permutation)
{
    PyObject *what;
    gm_array *key;
    int axis = 0, count = 0;
    BIND(random_permutation, "piO", &what, &axis, &key);
    gm_array *x = py_array_node(c.state, what);
    if (!x && !read_int(what, "permutation: x", &count))
        return call_finish(&c, NULL);
    key = random_draw_key(c.state, c.scope, key);
    return call_finish(&c, gm_random_permutation(c.scope, x ? x : GM_NONE, count, axis, key));
}
