/* fuse.c - elementwise instructions of a compiled graph joined into chains.
 * A group grows from a root towards its operands: an instruction joins the group of its readers when all of them are in
 * that one group and it has the root's shape. So a chain has one result, and nothing is computed twice. */
#include <string.h>
#include "base/memory.h"
#include "transform/compile.h"

typedef struct {
    gm_graph *g;
    int64_t *maker; /* of each slot: the instruction, -1 for inputs */
    int64_t *group; /* of each instruction: the group that its readers agree on; NONE, MANY */
    int64_t *size;  /* of each root's group: members so far */
} fuser;

enum { NONE = -1, MANY = -2 };

static bool is_step(const instruction *i, gm_fused_step *step) {
    return i->node && i->n_out == 1 && elementwise_step(i->node, step);
}

static bool same_shape(const gm_array *a, const gm_array *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static void read_by(fuser *f, operand o, int64_t group) {
    if (o < 0 || f->maker[o] < 0)
        return;
    int64_t *known = &f->group[f->maker[o]];
    *known = *known == NONE || *known == group ? group : MANY;
}

/* After this, group[i] is the root that i computes for (itself for a root). */
static void make_groups(fuser *f) {
    gm_graph *g = f->g;
    gm_fused_step step;
    for (int k = 0; k < g->n_outputs; k++)
        read_by(f, g->outputs[k], MANY);
    for (int64_t i = g->n_code - 1; i >= 0; i--) {
        const instruction *at = &g->code[i];
        int64_t root = f->group[i];
        bool elementwise = is_step(at, &step);
        bool joins = elementwise && root >= 0 && same_shape(at->node, g->code[root].node) &&
                     at->node->device == g->code[root].node->device && f->size[root] < GM_FUSED_REGISTERS;
        f->group[i] = joins ? root : i;
        f->size[f->group[i]]++;
        for (int k = 0; k < at->n_in; k++)
            read_by(f, at->in[k], elementwise ? f->group[i] : MANY);
    }
}

typedef struct {
    gm_fused_step steps[GM_FUSED_STEPS];
    int n_steps;
    operand inputs[GM_FUSED_INPUTS];
    int n_inputs;
    int64_t member[GM_FUSED_STEPS]; /* the instruction of each step; its result is register number of the step */
} chain;

static bool chain_operand(const fuser *f, chain *c, int64_t root, operand o, int16_t *out) {
    if (o >= 0 && f->maker[o] >= 0 && f->group[f->maker[o]] == root) {
        for (int k = 0; k < c->n_steps; k++) {
            if (c->member[k] == f->maker[o]) {
                *out = (int16_t)(GM_FUSED_INPUTS + k); /* made right when the number of inputs is known */
                return true;
            }
        }
        return false;
    }
    for (int k = 0; k < c->n_inputs; k++) {
        if (c->inputs[k] == o) {
            *out = (int16_t)k;
            return true;
        }
    }
    if (c->n_inputs == GM_FUSED_INPUTS)
        return false;
    *out = (int16_t)c->n_inputs;
    c->inputs[c->n_inputs++] = o;
    return true;
}

static bool make_chain(const fuser *f, int64_t root, int64_t first, chain *c) {
    c->n_steps = c->n_inputs = 0;
    for (int64_t i = first; i <= root; i++) {
        if (f->group[i] != root)
            continue;
        gm_fused_step *step = &c->steps[c->n_steps];
        is_step(&f->g->code[i], step);
        step->out = (int16_t)c->n_steps;
        for (int k = 0; k < f->g->code[i].n_in; k++)
            if (!chain_operand(f, c, root, f->g->code[i].in[k], &step->in[k]))
                return false;
        c->member[c->n_steps++] = i;
    }
    for (int k = 0; k < c->n_steps; k++)
        for (int j = 0; j < 3; j++)
            if (c->steps[k].in[j] >= GM_FUSED_INPUTS)
                c->steps[k].in[j] = (int16_t)(c->steps[k].in[j] - GM_FUSED_INPUTS + c->n_inputs);
    return true;
}

static void forget(instruction *i) {
    gm_release(i->node);
    memory_free(i->in);
    *i = (instruction){.node = NULL};
}

/* The root's slot takes the chain; its members' slots become empty. */
static gm_status put_chain(gm_graph *g, const chain *c, int64_t root) {
    instruction new = {.n_in = c->n_inputs,
                       .n_out = 1,
                       .first_out = g->code[root].first_out,
                       .n_steps = c->n_steps,
                       .device = g->code[root].node->device};
    new.in = memory_array((size_t)c->n_inputs + 1, sizeof *new.in);
    new.steps = memory_array((size_t)c->n_steps, sizeof *new.steps);
    if (!new.in || !new.steps) {
        memory_free(new.in);
        memory_free(new.steps);
        return error_code();
    }
    memcpy(new.in, c->inputs, (size_t)c->n_inputs * sizeof *new.in);
    memcpy(new.steps, c->steps, (size_t)c->n_steps * sizeof *new.steps);
    for (int k = 0; k < c->n_steps; k++)
        forget(&g->code[c->member[k]]);
    g->code[root] = new;
    return GM_OK;
}

gm_status gm_graph_fuse(gm_graph *g) {
    fuser f = {.g = g};
    f.maker = memory_array((size_t)g->n_slots + 1, sizeof *f.maker);
    f.group = memory_array((size_t)g->n_code + 1, sizeof *f.group);
    f.size = memory_zeroed((size_t)(g->n_code + 1) * sizeof *f.size);
    int64_t *first = memory_array((size_t)g->n_code + 1, sizeof *first);
    gm_status status = f.maker && f.group && f.size && first ? GM_OK : GM_ENOMEM;
    if (status == GM_OK) {
        for (int64_t k = 0; k < g->n_slots; k++)
            f.maker[k] = -1;
        for (int64_t i = 0; i < g->n_code; i++) {
            f.group[i] = NONE;
            first[i] = -1;
            for (int k = 0; k < g->code[i].n_out; k++)
                f.maker[g->code[i].first_out + k] = i;
        }
        make_groups(&f);
        for (int64_t i = 0; i < g->n_code; i++)
            if (first[f.group[i]] < 0)
                first[f.group[i]] = i;
    }
    chain c;
    for (int64_t i = 0; i < g->n_code && status == GM_OK; i++)
        if (f.group[i] == i && f.size[i] > 1 && make_chain(&f, i, first[i], &c))
            status = put_chain(g, &c, i);
    int64_t kept = 0;
    for (int64_t i = 0; i < g->n_code && status == GM_OK; i++)
        if (g->code[i].node || g->code[i].steps)
            g->code[kept++] = g->code[i];
    if (status == GM_OK)
        g->n_code = kept;
    memory_free(f.maker);
    memory_free(f.group);
    memory_free(f.size);
    memory_free(first);
    return status;
}
