/* device.c - devices by number, and memory by device. What users call devices and streams is gomlx.core._devices. */
#include "py/py.h"

#define SIG(text, doc) text "\n--\n\n" doc
#define FASTCALL_FUNCTION(name)                                                                                        \
    static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)

/* ---- memory ---- */

static bool read_one_device(const char *function, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, int *number) {
    const signature sig = {function, 0, 1, 0, {"device", NULL}};
    PyObject *v[1];
    return read_arguments(&sig, args, n, kwnames, v) && read_device(v[0], number);
}

#define GET_MEMORY(name, member)                                                                                       \
    FASTCALL_FUNCTION(name) {                                                                                          \
        int number;                                                                                                    \
        (void)module;                                                                                                  \
        return read_one_device(#name, args, n, kwnames, &number) ? PyLong_FromSize_t(gm_device_memory(number).member)  \
                                                                 : NULL;                                               \
    }
GET_MEMORY(get_active_memory, active)
GET_MEMORY(get_peak_memory, peak)
GET_MEMORY(get_cache_memory, cache)
GET_MEMORY(get_memory_limit, limit)

FASTCALL_FUNCTION(reset_peak_memory) {
    int number;
    (void)module;
    if (!read_one_device("reset_peak_memory", args, n, kwnames, &number))
        return NULL;
    gm_device_reset_peak(number);
    Py_RETURN_NONE;
}

FASTCALL_FUNCTION(clear_cache) {
    int number;
    (void)module;
    if (!read_one_device("clear_cache", args, n, kwnames, &number))
        return NULL;
    Py_BEGIN_ALLOW_THREADS gm_device_clear_cache(number);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *set_limit(const char *function, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                           size_t (*set)(int, size_t)) {
    const signature sig = {function, 0, 2, 1, {"limit", "device", NULL}};
    PyObject *v[2];
    int number;
    if (!read_arguments(&sig, args, n, kwnames, v))
        return NULL;
    PyObject *index = is_one_integer(v[0]) ? PyNumber_Index(v[0]) : NULL;
    size_t bytes = index ? PyLong_AsSize_t(index) : 0;
    Py_XDECREF(index);
    if (!index || (bytes == (size_t)-1 && PyErr_Occurred())) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "limit must be a number of bytes, not %R", v[0]);
        return NULL;
    }
    return read_device(v[1], &number) ? PyLong_FromSize_t(set(number, bytes)) : NULL;
}

static size_t set_no_limit(int number, size_t bytes) { return (void)number, (void)bytes, 0; } /* no memory is wired */

