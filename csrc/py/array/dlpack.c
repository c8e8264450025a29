/* dlpack.c - DLPack, both ways. Capsules are "dltensor" or, when the consumer knows version 1,
 * "dltensor_versioned"; a consumer renames the capsule to "used_..." and calls the deleter itself.
 *  Out: the tensor pins the node; its deleter needs neither the GIL nor Python.
 *  In: the producer's deleter may need the GIL, so it is called through the queue of foreign.c.
 *  On a GPU others have streams that we know nothing of: memory is exchanged when the whole card has done what it was
 *  asked for, and given back so. */
#include "py/py.h"
#include <stdlib.h>
#include <string.h>

/* The layout that DLPack 1 fixes. */
typedef struct { int32_t device_type, device_id; } dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
} dl_managed;
typedef struct dl_versioned {
    struct { uint32_t major, minor; } version;
    void *context;
    void (*deleter)(struct dl_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 }; /* the last: pinned memory of the host */
enum { DL_INT, DL_UINT, DL_FLOAT, DL_OPAQUE, DL_BFLOAT, DL_COMPLEX, DL_BOOL };
enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 };
#define PLAIN "dltensor"
#define VERSIONED "dltensor_versioned"

static const dl_dtype dl_dtypes[GM_DTYPE_COUNT] = {
    [GM_BOOL] = {DL_BOOL, 8, 1},      [GM_UINT8] = {DL_UINT, 8, 1},         [GM_UINT16] = {DL_UINT, 16, 1},
    [GM_UINT32] = {DL_UINT, 32, 1},   [GM_UINT64] = {DL_UINT, 64, 1},       [GM_INT8] = {DL_INT, 8, 1},
    [GM_INT16] = {DL_INT, 16, 1},     [GM_INT32] = {DL_INT, 32, 1},         [GM_INT64] = {DL_INT, 64, 1},
    [GM_FLOAT16] = {DL_FLOAT, 16, 1}, [GM_BFLOAT16] = {DL_BFLOAT, 16, 1},   [GM_FLOAT32] = {DL_FLOAT, 32, 1},
    [GM_FLOAT64] = {DL_FLOAT, 64, 1}, [GM_COMPLEX64] = {DL_COMPLEX, 64, 1},
};

/* ---- out ---- */

typedef struct {
    union {
        dl_managed plain;
        dl_versioned versioned;
    } managed;
    gm_array *node;
    int64_t shape[GM_MAX_NDIM], strides[GM_MAX_NDIM];
} export;

/* Both ways: nobody reads or writes the memory of a GPU any more. One that is lost is not written either. */
static void settle(int device) {
    gm_error ignored;
    if (device && gm_device_settle(device) != GM_OK)
        gm_take_error(&ignored);
}

static void export_free(export *e) {
    settle(gm_array_device(e->node));
    gm_array_unpin(e->node);
    gm_release(e->node);
    free(e);
}

static void delete_plain(dl_managed *managed) { export_free(managed->context); }
static void delete_versioned(dl_versioned *managed) { export_free(managed->context); }

/* A capsule that nobody consumed. */
static void capsule_destroy(PyObject *capsule) {
    const char *name = PyCapsule_IsValid(capsule, PLAIN)       ? PLAIN
                       : PyCapsule_IsValid(capsule, VERSIONED) ? VERSIONED
                                                               : NULL;
    if (name == NULL)
        return;
    if (strcmp(name, PLAIN) == 0)
        delete_plain(PyCapsule_GetPointer(capsule, name));
    else
        delete_versioned(PyCapsule_GetPointer(capsule, name));
}

/* Where an evaluated array is, in DLPack's terms. */
static bool device_of(module_state *state, const gm_array *node, dl_device *out) {
    const int number = gm_array_device(node);
    *out = (dl_device){number ? DL_CUDA : DL_CPU, number ? gm_device_ordinal(number) : 0};
    return !number || gm_device_open(number) == GM_OK || (raise_gm(state), false); /* it may be lost */
}

static void fill_tensor(dl_tensor *tensor, export *e, dl_device device) {
    gm_array *node = e->node;
    int ndim = gm_array_ndim(node);
    for (int i = 0; i < ndim; i++) {
        e->shape[i] = gm_array_shape(node)[i];
        e->strides[i] = gm_array_strides(node)[i];
    }
    *tensor = (dl_tensor){.data = gm_array_address(node),
                          .device = device,
                          .ndim = ndim,
                          .dtype = dl_dtypes[gm_array_dtype(node)],
                          .shape = e->shape,
                          .strides = e->strides};
}

