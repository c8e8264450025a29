/* trie.c - see trie.h. Strings are inserted into a tree of linked siblings, which is then laid out breadth first. */
#include "text/model/trie.h"

typedef struct {
    uint32_t child, sibling;
    int32_t id;
    uint8_t byte;
} draft_node; /* 0: none */

typedef struct {
    draft_node *nodes; /* node 0 is not used: the root's children are in roots */
    size_t n_nodes, capacity;
    uint32_t roots[256];
} draft;

/* The child of `parent` (0: the root) for this byte, made if it is missing; 0 only if memory ran out. */
static uint32_t draft_child(draft *d, uint32_t parent, uint8_t byte) {
    uint32_t node = parent == 0 ? d->roots[byte] : d->nodes[parent].child;
    while (parent != 0 && node != 0 && d->nodes[node].byte != byte)
        node = d->nodes[node].sibling;
    if (node != 0)
        return node;
    if (grow_array(&d->nodes, d->n_nodes, &d->capacity, 1, sizeof *d->nodes) != GM_OK)
        return 0;
    node = (uint32_t)d->n_nodes++;
    d->nodes[node] = (draft_node){.sibling = parent == 0 ? 0 : d->nodes[parent].child, .id = -1, .byte = byte};
    if (parent == 0)
        d->roots[byte] = node;
    else
        d->nodes[parent].child = node;
    return node;
}

static gm_status draft_strings(draft *d, const vocab *v) {
    for (size_t i = 0; i < v->n_ids; i++) {
        size_t length;
        const char *text = vocab_text(v, (int32_t)i, &length);
        if (!text || length == 0 || vocab_find(v, text, length) != (int32_t)i)
            continue; /* an unused id, or a string with a later id */
        uint32_t node = 0;
        for (size_t at = 0; at < length; at++)
            if ((node = draft_child(d, node, (uint8_t)text[at])) == 0)
                return GM_ENOMEM;
        d->nodes[node].id = (int32_t)i;
    }
    return GM_OK;
}

/* Numbers the nodes breadth first. from[i] is the draft of node i, which makes it the queue. */
static void lay_out(trie *t, const draft *d, uint32_t *from) {
    uint32_t end = 1;
    for (unsigned byte = 0; byte < 256; byte++) {
        t->roots[byte] = TRIE_NONE;
        if (d->roots[byte] == 0)
            continue;
        t->roots[byte] = end;
        from[end++] = d->roots[byte];
    }
    t->nodes[TRIE_ROOT] = (trie_node){1, end - 1, -1};
    t->labels[TRIE_ROOT] = 0;
    for (uint32_t i = 1; i < end; i++) {
        const draft_node *node = &d->nodes[from[i]];
        t->nodes[i] = (trie_node){end, 0, node->id};
        t->labels[i] = node->byte;
        for (uint32_t child = node->child; child != 0; child = d->nodes[child].sibling)
            from[end++] = child;
        t->nodes[i].n_children = end - t->nodes[i].first_child;
    }
    t->n_nodes = end;
}

gm_status trie_build(trie *t, const vocab *v) {
    draft d = {0};
    GM_TRY(grow_array(&d.nodes, 0, &d.capacity, 1, sizeof *d.nodes));
    d.n_nodes = 1;
    gm_status status = draft_strings(&d, v);
    uint32_t *from = status == GM_OK ? memory_array(d.n_nodes, sizeof *from) : NULL;
    if (from) {
        t->nodes = memory_array(d.n_nodes, sizeof *t->nodes);
        t->labels = memory_new(d.n_nodes);
    }
    if (from && t->nodes && t->labels)
        lay_out(t, &d, from);
    else if (status == GM_OK)
        status = GM_ENOMEM;
    memory_free(from);
    memory_free(d.nodes);
    return status;
}

void trie_free(trie *t) {
    memory_free(t->nodes);
    memory_free(t->labels);
    *t = (trie){0};
}
