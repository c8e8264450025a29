/* component_normalizer.c - the normalizer of a tokenizer.json. */
#include "text/load/component.h"

static gm_status add(gm_tokenizer *t, normalize_kind kind) {
    return normalizer_add(&t->normalizer, (normalize_step){.kind = kind});
}

static gm_status add_form(gm_tokenizer *t, normal_form form) {
    return normalizer_add(&t->normalizer, (normalize_step){.kind = NORMALIZE_FORM, .form = form});
}

/* Reads a required text. */
static gm_status read_text(const json_reader *r, const char *key, char **out, size_t *length) {
    GM_TRY(member_text(r, key, out, length));
    json_reader copy = *r;
    return *out ? GM_OK : json_fail(&copy, "the normalizer has no '%s'", key);
}

static gm_status read_replace(const json_reader *r, normalize_step *step) {
    bool is_regex;
    GM_TRY(component_pattern(r, &step->from, &step->from_length, &is_regex));
    if (is_regex)
        GM_TRY(regex_new(step->from, step->from_length, &step->regex));
    return read_text(r, "content", &step->to, &step->to_length);
}

static int digit64(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c == 0 ? NULL : strchr(digits, c);
    return found ? (int)(found - digits) : -1;
}

/* Decodes in place; false if the text is not base64. */
static bool decode64(char *text, size_t *length) {
    size_t n = *length, size = 0;
    uint8_t *out = (uint8_t *)text;
    uint32_t bits = 0;
    if (n % 4 != 0)
        return false;
    size_t padding = n > 0 && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0;
    for (size_t i = 0; i < n; i++) {
        int digit = i < n - padding ? digit64(text[i]) : 0;
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 != 3)
            continue;
        for (size_t k = 0; k < 3; k++)
            out[size++] = (uint8_t)(bits >> (16 - 8 * k));
        bits = 0;
    }
    *length = size - padding;
    return true;
}

static gm_status read_charsmap(const json_reader *r, normalize_step *step) {
    size_t length;
    GM_TRY(read_text(r, "precompiled_charsmap", &step->to, &length));
    json_reader copy = *r;
    if (!decode64(step->to, &length))
        return json_fail(&copy, "'precompiled_charsmap' is not base64");
    return charsmap_new((const uint8_t *)step->to, length, r->name, &step->charsmap);
}

/* If strip_accents is null, lowercase decides. */
static gm_status read_bert(gm_tokenizer *t, const json_reader *r) {
    bool clean, ideographs, lowercase, accents;
    GM_TRY(member_bool(r, "lowercase", true, &lowercase));
    GM_TRY(member_bool(r, "clean_text", true, &clean));
    GM_TRY(member_bool(r, "handle_chinese_chars", true, &ideographs));
    GM_TRY(member_bool(r, "strip_accents", lowercase, &accents));
    if (clean)
        GM_TRY(add(t, NORMALIZE_CLEAN));
    if (ideographs)
        GM_TRY(add(t, NORMALIZE_IDEOGRAPHS));
    if (accents) {
        GM_TRY(add_form(t, NORMAL_D));
        GM_TRY(add(t, NORMALIZE_NONSPACING));
    }
    return lowercase ? add(t, NORMALIZE_LOWERCASE) : GM_OK;
}

/* Reads a step with settings. */
static gm_status read_step(const json_reader *r, const json_reader *type, normalize_step *step) {
    if (json_is(type, "Prepend")) {
        step->kind = NORMALIZE_PREPEND;
        return read_text(r, "prepend", &step->to, &step->to_length);
    }
    if (json_is(type, "Replace")) {
        step->kind = NORMALIZE_REPLACE;
        return read_replace(r, step);
    }
    if (json_is(type, "Precompiled")) {
        step->kind = NORMALIZE_CHARSMAP;
        return read_charsmap(r, step);
    }
    if (json_is(type, "Strip")) {
        step->kind = NORMALIZE_STRIP;
        GM_TRY(member_bool(r, "strip_left", true, &step->left));
        return member_bool(r, "strip_right", true, &step->right);
    }
    return component_unsupported(type, "normalizer");
}

gm_status component_normalizer(gm_tokenizer *t, const json_reader *r) {
    static const struct {
        const char *name;
        normal_form form;
    } forms[] = {
        {"NFC", NORMAL_C},
        {"NFD", NORMAL_D},
        {"NFKC", NORMAL_KC},
        {"NFKD", NORMAL_KD},
    };
    static const struct {
        const char *name;
        normalize_kind kind;
    } plain[] = {
        {"Lowercase", NORMALIZE_LOWERCASE},
        {"StripAccents", NORMALIZE_STRIP_ACCENTS},
        {"Nmt", NORMALIZE_NMT},
        {"ByteLevel", NORMALIZE_BYTE_LEVEL},
    };
    json_reader type, array, element;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(component_open(r, "normalizer", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "normalizers", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_normalizer(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (json_is(&type, forms[i].name))
            return add_form(t, forms[i].form);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (json_is(&type, plain[i].name))
            return add(t, plain[i].kind);
    if (json_is(&type, "BertNormalizer"))
        return read_bert(t, r);
    normalize_step step = {0};
    gm_status status = read_step(r, &type, &step);
    if (status != GM_OK) {
        normalize_step_free(&step);
        return status;
    }
    return normalizer_add(&t->normalizer, step);
}
