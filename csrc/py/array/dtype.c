/* dtype.c - the Dtype objects: one per element type, compared by identity. */
#include "py/py.h"

typedef struct { PyObject_HEAD gm_dtype type; } dtype_object;

/* gomlx.core.bool_, not bool: that would hide Python's own. */
static const char *attribute_name(gm_dtype type) { return type == GM_BOOL ? "bool_" : gm_dtype_name(type); }

static void dtype_dealloc(PyObject *self) { object_free(self); }

/* MLX's own text: programs written for it take dtypes apart by their repr. */
static PyObject *dtype_repr(PyObject *self) {
    return PyUnicode_FromFormat("mlx.core.%s", gm_dtype_name(((dtype_object *)self)->type));
}

static PyObject *dtype_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyUnicode_FromString(attribute_name(((dtype_object *)self)->type));
}

static PyObject *dtype_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(gm_dtype_size(((dtype_object *)self)->type));
}

static PyObject *dtype_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "Dtype objects are not made by calling: use float32, int8, ...");
    return NULL;
}

static PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef dtype_properties[] = {
    {"size", dtype_size, NULL, "Bytes of one element.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot dtype_slots[] = {
    {Py_tp_doc, "Dtype()\n--\n\nThe type of an array's elements: float32, int8, ...; no others can be made."},
    {Py_tp_new, dtype_new},
    {Py_tp_dealloc, dtype_dealloc},
    {Py_tp_repr, dtype_repr},
    {Py_tp_methods, dtype_methods},
    {Py_tp_getset, dtype_properties},
    {0, NULL},
};
PyType_Spec py_dtype_spec = {"gomlx.core.Dtype", sizeof(dtype_object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                             dtype_slots};

bool py_dtypes_add(PyObject *module, module_state *state, PyObject *names) {
    for (int i = 0; i < GM_DTYPE_COUNT; i++) {
        dtype_object *object = (dtype_object *)PyType_GenericAlloc(state->dtype_type, 0);
        if (!object)
            return false;
        object->type = (gm_dtype)i;
        state->dtypes[i] = (PyObject *)object;
        const char *attribute = attribute_name((gm_dtype)i);
        PyObject *name = PyUnicode_FromString(attribute);
        bool ok = name && PyModule_AddObjectRef(module, attribute, state->dtypes[i]) == 0 &&
                  PyList_Append(names, name) == 0;
        Py_XDECREF(name);
        if (!ok)
            return false;
    }
    return true;
}

bool read_dtype(module_state *state, PyObject *value, gm_dtype *out) {
    if (!value || value == Py_None)
        return true;
    if (!Py_IS_TYPE(value, state->dtype_type)) {
        PyErr_Format(PyExc_TypeError, "dtype must be a Dtype such as float32, not %R", (PyObject *)Py_TYPE(value));
        return false;
    }
    *out = ((dtype_object *)value)->type;
    return true;
}

bool py_dtype_is_inexact(gm_dtype type) { return type >= GM_FLOAT16 && type <= GM_COMPLEX64; }

bool py_dtype_is_integer(gm_dtype type) { return type >= GM_UINT8 && type <= GM_INT64; }
