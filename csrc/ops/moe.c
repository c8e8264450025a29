/* moe.c - mixtures of experts: which experts a token goes to. */
#include <string.h>
#include "ops/ops.h"

/* ---- routing. Source: Shazeer et al., Outrageously Large Neural Networks, 2017. ---- */
typedef struct { int32_t k, normalise; } route_param;
static const gm_field route_fields[] = {{FIELD_INT, offsetof(route_param, k), "k", 1},
                                        {FIELD_INT, offsetof(route_param, normalise), "normalise", 1}, {0}};

static gm_status route_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const route_param *p = param;
    const gm_array *logits = in[0], *scale = in[1];
    char a[128], b[128];
    array_text(logits, a);
    if (logits->dtype != GM_FLOAT32 || logits->ndim != 2)
        return gm_fail(GM_ESHAPE, "route: logits are %s, expected float32 [n, experts]", a);
    if (p->k < 1 || p->k > GM_ROUTE_MOST || p->k > logits->shape[1])
        return gm_fail(GM_EVALUE, "route: %d experts of logits %s, expected 1 up to all, at most %d", p->k, a,
                       GM_ROUTE_MOST);
    if (logits->shape[1] > INT32_MAX)
        return gm_fail(GM_EVALUE, "route: logits are %s, too many experts", a);
    if (!array_is_none(scale) &&
        (scale->dtype != GM_FLOAT32 || scale->ndim != 1 || scale->shape[0] != logits->shape[1])) {
        array_text(scale, b);
        return gm_fail(GM_ESHAPE, "route: scale is %s for logits %s", b, a);
    }
    for (int i = 0; i < 2; i++) {
        out[i].dtype = i ? GM_FLOAT32 : GM_INT32;
        out[i].ndim = 2;
        out[i].shape[0] = logits->shape[0];
        out[i].shape[1] = p->k;
    }
    return GM_OK;
}

static gm_status route_eval(gm_array *out, gm_queue *q) {
    const route_param *p = out->param;
    const gm_array *scale = out->in[1];
    gm_array *weights = array_output(out, 1);
    const int64_t rows = out->in[0]->shape[0], experts = out->in[0]->shape[1];
    const float *logits, *scale_data = NULL;
    GM_TRY(float_operand(q, out->in[0], &logits));
    if (!array_is_none(scale))
        GM_TRY(float_operand(q, scale, &scale_data));
    GM_TRY(array_alloc(out, q));
    GM_TRY(array_alloc(weights, q));
    return LAUNCH(q, route, rows, 1 + 8192 / (experts + 1), 0, .ids = array_ptr(out), .weights = array_ptr(weights),
                  .logits = logits, .scale = scale_data, .experts = experts, .k = p->k, .normalise = p->normalise != 0);
}

const gm_op route_op = {.name = "route", .n_in = 2, .n_out = 2, .nondiff = 3, .param_size = sizeof(route_param),
                        .fields = route_fields, .infer = route_infer, .eval = route_eval, .optional = 2};

gm_array *gm_route(gm_scope *s, gm_array *logits, int k, bool normalise, gm_array *scale, gm_array **ids,
                   gm_array **weights) {
    gm_array *in[2] = {logits, scale}, *outs[2] = {NULL, NULL};
    route_param p = {k, normalise};
    if (!logits || !scale || array_nodes(s, &route_op, in, 2, &p, sizeof p, 2, outs) != GM_OK)
        outs[0] = outs[1] = NULL;
    *ids = outs[0];
    *weights = outs[1];
    return outs[0];
}
