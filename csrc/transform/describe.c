/* describe.c - a graph as it is printed. */
#include <string.h>
#include "transform/compile.h"

int gm_graph_inputs(const gm_graph *g) { return g->n_inputs; }
const gm_array *gm_graph_input(const gm_graph *g, int k) { return g->inputs[k]; }
const int32_t *gm_graph_output_operands(const gm_graph *g) { return g->outputs; }
int64_t gm_graph_constants(const gm_graph *g) { return g->n_constants; }
gm_array *gm_graph_constant(const gm_graph *g, int64_t k) { return g->constants[k]; }
int64_t gm_graph_instructions(const gm_graph *g) { return g->n_code; }
const gm_array *gm_graph_result(const gm_graph *g, int64_t i, int k) { return array_output(g->code[i].node, k); }

/* Field k that is shown; NULL after the last. The function is shown by the title. */
static const gm_field *field_at(const gm_op *op, int k) {
    for (const gm_field *f = op->fields; f && f->name; f++)
        if (!(op->title && strcmp(f->name, "function") == 0) && k-- == 0)
            return f;
    return NULL;
}

static int count_fields(const gm_op *op) {
    int n = 0;
    while (field_at(op, n))
        n++;
    return n;
}

gm_instruction gm_graph_instruction(const gm_graph *g, int64_t i) {
    const instruction *at = &g->code[i];
    const gm_op *op = at->node->op;
    return (gm_instruction){op->title ? op->title(at->node->param) : op->name,
                            at->n_in,
                            at->n_out,
                            at->first_out,
                            at->in,
                            count_fields(op)};
}

int gm_graph_titles(const gm_graph *g, int64_t i, const char *titles[GM_GRAPH_TITLES]) {
    const gm_array *node = g->code[i].node;
    return node->op == &fused_op ? fused_titles(node, titles) : 0;
}

static size_t item_size(gm_field_kind kind) {
    switch (kind) {
    case FIELD_INT8: return 1;
    case FIELD_INT:
    case FIELD_FLOAT: return 4;
    default: return 8;
    }
}

/* How many items of a field a node has: lists are as long as there are dimensions. */
static int count_items(const gm_array *node, const gm_field *f, size_t capacity) {
    int ndim = node->ndim, count = f->count;
    for (int k = 0; k < node->n_in; k++)
        ndim = node->in[k]->ndim > ndim ? node->in[k]->ndim : ndim;
    if (count >= GM_MAX_NDIM)
        count = count / GM_MAX_NDIM * ndim;
    return (size_t)count > capacity ? (int)capacity : count;
}

void gm_graph_parameter(const gm_graph *g, int64_t i, int k, gm_parameter *out) {
    const gm_array *node = g->code[i].node;
    const gm_field *f = field_at(node->op, k);
    const size_t item = item_size(f->kind), bytes = node->param_size > f->offset ? node->param_size - f->offset : 0;
    const char *at = (const char *)node->param + f->offset;
    out->name = f->name;
    out->is_list = f->count != 1;
    out->is_real = f->kind == FIELD_FLOAT || f->kind == FIELD_DOUBLE;
    out->count = count_items(node, f, bytes / item < 256 ? bytes / item : 256);
    for (int j = 0; j < out->count; j++, at += item) {
        int8_t i8;
        int32_t i32;
        float f32;
        switch (f->kind) {
        case FIELD_INT8:
            memcpy(&i8, at, 1);
            out->integers[j] = i8;
            break;
        case FIELD_INT:
            memcpy(&i32, at, 4);
            out->integers[j] = i32;
            break;
        case FIELD_FLOAT:
            memcpy(&f32, at, 4);
            out->reals[j] = (double)f32;
            break;
        case FIELD_DOUBLE: memcpy(&out->reals[j], at, 8); break;
        default: memcpy(&out->integers[j], at, 8);
        }
    }
}
