/* session.c - sessions: a sequence's ids and its cache.
 *  (1) The cache holds the first `length` of n_ids ids. A pass that does not finish leaves as many there as before, or
 *      fewer (stream_rollback).
 *  (2) A session is used by one stream at a time, or by one call that copies or truncates it; `busy` is set meanwhile.
 *  (3) Saved, it is the words MAGIC, fingerprint of the model, number of ids, checksum of the ids, length; the ids,
 *      int32 padded to whole words; the saved cache. Format 2 had no length: all of its ids are in the cache. */
#include <string.h>
#include "base/checksum.h"
#include "base/grow.h"
#include "base/memory.h"
#include "run/stream.h"

#define MAGIC 0x334e4f4953534d47 /* GMSSION3 */
#define MAGIC_2 0x324e4f4953534d47
#define MAGIC_1 0x314e4f4953534d47 /* without fingerprint and checkpoints */
enum { HEAD_WORDS = 5, HEAD_WORDS_2 = 4 };

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

void session_free(gm_session *s) {
    cache_free(s->cache);
    memory_free(s->ids);
    gm_model_release(s->model);
    memory_free(s);
}

int64_t gm_session_length(const gm_session *s) { return s->length; }

const int32_t *gm_session_ids(const gm_session *s, size_t *n) {
    *n = (size_t)s->n_ids;
    return s->ids;
}

gm_status session_put_ids(gm_session *s, int64_t at, const int32_t *ids, int64_t n) {
    GM_TRY(grow_array(&s->ids, (size_t)at, &s->capacity, (size_t)n, sizeof *s->ids));
    if (n)
        memcpy(s->ids + at, ids, (size_t)n * sizeof *ids);
    s->n_ids = at + n;
    return GM_OK;
}

/* Marks the session as busy for one call. */
static gm_status claim(gm_session *s) {
    return atomic_exchange(&s->busy, true) ? gm_fail(GM_ESTATE, "session: a stream is using it") : GM_OK;
}

gm_status gm_session_truncate(gm_session *s, int64_t length) {
    GM_TRY(claim(s));
    gm_status status = GM_OK;
    if (length < 0 || length > s->n_ids) {
        status = gm_fail(GM_EVALUE, "session: truncate to %lld tokens, expected 0 to %lld", (long long)length,
                         (long long)s->n_ids);
    } else {
        s->n_ids = length;
        s->length = cache_trim(s->cache, length);
    }
    atomic_store(&s->busy, false);
    return status;
}

gm_status gm_session_fork(gm_session *s, gm_session **out) {
    *out = NULL;
    GM_TRY(claim(s));
    gm_session *f = memory_zeroed(sizeof *f);
    gm_status status = f ? cache_fork(s->cache, &f->cache) : GM_ENOMEM;
    if (status == GM_OK)
        status = session_put_ids(f, 0, s->ids, s->n_ids);
    atomic_store(&s->busy, false);
    if (status == GM_OK) {
        f->length = s->length;
        f->model = gm_model_retain(s->model);
        *out = f;
        return GM_OK;
    }
    if (f) {
        cache_free(f->cache);
        memory_free(f->ids);
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
static size_t id_bytes(int64_t n) { return ((size_t)n * sizeof(int32_t) + 7) / 8 * 8; }

gm_status gm_session_save(gm_session *s, void *out, size_t *size) {
    GM_TRY(claim(s));
    const size_t head = HEAD_WORDS * 8 + id_bytes(s->n_ids), all = head + cache_save_bytes(s->cache);
    gm_status status = GM_OK;
    if (out && *size != all) {
        status = gm_fail(GM_ESTATE, "session: %zu bytes to save, it has %zu now", *size, all);
    } else if (out) {
        uint8_t *to = out, *ids = to + HEAD_WORDS * 8;
        memset(ids, 0, id_bytes(s->n_ids));
        if (s->n_ids)
            memcpy(ids, s->ids, (size_t)s->n_ids * sizeof *s->ids);
        const uint64_t words[HEAD_WORDS] = {MAGIC, s->model->fingerprint, (uint64_t)s->n_ids,
                                            checksum_of(ids, id_bytes(s->n_ids)), (uint64_t)s->length};
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
        return gm_fail(GM_EBADFILE, "session: not a saved session (%zu bytes)", size);
    memcpy(words, bytes, sizeof words);
    if (words[0] == MAGIC_1)
        return gm_fail(GM_EBADFILE, "session: saved in format 1 of an earlier version, expected format 2 or 3");
    if (words[0] != MAGIC && words[0] != MAGIC_2)
        return gm_fail(GM_EBADFILE, "session: not a saved session, or one of an unknown version");
    if (words[1] != s->model->fingerprint)
        return gm_fail(GM_EBADFILE, "session: saved with another model's weights (%016llx, this model's are %016llx)",
                       (unsigned long long)words[1], (unsigned long long)s->model->fingerprint);
    const size_t begin = words[0] == MAGIC ? HEAD_WORDS * 8 : HEAD_WORDS_2 * 8;
    if (words[2] > (size - begin) / sizeof(int32_t) || id_bytes((int64_t)words[2]) > size - begin)
        return gm_fail(GM_EBADFILE, "session: %llu tokens do not fit %zu bytes", (unsigned long long)words[2], size);
    const int64_t n = (int64_t)words[2];
    const uint64_t length = words[0] == MAGIC ? words[4] : words[2];
    const size_t head = begin + id_bytes(n);
    if (checksum_of(bytes + begin, id_bytes(n)) != words[3])
        return gm_fail(GM_EBADFILE, "session: the checksum of its tokens is wrong");
    if (length > words[2])
        return gm_fail(GM_EBADFILE, "session: %llu of %lld tokens in its cache", (unsigned long long)length,
                       (long long)n);
    GM_TRY(grow_array(&s->ids, 0, &s->capacity, (size_t)n + 1, sizeof *s->ids));
    memcpy(s->ids, bytes + begin, (size_t)n * sizeof *s->ids);
    s->n_ids = n;
    for (int64_t i = 0; i < n; i++)
        if (s->ids[i] < 0 || s->ids[i] >= s->model->config.vocab)
            return gm_fail(GM_EBADFILE, "session: token id %d is outside the vocabulary of %lld", s->ids[i],
                           (long long)s->model->config.vocab);
    s->length = (int64_t)length;
    return cache_restore(s->cache, s->length, bytes + head, size - head);
}

gm_status gm_session_restore(gm_model *m, const void *bytes, size_t size, gm_session **out) {
    GM_TRY(gm_session_new(m, out));
    gm_status status = restore(*out, bytes, size);
    if (status != GM_OK) {
        session_free(*out);
        *out = NULL;
    }
    return status;
}
