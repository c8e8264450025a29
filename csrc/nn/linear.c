/* linear.c - see linear.h. */
#include "nn/linear.h"
#include "core/device.h"
#include "ops/ops.h"

static gm_array *or_none(gm_array *x) { return x ? x : GM_NONE; }

gm_array *activation_rows(gm_scope *s, gm_activation *x) {
    if (!x->x && x->made)
        x->x = array_is_none(x->norm) ? x->made : gm_rms_norm(s, x->made, x->norm, x->eps);
    return x->x;
}

/* x as a packed layer reads it. */
static gm_array *rows_for(gm_scope *s, const gm_linear *l, gm_activation *x) {
    if (l->int8)
        return x->int8 ? x->int8 : (x->int8 = gm_quantize_activations(s, activation_rows(s, x)));
    if (l->bf16 || (x->bf16 && !x->x))
        return x->bf16 ? x->bf16 : (x->bf16 = gm_astype(s, activation_rows(s, x), GM_BFLOAT16));
    return activation_rows(s, x);
}

/* The low-rank terms of the layer over x, in float32, and what is added to them. */
static gm_array *terms_of(gm_scope *s, const gm_linear *l, gm_array *x, gm_array *added) {
    for (int i = 0; i < l->n_terms && added; i++) {
        const gm_low_rank *t = &l->terms[i];
        gm_array *seen = t->keys ? gm_sequence_dropout(s, x, t->dropout, t->salt, t->keys, t->starts) : x;
        gm_array *low = gm_sequence_linear(s, seen, gm_astype(s, t->a, GM_FLOAT32), GM_NONE, t->groups,
                                           or_none(t->sum_a));
        low = gm_multiply(s, low, scalar_array(s, (double)t->scale, GM_FLOAT32));
        added = gm_sequence_linear(s, low, gm_astype(s, t->b, GM_FLOAT32), added, t->groups, or_none(t->sum_b));
    }
    return added;
}

/* A vector of numbers [rows, 1] for each of n rows, so that its gradient is summed group by group. */
static gm_array *for_each_row(gm_scope *s, gm_array *column, int64_t n, gm_array *groups, gm_array *sum) {
    gm_array *ones = gm_full(s, 2, (int64_t[]){n, 1}, scalar_array(s, 1, GM_FLOAT32), GM_FLOAT32);
    return gm_sequence_linear(s, ones, column, GM_NONE, groups, or_none(sum));
}

/* What a matrix gives that is trained itself. */
static gm_array *whole_product(gm_scope *s, const gm_whole *w, gm_array *x, gm_array *residual) {
    gm_array *y = x ? gm_sequence_linear(s, x, w->weight, residual, w->groups, or_none(w->sum_weight)) : NULL;
    if (!y || !w->bias)
        return y;
    return gm_add(s, y, for_each_row(s, w->bias, y->shape[0], w->groups, w->sum_bias));
}

/* Whether the layer has one term that is rounded with its matrix: what several terms give, those of many ranks and
 * those that read less of x is float32. */
static bool is_rounded_term(const gm_linear *l) {
    return l->rounded && l->n_terms == 1 && !l->terms->keys && l->terms->a->shape[0] <= GM_ROUNDED_RANK;
}

/* What the matrix and the terms of all rows give. */
static gm_array *product(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *bias, gm_array *residual) {
    if (is_rounded_term(l)) {
        const gm_low_rank *t = l->terms;
        const gm_rounded_inputs given = {.x = activation_rows(s, x),
                                         .weight = l->weight,
                                         .bias = bias,
                                         .residual = residual,
                                         .a = gm_astype(s, t->a, GM_FLOAT32),
                                         .b = gm_astype(s, t->b, GM_FLOAT32),
                                         .sum_a = or_none(t->sum_a),
                                         .sum_b = or_none(t->sum_b),
                                         .starts = t->groups};
        return gm_rounded_linear(s, &given, t->scale);
    }
    if (l->n_terms)
        residual = terms_of(s, l, activation_rows(s, x), residual);
    if (l->rounded)
        return gm_rounded_matmul(s, activation_rows(s, x), l->weight, bias, residual);
    return gm_packed_matmul(s, rows_for(s, l, x), l->weight, bias, residual);
}

/* From the lengths of W's rows w, as |w + scale * t|^2 is |w|^2 + scale * t . (2 w + scale * t), so that W is read
 * packed. It is no function of what is trained: as those who proposed it do, gradients take it for a constant. */
