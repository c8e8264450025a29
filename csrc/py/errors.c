/* errors.c - the one place where the engine's status codes become Python exceptions. */
#include "py/py.h"
#include <string.h>

/* A new exception class of these bases (a reference that it takes; NULL: they could not be made), added to the module.
 */
static bool add(PyObject *module, PyObject **slot, const char *name, const char *doc, PyObject *bases) {
    *slot = bases ? PyErr_NewExceptionWithDoc(name, doc, bases, NULL) : NULL;
    Py_XDECREF(bases);
    return *slot && PyModule_AddObjectRef(module, strchr(name, '.') + 1, *slot) == 0;
}

bool py_errors_add(PyObject *module, module_state *state) {
    return add(module, &state->error, "gomlx.Error", "A file that is not what it should be, or a device that fails.",
               PyTuple_Pack(1, PyExc_Exception))
           /* code written for MLX or NumPy expects an axis out of range to be the one or the other */
           && add(module, &state->axis_error, "gomlx.AxisError", "An axis that an array does not have.",
                  PyTuple_Pack(2, PyExc_ValueError, PyExc_IndexError)) &&
           add(module, &state->context_exceeded, "gomlx.ContextLengthExceeded",
               "More tokens than the context holds. prompt_tokens: how many there are; context_length: how many fit.",
               PyTuple_Pack(1, PyExc_ValueError)) &&
           add(module, &state->no_state, "gomlx.KvStateNotAvailable",
               "There is no state to go on from: the session is empty, or holds another beginning than the prompt's.",
               PyTuple_Pack(1, PyExc_ValueError)) &&
           add(module, &state->no_model, "gomlx.ModelNotSupported",
               "A model that this engine does not run: of an architecture, or with weights, that it does not know.",
               PyTuple_Pack(2, PyExc_ValueError, PyExc_NotImplementedError));
}

/* The exception of a context that is too short, with its numbers. */
static void raise_context(module_state *state, PyObject *text, const gm_error *error) {
    PyObject *raised = PyObject_CallFunctionObjArgs(state->context_exceeded, text, NULL);
    PyObject *tokens = raised ? PyLong_FromLongLong(error->tokens) : NULL;
    PyObject *context = tokens ? PyLong_FromLongLong(error->context) : NULL;
    if (context && PyObject_SetAttrString(raised, "prompt_tokens", tokens) == 0 &&
        PyObject_SetAttrString(raised, "context_length", context) == 0)
        PyErr_SetObject(state->context_exceeded, raised);
    Py_XDECREF(context);
    Py_XDECREF(tokens);
    Py_XDECREF(raised);
}

static PyObject *exception_class(module_state *state, gm_status code) {
    switch (code) {
    case GM_EVALUE:
    case GM_ESHAPE: return PyExc_ValueError;
    case GM_ETYPE: return PyExc_TypeError;
    case GM_EINDEX: return PyExc_IndexError;
    case GM_EAXIS: return state->axis_error;
    case GM_EOVERFLOW: return PyExc_OverflowError;
    case GM_ENOMEM: return PyExc_MemoryError;
    case GM_EFILE: return PyExc_OSError;
    case GM_EUNSUPPORTED: return PyExc_NotImplementedError;
    case GM_EBADFILE:
    case GM_EDEVICE: return state->error;
    case GM_ECONTEXT: return state->context_exceeded;
    case GM_EMODEL: return state->no_model;
    case GM_OK:
    case GM_ESTATE:
    case GM_ECANCELLED:
    case GM_AGAIN:
    case GM_END:
    case GM_LOGITS: break;
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
    if (code == GM_ECONTEXT) {
        raise_context(state, text, &error);
    } else if (code == GM_EFILE && error.os_errno != 0) { /* OSError(errno, text) is FileNotFoundError and its like */
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
