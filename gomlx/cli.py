"""The command gomlx. Standard output carries only what was asked for; everything else goes to standard error."""
import argparse
import dataclasses
import json
import os
import signal
import sys

import gomlx
from gomlx import loading

FAILURES = (OSError, ValueError, RuntimeError, NotImplementedError, MemoryError, OverflowError, ImportError,
            gomlx.Error)


def main(argv=None):
    """Runs one command; returns the exit status: 0, 1 after an error, 2 for wrong usage, 128 + signal when
    interrupted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:          # closed by the shell, as in `gomlx ... >&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    args = parser().parse_args(argv)
    sys.stdout.reconfigure(errors="replace")
    try:
        status = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go; without this Python complains about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except FAILURES as error:
        say("error: " + (" ".join(str(error).split()) or type(error).__name__))
        return 1


def say(text):
    print("gomlx: " + text, file=sys.stderr, flush=True)


def parser():
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("-m", "--model", metavar="MODEL", help="a folder, a .gguf file, or a name of the Hugging Face hub: "
                       "org/name, org/name:Q4_K_M (default: fable, the model in the package)")
    model.add_argument("--threads", type=int, metavar="N")
    model.add_argument("--context", type=int, metavar="N", help="tokens of context to hold (default: the model's own)")
    model.add_argument("--activations", choices=("int8", "float32"), help="of products with quantised weights")
    model.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="of weights that are not quantised")
    model.add_argument("--kv-dtype", choices=("float32", "float16", "bfloat16"), help="of the KV cache")
    model.add_argument("--json", action="store_true", help="print one JSON object")

    sampling = argparse.ArgumentParser(add_help=False)
    sampling.add_argument("-n", "--max-tokens", type=int, metavar="N")
    sampling.add_argument("--min-tokens", type=int, default=0, metavar="N", help="do not stop by itself before so many")
    sampling.add_argument("--seed", type=int, metavar="N")
    sampling.add_argument("--stop", action="append", metavar="TEXT",
                          help="end at this text; may be given several times")
    sampling.add_argument("--stop-id", action="append", type=int, default=[], metavar="ID",
                          help="end at this token; may be given several times")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on after the model's own stop tokens")
    sampling.add_argument("--top-logprobs", type=int, default=0, metavar="K",
                          help="with --json, the K likeliest tokens at each place")
    add_sampling_flags(sampling.add_argument_group("sampling", "what is not given is the model's own"))

    top = argparse.ArgumentParser(prog="gomlx", description="Runs open language models on this machine's CPUs.")
    top.add_argument("--version", action="version", version="gomlx " + gomlx.__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, help_text, *parents):
        made = commands.add_parser(name, help=help_text, description=help_text, parents=parents)
        made.set_defaults(run=run)
        return made

    command("generate", generate, "Continue a text.", model, sampling).add_argument(
        "text", help="the text to continue; - reads standard input")
    chat_command = command("chat", chat, "Answer once, or talk when no text is given.", model, sampling)
    chat_command.add_argument("text", nargs="?", help="the question; - reads standard input")
    chat_command.add_argument("--system", metavar="TEXT", help="the system message")
    command("info", info, "Show what is known about a model.", model)
    models_command = command("models", models, "List the cached models, or remove some.")
    models_command.add_argument("--json", action="store_true", help="print one JSON object")
    actions = models_command.add_subparsers(metavar="ACTION")
    remove = actions.add_parser("rm", help="remove models from the cache")
    remove.add_argument("names", nargs="+", metavar="NAME")
    remove.set_defaults(run=models_remove)
    command("doctor", doctor, "Show what was found on this machine, what was chosen, and why.").add_argument(
        "--json", action="store_true", help="print one JSON object")
    return top


def bias(text):
    """ID=BIAS"""
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=BIAS") from None


# Fields of Sampling that are several things: the flag of one of them, and how it is read.
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


# ---- models ----

def load(args):
    if args.model is None:
        say(f"using {loading.PACKAGED}, the model in the package")
    on_terminal = sys.stderr.isatty()
    shown = -1

    def progress(fraction):
        nonlocal shown
        percent = int(100 * fraction)
        if percent != shown:
            shown = percent
            print(f"\rgomlx: loading {percent} %", end="", file=sys.stderr, flush=True)

    try:
        return gomlx.load(args.model, context_length=args.context, dtype=args.dtype, kv_dtype=args.kv_dtype,
                          activations=args.activations, threads=args.threads,
                          progress=progress if on_terminal else None)
    finally:
        if shown >= 0:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def sampling_of(args):
    changes = {one.name: getattr(args, one.name) for one in dataclasses.fields(gomlx.Sampling)}
    if changes["samplers"] and "," in changes["samplers"]:
        changes["samplers"] = changes["samplers"].split(",")
    if changes["logit_bias"]:
        changes["logit_bias"] = dict(changes["logit_bias"])
    return changes | {"max_tokens": args.max_tokens, "min_tokens": args.min_tokens, "seed": args.seed, "stop": args.stop,
                      "stop_ids": args.stop_id, "ignore_eos": args.ignore_eos, "top_logprobs": args.top_logprobs}


def read_text(text):
    """The text, or for - standard input without the newline that `echo` and editors end it with."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text


