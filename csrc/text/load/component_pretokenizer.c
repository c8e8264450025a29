/* component_pretokenizer.c - the pre_tokenizer of a tokenizer.json. */
#include "text/load/component.h"

/* The default is Isolated, for Punctuation; the reference requires it of a Split. */
static gm_status read_behavior(const json_reader *r, pretokenize_step *step) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    static const split_behavior behaviors[] = {SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS,
                                               SPLIT_WITH_NEXT};
    json_reader value;
    GM_TRY(member_find(r, "behavior", &value));
    for (size_t i = 0; i < sizeof names / sizeof names[0] && value.type == JSON_STRING; i++) {
        if (json_is(&value, names[i])) {
            step->behavior = behaviors[i];
            return GM_OK;
        }
    }
    return value.type == JSON_NULL
               ? GM_OK
               : json_fail(&value,
                           "'behavior' is not Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
}

static gm_status read_split(const json_reader *r, pretokenize_step *step) {
    bool is_regex;
    GM_TRY(read_behavior(r, step));
    GM_TRY(member_bool(r, "invert", false, &step->invert));
    GM_TRY(component_pattern(r, &step->text, &step->text_length, &is_regex));
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
    return step->prefix ? GM_OK : GM_ENOMEM;
}

static gm_status read_metaspace(const json_reader *r, pretokenize_step *step) {
    bool split;
    GM_TRY(component_scheme(r, &step->scheme));
    GM_TRY(member_bool(r, "split", true, &split));
    uint32_t c;
    uint8_t space[4];
    GM_TRY(component_character(r, "replacement", &c));
    step->space_length = utf8_put(c, space);
    step->space = memory_copy_text((const char *)space, step->space_length);
    if (!step->space)
        return GM_ENOMEM;
    step->prefix = memory_copy_text(step->space, step->space_length);
    step->text = memory_copy_text(step->space, step->space_length);
    step->prefix_length = step->text_length = step->space_length;
    step->match = split ? MATCH_TEXT : MATCH_NOTHING;
    step->behavior = SPLIT_WITH_NEXT;
    return step->prefix && step->text ? GM_OK : GM_ENOMEM;
}

/* Pieces are runs of \w or of other characters; white space is dropped. */
static void set_words(pretokenize_step *step) {
    step->match = MATCH_WORD;
    step->behavior = SPLIT_REMOVED;
    step->invert = true;
}

static gm_status read_delimiter(const json_reader *r, pretokenize_step *step) {
    uint32_t c;
    uint8_t text[4];
    GM_TRY(component_character(r, "delimiter", &c));
    step->text_length = utf8_put(c, text);
    step->text = memory_copy_text((const char *)text, step->text_length);
    step->match = MATCH_TEXT;
    step->behavior = SPLIT_REMOVED;
    return step->text ? GM_OK : GM_ENOMEM;
}

static gm_status read_length(const json_reader *r, pretokenize_step *step) {
    json_reader value;
    int64_t n = 5;
    GM_TRY(member_find(r, "length", &value));
    if (value.type != JSON_NULL)
        GM_TRY(member_count(r, "length", &n));
    step->n_chars = (size_t)n;
    step->match = MATCH_LENGTH;
    return n > 0 ? GM_OK : json_fail(&value, "'length' is 0, expected at least 1");
}

static gm_status read_step(const json_reader *r, const json_reader *type, pretokenize_step *step) {
    bool individual;
    if (json_is(type, "Split"))
        return read_split(r, step);
    if (json_is(type, "Metaspace"))
        return read_metaspace(r, step);
    if (json_is(type, "CharDelimiterSplit"))
        return read_delimiter(r, step);
    if (json_is(type, "FixedLength"))
        return read_length(r, step);
    if (json_is(type, "Digits")) {
        GM_TRY(member_bool(r, "individual_digits", false, &individual));
        step->match = MATCH_DIGIT;
        step->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    } else if (json_is(type, "Punctuation")) {
        step->match = MATCH_PUNCTUATION;
        return read_behavior(r, step);
    } else if (json_is(type, "WhitespaceSplit")) {
        step->match = MATCH_SPACE;
        step->behavior = SPLIT_REMOVED;
    } else if (json_is(type, "Whitespace")) {
        set_words(step);
    } else if (json_is(type, "UnicodeScripts")) {
        step->match = MATCH_SCRIPT;
        step->behavior = SPLIT_REMOVED; /* characters of every script before the first piece */
        step->invert = true;
    } else {
        return component_unsupported(type, "pre_tokenizer");
    }
    return GM_OK;
}

/* A new step, freed with the tokenizer; NULL, with an error, if there are too many. */
static pretokenize_step *new_step(pretokenizer *p, const char *file) {
    if (p->n_steps == PRETOKENIZE_MAX_STEPS) {
        gm_fail(GM_EUNSUPPORTED, "%s: more than %d pre_tokenizers in a row", file, PRETOKENIZE_MAX_STEPS);
        return NULL;
    }
    return &p->steps[p->n_steps++];
}

static gm_status add_step(pretokenizer *p, const json_reader *r, const json_reader *type) {
    pretokenize_step *step;
    if (p->byte_level) { /* the bytes of a ByteLevel are characters for the steps after it */
        if (!(step = new_step(p, r->name)))
            return GM_EUNSUPPORTED;
        step->alphabet = true;
        p->byte_level = false;
    }
    if (!(step = new_step(p, r->name)))
        return GM_EUNSUPPORTED;
    if (json_is(type, "ByteLevel")) {
        p->byte_level = true;
        return read_byte_level(r, step);
    }
    if (!json_is(type, "BertPreTokenizer"))
        return read_step(r, type, step);
    step->match = MATCH_SPACE;
    step->behavior = SPLIT_REMOVED;
    if (!(step = new_step(p, r->name)))
        return GM_EUNSUPPORTED;
    step->match = MATCH_PUNCTUATION;
    return GM_OK;
}

gm_status component_pretokenizer(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(component_open(r, "pre_tokenizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "pretokenizers", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_pretokenizer(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    return add_step(&t->pretokenizer, r, &type);
}
