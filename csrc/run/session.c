/* session.c - sessions: a sequence's ids and its cache.
 *  (1) The cache holds the first `length` of n_ids ids. A pass that does not finish leaves as many there as before, or
 *      fewer (stream_rollback).
 *  (2) A session is used by one stream at a time, or by one call that copies or truncates it; `busy` is set meanwhile.
 *  (3) Saved, it is the words MAGIC, fingerprint of the model, number of ids, checksum of what comes between words and
 *      cache, length, and, with adapters, how many; these (gm_adapter_use); the ids, int32 padded to whole words; the
 *      saved cache. Without adapters it is format 3. Format 2 had no length: all of its ids are in the cache. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checksum.h"
#include "base/grow.h"
#include "base/memory.h"
#include "run/stream.h"

#define MAGIC_4 0x344e4f4953534d47 /* GMSSION4 */
#define MAGIC_3 0x334e4f4953534d47
#define MAGIC_2 0x324e4f4953534d47
#define MAGIC_1 0x314e4f4953534d47 /* without fingerprint and checkpoints */
enum { HEAD_WORDS_4 = 6, HEAD_WORDS_3 = 5, HEAD_WORDS_2 = 4 };
static_assert(sizeof(gm_adapter_use) % 8 == 0, "whole words");

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
    memory_free(s->adapters);
    gm_model_release(s->model);
    memory_free(s);
}

int64_t gm_session_length(const gm_session *s) { return s->length; }

const int32_t *gm_session_ids(const gm_session *s, size_t *n) {
    *n = (size_t)s->n_ids;
    return s->ids;
}

/* Takes the memory. */
static void set_adapters(gm_session *s, gm_adapter_use *adapters, size_t n) {
    memory_free(s->adapters);
    s->adapters = adapters;
    s->n_adapters = n;
}

gm_status session_use_mix(gm_session *s, const adapter_mix *mix) {
    const size_t n = adapter_mix_uses(mix, NULL);
    gm_adapter_use *uses = memory_array(n + 1, sizeof *uses);
    if (!uses)
        return error_code();
    adapter_mix_uses(mix, uses);
    if (s->n_ids > 0 && !adapter_uses_equal(s->adapters, s->n_adapters, uses, n)) {
        char begun[256], wanted[256];
        adapter_uses_text(s->adapters, s->n_adapters, begun);
        adapter_uses_text(uses, n, wanted);
        memory_free(uses);
        return gm_fail(GM_ESTATE, "session: it was begun with %s and cannot go on with %s", begun, wanted);
    }
    set_adapters(s, uses, n);
    return GM_OK;
}

