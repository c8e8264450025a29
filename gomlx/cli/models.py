"""Models as files: what is known about one, what memory it takes, which there are."""
import argparse
import dataclasses
import os

import gomlx
from gomlx._base import bars
from gomlx._files import headers, hub, locating, memory_plan
from gomlx.cli import options
from gomlx.cli.output import print_json, say, show_rows, show_table, size


def add(commands):
    commands.add("info", info, "Show what is known about a model.", options.model, options.json,
                 examples=["gomlx info", "gomlx info -m model.gguf --json"])
    made = commands.add("plan", plan, "Show what memory a model takes, before it is loaded; status 1 when it does not "
                        "fit.", options.source, options.json,
                        examples=["gomlx plan -m path/to/model --context 32768",
                                  "gomlx plan -m org/name:Q4_K_M --budget 8GB --batch 4"])
    made.add_argument("--context", type=int, metavar="N", help="tokens of a sequence (default: what fits)")
    made.add_argument("--kv-dtype", choices=tuple(memory_plan.KV_BYTES), help="of the KV cache")
    made.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1: where it would be (default: cpu)")
    options.gpu_share(made)
    made.add_argument("--dtype", choices=memory_plan.FLOATS, help="of weights that are not quantised")
    made.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once")
    made.add_argument("--budget", type=options.byte_count, metavar="BYTES",
                      help="such as 8GB or 512MiB (default: what "
                      "is available)")
    made = commands.add("discover", discover, "List the models in a folder and below.", options.json,
                        examples=["gomlx discover", "gomlx discover ~/models --json"])
    made.add_argument("path", nargs="?", default=".", help="(default: this folder)")
    made = commands.add("models", models, "List the cached models, verify them, or remove some.", options.json,
                        examples=["gomlx models", "gomlx models verify", "gomlx models rm org/name"])
    actions = made.add_subparsers(metavar="ACTION")
    for name, run, help_text, takes, examples in (
            ("rm", models_remove, "Remove models from the cache.", {"nargs": "+", "help": "as gomlx models lists them"},
             ["gomlx models rm org/name"]),
            ("verify", models_verify, "Read models whole and say what is damaged or missing; status 1 when something "
                                      "is.",
             {"nargs": "*", "help": "as gomlx models lists them, or a folder or a .gguf file, whose headers and "
                                    "lengths alone can "
              "be verified (default: all that are cached)"}, ["gomlx models verify",
                                                              "gomlx models verify org/name model.gguf"])):
        action = actions.add_parser(name, help=help_text, description=help_text)
        action.add_argument("names", metavar="NAME", **takes)
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        action.set_defaults(run=run, parser=action)
        action.examples = examples


def info(args):
    with options.load(args) as model:
        known = model.info
    if args.json:
        print_json(known)
        return 0
    metadata = known.get("metadata", {})
    show_table(known | {"metadata": f"{len(metadata)} keys (--json shows them)"} if metadata else known)
    return 0


def plan(args):
    if args.model is None:
        say(f"using {locating.PACKAGED}, the model in the package")
    made = gomlx.plan_memory(args.model, context=args.context, kv_dtype=args.kv_dtype, dtype=args.dtype,
                             batch=args.batch, budget=args.budget, device=args.device, gpu_layers=args.gpu_layers,
                             gpu_memory=args.gpu_memory)
    values = dataclasses.asdict(made)
    if args.json:
        print_json(values)
    else:
        del values["layers"], values["possible_gpu_layers"]
        show_table(values)
    return 0 if made.fits else 1


def discover(args):
    found = gomlx.discover(args.path)
    if args.json:
        print_json({"models": [dataclasses.asdict(one) for one in found]})
        return 0
    good = [one for one in found if not one.error]
    if good:
        show_rows(["SIZE", "TYPE", "FORMAT", "WEIGHTS", "CONTEXT", "PATH"],
                  [(size(one.bytes), one.model_type, one.format, weights(one), one.context_length, one.path)
                   for one in good])
    for one in found:
        if one.error:
            say(f"broken: {one.error}" if one.path in one.error else f"broken: {one.path}: {one.error}")
    return 0


