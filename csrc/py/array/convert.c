/* convert.c - what a Python value means as an array: numbers, nested lists and tuples, and everything with a
 * buffer. Numbers are weak beside an array: they take its dtype when that can hold their kind. */
#include "py/py.h"
#include <stdlib.h>
#include <string.h>

/* ---- one number ---- */

/* A C number of some kind; from it every dtype can be written. */
typedef struct {
    enum { TRUTH, SIGNED, UNSIGNED, REAL, COMPLEX } kind;
    int64_t i;
    uint64_t u;
    double re, im;
} number;

static bool number_from_int(PyObject *value, number *out) {
    int overflow;
    out->kind = SIGNED;
    out->i = PyLong_AsLongLongAndOverflow(value, &overflow);
    out->re = (double)out->i;
    if (overflow < 0) {
        PyErr_SetString(PyExc_OverflowError, "array: an int below the range of int64");
    } else if (overflow > 0) {
        out->kind = UNSIGNED;
        out->u = PyLong_AsUnsignedLongLong(value);
        out->re = (double)out->u;
    }
    return (!overflow && out->i != -1) || !PyErr_Occurred();
}

static bool is_number(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyFloat_Type || type == &PyLong_Type || PyFloat_Check(value) || PyLong_Check(value) ||
           PyComplex_Check(value);
}

static bool number_from(PyObject *value, number *out) {
    *out = (number){.kind = REAL};
    if (Py_IS_TYPE(value, &PyFloat_Type)) {
        out->re = PyFloat_AsDouble(value);
        return true;
    }
    if (Py_IS_TYPE(value, &PyLong_Type))
        return number_from_int(value, out);
    if (PyBool_Check(value)) {
        out->kind = TRUTH;
        out->i = value == Py_True;
        out->re = (double)out->i;
        return true;
    }
    if (PyLong_Check(value))
        return number_from_int(value, out);
    if (PyComplex_Check(value)) {
        out->kind = COMPLEX;
        out->im = PyComplex_ImagAsDouble(value);
        out->re = PyComplex_RealAsDouble(value);
    } else {
        out->re = PyFloat_AsDouble(value);
    }
    return !PyErr_Occurred();
}

/* The dtype that a number has by itself. */
static gm_dtype number_dtype(const number *n) {
    switch (n->kind) {
    case TRUTH: return GM_BOOL;
    case SIGNED: return n->i >= INT32_MIN && n->i <= INT32_MAX ? GM_INT32 : GM_INT64;
    case UNSIGNED: return GM_UINT64;
    case REAL: return GM_FLOAT32;
    case COMPLEX: break;
    }
    return GM_COMPLEX64;
}

static int64_t bits_of(const number *n) { return n->kind == UNSIGNED ? (int64_t)n->u : n->i; }

#define WRITE(type, value)                                                                                             \
    do {                                                                                                               \
        type v_ = (type)(value);                                                                                       \
        memcpy(out, &v_, sizeof v_);                                                                                   \
    } while (0)
/* The number as an element; ints wrap. Of what storage() gives. */
static void write_number(const number *n, gm_dtype type, void *out) {
    switch (type) {
    case GM_BOOL: WRITE(uint8_t, n->re != 0 || n->im != 0); break;
    case GM_UINT8:
    case GM_INT8: WRITE(uint8_t, bits_of(n)); break;
    case GM_UINT16:
    case GM_INT16: WRITE(uint16_t, bits_of(n)); break;
    case GM_UINT32:
    case GM_INT32: WRITE(uint32_t, bits_of(n)); break;
    case GM_UINT64:
    case GM_INT64: WRITE(uint64_t, bits_of(n)); break;
    case GM_FLOAT64: WRITE(double, n->re); break;
    case GM_COMPLEX64: {
        float pair[2] = {(float)n->re, (float)n->im};
        memcpy(out, pair, sizeof pair);
        break;
    }
    case GM_FLOAT32:
    case GM_FLOAT16:
    case GM_BFLOAT16:
    case GM_DTYPE_COUNT:
    case GM_PACKED: WRITE(float, n->re); break;
    }
}

