/* single.c - a stream on its own: it is decoded by its session's decoder, which keeps its plans from stream to stream.
 * In this folder calls go one way: single to decoder to stream to session. */
#include "run/decoder.h"

gm_status gm_stream_next(gm_stream *st, int slice_ms, gm_token *token) {
    gm_session *s = st->session;
    gm_stream *which;
    stream_begin_event(st, token);
    if (st->state == STREAM_DONE)
        return GM_END;
    if (!s->decoder)
        GM_TRY(gm_decoder_new(s->model, &s->decoder));
    if (!st->decoder)
        GM_TRY(gm_decoder_add(s->decoder, st));
    if (st->decoder != s->decoder)
        return gm_fail(GM_ESTATE, "stream: it is a member of a decoder; call gm_decoder_next for its tokens");
    return gm_decoder_next(s->decoder, slice_ms, &which, token);
}

void gm_stream_free(gm_stream *st) {
    if (!st)
        return;
    if (st->decoder)
        decoder_remove(st->decoder, st);
    stream_free(st);
}

void gm_session_free(gm_session *s) {
    if (!s)
        return;
    gm_decoder_free(s->decoder);
    session_free(s);
}
