/* taps.c - see taps.h. */
#include "models/taps.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "core/mirror.h"
#include "models/model.h"
#include "ops/ops.h"

typedef enum {
    WIDTH_NONE,
    WIDTH_ROWS,
    WIDTH_HIDDEN,
    WIDTH_HEADS,
    WIDTH_KV_HEADS,
    WIDTH_HEAD,
    WIDTH_EXPERTS,
    WIDTH_EXPERTS_USED,
    WIDTH_VOCAB,
    WIDTH_VALUE_HEADS,
    WIDTH_VALUE,
    WIDTH_STATE_VALUE,
    WIDTH_STATE_KEY,
} tap_width;
static const struct {
    const char *name;
    uint32_t has;
    bool edit;
    tap_width first, second;
} points[] = {
#define TAP(point, name, has, edit, first, second) {name, has, edit, WIDTH_##first, WIDTH_##second},
#include "models/taps.def"
#undef TAP
};

/* ---- names and shapes ---- */
static int64_t width_of(const gm_config *c, const gm_layer_config *l, tap_width width, int64_t n) {
    switch (width) {
    case WIDTH_NONE: return 1;
    case WIDTH_ROWS: return n;
    case WIDTH_HIDDEN: return c->hidden;
    case WIDTH_HEADS: return l->n_heads;
    case WIDTH_KV_HEADS: return l->n_kv_heads;
    case WIDTH_HEAD: return l->head_dim;
    case WIDTH_EXPERTS: return c->n_experts;
    case WIDTH_EXPERTS_USED: return c->n_experts_used;
    case WIDTH_VOCAB: return c->vocab;
    case WIDTH_VALUE_HEADS: return l->state_heads;
    case WIDTH_VALUE:
    case WIDTH_STATE_VALUE: return l->state_value;
    case WIDTH_STATE_KEY: return l->state_key;
    }
    return 0;
}

int64_t gm_model_activations(const gm_model *m) { return (m->config.n_layers + 1) * GM_TAP_POINTS; }

bool gm_model_activation(const gm_model *m, int64_t i, int64_t n, gm_activation_info *out) {
    const gm_config *c = &m->config;
    if (i < 0 || i >= gm_model_activations(m))
        return false;
    const int64_t layer = tap_layer(i);
    const gm_tap_point point = tap_point(i);
    const gm_layer_config *l = layer < 0 ? NULL : &c->layers[layer];
    if (!l != (points[point].name[0] != '.') || (l && (l->has & points[point].has) != points[point].has))
        return false;
    *out = (gm_activation_info){.ndim = points[point].second == WIDTH_NONE ? 2 : 3,
                                .dtype = GM_FLOAT32,
                                .editable = points[point].edit,
                                .source = -1};
    if (l)
        snprintf(out->name, sizeof out->name, "layers.%lld%s", (long long)layer, points[point].name);
    else
        snprintf(out->name, sizeof out->name, "%s", points[point].name);
    out->shape[0] = n;
    if (point == TAP_ATTENTION_WEIGHTS)
        out->shape[0] = l->n_heads;
    else if (point == TAP_STATE)
        out->shape[0] = l->state_heads;
    else if (point == TAP_ROUTER_IDS)
        out->dtype = GM_INT32;
    out->shape[1] = width_of(c, l, points[point].first, n);
    out->shape[2] = width_of(c, l, points[point].second, n);
    if (l && (l->has & HAS_ATTENTION))
        out->source = l->source;
    return true;
}

/* ---- requests ---- */
static gm_status check_edit(const gm_model *m, const gm_edit *e) {
    gm_activation_info info;
    if (!gm_model_activation(m, e->activation, 1, &info))
        return gm_fail(GM_EINDEX, "edit: the model has no activation %lld, expected 0 to %lld",
                       (long long)e->activation, (long long)gm_model_activations(m) - 1);
    if (!info.editable)
        return gm_fail(GM_EVALUE, "edit: %s can be read, not changed", info.name);
    if (e->from < 0 || e->to < e->from)
        return gm_fail(GM_EVALUE, "edit: %s from position %lld to %lld, expected 0 or more, in order", info.name,
                       (long long)e->from, (long long)e->to);
    const gm_array *v = e->value;
    int64_t width = info.shape[1] * info.shape[2];
    bool fits = v->dtype == GM_FLOAT32 && (v->ndim == 1 || v->ndim == 2) && v->shape[v->ndim - 1] == width;
    if (fits && v->ndim == 2)
        fits = v->shape[0] > 0 && e->to - e->from == v->shape[0];
    if (!fits) {
        char text[128];
        array_text(v, text);
        return gm_fail(GM_ESHAPE,
                       "edit: the value for %s is %s, expected float32(%lld), or a row of that for each "
                       "position",
                       info.name, text, (long long)width);
    }
    return GM_OK;
}

