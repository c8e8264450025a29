"""gomlx.nn: the tree of modules, quantised and distributed layers, and, where MLX is installed, every layer with the
same weights against mlx.nn's: outputs, gradients, names, signatures and descriptions.

Tolerances: float32 sums of at most a few hundred terms agree within 1e-5; chains of such layers within 2e-4.
"""
import collections
import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest
from arrays import close, f32

import gomlx.core as mx
import gomlx.nn as nn
from gomlx.nn.layers.distributed import shard_inplace, shard_linear, sum_gradients
from gomlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_merge, tree_reduce, tree_unflatten


def names(tree):
    return [name for name, _ in tree_flatten(tree)]


# ---------------------------------------------------------------------------------------------------------- trees

TREE = {"a": [1, (2, 3), {}], "b": {"c": 4}}


def test_trees_map_flatten_and_come_back():
    assert tree_flatten(TREE) == [("a.0", 1), ("a.1.0", 2), ("a.1.1", 3), ("b.c", 4)]
    assert tree_flatten(TREE, prefix=".m")[0] == ("m.a.0", 1)
    assert tree_flatten(TREE, destination={}) == dict(tree_flatten(TREE))
    assert tree_flatten(TREE, is_leaf=lambda x: isinstance(x, list)) == [("a", TREE["a"]), ("b.c", 4)]
    assert tree_flatten(7) == [("", 7)]
    assert tree_map(lambda x: -x, TREE) == {"a": [-1, (-2, -3), {}], "b": {"c": -4}}
    assert tree_map(lambda x, y: x + y, {"a": 1}, {"a": 2, "b": 3}) == {"a": 3}
    assert tree_map(len, {"a": [1, 2]}, is_leaf=lambda x: isinstance(x, list)) == {"a": 2}
    assert tree_map_with_path(lambda path, x: (path, x), {"a": [5]}) == {"a": [("a.0", 5)]}
    assert tree_map_with_path(lambda path, x: path, {"a": [5]}, path="top") == {"a": ["top.a.0"]}
    assert tree_unflatten([("a.0", 1), ("a.1", 2), ("b.c", 4)]) == {"a": [1, 2], "b": {"c": 4}}
    assert tree_unflatten({"1": "y", "0": "x", "3": "z"}) == ["x", "y", {}, "z"]
    assert tree_unflatten([("0", 1), ("x", 2)]) == {"0": 1, "x": 2}
    assert tree_unflatten([("007", 1), ("7", 2)]) == {"007": 1, "7": 2}           # else one of them would move
    assert tree_unflatten([("0.x", 1), ("00.y", 2)]) == {"0": {"x": 1}, "00": {"y": 2}}
    assert tree_unflatten([("0.x", 1), ("0.y", 2), ("01", 3)]) == [{"x": 1, "y": 2}, 3]
    assert tree_unflatten([]) == [] and tree_unflatten([("", 9)]) == 9
    assert tree_reduce(lambda a, x: a + x, TREE) == 10 and tree_reduce(lambda a, x: a + x, TREE, 5) == 15
    with pytest.raises(ValueError):
        tree_flatten(TREE, destination=3)
    with pytest.raises(KeyError):
        tree_map(lambda x, y: x, {"a": 1}, {})


def test_trees_merge():
    assert tree_merge({"a": {"x": 1}, "l": [1]}, {"a": {"y": 2}, "l": [None, 2]}) == {"a": {"x": 1, "y": 2},
                                                                                       "l": [1, 2]}
    assert tree_merge({}, 3) == 3 and tree_merge(3, None) == 3
    assert tree_merge((1, 2), (3, 4), lambda a, b: a * b) == (3, 8)
    assert tree_merge([], {"a": 1}) == {"a": 1} and tree_merge([], []) == []
    assert tree_merge([None], [()], lambda a, b: (a, b)) == [(None, None)]
    pair = collections.namedtuple("pair", "x y")
    assert tree_merge(pair(1, {}), pair(None, 2)) == pair(1, 2)
    for a, b in (({"a": 1}, {"a": 2}), (None, None), ({}, None), ({}, []), ((), [])):
        with pytest.raises(ValueError):
            tree_merge(a, b)


