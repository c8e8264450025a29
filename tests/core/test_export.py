"""Exported functions: what comes back from the file is the function; what is no such file is refused."""
import io
import os
import re
import threading

import numpy as np
import pytest

import gomlx.core as mx


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "function.gomlxfn")


X = mx.arange(6.0).reshape(2, 3)


def test_forms_of_arguments(path):
    mx.export_function(path, lambda x, y: x - 2 * y, X, X)
    f = mx.import_function(path)
    for out in (f(X, X), f((X, X)), f([X, X])):
        assert isinstance(out, tuple) and out[0].tolist() == (-X).tolist()
    for wrong in [(X,), (X, X, X), (X, X[0]), (X, X.astype(mx.int32)), (X, 1.0), ("a",), ((X,), X)]:
        with pytest.raises(ValueError):
            f(*wrong)
    mx.export_function(path, lambda x, *, y: x - 2 * y, (X,), {"y": X})
    f = mx.import_function(path)
    assert f(X, y=X)[0].tolist() == f((X,), {"y": X})[0].tolist() == (-X).tolist()
    for args, kwargs in [((X, X), {}), ((X,), {"z": X}), ((), {"x": X, "y": X})]:
        with pytest.raises(ValueError):
            f(*args, **kwargs)


def test_every_kind_of_operation_comes_back(path):
    def f(x):
        i = mx.array([1, 0])
        y = mx.array(x)
        y[0, 1:] = 7.0
        return [mx.softmax(x, axis=-1), x.T, x[:, ::2], x.reshape(3, -1), mx.concatenate([x, x], 1), x.var(axis=0),
                mx.argmax(x, axis=1), x @ x.T, x.astype(mx.float16), mx.where(x > 3, x, -x),
                mx.broadcast_to(x[0], (4, 3)),
                mx.stop_gradient(x), mx.arange(3.0) + x, x[i],
                mx.take_along_axis(x, mx.zeros((2, 1), dtype=mx.int32), 1), y,
                x.at[i].add(x), mx.pad(x, 1), mx.flatten(x), mx.expand_dims(x, 1), mx.depends(x, x * 2), mx.isnan(x),
                mx.random.uniform(shape=(2,), key=mx.random.key(3)), mx.diagonal(x), mx.full((2,), 3.0),
                mx.view(x, mx.int32)]
    mx.export_function(path, f, X)
    got = mx.import_function(path)(X)
    want = f(X)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.dtype == b.dtype and a.shape == b.shape and mx.array_equal(a, b).item()


def comes_back(path, f, *inputs):
    """What the file gives is what the function gives, to the bit."""
    mx.export_function(path, f, *inputs)
    got, want = mx.import_function(path)(*inputs), f(*inputs)
    want = [want] if isinstance(want, mx.array) else want
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.dtype == b.dtype and a.shape == b.shape and bytes(mx.contiguous(a)) == bytes(mx.contiguous(b))


QKV = mx.random.normal((2, 4, 5, 8), key=mx.random.key(1))
WEIGHT = mx.random.normal((3, 8, 64), key=mx.random.key(2))
MATRIX = mx.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]])


@pytest.mark.parametrize("f", [
    lambda x: mx.fast.rms_norm(x, mx.ones(8), 1e-5), lambda x: mx.fast.rms_norm(x, None, 1e-5),
    lambda x: mx.fast.layer_norm(x, mx.ones(8), mx.ones(8), 1e-5), lambda x: mx.fast.layer_norm(x, None, None, 1e-5),
    lambda x: mx.fast.rope(x, 4, traditional=True, base=100.0, scale=0.5, offset=3),
    lambda x: mx.fast.rope(x, 8, traditional=False, base=None, scale=1.0, offset=mx.array([1, 2]),
                           freqs=mx.arange(1, 5.0)),
    lambda x: mx.grad(lambda y: mx.fast.rope(y, 8, traditional=False, base=9.0, scale=1.0, offset=3)[0, 0, 0, 0])(x),
    lambda x: mx.fast.scaled_dot_product_attention(x, x[:, :2], x[:, :2], scale=0.3),
    lambda x: mx.fast.scaled_dot_product_attention(x, x, x, scale=0.3, mask="causal", sinks=mx.zeros(4)),
    lambda x: mx.fast.scaled_dot_product_attention(x, x, x, scale=0.3, mask=x[:, :, :, :5] > 0),
    lambda x: mx.fast.gated_delta_update(x, x, x, x[..., 0], x[..., 1], None, None),
    lambda x: mx.fast.gated_delta_update(x, x, x, x[..., 0], x[..., 1], mx.ones((2, 5, 8, 8)), x[:, :, 0, 0] > 0),
    lambda x: [mx.fft.fft(x), mx.fft.ifft2(x), mx.fft.rfft(x, n=11), mx.fft.irfft(x)],
    lambda x: mx.fast.dequantize_blocks(mx.fast.quantize_blocks(mx.reshape(x, [5, -1]), "Q8_0"), "Q8_0"),
    lambda x: [mx.to_fp8(x), mx.from_fp8(mx.to_fp8(x), mx.float16)],
    lambda x: mx.random.permutation(x, axis=2, key=mx.random.key(3))])
