/* vocab.c - a hash table of token strings. See vocab.h. */
#include "text/model/vocab.h"
#include "text/fast/word.h"

/* Eight bytes at a time through a multiply; the tail is one padded word. */
static inline uint32_t hash_text(const uint8_t *text, size_t length) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    h = (h ^ short_word(text, length)) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

/* Most strings are a word or two long, for which a call of memcmp would take longer than comparing. */
static inline bool same_bytes(const uint8_t *a, const uint8_t *b, size_t n) {
    uint64_t word_a, word_b;
    uint32_t half_a, half_b;
    if (n < 4)
        return n == 0 || (a[0] == b[0] && a[n >> 1] == b[n >> 1] && a[n - 1] == b[n - 1]);
    if (n < 8) {
        memcpy(&half_a, a, 4);
        memcpy(&half_b, b, 4);
        if (half_a != half_b)
            return false;
        memcpy(&half_a, a + n - 4, 4);
        memcpy(&half_b, b + n - 4, 4);
        return half_a == half_b;
    }
    for (size_t at = 0;; at = at + 16 < n ? at + 8 : n - 8) { /* the last two overlap */
        memcpy(&word_a, a + at, 8);
        memcpy(&word_b, b + at, 8);
        if (word_a != word_b)
            return false;
        if (at + 8 == n)
            return true;
    }
}

static inline bool same_text(const vocab *v, int32_t id, const void *text, size_t length) {
    const vocab_token *t = &v->tokens[id];
    return t->length == length && same_bytes(v->blob.data + t->offset, text, length);
}

static gm_status resize_slots(vocab *v, size_t n_slots) {
    vocab_slot *slots = memory_table(n_slots * sizeof *slots);
    if (!slots)
        return GM_ENOMEM;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (size_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i].id < 0)
            continue;
        size_t at = v->slots[i].hash & (n_slots - 1);
        while (slots[at].id >= 0)
            at = (at + 1) & (n_slots - 1);
        slots[at] = v->slots[i];
    }
    memory_table_free(v->slots, v->n_slots * sizeof *slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return GM_OK;
}

gm_status vocab_reserve(vocab *v, size_t n, size_t bytes) {
    if (n > VOCAB_MAX)
        n = VOCAB_MAX;
    size_t n_slots = 64;
    while (n_slots < 2 * n)
        n_slots *= 2;
    GM_TRY(bytes_reserve(&v->blob, bytes));
    return n_slots > v->n_slots ? resize_slots(v, n_slots) : GM_OK;
}

/* The string's slot, or the free slot to put it in. */
static vocab_slot *slot_of(const vocab *v, uint32_t hash, const void *text, size_t length) {
    size_t at = hash & (v->n_slots - 1);
    while (v->slots[at].id >= 0 && !(v->slots[at].hash == hash && same_text(v, v->slots[at].id, text, length)))
        at = (at + 1) & (v->n_slots - 1);
    return &v->slots[at];
}

gm_status vocab_append(vocab *v, const char *text, size_t length, int64_t id) {
    if (id < 0 || id >= VOCAB_MAX)
        return gm_fail(GM_EBADFILE, "tokenizer: token id %lld of '%.*s' is out of range, expected 0 to %d",
                       (long long)id, length < 64 ? (int)length : 64, text, VOCAB_MAX - 1);
    if (v->blob.size + length > UINT32_MAX / 2)
        return gm_fail(GM_EBADFILE, "tokenizer: the vocabulary's strings are longer than 2 GiB together");
    if ((size_t)id >= v->id_capacity) {
        const size_t before = v->id_capacity;
        GM_TRY(grow_array(&v->tokens, before, &v->id_capacity, (size_t)id + 1 - before, sizeof *v->tokens));
        memset(v->tokens + before, 0xFF, (v->id_capacity - before) * sizeof(vocab_token));
    }
    if (v->tokens[id].length != UINT32_MAX) {
        if (same_text(v, (int32_t)id, text, length))
            return GM_OK;
        size_t old_length = 0;
        const char *old = vocab_text(v, (int32_t)id, &old_length);
        return gm_fail(GM_EBADFILE, "tokenizer: id %lld is used by '%.*s' and by '%.*s'", (long long)id,
                       old_length < 64 ? (int)old_length : 64, old, length < 64 ? (int)length : 64, text);
    }
    vocab_token token = {(uint32_t)v->blob.size, (uint32_t)length};
    GM_TRY(bytes_reserve(&v->blob, length + 1)); /* an empty string also has an address */
    GM_TRY(bytes_append(&v->blob, text, length));
    v->tokens[id] = token;
    if ((size_t)id >= v->n_ids)
        v->n_ids = (size_t)id + 1;
    return GM_OK;
}

