/* random.c - random arrays: words of a counter-based generator, and distributions made of them. A key is two words of
 * uint32; the same key gives the same values, whatever the machine and the number of threads. Values are MLX's. */
#include <math.h>
#include <string.h>
#include "ops/ops.h"

typedef struct {
    int32_t kind; /* gm_random_kind */
    int32_t type;
    float factor, shift;
    int64_t ndim;
    int64_t shape[GM_MAX_NDIM]; /* of what one key gives */
} random_param;
static const gm_field random_fields[] = {{FIELD_INT, offsetof(random_param, kind), "kind", 1},
                                         {FIELD_INT, offsetof(random_param, type), "dtype", 1},
                                         {FIELD_FLOAT, offsetof(random_param, factor), "factor", 1},
                                         {FIELD_FLOAT, offsetof(random_param, shift), "shift", 1},
                                         {FIELD_INT64, offsetof(random_param, ndim), "ndim", 1},
                                         {FIELD_INT64, offsetof(random_param, shape), "shape", GM_MAX_NDIM},
                                         {0}};

/* keys [..., 2] give [..., shape]. */
static gm_status random_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    const random_param *p = param;
    int lead = in[0]->ndim - 1;
    out->dtype = (gm_dtype)p->type;
    out->ndim = lead + (int)p->ndim;
    if (out->ndim > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "random: %d dimensions, at most %d are possible", out->ndim, GM_MAX_NDIM);
    memcpy(out->shape, in[0]->shape, (size_t)lead * sizeof(int64_t));
    memcpy(out->shape + lead, p->shape, (size_t)p->ndim * sizeof(int64_t));
    return GM_OK;
}

static gm_status random_eval(gm_array *out, gm_queue *q) {
    const random_param *p = out->param;
    const gm_array *key = out->in[0];
    const uint32_t *keys = array_ptr(key);
    int64_t n_keys = key->size / 2;
    GM_TRY(array_alloc(out, q));
    if (out->size == 0)
        return GM_OK;
    if (!array_is_contiguous(key)) {
        int64_t strides[GM_MAX_NDIM];
        uint32_t *copy = queue_scratch(q, (size_t)key->size * sizeof *copy);
        if (!copy)
            return error_code();
        shape_strides(key->ndim, key->shape, strides);
        GM_TRY(launch_copy(q, (copy_to){copy, GM_UINT32, strides}, (copy_from){keys, GM_UINT32, key->strides},
                           key->ndim, key->shape));
        queue_fence(q);
        keys = copy;
    }
    int64_t words = out->size / n_keys;
    return DISPATCH(q, threefry, n_keys * ((words + 1) / 2), .out = array_ptr(out), .keys = keys,
                    .kind = (gm_random_kind)p->kind, .type = p->type, .words = words, .factor = p->factor,
                    .shift = p->shift);
}

static gm_status random_vmap(gm_scope *s, gm_array *out, gm_array *const *in, const bool *batched, gm_array **outs) {
    (void)batched;
    outs[0] = array_again(s, out, in);
    return outs[0] ? GM_OK : error_code();
}

static gm_status random_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                gm_array **outs) {
    (void)n_in;
    (void)n_out;
    const random_param *p = param;
    const gm_array *key = in[0];
    bool fits = key->dtype == GM_UINT32 && key->ndim >= 1 && key->shape[key->ndim - 1] == 2 &&
                within(p->kind, GM_RANDOM_COUNT) && within(p->ndim, GM_MAX_NDIM + 1);
    bool type = p->kind == GM_RANDOM_BITS ? p->type == GM_UINT32
                                          : p->type == GM_FLOAT16 || p->type == GM_BFLOAT16 || p->type == GM_FLOAT32;
    return fits && type ? rebuilt(array_node(s, &random_op, in, 1, p), outs) : rebuild_refuse("random");
}

const gm_op random_op = {.name = "random",
                         .n_in = 1,
                         .n_out = 1,
                         .nondiff = 1,
                         .fixed = FIXED_ALL,
                         .param_size = sizeof(random_param),
                         .fields = random_fields,
                         .infer = random_infer,
                         .eval = random_eval,
                         .vmap = random_vmap,
                         .rebuild = random_rebuild};

