"""What programs are grown from: TABLE has, for each function, how often it is taken and what makes its arguments."""
import numpy as np
from programs import FLOATS, INEXACT, INTEGERS, LARGEST, Dtype, Unsuitable, make_input
from shape_functions import (
    astype,
    at_update,
    broadcast_to,
    clip,
    concatenate,
    expand_dims,
    flatten,
    get_item,
    nan_to_num,
    pad,
    put_along_axis,
    repeat,
    reshape,
    roll,
    rounding,
    set_item,
    split,
    squeeze,
    stack,
    take,
    take_along_axis,
    tile,
    transpose,
    unflatten,
    unstack,
    view,
    where,
    with_two_axes,
)

UNARY = """abs negative sign square sqrt rsqrt reciprocal exp expm1 log log2 log10 log1p sin cos tan arcsin arccos
arctan
    sinh cosh tanh arcsinh arccosh arctanh erf erfinv sigmoid floor ceil trunc positive degrees radians logical_not
    bitwise_invert isnan isinf isfinite isposinf isneginf real imag conjugate stop_gradient""".split()
BINARY = """add subtract multiply divide floor_divide remainder power maximum minimum logaddexp arctan2 equal not_equal
less
    less_equal greater greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor""".split()
OPERATORS = "add sub mul truediv floordiv mod pow and_ or_ xor eq ne lt le gt ge matmul".split()
REDUCE = "sum prod max min all any logsumexp mean".split()
ACTIVATIONS = """relu relu6 softplus softsign silu gelu gelu_approx leaky_relu elu selu celu mish hardswish hard_tanh
    hard_shrink softshrink log_sigmoid""".split()


def unary(g):
    return (g.array(),), {}


def binary(g):
    a = g.array()
    b = g.scalar() if g.chance(0.2) else g.beside(a)
    return ((a, b) if g.chance(0.7) else (b, a)), {}


def operator_of(g):
    a = g.array()
    b = g.scalar() if g.chance(0.4) else g.beside(a)
    return ((a, b) if g.chance(0.6) else (b, a)), {}


def shift(g):
    a = g.array(INTEGERS)
    bits = {"8": 8, "6": 16, "2": 32, "4": 64}[g.dtype(a)[-1]]
    return (a, g.fresh(g.shape(a), g.dtype(a), g.numpy.integers(0, bits - 1, g.shape(a)))), {}


def reduction(g):
    a = g.array()
    return (a,), {"axis": g.axes(a), "keepdims": g.chance(0.4)}


def moments(g):
    args, kwargs = reduction(g)
    return args, {**kwargs, "ddof": g.one_of(0, 0, 1, 2)}


def arg_reduction(g):
    a = g.array()
    return (a,), {"axis": None if g.chance(0.3) else g.axis(a), "keepdims": g.chance(0.4)}


def scan(g):
    a = g.array()
    kwargs = {"axis": None if g.chance(0.2) else g.axis(a)}
    return (a,), {**kwargs, "reverse": g.chance(0.3), "inclusive": g.chance(0.7)}


def softmax(g):
    a = g.array()
    return (a,), {"axis": g.axes(a), "precise": g.chance(0.3)}


def median(g):
    return reduction(g)


def sorting(g):
    a = g.array()
    return (a,), {"axis": None if g.chance(0.15) else g.axis(a)}


def kth(g):
    a = g.array(least=1)
    axis = g.axis(a)
    n = g.shape(a)[axis] if -g.ndim(a) <= axis < g.ndim(a) else 1
    return (a, g.r.randint(-n, n) if g.chance(0.05) else g.r.randint(0, max(n - 1, 0))), {"axis": axis}


def topk(g):
    args, kwargs = kth(g)
    return (args[0], args[1] + g.one_of(0, 1)), kwargs


def matmul(g):
    a = g.array(INEXACT if g.chance(0.9) else None, least=1)
    k = g.shape(a)[-1]
    lead = g.shape(a)[:-2] if g.chance(0.5) else ()
    b = g.one_of((k,), (*lead, k, g.r.choice([1, 3, 8, 17])))
    dtype = g.dtype(a) if g.chance(0.6) else g.r.choice(FLOATS)
    return (a, g.fresh(b if g.chance(0.97) else g.new_shape(2), dtype)), {}