gm_status taps_new(const gm_model *m, const int64_t *reads, size_t n_reads, const gm_edit *edits, size_t n_edits,
                   gm_taps **out) {
    *out = NULL;
    gm_activation_info info;
    if (n_reads > INT32_MAX / 2 || n_edits > INT32_MAX / 2)
        return gm_fail(GM_EVALUE, "inspect: got %zu activations and %zu edits, expected at most %d of each", n_reads,
                       n_edits, INT32_MAX / 2);
    for (size_t i = 0; i < n_reads; i++)
        if (!gm_model_activation(m, reads[i], 1, &info))
            return gm_fail(GM_EINDEX, "inspect: the model has no activation %lld, expected 0 to %lld",
                           (long long)reads[i], (long long)gm_model_activations(m) - 1);
    for (size_t i = 0; i < n_edits; i++)
        GM_TRY(check_edit(m, &edits[i]));
    gm_taps *t = memory_zeroed(sizeof *t);
    int64_t *numbers = memory_array(n_reads + 1, sizeof *numbers);
    gm_edit *copies = memory_array(n_edits + 1, sizeof *copies);
    gm_array **read = memory_zeroed((n_reads + 1) * sizeof *read);
    gm_array **keys = memory_zeroed((size_t)m->config.n_layers * sizeof *keys);
    if (!t || !numbers || !copies || !read || !keys) {
        memory_free(t);
        memory_free(numbers);
        memory_free(copies);
        memory_free(read);
        memory_free(keys);
        return error_code();
    }
    *t = (gm_taps){.reads = numbers,
                   .read = read,
                   .n_reads = (int)n_reads,
                   .edits = copies,
                   .n_edits = (int)n_edits,
                   .keys = keys};
    for (size_t i = 0; i < n_reads; i++) {
        const gm_tap_point point = tap_point(reads[i]);
        numbers[i] = reads[i];
        t->rotated |= point == TAP_Q_ROTATED || point == TAP_K_ROTATED || point == TAP_ATTENTION_WEIGHTS;
    }
    for (size_t i = 0; i < n_edits; i++) {
        copies[i] = edits[i];
        gm_retain(copies[i].value);
    }
    *out = t;
    return GM_OK;
}

void taps_release(gm_taps *t) {
    for (int i = 0; i < t->n_reads; i++) {
        gm_release(t->read[i]);
        t->read[i] = NULL;
    }
}

void taps_free(gm_taps *t) {
    if (!t)
        return;
    taps_release(t);
    for (int i = 0; i < t->n_edits; i++)
        gm_release(t->edits[i].value);
    memory_free((void *)t->reads);
    memory_free((void *)t->edits);
    memory_free(t->read);
    memory_free(t->keys);
    memory_free(t);
}

bool taps_has(const gm_taps *t, int64_t layer, gm_tap_point point) {
    const int64_t number = tap_number(layer, point);
    for (int i = 0; t && i < t->n_reads; i++)
        if (t->reads[i] == number)
            return true;
    for (int i = 0; t && i < t->n_edits; i++)
        if (t->edits[i].activation == number)
            return true;
    return false;
}

/* ---- edits ---- */
static gm_array *position(gm_scope *s, int64_t at) {
    return scalar_array(s, (double)(at > INT32_MAX ? INT32_MAX : at), GM_INT32);
}

static gm_array *edit(gm_scope *s, const gm_edit *e, gm_array *x, gm_array *positions) {
    const int64_t n = x->shape[0];
    gm_array *concerned = gm_greater_equal(s, positions, position(s, e->from)), *value = e->value;
    if (e->to < INT32_MAX)
        concerned = gm_logical_and(s, concerned, gm_less(s, positions, position(s, e->to)));
    concerned = gm_reshape(s, concerned, 2, (int64_t[]){n, 1});
    if (value->ndim == 2) {
        gm_array *row = gm_subtract(s, positions, position(s, e->from));
        row = gm_clip(s, row, position(s, 0), position(s, value->shape[0] - 1));
        value = gm_take(s, value, row, 0);
    } else {
        value = gm_reshape(s, value, 2, (int64_t[]){1, value->size});
    }
    if (e->replaces)
        return gm_where(s, concerned, value, x);
    gm_array *counts = gm_not_equal(s, value, scalar_array(s, 0, GM_FLOAT32)); /* -0 + 0 is another bit pattern */
    return gm_where(s, gm_logical_and(s, concerned, counts), gm_add(s, x, value), x);
}

