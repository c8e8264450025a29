/* compile.c - making and running compiled graphs.
 *  (1) The code is in an order that can run: operands before their readers.
 *  (2) What does not depend on the inputs stays as the nodes that were traced: they are evaluated once, for all runs.
 *  (3) Equal instructions over equal operands are one; nodes with a payload (custom functions) are never merged. */
#include "transform/compile.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"
#include "core/device.h"

typedef struct {
    gm_graph *g;
    const walk *w;
    operand *of_node; /* of each node of the walk: its output 0 */
    int64_t *same;    /* hash table over instructions: index + 1 */
    int64_t same_size;
    int64_t *constants; /* the same over constants */
    int64_t constants_size;
    size_t constants_capacity; /* of g->constants */
    bool apart;                /* equal scalars stay two constants: readers of the graph know them by name */
} builder;

static uint64_t mix(uint64_t h, uint64_t v) {
    h ^= v + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
    return h * 0xBF58476D1CE4E5B9u;
}

static uint64_t hash_of(const instruction *i) {
    uint64_t h = mix((uint64_t)(uintptr_t)i->node->op, (uint64_t)i->node->dtype << 8 | i->node->device);
    for (int k = 0; k < i->n_in; k++)
        h = mix(h, (uint64_t)(uint32_t)i->in[k]);
    const unsigned char *bytes = i->node->param;
    for (uint32_t k = 0; k < i->node->param_size; k++)
        h = mix(h, bytes[k]);
    return h;
}

static bool equal(const instruction *a, const instruction *b) {
    return a->node->op == b->node->op && a->node->device == b->node->device && a->n_in == b->n_in &&
           a->n_out == b->n_out && memcmp(a->in, b->in, (size_t)a->n_in * sizeof *a->in) == 0 &&
           a->node->param_size == b->node->param_size &&
           (a->node->param_size == 0 || memcmp(a->node->param, b->node->param, a->node->param_size) == 0);
}

/* The instruction that computes the same already; else *at is where it is to be noted. */
static const instruction *find_same(builder *b, const instruction *i, size_t *at) {
    *at = (size_t)hash_of(i) & (size_t)(b->same_size - 1);
    for (; b->same[*at]; *at = (*at + 1) & (size_t)(b->same_size - 1)) {
        const instruction *other = &b->g->code[b->same[*at] - 1];
        if (equal(i, other))
            return other;
    }
    return NULL;
}

/* Scalars that functions are written with (2 * x) come as a node each: equal ones are one constant. */
static bool is_scalar(const gm_array *a) { return a->ndim == 0 && a->dtype < GM_DTYPE_COUNT && gm_array_data(a); }

static bool same_constant(const builder *at, const gm_array *a, const gm_array *b) {
    return a == b || (!at->apart && is_scalar(a) && is_scalar(b) && a->dtype == b->dtype &&
                      memcmp(array_ptr(a), array_ptr(b), array_item(a)) == 0);
}

static uint64_t hash_of_constant(const gm_array *a) {
    uint64_t value = (uint64_t)(uintptr_t)a;
    if (is_scalar(a)) {
        value = a->dtype;
        memcpy((char *)&value, array_ptr(a), array_item(a));
    }
    return mix(a->dtype, value);
}

static size_t constant_place(const builder *b, const gm_array *node) {
    size_t at = (size_t)(hash_of_constant(node) >> 16) & (size_t)(b->constants_size - 1);
    while (b->constants[at] && !same_constant(b, b->g->constants[b->constants[at] - 1], node))
        at = (at + 1) & (size_t)(b->constants_size - 1);
    return at;
}

/* At most half of the table is in use. */
static gm_status grow_table(builder *b) {
    const gm_graph *g = b->g;
    const int64_t size = b->constants_size ? 2 * b->constants_size : 32;
    int64_t *table = memory_zeroed((size_t)size * sizeof *table);
    if (!table)
        return GM_ENOMEM;
    memory_free(b->constants);
    b->constants = table;
    b->constants_size = size;
    for (int64_t i = 0; i < g->n_constants; i++)
        b->constants[constant_place(b, g->constants[i])] = i + 1;
    return GM_OK;
}