/* What a number is written as; the engine casts it to the dtype: to half floats, and from floats to ints. */
static gm_dtype storage(const number *n, gm_dtype type) {
    if (type == GM_FLOAT16 || type == GM_BFLOAT16)
        return GM_FLOAT32;
    return n->kind >= REAL && py_dtype_is_integer(type) ? GM_FLOAT64 : type;
}

gm_array *astype_on_host(gm_scope *scope, gm_array *node, gm_dtype type) {
    const int before = gm_device_enter(0);
    node = gm_astype(scope, node, type);
    gm_device_enter(before);
    return node;
}

static gm_array *node_from_number(gm_scope *scope, const number *n, gm_dtype type) {
    char element[16];
    gm_dtype written = storage(n, type);
    write_number(n, written, element);
    gm_array *node = gm_array_from(scope, written, 0, NULL, element);
    return written == type ? node : astype_on_host(scope, node, type);
}

/* Whether an int has its value in an integer dtype. */
static bool fits(const number *n, gm_dtype type) {
    int bits = 8 * (int)gm_dtype_size(type);
    bool is_signed = type >= GM_INT8;
    if (n->kind == UNSIGNED)
        return type == GM_UINT64;
    if (n->i < 0) /* uint64 takes negative ones as they are, modulo 2**64 */
        return type == GM_UINT64 || (is_signed && (bits == 64 || n->i >= -((int64_t)1 << (bits - 1))));
    return bits == 64 || n->i < (int64_t)1 << (bits - is_signed);
}

/* A scalar beside an array of dtype like. */
static gm_array *weak_node(gm_scope *scope, PyObject *value, gm_dtype like) {
    number n;
    if (!number_from(value, &n))
        return NULL;
    gm_dtype type = number_dtype(&n);
    bool takes = like != GM_DTYPE_COUNT && like != GM_PACKED &&
                 (n.kind == TRUTH || (n.kind <= UNSIGNED && like != GM_BOOL) ||
                  (n.kind == REAL && py_dtype_is_inexact(like)));
    if (takes) {
        if ((n.kind == SIGNED || n.kind == UNSIGNED) && py_dtype_is_integer(like) && !fits(&n, like)) {
            PyErr_Format(PyExc_ValueError, "%R does not fit into the other operand's dtype %s", value,
                         gm_dtype_name(like));
            return NULL;
        }
        type = like;
    }
    return node_from_number(scope, &n, type);
}

/* ---- nested lists ---- */

static bool is_list(PyObject *value) { return PyList_Check(value) || PyTuple_Check(value); }

static Py_ssize_t list_size(PyObject *list) { return PyList_Check(list) ? PyList_Size(list) : PyTuple_Size(list); }

/* Borrowed; NULL with an exception when the list shrank. */
static PyObject *list_item(PyObject *list, Py_ssize_t i) {
    return PyList_Check(list) ? PyList_GetItem(list, i) : PyTuple_GetItem(list, i);
}

typedef struct {
    int ndim;
    int64_t shape[GM_MAX_NDIM]; /* of the lists, without what is in them */
    gm_dtype type;              /* of the numbers: their promotion */
    bool only_numbers, only_ints;
    bool negative, above_int64; /* whether there are such ints */
    size_t count;
} list_plan;

/* MLX's own words: programs look for them. */
static bool ragged(void) {
    PyErr_SetString(PyExc_ValueError, "Initialization encountered non-uniform length.");
    return false;
}

/* An exact int of int32. */
static bool is_int32(PyObject *value, int32_t *out) {
    int overflow;
    if (!Py_IS_TYPE(value, &PyLong_Type))
        return false;
    long long i = PyLong_AsLongLongAndOverflow(value, &overflow);
    *out = (int32_t)i;
    return !overflow && i == *out;
}

