/* arguments.c - arguments of the vectorcall convention: sorted by name, then read one kind at a time. */
#include "py/py.h"
#include <limits.h>
#include <string.h>

static int name_index(const signature *sig, PyObject *name) {
    for (int i = sig->n_positional_only; sig->names[i]; i++)
        if (PyUnicode_CompareWithASCIIString(name, sig->names[i]) == 0)
            return i;
    return -1;
}

/* gomlx._base.arguments words the message, which names the argument that may have been meant. */
void raise_unexpected(const char *function, PyObject *name, const char *const *names) {
    PyObject *known = PyList_New(0), *module = PyImport_ImportModule("gomlx._base.arguments");
    bool ok = known && module;
    for (int i = 0; ok && names[i]; i++) {
        PyObject *one = PyUnicode_FromString(names[i]);
        ok = one && PyList_Append(known, one) == 0;
        Py_XDECREF(one);
    }
    PyObject *text = ok ? PyObject_CallMethod(module, "unexpected", "sOO", function, name, known) : NULL;
    if (text)
        PyErr_SetObject(PyExc_TypeError, text);
    Py_XDECREF(text);
    Py_XDECREF(module);
    Py_XDECREF(known);
}

bool read_arguments(const signature *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, PyObject **values) {
    for (int i = 0; sig->names[i]; i++)
        values[i] = NULL;
    if (n > sig->n_positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)", sig->function,
                     sig->n_positional, n);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        values[i] = args[i];
    Py_ssize_t n_named = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < n_named; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        int at = name_index(sig, name);
        if (at < 0) {
            raise_unexpected(sig->function, name, sig->names + sig->n_positional_only);
            return false;
        }
        if (values[at]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", sig->function, name);
            return false;
        }
        values[at] = args[n + i];
    }
    for (int i = 0; sig->names[i]; i++) {
        if (!values[i] && (sig->required >> i & 1)) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", sig->function, sig->names[i]);
            return false;
        }
    }
    return true;
}

bool read_bool(PyObject *value, bool *out) {
    if (!value)
        return true;
    int truth = PyObject_IsTrue(value);
    if (truth < 0)
        return false;
    *out = truth;
    return true;
}

bool read_int(PyObject *value, const char *what, int *out) {
    if (!value)
        return true;
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, not %R", what, (PyObject *)Py_TYPE(value));
        return false;
    }
    PyObject *index = PyNumber_Index(value);
    if (!index)
        return false;
    int overflow;
    long number = PyLong_AsLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (number == -1 && PyErr_Occurred())
        return false;
    if (overflow || number < INT_MIN || number > INT_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s: %S is outside the range of int32, -2147483648 to 2147483647", what,
                     value);
        return false;
    }
    *out = (int)number;
    return true;
}

bool read_random_seed(PyObject *value, const char *what, uint64_t *seed) {
    PyObject *index = is_one_integer(value) ? PyNumber_Index(value) : NULL;
    if (!index) {
        PyErr_Format(PyExc_TypeError, "%s: the seed must be an int, not %R", what, (PyObject *)Py_TYPE(value));
        return false;
    }
    *seed = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s: %R is not an unsigned 64-bit number", what, value);
    return !PyErr_Occurred();
}

bool read_float(PyObject *value, const char *what, double *out) {
    if (!value)
        return true;
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be a number, not %R", what, (PyObject *)Py_TYPE(value));
        return false;
    }
    *out = number;
    return true;
}

