/* py.h - what the files of the CPython binding share.
 *  (1) py/ sees the engine only through gomlx.h, and Python only through the limited API of 3.11.
 *  (2) All state is in the module; slots find it from the type of self (state_of), module functions from the module.
 *  (3) A function that returns NULL or false has set a Python exception, or left a cause in the engine's error slot;
 *      raise_gm turns either into the exception. An exception is never replaced on the way.
 *  (4) Whatever may take long runs without the GIL, in slices of at most 50 ms with signals looked at in between.
 *      What it works on is retained first: while the GIL is released, other threads may change any handle. */
#ifndef GOMLX_PY_PY_H
#define GOMLX_PY_PY_H
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include "gomlx.h"

#define SLICE_MS 50        /* evaluation, loading, scoring */
#define STREAM_SLICE_MS 20 /* one step of a token stream */

/* clang-format off */
#define STATE_TYPES(X)                                                                                                 \
    X(array) X(graph) X(array_iterator) X(array_at) X(dtype) X(tokenizer) X(detokenizer) X(model) X(session) X(stream) \
    X(decoder) X(token) X(random_state) X(exporter) X(encoding) X(ids)
/* clang-format on */
typedef struct {
#define X(name) PyTypeObject *name##_type;
    STATE_TYPES(X)
#undef X
    PyObject *error;      /* gomlx.Error */
    PyObject *axis_error; /* gomlx.AxisError */
    PyObject *context_exceeded, *no_state,
        *no_model;                    /* ContextLengthExceeded, KvStateNotAvailable, ModelNotSupported */
    PyObject *dtypes[GM_DTYPE_COUNT]; /* one Dtype object each */
    PyObject *numpy_asarray;          /* NULL until ids are first returned as arrays */
    gm_array *blank;                  /* what an array is before __init__: empty */
    int print_precision;              /* digits after the point; < 0: six significant ones */
    uint64_t random_seed;             /* where each thread's random state begins */
} module_state;

typedef gm_array *(*unary_fn)(gm_scope *, gm_array *);
typedef gm_array *(*binary_fn)(gm_scope *, gm_array *, gm_array *);
typedef gm_array *(*reduce_fn)(gm_scope *, gm_array *, int, const int *, bool);

/* ---- module.c ---- */
/* The state of the module that made the type of self. own is the tp_dealloc of that type: subclasses have another. */
module_state *state_of(PyObject *self, destructor own);

/* ---- errors.c ---- */
bool py_errors_add(PyObject *module, module_state *state);
/* Raises the engine's last error, unless an exception is set already. Returns NULL. */
PyObject *raise_gm(module_state *state);

/* ---- grow.c ---- */
/* Ensures capacity for `more` items after the first `size` of an array from PyMem, by half of what it has at least.
 * array: the address of the pointer to the items, NULL at first. False with MemoryError: both stay as they are. */
bool py_grow(void *array, size_t size, size_t *capacity, size_t more, size_t item_bytes);

/* ---- ops/arguments.c ---- */
/* How a function takes its arguments. names ends with NULL; required has bit i when names[i] must come. */
typedef struct {
    const char *function;
    int n_positional_only, n_positional;
    unsigned required;
    const char *names[20];
} signature;
/* Sorts a vectorcall's arguments into values (borrowed; NULL where absent), one for each name. */
bool read_arguments(const signature *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, PyObject **values);
/* TypeError for a keyword argument that the function does not have; names ends with NULL. */
void raise_unexpected(const char *function, PyObject *name, const char *const *names);
bool read_bool(PyObject *value, bool *out);                      /* NULL leaves *out */
bool read_int(PyObject *value, const char *what, int *out);      /* NULL leaves *out */
bool read_float(PyObject *value, const char *what, double *out); /* NULL leaves *out */
/* A sequence's items (not a set's, a dict's or a text's), at most `most`, as a tuple; NULL with TypeError, or
 * ValueError. */
