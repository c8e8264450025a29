"""Function transforms: what they give, what they refuse, what they leave behind. Values are known in closed form."""
import gc
import math
import threading

import numpy as np
import pytest
from tracing import Pair, close, scalar

import gomlx.core as mx
import gomlx.nn as nn
from gomlx.utils import tree_flatten

# ---- reverse mode ----

def test_grad_chooses_arguments_by_number_and_name():
    def f(x, y):
        return x * y * y
    x, y = scalar(2), scalar(3)
    assert mx.grad(f)(x, y).item() == 9 and mx.grad(f, argnums=1)(x, y).item() == 12
    assert [g.item() for g in mx.grad(f, argnums=[1, 0])(x, y)] == [9, 12]        # in the arguments' order
    positional, named = mx.grad(f, argnames="y")(x, y=y)
    assert positional is None and named["y"].item() == 12
    positional, named = mx.grad(f, argnums=0, argnames=["y"])(x, y=y)
    assert positional.item() == 9 and named["y"].item() == 12


@pytest.mark.parametrize("argnums", [[], -1, (0, 0)])
def test_grad_refuses_argnums(argnums):
    with pytest.raises(ValueError):
        mx.grad(lambda x: x, argnums=argnums)(scalar(1))


@pytest.mark.parametrize("result", [None, 2.0, mx.array([1.0])])
def test_grad_needs_a_scalar(result):
    with pytest.raises(ValueError):
        mx.grad(lambda x: result)(scalar(1))


def test_grad_keeps_the_structure_of_trees():
    tree = {"b": (scalar(3), [scalar(4)]), "a": Pair(scalar(2), scalar(5))}
    got = mx.grad(lambda t: t["b"][0] * t["b"][1][0] * t["a"].x)(tree)
    assert list(got) == ["b", "a"] and isinstance(got["a"], Pair)
    assert [got["b"][0].item(), got["b"][1][0].item(), got["a"].x.item(), got["a"].y.item()] == [8, 6, 12, 0]
    with pytest.raises(ValueError):
        mx.grad(lambda t: t["a"])({"a": scalar(1), "n": 3})


def test_value_and_grad_passes_the_rest_through():
    (loss, extra), gradient = mx.value_and_grad(lambda x: (x * x, {"twice": x * 2}))(scalar(3))
    assert (loss.item(), extra["twice"].item(), gradient.item()) == (9, 6, 6)


def test_arguments_that_a_function_changes_are_the_callers_no_more():
    x = mx.array([1.0, 2.0, 3.0])

    def f(a):
        a *= a
        a[0] = a[1] * 3
        return a.sum()
    assert mx.grad(f)(x).tolist() == [0, 16, 6] and x.tolist() == [1, 2, 3]


def test_a_module_arrives_as_itself_and_its_gradient_is_a_dict():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(2, 3), [nn.Linear(3, 1), {"scale": mx.array(2.0)}]

        def __call__(self, x):
            return (self.rest[0](mx.tanh(self.first(x))) * self.rest[1]["scale"]).sum()
    net, x = Net(), mx.array([[1.0, -2.0], [0.5, 3.0]])
    before, seen = dict(tree_flatten(net.parameters())), []
    want = nn.value_and_grad(net, lambda x: net(x))(x)

    def loss(m, x):
        seen.append(m)
        return m(x)
    value, gradient = mx.value_and_grad(loss)(net, x)
    assert seen[0] is net and type(gradient) is dict and type(gradient["first"]) is dict
    assert value.item() == pytest.approx(want[0].item())
    for (_, got), (_, other) in zip(tree_flatten(gradient), tree_flatten(want[1]), strict=True):
        close(got, np.asarray(other))
    assert all(item is before[name] for name, item in tree_flatten(net.parameters()))
    by_name = mx.grad(lambda x, m: m(x), argnames="m")(x, m=net)
    close(by_name[1]["m"]["rest"][1]["scale"], gradient["rest"][1]["scale"].item())
    with pytest.raises(KeyError):
        mx.grad(lambda m: m["none"])(net)
    assert all(item is before[name] for name, item in tree_flatten(net.parameters()))


