"""gomlx convert: a model in another container, or with its weights in another form."""
import gomlx
from gomlx.cli import options
from gomlx.cli.output import print_json, say, size

# Those of gomlx._conversion.convert, which is not imported for the sake of other commands.
TYPES = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k",
         "mxfp4", "q4_k", "q5_k", "mlx-2", "mlx-3", "mlx-4", "mlx-5", "mlx-6", "mlx-8", "mxfp8", "nvfp4")


def add(commands):
    made = commands.add("convert", convert, "Write a model in another container, or with its weights in another form.",
                        options.json,
                        examples=["gomlx convert path/to/model model.gguf -q q4_k_m",
                                  "gomlx convert model.gguf folder -q mlx-4",
                                  "gomlx convert fable fable-f16.gguf -q f16 --overwrite"])
    made.add_argument("source", help="a folder, a .gguf file, or a name of the Hugging Face hub")
    made.add_argument("destination", help="a file that ends in .gguf, or a folder")
    made.add_argument("-q", "--quantize", choices=TYPES, metavar="TYPE", help="of weights: f32, f16, bf16; in a .gguf "
                      "file q8_0, q4_0, q4_1, q5_0, q5_1, q4_k (q4_k_m), q4_k_s, q5_k (q5_k_m), q5_k_s, q6_k, mxfp4; "
                      "in a folder mlx-2, mlx-3, mlx-4, mlx-5, mlx-6, mlx-8, mxfp4, mxfp8, nvfp4 (default: as in the "
                      "source)")
    made.add_argument("--overwrite", action="store_true", help="replace what is at the destination")


def convert(args):
    made = gomlx.convert(args.source, args.destination, args.quantize, overwrite=args.overwrite)
    if args.json:
        print_json(made)
        return 0
    types = ", ".join(f"{count} {form}" for form, count in made["types"].items())
    say(f"wrote {made['destination']}, {size(made['bytes'])}: {types}")
    if made["dequantised"]:
        say(f"{len(made['dequantised'])} tensors were quantised in the source and went through float32")
    return 0