def test_fused_operations_come_back(path, f):
    comes_back(path, f, QKV)


@pytest.mark.parametrize("f", [
    lambda a: [*mx.linalg.lu(a), *mx.linalg.lu_factor(a)], lambda a: mx.linalg.qr(a), mx.linalg.cholesky,
    lambda a: mx.linalg.cholesky(a, upper=True), mx.linalg.inv, lambda a: mx.linalg.tri_inv(a, upper=True),
    mx.linalg.pinv,
    lambda a: mx.linalg.solve(a, mx.ones(3)), lambda a: mx.linalg.solve_triangular(a, a, upper=True),
    lambda a: [mx.linalg.det(a), *mx.linalg.slogdet(a)], lambda a: mx.grad(mx.linalg.det)(a),
    lambda a: mx.linalg.svd(a), lambda a: mx.linalg.svd(a, compute_uv=False), lambda a: mx.linalg.eigh(a, "U"),
    mx.linalg.eigvalsh, lambda a: mx.linalg.eig(a), mx.linalg.eigvals])
def test_linear_algebra_comes_back(path, f):
    comes_back(path, f, MATRIX)


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_quantised_operations_come_back(path, mode):
    fields = mx.quantize(WEIGHT, mode=mode)

    def f(x):
        indices = mx.array([2, 0])
        return [*mx.quantize(x, mode=mode), mx.dequantize(*fields, mode=mode),
                mx.quantized_matmul(x, *fields, mode=mode),
                mx.quantized_matmul(x[..., :8], *[part[0] for part in fields], transpose=False, mode=mode),
                mx.gather_qmm(x, *fields, lhs_indices=indices, rhs_indices=indices, mode=mode),
                *([mx.qqmm(x[0], fields[0][0], fields[1][0], mode=mode)] if mode in ("mxfp8", "nvfp4") else [])]
    comes_back(path, f, WEIGHT)


def test_constants_of_every_dtype_come_back(path):
    for dtype in (mx.bool_, mx.int8, mx.uint64, mx.float16, mx.bfloat16, mx.float32, mx.float64, mx.complex64):
        constant = mx.array([[1, 0], [2, 3]]).astype(dtype).T
        mx.export_function(path, lambda x: (constant, x), X)
        (got, _) = mx.import_function(path)(X)
        assert got.dtype == dtype and mx.array_equal(got, constant).item()


def test_several_traces_share_their_constants(path):
    weights = mx.ones((1000,))
    with mx.exporter(path, lambda *a: sum(a) * weights) as export:
        assert isinstance(export, mx.FunctionExporter)
        for n in (1, 2, 3):
            assert export(*[weights] * n) is None
        with pytest.raises(RuntimeError):
            export(weights)
    with pytest.raises(RuntimeError):
        export(weights)
    export.close()
    assert os.path.getsize(path) < 6000
    f = mx.import_function(path)
    assert [f(*[weights] * n)[0][0].item() for n in (1, 2, 3)] == [1, 2, 3]


def test_shapeless(path):
    mx.export_function(path, lambda x: mx.exp(x).mean(axis=-1), X, shapeless=True)
    f = mx.import_function(path)
    x = mx.arange(20.0).reshape(4, 5) / 9
    np.testing.assert_allclose(np.asarray(f(x)[0]), np.exp(np.asarray(x)).mean(-1), rtol=1e-5)
    with pytest.raises(ValueError):
        f(x[0])
    mx.export_function(path, lambda x: x * 2, X)
    with pytest.raises(ValueError):
        mx.import_function(path)(x)