def test_what_a_function_writes_into_lists_and_dicts_is_there_afterwards():
    a, b, c, d = (scalar(k) for k in (1, 2, 3, 4))
    items, named, pair = [a, b], {"c": c, "inner": [d]}, (mx.array(5.0), [mx.array(6.0)])
    inside = pair[1][0]

    def f(items, named, pair):
        items[1] = items[0] * 3
        named["new"] = named["c"] * 2
        named["inner"][0] += 5
        pair[1][0] = pair[0]
        return items[1] + named["new"] + named["inner"][0] + pair[1][0]
    gradient = mx.grad(f, argnums=(0, 1, 2))(items, named, pair)
    assert items[0] is a and items[1] is not b and items[1].item() == 3 and b.item() == 2
    assert named["c"] is c and named["new"].item() == 6 and named["inner"][0].item() == 9 and d.item() == 4
    assert pair[1][0] is not inside and pair[1][0].item() == 5
    assert [g.item() for g in gradient[0]] == [3, 0] and gradient[2][0].item() == 1
    assert gradient[1]["c"].item() == 2 and gradient[1]["inner"][0].item() == 1 and "new" not in gradient[1]
    tied = [scalar(3)]
    assert mx.grad(lambda p, q: p[0] * q[0], argnums=(0, 1))(tied, tied) is not None and tied[0].item() == 3
    inner = mx.grad(lambda p: mx.grad(lambda q: q[0] ** 3)(p)[0])(tied)
    assert inner[0].item() == 18 and tied[0].item() == 3


X, I = mx.array([3.0, 1.0, 2.0]), mx.array([1, 0])
M = mx.arange(24.0).reshape(2, 3, 4)


def written(x, i):
    y = mx.array(x)
    y[i] = mx.array([5.0, 6.0])
    return y


INDEXED = {
    "gather": [lambda x, i: mx.take(x, i), lambda x, i: x[i], lambda x, i: (M * x[0])[i, i], lambda x,
               i: M[..., i] * x[0], lambda x, i: nn.Embedding(3, 4)(i) * x[0], lambda x, i: mx.vmap(lambda k: x[k])(i)],
    "gather_axis": [lambda x, i: mx.take_along_axis(x, i, 0), lambda x, i: nn.losses.cross_entropy(x, i[0])],
    "scatter_axis": [lambda x, i: mx.put_along_axis(x, i, mx.array([7.0, 8.0]), 0)],
    "scatter": [lambda x, i: x.at[i].add(1.0), lambda x, i: x.at[i].maximum(mx.array([1.0, 2.0])), written],
    "GatherMM": [lambda x, i: mx.gather_mm(M * x[0], mx.ones((2, 4, 5)), rhs_indices=i),
                 lambda x, i: mx.gather_mm(M * x[0], mx.ones((2, 4, 5)), lhs_indices=i)],
}


@pytest.mark.parametrize("who, f", [(who, f) for who, fs in INDEXED.items() for f in fs])
def test_indices_have_no_derivatives(who, f):
    def refuses(rule, call):
        with pytest.raises(ValueError, match=rf"\[{who}\] Cannot calculate {rule} with respect to indices. Use "
                                             "stop_gradient on indices to stop gradients from being computed."):
            call()

    def total(x, i):
        return f(x, i).sum()
    refuses("VJP", lambda: mx.grad(total, argnums=1)(X, I))
    refuses("VJP", lambda: mx.grad(total, argnums=(0, 1))(X, I))
    refuses("VJP", lambda: mx.vjp(f, [X, I], [mx.ones_like(f(X, I))]))
    refuses("JVP", lambda: mx.jvp(f, [X, I], [X, I]))
    if who != "GatherMM":
        refuses("VJP", lambda: mx.grad(lambda x: total(x, mx.argsort(x)[:2]))(X))
        refuses("JVP", lambda: mx.jvp(lambda x: f(x, mx.argsort(x)[:2]), [X], [X]))
    wanted, moved = mx.grad(total)(X, I), mx.jvp(lambda x: f(x, I), [X], [X])[1][0]
    found, of_indices = mx.grad(lambda x, i: total(x, mx.stop_gradient(i)), argnums=(0, 1))(X, I)
    if "Embedding" not in f.__code__.co_names:
        close(found, np.asarray(wanted))
        close(mx.jvp(lambda x, i: f(x, mx.stop_gradient(i)), [X, I], [X, I])[1][0], np.asarray(moved))
    assert of_indices.tolist() == [0, 0]