PyObject *read_sequence(PyObject *value, const char *what, int most) {
    const bool sequence = PySequence_Check(value) && !PyUnicode_Check(value) && !PyBytes_Check(value);
    PyObject *items = sequence ? PySequence_Tuple(value) : NULL;
    if (!sequence || (!items && PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_Format(PyExc_TypeError, "%s must be an int or a sequence of ints, not %R", what,
                     (PyObject *)Py_TYPE(value));
    if (items && PyTuple_Size(items) > most) {
        PyErr_Format(PyExc_ValueError, "%s: %zd items, at most %d are possible", what, PyTuple_Size(items), most);
        Py_CLEAR(items);
    }
    return items;
}

/* At most GM_MAX_NDIM ints of a list or tuple. */
static bool read_ints(PyObject *value, const char *what, int *count, int *out) {
    PyObject *items = read_sequence(value, what, GM_MAX_NDIM);
    Py_ssize_t n = items ? PyTuple_Size(items) : 0;
    bool ok = items != NULL;
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = read_int(PyTuple_GetItem(items, i), what, out + i);
    Py_XDECREF(items);
    *count = (int)n;
    return ok;
}

/* Arrays have __index__ whatever their shape. */
bool is_one_integer(PyObject *value) {
    if (!PyIndex_Check(value) || !PySequence_Check(value))
        return PyIndex_Check(value);
    const bool sized = PySequence_Size(value) >= 0;
    PyErr_Clear();
    return !sized;
}

bool read_axes(PyObject *value, int *n_axes, int *axes) {
    *n_axes = -1;
    if (!value || value == Py_None)
        return true;
    if (is_one_integer(value)) {
        *n_axes = 1;
        return read_int(value, "axis", axes);
    }
    return read_ints(value, "axis", n_axes, axes);
}

bool read_shape(PyObject *value, int *ndim, int64_t *shape) {
    if (is_one_integer(value))
        return read_shape_items(&value, 1, ndim, shape);
    int dims[GM_MAX_NDIM];
    if (!read_ints(value, "shape", ndim, dims))
        return false;
    for (int i = 0; i < *ndim; i++)
        shape[i] = dims[i];
    return true;
}

bool read_shape_items(PyObject *const *items, Py_ssize_t n, int *ndim, int64_t *shape) {
    if (n > GM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "shape: %zd dimensions, at most %d are possible", n, GM_MAX_NDIM);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int dim;
        if (!read_int(items[i], "shape", &dim))
            return false;
        shape[i] = dim;
    }
    *ndim = (int)n;
    return true;
}

bool dimensions_fit(const char *what, int ndim, const int64_t *shape) {
    for (int i = 0; i < ndim; i++) {
        if (shape[i] > INT32_MAX) {
            PyErr_Format(PyExc_OverflowError, "%s: a dimension of %lld is outside the range of int32", what,
                         (long long)shape[i]);
            return false;
        }
    }
    return true;
}

/* What a function of gomlx.core._devices, which knows streams and devices, says that the value means: a number. */
static bool ask_devices(const char *function, PyObject *value, int *number) {
    PyObject *devices = PyImport_ImportModule("gomlx.core._devices");
    PyObject *found = devices ? PyObject_CallMethod(devices, function, "O", value) : NULL;
    *number = found ? (int)PyLong_AsLong(found) : 0;
    Py_XDECREF(devices);
    Py_XDECREF(found);
    return found && !PyErr_Occurred();
}

bool place_enter(PyObject *value, stream_place *place) {
    int number;
    *place = (stream_place){.entered = false};
    if (!value || value == Py_None)
        return true;
    if (!ask_devices("_number_of_stream", value, &number))
        return false;
    *place = (stream_place){.entered = true, .before = gm_device_enter(number)};
    return true;
}

void place_leave(stream_place *place) {
    if (place->entered)
        gm_device_enter(place->before);
    place->entered = false;
}

bool read_device(PyObject *value, int *number) {
    *number = gm_device_current();
    return !value || value == Py_None || ask_devices("_number_of_device", value, number);
}

/* The ids of an array of native int32, of one dimension. *is_array false and true returned: it is something else. */
static bool read_id_array(PyObject *value, int32_t **ids, size_t *count, bool *is_array) {
    Py_buffer view;
    *is_array = false;
    if (!PyObject_CheckBuffer(value))
        return true;
    if (PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_ND) < 0) {
        PyErr_Clear(); /* not contiguous, or no memory of its own: it is read item by item */
        return true;
    }
    *is_array = view.ndim == 1 && view.itemsize == sizeof(int32_t) && view.format && strcmp(view.format, "i") == 0;
    *count = (size_t)view.len / sizeof(int32_t);
    if (*is_array && (*ids = PyMem_Malloc((size_t)view.len + 1)))
        memcpy(*ids, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    if (*is_array && !*ids)
        PyErr_NoMemory();
    return !*is_array || *ids;
}

/* one: what the errors call an item. */
static bool read_numbers(PyObject *value, const char *one, int32_t **ids, size_t *count) {
    bool is_array;
    if (!read_id_array(value, ids, count, &is_array))
        return false;
    if (is_array)
        return true;
    PyObject *items = PySequence_Tuple(value);
    if (!items)
        return false;
    Py_ssize_t n = PyTuple_Size(items);
    int32_t *list = PyMem_Malloc(sizeof *list * (size_t)(n ? n : 1));
    if (!list) {
        Py_DECREF(items);
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int id;
        if (!read_int(PyTuple_GetItem(items, i), one, &id)) {
            PyMem_Free(list);
            Py_DECREF(items);
            return false;
        }
        list[i] = id;
    }
    Py_DECREF(items);
    *ids = list;
    *count = (size_t)n;
    return true;
}

bool read_ids(PyObject *value, int32_t **ids, size_t *count) {
    if (!PyUnicode_Check(value) && !PyBytes_Check(value))
        return read_numbers(value, "token id", ids, count);
    PyErr_SetString(PyExc_TypeError, "token ids must be a sequence of ints, not text; encode it first");
    return false;
}

bool read_lengths(PyObject *value, int32_t **lengths, size_t *count) {
    if (!PyUnicode_Check(value) && !PyBytes_Check(value))
        return read_numbers(value, "length", lengths, count);
    PyErr_SetString(PyExc_TypeError, "lengths must be a sequence of ints, not text");
    return false;
}
