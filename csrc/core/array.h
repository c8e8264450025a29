/* array.h - the node: a value that is there, or how to make it.
 *  (1) shape, dtype, op, param never change. buf, strides, in[] change once, when the node is evaluated, under the run
 *      lock.
 *  (2) A node is evaluated when its ticket is published (graph.c); then in[] is empty and buf is set. Only a node that
 *      is evaluated while its own trace is under way (core/trace.h) keeps its inputs: the gradient walks them.
 *  (3) refs are atomic; a node's memory is one block: header, in[], extra[], shape, strides, param.
 *  (4) An op of several outputs is one node whose value is output 0; the others are stored in extra[] and read through
 *      nodes of pick_op. Its .eval fills array_output(node, k) for every k. */
#ifndef GOMLX_CORE_ARRAY_H
#define GOMLX_CORE_ARRAY_H
#include <stdatomic.h>
#include <stdalign.h>
#include "base/error.h"
#include "core/buffer.h"
#include "kernels.h"

typedef struct gm_op gm_op;
typedef struct gm_queue gm_queue;

#define TICKET_FAILED UINT64_MAX /* it will never have a value: buf holds the gm_error that says why */

#define ARRAY_ACTIVATIONS GM_QUANT_COUNT /* format of packed int8 activations */

/* What an op's .infer fills in. */
typedef struct {
    gm_dtype dtype;
    int format; /* GM_PACKED: a gm_quant or ARRAY_ACTIVATIONS */
    int ndim;
    int64_t shape[GM_MAX_NDIM];
} gm_spec;

struct gm_array {
    _Atomic int32_t refs;
    int16_t ndim;
    uint8_t dtype, format;
    uint16_t n_in, n_extra;
    uint32_t trace; /* 0, or the greatest serial of the traced inputs it depends on (trace.h) */
    uint32_t param_size;
    uint8_t work;            /* a gm_work: of a weight, or of a node that was recorded or says its own */
    _Atomic uint8_t device;  /* where it is, or will be evaluated: changed when it falls back, while others look */
    uint16_t depth;          /* nodes on the longest way to what was evaluated when it was made; at most UINT16_MAX */
    _Atomic uint64_t ticket; /* 0: not evaluated; TICKET_FAILED; else its number (graph.c) */
    const gm_op *op;         /* NULL for data */
    gm_array **in;
    gm_array *extra; /* outputs 1 .. n_extra: storage only, never in a graph by themselves */
    gm_buffer *buf;
    int64_t offset; /* bytes from buf->data to element (0, 0, ...) */
    int64_t size;
    int64_t *shape, *strides; /* strides in elements */
    void *param;              /* constant but for what op->drop gives back; of data: see array_rows */
    uint64_t mark;            /* the last ordering that visited it; run lock */
    gm_array *next;           /* while being freed */
};

/* A field of an op's parameters: for plan keys, common subexpressions, export and printing. */
typedef enum { FIELD_END, FIELD_INT8, FIELD_INT, FIELD_INT64, FIELD_FLOAT, FIELD_DOUBLE } gm_field_kind;
typedef struct {
    gm_field_kind kind;
    size_t offset;
    const char *name;
    int count;
} gm_field;

/* Where nodes of an op are evaluated. */
typedef enum {
    PLACE_ANY,      /* on the device that is entered when they are made */
    PLACE_INPUT,    /* where in[0] is: views */
    PLACE_HOST,     /* on the processor */
    PLACE_FALLBACK, /* there, because no other device has it; that is counted */
    PLACE_REFUSED,  /* there, and another device has to be left for it: an error */
} gm_place;

/* Whether a gradient through what has to be small computes a node's value once more rather than keep it. */
typedef enum {
    AGAIN_NEVER,
    AGAIN_ALWAYS,     /* little work over inputs that are kept in any case */
    AGAIN_WITH_INPUT, /* little work, which frees nothing but where an input is computed again too */
} gm_again;

