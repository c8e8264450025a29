/* random_state.c - the key that random functions draw from when none is given: one for each thread, kept in a list of
 * one array. A draw replaces the array in the list; an array that was read from it stays what it was.
 * gomlx.core.random.state is one object for all threads that looks like the list of whichever thread asks, so that a
 * tree of arrays made by one thread (the state of a compiled function) is the right one in every other. Its type is a
 * list, for code that walks trees, but it has no items of its own. */
#include "py/py.h"
#include <time.h>

/* ---- the list of the calling thread, borrowed ---- */

static uint64_t clock_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* list[0] = the node as an array. */
static bool store_key(module_state *state, PyObject *list, gm_array *node) {
    PyObject *key = node ? py_array_handle(state->array_type, gm_retain(node)) : raise_gm(state);
    bool ok = key && PyList_SetSlice(list, 0, PyList_Size(list), NULL) == 0 && PyList_Append(list, key) == 0;
    Py_XDECREF(key);
    return ok;
}

static bool store_seed(module_state *state, PyObject *list, uint64_t seed) {
    gm_scope *scope = gm_scope_open();
    bool ok = scope ? store_key(state, list, gm_random_key(scope, seed)) : raise_gm(state) != NULL;
    gm_scope_close(scope);
    return ok;
}

static PyObject *thread_list(module_state *state) {
    PyObject *threads = PyThreadState_GetDict(); /* of this thread alone */
    if (!threads) {
        PyErr_SetString(PyExc_RuntimeError, "random: this thread has no Python state");
        return NULL;
    }
    PyObject *name = (PyObject *)state->random_state_type;
    PyObject *list = PyDict_GetItemWithError(threads, name);
    if (list || PyErr_Occurred())
        return list;
    list = PyList_New(0);
    bool ok = list && store_seed(state, list, state->random_seed) && PyDict_SetItem(threads, name, list) == 0;
    Py_XDECREF(list);
    return ok ? list : NULL;
}

/* A key that is made from something whose evaluation was interrupted never has a value: the thread goes on from a seed
 * of the clock, as one that was given none. */
void random_state_renew(module_state *state) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *threads = PyThreadState_GetDict();
    PyObject *list = threads ? PyDict_GetItemWithError(threads, (PyObject *)state->random_state_type) : NULL;
    PyObject *item = list && PyList_Size(list) == 1 ? PyList_GetItem(list, 0) : NULL;
    gm_array *node = item ? gm_retain(py_array_node(state, item)) : NULL;
    if (node && !gm_array_is_tracer(node)) {
        gm_run *run = NULL;
        gm_error why;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS status = gm_eval_begin(&node, 1, SLICE_MS,
                                                      &run); /* finds what has no value; nothing is run */
        gm_eval_end(run);
        Py_END_ALLOW_THREADS if (status != GM_OK) {
            gm_take_error(&why);
            store_seed(state, list, clock_seed());
        }
    }
    gm_release(node);
    PyErr_Restore(type, value, traceback); /* whatever went wrong in here */
}

gm_array *random_draw_key(module_state *state, gm_scope *scope, gm_array *key) {
    if (!scope || !key || key != GM_NONE)
        return key;
    PyObject *list = thread_list(state), *item = list ? PyList_GetItem(list, 0) : NULL;
    gm_array *node = item ? py_array_node(state, item) : NULL;
    if (!node) {
        if (list && !PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "random: the state must be a list of one array, a key");
        return NULL;
    }
    gm_array *keys = gm_random_split(scope, node, 2);
    gm_array *next = keys ? node_row(scope, keys, 0) : NULL;
    return next && store_key(state, list, next) ? node_row(scope, keys, 1) : NULL;
}

/* ---- random.state ---- */

static PyObject *list_of(PyObject *self) { return thread_list(PyType_GetModuleState(Py_TYPE(self))); }

static PyObject *state_iter(PyObject *self) {
    PyObject *list = list_of(self);
    return list ? PyObject_GetIter(list) : NULL;
}

static PyObject *state_repr(PyObject *self) {
    PyObject *list = list_of(self);
    return list ? PyObject_Repr(list) : NULL;
}

static Py_ssize_t state_length(PyObject *self) {
    PyObject *list = list_of(self);
    return list ? PyList_Size(list) : -1;
}

static PyObject *state_item(PyObject *self, Py_ssize_t i) {
    PyObject *list = list_of(self);
    return list ? PySequence_GetItem(list, i) : NULL;
}

static int state_assign_item(PyObject *self, Py_ssize_t i, PyObject *value) {
    PyObject *list = list_of(self);
    return list ? PySequence_SetItem(list, i, value) : -1;
}

static PyObject *state_subscript(PyObject *self, PyObject *key) {
    PyObject *list = list_of(self);
    return list ? PyObject_GetItem(list, key) : NULL;
}

static int state_assign_subscript(PyObject *self, PyObject *key, PyObject *value) {
    PyObject *list = list_of(self);
    return !list ? -1 : value ? PyObject_SetItem(list, key, value) : PyObject_DelItem(list, key);
}

static PyType_Slot random_state_slots[] = {
    {Py_tp_doc, "The calling thread's random key, a list of one array."},
    {Py_tp_iter, state_iter},
    {Py_tp_repr, state_repr},
    {Py_sq_length, state_length},
    {Py_sq_item, state_item},
    {Py_sq_ass_item, state_assign_item},
    {Py_mp_length, state_length},
    {Py_mp_subscript, state_subscript},
    {Py_mp_ass_subscript, state_assign_subscript},
    {0, NULL},
};
static PyType_Spec random_state_spec = {"gomlx.core.random._RandomState", 0, 0, Py_TPFLAGS_DEFAULT, random_state_slots};

/* ---- module functions ---- */

static PyObject *seed(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"seed", 0, 1, 1, {"seed", NULL}};
    module_state *state = PyModule_GetState(module);
    PyObject *list, *value;
    if (!read_arguments(&sig, args, n, kwnames, &value))
        return NULL;
    uint64_t number;
    if (!read_random_seed(value, "seed", &number))
        return NULL;
    if (!(list = thread_list(state)) || !store_seed(state, list, number))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"seed", FUNCTION(seed), FASTCALL,
     "seed(seed)\n--\n\nMakes the calling thread's random state the key of the seed."},
    {NULL, NULL, 0, NULL},
};

bool random_state_add(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    PyObject *space = PyObject_GetAttrString(module, "random");
    PyObject *bases = PyTuple_Pack(1, (PyObject *)&PyList_Type), *where = PyUnicode_FromString("gomlx.core.random");
    state->random_seed = clock_seed();
    bool ok = space && bases && where;
    if (ok)
        state->random_state_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &random_state_spec, bases);
    PyObject *type = (PyObject *)state->random_state_type, *instance = ok && type ? PyObject_CallNoArgs(type) : NULL;
    ok = instance && PyModule_AddObjectRef(space, "state", instance) == 0 &&
         PyModule_AddObjectRef(space, "_RandomState", type) == 0;
    Py_XDECREF(instance);
    for (PyMethodDef *f = functions; ok && f->ml_name; f++) {
        PyObject *function = PyCFunction_NewEx(f, module, where);
        ok = function && PyModule_AddObjectRef(space, f->ml_name, function) == 0;
        Py_XDECREF(function);
    }
    Py_XDECREF(where);
    Py_XDECREF(bases);
    Py_XDECREF(space);
    return ok;
}