def addmm(g):
    (a, b), _ = matmul(g)
    n = g.shape(b)[-1] if g.ndim(b) > 1 else 1
    return (g.fresh((n,), g.dtype(a)), a, b), {"alpha": g.one_of(1.0, 0.5), "beta": g.one_of(1.0, 0.0, 2.0)}


def inner(g):
    a = g.array(INEXACT, least=1)
    return (a, g.fresh((*g.new_shape(g.one_of(0, 1)), g.shape(a)[-1]), g.dtype(a))), {}


def outer(g):
    a = g.array()
    return (a, g.fresh(g.new_shape(g.one_of(1, 2)), g.dtype(a))), {}


def vecdot(g):
    a = g.array(INEXACT, least=1)
    return (a, g.fresh(g.shape(a), g.dtype(a))), {"axis": g.axis(a)}


def tensordot(g):
    a = g.array(FLOATS, least=1)
    n = g.r.randint(0, min(2, g.ndim(a)))
    return (a, g.fresh((*g.shape(a)[g.ndim(a) - n:], 3), g.dtype(a))), {"axes": n}


def einsum(g):
    a = g.array(FLOATS, ndim=2)
    m, n = g.shape(a)
    text, other = g.one_of(("ij,jk->ik", (n, 3)), ("ij,ij->i", (m, n)), ("ij,ij->", (m, n)), ("ij,k->ijk", (2,)),
                           ("ij,ik->jk", (m, 4)), ("ij,jk", (n, 2)), ("ij->ji", None), ("ij->j", None),
                           ("...j->...", None))
    return (text, a) if other is None else (text, a, g.fresh(other, g.dtype(a))), {}


def kron(g):
    a = g.array()
    if int(np.prod(g.shape(a))) > 200:
        raise Unsuitable
    return (a, g.fresh(g.new_shape(g.one_of(1, 2)), g.dtype(a))), {}


def diagonal(g):
    a = g.array(least=2)
    i, j = g.r.sample(range(g.ndim(a)), 2)
    return (a,), {"offset": g.r.randint(-2, 2), "axis1": i, "axis2": j}


def triangle(g):
    return (g.array(least=1 if g.chance(0.05) else 2),), {"k": g.r.randint(-3, 3)}


def diag(g):
    return (g.array(ndim=g.one_of(1, 2)),), {"k": g.r.randint(-2, 2)}


def flip(g):
    a = g.array()
    return (a,), {"axis": g.axes(a)}


def diff(g):
    a = g.array(least=1)
    return (a,), {"n": g.r.randint(0, 2), "axis": g.axis(a)}


def closeness(g):
    a = g.array()
    return (a, g.beside(a)), {"equal_nan": g.chance(0.3)}


def searchsorted(g):
    a = g.array([*FLOATS, *INTEGERS], ndim=1)
    ordered = np.sort(g.numbers(g.shape(a), g.dtype(a)))
    return (g.fresh(g.shape(a), g.dtype(a), ordered), g.fresh(None, g.dtype(a))), {"side": g.one_of("left", "right")}


def contiguous(g):
    return (g.array(),), {}


def several_alone(g):
    return tuple(g.array() for _ in range(g.r.randint(1, 3))), {}


def broadcast_arrays(g):
    a = g.array()
    return (a, g.beside(a)), {}


