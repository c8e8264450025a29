/* quick.c - see quick.h. */
#include "text/fast/quick.h"
#include "text/fast/word.h"
#include "text/unicode/alphabet.h"

static const char marker[] = "\xE2\x96\x81"; /* U+2581 */
#define MARKER_LENGTH 3
#define PIECE_TOGETHER BPE_SHORT /* bytes of a piece to merge with others; a byte is at most one symbol */

void quick_work_drop(quick_work *work) {
    memory_free(work->missing.data);
    memory_free(work->alphabet.data);
    memory_free(work->spelled.data);
    memory_free(work->first.data);
    work->missing = (id_buffer){0};
    work->alphabet = work->spelled = work->first = (byte_buffer){0};
}

void quick_work_free(quick_work *work) {
    quick_work_drop(work);
    piece_cache_free(&work->cache);
}

/* ---- whether a tokenizer has a fast path ---- */
/* Whether the normalizer is Replace " " by the marker, possibly after Prepend marker. */
static bool marks_spaces(const normalizer *n, bool *prefix) {
    for (size_t i = 0; i < n->n_steps; i++) {
        const normalize_step *step = &n->steps[i];
        bool last = i + 1 == n->n_steps;
        if (step->to_length != MARKER_LENGTH || memcmp(step->to, marker, MARKER_LENGTH) != 0)
            return false;
        if (last ? step->kind != NORMALIZE_REPLACE || step->from_length != 1 || step->from[0] != ' '
                 : step->kind != NORMALIZE_PREPEND || i > 0)
            return false;
    }
    *prefix = n->n_steps == 2;
    return n->n_steps > 0;
}

/* Whether its steps split at spaces only, which the normalizer has replaced. */
static bool splits_nothing(const pretokenizer *p) {
    for (int i = 0; i < p->n_steps; i++) {
        const pretokenize_step *step = &p->steps[i];
        if (step->space || step->scheme != PREFIX_NEVER || step->match != MATCH_TEXT ||
            !memchr(step->text, ' ', step->text_length) || step->behavior == SPLIT_REMOVED || step->invert)
            return false;
    }
    return !p->byte_level;
}

/* What cuts depend on: a token's last byte, and the class of its first byte with whether it begins with the marker. */
#define NO_TEXT 0xFF /* instead of a last byte; not in UTF-8 */
enum { FIRST_CLASS = 7, FIRST_MARKED = 8, FIRST_NONE = 16, N_FIRSTS = 32 };

static void ends_of(const char *text, size_t n, uint8_t *first, uint8_t *last) {
    bool none = !text || n == 0 || (n == 6 && memcmp(text, "<0x", 3) == 0); /* <0xNN> is a byte */
    *last = none ? NO_TEXT : (uint8_t)text[n - 1];
    *first = none ? FIRST_NONE : (uint8_t)word_class((uint8_t)text[0]);
    if (!none && n >= MARKER_LENGTH && memcmp(text, marker, MARKER_LENGTH) == 0)
        *first |= FIRST_MARKED;
}

/* Removes the cuts that a merge spans; joined marks every (last byte, first class) pair of one. False if too few
 * remain. */
static bool cuts_by(word_rule *rule, const bool joined[256][N_FIRSTS]) {
    for (int last = 0; last < 256; last++) {
        for (int first = 0; first < N_FIRSTS; first++) {
            if (!joined[last][first])
                continue;
            if (last == NO_TEXT || first & FIRST_NONE)
                return false;
            rule->cuts[word_class((uint8_t)last)][first & FIRST_CLASS] = false;
            if (!(first & FIRST_MARKED) || memchr(rule->no_cut_after, last, rule->n))
                continue;
            if (rule->n == NO_CUTS)
                return false;
            rule->no_cut_after[rule->n++] = (uint8_t)last;
        }
    }
    return true;
}

