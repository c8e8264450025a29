/* postprocess.c - see postprocess.h. Each step makes a list of encodings from a list; the last list is joined. */
#include "text/output/postprocess.h"

static void template_free(template *t) {
    for (size_t i = 0; i < t->n_pieces; i++) {
        for (size_t k = 0; k < t->pieces[i].n_tokens; k++)
            memory_free(t->pieces[i].tokens[k].text);
        memory_free(t->pieces[i].tokens);
    }
    memory_free(t->pieces);
}

void post_free(post_processor *p) {
    for (int i = 0; i < p->n_steps; i++) {
        template_free(&p->steps[i].single);
        template_free(&p->steps[i].pair);
        memory_free(p->steps[i].cls.text);
        memory_free(p->steps[i].sep.text);
    }
    *p = (post_processor){0};
}

gm_status template_add(template *t, template_piece **out) {
    GM_TRY(grow_array(&t->pieces, t->n_pieces, &t->capacity, 1, sizeof *t->pieces));
    *out = &t->pieces[t->n_pieces++];
    **out = (template_piece){.sequence = -1};
    return GM_OK;
}

static gm_status add_ids(template *t, const int32_t *ids, size_t n, int32_t type_id) {
    template_piece *piece;
    if (n == 0)
        return GM_OK;
    GM_TRY(template_add(t, &piece));
    piece->type_id = type_id;
    piece->tokens = memory_zeroed(n * sizeof *piece->tokens);
    if (!piece->tokens)
        return GM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        piece->tokens[piece->n_tokens++].id = ids[i];
    return GM_OK;
}

gm_status post_surround(post_processor *p, const int32_t *before, size_t n_before, const int32_t *after,
                        size_t n_after) {
    template_piece *piece;
    if (n_before + n_after == 0)
        return GM_OK;
    if (p->n_steps == POST_MAX_STEPS)
        return gm_fail(GM_EUNSUPPORTED, "tokenizer: more than %d post_processors in a row", POST_MAX_STEPS);
    post_step *step = &p->steps[p->n_steps++];
    for (int i = 0; i < 3; i++) {
        template *t = i == 0 ? &step->single : &step->pair;
        int sequence = i == 2;
        GM_TRY(add_ids(t, before, n_before, sequence));
        GM_TRY(template_add(t, &piece));
        piece->sequence = piece->type_id = sequence;
        GM_TRY(add_ids(t, after, n_after, sequence));
    }
    return GM_OK;
}

size_t post_added(const post_processor *p, bool pair) {
    size_t n = 0;
    for (int i = 0; i < p->n_steps; i++) {
        const post_step *step = &p->steps[i];
        const template *t = pair ? &step->pair : &step->single;
        if (step->kind == POST_BERT)
            n += pair ? 3 : 2;
        else if (step->kind == POST_ROBERTA)
            n += pair ? 4 : 2;
        for (size_t k = 0; step->kind == POST_TEMPLATE && k < t->n_pieces; k++)
            n += t->pieces[k].n_tokens;
    }
    return n;
}

gm_status post_simple(const post_processor *p, id_buffer *before, id_buffer *after, bool *simple) {
    int n_adding = 0;
    *simple = false;
    for (int i = 0; i < p->n_steps; i++) {
        const post_step *step = &p->steps[i];
        if (step->kind == POST_BYTE_LEVEL)
            continue;
        if (n_adding++ > 0)
            return GM_OK;
        if (step->kind != POST_TEMPLATE) {
            GM_TRY(ids_append(before, step->cls.id));
            GM_TRY(ids_append(after, step->sep.id));
            continue;
        }
        bool seen = false;
        for (size_t k = 0; k < step->single.n_pieces; k++) {
            const template_piece *piece = &step->single.pieces[k];
            if (piece->sequence > 0 || (piece->sequence == 0 && seen))
                return GM_OK;
            seen = seen || piece->sequence == 0;
            for (size_t j = 0; j < piece->n_tokens; j++)
                GM_TRY(ids_append(seen ? after : before, piece->tokens[j].id));
        }
        if (!seen)
            return GM_OK;
    }
    *simple = true;
    return GM_OK;
}

/* ---- the steps ---- */
typedef struct {
    const post_step *step;
    const gm_tokenizer *tokenizer;
    bool add_special;
    byte_buffer *strings;
} post_call;

