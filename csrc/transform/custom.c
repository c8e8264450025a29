/* custom.c - a function with rules of its own. The node's inputs are the function's inputs and then its outputs, which
 * were made already; its own outputs are the latter. */
#include <string.h>
#include "base/memory.h"
#include "transform/walk.h"

typedef struct {
    gm_closure closure;
    _Atomic int32_t refs;
} shared;
typedef struct {
    _Atomic(shared *) shared;
    int32_t n_inputs, n_outputs;
} custom_param;
static const gm_field custom_fields[] = {{FIELD_INT, offsetof(custom_param, n_inputs), "n_inputs", 1},
                                         {FIELD_INT, offsetof(custom_param, n_outputs), "n_outputs", 1},
                                         {0}};

static gm_status custom_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const custom_param *p = param;
    for (int k = 0; k < p->n_outputs; k++)
        spec_like(&out[k], in[p->n_inputs + k], (gm_dtype)in[p->n_inputs + k]->dtype);
    return GM_OK;
}

static gm_status custom_eval(gm_array *out, gm_queue *q) {
    (void)q;
    const custom_param *p = out->param;
    for (int k = 0; k < p->n_outputs; k++) {
        const gm_array *from = out->in[p->n_inputs + k];
        array_share(array_output(out, k), from, from->strides, 0);
    }
    return GM_OK;
}

/* A rule that fails without a cause in the slot has one of its own (a Python exception). */
static gm_status ruled(gm_status status) {
    return status != GM_OK && error_code() == GM_OK ? gm_fail(status, "custom function: its rule failed") : status;
}

/* What a rule gave belongs to `like`: its dtype, and its shape, or one that broadcasts to it (a scalar 0). */
static gm_array *belonging(gm_scope *s, gm_array *given, const gm_array *like, const char *rule, int at) {
    bool fits = given->ndim <= like->ndim && given->dtype < GM_DTYPE_COUNT;
    for (int i = 0; fits && i < given->ndim; i++)
        fits = given->shape[i] == 1 || given->shape[i] == like->shape[like->ndim - given->ndim + i];
    if (!fits) {
        char tg[128], tl[128];
        shape_text(given->ndim, given->shape, tg);
        shape_text(like->ndim, like->shape, tl);
        return gm_fail(GM_ESHAPE, "custom function: its %s gave shape %s as number %d, expected %s", rule, tg, at, tl),
               NULL;
    }
    given = gm_astype(s, given, (gm_dtype)like->dtype);
    const bool same = given && given->ndim == like->ndim &&
                      memcmp(given->shape, like->shape, (size_t)like->ndim * sizeof *like->shape) == 0;
    return same ? given : gm_broadcast_to(s, given, like->ndim, like->shape);
}

static void custom_vjp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *cotangents, gm_array **grad) {
    const custom_param *p = out->param;
    const gm_closure *c = &atomic_load(&p->shared)->closure;
    if (!c->vjp) {
        for (int k = 0; k < p->n_outputs; k++)
            grad[p->n_inputs + k] = cotangents[k];
        return;
    }
    gm_array **all = memory_array((size_t)p->n_outputs * 2, sizeof *all);
    if (!all)
        return;
    for (int k = 0; k < p->n_outputs; k++) {
        const gm_array *o = array_output(out, k);
        all[k] = cotangents[k] ? cotangents[k]
                               : gm_full(s, o->ndim, o->shape, scalar_array(s, 0, GM_FLOAT32), (gm_dtype)o->dtype);
        all[p->n_outputs + k] = in[p->n_inputs + k];
    }
    if (ruled(c->vjp(c->payload, s, (gm_arrays){in, p->n_inputs}, all, (gm_arrays){all + p->n_outputs, p->n_outputs},
                     grad)) == GM_OK)
        for (int i = 0; i < p->n_inputs; i++)
            grad[i] = grad[i] ? belonging(s, grad[i], in[i], "vjp", i) : NULL;
    memory_free(all);
}