/* Computes the cut points that no merge spans; false if there are almost none. */
static bool find_cuts(word_rule *rule, const bpe *b, const vocab *v) {
    bool joined[256][N_FIRSTS] = {{false}}, none;
    uint8_t *firsts = memory_new(2 * v->n_ids + 1), *lasts = firsts + v->n_ids;
    if (!firsts)
        return false;
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n = 0;
        const char *text = vocab_text(v, (int32_t)id, &n);
        ends_of(text, n, &firsts[id], &lasts[id]);
    }
    for (size_t i = 0; i < b->n_slots; i++) { /* no branch: half of the slots are free, which cannot be predicted */
        uint64_t slot = b->slots[i];
        bool *pair = &joined[lasts[slot >> 42]][firsts[slot >> 20 & ((1 << 22) - 1)]];
        *(slot == BPE_FREE ? &none : pair) = true;
    }
    memory_free(firsts);
    *rule = (word_rule){.no_cut_after = {' ', (uint8_t)marker[MARKER_LENGTH - 1]}, .n = 2};
    for (int left = 0; left < WORD_CLASSES; left++)
        for (int right = 0; right < WORD_CLASSES; right++)
            rule->cuts[left][right] = true;
    return cuts_by(rule, joined);
}

void quick_prepare(quick_way *way, const normalizer *n, const pretokenizer *p, const model *m, const vocab *v) {
    const bpe *b = &m->bpe;
    *way = (quick_way){.kernels = piece_kernels_get(), .model = m, .vocab = v};
    way->scanner = pretokenizer_scanner(p);
    if (way->scanner != SCANNER_NONE) {
        way->kind = QUICK_SCANNER;
        return;
    }
    bool bytes = m->kind == MODEL_BPE && b->byte_fallback && !b->byte_level && !b->ignore_merges &&
                 b->prefix_length + b->suffix_length == 0;
    for (int i = 0; i < 256 && bytes; i++)
        bytes = b->bytes[i] >= 0; /* so nothing is unknown, and no unknown tokens can fuse across a cut */
    way->marker = vocab_find(v, marker, MARKER_LENGTH);
    if (bytes && way->marker >= 0 && marks_spaces(n, &way->prefix) && splits_nothing(p) && find_cuts(&way->words, b, v))
        way->kind = QUICK_WORDS;
}

/* ---- pieces that are not in the cache ---- */
/* Fills a task with a word's symbols; false if there are too many. */
static bool open_word(const quick_way *way, merge_task *task, const uint8_t *piece, size_t length) {
    const bpe *b = &way->model->bpe;
    size_t n = 0;
    for (size_t at = 0; at < length;) {
        size_t start = at;
        int32_t id;
        if (n + 4 > BPE_SHORT)
            return false;
        if (piece[at] < 0x80) {
            id = piece[at] == ' ' ? way->marker : b->symbols[piece[at]];
            at++;
        } else {
            utf8_next(piece, &at);
            id = vocab_find(way->vocab, piece + start, at - start);
        }
        if (id >= 0)
            task->ids[n++] = id;
        else
            for (; start < at; start++)
                task->ids[n++] = b->bytes[piece[start]];
    }
    task->n = (uint8_t)n;
    return true;
}

static const uint8_t *piece_of(const piece_run *run, size_t i, size_t *length) {
    size_t start = i == 0 ? run->start : run->ends[i - 1];
    *length = run->ends[i] - start;
    return run->text + start;
}

/* Looks up whole pieces, for models that ignore merges then: whole[i] is the token or -1. */
static gm_status find_whole(const quick_way *way, quick_work *work, piece_gap *const *gaps, size_t n, int32_t *whole) {
    vocab_string texts[MERGE_TASKS];
    byte_buffer *alphabet = &work->alphabet;
    alphabet->size = 0;
    GM_TRY(bytes_reserve(alphabet, 2 * PIECE_TOGETHER * MERGE_TASKS)); /* so that it does not move */
    for (size_t i = 0; i < n; i++) {
        size_t length, first = alphabet->size;
        const uint8_t *piece = piece_of(&work->run, gaps[i]->piece, &length);
        GM_TRY(alphabet_append(piece, length, alphabet));
        texts[i] = (vocab_string){(const char *)alphabet->data + first, alphabet->size - first};
    }
    vocab_find_strings(way->vocab, texts, n, whole);
    return GM_OK;
}