# -------------------------------------------------------------------------------------------------------- modules

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = mx.zeros((2,))
        self._hidden = mx.zeros((3,))
        self.layers = [nn.Linear(2, 2), nn.ReLU(), 3, None, mx.ones((1,))]
        self.parts = {"a": nn.Linear(2, 3), "b": {"c": mx.ones((4,))}}
        self.pair = (1, 2)
        self.number = 5
        self.text = "x"


def test_what_holds_arrays_is_an_item_and_the_rest_an_attribute():
    m = Model()
    assert list(m) == ["w", "_hidden", "layers", "parts", "pair"]
    assert m["w"] is m.w and m.number == 5 and "number" not in m and m.state is m
    m.w = 3
    assert "w" not in m and m.w == 3
    m.number = mx.ones((1,))
    assert "number" in m and "number" not in vars(m)
    del m.number
    with pytest.raises(AttributeError, match="no attribute 'number'"):
        m.number
    with pytest.raises(AttributeError):
        del m.absent


def test_parameters_children_and_names():
    m = Model()
    assert names(m.parameters()) == ["w", "layers.0.weight", "layers.0.bias", "layers.4", "parts.a.weight",
                                     "parts.a.bias", "parts.b.c"]
    assert m.parameters()["layers"][1:4] == [{}, {}, {}]
    assert [name for name, _ in m.named_modules()] == ["", "parts.a", "layers.1", "layers.0"]
    assert len(m.modules()) == 4 and m.modules()[0] is m
    assert m.children()["parts"]["a"] is m.parts["a"] and m.leaf_modules()["layers"][0] is m.layers[0]
    assert nn.Sequential(nn.Sequential(nn.Linear(1, 1))).leaf_modules()["layers"][0].keys() == {"layers"}
    assert nn.Module.is_module(m) and not nn.Module.is_module({})
    found = m.filter_and_map(lambda module, key, value: True, map_fn=lambda v: type(v).__name__)
    assert found["pair"] == "tuple" and found["layers"][2] == "int"
    with pytest.raises(RuntimeError):
        m.filter_and_map(lambda *a: True, is_leaf_fn=lambda module, key, value: isinstance(value, nn.Module))
    assert repr(m) == ("Model(\n  (layers.0): Linear(input_dims=2, output_dims=2, bias=True)\n  (layers.1): ReLU()\n"
                       "  (parts.a): Linear(input_dims=2, output_dims=3, bias=True)\n)")


def test_update_replaces_and_says_what_does_not_fit():
    m = Model()
    new = mx.ones((2, 2))
    assert m.update({"layers": [{"weight": new}], "parts": {"b": {"c": new}}}) is m
    assert m.layers[0].weight is new and m.parts["b"]["c"] is new
    for wrong, message in (({"zz": new}, 'parameter named "zz"'), ({"w": 3}, "invalid type: int"),
                           ({"w": {"a": new}}, "invalid type: dict"), ({"layers": new}, "invalid type: array"),
                           ({"layers": [{}, {}, new]}, "invalid type: array"),
                           ({"layers": [{}] * 4 + [new, new]}, "List index 5 is out of bounds")):
        with pytest.raises(ValueError, match=message):
            m.update(wrong)
    m.update({"zz": new, "layers": [{}] * 4 + [new, new]}, strict=False)
    assert "zz" not in m and len(m.layers) == 5
    m.update_modules({"layers": [nn.Linear(1, 1)], "parts": {"a": nn.ReLU()}})
    assert m.layers[0].weight.shape == (1, 1) and isinstance(m.parts["a"], nn.ReLU)
    for wrong, message in (({"zz": nn.ReLU()}, 'sub-module named "zz"'), ({"w": nn.ReLU(), "layers": [3]}, "Received"),
                           ({"layers": [{}, {}, nn.Linear(1, 1)]}, "invalid type: Linear")):
        with pytest.raises(ValueError, match=message):
            m.update_modules(wrong)


