"""Every public name of gomlx, used. tests/project/test_types.py has mypy and pyright read this file, as a user's
program under their strictest rules, and runs it: what assert_type says of a value is then checked of the value itself.
A name of some __all__ that does not stand here fails there."""
# pyright: strict
from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

import gomlx
import gomlx.core as mx
import gomlx.nn as nn
import gomlx.optimizers as optim
import gomlx.utils as utils
from gomlx import backends, lora, profiling

if TYPE_CHECKING:
    from typing import assert_type
else:
    from runtime_types import assert_type

Array = mx.array
Pair = tuple[mx.array, mx.array]
a, b = mx.array([[0.5, 0.25], [0.125, 0.75]]), mx.array([[2.0, 1.0], [1.0, 3.0]])
v, i = mx.array([3.0, 1.0, 2.0]), mx.array([[1, 2], [3, 4]])
square = mx.array([[2.0, 1.0], [1.0, 3.0]])


# ---- gomlx.core: functions of one kind ----

class Reduction(Protocol):
    def __call__(self, a: mx.array, /, axis: Any = None, keepdims: bool = False) -> mx.array: ...


class Cumulative(Protocol):
    def __call__(self, a: mx.array, /, axis: int | None = None, *, reverse: bool = False,
                 inclusive: bool = True) -> mx.array: ...


class Shaped(Protocol):
    def __call__(self, shape: Any, dtype: mx.Dtype | None = None) -> mx.array: ...


class OneTransform(Protocol):
    def __call__(self, a: mx.array, n: int | None = None, axis: int = -1,
                 norm: Literal["backward", "ortho", "forward"] | None = "backward") -> mx.array: ...


class ManyTransforms(Protocol):
    def __call__(self, a: mx.array, s: list[int] | None = None, axes: list[int] = ...) -> mx.array: ...


unary: list[Callable[[mx.array], mx.array]] = [
    mx.abs, mx.acos, mx.arccos, mx.arcsin, mx.arcsinh, mx.arctan, mx.arctanh, mx.asin, mx.asinh, mx.atan, mx.atanh,
    mx.ceil, mx.conj, mx.conjugate, mx.cos, mx.cosh, mx.degrees, mx.erf, mx.erfinv, mx.exp, mx.expm1, mx.floor, mx.imag,
    mx.isfinite, mx.isinf, mx.isnan, mx.isneginf, mx.isposinf, mx.log, mx.log10, mx.log1p, mx.log2, mx.logical_not,
    mx.matrix_transpose, mx.negative, mx.positive, mx.radians, mx.real, mx.reciprocal, mx.rsqrt, mx.sigmoid, mx.sign,
    mx.sin, mx.sinc, mx.sinh, mx.sqrt, mx.square, mx.stop_gradient, mx.tan, mx.tanh, mx.trunc, mx.acosh, mx.arccosh,
    mx.round,
    mx.nan_to_num, mx.softmax, mx.sort, mx.argsort, mx.flip, mx.squeeze, mx.transpose, mx.permute_dims, mx.flatten,
    mx.diff, mx.diag, mx.diagonal, mx.trace, mx.tril, mx.triu, mx.contiguous, mx.zeros_like, mx.ones_like,
    mx.empty_like, mx.to_fp8, mx.hadamard_transform, mx.median, mx.matrix_norm, mx.fast.gelu, mx.linalg.norm,
    mx.as_strided]
for function in unary:
    assert_type(function(a), mx.array)
binary: list[Callable[[mx.array, mx.array], mx.array]] = [
    mx.add, mx.arctan2, mx.atan2, mx.divide, mx.equal, mx.floor_divide, mx.greater, mx.greater_equal, mx.kron, mx.less,
    mx.less_equal, mx.logaddexp, mx.logical_and, mx.logical_or, mx.logical_xor, mx.maximum, mx.minimum, mx.multiply,
    mx.not_equal, mx.pow, mx.power, mx.remainder, mx.subtract, mx.inner, mx.matmul, mx.outer, mx.vecdot, mx.tensordot,
    mx.allclose, mx.isclose, mx.array_equal, mx.linalg.solve]
for operation in binary:
    assert_type(operation(a, b), mx.array)
assert_type(mx.bitwise_invert(i), mx.array)
for operation in (mx.bitwise_and, mx.bitwise_or, mx.bitwise_xor, mx.bitwise_left_shift, mx.bitwise_right_shift,
                  mx.left_shift, mx.right_shift):
    assert_type(operation(i, i), mx.array)
reductions: list[Reduction] = [mx.all, mx.any, mx.argmax, mx.argmin, mx.count_nonzero, mx.logsumexp, mx.max, mx.mean,
                               mx.min, mx.prod, mx.sum, mx.std, mx.var]
for reduction in reductions:
    assert_type(reduction(a, axis=1, keepdims=True), mx.array)
for cumulative in (mx.cummax, mx.cummin, mx.cumprod, mx.cumsum, mx.cumulative_prod, mx.cumulative_sum, mx.logcumsumexp):
    kept: Cumulative = cumulative
    assert_type(kept(a, axis=0, reverse=True), mx.array)