/* Fills up to MERGE_TASKS gaps of pieces up to PIECE_TOGETHER bytes, merging them side by side. Pieces that do not fit
 * in a task stay NOT_FILLED. */
#define NOT_FILLED UINT32_MAX
#define SAME_AS (UINT32_MAX - 1) /* `start` is the index of a gap with the same piece */
static gm_status fill_together(const quick_way *way, quick_work *work, piece_gap *const *gaps, size_t n_gaps) {
    const bpe *b = &way->model->bpe;
    int32_t whole[MERGE_TASKS];
    piece_gap *merged[MERGE_TASKS];
    size_t n = 0, length;
    memset(whole, 0xFF, sizeof whole);
    if (b->ignore_merges)
        GM_TRY(find_whole(way, work, gaps, n_gaps, whole));
    for (size_t i = 0; i < n_gaps; i++) {
        const uint8_t *piece = piece_of(&work->run, gaps[i]->piece, &length);
        merge_task *task = &work->tasks[n];
        if (whole[i] >= 0) {
            gaps[i]->start = (uint32_t)work->missing.size;
            gaps[i]->count = 1;
            GM_TRY(ids_append(&work->missing, whole[i]));
            GM_TRY(piece_cache_keep(&work->cache, piece, length, &whole[i], 1));
        } else if (way->kind == QUICK_WORDS ? open_word(way, task, piece, length)
                                            : bpe_open_task(b, task, piece, length)) {
            merged[n++] = gaps[i];
        }
    }
    way->kernels->merge(b, work->tasks, n, way->kind == QUICK_SCANNER);
    for (size_t i = 0; i < n; i++) {
        const merge_task *task = &work->tasks[i];
        const uint8_t *piece = piece_of(&work->run, merged[i]->piece, &length);
        merged[i]->start = (uint32_t)work->missing.size;
        merged[i]->count = task->n;
        GM_TRY(ids_reserve(&work->missing, task->n));
        copy_ids(work->missing.data + work->missing.size, task->ids, task->n);
        work->missing.size += task->n;
        GM_TRY(piece_cache_keep(&work->cache, piece, length, task->ids, task->n));
    }
    return GM_OK;
}

/* Encodes one piece by the general path. */
static gm_status encode_alone(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *piece,
                              size_t length, id_buffer *ids) {
    size_t before = ids->size, n = length;
    const uint8_t *text = piece;
    if (way->kind == QUICK_WORDS) {
        byte_buffer *spelled = &work->spelled;
        spelled->size = 0;
        GM_TRY(bytes_reserve(spelled, MARKER_LENGTH * length));
        for (size_t i = 0; i < length; i++) {
            if (piece[i] == ' ') {
                memcpy(spelled->data + spelled->size, marker, MARKER_LENGTH);
                spelled->size += MARKER_LENGTH;
            } else {
                spelled->data[spelled->size++] = piece[i];
            }
        }
        text = spelled->data;
        n = spelled->size;
    }
    GM_TRY(model_encode(way->model, way->vocab, scratch, text, n, ids, NULL));
    const int32_t *own = ids->size > before ? ids->data + before : NULL; /* data may still be NULL */
    return piece_cache_keep(&work->cache, piece, length, own, ids->size - before);
}

/* As a marker a space is three bytes, each of which may be an id. */
#define MOST_IDS_OF(length) (MARKER_LENGTH * (length))

/* A hash of a piece's first and last bytes, and of the middle ones of a longer piece. */
static size_t seen_index(const uint8_t *piece, size_t length) {
    uint64_t first, last, hash;
    if (length >= 8) {
        first = load_bytes(piece, 8);
        last = load_bytes(piece + length - 8, 8) ^ load_bytes(piece + length / 2 - 4, 8) << 1;
    } else if (length >= 4) {
        first = load_bytes(piece, 4);
        last = load_bytes(piece + length - 4, 4);
    } else {
        first = load_bytes(piece, 1);
        last = load_bytes(piece + length - 1, 1) | load_bytes(piece + length / 2, 1) << 8;
    }
    hash = (first ^ length << 59) * 0x9E3779B97F4A7C15u + last * 0xD6E8FEB86659FD93u;
    return hash >> 51;
}
_Static_assert(SEEN_GAPS == 1 << (64 - 51), "seen_index gives 13 bits");