def test_freezing_and_thawing():
    m = Model()
    assert names(m.freeze().trainable_parameters()) == []
    assert names(m.unfreeze(recurse=False).trainable_parameters()) == ["w", "layers.4", "parts.b.c"]
    assert "layers.0.bias" in names(m.unfreeze(keys="bias").trainable_parameters())
    m.unfreeze().freeze(keys=["bias", "w"])
    assert names(m.trainable_parameters()) == ["layers.0.weight", "layers.4", "parts.a.weight", "parts.b.c"]
    with pytest.raises(KeyError, match="zzz"):
        m.freeze(keys="zzz", strict=True)
    with pytest.raises(KeyError):
        m.unfreeze(keys="bias", strict=True, recurse=False)
    m.freeze(keys="bias", strict=True)
    bn = nn.BatchNorm(2)
    bn.unfreeze()
    assert names(bn.trainable_parameters()) == ["weight", "bias"]


def test_training_mode_apply_and_dtype():
    m = Model()
    assert m.training and m.eval() is m and not m.training and not m.layers[0].training
    assert m.train().layers[1].training
    seen = []
    m.apply_to_modules(lambda name, module: seen.append(name))
    assert seen == [name for name, _ in m.named_modules()]
    m.count = mx.array([1, 2])
    m.set_dtype(mx.float16)
    assert m.layers[0].weight.dtype == mx.float16 and m.count.dtype == mx.int32 and m._hidden.dtype == mx.float32
    m.set_dtype(mx.float32, predicate=None)
    assert m.count.dtype == mx.float32
    m.apply(lambda x: x + 1)
    close(m.w, [1, 1])


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_weights_to_a_file_and_back(tmp_path, ending):
    path = str(tmp_path / f"weights.{ending}")
    a, b = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    a.save_weights(path)
    assert b.load_weights(path) is b
    for (name, x), (_, y) in zip(tree_flatten(a.parameters()), tree_flatten(b.parameters())):
        assert np.array_equal(np.array(x), np.array(y)), name


def test_weights_that_do_not_fit():
    linear = nn.Linear(2, 3)
    right = [("weight", mx.ones((3, 2))), ("bias", mx.ones((3,)))]
    linear.load_weights(right)
    for wrong in (right[:1], [*right, ("x", mx.ones(1))], [("weight", mx.ones((3, 3))), right[1]],
                  [("weight", 3), right[1]]):
        with pytest.raises(ValueError):
            linear.load_weights(wrong)
    linear.load_weights([("weight", mx.ones((5, 5))), ("x", mx.ones(1))], strict=False)
    assert linear.weight.shape == (5, 5)
    with pytest.raises(ValueError):
        linear.save_weights("weights.txt")


def test_modules_copy_and_pickle():
    m = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    m.layers[0].freeze()
    c = copy.deepcopy(m)
    c.layers[0].weight = mx.zeros((1,))
    assert m.layers[0].weight.shape == (2, 2)
    p = pickle.loads(pickle.dumps(m))
    assert np.array_equal(np.array(p.layers[0].weight), np.array(m.layers[0].weight))
    assert p.layers[0]._no_grad == {"weight", "bias"} and p.training


def test_value_and_grad_is_of_the_trainable_parameters():
    m = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False))
    m.layers[0].freeze(keys="bias")
    before = [m.layers[0].weight, m.layers[1].weight]

    def loss(x, factor=1.0):
        """doc"""
        y = m(x)
        return (y * factor).sum(), y

    step = nn.value_and_grad(m, loss)
    assert step.__name__ == "loss" and step.__doc__ == "doc"
    x = f32(4, 3)
    (value, y), grads = step(mx.array(x), factor=2.0)
    assert names(grads) == ["layers.0.weight", "layers.1.weight"]
    w1 = np.array(m.layers[1].weight)
    close(grads["layers"][0]["weight"], 2 * w1.T @ x.sum(0, keepdims=True))
    close(value, 2 * np.array(y).sum())
    assert [m.layers[0].weight, m.layers[1].weight] == before or all(
        np.array_equal(np.array(a), np.array(b)) for a, b in zip(before, [m.layers[0].weight, m.layers[1].weight]))

    def fails(x):
        raise KeyError("no loss")

    with pytest.raises(KeyError):
        nn.value_and_grad(m, fails)(mx.array(x))
    mx.eval(m.parameters())                     # no tracer was left in the model


