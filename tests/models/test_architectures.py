"""Every architecture, in the sizes and with the switches of architectures.py, is what transformers computes: golden
logits and greedy text, all positions where transformers is installed; and the same bits however the work is cut."""
import importlib.util

import architectures
import numpy as np
import pytest
from architectures import CONFIGS, TOKENS, language
from llama_reference import difference

from gomlx import _gomlx
from gomlx._conversion import layouts
from gomlx._files.architectures import known
from gomlx._generation import chat_formats

EXACT = {"activations": "float32", "kv_dtype": "float32"}
# Seen: 3e-7 to 4e-6, and 1e-5 where attention is sharp; transformers is as far from itself in float64.
FLOAT32 = 2e-5

GOLDEN = architectures.Golden()
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None,
                                        reason="transformers is not installed")


@pytest.fixture(scope="module", params=CONFIGS)
def case(request, tmp_path_factory):
    """(name, folder, model)"""
    folder = GOLDEN.save(tmp_path_factory.mktemp("model"), request.param)
    model = _gomlx.load_model(str(folder), **EXACT)
    yield request.param, folder, model
    model.close()


def logits(model, *sequences):
    return [np.asarray(one).copy() for one in model.logits(list(sequences))]


def step(session, ids, seed):
    """A token drawn after ids, and the bits of its log probability; hot, so that any token's logit may show."""
    token, = _gomlx.stream(session, None, ids, temperature=3.0, seed=seed, max_tokens=1)
    return token.id, np.float32(token.logprob).tobytes()


# ---- as it is ----

def test_logits_and_greedy_text(case):
    name, _, model = case
    ids = GOLDEN.ids(name)
    got = logits(model, ids)[0]
    assert difference(got[list(GOLDEN.rows)], GOLDEN.logits(name)) <= FLOAT32
    stream = _gomlx.stream(model.new_session(), None, architectures.prompt(), temperature=0,
                           max_tokens=TOKENS - architectures.PROMPT)
    assert [token.id for token in stream] == ids[architectures.PROMPT:]


@needs_transformers
def test_logits_of_every_position(case):
    torch = pytest.importorskip("torch")
    from golden import make_random
    name, folder, model = case
    with torch.no_grad():
        want = make_random.load(CONFIGS[name], folder)(torch.tensor([GOLDEN.ids(name)])).logits[0].numpy()
    assert difference(logits(model, GOLDEN.ids(name))[0], want) <= FLOAT32


def test_bits_do_not_depend_on_the_cut(case):
    """At once, a ragged batch, prefixes, chunks, token by token."""
    name, _, model = case
    ids = GOLDEN.ids(name)
    whole = logits(model, ids)[0]
    for n, got in zip((1, 300, 17, 5, 64), logits(model, *(ids[:n] for n in (1, 300, 17, 5, 64)))):
        np.testing.assert_array_equal(got, whole[:n])
    np.testing.assert_array_equal(logits(model, ids[:33])[0], whole[:33])
    by_chunks, by_token = model.new_session(), model.new_session()
    for n in range(1, 30):
        assert step(by_token, ids[:n], n) == step(model.new_session(), ids[:n], n)
    for n in range(23, 300, 23):
        assert step(by_chunks, ids[:n], n) == step(model.new_session(), ids[:n], n)


def test_nothing_is_left_over(case):
    """Every tensor of the language model is read; those of other towers are listed as unused."""
    name, _, model = case
    towers = [tensor for tensor in GOLDEN.shapes[name] if "vision" in tensor or "visual" in tensor or
              "multi_modal" in tensor]
    assert sorted(model.info()["unused_tensors"]) == sorted(towers)
    assert bool(towers) == ("text_config" in CONFIGS[name])


def test_cases_differ():
    """A switch that were ignored would be seen: the logits of each case differ from those of every other."""
    names, spellings = list(CONFIGS), {"gemma3, new spelling", "gemma3, old spelling"}
    for i, a in enumerate(names):
        for b in names[i + 1:]:
            if language(CONFIGS[a])["model_type"] == language(CONFIGS[b])["model_type"] and {a, b} != spellings:
                assert difference(GOLDEN.logits(a)[:3], GOLDEN.logits(b)[:3]) > 1e-3, (a, b)


# ---- what the engine says of them ----

def test_every_architecture_has_its_cases():
    """A line in models.def without rows of tests fails here."""
    for names in (CONFIGS, architectures.WIDE_CASES):
        tested = {language(CONFIGS[name])["model_type"] for name in names}
        assert {one.model_type for one in known()} == tested
    transformers = pytest.importorskip("transformers")
    assert all(hasattr(transformers, one.hf_class) for one in known())


@pytest.mark.parametrize("case", [name for name in CONFIGS if "text_config" not in CONFIGS[name]])
def test_names_go_to_gguf_and_back(case):
    arch, = (one for one in known() if CONFIGS[case]["model_type"] in one.types)
    names = [name for name in GOLDEN.shapes[case] if ".experts." not in name and "qkvz" not in name]
    theirs = [layouts.gguf_name(arch, name) for name in names]
    assert None not in theirs and len(set(theirs)) == len(names) and [layouts.hf_name(arch, name)
                                                                      for name in theirs] == names
    assert layouts.gguf_name(arch, "model.layers.0.unheard_of.weight") is layouts.hf_name(arch,
                                                                                          "blk.0.unheard_of") is None


def test_defaults_and_traits_are_those_of_the_classes():
    by_type = {one.model_type: one for one in known()}
    assert by_type["gemma2"].defaults.items() >= {"head_dim": 256, "sliding_window": 4096, "rms_norm_eps": 1e-6}.items()
    assert by_type["olmo2"].defaults["rms_norm_eps"] == 1e-5 and "sliding_window" not in by_type["llama"].keys
    assert ("attention.sliding_window", "u32", "sliding_window") in by_type["mistral"].counts
    assert {name for name, one in by_type.items() if one.recurrent} == {"qwen3_next", "qwen3_5_text",
                                                                        "qwen3_5_moe_text"}
    assert {name: one.experts for name, one in by_type.items() if one.experts != "each"} == {
        "gpt_oss": "interleaved", "gemma4_text": "fused", "qwen3_5_text": "fused", "qwen3_5_moe_text": "fused"}
    assert by_type["llama"].permuted == {"self_attn.q_proj", "self_attn.k_proj"} and not by_type["qwen2"].permuted
    assert "input_layernorm.weight" in by_type["gemma2"].centred and not by_type["gemma4_text"].centred
    assert chat_formats.choose(lambda token: False, "mistral") == "mistral"
    assert chat_formats.choose(lambda token: False, "llama") is None
