/* bind.h - how arguments of a row of ops.def are read: BIND reads them, call_finish gives the result. The functions of
 * OP rows, in ops.c, take the letters from the kinds of their arguments; a HAND row has a function like this one:
 *
 *     FUNCTION_OF(unflatten) {
 *         gm_array *x; int axis = 0, ndim = 0; int64_t shape[GM_MAX_NDIM];
 *         BIND(unflatten, "Ais", &x, &axis, &ndim, shape);
 *         return call_finish(&c, gm_unflatten(c.scope, x, axis, ndim, shape));
 *     }
 *
 * One letter for each argument of the row's signature, in order ("stream" has none, it is read by its name):
 *   A array                          gm_array **          TypeError for anything else
 *   V array or scalar                gm_array **
 *   O optional array                 gm_array **          GM_NONE for None or absent
 *   Q optional array or scalar       gm_array **          GM_NONE for None or absent
 *   W two arguments at once          gm_array **, **      arrays or scalars, scalars weak to the other one
 *   L sequence of arrays             gm_array ***, int *  freed by call_finish
 *   i int   b bool   f double        int *, bool *, double *
 *   a axis: None or int              int *, bool *all
 *   x axes: None, int or ints        int *n (-1: None), int axes[GM_MAX_NDIM]
 *   s shape: int or ints             int *ndim, int64_t shape[GM_MAX_NDIM]
 *   S shape: ints, not one int       the same
 *   n int or ints                    int *n (-1: one int), int64_t [BIND_INTS]
 *   d dtype or None                  gm_dtype *
 *   t str                            const char **
 *   p any object, borrowed           PyObject **
 * A variable whose argument is absent or None keeps its value; of O and Q it becomes GM_NONE, of p NULL. */
#ifndef GOMLX_PY_BIND_H
#define GOMLX_PY_BIND_H
#include "py/py.h"

#define BIND_ARGUMENTS 20
#define BIND_INTS 256

typedef struct {
    signature base;
    int n, stream;     /* arguments; which of them is stream, or -1 */
    char storage[256]; /* the names */
} bind_signature;

typedef struct {
    module_state *state;
    gm_scope *scope;
    const char *function;
    gm_array **list; /* of an L argument */
    stream_place place;
} call;

/* An int (*n is -1) or at most BIND_INTS of them. */
bool read_int64s(PyObject *value, const char *what, int *n, int64_t *out);
/* False: an exception is set and nothing is to be freed. */
bool call_bind(call *c, bind_signature *sig, const char *function, const char *text, PyObject *const *args,
               Py_ssize_t n, PyObject *kwnames, const char *kinds, ...);
/* The positional arguments of a row that begins with *arrays; freed by call_finish. False: an exception is set. */
bool call_arrays(call *c, PyObject *const *args, Py_ssize_t n, const char *what, gm_array ***out);
/* The end of a call: the array (NULL: the exception), with the scope closed. */
PyObject *call_finish(call *c, gm_array *node);
/* The same for several arrays, as a list or a tuple; status not GM_OK: the exception. */
PyObject *call_finish_many(call *c, gm_status status, gm_array *const *nodes, int count, bool as_list);

#define FUNCTION_OF(name) PyObject *op_##name(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
#define BIND(name, ...)                                                                                                \
    static bind_signature sig_;                                                                                        \
    call c = {.state = PyModule_GetState(module)};                                                                     \
    if (!call_bind(&c, &sig_, #name, op_text_##name, args, n, kwnames, __VA_ARGS__))                                   \
    return NULL

/* The same where the row begins with *arrays: what comes after them, by name. */
#define BIND_NAMED(name, ...)                                                                                          \
    static bind_signature sig_;                                                                                        \
    call c = {.state = PyModule_GetState(module)};                                                                     \
    if (!call_bind(&c, &sig_, #name, op_text_##name, args + n, 0, kwnames, __VA_ARGS__))                               \
    return NULL

/* HAND rows whose arguments are alike share a wrapper, which is given the call and what the rows differ in:
 *     static PyObject *wrap_each(const invocation *in, unary_fn fn) { ... BIND_IN(in, "", ...); ... }
 *     WRAPPED(atleast_1d, wrap_each, gm_atleast_1d) */
typedef struct {
    PyObject *module, *const *args, *kwnames;
    Py_ssize_t n;
    bind_signature *sig;
    const char *name, *text;
} invocation;

#define WRAPPED(name, wrapper, ...)                                                                                    \
    FUNCTION_OF(name)                                                                                                  \
    {                                                                                                                  \
        static bind_signature sig_;                                                                                    \
        return wrapper(&(invocation){module, args, kwnames, n, &sig_, #name, op_text_##name}, __VA_ARGS__);            \
    }
#define CALL_BIND(in, ...)                                                                                             \
    call_bind(&c, (in)->sig, (in)->name, (in)->text, (in)->args, (in)->n, (in)->kwnames, __VA_ARGS__)
#define BIND_IN(in, ...)                                                                                               \
    call c = {.state = PyModule_GetState((in)->module)};                                                               \
    if (!CALL_BIND(in, __VA_ARGS__))                                                                                   \
    return NULL

/* Of each row: its function op_<name>; of a HAND row, its signature text op_text_<name>. Rows ENGINE have none. */
#define UNARY(name, doc) FUNCTION_OF(name);
#define BINARY(name, doc) FUNCTION_OF(name);
#define REDUCE(name, doc) FUNCTION_OF(name);
#define OP(name, namespace_, result, arguments, doc) FUNCTION_OF(name);
#define HAND(name, namespace_, parameters, text, doc)                                                                  \
    FUNCTION_OF(name);                                                                                                 \
    extern const char op_text_##name[];
#include "ops/ops.def"
#endif
