"""bench: how fast a model reads and writes here."""
import argparse
import contextlib
import os
import statistics
import time

import gomlx
from gomlx import profiling
from gomlx._tools import benchmark
from gomlx.cli import options
from gomlx.cli.output import print_json, say, show_rows, show_table


def peer(text):
    """NAME=PROGRAM"""
    name, _, program = text.partition("=")
    if not name or not program.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PROGRAM")
    return name, program


def setting(text, known=None):
    """NAME=OPTION=VALUE,...: how another model is loaded beside."""
    known = SETTINGS if known is None else known
    name, _, rest = text.partition("=")
    settings = {}
    for part in rest.split(",") if rest else ():
        option, _, value = part.partition("=")
        if option not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=OPTION=VALUE,... with options among "
                                             + ", ".join(known))
        try:
            settings[option] = known[option](value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: {option} is {value!r}, expected an integer") from None
    if not name or not settings:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=OPTION=VALUE,...")
    return name, settings


def cache_setting(text):
    """NAME=OPTION=VALUE,...: a prompt cache."""
    name, settings = setting(text, CACHE_SETTINGS)
    try:
        gomlx.PromptCache(**settings)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return name, settings


def prompt(text):
    """A number of tokens, or a text."""
    return int(text) if text.isascii() and text.isdigit() else text


SETTINGS = {"model": str, "threads": int, "context_length": int, "activations": str, "dtype": str, "kv_dtype": str,
            "device": str, "gpu_layers": int, "gpu_memory": str}
CACHE_SETTINGS = {"entries": int, "min_tokens": int, "max_bytes": int}


def add(commands):
    made = commands.add("bench", bench, "Measure how fast a model reads a prompt and writes an answer.", options.model,
                        options.json,
                        examples=["gomlx bench", "gomlx bench model.gguf --prompt 512 -n 128 --depth 0 --depth 4096",
                                  "gomlx bench model.gguf --peer llama.cpp=./llama-bench --json > report.json",
                                  "gomlx bench --compare before.json after.json"])
    made.add_argument("path", nargs="?", metavar="MODEL", help="the model; the same as -m MODEL")
    made.add_argument("--prompt", type=prompt, metavar="N|TEXT", help="tokens to read, of a text of its own (default: "
                      "512), or the text to read; - is standard input")
    made.add_argument("-n", "--max-tokens", type=int, metavar="N", help="tokens to write (default: 64)")
    made.add_argument("--depth", type=int, action="append", metavar="N", help="tokens in the cache before (default: "
                      "0); may be given several times")
    made.add_argument("--batch", type=int, action="append", metavar="N", help="sequences at once (default: 1); may be "
                      "given several times")
    made.add_argument("--repeat", type=int, metavar="N", help="runs after one that warms up (default: 5)")
    made.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=PROGRAM", help="run llama-bench, "
                      "or what takes its options, in turns with gomlx on the same .gguf file, and compare: --peer "
                      "'llama.cpp=./llama-bench -fa 1'; may be given several times")
    made.add_argument("--against", type=setting, action="append", default=[], metavar="NAME=OPTION=VALUE,...",
                      help="load a second model, with these settings, run it in turns, and compare: --against "
                      "kv8=kv_dtype=q8_0, --against small=model=x-Q4_K_M.gguf,threads=1; may be given several times")
    made.add_argument("--cache", type=cache_setting, action="append", default=[], metavar="NAME=OPTION=VALUE,...",
                      help="compare settings of the prompt cache over conversations that begin alike: --cache "
                      "few=entries=1 --cache short=entries=8,min_tokens=64; options: entries, min_tokens, max_bytes")
    made.add_argument("--compare", nargs=2, metavar=("FIRST", "SECOND"),
                      help="measure nothing: two reports, files that "
                      "--json wrote, side by side")
    made.add_argument("--sampling", choices=("greedy", "model"),
                      help="how tokens are drawn: greedily (the default), or "
                      "as the model's own settings say; options below are over those")
    made.add_argument("--profile", action="store_true", help="count and time what the engine does")
    for name, what in (("cache", "the prompt cache"), ("restore", "saved sessions"), ("bundle", "state bundles"),
                       ("probes", "probes")):
        made.add_argument(f"--no-{name}", action="store_true", help=f"do not measure {what}")
    options.add_sampling_flags(made.add_argument_group("sampling", "over the model's own"))


