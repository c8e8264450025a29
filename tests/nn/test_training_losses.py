"""Formulas of losses against those that TRL's trainers run, with their gradients, on random log probabilities."""
import collections
import types

import numpy as np
import pytest

import gomlx.core as mx
from gomlx import lora

ROWS = 40


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("trl", reason="TRL is not installed: pip install trl")
    return pytest.importorskip("torch")


def method(module, trainer, name):
    """A method of a trainer of TRL's, whose names may change."""
    import importlib
    try:
        return getattr(getattr(importlib.import_module(module), trainer), name)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"this TRL has another {trainer}: {error}")


def numbers(seed, *ranges):
    """float32 [ROWS] within each range, about it and, at the ends, far from the middle."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(low, high, ROWS).astype(np.float32) for low, high in ranges]


class Trainer(types.SimpleNamespace):
    """What the methods ask of their trainer."""

    def __init__(self, **options):
        accelerator = types.SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
        super().__init__(model=types.SimpleNamespace(training=True), accelerator=accelerator, aux_loss_enabled=False,
                         ld_alpha=None, precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_weights=[1.0],
                         use_weighting=False, _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
                         _total_train_tokens=0, _tp_size=1, calculate_KL=True, loss_type="kto", **options)


def outputs(torch, logs):
    """Of a model whose sequences have one token that counts."""
    logs = logs.reshape(-1, 1)
    return types.SimpleNamespace(log_probs=logs, entropy=torch.zeros_like(logs), mean_logits=torch.zeros_like(logs),
                                 is_top1=torch.ones_like(logs, dtype=torch.bool))


def inputs(torch, n, **more):
    ones = torch.ones(n, 2, dtype=torch.int64)
    return {"input_ids": ones, "attention_mask": ones, "completion_mask": ones, **more}


def check(found, want, torch, *logs):
    """Values, and the gradients of their mean, of gomlx's function and of TRL's."""
    ours, theirs = [mx.array(one) for one in logs], [torch.tensor(one, requires_grad=True) for one in logs]
    values, wanted = found(*ours), want(*theirs)
    np.testing.assert_allclose(np.asarray(values).mean(), wanted.mean().item(), rtol=2e-6)
    if wanted.ndim:
        np.testing.assert_allclose(values, wanted.detach(), rtol=2e-5, atol=1e-7)
    wanted.mean().backward()
    grads = mx.grad(lambda *x: found(*x).mean(), argnums=list(range(len(ours))))(*ours)
    for one, other in zip([grads] if len(logs) == 1 else grads, theirs):
        np.testing.assert_allclose(one, other.grad, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_dpo(beta, smoothing, torch):
    compute = method("trl.trainer.dpo_trainer", "DPOTrainer", "_compute_loss")
    # "aot" compares sorted rows: of one row it is DPO with labels that may be wrong
    trainer = Trainer(beta=beta, label_smoothing=smoothing, loss_types=["aot" if smoothing else "sigmoid"])
    chosen, rejected, reference_chosen, reference_rejected = numbers(1, *[(-60, -1)] * 4)

    def theirs(chosen, rejected):
        def some(part):
            given = inputs(torch, 2 * len(chosen[part]), ref_chosen_logps=torch.tensor(reference_chosen[part]),
                           ref_rejected_logps=torch.tensor(reference_rejected[part]))
            logs = torch.cat([chosen[part], rejected[part]])
            return compute(trainer, lambda **_: outputs(torch, logs), given, False)
        if not smoothing:
            return some(slice(None))
        return torch.stack([some(slice(i, i + 1)) for i in range(ROWS)])

    def ours(chosen, rejected):
        return lora.dpo_loss(chosen, rejected, mx.array(reference_chosen), mx.array(reference_rejected), beta=beta,
                             label_smoothing=smoothing)
    check(ours, theirs, torch, chosen, rejected)


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("least", [-6, -0.7, -1e-3, -1e-5])
def test_orpo(beta, least, torch):
    compute = method("trl.experimental.orpo.orpo_trainer", "ORPOTrainer", "odds_ratio_loss")
    chosen, rejected = numbers(2, (least, least / 100), (-6, -1e-4))
    check(lambda a, b: lora.orpo_loss(a, b, beta=beta), lambda a, b: -compute(Trainer(beta=beta), a, b)[0], torch,
          chosen, rejected)


@pytest.mark.parametrize("beta, desirable, undesirable", [(0.1, 1.0, 1.0), (0.5, 1.0, 2.0), (1.0, 0.25, 1.0)])
@pytest.mark.parametrize("moved", [-20, 3])            # the mean of the divergence: below 0 it is none
def test_kto(beta, desirable, undesirable, moved, torch):
    compute = method("trl.trainer.kto_trainer", "KTOTrainer", "_compute_loss")
    policy, reference, shifted, reference_shifted = numbers(3, *[(-60, -1)] * 4)
    shifted = reference_shifted + moved + shifted / 100
    wanted = np.random.default_rng(4).random(ROWS) < 0.6
    trainer = Trainer(beta=beta, desirable_weight=desirable, undesirable_weight=undesirable,
                      _compute_kl_logps=lambda model, batch: torch.tensor(shifted))
    given = inputs(torch, ROWS, label=torch.tensor(wanted), ref_logps=torch.tensor(reference),
                   ref_KL_logps=torch.tensor(reference_shifted))
    divergence = max(0.0, float((shifted - reference_shifted).mean()))
    assert (divergence > 0) == (moved > 0)

    def ours(policy):
        return lora.kto_loss(policy, mx.array(reference), mx.array(wanted), divergence, beta=beta,
                             desirable_weight=desirable, undesirable_weight=undesirable)
    check(ours, lambda policy: compute(trainer, lambda **_: outputs(torch, policy), given, False), torch, policy)
