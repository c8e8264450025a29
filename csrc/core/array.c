/* array.c - making, sharing and freeing nodes; scopes; dtypes. Invariants in array.h. */
#include "core/array.h"
#include <stdio.h>
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "core/device.h"
#include "core/graph.h"
#include "core/queue.h"
#include "core/trace.h"

gm_array gm_none_array = {.refs = 1, .ticket = 1};

/* ---- dtypes ---- */
static const struct {
    const char *name;
    uint8_t size, kind;
} dtypes[GM_DTYPE_COUNT] = {
    [GM_BOOL] = {"bool", 1, 0},       [GM_UINT8] = {"uint8", 1, 1},         [GM_UINT16] = {"uint16", 2, 1},
    [GM_UINT32] = {"uint32", 4, 1},   [GM_UINT64] = {"uint64", 8, 1},       [GM_INT8] = {"int8", 1, 2},
    [GM_INT16] = {"int16", 2, 2},     [GM_INT32] = {"int32", 4, 2},         [GM_INT64] = {"int64", 8, 2},
    [GM_FLOAT16] = {"float16", 2, 3}, [GM_BFLOAT16] = {"bfloat16", 2, 3},   [GM_FLOAT32] = {"float32", 4, 3},
    [GM_FLOAT64] = {"float64", 8, 3}, [GM_COMPLEX64] = {"complex64", 8, 4},
};

const char *gm_dtype_name(gm_dtype type) {
    return type < GM_DTYPE_COUNT ? dtypes[type].name : type == GM_PACKED ? "packed" : "?";
}
size_t gm_dtype_size(gm_dtype type) { return type < GM_DTYPE_COUNT ? dtypes[type].size : 0; }

/* MLX's table: within a kind the wider wins; bool < unsigned < signed < float < complex. A signed type takes in an
 * unsigned one of its own width or wider by doubling (uint64 with signed gives float32); float16 with bfloat16 gives
 * float32. */
gm_dtype gm_promote(gm_dtype a, gm_dtype b) {
    if (a == b)
        return a;
    if (a >= GM_DTYPE_COUNT || b >= GM_DTYPE_COUNT)
        return GM_PACKED;
    if (dtypes[a].kind > dtypes[b].kind) {
        gm_dtype t = a;
        a = b;
        b = t;
    }
    int ka = dtypes[a].kind, kb = dtypes[b].kind;
    if (kb == 4)
        return GM_COMPLEX64;
    if (ka == 3)
        return (a == GM_FLOAT16 && b == GM_BFLOAT16) || (a == GM_BFLOAT16 && b == GM_FLOAT16) ? GM_FLOAT32
               : dtypes[a].size >= dtypes[b].size                                             ? a
                                                                                              : b;
    if (kb == 3 || ka == 0)
        return b;
    if (ka == kb)
        return dtypes[a].size >= dtypes[b].size ? a : b;
    if (dtypes[b].size > dtypes[a].size) /* unsigned with a wider signed */
        return b;
    switch (dtypes[a].size) {
    case 1: return GM_INT16;
    case 2: return GM_INT32;
    case 4: return GM_INT64;
    default: return GM_FLOAT32;
    }
}

/* ---- shapes ---- */
void shape_text(int ndim, const int64_t *shape, char out[128]) {
    int n = snprintf(out, 128, "(");
    for (int i = 0; i < ndim && n < 100; i++)
        n += snprintf(out + n, 128 - (size_t)n, i ? ",%lld" : "%lld", (long long)shape[i]);
    snprintf(out + n, 128 - (size_t)n, n >= 100 ? ",...)" : ")");
}

void shape_strides(int ndim, const int64_t *shape, int64_t *strides) {
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
}

void array_text(const gm_array *a, char out[128]) {
    char shape[128];
    if (array_is_none(a)) {
        snprintf(out, 128, "none");
        return;
    }
    shape_text(a->ndim, a->shape, shape);
    const char *format = gm_array_format(a);
    snprintf(out, 128, "%s%.100s", format ? format : gm_dtype_name((gm_dtype)a->dtype), shape);
}

