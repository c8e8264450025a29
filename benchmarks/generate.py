"""Measures prefill and decode, ours and the peers', and prints one table.

    pip install . numpy gguf
    python benchmarks/generate.py                                     # everything: about an hour, 9 GB of disk
    python benchmarks/generate.py --models smollm2 --quants Q4_0 --threads 1 --repeat 3

Models have true shapes and random weights (models.py makes them in --folder, once). The peers are llama.cpp's and
ik_llama.cpp's `llama-bench`, named llama-bench and ik-llama-bench in the folder of --peers, of the environment's
GOMLX_PEERS, or ../shared/peers beside the repository; each is left out where it is not there. ik_llama.cpp runs with
and without repacking (-rtr); both peers run with flash attention. --peer names others in their place. An instruction
set is forced as anywhere, and then compared with a peer that was built for it:

    GOMLX_ISA=avx2 python benchmarks/generate.py --models smollm2 --peer "llama.cpp=/tmp/avx2/llama-bench -fa 1"

In each round every engine runs once, one after the other, in processes of its own: it loads the model, warms up, then
reads a prompt (prefill) and decodes, from an empty cache or at --depth. "load + 1" is one over the seconds from a file
in the page cache to the first token: ours from gomlx.load on, the peers' the whole process of a prompt of one token
without warming up. Ours is the installed package with its defaults. Cells are
medians of the rounds with [least..greatest]; "x" is our median over the peer's; MB/token are the bytes of all weights
in the file that a token reads; "of memory" is MB/token times our decoding rate, as a share of what bandwidth.c measured
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
PEERS = {                              # column: command, its program in the folder of --peers
    "llama.cpp": ["llama-bench", "-fa", "1"],
    "ik": ["ik-llama-bench", "-fa", "1", "-rtr", "0"],
    "ik -rtr": ["ik-llama-bench", "-fa", "1", "-rtr", "1"],
}

OURS = """
import json, sys, time
import gomlx

path, threads, n_prompt, n_decode, depth = sys.argv[1], *map(int, sys.argv[2:])
with gomlx.load(path, threads=threads) as model:
    def seconds(n_prompt, max_tokens, first):    # prompts that begin alike would share what is kept of them
        prompt = [(i * 7919 + first) % 256 for i in range(n_prompt)]
        times = [time.perf_counter()]
        for _ in model.generate(prompt, max_tokens=max_tokens, temperature=0):
            times.append(time.perf_counter())
        assert len(times) == max_tokens + 1, f"{len(times) - 1} tokens came, {max_tokens} were asked for"
        return times[1] - times[0], times[-1] - times[1]

    seconds(n_prompt, 2, 1)
    prefill, _ = seconds(n_prompt, 1, 2)
    _, decode = seconds(depth + 1, n_decode + 1, 3)
from gomlx import _gomlx
print(json.dumps({"version": f"gomlx {gomlx.__version__} ({_gomlx.isa()})", "prefill": n_prompt / prefill,
                  "decode": n_decode / decode}))
"""

FIRST = """
import sys, time
import gomlx

began = time.perf_counter()
with gomlx.load(sys.argv[1], threads=int(sys.argv[2])) as model:
    next(iter(model.generate([1], max_tokens=2, temperature=0)))
    print(time.perf_counter() - began)
"""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:2])} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def measure_ours(path, threads, options):
    numbers = [str(number) for number in (threads, options.prompt, options.generate, options.depth)]
    found = json.loads(run([sys.executable, "-P", "-c", OURS, path, *numbers]))
    return found | {"first": 1 / float(run([sys.executable, "-P", "-c", FIRST, path, str(threads)]))}


def measure_peer(name, path, threads, options):
    """One prefill and one decode; llama-bench warms up by itself."""
    program, *flags = options.commands[name]
    command = [program, "-m", path, "-t", str(threads), "-r", "1", "-o", "json", *flags]
    prompt, generate, depth = str(options.prompt), str(options.generate), str(options.depth)
    if os.path.basename(program).startswith("ik"):                # its options for depth and warming up are others
        deep, cold = ["-p", "0", "-n", "0", "-gp", f"{depth},{generate}"], ["-w", "0"]
    else:
        deep, cold = ["-p", "0", "-n", generate, "-d", depth], ["--no-warmup"]
    rate = {}
    for test, asked in (("prefill", ["-p", prompt, "-n", "0"]),
                        ("decode", deep if options.depth else ["-p", "0", "-n", generate])):
        text = run([*command, *asked])
        row, = json.loads(text[text.index("["):])
        rate[test] = row["avg_ts"]
    began = time.perf_counter()
    run([*command, "-p", "1", "-n", "0", *cold])
    rate["first"] = 1 / (time.perf_counter() - began)
    return {"version": f"{name.split()[0]} {row['build_commit']} (build {row['build_number']})", **rate}


class Bandwidth:
    """What bandwidth.c measures, compiled here for this machine."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.program = os.path.join(self.folder.name, "bandwidth")
        run([os.environ.get("CC", "cc"), "-O3", "-march=native", "-pthread", os.path.join(HERE, "bandwidth.c"), "-o",
             self.program])

    def __call__(self, threads):
        return float(run([self.program, str(threads)]))