def bench(args):
    if args.compare:
        found = benchmark.compare_reports(*map(options.read_json_file, args.compare))
        print_json(found) if args.json else show_comparison(found)
        return 0
    if args.path is not None and args.model is not None:
        raise ValueError(f"two models: {args.path!r} and -m {args.model!r}")
    args.model = args.model if args.path is None else args.path
    drawn = {name: value for name, value in options.sampling_fields(args).items() if value is not None}
    if drawn and args.sampling == "greedy":
        raise ValueError(f"--sampling greedy and {', '.join(drawn)}")
    names = [name for name, _ in [*args.peer, *args.against]]
    if len(set(names)) < len(names):
        raise ValueError("--peer and --against: a name is given twice")
    if len(dict(args.cache)) < len(args.cache):
        raise ValueError("--cache: a name is given twice")
    if isinstance(args.prompt, str):
        args.prompt = options.read_text(args.prompt)
    asked = {"prompt": args.prompt, "generate": args.max_tokens, "repeat": args.repeat}
    asked["sampling"] = drawn or args.sampling
    asked |= {name: given[0] if given and len(given) == 1 else given
              for name, given in (("depth", args.depth), ("batch", args.batch))}
    changes = {name: value for name, value in asked.items() if value is not None}
    changes |= {"prompt_cache": not args.no_cache, "kv_restore": not args.no_restore,
                "state_bundle": not args.no_bundle, "probes": not args.no_probes, "profile": args.profile,
                "cache_settings": dict(args.cache)}
    start = time.perf_counter()
    with options.load(args) as model:
        loaded = time.perf_counter() - start
        if args.prompt is None:         # the packaged model's context is short
            left = model.context_length - max(args.depth or [0]) - (args.max_tokens or 64)
            changes["prompt"] = max(1, min(512, left))
        with contextlib.ExitStack() as others:
            peers = dict(args.peer) | {name: others.enter_context(beside(args, settings)) for name,
                                       settings in args.against}
            found = {"load_s": loaded, **gomlx.bench(model, peers=peers, **changes)}
    if args.json:
        print_json(found)
        return 0
    show(found)
    return 0


def beside(args, settings):
    """The model again, or another one, with other settings than the options say."""
    given = {"context_length": args.context, "dtype": args.dtype, "kv_dtype": args.kv_dtype,
             "activations": args.activations, "threads": args.threads, "fits": args.fits, "device": args.device,
             "context_policy": args.context_policy} | settings
    if not settings.keys() & {"device", "gpu_layers", "gpu_memory"}:
        given |= {"gpu_layers": args.gpu_layers, "gpu_memory": args.gpu_memory}
    return gomlx.load(given.pop("model", args.model), **given)


def show_comparison(found):
    for name, (first, second) in found["differences"].items():
        say(f"{name}: {first} and {second}")
    rows = [[one["depth"], one["batch"]] + [cell for phase in ("prefill", "decode")
                                            for cell in (*(f"{tps:.4g}" for tps in one[f"{phase}_tps"]),
                                                         f"{one[f'{phase}_ratio']:.2f}")] for one in found["runs"]]
    show_rows(["depth", "batch", "first reads", "second", "x", "first writes", "second", "x"], rows)
    show_table({f"{name} {key}": f"{first:.4g} {second:.4g}" for name, values in found["sections"].items()
                for key, (first, second) in values.items()})


def show(found):
    config = found["config"]
    say(f"{found['model_path']}, {found['threads']} threads, {found['isa']}, loaded in {found['load_s']:.2f} s; "
        f"medians "
        f"of {config['repeat']} runs, tokens/s")
    names = list(found.get("peers", ()))
    titles = ["depth", "batch", f"read {found['prompt_tokens']}", f"write {config['generate']}"]
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
    if "cache_settings" in found:
        show_cache_settings(found["cache_settings"])
    for one in found["runs"]:
        if "profile" in one:
            show_profile(found, one)


def show_cache_settings(found):
    if "error" in found:
        say(f"cache_settings: {found['error']}")
        return
    titles = ["prompt cache", f"s to read {found['prompts']} prompts", "tokens kept", "computed", "entries", "bytes"]
    show_rows(titles, [[name, rate(one["seconds"]), one["hit_tokens"], one["miss_tokens"], one["entries"], one["bytes"]]
                       for name, one in found["settings"].items()])


def show_profile(found, one):
    counted = dict(one["profile"])
    overhead = counted.pop("overhead_ratio")
    label = f"{os.path.basename(found['model_path'])}, depth {one['depth']}, batch {one['batch']}"
    read, written = one["batch"] * one["prompt_tokens"], one["batch"] * found["config"]["generate"]
    print(profiling.summary(counted, label, read, written))
    print(f"counting took {100 * overhead:.1f} % more time")


def rate(values):
    """The median with its spread: 1866 [1838..1900]."""
    return f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]"
