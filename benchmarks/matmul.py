"""Measures products of dense matrices, ours and the peers', and prints one table.

    pip install . numpy torch==2.13.0 'mlx[cpu]'
    python benchmarks/matmul.py                                  # everything: about twenty minutes
    python benchmarks/matmul.py --only 1024,2048 --threads 1 --repeat 5
    python benchmarks/matmul.py --isa avx2                       # and the peers held to AVX2 too

Rows are m x n x k of a @ b, with .T where an operand is transposed and a batch in front; --dtypes adds float16 and
bfloat16. Peers are NumPy's OpenBLAS, torch (MKL for float32), torch's oneDNN, which reads b transposed, and mlx where
the product is small enough for its BLAS; each is left out where it is not installed or has not the type. OpenBLAS's
kernels are those of --core or what it finds itself; the last line names them. In each round every library runs a row
once, one after the other, for some milliseconds, as benchmarks/ops.py has it: with one thread by the process's CPU
time, in which other programs do not count, else by the clock. Cells are medians in GFLOP/s. "ratio" is our speed over
the best peer's in the same round, median and [least..greatest]; "of peak" our speed as a share of what fma.c measured
with as many threads before and after (the greater of the two)."""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SQUARE = ["1000", "1023", "1024", "1536", "2048", "2049", "3072", "4096"]
ROWS = [*SQUARE, "512x2048x8192", "64x2048x2048", "16x2048x2048", "1024 @ .T", "1024.T @", "2048 @ .T", "2048.T @",
        "1023 @ .T", "8 of 512", "64 of 128", "128", "1x512x512 @ .T", "1x2048x2048 @ .T", "512x1x512.T @",
        "2048x1x2048.T @"]
CORES = {"avx2": "Haswell", "avx512": "SkylakeX"}
SAMPLE = 0.05                # seconds that one sample takes at least
SLOWEST = 5e9                # operations of one product, above which mlx's reference BLAS is not waited for
BYTES = {"avx512": "64", "avx": "32", "": "16"}      # of a register, by how the name of the instruction set begins


class Peak:
    """What fma.c measures with registers of one instruction set, compiled here for this machine."""

    def __init__(self, isa):
        self.folder = tempfile.TemporaryDirectory()
        self.program = os.path.join(self.folder.name, "fma")
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-O3", "-march=native", "-pthread",
                        f"-DBYTES={next(n for name, n in BYTES.items() if isa.startswith(name))}",
                        os.path.join(HERE, "fma.c"), "-o", self.program], check=True)

    def __call__(self, threads):
        return float(subprocess.run([self.program, str(threads)], check=True, stdout=subprocess.PIPE, text=True).stdout)


def row_of(name):
    """(batch, m, n, k, whether a and b are transposed) of a row's name."""
    batch, _, shape = name.rpartition(" of ")
    sizes, _, other = shape.partition(" ")
    left = sizes.endswith(".T")
    numbers = [int(number) for number in sizes.removesuffix(".T").split("x")]
    m, n, k = numbers if len(numbers) == 3 else numbers * 3
    return int(batch or 1), m, n, k, left, other.endswith(".T")


def product(a_turned, b_turned):
    def call(_, a, b):
        return (a.swapaxes(-1, -2) if a_turned else a) @ (b.swapaxes(-1, -2) if b_turned else b)
    return call


class OneDNN:
    """x @ w.T by torch's oneDNN, which plain products of float32 do not go through."""
    name = "onednn"

    def __init__(self, torch):
        self.torch = torch

    def prepare(self, a, b, dtype, turned):
        if len(a.shape) > 2:
            return None
        torch = self.torch
        x, w = (torch.from_numpy(value).to(getattr(torch, dtype)) for value in (a, b))
        x, w = x.T if turned[0] else x, w if turned[1] else w.T
        multiply = torch.ops.mkldnn._linear_pointwise
        try:
            multiply(x, w, None, "none", [], "")
        except RuntimeError:               # it has no such kernel on this machine
            return None
        return lambda: multiply(x, w, None, "none", [], "")


class Plain:
    """A library of ops.py."""

    def __init__(self, library):
        self.name, self.library = library.name, library

    def prepare(self, a, b, dtype, turned):
        batch = a.shape[0] if len(a.shape) > 2 else 1
        if self.name == "mlx" and 2.0 * batch * a.shape[-1] * a.shape[-2] * b.shape[-1] > SLOWEST:
            return None
        try:
            return self.library.call(product(*turned), [self.library.array(value, dtype) for value in (a, b)])
        except TypeError:
            return None


def openblas():
    """What NumPy's OpenBLAS says of itself, or None."""
    import ctypes
    import glob

    import numpy
    for path in glob.glob(os.path.join(os.path.dirname(numpy.__file__), os.pardir, "numpy.libs", "*openblas*")):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_config64_", "scipy_openblas_get_config", "openblas_get_config"):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return function().decode()
    return None


