/* fuzz_encoding.c - any bytes as a text for a tokenizer: to ids, with offsets, in a batch, and back at once and as a
 * stream. The tokenizers are the tokenizer.json files in the folder that GOMLX_FUZZ_TOKENIZERS names, in the order of
 * their names; those called bytes-*.json give every text back. The first byte chooses one, the second the options.
 * clang -fsanitize=fuzzer,address,undefined with all of csrc/base and csrc/text, csrc/run/encode_batch.c,
 * kernels/quants.c and -lpcre2-8; seeds: texts behind two bytes. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/file.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* What encode_batch.c has from the core; with one thread it never locks. */
int64_t clock_ns(void);
int engine_threads(void);
gm_status run_lock(int patience_ms);
void run_unlock(void);
int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
gm_status run_lock(int patience_ms) {
    abort();
    return patience_ms ? GM_OK : GM_OK;
}
void run_unlock(void) { abort(); }
int engine_threads(void) { return 1; }

#define MOST 256
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%d: %s\n", __LINE__, #what);                                                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
/* quick as it was loaded, general without the short cuts. */
static struct {
    gm_tokenizer *quick, *general;
    bool lossless;
} loaded[MOST];
static size_t n_loaded;

static gm_tokenizer *load(const char *path) {
    char *text;
    size_t length;
    gm_tokenizer *t;
    gm_error e = {0};
    if (file_read(path, (size_t)1 << 28, &text, &length) != GM_OK ||
        gm_tokenizer_from_json(text, length, path, &t) != GM_OK) {
        gm_take_error(&e);
        fprintf(stderr, "%s: %s\n", path, e.text);
        exit(1);
    }
    memory_free(text);
    return t;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const char *folder = getenv("GOMLX_FUZZ_TOKENIZERS");
    struct dirent **names;
    int n = folder == NULL ? -1 : scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (strstr(names[i]->d_name, ".json") != NULL && n_loaded < MOST) {
            loaded[n_loaded].quick = load(path);
            loaded[n_loaded].general = load(path);
            loaded[n_loaded].general->quick.kind = QUICK_NOTHING;
            loaded[n_loaded].general->by_lengths = false;
            loaded[n_loaded++].lossless = strncmp(names[i]->d_name, "bytes-", 6) == 0;
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    if (n_loaded == 0) {
        fprintf(stderr, "GOMLX_FUZZ_TOKENIZERS names no folder of tokenizer.json files\n");
        exit(1);
    }
    return 0;
}

/* A status, and that the message is there exactly when it is needed. */
static gm_status seen(gm_status status) {
    gm_error e;
    CHECK(gm_take_error(&e) == status);
    return status;
}

static bool same_ids(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * sizeof *a) == 0);
}

static void check_same_encoding(const gm_encoding *a, const gm_encoding *b, const gm_tokenizer *t) {
    CHECK(gm_encoding_size(a) == gm_encoding_size(b));
    CHECK(gm_encoding_overflowing(a) == gm_encoding_overflowing(b));
    for (size_t i = 0; i < gm_encoding_size(a); i++) {
        gm_token_info x = gm_encoding_token(a, i), y = gm_encoding_token(b, i);
        size_t n_x = 0, n_y = 0;
        const char *text_x = gm_encoding_text(a, a, i, t, &n_x), *text_y = gm_encoding_text(b, b, i, t, &n_y);
        CHECK(x.id == y.id && x.type_id == y.type_id && x.word == y.word && x.start == y.start && x.end == y.end);
        CHECK(x.special == y.special && x.attention == y.attention && (text_x == NULL) == (text_y == NULL));
        CHECK(n_x == n_y && (n_x == 0 || text_x == NULL || memcmp(text_x, text_y, n_x) == 0));
    }
}

/* With all that is known, by both ways; cut: ids are not all there are, or not all of the text. */
static void check_encodings(size_t which, const gm_text *text, const gm_text *pair, const gm_encode_options *o,
                            const int32_t *ids, size_t count) {
    gm_encoding *quick, *general;
    gm_status status = seen(gm_tokenizer_encoding(loaded[which].quick, text, pair, o, &quick));
    CHECK(seen(gm_tokenizer_encoding(loaded[which].general, text, pair, o, &general)) == status);
    if (status != GM_OK) { /* a pattern that goes too far */
        CHECK(status == GM_EUNSUPPORTED);
        return;
    }
    CHECK(gm_encoding_size(quick) == count);
    for (size_t i = 0; i < count; i++) {
        gm_token_info token = gm_encoding_token(quick, i);
        size_t most = pair != NULL && pair->length > text->length ? pair->length : text->length;
        CHECK(token.id == ids[i] && token.start >= 0 && (size_t)token.end <= most);
    }
    check_same_encoding(quick, general, loaded[which].quick);
    gm_encoding_free(quick);
    gm_encoding_free(general);
}