shaped: list[Shaped] = [mx.zeros, mx.ones, mx.empty]
for make in shaped:
    assert_type(make((2, 3), mx.float16), mx.array)
for window in (mx.bartlett, mx.blackman, mx.hamming, mx.hanning):
    assert_type(window(4), mx.array)
one: list[OneTransform] = [mx.fft.fft, mx.fft.ifft, mx.fft.rfft, mx.fft.irfft]
for transform in one:
    assert_type(transform(a, n=2, axis=-1, norm="ortho"), mx.array)
many: list[ManyTransforms] = [mx.fft.fft2, mx.fft.ifft2, mx.fft.rfft2, mx.fft.irfft2, mx.fft.fftn, mx.fft.ifftn,
                              mx.fft.rfftn, mx.fft.irfftn]
for transforms in many:
    assert_type(transforms(a, s=[2, 2], axes=[0, 1]), mx.array)

# ---- gomlx.core: one by one ----
assert_type(mx.divmod(a, 2), list[mx.array])
assert_type(mx.minmax(a, axis=(0, 1)), Pair)
assert_type(mx.addmm(a, a, b, alpha=2.0), mx.array)
assert_type(mx.arange(3), mx.array)
assert_type(mx.arange(0, 3, 0.5, dtype=mx.float32), mx.array)
assert_type(mx.linspace(0, 1, num=5), mx.array)
assert_type(mx.argpartition(a, 1), mx.array)
assert_type(mx.partition(a, 1, axis=None), mx.array)
assert_type(mx.asarray(np.ones(3), copy=True), mx.array)
assert_type(mx.from_dlpack(np.ones(3, dtype=np.float32), copy=False), mx.array)
assert_type(mx.astype(a, mx.float16), mx.array)
assert_type(mx.atleast_1d(a), mx.array)
assert_type(mx.atleast_2d(a, b), list[mx.array])
assert_type(mx.atleast_3d(a), mx.array)
assert_type(mx.block_masked_mm(mx.ones((32, 32)), mx.ones((32, 32)), 32), mx.array)
assert_type(mx.broadcast_arrays(a, v[:2]), list[mx.array])
assert_type(mx.broadcast_shapes((1, 3), (2, 1)), tuple[int, ...])
assert_type(mx.broadcast_to(v, (2, 3)), mx.array)
assert_type(mx.clip(a, 0, None), mx.array)
assert_type(mx.concatenate([a, b], axis=1), mx.array)
assert_type(mx.concat((a, b)), mx.array)
assert_type(mx.stack([a, b]), mx.array)
assert_type(mx.convolve(v, v, mode="same"), mx.array)
for axes, convolve, transposed in ((1, mx.conv1d, mx.conv_transpose1d), (2, mx.conv2d, mx.conv_transpose2d),
                                   (3, mx.conv3d, mx.conv_transpose3d)):
    grid, weight = mx.ones([1, *[4] * axes, 2]), mx.ones([3, *[2] * axes, 2])
    assert_type(convolve(grid, weight, stride=1, padding=1), mx.array)
    assert_type(transposed(grid, weight, output_padding=0), mx.array)
assert_type(mx.conv_general(mx.ones((1, 4, 2)), mx.ones((3, 2, 2)), padding=([1], [0]), flip=True), mx.array)
assert_type(mx.depends(a, b), mx.array)
assert_type(mx.depends([a, b], [v]), list[mx.array])
assert_type(mx.einsum("ij,jk->ik", a, b), mx.array)
assert_type(mx.einsum_path("ij,jk->ik", a, b)[1], str)
assert_type(mx.expand_dims(a, (0, 2)), mx.array)
assert_type(mx.eye(3, k=1), mx.array)
assert_type(mx.tri(3), mx.array)
assert_type(mx.full((2, 2), 1.5), mx.array)
assert_type(mx.full_like(a, 2), mx.array)
assert_type(mx.identity(2), mx.array)
assert_type(mx.gather_mm(mx.ones((2, 2, 2)), mx.ones((2, 2, 2)), rhs_indices=mx.array([0, 1])), mx.array)
assert_type(mx.segmented_mm(a, b, mx.array([[0, 1], [1, 2]], dtype=mx.uint32)), mx.array)
assert_type(mx.meshgrid(v, v, indexing="ij"), tuple[mx.array, ...])
assert_type(mx.moveaxis(a, 0, 1), mx.array)
assert_type(mx.swapaxes(a, 0, 1), mx.array)
assert_type(mx.pad(a, [(1, 1), (0, 2)], mode="edge"), mx.array)
assert_type(mx.put_along_axis(a, i - 1 & 1, a, axis=1), mx.array)
assert_type(mx.take_along_axis(a, i & 1, axis=1), mx.array)
assert_type(mx.take(a, 0, axis=1), mx.array)
assert_type(mx.repeat(a, 2, axis=0), mx.array)
assert_type(mx.tile(a, (2, 1)), mx.array)
assert_type(mx.reshape(a, (4,)), mx.array)
assert_type(mx.unflatten(v, 0, (3, 1)), mx.array)
assert_type(mx.roll(a, 1), mx.array)
assert_type(mx.searchsorted(mx.sort(v), v, side="right"), mx.array)
assert_type(mx.slice(a, mx.array([0]), [0], [1, 2]), mx.array)
assert_type(mx.slice_update(a, mx.ones((1, 2)), mx.array([1]), [0]), mx.array)
assert_type(mx.split(a, 2), list[mx.array])
assert_type(mx.unstack(a, axis=1), tuple[mx.array, ...])
assert_type(mx.topk(v, 2), mx.array)
assert_type(mx.view(a, mx.int32), mx.array)
assert_type(mx.where(a > 0.3, a, 0), mx.array)
assert mx.unique(v, 2)[0].dtype == mx.float32
wide = mx.random.normal((64, 64))
packed = mx.quantize(wide, group_size=64, bits=4)
assert_type(packed, list[mx.array])
weights, scales, biases = packed
assert_type(mx.dequantize(weights, scales, biases, group_size=64, bits=4), mx.array)
assert_type(mx.quantized_matmul(wide, weights, scales, biases, group_size=64, bits=4), mx.array)
assert_type(mx.gather_qmm(wide[None], weights[None], scales[None], biases[None], rhs_indices=mx.array([0])), mx.array)
assert_type(mx.qqmm(wide, wide, mode="nvfp4"), mx.array)
few, few_scales = mx.quantize(wide[None], mode="nvfp4")
assert_type(mx.gather_qqmm(wide[None], few, few_scales, rhs_indices=mx.array([0])), mx.array)
assert_type(mx.from_fp8(mx.to_fp8(a)), mx.array)

