/* gguf_file.c - a tokenizer from a GGUF file's metadata, by tokenizer.ggml.model: 'gpt2' (byte-level BPE, split by the
 * patterns of tokenizer.ggml.pre: gguf_pre.c), 'llama' and 't5' (SentencePiece's: sentencepiece.c), 'bert' (WordPiece)
 * and 'gemma4'. */
#include "base/gguf.h"
#include "text/load/component.h"
#include "text/load/gguf_pre.h"
#include "text/load/merges.h"
#include "text/load/sentencepiece.h"

#define MARKER "\xE2\x96\x81" /* U+2581, SentencePiece's space */

static bool same(gguf_string a, const char *b) { return a.length == strlen(b) && memcmp(a.text, b, a.length) == 0; }

/* Finds an array of strings, or of any numbers; an optional one may be NULL. */
static gm_status find_array(const gguf *g, const char *key, bool strings, bool required, const gguf_entry **out) {
    *out = gguf_find(g, key);
    if (!*out)
        return required ? gm_fail(GM_EBADFILE, "%s: the file has no '%s'", gguf_file(g)->path, key) : GM_OK;
    if ((*out)->type == GGUF_ARRAY && ((*out)->item_type == GGUF_STRING) == strings && (*out)->item_type != GGUF_ARRAY)
        return GM_OK;
    return gm_fail(GM_EBADFILE, "%s: '%s' is not an array of %s", gguf_file(g)->path, key,
                   strings ? "strings" : "numbers");
}

/* Changes the file's spelling of a token to the model's, in scratch if it must. */
typedef gm_status (*spelling)(byte_buffer *scratch, int64_t type, gguf_string *token);

/* spell may be NULL. */
static gm_status read_tokens(const gguf *g, gm_tokenizer *t, spelling spell, byte_buffer *scratch) {
    const gguf_entry *tokens, *types;
    GM_TRY(find_array(g, "tokenizer.ggml.tokens", true, true, &tokens));
    GM_TRY(find_array(g, "tokenizer.ggml.token_type", false, false, &types));
    if (tokens->count > VOCAB_MAX)
        return gm_fail(GM_EBADFILE, "%s: the file has %llu tokens, expected at most %d", gguf_file(g)->path,
                       (unsigned long long)tokens->count, VOCAB_MAX);
    if (types && types->count != tokens->count)
        return gm_fail(GM_EBADFILE, "%s: the file has %llu token types for %llu tokens", gguf_file(g)->path,
                       (unsigned long long)types->count, (unsigned long long)tokens->count);
    GM_TRY(vocab_reserve(&t->vocab, tokens->count, tokens->bytes));
    const uint8_t *cursor = tokens->data;
    for (uint64_t i = 0; i < tokens->count; i++) {
        gguf_string s = gguf_next_string(&cursor);
        int64_t type = PIECE_NORMAL;
        if (types)
            GM_TRY(gguf_item_int(types, i, &type));
        if (utf8_check((const uint8_t *)s.text, s.length) != s.length)
            return gm_fail(GM_EBADFILE, "%s: token %llu is not UTF-8", gguf_file(g)->path, (unsigned long long)i);
        if (spell)
            GM_TRY(spell(scratch, type, &s));
        GM_TRY(vocab_append(&t->vocab, s.text, s.length, (int64_t)i));
    }
    return vocab_index(&t->vocab);
}

/* Control, unknown and user-defined tokens are matched in the text first. */
static gm_status read_types(const gguf *g, gm_tokenizer *t) {
    const gguf_entry *types;
    GM_TRY(find_array(g, "tokenizer.ggml.token_type", false, false, &types));
    for (uint64_t i = 0; types && i < types->count; i++) {
        int64_t type;
        size_t length;
        GM_TRY(gguf_item_int(types, i, &type));
        if (type != PIECE_CONTROL && type != PIECE_USER_DEFINED && type != PIECE_UNKNOWN)
            continue;
        const char *text = vocab_text(&t->vocab, (int32_t)i, &length);
        added_token flags = {.special = type != PIECE_USER_DEFINED};
        GM_TRY(tokenizer_add(t, text, length, flags, false));
    }
    return GM_OK;
}