/* Twice the text and its two halves: each is what it is alone, but for padding. */
static void check_batch(gm_tokenizer *t, const gm_text *text, const gm_encode_options *options) {
    gm_encode_options o = *options;
    o.padding = NULL;
    size_t half = text->length / 2;
    const gm_text texts[] = {
        *text, {text->data, half, text->raw, false}, {text->data + half, text->length - half, text->raw, false}, *text};
    enum { N = sizeof texts / sizeof texts[0] };
    gm_encode_batch *batch;
    CHECK(seen(gm_encode_begin(t, &(gm_encode_request){texts, NULL, N, false, 2}, &o, &batch)) == GM_OK);
    gm_status status = GM_AGAIN;
    while (status == GM_AGAIN)
        status = gm_encode_step(batch, 1000);
    seen(status);
    bool failed = false;
    for (size_t i = 0; i < N; i++) {
        int32_t *ids;
        size_t count;
        failed |= seen(gm_tokenizer_encode(t, &texts[i], NULL, &o, &ids, &count, NULL)) != GM_OK;
        gm_encoded r = gm_encode_result(batch, i);
        CHECK(failed || status != GM_OK || same_ids(ids, count, gm_encode_ids(batch, i), r.count));
        gm_buffer_free(ids);
    }
    CHECK(failed == (status != GM_OK));
    gm_encode_free(batch);
}

static void check_stream(gm_tokenizer *t, const int32_t *ids, size_t count, bool skip, bool strict, const char *whole,
                         size_t length) {
    gm_detokenizer *d;
    size_t done = 0, n;
    const char *part;
    CHECK(gm_detokenizer_new(t, skip, strict, &d) == GM_OK);
    for (size_t i = 0; i <= count; i++) {
        CHECK((i < count ? gm_detokenizer_push(d, ids[i], &part, &n) : gm_detokenizer_finish(d, &part, &n)) == GM_OK);
        CHECK(utf8_check((const uint8_t *)part, n) == n);
        CHECK(!strict || (done + n <= length && (n == 0 || memcmp(whole + done, part, n) == 0)));
        done += n;
    }
    CHECK(!strict || done == length);
    gm_detokenizer_free(d);
}

/* ids that the text gave, or any. */
static void check_decoding(size_t which, const int32_t *ids, size_t count, bool skip, const gm_text *text) {
    gm_tokenizer *t = loaded[which].quick;
    char *whole, *bytes;
    size_t length, n;
    if (seen(gm_tokenizer_decode(t, ids, count, skip, &whole, &length)) != GM_OK)
        return;
    CHECK(utf8_check((const uint8_t *)whole, length) == length);
    check_stream(t, ids, count, skip, true, whole, length);
    check_stream(t, ids, count, skip, false, whole, length);
    gm_buffer_free(whole);
    if (text == NULL || !loaded[which].lossless)
        return;
    CHECK(seen(gm_tokenizer_decode_bytes(t, ids, count, false, &bytes, &n)) == GM_OK);
    CHECK(n == text->length && (n == 0 || memcmp(bytes, text->data, n) == 0));
    gm_buffer_free(bytes);
}

enum { ADD_SPECIAL = 1, PARSE_SPECIAL = 2, RAW = 4, PAIR = 8, TRUNCATE = 16, PAD = 32, SKIP = 64, ANY_IDS = 128 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    size_t which = data[0] % n_loaded;
    uint8_t flags = data[1];
    const gm_text text = {(const char *)data + 2, size - 2, flags & RAW, false};
    const gm_text first = {text.data, text.length / 3, flags & RAW, false};
    const gm_truncation truncation = {.max_length = 6 + size % 5, .stride = size % 3, .left = size % 2};
    const gm_padding padding = {.multiple_of = 4, .left = size % 3 == 0, .id = 1, .token = "pad", .token_length = 3};
    const gm_encode_options options = {.add_special = flags & ADD_SPECIAL,
                                       .parse_special = flags & PARSE_SPECIAL,
                                       .truncation = flags & TRUNCATE ? &truncation : NULL,
                                       .padding = flags & PAD ? &padding : NULL};
    const gm_text *pair = flags & PAIR ? &first : NULL;
    int32_t *ids, *others;
    size_t count, n_others;
    if (flags & ANY_IDS) {
        int32_t any[512];
        size_t n = 0;
        for (size_t i = 2; i + 1 < size && n < 512; i += 2)
            any[n++] = (int32_t)((data[i] | data[i + 1] << 8) % (gm_tokenizer_vocab_size(loaded[which].quick) + 1));
        check_decoding(which, any, n, flags & SKIP, NULL);
        return 0;
    }
    gm_status status = seen(gm_tokenizer_encode(loaded[which].quick, &text, pair, &options, &ids, &count, NULL));
    CHECK(seen(gm_tokenizer_encode(loaded[which].general, &text, pair, &options, &others, &n_others, NULL)) == status);
    if (status == GM_OK) {
        CHECK(same_ids(ids, count, others, n_others));
        check_encodings(which, &text, pair, &options, ids, count);
        bool whole = !(flags & (ADD_SPECIAL | PAIR | TRUNCATE | PAD));
        check_decoding(which, ids, count, flags & SKIP, whole ? &text : NULL);
        gm_buffer_free(ids);
        gm_buffer_free(others);
    } else {
        CHECK(!loaded[which].lossless || !(flags & RAW) || flags & (TRUNCATE | PAIR));
    }
    check_batch(loaded[which].quick, &text, &options);
    return 0;
}
