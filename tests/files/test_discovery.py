"""discover(): what is found below a folder, what is said of it, and what becomes of broken files and links."""
import dataclasses
import json
import os
import struct

import gguf
import numpy as np
import pytest
from checkpoints import SMALL, random_weights, save_gguf, save_safetensors

import gomlx
from gomlx._files import gguf as gguf_file
from gomlx._files import headers


def small(folder, dtype="F32", shards=1, **changes):
    save_safetensors(folder, SMALL | changes, random_weights(SMALL), dtype, shards)
    return str(folder)


def found(path):
    return {os.path.relpath(one.path, path): one for one in gomlx.discover(path)}


def test_what_is_found(tmp_path):
    small(tmp_path / "b" / "plain", "BF16", shards=3)
    small(tmp_path / "a" / "mlx", quantization={"group_size": 64, "bits": 4})
    save_gguf(str(tmp_path / "b" / "small-Q8_0.gguf"), SMALL, random_weights(SMALL), "Q8_0")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{}")            # no weights beside it: some other program's
    (tmp_path / "b" / "mmproj-F16.gguf").write_bytes(b"a projector of images")
    models = gomlx.discover(tmp_path)
    assert [os.path.relpath(one.path, tmp_path) for one in models] == ["a/mlx", "b/plain", "b/small-Q8_0.gguf"]
    mlx, plain, gguf = models
    assert (mlx.format, mlx.quant_bits, mlx.quant_group, mlx.quant_type) == ("mlx", 4, 64, "affine")
    assert (plain.format, plain.model_type, plain.quant_type) == ("safetensors", "llama", "BF16")
    assert plain.quant_bits is None and plain.quant_group is None
    assert plain.n_files == 3 and plain.context_length == 1024 and plain.error is None
    assert plain.bytes == sum(os.path.getsize(one) for one in (tmp_path / "b" / "plain").glob("*.safetensors"))
    assert (gguf.format, gguf.model_type, gguf.quant_bits, gguf.quant_group) == ("gguf", "llama", 8, 32)
    assert gguf.bytes == os.path.getsize(gguf.path) and gguf.context_length == 1024
    assert json.loads(json.dumps(dataclasses.asdict(gguf)))["quant_type"] == "Q8_0"


def test_a_file_and_the_packaged_model():
    [model] = gomlx.discover(gomlx.loading.PACKAGED_FILE)
    assert (model.model_type, model.quant_type, model.context_length) == ("llama", "Q8_0", 2048)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        gomlx.discover("/nowhere/at/all")


def test_split_files_are_one_model(tmp_path):
    save_gguf(str(tmp_path / "small.gguf"), SMALL, random_weights(SMALL), split=8)
    parts = sorted(os.listdir(tmp_path))
    assert len(parts) > 1
    [model] = gomlx.discover(tmp_path)
    assert os.path.basename(model.path) == parts[0] and model.n_files == len(parts) and model.error is None
    os.remove(tmp_path / parts[-1])
    [model] = gomlx.discover(tmp_path)
    assert "are missing: " + parts[-1] in model.error


def test_links_are_followed_once(tmp_path):
    small(tmp_path / "models" / "one")
    os.symlink(tmp_path / "models", tmp_path / "models" / "one" / "back")
    os.symlink(tmp_path / "models" / "one", tmp_path / "again")
    os.symlink(tmp_path / "nothing", tmp_path / "broken.gguf")
    by_path = found(tmp_path)
    assert len(by_path) == 2 and by_path["broken.gguf"].error
    assert sum(one.error is None for one in by_path.values()) == 1


BROKEN = {
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
    "no type": (lambda f: (f / "config.json").write_text("{}"), "model type is not named"),
    "cut": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 20), "not a safetensors file: a header of"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "not a safetensors file"),
    "no header": (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"),
                  "is not a JSON object"),
    "tensor": (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 70) + json.dumps(
        {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).ljust(70).encode()), "tensor 'a'"),
    "index": (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}'),
              "1 of 1 files are missing: x.safetensors"),
    "escape": (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
               "files are missing"),
    "map": (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
            "expected an object weight_map"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_entries_with_an_error(tmp_path, case):
    small(tmp_path / "model")
    small(tmp_path / "good")
    harm, error = BROKEN[case]
    harm(tmp_path / "model")
    by_path = found(tmp_path)
    assert by_path["good"].error is None and error in by_path["model"].error


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    small(tmp_path / "model")
    os.remove(tmp_path / "model" / "model.safetensors")
    os.mkfifo(tmp_path / "model" / "model.safetensors")
    assert all("is not a file" in one.error for one in gomlx.discover(tmp_path)) and len(gomlx.discover(tmp_path)) == 2


@pytest.mark.parametrize("cut", [0, 3, 10, 23, 24, 40, 200, 1500, -70000])
def test_gguf_files_that_were_cut_short(tmp_path, cut):
    path = tmp_path / "small.gguf"
    save_gguf(str(path), SMALL, random_weights(SMALL))
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    [model] = gomlx.discover(tmp_path)
    assert str(path) in model.error and (model.format, model.model_type) == ("gguf", None)


@pytest.mark.parametrize("head, error", [
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"), (b"GGML" + bytes(40), "does not begin with its magic"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors and 0 entries"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63), "are beyond its end"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 1 << 40), "a list of"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 1 << 61), "are beyond its end"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<II", 99, 0), "metadata of type 99"),
])
def test_hostile_gguf_headers(tmp_path, head, error):
    (tmp_path / "x.gguf").write_bytes(head + bytes(64))
    [model] = gomlx.discover(tmp_path)
    assert error in model.error


