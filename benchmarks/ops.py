"""Measures operations, ours and the peers', and prints one table.

    pip install . numpy 'mlx[cpu]' torch==2.13.0
    python benchmarks/ops.py                                  # everything: about ten minutes
    python benchmarks/ops.py --only sort,argsort --sizes 4M --dtypes float32

Peers are mlx[cpu], NumPy and torch, all in this process, with --threads threads where they have any; each is left out
where it is not installed, cannot do the operation or has not the dtype. In each round every library runs a row once,
one after the other, for some milliseconds; cells are medians of the rounds, in microseconds for one evaluated call.
"ratio" is the best peer's time over ours in the same round, the median of the rounds: above 1 we are faster. The last
lines: the geometric mean of all ratios, the least one, and what one lazy `a + b` on small arrays costs from Python."""
import argparse
import json
import math
import os
import statistics
import sys
import time

import numpy as np

SIZES = {"1k": 1 << 10, "64k": 1 << 16, "4M": 1 << 22}
SAMPLE = 0.004               # seconds that one sample takes at least
WARM = 0.003                 # seconds of calls before each sample: caches are filled, sleeping threads and CPUs awake
SLOW = 0.2                   # a call of so many seconds is sampled three times only,
ENDLESS = 2.0                # and such a one once
QUIET = 0.004                # between libraries: so long no thread but this one has worked, or
PATIENCE = 1.0               # it is not waited for any longer


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


def libraries(threads):
    import gomlx
    import gomlx.core
    import gomlx.nn
    from gomlx import _gomlx
    _gomlx.set_threads(threads)
    found = [MLX("gomlx", gomlx.core, f"gomlx {gomlx.__version__} ({_gomlx.isa()})")]
    try:
        import mlx.core
        import mlx.nn
        found.append(MLX("mlx", mlx.core, f"mlx {mlx.core.__version__}"))
    except ImportError:
        pass
    found.append(NumPy())
    try:
        import torch
        found.append(Torch(torch, threads))
    except ImportError:
        pass
    return found


# ---- measuring ----

def prepared(library, what, n, dtype):
    """The row's call in this library, run once; None where it has none."""
    function = what[library.kind]
    if function is None:
        return None
    try:
        call = library.call(function, [library.array(value, dtype) for value in what["inputs"](n)])
        call()
        return call
    except Exception as error:
        if library.name == "gomlx":
            raise
        if not isinstance(error, (TypeError, ValueError, RuntimeError, NotImplementedError)):
            raise
        return None


def seconds(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def pause():
    """Until the other threads sleep: pools go on spinning after their work (NumPy's OpenBLAS for a tenth of a second).
    This one does not: a CPU that was idle is slow at first."""
    def others():
        return time.process_time() - time.thread_time()

    give_up = time.perf_counter() + PATIENCE
    while time.perf_counter() < give_up:
        before, end = others(), time.perf_counter() + QUIET
        while time.perf_counter() < end:
            pass
        if others() - before < QUIET / 20:
            return


def measure(what, n, dtype, found, repeat):
    """{library: seconds of one call in each round}, the libraries taking turns; raises what gomlx raises."""
    calls = {lib.name: call for lib in found if (call := prepared(lib, what, n, dtype)) is not None}
    once, samples = {}, {}
    for name, call in calls.items():
        first = seconds(call, 1)
        samples[name] = [first]
        once[name] = first if first > ENDLESS else min(first, seconds(call, 1), seconds(call, 1))
    for i in range(repeat):
        for name, call in calls.items():
            if once[name] > ENDLESS or (once[name] > SLOW and i >= 3):
                continue
            pause()
            for _ in range(math.ceil(WARM / once[name])):
                call()
            samples[name].append(seconds(call, math.ceil(SAMPLE / once[name])))
    return {name: values[1:] or values for name, values in samples.items()}


def ratio_of(samples):
    """The best peer's time over ours: the median of the rounds, for a shared machine is not the same from round to round.
    None without a peer."""
    peers = {name: values for name, values in samples.items() if name != "gomlx"}
    if not peers:
        return None
    best = min(peers, key=lambda name: statistics.median(peers[name]))
    return statistics.median(peer / own for peer, own in zip(peers[best], samples["gomlx"]))


def overhead(found, repeat):
    """Nanoseconds of `a + b` on arrays of 8, not evaluated where the library is lazy."""
    operands = {lib.name: [lib.array(np.ones(8, np.float32), "float32") for _ in range(2)] for lib in found}
    samples = {name: [] for name in operands}
    for _ in range(max(repeat, 5)):
        for name, (a, b) in operands.items():
            pause()
            samples[name].append(1e9 * seconds(lambda: a + b, 20000))
    return {name: statistics.median(values) for name, values in samples.items()}


def text_of(seconds_):
    micro = seconds_ * 1e6
    return f"{micro:.0f}" if micro >= 100 else f"{micro:.1f}" if micro >= 10 else f"{micro:.2f}"


def main():
    add_rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="rows by name, separated by commas; a name also means those that begin with it")
    parser.add_argument("--repeat", type=int, default=7, help="rounds")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of 1k,64k,4M")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="a file for the numbers too")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [""]
    blas = {name: str(options.threads) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
    if not blas.items() <= os.environ.items():         # read when libraries are loaded, and NumPy is
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **blas})
    names = [name for name in ROWS if any(name.startswith(start) for start in wanted)]
    if not names:
        sys.exit(f"--only {options.only}: no such row; there are {', '.join(ROWS)}")
    found = libraries(options.threads)
    columns = [library.name for library in found]
    width = max(map(len, names)) + 1
    print(f"{'us per call':{width}}{'size':>5}  {'dtype':9}" + "".join(f"{name:>10}" for name in columns) + "   ratio")
    records = []
    for name in names:
        what = ROWS[name]
        for size in what["sizes"]:
            for dtype in what["dtypes"]:
                if (size and size not in options.sizes.split(",")) or dtype not in options.dtypes.split(","):
                    continue
                head = f"{name:{width}}{size:>5}  {dtype:9}"
                try:
                    times = measure(what, SIZES.get(size), dtype, found, options.repeat)
                except Exception as error:
                    records.append({"row": name, "size": size, "dtype": dtype, "error": repr(error)})
                    print(f"{head}  {type(error).__name__}: {error}", flush=True)
                    continue
                ratio, times = ratio_of(times), {name: statistics.median(values) for name, values in times.items()}
                records.append({"row": name, "size": size, "dtype": dtype, "seconds": times, "ratio": ratio})
                cells = "".join(f"{text_of(times[c]) if c in times else '--':>10}" for c in columns)
                print(f"{head}{cells}{f'{ratio:8.2f}' if ratio else '      --'}{' <' if ratio and ratio < 0.9 else ''}",
                      flush=True)
    lazy = overhead(found, options.repeat)
    ratios = [(record["ratio"], record) for record in records if record.get("ratio")]
    if ratios:
        least, at = min(ratios, key=lambda pair: pair[0])
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in ratios))
        print(f"\ngeometric mean {mean:.2f} over {len(ratios)} rows; least {least:.2f} ({at['row']} {at['size']} {at['dtype']}); "
              f"{sum(ratio < 0.9 for ratio, _ in ratios)} below 0.9; "
              f"{sum('error' in record for record in records)} with an error")
    print("a + b of 8, ns: " + ", ".join(f"{name} {value:.0f}" for name, value in lazy.items()))
    print("versions: " + ", ".join(library.version for library in found) + f"; {options.threads} threads")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"records": records, "overhead_ns": lazy, "versions": [lib.version for lib in found]}, out,
                      indent=1)


if __name__ == "__main__":
    main()
