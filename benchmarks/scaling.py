"""Measures what several processes do together, beside one, and prints one table.

    pip install ".[mpi,ray]" numpy gguf                             # and Open MPI or MPICH
    python benchmarks/scaling.py                                    # a quarter of an hour on two cores
    python benchmarks/scaling.py --only all_sum training --repeat 3
    python benchmarks/scaling.py --nccl 2                           # on two GPUs, over NCCL: nothing else then

all_sum     32 MiB of float32 between two processes of this host, ours beside mpi4py's Allreduce of the same bytes, in
            turns. "x" is our time over theirs
batch       rows of --tokens tokens by two workers of one thread each, beside one process with two threads:
            gomlx.data's Generate, from the moment when both have loaded. "x" is the workers' tokens/s over the
            process's
ray         the same class in two of Ray Data's workers, beside two that Ray did not start. A worker's time runs from
            its first batch after both have loaded to its last one, so that starting and loading are in neither. "x"
            is Ray's tokens/s over theirs
training    a step of LoRA (rank 8 on queries and values) of two rows, by one process and by two ranks of MPI, one
            thread each. "x" is the ranks' tokens/s over the process's
--nccl      sums between GPUs, and a data-parallel step of LoRA on a decoder of gomlx.nn in the 8B shape
            (scaling_gpu.py): one GPU, and all. "x" is their tokens/s over one GPU's. "differ" counts arrays of
            gradients whose bits are not one GPU's (scaling_gpu.py --steps 100: of adapters after so many steps)

The model is Qwen3-0.6B's shape with random weights (models.py makes it in --folder, once). Cells are medians of
--repeat with [least..greatest]. Parts for which something is not installed are rows that say so."""
import argparse
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUM_BYTES, BATCH = 32 << 20, 8
PARTS = ("all_sum", "batch", "ray", "training")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Missing(Exception):
    """A part cannot be measured here; why."""


# ---- what runs in processes of its own ----