def test_starts_of_slices_have_no_derivatives():
    for f, who in ((lambda x, i: mx.slice(x, i[:1], (0,), (1,)), "DynamicSlice"),
                   (lambda x, i: mx.slice_update(x, mx.array([9.0]), i[:1], (0,)), "DynamicSliceUpdate")):
        with pytest.raises(ValueError, match=rf"\[{who}::vjp\] Not supported for start indices"):
            mx.grad(lambda x, i: f(x, i).sum(), argnums=1)(X, I)
        close(mx.grad(lambda x, i: f(x, mx.stop_gradient(i)).sum(), argnums=(0, 1))(X, I)[1], [0, 0])


def test_what_indexes_by_itself_has_derivatives_of_any_order():
    for f in (mx.sort, lambda x: mx.topk(x, 2), mx.cummax, mx.median, mx.max, lambda x: mx.partition(x, 1)):
        hessian = mx.grad(lambda x: (mx.grad(lambda x: (f(x) ** 3).sum())(x) * X).sum())(X)
        chosen = np.asarray(mx.grad(lambda x: f(x).sum())(X))
        close(hessian, 6 * np.asarray(X) ** 2 * chosen)
        close(mx.jvp(lambda x: mx.grad(lambda x: (f(x) ** 3).sum())(x), [X], [X])[1][0],
              6 * np.asarray(X) ** 2 * chosen)
    assert mx.grad(lambda x: (mx.ones(4)[mx.argsort(x)], x)[1].sum())(X).tolist() == [1, 1, 1]       # it is not used
    assert mx.grad(lambda x: mx.argmax(x).astype(mx.float32))(X).tolist() == [0, 0, 0]


def test_the_complex_gradient_of_a_product_of_two_rows_is_that_of_multiply():
    rng = np.random.default_rng(0)
    x, c = (mx.array((rng.standard_normal((2, 37)) + 1j * rng.standard_normal((2, 37))).astype(np.complex64))
            for _ in "xc")
    (product,) = mx.vjp(lambda x: x.prod(axis=0), [x], [c[0]])[1]
    (multiply,) = mx.vjp(lambda x: x[0] * x[1], [x], [c[0]])[1]
    np.testing.assert_array_equal(product, multiply)
    zeros = mx.array([[0, 1j], [2, 0], [3, 4j]], mx.complex64)
    assert mx.vjp(lambda x: x.prod(axis=0), [zeros], [mx.ones(2, mx.complex64)])[1][0].tolist() == [[6, 0], [0, -4],
                                                                                                    [0, 0]]


