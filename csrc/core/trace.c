/* trace.c - the inputs of functions that are being transformed. Invariants in trace.h. */
#include "core/trace.h"
#include <string.h>

static _Thread_local int depth;
static _Thread_local int shapeless;
static _Thread_local uint32_t serial;

int trace_depth(void) { return depth; }
bool trace_shapeless(const gm_array *x) { return shapeless > 0 && x->trace; }
void gm_trace_enter(void) { depth++; }

/* Outside of all traces the numbers may begin again: a walk back from later inputs then looks at more nodes than it
 * needs, no more. */
void gm_trace_leave(void) {
    if (--depth == 0)
        serial = 0;
}
void gm_shapeless_enter(void) { shapeless++; }
void gm_shapeless_leave(void) { shapeless--; }
bool gm_array_is_tracer(const gm_array *a) { return a->trace && depth > 0; }

static gm_status same_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    out->dtype = (gm_dtype)in[0]->dtype;
    out->format = in[0]->format;
    out->ndim = in[0]->ndim;
    memcpy(out->shape, in[0]->shape, (size_t)in[0]->ndim * sizeof(int64_t));
    return GM_OK;
}

static gm_status trace_eval(gm_array *out, gm_queue *q) {
    (void)q;
    array_share(out, out->in[0], out->in[0]->strides, 0);
    return GM_OK;
}

static void trace_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    (void)s;
    (void)out;
    (void)in;
    grad[0] = cotangents[0];
}

static gm_status trace_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)s;
    (void)out;
    (void)batched;
    outs[0] = in[0];
    return GM_OK;
}

const gm_op trace_op = {.name = "trace",
                        .n_in = 1,
                        .n_out = 1,
                        .place = PLACE_INPUT,
                        .infer = same_infer,
                        .eval = trace_eval,
                        .vjp = trace_vjp,
                        .vmap = trace_vmap};

gm_array *gm_tracer(gm_scope *s, gm_array *x) {
    gm_array *a = array_node(s, &trace_op, &x, 1, NULL);
    if (a)
        a->trace = ++serial;
    return a;
}

/* ---- placeholders ---- */
static gm_status placeholder_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)in;
    (void)n_in;
    *out = *(const gm_spec *)param;
    return GM_OK;
}

static gm_status placeholder_eval(gm_array *out, gm_queue *q) {
    (void)out;
    (void)q;
    if (depth > 0)
        return gm_fail(GM_EVALUE, "eval: an array inside a function that is being compiled or vectorised has no value "
                                  "yet; its values cannot be read there");
    return gm_fail(GM_ESTATE, "eval: an array left over from a function that was compiled or vectorised has no value; "
                              "what the function changes must be among the inputs and outputs that compile is given");
}

const gm_op placeholder_op = {.name = "placeholder",
                              .n_in = 0,
                              .n_out = 1,
                              .param_size = sizeof(gm_spec),
                              .infer = placeholder_infer,
                              .eval = placeholder_eval};

gm_array *gm_placeholder(gm_scope *s, gm_dtype type, int ndim, const int64_t *shape) {
    gm_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.dtype = type;
    spec.ndim = ndim;
    memcpy(spec.shape, shape, (size_t)ndim * sizeof *shape);
    gm_array *a = array_node_sized(s, &placeholder_op, NULL, 0, &spec, offsetof(gm_spec, shape));
    if (a)
        a->trace = ++serial;
    return a;
}
