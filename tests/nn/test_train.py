"""gomlx.train: steps and what they leave behind, losses against their formulas, runs that are stopped in any way."""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gomlx
import gomlx.core as mx
from gomlx import _gomlx, lora
from gomlx._training.distillation import StoredTeacher, key_of
from gomlx._training.settings import OPTIMIZERS
from gomlx._training.work import check_finite

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = [{"prompt": f"Tell me about number {i}.", "completion": f"Once upon a time the number {i} met a cat."}
        for i in range(12)]
PAIRS = [{"prompt": f"Tell me about number {i}.", "chosen": f"The number {i} met a cat.", "rejected": "I will not."}
         for i in range(6)]
LABELS = [{"prompt": f"Tell me about number {i}.", "label": i % 2 == 0,
           "completion": "The number met a cat." if i % 2 == 0 else "I will not."} for i in range(6)]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def train(model, data=ROWS, **changes):
    return gomlx.train(model, data, **{"learning_rate": 5e-3, "progress": False} | changes)


def bits(run):
    return {name: np.asarray(value).tobytes() for name, value in run.adapter.parameters().items()}


# ---- configs and adapters ----

def test_a_config_begins_as_the_model_is(model):
    adapter = model.apply_lora()
    assert list(adapter.terms) == sorted(f"model.layers.{i}.self_attn.{one}_proj" for i in range(6) for one in "qv")
    names = list(adapter.parameters())
    assert names == sorted(names) and adapter.count == 6 * 8 * (256 + 256 + 256 + 128)
    for layer, term in adapter.terms.items():
        assert term.scale == 2.0 and term.rank == 8 and term.shape == model._engine.weight(layer + ".weight").shape
        assert not np.asarray(term.b).any() and 0.9 < np.asarray(term.a).std() * term.shape[1] ** 0.5 < 1.1
    again = model.apply_lora(lora.LoRAConfig(layers=2, targets="all"))
    assert len(again.terms) == 14
    layer = "model.layers.5.self_attn.q_proj"                           # the same A, whatever else is trained
    assert np.array_equal(np.asarray(again.terms[layer].a), np.asarray(adapter.terms[layer].a))
    other = model.apply_lora(lora.LoRAConfig(seed=1))
    assert not np.array_equal(np.asarray(other.terms[layer].a), np.asarray(adapter.terms[layer].a))


def test_what_a_config_may_say(model):
    assert lora.LoRAConfig(rank=4, alpha=8, rslora=True).scale == 4.0
    half = model.apply_lora(lora.LoRAConfig(dtype="bfloat16", init="kaiming", targets=["self_attn.o_proj"], layers=[0]))
    assert list(half.terms) == ["model.layers.0.self_attn.o_proj"]
    a = half.terms["model.layers.0.self_attn.o_proj"].a
    assert a.dtype == mx.bfloat16 and abs(np.asarray(a.astype(mx.float32))).max() <= 1 / 16
    dora = model.apply_lora(lora.LoRAConfig(dora=True, layers=1)).terms["model.layers.5.self_attn.v_proj"]
    weight = np.asarray(model._engine.weight("model.layers.5.self_attn.v_proj.weight"))
    np.testing.assert_allclose(np.asarray(dora.magnitude), np.linalg.norm(weight, axis=1), rtol=1e-5)
    config = lora.LoRAConfig(layers=[1, 2], targets="all")
    assert lora.LoRAConfig(**json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("options, message", [
    ({"rank": 0}, "rank is 0"), ({"alpha": 0}, "alpha is 0"), ({"dropout": 1}, "dropout is 1"),
    ({"dtype": "float16"}, "dtype is 'float16', expected one of float32, bfloat16"),
    ({"init": "zeros"}, "init is 'zeros'"), ({"targets": []}, "targets: expected 'all' or several names"),
    ({"targets": ["qproj"]}, "no layer is called 'qproj'; this model has down_proj, gate_proj, k_proj, o_proj, q_proj"),
    ({"layers": 7}, "the last 7 of a model that has 6"), ({"layers": [6]}, "no layer 6, expected numbers from 0 to 5"),
])
def test_wrong_configs_say_what_is_expected(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.apply_lora(lora.LoRAConfig(**options))


# ---- losses ----

def test_losses_are_their_formulas():
    rng = np.random.default_rng(0)
    pc, pr, rc, rr = (-rng.uniform(0.1, 6, 5) for _ in range(4))
    given = [mx.array(one.astype(np.float32)) for one in (pc, pr, rc, rr)]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    x = 0.3 * ((pc - pr) - (rc - rr))
    want = -np.log(sigmoid(x)) * 0.9 - np.log(sigmoid(-x)) * 0.1
    found = lora.dpo_loss(*given, beta=0.3, label_smoothing=0.1)
    np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5)

    odds = np.log(np.exp(pc) / (1 - np.exp(pc))) - np.log(np.exp(pr) / (1 - np.exp(pr)))
    found = lora.orpo_loss(*given[:2], beta=0.2)
    np.testing.assert_allclose(np.asarray(found), -0.2 * np.log(sigmoid(odds)), rtol=1e-4)
    sure = np.array([-1e-9, -1e-5, -1e-3, -0.69, -0.7])
    odds = np.log(np.exp(sure) / -np.expm1(sure)) - np.log(np.exp(pr) / (1 - np.exp(pr)))
    value, grad = mx.value_and_grad(lambda x: lora.orpo_loss(x, given[1], beta=0.2).sum())(mx.array(np.float32(sure)))
    np.testing.assert_allclose(value.item(), -0.2 * np.log(sigmoid(odds)).sum(), rtol=1e-5)
    np.testing.assert_allclose(grad, -0.2 * (1 - sigmoid(odds)) * (1 - np.exp(sure) / np.expm1(sure)), rtol=1e-4)
    certain = mx.value_and_grad(lambda x: lora.orpo_loss(x, given[1]).sum())(mx.zeros(5))
    assert np.isfinite(certain[0].item()) and np.abs(np.asarray(certain[1])).max() < 1e-9

    wanted = np.array([True, False, True, True, False])
    want = np.where(wanted, 1.5 * (1 - sigmoid(0.3 * (pc - rc - 0.7))), 0.5 * (1 - sigmoid(0.3 * (0.7 - (pc - rc)))))
    found = lora.kto_loss(given[0], given[2], mx.array(wanted), 0.7, beta=0.3, desirable_weight=1.5,
                          undesirable_weight=0.5)
    np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5)

    student, teacher = rng.normal(0, 2, (3, 7)), rng.normal(0, 2, (3, 7))
    p, q = (np.exp(one / 2) / np.exp(one / 2).sum(-1, keepdims=True) for one in (teacher, student))
    found = lora.distillation_loss(mx.array(student.astype(np.float32)), mx.array(teacher.astype(np.float32)),
                                   temperature=2.0)
    np.testing.assert_allclose(np.asarray(found), 4 * (p * np.log(p / q)).sum(-1), rtol=1e-4)