#define SET_LIMIT(name, set)                                                                                           \
    FASTCALL_FUNCTION(name) { return (void)module, set_limit(#name, args, n, kwnames, set); }
SET_LIMIT(set_memory_limit, gm_device_set_limit)
SET_LIMIT(set_cache_limit, gm_device_set_cache_limit)
SET_LIMIT(set_wired_limit, set_no_limit)

/* ---- devices ---- */

/* (how many GPUs there are, why there are none). */
static PyObject *device_count(PyObject *module, PyObject *unused) {
    const char *why;
    (void)module, (void)unused;
    const int n = gm_device_count(&why);
    return Py_BuildValue("(is)", n, why);
}

static PyObject *current_device(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(gm_device_current());
}

static PyObject *device_is_idle(PyObject *module, PyObject *value) {
    int number;
    if (!read_int(value, "the number of a device", &number))
        return NULL;
    const gm_status status = gm_device_idle(number);
    return status == GM_OK || status == GM_AGAIN ? PyBool_FromLong(status == GM_OK)
                                                 : raise_gm(PyModule_GetState(module));
}

static PyObject *open_device(PyObject *module, PyObject *value) {
    int number;
    if (!read_int(value, "the number of a device", &number))
        return NULL;
    if (gm_device_open(number) != GM_OK)
        return raise_gm(PyModule_GetState(module));
    Py_RETURN_NONE;
}

/* Of this thread; it is open. */
static PyObject *use_device(PyObject *module, PyObject *value) {
    int number;
    (void)module;
    if (!read_int(value, "the number of a device", &number))
        return NULL;
    gm_device_enter(number);
    Py_RETURN_NONE;
}

static PyObject *describe_device(PyObject *module, PyObject *value) {
    int number;
    gm_device_info info;
    if (!read_int(value, "the number of a device", &number))
        return NULL;
    if (gm_device_describe(number, &info) != GM_OK)
        return raise_gm(PyModule_GetState(module));
    return Py_BuildValue("{sssssssssssKsK}", "device_name", info.name, "architecture", info.architecture, "driver",
                         info.driver, "kernels", info.kernels, "libraries", info.libraries, "memory_size",
                         (unsigned long long)info.memory, "free", (unsigned long long)info.free);
}

static PyObject *fallbacks(PyObject *module, PyObject *unused) {
    PyObject *found = PyDict_New();
    int64_t count;
    const char *op;
    (void)module, (void)unused;
    for (int i = 0; found && (op = gm_device_fallback(i, &count)); i++) {
        PyObject *number = PyLong_FromLongLong(count);
        if (!number || PyDict_SetItemString(found, op, number) < 0)
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

/* (active, peak, cached) bytes: of models, whatever the default device is. */
static PyObject *processor_memory(PyObject *module, PyObject *unused) {
    const gm_memory m = gm_device_memory(0);
    (void)module, (void)unused;
    return Py_BuildValue("(KKK)", (unsigned long long)m.active, (unsigned long long)m.peak,
                         (unsigned long long)m.cache);
}

PyMethodDef memory_functions[] = {
    {"get_active_memory", FUNCTION(get_active_memory), FASTCALL,
     SIG("get_active_memory(device=None)", "Bytes in use by arrays on a device, the default one unless told.")},
    {"get_peak_memory", FUNCTION(get_peak_memory), FASTCALL,
     SIG("get_peak_memory(device=None)", "The most bytes in use since the last reset.")},
    {"get_cache_memory", FUNCTION(get_cache_memory), FASTCALL,
     SIG("get_cache_memory(device=None)", "Bytes kept for reuse.")},
    {"reset_peak_memory", FUNCTION(reset_peak_memory), FASTCALL,
     SIG("reset_peak_memory(device=None)", "The peak becomes 0; the next allocation makes it what is in use then.")},
    {"get_memory_limit", FUNCTION(get_memory_limit), FASTCALL,
     SIG("get_memory_limit(device=None)", "Bytes above which an allocation fails.")},
    {"set_memory_limit", FUNCTION(set_memory_limit), FASTCALL,
     SIG("set_memory_limit(limit, device=None)", "Bytes above which an allocation fails; returns the old limit.")},
    {"set_cache_limit", FUNCTION(set_cache_limit), FASTCALL,
     SIG("set_cache_limit(limit, device=None)", "Bytes that may be kept for reuse; returns the old limit.")},
    {"set_wired_limit", FUNCTION(set_wired_limit), FASTCALL,
     SIG("set_wired_limit(limit, device=None)", "Nothing: memory is never wired. Returns 0.")},
    {"clear_cache", FUNCTION(clear_cache), FASTCALL,
     SIG("clear_cache(device=None)", "Gives memory kept for reuse back to the system.")},
    {NULL, NULL, 0, NULL},
};

PyMethodDef device_functions[] = {
    {"_device_count", device_count, METH_NOARGS, NULL},
    {"_current_device", current_device, METH_NOARGS, NULL},
    {"_device_is_idle", device_is_idle, METH_O, NULL},
    {"_open_device", open_device, METH_O, NULL},
    {"_use_device", use_device, METH_O, NULL},
    {"_describe_device", describe_device, METH_O, NULL},
    {"_fallbacks", fallbacks, METH_NOARGS, NULL},
    {"_processor_memory", processor_memory, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
