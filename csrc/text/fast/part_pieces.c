/* part_pieces.c - the inner loops of pieces.h, compiled once for each instruction set.
 * A split classifies 64 bytes at a time as bits: letters, digits, spaces and so on. Shifts give the starts of pieces,
 * which are certain where the block has everything that their rule depends on. What a block cannot decide (characters
 * beyond ASCII except common letters, white space or a piece that continues after the block) is left to scanner_match,
 * piece by piece, so that both give the same pieces. */
#include "text/fast/pieces.h"
#include "text/unicode/unicode.h"

#if defined(KERNELS_avx512) || defined(KERNELS_avx2)
#include <immintrin.h>
#define HAS_BLOCKS 1
#else
#define HAS_BLOCKS 0
#endif

#if defined(KERNELS_avx512)
#define TABLE piece_kernels_avx512
#elif defined(KERNELS_avx2)
#define TABLE piece_kernels_avx2
#elif defined(KERNELS_neon)
#define TABLE piece_kernels_neon
#else
#define TABLE piece_kernels_generic
#endif

#define BLOCK 64

#if HAS_BLOCKS
/* Bit i of each is the class of byte i of the block. */
typedef struct { uint64_t letter, digit, graphic, white, newline, space, quote, unknown; } block_bits;

/* The letters beyond ASCII that a block recognises: characters of two and three bytes whose second byte is in a range
 * that depends on the first one, for first bytes from 0xC0, 0xD0 and 0xE0. classify_beyond excludes some. */
static const uint8_t second_bytes[2][3][16] = {
    {{255, 255, 255, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 255, 255, 255, 0xA3, 0x80},
     {0x80, 0x80, 255, 255, 255, 255, 255, 0x90, 0xA0, 0x80, 255, 255, 255, 255, 255, 255},
     {255, 0xB8, 255, 0x81, 0xB8, 0x80, 0x80, 0x80, 0x80, 0x80, 0xB0, 0x80, 0x80, 0x80, 255, 255}},
    {{0, 0, 0, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0, 0, 0, 0xBF, 0xB5},
     {0xBF, 0xBF, 0, 0, 0, 0, 0, 0xAA, 0xBF, 0x8A, 0, 0, 0, 0, 0, 0},
     {0, 0xBB, 0, 0x83, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0xBF, 0x9D, 0, 0}},
};

#if defined(KERNELS_avx512)
static inline block_bits classify(const uint8_t *p) {
    __m512i v = _mm512_loadu_si512(p);
    __m512i letters = _mm512_sub_epi8(_mm512_or_si512(v, _mm512_set1_epi8(0x20)), _mm512_set1_epi8('a'));
    block_bits b;
    b.unknown = _mm512_movepi8_mask(v);
    b.letter = _mm512_cmplt_epu8_mask(letters, _mm512_set1_epi8(26));
    b.digit = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(v, _mm512_set1_epi8('0')), _mm512_set1_epi8(10));
    b.graphic = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(v, _mm512_set1_epi8('!')), _mm512_set1_epi8('~' - '!' + 1));
    b.space = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
    b.white = b.space | _mm512_cmplt_epu8_mask(_mm512_sub_epi8(v, _mm512_set1_epi8('\t')), _mm512_set1_epi8(5));
    b.newline = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\n')) | _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\r'));
    b.quote = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
    return b;
}

static inline uint64_t equal_bits(const uint8_t *p, uint8_t byte) {
    return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8((char)byte));
}

static inline uint64_t three_bytes(const uint8_t *p) {
    return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0xE0));
}

/* Whether the bytes from p + 1 on lie in the ranges of those from p on. */
static inline uint64_t second_in_range(const uint8_t *p) {
    __m512i v = _mm512_loadu_si512(p), next = _mm512_loadu_si512(p + 1), bounds[2];
    __m512i high = _mm512_and_si512(v, _mm512_set1_epi8((char)0xF0));
    __m512i low = _mm512_and_si512(v, _mm512_set1_epi8(0x0F));
    for (int k = 0; k < 2; k++) {
        bounds[k] = _mm512_set1_epi8(k == 0 ? -1 : 0);
        for (int row = 0; row < 3; row++) {
            __mmask64 here = _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8((char)(0xC0 + 16 * row)));
            __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)second_bytes[k][row]));
            bounds[k] = _mm512_mask_shuffle_epi8(bounds[k], here, table, low);
        }
    }
    return _mm512_cmpge_epu8_mask(next, bounds[0]) & _mm512_cmple_epu8_mask(next, bounds[1]);
}
#else
typedef struct { __m256i low, high; } two_vectors;

