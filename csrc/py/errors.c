/* errors.c - the one place where the engine's status codes become Python exceptions. */
#include "py/py.h"
#include <string.h>

static PyObject *exception_class(module_state *state, gm_status code) {
    switch (code) {
    case GM_EVALUE:
    case GM_ESHAPE:
        return PyExc_ValueError;
    case GM_ETYPE:
        return PyExc_TypeError;
    case GM_EINDEX:
        return PyExc_IndexError;
    case GM_EAXIS:
        return state->axis_error;
    case GM_EOVERFLOW:
        return PyExc_OverflowError;
    case GM_ENOMEM:
        return PyExc_MemoryError;
    case GM_EFILE:
        return PyExc_OSError;
    case GM_EUNSUPPORTED:
        return PyExc_NotImplementedError;
    case GM_EBADFILE:
    case GM_EDEVICE:
        return state->error;
    case GM_OK:
    case GM_ESTATE:
    case GM_ECANCELLED:
    case GM_AGAIN:
    case GM_END:
    case GM_LOGITS:
        break;
    }
    return PyExc_RuntimeError;
}

PyObject *raise_gm(module_state *state) {
    gm_error error;
    gm_status code = gm_take_error(&error);
    if (PyErr_Occurred())
        return NULL;
    if (code == GM_OK) {
        PyErr_SetString(PyExc_SystemError, "the engine failed without saying why");
        return NULL;
    }
    PyObject *class = exception_class(state, code);
    PyObject *text = PyUnicode_DecodeUTF8(error.text, (Py_ssize_t)strnlen(error.text, sizeof error.text), "replace");
    if (!text)
        return NULL;
    if (code == GM_EFILE && error.os_errno != 0) {     /* OSError(errno, text) is FileNotFoundError and its like */
        PyObject *pair = Py_BuildValue("(iO)", error.os_errno, text);
        if (pair)
            PyErr_SetObject(class, pair);
        Py_XDECREF(pair);
    } else {
        PyErr_SetObject(class, text);
    }
    Py_DECREF(text);
    return NULL;
}