PyObject *read_sequence(PyObject *value, const char *what, int most);
bool read_random_seed(PyObject *value, const char *what, uint64_t *seed); /* TypeError for what is not a uint64 */
bool is_one_integer(PyObject *value);                                     /* an int, or an array without dimensions */
bool read_axes(PyObject *value, int *n_axes, int *axes);     /* None or NULL: n_axes = -1; int; sequence of ints */
bool read_shape(PyObject *value, int *ndim, int64_t *shape); /* an int or a sequence of ints within int32 */
bool read_shape_items(PyObject *const *items, Py_ssize_t n, int *ndim, int64_t *shape);
/* The dimensions of foreign memory, which int64 holds; OverflowError that names one above int32. */
bool dimensions_fit(const char *what, int ndim, const int64_t *shape);
/* None, NULL, a Stream, a Device or a DeviceType: until place_leave, operations are made for it. False: an exception,
 * and nothing is to be left. */
typedef struct {
    bool entered;
    int before;
} stream_place;
bool place_enter(PyObject *value, stream_place *place);
void place_leave(stream_place *place);          /* once; again it does nothing */
bool read_device(PyObject *value, int *number); /* None or NULL: where operations are made now */
/* Token ids of any sequence of ints; *ids is from PyMem_Malloc. */
bool read_ids(PyObject *value, int32_t **ids, size_t *count);
bool read_lengths(PyObject *value, int32_t **lengths, size_t *count); /* of sequences, likewise */