static inline uint64_t bits_of(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

static inline uint64_t equal(two_vectors v, char c) {
    __m256i all = _mm256_set1_epi8(c);
    return bits_of(_mm256_cmpeq_epi8(v.low, all), _mm256_cmpeq_epi8(v.high, all));
}

/* Bytes in [first, first + n). */
static inline uint64_t within(two_vectors v, char first, char n) {
    __m256i base = _mm256_set1_epi8(first), most = _mm256_set1_epi8((char)(n - 1));
    __m256i low = _mm256_sub_epi8(v.low, base), high = _mm256_sub_epi8(v.high, base);
    return bits_of(_mm256_cmpeq_epi8(_mm256_min_epu8(low, most), low),
                   _mm256_cmpeq_epi8(_mm256_min_epu8(high, most), high));
}

static inline block_bits classify(const uint8_t *p) {
    two_vectors v = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
    __m256i fold = _mm256_set1_epi8(0x20);
    two_vectors folded = {_mm256_or_si256(v.low, fold), _mm256_or_si256(v.high, fold)};
    block_bits b;
    b.unknown = bits_of(v.low, v.high);
    b.letter = within(folded, 'a', 26);
    b.digit = within(v, '0', 10);
    b.graphic = within(v, '!', '~' - '!' + 1);
    b.space = equal(v, ' ');
    b.white = b.space | within(v, '\t', 5);
    b.newline = equal(v, '\n') | equal(v, '\r');
    b.quote = equal(v, '\'');
    return b;
}

static inline uint64_t equal_bits(const uint8_t *p, uint8_t byte) {
    two_vectors v = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
    return equal(v, (char)byte);
}

static inline uint64_t three_bytes(const uint8_t *p) {
    two_vectors v = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
    return within(v, (char)0xE0, 0x20);
}

/* Whether the bytes from p + 1 on lie in the ranges of those from p on. */
static inline uint64_t second_in_range(const uint8_t *p) {
    __m256i within_range[2];
    for (int half = 0; half < 2; half++) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(p + 32 * half)), bounds[2];
        __m256i next = _mm256_loadu_si256((const __m256i *)(p + 32 * half + 1));
        __m256i high = _mm256_and_si256(v, _mm256_set1_epi8((char)0xF0));
        __m256i low = _mm256_and_si256(v, _mm256_set1_epi8(0x0F));
        for (int k = 0; k < 2; k++) {
            bounds[k] = _mm256_set1_epi8(k == 0 ? -1 : 0);
            for (int row = 0; row < 3; row++) {
                __m256i here = _mm256_cmpeq_epi8(high, _mm256_set1_epi8((char)(0xC0 + 16 * row)));
                __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)second_bytes[k][row]));
                bounds[k] = _mm256_blendv_epi8(bounds[k], _mm256_shuffle_epi8(table, low), here);
            }
        }
        within_range[half] = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(next, bounds[0]), next),
                                              _mm256_cmpeq_epi8(_mm256_min_epu8(next, bounds[1]), next));
    }
    return bits_of(within_range[0], within_range[1]);
}
#endif

/* Adds the letters beyond ASCII of a block that two more bytes follow. A character that crosses the block's end stays
 * unknown, and so do some within the ranges: the signs of multiplication and division, U+017F (an s in contractions),
 * U+3040, U+3097..30A0 and U+30FB. */
static inline void classify_beyond(const uint8_t *p, block_bits *b) {
    uint64_t lead = second_in_range(p) & b->unknown;
    uint64_t latin = equal_bits(p, 0xC3) & (equal_bits(p + 1, 0x97) | equal_bits(p + 1, 0xB7));
    lead &= ~(latin | (equal_bits(p, 0xC5) & equal_bits(p + 1, 0xBF)));
    uint64_t kana = equal_bits(p, 0xE3) & lead;
    for (uint64_t left = kana; left != 0; left &= left - 1) {
        const uint8_t *c = p + __builtin_ctzll(left);
        if ((c[1] == 0x81 && c[2] == 0x80) || (c[1] == 0x82 && c[2] >= 0x97 && c[2] <= 0xA0) ||
            (c[1] == 0x83 && c[2] == 0xBB))
            lead &= ~(left & -left);
    }
    uint64_t of_three = three_bytes(p), three = lead & of_three & ~((uint64_t)3 << 62);
    uint64_t two = lead & ~of_three & ~((uint64_t)1 << 63);
    uint64_t letters = two | two << 1 | three | three << 1 | three << 2;
    b->letter |= letters;
    b->unknown &= ~letters;
}

