/* merges.c - see merges.h. */
#include "text/merges.h"

void merges_open(merge_reader *m, const vocab *v, bpe *b) {
    m->vocab = v;
    m->bpe = b;
    m->n = 0;
    m->blob = (byte_buffer){ 0 };
    m->rows = (id_buffer){ 0 };
}

void merges_close(merge_reader *m) {
    memory_free(m->blob.data);
    memory_free(m->rows.data);
}

static size_t rank_of(const merge_reader *m) { return m->rows.size / 3 + m->n; }

static int shown(vocab_token text) { return text.length < 64 ? (int)text.length : 64; }

static gm_status fail_merge(const merge_reader *m, size_t i, const int32_t *ids) {
    const vocab_token *t = &m->texts[3 * i];
    vocab_token missing = ids[3 * i] < 0 ? t[0] : ids[3 * i + 1] < 0 ? t[1] : t[2];
    const char *blob = (const char *)m->blob.data;
    return gm_fail(GM_EBADFILE, "tokenizer: merge %zu joins '%.*s' and '%.*s', but the vocabulary has no '%.*s'",
                   m->rows.size / 3 + i, shown(t[0]), blob + t[0].offset, shown(t[1]), blob + t[1].offset,
                   shown(missing), blob + missing.offset);
}

static gm_status look_up(merge_reader *m) {
    if (m->rows.capacity - m->rows.size < VOCAB_BATCH) {
        void *rows = m->rows.data;
        GM_TRY(buffer_grow(&rows, m->rows.size, &m->rows.capacity, VOCAB_BATCH, sizeof(int32_t)));
        m->rows.data = rows;
    }
    int32_t *ids = m->rows.data + m->rows.size;
    vocab_find_many(m->vocab, m->blob.data, m->texts, 3 * m->n, ids);
    for (size_t i = 0; i < m->n; i++)
        if (ids[3 * i] < 0 || ids[3 * i + 1] < 0 || ids[3 * i + 2] < 0)
            return fail_merge(m, i, ids);
    m->rows.size += 3 * m->n;
    m->n = 0;
    m->blob.size = 0;
    return GM_OK;
}

gm_status merges_add(merge_reader *m, const char *left, size_t n_left, const char *right, size_t n_right) {
    size_t prefix = m->bpe->prefix_length;
    if (n_left > UINT32_MAX / 8 || n_right > UINT32_MAX / 8 || m->blob.size > UINT32_MAX / 2)
        return gm_fail(GM_EBADFILE, "tokenizer: merge %zu has parts of %zu and %zu bytes", rank_of(m), n_left, n_right);
    if (n_right < prefix)
        return gm_fail(GM_EBADFILE, "tokenizer: merge %zu: its right part '%.*s' is shorter than the "
                       "continuing_subword_prefix '%s'", rank_of(m), (int)n_right, right, m->bpe->prefix);
    vocab_token *t = &m->texts[3 * m->n];
    uint32_t start = (uint32_t)m->blob.size, joined = start;
    GM_TRY(bytes_reserve(&m->blob, n_left + n_right + 1));
    GM_TRY(bytes_append(&m->blob, left, n_left));
    GM_TRY(bytes_append(&m->blob, right, n_right));
    if (prefix > 0) {
        joined = (uint32_t)m->blob.size;
        GM_TRY(bytes_append(&m->blob, left, n_left));
        GM_TRY(bytes_append(&m->blob, right + prefix, n_right - prefix));
    }
    t[0] = (vocab_token){ start, (uint32_t)n_left };
    t[1] = (vocab_token){ start + (uint32_t)n_left, (uint32_t)n_right };
    t[2] = (vocab_token){ joined, (uint32_t)(n_left + n_right - prefix) };
    return ++m->n == MERGES_BATCH ? look_up(m) : GM_OK;
}

gm_status merges_finish(merge_reader *m) {
    enum { AHEAD = 24 };
    GM_TRY(look_up(m));
    const int32_t *rows = m->rows.data;
    size_t n = m->rows.size / 3;
    GM_TRY(bpe_reserve(m->bpe, n));
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            bpe_expect_merge(m->bpe, rows[3 * (i + AHEAD)], rows[3 * (i + AHEAD) + 1]);
        GM_TRY(bpe_add_merge(m->bpe, (bpe_merge){ rows[3 * i], rows[3 * i + 1], (uint32_t)i, rows[3 * i + 2] }));
    }
    return GM_OK;
}
