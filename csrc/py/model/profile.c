/* profile.c - a profile as a dict: {"prefill": {...}, "decode": {...}}, keys as the fields in gomlx.h. */
#include "py/model/stream.h"

/* Takes the value's reference. */
static bool put(PyObject *dict, const char *key, PyObject *value) {
    bool ok = value && PyDict_SetItemString(dict, key, value) == 0;
    Py_XDECREF(value);
    return ok;
}

/* The classes that there is work of. */
static PyObject *work_from(const gm_phase_profile *p) {
    PyObject *all = PyDict_New();
    for (int i = 0; all && i < GM_WORK_CLASSES; i++) {
        const gm_work_counts *c = &p->work[i];
        if (c->launches == 0)
            continue;
        PyObject *one = Py_BuildValue("{sLsLsLsLsLsL}", "launches", (long long)c->launches, "pieces",
                                      (long long)c->pieces, "barriers", (long long)c->barriers, "ns", (long long)c->ns,
                                      "thread_ns", (long long)c->thread_ns, "bytes", (long long)p->work_bytes[i]);
        if (!put(all, gm_work_name((gm_work)i), one))
            Py_CLEAR(all);
    }
    return all;
}

static PyObject *weights_from(const gm_phase_profile *p) {
    PyObject *all = PyDict_New();
    for (int i = 0; all && i < GM_MAX_WEIGHT_TYPES && p->weights[i].type[0]; i++)
        if (!put(all, p->weights[i].type, PyLong_FromLongLong(p->weights[i].bytes)))
            Py_CLEAR(all);
    return all;
}

static PyObject *phase_from(const gm_phase_profile *p) {
    PyObject *made = Py_BuildValue("{sLsLsLsLsLsLsLsL}", "passes", (long long)p->passes, "tokens", (long long)p->tokens,
                                   "pass_ns", (long long)p->pass_ns, "setup_ns", (long long)p->setup_ns, "wait_ns",
                                   (long long)p->wait_ns, "thread_wait_ns", (long long)p->thread_wait_ns,
                                   "sample_calls", (long long)p->sample_calls, "sample_ns", (long long)p->sample_ns);
    if (made && !(put(made, "work", work_from(p)) && put(made, "weight_bytes", weights_from(p))))
        Py_CLEAR(made);
    return made;
}

PyObject *py_profile_from(const gm_profile *profile) {
    PyObject *made = PyDict_New();
    if (made &&
        !(put(made, "prefill", phase_from(&profile->prefill)) && put(made, "decode", phase_from(&profile->decode))))
        Py_CLEAR(made);
    return made;
}
