/* sentencepiece_file.c - a tokenizer from a SentencePiece .model file, a protobuf message (sentencepiece_model.proto).
 * Every length is checked; fields that do not change ids are skipped. Added tokens beyond the pieces and tokens around
 * a text, which the file does not have, come as parts of a tokenizer.json. */
#include "text/load/component.h"
#include "text/load/sentencepiece.h"

/* ---- protobuf ---- */
enum { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };

typedef struct { const uint8_t *start, *at, *end; } message;

typedef struct {
    uint64_t number;
    int wire;
    uint64_t value; /* of a varint or a fixed number */
    message bytes;
} field;

static gm_status fail_message(const message *m, const char *why) {
    return gm_fail(GM_EBADFILE, "tokenizer: byte %zu: %s; this is not a SentencePiece model",
                   (size_t)(m->at - m->start), why);
}

static gm_status read_varint(message *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (m->at == m->end)
            return fail_message(m, "the file ends inside a number");
        uint8_t byte = *m->at++;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return GM_OK;
    }
    return fail_message(m, "a number of more than 64 bits");
}

static gm_status read_fixed(message *m, int n, uint64_t *out) {
    if (m->end - m->at < n)
        return fail_message(m, "the file ends inside a number");
    *out = 0;
    for (int i = 0; i < n; i++)
        *out |= (uint64_t)*m->at++ << 8 * i;
    return GM_OK;
}

/* Reads the next field; GM_END after the last. */
static gm_status next_field(message *m, field *f) {
    uint64_t tag, length;
    if (m->at == m->end)
        return GM_END;
    GM_TRY(read_varint(m, &tag));
    f->number = tag >> 3;
    f->wire = (int)(tag & 7);
    switch (f->wire) {
    case WIRE_VARINT: return read_varint(m, &f->value);
    case WIRE_FIXED64: return read_fixed(m, 8, &f->value);
    case WIRE_FIXED32: return read_fixed(m, 4, &f->value);
    case WIRE_BYTES:
        GM_TRY(read_varint(m, &length));
        if (length > (uint64_t)(m->end - m->at))
            return fail_message(m, "a field is longer than the file");
        f->bytes = (message){m->start, m->at, m->at + length};
        m->at += length;
        return GM_OK;
    default: return fail_message(m, "a field has an unknown wire type");
    }
}

static gm_status expect_wire(const message *m, const field *f, int wire) {
    return f->wire == wire ? GM_OK : fail_message(m, "a field has the wrong wire type");
}

