/* unused.c - tensors that no field took. Those of towers and of multi-token-prediction layers are not missed; one that
 * belongs to the decoder's layers, or to something that the config disables, would have changed the result: an error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "models/load.h"

/* The key whose value says that a layer lacks what a field requires. */
static const struct {
    uint32_t has;
    const char *key, *gguf;
} switches[] = {
    {HAS_PER_LAYER_INPUT, "hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {HAS_SHARED_EXPERT, "shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {HAS_EXPERTS, "num_experts, enable_moe_block, decoder_sparse_step or mlp_only_layers", "expert_count"},
    {HAS_MLP, "num_experts, decoder_sparse_step or mlp_only_layers", "expert_count"},
    {HAS_LINEAR, "layer_types or full_attention_interval", "full_attention_interval"},
    {HAS_ATTENTION, "layer_types or full_attention_interval", "full_attention_interval"},
    {HAS_V, "attention_k_eq_v", "attention_k_eq_v"},
};

/* Frequencies, which follow from the config, and scales for caches of 8-bit floats, which this engine has not. */
static bool is_dispensable(const char *part) {
    static const char *const endings[] = {"rotary_emb.inv_freq",
                                          "rotary_emb.cos_cached",
                                          "rotary_emb.sin_cached",
                                          "rope_freqs.weight",
                                          "attn_rot_embd.weight",
                                          "k_scale",
                                          "v_scale"};
    const size_t length = strlen(part);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(endings[i]);
        if (length >= n && strcmp(part + length - n, endings[i]) == 0)
            return true;
    }
    return false;
}

/* Whether the part is one of the field's names or goes on from it; of experts in safetensors, from the stack's. */
static bool is_of(const char *part, const gm_weight_field *f, bool is_gguf) {
    for (const char *at = is_gguf ? f->gguf : f->name; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        size_t n = strcspn(at, "|");
        while (!is_gguf && f->kind == FIELD_EXPERTS && n > 0 && at[--n] != '.')
            continue;
        if (strncmp(part, at, n) == 0 && (part[n] == 0 || part[n] == '.'))
            return true;
    }
    return false;
}

/* The layer that a tensor is of, and the rest of its name; -1: of none. */
static int64_t layer_of(const gm_loader *l, const char *name, const char **part) {
    char prefix[NAME_BYTES], *end;
    fields_prefix(l, -1, prefix);
    const char *word = checkpoint_gguf(l->checkpoint) ? "blk." : "layers.";
    *part = NULL;
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return -1;
    *part = name += strlen(prefix);
    if (strncmp(name, word, strlen(word)) != 0)
        return -1;
    const long long layer = strtoll(name + strlen(word), &end, 10);
    if (end == name + strlen(word) || *end != '.' || layer < 0)
        return -1;
    *part = end + 1;
    return layer;
}

static gm_status refuse(const gm_loader *l, const char *name, const char *key) {
    return gm_fail(GM_EBADFILE, "%s: got tensor %s, which %s of %s says that the model does not have", l->path, name,
                   key, checkpoint_gguf(l->checkpoint) ? "the metadata" : "config.json");
}

static gm_status check(const gm_loader *l, const char *name) {
    const gm_model *m = l->model;
    const gm_config *c = &m->config;
    const bool is_gguf = checkpoint_gguf(l->checkpoint) != NULL;
    const char *part;
    const int64_t layer = layer_of(l, name, &part);
    if (strcmp(name, "lm_head.bias") == 0 || strcmp(name, "output.bias") == 0)
        return gm_fail(GM_EUNSUPPORTED, "%s: tensor %s beside a head that is the embedding is not supported", l->path,
                       name);
    if (!part || (layer >= 0 && is_dispensable(part)) ||
        (layer >= c->n_layers && layer < c->n_layers + c->n_mtp_layers))
        return GM_OK;
    if (layer >= c->n_layers)
        return refuse(l, name, is_gguf ? "block_count" : "num_hidden_layers");
    const uint32_t has = c->layers[layer < 0 ? 0 : layer].has;
    for (const gm_weight_field *f = layer < 0 ? m->arch->globals : m->arch->fields; f && f->name; f++) {
        if (!is_of(part, f, is_gguf))
            continue;
        if ((f->when & (HAS_KV | HAS_V)) && (has & HAS_ATTENTION) && !(has & HAS_KV))
            return GM_OK; /* files hold keys of layers that read another's, too */
        if (f->kind == FIELD_EXPERTS && (has & HAS_EXPERTS))
            return refuse(l, name, is_gguf ? "expert_count" : "num_experts");
        for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
            if (f->when & ~has & switches[i].has)
                return refuse(l, name, is_gguf ? switches[i].gguf : switches[i].key);
    }
    if (layer < 0 && strcmp(part, "norm.bias") != 0 && strcmp(part, "output_norm.bias") != 0)
        return GM_OK;
    return gm_fail(GM_EUNSUPPORTED, "%s: architecture %s has no tensor like %s; without it the result would be another",
                   l->path, m->arch->name, name);
}

gm_status fields_check_unused(const gm_loader *l) {
    for (int64_t i = 0; i < checkpoint_count(l->checkpoint); i++)
        if (!l->used[i])
            GM_TRY(check(l, checkpoint_at(l->checkpoint, i)->name));
    return GM_OK;
}
