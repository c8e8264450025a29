"""Every weight format of GGUF: the values are those of PyPI gguf bit for bit, the logits those of transformers on these
values; formats that the engine does not read are named in the error."""
import gc
import os
import subprocess

import checkpoints
import llama_reference
import numpy as np
import pytest
from checkpoints import SMALL
from llama_reference import difference

import gomlx
from gomlx import _gomlx, core, loading

EXACT = {"activations": "float32", "kv_dtype": "float32"}
FLOAT32 = 1e-5
FILES = ("BF16", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K",
         "Q8_0")
FORMATS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
           "IQ4_XS", "MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0",
           "Q8_K")
BLOCKS = FORMATS[2:]
WIDE = SMALL | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 101, "tie_word_embeddings": False}


def fable(shared, kind):
    return os.path.join(shared, "data", "models", "fable-gguf", f"fable-{kind}.gguf")


def same_bits(model, weights):
    names = set(model.weight_names())
    assert names == weights.keys()
    for name, want in weights.items():
        got = np.asarray(model.weight(name))
        assert got.shape == want.shape and got.dtype == np.float32, name
        np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(want).view(np.uint32), err_msg=name)


# ---- trained weights, quantised by llama.cpp ----

@pytest.fixture(scope="module", params=[*FILES, "in the package"])
def file(request):
    """(path, {name: type}, {name: values}) of a GGUF file of fable."""
    path = loading.PACKAGED_FILE
    if request.param in FILES:
        path = fable(request.getfixturevalue("shared"), request.param)
    return path, *checkpoints.dequantised(path)


def test_values_of_fable(file):
    path, types, weights = file
    model = _gomlx.load_model(path)
    same_bits(model, weights)
    counts = {}
    for name, kind in types.items():
        counts[kind] = counts.get(kind, 0) + weights[name].size
    assert model.info()["weight_types"] == counts
    model.close()


def test_logits_of_fable(file):
    """Against NumPy in float64 on the same values."""
    path, _, weights = file
    with gomlx.load(path, **EXACT) as model:
        metadata = model.info["metadata"]
        config = SMALL | {"hidden_size": 256, "num_hidden_layers": metadata["llama.block_count"], "head_dim": 64,
                          "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"]}
        ids = model.tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved to play. " * 9)
        assert len(ids) > 150
        assert difference(np.asarray(model.logits(ids)), llama_reference.logits(config, weights, ids)) <= FLOAT32


def test_logits_of_fable_are_those_of_transformers(file, shared):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path, _, weights = file
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(shared, "data", "models", "fable"), dtype=torch.float32, attn_implementation="eager")
    oracle.load_state_dict({"lm_head.weight": torch.from_numpy(weights["model.embed_tokens.weight"])} | {
        name: torch.from_numpy(value) for name, value in weights.items()})
    with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as text, \
            gomlx.load(path, **EXACT) as model, torch.no_grad():
        ids = model.tokenizer.encode(text.read(4000))[:256]
        assert difference(np.asarray(model.logits(ids)), oracle(torch.tensor([ids])).logits[0].numpy()) <= FLOAT32


# ---- random weights ----

@pytest.mark.parametrize("kind", FORMATS)
def test_values_and_logits_of_a_format(tmp_path, kind):
    """101 rows in the head and the embedding: the last panel of a packed matrix is not full."""
    path = tmp_path / "model.gguf"
    weights = checkpoints.save_gguf(path, WIDE, checkpoints.random_weights(WIDE), kind)
    assert checkpoints.dequantised(path)[0]["model.layers.0.mlp.up_proj.weight"] == kind
    model = _gomlx.load_model(str(path), **EXACT)
    same_bits(model, weights)
    ids = np.random.default_rng(1).integers(0, WIDE["vocab_size"], 60).tolist()
    want = llama_reference.logits(WIDE, weights, ids)
    assert difference(np.asarray(model.logits([ids])[0]), want) <= FLOAT32
    model.close()
    fast = _gomlx.load_model(str(path))
    rounded = kind == "BF16" and _gomlx.multiplies_bfloat16()
    exact = kind in ("F16", "BF16") and not rounded
    assert fast.info()["activations"] == ("bfloat16" if rounded else "float32" if exact else "int8")
    assert fast.info()["kv_dtype"] == ("float32" if exact else "float16")
    error = difference(np.asarray(fast.logits([ids])[0]), want)
    assert error <= FLOAT32 if exact else FLOAT32 < error < 0.05    # random weights amplify: see test_quality
    fast.close()