def test_indices_among_the_arguments_of_a_checkpoint_are_constants():
    f = mx.checkpoint(lambda x, i: mx.sin(x[i]))
    close(mx.grad(lambda x: f(x, I).sum())(X), [np.cos(3), np.cos(1), 0])

    @mx.custom_function
    def g(x):
        return x[mx.argsort(x)]
    g.jvp(lambda primals, tangents: tangents * 7)
    g.vjp(lambda primals, cotangents, outputs: cotangents * 8)
    assert mx.jvp(g, [X], [X])[1][0].tolist() == [21, 7, 14] and mx.grad(lambda x: g(x).sum())(X).tolist() == [8, 8, 8]


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_scales_without_gradients(mode):
    w = mx.random.normal((2, 32, 64), key=mx.random.key(0))
    q, scales = mx.quantize(w, mode=mode)
    x = mx.ones((2, 1, 64))

    def product(x, q, s):
        return mx.quantized_matmul(x, q[0], s[0], mode=mode).sum()

    def chosen(x, q, s):
        return mx.gather_qmm(x, q, s, rhs_indices=mx.array([1, 0]), mode=mode).sum()
    for f, who in (product, "QuantizedMatmul"), (chosen, "GatherQMM"):
        for argnums in 2, (0, 2):
            with pytest.raises(ValueError, match=rf"\[{who}::vjp\] no gradient wrt scales in {mode} quantization\."):
                mx.grad(f, argnums=argnums)(x, q, scales)
        with pytest.raises(RuntimeError, match=rf"\[{who}::vjp\] no gradient wrt the quantized weights\."):
            mx.grad(f, argnums=1)(x, q, scales)
        stopped = mx.grad(lambda x, s: f(x, q, mx.stop_gradient(s)), argnums=(0, 1))(x, scales)
        close(stopped[0], np.asarray(mx.grad(lambda x: f(x, q, scales))(x)))
    with pytest.raises(ValueError, match="no gradient wrt scales"):
        mx.grad(lambda s: mx.dequantize(q, s, mode=mode).sum())(scales)
    with pytest.raises(RuntimeError, match="gradient wrt the indices"):
        mx.grad(lambda i: mx.gather_qmm(x, q, scales, rhs_indices=i, mode=mode).sum())(mx.array([1, 0]))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int32])
def test_tangents_of_truths_are_zeros_of_the_tangents_dtype(dtype):
    x, y = mx.array([1, -2], dtype), mx.array([[1], [3], [0]], dtype)
    for f in (mx.equal, mx.not_equal, mx.less, mx.less_equal, mx.greater, mx.greater_equal):
        (tangent,) = mx.jvp(f, [x, y], [x, y])[1]
        assert tangent.dtype == dtype and tangent.tolist() == [[0, 0]] * 3
        assert mx.jvp(lambda x: f(x, y), [x], [x])[1][0].dtype == dtype
    for f in (mx.isnan, mx.isneginf, lambda x: mx.array_equal(x, x + 1), lambda x: mx.argpartition(x, 1),
              lambda x: ~((x > 0) & (x < 5)).reshape(2, 1), lambda x: mx.all(x > 0)):
        out, (tangent,) = mx.jvp(f, [x], [x])
        assert tangent.dtype == dtype and not tangent.any().item() and tangent.shape == out[0].shape
    assert mx.jvp(mx.argsort, [x], [x])[1][0].dtype == mx.uint32 and mx.jvp(mx.isinf, [x], [x])[1][0].dtype == mx.bool_
    half = mx.array([0.0, 4.0], mx.float16)
    assert mx.jvp(lambda x, h: x > h, [x, half], [x, half])[1][0].dtype == mx.result_type(dtype, mx.float16)
    assert mx.vmap(lambda x: mx.jvp(lambda x: x > 0, [x], [x])[1][0])(x).tolist() == [0, 0]
    (tangent,) = mx.jvp(lambda x: mx.where(x > 0, x, 2 * x), [x], [mx.ones_like(x)])[1]
    assert tangent.tolist() == [1, 2]


def test_higher_gradients_and_values_read_inside():
    assert mx.grad(mx.grad(mx.grad(lambda x: x**4)))(scalar(2)).item() == pytest.approx(48)
    assert mx.grad(lambda x: x * mx.grad(lambda z: z * z * x)(x))(scalar(2)).item() == pytest.approx(24)
    assert mx.grad(lambda x: x * x * x if (x * x).item() > 3 else x)(scalar(2)).item() == 12


