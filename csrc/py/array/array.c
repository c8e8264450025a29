/* array.c - gomlx.core.array: the handle, its operators and protocols. What a value means is in convert.c. */
#include "py/py.h"
#include <string.h>
#include <structmember.h>

/* ---- handles ---- */

module_state *py_array_state(PyObject *self) { return state_of(self, py_array_dealloc); }

gm_array *py_array_node(module_state *state, PyObject *object) {
    if (Py_IS_TYPE(object, state->array_type) || PyType_IsSubtype(Py_TYPE(object), state->array_type))
        return ((array_object *)object)->node;
    return NULL;
}

PyObject *py_array_handle(PyTypeObject *type, gm_array *node) {
    /* MLX's limit: programs keep sizes in 32 bits. The engine's own are of 64. */
    for (int i = 0; i < gm_array_ndim(node); i++) {
        const int64_t n = gm_array_shape(node)[i];
        if (n > INT32_MAX) {
            gm_release(node);
            PyErr_Format(PyExc_OverflowError,
                         "a dimension of %lld is outside the range of int32, -2147483648 to 2147483647", (long long)n);
            return NULL;
        }
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    array_object *array = (array_object *)allocate(type, 0);
    if (!array) {
        gm_release(node);
        return NULL;
    }
    array->node = node;
    return (PyObject *)array;
}

PyObject *py_array_result(module_state *state, gm_scope *scope, gm_array *node) {
    if (node)
        gm_retain(node);
    gm_scope_close(scope);
    return node ? py_array_handle(state->array_type, node) : raise_gm(state);
}

void py_array_dealloc(PyObject *self) {
    array_object *array = (array_object *)self;
    if (array->weakrefs)
        PyObject_ClearWeakRefs(self);
    gm_release(array->node);
    object_free(self);
    foreign_drain();
}

/* The state of the module whose array type, or a subclass of it, this is. */
static module_state *state_of_class(PyTypeObject *type) {
    while ((destructor)PyType_GetSlot(type, Py_tp_dealloc) != py_array_dealloc)
        type = PyType_GetSlot(type, Py_tp_base);
    return PyType_GetModuleState(type);
}

/* Until __init__ has run the array is the module's empty one. */
static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    return py_array_handle(type, gm_retain(state_of_class(type)->blank));
}

/* PyArg_ParseTupleAndKeywords names no other argument before Python 3.13. */
static bool are_known(PyObject *kwargs, char *const *names) {
    PyObject *name, *value;
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &name, &value);) {
        int i = 0;
        while (names[i] && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            i++;
        if (!names[i])
            return raise_unexpected("array", name, (const char *const *)names), false;
    }
    return true;
}

static int array_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"val", "dtype", NULL};
    PyObject *value, *dtype_object = NULL;
    module_state *state = py_array_state(self);
    gm_dtype dtype = GM_DTYPE_COUNT;
    if (!are_known(kwargs, names) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:array", names, &value, &dtype_object) ||
        !read_dtype(state, dtype_object, &dtype))
        return -1;
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope ? node_from_value(state, scope, value, dtype) : NULL;
    if (node)
        gm_retain(node);
    gm_scope_close(scope);
    if (!node) {
        raise_gm(state);
        return -1;
    }
    array_object *array = (array_object *)self;
    gm_array *old = array->node;
    array->node = node;
    gm_release(old);
    return 0;
}

/* ---- operators ---- */

/* What an operator is called in messages, and the reflected method of the right operand. */
typedef struct { const char *noun, *reflected; } operation;

/* Which side of a binary operator is the array, and so the state; neither only if Python is confused. */
static module_state *operator_state(PyObject *a, PyObject *b) {
    module_state *state = state_of(a, py_array_dealloc);
    return state ? state : state_of(b, py_array_dealloc);
}

/* An operand that is neither a number nor an array: ValueError, as in MLX, unless its type has the operation's other
 * side. None is TypeError. */
static PyObject *refuse_operand(module_state *state, PyObject *a, PyObject *b, const operation *op) {
    PyObject *other = py_array_node(state, a) ? b : a, *type = (PyObject *)Py_TYPE(other);
    bool container = PyList_Check(other) || PyTuple_Check(other) || PyUnicode_Check(other) || PyBytes_Check(other) ||
                     PyDict_Check(other);
    if (other == b && other != Py_None &&
        (container || !op->reflected || !PyObject_HasAttrString(type, op->reflected))) {
        PyErr_Format(PyExc_ValueError, "%s of an array and %R is not possible", op->noun, type);
        return NULL;
    }
    Py_RETURN_NOTIMPLEMENTED;
}