def log_probs(model, one):
    """Log probabilities of the tokens of a sequence, by the model's own exact logits."""
    ids = list(one.ids)
    logits = np.asarray(model.logits(ids)).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.array([logs[i - 1, ids[i]] for i in range(1, len(ids))]), np.array(list(one.counted[1:]), bool)


@pytest.fixture(scope="module")
def exact():
    with gomlx.load(activations="float32", kv_dtype="float32") as loaded:
        yield loaded


def test_a_first_step_has_the_loss_of_the_model(exact):
    rows = lora.load_data(ROWS[:3], exact)
    logs = [log_probs(exact, row.sequences[0]) for row in rows]
    want = -np.concatenate([one[counted] for one, counted in logs]).mean()
    assert abs(next(train(exact, rows, batch=2, accumulate=2, steps=1)).loss - want) < 1e-5 * want

    pairs = lora.load_data(PAIRS[:3], exact)
    step = next(train(exact, pairs, loss="dpo", steps=1))
    assert abs(step.loss - np.log(2)) < 1e-6 and step.metrics["margin"] == 0       # the policy is the reference
    nll, odds = [], []
    for row in pairs:
        (whole, chosen), (other, rejected) = (log_probs(exact, one) for one in row.sequences)
        nll.append(-whole)
        c, r = whole[chosen].mean(), other[rejected].mean()
        odds.append((c - r) - (np.log1p(-np.exp(c)) - np.log1p(-np.exp(r))))
    want = np.concatenate(nll).mean() + 0.5 * np.log1p(np.exp(-np.array(odds))).mean()
    found = next(train(exact, pairs, loss="orpo", loss_options={"beta": 0.5}, batch=2, accumulate=2, steps=1))
    assert abs(found.loss - want) < 1e-5 * want
    step = next(train(exact, LABELS, loss="kto", batch=4, steps=1))
    assert abs(step.loss - 0.5) < 1e-6 and step.metrics["divergence"] == 0
    step = next(train(exact, ROWS[:3], loss="distillation", teacher=exact, steps=1))
    assert abs(step.loss) < 1e-6


@pytest.mark.parametrize("loss, data, options", [
    ("sft", ROWS, {}), ("sft", ROWS, {"forward": "int8"}), ("sft", ROWS, {"forward": "bf16"}),
    ("sft", ROWS, {"batch_tokens": 120, "accumulate": 2}),
    ("sft", ROWS, {"lora": lora.LoRAConfig(dtype="bfloat16")}), ("sft", ROWS, {"optimizer": "lion",
                                                                               "learning_rate": 1e-3}),
    ("dpo", PAIRS, {}), ("orpo", PAIRS, {}), ("kto", LABELS, {"batch": 3, "accumulate": 2}),
])
def test_losses_fall_over_steps(model, loss, data, options):
    run = train(model, data, loss=loss, steps=6, **({"batch": 6} | options))
    run.finish()
    assert len(run.losses) == 6 and run.losses[-1] < 0.9 * run.losses[0] and run.stopped_by == "steps"
    last = run.history[-1]
    assert last.gradient_norm > 0 and last.peak_memory_bytes > 1e6 and last.seconds > 0 and last.targets < last.tokens
    if loss in ("dpo", "orpo"):
        assert last.metrics["accuracy"] == 1.0


RATES = {"adamw": 5e-3, "adam": 5e-3, "sgd": 0.05, "lion": 1e-3, "adafactor": 0.2, "muon": 0.01, "rmsprop": 2e-3,
         "adagrad": 0.02, "adadelta": 8.0, "adamax": 1e-2}


def test_all_optimisers_have_a_rate():
    assert set(RATES) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", RATES)
def test_each_optimiser_learns_and_is_resumed_with_its_bits(model, name, tmp_path):
    options = {"optimizer": name, "learning_rate": RATES[name], "batch": 6, "steps": 6}
    whole = train(model, **options).finish()
    assert whole.losses[-1] < 0.95 * whole.losses[0]
    run = train(model, ROWS, run=tmp_path / "run", **options)
    for _ in range(3):
        next(run)
    run.save()
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False).finish()
    assert again.losses == whole.losses and bits(again) == bits(whole)


def test_a_student_comes_nearer_to_its_teacher(exact, student):
    run = train(student, ROWS, loss="distillation", teacher=exact, steps=6, batch=12, learning_rate=2e-3).finish()
    assert run.losses[-1] < 0.9 * run.losses[0]
    assert abs(run.losses[0]) < 1               # the divergence of formats of one model


@pytest.fixture(scope="module")
def student(shared):
    with gomlx.load(os.path.join(shared, "data", "models", "fable-gguf", "fable-Q2_K.gguf")) as loaded:
        yield loaded


def test_a_teacher_in_a_file_teaches_as_it_does_itself(exact, student, tmp_path):
    data, path = lora.load_data(ROWS[:6], student), tmp_path / "teacher.safetensors"
    options = {"loss": "distillation", "steps": 3, "batch": 3, "learning_rate": 2e-3}
    for temperature in (1.0, 2.0):
        more = {"loss_options": {"temperature": temperature}}
        want = train(student, data, teacher=exact, **options, **more).finish()
        lora.save_teacher(exact, data, path, top=None, temperature=temperature, progress=False)
        found = train(student, data, teacher=path, **options, **more).finish()
        np.testing.assert_allclose(found.losses, want.losses, rtol=1e-4)
        lora.save_teacher(exact, data, path, temperature=temperature, progress=False)
        likeliest = train(student, data, teacher=str(path), **options, **more).finish()
        np.testing.assert_allclose(likeliest.losses, want.losses, rtol=0.2 if temperature == 1 else 0.6)
        assert all(few <= all_of_them for few, all_of_them in zip(likeliest.losses[:1], want.losses))


