/* trie.h - a vocabulary's strings as a trie of bytes, for models that look up all tokens at a position.
 *  (1) Built once by trie_build and then only read; every string leads to the id that vocab_find gives for it.
 *  (2) Nodes are numbered breadth first: the children of a node are adjacent, in any order. */
#ifndef GOMLX_TEXT_TRIE_H
#define GOMLX_TEXT_TRIE_H
#include "text/model/vocab.h"

#define TRIE_ROOT 0
#define TRIE_NONE UINT32_MAX

typedef struct {
    uint32_t first_child, n_children;
    int32_t id;
} trie_node; /* id -1: no token ends here */

typedef struct {
    trie_node *nodes;
    uint8_t *labels; /* by node: the byte that leads to it */
    uint32_t n_nodes;
    uint32_t roots[256]; /* the root's children, by byte */
} trie;

gm_status trie_build(trie *t, const vocab *v);
void trie_free(trie *t);

/* The child for `byte`; TRIE_NONE if there is none. */
static inline uint32_t trie_step(const trie *t, uint32_t node, uint8_t byte) {
    if (node == TRIE_ROOT)
        return t->roots[byte];
    const trie_node *n = &t->nodes[node];
    const uint8_t *labels = t->labels + n->first_child;
    if (n->n_children <= 4) {
        for (uint32_t i = 0; i < n->n_children; i++)
            if (labels[i] == byte)
                return n->first_child + i;
        return TRIE_NONE;
    }
    const uint8_t *found = memchr(labels, byte, n->n_children);
    return found ? (uint32_t)(found - t->labels) : TRIE_NONE;
}

/* The node that a text leads to from the root. */
static inline uint32_t trie_walk(const trie *t, const void *text, size_t length) {
    uint32_t node = TRIE_ROOT;
    for (size_t i = 0; i < length && node != TRIE_NONE; i++)
        node = trie_step(t, node, ((const uint8_t *)text)[i]);
    return node;
}
#endif
