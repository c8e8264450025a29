"""The layers, losses and initialisers of gomlx.nn against their definitions in NumPy.

Tolerances: float32 sums of at most a few hundred terms agree within 1e-5; normalised by such sums, within 1e-4.
"""
import math

import numpy as np
import pytest
from arrays import close, f32

import gomlx.core as mx
import gomlx.nn as nn
from gomlx.utils import tree_flatten


def names(tree):
    return [name for name, _ in tree_flatten(tree)]


# --------------------------------------------------------------------------------------------------------- layers

def affine(x, layer):
    y = x @ np.array(layer.weight).T
    return y + np.array(layer.bias) if "bias" in layer else y


def test_linear_bilinear_embedding():
    x = f32(4, 3)
    for bias in (True, False):
        layer = nn.Linear(3, 5, bias=bias)
        close(layer(mx.array(x)), affine(x, layer))
        assert abs(np.array(layer.weight)).max() <= 1 / math.sqrt(3)
    layer = nn.Bilinear(3, 2, 5)
    x2 = f32(4, 2, seed=1)
    close(layer(mx.array(x), mx.array(x2)),
          np.einsum("nj,oji,ni->no", x2, np.array(layer.weight), x) + np.array(layer.bias))
    table = nn.Embedding(7, 3)
    close(table(mx.array([[1, 2], [6, 0]])), np.array(table.weight)[[[1, 2], [6, 0]]])
    close(table.as_linear(mx.array(x)), x @ np.array(table.weight).T)
    assert nn.Identity(1, a=2)(x) is x
    close(nn.Sequential(nn.Linear(3, 3), mx.tanh)(mx.array(x)).shape, (4, 3))


def convolve(x, w, stride=1, padding=0, dilation=1, groups=1):
    """Of one example: x (*positions, C), w (O, *kernel, C / groups)."""
    dims = x.ndim - 1
    x = np.pad(x, [(padding, padding)] * dims + [(0, 0)])
    kernel = w.shape[1:-1]
    out = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape, kernel)]
    y = np.zeros((*out, w.shape[0]), np.float64)
    per_in, per_out = w.shape[-1], w.shape[0] // groups
    for at in np.ndindex(*out):
        for tap in np.ndindex(*kernel):
            values = x[tuple(a * stride + t * dilation for a, t in zip(at, tap))]
            for g in range(groups):
                outs = slice(g * per_out, (g + 1) * per_out)
                y[at][outs] += w[(outs, *tap)] @ values[g * per_in:(g + 1) * per_in]
    return y


@pytest.mark.parametrize("layer, shape", [
    (lambda: nn.Conv1d(4, 6, 3), (9, 4)), (lambda: nn.Conv1d(4, 6, 3, 2, 1, 2, 2), (9, 4)),
    (lambda: nn.Conv2d(2, 3, 3, 2, 1), (6, 5, 2)), (lambda: nn.Conv2d(2, 4, (3, 2), groups=2, bias=False), (5, 5, 2)),
    (lambda: nn.Conv3d(2, 3, 2, 1, 1), (3, 4, 3, 2))])
def test_convolutions(layer, shape):
    layer = layer()
    x = f32(*shape)

    def one(value):
        return value[0] if isinstance(value, tuple) else value

    want = convolve(x, np.array(layer.weight), one(layer.stride), one(layer.padding), one(layer.dilation),
                    getattr(layer, "groups", 1))
    close(layer(mx.array(x[None]))[0], want + (np.array(layer.bias) if "bias" in layer else 0))


@pytest.mark.parametrize("transposed, plain, shape", [
    (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1), lambda: nn.Conv1d(6, 4, 3, 2, 1, bias=False), (5, 4)),
    (lambda: nn.ConvTranspose2d(2, 3, 3, 2), lambda: nn.Conv2d(3, 2, 3, 2, bias=False), (3, 4, 2)),
    (lambda: nn.ConvTranspose3d(2, 3, 2), lambda: nn.Conv3d(3, 2, 2, bias=False), (2, 3, 2, 2))])
def test_a_transposed_convolution_is_the_adjoint_of_the_convolution(transposed, plain, shape):
    t, c = transposed(), plain()
    c.weight = t.weight.swapaxes(0, -1)
    x = mx.array(f32(1, *shape))
    y = t(x) - t.bias
    other = mx.array(f32(*y.shape, seed=3))
    close((y * other).sum(), np.array((x * c(other)).sum()), 1e-4)          # <A x, y> = <x, A* y>


