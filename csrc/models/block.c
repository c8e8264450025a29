/* block.c - see block.h. */
#include "models/block.h"
#include <string.h>
#include "core/device.h"
#include "ops/ops.h"

gm_array *pass_angles(gm_scope *s, gm_pass *p, gm_layer_kind kind) {
    int i = kind == LAYER_SLIDING ? ROPE_SLIDING : ROPE_FULL;
    if (!p->angles[i])
        p->angles[i] = gm_rope_angles(s, p->batch->positions, p->model->inv_freq[i], p->model->rope_factor[i]);
    return p->angles[i];
}

gm_array *pass_layer(gm_scope *s, gm_pass *p, int64_t i, gm_array *x) {
    const int number = p->model->config.layers[i].device;
    if (p->batch->there && number == p->model->device) {
        p->batch = p->batch->there;
        memset(p->angles, 0, sizeof p->angles);
        device_enter(number);
    }
    return pass_tap(s, p, i, TAP_INPUT, x);
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

gm_activation pass_made(gm_scope *s, gm_pass *p, gm_array *x, gm_array *norm) {
    gm_activation a = {.made = x, .norm = norm, .eps = (float)p->model->config.eps};
    if (p->batch->training || !device_contracts(device_current())->makes_rows)
        activation_rows(s, &a);
    return a;
}

/* Repeats what attention computes inside its op in separate ops, for taps to read. */
static bool look_inside(gm_scope *s, gm_pass *p, int64_t i, const gm_attention_inputs *in,
                        const gm_attention_spec *spec) {
    const gm_taps *taps = p->batch->taps;
    const int source = p->model->config.layers[i].source, kv_type = p->model->layout.kv_type;
    gm_array *q = pass_tap(s, p, i, TAP_Q_ROTATED, taps_rotate(s, in->q, in->angles, spec->head_dim));
    if (in->k && !array_is_none(in->k))
        taps->keys[i] = pass_tap(s, p, i, TAP_K_ROTATED, taps_rotate(s, in->k, in->angles, spec->head_dim));
    gm_array *keys = taps->keys[source];
    if (keys && (kv_type == GM_FLOAT16 || kv_type == GM_BFLOAT16)) /* as they are in the cache */
        keys = gm_astype(s, gm_astype(s, keys, (gm_dtype)kv_type), GM_FLOAT32);
    if (!taps_has(taps, i, TAP_ATTENTION_WEIGHTS))
        return q && keys;
    gm_array *weights = taps_weights(s, q, keys, in->sinks, p->batch->positions, spec);
    return pass_tap(s, p, i, TAP_ATTENTION_WEIGHTS, weights) != NULL;
}

/* What attention over caches computes, as ops that have gradients. */
static gm_array *training_attention(gm_scope *s, gm_pass *p, int64_t i, const gm_attention_inputs *in,
                                    const gm_attention_spec *spec) {
    const int source = p->model->config.layers[i].source;
    gm_training_rows *t = p->batch->training;
    if (!array_is_none(in->k)) {
        t->keys[i] = gm_rotate_rows(s, in->k, in->angles, spec->head_dim);
        t->values[i] = in->v;
    }
    const gm_attention_inputs rotated = {.q = gm_rotate_rows(s, in->q, in->angles, spec->head_dim),
                                         .k = t->keys[source],
                                         .v = t->values[source],
                                         .angles = GM_NONE,
                                         .sinks = in->sinks};
    gm_attention_spec own = *spec;
    own.rounded = t->rounded;
    return gm_sequence_attention(s, &rotated, t->starts, &own);
}

/* One half of each head of x [n, 2 * width]: float32 [n, width]. */
static gm_array *half_of_heads(gm_scope *s, gm_array *x, int64_t half, int64_t head_dim) {
    if (!x)
        return NULL;
    const int64_t n = x->shape[0], width = x->shape[1] / 2, heads = n * width / head_dim;
    gm_array *pairs = gm_reshape(s, x, 3, (int64_t[]){heads, 2, head_dim});
    pairs = gm_slice(s, pairs, (int64_t[]){0, half, 0}, (int64_t[]){heads, half + 1, head_dim}, (int64_t[]){1, 1, 1});
    return gm_reshape(s, pairs, 2, (int64_t[]){n, width});
}

/* Whether attention itself norms each head of queries and keys: nobody else sees these, and the device is for it. */
static bool turns_normed(const gm_pass *p, const gm_layer_config *l, const attention_weights *w) {
    return !p->batch->training && !p->batch->taps && device_contracts(device_current())->makes_rows &&
           (!w->q_norm || w->q_norm->size == l->head_dim) && (!w->k_norm || w->k_norm->size == l->head_dim);
}

gm_array *attention_mix(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_activation *x,
                        attention_form form) {
    const gm_config *c = &p->model->config;
    const gm_layer_config *l = &c->layers[i];
    gm_array *given[3], *k = GM_NONE, *v = GM_NONE;
    const int n = !(l->has & HAS_KV) ? 1 : w->v.weight ? 3 : 2;
    linear_apply_all(s, (const gm_linear *const[]){&w->q, &w->k, &w->v}, n, x, given);
    gm_array *q = form.gate ? half_of_heads(s, given[0], 0, l->head_dim) : given[0];
    if (form.gate)
        *form.gate = half_of_heads(s, given[0], 1, l->head_dim);
    const bool turned = turns_normed(p, l, w); /* heads are normed where they are turned */
    if (w->q_norm && !turned)
        q = norm_apply(s, q, w->q_norm, w->q_norm->size, c->eps);
    if (l->has & HAS_KV) {
        k = given[1];
        v = given[n - 1];
        if (form.normed_values)
            v = norm_apply(s, v, NULL, l->head_dim, c->eps);
        if (w->k_norm && !turned)
            k = norm_apply(s, k, w->k_norm, w->k_norm->size, c->eps);
        k = pass_tap(s, p, i, TAP_K, k);
        v = pass_tap(s, p, i, TAP_V, v);
    }
    q = pass_tap(s, p, i, TAP_Q, q);
    const gm_attention_spec spec = {.slot = l->slot,
                                    .n_heads = (int)l->n_heads,
                                    .n_kv_heads = (int)l->n_kv_heads,
                                    .head_dim = (int)l->head_dim,
                                    .window = (int)p->model->layout.slots[l->slot].window,
                                    .scale = (float)c->attention_scale,
                                    .softcap = (float)c->attention_softcap};
    gm_array *angles = pass_angles(s, p, l->kind), *sinks = w->sinks ? w->sinks : GM_NONE;
    gm_array *q_norm = turned && w->q_norm ? w->q_norm : GM_NONE, *k_norm = turned && w->k_norm ? w->k_norm : GM_NONE;
    const gm_attention_inputs in = {q, k, v, angles, sinks, q_norm, k_norm, (float)c->eps};
    if (p->batch->taps && p->batch->taps->rotated && !look_inside(s, p, i, &in, &spec))
        return NULL;
    gm_array *mixed = p->batch->training ? training_attention(s, p, i, &in, &spec)
                                         : gm_cached_attention(s, &in, p->batch->state, &spec);
    return pass_tap(s, p, i, TAP_ATTENTION, mixed);
}

gm_array *attention_apply(gm_scope *s, gm_pass *p, int64_t i, const attention_weights *w, gm_activation *x,
                          gm_array *residual) {
    gm_activation mixed = pass_made(s, p, attention_mix(s, p, i, w, x, (attention_form){0}), GM_NONE);
    return output_apply(s, p, i, TAP_ATTENTION_OUTPUT, &w->o, &mixed, residual);
}

gm_array *output_apply(gm_scope *s, gm_pass *p, int64_t i, gm_tap_point point, const gm_linear *w, gm_activation *x,
                       gm_array *residual) {
    if (array_is_none(residual) || !taps_has(p->batch->taps, i, point))
        return linear_apply(s, w, x, residual);
    return gm_add(s, residual, pass_tap(s, p, i, point, linear_apply(s, w, x, GM_NONE)));
}

gm_array *mlp_apply(gm_scope *s, const mlp_weights *w, gm_activation *x, bool gelu, gm_array *residual) {
    gm_activation inner = linear_glu(s, &w->gate, &w->up, x, gelu, &w->down);
    return linear_apply(s, &w->down, &inner, residual);
}

gm_array *mlp_output(gm_scope *s, gm_pass *p, int64_t i, const mlp_weights *w, gm_activation *x, bool gelu,
                     gm_array *residual) {
    gm_activation inner = linear_glu(s, &w->gate, &w->up, x, gelu, &w->down);
    return output_apply(s, p, i, TAP_MLP, &w->down, &inner, residual);
}

gm_array *embed_tokens(gm_scope *s, gm_pass *p) {
    gm_array *x = linear_embed(s, &p->model->embedding, p->batch->tokens, (float)p->model->config.embedding_scale);
    return pass_tap(s, p, -1, TAP_EMBEDDING, x);
}

static gm_array *head_logits(gm_scope *s, const gm_model *m, gm_activation *normed) {
    gm_array *logits = linear_apply(s, &m->head, normed, GM_NONE);
    return m->config.final_softcap > 0 ? gm_softcap(s, logits, (float)m->config.final_softcap) : logits;
}

gm_array *head_apply(gm_scope *s, gm_pass *p, gm_array *x, bool hidden) {
    if (hidden)
        return x;
    if (p->batch->logit_rows) {
        x = gm_take(s, x, p->batch->logit_rows, 0);
        p->positions = p->batch->taps ? gm_take(s, p->batch->positions, p->batch->logit_rows, 0) : NULL;
    }
    gm_activation out = pass_made(s, p, x, p->model->norm);
    if (p->batch->taps)
        out.x = pass_tap(s, p, -1, TAP_FINAL_NORM, activation_rows(s, &out));
    return pass_tap(s, p, -1, TAP_LOGITS, head_logits(s, p->model, &out));
}

static gm_array *apply_head(gm_scope *s, gm_model *m, gm_array *x) {
    if (!x)
        return NULL;
    if (x->dtype != GM_FLOAT32 || x->ndim != 2 || x->shape[1] != m->config.hidden) {
        char text[128];
        array_text(x, text);
        return gm_fail(GM_ESHAPE, "head: the residual stream is %s, expected float32(n,%lld)", text,
                       (long long)m->config.hidden),
               NULL;
    }
    gm_activation out = {.x = gm_rms_norm(s, x, m->norm, (float)m->config.eps)};
    return head_logits(s, m, &out);
}

gm_array *gm_model_head(gm_scope *s, gm_model *m, gm_array *x) {
    const int before = device_enter(m->device);
    x = apply_head(s, m, x);
    device_enter(before);
    return x;
}

gm_array *experts_apply(gm_scope *s, gm_pass *p, int64_t i, const expert_weights *w, expert_inputs in,
                        expert_activation act) {
    const gm_config *c = &p->model->config;
    gm_array *ids = NULL, *weights = NULL, *logits = linear_apply(s, &w->router, in.route, GM_NONE);
    logits = pass_tap(s, p, i, TAP_ROUTER_LOGITS, logits);
    gm_route(s, logits, (int)c->n_experts_used, c->normalise_experts, in.scale, &ids, &weights);
    ids = pass_tap(s, p, i, TAP_ROUTER_IDS, ids);
    weights = pass_tap(s, p, i, TAP_ROUTER_WEIGHTS, weights);
    return moe_apply(s, in.x, ids, weights, (moe_stacks){&w->gate, &w->up, &w->down}, act);
}

gm_array *dense_forward(gm_scope *s, const gm_model *m, const gm_batch *b, bool hidden) {
    gm_pass pass = {.model = m, .batch = b};
    gm_array *x = embed_tokens(s, &pass);
    for (int64_t i = 0; i < m->config.n_layers; i++) {
        const dense_layer *l = model_layer(m, i);
        x = pass_layer(s, &pass, i, x);
        gm_activation in = pass_made(s, &pass, x, l->attention_norm);
        x = attention_apply(s, &pass, i, &l->attention, &in, x);
        in = pass_made(s, &pass, x, l->mlp_norm);
        x = mlp_output(s, &pass, i, &l->mlp, &in, false, x);
        x = pass_tap(s, &pass, i, TAP_RESIDUAL, x);
    }
    return head_apply(s, &pass, x, hidden);
}
