/* methods.c - the methods of gomlx.core.array: those of methods.def, which are functions of the catalogue, and
 * the protocols that have no slot. */
#include "py/ops/bind.h"
#include <string.h>

static gm_array *self_node(PyObject *self) { return ((array_object *)self)->node; }

/* ---- protocols without a slot ---- */

static PyObject *method_copy(PyObject *self, PyObject *unused) {
    (void)unused;
    return py_array_handle(Py_TYPE(self), gm_retain(self_node(self)));
}

static PyObject *method_complex(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *item = py_array_item(self);
    PyObject *number = item ? PyObject_CallFunctionObjArgs((PyObject *)&PyComplex_Type, item, NULL) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *method_format(PyObject *self, PyObject *spec) {
    bool scalar = gm_array_ndim(self_node(self)) == 0;
    if (!scalar && PyUnicode_Check(spec) && PyUnicode_GetLength(spec) > 0) {
        PyErr_SetString(PyExc_TypeError, "only arrays without dimensions take a format");
        return NULL;
    }
    PyObject *value = scalar ? py_array_item(self) : PyObject_Str(self);
    PyObject *text = value ? PyObject_Format(value, spec) : NULL;
    Py_XDECREF(value);
    return text;
}

/* Python 2's names of /, which MLX has too. */
static PyObject *method_div(PyObject *self, PyObject *other) { return py_array_divide(self, other); }
static PyObject *method_rdiv(PyObject *self, PyObject *other) { return py_array_divide(other, self); }

/* (_unpickle, (class, dtype, shape, bytes)[, attributes of a subclass]). */
static PyObject *method_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    module_state *state = py_array_state(self);
    gm_array *node = self_node(self);
    if (gm_array_dtype(node) == GM_PACKED) {
        PyErr_SetString(PyExc_TypeError, "packed weights have no elements to pickle or to copy; dequantize them first");
        return NULL;
    }
    gm_scope *scope = gm_scope_open();
    gm_array *flat = scope ? gm_contiguous(scope, node) : NULL;
    PyObject *result = NULL;
    gm_array *made = NULL;
    if (flat && evaluate_one(state, flat) && (flat = host_node(state, flat, &made))) {
        Py_ssize_t bytes = (Py_ssize_t)(gm_array_size(flat) * (int64_t)gm_dtype_size(gm_array_dtype(flat)));
        PyObject *data = PyBytes_FromStringAndSize(gm_array_data(flat), bytes);
        PyObject *module = PyType_GetModule(state->array_type);
        PyObject *make = data && module ? PyObject_GetAttrString(module, "_unpickle") : NULL;
        PyObject *shape = make ? shape_tuple(flat) : NULL;
        if (shape) {
            PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
            if (!attributes)
                PyErr_Clear();
            result = Py_BuildValue(attributes ? "(O(OOOO)O)" : "(O(OOOO))", make, (PyObject *)Py_TYPE(self),
                                   state->dtypes[gm_array_dtype(flat)], shape, data, attributes);
            Py_XDECREF(attributes);
        }
        Py_XDECREF(shape);
        Py_XDECREF(make);
        Py_XDECREF(data);
    } else {
        raise_gm(state);
    }
    gm_release(made);
    gm_scope_close(scope);
    return result;
}

/* (dtype, shape, bytes): what __setstate__ takes. */
static PyObject *method_getstate(PyObject *self, PyObject *unused) {
    PyObject *reduced = method_reduce(self, unused);
    PyObject *state = reduced ? PySequence_GetSlice(PyTuple_GetItem(reduced, 1), 1, 4) : NULL;
    Py_XDECREF(reduced);
    return state;
}

/* The elements in row-major order: bytes(a) would else take an array without dimensions for a number. */
static PyObject *method_bytes(PyObject *self, PyObject *unused) {
    PyObject *state = method_getstate(self, unused);
    PyObject *bytes = state ? Py_NewRef(PyTuple_GetItem(state, 2)) : NULL;
    Py_XDECREF(state);
    return bytes;
}