static bool is_operand(module_state *state, PyObject *object) {
    return py_array_node(state, object) || PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object) ||
           (PyObject_CheckBuffer(object) && !PyBytes_Check(object)) ||
           PyObject_HasAttrString(object, "__mlx_array__") || PyObject_HasAttrString(object, "__dlpack__");
}

static PyObject *binary(PyObject *a, PyObject *b, binary_fn fn, const operation *op) {
    module_state *state = operator_state(a, b);
    if (!is_operand(state, a) || !is_operand(state, b))
        return refuse_operand(state, a, b, op);
    gm_array *x, *y;
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope && nodes_from_operands(state, scope, a, b, true, &x, &y) ? fn(scope, x, y) : NULL;
    return py_array_result(state, scope, node);
}

/* The handle gets the result; its identity and its aliases stay. */
static PyObject *binary_inplace(PyObject *self, PyObject *other, binary_fn fn, const operation *op) {
    module_state *state = py_array_state(self);
    if (!is_operand(state, other))
        return refuse_operand(state, self, other, op);
    gm_array *x, *y;
    gm_scope *scope = gm_scope_open();
    gm_array *node = scope && nodes_from_operands(state, scope, self, other, true, &x, &y) ? fn(scope, x, y) : NULL;
    if (node)
        gm_retain(node);
    gm_scope_close(scope);
    if (!node)
        return raise_gm(state);
    array_object *array = (array_object *)self;
    gm_array *old = array->node;
    array->node = node;
    gm_release(old);
    return Py_NewRef(self);
}

#define OPERATOR(name, fn, noun, reflected)                                                                            \
    static const operation operation_##name = {noun, reflected};                                                       \
    static PyObject *array_##name(PyObject *a, PyObject *b) { return binary(a, b, fn, &operation_##name); }            \
    static PyObject *array_inplace_##name(PyObject *a, PyObject *b) {                                                  \
        return binary_inplace(a, b, fn, &operation_##name);                                                            \
    }
OPERATOR(add, gm_add, "addition", "__radd__")
OPERATOR(subtract, gm_subtract, "subtraction", "__rsub__")
OPERATOR(multiply, gm_multiply, "multiplication", "__rmul__")
OPERATOR(floor_divide, gm_floor_divide, "floor division", "__rfloordiv__")
OPERATOR(remainder, gm_remainder, "modulus", "__rmod__")