def test_a_vocabulary_is_counted_not_read():
    header = headers.read(gomlx.loading.PACKAGED_FILE)
    with gomlx.load() as model:
        assert sum(one.bytes for one in header.tensors.values()) == model.info["weight_bytes"]
        assert header.tensors["token_embd.weight"].shape == (2048, 256)
        tokens = header.config["tokenizer.ggml.tokens"]
        assert (len(tokens) if isinstance(tokens, list) else tokens) == model.vocab_size
    data = struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 2) + b"bc"
    assert gguf_file._Reader(data, "x").skip_strings(2) == 2
    for cut in range(1, len(data)):
        with pytest.raises(gomlx.Error, match="not inside"):
            gguf_file._Reader(data[:cut], "x").skip_strings(2)


def test_shared_models(shared):
    models = {os.path.basename(one.path): one for one in gomlx.discover(os.path.join(shared, "data", "models"))}
    assert len(models) >= 25 and not [one for one in models.values() if one.error]
    assert models["gemma4"].model_type == "gemma4_text" and models["fable-Q4_K_M.gguf"].quant_bits == 4


@pytest.mark.parametrize("names, want", [
    (["model-1.safetensors", "model-2.safetensors", "other.safetensors", "adapter_model.safetensors"],
     ["model-1.safetensors", "model-2.safetensors"]),
    (["a.safetensors", "b.safetensors", "consolidated.safetensors", ".hidden.safetensors"],
     ["a.safetensors", "b.safetensors"])])
def test_which_files_make_a_model(tmp_path, names, want):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert headers.weight_files(str(tmp_path)) == want


def test_adapters_alone_are_no_model(tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no .safetensors file of a model in .*: adapter_model.safetensors"):
        headers.weight_files(str(tmp_path))


# ---- gguf_info ----

def test_what_a_gguf_header_says(tmp_path):
    path = str(tmp_path / "small.gguf")
    save_gguf(path, SMALL, random_weights(SMALL), "Q8_0")
    info = gomlx.gguf_info(path)
    assert (info.architecture, info.n_layers, info.hidden_size) == ("llama", SMALL["num_hidden_layers"],
                                                                    SMALL["hidden_size"])
    assert (info.vocab_size, info.n_heads, info.n_kv_heads) == (SMALL["vocab_size"], SMALL["num_attention_heads"],
                                                               SMALL["num_key_value_heads"])
    assert info.head_dim == SMALL.get("head_dim", SMALL["hidden_size"] // SMALL["num_attention_heads"])
    assert info.context_length == SMALL["max_position_embeddings"]
    assert (info.quant_bits, info.quant_group, info.quant_type) == (8, 32, "Q8_0")
    reader = gguf.GGUFReader(path)
    assert info.n_tensors == len(reader.tensors) == sum(info.types.values())
    assert info.parameters == sum(int(one.n_elements) for one in reader.tensors)
    assert info.types["Q8_0"] == sum(one.tensor_type.name == "Q8_0" for one in reader.tensors)
    assert (info.n_files, info.bytes) == (1,
                                          os.path.getsize(path)) and info.metadata["llama.block_count"] == info.n_layers
    assert gomlx.gguf_info(tmp_path) == info
    save_gguf(str(tmp_path / "parts.gguf"), SMALL, random_weights(SMALL), split=8)
    first = next(tmp_path.glob("parts-00001-of-*.gguf"))
    split = gomlx.gguf_info(first)
    assert split.n_files > 1 and split.n_tensors == info.n_tensors and split.quant_bits is None


def test_what_is_no_gguf_file(tmp_path):
    for text in (b"", b"GGUF", b"GGUF" + struct.pack("<IQQ", 1, 0, 0), b"safetensors"):
        (tmp_path / "x.gguf").write_bytes(text)
        with pytest.raises(gomlx.Error, match="x.gguf"):
            gomlx.gguf_info(tmp_path / "x.gguf")
    with pytest.raises(gomlx.Error, match="expected a .gguf file"):
        gomlx.gguf_info(small(tmp_path / "folder"))
    with pytest.raises((OSError, gomlx.Error)):
        gomlx.gguf_info(tmp_path / "none.gguf")
    with pytest.raises(TypeError):
        gomlx.gguf_info(5)


def test_a_header_that_says_nonsense(tmp_path):
    """What is no number is None."""
    path = str(tmp_path / "odd.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("llama.block_count", "many")
    writer.add_array("llama.attention.head_count", [2, 4, 3])
    writer.add_bool("llama.embedding_length", True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = gomlx.gguf_info(path)
    assert (info.n_layers, info.n_heads, info.n_kv_heads, info.hidden_size, info.vocab_size, info.head_dim) == (
        None, 4, 4, None, None, None)
    assert (info.n_tensors, info.parameters, info.quant_type) == (0, 0, None)


def test_a_header_with_odd_sizes(tmp_path):
    """Negative counts are no counts, and an embedding without dimensions says nothing of the vocabulary."""
    path = str(tmp_path / "odd.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_int32("llama.attention.head_count", -3)
    writer.add_tensor("token_embd.weight", np.float32(1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = gomlx.gguf_info(path)
    assert (info.n_heads, info.n_kv_heads, info.head_dim, info.vocab_size) == (None,) * 4


def test_groups_of_formats():
    of = headers.of_block_type
    assert [of(kind)["group"] for kind in ("Q4_0", "Q8_0", "IQ4_NL", "MXFP4", "MXFP8", "NVFP4", "Q4_K", "IQ1_S",
                                           "TQ2_0")] == \
        [32, 32, 32, 32, 32, 16, 256, 256, 256]
    assert of("BF16") == {"bits": None, "group": None, "type": "BF16"} and of(None)["type"] is None
    for unknown in ("Q4_7", "IQ9_K", "MXFP2"):              # not a guess
        with pytest.raises(gomlx.Error, match=f"weights in {unknown}: unknown format"):
            of(unknown)