/* ---- nodes ---- */
static void set_spec(gm_array *a, const gm_spec *spec, int64_t *dims) {
    a->ndim = (int16_t)spec->ndim;
    a->dtype = (uint8_t)spec->dtype;
    a->format = (uint8_t)spec->format;
    a->shape = dims;
    a->strides = dims + spec->ndim;
    a->size = 1;
    for (int i = 0; i < spec->ndim; i++)
        a->size *= a->shape[i] = spec->shape[i];
    shape_strides(a->ndim, a->shape, a->strides);
}

/* Nodes count their inputs in 16 bits. */
static gm_status check_inputs(const gm_op *op, gm_array *const *in, int n_in) {
    for (int i = 0; i < n_in; i++)
        if (!in[i])
            return error_code() != GM_OK ? error_code() : gm_fail(GM_EVALUE, "%s: an input is missing", op->name);
    if (n_in > UINT16_MAX)
        return gm_fail(GM_EUNSUPPORTED, "%s: %d inputs; at most %d are possible", op->name, n_in, UINT16_MAX);
    return GM_OK;
}

static bool has_float64(gm_array *const *in, int n_in, const gm_spec *specs, int n_out) {
    bool found = false;
    for (int i = 0; i < n_in; i++)
        found |= in[i]->dtype == GM_FLOAT64;
    for (int k = 0; k < n_out; k++)
        found |= specs[k].dtype == GM_FLOAT64;
    return found;
}

/* Of a node that is made while a device is entered. What is packed stays where it is: layouts differ. */
static gm_status place_on_device(const gm_op *op, gm_array *const *in, int n_in, const gm_spec *specs, int n_out,
                                 int *number) {
    for (int i = 0; i < n_in; i++)
        if (in[i]->dtype == GM_PACKED)
            *number = in[i]->device;
    if (*number && op->place == PLACE_REFUSED)
        return gm_fail(GM_EVALUE, "%s: it has no kernel on the GPU; pass stream=mx.cpu to run it on the processor",
                       op->name);
    if (*number && op->place == PLACE_FALLBACK) {
        device_fell_back(op->name);
        *number = 0;
    }
    if (*number && has_float64(in, n_in, specs, n_out))
        return gm_fail(GM_EVALUE, "%s: float64 is not supported on the GPU; pass stream=mx.cpu", op->name);
    return device_get(*number) ? GM_OK : error_code();
}

static gm_status place(const gm_op *op, gm_array *const *in, int n_in, const gm_spec *specs, int n_out, int *number) {
    *number = op->place == PLACE_HOST ? 0 : op->place == PLACE_INPUT && n_in ? in[0]->device : device_current();
    return *number ? place_on_device(op, in, n_in, specs, n_out, number) : GM_OK;
}

int array_enter(const gm_array *node) {
    return device_enter(node->op && node->op->place == PLACE_INPUT ? device_current() : node->device);
}

static gm_array *make(const gm_spec *specs, int n_out, const gm_op *op, gm_array *const *in, int n_in,
                      const void *param, size_t param_size) {
    size_t dims = 0;
    for (int k = 0; k < n_out; k++)
        dims += 2 * (size_t)specs[k].ndim;
    size_t bytes = (size_t)n_out * sizeof(gm_array) + (size_t)n_in * sizeof(gm_array *) + dims * sizeof(int64_t) +
                   param_size;
    gm_array *a = memory_new(bytes);
    if (!a)
        return NULL;
    memset(a, 0, (size_t)n_out * sizeof *a);
    atomic_init(&a->refs, 1);
    a->op = op;
    a->n_in = (uint16_t)n_in;
    a->n_extra = (uint16_t)(n_out - 1);
    a->extra = a + 1;
    a->in = (gm_array **)(a + n_out);
    int64_t *at = (int64_t *)(a->in + n_in);
    for (int k = 0; k < n_out; k++) {
        set_spec(array_output(a, k), &specs[k], at);
        at += 2 * specs[k].ndim;
    }
    a->param = at;
    a->param_size = (uint32_t)param_size;
    bool tracing = trace_depth() > 0;
    for (int i = 0; i < n_in; i++) {
        a->in[i] = gm_retain(in[i]);
        if (tracing && in[i]->trace > a->trace)
            a->trace = in[i]->trace;
        if (!atomic_load_explicit(&in[i]->ticket, memory_order_relaxed) && in[i]->depth >= a->depth)
            a->depth = (uint16_t)(in[i]->depth + (in[i]->depth < UINT16_MAX));
    }
    if (param_size)
        memcpy(a->param, param, param_size);
    if (op && op->hold)
        op->hold(a->param);
    return a;
}

