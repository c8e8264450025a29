/* session.c - sessions: a sequence's tokens and its cache.
 *  (1) session.tokens are the ids whose positions are in the cache; a pass that is cut short leaves them as they were, or
 *      fewer (stream_lost).
 *  (2) A session is used by one stream at a time; the stream says so with an atomic flag. */
#include "base/memory.h"
#include "run/stream.h"

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

gm_status gm_session_truncate(gm_session *s, int64_t length) {
    if (atomic_load(&s->busy))
        return gm_fail(GM_ESTATE, "session: a stream is using it");
    if (length < 0 || length > s->length)
        return gm_fail(GM_EVALUE, "session: cannot truncate %lld tokens to %lld", (long long)s->length,
                       (long long)length);
    s->length = cache_trim(s->cache, length);
    return GM_OK;
}
