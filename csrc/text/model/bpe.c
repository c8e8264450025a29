/* bpe.c - see bpe.h. */
#include "text/fast/pieces.h"
#include "text/unicode/alphabet.h"

#define NO_SYMBOL UINT32_MAX

/* ---- the merge table ---- */
static void insert_merge(bpe *b, uint64_t slot) {
    uint64_t hash = bpe_hash(slot >> 20 << 20);
    size_t at = hash >> 3 & (b->n_slots - 1);
    b->filter[hash >> 3 & (b->n_slots / 4 - 1)] |= (uint8_t)(1 << (hash & 7));
    while (b->slots[at] != BPE_FREE && b->slots[at] >> 20 != slot >> 20)
        at = (at + 1) & (b->n_slots - 1);
    b->slots[at] = slot;
}

gm_status bpe_set_merges(bpe *b, const uint64_t *pairs, id_buffer *results) {
    enum { AHEAD = 24 };
    size_t n = results->size, n_slots = 64;
    if (n > BPE_MOST_MERGES)
        return gm_fail(GM_EUNSUPPORTED, "tokenizer: more than %u merges are not supported", BPE_MOST_MERGES);
    while (n_slots < 2 * n)
        n_slots *= 2;
    b->slots = memory_table(n_slots * sizeof *b->slots);
    if (!b->slots)
        return GM_ENOMEM;
    b->n_slots = n_slots;
    b->filter = memory_table(n_slots / 4);
    if (!b->filter)
        return GM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n) /* its future slot */
            __builtin_prefetch(&b->slots[bpe_hash(pairs[i + AHEAD]) >> 3 & (n_slots - 1)], 1);
        insert_merge(b, pairs[i] | (i + 1));
    }
    b->results = *results;
    *results = (id_buffer){0};
    return GM_OK;
}

#define NO_BYTE (-1)
/* A token in merges: the byte that it is and the bytes that it begins and ends with, NO_BYTE if there is no such byte,
 * and the least rank of its merges. */
typedef struct {
    int16_t byte, first, last;
    uint32_t least;
} token_ends;

static void lower(uint32_t *least, uint32_t rank) { *least = rank < *least ? rank : *least; }

static void lower_part(bpe_pair *pair, int shift, uint32_t rank) {
    if (rank < (*pair >> shift & BPE_NEVER))
        *pair = (*pair & ~((bpe_pair)BPE_NEVER << shift)) | (bpe_pair)rank << shift;
}

/* The byte of a text's first character, which takes two bytes of UTF-8 at most. */
static int16_t alphabet_first(const char *text, size_t n) {
    const uint8_t c = (uint8_t)text[0];
    if (c < 0x80)
        return (int16_t)alphabet_byte(c);
    return n > 1 && c >> 5 == 6 ? (int16_t)alphabet_byte((c & 0x1Fu) << 6 | ((uint8_t)text[1] & 0x3F)) : NO_BYTE;
}

static void find_ends(const bpe *b, const vocab *v, token_ends *ends) {
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n = 0;
        const char *text = vocab_text(v, (int32_t)id, &n);
        ends[id] = (token_ends){NO_BYTE, NO_BYTE, NO_BYTE, BPE_NEVER};
        if (!text || n == 0)
            continue;
        const size_t last = n > 1 && (text[n - 1] & 0x80) ? 2 : 1;
        ends[id].first = alphabet_first(text, n);
        ends[id].last = alphabet_first(text + n - last, last);
    }
    for (int byte = 0; byte < 256; byte++)
        if (b->symbols[byte] >= 0)
            ends[b->symbols[byte]].byte = (int16_t)byte;
}

/* Fills byte_pairs. Merges of tokens that begin or end with a character outside the alphabet are left out: bytes never
 * become such tokens. */