/* A block may begin at a piece whose first character it recognises. */
static inline bool may_be_known(uint8_t first) {
    return first < 0x80 || (first >= 0xC3 && first < 0xEE && second_bytes[1][(first >> 4) - 12][first & 15] != 0);
}

/* Bits below the lowest set bit of x; all bits if x is 0. */
static inline uint64_t below(uint64_t x) { return x == 0 ? ~(uint64_t)0 : (x & -x) - 1; }

/* The length of 's 't 're 've 'm 'll 'd at p, where a quote and a letter are; 0 for anything else. */
static inline unsigned contraction(const uint8_t *p, uint8_t fold) {
    uint8_t a = p[1] | fold, b = p[2] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* The starts of pieces in a block that begins with one. Bits after the last certain one are not set. */
static inline uint64_t starts_gpt2(const uint8_t *p, block_bits b) {
    uint64_t known = below(b.unknown);
    uint64_t white = b.white & known, joins = b.space << 1;
    uint64_t other = known & ~(b.letter | b.digit | b.white);
    /* Only the start is certain of white space that reaches the end. */
    uint64_t end = known + 1; /* 0 if all 64 are known */
    uint64_t before_end = end == 0 ? (uint64_t)1 << 63 : end >> 1;
    uint64_t certain = known;
    if (white & before_end) {
        uint64_t not_white = known & ~white;
        if (not_white == 0)
            return 1;
        unsigned last = 63 - (unsigned)__builtin_clzll(not_white);
        certain = known & (((uint64_t)4 << last) - 1); /* up to the first of the run */
    }
    uint64_t starts = (white & ~(white << 1)) | (white & ~(white >> 1));
    starts |= b.letter & ~(b.letter << 1) & ~joins;
    starts |= b.digit & ~(b.digit << 1) & ~joins;
    uint64_t other_starts = other & ~(other << 1) & ~joins;
    starts |= other_starts;
    uint64_t quotes = b.quote & other_starts & b.letter >> 1 & (((uint64_t)1 << 61) - 1);
    for (uint64_t left = quotes; left != 0; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left), n = contraction(p + at, 0);
        if (n == 0)
            continue;
        starts &= ~((uint64_t)2 << at);
        starts |= (uint64_t)1 << (at + n) & b.letter;
    }
    /* A later quote may begin a contraction that the block does not have in full. */
    uint64_t late = b.quote & other_starts & ~(((uint64_t)1 << 61) - 1);
    return (starts & certain & (below(late) << 1 | 1)) | 1;
}

static inline uint64_t starts_cl100k(const uint8_t *p, block_bits b, bool single_digits) {
    uint64_t known = below(b.unknown);
    uint64_t newline = b.newline & known, letter = b.letter & known, digit = b.digit & known;
    uint64_t other = known & ~(letter | digit | b.white);
    /* New lines right after other characters belong to them: a carry passes through each such run. */
    uint64_t eaten = newline & ~(newline + (newline & other << 1));
    uint64_t white = b.white & known & ~eaten;
    uint64_t plain = white & ~newline;
    uint64_t end = known + 1;
    uint64_t before_end = end == 0 ? (uint64_t)1 << 63 : end >> 1;
    uint64_t certain = known;
    if (b.white & before_end) {
        uint64_t not_white = known & ~b.white;
        if (not_white == 0)
            return 1;
        unsigned last = 63 - (unsigned)__builtin_clzll(not_white);
        /* The first of the run starts a piece, unless it is a new line that belongs to the last character. */
        uint64_t run = (uint64_t)2 << last;
        certain = run & eaten ? run - 1 : (run << 1) - 1;
        certain &= known;
    }
    uint64_t white_starts = white & ~(white << 1);
    uint64_t after_newline = plain & (newline & white) << 1;
    /* White space between two new lines belongs to them: such runs are left to the scanner. */
    uint64_t between = (plain + after_newline) & ~plain & newline & white;
    if (between != 0) {
        /* The last start before the first of them is the last certain one. */
        uint64_t in_front = white_starts & ((between & -between) - 1);
        if (in_front == 0)
            return 1;
        unsigned at = 63 - (unsigned)__builtin_clzll(in_front);
        certain &= ((uint64_t)2 << at) - 1;
    }
    uint64_t starts = white_starts | after_newline | (plain & ~(white >> 1));
    /* One character of any other kind that starts a piece belongs to the letters after it. */
    uint64_t alone = other & ~(other << 1) & ~(other >> 1) & ~(b.space << 1);
    starts |= letter & ~(letter << 1) & ~((plain | alone) << 1);
    uint64_t other_starts = other & ~(other << 1) & ~(b.space << 1);
    starts |= other_starts;
    if (single_digits) {
        starts |= digit;
    } else {
        uint64_t threes = digit & digit << 1 & digit << 2; /* the last of three digits in a row */
        for (uint64_t first = digit & ~(digit << 1); first != 0; first = first << 3 & digit & threes << 1)
            starts |= first;
    }
    const uint64_t whole = ((uint64_t)1 << 61) - 1;
    uint64_t quotes = b.quote & other_starts & letter >> 1;
    for (uint64_t left = quotes & whole; left != 0; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left);
        starts |= (uint64_t)1 << (at + contraction(p + at, 0x20)) & letter;
    }
    return (starts & certain & (below(b.quote & other_starts & ~whole) << 1 | 1)) | 1;
}

