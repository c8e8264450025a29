/* adam.c - steps of Adam, for gomlx.optimizers. */
#include "py/py.h"

/* ([rate, shrink or None, scale or None, then gradient, w, m, v of each parameter], b1, b2, eps) -> [w, m, v of each],
 * as ops.def's row `adam` has it. */
PyObject *adam_of_many(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    PyObject *list, *result = NULL;
    node_list in = {NULL, 0};
    double b1, b2, eps;
    if (!PyArg_ParseTuple(args, "Oddd", &list, &b1, &b2, &eps))
        return NULL;
    gm_scope *scope = gm_scope_open();
    if (scope && read_nodes(state, scope, list, true, &in)) {
        const Py_ssize_t parts = (in.count - 3) / 4;
        gm_array **outs = PyMem_Calloc((size_t)in.count + 1, sizeof *outs);
        for (Py_ssize_t i = 0; i < in.count; i++)
            in.nodes[i] = in.nodes[i] ? in.nodes[i] : GM_NONE;
        if (!outs)
            PyErr_NoMemory();
        else if (gm_adam(scope, in.nodes, (int)parts, b1, b2, eps, outs))
            result = node_handles(state, outs, 3 * parts);
        PyMem_Free(outs);
    }
    PyMem_Free(in.nodes);
    gm_scope_close(scope);
    return result ? result : raise_gm(state);
}