static void pair_bytes(bpe *b, token_ends *ends) {
    for (int i = 0; i < 256 * 256; i++)
        b->byte_pairs[i] = BPE_NO_PAIR;
    for (size_t i = 0; i < b->n_slots; i++) {
        if (b->slots[i] == BPE_FREE)
            continue;
        const uint32_t rank = ((uint32_t)b->slots[i] & BPE_MOST_MERGES) - 1;
        token_ends *left = &ends[b->slots[i] >> 42], *right = &ends[b->slots[i] >> 20 & ((1 << 22) - 1)];
        lower(&left->least, rank);
        lower(&right->least, rank);
        if (left->last == NO_BYTE || right->first == NO_BYTE)
            continue;
        if (left->byte != NO_BYTE && right->byte != NO_BYTE) {
            bpe_pair *pair = &b->byte_pairs[256 * left->byte + right->byte];
            *pair = (*pair & ~(bpe_pair)BPE_NEVER) | rank;
        }
        if (right->byte != NO_BYTE)
            lower_part(&b->byte_pairs[256 * left->last + right->byte], PAIR_LEFT, rank);
        if (left->byte != NO_BYTE)
            lower_part(&b->byte_pairs[256 * left->byte + right->first], PAIR_RIGHT, rank);
    }
    for (int i = 0; i < 256 * 256; i++) {
        const uint32_t rank = bpe_pair_rank(b->byte_pairs[i]);
        if (rank != BPE_NEVER && ends[b->results.data[rank]].least <= rank)
            b->byte_pairs[i] |= PAIR_WAITS;
    }
}

static gm_status rank_bytes(bpe *b, const vocab *v) {
    token_ends *ends = memory_array(v->n_ids + 1, sizeof *ends);
    b->byte_pairs = memory_array(256 * 256, sizeof *b->byte_pairs);
    if (!b->byte_pairs || !ends) {
        memory_free(ends);
        return GM_ENOMEM;
    }
    find_ends(b, v, ends);
    pair_bytes(b, ends);
    memory_free(ends);
    return GM_OK;
}

gm_status bpe_prepare(bpe *b, const vocab *v) {
    b->kernels = piece_kernels_get();
    while (b->n_slots > 0 && b->slots[b->free_slot] != BPE_FREE)
        b->free_slot++;
    vocab_find_bytes(v, b->bytes);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t text[4];
        if (b->byte_level)
            b->symbols[byte] = vocab_find(v, text, utf8_put(alphabet_char((uint8_t)byte), text));
        else
            b->symbols[byte] = byte < 0x80 ? vocab_find(v, &(uint8_t){(uint8_t)byte}, 1) : -1;
    }
    return b->byte_level ? rank_bytes(b, v) : GM_OK;
}

void bpe_free(bpe *b) {
    memory_table_free(b->slots, b->n_slots * sizeof *b->slots);
    memory_table_free(b->filter, b->n_slots / 4);
    memory_free(b->results.data);
    memory_free(b->byte_pairs);
    memory_free(b->prefix);
    memory_free(b->suffix);
    *b = (bpe){0};
}

void bpe_work_free(bpe_work *work) {
    memory_free(work->symbols);
    memory_free(work->heap);
    memory_free(work->alphabet.data);
}

/* ---- the first symbols ---- */
static gm_status push_symbol(bpe_work *work, int32_t id, size_t length) {
    GM_TRY(grow_array(&work->symbols, work->n_symbols, &work->symbol_capacity, 1, sizeof *work->symbols));
    work->symbols[work->n_symbols].id = id;
    work->symbols[work->n_symbols++].length = (uint32_t)length;
    return GM_OK;
}

/* The bytes of a character become symbols if all of them have tokens. */
static gm_status push_bytes(const bpe *b, bpe_work *work, const uint8_t *bytes, size_t n, bool *done) {
    *done = false;
    for (size_t i = 0; i < n; i++)
        if (b->bytes[bytes[i]] < 0)
            return GM_OK;
    for (size_t i = 0; i < n; i++)
        GM_TRY(push_symbol(work, b->bytes[bytes[i]], 1));
    *done = true;
    return GM_OK;
}