gm_array *taps_apply(gm_scope *s, gm_taps *t, int64_t layer, gm_tap_point point, gm_array *x, gm_array *positions) {
    const int64_t number = tap_number(layer, point);
    for (int i = 0; x && i < t->n_edits; i++)
        if (t->edits[i].activation == number)
            x = edit(s, &t->edits[i], x, positions);
    for (int i = 0; x && i < t->n_reads; i++)
        if (t->reads[i] == number) {
            gm_array *contiguous = gm_contiguous(s, x);
            if (!contiguous)
                return NULL;
            gm_release(t->read[i]);
            t->read[i] = gm_retain(contiguous);
        }
    return x;
}

gm_array *taps_value(gm_scope *s, const gm_array *read, const gm_activation_info *info) {
    gm_array *value = array_new(s, info->dtype, info->ndim, info->shape);
    return value && array_read(read, array_ptr(value)) == GM_OK ? value : NULL;
}

/* ---- inside attention ---- */
static gm_array *part(gm_scope *s, gm_array *x, int64_t from, int64_t to) {
    return gm_slice(s, x, (int64_t[]){0, 0, from}, (int64_t[]){x->shape[0], x->shape[1], to}, (int64_t[]){1, 1, 1});
}

gm_array *taps_rotate(gm_scope *s, gm_array *x, gm_array *angles, int64_t head_dim) {
    if (!x || !angles)
        return NULL;
    const int64_t n = x->shape[0], width = x->shape[1], half = angles->shape[2];
    gm_array *heads = gm_reshape(s, x, 3, (int64_t[]){n, width / head_dim, head_dim}), *cos_sin[2];
    for (int64_t i = 0; i < 2; i++)
        cos_sin[i] = gm_slice(s, angles, (int64_t[]){0, i, 0}, (int64_t[]){n, i + 1, half}, (int64_t[]){1, 1, 1});
    if (!heads)
        return NULL;
    gm_array *a = part(s, heads, 0, half), *b = part(s, heads, half, 2 * half);
    gm_array *all[3] = {gm_subtract(s, gm_multiply(s, a, cos_sin[0]), gm_multiply(s, b, cos_sin[1])),
                        gm_add(s, gm_multiply(s, b, cos_sin[0]), gm_multiply(s, a, cos_sin[1])),
                        2 * half < head_dim ? part(s, heads, 2 * half, head_dim) : GM_NONE};
    gm_array *joined = gm_concatenate(s, all, 2 * half < head_dim ? 3 : 2, 2);
    return gm_reshape(s, joined, 2, (int64_t[]){n, width});
}

gm_array *taps_weights(gm_scope *s, gm_array *q, gm_array *k, gm_array *sinks, gm_array *positions,
                       const gm_attention_spec *spec) {
    if (!q || !k)
        return NULL;
    const int64_t n = q->shape[0], heads = spec->n_heads, kv = spec->n_kv_heads, d = spec->head_dim;
    q = gm_transpose(s, gm_reshape(s, q, 3, (int64_t[]){n, heads, d}), 3, (int[]){1, 0, 2});
    q = gm_reshape(s, q, 4, (int64_t[]){kv, heads / kv, n, d});
    k = gm_transpose(s, gm_reshape(s, k, 3, (int64_t[]){n, kv, d}), 3, (int[]){1, 2, 0});
    k = gm_reshape(s, k, 4, (int64_t[]){kv, 1, d, n});
    gm_array *scores = gm_reshape(s, gm_matmul(s, q, k), 3, (int64_t[]){heads, n, n});
    scores = gm_multiply(s, scores, scalar_array(s, (double)spec->scale, GM_FLOAT32));
    if (spec->softcap > 0)
        scores = gm_softcap(s, scores, spec->softcap);
    gm_array *at = gm_reshape(s, positions, 2, (int64_t[]){n, 1});
    gm_array *key = gm_reshape(s, positions, 2, (int64_t[]){1, n});
    gm_array *seen = gm_less_equal(s, key, at);
    if (spec->window > 0)
        seen = gm_logical_and(s, seen, gm_greater(s, key, gm_subtract(s, at, position(s, spec->window))));
    scores = gm_where(s, seen, scores, scalar_array(s, -INFINITY, GM_FLOAT32));
    if (array_is_none(sinks))
        return gm_softmax(s, scores, 1, (int[]){-1});
    gm_array *sink = gm_reshape(s, sinks, 3, (int64_t[]){heads, 1, 1});
    gm_array *both[2] = {scores, gm_broadcast_to(s, sink, 3, (int64_t[]){heads, n, 1})};
    gm_array *weights = gm_softmax(s, gm_concatenate(s, both, 2, 2), 1, (int[]){-1});
    if (!weights)
        return NULL;
    return part(s, weights, 0, n);
}
