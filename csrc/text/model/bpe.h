/* bpe.h - byte pair encoding of one piece.
 *  (1) A bpe is built once (bpe_set_merges, then bpe_prepare) and then only read; bpe_work is one caller's scratch.
 *  (2) The pair with the lowest rank is merged first, the leftmost of equal ones. Short pieces scan for it, long ones
 *      keep a heap, so that no input takes more than O(n log n). */
#ifndef GOMLX_TEXT_BPE_H
#define GOMLX_TEXT_BPE_H
#include <stdbool.h>
#include "text/text_view.h"
#include "text/model/vocab.h"

#define BPE_NO_UNKNOWN (-1)
#define BPE_MISSING_UNKNOWN (-2) /* the file names an unknown token that the vocabulary does not have */

#define BPE_NO_RANK UINT32_MAX
#define BPE_MOST_MERGES ((1u << 20) - 1) /* a slot has 20 bits for the rank */
#define BPE_SHORT 64                     /* symbols; longer pieces keep a heap */

/* Two adjacent bytes. Three ranks of twenty bits: that of their merge; the least of the merges of the right byte with a
 * preceding token that ends in the left one; the least of the merges of the left byte with a following token that
 * begins with the right one. BPE_NEVER if there is none. PAIR_WAITS: the result takes part in merges of lower ranks
 * than its own. */
typedef uint64_t bpe_pair;
#define BPE_NEVER BPE_MOST_MERGES
#define PAIR_WAITS ((bpe_pair)1 << 20)
#define PAIR_LEFT 21
#define PAIR_RIGHT 41
#define BPE_NO_PAIR ((bpe_pair)BPE_NEVER | (bpe_pair)BPE_NEVER << PAIR_LEFT | (bpe_pair)BPE_NEVER << PAIR_RIGHT)

static inline uint32_t bpe_pair_rank(bpe_pair pair) { return (uint32_t)pair & BPE_NEVER; }

/* Whether two bytes merge before either can merge with anything else, in any text: all such merges can be done at once,
 * before the others. before, after: the pairs that share a byte with it. Merging by rank reaches this pair while both
 * bytes are unmerged, and its result has no merge of a lower rank. */
static inline bool bpe_merges_first(bpe_pair before, bpe_pair pair, bpe_pair after) {
    const uint32_t rank = (uint32_t)(pair & (PAIR_WAITS | BPE_NEVER));
    return (rank < (before >> PAIR_LEFT & BPE_NEVER)) & (rank < (after >> PAIR_RIGHT & BPE_NEVER));
}

typedef struct {
    bool byte_level;       /* symbols are bytes, their strings in GPT-2's alphabet */
    bool ignore_merges;    /* a piece that is a token is that token */
    char *prefix, *suffix; /* of all characters but the first (continuing_subword_prefix), and of the last
                            * one (end_of_word_suffix); NULL: none */
    size_t prefix_length, suffix_length;
    bool byte_fallback; /* a character without a token becomes its bytes' <0xNN> tokens */
    bool fuse_unknown;
    int32_t unknown;
    uint64_t *slots;           /* left, right and rank in one word (bpe_slot); open addressing, at most half full */
    size_t n_slots, free_slot; /* free_slot: one that is free */
    uint8_t *filter;           /* a bit by a pair's hash, two for each slot: it tells most pairs without a merge, and
                                * stays in the processor's cache where the slots do not */
    id_buffer results;         /* by rank: the results of merges */
    bpe_pair *byte_pairs;      /* byte_level: [256 * left + right]; valid without prefix and suffix */
    const struct piece_kernels *kernels;
    int32_t symbols[256]; /* by byte: its token (byte_level), or the ASCII character's */
    int32_t bytes[256];   /* the <0xNN> tokens */
} bpe;

typedef struct {
    int32_t id;
    uint32_t length, previous, next;
} bpe_symbol;                   /* id -1: merged away */
typedef uint64_t bpe_candidate; /* a merge: its rank in the upper half, its position in the lower one */

typedef struct {
    bpe_symbol *symbols;
    size_t n_symbols, symbol_capacity;
    bpe_candidate *heap;
    size_t n_heap, heap_capacity;
    byte_buffer alphabet;
} bpe_work;

/* Sets the merges by rank: a BPE_PAIR for each result. Takes the results. The last merge of a pair counts. */
gm_status bpe_set_merges(bpe *b, const uint64_t *pairs, id_buffer *results);
/* Looks up single symbols. Call once, when the flags are set. */
gm_status bpe_prepare(bpe *b, const vocab *v);
/* Appends the piece's ids, and unless spans is NULL their bytes in the piece: from 0 without gaps, even if characters
 * without a token were dropped (as in the reference). */
gm_status bpe_encode(const bpe *b, const vocab *v, bpe_work *work, const uint8_t *piece, size_t length, id_buffer *out,
                     span_buffer *spans);
void bpe_free(bpe *b);
void bpe_work_free(bpe_work *work);

#define BPE_FREE 0u /* not the word of any slot, because ranks are stored plus one */
#define BPE_PAIR(left, right) ((uint64_t)(uint32_t)(left) << 42 | (uint64_t)(uint32_t)(right) << 20)

#define BPE_HASH_FACTOR 0x9E3779B97F4A7C15u
static inline uint64_t bpe_hash(uint64_t pair) {
    pair *= BPE_HASH_FACTOR;
    return pair ^ pair >> 32;
}

/* The rank of the merge of two tokens, which are not negative; BPE_NO_RANK if there is none. */
static inline uint32_t bpe_rank(const bpe *b, int32_t left, int32_t right) {
    uint64_t pair = BPE_PAIR(left, right);
    uint64_t hash = bpe_hash(pair);
    if (b->n_slots == 0 || !(b->filter[hash >> 3 & (b->n_slots / 4 - 1)] >> (hash & 7) & 1))
        return BPE_NO_RANK;
    for (size_t at = hash >> 3 & (b->n_slots - 1); b->slots[at] != BPE_FREE; at = (at + 1) & (b->n_slots - 1))
        if (b->slots[at] >> 20 == pair >> 20)
            return ((uint32_t)b->slots[at] & BPE_MOST_MERGES) - 1;
    return BPE_NO_RANK;
}
#endif
