/* adapter.c - see adapter.h. */
#include "models/adapter.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <cjson/cJSON.h>
#include "base/checksum.h"
#include "base/grow.h"
#include "base/memory.h"
#include "core/device.h"
#include "models/head_order.h"
#include "ops/ops.h"

typedef struct {
    int64_t weight;    /* the number of the layer's matrix */
    gm_array *a, *b;   /* [rank, k] and [rank, rows] */
    gm_array *stretch; /* float32 [rows]: how much longer than it is each row of the matrix becomes; or NULL */
    float scale;
} placed_term;
struct gm_adapter {
    _Atomic int32_t refs;
    char name[GM_ADAPTER_NAME];
    uint64_t hash; /* of its content */
    int64_t bytes, parameters, least_rank, most_rank;
    size_t n;
    placed_term terms[]; /* by weight */
};
struct model_adapters {
    gm_adapter **all;
    size_t n, capacity;
};

/* Of the lists of all models: it is held for a look or a change, under it nothing else is locked. fork copies a lock in
 * whatever state it is in; nobody may hold it at that moment. */
static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static void fork_prepare(void) { pthread_mutex_lock(&lists); }
static void fork_done(void) { pthread_mutex_unlock(&lists); }
__attribute__((constructor)) static void watch_fork(void) { pthread_atfork(fork_prepare, fork_done, fork_done); }

/* ---- layers by name ---- */
static const gm_model *loaded(const gm_model *m) {
    while (m->base)
        m = m->base;
    return m;
}

/* Where a linear layer is in the model, as a distance that copies have too; false: it is the embedding or the head. */
static bool layer_offset(const gm_model *m, const gm_linear *l, bool *global, size_t *offset) {
    const char *at = (const char *)l;
    const size_t size = (size_t)m->config.n_layers * m->arch->layer_size;
    *global = !(at >= m->layers && at < m->layers + size);
    if (*global && !(m->globals && at >= m->globals && at < m->globals + m->arch->globals_size))
        return false;
    *offset = (size_t)(at - (*global ? m->globals : m->layers));
    return true;
}

/* Whether rows of the layer are looked up by tokens, or it is the head: no terms are added there. */
static bool is_embedding(const gm_model *m, const gm_linear *l) {
    bool global;
    size_t offset;
    if (!layer_offset(m, l, &global, &offset))
        return true;
    for (const gm_weight_field *f = m->arch->globals; global && f && f->name; f++)
        if (f->flags & FIELD_EMBEDDING && f->offset == offset)
            return true;
    return false;
}

static gm_status check_term(const gm_model *m, const gm_adapter_term *t, const gm_linear *l) {
    const gm_array *a = t->a, *b = t->b, *w = l->weight;
    if (w->ndim != 2)
        return gm_fail(GM_EUNSUPPORTED, "adapter: %s is a stack of experts, which has no low-rank terms", t->layer);
    if (is_embedding(m, l))
        return gm_fail(GM_EUNSUPPORTED,
                       "adapter: %s is an embedding or the head, expected a linear layer of the decoder", t->layer);
    if (!isfinite(t->scale))
        return gm_fail(GM_EVALUE, "adapter: the scale of %s is %g, expected a finite number", t->layer,
                       (double)t->scale);
    if (a->ndim == 2 && b->ndim == 2 && dtype_is_float((gm_dtype)a->dtype) && dtype_is_float((gm_dtype)b->dtype) &&
        a->shape[0] == b->shape[1] && a->shape[0] > 0 && a->shape[1] == w->shape[1] && b->shape[0] == w->shape[0])
        return GM_OK;
    char ta[128], tb[128];
    array_text(a, ta);
    array_text(b, tb);
    return gm_fail(
        GM_ESHAPE, "adapter: a is %s and b %s for %s of [%lld, %lld], expected [rank, %lld] and [%lld, rank]", ta, tb,
        t->layer, (long long)w->shape[0], (long long)w->shape[1], (long long)w->shape[1], (long long)w->shape[0]);
}

gm_status adapter_find(const gm_model *m, const gm_adapter_term *t, int64_t *weight) {
    const size_t length = strlen(t->layer);
    int found = 0;
    m = loaded(m);
    for (int64_t i = 0; i < m->n_weights; i++) {
        const gm_named_weight *w = &m->weights[i];
        if (!w->linear || strncmp(w->name, t->layer, length) != 0 || strcmp(w->name + length, ".weight") != 0)
            continue;
        *weight = i;
        found++;
    }
    if (found > 1)
        return gm_fail(GM_EUNSUPPORTED, "adapter: %s is %d layers in one tensor, which have no low-rank terms yet",
                       t->layer, found);
    if (found)
        return check_term(m, t, m->weights[*weight].linear);
    return gm_fail(GM_EVALUE, "adapter: the model has no linear layer named %s", t->layer);
}

