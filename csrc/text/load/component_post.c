/* component_post.c - the post_processor, truncation and padding of a tokenizer.json. */
#include "text/load/component.h"

static gm_status read_id(json_reader *r, int32_t *out) {
    int64_t id;
    GM_TRY(json_int(r, &id));
    if (id < 0 || id >= VOCAB_MAX)
        return json_fail(r, "id %lld is out of range, expected 0 to %d", (long long)id, VOCAB_MAX - 1);
    *out = (int32_t)id;
    return GM_OK;
}

/* ---- TemplateProcessing ---- */
/* Moves to the next element of an array of strings or numbers; GM_END after the last. */
static gm_status next_of(json_reader *array, json_token wanted) {
    json_token got = json_next(array);
    if (got == JSON_ARRAY_END)
        return GM_END;
    if (got == wanted)
        return GM_OK;
    return got == JSON_ERROR ? GM_EBADFILE
                             : json_fail(array, "expected %s", wanted == JSON_NUMBER ? "an id" : "a string");
}

/* Reads one of the template's special_tokens: ids and texts. */
static gm_status read_tokens(const json_reader *entry, template_piece *piece) {
    json_reader ids, texts, count;
    size_t n = 0;
    gm_status status;
    GM_TRY(member_array(entry, "ids", &ids));
    GM_TRY(member_find(entry, "tokens", &texts));
    for (count = ids; (status = next_of(&count, JSON_NUMBER)) == GM_OK;)
        n++;
    if (status != GM_END)
        return status;
    piece->tokens = memory_zeroed((n + 1) * sizeof *piece->tokens);
    if (!piece->tokens)
        return GM_ENOMEM;
    while ((status = next_of(&ids, JSON_NUMBER)) == GM_OK)
        GM_TRY(read_id(&ids, &piece->tokens[piece->n_tokens++].id));
    for (size_t i = 0; texts.type == JSON_ARRAY && i < n; i++) {
        GM_TRY(next_of(&texts, JSON_STRING) == GM_OK
                   ? GM_OK
                   : json_fail(&texts, "a special token has more 'ids' than 'tokens'"));
        piece->tokens[i].text = json_string_new(&texts, &piece->tokens[i].length);
        if (!piece->tokens[i].text)
            return GM_ENOMEM;
    }
    return GM_OK;
}

static gm_status read_piece(const json_reader *step, const json_reader *element, template *t) {
    json_reader token, sequence, name, all, entry;
    template_piece *piece;
    int64_t type_id;
    GM_TRY(template_add(t, &piece));
    GM_TRY(member_find(element, "SpecialToken", &token));
    GM_TRY(member_find(element, "Sequence", &sequence));
    bool special = token.type == JSON_OBJECT;
    if (!special && sequence.type != JSON_OBJECT)
        return json_fail(&sequence, "a piece of the template is not a Sequence or a SpecialToken");
    const json_reader *body = special ? &token : &sequence;
    GM_TRY(member_count(body, "type_id", &type_id));
    GM_TRY(member_find(body, "id", &name));
    if (type_id > INT32_MAX || name.type != JSON_STRING)
        return json_fail(&name, "a piece of the template has no 'id', or a 'type_id' above 2147483647");
    piece->type_id = (int32_t)type_id;
    if (!special) {
        piece->sequence = json_is(&name, "A") ? 0 : 1;
        return json_is(&name, "A") || json_is(&name, "B") ? GM_OK
                                                          : json_fail(&name, "the template's sequence is not A or B");
    }
    GM_TRY(member_find(step, "special_tokens", &all));
    if (all.type != JSON_OBJECT)
        return json_mistyped(&all, "special_tokens", "an object");
    char *text = json_string_new(&name, NULL);
    if (!text)
        return GM_ENOMEM;
    gm_status status = member_find(&all, text, &entry);
    if (status == GM_OK && entry.type != JSON_OBJECT)
        status = json_fail(&entry, "the template's token '%.64s' is missing in 'special_tokens'", text);
    memory_free(text);
    return status == GM_OK ? read_tokens(&entry, piece) : status;
}

static gm_status read_template(const json_reader *r, post_step *step) {
    static const char *const keys[] = {"single", "pair"};
    for (int i = 0; i < 2; i++) {
        template *t = i == 0 ? &step->single : &step->pair;
        json_reader array, element;
        gm_status status;
        GM_TRY(member_find(r, keys[i], &array));
        if (i == 1 && array.type == JSON_NULL)
            break;
        if (array.type != JSON_ARRAY)
            return json_mistyped(&array, keys[i], "an array");
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(read_piece(r, &element, t));
        if (status != GM_END)
            return status;
    }
    return GM_OK;
}

/* ---- the other post-processors ---- */
/* ["[SEP]", 102] */
static gm_status read_named(const json_reader *r, const char *key, named_token *out) {
    json_reader array;
    GM_TRY(member_array(r, key, &array));
    GM_TRY(json_expect(&array, JSON_STRING));
    out->text = json_string_new(&array, &out->length);
    if (!out->text)
        return GM_ENOMEM;
    GM_TRY(json_expect(&array, JSON_NUMBER));
    return read_id(&array, &out->id);
}

