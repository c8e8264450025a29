"""Memory planning: what layers keep, by each family's config; which context fits; what is said when none does."""
import gc
import json
import os
import struct

import pytest

import gomlx
import gomlx.core
from gomlx import _gomlx
from gomlx._base import machine
from gomlx._files import memory_plan
from gomlx._files.memory_plan import (
    Layer,
    default_kv_cache_q8_enabled,
    kv_cache_bytes_per_token,
    plan_memory,
)
from gomlx._files.shares import layers_of

GB = 10**9
W = 561_524 * 4096              # bytes of an embedding, 2.30 GB
LLAMA_1B = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072}
GEMMA4 = {"model_type": "gemma4", "text_config": {
    "model_type": "gemma4_text", "hidden_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "num_kv_shared_layers": 4,
    "max_position_embeddings": 131072}}


def folder(path, config, weight_bytes=0):
    """A folder whose safetensors file has one tensor, the embedding; the bytes are a hole in the file."""
    path.mkdir(exist_ok=True)
    text = config.get("text_config", config)
    hidden = text["hidden_size"] if isinstance(text["hidden_size"], int) else 2048
    rows = weight_bytes // (2 * hidden) or 1000
    weight_bytes = rows * 2 * hidden
    text = text | {"vocab_size": rows}
    (path / "config.json").write_text(json.dumps(config | ({"text_config": text} if "text_config" in config else text)))
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [rows, hidden],
                                                       "data_offsets": [0, weight_bytes]}}).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + weight_bytes)
    return str(path)


def layers(tmp_path, config):
    return layers_of(_gomlx.describe(folder(tmp_path / "model", config)))


def test_what_the_engine_says():
    with gomlx.load(context_length=512) as model:
        plan = plan_memory(context=512)
        assert plan.kv_bytes_per_token == model.info["kv_bytes_per_token"]
        assert (plan.kv_dtype, plan.weight_bytes) == (model.info["kv_dtype"], model.info["weight_bytes"])
        assert plan.kv_bytes == 512 * plan.kv_bytes_per_token and plan.fits
        assert plan.remaining(500) == 12 and plan.completion(500, 100) == 12 and plan.completion(500) == 12
        assert plan.completion(500, 5) == 5 and plan.remaining(600) == 0


