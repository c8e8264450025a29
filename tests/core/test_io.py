"""Files of arrays: what we write others read, and the other way round; files that lie are refused."""
import io
import json
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gomlx.core as mx

DTYPES = ["bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
          "float32",
          "float64", "complex64"]
SHAPES = [(), (0, 3), (5,), (2, 3), (4, 1, 7)]


def sample(dtype, shape, module=mx):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2 if dtype == "bool_" else \
        np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return module.array(numbers.astype(np.int32)).astype(getattr(module, dtype))


def same(a, b):
    return str(a.dtype).split(".")[-1] == str(b.dtype).split(".")[-1] and tuple(a.shape) == tuple(b.shape) \
        and a.tolist() == b.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trips(tmp_path, dtype, shape):
    a = sample(dtype, shape)
    mx.save(str(tmp_path / "a"), a)
    mx.savez(tmp_path / "b.npz", a, name=a)
    mx.savez_compressed(tmp_path / "c.npz", a)
    mx.save_safetensors(str(tmp_path / "d"), {"x": a, "y": a}, {"k": "v"})
    assert same(mx.load(tmp_path / "a.npy"), a)
    loaded = mx.load(tmp_path / "b.npz")
    assert loaded.keys() == {"arr_0", "name"} and same(loaded["name"], a) and same(loaded["arr_0"], a)
    assert same(mx.load(str(tmp_path / "c.npz"))["arr_0"], a)
    loaded, metadata = mx.load(tmp_path / "d.safetensors", return_metadata=True)
    assert metadata == {"k": "v"} and same(loaded["x"], a) and same(loaded["y"], a)
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npz", "c.npz", "d.safetensors"]     # no temporary names


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("bool_", "bfloat16")])
def test_numpy(tmp_path, dtype):
    a = sample(dtype, (3, 4))
    mx.save(str(tmp_path / "a.npy"), a)
    mx.savez(str(tmp_path / "a.npz"), a)
    want = np.array(a)
    for got in (np.load(tmp_path / "a.npy"), np.load(tmp_path / "a.npz")["arr_0"]):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    for name, other in (("f", np.asfortranarray(want)), ("big", want.astype(want.dtype.newbyteorder(">"))),
                        ("row", want[1:, ::2])):
        np.save(tmp_path / name, other)
        got = mx.load(str(tmp_path / f"{name}.npy"))
        assert str(got.dtype).endswith(dtype) and got.tolist() == other.tolist()
    for version in ((2, 0), (3, 0)):
        with open(tmp_path / "v.npy", "wb") as file:
            np.lib.format.write_array(file, want, version=version)
        assert same(mx.load(str(tmp_path / "v.npy")), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mlx(tmp_path, dtype):
    mlx = pytest.importorskip("mlx.core")
    path = {name: str(tmp_path / f"{name}") for name in ("a.npy", "b.npz", "c.safetensors", "d.npy", "e.npz",
                                                         "f.safetensors")}
    ours, theirs = sample(dtype, (2, 3)), sample(dtype, (2, 3), mlx)
    mx.save(path["a.npy"], ours)
    mx.savez(path["b.npz"], ours)
    mlx.save(path["d.npy"], theirs)
    mlx.savez(path["e.npz"], theirs)
    assert same(mlx.load(path["a.npy"]), theirs) and same(mlx.load(path["b.npz"])["arr_0"], theirs)
    assert same(mx.load(path["d.npy"]), ours) and same(mx.load(path["e.npz"])["arr_0"], ours)
    if dtype != "float64":
        mx.save_safetensors(path["c.safetensors"], {"x": ours}, {"k": "v"})
        mlx.save_safetensors(path["f.safetensors"], {"x": theirs})
        assert same(mlx.load(path["c.safetensors"])["x"], theirs) and same(mx.load(path["f.safetensors"])["x"], ours)


def test_safetensors_package(tmp_path):
    other = pytest.importorskip("safetensors.numpy")
    arrays = {"a": mx.array(np.eye(3, dtype=np.float32)), "b": mx.array([1, 2], mx.int64), "c": mx.array([True])}
    mx.save_safetensors(str(tmp_path / "a.safetensors"), arrays, {"format": "pt"})
    loaded = other.load_file(tmp_path / "a.safetensors")
    assert {name: a.tolist() for name, a in loaded.items()} == {name: a.tolist() for name, a in arrays.items()}
    other.save_file(loaded, tmp_path / "b.safetensors")
    assert all(same(a, arrays[name]) for name, a in mx.load(str(tmp_path / "b.safetensors")).items())


def test_eight_bit_floats_of_safetensors_are_bytes(tmp_path):
    header = json.dumps({word: {"dtype": word, "shape": [2], "data_offsets": [2 * i, 2 * i + 2]}
                         for i, word in enumerate(("F8_E4M3", "F8_E8M0"))}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([1, 2, 3, 255]))
    loaded = mx.load(str(tmp_path / "a.safetensors"))
    assert {name: (a.tolist(), a.dtype) for name, a in loaded.items()} == {"F8_E4M3": ([1, 2], mx.uint8),
                                                                           "F8_E8M0": ([3, 255], mx.uint8)}
    mx.save_safetensors(str(tmp_path / "b.safetensors"), loaded)
    with open(tmp_path / "b.safetensors", "rb") as file:
        assert b'"U8"' in file.read() and mx.load(str(tmp_path / "b.safetensors"))["F8_E8M0"].tolist() == [3, 255]


def test_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    arrays = {"w": sample("float32", (2, 3)), "h": sample("float16", (4,)), "b": sample("bfloat16", (2, 2, 2)),
              "i": sample("int32", (5,)), "j": sample("int8", (3,)), "k": sample("int16", (3, 1))}
    metadata = {"s": "text", "list": ["a", "", "ä"], "n": mx.array(5, mx.uint32), "v": mx.array([1.5, 2.5]),
                "t": mx.array(True)}
    mx.save_gguf(str(tmp_path / "a"), arrays, metadata)
    loaded, found = mx.load(str(tmp_path / "a.gguf"), return_metadata=True)
    assert loaded.keys() == arrays.keys() and all(same(loaded[name], a) for name, a in arrays.items())
    assert found.keys() == metadata.keys() and found["s"] == "text" and found["list"] == metadata["list"]
    assert same(found["n"], metadata["n"]) and same(found["v"], metadata["v"]) and found["t"].item() is True
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    tensors = {t.name: t for t in reader.tensors}
    np.testing.assert_array_equal(tensors["w"].data, np.array(arrays["w"]))
    assert tensors["k"].shape.tolist() == [1, 3] and reader.get_field("s").contents() == "text"


@pytest.mark.parametrize("kind, bits", [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_quantised_gguf(tmp_path, kind, bits):
    gguf = pytest.importorskip("gguf")
    w = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    blocks = gguf.quants.quantize(w, gguf.GGMLQuantizationType[kind])
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "test")
    writer.add_tensor("layer.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = mx.load(str(tmp_path / "q.gguf"))
    assert loaded.keys() == {"layer.weight", "layer.scales",
                             "layer.biases"} and loaded["layer.scales"].dtype == mx.float16
    triple = [loaded[f"layer.{part}"].astype(mx.float32) if part != "weight" else loaded["layer.weight"]
              for part in ("weight", "scales", "biases")]
    got = mx.dequantize(*triple, group_size=32, bits=bits)
    np.testing.assert_allclose(np.array(got), gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]),
                               atol=2e-3)


def test_file_objects(tmp_path):
    a = sample("float32", (2, 3))
    for format, writer in (("npy", lambda f: mx.save(f, a)), ("npz", lambda f: mx.savez(f, a)),
                           ("safetensors", lambda f: mx.save_safetensors(f, {"arr_0": a}))):
        memory = io.BytesIO()
        writer(memory)
        memory.seek(0)
        got = mx.load(memory, format=format)
        assert same(got if format == "npy" else got["arr_0"], a)
        with open(tmp_path / f"x.{format}", "wb") as file:
            writer(file)
        with open(tmp_path / f"x.{format}", "rb") as file:
            got = mx.load(file)
        assert same(got if format == "npy" else got["arr_0"], a)


def test_an_array_outlives_its_file(tmp_path):
    path = tmp_path / "a.npy"
    a = sample("float32", (100, 100))
    mx.save(path, a)
    loaded = mx.load(path)
    path.write_bytes(b"")
    assert same(loaded, a)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.npz"
    mx.savez(path, sample("int32", (2,)))
    before = path.read_bytes()
    with pytest.raises(TypeError):
        mx.savez(path, 3)
    with pytest.raises(RuntimeError):
        mx.save(tmp_path / "none" / "a.npy", sample("int32", (2,)))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.npz"]


# ---- files that lie ----

def npy(header, body=b"\0" * 64):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def safetensors(header, body=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype="F32", shape=(4,), offsets=(0, 16)):
    return {"x": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


LIES = {
    "npy": [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{}", npy("{}"), npy("{"), npy("[]"), npy("1/0"),
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (17,)}"),
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"),
            npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 70,)}"),
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': 'abc'}")],
    "safetensors": [b"", b"\0" * 8, struct.pack("<Q", 1 << 60) + b"{}", safetensors(b"{"), safetensors(b"[]"),
                    safetensors(b"[" * 100000), safetensors({"x": 3}), safetensors({"x": {}}),
                    safetensors(tensor(dtype="F7")),
                    safetensors(tensor(shape=(5,))), safetensors(tensor(offsets=(8, 24))),
                    safetensors(tensor(offsets=(-4, 12))),
                    safetensors(tensor(shape=(1 << 40, 0), offsets=(0, 0))), safetensors(tensor(offsets=("a", 3)))],
    "gguf": [b"", b"GGUF", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
             b"GGUF" + struct.pack("<IQQ", 3, 0, 1), b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62),
             b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"x" + struct.pack("<IQIQ", 1, 1 << 40, 0, 0) + bytes(64),
             b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"x" + struct.pack("<IQIQ", 1, 4, 99, 0) + bytes(64)],
    "npz": [b"", b"PK", b"PK\x03\x04" + bytes(64)],
}


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ2_XS", "IQ3_S", "TQ1_0"])
def test_other_blocks_of_gguf_become_float16(tmp_path, kind):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    r = np.random.default_rng(3)
    blocks = r.integers(0, 256, (3, 2, size), dtype=np.uint8)
    for at in {"Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,)}.get(kind.name, (0,)):
        blocks[..., at:at + 2] = r.uniform(-0.02, 0.02, (3, 2, 1)).astype(np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "test")
    writer.add_tensor("layer.weight", blocks.reshape(3, 2 * size), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = mx.load(tmp_path / "k.gguf")
    want = gguf.quants.dequantize(blocks.reshape(3, 2 * size), kind)
    assert list(got) == ["layer.weight"] and got["layer.weight"].dtype == mx.float16
    assert got["layer.weight"].shape == (3, 2 * values)
    np.testing.assert_allclose(np.asarray(got["layer.weight"]), want.astype(np.float16), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("format, index", [(format, i) for format, files in LIES.items() for i in range(len(files))])
def test_files_that_lie(tmp_path, format, index):
    path = tmp_path / f"x.{format}"
    path.write_bytes(LIES[format][index])
    with pytest.raises((RuntimeError, ValueError)) as raised:
        mx.load(path)
    assert type(raised.value) in (RuntimeError, ValueError) and "x." in str(raised.value)


@pytest.mark.parametrize("call, error", [
    (lambda: mx.load("no.npy"), RuntimeError), (lambda: mx.load("no.npz"), ValueError),
    (lambda: mx.load("no.gguf"), ValueError),
    (lambda: mx.load("no.safetensors"), RuntimeError), (lambda: mx.load("no.txt"), ValueError),
    (lambda: mx.load("no"), ValueError),
    (lambda: mx.load(3), ValueError), (lambda: mx.save(3, mx.array(1)), ValueError),
    (lambda: mx.save("x", 1), TypeError),
    (lambda: mx.save_safetensors(io.BytesIO(), {"x": mx.array(1)}, {"k": 1}), ValueError),
    (lambda: mx.save_safetensors(io.BytesIO(), [1]), TypeError),
    (lambda: mx.save_gguf(io.BytesIO(), {"x": mx.array([1], mx.uint8)}), RuntimeError),
    (lambda: mx.save_gguf(io.BytesIO(), {"x": mx.array([1.0])}, {"k": mx.array([[1]])}), RuntimeError)])
def test_errors(call, error):
    assert not Path("no").exists()
    with pytest.raises(error):
        call()


def mutations(data, r, rounds):
    """Copies of the bytes with some changed, cut out, put in, or made numbers that are too large."""
    numbers = [0, 1, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, len(data), len(data) + 1]
    for _ in range(rounds):
        changed = bytearray(data)
        for _ in range(int(r.integers(1, 5))):
            at, kind = int(r.integers(0, min(len(changed), 400) + 1)), int(r.integers(0, 5))
            if kind == 0:
                changed[at:at + 1] = bytes([int(r.integers(0, 256))])
            elif kind == 1:
                changed[at:at + 8] = struct.pack("<Q", numbers[int(r.integers(0, len(numbers)))])
            elif kind == 2:
                del changed[int(r.integers(0, len(changed) + 1)):]
            elif kind == 3:
                del changed[at:at + int(r.integers(1, 9))]
            else:
                changed[at:at] = r.bytes(int(r.integers(1, 9)))
        yield bytes(changed)


@pytest.mark.parametrize("name", ["x.npy", "stored.npz", "deflated.npz", "x.safetensors", "x.gguf"])
def test_damaged_files_are_refused_or_read(tmp_path, name):
    arrays = {"a": mx.arange(12).reshape(3, 4), "b.weight": mx.ones((2, 32), mx.float16), "e": mx.zeros((0, 3)),
              "s": mx.array(2.5)}
    path = tmp_path / name
    {"x.npy": lambda: mx.save(path, arrays["a"]), "stored.npz": lambda: mx.savez(path, **arrays),
     "deflated.npz": lambda: mx.savez_compressed(path, **arrays),
     "x.safetensors": lambda: mx.save_safetensors(path, arrays, {"k": "v"}),
     "x.gguf": lambda: mx.save_gguf(path, arrays, {"name": "x", "list": ["a", "b"], "n": mx.array([1, 2])})}[name]()
    whole = path.read_bytes()
    outcomes = set()
    for data in mutations(whole, np.random.default_rng(1), 400):
        path.write_bytes(data)
        try:
            loaded = mx.load(path)
        except (RuntimeError, ValueError) as error:
            outcomes.add("refused")
            assert str(error)
            continue
        for array in [loaded] if isinstance(loaded, mx.array) else loaded.values():
            assert array.nbytes <= len(data) and np.asarray(array.astype(mx.float32)).size == array.size
        outcomes.add("read")
    assert outcomes == {"refused", "read"}


def test_tensors_of_a_file_are_read_one_by_one(tmp_path):
    path = tmp_path / "x.safetensors"
    mx.save_safetensors(path, {str(i): mx.full((1 << 18,), i, mx.float32) for i in range(16)})
    tracemalloc.start()
    loaded = mx.load(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20 and all(array[-1].item() == int(name) for name, array in loaded.items())


@pytest.mark.parametrize("shape", [(1, 2, 3, 4, 5), (2, 1, 1, 2, 1, 1, 1, 3), (1, 0, 2, 1, 1)])
def test_gguf_of_more_than_four_dimensions(tmp_path, shape):
    a = sample("float32", shape)
    mx.save_gguf(str(tmp_path / "a.gguf"), {"a": a})
    assert same(mx.load(str(tmp_path / "a.gguf"))["a"], a)
    with pytest.raises(RuntimeError, match="9 dimensions"):
        mx.save_gguf(str(tmp_path / "b.gguf"), {"a": mx.ones((1,) * 9)})
