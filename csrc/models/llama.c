/* llama.c - Llama 2, 3, 3.x, SmolLM2; and Mistral, which is the same with a sliding window.
 * Pre-norm blocks, RMSNorm, half-split rotary embedding on all of head_dim, grouped-query attention, SwiGLU. */
#include <math.h>
#include <stddef.h>
#include "models/model.h"

typedef struct {
    gm_array *attention_norm, *mlp_norm;
    gm_linear q, k, v, o, gate, up, down;
} layer;

static const gm_weight_field fields[] = {
    {FIELD_NORM, offsetof(layer, attention_norm), "input_layernorm", "attn_norm", false},
    {FIELD_LINEAR, offsetof(layer, q), "self_attn.q_proj", "attn_q", true},
    {FIELD_LINEAR, offsetof(layer, k), "self_attn.k_proj", "attn_k", true},
    {FIELD_LINEAR, offsetof(layer, v), "self_attn.v_proj", "attn_v", false},
    {FIELD_LINEAR, offsetof(layer, o), "self_attn.o_proj", "attn_output", false},
    {FIELD_NORM, offsetof(layer, mlp_norm), "post_attention_layernorm", "ffn_norm", false},
    {FIELD_LINEAR, offsetof(layer, gate), "mlp.gate_proj", "ffn_gate", false},
    {FIELD_LINEAR, offsetof(layer, up), "mlp.up_proj", "ffn_up", false},
    {FIELD_LINEAR, offsetof(layer, down), "mlp.down_proj", "ffn_down", false},
    {0},
};

static void shape(const gm_config *c, const gm_weight_field *field, int64_t *rows, int64_t *columns) {
    int64_t heads = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    *rows = *columns = c->hidden;
    switch (field->offset) {
    case offsetof(layer, q): *rows = heads; break;
    case offsetof(layer, k):
    case offsetof(layer, v): *rows = kv; break;
    case offsetof(layer, o): *columns = heads; break;
    case offsetof(layer, gate):
    case offsetof(layer, up): *rows = c->mlp; break;
    case offsetof(layer, down): *columns = c->mlp; break;
    default: break;
    }
}

static gm_array *attention(gm_scope *s, const gm_model *m, const layer *l, int i, gm_array *x, gm_array *angles,
                           const gm_batch *b) {
    const gm_config *c = &m->config;
    const cache_slot *slot = &m->layout.slots[i];
    gm_activation in = {.x = gm_rms_norm(s, x, l->attention_norm, (float)c->eps)};
    gm_array *q = linear_apply(s, &l->q, &in, GM_NONE);
    gm_array *k = linear_apply(s, &l->k, &in, GM_NONE);
    gm_array *v = linear_apply(s, &l->v, &in, GM_NONE);
    const gm_attention_spec spec = {.slot = i, .n_heads = (int)c->n_heads, .n_kv_heads = (int)slot->n_kv_heads,
                                    .head_dim = (int)slot->head_dim, .window = (int)slot->window,
                                    .scale = (float)(1 / sqrt((double)c->head_dim))};
    gm_activation mixed = {.x = gm_cached_attention(s, q, k, v, angles, GM_NONE, b->rows, b->tables, b->n_sequences,
                                                    b->spans, &spec)};
    return linear_apply(s, &l->o, &mixed, x);
}

static gm_array *mlp(gm_scope *s, const gm_model *m, const layer *l, gm_array *x) {
    gm_activation in = {.x = gm_rms_norm(s, x, l->mlp_norm, (float)m->config.eps)};
    gm_array *gate = linear_apply(s, &l->gate, &in, GM_NONE);
    gm_array *up = linear_apply(s, &l->up, &in, GM_NONE);
    gm_activation inner = {.x = gm_swiglu(s, gate, up)};
    return linear_apply(s, &l->down, &inner, x);
}

static gm_array *forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_array *angles = gm_rope_angles(s, b->positions, m->inv_freq, m->rope_factor);
    gm_array *x = gm_packed_embedding(s, m->embedding.weight, b->tokens, 1);
    for (int i = 0; i < m->config.n_layers; i++) {
        const layer *l = (const layer *)(const void *)m->layers + i;
        x = attention(s, m, l, i, x, angles, b);
        x = mlp(s, m, l, x);
    }
    if (hidden)
        return x;
    if (b->wanted)
        x = gm_take(s, x, b->wanted, 0);
    gm_activation out = {.x = gm_rms_norm(s, x, m->norm, (float)m->config.eps)};
    return linear_apply(s, &m->head, &out, GM_NONE);
}

static const char *const llama_types[] = {"llama", NULL};
const gm_architecture llama_architecture = {.name = "llama", .gguf = "llama", .types = llama_types,
                                            .layer_size = sizeof(layer), .fields = fields, .shape = shape,
                                            .forward = forward};

/* GGUF files of Mistral say "llama". */
static const char *const mistral_types[] = {"mistral", NULL};
const gm_architecture mistral_architecture = {.name = "mistral", .gguf = NULL, .types = mistral_types, .window = 4096,
                                              .layer_size = sizeof(layer), .fields = fields, .shape = shape,
                                              .forward = forward};