/* The number of elements and bytes must stay within int64; dimensions are not negative. */
static gm_status check_spec(const gm_spec *spec) {
    int64_t size = 1;
    bool empty = false;
    if (spec->ndim < 0 || spec->ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "%d dimensions: at most %d are supported", spec->ndim, GM_MAX_NDIM);
    for (int i = 0; i < spec->ndim; i++) {
        if (spec->shape[i] < 0)
            return gm_fail(GM_EVALUE, "dimension %d is %lld: it cannot be negative", i, (long long)spec->shape[i]);
        empty |= spec->shape[i] == 0;
        if (!empty && __builtin_mul_overflow(size, spec->shape[i], &size))
            size = INT64_MAX;
    }
    if (!empty && size > (INT64_MAX >> 5))
        return gm_fail(GM_EOVERFLOW, "an array of this shape has more elements than memory can hold");
    return GM_OK;
}

gm_array *array_node(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param) {
    return array_node_sized(s, op, in, n_in, param, op->param_size);
}

gm_array *array_node_sized(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param,
                           size_t param_size) {
    gm_spec spec;
    int number = 0;
    spec.format = 0;
    if (check_inputs(op, in, n_in) != GM_OK || op->infer(in, n_in, param, &spec) != GM_OK ||
        check_spec(&spec) != GM_OK || (device_is_possible() && place(op, in, n_in, &spec, 1, &number) != GM_OK))
        return NULL;
    gm_array *a = make(&spec, 1, op, in, n_in, param, param_size);
    if (a)
        a->device = (uint8_t)number;
    return array_own(s, a);
}

gm_status array_nodes(gm_scope *s, const gm_op *op, gm_array *const *in, int n_in, const void *param, size_t param_size,
                      int n_out, gm_array **outs) {
    GM_TRY(check_inputs(op, in, n_in));
    gm_spec *specs = memory_zeroed((size_t)n_out * sizeof *specs);
    gm_status status = specs ? op->infer(in, n_in, param, specs) : GM_ENOMEM;
    int number = 0;
    for (int k = 0; k < n_out && status == GM_OK; k++)
        status = check_spec(&specs[k]);
    if (status == GM_OK && device_is_possible())
        status = place(op, in, n_in, specs, n_out, &number);
    if (status == GM_OK) {
        gm_array *a = make(specs, n_out, op, in, n_in, param, param_size);
        for (int k = 0; a && k < n_out; k++)
            array_output(a, k)->device = (uint8_t)number;
        outs[0] = array_own(s, a);
        for (int k = 1; k < n_out; k++)
            outs[k] = array_pick(s, outs[0], k);
        status = outs[n_out - 1] ? GM_OK : error_code();
    }
    memory_free(specs);
    return status;
}

gm_array *array_again(gm_scope *s, const gm_array *node, gm_array *const *in) {
    return array_node_sized(s, node->op, in, node->n_in, node->param, node->param_size);
}

/* ---- pick: one of several outputs ---- */
typedef struct { int32_t index; } pick_param;
static const gm_field pick_fields[] = {{FIELD_INT, offsetof(pick_param, index), "index", 1}, {0}};

static gm_status pick_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const gm_array *a = array_output(in[0], ((const pick_param *)param)->index);
    out->dtype = (gm_dtype)a->dtype;
    out->format = a->format;
    out->ndim = a->ndim;
    memcpy(out->shape, a->shape, (size_t)a->ndim * sizeof *a->shape);
    return GM_OK;
}

static gm_status pick_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const gm_array *from = array_output(out->in[0], pick_index(out));
    array_share(out, from, from->strides, 0);
    return GM_OK;
}