def test_checkpoint_has_the_same_value_and_gradient():
    m = nn.Linear(3, 2)
    x = mx.array(f32(4, 3))
    plain = nn.value_and_grad(m, lambda x: mx.tanh(m(x)).sum())(x)
    again = nn.value_and_grad(m, lambda x: mx.tanh(nn.utils.checkpoint(m)(x)).sum())(x)
    for (_, a), (_, b) in zip(tree_flatten(plain), tree_flatten(again)):
        close(a, np.array(b))
    scaled = nn.utils.checkpoint(m, lambda x, factor=1: m(x) * factor)
    close(scaled(x, factor=3), 3 * np.array(m(x)))


def test_gradients_across_one_process_are_themselves():
    grads = {"a": mx.ones((4,)), "b": [mx.ones((5,))]}
    assert nn.average_gradients(grads) is grads
    clipped, norm = nn.utils.clip_grad_norm_sharded(grads, 1.0)
    close(norm, 3.0)
    close(clipped["b"][0], np.full(5, 1 / 3))


# ------------------------------------------------------------------------------------------------------ quantised

@pytest.mark.parametrize("mode, tol", [("affine", 0.02), ("mxfp8", 0.06), ("mxfp4", 0.2), ("nvfp4", 0.2)])
def test_quantised_layers_approximate(mode, tol):
    mx.random.seed(0)
    x = mx.array(f32(3, 128))
    bits = {"bits": 8} if mode == "affine" else {}
    for layer in (nn.Linear(128, 32), nn.Linear(128, 32, bias=False)):
        q = layer.to_quantized(mode=mode, **bits)
        want = np.array(layer(x))
        assert abs(np.array(q(x)) - want).max() < tol * abs(want).max() and ("bias" in q) == ("bias" in layer)
        assert {"weight", "scales"} <= q._no_grad and not {"weight", "scales"} & set(names(q.trainable_parameters()))
    table = nn.Embedding(9, 128)
    q = table.to_quantized(mode=mode, **bits)
    ids = mx.array([[1, 5]])
    assert abs(np.array(q(ids).astype(mx.float32)) - np.array(table(ids))).max() < tol
    want = np.array(table.as_linear(x))
    assert abs(np.array(q.as_linear(x)) - want).max() < 2 * tol * abs(want).max()
    with pytest.raises(ValueError):
        table.to_quantized(quantize_input=True)


def test_quantize_chooses_layers():
    def model():
        return nn.Sequential(nn.Linear(128, 64), nn.Embedding(10, 64), nn.ReLU(), nn.Linear(64, 64))

    m = model()
    nn.quantize(m)
    assert [type(layer).__name__ for layer in m.layers] == ["QuantizedLinear", "QuantizedEmbedding", "ReLU",
                                                            "QuantizedLinear"]
    assert repr(m.layers[0]) == ("QuantizedLinear(input_dims=128, output_dims=64, bias=True, group_size=64, bits=4, "
                                 "mode=affine)")
    m = model()
    seen = []

    def predicate(path, layer):
        seen.append(path)
        return {"bits": 3, "group_size": 64} if path == "layers.0" else path == "layers.3"

    nn.quantize(m, 32, 8, class_predicate=predicate)
    assert seen == [f"layers.{i}" for i in range(4)]
    assert (m.layers[0].bits, m.layers[3].bits, m.layers[3].group_size) == (3, 8, 32)
    assert isinstance(m.layers[1], nn.Embedding)
    for predicate in (lambda path, layer: 1, lambda path, layer: path == "layers.2"):
        with pytest.raises(ValueError):
            nn.quantize(model(), class_predicate=predicate)
    with pytest.raises(ValueError):
        nn.QuantizedLinear(64, 64, mode="other")