def test_metadata(path):
    mx.export_function(path, lambda x: x, X, metadata="gr\u00fc\u00dfe")
    f, text = mx.import_function(path, return_metadata=True)
    assert text == "gr\u00fc\u00dfe" and f(X)[0].tolist() == X.tolist()
    mx.export_function(path, lambda x: x, X)
    assert mx.import_function(path, return_metadata=True)[1] == ""
    with pytest.raises(ValueError):
        mx.export_function(lambda d: None, lambda x: x, X, metadata="a")


def test_imported_functions_are_transformed_like_others(path):
    mx.export_function(path, lambda x: (mx.sin(x) * x).sum(), X)
    f = mx.import_function(path)
    want = np.sin(np.asarray(X)) + np.cos(np.asarray(X)) * np.asarray(X)
    np.testing.assert_allclose(np.asarray(mx.grad(lambda x: f(x)[0])(X)), want, rtol=1e-5)
    assert mx.vmap(f)(mx.stack([X, X]))[0].shape == (2,)
    again = path + "2"
    mx.export_function(again, mx.compile(mx.grad(lambda x: f(x)[0])), X)
    np.testing.assert_allclose(np.asarray(mx.import_function(again)(X)[0]), want, rtol=1e-5)


def test_what_cannot_be_exported(path):
    @mx.custom_function
    def ruled(x):
        return x * x
    ruled.vjp(lambda primal, cotangent, output: cotangent)
    for function in (ruled, mx.checkpoint(lambda x: x * x), lambda x: 2.0, lambda x: {"a": x}, lambda x: (x, [x]),
                     lambda x: x * x.sum().item()):
        with pytest.raises(ValueError):
            mx.export_function(path, function, X)
        assert os.listdir(os.path.dirname(path)) == []         # neither the file nor a part of it
    with pytest.raises(TypeError):
        mx.export_function(path, 3, X)
    for missing in ("/nonexistent/x", os.path.join(path, "x")):
        with pytest.raises(RuntimeError):
            mx.export_function(missing, lambda x: x, X)
        with pytest.raises(RuntimeError):
            mx.import_function(missing)


def test_a_file_is_replaced_only_when_the_new_one_is_whole(path):
    mx.export_function(path, lambda x: x + 1, X)
    export = mx.exporter(path, lambda x: x + 2)
    export(X)
    assert mx.import_function(path)(X)[0][0, 0].item() == 1
    export.close()
    assert mx.import_function(path)(X)[0][0, 0].item() == 2
    with pytest.raises(KeyError), mx.exporter(path, lambda x: x + 3) as export:
        export(X)
        raise KeyError
    assert mx.import_function(path)(X)[0][0, 0].item() == 2 and len(os.listdir(os.path.dirname(path))) == 1


def test_damaged_files_are_refused(path):
    mx.export_function(path, lambda x: mx.softmax(x @ x.T, axis=-1), X)
    with open(path, "rb") as file:
        data = file.read()
    changes = [data[:n] for n in range(0, len(data), 37)] + [data + b"\0"]
    changes += [data[:n] + bytes([data[n] ^ 4]) + data[n + 1:] for n in range(0, len(data), 11)]
    for changed in changes:
        with open(path, "wb") as file:
            file.write(changed)
        with pytest.raises(RuntimeError):
            mx.import_function(path)


def test_callback_is_told_the_graph():
    told = []
    w = mx.array([10.0, 20.0, 30.0])
    mx.export_function(told.append, lambda x, *, y: mx.exp(x) * w + y, X, y=X)
    assert [entry["type"] for entry in told[:4]] == ["inputs", "keyword_inputs", "outputs", "constants"]
    assert told[0]["inputs"] == [("A", (2, 3), mx.float32), ("B", (2, 3), mx.float32)]
    assert told[1]["keywords"] == [("y", "B")] and told[2]["outputs"] == [("C", (2, 3), mx.float32)]
    assert told[3]["constants"][0][0] == "D" and told[3]["constants"][0][1].tolist() == [10, 20, 30]
    assert [entry["name"] for entry in told[4:]] == ["Exp", "Broadcast", "Multiply", "Add"]
    assert told[-1]["outputs"] == told[2]["outputs"] and told[4]["inputs"] == told[0]["inputs"][:1]


