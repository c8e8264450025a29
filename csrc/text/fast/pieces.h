/* pieces.h - inner loops of the fast path: they find where a known pattern splits a text, and the pieces' ids in a
 * cache. They are compiled for each instruction set (part_pieces.c) and chosen at run time.
 *  (1) A piece's bytes alone determine its ids, never the text around it.
 *  (2) The cache only saves time: an entry may disappear at any time, and the ids are the same with any cache.
 *  (3) Tables are bounded (MOST_... in pieces.c); a full one is emptied. A lookup probes CACHE_PROBES slots at most, so
 *      that a hostile text with collisions costs no more than misses. */
#ifndef GOMLX_TEXT_PIECES_H
#define GOMLX_TEXT_PIECES_H
#include "text/model/bpe.h"
#include "text/split/scanners.h"

#define PIECE_SHORT 15  /* bytes of a key in the first table */
#define PIECE_MEDIUM 31 /* of a key in the second table */
#define PIECE_LONG 1024 /* of a piece in the third table, which has texts apart; longer ones are not kept */
#define PIECES_AT_ONCE 4096
#define MOST_PIECES (PIECES_AT_ONCE + 64) /* in a run, which may end a block of text later */
#define SHORT_IDS 4
#define MEDIUM_IDS 7
#define COUNT_SHIFT 24   /* the count's bits in a short slot's last id; ids are below VOCAB_MAX */
#define COUNT_MANY 0xFFu /* ids[0] is an index in `many`, ids[1] the number of ids */
#define CACHE_PROBES 8
#define MANY_CAPACITY (1 << 16)

/* A key is the piece, padded with zeros, with its length in the last byte: 0 is a free slot. A short slot whose ids are
 * in `many` has MANY_KEY in its key, so that comparing keys alone does not find it. */
#define MANY_KEY ((uint64_t)0x80 << 56)
#define NO_KEY_LENGTH ((uint64_t)0x7F << 56) /* in no slot's key */
typedef struct {
    uint64_t key[2];
    uint32_t ids[SHORT_IDS];
} short_slot;
typedef struct {
    uint64_t key[4];
    uint32_t ids[MEDIUM_IDS], count;
} medium_slot;

typedef struct {
    uint64_t hash;
    uint32_t text, length, ids, count;
} long_slot; /* length 0: free */

typedef struct {
    short_slot *shorts;
    medium_slot *mediums;
    long_slot *longs;
    size_t n_shorts, n_mediums, n_longs;      /* powers of two */
    size_t shorts_capacity, mediums_capacity; /* slots that have address space */
    unsigned short_shift, medium_shift;       /* a hash shifted right by it is an index */
    size_t shorts_used, mediums_used, longs_used;
    id_buffer many;    /* ids that do not fit in a slot, and those of long pieces */
    byte_buffer texts; /* of long pieces */
} piece_cache;

#define NO_CUTS 6
/* Classes of ASCII characters; a space is WORD_OTHER. */
enum { WORD_LETTER, WORD_DIGIT, WORD_MARK, WORD_CLASSES, WORD_OTHER = WORD_CLASSES };
/* A piece starts at a space, unless a byte of no_cut_after precedes it (the first of these is the space itself), and
 * between characters of two classes if `cuts` has them. */
typedef struct {
    uint8_t no_cut_after[NO_CUTS];
    size_t n;
    bool cuts[WORD_CLASSES + 1][WORD_CLASSES + 1];
} word_rule;

static inline int word_class(uint8_t c) {
    return (uint8_t)((c | 0x20) - 'a') < 26 ? WORD_LETTER
           : (uint8_t)(c - '0') < 10        ? WORD_DIGIT
           : c > ' ' && c < 0x7F            ? WORD_MARK
                                            : WORD_OTHER;
}

/* Successive pieces: piece i ends at ends[i] and begins where piece i - 1 ends, the first one at `start`. */
typedef struct {
    const uint8_t *text;
    size_t length;
    uint32_t start;
    uint32_t ends[MOST_PIECES];
    size_t n;
} piece_run;

/* How many ids of a run's pieces fit beyond MEDIUM_IDS each; a byte is at most one id. */
static inline size_t many_capacity(const piece_run *run) {
    size_t bytes = run->n == 0 ? 0 : run->ends[run->n - 1] - run->start;
    return bytes < MANY_CAPACITY ? bytes : MANY_CAPACITY;
}

/* A piece whose ids are missing at ids[at]; they are [start, start + count) of another buffer. */
typedef struct { uint32_t piece, at, start, count; } piece_gap;

/* Ids in `many` and their destination: they are prefetched, and copied later. */
typedef struct {
    const int32_t *from;
    int32_t *to;
    size_t count;
} far_ids;

