"""Profiles: what is counted is exact and the same every time; what is timed adds up; results are the same bits."""
import json
import os

import checkpoints
import pytest

import gomlx
from gomlx import _gomlx, cli, profiling

PROMPT = "Once upon a time there was a little dog. It was "
COUNTS = ("launches", "pieces", "barriers")
DENSE = {"embedding", "norm", "attention_projection", "attention", "mlp", "head", "sampling"}


@pytest.fixture(scope="module")
def model():
    with gomlx.load(threads=1, prompt_cache=False) as loaded:
        yield loaded


def counted(profile):
    return {name: {work: [one[count] for count in COUNTS] for work, one in phase["work"].items()}
            for name, phase in profile.items()}


def profile_of(path, threads=1, n=4, **options):
    with gomlx.load(path, threads=threads) as made:
        stream = made.generate(PROMPT, max_tokens=n, temperature=0, ignore_eos=True, profile=True, **options)
        return stream.read().profile


def test_results_are_the_same_bits(model):
    plain = model.generate(PROMPT, max_tokens=20, temperature=0.9, seed=3).read()
    watched = model.generate(PROMPT, max_tokens=20, temperature=0.9, seed=3, profile=True).read()
    assert plain.profile is None and watched.profile is not None
    assert plain.tokens == watched.tokens and plain.logprobs == watched.logprobs
    assert json.loads(json.dumps(watched.profile)) == watched.profile


def test_passes_tokens_and_draws(model):
    ids = model.tokenizer.encode_prompt(PROMPT * 60)
    assert 512 < len(ids) < model.context_length - 9
    profile = model.generate(ids, max_tokens=9, temperature=0, ignore_eos=True, profile=True).read().profile
    prefill, decode = profile["prefill"], profile["decode"]
    assert (prefill["passes"], prefill["tokens"]) == (-(-len(ids) // 512), len(ids))
    assert (decode["passes"], decode["tokens"], decode["sample_calls"]) == (8, 8, 8)
    assert prefill["sample_calls"] == 1
    nothing = model.generate(ids[:5], max_tokens=1, profile=True).read().profile["decode"]
    assert nothing["passes"] == nothing["pass_ns"] == 0 and nothing["work"] == nothing["weight_bytes"] == {}


def test_counts_are_those_of_the_model(model):
    """A norm before each of a layer's two parts and one at the end; a head, and what samplers need, once a pass."""
    layers = model.info["n_layers"]
    profile = model.generate(PROMPT, max_tokens=6, temperature=0, profile=True).read().profile
    for phase in profile.values():
        assert set(phase["work"]) == DENSE
        launches = {work: one["launches"] / phase["passes"] for work, one in phase["work"].items()}
        assert launches["embedding"] == launches["head"] == 1 and launches["sampling"] == 2
        assert launches["norm"] >= 2 * layers + 1 and launches["attention"] >= layers
        for one in phase["work"].values():
            assert 0 <= one["barriers"] <= one["launches"] <= one["pieces"] and one["ns"] > 0


def test_counts_are_the_same_every_time_and_for_any_number_of_threads():
    assert counted(profile_of(None)) == counted(profile_of(None)) == counted(profile_of(None, threads=3))


def test_times_of_all_threads(model):
    """What other threads do is counted too: with one thread all is the calling thread's own. The bytes of the classes
    are those of the types."""
    alone = model.generate(PROMPT * 8, max_tokens=9, temperature=0, profile=True).read().profile
    shared = profile_of(None, threads=2)
    for phase in (*alone.values(), *shared.values()):
        for one in phase["work"].values():
            assert one["thread_ns"] >= one["ns"]
        assert phase["thread_wait_ns"] >= 0
        assert profiling.totals(phase)["bytes"] == sum(phase["weight_bytes"].values()) > 0
    for phase in alone.values():
        assert all(one["thread_ns"] == one["ns"] for one in phase["work"].values()) == (model.info["threads"] == 1)
    if (os.cpu_count() or 1) > 1:
        # On a busy machine the second thread may come too late for all of a short run.
        assert any(profiling.totals(phase)["thread_ns"] > profiling.totals(phase)["ns"]
                   for _ in range(20) for phase in profile_of(None, threads=2).values())


def test_times_add_up(model):
    """On one thread all of a pass is somebody's time. Whatever holds the thread up between two of its parts is in
    none of them: the least is far from what is measured (99 %)."""
    profile = model.generate(PROMPT * 8, max_tokens=30, temperature=0, ignore_eos=True, profile=True).read().profile
    for phase in profile.values():
        parts = profiling.totals(phase)["ns"] + phase["setup_ns"] + phase["wait_ns"]
        assert 0.5 * phase["pass_ns"] < parts <= phase["pass_ns"]


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_weights(tmp_path, tied):
    """All of a dense model's matrices are read once a pass; of an embedding that is not the head too, a row a token."""
    config = checkpoints.SMALL | {"vocab_size": 96, "tie_word_embeddings": tied}
    weights = checkpoints.random_weights(config)
    checkpoints.save_safetensors(tmp_path, config, weights, "BF16")
    engine = _gomlx.load_model(tmp_path, threads=1)
    stream = _gomlx.stream(engine.new_session(), None, [1, 2, 3, 4, 5], max_tokens=4, profile=True)
    list(stream)
    profile = stream.profile()
    engine.close()
    embedding = weights["model.embed_tokens.weight"].size
    matrices = sum(value.size for value in weights.values() if value.ndim == 2) - (0 if tied else embedding)
    row = 2 * config["hidden_size"]
    assert profile["decode"]["weight_bytes"]["BF16"] == 3 * (2 * matrices + row)
    assert profile["prefill"]["weight_bytes"]["BF16"] == 2 * matrices + 5 * row
    norms = sum(value.size for value in weights.values() if value.ndim == 1)
    assert profile["decode"]["weight_bytes"]["F32"] == 3 * 4 * norms == profile["decode"]["work"]["norm"]["bytes"]
    assert profile["decode"]["work"]["embedding"]["bytes"] == 3 * row
    assert profile["decode"]["work"]["head"]["bytes"] == 3 * 2 * embedding


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0",
                                  "Q8_K", "Q4_K"])
