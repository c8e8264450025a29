"""Measures arrays on a GPU, ours and torch's eager ones, and prints one table.

    pip install . ./kernels/cuda torch
    python benchmarks/gpu.py                        # everything: about a minute
    python benchmarks/gpu.py --only add,softmax

In each round both libraries run a row, one after the other: calls are begun for about --sample seconds and waited for
together. Cells are medians of the rounds in microseconds a call; "ratio" is torch's time over ours in the same round,
its median with the least and the greatest: above 1 we are faster. "of copy" is the bytes that a row must read and write
a second, as a share of those that a copy of 256 MiB (torch's) reads and writes in the same run; for products, TFLOP/s.
TF32 is off in both. The last lines: what one small operation of a lazy chain
of 1000 costs with its evaluation, and item() of an array that is ready; then steps of AdamW alone and of training."""
import argparse
import statistics
import time

import numpy as np
import torch
from torch.nn import functional

import gomlx
import gomlx.core as mx
from gomlx import nn, optimizers

MIB = 1 << 20
HALF = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def seconds_of(call, begin, wait, seconds):
    """Of one call, when they are begun one after the other."""
    count, took = 1, 0.0
    while True:
        wait()
        started = time.perf_counter()
        for _ in range(count):
            begin(call())
        wait()
        took = time.perf_counter() - started
        if took >= seconds / 2:
            return took / count
        count = max(count + 1, min(8 * count, int(count * seconds / max(took, 1e-6))))


class Row:
    """One operation: inputs as NumPy arrays of float32, integers stay; bytes that it must move, or operations."""

    def __init__(self, name, inputs, ours, theirs, dtype="float32", moved=0, operations=0):
        self.name, self.moved, self.operations = name, moved, operations
        kinds = [dtype if one.dtype == np.float32 else None for one in inputs]
        mine = [mx.array(one).astype(getattr(mx, kind)) if kind else mx.array(one)
                for one, kind in zip(inputs, kinds)]
        other = [torch.from_numpy(one).cuda().to(HALF[kind]) if kind else torch.from_numpy(one).cuda()
                 for one, kind in zip(inputs, kinds)]
        mx.eval(mine)
        self.ours = lambda: ours(*mine)
        self.theirs = lambda: theirs(*other)

    def measure(self, rounds, sample):
        """Of each round; the first one, in which kernels are loaded and algorithms chosen, does not count."""
        times = [(seconds_of(self.ours, mx.async_eval, mx.synchronize, sample),
                  seconds_of(self.theirs, lambda value: None, torch.cuda.synchronize, sample))
                 for _ in range(1 + rounds)]
        return times[1:]


def numbers(*shape):
    return np.random.default_rng(0).uniform(-3, 3, shape).astype(np.float32)


