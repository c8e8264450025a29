"""Adapters as files in four forms, and models with one in their weights. test_adapters_elsewhere.py has them in other
programs."""
import json
import math
import os
import struct

import checkpoints
import gguf
import numpy as np
import pytest
from checkpoints import SMALL
from random_adapters import CONFIG, adapter_for, exact, logits, save_base, saved

import gomlx
import gomlx.core as mx
from gomlx import Adapter, Term, cli
from gomlx._conversion import difference, weights
from gomlx._files.adapters import find_adapters
from gomlx._files.adapters import shared as forms

FORMS = ("peft", "mlx-lm", "go-mlx", "gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama of two layers, four heads of queries and two of keys."""
    return save_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def engine(folder):
    return exact(folder)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and mx.array_equal(a, b).item()


def assert_alike(one, other):
    """The same terms, bit for bit."""
    assert list(one.terms) == list(other.terms) and list(one.full) == list(other.full)
    for layer, term in one.terms.items():
        found = other.terms[layer]
        assert same(term.a, found.a) and same(term.b, found.b) and math.isclose(term.scale, found.scale, rel_tol=1e-9)
        assert (term.magnitude is None) == (found.magnitude is None)
        assert term.magnitude is None or same(term.magnitude, found.magnitude)
    for name, array in one.full.items():
        assert same(array, other.full[name])


def products(adapter):
    """{layer: scale * b @ a} in float64."""
    return {layer: term.scale * np.asarray(term.b.astype(mx.float32), np.float64)
            @ np.asarray(term.a.astype(mx.float32), np.float64) for layer, term in adapter.terms.items()}


# ---- an adapter ----

def test_an_adapter_knows_its_layers_and_parameters(engine):
    adapter = adapter_for(engine, rank=3)
    assert list(adapter.terms) == sorted(adapter.terms) and adapter.ranks == [3]
    names = list(adapter.parameters())
    assert names[:2] == ["model.layers.0.mlp.down_proj.lora_a", "model.layers.0.mlp.down_proj.lora_b"]
    assert adapter.count == sum(array.size for array in adapter.parameters().values())
    assert repr(adapter) == f"<Adapter: 14 layers of rank 3, {adapter.count:,} parameters>"
    adapter.check(engine)
    layer, a, b, scale = adapter.engine_terms()[0]
    assert layer == "model.layers.0.mlp.down_proj" and a.shape == (3, 96) and b.shape == (64, 3) and scale == 2.0


def test_what_does_not_fit_a_model_is_named(engine):
    layer = "model.layers.0.self_attn.q_proj"
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.q_proj: a is \[2, 60\] and b \[64, 2\], .*\[64, 64\]"):
        Adapter({layer: Term(mx.zeros((2, 60)), mx.zeros((64, 2)), 1.0)}).check(engine)
    with pytest.raises(ValueError, match=r"no layer 'model\.layers\.9.*2 of this kind, .*layers\.0.* to .*layers\.1"):
        Adapter({layer.replace("0", "9"): Term(mx.zeros((2, 64)), mx.zeros((64, 2)), 1.0)}).check(engine)
    with pytest.raises(ValueError, match=r"no layer 'model.layers.0.attn'; it has .*layers\.\*\.self_attn\.q_proj"):
        Adapter({"model.layers.0.attn": Term(mx.zeros((2, 64)), mx.zeros((64, 2)), 1.0)}).check(engine)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is \[3\], expected \[64\]"):
        Adapter({}, {"model.norm.weight": mx.zeros(3)}).check(engine)
    with pytest.raises(NotImplementedError, match="replaces 1 weights.*fuse"):
        Adapter({}, {"model.norm.weight": mx.zeros(64)}).engine_terms()
    with pytest.raises(TypeError, match="needs the model for an adapter with magnitudes"):
        adapter_for(engine, dora=True).engine_terms()
    assert len(adapter_for(engine, dora=True).engine_terms(engine)[0]) == 6


@pytest.mark.parametrize("arguments, said", [
    ((mx.zeros((2, 4)), mx.zeros((4, 3)), 1.0), r"a is \[2, 4\] and b \[4, 3\]"),
    ((mx.zeros((0, 4)), mx.zeros((4, 0)), 1.0), "expected"),
    ((mx.zeros((2, 4)), mx.zeros((4, 2)), math.nan), "scale is nan"),
    ((mx.zeros((2, 4)), mx.zeros((4, 2)), 1e30), r"scale is 1e\+30, expected a finite number below 1e\+30"),
    ((mx.zeros((2, 4)), mx.zeros((4, 2)), 10**400), "scale is 1000"),
    ((mx.zeros((2, 4), mx.int32), mx.zeros((4, 2)), 1.0), "a is .*int32"),
    ((mx.zeros((2, 4)), mx.zeros((4, 2)), 1.0, mx.zeros(3)), r"magnitude is \[3\], expected \[4\]"),
])
def test_terms_are_checked(arguments, said):
    with pytest.raises(ValueError, match=said):
        Term(*arguments)


def test_what_is_no_array_and_no_model_is_said(engine, tmp_path):
    term = Term(mx.zeros((2, 4)), mx.zeros((4, 2)), 1.0)
    for call, said in (
            (lambda: Term([1], [2], 1.0), r"a: expected an mx\.array, got list \[1\]"),
            (lambda: Term(term.a, None, 1.0), r"b: expected an mx\.array, got None"),
            (lambda: Term(term.a, term.b, 1.0, 3), r"magnitude: expected an mx\.array, got 3"),
            (lambda: Adapter({"x": 5}), r"terms: expected \{name: Term\}, got 'x' with 5"),
            (lambda: Adapter({3: term}), r"terms: expected \{name: Term\}, got 3 with Term"),
            (lambda: Adapter([term]), "terms: expected a dict, got list"),
            (lambda: Adapter({}, {"x": [1.0]}), r"full: expected \{name: array\}, got 'x' with list"),
            (lambda: Adapter({"x": term}).check(5), "model: expected a loaded model or .*, got 5"),
            (lambda: gomlx.read_adapter(saved(adapter_for(engine), tmp_path, "peft", engine), model=5),
             "model: expected a loaded model or .*, got 5")):
        with pytest.raises(TypeError, match=said):
            call()


@pytest.mark.parametrize("part", ["lora_a", "lora_b", "magnitude", "full"])
def test_numbers_that_are_not_finite_are_named(engine, tmp_path, part):
    layer, wrong = "model.layers.1.mlp.up_proj", mx.array([[math.nan] + [0.0] * 63])
    a, b, m = (mx.zeros(shape) for shape in ((1, 64), (96, 1), (96,)))
    term = Term(wrong if part == "lora_a" else a, b + math.inf if part == "lora_b" else b, 1.0,
                m - math.inf if part == "magnitude" else None)
    adapter = Adapter({layer: term}, {"model.norm.weight": wrong[0]} if part == "full" else None)
    name = "model.norm.weight" if part == "full" else f"{layer}.{part}"
    with pytest.raises(ValueError, match=f"^{name}: NaN or infinite numbers"):
        adapter.check(engine)
    path = gomlx.save_adapter(adapter, tmp_path / "x")
    with pytest.raises(ValueError, match=f"{path}.*: {name}: NaN or infinite numbers"):
        gomlx.read_adapter(path, engine)


# ---- round trips ----

@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_round_trips(engine, tmp_path, form, dtype):
    adapter = adapter_for(engine, dtype=dtype, base_model="org/name")
    path = saved(adapter, tmp_path, form, engine)
    found = gomlx.read_adapter(path, engine)
    if form == "gguf" and dtype == mx.bfloat16:             # as float32, with the same values
        assert {one.a.dtype for one in found.terms.values()} == {mx.float32}
        found = Adapter({layer: Term(one.a.astype(dtype), one.b.astype(dtype), one.scale)
                         for layer, one in found.terms.items()})
    assert_alike(adapter, found)
    if form != "gguf":
        assert_alike(adapter, gomlx.read_adapter(path))
        assert_alike(adapter, gomlx.read_adapter(next(path.glob("*.safetensors")), engine))
        meta = gomlx.read_adapter(path).meta
        assert meta["form"] == form and meta["rank"] == 4 and meta["alpha"] == 8 and meta["dora"] is False
        assert meta["targets"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
        assert form == "go-mlx" or meta["base_model"] == "org/name"


@pytest.mark.parametrize("form", FORMS)
def test_ranks_and_scales_that_differ(engine, tmp_path, form):
    """PEFT keeps them; the others have one of each, or one alpha: the products stay."""
    both = adapter_for(engine, 4, 2.0).terms | adapter_for(engine, 6, 0.7, chosen=lambda name: ".v_" in name).terms
    found = gomlx.read_adapter(saved(Adapter(both), tmp_path, form, engine), engine)
    if form == "peft":
        assert_alike(Adapter(both), found)
    want = products(Adapter(both))
    for layer, product in products(found).items():
        np.testing.assert_allclose(product, want[layer], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["peft", "mlx-lm"])
def test_magnitudes_and_rank_stabilised_scales(engine, tmp_path, form):
    adapter = adapter_for(engine, scale=16 / math.sqrt(4), dora=True, rslora=True, dropout=0.1)
    found = gomlx.read_adapter(saved(adapter, tmp_path, form, engine), engine)
    assert_alike(adapter, found)
    assert found.meta["dora"] and found.meta["dropout"] == 0.1 and found.meta["rslora"] == (form == "peft")


def test_whole_weights(engine, tmp_path):
    rng = np.random.default_rng(2)
    full = {"lm_head.weight": mx.array(rng.normal(size=(100, 64)).astype(np.float32)),
            "model.layers.1.input_layernorm.weight": mx.array(rng.normal(size=64).astype(np.float32))}
    some = Adapter(adapter_for(engine).terms, full)
    assert_alike(some, gomlx.read_adapter(saved(some, tmp_path, "peft", engine), engine))
    alone = Adapter({}, full)
    assert_alike(alone, gomlx.read_adapter(saved(alone, tmp_path, "mlx-lm", engine), engine))
    for form, adapter, said in (("mlx-lm", some, "both"), ("go-mlx", some, "whole weights"), ("gguf", alone, "whole"),
                                ("peft", alone, "mlx-lm's holds")):
        with pytest.raises((NotImplementedError, ValueError), match=said):
            gomlx.save_adapter(adapter, tmp_path / f"x{form}.gguf", form, model=engine)
    for form in ("go-mlx", "gguf"):
        with pytest.raises(NotImplementedError, match="holds no magnitudes"):
            gomlx.save_adapter(adapter_for(engine, dora=True), tmp_path / "y.gguf", form, model=engine)


# ---- where files are, and what is written ----

def test_forms_are_found_by_looking(engine, tmp_path):
    adapter = adapter_for(engine)
    for form in FORMS:
        saved(adapter, tmp_path, form, engine)
    found = find_adapters(tmp_path)
    assert sorted(one.adapter.meta["form"] for one in found) == sorted(FORMS)
    os.rename(tmp_path / "mlx-lm" / "adapters.safetensors", tmp_path / "mlx-lm" / "0000100_adapters.safetensors")
    assert_alike(adapter, gomlx.read_adapter(tmp_path / "mlx-lm"))
    os.rename(tmp_path / "adapter.gguf", tmp_path / "gguf" if (tmp_path / "gguf").mkdir() else tmp_path / "gguf/x.gguf")
    assert_alike(adapter, gomlx.read_adapter(tmp_path / "gguf", engine))
    (tmp_path / "peft" / "adapters.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors and adapters\.safetensors: name"):
        gomlx.read_adapter(tmp_path / "peft")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no adapter in .*expected adapter_model.safetensors"):
        gomlx.read_adapter(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no such"):
        gomlx.read_adapter(tmp_path / "nothing")


def test_pipes_are_not_read(engine, tmp_path):
    """Reading one would wait for a writer."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes with names here")
    for name in ("weights/adapter_model.safetensors", "config/adapter_config.json", "x.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    saved(adapter_for(engine), tmp_path, "peft", engine)
    os.rename(tmp_path / "peft" / "adapter_model.safetensors", tmp_path / "config" / "adapter_model.safetensors")
    for path, said in (("weights", "safetensors is not a file"), ("config", "config.json is not a file"),
                       ("weights/adapter_model.safetensors", "is not a file"), ("x.gguf", "x.gguf is not a file")):
        with pytest.raises(gomlx.Error, match=said):
            gomlx.read_adapter(tmp_path / path)
        [found] = find_adapters(tmp_path / path)
        assert said in found.error
    assert [os.path.basename(one.path) for one in find_adapters(tmp_path)] == ["config", "weights"]
    os.remove(tmp_path / "weights" / "adapter_model.safetensors")
    os.mkfifo(tmp_path / "weights" / "y.gguf")
    with pytest.raises(FileNotFoundError, match="no adapter in"):
        gomlx.read_adapter(tmp_path / "weights")


def test_pickles_are_refused_by_name(tmp_path):
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for path in (tmp_path, tmp_path / "adapter_model.bin"):
        with pytest.raises(NotImplementedError, match=r"adapter_model\.bin is a pickle"):
            gomlx.read_adapter(path)
    [found] = find_adapters(tmp_path)
    assert "is a pickle" in found.error


def test_saving_leaves_nothing_half_written(engine, tmp_path, monkeypatch):
    first, second = adapter_for(engine), adapter_for(engine, seed=2)
    path = saved(first, tmp_path, "peft", engine)
    (path / "notes.txt").write_text("mine")
    full = OSError(28, "No space left on device")

    def write(path, parts, whole=forms.write):
        if path.endswith(("json", "gguf")):
            raise full
        whole(path, parts)

    monkeypatch.setattr(forms, "write", write)
    for target, form in ((path, "peft"), (tmp_path / "new", "mlx-lm"), (tmp_path / "x.gguf", "gguf")):
        with pytest.raises(OSError, match=f"cannot write {target}: No space left on device; what was there is unch"):
            gomlx.save_adapter(second, target, form, model=engine)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["peft"]
    assert sorted(os.listdir(path)) == ["adapter_config.json", "adapter_model.safetensors", "notes.txt"]
    assert_alike(first, gomlx.read_adapter(path))
    gomlx.save_adapter(second, path, "peft")
    assert_alike(second, gomlx.read_adapter(path))
    assert (path / "notes.txt").read_text() == "mine"
    with pytest.raises(FileExistsError, match="an adapter in another form"):
        gomlx.save_adapter(second, path, "mlx-lm")
    with pytest.raises(NotADirectoryError):
        gomlx.save_adapter(second, path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="no folder"):
        gomlx.save_adapter(second, tmp_path / "a" / "b")
    go_mlx = tmp_path / "go" / "adapter.safetensors"
    assert gomlx.save_adapter(second, go_mlx, "go-mlx") == str(go_mlx.parent) and go_mlx.exists()
    with pytest.raises(ValueError, match=r"expected a folder, or adapters\.safetensors in one"):
        gomlx.save_adapter(second, tmp_path / "x" / "adapter.safetensors", "mlx-lm")
    with pytest.raises(ValueError, match=r"ends in \.gguf"):
        gomlx.save_adapter(second, tmp_path / "x", "gguf", model=engine)
    with pytest.raises(ValueError, match="give the model"):
        gomlx.save_adapter(second, tmp_path / "x.gguf", "gguf")
    for form in FORMS:
        with pytest.raises(ValueError, match="path is '', expected a folder or a file"):
            gomlx.save_adapter(second, "", form, model=engine)
    with pytest.raises(ValueError, match="expected one of peft, mlx-lm, go-mlx, gguf"):
        gomlx.save_adapter(second, tmp_path / "x", "onnx")


# ---- which way matrices are stored ----

def write_pairs(path, config, pairs):
    path.mkdir(exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    name, arrays = pairs
    mx.save_safetensors(str(path / name), arrays)
    if config is not None:
        (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def pair(a, b, layer="model.layers.0.self_attn.k_proj"):
    return {f"{layer}.lora_a": a, f"{layer}.lora_b": b}


def test_matrices_are_turned_by_the_shapes_of_the_base(engine, tmp_path):
    a, b = mx.random.normal((8, 64)), mx.random.normal((32, 8))
    way = {"go-mlx": (a, b), "mlx-lm": (a.T, b.T)}
    mlx_config = {"lora_parameters": {"rank": 8, "scale": 3.0}}
    for stored in way.values():                 # in the other one's way, too
        for config, name, scale in ((mlx_config, "adapters.safetensors", 3.0),
                                    ({"rank": 8, "alpha": 24}, "adapter.safetensors", 3.0),
                                    (None, "adapter.safetensors", 2.0), ({"rank": 8}, "adapter.safetensors", 2.0)):
            found = gomlx.read_adapter(write_pairs(tmp_path / "x", config, (name, pair(*stored))), engine)
            [term] = found.terms.values()
            assert same(term.a, a) and same(term.b, b) and term.scale == scale
    # without the base, 8 is the rank where it is said; a square layer fits both ways: the form decides
    a, b = mx.random.normal((8, 64)), mx.random.normal((64, 8))
    layer = "model.layers.0.self_attn.q_proj"
    for config, name in ((mlx_config, "adapters.safetensors"), ({"rank": 8}, "adapter.safetensors")):
        [term] = gomlx.read_adapter(write_pairs(tmp_path / "x", config, (name, pair(a, b, layer)))).terms.values()
        assert same(term.a, a) and same(term.b, b)
    a, b = mx.random.normal((64, 64)), mx.random.normal((64, 64))
    for config, name, turned in (({"lora_parameters": {"rank": 64, "scale": 1}}, "adapters.safetensors", True),
                                 (None, "adapter.safetensors", False)):
        path = write_pairs(tmp_path / "x", config, (name, pair(a, b, layer)))
        [term] = gomlx.read_adapter(path, engine).terms.values()
        assert same(term.a, a.T if turned else a) and same(term.b, b.T if turned else b)


def test_rows_of_gguf_are_in_llamas_order(engine, tmp_path):
    """Names are those of PyPI's gguf; rows of queries and keys are permuted as those of the weight."""
    adapter = adapter_for(engine)
    reader = gguf.GGUFReader(saved(adapter, tmp_path, "gguf", engine))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.type"] == gguf.GGUFType.ADAPTER and fields["general.architecture"] == "llama"
    assert fields[gguf.Keys.Adapter.TYPE] == "lora" and fields[gguf.Keys.Adapter.LORA_ALPHA] == 8.0
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG["num_hidden_layers"])
    tensors = {one.name: one for one in reader.tensors}
    assert len(tensors) == 2 * len(adapter.terms)
    for layer, term in adapter.terms.items():
        theirs = names.get_name(layer + ".weight", try_suffixes=(".weight",))
        a, b = (tensors[f"{theirs}.lora_{part}"] for part in "ab")
        assert a.shape.tolist() == [term.a.shape[1], 4] and b.shape.tolist() == [4, term.b.shape[0]]
        want = np.asarray(term.b)
        if layer.endswith(("q_proj", "k_proj")):
            want = checkpoints.interleaved(want, 16)
        np.testing.assert_array_equal(b.data.reshape(want.shape), want)
        np.testing.assert_array_equal(a.data.reshape(term.a.shape), np.asarray(term.a))


def test_gguf_in_other_types(engine, tmp_path):
    """As llama.cpp's converter writes them: float16, Q8_0 where rows are whole blocks, alpha 0 for a scale of 1."""
    rng = np.random.default_rng(4)
    path = tmp_path / "adapter.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
    a, b = rng.normal(size=(32, 64)).astype(np.float32), rng.normal(size=(64, 32)).astype(np.float16)
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quantize(a, kind)
    writer.add_tensor("blk.1.attn_output.weight.lora_a", blocks, raw_dtype=kind)
    writer.add_tensor("blk.1.attn_output.weight.lora_b", b)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    found = gomlx.read_adapter(path, engine)
    term = found.terms["model.layers.1.self_attn.o_proj"]
    np.testing.assert_array_equal(np.asarray(term.a), gguf.dequantize(blocks, kind))
    np.testing.assert_array_equal(np.asarray(term.b), b)
    assert term.scale == 1.0
    assert gomlx.read_adapter(path).count == found.count        # no rows by heads: no model is needed


# ---- bad files ----

PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
Q = "base_model.model.model.layers.0.self_attn.q_proj."


def peft_tensors(**more):
    return {Q + "lora_A.weight": mx.ones((2, 64)), Q + "lora_B.weight": mx.ones((64, 2))} | more


@pytest.mark.parametrize("change, said", [
    ({"peft_type": "IA3"}, "peft_type is 'IA3'"), ({"bias": "all"}, "bias is 'all'"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out is True"), ({"use_qalora": True}, "use_qalora"),
    ({"layer_replication": [[0, 4]]}, "layer_replication"), ({"megatron_config": {"a": 1}}, "megatron_config"),
    ({"target_parameters": ["x"]}, "target_parameters"), ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"), ({"lora_bias": True}, "lora_bias"),
    ({"use_something_new": True}, "use_something_new"), ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
    ({"init_lora_weights": "olora"}, "changes the base's weights"), ({"init_lora_weights": [1]}, "init_lora_weights"),
    ({"r": 0}, "r is 0"), ({"r": "2"}, "r is '2'"), ({"r": 1 << 40}, "expected a rank"), ({"r": True}, "r is True"),
    ({"r": 3}, "adapter_config.json says rank 3"), ({"lora_alpha": "x"}, "lora_alpha is 'x'"),
    ({"lora_alpha": math.inf}, "lora_alpha is inf"), ({"use_dora": True}, "has no lora_magnitude_vector"),
    ({"use_rslora": 1}, "use_rslora is 1"), ({"rank_pattern": [1]}, "rank_pattern is"),
    ({"rank_pattern": {"q_proj": "a"}}, r"rank_pattern\.q_proj is 'a'"),
    ({"rank_pattern": {"(a+)+": 2}}, "repetitions"), ({"rank_pattern": {".*.*.*.*": 2}}, "repetitions"),
    ({"rank_pattern": {"[": 2}}, "rank_pattern has"), ({"modules_to_save": {"a": 1}}, "modules_to_save"),
])
def test_peft_configs_that_are_refused(tmp_path, change, said):
    path = write_pairs(tmp_path / "x", PEFT | change, ("adapter_model.safetensors", peft_tensors()))
    with pytest.raises((gomlx.Error, NotImplementedError), match=said) as raised:
        gomlx.read_adapter(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("tensors, said", [
    ({Q + "lora_A.weight": mx.ones((2, 64))}, "has no lora_B"),
    (peft_tensors() | {Q.replace("q_", "k_") + "lora_B.weight": mx.ones((2, 64))}, "k_proj has no lora_A"),
    (peft_tensors() | {Q + "lora_A.other.weight": mx.ones((2, 64))}, "two tensors"),
    (peft_tensors() | {Q + "lora_magnitude_vector": mx.ones(64)}, "does not say that it is DoRA"),
    (peft_tensors() | {"base_model.model.lm_tail.weight": mx.ones(64)}, "modules_to_save does not name it"),
    (peft_tensors() | {Q + "lora_ABC.weight": mx.ones(64)}, "no tensor of LoRA"),
    ({Q + "lora_A.weight": mx.ones((2, 64, 1)), Q + "lora_B.weight": mx.ones((64, 2))}, "expected two dimensions"),
    ({Q + "lora_A.weight": mx.ones((64, 2)), Q + "lora_B.weight": mx.ones((2, 64))}, r"expected \[2, in\]"),
    ({Q + "lora_A.weight": mx.ones((2, 64), mx.int32), Q + "lora_B.weight": mx.ones((64, 2))}, "is I32; readable"),
    ({"base_model.model.model.embed_tokens.lora_embedding_A": mx.ones((2, 64))}, "low-rank terms of embeddings"),
    ({"base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight": mx.ones((2, 64))}, "terms of experts"),
])
def test_peft_tensors_that_are_refused(tmp_path, tensors, said):
    path = write_pairs(tmp_path / "x", PEFT, ("adapter_model.safetensors", tensors))
    with pytest.raises((gomlx.Error, NotImplementedError), match=said):
        gomlx.read_adapter(path)


@pytest.mark.parametrize("name, config, tensors, said", [
    ("adapters", {"fine_tune_type": "ia3"}, {}, "fine_tune_type is 'ia3'"),
    ("adapters", {"fine_tune_type": "lora"}, {}, "lora_parameters is None"),
    ("adapters", {"lora_parameters": {"rank": 2}}, {}, r"lora_parameters\.scale is None"),
    ("adapters", {"lora_parameters": {"rank": -1, "scale": 1}}, {}, r"lora_parameters\.rank is -1"),
    ("adapters", {"lora_parameters": {"rank": 3, "scale": 1}}, {}, "expected .* of rank 3"),
    ("adapters", {"lora_parameters": {"rank": 2, "scale": 1}}, {"model.norm.weight": mx.ones(4)}, "no tensor of an"),
    ("adapters", {"lora_parameters": {"rank": 2, "scale": 1}, "fine_tune_type": "dora"}, {}, "has no m"),
    ("adapters", {"fine_tune_type": "full"}, {"model.a.scales": mx.ones(2)}, "quantised matrix"),
    ("adapters", None, {}, "no adapter_config.json beside"),
    ("adapter", {"rank": 2, "alpha": None}, {}, "alpha is None"),
    ("adapter", {"alpha": 3}, {}, "rank is None, expected the rank that alpha belongs to"),
    ("adapter", {"rank": 7}, {}, "of rank 7"),
])
def test_files_of_mlx_lm_and_go_mlx_that_are_refused(tmp_path, name, config, tensors, said):
    tensors = pair(mx.ones((64, 2)), mx.ones((2, 32))) | tensors
    path = write_pairs(tmp_path / "x", config, (name + ".safetensors", tensors))
    with pytest.raises((gomlx.Error, NotImplementedError, FileNotFoundError), match=said):
        gomlx.read_adapter(path)


def test_an_adapter_of_another_model_is_refused_in_every_form(engine, folder, tmp_path):
    other = CONFIG | {"hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}
    checkpoints.save_safetensors(tmp_path / "other", other, checkpoints.random_weights(other))
    small = exact(tmp_path / "other")
    for form in FORMS:
        path = saved(adapter_for(engine), tmp_path, form, engine)
        with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.down_proj: a is \[4, 96\] and b \[64, 4\].*"
                                             r"\[32, 96\]"):
            gomlx.read_adapter(path, small)
        with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.down_proj: a is"):
            gomlx.fuse(tmp_path / "other", path, tmp_path / "out", text=None)
        assert not (tmp_path / "out").exists()
    wrong = (tmp_path / "adapter.gguf").read_bytes().replace(b"llama", b"qwen3")
    (tmp_path / "wrong.gguf").write_bytes(wrong)
    with pytest.raises(ValueError, match="an adapter for 'qwen3', and the model is 'llama'"):
        gomlx.read_adapter(tmp_path / "wrong.gguf", engine)


def test_damaged_files(engine, tmp_path):
    """Cut anywhere, and with any byte changed: an exception, or an adapter that is checked."""
    adapter = adapter_for(engine, 2, chosen=lambda name: "0.self_attn" in name)
    rng = np.random.default_rng(0)
    for form in FORMS:
        path = saved(adapter, tmp_path, form, engine)
        file = path if form == "gguf" else next(path.glob("*.safetensors"))
        whole = file.read_bytes()
        header = 600 if form == "gguf" else 8 + struct.unpack("<Q", whole[:8])[0]
        damaged = [whole[:n] for n in (0, 3, 8, 20, header // 2, header, len(whole) - 1)]
        for _ in range(150):
            changed = bytearray(whole)
            changed[rng.integers(header)] = rng.integers(256)
            damaged.append(bytes(changed))
        for one in damaged:
            file.write_bytes(one)
            try:
                gomlx.read_adapter(path, engine)
            except (gomlx.Error, ValueError, NotImplementedError, FileNotFoundError):
                pass
        file.write_bytes(whole)
        assert_alike(adapter, gomlx.read_adapter(path, engine))
    config = tmp_path / "peft" / "adapter_config.json"
    for text in ("", "[]", "{", "[" * 100000, '{"r": ' + "9" * 5000 + "}"):
        config.write_text(text)
        with pytest.raises((gomlx.Error, FileNotFoundError, NotImplementedError)):
            gomlx.read_adapter(tmp_path / "peft")


# ---- a model with an adapter in its weights ----

def fused_by_hand(weights_of, adapter):
    out = dict(weights_of)
    for layer, term in adapter.terms.items():
        w = out[layer + ".weight"].astype(np.float64) + products(adapter)[layer]
        if term.magnitude is not None:
            w *= np.asarray(term.magnitude, np.float64)[:, None] / np.linalg.norm(w, axis=1, keepdims=True)
        out[layer + ".weight"] = w
    return out | {name: np.asarray(array) for name, array in adapter.full.items()}


def arrays_of(folder):
    return {name: array for file in sorted(folder.glob("*.safetensors")) for name, array in mx.load(str(file)).items()}


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_fused_weights_are_by_definition(engine, folder, tmp_path, dora):
    full = {"lm_head.weight": mx.random.normal((100, 64)), "model.norm.weight": mx.ones(64) * 1.5}
    adapter = Adapter(adapter_for(engine, dora=dora, chosen=lambda name: "up" not in name).terms, full)
    base = checkpoints.random_weights(CONFIG)
    want = fused_by_hand(base, adapter)
    report = gomlx.fuse(folder, adapter, tmp_path / "out", text=None)
    assert report["format"] == "huggingface" and report["requantised"] == [] and report["rounding"] is None
    assert report["fused"] == sorted([*(layer + ".weight" for layer in adapter.terms), *full])
    found = arrays_of(tmp_path / "out")
    assert found.keys() == want.keys()
    for name, value in want.items():
        if name in report["fused"]:
            np.testing.assert_allclose(np.asarray(found[name]), value, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(np.asarray(found[name]), value)
    checkpoints.save_gguf(str(tmp_path / "base.gguf"), CONFIG, base)
    gomlx.fuse(tmp_path / "base.gguf", adapter, tmp_path / "out.gguf", text=None)       # where rows are permuted
    np.testing.assert_allclose(logits(tmp_path / "out.gguf"), logits(tmp_path / "out"), rtol=1e-4, atol=1e-4)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == json.loads(open(os.path.join(folder, "config.json")).read())


BLOCKS = SMALL | {"hidden_size": 256, "intermediate_size": 512}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ3_S", "BF16"])
def test_gguf_keeps_the_forms_of_its_tensors(tmp_path, kind):
    path, out = str(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    checkpoints.save_gguf(path, BLOCKS, checkpoints.random_weights(BLOCKS), kind)
    adapter = adapter_for(exact(path), chosen=lambda name: name.endswith(("q_proj", "down_proj")))
    up = "model.layers.0.mlp.up_proj.weight"
    adapter = Adapter(adapter.terms, {up: mx.random.normal((512, 256))})
    report = gomlx.fuse(path, adapter, out, text=None)
    before, after = ({one.name: one for one in gguf.GGUFReader(file).tensors} for file in (path, out))
    assert before.keys() == after.keys()
    types, held = checkpoints.dequantised(out)
    old = checkpoints.dequantised(path)[1]
    want = fused_by_hand(old, adapter)
    for name, tensor in before.items():
        changed = name.endswith(("attn_q.weight", "ffn_down.weight")) or name == "blk.0.ffn_up.weight"
        assert after[name].tensor_type == (gguf.GGMLQuantizationType.Q6_K if changed and kind == "IQ3_S"
                                           else tensor.tensor_type)
        if not changed:
            np.testing.assert_array_equal(after[name].data, tensor.data)
            continue
        ours = checkpoints.hf_name(name)
        error = np.linalg.norm(held[ours] - want[ours]) / np.linalg.norm(want[ours])
        assert error < {"Q8_0": 0.01, "Q6_K": 0.02, "IQ3_S": 0.02, "BF16": 0.003}.get(kind, 0.1)
    if kind == "BF16":
        assert report["rounding"] is None and not report["requantised"]
    else:
        missed = sum(np.sum((held[name] - want[name]) ** 2) for name in report["fused"])
        moved = sum(np.sum((want[name] - old[name]) ** 2) for name in report["fused"])
        assert len(report["requantised"]) == 5 and math.isclose(report["rounding"], math.sqrt(missed / moved),
                                                                 rel_tol=1e-3)


@pytest.mark.parametrize("quantize", ["mlx-4", "mlx-8", "mxfp4"])
def test_mlx_folders_keep_the_forms_of_their_tensors(tmp_path, quantize):
    checkpoints.save_safetensors(str(tmp_path / "base"), BLOCKS, checkpoints.random_weights(BLOCKS), "BF16")
    gomlx.convert(tmp_path / "base", tmp_path / "mlx", quantize)
    adapter = adapter_for(exact(tmp_path / "mlx"), chosen=lambda name: name.endswith(("q_proj", "down_proj")))
    report = gomlx.fuse(tmp_path / "mlx", adapter, tmp_path / "out", text=None)
    assert report["format"] == "mlx" and len(report["requantised"]) == 4 and 0 < report["rounding"] < 0.5
    before, after = arrays_of(tmp_path / "mlx"), arrays_of(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.dtype == after[name].dtype and array.shape == after[name].shape
        stem = name.rpartition(".")[0]
        assert same(array, after[name]) == (stem not in adapter.terms), name
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    whole = {path.name: weights.joined(weights.folder_tensors(str(path)), config, str(path))
             for path in (tmp_path / "mlx", tmp_path / "out")}
    for layer, product in products(adapter).items():
        old, new = (np.asarray(weights.decode((w := whole[one][layer + ".weight"]).form, w.read()), np.float64)
                    for one in ("mlx", "out"))
        assert np.linalg.norm(new - old - product) < 0.5 * np.linalg.norm(product)
    assert np.isfinite(logits(tmp_path / "out")).all()


def test_fuse_compares_the_result_with_the_parts(tmp_path):
    with gomlx.load("fable") as model:
        adapter = adapter_for(model._engine, scale=1.0)
        path = saved(adapter, tmp_path, "gguf", model)
    seen = []
    exactly = gomlx.fuse("fable", path, tmp_path / "f32.gguf", "f32", progress=seen.append)
    assert exactly["kl"] < 1e-6 and exactly["why_no_kl"] is None and seen == sorted(seen) and seen[-1] == 1
    kept = gomlx.fuse("fable", adapter, tmp_path / "q8.gguf", text="Once upon a time there was a dog.")
    assert 0 < kept["kl"] < 1e-2 and 0 < kept["rounding"] < 0.1 and len(kept["requantised"]) == len(adapter.terms)
    coarse = gomlx.fuse("fable", adapter, tmp_path / "q4.gguf", "q4_k_m")
    assert coarse["kl"] > kept["kl"]
    unserved = gomlx.fuse("fable", Adapter(adapter.terms, {"model.norm.weight": mx.ones(256)}), tmp_path / "full.gguf")
    assert unserved["kl"] is None and "replaces 1 weights" in unserved["why_no_kl"]
    with pytest.raises(FileExistsError):
        gomlx.fuse("fable", adapter, tmp_path / "q8.gguf")
    with pytest.raises(ValueError, match="no layer 'lm_head' .its head is its embedding"):
        gomlx.fuse("fable", Adapter({"lm_head": Term(mx.ones((1, 256)), mx.ones((2048, 1)), 1.0)}), tmp_path / "x.gguf")
    with pytest.raises(ValueError, match="q4_k_m is a type of GGUF"):
        gomlx.fuse("fable", adapter, tmp_path / "x", "q4_k_m")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["adapter.gguf", "f32.gguf", "full.gguf", "q4.gguf",
                                                              "q8.gguf"]


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gemma4", "gpt_oss"])
def test_what_is_served_beside_a_model_is_what_is_fused(shared, tmp_path, name, dora):
    """In other architectures, and by way of the other container."""
    source = os.path.join(shared, "data", "models", name)
    if not os.path.isdir(source):
        pytest.skip(f"no {name} in the test data")
    adapter = adapter_for(exact(source), scale=0.5, chosen=lambda layer: ".self_attn." in layer, dora=dora)
    for out in ("out", "out.gguf"):
        assert gomlx.fuse(source, adapter, tmp_path / out, "f32")["kl"] < 1e-6


@pytest.mark.parametrize("form", ["F32", "F16", "Q8_0"])
def test_fuse_refuses_weights_that_are_not_finite(tmp_path, form):
    """What overflows in float32, and what does in the form that it is written in."""
    base, layer = tmp_path / "base.gguf", "model.layers.1.mlp.up_proj"
    checkpoints.save_gguf(str(base), BLOCKS, checkpoints.random_weights(BLOCKS), form)
    overflowing = Term(mx.ones((1, 256)), mx.full((512, 1), 1e20), 1e25)
    beyond_half = Term(mx.ones((1, 256)), mx.full((512, 1), 1e20), 1.0)
    for term in (overflowing, *([beyond_half] if form != "F32" else [])):
        for text in (None, "Once upon a time"):
            with pytest.raises(ValueError, match=r"ffn_up\.weight: with the adapter it is not finite"):
                gomlx.fuse(base, Adapter({layer: term}), tmp_path / "out.gguf", text=text)
    with pytest.raises(ValueError, match=r"ffn_up\.weight: with the adapter it is not finite in F16"):
        gomlx.fuse(base, Adapter({layer: beyond_half}), tmp_path / "out.gguf", "f16", text=None)
    for kind in ("q8_0", "q4_k_m", "q4_0"):
        with pytest.raises(ValueError, match=r"ffn_up\.weight: with the adapter it is not finite in Q"):
            gomlx.fuse(base, Adapter({layer: beyond_half}), tmp_path / "out.gguf", kind, text=None)
    assert os.listdir(tmp_path) == ["base.gguf"]


def test_fuse_refuses_groups_that_are_not_finite(tmp_path):
    """Values that are, of which the least and the greatest are too far apart for a scale."""
    base, layer = tmp_path / "base", "model.layers.1.mlp.up_proj"
    checkpoints.save_safetensors(str(base), BLOCKS, checkpoints.random_weights(BLOCKS))
    beyond = Adapter({layer: Term(mx.array([[1.0, -1.0] * 128]), mx.full((512, 1), 1e38), 3.0)})
    with pytest.raises(ValueError, match=r"up_proj\.weight: with the adapter it is not finite in"):
        gomlx.fuse(base, beyond, tmp_path / "out", "mlx-4", text=None)
    assert os.listdir(tmp_path) == ["base"]


def test_a_divergence_that_is_no_number_is_not_told_as_0(tmp_path, monkeypatch):
    adapter = Adapter({"x": Term(mx.zeros((1, 2)), mx.zeros((2, 1)), 1.0)})
    for found, want in (([0.5, 0.5], 0.0), ([0.25, 0.75], math.log(2) - math.log(3) / 2), ([math.nan, 0.5], None)):
        both = iter([mx.log(mx.array([[0.5, 0.5]])), mx.log(mx.array([found]))])
        monkeypatch.setattr(difference, "log_probabilities", lambda *_, both=both: next(both))
        with gomlx.load("fable") as model:
            path = model.info["path"]
        said = difference.between(path, adapter, path, "Once upon a time")
        assert said["kl"] == (None if want is None else pytest.approx(want, abs=1e-6))
        assert (said["why_no_kl"] is None) == (want is not None) and "not finite" in (said["why_no_kl"] or "not finite")


def test_fuse_leaves_nothing_when_it_fails(folder, engine, tmp_path):
    def fail(done):
        raise KeyboardInterrupt

    checkpoints.save_gguf(str(tmp_path / "base.gguf"), CONFIG, checkpoints.random_weights(CONFIG))
    for source, out in ((tmp_path / "base.gguf", "x.gguf"), (folder, "x")):
        with pytest.raises(KeyboardInterrupt):
            gomlx.fuse(source, adapter_for(engine), tmp_path / out, progress=fail, text=None)
    assert os.listdir(tmp_path) == ["base.gguf"]


# ---- the commands ----

def run(capfd, *arguments):
    status = cli.main([str(one) for one in arguments])
    said = capfd.readouterr()
    return status, said.out, said.err


def test_commands(capfd, folder, engine, tmp_path):
    adapter = adapter_for(engine, base_model="org/name")
    for form in ("peft", "gguf"):
        saved(adapter, tmp_path, form, engine)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "adapter_model.bin").write_bytes(b"")
    status, out, err = run(capfd, "adapters", tmp_path)
    assert status == 0 and err.startswith("gomlx: not read: ") and "is a pickle" in err
    assert [line.split()[0] for line in out.splitlines()] == ["FORM", "gguf", "peft"] and "name" in out
    status, out, _ = run(capfd, "adapters", tmp_path / "peft", "--terms", "--json")
    [one] = json.loads(out)["adapters"]
    assert status == 0 and one["form"] == "peft" and one["parameters"] == adapter.count and len(one["layers"]) == 14
    assert one["layers"][0] == {"layer": "model.layers.0.mlp.down_proj", "rank": 4, "in": 96, "out": 64, "scale": 2.0,
                                "dora": False}
    status, out, err = run(capfd, "adapters", tmp_path / "peft", "--form", "mlx-lm", "-o", tmp_path / "other")
    assert status == 0 and err == f"gomlx: wrote {tmp_path / 'other'}\n"
    assert_alike(adapter, gomlx.read_adapter(tmp_path / "other"))
    status, _, err = run(capfd, "adapters", tmp_path / "peft", "--form", "mlx-lm")
    assert status == 1 and "belong together" in err
    status, _, err = run(capfd, "adapters", tmp_path / "nothing")
    assert status == 1 and "no such file" in err
    status, out, err = run(capfd, "fuse", folder, tmp_path / "peft", tmp_path / "fused", "--no-comparison")
    assert status == 0 and out == "" and "14 weights have changed" in err and (tmp_path / "fused").is_dir()
    status, out, _ = run(capfd, "fuse", "fable", tmp_path / "peft", tmp_path / "x.gguf", "--json")
    assert status == 1 and out == "" and not (tmp_path / "x.gguf").exists()
