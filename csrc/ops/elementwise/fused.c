/* fused.c - a chain of elementwise steps as one node: what compile makes of elementwise parts of a graph. */
#include <assert.h>
#include <string.h>
#include "ops/ops.h"

typedef struct {
    int32_t n_steps;
    int32_t unused;
    gm_fused_step steps[GM_FUSED_STEPS];
} fused_param;
static const gm_field fused_fields[] = {{FIELD_INT, offsetof(fused_param, n_steps), "n_steps", 1}, {0}};

static gm_status fused_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    const fused_param *p = param;
    gm_spec shape = {.ndim = 0};
    for (int i = 0; i < n_in; i++) {
        gm_array so_far = {.ndim = (int16_t)shape.ndim, .shape = shape.shape};
        gm_spec next;
        GM_TRY(broadcast_shape("compile", &so_far, in[i], &next));
        shape.ndim = next.ndim;
        memcpy(shape.shape, next.shape, (size_t)next.ndim * sizeof *next.shape);
    }
    out->dtype = (gm_dtype)p->steps[p->n_steps - 1].out_type;
    out->ndim = shape.ndim;
    memcpy(out->shape, shape.shape, (size_t)shape.ndim * sizeof *shape.shape);
    return GM_OK;
}

/* Dimensions merged where all inputs allow it. */
static int merge(int ndim, int64_t *shape, int n, int64_t (*strides)[GM_MAX_NDIM]) {
    int m = 0;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1)
            continue;
        bool joins = m > 0;
        for (int i = 0; i < n && joins; i++)
            joins = strides[i][m - 1] == strides[i][d] * shape[d];
        m += !joins;
        shape[m - 1] = joins ? shape[m - 1] * shape[d] : shape[d];
        for (int i = 0; i < n; i++)
            strides[i][m - 1] = strides[i][d];
    }
    if (m == 0) { /* one element */
        shape[0] = 1;
        for (int i = 0; i < n; i++)
            strides[i][0] = 1;
        m = 1;
    }
    return m;
}

static gm_status fused_eval(gm_array *out, gm_queue *q) {
    const fused_param *p = out->param;
    int64_t shape[GM_MAX_NDIM], strides[GM_FUSED_INPUTS][GM_MAX_NDIM];
    gm_fused_args a = {.n_inputs = out->n_in, .n_steps = p->n_steps, .out_type = out->dtype};
    memcpy(shape, out->shape, (size_t)out->ndim * sizeof *shape);
    for (int i = 0; i < out->n_in; i++) {
        broadcast_strides(out->in[i], out->ndim, strides[i]);
        a.inputs[i] = array_ptr(out->in[i]);
        a.input_types[i] = (int16_t)out->in[i]->dtype;
    }
    a.ndim = merge(out->ndim, shape, out->n_in, strides);
    const size_t row = (size_t)a.ndim * sizeof(int64_t), steps = (size_t)p->n_steps * sizeof *p->steps;
    char *memory = queue_arena(q, row * (1 + (size_t)out->n_in) + steps);
    if (!memory)
        return error_code();
    a.shape = memcpy(memory, shape, row);
    for (int i = 0; i < out->n_in; i++)
        a.strides[i] = memcpy(memory + row * (1 + (size_t)i), strides[i], row);
    a.steps = memcpy(memory + row * (1 + (size_t)out->n_in), p->steps, steps);
    /* An input of the output's shape and item size may give its memory: a tile is read before it is written. */
    int donor = -1;
    for (int i = 0; i < out->n_in && donor < 0; i++)
        if (out->in[i]->size == out->size && array_item(out->in[i]) == array_item(out))
            donor = i;
    GM_TRY(donor < 0 || a.ndim > 1 ? array_alloc(out, q) : array_alloc_like(out, q, donor));
    a.out = array_ptr(out);
    return DISPATCH_ARGS(q, fused, out->size, &a);
}

static gm_array *fused_compose(gm_scope *s, gm_array *const *in, int n_in, const void *param) {
    const fused_param *p = param;
    gm_array *values[GM_FUSED_INPUTS + GM_FUSED_STEPS];
    memcpy(values, in, (size_t)n_in * sizeof *in);
    for (int k = 0; k < p->n_steps; k++) {
        const gm_fused_step *step = &p->steps[k];
        gm_array *operands[3] = {values[step->in[0]], values[step->in[1]], values[step->in[2]]};
        if (!(values[n_in + step->out] = elementwise_node(s, step, operands)))
            return NULL;
    }
    return values[n_in + p->steps[p->n_steps - 1].out];
}

const gm_op fused_op = {.name = "fused",
                        .n_in = -1,
                        .n_out = 1,
                        .param_size = sizeof(fused_param),
                        .fields = fused_fields,
                        .infer = fused_infer,
                        .eval = fused_eval,
                        .compose = fused_compose};

static_assert(GM_GRAPH_TITLES >= GM_FUSED_STEPS + GM_FUSED_INPUTS, "a title for each step and each input");

typedef struct {
    const gm_array *node;
    const char **titles;
    int count;
    uint64_t steps;  /* those that are named */
    uint32_t inputs; /* those that are met */
} namer;

/* What a step reads comes before it, from left to right: recursion as deep as a chain is long. */
static void name_step(namer *n, int k) {
    const gm_array *node = n->node;
    const fused_param *p = node->param;
    const gm_fused_step *step = &p->steps[k];
    const int operands = step->kind == GM_FUSED_BINARY ? 2 : step->kind == GM_FUSED_SELECT ? 3 : 1;
    if (n->steps >> k & 1)
        return;
    n->steps |= UINT64_C(1) << k;
    for (int j = 0; j < operands; j++) {
        const int at = step->in[j];
        if (at >= node->n_in) {
            int maker = k - 1;
            while (maker > 0 && p->steps[maker].out != at - node->n_in)
                maker--;
            name_step(n, maker);
        } else if (!(n->inputs >> at & 1)) {
            const gm_array *x = node->in[at];
            n->inputs |= 1u << at;
            if (x->ndim != node->ndim || memcmp(x->shape, node->shape, (size_t)x->ndim * sizeof *x->shape) != 0)
                n->titles[n->count++] = broadcast_to_op.name;
        }
    }
    n->titles[n->count++] = elementwise_title(step);
}

int fused_titles(const gm_array *node, const char **titles) {
    namer n = {.node = node, .titles = titles};
    name_step(&n, ((const fused_param *)node->param)->n_steps - 1);
    return n.count;
}

gm_array *fused_chain(gm_scope *s, const gm_fused_step *steps, int n_steps, gm_array *const *inputs, int n_inputs) {
    fused_param p;
    memset(&p, 0, sizeof p);
    p.n_steps = n_steps;
    memcpy(p.steps, steps, (size_t)n_steps * sizeof *steps);
    return array_node_sized(s, &fused_op, inputs, n_inputs, &p,
                            offsetof(fused_param, steps) + (size_t)n_steps * sizeof *steps);
}
