/* session.c - sessions: a sequence's tokens and its cache.
 *  (1) session.tokens are the ids whose positions are in the cache; a pass that is cut short leaves them as they
 *      were, or fewer (stream_lost).
 *  (2) A session is used by one stream at a time, or by one call that copies or cuts it; busy says so.
 *  (3) As bytes it is the words MAGIC, the model's fingerprint, number of tokens, checksum of the tokens; the tokens, as
 *      int32 in whole words; the cache's own bytes. */
#include <string.h>
#include "base/checksum.h"
#include "base/memory.h"
#include "run/stream.h"

#define MAGIC 0x324e4f4953534d47     /* GMSSION2 */
#define MAGIC_1 0x314e4f4953534d47   /* without fingerprint and checkpoints */
enum { HEAD_WORDS = 4 };

gm_status gm_session_new(gm_model *m, gm_session **out) {
    *out = NULL;
    gm_session *s = memory_zeroed(sizeof *s);
    if (!s)
        return GM_ENOMEM;
    gm_status status = cache_new(&m->layout, &s->cache);
    if (status != GM_OK) {
        memory_free(s);
        return status;
    }
    s->model = gm_model_retain(m);
    *out = s;
    return GM_OK;
}

void gm_session_free(gm_session *s) {
    if (!s)
        return;
    gm_decoder_free(s->decoder);
    cache_free(s->cache);
    memory_free(s->tokens);
    gm_model_release(s->model);
    memory_free(s);
}

int64_t gm_session_length(const gm_session *s) { return s->length; }

/* Copies n ids, from any address, into a session that has none. */
static gm_status take_tokens(gm_session *s, const void *tokens, int64_t n) {
    if (!(s->tokens = memory_array((size_t)n + 1, sizeof *s->tokens)))
        return GM_ENOMEM;
    if (n)
        memcpy(s->tokens, tokens, (size_t)n * sizeof *s->tokens);
    s->capacity = n + 1;
    s->length = n;
    return GM_OK;
}

/* For the time of one call. */
static gm_status claim(gm_session *s) {
    return atomic_exchange(&s->busy, true) ? gm_fail(GM_ESTATE, "session: a stream is using it") : GM_OK;
}

gm_status gm_session_truncate(gm_session *s, int64_t length) {
    GM_TRY(claim(s));
    gm_status status = GM_OK;
    if (length < 0 || length > s->length)
        status = gm_fail(GM_EVALUE, "session: cannot truncate %lld tokens to %lld", (long long)s->length,
                         (long long)length);
    else
        s->length = cache_trim(s->cache, length);
    atomic_store(&s->busy, false);
    return status;
}

gm_status gm_session_fork(gm_session *s, gm_session **out) {
    *out = NULL;
    GM_TRY(claim(s));
    gm_session *f = memory_zeroed(sizeof *f);
    gm_status status = f ? cache_fork(s->cache, &f->cache) : GM_ENOMEM;
    if (status == GM_OK)
        status = take_tokens(f, s->tokens, s->length);
    atomic_store(&s->busy, false);
    if (status == GM_OK) {
        f->model = gm_model_retain(s->model);
        *out = f;
        return GM_OK;
    }
    if (f) {
        cache_free(f->cache);
        memory_free(f->tokens);
        memory_free(f);
    }
    return status;
}

gm_status gm_session_bytes(gm_session *s, int64_t *bytes) {
    GM_TRY(claim(s));
    *bytes = cache_bytes(s->cache);
    atomic_store(&s->busy, false);
    return GM_OK;
}

/* ---- as bytes ---- */
static size_t token_bytes(int64_t n) { return ((size_t)n * sizeof(int32_t) + 7) / 8 * 8; }

gm_status gm_session_save(gm_session *s, void *out, size_t *size) {
    GM_TRY(claim(s));
    const size_t head = HEAD_WORDS * 8 + token_bytes(s->length), all = head + cache_save_bytes(s->cache);
    gm_status status = GM_OK;
    if (out && *size != all) {
        status = gm_fail(GM_ESTATE, "session: %zu bytes to save, it has %zu now", *size, all);
    } else if (out) {
        uint8_t *to = out, *tokens = to + HEAD_WORDS * 8;
        memset(tokens, 0, token_bytes(s->length));
        if (s->length)
            memcpy(tokens, s->tokens, (size_t)s->length * sizeof *s->tokens);
        const uint64_t words[HEAD_WORDS] = {MAGIC, s->model->fingerprint, (uint64_t)s->length,
                                            checksum_of(tokens, token_bytes(s->length))};
        memcpy(to, words, sizeof words);
        cache_save(s->cache, to + head);
    }
    *size = all;
    atomic_store(&s->busy, false);
    return status;
}

static gm_status restore(gm_session *s, const uint8_t *bytes, size_t size) {
    uint64_t words[HEAD_WORDS];
    if (size < sizeof words)
        return gm_fail(GM_EBADFILE, "session: %zu bytes are no saved session", size);
    memcpy(words, bytes, sizeof words);
    if (words[0] == MAGIC_1)
        return gm_fail(GM_EBADFILE, "session: saved in format 1 of an earlier version, expected format 2");
    if (words[0] != MAGIC)
        return gm_fail(GM_EBADFILE, "session: the bytes are no saved session, or one of another version");
    if (words[1] != s->model->fingerprint)
        return gm_fail(GM_EBADFILE, "session: saved with another model's weights (%016llx, this model's are %016llx)",
                       (unsigned long long)words[1], (unsigned long long)s->model->fingerprint);
    if (words[2] > (size - sizeof words) / sizeof(int32_t) || token_bytes((int64_t)words[2]) > size - sizeof words)
        return gm_fail(GM_EBADFILE, "session: %llu tokens do not fit %zu bytes", (unsigned long long)words[2], size);
    const int64_t n = (int64_t)words[2];
    const size_t head = sizeof words + token_bytes(n);
    if (checksum_of(bytes + sizeof words, token_bytes(n)) != words[3])
        return gm_fail(GM_EBADFILE, "session: the checksum of its tokens is wrong");
    GM_TRY(take_tokens(s, bytes + sizeof words, n));
    for (int64_t i = 0; i < n; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= s->model->config.vocab)
            return gm_fail(GM_EBADFILE, "session: token id %d is outside the vocabulary of %lld", s->tokens[i],
                           (long long)s->model->config.vocab);
    return cache_restore(s->cache, n, bytes + head, size - head);
}

gm_status gm_session_restore(gm_model *m, const void *bytes, size_t size, gm_session **out) {
    GM_TRY(gm_session_new(m, out));
    gm_status status = restore(*out, bytes, size);
    if (status != GM_OK) {
        gm_session_free(*out);
        *out = NULL;
    }
    return status;
}
