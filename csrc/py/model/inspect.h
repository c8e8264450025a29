/* inspect.h - activations as arguments, for model.c's methods and for streams: inspect.c. */
#ifndef GOMLX_PY_INSPECT_H
#define GOMLX_PY_INSPECT_H
#include "py/py.h"

typedef struct {
    gm_edit *edits;
    size_t n;
} edit_list;
/* A sequence of tuples (activation, replaces, array, from, to); the arrays are evaluated and retained. */
bool edits_read(module_state *state, PyObject *value, edit_list *out);
void edits_free(edit_list *e);
/* A sequence of ints; *numbers is for PyMem_Free, also on failure. */
bool numbers_read(PyObject *value, int64_t **numbers, size_t *count);
PyObject *py_model_activations(PyObject *self, PyObject *unused);
PyObject *py_model_inspect(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *py_model_rows(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames); /* training.c */
PyObject *py_model_loss(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *py_model_head(PyObject *self, PyObject *value);
#endif
