"""What a training loop needs around a model: gradients of its parameters, checkpointing, gradients across processes."""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.utils import tree_flatten, tree_map, tree_reduce, tree_unflatten

P = ParamSpec("P")
R = TypeVar("R")


def value_and_grad(model: Module, fn: Callable[P, R]) -> Callable[P, tuple[R, dict[str, Any]]]:
    """A function that returns fn(...) and its gradients with respect to the model's trainable parameters.

    fn uses the model; where it returns a tuple, the first element is what is differentiated.
    """
    def with_parameters(parameters, *args, **kwargs):
        model.update(parameters)
        return fn(*args, **kwargs)

    differentiated = mx.value_and_grad(with_parameters)

    @wraps(fn)
    def wrapped(*args, **kwargs):
        parameters = model.trainable_parameters()
        try:
            return differentiated(parameters, *args, **kwargs)
        finally:
            model.update(parameters)            # fn may have failed in the middle: no tracer is left in it

    return wrapped


def checkpoint(module: Module, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """fn (the module itself by default), computed again in the backward pass instead of remembered.

    Gradients flow to fn's inputs and to the module's trainable parameters: https://arxiv.org/abs/1604.06174.
    """
    if fn is None:
        fn = module

    def with_parameters(parameters, *args, **kwargs):
        module.update(parameters)
        return fn(*args, **kwargs)

    recomputed = mx.checkpoint(with_parameters)

    @wraps(fn)
    def wrapped(*args, **kwargs):
        return recomputed(module.trainable_parameters(), *args, **kwargs)

    return wrapped


def average_gradients(gradients: Any, group: mx.distributed.Group | None = None,
                      all_reduce_size: int = 32 * 1024 * 1024, communication_stream: mx.Stream | None = None) -> Any:
    """The gradients averaged over the processes of the group.

    Small arrays travel together, up to about all_reduce_size bytes at a time (0 or less: each on its own).
    """
    group = group or mx.distributed.init()
    size = group.size()
    if size == 1:
        return gradients

    def average(x):
        return mx.distributed.all_sum(x, group=group, stream=communication_stream) / size

    if all_reduce_size <= 0:
        return tree_map(average, gradients)
    flat = tree_flatten(gradients)
    if len({gradient.dtype for _, gradient in flat}) != 1:
        return tree_map(average, gradients)
    done = []
    for batch in batches(flat, all_reduce_size):
        whole = average(mx.concatenate([gradient.reshape(-1) for _, gradient in batch]))
        start = 0
        for path, gradient in batch:
            done.append((path, whole[start:start + gradient.size].reshape(gradient.shape)))
            start += gradient.size
    return tree_unflatten(done)


def batches(flat, limit):
    """Runs of (path, array), each ended by the array that brings it to `limit` bytes."""
    batch, total = [], 0
    for path, array in flat:
        batch.append((path, array))
        total += array.nbytes
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def sum_of_squares(gradients):
    """The sum of the squares of all elements; those of float16, which would overflow, in float32."""
    def add(total, g):
        return total + mx.sum(mx.square(g.astype(mx.float32) if g.dtype == mx.float16 else g))

    return tree_reduce(add, gradients, 0.0)


def scale_to_norm(gradients, norm, max_norm):
    """The gradients, whose norm is `norm`, scaled to max_norm where that is less. Floating ones keep their dtype."""
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)

    def scaled(g):
        return (g * scale).astype(g.dtype) if mx.issubdtype(g.dtype, mx.inexact) else g * scale

    return tree_map(scaled, gradients)


def clip_grad_norm_sharded(gradients: Any, max_norm: float,
                           group: mx.distributed.Group | None = None) -> tuple[Any, mx.array]:
    """Gradients of which this process has its part, scaled so that their norm over all processes is at most max_norm.

    Returns them and the norm they had.
    """
    group = group or mx.distributed.init()
    norm = mx.sqrt(mx.distributed.all_sum(mx.array(sum_of_squares(gradients)), group=group))
    return scale_to_norm(gradients, norm, max_norm), norm
