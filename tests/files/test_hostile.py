"""Files from outside are hostile: cut short, damaged, contradicting themselves. Each is an exception that names the
file and what is wrong with it; nothing crashes, hangs or takes memory that the file's size does not explain."""
import json
import os
import shutil
import struct

import numpy as np
import pytest
from architectures import CONFIGS, Golden
from checkpoints import SMALL, random_weights, save_safetensors

import gomlx
from gomlx import _gomlx
from gomlx.loading import PACKAGED_FILE

REFUSALS = (gomlx.Error, OSError, ValueError, NotImplementedError, MemoryError)


def refused(path, *words, kind=REFUSALS, **options):
    """Loading fails, and the message has the file's name (of a folder: of one in it) and these words."""
    with pytest.raises(kind) as caught:
        _gomlx.load_model(str(path), **options)
    text = str(caught.value)
    for word in (os.path.basename(path), *words):
        assert word in text, text


def works(model):
    """Whatever was loaded can be used: ids in range, or the error that no logit is a number."""
    session = model.new_session()
    for options in ({}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2}):
        try:
            ids = [token.id for token in _gomlx.stream(session, None, [1, 2, 3], max_tokens=4, **options)]
        except ValueError as error:
            assert "no token is left to draw" in str(error)
            continue
        assert all(0 <= token < model.vocab_size for token in ids)
    model.close()


def loads_or_refuses(path):
    try:
        model = _gomlx.load_model(str(path), threads=1)
    except REFUSALS as error:
        assert os.path.basename(path) in str(error), error
        return False
    works(model)
    return True


# ---- a GGUF file by hand ----

def text_bytes(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, value):
    """Of type u32, f32, string or array of strings by the Python type; bytes are type and value as they are."""
    if isinstance(value, bytes):
        body = value
    elif isinstance(value, int):
        body = struct.pack("<II", 4, value)
    elif isinstance(value, float):
        body = struct.pack("<If", 6, value)
    elif isinstance(value, str):
        body = struct.pack("<I", 8) + text_bytes(value)
    else:
        body = struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text_bytes(one) for one in value)
    return text_bytes(key) + body


METADATA = {"general.architecture": "llama", "llama.embedding_length": 32, "llama.block_count": 1,
            "llama.feed_forward_length": 64, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
            "llama.context_length": 256, "llama.vocab_size": 40}
TENSORS = {"token_embd.weight": (40, 32), "blk.0.attn_norm.weight": (32,), "blk.0.attn_q.weight": (32, 32),
           "blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (16, 32), "blk.0.attn_output.weight": (32, 32),
           "blk.0.ffn_norm.weight": (32,), "blk.0.ffn_gate.weight": (64, 32), "blk.0.ffn_up.weight": (64, 32),
           "blk.0.ffn_down.weight": (32, 64), "output_norm.weight": (32,)}


def write_gguf(path, metadata=METADATA, tensors=TENSORS, types=None, fill=None):
    """Tensors of F32, or types[name] as (type id, bytes of data); fill[name] is the F32 value of all elements."""
    rng, infos, data = np.random.default_rng(0), b"", b""
    for name, shape in tensors.items():
        kind, raw = (types or {}).get(name, (0, None))
        if raw is None:
            value = rng.normal(size=shape) * 0.1 if name not in (fill or {}) else np.full(shape, fill[name])
            raw = value.astype(np.float32).tobytes()
        infos += text_bytes(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items()) + infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
    return str(path)


def test_the_sample_is_good(tmp_path):
    works(_gomlx.load_model(write_gguf(tmp_path / "good.gguf")))


