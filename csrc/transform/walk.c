/* walk.c - ordering the nodes of a trace. Nothing recurses: graphs are deep. */
#include "transform/walk.h"
#include <string.h>
#include "base/grow.h"
#include "base/memory.h"

typedef struct {
    gm_array *node;
    int next;
} frame;

static size_t slot_of(const walk *w, const gm_array *node) {
    uint64_t h = (uint64_t)(uintptr_t)node * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(h >> 20) & (size_t)(w->table_size - 1);
    while (w->table[at] && w->nodes[w->table[at] - 1] != node)
        at = (at + 1) & (size_t)(w->table_size - 1);
    return at;
}

int64_t walk_find(const walk *w, const gm_array *node) { return w->table[slot_of(w, node)] - 1; }

static gm_status grow_table(walk *w) {
    int64_t size = w->table_size ? 2 * w->table_size : 256;
    int64_t *table = memory_zeroed((size_t)size * sizeof *table);
    if (!table)
        return GM_ENOMEM;
    memory_free(w->table);
    w->table = table;
    w->table_size = size;
    for (int64_t i = 0; i < w->count; i++)
        w->table[slot_of(w, w->nodes[i])] = i + 1;
    return GM_OK;
}

static gm_status add(walk *w, gm_array *node) {
    if (2 * (w->count + 1) > w->table_size)
        GM_TRY(grow_table(w));
    GM_TRY(grow_array(&w->nodes, (size_t)w->count, &w->capacity, 1, sizeof *w->nodes));
    w->nodes[w->count] = node;
    w->table[slot_of(w, node)] = w->count + 1; /* an empty slot's search ends before it looks at nodes[count] */
    w->count++;
    return GM_OK;
}

/* Whether the walk does not go from a node of the op to its input k. */
static bool is_cut(walk_kind kind, const gm_op *op, int k) {
    return kind == WALK_GRADIENTS && op->constant && op_is_nondiff(op, k);
}

/* Depth first, inputs before readers. A node on the stack is not met again: graphs have no cycles. */
static gm_status order(walk *w, gm_array *const *outputs, int n_outputs, walk_kind kind, uint32_t oldest) {
    frame *stack = NULL;
    size_t depth = 0, capacity = 0;
    gm_status status = GM_OK;
    for (int k = 0; k < n_outputs && status == GM_OK; k++) {
        gm_array *next = outputs[k];
        for (;;) {
            if (next && next != GM_NONE && walk_find(w, next) < 0 &&
                (kind == WALK_ALL ? !atomic_load(&next->ticket) : next->trace >= oldest)) {
                if ((status = grow_array(&stack, depth, &capacity, 1, sizeof *stack)) != GM_OK)
                    break;
                stack[depth++] = (frame){next, 0};
            }
            if (!depth)
                break;
            frame *top = &stack[depth - 1];
            if (top->next < top->node->n_in) {
                const int i = top->next++;
                next = is_cut(kind, top->node->op, i) ? NULL : top->node->in[i];
                continue;
            }
            if (walk_find(w, top->node) < 0 && (status = add(w, top->node)) != GM_OK)
                break;
            depth--;
            next = NULL;
        }
    }
    memory_free(stack);
    return status;
}

gm_status walk_make(gm_array *const *outputs, int n_outputs, gm_array *const *inputs, int n_inputs, walk_kind kind,
                    walk *out) {
    uint32_t oldest = UINT32_MAX;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i]->trace < oldest)
            oldest = inputs[i]->trace;
    gm_status status = grow_table(out);
    for (int i = 0; i < n_inputs && status == GM_OK; i++)
        if (walk_find(out, inputs[i]) < 0)
            status = add(out, inputs[i]);
    out->n_inputs = out->count;
    if (status == GM_OK)
        status = order(out, outputs, n_outputs, kind, oldest ? oldest : 1);
    if (status == GM_OK && !(out->reached = memory_zeroed((size_t)out->count + 1)))
        status = GM_ENOMEM;
    for (int64_t i = 0; i < out->count && status == GM_OK; i++) {
        const gm_array *node = out->nodes[i];
        out->reached[i] = i < out->n_inputs || kind == WALK_ALL;
        for (int k = 0; k < node->n_in && !out->reached[i]; k++) {
            int64_t at = node->in[k] == GM_NONE || is_cut(kind, node->op, k) ? -1 : walk_find(out, node->in[k]);
            out->reached[i] = at >= 0 && out->reached[at];
        }
    }
    if (status != GM_OK)
        walk_free(out);
    return status;
}

int64_t *walk_slots(const walk *w, int64_t *n) {
    int64_t *first = memory_array((size_t)w->count + 1, sizeof *first);
    *n = 0;
    for (int64_t i = 0; first && i < w->count; i++) {
        first[i] = *n;
        *n += array_n_out(w->nodes[i]);
    }
    return first;
}

void walk_free(walk *w) {
    memory_free(w->nodes);
    memory_free(w->reached);
    memory_free(w->table);
    memset(w, 0, sizeof *w);
}
