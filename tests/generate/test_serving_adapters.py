"""Adapters that a loaded model serves: logits against the model with the adapter in its weights, rows with different
adapters in one pass to the bits that each has alone, and what sessions and caches make of them."""
import contextlib
import json
import threading

import checkpoints
import numpy as np
import pytest
from checkpoints import SMALL

import gomlx
import gomlx.core as mx
from gomlx import Adapter, PromptCache, Term, _gomlx, cli
from gomlx._training.adapter import row_squares

ODD = SMALL | {"hidden_size": 100, "intermediate_size": 150, "vocab_size": 301, "num_attention_heads": 6,
               "head_dim": 20}
BLOCKS = SMALL | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 301}
CASES = {                   # config, format, activations
    "f32": (ODD, "F32", "float32"),
    "bf16": (BLOCKS, "BF16", "bfloat16"),
    "bf16 exact": (BLOCKS, "BF16", "float32"),
    "Q8_0": (BLOCKS, "Q8_0", "int8"),
    "Q4_K": (BLOCKS, "Q4_K", "int8"),
    "Q4_K exact": (BLOCKS, "Q4_K", "float32"),
}
TARGETS = {                 # what the adapters of a batch are on, and their ranks
    "all": (("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 16),
    "attention": (("q_proj", "v_proj"), 3),
    "down": (("down_proj",), 1),
    "gate": (("gate_proj", "o_proj"), 7),
    "large": (("k_proj", "up_proj"), 33),
    "lengths": (("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"), 5),       # with magnitudes
}
DTYPES = {"down": mx.bfloat16, "gate": mx.float16}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A function from a name of CASES to the path of its checkpoint."""
    folder, made = tmp_path_factory.mktemp("adapters"), {}

    def path(name):
        config, kind, _ = CASES[name]
        if kind not in made:
            made[kind] = str(folder / f"{kind}.gguf")
            weights = checkpoints.random_weights(config)
            weights["model.embed_tokens.weight"] *= 0.1             # answers that are not certain
            checkpoints.save_gguf(made[kind], config, weights, kind)
        return made[kind]
    return path


def load(path, activations, threads=2):
    return _gomlx.load_model(path, threads=threads, activations=activations,
                             kv_dtype="float32" if activations == "float32" else None)


def terms(model, name, seed=0):
    """Of every layer that the name of TARGETS means, of a size that changes answers."""
    targets, rank = TARGETS[name]
    lengths = name == "lengths"
    rng, dtype, made = np.random.default_rng([seed, rank]), DTYPES.get(name, mx.float32), []
    for weight in model.weight_names():
        layer = weight.removesuffix(".weight")
        shape = model.weight(weight).shape
        if not layer.endswith(targets) or len(shape) != 2:       # stacks of experts have three
            continue
        rows, columns = shape
        a = mx.array(rng.normal(0, columns ** -0.5, (rank, columns)).astype(np.float32)).astype(dtype)
        b = mx.array(rng.normal(0, 0.3 * rank ** -0.5, (rows, rank)).astype(np.float32)).astype(dtype)
        made.append((layer, a, b, 1.5))
        if lengths:
            squares = row_squares(model, layer)
            made[-1] += (mx.sqrt(squares) * mx.array(rng.uniform(0.6, 1.4, rows).astype(np.float32)), squares)
    return made


def some_ids(n, seed=0, vocab=301):
    return np.random.default_rng([7, seed]).integers(0, vocab, n).tolist()


def fused(path, folder, config, shares):
    """A float32 checkpoint with the adapters in the weights of another."""
    base = load(path, "float32")
    weights = {name: np.array(base.weight(name)) for name in base.weight_names()}
    for parts, weight in shares:
        for layer, a, b, scale, *lengths in parts:
            a, b = (np.array(x.astype(mx.float32)).astype(np.float64) for x in (a, b))
            old = np.array(base.weight(layer + ".weight")).astype(np.float64)
            new = old + scale * (b @ a)
            for magnitude in lengths[:1]:
                new *= np.array(magnitude)[:, None] / np.linalg.norm(new, axis=1, keepdims=True)
            weights[layer + ".weight"] = weights[layer + ".weight"] + weight * (new - old)
    out = str(folder / "fused.gguf")
    checkpoints.save_gguf(out, config, {name: value.astype(np.float32) for name, value in weights.items()}, "F32")
    return load(out, "float32")


@pytest.mark.isa
@pytest.mark.parametrize("name", ["f32", "bf16 exact", "Q4_K exact"])
@pytest.mark.parametrize("mix", [{"all": 1.0}, {"down": 1.0}, {"attention": 0.7, "large": -0.3, "gate": 1.0},
                                 {"lengths": 1.0}, {"lengths": 0.6, "all": 0.4}])
def test_logits_are_those_of_the_fused_model(paths, tmp_path, name, mix):
    model, made = load(paths(name), "float32"), {}
    for one in mix:
        made[one] = terms(model, one)
        model.load_adapter(one, made[one])
    ids = some_ids(70)
    want = np.array(fused(paths(name), tmp_path, CASES[name][0], [(made[one], w) for one, w in mix.items()])
                    .logits([ids])[0])
    got = np.array(model.logits([ids], adapters=list(mix.items()))[0])
    base = np.array(model.logits([ids])[0])
    assert np.abs(got - want).max() < 1e-4 * max(1, np.abs(want).max())      # float32 sums in other orders
    assert np.abs(base - want).max() > 0.1


def events(engine, members):
    """[(ids, likeliest ids and logprobs)] of members (prompt, shares, tokens), decoded together."""
    decoder, streams = engine.new_decoder(), []
    for i, (prompt, shares, n) in enumerate(members):
        streams.append(_gomlx.stream(engine.new_session(), None, prompt, seed=i, temperature=1.0, max_tokens=n,
                                     top_logprobs=20, adapters=shares))
        decoder.add(streams[-1])
    found = {stream: ([], []) for stream in streams}
    while (event := decoder.step()) is not None:
        stream, token = event
        found[stream][0].append(token.id)
        found[stream][1].append(token.top_logprobs)
    return [found[stream] for stream in streams]


def alone(engine, i, member):
    prompt, shares, n = member
    with _gomlx.stream(engine.new_session(), None, prompt, seed=i, temperature=1.0, max_tokens=n, top_logprobs=20,
                       adapters=shares) as stream:
        tokens = list(stream)
    return [one.id for one in tokens], [one.top_logprobs for one in tokens]


MEMBERS = [         # (rows of the prompt, shares, tokens)
    (1, [], 9), (40, [("all", 1.0)], 6), (3, [("attention", 1.0)], 9), (600, [("all", 1.0)], 4),
    (5, [("down", 1.0)], 9), (17, [("gate", 1.0)], 3), (2, [("large", 1.0)], 9),
    (49, [("large", 0.5), ("all", 0.5)], 9), (12, [("lengths", 1.0)], 9), (30, [("lengths", 0.5), ("gate", 1.0)], 7)]


def members():
    return [(some_ids(n, i), shares, tokens) for i, (n, shares, tokens) in enumerate(MEMBERS)]


@pytest.mark.isa
@pytest.mark.parametrize("name", CASES)
def test_each_of_a_batch_has_the_bits_that_it_has_alone(paths, name):
    engine = load(paths(name), CASES[name][2])
    for one in TARGETS:
        engine.load_adapter(one, terms(engine, one))
    together = events(engine, members())
    assert together == [alone(engine, i, member) for i, member in enumerate(members())]
    assert all(logprobs[0][0][1] < 0 for _, logprobs in together)


def test_threads_and_chunks_change_no_bit(paths):
    found = []
    for threads in (1, 2, 3):
        engine = load(paths("Q4_K"), "int8", threads)
        for one in TARGETS:
            engine.load_adapter(one, terms(engine, one))
        found.append((events(engine, members()[1:5]),
                      np.array(engine.logits([some_ids(300)], adapters=[("all", 1.0)])[0]).tobytes()))
    assert found[0] == found[1] == found[2]
    ids = some_ids(60)
    whole = np.array(engine.logits([ids], adapters=[("all", 1.0)])[0])
    for n in (1, 2, 7, 48, 49):
        assert np.array_equal(whole[:n], np.array(engine.logits([ids[:n]], adapters=[("all", 1.0)])[0]))


def test_the_order_of_a_mix_changes_no_bit_and_a_copy_is_the_same(paths):
    engine = load(paths("Q8_0"), "int8")
    for one in ("all", "down"):
        engine.load_adapter(one, terms(engine, one))
        engine.load_adapter(one + " again", list(reversed(terms(engine, one))))
    ids = [some_ids(9)]
    both = [("all", 0.25), ("down", 2.0)]
    first = np.array(engine.logits(ids, adapters=both)[0])
    assert np.array_equal(first, np.array(engine.logits(ids, adapters=both[::-1])[0]))
    assert np.array_equal(first, np.array(engine.logits(ids, adapters=[("down again", 2.0), ("all again", 0.25)])[0]))
    known = {one["name"]: one for one in engine.adapters()}
    assert known["all"]["hash"] == known["all again"]["hash"] != known["down"]["hash"]
    assert known["all"]["least_rank"] == known["all"]["most_rank"] == 16 and known["down"]["terms"] == 2
    assert known["down"]["bytes"] == 2 * known["down"]["parameters"]         # bfloat16 stays


def test_adapters_come_and_go_while_others_generate(paths):
    engine = load(paths("Q4_K"), "int8")
    engine.load_adapter("all", terms(engine, "all"))
    member = (some_ids(5), [("all", 1.0)], 60)
    want, plain = alone(engine, 0, member), alone(engine, 0, (member[0], [], 60))
    found, wrong = [], []

    def generate():
        try:
            found.append(alone(engine, 0, member))
            found.append(alone(engine, 0, (member[0], [], 60)))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=generate) for _ in range(3)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        engine.load_adapter("gate", terms(engine, "gate"))
        engine.logits([some_ids(3)], adapters=[("gate", 1.0)])
        engine.unload_adapter("gate")
    for one in threads:
        one.join()
    assert not wrong and found.count(want) == 3 and found.count(plain) == 3


def test_what_runs_with_an_adapter_keeps_it_and_no_longer(paths):
    engine = load(paths("Q8_0"), "int8")
    engine.logits([some_ids(3)])
    engine.logits([some_ids(3)])                                     # packed by now
    session, before = engine.new_session(), _gomlx.get_active_memory()
    engine.load_adapter("all", terms(engine, "all"))
    bytes_ = engine.adapters()[0]["bytes"]
    want, _ = alone(engine, 0, (some_ids(4), [("all", 1.0)], 8))
    stream = _gomlx.stream(session, None, some_ids(4), seed=0, temperature=1.0, max_tokens=8, adapters=[("all", 1.0)])
    got = [next(stream).id]
    engine.unload_adapter("all")
    assert engine.adapters() == []
    got += [token.id for token in stream]
    assert got == want
    del stream
    kept = _gomlx.get_active_memory() - before - session.nbytes
    assert kept < bytes_ / 2, (kept, bytes_)
    with pytest.raises(ValueError, match="there is no all; none is loaded"):
        _gomlx.stream(engine.new_session(), None, [1], adapters=[("all", 1.0)])


def test_errors_name_what_is_wrong(paths):
    engine = load(paths("Q8_0"), "int8")
    layer = "model.layers.0.self_attn.q_proj"
    a, b = mx.zeros((2, 256)), mx.zeros((256, 2))
    engine.load_adapter("one", [(layer, a, b, 1.0)])
    for message, term in {
        r"no linear layer named model.layers.0.self_attn.x_proj": ("model.layers.0.self_attn.x_proj", a, b, 1.0),
        r"a is float32\(2,255\) and b float32\(256,2\) for model.layers.0.self_attn.q_proj of \[256, 256\], expected "
        r"\[rank, 256\] and \[256, rank\]": (layer, mx.zeros((2, 255)), b, 1.0),
        r"a is float32\(2,256\) and b float32\(256,3\)": (layer, a, mx.zeros((256, 3)), 1.0),
        r"a is int32": (layer, mx.zeros((2, 256), mx.int32), b, 1.0),
    }.items():
        with pytest.raises(ValueError, match=message):
            engine.load_adapter("two", [term])
    with pytest.raises(NotImplementedError, match="embed_tokens is an embedding"):
        engine.load_adapter("two", [("model.embed_tokens", a, mx.zeros((301, 2)), 1.0)])
    with pytest.raises(ValueError, match="one is loaded already"):
        engine.load_adapter("one", [(layer, a, b, 1.0)])
    for name in ("", "x" * 64):
        with pytest.raises(ValueError, match="expected 1 to 63"):
            engine.load_adapter(name, [(layer, a, b, 1.0)])
    with pytest.raises(ValueError, match="no terms"):
        engine.load_adapter("two", [])
    engine.load_adapter("other", [(layer, a, b, 1.0)])
    for call in (lambda: engine.unload_adapter("x"), lambda: engine.logits([[1]], adapters=[("x", 1.0)]),
                 lambda: engine.inspect([1], [0], adapters=[("x", 1.0)])):
        with pytest.raises(ValueError, match="there is no x; loaded are one, other"):
            call()
    with pytest.raises(ValueError, match="weight of one is nan"):
        engine.logits([[1]], adapters=[("one", float("nan"))])


def test_experts_are_refused(shared):
    path = f"{shared}/data/models/qwen3_moe"
    try:
        engine = _gomlx.load_model(path)
    except (OSError, NotImplementedError) as error:
        pytest.skip(str(error))
    name = next(one for one in engine.weight_names() if "experts.gate_proj" in one).removesuffix(".weight")
    with pytest.raises(NotImplementedError, match="stack of experts"):
        engine.load_adapter("a", [(name, mx.zeros((2, 4)), mx.zeros((4, 2)), 1.0)])


# ---- the whole model ----

@pytest.fixture
def fable():
    with gomlx.load(prompt_cache=PromptCache(min_tokens=16)) as model:
        yield model


def adapter_of(model, name, seed=0):
    return Adapter({layer: Term(a, b, scale) for layer, a, b, scale in terms(model._engine, name, seed)})


def same(a, b):
    return a.tokens == b.tokens and a.logprobs == b.logprobs


def test_generations_choose(fable):
    assert fable.load_adapter(adapter_of(fable, "all"), "a") == "a"
    assert fable.load_adapter(adapter_of(fable, "gate", 1)) == "adapter"
    assert fable.load_adapter(adapter_of(fable, "gate", 2)) == "adapter-2"
    assert list(fable.adapters) == ["a", "adapter", "adapter-2"]
    assert fable.adapters["a"]["ranks"] == (16, 16) and fable.supports("adapters")
    prompts = ["Once upon a time", "The cat", "Tom and", "One day"]
    chosen = [{"adapter": "a"}, {}, {"adapter": {"a": 0.5, "adapter": 0.5}}, {"adapter": {}}]
    options = {"max_tokens": 12, "temperature": 0.8, "seed": 4}
    results = fable.generate_batch(prompts, options=chosen, **options).read()
    for prompt, own, result in zip(prompts, chosen, results, strict=True):
        assert same(result, fable.generate(prompt, **options, **own).read())
    plain = fable.generate(prompts[0], **options).read()
    assert not same(results[0], plain)
    fable.adapter = "a"
    assert same(fable.generate(prompts[0], **options).read(), results[0])
    assert same(fable.generate(prompts[0], adapter={}, **options).read(), plain)
    samples = fable.generate(prompts[0], n=2, **options).read()
    assert same(samples[0], results[0])
    fable.adapter = {"a": 0.5, "adapter": 0.25}
    fable.unload_adapter("a")
    assert fable.adapter == {"adapter": 0.25}
    assert same(fable.generate(prompts[0], **options).read(),
                fable.generate(prompts[0], adapter={"adapter": 0.25}, **options).read())
    fable.adapter = None
    assert same(fable.generate(prompts[0], **options).read(), plain)
    with pytest.raises(ValueError, match="no a; loaded are adapter, adapter-2"):
        fable.generate("x", adapter="a")
    failed, done = fable.generate_batch(prompts[:2], options=[{"adapter": "a"}, {}], **options).read()
    assert "there is no a" in str(failed.error) and done.error is None and same(done, results[1])
    for wrong in (3, ["a"], {"a": "1"}):
        with pytest.raises(TypeError, match="adapter"):
            fable.generate("x", adapter=wrong)


def test_what_is_used_by_default_is_checked(fable):
    fable.load_adapter(adapter_of(fable, "gate"), "g")
    for wrong, kind, said in ((5, TypeError, "model.adapter: expected the name"), (["g"], TypeError, "model.adapter"),
                              ({"g": 10**400}, ValueError, "model.adapter: the weight of 'g' is 1000"),
                              ({"g": float("inf")}, ValueError, "weight of 'g' is inf"),
                              ({"g": 1e200}, ValueError, r"expected a finite number below 1e\+30")):
        fable.adapter = wrong
        for call in (lambda: fable.generate("x"), lambda: fable.logits("x"), lambda: fable.unload_adapter("g")):
            with pytest.raises(kind, match=said):
                call()
        fable.adapter = None
        if wrong != 5:
            with pytest.raises(kind, match=said.replace("model.", "")):
                fable.generate("x", adapter=wrong)
    fable.adapter = "g"
    fable.unload_adapter("g")
    assert fable.adapter is None and fable.adapters == {}
    fable.load_adapter(adapter_of(fable, "gate"), "g")
    fable.adapter = {"g": 2}
    fable.unload_adapter("g")
    assert fable.adapter is None


def test_logits_scores_and_activations(fable):
    fable.load_adapter(adapter_of(fable, "all"), "a")
    text = "Once upon a time there was a dog"
    plain, adapted = fable.logits(text), fable.logits(text, adapter="a")
    assert not np.array_equal(np.array(plain), np.array(adapted))
    last = fable.classify([text], return_logits=True, adapter="a")[0].logits
    assert np.array_equal(np.array(last), np.array(adapted)[-1])
    assert fable.score(text, adapter="a").total != fable.score(text).total
    assert not np.array_equal(np.array(fable.embed(text)), np.array(fable.embed(text, adapter="a")))
    assert np.array_equal(np.array(fable.inspect(text, "logits", adapter="a")["logits"]), np.array(adapted))
    assert fable.validate(text, adapter="a").kl < 0.1
    fable.adapter = "a"
    assert np.array_equal(np.array(fable.logits(text)), np.array(adapted))


def test_sessions_and_saved_states_belong_to_their_adapter(fable, tmp_path):
    fable.load_adapter(adapter_of(fable, "all"), "a")
    fable.load_adapter(adapter_of(fable, "gate"), "b")
    options = {"max_tokens": 6, "temperature": 0.0}
    with contextlib.closing(fable.session()) as session:
        fable.generate("Once upon a time", session=session, adapter="a", **options).read()
        assert [(name, weight) for name, _, weight in session.adapters] == [("a", 1.0)]
        for other, said in ({"b": 1.0}, "adapter 'b'"), ({}, "no adapter"), ({"a": 0.5}, "'a' times 0.5"):
            with pytest.raises(gomlx.KvStateNotAvailable,
                               match=f"begun with adapter 'a' and cannot go on with .*{said}"):
                fable.generate(" there", session=session, append=True, adapter=other)
        with pytest.raises(RuntimeError, match="begun with adapter 'a' .* cannot go on with adapter 'b'"):
            _gomlx.stream(session, None, session.ids, adapters=[("b", 1.0)])
        saved, ids = session.save(), session.ids
        bundle = fable.bundle(session)
        logits = np.array(session.step([5]))                 # with its own adapter
        fable.generate("One day", session=session, reset=True, adapter="b", **options).read()
        assert [name for name, *_ in session.adapters] == ["b"]
    fable.unload_adapter("a")
    again = fable.restore_session(saved)
    assert [name for name, *_ in again.adapters] == ["a"] and again.ids == ids
    with pytest.raises(RuntimeError, match="a, with which the session was begun, is not loaded"):
        again.step([5])
    bundle.save(tmp_path / "bundle.json")
    bundle = gomlx.StateBundle.load(tmp_path / "bundle.json")
    with pytest.raises(ValueError, match="made with adapter 'a' .*; loaded here: 'b'"):
        bundle.restore(fable)
    fable.load_adapter(adapter_of(fable, "all"), "renamed")          # equal bits, another name
    assert np.array_equal(np.array(again.step([5])), logits)
    assert bundle.restore(fable).ids == ids
    for i in (0, 40, 48, 60, 100):                                    # words, names, weights
        broken = bytearray(saved)
        broken[i] ^= 0x55
        with pytest.raises(gomlx.Error):
            fable.restore_session(bytes(broken))


def test_the_prompt_cache_is_keyed_by_adapter(fable):
    prompt = fable.encode("Once upon a time there was a little dog who lived in a big house. " * 4)
    fable.load_adapter(adapter_of(fable, "all"), "a")
    options = {"max_tokens": 3, "temperature": 0.0}
    first = fable.generate(prompt, adapter="a", **options).read()
    assert fable.generate(prompt, **options).read().cached_tokens == 0
    assert fable.generate(prompt, adapter={"a": 0.5}, **options).read().cached_tokens == 0
    second = fable.generate(prompt, adapter="a", **options).read()
    assert second.cached_tokens == len(prompt) - 1 and same(first, second)
    fable.load_adapter(adapter_of(fable, "all"), "copy")
    assert fable.generate(prompt, adapter="copy", **options).read().cached_tokens == len(prompt) - 1
    fable.unload_adapter("copy")
    assert fable.generate(prompt, adapter="a", **options).read().cached_tokens == len(prompt) - 1
    fable.unload_adapter("a")
    fable.load_adapter(adapter_of(fable, "gate"), "a")                # the same name, other bits
    assert fable.generate(prompt, adapter="a", **options).read().cached_tokens == 0
    fable.prompt_cache.clear()
    assert fable.warm_prompt_cache(prompt, adapter="a") == len(prompt)
    assert fable.generate(prompt, adapter="a", **options).read().cached_tokens == len(prompt) - 1


def test_chats_go_on_with_their_adapter(fable):
    fable.load_adapter(adapter_of(fable, "attention"), "a")
    messages = [{"role": "user", "content": "Tell me a story."}]
    options = {"max_tokens": 4, "temperature": 0.0}
    with contextlib.closing(fable.session()) as session:
        first = fable.chat(messages, session=session, adapter="a", **options).read()
        messages += [first.message, {"role": "user", "content": "And then?"}]
        assert fable.chat(messages, session=session, adapter="a", **options).read().cached_tokens > 0
        with pytest.raises(gomlx.KvStateNotAvailable, match="begun with adapter 'a'"):
            fable.chat(messages, session=session, **options)
        fable.chat(messages, session=session, reset=True, **options).read()
        assert session.adapters == ()


def test_what_cannot_be_served_is_refused(fable):
    layer = "model.layers.0.mlp.up_proj"
    rows, columns = fable._engine.weight(layer + ".weight").shape
    a, b = mx.zeros((2, columns)), mx.zeros((rows, 2))
    with pytest.raises(ValueError, match="no layer 'model.layers.9.mlp.up_proj'"):
        fable.load_adapter(Adapter({"model.layers.9.mlp.up_proj": Term(a, b, 1.0, mx.ones((rows,)))}))
    with pytest.raises(NotImplementedError, match="replaces 1 weights"):
        fable.load_adapter(Adapter({layer: Term(a, b, 1.0)}, {"model.norm.weight": mx.ones((columns,))}))
    with pytest.raises(TypeError, match="expected a path or a gomlx.Adapter"):
        fable.load_adapter({})
    with pytest.raises(FileNotFoundError):
        fable.load_adapter("/no/such/adapter")
    with pytest.raises(ValueError, match=f"{layer}.lora_b: NaN or infinite numbers"):
        fable.load_adapter(Adapter({layer: Term(a, b / 0, 1.0)}))
    assert fable.adapters == {}


def test_an_adapter_at_load(fable, tmp_path):
    path = tmp_path / "tuned"
    gomlx.save_adapter(adapter_of(fable, "all"), path, "peft")
    with gomlx.load(adapter_path=path) as model:
        assert model.adapter == {"tuned": 1.0} and list(model.adapters) == ["tuned"]
        fable.load_adapter(adapter_of(fable, "all"), "a")
        options = {"max_tokens": 6, "temperature": 0.0}
        assert same(model.generate("Once", **options).read(), fable.generate("Once", adapter="a", **options).read())
    for given, want in ((adapter_of(fable, "all"), ["adapter"]), ([path, adapter_of(fable, "gate")],
                                                                  ["tuned", "adapter"]), ([], [])):
        with gomlx.load(adapter_path=given) as model:
            assert sorted(model.adapters) == sorted(want) and (model.adapter or {}) == dict.fromkeys(want, 1.0)
    for wrong, said in (({str(path): 0.5}, "got dict .*: weights are set in model.adapter"), (5, "got 5"),
                        (b"x", "got b'x'"), ([str(path), 5], "found 5")):
        with pytest.raises(TypeError, match=f"adapter_path: expected a path, .* or a list of them, {said}"):
            gomlx.load("no such model", adapter_path=wrong)


def test_the_command_line(fable, tmp_path, capfd):
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for seed, path in enumerate(paths):
        gomlx.save_adapter(adapter_of(fable, "gate", seed), path, "mlx-lm")
        fable.load_adapter(path)
    options = ["-n", "8", "-t", "0", "--json", "--adapter", paths[0]]
    want = {name: fable.generate("Once", max_tokens=8, temperature=0, adapter=choice).read().tokens
            for name, choice in {"one": "one", "both": {"one": 1, "two": 1}, "two": "two", "none": {}}.items()}
    assert cli.main(["generate", "Once", *options]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["tokens"] == want["one"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Once"}\n{"prompt": "Once", "adapter": "two"}\n{"prompt": "Once", "adapter": {}}\n')
    assert cli.main(["batch", str(prompts), *options, "--adapter", paths[1]]) == 0
    rows = {row["line"]: row["tokens"] for row in map(json.loads, capfd.readouterr().out.splitlines())}
    assert [rows[i] for i in (1, 2, 3)] == [want["both"], want["two"], want["none"]]
    assert cli.main(["generate", "Once", "--adapter", str(tmp_path / "none")]) == 1
    assert "none" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma2", "gemma3",
                                  "gemma4", "gpt_oss"])
def test_every_architecture(shared, name):
    """Against the forward pass of training, which is of other operations, and the bits of a batch."""
    path = f"{shared}/data/models/{name}"
    try:
        engine = load(path, "float32")
    except (OSError, NotImplementedError) as error:
        pytest.skip(str(error))
    made = terms(engine, "all")
    engine.load_adapter("a", made)
    assert {layer.rsplit(".", 1)[1] for layer, *_ in made} >= {"q_proj", "k_proj", "v_proj", "o_proj"}
    ids = some_ids(40, vocab=250)
    adapted, plain = (np.array(engine.score("hidden", [ids], adapters=one)[0]) for one in ([("a", 1.0)], ()))
    assert np.abs(adapted - plain).max() > 0.01 * np.abs(plain).max()
    want = np.array(engine.rows(ids, [len(ids)], terms=made))
    assert np.abs(adapted - want).max() < 1e-4 * np.abs(want).max()
    some = [(some_ids(n, n, 250), shares, 5) for n, shares in ((7, [("a", 1.0)]), (30, []), (1, [("a", 0.5)]))]
    assert events(engine, some) == [alone(engine, i, member) for i, member in enumerate(some)]
