/* added.c - see added.h. */
#include "text/split/added.h"
#include "text/fast/pieces.h"

/* The child of `parent` for this byte, made if it is missing; 0 only if memory ran out. */
static uint32_t child_for(added_set *set, uint32_t parent, uint8_t byte) {
    uint32_t node = parent == 0 ? set->root[byte] : set->nodes[parent].child;
    while (parent != 0 && node != 0 && set->nodes[node].byte != byte)
        node = set->nodes[node].sibling;
    if (node != 0)
        return node;
    if (grow_array(&set->nodes, set->n_nodes, &set->node_capacity, 2, sizeof *set->nodes) != GM_OK)
        return 0;
    if (set->n_nodes == 0)
        set->nodes[set->n_nodes++] = (added_node){.token = -1};
    node = (uint32_t)set->n_nodes++;
    set->nodes[node] = (added_node){.sibling = parent == 0 ? 0 : set->nodes[parent].child, .token = -1, .byte = byte};
    if (parent == 0) {
        set->root[byte] = node;
        set->firsts[set->n_firsts++] = byte;
    } else {
        set->nodes[parent].child = node;
    }
    return node;
}

gm_status added_insert(added_set *set, const void *text, size_t length, added_token token) {
    if (length == 0)
        return GM_OK;
    uint32_t node = 0;
    if (!set->kernels)
        set->kernels = piece_kernels_get();
    for (size_t i = 0; i < length; i++)
        if ((node = child_for(set, node, ((const uint8_t *)text)[i])) == 0)
            return GM_ENOMEM;
    int32_t old = set->nodes[node].token;
    if (old >= 0) {
        if (token.special && !set->tokens[old].special)
            set->tokens[old] = token;
        return GM_OK;
    }
    GM_TRY(grow_array(&set->tokens, set->n_tokens, &set->token_capacity, 1, sizeof *set->tokens));
    set->nodes[node].token = (int32_t)set->n_tokens;
    set->tokens[set->n_tokens++] = token;
    return GM_OK;
}

void added_free(added_set *set) {
    memory_free(set->tokens);
    memory_free(set->nodes);
    *set = (added_set){0};
}

void added_open(added_scan *scan, const added_set *set, const uint8_t *text, size_t size, bool skip_special) {
    *scan = (added_scan){.set = set, .text = text, .size = size, .skip_special = skip_special};
}

/* The longest token at `start`; -1 if there is none. */
static int32_t longest_at(const added_scan *scan, size_t start, size_t *end) {
    const added_node *nodes = scan->set->nodes;
    int32_t token = -1;
    size_t at = start + 1;
    for (uint32_t node = scan->set->root[scan->text[start]]; node != 0; at++) {
        if (nodes[node].token >= 0) {
            token = nodes[node].token;
            *end = at;
        }
        if (at == scan->size)
            break;
        node = nodes[node].child;
        while (node != 0 && nodes[node].byte != scan->text[at])
            node = nodes[node].sibling;
    }
    return token;
}

static bool word_before(const added_scan *scan, size_t at) {
    if (at == 0)
        return false;
    at = utf8_previous(scan->text, at);
    return unicode_class(utf8_next(scan->text, &at)) & CLASS_WORD;
}

static bool word_after(const added_scan *scan, size_t at) {
    return at < scan->size && (unicode_class(utf8_next(scan->text, &at)) & CLASS_WORD);
}

#define FEW 8 /* first bytes that one vectorised search finds */

static size_t next_first(const added_scan *scan, size_t at) {
    const added_set *set = scan->set;
    if (set->n_firsts == 0)
        return scan->size;
    if (set->n_firsts <= FEW)
        return set->kernels->find_byte(scan->text, at, scan->size, set->firsts, set->n_firsts);
    while (at < scan->size && set->root[scan->text[at]] == 0)
        at++;
    return at;
}

bool added_next(added_scan *scan, added_part *part) {
    if (scan->pending) {
        scan->pending = false;
        *part = (added_part){scan->done, scan->token_end, scan->token.id};
        scan->done = scan->token_end;
        return true;
    }
    while (scan->at < scan->size) {
        size_t start = scan->at, end;
        if (scan->set->root[scan->text[start]] == 0) {
            scan->at = next_first(scan, start + 1);
            continue;
        }
        int32_t found = longest_at(scan, start, &end);
        if (found < 0) {
            scan->at++;
            continue;
        }
        /* A refused match is skipped as a whole: no shorter token is tried. */
        scan->at = end;
        added_token token = scan->set->tokens[found];
        if (token.special && scan->skip_special)
            continue;
        if (token.single_word && (word_before(scan, start) || word_after(scan, end)))
            continue;
        while (token.lstrip && start > scan->done) {
            size_t before = utf8_previous(scan->text, start), at = before;
            if (!(unicode_class(utf8_next(scan->text, &at)) & CLASS_SPACE))
                break;
            start = before;
        }
        if (token.lstrip && start < scan->done) /* the token before took this white space */
            start = scan->done < end ? scan->done : end;
        while (token.rstrip && end < scan->size) {
            size_t at = end;
            if (!(unicode_class(utf8_next(scan->text, &at)) & CLASS_SPACE))
                break;
            end = at;
        }
        if (scan->done < start) {
            *part = (added_part){scan->done, start, -1};
            scan->done = start;
            scan->token = token;
            scan->token_end = end;
            scan->pending = true;
            return true;
        }
        *part = (added_part){start, end, token.id};
        scan->done = end;
        return true;
    }
    if (scan->done >= scan->size)
        return false;
    *part = (added_part){scan->done, scan->size, -1};
    scan->done = scan->size;
    return true;
}