/* The common case: floats after floats, small ints after small ints. */
static bool is_more_of(PyObject *value, list_plan *plan) {
    int32_t whole = 0;
    if (plan->type == GM_FLOAT32 ? !Py_IS_TYPE(value, &PyFloat_Type)
                                 : plan->type != GM_INT32 || !is_int32(value, &whole))
        return false;
    plan->only_ints &= plan->type == GM_INT32;
    plan->negative |= whole < 0;
    return true;
}

/* First pass: shape and dtype. No Python code runs. */
static bool plan_list(PyObject *value, int depth, list_plan *plan) {
    if (!plan->only_numbers)
        return true;
    if (!is_list(value)) {
        number n;
        if (!is_number(value)) {
            plan->only_numbers = false;
            return true;
        }
        if (depth != plan->ndim)
            return ragged();
        plan->count++;
        if (!number_from(value, &n))
            return false;
        gm_dtype type = number_dtype(&n);
        plan->only_ints &= n.kind == SIGNED || n.kind == UNSIGNED || n.kind == TRUTH;
        plan->negative |= n.kind == SIGNED && n.i < 0;
        plan->above_int64 |= n.kind == UNSIGNED;
        if (type != plan->type || plan->count == 1)
            plan->type = plan->count == 1 ? type : gm_promote(plan->type, type);
        return true;
    }
    Py_ssize_t n = list_size(value);
    if (depth >= plan->ndim || n != (Py_ssize_t)plan->shape[depth])
        return ragged();
    bool last = depth == plan->ndim - 1, list = PyList_Check(value);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
        if (last && plan->count > 0 && is_more_of(item, plan))
            plan->count++;
        else if (!plan_list(item, depth + 1, plan))
            return false;
    }
    return true;
}

/* Second pass over numbers: *out moves on. */
static bool write_list(PyObject *value, int depth, const list_plan *plan, gm_dtype type, char **out) {
    if (depth == plan->ndim) {
        number n;
        if (!is_number(value) || !number_from(value, &n))
            return PyErr_Occurred() ? false : ragged();
        write_number(&n, type, *out);
        *out += gm_dtype_size(type);
        return true;
    }
    bool list = PyList_Check(value);
    if (!list && !PyTuple_Check(value))
        return ragged();
    for (int64_t i = 0; i < plan->shape[depth]; i++) {
        PyObject *item = list ? PyList_GetItem(value, (Py_ssize_t)i) : PyTuple_GetItem(value, (Py_ssize_t)i);
        if (!item)
            return false;
        int32_t whole;
        if (type == GM_FLOAT32 && depth == plan->ndim - 1 && Py_IS_TYPE(item, &PyFloat_Type)) {
            float element = (float)PyFloat_AsDouble(item);
            memcpy(*out, &element, sizeof element);
            *out += sizeof element;
        } else if (type == GM_INT32 && depth == plan->ndim - 1 && is_int32(item, &whole)) {
            memcpy(*out, &whole, sizeof whole);
            *out += sizeof whole;
        } else if (!write_list(item, depth + 1, plan, type, out)) {
            return false;
        }
    }
    return true;
}

static gm_array *node_from_numbers(gm_scope *scope, PyObject *list, const list_plan *plan, gm_dtype type) {
    /* Ints are kept exactly until the cast, those of 64 bits as what they become. */
    gm_dtype own = type == GM_UINT64 && plan->only_ints ? GM_UINT64 : plan->type;
    if (type == GM_FLOAT64 && own == GM_FLOAT32)
        own = GM_FLOAT64;
    char *data = malloc(plan->count * gm_dtype_size(own) + 1), *end = data;
    if (!data) {
        PyErr_NoMemory();
        return NULL;
    }
    gm_array *node = NULL;
    if (write_list(list, 0, plan, own, &end))
        node = gm_array_from(scope, own, plan->ndim, plan->shape, data);
    free(data);
    return node && own != type ? astype_on_host(scope, node, type) : node;
}

