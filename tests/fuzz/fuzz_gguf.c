/* fuzz_gguf.c - any bytes as a GGUF file: opened, and everything that it claims to hold is read.
 * clang -fsanitize=fuzzer,address,undefined with csrc/base/{error,memory,names,file,gguf}.c and kernels/quants.c;
 * seeds: small .gguf files. */
#include "base/gguf.h"
#include "memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += at[i];
    sink += sum;
}

static void read_entry(const gguf_entry *e) {
    touch(e->key.text, e->key.length);
    touch(e->data, e->bytes);
    bool texts = (e->type == GGUF_ARRAY ? e->item_type : e->type) == GGUF_STRING;
    const uint8_t *cursor = e->data;
    for (uint64_t i = 0; i < e->count; i++) {
        int64_t whole;
        double real;
        if (texts) {
            gguf_string s = gguf_next_string(&cursor);
            touch(s.text, s.length);
        } else if (gguf_item_int(e, i, &whole) == GM_OK && gguf_item_float(e, i, &real) == GM_OK) {
            sink += (uint64_t)whole;
        }
    }
    if (texts && cursor != e->data + e->bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf *g;
    gm_error e;
    if (gguf_open(memory_file(data, size), &g) == GM_OK) {
        for (int64_t i = 0; i < gguf_n_entries(g); i++) {
            read_entry(gguf_entry_at(g, i));
            gm_take_error(&e);
        }
        for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
            const gguf_tensor *t = gguf_tensor_at(g, i);
            touch(t->name.text, t->name.length);
            touch(t->data, t->bytes);
        }
        if (gm_take_error(&e) != GM_OK)
            abort();
        gguf_close(g);
    } else if (gm_take_error(&e) == GM_OK || g) {
        abort();
    }
    return 0;
}
