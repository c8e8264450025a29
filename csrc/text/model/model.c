/* model.c - see model.h. */
#include "text/model/model.h"
#include "text/unicode/alphabet.h"

gm_status model_prepare(model *m, const vocab *v) {
    switch (m->kind) {
    case MODEL_BPE: m->bpe.byte_level = m->byte_level; return bpe_prepare(&m->bpe, v);
    case MODEL_UNIGRAM: return unigram_prepare(&m->unigram, v);
    case MODEL_WORDPIECE: return wordpiece_prepare(&m->wordpiece, v);
    case MODEL_WORDLEVEL: break;
    }
    return GM_OK;
}

void model_free(model *m) {
    bpe_free(&m->bpe);
    unigram_free(&m->unigram);
    wordpiece_free(&m->wordpiece);
}

void model_work_free(model_work *work) {
    bpe_work_free(&work->bpe);
    unigram_work_free(&work->unigram);
    memory_free(work->alphabet.data);
}

static gm_status encode_word(const model *m, const vocab *v, const uint8_t *piece, size_t length, id_buffer *out,
                             span_buffer *spans) {
    int32_t id = vocab_find(v, piece, length);
    if (id < 0)
        id = m->unknown;
    if (id < 0)
        return gm_fail(GM_EVALUE, "tokenizer: '%.*s' is not in the vocabulary, which has no unknown token",
                       length < 64 ? (int)length : 64, (const char *)piece);
    return token_append(out, spans, id, 0, length);
}

/* All models but BPE, which handles bytes itself. */
static gm_status encode_text(const model *m, const vocab *v, model_work *work, const uint8_t *piece, size_t length,
                             id_buffer *out, span_buffer *spans) {
    switch (m->kind) {
    case MODEL_UNIGRAM: return unigram_encode(&m->unigram, v, &work->unigram, piece, length, out, spans);
    case MODEL_WORDPIECE: return wordpiece_encode(&m->wordpiece, piece, length, out, spans);
    default: return encode_word(m, v, piece, length, out, spans);
    }
}

gm_status model_encode(const model *m, const vocab *v, model_work *work, const uint8_t *piece, size_t length,
                       id_buffer *out, span_buffer *spans) {
    if (m->kind == MODEL_BPE)
        return bpe_encode(&m->bpe, v, &work->bpe, piece, length, out, spans);
    if (!m->byte_level)
        return encode_text(m, v, work, piece, length, out, spans);
    byte_buffer *alphabet = &work->alphabet;
    size_t first = spans ? spans->size : 0, at = 0, byte = 0;
    GM_TRY(alphabet_text(piece, length, alphabet));
    GM_TRY(encode_text(m, v, work, alphabet->data, alphabet->size, out, spans));
    /* Converts spans of the alphabet's text to bytes of the piece. They mostly ascend, so the walk seldom starts
     * again. */
    for (size_t i = first; spans && i < spans->size; i++) {
        text_span *span = &spans->data[i];
        if (span->start < at)
            at = byte = 0;
        for (; at < span->start; byte++)
            utf8_next(alphabet->data, &at);
        size_t end = at, end_byte = byte;
        for (; end < span->end; end_byte++)
            utf8_next(alphabet->data, &end);
        span->start = (uint32_t)byte;
        span->end = (uint32_t)end_byte;
    }
    return GM_OK;
}