/* A piece whose symbols are merged side by side with others. */
#define MERGE_TASKS 32
typedef struct {
    uint8_t n; /* symbols, then ids; at most BPE_SHORT */
    uint8_t padded, at;
    int32_t ids[BPE_SHORT + 1];
    uint8_t starts[BPE_SHORT + 1]; /* where symbol i begins in the task's input */
    uint8_t ends[BPE_SHORT];       /* how many inputs ids[0..i] have */
    uint32_t keys[BPE_SHORT];      /* keys[i] joins the symbols at i and next[i] */
    uint8_t next[BPE_SHORT + 1], previous[BPE_SHORT + 1];
    uint32_t rank;
    uint64_t pair_before, pair_after; /* the new pairs around a merge, and their slots */
    const uint64_t *home_before, *home_after;
} merge_task;

typedef struct piece_kernels {
    /* Finds the pieces from `at`, PIECES_AT_ONCE or a few more, or all of the text. Returns where they end. */
    size_t (*split)(scanner kind, piece_run *run, size_t at);
    size_t (*split_words)(const word_rule *rule, piece_run *run, size_t at);
    /* Appends the ids of a run's pieces to ids, which has capacity for MEDIUM_IDS a piece and many_capacity. Returns
     * the number of gaps: pieces that are not in the cache or have too many ids. */
    size_t (*find)(piece_cache *cache, const piece_run *run, id_buffer *ids, piece_gap *gaps);
    /* The offset of the first of these bytes at or after `at`, or length. */
    size_t (*find_byte)(const uint8_t *text, size_t at, size_t length, const uint8_t *bytes, size_t n_bytes);
    /* Merges the symbols of n_tasks <= MERGE_TASKS pieces in place. bytes: tasks have bytes, all of which have
     * tokens. */
    void (*merge)(const bpe *b, merge_task *tasks, size_t n_tasks, bool bytes);
} piece_kernels;

/* The kernels of the engine's instruction set. Each call queries the processor, so it is not for every text. */
const piece_kernels *piece_kernels_get(void);
/* Fills a task with a piece's bytes; false if not all are symbols or there are too many. */
bool bpe_open_task(const bpe *b, merge_task *task, const uint8_t *piece, size_t length);

gm_status piece_cache_new(piece_cache *cache);
void piece_cache_free(piece_cache *cache);
/* Looks up a piece of any length and writes its ids to out, which has capacity for MEDIUM_IDS and `more`. Returns how
 * many; PIECE_NOT_KEPT if the cache does not have it or there are more. Ids in `many` are left to far_copy, otherwise
 * far->count is 0. */
#define PIECE_NOT_KEPT SIZE_MAX
size_t piece_cache_find(piece_cache *cache, const uint8_t *piece, size_t length, int32_t *out, size_t more,
                        far_ids *far);
/* The same by the piece's key. A short piece that is not in its home slot is exchanged with the one there, so that
 * frequent pieces are found at once; a piece that moves too far from its own home is lost. */
size_t piece_cache_short(piece_cache *cache, const uint64_t key[2], int32_t *out, size_t more, far_ids *far);
size_t piece_cache_medium(const piece_cache *cache, const uint64_t key[4], int32_t *out, size_t more, far_ids *far);
gm_status piece_cache_keep(piece_cache *cache, const uint8_t *piece, size_t length, const int32_t *ids, size_t count);

/* Finds ids in `many` and prefetches them; false if they do not fit. */
static inline bool far_find(const piece_cache *cache, uint32_t at, uint32_t count, int32_t *out, size_t more,
                            far_ids *far) {
    if (count > MEDIUM_IDS + more)
        return false;
    if (count == 0) /* data may still be NULL */
        return true;
    *far = (far_ids){cache->many.data + at, out, count};
    __builtin_prefetch(far->from);
    __builtin_prefetch(far->from + count - 1);
    return true;
}

/* Fast for few ids. from may be NULL if count is 0. */
static inline void copy_ids(int32_t *to, const int32_t *from, size_t count) {
    if (count < 4) {
        for (size_t i = 0; i < count; i++)
            to[i] = from[i];
        return;
    }
    for (size_t i = 0; i + 4 < count; i += 4)
        memcpy(to + i, from + i, 4 * sizeof *to);
    memcpy(to + count - 4, from + count - 4, 4 * sizeof *to);
}

static inline void far_copy(const far_ids *far) { copy_ids(far->to, far->from, far->count); }

/* The upper bits give a short piece's slot. */
static inline uint64_t short_hash(const uint64_t key[2]) {
    return key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xD6E8FEB86659FD93u;
}

/* The same for a medium piece. */
static inline uint64_t medium_hash(const uint64_t key[4]) {
    return key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xD6E8FEB86659FD93u + key[2] * 0xA0761D6478BD642Fu +
           key[3] * 0xE7037ED1A0B428DBu;
}
#endif