def sum_child(options):
    import numpy as np
    from mpi4py import MPI

    import gomlx.core as mx
    rank, times = mx.distributed.init(strict=True).rank(), {"ours": [], "theirs": []}
    x = mx.ones((SUM_BYTES // 4,)) * (rank + 1)
    mx.eval(x)
    given, got = np.asarray(x), np.empty(SUM_BYTES // 4, np.float32)
    calls = {"ours": lambda: mx.eval(mx.distributed.all_sum(x)),
             "theirs": lambda: MPI.COMM_WORLD.Allreduce(given, got)}
    for _ in range(options.repeat * 3 + 1):
        for name, call in calls.items():
            MPI.COMM_WORLD.Barrier()
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    if rank == 0:
        say({name: several[1:] for name, several in times.items()})


def batch_child(options):
    """Says that it has loaded, and does its rows when it is told to."""
    worker, rows = Timed(options.model, options.threads, options.tokens), prompts(options.rows)
    say("ready")
    sys.stdin.readline()
    for at in range(0, len(rows), BATCH):
        worker({"prompt": rows[at:at + BATCH]})
    say({"begun": worker.begun[0], "ended": worker.ended, "tokens": sum(worker.tokens)})


def ray_child(options):
    import ray
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    found = ray.data.from_items([{"prompt": one} for one in prompts(2 * options.rows)]).map_batches(
        Timed, fn_constructor_args=(options.model, 1, options.tokens), concurrency=2, num_cpus=1,
        batch_size=BATCH).take_all()
    times, loaded = {}, max(row["loaded"] for row in found)
    for row in found:
        if row["begun"] >= loaded:
            times.setdefault(row["process"], []).append((row["begun"], row["ended"], row["generated_tokens"]))
    say([sum(tokens for _, _, tokens in rows) / (max(end for _, end, _ in rows) - min(begin for begin, _, _ in rows))
         for rows in times.values()])


def training_child(options):
    import gomlx
    import gomlx.core as mx
    rank = mx.distributed.init().rank()
    text = "Once upon a time there was a cat. " * 6
    with gomlx.load(options.model, threads=1, progress=False) as model:
        run = gomlx.train(model, [{"prompt": f"Tell me about {i}.", "completion": text} for i in range(4)], batch=2,
                          steps=options.repeat + 1, progress=False)
        steps = list(run)
    if rank == 0:
        say([step.tokens / step.seconds for step in steps[1:]])


class Timed:
    """gomlx.data.Generate that has loaded and generated once, with the moments at which its batches begin and end."""

    def __init__(self, model, threads, tokens):
        from gomlx.data import Generate
        self.generate = Generate(model, batch_size=BATCH, load_options={"threads": threads, "progress": False},
                                 max_tokens=tokens)
        self.generate({"prompt": prompts(1)})
        self.loaded, self.begun, self.ended, self.tokens = time.time(), [], 0.0, []

    def __call__(self, batch):
        self.begun.append(time.time())
        found = self.generate(batch)
        self.ended = time.time()
        n = len(found["generated_tokens"])
        self.tokens.append(int(sum(found["generated_tokens"])))
        return {"generated_tokens": found["generated_tokens"], "process": [os.getpid()] * n,
                "loaded": [self.loaded] * n, "begun": [self.begun[-1]] * n, "ended": [self.ended] * n}


CHILDREN = {"all_sum": sum_child, "batch": batch_child, "ray": ray_child, "training": training_child}


def prompts(n):
    return [f"Once upon a time {i} cats" for i in range(n)]


def say(what):
    print("FOUND " + json.dumps(what), flush=True)


# ---- the parts ----

def started(options, part, **changes):
    """A process of a part."""
    given = {"model": options.model, "tokens": options.tokens, "rows": options.rows, "repeat": options.repeat} | changes
    return [sys.executable, "-P", os.path.abspath(__file__), "--child", part,
            *(word for name, value in given.items() for word in (f"--{name}", str(value)))]


def found_in(text):
    for line in text.splitlines():
        if line.startswith("FOUND "):
            return json.loads(line[6:])
    raise Missing(f"it ended without a result: {text.strip()[-300:]}")


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | (environment or {}))
    return found_in(done.stdout + done.stderr)


def launched(options, part, n):
    if not importlib.util.find_spec("mpi4py") or not shutil.which("mpirun"):
        raise Missing("needs mpi4py, and Open MPI or MPICH")
    return run([sys.executable, "-P", "-m", "gomlx", "launch", "-n", str(n), "--", *started(options, part)], AS_ROOT)


def all_sum(options):
    found = launched(options, "all_sum", 2)
    ours, theirs = found["ours"], found["theirs"]
    yield "all_sum of 32 MiB, 2 processes", "ms", [1e3 * one for one in theirs], "Allreduce", None
    yield "", "ms", [1e3 * one for one in ours], "gomlx", statistics.median(ours) / statistics.median(theirs)


def workers(options, n, threads):
    """Tokens/s of so many workers, from the first row's beginning to the last one's end; of each worker by itself."""
    rows = 2 * options.rows // n
    running = [subprocess.Popen(started(options, "batch", threads=threads, rows=rows), text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(n)]
    for one in running:
        if "ready" not in one.stdout.readline():
            raise Missing("a worker has ended before it was ready")
    for one in running:
        one.stdin.write("\n")
        one.stdin.flush()
    found = [found_in(one.communicate()[0]) for one in running]
    if not all(one["tokens"] for one in found):
        raise Missing("a worker's rows had no tokens")
    whole = sum(one["tokens"] for one in found) / (max(one["ended"] for one in found) -
                                                   min(one["begun"] for one in found))
    return whole, sum(one["tokens"] / (one["ended"] - one["begun"]) for one in found)


def batch(options):
    rounds = [(workers(options, 1, 2)[0], workers(options, 2, 1)[0]) for _ in range(options.repeat)]
    one, two = zip(*rounds)
    yield f"rows of {options.tokens} tokens", "tokens/s", one, "1 process, 2 threads", None
    yield "", "tokens/s", two, "2 workers, 1 thread", statistics.median(two) / statistics.median(one)


def ray(options):
    if not importlib.util.find_spec("ray"):
        raise Missing("needs ray[data]")
    rounds = [(workers(options, 2, 1)[1], sum(run(started(options, "ray")))) for _ in range(options.repeat)]
    plain, rays = zip(*rounds)
    yield f"rows of {options.tokens} tokens", "tokens/s", plain, "2 workers", None
    yield "", "tokens/s", rays, "2 workers of Ray Data", statistics.median(rays) / statistics.median(plain)


def training(options):
    one, two = launched(options, "training", 1), launched(options, "training", 2)
    yield "LoRA steps of 2 rows", "tokens/s", one, "1 process", None
    yield "", "tokens/s", two, "2 ranks", statistics.median(two) / statistics.median(one)


def nccl(options):
    """The processes of scaling_gpu.py, each with a GPU, in the environment of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen(
        [sys.executable, os.path.join(HERE, "scaling_gpu.py"), "--repeat", str(options.repeat)], text=True,
        stdout=subprocess.PIPE, env=os.environ | {
            "RANK": str(i), "WORLD_SIZE": str(options.nccl), "LOCAL_RANK": str(i), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}) for i in range(options.nccl)]
    said = ranks[0].communicate()[0]
    if any(one.wait() for one in ranks):
        raise Missing("a process failed")
    first = None
    for row in map(json.loads, said.splitlines()):
        if row["name"] == "all_sum":
            yield f"all_sum of {row['bytes'] >> 20} MiB", "ms", [1e3 * one for one in row["seconds"]], "", None
        elif row["name"] == "bits":
            yield f"gradients, {row['arrays']} arrays", "differ", [row["wrong"]], "", None
        elif row["name"] == "training":
            rates = [row["tokens"] / one for one in row["seconds"]]
            times = statistics.median(rates) / statistics.median(first) if first else None
            first = first or rates
            yield f"step of LoRA, {row['numbers']:,} numbers", "tokens/s", rates, f"GPUs: {row['ranks']}", times


def show(rows):
    for what, unit, values, who, times in rows:
        spread = f"{statistics.median(values):,.1f} [{min(values):,.1f}..{max(values):,.1f}]"
        print(f"{what:38} {who:22} {spread:>30} {unit:9}{'' if times is None else f'x {times:.2f}'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--nccl", type=int, metavar="N", help="GPUs")
    parser.add_argument("--model", help="a GGUF file in the place of the one that is made")
    parser.add_argument("--folder", default="/tmp/gomlx-benchmarks")
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS", os.path.join(HERE, "../../shared/peers")),
                        help="folder of llama-quantize")
    parser.add_argument("--tokens", type=int, default=128, help="of a row")
    parser.add_argument("--rows", type=int, default=8 * BATCH, help="of a worker")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        CHILDREN[options.child](options)
        return
    if options.nccl:
        show(nccl(options))
        return
    if options.model is None:
        import models
        options.model = models.quantised("qwen3", "Q4_0", options.folder, options.peers)
    for name in options.only:
        try:
            show(globals()[name](options))
        except Missing as why:
            print(f"{name:38} {why}", flush=True)


if __name__ == "__main__":
    main()
