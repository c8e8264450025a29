"""Compiled functions: what is traced again, state, functions without shapes, fused chains."""
import importlib
import math

import numpy as np
import pytest
from tracing import close, counted, scalar

import gomlx.core as mx


def test_one_trace_for_each_kind_of_arguments():
    f, calls = counted(lambda x, k=1: x * k + 1)
    g = mx.compile(f)
    for args in [(mx.zeros(2),), (mx.ones(2),), (mx.zeros(2), 1), (mx.ones(2), 1)]:
        g(*args)
    assert len(calls) == 2
    for args in [(mx.zeros(3),), (mx.zeros(2, dtype=mx.float16),), (mx.zeros(2), 2), (mx.zeros(2), 2.0),
                 (mx.zeros(2), 3)]:
        g(*args)
    assert len(calls) == 7
    assert g(mx.ones(2), 2).tolist() == [3, 3] and len(calls) == 7


def test_constants_that_compare_equal_are_not_the_same():
    g = mx.compile(lambda x, k: mx.full((1,), k) / mx.abs(x))
    x = mx.array([math.inf])
    assert math.copysign(1, g(x, 0.0).item()) == 1 and math.copysign(1, g(x, -0.0).item()) == -1
    f, calls = counted(lambda x, k: x)
    g = mx.compile(f)
    g(x, math.nan), g(x, math.nan)
    assert len(calls) == 1
    with pytest.raises(ValueError):
        g(x, object())


def test_state_is_read_and_updated():
    state = {"n": scalar(0), "deep": [{"w": scalar(1)}]}

    def step(x):
        state["n"] += 1
        state["deep"][0]["w"] = state["deep"][0]["w"] * x
        return state["n"] * 10
    f, calls = counted(step)
    g = mx.compile(f, inputs=state, outputs=state)
    inner = state["deep"][0]
    assert [g(scalar(2)).item() for _ in range(3)] == [10, 20, 30] and len(calls) == 1
    assert state["n"].item() == 3 and inner["w"].item() == 8 and state["deep"][0] is inner
    state["n"] = scalar(10)
    assert g(scalar(2)).item() == 110


def test_state_that_grows_while_it_is_traced():
    state = {}

    def step(x):
        state["sum"] = state.get("sum", 0) + x
        return x
    f, calls = counted(step)
    g = mx.compile(f, inputs=state, outputs=state)
    for n in range(1, 4):
        g(scalar(1))
        assert state["sum"].item() == n
    assert len(calls) == 2
    state.clear()
    g(scalar(5))
    assert state["sum"].item() == 5


def test_an_exception_while_tracing_leaves_the_state():
    state = [scalar(1)]
    fail = [True]

    def step(x):
        state[0] = state[0] + x
        state.append(x)
        if fail:
            raise KeyError("x")
        state.pop()
        return state[0]
    g = mx.compile(step, inputs=state, outputs=state)
    with pytest.raises(KeyError):
        g(scalar(1))
    assert len(state) == 1 and state[0].item() == 1
    fail.clear()
    assert g(scalar(1)).item() == 2 and state[0].item() == 2


def test_random_state_is_a_state():
    g = mx.compile(lambda: mx.random.uniform(shape=(4,)), inputs=mx.random.state, outputs=mx.random.state)
    mx.random.seed(3)
    first, second = g().tolist(), g().tolist()
    mx.random.seed(3)
    assert g().tolist() == first != second
    plain = mx.compile(lambda: mx.random.uniform(shape=(4,)))          # nothing tells one call from another
    assert plain().tolist() != plain().tolist()


@pytest.mark.parametrize("read", [lambda x: x.item(), lambda x: mx.eval(x), lambda x: x.tolist(), bool,
                                  lambda x: mx.async_eval(x), np.asarray])
@pytest.mark.parametrize("transform", [mx.compile, mx.vmap])
def test_values_cannot_be_read_while_tracing(transform, read):
    def f(x):
        read(x.sum())
        return x
    with pytest.raises(ValueError):
        transform(f)(mx.zeros((2, 2)))


@pytest.mark.parametrize("transform", [mx.compile, mx.vmap, mx.grad, mx.value_and_grad], ids=lambda t: t.__name__)
def test_async_eval_while_tracing_says_what_programs_look_for(transform):
    def f(x):
        mx.async_eval(x * 2)
        return x.sum()
    with pytest.raises(ValueError, match="Not allowed inside a graph transformation"):
        transform(f)(mx.ones((2, 2)))