/* Bitwise operators refuse floating-point operands with another error than the functions do. */
#define BITWISE(name, fn, noun, reflected)                                                                             \
    static gm_array *bitwise_##name(gm_scope *s, gm_array *a, gm_array *b) {                                           \
        return integer_operands(a, b, noun) ? fn(s, a, b) : NULL;                                                      \
    }                                                                                                                  \
    OPERATOR(name, bitwise_##name, noun, reflected)
static bool integer_operands(const gm_array *a, const gm_array *b, const char *noun) {
    if (!py_dtype_is_inexact(gm_array_dtype(a)) && !py_dtype_is_inexact(gm_array_dtype(b)))
        return true;
    PyErr_Format(PyExc_ValueError, "%s of %s and %s: expected integers or bool", noun, gm_dtype_name(gm_array_dtype(a)),
                 gm_dtype_name(gm_array_dtype(b)));
    return false;
}
BITWISE(and, gm_bitwise_and, "bitwise and", "__rand__")
BITWISE(or, gm_bitwise_or, "bitwise or", "__ror__")
BITWISE(xor, gm_bitwise_xor, "bitwise xor", "__rxor__")
BITWISE(lshift, gm_left_shift, "left shift", "__rlshift__")
BITWISE(rshift, gm_right_shift, "right shift", "__rrshift__")

static const operation division = {"division", "__rtruediv__"}, product = {"matrix product", NULL};
static const operation exponent = {"power", "__rpow__"};

PyObject *py_array_divide(PyObject *a, PyObject *b) { return binary(a, b, gm_divide, &division); }

static PyObject *array_inplace_divide(PyObject *a, PyObject *b) {
    if (!py_dtype_is_inexact(gm_array_dtype(((array_object *)a)->node))) {
        PyErr_SetString(PyExc_ValueError,
                        "in-place division would change the dtype of an integer array; use a = a / b or //=");
        return NULL;
    }
    return binary_inplace(a, b, gm_divide, &division);
}

static PyObject *array_matmul(PyObject *a, PyObject *b) {
    module_state *state = operator_state(a, b);
    if (!py_array_node(state, a) || !py_array_node(state, b))
        Py_RETURN_NOTIMPLEMENTED;
    return binary(a, b, gm_matmul, &product);
}

static PyObject *array_inplace_matmul(PyObject *a, PyObject *b) {
    if (!py_array_node(py_array_state(a), b))
        Py_RETURN_NOTIMPLEMENTED;
    return binary_inplace(a, b, gm_matmul, &product);
}

static PyObject *array_power(PyObject *a, PyObject *b, PyObject *modulus) {
    if (modulus != Py_None)
        Py_RETURN_NOTIMPLEMENTED;
    return binary(a, b, gm_power, &exponent);
}

static PyObject *array_inplace_power(PyObject *a, PyObject *b, PyObject *modulus) {
    if (modulus != Py_None)
        Py_RETURN_NOTIMPLEMENTED;
    return binary_inplace(a, b, gm_power, &exponent);
}

static PyObject *unary(PyObject *self, unary_fn fn) {
    module_state *state = py_array_state(self);
    gm_scope *scope = gm_scope_open();
    return py_array_result(state, scope, scope ? fn(scope, ((array_object *)self)->node) : NULL);
}

static PyObject *array_negative(PyObject *self) { return unary(self, gm_negative); }
static PyObject *array_absolute(PyObject *self) { return unary(self, gm_abs); }
static PyObject *array_invert(PyObject *self) { return unary(self, gm_bitwise_invert); }

static PyObject *array_positive(PyObject *self) {
    return py_array_handle(py_array_state(self)->array_type, gm_retain(((array_object *)self)->node));
}

static PyObject *array_compare(PyObject *a, PyObject *b, int how) {
    static const binary_fn comparisons[] = {[Py_LT] = gm_less,    [Py_LE] = gm_less_equal,
                                            [Py_EQ] = gm_equal,   [Py_NE] = gm_not_equal,
                                            [Py_GT] = gm_greater, [Py_GE] = gm_greater_equal};
    static const operation comparison = {"comparison", NULL};
    module_state *state = py_array_state(a);
    if (!is_operand(state, b) && (how == Py_EQ || how == Py_NE))
        Py_RETURN_NOTIMPLEMENTED; /* a == "text" is False */
    return binary(a, b, comparisons[how], &comparison);
}

/* Identity: == makes arrays. */
static Py_hash_t array_hash(PyObject *self) {
    uintptr_t address = (uintptr_t)self;
    return (Py_hash_t)(address >> 4 | address << (8 * sizeof address - 4));
}

/* ---- scalars ---- */

static int array_bool(PyObject *self) {
    PyObject *item = py_array_item(self);
    int truth = item ? PyObject_IsTrue(item) : -1;
    Py_XDECREF(item);
    return truth;
}

static PyObject *array_int(PyObject *self) {
    PyObject *item = py_array_item(self);
    PyObject *number = item ? PyNumber_Long(item) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *array_float(PyObject *self) {
    PyObject *item = py_array_item(self);
    PyObject *number = item ? PyNumber_Float(item) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *array_index(PyObject *self) {
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_ndim(node) != 0 || !py_dtype_is_integer(gm_array_dtype(node))) {
        PyErr_SetString(PyExc_TypeError, "only integer arrays without dimensions can be an index");
        return NULL;
    }
    return py_array_item(self);
}

/* ---- iteration ---- */

typedef struct {
    PyObject_HEAD PyObject *array;
    gm_array *node;
    int64_t next;
} array_iterator;

static PyObject *array_iter(PyObject *self) {
    module_state *state = py_array_state(self);
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_ndim(node) == 0) {
        PyErr_SetString(PyExc_TypeError, "iteration over an array without dimensions");
        return NULL;
    }
    array_iterator *iterator = (array_iterator *)PyType_GenericAlloc(state->array_iterator_type, 0);
    if (!iterator)
        return NULL;
    iterator->array = Py_NewRef(self);
    iterator->node = gm_retain(node);
    return (PyObject *)iterator;
}

static PyObject *iterator_next(PyObject *self) {
    array_iterator *iterator = (array_iterator *)self;
    if (!iterator->node || iterator->next >= gm_array_shape(iterator->node)[0])
        return NULL;
    gm_scope *scope = gm_scope_open();
    gm_array *row = scope ? node_row(scope, iterator->node, iterator->next) : NULL;
    iterator->next++;
    return py_array_result(py_array_state(iterator->array), scope, row);
}

static int iterator_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((array_iterator *)self)->array);
    return 0;
}