/* Writes the ends of pieces: the starts from the second on. */
static inline size_t put_ends(uint32_t *ends, uint32_t at, uint64_t starts) {
    size_t n = (size_t)__builtin_popcountll(starts);
#if defined(KERNELS_avx512)
    const __m512i sixteen = _mm512_set1_epi32(16);
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i offsets = _mm512_add_epi32(_mm512_set1_epi32((int)at), steps);
    for (int i = 0; i < BLOCK; i += 16, offsets = _mm512_add_epi32(offsets, sixteen)) {
        unsigned here = (unsigned)(starts >> i & 0xFFFF);
        _mm512_storeu_si512(ends, _mm512_maskz_compress_epi32((__mmask16)here, offsets));
        ends += __builtin_popcount(here);
    }
#else
    for (size_t done = 0; done < n; done += 8)
        for (int i = 0; i < 8; i++) {
            ends[done + (size_t)i] = at + (uint32_t)__builtin_ctzll(starts | (uint64_t)1 << 63);
            starts &= starts - 1;
        }
#endif
    return n;
}

static inline size_t split_blocks(scanner kind, piece_run *run, size_t at) {
    while (run->n < PIECES_AT_ONCE && at + BLOCK + 2 <= run->length) {
        block_bits b = classify(run->text + at);
        if (b.unknown != 0)
            classify_beyond(run->text + at, &b);
        uint64_t starts = kind == SCANNER_GPT2 ? starts_gpt2(run->text + at, b)
                                               : starts_cl100k(run->text + at, b, kind != SCANNER_CL100K);
        starts &= ~(uint64_t)1;
        if (starts == 0)
            break;
        size_t n = put_ends(run->ends + run->n, (uint32_t)at, starts);
        run->n += n;
        at += 63 - (size_t)__builtin_clzll(starts);
    }
    return at;
}
#endif

static size_t split(scanner kind, piece_run *run, size_t at) {
    run->start = (uint32_t)at;
    run->n = 0;
#if HAS_BLOCKS
    bool blocks = kind == SCANNER_GPT2 || kind == SCANNER_CL100K || kind == SCANNER_QWEN2 || kind == SCANNER_QWEN35;
#endif
    while (run->n < PIECES_AT_ONCE && at < run->length) {
#if HAS_BLOCKS
        const uint8_t *p = run->text + at;
        if (blocks && may_be_known(p[0]) && at + 1 < run->length && (p[0] >= 0x80 || may_be_known(p[1]))) {
            at = split_blocks(kind, run, at);
            if (run->n >= PIECES_AT_ONCE || at == run->length)
                break;
        }
#endif
        size_t end = scanner_match(kind, run->text, run->length, at);
        if (end == at) {
            /* Text that no alternative matches is a piece up to the next match. */
            do {
                utf8_next(run->text, &end);
            } while (end < run->length && scanner_match(kind, run->text, run->length, end) == end);
        }
        run->ends[run->n++] = (uint32_t)(at = end);
    }
    return at;
}

static inline bool starts_word(const word_rule *rule, const uint8_t *text, size_t at) {
    if (text[at] != ' ')
        return rule->cuts[word_class(text[at - 1])][word_class(text[at])];
    for (size_t i = 0; i < rule->n; i++)
        if (text[at - 1] == rule->no_cut_after[i])
            return false;
    return true;
}