const gm_op pick_op = {.name = "pick",
                       .n_in = 1,
                       .n_out = 1,
                       .place = PLACE_INPUT,
                       .param_size = sizeof(pick_param),
                       .fields = pick_fields,
                       .infer = pick_infer,
                       .eval = pick_eval};

int pick_index(const gm_array *pick) { return ((const pick_param *)pick->param)->index; }

gm_array *array_pick(gm_scope *s, gm_array *node, int k) {
    return k ? array_node(s, &pick_op, &node, 1, &(pick_param){k}) : node;
}

/* ---- freed: a value that is gone ---- */
static gm_status freed_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const gm_spec *spec = param;
    (void)in;
    (void)n_in;
    memcpy(out, spec, offsetof(gm_spec, shape) + (size_t)spec->ndim * sizeof *spec->shape);
    return GM_OK;
}

static gm_status freed_eval(gm_array *out, gm_queue *q) {
    (void)out;
    (void)q;
    return gm_fail(GM_ESTATE, "array: it was freed, so it has no value");
}

static const gm_op freed_op = {.name = "freed",
                               .n_in = 0,
                               .n_out = 1,
                               .place = PLACE_HOST,
                               .param_size = sizeof(gm_spec),
                               .infer = freed_infer,
                               .eval = freed_eval};

gm_array *gm_freed(gm_scope *s, const gm_array *array) {
    gm_spec spec = {.dtype = (gm_dtype)array->dtype, .format = array->format, .ndim = array->ndim};
    memcpy(spec.shape, array->shape, (size_t)array->ndim * sizeof *array->shape);
    return array_node_sized(s, &freed_op, NULL, 0, &spec,
                            offsetof(gm_spec, shape) + (size_t)array->ndim * sizeof(int64_t));
}

gm_array *array_data(gm_scope *s, const gm_spec *spec, gm_buffer *buf, int64_t offset) {
    if (check_spec(spec) != GM_OK)
        return NULL;
    gm_array *a = make(spec, 1, NULL, NULL, 0, NULL, 0);
    if (!a)
        return NULL;
    a->buf = buffer_retain(buf);
    a->device = buf ? buf->device : 0;
    a->offset = offset;
    a->param = NULL;
    atomic_store_explicit(&a->ticket, 1, memory_order_release);
    return s ? array_own(s, a) : a;
}

gm_array *array_moved(const gm_array *a, gm_buffer *buf, int64_t offset) {
    gm_spec spec = {.dtype = (gm_dtype)a->dtype, .format = a->format, .ndim = a->ndim};
    memcpy(spec.shape, a->shape, (size_t)a->ndim * sizeof *a->shape);
    gm_array *moved = array_data(NULL, &spec, buf, offset);
    if (moved)
        memcpy(moved->strides, a->strides, (size_t)a->ndim * sizeof *a->strides);
    return moved;
}

void array_span(const gm_array *a, int64_t *begin, size_t *bytes) {
    int64_t low = 0, high = 1;
    for (int i = 0; i < a->ndim; i++)
        *(a->strides[i] < 0 ? &low : &high) += (a->shape[i] - 1) * a->strides[i];
    *begin = a->offset + low * (int64_t)array_item(a);
    *bytes = a->size ? (size_t)(high - low) * array_item(a) : 0;
}

gm_array *array_in_rows(const gm_spec *spec, gm_rows *rows, gm_buffer *keeper) {
    gm_array *a = array_data(NULL, spec, keeper, 0);
    if (a)
        a->param = rows;
    return a;
}

void array_pack(gm_array *a, gm_buffer *buf, int64_t offset) {
    gm_buffer *keeper = a->buf;
    a->buf = buffer_retain(buf);
    a->offset = offset;
    a->param = NULL;
    buffer_release(keeper);
}

