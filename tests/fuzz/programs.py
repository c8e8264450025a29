"""Random programs over MLX's API, as data: inputs and steps that any module with the API can run.

A step names a function ("add", "linalg.inv"), a method (".reshape"), an operator ("operator.add") or indexing ("[]", "[]="), and
its arguments; a Ref in them stands for a value: the inputs come first, then what each step gave. Programs are grown on
gomlx, whose shapes and dtypes tell which arguments make sense; a few are wrong on purpose, for the class of the error.
"""
import operator
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INEXACT = [*FLOATS, "complex64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = [*UNSIGNED, "int8", "int16", "int32", "int64"]
DTYPES = ["bool_", *INTEGERS, *INEXACT]
DIMENSIONS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33]
LARGEST = 600                   # elements of an input


class Ref(NamedTuple):
    """A value of the program: an input, or an array that a step gave."""
    index: int


class Dtype(NamedTuple):
    """A dtype, by its name in the module that runs the program."""
    name: str


@dataclass
class Program:
    inputs: list = field(default_factory=list)      # (NumPy array, name of the dtype)
    steps: list = field(default_factory=list)       # (name, arguments, keyword arguments)
    counts: list = field(default_factory=list)      # of the arrays that each step gave; 0 where it raised


# ------------------------------------------------------------------------------------------------------------- running

def dtype_name(a):
    return str(a.dtype).rpartition(".")[2].replace("bool_", "bool").replace("bool", "bool_")


def make_input(mx, given):
    values, dtype = given
    return mx.array(values).astype(getattr(mx, dtype))


def arrays_of(mx, result):
    """The arrays in what a function returned; Python's own values become arrays."""
    if isinstance(result, mx.array):
        return [result]
    if isinstance(result, (list, tuple)):
        return [a for item in result for a in arrays_of(mx, item)]
    return [mx.array(result)]


def resolve(mx, nn, value, values):
    if isinstance(value, Ref):
        return values[value.index]
    if isinstance(value, Dtype):
        return getattr(mx, value.name)
    if isinstance(value, slice):
        return slice(*(resolve(mx, nn, part, values) for part in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)):
        return type(value)(resolve(mx, nn, item, values) for item in value)
    return value


def run_step(mx, nn, step, values):
    """The arrays that one step gives, of the values before it."""
    name, args, kwargs = step
    args = [resolve(mx, nn, a, values) for a in args]
    kwargs = {key: resolve(mx, nn, a, values) for key, a in kwargs.items()}
    if name == "[]":
        result = args[0][args[1]]
    elif name == "[]=":
        result = mx.array(args[0])
        result[args[1]] = args[2]
    elif name.startswith("at."):
        result = getattr(args[0].at[args[1]], name[3:])(args[2])
    elif name.startswith("."):
        result = getattr(args[0], name[1:])
        result = result(*args[1:], **kwargs) if callable(result) else result
    else:
        module, _, function = name.rpartition(".")
        owner = operator if module == "operator" else nn if module == "nn" else getattr(mx, module) if module else mx
        result = getattr(owner, function)(*args, **kwargs)
    return arrays_of(mx, result)


def source(program):
    """The program as lines of Python, to be read and run by hand."""
    def text(value):
        if isinstance(value, Ref):
            return f"v{value.index}"
        if isinstance(value, Dtype):
            return f"mx.{value.name}"
        if isinstance(value, slice):
            return f"slice({text(value.start)}, {text(value.stop)}, {text(value.step)})"
        if isinstance(value, (list, tuple)):
            inside = ", ".join(map(text, value)) + ("," if isinstance(value, tuple) and len(value) == 1 else "")
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        return repr(value)

    lines = []
    for i, (values, dtype) in enumerate(program.inputs):
        if values.size:
            made = f"mx.array({values.tolist()!r})".replace("nan", "math.nan").replace("inf", "math.inf")
        else:
            made = f"mx.zeros({values.shape})"
        lines.append(f"v{i} = {made}.astype(mx.{dtype})")
    n = len(lines)
    for (name, args, kwargs), count in zip(program.steps, program.counts):
        words = [text(a) for a in args]
        if name == "[]":
            call = f"{words[0]}[{words[1]}]"
        elif name == "[]=":
            call = f"mx.array({words[0]}); _[{words[1]}] = {words[2]}"
        elif name.startswith("at."):
            call = f"{words[0]}.at[{words[1]}].{name[3:]}({words[2]})"
        else:
            first = 1 if name.startswith(".") else 0
            inside = ", ".join(words[first:] + [f"{key}={text(a)}" for key, a in kwargs.items()])
            owner = "" if name.startswith(("operator.", "nn.")) else words[0] if first else "mx."
            call = f"{owner}{name}" + ("" if name in (".T", ".mT") else f"({inside})")
        names = ", ".join(f"v{i}" for i in range(n, n + count)) or "_"
        lines.append(f"{names} = {call}".replace("_[", f"{names}["))
        n += count
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------- growing