/* Values times factor, plus shift. */
typedef struct {
    gm_random_kind kind;
    gm_dtype type;
    float factor, shift;
} drawing;

static gm_array *draw(gm_scope *s, drawing d, int ndim, const int64_t *shape, gm_array *key) {
    random_param p = {
        .kind = (int32_t)d.kind, .type = (int32_t)d.type, .factor = d.factor, .shift = d.shift, .ndim = ndim};
    char text[128];
    if (!key)
        return NULL;
    if (key->dtype != GM_UINT32)
        return gm_fail(GM_EVALUE, "random: the key is %s, expected uint32", gm_dtype_name((gm_dtype)key->dtype)), NULL;
    if (key->ndim != 1 || key->shape[0] != 2) {
        shape_text(key->ndim, key->shape, text);
        return gm_fail(GM_ESHAPE, "random: the key has shape %s, expected (2)", text), NULL;
    }
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0)
            return gm_fail(GM_EVALUE, "random: dimension %d is %lld: it cannot be negative", i, (long long)shape[i]),
                   NULL;
    memcpy(p.shape, shape, (size_t)ndim * sizeof *shape);
    return array_node_sized(s, &random_op, &key, 1, &p, offsetof(random_param, shape) + (size_t)ndim * sizeof *shape);
}

/* ---- keys ---- */
gm_array *gm_random_key(gm_scope *s, uint64_t seed) {
    return gm_array_from(s, GM_UINT32, 1, &(int64_t){2}, (uint32_t[2]){(uint32_t)(seed >> 32), (uint32_t)seed});
}

gm_array *gm_random_split(gm_scope *s, gm_array *key, int num) {
    return draw(s, (drawing){GM_RANDOM_BITS, GM_UINT32, 1, 0}, 2, (int64_t[]){num, 2}, key);
}

/* ---- parameters of distributions ---- */
/* Fails unless arrays a and b (either may be NULL) broadcast to the shape without making it larger. */
static gm_status check_fits(const char *name, const gm_array *a, const gm_array *b, int ndim, const int64_t *shape) {
    gm_spec both, all;
    gm_array want = {.ndim = (int16_t)ndim, .shape = (int64_t *)(uintptr_t)shape};
    if (b)
        GM_TRY(broadcast_shape(name, a, b, &both));
    else
        spec_like(&both, a, GM_FLOAT32);
    GM_TRY(broadcast_shape(name, &want, &(gm_array){.ndim = (int16_t)both.ndim, .shape = both.shape}, &all));
    if (all.ndim != ndim || memcmp(all.shape, shape, (size_t)ndim * sizeof *shape) != 0) {
        char asked[128], got[128];
        shape_text(ndim, shape, asked);
        shape_text(both.ndim, both.shape, got);
        return gm_fail(GM_ESHAPE, "%s: parameters of shape %s do not broadcast to values of shape %s", name, got,
                       asked);
    }
    return GM_OK;
}

/* Whether x is a number that is known now: then it is a parameter of the kernel. */
static bool is_number(const gm_array *x, float *value) {
    const void *data = x->ndim || gm_array_is_tracer(x) ? NULL : gm_array_data(x);
    if (!data)
        return false;
    if (x->dtype == GM_FLOAT32)
        *value = *(const float *)data;
    else if (x->dtype == GM_INT32)
        *value = (float)*(const int32_t *)data;
    else
        return false;
    return true;
}

/* sqrt(2) rounded to the type: the factor that makes erfinv of (-1, 1) standard normal. */
static float root_2(gm_dtype type) { return type == GM_FLOAT32 ? 0x1.6a09e6p+0f : 0x1.6ap+0f; }

static gm_status check_type(const char *name, gm_dtype type) {
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "%s: got dtype %s, expected real floating point", name, gm_dtype_name(type));
    if (type == GM_FLOAT64)
        return gm_fail(GM_ESTATE, "%s: float64 is not supported, only float32, float16 and bfloat16", name);
    return GM_OK;
}

