"""What benchmarks/scaling.py --nccl runs, a process for each GPU, in torchrun's environment: sums between the GPUs, and
a data-parallel step of LoRA on a decoder of gomlx.nn with frozen bfloat16 weights. Rank 0 prints a JSON line for each
row of the table as soon as it has it."""
import argparse
import json
import sys
import time

import models

import gomlx.core as mx
from gomlx import nn, optimizers
from gomlx.utils import tree_flatten, tree_unflatten

d = mx.distributed
RANK, SCALE = 16, 2.0
SUM_BYTES = (1 << 20, 32 << 20, 256 << 20)
SHAPES = {name: models.SHAPES[name] for name in models.DENSE} | {
    "tiny": models.Shape(2, 64, 128, 4, 2, 16, 256, 5e5, 1024)}


class Adapted(nn.Module):
    """A frozen matrix and the low-rank term that is trained."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = (mx.random.normal((rows, columns)) * columns ** -0.5).astype(mx.bfloat16)
        self.a = (mx.random.normal((columns, RANK)) * columns ** -0.5).astype(mx.bfloat16)
        self.b = mx.zeros((RANK, rows), mx.bfloat16)
        self.freeze(keys=["weight"])

    def __call__(self, x):
        return x @ self.weight.T + SCALE * ((x @ self.a) @ self.b)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        narrow = shape.hidden // shape.heads * shape.kv_heads
        self.q, self.o = Adapted(shape.hidden, shape.hidden), Adapted(shape.hidden, shape.hidden)
        self.k, self.v = Adapted(narrow, shape.hidden), Adapted(narrow, shape.hidden)
        self.gate, self.up = Adapted(shape.mlp, shape.hidden), Adapted(shape.mlp, shape.hidden)
        self.down = Adapted(shape.hidden, shape.mlp)
        self.first, self.second = nn.RMSNorm(shape.hidden), nn.RMSNorm(shape.hidden)
        for norm in (self.first, self.second):
            norm.set_dtype(mx.bfloat16)
            norm.freeze()

    def __call__(self, x):
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(nn.silu(self.gate(y)) * self.up(y))

    def attention(self, x):
        batch, n, _ = x.shape

        def split(y, heads):
            return y.reshape(batch, n, heads, -1).transpose(0, 2, 1, 3)

        q, k, v = split(self.q(x), self.heads), split(self.k(x), self.kv_heads), split(self.v(x), self.kv_heads)
        q, k = (mx.fast.rope(one, one.shape[-1], traditional=False, base=5e5, scale=1.0, offset=0) for one in (q, k))
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")
        return self.o(y.transpose(0, 2, 1, 3).reshape(batch, n, -1))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = (mx.random.normal((shape.vocab, shape.hidden)) * 0.02).astype(mx.bfloat16)
        self.head = (mx.random.normal((shape.vocab, shape.hidden)) * shape.hidden ** -0.5).astype(mx.bfloat16)
        self.freeze()
        self.layers = []
        for _ in range(shape.layers):           # one after another: float32 numbers of all would not fit
            self.layers.append(Layer(shape))
            mx.eval(self.layers[-1].parameters())
        self.norm = nn.RMSNorm(shape.hidden)
        self.norm.set_dtype(mx.bfloat16)
        self.norm.freeze()

    def __call__(self, ids):
        x = self.embedding[ids]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.head.T


def loss_of(model, ids):
    logits = model(ids[:, :-1]).astype(mx.float32)
    return nn.losses.cross_entropy(logits, ids[:, 1:], reduction="mean")


def say(name, **more):
    if d.init().rank() == 0:
        print(json.dumps({"name": name, **more}), flush=True)


def seconds_of(call, repeat):
    """[seconds of each call] after one that warms up; all ranks begin together."""
    found = []
    for _ in range(repeat + 1):
        mx.eval(d.all_sum(mx.zeros(1)))
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return found[1:]


def sums(repeat, sizes):
    for size in sizes:
        x = mx.ones((size // 4,)) * (d.init().rank() + 1)
        mx.eval(x)
        times = seconds_of(lambda x=x: mx.eval(d.all_sum(x)), repeat)
        say("all_sum", bytes=size, seconds=times)


def average_of_one(gradient, model, ids):
    """What the ranks' average has to be: one GPU computes the gradients of all and adds them in order of ranks."""
    parts = [tree_flatten(gradient(model, each)[1]) for each in ids]
    averages = []
    for (name, total), *others in zip(*parts):
        for _, more in others:
            total = total + more
        averages.append((name, total / len(ids)))
    return averages