def test_bytes_of_blocks(tmp_path, kind):
    """The file's bytes of each matrix."""
    config = checkpoints.SMALL | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 96}
    checkpoints.save_gguf(tmp_path / "model.gguf", config, checkpoints.random_weights(config), kind)
    engine = _gomlx.load_model(tmp_path / "model.gguf", threads=1)
    stream = _gomlx.stream(engine.new_session(), None, [1, 2, 3, 4, 5], max_tokens=4, profile=True)
    list(stream)
    profile = stream.profile()
    engine.close()
    held = {tensor.name: int(tensor.n_bytes) for tensor in checkpoints.gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    head = held["token_embd.weight"]
    matrices, row = sum(size for name, size in held.items() if "norm" not in name), head // 96
    assert profile["decode"]["weight_bytes"][kind] == 3 * (matrices + row)
    assert profile["prefill"]["weight_bytes"][kind] == matrices + 5 * row
    assert profile["decode"]["work"]["head"]["bytes"] == 3 * head
    assert profile["decode"]["work"]["mlp"]["bytes"] == 3 * sum(size for name, size in held.items() if "ffn" in name
                                                                and "norm" not in name)


@pytest.mark.parametrize("name, more, less", [("qwen3_5", {"recurrent"}, set()),
                                              ("qwen3_moe", {"router", "experts"}, {"mlp"}),
                                              ("gpt_oss", {"router", "experts"}, {"mlp"}),
                                              ("gemma4", set(), set()), ("gemma2", set(), set())])
def test_classes_of_architectures(shared, name, more, less):
    profile = profile_of(os.path.join(shared, "data", "models", name))
    for phase in profile.values():
        assert set(phase["work"]) == (DENSE | more) - less


def test_experts_that_are_read(shared):
    """One token reads as many experts as it is routed to."""
    path = os.path.join(shared, "data", "models", "qwen3_moe")
    with gomlx.load(path, threads=1) as made:
        ids = made.tokenizer.encode_prompt(PROMPT)
        profile = made.generate(ids, max_tokens=2, temperature=0, ignore_eos=True, profile=True).read().profile
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    whole, read = (profile[phase]["weight_bytes"]["BF16"] for phase in ("prefill", "decode"))
    expert = 2 * 3 * config["hidden_size"] * config["moe_intermediate_size"] * config["num_hidden_layers"]
    unused = config["num_local_experts"] - config["num_experts_per_tok"]
    assert whole - read == unused * expert + 2 * (len(ids) - 1) * config["hidden_size"]


def test_mlx_layout_has_the_same_classes(tmp_path):
    gomlx.convert(gomlx.loading.PACKAGED_FILE, tmp_path / "mlx", quantize="mlx-4")
    profile = profile_of(tmp_path / "mlx")
    assert set(profile["decode"]["work"]) == DENSE
    assert "affine 4" in profile["decode"]["weight_bytes"]


def test_a_batch_counts_shared_passes_once(model):
    prompts = [PROMPT, PROMPT + "red", "One day"]
    stream = model.generate_batch(prompts, max_tokens=8, temperature=0, ignore_eos=True, profile=True)
    alone = [model.generate(prompt, max_tokens=8, temperature=0, ignore_eos=True).read() for prompt in prompts]
    results = stream.read()
    assert [one.tokens for one in results] == [one.tokens for one in alone]
    assert stream.profile["decode"]["passes"] == 7 and stream.profile["decode"]["tokens"] == 21
    assert stream.profile["prefill"]["tokens"] == sum(one.prompt_tokens for one in results)
    for one in results:
        assert one.profile["decode"]["passes"] == one.profile["decode"]["tokens"] == 7
        assert counted(one.profile)["decode"] == counted(stream.profile)["decode"]
    plain = model.generate_batch(prompts, max_tokens=3)
    plain.read()
    assert plain.profile is None


def test_one_of_a_batch_may_ask_for_it(model):
    stream = model.generate_batch([PROMPT, "One"], options=[{"profile": True}, None], max_tokens=5, ignore_eos=True)
    first, second = stream.read()
    assert first.profile["decode"]["passes"] == 4 and second.profile is None
    assert stream.profile["decode"]["passes"] >= 4


def test_summary(model):
    result = model.generate(PROMPT, max_tokens=5, temperature=0, ignore_eos=True, profile=True).read()
    text = profiling.summary(result.profile, "a story", result.prompt_tokens, result.generated_tokens)
    lines = text.splitlines()
    assert lines[0] == f"profile of a story: {result.prompt_tokens} prompt tokens, 5 completion tokens"
    assert any(line.startswith("decode: 4 tokens in 4 passes") for line in lines)
    assert all(any(line.split()[0] == work for line in lines) for work in DENSE)
    assert profiling.summary(None, "a story", 3, 4) == ""


def test_command(capsys):
    assert cli.main(["generate", "Once upon", "-n", "3", "--profile"]) == 0
    assert "decode: 2 tokens in 2 passes" in capsys.readouterr().err
    assert cli.main(["generate", "Once upon", "-n", "3", "--profile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["decode"]["passes"] == 2