@pytest.mark.parametrize("config, want", [
    (LLAMA_1B, [Layer(8, 64)] * 16),
    ({**LLAMA_1B, "head_dim": None, "num_key_value_heads": None}, [Layer(32, 64)] * 16),
    ({**LLAMA_1B, "model_type": "mistral", "sliding_window": 4096}, [Layer(8, 64, 4096)] * 16),
    ({**LLAMA_1B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, [Layer(8, 64)] * 16),
    ({**LLAMA_1B, "model_type": "qwen2", "sliding_window": 4096}, [Layer(8, 64)] * 16),
    ({**LLAMA_1B, "model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 9},
     [*[Layer(8, 64)] * 9, *[Layer(8, 64, 64)] * 7]),
    ({**LLAMA_1B, "model_type": "qwen3", "head_dim": None}, [Layer(8, 128)] * 16),
    ({**LLAMA_1B, "model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 64},
     [Layer(8, 64, 64), Layer(8, 64)] * 2),
    ({**LLAMA_1B, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 512},
     [*[Layer(8, 64, 512)] * 5, Layer(8, 64), Layer(8, 64, 512)]),
    ({**LLAMA_1B, "model_type": "gpt_oss", "num_hidden_layers": 2}, [Layer(8, 64, 128), Layer(8, 64)]),
    ({**LLAMA_1B, "num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9},
     [Layer(8, 64)] * 2),                       # Llama has no windows, whatever its config says
    ({**LLAMA_1B, "model_type": "qwen2", "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 9,
      "layer_types": ["full_attention", "sliding_attention"]}, [Layer(8, 64), Layer(8, 64, 9)]),
    (GEMMA4, [*[Layer(1, 256, 512)] * 5, Layer(1, 512), Layer(1, 256, 512), Layer(1, 256, 512),
              *[Layer(1, 256, 512, True)] * 3, Layer(1, 512, 0, True)]),
    ({"model_type": "gemma4_text", **GEMMA4["text_config"], "attention_k_eq_v": True, "num_hidden_layers": 1,
                                      "num_kv_shared_layers": 0, "num_global_key_value_heads": 4}, [Layer(4, 512)]),
    ({**LLAMA_1B, "model_type": "qwen3_5", "num_hidden_layers": 4, "linear_num_key_heads": 4,
      "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
     [*[Layer(state_bytes=4 * (3 * (2 * 4 * 32 + 8 * 32) + 8 * 32 * 32))] * 3, Layer(8, 64)]),
])
def test_what_layers_keep(tmp_path, config, want):
    assert layers(tmp_path, config) == want


def test_a_layer_in_bytes():
    assert Layer(8, 64).bytes(1000, "float16", 512) == 1024 * 2 * 512 * 2          # whole blocks of 256
    assert Layer(8, 64, 128).bytes(100000, "float32", 512) == 1024 * 2 * 512 * 4   # window, what is behind, a chunk
    assert Layer(8, 64, 128, shared=True).bytes(100000, "float32", 512) == 0
    assert Layer(state_bytes=77).bytes(5000, "q8_0", 512) == 5 * 77
    assert Layer(8, 64).bytes(256, "q8_0", 512) == 256 * 2 * 512 // 32 * 34


@pytest.mark.parametrize("budget, least, most", [
    (4 * GB, 14000, 16000),     # 85 % of it, less 2.3 GB of weights and 50 MB of working memory, at 65536 bytes a token
    (6 * GB, 39000, 43000), (100 * GB, 131072, 131072), (GB // 2, 4096, 4096)])
def test_the_context_that_fits(tmp_path, budget, least, most):
    path = folder(tmp_path / "model", {**LLAMA_1B, "torch_dtype": "bfloat16"}, W)
    plan = plan_memory(path, budget=budget, kv_dtype="float32")
    per_token = 16 * 2 * 8 * 64 * 4
    assert plan.kv_bytes_per_token == per_token and plan.weight_bytes == W
    room = int(0.85 * budget) - plan.weight_bytes - plan.working_bytes
    assert plan.context == max(4096, min(131072, room // per_token // 512 * 512))
    assert plan.context % 512 == 0 and plan.fits == (budget > GB)
    assert least <= plan.context <= most
    assert plan_memory(path, budget=budget, kv_dtype="q8_0").context >= plan.context


def test_the_ceilings(tmp_path):
    config = {**LLAMA_1B, "max_position_embeddings": 10**6}
    assert plan_memory(folder(tmp_path / "long", config), budget=1000 * GB).context == 262144
    config["max_position_embeddings"] = 2000            # below the floor, and no multiple of 512
    path = folder(tmp_path / "short", config)
    assert plan_memory(path, budget=1000 * GB).context == plan_memory(path, budget=1).context == 2000
    plan = plan_memory(path, budget=1000 * GB, context=2001)
    assert not plan.fits and plan.why == "a context of 2001 tokens is longer than the architecture's 2000"


def test_what_does_not_fit_is_said_with_numbers(tmp_path):
    path = folder(tmp_path / "model", LLAMA_1B, W)
    plan = plan_memory(path, budget=2 * GB)
    assert not plan.fits and plan.max_batch == 0
    assert plan.why.startswith("weights 2.30 GB + working memory") and "are more than 2.00 GB (given)" in plan.why
    with pytest.raises(MemoryError, match="weights 2.30 GB"):
        plan.check()
    plan = plan_memory(path, budget=4 * GB, context=100000, kv_dtype="float16", batch=2)
    assert not plan.fits and "(2 x 100000 tokens, float16)" in plan.why
    assert "fewer sequences, a shorter context" in plan.why
    plan = plan_memory(path, budget=4 * GB, context=4096, kv_dtype="float16")
    assert plan.fits and plan.max_batch >= 2 and plan.check() is None
    assert plan_memory(path, budget=4 * GB, context=4096, kv_dtype="float16", batch=plan.max_batch).fits
    assert not plan_memory(path, budget=4 * GB, context=4096, kv_dtype="float16", batch=plan.max_batch + 1).fits


def test_dtype_of_weights(tmp_path):
    path = folder(tmp_path / "model", LLAMA_1B, 1_024_000)
    assert [plan_memory(path, dtype=one).weight_bytes for one in ("float32", "float16", None)] == [2_048_000, 1_024_000,
                                                                                                   1_024_000]


@pytest.mark.parametrize("options, error", [
    ({"kv_dtype": "q4"}, "kv_dtype is 'q4', expected one of float32"), ({"dtype": "int8"}, "dtype is 'int8'"),
    ({"batch": 0}, "expected 1 or more"), ({"context": 0}, "expected 1 or more"),
    ({"budget": 0}, "expected 1 or more")])
def test_wrong_options(options, error):
    with pytest.raises(ValueError, match=error):
        plan_memory(**options)


@pytest.mark.parametrize("change, words", [
    ({"num_hidden_layers": "many"}, "num_hidden_layers is not a number"),
    ({"num_hidden_layers": 10**9}, "is 1000000000, expected 1"),
    ({"num_attention_heads": None}, "num_attention_heads is missing"), ({"num_hidden_layers": -1}, "is -1, expected 1"),
    ({"hidden_size": [], "head_dim": None}, "hidden_size is 0, expected 1"),
    ({"model_type": "unheard"}, "\"unheard\" is not supported")])
def test_hostile_configs(tmp_path, change, words):
    """The plan's errors are the loader's."""
    path = folder(tmp_path / "model", {**LLAMA_1B, **change})
    for ask in (plan_memory, gomlx.load):
        with pytest.raises((gomlx.Error, ValueError), match=words):
            ask(path)


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"dtype": "float16", "kv_dtype": "q8_0"},
                                     {"activations": "float32"}, {"dtype": "bfloat16", "activations": "bfloat16"}])
@pytest.mark.parametrize("name", ["gemma4", "qwen3_5", "gpt_oss", "qwen3_moe", "fable-gguf/fable-Q4_K_M.gguf"])
def test_what_is_described_is_what_is_loaded(shared, name, options):
    path = os.path.join(shared, "data", "models", name)
    if "gguf" in name and options.get("activations") == "bfloat16":
        pytest.skip("no matrix of it is in bfloat16")
    known = _gomlx.describe(path, **options)
    gc.collect()
    before = gomlx.core.get_active_memory()
    model = _gomlx.load_model(path, **options)
    stream = [token.id for token in _gomlx.stream(model.new_session(), None, [1, 2, 3], temperature=0, max_tokens=4)]
    info = model.info()
    assert len(stream) > 1 and {key: known[key] for key in known if key in info and key != "weight_bytes"} == {
        key: info[key] for key in known if key in info and key != "weight_bytes"}
    per_token = sum(2 * one["n_kv_heads"] * one["head_dim"] * memory_plan.KV_BYTES[known["kv_dtype"]]
                    for one in known["layers"] if one["kind"] != "linear" and not one["shared"])
    assert per_token == info["kv_bytes_per_token"]
    gc.collect()
    held = gomlx.core.get_active_memory() - before         # and frequencies; blocks of memory are a little larger
    assert known["packed_bytes"] <= held < 1.05 * known["packed_bytes"]
    inside = sum(one["packed_bytes"] for one in known["layers"])
    tensors = sum(one["packed_bytes"] for one in known["tensors"].values())
    assert 0 < inside < known["packed_bytes"] == tensors and known["weight_bytes"] > 0
    model.close()


def test_the_rule_for_q8_entries():
    assert kv_cache_bytes_per_token(8, 64, True) == 8 * 64 // 32 * 34 and kv_cache_bytes_per_token(8, 64, False) == 2048
    assert default_kv_cache_q8_enabled("llama", 8, 64) and default_kv_cache_q8_enabled("gemma4", 1, 256)
    for arguments in (("gpt-oss", 8, 64), ("gpt_oss", 8, 64), ("gemma4", 1, 256, 512), ("llama", 8, 80),
                      ("llama", 0, 64)):
        assert not default_kv_cache_q8_enabled(*arguments)
    assert not default_kv_cache_q8_enabled("llama", 8, 64, debug=True)


@pytest.mark.parametrize("files, want", [
    ({}, (7000, "available memory")),
    ({"memory.max": "5000", "memory.current": "1000"}, (4000, "left by the cgroup's limit")),
    ({"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 1\ninactive_file 500\n"}, (1500, "left by")),
    ({"memory.max": "5000", "memory.current": "4000", "memory.stat": "active_file 700\ninactive_file 500\n"},
     (2200, "left by")),
    ({"memory.max": "max", "memory.current": "1000"}, (7000, "available memory")),
    ({"memory.max": "5000", "memory.current": "9000"}, (0, "left by")),
])
def test_available_memory(monkeypatch, tmp_path, files, want):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "cgroup_folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(machine, "memory", lambda: {"available bytes": 7000, "cgroup limit bytes": None})
    found = memory_plan.available_memory()
    assert found[0] == want[0] and want[1] in found[1]


def test_shared_models(shared):
    for name in ("gemma3", "gemma4", "gpt_oss", "qwen3_5", "mistral"):
        plan = plan_memory(os.path.join(shared, "data", "models", name), budget=GB)
        assert plan.fits and plan.context == 2048 and plan.kv_bytes > 0


@pytest.mark.parametrize("name", ["fable", "llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3",
                                  "gemma4", "gpt_oss", "qwen3_5", "fable-gguf/fable-Q4_K_M.gguf"])
def test_the_plan_is_what_is_used(shared, name):
    """Weights, cache and work of a context of 2,048 tokens, against the engine's own count of its peak."""
    from gomlx import core
    path = os.path.join(shared, "data", "models", name)
    plan = plan_memory(path, context=2048, budget=GB)
    gc.collect()
    before = core.get_active_memory()
    with gomlx.load(path, context_length=2048, prompt_cache=False) as model:
        core.reset_peak_memory()
        ids = [3 + 7 * i % 500 for i in range(2040)]
        model.generate(ids, max_tokens=8, temperature=0, ignore_eos=True).read()
        peak = core.get_peak_memory() - before
    # the largest misses: gemma2's work, 3.2 % where its cache is float16, and qwen3_5's, 4.02 % on AVX2
    assert abs(plan.total_bytes / peak - 1) < 0.045, (plan.total_bytes, peak)


# ---- load(fits=) ----

@pytest.fixture
def memory(monkeypatch):
    """memory(available, whole): what the machine has."""
    def put(available, whole=10**15):
        monkeypatch.setattr(memory_plan, "available_memory", lambda: (available, "available memory"))
        monkeypatch.setattr(memory_plan, "whole_memory", lambda: (whole, "this machine's memory and swap"))
    return put


def test_load_says_what_does_not_fit_before_it_starts(memory, caplog):
    shown = []
    memory(1 << 20)
    with pytest.raises(MemoryError, match="working memory"):
        gomlx.load(fits="error", progress=shown.append)
    assert shown == []
    for options in ({}, {"fits": "warn"}, {"context_length": 64}):
        caplog.clear()
        with gomlx.load(**options) as model:
            assert model.generate("Once", max_tokens=1).read().tokens
        assert "may not fit: " in caplog.text and "working memory" in caplog.text
    caplog.clear()
    gomlx.load(fits="ignore").close()
    assert caplog.text == ""
    memory(1 << 20, 2 << 20)
    with pytest.raises(MemoryError, match="weights 4.3 MB are more than this machine's memory and swap, 2.1 MB"):
        gomlx.load()
    gomlx.load(fits="ignore").close()


def test_load_asks_for_the_context_that_is_wanted(memory, caplog):
    """A context of the model's own is not counted whole; one that is asked for is, with the entries that it will
    have."""
    plan = plan_memory(context=2048)
    memory(plan.total_bytes)
    for options in ({"context_length": 2048}, {}):
        gomlx.load(fits="error", **options).close()
    assert plan_memory(context=2048, kv_dtype="float32").total_bytes > plan.total_bytes
    for options in ({"context_length": 2048, "kv_dtype": "float32"},
                    {"context_length": 2048, "kv_dtype": gomlx.core.float32},
                    {"context_length": 2048, "activations": "float32"}):
        with pytest.raises(MemoryError, match="2048 tokens, float32"):
            gomlx.load(fits="error", **options)
    with pytest.raises(ValueError, match="more than the model's 2048"):         # the loader's own error
        gomlx.load(fits="error", context_length=4096)
    assert caplog.text == ""


def test_what_has_no_plan_is_left_to_the_loader(memory, tmp_path):
    memory(1)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0))
    with pytest.raises(gomlx.Error, match="x.gguf"):
        gomlx.load(tmp_path / "x.gguf", fits="error")
    for wrong in ("yes", None, True):
        with pytest.raises(ValueError, match="fits is"):
            gomlx.load(fits=wrong)


@pytest.mark.parametrize("give_up", [False, True])
def test_weights_that_are_not_unpacked_yet_are_not_free(monkeypatch, shared, give_up):
    """There is room for one model and half of the weights of another, which does not fit: before the first has read its
    weights as after."""
    path = os.path.join(shared, "data", "models", "fable-gguf", "fable-Q8_0.gguf")
    plan = plan_memory(path, context=256, budget=GB)
    size, free = plan.weight_bytes, plan.total_bytes + plan.weight_bytes // 2
    taken = gomlx.core.get_active_memory()
    monkeypatch.setattr(machine, "cgroup_folders", list)
    monkeypatch.setattr(machine, "memory", lambda: {
        "available bytes": free - gomlx.core.get_active_memory() + taken, "cgroup limit bytes": None})
    with gomlx.load(path, context_length=256, fits="error", prompt_cache=False) as model:
        left, source = memory_plan.available_memory()
        assert abs(free - left - size) < 0.1 * size and "that loaded models will still take" in source
        with pytest.raises(MemoryError, match="that loaded models will still take"):
            gomlx.load(path, context_length=256, fits="error")
        if not give_up:
            for _ in range(2):
                model.logits([1, 2])
            left, source = memory_plan.available_memory()
            assert abs(free - left - size) < 0.1 * size and source == "available memory"
            with pytest.raises(MemoryError):
                gomlx.load(path, context_length=256, fits="error")
    gc.collect()
    gomlx.core.clear_cache()
    assert memory_plan.available_memory() == (free, "available memory")
    gomlx.load(path, context_length=256, fits="error").close()


def test_the_command_line_says_what_the_log_warns_of(memory, capsys):
    from gomlx import cli
    memory(1 << 20)
    assert cli.main(["generate", "Once", "-n", "1"]) == 0
    assert "gomlx: warning: " in (said := capsys.readouterr().err) and "may not fit" in said
    assert cli.main(["generate", "Once", "-n", "1", "--fits", "error"]) == 1
    assert "error: weights" in capsys.readouterr().err
    assert cli.main(["generate", "Once", "-n", "1", "--fits", "ignore"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("limit, want", [(None, 9000 + 2048 * 1024), (5000, 5000 + 2048 * 1024),
                                         (10000, 9000 + 2048 * 1024)])
def test_whole_memory(monkeypatch, limit, want):
    monkeypatch.setattr(machine, "memory", lambda: {"total bytes": 9000, "available bytes": 1,
                                                   "cgroup limit bytes": limit})
    monkeypatch.setattr(machine, "lines_of", lambda path: ["MemTotal: 9 kB", "SwapTotal:    2048 kB"])
    assert memory_plan.whole_memory()[0] == want