/* An operation. Parameters are zero-padded plain data, copied into the node. */
struct gm_op {
    const char *name;
    int n_in;                            /* -1: any number */
    int n_out;                           /* outputs: 1 or more; -1: said when a node is made */
    uint32_t nondiff;                    /* bit i: input i has no gradient */
    bool constant;                       /* of its nondiff inputs a derivative takes nothing, not even that the value
                                          * depends on them: they give shapes, or what gradients are added to, or the op
                                          * is stop_gradient */
    uint32_t fixed;                      /* bit i: parameters hold sizes of input i, so a shapeless graph wants it as it
                                          * was traced; FIXED_ALL: the op cannot be in such a graph */
    bool (*is_fixed)(const void *param); /* whether `fixed` is said of nodes with these parameters; NULL: of all */
    size_t param_size;
    const gm_field *fields;
    /* Shapes and dtypes: nowhere else does such an error arise. Inputs may be GM_NONE where the op allows. out has
     * n_out specs. */
    gm_status (*infer)(gm_array *const *in, int n_in, const void *param, gm_spec *out);
    /* Takes memory for the outputs (array_alloc, array_share, ...) and launches kernels. */
    gm_status (*eval)(gm_array *out, gm_queue *q);
    /* grad[i] = cotangent of in[i], as ops; left NULL where there is none. cotangents[k] belongs to output k: the
     * shape and dtype of that output; NULL (only with several outputs) where nothing depends on it. `out` may be read
     * (exp does), other outputs through array_pick. */
    void (*vjp)(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad);
    /* The outputs for inputs of which some have a batch axis in front (batched[i]: axis 0 is the batch); every outs[k]
     * gets the batch axis in front. in[i] that are not batched are as they were. `out` is the node without batch: its
     * op, param and shapes. GM_AGAIN: of these inputs the members go one by one. */
    gm_status (*vmap)(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs);
    /* tangents[i] NULL: constant. Only where the generic way (transform/jvp.c, by vjp twice) will not do. */
    gm_status (*jvp)(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *tangents, gm_array **outs);
    /* A derivative (forward: a tangent) depends on input i: an error where that cannot be meant, GM_OK where it may be.
     */
    gm_status (*refuse)(const gm_array *node, int i, bool forward);
    /* Whether nodes with these parameters have tangents of zeros in the dtype of their inputs' tangents, as in MLX. */
    bool (*still)(const void *param);
    /* The same value from primitive ops: gradient of a fused op without .vjp, batching without .vmap, tests' oracle. */
    gm_array *(*compose)(gm_scope *s, gm_array *const *in, int n_in, const void *param);
    /* The node made anew from inputs and parameters of a file, through the checks that the op's functions make: values
     * may be anything, param has param_size bytes. NULL: the op cannot be exported. */
    gm_status (*rebuild)(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out, gm_array **outs);
    uint8_t work;                            /* the gm_work that its nodes are; GM_WORK_OTHER: that of their inputs */
    const char *(*title)(const void *param); /* what the node does, where op->name does not tell: "exp" */
    uint32_t optional;                       /* bit i: input i may be GM_NONE (rebuild) */
    uint8_t place;                           /* a gm_place */
    uint8_t again;                           /* a gm_again */
    /* Over the same inputs and parameters, what .vjp reads of `out`, for less work: it gets a node of this op as `out`
     * where the node would be computed again for it alone. NULL: the node itself. */
    const gm_op *for_vjp;
    /* bit i: .vjp finds in grad[i] what input i has got so far, or NULL, and gives the sum. Inputs of two bits are
     * never the same array. */
    uint32_t adds;
    bool waits;                /* what it launches waits for others than the engine */
    bool shares;               /* not a view, but an output may be the memory of an input */
    void (*hold)(void *param); /* a node with a copy of these parameters exists: takes what they hold */
    /* It needs that no more: gives it back. Called when a node with inputs was recorded, or one without has its value,
     * for it may be evaluated again before; and when it dies. */
    void (*drop)(void *param);
};
#define FIXED_ALL UINT32_MAX

static inline bool op_is_nondiff(const gm_op *op, int i) { return i < 32 && op->nondiff >> i & 1; }
static inline bool op_adds(const gm_op *op, int i) { return i < 32 && op->adds >> i & 1; }

/* A node of op over inputs (retained), with a copy of param. Any input NULL: NULL, silently. */
gm_array *array_node(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param);
/* The same with the first param_size bytes of param only: lists of as many items as there are dimensions. */
gm_array *array_node_sized(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param,
                           size_t param_size);
