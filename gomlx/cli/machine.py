"""This machine and this shell: doctor, backends, completion."""
import dataclasses

import gomlx
from gomlx.cli import options
from gomlx.cli.output import coloured, print_json, show_rows, show_table


def add(commands):
    commands.add("doctor", doctor, "Show what was found on this machine, what was chosen, and why.", options.json,
                 examples=["gomlx doctor", "gomlx doctor --json"])
    commands.add("backends", backends, "List the backends that can run models here, and what the others lack.",
                 options.json, examples=["gomlx backends"])
    made = commands.add("completion", completion, "Print what makes a shell complete gomlx's commands and options.",
                        examples=['eval "$(gomlx completion bash)"', 'eval "$(gomlx completion zsh)"',
                                  "gomlx completion fish > ~/.config/fish/completions/gomlx.fish"])
    made.add_argument("shell", choices=("bash", "zsh", "fish"))


def doctor(args):
    from gomlx._tools.doctor import report  # other commands begin without it
    found = report()
    if args.json:
        print_json(found)
    else:
        show_table(found)
    return 0


def backends(args):
    found = gomlx.backends.available()
    if args.json:
        print_json({"default": gomlx.backends.default().name, "backends": [dataclasses.asdict(one) for one in found]})
        return 0
    show_rows(["NAME", "AVAILABLE", "FROM", "WHY"],
              [(one.name, "yes" if one.available else "no", one.source, coloured(one.why, "dim")) for one in found])
    return 0


def completion(args):
    from gomlx.cli import complete  # other commands begin without it
    print(complete.script(args.shell, args.top), end="")
    return 0
