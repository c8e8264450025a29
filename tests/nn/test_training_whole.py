"""modules_to_save: weights that are trained themselves, beside PyTorch, in any passes, in other programs."""
import os

import numpy as np
import pytest

import gomlx
import gomlx.core as mx
from gomlx import _gomlx, lora
from gomlx._training.config import new_adapter
from gomlx._training.losses import Forward

ROWS = [{"prompt": f"Tell me about number {i}.", "completion": f"Once upon a time the number {i} met a cat."}
        for i in range(12)]
NORMS = ("norm", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
CASES = {                       # what is trained whole of a shared model
    "mistral": ("norm", "input_layernorm", "embed_tokens", "lm_head", "o_proj"),
    "gpt_oss": ("norm", "input_layernorm", "embed_tokens", "lm_head", "o_proj", "router"),
    "qwen2": ("norm", "input_layernorm", "k_proj", "down_proj"),
    "qwen3": (*NORMS, "gate_proj"),
    "gemma2": ("norm", "input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "gemma3": (*NORMS, "up_proj"),
    "gemma4": (*NORMS, "o_proj"),
    "qwen3_moe": (*NORMS, "gate"),
    "qwen3_5": ("model.norm", *NORMS[1:], "out_proj"),
}


def loaded(shared, name):
    return gomlx.load(os.path.join(shared, "data", "models", name), activations="float32", kv_dtype="float32")


def train(model, data=ROWS, **changes):
    return gomlx.train(model, data, **{"learning_rate": 5e-3, "progress": False} | changes)


def bits(arrays):
    return {name: np.asarray(value.astype(mx.float32)).tobytes() for name, value in arrays.items()}


def relative(found, want):
    found, want = np.asarray(found, np.float64), np.asarray(want, np.float64)
    return np.sqrt(((found - want) ** 2).mean() / (want ** 2).mean())


def gradients(model, adapter, sequences, **options):
    """(loss, gradients by parameter) of sequences in one pass; sums: of a pass before."""
    sums = options.pop("sums", {})
    forward = Forward(model, adapter, **options)
    value, found = mx.value_and_grad(lambda p: forward.losses(p, sequences, sums).sum())(adapter.parameters())
    mx.eval(value, found)
    return value.item(), found


def texts(model):
    data = lora.load_data([{"text": "Once upon a time there was a cat who met a dog."}, {"text": "Yes."},
                           {"text": "The number twelve is larger than the number seven, " * 6}], model)
    return [row.sequences[0] for row in data.rows]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_pytorch(name, shared):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    other = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(shared, "data", "models", name),
                                                              dtype=torch.float32, attn_implementation="eager")
    with loaded(shared, name) as model:
        adapter = new_adapter(model, lora.LoRAConfig(targets=["v_proj"], modules_to_save=[
            one for one in CASES[name] if any(f".{one}." in f".{weight}" for weight in model._engine.weight_names())]))
        sequences = texts(model)
        value, found = gradients(model, adapter, sequences)
        again, same = gradients(model, adapter, sequences, checkpoints=True)
        assert again == value and bits(same) == bits(found)
        sums = {}
        for one in sequences:
            _, sums = gradients(model, adapter, [one], sums=sums)
        assert bits(sums) == bits(found)
        assert abs(gradients(model, adapter, sequences, products="bf16")[0] - value) < 1e-2 * value
    want = sum(torch.nn.functional.cross_entropy(other(torch.tensor([list(one.ids)])).logits[0, :-1],
                                                 torch.tensor(list(one.ids[1:])), reduction="sum")
               for one in sequences)
    want.backward()
    assert abs(value - want.item()) < 1e-5 * want.item()
    theirs = {weight.replace("model.language_model.", "model."): one for weight, one in other.named_parameters()}
    assert len(adapter.full) > 4
    for weight, values in adapter.full.items():
        assert relative(values, theirs[weight].detach()) < 1e-6, weight
        assert relative(found[weight], theirs[weight].grad) < 2e-4, weight


@pytest.mark.parametrize("name, modules", [("mistral", ["lm_head", "embed_tokens", "norm"]),
                                           ("qwen2", ["k_proj", "norm"]), ("gemma3", ["norm", "input_layernorm"])])
def test_what_was_trained_runs_in_peft_and_fused(name, modules, shared, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    config = lora.LoRAConfig(targets=["v_proj"], modules_to_save=modules)
    with loaded(shared, name) as model:
        run = train(model, steps=3, batch=6, lora=config, learning_rate=1e-2, run=tmp_path / "run").finish()
        begun = model.apply_lora(config)
        moved = [weight for weight, values in run.adapter.full.items()
                 if np.abs(np.asarray(values) - np.asarray(begun.full[weight])).max() > 1e-3]
        assert moved == list(begun.full) and run.losses[-1] < 0.9 * run.losses[0]
        loss, ids = run.evaluate(ROWS).loss, model.tokenizer.encode("Once upon a time there was a cat")
        kept = gomlx.read_adapter(tmp_path / "run" / "adapter", model)
        assert bits(kept.parameters()) == bits(run.adapter.parameters())
        with pytest.raises(NotImplementedError, match="fuse it into the model"):
            model.load_adapter(tmp_path / "run" / "adapter")
    path = os.path.join(shared, "data", "models", name)
    other = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    other = peft.PeftModel.from_pretrained(other, tmp_path / "run" / "adapter")
    with torch.no_grad():
        want = other(torch.tensor([ids])).logits[0].numpy()
    gomlx.fuse(path, tmp_path / "run" / "adapter", tmp_path / "fused", "f32", text=None, progress=False)
    with gomlx.load(tmp_path / "fused", activations="float32", kv_dtype="float32") as fused:
        found = np.asarray(fused.logits(ids))
        assert abs(train(fused).evaluate(ROWS).loss - loss) < 1e-4 * loss
    assert np.abs(found - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_have_the_same_bits_however_they_are_computed(dtype, shared, tmp_path):
    config = lora.LoRAConfig(rank=2, dtype=dtype, modules_to_save=["lm_head", "embed_tokens", "norm", "down_proj"])
    with loaded(shared, "mistral") as model:
        options = {"steps": 3, "lora": config, "batch": 4}
        plain = train(model, **options).finish()
        again = train(model, checkpoints=True, **options).finish()
        assert again.losses == plain.losses and bits(again.adapter.parameters()) == bits(plain.adapter.parameters())
        again = train(model, **options | {"batch": 1, "accumulate": 4}).finish()
        assert again.losses == plain.losses and bits(again.adapter.parameters()) == bits(plain.adapter.parameters())
        run = train(model, run=tmp_path / "run", **options)
        next(run)
        run.stop()
        again = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False).finish()
        assert again.losses == plain.losses and bits(again.adapter.parameters()) == bits(plain.adapter.parameters())
        kept = train(model, lora=gomlx.read_adapter(tmp_path / "run" / "adapter", model))
        assert kept.evaluate(ROWS).loss == again.evaluate(ROWS).loss


def test_preferences_move_a_head(shared):
    pairs = [{"prompt": f"Number {i}?", "chosen": f"The number {i} met a cat.", "rejected": "No."} for i in range(4)]
    with loaded(shared, "mistral") as model:
        config = lora.LoRAConfig(modules_to_save=["lm_head"])
        run = train(model, pairs, loss="dpo", steps=4, lora=config, learning_rate=1e-3).finish()
        assert abs(run.losses[0] - np.log(2)) < 1e-5 and run.losses[-1] < 0.6
        assert np.abs(np.asarray(run.adapter.full["lm_head.weight"] - model._engine.weight("lm_head.weight"))).max() > 0
        with pytest.raises(NotImplementedError, match=r"lm_head.weight is trained as a whole"):
            train(model, loss="distillation", teacher=model, lora=config)


def test_a_plan_counts_them(shared):
    config = lora.LoRAConfig(modules_to_save=["lm_head", "embed_tokens", "norm", "input_layernorm"])
    with loaded(shared, "mistral") as model:
        data = lora.load_data(ROWS, model)
        plan = lora.plan_training(os.path.join(shared, "data", "models", "mistral"), data, lora=config)
        assert plan.parameters == model.apply_lora(config).count


@pytest.mark.parametrize("name, modules, error, message", [
    ("qwen3", ["lm_head"], NotImplementedError, "lm_head: the model's head is its embedding.*PEFT"),
    ("qwen3", ["embed_tokens"], NotImplementedError, "embed_tokens: the model's head is its embedding"),
    ("qwen3", ["nothing"], ValueError, "no module is called 'nothing'; those of this model that can be trained are "
                                       ".*input_layernorm.*q_norm"),
    ("qwen3", ["q_proj"], ValueError, "self_attn.q_proj is one of the targets too"),
    ("qwen3_moe", ["experts.down_proj"], NotImplementedError, "experts.down_proj.weight is not trained as a whole"),
    ("qwen3_5", ["conv1d"], NotImplementedError, "conv1d.weight is not trained as a whole"),
    ("qwen3_5", ["linear_attn.norm"], NotImplementedError, "linear_attn.norm.weight is not trained as a whole"),
])
def test_what_is_not_trained_is_named(name, modules, error, message, shared):
    with loaded(shared, name) as model, pytest.raises(error, match=message):
        model.apply_lora(lora.LoRAConfig(modules_to_save=modules))


def test_wrong_modules_are_refused():
    for modules, error in (("norm", TypeError), ([""], ValueError), ([3], ValueError), (None, TypeError)):
        with pytest.raises(error, match="modules_to_save"):
            lora.LoRAConfig(modules_to_save=modules)


W = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("whole, error, message", [
    ([("nothing", mx.zeros(3), None)], ValueError, "the model has no weight named nothing"),
    ([(W, mx.zeros((3, 3)), None)], ValueError, r"q_proj.weight is float32\(3,3\), the sum of its gradients none, "
                                                r"expected floats \(256,256\)"),
    ([(W, mx.zeros((256, 256), mx.int32), None)], ValueError, "is int32"),
    ([(W, mx.zeros((256, 256)), mx.zeros((3, 3)))], ValueError, r"the sum of its gradients float32\(3,3\)"),
    ([("model.embed_tokens.weight", mx.zeros((2048, 256)), None)], NotImplementedError,
     "is the embedding and the head at once"),
    ([("model.norm.weight", 3, None)], TypeError, "expected tuples"),
    ([(3, mx.zeros(256), None)], TypeError, "whole: a layer is named by a str"),
    ([("a\0b", mx.zeros(256), None)], ValueError, "has a zero in its name"),
    ([3], TypeError, "whole: expected tuples"), (3, TypeError, "not iterable"),
])
def test_what_does_not_fit_the_engine_is_named(whole, error, message):
    with gomlx.load() as model, pytest.raises(error, match=message):
        model._engine.rows([1], [1], whole=whole)


def test_experts_heads_and_lone_biases_are_named_by_the_engine(shared):
    def rows(name, weight):
        engine = _gomlx.load_model(os.path.join(shared, "data", "models", name))
        engine.rows([1], [1], whole=[(weight, mx.zeros(engine.weight(weight).shape), None)])
    for name, weight, message in (
            ("mistral", "lm_head.weight", "is the head, whose loss is not the engine's"),
            ("qwen3_moe", "model.layers.0.mlp.experts.down_proj.weight", "is a stack of experts"),
            ("qwen3_5", "model.layers.0.linear_attn.norm.weight", "neither of a linear layer nor of a norm")):
        with pytest.raises(NotImplementedError, match=message):
            rows(name, weight)
    with pytest.raises(ValueError, match="a bias is trained whole without its matrix"):
        rows("qwen2", "model.layers.0.self_attn.q_proj.bias")