/* Into work->alphabet the character's text in the vocabulary: in the alphabet, with prefix and suffix. */
static gm_status spell_symbol(const bpe *b, bpe_work *work, const uint8_t *symbol, size_t n, bool first, bool last) {
    byte_buffer *out = &work->alphabet;
    uint8_t mapped[4];
    if (b->byte_level) {
        n = utf8_put(alphabet_char(*symbol), mapped);
        symbol = mapped;
    }
    out->size = 0;
    if (!first)
        GM_TRY(bytes_append(out, b->prefix, b->prefix_length));
    GM_TRY(bytes_append(out, symbol, n));
    if (last)
        GM_TRY(bytes_append(out, b->suffix, b->suffix_length));
    return GM_OK;
}

/* One symbol per byte or character. A character without one becomes its bytes, or unknown, or is dropped. An unknown
 * symbol is held until the next known one, so that adjacent ones can fuse; byte symbols do not release it (as in the
 * reference). */
static gm_status push_symbols(const bpe *b, const vocab *v, bpe_work *work, const uint8_t *piece, size_t length) {
    bool affixes = b->prefix_length + b->suffix_length > 0;
    size_t held = 0; /* bytes of the unknown symbol */
    for (size_t at = 0; at < length;) {
        size_t start = at, n;
        const uint8_t *text = piece + start;
        int32_t id;
        if (b->byte_level || piece[at] < 0x80)
            at++;
        else
            utf8_next(piece, &at);
        n = at - start;
        if (affixes) {
            GM_TRY(spell_symbol(b, work, piece + start, at - start, start == 0, at == length));
            text = work->alphabet.data;
            n = work->alphabet.size;
        }
        if (!affixes && (b->byte_level || piece[start] < 0x80))
            id = b->symbols[piece[start]];
        else
            id = vocab_find(v, text, n);
        if (id >= 0) {
            if (held > 0)
                GM_TRY(push_symbol(work, b->unknown, held));
            held = 0;
            GM_TRY(push_symbol(work, id, at - start));
            continue;
        }
        if (b->byte_fallback) {
            bool done;
            if (b->byte_level && !affixes) {
                GM_TRY(spell_symbol(b, work, piece + start, 1, true, false));
                text = work->alphabet.data;
                n = work->alphabet.size;
            }
            GM_TRY(push_bytes(b, work, text, n, &done));
            if (done)
                continue;
        }
        if (b->unknown == BPE_NO_UNKNOWN)
            continue;
        if (b->unknown == BPE_MISSING_UNKNOWN)
            return gm_fail(GM_EVALUE, "tokenizer: a character has no token, and the vocabulary has no unknown token");
        if (held > 0 && !b->fuse_unknown) {
            GM_TRY(push_symbol(work, b->unknown, held));
            held = 0;
        }
        held += at - start;
    }
    return held > 0 ? push_symbol(work, b->unknown, held) : GM_OK;
}

/* ---- merging ---- */
/* Appends a token of the piece; *at is its start, and then its end. */
static gm_status append_token(id_buffer *out, span_buffer *spans, int32_t id, uint32_t *at, uint32_t length) {
    if (spans)
        GM_TRY(spans_append(spans, (text_span){*at, *at + length}));
    *at += length;
    return ids_append(out, id);
}

/* The task has symbols, or with `bytes` bytes. */
static gm_status merge_short(const bpe *b, const bpe_work *work, merge_task *task, bool bytes, id_buffer *out,
                             span_buffer *spans) {
    uint32_t at = 0;
    b->kernels->merge(b, task, 1, bytes);
    GM_TRY(ids_reserve(out, task->n));
    for (size_t i = 0, k = 0; i < task->n; i++) {
        uint32_t length = 0;
        for (; k < task->ends[i] && spans; k++)
            length += bytes ? 1 : work->symbols[k].length;
        GM_TRY(append_token(out, spans, task->ids[i], &at, length));
    }
    return GM_OK;
}

bool bpe_open_task(const bpe *b, merge_task *task, const uint8_t *piece, size_t length) {
    if (!b->byte_level || length > BPE_SHORT || b->prefix_length + b->suffix_length > 0)
        return false;
    int32_t all = 0;
    for (size_t i = 0; i < length; i++) {
        all |= b->symbols[piece[i]];
        task->ids[i] = piece[i];
    }
    task->n = (uint8_t)length;
    return all >= 0;
}