gm_status adapter_as_model(gm_scope *s, const gm_model *m, const gm_adapter_term *term, gm_adapter_term *out) {
    *out = *term;
    gm_array **const of_columns[] = {&out->a, &out->sum_a};
    gm_array **const of_rows[] = {&out->b, &out->sum_b, &out->magnitude, &out->squares, &out->sum_magnitude};
    for (size_t i = 0; i < sizeof of_columns / sizeof *of_columns; i++)
        if (*of_columns[i] && !(*of_columns[i] = heads_as_model(s, m, term->layer, *of_columns[i], 1)))
            return error_code();
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        if (*of_rows[i] && !(*of_rows[i] = heads_as_model(s, m, term->layer, *of_rows[i], 0)))
            return error_code();
    return GM_OK;
}

gm_linear *adapter_layer(gm_model *copy, int64_t weight) {
    return model_copy_member(copy, loaded(copy)->weights[weight].linear);
}

/* Whether an array has one float32, or with `any` one number of a floating-point dtype, for each row of the layer. */
static gm_status check_of_rows(const gm_adapter_term *t, const gm_array *x, const char *name, bool any) {
    const bool held = any ? dtype_is_float((gm_dtype)x->dtype) : x->dtype == GM_FLOAT32;
    if (held && x->ndim == 1 && x->shape[0] == t->b->shape[0])
        return GM_OK;
    char text[128];
    array_text(x, text);
    return gm_fail(GM_ESHAPE, "adapter: %s of %s is %s, expected %s(%lld)", name, t->layer, text,
                   any ? "floats " : "float32", (long long)t->b->shape[0]);
}

gm_status adapter_check_magnitude(const gm_adapter_term *t) {
    if (!t->squares)
        return gm_fail(GM_EVALUE, "adapter: %s has magnitudes, and not the squared lengths of its matrix's rows",
                       t->layer);
    GM_TRY(check_of_rows(t, t->magnitude, "the magnitude", true));
    GM_TRY(check_of_rows(t, t->squares, "the squared lengths", false));
    return t->sum_magnitude ? check_of_rows(t, t->sum_magnitude, "the sum of gradients of the magnitude", false)
                            : GM_OK;
}