@pytest.mark.parametrize(("key", "value", "words"), [
    ("general.architecture", "nonsense", ["architecture", "nonsense", "llama"]),
    ("general.architecture", 5, ["general.architecture", "string"]),
    ("general.architecture", None, ["general.architecture", "missing"]),
    ("llama.embedding_length", None, ["llama.embedding_length", "missing"]),
    ("llama.embedding_length", "32", ["llama.embedding_length", "string", "number"]),
    ("llama.embedding_length", 0, ["embedding_length", "0"]),
    ("llama.embedding_length", 48, ["token_embd.weight", "(40,32)", "(40,48)"]),
    ("llama.embedding_length", 2**32 - 1, ["embedding_length", "4294967295"]),
    ("llama.block_count", 0, ["block_count", "0"]),
    ("llama.block_count", 2, ["blk.1.attn_norm.weight", "missing"]),
    ("llama.block_count", 2**31, ["block_count"]),
    ("llama.attention.head_count", 0, ["attention.head_count", "0"]),
    ("llama.attention.head_count", 2**31, ["attention.head_count"]),
    ("llama.attention.head_count", ["2"], ["llama.attention.head_count", "array"]),
    ("llama.attention.head_count_kv", 0, ["attention.head_count_kv", "0"]),
    ("llama.attention.head_count_kv", 7, ["7", "2"]),
    ("llama.attention.key_length", 15, ["head_dim", "15"]),
    ("llama.attention.key_length", 4096, ["head_dim", "4096"]),
    ("llama.attention.value_length", 8, ["8", "16"]),
    ("llama.feed_forward_length", 0, ["feed_forward_length", "0"]),
    ("llama.context_length", 0, ["context_length", "0"]),
    ("llama.context_length", struct.pack("<Iq", 11, -5), ["context_length", "-5"]),
    ("llama.context_length", struct.pack("<IQ", 10, 2**64 - 1), ["llama.context_length", "18446744073709551615"]),
    ("llama.vocab_size", 2**32 - 1, ["vocab_size"]),
    ("llama.rope.freq_base", 0.0, ["rope", "0"]),
    ("llama.rope.freq_base", float("nan"), ["rope", "nan"]),
    ("llama.rope.freq_base", float("inf"), ["rope", "inf"]),
    ("llama.rope.dimension_count", 17, ["rope", "17"]),
    ("llama.rope.dimension_count", 2**31, ["rope"]),
    ("llama.rope.scaling.type", "spiral", ["rope", "spiral"]),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), ["epsilon", "nan"]),
    ("llama.attention.layer_norm_rms_epsilon", -1.0, ["epsilon", "-1"]),
    ("llama.attention.sliding_window", struct.pack("<Ii", 5, -3), ["sliding_window", "-3"]),
    ("llama.expert_count", 8, ["expert", "8"]),
    ("general.alignment", 3, ["general.alignment", "3"]),
    ("general.alignment", 0, ["general.alignment", "0"]),
    ("split.count", 3, ["split", "3"]),
])
def test_gguf_metadata(tmp_path, key, value, words):
    metadata = {**METADATA, key: value}
    if value is None:
        del metadata[key]
    refused(write_gguf(tmp_path / "bad.gguf", metadata), *words)


