"""Completion scripts for shells, made from argparse's own tree; they run no Python.

    eval "$(gomlx completion bash)"             # in .bashrc
    eval "$(gomlx completion zsh)"              # in .zshrc, after compinit
    gomlx completion fish > ~/.config/fish/completions/gomlx.fish
"""
import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    flags: list[str]
    choices: list[str]
    takes_value: bool
    help: str


@dataclass(frozen=True)
class Command:
    path: tuple[str, ...]                       # ("models", "rm"); () is gomlx itself
    help: str
    options: list[Option]
    words: list[tuple[str, str]]                # subcommands, or choices of an argument, with their help


def tree(parser, path=(), help_text=""):
    """The Commands of a parser, itself first."""
    options, words, below = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, sub in action.choices.items():
                words.append((name, helps.get(name, "")))
                below += tree(sub, (*path, name), helps.get(name, ""))
        elif action.option_strings:
            choices = [str(one) for one in action.choices or ()]
            help_line = (action.help or "").replace("%%", "%")
            options.append(Option(action.option_strings, choices, action.nargs != 0, help_line))
        else:
            words += [(str(one), "") for one in action.choices or ()]
    return [Command(path, help_text, options, words), *below]


def script(shell, parser):
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](tree(parser), parser.prog)


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def bash(commands, prog):
    """Finds the command by the words before the cursor; offers its options, an option's choices, or files."""
    cases, values = [], []
    for one in commands:
        flags = [flag for option in one.options for flag in option.flags]
        words = [word for word, _ in one.words]
        cases.append(f"        {quoted(' '.join(one.path))}) options={quoted(' '.join(flags))}; "
                     f"words={quoted(' '.join(words))} ;;")
        for option in one.options:
            if option.takes_value:
                patterns = "|".join(quoted(" ".join((*one.path, flag))) for flag in option.flags)
                values.append(f"        {patterns}) values={quoted(' '.join(option.choices))}; file=1 ;;")
    paths = "|".join(quoted(" ".join(one.path)) for one in commands if one.path)
    return f"""_{prog}() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command='' options='' words='' values='' file='' word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "${{command:+$command }}$word" in {paths}) command="${{command:+$command }}$word" ;; esac
    done
    COMPREPLY=()
    case "$command" in
{chr(10).join(cases)}
    esac
    case "${{command:+$command }}$previous" in
{chr(10).join(values)}
    esac
    if [[ -n $file ]]; then
        [[ -n $values ]] && COMPREPLY=($(compgen -W "$values" -- "$current")) || COMPREPLY=($(compgen -f -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    elif [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _{prog} {prog}
"""


def zsh(commands, prog):
    """bash's function under zsh's own emulation of bash's completion."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash(commands, prog)


def fish(commands, prog):
    lines = [f"complete -c {prog} -e"]
    for one in commands:
        if not one.path:
            names = " ".join(word for word, _ in one.words)
            condition = f"not __fish_seen_subcommand_from {names}"
        else:
            below = " ".join(word for word, _ in one.words)
            condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.path) + \
                (f"; and not __fish_seen_subcommand_from {below}" if below else "")
        for word, help_text in one.words:
            lines.append(f"complete -c {prog} -n {quoted(condition)} -f -a {quoted(word)} -d {quoted(help_text)}")
        for option in one.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = f" -x -a {quoted(' '.join(option.choices))}" if option.choices else \
                " -r" if option.takes_value else ""
            lines.append(f"complete -c {prog} -n {quoted(condition)} {flags}{value} -d {quoted(option.help)}")
    return "\n".join(lines) + "\n"