def primitives(f, *args):
    told = []
    mx.export_function(told.append, f, *args)
    return [(entry["name"], entry["arguments"]) for entry in told if entry["type"] == "primitive"]


def kept(name, *arguments):
    """Of one primitive for which MLX squeezes the second axis afterwards."""
    return [(name, list(arguments)), ("Squeeze", [[1]])]


@pytest.mark.parametrize("f, want", [
    (mx.log, [("Log", [2])]), (mx.log2, [("Log", [0])]), (mx.log10, [("Log", [1])]),
    (mx.sqrt, [("Sqrt", [False])]), (mx.rsqrt, [("Sqrt", [True])]), (mx.arctan, [("ArcTan", [])]),
    (lambda x: x.astype(mx.float16), [("AsType", [mx.float16])]), (lambda x: x.view(mx.int32), [("View", [mx.int32])]),
    *[(lambda x, name=name: getattr(mx, name)(x, axis=1), kept("Reduce", kind, [1]))
      for name, kind in (("all", 0), ("any", 1), ("sum", 2), ("prod", 3), ("min", 4), ("max", 5))],
    (lambda x: x.sum(), [("Reduce", [2, [0, 1]]), ("Squeeze", [[0, 1]])]),
    (lambda x: x.sum(axis=0, keepdims=True), [("Reduce", [2, [0]])]),
    (lambda x: mx.logsumexp(x, axis=1), kept("LogSumExp")),
    (lambda x: mx.argmax(x, axis=1), kept("ArgReduce", 1, 1)),
    (lambda x: mx.argmin(x, axis=1), kept("ArgReduce", 0, 1)),
    (lambda x: mx.argmax(x, axis=0, keepdims=True), [("ArgReduce", [1, 0])]),
    (mx.sort, [("Sort", [1])]), (mx.argsort, [("ArgSort", [1])]), (lambda x: mx.softmax(x, -1), [("Softmax", [False])]),
    *[(lambda x, name=name: getattr(mx, name)(x, axis=1), [("Scan", [kind, 1, False, True])])
      for name, kind in (("cummax", 0), ("cummin", 1), ("cumsum", 2), ("cumprod", 3))],
    (lambda x: mx.cumsum(x, axis=0, reverse=True, inclusive=False), [("Scan", [2, 0, True, False])]),
    (lambda x: mx.where(x > 0, x, x * 2), [("Broadcast", [(2, 3)]), ("Greater", []), ("Broadcast", [(2, 3)]),
                                           ("Multiply", []), ("Select", [])]),
    (lambda x: mx.addmm(x, mx.ones((2, 2)), x, alpha=2.0, beta=3.0), [("AddMM", [2.0, 3.0])]),
    (lambda x: mx.broadcast_to(x, (4, 2, 3)), [("Broadcast", [(4, 2, 3)])]),
    (lambda x: x.reshape(3, 2), [("Reshape", [(3, 2)])]), (lambda x: x.flatten(), [("Flatten", [0, 1])]),
    (lambda x: mx.unflatten(x, 0, (1, 2)), [("Unflatten", [0, (1, 2)])]), (lambda x: x.T, [("Transpose", [[1, 0]])]),
    (lambda x: x[::2, 1:], [("Slice", [(0, 1), (2, 3), (2, 1)])]),
    (lambda x: mx.concatenate([x, x], axis=1), [("Concatenate", [1])]),
    (lambda x: mx.take_along_axis(x, mx.array([[0, 1, 0]]), 0), [("GatherAxis", [0])]),
    (lambda x: x == x, [("Equal", [False])]), (lambda x: mx.expand_dims(x, (0, 2)), [("ExpandDims", [[0, 2]])]),
    (lambda x: x.astype(mx.int32) & x.astype(mx.int32), [("AsType", [mx.int32]), ("BitwiseBinary", [0])]),
    (lambda x: mx.logaddexp(x, x[:1]), [("Slice", [(0, 0), (1, 3), (1, 1)]), ("Broadcast", [(2, 3)]),
                                        ("LogAddExp", [])]),
    (lambda x: mx.linalg.qr(x, stream=mx.cpu), [("QRF", [])]),
    (lambda x: mx.linalg.svd(x, stream=mx.cpu), [("SVD", [True])])])