gm_status component_post_processor(gm_tokenizer *t, const json_reader *r) {
    json_reader type, array, element;
    post_processor *p = &t->post_processor;
    if (r->type == JSON_NULL)
        return GM_OK;
    GM_TRY(component_open(r, "post_processor", &type));
    if (json_is(&type, "Sequence")) {
        GM_TRY(member_array(r, "processors", &array));
        gm_status status;
        while ((status = member_next_object(&array, &element)) == GM_OK)
            GM_TRY(component_post_processor(t, &element));
        return status == GM_END ? GM_OK : status;
    }
    if (p->n_steps == POST_MAX_STEPS)
        return gm_fail(GM_EUNSUPPORTED, "%s: more than %d post_processors in a row", r->name, POST_MAX_STEPS);
    post_step *step = &p->steps[p->n_steps++]; /* freed with the tokenizer, also after errors */
    if (json_is(&type, "TemplateProcessing")) {
        step->kind = POST_TEMPLATE;
        return read_template(r, step);
    }
    bool roberta = json_is(&type, "RobertaProcessing"), byte_level = json_is(&type, "ByteLevel");
    if (!roberta && !byte_level && !json_is(&type, "BertProcessing"))
        return component_unsupported(&type, "post_processor");
    step->kind = roberta ? POST_ROBERTA : byte_level ? POST_BYTE_LEVEL : POST_BERT;
    if (!byte_level) {
        GM_TRY(read_named(r, "cls", &step->cls));
        GM_TRY(read_named(r, "sep", &step->sep));
    }
    if (step->kind == POST_BERT)
        return GM_OK;
    GM_TRY(member_bool(r, "trim_offsets", true, &step->trim_offsets));
    return member_bool(r, "add_prefix_space", true, &step->prefix_space);
}

/* ---- truncation and padding ---- */
static gm_status read_direction(const json_reader *r, bool *left) {
    json_reader value;
    *left = false;
    GM_TRY(member_find(r, "direction", &value));
    if (value.type == JSON_NULL)
        return GM_OK;
    *left = value.type == JSON_STRING && json_is(&value, "Left");
    if (*left || (value.type == JSON_STRING && json_is(&value, "Right")))
        return GM_OK;
    return json_fail(&value, "'direction' is not Left or Right");
}

static gm_status read_size(const json_reader *r, const char *key, size_t *out) {
    int64_t value;
    GM_TRY(member_count(r, key, &value));
    *out = (size_t)value;
    return GM_OK;
}

gm_status component_truncation(gm_tokenizer *t, const json_reader *r) {
    static const char *const names[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    json_reader value, copy = *r;
    gm_truncation *out = &t->truncation;
    if (r->type == JSON_NULL)
        return GM_OK;
    if (r->type != JSON_OBJECT)
        return json_mistyped(&copy, "truncation", "an object or null");
    GM_TRY(read_size(r, "max_length", &out->max_length));
    GM_TRY(read_size(r, "stride", &out->stride));
    GM_TRY(read_direction(r, &out->left));
    GM_TRY(member_find(r, "strategy", &value));
    for (int i = 0; i < 3 && value.type == JSON_STRING; i++) {
        if (json_is(&value, names[i])) {
            out->strategy = (gm_truncation_strategy)i;
            t->has_truncation = true;
            return GM_OK;
        }
    }
    return json_fail(&value, "'strategy' of truncation is not LongestFirst, OnlyFirst or OnlySecond");
}

gm_status component_padding(gm_tokenizer *t, const json_reader *r) {
    json_reader strategy, copy = *r;
    gm_padding *out = &t->padding;
    int64_t id, type_id;
    if (r->type == JSON_NULL)
        return GM_OK;
    if (r->type != JSON_OBJECT)
        return json_mistyped(&copy, "padding", "an object or null");
    GM_TRY(member_find(r, "strategy", &strategy));
    out->fixed = strategy.type == JSON_OBJECT;
    if (out->fixed)
        GM_TRY(read_size(&strategy, "Fixed", &out->length));
    else if (strategy.type != JSON_STRING || !json_is(&strategy, "BatchLongest"))
        return json_fail(&strategy, "'strategy' of padding is not BatchLongest or Fixed");
    GM_TRY(read_direction(r, &out->left));
    GM_TRY(read_size(r, "pad_to_multiple_of", &out->multiple_of));
    GM_TRY(member_count(r, "pad_id", &id));
    GM_TRY(member_count(r, "pad_type_id", &type_id));
    if (id >= VOCAB_MAX || type_id > INT32_MAX || out->length > INT32_MAX || out->multiple_of > INT32_MAX)
        return json_fail(&copy, "a number of 'padding' is too large");
    out->id = (int32_t)id;
    out->type_id = (int32_t)type_id;
    memory_free(t->pad_token);
    GM_TRY(member_text(r, "pad_token", &t->pad_token, &out->token_length));
    out->token = t->pad_token;
    t->has_padding = true;
    return GM_OK;
}