/* ---- model/sampling.c ---- */
bool read_count(PyObject *value, const char *name, int64_t *out);
/* The options of sampling that a call names, and the memory behind them. */
typedef struct {
    gm_sampling options;
    void *blocks[12];
    int n_blocks;
} sampling_arguments;
/* read_arguments for a function that also takes the options of sampling by name; sampling_free in any case. */
bool sampling_read(sampling_arguments *a, const signature *sig, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                   PyObject **values);
void sampling_free(sampling_arguments *a);
PyObject *sample_ids(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *sample_probabilities(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* ---- array/dtype.c ---- */
extern PyType_Spec py_dtype_spec;
bool py_dtypes_add(PyObject *module, module_state *state, PyObject *names);
bool read_dtype(module_state *state, PyObject *value, gm_dtype *out); /* None and NULL leave *out */
bool py_dtype_is_inexact(gm_dtype type);
bool py_dtype_is_integer(gm_dtype type); /* bool is not */

/* ---- array/array.c: the type ---- */
/* A mutable handle on a node: in-place operators and item assignment give the handle another node; readers of the old
 * one keep it. node is never NULL. */
typedef struct {
    PyObject_HEAD gm_array *node;
    PyObject *weakrefs;
} array_object;
extern PyType_Spec py_array_spec, py_array_iterator_spec;
void py_array_dealloc(PyObject *self);
module_state *py_array_state(PyObject *self);
/* The node of an array, borrowed; NULL without an exception when the object is something else. */
gm_array *py_array_node(module_state *state, PyObject *object);
PyObject *shape_tuple(const gm_array *node);
/* A new handle of the type; takes over the caller's reference to node, also on failure. */
PyObject *py_array_handle(PyTypeObject *type, gm_array *node);
/* The end of every op: keeps the node, closes the scope, makes the handle or raises. */
PyObject *py_array_result(module_state *state, gm_scope *scope, gm_array *node);

PyObject *py_array_divide(PyObject *a, PyObject *b); /* a / b, of which one is an array */

/* ---- array/methods.c, array/print.c ---- */
extern PyMethodDef py_array_methods[];
PyObject *py_array_repr(PyObject *self);

/* ---- array/read.c: values back to Python ---- */
PyObject *py_array_item(PyObject *self);
PyObject *py_array_tolist(PyObject *self, PyObject *unused);
PyObject *py_array_item_method(PyObject *self, PyObject *unused);
PyObject *py_array_floats(PyObject *self, PyObject *unused);
PyObject *py_array_ints(PyObject *self, PyObject *unused);
PyObject *py_array_int32s(PyObject *self, PyObject *unused);
/* An evaluated node whose elements element_at can read (half floats become float32); retained for the caller. */
gm_array *readable_node(module_state *state, gm_array *node);
PyObject *element_at(gm_dtype type, const void *data, int64_t offset);

/* ---- array/convert.c: Python values to nodes ---- */
/* What array(value) means, in the scope; GM_DTYPE_COUNT as type: the value's own. Arrays are borrowed from their
 * handle. */
gm_array *node_from_value(module_state *state, gm_scope *scope, PyObject *value, gm_dtype type);
/* One operand: an array, or a scalar that takes the dtype of the array beside it (like; GM_DTYPE_COUNT: none) when it
 * can. */
gm_array *node_from_operand(module_state *state, gm_scope *scope, PyObject *value, gm_dtype like);
/* Two operands; weak: a scalar takes the dtype of the other one, where it can. */
bool nodes_from_operands(module_state *state, gm_scope *scope, PyObject *a, PyObject *b, bool weak, gm_array **x,
                         gm_array **y);

/* ---- array/buffer.c ---- */
int py_array_getbuffer(PyObject *self, Py_buffer *view, int flags);
void py_array_releasebuffer(PyObject *self, Py_buffer *view);
/* The contents of an object with the buffer protocol, copied. float64 becomes float32 unless type says otherwise. */
gm_array *node_from_buffer(module_state *state, gm_scope *scope, PyObject *object, gm_dtype type);
/* The same memory, without a copy; NULL with an exception where that cannot be. */
gm_array *node_sharing_buffer(gm_scope *scope, PyObject *object);
PyObject *py_array_numpy(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *py_array_to_numpy(PyObject *self, PyObject *unused); /* a.numpy() */

/* ---- array/dlpack.c ---- */
PyObject *py_array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *py_array_dlpack_device(PyObject *self, PyObject *unused);
gm_array *node_from_dlpack(module_state *state, gm_scope *scope, PyObject *object, bool copy);

/* ---- array/arrow.c ---- */
PyObject *py_array_arrow(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);

/* ---- text/source.c ---- */
/* _file_arrays(fd, name, [(dtype, shape, first byte), ...], swapped): a list of arrays that are read when evaluated. */
PyObject *file_arrays(PyObject *module, PyObject *args);
/* _exchange(x or None, kind, group, peer, serial, dtype, shape, here): an array that the carrier makes of x when it is
 * evaluated, on the processor or, with here, on the device where it is made. _set_carrier(function): of (kind, group,
 * peer, name of the dtype, shape, bytes of x or None, bytes to fill, None); on a device bytes are (address, how many),
 * and the last argument is (number of the device, address of its line). */
PyObject *exchange(PyObject *module, PyObject *args);
PyObject *set_carrier(PyObject *module, PyObject *function);

/* ---- array/foreign.c: memory of Python objects inside nodes ---- */
/* Things to give back under the GIL. A node's release callback, on any thread, only pushes; foreign_drain does it. */
typedef struct foreign {
    struct foreign *next;
    void (*give_back)(struct foreign *); /* called with the GIL; frees the record */
} foreign;
void foreign_push(void *record); /* the release callback of gm_array_wrap */
void foreign_drain(void);        /* with the GIL */

/* ---- array/read.c ---- */
/* An evaluated node's values in memory of the host: the node itself, borrowed, or an array that *made holds, for
 * gm_release. NULL with an exception. */
gm_array *host_node(module_state *state, gm_array *node, gm_array **made);

/* ---- array/convert.c ---- */
/* What came from Python in a dtype that is on its way to another: no device sees it. */
gm_array *astype_on_host(gm_scope *scope, gm_array *node, gm_dtype type);

/* ---- graph/evaluate.c ---- */
bool evaluate(module_state *state, gm_array *const *nodes, size_t count);
bool evaluate_one(module_state *state, gm_array *node);
PyObject *eval_trees(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *memory_of_trees(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *eval_or_drop_trees(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *async_eval_trees(PyObject *module, PyObject *const *args, Py_ssize_t n);

/* ---- device.c ---- */
extern PyMethodDef memory_functions[]; /* of gomlx.core */
extern PyMethodDef device_functions[]; /* for gomlx.core._devices */

/* ---- graph/transform.c ---- */
extern PyMethodDef transform_functions[];
/* A scope for a transform. What an earlier call left in the error slot is forgotten: a transform looks at the slot
 * after each rule, which gives no status. */
gm_scope *transform_scope(void);
typedef struct {
    gm_array **nodes;
    Py_ssize_t count;
} node_list; /* PyMem_Free(nodes) */
/* The nodes of a list of arrays; with `optional`, None gives NULL. Kept by the scope. */
bool read_nodes(module_state *state, gm_scope *scope, PyObject *list, bool optional, node_list *out);
/* A list of new handles; None where there is no node. */
PyObject *node_handles(module_state *state, gm_array *const *nodes, Py_ssize_t count);

/* ---- graph/graph.c ---- */
extern PyMethodDef graph_functions[];
extern PyType_Spec py_graph_spec;
const gm_graph *py_graph(module_state *state, PyObject *object); /* NULL without an exception: it is none */

/* ---- graph/export.c ---- */
extern PyMethodDef export_functions[];
extern PyType_Spec py_exporter_spec;

/* ---- array/indexing.c ---- */
PyObject *py_array_subscript(PyObject *self, PyObject *key);
int py_array_assign_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *py_array_at(PyObject *self, void *unused); /* x.at */
extern PyType_Spec py_array_at_spec;
gm_array *node_row(gm_scope *scope, gm_array *x, int64_t index); /* x[index] on the first axis */

/* ---- ops/ops.c ---- */
bool ops_add(PyObject *module, PyObject *names);

/* ---- ops/adam.c ---- */
PyObject *adam_of_many(PyObject *module, PyObject *args); /* _adam */

/* ---- ops/random_state.c ---- */
bool random_state_add(PyObject *module);
void random_state_renew(module_state *state); /* after an evaluation that failed; keeps Python's error */
/* A key to draw with: the one given, or (GM_NONE) one split off the thread's state. */
gm_array *random_draw_key(module_state *state, gm_scope *scope, gm_array *key);

/* ---- text/tokenizer.c, model/model.c, model/session.c, model/stream.c, model/decoder.c ---- */
typedef struct {
    PyObject_HEAD gm_tokenizer *tokenizer;
    PyObject **numbers; /* by id: its int, NULL until it is first used; NULL until any is */
} tokenizer_object;
struct session_object;
typedef struct {
    PyObject_HEAD gm_model *model;   /* NULL when closed */
    PyObject *tokenizer;             /* encodes texts for Session.append; NULL: none */
    struct session_object *sessions; /* the open ones: close() ends them too; borrowed */
} model_object;
extern PyType_Spec py_tokenizer_spec, py_detokenizer_spec, py_model_spec, py_session_spec, py_stream_spec;
extern PyType_Spec py_decoder_spec;
PyObject *load_model(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *describe_model(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *describe_cache(PyObject *module, PyObject *unused);
PyObject *describe_architectures(PyObject *module, PyObject *unused);
PyObject *describe_formats(PyObject *module, PyObject *unused);
PyObject *open_stream(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *bytes_of_sessions(PyObject *module, PyObject *sessions);
PyObject *py_model_new_session(PyObject *self, PyObject *unused);
PyObject *py_model_new_decoder(PyObject *self, PyObject *unused);
PyObject *py_model_restore_session(PyObject *self, PyObject *bytes);
module_state *py_model_state(PyObject *self);
/* The C model, borrowed; NULL with ValueError when it is closed. */
gm_model *py_model_open(PyObject *self);
void py_session_shut(struct session_object *session); /* frees the C session now, or as soon as its stream lets go */
bool py_token_type_add(PyObject *module, module_state *state);
const char *finish_name(gm_finish finish); /* NULL for GM_FINISH_NONE */

/* A type of the spec, made for the module, stored in the state, and added under its name when names is not NULL. */
PyTypeObject *type_add(PyObject *module, PyType_Spec *spec, bool public_name);
/* tp_free and the reference to the type, as every dealloc of a heap type ends. */
void object_free(PyObject *self);
#define FASTCALL (METH_FASTCALL | METH_KEYWORDS)
#define FUNCTION(f) ((PyCFunction)(void (*)(void))(f))
#endif