def measure(calls, repeat, clock, pause):
    """{library: seconds of one call in each round}, the libraries taking turns."""
    samples = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, int(SAMPLE / (time.perf_counter() - start)))
    for _ in range(repeat):
        for name, call in calls.items():
            pause()
            if counts[name] > 1:
                call()                     # caches are filled, sleeping threads awake
            start = clock()
            for _ in range(counts[name]):
                call()
            samples[name].append((clock() - start) / counts[name])
    return samples


def run(options):
    """All rows with one number of threads, in this process, whose environment is set."""
    import numpy as np
    import ops
    libraries = {library.name: Plain(library) for library in ops.libraries(options.threads)}
    versions = [plain.library.version for plain in libraries.values()]
    if "torch" in libraries:
        libraries["onednn"] = OneDNN(libraries["torch"].library.module)
    libraries = {name: library for name, library in libraries.items() if name == "gomlx" or name in options.peers}
    from gomlx import _gomlx
    peak = Peak(_gomlx.isa())
    peaks = [peak(options.threads)]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    generator, records = np.random.default_rng(0), []
    for dtype in options.dtypes.split(","):
        for name in options.only.split(","):
            batch, m, n, k, *turned = row_of(name)
            a = generator.standard_normal((batch, k, m) if turned[0] else (batch, m, k), dtype=np.float32)
            b = generator.standard_normal((batch, n, k) if turned[1] else (batch, k, n), dtype=np.float32)
            if batch == 1:
                a, b = a[0], b[0]
            calls = {library.name: library.prepare(a, b, dtype, turned) for library in libraries.values()}
            calls = {library: call for library, call in calls.items() if call is not None}
            samples = measure(calls, options.repeat, clock, ops.pause)
            flops = 2e-9 * batch * m * n * k
            speeds = {library: [flops / seconds for seconds in values] for library, values in samples.items()}
            others = [name for name in speeds if name != "gomlx"]
            best = max(others, key=lambda library: statistics.median(speeds[library]), default=None)
            ratios = [own / peer for own, peer in zip(speeds["gomlx"], speeds[best])] if best else []
            records.append({"row": name, "dtype": dtype, "threads": options.threads, "gflops": speeds, "best": best,
                            "ratios": ratios})
            print(".", end="", file=sys.stderr, flush=True)
    peaks.append(peak(options.threads))
    print(file=sys.stderr)
    show(records, list(libraries), max(peaks), options.threads)
    print(f"peak {max(peaks):.0f} GFLOP/s; {', '.join(versions)}; {openblas()}", flush=True)
    return {"records": records, "peak": max(peaks), "versions": versions, "openblas": openblas()}


def show(records, columns, peak, threads):
    width = max(len(record["row"]) for record in records) + 1
    clock = "CPU time" if threads == 1 else "wall time"
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, {clock}, GFLOP/s")
    print(f"{'m x n x k':{width}} {'dtype':9}" + "".join(f"{name:>9}" for name in columns) + "  of peak  ratio")
    for record in records:
        speeds, ratios = record["gflops"], record["ratios"]
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        cells = "".join(f"{medians[name]:9.1f}" if name in medians else f"{'--':>9}" for name in columns)
        share = medians["gomlx"] / peak
        print(f"{record['row']:{width}} {record['dtype']:9}{cells}  {share:7.0%}"
              + (f"  {statistics.median(ratios):5.2f} [{min(ratios):.2f}..{max(ratios):.2f}] {record['best']}"
                 if ratios else ""))


def environment(options, threads):
    """What libraries read when they are loaded."""
    names = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    if options.isa:
        names.update(GOMLX_ISA=options.isa, OPENBLAS_CORETYPE=CORES[options.isa])
    if options.isa == "avx2":
        names.update(MKL_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2")
    if options.core:
        names["OPENBLAS_CORETYPE"] = options.core
    return {**os.environ, **names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas; any of their form will do")
    parser.add_argument("--dtypes", default="float32", help="of float32, float16, bfloat16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--peers", default="numpy,torch,onednn,mlx")
    parser.add_argument("--isa", choices=sorted(CORES), help="that all libraries are held to; else each chooses")
    parser.add_argument("--core", help="OpenBLAS's kernels: its OPENBLAS_CORETYPE")
    parser.add_argument("--json", help="a file for the numbers too")
    parser.add_argument("--part", help=argparse.SUPPRESS)      # one number of threads: its records go to this file
    options = parser.parse_args()
    if options.part:
        options.threads = int(options.threads)
        with open(options.part, "w", encoding="utf-8") as out:
            json.dump(run(options), out)
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in options.threads.split(","):     # each in a process of its own: libraries read these names once
            part = os.path.join(folder, threads)
            command = [sys.executable, *sys.argv, "--threads", threads, "--part", part]
            subprocess.run(command, check=True, env=environment(options, threads))
            with open(part, encoding="utf-8") as text:
                results.append(json.load(text))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