gm_array *array_new(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape) {
    gm_spec spec = {.dtype = type, .ndim = ndim};
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "%d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    int64_t size = 1;
    for (int i = 0; i < ndim; i++)
        spec.shape[i] = shape[i];
    if (check_spec(&spec) != GM_OK)
        return NULL;
    for (int i = 0; i < ndim; i++)
        size *= shape[i];
    gm_buffer *buf = buffer_new((size_t)size * gm_dtype_size(type));
    if (!buf)
        return NULL;
    gm_array *a = array_data(s, &spec, buf, 0);
    buffer_release(buf);
    return a;
}

gm_array *gm_retain(gm_array *a) {
    if (a && a != GM_NONE)
        atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    return a;
}

void gm_release(gm_array *a) {
    if (!a || a == GM_NONE || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1 || graph_frees(a))
        return;
    a->next = NULL;
    array_free(a);
}

/* Iterative: a chain of a million nodes must not use a million stack frames. */
void array_free(gm_array *dead) {
    while (dead) {
        gm_array *a = dead;
        dead = a->next;
        for (int i = 0; i < a->n_in; i++) {
            gm_array *in = a->in[i];
            if (in != GM_NONE && atomic_fetch_sub_explicit(&in->refs, 1, memory_order_acq_rel) == 1 &&
                !graph_frees(in)) {
                in->next = dead;
                dead = in;
            }
        }
        for (int k = 0; k <= a->n_extra; k++)
            buffer_release(array_output(a, k)->buf);
        if (a->op && a->op->drop)
            a->op->drop(a->param);
        memory_free(a);
    }
}

bool array_is_contiguous(const gm_array *a) {
    int64_t expected = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->shape[i] != 1 && a->strides[i] != expected && a->size > 0)
            return false;
        expected *= a->shape[i];
    }
    return true;
}

int64_t array_packed_bytes(int number, gm_dtype type, int format, int64_t rows, int64_t k) {
    if (type != GM_PACKED)
        return rows * k * (int64_t)gm_dtype_size(type);
    if (format == ARRAY_ACTIVATIONS)
        return (int64_t)act_bytes(rows, k);
    return device_contracts(number)->packed_bytes(engine_kernels(), format, rows, k);
}

static int64_t array_bytes(const gm_array *a) {
    if (a->dtype == GM_PACKED)
        return (a->ndim == 3 ? a->shape[0] : 1) *
               array_packed_bytes(a->device, GM_PACKED, a->format, a->shape[a->ndim - 2], a->shape[a->ndim - 1]);
    return a->size * (int64_t)array_item(a);
}

gm_status array_alloc(gm_array *out, gm_queue *q) {
    out->buf = queue_take(q, (size_t)array_bytes(out));
    if (!out->buf)
        return error_code();
    out->offset = 0;
    shape_strides(out->ndim, out->shape, out->strides);
    return queue_writes(q, out->buf);
}

gm_status array_alloc_from(gm_array *out, gm_queue *q, gm_array *in) {
    if (in != GM_NONE && atomic_load(&in->refs) == 1 && in->buf && atomic_load(&in->buf->refs) == 1 &&
        atomic_load(&in->buf->pins) == 0 && in->buf->kind == BUFFER_OWNED && in->buf->device == queue_device(q) &&
        in->size == out->size && array_item(in) == array_item(out) && in->offset == 0 && array_is_contiguous(in)) {
        buffer_forget_mirror(in->buf);
        out->buf = buffer_retain(in->buf);
        out->offset = 0;
        shape_strides(out->ndim, out->shape, out->strides);
        return queue_writes(q, out->buf);
    }
    return array_alloc(out, q);
}

gm_status array_alloc_like(gm_array *out, gm_queue *q, int donor) { return array_alloc_from(out, q, out->in[donor]); }

void array_share(gm_array *out, const gm_array *in, const int64_t *strides, int64_t offset_bytes) {
    out->buf = buffer_retain(in->buf);
    out->offset = in->offset + offset_bytes;
    for (int i = 0; i < out->ndim; i++)
        out->strides[i] = strides[i];
}

/* ---- scopes ---- */
struct gm_scope {
    gm_array **items;
    size_t count, capacity;
    bool prompt;
};

void scope_set_prompt(gm_scope *s, bool prompt) { s->prompt = prompt; }
bool scope_is_prompt(const gm_scope *s) { return s && s->prompt; }
gm_scope *gm_scope_open(void) { return memory_zeroed(sizeof(gm_scope)); }