/* Pins the node, which the caller has evaluated, and makes the capsule. */
static PyObject *capsule_from(module_state *state, gm_array *node, bool versioned, bool copied) {
    bool writable = false;
    dl_device device;
    if (!device_of(state, node, &device))
        return NULL;
    export *e = malloc(sizeof *e);
    if (!e)
        return PyErr_NoMemory();
    if (gm_array_pin(node, &writable) != GM_OK) {
        free(e);
        return raise_gm(state);
    }
    e->node = gm_retain(node);
    if (versioned) {
        dl_versioned *m = &e->managed.versioned;
        *m = (dl_versioned){.version = {1, 0},
                            .context = e,
                            .deleter = delete_versioned,
                            .flags = (writable ? 0u : DL_READ_ONLY) | (copied ? DL_IS_COPIED : 0u)};
        fill_tensor(&m->tensor, e, device);
    } else {
        dl_managed *m = &e->managed.plain;
        *m = (dl_managed){.context = e, .deleter = delete_plain};
        fill_tensor(&m->tensor, e, device);
    }
    PyObject *capsule = PyCapsule_New(&e->managed, versioned ? VERSIONED : PLAIN, capsule_destroy);
    if (!capsule)
        export_free(e);
    return capsule;
}

/* A fresh, contiguous copy of an evaluated node on its device, computed now: its source may be written once we return.
 */
static gm_array *copied(module_state *state, gm_scope *scope, gm_array *node) {
    bool contiguous = true;
    int64_t expected = 1;
    for (int i = gm_array_ndim(node) - 1; i >= 0; i--) {
        contiguous = contiguous && (gm_array_shape(node)[i] == 1 || gm_array_strides(node)[i] == expected);
        expected *= gm_array_shape(node)[i];
    }
    if (contiguous || gm_array_size(node) == 0) {
        gm_array *copy;
        gm_retain(node); /* its handle may be given another node meanwhile */
        Py_BEGIN_ALLOW_THREADS copy = gm_array_copy(scope, node);
        Py_END_ALLOW_THREADS gm_release(node);
        return copy;
    }
    const int before = gm_device_enter(gm_array_device(node));
    node = gm_contiguous(scope, node);
    gm_device_enter(before);
    return node && evaluate_one(state, node) ? node : NULL;
}

/* What consumers ask for: an object of None or (type, id). */
static bool read_wanted(PyObject *value, dl_device *out) {
    int type, id;
    if (!value || value == Py_None)
        return true;
    if (!PyTuple_Check(value)) {
        PyErr_Format(PyExc_TypeError, "__dlpack__: dl_device is %R, expected None or two ints", value);
        return false;
    }
    if (!PyArg_ParseTuple(value, "ii", &type, &id))
        return false;
    *out = (dl_device){type, id};
    return true;
}

/* The handle's node, evaluated: another thread may change it meanwhile. */
static gm_array *evaluated_node(module_state *state, PyObject *self) {
    gm_array *node;
    while (!gm_array_is_evaluated(node = ((array_object *)self)->node))
        if (!evaluate_one(state, node))
            return NULL;
    return node;
}

/* The node's values where they are asked for, and whether a copy was made. A new reference. */
static gm_array *moved_node(module_state *state, gm_array *node, dl_device wanted, PyObject *copy, bool *is_copy) {
    dl_device here;
    bool asked = false;
    if (!device_of(state, node, &here) || (copy && copy != Py_None && !read_bool(copy, &asked)))
        return NULL;
    if (memcmp(&here, &wanted, sizeof here) != 0 && (wanted.device_type != DL_CPU || copy == Py_False)) {
        PyErr_Format(PyExc_BufferError, "__dlpack__: the array is on device (%d, %d), not on (%d, %d)%s",
                     here.device_type, here.device_id, wanted.device_type, wanted.device_id,
                     wanted.device_type == DL_CPU ? ", where it could only be a copy" : "");
        return NULL;
    }
    *is_copy = asked || here.device_type != wanted.device_type;
    gm_array *made = NULL;
    if (here.device_type != wanted.device_type && !host_node(state, node, &made))
        return NULL;
    if (made || !asked)
        return made ? made : gm_retain(node);
    gm_scope *scope = gm_scope_open();
    gm_array *fresh = scope ? copied(state, scope, node) : NULL;
    if (fresh)
        gm_retain(fresh);
    gm_scope_close(scope);
    return fresh ? fresh : (raise_gm(state), NULL);
}