static gm_array *refuse_value(PyObject *value) {
    PyErr_Format(value == Py_None ? PyExc_TypeError : PyExc_ValueError, "an array cannot be made of %R",
                 (PyObject *)Py_TYPE(value));
    return NULL;
}

/* Lists with arrays, or with what can become one, in them: items of one shape, joined along a new first axis. */
static gm_array *node_from_items(module_state *state, gm_scope *scope, PyObject *list, int depth) {
    Py_ssize_t n = list_size(list);
    int64_t shape[GM_MAX_NDIM + 1];
    int ndim = 0;
    if (n == 0 || n > INT32_MAX || depth >= GM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "array: a list of %zd arrays, or of lists of them, at depth %d", n, depth);
        return NULL;
    }
    gm_array **nodes = PyMem_Malloc((size_t)n * sizeof *nodes), *node = NULL;
    bool ok = nodes != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *item = list_size(list) == n ? Py_NewRef(list_item(list, i)) : NULL; /* converting runs code */
        if (item == Py_None)
            PyErr_SetString(PyExc_ValueError, "an array cannot be made of a list with None in it");
        else if (item)
            node = is_list(item) ? node_from_items(state, scope, item, depth + 1)
                                 : gm_scope_keep(scope, node_from_operand(state, scope, item, GM_DTYPE_COUNT));
        ok = item && node && !PyErr_Occurred();
        Py_XDECREF(item);
        if (!ok)
            break;
        const int64_t *own = gm_array_shape(node);
        if (i == 0) {
            ndim = gm_array_ndim(node);
            shape[0] = 1;
            memcpy(shape + 1, own, (size_t)ndim * sizeof *own);
        }
        ok = (ndim < GM_MAX_NDIM && gm_array_ndim(node) == ndim &&
              memcmp(own, shape + 1, (size_t)ndim * sizeof *own) == 0) ||
             ragged();
        ok = ok && (nodes[i] = gm_reshape(scope, node, ndim + 1, shape));
    }
    node = ok ? gm_concatenate(scope, nodes, (int)n, 0) : NULL;
    PyMem_Free(nodes);
    return node;
}

static gm_array *node_from_list(module_state *state, gm_scope *scope, PyObject *list, gm_dtype type) {
    list_plan plan = {.type = GM_FLOAT32, .only_numbers = true, .only_ints = true};
    for (PyObject *inner = list; is_list(inner); inner = list_item(inner, 0)) {
        if (plan.ndim == GM_MAX_NDIM) {
            PyErr_Format(PyExc_ValueError, "array: lists nested deeper than %d", GM_MAX_NDIM);
            return NULL;
        }
        plan.shape[plan.ndim++] = list_size(inner);
        if (list_size(inner) == 0)
            break;
    }
    if (!plan_list(list, 0, &plan))
        return NULL;
    if (!plan.only_numbers) {
        gm_array *node = node_from_items(state, scope, list, 0);
        return node && type != GM_DTYPE_COUNT ? gm_astype(scope, node, type) : node;
    }
    if (plan.only_ints && plan.above_int64) { /* small ones among them do not require rounding */
        if (plan.negative && (type == GM_DTYPE_COUNT || py_dtype_is_integer(type))) {
            PyErr_SetString(PyExc_OverflowError,
                            "array: ints of 2**63 and more beside negative ones; no integer dtype holds both");
            return NULL;
        }
        plan.type = plan.negative ? GM_FLOAT64 : GM_UINT64;
    }
    return node_from_numbers(scope, list, &plan, type == GM_DTYPE_COUNT ? plan.type : type);
}

/* ---- anything ---- */

