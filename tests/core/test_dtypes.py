"""Dtypes: names, promotion, categories, limits; numbers beside arrays."""
import copy
import pickle

import numpy as np
import pytest

import gomlx.core as mx

UNSIGNED, SIGNED = ["uint8", "uint16", "uint32", "uint64"], ["int8", "int16", "int32", "int64"]
FLOATING = ["float16", "bfloat16", "float32", "float64"]
NAMES = ["bool_", *UNSIGNED, *SIGNED, *FLOATING, "complex64"]


def dtype(name):
    return getattr(mx, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_is_itself(name):
    one = dtype(name)
    assert repr(one) == f"mlx.core.{name.rstrip('_')}" and one == one and hash(one) == hash(dtype(name))
    assert one != "float32" and one != None and {one: 1}[one] == 1                      # noqa: E711
    assert [other for other in NAMES if dtype(other) == one] == [name]
    assert pickle.loads(pickle.dumps(one)) is one and copy.deepcopy(one) is one and copy.copy(one) is one
    assert one.size == mx.array(1, one).itemsize == mx.array([1, 1], one).nbytes // 2
    with pytest.raises(TypeError):
        mx.Dtype(3)


def promoted(a, b):
    """MLX's table, stated again: within a kind the wider; integers of both kinds what holds both, or float32."""
    if a == b:
        return a
    rank = {"bool_": 0, **dict.fromkeys(UNSIGNED, 1), **dict.fromkeys(SIGNED, 2), **dict.fromkeys(FLOATING, 3),
            "complex64": 4}
    a, b = sorted((a, b), key=lambda name: (rank[name], dtype(name).size))
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if rank[a] == 1 and rank[b] == 2 and dtype(a).size >= dtype(b).size:
        return {1: "int16", 2: "int32", 4: "int64", 8: "float32"}[dtype(a).size]
    return b


@pytest.mark.parametrize("a", NAMES)
def test_promotion_of_every_pair(a):
    for b in NAMES:
        want = dtype(promoted(a, b))
        assert (mx.array(1, dtype(a)) + mx.array(1, dtype(b))).dtype == want
        assert mx.result_type(dtype(a), mx.array(1, dtype(b))) == want
        assert mx.can_cast(dtype(a), dtype(b)) == (want == dtype(b))


def test_promotion_of_many():
    assert mx.result_type(mx.int8) == mx.int8
    assert mx.result_type(mx.bool_, mx.uint8, mx.int8, mx.array(1.0, mx.float16)) == mx.float16
    for bad in ((), (1,), (mx.int8, 1.0), ("int8",)):
        with pytest.raises(ValueError):
            mx.result_type(*bad)
    with pytest.raises(ValueError):
        mx.can_cast(1, mx.int8)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_take_the_dtype_of_the_array(name):
    """A number beside an array has its dtype when that can hold the kind of number, else the number's own."""
    own = dtype(name)
    a = mx.array([0, 1], own)
    inexact = name in FLOATING or name == "complex64"
    for number, want in ((True, own), (1, mx.int32 if name == "bool_" else own), (1.5, own if inexact else mx.float32),
                         (1j, mx.complex64)):
        assert (a + number).dtype == (number + a).dtype == mx.multiply(a, number).dtype == want
    for number in (np.int64(1), np.float32(1.5), np.uint8(1), np.array(1.5), np.array([1.5, 2.5])):
        assert (a * number).dtype == mx.add(a, number).dtype == own


def test_numbers_that_do_not_fit():
    for name, number in (("int8", 300), ("uint8", -1), ("uint8", 256), ("int32", 2**31), ("uint16", 2**16)):
        with pytest.raises(ValueError):
            mx.array([1], dtype(name)) + number
    assert (mx.array([1], mx.uint64) - 2).tolist() == [2**64 - 1] == (mx.array([0], mx.uint64) + -1).tolist()
    assert (mx.array([1.0]) + 2**40).dtype == mx.float32


CATEGORIES = {"generic": NAMES, "number": NAMES[1:], "integer": UNSIGNED + SIGNED, "unsignedinteger": UNSIGNED,
              "signedinteger": SIGNED, "inexact": [*FLOATING, "complex64"], "floating": FLOATING,
              "complexfloating": ["complex64"]}


@pytest.mark.parametrize("category", CATEGORIES)
def test_categories(category):
    one = dtype(category)
    assert repr(one) == f"DtypeCategory.{category}" and one is getattr(mx.DtypeCategory, category)
    assert [name for name in NAMES if mx.issubdtype(dtype(name), one)] == [name for name in NAMES
                                                                           if name in CATEGORIES[category]]
    for other in CATEGORIES:
        assert mx.issubdtype(one, dtype(other)) == (set(CATEGORIES[category]) <= set(CATEGORIES[other]))
    assert not any(mx.issubdtype(one, dtype(name)) for name in NAMES)


def test_issubdtype_of_dtypes():
    assert mx.issubdtype(mx.float32, mx.float32) and not mx.issubdtype(mx.float32, mx.float64)
    for bad in ((3, mx.number), (mx.float32, "number")):
        with pytest.raises(ValueError):
            mx.issubdtype(*bad)


KINDS = {"bool": ["bool_"], "signed integer": SIGNED, "unsigned integer": UNSIGNED, "integral": SIGNED + UNSIGNED,
         "real floating": FLOATING, "complex floating": ["complex64"], "numeric": NAMES[1:]}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    for name in NAMES:
        assert mx.isdtype(dtype(name), kind) == (name in KINDS[kind])
        assert mx.isdtype(dtype(name), (kind, mx.bool_)) == (name in KINDS[kind] or name == "bool_")


def test_isdtype_of_dtypes():
    assert mx.isdtype(mx.int8, mx.int8) and not mx.isdtype(mx.int8, mx.int16) and not mx.isdtype(mx.int8, ())
    for bad in ("integer", mx.integer, [mx.int8], 3, ("bool", 3)):
        with pytest.raises(ValueError):
            mx.isdtype(mx.int8, bad)


@pytest.mark.parametrize("name", FLOATING)
def test_limits_of_floats(name):
    limits = mx.finfo(dtype(name))
    assert limits.dtype == dtype(name) and limits.bits == 8 * dtype(name).size and limits.min == -limits.max
    if name != "bfloat16":
        want = np.finfo(name)
        assert (limits.max, limits.eps, limits.smallest_normal) == (float(want.max), float(want.eps),
                                                                    float(want.smallest_normal))
    for value in (limits.max, limits.eps, limits.smallest_normal):
        assert mx.array(value, dtype(name)).item() == value
    one = mx.array(1, dtype(name))
    above = one + mx.array(limits.eps, dtype(name))
    assert (above > one).item() and (one + mx.array(limits.eps / 2, dtype(name)) == one).item()


def test_limits_of_complex_and_of_others():
    assert mx.finfo(mx.complex64).dtype == mx.float32 and mx.finfo(mx.complex64).max == mx.finfo(mx.float32).max
    assert repr(mx.finfo(mx.float16)) == "finfo(min=-65504, max=65504, dtype=float16)"
    assert repr(mx.iinfo(mx.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    for call in (lambda: mx.finfo(mx.int32), lambda: mx.finfo(mx.bool_), lambda: mx.iinfo(mx.float32),
                 lambda: mx.iinfo(mx.bool_)):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: mx.finfo("float32"), lambda: mx.iinfo(3)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("name", UNSIGNED + SIGNED)
def test_limits_of_integers(name):
    limits, want = mx.iinfo(dtype(name)), np.iinfo(name)
    assert (limits.min, limits.max, limits.dtype) == (want.min, want.max, dtype(name))


def test_large_ints_in_lists_are_exact():
    high = 2**63 + 5
    for values in ([high, 1], [1, high], [high], [0, 2**64 - 1], [[True, high], [2, 3]], [2**31, high]):
        assert mx.array(values).dtype == mx.uint64 and mx.array(values).tolist() == values
        assert mx.array(values, mx.uint64).tolist() == values
    assert mx.array([high, -1], mx.float32).tolist() == [float(2**63), -1.0]
    assert mx.array([high, 0.5]).dtype == mx.float32
    for ask in (None, mx.uint64, mx.int64):
        with pytest.raises(OverflowError):
            mx.array([high, -1], ask)
        with pytest.raises(OverflowError):
            mx.array([-1, high], ask)


def test_the_array_api_asks_the_namespace():
    info = mx.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 10}
    assert info.devices() == (mx.Device(mx.cpu),) and info.default_device() == mx.default_device()
    assert info.default_dtypes() == {"real floating": mx.float32, "complex floating": mx.complex64,
                                     "integral": mx.int32,
                                     "indexing": mx.int32}
    assert set(info.dtypes()) == {"bool", *SIGNED, *UNSIGNED, "float32", "float64", "complex64"}
    assert all(repr(one) == f"mlx.core.{name}" for name, one in info.dtypes().items())
    assert info.dtypes(kind=("bool", "real floating")) == {"bool": mx.bool_, "float32": mx.float32,
                                                           "float64": mx.float64}
    with pytest.raises(ValueError):
        info.dtypes(kind="bad")