/* u in [0, 1) times high - low, plus low */
static gm_array *uniform(gm_scope *s, gm_array *low, gm_array *high, int ndim, const int64_t *shape, gm_dtype type,
                         gm_array *key) {
    float a, b;
    if (is_number(low, &a) && is_number(high, &b) && (type == GM_FLOAT32 || (a == 0 && b == 1)))
        return draw(s, (drawing){GM_RANDOM_UNIFORM, type, b - a, a}, ndim, shape, key);
    low = gm_astype(s, low, type);
    gm_array *width = gm_subtract(s, gm_astype(s, high, type), low);
    gm_array *u = draw(s, (drawing){GM_RANDOM_UNIFORM, type, 1, 0}, ndim, shape, key);
    return gm_add(s, gm_multiply(s, width, u), low);
}

gm_array *gm_random_uniform(gm_scope *s, gm_array *low, gm_array *high, int ndim, const int64_t *shape, gm_dtype type,
                            gm_array *key) {
    if (!low || !high)
        return NULL;
    if (check_type("uniform", type) != GM_OK || check_fits("uniform", low, high, ndim, shape) != GM_OK)
        return NULL;
    return uniform(s, low, high, ndim, shape, type, key);
}

/* Real and imaginary parts each of variance 1/2. */
static gm_array *complex_normal(gm_scope *s, int ndim, const int64_t *shape, gm_array *key) {
    int64_t pairs[GM_MAX_NDIM], start[GM_MAX_NDIM] = {0}, stop[GM_MAX_NDIM], step[GM_MAX_NDIM];
    gm_array *part[2];
    if (ndim + 1 > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "normal: %d dimensions of complex values are too many", ndim), NULL;
    memcpy(pairs, shape, (size_t)ndim * sizeof *shape);
    pairs[ndim] = 2;
    gm_array *z = draw(s, (drawing){GM_RANDOM_NORMAL, GM_FLOAT32, 1, 0}, ndim + 1, pairs, key);
    for (int i = 0; i <= ndim; i++)
        step[i] = 1;
    memcpy(stop, pairs, sizeof stop);
    for (int k = 0; k < 2; k++) {
        start[ndim] = k;
        stop[ndim] = k + 1;
        part[k] = gm_astype(s, gm_reshape(s, gm_slice(s, z, start, stop, step), ndim, shape), GM_COMPLEX64);
    }
    gm_array *i = gm_array_from(s, GM_COMPLEX64, 0, NULL, (float[2]){0, 1});
    return gm_add(s, part[0], gm_multiply(s, part[1], i));
}

gm_array *gm_random_normal(gm_scope *s, int ndim, const int64_t *shape, gm_dtype type, gm_array *loc, gm_array *scale,
                           gm_array *key) {
    gm_array *x;
    float factor = 1, shift = 0;
    if (!loc || !scale)
        return NULL;
    if (!dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "normal: got dtype %s, expected floating point or complex64", gm_dtype_name(type)),
               NULL;
    bool no_scale = array_is_none(scale), no_loc = array_is_none(loc);
    if (type == GM_FLOAT32 && (no_scale || is_number(scale, &factor)) && (no_loc || is_number(loc, &shift)))
        return draw(s, (drawing){GM_RANDOM_NORMAL, type, root_2(type) * factor, shift}, ndim, shape, key);
    if (type == GM_COMPLEX64) {
        x = complex_normal(s, ndim, shape, key);
        x = no_scale ? x : gm_multiply(s, x, gm_astype(s, scale, type));
    } else if (type == GM_FLOAT64 || !no_scale) {
        gm_array *root = scalar_array(s, type == GM_FLOAT64 ? 1.41421356237309504880 : (double)root_2(type), type);
        gm_dtype drawn = type == GM_FLOAT64 ? GM_FLOAT32 : type;
        x = gm_astype(s, draw(s, (drawing){GM_RANDOM_NORMAL, drawn, 1, 0}, ndim, shape, key), type);
        x = gm_multiply(s, x, no_scale ? root : gm_multiply(s, root, gm_astype(s, scale, type)));
    } else {
        x = draw(s, (drawing){GM_RANDOM_NORMAL, type, root_2(type), 0}, ndim, shape, key);
    }
    return no_loc ? x : gm_add(s, x, gm_astype(s, loc, type));
}