def rows():
    """Functions that make a row: its inputs are there while it is measured."""
    n, size = 64 * MIB, 4 * 64 * MIB
    flat, indices = numbers(8192, 8192), np.random.default_rng(1)

    def row(name, *arguments, **keywords):
        return name, lambda: Row(name, *arguments, **keywords)

    yield row("add a number", [flat], lambda x: x + 0, lambda x: x + 0, moved=2 * size)
    yield row("add", [flat, flat], lambda x, y: x + y, lambda x, y: x + y, moved=3 * size)
    yield row("add a row", [flat, flat[0]], lambda x, y: x + y, lambda x, y: x + y, moved=2 * size)
    yield row("exp", [flat], mx.exp, torch.exp, moved=2 * size)
    yield row("exp bfloat16", [flat], mx.exp, torch.exp, "bfloat16", moved=size)
    yield row("sum", [flat], mx.sum, torch.sum, moved=size)
    yield row("sum of columns", [flat], lambda x: x.sum(0), lambda x: x.sum(0), moved=size)
    yield row("softmax", [flat], lambda x: mx.softmax(x, -1), lambda x: x.softmax(-1), moved=2 * size)
    yield row("rms_norm", [flat, flat[0]], lambda x, w: mx.fast.rms_norm(x, w, 1e-5),
              lambda x, w: functional.rms_norm(x, (8192,), w, 1e-5), moved=2 * size)
    yield row("transpose", [flat], lambda x: mx.contiguous(x.T), lambda x: x.T.contiguous(), moved=2 * size)
    yield row("argmax of rows", [flat], lambda x: mx.argmax(x, -1), lambda x: x.argmax(-1), moved=size)
    yield row("cumsum of 16M", [flat.reshape(-1)[:n // 4]], mx.cumsum, lambda x: x.cumsum(0), moved=size // 2)
    yield row("sort of 16M", [flat.reshape(-1)[:n // 4]], mx.sort, lambda x: x.sort()[0], moved=size // 2)
    taken = indices.integers(0, 8192, 8192).astype(np.int32)
    yield row("take of rows", [flat, taken], lambda x, i: mx.take(x, i, 0), lambda x, i: x.index_select(0, i),
              moved=2 * size)
    places = indices.integers(0, 65536, n // 4).astype(np.int32)
    yield row("scatter-add of 16M", [numbers(65536), places, flat.reshape(-1)[:n // 4]],
              lambda x, i, y: x.at[i].add(y), lambda x, i, y: x.index_add(0, i, y), moved=size // 2)
    square = numbers(4096, 4096)
    for dtype in HALF:
        yield row(f"matmul 4096 {dtype}", [square, square], lambda x, y: x @ y, lambda x, y: x @ y, dtype,
                  operations=2 * 4096**3)


class OurNetwork(nn.Module):
    """A causal transformer of 8 million parameters."""

    def __init__(self, vocabulary, width, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.TransformerEncoder(layers, width, heads, 4 * width, norm_first=True)
        self.head = nn.Linear(width, vocabulary)

    def __call__(self, ids):
        mask = nn.MultiHeadAttention.create_additive_causal_mask(ids.shape[1])
        return self.head(self.body(self.embedding(ids), mask))


class TheirNetwork(torch.nn.Module):
    def __init__(self, vocabulary, width, layers, heads):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.body = torch.nn.TransformerEncoder(layer, layers, torch.nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, ids):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(self.embedding(ids), mask=mask, is_causal=True))


def training_steps():
    """(ours, theirs): functions of one step each, 32 sequences of 256 tokens."""
    sizes = (4096, 256, 8, 8)
    ids = np.random.default_rng(2).integers(0, sizes[0], (32, 257)).astype(np.int32)
    network, optimizer = OurNetwork(*sizes), optimizers.AdamW(1e-3)
    mine = mx.array(ids)
    mx.eval(network.parameters())

    def loss(model, ids):
        return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:], reduction="mean")

    gradient = nn.value_and_grad(network, loss)

    def ours():
        value, gradients = gradient(network, mine)
        optimizer.update(network, gradients)
        return value, network.parameters(), optimizer.state

    other = TheirNetwork(*sizes).cuda()
    adam = torch.optim.AdamW(other.parameters(), 1e-3)
    theirs_ids = torch.from_numpy(ids).cuda().long()

    def theirs():
        adam.zero_grad()
        logits = other(theirs_ids[:, :-1])
        functional.cross_entropy(logits.reshape(-1, sizes[0]), theirs_ids[:, 1:].reshape(-1)).backward()
        adam.step()

    return ours, theirs


def optimizer_steps():
    """(ours, theirs): functions of one step of AdamW for the parameters of that network, whose gradients are there."""
    network = OurNetwork(4096, 256, 8, 8)
    parameters, optimizer = network.parameters(), optimizers.AdamW(1e-3)
    optimizer.init(parameters)
    mx.eval(parameters, optimizer.state)

    def ours():
        return optimizer.apply_gradients(parameters, parameters), optimizer.state

    other = TheirNetwork(4096, 256, 8, 8).cuda()
    adam = torch.optim.AdamW(other.parameters(), 1e-3)
    for parameter in other.parameters():
        parameter.grad = parameter.detach().clone()
    return ours, adam.step


def microseconds(call, rounds):
    times = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - started))
    return statistics.median(times[3:])


def chain():
    x = mx.ones((4,))
    y = x
    for _ in range(500):
        y = (y + x) * x
    mx.eval(y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="names of rows, or their beginnings, with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", type=float, default=0.03, help="seconds of each sample")
    options = parser.parse_args()
    mx.set_default_device(mx.gpu)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"gomlx {gomlx.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    wanted = [name for name in options.only.split(",") if name]
    source = torch.zeros(64 * MIB, device="cuda")
    target = torch.empty_like(source)
    copied = min(seconds_of(lambda: target.copy_(source), lambda value: None, torch.cuda.synchronize, options.sample)
                 for _ in range(options.rounds))
    rate = 8 * 64 * MIB / copied
    print(f"{'':24}{'gomlx us':>12}{'torch us':>12}   ratio                 of copy ({rate / 1e12:.2f} TB/s)")
    for name, make in rows():
        if wanted and not name.startswith(tuple(wanted)):
            continue
        row = make()
        times = row.measure(options.rounds, options.sample)
        ours, theirs = (statistics.median(column) for column in zip(*times))
        ratios = sorted(b / a for a, b in times)
        share = f"{row.moved / ours / rate:.0%}" if row.moved else f"{row.operations / ours / 1e12:.0f} TFLOP/s"
        print(f"{name:24}{1e6 * ours:12.1f}{1e6 * theirs:12.1f}   {statistics.median(ratios):.2f} "
              f"[{ratios[0]:.2f}..{ratios[-1]:.2f}]   {share}", flush=True)
        del row
        mx.clear_cache()
    if wanted:
        return
    ready = mx.ones(()) + 1
    mx.eval(ready)
    print(f"an operation of a chain  {microseconds(chain, 20) / 1000:.2f} us")
    print(f"item() of a ready array  {microseconds(ready.item, 200):.1f} us")
    for name, steps in (("a step of AdamW", optimizer_steps), ("a step of training", training_steps)):
        ours, theirs = steps()
        seconds_of(ours, mx.async_eval, mx.synchronize, 0.3)                # both are warm then
        seconds_of(theirs, lambda value: None, torch.cuda.synchronize, 0.3)
        times = [(seconds_of(ours, mx.async_eval, mx.synchronize, 0.3),
                  seconds_of(theirs, lambda value: None, torch.cuda.synchronize, 0.3)) for _ in range(options.rounds)]
        mine, other = (1e3 * statistics.median(column) for column in zip(*times))
        ratio = statistics.median(b / a for a, b in times)
        print(f"{name:24} gomlx {mine:.2f} ms, torch {other:.2f} ms, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