/* Appends the id under `key` if the flag under `flag_key`, or its default, is set. */
static gm_status read_end(const gguf *g, const gm_tokenizer *t, const char *flag_key, bool wanted, const char *key,
                          int64_t id, id_buffer *out) {
    bool flag_given, given;
    GM_TRY(gguf_get_bool(g, flag_key, &wanted, &flag_given));
    GM_TRY(gguf_get_int(g, key, &id, &given));
    if (!wanted || (id < 0 && !flag_given))
        return GM_OK;
    if (id < 0 || (uint64_t)id >= t->vocab.n_ids)
        return gm_fail(GM_EBADFILE, "%s: '%s' is set, but '%s' is not one of the %zu ids", gguf_file(g)->path, flag_key,
                       key, t->vocab.n_ids);
    return ids_append(out, (int32_t)id);
}

/* ---- 'gpt2' ---- */
static gm_status read_pre(const gguf *g, gm_tokenizer *t, bool *add_bos) {
    gguf_string pre = {0};
    bool found;
    GM_TRY(gguf_get_string(g, "tokenizer.ggml.pre", &pre, &found));
    if (!found)
        return gm_fail(GM_EUNSUPPORTED,
                       "%s: the file has no 'tokenizer.ggml.pre', which says how text is split; "
                       "convert the model again",
                       gguf_file(g)->path);
    return gguf_pre(t, gguf_file(g)->path, pre.text, pre.length, add_bos);
}

/* "left right". The left part has at least one character, so a leading space belongs to it. */
static gm_status add_merges(const gguf *g, const gguf_entry *merges, merge_reader *reader) {
    const uint8_t *cursor = merges->data;
    for (uint64_t i = 0; i < merges->count; i++) {
        gguf_string s = gguf_next_string(&cursor);
        const char *space = s.length > 1 ? memchr(s.text + 1, ' ', s.length - 1) : NULL;
        if (!space)
            return gm_fail(GM_EBADFILE, "%s: merge %llu, '%.*s', is not two tokens with a space between them",
                           gguf_file(g)->path, (unsigned long long)i, s.length < 64 ? (int)s.length : 64, s.text);
        size_t left = (size_t)(space - s.text);
        GM_TRY(merges_add(reader, (vocab_string){s.text, left}, (vocab_string){space + 1, s.length - left - 1}));
    }
    return merges_finish(reader);
}

static gm_status read_merges(const gguf *g, gm_tokenizer *t) {
    const gguf_entry *merges;
    GM_TRY(find_array(g, "tokenizer.ggml.merges", true, true, &merges));
    if (merges->count > UINT32_MAX / 4)
        return gm_fail(GM_EBADFILE, "%s: the file has %llu merges, expected at most %u", gguf_file(g)->path,
                       (unsigned long long)merges->count, UINT32_MAX / 4);
    merge_reader reader;
    merges_open(&reader, &t->vocab, &t->model.bpe);
    gm_status status = add_merges(g, merges, &reader);
    merges_close(&reader);
    return status;
}

static gm_status read_gpt2(const gguf *g, gm_tokenizer *t) {
    bool add_bos = false;
    GM_TRY(read_pre(g, t, &add_bos));
    GM_TRY(read_tokens(g, t, NULL, NULL));
    GM_TRY(read_merges(g, t));
    GM_TRY(read_types(g, t));
    GM_TRY(read_end(g, t, "tokenizer.ggml.add_bos_token", add_bos, "tokenizer.ggml.bos_token_id", -1, &t->before));
    GM_TRY(read_end(g, t, "tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id", -1, &t->after));
    return component_literal(t, component_decoder, "{\"type\":\"ByteLevel\"}");
}