def test_what_leaks_out_of_a_trace_has_no_value():
    kept = []
    mx.compile(lambda x: (kept.append(x * 2), x)[1])(scalar(1))
    with pytest.raises(RuntimeError):
        kept[0].item()


def test_compile_within_other_transforms_and_around_them():
    x = mx.array([0.5, 1.5])
    f = mx.compile(lambda x: (mx.sin(x) * x).sum())
    want = np.sin([0.5, 1.5]) + np.cos([0.5, 1.5]) * [0.5, 1.5]
    close(mx.grad(f)(x), want)
    close(mx.compile(mx.grad(f))(x), want)
    close(mx.compile(mx.vmap(mx.grad(mx.compile(lambda x: mx.sin(x) * x))))(x), want)
    inner, calls = counted(lambda x: x * 2)
    inner = mx.compile(inner)
    outer = mx.compile(lambda x: inner(x) + inner(x + 1))
    assert outer(x).tolist() == outer(x).tolist() == [4, 8] and len(calls) == 2
    captured = mx.grad(lambda w: mx.compile(lambda y: y * w)(scalar(3)))
    assert captured(scalar(1)).item() == 3 and captured(scalar(2)).item() == 3


def test_shapeless_functions_serve_other_shapes():
    f, calls = counted(lambda x, w: (mx.softmax(x @ w, axis=-1).mean(axis=0) + mx.var(x, axis=0).sum()
                                     + mx.zeros_like(x).sum()))
    g = mx.compile(f, shapeless=True)
    for n in (2, 5, 1):
        x, w = mx.arange(n * 3.0).reshape(n, 3) / 7, mx.arange(12.0).reshape(3, 4) / 5
        close(g(x, w), np.asarray(f(x, w)))
    assert len(calls) == 1 + 3
    gradient = mx.compile(mx.grad(lambda x: (x * x).mean()), shapeless=True)
    for n in (2, 6):
        close(gradient(mx.ones((n, n))), np.full((n, n), 2 / n**2))


@pytest.mark.parametrize("f", [lambda x, key: x[1:3], lambda x, key: x + mx.random.uniform(shape=x.shape, key=key)])
def test_what_no_shapeless_function_can_hold(f):
    with pytest.raises(ValueError):
        mx.compile(f, shapeless=True)(mx.zeros((4, 2)), mx.random.key(1))


@pytest.mark.parametrize("f, axes, first, later", [
    (lambda x, y: x + y, (0, 1), [(2, 3, 4), (1, 2)], [[(3, 1, 2), (2, 3)], [(2, 3, 1), (2, 2)], [(4, 4, 4), (4, 4)]]),
    (lambda x, y: x + y, (0, 1), [(2, 3, 1), (2, 2)], [[(2, 3, 1), (1, 2)], [(1, 1, 1), (5, 1)]]),
    (lambda x, y: x @ y, (0, 2), [(2, 5, 3, 4), (4, 6, 2)], [[(3, 2, 1, 3), (3, 3, 3)], [(1, 1, 1, 1), (1, 1, 1)]]),
    (lambda x, y: mx.where(x > y, x, y), (2, 0), [(2, 3, 4), (4, 3)], [[(3, 1, 2), (2, 3)], [(3, 3, 3), (3, 3)]])])
def test_ranks_that_differ_under_vmap_in_shapeless_functions(f, axes, first, later):
    mapped = mx.vmap(f, in_axes=axes)
    compiled = mx.compile(mapped, shapeless=True)
    for shapes in [first, *later]:
        x, y = (mx.arange(float(math.prod(shape))).reshape(shape) / 7 - 1 for shape in shapes)
        want, got = mapped(x, y), compiled(x, y)
        assert got.shape == want.shape
        close(got, np.asarray(want))


def test_shapeless_sizes_are_right_or_refused():
    g = mx.compile(lambda x: x.reshape(x.shape[0] * x.shape[1], -1), shapeless=True)
    assert g(mx.zeros((2, 3, 4))).shape == (6, 4)
    with pytest.raises(ValueError):
        g(mx.zeros((5, 5, 3)))
    last = mx.compile(lambda x: x[-1], shapeless=True)
    assert last(mx.arange(4.0)).item() == 3
    with pytest.raises(ValueError):
        last(mx.arange(6.0))


def test_disable_compile():
    f, calls = counted(lambda x: x * 2)
    g = mx.compile(f)
    g(scalar(1)), g(scalar(1))
    mx.disable_compile()
    try:
        g(scalar(1)), g(scalar(1))
    finally:
        mx.enable_compile()
    g(scalar(1))
    assert len(calls) == 3