void gm_scope_close(gm_scope *s) {
    if (!s)
        return;
    while (s->count) /* youngest first: a chain then dies link by link */
        gm_release(s->items[--s->count]);
    memory_free(s->items);
    memory_free(s);
}

gm_array *array_own(gm_scope *s, gm_array *a) {
    if (!a)
        return NULL;
    if (grow_array(&s->items, s->count, &s->capacity, 1, sizeof *s->items) != GM_OK) {
        gm_release(a);
        return NULL;
    }
    return s->items[s->count++] = a;
}

gm_array *gm_scope_keep(gm_scope *s, gm_array *a) { return a && a != GM_NONE ? array_own(s, gm_retain(a)) : a; }

/* ---- the public view ---- */
gm_array *gm_array_from(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape, const void *data) {
    gm_array *a = array_new(s, type, ndim, shape);
    if (a && a->size)
        memcpy(array_ptr(a), data, (size_t)a->size * array_item(a));
    return a;
}

gm_array *gm_array_wrap(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape, gm_foreign memory) {
    gm_spec spec = {.dtype = type, .ndim = ndim};
    if (ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "%d dimensions: at most %d are supported", ndim, GM_MAX_NDIM), NULL;
    for (int i = 0; i < ndim; i++)
        spec.shape[i] = shape[i];
    if (check_spec(&spec) != GM_OK)
        return NULL;
    gm_buffer *buf = buffer_foreign((void *)(uintptr_t)memory.data, 0, NULL, memory.payload);
    if (!buf)
        return NULL;
    buf->device = (uint8_t)memory.device;
    gm_array *a = array_data(s, &spec, buf, 0);
    if (a && memory.strides)
        for (int i = 0; i < ndim; i++)
            a->strides[i] = memory.strides[i];
    if (a)
        buf->release = memory.release; /* from here on ours to call */
    buffer_release(buf);
    return a;
}

gm_dtype gm_array_dtype(const gm_array *a) { return (gm_dtype)a->dtype; }
int gm_array_ndim(const gm_array *a) { return a->ndim; }
const int64_t *gm_array_shape(const gm_array *a) { return a->shape; }
const int64_t *gm_array_strides(const gm_array *a) { return a->strides; }
int64_t gm_array_size(const gm_array *a) { return a->size; }

const char *gm_array_format(const gm_array *a) {
    if (a->dtype != GM_PACKED)
        return NULL;
    return a->format == ARRAY_ACTIVATIONS ? "activations" : gm_quants[a->format].name;
}

const char *gm_array_op_name(const gm_array *a) { return a->op ? a->op->name : NULL; }

void *gm_array_data(const gm_array *a) {
    return gm_array_is_evaluated(a) && a->buf && !a->buf->device ? array_ptr(a) : NULL;
}

int gm_array_device(const gm_array *a) { return gm_array_is_evaluated(a) && a->buf ? a->buf->device : 0; }

void *gm_array_address(const gm_array *a) { return gm_array_is_evaluated(a) ? array_ptr(a) : NULL; }

gm_status gm_array_pin(gm_array *a, bool *writable) {
    if (!gm_array_is_evaluated(a) || !a->buf)
        return gm_fail(GM_ESTATE, "array: an export needs an evaluated array");
    atomic_fetch_add(&a->buf->pins, 1);
    buffer_forget_mirror(a->buf); /* who has it may write */
    if (writable)
        *writable = a->buf->kind == BUFFER_OWNED && atomic_load(&a->refs) == 1 && atomic_load(&a->buf->refs) == 1;
    return GM_OK;
}

size_t gm_array_memory(const gm_array *a, const void **identity) {
    const gm_buffer *b = gm_array_is_evaluated(a) ? a->buf : NULL;
    *identity = b;
    return !b ? 0 : b->kind == BUFFER_FOREIGN ? (size_t)a->size * array_item(a) : b->bytes;
}

void gm_array_unpin(gm_array *a) { atomic_fetch_sub(&a->buf->pins, 1); }