gm_array *gm_random_truncated_normal(gm_scope *s, gm_array *lower, gm_array *upper, int ndim, const int64_t *shape,
                                     gm_dtype type, gm_array *key) {
    gm_spec both;
    if (!lower || !upper)
        return NULL;
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "truncated_normal: got dtype %s, expected real floating point", gm_dtype_name(type)),
               NULL;
    lower = gm_astype(s, lower, type);
    upper = gm_astype(s, upper, type);
    gm_array *root = scalar_array(s, 1.41421356237309504880, type);
    gm_array *a = gm_erf(s, gm_divide(s, lower, root)), *b = gm_erf(s, gm_divide(s, upper, root));
    if (!a || !b || broadcast_shape("truncated_normal", lower, upper, &both) != GM_OK)
        return NULL;
    if (ndim < 0) { /* none was requested */
        ndim = both.ndim;
        shape = both.shape;
    }
    gm_array *x = gm_multiply(s, root, gm_erfinv(s, gm_random_uniform(s, a, b, ndim, shape, type, key)));
    return gm_maximum(s, gm_minimum(s, x, upper), lower);
}

/* mean + z a, where a is the symmetric root of the covariance: u diag(sqrt(s)) vh of its singular values. */
gm_array *gm_random_multivariate_normal(gm_scope *s, gm_array *mean, gm_array *cov, int ndim, const int64_t *shape,
                                        gm_dtype type, gm_array *key) {
    gm_array *parts[3];
    gm_spec lead, both;
    if (!mean || !cov)
        return NULL;
    if (type != GM_FLOAT32)
        return gm_fail(GM_EVALUE, "multivariate_normal: got dtype %s, expected float32", gm_dtype_name(type)), NULL;
    if (mean->ndim < 1 || cov->ndim < 2)
        return gm_fail(GM_EVALUE,
                       "multivariate_normal: mean has %d dimensions, expected at least 1; cov %d, expected "
                       "at least 2",
                       mean->ndim, cov->ndim),
               NULL;
    int64_t n = mean->shape[mean->ndim - 1], dims[GM_MAX_NDIM + 2];
    if (cov->shape[cov->ndim - 1] != n || cov->shape[cov->ndim - 2] != n) {
        char a[128], b[128];
        shape_text(mean->ndim, mean->shape, a);
        shape_text(cov->ndim, cov->shape, b);
        return gm_fail(GM_ESHAPE, "multivariate_normal: mean %s and cov %s do not fit", a, b), NULL;
    }
    gm_array of_mean = {.ndim = (int16_t)(mean->ndim - 1), .shape = mean->shape};
    gm_array of_cov = {.ndim = (int16_t)(cov->ndim - 2), .shape = cov->shape};
    if (broadcast_shape("multivariate_normal", &of_mean, &of_cov, &lead) != GM_OK)
        return NULL;
    if (ndim == 0) {
        both = lead;
    } else {
        gm_array asked = {.ndim = (int16_t)ndim, .shape = (int64_t *)(uintptr_t)shape};
        gm_array batch = {.ndim = (int16_t)lead.ndim, .shape = lead.shape};
        if (broadcast_shape("multivariate_normal", &asked, &batch, &both) != GM_OK)
            return NULL;
    }
    memcpy(dims, both.shape, (size_t)both.ndim * sizeof *dims);
    dims[both.ndim] = 1; /* a row for each matrix */
    dims[both.ndim + 1] = n;
    gm_array *z = draw(s, (drawing){GM_RANDOM_NORMAL, GM_FLOAT32, root_2(GM_FLOAT32), 0}, both.ndim + 2, dims, key);
    if (!gm_svd(s, gm_astype(s, cov, GM_FLOAT32), true, parts))
        return NULL;
    memcpy(dims, parts[1]->shape, (size_t)(parts[1]->ndim - 1) * sizeof *dims);
    dims[parts[1]->ndim - 1] = 1;
    dims[parts[1]->ndim] = n;
    gm_array *root = gm_reshape(s, gm_sqrt(s, parts[1]), parts[1]->ndim + 1, dims);
    root = gm_matmul(s, gm_multiply(s, parts[0], root), parts[2]);
    z = gm_matmul(s, z, root);
    dims[both.ndim] = n;
    memcpy(dims, both.shape, (size_t)both.ndim * sizeof *dims);
    return gm_add(s, gm_reshape(s, z, both.ndim + 1, dims), gm_astype(s, mean, GM_FLOAT32));
}

