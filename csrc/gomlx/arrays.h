/* arrays.h - arrays, what can be computed with them, and their files: a chapter of gomlx.h. */
#ifndef GOMLX_ARRAYS_H
#define GOMLX_ARRAYS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gomlx/base.h"

/* ---- arrays ---- */
typedef struct gm_array gm_array;
typedef struct gm_scope gm_scope;
extern gm_array gm_none_array;
#define GM_NONE (&gm_none_array) /* an optional input that is absent */

/* A scope owns the arrays made through it until it is closed; gm_retain outlives it. One thread at a time. */
gm_scope *gm_scope_open(void);
void gm_scope_close(gm_scope *scope);                      /* NULL is fine */
gm_array *gm_retain(gm_array *array);                      /* returns its argument */
gm_array *gm_scope_keep(gm_scope *scope, gm_array *array); /* the scope holds a reference more; returns the array */
void gm_release(gm_array *array);                          /* NULL is fine */

/* A new array with a copy of the data, contiguous, row-major. */
gm_array *gm_array_from(gm_scope *scope, gm_dtype type, int ndim, const int64_t *shape, const void *data);
/* Memory of somebody else, used in place and never written; release(payload) is called when the last view dies.
 * On failure release is not called. Strides may be NULL for contiguous. */
typedef struct {
    const void *data;
    const int64_t *strides;
    void (*release)(void *payload);
    void *payload;
    int device; /* whose address data is */
} gm_foreign;
gm_array *gm_array_wrap(gm_scope *scope, gm_dtype type, int ndim, const int64_t *shape, gm_foreign memory);
/* An array of the same shape and dtype whose value is gone: evaluating it, or what depends on it, is GM_ESTATE. */
gm_array *gm_freed(gm_scope *scope, const gm_array *array);
gm_dtype gm_array_dtype(const gm_array *array);
int gm_array_ndim(const gm_array *array);
const int64_t *gm_array_shape(const gm_array *array);
const int64_t *gm_array_strides(const gm_array *array); /* meaningful once evaluated */
int64_t gm_array_size(const gm_array *array);
const char *gm_array_format(const gm_array *array);  /* GM_PACKED: "Q4_0"; else NULL */
const char *gm_array_op_name(const gm_array *array); /* what makes it; NULL for data */
bool gm_array_is_evaluated(const gm_array *array);
/* The elements of an evaluated array in memory of the host, NULL otherwise. Valid while the array is retained. */
void *gm_array_data(const gm_array *array);
/* An evaluated array of the same values in memory of the host: itself where it is there already. scope NULL: the
 * reference is the caller's. */
gm_array *gm_array_host(gm_scope *scope, gm_array *array);
/* Where the memory of an evaluated array is, and its first element there: an address of that device. */
int gm_array_device(const gm_array *array);
void *gm_array_address(const gm_array *array);
/* A copy of an evaluated array that is contiguous, on its device; done when this returns. */
gm_array *gm_array_copy(gm_scope *scope, gm_array *array);
/* Pins the array's buffer for an export (NumPy, DLPack): it is not reused while pinned. *writable tells whether the
 * array is the buffer's only owner. Evaluated arrays only. */
gm_status gm_array_pin(gm_array *array, bool *writable);
void gm_array_unpin(gm_array *array);

/* Sizes of a convolution, one for each spatial axis; n_... is how many were given, -1: one for all. */
typedef struct {
    int n_stride, n_low, n_high, n_dilation, n_input_dilation;
    int64_t stride[3], low[3], high[3], dilation[3], input_dilation[3];
} gm_conv_sizes;

/* The rows of a forward pass and the caches of their sequences: csrc/ops/layers/batch_state.h. */
typedef struct gm_batch_state gm_batch_state;
/* One layer's attention over a slot of the caches. window: keys that a row sees, 0 all; softcap 0: none. */
typedef struct {
    int slot, n_heads, n_kv_heads, head_dim, window;
    float scale, softcap;
    bool rounded; /* both factors of products, to bfloat16: of rows that train alone */
} gm_attention_spec;
typedef struct {
    gm_array *q, *k, *v, *angles, *sinks;
    gm_array *q_norm, *k_norm; /* of each head, before rotation: of attention over caches alone */
    float eps;                 /* of these norms */
} gm_attention_inputs;
/* A packed matrix that reads rows of sequences, and the trained matrices a [rank, k] and b [rows, rank] of a term
 * beside it, whose gradients are summed from sum_a and sum_b on. bias, residual and the sums may be GM_NONE. */