/* ---- loading ---- */
static void adapter_release(gm_adapter *a) {
    if (!a || atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    for (size_t i = 0; i < a->n; i++) {
        gm_release(a->terms[i].a);
        gm_release(a->terms[i].b);
        gm_release(a->terms[i].stretch);
    }
    memory_free(a);
}

static gm_adapter *adapter_retain(gm_adapter *a) {
    atomic_fetch_add(&a->refs, 1);
    return a;
}

/* The dtype that both are kept in: their own, where it is one that kernels read. */
static gm_dtype kept_dtype(const gm_adapter_term *t) {
    const gm_dtype type = (gm_dtype)t->a->dtype;
    const bool read = type == GM_FLOAT16 || type == GM_BFLOAT16;
    return t->b->dtype == t->a->dtype && read && !t->magnitude ? type : GM_FLOAT32;
}

static uint64_t mixed(uint64_t hash, const void *bytes, size_t n) {
    const uint64_t words[2] = {hash, checksum_of(bytes, n)};
    return checksum_of(words, sizeof words);
}

static size_t array_bytes(const gm_array *a) { return (size_t)a->size * array_item(a); }

/* What is told of an adapter, and its hash: of layers, ranks, dtypes, scales and numbers. */
static void sum_up(const gm_model *m, gm_adapter *a) {
    for (size_t i = 0; i < a->n; i++) {
        const placed_term *t = &a->terms[i];
        const char *name = m->weights[t->weight].name;
        const int64_t rank = t->a->shape[0], kind[2] = {rank, t->a->dtype};
        a->hash = mixed(a->hash, name, strlen(name));
        a->hash = mixed(a->hash, kind, sizeof kind);
        a->hash = mixed(a->hash, &t->scale, sizeof t->scale);
        a->hash = mixed(a->hash, array_ptr(t->a), array_bytes(t->a));
        a->hash = mixed(a->hash, array_ptr(t->b), array_bytes(t->b));
        if (t->stretch)
            a->hash = mixed(a->hash, array_ptr(t->stretch), array_bytes(t->stretch));
        a->bytes += (int64_t)(array_bytes(t->a) + array_bytes(t->b) + (t->stretch ? array_bytes(t->stretch) : 0));
        a->parameters += t->a->size + t->b->size + (t->stretch ? t->stretch->size : 0);
        a->least_rank = i == 0 || rank < a->least_rank ? rank : a->least_rank;
        a->most_rank = rank > a->most_rank ? rank : a->most_rank;
    }
}

/* In the order of the model's weights, terms of one layer as they came. */
static void insert_term(gm_adapter *a, placed_term term) {
    size_t at = a->n++;
    for (; at > 0 && a->terms[at - 1].weight > term.weight; at--)
        a->terms[at] = a->terms[at - 1];
    a->terms[at] = term;
}

/* What brings rows to their magnitudes: each output of b is longer by its factor, the matrix's own by the factor
 * less 1. */
static gm_status bring_to_length(gm_scope *s, const gm_model *m, const gm_adapter_term *t, int64_t weight,
                                 gm_array **turned, gm_array **stretch) {
    const gm_low_rank term = {.a = t->a, .b = t->b, .scale = t->scale, .squares = t->squares};
    gm_array *factor = gm_multiply(s, gm_astype(s, t->magnitude, GM_FLOAT32),
                                   linear_inverse_lengths(s, m->weights[weight].linear->weight, &term));
    *turned = gm_multiply(s, *turned, factor);
    *stretch = gm_subtract(s, factor, scalar_array(s, 1, GM_FLOAT32));
    return *turned && *stretch ? GM_OK : error_code();
}

/* The terms in their places, a and b's transpose still to be computed. */
static gm_status list_terms(gm_scope *s, const gm_model *m, const gm_adapter_term *terms, size_t n, gm_adapter *a) {
    for (size_t i = 0; i < n; i++) {
        gm_adapter_term as_model, *const t = &as_model;
        const gm_dtype type = kept_dtype(&terms[i]);
        placed_term term = {.scale = terms[i].scale};
        GM_TRY(adapter_find(m, &terms[i], &term.weight));
        if (terms[i].magnitude)
            GM_TRY(adapter_check_magnitude(&terms[i]));
        GM_TRY(adapter_as_model(s, m, &terms[i], t));
        gm_array *turned = gm_transpose(s, gm_astype(s, t->b, type), 2, (int[]){1, 0}), *stretch = NULL;
        if (t->magnitude)
            GM_TRY(bring_to_length(s, m, t, term.weight, &turned, &stretch));
        term.a = gm_contiguous(s, gm_astype(s, t->a, type));
        term.b = gm_contiguous(s, turned);
        if (!term.a || !term.b)
            return error_code();
        gm_retain(term.a);
        gm_retain(term.b);
        term.stretch = gm_retain(stretch);
        insert_term(a, term);
    }
    return GM_OK;
}

/* A copy in memory of its own takes the place of an evaluated array. */
static gm_status copy_array(gm_scope *s, gm_array **array, uint8_t work) {
    gm_array *host = gm_array_host(s, *array);
    gm_array *own = host ? gm_array_from(s, (gm_dtype)host->dtype, host->ndim, host->shape, array_ptr(host)) : NULL;
    if (!own)
        return error_code();
    gm_release(*array);
    *array = gm_retain(own);
    own->work = work;
    return GM_OK;
}

/* Everything in one evaluation: it may have to wait for a pass. */
static gm_status compute_terms(gm_scope *s, const gm_model *m, gm_adapter *a) {
    gm_array **all = memory_array(3 * a->n, sizeof *all);
    size_t n = 0;
    if (!all)
        return error_code();
    for (size_t i = 0; i < a->n; i++) {
        all[n++] = a->terms[i].a;
        all[n++] = a->terms[i].b;
        if (a->terms[i].stretch)
            all[n++] = a->terms[i].stretch;
    }
    gm_status status = gm_eval(all, n);
    memory_free(all);
    for (size_t i = 0; i < a->n && status == GM_OK; i++) {
        const uint8_t work = m->weights[a->terms[i].weight].linear->weight->work;
        status = copy_array(s, &a->terms[i].a, work);
        if (status == GM_OK)
            status = copy_array(s, &a->terms[i].b, work);
        if (status == GM_OK && a->terms[i].stretch)
            status = copy_array(s, &a->terms[i].stretch, work);
    }
    return status;
}

static gm_status fill(const gm_model *m, const gm_adapter_term *terms, size_t n, gm_adapter *a) {
    gm_scope *s = gm_scope_open();
    if (!s)
        return GM_ENOMEM;
    const int before = device_enter(0); /* where its model is */
    gm_status status = list_terms(s, m, terms, n, a);
    if (status == GM_OK)
        status = compute_terms(s, m, a);
    device_enter(before);
    gm_scope_close(s);
    if (status == GM_OK)
        sum_up(m, a);
    return status;
}

/* ---- those of a model ---- */
gm_status adapters_new(struct model_adapters **out) {
    *out = memory_zeroed(sizeof **out);
    return *out ? GM_OK : GM_ENOMEM;
}

void adapters_free(struct model_adapters *adapters) {
    if (!adapters)
        return;
    for (size_t i = 0; i < adapters->n; i++)
        adapter_release(adapters->all[i]);
    memory_free(adapters->all);
    memory_free(adapters);
}

/* With the lock held: its place among all, or their number. */
static size_t find_name(const struct model_adapters *adapters, const char *name) {
    size_t i = 0;
    while (i < adapters->n && strcmp(adapters->all[i]->name, name) != 0)
        i++;
    return i;
}

static gm_status insert(struct model_adapters *adapters, gm_adapter *a) {
    pthread_mutex_lock(&lists);
    gm_status status = GM_OK;
    if (find_name(adapters, a->name) < adapters->n)
        status = gm_fail(GM_EVALUE, "adapter: %s is loaded already; unload it first, or give this one another name",
                         a->name);
    else
        status = grow_array(&adapters->all, adapters->n, &adapters->capacity, 1, sizeof *adapters->all);
    if (status == GM_OK)
        adapters->all[adapters->n++] = a;
    pthread_mutex_unlock(&lists);
    return status;
}

gm_status gm_model_load_adapter(gm_model *m, const char *name, const gm_adapter_term *terms, size_t n) {
    const size_t length = strlen(name);
    if (length < 1 || length >= GM_ADAPTER_NAME)
        return gm_fail(GM_EVALUE, "adapter: a name of %zu bytes, expected 1 to %d", length, GM_ADAPTER_NAME - 1);
    if (m->device)
        return gm_fail(GM_EUNSUPPORTED, "adapter: the model is on gpu %d, which runs none; load it with device=\"cpu\"",
                       m->device - 1);
    if (n < 1)
        return gm_fail(GM_EVALUE, "adapter: %s has no terms, expected one at least", name);
    gm_adapter *a = memory_zeroed(sizeof *a + n * sizeof *a->terms);
    if (!a)
        return GM_ENOMEM;
    atomic_init(&a->refs, 1);
    memcpy(a->name, name, length + 1);
    gm_status status = fill(loaded(m), terms, n, a);
    if (status == GM_OK)
        status = insert(m->adapters, a);
    if (status != GM_OK)
        adapter_release(a);
    return status;
}

/* " is loaded; there are a, b" with the lock held. */
static void list_names(const struct model_adapters *adapters, char out[512]) {
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < adapters->n && at < 400; i++)
        at += (size_t)snprintf(out + at, 512 - at, "%s%s", i ? ", " : "; loaded are ", adapters->all[i]->name);
    if (adapters->n == 0)
        snprintf(out, 512, "; none is loaded");
}

