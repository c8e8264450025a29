/* merges.c - see merges.h. */
#include "text/merges.h"

void merges_open(merge_reader *m, const vocab *v, bpe *b) {
    m->vocab = v;
    m->bpe = b;
    m->rank = 0;
    m->n = 0;
    m->blob = (byte_buffer){ 0 };
}

void merges_close(merge_reader *m) { memory_free(m->blob.data); }

static int shown(vocab_token text) { return text.length < 64 ? (int)text.length : 64; }

static gm_status fail_merge(const merge_reader *m, size_t i, const int32_t *ids) {
    const vocab_token *t = &m->texts[3 * i];
    vocab_token missing = ids[3 * i] < 0 ? t[0] : ids[3 * i + 1] < 0 ? t[1] : t[2];
    const char *blob = (const char *)m->blob.data;
    return gm_fail(GM_EBADFILE, "tokenizer: merge %u joins '%.*s' and '%.*s', but the vocabulary has no '%.*s'",
                   m->rank + (uint32_t)i, shown(t[0]), blob + t[0].offset, shown(t[1]), blob + t[1].offset,
                   shown(missing), blob + missing.offset);
}

gm_status merges_finish(merge_reader *m) {
    int32_t ids[VOCAB_BATCH];
    vocab_find_many(m->vocab, m->blob.data, m->texts, 3 * m->n, ids);
    for (size_t i = 0; i < m->n; i++) {
        if (ids[3 * i] < 0 || ids[3 * i + 1] < 0 || ids[3 * i + 2] < 0)
            return fail_merge(m, i, ids);
        bpe_expect_merge(m->bpe, ids[3 * i], ids[3 * i + 1]);
    }
    for (size_t i = 0; i < m->n; i++)
        GM_TRY(bpe_add_merge(m->bpe, (bpe_merge){ ids[3 * i], ids[3 * i + 1], m->rank++, ids[3 * i + 2] }));
    m->n = 0;
    m->blob.size = 0;
    return GM_OK;
}

gm_status merges_add(merge_reader *m, const char *left, size_t n_left, const char *right, size_t n_right) {
    size_t prefix = m->bpe->prefix_length;
    if (n_left > UINT32_MAX / 8 || n_right > UINT32_MAX / 8 || m->blob.size > UINT32_MAX / 2)
        return gm_fail(GM_EBADFILE, "tokenizer: merge %u has parts of %zu and %zu bytes", m->rank + (uint32_t)m->n,
                       n_left, n_right);
    if (n_right < prefix)
        return gm_fail(GM_EBADFILE, "tokenizer: merge %u: its right part '%.*s' is shorter than the "
                       "continuing_subword_prefix '%s'", m->rank + (uint32_t)m->n, (int)n_right, right, m->bpe->prefix);
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
    return ++m->n == MERGES_BATCH ? merges_finish(m) : GM_OK;
}
