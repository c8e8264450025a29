/* fast.c - Python functions of gomlx.core.fast. */
#include "py/ops/bind.h"

FUNCTION_OF(rope)
{
    gm_array *x, *offset, *freqs, *node = NULL;
    PyObject *base;
    int dims = 0;
    bool traditional = false;
    double number = 0, scale = 1;
    BIND(rope, "AibpfVO", &x, &dims, &traditional, &base, &scale, &offset, &freqs);
    if ((base == Py_None) == (freqs == GM_NONE))
        PyErr_SetString(PyExc_ValueError, "rope: exactly one of base and freqs must be given");
    else if (base == Py_None || read_float(base, "base", &number))
        node = gm_rope(c.scope, x, dims, traditional, offset, freqs, (float)number, (float)scale);
    return call_finish(&c, node);
}

/* force_fused has no effect: attention is fused wherever there is a kernel. */
FUNCTION_OF(scaled_dot_product_attention)
{
    gm_array *q, *k, *v, *mask = GM_NONE, *sinks;
    PyObject *given;
    double scale = 1;
    bool force_fused = false, causal = false;
    BIND(scaled_dot_product_attention, "AAAfpOb", &q, &k, &v, &scale, &given, &sinks, &force_fused);
    bool ok = true;
    if (given && PyUnicode_Check(given)) {
        ok = causal = PyUnicode_CompareWithASCIIString(given, "causal") == 0;
        if (!ok)
            PyErr_Format(PyExc_ValueError, "%s: mask must be 'causal', an array or None, not '%U'", c.function, given);
    } else if (given && given != Py_None) {
        ok = (mask = py_array_node(c.state, given)) != NULL;
        if (!ok)
            PyErr_Format(PyExc_TypeError, "%s: mask must be 'causal', an array or None, not %R", c.function,
                         (PyObject *)Py_TYPE(given));
    }
    return call_finish(&c, ok ? gm_scaled_dot_product_attention(c.scope, q, k, v, (float)scale, mask, causal, sinks)
                              : NULL);
}

/* ---- kernels for devices that are not there ---- */

static PyObject *call_metal_kernel(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    (void)args, (void)n, (void)kwnames;
    gm_metal_kernel(NULL);
    return raise_gm(PyModule_GetState(module));
}
static PyMethodDef metal_kernel_method = {"kernel", FUNCTION(call_metal_kernel), FASTCALL,
                                          "A kernel without a device."};

/* As in MLX a Metal kernel can be described on any machine; calling it needs the device. */
FUNCTION_OF(metal_kernel)
{
    (void)args, (void)n, (void)kwnames;
    return PyCFunction_NewEx(&metal_kernel_method, module, NULL);
}

FUNCTION_OF(cuda_kernel)
{
    (void)args, (void)n, (void)kwnames;
    gm_cuda_kernel(NULL);
    return raise_gm(PyModule_GetState(module));
}

FUNCTION_OF(precompiled_cuda_kernel)
{
    (void)args, (void)n, (void)kwnames;
    gm_precompiled_cuda_kernel(NULL);
    return raise_gm(PyModule_GetState(module));
}
