/* component.c - the small components of a tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. One
 * that is not implemented is an error that names it. */
#include "text/component.h"

static gm_status open_component(const json_reader *component, const char *what, json_reader *type) {
    json_reader r = *component;
    if (r.type != JSON_OBJECT)
        return json_fail(&r, "%s is not an object", what);
    GM_TRY(member_find(component, "type", type));
    return type->type == JSON_STRING ? GM_OK : json_fail(&r, "%s has no type", what);
}

gm_status component_unsupported(const json_reader *type, const char *what) {
    return gm_fail(GM_EUNSUPPORTED, "%s: %s '%.*s' is not supported", type->name, what,
                   type->token_length < 64 ? (int)type->token_length : 64, type->token);
}

/* {"String": "..."} or {"Regex": "..."}, never empty. */
static gm_status read_pattern(const json_reader *object, char **text, size_t *length, bool *is_regex) {
    json_reader pattern;
    *text = NULL;
    GM_TRY(member_find(object, "pattern", &pattern));
    if (pattern.type != JSON_OBJECT)
        return json_fail(&pattern, "'pattern' is not an object");
    GM_TRY(member_text(&pattern, "Regex", text, length));
    *is_regex = *text != NULL;
    if (*text == NULL)
        GM_TRY(member_text(&pattern, "String", text, length));
    if (*text != NULL && *length > 0)
        return GM_OK;
    memory_free(*text);
    *text = NULL;
    return json_fail(&pattern, "'pattern' has neither a String nor a Regex, or an empty one");
}

/* ---- normalizers ---- */
static gm_status read_replace(const json_reader *r, char **from, size_t *from_length, char **to, size_t *to_length) {
    bool is_regex;
    GM_TRY(read_pattern(r, from, from_length, &is_regex));
    gm_status status = is_regex ? gm_fail(GM_EUNSUPPORTED,
                                          "%s: Replace with the regular expression '%.200s' is not supported",
                                          r->name, *from)
                                : member_text(r, "content", to, to_length);
    if (status == GM_OK && *to == NULL && (*to = memory_copy_text("", 0)) == NULL)
        status = GM_ENOMEM;
    if (status != GM_OK)
        memory_free(*from);
    return status;
}

gm_status component_normalizer(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "normalizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "normalizers", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_normalizer(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    normalize_step step = { 0 };
    if (json_is(&type, "NFC")) {
        step.kind = NORMALIZE_NFC;
    } else if (json_is(&type, "Prepend")) {
        step.kind = NORMALIZE_PREPEND;
        GM_TRY(member_text(r, "prepend", &step.to, &step.to_length));
    } else if (json_is(&type, "Replace")) {
        step.kind = NORMALIZE_REPLACE;
        GM_TRY(read_replace(r, &step.from, &step.from_length, &step.to, &step.to_length));
    } else {
        return component_unsupported(&type, "normalizer");
    }
    return normalizer_add(&t->normalizer, step);
}

/* ---- pre-tokenizers ---- */
static gm_status read_behavior(const json_reader *r, split_behavior *out) {
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext" };
    static const split_behavior behaviors[] = { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS,
                                                SPLIT_WITH_NEXT };
    json_reader value;
    GM_TRY(member_find(r, "behavior", &value));
    for (size_t i = 0; i < sizeof names / sizeof names[0] && value.type == JSON_STRING; i++) {
        if (json_is(&value, names[i])) {
            *out = behaviors[i];
            return GM_OK;
        }
    }
    return json_fail(&value,
                     "'behavior' is not one of Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext");
}

static gm_status read_split(const json_reader *r, pretokenize_step *step) {
    bool is_regex;
    GM_TRY(read_behavior(r, &step->behavior));
    GM_TRY(member_bool(r, "invert", false, &step->invert));
    GM_TRY(read_pattern(r, &step->text, &step->text_length, &is_regex));
    step->match = MATCH_TEXT;
    if (!is_regex)
        return GM_OK;
    step->match = MATCH_SCANNER;
    step->scanner = scanner_for(step->text, step->text_length);
    if (step->scanner != SCANNER_NONE)
        return GM_OK;
    step->match = MATCH_REGEX;
    return regex_new(step->text, step->text_length, &step->regex);
}

static gm_status read_byte_level(const json_reader *r, pretokenize_step *step) {
    bool use_regex, add_prefix_space;
    GM_TRY(member_bool(r, "use_regex", true, &use_regex));
    GM_TRY(member_bool(r, "add_prefix_space", true, &add_prefix_space));
    step->match = use_regex ? MATCH_SCANNER : MATCH_NOTHING;
    step->scanner = SCANNER_GPT2;
    if (!add_prefix_space)
        return GM_OK;
    step->scheme = PREFIX_ALWAYS;
    step->prefix = memory_copy_text(" ", 1);
    step->prefix_length = 1;
    return step->prefix == NULL ? GM_ENOMEM : GM_OK;
}