/* ---- 'gemma4' ---- */
/* BPE over characters with merges, as tokenizer.json describes this family. */
static gm_status read_gemma4(const gguf *g, gm_tokenizer *t) {
    static const char escape[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARKER "\"}";
    static const char split[] =
        "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}";
    static const char unescape[] =
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARKER "\"},"
        "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}";
    int64_t unknown = -1;
    GM_TRY(component_literal(t, component_normalizer, escape));
    GM_TRY(component_literal(t, component_pretokenizer, split));
    GM_TRY(component_literal(t, component_decoder, unescape));
    GM_TRY(read_tokens(g, t, NULL, NULL));
    GM_TRY(read_merges(g, t));
    GM_TRY(read_types(g, t));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.unknown_token_id", &unknown, NULL));
    if (unknown >= 0 && (uint64_t)unknown >= t->vocab.n_ids)
        return gm_fail(GM_EBADFILE, "%s: 'tokenizer.ggml.unknown_token_id' is %lld, expected less than %zu",
                       gguf_file(g)->path, (long long)unknown, t->vocab.n_ids);
    t->model.bpe.unknown = unknown < 0 ? BPE_NO_UNKNOWN : (int32_t)unknown;
    t->model.bpe.byte_fallback = true;
    t->model.bpe.fuse_unknown = true;
    GM_TRY(read_end(g, t, "tokenizer.ggml.add_bos_token", true, "tokenizer.ggml.bos_token_id", 2, &t->before));
    return read_end(g, t, "tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id", 1, &t->after);
}

/* ---- 'bert' ---- */
/* WordPiece. The file marks the first token of a word, the original the others: "\u2581a", "b" instead of "a",
 * "##b". */
static gm_status spell_bert(byte_buffer *scratch, int64_t type, gguf_string *token) {
    if (type == PIECE_CONTROL || type == PIECE_UNKNOWN)
        return GM_OK;
    if (token->length >= 3 && memcmp(token->text, MARKER, 3) == 0) {
        token->text += 3;
        token->length -= 3;
        return GM_OK;
    }
    scratch->size = 0;
    GM_TRY(bytes_append(scratch, "##", 2));
    GM_TRY(bytes_append(scratch, token->text, token->length));
    *token = (gguf_string){(const char *)scratch->data, scratch->size};
    return GM_OK;
}

static gm_status read_bert(const gguf *g, gm_tokenizer *t) {
    static const char normalize_bert[] = "{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                                         "\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true}";
    static const char decode_bert[] = "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}";
    byte_buffer scratch = {0};
    wordpiece *w = &t->model.wordpiece;
    int64_t unknown = 100, start = 101, end = 102;
    gm_status status = read_tokens(g, t, spell_bert, &scratch);
    memory_free(scratch.data);
    GM_TRY(status);
    t->model.kind = MODEL_WORDPIECE;
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.unknown_token_id", &unknown, NULL));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.bos_token_id", &start, NULL));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.cls_token_id", &start, NULL));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.eos_token_id", &end, NULL));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.seperator_token_id", &end, NULL)); /* spelled so */
    w->unknown = unknown >= 0 && (uint64_t)unknown < t->vocab.n_ids ? (int32_t)unknown : -1;
    w->max_chars = 100;
    w->prefix_length = 2;
    w->prefix = memory_copy_text("##", 2);
    if (!w->prefix)
        return GM_ENOMEM;
    GM_TRY(component_literal(t, component_normalizer, normalize_bert));
    GM_TRY(component_literal(t, component_pretokenizer, "{\"type\":\"BertPreTokenizer\"}"));
    GM_TRY(component_literal(t, component_decoder, decode_bert));
    GM_TRY(read_types(g, t));
    GM_TRY(read_end(g, t, "tokenizer.ggml.add_bos_token", true, "tokenizer.ggml.cls_token_id", start, &t->before));
    return read_end(g, t, "tokenizer.ggml.add_eos_token", true, "tokenizer.ggml.seperator_token_id", end, &t->after);
}

/* ---- 'llama' and 't5' ---- */
static gm_status read_scores(const gguf *g, gm_tokenizer *t, pieces *p) {
    const gguf_entry *scores, *types;
    GM_TRY(find_array(g, "tokenizer.ggml.scores", false, true, &scores));
    GM_TRY(find_array(g, "tokenizer.ggml.token_type", false, false, &types));
    if (scores->count != t->vocab.n_ids)
        return gm_fail(GM_EBADFILE, "%s: the file has %llu scores for %zu tokens", gguf_file(g)->path,
                       (unsigned long long)scores->count, t->vocab.n_ids);
    for (uint64_t i = 0; i < scores->count; i++) {
        double score;
        int64_t type = PIECE_NORMAL;
        GM_TRY(gguf_item_float(scores, i, &score));
        if (types)
            GM_TRY(gguf_item_int(types, i, &type));
        GM_TRY(pieces_add(p, (float)score, type == 0 ? PIECE_NORMAL : type));
    }
    return GM_OK;
}