static gm_status push_named(const post_call *c, gm_encoding *e, const named_token *token, int32_t type_id) {
    uint32_t text = OWN_TEXT;
    size_t n = 0;
    const char *own = gm_tokenizer_token(c->tokenizer, token->id, &n);
    if (token->text && (!own || n != token->length || memcmp(own, token->text, n) != 0))
        GM_TRY(encoding_string(c->strings, token->text, token->length, &text));
    return encoding_push(
        e, (gm_token_info){.id = token->id, .type_id = type_id, .word = -1, .special = true, .attention = true}, text);
}

static gm_status apply_piece(const post_call *c, const template_piece *piece, encoding_list *in, encoding_list *out) {
    if (piece->sequence < 0) {
        gm_encoding *e = c->add_special ? encoding_new() : NULL;
        if (!c->add_special)
            return GM_OK;
        GM_TRY(encodings_push(out, e));
        for (size_t i = 0; i < piece->n_tokens; i++)
            GM_TRY(push_named(c, e, &piece->tokens[i], piece->type_id));
        return GM_OK;
    }
    if ((size_t)piece->sequence >= in->size)
        return gm_fail(GM_EVALUE, "encode: the post_processor's template for one text has a second sequence");
    gm_encoding *e = in->data[piece->sequence];
    encoding_set_type(e, piece->type_id);
    GM_TRY(encoding_set_range(e, piece->sequence, 0, e->size));
    return encodings_push(out, encoding_clone(e));
}

static gm_status apply_template(const post_call *c, encoding_list *list) {
    const template *t = list->size == 2 ? &c->step->pair : &c->step->single;
    if (list->size < 1 || list->size > 2)
        return gm_fail(GM_EUNSUPPORTED, "encode: a TemplateProcessing after one that makes %zu parts is not supported",
                       list->size);
    if (list->size == 2 && t->n_pieces == 0)
        return gm_fail(GM_EVALUE, "encode: this tokenizer's post_processor has no template for two texts");
    encoding_list out = {0};
    gm_status status = GM_OK;
    for (size_t i = 0; i < t->n_pieces && status == GM_OK; i++)
        status = apply_piece(c, &t->pieces[i], list, &out);
    encodings_free(list);
    *list = out;
    return status;
}

/* e becomes [first] e [last] (first NULL: none). Only its overflow and strings are kept. */
static gm_status surround(const post_call *c, gm_encoding *e, const named_token *first, int32_t last_type,
                          int32_t sequence) {
    gm_encoding *made = encoding_new();
    if (!made)
        return GM_ENOMEM;
    gm_status status = first ? push_named(c, made, first, 0) : GM_OK;
    for (size_t i = 0; i < e->size && status == GM_OK; i++)
        status = encoding_push(made, e->tokens[i].info, e->tokens[i].text);
    if (status == GM_OK)
        status = push_named(c, made, &c->step->sep, last_type);
    if (status == GM_OK)
        status = encoding_set_range(made, sequence, first != NULL, made->size - 1);
    if (status == GM_OK) {
        gm_encoding old = *e;
        *e = *made;
        *made = old;
        e->overflowing = old.overflowing;
        e->strings = old.strings;
        made->overflowing = (encoding_list){0};
        made->strings = (byte_buffer){0};
    }
    gm_encoding_free(made);
    return status;
}

static gm_status surround_all(const post_call *c, gm_encoding *e, const named_token *first, int32_t last_type,
                              int32_t sequence) {
    GM_TRY(surround(c, e, first, last_type, sequence));
    for (size_t i = 0; i < e->overflowing.size; i++)
        GM_TRY(surround(c, e->overflowing.data[i], first, last_type, sequence));
    return GM_OK;
}

static gm_status apply_bert(const post_call *c, encoding_list *list) {
    for (size_t i = 0; c->add_special && i < list->size; i++)
        GM_TRY(surround_all(c, list->data[i], i == 0 ? &c->step->cls : NULL, i > 0, i > 0));
    return GM_OK;
}