static gm_status heap_push(bpe_work *work, bpe_candidate candidate) {
    GM_TRY(grow_array(&work->heap, work->n_heap, &work->heap_capacity, 1, sizeof *work->heap));
    size_t at = work->n_heap++;
    while (at > 0 && candidate < work->heap[(at - 1) / 4]) {
        work->heap[at] = work->heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    work->heap[at] = candidate;
    return GM_OK;
}

static bpe_candidate heap_pop(bpe_work *work) {
    bpe_candidate *heap = work->heap, top = heap[0], moved = heap[--work->n_heap];
    size_t n = work->n_heap, at = 0;
    for (;;) {
        size_t first = 4 * at + 1, least = first;
        if (first >= n)
            break;
        for (size_t i = first + 1; i < first + 4 && i < n; i++)
            least = heap[i] < heap[least] ? i : least;
        if (heap[least] >= moved)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = moved;
    return top;
}

/* Pushes the merge of the symbol at `at` with the next one, if there is any. */
static gm_status push_candidate(const bpe *b, bpe_work *work, uint32_t at) {
    const bpe_symbol *s = work->symbols;
    if (at == NO_SYMBOL || s[at].next == NO_SYMBOL)
        return GM_OK;
    uint32_t rank = bpe_rank(b, s[at].id, s[s[at].next].id);
    return rank == BPE_NO_RANK ? GM_OK : heap_push(work, (uint64_t)rank << 32 | at);
}

static gm_status merge_long(const bpe *b, bpe_work *work, id_buffer *out, span_buffer *spans) {
    uint32_t at = 0;
    bpe_symbol *s = work->symbols;
    size_t n = work->n_symbols;
    for (size_t i = 0; i < n; i++) {
        s[i].previous = i == 0 ? NO_SYMBOL : (uint32_t)(i - 1);
        s[i].next = i + 1 == n ? NO_SYMBOL : (uint32_t)(i + 1);
    }
    work->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        GM_TRY(push_candidate(b, work, (uint32_t)i));
    while (work->n_heap > 0) {
        bpe_candidate top = heap_pop(work);
        const uint32_t i = (uint32_t)top;
        bpe_symbol *left = &s[i];
        if (left->id < 0 || left->next == NO_SYMBOL)
            continue;
        /* Entries stay when a neighbour changes: the pair must still give the same token. */
        bpe_symbol *right = &s[left->next];
        uint32_t rank = bpe_rank(b, left->id, right->id);
        if (rank == BPE_NO_RANK || b->results.data[rank] != b->results.data[top >> 32])
            continue;
        left->id = b->results.data[rank];
        left->length += right->length;
        right->id = -1;
        left->next = right->next;
        if (right->next != NO_SYMBOL)
            s[right->next].previous = i;
        GM_TRY(push_candidate(b, work, left->previous));
        GM_TRY(push_candidate(b, work, i));
    }
    for (size_t i = 0; i < n; i++)
        if (s[i].id >= 0)
            GM_TRY(append_token(out, spans, s[i].id, &at, s[i].length));
    return GM_OK;
}

gm_status bpe_encode(const bpe *b, const vocab *v, bpe_work *work, const uint8_t *piece, size_t length, id_buffer *out,
                     span_buffer *spans) {
    if (b->ignore_merges) {
        const uint8_t *text = piece;
        size_t n = length;
        if (b->byte_level) {
            GM_TRY(alphabet_text(piece, length, &work->alphabet));
            text = work->alphabet.data;
            n = work->alphabet.size;
        }
        int32_t id = vocab_find(v, text, n);
        if (id >= 0)
            return append_token(out, spans, id, &(uint32_t){0}, (uint32_t)length);
    }
    merge_task task;
    if (bpe_open_task(b, &task, piece, length))
        return merge_short(b, work, &task, true, out, spans);
    work->n_symbols = 0;
    GM_TRY(push_symbols(b, v, work, piece, length));
    if (work->n_symbols > BPE_SHORT)
        return merge_long(b, work, out, spans);
    for (size_t i = 0; i < work->n_symbols; i++)
        task.ids[i] = work->symbols[i].id;
    task.n = (uint8_t)work->n_symbols;
    return merge_short(b, work, &task, false, out, spans);
}