static size_t split_words(const word_rule *rule, piece_run *run, size_t at) {
    run->start = (uint32_t)at;
    run->n = 0;
    at++;
    while (run->n < PIECES_AT_ONCE && at < run->length) {
#if HAS_BLOCKS
        if (at + BLOCK <= run->length) {
            const uint8_t *block = run->text + at - 1;
            block_bits b = classify(block);
            uint64_t of[WORD_CLASSES] = {
                [WORD_LETTER] = b.letter, [WORD_DIGIT] = b.digit, [WORD_MARK] = b.graphic & ~(b.letter | b.digit)};
            uint64_t no_cut = 0, starts = 0;
            for (size_t i = 0; i < rule->n; i++)
                no_cut |= equal_bits(block, rule->no_cut_after[i]);
            for (int left = 0; left < WORD_CLASSES; left++)
                for (int right = 0; right < WORD_CLASSES; right++)
                    starts |= rule->cuts[left][right] ? of[left] << 1 & of[right] : 0;
            starts = (starts | (b.space & ~(no_cut << 1))) & ~(uint64_t)1; /* bit 0 is the byte before `at` */
            size_t n = put_ends(run->ends + run->n, (uint32_t)at - 1, starts);
            run->n += n;
            at += BLOCK - 1;
            continue;
        }
#endif
        if (starts_word(rule, run->text, at))
            run->ends[run->n++] = (uint32_t)at;
        at++;
    }
    if (run->n < PIECES_AT_ONCE)
        run->ends[run->n++] = (uint32_t)run->length;
    return run->ends[run->n - 1];
}

/* ---- the cache ---- */
/* Masks of the piece's bytes in a key, by its length. */
static const uint64_t key_bytes[PIECE_SHORT + 1][2] = {
#define LOW(n) ((n) < 8 ? ((uint64_t)1 << 8 * ((n) & 7)) - 1 : ~(uint64_t)0)
#define BYTES(n) {LOW(n), (n) < 8 ? 0 : LOW((n) - 8)}
    BYTES(0), BYTES(1), BYTES(2),  BYTES(3),  BYTES(4),  BYTES(5),  BYTES(6),  BYTES(7),
    BYTES(8), BYTES(9), BYTES(10), BYTES(11), BYTES(12), BYTES(13), BYTES(14), BYTES(15),
};

#define AHEAD 32 /* pieces whose slots are prefetched */

typedef struct {
    uint64_t key[2];
    const short_slot *home;
} wanted_piece;

/* The key of a short piece: its bytes, zeros, its length. 16 bytes of text must be readable. */
static inline void load_short(uint64_t key[2], const uint8_t *piece, size_t length) {
    memcpy(key, piece, 16);
    key[0] &= key_bytes[length][0];
    key[1] &= key_bytes[length][1];
    key[1] |= (uint64_t)length << 56;
}

/* The same near the text's end, which is common, because texts between added tokens are often short. */
static inline void load_last(uint64_t key[2], const uint8_t *piece, size_t length) {
#if defined(KERNELS_avx512)
    _mm_storeu_si128((__m128i *)key, _mm_maskz_loadu_epi8((__mmask16)_bzhi_u32(0xFFFF, (unsigned)length), piece));
#else
    uint8_t bytes[16] = {0};
    memcpy(bytes, piece, length);
    memcpy(key, bytes, 16);
#endif
    key[1] |= (uint64_t)length << 56;
}

static inline void load_medium(uint64_t key[4], const uint8_t *piece, size_t length) {
    memcpy(key, piece, 16);
    load_short(key + 2, piece + 16, length - 16);
    key[3] += (uint64_t)16 << 56;
}

/* Prefetches the slots of the next pieces; returns how many. */
static inline size_t want(const piece_cache *cache, const piece_run *run, size_t i, wanted_piece *wanted) {
    size_t n = run->n - i < AHEAD ? run->n - i : AHEAD, start = i == 0 ? run->start : run->ends[i - 1];
    for (size_t k = 0; k < n; k++) {
        wanted_piece *w = &wanted[k];
        const uint8_t *piece = run->text + start;
        size_t end = run->ends[i + k], length = end - start;
        if (__builtin_expect(length <= PIECE_SHORT, 1)) {
            if (__builtin_expect(start + 16 <= run->length, 1))
                load_short(w->key, piece, length);
            else
                load_last(w->key, piece, length);
            w->home = &cache->shorts[short_hash(w->key) >> cache->short_shift];
            __builtin_prefetch(w->home);
        } else {
            *w = (wanted_piece){{0, NO_KEY_LENGTH}, cache->shorts};
            if (length <= PIECE_MEDIUM && start + 32 <= run->length) {
                uint64_t key[4];
                load_medium(key, piece, length);
                __builtin_prefetch(&cache->mediums[medium_hash(key) >> cache->medium_shift]);
            }
        }
        start = end;
    }
    return n;
}

