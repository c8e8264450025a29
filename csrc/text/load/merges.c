/* merges.c - see merges.h. */
#include "text/load/merges.h"

void merges_open(merge_reader *m, const vocab *v, bpe *b) {
    m->vocab = v;
    m->bpe = b;
    m->n = 0;
    m->last = -1;
    m->blob = (byte_buffer){0};
    m->pairs = NULL;
    m->pair_capacity = 0;
    m->results = (id_buffer){0};
}

void merges_close(merge_reader *m) {
    memory_free(m->blob.data);
    memory_free(m->pairs);
    memory_free(m->results.data);
}

static size_t rank_of(const merge_reader *m) { return m->results.size + m->n; }

static int shown(size_t length) { return length < 64 ? (int)length : 64; }

/* The right part without its prefix. */
static vocab_string tail_of(const merge_reader *m, vocab_string right) {
    size_t prefix = m->bpe->prefix_length;
    return (vocab_string){right.text + prefix, right.length - prefix};
}

/* Looks up the result of a merge; *id is -1 if it is not a token. */
static gm_status find_joined(const merge_reader *m, vocab_string left, vocab_string right, int32_t *id) {
    byte_buffer text = {0};
    right = tail_of(m, right);
    gm_status status = bytes_reserve(&text, left.length + right.length + 1);
    if (status == GM_OK)
        status = bytes_append(&text, left.text, left.length);
    if (status == GM_OK)
        status = bytes_append(&text, right.text, right.length);
    if (status == GM_OK)
        *id = vocab_find(m->vocab, text.data, text.size);
    memory_free(text.data);
    return status;
}

static gm_status fail_merge(const merge_reader *m, size_t i, int32_t left_id, int32_t right_id) {
    vocab_string left = m->texts[2 * i], right = m->texts[2 * i + 1], rest = tail_of(m, right);
    vocab_string missing = left_id < 0 ? left : right_id < 0 ? right : left;
    bool both = left_id >= 0 && right_id >= 0;
    int most = 64 - shown(missing.length);
    return gm_fail(GM_EBADFILE, "tokenizer: merge %zu joins '%.*s' and '%.*s', but the vocabulary has no '%.*s%.*s'",
                   m->results.size, shown(left.length), left.text, shown(right.length), right.text,
                   shown(missing.length), missing.text,
                   !both                       ? 0
                   : shown(rest.length) < most ? shown(rest.length)
                                               : most,
                   rest.text);
}

/* Looks up the batch. In most files the merges are in the order of their results. */
static gm_status look_up(merge_reader *m) {
    int32_t ids[2 * MERGES_BATCH];
    if (m->pair_capacity - m->results.size < m->n) {
        size_t usual = 2 * m->vocab->n_ids; /* files have one or two merges per token */
        GM_TRY(grow_array(&m->pairs, m->results.size, &m->pair_capacity, m->pairs ? m->n : usual + m->n,
                          sizeof *m->pairs));
        memory_expect(m->pairs, m->pair_capacity * sizeof *m->pairs);
    }
    GM_TRY(ids_reserve(&m->results, m->n));
    vocab_find_strings(m->vocab, m->texts, 2 * m->n, ids);
    for (size_t i = 0; i < m->n; i++) {
        vocab_string left = m->texts[2 * i], right = m->texts[2 * i + 1], tail = tail_of(m, right);
        if (vocab_is_joined(m->vocab, m->last + 1, left, tail))
            m->last++;
        else if (!vocab_is_joined(m->vocab, m->last, left, tail))
            GM_TRY(find_joined(m, left, right, &m->last));
        if (ids[2 * i] < 0 || ids[2 * i + 1] < 0 || m->last < 0)
            return fail_merge(m, i, ids[2 * i], ids[2 * i + 1]);
        m->pairs[m->results.size] = BPE_PAIR(ids[2 * i], ids[2 * i + 1]);
        m->results.data[m->results.size++] = m->last;
    }
    m->n = 0;
    m->blob.size = 0;
    return GM_OK;
}

gm_status merges_add(merge_reader *m, vocab_string left, vocab_string right) {
    if (left.length > UINT32_MAX / 8 || right.length > UINT32_MAX / 8)
        return gm_fail(GM_EBADFILE, "tokenizer: merge %zu has parts of %zu and %zu bytes, expected at most %u",
                       rank_of(m), left.length, right.length, UINT32_MAX / 8);
    if (right.length < m->bpe->prefix_length)
        return gm_fail(GM_EBADFILE,
                       "tokenizer: merge %zu: its right part '%.*s' is shorter than the "
                       "continuing_subword_prefix '%s'",
                       rank_of(m), (int)right.length, right.text, m->bpe->prefix);
    m->texts[2 * m->n] = left;
    m->texts[2 * m->n + 1] = right;
    return ++m->n == MERGES_BATCH ? look_up(m) : GM_OK;
}

/* Moves the batch's copied texts to a larger block. */
static gm_status widen_blob(merge_reader *m, size_t more) {
    byte_buffer wider = {0};
    GM_TRY(bytes_reserve(&wider, 2 * m->blob.size + more));
    GM_TRY(bytes_append(&wider, m->blob.data, m->blob.size));
    uintptr_t start = (uintptr_t)m->blob.data;
    for (size_t i = 0; i < 2 * m->n; i++) {
        uintptr_t at = (uintptr_t)m->texts[i].text;
        if (at >= start && at - start < m->blob.capacity)
            m->texts[i].text = (const char *)wider.data + (at - start);
    }
    memory_free(m->blob.data);
    m->blob = wider;
    return GM_OK;
}

gm_status merges_copy(merge_reader *m, vocab_string left, vocab_string right) {
    size_t n = left.length + right.length + 1; /* an empty text also has an address */
    if (m->blob.capacity - m->blob.size < n)
        GM_TRY(widen_blob(m, n));
    const char *copy = (const char *)m->blob.data + m->blob.size;
    GM_TRY(bytes_append(&m->blob, left.text, left.length));
    GM_TRY(bytes_append(&m->blob, right.text, right.length));
    m->blob.size++;
    return merges_add(m, (vocab_string){copy, left.length}, (vocab_string){copy + left.length, right.length});
}

gm_status merges_finish(merge_reader *m) {
    GM_TRY(look_up(m));
    return bpe_set_merges(m->bpe, m->pairs, &m->results);
}
