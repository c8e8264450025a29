/* token_bytes.c - see token_bytes.h. */
#include "text/output/token_bytes.h"
#include "text/tokenizer.h"
#include "text/unicode/alphabet.h"

void token_bytes_free(token_bytes *b) {
    if (!b)
        return;
    memory_free(b->starts);
    memory_free(b->data);
    memory_free(b);
}

static gm_status append_token(const gm_tokenizer *t, int32_t id, byte_buffer *out) {
    size_t length = 0, before = out->size;
    const uint8_t *text = (const uint8_t *)gm_tokenizer_token(t, id, &length);
    GM_TRY(bytes_reserve(out, length + TOKEN_BYTES_MARGIN));
    for (size_t at = 0; text && at < length;) {
        int byte = alphabet_byte(utf8_next(text, &at));
        if (byte < 0) {
            out->size = before;
            return bytes_append(out, text, length);
        }
        out->data[out->size++] = (uint8_t)byte;
    }
    return GM_OK;
}

static token_bytes *make(const gm_tokenizer *t) {
    token_bytes *b = memory_zeroed(sizeof *b);
    if (!b)
        return NULL;
    byte_buffer data = {0};
    b->n_ids = t->n_ids;
    b->starts = memory_array(t->n_ids + 1, sizeof *b->starts);
    gm_status status = b->starts ? bytes_reserve(&data, TOKEN_BYTES_MARGIN) : GM_ENOMEM;
    for (size_t i = 0; i < t->n_ids && status == GM_OK; i++) {
        b->starts[i] = (uint32_t)data.size;
        status = append_token(t, (int32_t)i, &data);
    }
    if (status == GM_OK)
        status = bytes_reserve(&data, TOKEN_BYTES_MARGIN);
    b->data = data.data;
    if (status == GM_OK) {
        b->starts[t->n_ids] = (uint32_t)data.size;
        memset(data.data + data.size, 0, TOKEN_BYTES_MARGIN);
        return b;
    }
    token_bytes_free(b);
    return NULL;
}

gm_status token_bytes_of(gm_tokenizer *t, const token_bytes **out) {
    token_bytes *b = atomic_load_explicit(&t->bytes, memory_order_acquire);
    if (!b) {
        b = make(t);
        if (!b)
            return GM_ENOMEM;
        token_bytes *first = NULL;
        if (!atomic_compare_exchange_strong(&t->bytes, &first, b)) {
            token_bytes_free(b); /* another thread was faster */
            b = first;
        }
    }
    *out = b;
    return GM_OK;
}

gm_status token_bytes_join(const token_bytes *b, const gm_tokenizer *t, const int32_t *ids, size_t count,
                           bool skip_special, byte_buffer *out) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += token_length(b, ids[i]);
    GM_TRY(bytes_reserve(out, total + TOKEN_BYTES_MARGIN));
    uint8_t *to = out->data + out->size;
    for (size_t i = 0; i < count; i++) {
        uint32_t n = token_length(b, ids[i]);
        if (n == 0 || (skip_special && t->special[ids[i]] != 0))
            continue;
        const uint8_t *from = b->data + b->starts[ids[i]];
        if (n <= TOKEN_BYTES_MARGIN)
            memcpy(to, from, TOKEN_BYTES_MARGIN); /* one move; the next token overwrites the excess */
        else
            memcpy(to, from, n);
        to += n;
    }
    out->size = (size_t)(to - out->data);
    return GM_OK;
}