@pytest.mark.parametrize("kind", BLOCKS)
def test_rows_have_the_bits_that_they_have_alone(tmp_path, kind):
    """In a batch, in a prompt of any length, on any number of threads; the widest rows take two chains of sums."""
    config = WIDE | {"intermediate_size": 4352, "num_hidden_layers": 1}
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, config, checkpoints.random_weights(config), kind)
    sequences = [np.random.default_rng(n).integers(0, 101, n).tolist() for n in (1, 2, 19, 70, 150, 1)]
    model = _gomlx.load_model(path, threads=1)
    alone = [np.asarray(model.logits([ids])[0]).view(np.uint32).copy() for ids in sequences]
    for n in (1, 2, 3, 16, 17, 63, 64, 65, 81, 130):
        np.testing.assert_array_equal(np.asarray(model.logits([sequences[4][:n]])[0]).view(np.uint32), alone[4][:n])
    model.close()
    for threads in (1, 3):
        model = _gomlx.load_model(path, threads=threads)
        for want, got in zip(alone, model.logits(sequences)):
            np.testing.assert_array_equal(np.asarray(got).view(np.uint32), want)
        model.close()


@pytest.mark.parametrize("kind", BLOCKS)
def test_memory_is_the_bytes_of_the_file(tmp_path, kind):
    """What plan and engine say of weights, and what is allocated once they are packed, before the second pass: for
    them, and some 100 kB for positions."""
    config = WIDE | {"vocab_size": 96, "num_hidden_layers": 4}
    path = tmp_path / "model.gguf"
    checkpoints.save_gguf(path, config, checkpoints.random_weights(config), kind)
    held = sum(int(tensor.n_bytes) for tensor in checkpoints.gguf.GGUFReader(path).tensors)
    assert gomlx.plan_memory(path, context=64).weight_bytes == held
    gc.collect()
    before = core.get_active_memory()
    model = _gomlx.load_model(str(path), context_length=64)
    assert model.info()["weight_bytes"] == held
    model.logits([[1]]), model.logits([[1]])
    gc.collect()
    core.clear_cache()
    assert held <= core.get_active_memory() - before < 1.02 * held + 131072
    model.close()