static gm_status add_constant(builder *b, gm_array *node, operand *out) {
    gm_graph *g = b->g;
    if (2 * g->n_constants >= b->constants_size)
        GM_TRY(grow_table(b));
    GM_TRY(grow_array(&g->constants, (size_t)g->n_constants, &b->constants_capacity, 1, sizeof *g->constants));
    size_t at = constant_place(b, node);
    if (!b->constants[at]) {
        g->constants[g->n_constants] = gm_retain(node);
        b->constants[at] = ++g->n_constants;
    }
    *out = (operand)-b->constants[at];
    return GM_OK;
}

static gm_status operand_of(builder *b, gm_array *node, operand *out) {
    int64_t at = node == GM_NONE ? -1 : walk_find(b->w, node);
    if (at >= 0 && b->w->reached[at]) {
        *out = b->of_node[at];
        return GM_OK;
    }
    return add_constant(b, node, out);
}

static gm_status add_node(builder *b, int64_t at) {
    gm_graph *g = b->g;
    gm_array *node = b->w->nodes[at];
    if (node->op == &pick_op) {
        GM_TRY(operand_of(b, node->in[0], &b->of_node[at]));
        b->of_node[at] += pick_index(node);
        return GM_OK;
    }
    if (node->op == &trace_op)
        return operand_of(b, node->in[0], &b->of_node[at]);
    instruction *i = &g->code[g->n_code];
    *i = (instruction){.node = node, .n_in = node->n_in, .n_out = array_n_out(node), .first_out = (int)g->n_slots};
    if (!(i->in = memory_zeroed((size_t)(node->n_in + 1) * sizeof *i->in)))
        return GM_ENOMEM;
    gm_status status = GM_OK;
    for (int k = 0; k < node->n_in && status == GM_OK; k++)
        status = operand_of(b, node->in[k], &i->in[k]);
    size_t slot = 0;
    const instruction *same = status == GM_OK && !node->op->drop ? find_same(b, i, &slot) : NULL;
    if (status != GM_OK || same) {
        memory_free(i->in);
        if (same)
            b->of_node[at] = same->first_out;
        return status;
    }
    gm_retain(node);
    b->of_node[at] = i->first_out;
    g->n_slots += i->n_out;
    g->n_code++;
    if (!node->op->drop)
        b->same[slot] = g->n_code;
    return GM_OK;
}

static gm_status build(builder *b, gm_array *const *inputs, gm_array *const *outputs) {
    gm_graph *g = b->g;
    b->same_size = 64;
    while (b->same_size < 2 * b->w->count)
        b->same_size *= 2;
    b->of_node = memory_zeroed((size_t)(b->w->count + 1) * sizeof *b->of_node);
    b->same = memory_zeroed((size_t)b->same_size * sizeof *b->same);
    g->code = memory_zeroed((size_t)(b->w->count + 1) * sizeof *g->code);
    g->inputs = memory_zeroed((size_t)(g->n_inputs + 1) * sizeof *g->inputs);
    g->outputs = memory_zeroed((size_t)(g->n_outputs + 1) * sizeof *g->outputs);
    if (!b->of_node || !b->same || !g->code || !g->inputs || !g->outputs)
        return GM_ENOMEM;
    if (b->w->count > INT32_MAX / 4)
        return gm_fail(GM_EUNSUPPORTED, "compile: a graph of %lld nodes, expected at most %d", (long long)b->w->count,
                       INT32_MAX / 4);
    for (int i = 0; i < g->n_inputs; i++) {
        g->inputs[i] = gm_retain(inputs[i]);
        b->of_node[walk_find(b->w, inputs[i])] = i;
    }
    g->n_slots = g->n_inputs;
    for (int64_t i = b->w->n_inputs; i < b->w->count; i++)
        if (b->w->reached[i])
            GM_TRY(add_node(b, i));
    for (int k = 0; k < g->n_outputs; k++)
        GM_TRY(operand_of(b, outputs[k], &g->outputs[k]));
    return GM_OK;
}

gm_status compile_graph(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs, walk_kind kind,
                        bool shapeless, gm_graph **out) {
    walk w;
    *out = NULL;
    GM_TRY(walk_make(outputs, n_outputs, inputs, n_inputs, kind, &w));
    gm_graph *g = memory_zeroed(sizeof *g);
    builder b = {.g = g, .w = &w, .apart = kind == WALK_ALL};
    gm_status status = GM_ENOMEM;
    if (g) {
        g->n_inputs = n_inputs;
        g->n_outputs = n_outputs;
        g->shapeless = shapeless;
        status = build(&b, inputs, outputs);
    }
    memory_free(b.of_node);
    memory_free(b.same);
    memory_free(b.constants);
    walk_free(&w);
    if (status != GM_OK) {
        gm_graph_free(g);
        return status;
    }
    *out = g;
    return GM_OK;
}

