"""Random programs over MLX's API, as data: inputs and steps that any module with the API can run.

A step names a function ("add", "linalg.inv"), a method (".reshape"), an operator ("operator.add") or indexing ("[]",
"[]="), and its arguments; a Ref in them stands for a value: the inputs come first, then what each step gave. Programs
are grown on gomlx, whose shapes and dtypes tell which arguments make sense; a few are wrong on purpose, for the class
of the error.
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
        dtype = "float32" if dtypes is None or ("float32" in dtypes
                                                and self.chance(0.4)) else self.r.choice(list(dtypes))
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