static float float_of(uint64_t bits) {
    uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* ---- the messages ---- */
enum { TYPE_UNIGRAM = 1, TYPE_BPE, TYPE_WORD, TYPE_CHAR };

typedef struct {
    pieces pieces;
    uint64_t type;
    int64_t bos, eos; /* negative: none */
    bool suffix;      /* the extra space is added after the text */
    bool escape;      /* spaces become U+2581 */
} spm;

static gm_status read_piece(gm_tokenizer *t, spm *s, message m) {
    field f;
    gm_status status;
    const uint8_t *text = NULL;
    size_t length = 0;
    float score = 0;
    uint64_t type = PIECE_NORMAL;
    while ((status = next_field(&m, &f)) == GM_OK) {
        if (f.number == 1) {
            GM_TRY(expect_wire(&m, &f, WIRE_BYTES));
            text = f.bytes.at;
            length = (size_t)(f.bytes.end - f.bytes.at);
        } else if (f.number == 2) {
            GM_TRY(expect_wire(&m, &f, WIRE_FIXED32));
            score = float_of(f.value);
        } else if (f.number == 3) {
            GM_TRY(expect_wire(&m, &f, WIRE_VARINT));
            type = f.value;
        }
    }
    if (status != GM_END)
        return status;
    if (length == 0 || utf8_check(text, length) != length)
        return gm_fail(GM_EBADFILE, "tokenizer: piece %zu is %s", s->pieces.n, length == 0 ? "empty" : "not UTF-8");
    if (s->pieces.n == VOCAB_MAX)
        return gm_fail(GM_EBADFILE, "tokenizer: the model has more than %d pieces, which is not supported", VOCAB_MAX);
    GM_TRY(vocab_append(&t->vocab, (const char *)text, length, (int64_t)s->pieces.n));
    return pieces_add(&s->pieces, score, type > INT32_MAX ? INT32_MAX : (int64_t)type);
}

static gm_status read_trainer(spm *s, message m) {
    field f;
    gm_status status;
    while ((status = next_field(&m, &f)) == GM_OK) {
        bool is_id = f.number >= 40 && f.number <= 42;
        if (f.number != 3 && f.number != 24 && f.number != 35 && !is_id)
            continue;
        GM_TRY(expect_wire(&m, &f, WIRE_VARINT));
        if (f.number == 3)
            s->type = f.value;
        else if (f.number == 24)
            s->suffix = f.value != 0;
        else if (f.number == 35)
            s->pieces.byte_fallback = f.value != 0;
        else
            *(f.number == 40 ? &s->pieces.unknown : f.number == 41 ? &s->bos : &s->eos) = (int64_t)f.value;
    }
    return status == GM_END ? GM_OK : status;
}

static gm_status read_normalizer(spm *s, message m) {
    field f;
    gm_status status;
    while ((status = next_field(&m, &f)) == GM_OK) {
        if (f.number == 2) {
            GM_TRY(expect_wire(&m, &f, WIRE_BYTES));
            s->pieces.charsmap = f.bytes.at;
            s->pieces.charsmap_length = (size_t)(f.bytes.end - f.bytes.at);
        } else if (f.number >= 3 && f.number <= 5) {
            GM_TRY(expect_wire(&m, &f, WIRE_VARINT));
            *(f.number == 3   ? &s->pieces.add_prefix
              : f.number == 4 ? &s->pieces.single_spaces
                              : &s->escape) = f.value != 0;
        }
    }
    return status == GM_END ? GM_OK : status;
}

static gm_status read_model(gm_tokenizer *t, spm *s, message m) {
    field f;
    gm_status status;
    while ((status = next_field(&m, &f)) == GM_OK) {
        if (f.number < 1 || f.number > 3)
            continue;
        GM_TRY(expect_wire(&m, &f, WIRE_BYTES));
        GM_TRY(f.number == 1   ? read_piece(t, s, f.bytes)
               : f.number == 2 ? read_trainer(s, f.bytes)
                               : read_normalizer(s, f.bytes));
    }
    if (status != GM_END)
        return status;
    if (s->pieces.n == 0)
        return fail_message(&m, "the model has no pieces");
    if (s->type == TYPE_WORD || s->suffix || !s->escape)
        return gm_fail(GM_EUNSUPPORTED, "tokenizer: %s is not supported",
                       s->type == TYPE_WORD ? "model_type 'word'"
                       : s->suffix          ? "'treat_whitespace_as_suffix'"
                                            : "'escape_whitespaces' false");
    if (s->type < TYPE_UNIGRAM || s->type > TYPE_CHAR)
        return gm_fail(GM_EBADFILE, "tokenizer: model_type %llu, expected 1 to 4", (unsigned long long)s->type);
    s->pieces.kind = s->type == TYPE_UNIGRAM ? PIECES_UNIGRAM : s->type == TYPE_BPE ? PIECES_BPE : PIECES_CHARACTERS;
    GM_TRY(vocab_index(&t->vocab));
    return pieces_build(t, &s->pieces);
}

/* ---- the file ---- */
/* Appends an id; a negative one means that the model has no such piece. */
static gm_status add_end(const gm_tokenizer *t, int64_t id, const char *key, id_buffer *out) {
    if (id >= 0 && (uint64_t)id >= t->vocab.n_ids)
        return gm_fail(GM_EBADFILE, "tokenizer: '%s' is %lld, expected less than %zu", key, (long long)id,
                       t->vocab.n_ids);
    return id < 0 ? GM_OK : ids_append(out, (int32_t)id);
}

gm_status gm_tokenizer_from_sentencepiece(const void *data, size_t length, const gm_sentencepiece_options *o,
                                          const char *name, gm_tokenizer **out) {
    *out = NULL;
    gm_tokenizer *t = tokenizer_new();
    if (!t)
        return GM_ENOMEM;
    const uint8_t *bytes = data;
    spm s = {.type = TYPE_UNIGRAM,
             .bos = 1,
             .eos = 2,
             .escape = true,
             .pieces = {.add_prefix = true, .single_spaces = true}};
    gm_status status = length == 0 ? gm_fail(GM_EBADFILE, "%s: the file is empty", name)
                                   : read_model(t, &s, (message){bytes, bytes, bytes + length});
    if (status == GM_OK && o->parts_length > 0)
        status = component_parts(t, o->parts, o->parts_length, name);
    if (status == GM_OK)
        status = pieces_add_tokens(t, &s.pieces);
    if (status == GM_OK && o->add_bos)
        status = add_end(t, s.bos, "bos_id", &t->before);
    if (status == GM_OK && o->add_eos)
        status = add_end(t, s.eos, "eos_id", &t->after);
    if (status == GM_OK)
        status = tokenizer_finish(t);
    pieces_free(&s.pieces);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return error_in_file(name, status);
    }
    *out = t;
    return GM_OK;
}
