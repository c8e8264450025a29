"""Losses. `reduction` is "none" (a value for each example), "mean" or "sum"."""
import math
from typing import Literal, get_args

import gomlx.core as mx
from gomlx._base.arguments import name_public
from gomlx._gomlx import AxisError

Reduction = Literal["none", "mean", "sum"]


def reduce(loss: mx.array, reduction: Reduction):
    if reduction == "mean":
        return mx.mean(loss)
    if reduction == "sum":
        return mx.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"Invalid reduction. Must be one of {get_args(Reduction)}.")


def weighted(loss, weights):
    if weights is None:
        return loss
    if weights.shape != loss.shape:
        raise ValueError(f"Weights with shape {weights.shape} is not the same as output loss with shape {loss.shape}.")
    return loss * weights


def masked_mean(loss: mx.array, mask: mx.array) -> mx.array:
    """sum(loss * mask) / sum(mask), where `reduction="mean"` divides by the number of all: a float32 (or wider) scalar.

    `loss` has a value for each position (`reduction="none"`), `mask` its shape: bool, or weights of at least 0. What it
    leaves out may be infinite or NaN. Where it leaves out all, the result is 0.
    """
    same_shape(loss, mask, ("Loss", "mask"))
    dtype = mx.result_type(loss.dtype, mx.float32)
    weights = mask.astype(dtype)
    total = mx.sum(mx.where(weights == 0, 0, loss.astype(dtype) * weights))
    count = mx.sum(weights)
    return total / mx.where(count == 0, 1, count)


def same_shape(first, second, names):
    if first.shape != second.shape:
        raise ValueError(f"{names[0]} shape {first.shape} does not match {names[1]} shape {second.shape}.")


def cross_entropy(logits: mx.array, targets: mx.array, weights: mx.array | None = None, axis: int = -1,
                  label_smoothing: float = 0.0, reduction: Reduction = "none") -> mx.array:
    """-log softmax(logits) of the target class, or averaged over target probabilities of the logits' shape.

    Label smoothing: https://arxiv.org/abs/1512.00567.
    """
    if label_smoothing < 0 or label_smoothing >= 1:
        raise ValueError(f"Label smoothing must be in [0, 1), got {label_smoothing}.")
    probabilities = targets.ndim == logits.ndim
    if not -logits.ndim <= axis < logits.ndim:
        raise AxisError(f"cross_entropy: axis {axis} is out of range for {logits.ndim} dimensions")
    expected = list(logits.shape)
    if not probabilities:
        expected.pop(axis)
    if targets.shape != tuple(expected):
        raise ValueError(f"Targets shape {targets.shape} does not match logits shape {logits.shape}.")

    if not probabilities and label_smoothing == 0 and axis in (-1, logits.ndim - 1):
        loss = mx.fast.cross_entropy(logits, targets).astype(logits.dtype)
        return reduce(weighted(loss, weights), reduction)
    # With the largest at zero, nothing is lost where a score is taken from the logarithm of a large sum.
    logits = logits - mx.stop_gradient(mx.max(logits, axis=axis, keepdims=True))
    if probabilities:
        score = mx.sum(logits * targets, axis=axis)
    else:
        score = mx.take_along_axis(logits, mx.expand_dims(targets, axis), axis).squeeze(axis)
    if label_smoothing > 0:
        score = (1 - label_smoothing) * score + label_smoothing * mx.mean(logits, axis=axis)
    return reduce(weighted(mx.logsumexp(logits, axis=axis) - score, weights), reduction)


def masked_cross_entropy(logits: mx.array, targets: mx.array, mask: mx.array, axis: int = -1,
                         label_smoothing: float = 0.0) -> mx.array:
    """The mean of cross_entropy over the positions that `mask` keeps, as masked_mean has it.

    Targets that it leaves out may be any integers, logits any numbers: they have no part in the gradient either.
    """
    if targets.ndim < logits.ndim and targets.shape == mask.shape:
        targets = mx.where(mask == 0, 0, targets)          # a number that is not a class would be an IndexError
    if logits.ndim == mask.ndim + 1:
        logits = mx.where(mx.expand_dims(mask == 0, axis), 0, logits)          # NaN times no gradient would be NaN
    return masked_mean(cross_entropy(logits, targets, axis=axis, label_smoothing=label_smoothing), mask)


def binary_cross_entropy(inputs: mx.array, targets: mx.array, weights: mx.array | None = None,
                         with_logits: bool = True, reduction: Reduction = "mean") -> mx.array:
    """-log of the probability of the binary target.

    `inputs` are logits, or else probabilities, the logs of which count as at least -100.
    """
    same_shape(inputs, targets, ("Inputs", "targets"))
    if with_logits:
        loss = mx.logaddexp(0.0, inputs) - inputs * targets
    else:
        log_p = mx.maximum(mx.log(inputs), -100)
        log_q = mx.maximum(mx.log(1 - inputs), -100)
        loss = -(targets * log_p + (1 - targets) * log_q)
    return reduce(weighted(loss, weights), reduction)