def convolution(dimensions):
    def make(g):
        groups = g.one_of(1, 1, 1, 2)
        channels, n = groups * g.one_of(1, 2, 3, 8), dimensions
        dtype = g.one_of("float32", "float32", "float16", "bfloat16")
        spatial = tuple(g.r.choice([4, 5, 8, 9] if n > 2 else [5, 8, 17]) for _ in range(n))
        kernel = tuple(g.one_of(1, 2, 3) for _ in range(n))
        x = g.fresh((g.one_of(1, 2), *spatial, channels), dtype)
        w = g.fresh((groups * g.one_of(1, 2, 3), *kernel, channels // groups), dtype)
        one = (lambda low, high: g.r.randint(low, high)) if g.chance(0.6) else (
            lambda low, high: tuple(g.r.randint(low, high) for _ in range(n)))
        if n == 1:
            one = g.r.randint
        return (x, w), {"stride": one(1, 3), "padding": one(0, 2), "dilation": one(1, 2), "groups": groups}
    return make


def transposed_convolution(dimensions):
    forward = convolution(dimensions)

    def make(g):
        (x, w), kwargs = forward(g)
        if g.chance(0.9):
            kwargs["dilation"] = 1
        return (x, w), kwargs
    return make


def convolve(g):
    a = g.array(FLOATS, ndim=1)
    return (a, g.fresh((g.r.randint(1, 5),), g.dtype(a)), g.one_of("full", "same", "valid")), {}


def rms_norm(g):
    x = g.array(FLOATS, least=1)
    return (x, g.fresh(g.shape(x)[-1:], g.dtype(x)) if g.chance(0.8) else None, g.one_of(1e-5, 1e-3)), {}


def layer_norm(g):
    x = g.array(FLOATS, least=1)
    w, b = (g.fresh(g.shape(x)[-1:], g.dtype(x)) if g.chance(0.8) else None for _ in range(2))
    return (x, w, b, g.one_of(1e-5, 1e-3)), {}


def rope(g):
    x = g.fresh((g.one_of(1, 2), g.one_of(1, 2), g.one_of(1, 3, 5), g.one_of(4, 8, 16)), g.one_of(*FLOATS[:3]))
    return (x, g.one_of(4, g.shape(x)[-1])), {"traditional": g.chance(0.4), "base": 10000.0,
                                              "scale": g.one_of(1.0, 0.5), "offset": g.r.randint(0, 5)}


def attention(g):
    b, heads, t, s, d = g.one_of(1, 2), g.one_of(1, 2), g.one_of(1, 3, 9), g.one_of(3, 9, 17), g.one_of(4, 8)
    dtype, shared = g.one_of("float32", "float32", "float16", "bfloat16"), g.one_of(1, 2)
    q = g.fresh((b, heads * shared, t, d), dtype)
    k, v = (g.fresh((b, heads, s, d), dtype) for _ in range(2))
    kind = g.r.random()
    mask = (None if kind < 0.4 else "causal" if kind < 0.6 and t <= s else
            g.fresh((t, s), "bool_", g.numpy.uniform(size=(t, s)) < 0.8) if kind < 0.8 else g.fresh((t, s), dtype))
    return (q, k, v), {"scale": g.one_of(0.35, 1.0), "mask": mask}


def square_matrix(g):
    n = g.one_of(1, 2, 3, 5)
    shape = (*g.new_shape(g.one_of(0, 0, 1), 1), n, n)
    if int(np.prod(shape)) > LARGEST:
        raise Unsuitable
    values = g.numpy.uniform(-1, 1, shape) + 3 * np.eye(n)          # well-conditioned
    return g.fresh(shape, "float32" if g.chance(0.9) else g.new_dtype(), values.astype(np.float32))


def linear_algebra(g):
    return (square_matrix(g),), {}


def symmetric(g):
    a = square_matrix(g)
    values, dtype = g.program.inputs[a.index]
    g.program.inputs[a.index] = (values + np.swapaxes(values, -1, -2), dtype)
    g.values[a.index] = make_input(g.mx, g.program.inputs[a.index])
    return (a,), {}


def solving(g):
    a = square_matrix(g)
    shape = g.shape(a)
    return (a, g.fresh((*shape[:-1], g.one_of(1, 3)) if g.chance(0.7) or len(shape) > 2 else shape[-1:],
                       g.dtype(a))), {}


def norm(g):
    a = g.array()
    kind = g.r.random()
    if kind < 0.3 or not g.ndim(a):
        return (a,), {"keepdims": g.chance(0.3)}
    if kind < 0.7 or g.ndim(a) < 2:
        return (a,), {"ord": g.one_of(None, 0, 1, 2, 3, float("inf"), -float("inf")), "axis": g.axis(a),
                      "keepdims": g.chance(0.3)}
    return (a,), {"ord": g.one_of(None, "fro", 1, -1, float("inf")), "axis": tuple(g.r.sample(range(g.ndim(a)), 2)),
                  "keepdims": g.chance(0.3)}


def cross(g):
    a = g.fresh((*g.new_shape(g.one_of(0, 1, 2)), 3))
    return (a, g.fresh(g.shape(a), g.dtype(a))), {}


def fourier(g):
    a = g.array(INEXACT, least=1)
    axis = g.axis(a)
    if 0 in g.shape(a):
        raise Unsuitable
    return (a,), {"n": None if g.chance(0.6) else g.r.randint(1, 12), "axis": axis,
                  "norm": g.one_of("backward", "ortho", "forward")}


def fourier_many(g):
    a = g.array(INEXACT, least=2)
    if 0 in g.shape(a):
        raise Unsuitable
    return (a,), {"axes": g.r.sample(range(g.ndim(a)), g.r.randint(1, 2)), "norm": g.one_of("backward", "ortho")}


def shifted(g):
    a = g.array()
    return (a,), {"axes": g.axes(a)}


def quantized(g):
    """quantize, then a product with what it gives: three steps' worth in one, through the program's own steps."""
    group = g.one_of(32, 64, 128)
    w = g.fresh((g.one_of(8, 16, 17), group * g.one_of(1, 2)), g.one_of("float32", "float32", "float16", "bfloat16"))
    return (w,), {"group_size": group, "bits": g.one_of(2, 3, 4, 5, 6, 8)}


def key(g):
    return g.fresh((2,), "uint32", g.numpy.integers(0, 2**32, 2))


def random_real(g):
    return (), {"shape": g.new_shape(), "dtype": Dtype(g.one_of(*FLOATS[:3])), "key": key(g)}


def random_integers(g):
    return (g.r.randint(-5, 0), g.r.randint(1, 20), g.new_shape()), {"dtype": Dtype(g.r.choice(INTEGERS[4:])),
                                                                     "key": key(g)}


def bernoulli(g):
    return (g.one_of(0.5, 0.2), g.new_shape()), {"key": key(g)}


def categorical(g):
    a = g.array(FLOATS, least=1)
    if 0 in g.shape(a):
        raise Unsuitable
    return (a,), {"axis": g.axis(a), "key": key(g)}


def permutation(g):
    return (g.r.randint(1, 20) if g.chance(0.3) else g.array(least=1),), {"key": key(g)}


def making(g):
    return (g.new_shape(), g.scalar() if g.chance(0.7) else g.array(ndim=0)), {
        "dtype": None if g.chance(0.5) else Dtype(g.new_dtype())}


def arange(g):
    start, stop = sorted(g.r.sample(range(-10, 30), 2))
    return g.one_of((stop,), (start, stop), (start, stop, g.one_of(1, 2, 0.5, 3)), (stop, start, -1)), {
        "dtype": None if g.chance(0.6) else Dtype(g.one_of("float32", "int32", "int64", "float16"))}


def linspace(g):
    return (g.scalar(), g.r.randint(1, 9)), {"num": g.r.randint(0, 9), "dtype": Dtype(g.one_of(*FLOATS))}


def eye(g):
    n = g.r.randint(0, 6)
    return (n, g.one_of(None, n, 3)), {"k": g.r.randint(-2, 2), "dtype": Dtype(g.new_dtype())}


def meshgrid(g):
    return (tuple(g.fresh(g.new_shape(1)) for _ in range(g.r.randint(1, 3))),
            {"indexing": g.one_of("xy", "ij"), "sparse": g.chance(0.3)})


def like(g):
    return (g.array(),), {}


def activation(g):
    return (g.array(FLOATS),), {}


TABLE = {
    **dict.fromkeys(UNARY, (0.6, unary)),
    **dict.fromkeys(BINARY, (1.0, binary)),
    **{f"operator.{name}": (0.7, operator_of) for name in OPERATORS if name != "matmul"},
    "operator.matmul": (1, matmul), "left_shift": (1, shift), "right_shift": (1, shift), "divmod": (1, binary),
    **dict.fromkeys(REDUCE, (1.5, reduction)),
    "var": (1, moments), "std": (1, moments), "argmax": (1, arg_reduction), "argmin": (1, arg_reduction),
    "minmax": (0.5, reduction), "median": (0.7, median), "count_nonzero": (0.5, reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), (0.8, scan)),
    "softmax": (1.5, softmax), "sort": (1, sorting), "argsort": (0.7, sorting), "partition": (0.3, kth),
    "topk": (0.5, topk),
    "reshape": (2, reshape), "transpose": (3, transpose), ".T": (1, unary), "flatten": (1, flatten),
    "unflatten": (0.5, unflatten),
    "squeeze": (1, squeeze), "expand_dims": (1.5, expand_dims), "broadcast_to": (2, broadcast_to),
    "swapaxes": (1.5, with_two_axes), "moveaxis": (1, with_two_axes), "matrix_transpose": (0.5, unary),
    "concatenate": (1.5, concatenate), "stack": (1, stack), "split": (1, split), "unstack": (0.5, unstack),
    "repeat": (1, repeat), "tile": (0.7, tile), "roll": (0.7, roll), "pad": (1, pad), "flip": (1, flip),
    "clip": (1, clip), "where": (1.5, where), "nan_to_num": (0.5, nan_to_num), "round": (0.7, rounding),
    "astype": (2, astype), "view": (0.5, view), "[]": (4, get_item), "[]=": (2.5, set_item),
    **{f"at.{name}": (0.5, at_update) for name in ("add", "multiply", "maximum", "minimum")},
    "take": (1, take), "take_along_axis": (1, take_along_axis), "put_along_axis": (0.7, put_along_axis),
    "matmul": (2, matmul), "addmm": (0.7, addmm), "inner": (0.5, inner), "outer": (0.5, outer), "vecdot": (0.4, vecdot),
    "tensordot": (0.5, tensordot), "einsum": (0.7, einsum), "kron": (0.4, kron),
    "diagonal": (0.7, diagonal), "trace": (0.4, diagonal), "diag": (0.5, diag), "tril": (0.5, triangle),
    "triu": (0.5, triangle),
    "diff": (0.5, diff), "isclose": (0.5, closeness), "allclose": (0.4, closeness), "array_equal": (0.4, closeness),
    "searchsorted": (0.4, searchsorted), "contiguous": (0.5, contiguous),
    "atleast_1d": (0.2, several_alone), "atleast_2d": (0.2, several_alone), "atleast_3d": (0.2, several_alone),
    "broadcast_arrays": (0.3, broadcast_arrays),
    "conv1d": (0.6, convolution(1)), "conv2d": (0.6, convolution(2)), "conv3d": (0.3, convolution(3)),
    "conv_transpose1d": (0.3, transposed_convolution(1)), "conv_transpose2d": (0.3, transposed_convolution(2)),
    "convolve": (0.3, convolve),
    "fast.rms_norm": (0.7, rms_norm), "fast.layer_norm": (0.7, layer_norm), "fast.rope": (0.7, rope),
    "fast.scaled_dot_product_attention": (0.7, attention),
    **{f"linalg.{name}": (0.3, linear_algebra) for name in ("inv", "det", "slogdet", "pinv", "lu_factor")},
    "linalg.eigvalsh": (0.3, symmetric), "linalg.solve": (0.3, solving), "linalg.norm": (0.7, norm),
    "linalg.cross": (0.3, cross),
    **{f"fft.{name}": (0.3, fourier) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft.{name}": (0.15, fourier_many) for name in ("fft2", "ifft2", "rfftn", "irfftn")},
    "fft.fftshift": (0.2, shifted), "fft.ifftshift": (0.2, shifted),
    "quantize": (0.4, quantized),
    "random.uniform": (0.3, random_real), "random.normal": (0.3, random_real), "random.gumbel": (0.2, random_real),
    "random.laplace": (0.2, random_real), "random.randint": (0.3, random_integers),
    "random.bernoulli": (0.3, bernoulli),
    "random.categorical": (0.3, categorical), "random.permutation": (0.3, permutation),
    "full": (0.4, making), "arange": (0.4, arange), "linspace": (0.3, linspace), "eye": (0.2, eye), "tri": (0.2, eye),
    "meshgrid": (0.3, meshgrid), "zeros_like": (0.2, like), "ones_like": (0.2, like),
    **{f"nn.{name}": (0.15, activation) for name in ACTIVATIONS},
}
