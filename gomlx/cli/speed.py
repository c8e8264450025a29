"""bench: how fast a model reads and writes here."""
import time

import gomlx
from gomlx.cli import options
from gomlx.cli.output import print_json, progress, say, show_table


def add(commands):
    made = commands.add("bench", bench, "Measure how fast a model reads a prompt and writes an answer.", options.model,
                        options.json)
    made.add_argument("path", nargs="?", metavar="MODEL", help="the model; the same as -m MODEL")
    made.add_argument("--prompt", type=int, metavar="N", help="tokens to read (default: 512)")
    made.add_argument("--generate", type=int, metavar="N", help="tokens to write (default: 64)")
    made.add_argument("--depth", type=int, metavar="N", help="tokens in the cache before the prompt (default: 0)")
    made.add_argument("--batch", type=int, metavar="N", help="sequences at once (default: 1)")
    made.add_argument("--repeat", type=int, metavar="N", help="runs after one that warms up (default: 5)")
    for name, what in (("cache", "the prompt cache"), ("restore", "saved sessions"), ("bundle", "state bundles"),
                       ("probes", "probes")):
        made.add_argument(f"--no-{name}", action="store_true", help=f"do not measure {what}")


def bench(args):
    if args.path is not None and args.model is not None:
        raise ValueError(f"two models: {args.path!r} and -m {args.model!r}")
    args.model = args.model if args.path is None else args.path
    asked = {name: getattr(args, name) for name in ("prompt", "generate", "depth", "batch", "repeat")}
    changes = {name: value for name, value in asked.items() if value is not None}
    changes |= {"prompt_cache": not args.no_cache, "kv_restore": not args.no_restore,
                "state_bundle": not args.no_bundle, "probes": not args.no_probes}
    start = time.perf_counter()
    with options.load(args) as model:
        loaded = time.perf_counter() - start
        if args.prompt is None:         # the packaged model's context is short
            room = model.context_length - (args.depth or 0) - (args.generate or 64)
            changes["prompt"] = max(1, min(512, room))
        with progress("measuring") as report:
            found = {"load_s": loaded, **gomlx.bench(model, progress=report, **changes)}
    if args.json:
        print_json(found)
        return 0
    show(found)
    return 0


def show(found):
    config = found["config"]
    say(f"{found['model_path']}, {found['threads']} threads, {found['isa']}, loaded in {found['load_s']:.2f} s")
    rows = {f"read {config['prompt']}": rate(found["prefill_tps"])}
    if found["decode_tps"]:
        rows[f"write {config['generate']}"] = rate(found["decode_tps"])
    rows |= {"peak_memory_bytes": found["peak_memory_bytes"], "bytes_per_token": found["bytes_per_token"]}
    for name in ("prompt_cache", "kv_restore", "state_bundle", "probes"):
        if name in found:
            rows[name] = {key: f"{value:.4g}" if isinstance(value, float) else value
                          for key, value in found[name].items() if key != "attempted"}
    show_table(rows)


def rate(values):
    """The median with its spread: 1866 [1838..1900] tokens/s."""
    middle = sorted(values)[len(values) // 2]
    return f"{middle:.4g} [{min(values):.4g}..{max(values):.4g}] tokens/s"
