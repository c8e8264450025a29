"""gomlx.optimizers: steps against their formulas in NumPy (float64), schedules, states; where MLX is installed, four
steps of every optimiser against mlx.optimizers, values and state.

float32 steps agree with float64 ones within 1e-5; Newton-Schulz iterations (Muon) amplify rounding to 1e-3.
"""
import math
from functools import partial

import numpy as np
import pytest
from arrays import close
from arrays import f32 as values

import gomlx.core as mx
import gomlx.nn as nn
import gomlx.optimizers as opt
from gomlx.utils import tree_flatten, tree_map, tree_unflatten

RATE = 0.1


def rms(x):
    return math.sqrt((x**2).mean())


# Each reference is a generator: it is sent a gradient and yields the parameter after the step.

def sgd(w, momentum=0.0, weight_decay=0.0, dampening=0.0, nesterov=False):
    v = 0
    while True:
        g = yield w
        g = g + weight_decay * w
        v = momentum * v + (1 - dampening) * g
        w = w - RATE * (g if momentum == 0 else g + momentum * v if nesterov else v)


def rmsprop(w, alpha=0.99, eps=1e-8):
    v = 0
    while True:
        g = yield w
        v = alpha * v + (1 - alpha) * g**2
        w = w - RATE * g / (np.sqrt(v) + eps)


def adagrad(w, eps=1e-8):
    v = 0
    while True:
        g = yield w
        v = v + g**2
        w = w - RATE * g / (np.sqrt(v) + eps)


def adadelta(w, rho=0.9, eps=1e-6):
    u = v = 0
    while True:
        g = yield w
        v = rho * v + (1 - rho) * g**2
        d = np.sqrt(u + eps) / np.sqrt(v + eps) * g
        u = rho * u + (1 - rho) * d**2
        w = w - RATE * d


def adam(w, betas=(0.9, 0.999), eps=1e-8, bias_correction=False, weight_decay=0.0, norm=None):
    (b1, b2), m, v, t = betas, 0, 0, 0
    while True:
        g = yield w
        t += 1
        m = b1 * m + (1 - b1) * g
        v = np.maximum(b2 * v, abs(g)) if norm == "max" else b2 * v + (1 - b2) * g**2
        size = v if norm == "max" else np.sqrt(v)
        c1, c2 = (1 - b1**t, math.sqrt(1 - b2**t)) if bias_correction else (1, 1)
        w = w * (1 - RATE * weight_decay) - RATE * (m / c1) / (size / c2 + eps)


def lion(w, betas=(0.9, 0.99), weight_decay=0.0):
    (b1, b2), m = betas, 0
    while True:
        g = yield w
        c = b1 * m + (1 - b1) * g
        m = b2 * m + (1 - b2) * g
        w = w - RATE * (np.sign(c) + weight_decay * w)


def adafactor(w, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta_1=None, weight_decay=0.0):
    row = column = m = t = 0
    while True:
        g = yield w
        t += 1
        rate = min(1e-2, t**-0.5) * max(eps[1], rms(w))
        b2 = 1 - t**decay_rate
        row = b2 * row + (1 - b2) * (g**2 + eps[0]).mean(-1)
        column = b2 * column + (1 - b2) * (g**2 + eps[0]).mean(-2)
        u = g / np.sqrt(np.outer(row, column) / row.mean())
        u = rate * u / max(1, rms(u) / clip_threshold)
        if beta_1 is not None:
            m = u = beta_1 * m + (1 - beta_1) * u
        w = w - weight_decay * rate * w - u


def muon(w, momentum=0.95, weight_decay=0.01, nesterov=True, ns_steps=5):
    v = 0
    while True:
        g = yield w
        g = g + weight_decay * w
        v = momentum * v + (1 - momentum) * g
        x = (1 - momentum) * g + momentum * v if nesterov else v
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(ns_steps):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x.T if tall else x
        w = w - RATE * math.sqrt(max(1, x.shape[0] / x.shape[1])) * x