const gm_adapter_use *gm_session_adapters(const gm_session *s, size_t *n) {
    *n = s->n_adapters;
    return s->adapters;
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

static gm_status copy_adapters(gm_session *to, const gm_adapter_use *adapters, size_t n) {
    gm_adapter_use *copy = memory_array(n + 1, sizeof *copy);
    if (!copy)
        return error_code();
    if (n)
        memcpy(copy, adapters, n * sizeof *copy);
    set_adapters(to, copy, n);
    return GM_OK;
}

gm_status session_copy(const gm_session *s, gm_session **out) {
    *out = NULL;
    gm_session *f = memory_zeroed(sizeof *f);
    gm_status status = f ? cache_fork(s->cache, &f->cache) : GM_ENOMEM;
    if (status == GM_OK)
        status = session_put_ids(f, 0, s->ids, s->n_ids);
    if (status == GM_OK)
        status = copy_adapters(f, s->adapters, s->n_adapters);
    if (status == GM_OK) {
        f->length = s->length;
        f->model = gm_model_retain(s->model);
        *out = f;
        return GM_OK;
    }
    if (f) {
        cache_free(f->cache);
        memory_free(f->ids);
        memory_free(f->adapters);
        memory_free(f);
    }
    return status;
}

gm_status gm_session_fork(gm_session *s, gm_session **out) {
    *out = NULL;
    GM_TRY(claim(s));
    const gm_status status = session_copy(s, out);
    atomic_store(&s->busy, false);
    return status;
}

gm_status gm_session_bytes(gm_session *s, int64_t *bytes) {
    GM_TRY(claim(s));
    *bytes = cache_bytes(s->cache);
    atomic_store(&s->busy, false);
    return GM_OK;
}

gm_status gm_sessions_bytes(gm_session *const *sessions, size_t n, int64_t *bytes) {
    gm_cache **caches = memory_array(n + 1, sizeof(gm_cache *));
    size_t claimed = 0;
    gm_status status = caches ? GM_OK : GM_ENOMEM;
    *bytes = 0;
    while (status == GM_OK && claimed < n && (status = claim(sessions[claimed])) == GM_OK) {
        caches[claimed] = sessions[claimed]->cache;
        claimed++;
    }
    if (status == GM_OK)
        status = caches_bytes(caches, n, bytes);
    while (claimed > 0)
        atomic_store(&sessions[--claimed]->busy, false);
    memory_free(caches);
    return status;
}

/* ---- as bytes ---- */
static size_t id_bytes(int64_t n) { return ((size_t)n * sizeof(int32_t) + 7) / 8 * 8; }

/* Without what is between the members. */
static void save_use(const gm_adapter_use *use, uint8_t *out) {
    memcpy(out + offsetof(gm_adapter_use, name), use->name, strlen(use->name));
    memcpy(out + offsetof(gm_adapter_use, hash), &use->hash, sizeof use->hash);
    memcpy(out + offsetof(gm_adapter_use, weight), &use->weight, sizeof use->weight);
}

gm_status gm_session_save(gm_session *s, void *out, size_t *size) {
    GM_TRY(claim(s));
    const size_t words = s->n_adapters ? HEAD_WORDS_4 : HEAD_WORDS_3, uses = s->n_adapters * sizeof *s->adapters;
    const size_t head = words * 8 + uses + id_bytes(s->n_ids), all = head + cache_save_bytes(s->cache);
    gm_status status = GM_OK;
    if (out && *size != all) {
        status = gm_fail(GM_ESTATE, "session: %zu bytes to save, it has %zu now", *size, all);
    } else if (out) {
        uint8_t *to = out, *rest = to + words * 8, *ids = rest + uses;
        memset(rest, 0, uses + id_bytes(s->n_ids));
        for (size_t i = 0; i < s->n_adapters; i++)
            save_use(&s->adapters[i], rest + i * sizeof *s->adapters);
        if (s->n_ids)
            memcpy(ids, s->ids, (size_t)s->n_ids * sizeof *s->ids);
        const uint64_t first[HEAD_WORDS_4] = {s->n_adapters ? MAGIC_4 : MAGIC_3,
                                              s->model->fingerprint,
                                              (uint64_t)s->n_ids,
                                              checksum_of(rest, uses + id_bytes(s->n_ids)),
                                              (uint64_t)s->length,
                                              s->n_adapters};
        memcpy(to, first, words * 8);
        status = cache_save(s->cache, to + head);
    }
    *size = all;
    atomic_store(&s->busy, false);
    return status;
}

/* What the words say: where they end, and how many of each there are. */
typedef struct { size_t begin, uses, ids, length; } saved_sizes;

static gm_status read_words(const gm_session *s, const uint8_t *bytes, size_t size, saved_sizes *out) {
    uint64_t words[HEAD_WORDS_4];
    if (size < sizeof words)
        return gm_fail(GM_EBADFILE, "session: not a saved session (%zu bytes)", size);
    memcpy(words, bytes, sizeof words);
    if (words[0] == MAGIC_1)
        return gm_fail(GM_EBADFILE, "session: saved in format 1 of an earlier version, expected format 2 to 4");
    if (words[0] != MAGIC_4 && words[0] != MAGIC_3 && words[0] != MAGIC_2)
        return gm_fail(GM_EBADFILE, "session: not a saved session, or one of an unknown version");
    if (words[1] != s->model->fingerprint)
        return gm_fail(GM_EBADFILE, "session: saved with another model's weights (%016llx, this model's are %016llx)",
                       (unsigned long long)words[1], (unsigned long long)s->model->fingerprint);
    const int n_words = words[0] == MAGIC_4 ? HEAD_WORDS_4 : words[0] == MAGIC_3 ? HEAD_WORDS_3 : HEAD_WORDS_2;
    const size_t begin = (size_t)n_words * 8, left = size - begin;
    const uint64_t n_uses = words[0] == MAGIC_4 ? words[5] : 0;
    if (n_uses > left / sizeof(gm_adapter_use))
        return gm_fail(GM_EBADFILE, "session: %llu adapters do not fit %zu bytes", (unsigned long long)n_uses, size);
    const size_t room = left - (size_t)n_uses * sizeof(gm_adapter_use);
    if (words[2] > room / sizeof(int32_t) || id_bytes((int64_t)words[2]) > room)
        return gm_fail(GM_EBADFILE, "session: %llu tokens do not fit %zu bytes", (unsigned long long)words[2], size);
    *out = (saved_sizes){begin, (size_t)n_uses, (size_t)words[2], words[0] == MAGIC_2 ? words[2] : words[4]};
    if (checksum_of(bytes + begin, out->uses * sizeof(gm_adapter_use) + id_bytes((int64_t)words[2])) != words[3])
        return gm_fail(GM_EBADFILE, "session: the checksum of its tokens is wrong");
    if (out->length > out->ids)
        return gm_fail(GM_EBADFILE, "session: %zu of %zu tokens in its cache", out->length, out->ids);
    return GM_OK;
}

static gm_status restore_adapters(gm_session *s, const uint8_t *bytes, size_t n) {
    gm_adapter_use *uses = memory_array(n + 1, sizeof *uses);
    if (!uses)
        return error_code();
    if (n)
        memcpy(uses, bytes, n * sizeof *uses);
    set_adapters(s, uses, n);
    for (size_t i = 0; i < n; i++)
        if (!memchr(uses[i].name, 0, sizeof uses[i].name) || !isfinite(uses[i].weight))
            return gm_fail(GM_EBADFILE, "session: adapter %zu of %zu has no name, or no weight", i, n);
    return GM_OK;
}

static gm_status restore(gm_session *s, const uint8_t *bytes, size_t size) {
    saved_sizes saved = {0};
    GM_TRY(read_words(s, bytes, size, &saved));
    const uint8_t *ids = bytes + saved.begin + saved.uses * sizeof(gm_adapter_use);
    const uint8_t *cache = ids + id_bytes((int64_t)saved.ids);
    GM_TRY(restore_adapters(s, bytes + saved.begin, saved.uses));
    GM_TRY(grow_array(&s->ids, 0, &s->capacity, saved.ids + 1, sizeof *s->ids));
    memcpy(s->ids, ids, saved.ids * sizeof *s->ids);
    s->n_ids = (int64_t)saved.ids;
    for (int64_t i = 0; i < s->n_ids; i++)
        if (s->ids[i] < 0 || s->ids[i] >= s->model->config.vocab)
            return gm_fail(GM_EBADFILE, "session: token id %d is outside the vocabulary of %lld", s->ids[i],
                           (long long)s->model->config.vocab);
    s->length = (int64_t)saved.length;
    return cache_restore(s->cache, s->length, cache, (size_t)(bytes + size - cache));
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
