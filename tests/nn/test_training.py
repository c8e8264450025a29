"""Gradients through a model's packed weights to low-rank terms, against the same model written in array operations over
its dequantised weights, and, where there are other projects, against PyTorch on transformers' models."""
import os

import checkpoints
import numpy as np
import pytest
from checkpoints import SMALL

import gomlx.core as mx
from gomlx import _gomlx

pytestmark = pytest.mark.isa

ODD = SMALL | {"hidden_size": 100, "intermediate_size": 150, "vocab_size": 301, "num_attention_heads": 6,
               "head_dim": 20}
BLOCKS = SMALL | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 301}
CASES = {                   # config, format
    "f32": (ODD, "F32"),
    "bf16": (ODD, "BF16"),
    "window": (ODD | {"model_type": "mistral", "sliding_window": 70}, "F32"),
    "Q8_0": (BLOCKS, "Q8_0"),
    "Q4_0": (BLOCKS, "Q4_0"),
    "Q4_K": (BLOCKS, "Q4_K"),
    "Q6_K": (BLOCKS, "Q6_K"),
}
LENGTHS = [37, 130, 1, 64]                      # about the blocks of keys and tiles of rows: 64 and 96
RANK, SCALE = 3, 2.0


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """(config, path of a random checkpoint)."""
    config, kind = CASES[request.param]
    path = str(tmp_path_factory.mktemp("training") / "model.gguf")
    checkpoints.save_gguf(path, config, checkpoints.random_weights(config), kind)
    return config, path


def exact(path, threads=2):
    return _gomlx.load_model(path, threads=threads, activations="float32", kv_dtype="float32")


def projections(model):
    return [name[:-len(".weight")] for name in model.weight_names() if name.endswith("proj.weight")]