PyObject *py_array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const signature sig = {"__dlpack__", 0, 0, 0, {"stream", "max_version", "dl_device", "copy", NULL}};
    module_state *state = py_array_state(self);
    PyObject *v[4];
    int major = 0, minor = 0;
    dl_device wanted;
    bool is_copy = false;
    /* A stream would say what to wait for: everything is done when we return. */
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    if (v[1] && v[1] != Py_None && !PyTuple_Check(v[1])) {
        PyErr_Format(PyExc_TypeError, "__dlpack__: max_version is %R, expected None or two ints", v[1]);
        return NULL;
    }
    if (v[1] && v[1] != Py_None && !PyArg_ParseTuple(v[1], "ii", &major, &minor))
        return NULL;
    gm_array *node = ((array_object *)self)->node;
    if (gm_array_dtype(node) == GM_PACKED) {
        PyErr_Format(PyExc_BufferError, "packed %s weights have no DLPack type; dequantize them first",
                     gm_array_format(node));
        return NULL;
    }
    if (!(node = evaluated_node(state, self)) || !device_of(state, node, &wanted) || !read_wanted(v[2], &wanted) ||
        !(node = moved_node(state, node, wanted, v[3], &is_copy)))
        return NULL;
    PyObject *capsule = capsule_from(state, node, major >= 1, is_copy);
    gm_release(node);
    return capsule;
}

PyObject *py_array_dlpack_device(PyObject *self, PyObject *unused) {
    module_state *state = py_array_state(self);
    dl_device device;
    (void)unused;
    gm_array *node = evaluated_node(state, self); /* it may be another than the one that was asked for */
    return node && device_of(state, node, &device) ? Py_BuildValue("(ii)", device.device_type, device.device_id) : NULL;
}

/* ---- in ---- */

typedef struct {
    foreign link;
    dl_managed *plain;
    dl_versioned *versioned;
    int device;
} import;

static void import_give_back(foreign *link) {
    import *i = (import *)link;
    if (i->device) {
        Py_BEGIN_ALLOW_THREADS settle(i->device);
        Py_END_ALLOW_THREADS
    }
    if (i->plain && i->plain->deleter)
        i->plain->deleter(i->plain);
    if (i->versioned && i->versioned->deleter)
        i->versioned->deleter(i->versioned);
    PyMem_Free(i);
}

/* The capsule of an object, which may be one; first as version 1, then, for producers that do not know the word,
 * without. */
static PyObject *capsule_of(PyObject *object) {
    if (PyCapsule_CheckExact(object))
        return Py_NewRef(object);
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *options = method ? Py_BuildValue("{s(ii)}", "max_version", 1, 0) : NULL;
    PyObject *none = options ? PyTuple_New(0) : NULL;
    PyObject *capsule = none ? PyObject_Call(method, none, options) : NULL;
    if (none && !capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_CallFunctionObjArgs(method, NULL);
    }
    Py_XDECREF(none);
    Py_XDECREF(options);
    Py_XDECREF(method);
    return capsule;
}

/* torch's tensors that take part in a gradient give none themselves; what they are detached to does. */
static PyObject *detached_capsule_of(PyObject *object) {
    PyObject *capsule = capsule_of(object);
    if (capsule || !PyErr_ExceptionMatches(PyExc_BufferError) ||
        !PyObject_HasAttrString((PyObject *)Py_TYPE(object), "detach"))
        return capsule;
    PyErr_Clear();
    PyObject *detached = PyObject_CallMethod(object, "detach", NULL);
    capsule = detached ? capsule_of(detached) : NULL;
    Py_XDECREF(detached);
    return capsule;
}