def test_vjp_counts_the_outputs_that_move():
    outputs, grads = mx.vjp(lambda x: (mx.stop_gradient(x), x * x), [scalar(2)], [scalar(1)])
    assert [o.item() for o in outputs] == [2, 4] and grads[0].item() == 4
    with pytest.raises(ValueError):
        mx.vjp(lambda x: (x, x * x), [scalar(2)], [scalar(1)])
    with pytest.raises(ValueError):
        mx.vjp(lambda x: x, [mx.array([1.0])], [scalar(1)])
    with pytest.raises(TypeError):
        mx.vjp(lambda x: x, scalar(1), scalar(1))


def test_jvp_is_the_transpose_of_vjp():
    rng = np.random.default_rng(0)
    a, b = (mx.array(rng.standard_normal((3, 3)).astype("f4")) for _ in range(2))
    ta, tb, c = (mx.array(rng.standard_normal((3, 3)).astype("f4")) for _ in range(3))

    def f(a, b):
        return mx.softmax(a @ b, axis=-1) * mx.sin(a).sum(0) + mx.concatenate([b[:1], a[1:]]).max(axis=1, keepdims=True)
    (forward,) = mx.jvp(f, [a, b], [ta, tb])[1]
    back = mx.vjp(f, [a, b], [c])[1]
    close((forward * c).sum(), ((back[0] * ta) + (back[1] * tb)).sum().item(), rtol=1e-4)


# ---- vmap ----

@pytest.mark.parametrize("in_axes, out_axes", [((0, 1), 0), ((-2, -1), 1), ((None, 1), -1)])
def test_vmap_axes(in_axes, out_axes):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((4, 3)).astype("f4"), rng.standard_normal((3, 4)).astype("f4")
    if in_axes[0] is None:
        x = x[0]
    rows = [(x if in_axes[0] is None else x[i]) * y[:, i] for i in range(4)]
    got = mx.vmap(lambda a, b: a * b, in_axes=in_axes, out_axes=out_axes)(mx.array(x), mx.array(y))
    close(got, np.stack(rows, axis=out_axes))


def test_vmap_of_trees_and_of_outputs_without_batch():
    p = {"a": mx.arange(6.0).reshape(2, 3), "b": mx.arange(3.0)}
    mapped = mx.vmap(lambda p, q: (p["a"] + p["b"], q * 2), in_axes=({"a": 0, "b": None}, None), out_axes=(0, None))
    got = mapped(p, p["b"])
    assert got[0].tolist() == [[0, 2, 4], [3, 5, 7]] and got[1].tolist() == [0, 2, 4]


@pytest.mark.parametrize("in_axes, error", [((None,), ValueError), ([0], ValueError), (2, IndexError),
                                            ("a", ValueError),
                                            (None, TypeError), ((0, 0), ValueError)])
def test_vmap_refuses_axes(in_axes, error):
    with pytest.raises(error):
        mx.vmap(lambda x: x, in_axes=in_axes)(mx.zeros((2, 3)))


def test_vmap_refuses_an_output_without_axis_that_depends_on_the_batch():
    with pytest.raises(ValueError):
        mx.vmap(lambda x: (x,), out_axes=(None,))(mx.zeros((2, 3)))
    with pytest.raises(ValueError):
        mx.vmap(lambda x, y: x + y)(mx.zeros((2,)), mx.zeros((3,)))


def test_vmap_composes_with_gradients():
    x = mx.arange(6.0).reshape(2, 3)
    assert mx.vmap(mx.grad(lambda r: (r**3).sum()))(x).tolist() == (3 * np.asarray(x) ** 2).tolist()
    assert mx.grad(lambda z: mx.vmap(lambda r: (r * r).sum(),
                                     in_axes=1)(z).sum())(x).tolist() == (2 * np.asarray(x)).tolist()
    outer = mx.vmap(lambda a: mx.vmap(lambda b: a * b)(mx.arange(4.0)))(mx.arange(3.0))
    assert outer.tolist() == np.outer(range(3), range(4)).tolist()


# ---- rules of one's own ----

