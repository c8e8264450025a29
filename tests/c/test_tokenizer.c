/* test_tokenizer.c - what Python cannot see of a tokenizer: that threads may share one, that each allocation of its
 * loading, encoding and decoding may fail; and that the check for NFC passes by no character that needs it. */
#include <pthread.h>
#include <stdlib.h>
#include "base/memory.h"
#include "check.h"
#include "text/unicode/unicode.h"

/* Two patterns (a scanner's and PCRE2's), NFC, an added token in normalized text, a template, byte tokens. */
static const char json[] =
    "{\"added_tokens\":[{\"id\":9,\"content\":\"lo\",\"lstrip\":true,\"normalized\":true,\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"a\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+|,\"},\"behavior\":\"MergedWithNext\"}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],"
    "\"pair\":[{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"B\"}}],"
    "\"special_tokens\":{\"<s>\":{\"ids\":[3]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"b\"},\"content\":"
    "\"c\"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"byte_fallback\":true,\"merges\":[\"a b\",[\"ab\",\"ab\"]],"
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3,\"?\":4,\"abab\":5,\" \":6,\"<0xC3>\":7,\"<0xA9>\":8}}}";
static const gm_encode_options all = {.add_special = true, .parse_special = true};
static const char text[] = " abab xb, e\xCC\x81 hi  lo 1234 \xE4\xB8\xAD";

/* Long enough for the heap. */
static void fill(char *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = "ab"[i % 2];
}

/* Two texts, the first cut into parts, all of them filled up. */
static gm_status encode_pair(gm_tokenizer *t, const char *input, size_t length, gm_encoding **out) {
    static const gm_truncation truncation = {.max_length = 9, .stride = 2};
    static const gm_padding padding = {.multiple_of = 8, .id = 3, .token = "pad", .token_length = 3};
    const gm_text first = {input, length, false}, second = {text, sizeof text - 1, true};
    gm_encode_options o = all;
    o.truncation = &truncation;
    o.padding = &padding;
    return gm_tokenizer_encoding(t, &first, &second, &o, out);
}

/* Ids, and whole encodings, of more texts than one thread is for; rows padded. */
static gm_status encode_many(gm_tokenizer *t, const char *input, size_t length, size_t *total) {
    static const gm_padding padding = {.fixed = true, .length = 70, .id = 3};
    gm_text texts[4];
    gm_encode_options o = all;
    o.padding = &padding;
    for (size_t i = 0; i < 4; i++)
        texts[i] = (gm_text){input, length / (i + 1), false, false};
    for (int encodings = 0; encodings < 2; encodings++) {
        gm_encode_batch *b;
        gm_status status = gm_encode_begin(t, &(gm_encode_request){texts, NULL, 4, encodings, 2}, &o, &b);
        if (status != GM_OK)
            return status;
        while ((status = gm_encode_step(b, 1)) == GM_AGAIN)
            ;
        for (size_t i = 0; i < 4 && status == GM_OK; i++)
            *total += encodings ? 0 : gm_encode_result(b, i).count;
        gm_encode_free(b);
        if (status != GM_OK)
            return status;
    }
    return GM_OK;
}

static gm_status round_trip(gm_tokenizer *t, const char *input, size_t length, char **out, size_t *out_length) {
    int32_t *ids;
    size_t count, n;
    const char *part;
    gm_detokenizer *d = NULL;
    *out = NULL;
    gm_status status = gm_tokenizer_encode(t, &(gm_text){input, length, false, false}, NULL, &all, &ids, &count, NULL);
    if (status != GM_OK)
        return status;
    status = gm_tokenizer_decode(t, ids, count, false, out, out_length);
    if (status == GM_OK)
        status = gm_detokenizer_new(t, true, false, &d);
    for (size_t i = 0; i < count && status == GM_OK; i++)
        status = gm_detokenizer_push(d, ids[i], &part, &n);
    if (status == GM_OK)
        status = gm_detokenizer_finish(d, &part, &n);
    gm_detokenizer_free(d);
    gm_buffer_free(ids);
    return status;
}

/* The ids are Hugging Face's for the same file. */
static void test_round_trip(void) {
    static const int32_t wanted[] = {3, 6, 5, 6, 2, 4, 6, 7, 8, 6, 4, 4, 9, 6, 4, 4, 4, 4, 6, 4};
    gm_tokenizer *t;
    int32_t *ids;
    size_t count;
    CHECK(gm_tokenizer_from_json(json, sizeof json - 1, "test", &t) == GM_OK);
    CHECK(gm_tokenizer_encode(t, &(gm_text){text, sizeof text - 1, false, false}, NULL, &all, &ids, &count, NULL) ==
          GM_OK);
    CHECK(count == sizeof wanted / sizeof wanted[0] && memcmp(ids, wanted, sizeof wanted) == 0);
    gm_buffer_free(ids);
    CHECK(gm_tokenizer_vocab_size(t) == 10);
    CHECK(gm_tokenizer_id(t, "lo", 2) == 9 && gm_tokenizer_is_special(t, 9));
    CHECK_ERROR(gm_tokenizer_encode(t, &(gm_text){"ab\xFF", 3, false, false}, NULL, &all, &ids, &count, NULL),
                GM_EVALUE, "byte 2");
    gm_tokenizer_release(t);
}