@pytest.mark.parametrize("scaling", [
    {"type": "linear", "factor": 0.0}, {"type": "linear", "factor": float("nan")}, {"type": "yarn", "factor": -2.0},
    {"type": "yarn", "factor": 4.0, "original_context_length": 0},
    {"type": "yarn", "factor": 4.0, "yarn_beta_fast": float("nan")},
])
def test_gguf_rope_scaling(tmp_path, scaling):
    metadata = METADATA | {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    refused(write_gguf(tmp_path / "bad.gguf", metadata), "rope")


def test_gguf_tensors(tmp_path):
    path = tmp_path / "bad.gguf"
    for name, shape in TENSORS.items():
        without = {key: value for key, value in TENSORS.items() if key != name}
        refused(write_gguf(path, tensors=without), name, "missing")
        refused(write_gguf(path, tensors=TENSORS | {name: (*shape[:-1], shape[-1] + 32)}), name, "expected")
        refused(write_gguf(path, tensors=TENSORS | {name: (*shape, 1)}), name, "expected")
        refused(write_gguf(path, types={name: (999, bytes(16))}), name, "999", kind=NotImplementedError)
        refused(write_gguf(path, types={name: (16, bytes(4096 * 4))}), name)      # IQ2_XXS
    refused(write_gguf(path, tensors=TENSORS | {"rope_freqs.weight": (3,)}), "rope_freqs.weight", "3", "8")
    for value in (0.0, -1.0, float("nan"), float("inf")):
        path = write_gguf(path, tensors=TENSORS | {"rope_freqs.weight": (8,)}, fill={"rope_freqs.weight": value})
        refused(path, "rope_freqs.weight")
    for shape in ((2**62, 4), (2**31, 2**31, 2**31)):
        refused(write_gguf(path, tensors=TENSORS | {"more": shape}, types={"more": (0, b"")}), "more")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_values_that_are_no_numbers(tmp_path, value):
    """Are computed with; what comes out is a token, or the error that none is left."""
    for name in TENSORS:
        works(_gomlx.load_model(write_gguf(tmp_path / "nan.gguf", fill={name: value}), threads=1))


def test_block_scales_that_are_no_numbers(tmp_path):
    """Q8_0 and Q4_0 with each bit set: float16 scales are NaN then."""
    for kind, size in ((8, 34), (2, 18)):
        types = {name: (kind, b"\xff" * (shape[0] * shape[1] // 32 * size)) for name, shape in TENSORS.items()
                 if len(shape) == 2}
        for options in ({}, {"activations": "float32"}):
            works(_gomlx.load_model(write_gguf(tmp_path / "nan.gguf", types=types), threads=1, **options))


def cut_from_the_end(source, target, sizes):
    shutil.copyfile(source, target)
    os.chmod(target, 0o644)
    for size in sorted(sizes, reverse=True):
        os.truncate(target, size)
        yield size


def test_gguf_cut_short(tmp_path):
    size = os.path.getsize(PACKAGED_FILE)
    target = tmp_path / "cut.gguf"
    for _ in cut_from_the_end(PACKAGED_FILE, target, [*range(0, size, 1000), *range(100), size - 1]):
        refused(target)
        with pytest.raises(REFUSALS):
            gomlx.Tokenizer.from_gguf(target)


def test_gguf_damaged(tmp_path):
    """Some bytes of the header at a time."""
    tokens = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"t{i}" for i in range(40)]}
    good = write_gguf(tmp_path / "good.gguf", METADATA | tokens)
    with open(good, "rb") as file:
        raw = file.read()
    header, rng, outcomes = raw.index(b"output_norm.weight") + 50, np.random.default_rng(1), []
    for _ in range(400):
        damaged = bytearray(raw)
        for at in rng.integers(0, header, rng.integers(1, 4)):
            damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
        with open(tmp_path / "bad.gguf", "wb") as file:
            file.write(damaged)
        outcomes.append(loads_or_refuses(tmp_path / "bad.gguf"))
    assert 40 < sum(outcomes) < 360


def test_gguf_metadata_that_is_no_text(tmp_path):
    path = write_gguf(tmp_path / "odd.gguf", METADATA | {"general.name": b"\x08\0\0\0" + text_bytes(b"\xff\xfe\0\x80")})
    model = _gomlx.load_model(path)
    assert model.info()["metadata"]["general.name"] == "��"
    model.close()


# ---- safetensors and config.json ----

@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save_safetensors(str(path), SMALL, random_weights(SMALL))
    return path


def test_safetensors_cut_short(folder):
    source = str(folder / "model.safetensors")
    shutil.copyfile(source, source + ".whole")
    size = os.path.getsize(source)
    for _ in cut_from_the_end(source + ".whole", source, [*range(0, size, 1000), *range(100), size - 1]):
        with pytest.raises(REFUSALS, match="model.safetensors"):
            _gomlx.load_model(str(folder))


def test_safetensors_damaged(folder):
    path, rng, outcomes = folder / "model.safetensors", np.random.default_rng(2), []
    raw = path.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(300):
        damaged = bytearray(raw)
        for at in rng.integers(0, header, rng.integers(1, 3)):
            damaged[at] = rng.choice([0, 34, 44, 91, 93, 123, 125, 0x30 + rng.integers(10), rng.integers(256)])
        path.write_bytes(damaged)
        try:
            works(_gomlx.load_model(str(folder), threads=1))
            outcomes.append(True)
        except REFUSALS as error:
            assert str(folder) in str(error)
            outcomes.append(False)
    assert sum(outcomes) < 200


@pytest.mark.parametrize(("key", "value", "words"), [
    ("model_type", "nonsense", ["model_type", "nonsense", "llama"]),
    ("model_type", 7, ["model_type"]),
    ("hidden_act", "relu", ["hidden_act", "relu"]),
    ("hidden_size", None, ["hidden_size", "missing"]),
    ("hidden_size", "64", ["hidden_size"]),
    ("hidden_size", 64.5, ["hidden_size", "64.5"]),
    ("hidden_size", 0, ["hidden_size", "0"]),
    ("hidden_size", -64, ["hidden_size", "-64"]),
    ("hidden_size", 1e300, ["hidden_size"]),
    ("hidden_size", 10**400, ["hidden_size"]),
    ("hidden_size", 128, ["model.embed_tokens.weight", "(100,64)", "(100,128)"]),
    ("vocab_size", 2**40, ["vocab_size"]),
    ("vocab_size", 101, ["model.embed_tokens.weight", "(100,64)", "(101,64)"]),
    ("num_hidden_layers", -1, ["num_hidden_layers"]),
    ("num_hidden_layers", 3, ["model.layers.2", "missing"]),
    ("num_hidden_layers", 2**26, ["layers"]),
    ("num_attention_heads", 0, ["num_attention_heads"]),
    ("num_key_value_heads", 3, ["4", "3"]),
    ("num_key_value_heads", 0, ["num_key_value_heads"]),
    ("head_dim", 7, ["head_dim", "7"]),
    ("intermediate_size", True, ["intermediate_size"]),
    ("max_position_embeddings", -3, ["max_position_embeddings"]),
    ("num_hidden_layers", [1, 1], ["num_hidden_layers"]),
    ("rms_norm_eps", "small", ["rms_norm_eps"]),
    ("rms_norm_eps", -1, ["epsilon", "-1"]),
    ("rope_theta", 0, ["rope"]),
    ("rope_theta", -1e4, ["rope"]),
    ("rope_parameters", [1], ["rope_parameters"]),
    ("rope_parameters", {"rope_type": "spiral"}, ["spiral"]),
    ("rope_parameters", {"rope_type": 3}, ["rope_type"]),
    ("rope_parameters", {"rope_type": "linear", "factor": 0}, ["factor"]),
    ("rope_parameters", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}, ["llama3"]),
    ("rope_parameters", {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 0}, ["yarn"]),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0},
     ["partial_rotary_factor"]),
    ("tie_word_embeddings", False, ["lm_head.weight", "missing"]),
    ("quantization_config", {"bits": 4, "quant_method": "gptq"}, ["quanti", "gptq"]),
])
def test_config(folder, key, value, words):
    config = {**SMALL, key: value}
    if value is None:
        del config[key]
    with open(folder / "config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    refused(folder, *words)


def test_rope_that_no_layer_has(tmp_path):
    """Its frequencies are made all the same, so that its size counts."""
    weights = {name: value for name, value in Golden().weights("qwen3_5").items()
               if not any(f".layers.{i}." in name for i in (3, 4))}
    config = CONFIGS["qwen3_5"] | {"num_hidden_layers": 3, "num_attention_heads": 1, "num_key_value_heads": 1}
    for head_dim, loads in ((32, True), (1 << 20, False)):
        save_safetensors(tmp_path, config | {"head_dim": head_dim}, weights)
        if loads:
            works(_gomlx.load_model(str(tmp_path)))
        else:
            refused(tmp_path, "config.json", "rope over 262144 dimensions")


@pytest.mark.parametrize("name", ["weight", "scales"])
def test_quantised_weights_without_dimensions(folder, name):
    weights = random_weights(SMALL)
    weight = weights.pop("model.layers.0.self_attn.q_proj.weight")
    weights["model.layers.0.self_attn.q_proj.weight"] = weight
    weights["model.layers.0.self_attn.q_proj.scales"] = weight[:, :2]
    weights[f"model.layers.0.self_attn.q_proj.{name}"] = np.float32(1).reshape(())
    save_safetensors(folder, SMALL, weights)
    refused(folder, "q_proj.weight", "not matrices", kind=gomlx.Error)


@pytest.mark.parametrize(("text", "words"), [
    ("", []), ("{", []), ("[]", []), ("nul", []), ("{}", ["missing"]), ('{"a": NaN}', []), ("{'a': 1}", []),
    ('{"a": 1} x', []),
    ("[" * 100000, []), ('{"a":' * 100000, ["nested"]), ('{"a": "\\ud800"}', []), ("\ufeff{}", []), ('{"a": 1, }', []),
], ids=range(13))
def test_config_that_is_no_json(folder, text, words):
    (folder / "config.json").write_text(text, encoding="utf-8")
    refused(folder, "config.json", *words)


def test_config_damaged(folder):
    rng, text = np.random.default_rng(3), json.dumps(SMALL).encode()
    for _ in range(300):
        damaged = bytearray(text)
        for at in rng.integers(0, len(text), rng.integers(1, 4)):
            damaged[at] = rng.choice(list(b'0123456789-eE."{}[],: \x00\xff'))
        (folder / "config.json").write_bytes(damaged)
        try:
            works(_gomlx.load_model(str(folder), threads=1))
        except REFUSALS as error:
            assert str(folder) in str(error)


def test_folders_that_are_no_models(tmp_path, folder):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty)
    refused(tmp_path / "absent", kind=FileNotFoundError)
    os.remove(folder / "config.json")
    refused(folder, "config.json", kind=FileNotFoundError)