def test_primitives_have_the_names_and_arguments_of_mlx(f, want):
    assert [(name, arguments) for name, arguments in primitives(f, X) if name != "Full"] == want


def test_values_between_primitives_are_named_and_shaped():
    told = []
    mx.export_function(told.append, lambda x: x.sum(axis=1) * 2.0, X)
    reduced, squeezed, spread, product = told[4:]
    assert [entry["name"] for entry in told[4:]] == ["Reduce", "Squeeze", "Broadcast", "Multiply"]
    assert [x[1] for x in reduced["outputs"]] == [(2, 1)] and reduced["outputs"] == squeezed["inputs"]
    assert spread["inputs"][0][0] == told[3]["constants"][0][0] and spread["outputs"][0][1] == (2,)
    assert product["inputs"] == squeezed["outputs"] + spread["outputs"] and product["outputs"] == told[2]["outputs"]


def labels(*args, **kwargs):
    mx.export_to_dot(out := io.StringIO(), *args, **kwargs)
    return re.findall('label ="(.*?)"', out.getvalue())


def test_dot_names_what_is_compiled_and_marks_the_ends():
    y, row = mx.array(3.0), X[0]
    mx.eval(row)
    for f, args, want in [(lambda x, y: mx.exp(x) * y, (X, y), ["CompiledExpBroadcastMultiply"]),
                          (lambda x, y: y * mx.exp(x), (X, y), ["CompiledBroadcastExpMultiply"]),
                          (lambda x: mx.sin(x) * mx.cos(x), (X,), ["CompiledSinCosMultiply"]),
                          (lambda x, y: (x + y) * y, (X, y), ["CompiledBroadcastAddMultiply"]),
                          (lambda x: 2 * x + 1, (X,), ["CompiledBroadcastMultiplyBroadcastAdd"]),
                          (lambda x: mx.rsqrt(mx.log2(x)), (X,), ["CompiledLog2Rsqrt"]),
                          (lambda x: -mx.square(x), (X,), ["CompiledSquareNegative"]),
                          (lambda x: mx.exp(x).astype(mx.float16), (X,), ["CompiledExpAsType"]),
                          (lambda x, y: mx.where(x > y, x, y) * 2, (X, y),
                           ["CompiledBroadcastGreaterSelectBroadcastMultiply"]),
                          (lambda x: mx.exp(x * 2).sum(), (X,), ["CompiledBroadcastMultiplyExp", "Sum", "Squeeze"])]:
        assert labels(mx.compile(f)(*args)) == want
        assert labels(o=mx.compile(f)(*args)) == want
    w = X * 2
    mx.export_to_dot(out := io.StringIO(), w=w, o=mx.exp(w) + row)
    assert '{ rank=sink; "o"; }' in out.getvalue() and '{ "w"; }' in out.getvalue()


def test_dot(tmp_path):
    y = X + 0.5
    out = io.StringIO()
    mx.export_to_dot(out, mx.exp(y) * 2, (y.sum(),), middle=y)
    text = out.getvalue()
    assert text.startswith("digraph {") and text.endswith("}") and '"middle"' in text and 'label ="Exp"' in text
    file = tmp_path / "graph.dot"
    mx.export_to_dot(str(file), y)
    assert 'label ="Add"' in file.read_text()
    one = mx.array(1.0)
    mx.export_to_dot(out := io.StringIO(), one + 1.0, one=one)
    assert '"one" -> 0' in out.getvalue() and '"A" -> 0' in out.getvalue()       # two constants, though they are equal
    with pytest.raises(ValueError):
        mx.export_to_dot(str(file), 3)


def test_threads_call_one_imported_function(path):
    mx.export_function(path, lambda x: mx.exp(x) * 2 + x, X)
    f = mx.import_function(path)
    want, wrong = f(X)[0].tolist(), []

    def work():
        wrong.extend(1 for _ in range(50) if f(X)[0].tolist() != want)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
