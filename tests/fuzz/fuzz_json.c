/* fuzz_json.c - any bytes as a JSON text: read to its end, with every string and number resolved.
 * clang -fsanitize=fuzzer,address,undefined with csrc/base/{error,memory,json}.c; seeds: config.json files. */
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void resolve(json_reader *r) {
    size_t length;
    char *text = json_string_new(r, &length);
    if (!text)
        abort();
    if (length != json_string_length(r) || length > r->token_length)
        abort();
    if (!memchr(text, 0, length) && !json_is(r, text))
        abort();
    memory_free(text);
}

/* A number that does not fit is a fault of the reader's, which sticks: asked of a copy. */
static void convert(const json_reader *r) {
    json_reader copy = *r;
    int64_t whole;
    double real;
    if (json_double(&copy, &real) != GM_OK || json_int(&copy, &whole) != GM_OK)
        return;
    if (real != (double)whole)
        abort();
}

static json_token read_all(const char *text, size_t size, bool skip) {
    json_reader r;
    json_token token;
    json_open(&r, text, size, "fuzz");
    while ((token = json_next(&r)) > JSON_END) {
        if (token == JSON_KEY || token == JSON_STRING)
            resolve(&r);
        if (token == JSON_NUMBER)
            convert(&r);
        if (skip && token == JSON_KEY)
            json_skip(&r);
    }
    return token;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gm_error e;
    json_token whole = read_all((const char *)data, size, false), skipped = read_all((const char *)data, size, true);
    if (whole != skipped)
        abort();
    gm_status status = gm_take_error(&e);
    if (whole == JSON_ERROR && status == GM_OK)
        abort();
    return 0;
}