def weights(one):
    if one.format == "gguf" or one.quant_bits is None:
        return one.quant_type
    return f"{one.quant_bits}-bit {one.quant_type}" + (f"/{one.quant_group}" if one.quant_group else "")


def models(args):
    packaged = {"name": locating.PACKAGED, "bytes": os.path.getsize(locating.PACKAGED_FILE),
                "path": locating.PACKAGED_FILE, "gguf": [os.path.basename(locating.PACKAGED_FILE)]}
    found, corrupted = [packaged, *hub.cached()], hub.corrupted()
    if args.json:
        print_json({"models": found, "corrupted": corrupted})
        return 0
    for one in found:
        note = " (in the package)" if one is packaged else ""
        print(f"{size(one['bytes']):>9}  {one['name']}{note}")
        if one is not packaged:
            for file in one["gguf"]:
                print(f"{'':11}{one['name']}/{file}")
    print(f"{size(sum(one['bytes'] for one in found[1:])):>9}  in the cache")
    for name, reason in corrupted.items():
        say(f"corrupted: {name}: {reason}; 'gomlx models rm {name}' removes it")
    return 0


def models_remove(args):
    freed, failed = {}, {}
    for name in args.names:
        try:
            freed[name] = hub.remove(name)
        except OSError as error:
            failed[name] = str(error)
    if args.json:
        print_json({"removed": freed, "failed": failed})
    for name, count in freed.items() if not args.json else ():
        say(f"removed {name}, {size(count)}")
    for error in failed.values():
        say(f"error: {error}")
    return 1 if failed else 0


WRONG = ("damaged", "corrupted", "empty", "not found")


def models_verify(args):
    corrupted = {} if args.names and all(map(os.path.exists, args.names)) else hub.corrupted()
    names = args.names or sorted({locating.PACKAGED, *(one["name"] for one in hub.cached()), *corrupted},
                                 key=lambda one: (one != locating.PACKAGED, one))
    found = [verified(name, corrupted) for name in names]
    if args.json:
        print_json({"models": found})
    else:
        for one in found:
            note = "" if one["checked"] == "hashes" else " (headers and lengths)"
            print(f"{one['state']:12} {one['name']}{note}")
            for file, problem in one["problems"].items():
                say(f"{one['name']}: {file}: {problem}" if file else f"{one['name']}: {problem}")
            for file in one["unchecked"]:
                say(f"{one['name']}: {file}: not checked: no hash")
    return 1 if any(one["state"] in WRONG for one in found) else 0


def verified(name, corrupted):
    """{"name", "state", "checked": "hashes" or "headers", "problems": {file: what is wrong with it}, "unchecked":
    [files without a hash]}. A cached model's files are compared with their hashes; of others the headers are read,
    which say how long the files must be."""
    if name == locating.PACKAGED or os.path.exists(name):
        return verified_headers(name)
    one = {"name": name, "state": "good", "checked": "hashes", "problems": {}, "unchecked": []}
    try:
        with bars.reporting(True, f"verifying {name}") as report:
            found = hub.verify(name, report)
    except OSError as error:
        return one | {"state": "not found", "problems": {"": str(error)}}
    one |= {"problems": found.problems, "unchecked": found.unchecked}
    if reason := corrupted.get(hub.repo_of(name)):
        one["problems"] = {"": f"corrupted: {reason}"} | found.problems
        one["state"] = "corrupted"
    elif found.problems:
        one["state"] = "damaged" if found.files else "empty"
    elif found.unchecked:
        one["state"] = "not checked" if len(found.unchecked) == found.files else "part checked"
    return one


def verified_headers(name):
    path, problems = name, {}
    try:
        path = locating.locate(name)
        headers.read(path)
    except (gomlx.Error, OSError, ValueError) as error:
        problems = {os.path.basename(path): " ".join(str(error).split())}
    return {"name": name, "state": "damaged" if problems else "good", "checked": "headers", "problems": problems,
            "unchecked": []}