def test_index_that_lies(folder):
    index = folder / "model.safetensors.index.json"
    for text, words in [("{}", []), ('{"weight_map": {}}', []),
                        ('{"weight_map": {"a": "../../etc/passwd"}}', ["passwd"]),
                        ('{"weight_map": {"a": "absent.safetensors"}}', ["absent.safetensors"]),
                        ('{"weight_map": {"a": "model.safetensors"}}', ["a"]), ('{"weight_map": [1]}', []),
                        ('{"weight_map": {"a": 1}}', [])]:
        index.write_text(text)
        refused(folder, *words)


# ---- what stands beside the weights ----

WORDS = {"a": 0, "b": 1, "c": 2, " ": 3}
TOKENS = WORDS | {f"t{i}": i for i in range(4, 90)}         # of SMALL's 100 rows some are padding


def write_tokenizer(folder, added=(), **model):
    added = [{"content": text, "id": i, "special": True} for text, i in added]
    with open(folder / "tokenizer.json", "w", encoding="utf-8") as file:
        json.dump({"model": {"type": "BPE", "vocab": TOKENS, "merges": [], **model}, "added_tokens": added}, file)


@pytest.mark.parametrize(("vocab", "added", "words"), [
    (TOKENS | {"d": 100}, (), ["id 100 ('d')", "vocab_size 100"]),
    (TOKENS | {"d": 2**20}, (), ["id 1048576 ('d')", "vocab_size 100"]),
    (WORDS, (), ["4 ids", "vocab_size 100"]),
    (WORDS, [("<x>", 4)], ["5 ids", "vocab_size 100"]),
    ({f"t{i}": i for i in range(49)}, (), ["49 ids", "vocab_size 100"]),
    ({}, (), ["0 ids"]),
])
def test_tokenizer_of_another_model(folder, vocab, added, words):
    write_tokenizer(folder, added, vocab=vocab)
    with pytest.raises(gomlx.Error) as caught:
        gomlx.load(folder)
    for word in (str(folder / "tokenizer.json"), *words):
        assert word in str(caught.value)
    works(_gomlx.load_model(str(folder)))       # the weights alone are another matter