/* The array becomes another one; a dict, which is what pickle keeps of a subclass, holds attributes. */
static PyObject *method_setstate(PyObject *self, PyObject *given) {
    module_state *state = py_array_state(self);
    if (PyDict_Check(given)) {
        PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
        bool ok = attributes && PyDict_Update(attributes, given) == 0;
        Py_XDECREF(attributes);
        return ok ? Py_NewRef(Py_None) : NULL;
    }
    PyObject *dtype, *shape, *bytes;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "OOO", &dtype, &shape, &bytes)) {
        PyErr_SetString(PyExc_ValueError, "__setstate__: expected what __getstate__ of an array gave");
        return NULL;
    }
    PyObject *made = PyObject_CallMethod(PyType_GetModule(state->array_type), "_unpickle", "OOOO", state->array_type,
                                         dtype, shape, bytes);
    if (!made)
        return NULL;
    gm_array *old = self_node(self);
    ((array_object *)self)->node = gm_retain(self_node(made));
    gm_release(old);
    Py_DECREF(made);
    Py_RETURN_NONE;
}

static PyObject *method_namespace(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"__array_namespace__", 0, 1, 0, {"api_version", NULL}};
    PyObject *v[1];
    (void)self;
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    if (v[0] && v[0] != Py_None) {
        PyErr_SetString(PyExc_ValueError, "__array_namespace__: api_version is not supported, expected None");
        return NULL;
    }
    return PyImport_ImportModule("gomlx.core");
}

/* ---- giving memory back ---- */

/* The handle's share of the memory ends; readers of the node, views and exports keep theirs. */
static PyObject *method_free(PyObject *self, PyObject *unused) {
    (void)unused;
    array_object *array = (array_object *)self;
    gm_scope *scope = gm_scope_open();
    gm_array *old = array->node, *node = scope ? gm_retain(gm_freed(scope, old)) : NULL;
    gm_scope_close(scope);
    if (!node)
        return raise_gm(py_array_state(self));
    array->node = node;
    gm_release(old);
    foreign_drain();
    Py_RETURN_NONE;
}

static PyObject *method_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *method_exit(PyObject *self, PyObject *args) { return method_free(self, args); }

/* ---- shape ---- */

static PyObject *method_dim(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"dim", 0, 1, 1, {"axis", NULL}};
    module_state *state = py_array_state(self);
    gm_array *node = self_node(self);
    PyObject *value;
    int axis = 0, ndim = gm_array_ndim(node);
    if (!read_arguments(&sig, args, n, kwnames, &value) || !read_int(value, "axis", &axis))
        return NULL;
    if (axis < -ndim || axis >= ndim) {
        PyErr_Format(state->axis_error, "dim: axis %d is out of range for %d dimensions", axis, ndim);
        return NULL;
    }
    return PyLong_FromLongLong(gm_array_shape(node)[axis < 0 ? axis + ndim : axis]);
}

/* ---- functions of the catalogue ---- */