# ---- constants, dtypes, printing ----
assert_type(mx.e + mx.pi + mx.euler_gamma, float)
assert mx.inf > 0 and mx.nan != mx.nan and a[mx.newaxis].ndim == 3 and mx.__version__
for dtype in (mx.bfloat16, mx.bool_, mx.complex64, mx.float16, mx.float32, mx.float64, mx.int16, mx.int32, mx.int64,
              mx.int8, mx.uint16, mx.uint32, mx.uint64, mx.uint8):
    assert_type(dtype, mx.Dtype)
    assert_type(dtype.size, int)
for category in (mx.complexfloating, mx.floating, mx.generic, mx.inexact, mx.integer, mx.number, mx.signedinteger,
                 mx.unsignedinteger):
    same: mx.DtypeCategory = category
    assert_type(mx.issubdtype(mx.float32, same), bool)
assert_type(mx.isdtype(mx.int8, ("integral", mx.bool_)), bool)
assert_type(mx.can_cast(mx.int8, a), bool)
assert_type(mx.result_type(a, mx.int8), mx.Dtype)
assert_type(mx.finfo(mx.float16).max, float)
assert_type(mx.iinfo(mx.int8).max, int)
assert_type(mx.array(mx.ArrayLike([1, 2])), mx.array)
with mx.printoptions(precision=3):
    assert_type(mx.get_printoptions(), mx.PrintOptions)
mx.set_printoptions()
assert isinstance(mx.printoptions(2), mx._PrintOptionsContext)

# ---- devices, streams, memory, evaluation ----
assert_type(mx.default_device(), mx.Device)
assert_type(mx.cpu, mx.DeviceType)
assert_type(mx.device_count(mx.gpu), int)
assert_type(mx.device_info(), dict[str, Any])
assert_type(mx.is_available(mx.cpu), bool)
mx.set_default_device(mx.cpu)
stream: mx.Stream = mx.new_stream(mx.cpu)
assert_type(mx.default_stream(mx.Device(mx.cpu)), mx.Stream)
mx.set_default_stream(mx.default_stream(mx.cpu))
assert_type(mx.new_thread_local_stream(mx.cpu), mx.ThreadLocalStream)
assert_type(mx.new_thread_unsafe_stream(mx.cpu), mx.Stream)
with mx.stream(stream):
    assert_type(mx.add(a, b, stream=stream), mx.array)
assert_type(mx.stream(mx.cpu), mx.StreamContext)
mx.synchronize(stream)
mx.clear_streams()
mx.eval(a, [b, {"v": v}])
mx.async_eval(a)
assert_type(mx.materialize(a), bool)
assert_type(mx.get_array_buffer_size(a), int)
for count in (mx.get_active_memory, mx.get_cache_memory, mx.get_memory_limit, mx.get_peak_memory):
    assert_type(count(), int)
assert_type(mx.set_memory_limit(mx.get_memory_limit()), int)
assert_type(mx.set_cache_limit(mx.set_cache_limit(1 << 20)), int)
assert_type(mx.set_wired_limit(0), int)
mx.clear_cache()
mx.reset_peak_memory()