def test_layers_of_others_are_quantised_with_the_arguments_they_know():
    class Experts(nn.Module):
        def to_quantized(self, group_size=64, bits=4, mode="affine"):
            return nn.Sequential(group_size, bits, mode)

    m = nn.Sequential(Experts())
    nn.quantize(m, 32, mode="mxfp4")
    assert m.layers[0].layers == [32, None, "mxfp4"]
    with pytest.raises(TypeError):
        nn.quantize(nn.Sequential(Experts()), mode="mxfp8", quantize_input=True)


@pytest.mark.parametrize("mode", ["nvfp4", "mxfp8"])
def test_inputs_and_weights_quantised(mode):
    layer = nn.QQLinear(64, 32, mode=mode)
    w = np.array(layer.weight)
    assert layer.keys() == {"weight"} and names(layer.trainable_parameters()) == ["weight"]
    layer.eval()
    assert layer.keys() == {"weight", "scales"} and layer.weight.dtype == mx.uint32
    x = f32(1, 64)
    want = x @ w.T
    assert abs(np.array(layer(mx.array(x))) - want).max() < 0.3 * abs(want).max()
    layer.train()
    assert layer.keys() == {"weight"} and layer.weight.shape == (32, 64)
    assert isinstance(nn.Linear(64, 32, bias=False).to_quantized(mode=mode, quantize_input=True), nn.QQLinear)
    with pytest.raises(NotImplementedError):
        nn.Linear(64, 32).to_quantized(mode=mode, quantize_input=True)
    with pytest.raises(ValueError):
        nn.Linear(64, 32, bias=False).to_quantized(quantize_input=True)


# ---------------------------------------------------------------------------------------------------- distributed

@pytest.mark.parametrize("sharding", ["all-to-sharded", "sharded-to-all"])
def test_layers_sharded_over_one_process_are_themselves(sharding):
    x = mx.array(f32(3, 64))
    for layer in (nn.Linear(64, 32), nn.Linear(64, 32, bias=False), nn.Linear(64, 32).to_quantized(32, 8)):
        sharded = shard_linear(layer, sharding, segments=2)
        close(sharded(x), np.array(layer(x)))
        assert type(sharded).__name__ in repr(sharded) and "output_dims=32" in repr(sharded)
        grads = mx.grad(lambda x: sharded(x).sum())(x)
        close(grads, np.array(mx.grad(lambda x: layer(x).sum())(x)))
    layer = nn.Linear(6, 4)
    before = np.array(layer.weight)
    shard_inplace(layer, sharding)
    close(layer.weight, before)
    with pytest.raises(ValueError):
        shard_linear(layer, "sideways")
    group = mx.distributed.init()
    assert sum_gradients(group)(x) is x and nn.fully_shard(layer) is layer


def test_fully_sharded_module_over_one_process():
    layer = nn.Linear(3, 2)
    x = mx.array(f32(4, 3))
    want, grads = nn.value_and_grad(layer, lambda x: layer(x).sum())(x)
    whole = nn.FullyShardedModule(layer)
    assert names(whole.parameters()) == ["module.weight", "module.bias"] and "num_sharded_params=2" in repr(whole)
    value, sharded = nn.value_and_grad(whole, lambda x: whole(x).sum())(x)
    close(value, np.array(want))
    close(sharded["module"]["weight"], np.array(grads["weight"]))
    assert nn.FullyShardedModule(nn.Linear(3, 2), compute_dtype=mx.float16)(x.astype(mx.float16)).dtype == mx.float16


# ------------------------------------------------------------------------------------------------- against mlx.nn

