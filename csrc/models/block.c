/* block.c - see block.h. */
#include "models/block.h"
#include "ops/ops.h"

gm_array *pass_angles(gm_scope *s, gm_pass *p, gm_layer_kind kind) {
    int i = kind == LAYER_SLIDING ? ROPE_SLIDING : ROPE_FULL;
    if (!p->angles[i])
        p->angles[i] = gm_rope_angles(s, p->batch->positions, p->model->inv_freq[i], p->model->rope_factor[i]);
    return p->angles[i];
}

gm_array *norm_apply(gm_scope *s, gm_array *x, gm_array *weight, int64_t width, double eps) {
    if (!x)
        return NULL;
    int64_t n = x->shape[0], k = x->shape[1];
    gm_array *w = weight ? weight : GM_NONE;
    if (width == k)
        return gm_rms_norm(s, x, w, (float)eps);
    gm_array *heads = gm_reshape(s, x, 2, (int64_t[]){n * (k / width), width});
    return gm_reshape(s, gm_rms_norm(s, heads, w, (float)eps), 2, (int64_t[]){n, k});
}

gm_array *attention_mix(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_activation *x,
                        bool normed_values) {
    const gm_config *c = &p->model->config;
    const gm_layer_config *l = &c->layers[i];
    gm_array *q = linear_apply(s, &w->q, x, GM_NONE), *k = GM_NONE, *v = GM_NONE;
    if (w->q_norm)
        q = norm_apply(s, q, w->q_norm, l->head_dim, c->eps);
    if (l->has & HAS_KV) {
        k = linear_apply(s, &w->k, x, GM_NONE);
        v = w->v.weight ? linear_apply(s, &w->v, x, GM_NONE) : k;
        if (normed_values)
            v = norm_apply(s, v, NULL, l->head_dim, c->eps);
        if (w->k_norm)
            k = norm_apply(s, k, w->k_norm, l->head_dim, c->eps);
    }
    const gm_attention_spec spec = {
        .slot = l->slot, .n_heads = (int)l->n_heads, .n_kv_heads = (int)l->n_kv_heads, .head_dim = (int)l->head_dim,
        .window = (int)p->model->layout.slots[l->slot].window, .scale = (float)c->attention_scale, .softcap = (float)c->attention_softcap};
    return gm_cached_attention(s, q, k, v, pass_angles(s, p, l->kind), w->sinks ? w->sinks : GM_NONE, p->batch->rows,
                               p->batch->tables, p->batch->n_sequences, p->batch->spans, &spec);
}

gm_array *attention_apply(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_array *x,
                          gm_array *residual) {
    gm_activation in = {.x = x};
    gm_activation mixed = {.x = attention_mix(s, p, i, w, &in, false)};
    return linear_apply(s, &w->o, &mixed, residual);
}

gm_array *mlp_apply(gm_scope *s, const mlp_weights *w, gm_activation *x, gate_function act, gm_array *residual) {
    gm_array *gate = linear_apply(s, &w->gate, x, GM_NONE);
    gm_array *up = linear_apply(s, &w->up, x, GM_NONE);
    gm_activation inner = {.x = act(s, gate, up)};
    return linear_apply(s, &w->down, &inner, residual);
}

gm_array *embed_tokens(gm_scope *s, gm_pass *p) {
    return linear_embed(s, &p->model->embedding, p->batch->tokens, (float)p->model->config.embedding_scale);
}

gm_array *head_apply(gm_scope *s, gm_pass *p, gm_array *x, bool hidden) {
    const gm_config *c = &p->model->config;
    if (hidden)
        return x;
    if (p->batch->wanted)
        x = gm_take(s, x, p->batch->wanted, 0);
    gm_activation out = {.x = gm_rms_norm(s, x, p->model->norm, (float)c->eps)};
    gm_array *logits = linear_apply(s, &p->model->head, &out, GM_NONE);
    return c->final_softcap > 0 ? gm_softcap(s, logits, (float)c->final_softcap) : logits;
}

gm_array *experts_apply(gm_scope *s, gm_pass *p, const expert_weights *w, gm_array *x, gm_activation *route,
                        gm_array *scale, moe_activation act) {
    const gm_config *c = &p->model->config;
    gm_array *ids = NULL, *weights = NULL, *logits = linear_apply(s, &w->router, route, GM_NONE);
    gm_route(s, logits, (int)c->n_experts_used, c->normalise_experts, scale, &ids, &weights);
    return moe_apply(s, x, ids, weights, &w->gate, &w->up, &w->down, act, (float)c->swiglu_alpha,
                     (float)c->swiglu_limit);
}

gm_array *dense_forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const dense_layer *l = model_layer(m, i);
        x = attention_apply(s, &pass, i, &l->attention, gm_rms_norm(s, x, l->attention_norm, (float)m->config.eps), x);
        gm_activation in = {.x = gm_rms_norm(s, x, l->mlp_norm, (float)m->config.eps)};
        x = mlp_apply(s, &l->mlp, &in, gm_swiglu, x);
    }
    return head_apply(s, &pass, x, hidden);
}