def test_the_divergence_of_the_likeliest_tokens_is_its_formula(exact, student, tmp_path):
    data = lora.load_data(ROWS[:1], student)
    [one] = data[0].sequences
    with gomlx.load(student.info["path"], activations="float32", kv_dtype="float32") as model:
        logs = [np.asarray(each.logits(list(one.ids)[:-1])).astype(np.float64) for each in (exact, model)]
        p, q = (np.exp(each - np.logaddexp.reduce(each, -1, keepdims=True)) for each in logs)
        rows = np.array(list(one.counted[1:]), bool)
        p, q = p[rows], q[rows]
        best = np.argsort(-p, -1)[:, :5]
        p, q = (np.concatenate([some := np.take_along_axis(each, best, -1), 1 - some.sum(-1, keepdims=True)], -1)
                for each in (p, q))
        lora.save_teacher(exact, data, tmp_path / "a.safetensors", top=5, progress=False)
        found = next(train(model, data, loss="distillation", teacher=tmp_path / "a.safetensors", steps=1)).loss
    np.testing.assert_allclose(found, (p * np.log(p / q)).sum(-1).mean(), rtol=1e-3)


def test_files_of_teachers_that_do_not_fit(exact, student, tmp_path):
    data, path = lora.load_data(ROWS[:2], student), tmp_path / "teacher.safetensors"
    lora.save_teacher(exact, data, path, top=4, progress=False)
    assert len(lora.load_data(ROWS[1:2], student)) and next(
        train(student, ROWS[1:2], loss="distillation", teacher=path, steps=1)).loss > 0     # some of its rows

    def fails(error, message, **changes):
        with pytest.raises(error, match=message):
            train(student, **{"data": data, "loss": "distillation", "teacher": path, "steps": 1} | changes).finish()

    fails(ValueError, r"knows nothing of row 2: it was made for other rows", data=ROWS[:3])
    fails(ValueError, r"knows nothing of row 0", data=ROWS[:2], mask=None)
    fails(ValueError, r"of the temperature 1, the loss of 2", loss_options={"temperature": 2.0})
    fails(FileNotFoundError, "teacher: no such file", teacher=tmp_path / "nothing.safetensors")
    fails(ValueError, "is no file, expected a Model or a file", teacher=tmp_path)
    fails(ValueError, "belongs to loss='distillation'", loss="sft")
    fails(TypeError, "teacher: expected a gomlx.Model of the backend native, got 5", teacher=5)
    arrays, known = mx.load(str(path), return_metadata=True)
    mx.eval(list(arrays.values()))
    ids, logs = (f"{key_of(data[1].sequences[0])}.{name}" for name in ("ids", "logs"))
    n = len(arrays[ids])
    for changed, said, message in (
            ({ids: arrays[ids][:1]}, {}, rf"{path}: row 1 has ids I32 \[1, 4\] and logs F32 \[{n}, 4\], expected I32 "
                                         rf"and F32 \[{n}, 4\]"),
            ({ids: arrays[ids][:, :2], logs: arrays[logs][:, :2]}, {}, r"row \d has ids I32 .*, expected I32 and F32"),
            ({ids: arrays[ids].astype(mx.uint32)}, {}, rf"row 1 has ids U32 \[{n}, 4\]"),
            ({logs: arrays[logs].reshape(-1)}, {}, rf"row 1 has .* logs F32 \[{4 * n}\]"),
            ({logs: arrays[logs] - np.inf}, {}, rf"{path}: row 1 has logs that are none of probabilities"),
            ({logs: arrays[logs] * np.nan}, {}, "row 1 has logs that are none of probabilities"),
            ({logs: arrays[logs] + 100}, {}, "row 1 has logs that are none of probabilities"),
            ({}, {"format": "x"}, "no file of lora.save_t"), ({}, {"temperature": "x"}, "no file of lora.save_teacher"),
            ({ids: arrays[ids] + 10**6}, {}, "row 1 has ids beyond the vocabulary of 2048")):
        mx.save_safetensors(str(path), arrays | changed, known | said)
        fails(gomlx.Error, message)
    path.write_bytes(b"nothing")
    fails(gomlx.Error, "is not a safetensors file")
    mx.save_safetensors(str(path), arrays, known | {"vocab_size": "7"})
    fails(ValueError, "its vocabulary has 7 tokens, expected")
    with pytest.raises(ValueError, match="ends in .safetensors"):
        lora.save_teacher(exact, data, tmp_path / "x.bin")
    with pytest.raises(TypeError, match="data: expected a Dataset"):
        lora.save_teacher(exact, ROWS, path)


def test_a_file_of_a_teacher_is_not_kept_in_memory(exact, student, tmp_path, monkeypatch):
    data, path = lora.load_data(ROWS, student), tmp_path / "teacher.safetensors"
    lora.save_teacher(exact, data, path, top=None, progress=False)
    run = train(student, data, loss="distillation", teacher=path, steps=3, batch=2)
    before = [mx.get_active_memory(mx.cpu) for _ in run]
    assert path.stat().st_size > 1 << 20 and max(before) - min(before) < 1 << 18
    read = []
    with monkeypatch.context() as patch:        # a row's ids and logs, once for each evaluation
        patch.setattr(StoredTeacher, "read", lambda *args, whole=StoredTeacher.read: read.append(args) or whole(*args))
        run.evaluate(data)
    assert len(read) == 2 * len(data)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 4)
    with pytest.raises(gomlx.Error, match="it has become shorter"):
        run.evaluate(data)


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q4_0", "BF16"])
def test_quantised_models_learn(shared, kind):
    with gomlx.load(os.path.join(shared, "data", "models", "fable-gguf", f"fable-{kind}.gguf")) as model:
        run = train(model, steps=5, batch=12, lora=lora.LoRAConfig(targets="all")).finish()
        assert run.losses[-1] < 0.5 * run.losses[0]


def test_a_step_does_not_depend_on_how_it_is_computed(model):
    runs = [train(model, steps=2, **options).finish() for options in (
        {"batch": 6}, {"batch": 6, "checkpoints": True}, {"batch": 3, "accumulate": 2}, {"batch": 1, "accumulate": 6})]
    assert all(run.losses == runs[0].losses and bits(run) == bits(runs[0]) for run in runs)
    pairs = [train(model, PAIRS, loss="dpo", steps=2, **options).finish() for options in (
        {"batch": 6}, {"batch": 2, "accumulate": 3})]
    assert pairs[0].losses == pairs[1].losses and bits(pairs[0]) == bits(pairs[1])