def test_each_rule_is_used_where_it_belongs():
    @mx.custom_function
    def f(x, y):
        return mx.sin(x) * y
    f.vjp(lambda primals, cotangent, output: (cotangent * primals[0], cotangent * output))
    f.jvp(lambda primals, tangents: tangents[0] * 100 + tangents[1])
    f.vmap(lambda inputs, axes: (inputs[0] - inputs[1], 0))
    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    close(f(x, y), np.sin([1, 2]) * [3, 4])
    grads = mx.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, y)
    close(grads[0], [1, 2])
    close(grads[1], np.sin([1, 2]) * [3, 4])
    assert mx.jvp(f, [x, y], [x, y])[1][0].tolist() == [103, 204] and mx.vmap(f)(x, y).tolist() == [-2, -2]
    close(mx.compile(mx.grad(lambda x: f(x, y).sum()))(x), [1, 2])


def test_a_function_with_rules_is_pure():
    def g(x, y, rule):
        @mx.custom_function
        def f(x):
            return x * y
        rule(f)
        return f(x)
    x, y = scalar(2), scalar(3)
    assert mx.grad(g, argnums=1)(x, y, lambda f: None).item() == 2
    assert mx.grad(g, argnums=1)(x, y, lambda f: f.vjp(lambda p, c, o: c * 9)).item() == 0
    assert mx.grad(g, argnums=(0, 1))(x, y, lambda f: f.jvp(lambda p, t: t))[0].item() == 3


def test_rules_see_the_callers_axes_and_absent_tangents():
    seen = []

    @mx.custom_function
    def f(x, y):
        return x + y

    @f.vmap
    def rule(inputs, axes):
        seen.append((axes, inputs[0].shape))
        return inputs[0].T + inputs[1], 0

    @f.jvp
    def forward(primals, tangents):
        seen.append(tangents[1])
        return tangents[0]
    assert mx.vmap(f, in_axes=(1, None))(mx.zeros((2, 3)), mx.zeros((2,))).shape == (3, 2)
    mx.jvp(lambda x: f(x, scalar(1)), [scalar(2)], [scalar(1)])
    assert seen == [((1, None), (2, 3)), None]


@pytest.mark.parametrize("kind", ["vjp", "jvp", "vmap"])
def test_an_exception_of_a_rule_arrives(kind):
    @mx.custom_function
    def f(x):
        return x * x

    def rule(*args):
        raise KeyError("of the rule")
    getattr(f, kind)(rule)
    x = mx.array([1.0])
    with pytest.raises(KeyError, match="of the rule"):
        {"vjp": lambda: mx.grad(lambda x: f(x).sum())(x), "jvp": lambda: mx.jvp(f, [x], [x]),
         "vmap": lambda: mx.vmap(f)(x)}[kind]()


def with_rule(kind, rule):
    @mx.custom_function
    def f(x):
        return x * 2
    getattr(f, kind)(rule)
    return f


@pytest.mark.parametrize("shape", [(4,), (3, 2), (1, 2, 3)])
@pytest.mark.parametrize("kind", ["vjp", "jvp", "vmap"])
def test_a_rule_that_gives_a_wrong_shape(kind, shape):
    x = mx.ones((2, 3))
    rule = {"vjp": lambda *args: mx.ones(shape), "jvp": lambda *args: mx.ones(shape),
            "vmap": lambda *args: (mx.ones(shape), 0)}
    f = with_rule(kind, rule[kind])
    with pytest.raises(ValueError, match=rf"custom function: its {kind} gave shape \({','.join(map(str, shape))}\)"):
        {"vjp": lambda: mx.grad(lambda x: f(x).sum())(x), "jvp": lambda: mx.jvp(f, [x], [x]),
         "vmap": lambda: mx.vmap(f)(x)}[kind]()


