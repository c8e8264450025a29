/* pieces.h - the quick way through a text of ordinary words: where a known split pattern ends its pieces, and what the
 * pieces' ids were the last time. Compiled for each instruction set (part_pieces.c), chosen at run time.
 *  (1) A piece is known by its bytes alone, so its ids never depend on what stands around it.
 *  (2) A cache only saves work: an entry may vanish at any time, and a text's ids are the same with any cache.
 *  (3) Tables are bounded (MOST_... in pieces.c); a full one is emptied. Lookups look at CACHE_PROBES slots at most, so
 *      a hostile text that makes collisions costs no more than the misses. */
#ifndef GOMLX_TEXT_PIECES_H
#define GOMLX_TEXT_PIECES_H
#include "text/model/bpe.h"
#include "text/split/scanners.h"

#define PIECE_SHORT 15           /* bytes of a key in the first table */
#define PIECE_MEDIUM 31          /* and in the second */
#define PIECE_LONG 1024          /* and in the third, which has the text apart; longer pieces are not kept */
#define PIECES_AT_ONCE 4096
#define MOST_PIECES (PIECES_AT_ONCE + 64)    /* in a run: a block of text is written whole, behind the last one too */
#define SHORT_IDS 4
#define MEDIUM_IDS 7
#define COUNT_SHIFT 24           /* of the last id of a short slot; ids are below VOCAB_MAX */
#define COUNT_MANY 0xFFu         /* ids[0], ids[1]: where in `many`, and how many */
#define CACHE_PROBES 8
#define MANY_ROOM (1 << 16)

/* The key is the piece padded with zeros, its last byte the length: 0 is a free slot. A short slot whose ids are in
 * `many` has MANY_KEY in its key, so that who compares keys alone passes by. */
#define MANY_KEY ((uint64_t)0x80 << 56)
#define NO_KEY_LENGTH ((uint64_t)0x7F << 56)    /* in no slot's key */
typedef struct { uint64_t key[2]; uint32_t ids[SHORT_IDS]; } short_slot;
typedef struct { uint64_t key[4]; uint32_t ids[MEDIUM_IDS], count; } medium_slot;

typedef struct { uint64_t hash; uint32_t text, length, ids, count; } long_slot;    /* length 0: free */

typedef struct {
    short_slot *shorts;
    medium_slot *mediums;
    long_slot *longs;
    size_t n_shorts, n_mediums, n_longs; /* powers of two */
    size_t room_shorts, room_mediums;    /* for so many there is address space */
    unsigned short_shift, medium_shift;  /* a hash by so many bits is a place */
    size_t shorts_used, mediums_used, longs_used;
    id_buffer many;                      /* ids of pieces that have more than fit in a slot, and of the long ones */
    byte_buffer texts;                   /* of the long ones */
} piece_cache;

#define NO_CUTS 6
enum { WORD_LETTER, WORD_DIGIT, WORD_MARK, WORD_CLASSES, WORD_OTHER = WORD_CLASSES };    /* of ASCII; spaces are others */
/* Pieces start at a space unless one of the bytes `behind` is before it (the space itself is the first of them), and
 * between characters of two classes where cuts says so. */
typedef struct {
    uint8_t behind[NO_CUTS];
    size_t n;
    bool cuts[WORD_CLASSES + 1][WORD_CLASSES + 1];
} word_rule;

static inline int word_class(uint8_t c) {
    return (uint8_t)((c | 0x20) - 'a') < 26 ? WORD_LETTER : (uint8_t)(c - '0') < 10 ? WORD_DIGIT :
           c > ' ' && c < 0x7F ? WORD_MARK : WORD_OTHER;
}

/* A run over some pieces: pieces i of [first, n) end at ends[i] and begin where i - 1 ended, the first at `start`. */
typedef struct {
    const uint8_t *text;
    size_t length;
    uint32_t start;
    uint32_t ends[MOST_PIECES];
    size_t n;
} piece_run;

/* For how many ids of its pieces there is room beyond MEDIUM_IDS each; a byte is an id at most. */
static inline size_t many_room(const piece_run *run) {
    size_t bytes = run->n == 0 ? 0 : run->ends[run->n - 1] - run->start;
    return bytes < MANY_ROOM ? bytes : MANY_ROOM;
}

/* A piece whose ids are missing at ids[at]; ids[start, start + count) of another buffer are what they are. */
typedef struct { uint32_t piece, at, start, count; } piece_gap;