def parameters(model, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for name in projections(model):
        rows, columns = model.weight(name + ".weight").shape
        found[name] = (mx.array(rng.normal(0, columns ** -0.5, (RANK, columns)).astype(np.float32)),
                       mx.array(rng.normal(0, 0.05, (rows, RANK)).astype(np.float32)))
    return found


def texts(vocab, lengths=LENGTHS):
    return [np.random.default_rng(3 + i).integers(0, vocab, n).tolist() for i, n in enumerate(lengths)]


def engine_loss(model, sequences, sums=None, reduce=mx.mean, **options):
    ids, lengths = sum(sequences, []), [len(one) for one in sequences]
    starts = np.cumsum([0] + lengths[:-1])
    rows = np.concatenate([np.arange(a, a + n - 1) for a, n in zip(starts, lengths)]).astype(np.int32)
    targets = sum([one[1:] for one in sequences], [])

    def loss(p):
        x = model.rows(ids, lengths, terms=[(name, a, b, SCALE) for name, (a, b) in p.items()],
                       sums=sums and [sums[name] for name in p], **options)
        return reduce(model.loss(x[mx.array(rows)], targets, gradient=True, bf16=options.get("bf16", False)))
    return loss


def array_loss(model, config, sequences):
    """The same in operations of gomlx.core, over weights that are dequantised once."""
    weights = {name: model.weight(name) for name in model.weight_names()}
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    window = config.get("sliding_window") or 10**6

    def loss(p):
        def linear(x, name):
            a, b = p[name]
            return x @ weights[name + ".weight"].T + SCALE * (x @ a.T) @ b.T

        def hidden(ids):
            x = weights["model.embed_tokens.weight"][mx.array(ids)]
            seen = np.subtract.outer(np.arange(len(ids)), np.arange(len(ids)))
            mask = mx.array((seen >= 0) & (seen < window))
            for i in range(config["num_hidden_layers"]):
                at = f"model.layers.{i}."
                y = mx.fast.rms_norm(x, weights[at + "input_layernorm.weight"], config["rms_norm_eps"])
                q, k, v = (linear(y, f"{at}self_attn.{one}_proj").reshape(1, len(ids), n, -1).transpose(0, 2, 1, 3)
                           for one, n in (("q", heads), ("k", kv), ("v", kv)))
                q, k = (mx.fast.rope(one, one.shape[-1], traditional=False, base=config["rope_theta"], scale=1.0,
                                     offset=0) for one in (q, k))
                y = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
                x = x + linear(y.transpose(0, 2, 1, 3).reshape(len(ids), -1), at + "self_attn.o_proj")
                y = mx.fast.rms_norm(x, weights[at + "post_attention_layernorm.weight"], config["rms_norm_eps"])
                gate = linear(y, at + "mlp.gate_proj")
                x = x + linear(gate * mx.sigmoid(gate) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
            return mx.fast.rms_norm(x, weights["model.norm.weight"], config["rms_norm_eps"])

        losses = [mx.fast.cross_entropy(hidden(ids)[:-1] @ weights["model.embed_tokens.weight"].T, mx.array(ids[1:]))
                  for ids in sequences if len(ids) > 1]
        return mx.concatenate(losses).mean()
    return loss


def relative(found, want):
    found, want = np.asarray(found, np.float64), np.asarray(want, np.float64)
    return np.sqrt(((found - want) ** 2).mean() / (want ** 2).mean())


def test_gradients_are_those_of_the_dequantised_model(case):
    config, path = case
    model = exact(path)
    sequences, p = texts(config["vocab_size"]), parameters(model)
    value, grads = mx.value_and_grad(engine_loss(model, sequences))(p)
    want_value, want = mx.value_and_grad(array_loss(model, config, sequences))(p)
    assert abs(value.item() - want_value.item()) <= 2e-5 * want_value.item()
    for name in p:
        for k in range(2):
            assert relative(grads[name][k], want[name][k]) < 2e-5, (name, "ab"[k])


def bits(tree):
    return {name: (np.asarray(a).tobytes(), np.asarray(b).tobytes()) for name, (a, b) in tree.items()}


def test_gradients_of_products_in_bfloat16_are_near_those_of_exact_ones(case):
    config, path = case
    model = exact(path)
    sequences, p = texts(config["vocab_size"]), parameters(model)
    want_value, want = mx.value_and_grad(engine_loss(model, sequences))(p)
    value, grads = mx.value_and_grad(engine_loss(model, sequences, bf16=True))(p)
    assert 0 < abs(value.item() - want_value.item()) < 2e-3 * want_value.item()
    for name in p:
        for k in range(2):
            assert 0 < relative(grads[name][k], want[name][k]) < 0.05, (name, "ab"[k])


def test_a_head_in_bfloat16_rounds_both_factors(case):
    config, path = case
    model = exact(path)
    rows = mx.array(np.random.default_rng(5).normal(size=(70, config["hidden_size"])).astype(np.float32))
    ids = texts(config["vocab_size"], [70])[0]
    weight = model.weight("model.embed_tokens.weight").astype(mx.bfloat16).astype(mx.float32)
    value, grad = mx.value_and_grad(lambda x: model.loss(x, ids, gradient=True, bf16=True).sum())(rows)
    logits = np.asarray(rows.astype(mx.bfloat16).astype(mx.float32), np.float64) @ np.asarray(weight, np.float64).T
    chances = np.exp(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    want = -np.log(chances[np.arange(70), ids]).sum()
    assert abs(value.item() - want) < 1e-6 * want
    chances[np.arange(70), ids] -= 1
    assert relative(grad, chances @ np.asarray(weight, np.float64)) < 4e-3        # of what goes back one factor more


def test_products_are_rounded_in_one_way(tmp_path):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    model = exact(path)
    with pytest.raises(ValueError, match="int8 and bf16 at once"):
        model.rows([1], [1], int8=True, bf16=True)
    with pytest.raises(ValueError, match="int8 and bf16 at once"):
        model.loss(mx.zeros((1, 64)), [1], int8=True, bf16=True)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_same_bits_recomputed_and_on_any_number_of_threads(case, bf16):
    config, path = case
    model = exact(path)
    sequences, p = texts(config["vocab_size"]), parameters(model)
    value, want = mx.value_and_grad(engine_loss(model, sequences, bf16=bf16))(p)
    for threads, options in ((2, {"checkpoints": True}), (1, {}), (3, {"checkpoints": True})):
        again, grads = mx.value_and_grad(engine_loss(exact(path, threads), sequences, bf16=bf16, **options))(p)
        assert again.item() == value.item() and bits(grads) == bits(want), (threads, options)


@pytest.mark.parametrize("bf16", [False, True])
def test_sums_of_gradients_do_not_depend_on_the_passes_that_sequences_come_in(case, bf16):
    config, path = case
    model = exact(path)
    sequences, p = texts(config["vocab_size"], [37, 130, 2, 64, 200]), parameters(model)
    _, want = mx.value_and_grad(engine_loss(model, sequences, reduce=mx.sum, bf16=bf16))(p)
    for cuts in ([1, 2, 3, 4], [2], [4]):
        sums = None
        for begin, end in zip([0, *cuts], [*cuts, len(sequences)]):
            loss = engine_loss(model, sequences[begin:end], sums=sums, reduce=mx.sum, checkpoints=begin > 0, bf16=bf16)
            _, sums = mx.value_and_grad(loss)(p)
        assert bits(sums) == bits(want), cuts


@pytest.mark.parametrize("sums, error, message", [
    ([], ValueError, "sums: 0 for 1 terms"), ([3], TypeError, "expected None or pairs of arrays, found 3"),
    ([(np.zeros((3, 64), np.float32), np.zeros((3, 64), np.float32))], ValueError,
     r"the sum of gradients of b of model.layers.0.self_attn.q_proj is float32\(3,64\), expected float32\(64,3\)"),
])
def test_sums_that_do_not_fit_are_named(tmp_path, sums, error, message):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    given = [tuple(map(mx.array, one)) if isinstance(one, tuple) else one for one in sums]
    with pytest.raises(error, match=message):
        terms = [("model.layers.0.self_attn.q_proj", mx.zeros((3, 64)), mx.zeros((64, 3)), 1.0)]
        exact(path).rows([1], [1], terms=terms, sums=given)


def test_the_head_can_round_what_it_reads(tmp_path):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, BLOCKS, checkpoints.random_weights(BLOCKS), "Q8_0")
    model = _gomlx.load_model(path)
    ids = texts(BLOCKS["vocab_size"], [200])[0]
    rows = model.rows(ids[:-1], [199])

    def losses(int8):
        return mx.value_and_grad(lambda x: model.loss(x, ids[1:], gradient=True, int8=int8).mean())(rows)
    (exact_loss, want), (loss, found) = losses(False), losses(True)
    assert 0 < abs(loss.item() - exact_loss.item()) < 0.02 * exact_loss.item()
    assert 0 < relative(found, want) < 0.05


def test_rows_do_not_depend_on_the_other_sequences(case):
    config, path = case
    model = exact(path)
    sequences, p = texts(config["vocab_size"]), parameters(model)
    terms = [(name, a, b, SCALE) for name, (a, b) in p.items()]
    rows = np.asarray(model.rows(sum(sequences, []), LENGTHS, terms=terms))
    at = 0
    for one in sequences:
        alone = np.asarray(model.rows(one, [len(one)], terms=terms))
        assert alone.tobytes() == rows[at:at + len(one)].tobytes()
        at += len(one)


def test_losses_without_a_gradient_and_in_several_slices(case):
    config, path = case
    model = exact(path)
    ids = texts(config["vocab_size"], [600])[0]
    rows = model.rows(ids[:-1], [599])
    losses = np.asarray(model.loss(rows, ids[1:]))
    assert losses.shape == (599,)
    want = np.asarray(mx.fast.cross_entropy(rows @ model.weight("model.embed_tokens.weight").T, mx.array(ids[1:])))
    np.testing.assert_allclose(losses, want, rtol=2e-5, atol=2e-5)
    assert np.asarray(model.loss(rows, ids[1:], gradient=True)).tobytes() == losses.tobytes()


@pytest.mark.parametrize("bf16", [False, True])
def test_a_head_that_waits_in_its_file_gives_the_same_bits(case, bf16):
    config, path = case
    rows = mx.array(np.random.default_rng(5).normal(size=(70, config["hidden_size"])).astype(np.float32))
    ids = texts(config["vocab_size"], [70])[0]

    def found(model):
        value, grad = mx.value_and_grad(lambda x: model.loss(x, ids, gradient=True, bf16=bf16).sum())(rows)
        return value.item(), np.asarray(grad).tobytes()
    packed = exact(path)
    packed.rows([1], [1])
    assert found(exact(path)) == found(packed)


def test_a_loss_of_no_rows_is_an_error(tmp_path):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    with pytest.raises(ValueError, match="no targets"):
        exact(path).loss(mx.zeros((0, 64)), [])


@pytest.mark.parametrize("kind, targets", [("Q8_0", "qkvogud"), ("Q8_0", "qv"), ("BF16", "qv"), ("Q8_0", "d")])
def test_rounded_activations_pass_gradients_straight_through(tmp_path, kind, targets):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, BLOCKS, checkpoints.random_weights(BLOCKS), kind)
    model = _gomlx.load_model(path)
    sequences = texts(BLOCKS["vocab_size"])
    p = {name: terms for name, terms in parameters(model).items() if name.split(".")[-1][0] in targets}
    value, grads = mx.value_and_grad(engine_loss(model, sequences, int8=True))(p)
    again, same = mx.value_and_grad(engine_loss(model, sequences, int8=True, checkpoints=True))(p)
    assert again.item() == value.item() and bits(same) == bits(grads)
    plain, want = mx.value_and_grad(engine_loss(model, sequences))(p)
    if kind == "BF16" and not _gomlx.multiplies_bfloat16():
        assert value.item() == plain.item()     # such a set multiplies a bfloat16 matrix by float32 activations
    else:
        assert value.item() != plain.item() and abs(value.item() - plain.item()) < 0.02 * plain.item()
    assert all(relative(grads[name][k], want[name][k]) < 0.2 for name in p for k in range(2))


def test_the_head_is_computed_once_with_checkpoints(tmp_path):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    model = exact(path)
    p = parameters(model)

    def graph(**options):
        _, grads = mx.value_and_grad(engine_loss(model, [[1, 2, 3]], **options))(p)
        file = tmp_path / "graph.dot"
        mx.export_to_dot(str(file), [one for pair in grads.values() for one in pair])
        return file.read_text()
    assert graph(checkpoints=True).count("RowLoss") == graph().count("RowLoss") > 0
    assert graph(checkpoints=True).count("SequenceAttention\"") > graph().count("SequenceAttention\"") > 0


@pytest.mark.parametrize("change, message", [
    ({"layer": "model.layers.0.self_attn.q_proj\0more"}, "has a zero in its name"),
    ({"layer": "model.layers.0.self_attn.nothing"}, "no linear layer named model.layers.0.self_attn.nothing"),
    ({"a": np.zeros((3, 99), np.float32)}, r"a is float32\(3,99\).*expected \[rank, 64\]"),
    ({"b": np.zeros((64, 2), np.float32)}, r"b float32\(64,2\)"),
    ({"a": np.zeros((3, 64), np.int32)}, "a is int32"),
    ({"ids": [100]}, "token id 100 is outside the vocabulary of 100"),
    ({"lengths": [0]}, "lengths add up to 0 for 1 tokens"),
    ({"lengths": [1, 0]}, "sequence 1 has 0 tokens"),
])
def test_what_does_not_fit_is_named(tmp_path, change, message):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    model = exact(path)
    given = {"layer": "model.layers.0.self_attn.q_proj", "a": np.zeros((3, 64), np.float32),
             "b": np.zeros((64, 3), np.float32), "ids": [1], "lengths": [1]} | change
    with pytest.raises(ValueError, match=message):
        model.rows(given["ids"], given["lengths"],
                   terms=[(given["layer"], mx.array(given["a"]), mx.array(given["b"]), 1.0)])


def test_lengths_have_errors_of_their_own(tmp_path):
    path = str(tmp_path / "model.gguf")
    checkpoints.save_gguf(path, SMALL, checkpoints.random_weights(SMALL))
    with pytest.raises(OverflowError, match="length: 2147483648 is outside"):
        exact(path).rows([1], [2**31])
    with pytest.raises(TypeError, match="lengths must be a sequence of ints, not text"):
        exact(path).rows([1], "1")


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma4"])
def test_gradients_of_pytorch(name, shared):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = os.path.join(shared, "data", "models", name)
    model = exact(path)
    sequences, p = texts(model.vocab_size, [37, 101, 5]), parameters(model)
    value, grads = mx.value_and_grad(engine_loss(model, sequences))(p)
    again, same = mx.value_and_grad(engine_loss(model, sequences, checkpoints=True))(p)
    assert again.item() == value.item() and bits(same) == bits(grads)
    other = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    other.requires_grad_(False)
    modules, found = dict(other.named_modules()), {}

    def low_rank(a, b):
        return lambda module, given, out: out + SCALE * (given[0] @ a.T) @ b.T

    for layer, (a, b) in p.items():
        module = modules.get(layer) or modules[layer.replace("model.", "model.language_model.", 1)]
        found[layer] = [torch.tensor(np.asarray(one), requires_grad=True) for one in (a, b)]
        module.register_forward_hook(low_rank(*found[layer]))
    losses = [torch.nn.functional.cross_entropy(other(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]),
                                                reduction="none") for ids in sequences]
    want = torch.cat(losses).mean()
    want.backward()
    assert abs(value.item() - want.item()) < 1e-5 * want.item()
    for layer in p:
        for k in range(2):
            assert relative(grads[layer][k], found[layer][k].grad.numpy()) < 1e-4, (layer, "ab"[k])


def test_layers_without_a_gradient_are_refused(shared):
    path = os.path.join(shared, "data", "models", "qwen3_moe")
    with pytest.raises(NotImplementedError, match="embedding or the head"):
        llama = exact(os.path.join(shared, "data", "models", "mistral"))
        head = llama.weight("lm_head.weight").shape
        llama.rows([1], [1], terms=[("lm_head", mx.zeros((1, head[1])), mx.zeros((head[0], 1)), 1.0)])
    with pytest.raises(NotImplementedError, match="a mixture of experts, through which no gradient goes yet"):
        exact(path).rows([1, 2], [2])
