/* load_json.c - a tokenizer from the text of a tokenizer.json.
 * Components are small objects: each is read by name from a copy of the reader that stands at its start. Only the model,
 * whose vocabulary and merges are megabytes, is read in one pass. A component or setting that is not implemented is an error
 * that names it; `truncation`, `padding` and `dropout` belong to the caller, not to the file, and are not read. */
#include "base/json.h"
#include "text/tokenizer.h"

/* The current string or key, not copied where it has no escapes; valid until the next call. */
static gm_status text_of(json_reader *r, byte_buffer *scratch, const char **text, size_t *length) {
    if (!r->escaped) {
        *text = r->token;
        *length = r->token_length;
        return GM_OK;
    }
    scratch->size = 0;
    *length = json_string_length(r);
    GM_TRY(bytes_reserve(scratch, *length + 1));
    json_string_copy(r, (char *)scratch->data);
    *text = (const char *)scratch->data;
    return GM_OK;
}

/* ---- members of small objects ---- */
/* `object` stands on JSON_OBJECT; *value then stands on the member's value, with type JSON_NULL when there is none. */
static gm_status member(const json_reader *object, const char *key, json_reader *value) {
    *value = *object;
    json_token token;
    while ((token = json_next(value)) == JSON_KEY) {
        if (json_is(value, key))
            return json_next(value) == JSON_ERROR ? GM_EBADFILE : GM_OK;
        GM_TRY(json_skip(value));
    }
    if (token == JSON_ERROR)
        return GM_EBADFILE;
    value->type = JSON_NULL;
    return GM_OK;
}

static gm_status member_bool(const json_reader *object, const char *key, bool absent, bool *out) {
    json_reader value;
    *out = absent;
    GM_TRY(member(object, key, &value));
    if (value.type != JSON_TRUE && value.type != JSON_FALSE && value.type != JSON_NULL)
        return json_fail(&value, "'%s' is not true or false", key);
    if (value.type != JSON_NULL)
        *out = value.type == JSON_TRUE;
    return GM_OK;
}

/* A copy from memory.h; NULL when the member is absent or null. */
static gm_status member_text(const json_reader *object, const char *key, char **out, size_t *length) {
    json_reader value;
    *out = NULL;
    *length = 0;
    GM_TRY(member(object, key, &value));
    if (value.type == JSON_NULL)
        return GM_OK;
    if (value.type != JSON_STRING)
        return json_fail(&value, "'%s' is not a string", key);
    *out = json_string_new(&value, length);
    return *out == NULL ? GM_ENOMEM : GM_OK;
}

static gm_status member_count(const json_reader *object, const char *key, int64_t *out) {
    json_reader value;
    *out = 0;
    GM_TRY(member(object, key, &value));
    if (value.type == JSON_NULL)
        return GM_OK;
    if (value.type != JSON_NUMBER)
        return json_fail(&value, "'%s' is not a number", key);
    GM_TRY(json_int(&value, out));
    return *out < 0 ? json_fail(&value, "'%s' is negative", key) : GM_OK;
}

static gm_status member_array(const json_reader *object, const char *key, json_reader *array) {
    GM_TRY(member(object, key, array));
    return array->type == JSON_ARRAY ? GM_OK : json_fail(array, "'%s' is not an array", key);
}

/* *element walks the objects of an array: GM_END behind the last. */
static gm_status next_object(json_reader *array, json_reader *element) {
    json_token token = json_next(array);
    if (token == JSON_ARRAY_END)
        return GM_END;
    if (token != JSON_OBJECT)
        return token == JSON_ERROR ? GM_EBADFILE : json_fail(array, "an object was expected");
    *element = *array;
    return json_skip(array);
}

static gm_status open_component(const json_reader *component, const char *what, json_reader *type) {
    json_reader r = *component;
    if (r.type != JSON_OBJECT)
        return json_fail(&r, "%s is not an object", what);
    GM_TRY(member(component, "type", type));
    return type->type == JSON_STRING ? GM_OK : json_fail(&r, "%s has no type", what);
}

static gm_status unsupported(const json_reader *type, const char *what) {
    return gm_fail(GM_EUNSUPPORTED, "%s: %s '%.*s' is not supported", type->name, what,
                   type->token_length < 64 ? (int)type->token_length : 64, type->token);
}