static bool same_piece(const uint8_t *a, const uint8_t *b, size_t n) {
    if (n < 8) {
        uint32_t differ = 0;
        if (n < 4)
            return a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1];
        differ = (uint32_t)(load_bytes(a, 4) ^ load_bytes(b, 4));
        return (differ | (uint32_t)(load_bytes(a + n - 4, 4) ^ load_bytes(b + n - 4, 4))) == 0;
    }
    for (size_t at = 0; at + 8 < n; at += 8)
        if (load_bytes(a + at, 8) != load_bytes(b + at, 8))
            return false;
    return load_bytes(a + n - 8, 8) == load_bytes(b + n - 8, 8);
}

/* New pieces often come several times in a run: gaps with the same piece as an earlier one become SAME_AS it. The
 * others that are not filled are put in `order` by length, because pieces that are merged together should take equally
 * many steps. Returns how many. Pieces longer than PIECE_TOGETHER are left out. */
static size_t sort_gaps(quick_work *work, size_t n_gaps) {
    size_t at[PIECE_TOGETHER + 1] = {0}, sum = 0, length, other;
    for (size_t i = 0; i < n_gaps; i++) {
        piece_gap *gap = &work->gaps[i];
        const uint8_t *piece = piece_of(&work->run, gap->piece, &length);
        if (length > PIECE_TOGETHER || gap->count != NOT_FILLED)
            continue;
        uint16_t *seen = &work->seen[seen_index(piece, length)];
        const uint8_t *first = piece_of(&work->run, work->gaps[*seen < i ? *seen : i].piece, &other);
        if (*seen < i && other == length && same_piece(first, piece, length)) {
            gap->count = SAME_AS;
            gap->start = *seen;
            continue;
        }
        *seen = (uint16_t)i;
        at[length]++;
    }
    for (size_t i = 0; i <= PIECE_TOGETHER; i++) {
        size_t n = at[i];
        at[i] = sum;
        sum += n;
    }
    for (size_t i = 0; i < n_gaps; i++) {
        piece_of(&work->run, work->gaps[i].piece, &length);
        if (length <= PIECE_TOGETHER && work->gaps[i].count == NOT_FILLED)
            work->order[at[length]++] = (uint16_t)i;
    }
    return sum;
}

/* Fills a gap from the cache, if it has the piece. */
static gm_status fill_known(quick_work *work, piece_gap *gap) {
    size_t length;
    const uint8_t *piece = piece_of(&work->run, gap->piece, &length);
    id_buffer *missing = &work->missing;
    if (length > PIECE_LONG)
        return GM_OK;
    GM_TRY(ids_reserve(missing, MEDIUM_IDS + MOST_IDS_OF(length)));
    far_ids far = {0};
    const size_t count = piece_cache_find(&work->cache, piece, length, missing->data + missing->size,
                                          MOST_IDS_OF(length), &far);
    far_copy(&far);
    if (count == PIECE_NOT_KEPT)
        return GM_OK;
    gap->start = (uint32_t)missing->size;
    gap->count = (uint32_t)count;
    missing->size += count;
    return GM_OK;
}

/* Fills a remaining gap, from the cache or by the general path. */
static gm_status fill_alone(const quick_way *way, quick_work *work, model_work *scratch, piece_gap *gap) {
    size_t length;
    const uint8_t *piece = piece_of(&work->run, gap->piece, &length);
    GM_TRY(fill_known(work, gap));
    if (gap->count != NOT_FILLED)
        return GM_OK;
    gap->start = (uint32_t)work->missing.size;
    GM_TRY(encode_alone(way, work, scratch, piece, length, &work->missing));
    gap->count = (uint32_t)(work->missing.size - gap->start);
    return GM_OK;
}