static gm_status refuse_name(const struct model_adapters *adapters, const char *name) {
    char names[512];
    list_names(adapters, names);
    return gm_fail(GM_EVALUE, "adapter: there is no %s%s", name, names);
}

gm_status gm_model_unload_adapter(gm_model *m, const char *name) {
    struct model_adapters *adapters = m->adapters;
    gm_adapter *gone = NULL;
    gm_status status = GM_OK;
    pthread_mutex_lock(&lists);
    const size_t at = find_name(adapters, name);
    if (at < adapters->n) {
        gone = adapters->all[at];
        memmove(adapters->all + at, adapters->all + at + 1, (--adapters->n - at) * sizeof *adapters->all);
    } else {
        status = refuse_name(adapters, name);
    }
    pthread_mutex_unlock(&lists);
    adapter_release(gone);
    return status;
}

gm_status gm_model_adapter(gm_model *m, size_t i, gm_adapter_info *out) {
    struct model_adapters *adapters = m->adapters;
    pthread_mutex_lock(&lists);
    const bool is_there = i < adapters->n;
    if (is_there) {
        const gm_adapter *a = adapters->all[i];
        *out = (gm_adapter_info){.use = {.hash = a->hash, .weight = 1},
                                 .terms = (int64_t)a->n,
                                 .parameters = a->parameters,
                                 .bytes = a->bytes,
                                 .least_rank = a->least_rank,
                                 .most_rank = a->most_rank};
        memcpy(out->use.name, a->name, sizeof a->name);
    }
    pthread_mutex_unlock(&lists);
    return is_there ? GM_OK : GM_END;
}