gm_array *gm_random_gumbel(gm_scope *s, int ndim, const int64_t *shape, gm_dtype type, gm_array *key) {
    if (type == GM_FLOAT32)
        return draw(s, (drawing){GM_RANDOM_GUMBEL, type, 1, 0}, ndim, shape, key);
    if (check_type("gumbel", type) != GM_OK)
        return NULL;
    gm_array *u = draw(s, (drawing){GM_RANDOM_UNIFORM, type, 1, 0}, ndim, shape, key);
    return gm_negative(s, gm_log(s, gm_negative(s, gm_log(s, u))));
}

gm_array *gm_random_laplace(gm_scope *s, int ndim, const int64_t *shape, gm_dtype type, double loc, double scale,
                            gm_array *key) {
    if (!dtype_is_float(type))
        return gm_fail(GM_EVALUE, "laplace: got dtype %s, expected real floating point", gm_dtype_name(type)), NULL;
    const drawing between = {GM_RANDOM_UNIFORM, GM_FLOAT32, 2, -0x1.fffffep-1f}; /* -1 and 1 */
    gm_array *u = draw(s, between, ndim, shape, key);
    gm_array *x = gm_astype(s, gm_multiply(s, gm_sign(s, u), gm_log1p(s, gm_negative(s, gm_abs(s, u)))), type);
    if (scale != 1)
        x = gm_multiply(s, scalar_array(s, scale, type), x);
    return loc == 0 ? x : gm_add(s, scalar_array(s, loc, type), x);
}

/* ---- integers ---- */
gm_array *gm_random_randint(gm_scope *s, gm_array *low, gm_array *high, int ndim, const int64_t *shape, gm_dtype type,
                            gm_array *key) {
    if (!low || !high)
        return NULL;
    if (dtype_is_inexact(type))
        return gm_fail(GM_EVALUE, "randint: got dtype %s, expected integers or bool", gm_dtype_name(type)), NULL;
    if (check_fits("randint", low, high, ndim, shape) != GM_OK)
        return NULL;
    gm_array *u = uniform(s, low, high, ndim, shape, GM_FLOAT32, key);
    gm_array *x = gm_astype(s, gm_floor(s, u), type);
    gm_array *last = gm_astype(s, gm_subtract(s, high, scalar_array(s, 1, (gm_dtype)high->dtype)), type);
    return gm_maximum(s, gm_minimum(s, x, last), gm_astype(s, low, type));
}

gm_array *gm_random_bernoulli(gm_scope *s, gm_array *p, int ndim, const int64_t *shape, gm_array *key) {
    if (!p)
        return NULL;
    if (!dtype_is_float((gm_dtype)p->dtype))
        return gm_fail(GM_EVALUE, "bernoulli: p is %s, expected floating point", gm_dtype_name((gm_dtype)p->dtype)),
               NULL;
    if (ndim < 0) { /* none was requested */
        ndim = p->ndim;
        shape = p->shape;
    } else if (check_fits("bernoulli", p, NULL, ndim, shape) != GM_OK) {
        return NULL;
    }
    return gm_less(s, draw(s, (drawing){GM_RANDOM_UNIFORM, GM_FLOAT32, 1, 0}, ndim, shape, key), p);
}

/* Draws from a single line of logits: for each of the uniform values, which have this shape, its insertion index into
 * the cumulative sum. An index whose probability is zero is never drawn, whatever the rounding. */
static gm_array *draws_of_line(gm_scope *s, gm_array *logits, int ndim, const int64_t *shape, gm_array *key) {
    gm_array *line = gm_astype(s, gm_reshape(s, logits, 1, (int64_t[]){-1}), GM_FLOAT32);
    gm_array *sums = gm_cumsum(s, gm_softmax(s, line, 1, (int[]){0}), 0, false, false, true, GM_FLOAT32);
    gm_array *total = gm_max(s, sums, 1, (int[]){0}, true);
    gm_array *u = gm_multiply(s, draw(s, (drawing){GM_RANDOM_UNIFORM, GM_FLOAT32, 1, 0}, ndim, shape, key), total);
    return gm_minimum(s, gm_searchsorted(s, sums, u, true), gm_searchsorted(s, sums, total, false));
}

/* The index of the greatest logit plus noise: one for each line of logits, n of them, or of a shape that the lines
 * broadcast to. Several values of one line are draws_of_line, as in MLX. */