enum { N_THREADS = 4, ROUNDS = 200 };
static char shared_text[4096];
static char *expected;
static size_t expected_length;

static void *use(void *tokenizer) {
    size_t faults = 0;
    for (int i = 0; i < ROUNDS; i++) {
        char *out;
        size_t n;
        gm_status status = round_trip(tokenizer, shared_text, sizeof shared_text, &out, &n);
        faults += status != GM_OK || n != expected_length || memcmp(out, expected, n) != 0;
        gm_buffer_free(out);
    }
    gm_tokenizer_release(tokenizer);
    return faults == 0 ? tokenizer : NULL;
}

static void test_threads_share_one(void) {
    gm_tokenizer *t;
    pthread_t threads[N_THREADS];
    fill(shared_text, sizeof shared_text);
    memcpy(shared_text + 2000, text, sizeof text - 1);
    CHECK(gm_tokenizer_from_json(json, sizeof json - 1, "test", &t) == GM_OK);
    CHECK(round_trip(t, shared_text, sizeof shared_text, &expected, &expected_length) == GM_OK);
    for (int i = 0; i < N_THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, use, gm_tokenizer_retain(t)) == 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *good = NULL;
        CHECK(pthread_join(threads[i], &good) == 0 && good != NULL);
    }
    gm_buffer_free(expected);
    gm_tokenizer_release(t);
}

static void test_pair(void) {
    gm_tokenizer *t;
    gm_encoding *e;
    CHECK(gm_tokenizer_from_json(json, sizeof json - 1, "test", &t) == GM_OK);
    CHECK(encode_pair(t, text, sizeof text - 1, &e) == GM_OK);
    CHECK(gm_encoding_size(e) == 16 && gm_encoding_overflowing(e) > 10);
    for (size_t i = 0; i < gm_encoding_overflowing(e); i++) {
        const gm_encoding *part = gm_encoding_overflow(e, i);
        size_t n;
        CHECK(gm_encoding_size(part) == 16);
        CHECK(memcmp(gm_encoding_text(e, part, 15, t, &n), "pad", 3) == 0 && n == 3);
    }
    gm_encoding_free(e);
    gm_tokenizer_release(t);
}

/* One text of several fails: its number and its cause are in the message, whoever had it. */
static void test_batch(void) {
    static char long_text[80000];
    gm_tokenizer *t;
    size_t total = 0;
    fill(long_text, sizeof long_text);
    CHECK(gm_tokenizer_from_json(json, sizeof json - 1, "test", &t) == GM_OK);
    CHECK(encode_many(t, long_text, sizeof long_text, &total) == GM_OK);
    CHECK(total == 20001 + 10001 + 6668 + 5001);
    long_text[70000] = '\xFF';
    CHECK_ERROR(encode_many(t, long_text, sizeof long_text, &total), GM_EVALUE,
                "text 0: encode: the text is not UTF-8 at byte 70000");
    gm_tokenizer_release(t);
}

#ifdef GOMLX_FAULT_INJECTION
static gm_status whole_life(void) {
    gm_tokenizer *t;
    char *out, input[200];
    size_t n;
    gm_status status = gm_tokenizer_from_json(json, sizeof json - 1, "test", &t);
    if (status != GM_OK)
        return status;
    fill(input, sizeof input);
    memcpy(input + 150, text, sizeof text - 1);
    status = round_trip(t, input, sizeof input, &out, &n);
    gm_buffer_free(out);
    gm_encoding *e = NULL;
    if (status == GM_OK)
        status = encode_pair(t, input + 140, 30, &e);
    gm_encoding_free(e);
    if (status == GM_OK)
        status = encode_many(t, input, sizeof input, &n);
    gm_tokenizer_release(t);
    return status;
}

static void test_each_allocation_fails(void) {
    long k = 0;
    for (gm_status status = GM_ENOMEM; status == GM_ENOMEM && k < 10000;) {
        gm_error e;
        memory_fail_at(++k);
        status = whole_life();
        gm_status code = gm_take_error(&e);
        CHECK(code == status && (status == GM_OK || status == GM_ENOMEM));
    }
    memory_fail_at(0);
    CHECK(k > 50 && k < 10000);
}
#endif

/* A check for NFC passes by most characters for their first bytes alone: it finds all that the table has. */
static void test_each_character_is_checked(void) {
    uint8_t bytes[16];
    size_t wrong = 0;
    for (uint32_t c = 0x80; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000)
            continue;
        size_t front = c % 10;
        memset(bytes, 'a', sizeof bytes);
        utf8_put(c, bytes + front);
        wrong += unicode_is_normal(NORMAL_C, bytes, sizeof bytes) != !(unicode_class(c) & CLASS_NFC_CHECK);
    }
    CHECK(wrong == 0);
}

int main(void) {
    CHECK(gm_init() == GM_OK);
    test_each_character_is_checked();
    test_round_trip();
    test_threads_share_one();
    test_pair();
    test_batch();
#ifdef GOMLX_FAULT_INJECTION
    test_each_allocation_fails();
#endif
    return check_summary();
}