/* What an object's own __mlx_array__ gives, kept by the scope; NULL without an exception when it has none. */
static gm_array *node_from_method(module_state *state, gm_scope *scope, PyObject *value) {
    PyObject *method = PyObject_GetAttrString(value, "__mlx_array__");
    if (!method) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        return NULL;
    }
    PyObject *made = PyObject_CallFunctionObjArgs(method, NULL);
    gm_array *node = made ? gm_scope_keep(scope, py_array_node(state, made)) : NULL;
    if (made && !node)
        PyErr_Format(PyExc_TypeError, "__mlx_array__ of %R gave no array", (PyObject *)Py_TYPE(value));
    Py_XDECREF(made);
    Py_DECREF(method);
    return node;
}

gm_array *node_from_value(module_state *state, gm_scope *scope, PyObject *value, gm_dtype type) {
    gm_array *node = py_array_node(state, value);
    if (node) {
        return type == GM_DTYPE_COUNT || type == gm_array_dtype(node) ? node : gm_astype(scope, node, type);
    } else if (is_number(value)) {
        number n;
        return number_from(value, &n) ? node_from_number(scope, &n, type == GM_DTYPE_COUNT ? number_dtype(&n) : type)
                                      : NULL;
    } else if (is_list(value)) {
        return node_from_list(state, scope, value, type);
    } else if (PyObject_CheckBuffer(value)) {
        return node_from_buffer(state, scope, value, type);
    } else if (PyObject_HasAttrString(value, "__dlpack__")) {
        node = node_from_dlpack(state, scope, value, true);
        if (node && type == GM_DTYPE_COUNT && gm_array_dtype(node) == GM_FLOAT64)
            type = GM_FLOAT32;
        return node && type != GM_DTYPE_COUNT && type != gm_array_dtype(node) ? astype_on_host(scope, node, type)
                                                                              : node;
    }
    node = node_from_method(state, scope, value);
    if (!node && !PyErr_Occurred() && !PyType_Check(value) && PyObject_HasAttrString(value, "__array__")) {
        PyObject *made = PyObject_CallMethod(value, "__array__", NULL);
        if (made && PyObject_CheckBuffer(made))
            node = node_from_buffer(state, scope, made, type);
        else if (made)
            PyErr_Format(PyExc_TypeError, "__array__ of %R gave no NumPy array", (PyObject *)Py_TYPE(value));
        Py_XDECREF(made);
    }
    if (node)
        return type == GM_DTYPE_COUNT ? node : gm_astype(scope, node, type);
    return PyErr_Occurred() ? NULL : refuse_value(value);
}

gm_array *node_from_operand(module_state *state, gm_scope *scope, PyObject *value, gm_dtype like) {
    gm_array *node = py_array_node(state, value);
    if (node)
        return node;
    if (is_number(value))
        return weak_node(scope, value, like);
    /* NumPy's arrays and scalars take the dtype of the array beside them too, as in MLX. */
    if (PyObject_CheckBuffer(value) && !PyBytes_Check(value))
        return node_from_buffer(state, scope, value, like == GM_PACKED ? GM_DTYPE_COUNT : like);
    node = node_from_method(state, scope, value);
    if (node || PyErr_Occurred())
        return node;
    if (PyObject_HasAttrString(value, "__dlpack__"))
        return node_from_value(state, scope, value, like == GM_PACKED ? GM_DTYPE_COUNT : like);
    return refuse_value(value);
}

/* Other objects than arrays first: converting them may run Python code, and a node is borrowed from its handle only
 * until that. */
bool nodes_from_operands(module_state *state, gm_scope *scope, PyObject *a, PyObject *b, bool weak, gm_array **x,
                         gm_array **y) {
    gm_array *own_a = py_array_node(state, a), *own_b = py_array_node(state, b);
    *x = own_a ? own_a : node_from_operand(state, scope, a, weak && own_b ? gm_array_dtype(own_b) : GM_DTYPE_COUNT);
    *y = own_b ? own_b : node_from_operand(state, scope, b, weak && own_a ? gm_array_dtype(own_a) : GM_DTYPE_COUNT);
    if (own_a && !own_b)
        *x = py_array_node(state, a);
    if (own_b && !own_a)
        *y = py_array_node(state, b);
    return *x && *y;
}
