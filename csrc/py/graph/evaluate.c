/* evaluate.c - evaluation from Python: trees to nodes, slices without the GIL (small runs with it), signals between. */
#include <string.h>
#include "py/py.h"

/* Slices of work after a signal's handler raised: half a second, in which a training step ends and its arrays, whose
 * inputs are gone, get their values; on a GPU it takes less. What is not done then is cancelled; so is all when a
 * second signal raises. */
#define GRACE_SLICES 10
#define GPU_GRACE_SLICES 1

/* most: how many slices of work there are after a signal's handler raised. */
static bool evaluate_with_grace(module_state *state, gm_array *const *nodes, size_t count, int most) {
    gm_run *run = NULL;
    PyObject *raised = NULL, *value = NULL, *traceback = NULL;
    int grace = 0;
    /* Giving the GIL away costs as much as a few small operations. */
    gm_status status = gm_eval_begin(nodes, count, 0, &run);
    if (status == GM_OK && gm_eval_is_small(run)) {
        status = gm_eval_step(run, 0);
        gm_eval_end(run);
        run = NULL;
    } else if (status == GM_OK) {
        status = GM_AGAIN;
    }
    while (status == GM_AGAIN) {
        bool raises = PyErr_CheckSignals() != 0;
        if (raises && (raised || !run))
            break;
        if (raises)
            PyErr_Fetch(&raised, &value, &traceback);
        if (raised && ++grace > most)
            break;
        Py_BEGIN_ALLOW_THREADS if (!run) status = gm_eval_begin(nodes, count, SLICE_MS, &run);
        else status = GM_OK;
        if (status == GM_OK)
            status = gm_eval_step(run, SLICE_MS);
        if (status != GM_AGAIN) {
            gm_eval_end(run);
            run = NULL;
        }
        Py_END_ALLOW_THREADS
    }
    if (run) {
        Py_BEGIN_ALLOW_THREADS gm_eval_end(run);
        Py_END_ALLOW_THREADS
    }
    bool second = raised && PyErr_Occurred();
    if (second) {
        Py_DECREF(raised);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else if (raised) {
        PyErr_Restore(raised, value, traceback);
    }
    if (status != GM_OK) { /* GM_AGAIN here: a signal's handler raised */
        raise_gm(state);
        random_state_renew(state);
    }
    foreign_drain();
    return status == GM_OK && !raised;
}

bool evaluate(module_state *state, gm_array *const *nodes, size_t count) {
    return evaluate_with_grace(state, nodes, count, gm_device_current() ? GPU_GRACE_SLICES : GRACE_SLICES);
}

static bool evaluate_or_drop(module_state *state, gm_array *const *nodes, size_t count) {
    return evaluate_with_grace(state, nodes, count, 0);
}

bool evaluate_one(module_state *state, gm_array *node) {
    if (gm_array_is_evaluated(node))
        return true;
    gm_retain(node); /* the handle may be given another node meanwhile */
    bool ok = evaluate(state, &node, 1);
    gm_release(node);
    return ok;
}

/* A few nodes need no memory from elsewhere: `nodes` is `few` then. */
#define N_FEW 8
typedef struct {
    gm_array **nodes;
    size_t count, capacity;
    gm_array *few[N_FEW];
} collected;

static void collected_begin(collected *list) {
    list->nodes = list->few;
    list->count = 0;
    list->capacity = N_FEW;
}

static void collected_end(collected *list) {
    for (size_t i = 0; i < list->count; i++)
        gm_release(list->nodes[i]);
    if (list->nodes != list->few)
        PyMem_Free(list->nodes);
}

static bool leave_few(collected *list) {
    gm_array **nodes = NULL;
    size_t capacity = 0;
    if (!py_grow(&nodes, 0, &capacity, list->count + 1, sizeof *nodes))
        return false;
    memcpy(nodes, list->few, list->count * sizeof *nodes);
    list->nodes = nodes;
    list->capacity = capacity;
    return true;
}

static bool append(collected *list, gm_array *node) {
    if (list->nodes == list->few ? list->count == N_FEW && !leave_few(list)
                                 : !py_grow(&list->nodes, list->count, &list->capacity, 1, sizeof *list->nodes))
        return false;
    list->nodes[list->count++] = gm_retain(node);
    return true;
}

/* Lists, tuples and dicts of lists, ... of arrays; what is not an array is passed over. */
static bool collect(module_state *state, PyObject *tree, collected *list) {
    gm_array *node = py_array_node(state, tree);
    if (node)
        return append(list, node);
    bool is_list = PyList_Check(tree), is_tuple = PyTuple_Check(tree), is_dict = PyDict_Check(tree);
    if (!is_list && !is_tuple && !is_dict)
        return true;
    if (Py_EnterRecursiveCall(" in eval of a nested tree"))
        return false;
    bool ok = true;
    if (is_list && !PyList_CheckExact(tree)) { /* random.state is a list that has its items elsewhere */
        PyObject *items = PySequence_Tuple(tree);
        ok = items && collect(state, items, list);
        Py_XDECREF(items);
    } else if (is_dict) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (ok && PyDict_Next(tree, &at, &key, &value))
            ok = collect(state, value, list);
    } else {
        for (Py_ssize_t i = 0; ok && i < (is_list ? PyList_Size(tree) : PyTuple_Size(tree)); i++)
            ok = collect(state, is_list ? PyList_GetItem(tree, i) : PyTuple_GetItem(tree, i), list);
    }
    Py_LeaveRecursiveCall();
    return ok;
}

