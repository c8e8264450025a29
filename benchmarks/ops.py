"""Measures operations, ours and the peers', and prints one table.

    pip install . numpy 'mlx[cpu]' torch==2.13.0
    python benchmarks/ops.py                                  # everything: about ten minutes
    python benchmarks/ops.py --only sort,argsort --sizes 4M --dtypes float32

Peers are mlx[cpu], NumPy and torch, with --threads threads where they have any; each is left out where it is not
installed, cannot do the operation or has not the dtype. Every library has a process of its own, which stands still
while the others are measured: pools go on spinning after their work, and would take the processors from the next one.
In each round every library runs a row once, one after the other, for some milliseconds; cells are medians of the
rounds with the least and the greatest, in microseconds for one evaluated call. "ratio" is the best peer's time over
ours in the same round, the median of the rounds: above 1 we are faster. The last lines: the geometric mean of all
ratios, the least one, and what one lazy `a + b` on small arrays costs from Python."""
import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

import numpy as np

SIZES = {"1k": 1 << 10, "64k": 1 << 16, "4M": 1 << 22}
SAMPLE = 0.004               # seconds that one sample takes at least
WARM = 0.003                 # seconds of calls before each sample: caches are filled, sleeping threads and CPUs awake
SLOW = 0.2                   # a call of so many seconds is sampled three times only,
ENDLESS = 2.0                # and such a one once


# ---- inputs: float32 arrays are cast to the row's dtype, integers stay ----

def generator():
    return np.random.default_rng(0)


def flat(n, low=-3.0, high=3.0):
    return generator().uniform(low, high, n).astype(np.float32)


def square(n):
    side = math.isqrt(n)
    return flat(side * side).reshape(side, side)


def rows_of(n, width=1024):
    return flat(n).reshape(-1, width)


def indices(count, below):
    return generator().integers(0, below, count).astype(np.int32)


# ---- rows: name, inputs(n), then the operation for MLX's names (gomlx and mlx), NumPy and torch; None: has none ----

ROWS = {}


def row(name, inputs, mlx, numpy=None, torch=None, sizes=tuple(SIZES), dtypes=("float32", "bfloat16")):
    ROWS[name] = {"inputs": inputs, "mlx": mlx, "numpy": numpy, "torch": torch, "sizes": sizes, "dtypes": dtypes}


def neural(mx):
    """mlx.nn of mlx.core, gomlx.nn of gomlx.core."""
    return sys.modules[mx.__name__.replace(".core", ".nn")]