static void iterator_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    array_iterator *iterator = (array_iterator *)self;
    gm_release(iterator->node);
    Py_XDECREF(iterator->array);
    object_free(self);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {0, NULL},
};
PyType_Spec py_array_iterator_spec = {"gomlx.core.ArrayIterator", sizeof(array_iterator), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                      iterator_slots};

static Py_ssize_t array_length(PyObject *self) {
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_ndim(node) == 0) {
        PyErr_SetString(PyExc_TypeError, "len() of an array without dimensions");
        return -1;
    }
    return (Py_ssize_t)gm_array_shape(node)[0];
}

/* For reversed() and the like. */
static PyObject *array_sequence_item(PyObject *self, Py_ssize_t index) {
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_ndim(node) == 0 || index < 0 || index >= (Py_ssize_t)gm_array_shape(node)[0]) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    gm_scope *scope = gm_scope_open();
    return py_array_result(py_array_state(self), scope, scope ? node_row(scope, node, index) : NULL);
}

/* ---- properties ---- */

PyObject *shape_tuple(const gm_array *node) {
    int ndim = gm_array_ndim(node);
    PyObject *shape = PyTuple_New(ndim);
    for (int i = 0; shape && i < ndim; i++) {
        PyObject *dim = PyLong_FromLongLong(gm_array_shape(node)[i]);
        if (!dim)
            Py_CLEAR(shape);
        else
            PyTuple_SetItem(shape, i, dim);
    }
    return shape;
}

static PyObject *get_shape(PyObject *self, void *unused) {
    (void)unused;
    return shape_tuple(((array_object *)self)->node);
}

static PyObject *get_ndim(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gm_array_ndim(((array_object *)self)->node));
}

static PyObject *get_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(gm_array_size(((array_object *)self)->node));
}

static PyObject *get_dtype(PyObject *self, void *unused) {
    (void)unused;
    gm_array *node = ((array_object *)self)->node;
    gm_dtype type = gm_array_dtype(node);
    if (type == GM_PACKED)
        return PyUnicode_FromString(gm_array_format(node));
    return Py_NewRef(py_array_state(self)->dtypes[type]);
}

static PyObject *get_itemsize(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(gm_dtype_size(gm_array_dtype(((array_object *)self)->node)));
}

static PyObject *get_nbytes(PyObject *self, void *unused) {
    (void)unused;
    gm_array *node = ((array_object *)self)->node;
    return PyLong_FromLongLong(gm_array_size(node) * (int64_t)gm_dtype_size(gm_array_dtype(node)));
}

/* The address of the elements is known only after evaluation. */
static PyObject *get_strides(PyObject *self, void *unused) {
    (void)unused;
    module_state *state = py_array_state(self);
    gm_array *node = gm_retain(((array_object *)self)->node);
    PyObject *strides = NULL;
    if (gm_array_dtype(node) == GM_PACKED)
        PyErr_SetString(PyExc_TypeError, "packed weights have no strides; dequantize them first");
    else if (evaluate_one(state, node))
        strides = PyTuple_New(gm_array_ndim(node));
    for (int i = 0; strides && i < gm_array_ndim(node); i++) {
        int64_t bytes = gm_array_strides(node)[i] * (int64_t)gm_dtype_size(gm_array_dtype(node));
        PyTuple_SetItem(strides, i, PyLong_FromLongLong(bytes));
    }
    gm_release(node);
    return strides;
}

static PyObject *get_real(PyObject *self, void *unused) {
    (void)unused;
    return unary(self, gm_real);
}
static PyObject *get_imag(PyObject *self, void *unused) {
    (void)unused;
    return unary(self, gm_imag);
}

static PyObject *get_transposed(PyObject *self, void *unused) {
    (void)unused;
    gm_scope *scope = gm_scope_open();
    gm_array *node = ((array_object *)self)->node;
    return py_array_result(py_array_state(self), scope, scope ? gm_transpose(scope, node, -1, NULL) : NULL);
}