/* A node of several outputs; outs[0 .. n_out) get them. param_size bytes of param. */
gm_status array_nodes(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param, size_t param_size,
                      int n_out, gm_array **outs);
/* The same op and parameters over other inputs; single output. */
gm_array *array_again(gm_scope *s, const gm_array *node, gm_array *const *in);
/* Output k of a node of several. */
gm_array *array_pick(gm_scope *s, gm_array *node, int k);
extern const gm_op pick_op;
int pick_index(const gm_array *pick); /* which output of in[0] it is */
/* An evaluated, contiguous array over a buffer (retained), `offset` bytes in. s NULL: the caller owns the reference. */
gm_array *array_data(gm_scope *s, const gm_spec *spec, gm_buffer *buf, int64_t offset);
/* A packed matrix [rows, k] that is not packed yet has its rows as a file has them: row r is row map[r] of data, map
 * NULL: row r. Its buffer is empty and keeps the rows alive, until array_pack gives the array the same matrix in
 * panels, under the run lock. */
typedef struct {
    const void *data;
    const int32_t *map;
} gm_rows;
gm_array *array_in_rows(const gm_spec *spec, gm_rows *rows, gm_buffer *keeper);
void array_pack(gm_array *a, gm_buffer *buf, int64_t offset);
static inline const gm_rows *array_rows(const gm_array *a) { return a->op ? NULL : a->param; }
/* An evaluated array with memory of its own, uninitialised. */
gm_array *array_new(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape);
/* Whether packed products that are made in the scope may be those of a prompt's rows (contracts.h); false at first. */
void scope_set_prompt(gm_scope *s, bool prompt);
bool scope_is_prompt(const gm_scope *s); /* NULL: false */
/* The scope takes the caller's reference; on failure the array is released and NULL returned. */
gm_array *array_own(gm_scope *s, gm_array *a);

/* Enters the device on which nodes are made that are for this one, as parts of its gradient. Returns what device_enter
 * takes, to leave it. A view has no device of its own. */
int array_enter(const gm_array *node);
/* An evaluated array of the same shape, strides and dtype over other memory (retained); the caller owns it. */
gm_array *array_moved(const gm_array *a, gm_buffer *buf, int64_t offset);
/* The bytes of buf that the elements of an evaluated array span: from *begin on, *bytes of them. */
void array_span(const gm_array *a, int64_t *begin, size_t *bytes);

/* Frees nodes that nobody refers to, linked by `next`, and what they alone refer to. */
void array_free(gm_array *dead);

/* Where the evaluation of a node of several outputs puts output k. */
static inline gm_array *array_output(gm_array *node, int k) { return k ? &node->extra[k - 1] : node; }
static inline int array_n_out(const gm_array *node) { return 1 + node->n_extra; }
static inline bool array_is_none(const gm_array *a) { return a == GM_NONE; }
static inline size_t array_item(const gm_array *a) { return gm_dtype_size((gm_dtype)a->dtype); }
static inline void *array_ptr(const gm_array *a) { return a->buf ? (char *)a->buf->data + a->offset : NULL; }
bool array_is_contiguous(const gm_array *a); /* row-major without gaps; evaluated or being recorded */
/* Of a GM_PACKED array on a device. */
int64_t array_packed_bytes(int number, gm_dtype type, int format, int64_t rows, int64_t k);
void array_text(const gm_array *a, char out[128]); /* "float32(2,3)" for messages */
void shape_text(int ndim, const int64_t *shape, char out[128]);
void shape_strides(int ndim, const int64_t *shape, int64_t *strides); /* row-major, without gaps */

/* Inside .eval only */
gm_status array_alloc(gm_array *out, gm_queue *q); /* contiguous memory */
/* in[donor]'s memory when out is its last reader, else array_alloc */
gm_status array_alloc_like(gm_array *out, gm_queue *q, int donor);
/* The same for any output of a node: the memory of an input that only this node reads. */
gm_status array_alloc_from(gm_array *out, gm_queue *q, gm_array *in);
/* out is a view of in's memory. */
void array_share(gm_array *out, const gm_array *in, const int64_t *strides, int64_t offset_bytes);
#endif