/* ---- mixes ---- */
typedef struct {
    gm_adapter *adapter;
    float weight;
} share;
struct adapter_mix {
    _Atomic int32_t refs;
    size_t n;
    share shares[]; /* by content, then weight */
};

adapter_mix *adapter_mix_retain(adapter_mix *mix) {
    if (mix)
        atomic_fetch_add(&mix->refs, 1);
    return mix;
}

void adapter_mix_release(adapter_mix *mix) {
    if (!mix || atomic_fetch_sub(&mix->refs, 1) != 1)
        return;
    for (size_t i = 0; i < mix->n; i++)
        adapter_release(mix->shares[i].adapter);
    memory_free(mix);
}

bool adapter_mix_same(const adapter_mix *a, const adapter_mix *b) {
    if (a == b || !a || !b)
        return a == b;
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = a->shares[i].adapter == b->shares[i].adapter && a->shares[i].weight == b->shares[i].weight;
    return same;
}

static bool is_after(const share *a, const share *b) {
    return a->adapter->hash > b->adapter->hash || (a->adapter->hash == b->adapter->hash && a->weight > b->weight);
}

static void mix_add(adapter_mix *mix, share one) {
    size_t at = mix->n++;
    for (; at > 0 && is_after(&mix->shares[at - 1], &one); at--)
        mix->shares[at] = mix->shares[at - 1];
    mix->shares[at] = one;
}

static adapter_mix *mix_of(size_t n) {
    adapter_mix *mix = memory_zeroed(sizeof *mix + n * sizeof *mix->shares);
    if (mix)
        atomic_init(&mix->refs, 1);
    return mix;
}

/* Whether the scales of its terms are, with that weight. */
static bool is_finite_at(const gm_adapter *a, float weight) {
    bool finite = true;
    for (size_t i = 0; i < a->n; i++)
        finite &= isfinite(a->terms[i].scale * weight);
    return finite;
}

gm_status adapter_mix_new(gm_model *m, const gm_adapter_share *shares, size_t n, adapter_mix **out) {
    struct model_adapters *adapters = m->adapters;
    gm_status status = GM_OK;
    *out = NULL;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(shares[i].weight))
            return gm_fail(GM_EVALUE, "adapter: the weight of %s is %g, expected a finite number", shares[i].name,
                           (double)shares[i].weight);
    adapter_mix *mix = n ? mix_of(n) : NULL;
    if (!mix)
        return n ? GM_ENOMEM : GM_OK;
    pthread_mutex_lock(&lists);
    for (size_t i = 0; i < n && status == GM_OK; i++) {
        const size_t at = find_name(adapters, shares[i].name);
        if (at < adapters->n && !is_finite_at(adapters->all[at], shares[i].weight))
            status = gm_fail(GM_EVALUE, "adapter: %s times %g is not finite", shares[i].name, (double)shares[i].weight);
        else if (at < adapters->n)
            mix_add(mix, (share){adapter_retain(adapters->all[at]), shares[i].weight});
        else
            status = refuse_name(adapters, shares[i].name);
    }
    pthread_mutex_unlock(&lists);
    if (status == GM_OK)
        *out = mix;
    else
        adapter_mix_release(mix);
    return status;
}

