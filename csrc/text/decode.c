/* decode.c - see decode.h. */
#include "text/bpe.h"
#include "text/decode.h"

static const char replacement[] = "\xEF\xBF\xBD";    /* U+FFFD */

gm_status decoder_add_replace(decoder *d, decode_replace replace) {
    if (d->n_replaces == d->replace_capacity) {
        void *replaces = d->replaces;
        if (buffer_grow(&replaces, d->n_replaces, &d->replace_capacity, 1, sizeof(decode_replace)) != GM_OK) {
            memory_free(replace.from);
            memory_free(replace.to);
            return GM_ENOMEM;
        }
        d->replaces = replaces;
    }
    d->replaces[d->n_replaces++] = replace;
    return GM_OK;
}

void decoder_free(decoder *d) {
    for (size_t i = 0; i < d->n_replaces; i++) {
        memory_free(d->replaces[i].from);
        memory_free(d->replaces[i].to);
    }
    memory_free(d->replaces);
    *d = (decoder){ 0 };
}

void decode_open(decode_state *s, const decoder *d, bool hold_runs) {
    s->decoder = d;
    s->hold_runs = hold_runs;
    s->to_strip = d->strip_count;
}

void decode_free(decode_state *s) {
    memory_free(s->pending.data);
    text_buffer_free(&s->scratch[0]);
    text_buffer_free(&s->scratch[1]);
}

/* Text for the output, but for the characters that the whole text's start loses. */
static gm_status put(decode_state *s, const void *text, size_t length, byte_buffer *out) {
    const uint8_t *bytes = text;
    size_t at = 0;
    while (s->to_strip > 0 && at < length) {
        size_t behind = at;
        if (utf8_next(bytes, &behind) != s->decoder->strip) {
            s->to_strip = 0;
            break;
        }
        s->to_strip--;
        at = behind;
    }
    return bytes_append(out, bytes + at, length - at);
}

/* Gives out the whole characters at the head of the pending bytes; an invalid part is one U+FFFD, or with each_byte
 * one for each of its bytes. */
static gm_status drain(decode_state *s, bool each_byte, byte_buffer *out) {
    byte_buffer *p = &s->pending;
    size_t at = 0, valid = 0;    /* [valid, at) is good and not given out yet */
    while (at < p->size) {
        int step = utf8_step(p->data + at, p->size - at);
        if (step == 0)
            break;
        if (step > 0) {
            at += (size_t)step;
            continue;
        }
        GM_TRY(put(s, p->data + valid, at - valid, out));
        for (int i = 0; i < (each_byte ? -step : 1); i++)
            GM_TRY(put(s, replacement, 3, out));
        valid = at += (size_t)-step;
    }
    GM_TRY(put(s, p->data + valid, at - valid, out));
    memmove(p->data, p->data + at, p->size - at);
    p->size -= at;
    return GM_OK;
}

/* Ends what is pending: no more bytes come that could complete it. */
static gm_status flush(decode_state *s, byte_buffer *out) {
    byte_buffer *p = &s->pending;
    if (p->size == 0)
        return GM_OK;
    bool runs = s->decoder->kind == DECODE_PIECES;
    if (runs && utf8_check(p->data, p->size) == p->size)
        GM_TRY(put(s, p->data, p->size, out));
    else
        for (size_t i = 0; i < (runs ? p->size : 1); i++)
            GM_TRY(put(s, replacement, 3, out));
    p->size = 0;
    return GM_OK;
}

/* A byte-level token's bytes; a token with any character outside the alphabet is its own text. */
static gm_status push_bytes(decode_state *s, const uint8_t *token, size_t length, byte_buffer *out) {
    byte_buffer *p = &s->pending;
    size_t before = p->size;
    GM_TRY(bytes_reserve(p, length));
    for (size_t at = 0; at < length;) {
        int byte = alphabet_byte(utf8_next(token, &at));
        if (byte < 0) {
            memcpy(p->data + before, token, length);
            p->size = before + length;
            break;
        }
        p->data[p->size++] = (uint8_t)byte;
    }
    return drain(s, false, out);
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of a token <0xNN>, -1 for any other token. */
static int byte_of(const uint8_t *token, size_t length) {
    if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static gm_status push_piece(decode_state *s, const uint8_t *token, size_t length, byte_buffer *out) {
    const decoder *d = s->decoder;
    int next = 0;
    for (size_t i = 0; i < d->n_replaces; i++) {
        const decode_replace *r = &d->replaces[i];
        if (memmem(token, length, r->from, r->from_length) == NULL)
            continue;
        text_writer w;
        text_write(&w, &(text_view){ .bytes = token, .length = length }, &s->scratch[next]);
        GM_TRY(text_replace(&w, r->from, r->from_length, r->to, r->to_length));
        token = s->scratch[next].bytes.data;
        length = s->scratch[next].bytes.size;
        next = 1 - next;
    }
    int byte = d->byte_fallback ? byte_of(token, length) : -1;
    if (byte >= 0) {
        GM_TRY(bytes_append(&s->pending, &(uint8_t){ (uint8_t)byte }, 1));
        return s->hold_runs ? GM_OK : drain(s, true, out);
    }
    GM_TRY(flush(s, out));
    return put(s, token, length, out);
}

static gm_status push_metaspace(decode_state *s, const uint8_t *token, size_t length, byte_buffer *out) {
    bool drop = s->decoder->drop_first && !s->started;
    for (size_t at = 0; at < length;) {
        size_t start = at;
        if (utf8_next(token, &at) != s->decoder->marker)
            GM_TRY(bytes_append(out, token + start, at - start));
        else if (!drop)
            GM_TRY(bytes_append(out, " ", 1));
    }
    return GM_OK;
}

gm_status decode_push(decode_state *s, const char *token, size_t length, byte_buffer *out) {
    const uint8_t *text = (const uint8_t *)token;
    gm_status status = GM_OK;
    switch (s->decoder->kind) {
    case DECODE_JOIN:
        if (s->started)
            status = bytes_append(out, " ", 1);
        if (status == GM_OK)
            status = bytes_append(out, token, length);
        break;
    case DECODE_BYTES:
        status = push_bytes(s, text, length, out);
        break;
    case DECODE_PIECES:
        status = push_piece(s, text, length, out);
        break;
    case DECODE_METASPACE:
        status = push_metaspace(s, text, length, out);
        break;
    }
    s->started = true;
    return status;
}

gm_status decode_finish(decode_state *s, byte_buffer *out) { return flush(s, out); }