REFERENCES = [
    ("SGD", sgd, {}), ("SGD", sgd, {"momentum": 0.9}), ("SGD", sgd, {"momentum": 0.9, "weight_decay": 0.1,
                                                                     "nesterov": True}),
    ("RMSprop", rmsprop, {}), ("RMSprop", rmsprop, {"alpha": 0.5, "eps": 1e-2}), ("Adagrad", adagrad, {}),
    ("AdaDelta", adadelta, {}), ("AdaDelta", adadelta, {"rho": 0.5, "eps": 1e-2}), ("Adam", adam, {}),
    ("Adam", adam, {"betas": (0.5, 0.7), "eps": 1e-3, "bias_correction": True}),
    ("AdamW", partial(adam, weight_decay=0.01), {}), ("AdamW", adam, {"weight_decay": 0.3}),
    ("Adamax", partial(adam, norm="max"), {}), ("Lion", lion, {}), ("Lion", lion, {"weight_decay": 0.2}),
    ("Adafactor", adafactor, {}), ("Adafactor", adafactor, {"beta_1": 0.5, "clip_threshold": 0.3,
                                                            "weight_decay": 0.1}),
    ("Muon", muon, {}), ("Muon", muon, {"momentum": 0.5, "nesterov": False, "ns_steps": 3}),
]


@pytest.mark.parametrize("name, reference, options", REFERENCES)
@pytest.mark.parametrize("shape", [(4, 6), (7, 3)])
def test_steps_follow_the_formula(name, reference, options, shape):
    rate = {} if name == "Adafactor" else {"learning_rate": RATE}
    optimizer = getattr(opt, name)(**rate, **options)
    w = values(*shape)
    expected = reference(w.astype(np.float64), **options)
    next(expected)
    parameters = {"w": mx.array(w)}
    for seed in range(1, 5):
        g = values(*shape, seed=seed)
        parameters = optimizer.apply_gradients({"w": mx.array(g)}, parameters)
        close(parameters["w"], expected.send(g.astype(np.float64)), 1e-3 if name == "Muon" else 1e-5)


def test_muon_makes_singular_values_alike():
    optimizer = opt.Muon(1.0, momentum=0.0, weight_decay=0.0)
    moved = -np.array(optimizer.apply_gradients({"w": mx.array(values(6, 8))}, {"w": mx.zeros((6, 8))})["w"])
    s = np.linalg.svd(moved, compute_uv=False)
    assert s.min() > 0.6 and s.max() < 1.3


def test_muon_steps_of_filters_are_longer_by_their_own_shape():
    g, rows = mx.array(values(4, 2, 6, 2)), lambda x: x.reshape(4, -1)
    steps = [opt.Muon(1.0, momentum=0.0, weight_decay=0.0).apply_gradients({"w": x}, {"w": mx.zeros(x.shape)})["w"]
             for x in (g, rows(g))]
    close(rows(steps[0]), math.sqrt(6 / 2) * np.array(steps[1]))


def test_state_holds_step_rate_and_a_dict_for_each_parameter():
    optimizer = opt.Adam(RATE)
    assert optimizer.state.keys() == {"step", "learning_rate"} and optimizer.step.dtype == mx.uint64
    parameters = {"a": {"w": mx.ones((3,))}, "l": [mx.ones((2,)), {"b": mx.ones((1,))}]}
    optimizer.init(parameters)
    assert [name for name, _ in tree_flatten(optimizer.state)] == ["step", "learning_rate", "a.w.m", "a.w.v", "l.0.m",
                                                                    "l.0.v", "l.1.b.m", "l.1.b.v"]
    moved = optimizer.apply_gradients({"a": {"w": mx.ones((3,))}, "l": [mx.ones((2,))]}, parameters)
    assert [name for name, _ in tree_flatten(moved)] == ["a.w", "l.0"]
    assert optimizer.step.item() == 1
    optimizer.learning_rate = 0.5
    close(optimizer.learning_rate, 0.5)
    for wrong in (lambda: opt.Adafactor().learning_rate,
                  lambda: optimizer.apply_gradients({"z": mx.ones(1)}, {"z": mx.ones(1)})):
        with pytest.raises(KeyError):
            wrong()


def test_a_run_goes_on_from_a_saved_state(tmp_path):
    def gradients(seed):
        return {"w": mx.array(values(3, 2, seed=seed)), "b": [mx.array(values(2, seed=seed + 10))]}

    whole = opt.AdamW(opt.cosine_decay(RATE, 10))
    straight = parameters = gradients(99)
    for seed in range(4):
        straight = whole.apply_gradients(gradients(seed), straight)
    first = opt.AdamW(opt.cosine_decay(RATE, 10))
    for seed in range(2):
        parameters = first.apply_gradients(gradients(seed), parameters)
    path = str(tmp_path / "state.safetensors")
    mx.save_safetensors(path, tree_flatten(first.state, destination={}))
    second = opt.AdamW(opt.cosine_decay(RATE, 10))
    second.state = tree_unflatten(mx.load(path))
    for seed in range(2, 4):
        parameters = second.apply_gradients(gradients(seed), parameters)
    for (_, a), (_, b) in zip(tree_flatten(parameters), tree_flatten(straight)):
        assert np.array_equal(np.array(a), np.array(b))