gm_array *linear_inverse_lengths(gm_scope *s, gm_array *weight, const gm_low_rank *t) {
    gm_array *a = gm_stop_gradient(s, gm_astype(s, t->a, GM_FLOAT32));
    gm_array *b = gm_transpose(s, gm_stop_gradient(s, gm_astype(s, t->b, GM_FLOAT32)), 2, (int[]){1, 0});
    gm_array *scale = scalar_array(s, (double)t->scale, GM_FLOAT32), *two = scalar_array(s, 2, GM_FLOAT32);
    if (!a || !b)
        return NULL;
    gm_array *across = gm_packed_matmul(s, a, weight, GM_NONE, GM_NONE); /* A W^T, [rank, rows] */
    gm_array *gram = gm_matmul(s, a, gm_transpose(s, a, 2, (int[]){1, 0}));
    gm_array *inner = gm_add(s, gm_multiply(s, two, across), gm_multiply(s, scale, gm_matmul(s, gram, b)));
    gm_array *change = gm_multiply(s, scale, gm_sum(s, gm_multiply(s, b, inner), 1, (const int[]){0}, false));
    return gm_rsqrt(s, gm_add(s, t->squares, change));
}

/* Each output of matrix and term brought to its magnitude; bias and residual are as they are. */
static gm_array *brought_to_length(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    const gm_low_rank *t = &l->terms[0];
    gm_array *inverse = linear_inverse_lengths(s, l->weight, t), *y = product(s, l, x, GM_NONE, GM_NONE);
    if (!inverse || !y)
        return NULL;
    gm_array *magnitude = for_each_row(s, t->magnitude, y->shape[0], t->groups, t->sum_magnitude);
    y = gm_multiply(s, gm_multiply(s, y, inverse), magnitude);
    if (l->bias)
        y = gm_add(s, y, l->bias);
    return array_is_none(residual) ? y : gm_add(s, y, residual);
}

static gm_array *apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    if (l->whole)
        return whole_product(s, l->whole, activation_rows(s, x), terms_of(s, l, activation_rows(s, x), residual));
    if (l->n_terms && l->terms[0].magnitude)
        return brought_to_length(s, l, x, residual);
    return product(s, l, x, l->bias ? l->bias : GM_NONE, residual);
}

/* The sum of the stretches of n terms of the same rows, float32 [width]; NULL after a failure. */
static gm_array *stretch_of(gm_scope *s, const low_rank_term *terms, int n) {
    gm_array *sum = GM_NONE;
    for (int i = 0; i < n && sum; i++) {
        if (!terms[i].stretch)
            continue;
        gm_array *one = gm_multiply(s, terms[i].stretch, scalar_array(s, (double)terms[i].share, GM_FLOAT32));
        sum = array_is_none(sum) ? one : gm_add(s, sum, one);
    }
    return sum;
}

/* y with the stretch of n terms of the same rows: of what the matrix alone gave, bias and residual are as they are. */
static gm_array *stretched(gm_scope *s, const gm_linear *l, gm_array *y, gm_array *residual, const low_rank_term *terms,
                           int n) {
    const int64_t start[2] = {terms->first, 0}, stop[2] = {terms->first + terms->rows, y->shape[1]}, step[2] = {1, 1};
    gm_array *stretch = stretch_of(s, terms, n);
    if (!stretch || array_is_none(stretch))
        return stretch ? y : NULL;
    gm_array *rows = gm_slice(s, y, start, stop, step), *alone = rows;
    if (!array_is_none(residual))
        alone = gm_subtract(s, alone, gm_slice(s, residual, start, stop, step));
    if (l->bias)
        alone = gm_subtract(s, alone, l->bias);
    rows = gm_add(s, rows, gm_multiply(s, alone, stretch));
    return terms->rows == y->shape[0] ? rows : gm_slice_update(s, y, rows, start, stop, step);
}

/* y with the lengths that terms of single rows of the pass bring matrix and term to. */
static gm_array *brought_by_row_terms(gm_scope *s, const gm_linear *l, gm_array *y, gm_array *residual) {
    for (int i = 0, end; i < l->n_row_terms && y; i = end) {
        for (end = i + 1; end < l->n_row_terms && l->row_terms[end].first == l->row_terms[i].first;)
            end++;
        y = stretched(s, l, y, residual, &l->row_terms[i], end - i);
    }
    return y;
}

/* Adds the terms of single rows to what the layers give for x. */
static void add_row_terms(gm_scope *s, const gm_linear *const *layers, int n, gm_activation *x, gm_array **y) {
    const low_rank_term *terms[LINEAR_MOST];
    int n_terms[LINEAR_MOST];
    bool any = false;
    for (int i = 0; i < n; i++) {
        terms[i] = layers[i]->row_terms;
        n_terms[i] = layers[i]->n_row_terms;
        any |= n_terms[i] > 0;
    }
    if (any)
        low_rank_add(s, activation_rows(s, x), (low_rank_layers){terms, n_terms, n}, y);
}

/* Whether it reads float32 rows besides what its packed matrix does. */
static bool has_terms(const gm_linear *l) { return l->n_terms || l->n_row_terms || l->whole; }