@pytest.mark.parametrize("options", [{}, {"checkpoints": True, "accumulate": 2}, {"lora": lora.LoRAConfig(dora=True)}])
def test_steps_leave_no_array_behind(model, options):
    active = [mx.get_active_memory(mx.cpu) for _ in train(model, steps=16, batch=2, **options)]
    # The first ones make the optimiser's state. Blocks that are taken again are a little larger than what is in them;
    # one matrix of a term that stayed behind at each step would be 13 times 8 KiB.
    assert max(active[2:]) - min(active[2:]) < 1 << 15


def test_dropout_is_drawn_by_row_and_step(model, tmp_path):
    """However a step is computed, stopped and gone on; and evaluations leave nothing out."""
    config = lora.LoRAConfig(dropout=0.3)
    runs = [train(model, steps=3, lora=config, **options).finish() for options in (
        {"batch": 6}, {"batch": 6, "checkpoints": True}, {"batch": 3, "accumulate": 2}, {"batch": 1, "accumulate": 6})]
    assert all(run.losses == runs[0].losses and bits(run) == bits(runs[0]) for run in runs)
    plain = train(model, steps=3, batch=6).finish()
    assert plain.losses[0] == runs[0].losses[0] and plain.losses[2] != runs[0].losses[2]    # B begins with zeros
    begun = train(model, steps=3, lora=config, batch=6, run=tmp_path / "run")
    next(begun)
    begun.save()
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False).finish()
    assert again.losses == runs[0].losses and bits(again) == bits(runs[0])
    kept = gomlx.read_adapter(tmp_path / "run" / "adapter", model)
    assert kept.meta["dropout"] == 0.3
    other = train(model, lora=gomlx.Adapter(kept.terms), steps=1)
    assert abs(again.evaluate(ROWS).loss - other.evaluate(ROWS).loss) < 1e-6
    further = gomlx.Adapter(kept.terms, meta=kept.meta | {"dropout": 2})
    with pytest.raises(ValueError, match="dropout is 2, expected 0 or more and less than 1"):
        train(model, lora=further)


def test_a_step_of_kto_has_two_rows(model):
    data = lora.load_data(LABELS[:5], model)                    # of 5 rows in twos the last step has three
    run = train(model, data, loss="kto", batch=2, epochs=2)
    assert run.steps == 4 and [step.rows for step in run] == [2, 3, 2, 3] and run.history[-1].epoch == 2
    run = train(model, data, loss="kto", batch=1, accumulate=2, epochs=1.5).finish()
    assert [step.rows for step in run.history] == [2, 3, 2, 3] and run.steps == 4
    longest = max(row.tokens for row in data)
    run = train(model, data, loss="kto", batch_tokens=longest, epochs=1).finish()
    assert [step.rows for step in run.history] == [2, 3]
    alone, whole = (train(model, data, loss="kto", batch=batch, accumulate=2, lora=run.adapter).evaluate(data)
                    for batch in (1, 5))
    assert alone == whole and whole.metrics["divergence"] >= 0


def test_very_many_epochs_are_counted_at_once(model):
    assert train(model, epochs=1e9, batch=5).steps == 3 * 10**9
    assert train(model, epochs=1.5, batch=5).steps == 5
    assert train(model, epochs=2, batch_tokens=120, accumulate=2).steps > 2


def test_evaluation_and_early_stop(model, tmp_path):
    run = train(model, steps=12, batch=12, learning_rate=0.1, optimizer="sgd", clip=None, eval_data=ROWS[:2],
                eval_every=1, patience=2, run=tmp_path / "run")
    first = run.evaluate()
    assert first.rows == 2 and abs(first.perplexity - np.exp(first.loss)) < 1e-6
    assert run.evaluate(ROWS[2:4]).loss != first.loss
    run.finish()
    evals = [step.eval_loss for step in run.history]
    if run.stopped_by == "patience":
        assert min(evals) == evals[-3]
    best = gomlx.read_adapter(tmp_path / "run" / "best", model)
    again = train(model, steps=1, lora=best, eval_data=ROWS[:2])
    assert again.evaluate().loss == min(evals)


def test_rates(model):
    run = train(model, steps=6, warmup=2, schedule="linear", learning_rate=1e-3).finish()
    np.testing.assert_allclose([step.learning_rate for step in run.history], [5e-4, 1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4])
    run = train(model, epochs=2, batch=5)
    assert run.steps == 6
    assert [step.epoch for step in run] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2], abs=1e-4)


@pytest.mark.parametrize("options, message", [
    ({"loss": "ppo"}, "loss is 'ppo', expected one of sft, dpo"), ({"optimizer": "adamx"}, "optimizer is 'adamx'"),
    ({"loss": "dpo"}, "needs rows with prompt, chosen and rejected, data has rows of kind completion"),
    ({"loss_options": {"beta": 1}}, "sft has no 'beta'"), ({"eval_every": 2}, "nothing to evaluate"),
    ({"data": lora.Dataset("text", "x", [])}, "x: no rows"), ({"patience": 2}, "needs eval_every"),
    ({"loss": "distillation"}, "needs a teacher"), ({"batch": 0}, "batch is 0"),
    ({"optimizer_options": {"beta": 1}}, "optimizer_options of adamw"), ({"data": []}, "no rows"),
    ({"data": LABELS, "loss": "kto", "batch": 1}, "needs 2 rows in a step"), ({"warmup": 10**400}, "warmup is 1000"),
    ({"epochs": 1e9, "batch_tokens": 100}, "epochs is 1e.09, expected 1000 at most"),
    ({"learning_rate": 10**400}, "learning_rate is 1000"), ({"mask": "first"}, "mask is 'first'"),
    ({"loss": "dpo", "loss_options": {"beta": -1}}, "loss_options: beta is -1, expected more than 0"),
    ({"loss": "dpo", "loss_options": {"label_smoothing": 5}}, "label_smoothing is 5, expected 0 to 0.5"),
    ({"loss": "distillation", "loss_options": {"temperature": -2}}, "temperature is -2, expected more than 0"),
])
def test_wrong_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        train(model, **options)


@pytest.mark.parametrize("options", [{"max_tokens": 2}, {"mask": None}, {"too_long": "drop"}, {"template": False},
                                     {"template_args": {"a": 1}}])
