"""Options that several commands have, each once, as parents for argparse; and what commands do with them."""
import argparse
import contextlib
import dataclasses
import json as json_module
import sys

import gomlx
from gomlx._base import arguments
from gomlx._files import locating
from gomlx.cli.output import say


def group():
    return argparse.ArgumentParser(add_help=False)


def json():
    made = group()
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def source():
    """Options that say which model."""
    made = group()
    made.add_argument("-m", "--model", metavar="MODEL", help="a folder, a .gguf file, or a name of the Hugging Face "
                      "hub: org/name, org/name:Q4_K_M (default: fable, the model in the package)")
    return made


def byte_count(text):
    """8GB, 512MiB"""
    try:
        return arguments.byte_count("it", text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 8GB or 512MiB") from None


def gpu_share(made):
    """Options that say how much of the model is on a GPU."""
    made.add_argument("-ngl", "--gpu-layers", type=int, metavar="N",
                      help="so many of the last layers on a GPU, the first ones on the processor (-1: all)")
    made.add_argument("--gpu-memory", type=byte_count, metavar="BYTES",
                      help="as many layers on a GPU as fit so much of its memory, such as 8GB")


def model():
    """Options that say which model, and how it is loaded."""
    made = source()
    made.add_argument("--backend", metavar="NAME", help="what runs it (default: native; `gomlx backends` lists them)")
    made.add_argument("--python", metavar="PATH", help="the interpreter of the backend mlx_lm")
    made.add_argument("--threads", type=int, metavar="N", help="(default: what `gomlx doctor` shows)")
    made.add_argument("--context", type=int, metavar="N", help="tokens of context to hold (default: the model's own)")
    made.add_argument("--context-policy", choices=("stop", "error", "rotate"),
                      help="when the context is full: end, fail, or go on seeing the last tokens (default: stop)")
    made.add_argument("--activations", choices=("int8", "bfloat16", "float32"),
                      help="of products: int8 with quantised weights (not mxfp8), bfloat16 with weights in it; "
                           "float32 is exact")
    made.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="of weights that are not quantised")
    made.add_argument("--fits", choices=("error", "warn", "ignore"), default="warn",
                      help="what to do where the memory plan "
                      "says that it does not fit (default: warn)")
    made.add_argument("--adapter", action="append", metavar="PATH",
                      help="an adapter's folder or file (PEFT, mlx-lm, GGUF); may be given several times, they add up "
                      "(train: the one to go on from)")
    made.add_argument("--device", metavar="NAME",
                      help="cpu, cuda or cuda:1 (a GPU), or auto: what fits (default: cpu)")
    gpu_share(made)
    made.add_argument("--kv-dtype", choices=("float32", "float16", "bfloat16", "q8_0"), help="of the KV cache")
    return made


def sampling():
    """Options that say what ends a text, and how tokens are drawn."""
    made = group()
    made.add_argument("-n", "--max-tokens", type=int, metavar="N", help="end after this many tokens")
    made.add_argument("--min-tokens", type=int, default=0, metavar="N", help="do not stop by itself before this many")
    made.add_argument("--seed", type=int, metavar="N", help="of the draws (default: a new one, shown at the end)")
    made.add_argument("--stop", action="append", metavar="TEXT", help="end at this text; may be given several times")
    made.add_argument("--stop-id", action="append", type=int, default=[], metavar="ID",
                      help="end at this token; may be given several times")
    made.add_argument("--ignore-eos", action="store_true", help="go on after the model's own stop tokens")
    made.add_argument("--timeout", type=float, metavar="SECONDS", help="end after so long")
    made.add_argument("--top-logprobs", type=int, default=0, metavar="K",
                      help="with --json, the K likeliest tokens at each position")
    made.add_argument("--profile", action="store_true", help="count and time what the engine does")
    add_sampling_flags(made.add_argument_group("sampling", "what is not given is the model's own"))
    return made


def bias(text):
    """ID=BIAS"""
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=BIAS") from None


# Fields of Sampling that hold several values: the flag for one of them, and how it is read.
SEVERAL = {"dry_sequence_breakers": ("--dry-sequence-breaker", str), "bad_words": ("--bad-word", str),
           "suppress_tokens": ("--suppress-token", int), "logit_bias": ("--logit-bias", bias)}