typedef struct { gm_array *x, *weight, *bias, *residual, *a, *b, *sum_a, *sum_b, *starts; } gm_rounded_inputs;
/* Of gm_rounded_loss: float32 [n, k], packed [rows, k], float32 [rows] or GM_NONE, int32 [n]. */
typedef struct { gm_array *x, *weight, *bias, *targets; } gm_rounded_loss_inputs;
/* float32 rows [n, k] that products read as x / rms(x) * norm, of dtype type: float32, bfloat16 or GM_PACKED
 * activations. norm, float32 [k], may be GM_NONE: x as it is. */
typedef struct {
    gm_array *x, *norm;
    float eps;
    gm_dtype type;
} gm_made_inputs;
/* One layer's gated delta rule. tiled: value head h reads key head h % n_key_heads, else h / (heads of each). */
typedef struct {
    int slot, n_key_heads, n_value_heads;
    bool tiled;
} gm_delta_spec;
typedef struct { gm_array *q, *k, *v, *decay, *beta; } gm_delta_inputs;
/* Indices of n axes together; their own axes come after `kept_before` of the others. */
typedef struct {
    gm_array *const *arrays;
    int n;
    const int *axes;
    int kept_before;
} gm_indices;
typedef struct { const int64_t *start, *stop, *step; } gm_region; /* of each axis */

/* ---- ops: one line of ops.def each ---- */
enum { GM_ADAM_MOST = 1024 }; /* parameters of one gm_adam */
typedef enum { GM_PAD_CONSTANT, GM_PAD_EDGE, GM_PAD_REFLECT, GM_PAD_SYMMETRIC } gm_pad_mode;
#define UNARY(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *x);
#define BINARY(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *a, gm_array *b);
#define REDUCE(name, doc) gm_array *gm_##name(gm_scope *scope, gm_array *x, int n_axes, const int *axes, bool keepdims);
#define OP(name, namespace_, result, arguments, doc) gm_array *gm_##name(gm_scope *scope arguments result);
#define ARG(text, letter, members, defaults, parameters, ...) OPEN parameters
#define SINGLE
#define TUPLE(n) , gm_array **outs
#define PAIR , gm_array **second
#define LIST_OF_TWO , gm_array **second
#define HAND(name, namespace_, parameters, text, doc) gm_array *gm_##name parameters;
#define ENGINE(name, parameters, doc) gm_array *gm_##name parameters;
#include "ops/ops.def"
#undef SINGLE
#undef TUPLE
#undef PAIR
#undef LIST_OF_TWO

/* ---- arrays in files ---- */
/* An open file of whose bytes arrays are made; they are read when they are evaluated. The descriptor is duplicated;
 * name is for messages. Arrays keep the file open until they are read or die. */
typedef struct gm_source gm_source;
gm_status gm_source_open(int fd, const char *name, gm_source **out);
void gm_source_close(gm_source *source); /* NULL is fine */
/* The elements from byte `offset` on, contiguous; swapped: in the other order of bytes than this machine's. A file that
 * has become too short is GM_ESTATE when the array is evaluated. */
gm_array *gm_source_array(gm_scope *scope, gm_source *source, gm_dtype type, int ndim, const int64_t *shape,
                          int64_t offset, bool swapped);

/* ---- other processes ---- */
/* What an array exchanges with them, in the words of whoever carries it; serial tells alike ones apart. */
typedef struct {
    int64_t serial;
    int32_t kind, group, peer;
    bool here; /* on the device where the array is made, if its line can be lent; else on the processor */
} gm_exchange;
/* in_bytes of an array's elements (in NULL: there is none) of which out is to be made, of this dtype and shape. On a
 * device addresses are the device's, and the work goes into its line. */
typedef struct {
    gm_exchange what;
    gm_dtype type;
    int ndim;
    int64_t shape[GM_MAX_NDIM];
    const void *in;
    size_t in_bytes;
    void *out;
    size_t out_bytes;
    char *cause; /* takes a text where it cannot be done */
    size_t cause_bytes;
    int device;
    void *line; /* of the device; NULL on the processor */
} gm_exchange_call;
/* False: not done. Called without locks of Python's on any thread, one call at a time. */
typedef bool (*gm_exchange_fn)(const gm_exchange_call *call);
void gm_exchange_carrier(gm_exchange_fn fn);
/* What fn makes of a contiguous x (GM_NONE: of nothing) when it is evaluated; GM_ESTATE with its cause where it fails.
 */
gm_array *gm_exchange_array(gm_scope *scope, gm_array *x, const gm_exchange *what, gm_dtype type, int ndim,
                            const int64_t *shape);
#endif
