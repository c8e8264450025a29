/* create.c - arrays from numbers: arange, full. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

typedef struct { double start, step; int64_t count; int32_t type; int32_t unused; } arange_param;
static const gm_field arange_fields[] = {{FIELD_DOUBLE, offsetof(arange_param, start), "start", 1},
                                         {FIELD_DOUBLE, offsetof(arange_param, step), "step", 1},
                                         {FIELD_INT64, offsetof(arange_param, count), "count", 1},
                                         {FIELD_INT, offsetof(arange_param, type), "dtype", 1}, {0}};

static gm_status arange_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)in;
    (void)n_in;
    const arange_param *p = param;
    out->dtype = (gm_dtype)p->type;
    out->ndim = 1;
    out->shape[0] = p->count;
    return GM_OK;
}

static gm_status arange_eval(gm_array *out, gm_queue *q) {
    const arange_param *p = out->param;
    GM_TRY(array_alloc(out, q));
    return LAUNCH(q, arange, out->size, GRAIN, 0, .out = array_ptr(out), .type = out->dtype, .start = p->start,
                  .step = p->step);
}

const gm_op arange_op = {.name = "arange", .n_in = 0, .n_out = 1, .param_size = sizeof(arange_param),
                                .fields = arange_fields, .infer = arange_infer, .eval = arange_eval};

gm_array *gm_arange(gm_scope *s, double start, double stop, double step, gm_dtype type) {
    arange_param p;
    if (type == GM_BOOL || type >= GM_DTYPE_COUNT)
        return gm_fail(GM_EVALUE, "arange: dtype %s has no range", gm_dtype_name(type)), NULL;
    if (step == 0 || isnan(start) || isnan(stop) || isnan(step))
        return gm_fail(GM_EVALUE, "arange: start %g, stop %g, step %g do not make a range", start, stop, step), NULL;
    double count = ceil((stop - start) / step);
    if (count > 4.6e18 || (isinf(start) || isinf(stop)))
        return gm_fail(GM_EVALUE, "arange: %g values are more than an array can hold", count), NULL;
    memset(&p, 0, sizeof p);
    p.start = start;
    p.step = step;
    p.count = count > 0 ? (int64_t)count : 0;
    p.type = (int32_t)type;
    return array_node(s, &arange_op, NULL, 0, &p);
}

/* A broadcast made contiguous: full arrays are written to and exported, so they get memory of their own. */
gm_array *gm_full(gm_scope *s, int ndim, const int64_t *shape, gm_array *value, gm_dtype type) {
    return gm_contiguous(s, gm_broadcast_to(s, gm_astype(s, value, type), ndim, shape));
}