CASES = {
    "linear": (lambda n: n.Linear(5, 3), (2, 4, 5)), "linear vector": (lambda n: n.Linear(5, 3), (5,)),
    "bilinear": (lambda n: n.Bilinear(5, 3, 4), (2, 5), (2, 3)),
    "conv1d": (lambda n: n.Conv1d(4, 6, 3, 2, 1, 2, 2), (2, 17, 4)),
    "conv2d": (lambda n: n.Conv2d(4, 6, (3, 2), (1, 2), (0, 1), (1, 2), 2), (2, 7, 8, 4)),
    "conv3d": (lambda n: n.Conv3d(2, 3, (2, 3, 1), 2, (1, 0, 1)), (1, 4, 4, 5, 2)),
    "conv_transpose1d": (lambda n: n.ConvTranspose1d(4, 6, 3, 2, 1, output_padding=1), (2, 7, 4)),
    "conv_transpose2d": (lambda n: n.ConvTranspose2d(4, 6, (3, 2), (1, 2), (0, 1), output_padding=(0, 1)),
                         (2, 5, 6, 4)),
    "conv_transpose3d": (lambda n: n.ConvTranspose3d(2, 3, (2, 3, 1), 2, (1, 0, 0)),
                         (1, 3, 3, 4, 2)),
    "instance_norm": (lambda n: n.InstanceNorm(4, affine=True), (2, 3, 5, 4)),
    "layer_norm": (lambda n: n.LayerNorm(4), (2, 3, 4)), "rms_norm": (lambda n: n.RMSNorm(4), (2, 3, 4)),
    "group_norm": (lambda n: n.GroupNorm(2, 4), (2, 3, 5, 4)),
    "group_norm torch": (lambda n: n.GroupNorm(2, 4, pytorch_compatible=True), (2, 3, 5, 4)),
    "batch_norm": (lambda n: n.BatchNorm(4), (2, 3, 5, 4)),
    "batch_norm bare": (lambda n: n.BatchNorm(4, affine=False, track_running_stats=False), (6, 4)),
    "max_pool2d": (lambda n: n.MaxPool2d((2, 3), (2, 1), (1, 0)), (2, 8, 7, 3)),
    "avg_pool3d": (lambda n: n.AvgPool3d((2, 3, 1), (2, 1, 2), (1, 0, 0)), (1, 5, 7, 3, 2)),
    "rope": (lambda n: n.RoPE(6), (1, 2, 5, 8)), "rope traditional": (lambda n: n.RoPE(8, True, 100.0), (1, 2, 5, 8)),
    "alibi": (lambda n: n.ALiBi(), (1, 6, 3, 5)),
    "rnn": (lambda n: n.RNN(3, 4), (2, 5, 3), (2, 4)), "gru": (lambda n: n.GRU(3, 4), (2, 5, 3), (2, 4)),
    "gru bare": (lambda n: n.GRU(3, 4, bias=False), (2, 5, 3)),
    "lstm": (lambda n: n.LSTM(3, 4), (2, 5, 3), (2, 4), (2, 4)), "lstm first": (lambda n: n.LSTM(3, 4), (5, 3)),
    "attention": (lambda n: n.MultiHeadAttention(8, 2, 3, 5, 7, 6, 9, True), (2, 3, 3), (2, 5, 5), (2, 5, 7)),
    "encoder": (lambda n: n.TransformerEncoder(2, 8, 2), (2, 3, 8), None),
    "transformer": (lambda n: n.Transformer(8, 2, 1, 2, norm_first=False), (2, 3, 8), (2, 4, 8), None, None, None),
    "linear upsampling": (lambda n: n.Upsample((1.5, 2.6), "linear"), (2, 4, 5, 3)),
    "cubic upsampling": (lambda n: n.Upsample(1.7, "cubic"), (2, 4, 5, 3)),
    "cubic shrinking": (lambda n: n.Upsample(0.4, "cubic", antialias=True), (2, 7, 8, 3)),
    "nearest upsampling": (lambda n: n.Upsample(1.7), (2, 4, 5, 3)),
    "prelu": (lambda n: n.PReLU(3, 0.1), (4, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_layer_against_mlx(case):
    mlx = pytest.importorskip("mlx.core")
    import mlx.nn as mlx_nn
    make, *shapes = CASES[case]
    inputs = [None if shape is None else f32(*shape, seed=i) for i, shape in enumerate(shapes)]
    theirs, ours = make(mlx_nn), make(nn)
    weights = tree_flatten(tree_map(np.array, theirs.parameters()))
    assert [(name, w.shape) for name, w in weights] == [(n, p.shape) for n, p in tree_flatten(ours.parameters())]
    ours.load_weights([(name, mx.array(w)) for name, w in weights])
    assert repr(ours).replace("gomlx", "mlx") == repr(theirs) or case == "rnn"      # a function's address

    def run(module, layer, core):
        arrays = [None if x is None else core.array(x) for x in inputs]
        places = [i for i, x in enumerate(arrays) if x is not None]

        def loss(*xs):
            out = layer(*xs)
            out = out if isinstance(out, tuple) else (out,)
            return sum((y * core.arange(1, y.size + 1).reshape(y.shape) / y.size).sum() for y in out)

        result = {"output": layer(*arrays), "inputs": core.grad(loss, argnums=places)(*arrays)}
        if layer.trainable_parameters():
            result["parameters"] = module.value_and_grad(layer, loss)(*arrays)
        result["state"] = layer.parameters()
        return {name: np.array(value) for name, value in tree_flatten(result)}

    got, want = run(nn, ours, mx), run(mlx_nn, theirs, mlx)
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=2e-4, err_msg=name)


def arguments(function):
    """Names and kinds of a function's parameters, and those defaults that are plain values."""
    found = list(inspect.signature(function).parameters.values())
    return ([("self" if p.name == "_" else p.name, p.kind) for p in found],
            [p.default for p in found if isinstance(p.default, (bool, int, float, str, list, tuple, type(None)))])


def test_names_and_signatures_against_mlx():
    pytest.importorskip("mlx.core")
    for path in ("nn", "nn.losses", "nn.init", "nn.utils", "optimizers", "utils"):
        theirs, ours = (importlib.import_module(f"{package}.{path}") for package in ("mlx", "gomlx"))
        for name, one in vars(theirs).items():
            if name.startswith("_") or not getattr(one, "__module__", "").startswith(f"mlx.{path.split('.')[0]}"):
                continue
            if name == "Module" and path in ("optimizers", "nn.utils") or name.startswith("tree_") and path != "utils":
                continue                        # imported there, not defined
            other = getattr(ours, name)
            assert arguments(other) == arguments(one), name
            if inspect.isclass(one):
                for method, value in vars(one).items():
                    if inspect.isfunction(value) and (method == "__call__" or not method.startswith("_")):
                        assert arguments(getattr(other, method)) == arguments(value), (name, method)


def test_files_of_layers_are_attributes():
    assert nn.activations.relu is nn.relu and nn.base.Module is nn.Module and nn.quantized is nn.layers.quantized
    assert {"containers", "convolution", "convolution_transpose", "distributed", "dropout", "embedding", "linear",
            "normalization", "pooling", "positional_encoding", "recurrent", "transformer", "upsample",
            "utils"} <= set(dir(nn))


@pytest.mark.parametrize("make, name", [
    (lambda wrong: nn.Linear(wrong, 3), "Linear: input_dims"),
    (lambda wrong: nn.Linear(3, wrong), "Linear: output_dims"),
    (lambda wrong: nn.Bilinear(2, wrong, 3), "Bilinear: input2_dims"),
    (lambda wrong: nn.Conv2d(wrong, 4, 3), "Conv2d: in_channels"),
    (lambda wrong: nn.Conv1d(4, wrong, 3), "Conv1d: out_channels"),
    (lambda wrong: nn.Conv2d(4, 4, 3, groups=wrong), "Conv2d: groups"),
    (lambda wrong: nn.ConvTranspose1d(wrong, 4, 3), "ConvTranspose1d: in_channels")])
def test_sizes_of_layers_are_named_where_they_are_wrong(make, name):
    for wrong in ("2", 2.0, None):
        with pytest.raises(TypeError, match=f"{name}: expected an integer, got {wrong!r}"):
            make(wrong)
    with pytest.raises(ValueError, match=f"{name} is -1, expected [01] or more"):
        make(-1)
    make(np.int64(4))