def test_output_padding_makes_the_output_larger():
    x = mx.array(f32(1, 5, 6, 4))
    assert nn.ConvTranspose2d(4, 2, 3, 2, 1, output_padding=1)(x).shape == (1, 10, 12, 2)


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_normalisations():
    x = f32(3, 4, 5, 6) * 3 + 1
    m = mx.array(x)
    close(nn.LayerNorm(6)(m), standard(x, -1), 1e-4)
    close(nn.LayerNorm(6, affine=False)(m), standard(x, -1), 1e-4)
    assert "bias" not in nn.LayerNorm(6, bias=False)
    close(nn.InstanceNorm(6)(m), standard(x, (1, 2)), 1e-4)
    close(nn.RMSNorm(6)(m), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), 1e-4)
    by_remainder = x.reshape(3, 20, 3, 2)
    close(nn.GroupNorm(2, 6)(m), standard(by_remainder, (1, 2)).reshape(x.shape), 1e-4)
    neighbours = x.reshape(3, 20, 2, 3)
    close(nn.GroupNorm(2, 6, pytorch_compatible=True)(m), standard(neighbours, (1, 3)).reshape(x.shape), 1e-4)
    layer = nn.GroupNorm(2, 6)
    layer.weight, layer.bias = mx.full((6,), 2.0), mx.full((6,), 1.0)
    close(layer(m), 2 * standard(by_remainder, (1, 2)).reshape(x.shape) + 1, 1e-4)
    for wrong in (lambda: nn.InstanceNorm(4)(mx.ones((2, 4))), lambda: nn.GroupNorm(3, 8),
                  lambda: nn.BatchNorm(4)(mx.ones((4,)))):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("layer", [nn.InstanceNorm(2), nn.GroupNorm(1, 2), nn.GroupNorm(2, 2, pytorch_compatible=True)])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_normalisations_of_half_precision_take_statistics_in_float32(layer, dtype):
    x = mx.array([[[600.0, 512], [-600, -512]]]).astype(dtype)          # the square of 600 is beyond float16
    y = layer(x)
    close(y.astype(mx.float32), np.array(layer(x.astype(mx.float32))), 1e-2)
    assert abs(y.astype(mx.float32)).min() > 0.9 and (y * layer.weight if "weight" in layer else y).dtype == y.dtype


@pytest.mark.parametrize("eps", [0, 0.0, -1e-5])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm, nn.BatchNorm,
                                  lambda dims, eps: nn.GroupNorm(2, dims, eps)])
def test_normalisations_want_a_positive_eps(make, eps):
    with pytest.raises(ValueError, match=rf"Norm\] 'eps' must be positive but got {eps}\."):
        make(4, eps=eps)


@pytest.mark.parametrize("groups, dims, message", [(0, 6, r"groups \(0\) must"), (-3, 6, r"groups \(-3\) must"),
                                                   (3, 0, r"features \(0\) must"), (0, 0, r"groups \(0\) must")])
def test_group_norm_has_groups_and_features(groups, dims, message):
    with pytest.raises(ValueError, match=f"The number of {message} be a positive integer."):
        nn.GroupNorm(groups, dims)


def test_batch_norm_in_training_wants_more_than_one_value_per_channel():
    for layer in nn.BatchNorm(4), nn.BatchNorm(4, track_running_stats=False):
        for shape in (1, 4), (1, 1, 4), (1, 1, 1, 4):
            with pytest.raises(ValueError, match="BatchNorm training requires more than one value per channel."):
                layer(mx.ones(shape))
        assert layer(mx.ones((1, 2, 4))).shape == (1, 2, 4)
        assert layer.eval()(mx.ones((1, 4))).shape == (1, 4)