# ---- arrays ----
assert_type(mx.array([[1, 2], [3, 4]], mx.float32), mx.array)
assert_type(mx.array(np.ones((2, 2))), mx.array)
assert_type(a + 1, mx.array)
assert_type(1 - a, mx.array)
assert_type(a @ b, mx.array)
assert_type(a == b, mx.array)
assert_type(-a ** 2 / 2 // 1 % 2, mx.array)
assert_type(a * np.float32(2), mx.array)
assert_type(a[0, :, None], mx.array)
assert_type(a[mx.array([0])], mx.array)
copy = mx.array(a)
copy[0] = 1
copy[:, 1] += 2.5
assert_type(copy.at[0].add(1), mx.array)
updates: mx.ArrayAt = copy.at
assert isinstance(iter(a), mx.ArrayIterator)
for row in a:
    assert_type(row, mx.array)
assert_type(a.shape, tuple[int, ...])
assert_type(a.ndim + a.size + a.nbytes + a.itemsize + len(a), int)
assert_type(a.dtype, mx.Dtype)
assert_type(a.T, mx.array)
assert_type(a.reshape(4, 1), mx.array)
assert_type(a.reshape((4,)), mx.array)
assert_type(a.transpose(1, 0), mx.array)
assert_type(a.sum(axis=(0, 1)).astype(mx.float16), mx.array)
assert_type(a.split(2), list[mx.array])
assert_type(a.floats(), list[float])
assert_type(i.ints(), list[int])
assert_type(bool(a[0, 0] > 0), bool)
assert_type(float(a[0, 0]), float)
number: float = a.sum().item()
nested: list[list[float]] = a.tolist()
assert np.asarray(a).shape == a.numpy().shape == (2, 2) and memoryview(a).shape == (2, 2)


# ---- transforms ----
def loss(x: mx.array, scale: float = 1.0) -> mx.array:
    return (x * x).sum() * scale


def with_aux(x: mx.array, y: mx.array) -> Pair:
    return (x * y).sum(), y


def product(x: mx.array, y: mx.array) -> mx.array:
    return (x * y).sum()


def twice(x: mx.array) -> mx.array:
    return x * 2


assert_type(mx.grad(loss)(a, scale=2.0), mx.array)
assert_type(mx.grad(mx.grad(lambda x: x ** 3))(mx.array(2.0)).ndim, int)
assert_type(mx.value_and_grad(loss)(a), Pair)
assert_type(mx.value_and_grad(with_aux)(a, b), tuple[Pair, mx.array])
assert len(mx.grad(product, argnums=(0, 1))(a, b)) == 2
assert_type(mx.compile(loss)(a, scale=2.0), mx.array)
assert_type(mx.compile(with_aux, shapeless=True)(a, b), Pair)
assert_type(mx.vmap(loss)(a), mx.array)
assert_type(mx.vmap(with_aux, in_axes=(0, None))(a, v[:2]), Pair)
assert_type(mx.checkpoint(loss)(a, scale=2.0), mx.array)
assert_type(mx.vjp(twice, [a], [b]), tuple[list[mx.array], list[mx.array]])
assert_type(mx.jvp(twice, [a], [b]), tuple[list[mx.array], list[mx.array]])
mx.disable_compile()
mx.enable_compile()


@mx.custom_function
def doubled(x: mx.array) -> mx.array:
    return x * 2


@doubled.vjp
def doubled_vjp(primals: mx.array, cotangents: mx.array, outputs: mx.array) -> mx.array:
    return cotangents * 2


assert_type(doubled(a), mx.array)

# ---- files ----
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    mx.save(folder / "a.npy", a)
    mx.savez(folder / "a.npz", a, b=b)
    mx.savez_compressed(folder / "b.npz", a=a)
    mx.save_safetensors(folder / "a.safetensors", {"a": a}, {"key": "text"})
    mx.save_gguf(folder / "a.gguf", {"a": a})
    assert_type(mx.load(folder / "a.npy", format="npy"), mx.array)
    assert_type(mx.load(folder / "a.npz", format="npz"), dict[str, mx.array])
    assert_type(mx.load(folder / "a.safetensors", return_metadata=True), tuple[dict[str, mx.array], dict[str, Any]])
    loaded: mx.array = mx.load(str(folder / "a.npy"))
    mx.export_function(folder / "f", loss, a)
    assert_type(mx.import_function(folder / "f")(a), tuple[mx.array, ...])
    with mx.exporter(folder / "g", loss) as export:
        assert_type(export, mx.FunctionExporter)
        export(a)
    mx.export_to_dot(folder / "g.dot", loss(a))

# ---- namespaces ----
assert_type(mx.fast.rms_norm(a, None, 1e-5), mx.array)
assert_type(mx.fast.layer_norm(a, v[:2], None, 1e-5), mx.array)
heads = mx.random.normal((1, 2, 4, 8))
assert_type(mx.fast.rope(heads, 8, traditional=False, base=10000.0, scale=1.0, offset=0), mx.array)
assert_type(mx.fast.scaled_dot_product_attention(heads, heads, heads, scale=0.5, mask="causal"), mx.array)
assert_type(mx.fast.cross_entropy(a, mx.array([0, 1])), mx.array)
blocks = mx.fast.quantize_blocks(mx.ones((1, 32)), "Q8_0")
assert_type(mx.fast.dequantize_blocks(blocks, "Q8_0"), mx.array)
linears: list[Callable[[mx.array], mx.array]] = [mx.linalg.inv, mx.linalg.pinv, mx.linalg.det, mx.linalg.cholesky,
                                                 mx.linalg.cholesky_inv, mx.linalg.tri_inv, mx.linalg.eigvals,
                                                 mx.linalg.eigvalsh]
for linear in linears:
    assert_type(linear(square), mx.array)
assert_type(mx.linalg.lu(square), tuple[mx.array, mx.array, mx.array])
for pair in (mx.linalg.lu_factor, mx.linalg.qr, mx.linalg.slogdet, mx.linalg.eig, mx.linalg.eigh):
    assert_type(pair(square), Pair)
assert_type(mx.linalg.svd(square), tuple[mx.array, mx.array, mx.array])
assert_type(mx.linalg.svd(square, compute_uv=False), mx.array)
assert_type(mx.linalg.solve_triangular(square, b, upper=True), mx.array)
assert_type(mx.linalg.cross(v, v), mx.array)
assert_type(mx.fft.fftfreq(4, d=0.5) + mx.fft.rfftfreq(6)[0], mx.array)
assert_type(mx.fft.fftshift(mx.fft.ifftshift(a), axes=[0]), mx.array)
signal = mx.sin(mx.arange(64) * 0.3)
assert_type(mx.fft.istft(mx.fft.stft(signal, n_fft=16), n_fft=16), mx.array)
mx.random.seed(1)
key = mx.random.key(2)
assert_type(mx.random.split(key, 3), mx.array)
assert_type(mx.random.uniform(0, 1, (2,), key=key), mx.array)
assert_type(mx.random.normal((2, 2), loc=1.0), mx.array)
assert_type(mx.random.truncated_normal(-1, 1, (3,)), mx.array)
assert_type(mx.random.gumbel((2,)), mx.array)
assert_type(mx.random.laplace((2,), scale=0.5), mx.array)
assert_type(mx.random.multivariate_normal(v[:2], square), mx.array)
assert_type(mx.random.randint(0, 5, (3,), dtype=mx.int32), mx.array)
assert_type(mx.random.bernoulli(0.2, (3,)), mx.array)
assert_type(mx.random.permutation(4), mx.array)
assert_type(mx.random.categorical(a, num_samples=2), mx.array)
state: list[mx.array] = mx.random.state
group = mx.distributed.init()
assert_type(group, mx.distributed.Group)
assert_type(mx.distributed.is_available(), bool)
assert_type(group.rank() + group.size(), int)
for collective in (mx.distributed.all_sum, mx.distributed.all_max, mx.distributed.all_min, mx.distributed.all_gather,
                   mx.distributed.sum_scatter):
    assert_type(collective(a, group=group), mx.array)
talk: list[Callable[..., mx.array]] = [mx.distributed.send, mx.distributed.recv, mx.distributed.recv_like,
                                       mx.fast.gated_delta_update]
kernels: list[Callable[..., Any]] = [mx.fast.metal_kernel, mx.fast.cuda_kernel, mx.fast.precompiled_cuda_kernel]
assert_type(mx.metal.is_available() or mx.cuda.is_available(), bool)
mx.metal.start_capture("x")
mx.metal.stop_capture()
moved: list[Callable[[], Any]] = [
    mx.metal.clear_cache, mx.metal.device_info, mx.metal.get_active_memory, mx.metal.get_cache_memory,
    mx.metal.get_peak_memory, mx.metal.reset_peak_memory]
limits: list[Callable[[int], int]] = [mx.metal.set_cache_limit, mx.metal.set_memory_limit, mx.metal.set_wired_limit]


# ---- gomlx.nn, gomlx.optimizers, gomlx.utils ----
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.second = nn.Linear(8, 1, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.second(nn.relu(self.first(x)))


def error(model: Net, x: mx.array, y: mx.array) -> mx.array:
    return nn.losses.mse_loss(model(x), y)


net = Net()
optimizer = optim.Adam(learning_rate=optim.cosine_decay(0.1, 10))
found, gradients = nn.value_and_grad(net, error)(net, a, mx.ones((2, 1)))
assert_type(found, mx.array)
assert_type(gradients, dict[str, Any])
optimizer.update(net, gradients)
assert_type(optim.clip_grad_norm(gradients, 1.0)[1], mx.array)
assert_type(optimizer.state, dict[str, Any])
assert_type(net.parameters(), dict[str, Any])
assert_type(net.first(a), mx.array)
assert_type(nn.average_gradients(gradients), Any)
assert_type(net.freeze().train(False), nn.Module)
activations: list[Callable[[mx.array], mx.array]] = [
    nn.celu, nn.elu, nn.gelu, nn.gelu_approx, nn.gelu_fast_approx, nn.glu, nn.hard_shrink, nn.hard_tanh, nn.hardswish,
    nn.leaky_relu, nn.log_sigmoid, nn.log_softmax, nn.mish, nn.relu, nn.relu2, nn.relu6, nn.selu, nn.sigmoid, nn.silu,
    nn.softmax, nn.softmin, nn.softplus, nn.softshrink, nn.softsign, nn.step, nn.tanh,
    nn.CELU(), nn.ELU(), nn.GELU(), nn.GLU(), nn.HardShrink(), nn.HardTanh(), nn.Hardswish(), nn.LeakyReLU(),
    nn.LogSigmoid(), nn.LogSoftmax(), nn.Mish(), nn.PReLU(), nn.ReLU(), nn.ReLU2(), nn.ReLU6(), nn.SELU(), nn.SiLU(),
    nn.Sigmoid(), nn.Softmax(), nn.Softmin(), nn.Softplus(), nn.Softshrink(), nn.Softsign(), nn.Step(), nn.Tanh(),
    nn.Identity(), nn.Sequential(nn.Linear(2, 3)),
    nn.Dropout(0.5), nn.LayerNorm(2), nn.RMSNorm(2), nn.GroupNorm(1, 2), nn.BatchNorm(2), nn.Linear(2, 3)]
for activation in activations:
    assert_type(activation(a), mx.array)
assert_type(nn.prelu(a, mx.array(0.25)), mx.array)
one_axis, two_axes, three_axes = mx.ones((1, 4, 2)), mx.ones((1, 4, 4, 2)), mx.ones((1, 4, 4, 4, 2))
for grid, layers in ((one_axis, (nn.Conv1d(2, 3, 2), nn.ConvTranspose1d(2, 3, 2), nn.AvgPool1d(2), nn.MaxPool1d(2),
                                 nn.InstanceNorm(2), nn.RNN(2, 3), nn.GRU(2, 3), nn.Upsample(2), nn.RoPE(2))),
                     (two_axes, (nn.Conv2d(2, 3, 2), nn.ConvTranspose2d(2, 3, 2), nn.AvgPool2d(2), nn.MaxPool2d(2),
                                 nn.Dropout2d(0.5))),
                     (three_axes, (nn.Conv3d(2, 3, 2), nn.ConvTranspose3d(2, 3, 2), nn.AvgPool3d(2), nn.MaxPool3d(2),
                                   nn.Dropout3d(0.5)))):
    for layer in layers:
        called: Callable[[mx.array], mx.array] = layer
        assert_type(called(grid), mx.array)
assert_type(nn.LSTM(2, 3)(one_axis), Pair)
assert_type(nn.Bilinear(2, 2, 3)(a, b), mx.array)
assert_type(nn.Embedding(4, 2)(i[0]), mx.array)
assert_type(nn.ALiBi()(heads), mx.array)
assert_type(nn.SinusoidalPositionalEncoding(4)(v), mx.array)
assert_type(nn.MultiHeadAttention(2, 1)(one_axis, one_axis, one_axis), mx.array)
assert_type(nn.TransformerEncoderLayer(2, 1)(one_axis, None), mx.array)
assert_type(nn.TransformerEncoder(1, 2, 1)(one_axis, None), mx.array)
assert_type(nn.TransformerDecoderLayer(2, 1)(one_axis, one_axis, None, None), mx.array)
assert_type(nn.TransformerDecoder(1, 2, 1)(one_axis, one_axis, None, None), mx.array)
assert_type(nn.Transformer(2, 1, 1, 1)(one_axis, one_axis, None, None, None), mx.array)
quantised = nn.Sequential(nn.Linear(64, 64))
nn.quantize(quantised, group_size=64, bits=4)
assert_type(nn.QuantizedLinear(64, 64)(wide), mx.array)
assert_type(nn.QuantizedEmbedding(4, 64)(i[0]), mx.array)
assert_type(nn.QQLinear(64, 64)(wide), mx.array)
for sharded in (nn.AllToShardedLinear(64, 64), nn.ShardedToAllLinear(64, 64), nn.QuantizedAllToShardedLinear(64, 64),
                nn.QuantizedShardedToAllLinear(64, 64)):
    assert_type(sharded(wide), mx.array)
assert_type(nn.fully_shard(nn.Linear(2, 2)), nn.Module)
shard_type: type[nn.Module] = nn.FullyShardedModule
initial: list[Callable[[mx.array], mx.array]] = [
    nn.init.constant(1.0), nn.init.glorot_normal(), nn.init.glorot_uniform(), nn.init.he_normal(), nn.init.he_uniform(),
    nn.init.identity(), nn.init.normal(), nn.init.orthogonal(), nn.init.sparse(0.5), nn.init.uniform()]
for initialiser in initial:
    assert_type(initialiser(a), mx.array)


def everything(name: str, x: mx.array) -> bool:
    return True


def with_path(path: str, x: mx.array) -> mx.array:
    return x


def sizes(total: int, x: mx.array) -> int:
    return total + x.size


probabilities = mx.softmax(a)
for two_arrays in (nn.losses.mse_loss, nn.losses.l1_loss, nn.losses.smooth_l1_loss, nn.losses.huber_loss,
                   nn.losses.log_cosh_loss, nn.losses.hinge_loss, nn.losses.kl_div_loss, nn.losses.binary_cross_entropy,
                   nn.losses.cosine_similarity_loss):
    measure: Callable[[mx.array, mx.array], mx.array] = two_arrays
    assert_type(measure(probabilities, probabilities), mx.array)
assert_type(nn.losses.cross_entropy(a, mx.array([0, 1]), reduction="mean"), mx.array)
assert_type(nn.losses.masked_cross_entropy(a, mx.array([0, 1]), mx.array([True, False])), mx.array)
assert_type(nn.losses.nll_loss(a, mx.array([0, 1])), mx.array)
assert_type(nn.losses.gaussian_nll_loss(a, b, probabilities), mx.array)
assert_type(nn.losses.triplet_loss(a, b, a), mx.array)
assert_type(nn.losses.margin_ranking_loss(a, b, mx.sign(a)), mx.array)
optimizers: list[optim.Optimizer] = [
    optim.SGD(0.1), optim.AdaDelta(0.1), optim.Adafactor(), optim.Adagrad(0.1), optim.Adamax(0.1), optim.AdamW(0.1),
    optim.Lion(0.1), optim.Muon(0.1), optim.RMSprop(0.1), optim.MultiOptimizer([optim.SGD(0.1), optim.SGD(0.2)],
                                                                               [everything])]
for schedule in (optim.exponential_decay(0.1, 0.9), optim.step_decay(0.1, 0.9, 5), optim.linear_schedule(0.0, 0.1, 5),
                 optim.join_schedules([optim.linear_schedule(0.0, 0.1, 5), optim.cosine_decay(0.1, 5)], [5])):
    scheduled = optim.SGD(schedule)
assert_type(utils.tree_map(twice, {"a": a}), Any)
utils.tree_map_with_path(with_path, {"a": a})
utils.tree_unflatten(utils.tree_flatten({"a": a}))
utils.tree_reduce(sizes, {"a": a}, 0)
utils.tree_merge({"a": a}, {"b": b})

# ---- gomlx ----
assert gomlx.__version__
errors: list[type[Exception]] = [gomlx.AxisError, gomlx.Cancelled, gomlx.ContextLengthExceeded, gomlx.Error,
                                 gomlx.KvStateNotAvailable, gomlx.ModelNotSupported, gomlx.QueueFull,
                                 gomlx.UnsupportedSchema]
with gomlx.load(context_length=512, prompt_cache=gomlx.PromptCache(entries=2)) as model:
    assert_type(model, gomlx.Model)
    assert_type(model.tokenizer, gomlx.Tokenizer)
    assert_type(model.info, dict[str, Any])
    ids = model.tokenizer.encode("Once upon a time")
    assert_type(ids, list[int])
    assert_type(model.tokenizer.decode(ids), str)
    assert_type(model.tokenizer("a"), gomlx.Encoding)
    assert_type(model.tokenizer(["a", "b"]), list[gomlx.Encoding])
    with model.scheduler(max_streams=2, kv_bytes=1 << 24, queue=4, gap_ms=50.0) as scheduler:
        assert_type(scheduler, gomlx.Scheduler)
        assert_type(scheduler.generate("Once", max_tokens=2, priority=1).read(), gomlx.Result)
        assert_type(scheduler.stats, dict[str, int])
    written = model.generate("Once", max_tokens=4, temperature=0.5, top_k=5, seed=1)
    assert_type(written, gomlx.TokenStream)
    for token in written:
        assert_type(token, gomlx.Token)
        assert_type(token.text, str)
        assert_type(token.finish_reason, str | None)
    assert_type(written.result, gomlx.Result)
    assert_type(written.result.tool_calls, list[gomlx.ToolCall])
    several = model.generate("Once", max_tokens=4, n=2)
    assert_type(several, gomlx.BatchStream)
    for index, token in several:
        assert_type(index, int)
        assert_type(token, gomlx.Token)
    assert_type(model.generate_batch(["a", ids, [{"role": "user", "content": "Hi"}]], max_tokens=2).read(),
                list[gomlx.Result])
    assert_type(model.chat([{"role": "user", "content": "Hi"}], max_tokens=2, n=1).read(), gomlx.Result)
    assert_type(model.logits(ids), mx.array)
    assert_type(model.logits([ids, ids]), list[mx.array])
    assert_type(model.score("Once upon a time").total, float)
    assert_type(model.classify(["Once"], labels=["a", "b"])[0].label, str | int | None)
    assert_type(model.embed("a"), mx.array)
    assert_type(model.inspect("a"), dict[str, mx.array])
    assert_type(model.validate("Once upon"), gomlx.Validation)
    session = model.session()
    assert_type(session, gomlx.Session)
    assert_type(session.append("Once upon"), int)
    assert_type(session.truncate(2), int)
    assert_type(session.step(5), mx.array)
    assert_type(model.restore_session(session.save()), gomlx.Session)
    bundle = model.bundle(session)
    assert_type(bundle, gomlx.StateBundle)
    assert_type(gomlx.Constraint.regex("a+"), gomlx.Constraint)
    recorder = gomlx.Recorder()
    probe = gomlx.Probe(recorder, ["entropy"])
    steer = gomlx.Steer("layers.1.residual", mx.zeros(model.info["hidden_size"]))
    patch = gomlx.Patch("layers.0.mlp", mx.zeros(model.info["hidden_size"]), positions=0)
    model.generate("Once", max_tokens=2, steer=[steer, patch], probe=probe).read()
    assert_type(recorder.events, list[gomlx.ProbeEvent])
    profiled = model.generate("Once", max_tokens=2, profile=True).read().profile
    assert_type(profiled, dict[str, Any] | None)
    assert isinstance(profiling.summary(profiled), list | str)
    path = model.info["path"]
    term = gomlx.Term(mx.zeros((2, 256)), mx.zeros((256, 2)), 1.5)
    adapter = gomlx.Adapter({"model.layers.0.self_attn.q_proj": term})
    adapter.check(model)
    assert_type(adapter.terms, dict[str, gomlx.Term])
    assert_type(adapter.parameters(), dict[str, mx.array])
    assert_type(adapter.engine_terms(), list[tuple[str, mx.array, mx.array, float] |
                                             tuple[str, mx.array, mx.array, float, mx.array, mx.array]])
    with tempfile.TemporaryDirectory() as adapters:
        assert_type(gomlx.save_adapter(adapter, Path(adapters) / "x", "mlx-lm", model=model), str)
        assert_type(gomlx.read_adapter(Path(adapters) / "x", model), gomlx.Adapter)
        made = gomlx.fuse(path, adapter, Path(adapters) / "x.gguf", "q8_0", text=None)
        assert_type(made, dict[str, Any])
    assert_type(gomlx.sample(model.logits(ids)[-1], ids, temperature=0.8, seed=3), list[int])
    pairs = [{"prompt": "a", "completion": "b"}, {"prompt": "b", "completion": "c"}]
    learnt = lora.load_data(pairs, model, max_tokens=64)
    assert_type(learnt, lora.Dataset)
    assert_type(learnt[0], lora.Row)
    assert_type(learnt[0].sequences, tuple[lora.Tokens, ...])
    assert_type(learnt.cut, list[lora.Cut])
    config = lora.LoRAConfig(rank=2, targets="all", layers=1)
    assert_type(model.apply_lora(config), gomlx.Adapter)
    assert_type(model.apply_lora(config).terms, dict[str, gomlx.Term])
    with tempfile.TemporaryDirectory() as adapter_folder:
        adapter_file = gomlx.save_adapter(model.apply_lora(config), adapter_folder)
        assert_type(gomlx.read_adapter(adapter_file, model), gomlx.Adapter)
        assert_type(lora.save_teacher(model, learnt, Path(adapter_folder) / "x.safetensors", top=8), str)
    assert_type(lora.plan_training(path, learnt, lora=config, steps=1), lora.TrainingPlan)
    trained = gomlx.train(model, learnt, lora=config, steps=1, progress=False)
    assert_type(gomlx.ScalingOptions(workers=2, cpus=4).workers, int)
    assert_type(trained, lora.TrainingRun)
    assert_type(next(trained), lora.Step)
    assert_type(trained.evaluate(pairs), lora.Evaluation)
    assert_type(lora.dpo_loss(v, v, v, v, beta=0.1), mx.array)
    assert_type(lora.orpo_loss(-v, -v), mx.array)
    assert_type(lora.kto_loss(v, v, v > 1, 0.5), mx.array)
    assert_type(lora.distillation_loss(a, b), mx.array)
    assert_type(gomlx.sample_probabilities(model.logits(ids)[-1], sampling=gomlx.Sampling(top_p=0.5)), mx.array)
assert_type(gomlx.Sampling().replace(temperature=0.5), gomlx.Sampling)
assert_type(gomlx.GenerationOptions(max_tokens=4, temperature=0.7).replace(stop="."), gomlx.GenerationOptions)
assert_type(gomlx.GenerationOptions(max_tokens=4).max_tokens, int | None)
assert_type(gomlx.gguf_info(path), gomlx.GGUFInfo)
assert_type(gomlx.discover(Path(path).parent), list[gomlx.FoundModel])
assert_type(gomlx.plan_memory(path), gomlx.MemoryPlan)
assert_type(backends.names(), list[str])
long_ones: list[Callable[..., Any]] = [gomlx.convert, gomlx.fuse, gomlx.bench, gomlx.compare_reports]
assert_type(backends.available(), list[backends.Status])
assert_type(backends.default(), backends.Backend)
assert_type(backends.get("native"), backends.Backend)
changes: list[Callable[..., None]] = [backends.register, backends.unregister]
totals: Callable[[dict[str, Any]], dict[str, Any]] = profiling.totals