gm_array *gm_random_categorical(gm_scope *s, gm_array *logits, int axis, int ndim, const int64_t *shape, int n,
                                gm_array *key) {
    int64_t dims[GM_MAX_NDIM], rest[GM_MAX_NDIM];
    if (!logits || check_axis("categorical", axis, logits->ndim, &axis) != GM_OK)
        return NULL;
    if (ndim >= 0 && n != INT32_MIN)
        return gm_fail(GM_EVALUE, "categorical: shape and num_samples are given, expected at most one of them"), NULL;
    int rank = logits->ndim;
    if (rank + 1 > GM_MAX_NDIM || ndim + 1 > GM_MAX_NDIM)
        return gm_fail(GM_EVALUE, "categorical: too many dimensions"), NULL;
    memcpy(dims, logits->shape, (size_t)rank * sizeof *dims);
    if (n != INT32_MIN) { /* one more axis, after the others */
        dims[rank++] = 1;
        logits = gm_reshape(s, logits, rank, dims);
        dims[rank - 1] = n;
    } else if (ndim >= 0) {
        for (int i = 0; i < rank - 1; i++)
            rest[i] = dims[i + (i >= axis)];
        gm_array lines = {.ndim = (int16_t)(rank - 1), .shape = rest};
        if (check_fits("categorical", &lines, NULL, ndim, shape) != GM_OK)
            return NULL;
        int64_t length = dims[axis];
        axis += ndim + 1 - rank;
        rank = ndim + 1;
        memcpy(dims, shape, (size_t)axis * sizeof *dims);
        dims[axis] = length;
        memcpy(dims + axis + 1, shape + axis, (size_t)(ndim - axis) * sizeof *dims);
    }
    if (rank > 1 && logits->size == dims[axis] && dims[axis] > 0) {
        memmove(dims + axis, dims + axis + 1, (size_t)(rank - 1 - axis) * sizeof *dims);
        return draws_of_line(s, logits, rank - 1, dims, key);
    }
    gm_array *noise = gm_random_gumbel(s, rank, dims, GM_FLOAT32, key);
    return gm_argmax(s, gm_add(s, logits, noise), axis, false, false);
}

/* ---- permutations ---- */
static gm_status word_order_infer(gm_array *const *in, int n_in, const void *param, gm_spec *out) {
    (void)n_in;
    (void)param;
    spec_like(out, in[0], GM_UINT32);
    return GM_OK;
}

static gm_status word_order_eval(gm_array *out, gm_queue *q) {
    int64_t n = out->shape[out->ndim - 1];
    const void *words;
    GM_TRY(dense_operand(q, out->in[0], &words));
    GM_TRY(array_alloc(out, q));
    return DISPATCH(q, word_order, n ? out->size / n : 0, .out = array_ptr(out), .in = words, .n = n);
}

static gm_status word_order_rebuild(gm_scope *s, gm_array *const *in, int n_in, const void *param, int n_out,
                                    gm_array **outs) {
    (void)param;
    (void)n_out;
    return in[0]->dtype == GM_UINT32 && in[0]->ndim >= 1 ? rebuilt(array_node(s, &word_order_op, in, n_in, NULL), outs)
                                                         : rebuild_refuse("word_order");
}

const gm_op word_order_op = {.name = "word_order",
                             .n_in = 1,
                             .n_out = 1,
                             .nondiff = 1,
                             .infer = word_order_infer,
                             .eval = word_order_eval,
                             .vmap = random_vmap,
                             .rebuild = word_order_rebuild};

/* x GM_NONE: of the numbers below n. */
gm_array *gm_random_permutation(gm_scope *s, gm_array *x, int n, int axis, gm_array *key) {
    if (!x || (!array_is_none(x) && check_axis("permutation", axis, x->ndim, &axis) != GM_OK))
        return NULL;
    int64_t items = array_is_none(x) ? n : x->shape[axis];
    gm_array *words = draw(s, (drawing){GM_RANDOM_BITS, GM_UINT32, 1, 0}, 1, &items, key);
    gm_array *order = array_node(s, &word_order_op, &words, 1, NULL);
    return array_is_none(x) ? order : gm_take(s, x, order, axis);
}