def generate(args):
    with load(args) as model, model.generate(read_text(args.text), **sampling_of(args)) as stream:
        show(stream, args.json)
    return 0


def show(stream, as_json=False):
    """Prints a stream as it comes, or its result as JSON."""
    end = "\n"
    for token in stream:
        if token.text and not as_json:
            print(token.text, end="", flush=True)
            end = token.text[-1]
    if as_json:
        print(json.dumps(dataclasses.asdict(stream.result), ensure_ascii=False))
    elif end != "\n":
        print(flush=True)
    if sys.stderr.isatty() and not as_json:
        result = stream.result
        speed = f", {result.decode_tps:.1f} tokens/s" if result.decode_tps else ""
        say(f"{result.generated_tokens} tokens{speed}, ended by {result.finish_reason}, seed {result.seed}")


def chat(args):
    system = [{"role": "system", "content": args.system}] if args.system else []
    with load(args) as model:
        if args.text is None:
            return talk(model, args, system)
        messages = system + [{"role": "user", "content": read_text(args.text)}]
        with model.chat(messages, **sampling_of(args)) as stream:
            show(stream, args.json)
    return 0


def talk(model, args, system):
    """Questions and answers until the input ends. One session holds the conversation, so each turn computes only what
    is new; Ctrl-C ends an answer, not the conversation."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if on_terminal:
        import readline  # noqa: F401 - gives input() line editing and history
        say("/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer")
    session, messages = model.session(), list(system)
    while True:
        try:
            text = input("> ") if on_terminal else sys.stdin.readline()
        except EOFError:
            print(file=sys.stderr)
            return 0
        except KeyboardInterrupt:
            print(file=sys.stderr)
            if on_terminal:
                continue
            raise
        if not on_terminal and text == "":
            return 0
        text = text.strip()
        if text == "/exit":
            return 0
        if text == "/reset":
            session.truncate(0)
            messages = list(system)
        elif text.startswith("/"):
            say(f"no command {text.split()[0]}: there are /reset and /exit")
        elif text:
            messages.append({"role": "user", "content": text})
            answer(model, args, messages, session)


def answer(model, args, messages, session):
    """One answer, appended to messages; a question that cannot be answered is taken back."""
    try:
        stream = model.chat(messages, session=session, **sampling_of(args))
    except ValueError as error:
        messages.pop()
        say(f"error: {error}; /reset starts anew")
        return
    with stream:
        try:
            show(stream, args.json)
        except KeyboardInterrupt:
            stream.close()
            print(flush=True)
    messages.append(stream.result.message)


# ---- the rest ----

def info(args):
    with load(args) as model:
        known = model.info
    if args.json:
        print(json.dumps(known, ensure_ascii=False))
        return 0
    metadata = known.get("metadata", {})
    show_table(known | {"metadata": f"{len(metadata)} keys (--json shows them)"} if metadata else known)
    return 0


def models(args):
    from gomlx import hub
    packaged = {"name": loading.PACKAGED, "bytes": os.path.getsize(loading.PACKAGED_FILE),
                "path": loading.PACKAGED_FILE,
                "gguf": [os.path.basename(loading.PACKAGED_FILE)]}
    found = [packaged, *hub.cached()]
    if args.json:
        print(json.dumps({"models": found}, ensure_ascii=False))
        return 0
    for one in found:
        note = " (in the package)" if one is packaged else ""
        print(f"{size(one['bytes']):>9}  {one['name']}{note}")
        if one is not packaged:
            for file in one["gguf"]:
                print(f"{'':11}{one['name']}/{file}")
    print(f"{size(sum(one['bytes'] for one in found[1:])):>9}  in the cache")
    return 0


def models_remove(args):
    from gomlx import hub
    freed = {name: hub.remove(name) for name in args.names}
    if args.json:
        print(json.dumps({"removed": freed}))
    else:
        for name, count in freed.items():
            say(f"removed {name}, {size(count)}")
    return 0


def doctor(args):
    from gomlx.doctor import report
    found = report()
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        show_table(found)
    return 0


def show_table(values, indent=""):
    """A dict as lines of `name: value`, sub-dicts indented, byte counts readable."""
    width = max(len(name) for name in values) + 1
    for name, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            show_table(value, indent + "  ")
            continue
        if isinstance(value, list):
            value = ", ".join(json.dumps(one, ensure_ascii=False) if isinstance(one, dict) else str(one)
                              for one in value) or None
        elif name.endswith("bytes") and isinstance(value, int):
            value = size(value)
        print(f"{indent}{name + ':':{width}} {'-' if value is None else value}")


def size(count):
    """Bytes as people read them: 4.4 MB."""
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