def rounds(path, threads, options, versions):
    """{engine: {test: [rates]}} over all rounds, the engines taking turns."""
    engines = ["gomlx", *options.commands]
    found = {engine: {"prefill": [], "decode": [], "first": []} for engine in engines}
    for _ in range(options.repeat):
        for engine in engines:
            one = measure_ours(path, threads, options) if engine == "gomlx" else \
                measure_peer(engine, path, threads, options)
            versions.setdefault(one.pop("version"))
            for test, rate in one.items():
                found[engine][test].append(rate)
    return found


def cell(values):
    digits = 0 if min(values) >= 1000 else 1 if min(values) >= 10 else 2
    middle, least, greatest = (f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} [{least}..{greatest}]"


def lines_of(name, quant, threads, found, megabytes, bandwidth, options):
    deep = f" at {options.depth}" if options.depth else ""
    for test, what in (("prefill", f"prefill {options.prompt}"), ("decode", f"decode {options.generate}{deep}"),
                       ("first", "load + 1 (1/s)")):
        ours = statistics.median(found["gomlx"][test])
        line = [name, quant, str(threads), what, cell(found["gomlx"][test])]
        for peer in options.commands:
            line += [cell(found[peer][test]), f"{ours / statistics.median(found[peer][test]):.2f}"]
        share = f"{100 * ours * megabytes / 1000 / max(bandwidth):.0f} %" if test == "decode" else ""
        yield line + [f"{megabytes:.0f}", share]


def print_table(header, lines):
    widths = [max(len(row[i]) for row in [header, *lines]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *lines]:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")


def named_peer(text):
    name, _, command = text.partition("=")
    if not name or not shlex.split(command):
        raise argparse.ArgumentTypeError(f"expected NAME=PROGRAM with its options, not {text!r}")
    return name, shlex.split(command)


def main():
    import models
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=models.DENSE,
                        default=["smollm2", "qwen3", "llama1b"])
    parser.add_argument("--quants", nargs="+", default=["Q4_0", "Q4_K_M", "Q8_0", "bf16"],
                        help="types that llama-quantize knows; IQ1, IQ2 and IQ3 want llama-imatrix too, and take long")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt in prefill")
    parser.add_argument("--generate", type=int, default=128, help="tokens to decode")
    parser.add_argument("--depth", type=int, default=0, help="tokens in the cache before decoding")
    parser.add_argument("--peers", default=os.environ.get("GOMLX_PEERS", os.path.join(HERE, "../../shared/peers")))
    parser.add_argument("--peer", type=named_peer, action="append", metavar="NAME=PROGRAM",
                        help="run this, which takes llama-bench's options, instead of those of --peers")
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "gomlx-benchmarks"),
                        help="of the models")
    options = parser.parse_args()
    options.commands = dict(options.peer) if options.peer else {
        name: [os.path.join(options.peers, program), *flags] for name, (program, *flags) in PEERS.items()
        if os.path.exists(os.path.join(options.peers, program))}
    probe, versions, lines, measured = Bandwidth(), {}, [], []
    for name in options.models:
        for quant in options.quants:
            path = models.quantised(name, quant, options.folder, options.peers)
            megabytes = models.bytes_per_token(path) / 1e6
            for threads in options.threads:
                bandwidth = [probe(threads)]
                found = rounds(path, threads, options, versions)
                bandwidth.append(probe(threads))
                measured += [(threads, value) for value in bandwidth]
                lines += lines_of(name, quant, threads, found, megabytes, bandwidth, options)
                print(f"{name} {quant}, {threads} threads: done", file=sys.stderr)
    compared = [text for peer in options.commands for text in (peer, "x")]
    print_table(["model", "type", "threads", "tokens/s", "gomlx", *compared, "MB/token", "of memory"], lines)
    print("\nversions: " + ", ".join(versions))
    for threads in options.threads:
        values = [value for at, value in measured if at == threads]
        print(f"memory read by {threads} threads: {cell(values)} GB/s over {len(values)} probes")


if __name__ == "__main__":
    main()