/* Looks up a piece that is not in its home slot. */
static size_t find_other(piece_cache *cache, const piece_run *run, const wanted_piece *w, size_t i, int32_t *out,
                         size_t more, far_ids *far) {
    size_t start = i == 0 ? run->start : run->ends[i - 1], length = run->ends[i] - start;
    if (w->key[1] != NO_KEY_LENGTH)
        return piece_cache_short(cache, w->key, out, more, far);
    if (length > PIECE_MEDIUM || start + 32 > run->length)
        return piece_cache_find(cache, run->text + start, length, out, more, far);
    uint64_t key[4];
    load_medium(key, run->text + start, length);
    return piece_cache_medium(cache, key, out, more, far);
}

/* far_copy without a branch in most cases, because counts cannot be predicted. */
static inline void far_bring(const far_ids *far) {
#if defined(KERNELS_avx512)
    if (__builtin_expect(far->count <= 16, 1)) {
        const __mmask16 which = (__mmask16)_bzhi_u32(0xFFFF, (unsigned)far->count);
        _mm512_mask_storeu_epi32(far->to, which, _mm512_maskz_loadu_epi32(which, far->from));
        return;
    }
#endif
    far_copy(far);
}

static size_t find(piece_cache *cache, const piece_run *run, id_buffer *ids, piece_gap *gaps) {
    wanted_piece wanted[2][AHEAD];
    far_ids far[AHEAD];
    int32_t *first = ids->data + ids->size, *out = first;
    size_t i = 0, n_gaps = 0, n = want(cache, run, 0, wanted[0]), more = many_capacity(run);
    for (int half = 0; n > 0; half ^= 1) {
        size_t n_next = want(cache, run, i + n, wanted[half ^ 1]); /* prefetched meanwhile */
        size_t n_far = 0;
        for (const wanted_piece *w = wanted[half], *end = w + n; w < end; w++, i++) {
            const short_slot *slot = w->home;
            if (__builtin_expect(((slot->key[0] ^ w->key[0]) | (slot->key[1] ^ w->key[1])) == 0, 1)) {
                memcpy(out, slot->ids, sizeof slot->ids);
                out[SHORT_IDS - 1] &= (1 << COUNT_SHIFT) - 1;
                out += slot->ids[SHORT_IDS - 1] >> COUNT_SHIFT;
                continue;
            }
            size_t count = PIECE_NOT_KEPT;
            far[n_far].count = 0;
            if (((slot->key[0] ^ w->key[0]) | (slot->key[1] ^ w->key[1] ^ MANY_KEY)) == 0)
                count = far_find(cache, slot->ids[0], slot->ids[1], out, more, &far[n_far]) ? slot->ids[1] : count;
            else if (slot->key[1] != 0 || w->key[1] == NO_KEY_LENGTH)
                count = find_other(cache, run, w, i, out, more, &far[n_far]);
            if (count == PIECE_NOT_KEPT) {
                gaps[n_gaps++] = (piece_gap){.piece = (uint32_t)i, .at = (uint32_t)(out - first)};
                continue;
            }
            n_far += far[n_far].count != 0;
            more -= count > MEDIUM_IDS ? count - MEDIUM_IDS : 0;
            out += count;
        }
        for (size_t k = 0; k < n_far; k++)
            far_bring(&far[k]);
        n = n_next;
    }
    ids->size += (size_t)(out - first);
    return n_gaps;
}

static size_t find_byte(const uint8_t *text, size_t at, size_t length, const uint8_t *bytes, size_t n_bytes) {
#if HAS_BLOCKS
    for (; at + BLOCK <= length; at += BLOCK) {
        uint64_t hits = 0;
        for (size_t i = 0; i < n_bytes; i++)
            hits |= equal_bits(text + at, bytes[i]);
        if (hits != 0)
            return at + (size_t)__builtin_ctzll(hits);
    }
#endif
    for (; at < length; at++)
        for (size_t i = 0; i < n_bytes; i++)
            if (text[at] == bytes[i])
                return at;
    return length;
}

#include "text/fast/merge.inc"

extern const piece_kernels TABLE;
const piece_kernels TABLE = {split, split_words, find, find_byte, merge};
