/* component_normalizer.c - the normalizer of a tokenizer.json. */
#include "text/component.h"

static gm_status read_replace(const json_reader *r, normalize_step *step) {
    bool is_regex;
    GM_TRY(component_pattern(r, &step->from, &step->from_length, &is_regex));
    if (is_regex)
        return gm_fail(GM_EUNSUPPORTED, "%s: Replace with the regular expression '%.200s' is not supported", r->name,
                       step->from);
    GM_TRY(member_text(r, "content", &step->to, &step->to_length));
    if (step->to == NULL)
        step->to = memory_copy_text("", 0);
    return step->to == NULL ? GM_ENOMEM : GM_OK;
}

static gm_status read_step(const json_reader *r, const json_reader *type, normalize_step *step) {
    if (json_is(type, "NFC")) {
        step->kind = NORMALIZE_NFC;
        return GM_OK;
    }
    if (json_is(type, "Prepend")) {
        step->kind = NORMALIZE_PREPEND;
        return member_text(r, "prepend", &step->to, &step->to_length);
    }
    if (json_is(type, "Replace")) {
        step->kind = NORMALIZE_REPLACE;
        return read_replace(r, step);
    }
    return component_unsupported(type, "normalizer");
}

gm_status component_normalizer(gm_tokenizer *t, const json_reader *r) {
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
    normalize_step step = { 0 };
    gm_status status = read_step(r, &type, &step);
    if (status != GM_OK) {
        memory_free(step.from);
        memory_free(step.to);
        return status;
    }
    return normalizer_add(&t->normalizer, step);
}
