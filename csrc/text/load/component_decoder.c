/* component_decoder.c - the decoder of a tokenizer.json. */
#include "text/load/component.h"

/* Reads a required text. */
static gm_status read_text(const json_reader *r, const char *key, char **out, size_t *length) {
    GM_TRY(member_text(r, key, out, length));
    json_reader copy = *r;
    return *out ? GM_OK : json_fail(&copy, "the decoder has no '%s'", key);
}

static gm_status read_count(const json_reader *r, const char *key, size_t *out) {
    int64_t count;
    GM_TRY(member_count(r, key, &count));
    *out = (size_t)count;
    return GM_OK;
}

static gm_status read_replace(const json_reader *r, decode_step *step) {
    bool is_regex;
    GM_TRY(component_pattern(r, &step->from, &step->from_length, &is_regex));
    if (is_regex)
        GM_TRY(regex_new(step->from, step->from_length, &step->regex));
    return read_text(r, "content", &step->to, &step->to_length);
}

static gm_status read_step(const json_reader *r, const json_reader *type, decode_step *step) {
    if (json_is(type, "ByteLevel")) {
        step->kind = DECODE_BYTE_LEVEL;
        return GM_OK;
    }
    if (json_is(type, "ByteFallback")) {
        step->kind = DECODE_BYTE_FALLBACK;
        return GM_OK;
    }
    if (json_is(type, "Fuse")) {
        step->kind = DECODE_FUSE;
        return GM_OK;
    }
    if (json_is(type, "Replace")) {
        step->kind = DECODE_REPLACE;
        return read_replace(r, step);
    }
    if (json_is(type, "Strip")) {
        step->kind = DECODE_STRIP;
        GM_TRY(read_count(r, "start", &step->start));
        GM_TRY(read_count(r, "stop", &step->stop));
        return component_character(r, "content", &step->c);
    }
    if (json_is(type, "Metaspace")) {
        prefix_scheme scheme;
        step->kind = DECODE_METASPACE;
        GM_TRY(component_scheme(r, &scheme));
        step->drop_first = scheme != PREFIX_NEVER;
        return component_character(r, "replacement", &step->c);
    }
    if (json_is(type, "WordPiece")) {
        step->kind = DECODE_WORDPIECE;
        GM_TRY(member_bool(r, "cleanup", true, &step->cleanup));
        return read_text(r, "prefix", &step->from, &step->from_length);
    }
    if (json_is(type, "BPEDecoder")) {
        step->kind = DECODE_SUFFIX;
        return read_text(r, "suffix", &step->from, &step->from_length);
    }
    if (json_is(type, "CTC")) {
        step->kind = DECODE_CTC;
        GM_TRY(member_bool(r, "cleanup", true, &step->cleanup));
        GM_TRY(read_text(r, "pad_token", &step->from, &step->from_length));
        return read_text(r, "word_delimiter_token", &step->to, &step->to_length);
    }
    return component_unsupported(type, "decoder");
}

gm_status component_decoder(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(component_open(r, "decoder", &type));
    t->decoder.given = true;
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "decoders", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_decoder(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    decode_step step = {0};
    gm_status status = read_step(r, &type, &step);
    if (status != GM_OK) {
        decode_step_free(&step);
        return status;
    }
    return decoder_add(&t->decoder, step);
}