class Grower:
    """Grows one program step by step, running it on gomlx to know shapes and dtypes."""

    def __init__(self, seed, mx, nn):
        self.r, self.mx, self.nn = random.Random(seed), mx, nn
        self.numpy = np.random.default_rng(self.r.getrandbits(63))
        self.program, self.values, self.taken = Program(), [], []

    def chance(self, p):
        return self.r.random() < p

    def one_of(self, *choices):
        return self.r.choice(choices)

    def new_shape(self, ndim=None, least=0):
        ndim = self.r.choices([0, 1, 2, 3, 4], [1, 4, 6, 4, 2])[0] if ndim is None else ndim
        while True:
            shape = tuple(self.r.choice(DIMENSIONS if self.chance(0.15) else DIMENSIONS[1:]) for _ in range(ndim))
            if int(np.prod(shape)) <= LARGEST and all(n >= least for n in shape):
                return shape

    def new_dtype(self):
        return "float32" if self.chance(0.35) else self.r.choice(DTYPES)

    def numbers(self, shape, dtype):
        """Values that every dtype here holds: mostly small, seldom at the ends of the range."""
        if dtype == "bool_":
            return self.numpy.integers(0, 2, shape).astype(bool)
        if dtype in INTEGERS:
            low = 0 if dtype in UNSIGNED else -9
            values = self.numpy.integers(low, 10, shape).astype(dtype)
            if self.chance(0.08) and values.size:
                limits = np.iinfo(dtype)
                values.flat[self.r.randrange(values.size)] = self.one_of(limits.min, limits.max, 127)
            return values
        values = self.numpy.uniform(-3, 3, shape)
        if self.chance(0.3):
            values = np.round(values * 2) / 2
        if dtype == "complex64":
            return (values + 1j * self.numpy.uniform(-3, 3, shape)).astype(np.complex64)
        if self.chance(0.1) and values.size:
            values = np.array(values)
            for _ in range(self.r.randint(1, 3)):
                values.flat[self.r.randrange(values.size)] = self.one_of(0.0, -0.0, np.inf, -np.inf, np.nan, 1e4, 1e-4)
        return values.astype(np.float64 if dtype == "float64" else np.float32)

    def fresh(self, shape=None, dtype=None, values=None):
        """A new input of the program."""
        shape = self.new_shape() if shape is None else tuple(shape)
        dtype = dtype or self.new_dtype()
        given = (np.asarray(self.numbers(shape, dtype) if values is None else values), dtype)
        if self.program.steps:                      # inputs come first: the numbers of all values after them move
            at, move = len(self.program.inputs), lambda ref: Ref(ref.index + (ref.index >= at))
            self.program.steps = [(name, moved(args, move), moved(kwargs, move))
                                  for name, args, kwargs in self.program.steps]
            self.values.insert(at, make_input(self.mx, given))
            self.taken = [move(ref) for ref in self.taken]
        else:
            at = len(self.values)
            self.values.append(make_input(self.mx, given))
        self.program.inputs.append(given)
        return self.take(Ref(at))

    def take(self, ref):
        """Refs in the arguments under construction; they move when an input is added."""
        self.taken.append(ref)
        return Taken(self, len(self.taken) - 1)

    def array(self, dtypes=None, ndim=None, least=None):
        """An array of one of the dtypes, with ndim dimensions or at least so many."""
        def fits(a):
            return ((dtypes is None or dtype_name(a) in dtypes) and (ndim is None or a.ndim == ndim)
                    and (least is None or a.ndim >= least) and a.size <= LARGEST)

        if self.values and self.chance(0.7):
            fitting = [i for i, a in enumerate(self.values) if fits(a)]
            if fitting:                             # the newest is the likeliest: programs are chains
                return self.take(Ref(fitting[-1] if self.chance(0.7) else self.r.choice(fitting)))
        if ndim is None and least is not None:
            ndim = self.r.randint(least, max(least, 3))
        dtype = "float32" if dtypes is None or ("float32" in dtypes and self.chance(0.4)) else self.r.choice(list(dtypes))
        return self.fresh(self.new_shape(ndim), dtype if dtypes else None)

    def shape(self, taken):
        return tuple(self.values[taken.index].shape)

    def dtype(self, taken):
        return dtype_name(self.values[taken.index])

    def ndim(self, taken):
        return len(self.shape(taken))

    def beside(self, taken, dtypes=None):
        """An array whose shape broadcasts with that of another; seldom one that need not."""
        shape = self.shape(taken)
        if self.chance(0.03):
            return self.array(dtypes)
        kept = shape[self.r.randint(0, len(shape)):] if self.chance(0.3) else shape
        other = tuple(1 if self.chance(0.15) else n for n in kept)
        dtype = self.dtype(taken) if self.chance(0.5) else None
        if dtypes is not None and dtype not in dtypes:
            dtype = self.r.choice(list(dtypes))
        return self.fresh(other, dtype)

    def scalar(self):
        return self.r.choices([self.r.randint(-4, 9), round(self.r.uniform(-3, 3), 2), self.chance(0.5), 2.5j],
                              [5, 5, 1, 0.3])[0]

    def axis(self, taken, wrong=0.03):
        n = self.ndim(taken)
        return n + self.r.randint(0, 2) if self.chance(wrong) or n == 0 else self.r.randint(-n, n - 1)

    def axes(self, taken):
        n = self.ndim(taken)
        kind = self.r.random()
        if kind < 0.3 or n == 0:
            return None
        if kind < 0.75:
            return self.axis(taken)
        return tuple(a - n if self.chance(0.3) else a for a in self.r.sample(range(n), self.r.randint(0, n)))

    def grow(self, table, n_steps):
        """Adds steps until there are n_steps or one raises; returns the program."""
        names, makers, weights = zip(*((name, make, weight) for name, (weight, make) in table.items()))
        while len(self.program.steps) < n_steps:
            at = self.r.choices(range(len(names)), weights)[0]
            try:
                args, kwargs = makers[at](self)
            except Unsuitable:
                continue
            final = (names[at], settled(args), settled(kwargs))
            try:
                results = run_step(self.mx, self.nn, final, self.values)
            except Exception:                   # MLX is to raise too
                self.program.steps.append(final)
                self.program.counts.append(0)
                break
            if any(a.size > 20 * LARGEST for a in results):
                continue
            self.program.steps.append(final)
            self.program.counts.append(len(results))
            self.values += results
        return self.program