def test_wrong_arguments():
    for wrong in (lambda: opt.SGD(RATE, nesterov=True), lambda: opt.RMSprop(RATE, alpha=-1),
                  lambda: opt.Adagrad(RATE, eps=-1), lambda: opt.AdaDelta(RATE, rho=-1),
                  lambda: opt.RMSprop(RATE, eps=0), lambda: opt.Adagrad(RATE, eps=0), lambda: opt.AdaDelta(RATE, eps=0),
                  lambda: opt.Adam(RATE, betas=[1.5, 0.9]), lambda: opt.Adamax(RATE, eps=-1),
                  lambda: opt.Lion(RATE, betas=[2, 3]), lambda: opt.linear_schedule(0, 1, 0),
                  lambda: opt.cosine_decay(1, 0), lambda: opt.step_decay(1, 0.5, 0),
                  lambda: opt.join_schedules([], []), lambda: opt.join_schedules([abs, abs], [])):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(NotImplementedError):
        opt.Optimizer().apply_single(1, 2, {})


def test_schedules():
    steps = range(14)

    def run(schedule):
        return [float(schedule(mx.array(step, mx.uint64))) for step in steps]

    close(run(opt.exponential_decay(0.1, 0.9)), [0.1 * 0.9**s for s in steps])
    close(run(opt.step_decay(0.1, 0.9, 3)), [0.1 * 0.9**(s // 3) for s in steps])

    def cosine(s):
        return 0.02 + 0.08 * (1 + math.cos(math.pi * min(s, 10) / 10)) / 2

    close(run(opt.cosine_decay(0.1, 10, 0.02)), [cosine(s) for s in steps])
    close(run(opt.linear_schedule(0.0, 0.1, 5)), [0.1 * min(s, 5) / 5 for s in steps])
    joined = opt.join_schedules([opt.linear_schedule(0, 0.1, 4), opt.cosine_decay(0.1, 10, 0.02),
                                 opt.step_decay(0.3, 0.5, 2)], [4, 9])
    close(run(joined), [0.1 * s / 4 if s < 4 else cosine(s - 4) if s < 9 else 0.3 * 0.5**((s - 9) // 2) for s in steps])
    optimizer = opt.SGD(opt.linear_schedule(0.0, 1.0, 10))
    rates = []
    for _ in range(4):
        optimizer.update(nn.Identity(), {})
        rates.append(optimizer.learning_rate.item())
    close(rates, [0.0, 0.1, 0.2, 0.3])


def test_several_optimisers_share_a_model():
    both = opt.MultiOptimizer([opt.SGD(0.5), opt.Adam(0.1)], [lambda path, w: path.startswith("a")])
    parameters = {"a": {"w": mx.ones((2,))}, "b": [mx.ones((2,)), mx.ones((3,))]}
    gradients = tree_map(mx.ones_like, parameters)
    moved = both.apply_gradients(gradients, parameters)
    close(moved["a"]["w"], [0.5, 0.5])
    close(moved["b"][1], opt.Adam(0.1).apply_gradients({"x": gradients["b"][1]}, {"x": parameters["b"][1]})["x"])
    assert [name for name, _ in tree_flatten(both.state["states"][1])] == ["step", "learning_rate", "b.0.m", "b.0.v",
                                                                           "b.1.m", "b.1.v"]
    both.learning_rate = 0.25
    assert [o.learning_rate.item() for o in both.optimizers] == [0.25, 0.25]
    both.state = both.state
    for wrong in (lambda: opt.MultiOptimizer([opt.SGD(0.1)], [abs]), lambda: setattr(both, "state", {"states": []})):
        with pytest.raises(ValueError):
            wrong()


def test_clipping_the_norm():
    gradients = {"a": mx.array([3.0, 4.0]), "b": [mx.array([12.0])]}
    clipped, norm = opt.clip_grad_norm(gradients, 1.0)
    close(norm, 13.0)
    close(clipped["b"][0], [12 / 13])
    same, _ = opt.clip_grad_norm(gradients, 20.0)
    close(same["a"], [3.0, 4.0])


def test_clipping_integers_gives_floats_and_the_bound_is_not_negative():
    for dtype in mx.int32, mx.uint8:
        clipped, norm = opt.clip_grad_norm({"w": mx.array([3, 4], dtype), "h": mx.array([12.0], mx.bfloat16)}, 1.0)
        close(norm, 13.0)
        close(clipped["w"], [3 / 13, 4 / 13])
        assert (clipped["w"].dtype, clipped["h"].dtype) == (mx.float32, mx.bfloat16)
    for bound in -2.0, -1:
        with pytest.raises(ValueError, match=f"max_norm should be >=0, {bound} was provided instead"):
            opt.clip_grad_norm({"w": mx.array([3.0])}, bound)
    close(opt.clip_grad_norm({"w": mx.array([3.0])}, 0.0)[0]["w"], [0.0])


def test_adafactor_joins_rows_and_columns():
    row, column = values(2, 3) ** 2 + 0.1, values(2, 5, seed=1) ** 2 + 0.1
    want = 1 / np.sqrt(row[..., None] * column[:, None] / row.mean(-1)[:, None, None])
    joined = opt.Adafactor()._approximate_exp_moving_avg
    close(joined(mx.array(row), mx.array(column)), want)
    close(joined(mx.array([1.0, 4]), mx.array([1.0, 9])), [[1.58114, 0.52705], [0.79057, 0.26352]])


@pytest.mark.parametrize("clip", [opt.clip_grad_norm, nn.utils.clip_grad_norm_sharded])
def test_clipping_float16_does_not_overflow_and_keeps_the_dtype(clip):
    clipped, norm = clip({"a": mx.array([300.0, 400.0], dtype=mx.float16), "b": mx.array([0.0])}, 1.0)
    close(norm, 500.0)
    close(clipped["a"], [0.6, 0.8], 1e-3)
    assert (clipped["a"].dtype, clipped["b"].dtype, norm.dtype) == (mx.float16, mx.float32, mx.float32)


@pytest.mark.parametrize("make", [lambda: opt.SGD(0.1, momentum=0.9), lambda: opt.AdamW(0.01),
                                  lambda: opt.Adafactor(0.05, relative_step=False), lambda: opt.Muon(0.02),
                                  lambda: opt.Adam(opt.cosine_decay(0.02, 100), bias_correction=True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_training_a_small_model(make, compiled):
    mx.random.seed(0)
    x = mx.array(values(64, 4))
    y = (x[:, :1] * x[:, 1:2])
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = make()
    optimizer.init(model.trainable_parameters())
    loss_and_grad = nn.value_and_grad(model, lambda x, y: nn.losses.mse_loss(model(x), y))
    state = [model.state, optimizer.state]

    def step(x, y):
        loss, gradients = loss_and_grad(x, y)
        optimizer.update(model, gradients)
        return loss

    if compiled:
        step = mx.compile(step, inputs=state, outputs=state)
    losses = []
    for _ in range(60):
        losses.append(step(x, y).item())
        mx.eval(state)
    assert losses[-1] < 0.7 * losses[0]
    assert optimizer.step.item() == 60


AGAINST = [*((name, options) for name, _, options in REFERENCES),
           ("SGD", {"momentum": 0.9, "dampening": 0.3}), ("Adafactor", {"warmup_init": True}),
           ("Adafactor", {"learning_rate": 0.1, "relative_step": False, "scale_parameter": False})]


@pytest.mark.parametrize("name, options", AGAINST)
@pytest.mark.parametrize("dtype, tol", [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_steps_against_mlx(name, options, dtype, tol):
    mlx = pytest.importorskip("mlx.core")
    import mlx.optimizers as mlx_opt
    shapes = {"a": (4, 6), "b": [(5,), {"c": (3, 2, 2, 4), "d": (7, 3, 4)}]}

    def run(core, module):
        kwargs = dict(options)
        if name != "Adafactor":
            kwargs["learning_rate"] = module.cosine_decay(RATE, 5)
        optimizer = getattr(module, name)(**kwargs)

        def arrays(seed):
            return tree_map(lambda shape: core.array(values(*shape, seed=seed)).astype(getattr(core, dtype)), shapes,
                            is_leaf=lambda x: isinstance(x, tuple))

        parameters = arrays(0)
        for seed in range(1, 5):
            parameters = optimizer.apply_gradients(arrays(seed), parameters)
        return {path: (str(x.dtype).split(".")[-1], np.array(x.astype(core.float32)))
                for path, x in tree_flatten([parameters, optimizer.state])}

    got, want = run(mx, opt), run(mlx, mlx_opt)
    assert got.keys() == want.keys()
    for path, (kind, value) in want.items():
        assert got[path][0] == kind, path
        np.testing.assert_allclose(got[path][1], value, rtol=tol, atol=tol, err_msg=path)


@pytest.mark.parametrize("kind, options", [(opt.Adam, {}), (opt.AdamW, {"weight_decay": 0.1}),
                                           (opt.Adam, {"bias_correction": True})])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_compiled_step_has_the_bits_of_its_operations(kind, options, dtype):
    def moved():
        optimizer = kind(1e-2, **options)
        tree = {"w": mx.linspace(-2, 3, 77).astype(dtype), "b": mx.array([1e-4, -5.0], dtype=dtype)}
        for _ in range(3):
            tree = optimizer.apply_gradients({"w": tree["w"] * 0.5, "b": tree["b"] + 1}, tree)
        return [mx.view(one, mx.uint8).tolist() for one in (tree["w"], tree["b"], optimizer.state["w"]["v"])]

    want = moved()
    mx.disable_compile()
    try:
        assert moved() == want
    finally:
        mx.enable_compile()


ADAMS = [(opt.Adam, {}), (opt.AdamW, {"weight_decay": 0.1}), (opt.Adam, {"bias_correction": True}),
         (opt.AdamW, {"bias_correction": True})]


def by_operations(optimizer, g, w, m, v, rate, step):
    """A step of Adam, each operation by itself."""
    (b1, b2), eps, decay = optimizer.betas, optimizer.eps, getattr(optimizer, "weight_decay", None)
    w = w if decay is None else w * (1 - rate * decay)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (g * g)
    if not optimizer.bias_correction:
        return w - rate * m / (mx.sqrt(v) + eps), m, v
    scale = mx.rsqrt(1 - b2**step).astype(g.dtype)
    return w - (rate / (1 - b1**step)).astype(g.dtype) * m / (mx.sqrt(v) * scale + eps), m, v


@pytest.mark.parametrize("kind, options", ADAMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_parameters_that_move_together_have_the_bits_of_their_operations(kind, options, compiled):
    shapes = {"a": (33, 7), "scalar": (), "none": (0, 3), "l": [(5,), (1,), (300, 11)]}
    tree = tree_map(lambda shape: mx.array(values(*shape)), shapes, is_leaf=lambda one: isinstance(one, tuple))
    tree["turned"] = mx.array(values(6, 4)).T
    tree["half"] = mx.array(values(9)).astype(mx.bfloat16)
    tree["mixed"] = mx.array(values(9))
    optimizer, want = kind(1e-2, **options), dict(tree_flatten(tree))
    optimizer.init(tree)
    moments = {path: (mx.zeros_like(one), mx.zeros_like(one)) for path, one in want.items()}
    apply = optimizer.apply_gradients
    if compiled:
        apply = mx.compile(apply, inputs=[optimizer.state], outputs=[optimizer.state])
    for step in range(1, 4):
        gradients = tree_map(lambda one: one * 0.5 + 0.25, tree)
        gradients["mixed"] = gradients["mixed"].astype(mx.float16)
        tree = apply(gradients, tree)
        for path, g in tree_flatten(gradients):
            want[path], *moments[path] = by_operations(optimizer, g, want[path], *moments[path],
                                                       mx.array(1e-2).astype(g.dtype), mx.array(step, mx.uint64))
        moved, state = dict(tree_flatten(tree)), dict(tree_flatten(optimizer.state))
        for path, one in want.items():
            for got, expected in ((moved[path], one), (state[path + ".m"], moments[path][0]),
                                  (state[path + ".v"], moments[path][1])):
                assert got.dtype == expected.dtype and got.tolist() == expected.tolist(), path


def test_more_parameters_than_one_operation_takes():
    tree = {f"p{i}": mx.full((3,), float(i)) for i in range(2100)}
    moved = opt.Adam(0.5).apply_gradients(tree, tree)
    alone = opt.Adam(0.5).apply_gradients({"p2099": tree["p2099"]}, tree)["p2099"]
    assert len(moved) == 2100 and moved["p2099"].tolist() == alone.tolist() and moved["p0"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind, options", ADAMS)
def test_gradients_go_through_steps_of_many_parameters(kind, options):
    """With respect to parameters, gradients and the rate; forwards too, and in a batch."""
    w, g = mx.array(values(3, 4)), mx.array(values(3, 4, seed=1))

    def together(w, g, rate):
        optimizer, tree = kind(0.1, **options), {"a": w, "b": w[0] * 2}
        optimizer.init(tree)
        optimizer.learning_rate = rate
        for _ in range(2):
            tree = optimizer.apply_gradients({"a": g * tree["a"], "b": g[1] * tree["b"]}, tree)
        return (tree["a"]**2).sum() + (tree["b"] * optimizer.state["b"]["m"]).sum()

    def apart(w, g, rate):
        optimizer, tree = kind(0.1, **options), {"a": w, "b": w[0] * 2}
        moments = {key: (mx.zeros_like(one), mx.zeros_like(one)) for key, one in tree.items()}
        for step in (1, 2):
            for key, one in (("a", g * tree["a"]), ("b", g[1] * tree["b"])):
                tree[key], *moments[key] = by_operations(optimizer, one, tree[key], *moments[key], rate,
                                                         mx.array(step, mx.uint64))
        return (tree["a"]**2).sum() + (tree["b"] * moments["b"][0]).sum()

    arguments = (w, g, mx.array(0.1))
    for got, want in zip(mx.grad(together, argnums=(0, 1, 2))(*arguments),
                         mx.grad(apart, argnums=(0, 1, 2))(*arguments)):
        close(got, np.array(want), 1e-4)
    tangents = [mx.ones_like(one) for one in arguments]
    close(mx.jvp(together, arguments, tangents)[1][0], np.array(mx.jvp(apart, arguments, tangents)[1][0]), 1e-4)
    rows = mx.stack([w, 2 * w, w - 1])
    close(mx.vmap(together, in_axes=(0, None, None))(rows, g, arguments[2]),
          np.array(mx.vmap(apart, in_axes=(0, None, None))(rows, g, arguments[2])))


def test_a_step_of_many_parameters_is_exported(tmp_path):
    def step(w, b):
        moved = opt.AdamW(0.1).apply_gradients({"w": w * 2, "b": b + 1}, {"w": w, "b": b})
        return moved["w"], moved["b"]

    arguments = mx.array(values(3, 4)), mx.array(values(4))
    path = str(tmp_path / "step.mlxfn")
    mx.export_function(path, step, *arguments)
    for got, want in zip(mx.import_function(path)(*arguments), step(*arguments)):
        assert got.tolist() == want.tolist()


def test_a_subclass_of_adam_has_its_own_step():
    class Half(opt.Adam):
        def apply_single(self, gradient, parameter, state):
            return parameter / 2

    assert Half(0.1).apply_gradients({"w": mx.ones(2)}, {"w": mx.ones(2)})["w"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("wrong, said", [
    (lambda x: [x.sum(), None, None, x, x, x[:1], x], "expected float32 of its shape"),
    (lambda x: [x, None, None, x, x, x, x], "without dimensions"),
    (lambda x: [x.sum(), None, None], "0 parameters"),
    (lambda x: [x.sum(), None, None, x.astype(mx.float16), x, x, x], "expected float32 of its shape"),
])
def test_what_is_no_step_of_many_parameters(wrong, said):
    from gomlx import _gomlx
    with pytest.raises(ValueError, match=said):
        _gomlx._adam(wrong(mx.ones(4)), 0.9, 0.99, 1e-8)


def test_a_step_that_is_set_on_an_optimizer_and_rates_that_are_arrays():
    own = opt.Adam(0.1)
    own.apply_single = lambda gradient, parameter, state: parameter / 2
    assert own.apply_gradients({"w": mx.ones(2)}, {"w": mx.ones(2)})["w"].tolist() == [0.5, 0.5]
    with_arrays, with_numbers = opt.Adam(0.1, betas=[mx.array(0.5), mx.array(0.75)]), opt.Adam(0.1, betas=[0.5, 0.75])
    moved = [one.apply_gradients({"w": mx.ones(2)}, {"w": mx.ones(2)})["w"].tolist()
             for one in (with_arrays, with_numbers)]
    assert moved[0] == moved[1]