static PyObject *get_matrix_transposed(PyObject *self, void *unused) {
    (void)unused;
    return unary(self, gm_matrix_transpose);
}

static PyGetSetDef array_properties[] = {
    {"shape", get_shape, NULL, "The dimensions, a tuple of ints.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"size", get_size, NULL, "The number of elements.", NULL},
    {"dtype", get_dtype, NULL, "The type of the elements.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of one element.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"strides", get_strides, NULL,
     "Bytes from one element to the next along each axis, as NumPy's; evaluates the array.", NULL},
    {"T", get_transposed, NULL, "The array with its axes reversed.", NULL},
    {"mT", get_matrix_transposed, NULL, "The array with its last two axes swapped.", NULL},
    {"at", py_array_at, NULL, "Updates of chosen items: x.at[index].add(value).", NULL},
    {"real", get_real, NULL, "The real parts.", NULL},
    {"imag", get_imag, NULL, "The imaginary parts.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef array_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(array_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "array(val, dtype=None)\n--\n\n"
     "An n-dimensional array, computed when its values are needed. val: a number, nested lists or tuples, another\n"
     "array, or anything with the buffer protocol or DLPack; it is copied.\n\n"
     "memoryview(a) and np.asarray(a) are on the array's own memory: writable as long as no other array uses that "
     "memory\n"
     "(a view such as a.T or a[1:], a broadcast, an array over memory of another library), else read-only.\n\n"
     "An index out of range, read or written, is an IndexError: at once where it is an int, as in a[9], and when it "
     "is\n"
     "evaluated where it is an item of an index array."},
    {Py_tp_new, array_new},
    {Py_tp_init, array_init},
    {Py_tp_dealloc, py_array_dealloc},
    {Py_tp_repr, py_array_repr},
    {Py_tp_hash, array_hash},
    {Py_tp_richcompare, array_compare},
    {Py_tp_iter, array_iter},
    {Py_tp_methods, py_array_methods},
    {Py_tp_getset, array_properties},
    {Py_tp_members, array_members},
    {Py_mp_length, array_length},
    {Py_sq_length, array_length},
    {Py_sq_item, array_sequence_item},
    {Py_mp_subscript, py_array_subscript},
    {Py_mp_ass_subscript, py_array_assign_subscript},
    {Py_bf_getbuffer, py_array_getbuffer},
    {Py_bf_releasebuffer, py_array_releasebuffer},
    {Py_nb_add, array_add},
    {Py_nb_inplace_add, array_inplace_add},
    {Py_nb_subtract, array_subtract},
    {Py_nb_inplace_subtract, array_inplace_subtract},
    {Py_nb_multiply, array_multiply},
    {Py_nb_inplace_multiply, array_inplace_multiply},
    {Py_nb_true_divide, py_array_divide},
    {Py_nb_inplace_true_divide, array_inplace_divide},
    {Py_nb_floor_divide, array_floor_divide},
    {Py_nb_inplace_floor_divide, array_inplace_floor_divide},
    {Py_nb_remainder, array_remainder},
    {Py_nb_inplace_remainder, array_inplace_remainder},
    {Py_nb_power, array_power},
    {Py_nb_inplace_power, array_inplace_power},
    {Py_nb_matrix_multiply, array_matmul},
    {Py_nb_inplace_matrix_multiply, array_inplace_matmul},
    {Py_nb_and, array_and},
    {Py_nb_inplace_and, array_inplace_and},
    {Py_nb_or, array_or},
    {Py_nb_inplace_or, array_inplace_or},
    {Py_nb_xor, array_xor},
    {Py_nb_inplace_xor, array_inplace_xor},
    {Py_nb_lshift, array_lshift},
    {Py_nb_inplace_lshift, array_inplace_lshift},
    {Py_nb_rshift, array_rshift},
    {Py_nb_inplace_rshift, array_inplace_rshift},
    {Py_nb_negative, array_negative},
    {Py_nb_positive, array_positive},
    {Py_nb_absolute, array_absolute},
    {Py_nb_invert, array_invert},
    {Py_nb_bool, array_bool},
    {Py_nb_int, array_int},
    {Py_nb_float, array_float},
    {Py_nb_index, array_index},
    {0, NULL},
};
/* Not immutable: gomlx.core may add methods written in Python. */
PyType_Spec py_array_spec = {"gomlx.core.array", sizeof(array_object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             array_slots};