def l1_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """|predictions - targets|."""
    same_shape(predictions, targets, ("Predictions", "targets"))
    return reduce(mx.abs(predictions - targets), reduction)


def mse_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """(predictions - targets)**2."""
    same_shape(predictions, targets, ("Predictions", "targets"))
    return reduce(mx.square(predictions - targets), reduction)


def nll_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """-inputs at the target class; `inputs` are log probabilities."""
    loss = -mx.take_along_axis(inputs, mx.expand_dims(targets, axis), axis).squeeze(axis)
    return reduce(loss, reduction)


def gaussian_nll_loss(inputs: mx.array, targets: mx.array, vars: mx.array, full: bool = False, eps: float = 1e-6,
                      reduction: Reduction = "mean") -> mx.array:
    """-log of the normal density at the targets, for predicted means `inputs` and variances `vars`, those at least eps.

    The constant log(2 pi) / 2 is added with `full` only. Nix and Weigend 1994.
    """
    same_shape(inputs, targets, ("Inputs", "targets"))
    same_shape(inputs, vars, ("Inputs", "vars"))
    vars = mx.maximum(vars, eps)
    loss = 0.5 * (mx.log(vars) + mx.square(targets - inputs) / vars)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduce(loss, reduction)


def kl_div_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """The divergence of the distribution `inputs` from the distribution `targets`, both log probabilities."""
    return reduce(mx.sum(mx.exp(targets) * (targets - inputs), axis), reduction)


def smooth_l1_loss(predictions: mx.array, targets: mx.array, beta: float = 1.0,
                   reduction: Reduction = "mean") -> mx.array:
    """d**2 / (2 beta) for a difference |d| < beta, |d| - beta / 2 beyond: https://arxiv.org/abs/1504.08083."""
    same_shape(predictions, targets, ("Predictions", "targets"))
    distance = mx.abs(predictions - targets)
    loss = mx.where(distance < beta, 0.5 * mx.square(distance) / beta, distance - 0.5 * beta)
    return reduce(loss, reduction)


def triplet_loss(anchors: mx.array, positives: mx.array, negatives: mx.array, axis: int = -1, p: int = 2,
                 margin: float = 1.0, eps: float = 1e-6, reduction: Reduction = "none") -> mx.array:
    """max(0, distance to the positive - distance to the negative + margin), in the p-norm.

    https://arxiv.org/abs/1503.03832.
    """
    def distance(x):
        return mx.power(mx.sum(mx.power(mx.abs(anchors - x), p), axis) + eps, 1 / p)

    return reduce(mx.maximum(distance(positives) - distance(negatives) + margin, 0), reduction)


def hinge_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """max(0, 1 - inputs * targets), for targets of -1 and 1."""
    return reduce(mx.maximum(1 - inputs * targets, 0), reduction)


def huber_loss(inputs: mx.array, targets: mx.array, delta: float = 1.0, reduction: Reduction = "none") -> mx.array:
    """d**2 / 2 for a difference |d| <= delta, delta (|d| - delta / 2) beyond: Huber 1964."""
    distance = mx.abs(inputs - targets)
    loss = mx.where(distance <= delta, 0.5 * mx.square(distance), delta * (distance - 0.5 * delta))
    return reduce(loss, reduction)


def log_cosh_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """log(cosh(inputs - targets))."""
    d = inputs - targets
    return reduce(mx.logaddexp(d, -d) - math.log(2), reduction)


def cosine_similarity_loss(x1: mx.array, x2: mx.array, axis: int = 1, eps: float = 1e-8,
                           reduction: Reduction = "none") -> mx.array:
    """The cosine of the angle between x1 and x2; the product of their norms counts as at least eps."""
    norms = mx.linalg.norm(x1, axis=axis) * mx.linalg.norm(x2, axis=axis)
    return reduce(mx.sum(x1 * x2, axis=axis) / mx.maximum(norms, eps), reduction)


def margin_ranking_loss(inputs1: mx.array, inputs2: mx.array, targets: mx.array, margin: float = 0.0,
                        reduction: Reduction = "none") -> mx.array:
    """max(0, margin - targets * (inputs1 - inputs2)): 1 as target asks for inputs1 to rank higher, -1 for inputs2."""
    if not inputs1.shape == inputs2.shape == targets.shape:
        raise ValueError(f"The shapes of the arguments do not match. The provided shapes are inputs1.shape="
                         f"{inputs1.shape}, inputs2.shape={inputs2.shape}, and targets.shape={targets.shape}.")
    return reduce(mx.maximum(margin - targets * (inputs1 - inputs2), 0), reduction)


name_public(globals())