static gm_dtype dtype_of_tensor(const dl_tensor *tensor) {
    for (int i = 0; i < GM_DTYPE_COUNT; i++)
        if (memcmp(&dl_dtypes[i], &tensor->dtype, sizeof tensor->dtype) == 0)
            return (gm_dtype)i;
    PyErr_Format(PyExc_ValueError, "from_dlpack: elements of code %d with %d bits and %d lanes have no dtype here",
                 tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    return GM_DTYPE_COUNT;
}

static bool is_complex128(const dl_tensor *tensor) {
    return tensor->dtype.code == DL_COMPLEX && tensor->dtype.bits == 128 && tensor->dtype.lanes == 1;
}

/* The card has done all; other threads of Python go on meanwhile, for its work may need one of them. */
static bool settled(module_state *state, int number) {
    gm_status status;
    Py_BEGIN_ALLOW_THREADS status = gm_device_settle(number);
    Py_END_ALLOW_THREADS return status == GM_OK || (raise_gm(state), false);
}

/* The number here of the device that a tensor is on, all of whose work is done then; -1: there is none. */
static int device_number(module_state *state, dl_device device) {
    const char *why = "";
    if (device.device_type == DL_CPU || device.device_type == DL_CUDA_HOST)
        return 0;
    const int count = device.device_type == DL_CUDA ? gm_device_count(&why) : 0;
    for (int number = 1; number <= count; number++)
        if (gm_device_ordinal(number) == device.device_id)
            return settled(state, number) ? number : -1;
    if (device.device_type != DL_CUDA)
        PyErr_Format(PyExc_ValueError, "from_dlpack: the tensor is on device type %d, neither on the CPU nor on CUDA",
                     device.device_type);
    else
        PyErr_Format(PyExc_ValueError, "from_dlpack: the tensor is on CUDA device %d, which is not used here%s%s",
                     device.device_id, *why ? ": " : "", why);
    return -1;
}

static bool tensor_usable(module_state *state, const dl_tensor *tensor, int *device) {
    if ((*device = device_number(state, tensor->device)) < 0)
        return false;
    if (tensor->ndim < 0 || tensor->ndim > GM_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "from_dlpack: %d dimensions, at most %d are possible", tensor->ndim,
                     GM_MAX_NDIM);
        return false;
    }
    if ((!is_complex128(tensor) || tensor->ndim == GM_MAX_NDIM) && dtype_of_tensor(tensor) == GM_DTYPE_COUNT)
        return false;
    return dimensions_fit("from_dlpack", tensor->ndim, tensor->shape);
}

/* The tensor's own memory; of complex128, which is not a dtype here, as pairs of float64. Takes i over unless it fails.
 */
static gm_array *wrap_tensor(gm_scope *scope, const dl_tensor *tensor, import *i) {
    const char *data = (const char *)tensor->data + tensor->byte_offset;
    int64_t shape[GM_MAX_NDIM], strides[GM_MAX_NDIM], expected = 2;
    int n = tensor->ndim;
    if (!is_complex128(tensor))
        return gm_array_wrap(scope, dtype_of_tensor(tensor), n, tensor->shape,
                             (gm_foreign){data, tensor->strides, foreign_push, i, i->device});
    shape[n] = 2;
    strides[n] = 1;
    for (int d = n - 1; d >= 0; d--) {
        shape[d] = tensor->shape[d];
        strides[d] = tensor->strides ? 2 * tensor->strides[d] : expected;
        expected *= shape[d];
    }
    return gm_array_wrap(scope, GM_FLOAT64, n + 1, shape, (gm_foreign){data, strides, foreign_push, i, i->device});
}

/* Pairs of float64 as complex64, computed before their owner may write them again. */
static gm_array *complex_of_pairs(module_state *state, gm_scope *scope, gm_array *pairs) {
    gm_array *node = gm_view(scope, gm_contiguous(scope, astype_on_host(scope, pairs, GM_FLOAT32)), GM_COMPLEX64);
    node = gm_reshape(scope, node, gm_array_ndim(pairs) - 1, gm_array_shape(pairs));
    return node && evaluate_one(state, node) ? node : NULL;
}

gm_array *node_from_dlpack(module_state *state, gm_scope *scope, PyObject *object, bool copy) {
    if (!scope)
        return NULL;
    if (!PyCapsule_CheckExact(object) && !PyObject_HasAttrString(object, "__dlpack__")) {
        PyErr_Format(PyExc_TypeError, "from_dlpack: %R has no __dlpack__", (PyObject *)Py_TYPE(object));
        return NULL;
    }
    PyObject *capsule = detached_capsule_of(object);
    if (!capsule)
        return NULL;
    bool versioned = PyCapsule_IsValid(capsule, VERSIONED);
    void *managed = PyCapsule_GetPointer(capsule, versioned ? VERSIONED : PLAIN);
    import *i = managed ? PyMem_Malloc(sizeof *i) : NULL;
    if (managed && !i)
        PyErr_NoMemory();
    gm_array *node = NULL;
    bool pairs = false;
    if (i) {
        *i = (import){.link.give_back = import_give_back,
                      .plain = versioned ? NULL : managed,
                      .versioned = versioned ? managed : NULL};
        const dl_tensor *tensor = versioned ? &i->versioned->tensor : &i->plain->tensor;
        if (versioned && i->versioned->version.major > 1)
            PyErr_SetString(PyExc_BufferError, "from_dlpack: a capsule of a DLPack version later than 1");
        else if (tensor_usable(state, tensor, &i->device))
            node = wrap_tensor(scope, tensor, i);
        pairs = node && is_complex128(tensor);
        if (node)
            PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor");
        else
            PyMem_Free(i); /* the capsule still owns the tensor */
    }
    Py_DECREF(capsule);
    return pairs ? complex_of_pairs(state, scope, node) : node && copy ? copied(state, scope, node) : node;
}
