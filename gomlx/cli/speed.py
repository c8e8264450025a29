"""bench: how fast a model reads and writes here."""
import argparse
import os
import statistics
import time

import gomlx
from gomlx import profiling
from gomlx.cli import options
from gomlx.cli.output import print_json, progress, say, show_rows, show_table


def peer(text):
    """NAME=PROGRAM"""
    name, _, program = text.partition("=")
    if not name or not program.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PROGRAM")
    return name, program


def add(commands):
    made = commands.add("bench", bench, "Measure how fast a model reads a prompt and writes an answer.", options.model,
                        options.json)
    made.add_argument("path", nargs="?", metavar="MODEL", help="the model; the same as -m MODEL")
    made.add_argument("--prompt", type=int, metavar="N", help="tokens to read (default: 512)")
    made.add_argument("--generate", type=int, metavar="N", help="tokens to write (default: 64)")
    made.add_argument("--depth", type=int, action="append", metavar="N", help="tokens in the cache before (default: "
                      "0); may be given several times")
    made.add_argument("--batch", type=int, action="append", metavar="N", help="sequences at once (default: 1); may be "
                      "given several times")
    made.add_argument("--repeat", type=int, metavar="N", help="runs after one that warms up (default: 5)")
    made.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=PROGRAM", help="run llama-bench, "
                      "or what takes its options, in turns with gomlx on the same .gguf file, and compare: --peer "
                      "'llama.cpp=./llama-bench -fa 1'; may be given several times")
    made.add_argument("--profile", action="store_true", help="count and time what the engine does")
    for name, what in (("cache", "the prompt cache"), ("restore", "saved sessions"), ("bundle", "state bundles"),
                       ("probes", "probes")):
        made.add_argument(f"--no-{name}", action="store_true", help=f"do not measure {what}")


def bench(args):
    if args.path is not None and args.model is not None:
        raise ValueError(f"two models: {args.path!r} and -m {args.model!r}")
    args.model = args.model if args.path is None else args.path
    asked = {name: getattr(args, name) for name in ("prompt", "generate", "repeat")}
    asked |= {name: given[0] if given and len(given) == 1 else given
              for name, given in (("depth", args.depth), ("batch", args.batch))}
    changes = {name: value for name, value in asked.items() if value is not None}
    changes |= {"prompt_cache": not args.no_cache, "kv_restore": not args.no_restore,
                "state_bundle": not args.no_bundle, "probes": not args.no_probes, "profile": args.profile}
    start = time.perf_counter()
    with options.load(args) as model:
        loaded = time.perf_counter() - start
        if args.prompt is None:         # the packaged model's context is short
            room = model.context_length - max(args.depth or [0]) - (args.generate or 64)
            changes["prompt"] = max(1, min(512, room))
        with progress("measuring") as report:
            found = {"load_s": loaded, **gomlx.bench(model, progress=report, peers=dict(args.peer), **changes)}
    if args.json:
        print_json(found)
        return 0
    show(found)
    return 0


def show(found):
    config = found["config"]
    say(f"{found['model_path']}, {found['threads']} threads, {found['isa']}, loaded in {found['load_s']:.2f} s; medians "
        f"of {config['repeat']} runs, tokens/s")
    names = list(found.get("peers", ()))
    titles = ["depth", "batch", f"read {config['prompt']}", f"write {config['generate']}"]
    for name in names:
        titles += [f"{name} reads", "x", f"{name} writes", "x"]
    rows = []
    for one in found["runs"]:
        row = [one["depth"], one["batch"], rate(one["prefill_tps"]), rate(one["decode_tps"])]
        for name in names:
            theirs = one.get("peers", {}).get(name, {})
            for phase in ("prefill", "decode"):
                values, ratio = theirs.get(f"{phase}_tps"), theirs.get(f"{phase}_ratio")
                row += [rate(values) if values else None, f"{ratio:.2f}" if ratio else None]
        rows.append(row)
    show_rows(titles, rows)
    table = {"peak_memory_bytes": found["peak_memory_bytes"], "bytes_per_token": found["bytes_per_token"]}
    for name in ("prompt_cache", "kv_restore", "state_bundle", "probes"):
        if name in found:
            table[name] = {key: f"{value:.4g}" if isinstance(value, float) else value
                           for key, value in found[name].items() if key != "attempted"}
    show_table(table)
    for one in found["runs"]:
        if "profile" in one:
            show_profile(found, one)


def show_profile(found, one):
    counted = dict(one["profile"])
    overhead = counted.pop("overhead_ratio")
    label = f"{os.path.basename(found['model_path'])}, depth {one['depth']}, batch {one['batch']}"
    prompt, generate = (one["batch"] * found["config"][name] for name in ("prompt", "generate"))
    print(profiling.summary(counted, label, prompt, generate))
    print(f"counting took {100 * overhead:.1f} % more time")


def rate(values):
    """The median with its spread: 1866 [1838..1900]."""
    return f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]"