def test_rows_that_are_read_are_not_read_otherwise(model, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: data is a Dataset"):
        train(model, lora.load_data(ROWS[:2], model), **options)


def test_models_and_adapters_are_checked(model):
    with pytest.raises(TypeError, match="model: expected a gomlx.Model of the backend native, got 'fable'"):
        gomlx.train("fable", ROWS)
    with pytest.raises(TypeError, match="lora: expected a LoRAConfig or an Adapter"):
        train(model, lora="adapter")
    with pytest.raises(TypeError, match="config: expected a LoRAConfig, got 5"):
        model.apply_lora(5)
    with pytest.raises(TypeError, match="loss_options: beta: expected a number, got 'x'"):
        train(model, PAIRS, loss="dpo", loss_options={"beta": "x"})
    layer = "model.layers.0.self_attn.q_proj"
    other = gomlx.Adapter({layer: gomlx.Term(mx.zeros((8, 64)), mx.zeros((256, 8)), 1.0)})
    with pytest.raises(ValueError, match=r"q_proj: a is \[8, 64\] and b \[256, 8\], expected .* \[256, 256\]"):
        train(model, lora=other)


def test_a_plan_refuses_what_training_refuses(model):
    data = lora.load_data(ROWS, model)
    found = lora.plan_training(None, data, lora=lora.LoRAConfig(targets=["self_attn.q_proj", "down_proj"], layers=2))
    assert found.parameters == model.apply_lora(lora.LoRAConfig(targets=["self_attn.q_proj", "down_proj"],
                                                                layers=2)).count
    lengths = lora.plan_training(None, data, lora=lora.LoRAConfig(dora=True))
    assert lengths.parameters == model.apply_lora(lora.LoRAConfig(dora=True)).count
    assert found.logit_bytes == 4 * min(256, found.longest_pass) * model.vocab_size
    rounded = lora.plan_training(None, data, forward="bf16")       # of a vocabulary of one part
    assert rounded.logit_bytes == 4 * rounded.longest_pass * 256 and model.vocab_size <= 2048 > rounded.longest_pass
    for config, settings, error, message in (
            ({"targets": ["nope"]}, {}, ValueError, "no layer is called 'nope'; this model has down_proj"),
            ({"layers": 99}, {}, ValueError, "the last 99 of a model that has 6"),
            ({}, {"loss": "distillation"}, ValueError, "loss='distillation' needs a teacher"),
            ({}, {"teacher": model}, ValueError, "a teacher belongs to loss='distillation', got 'sft'"),
            ({}, {"loss": "dpo"}, ValueError, "needs rows with prompt, chosen and rejected"),
            ({}, {"step": 2}, TypeError, r"plan_training\(\) got an unexpected keyword argument 'step'.*'steps'"),
            ({}, {"run": "a"}, TypeError, r"unexpected keyword argument 'run'")):
        with pytest.raises(error, match=message):
            lora.plan_training(None, data, lora=lora.LoRAConfig(**config), **settings)
    with pytest.raises(TypeError, match="lora: expected a LoRAConfig"):
        lora.plan_training(None, data, lora=5)


def test_a_plan_of_distillation(model, student, shared, tmp_path):
    data, path = lora.load_data(ROWS, model), tmp_path / "teacher.safetensors"
    plain = lora.plan_training(None, data)
    head = 4 * model.vocab_size * model.info["hidden_size"]
    named, loaded = (lora.plan_training(None, data, loss="distillation", teacher=one)
                     for one in (student.info["path"], student))
    assert named.teacher_bytes == loaded.teacher_bytes == student.info["weight_bytes"] + 2 * head
    assert named.total_bytes - plain.total_bytes == named.teacher_bytes + named.logit_bytes - plain.logit_bytes
    assert named.flops_per_step > 1.3 * plain.flops_per_step and plain.teacher_bytes == 0
    lora.save_teacher(model, data, path, top=16, progress=False)
    of_file = lora.plan_training(None, data, loss="distillation", teacher=path, batch=12)
    assert of_file.teacher_bytes == head + 8 * 16 * data.targets
    assert plain.flops_per_step < of_file.flops_per_step * 4 / 12 < named.flops_per_step
    with pytest.raises(ValueError, match="knows nothing of"):
        lora.plan_training(None, lora.load_data(ROWS, model, mask=None), loss="distillation", teacher=path)
    with pytest.raises(ValueError, match="of the temperature 1, the loss of 2"):
        lora.plan_training(None, data, loss="distillation", teacher=path, loss_options={"temperature": 2.0})
    with pytest.raises(ValueError, match="its vocabulary has .* tokens, expected 2048"):
        lora.plan_training(None, data, loss="distillation",
                           teacher=os.path.join(shared, "data", "models", "stories260k"))


@pytest.mark.parametrize("name, form", [("qwen3_5", "folder"), ("qwen3_5", "gguf"), ("qwen3_moe", "folder"),
                                        ("gpt_oss", "folder")])
def test_adapters_of_other_layers_run_in_peft(name, form, shared, tmp_path):
    """Of queries with gates, recurrences and routers: trained here, served here and there."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    path = trained = os.path.join(shared, "data", "models", name)
    if form == "gguf":
        trained = tmp_path / "model.gguf"
        gomlx.convert(path, trained, "f32", progress=False)
    targets = {"qwen3_5": ["q_proj", "in_proj_qkv", "in_proj_a", "out_proj", "down_proj"]}
    with gomlx.load(trained, activations="float32", kv_dtype="float32") as model:
        config = lora.LoRAConfig(targets=targets.get(name, ["q_proj", "o_proj"]), dropout=0.1)
        run = train(model, steps=3, batch=6, lora=config, learning_rate=1e-2, run=tmp_path / "run").finish()
        assert run.losses[-1] < 0.9 * run.losses[0]
        ids = model.tokenizer.encode("Once upon a time there was a cat")
    other = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    other = peft.PeftModel.from_pretrained(other, tmp_path / "run" / "adapter")
    with torch.no_grad():
        want = other(torch.tensor([ids])).logits[0].numpy()
    with gomlx.load(trained, activations="float32", kv_dtype="float32",
                    adapter_path=tmp_path / "run" / "adapter") as model:
        found = np.asarray(model.logits(ids))
    assert np.abs(found - want).max() < 1e-4 * np.abs(want).max()


def test_what_is_not_trained_is_said(model):
    adapter = model.apply_lora()
    whole = gomlx.Adapter(adapter.terms, {"model.embed_tokens.weight": mx.ones((2048, 256))})
    with pytest.raises(NotImplementedError, match="the model's head is its embedding"):
        train(model, lora=whole)


def test_magnitudes_are_trained_and_gone_on_with(model, tmp_path):
    """DoRA: the same bits in any passes and after a stop; what is written is read, evaluated and fused to the same."""
    config = lora.LoRAConfig(dora=True, targets="all", rank=2)
    runs = [train(model, steps=3, lora=config, **options).finish() for options in (
        {"batch": 6}, {"batch": 6, "checkpoints": True}, {"batch": 3, "accumulate": 2})]
    assert all(run.losses == runs[0].losses and bits(run) == bits(runs[0]) for run in runs)
    assert runs[0].losses[-1] < 0.9 * runs[0].losses[0]
    begun = model.apply_lora(config)
    moved = [layer for layer, term in runs[0].adapter.terms.items()
             if np.abs(np.asarray(term.magnitude) - np.asarray(begun.terms[layer].magnitude)).max() > 1e-3]
    assert len(moved) == len(begun.terms) == 42
    run = train(model, steps=3, lora=config, batch=6, run=tmp_path / "run")
    next(run)
    run.stop()
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False).finish()
    assert again.losses == runs[0].losses and bits(again) == bits(runs[0])
    kept = gomlx.read_adapter(tmp_path / "run" / "adapter", model)
    loss = again.evaluate(ROWS).loss
    assert train(model, lora=kept).evaluate(ROWS).loss == loss
    gomlx.fuse("fable", tmp_path / "run" / "adapter", tmp_path / "fused", "f32", text=None, progress=False)
    with gomlx.load(tmp_path / "fused") as fused:
        assert abs(train(fused).evaluate(ROWS).loss - loss) < 1e-4 * loss


def test_losses_that_are_not_finite_name_their_rows(model, tmp_path):
    rows = lora.load_data(ROWS, model)
    values = [0.5] * rows.targets
    values[rows[0].targets] = float("nan")                  # the first token of the second row
    with pytest.raises(gomlx.Error, match="step 3: the loss is nan; its rows: row 1$"):
        check_finite(3, values, rows.rows)
    broken = {layer: gomlx.Term(mx.full(term.a.shape, 3e38), term.b, 1.0)
              for layer, term in model.apply_lora().terms.items()}
    run = train(model, lora=gomlx.Adapter(broken), batch=2, run=tmp_path / "run")
    with pytest.raises(gomlx.Error, match=r"step 1: the loss is nan; its rows: row \d+, row \d+$"):
        next(run)
    assert run.step == 0 and run.history == []


def test_parameters_that_are_not_finite_are_not_kept(model, tmp_path):
    run = train(model, learning_rate=1e300, clip=None, steps=1, run=tmp_path / "run")
    before = bits(run)
    with pytest.raises(gomlx.Error, match=r"step 1: the parameters are no longer finite after it; learning_rate is 1e"):
        run.finish()
    assert run.step == 0 and bits(run) == before and not os.path.exists(tmp_path / "run" / "adapter")


# ---- runs ----

def settings(**changes):
    return {"steps": 6, "batch": 4, "lora": lora.LoRAConfig(targets=["q_proj"], layers=2), "save_every": 1,
            "eval_data": ROWS[:2], "eval_every": 2} | changes


def test_a_run_that_is_stopped_and_resumed_has_the_bits_of_one_that_was_not(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    whole = train(model, data, **settings()).finish()
    run = train(model, data, run=tmp_path / "run", **settings())
    next(run)
    next(run)
    next(run)
    run.stop()
    assert list(run) == [] and run.stopped_by == "stop"
    again = gomlx.train(model, resume=tmp_path / "run", eval_data=ROWS[:2], progress=False)
    assert again.step == 3 and again.losses == whole.losses[:3]
    again.finish()
    assert bits(again) == bits(whole) and again.losses == whole.losses
    assert [one.eval_loss for one in again.history] == [one.eval_loss for one in whole.history]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    kept = gomlx.read_adapter(tmp_path / "run" / "adapter", model)
    assert {name: np.asarray(value).tobytes() for name, value in kept.parameters().items()} == bits(whole)
    assert "steps 1 to 6" in (tmp_path / "run" / "loss.txt").read_text()
    longer = gomlx.train(model, resume=tmp_path / "run", eval_data=ROWS[:2], steps=8, progress=False).finish()
    assert longer.step == 8 and longer.losses[:6] == whole.losses


def test_resuming_something_else_is_refused(model, tmp_path, shared):
    train(model, run=tmp_path / "run", **settings(steps=1)).finish()
    with pytest.raises(FileExistsError, match="is not empty, .*resume="):
        train(model, run=tmp_path / "run", **settings())
    with pytest.raises(ValueError, match="trained on data without a path"):
        gomlx.train(model, resume=tmp_path / "run", eval_data=ROWS[:2])
    with pytest.raises(ValueError, match="other rows than the run was begun with"):
        gomlx.train(model, ROWS[:5], resume=tmp_path / "run", eval_data=ROWS)
    with pytest.raises(ValueError, match="batch was 4, got 2: a run goes on as it began"):
        gomlx.train(model, ROWS, resume=tmp_path / "run", eval_data=ROWS, batch=2)
    with pytest.raises(FileNotFoundError, match="is not a run"):
        gomlx.train(model, ROWS, resume=tmp_path / "nothing")
    with gomlx.load(os.path.join(shared, "data", "models", "llama3")) as other, \
            pytest.raises(ValueError, match="another model"):
        gomlx.train(other, ROWS, resume=tmp_path / "run")


@pytest.fixture(scope="module")
def stopped(model, tmp_path_factory):
    """A folder of a run that was stopped after 2 of 6 steps."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    run = train(model, run=folder, **settings(eval_data=None, eval_every=None))
    next(run)
    next(run)
    run.stop()
    return folder


def changed(config, path, value):
    *above, name = path
    at = config
    for one in above:
        at = at[one]
    if value is None:
        del at[name]
    else:
        at[name] = value


@pytest.mark.parametrize("path, value, message", [
    (["model"], None, "model is missing"), (["model"], 5, "model is 5, expected an object"),
    (["model", "path"], None, "model: path is missing"), (["settings", "batch"], "x", "settings: batch: expected an"),
    (["settings", "more"], 1, "settings: 'more' is unknown"), (["settings", "clip"], -1, "settings: clip is -1"),
    (["settings", "warmup"], 10**400, "settings: warmup is 1000"), (["settings", "mask"], 5, "settings: mask is 5"),
    (["lora", "rank"], 0, "lora: rank is 0"), (["data", "fingerprint"], 5, "data: fingerprint is 5, expected a text"),
    (["adapter", "scales"], {"model.layers.0.self_attn.q_proj": "x"}, "adapter: scales is"),
    (["adapter", "scales"], {"model.layers.0.self_attn.q_proj": 1.0}, r"state.safetensors: .*lora_a is missing"),
    (["adapter", "scales"], {}, "state.safetensors: an adapter without terms"), (["format"], 2, "format 2, expected 1"),
])
def test_hostile_configs_of_runs_are_a_line(model, stopped, tmp_path, path, value, message):
    folder = shutil.copytree(stopped, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    changed(config, path, value)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(gomlx.Error, match=message) as caught:
        gomlx.train(model, ROWS, resume=folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", "[" * 100_000, '{"format": 1}', "\udcff"])
def test_configs_that_are_none_are_a_line(model, tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(gomlx.Error, match="config.json: "):
        gomlx.train(model, ROWS, resume=tmp_path)


@pytest.mark.parametrize("known, message", [
    ({"step": -5}, "step is -5, expected an integer from 0"),
    ({"position": 99}, "position is 99, expected less than 3"),
    ({"position": -1}, "position is -1"), ({"epoch": 10**400}, "epoch is 1000"), ({"best": "x"}, "best is 'x'"),
    ({"more": 1}, "'more' is unknown"), ([], "expected an object, got list"), ("parameters/", "lora_a is missing"),
    ("optimizer/", "optimizer/.* is missing"), ("cut", r"lora_a is \[1, 256\], expected \[8, 256\]|a is"),
])
def test_hostile_states_are_a_line(model, stopped, tmp_path, known, message):
    folder = shutil.copytree(stopped, tmp_path / "run")
    path = str(folder / "state.safetensors")
    arrays, metadata = mx.load(path, return_metadata=True)
    mx.eval(list(arrays.values()))
    state = json.loads(metadata["state"])
    if known == "cut":
        arrays = {name: value[:1] if name.endswith("lora_a") else value for name, value in arrays.items()}
    elif isinstance(known, str):
        arrays = {name: value for name, value in arrays.items() if not name.startswith(known)}
    elif isinstance(known, list):
        state = known
    else:
        state |= known
    mx.save_safetensors(path, arrays, {"state": json.dumps(state)})
    with pytest.raises(gomlx.Error, match=message) as caught:
        gomlx.train(model, ROWS, resume=folder)
    assert path in str(caught.value)


@pytest.mark.parametrize("line", ["5", "{}", '{"step": 1}', "more", "loss"])
def test_hostile_metrics_are_a_line(model, stopped, tmp_path, line):
    folder = shutil.copytree(stopped, tmp_path / "run")
    first, second = (folder / "metrics.jsonl").read_text().splitlines()
    if line in ("more", "loss"):
        line = json.dumps(json.loads(second) | {line: "x"})
    (folder / "metrics.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(gomlx.Error, match=r"metrics\.jsonl:2: "):
        gomlx.train(model, ROWS, resume=folder)


@pytest.mark.parametrize("name", ["config.json", "state.safetensors", "metrics.jsonl"])
def test_pipes_in_a_runs_folder_are_not_opened(model, stopped, tmp_path, name):
    folder = shutil.copytree(stopped, tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(gomlx.Error, match=f"{name}: expected a file"):
        gomlx.train(model, ROWS, resume=folder)


def test_what_a_run_evaluates_stays(model, tmp_path):
    train(model, run=tmp_path / "run", **settings(steps=2, eval_every=None)).finish()
    with pytest.raises(ValueError, match="evaluated on data without a path: give eval_data="):
        gomlx.train(model, ROWS, resume=tmp_path / "run")
    with pytest.raises(ValueError, match="eval_data: data has other rows than the run was begun with"):
        gomlx.train(model, ROWS, resume=tmp_path / "run", eval_data=ROWS[:3])
    assert gomlx.train(model, ROWS, resume=tmp_path / "run", eval_data=ROWS[:2]).eval_data is not None
    train(model, run=tmp_path / "none", **settings(steps=1, eval_data=None, eval_every=None)).finish()
    with pytest.raises(ValueError, match="eval_data: the run was begun without"):
        gomlx.train(model, ROWS, resume=tmp_path / "none", eval_data=ROWS[:2])
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in (("train", ROWS), ("valid", ROWS[:2])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(model, folder, run=tmp_path / "run2", **settings(steps=1, eval_data=None)).finish()
    again = gomlx.train(model, resume=tmp_path / "run2", steps=2, progress=False).finish()
    assert len(again.eval_data) == 2 and again.history[-1].eval_loss is not None


def test_folders_that_cannot_be_made(model, tmp_path):
    (tmp_path / "afile").write_text("x")
    with pytest.raises(FileExistsError, match="run: .*afile is not a folder"):
        train(model, run=tmp_path / "afile")
    for options in ({"run": ""}, {"data": None, "resume": ""}):
        with pytest.raises(ValueError, match="run: expected the path of a folder, got ''"):
            train(model, **options)
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        train(model, run=tmp_path / "run", template_args={"x": {1}})
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        train(model, run=tmp_path / "run", lora=gomlx.Adapter(model.apply_lora().terms, meta={"x": {1}}))
    assert not (tmp_path / "run").exists()


PROGRAM = """
import sys, json, gomlx
from gomlx import lora
rows = json.loads(sys.argv[2])
with gomlx.load() as model:
    print("ready", flush=True)
    options = {"resume": sys.argv[1]} if sys.argv[3] == "resume" else {"run": sys.argv[1], **json.loads(sys.argv[4]),
        "lora": lora.LoRAConfig(targets=["q_proj"], layers=2)}
    with gomlx.train(model, rows, progress=False, **options) as run:
        for step in run:
            print(step.step, flush=True)
"""
FILES = {"adapter", "config.json", "loss.txt", "metrics.jsonl", "state.safetensors"}
RUN = {"steps": 40, "batch": 2, "save_every": 1, "learning_rate": 5e-3}


def start(folder, how, **changes):
    program = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(ROWS), how, json.dumps(RUN | changes)]
    made = subprocess.Popen(program, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert made.stdout.readline() == "ready\n"
    return made


def wait_for(process, step):
    """Reads what the program says up to a step."""
    for line in process.stdout:
        if line == f"{step}\n":
            return
    pytest.fail(f"it ended before step {step}: {process.stderr.read()}")


def test_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_bits(model, tmp_path):
    whole = train(model, ROWS, **RUN, lora=lora.LoRAConfig(targets=["q_proj"], layers=2)).finish()
    rng, folder, how, kills = np.random.default_rng(0), tmp_path / "run", "begin", 0
    for delay in rng.uniform(0.02, 0.15, 4):
        process = start(folder, how)
        if kills == 0:
            wait_for(process, 2)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        how, kills = "resume", kills + 1
    process = start(folder, how)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    kept = gomlx.read_adapter(folder / "adapter", model)
    assert {name: np.asarray(value).tobytes() for name, value in kept.parameters().items()} == bits(whole)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, 41)) and [one["loss"] for one in lines] == whole.losses
    assert set(os.listdir(folder)) - {"loss.png"} == FILES          # that one is there with matplotlib


def test_an_interrupt_leaves_a_run_that_can_be_resumed(model, tmp_path):
    process = start(tmp_path / "run", "begin", save_every=1000, batch=12)
    wait_for(process, 3)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - asked < 5 and "KeyboardInterrupt" in errors
    run = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False)
    assert run.step >= 3 and len(run.history) == run.step
    next(run)


def test_an_interrupted_step_leaves_everything_as_it_was(model, monkeypatch):
    """Wherever in it the signal comes: done again it has the same bits."""
    whole = train(model, steps=2, batch=4).finish()
    run, evaluate, seen = train(model, steps=2, batch=4), _gomlx.eval_or_drop, []

    def interrupted(*trees):
        seen.append(len(seen))
        if len(seen) in (1, 3, 6):
            signal.raise_signal(signal.SIGINT)
        evaluate(*trees)

    monkeypatch.setattr(_gomlx, "eval_or_drop", interrupted)
    done = 0
    for _ in range(20):
        try:
            next(run)
        except KeyboardInterrupt:
            done += 1
        except StopIteration:
            break
    assert done == 3 and run.step == 2 and run.losses == whole.losses and bits(run) == bits(whole)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers here")
def test_what_a_signal_ends_has_no_value():
    def interrupt(*_):
        raise KeyboardInterrupt

    with mx.stream(mx.cpu):
        first = x = mx.ones((1000, 1000)) * 1e-3
        for _ in range(1000):           # seconds: it has begun when the signal comes, and is far from its end
            x = x @ first
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            _gomlx.eval_or_drop([x])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert first[0, 0].item() == np.float32(1e-3)
    with pytest.raises(RuntimeError, match="its evaluation was interrupted, so it has no value"):
        mx.eval(x)


def test_a_full_disk_leaves_what_was_saved(model, tmp_path):
    run = train(model, run=tmp_path / "run", **settings(eval_data=None, eval_every=None))
    next(run)
    before = (tmp_path / "run" / "state.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))        # SIGXFSZ is ignored by Python
    try:
        with pytest.raises(OSError, match="cannot write .*state.safetensors.*the one before is unchanged"):
            next(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "run" / "state.safetensors").read_bytes() == before
    assert set(os.listdir(tmp_path / "run")) == FILES
    run.finish()
    whole = train(model, **settings(eval_data=None, eval_every=None)).finish()
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", progress=False)
    assert again.step == 6 and bits(run) == bits(whole) == bits(again)


def test_what_notebooks_and_terminals_show(model):
    run = train(model, steps=2, batch=12)
    run.finish()
    assert "2 of 2 steps" in repr(run) and "polyline" in run._repr_html_()
    seen = []
    train(model, steps=2, batch=2, progress=seen.append).finish()
    assert seen == [0.5, 1.0]


# ---- against others ----

@pytest.mark.parametrize("name, steps, dora", [
    ("fable", 20, False), ("fable", 20, True), *(pytest.param(name, 200, dora, marks=pytest.mark.slow)
                                                 for name in ("fable", "qwen3") for dora in (False, True))])
def test_the_curve_of_peft(name, steps, dora, shared):
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)                                # these models are small
    path, texts = os.path.join(shared, "data", "models", name), ROWS
    if steps > 20:                                          # each row once, in letters that the model knows little of
        with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as file:
            lines = [line.strip().upper()[:100] for line in file]
        texts = [{"text": line} for line in lines if len(line) == 100][:3 * steps]
        assert len(texts) == 3 * steps
    with gomlx.load(path) as model:
        rows = lora.load_data(texts, model)
        config = lora.LoRAConfig(rank=4, alpha=8, targets="all", dora=dora)
        run = train(model, rows, lora=config, batch=3, steps=steps, learning_rate=2e-3, clip=1.0)
        base = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        targets = sorted({layer.rpartition(".")[2] for layer in run.adapter.terms})
        other = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets,
                                                            use_dora=dora))
        state = dict(other.named_parameters())
        with torch.no_grad():
            for layer, term in run.adapter.terms.items():
                state[f"base_model.model.{layer}.lora_A.default.weight"].copy_(torch.tensor(np.asarray(term.a)))
        trained = [one for one in other.parameters() if one.requires_grad]
        assert sum(one.numel() for one in trained) == run.adapter.count
        optimizer = torch.optim.AdamW(trained, lr=2e-3, weight_decay=0.01)
        want, epoch = [], 0
        while len(want) < steps:
            for part in run._order.passes_of(epoch):
                losses = []
                for row in part:
                    ids = torch.tensor([list(row.sequences[0].ids)])
                    counted = torch.tensor(list(row.sequences[0].counted[1:]), dtype=torch.bool)
                    logits = other(ids).logits[0, :-1]
                    losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")[counted])
                loss = torch.cat(losses).mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                want.append(loss.item())
            epoch += 1
        run.finish()
    np.testing.assert_allclose(run.losses, want[:steps], rtol=0.01)
    assert np.mean(run.losses[-10:]) < 0.8 * run.losses[0]