typedef PyObject *(*op_function)(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* function(self, ...). With as_list several positional arguments become one tuple; none become None, or for reshape the
 * empty tuple. */
static PyObject *call_method(PyObject *self, op_function function, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames, bool as_list) {
    PyObject *all[BIND_ARGUMENTS + 1] = {self}, *list = NULL;
    Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0, positional = n;
    if (as_list && n != 1) {
        list = PyTuple_New(n);
        for (Py_ssize_t i = 0; list && i < n; i++)
            PyTuple_SetItem(list, i, Py_NewRef(args[i]));
        if (!list)
            return NULL;
        all[1] = n || function == op_reshape ? list : Py_None;
        positional = 1;
    }
    if (positional + named > BIND_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are more than any method takes", n + named);
        return NULL;
    }
    for (Py_ssize_t i = list ? 1 : 0; i < positional + named; i++)
        all[1 + i] = args[i + n - positional];
    PyObject *result = function(PyType_GetModule(py_array_state(self)->array_type), all, positional + 1, kwnames);
    Py_XDECREF(list);
    return result;
}

#define AS_FUNCTION(name, function, as_list)                                                                           \
    static PyObject *method_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {           \
        return call_method(self, op_##function, args, n, kwnames, as_list);                                            \
    }
#define METHOD(name, function, text) AS_FUNCTION(name, function, false)
#define LIST_METHOD(name, function, text) AS_FUNCTION(name, function, true)
#include "py/methods.def"
#undef METHOD
#undef LIST_METHOD

#define SIG(text, doc) text "\n--\n\n" doc
PyMethodDef py_array_methods[] = {
    {"item", py_array_item_method, METH_NOARGS,
     SIG("item($self)", "The value of an array of size 1, as a Python scalar.")},
    {"tolist", py_array_tolist, METH_NOARGS,
     SIG("tolist($self)", "Nested lists of Python scalars; a scalar without dimensions.")},
    {"floats", py_array_floats, METH_NOARGS,
     SIG("floats($self)", "The elements in row-major order as one list of floats, of any dtype but complex64.")},
    {"ints", py_array_ints, METH_NOARGS,
     SIG("ints($self)", "The elements of an array of integers or bool in row-major order, as one list of ints.")},
    {"int32s", py_array_int32s, METH_NOARGS,
     SIG("int32s($self)", "As ints; OverflowError when one is outside the range of int32.")},
    {"numpy", py_array_to_numpy, METH_NOARGS,
     SIG("numpy($self)", "A NumPy array on the same memory; of bfloat16 a copy in float32.")},
    {"dim", FUNCTION(method_dim), FASTCALL,
     SIG("dim($self, axis)", "The size of one axis, from the end when negative.")},
    {"free", method_free, METH_NOARGS,
     SIG("free($self)", "Gives the array's share of its memory back now: what only this array holds, and what it would "
                        "be computed from.\n"
                        "Views, exports and arrays that are to be computed from it keep what they need. shape and "
                        "dtype stay; reading its\n"
                        "values later, or evaluating what is made of it later, is a RuntimeError. A second time it "
                        "does nothing. Used in a\n"
                        "with statement, an array is freed at the end.")},
    {"__enter__", method_enter, METH_NOARGS, NULL},
    {"__exit__", method_exit, METH_VARARGS, NULL},
#define METHOD(name, function, text)                                                                                   \
    {#name, FUNCTION(method_##name), FASTCALL, #name text "\n--\n\nAs gomlx.core." #function " of the array."},
#define LIST_METHOD(name, function, text) METHOD(name, function, text)
#include "py/methods.def"
    {"__copy__", method_copy, METH_NOARGS, NULL},
    {"__deepcopy__", method_copy, METH_O, NULL},
    {"__bytes__", method_bytes, METH_NOARGS, NULL},
    {"__complex__", method_complex, METH_NOARGS, NULL},
    {"__div__", method_div, METH_O, NULL},
    {"__format__", method_format, METH_O, NULL},
    {"__getstate__", method_getstate, METH_NOARGS, NULL},
    {"__rdiv__", method_rdiv, METH_O, NULL},
    {"__reduce__", method_reduce, METH_NOARGS, NULL},
    {"__setstate__", method_setstate, METH_O, NULL},
    {"__array__", FUNCTION(py_array_numpy), FASTCALL,
     SIG("__array__($self, dtype=None, copy=None)", "A NumPy array, on the same memory where dtype and copy allow.")},
    {"__array_namespace__", FUNCTION(method_namespace), FASTCALL, NULL},
    {"__arrow_c_array__", FUNCTION(py_array_arrow), FASTCALL,
     SIG("__arrow_c_array__($self, requested_schema=None)",
         "Arrow capsules of a copy: [n] is a column, [n, m] a table of m columns.")},
    {"__dlpack__", FUNCTION(py_array_dlpack), FASTCALL,
     SIG("__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)",
         "A DLPack capsule on the array's memory, or on a copy: copy=True, or an array of a GPU and dl_device (1, 0). "
         "All that is to be waited for is done when it returns, whatever stream is. BufferError: it is elsewhere.")},
    {"__dlpack_device__", py_array_dlpack_device, METH_NOARGS,
     SIG("__dlpack_device__($self)",
         "Where its memory is: (1, 0) on the processor, (2, n) on CUDA device n. Evaluates it.")},
    {NULL, NULL, 0, NULL},
};
