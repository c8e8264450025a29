/* fuzz_config.c - any bytes as a config.json, or as the GGUF file of which a config is read; the first byte chooses, an
 * even one JSON. What is accepted is within the bounds that the rest of the engine counts on.
 * clang -fsanitize=fuzzer,address,undefined with the engine; seeds: config.json files and small GGUF files behind that
 * byte. */
#include "memory_file.h"
#include "models/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gm_config *c) {
    const int64_t sizes[] = {c->vocab,      c->hidden,   c->n_layers, c->n_heads,
                             c->n_kv_heads, c->head_dim, c->mlp,      c->context};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1 || sizes[i] > 1 << 26)
            abort();
    if (c->window < 0 || !(c->eps >= 0) || c->n_slots < 1 || c->n_slots > c->n_layers)
        abort();
    for (int64_t i = 0; i < c->n_layers; i++) {
        const gm_layer_config *l = &c->layers[i];
        const rope_config *rope = &c->rope[l->kind == LAYER_SLIDING ? ROPE_SLIDING : ROPE_FULL];
        if (l->slot < 0 || l->slot >= c->n_slots || l->source < 0 || l->source > i)
            abort();
        if ((l->has & HAS_ATTENTION) && (l->n_heads % l->n_kv_heads || l->head_dim % 2 || l->window < 0 ||
                                         rope->dims < 2 || rope->dims > l->head_dim || !(rope->theta > 1)))
            abort();
        if ((l->has & HAS_MLP) && (l->mlp < 1 || l->mlp > 1 << 26))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const gm_architecture *architecture = NULL;
    gm_config config = {0};
    gm_error e;
    gguf *g = NULL;
    if (size == 0)
        return 0;
    bool json = *data++ % 2 == 0;
    gm_status status = json ? GM_OK : gguf_open(memory_file(data, size - 1), &g);
    if (status == GM_OK)
        status = json ? config_from_json((const char *)data, size - 1, "fuzz", NULL, &architecture, &config)
                      : config_from_gguf(g, &architecture, &config);
    if (gm_take_error(&e) != status)
        abort();
    if (status == GM_OK)
        check(&config);
    config_clear(&config);
    gguf_close(g);
    return 0;
}