def test_batch_norm_follows_the_batches_and_then_uses_what_it_saw():
    layer = nn.BatchNorm(4, momentum=0.3)
    mean, variance = np.zeros(4), np.ones(4)
    for seed in range(3):
        x = f32(5, 7, 4, seed=seed) * 2 + 1
        close(layer(mx.array(x)), standard(x, (0, 1)), 1e-4)
        mean = 0.7 * mean + 0.3 * x.mean((0, 1))
        variance = 0.7 * variance + 0.3 * x.var((0, 1), ddof=1)
    close(layer.running_mean, mean, 1e-4)
    close(layer.running_var, variance, 1e-4)
    layer.eval()
    close(layer(mx.array(x)), (x - mean) / np.sqrt(variance + 1e-5), 1e-4)
    assert names(layer.trainable_parameters()) == ["weight", "bias"]


@pytest.mark.parametrize("kind, reduce, fill", [("Max", np.max, -np.inf), ("Avg", np.mean, 0)])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("args", [(2,), (2, 1), (3, 2, 1), (2, 2, 1)])
def test_pooling(kind, reduce, fill, dims, args):
    x = f32(2, *(6, 7, 4)[:dims], 3)
    size, stride, padding = (*args, args[0], 0)[:3] if len(args) == 1 else (*args, 0)[:3]
    padded = np.pad(x, [(0, 0)] + [(padding, padding)] * dims + [(0, 0)], constant_values=fill)
    out = [(n - size) // stride + 1 for n in padded.shape[1:-1]]
    want = np.zeros((2, *out, 3))
    for at in np.ndindex(*out):
        window = padded[(slice(None), *(slice(a * stride, a * stride + size) for a in at))]
        want[(slice(None), *at)] = reduce(window, axis=tuple(range(1, dims + 1)))
    layer = getattr(nn, f"{kind}Pool{dims}d")(*args)
    close(layer(mx.array(x)), want)
    close(layer(mx.array(np.moveaxis(x, -1, 1).copy()).transpose(0, *range(2, dims + 2), 1)), want)    # strided input
    grad = mx.grad(lambda v: layer(v).sum())(mx.array(x))
    if kind == "Max":
        assert abs(np.array(grad).sum() - want.size) < 1e-3


def test_pooling_arguments():
    for wrong in (lambda: nn.MaxPool1d("a"), lambda: nn.MaxPool2d((1, 2, 3)), lambda: nn.AvgPool3d(2, (1, 2)),
                  lambda: nn.MaxPool2d(2)(mx.ones((4, 4, 3))), lambda: nn.MaxPool2d(2)(mx.ones((4,)))):
        with pytest.raises(ValueError):
            wrong()
    assert repr(nn.MaxPool2d(2, padding=(0, 1))) == "MaxPool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 1))"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_recurrent_layers():
    x = f32(2, 5, 3)

    def split(weight, n):
        return np.split(np.array(weight), n)

    rnn = nn.RNN(3, 4)
    h = np.zeros((2, 4))
    for i in range(5):
        h = np.tanh(x[:, i] @ np.array(rnn.Wxh).T + h @ np.array(rnn.Whh).T + np.array(rnn.bias))
        close(rnn(mx.array(x))[:, i], h)

    lstm = nn.LSTM(3, 4)
    h, c = f32(2, 4, seed=1), f32(2, 4, seed=2)
    hs, cs = lstm(mx.array(x), hidden=mx.array(h), cell=mx.array(c))
    for i in range(5):
        gates = [x[:, i] @ wx.T + h @ wh.T + b
                 for wx, wh, b in zip(split(lstm.Wx, 4), split(lstm.Wh, 4), split(lstm.bias, 4))]
        c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * np.tanh(gates[2])
        h = sigmoid(gates[3]) * np.tanh(c)
        close(hs[:, i], h)
        close(cs[:, i], c)

    gru = nn.GRU(3, 4)
    h = f32(2, 4, seed=1)
    got = gru(mx.array(x), hidden=mx.array(h))
    (xr, xz, xn), (hr, hz, hn), (br, bz, bn) = split(gru.Wx, 3), split(gru.Wh, 3), split(gru.b, 3)
    for i in range(5):
        r, z = sigmoid(x[:, i] @ xr.T + h @ hr.T + br), sigmoid(x[:, i] @ xz.T + h @ hz.T + bz)
        n = np.tanh(x[:, i] @ xn.T + bn + r * (h @ hn.T + np.array(gru.bhn)))
        h = (1 - z) * n + z * h
        close(got[:, i], h)
    for layer in (rnn, gru, lstm):
        one, many = layer(mx.array(x[0])), layer(mx.array(x))
        one, many = (one[0], many[0]) if layer is lstm else (one, many)
        close(one, np.array(many[0]))
    with pytest.raises(ValueError):
        nn.RNN(2, 3, nonlinearity=3)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_attention_and_transformer():
    q, kv = f32(2, 3, 8), f32(2, 5, 8, seed=1)
    layer = nn.MultiHeadAttention(8, 2, bias=True)
    mask = f32(3, 5, seed=2)

    def heads(x, projection):
        return affine(x, projection).reshape(2, -1, 2, 4).transpose(0, 2, 1, 3)

    scores = heads(q, layer.query_proj) @ heads(kv, layer.key_proj).transpose(0, 1, 3, 2) / 2 + mask
    out = softmax(scores) @ heads(kv, layer.value_proj)
    close(layer(mx.array(q), mx.array(kv), mx.array(kv), mx.array(mask)),
          affine(out.transpose(0, 2, 1, 3).reshape(2, 3, 8), layer.out_proj), 1e-4)
    causal = np.array(layer.create_additive_causal_mask(3))
    assert (causal[np.triu_indices(3, 1)] < -1e38).all() and (causal[np.tril_indices(3)] == 0).all()
    with pytest.raises(ValueError):
        nn.MultiHeadAttention(7, 2)
    x, y = mx.array(q), mx.array(kv)
    for norm_first in (True, False):
        model = nn.Transformer(8, 2, 2, 1, norm_first=norm_first)
        again = nn.Transformer(8, 2, 2, 1, norm_first=norm_first, checkpoint=True)
        again.update(model.parameters())
        close(again(x, y, None, None, None), np.array(model(x, y, None, None, None)), 1e-4)
        # A causal decoder's first output does not depend on what comes later.
        causal = nn.MultiHeadAttention.create_additive_causal_mask(5)
        later = mx.concatenate([y[:, :2], y[:, 2:] + 1], axis=1)
        close(model(x, y, None, causal, None)[:, :2], np.array(model(x, later, None, causal, None)[:, :2]), 1e-4)
    custom = nn.Transformer(8, 2, custom_encoder=nn.ReLU(), custom_decoder=nn.Identity())
    assert isinstance(custom.encoder, nn.ReLU)


def test_positional_encodings():
    angles = np.arange(3)[:, None] * 0.0001 ** (np.arange(4) / 3)
    want = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    close(nn.SinusoidalPositionalEncoding(8)(mx.arange(3)), want * 0.5)
    close(nn.SinusoidalPositionalEncoding(8, scale=3.0, cos_first=True)(mx.arange(3)), 3 * np.roll(want, 4, -1))
    assert nn.SinusoidalPositionalEncoding(8).parameters() == {}
    assert (np.array(nn.SinusoidalPositionalEncoding(8, scale=0.0)(mx.arange(3))) == 0).all()
    with pytest.raises(ValueError):
        nn.SinusoidalPositionalEncoding(7)
    bias = np.array(nn.ALiBi.create_alibi_matrix(3, 4, 2))
    assert bias.shape == (1, 2, 3, 4)
    close(bias[0, 0], -abs(np.arange(3)[:, None] - np.arange(4)) / 16)
    close(nn.ALiBi.create_alibi_slope(6)[:, 0, 0], [2.0**-n for n in (2, 4, 6, 8, 1, 3)])
    scores = f32(1, 2, 1, 4)
    close(nn.ALiBi()(mx.array(scores), offset=3), scores + np.array(nn.ALiBi.create_alibi_matrix(4, 4, 2, offset=3)))
    x = f32(1, 2, 5, 8)
    for traditional in (False, True):
        turned = np.array(nn.RoPE(6, traditional, base=100.0, scale=0.5)(mx.array(x), offset=3))
        theta = (np.arange(5) + 3)[:, None] * 0.5 * 100.0 ** (-np.arange(3) / 3)
        first, second = (slice(0, 6, 2), slice(1, 6, 2)) if traditional else (slice(0, 3), slice(3, 6))
        close(turned[..., first], x[..., first] * np.cos(theta) - x[..., second] * np.sin(theta))
        close(turned[..., second], x[..., first] * np.sin(theta) + x[..., second] * np.cos(theta))
        close(turned[..., 6:], x[..., 6:])


def test_upsampling():
    x = f32(1, 3, 4, 2)
    m = mx.array(x)
    close(nn.Upsample(2)(m), x.repeat(2, 1).repeat(2, 2))
    close(nn.Upsample((1.0, 1.5))(m), x[:, :, [0, 0, 1, 2, 2, 3]])
    ramp = mx.arange(5, dtype=mx.float32).reshape(1, 5, 1)
    close(nn.Upsample(2, "linear")(ramp).reshape(-1), np.clip(np.arange(10) / 2 - 0.25, 0, 4))
    close(nn.Upsample(2, "linear", align_corners=True)(ramp).reshape(-1), np.linspace(0, 4, 10))
    close(nn.Upsample(2, "cubic", antialias=True)(ramp).reshape(-1)[4:6], [1.75, 2.25])     # exact on a ramp, inside
    close(nn.Upsample(0.5, "linear", antialias=True)(mx.ones((1, 6, 6, 1))), np.ones((1, 3, 3, 1)))
    close(nn.Upsample(3, "cubic", antialias=True)(mx.ones((1, 4, 1))), np.ones((1, 12, 1)))
    for wrong in (lambda: nn.Upsample(2, "best"), lambda: nn.Upsample(2)(mx.ones((2, 3))),
                  lambda: nn.Upsample((2, 3))(mx.ones((2, 3, 3))), lambda: nn.Upsample(2, antialias=True),
                  lambda: nn.Upsample(2, "linear", align_corners=True, antialias=True)):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("layer, shape, channels", [
    (nn.Dropout, (40, 50), None), (nn.Dropout2d, (20, 3, 4, 50), (1, 2)), (nn.Dropout2d, (3, 4, 500), (0, 1)),
    (nn.Dropout3d, (20, 2, 3, 2, 50), (1, 2, 3)), (nn.Dropout3d, (2, 3, 2, 500), (0, 1, 2))])
def test_dropout(layer, shape, channels):
    mx.random.seed(4)
    x = mx.ones(shape)
    y = np.array(layer(0.4)(x))
    assert np.allclose(np.unique(y), [0, 1 / 0.6])
    if channels is not None:
        assert (y.min(channels) == y.max(channels)).all()           # whole channels
        y = y.min(channels)
    assert 0.5 < (y > 0).mean() < 0.7
    assert layer(0.4).eval()(x) is x and layer(0.0)(x) is x
    with pytest.raises(ValueError):
        layer(1.0)
    if channels is not None:
        with pytest.raises(ValueError):
            layer(0.5)(mx.ones((2, 2)))


ACTIVATIONS = {
    "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0), "relu2": lambda x: np.maximum(x, 0)**2,
    "relu6": lambda x: np.clip(x, 0, 6), "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1), "celu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "selu": lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * (np.exp(x) - 1)), "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.log1p(np.exp(x)), "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "softsign": lambda x: x / (1 + abs(x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softshrink": lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0), "hard_shrink": lambda x: x * (abs(x) > 0.5),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6, "hard_tanh": lambda x: np.clip(x, -1, 1), "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_approx": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_fast_approx": lambda x: x * sigmoid(1.702 * x), "step": lambda x: x >= 0, "softmax": softmax,
    "softmin": lambda x: softmax(-x), "log_softmax": lambda x: np.log(softmax(x)),
    "glu": lambda x: x[..., :3] * sigmoid(x[..., 3:]),
}
LAYERS = {"sigmoid": "Sigmoid", "relu": "ReLU", "relu2": "ReLU2", "relu6": "ReLU6", "leaky_relu": "LeakyReLU",
          "elu": "ELU", "celu": "CELU", "selu": "SELU", "silu": "SiLU", "softplus": "Softplus",
          "log_sigmoid": "LogSigmoid", "softsign": "Softsign", "mish": "Mish", "softshrink": "Softshrink",
          "hard_shrink": "HardShrink", "hardswish": "Hardswish", "hard_tanh": "HardTanh", "tanh": "Tanh",
          "step": "Step", "softmax": "Softmax", "softmin": "Softmin", "log_softmax": "LogSoftmax", "glu": "GLU"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = 3 * f32(4, 6)
    close(getattr(nn, name)(mx.array(x)), ACTIVATIONS[name](x.astype(np.float64)), 2e-5)
    if name in LAYERS:
        close(getattr(nn, LAYERS[name])()(mx.array(x)), ACTIVATIONS[name](x.astype(np.float64)), 2e-5)
    if name != "step":
        assert getattr(nn, name)(mx.array(x).astype(mx.bfloat16)).dtype == mx.bfloat16


def test_activations_with_parameters():
    x = 3 * f32(4, 6)
    m = mx.array(x)
    close(nn.PReLU(6, 0.1)(m), np.where(x > 0, x, 0.1 * x))
    close(nn.LeakyReLU(0.2)(m), np.where(x > 0, x, 0.2 * x))
    close(nn.celu(m, alpha=2.0), np.where(x > 0, x, 2 * (np.exp(x / 2) - 1)))
    close(nn.Step(0.5)(m), x >= 0.5)
    close(nn.glu(m, axis=0), x[:2] * sigmoid(x[2:]))
    for approx, name in (("none", "gelu"), ("precise", "gelu_approx"), ("tanh", "gelu_approx"),
                         ("fast", "gelu_fast_approx")):
        close(nn.GELU(approx)(m), np.array(getattr(nn, name)(m)))
    with pytest.raises(ValueError):
        nn.GELU("best")


# --------------------------------------------------------------------------------------------- losses, initialisers

def test_losses():
    x, y = f32(4, 5), f32(4, 5, seed=1)
    mx_x, mx_y = mx.array(x), mx.array(y)
    d = x - y
    classes = np.array([0, 4, 2, 2])
    log_p = np.log(softmax(x))
    q = softmax(y)
    L = nn.losses
    close(L.cross_entropy(mx_x, mx.array(classes)), -log_p[range(4), classes])
    close(L.cross_entropy(mx_x, mx.array(q)), -(q * log_p).sum(-1))
    close(L.cross_entropy(mx_x, mx.array(classes), label_smoothing=0.2),
          -0.8 * log_p[range(4), classes] - 0.2 * log_p.mean(-1))
    close(L.cross_entropy(mx_x.T, mx.array(classes), axis=0, reduction="mean"), -log_p[range(4), classes].mean())
    weights = np.array([1, 2, 3, 4], np.float32)
    close(L.cross_entropy(mx_x, mx.array(classes), mx.array(weights), reduction="sum"),
          -(weights * log_p[range(4), classes]).sum())
    half = L.cross_entropy(mx.array([[20.0, 17.0]]).astype(mx.bfloat16), mx.array([0]))
    assert abs(half.astype(mx.float32).item() - math.log1p(math.exp(-3))) < 2e-4        # not lost beside 20
    close(L.nll_loss(mx.array(log_p), mx.array(classes)), -log_p[range(4), classes])
    t = (y > 0).astype(np.float32)
    bce = -(t * np.log(sigmoid(x)) + (1 - t) * np.log(1 - sigmoid(x)))
    close(L.binary_cross_entropy(mx_x, mx.array(t), reduction="none"), bce)
    close(L.binary_cross_entropy(mx.array(sigmoid(x)), mx.array(t), with_logits=False), bce.mean())
    close(L.binary_cross_entropy(mx.array([0.0, 1.0]), mx.array([1.0, 1.0]), with_logits=False, reduction="none"),
          [100, 0])
    close(L.l1_loss(mx_x, mx_y), abs(d).mean())
    close(L.mse_loss(mx_x, mx_y), (d**2).mean())
    close(L.huber_loss(mx_x, mx_y, delta=0.7), np.where(abs(d) <= 0.7, d**2 / 2, 0.7 * (abs(d) - 0.35)))
    close(L.smooth_l1_loss(mx_x, mx_y, beta=0.7, reduction="none"),
          np.where(abs(d) < 0.7, d**2 / 1.4, abs(d) - 0.35))
    close(L.log_cosh_loss(mx_x, mx_y), np.log(np.cosh(d)))
    close(L.hinge_loss(mx_x, mx.array(np.sign(y))), np.maximum(0, 1 - x * np.sign(y)))
    close(L.kl_div_loss(mx.array(log_p), mx.array(np.log(q))), (q * (np.log(q) - log_p)).sum(-1))
    v = np.exp(y)
    close(L.gaussian_nll_loss(mx_x, mx_y, mx.array(v), full=True, reduction="none"),
          0.5 * (np.log(v) + d**2 / v + math.log(2 * math.pi)))
    norm = np.linalg.norm
    close(L.cosine_similarity_loss(mx_x, mx_y), (x * y).sum(1) / (norm(x, axis=1) * norm(y, axis=1)))
    z = f32(4, 5, seed=2)
    distances = [np.sqrt(((x - other)**2).sum(-1) + 1e-6) for other in (y, z)]
    close(L.triplet_loss(mx_x, mx_y, mx.array(z)), np.maximum(distances[0] - distances[1] + 1, 0))
    ranks = np.array([1, -1, 1, -1])
    close(L.margin_ranking_loss(mx_x[:, 0], mx_y[:, 0], mx.array(ranks), margin=0.3),
          np.maximum(0, 0.3 - ranks * d[:, 0]))


@pytest.mark.parametrize("offset", [3e5, 1e6, -7e9])
@pytest.mark.parametrize("loss", ["index", "smooth", "axis", "probabilities", "fast", "log_softmax", "LogSoftmax"])
def test_cross_entropy_does_not_see_an_offset(loss, offset):
    L = nn.losses
    of = {"index": lambda x: L.cross_entropy(x, mx.array([1, 0])),
          "smooth": lambda x: L.cross_entropy(x, mx.array([1, 0]), label_smoothing=0.25),
          "axis": lambda x: L.cross_entropy(x.T, mx.array([1, 0]), axis=0),
          "probabilities": lambda x: L.cross_entropy(x, mx.array([[0, 0.5, 0.5], [1, 0, 0]])),
          "fast": lambda x: mx.fast.cross_entropy(x, mx.array([1, 0])),
          "log_softmax": lambda x: nn.log_softmax(x, axis=-1), "LogSoftmax": nn.LogSoftmax()}[loss]
    x = np.array([[0, -1024, 0], [1024, 1024, 0]], np.float32)          # a float32 beside 7e9 is a multiple of 512
    value, gradient = mx.value_and_grad(lambda x: of(x).sum())(mx.array(x))
    shifted, shifted_gradient = mx.value_and_grad(lambda x: of(x).sum())(mx.array(x + np.float32(offset)))
    close(of(mx.array(x + np.float32(offset))), np.array(of(mx.array(x))))
    close(shifted, np.array(value))
    close(shifted_gradient, np.array(gradient))


def test_cross_entropy_of_infinite_logits():
    inf = math.inf
    x = mx.array([[-inf, 1], [-inf, 1], [inf, 1], [inf, 1]])
    np.testing.assert_array_equal(mx.fast.cross_entropy(x, mx.array([1, 0, 1, 0])), [0, inf, inf, math.nan])


@pytest.mark.parametrize("dtype, tol", [(mx.float32, 1e-6), (mx.float16, 2e-3), (mx.bfloat16, 2e-2)])
def test_masked_losses_divide_by_the_sum_of_the_mask(dtype, tol):
    L, logits, targets = nn.losses, mx.array(f32(3, 5, 7)).astype(dtype), np.arange(15).reshape(3, 5) % 7
    mask = np.arange(15).reshape(3, 5) % 4 != 0
    each = np.array(L.cross_entropy(logits.astype(mx.float32), mx.array(targets)))
    found = L.masked_cross_entropy(logits, mx.array(np.where(mask, targets, -100)), mx.array(mask))
    close(found, each[mask].mean(), tol)
    assert found.dtype == mx.float32
    weights = np.linspace(0, 2, 15, dtype=np.float32).reshape(3, 5)
    close(L.masked_cross_entropy(logits, mx.array(targets), mx.array(weights)), np.average(each, weights=weights), tol)
    close(L.masked_cross_entropy(logits, mx.array(targets), mx.array(mask), label_smoothing=0.2),
          np.array(L.cross_entropy(logits.astype(mx.float32), mx.array(targets), label_smoothing=0.2))[mask].mean(),
          tol)
    gradient = mx.grad(lambda x: L.masked_cross_entropy(x, mx.array(targets), mx.array(mask)))(logits)
    assert (np.array(gradient.astype(mx.float32))[~mask] == 0).all()
    spoiled = mx.where(mx.array(~mask)[..., None], math.nan, logits)
    again = mx.grad(lambda x: L.masked_cross_entropy(x, mx.array(targets), mx.array(mask)))(spoiled)
    np.testing.assert_array_equal(np.array(again.astype(mx.float32)), np.array(gradient.astype(mx.float32)))
    x, y = f32(4, 5), f32(4, 5, seed=1)
    y[0, 3], kept = math.nan, np.ones((4, 5), bool)
    kept[0, 3] = kept[2, 2] = False
    close(L.masked_mean(L.mse_loss(mx.array(x), mx.array(y), reduction="none"), mx.array(kept)),
          ((x - y)[kept]**2).mean())
    assert L.masked_mean(mx.ones((4,)), mx.zeros((4,))).item() == 0
    many = mx.full((3000,), 60000, dtype=mx.float16)                    # their sum is beyond float16
    close(L.masked_mean(many, mx.ones((3000,), dtype=mx.bool_)), 60000)


def test_losses_refuse():
    x = mx.ones((4, 5))
    L = nn.losses
    for wrong in (lambda: L.mse_loss(x, x, reduction="max"), lambda: L.mse_loss(x, mx.ones((5,))),
                  lambda: L.cross_entropy(x, mx.array([0, 1, 2])), lambda: L.cross_entropy(x, mx.ones((4, 4))),
                  lambda: L.cross_entropy(x, mx.zeros((4,), dtype=mx.int32), label_smoothing=1.0),
                  lambda: L.cross_entropy(x, mx.zeros((4,), dtype=mx.int32), mx.ones((3,))),
                  lambda: L.binary_cross_entropy(x, mx.ones((5,))), lambda: L.gaussian_nll_loss(x, x, mx.ones((4,))),
                  lambda: L.masked_mean(x, mx.ones((5,))), lambda: L.masked_cross_entropy(x, mx.array([1] * 4), x),
                  lambda: L.margin_ranking_loss(mx.ones(3), mx.ones(3), mx.ones(2))):
        with pytest.raises(ValueError):
            wrong()


def test_initialisers():
    mx.random.seed(1)
    big = mx.zeros((200, 400))

    def spread(initializer, *args, **kwargs):
        return np.array(initializer(big, *args, **kwargs))

    close(nn.init.constant(2.5)(mx.zeros((2, 3))), np.full((2, 3), 2.5))
    close(nn.init.identity()(mx.zeros((3, 3))), np.eye(3))
    a = spread(nn.init.normal(1.0, 2.0))
    assert abs(a.mean() - 1) < 0.05 and abs(a.std() - 2) < 0.05
    a = spread(nn.init.uniform(-1, 3))
    assert -1 <= a.min() < -0.99 and 2.99 < a.max() <= 3
    assert abs(spread(nn.init.glorot_normal(), gain=2.0).std() / (2 * math.sqrt(2 / 600)) - 1) < 0.02
    assert abs(spread(nn.init.glorot_uniform()).max() / math.sqrt(6 / 600) - 1) < 0.01
    assert abs(spread(nn.init.he_normal()).std() / math.sqrt(1 / 400) - 1) < 0.02
    assert abs(spread(nn.init.he_uniform(), mode="fan_out").max() / math.sqrt(3 / 200) - 1) < 0.01
    kernel = np.array(nn.init.he_normal()(mx.zeros((64, 3, 3, 32))))
    assert abs(kernel.std() / math.sqrt(1 / (9 * 32)) - 1) < 0.03
    a = np.array(nn.init.sparse(0.25)(mx.zeros((20, 10))))
    assert ((a == 0).sum(1) == 3).all()
    for shape in ((3, 5), (5, 3), (4, 4)):
        a = np.array(nn.init.orthogonal(2.0)(mx.zeros(shape)))
        close(a @ a.T if shape[0] <= shape[1] else a.T @ a, 4 * np.eye(min(shape)), 1e-4)
    assert nn.init.normal(dtype=mx.float16)(big).dtype == mx.float16
    for wrong in (lambda: nn.init.identity()(mx.zeros((3, 4))), lambda: nn.init.he_normal()(big, mode="x"),
                  lambda: nn.init.glorot_normal()(mx.zeros(3)), lambda: nn.init.sparse(0.5)(mx.zeros(3)),
                  lambda: nn.init.orthogonal()(mx.zeros(3))):
        with pytest.raises(ValueError):
            wrong()