@pytest.mark.parametrize("kind", ["Q8_1", "NVFP4"])
def test_any_unread_format_is_named(tmp_path, kind):
    gguf = checkpoints.gguf
    path, wanted = tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[wanted]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(256)
    writer.add_block_count(1)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_vocab_size(32)
    writer.add_tensor("token_embd.weight", np.zeros((32, 256 // block * size), np.uint8), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(NotImplementedError, match=f"token_embd.weight is of type {kind}"):
        _gomlx.load_model(str(path))


# ---- mixtures that llama-quantize writes ----

def run_peer(shared, name, *arguments):
    program = os.path.join(os.environ.get("GOMLX_PEERS", os.path.join(shared, "peers")), name)
    if not os.access(program, os.X_OK):
        pytest.skip(f"{program} is not there: llama.cpp's program")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode < 0:
        pytest.skip(f"{program} does not run on this machine (signal {-done.returncode})")
    assert done.returncode == 0, done.stderr[-2000:]


def llama_quantize(shared, source, path, kind, *options):
    run_peer(shared, "llama-quantize", *options, source, path, kind, "2")


@pytest.fixture(scope="module")
def importance(shared, tmp_path_factory):
    """What llama.cpp says of which weights of fable matter; it writes the smallest types with nothing less."""
    folder = tmp_path_factory.mktemp("importance")
    with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as file:
        (folder / "text").write_text(file.read(8000), encoding="utf-8")
    run_peer(shared, "llama-imatrix", "-m", fable(shared, "BF16"), "-f", folder / "text", "-o", folder / "imatrix.gguf",
             "-c", "128", "--chunks", "4", "-t", "2")
    return folder / "imatrix.gguf"


@pytest.mark.parametrize("kind, types", [("Q2_K", {"Q2_K", "Q3_K"}), ("Q3_K_S", {"Q3_K"}), ("Q3_K_L", {"Q3_K", "Q5_K"}),
                                         ("IQ4_NL", {"IQ4_NL"}), ("IQ4_XS", {"IQ4_XS"}), ("TQ1_0", {"TQ1_0"}),
                                         ("TQ2_0", {"TQ2_0"}), ("IQ1_S", {"IQ1_S"}), ("IQ2_XXS", {"IQ2_XXS"}),
                                         ("IQ2_M", {"IQ2_S", "IQ3_S"}), ("IQ3_XXS", {"IQ3_XXS"}), ("IQ3_S", {"IQ3_S"})])
def test_mixtures(request, shared, tmp_path, kind, types):
    path = tmp_path / "model.gguf"
    options = ["--imatrix", request.getfixturevalue("importance")] if kind[:3] in ("IQ1", "IQ2", "IQ3") else []
    llama_quantize(shared, fable(shared, "BF16"), path, kind, *options)
    found, weights = checkpoints.dequantised(path)
    assert types <= set(found.values())
    with gomlx.load(str(path)) as model:
        ids = model.tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved to play. " * 3)
        fast = np.asarray(model.logits(ids))
    model = _gomlx.load_model(str(path), **EXACT)
    same_bits(model, weights)
    coarse = kind in ("TQ1_0", "TQ2_0")          # rounded to three values, a trained model says hardly anything
    assert 0 < difference(fast, np.asarray(model.logits([ids])[0])) <= (0.03 if coarse else 0.012)
    model.close()


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0",
                                  "Q8_K"])
def test_mixture_of_experts_of_a_format(shared, tmp_path, kind):
    """Experts as random blocks: their values, rows with the bits that they have alone, and products near the exact
    path's: of most tokens, by themselves, as some take another route."""
    gomlx.convert(os.path.join(shared, "data", "models", "qwen3_moe"), tmp_path / "bf16.gguf", "bf16")
    path = tmp_path / "model.gguf"
    held = checkpoints.swap_blocks(tmp_path / "bf16.gguf", path, lambda name: "_exps." in name, kind)
    exact = _gomlx.load_model(str(path), **EXACT)
    assert len(held) == 3 * exact.info()["n_layers"]
    for name, want in held.items():
        _, layer, part, _ = name.split(".")
        got = exact.weight(f"model.layers.{layer}.mlp.experts.{part[4:-5]}_proj.weight")
        np.testing.assert_array_equal(np.asarray(got).reshape(want.shape), want)
    sequences = [np.random.default_rng(n).integers(3, 2000, n).tolist() for n in (1, 2, 40, 300)]
    with gomlx.load(str(path), threads=1) as fast:
        assert kind in fast.info["weight_types"]
        want = [np.asarray(fast.logits(ids)).copy() for ids in sequences]
        apart = [difference(np.asarray(fast.logits([token])), np.asarray(exact.logits([[token]])[0]))
                 for token in sequences[2][:15]]
        assert 0 < np.median(apart) <= 0.05
        np.testing.assert_array_equal(np.asarray(fast.logits(sequences[3][:130])), want[3][:130])
    exact.close()
    model = _gomlx.load_model(str(path), threads=3)
    for one, got in zip(want, model.logits(sequences)):
        np.testing.assert_array_equal(np.asarray(got), one)
    model.close()


def test_mixture_of_experts_in_mxfp4(shared, tmp_path):
    gomlx.convert(os.path.join(shared, "data", "models", "qwen3_moe"), tmp_path / "bf16.gguf", "bf16")
    path = tmp_path / "model.gguf"
    llama_quantize(shared, tmp_path / "bf16.gguf", path, "MXFP4_MOE")
    exact, stacks = _gomlx.load_model(str(path), **EXACT), 0
    for tensor in checkpoints.gguf.GGUFReader(path).tensors:
        _, layer, part, *_ = [*tensor.name.split("."), "", ""]
        if part.endswith("_exps"):
            assert tensor.tensor_type.name == "MXFP4"
            want = checkpoints.gguf.dequantize(tensor.data, tensor.tensor_type)
            got = exact.weight(f"model.layers.{layer}.mlp.experts.{part[4:-5]}_proj.weight")
            np.testing.assert_array_equal(np.asarray(got).reshape(want.shape), want)
            stacks += 1
    with gomlx.load(str(path)) as fast:
        assert stacks == 3 * fast.info["metadata"]["qwen3moe.block_count"]
        assert fast.info["activations"] == "int8" and "MXFP4" in fast.info["weight_types"]
        ids = fast.tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved to play. " * 3)
        apart = difference(np.asarray(fast.logits(ids)), np.asarray(exact.logits([ids])[0]))
        assert 0 < apart <= 0.03                # some routes change
    exact.close()