def test_what_a_rule_gives_takes_the_form_of_what_it_belongs_to():
    x = mx.ones((2, 3))
    zero = with_rule("vjp", lambda *args: mx.array(0.0))
    assert mx.grad(lambda x: zero(x).sum())(x).tolist() == [[0] * 3] * 2
    half = with_rule("vjp", lambda primals, cotangent, output: cotangent.astype(mx.float16))
    assert mx.grad(lambda x: half(x).sum())(x).dtype == mx.float32
    row = with_rule("jvp", lambda primals, tangents: mx.array([1.0, 2.0, 3.0]))
    assert mx.jvp(row, [x], [x])[1][0].tolist() == [[1, 2, 3]] * 2


def test_a_rule_may_evaluate_what_it_is_given():
    @mx.custom_function
    def f(x):
        return mx.exp(x)

    @f.vjp
    def rule(primal, cotangent, output):
        mx.eval(primal, cotangent, output)
        return cotangent * output
    assert mx.grad(lambda x: mx.sin(f(mx.cos(x))))(scalar(1)).item() == pytest.approx(
        -math.cos(math.exp(math.cos(1))) * math.exp(math.cos(1)) * math.sin(1), rel=1e-5)


def test_checkpoint_gives_the_same_gradients_and_frees_memory():
    x = mx.ones((1 << 16,)) * 0.5
    mx.eval(x)

    def block(x):
        for _ in range(16):
            x = mx.sin(x) + x
        return x

    def peak(f):
        gradient = mx.grad(lambda x: f(f(f(f(x)))).sum())
        mx.eval(gradient(x))
        mx.reset_peak_memory()
        result = gradient(x)
        mx.eval(result)
        return mx.get_peak_memory(), np.asarray(result)
    whole, want = peak(block)
    part, got = peak(mx.checkpoint(block))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert part < 0.7 * whole


# ---- what is left behind ----

def test_nothing_is_left_per_call():
    x = mx.arange(100.0)
    state = [scalar(1)]

    @mx.custom_function
    def ruled(x):
        return x * 2
    kept = {}

    @ruled.vjp
    def rule(primal, cotangent, output):
        return cotangent * kept.get("of a former call", 1)

    def step(y):
        state[0] = state[0] + y.sum()
        return state[0]
    compiled = mx.compile(step, inputs=state, outputs=state)

    def everything():
        mx.eval(mx.grad(lambda y: (mx.sin(ruled(y)) * y).sum())(x), mx.vmap(lambda y: y * y)(x), compiled(x), state,
                mx.jvp(mx.softmax, [x], [x]), mx.compile(lambda y: mx.exp(y) + x)(x),
                mx.grad(mx.checkpoint(lambda y: (y * y).sum()))(x))
        kept["of a former call"] = ruled(x)       # an array that its own rule holds: free once it is evaluated
        mx.eval(kept)
        kept.clear()
    for _ in range(3):
        everything()
    gc.collect()
    before = mx.get_active_memory(), len(gc.get_objects())
    for _ in range(20):
        everything()
    gc.collect()
    assert mx.get_active_memory() == before[0] and abs(len(gc.get_objects()) - before[1]) < 20


def test_deep_graphs_need_no_deep_stack():
    def chain(x):
        for _ in range(100_000):
            x = x + 1.0
        return x
    value, gradient = mx.value_and_grad(chain)(scalar(0))
    assert (value.item(), gradient.item()) == (100_000, 1)
    assert mx.vmap(chain)(mx.zeros(2)).tolist() == [100_000] * 2
    assert mx.compile(chain)(scalar(0)).item() == 100_000
    del value, gradient


def test_threads_compile_and_differentiate_at_once():
    shared = mx.compile(lambda x, k: mx.sin(x) * k)
    failures = []

    def work(n):
        try:
            for i in range(30):
                x = mx.arange(float(n + i % 3 + 1))
                close(shared(x, n), np.sin(np.asarray(x)) * n)
                close(mx.grad(lambda x: (mx.compile(lambda y: y * y)(x) * n).sum())(x), 2 * n * np.asarray(x))
        except BaseException as failure:
            failures.append(failure)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