static PyObject *with_trees(PyObject *module, PyObject *const *args, Py_ssize_t n,
                            bool (*fn)(module_state *, gm_array *const *, size_t)) {
    module_state *state = PyModule_GetState(module);
    collected list;
    bool ok = true;
    collected_begin(&list);
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = collect(state, args[i], &list);
    if (ok && list.count > 0)
        ok = fn(state, list.nodes, list.count);
    collected_end(&list);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *eval_trees(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    return with_trees(module, args, n, evaluate);
}

PyObject *eval_or_drop_trees(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    return with_trees(module, args, n, evaluate_or_drop);
}

static bool hand_in(module_state *state, gm_array *const *nodes, size_t count) {
    gm_status status;
    for (size_t i = 0; i < count; i++) {
        if (gm_array_is_tracer(nodes[i])) {
            PyErr_SetString(PyExc_ValueError, "async_eval: Not allowed inside a graph transformation: "
                                              "an array has no value there yet");
            return false;
        }
    }
    Py_BEGIN_ALLOW_THREADS status = gm_async_eval(nodes, count);
    Py_END_ALLOW_THREADS if (status != GM_OK) raise_gm(state);
    return status == GM_OK;
}

PyObject *async_eval_trees(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    return with_trees(module, args, n, hand_in);
}

/* Blocks are few or the arrays many: a set of their addresses, kept by Python. */
PyObject *memory_of_trees(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    module_state *state = PyModule_GetState(module);
    collected list;
    PyObject *seen = PySet_New(NULL);
    size_t total = 0;
    bool ok = seen != NULL;
    collected_begin(&list);
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = collect(state, args[i], &list);
    for (size_t i = 0; ok && i < list.count; i++) {
        if (!gm_array_is_evaluated(list.nodes[i])) {
            PyErr_SetString(PyExc_ValueError,
                            "get_array_buffer_size: an array has no buffer yet; arrays must be evaluated "
                            "before querying buffer size");
            ok = false;
            break;
        }
        const void *identity;
        size_t bytes = gm_array_memory(list.nodes[i], &identity);
        PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)identity);
        ok = address != NULL;
        if (ok && PySet_Contains(seen, address) == 0) {
            total += bytes;
            ok = PySet_Add(seen, address) == 0;
        }
        Py_XDECREF(address);
    }
    collected_end(&list);
    Py_XDECREF(seen);
    return ok ? PyLong_FromSize_t(total) : NULL;
}
