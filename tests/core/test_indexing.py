"""Indexing: a[key], a[key] = value, a.at[key] and the functions that take index arrays, with NumPy as the oracle."""
import sys

import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

KEYS = 250          # generated keys for each seed


class Keys:
    """Random shapes, keys and values of a seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def below(self, n):
        return int(self.rng.integers(n))

    def shape(self):
        return tuple(int(n) for n in self.rng.integers(1, 5, self.below(4) + 1))

    def slice(self, n):
        ends = [None if self.below(3) == 0 else int(self.rng.integers(-n - 1, n + 2)) for _ in range(2)]
        return slice(*ends, (None, 1, 2, -1, -2, 3)[self.below(6)])

    def key(self, shape):
        """A key of ints, slices, None, Ellipsis and index arrays that broadcast together. The Ellipsis stands for an
        axis at least: what it means between arrays when it stands for none is MLX's, not NumPy's."""
        index_shape = ((3,), (1,), (2, 3), (2, 1), ())[self.below(5)]
        with_arrays, key, axis, ellipsis = self.below(3) > 0, [], 0, False
        while axis < len(shape) or self.below(4) == 0:
            kind = self.below(8)
            if kind == 0:
                key.append(None)
            elif axis == len(shape):
                continue
            elif kind == 1:
                if not ellipsis:
                    key.append(Ellipsis)
                    ellipsis, axis = True, axis + 1 + self.below(len(shape) - axis)
            else:
                n, axis = shape[axis], axis + 1
                if kind <= 3:
                    key.append(int(self.rng.integers(-n, n)))
                elif kind <= 5 and with_arrays:
                    key.append(self.rng.integers(-n, n, index_shape if self.below(2) else index_shape[-1:]))
                else:
                    key.append(self.slice(n))
            if self.below(5) == 0:
                break
        taken = sum(item is not None and item is not Ellipsis for item in key)
        if ellipsis and taken >= len(shape):
            return Ellipsis
        return key[0] if len(key) == 1 and self.below(2) else tuple(key)

    def value(self, shape):
        """A value that broadcasts to the shape, sometimes with a dimension more or less."""
        shape = [1 if self.below(4) == 0 else n for n in shape]
        if self.below(3) == 0:
            shape = shape[self.below(len(shape) + 1):]
        elif self.below(5) == 0:
            shape = [1, *shape]
        return self.rng.integers(0, 999, shape).astype(np.int32)


def ours(key):
    if isinstance(key, tuple):
        return tuple(map(ours, key))
    return mx.array(key.astype(np.int32)) if isinstance(key, np.ndarray) else key


def same(got, want):
    got = np.array(got)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(4))
def test_generated_keys(seed):
    keys = Keys(seed)
    for _ in range(KEYS):
        shape = keys.shape()
        x, key = keys.rng.integers(0, 1000, shape).astype(np.int32), keys.key(shape)
        value = keys.value(x[key].shape)
        a = mx.array(x)
        alias, before = a, a[...]
        same(a[ours(key)], x[key])

        fitted = np.broadcast_to(value.reshape(value.shape[max(value.ndim - x[key].ndim, 0):]), x[key].shape)
        want = x.copy()
        want[key] = fitted
        a[ours(key)] = mx.array(value)
        assert alias is a
        same(alias, want)
        same(before, x)

        want = x.copy()
        np.add.at(want, key, fitted)
        same(mx.array(x).at[ours(key)].add(mx.array(value)), want)


@pytest.mark.parametrize("seed", range(2))
def test_functions_along_an_axis(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))
        order = [int(i) for i in rng.permutation(len(shape))]
        x = rng.integers(0, 1000, shape).astype(np.int32)
        a = mx.transpose(mx.array(x.transpose(order).copy()), [int(i) for i in np.argsort(order)])   # not contiguous
        axis = int(rng.integers(-len(shape), len(shape)))
        n = shape[axis]
        index = rng.integers(-n, n, tuple(int(k) for k in rng.integers(0, 4, rng.integers(0, 3))))
        same(mx.take(a, mx.array(index), axis=axis), np.take(x, index, axis=axis))
        along = list(shape)
        along[axis] = int(rng.integers(0, 5))
        index = rng.integers(-n, n, along)
        values = rng.integers(0, 99, along).astype(np.int32)
        same(mx.take_along_axis(a, mx.array(index), axis=axis), np.take_along_axis(x, index, axis=axis))
        want = x.copy()
        np.put_along_axis(want, index, values, axis=axis)
        same(mx.put_along_axis(a, mx.array(index), mx.array(values), axis=axis), want)


@pytest.mark.parametrize("seed", range(2))
def test_slices_that_begin_at_an_array(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        shape = [int(n) for n in rng.integers(1, 6, rng.integers(1, 5))]
        x = rng.integers(0, 1000, shape).astype(np.int32)
        start = [int(rng.integers(n)) for n in shape]
        size = [int(rng.integers(n - s + 1)) for n, s in zip(shape, start, strict=True)]
        region = tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))
        axes = tuple(range(len(shape)))
        same(mx.slice(mx.array(x), mx.array(start), axes, size), x[region])
        update, want = rng.integers(0, 9, size).astype(np.int32), x.copy()
        want[region] = update
        same(mx.slice_update(mx.array(x), mx.array(update), mx.array(start), axes), want)


def test_a_slice_stays_inside():
    x = mx.arange(6)
    assert mx.slice(x, mx.array([4]), (0,), (3,)).tolist() == [3, 4, 5]
    assert mx.slice(x, mx.array([-9]), (0,), (2,)).tolist() == [0, 1]
    assert mx.slice_update(x, mx.array([7, 7]), mx.array([99]), (0,)).tolist() == [0, 1, 2, 3, 7, 7]


def test_slice_update_without_leading_axes():
    x = mx.full((2, 3, 4), 0)
    got = np.array(mx.slice_update(x, mx.array([9]), mx.array([1, 1]), (1, 2)))
    want = np.zeros((2, 3, 4), np.int32)
    want[:, 1, 1] = 9
    np.testing.assert_array_equal(got, want)


ROWS, COLUMNS = 5, 70                       # so that rows are copied by vectors and by elements
FAR = [ROWS, -ROWS - 1, 2**31 - 1, -2**31]


def out_of_range():
    """Every way to read or write by an index: a function of the index, which is an int or an array of them."""
    x, wide = mx.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS), mx.ones((2000, ROWS))
    mx.eval(x, wide)

    def assigned(key, value=1):
        y = x + 0
        y[key] = value
        return y

    def along(i, a=x):
        return mx.broadcast_to(mx.array(i).reshape(-1, *[1] * (a.ndim - 1)), (mx.array(i).size, *a.shape[1:]))
    return {
        "x[i]": lambda i: x[i], "x[i, :3]": lambda i: x[i, :3], "x[..., i, None, :]": lambda i: x[..., i, None, :],
        "x.T[:, i]": lambda i: x.T[:, i], "x[i, j]": lambda i: x[i, mx.array([0])],
        "take": lambda i: mx.take(x, i, axis=0), "take of the last axis": lambda i: mx.take(wide, i, axis=-1),
        "take of the flattened": lambda i: mx.take(x[:, 0], i), "x[i] = 1": lambda i: assigned(i),
        "x[i, 2:] = 1": lambda i: assigned((i, slice(2, None))), "x[i, j] = 1": lambda i: assigned((i, mx.array([0]))),
        **{f"at.{name}": lambda i, name=name: getattr(x.at[i], name)(2)
           for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")},
        "at of float16": lambda i: x.astype(mx.float16).at[i].add(mx.ones(COLUMNS)),
        "take_along_axis": lambda i: mx.take_along_axis(x, along(i), axis=0),
        "put_along_axis": lambda i: mx.put_along_axis(x, along(i), mx.array(1), axis=0),
        "gradient": lambda i: mx.grad(lambda y: y[i].sum())(x.astype(mx.float32)),
        "compiled": lambda i: mx.compile(lambda y, i: y[i] * 2)(x, i if isinstance(i, mx.array) else mx.array(i)),
        "vmap": lambda i: mx.vmap(lambda y: y[i])(x.T),
    }


@pytest.mark.parametrize("name", out_of_range())
@pytest.mark.parametrize("i", FAR)
def test_an_index_out_of_range_is_an_index_error(name, i):
    """Of an int at once (but where it becomes an array first); of an array when it is evaluated. Nothing beside the
    axis is read or written."""
    use = out_of_range()[name]
    if not name.endswith("along_axis") and name != "compiled":
        with pytest.raises(IndexError, match=rf"index {i} is out of range"):
            use(i)
    for index in (mx.array([0, i]), mx.array([[1] * 1500 + [i]] * 3)[:1].reshape(-1), mx.array([-1, i], mx.int64)):
        lazy = use(index)
        with pytest.raises(IndexError, match=rf"index {i} is out of range for an axis with {ROWS} items"):
            mx.eval(lazy)
        with pytest.raises(IndexError, match=rf"index {i} is out of range"):
            lazy.tolist()
    assert use(mx.array([0, -ROWS, ROWS - 1])).sum().item() == use(mx.array([0, 0, -1])).sum().item()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16"])
def test_indices_of_other_dtypes_out_of_range(dtype):
    x, top = mx.arange(100), (1 << 8 * getattr(mx, dtype).size - dtype.startswith("i")) - 1
    mx.eval(x)
    for i in (100, top):
        with pytest.raises(IndexError, match=f"index {i if i < 1 << 63 else '-1'} is"):
            mx.eval(x[mx.array([3, i], getattr(mx, dtype))])
    with pytest.raises(IndexError, match="index 100 is out of range for an axis with 100 items"):
        mx.eval(x.reshape(10, 10)[mx.array([1, 2]), mx.array([3, 3])], x[mx.array([100], getattr(mx, dtype))])


@pytest.mark.parametrize("side", ["lhs_indices", "rhs_indices"])
def test_indices_of_matrices_out_of_range(side):
    a, b = mx.arange(24.0).reshape(3, 2, 4), mx.arange(384.0).reshape(3, 4, 32)
    packed = mx.quantize(b.swapaxes(1, 2).reshape(3, 32, 4) @ mx.ones((4, 64)), group_size=32)
    x = mx.ones((3, 2, 64))
    for multiply in (lambda **i: mx.gather_mm(a, b, **i), lambda **i: mx.gather_qmm(x, *packed, group_size=32, **i)):
        np.testing.assert_array_equal(np.array(multiply(**{side: mx.array([-1, 0, -3])})),
                                      np.array(multiply(**{side: mx.array([2, 0, 0])})))
        for i in (3, -4, 2**31 - 1):
            with pytest.raises(IndexError, match=f"index {i} is out of range for an axis with 3 items"):
                mx.eval(multiply(**{side: mx.array([0, 1, i])}))


@pytest.mark.parametrize("n", [6, 100000])
def test_an_index_error_takes_only_what_depends_on_it(n):
    x = mx.arange(n) + 0
    kept, bad = x * 2, x[mx.array([n])]
    mx.eval(x, kept)
    below = bad + kept[:1]
    with pytest.raises(IndexError):
        mx.eval(kept, below)
    for lost in (bad, below, below * 2):
        with pytest.raises(IndexError, match=f"index {n} is out of range"):
            lost.tolist()
    assert kept[:3].tolist() == [0, 2, 4] and x[mx.array([5])].item() == 5 and (kept.sum() - x.sum() * 2).item() == 0


DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
          "float64",
          "complex64"]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("method", ["add", "multiply", "maximum", "minimum"])
def test_updates_that_meet(name, method):
    if name == "complex64" and method in ("maximum", "minimum"):
        pytest.skip("complex numbers have no order")
    rng = np.random.default_rng(3)
    for shape, count in (((7,), 50), ((7, 1), 33), ((5, 40), 12), ((3, 2, 4), 9)):
        x, index = rng.integers(1, 3, shape), rng.integers(-shape[0], shape[0], count)
        update = rng.integers(1, 3, (count, *shape[1:]))
        if method == "multiply":
            update = np.where(rng.random(update.shape) < 0.8, 1, update)
        want = x.copy()
        getattr(np, method).at(want, index, update)
        dtype = getattr(mx, name)
        got = getattr(mx.array(x).astype(dtype).at[mx.array(index)], method)(mx.array(update).astype(dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.array(got.astype(mx.float32)), want)


@pytest.mark.parametrize("shape", [(100,), (100, 1), (100, 3), (20, 100)])
def test_large_updates_come_in_order(shape):
    """Above the sizes from which threads share the work; and each update in turn, so the last one stays."""
    rng = np.random.default_rng(5)
    count = 40000
    index, update = rng.integers(0, shape[0], count), rng.random((count, *shape[1:])).astype(np.float32)
    want = np.zeros(shape, np.float32)
    want[index] = update
    x = mx.full(shape, 0.0)
    x[mx.array(index)] = mx.array(update)
    np.testing.assert_array_equal(np.array(x), want)
    want = np.zeros(shape, np.float32)
    np.add.at(want, index, update)
    np.testing.assert_array_equal(np.array(mx.full(shape, 0.0).at[mx.array(index)].add(mx.array(update))), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_summed_in_float32(dtype):
    dtype = getattr(mx, dtype)
    ones = mx.full((10000, 4), 1.0, dtype)
    got = mx.full((3, 4), 0.0, dtype).at[mx.array([1] * 10000)].add(ones)
    assert got.astype(mx.float32).tolist() == [[0] * 4,
                                               mx.array([10000.0] * 4).astype(dtype).astype(mx.float32).tolist(),
                                               [0] * 4]


def test_at():
    x = mx.array([1.0, 2.0, 3.0, 4.0])
    assert x.at[1].add(5).tolist() == [1, 7, 3, 4]
    assert x.at[mx.array([0, 0])].subtract(mx.array([1.0, 2.0])).tolist() == [-2, 2, 3, 4]
    assert x.at[mx.array([3, 3])].divide(2).tolist() == [1, 2, 3, 1]
    assert x.at[1:3].divide(2).tolist() == [1, 1, 1.5, 4]
    assert x.at[::-2].maximum(3).tolist() == [1, 3, 3, 4]
    assert x.at[x > 2].multiply(0).tolist() == [1, 2, 0, 0]
    assert x.at[...].minimum(2).tolist() == [1, 2, 2, 2]
    assert x.tolist() == [1, 2, 3, 4]
    assert type(x.at[0]).__name__ == "ArrayAt"
    with pytest.raises(ValueError):
        x.at.add(1)


def test_masks_are_written_by():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    for mask in (x > 2, np.array([True, False]), np.array([False, False])):
        for m in (mx.array(mask), mask, mask.tolist()):
            a, want = mx.array(x), x.copy()
            a[m] = 9
            want[mask] = 9
            same(a, want)
    a = mx.array(x)
    a[mx.array([True, False])] = mx.array([7, 8, 9])
    a[False] = 3
    assert a.tolist() == [[7, 8, 9], [3, 4, 5]]
    a[True] = 1
    assert a.tolist() == [[1, 1, 1], [1, 1, 1]]
    a[mx.array(False)] = 5
    assert a.tolist() == [[1, 1, 1], [1, 1, 1]]
    for mask in (mx.array([True, False, True]), mx.array([[True]]), mx.array([[[True]]])):
        with pytest.raises(ValueError):
            a[mask] = 1
    for read in (mx.array([True, False]), True, [True, False], np.array([True, False])):
        with pytest.raises(ValueError):
            a[read]


def test_nothing_is_written_where_a_mask_is_false():
    a = mx.arange(4)
    a[a > 9] = mx.array([], mx.int32)
    assert a.tolist() == [0, 1, 2, 3]


def added(x, mask, rows):
    want = x.copy()
    want[mask] += rows[:-2]
    return want


def test_masks_choose_places_for_rows_in_order():
    rng = np.random.default_rng(0)
    for shape, n in (((2, 3), 1), ((2, 3), 2), ((5,), 1), ((4, 3, 2), 2), ((4, 3, 2), 1), ((300, 7), 2)):
        x, mask = rng.integers(0, 9, shape).astype(np.int32), rng.random(shape[:n]) < 0.5
        mask.flat[0] = mask.flat[-1] = True
        rows = rng.integers(10, 99, (int(mask.sum()) + 2, *shape[n:])).astype(np.int32)
        a, want = mx.array(x), x.copy()
        a[mx.array(mask)] = mx.array(rows)
        want[mask] = rows[:-2]
        same(a, want)
        same(mx.array(x).at[mx.array(mask)].add(mx.array(rows)), added(x, mask, rows))
        a = mx.array(x)
        a[mx.array(mask)] = mx.array(rows[:, :1]) if rows.ndim > 1 else mx.array(rows[:1])
        want[mask] = rows[:-2, :1] if rows.ndim > 1 else rows[:1]
        same(a, want)
    a = mx.array([1, 2, 3, 4])
    a[a > 1] = mx.array([7, 8])         # too few: what is left keeps its value
    assert a.tolist() == [1, 7, 8, 4]
    x0, w = mx.array([1.0, -1.0, 2.0]), mx.array([10.0, 20.0, 30.0])
    gradients = mx.grad(lambda x, u: (written(x0 > 0, None)(x, u) * w).sum(), argnums=(0, 1))
    assert [g.tolist() for g in gradients(x0, mx.array([5.0, 6.0]))] == [[0, 20, 0], [10, 30]]
    for wrong in (mx.full((2, 2), 1), mx.full((1, 1, 1), 1)):
        with pytest.raises(ValueError):
            a[a > 1] = wrong


def test_values_of_other_dtypes_are_cast():
    a = mx.array([1, 2, 3])
    a[0] = 7.9
    a[1:] = mx.array([1.5, -2.5])
    assert a.tolist() == [7, 1, -2] and a.dtype == mx.int32
    a[0] = True
    assert a.tolist() == [1, 1, -2]
    with pytest.raises(ValueError):
        a[0] = 2**40
    for bad in ("x", {}, object()):
        with pytest.raises(ValueError):
            a[0] = bad


def test_errors_of_assignment():
    a = mx.full((2, 3), 0)
    for key, value in ((0, mx.array([1, 2])), ((slice(None), 0), mx.array([1, 2, 3])),
                       (slice(None), mx.full((2, 3, 1), 1)),
                       ((0, 0, 0), 1), ((Ellipsis, Ellipsis), 1), ("x", 1), (1.5, 1), ([0.5], 1),
                       (slice(None, None, 0), 1)):
        with pytest.raises(ValueError):
            a[key] = value
    with pytest.raises(IndexError):
        a[5] = 1
    with pytest.raises(TypeError):
        del a[0]
    assert a.tolist() == [[0] * 3] * 2


def test_errors_of_functions():
    x = mx.full((2, 3), 1.0)
    i = mx.array([0, 1])
    for call in (lambda: mx.take(x, mx.array([0.5]), axis=0), lambda: mx.take(mx.full((0, 3), 1), i, axis=0),
                 lambda: mx.take_along_axis(x, i, axis=0), lambda: mx.put_along_axis(x, i, x, axis=0),
                 lambda: mx.slice(x, i, (0,), (1, 1)), lambda: mx.slice(x, i, (0, 0), (1, 1)),
                 lambda: mx.slice(x, i, (0, 1), (3, 1)), lambda: mx.slice(x, mx.array([0.5]), (0,), (1, 1)),
                 lambda: mx.slice_update(x, mx.full((3, 3), 1.0), i, (0, 1)), lambda: x[i, mx.array([0, 1, 2])]):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: mx.take(x, i, axis=2), lambda: mx.take_along_axis(x, mx.full((2, 3), 0), axis=-3),
                 lambda: mx.slice(x, i, (0, 2), (1, 1))):
        with pytest.raises(IndexError):
            call()
    for call in (lambda: mx.take(x, [0, 1], axis=0), lambda: mx.take([1.0], i), lambda: mx.slice(x, [0], (0,), (1, 1))):
        with pytest.raises(TypeError):
            call()


def test_assignment_in_a_loop_writes_in_place():
    cache = mx.full((4, 256, 64), 0.0)
    mx.eval(cache)
    size = cache.nbytes
    step = mx.full((4, 1, 64), 1.0)
    rows = mx.array([3, 200])
    mx.eval(step, rows)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for i in range(20):
        cache[:, i:i + 1, :] = step
        mx.eval(cache)
    cache[:, rows, :] = 2
    mx.eval(cache)
    assert mx.get_peak_memory() - before < size
    want = np.zeros((4, 256, 64))
    want[:, :20] = 1
    want[:, [3, 200]] = 2
    np.testing.assert_array_equal(np.array(cache), want)


# ---- gradients and batching ----

def written(key, mode):
    """x with u written to x[key]."""
    def write(x, u):
        if mode is not None:
            return getattr(x.at[key], mode)(u)
        x = x * 1
        x[key] = u
        return x
    return write


I, J, K = mx.array([0, 2, 1]), mx.array([[1], [3]]), mx.array([0, 0, 2, 1])
READERS = [lambda x: x[I], lambda x: x[:, K], lambda x: x[..., K], lambda x: x[I, :, J], lambda x: x[I, 1:3, 0],
           lambda x: x[-1],
           lambda x: x[::-1, None, 1:3], lambda x: mx.take(x, K, axis=1), lambda x: mx.take(x, K),
           lambda x: mx.take(x, 2, axis=-1),
           lambda x: mx.take_along_axis(x, mx.array([[[0], [3], [3]]]), axis=1),
           lambda x: mx.slice(x, mx.array([1, 2]), (0, 2), (1, 4, 2))]
WRITERS = [(written(0, None), (4, 5)), (written((slice(None), 1), None), (3, 5)), (written(I, None), (3, 1, 5)),
           (written((I, I), "subtract"), (3, 5)), (written((slice(None), K), "add"), (3, 4, 5)),
           (written((I, slice(1, 3), mx.array([0, 0, 4])), "add"), (3, 2)), (written(K, "multiply"), (4, 4, 5)),
           (written(K, "maximum"), (4, 4, 5)), (written(I, "minimum"), (5,)),
           (written(slice(0, 3, 2), "divide"), (2, 4, 5)),
           (lambda x, u: mx.put_along_axis(x, mx.array([[[0], [3]]]), u, axis=1), (3, 2, 5)),
           (lambda x, u: mx.slice_update(x, u, mx.array([1, 2]), (0, 2)), (1, 4, 2))]


def check_gradient(function, arrays, rng):
    """Along a random direction: the gradient's component against a central difference, in float64."""
    directions = [mx.array(rng.normal(size=a.shape), mx.float64) for a in arrays]
    weights = mx.array(rng.normal(size=function(*arrays).shape), mx.float64)

    def scalar(*args):
        return (function(*args) * weights).sum()

    gradients = mx.vjp(scalar, arrays, [mx.array(1.0, mx.float64)])[1]
    got = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    step = mx.array(1e-6, mx.float64)
    up = scalar(*(a + step * d for a, d in zip(arrays, directions, strict=True))).item()
    down = scalar(*(a - step * d for a, d in zip(arrays, directions, strict=True))).item()
    np.testing.assert_allclose(got, (up - down) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("number", range(len(READERS)))
def test_gradients_of_reading(number):
    rng = np.random.default_rng(number)
    check_gradient(READERS[number], [mx.array(rng.normal(size=(3, 4, 5)), mx.float64)], rng)


@pytest.mark.parametrize("number", range(len(WRITERS)))
def test_gradients_of_writing(number):
    rng = np.random.default_rng(number)
    function, shape = WRITERS[number]
    check_gradient(function, [mx.array(rng.normal(size=s), mx.float64) for s in ((3, 4, 5), shape)], rng)


def batches(*arrays):
    """Every choice of arrays that are batched (the others lose their first axis)."""
    for choice in range(1, 1 << len(arrays)):
        yield [0 if choice >> i & 1 else None for i in range(len(arrays))]


X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
U = np.random.default_rng(1).normal(size=(3, 2, 5)).astype(np.float32)
N = np.array([[0, 0], [1, 3], [-1, 2]], np.int32)
BATCHED = {
    "first axis": (lambda x, n: x[n], X, N),
    "last axis": (lambda x, n: x[:, n], X, N),
    "one index": (lambda x, n: x[n[0]], X, N),
    "two arrays": (lambda x, n: x[n[:, None], n], X, N),
    "arrays apart": (lambda x, n: x[None][mx.array([0]), :, n], X, N),
    "take": (lambda x, n: mx.take(x, n, axis=-1), X, N),
    "along": (lambda x, n: mx.take_along_axis(x, n[:, None], axis=0), X, N),
    "add": (lambda x, n, u: x.at[n].add(u), X, N, U),
    "add behind": (lambda x, n, u: x.at[1:3, n].add(u[:, :2]), X, N, U),
    "write": (lambda x, n, u: mx.put_along_axis(x, mx.broadcast_to(n[:1, None], (1, 5)), u[:1], axis=0), X, N, U),
    "slice": (lambda x, n: mx.slice(x, n, (0, 1), (2, 3)), X, N),
    "slice of one axis": (lambda x, n: mx.slice(x, n[:1], (1,), (3, 2)), X, N),
    "slice update": (lambda x, n, u: mx.slice_update(x, u[:, :3], n, (0, 1)), X, N, U),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batching(name):
    function, *arrays = BATCHED[name]
    for axes in batches(*arrays):
        args = [mx.array(a if axis == 0 else a[1]) for a, axis in zip(arrays, axes, strict=True)]
        got = mx.vmap(function, in_axes=tuple(axes))(*args)
        want = [np.array(function(*(a[i] if axis == 0 else a for a, axis in zip(args, axes, strict=True))))
                for i in range(3)]
        np.testing.assert_array_equal(np.array(got), np.stack(want))


@pytest.mark.parametrize("text", ["x[:2**32]", "x[-2**40:]", "x[:2**31]", "x[::2**32]", "x[-2**31 - 1:]", "x[2**31:]",
                                  "x[None, :2**40]", "x[5:2**33:-1]", "x.at[:2**32].add(1)",
                                  "x.__setitem__(slice(2**32), 7)"])
def test_slices_beyond_int32(text):
    x = mx.arange(4)
    with pytest.raises(ValueError, match="32-bit"):
        eval(text, {"x": x})
    assert x.tolist() == [0, 1, 2, 3]


def test_the_ends_of_slices():
    x = mx.arange(4)
    assert x[:2**31 - 1].tolist() == x[-2**31:].tolist() == x[:sys.maxsize].tolist() == x[:].tolist() == [0, 1, 2, 3]
    assert x[::-1].tolist() == x[None:None:-1].tolist() == [3, 2, 1, 0] and x[2:].tolist() == [2, 3]


def test_take_along_the_last_axis():
    a, i = mx.array([[3, 1], [4, 2]]), mx.array([[0, 0], [1, 0]])
    assert mx.take_along_axis(a, i).tolist() == mx.take_along_axis(a, i, -1).tolist() == [[3, 3], [2, 4]]
    assert mx.take_along_axis(a, mx.array([0, 3]), None).tolist() == [3, 2]
    with pytest.raises(ValueError, match="take_along_axis"):
        mx.take_along_axis(a, mx.array([0, 1]))


def test_no_indices_along_an_axis():
    """array([]) is float32: as indices it is none of them."""
    e, a = mx.array([]), mx.array([[3, 1], [4, 2]])
    for axis in (None, 0, -1):
        assert mx.put_along_axis(e, e, e, axis=axis).tolist() == mx.take_along_axis(e, e, axis=axis).tolist() == []
    assert mx.take_along_axis(a, mx.zeros((2, 0)), axis=1).shape == (2, 0)
    assert mx.put_along_axis(a, mx.zeros((2, 0)), mx.zeros((2, 0)), axis=1).tolist() == a.tolist()
    with pytest.raises(ValueError, match="integers"):
        mx.take_along_axis(a, mx.array([[1.0], [0.0]]), axis=1)


def test_an_axis_of_one_has_no_second_last_item():
    """MLX reads what lies before the array there; docs/mlx-differences.md says so."""
    x = mx.arange(6).reshape(1, 6)
    for use in (lambda: x[-2], lambda: x.T[:, -2], lambda: x[-2:-1][-1], lambda: [x][0][-2, 0]):
        with pytest.raises(IndexError, match="index -[12] is out of range"):
            use()