def test_transformed_functions_are_not_methods():
    class Holder:
        compiled, gradient = mx.compile(lambda x: x * 2), mx.grad(lambda x: x * x)
        batched, ruled = mx.vmap(lambda x: x + 1), mx.custom_function(lambda x: x * 3)
    h = Holder()
    assert (h.compiled(scalar(2)).item(), h.gradient(scalar(2)).item(), h.ruled(scalar(2)).item()) == (4, 4, 6)
    assert h.batched(mx.array([1.0])).tolist() == [2]


@pytest.mark.parametrize("transform", [mx.grad, mx.value_and_grad, mx.vmap, mx.compile, mx.checkpoint,
                                       mx.custom_function])
def test_only_functions_are_transformed(transform):
    with pytest.raises(TypeError):
        transform(3)


def test_chains_that_are_fused_give_the_same_bits():
    rng = np.random.default_rng(5)
    x = mx.array(rng.standard_normal((33, 70)).astype("f4"))

    def f(x, half, n, z):
        y = mx.where(x > 0, mx.exp(-x) * 2, mx.tanh(x)).astype(half.dtype) + half
        k = mx.bitwise_and(n << 2, n + 3) * (x > 1)
        return y * k, mx.abs(z * mx.conjugate(z) + x), mx.maximum(y, mx.rsqrt(mx.abs(x)).astype(y.dtype))
    args = x, x[:1].astype(mx.bfloat16), mx.arange(70), (x[:, :1] + 1j * x[:, 1:2]).astype(mx.complex64)
    for want, got in zip(f(*args), mx.compile(f)(*args)):
        assert want.dtype == got.dtype and mx.array_equal(want, got, equal_nan=True).item()


def test_triangles_in_shapeless_functions():
    f = mx.compile(lambda x: (mx.tril(x), mx.triu(x, 1)), shapeless=True)
    for shape in ((2, 3), (4, 4), (3, 1)):
        x = np.arange(1, 1 + np.prod(shape)).reshape(shape)
        low, high = f(mx.array(x))
        assert low.tolist() == np.tril(x).tolist() and high.tolist() == np.triu(x, 1).tolist()


def test_convolutions_in_shapeless_functions():
    w = mx.random.normal((2, 3, 1))
    for conv in (lambda x, w: mx.conv1d(x, w, stride=2, padding=1), lambda x, w: mx.conv_transpose1d(x, w, stride=2)):
        f = mx.compile(lambda x: conv(x, w), shapeless=True)
        for shape in ((1, 5, 1), (2, 9, 1), (1, 4, 1)):
            x = mx.random.normal(shape)
            assert mx.allclose(f(x), conv(x, w)).item()
    g = mx.compile(lambda x: mx.conv1d(x, w), shapeless=True)
    g(mx.ones((1, 5, 1)))
    for shape in ((1, 5, 2), (1, 2, 1)):
        with pytest.raises(ValueError):
            g(mx.ones(shape))
    gradient = mx.grad(lambda x: (mx.conv1d(x, w, stride=2) ** 2).sum())
    with pytest.raises(ValueError):
        mx.compile(gradient, shapeless=True)(mx.ones((1, 6, 1)))


def test_slices_with_starts_in_shapeless_functions():
    def parts(x, i):
        return mx.slice(x, i, (0,), (2, 3)), mx.slice_update(x, mx.full((1, 2), 7.0), i, (1,))
    f = mx.compile(parts, shapeless=True)
    for shape, i in (((4, 3), 1), ((6, 3), 3), ((2, 5), 0)):
        x, start = mx.arange(float(np.prod(shape))).reshape(shape), mx.array([i])
        want = x + 0
        at = min(i, shape[1] - 2)
        want[:1, at:at + 2] = 7
        part, whole = f(x, start)
        assert part.tolist() == x[i:i + 2, :3].tolist() and whole.tolist() == want.tolist()
    with pytest.raises(ValueError):
        f(mx.ones((1, 3)), mx.array([0]))


def test_constants_that_are_others_at_each_call_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(importlib.import_module("gomlx.core._compile"), "MOST_GRAPHS", 3)
    traced = []

    @mx.compile
    def f(x, k):
        traced.append(k)
        return x * k
    assert [f(mx.array(2.0), float(k)).item() for k in range(6)] == [0, 2, 4, 6, 8, 10]
    assert len(f._graphs.by_signature) == 3
    assert f(mx.array(3.0), 5.0).item() == 15 and f(mx.array(3.0), 0.0).item() == 0
    assert traced == [0, 1, 2, 3, 4, 5, 0]