/* Whether packed layers alone read x, in one form, and make it themselves. */
static bool make_rows(const gm_linear *const *layers, int n, const gm_activation *x) {
    bool do_so = x->made && !x->x && !x->int8 && !x->bf16;
    for (int i = 0; i < n; i++)
        do_so = do_so && !has_terms(layers[i]) && !layers[i]->rounded && layers[i]->int8 == layers[0]->int8 &&
                layers[i]->bf16 == layers[0]->bf16;
    return do_so;
}

static gm_made_inputs made_inputs(const gm_linear *l, const gm_activation *x) {
    return (gm_made_inputs){x->made, x->norm, x->eps, l->int8 ? GM_PACKED : l->bf16 ? GM_BFLOAT16 : GM_FLOAT32};
}

static void made_products(gm_scope *s, const gm_linear *const *layers, int n, gm_activation *x, gm_array *residual,
                          gm_array **y) {
    const gm_made_inputs rows = made_inputs(layers[0], x);
    gm_array *weights[LINEAR_MOST], *biases[LINEAR_MOST];
    for (int i = 0; i < n; i++) {
        weights[i] = layers[i]->weight;
        biases[i] = or_none(layers[i]->bias);
    }
    gm_packed_products(s, &rows, weights, biases, n, residual, y);
}

void linear_apply_all(gm_scope *s, const gm_linear *const *layers, int n, gm_activation *x, gm_array **y) {
    if (make_rows(layers, n, x)) {
        made_products(s, layers, n, x, GM_NONE, y);
        return;
    }
    for (int i = 0; i < n; i++)
        y[i] = brought_by_row_terms(s, layers[i], apply(s, layers[i], x, GM_NONE), GM_NONE);
    add_row_terms(s, layers, n, x, y);
}

gm_array *linear_apply(gm_scope *s, const gm_linear *l, gm_activation *x, gm_array *residual) {
    gm_array *y;
    if (make_rows(&l, 1, x)) {
        made_products(s, &l, 1, x, residual, &y);
        return y;
    }
    y = brought_by_row_terms(s, l, apply(s, l, x, residual), residual);
    add_row_terms(s, &l, 1, x, &y);
    return y;
}

/* Whether a prompt's product with it would round float32 rows to bfloat16: who makes them may do so. */
static bool rounds_rows(const gm_scope *s, const gm_linear *l) {
    return scope_is_prompt(s) && device_contracts(device_current())->rounds_prompts &&
           l->weight->format > GM_QUANT_bf16;
}

gm_activation linear_glu(gm_scope *s, const gm_linear *gate, const gm_linear *up, gm_activation *x, bool gelu,
                         const gm_linear *next) {
    const bool dense = !gate->int8 && (gate->weight->format <= GM_QUANT_bf16 || up->weight->format <= GM_QUANT_bf16);
    const bool alike = gate->int8 == up->int8 && gate->bf16 == up->bf16 &&
                       (!dense || gate->weight->format == up->weight->format);
    if (gate->bias || up->bias || has_terms(gate) || has_terms(up) || gate->rounded || !alike) {
        gm_array *y[2];
        linear_apply_all(s, (const gm_linear *const[]){gate, up}, 2, x, y);
        return (gm_activation){.x = (gelu ? gm_geglu : gm_swiglu)(s, y[0], y[1])};
    }
    const gm_dtype type = has_terms(next)                      ? GM_FLOAT32
                          : next->int8 && !dense               ? GM_PACKED
                          : next->bf16 || rounds_rows(s, next) ? GM_BFLOAT16
                                                               : GM_FLOAT32;
    const gm_made_inputs rows = made_inputs(gate, x);
    gm_array *y = make_rows((const gm_linear *const[]){gate, up}, 2, x)
                      ? gm_made_glu(s, &rows, gate->weight, up->weight, gelu, type)
                      : gm_packed_glu(s, rows_for(s, gate, x), gate->weight, up->weight, gelu, type);
    return type == GM_PACKED     ? (gm_activation){.int8 = y}
           : type == GM_BFLOAT16 ? (gm_activation){.bf16 = y}
                                 : (gm_activation){.x = y};
}

gm_array *linear_embed(gm_scope *s, const gm_linear *l, gm_array *tokens, float scale) {
    if (!l->whole)
        return gm_packed_embedding(s, l->weight, tokens, scale);
    gm_array *x = gm_sequence_embedding(s, l->whole->weight, tokens, or_none(l->whole->sum_weight));
    return scale == 1 ? x : gm_multiply(s, x, scalar_array(s, (double)scale, GM_FLOAT32));
}

int64_t linear_rows(const gm_linear *l) { return l->weight->shape[l->weight->ndim - 2]; }

void linear_clear(gm_linear *l) {
    gm_release(l->weight);
    gm_release(l->bias);
    *l = (gm_linear){0};
}