def differing(ones, others):
    """Arrays whose bits differ, on all ranks together."""
    wrong = sum(not mx.array_equal(one.view(mx.uint16), other.view(mx.uint16)).item()
                for (_, one), (_, other) in zip(ones, others, strict=True))
    return d.all_sum(mx.array(wrong)).item()


def same_bits(model, ids):
    """Whether gradients that are averaged over the ranks have the bits of one GPU that computes all of them."""
    gradient = nn.value_and_grad(model, loss_of)
    got = tree_flatten(nn.utils.average_gradients(gradient(model, ids[d.init().rank()])[1]))
    say("bits", arrays=len(got), wrong=differing(got, average_of_one(gradient, model, ids)))


def same_adapters(shape, options):
    """Whether adapters that all ranks trained have the bits of those that one GPU trained, by the same steps."""
    group, trained = d.init(), []
    for together in (True, False):
        mx.random.seed(1)
        model, optimizer = Decoder(shape), optimizers.Adam(learning_rate=1e-3)
        gradient = nn.value_and_grad(model, loss_of)
        for _ in range(options.steps):
            ids = [mx.random.randint(0, shape.vocab, (options.batch, options.tokens + 1)) for _ in range(group.size())]
            if together:
                grads = nn.utils.average_gradients(gradient(model, ids[group.rank()])[1])
            else:
                grads = tree_unflatten(average_of_one(gradient, model, ids))
            optimizer.update(model, grads)
            mx.eval(model.trainable_parameters(), optimizer.state)
        trained.append(tree_flatten(model.trainable_parameters()))
    moved = sum(mx.any(one != 0).item() for name, one in trained[0] if name.endswith(".b"))
    say("steps", steps=options.steps, arrays=len(trained[0]), moved=moved, wrong=differing(*trained))


def training(options):
    """Steps of rank 0 alone, then of all ranks, each with its own sequences."""
    shape, group = SHAPES[options.shape], d.init()
    mx.random.seed(1)
    model = Decoder(shape)
    mx.eval(model.parameters())
    optimizer = optimizers.Adam(learning_rate=1e-5)
    gradient = nn.value_and_grad(model, loss_of)
    mx.random.seed(2)
    ids = [mx.random.randint(0, shape.vocab, (options.batch, options.tokens + 1)) for _ in range(group.size())]
    mx.eval(ids)

    def step(together):
        value, grads = gradient(model, ids[group.rank()])
        if together:
            grads = nn.utils.average_gradients(grads)
        optimizer.update(model, grads)
        mx.eval(value, model.trainable_parameters(), optimizer.state)

    numbers = sum(one.size for _, one in tree_flatten(model.trainable_parameters()))
    same_bits(model, ids)
    tokens = options.batch * options.tokens
    times = seconds_of(lambda: step(False) if group.rank() == 0 else None, options.repeat)
    say("training", ranks=1, tokens=tokens, seconds=times, numbers=numbers)
    times = seconds_of(lambda: step(True), options.repeat)
    say("training", ranks=group.size(), tokens=tokens * group.size(), seconds=times, numbers=numbers)
    say("memory", bytes=mx.get_peak_memory())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--batch", type=int, default=4, help="sequences of each GPU in a step")
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0,
                        help="after which adapters have to be one GPU's, bit for bit; then no speed is measured")
    parser.add_argument("--most", type=int, default=SUM_BYTES[-1], help="bytes of the largest sum")
    options = parser.parse_args()
    if d.init(strict=True, backend="nccl").size() < 2:
        sys.exit("scaling_gpu.py: expected several processes")
    begun = time.perf_counter()
    if options.steps:
        same_adapters(SHAPES[options.shape], options)
        return
    sums(options.repeat, [size for size in SUM_BYTES if size <= options.most])
    training(options)
    say("whole", seconds=[time.perf_counter() - begun])


if __name__ == "__main__":
    main()
