/* exchange.c - arrays that other processes send, or take part in. What carries them is above the engine: one function,
 * which is called when such a node runs, on any thread.
 *  (1) Nodes of this op run one at a time, in the order in which they were recorded: all write `turn`.
 *  (2) The function is set once, before the first node is made.
 *  (3) On a device that lends its line the launch begins work there, and may wait for it. */
#include <string.h>
#include "core/array.h"
#include "core/queue.h"

#define CAUSE_BYTES 1024

typedef struct {
    gm_exchange what;
    int32_t dtype, ndim;
    int64_t shape[GM_MAX_NDIM]; /* as many as there are dimensions */
} exchange_param;
static const gm_field exchange_fields[] = {{FIELD_INT64, offsetof(exchange_param, what.serial), "serial", 1},
                                           {FIELD_INT, offsetof(exchange_param, what.kind), "kind", 1},
                                           {FIELD_INT, offsetof(exchange_param, what.group), "group", 1},
                                           {FIELD_INT, offsetof(exchange_param, what.peer), "peer", 1},
                                           {0}};

typedef struct {
    gm_exchange_call call;
    int32_t *failed;
} exchange_args;

static _Atomic(gm_exchange_fn) carrier;
static gm_buffer *turn; /* under the run lock */

void gm_exchange_carrier(gm_exchange_fn fn) { atomic_store(&carrier, fn); }

static void carry(const void *args, int64_t begin, int64_t end) {
    const exchange_args *a = args;
    (void)begin;
    (void)end;
    if (atomic_load(&carrier)(&a->call))
        return;
    memset(a->call.out, 0, a->call.out_bytes);
    __atomic_store_n(a->failed, 1, __ATOMIC_RELAXED);
}

static void carry_on_device(const void *args, void *line) {
    const exchange_args *a = args;
    gm_exchange_call call = a->call;
    call.line = line;
    if (!atomic_load(&carrier)(&call))
        __atomic_store_n(a->failed, 1, __ATOMIC_RELAXED);
}

static gm_status exchange_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const exchange_param *p = param;
    (void)in;
    (void)n_in;
    out->dtype = (gm_dtype)p->dtype;
    out->ndim = p->ndim;
    memcpy(out->shape, p->shape, (size_t)p->ndim * sizeof *p->shape);
    return GM_OK;
}

static gm_status exchange_eval(gm_array *out, gm_queue *q) {
    const exchange_param *p = out->param;
    const gm_array *x = out->in[0] == GM_NONE ? NULL : out->in[0];
    if (x && !array_is_contiguous(x))
        return gm_fail(GM_ESTATE, "exchange: expected a contiguous array");
    const int number = queue_device(q);
    if (number && !device_can_lend(device_get(number)))
        return queue_lack(q, "exchange");
    if (!turn && !(turn = buffer_new(64)))
        return error_code();
    GM_TRY(array_alloc(out, q));
    if (!number)
        GM_TRY(queue_writes(q, turn));
    char *cause = queue_arena(q, CAUSE_BYTES);
    int32_t *failed = cause ? queue_flag(q, cause) : NULL;
    if (!failed)
        return error_code();
    memset(cause, 0, CAUSE_BYTES);
    exchange_args args = {.call = {.what = p->what,
                                   .type = (gm_dtype)p->dtype,
                                   .ndim = p->ndim,
                                   .in = x ? array_ptr(x) : NULL,
                                   .in_bytes = x ? (size_t)x->size * array_item(x) : 0,
                                   .out = array_ptr(out),
                                   .out_bytes = (size_t)out->size * array_item(out),
                                   .cause = cause,
                                   .cause_bytes = CAUSE_BYTES,
                                   .device = number},
                          .failed = failed};
    memcpy(args.call.shape, p->shape, (size_t)p->ndim * sizeof *p->shape);
    return number ? queue_lend(q, carry_on_device, &args, sizeof args)
                  : queue_launch(q, carry, &args, sizeof args, 1, 1, 0);
}

static const gm_op exchange_op = {.name = "exchange",
                                  .n_in = 1,
                                  .n_out = 1,
                                  .optional = 1,
                                  .place = PLACE_HOST,
                                  .waits = true,
                                  .param_size = sizeof(exchange_param),
                                  .fields = exchange_fields,
                                  .infer = exchange_infer,
                                  .eval = exchange_eval};

static const gm_op exchange_here_op = {.name = "exchange",
                                       .n_in = 1,
                                       .n_out = 1,
                                       .optional = 1,
                                       .waits = true,
                                       .param_size = sizeof(exchange_param),
                                       .fields = exchange_fields,
                                       .infer = exchange_infer,
                                       .eval = exchange_eval};

gm_array *gm_exchange_array(gm_scope *s, gm_array *x, const gm_exchange *what, gm_dtype type, int ndim,
                            const int64_t *shape) {
    exchange_param p;
    if (!atomic_load(&carrier))
        return gm_fail(GM_ESTATE, "exchange: nothing carries it"), NULL;
    if (ndim > GM_MAX_NDIM || type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "exchange: an array of %d dimensions is not supported", ndim), NULL;
    memset(&p, 0, sizeof p);
    p.what = *what;
    p.dtype = (int32_t)type;
    p.ndim = ndim;
    memcpy(p.shape, shape, (size_t)ndim * sizeof *shape);
    return array_node_sized(s, what->here ? &exchange_here_op : &exchange_op, &x, 1, &p,
                            offsetof(exchange_param, shape) + (size_t)ndim * sizeof *shape);
}
