/* adapters.h - adapters as arguments, for the files of a model, of sessions and of streams: adapters.c. */
#ifndef GOMLX_PY_ADAPTERS_H
#define GOMLX_PY_ADAPTERS_H
#include "py/py.h"

typedef struct {
    gm_adapter_term *all;
    size_t n;
} term_list;
/* A tuple of tuples (layer, a [rank, in], b [out, rank], scale), or with magnitudes (layer, a, b, scale, magnitude
 * [out], squares [out]); the arrays are retained. Also after a failure it is to be freed. */
bool terms_read(module_state *state, PyObject *items, term_list *t);
void terms_free(term_list *t);

typedef struct {
    gm_trained_weight *all;
    size_t n;
} whole_list;
/* None, NULL or tuples (name, values, sum or None), likewise. */
bool whole_read(module_state *state, PyObject *items, whole_list *w);
void whole_free(whole_list *w);

/* What a generation uses: names are those of the objects in `items`. */
typedef struct {
    gm_adapter_share *all;
    size_t n;
    PyObject *items;
} share_list;
/* A sequence of tuples (name, weight), or NULL for none. Also after a failure it is to be freed. */
bool shares_read(PyObject *value, share_list *out);
void shares_free(share_list *s);
/* A tuple of tuples (name, hash, weight). */
PyObject *py_adapter_uses(const gm_adapter_use *uses, size_t n);
PyObject *py_model_load_adapter(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *py_model_unload_adapter(PyObject *self, PyObject *name);
PyObject *py_model_adapters(PyObject *self, PyObject *unused);
#endif