/* prepend_scheme, or in old files add_prefix_space. */
static gm_status read_scheme(const json_reader *r, prefix_scheme *out) {
    json_reader value;
    GM_TRY(member_find(r, "prepend_scheme", &value));
    if (value.type == JSON_NULL) {
        bool add_prefix_space;
        GM_TRY(member_bool(r, "add_prefix_space", true, &add_prefix_space));
        *out = add_prefix_space ? PREFIX_ALWAYS : PREFIX_NEVER;
        return GM_OK;
    }
    bool text = value.type == JSON_STRING;
    if (text && json_is(&value, "always"))
        *out = PREFIX_ALWAYS;
    else if (text && json_is(&value, "first"))
        *out = PREFIX_FIRST;
    else if (text && json_is(&value, "never"))
        *out = PREFIX_NEVER;
    else
        return json_fail(&value, "'prepend_scheme' is not one of always, first, never");
    return GM_OK;
}

static gm_status read_marker(const json_reader *r, char **out, size_t *length) {
    GM_TRY(member_text(r, "replacement", out, length));
    size_t at = 0;
    if (*out != NULL && *length > 0)
        utf8_next((const uint8_t *)*out, &at);
    if (*out != NULL && *length > 0 && at == *length)
        return GM_OK;
    json_reader copy = *r;
    return json_fail(&copy, "'replacement' is not one character");
}

static gm_status read_metaspace(const json_reader *r, pretokenize_step *step) {
    bool split;
    GM_TRY(read_scheme(r, &step->scheme));
    GM_TRY(member_bool(r, "split", true, &split));
    GM_TRY(read_marker(r, &step->space, &step->space_length));
    step->prefix = memory_copy_text(step->space, step->space_length);
    step->text = memory_copy_text(step->space, step->space_length);
    step->prefix_length = step->text_length = step->space_length;
    step->match = split ? MATCH_TEXT : MATCH_NOTHING;
    step->behavior = SPLIT_WITH_NEXT;
    return step->prefix == NULL || step->text == NULL ? GM_ENOMEM : GM_OK;
}

gm_status component_pretokenizer(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    pretokenizer *p = &t->pretokenizer;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "pre_tokenizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "pretokenizers", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_pretokenizer(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    if (p->byte_level)
        return gm_fail(GM_EUNSUPPORTED, "%s: a pre_tokenizer after ByteLevel is not supported", type.name);
    if (p->n_steps == PRETOKENIZE_MAX_STEPS)
        return gm_fail(GM_EUNSUPPORTED, "%s: more than %d pre_tokenizers in a row", type.name, PRETOKENIZE_MAX_STEPS);
    pretokenize_step *step = &p->steps[p->n_steps++];    /* freed with the tokenizer, whatever comes */
    if (json_is(&type, "ByteLevel")) {
        p->byte_level = true;
        return read_byte_level(r, step);
    }
    if (json_is(&type, "Split"))
        return read_split(r, step);
    if (json_is(&type, "Metaspace"))
        return read_metaspace(r, step);
    if (json_is(&type, "Digits")) {
        bool individual;
        GM_TRY(member_bool(r, "individual_digits", false, &individual));
        step->match = MATCH_DIGIT;
        step->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return GM_OK;
    }
    return component_unsupported(&type, "pre_tokenizer");
}

/* ---- post-processors ---- */
/* The ids of one {"SpecialToken": {"id": "<s>"}} of a template. */
static gm_status read_template_token(const json_reader *r, const json_reader *token, id_buffer *out) {
    json_reader name, all, entry, ids;
    GM_TRY(member_find(token, "id", &name));
    GM_TRY(member_find(r, "special_tokens", &all));
    if (name.type != JSON_STRING || all.type != JSON_OBJECT)
        return json_fail(&name, "the template's special tokens are not what they should be");
    char *text = json_string_new(&name, NULL);
    if (text == NULL)
        return GM_ENOMEM;
    gm_status status = member_find(&all, text, &entry);
    if (status == GM_OK && entry.type != JSON_OBJECT)
        status = json_fail(&entry, "the template's token '%.64s' is not described", text);
    memory_free(text);
    GM_TRY(status);
    GM_TRY(member_array(&entry, "ids", &ids));
    for (;;) {
        json_token type = json_next(&ids);
        int64_t id;
        if (type == JSON_ARRAY_END)
            return GM_OK;
        if (type != JSON_NUMBER)
            return type == JSON_ERROR ? GM_EBADFILE : json_fail(&ids, "an id was expected");
        GM_TRY(json_int(&ids, &id));
        if (id < 0 || id >= VOCAB_MAX)
            return json_fail(&ids, "id %lld is out of range", (long long)id);
        GM_TRY(ids_append(out, (int32_t)id));
    }
}

