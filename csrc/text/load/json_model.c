/* json_model.c - the model of a tokenizer.json: BPE, Unigram, WordPiece or WordLevel.
 * The vocabulary and the merges, which are megabytes, are read in one pass if they come in the usual order (type,
 * prefix, vocabulary, merges). The positions of the small settings are kept, and they are read afterwards. A setting
 * that is not implemented is an error that names it. */
#include "text/load/component.h"
#include "text/load/merges.h"

/* The members of the model's object; type JSON_NULL for an absent one. */
enum {
    TYPE,
    DROPOUT,
    UNK_TOKEN,
    UNK_ID,
    PREFIX,
    SUFFIX,
    FUSE_UNK,
    BYTE_FALLBACK,
    IGNORE_MERGES,
    MAX_CHARS,
    VOCAB,
    MERGES,
    N_SETTINGS
};
static const char *const keys[N_SETTINGS] = {
    "type",
    "dropout",
    "unk_token",
    "unk_id",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "max_input_chars_per_word",
    "vocab",
    "merges",
};

/* The current string or key, copied only if it has escapes; valid until the next call. */
static gm_status text_of(const json_reader *r, byte_buffer *scratch, const char **text, size_t *length) {
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

/* ---- vocabularies ---- */
/* {"token": id, ...} */
static gm_status read_ids(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    json_token token;
    json_text plain;
    int32_t count;
    for (;;) {
        if (json_plain_count(r, &plain, &count)) {
            GM_TRY(vocab_append(&t->vocab, plain.text, plain.length, count));
            continue;
        }
        if ((token = json_next(r)) != JSON_KEY)
            break;
        const char *text;
        size_t length;
        int64_t id;
        GM_TRY(text_of(r, scratch, &text, &length));
        GM_TRY(json_expect(r, JSON_NUMBER));
        GM_TRY(json_int(r, &id));
        GM_TRY(vocab_append(&t->vocab, text, length, id));
    }
    return token == JSON_ERROR ? GM_EBADFILE : GM_OK;
}

/* The current number as the reference reads it: its digits as an integer, then one division, which does not always give
 * the nearest double. The last bit decides between two ways to split a text whose sums of scores are equal. */
static gm_status read_score(json_reader *r, double *out) {
    uint64_t digits = 0;
    int64_t exponent = 0;
    bool fraction = false, full = false;
    GM_TRY(json_double(r, out));
    for (size_t i = 0; i < r->token_length; i++) {
        char c = r->token[i];
        if (c == 'e' || c == 'E')
            return GM_OK; /* no file has such a score: the nearest double */
        fraction |= c == '.';
        if (c < '0' || c > '9')
            continue;
        full |= digits > (UINT64_MAX - 9) / 10;
        if (full && !fraction)
            return GM_OK;
        if (full)
            break;
        digits = 10 * digits + (uint64_t)(c - '0');
        exponent += fraction;
    }
    double power = 1;
    for (int64_t i = 0; i < exponent; i++)
        power *= 10; /* exact: below 10**22 */
    double value = (double)digits / power;
    *out = r->token[0] == '-' ? -value : value;
    return GM_OK;
}

/* [["token", score], ...] */
static gm_status read_scores(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    json_token token;
    for (int64_t id = 0; (token = json_next(r)) != JSON_ARRAY_END; id++) {
        const char *text;
        size_t length;
        double score;
        if (token != JSON_ARRAY)
            return token == JSON_ERROR ? GM_EBADFILE : json_fail(r, "a token is not a pair of its text and its score");
        GM_TRY(json_expect(r, JSON_STRING));
        GM_TRY(text_of(r, scratch, &text, &length));
        GM_TRY(vocab_append(&t->vocab, text, length, id));
        GM_TRY(json_expect(r, JSON_NUMBER));
        GM_TRY(read_score(r, &score));
        GM_TRY(unigram_add_score(&t->model.unigram, score));
        GM_TRY(json_expect(r, JSON_ARRAY_END));
    }
    return GM_OK;
}

static gm_status read_vocab(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    if (r->type != JSON_OBJECT && r->type != JSON_ARRAY)
        return json_mistyped(r, "vocab", "an object of tokens and ids or an array of tokens and scores");
    GM_TRY(r->type == JSON_OBJECT ? read_ids(t, r, scratch) : read_scores(t, r, scratch));
    return vocab_index(&t->vocab);
}

/* ---- merges ---- */
/* "left right", or in newer files ["left", "right"]. */
static gm_status read_merge(merge_reader *m, json_reader *r, byte_buffer *scratch, byte_buffer *first) {
    vocab_string left, right;
    if (r->type == JSON_STRING) {
        bool copied = r->escaped;
        GM_TRY(text_of(r, scratch, &left.text, &left.length));
        if (left.length >= 8 && memcmp(left.text, "#version", 8) == 0)
            return GM_OK;
        const char *space = memchr(left.text, ' ', left.length), *end = left.text + left.length;
        if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
            return json_fail(r, "a merge is not two tokens with one space between them");
        left.length = (size_t)(space - left.text);
        right = (vocab_string){space + 1, (size_t)(end - space - 1)};
        return (copied ? merges_copy : merges_add)(m, left, right);
    }
    if (r->type != JSON_ARRAY)
        return r->type == JSON_ERROR ? GM_EBADFILE : json_fail(r, "a merge is not a string or a pair of strings");
    GM_TRY(json_expect(r, JSON_STRING));
    bool copied = r->escaped;
    GM_TRY(text_of(r, first, &left.text, &left.length));
    GM_TRY(json_expect(r, JSON_STRING));
    copied |= r->escaped;
    GM_TRY(text_of(r, scratch, &right.text, &right.length));
    GM_TRY((copied ? merges_copy : merges_add)(m, left, right));
    return json_expect(r, JSON_ARRAY_END);
}

/* quickly: does not check pairs, so that text that is not UTF-8 is reported as a missing token. */
static gm_status read_list(gm_tokenizer *t, json_reader *r, byte_buffer *scratch, bool quickly) {
    merge_reader reader;
    byte_buffer first = {0};
    json_text pair[2];
    gm_status status = GM_OK;
    merges_open(&reader, &t->vocab, &t->model.bpe);
    while (status == GM_OK) {
        if (quickly && json_plain_pair(r, pair))
            status = merges_add(&reader, (vocab_string){pair[0].text, pair[0].length},
                                (vocab_string){pair[1].text, pair[1].length});
        else if (json_next(r) != JSON_ARRAY_END)
            status = read_merge(&reader, r, scratch, &first);
        else
            break;
    }
    if (status == GM_OK)
        status = merges_finish(&reader);
    merges_close(&reader);
    memory_free(first.data);
    return status;
}

static gm_status read_merges(gm_tokenizer *t, json_reader *r, byte_buffer *scratch) {
    if (r->type != JSON_ARRAY)
        return json_mistyped(r, "merges", "an array");
    json_reader start = *r;
    gm_error quick;
    gm_status status = read_list(t, r, scratch, true);
    if (status != GM_EBADFILE)
        return status;
    gm_take_error(&quick);
    *r = start;
    return read_list(t, r, scratch, false); /* reports the first error */
}

/* ---- settings ---- */
static gm_status setting_flag(json_reader *settings, int key, bool *out) {
    return value_bool(&settings[key], keys[key], false, out);
}

static gm_status setting_text(json_reader *settings, int key, char **out, size_t *length) {
    return value_text(&settings[key], keys[key], out, length);
}

static gm_status expect_setting(json_reader *settings, int key, const json_reader *object) {
    json_reader at = *object;
    return settings[key].type != JSON_NULL ? GM_OK : json_fail(&at, "the model has no '%s'", keys[key]);
}

/* The id of unk_token; *given is false if there is no such setting. -1 if the vocabulary does not have the token: a
 * text that needs it is an error then. */
static gm_status find_unknown(const gm_tokenizer *t, json_reader *settings, int32_t *id, bool *given) {
    char *text;
    size_t length;
    GM_TRY(setting_text(settings, UNK_TOKEN, &text, &length));
    *given = text != NULL;
    *id = text ? vocab_find(&t->vocab, text, length) : -1;
    memory_free(text);
    return GM_OK;
}

/* Dropout is for training: it makes ids random. */
static gm_status check_dropout(json_reader *r) {
    double dropout = 0;
    if (r->type != JSON_NULL)
        GM_TRY(json_double(r, &dropout));
    return dropout == 0 ? GM_OK
                        : gm_fail(GM_EUNSUPPORTED,
                                  "%s: model setting 'dropout' %g is not supported, expected "
                                  "null or 0",
                                  r->name, dropout);
}

/* ---- the kinds of models ---- */
static gm_status finish_bpe(gm_tokenizer *t, json_reader *settings) {
    bpe *b = &t->model.bpe;
    int32_t unknown;
    bool given;
    GM_TRY(check_dropout(&settings[DROPOUT]));
    GM_TRY(setting_flag(settings, FUSE_UNK, &b->fuse_unknown));
    GM_TRY(setting_flag(settings, BYTE_FALLBACK, &b->byte_fallback));
    GM_TRY(setting_flag(settings, IGNORE_MERGES, &b->ignore_merges));
    GM_TRY(setting_text(settings, SUFFIX, &b->suffix, &b->suffix_length));
    GM_TRY(find_unknown(t, settings, &unknown, &given));
    b->unknown = !given ? BPE_NO_UNKNOWN : unknown < 0 ? BPE_MISSING_UNKNOWN : unknown;
    return GM_OK;
}

static gm_status finish_unigram(gm_tokenizer *t, json_reader *settings) {
    unigram *u = &t->model.unigram;
    json_reader *r = &settings[UNK_ID];
    int64_t unknown = -1;
    GM_TRY(setting_flag(settings, BYTE_FALLBACK, &u->byte_fallback));
    if (r->type != JSON_NULL) {
        GM_TRY(json_int(r, &unknown));
        if (unknown < 0 || (uint64_t)unknown >= t->vocab.n_ids)
            return json_fail(r, "'unk_id' is %lld, expected less than %zu", (long long)unknown, t->vocab.n_ids);
    }
    u->unknown = (int32_t)unknown;
    return GM_OK;
}

static gm_status finish_wordpiece(gm_tokenizer *t, json_reader *settings, const json_reader *object) {
    wordpiece *w = &t->model.wordpiece;
    bool given;
    GM_TRY(expect_setting(settings, UNK_TOKEN, object));
    GM_TRY(expect_setting(settings, PREFIX, object));
    GM_TRY(expect_setting(settings, MAX_CHARS, object));
    GM_TRY(find_unknown(t, settings, &w->unknown, &given));
    GM_TRY(setting_text(settings, PREFIX, &w->prefix, &w->prefix_length));
    return value_count(&settings[MAX_CHARS], keys[MAX_CHARS], &w->max_chars);
}

static gm_status finish_wordlevel(gm_tokenizer *t, json_reader *settings, const json_reader *object) {
    bool given;
    GM_TRY(expect_setting(settings, UNK_TOKEN, object));
    return find_unknown(t, settings, &t->model.unknown, &given);
}

/* Finds the model's kind by its name, or in old files, which have none, by its members. */
static gm_status choose_kind(gm_tokenizer *t, const json_reader *settings, const json_reader *object) {
    static const char *const names[] = {[MODEL_BPE] = "BPE",
                                        [MODEL_UNIGRAM] = "Unigram",
                                        [MODEL_WORDPIECE] = "WordPiece",
                                        [MODEL_WORDLEVEL] = "WordLevel"};
    json_reader type = settings[TYPE], at = *object;
    if (type.type == JSON_NULL) {
        bool scores = settings[VOCAB].type == JSON_ARRAY, merges = settings[MERGES].type != JSON_NULL;
        if (!scores && !merges && settings[UNK_TOKEN].type == JSON_NULL)
            return json_fail(&at, "the model has no 'type', expected one or the members of BPE, WordPiece, WordLevel "
                                  "or Unigram");
        bool pieces = settings[PREFIX].type != JSON_NULL && settings[MAX_CHARS].type != JSON_NULL;
        t->model.kind = scores ? MODEL_UNIGRAM : merges ? MODEL_BPE : pieces ? MODEL_WORDPIECE : MODEL_WORDLEVEL;
        return GM_OK;
    }
    if (type.type != JSON_STRING)
        return json_mistyped(&type, keys[TYPE], "a string");
    for (int kind = MODEL_BPE; kind <= MODEL_WORDLEVEL; kind++) {
        if (json_is(&type, names[kind])) {
            t->model.kind = (model_kind)kind;
            return GM_OK;
        }
    }
    return component_unsupported(&type, "model");
}

static gm_status finish_model(gm_tokenizer *t, json_reader *settings, const json_reader *object) {
    GM_TRY(choose_kind(t, settings, object));
    GM_TRY(expect_setting(settings, VOCAB, object));
    bool is_array = t->model.kind == MODEL_UNIGRAM;
    if ((settings[VOCAB].type == JSON_ARRAY) != is_array)
        return json_fail(&settings[VOCAB], "'vocab' is not an %s",
                         is_array ? "array of tokens and scores" : "object of tokens and ids");
    switch (t->model.kind) {
    case MODEL_BPE: GM_TRY(expect_setting(settings, MERGES, object)); return finish_bpe(t, settings);
    case MODEL_UNIGRAM: return finish_unigram(t, settings);
    case MODEL_WORDPIECE: return finish_wordpiece(t, settings, object);
    case MODEL_WORDLEVEL: break;
    }
    return finish_wordlevel(t, settings, object);
}

/* Call when the vocabulary is read and the prefix, if any, is known. */
static gm_status read_merges_with(gm_tokenizer *t, json_reader *settings, json_reader *r, byte_buffer *scratch) {
    GM_TRY(setting_text(settings, PREFIX, &t->model.bpe.prefix, &t->model.bpe.prefix_length));
    return read_merges(t, r, scratch);
}

static bool is_given(const json_reader *setting) { return setting->token != NULL; }

static gm_status read_settings(gm_tokenizer *t, json_reader *r, json_reader *settings, byte_buffer *scratch) {
    json_token token;
    bool merges_read = false;
    while ((token = json_next(r)) == JSON_KEY) {
        int key = 0;
        while (key < N_SETTINGS && !json_is(r, keys[key]))
            key++;
        if (json_next(r) == JSON_ERROR)
            return GM_EBADFILE;
        if (key < N_SETTINGS && is_given(&settings[key]))
            return json_fail(r, "the model has two '%s'", keys[key]);
        if (key < N_SETTINGS)
            settings[key] = *r;
        const json_reader *type = &settings[TYPE];
        if (key == VOCAB && r->type != JSON_NULL) {
            GM_TRY(read_vocab(t, r, scratch));
        } else if (key == MERGES && is_given(&settings[VOCAB]) && is_given(&settings[PREFIX]) &&
                   type->type == JSON_STRING && json_is(type, "BPE")) {
            GM_TRY(read_merges_with(t, settings, r, scratch));
            merges_read = true;
        } else if (r->type == JSON_OBJECT || r->type == JSON_ARRAY) {
            GM_TRY(json_skip(r));
        }
    }
    if (token == JSON_ERROR)
        return GM_EBADFILE;
    json_reader object = *r;
    GM_TRY(finish_model(t, settings, &object));
    if (t->model.kind != MODEL_BPE || merges_read)
        return GM_OK;
    return read_merges_with(t, settings, &settings[MERGES], scratch);
}

gm_status component_model(gm_tokenizer *t, json_reader *r) {
    if (r->type != JSON_OBJECT)
        return json_mistyped(r, "model", "an object");
    json_reader settings[N_SETTINGS];
    for (int i = 0; i < N_SETTINGS; i++)
        settings[i] = (json_reader){.name = r->name, .type = JSON_NULL};
    byte_buffer scratch = {0};
    gm_status status = read_settings(t, r, settings, &scratch);
    memory_free(scratch.data);
    return status;
}