def test_tokenizers_that_fit(folder):
    for vocab, added in (({f"t{i}": i for i in range(50)}, ()), ({f"t{i}": i for i in range(100)}, ()),
                         ({f"t{i}": i for i in range(100)} | {"<x>": 100}, [("<x>", 100)]),
                         (TOKENS, [(f"<x{i}>", 90 + i) for i in range(20)])):
        write_tokenizer(folder, added, vocab=vocab)
        gomlx.load(folder).close()


def test_another_models_tokenizer_file(tmp_path, shared):
    folder = tmp_path / "fable"
    shutil.copytree(os.path.join(shared, "data/models/fable"), folder)
    folder.chmod(0o755)
    (folder / "tokenizer.json").unlink()
    shutil.copyfile(os.path.join(shared, "data/models/stories260k/tokenizer.json"), folder / "tokenizer.json")
    with pytest.raises(gomlx.Error,
                       match="tokenizer.json: the tokenizer has 512 ids, .* config.json's vocab_size 2048"):
        gomlx.load(folder)


def test_experts_of_several_types(tmp_path, shared):
    """Experts lie side by side in one stack, which has one type."""
    source, folder = os.path.join(shared, "data/models/qwen3_moe"), tmp_path / "moe"
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, parts, at = json.loads(data[8:8 + length]), [], 0
    for name, one in header.items():
        if name == "__metadata__":
            continue
        begin, end = one["data_offsets"]
        part = data[8 + length + begin:8 + length + end]
        if ".experts." in name and ".experts.0." not in name:
            assert one["dtype"] == "BF16"
            part = (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).tobytes()
            one["dtype"] = "F32"
        one["data_offsets"] = [at, at + len(part)]
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    refused(folder, "experts.1.", "is of type F32", "experts.0.", "one type for all experts", kind=NotImplementedError)
    _gomlx.load_model(str(folder), dtype="float32").close()