gm_status gm_graph_new(gm_array *const *inputs, int n_inputs, gm_array *const *outputs, int n_outputs, bool shapeless,
                       gm_graph **out) {
    return compile_graph(inputs, n_inputs, outputs, n_outputs, WALK_VALUES, shapeless, out);
}

void gm_graph_free(gm_graph *g) {
    if (!g)
        return;
    for (int64_t i = 0; i < g->n_code; i++) {
        gm_release(g->code[i].node);
        memory_free(g->code[i].in);
        memory_free(g->code[i].steps);
    }
    for (int64_t i = 0; i < g->n_constants; i++)
        gm_release(g->constants[i]);
    for (int i = 0; g->inputs && i < g->n_inputs; i++)
        gm_release(g->inputs[i]);
    memory_free(g->code);
    memory_free(g->constants);
    memory_free(g->inputs);
    memory_free(g->outputs);
    memory_free(g);
}

int gm_graph_outputs(const gm_graph *g) { return g->n_outputs; }

bool gm_graph_captures_tracer(const gm_graph *g) {
    for (int64_t i = 0; i < g->n_constants; i++)
        if (gm_array_is_tracer(g->constants[i]))
            return true;
    return false;
}

/* ---- running ---- */
static gm_array *value_of(const gm_graph *g, gm_array *const *slots, operand o) {
    return o >= 0 ? slots[o] : g->constants[-1 - o];
}

static gm_status run_one(gm_scope *s, const gm_graph *g, const instruction *i, gm_array **slots) {
    gm_array *few[32], **in = i->n_in <= 32 ? few : memory_array((size_t)i->n_in, sizeof *in);
    if (!in)
        return error_code();
    for (int k = 0; k < i->n_in; k++)
        in[k] = value_of(g, slots, i->in[k]);
    gm_status status = GM_OK;
    gm_array **outs = slots + i->first_out;
    const int before = i->node ? array_enter(i->node) : device_enter(i->device);
    if (!i->node)
        outs[0] = fused_chain(s, i->steps, i->n_steps, in, i->n_in);
    else if (g->shapeless)
        status = compile_reshaped(s, i->node, in, outs);
    else
        status = array_nodes(s, i->node->op, in, i->n_in, i->node->param, i->node->param_size, i->n_out, outs);
    device_enter(before);
    if (in != few)
        memory_free(in);
    return status == GM_OK && !outs[0] ? error_code() : status;
}

static gm_status check_input(const gm_graph *g, int k, const gm_array *x) {
    const gm_array *traced = g->inputs[k];
    bool fits = x->ndim == traced->ndim && x->dtype == traced->dtype;
    for (int d = 0; d < x->ndim && fits && !g->shapeless; d++)
        fits = x->shape[d] == traced->shape[d];
    if (fits)
        return GM_OK;
    char got[128], want[128];
    array_text(x, got);
    array_text(traced, want);
    return gm_fail(GM_EVALUE, "a traced function was given %s as input %d; it was traced with %s", got, k, want);
}

gm_status gm_graph_call(gm_scope *s, const gm_graph *g, gm_array *const *inputs, int n_inputs, gm_array **outs) {
    if (n_inputs != g->n_inputs)
        return gm_fail(GM_EVALUE, "a traced function was given %d arrays; it was traced with %d", n_inputs,
                       g->n_inputs);
    gm_array **slots = memory_zeroed((size_t)(g->n_slots + 1) * sizeof *slots);
    gm_status status = slots ? GM_OK : GM_ENOMEM;
    for (int k = 0; k < n_inputs && status == GM_OK; k++) {
        status = check_input(g, k, inputs[k]);
        slots[k] = inputs[k];
    }
    for (int64_t i = 0; i < g->n_code && status == GM_OK; i++)
        status = run_one(s, g, &g->code[i], slots);
    for (int k = 0; k < g->n_outputs && status == GM_OK; k++) {
        outs[k] = value_of(g, slots, g->outputs[k]);
        if (g->outputs[k] < 0 && !gm_scope_keep(s, outs[k])) /* a constant outlives the graph */
            status = error_code();
    }
    memory_free(slots);
    return status;
}