static gm_status apply_roberta(const post_call *c, encoding_list *list) {
    for (size_t i = 0; i < list->size; i++)
        encoding_set_type(list->data[i], 0);
    for (size_t i = 0; c->add_special && i < list->size; i++) {
        gm_encoding *e = list->data[i];
        GM_TRY(surround_all(c, e, i == 0 ? &c->step->cls : &c->step->sep, 0, i > 0));
        for (size_t k = 0; k < e->overflowing.size; k++)
            encoding_set_type(e->overflowing.data[k], 0);
    }
    return GM_OK;
}

/* ---- trimming offsets ---- */
/* White space, or the alphabet's space. */
static bool is_space(uint32_t c) { return c == 0x120 || (unicode_class(c) & CLASS_SPACE); }

static void trim_token(const post_call *c, encoding_token *token, bool first) {
    size_t length = 0, at = 0;
    int32_t leading = 0, trailing = 0;
    const char *text = NULL;
    if (token->text == OWN_TEXT) {
        text = gm_tokenizer_token(c->tokenizer, token->info.id, &length);
    } else {
        uint32_t n;
        memcpy(&n, c->strings->data + token->text, sizeof n);
        length = n;
        text = (const char *)c->strings->data + token->text + sizeof n;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    if (!text)
        return;
    for (; at < length && is_space(utf8_next(bytes, &at)); leading++)
        ;
    for (size_t end = length; end > 0; trailing++) {
        end = at = utf8_previous(bytes, end);
        if (!is_space(utf8_next(bytes, &at)))
            break;
    }
    gm_token_info *info = &token->info;
    if (leading > 0) {
        if ((first || info->start == 0) && c->step->prefix_space && leading == 1)
            leading = 0; /* a single space was inserted, not part of the text */
        info->start = info->start + leading < info->end ? info->start + leading : info->end;
    }
    if (trailing > 0 && info->end >= trailing)
        info->end = info->end - trailing > info->start ? info->end - trailing : info->start;
}

static void trim(const post_call *c, gm_encoding *e) {
    for (size_t i = 0; i < e->size; i++)
        trim_token(c, &e->tokens[i], i == 0);
}

static void trim_offsets(const post_call *c, encoding_list *list) {
    for (size_t i = 0; i < list->size; i++) {
        gm_encoding *e = list->data[i];
        trim(c, e);
        for (size_t k = 0; k < e->overflowing.size; k++)
            trim(c, e->overflowing.data[k]);
    }
}

/* ---- the whole post-processor ---- */
static gm_status apply(const post_call *c, encoding_list *list) {
    if (c->step->trim_offsets)
        trim_offsets(c, list);
    switch (c->step->kind) {
    case POST_TEMPLATE: return apply_template(c, list);
    case POST_BERT: return apply_bert(c, list);
    case POST_ROBERTA: return apply_roberta(c, list);
    case POST_BYTE_LEVEL: break;
    }
    for (size_t i = 0; i < list->size; i++)
        GM_TRY(encoding_set_range(list->data[i], (int32_t)i, 0, list->data[i]->size));
    return GM_OK;
}

/* Gives sequences their numbers, as the reference does before the steps. */
static gm_status number_sequences(const post_processor *p, encoding_list *list) {
    if (p->n_steps == 0 && list->size == 1)
        return GM_OK;
    for (size_t i = 0; i < list->size; i++) {
        gm_encoding *e = list->data[i];
        GM_TRY(encoding_set_range(e, (int32_t)i, 0, e->size));
        for (size_t k = 0; p->n_steps > 0 && k < e->overflowing.size; k++)
            GM_TRY(encoding_set_range(e->overflowing.data[k], (int32_t)i, 0, e->overflowing.data[k]->size));
    }
    return GM_OK;
}

gm_status post_process(const post_processor *p, const gm_tokenizer *t, encoding_list *list, bool add_special,
                       byte_buffer *strings) {
    GM_TRY(number_sequences(p, list));
    for (int i = 0; i < p->n_steps; i++)
        GM_TRY(apply(&(post_call){&p->steps[i], t, add_special, strings}, list));
    if (list->size == 1)
        return GM_OK;
    gm_encoding *whole = encoding_new();
    if (!whole)
        return GM_ENOMEM;
    gm_status status = GM_OK;
    for (size_t i = 0; i < list->size && status == GM_OK; i++)
        status = encoding_join(whole, list->data[i]);
    encodings_free(list);
    if (status != GM_OK) {
        gm_encoding_free(whole);
        return status;
    }
    return encodings_push(list, whole);
}
