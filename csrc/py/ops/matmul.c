/* matmul.c - Python functions of matrix and tensor products and of convolutions. */
#include "py/ops/bind.h"

/* axes: an int n, or a pair of lists. */
FUNCTION_OF(tensordot)
{
    gm_array *a, *b;
    PyObject *value;
    int count = 2, given[2] = {0, 0}, axes[2][GM_MAX_NDIM];
    BIND(tensordot, "AAp", &a, &b, &value);
    bool ok = true;
    if (!value || is_one_integer(value)) {
        ok = read_int(value, "axes", &count);
        if (ok && (count < 0 || count > gm_array_ndim(a) || count > gm_array_ndim(b))) {
            PyErr_Format(PyExc_ValueError, "tensordot: %d axes of arrays with %d and %d dimensions", count,
                         gm_array_ndim(a), gm_array_ndim(b));
            ok = false;
        }
        for (int i = 0; ok && i < count; i++) {
            axes[0][i] = gm_array_ndim(a) - count + i;
            axes[1][i] = i;
        }
        given[0] = given[1] = count;
    } else {
        PyObject *pair = PySequence_Tuple(value);
        ok = pair && PyTuple_Size(pair) == 2;
        if (pair && !ok)
            PyErr_SetString(PyExc_ValueError, "tensordot: axes must be an int or a pair of lists of ints");
        for (int i = 0; ok && i < 2; i++)
            ok = read_axes(PyTuple_GetItem(pair, i), &given[i], axes[i]);
        Py_XDECREF(pair);
        if (ok && given[0] != given[1]) {
            PyErr_Format(PyExc_ValueError, "tensordot: %d axes of a, but %d of b", given[0], given[1]);
            ok = false;
        }
    }
    return call_finish(&c, ok ? gm_tensordot(c.scope, a, b, given[0], axes[0], axes[1]) : NULL);
}

FUNCTION_OF(hadamard_transform)
{
    gm_array *x;
    PyObject *scale;
    double number = 1;
    BIND(hadamard_transform, "Ap", &x, &scale);
    bool given = scale && scale != Py_None;
    bool ok = !given || read_float(scale, "scale", &number);
    return call_finish(&c, ok ? gm_hadamard_transform(c.scope, x, given ? &number : NULL) : NULL);
}

/* ---- convolutions ---- */
/* An int for all spatial axes, or one for each: at most three. */
static bool read_sizes(PyObject *value, const char *what, int *n, int64_t *out) {
    int64_t all[BIND_INTS];
    if (!value)
        return true;
    if (!read_int64s(value, what, n, all))
        return false;
    if (*n > 3) {
        PyErr_Format(PyExc_ValueError, "conv: %d numbers as %s, at most 3 are possible", *n, what);
        return false;
    }
    for (int i = 0; i < (*n < 0 ? 1 : *n); i++)
        out[i] = all[i];
    return true;
}

static bool is_pair_of_lists(PyObject *value) {
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2)
        return false;
    PyObject *first = PyTuple_GetItem(value, 0);
    return PyList_Check(first) || PyTuple_Check(first);
}

static const gm_conv_sizes plain_sizes = {-1, -1, -1, -1, -1, {1}, {0}, {0}, {1}, {1}};

FUNCTION_OF(conv_general)
{
    gm_array *x, *w;
    PyObject *stride, *padding, *dilation, *input_dilation;
    gm_conv_sizes sizes = plain_sizes;
    int groups = 1;
    bool flip = false;
    BIND(conv_general, "AAppppib", &x, &w, &stride, &padding, &dilation, &input_dilation, &groups, &flip);
    bool ok = read_sizes(stride, "stride", &sizes.n_stride, sizes.stride) &&
              read_sizes(dilation, "kernel_dilation", &sizes.n_dilation, sizes.dilation) &&
              read_sizes(input_dilation, "input_dilation", &sizes.n_input_dilation, sizes.input_dilation);
    if (ok && padding && is_pair_of_lists(padding))
        ok = read_sizes(PyTuple_GetItem(padding, 0), "padding", &sizes.n_low, sizes.low) &&
             read_sizes(PyTuple_GetItem(padding, 1), "padding", &sizes.n_high, sizes.high);
    else
        ok = ok && read_sizes(padding, "padding", &sizes.n_low, sizes.low) &&
             read_sizes(padding, "padding", &sizes.n_high, sizes.high);
    return call_finish(&c, ok ? gm_conv_general(c.scope, x, w, &sizes, groups, flip) : NULL);
}

static const char *const size_names[4] = {"stride", "padding", "dilation", "output_padding"};

/* conv1d to conv_transpose3d: lists of another length than the function's number are a TypeError, as in MLX. conv1d
 * and conv_transpose1d, with plain numbers, take as many as the arrays have, as there too. */
static PyObject *wrap_conv(const invocation *in, int axes, bool transposed) {
    call c = {.state = PyModule_GetState(in->module)};
    gm_array *x, *w;
    PyObject *lists[4];
    int groups = 1;
    bool ok = transposed ? CALL_BIND(in, "AAppppi", &x, &w, &lists[0], &lists[1], &lists[2], &lists[3], &groups)
                         : CALL_BIND(in, "AApppi", &x, &w, &lists[0], &lists[1], &lists[2], &groups);
    if (!ok)
        return NULL;
    gm_conv_sizes sizes = plain_sizes;
    int *counts[4] = {&sizes.n_stride, &sizes.n_low, &sizes.n_dilation, &sizes.n_input_dilation};
    int64_t *values[4] = {sizes.stride, sizes.low, sizes.dilation, sizes.input_dilation};
    if (transposed)
        sizes.input_dilation[0] = 0;
    for (int i = 0; ok && i < (transposed ? 4 : 3); i++) {
        ok = read_sizes(lists[i], size_names[i], counts[i], values[i]);
        if (ok && *counts[i] >= 0 && *counts[i] != axes) {
            PyErr_Format(PyExc_TypeError, "%s: %d numbers as %s, expected an int or %d", in->name, *counts[i],
                         size_names[i], axes);
            ok = false;
        }
        if (*counts[i] < 0)
            values[i][1] = values[i][2] = values[i][0];
    }
    const bool plain = sizes.n_stride < 0 && sizes.n_low < 0 && sizes.n_dilation < 0 && sizes.n_input_dilation < 0;
    const int spatial = gm_array_ndim(x) - 2;
    if (axes == 1 && plain && spatial >= 1 && spatial <= 3)
        axes = spatial;
    sizes.n_high = sizes.n_low;
    for (int k = 0; k < 3; k++)
        sizes.high[k] = sizes.low[k];
    if (ok && (gm_array_ndim(x) != axes + 2 || gm_array_ndim(w) != axes + 2)) {
        PyErr_Format(PyExc_ValueError, "%s: an input of %d and a weight of %d dimensions, expected %d", in->name,
                     gm_array_ndim(x), gm_array_ndim(w), axes + 2);
        ok = false;
    }
    return call_finish(&c, !ok          ? NULL
                           : transposed ? gm_conv_transpose(c.scope, x, w, &sizes, groups)
                                        : gm_conv_general(c.scope, x, w, &sizes, groups, false));
}
WRAPPED(conv1d, wrap_conv, 1, false)
WRAPPED(conv2d, wrap_conv, 2, false)
WRAPPED(conv3d, wrap_conv, 3, false)
WRAPPED(conv_transpose1d, wrap_conv, 1, true)
WRAPPED(conv_transpose2d, wrap_conv, 2, true)
WRAPPED(conv_transpose3d, wrap_conv, 3, true)