class Unsuitable(Exception):
    """No arguments for this function now."""


class Taken:
    """A value among the arguments under construction."""

    def __init__(self, grower, at):
        self.grower, self.at = grower, at

    @property
    def index(self):
        return self.grower.taken[self.at].index


def settled(value):
    if isinstance(value, Taken):
        return Ref(value.index)
    if isinstance(value, slice):
        return slice(settled(value.start), settled(value.stop), settled(value.step))
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, (Ref, Dtype)):
        return type(value)(settled(item) for item in value)
    return value


def moved(value, move):
    if isinstance(value, Ref):
        return move(value)
    if isinstance(value, slice):
        return slice(moved(value.start, move), moved(value.stop, move), moved(value.step, move))
    if isinstance(value, dict):
        return {key: moved(item, move) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, Dtype):
        return type(value)(moved(item, move) for item in value)
    return value


# ------------------------------------------------------------------------------------------------------------ functions

UNARY = """abs negative sign square sqrt rsqrt reciprocal exp expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan
    sinh cosh tanh arcsinh arccosh arctanh erf erfinv sigmoid floor ceil trunc positive degrees radians logical_not
    bitwise_invert isnan isinf isfinite isposinf isneginf real imag conjugate stop_gradient""".split()
BINARY = """add subtract multiply divide floor_divide remainder power maximum minimum logaddexp arctan2 equal not_equal less
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


def with_axis(g):
    a = g.array()
    return (a, g.axis(a)), {}


def with_two_axes(g):
    a = g.array()
    return (a, g.axis(a), g.axis(a)), {}


def unstack(g):
    a = g.array(least=1)
    return (a,), {"axis": g.axis(a)}


def reshape(g):
    a = g.array()
    shape = list(g.shape(a))
    g.r.shuffle(shape)
    if len(shape) > 1 and g.chance(0.5):
        shape[:2] = [shape[0] * shape[1]]
    if g.chance(0.2):
        shape.insert(g.r.randint(0, len(shape)), 1)
    if shape and g.chance(0.3):
        shape[g.r.randrange(len(shape))] = -1
    if g.chance(0.03):
        shape = shape + [2]
    return (a, tuple(shape)), {}


def transpose(g):
    a = g.array()
    n = g.ndim(a)
    axes = [x - n if g.chance(0.2) else x for x in g.r.sample(range(n), n)]
    if axes and g.chance(0.03):
        axes[0] = axes[-1]
    return (a, None if g.chance(0.3) else axes), {}


def flatten(g):
    a = g.array()
    if g.chance(0.3) or not g.ndim(a):
        return (a,), {}
    start = g.r.randrange(g.ndim(a))
    return (a,), {"start_axis": start, "end_axis": g.r.randint(start, g.ndim(a) - 1)}


def unflatten(g):
    a = g.array(least=1)
    axis = g.axis(a)
    n = g.shape(a)[axis] if -g.ndim(a) <= axis < g.ndim(a) else 4
    return (a, axis, g.one_of((1, n), (n, 1), (-1, 1), (n,), (2, -1))), {}


def squeeze(g):
    a = g.array()
    ones = [i for i, n in enumerate(g.shape(a)) if n == 1]
    return (a,), {"axis": None if g.chance(0.4) or not ones else g.one_of(ones[0], ones)}


def expand_dims(g):
    a = g.array()
    n = g.ndim(a)
    return (a, g.one_of(0, n, -1, -n - 1, (0, -1), (0, 2), n + 2 if g.chance(0.1) else 0)), {}


def broadcast_to(g):
    a = g.array()
    shape = [g.r.choice([2, 3, 5]) if n == 1 and g.chance(0.7) else n for n in g.shape(a)]
    return (a, tuple(g.new_shape(g.one_of(0, 1))) + tuple(shape)), {}


def several(g):
    """Arrays that differ along one axis at most, and that axis."""
    a = g.array(least=1)
    axis = g.axis(a)
    arrays = [a]
    for _ in range(g.r.randint(0, 3)):
        shape = list(g.shape(a))
        if -len(shape) <= axis < len(shape):
            shape[axis] = g.r.choice([0, 1, 2, 5])
        arrays.append(g.fresh(shape) if g.chance(0.97) else g.array())
    return arrays, axis


def concatenate(g):
    arrays, axis = several(g)
    return (arrays,), {"axis": axis}


def stack(g):
    a = g.array()
    arrays = [a] + [g.fresh(g.shape(a)) if g.chance(0.97) else g.array() for _ in range(g.r.randint(0, 2))]
    return (arrays,), {"axis": g.r.randint(-g.ndim(a) - 1, g.ndim(a))}


def split(g):
    a = g.array(least=1)
    axis = g.axis(a)
    n = g.shape(a)[axis] if -g.ndim(a) <= axis < g.ndim(a) else 4
    parts = [d for d in range(1, n + 1) if n % d == 0] or [1]
    where = g.r.choice(parts) if g.chance(0.6) else sorted(g.r.randint(0, n) for _ in range(g.r.randint(1, 3)))
    return (a, where if g.chance(0.97) else n + 1), {"axis": axis}


def repeat(g):
    a = g.array()
    return (a, g.r.randint(0, 3)), {"axis": None if g.chance(0.3) else g.axis(a)}


def tile(g):
    a = g.array()
    return (a, g.r.randint(0, 3) if g.chance(0.3) else [g.r.randint(1, 2) for _ in range(g.r.randint(1, 3))]), {}


def roll(g):
    a = g.array()
    axis = g.axes(a)
    shift = (g.r.randint(-5, 5) if not isinstance(axis, tuple) or g.chance(0.5)
             else tuple(g.r.randint(-5, 5) for _ in axis))
    return (a, shift, axis), {}


def pad(g):
    a = g.array()
    n = g.ndim(a)
    width = g.one_of(g.r.randint(0, 3), (g.r.randint(0, 3), g.r.randint(0, 3)),
                     [(g.r.randint(0, 3), g.r.randint(0, 3)) for _ in range(n)])
    mode = g.one_of("constant", "constant", "edge", "reflect", "symmetric")
    if mode in ("reflect", "symmetric", "edge") and 0 in g.shape(a):
        raise Unsuitable
    kwargs = {"constant_values": g.one_of(g.r.randint(0, 3), 1.5)} if mode == "constant" and g.chance(0.5) else {}
    return (a, width), {"mode": mode, **kwargs}


def clip(g):
    a = g.array()
    def bound():
        return None if g.chance(0.2) else g.scalar() if g.chance(0.6) else g.beside(a)
    return (a, bound(), bound()), {}


def where(g):
    c = g.array(["bool_"]) if g.chance(0.8) else g.array()
    x = g.beside(c)
    return (c, x, g.scalar() if g.chance(0.2) else g.beside(c)), {}


def nan_to_num(g):
    kwargs = {"nan": g.one_of(0, 1.5)} if g.chance(0.5) else {}
    return (g.array(),), kwargs


def rounding(g):
    return (g.array(),), {"decimals": g.one_of(0, 0, 1, 2, -1)}


def astype(g):
    a, dtype = g.array(), g.new_dtype()
    if dtype in INTEGERS and g.dtype(a) in INEXACT:     # out of range is undefined
        raise Unsuitable
    return (a, Dtype(dtype)), {}


def view(g):
    a = g.array([d for d in DTYPES if d != "bool_"])
    size = g.dtype(a)
    same = [d for d in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64") if d[-1] == size[-1]]
    return (a, Dtype(g.r.choice(same or ["uint8"]))), {}


def index_part(g, n):
    kind = g.r.random()
    if kind < 0.3:
        return g.r.randint(-n, n - 1) if n else slice(None)
    step = g.one_of(None, None, 1, 2, -1, -2, 3)
    ends = [None if g.chance(0.4) else g.r.randint(-n - 1, n + 1) for _ in range(2)]
    return slice(*ends, step)


def index(g, a):
    """What may stand in brackets after an array of this shape."""
    shape = g.shape(a)
    kind = g.r.random()
    if kind < 0.35 and shape and shape[0]:
        picks = g.new_shape(g.one_of(0, 1, 1, 2))
        least = -shape[0] if g.chance(0.3) else 0
        return g.fresh(picks, g.one_of("int32", "int64") if least else g.one_of("int32", "uint32", "int64", "uint8"),
                       g.numpy.integers(least, min(shape[0], 255), picks))
    parts = [index_part(g, n) for n in shape[:g.r.randint(0, len(shape))]]
    if g.chance(0.3):
        parts.insert(g.r.randint(0, len(parts)), None)
    if g.chance(0.3):
        parts.insert(len(parts), Ellipsis)
    return parts[0] if len(parts) == 1 else tuple(parts)


def get_item(g):
    a = g.array()
    return (a, index(g, a)), {}


def array_and_part(g):
    """An array, an index of it, and what that chooses."""
    a = g.array()
    at = index(g, a)
    try:
        return a, at, run_step(g.mx, g.nn, ("[]", (settled(a), settled(at)), {}), g.values)[0]
    except Exception:
        raise Unsuitable from None


def set_item(g):
    a, at, part = array_and_part(g)
    if g.chance(0.3):
        return (a, at, g.r.randint(0, 5)), {}
    dtype = g.dtype(a) if g.chance(0.8) else None
    value = g.fresh(part.shape if g.chance(0.8) else part.shape[g.r.randint(0, part.ndim):], dtype)
    return (a, at, value), {}


def at_update(g):
    a, at, part = array_and_part(g)
    return (a, at, g.fresh(part.shape, g.dtype(a)) if g.chance(0.7) else g.r.randint(0, 5)), {}


def take(g):
    a = g.array()
    axis = None if g.chance(0.3) else g.axis(a)
    n = int(np.prod(g.shape(a))) if axis is None else g.shape(a)[axis] if -g.ndim(a) <= axis < g.ndim(a) else 1
    if not n:
        raise Unsuitable
    if g.chance(0.2):
        return (a, g.r.randrange(n)), {"axis": axis}
    picks = g.new_shape(g.one_of(0, 1, 2))
    indices = g.fresh(picks, g.one_of("int32", "uint32", "int64", "uint8"),
                      g.numpy.integers(0, min(n, 255), picks))
    return (a, indices), {"axis": axis}


def along_axis(g):
    a = g.array(least=1)
    axis = g.r.randrange(g.ndim(a))
    shape = list(g.shape(a))
    n, shape[axis] = shape[axis], g.r.choice([1, 2, 3])
    if not n:
        raise Unsuitable
    picks = g.numpy.integers(0, n, shape)
    return a, g.fresh(shape, g.one_of("int32", "uint32", "int64"), picks), axis


def take_along_axis(g):
    a, picks, axis = along_axis(g)
    return (a, picks), {"axis": axis}


def put_along_axis(g):
    a = g.array(least=1)
    axis = g.r.randrange(g.ndim(a))
    shape = list(g.shape(a))
    n, shape[axis] = shape[axis], min(2, shape[axis])
    if not n:
        raise Unsuitable
    order = np.argsort(g.numpy.uniform(size=[*shape[:axis], n, *shape[axis + 1:]]), axis=axis)
    picks = np.take(order, range(shape[axis]), axis=axis)           # each place once: of several the last is undefined
    return (a, g.fresh(shape, "int32", picks), g.fresh(shape, g.dtype(a))), {"axis": axis}


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
                           ("ij,ik->jk", (m, 4)), ("ij,jk", (n, 2)), ("ij->ji", None), ("ij->j", None), ("...j->...", None))
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
    return (a, g.fresh((*shape[:-1], g.one_of(1, 3)) if g.chance(0.7) or len(shape) > 2 else shape[-1:], g.dtype(a))), {}


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
    return (g.r.randint(-5, 0), g.r.randint(1, 20), g.new_shape()), {"dtype": Dtype(g.r.choice(INTEGERS[4:])), "key": key(g)}


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
    **{name: (0.6, unary) for name in UNARY},
    **{name: (1.0, binary) for name in BINARY},
    **{f"operator.{name}": (0.7, operator_of) for name in OPERATORS if name != "matmul"},
    "operator.matmul": (1, matmul), "left_shift": (1, shift), "right_shift": (1, shift), "divmod": (1, binary),
    **{name: (1.5, reduction) for name in REDUCE},
    "var": (1, moments), "std": (1, moments), "argmax": (1, arg_reduction), "argmin": (1, arg_reduction),
    "minmax": (0.5, reduction), "median": (0.7, median), "count_nonzero": (0.5, reduction),
    **{name: (0.8, scan) for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")},
    "softmax": (1.5, softmax), "sort": (1, sorting), "argsort": (0.7, sorting), "partition": (0.3, kth), "topk": (0.5, topk),
    "reshape": (2, reshape), "transpose": (3, transpose), ".T": (1, unary), "flatten": (1, flatten), "unflatten": (0.5, unflatten),
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
    "diagonal": (0.7, diagonal), "trace": (0.4, diagonal), "diag": (0.5, diag), "tril": (0.5, triangle), "triu": (0.5, triangle),
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
    "linalg.eigvalsh": (0.3, symmetric), "linalg.solve": (0.3, solving), "linalg.norm": (0.7, norm), "linalg.cross": (0.3, cross),
    **{f"fft.{name}": (0.3, fourier) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft.{name}": (0.15, fourier_many) for name in ("fft2", "ifft2", "rfftn", "irfftn")},
    "fft.fftshift": (0.2, shifted), "fft.ifftshift": (0.2, shifted),
    "quantize": (0.4, quantized),
    "random.uniform": (0.3, random_real), "random.normal": (0.3, random_real), "random.gumbel": (0.2, random_real),
    "random.laplace": (0.2, random_real), "random.randint": (0.3, random_integers), "random.bernoulli": (0.3, bernoulli),
    "random.categorical": (0.3, categorical), "random.permutation": (0.3, permutation),
    "full": (0.4, making), "arange": (0.4, arange), "linspace": (0.3, linspace), "eye": (0.2, eye), "tri": (0.2, eye),
    "meshgrid": (0.3, meshgrid), "zeros_like": (0.2, like), "ones_like": (0.2, like),
    **{f"nn.{name}": (0.15, activation) for name in ACTIVATIONS},
}
