"""The command gomlx. Standard output carries only the result; everything else goes to standard error.

To add a command: a function `run(args)` that returns the exit status, in the file of its group (or a new one, listed in
GROUPS), and in that file's add() a line

    made = commands.add("name", run, "One sentence, with a full stop.", options.model, options.json,
                        examples=["gomlx name file.txt"])
    made.add_argument("file", metavar="FILE")

Rules: options that several commands have are in options.py, once, and mean the same everywhere (-m, --json,
--backend, -n, ...); a text argument `-` reads standard input; --json prints one object (or one a line where results
come one by one) and nothing else; long work shows bars.reporting; errors are raised, and become one line and status 1
here.
"""
import argparse
import contextlib
import os
import re
import signal
import sys

import gomlx
from gomlx._base import arguments
from gomlx.cli import (
    adapters,
    conversion,
    generation,
    inspection,
    launching,
    machine,
    manual,
    many,
    models,
    serving,
    speed,
    tokens,
    training,
)
from gomlx.cli.output import say, warnings_said

GROUPS = (generation, serving, many, inspection, tokens, models, conversion, training, adapters, launching, speed,
          machine, manual)
FAILURES = (OSError, ValueError, RuntimeError, NotImplementedError, MemoryError, OverflowError, ImportError,
            gomlx.Error, arguments.WrongType)


class Commands:
    """The subparsers of the command line."""

    def __init__(self, subparsers):
        self._subparsers = subparsers

    def add(self, name, run, help_text, *parents, examples):
        """A command whose options are those of `parents`, and what is added to the parser that is returned. examples:
        command lines, for its page (manual.py)."""
        made = self._subparsers.add_parser(name, help=help_text, description=help_text,
                                           epilog=f"`gomlx help {name}` has examples.",
                                           parents=[one() for one in parents])
        made.set_defaults(run=run, parser=made)
        made.examples = examples
        return made


def parser():
    top = argparse.ArgumentParser(prog="gomlx", description="Runs open language models on this machine's CPUs.")
    top.add_argument("--version", action="version", version="gomlx " + gomlx.__version__)
    top.set_defaults(run=manual.show, command=[], parser=top, top=top)
    commands = Commands(top.add_subparsers(metavar="COMMAND"))
    for group in GROUPS:
        group.add(commands)
    return top


def main(argv=None):
    """Runs one command; returns the exit status: 0, 1 after an error, 128 + signal when interrupted. Raises SystemExit
    with 2 for wrong usage, with 0 after --help, and with 128 + signal when the process is to end."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:          # closed by the shell, as in `gomlx ... >&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    try:
        with ended_by_signals(), warnings_said():
            return run(argv)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except FAILURES as error:
        say("error: " + (" ".join(str(error).split()) or type(error).__name__))
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            let_go(stream)


# Options of other programs, and what does the same here.
ELSEWHERE = {"-c": "--context", "--ctx-size": "--context", "--do-sample": "--temperature"} | dict.fromkeys(
    ("-p", "--prompt"), "the text by itself")


def parsed(argv):
    """The parsed arguments; wrong usage ends the program, naming an option that may have been meant."""
    top = parser()
    args, rest = top.parse_known_args(argv)
    wrong = next((one.partition("=")[0] for one in rest if one.startswith("-") and one != "-"), None)
    if wrong is None and rest:
        refuse(args, "unexpected arguments: " + " ".join(rest))
    if wrong is not None:
        options = [one for action in args.parser._actions for one in action.option_strings]
        known = [one[2:].replace("-", "_") for one in options if one.startswith("--")]
        near = re.search(r"'(\w+)'\?$", arguments.hint(wrong.lstrip("-").replace("-", "_"), known))
        meant = ELSEWHERE.get(wrong) or ("--" + near[1].replace("_", "-") if near else None)
        refuse(args, f"unknown option {wrong}" + (f". Did you mean {meant}?" if meant else ""))
    return args


def refuse(args, what):
    page = args.parser.prog.replace("gomlx", "gomlx help", 1)
    args.parser.exit(2, f"{args.parser.prog}: error: {what}\n`{page}` lists what there is\n")


def run(argv):
    try:
        args = parsed(argv)
        sys.stdout.reconfigure(errors="replace")
        status = args.run(args)
    except SystemExit:                          # after --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


@contextlib.contextmanager
def ended_by_signals():
    """kill, timeout and a closed terminal end a command like Ctrl-C: what it was writing is removed. A signal that the
    caller ignores, as nohup does, stays ignored."""
    def end(number, frame):
        raise SystemExit(128 + number)

    changed = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]
    for one in changed:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in changed:
            signal.signal(one, signal.SIG_DFL)


def let_go(stream):
    """Flushes a stream. One that is broken is pointed at /dev/null, so that Python does not report it at exit."""
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
