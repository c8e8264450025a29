"""Arguments for functions of shapes, order and indices: what each row of functions.TABLE there calls."""
import numpy as np
from programs import DTYPES, INEXACT, INTEGERS, Dtype, Unsuitable, run_step, settled


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
