"""adapters: what there is in files of adapters, and other forms of them. fuse: a model with one in its weights."""
import os

import gomlx
from gomlx._files import names
from gomlx._files.adapters import find_adapters
from gomlx.cli import options
from gomlx.cli.conversion import TYPES
from gomlx.cli.output import print_json, say, show_rows, size

FORMS = ("peft", "mlx-lm", "go-mlx", "gguf")


def add(commands):
    made = commands.add("adapters", adapters, "List adapters in a folder and below, show the layers of one, or write "
                        "one in another form.", options.source, options.json,
                        examples=["gomlx adapters", "gomlx adapters runs/first --terms",
                                  "gomlx adapters runs/first -m model.gguf --form gguf --output first.gguf"])
    made.add_argument("path", nargs="?", default=".", help="an adapter or a folder with some: PEFT's, mlx-lm's, "
                      "go-mlx's, GGUF's (default: this folder)")
    made.add_argument("--terms", action="store_true", help="show the terms of each layer")
    made.add_argument("--form", choices=FORMS, help="write the adapter in this form; gguf needs the model, with -m")
    made.add_argument("-o", "--output", metavar="PATH", help="where it is written: a folder, for gguf a .gguf file")
    made = commands.add("fuse", fuse, "Write a model with an adapter in its weights.", options.json,
                        examples=["gomlx fuse model.gguf runs/first fused.gguf", "gomlx fuse org/name adapter folder",
                                  "gomlx fuse fable runs/first first.gguf -q q4_k_m"])
    made.add_argument("source", help="the model: a folder, a .gguf file, or a name of the Hugging Face hub")
    made.add_argument("adapter", help="a folder, a .safetensors or a .gguf file")
    made.add_argument("destination", help="a file that ends in .gguf, or a folder")
    made.add_argument("-q", "--quantize", choices=TYPES, metavar="TYPE", help="of weights, as for `gomlx convert` "
                      "(default: each as it is in the source)")
    made.add_argument("--text", metavar="TEXT", help="what the result and the model with its adapter are compared on; "
                      "- reads standard input (default: a short text of the program's own)")
    made.add_argument("--no-comparison", action="store_true", help="do not load both to compare them")
    made.add_argument("--overwrite", action="store_true", help="replace what is at the destination")


def adapters(args):
    if (args.form is None) != (args.output is None):
        raise ValueError("--form and --output belong together: the form, and where it is written")
    if args.model is not None or args.form is not None:
        return one_adapter(args)
    found = find_adapters(args.path)
    if args.json:
        print_json({"adapters": [described(one.path, one.adapter, args.terms) if one.adapter else
                                 {"path": one.path, "error": one.error} for one in found]})
        return 0
    show([(one.path, one.adapter) for one in found if one.adapter], args.terms)
    for one in found:
        if one.error:
            say(f"not read: {one.error}" if one.path in one.error else f"not read: {one.path}: {one.error}")
    if not found:
        say(f"no adapters in {args.path}")
    return 0


def one_adapter(args):
    """The adapter checked against a model and written in another form, as far as these are given."""
    model = gomlx.load(args.model) if args.model is not None else None
    try:
        adapter = gomlx.read_adapter(args.path, model)
        written = gomlx.save_adapter(adapter, args.output, args.form, model=model) if args.form else None
    finally:
        if model is not None:
            model.close()
    if args.json:
        print_json(described(args.path, adapter, args.terms) | ({"written": written} if written else {}))
        return 0
    show([(args.path, adapter)], args.terms)
    if args.model is not None:
        say(f"it fits {args.model}")
    if written:
        say(f"wrote {written}")
    return 0


def described(path, adapter, layers):
    return {"path": path, **adapter.meta, "n_layers": len(adapter.terms), "parameters": adapter.count,
            "whole": list(adapter.full)} | ({"layers": [
                {"layer": name, "rank": term.rank, "in": term.shape[1], "out": term.shape[0], "scale": term.scale,
                 "dora": term.magnitude is not None} for name, term in adapter.terms.items()]} if layers else {})


def show(found, layers):
    if found:
        show_rows(["FORM", "RANK", "BLOCKS", "TARGETS", "PARAMETERS", "BASE", "PATH"],
                  [row(path, adapter) for path, adapter in found])
    for path, adapter in found if layers else ():
        print(f"\n{path}")
        show_rows(["LAYER", "RANK", "IN", "OUT", "SCALE"],
                  [[name, term.rank, term.shape[1], term.shape[0], f"{term.scale:.6g}"
                    + (" with magnitudes" if term.magnitude is not None else "")]
                   for name, term in adapter.terms.items()])
        for name, array in adapter.full.items():
            print(f"{name}  whole, {' x '.join(map(str, array.shape))}")


def row(path, adapter):
    blocks = {found for name in adapter.terms if (found := names.parts(name)[0])}
    ranks = "-".join(map(str, dict.fromkeys((adapter.ranks[0], adapter.ranks[-1])))) if adapter.terms else None
    targets = [one.removesuffix("_proj") for one in adapter.meta.get("targets", [])]
    base = adapter.meta.get("base_model")
    return [adapter.meta.get("form"), ranks, len(blocks), " ".join(targets + ["whole weights"] * bool(adapter.full)),
            f"{adapter.count:,}", os.path.basename(base.rstrip("/")) if base else None, path]


def fuse(args):
    if args.no_comparison and args.text is not None:
        raise ValueError("--no-comparison and --text exclude one another")
    chosen = {} if args.text is None else {"text": options.read_text(args.text)}
    if args.no_comparison:
        chosen = {"text": None}
    made = gomlx.fuse(args.source, args.adapter, args.destination, args.quantize, overwrite=args.overwrite, **chosen)
    if args.json:
        print_json(made)
        return 0
    say(f"wrote {made['destination']}, {size(made['bytes'])}: {len(made['fused'])} weights have changed")
    if made["rounding"] is not None:
        say(f"{len(made['requantised'])} of them are quantised: what rounding adds is {made['rounding']:.2%} of what "
            "the adapter adds")
    if made["kl"] is not None:
        say(f"KL divergence from the model with its adapter: {made['kl']:.3g} nats a token")
    elif not args.no_comparison:
        say(f"not compared with the model and its adapter: {made['why_no_kl']}")
    return 0
