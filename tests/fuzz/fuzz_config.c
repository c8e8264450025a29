/* fuzz_config.c - any bytes as a config.json, or as the GGUF file of which a config is read; the first byte chooses, an
 * even one JSON. What is accepted is within the bounds that the rest of the engine counts on.
 * clang -fsanitize=fuzzer,address,undefined with csrc/base/ *.c, csrc/models/config.c and kernels/quants.c; seeds:
 * config.json files and small GGUF files behind that byte. The architectures here have names and nothing else. */
#include "memory_file.h"
#include "models/config.h"

#define MODEL(word)                                             \
    static const char *const word##_types[] = { #word, NULL };   \
    const gm_architecture word##_architecture = { .name = #word, .gguf = #word, .types = word##_types };
#include "models/models.def"
#undef MODEL

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gm_config *c) {
    const int64_t sizes[] = { c->vocab,      c->hidden,   c->n_layers, c->n_heads,
                              c->n_kv_heads, c->head_dim, c->mlp,      c->context };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1 || sizes[i] > 1 << 26) abort();
    if (c->n_heads % c->n_kv_heads || c->head_dim % 2 || c->window < 0 || !(c->eps >= 0) || c->rope.dims < 2 ||
        c->rope.dims > c->head_dim || !(c->rope.theta > 1))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const gm_architecture *architecture = NULL;
    gm_config config;
    gm_error e;
    gguf *g = NULL;
    if (size == 0) return 0;
    bool json = *data++ % 2 == 0;
    gm_status status = json ? GM_OK : gguf_open(memory_file(data, size - 1), &g);
    if (status == GM_OK)
        status = json ? config_from_json((const char *)data, size - 1, "fuzz", &architecture, &config)
                      : config_from_gguf(g, &architecture, &config);
    if (gm_take_error(&e) != status) abort();
    if (status == GM_OK) check(&config);
    gguf_close(g);
    return 0;
}
