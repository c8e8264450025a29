"""What tests/core/test_distributed.py runs in several processes: `ranks.py CASE,CASE`. Each prints "rank: done", or its
error."""
import functools
import os
import signal
import sys
import time

import numpy as np

import gomlx.core as mx
from gomlx import _gomlx, nn

DTYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
          "float32", "float64", "complex64")
d = mx.distributed
ON_GPU = os.environ.get("RANKS_BACKEND") == "nccl"
if ON_GPU:
    DTYPES = tuple(one for one in DTYPES if one != "float64")


def values(rank, shape, dtype):
    """The same in every process that asks for those of this rank."""
    chance = np.random.default_rng([rank, *shape])
    made = chance.standard_normal(shape) * 50
    if dtype == "float32" and made.size > 3:
        made.reshape(-1)[chance.integers(0, made.size, 2)] = np.nan, np.inf
    if dtype == "complex64":
        made = made + 1j * chance.standard_normal(shape)
    made = made.astype("f4") if dtype == "bfloat16" else (made > 0) if dtype == "bool_" else made.astype(dtype)
    return mx.array(made, getattr(mx, dtype))


def bits(x):
    """Of a GPU's results one NaN stands for all: which bits it has is each processor's own."""
    if ON_GPU and mx.issubdtype(x.dtype, mx.inexact):
        x = mx.where(mx.isnan(x), mx.array(float("nan"), x.dtype), x)
    flat = mx.contiguous(x.reshape(-1))
    return bytes(memoryview(flat.view(mx.uint8) if x.dtype != mx.bool_ else flat.astype(mx.uint8)))


def in_order(combine, parts):
    """Combined in rank order, by NumPy; of bfloat16 in its own arithmetic."""
    if parts[0].dtype == mx.bfloat16:
        named = {np.add: mx.add, np.maximum: mx.maximum, np.minimum: mx.minimum}
        return functools.reduce(named[combine], parts)
    return mx.array(functools.reduce(combine, [np.array(one) for one in parts]), parts[0].dtype)


def check_sizes(rank, size, shapes, dtypes):
    for dtype in dtypes:
        for shape in shapes:
            parts = [values(one, shape, dtype) for one in range(size)]
            own = parts[rank]
            with np.errstate(all="ignore"):
                want = {d.all_sum: in_order(np.add, parts), d.all_max: in_order(np.maximum, parts),
                        d.all_min: in_order(np.minimum, parts)}
            for call, wanted in want.items():
                got = call(own)
                assert got.dtype == own.dtype and got.shape == own.shape
                assert bits(got) == bits(wanted), (call, dtype, shape)
            if shape:
                assert bits(d.all_gather(own)) == bits(mx.concatenate(parts)), (dtype, shape)
                if shape[0] % size == 0:
                    n = shape[0] // size
                    mine = want[d.all_sum][rank * n:(rank + 1) * n]
                    assert bits(d.sum_scatter(own)) == bits(mx.contiguous(mine)), (dtype, shape)
            if rank == 0:
                mx.eval(d.send(own, 1))
                assert bits(d.recv(shape, own.dtype, size - 1)) == bits(parts[size - 1])
            else:
                assert bits(d.recv_like(own, rank - 1)) == bits(parts[rank - 1])
                mx.eval(d.send(own, (rank + 1) % size))


def sizes(rank, size):
    check_sizes(rank, size, [(), (2 * size, 3), (101,)], DTYPES)
    check_sizes(rank, size, [(1,), (size,), (0,), (3, 0), (10_001,)], ["float32", "bfloat16"])
    assert d.all_gather(mx.array(rank)).tolist() == list(range(size))
    x = mx.arange(12.0).reshape(3, 4).T + rank           # not contiguous
    assert d.all_sum(x).tolist() == (mx.arange(12.0).reshape(3, 4).T * size + sum(range(size))).tolist()
    many = [d.all_sum(mx.array([float(i), rank])) for i in range(40)]       # one evaluation of independent ones
    assert [one.tolist() for one in many] == [[i * size, sum(range(size))] for i in range(40)]
    lazy = d.all_sum(mx.ones(3))
    mx.async_eval(lazy + 1)
    assert (lazy + 1).tolist() == [size + 1] * 3
    for i in range(100):
        assert d.all_sum(mx.array(i)).item() == i * size


def large(rank, size):
    check_sizes(rank, size, [(1 << 21,), ((1 << 21) - 3,)], ["float32", "bfloat16"])


def groups(rank, size):
    world = d.init(strict=True)
    sub = world.split(rank % 2, -rank)
    mine = [one for one in range(size) if one % 2 == rank % 2][::-1]
    assert (sub.rank(), sub.size()) == (mine.index(rank), len(mine))
    assert d.all_gather(mx.array([rank]), group=sub).tolist() == mine
    assert d.all_sum(mx.array(1)).item() == size
    for call in (lambda: d.send(mx.array(1), size), lambda: d.recv((1,), mx.int8, rank), lambda: world.split(-1),
                 lambda: d.sum_scatter(mx.ones((size + 1,)))):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError


def gradients(rank, size):
    x, c = mx.array([1.0, 2.0]) * (rank + 1), mx.array([10.0, 20.0]) * (rank + 1)
    for call in (d.all_sum, d.all_max):
        assert mx.vjp(call, [x], [c])[1][0].tolist() == c.tolist()
    assert mx.jvp(d.all_sum, [x], [x])[1][0].tolist() == d.all_sum(x).tolist()
    whole = mx.arange(2.0 * size)
    assert mx.vjp(d.all_gather, [x], [whole])[1][0].tolist() == [2.0 * rank, 2.0 * rank + 1]
    assert mx.vjp(d.sum_scatter, [mx.ones((2 * size,))], [x])[1][0].tolist() == d.all_gather(x).tolist()
    grid = mx.arange(6.0).reshape(2, 3)
    assert mx.vmap(d.all_sum)(grid).tolist() == (grid * size).tolist()
    assert mx.vmap(d.all_gather)(grid).tolist() == mx.concatenate([grid] * size, 1).tolist()
    assert mx.compile(lambda a: d.all_sum(a * 2) + 1)(x).tolist() == (d.all_sum(x * 2) + 1).tolist()


def layers(rank, size):
    """What is cut across the processes gives what is whole; gradients are averaged in one order."""
    mx.random.seed(7)
    whole, x = nn.Linear(8 * size, 8 * size), mx.random.normal((3, 8 * size))
    a, b = nn.layers.distributed.shard_linear(whole, "all-to-sharded"), nn.Linear(8 * size, 5)
    b_cut = nn.layers.distributed.shard_linear(b, "sharded-to-all")
    np.testing.assert_allclose(np.array(b_cut(nn.relu(a(x)))), np.array(b(nn.relu(whole(x)))), rtol=1e-4, atol=1e-5)
    got = mx.grad(lambda y: b_cut(nn.relu(a(y))).sum())(x)
    want = mx.grad(lambda y: b(nn.relu(whole(y))).sum())(x)
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-5)
    tree = {"a": mx.ones((3,)) * rank, "b": [mx.full((2, 2), rank + 1.0)]}
    for limit in (0, 1, 1 << 20):
        got = nn.utils.average_gradients(tree, all_reduce_size=limit)
        assert got["a"].tolist() == [(size - 1) / 2] * 3 and got["b"][0].tolist() == [[(size + 1) / 2] * 2] * 2


def shape(rank, size):
    mx.eval(d.all_sum(mx.ones((2 + (rank == 1),))))


def dtype(rank, size):
    mx.eval(d.all_sum(mx.ones((2,), mx.float16 if rank == 1 else mx.float32)))


def operation(rank, size):
    mx.eval(d.all_max(mx.ones(2)) if rank == 1 else d.all_sum(mx.ones(2)))


def killed(rank, size):
    mx.eval(d.all_sum(mx.ones(2)))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        mx.eval(d.all_sum(mx.ones(100_000)))


def left(rank, size):
    if rank != 1:
        mx.eval(d.all_sum(mx.ones(2)))


def hangs(rank, size):
    """The carrier of one rank moves nothing; all of them wait two seconds."""
    d._links[0].timeout = 2.0
    mx.eval(d.all_sum(mx.ones(2)))


def stalls(rank, size):
    """Rank 1 agrees, and then sends nothing: the GPUs of the others are in the middle of the sum."""
    link = d._links[0]
    link.timeout = 2.0

    def move(*_):
        while not link._watch.failures:
            time.sleep(0.01)
        raise RuntimeError("it has sent nothing")

    if rank == 1:
        link.devices.move = move
    mx.eval(d.all_sum(mx.ones(2)))


def dies(rank, size):
    """Rank 1 agrees, and is killed before it sends."""
    if rank == 1:
        d._links[0].devices.move = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    mx.eval(d.all_sum(mx.ones(2)))


def elsewhere(rank, size):
    """On a GPU that is not the group's, and on the processor."""
    assert d.all_sum(mx.ones(2), stream=mx.cpu).tolist() == [size, size]
    mx.eval(d.all_sum(mx.ones(2), stream=mx.Device(mx.gpu, (rank + 1) % size)))


def averages(rank, size):
    """What came from a GPU's sum is there still, and no operation has fallen back to the processor."""
    tree = {"a": mx.ones((300,)) * rank, "b": [mx.full((2, 2), rank + 1.0)]}
    got = nn.utils.average_gradients(tree)
    assert got["a"].tolist() == [(size - 1) / 2] * 300 and got["b"][0].tolist() == [[(size + 1) / 2] * 2] * 2
    assert mx.default_device() == mx.Device(mx.gpu, rank) and not _gomlx._fallbacks()


def late(rank, size):
    """The others wait for rank 1 two seconds, not those in which all of them begin."""
    link = d._links[0]
    while rank == 1 and not link._watch.failures:
        time.sleep(0.01)
    link.timeout = 2.0
    mx.eval(d.all_sum(mx.ones(2)))


def received(rank, size):
    if rank == 0:
        mx.eval(d.send(mx.ones(3), 1))
    elif rank == 1:
        mx.eval(d.recv((4,), mx.float32, 0))
    mx.eval(d.all_sum(mx.ones(2)))


if __name__ == "__main__":
    try:
        group = d.init(strict=True, backend=os.environ.get("RANKS_BACKEND", "any"))
    except RuntimeError as error:
        print(f"{os.environ.get('RANK')}: error {error}\n", end="", flush=True)
        raise SystemExit(1) from None
    try:
        for case in sys.argv[1].split(","):
            globals()[case](group.rank(), group.size())
        said = "done"
    except RuntimeError as error:
        said = f"error {error}"
        try:
            mx.eval(d.all_sum(mx.ones(1)))
        except RuntimeError:
            said += " |"                        # the group is at its end, and says so at once
    print(f"{group.rank()}: {said}\n", end="", flush=True)