def add_rows():
    one, two = lambda n: [flat(n)], lambda n: [flat(n), flat(n)[::-1].copy()]
    matrix = lambda n: [square(n)]
    row("add", two, lambda mx, a, b: a + b, lambda np, a, b: a + b, lambda t, a, b: a + b)
    row("multiply broadcast", lambda n: [square(n), square(n)[0]], lambda mx, a, b: a * b, lambda np, a, b: a * b,
        lambda t, a, b: a * b)
    row("exp", one, lambda mx, a: mx.exp(a), lambda np, a: np.exp(a), lambda t, a: t.exp(a))
    row("tanh", one, lambda mx, a: mx.tanh(a), lambda np, a: np.tanh(a), lambda t, a: t.tanh(a))
    row("erf", one, lambda mx, a: mx.erf(a), None, lambda t, a: t.erf(a))
    row("sigmoid", one, lambda mx, a: mx.sigmoid(a), None, lambda t, a: t.sigmoid(a))
    row("gelu", one, lambda mx, a: neural(mx).gelu(a), None, lambda t, a: t.nn.functional.gelu(a))
    row("where", lambda n: [flat(n) > 0, *two(n)], lambda mx, c, a, b: mx.where(c, a, b),
        lambda np, c, a, b: np.where(c, a, b), lambda t, c, a, b: t.where(c, a, b))
    row("less", two, lambda mx, a, b: a < b, lambda np, a, b: a < b, lambda t, a, b: a < b)
    row("astype float16", one, lambda mx, a: a.astype(mx.float16), lambda np, a: a.astype(np.float16),
        lambda t, a: a.to(t.float16))
    row("sum", matrix, lambda mx, a: mx.sum(a), lambda np, a: np.sum(a), lambda t, a: t.sum(a))
    row("sum rows", matrix, lambda mx, a: mx.sum(a, axis=1), lambda np, a: np.sum(a, axis=1), lambda t, a: t.sum(a, 1))
    row("sum columns", matrix, lambda mx, a: mx.sum(a, axis=0), lambda np, a: np.sum(a, axis=0),
        lambda t, a: t.sum(a, 0))
    row("max", one, lambda mx, a: mx.max(a), lambda np, a: np.max(a), lambda t, a: t.max(a))
    row("argmax", one, lambda mx, a: mx.argmax(a), lambda np, a: np.argmax(a), lambda t, a: t.argmax(a))
    row("softmax", lambda n: [rows_of(n)], lambda mx, a: mx.softmax(a, axis=-1), None, lambda t, a: t.softmax(a, -1))
    row("logsumexp", lambda n: [rows_of(n)], lambda mx, a: mx.logsumexp(a, axis=-1), None,
        lambda t, a: t.logsumexp(a, -1))
    row("cumsum", one, lambda mx, a: mx.cumsum(a), lambda np, a: np.cumsum(a), lambda t, a: t.cumsum(a, 0))
    row("cumsum rows", matrix, lambda mx, a: mx.cumsum(a, axis=1), lambda np, a: np.cumsum(a, axis=1),
        lambda t, a: t.cumsum(a, 1))
    row("cumsum columns", matrix, lambda mx, a: mx.cumsum(a, axis=0), lambda np, a: np.cumsum(a, axis=0),
        lambda t, a: t.cumsum(a, 0))
    row("sort", one, lambda mx, a: mx.sort(a), lambda np, a: np.sort(a), lambda t, a: t.sort(a).values)
    row("sort rows", matrix, lambda mx, a: mx.sort(a, axis=1), lambda np, a: np.sort(a, axis=1),
        lambda t, a: t.sort(a, 1).values)
    row("argsort", one, lambda mx, a: mx.argsort(a), lambda np, a: np.argsort(a), lambda t, a: t.argsort(a))
    row("argsort rows", matrix, lambda mx, a: mx.argsort(a, axis=1), lambda np, a: np.argsort(a, axis=1),
        lambda t, a: t.argsort(a, 1))
    row("topk", one, lambda mx, a: mx.topk(a, 40), lambda np, a: np.partition(a, a.size - 40)[-40:],
        lambda t, a: t.topk(a, 40, sorted=False).values)
    row("take rows", lambda n: [rows_of(n, 64), indices(n // 64, n // 64)], lambda mx, a, i: mx.take(a, i, axis=0),
        lambda np, a, i: np.take(a, i, axis=0), lambda t, a, i: a[i])
    row("scatter-add", lambda n: [rows_of(n, 64), indices(n // 64, n // 64), rows_of(n, 64)],
        lambda mx, a, i, b: a.at[i].add(b), None, lambda t, a, i, b: t.index_add(a, 0, i, b))
    row("transposing copy", matrix, lambda mx, a: mx.contiguous(a.T), lambda np, a: np.ascontiguousarray(a.T),
        lambda t, a: a.T.contiguous())
    row("concatenate", lambda n: [square(n), square(n)], lambda mx, a, b: mx.concatenate([a, b], axis=1),
        lambda np, a, b: np.concatenate([a, b], axis=1), lambda t, a, b: t.cat([a, b], 1))
    row("pad", matrix, lambda mx, a: mx.pad(a, 1), lambda np, a: np.pad(a, 1),
        lambda t, a: t.nn.functional.pad(a, (1, 1, 1, 1)))
    weight, bias = flat(1024, 0.5, 1.5), flat(1024)
    row("layer_norm", lambda n: [rows_of(n), weight, bias], lambda mx, a, w, b: mx.fast.layer_norm(a, w, b, 1e-5), None,
        lambda t, a, w, b: t.nn.functional.layer_norm(a, (1024,), w, b, 1e-5))
    row("rms_norm", lambda n: [rows_of(n), weight], lambda mx, a, w: mx.fast.rms_norm(a, w, 1e-5), None,
        lambda t, a, w: t.nn.functional.rms_norm(a, (1024,), w, 1e-5))
    row("rope", lambda n: [flat(n).reshape(1, 8, -1, 64)],
        lambda mx, a: mx.fast.rope(a, 64, traditional=False, base=10000.0, scale=1.0, offset=0))
    add_products()


def add_products():
    def batch(*shape):
        return flat(math.prod(shape), -1, 1).reshape(shape)

    product = (lambda mx, a, b: a @ b, lambda np, a, b: a @ b, lambda t, a, b: a @ b)
    row("matmul 128", lambda n: [batch(128, 128), batch(128, 128)], *product, sizes=("",))
    row("matmul 1024", lambda n: [batch(1024, 1024), batch(1024, 1024)], *product, sizes=("",))
    row("matmul 32x128", lambda n: [batch(32, 128, 128), batch(32, 128, 128)], *product, sizes=("",))
    row("matvec 4x4", lambda n: [batch(4, 4), batch(4)], *product, sizes=("",))
    turned = (lambda mx, a, b: a.T @ b, lambda np, a, b: a.T @ b, lambda t, a, b: a.T @ b)
    for side in (128, 512, 2048):
        row(f"a.T @ x {side}", lambda n, side=side: [batch(side, side), batch(side)], *turned, sizes=("",))
    weight = (lambda mx, a, b: a @ b.T, lambda np, a, b: a @ b.T, lambda t, a, b: a @ b.T)
    for side in (128, 512, 2048):
        row(f"1x{side} @ .T", lambda n, side=side: [batch(1, side), batch(side, side)], *weight, sizes=("",))
    for side in (16, 128, 1024):
        row(f"outer {side}", lambda n, side=side: [batch(side), batch(side)], lambda mx, a, b: mx.outer(a, b),
            lambda np, a, b: np.outer(a, b), lambda t, a, b: t.outer(a, b), sizes=("",))
    add_convolutions(batch)

    def quantised(mx, a, w):
        key = (mx.__name__, str(a.dtype))
        if key not in QUANTISED:
            QUANTISED[key] = mx.quantize(w, group_size=64, bits=4)
            mx.eval(QUANTISED[key])
        return mx.quantized_matmul(a, *QUANTISED[key], transpose=True, group_size=64, bits=4)

    for count in (1, 512):
        row(f"quantised matmul {count}", lambda n, count=count: [batch(count, 4096), batch(4096, 4096)], quantised,
            sizes=("",))
    heads = lambda n: [batch(1, 8, 1024, 64), batch(1, 8, 1024, 64), batch(1, 8, 1024, 64)]
    row("attention 1k", heads, lambda mx, q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125), None,
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.125), sizes=("",))
    row("random normal", lambda n: [flat(n)], lambda mx, a: mx.random.normal(a.shape, dtype=a.dtype),
        lambda np, a: NUMPY_RANDOM.standard_normal(a.shape, dtype=np.float32),
        lambda t, a: t.randn(a.shape, dtype=a.dtype))


def add_convolutions(batch):
    def convolve(name, image, filters, groups=1, padding=1):
        two = len(image) == 4
        forth = lambda x: x.permute(0, 3, 1, 2) if two else x.permute(0, 2, 1)     # as torch has it: channels first
        mlx = lambda mx, a, w: (mx.conv2d if two else mx.conv1d)(a, w, padding=padding, groups=groups)
        torch = lambda t, a, w: (t.nn.functional.conv2d if two else t.nn.functional.conv1d)(
            forth(a), forth(w), padding=padding, groups=groups)
        row(name, lambda n: [batch(*image), batch(*filters)], mlx, None, torch, sizes=("",))

    convolve("conv2d 3x3", (1, 56, 56, 64), (64, 3, 3, 64))
    convolve("conv2d 3x3 of 8", (8, 14, 14, 256), (256, 3, 3, 256))
    convolve("depthwise 3x3", (1, 56, 56, 128), (128, 3, 3, 1), 128)
    convolve("depthwise 3x3 of 8", (8, 28, 28, 192), (192, 3, 3, 1), 192)
    convolve("depthwise 7x7", (1, 28, 28, 256), (256, 7, 7, 1), 256, 3)
    convolve("depthwise of a line", (1, 1024, 1024), (1024, 4, 1), 1024, 3)
    convolve("grouped 3x3 by 4", (1, 56, 56, 128), (128, 3, 3, 4), 32)
    convolve("grouped 3x3 by 8", (1, 28, 28, 256), (256, 3, 3, 8), 32)
    convolve("grouped 3x3 by 32", (1, 56, 56, 128), (128, 3, 3, 32), 4)


QUANTISED = {}
NUMPY_RANDOM = np.random.default_rng(0)


# ---- libraries ----

LIBRARIES = ("gomlx", "mlx", "numpy", "torch")


class MLX:
    """gomlx or mlx: a call is evaluated before it counts as done."""

    def __init__(self, name, module, version):
        self.name, self.module, self.version, self.kind = name, module, version, "mlx"

    def array(self, value, dtype):
        a = self.module.array(value)
        a = a.astype(getattr(self.module, dtype)) if value.dtype == np.float32 else a
        self.module.eval(a)
        return a

    def call(self, function, arguments):
        module, evaluate = self.module, self.module.eval
        return lambda: evaluate(function(module, *arguments))


class NumPy:
    name = kind = "numpy"
    module, version = np, f"numpy {np.__version__}"

    def array(self, value, dtype):
        if dtype != "float32":
            raise TypeError(f"numpy has no {dtype}")
        return value

    def call(self, function, arguments):
        return lambda: function(np, *arguments)


class Torch:
    name = kind = "torch"

    def __init__(self, module, threads):
        module.set_num_threads(threads)
        module.set_grad_enabled(False)
        self.module, self.version = module, f"torch {module.__version__}"

    def array(self, value, dtype):
        a = self.module.from_numpy(value)
        return a.to(getattr(self.module, dtype)) if value.dtype == np.float32 else a

    def call(self, function, arguments):
        return lambda: function(self.module, *arguments)


def library(name, threads):
    """ImportError where it is not installed."""
    if name == "gomlx":
        import gomlx
        import gomlx.core
        import gomlx.nn
        from gomlx import _gomlx
        _gomlx.set_threads(threads)
        return MLX(name, gomlx.core, f"gomlx {gomlx.__version__} ({_gomlx.isa()})")
    if name == "mlx":
        import mlx.core
        import mlx.nn
        return MLX(name, mlx.core, f"mlx {mlx.core.__version__}")
    if name == "torch":
        import torch
        return Torch(torch, threads)
    return NumPy()


# ---- within a library's process ----

def prepared(lib, what, n, dtype):
    """The row's call in this library, run once; None where it has none."""
    function = what[lib.kind]
    if function is None:
        return None
    try:
        call = lib.call(function, [lib.array(value, dtype) for value in what["inputs"](n)])
        call()
        return call
    except Exception as error:
        if lib.name == "gomlx":
            raise
        if not isinstance(error, (TypeError, ValueError, RuntimeError, NotImplementedError)):
            raise
        return None


def seconds(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def first_seconds(call):
    """About how long a call takes: the least of three, or one that is endless."""
    first = seconds(call, 1)
    return first if first > ENDLESS else min(first, seconds(call, 1), seconds(call, 1))


def sample(call, once):
    for _ in range(math.ceil(WARM / once)):
        call()
    return seconds(call, math.ceil(SAMPLE / once))


def serve(name, threads):
    """Answers a line of JSON on stdin with one on what stdout was; libraries print what they like elsewhere."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    try:
        lib = library(name, threads)
    except ImportError:
        return answer(None)
    answer(lib.version)
    call, once = None, 0.0
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "sample":
            answer(sample(call, once))
        elif request["do"] == "add":
            a, b = (lib.array(np.ones(8, np.float32), "float32") for _ in range(2))
            answer(1e9 * seconds(lambda: a + b, 20000))
        else:
            try:
                call = None                            # the memory of the row before
                call = prepared(lib, ROWS[request["row"]], request["n"], request["dtype"])
                once = first_seconds(call) if call else None
                answer({"once": once})
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})


# ---- in turns ----

class Worker:
    """A library in a process of its own, which runs only while it is asked."""

    def __init__(self, name, threads):
        blas = {variable: str(threads) for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
        self.name = name
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", name, "--threads", str(threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | blas)
        self.version = self.answer()                   # None: not installed

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with {self.process.wait()}")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def ask(self, **request):
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()


def measure(row_name, n, dtype, workers, repeat):
    """{library: seconds of one call in each round}, the libraries taking turns; RuntimeError with what one raised."""
    once = {}
    for worker in workers:
        answer = worker.ask(do="prepare", row=row_name, n=n, dtype=dtype)
        if "error" in answer:
            raise RuntimeError(f"{worker.name}: {answer['error']}")
        if answer["once"] is not None:
            once[worker] = answer["once"]
    samples = {worker.name: [] if one <= ENDLESS else [one] for worker, one in once.items()}
    for i in range(repeat):
        for worker, one in once.items():
            if one <= ENDLESS and (one <= SLOW or i < 3):
                samples[worker.name].append(worker.ask(do="sample"))
    return samples


def ratio_of(samples):
    """The best peer's time over ours: the median of the rounds, for a shared machine is not the same from round to
    round. None without a peer."""
    peers = {name: values for name, values in samples.items() if name != "gomlx"}
    if not peers:
        return None
    best = min(peers, key=lambda name: statistics.median(peers[name]))
    return statistics.median(peer / own for peer, own in zip(peers[best], samples["gomlx"]))


def overhead(workers, repeat):
    """Nanoseconds of `a + b` on arrays of 8, not evaluated where the library is lazy."""
    samples = {worker.name: [] for worker in workers}
    for _ in range(max(repeat, 5)):
        for worker in workers:
            samples[worker.name].append(worker.ask(do="add"))
    return {name: statistics.median(values) for name, values in samples.items()}


def text_of(seconds_):
    micro = seconds_ * 1e6
    return f"{micro:.0f}" if micro >= 100 else f"{micro:.1f}" if micro >= 10 else f"{micro:.2f}"


def cell(values):
    if len(values) == 1:
        return text_of(values[0])
    return f"{text_of(statistics.median(values))} [{text_of(min(values))}..{text_of(max(values))}]"


def table(names, sizes, dtypes, workers, repeat):
    """Prints a line for each row as it is measured; returns their records."""
    columns = [worker.name for worker in workers]
    width = max(map(len, names)) + 1
    print(f"{'us per call':{width}}{'size':>5}  {'dtype':9}" + "".join(f"{name:>24}" for name in columns) + "   ratio")
    records = []
    for name in names:
        what = ROWS[name]
        for size, dtype in itertools.product(what["sizes"], what["dtypes"]):
            if (size and size not in sizes) or dtype not in dtypes:
                continue
            head, record = f"{name:{width}}{size:>5}  {dtype:9}", {"row": name, "size": size, "dtype": dtype}
            records.append(record)
            try:
                times = measure(name, SIZES.get(size), dtype, workers, repeat)
            except RuntimeError as error:
                record["error"] = str(error)
                print(f"{head}  {error}", flush=True)
                continue
            ratio = ratio_of(times)
            record |= {"seconds": {name: statistics.median(values) for name, values in times.items()}, "ratio": ratio,
                       "rounds": times}
            cells = "".join(f"{cell(times[c]) if c in times else '--':>24}" for c in columns)
            print(f"{head}{cells}{f'{ratio:8.2f}' if ratio else '      --'}{' <' if ratio and ratio < 0.9 else ''}",
                  flush=True)
    return records


def summary(records):
    ratios = [(record["ratio"], record) for record in records if record.get("ratio")]
    if ratios:
        least, at = min(ratios, key=lambda pair: pair[0])
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in ratios))
        print(f"\ngeometric mean {mean:.2f} over {len(ratios)} rows; least {least:.2f} "
              f"({at['row']} {at['size']} {at['dtype']}); {sum(ratio < 0.9 for ratio, _ in ratios)} below 0.9; "
              f"{sum('error' in record for record in records)} with an error")


def main():
    add_rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows by name, separated by commas; a name also means those that begin with it")
    parser.add_argument("--repeat", type=int, default=7, help="rounds")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of 1k,64k,4M")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="a file for the numbers too")
    parser.add_argument("--serve", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.threads)
    wanted = options.only.split(",") if options.only else [""]
    names = [name for name in ROWS if any(name.startswith(start) for start in wanted)]
    if not names:
        sys.exit(f"--only {options.only}: no such row; there are {', '.join(ROWS)}")
    workers = []
    try:
        for name in LIBRARIES:
            workers.append(Worker(name, options.threads))
        found = [worker for worker in workers if worker.version]
        records = table(names, options.sizes.split(","), options.dtypes.split(","), found, options.repeat)
        lazy = overhead(found, options.repeat)
    finally:
        for worker in workers:
            worker.end()
    summary(records)
    print("a + b of 8, ns: " + ", ".join(f"{name} {value:.0f}" for name, value in lazy.items()))
    print("versions: " + ", ".join(worker.version for worker in found) + f"; {options.threads} threads")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            versions = [worker.version for worker in found]
            json.dump({"records": records, "overhead_ns": lazy, "versions": versions}, out, indent=1)


if __name__ == "__main__":
    main()