/* Ids that lie apart, in `many`, and where they belong: they are on their way, and copied when they have come. */
typedef struct { const int32_t *from; int32_t *to; size_t count; } far_ids;

/* One piece whose symbols are merged. */
#define MERGE_LANES 32
typedef struct {
    uint8_t n;                           /* symbols, then ids; at most BPE_SHORT */
    uint8_t padded, at;
    int32_t ids[BPE_SHORT + 1];
    uint8_t starts[BPE_SHORT + 1];       /* where symbol i begins, in what the lane was given */
    uint8_t ends[BPE_SHORT];             /* of what the lane was given, how many lie in ids[0..i] */
    uint32_t keys[BPE_SHORT];            /* keys[i] joins the symbols at i and next[i] */
    uint8_t next[BPE_SHORT + 1], previous[BPE_SHORT + 1];
    uint32_t rank;
    uint64_t pair_before, pair_behind;   /* the new pairs around a merge, and where their slots are */
    const uint64_t *home_before, *home_behind;
} merge_lane;

typedef struct piece_kernels {
    /* Finds pieces from `at` on, PIECES_AT_ONCE or a few more, or all that the text has. Returns where they end. */
    size_t (*split)(scanner kind, piece_run *run, size_t at);
    size_t (*split_words)(const word_rule *rule, piece_run *run, size_t at);
    /* Appends the ids of a run's pieces to ids, which has room for MEDIUM_IDS ids a piece and many_room. Returns how
     * many pieces are not kept or have too many ids: gaps tells which, and where their ids belong. */
    size_t (*find)(piece_cache *cache, const piece_run *run, id_buffer *ids, piece_gap *gaps);
    /* The first byte at or behind `at` that is one of these, or length. */
    size_t (*find_byte)(const uint8_t *text, size_t at, size_t length, const uint8_t *bytes, size_t n_bytes);
    /* Merges the symbols of each of n_lanes <= MERGE_LANES pieces where they lie. bytes: lanes hold bytes, whose
     * tokens all exist. */
    void (*merge)(const bpe *b, merge_lane *lanes, size_t n_lanes, bool bytes);
} piece_kernels;

/* Those of the engine's instruction set. The processor is asked each time: not for every text. */
const piece_kernels *piece_kernels_get(void);
/* The piece's bytes as a lane of merge; false when they are not all symbols, or too many. */
bool bpe_open_lane(const bpe *b, merge_lane *lane, const uint8_t *piece, size_t length);

gm_status piece_cache_new(piece_cache *cache);
void piece_cache_free(piece_cache *cache);
/* The ids of one piece of any length to out, which has room for MEDIUM_IDS and `more`; returns how many,
 * PIECE_NOT_KEPT when it is not kept or has more. Those that lie apart are left to far_copy; far->count is 0 when none
 * do. */
#define PIECE_NOT_KEPT SIZE_MAX
size_t piece_cache_give(piece_cache *cache, const uint8_t *piece, size_t length, int32_t *out, size_t more,
                        far_ids *far);
/* The same by the piece's key. A short one that is found behind its home changes places with what is there, so that
 * those that are asked for come to lie where they are found at once; what is moved too far from its own home is lost. */
size_t piece_cache_short(piece_cache *cache, const uint64_t key[2], int32_t *out, size_t more, far_ids *far);
size_t piece_cache_medium(const piece_cache *cache, const uint64_t key[4], int32_t *out, size_t more, far_ids *far);
gm_status piece_cache_keep(piece_cache *cache, const uint8_t *piece, size_t length, const int32_t *ids,
                           size_t count);

/* Says where the ids are; false when there is no room for them. */
static inline bool far_find(const piece_cache *cache, uint32_t at, uint32_t count, int32_t *out, size_t more,
                            far_ids *far) {
    if (count > MEDIUM_IDS + more)
        return false;
    if (count == 0)                      /* else there may be no data yet */
        return true;
    *far = (far_ids){ cache->many.data + at, out, count };
    __builtin_prefetch(far->from);
    __builtin_prefetch(far->from + count - 1);
    return true;
}

/* Few of them, mostly. No count: from may be NULL. */
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

/* Its upper bits say where a short piece's slot is. */
static inline uint64_t short_hash(const uint64_t key[2]) {
    return key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xD6E8FEB86659FD93u;
}

/* And where a medium one's. */
static inline uint64_t medium_hash(const uint64_t key[4]) {
    return key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xD6E8FEB86659FD93u + key[2] * 0xA0761D6478BD642Fu +
           key[3] * 0xE7037ED1A0B428DBu;
}
#endif