/* {"String": "..."} or {"Regex": "..."}, never empty. */
static gm_status read_pattern(const json_reader *object, char **text, size_t *length, bool *is_regex) {
    json_reader pattern;
    *text = NULL;
    GM_TRY(member(object, "pattern", &pattern));
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
    gm_status status = is_regex ? gm_fail(GM_EUNSUPPORTED, "%s: Replace with the regular expression '%.200s' is not supported",
                                          r->name, *from)
                                : member_text(r, "content", to, to_length);
    if (status == GM_OK && *to == NULL && (*to = memory_copy_text("", 0)) == NULL)
        status = GM_ENOMEM;
    if (status != GM_OK)
        memory_free(*from);
    return status;
}

static gm_status read_normalizer(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "normalizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "normalizers", &array));
        gm_status status;
        while ((status = next_object(&array, &element)) == GM_OK)
            GM_TRY(read_normalizer(t, &element));
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
        return unsupported(&type, "normalizer");
    }
    return normalizer_add(&t->normalizer, step);
}

/* ---- pre-tokenizers ---- */
static gm_status read_behavior(const json_reader *r, split_behavior *out) {
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext" };
    static const split_behavior behaviors[] = { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS,
                                                SPLIT_WITH_NEXT };
    json_reader value;
    GM_TRY(member(r, "behavior", &value));
    for (size_t i = 0; i < sizeof names / sizeof names[0] && value.type == JSON_STRING; i++) {
        if (json_is(&value, names[i])) {
            *out = behaviors[i];
            return GM_OK;
        }
    }
    return json_fail(&value, "'behavior' is not one of Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext");
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
    GM_TRY(member(r, "prepend_scheme", &value));
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

static gm_status read_pretokenizer(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    pretokenizer *p = &t->pretokenizer;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "pre_tokenizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "pretokenizers", &array));
        gm_status status;
        while ((status = next_object(&array, &element)) == GM_OK)
            GM_TRY(read_pretokenizer(t, &element));
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
    return unsupported(&type, "pre_tokenizer");
}

/* ---- post-processors ---- */
/* The ids of one {"SpecialToken": {"id": "<s>"}} of a template. */
static gm_status read_template_token(const json_reader *r, const json_reader *token, id_buffer *out) {
    json_reader name, all, entry, ids;
    GM_TRY(member(token, "id", &name));
    GM_TRY(member(r, "special_tokens", &all));
    if (name.type != JSON_STRING || all.type != JSON_OBJECT)
        return json_fail(&name, "the template's special tokens are not what they should be");
    char *text = json_string_new(&name, NULL);
    if (text == NULL)
        return GM_ENOMEM;
    gm_status status = member(&all, text, &entry);
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
    while ((status = next_object(&array, &element)) == GM_OK) {
        GM_TRY(member(&element, "SpecialToken", &part));
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

static gm_status read_post_processor(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(open_component(r, "post_processor", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "processors", &array));
        gm_status status;
        while ((status = next_object(&array, &element)) == GM_OK)
            GM_TRY(read_post_processor(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    if (json_is(&type, "ByteLevel"))
        return GM_OK;    /* it only trims offsets */
    if (json_is(&type, "TemplateProcessing"))
        return read_template(t, r);
    return unsupported(&type, "post_processor");
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
        while ((status = next_object(&array, &element)) == GM_OK)
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
    return unsupported(&type, whole || json_is(&type, "Replace") || json_is(&type, "ByteFallback") || json_is(&type, "Strip")
                                  ? "at this place, decoder" : "decoder");
}

/* ---- added tokens ---- */
static gm_status read_added(gm_tokenizer *t, json_reader *array) {
    if (array->type == JSON_NULL)
        return GM_OK;
    if (array->type != JSON_ARRAY)
        return json_fail(array, "'added_tokens' is not an array");
    json_reader r;
    gm_status status;
    while ((status = next_object(array, &r)) == GM_OK) {
        added_token flags = { 0 };
        bool normalized;
        char *text;
        size_t length;
        GM_TRY(member_bool(&r, "single_word", false, &flags.single_word));
        GM_TRY(member_bool(&r, "lstrip", false, &flags.lstrip));
        GM_TRY(member_bool(&r, "rstrip", false, &flags.rstrip));
        GM_TRY(member_bool(&r, "special", false, &flags.special));
        GM_TRY(member_bool(&r, "normalized", !flags.special, &normalized));
        GM_TRY(member_text(&r, "content", &text, &length));
        if (text == NULL)
            return json_fail(&r, "an added token has no content");
        gm_status added = tokenizer_add(t, text, length, flags, normalized);
        memory_free(text);
        GM_TRY(added);
    }
    return status == GM_END ? GM_OK : status;
}

/* ---- the model ---- */
static gm_status read_vocab(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    if (r->type != JSON_OBJECT)
        return json_fail(r, "the vocabulary is not an object of tokens and ids");
    json_token token;
    while ((token = json_next(r)) == JSON_KEY) {
        const char *text;
        size_t length;
        int64_t id;
        json_reader key = *r;
        GM_TRY(json_expect(r, JSON_NUMBER));
        GM_TRY(json_int(r, &id));
        GM_TRY(text_of(&key, scratch, &text, &length));
        GM_TRY(vocab_add(&t->vocab, text, length, id));
    }
    return token == JSON_ERROR ? GM_EBADFILE : GM_OK;
}

static gm_status merge_part(const gm_tokenizer *t, json_reader *r, const char *text, size_t length, int32_t *id) {
    *id = vocab_find(&t->vocab, text, length);
    if (*id >= 0)
        return GM_OK;
    return json_fail(r, "a merge has '%.*s', which is not in the vocabulary", length < 64 ? (int)length : 64, text);
}

static gm_status read_merges(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    if (r->type == JSON_NULL)
        return GM_OK;
    if (r->type != JSON_ARRAY)
        return json_fail(r, "'merges' is not an array");
    for (uint32_t rank = 0;; rank++) {
        json_token token = json_next(r);
        const char *text;
        size_t length;
        int32_t parts[2];
        if (token == JSON_ARRAY_END)
            return GM_OK;
        if (token == JSON_STRING) {
            GM_TRY(text_of(r, scratch, &text, &length));
            if (length >= 8 && memcmp(text, "#version", 8) == 0) {
                rank--;
                continue;
            }
            const char *space = memchr(text, ' ', length);
            size_t left = space == NULL ? length : (size_t)(space - text);
            if (space == NULL || memchr(space + 1, ' ', length - left - 1) != NULL)
                return json_fail(r, "a merge is not two tokens with one space between them");
            GM_TRY(merge_part(t, r, text, left, &parts[0]));
            GM_TRY(merge_part(t, r, space + 1, length - left - 1, &parts[1]));
        } else if (token == JSON_ARRAY) {
            for (int i = 0; i < 2; i++) {
                GM_TRY(json_expect(r, JSON_STRING));
                GM_TRY(text_of(r, scratch, &text, &length));
                GM_TRY(merge_part(t, r, text, length, &parts[i]));
            }
            GM_TRY(json_expect(r, JSON_ARRAY_END));
        } else {
            return token == JSON_ERROR ? GM_EBADFILE : json_fail(r, "a merge is neither a string nor a pair");
        }
        GM_TRY(bpe_add_merge(&t->bpe, &t->vocab, parts[0], parts[1], rank, joined));
    }
}

/* A setting that is only supported when it is absent, null or "". */
static gm_status expect_empty(json_reader *r, const char *key) {
    if (r->type == JSON_NULL || (r->type == JSON_STRING && r->token_length == 0))
        return GM_OK;
    return gm_fail(GM_EUNSUPPORTED, "%s: model setting '%s' is not supported", r->name, key);
}

static gm_status read_flag(json_reader *r, const char *key, bool *out) {
    *out = r->type == JSON_TRUE;
    if (r->type == JSON_TRUE || r->type == JSON_FALSE || r->type == JSON_NULL)
        return GM_OK;
    return json_fail(r, "'%s' is not true or false", key);
}

static gm_status read_model(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    if (r->type != JSON_OBJECT)
        return json_fail(r, "'model' is not an object");
    json_reader unknown = { .type = JSON_NULL }, merges = { .type = JSON_NULL };
    json_token token;
    bool has_vocab = false;
    while ((token = json_next(r)) == JSON_KEY) {
        json_reader key = *r;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (json_is(&key, "type")) {
            if (r->type != JSON_STRING || !json_is(r, "BPE"))
                return unsupported(r, "model");
        } else if (json_is(&key, "vocab")) {
            GM_TRY(read_vocab(t, r, scratch));
            has_vocab = true;
        } else if (json_is(&key, "merges") && has_vocab) {
            GM_TRY(read_merges(t, r, scratch, joined));
        } else if (json_is(&key, "merges")) {
            merges = *r;
        } else if (json_is(&key, "unk_token")) {
            unknown = *r;
        } else if (json_is(&key, "continuing_subword_prefix")) {
            GM_TRY(expect_empty(r, "continuing_subword_prefix"));
        } else if (json_is(&key, "end_of_word_suffix")) {
            GM_TRY(expect_empty(r, "end_of_word_suffix"));
        } else if (json_is(&key, "byte_fallback")) {
            GM_TRY(read_flag(r, "byte_fallback", &t->bpe.byte_fallback));
        } else if (json_is(&key, "fuse_unk")) {
            GM_TRY(read_flag(r, "fuse_unk", &t->bpe.fuse_unknown));
        } else if (json_is(&key, "ignore_merges")) {
            GM_TRY(read_flag(r, "ignore_merges", &t->bpe.ignore_merges));
        }
        if (r->type == JSON_OBJECT || r->type == JSON_ARRAY)
            GM_TRY(json_skip(r));
    }
    if (token == JSON_ERROR)
        return GM_EBADFILE;
    if (!has_vocab)
        return json_fail(r, "the model has no vocabulary");
    GM_TRY(read_merges(t, &merges, scratch, joined));
    if (unknown.type == JSON_STRING) {
        const char *text;
        size_t length;
        GM_TRY(text_of(&unknown, scratch, &text, &length));
        int32_t id = vocab_find(&t->vocab, text, length);
        t->bpe.unknown = id >= 0 ? id : BPE_MISSING_UNKNOWN;
    }
    return GM_OK;
}

/* ---- the file ---- */
static gm_status read_file(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, byte_buffer *joined) {
    enum { NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, ADDED_TOKENS, N_PARTS };
    static const char *const keys[] = { "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens" };
    json_reader parts[N_PARTS];
    for (int i = 0; i < N_PARTS; i++)
        parts[i] = (json_reader){ .name = r->name, .type = JSON_NULL };
    GM_TRY(json_expect(r, JSON_OBJECT));
    json_token token;
    bool has_model = false;
    while ((token = json_next(r)) == JSON_KEY) {
        json_reader key = *r;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (json_is(&key, "model")) {
            if (has_model)
                return json_fail(r, "there are two models");
            GM_TRY(read_model(t, r, scratch, joined));
            has_model = true;
            continue;
        }
        for (int i = 0; i < N_PARTS; i++)
            if (json_is(&key, keys[i]))
                parts[i] = *r;
        if (r->type == JSON_OBJECT || r->type == JSON_ARRAY)
            GM_TRY(json_skip(r));
    }
    if (token == JSON_ERROR || json_next(r) == JSON_ERROR)
        return GM_EBADFILE;
    if (!has_model)
        return gm_fail(GM_EBADFILE, "%s: it has no 'model'", r->name);
    int stage = STAGE_REPLACE;
    GM_TRY(read_normalizer(t, &parts[NORMALIZER]));
    GM_TRY(read_pretokenizer(t, &parts[PRE_TOKENIZER]));
    GM_TRY(read_post_processor(t, &parts[POST_PROCESSOR]));
    GM_TRY(read_decoder(&t->decoder, &parts[DECODER], &stage));
    GM_TRY(read_added(t, &parts[ADDED_TOKENS]));
    return tokenizer_finish(t);
}

gm_status gm_tokenizer_from_json(const char *json, size_t length, const char *name, gm_tokenizer **out) {
    *out = NULL;
    gm_tokenizer *t = tokenizer_new();
    if (t == NULL)
        return GM_ENOMEM;
    byte_buffer scratch = { 0 }, joined = { 0 };
    json_reader r;
    json_open(&r, json, length, name);
    gm_status status = read_file(t, &r, &scratch, &joined);
    memory_free(scratch.data);
    memory_free(joined.data);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return status;
    }
    *out = t;
    return GM_OK;
}
