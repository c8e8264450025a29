/* test_tokenizer_models.c - each allocation of loading and using every kind of model and of file may fail; whole texts
 * and one that is longer than any buffer's first size come out as without the failures. */
#include <string.h>
#include "base/memory.h"
#include "check.h"

#define MARKER "\xE2\x96\x81"
/* A SentencePiece piece of one character or more with its score -1 and its type. */
#define PIECE(length, text, type) "\n" length "\n" text "\x15\x00\x00\x80\xBF\x18" type
/* clang-format off */
#define PIECES                                                                                                         \
    PIECE("\x0E", "\x05<unk>", "\x02") PIECE("\x0C", "\x03" MARKER, "\x01") PIECE("\x0A", "\x01" "a", "\x01")          \
    PIECE("\x0A", "\x01" "b", "\x01") PIECE("\x0B", "\x02" "ab", "\x01") PIECE("\x0C", "\x03[x]", "\x04")
/* clang-format on */

static const char bpe[] =
    "{\"model\":{\"type\":\"BPE\","
    "\"vocab\":{\"a\":0,\"##b\":1,\"##a\":2,\"ab\":3,\"##b</w>\":4,\"?\":5,\"<0x63>\":6},"
    "\"merges\":[\"a ##b\",[\"ab\",\"##a\"]],\"continuing_subword_prefix\":\"##\",\"end_of_word_suffix\":\"</w>\","
    "\"unk_token\":\"?\",\"byte_fallback\":true}}";
static const char unigram[] =
    "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,"
    "\"vocab\":[[\"?\",0.0],[\"a\",-1.0],[\"b\",-2.5],[\"\\u0061b\",-1.5],[\"<0x63>\",-4.0]]}}";
static const char wordpiece[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":\"WordPiece\","
    "\"unk_token\":\"?\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100000,"
    "\"vocab\":{\"?\":0,\"a\":1,\"##b\":2,\"##a\":3}}}";
static const char wordlevel[] = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"ab\":1}}}";
static const char pieces_bpe[] = PIECES "\x12\x04\x18\x02\x28\x00\x1A\x02 \x00";
static const char pieces_unigram[] = PIECES "\x12\x02\x18\x01";

typedef struct {
    const char *data;
    size_t length;
    bool is_json;
} model_file;
static const model_file files[] = {
    {unigram, sizeof unigram - 1, true},
    {wordpiece, sizeof wordpiece - 1, true},
    {wordlevel, sizeof wordlevel - 1, true},
    {pieces_bpe, sizeof pieces_bpe - 1, false},
    {pieces_unigram, sizeof pieces_unigram - 1, false},
};
enum { N_FILES = sizeof files / sizeof files[0], LONG_TEXT = 3000 };

static gm_status open_model(const model_file *file, gm_tokenizer **out) {
    static const char parts[] = "{\"added_tokens\":[{\"id\":6,\"content\":\"[y]\"}]}";
    const gm_sentencepiece_options options = {parts, sizeof parts - 1, false, false};
    return file->is_json ? gm_tokenizer_from_json(file->data, file->length, "test", out)
                         : gm_tokenizer_from_sentencepiece(file->data, file->length, &options, "test", out);
}

/* The sum of the ids of a short and a long text. */
static gm_status use_model(const model_file *file, int64_t *sum) {
    char text[LONG_TEXT];
    gm_tokenizer *t;
    gm_status status = open_model(file, &t);
    if (status != GM_OK)
        return status;
    for (size_t i = 0; i < LONG_TEXT; i++)
        text[i] = "abacab\xC3\xA9"[i % 8];
    *sum = 0;
    for (int k = 0; k < 2 && status == GM_OK; k++) {
        const gm_text input = {text, k == 0 ? 8 : LONG_TEXT, false};
        const gm_encode_options o = {.add_special = true, .parse_special = true};
        int32_t *ids = NULL;
        size_t count = 0;
        status = gm_tokenizer_encode(t, &input, NULL, &o, &ids, &count, NULL);
        for (size_t i = 0; i < count && status == GM_OK; i++)
            *sum += ids[i] + 1;
        if (status == GM_OK)
            gm_buffer_free(ids);
    }
    gm_tokenizer_release(t);
    return status;
}

/* A merge whose result is missing: the error names it. */
static void test_missing_merge(void) {
    gm_tokenizer *t;
    gm_error e;
    CHECK(gm_tokenizer_from_json(bpe, sizeof bpe - 1, "test", &t) == GM_EBADFILE);
    CHECK(gm_take_error(&e) == GM_EBADFILE && strstr(e.text, "'aba'") != NULL);
}

static void test_every_kind(void) {
    for (int i = 0; i < N_FILES; i++) {
        int64_t sum;
        CHECK(use_model(&files[i], &sum) == GM_OK && sum > 0);
    }
}

#ifdef GOMLX_FAULT_INJECTION
static void test_each_allocation_fails(void) {
    for (int i = 0; i < N_FILES; i++) {
        int64_t want = 0, sum = 0;
        CHECK(use_model(&files[i], &want) == GM_OK);
        long k = 0;
        for (gm_status status = GM_ENOMEM; status == GM_ENOMEM && k < 10000;) {
            gm_error e;
            memory_fail_at(++k);
            status = use_model(&files[i], &sum);
            gm_status code = gm_take_error(&e);
            CHECK(code == status && (status == GM_OK || status == GM_ENOMEM));
        }
        memory_fail_at(0);
        CHECK(k > 10 && k < 10000 && sum == want);
    }
}
#endif

int main(void) {
    CHECK(gm_init() == GM_OK);
    test_missing_merge();
    test_every_kind();
#ifdef GOMLX_FAULT_INJECTION
    test_each_allocation_fails();
#endif
    return check_summary();
}