static gm_status read_template(gm_tokenizer *t, const json_reader *r) {
    json_reader array, element, part;
    bool seen = false;
    if (t->before.size + t->after.size > 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: two TemplateProcessing post_processors are not supported", r->name);
    GM_TRY(member_array(r, "single", &array));
    gm_status status;
    while ((status = member_next_object(&array, &element)) == GM_OK) {
        GM_TRY(member_find(&element, "SpecialToken", &part));
        if (part.type == JSON_OBJECT) {
            GM_TRY(read_template_token(r, &part, seen ? &t->after : &t->before));
            continue;
        }
        if (seen)
            return json_fail(&array, "the template has its text more than once");
        seen = true;
    }
    if (status != GM_END)
        return status;
    return seen ? GM_OK : json_fail(&array, "the template has no text in it");
}

gm_status component_post_processor(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "post_processor", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "processors", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_post_processor(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    if (json_is(&type, "ByteLevel"))
        return GM_OK;    /* it only trims offsets */
    if (json_is(&type, "TemplateProcessing"))
        return read_template(t, r);
    return component_unsupported(&type, "post_processor");
}

/* ---- decoders ---- */
/* In a Sequence: Replace..., ByteFallback, Fuse, Strip must come in this order, which is what `stage` counts. */
enum { STAGE_REPLACE, STAGE_BYTES, STAGE_FUSED, STAGE_DONE };

static gm_status read_strip(const json_reader *r, decoder *d) {
    char *content;
    size_t length, at = 0;
    int64_t start, stop;
    GM_TRY(member_count(r, "start", &start));
    GM_TRY(member_count(r, "stop", &stop));
    if (stop != 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: decoder Strip with stop %lld is not supported", r->name, (long long)stop);
    GM_TRY(member_text(r, "content", &content, &length));
    d->strip = content != NULL && length > 0 ? utf8_next((const uint8_t *)content, &at) : ' ';
    d->strip_count = (size_t)start;
    bool one = content == NULL || (length > 0 && at == length);
    memory_free(content);
    json_reader copy = *r;
    return one ? GM_OK : json_fail(&copy, "'content' is not one character");
}

static gm_status read_decoder_metaspace(const json_reader *r, decoder *d) {
    prefix_scheme scheme;
    char *marker = NULL;
    size_t length, at = 0;
    GM_TRY(read_scheme(r, &scheme));
    gm_status status = read_marker(r, &marker, &length);
    if (status == GM_OK)
        d->marker = utf8_next((const uint8_t *)marker, &at);
    memory_free(marker);
    d->kind = DECODE_METASPACE;
    d->drop_first = scheme != PREFIX_NEVER;
    return status;
}

static gm_status read_decoder(decoder *d, const json_reader *r, int *stage) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "decoder", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "decoders", &array));
        d->kind = DECODE_PIECES;    /* an empty sequence is no decoder, but joins without spaces */
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(read_decoder(d, &element, stage));
        return status == GM_END ? GM_OK : status;
    }
    int at = *stage;
    bool whole = json_is(&type, "ByteLevel") || json_is(&type, "Metaspace");
    if (whole && at == STAGE_REPLACE && d->n_replaces == 0) {
        *stage = STAGE_DONE;
        if (json_is(&type, "Metaspace"))
            return read_decoder_metaspace(r, d);
        d->kind = DECODE_BYTES;
        return GM_OK;
    }
    bool pieces = at != STAGE_DONE;
    if (pieces)
        d->kind = DECODE_PIECES;
    if (json_is(&type, "Fuse")) {
        *stage = pieces ? STAGE_FUSED : at;
        return GM_OK;
    }
    if (json_is(&type, "Replace") && at == STAGE_REPLACE) {
        decode_replace replace = { 0 };
        GM_TRY(read_replace(r, &replace.from, &replace.from_length, &replace.to, &replace.to_length));
        return decoder_add_replace(d, replace);
    }
    if (json_is(&type, "ByteFallback") && at == STAGE_REPLACE) {
        *stage = STAGE_BYTES;
        d->byte_fallback = true;
        return GM_OK;
    }
    if (json_is(&type, "Strip") && at == STAGE_FUSED) {
        *stage = STAGE_DONE;
        return read_strip(r, d);
    }
    bool known = whole || json_is(&type, "Replace") || json_is(&type, "ByteFallback") || json_is(&type, "Strip");
    return component_unsupported(&type, known ? "at this place, decoder" : "decoder");
}

gm_status component_decoder(gm_tokenizer *t, const json_reader *r) {
    int stage = STAGE_REPLACE;
    return read_decoder(&t->decoder, r, &stage);
}