def add_sampling_flags(group):
    """One flag for each field of Sampling; all are None when not given."""
    for one in dataclasses.fields(gomlx.Sampling):
        flag, help_text, metavar = "--" + one.name.replace("_", "-"), one.metadata["help"], one.metadata["metavar"]
        if one.name in SEVERAL:
            flag, read = SEVERAL[one.name]
            group.add_argument(flag, action="append", type=read, dest=one.name, metavar=metavar,
                               help=help_text + "; may be given several times")
        elif one.name == "penalty_prompt":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=help_text)
        else:
            short = ["-t"] if one.name == "temperature" else []
            read = str if isinstance(one.default, str) else type(one.default)
            group.add_argument(*short, flag, type=read, metavar=metavar, help=help_text)


def sampling_fields(args):
    """The given value of each field of Sampling, or None."""
    changes = {one.name: getattr(args, one.name) for one in dataclasses.fields(gomlx.Sampling)}
    if changes["samplers"] and "," in changes["samplers"]:
        changes["samplers"] = changes["samplers"].split(",")
    if changes["logit_bias"]:
        changes["logit_bias"] = dict(changes["logit_bias"])
    return changes


def sampling_of(args):
    return sampling_fields(args) | {"max_tokens": args.max_tokens, "min_tokens": args.min_tokens, "seed": args.seed,
                      "stop": args.stop, "stop_ids": args.stop_id, "ignore_eos": args.ignore_eos,
                      "top_logprobs": args.top_logprobs,
                      **({"timeout": args.timeout} if args.timeout is not None else {}),
                      **({"profile": True} if args.profile else {})}


def form():
    """Options that say what the answer has to be."""
    made = group()
    of = made.add_argument_group("form", "what the answer has to be: one of these").add_mutually_exclusive_group()
    of.add_argument("--schema", metavar="FILE", help="JSON that is valid under the schema in a JSON file")
    of.add_argument("--regex", metavar="PATTERN", help="a text that all of a pattern matches")
    of.add_argument("--grammar", metavar="FILE", help="a text of the grammar in a file: Lark's notation or GBNF")
    of.add_argument("--choice", action="append", metavar="TEXT", help="one of some texts; is given for each of them")
    return made


def form_of(args):
    if args.schema is not None:
        return {"schema": read_json_file(args.schema)}
    if args.grammar is not None:
        with open(args.grammar, encoding="utf-8") as file, decoding(args.grammar):
            return {"grammar": file.read()}
    return {name: value for name in ("regex", "choice") if (value := getattr(args, name)) is not None}


def load(args, **more):
    """Loads the model that options.model names. more: further options of gomlx.load."""
    if args.model is None:
        say(f"using {locating.PACKAGED}, the model in the package")
    others = {"python": args.python} if args.python is not None else {}
    if args.adapter:
        others["adapter_path"] = args.adapter
    others |= {name: getattr(args, name) for name in ("device", "gpu_layers", "gpu_memory")
               if getattr(args, name) is not None}
    return gomlx.load(args.model, context_length=args.context, context_policy=args.context_policy, dtype=args.dtype,
                      kv_dtype=args.kv_dtype, activations=args.activations, threads=args.threads, backend=args.backend,
                      fits=args.fits, **others, **more)


def read_lines(path):
    """(number, line) of the lines that are not empty; - is standard input."""
    with contextlib.nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8") as file, decoding(path):
        yield from ((i, line) for i, line in enumerate(file, 1) if line.strip())


def read_text(text):
    """The text, or for - standard input without the newline that `echo` and editors end it with."""
    if text != "-":
        return text
    with decoding("-"):
        return sys.stdin.read().removesuffix("\n")


@contextlib.contextmanager
def decoding(path):
    """Names the source of bytes that are not UTF-8 in their error."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{'standard input' if path == '-' else path}: not {error.encoding} text: {error.reason}, "
                         f"byte "
                         f"{error.object[error.start]:#04x}") from None


def read_json_file(path):
    with open(path, encoding="utf-8") as file:
        try:
            return json_module.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