gm_status adapter_mix_like(gm_model *m, const gm_adapter_use *uses, size_t n, adapter_mix **out) {
    struct model_adapters *adapters = m->adapters;
    gm_status status = GM_OK;
    *out = NULL;
    adapter_mix *mix = n ? mix_of(n) : NULL;
    if (!mix)
        return n ? GM_ENOMEM : GM_OK;
    pthread_mutex_lock(&lists);
    for (size_t i = 0; i < n && status == GM_OK; i++) {
        size_t at = 0;
        while (at < adapters->n && adapters->all[at]->hash != uses[i].hash)
            at++;
        if (at < adapters->n)
            mix_add(mix, (share){adapter_retain(adapters->all[at]), uses[i].weight});
        else
            status = gm_fail(GM_ESTATE, "adapter: %s, with which the session was begun, is not loaded", uses[i].name);
    }
    pthread_mutex_unlock(&lists);
    if (status == GM_OK)
        *out = mix;
    else
        adapter_mix_release(mix);
    return status;
}

size_t adapter_mix_uses(const adapter_mix *mix, gm_adapter_use *out) {
    const size_t n = mix ? mix->n : 0;
    for (size_t i = 0; out && i < n; i++) {
        out[i] = (gm_adapter_use){.hash = mix->shares[i].adapter->hash, .weight = mix->shares[i].weight};
        memcpy(out[i].name, mix->shares[i].adapter->name, sizeof out[i].name);
    }
    return n;
}

bool adapter_uses_equal(const gm_adapter_use *a, size_t n_a, const gm_adapter_use *b, size_t n_b) {
    bool equal = n_a == n_b;
    for (size_t i = 0; equal && i < n_a; i++)
        equal = a[i].hash == b[i].hash && a[i].weight == b[i].weight;
    return equal;
}

void adapter_uses_text(const gm_adapter_use *uses, size_t n, char out[256]) {
    size_t at = (size_t)snprintf(out, 256, n == 0 ? "no adapter" : n == 1 ? "adapter" : "adapters");
    for (size_t i = 0; i < n && at < 150; i++) {
        const char *between = i == 0 ? "" : i + 1 == n ? " and" : ",";
        at += (size_t)snprintf(out + at, 256 - at, "%s '%s' (%016llx)", between, uses[i].name,
                               (unsigned long long)uses[i].hash);
        if (uses[i].weight != 1 && at < 200)
            at += (size_t)snprintf(out + at, 256 - at, " times %g", (double)uses[i].weight);
    }
}

/* ---- the model of a pass ---- */
/* The terms of a layer side by side, runs in order, and of a run's mix each adapter's; first they are counted. */
static size_t place(gm_model *copy, const adapter_run *runs, size_t n_runs, bool counted) {
    size_t used = 0;
    for (size_t r = 0; r < n_runs; r++)
        for (size_t i = 0; runs[r].mix && i < runs[r].mix->n; i++) {
            const share *one = &runs[r].mix->shares[i];
            for (size_t j = 0; j < one->adapter->n; j++, used++) {
                const placed_term *t = &one->adapter->terms[j];
                gm_linear *l = adapter_layer(copy, t->weight);
                if (counted)
                    l->row_terms[l->n_row_terms] = (low_rank_term){.a = t->a,
                                                                   .b = t->b,
                                                                   .stretch = t->stretch,
                                                                   .scale = t->scale * one->weight,
                                                                   .share = one->weight,
                                                                   .first = runs[r].first,
                                                                   .rows = runs[r].rows};
                l->n_row_terms++;
            }
        }
    return used;
}

/* Each layer that was counted gets its share of the memory, and counts anew. */
static void share_out(gm_model *copy, low_rank_term *memory) {
    const gm_model *m = loaded(copy);
    for (int64_t i = 0; i < m->n_weights; i++) {
        bool global;
        size_t offset;
        if (!m->weights[i].linear || !layer_offset(m, m->weights[i].linear, &global, &offset))
            continue;
        gm_linear *l = adapter_layer(copy, i);
        if (l->row_terms || !l->n_row_terms)
            continue;
        l->row_terms = memory;
        memory += l->n_row_terms;
        l->n_row_terms = 0;
    }
}

gm_status adapted_open(gm_model *m, const adapter_run *runs, size_t n, adapted_model *out) {
    *out = (adapted_model){.model = model_copy(m)};
    if (!out->model)
        return error_code();
    const size_t count = place(out->model, runs, n, false);
    out->terms = memory_zeroed((count + 1) * sizeof *out->terms);
    if (!out->terms) {
        adapted_close(out);
        return GM_ENOMEM;
    }
    share_out(out->model, out->terms);
    place(out->model, runs, n, true);
    return GM_OK;
}

void adapted_close(adapted_model *a) {
    if (a->model)
        model_copy_free(a->model);
    memory_free(a->terms);
    *a = (adapted_model){0};
}