static gm_status custom_jvp(gm_scope *s, gm_array *out, gm_array *const *in, gm_array *const *tangents,
                            gm_array **outs) {
    const custom_param *p = out->param;
    const gm_closure *c = &atomic_load(&p->shared)->closure;
    if (c->jvp) {
        GM_TRY(ruled(c->jvp(c->payload, s, in, tangents, p->n_inputs, p->n_outputs, outs)));
        for (int k = 0; k < p->n_outputs; k++)
            if (outs[k] && !(outs[k] = belonging(s, outs[k], array_output(out, k), "jvp", k)))
                return error_code();
        return GM_OK;
    }
    for (int k = 0; k < p->n_outputs; k++)
        outs[k] = tangents[p->n_inputs + k];
    return GM_OK;
}

static gm_status custom_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    const custom_param *p = out->param;
    const gm_closure *c = &atomic_load(&p->shared)->closure;
    int64_t batch = batch_size(in, out->n_in, batched);
    if (c->vmap) {
        GM_TRY(ruled(c->vmap(c->payload, s, in, batched, p->n_inputs, p->n_outputs, outs)));
        for (int k = 0; k < p->n_outputs; k++) {
            const gm_array *o = array_output(out, k);
            int64_t shape[GM_MAX_NDIM + 1] = {batch};
            memcpy(shape + 1, o->shape, (size_t)o->ndim * sizeof *shape);
            const gm_array like = {
                .ndim = (int16_t)(o->ndim + 1), .dtype = o->dtype, .shape = shape, .size = batch * o->size};
            if (outs[k] && !(outs[k] = belonging(s, outs[k], &like, "vmap", k)))
                return error_code();
        }
        return GM_OK;
    }
    for (int k = 0; k < p->n_outputs; k++)
        outs[k] = batched_input(s, in[p->n_inputs + k], batched[p->n_inputs + k], batch);
    return GM_OK;
}

static void custom_hold(void *param) { atomic_fetch_add(&atomic_load(&((custom_param *)param)->shared)->refs, 1); }

static void custom_drop(void *param) {
    shared *sh = atomic_exchange(&((custom_param *)param)->shared, NULL);
    if (sh && atomic_fetch_sub(&sh->refs, 1) == 1) {
        sh->closure.free(sh->closure.payload);
        memory_free(sh);
    }
}

const gm_op custom_op = {.name = "custom",
                         .shares = true,
                         .n_in = -1,
                         .n_out = -1,
                         .param_size = sizeof(custom_param),
                         .fields = custom_fields,
                         .infer = custom_infer,
                         .eval = custom_eval,
                         .vjp = custom_vjp,
                         .jvp = custom_jvp,
                         .vmap = custom_vmap,
                         .hold = custom_hold,
                         .drop = custom_drop};

gm_status gm_custom(gm_scope *s, const gm_closure *closure, gm_array *const *inputs, int n_inputs,
                    gm_array *const *outputs, int n_outputs, gm_array **results) {
    custom_param p;
    memset(&p, 0, sizeof p);
    gm_array **in = memory_array((size_t)n_inputs + (size_t)n_outputs + 1, sizeof *in);
    shared *sh = in ? memory_zeroed(sizeof *sh) : NULL;
    if (!sh || n_outputs < 1) {
        memory_free(in);
        memory_free(sh);
        closure->free(closure->payload);
        return n_outputs < 1 ? gm_fail(GM_EVALUE, "custom function: it has no outputs") : GM_ENOMEM;
    }
    sh->closure = *closure;
    atomic_init(&sh->refs, 1);
    atomic_init(&p.shared, sh);
    p.n_inputs = n_inputs;
    p.n_outputs = n_outputs;
    memcpy(in, inputs, (size_t)n_inputs * sizeof *in);
    memcpy(in + n_inputs, outputs, (size_t)n_outputs * sizeof *in);
    gm_status status = array_nodes(s, &custom_op, in, n_inputs + n_outputs, &p, sizeof p, n_outputs, results);
    custom_drop(&p); /* the reference of this function */
    memory_free(in);
    return status;
}