gm_status vocab_add(vocab *v, const char *text, size_t length, int64_t id) {
    if (2 * (v->n_strings + 1) > v->n_slots)
        GM_TRY(resize_slots(v, v->n_slots == 0 ? 64 : 2 * v->n_slots));
    GM_TRY(vocab_append(v, text, length, id));
    uint32_t hash = hash_text((const uint8_t *)text, length);
    vocab_slot *slot = slot_of(v, hash, text, length);
    v->n_strings += slot->id < 0;
    v->repeats |= slot->id >= 0 && slot->id != id;
    *slot = (vocab_slot){hash, (int32_t)id};
    return GM_OK;
}

/* Block by block: first prefetches the strings' slots, then fills them. */
gm_status vocab_index(vocab *v) {
    enum { BLOCK = 64 };
    uint32_t hashes[BLOCK];
    size_t n_slots = 64;
    while (n_slots < 2 * v->n_ids)
        n_slots *= 2;
    GM_TRY(resize_slots(v, n_slots));
    for (size_t first = 0; first < v->n_ids; first += BLOCK) {
        size_t n = v->n_ids - first < BLOCK ? v->n_ids - first : BLOCK;
        for (size_t i = 0; i < n; i++) {
            const vocab_token *t = &v->tokens[first + i];
            if (t->length == UINT32_MAX)
                continue;
            hashes[i] = hash_text(v->blob.data + t->offset, t->length);
            __builtin_prefetch(&v->slots[hashes[i] & (n_slots - 1)], 1);
        }
        for (size_t i = 0; i < n; i++) {
            const vocab_token *t = &v->tokens[first + i];
            if (t->length == UINT32_MAX)
                continue;
            vocab_slot *slot = slot_of(v, hashes[i], v->blob.data + t->offset, t->length);
            v->n_strings += slot->id < 0;
            v->repeats |= slot->id >= 0;
            if (slot->id < 0 || v->tokens[slot->id].offset <= t->offset) /* the later one of the file counts */
                *slot = (vocab_slot){hashes[i], (int32_t)(first + i)};
        }
    }
    return GM_OK;
}

int32_t vocab_find(const vocab *v, const void *text, size_t length) {
    if (v->n_slots == 0)
        return -1;
    return slot_of(v, hash_text(text, length), text, length)->id;
}

const char *vocab_text(const vocab *v, int32_t id, size_t *length) {
    if (id < 0 || (size_t)id >= v->n_ids || v->tokens[id].length == UINT32_MAX)
        return NULL;
    *length = v->tokens[id].length;
    return (const char *)v->blob.data + v->tokens[id].offset;
}

bool vocab_is_joined(const vocab *v, int32_t id, vocab_string left, vocab_string right) {
    if (id < 0 || (size_t)id >= v->n_ids || v->repeats || v->tokens[id].length != left.length + right.length)
        return false;
    const uint8_t *text = v->blob.data + v->tokens[id].offset;
    return same_bytes(text, (const uint8_t *)left.text, left.length) &&
           same_bytes(text + left.length, (const uint8_t *)right.text, right.length);
}

void vocab_find_strings(const vocab *v, const vocab_string *strings, size_t n, int32_t *ids) {
    uint32_t hashes[VOCAB_BATCH];
    if (v->n_slots == 0) {
        for (size_t i = 0; i < n; i++)
            ids[i] = -1;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        hashes[i] = hash_text((const uint8_t *)strings[i].text, strings[i].length);
        __builtin_prefetch(&v->slots[hashes[i] & (v->n_slots - 1)]);
    }
    /* The first slot of that hash is nearly always the string's, so its text is prefetched before comparing. */
    for (size_t i = 0; i < n; i++) {
        size_t at = hashes[i] & (v->n_slots - 1);
        while (v->slots[at].id >= 0 && v->slots[at].hash != hashes[i])
            at = (at + 1) & (v->n_slots - 1);
        ids[i] = v->slots[at].id;
        if (ids[i] >= 0)
            __builtin_prefetch(&v->tokens[ids[i]]);
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0)
            __builtin_prefetch(v->blob.data + v->tokens[ids[i]].offset);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && !same_text(v, ids[i], strings[i].text, strings[i].length))
            ids[i] = slot_of(v, hashes[i], strings[i].text, strings[i].length)->id;
}

void vocab_find_bytes(const vocab *v, int32_t ids[256]) {
    static const char digits[] = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        ids[byte] = vocab_find(v, name, sizeof name);
    }
}

void vocab_free(vocab *v) {
    memory_free(v->blob.data);
    memory_free(v->tokens);
    memory_table_free(v->slots, v->n_slots * sizeof *v->slots);
    *v = (vocab){0};
}