static gm_status read_charsmap(const gguf *g, pieces *p) {
    const gguf_entry *map;
    GM_TRY(find_array(g, "tokenizer.ggml.precompiled_charsmap", false, false, &map));
    if (!map)
        return GM_OK;
    if (map->item_type != GGUF_U8 && map->item_type != GGUF_I8)
        return gm_fail(GM_EBADFILE, "%s: 'tokenizer.ggml.precompiled_charsmap' is not an array of bytes",
                       gguf_file(g)->path);
    p->charsmap = map->data;
    p->charsmap_length = map->bytes;
    return GM_OK;
}

static gm_status build_pieces(const gguf *g, gm_tokenizer *t, pieces *p) {
    GM_TRY(read_scores(g, t, p));
    GM_TRY(read_charsmap(g, p));
    GM_TRY(gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &p->add_prefix, NULL));
    GM_TRY(gguf_get_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &p->single_spaces, NULL));
    GM_TRY(gguf_get_int(g, "tokenizer.ggml.unknown_token_id", &p->unknown, NULL));
    if (p->unknown < 0 || (uint64_t)p->unknown >= t->vocab.n_ids)
        return gm_fail(GM_EBADFILE, "%s: 'tokenizer.ggml.unknown_token_id' is %lld, expected less than %zu",
                       gguf_file(g)->path, (long long)p->unknown, t->vocab.n_ids);
    GM_TRY(pieces_build(t, p));
    return pieces_add_tokens(t, p);
}

static gm_status read_pieces(const gguf *g, gm_tokenizer *t, pieces_kind kind) {
    bool is_unigram = kind == PIECES_UNIGRAM;
    pieces p = {.kind = kind, .unknown = is_unigram ? 2 : 0, .byte_fallback = !is_unigram, .add_prefix = true};
    GM_TRY(read_tokens(g, t, NULL, NULL));
    gm_status status = build_pieces(g, t, &p);
    pieces_free(&p);
    GM_TRY(status);
    GM_TRY(read_end(g, t, "tokenizer.ggml.add_bos_token", !is_unigram, "tokenizer.ggml.bos_token_id", 1, &t->before));
    return read_end(g, t, "tokenizer.ggml.add_eos_token", is_unigram, "tokenizer.ggml.eos_token_id", is_unigram ? 1 : 2,
                    &t->after);
}

static gm_status read_file(const gguf *g, gm_tokenizer *t) {
    gguf_string kind = {0};
    bool found;
    GM_TRY(gguf_get_string(g, "tokenizer.ggml.model", &kind, &found));
    if (!found)
        return gm_fail(GM_EBADFILE, "%s: the file has no tokenizer ('tokenizer.ggml.model')", gguf_file(g)->path);
    if (same(kind, "gpt2"))
        GM_TRY(read_gpt2(g, t));
    else if (same(kind, "llama"))
        GM_TRY(read_pieces(g, t, PIECES_BPE));
    else if (same(kind, "bert"))
        GM_TRY(read_bert(g, t));
    else if (same(kind, "gemma4"))
        GM_TRY(read_gemma4(g, t));
    else if (same(kind, "t5"))
        GM_TRY(read_pieces(g, t, PIECES_UNIGRAM));
    else
        return gm_fail(GM_EUNSUPPORTED,
                       "%s: tokenizer.ggml.model '%.*s' is not supported, expected gpt2, llama, t5, "
                       "bert or gemma4",
                       gguf_file(g)->path, kind.length < 64 ? (int)kind.length : 64, kind.text);
    return tokenizer_finish(t);
}

gm_status gm_tokenizer_from_gguf(const char *path, gm_tokenizer **out) {
    *out = NULL;
    gguf *g;
    GM_TRY(gguf_open(path, &g));
    gm_tokenizer *t = tokenizer_new();
    gm_status status = t ? read_file(g, t) : GM_ENOMEM;
    gguf_close(g);
    if (status != GM_OK) {
        gm_tokenizer_release(t);
        return error_in_file(path, status);
    }
    *out = t;
    return GM_OK;
}