/* Fills all gaps. */
static gm_status fill(const quick_way *way, quick_work *work, model_work *scratch, size_t n_gaps) {
    const model *m = way->model;
    bool together = m->kind == MODEL_BPE && (way->kind == QUICK_WORDS || m->bpe.byte_level) &&
                    (m->bpe.byte_level || !m->bpe.ignore_merges);
    const bool crowded = many_capacity(&work->run) == MANY_CAPACITY; /* gaps may be pieces of the cache */
    piece_gap *batch[MERGE_TASKS];
    work->missing.size = 0;
    for (size_t i = 0; i < n_gaps; i++) {
        work->gaps[i].count = NOT_FILLED;
        if (crowded)
            GM_TRY(fill_known(work, &work->gaps[i]));
    }
    size_t n_batch = 0, n = sort_gaps(work, n_gaps);
    for (size_t i = 0; i < n && together; i++) {
        batch[n_batch++] = &work->gaps[work->order[i]];
        if (n_batch == MERGE_TASKS || i + 1 == n) {
            GM_TRY(fill_together(way, work, batch, n_batch));
            n_batch = 0;
        }
    }
    for (size_t i = 0; i < n_gaps; i++) {
        piece_gap *gap = &work->gaps[i];
        if (gap->count == SAME_AS) { /* an earlier gap, which is filled */
            gap->count = work->gaps[gap->start].count;
            gap->start = work->gaps[gap->start].start;
        } else if (gap->count == NOT_FILLED) {
            GM_TRY(fill_alone(way, work, scratch, gap));
        }
    }
    return GM_OK;
}

/* ---- encoding ---- */
static gm_status encode_run(const quick_way *way, quick_work *work, model_work *scratch, id_buffer *ids) {
    GM_TRY(ids_reserve(ids, MEDIUM_IDS * (work->run.n + 1) + many_capacity(&work->run)));
    size_t before = ids->size, n_gaps = way->kernels->find(&work->cache, &work->run, ids, work->gaps);
    if (n_gaps == 0)
        return GM_OK;
    size_t found = ids->size - before;
    GM_TRY(fill(way, work, scratch, n_gaps));
    size_t more = 0;
    for (size_t i = 0; i < n_gaps; i++)
        more += work->gaps[i].count;
    GM_TRY(ids_reserve(ids, more));
    int32_t *first = ids->data + before;
    const int32_t *missing = work->missing.data; /* NULL if all gaps are empty */
    ids->size += more;
    /* From the back, ids that were found move to after the gaps that precede them. */
    for (size_t i = n_gaps; i-- > 0; found = work->gaps[i].at) {
        const piece_gap *gap = &work->gaps[i];
        memmove(first + gap->at + more, first + gap->at, (found - gap->at) * sizeof *first);
        more -= gap->count;
        if (gap->count != 0)
            copy_ids(first + gap->at + more, missing + gap->start, gap->count);
    }
    return GM_OK;
}

gm_status quick_encode(const quick_way *way, quick_work *work, model_work *scratch, const uint8_t *text, size_t length,
                       id_buffer *ids) {
    piece_run *run = &work->run;
    size_t at = 0;
    if (way->kind == QUICK_WORDS && way->prefix && length > 0) {
        /* The marker at the start is a space before the first word. */
        run->text = text;
        run->length = length;
        at = way->kernels->split_words(&way->words, run, 0);
        size_t first = run->ends[0];
        work->first.size = 0;
        GM_TRY(bytes_append(&work->first, " ", 1));
        GM_TRY(bytes_append(&work->first, text, first));
        run->text = work->first.data;
        run->length = work->first.size;
        run->start = 0;
        run->ends[0] = (uint32_t)work->first.size;
        run->n = 1;
        GM_TRY(encode_run(way, work, scratch, ids));
        at = first;
    }
    run->text = text;
    run->length = length;
    while (at < length) {
        at = way->kind == QUICK_WORDS ? way->kernels->split_words(&way->words, run, at)
                                      : way->kernels->split(way->scanner, run, at);
        GM_TRY(encode_run(way, work, scratch, ids));
    }
    return GM_OK;
}
