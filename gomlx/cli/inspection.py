"""inspect: what a model computes before its logits, as statistics, JSON, or arrays in a file, and how exact it is."""
import gomlx
from gomlx import _gomlx as mx
from gomlx.cli import options
from gomlx.cli.output import print_json, say, show_rows


def add(commands):
    made = commands.add("inspect", inspect, "Show what a model computes for a text, or would say after each layer.",
                        options.model, options.json,
                        examples=['gomlx inspect "Once upon a time" --lens', 'gomlx inspect "Once" --names',
                                  "gomlx inspect \"Once\" --want 'layers.*.attention_weights' --npz attention.npz"])
    made.add_argument("text", help="the text; - reads standard input")
    made.add_argument("--want", action="append", metavar="NAME", help="activations, with or without wildcards: "
                      "'layers.*.residual' (the default), logits; may be given several times")
    made.add_argument("--names", action="store_true", help="list the names of all activations and their shapes")
    made.add_argument("--npz", metavar="FILE", help="write the arrays to a file that NumPy reads")
    made.add_argument("--lens", action="store_true", help="the likeliest tokens of each layer's residual stream at "
                                                          "each "
                      "position")
    made.add_argument("--validate", action="store_true", help="how far activations and logits are from the exact path: "
                      "float32 activations and cache over the same weights")
    made.add_argument("--top", type=int, default=5, metavar="K", help="tokens at each position (default: 5)")


def inspect(args):
    with options.load(args) as model:
        if not isinstance(model, gomlx.Model):
            raise NotImplementedError("inspect: only the backend native shows activations")
        text = options.read_text(args.text)
        show = (show_names if args.names else show_lens if args.lens else show_validation if args.validate
                else show_activations)
        show(model, text, args)
    return 0


def show_names(model, text, args):
    names = model.activation_names()
    if args.json:
        print_json(names)
        return
    show_rows(["name", "shape"], [[name, " x ".join(str(one) for one in shape)] for name, shape in names.items()])


def show_lens(model, text, args):
    lens = model.logit_lens(text, args.top)
    if args.json:
        print_json({"ids": lens.ids, "texts": lens.texts,
                    "layers": [[[one._asdict() for one in position] for position in layer] for layer in lens.layers]})
        return
    for at, said in enumerate(lens.texts):
        print(f"{at}: after {said!r}")
        show_rows(["  layer", "tokens"],
                  [[f"  {i}", "  ".join(f"{one.text!r} {one.probability:.3f}" for one in layer[at])]
                   for i, layer in enumerate(lens.layers)])


def show_validation(model, text, args):
    found = model.validate(text, args.want) if args.want else model.validate(text)
    if args.json:
        print_json(vars(found))
        return
    show_rows(["name", "relative rms"], [[name, f"{value:.3g}"] for name, value in found.differences.items()])
    print(f"logits of the last token: at most {found.max_difference:.3g} apart; mean KL {found.kl:.3g} nats; "
          f"the same next token in {found.top_1:.1%} of positions")


def show_activations(model, text, args):
    found = model.inspect(text, args.want or "layers.*.residual")
    if args.npz:
        file = args.npz if args.npz.endswith(".npz") else args.npz + ".npz"
        gomlx.core.savez(file, **found)
        say(f"{len(found)} arrays in {file}")
        return
    if args.json:
        print_json({name: {"shape": list(array.shape), "values": array.tolist()} for name, array in found.items()})
        return
    rows = []
    for name, array in found.items():
        values = array.astype(mx.float32)
        rows.append([name, " x ".join(str(one) for one in array.shape),
                     *(f"{one.item():.5g}" for one in (mx.mean(values), mx.sqrt(mx.mean(values * values)),
                                                       mx.min(values), mx.max(values)))])
    show_rows(["name", "shape", "mean", "rms", "min", "max"], rows)
