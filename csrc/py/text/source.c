/* source.c - arrays whose values are read from a file when they are evaluated. */
#include "py/py.h"

/* One of (dtype, shape, first byte); the scope owns it. */
static gm_array *read_entry(module_state *state, gm_scope *scope, gm_source *source, PyObject *entry, bool swapped) {
    PyObject *dtype, *shape_object;
    long long begin;
    gm_dtype type = GM_DTYPE_COUNT;
    int ndim;
    int64_t shape[GM_MAX_NDIM];
    if (!PyArg_ParseTuple(entry, "OOL", &dtype, &shape_object, &begin) || !read_dtype(state, dtype, &type) ||
        !read_shape(shape_object, &ndim, shape))
        return NULL;
    return gm_source_array(scope, source, type, ndim, shape, begin, swapped);
}

PyObject *file_arrays(PyObject *module, PyObject *args) {
    module_state *state = PyModule_GetState(module);
    const char *name;
    int fd, swapped;
    PyObject *entries;
    gm_source *source;
    if (!PyArg_ParseTuple(args, "isO!p", &fd, &name, &PyList_Type, &entries, &swapped))
        return NULL;
    if (gm_source_open(fd, name, &source) != GM_OK)
        return raise_gm(state);
    gm_scope *scope = gm_scope_open();
    PyObject *list = scope ? PyList_New(PyList_Size(entries)) : NULL;
    for (Py_ssize_t i = 0; list && i < PyList_Size(list); i++) {
        PyObject *entry = Py_XNewRef(PyList_GetItem(entries, i));
        gm_array *node = entry ? read_entry(state, scope, source, entry, swapped) : NULL;
        Py_XDECREF(entry);
        PyObject *array = node ? py_array_handle(state->array_type, gm_retain(node)) : NULL;
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, array);
    }
    gm_scope_close(scope);
    gm_source_close(source);
    return list ? list : raise_gm(state);
}
