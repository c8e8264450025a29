/* ops_random.c - the Python functions of gomlx.core.random. Without a key they draw from the thread's state. */
#include "py/bind.h"

/* The parameter, or its default. */
static gm_array *number(call *c, gm_array *given, double value) {
    float x = (float)value;
    return given == GM_NONE ? gm_array_from(c->scope, GM_FLOAT32, 0, NULL, &x) : given;
}

static gm_array *key_of(call *c, gm_array *given) { return random_draw_key(c->state, c->scope, given); }

FUNCTION_OF(random_key) {
    PyObject *value;
    BIND(random_key, "p", &value);
    uint64_t seed;
    return call_finish(&c, read_random_seed(value, "key", &seed) ? gm_random_key(c.scope, seed) : NULL);
}

FUNCTION_OF(random_split) {
    gm_array *key;
    int num = 2;
    BIND(random_split, "Ai", &key, &num);
    return call_finish(&c, gm_random_split(c.scope, key, num));
}

FUNCTION_OF(random_uniform) {
    gm_array *low, *high, *key;
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(random_uniform, "QQSdO", &low, &high, &ndim, shape, &type, &key);
    low = number(&c, low, 0);
    high = number(&c, high, 1);
    return call_finish(&c, gm_random_uniform(c.scope, low, high, ndim, shape, type, key_of(&c, key)));
}

FUNCTION_OF(random_normal) {
    gm_array *loc, *scale, *key;
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(random_normal, "SdQQO", &ndim, shape, &type, &loc, &scale, &key);
    return call_finish(&c, gm_random_normal(c.scope, ndim, shape, type, loc, scale, key_of(&c, key)));
}

/* Values between two bounds; a shape that is not given is that of the bounds (ndim -1) or empty (0). */
typedef gm_array *(*bounded_fn)(gm_scope *, gm_array *, gm_array *, int, const int64_t *, gm_dtype, gm_array *);
static PyObject *wrap_bounds(const invocation *in, bounded_fn fn, int ndim, gm_dtype type) {
    gm_array *low, *high, *key;
    int64_t shape[GM_MAX_NDIM];
    BIND_IN(in, "VVSdO", &low, &high, &ndim, shape, &type, &key);
    return call_finish(&c, fn(c.scope, low, high, ndim, shape, type, key_of(&c, key)));
}
WRAPPED(random_truncated_normal, wrap_bounds, gm_random_truncated_normal, -1, GM_FLOAT32)
WRAPPED(random_randint, wrap_bounds, gm_random_randint, 0, GM_INT32)

FUNCTION_OF(random_multivariate_normal) {
    gm_array *mean, *cov, *key;
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(random_multivariate_normal, "AASdO", &mean, &cov, &ndim, shape, &type, &key);
    key = key_of(&c, key);
    return call_finish(&c, gm_random_multivariate_normal(c.scope, mean, cov, ndim, shape, type, key));
}

FUNCTION_OF(random_gumbel) {
    gm_array *key;
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    BIND(random_gumbel, "SdO", &ndim, shape, &type, &key);
    return call_finish(&c, gm_random_gumbel(c.scope, ndim, shape, type, key_of(&c, key)));
}

FUNCTION_OF(random_laplace) {
    gm_array *key;
    int ndim = 0;
    int64_t shape[GM_MAX_NDIM];
    gm_dtype type = GM_FLOAT32;
    double loc = 0, scale = 1;
    BIND(random_laplace, "SdffO", &ndim, shape, &type, &loc, &scale, &key);
    return call_finish(&c, gm_random_laplace(c.scope, ndim, shape, type, loc, scale, key_of(&c, key)));
}

FUNCTION_OF(random_bernoulli) {
    gm_array *p, *key;
    int ndim = -1;
    int64_t shape[GM_MAX_NDIM];
    BIND(random_bernoulli, "QSO", &p, &ndim, shape, &key);
    return call_finish(&c, gm_random_bernoulli(c.scope, number(&c, p, 0.5), ndim, shape, key_of(&c, key)));
}

FUNCTION_OF(random_categorical) {
    gm_array *logits, *key;
    int axis = -1, ndim = -1, samples = INT32_MIN;
    int64_t shape[GM_MAX_NDIM];
    BIND(random_categorical, "AiSiO", &logits, &axis, &ndim, shape, &samples, &key);
    return call_finish(&c, gm_random_categorical(c.scope, logits, axis, ndim, shape, samples, key_of(&c, key)));
}

FUNCTION_OF(random_permutation) {
    PyObject *what;
    gm_array *key;
    int axis = 0, count = 0;
    BIND(random_permutation, "piO", &what, &axis, &key);
    gm_array *x = py_array_node(c.state, what);
    if (!x && !read_int(what, "permutation: x", &count))
        return call_finish(&c, NULL);
    return call_finish(&c, gm_random_permutation(c.scope, x ? x : GM_NONE, count, axis, key_of(&c, key)));
}
