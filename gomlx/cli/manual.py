"""help: a page about each command, made from its parser: what it does, its options in full, and examples."""
import argparse
import shutil
import textwrap

from gomlx.cli.output import coloured

STATUS = ("0 when all went well; 1 after an error, which is one line on standard error; 2 for wrong usage; 128 and the "
          "signal's "
          "number when interrupted.")


def add(commands):
    made = commands.add("help", show, "Show the page of a command, or what commands there are.",
                        examples=["gomlx help", "gomlx help generate", "gomlx help models verify"])
    made.add_argument("command", nargs="*", metavar="COMMAND", help="a command, and its action where it has some")


def show(args):
    found = args.top
    for i, word in enumerate(args.command):
        below = actions_of(found)
        if word not in below:
            above, whole = " ".join(args.command[:i]), " ".join(args.command[:i + 1])
            if not below:
                raise ValueError(f"unknown command {whole!r}: {above!r} has no actions")
            raise ValueError(f"unknown command {whole!r}; expected one of {', '.join(below)}")
        found = below[word]
    print(overview(found) if found is args.top else page(found))
    return 0


def actions_of(parser):
    """{name: parser} of the commands below one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def overview(top):
    """All commands, a line each."""
    lines = [coloured("gomlx", "bold") + " - " + uncapped(top.description), ""]
    names = actions_of(top)
    width = max(map(len, names))
    for name, one in names.items():
        rows = wrapped(one.description, 4 + width)
        lines.append(f"  {coloured(name.ljust(width), 'bold')}  {rows.lstrip()}")
    return "\n".join([*lines, "", "gomlx help COMMAND shows the page of one."])


def page(command):
    """The page of one command."""
    taken = [given(action) for action in command._actions if not action.option_strings]
    parts = [("NAME", wrapped(f"{command.prog} - {uncapped(command.description)}")),
             ("SYNOPSIS", wrapped(" ".join([command.prog, "[OPTION]...", *taken])))]
    for group in command._action_groups:
        rows = [row(action) for action in group._group_actions if not isinstance(action, argparse._SubParsersAction)]
        if rows:
            title = {"positional arguments": "ARGUMENTS", "options": "OPTIONS"}.get(group.title, group.title.upper())
            said = [wrapped(group.description[:1].upper() + group.description[1:] + ".")] if group.description else []
            parts.append((title, "\n\n".join([*said, *rows])))
    below = actions_of(command)
    if below:
        parts.append(("ACTIONS", "\n\n".join(f"    {coloured(name, 'bold')}\n{wrapped(one.description, 8)}"
                                             for name, one in below.items())))
    parts.append(("EXAMPLES", "\n".join("    " + one for one in command.examples)))
    parts.append(("EXIT STATUS", wrapped(STATUS)))
    return "\n\n".join(f"{coloured(title, 'bold')}\n{text}" for title, text in parts)


def given(action):
    """An argument as a synopsis has it."""
    name = named(action)
    return {"?": f"[{name}]", "*": f"[{name}]...", "+": f"{name}...", argparse.PARSER: f"[{name}]"}.get(action.nargs,
                                                                                                        name)


def named(action):
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices
                               else action.dest.upper())
    return " ".join(value) if isinstance(value, tuple) else value


def row(action):
    """An option with its values, and under it what it means."""
    value = named(action)
    takes = f" {value}" if action.nargs != 0 and action.option_strings else ""
    names = ", ".join(action.option_strings) or value
    about = wrapped((action.help or "").replace("%%", "%"), 8)
    return f"    {coloured(names, 'bold')}{takes}" + ("\n" + about if about else "")


def wrapped(text, indent=4):
    width = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
    return textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * indent,
                         break_on_hyphens=False)


def uncapped(text):
    return text[:1].lower() + text[1:].rstrip(".") if text[1:2].islower() else text.rstrip(".")