@pytest.mark.parametrize(("tokens", "words"), [
    ([f"t{i}" for i in range(41)], ["id 40 ('t40')", "token_embd.weight, 40"]),
    ([f"t{i}" for i in range(19)], ["19 ids", "token_embd.weight, 40"]),
])
def test_gguf_tokens_of_another_model(tmp_path, tokens, words):
    def write(tokens):
        return write_gguf(tmp_path / "x.gguf", METADATA | {
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": []})
    with pytest.raises(gomlx.Error) as caught:
        gomlx.load(write(tokens))
    for word in ("x.gguf", *words):
        assert word in str(caught.value)
    gomlx.load(write([f"t{i}" for i in range(40)])).close()
    gomlx.load(write([f"t{i}" for i in range(38)])).close()


def test_added_tokens_beyond_the_model(folder):
    """Ids that the model has not raise when they come up; the others work."""
    write_tokenizer(folder, [(f"<x{i}>", 90 + i) for i in range(11)])
    with gomlx.load(folder) as model:
        assert len(list(model.generate("abc", max_tokens=3))) == 3
        assert model.tokenizer.encode("a<x10>") == [0, 100]
        for use in (model.generate, model.score, model.embed, model.inspect, model.logit_lens, model.warm_prompt_cache,
                    lambda text: model.classify([text], ["a", "b"]), lambda text: model.classify(["a"], ["b", text]),
                    lambda text: model.generate(text, n=2).read()[0].error,
                    lambda text: model.generate("a", stop_ids=model.tokenizer.encode(text))):
            use("abc<x9>")
            with pytest.raises(ValueError, match=r"id 100 is outside the vocabulary of 100"):
                raise use("abc<x10>")
        result, = model.generate_batch(["ab<x10>"], max_tokens=1).read()
        assert "token id 100" in str(result.error)
        for ids in ([100], [-1], [2**31 - 1], []):
            with pytest.raises(ValueError):
                model.generate(ids)
            with pytest.raises(ValueError):
                model.logits(ids)
        for ids in ([2**31], [2**70], [-2**70]):
            with pytest.raises((ValueError, OverflowError)):
                model.generate(ids)
        with pytest.raises(TypeError):
            model.generate([1.5])


def test_tokenizer_smaller_than_the_model(folder):
    """Tokens without a text are without a text."""
    write_tokenizer(folder, vocab=dict(list(TOKENS.items())[:50]))
    with gomlx.load(folder) as model:
        for seed in range(5):
            tokens = list(model.generate([50, 60], max_tokens=20, temperature=2.0, seed=seed))
            assert len(tokens) == 20 and any(token.id > 50 for token in tokens)


def test_tokenizer_files(folder):
    for text in (b"", b"{", b"[]", b"{}", b'{"model": {"type": "Sorcery"}}', b"\xff\xfe",
                 b"[" * 100000, b'{"model":' * 100000,
                 json.dumps({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}).encode(),
                 json.dumps({"model": {"type": "BPE", "vocab": {"a": 2**63}, "merges": []}}).encode(),
                 json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": [["a", "c"]]}}).encode()):
        (folder / "tokenizer.json").write_bytes(text)
        with pytest.raises(REFUSALS, match="tokenizer.json"):
            gomlx.load(folder)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_side_files(folder, name):
    write_tokenizer(folder)
    for text in ("", "{", "[1]", '"x"', "[" * 100000, '{"a":' * 100000, b"\xff\xfe\x00"):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(gomlx.Error, match=name):
            gomlx.load(folder)


@pytest.mark.parametrize("config", [{"temperature": "hot"}, {"top_k": float("inf")}, {"top_p": float("nan")},
                                    {"temperature": [1]}, {"top_k": True}])
def test_generation_config(folder, config):
    write_tokenizer(folder)
    with open(folder / "generation_config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    with pytest.raises(gomlx.Error, match="generation_config.json.*" + next(iter(config))):
        gomlx.load(folder)


def test_eos_ids_that_are_none(folder):
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [-1, 99999999999999999999]}')
    with gomlx.load(folder) as model:
        assert model.info["stop_ids"] == []
    for value in ('1e9', '"x"', '[null]', 'true', '[[1]]'):
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
        with pytest.raises(gomlx.Error, match="generation_config.json: eos_token_id is"):
            gomlx.load(folder)


def test_options(folder):
    refused_options = [{"context_length": -1}, {"context_length": 2**40}, {"threads": -1}, {"threads": 257},
                       {"dtype": "int8"}, {"dtype": "nonsense"}, {"kv_dtype": "uint8"},
                       {"activations": "int4"}, {"activations": "int8"}]
    for options in refused_options:
        with pytest.raises(ValueError):
            _gomlx.load_model(str(folder), **options)
