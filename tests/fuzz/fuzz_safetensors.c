/* fuzz_safetensors.c - any bytes as a safetensors file: opened, and every tensor's bytes are read.
 * clang -fsanitize=fuzzer,address,undefined with csrc/base/{error,memory,grow,names,json,file}.c, csrc/io/safetensors.c
 * and kernels/quants.c; seeds: small .safetensors files. */
#include <string.h>
#include "io/safetensors.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    safetensors *s;
    gm_error e;
    if (safetensors_open(memory_file(data, size), &s) == GM_OK) {
        size_t total = 0;
        for (int64_t i = 0; i < safetensors_count(s); i++) {
            const gm_tensor *t = safetensors_at(s, i);
            touch(t->name, strlen(t->name));
            touch(t->type, strlen(t->type));
            touch(t->data, t->bytes);
            total += t->bytes;
        }
        if (total > size || gm_take_error(&e) != GM_OK)
            abort(); /* no byte belongs to two tensors */
        safetensors_close(s);
    } else if (gm_take_error(&e) == GM_OK || s) {
        abort();
    }
    return 0;
}
